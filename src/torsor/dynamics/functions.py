"""The public functions: they take arrays and return arrays of the same kind; leading batch axes are allowed.

q (..., nq)   v, tau, qdd, b (..., nv)   external (..., n, 6): a wrench (moment, force) on each body, in
its frame, at its origin.        Spatial vectors are angular first, in the body's frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike, NDArray

from torsor import validate
from torsor.algorithms import (
    articulated,
    composite,
    constraint_force,
    coriolis,
    energy,
    fixman,
    forward_derivatives,
    inverse_derivatives,
    kinematics,
    newton_euler,
    regressor,
)
from torsor.compiler import derivative as derivatives
from torsor.compiler.store import NAME as STORE
from torsor.compiler.store import store
from torsor.dynamics.accuracy import AGREEMENT, COMPARED, refuse_disagreement
from torsor.dynamics.calls import (
    automatic_algorithm,
    batch_axes,
    call,
    call_with,
    checked,
    core_shape,
    near_lock,
    on_frame,
    refuse_singular_at,
)
from torsor.dynamics.couplings import coupled_accelerations, coupled_inverse, coupled_log_det, coupled_solve
from torsor.dynamics.frames import referred, referred_rate
from torsor.dynamics.jacobians import (
    forward_dynamics_derivatives,
    inverse_dynamics_derivatives,
    refuse_large,
    torque_regressor,
)
from torsor.dynamics.methods import (
    COUPLED,
    METHODS,
    MOST_FREEDOMS,
    NOT_COMPILED,
    SEGMENTS_FROM,
    choose,
    most_freedoms,
    named,
)
from torsor.errors import ArgumentError, SingularError
from torsor.model.batch import ModelBatch, machine_of
from torsor.model.conditioning import pivot_ratio
from torsor.model.model import Model, require_model
from torsor.model.regular import require_no_armature
from torsor.outputs import Several
from torsor.sweeps import Algorithm

Array = NDArray[Any]
INPUTS = ("q", "v", "tau")  # of forward dynamics without external wrenches
State = tuple[ArrayLike, ArrayLike, ArrayLike]


# Dynamics --------------------------------------------------------------------------------------------------


def forward_dynamics(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike, *, external: ArrayLike | None = None,
                     added_inertia: ArrayLike | None = None, method: str = "auto") -> Array:  # fmt: skip
    """qdd with M(q) qdd + bias(q, v) = tau + external: the accelerations (..., nv) that the torques cause.

    M includes the armature of the model.  added_inertia (..., nv) is added to its diagonal: with h D + h^2 K, for
    dampers D and springs K at the joints, this is the linear system of an implicit step, solved in O(n).

    method: "articulated", "udut", "ploen-park" (O(n) sweeps, by Featherstone, Saha, and Ploen & Park), "composite"
    (M, its branch-sparse factor, and a solve), "fixman" (O(n), by relaxed constraints), "segments" (one long chain, cut
    into segments that share a processor's vectors; sweeps for states in which segments would lose digits),
    "constraint-force" (O(log n) deep, Featherstone & Fijany: one very long chain on a GPU) or "auto".

    "auto" considers those of the first four methods that are as accurate as "articulated" on this model, and takes the
    one with the fewest operations (see `explain`).  For one state of a chain of 2000 bodies or more it takes
    "segments" if the joints and masses allow.  If a named method loses half of the digits, a `SingularError` says so
    (docs/accuracy.md).

    With a named method, and with "auto" in batches, a state gives the same bits alone and anywhere in a batch.
    If joints follow others (`model.couplings`), the accelerations obey the couplings.
    """
    if method == "auto":
        state: Any = q
        try:  # `call`, inlined: this path is called millions of times, with one state per call
            if external is added_inertia is None and state.ndim == 1 and type(q) is ndarray:
                result = model.__dict__[STORE].quick[state.dtype.char](q, v, tau)
                if isfinite(sum(result.tolist())) and type(result) is ndarray:
                    return result
        except Exception:  # explained below
            pass
    options = {"external": external, "added_inertia": added_inertia}
    if method != "auto":
        _couples(model, method)
        return _forward_by(method, model, (q, v, tau), options)
    return _forward_by_choice(model, (q, v, tau), options)


def _forward_by_choice(model: Model, state: State, options: Mapping[str, Any]) -> Array:
    """`forward_dynamics` by method="auto"."""
    coupled = _couples(model, "auto")
    if coupled and model.nv > MOST_FREEDOMS:
        return coupled_accelerations(model, *state, **options)
    if _in_segments(model, *state):
        return _forward_by("segments", model, state, options)
    if all(x is None for x in options.values()):
        return call(forward_dynamics, model, *state)
    if coupled or options["added_inertia"] is None:
        return call_with(automatic_algorithm(model, forward_dynamics), model, *state, **options)
    return _forward_by("articulated", model, state, options)


def _forward_by(method: str, model: Model, state: State, options: Mapping[str, Any]) -> Array:
    """`forward_dynamics` by a named method."""
    if method in NOT_COMPILED:
        _require_one(method, model)
    if method == "segments":
        return _by_segments(model, **dict(zip(INPUTS, state)), **options)
    if method == "constraint-force":
        result = _by_parts(method, forward_dynamics, model, **dict(zip(INPUTS, state)), **options)
    elif method == "fixman" or (method == "composite" and _is_large(model)):
        _refuse_added_inertia(method, options["added_inertia"])
        result = _after_bias(method, model, *state, options["external"])
    else:
        algorithm = named(forward_dynamics, method, "fixman", "constraint-force", "segments")
        if "added_inertia" not in algorithm.options:
            _refuse_added_inertia(method, options["added_inertia"])
        result = call_with(algorithm, model, *state, **options)
    return _compared(method, forward_dynamics, result, model, *state, **options)


def inverse_dynamics(model: Model, q: ArrayLike, v: ArrayLike, qdd: ArrayLike, *, external: ArrayLike | None = None,
                     base_velocity: ArrayLike | None = None, base_acceleration: ArrayLike | None = None,
                     method: str = "auto") -> Array:  # fmt: skip
    """tau (..., nv): the torques that cause the accelerations qdd, under gravity and external wrenches.

    base_velocity V_0, base_acceleration dV_0 (..., 6): the (angular, linear) twist of a moving base and its derivative
    by time, both in the base's frame, as is gravity.
    method: "newton-euler" (fewest operations), "ploen-park" (coordinate-invariant form) or "auto".
    """
    algorithm = newton_euler.inverse_dynamics if method == "auto" else named(inverse_dynamics, method)
    base = {"base_velocity": base_velocity, "base_acceleration": base_acceleration}
    return call_with(algorithm, model, q, v, qdd, external=external, **base)


def bias_forces(model: Model, q: ArrayLike, v: ArrayLike, *, external: ArrayLike | None = None,
                base_velocity: ArrayLike | None = None,
                base_acceleration: ArrayLike | None = None) -> Array:  # fmt: skip
    """The torques (..., nv) that hold the accelerations at zero: Coriolis, centrifugal and gravity terms.

    The base moves as in `inverse_dynamics`; mass_solve(model, q, tau - bias) is then the forward dynamics on it.
    """
    base = {"base_velocity": base_velocity, "base_acceleration": base_acceleration}
    return call_with(newton_euler.bias_forces, model, q, v, external=external, **base)


def base_forces(
    model: Model, q: ArrayLike, v: ArrayLike, base_velocity: ArrayLike, base_acceleration: ArrayLike
) -> Array:
    """The torques (..., nv) that a moving base causes at the joints: bias at rest - bias(V_0, dV_0).

    base_velocity V_0, base_acceleration dV_0 (..., 6): as in `inverse_dynamics`. Added to tau they make
    `forward_dynamics` by any method, its derivatives and rollouts those of a machine on that base:

        qdd = ts.forward_dynamics(model, q, v, tau + ts.base_forces(model, q, v, V_0, dV_0), method=...)
    """
    moving = bias_forces(model, q, v, base_velocity=base_velocity, base_acceleration=base_acceleration)
    return bias_forces(model, q, v) - moving


def gravity_forces(model: Model, q: ArrayLike) -> Array:
    """The torques (..., nv) that hold the machine still against gravity."""
    return call(newton_euler.gravity_forces, model, q)


def mass_matrix(model: Model, q: ArrayLike) -> Array:
    """M(q), (..., nv, nv), symmetric positive definite; the armature of the model is on its diagonal."""
    return call(composite.mass_matrix, model, q)


def inverse_mass_matrix(model: Model, q: ArrayLike, *, method: str = "auto") -> Array:
    """M(q)^-1, (..., nv, nv), symmetric to the bit.

    method: "articulated" (articulated inertias, column by column), "product" (articulated inertias, as U^T D^-1 U, for
    short paths to the base), "fixman" (relaxed constraints) or "auto": the quicker of the first two.
    """
    if _couples(model, method) and model.nv > MOST_FREEDOMS:
        return coupled_inverse(model, q)
    if method == "auto":
        return call(automatic_algorithm(model, inverse_mass_matrix), model, q)
    if method == "fixman":
        _require_one(method, model)
        result = call(_fixman(model).inverse_mass_matrix, model, q)
        return _compared(method, inverse_mass_matrix, result, model, q)
    return call(named(inverse_mass_matrix, method, "fixman"), model, q)


def mass_solve(model: Model, q: ArrayLike, b: ArrayLike, *, added_inertia: ArrayLike | None = None,
               method: str = "auto") -> Array:  # fmt: skip
    """M(q)^-1 b, (..., nv); with added_inertia (..., nv), (M(q) + diag(added_inertia))^-1 b.

    method: "articulated", "udut" (O(n), without forming M), "composite" (through M), "fixman" (O(n): all bodies
    floating, their constraints eliminated), "constraint-force" (the same in O(log n) depth) or
    "auto": the fewest operations of the first three.
    """
    if (coupled := _couples(model, method)) and model.nv > MOST_FREEDOMS:
        return coupled_solve(model, q, b, added_inertia)
    if method == "auto" and (coupled or added_inertia is None):
        return call_with(automatic_algorithm(model, mass_solve), model, q, b, added_inertia=added_inertia)
    if method in NOT_COMPILED:
        _require_one(method, model)
    if added_inertia is not None and method in ("auto", "articulated"):
        return call_with(articulated.mass_solve, model, q, b, added_inertia=added_inertia)
    _refuse_added_inertia(method, added_inertia)
    return _compared(method, mass_solve, _mass_solve_by(method, model, q, b), model, q, b)


def _couples(model: Any, method: str) -> bool:
    """Whether joints follow others, which only method="auto" obeys."""
    coupled = bool(getattr(model, "couplings", ()))
    if coupled and method != "auto":
        raise ArgumentError(f"method {method!r} knows no coupled joints: leave out method=, or use model.uncoupled()")
    return coupled


def _refuse_added_inertia(method: str, added_inertia: ArrayLike | None) -> None:
    if added_inertia is not None:
        raise ArgumentError(f'method "{method}" takes no added_inertia; leave out method=, or use "articulated"')


def _mass_solve_by(method: str, model: Model, q: ArrayLike, b: ArrayLike) -> Array:
    """`mass_solve` by a named method, without the comparison with the sweeps."""
    if method == "composite" and _is_large(model):
        return _by_dense_factor(model, q, b)
    if method == "fixman":
        return call(_fixman(model).mass_solve, model, q, b)
    if method == "constraint-force":
        return _by_parts(method, mass_solve, model, q=q, b=b)
    return call(named(mass_solve, method, "fixman", "constraint-force"), model, q, b)


def _fixman(model: Model) -> fixman.FixmanMethod:
    """Relaxed constraints, with rods, points and massless bodies braced if there are any."""
    if not isinstance(model, Model):  # refused later, with the other arguments
        return fixman.REGULAR
    require_no_armature(model, "the method 'fixman', which lets every body float on its own,")
    return fixman.BRACED if model.has_degenerate_bodies else fixman.REGULAR


def constraint_forces(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike, *,
                      external: ArrayLike | None = None) -> Array:  # fmt: skip
    """F (..., n, 6): the wrench (moment, force) through every joint onto its body while the torques act, in the body's
    frame, at its origin: bearing loads.  S^T F = tau - armature qdd; the rest of F does no work.
    """
    return call_with(constraint_force.constraint_forces, model, q, v, tau, external=external)


def log_det_mass_matrix(model: Model, q: ArrayLike, *, method: str = "auto") -> Array:
    """log det M(q), (...), in O(n).

    method: "articulated" (pivots of the articulated inertias), "fixman" (det M = det G det H22) or "auto".
    """
    if choose(method, "articulated", "fixman") == "fixman":
        _require_one(method, model)
        result = call(_fixman(model).log_det, model, q)
        return _compared(method, log_det_mass_matrix, result, model, q)
    if _couples(model, method) and model.nv > MOST_FREEDOMS:
        return coupled_log_det(model, q)
    coupled = getattr(machine_of(model), "couplings", ())
    return call(COUPLED["log_det_mass_matrix"] if coupled else articulated.log_det, model, q)


def log_det_gradient(model: Model, q: ArrayLike) -> Array:
    """d log det M / dq, (..., nv), in O(n); for a quaternion, along the axes of the body's angular velocity."""
    return call(derivatives.log_det_gradient, model, q)


def coriolis_matrix(model: Model, q: ArrayLike, v: ArrayLike) -> Array:
    """C(q, v), (..., nv, nv): C v + gravity is the bias and dM/dt - 2 C is skew (Christoffel symbols)."""
    return call(coriolis.coriolis_matrix, model, q, v)


# Kinematics ------------------------------------------------------------------------------------------------


def body_poses(model: Model, q: ArrayLike) -> Array:
    """The 4x4 pose of every body in the base frame, (..., n, 4, 4)."""
    return call(kinematics.body_poses, model, q)


def body_twists(model: Model, q: ArrayLike, v: ArrayLike, *, base_velocity: ArrayLike | None = None) -> Array:
    """The twist (omega, v) of every body in its own frame, (..., n, 6); base_velocity (..., 6) is that of the base."""
    return call_with(kinematics.body_twists, model, q, v, base_velocity=base_velocity)


def jacobian(model: Model, q: ArrayLike, body: int | str, *, reference: str = "body") -> Array:
    """J (..., 6, nv) with J v the twist of a body, or of a named frame on it: in its own axes ("body"), in the base's
    axes at the base's origin ("world"), or in the base's axes at the frame's origin ("world-aligned").
    """
    J = on_frame(kinematics.jacobian, model, body, q)
    return J if reference == "body" else referred(model, q, body, reference, J)


def jacobian_dot(model: Model, q: ArrayLike, v: ArrayLike, body: int | str, *, reference: str = "body") -> Array:
    """dJ/dt (..., 6, nv) of `jacobian` along the velocity v."""
    rate = on_frame(kinematics.jacobian_dot, model, body, q, v)
    if reference == "body":
        return rate
    return referred_rate(model, v, on_frame(kinematics.jacobian, model, body, q), rate, (q, body, reference))


# Energy and momentum ---------------------------------------------------------------------------------------


def kinetic_energy(model: Model, q: ArrayLike, v: ArrayLike) -> Array:
    """T = v^T M v / 2, (...)."""
    return call(energy.kinetic_energy, model, q, v)


def potential_energy(model: Model, q: ArrayLike) -> Array:
    """U, (...): minus the work of gravity, zero with the centre of mass at the base's origin."""
    return call(energy.potential_energy, model, q)


def momentum(model: Model, q: ArrayLike, v: ArrayLike) -> Array:
    """(angular momentum about the base's origin, linear momentum), (..., 6), in the base frame."""
    return call(energy.momentum, model, q, v)


def center_of_mass(model: Model, q: ArrayLike) -> Array:
    """The centre of mass (..., 3) in the base frame."""
    return call(energy.center_of_mass, model, q)


# Programs --------------------------------------------------------------------------------------------------


ALGORITHMS: dict[Callable[..., Any], Algorithm] = {
    forward_dynamics: articulated.forward_dynamics,
    inverse_dynamics: newton_euler.inverse_dynamics,
    bias_forces: newton_euler.bias_forces,
    gravity_forces: newton_euler.gravity_forces,
    mass_matrix: composite.mass_matrix,
    inverse_mass_matrix: articulated.inverse_mass_matrix,
    mass_solve: articulated.mass_solve,
    constraint_forces: constraint_force.constraint_forces,
    log_det_mass_matrix: articulated.log_det,
    log_det_gradient: derivatives.log_det_gradient,
    coriolis_matrix: coriolis.coriolis_matrix,
    body_poses: kinematics.body_poses,
    body_twists: kinematics.body_twists,
    jacobian: kinematics.jacobian,
    jacobian_dot: kinematics.jacobian_dot,
    kinetic_energy: energy.kinetic_energy,
    potential_energy: energy.potential_energy,
    momentum: energy.momentum,
    center_of_mass: energy.center_of_mass,
    inverse_dynamics_derivatives: inverse_derivatives.inverse_dynamics_derivatives,
    forward_dynamics_derivatives: forward_derivatives.forward_dynamics_derivatives,
    torque_regressor: regressor.torque_regressor,
}


def algorithm_for(model: Model, function: Callable[..., Any], method: str, specialised: bool | None) -> Algorithm:
    """The algorithm that is compiled for a function."""
    if not any(function is known for known in ALGORITHMS):
        known = ", ".join(f.__name__ for f in ALGORITHMS)
        raise ArgumentError(f"{validate.shown(function)} cannot be compiled; these can: {known}")
    algorithm = ALGORITHMS[function]
    if method in NOT_COMPILED:
        raise ArgumentError(f'method "{method}" is not compiled: call {function.__name__} with it, or compile another')
    if method != "auto":
        algorithm = named(function, method)
    elif function.__name__ in METHODS:
        chosen = automatic_algorithm(model, function)
        algorithm = chosen if chosen.has_loops or chosen.couples or specialised is not False else algorithm
    if (nv := machine_of(model).nv) > (most := most_freedoms(algorithm)):
        raise ArgumentError(f"method {method!r} is compiled for {most} freedoms at most, not {nv}")
    if isinstance(algorithm.output, Several):
        refuse_large(model, function)
    return algorithm


def _in_segments(model: Model, *state: ArrayLike) -> bool:
    """Whether method="auto" cuts the chain into segments: one float64 state of a long chain that allows it."""
    if not isinstance(model, Model) or model.n < SEGMENTS_FROM:
        return False
    if any(hasattr(x, "__dlpack_device__") and not isinstance(x, ndarray) for x in state):
        return False  # perhaps on a GPU
    try:
        arrays = [np.asarray(x) for x in state]
    except ValueError:  # ragged lists; the checks of the arguments report them
        return False
    one = all(x.ndim == 1 and x.dtype.kind in "fiub" for x in arrays)
    if not one or np.result_type(*arrays).char != "d":
        return False
    made = store(model)
    segments = made.once(("segments of auto",), lambda: _parallel()[0].serving(model))
    return segments is not None and made.once(("segments", forward_dynamics, INPUTS), lambda: segments) is not None


def _by_segments(model: Model, **given: ArrayLike | None) -> Array:
    """`_by_parts` with a fast path first, as in `call`: checking every number would take half as long again."""
    arrays = {name: x for name, x in given.items() if x is not None}
    q: Any = arrays["q"]
    if type(q) is ndarray and q.dtype.char == "d" and not len(model.locking_coordinates):
        try:
            with np.errstate(invalid="ignore"):  # a state that loses digits
                result = store(model).found(("segments", forward_dynamics, tuple(arrays)))(arrays)
            if np.isfinite(result).all():
                return result
        except Exception:  # explained below
            pass
    return _by_parts("segments", forward_dynamics, model, **given)


def _by_parts(method: str, function: Callable[..., Array], model: Model, **given: ArrayLike | None) -> Array:
    """One state after the other in float64, by methods that work on segments or levels of a chain at once."""
    require_model(model)
    arrays = {name: checked(model, name, x) for name, x in given.items() if x is not None}
    batch = batch_axes(model, arrays)
    dtype = np.result_type(*arrays.values())
    if dtype.char not in "df":
        raise ArgumentError(f'method "{method}" computes in float64, not {dtype}; use method "articulated"')
    key = method, function, tuple(arrays)
    by_parts = store(model).once(key, lambda: _parts(method, function, model, [*arrays]))
    states = {name: np.broadcast_to(x, batch + core_shape(model, name)) for name, x in arrays.items()}
    if near_lock(model, arrays["q"]):
        refuse_singular_at(articulated.forward_dynamics, model, arrays["q"])
    with np.errstate(invalid="ignore"):
        result = by_parts(states)
    lost = ~np.isfinite(result).all(axis=-1)
    if lost.any() and method == "segments":  # segments lose too many digits in these states; the sweeps do not
        result[lost] = function(model, *(states.pop(name)[lost] for name in INPUTS), method="articulated",
                                **{name: x[lost] for name, x in states.items()})  # fmt: skip
    elif lost.any():
        refuse_singular_at(articulated.forward_dynamics, model, arrays["q"])
        raise SingularError(
            f'{function.__name__}: method "{method}" overflows; the arguments are too large, or masses and lengths too '
            'uneven for it: use method "auto" or "articulated"'
        )
    return result.astype(dtype, copy=False)


def _require_one(method: str, model: Model) -> None:
    """Raise for a batch of models, which only compiled methods take."""
    if isinstance(model, ModelBatch):
        raise ArgumentError(f'method "{method}" takes one model, not {model!r}; take its members one by one')
    require_model(model)


def _is_large(model: Model) -> bool:
    """Whether there are too many freedoms for straight-line code through the mass matrix."""
    return isinstance(model, Model) and model.nv > MOST_FREEDOMS


def _after_bias(method: str, model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike,
                external: ArrayLike | None) -> Array:  # fmt: skip
    """Forward dynamics as M^-1 (tau - bias)."""
    bias = bias_forces(model, q, v, external=external)
    arrays = {"b": bias, "tau": checked(model, "tau", tau)}
    batch_axes(model, arrays)
    return _mass_solve_by(method, model, q, arrays["tau"] - bias)


def _by_dense_factor(model: Model, q: ArrayLike, b: ArrayLike) -> Array:
    """M^-1 b by LAPACK."""
    arrays = {"q": checked(model, "q", q), "b": checked(model, "b", b)}
    batch_axes(model, arrays)
    if model.has_degenerate_bodies or near_lock(model, arrays["q"]):
        refuse_singular_at(articulated.mass_solve, model, arrays["q"])
    return np.linalg.solve(mass_matrix(model, arrays["q"]), arrays["b"][..., None])[..., 0]


def _compared(method: str, function: Callable[..., Array], result: Array, model: Model, *args: ArrayLike,
              **options: ArrayLike | None) -> Array:  # fmt: skip
    """The result of a named method, if it keeps half of its digits; the sweeps compute it again for comparison.

    Numbers of other kinds (on a GPU, symbols, mpmath) are not compared.  Nor are methods that factor M, if the pivot
    ratio of the model is at most `COMPARED`.
    """
    if method == "articulated" or not isinstance(result, ndarray | np.floating) or result.dtype.char not in AGREEMENT:
        return result
    factors = method not in ("fixman", "constraint-force") and isinstance(model, Model)
    if factors and pivot_ratio(model) <= COMPARED:
        return result
    sweeps = function(model, *args, method="articulated", **options)
    core = {inverse_mass_matrix: 2, log_det_mass_matrix: 0}.get(function, 1)
    refuse_disagreement(method, function.__name__, np.asarray(result), np.asarray(sweeps), core)
    return result


def _parts(method: str, function: Callable[..., Array], model: Model, given: Sequence[str]) -> Any:
    options = [name for name in ("external", "added_inertia") if name in given]
    segments, solver = _parallel()
    if method == "segments":
        return segments.Segments(model, options=options)
    return solver.Solver(model, function.__name__, options=options)


def _parallel() -> Any:
    from torsor.parallel import segments, solver  # few programs solve one long chain

    return segments, solver
