"""The public functions: array in, the same kind of array out, leading batch axes welcome.

    q (..., nq)   v, tau, qdd, b (..., nv)   external (..., n, 6): a wrench (moment, force) on each body, in
    its frame, at its origin.        Spatial vectors are angular first, in the body's frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import reference
from torsor.algorithms import articulated, composite, coriolis, energy, kinematics, newton_euler, ploen_park
from torsor.errors import ArgumentError, SingularError
from torsor.model.model import Model
from torsor.sweeps import Algorithm

Array = NDArray[Any]


# Dynamics --------------------------------------------------------------------------------------------------


def forward_dynamics(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike, *, external: ArrayLike | None = None,
                     method: str = "auto") -> Array:  # fmt: skip
    """qdd with M(q) qdd + bias(q, v) = tau + external: the accelerations (..., nv) that the torques cause.

    method: "articulated" (O(n) sweeps), "composite" (M, its branch-sparse factor, and a solve) or "auto".
    """
    if _choose(method, "articulated", "composite") == "composite":
        rest = np.asarray(tau) - bias_forces(model, q, v, external=external)
        return mass_solve(model, q, rest, method=method)
    return _call(articulated.forward_dynamics, model, q=q, v=v, tau=tau, external=external)


def inverse_dynamics(model: Model, q: ArrayLike, v: ArrayLike, qdd: ArrayLike, *, external: ArrayLike | None = None,
                     base_acceleration: ArrayLike | None = None, method: str = "auto") -> Array:  # fmt: skip
    """tau (..., nv): the torques that cause the accelerations qdd, under gravity and external wrenches.

    base_acceleration (6,): a base that is not at rest: (angular, linear) acceleration in its frame.
    method: "newton-euler" (fewest operations), "ploen-park" (coordinate-invariant form) or "auto".
    """
    chosen = _choose(method, "newton-euler", "ploen-park")
    algorithm = newton_euler.inverse_dynamics if chosen == "newton-euler" else ploen_park.inverse_dynamics
    return _call(algorithm, model, q=q, v=v, qdd=qdd, external=external, acceleration=base_acceleration)


def bias_forces(model: Model, q: ArrayLike, v: ArrayLike, *, external: ArrayLike | None = None) -> Array:
    """The torques (..., nv) that hold the accelerations at zero: Coriolis, centrifugal and gravity terms."""
    return _call(newton_euler.bias_forces, model, q=q, v=v, external=external)


def gravity_forces(model: Model, q: ArrayLike) -> Array:
    """The torques (..., nv) that hold the machine still against gravity."""
    return _call(newton_euler.gravity_forces, model, q=q)


def mass_matrix(model: Model, q: ArrayLike) -> Array:
    """M(q), (..., nv, nv), symmetric positive definite."""
    return _call(composite.mass_matrix, model, q=q)


def inverse_mass_matrix(model: Model, q: ArrayLike) -> Array:
    """M(q)^-1, (..., nv, nv)."""
    return _call(articulated.inverse_mass_matrix, model, q=q)


def mass_solve(model: Model, q: ArrayLike, b: ArrayLike, *, method: str = "auto") -> Array:
    """M(q)^-1 b, (..., nv), in O(n) without forming M ("articulated"), or through M ("composite")."""
    if _choose(method, "articulated", "composite") == "composite":
        return np.linalg.solve(mass_matrix(model, q), np.asarray(b)[..., None])[..., 0]
    return _call(articulated.mass_solve, model, q=q, tau=b)


def log_det_mass_matrix(model: Model, q: ArrayLike) -> Array:
    """log det M(q), (...), from the pivots of the articulated inertias in O(n)."""
    return np.log(_call(articulated.pivots, model, q=q)).sum(axis=-1)


def coriolis_matrix(model: Model, q: ArrayLike, v: ArrayLike) -> Array:
    """C(q, v), (..., nv, nv): C v + gravity is the bias and dM/dt - 2 C is skew (Christoffel symbols)."""
    return _call(coriolis.coriolis_matrix, model, q=q, v=v)


# Kinematics ------------------------------------------------------------------------------------------------


def body_poses(model: Model, q: ArrayLike) -> Array:
    """The 4x4 pose of every body in the base frame, (..., n, 4, 4)."""
    return _call(kinematics.body_poses, model, q=q)


def body_twists(model: Model, q: ArrayLike, v: ArrayLike) -> Array:
    """The twist (omega, v) of every body in its own frame, (..., n, 6)."""
    return _call(kinematics.body_twists, model, q=q, v=v)


def jacobian(model: Model, q: ArrayLike, body: int | str) -> Array:
    """J (..., 6, nv) with J v the twist of a body, or of a named frame on it, in its own frame."""
    return _on_frame(kinematics.jacobian, model, body, q=q)


def jacobian_dot(model: Model, q: ArrayLike, v: ArrayLike, body: int | str) -> Array:
    """dJ/dt (..., 6, nv) of `jacobian` along the velocity v."""
    return _on_frame(kinematics.jacobian_dot, model, body, q=q, v=v)


# Energy and momentum ---------------------------------------------------------------------------------------


def kinetic_energy(model: Model, q: ArrayLike, v: ArrayLike) -> Array:
    """T = v^T M v / 2, (...)."""
    return _call(energy.kinetic_energy, model, q=q, v=v)


def potential_energy(model: Model, q: ArrayLike) -> Array:
    """U, (...): minus the work of gravity, zero with the centre of mass at the base's origin."""
    return _call(energy.potential_energy, model, q=q)


