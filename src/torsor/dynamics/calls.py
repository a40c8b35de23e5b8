"""How a public function runs: it checks arguments, finds or makes programs, and explains results that are not finite.

The fast path comes first; on any failure the arguments are validated and the error is explained.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from math import isfinite, prod
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike, NDArray

from torsor import duals, reference, validate
from torsor.algorithms import articulated, composite, coupled
from torsor.backends.cpu import compile_request, cores
from torsor.compiler.derivative import Derivative
from torsor.compiler.members import Members
from torsor.compiler.request import Request
from torsor.compiler.store import NAME as STORE
from torsor.compiler.store import store
from torsor.dynamics.accuracy import LEVELS, agree
from torsor.dynamics.members import members
from torsor.dynamics.methods import COUPLED, METHODS, automatic
from torsor.errors import ArgumentError, SingularError
from torsor.inputs import COORDINATES, COTANGENT, place_of
from torsor.model.batch import ModelBatch, machine_of, require_models
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.outputs import Several
from torsor.sweeps import Algorithm

Array = NDArray[Any]


def call(what: Algorithm | Callable[..., Array], model: Model, *args: ArrayLike) -> Array:
    """Run an algorithm, or the algorithm that method="auto" chooses for a function.

    Fast path first: the arguments go unchecked to the program of this model, algorithm and number type.  On any
    failure (an exception, or a result that is not finite), `call_carefully` validates the arguments and explains.
    """
    first: Any = args[0]
    if type(first) is ndarray:  # not an array on a GPU
        try:
            one, many, few, split = model.__dict__[STORE].calls[what, first.dtype.char]
            result = one(*args) if first.ndim == 1 else many(*args)
            # for few numbers, their sum is the fastest test that all are finite
            finite = isfinite(sum(result.tolist())) if few and result.ndim == 1 else np.isfinite(result).all()
            if finite and type(result) is ndarray:
                return split(result) if split else result
        except Exception:  # any error of an argument; it is explained below
            pass
    else:  # perhaps on a GPU, in a known layout
        try:
            found = model.__dict__[STORE].on_gpu[what, type(first), first.dtype](args)
            if found is not None:
                return found
        except Exception:  # as above
            pass
    return call_carefully(what, model, args)


def call_with(algorithm: Algorithm, model: Model, *args: ArrayLike, **options: ArrayLike | None) -> Array:
    """`call` for an algorithm that takes options."""
    for x in options.values():  # a generator expression would take longer than the rest
        if x is not None:
            return call_carefully(algorithm, model, args, None, **options)
    return call(algorithm, model, *args)


def same_library(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the results of a function as JAX or PyTorch arrays if an argument is such an array on the CPU.

    Arguments may be in tuples. Arrays without numbers that NumPy can read are left for the function to refuse.
    """

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        own = next(filter(_of_a_library, _leaves(args, options.values())), None)
        if own is None:
            return function(*args, **options)
        found = function(*map(on_host, args), **{name: on_host(x) for name, x in options.items()})
        return _like(own, found)

    return run


def _leaves(*groups: Any) -> Iterator[Any]:
    for x in chain.from_iterable(groups):
        yield from x if type(x) is tuple else (x,)


def _of_a_library(x: Any) -> bool:
    """Whether x is a JAX or PyTorch array in CPU memory."""
    if type(x) is ndarray or type(x).__module__.partition(".")[0] not in ("jax", "jaxlib", "torch"):
        return False
    return not gpu_array(x)


def on_host(x: Any) -> Any:
    """JAX or PyTorch arrays in CPU memory as NumPy arrays, also in a tuple; anything else unchanged."""
    if type(x) is tuple:
        return tuple(map(on_host, x))
    if not _of_a_library(x):
        return x
    try:
        return np.asarray(x)
    except Exception:  # any error of a tracer
        return x


def _like(own: Any, found: Any) -> Any:
    """Arrays, or a named tuple of arrays, in the library of another array."""
    if isinstance(found, tuple):
        return type(found)(*(_like(own, x) for x in found))
    if type(own).__module__.startswith("torch"):
        return sys.modules["torch"].as_tensor(np.asarray(found))
    return sys.modules["jax"].numpy.asarray(found)


