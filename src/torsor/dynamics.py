"""The public functions: array in, the same kind of array out, leading batch axes welcome.

    q (..., nq)   v, tau, qdd, b (..., nv)   external (..., n, 6): a wrench (moment, force) on each body, in
    its frame, at its origin.        Spatial vectors are angular first, in the body's frame.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike, NDArray

from torsor import reference, validate
from torsor.accuracy import AGREEMENT, COMPARED, LEVELS, agree, pivot_ratio, refuse_disagreement
from torsor.algorithms import (
    articulated,
    composite,
    constraint_force,
    coriolis,
    energy,
    fixman,
    kinematics,
    newton_euler,
)
from torsor.algorithms import (
    log_det_gradient as log_det_derivative,
)
from torsor.errors import ArgumentError, SingularError
from torsor.fixman.inertia import require_regular
from torsor.kernel.request import ON_GPU, PATIENT, Request, unrolling
from torsor.kernel.store import NAME as STORE
from torsor.kernel.store import store
from torsor.methods import METHODS, MOST_FREEDOMS, SEGMENTS_FROM, automatic
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.outputs import Path, place_of
from torsor.sweeps import Algorithm

Array = NDArray[Any]
INPUTS = ("q", "v", "tau")  # of forward dynamics without external wrenches


# Dynamics --------------------------------------------------------------------------------------------------


def forward_dynamics(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike, *, external: ArrayLike | None = None,
                     method: str = "auto") -> Array:  # fmt: skip
    """qdd with M(q) qdd + bias(q, v) = tau + external: the accelerations (..., nv) that the torques cause.

    method: "articulated", "udut", "ploen-park" (O(n) sweeps, by Featherstone, Saha, and Ploen & Park), "composite"
    (M, its branch-sparse factor, and a solve), "fixman" (O(n), by relaxed constraints), "segments" (one long chain, cut
    into segments that share a processor's vectors; sweeps for states in which these would lose digits),
    "constraint-force" (O(log n) deep, Featherstone & Fijany: one very long chain on a GPU) or "auto": of the first four
    that are as accurate as "articulated" on this model, the one with the fewest operations, as `method_for` tells; for
    one state of a chain of 2000 bodies or more, "segments" where its joints and masses allow.  If a named method loses
    half of the digits, a `SingularError` says so (docs/accuracy.md).

    By one method, and in batches by "auto", a state gives the same bits alone and anywhere in a batch.
    """
    if method == "auto":
        state: Any = q
        try:  # `_call`, written out: this is what is called a million times, one state a call
            if external is None and state.ndim == 1 and type(q) is ndarray:
                result = model.__dict__[STORE].quick[state.dtype.char](q, v, tau)
                if isfinite(sum(result.tolist())) and type(result) is ndarray:
                    return result
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
        if _in_segments(model, q, v, tau):
            method = "segments"
        elif external is None:
            return _call(forward_dynamics, model, q, v, tau)
        else:
            return _call_with(_automatic(model, forward_dynamics), model, q, v, tau, external=external)
    if method == "segments":
        return _by_segments(model, q=q, v=v, tau=tau, external=external)
    if method == "constraint-force":
        result = _by_parts(method, forward_dynamics, model, q=q, v=v, tau=tau, external=external)
    elif method == "fixman" or (method == "composite" and _is_large(model)):
        result = _after_bias(method, model, q, v, tau, external)
    else:
        algorithm = _named(forward_dynamics, method, "fixman", "constraint-force", "segments")
        result = _call_with(algorithm, model, q, v, tau, external=external)
    return _compared(method, forward_dynamics, result, model, q, v, tau, external=external)


def inverse_dynamics(model: Model, q: ArrayLike, v: ArrayLike, qdd: ArrayLike, *, external: ArrayLike | None = None,
                     base_acceleration: ArrayLike | None = None, method: str = "auto") -> Array:  # fmt: skip
    """tau (..., nv): the torques that cause the accelerations qdd, under gravity and external wrenches.

    base_acceleration (6,): a base that is not at rest: (angular, linear) acceleration in its frame.
    method: "newton-euler" (fewest operations), "ploen-park" (coordinate-invariant form) or "auto".
    """
    algorithm = newton_euler.inverse_dynamics if method == "auto" else _named(inverse_dynamics, method)
    return _call_with(algorithm, model, q, v, qdd, external=external, acceleration=base_acceleration)


def bias_forces(model: Model, q: ArrayLike, v: ArrayLike, *, external: ArrayLike | None = None) -> Array:
    """The torques (..., nv) that hold the accelerations at zero: Coriolis, centrifugal and gravity terms."""
    return _call_with(newton_euler.bias_forces, model, q, v, external=external)


def gravity_forces(model: Model, q: ArrayLike) -> Array:
    """The torques (..., nv) that hold the machine still against gravity."""
    return _call(newton_euler.gravity_forces, model, q)


def mass_matrix(model: Model, q: ArrayLike) -> Array:
    """M(q), (..., nv, nv), symmetric positive definite."""
    return _call(composite.mass_matrix, model, q)


def inverse_mass_matrix(model: Model, q: ArrayLike, *, method: str = "auto") -> Array:
    """M(q)^-1, (..., nv, nv), symmetric to the bit.

    method: by articulated inertias, column by column ("articulated") or as U^T D^-1 U ("product", where the ways to the
    base are short); by relaxed constraints ("fixman"); or "auto": the quicker of the first two.
    """
    if method == "auto":
        return _call(_automatic(model, inverse_mass_matrix), model, q)
    if method == "fixman":
        result = _call(fixman.inverse_mass_matrix, require_regular(model), q)
        return _compared(method, inverse_mass_matrix, result, model, q)
    return _call(_named(inverse_mass_matrix, method, "fixman"), model, q)


def mass_solve(model: Model, q: ArrayLike, b: ArrayLike, *, method: str = "auto") -> Array:
    """M(q)^-1 b, (..., nv).

    method: "articulated", "udut" (O(n), without forming M), "composite" (through M), "fixman" (O(n): every body let
    float and its constraints eliminated; no rods or points), "constraint-force" (the same in O(log n) depth) or
    "auto": the fewest operations of the first three.
    """
    if method == "auto":
        return _call(_automatic(model, mass_solve), model, q, b)
    return _compared(method, mass_solve, _mass_solve_by(method, model, q, b), model, q, b)


def _mass_solve_by(method: str, model: Model, q: ArrayLike, b: ArrayLike) -> Array:
    """`mass_solve` by a method that is named; nothing is compared yet."""
    if method == "composite" and _is_large(model):
        return _by_dense_factor(model, q, b)
    if method == "fixman":
        return _call(fixman.mass_solve, require_regular(model), q, b)
    if method == "constraint-force":
        return _by_parts(method, mass_solve, model, q=q, b=b)
    return _call(_named(mass_solve, method, "fixman", "constraint-force"), model, q, b)


def constraint_forces(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike, *,
                      external: ArrayLike | None = None) -> Array:  # fmt: skip
    """F (..., n, 6): the wrench (moment, force) through every joint onto its body while the torques act, in the body's
    frame, at its origin: bearing loads.  S^T F = tau; what is left of F does no work.
    """
    return _call_with(constraint_force.constraint_forces, model, q, v, tau, external=external)


def log_det_mass_matrix(model: Model, q: ArrayLike, *, method: str = "auto") -> Array:
    """log det M(q), (...), in O(n).

    method: "articulated" (pivots of the articulated inertias), "fixman" (det M = det G det H22) or "auto".
    """
    if _choose(method, "articulated", "fixman") == "fixman":
        result = _call(fixman.log_det, require_regular(model), q)
        return _compared(method, log_det_mass_matrix, result, model, q)
    return _call(articulated.log_det, model, q)


def log_det_gradient(model: Model, q: ArrayLike) -> Array:
    """d log det M / dq, (..., nv), in O(n); for a quaternion, along the axes of the body's angular velocity."""
    return _call(log_det_derivative.log_det_gradient, model, q)


def fixman_force(model: Model, q: ArrayLike, *, kT: float = 1.0) -> Array:
    """-(kT/2) d log det M / dq, (..., nv): added to tau, it lets rigid joints sample what stiff springs would.

    Constrained dynamics at temperature kT visits q as often as sqrt(det M(q)) says; this force takes that
    weight away (Fixman 1974).
    """
    return log_det_gradient(model, q) * (-0.5 * validate.number("kT", kT, least=0.0))


def coriolis_matrix(model: Model, q: ArrayLike, v: ArrayLike) -> Array:
    """C(q, v), (..., nv, nv): C v + gravity is the bias and dM/dt - 2 C is skew (Christoffel symbols)."""
    return _call(coriolis.coriolis_matrix, model, q, v)


# Kinematics ------------------------------------------------------------------------------------------------


def body_poses(model: Model, q: ArrayLike) -> Array:
    """The 4x4 pose of every body in the base frame, (..., n, 4, 4)."""
    return _call(kinematics.body_poses, model, q)


def body_twists(model: Model, q: ArrayLike, v: ArrayLike) -> Array:
    """The twist (omega, v) of every body in its own frame, (..., n, 6)."""
    return _call(kinematics.body_twists, model, q, v)


def jacobian(model: Model, q: ArrayLike, body: int | str) -> Array:
    """J (..., 6, nv) with J v the twist of a body, or of a named frame on it, in its own frame."""
    return on_frame(kinematics.jacobian, model, body, q)


def jacobian_dot(model: Model, q: ArrayLike, v: ArrayLike, body: int | str) -> Array:
    """dJ/dt (..., 6, nv) of `jacobian` along the velocity v."""
    return on_frame(kinematics.jacobian_dot, model, body, q, v)


# Energy and momentum ---------------------------------------------------------------------------------------


def kinetic_energy(model: Model, q: ArrayLike, v: ArrayLike) -> Array:
    """T = v^T M v / 2, (...)."""
    return _call(energy.kinetic_energy, model, q, v)


def potential_energy(model: Model, q: ArrayLike) -> Array:
    """U, (...): minus the work of gravity, zero with the centre of mass at the base's origin."""
    return _call(energy.potential_energy, model, q)


def momentum(model: Model, q: ArrayLike, v: ArrayLike) -> Array:
    """(angular momentum about the base's origin, linear momentum), (..., 6), in the base frame."""
    return _call(energy.momentum, model, q, v)


def center_of_mass(model: Model, q: ArrayLike) -> Array:
    """The centre of mass (..., 3) in the base frame."""
    return _call(energy.center_of_mass, model, q)


# Programs --------------------------------------------------------------------------------------------------


ALGORITHMS: dict[Callable[..., Array], Algorithm] = {
    forward_dynamics: articulated.forward_dynamics,
    inverse_dynamics: newton_euler.inverse_dynamics,
    bias_forces: newton_euler.bias_forces,
    gravity_forces: newton_euler.gravity_forces,
    mass_matrix: composite.mass_matrix,
    inverse_mass_matrix: articulated.inverse_mass_matrix,
    mass_solve: articulated.mass_solve,
    constraint_forces: constraint_force.constraint_forces,
    log_det_mass_matrix: articulated.log_det,
    log_det_gradient: log_det_derivative.log_det_gradient,
    coriolis_matrix: coriolis.coriolis_matrix,
    body_poses: kinematics.body_poses,
    body_twists: kinematics.body_twists,
    jacobian: kinematics.jacobian,
    jacobian_dot: kinematics.jacobian_dot,
    kinetic_energy: energy.kinetic_energy,
    potential_energy: energy.potential_energy,
    momentum: energy.momentum,
    center_of_mass: energy.center_of_mass,
}


def compile(model: Model, function: Callable[..., Array], *, target: str = "cpu", dtype: str = "float64",
            external: bool = False, body: int | str | None = None, method: str = "auto",
            specialised: bool | None = None, lanes: int | None = None, threads: int = 1,
            trig: str = "accurate") -> Any:  # fmt: skip
    """A `Program`: a function of this module compiled for one model, to be called without the model.

        fd = ts.compile(model, ts.forward_dynamics)
        qdd = fd(q, v, tau)

    target       "cpu", or "cuda": a `CudaProgram`, which takes CuPy, PyTorch or JAX arrays on the GPU
    dtype        "float64" or "float32"
    external     whether the program takes external wrenches, as its last argument
    body         of a Jacobian: the body, by number or name, or a named frame
    method       as the function takes it, of those that are one algorithm and keep their digits: "fixman", "segments"
                 and "constraint-force" are not compiled, and loops have no "composite"
    specialised  unrolled over this model (True), loops over its bodies (False), whichever is faster (None); a function
                 called without compiling goes over to loops sooner, so as not to keep its caller waiting
    lanes        states computed side by side; None: as many as the machine's vectors hold (cpu)
    threads      how many threads a large batch is spread over (cpu)
    trig         cuda, float32: "accurate" (2 ulp) or "fast" (absolute error 5e-7 for angles up to pi)

    A program does not look at its numbers: NaN in one state gives NaN in that state.
    """
    if target not in ("cpu", "cuda"):
        raise ArgumentError(f'target must be "cpu" or "cuda", not {target!r}')
    algorithm = ALGORITHMS.get(function)
    if algorithm is None:
        known = ", ".join(f.__name__ for f in ALGORITHMS)
        raise ArgumentError(f"{function!r} cannot be compiled; these can: {known}")
    if method in ("fixman", "segments", "constraint-force"):
        raise ArgumentError(f'method "{method}" is not compiled: call {function.__name__} with it, or compile another')
    if method != "auto":
        algorithm = _named(function, method)
    elif function.__name__ in METHODS:
        chosen = _automatic(model, function)
        algorithm = chosen if chosen.has_loops or specialised is not False else algorithm
    if not algorithm.has_loops and model.nv > MOST_FREEDOMS:
        raise ArgumentError(f"method {method!r} is compiled for {MOST_FREEDOMS} freedoms at most, not {model.nv}")
    if external and "external" not in algorithm.options:
        raise ArgumentError(f"{algorithm.name} takes no external wrenches")
    if (body is None) == isinstance(algorithm.output, Path):
        raise ArgumentError(f"{algorithm.name} needs body=" if body is None else f"{algorithm.name} takes no body=")
    common: dict[str, Any] = dict(
        options=("external",) if external else (), dtype=dtype, frame=None if body is None else model.frame(body)
    )  # fmt: skip
    if target == "cuda":
        from torsor.kernel.gpu import compile_cuda

        if lanes is not None or threads != 1:
            raise ArgumentError('lanes and threads are for target="cpu"; a GPU takes one thread per state')
        return compile_cuda(Request(algorithm, model, **common, unroll=unrolling(specialised, ON_GPU)), trig)
    from torsor.kernel.program import compile_request

    if trig != "accurate":
        raise ArgumentError('fast trigonometry is for target="cuda"')
    return compile_request(Request(algorithm, model, **common, unroll=unrolling(specialised, PATIENT)), lanes, threads)


def _call(what: Algorithm | Callable[..., Array], model: Model, *args: ArrayLike) -> Array:
    """Run an algorithm, or the one of method="auto" of a function: first as if all were well, and only if it was
    not, look why.

    The arguments go as they are to the program of this model, algorithm and number type; an exception, or a
    result that is not finite, leads to `_carefully`, which checks everything and says what is wrong.
    """
    first: Any = args[0]
    if type(first) is ndarray:  # not one that lies on a GPU
        try:
            one, many, few = model.__dict__[STORE].calls[what, first.dtype.char]
            result = one(*args) if first.ndim == 1 else many(*args)
            # of few numbers, the sum is the quickest way to see whether all are finite
            finite = isfinite(sum(result.tolist())) if few and result.ndim == 1 else np.isfinite(result).all()
            if finite and type(result) is ndarray:
                return result
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
    return _carefully(what, model, args)


def _call_with(algorithm: Algorithm, model: Model, *args: ArrayLike, **options: ArrayLike | None) -> Array:
    """`_call` for an algorithm that takes options."""
    if all(x is None for x in options.values()):
        return _call(algorithm, model, *args)
    return _carefully(algorithm, model, args, None, **options)


def _carefully(what: Algorithm | Callable[..., Array], model: Model, args: tuple[ArrayLike, ...],
               frame: Frame | None = None, **options: ArrayLike | None) -> Array:  # fmt: skip
    """Check every argument, find or make the program, and explain a result that is not finite."""
    check_model(model)
    algorithm = what if isinstance(what, Algorithm) else _automatic(model, what)
    given = {name: x for name, x in options.items() if x is not None}
    names = (*algorithm.inputs, *given)
    if not isinstance(args[0], np.ndarray) and hasattr(args[0], "__dlpack_device__"):
        from torsor.kernel import gpu

        if gpu.on_device(args[0]):
            if not given and frame is None and gpu.is_long_chain(algorithm, model, args[0]):
                chain = _long_chain(algorithm, model)
                if chain is not None:
                    return chain(*args)
            return gpu.call(algorithm, model, (*args, *given.values()), tuple(given), frame)
    arrays = [_checked(model, name, x) for name, x in zip(names, (*args, *given.values()), strict=True)]
    dtype = np.result_type(*arrays)
    _batch(model, dict(zip(names, arrays)))
    if dtype.char not in "df":
        return _reference(algorithm, model, dict(zip(names, arrays)), frame)
    program = _program(algorithm, model, tuple(given), dtype.char, frame)
    if not given and frame is None and not (algorithm.inverts and model.has_degenerate_bodies):
        few = len(program.shape) == 1 and program.shape[0] < 64
        made = store(model)
        made.calls[what, dtype.char] = program.ufunc, program, few  # for one state, and on all cores
        if what is forward_dynamics and few:
            made.quick[dtype.char] = program.ufunc
    result = program(*(x.astype(dtype, copy=False) for x in arrays))
    if algorithm.inverts and model.has_degenerate_bodies:
        _refuse_singular(algorithm, model, arrays[0])
    if not np.isfinite(result).all():
        raise SingularError(f"{algorithm.name} overflows; the arguments are too large")
    return result


def _long_chain(algorithm: Algorithm, model: Model) -> Any:
    """One state of one long chain on a GPU: by levels, all of its links at once; None where that would cost digits.

    Which chains these are is tried at one state, against the sweeps on the host, which take less time for one state.
    """
    from torsor.kernel.gpu import cupy
    from torsor.parallel.device import DeviceChain

    def tried() -> DeviceChain | None:
        chain, rng = DeviceChain(model, algorithm.name), np.random.default_rng(0)
        state = {"q": model.random_configuration(rng)}
        state |= {name: rng.normal(size=model.nv) for name in chain.inputs[1:]}
        if "v" in state:
            state["v"] *= 0.0  # velocities add up along a chain, and their forces would hide the others
        found, sweeps = cupy().asnumpy(chain(*state.values())), _call(algorithm, model, *state.values())
        return chain if agree(found, sweeps, LEVELS) else None

    return store(model).once(("levels on the device", algorithm), tried)


def _program(algorithm: Algorithm, model: Model, options: tuple[str, ...], number: str,
             frame: Frame | None) -> Any:  # fmt: skip
    """The program for these arguments, kept with the model."""

    def make() -> Any:
        from torsor.kernel.program import compile_program

        dtype, threads = "float64" if number == "d" else "float32", os.cpu_count() or 1
        return compile_program(algorithm, model, options=options, dtype=dtype, frame=frame, threads=threads)

    return store(model).once(("call", algorithm, frame, number, options), make)


# A pivot this much smaller than its diagonal entry is rounding error: sixteen digits less a few for the reduction.
SINGULAR_PIVOT = 1e-12


def _automatic(model: Model, function: Callable[..., Array]) -> Algorithm:
    """The algorithm of method="auto", decided once per model."""
    check_model(model)
    return store(model).once(("auto", function), lambda: automatic(model, function))


def _in_segments(model: Model, *state: ArrayLike) -> bool:
    """Whether method="auto" cuts the chain into segments: for one state, in float64, of a long one that allows it."""
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
    from torsor.parallel.segments import serving

    return store(model).once(("segments", forward_dynamics, INPUTS), lambda: serving(model)) is not None


def _by_segments(model: Model, **given: ArrayLike | None) -> Array:
    """`_by_parts`, but first as if all were well, as in `_call`: to look at every number takes half as long again."""
    arrays = {name: x for name, x in given.items() if x is not None}
    q: Any = arrays["q"]
    if type(q) is ndarray and q.dtype.char == "d":
        try:
            with np.errstate(invalid="ignore"):  # a state that loses digits
                result = store(model).found(("segments", forward_dynamics, tuple(arrays)))(arrays)
            if np.isfinite(result).all():
                return result
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
    return _by_parts("segments", forward_dynamics, model, **given)


def _by_parts(method: str, function: Callable[..., Array], model: Model, **given: ArrayLike | None) -> Array:
    """One state after the other in float64, by methods that work on segments or levels of a chain at once."""
    check_model(model)
    arrays = {name: _checked(model, name, x) for name, x in given.items() if x is not None}
    batch = _batch(model, arrays)
    dtype = np.result_type(*arrays.values())
    if dtype.char not in "df":
        raise ArgumentError(f'method "{method}" computes in float64, not {dtype}; use method "articulated"')
    key = method, function, tuple(arrays)
    by_parts = store(model).found(key) or _parts(method, function, model, "external" in arrays)
    store(model).once(key, lambda: by_parts)
    states = {name: np.broadcast_to(x, batch + _shape(model, name)) for name, x in arrays.items()}
    with np.errstate(invalid="ignore"):
        result = by_parts(states)
    lost = ~np.isfinite(result).all(axis=-1)
    if lost.any() and method == "segments":  # they lose too many digits there, which the sweeps do not
        result[lost] = function(model, *(states.pop(name)[lost] for name in INPUTS), method="articulated",
                                **{name: x[lost] for name, x in states.items()})  # fmt: skip
    elif lost.any():
        _refuse_singular(articulated.forward_dynamics, model, arrays["q"])
        raise SingularError(
            f'{function.__name__}: method "{method}" overflows; the arguments are too large, or masses and lengths too '
            'uneven for it: use method "auto" or "articulated"'
        )
    return result.astype(dtype, copy=False)


def _is_large(model: Model) -> bool:
    """Whether there are too many freedoms for straight-line code through the mass matrix."""
    return isinstance(model, Model) and model.nv > MOST_FREEDOMS


def _after_bias(method: str, model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike,
                external: ArrayLike | None) -> Array:  # fmt: skip
    """Forward dynamics as M^-1 (tau - bias)."""
    bias = bias_forces(model, q, v, external=external)
    arrays = {"b": bias, "tau": _checked(model, "tau", tau)}
    _batch(model, arrays)
    return _mass_solve_by(method, model, q, arrays["tau"] - bias)


def _by_dense_factor(model: Model, q: ArrayLike, b: ArrayLike) -> Array:
    """M^-1 b by LAPACK."""
    arrays = {"q": _checked(model, "q", q), "b": _checked(model, "b", b)}
    _batch(model, arrays)
    if model.has_degenerate_bodies:
        _refuse_singular(articulated.mass_solve, model, arrays["q"])
    return np.linalg.solve(mass_matrix(model, arrays["q"]), arrays["b"][..., None])[..., 0]


def _compared(method: str, function: Callable[..., Array], result: Array, model: Model, *args: ArrayLike,
              **options: ArrayLike | None) -> Array:  # fmt: skip
    """The result of a named method, if it keeps half of its digits: found out by computing it by the sweeps, too.

    Numbers of other kinds (on a GPU, symbols, mpmath) are not compared, nor is what factors M on an even model.
    """
    if method == "articulated" or not isinstance(result, ndarray | np.floating) or result.dtype.char not in AGREEMENT:
        return result
    if method not in ("fixman", "constraint-force") and pivot_ratio(model) <= COMPARED:
        return result
    sweeps = function(model, *args, method="articulated", **options)
    core = {inverse_mass_matrix: 2, log_det_mass_matrix: 0}.get(function, 1)
    refuse_disagreement(method, function.__name__, np.asarray(result), np.asarray(sweeps), core)
    return result


def _parts(method: str, function: Callable[..., Array], model: Model, external: bool) -> Any:
    if method == "segments":
        from torsor.parallel.segments import Segments

        return Segments(model, external=external)
    from torsor.parallel.solver import Solver

    return Solver(model, function.__name__, external=external)


def _named(function: Callable[..., Array], method: str, *others: str) -> Algorithm:
    """The algorithm of that name; `others` are methods that are not algorithms."""
    methods = METHODS.get(function.__name__, {})
    if not methods:
        raise ArgumentError(f"unknown method {method!r}: {function.__name__} has one method only; leave out method=")
    return methods[_choose(method, *methods, *others)]


def on_frame(algorithm: Algorithm, model: Model, body: int | str, *args: ArrayLike) -> Array:
    """Run an algorithm that is about a body, or a frame on it."""
    check_model(model)
    if body is None:
        raise ArgumentError("body None is the base, which never moves: give a body or frame by number or name")
    return _carefully(algorithm, model, args, model.frame(body))


# Arguments -------------------------------------------------------------------------------------------------


def check_model(model: Any) -> None:
    if not isinstance(model, Model):
        raise ArgumentError(f"model must be a torsor.Model, not {model!r}")


def _choose(method: str, *known: str) -> str:
    """The method, the first of those known if "auto"."""
    if method not in ("auto", *known):
        raise ArgumentError(f"unknown method {method!r}; choose one of: auto, {', '.join(known)}")
    return known[0] if method == "auto" else method


def _batch(model: Model, arrays: dict[str, Array]) -> tuple[int, ...]:
    """The batch axes that all arguments broadcast to."""
    try:
        return np.broadcast_shapes(*(x.shape[: x.ndim - len(_shape(model, name))] for name, x in arrays.items()))
    except ValueError:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in arrays.items())
        raise ArgumentError(f"the batch axes do not go together: {shapes}") from None


