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
from torsor.algorithms.newton_euler import BASE_MOTION
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
    on_host,
    refuse_singular_at,
    same_library,
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
INPUTS = ("q", "v", "tau")  # those of forward dynamics without external wrenches
State = tuple[ArrayLike, ArrayLike, ArrayLike]


# Dynamics --------------------------------------------------------------------------------------------------


def forward_dynamics(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike, *, external: ArrayLike | None = None,
                     added_inertia: ArrayLike | None = None, base_velocity: ArrayLike | None = None,
                     base_acceleration: ArrayLike | None = None, method: str = "auto") -> Array:  # fmt: skip
    r"""Compute the accelerations that joint torques cause, in O(n).

    $$ M(q)\,\ddot q + b(q, v) = \tau + \textstyle\sum_i J_i^T F_i $$

    $M$ is the mass matrix with the armature of the model on its diagonal, $b$ has the Coriolis, centrifugal and
    gravity terms, and $F_i$ are external wrenches.

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
    added_inertia : (..., nv) array_like, optional
        A term added to the diagonal of M; with h D + h^2 K (dampers D, springs K) this is the linear system of an
        implicit step.
    base_velocity : (..., 6) array_like, optional
        Twist (omega, v) of a moving base, in its own frame.
    base_acceleration : (..., 6) array_like, optional
        The time derivative of that twist; gravity acts in addition.
    method : str, default "auto"
        "articulated", "udut", "ploen-park" (O(n) sweeps, by Featherstone, Saha, and Ploen & Park), "composite" (M and a
        solve), "fixman" (relaxed constraints), "segments" (one long chain, cut into segments that share a processor's
        vectors), "constraint-force" (O(log n) depth: one very long chain on a GPU) or "auto".

    Returns
    -------
    qdd : (..., nv) ndarray
        Accelerations, in rad/s^2 and m/s^2. The leading axes of all arguments broadcast.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, a number is not finite, or the method is unknown.
    SingularError
        The mass matrix is singular in a state, or a method chosen by name loses half of the digits.

    Notes
    -----
    "auto" considers those of the first four methods that are as accurate as "articulated" on this model, and takes the
    one with the fewest operations (see `explain`). For one state of a chain of 2000 bodies or more it takes "segments"
    if the joints and masses allow. With a method chosen by name, and with "auto" in batches, a state gives the same
    bits alone and anywhere in a batch. If joints follow others (`model.couplings`), the accelerations obey the
    couplings.

    After R. Featherstone, Rigid Body Dynamics Algorithms, Springer 2008, section 7.3; Ploen & Park 1999, Eqs 39-41.

    Examples
    --------
    A horizontal rod of 1 m, released from rest, begins to fall with 3 g / (2 l):

    >>> import numpy as np, torsor as ts
    >>> rod = ts.zoo.pendulum(length=1.0)
    >>> print(ts.forward_dynamics(rod, [np.pi / 2], [0.0], [0.0]).round(1))
    [-14.7]
    """
    if method == "auto":
        state: Any = q
        try:  # `call`, inlined: this path runs millions of times, with one state per call
            plain = external is added_inertia is base_velocity is base_acceleration is None
            if plain and state.ndim == 1 and type(q) is ndarray:
                result = model.__dict__[STORE].quick[state.dtype.char](q, v, tau)
                if isfinite(sum(result.tolist())) and type(result) is ndarray:
                    return result
        except Exception:  # explained below
            pass
    options = {"external": external, "added_inertia": added_inertia, "base_velocity": base_velocity,
               "base_acceleration": base_acceleration}  # fmt: skip
    if method != "auto":
        _couples(model, method)
        return _forward_by(method, model, (q, v, tau), options)
    return _forward_by_choice(model, (q, v, tau), options)