@same_library
def call_carefully(what: Algorithm | Callable[..., Array], model: Model, args: tuple[ArrayLike, ...],
               frame: Frame | None = None, **options: ArrayLike | None) -> Array:  # fmt: skip
    """Check every argument, find or make the program, and explain a result that is not finite."""
    require_models(model)
    algorithm = what if isinstance(what, Algorithm) else automatic_algorithm(model, what)
    given = {name: x for name, x in options.items() if x is not None}
    state = dict(zip((*algorithm.inputs, *given), (*args, *given.values()), strict=True))
    if isinstance(model, ModelBatch):
        return _call_batch(what, algorithm, model, state, tuple(given), frame)
    if gpu_array(args[0]):
        return _call_on_gpu(what, algorithm, model, state, tuple(given), frame)
    arrays = {name: checked(model, name, x) for name, x in state.items()}
    batch = batch_axes(model, arrays)
    dtype = np.result_type(*arrays.values())
    if dtype.char not in "df":
        return _reference(algorithm, model, arrays, frame)
    program = program_for(algorithm, model, tuple(given), dtype.char, frame)
    validate.check_memory(f"{algorithm.name} of {prod(batch)} states", prod((*batch, *program.shape)) * dtype.itemsize)
    split = program.request.split(lambda row: row) if isinstance(algorithm.output, Several) else None
    result = program.rows(*(x.astype(dtype, copy=False) for x in arrays.values()))
    may_be_singular = algorithm.inverts and model.has_degenerate_bodies
    if may_be_singular or (algorithm.inverts and near_lock(model, arrays["q"])):
        refuse_singular_at(algorithm, model, arrays["q"], arrays.get("added_inertia"))
    if not may_be_singular and not given:
        _remember(what if frame is None else (what, frame), algorithm, model, dtype.char, program, split)
    return _finished(algorithm, result, split)


def _remember(what: Any, algorithm: Algorithm, model: Model, number: str, program: Any, split: Any) -> None:
    """Store for `call` a program for one state and for many, and the function that splits several results."""
    made, few = store(model), len(program.shape) == 1 and program.shape[0] < 64
    one, many = (_unless_locked(algorithm, model, run) for run in (program.ufunc, program.rows))
    made.calls[what, number] = one, many, few, split
    if few and getattr(what, "__name__", "") == "forward_dynamics":
        made.quick[number] = one


def _finished(algorithm: Algorithm, result: Array, split: Any) -> Array:
    if result.dtype.kind == "f" and not np.isfinite(result).all():  # not symbols
        raise SingularError(f"{algorithm.name} overflows; the arguments are too large")
    return split(result) if split else result


def _call_on_gpu(what: Any, algorithm: Algorithm, model: Model, state: dict[str, ArrayLike], options: tuple[str, ...],
                 frame: Frame | None) -> Array:  # fmt: skip
    gpu = gpu_backend()
    args: tuple[Any, ...] = tuple(state.values())
    if not options and frame is None and gpu.is_long_chain(algorithm, model, args[0]):
        solver = levels(algorithm, model)
        if solver is not None:
            return solver(*args)
    program = gpu.program(algorithm, model, args, options, frame)
    if not options and frame is None:
        store(model).on_gpu[what, type(args[0]), args[0].dtype] = program.quick
    return program(*args)