def _shape(model: Model, name: str) -> tuple[int, ...]:
    """The last axes of an argument."""
    return place_of(name).shape(model)


def _checked(model: Model, name: str, x: ArrayLike) -> Array:
    """An argument as an array of real, finite numbers of the right shape."""
    core = _shape(model, name)
    name = {"acceleration": "base_acceleration"}.get(name, name)
    array = validate.array(name, x)
    numeric = array.dtype.kind in "fiub" or (array.dtype.kind == "O" and all(map(_is_scalar, array.flat)))
    if not numeric:
        raise ArgumentError(f"{name} has dtype {array.dtype}; real numbers are needed")
    if array.ndim < len(core) or array.shape[array.ndim - len(core) :] != core:
        wanted = ", ".join(map(str, core))
        raise ArgumentError(f"{name} has shape {array.shape}; {model!r} needs (..., {wanted})")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        where = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
        raise ArgumentError(f"{name}{where} is {array[tuple(where)]}; every number must be finite")
    if name == "q" and array.dtype.kind != "O":
        model.check_quaternions(array)
    return array if array.dtype.kind in "fO" else array.astype(np.float64)


def _is_scalar(x: Any) -> bool:
    """Whether the entry of an object array is a number or a symbol: something that can be added and multiplied."""
    return hasattr(x, "__add__") and hasattr(x, "__mul__") and not isinstance(x, str | bytes | list | tuple)