def _forward_by_choice(model: Model, state: State, options: Mapping[str, Any]) -> Array:
    """`forward_dynamics` by method="auto"."""
    coupled = _couples(model, "auto")
    if coupled and model.nv > MOST_FREEDOMS:
        return coupled_accelerations(model, *state, **options)
    if not _moves(options) and _in_segments(model, *state):
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
    if method in ("segments", "constraint-force") and _moves(options):
        return _on_a_moving_base(method, model, state, options)
    if method == "segments":
        return _by_segments(model, **dict(zip(INPUTS, state)), **options)
    if method == "constraint-force":
        result = _by_parts(method, forward_dynamics, model, **dict(zip(INPUTS, state)), **options)
    elif method == "fixman" or (method == "composite" and _is_large(model)):
        _refuse_added_inertia(method, options["added_inertia"])
        result = _after_bias(method, model, state, options)
    else:
        algorithm = named(forward_dynamics, method, "fixman", "constraint-force", "segments")
        if "added_inertia" not in algorithm.options:
            _refuse_added_inertia(method, options["added_inertia"])
        result = call_with(algorithm, model, *state, **options)
    return _compared(method, forward_dynamics, result, model, *state, **options)


def _moves(options: Mapping[str, Any]) -> bool:
    """Whether the base moves."""
    return any(options[name] is not None for name in BASE_MOTION)


@same_library
def _on_a_moving_base(method: str, model: Model, state: State, options: Mapping[str, Any]) -> Array:
    """Forward dynamics by methods for a base at rest: the motion of the base becomes torques."""
    q, v, tau = state
    torques = base_forces(model, q, v, **{name: options[name] for name in BASE_MOTION})
    return _forward_by(method, model, (q, v, _added(model, tau, torques)), {**options, **dict.fromkeys(BASE_MOTION)})


def inverse_dynamics(model: Model, q: ArrayLike, v: ArrayLike, qdd: ArrayLike, *, external: ArrayLike | None = None,
                     base_velocity: ArrayLike | None = None, base_acceleration: ArrayLike | None = None,
                     method: str = "auto") -> Array:  # fmt: skip
    r"""Compute the torques that cause given accelerations, in O(n).

    $$ \tau = M(q)\,\ddot q + b(q, v) - \textstyle\sum_i J_i^T F_i $$

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
    method : str, default "auto"
        "newton-euler" (fewest operations), "ploen-park" (coordinate-invariant form) or "auto".

    Returns
    -------
    tau : (..., nv) ndarray
        Joint torques and forces, in N m and N.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Notes
    -----
    Ploen & Park 1999, Eqs 2-5.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> q, v, tau = [0.3, 0.2], [0.1, 0.0], [1.0, 2.0]
    >>> qdd = ts.forward_dynamics(arm, q, v, tau)
    >>> np.allclose(ts.inverse_dynamics(arm, q, v, qdd), tau)
    True
    """
    algorithm = newton_euler.inverse_dynamics if method == "auto" else named(inverse_dynamics, method)
    base = {"base_velocity": base_velocity, "base_acceleration": base_acceleration}
    return call_with(algorithm, model, q, v, qdd, external=external, **base)


def bias_forces(model: Model, q: ArrayLike, v: ArrayLike, *, external: ArrayLike | None = None,
                base_velocity: ArrayLike | None = None,
                base_acceleration: ArrayLike | None = None) -> Array:  # fmt: skip
    """Compute the torques at zero acceleration: Coriolis, centrifugal and gravity terms.

    mass_solve(model, q, tau - bias) is the forward dynamics, also on a moving base.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    v : (..., nv) array_like
        Velocities, in rad/s and m/s.
    external : (..., n, 6) array_like, optional
        The wrench (moment, force) on every body, at its origin and in its frame, in N m and N.
    base_velocity : (..., 6) array_like, optional
        Twist (omega, v) of a moving base, in its own frame.
    base_acceleration : (..., 6) array_like, optional
        The time derivative of that twist; gravity acts in addition.

    Returns
    -------
    tau : (..., nv) ndarray
        Torques and forces, in N m and N.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> at_rest = ts.bias_forces(arm, [0.3, 0.2], [0.0, 0.0])
    >>> np.allclose(at_rest, ts.gravity_forces(arm, [0.3, 0.2]))
    True
    """
    base = {"base_velocity": base_velocity, "base_acceleration": base_acceleration}
    return call_with(newton_euler.bias_forces, model, q, v, external=external, **base)