def momentum(model: Model, q: ArrayLike, v: ArrayLike) -> Array:
    """(angular momentum about the base's origin, linear momentum), (..., 6), in the base frame."""
    return _call(energy.momentum, model, q=q, v=v)


def center_of_mass(model: Model, q: ArrayLike) -> Array:
    """The centre of mass (..., 3) in the base frame."""
    return _call(energy.center_of_mass, model, q=q)


# Arguments -------------------------------------------------------------------------------------------------


def _choose(method: str, *known: str) -> str:
    """The method, the first of those known if "auto"."""
    if method not in ("auto", *known):
        raise ArgumentError(f"unknown method {method!r}; choose one of: auto, {', '.join(known)}")
    return known[0] if method == "auto" else method


def _call(algorithm: Algorithm, model: Model, body: int | None = None, **inputs: ArrayLike | None) -> Array:
    arrays = {name: _checked(model, name, x) for name, x in inputs.items() if x is not None}
    return _reference(algorithm, model, arrays, body)


def _shape(model: Model, name: str) -> tuple[int, ...]:
    """The last axes of an argument."""
    if name == "external":
        return (model.n, 6)
    return (6,) if name == "acceleration" else (model.nq,) if name == "q" else (model.nv,)


def _checked(model: Model, name: str, x: ArrayLike) -> Array:
    array = np.asarray(x)
    if array.dtype.kind not in "fiubO":
        raise ArgumentError(f"{name} has dtype {array.dtype}; real numbers are needed")
    core = _shape(model, name)
    if array.shape[array.ndim - len(core) :] != core or array.ndim < len(core):
        wanted = ", ".join(map(str, core))
        raise ArgumentError(f"{name} has shape {array.shape}; this model needs (..., {wanted})")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ArgumentError(f"{name}{list(where)} is {array[where]}; every number must be finite")
    return array if array.dtype.kind in "fO" else array.astype(np.float64)


def _reference(algorithm: Algorithm, model: Model, arrays: dict[str, Array], body: int | None) -> Array:
    """One state after the other through the reference engine, in the number type of the arrays."""
    dtype = np.result_type(*(x.dtype for x in arrays.values()))
    number: Callable[[float], Any] = float if dtype.kind == "f" and dtype.itemsize <= 8 else dtype.type
    cores = {name: len(_shape(model, name)) for name in arrays}
    batch = np.broadcast_shapes(*(x.shape[: x.ndim - cores[name]] for name, x in arrays.items()))
    states = {name: np.broadcast_to(x, batch + x.shape[x.ndim - cores[name] :]) for name, x in arrays.items()}
    results = []
    for index in np.ndindex(*batch):
        state = {name: _numbers(x[index], number) for name, x in states.items()}
        try:
            results.append(reference.evaluate(algorithm, model, state, body=body, number=number))
        except ZeroDivisionError:
            raise SingularError(f"{algorithm.name}: a joint of {model!r} moves no mass in state {index}") from None
    core = np.asarray(results[0] if results else 0.0).shape
    return np.array(results, dtype=dtype).reshape(batch + core)


def _numbers(x: Array, number: Callable[[Any], Any]) -> Any:
    return [number(y) if x.ndim == 1 else [number(z) for z in y] for y in x]


def _on_frame(algorithm: Algorithm, model: Model, body: int | str, **inputs: ArrayLike) -> Array:
    """A Jacobian of a body, moved to the named frame on it: Ad_{f^-1} J."""
    if isinstance(body, str):
        frame = model.frame(body)
        from torsor import lie

        T = np.eye(4)
        T[:3, :3], T[:3, 3] = frame.R, frame.p
        return lie.Ad(lie.inverse(T)) @ _call(algorithm, model, body=frame.body, **inputs)
    if not -model.n <= body < model.n:
        raise ArgumentError(f"body {body} is out of range: {model!r} has {model.n}")
    return _call(algorithm, model, body=body % model.n, **inputs)
