"""Derivatives of the dynamics as matrices, and the torque regressor.

A derivative with respect to q has one column per freedom.  Column k is the derivative along q + dq =
model.integrate(q, dq e_k), with v, qdd or tau and the external wrenches constant: for an angle or a length this is the
partial derivative, for a quaternion a rotation about an axis of the body's own frame, for a free body a twist in its
frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import inverse_derivatives, regressor
from torsor.dynamics.accuracy import COMPARED, refuse_disagreement
from torsor.dynamics.calls import automatic_algorithm, call_with
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
                                 external: ArrayLike | None = None, base_velocity: ArrayLike | None = None,
                                 base_acceleration: ArrayLike | None = None) -> InverseDerivatives:  # fmt: skip
    """Compute the derivatives of the torques with respect to q, v and accelerations, as matrices.

    Derivatives with respect to q are along `model.integrate(q, dq)`.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    v : (..., nv) array_like
        Velocities, in rad/s and m/s.
    qdd : (..., nv) array_like
        Accelerations, in rad/s^2 and m/s^2.
    external : (..., n, 6) array_like, optional
        The wrench (moment, force) on every body, at its origin and in its frame, in N m and N.
    base_velocity : (..., 6) array_like, optional
        Twist (omega, v) of a moving base, in its own frame.
    base_acceleration : (..., 6) array_like, optional
        The time derivative of that twist; gravity acts in addition.

    Returns
    -------
    dq, dv, M : (..., nv, nv) ndarray
        d tau/dq, d tau/dv and d tau/dqdd = M, a named tuple.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Notes
    -----
    After Singh, Russell & Wensing 2022.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> found = ts.inverse_dynamics_derivatives(arm, [0.3, 0.2], [0.0, 0.0], [0.0, 0.0])
    >>> np.allclose(found.M, ts.mass_matrix(arm, [0.3, 0.2]))
    True
    """
    refuse_large(model, inverse_dynamics_derivatives)
    algorithm = inverse_derivatives.inverse_dynamics_derivatives
    options = {"external": external, "base_velocity": base_velocity, "base_acceleration": base_acceleration}
    return InverseDerivatives(*call_with(algorithm, model, q, v, qdd, **options))


def forward_dynamics_derivatives(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike, *,
                                 external: ArrayLike | None = None, base_velocity: ArrayLike | None = None,
                                 base_acceleration: ArrayLike | None = None,
                                 method: str = "auto") -> ForwardDerivatives:  # fmt: skip
    """Compute the derivatives of the accelerations with respect to q, v and torques, as matrices.

    Derivatives with respect to q are along `model.integrate(q, dq)`.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    v : (..., nv) array_like
        Velocities, in rad/s and m/s.
    tau : (..., nv) array_like
        Joint torques and forces, in N m and N.
    external : (..., n, 6) array_like, optional
        The wrench (moment, force) on every body, at its origin and in its frame, in N m and N.
    base_velocity : (..., 6) array_like, optional
        Twist (omega, v) of a moving base, in its own frame.
    base_acceleration : (..., 6) array_like, optional
        The time derivative of that twist; gravity acts in addition.
    method : str, default "auto"
        "articulated", "composite" (through M, up to 8 freedoms) or "auto".

    Returns
    -------
    dq, dv, dtau : (..., nv, nv) ndarray
        d qdd/dq, d qdd/dv and d qdd/dtau = M^-1, a named tuple.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.
    SingularError
        The mass matrix is singular in a state.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> found = ts.forward_dynamics_derivatives(arm, [0.3, 0.2], [0.0, 0.0], [0.0, 0.0])
    >>> np.allclose(found.dtau, ts.inverse_mass_matrix(arm, [0.3, 0.2]))
    True
    """
    refuse_large(model, forward_dynamics_derivatives)
    if method == "auto":
        algorithm = automatic_algorithm(model, forward_dynamics_derivatives)
    else:
        algorithm = named(forward_dynamics_derivatives, method)
    if (nv := machine_of(model).nv) > (most := most_freedoms(algorithm)):
        raise ArgumentError(f"method {method!r} is compiled for {most} freedoms at most, not {nv}")
    options = {"external": external, "base_velocity": base_velocity, "base_acceleration": base_acceleration}
    result = ForwardDerivatives(*call_with(algorithm, model, q, v, tau, **options))
    if method == "composite" and pivot_ratio(model) > COMPARED and isinstance(result.dq, np.ndarray):
        sweeps = forward_dynamics_derivatives(model, q, v, tau, method="articulated", **options)
        for found, exact in zip(result, sweeps):
            refuse_disagreement(method, "forward_dynamics_derivatives", found, exact, 2)
    return result


def torque_regressor(model: Model, q: ArrayLike, v: ArrayLike, qdd: ArrayLike, *,
                     base_velocity: ArrayLike | None = None,
                     base_acceleration: ArrayLike | None = None) -> Array:  # fmt: skip
    """Compute the matrix Y with tau = Y pi, where pi has ten inertial parameters per body.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    v : (..., nv) array_like
        Velocities, in rad/s and m/s.
    qdd : (..., nv) array_like
        Accelerations, in rad/s^2 and m/s^2.
    base_velocity : (..., 6) array_like, optional
        Twist (omega, v) of a moving base, in its own frame.
    base_acceleration : (..., 6) array_like, optional
        The time derivative of that twist; gravity acts in addition.

    Returns
    -------
    Y : (..., nv, 10 n) ndarray
        Columns for m, m c (x, y, z), J about the frame's origin (xx, xy, xz, yy, yz, zz) of each body.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> state = [0.3, 0.2], [0.1, 0.0], [1.0, 2.0]
    >>> tau = ts.torque_regressor(arm, *state) @ arm.inertial_parameters().ravel()
    >>> np.allclose(tau, ts.inverse_dynamics(arm, *state))
    True
    """
    base = {"base_velocity": base_velocity, "base_acceleration": base_acceleration}
    return call_with(regressor.torque_regressor, model, q, v, qdd, **base)


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