def base_forces(model: Model, q: ArrayLike, v: ArrayLike, base_velocity: ArrayLike | None,
                base_acceleration: ArrayLike | None) -> Array:  # fmt: skip
    """Compute the torques that a moving base causes at the joints: bias(0, 0) - bias(V_0, dV_0).

    Add them to tau to use functions without moving bases, such as rollouts, for a machine on that base.
    `forward_dynamics` and its derivatives take `base_velocity` and `base_acceleration` themselves.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    v : (..., nv) array_like
        Velocities, in rad/s and m/s.
    base_velocity : (..., 6) array_like or None
        V_0 of the base, angular first, in its frame.
    base_acceleration : (..., 6) array_like or None
        dV_0/dt of the base, also in its frame.

    Returns
    -------
    tau : (..., nv) ndarray
        Torques and forces, in N m and N.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    A lift that accelerates upwards with 1 m/s^2 makes a pendulum heavier:

    >>> import numpy as np, torsor as ts
    >>> pendulum, up = ts.zoo.pendulum(), [0, 0, 0, 0, 0, 1.0]
    >>> print(ts.base_forces(pendulum, [np.pi / 2], [0.0], np.zeros(6), up))
    [-0.5]
    """
    moving = bias_forces(model, q, v, base_velocity=base_velocity, base_acceleration=base_acceleration)
    return bias_forces(model, q, v) - moving


def gravity_forces(model: Model, q: ArrayLike) -> Array:
    """Compute the torques that hold the machine still against gravity.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).

    Returns
    -------
    tau : (..., nv) ndarray
        Torques and forces, in N m and N.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> print(ts.gravity_forces(ts.zoo.pendulum(), [np.pi / 2]))
    [4.905]
    """
    return call(newton_euler.gravity_forces, model, q)


def mass_matrix(model: Model, q: ArrayLike) -> Array:
    """Compute the mass matrix M(q), symmetric positive definite.

    The armature of the model is on its diagonal.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).

    Returns
    -------
    M : (..., nv, nv) ndarray
        The mass matrix, in kg m^2, kg m and kg.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Notes
    -----
    By composite bodies (Walker & Orin 1982).

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> print(ts.mass_matrix(arm, [0.0, 0.0]).round(2))
    [[2.67 0.83]
     [0.83 0.33]]
    """
    return call(composite.mass_matrix, model, q)


def inverse_mass_matrix(model: Model, q: ArrayLike, *, method: str = "auto") -> Array:
    """Compute the inverse of the mass matrix, symmetric to the bit.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    method : str, default "auto"
        "articulated" (articulated inertias, column by column), "product" (as U^T D^-1 U, for short paths to the base),
        "fixman" (relaxed constraints) or "auto": the faster of the first two.

    Returns
    -------
    inverse : (..., nv, nv) ndarray
        M(q)^-1.

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
    >>> q = [0.3, 0.2]
    >>> np.allclose(ts.inverse_mass_matrix(arm, q) @ ts.mass_matrix(arm, q), np.eye(2))
    True
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
    """Solve with the mass matrix, M(q) x = b, in O(n) and without forming it.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    b : (..., nv) array_like
        The right-hand side.
    added_inertia : (..., nv) array_like, optional
        A term added to the diagonal of M.
    method : str, default "auto"
        "articulated", "udut", "composite" (through M), "fixman" (all bodies floating, their constraints eliminated),
        "constraint-force" (the same in O(log n) depth) or "auto": the fewest operations of the first three.

    Returns
    -------
    x : (..., nv) ndarray
        The solution.

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
    >>> x = ts.mass_solve(arm, [0.3, 0.2], [1.0, 0.0])
    >>> print((ts.mass_matrix(arm, [0.3, 0.2]) @ x).round(9) + 0.0)
    [1. 0.]
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
    """Whether joints follow others; only method="auto" obeys couplings."""
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
    """The method of relaxed constraints; rods, points and massless bodies are braced."""
    if not isinstance(model, Model):  # refused later, with the other arguments
        return fixman.REGULAR
    require_no_armature(model, "the method 'fixman', which lets every body float on its own,")
    return fixman.BRACED if model.has_degenerate_bodies else fixman.REGULAR