def _call_batch(what: Any, algorithm: Algorithm, batch: ModelBatch, state: dict[str, ArrayLike],
                options: tuple[str, ...], frame: Frame | None) -> Array:  # fmt: skip
    """`call_carefully` for a batch of models: the numbers that differ are additional inputs."""
    model, found, made = batch.model, members(batch), store(batch)
    options = (*options, *found.inputs)
    if any(map(gpu_array, state.values())):
        gpu = gpu_backend()
        number_type, axes = gpu.precision(state.values()), len(batch.shape)
        numbers = made.once(("on the device", number_type), lambda: [
            gpu.columns(x, x.ndim - axes, number_type) for x in found.inputs.values()
        ])  # fmt: skip
        args: tuple[Any, ...] = tuple(state.values())
        run = gpu.program(algorithm, model, args, options, frame, found)
        if len(options) == len(found.inputs) and frame is None:
            made.on_gpu[what, type(args[0]), args[0].dtype] = lambda args: run.quick((*args, *numbers))
        return run(*args, *numbers)
    arrays = {name: checked(model, name, x) for name, x in state.items()}
    dtype = np.result_type(*arrays.values())
    if dtype.char not in "df":
        raise ArgumentError(
            f"a batch of models computes in float64 or float32, not {dtype}; take the members one by one"
        )
    batch_axes(model, arrays | dict(found.inputs))
    numbers = made.once(("numbers", dtype), lambda: [x.astype(dtype, copy=False) for x in found.inputs.values()])

    def program(algorithm: Algorithm, options: tuple[str, ...]) -> Any:
        return program_for(algorithm, model, options, dtype.char, frame, found)

    def bound(*state: Any) -> Any:
        return run.rows(*state, *numbers)

    run = program(algorithm, options)
    split = run.request.split(lambda row: row) if isinstance(algorithm.output, Several) else None
    result = bound(*(x.astype(dtype, copy=False) for x in arrays.values()))
    may_be_singular = algorithm.inverts and batch.has_degenerate_bodies
    if may_be_singular or (algorithm.inverts and near_lock(model, arrays["q"])):
        at = {name: x.astype(dtype) for name, x in arrays.items() if name in ("q", "added_inertia")}
        tests = (program(a, (*list(at)[1:], *found.inputs)) for a in _pivots_of(algorithm))
        refuse_singular(algorithm, model, at["q"], *(np.asarray(test(*at.values(), *numbers)) for test in tests))
    if not may_be_singular and len(options) == len(found.inputs) and frame is None:
        safe = _unless_locked(algorithm, model, bound)
        made.calls[what, dtype.char] = safe, safe, False, split
    return _finished(algorithm, result, split)


def gpu_array(x: Any) -> bool:
    """Whether an array is on a GPU."""
    if isinstance(x, np.ndarray) or not hasattr(x, "__dlpack_device__"):
        return False
    return gpu_backend().on_device(x)


def gpu_backend() -> Any:
    from torsor.backends import gpu  # few programs use one

    return gpu


def levels(algorithm: Algorithm, model: Model, options: tuple[str, ...] = ()) -> Any:
    """One state of one long chain on a GPU: by levels, all links at once.  None if that would cost digits.

    To test this, one state is computed by levels and by the sweeps on the host.
    """
    from torsor.parallel.device import DeviceChain  # few programs solve one long chain on a GPU

    gpu = gpu_backend()

    def tried() -> Callable[..., Any] | None:
        function, vjp = gpu.in_levels(algorithm)
        solver, rng = DeviceChain(model, function, options=options, vjp=vjp), np.random.default_rng(0)
        state = {"q": model.random_configuration(rng)}
        state |= {name: rng.normal(size=core_shape(model, name)) for name in algorithm.inputs[1:]}
        if "v" in state:
            state["v"] *= 0.0  # velocities add up along a chain, so velocity-dependent forces would hide the others
        given = {name: rng.normal(size=core_shape(model, name)) for name in options}
        if "added_inertia" in given:  # as large as the inertias of the machine
            pivots = np.asarray(program_for(articulated.pivots, model, (), "d", None)(state["q"]))
            given["added_inertia"] = (0.1 + given["added_inertia"] ** 2) * pivots
        found = solver(*state.values(), *(x.ravel() for x in given.values()))
        sweeps = call_with(algorithm, model, *state.values(), **given)
        pairs = zip(found, sweeps) if vjp else [(found, sweeps)]
        if not all(agree(gpu.cupy().asnumpy(a), b, LEVELS) for a, b in pairs):
            return None
        output = algorithm.output
        return (lambda *args: output.results(*solver(*args))) if isinstance(output, Several) else solver

    return store(model).once(("levels on the device", algorithm, options), tried)


def program_for(algorithm: Algorithm, model: Model, options: tuple[str, ...], number: str,
             frame: Frame | None, members: Members | None = None) -> Any:  # fmt: skip
    """The program for these arguments, stored with the model, or with the structure of a batch."""

    def make() -> Any:
        dtype = "float64" if number == "d" else "float32"
        request = Request(algorithm, model, options=options, dtype=dtype, frame=frame, members=members)
        return compile_request(request, threads=cores())

    made = members.store if members else store(model)
    return made.once(("call", algorithm, frame, number, options), make)


