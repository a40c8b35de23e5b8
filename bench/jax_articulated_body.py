"""Forward dynamics of a chain of revolute joints in JAX, as one writes it from a textbook: 6x6 matrices and vmap.

Featherstone's articulated-body algorithm; spatial vectors are angular first, in the bodies' own frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import torsor as ts


def skew(p: Any) -> Any:
    return jnp.array([[0.0, -p[2], p[1]], [p[2], 0.0, -p[0]], [-p[1], p[0], 0.0]])


def motion_transform(R: Any, p: Any) -> Any:
    """X: twists of the parent's frame seen from the child's, for the child at (R, p)."""
    return jnp.block([[R.T, jnp.zeros((3, 3))], [-R.T @ skew(p), R.T]])


def cross_motion(V: Any) -> Any:
    return jnp.block([[skew(V[:3]), jnp.zeros((3, 3))], [skew(V[3:]), skew(V[:3])]])


def rotation(axis: Any, angle: Any) -> Any:
    K = skew(axis)
    return jnp.eye(3) + jnp.sin(angle) * K + (1 - jnp.cos(angle)) * (K @ K)


def forward_dynamics(model: ts.Model) -> Callable[[Any, Any, Any], Any]:
    """The function (q, v, tau) -> qdd of one state."""
    n = model.n
    inertias = []
    for m, c, I in zip(model.mass, model.com, model.inertia):
        C = np.asarray(skew(c))
        inertias.append(jnp.asarray(np.block([[I + m * C @ C.T, m * C], [m * C.T, m * np.eye(3)]]), jnp.float32))
    axes, R0, p0 = (jnp.asarray(x, jnp.float32) for x in (model.axis, model.R, model.p))
    gravity = jnp.concatenate([jnp.zeros(3), -jnp.asarray(model.gravity, jnp.float32)])

    def function(q: Any, v: Any, tau: Any) -> Any:
        X, S, c, I, p = [], [], [], list(inertias), []
        V = jnp.zeros(6)
        for i in range(n):
            X.append(motion_transform(R0[i] @ rotation(axes[i], q[i]), p0[i]))
            S.append(jnp.concatenate([axes[i], jnp.zeros(3)]))
            V = X[i] @ V + S[i] * v[i]
            c.append(cross_motion(V) @ (S[i] * v[i]))
            p.append(-cross_motion(V).T @ (I[i] @ V))
        U, d, u = [None] * n, [None] * n, [None] * n
        for i in reversed(range(n)):
            U[i] = I[i] @ S[i]
            d[i] = S[i] @ U[i]
            u[i] = tau[i] - S[i] @ p[i]
            if i:
                Ia = I[i] - jnp.outer(U[i], U[i]) / d[i]
                pa = p[i] + Ia @ c[i] + U[i] * (u[i] / d[i])
                I[i - 1] = I[i - 1] + X[i].T @ Ia @ X[i]
                p[i - 1] = p[i - 1] + X[i].T @ pa
        a, qdd = gravity, []
        for i in range(n):
            a = X[i] @ a + c[i]
            qdd.append((u[i] - U[i] @ a) / d[i])
            a = a + S[i] * qdd[i]
        return jnp.stack(qdd)

    return function