def _refuse_singular(algorithm: Algorithm, model: Model, q: Array) -> None:
    """Raise if M is singular to rounding, naming a joint to blame.

    That needs a body without mass or extent somewhere; all others skip this test.  A pivot of M is compared with
    the diagonal entry it was reduced from: what is left of it when all joints beyond are free.
    """
    pivots, diagonal = (
        np.asarray(_program(a, model, (), "d", None)(q.astype(np.float64)))
        for a in (articulated.pivots, composite.diagonal)
    )
    bad = np.argwhere(~(pivots > SINGULAR_PIVOT * np.abs(diagonal)))
    if len(bad):
        *state, freedom = (int(i) for i in bad[-1])
        body = int(np.searchsorted(model.v_start, freedom, side="right")) - 1
        where = f" in state {state}" if state else ""
        raise SingularError(
            f"{algorithm.name}: joint {model.names[body]!r} moves no mass{where}: its articulated inertia is singular; "
            "give its body, or a body it carries, mass and extent about the joint"
        )


def _reference(algorithm: Algorithm, model: Model, arrays: dict[str, Array], frame: Frame | None) -> Array:
    """One state after the other through the reference engine: for longdouble, mpmath and symbols."""
    dtype = np.result_type(*arrays.values())
    number: Callable[[float], Any] = np.longdouble if dtype.kind == "f" else float
    cores = {name: len(_shape(model, name)) for name in arrays}
    batch = np.broadcast_shapes(*(x.shape[: x.ndim - cores[name]] for name, x in arrays.items()))
    states = {name: np.broadcast_to(x, batch + x.shape[x.ndim - cores[name] :]) for name, x in arrays.items()}
    results = []
    for index in np.ndindex(*batch):
        state = {name: list(x[index]) for name, x in states.items()}
        results.append(reference.evaluate(algorithm, model, state, frame=frame, number=number))
    if not results:  # what one state would give tells the shape
        one = {name: np.ones(_shape(model, name)).tolist() for name in arrays}
        core = np.asarray(reference.evaluate(algorithm, model, one, frame=frame), dtype=object).shape
        return np.empty(batch + core, dtype)
    return np.array(results, dtype=dtype).reshape(batch + np.asarray(results[0], dtype=object).shape)
