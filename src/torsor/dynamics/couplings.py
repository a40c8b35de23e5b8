"""Machines whose joints follow others, q = ratio q_leader + offset: checks of states, and large machines.

`algorithms/coupled.py` has the equations and the code of programs for up to `MOST_COUPLED` freedoms.  The functions
here do the same with dense matrices for machines of any size, so a call does not wait for compilation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import composite, newton_euler
from torsor.dynamics.calls import batch_axes, call, call_with, checked, same_library
from torsor.errors import ArgumentError, SingularError
from torsor.model.model import Model

Array = NDArray[Any]

# The tolerance for a state that obeys its couplings: numbers typed with ten digits pass.
OBEYED = 1e-9


def obeying(model: Model, name: str, x: Array, offset: bool) -> None:
    """Raise, naming the joint, unless all q (or v, whose couplings have no offset), (..., nq), obey the couplings."""
    starts = model.q_start if offset else model.v_start
    for coupling in model.couplings:
        wanted = np.ravel(coupling.ratio * x[..., starts[coupling.leader]] + coupling.offset * offset)
        given = np.ravel(x[..., starts[coupling.follower]])
        precision = max(OBEYED, 10 * float(np.finfo(given.dtype).eps))
        for k in np.flatnonzero(np.abs(given - wanted) > precision * np.maximum(1.0, np.abs(wanted)))[:1]:
            follower, leader = (model.joint_names[i] for i in coupling[:2])
            raise ArgumentError(
                f"{name}: joint {follower!r} follows {leader!r}, so it must be {wanted[k]:g}, not {given[k]:g}: "
                "model.coupled(q) makes it so"
            )


@same_library
def coupled_accelerations(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike, *,
                          added_inertia: ArrayLike | None = None, **options: ArrayLike | None) -> Array:  # fmt: skip
    """G (G' (M + diag(added)) G)^-1 G' (tau - bias): the accelerations (..., nv), which obey the couplings."""
    arrays = {name: checked(model, name, x) for name, x in (("q", q), ("v", v), ("tau", tau))}
    batch_axes(model, arrays)
    if np.result_type(*arrays.values()).char not in "df":
        raise ArgumentError("the dynamics of coupled joints are computed in float64 and float32 only")
    bias = call_with(newton_euler.bias_forces, model, arrays["q"], arrays["v"], **options)
    return coupled_solve(model, arrays["q"], arrays["tau"] - bias, added_inertia)


@same_library
def coupled_solve(model: Model, q: ArrayLike, b: ArrayLike, added_inertia: ArrayLike | None = None) -> Array:
    """G (G' (M + diag(added)) G)^-1 G' b"""
    b = checked(model, "b", b)
    G, A = reduced(model, q, added_inertia)
    try:
        return np.linalg.solve(A, (b @ G)[..., None])[..., 0] @ G.T
    except np.linalg.LinAlgError:
        raise SingularError("the mass matrix of the coupled machine is singular: a joint moves no mass") from None


@same_library
def coupled_inverse(model: Model, q: ArrayLike) -> Array:
    """G (G' M G)^-1 G', (..., nv, nv)"""
    return coupled_solve(model, np.asarray(q)[..., None, :], np.eye(model.nv))


@same_library
def coupled_log_det(model: Model, q: ArrayLike) -> Array:
    """log det (G' M G)"""
    return np.linalg.slogdet(reduced(model, q)[1])[1]


def reduced(model: Model, q: ArrayLike, added_inertia: ArrayLike | None = None) -> tuple[Array, Array]:
    """G, and G' (M + diag(added)) G"""
    M = call(composite.mass_matrix, model, q)
    G = model.coupling_matrix().astype(M.dtype)
    if added_inertia is not None:
        M = M + np.asarray(added_inertia)[..., None] * np.eye(model.nv)
    return G, G.T @ M @ G