LARGEST = int(np.finfo(np.float64).max)
# A pivot this much smaller than its diagonal entry is rounding error: sixteen digits, less a few for the elimination.
SINGULAR_PIVOT = 1e-12
# The cosine of a joint's angle below which its pivots are checked: they are proportional to its square.
NEAR_LOCK = 1e-5


def automatic_algorithm(model: Model, function: Callable[..., Any]) -> Algorithm:
    """The algorithm of method="auto", chosen once per model; for a batch, one that is accurate for all members."""
    require_models(model)
    if isinstance(model, ModelBatch):
        coupled = model.model.couplings and COUPLED.get(function.__name__)
        return coupled or next(iter(METHODS[function.__name__].values()))
    return store(model).once(("auto", function), lambda: automatic(model, function))


def on_frame(algorithm: Algorithm, model: Model, body: int | str, *args: ArrayLike) -> Array:
    """Run an algorithm for one body, or a frame on it."""
    require_models(model)
    if body is None:
        raise ArgumentError("body None is the base, which never moves: give a body or frame by number or name")
    frame, first = machine_of(model).frame(body), args[0]
    if type(first) is ndarray:  # as in `call`
        with suppress(Exception):  # whatever an argument raises
            _, many, _, split = model.__dict__[STORE].calls[(algorithm, frame), first.dtype.char]
            result = many(*args)
            if type(result) is ndarray and np.isfinite(result).all():
                return split(result) if split else result
    return call_carefully(algorithm, model, args, frame)


def batch_axes(model: Model, arrays: Mapping[str, Array]) -> tuple[int, ...]:
    """The batch axes that all arguments broadcast to."""
    return validate.batch_of({name: (x.shape, place_of(name).rank) for name, x in arrays.items()})


def core_shape(model: Model, name: str) -> tuple[int, ...]:
    """The last axes of an argument."""
    return place_of(name).shape(model)


def checked(model: Model, name: str, x: ArrayLike) -> Array:
    """An argument as an array of real, finite numbers of the right shape."""
    array = shaped(model, name, x)
    name = COTANGENT if name.startswith(COTANGENT) else name
    validate.check_memory(f"{name} {array.shape}", array.nbytes)  # an array that is broadcast may be of any size
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        where = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
        raise ArgumentError(f"{name}{where} is {array[tuple(where)]}; every number must be finite")
    if array.dtype.kind != "O" and place_of(name) is COORDINATES:
        model.check_quaternions(array, name)
    return array if array.dtype.kind in "fO" else array.astype(np.float64)


def shaped(model: Model, name: str, x: ArrayLike) -> Array:
    """An argument as an array of real numbers of the right shape."""
    core = core_shape(model, name)
    name = COTANGENT if name.startswith(COTANGENT) else name
    array = validate.array(name, x)
    numeric = array.dtype.kind in "fiub" or (array.dtype.kind == "O" and all(map(_is_scalar, array.flat)))
    if not numeric:
        raise ArgumentError(f"{name} has dtype {array.dtype}; real numbers are needed")
    if array.dtype.kind == "O" and any(isinstance(y, int) and abs(y) > LARGEST for y in array.flat):
        raise ArgumentError(f"{name} holds an integer that is too large for a double")
    if array.ndim < len(core) or array.shape[array.ndim - len(core) :] != core:
        wanted = ", ".join(map(str, core))
        raise ArgumentError(f"{name} has shape {array.shape}; {model!r} needs (..., {wanted})")
    return array


def _is_scalar(x: Any) -> bool:
    """Whether the entry of an object array is a number or a symbol, so that it can be added and multiplied."""
    return hasattr(x, "__add__") and hasattr(x, "__mul__") and not isinstance(x, str | bytes | list | tuple)


def near_lock(model: Model, q: Array) -> bool:
    """Whether a joint of angles about three axes is so near its lock in some state q that M may be singular there."""
    locking = model.locking_coordinates
    return len(locking) > 0 and bool((np.abs(np.cos(q[..., locking])) < NEAR_LOCK).any())


def _unless_locked(algorithm: Algorithm, model: Model, run: Callable[..., Any]) -> Callable[..., Any]:
    """A program for `call` that returns None near a lock, so that `call_carefully` decides."""
    if not (algorithm.inverts and len(model.locking_coordinates)):
        return run

    def checked_run(q: Array, *others: Any) -> Any:
        result = run(q, *others)
        return None if near_lock(model, q) else result

    return checked_run


