"""`linearize`: the dynamics near a state as a linear system, for LQR, observers and stability."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import validate
from torsor.dynamics.calls import batch_axes, checked
from torsor.dynamics.jacobians import forward_dynamics_derivatives
from torsor.errors import ArgumentError
from torsor.linalg import Vec
from torsor.model.joints import JOINTS, Joint
from torsor.model.model import Model, require_model
from torsor.spatial import ad

Array = NDArray[Any]


class Linearization(NamedTuple):
    """dx/dt = A x + B u, or x_{k+1} = A x_k + B u_k, of small changes x and u."""

    A: Array  # (..., 2 nv, 2 nv)
    B: Array  # (..., 2 nv, nv)


def linearize(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike, dt: float | None = None, *,
              external: ArrayLike | None = None) -> Linearization:  # fmt: skip
    """A (..., 2 nv, 2 nv) and B (..., 2 nv, nv): how small changes x = (dq, dv) and u = dtau develop.

    A state near (q, v) is (model.integrate(q, dq), v + dv): dq is in the tangent space, so that quaternions take three
    numbers.  Without dt,  dx/dt = A x + B u  near the motion that starts in (q, v) under tau; where qdd = 0 and v = 0
    this is the usual linearisation about an equilibrium.  With dt,  x_{k+1} = A x_k + B u_k,  with u held for the time
    dt: the exact discretisation of that linear system (matrix exponential by SciPy).

        A, B = ts.linearize(model, q, v, tau)
        P = scipy.linalg.solve_continuous_are(A, B, Q, R)
        K = np.linalg.solve(R, B.T @ P)                         # tau = tau_0 - K (model.difference(q_0, q), v - v_0)
    """
    require_model(model)
    step = None if dt is None else validate.number("dt", dt, above=0.0)
    arrays = {"q": checked(model, "q", q), "v": checked(model, "v", v), "tau": checked(model, "tau", tau)}
    if external is not None:
        arrays["external"] = checked(model, "external", external)
    if np.result_type(*arrays.values()).char not in "df":
        raise ArgumentError(f"linearize computes in float64 or float32, not {np.result_type(*arrays.values())}")
    batch, nv = batch_axes(model, arrays), model.nv
    D = forward_dynamics_derivatives(model, q, v, tau, external=external)
    A = np.zeros((*batch, 2 * nv, 2 * nv), D.dq.dtype)
    B = np.zeros((*batch, 2 * nv, nv), D.dq.dtype)
    A[..., :nv, nv:] = np.eye(nv)
    A[..., :nv, :nv] = _turning(model, np.broadcast_to(arrays["v"], (*batch, nv)))
    A[..., nv:, :nv], A[..., nv:, nv:], B[..., nv:, :] = D
    return Linearization(A, B) if step is None else _held(A, B, step)


def _held(A: Array, B: Array, dt: float) -> Linearization:
    """The exact discretisation: exp [[A, B], [0, 0]] dt = [[A_d, B_d], [0, 1]]."""
    from scipy.linalg import expm  # imported late, because SciPy is slow to load

    n, m = B.shape[-2:]
    whole = np.zeros((*A.shape[:-2], n + m, n + m))
    whole[..., :n, :n], whole[..., :n, n:] = A, B
    discrete = expm(whole * dt).astype(A.dtype) if whole.size else whole.astype(A.dtype)
    return Linearization(discrete[..., :n, :n], discrete[..., :n, n:])


def _turning(model: Model, v: Array) -> Array:
    """-ad_v, joint by joint: where v is not dq/dt, d(dq)/dt = dv - ad_v dq, because the frame of dq turns with v."""
    result = np.zeros((*v.shape, model.nv), v.dtype)
    for i, code in enumerate(model.joint.tolist()):
        if not JOINTS[code].flat:
            own = slice(*model.v_start[i : i + 2])
            result[..., own, own] = np.einsum("kab,...k->...ab", _brackets(JOINTS[code]), -v[..., own])
    return result


@lru_cache
def _brackets(joint: Joint) -> Array:
    """(nv, nv, nv): ad of each unit velocity in the coordinates of v; S is constant and orthonormal."""
    S = joint.subspace(Vec.of(joint.neutral), Vec.unit(2), 0.0)
    return np.array([[S.T(ad(one, other)) for other in S.columns] for one in S.columns]).swapaxes(1, 2)