def constraint_forces(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike, *,
                      external: ArrayLike | None = None, base_velocity: ArrayLike | None = None,
                      base_acceleration: ArrayLike | None = None) -> Array:  # fmt: skip
    """Compute the wrench through every joint onto its body: bearing loads.

    S^T F = tau - armature qdd; the rest of F does no work.

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

    Returns
    -------
    F : (..., n, 6) ndarray
        Wrenches (moment, force), in the body's frame at its origin, in N m and N.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    A hanging pendulum loads its joint with its weight:

    >>> import torsor as ts
    >>> print(ts.constraint_forces(ts.zoo.pendulum(), [0.0], [0.0], [0.0]).round(3) + 0.0)
    [[0.   0.   0.   0.   0.   9.81]]
    """
    options = {"external": external, "base_velocity": base_velocity, "base_acceleration": base_acceleration}
    return call_with(constraint_force.constraint_forces, model, q, v, tau, **options)


def log_det_mass_matrix(model: Model, q: ArrayLike, *, method: str = "auto") -> Array:
    """Compute the logarithm of the determinant of the mass matrix, in O(n).

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    method : str, default "auto"
        "articulated" (pivots of the articulated inertias), "fixman" (det M = det G det H22) or "auto".

    Returns
    -------
    log_det : (...) ndarray
        log det M(q).

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
    >>> q = [0.3, 0.2]
    >>> np.allclose(ts.log_det_mass_matrix(arm, q), np.log(np.linalg.det(ts.mass_matrix(arm, q))))
    True
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
    """Compute the gradient of log det M with respect to q, in O(n).

    For a quaternion it is along the axes of the body's angular velocity.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).

    Returns
    -------
    gradient : (..., nv) ndarray
        d log det M / dq.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    >>> import torsor as ts
    >>> print(ts.log_det_gradient(ts.zoo.pendulum(), [0.3]).round(9) + 0.0)
    [0.]
    """
    return call(derivatives.log_det_gradient, model, q)


def coriolis_matrix(model: Model, q: ArrayLike, v: ArrayLike) -> Array:
    """Compute the Coriolis matrix of the Christoffel symbols: C v + gravity is the bias, and dM/dt - 2 C is skew.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    v : (..., nv) array_like
        Velocities, in rad/s and m/s.

    Returns
    -------
    C : (..., nv, nv) ndarray
        C(q, v).

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> q, v = [0.3, 0.2], [1.0, 2.0]
    >>> bias = ts.coriolis_matrix(arm, q, v) @ v + ts.gravity_forces(arm, q)
    >>> np.allclose(bias, ts.bias_forces(arm, q, v))
    True
    """
    return call(coriolis.coriolis_matrix, model, q, v)


# Kinematics ------------------------------------------------------------------------------------------------


def body_poses(model: Model, q: ArrayLike) -> Array:
    """Compute the pose of every body in the base's frame.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).

    Returns
    -------
    poses : (..., n, 4, 4) ndarray
        Rotation and position (in m) of every body's frame.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> print(ts.body_poses(arm, [0.0, 0.0])[1, :3, 3] + 0.0)
    [ 0.  0. -1.]
    """
    return call(kinematics.body_poses, model, q)


def body_twists(model: Model, q: ArrayLike, v: ArrayLike, *, base_velocity: ArrayLike | None = None) -> Array:
    """Compute the twist of every body in its own frame.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    v : (..., nv) array_like
        Velocities, in rad/s and m/s.
    base_velocity : (..., 6) array_like, optional
        Twist (omega, v) of a moving base, in its own frame.

    Returns
    -------
    twists : (..., n, 6) ndarray
        Twists (omega, v), in rad/s and m/s.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Notes
    -----
    Ploen & Park 1999, Eq. 2.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> print(ts.body_twists(arm, [0.0, 0.0], [1.0, 0.0])[1] + 0.0)
    [ 0.  1.  0. -1.  0.  0.]
    """
    return call_with(kinematics.body_twists, model, q, v, base_velocity=base_velocity)


def jacobian(model: Model, q: ArrayLike, body: int | str, *, reference: str = "body") -> Array:
    """Compute the Jacobian of a body or frame: J v is its twist, angular part first.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    body : int or str
        The body by number or name, or a named frame.
    reference : str, default "body"
        The axes: "body" (of the frame, at its origin), "world-aligned" (of the base, at the frame's origin) or "world"
        (of the base, at the base's origin).

    Returns
    -------
    J : (..., 6, nv) ndarray
        Rows 0 to 2 angular, 3 to 5 linear.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> J = ts.jacobian(arm, [0.0, 0.0], "tip", reference="world-aligned")
    >>> print(J[3] + 0.0)  # the speed of the tip along x
    [-2. -1.]
    """
    J = on_frame(kinematics.jacobian, model, body, q)
    return J if reference == "body" else referred(model, q, body, reference, J)


def jacobian_dot(model: Model, q: ArrayLike, v: ArrayLike, body: int | str, *, reference: str = "body") -> Array:
    """Compute the time derivative of a Jacobian: the twist changes by J qdd + J_dot v.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    v : (..., nv) array_like
        Velocities, in rad/s and m/s.
    body : int or str
        The body by number or name, or a named frame.
    reference : str, default "body"
        The axes: "body" (of the frame, at its origin), "world-aligned" (of the base, at the frame's origin) or "world"
        (of the base, at the base's origin).

    Returns
    -------
    J_dot : (..., 6, nv) ndarray
        Rows 0 to 2 angular, 3 to 5 linear.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> J_dot = ts.jacobian_dot(arm, [0.0, 0.0], [1.0, 0.0], "tip", reference="world-aligned")
    >>> print((J_dot @ [1.0, 0.0])[5])  # the tip, 2 m from the pivot, is pulled up
    2.0
    """
    rate = on_frame(kinematics.jacobian_dot, model, body, q, v)
    if reference == "body":
        return rate
    return referred_rate(model, v, on_frame(kinematics.jacobian, model, body, q), rate, (q, body, reference))


# Energy and momentum ---------------------------------------------------------------------------------------


def kinetic_energy(model: Model, q: ArrayLike, v: ArrayLike, *, base_velocity: ArrayLike | None = None) -> Array:
    r"""Compute the kinetic energy.

    $$ T = \tfrac{1}{2} v^T M(q)\, v $$

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    v : (..., nv) array_like
        Velocities, in rad/s and m/s.
    base_velocity : (..., 6) array_like, optional
        Twist (omega, v) of a moving base, in its own frame.

    Returns
    -------
    T : (...) ndarray
        The energy, in J.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    >>> import torsor as ts
    >>> print(ts.kinetic_energy(ts.zoo.pendulum(), [0.0], [3.0]).round(3))
    1.5
    """
    return call_with(energy.kinetic_energy, model, q, v, base_velocity=base_velocity)


def potential_energy(model: Model, q: ArrayLike) -> Array:
    """Compute the potential energy of gravity; it is zero if the mass centre is at the base's origin.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).

    Returns
    -------
    U : (...) ndarray
        The energy, in J.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    >>> import torsor as ts
    >>> print(ts.potential_energy(ts.zoo.pendulum(), [0.0]))
    -4.905
    """
    return call(energy.potential_energy, model, q)


def momentum(model: Model, q: ArrayLike, v: ArrayLike, *, base_velocity: ArrayLike | None = None) -> Array:
    """Compute the momentum of the whole machine in the base's frame.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    v : (..., nv) array_like
        Velocities, in rad/s and m/s.
    base_velocity : (..., 6) array_like, optional
        Twist (omega, v) of a moving base, in its own frame.

    Returns
    -------
    momentum : (..., 6) ndarray
        Angular momentum about the base's origin, and linear momentum, in kg m^2/s and kg m/s.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> print(ts.momentum(arm, [0.0, 0.0], [1.0, 0.0])[3:] + 0.0)
    [-2.  0.  0.]
    """
    return call_with(energy.momentum, model, q, v, base_velocity=base_velocity)


def center_of_mass(model: Model, q: ArrayLike) -> Array:
    """Compute the mass centre of the whole machine in the base's frame.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).

    Returns
    -------
    place : (..., 3) ndarray
        The position of the mass centre, in m.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> print(ts.center_of_mass(arm, [0.0, 0.0]) + 0.0)
    [ 0.  0. -1.]
    """
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
    """The algorithm to compile for a function."""
    if not any(function is known for known in ALGORITHMS):
        raise validate.refused_function(function, "cannot be compiled; these can", (f.__name__ for f in ALGORITHMS))
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
    """Whether method="auto" cuts the chain into segments: for one float64 state of a suitable long chain."""
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
    """`_by_parts` with a fast path first, as in `call`: checking every number would add half of the time."""
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


@same_library
def _by_parts(method: str, function: Callable[..., Array], model: Model, **given: ArrayLike | None) -> Array:
    """One state after the other in float64, by methods that process segments or levels of a chain in parallel."""
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
    """Raise for a batch of models, which only compiled methods accept."""
    if isinstance(model, ModelBatch):
        raise ArgumentError(f'method "{method}" takes one model, not {model!r}; take its members one by one')
    require_model(model)


def _is_large(model: Model) -> bool:
    """Whether the model has too many freedoms for straight-line code through the mass matrix."""
    return isinstance(model, Model) and model.nv > MOST_FREEDOMS


@same_library
def _after_bias(method: str, model: Model, state: State, options: Mapping[str, Any]) -> Array:
    """Forward dynamics as M^-1 (tau - bias)."""
    q, v, tau = state
    bias = bias_forces(model, q, v, **{name: options[name] for name in newton_euler.MOTION_OPTIONS})
    return _mass_solve_by(method, model, q, _added(model, tau, -bias))


def _added(model: Model, tau: ArrayLike, torques: Array) -> Array:
    """The sum of torques with the same batch axes."""
    arrays = {"b": torques, "tau": checked(model, "tau", tau)}
    batch_axes(model, arrays)
    return arrays["tau"] + torques


@same_library
def _by_dense_factor(model: Model, q: ArrayLike, b: ArrayLike) -> Array:
    """M^-1 b by LAPACK."""
    arrays = {"q": checked(model, "q", q), "b": checked(model, "b", b)}
    batch_axes(model, arrays)
    if model.has_degenerate_bodies or near_lock(model, arrays["q"]):
        refuse_singular_at(articulated.mass_solve, model, arrays["q"])
    return np.linalg.solve(mass_matrix(model, arrays["q"]), arrays["b"][..., None])[..., 0]


def _compared(method: str, function: Callable[..., Array], result: Array, model: Model, *args: ArrayLike,
              **options: ArrayLike | None) -> Array:  # fmt: skip
    """The result of a method chosen by name, if it keeps half of its digits, compared with the sweeps.

    Other kinds of numbers (on a GPU, symbols, mpmath) are not compared.  Nor are methods that factor M, if the pivot
    ratio of the model is at most `COMPARED`.
    """
    found = on_host(result)
    if method == "articulated" or not isinstance(found, ndarray | np.floating) or found.dtype.char not in AGREEMENT:
        return result
    factors = method not in ("fixman", "constraint-force") and isinstance(model, Model)
    if factors and pivot_ratio(model) <= COMPARED:
        return result
    sweeps = function(model, *args, method="articulated", **options)
    core = {inverse_mass_matrix: 2, log_det_mass_matrix: 0}.get(function, 1)
    refuse_disagreement(method, function.__name__, np.asarray(found), np.asarray(sweeps), core)
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
