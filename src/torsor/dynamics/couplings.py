"""Machines whose joints follow others: q = ratio q_leader + offset.

With v = G v_free, a coupled machine obeys G' (M G a_free + bias - tau) = 0.  It is exact: the forces that hold the
couplings do no work.  `forward_dynamics` and `simulate` let couplings act; all other functions are those of the tree,
whose joints are all free.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import composite, newton_euler
from torsor.dynamics.calls import batch_axes, call, call_with, checked
from torsor.errors import ArgumentError, SingularError
from torsor.model.model import Model

Array = NDArray[Any]

# A start obeys its couplings if it does to within this: numbers typed with ten digits do.
OBEYED = 1e-9


def free_freedoms(model: Model) -> Array:
    """The freedoms that follow no other."""
    followers = [int(model.v_start[coupling.follower]) for coupling in model.couplings]
    return np.setdiff1d(np.arange(model.nv), np.array(followers, dtype=int))


def coupling_matrix(model: Model) -> Array:
    """G (nv, k) with v = G v[free_freedoms]."""
    free = free_freedoms(model)
    G = np.zeros((model.nv, len(free)))
    G[free, np.arange(len(free))] = 1.0
    column = {int(k): i for i, k in enumerate(free)}
    for follower, leader, ratio, _ in model.couplings:
        G[model.v_start[follower], column[int(model.v_start[leader])]] = ratio
    return G


def coupled(model: Model, q: Array) -> Array:
    """q (..., nq) with the coordinates of followers set to what their leaders say."""
    q = np.array(q)
    for follower, leader, ratio, offset in model.couplings:
        q[..., model.q_start[follower]] = ratio * q[..., model.q_start[leader]] + offset
    return q


def obeying(model: Model, name: str, x: Array, offset: bool) -> None:
    """Raise, naming the joint, unless q (or v, whose couplings have no offset) obeys the couplings."""
    starts = model.q_start if offset else model.v_start
    for coupling in model.couplings:
        wanted = coupling.ratio * x[starts[coupling.leader]] + coupling.offset * offset
        if abs(x[starts[coupling.follower]] - wanted) > OBEYED * max(1.0, abs(wanted)):
            follower, leader = (model.joint_names[i] for i in coupling[:2])
            raise ArgumentError(
                f"{name}: joint {follower!r} follows {leader!r}, so it must be {wanted:g}, not "
                f"{x[starts[coupling.follower]]:g}: torsor.dynamics.couplings.coupled(model, q) makes it so"
            )


def coupled_accelerations(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike, *,
                          external: ArrayLike | None = None,
                          added_inertia: ArrayLike | None = None) -> Array:  # fmt: skip
    """G (G' (M + diag(added)) G)^-1 G' (tau - bias): the accelerations (..., nv), which obey the couplings."""
    arrays = {name: checked(model, name, x) for name, x in (("q", q), ("v", v), ("tau", tau))}
    batch_axes(model, arrays)
    if np.result_type(*arrays.values()).char not in "df":
        raise ArgumentError("the dynamics of coupled joints are computed in float64 and float32 only")
    bias = call_with(newton_euler.bias_forces, model, arrays["q"], arrays["v"], external=external)
    return coupled_solve(model, arrays["q"], arrays["tau"] - bias, added_inertia)


def coupled_solve(model: Model, q: Array, b: Array, added_inertia: ArrayLike | None = None) -> Array:
    """G (G' (M + diag(added)) G)^-1 G' b"""
    G, M = coupling_matrix(model).astype(b.dtype), call(composite.mass_matrix, model, q)
    if added_inertia is not None:
        M = M + np.asarray(added_inertia)[..., None] * np.eye(model.nv)
    try:
        return np.linalg.solve(G.T @ M @ G, (b @ G)[..., None])[..., 0] @ G.T
    except np.linalg.LinAlgError:
        raise SingularError("the mass matrix of the coupled machine is singular: a joint moves no mass") from None