def _pivots_of(algorithm: Algorithm) -> tuple[Algorithm, Algorithm]:
    """The algorithms for the pivots and the diagonal of the matrix that an algorithm inverts."""
    return (coupled.pivots, coupled.diagonal) if algorithm.couples else (articulated.pivots, composite.diagonal)


def refuse_singular_at(algorithm: Algorithm, model: Model, q: Array, added_inertia: Array | None = None) -> None:
    """Raise if M(q), or M(q) + diag(added_inertia), is singular to rounding."""
    state = {name: x.astype(np.float64) for name, x in (("q", q), ("added_inertia", added_inertia)) if x is not None}
    programs = (program_for(a, model, tuple(state)[1:], "d", None) for a in _pivots_of(algorithm))
    refuse_singular(algorithm, model, q, *(np.asarray(program(*state.values())) for program in programs))


def refuse_singular(algorithm: Algorithm, model: Model, q: Array, pivots: Array, diagonal: Array) -> None:
    """Raise if M is singular to rounding, and name the joint.

    M can be singular only if some body has no mass or no extent, or where a joint locks; all other models and states
    skip this test.  A pivot of M is the rest of a diagonal entry when all joints beyond are free.  It is compared
    with that diagonal entry.
    """
    bad = np.argwhere(~(pivots > SINGULAR_PIVOT * np.abs(diagonal)))
    if not len(bad):
        return
    *state, freedom = (int(i) for i in bad[-1])
    body = int(np.searchsorted(model.v_start, freedom, side="right")) - 1
    where = f" in state {state}" if state else ""
    own = np.arange(model.q_start[body], model.q_start[body + 1])
    angles = np.broadcast_to(q, (*pivots.shape[:-1], model.nq))[tuple(state)]
    for k in np.intersect1d(own, model.locking_coordinates):
        if abs(np.cos(angles[k])) < NEAR_LOCK:
            raise SingularError(
                f"{algorithm.name}: joint {model.names[body]!r} locks{where}: its angle q[{k}] = {angles[k]:.6g} is a "
                "right angle, where its first and last axis coincide and M is singular; a spherical joint never locks"
            )
    raise SingularError(
        f"{algorithm.name}: joint {model.names[body]!r} moves no mass{where}: its articulated inertia is singular; "
        "give its body, or a body it carries, mass and extent about the joint"
    )


def _number_like(arrays: Iterable[Array]) -> Callable[[float], Any]:
    """The converter of the model's constants to mpmath numbers if arguments are, so that quotients keep all digits."""
    every = (x for array in arrays if array.dtype == object for x in array.flat)
    return next((x.context.mpf for x in every if hasattr(x, "context")), float)


@np.errstate(over="ignore", invalid="ignore")  # results that are not finite are refused
def _reference(algorithm: Algorithm, model: Model, arrays: dict[str, Array], frame: Frame | None) -> Array:
    """One state after the other by the reference engine, for longdouble, mpmath and symbols."""
    dtype = np.result_type(*arrays.values())
    evaluate: Callable[..., Any] = duals.evaluate if isinstance(algorithm, Derivative) else reference.evaluate
    number = np.longdouble if dtype.kind == "f" else _number_like(arrays.values())
    cores = {name: len(core_shape(model, name)) for name in arrays}
    batch = np.broadcast_shapes(*(x.shape[: x.ndim - cores[name]] for name, x in arrays.items()))
    states = {name: np.broadcast_to(x, batch + x.shape[x.ndim - cores[name] :]) for name, x in arrays.items()}
    results = []
    for index in np.ndindex(*batch):
        state = {name: list(x[index]) if cores[name] else x[index] for name, x in states.items()}
        results.append(evaluate(algorithm, model, state, frame=frame, number=number))
    if not results:  # an empty batch: evaluate one state to learn the shape
        one = {name: np.ones(core_shape(model, name)).tolist() for name in arrays}
        results.append(evaluate(algorithm, model, one, frame=frame))
    core = np.asarray(results[0], dtype=object).shape
    result = np.array(results, dtype=dtype)[: prod(batch)].reshape(batch + core)
    output = algorithm.output
    split = (lambda row: output.split(row, output.shapes(model, {}))) if isinstance(output, Several) else None
    return _finished(algorithm, result, split)
