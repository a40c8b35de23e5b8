"""Derivatives of the dynamics as matrices, and the torque regressor.

A derivative by q has one column per freedom.  Column k belongs to the motion q + dq = model.integrate(q, dq e_k), with
v, qdd or tau and the external wrenches held as they are: for an angle or a length this is the partial derivative, for a
quaternion a turn about an axis of the body's own frame, for a free body a twist in its frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import inverse_derivatives, regressor
from torsor.dynamics.accuracy import COMPARED, refuse_disagreement
from torsor.dynamics.calls import automatic_algorithm, call, call_with
from torsor.dynamics.methods import most_freedoms, named
from torsor.errors import ArgumentError
from torsor.model.batch import machine_of, require_models
from torsor.model.conditioning import pivot_ratio
from torsor.model.model import Model

Array = NDArray[Any]

# Dense derivatives have nv^2 entries each, and those of forward dynamics take nv^3 operations.
MOST_DENSE = 500


class InverseDerivatives(NamedTuple):
    """The derivatives of tau, (..., nv, nv) each."""

    dq: Array  # d tau/dq, columns in the tangent space of q
    dv: Array  # d tau/dv
    M: Array  # d tau/dqdd, the mass matrix


class ForwardDerivatives(NamedTuple):
    """The derivatives of qdd, (..., nv, nv) each."""

    dq: Array  # d qdd/dq, columns in the tangent space of q
    dv: Array  # d qdd/dv
    dtau: Array  # d qdd/dtau = M^-1


def inverse_dynamics_derivatives(model: Model, q: ArrayLike, v: ArrayLike, qdd: ArrayLike, *,
                                 external: ArrayLike | None = None) -> InverseDerivatives:  # fmt: skip
    """(dq, dv, M): the derivatives of `inverse_dynamics` by q, v and qdd, (..., nv, nv) each.

    Column k of dq is d tau/d eps at model.integrate(q, eps e_k): for a quaternion, a turn about an axis of the body's
    frame.  External wrenches are constant in the frame of their body.  By sweeps after Singh, Russell & Wensing (2022),
    in O(n d) operations for a tree of depth d.

    Raises ArgumentError above 500 freedoms: use products with vectors, `ts.vjp` and `ts.jvp`, there.
    """
    refuse_large(model, inverse_dynamics_derivatives)
    algorithm = inverse_derivatives.inverse_dynamics_derivatives
    return InverseDerivatives(*call_with(algorithm, model, q, v, qdd, external=external))


def forward_dynamics_derivatives(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike, *,
                                 external: ArrayLike | None = None,
                                 method: str = "auto") -> ForwardDerivatives:  # fmt: skip
    """(dq, dv, dtau): the derivatives of `forward_dynamics` by q, v and tau, (..., nv, nv) each; dtau is M^-1.

    Column k of dq is d qdd/d eps at model.integrate(q, eps e_k): for a quaternion, a turn about an axis of the body's
    frame.  External wrenches are constant in the frame of their body.

    method: "articulated" (qdd and M^-1 by articulated bodies), "composite" (through M, for a few joints) or "auto".

    Raises ArgumentError above 500 freedoms: use products with vectors, `ts.vjp` and `ts.jvp`, there.
    """
    refuse_large(model, forward_dynamics_derivatives)
    if method == "auto":
        algorithm = automatic_algorithm(model, forward_dynamics_derivatives)
    else:
        algorithm = named(forward_dynamics_derivatives, method)
    if (nv := machine_of(model).nv) > (most := most_freedoms(algorithm)):
        raise ArgumentError(f"method {method!r} is compiled for {most} freedoms at most, not {nv}")
    result = ForwardDerivatives(*call_with(algorithm, model, q, v, tau, external=external))
    if method == "composite" and pivot_ratio(model) > COMPARED and isinstance(result.dq, np.ndarray):
        sweeps = forward_dynamics_derivatives(model, q, v, tau, external=external, method="articulated")
        for found, exact in zip(result, sweeps):
            refuse_disagreement(method, "forward_dynamics_derivatives", found, exact, 2)
    return result


def torque_regressor(model: Model, q: ArrayLike, v: ArrayLike, qdd: ArrayLike) -> Array:
    """Y (..., nv, 10 n) with tau = Y pi: inverse dynamics as a linear function of the inertial parameters.

    pi holds ten numbers per body, in the order of the model's bodies: the mass m, the first moment h = m c (x, y, z),
    and the rotational inertia J (xx, xy, xz, yy, yz, zz) about the origin of the body's frame, all in that frame
    (`Model.inertial_parameters`).  Y depends on the joints and placements only, not on masses.  Rotors are not among
    pi: where the model has an armature, tau = Y pi + armature qdd.
    """
    return call(regressor.torque_regressor, model, q, v, qdd)


def refuse_large(model: Model, function: Callable[..., Any]) -> None:
    """Raise if the dense derivatives of a model are too large."""
    require_models(model)
    nv = machine_of(model).nv
    if nv > MOST_DENSE:
        primal = function.__name__.removesuffix("_derivatives")
        raise ArgumentError(
            f"{function.__name__}: {model!r} has {nv} freedoms; matrices are made for {MOST_DENSE} at most. "
            f"Use products with vectors, which take O(n): ts.vjp(ts.{primal}) and ts.jvp(ts.{primal})"
        )
