"""torsor in JAX: functions that work under jit, vmap, grad, jvp, jacfwd, jacrev, hessian and scan (extra `jax`).

    import jax, torsor as ts, torsor.jax

    fd = torsor.jax.function(arm, ts.forward_dynamics)
    step = jax.jit(jax.vmap(lambda q, v, tau: q + 1e-3 * fd(q, v, tau)))

On a CPU, XLA calls torsor's machine code directly (`backends/xla.py`). `Bridge` defines the derivatives.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from math import prod
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

try:
    import jax
except ImportError as error:
    raise ImportError("torsor.jax needs JAX: pip install 'torsor[jax]'") from error
if jax.__version_info__ < (0, 7, 2):  # older XLA aborts the process when it rewrites a graph around custom calls
    raise ImportError(f"torsor.jax needs JAX 0.7.2 or newer, not {jax.__version__}: pip install -U 'torsor[jax]'")
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from torsor.backends import xla
from torsor.bridge.functions import DERIVATIVES, NO_THIRD, OPERANDS, ROWS, TRANSPOSES, Bridge, Options, bridge
from torsor.bridge.rollouts import RolloutBridge
from torsor.dynamics.programs import OptionalInputs
from torsor.errors import ArgumentError
from torsor.model.model import Model, require_model
from torsor.outputs import Several

TARGET = "torsor"
CALLBACK = "XLA does not take torsor's handler ({}): every call goes through Python, which costs 0.2 ms"


def function(model: Model, function: Callable[..., Any], *, wrt: str | Iterable[str] = (), Q: ArrayLike | None = None,
             body: int | str | None = None, method: str = "auto", specialised: bool | None = None,
             threads: int | None = None, **inputs: Unpack[OptionalInputs]) -> Callable[..., Any]:  # fmt: skip
    """Make a function of JAX arrays from a function of torsor.

    It works under all transformations of JAX up to second derivatives, and its results equal those of `torsor.compile`
    bit for bit. It computes in float64 if an argument is float64, or if all are integers and JAX's default is float64;
    else in float32. It does not check its numbers: NaN in one state gives NaN in that state.

    Parameters
    ----------
    model : Model
        The machine.
    function : callable
        A function that `torsor.compile` takes, such as `torsor.forward_dynamics`.
    wrt : str or sequence of str, default ()
        Numbers of the model that are further arguments, after the others: "inertia" (..., n, 10), as
        `model.inertial_parameters()` returns them; "gravity" (..., 3); "placement" (..., n, 6), a twist xi per joint:
        M exp(xi) replaces the placement M, so zeros keep the model unchanged.
    Q, body, method, specialised : optional
        As in `torsor.compile`. With Q, the inertias and twists of `wrt` are also in these frames.
    threads : int, optional
        The number of XLA's threads over which a large batch is spread. Default: one per core.
    **inputs : bool
        As in `torsor.compile`: `external`, `base_velocity`, `base_acceleration`. They are further arguments, before
        those of `wrt`.

    Returns
    -------
    f : callable
        Takes and returns arrays whose batch axes broadcast. Derivatives with respect to q have nq numbers.

    Raises
    ------
    ArgumentError
        An argument has another shape, or a third derivative is requested.

    Examples
    --------
    >>> import jax, torsor as ts, torsor.jax
    >>> arm = ts.zoo.puma560()
    >>> energy = torsor.jax.function(arm, ts.kinetic_energy)
    >>> jax.grad(energy, argnums=1)(jax.numpy.zeros(6), jax.numpy.zeros(6)).shape
    (6,)
    """
    require_model(model)
    options = Options.checked(model, wrt, Q, inputs, body=body, method=method, specialised=specialised, threads=threads)
    bridge(model, function, "float64", options)  # raises early if an argument is wrong

    def call(*xs: Any) -> Any:
        arrays, dtype = _typed(xs)
        made = bridge(model, function, dtype, options)
        made.check(arrays)
        (found,) = bind(made, "value", arrays)
        output = made.algorithm.output
        return output.split(found, made.program("value").request.parts) if isinstance(output, Several) else found

    call.__name__ = call.__qualname__ = function.__name__
    return jax.jit(call, inline=True)


def _typed(xs: Sequence[Any]) -> tuple[list[Any], str]:
    """Arrays of one type and its name: float64 if any is, or if all are integers and JAX's default is, else float32."""
    arrays = [jnp.asarray(x) for x in xs]
    found = jnp.result_type(*arrays, *([] if arrays else [0.0]))
    if jnp.issubdtype(found, jnp.complexfloating):
        raise ArgumentError("torsor computes with real numbers: give it the real part of complex arrays")
    if not jnp.issubdtype(found, jnp.floating):
        found = jnp.result_type(float)
    dtype = "float64" if found == jnp.float64 else "float32"
    return [x.astype(dtype) for x in arrays], dtype


def rollout(model: Model, *, steps: int, step: float, forces: Any = (), wrt: str | Iterable[str] = (),
            **options: Any) -> Callable[..., tuple[Any, Any]]:  # fmt: skip
    """Make a function of JAX arrays from `torsor.rollout`: many steps and their gradient as one operation.

    It works under jit, vmap and grad. Forward and second derivatives are those of `jax.lax.scan` around a `function`.
    Every call goes through Python. With different networks, vmap runs them one after another.

    Parameters
    ----------
    model : Model
        The machine.
    steps : int
        As in `torsor.rollout`.
    step : float
        In s.
    forces : force or sequence of forces, default ()
        The forces; functions are refused.
    wrt : str or sequence of str, default ()
        Further arguments, in this order, after q and v: parameters of forces by the name of their class, such as
        "PD.kp", "Table.tau" or "Policy.layers" (a list of (W, b)), and "inertia", "gravity", "placement" as in
        `function`. Their shapes are those in `forces` and `model`.
    **options : object
        `method`, `gravity` and `every` of `torsor.rollout`.

    Returns
    -------
    f : callable
        Returns the stored states, q (..., stored, nq) and v (..., stored, nv).

    Raises
    ------
    ArgumentError
        An array has another shape, or a force is a function.

    Examples
    --------
    The gradient of a servo's squared error with respect to its gain:

    >>> import jax, torsor as ts, torsor.jax
    >>> servo = ts.PD(0.5, kp=10.0, kd=1.0)
    >>> run = torsor.jax.rollout(ts.zoo.pendulum(), steps=50, step=0.01, forces=[servo], wrt="PD.kp")
    >>> start = jax.numpy.zeros(1)
    >>> miss = lambda kp: ((run(start, start, kp)[0] - 0.5) ** 2).sum()
    >>> bool(jax.grad(miss)(10.0) < 0)  # a stiffer servo is closer
    True
    """
    b = RolloutBridge(model, forces, wrt, {"steps": steps, "step": step, **options})

    def shapes(*xs: Any) -> Any:
        dtype, batch = xs[0].dtype, b.batch([x.shape for x in xs])
        return [jax.ShapeDtypeStruct((*batch, b.stored, size), dtype) for size in (model.nq, model.nv)]

    @jax.custom_vjp
    def run(*xs: Any) -> Any:
        def forward(*xs: Any) -> Any:
            return b.forward([np.asarray(x) for x in xs])

        return tuple(jax.pure_callback(forward, shapes(*xs), *xs, vmap_method="expand_dims"))

    def there(*xs: Any) -> Any:
        found = run(*xs)
        return found, (xs, found[0])

    def back(kept: Any, cotangents: Any) -> Any:
        xs, q = kept

        def backward(*arrays: Any) -> Any:
            *own, path, gq, gv = (np.asarray(x) for x in arrays)
            return b.backward(own, path, (gq, gv), gq.ndim - cotangents[0].ndim)

        like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in xs]
        return tuple(jax.pure_callback(backward, like, *xs, q, *cotangents, vmap_method="expand_dims"))

    run.defvjp(there, back)

    def call(q: Any, v: Any, *values: Any) -> tuple[Any, Any]:
        xs, _ = _typed([jnp.asarray(q), jnp.asarray(v), *jax.tree.leaves(values)])
        b.check([x.shape for x in xs])
        return run(*xs)

    return call


# The primitive --------------------------------------------------------------------------------------------------------

call_p = Primitive("torsor")  # its operands have one batch axis each, all of one size or of size 1
call_p.multiple_results = True  # a row is one array per input


def bind(b: Bridge, kind: str, xs: Sequence[Any]) -> list[Any]:
    """A kind, for operands whose batch axes broadcast: its result, or one array per input."""
    cores = b.operand_shapes(kind)
    flat, batch = _flat(xs, cores)
    found = call_p.bind(*flat, b=b, kind=kind)
    return [x.reshape(*batch, *core) for x, core in zip(found, _results(b, kind))]


def _results(b: Bridge, kind: str) -> list[tuple[int, ...]]:
    """The shapes of the results of a kind, for one state."""
    return b.tangents if kind in ROWS else [b.shape]


def _flat(xs: Sequence[Any], cores: Sequence[tuple[int, ...]]) -> tuple[list[Any], tuple[int, ...]]:
    """Operands with one batch axis each, and the batch; those without batch axes get one of size 1, uncopied."""
    own = [x.shape[: x.ndim - len(core)] for x, core in zip(xs, cores)]
    batch = np.broadcast_shapes(*own)
    size = prod(batch)
    wide = [
        x if prod(axes) in (1, size) else jnp.broadcast_to(x, batch + core) for x, axes, core in zip(xs, own, cores)
    ]
    rows = [x.reshape(prod(x.shape[: x.ndim - len(core)]), *core) for x, core in zip(wide, cores)]
    return rows, batch


@call_p.def_abstract_eval
def _shapes(*xs: Any, b: Bridge, kind: str) -> list[ShapedArray]:
    sizes = {x.shape[0] for x in xs}
    count = 0 if 0 in sizes else max(sizes)
    return [ShapedArray((count, *core), np.dtype(b.dtype)) for core in _results(b, kind)]


call_p.def_impl(jax.jit(call_p.bind, static_argnames=("b", "kind")))


def _batched(xs: Sequence[Any], axes: Sequence[Any], *, b: Bridge, kind: str) -> tuple[list[Any], list[int]]:
    """vmap: one more batch axis, in front."""
    found = bind(b, kind, [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(xs, axes)])
    return found, [0] * len(found)


def _pushed(primals: Sequence[Any], tangents: Sequence[Any], *, b: Bridge,
            kind: str) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """The JVP rule: a derivative along x, and the kind itself along the operands in which it is linear."""
    x, dx = (b.grouped(kind, xs) for xs in (primals, tangents))
    found = []
    if any(type(t) is not ad.Zero for t in dx["x"]):
        if kind not in DERIVATIVES:
            raise ArgumentError(NO_THIRD)
        forward, letters = DERIVATIVES[kind]
        s = b.charts(jnp).tangents(x["x"], [ad.instantiate_zeros(t) for t in dx["x"]])
        given = x | {"s": s}
        found.append(bind(b, forward, [*x["x"], *(y for letter in letters for y in given[letter])]))
    for letter in OPERANDS[kind]:
        if any(type(t) is not ad.Zero for t in dx[letter]):
            given = x | {letter: [ad.instantiate_zeros(t) for t in dx[letter]]}
            found.append(bind(b, kind, [y for group in given.values() for y in group]))
    return call_p.bind(*primals, b=b, kind=kind), [sum(parts[1:], parts[0]) for parts in zip(*found)]


def _transposed(cotangents: Sequence[Any], *xs: Any, b: Bridge, kind: str) -> list[Any]:
    """The cotangents of the unknown operands, which all have one letter."""
    groups = b.grouped(kind, xs)
    (letter,) = (key for key, group in groups.items() if any(ad.is_undefined_primal(x) for x in group))
    back, letters = TRANSPOSES[kind, letter]
    given = groups | {"w": [ad.instantiate_zeros(w) for w in cotangents]}
    parts = bind(b, back, [*groups["x"], *(y for key in letters for y in given[key])])
    found: dict[str, list[Any]] = {key: [None] * len(group) for key, group in groups.items()}
    for k, (y, x) in enumerate(zip(parts, groups[letter])):
        if ad.is_undefined_primal(x):
            found[letter][k] = y if y.shape == x.aval.shape else y.sum(0, keepdims=True)
    return [y for group in found.values() for y in group]


batching.primitive_batchers[call_p] = _batched
ad.primitive_jvps[call_p] = _pushed
ad.primitive_transposes[call_p] = _transposed


# What XLA runs --------------------------------------------------------------------------------------------------------


@functools.cache
def _handler(platform: str = "cpu") -> bool:
    """Register the handler for "cpu" or "CUDA"; return whether XLA accepts it."""
    try:
        capsule = jax.ffi.pycapsule(xla.handler(xla.HOST if platform == "cpu" else xla.DEVICE).address)
        jax.ffi.register_ffi_target(TARGET, capsule, platform=platform, api_version=1)
    except Exception as error:  # any error of a platform without typed FFI
        warnings.warn(CALLBACK.format(error), RuntimeWarning, stacklevel=2)
        return False
    return True


def _key(b: Bridge, program: Any, *more: Any) -> int:
    """The key of a program for XLA: 63 bits of a hash, because an attribute is an int64."""
    text = repr((b.key, program.name, program.request.key, *more)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _run(b: Bridge, several: bool, cores: Sequence[tuple[int, ...]], program: Any, *xs: Any) -> Any:
    """A program on traced arrays.

    several   the arrays may be on several devices, split along the batch
    cores     the shapes of the arrays into which a row is split; empty: it is not split
    """
    flat, batch = _flat(xs, program.request.input_shapes)
    call = functools.partial(_queued if b.target == "cuda" else _called, b, program, [prod(core) for core in cores])
    found = (_partitioned(call, flat, [1] * len(cores) or [len(program.shape)]) if several else call)(*flat)
    if not cores:
        return found[0].reshape(*batch, *program.shape)
    return [x.reshape(*batch, *core) for x, core in zip(found, cores)]


def _called(b: Bridge, program: Any, parts: Sequence[int], *xs: Any) -> list[Any]:
    """A program on arrays with one batch axis each; its row is split into parts of these sizes."""
    sizes = [x.shape[0] for x in xs]
    count = 0 if 0 in sizes else max(sizes)
    cores = [(size,) for size in parts] or [program.shape]
    results = [jax.ShapeDtypeStruct((count, *core), program.dtype) for core in cores]
    if not _handler():
        whole = jax.ShapeDtypeStruct((count, *program.shape), program.dtype)
        row = jax.pure_callback(lambda *xs: np.asarray(program.rows(*map(np.asarray, xs))), whole, *xs)
        return _split(row, parts)
    key = _key(b, program, program.lanes, parts)
    xla.table().add(key, program, xla.on_host(program, b.options.threads or 1, parts))
    return list(jax.ffi.ffi_call(TARGET, results)(*xs, program=np.int64(key)))


def _split(row: Any, parts: Sequence[int]) -> list[Any]:
    return jnp.split(row, np.cumsum(parts)[:-1], axis=1) if parts else [row]


def _queued(b: Bridge, program: Any, parts: Sequence[int], *xs: Any) -> list[Any]:
    """Like `_called`, on a GPU; loops get scratch memory from XLA, as an additional result."""
    sizes = [x.shape[0] for x in xs]
    count = 0 if 0 in sizes else max(sizes)
    if not count:
        return _split(jnp.zeros((0, *program.shape), program.dtype), parts)
    if not _handler("CUDA"):
        raise ArgumentError("this JAX does not take torsor's handler for GPUs: place the arrays on the CPU")
    record, scratch = xla.on_device(program, sizes)
    results = [jax.ShapeDtypeStruct((count, *program.shape), program.dtype)]
    results += [jax.ShapeDtypeStruct((scratch,), program.dtype)] * bool(scratch)
    key = _key(b, program, "cuda", sizes, scratch)
    xla.table().add(key, program, record)
    return _split(jax.ffi.ffi_call(TARGET, results)(*xs, program=np.int64(key))[0], parts)


def _partitioned(call: Callable[..., Any], xs: Sequence[Any], axes: Sequence[int]) -> Callable[..., Any]:
    """A call that each device makes for its part of the batch, if the arrays are on several devices.

    axes   the number of axes of each result, for one state
    """
    size = max(x.shape[0] for x in xs)

    def partition(mesh: Any, _: Any, results: Any) -> Any:
        def placed(batch: Any) -> Any:
            return NamedSharding(mesh, PartitionSpec(batch))

        along = (*results[0].sharding.spec, None)[0]
        given = tuple(placed(along if x.shape[0] == size else None) for x in xs)
        return mesh, call, [placed(along) for _ in axes], given

    first = ["batch" if x.shape[0] == size else f"one{k}" for k, x in enumerate(xs)]
    names = (f"{name} {_axes(f'x{k}', x.ndim - 1)}" for k, (name, x) in enumerate(zip(first, xs)))
    whole = custom_partitioning(call)
    after = (f"batch {_axes(f'y{k}', count)}" for k, count in enumerate(axes))
    whole.def_partition(partition=partition, sharding_rule=f"{', '.join(names)} -> {', '.join(after)}")
    return whole


def _axes(name: str, count: int) -> str:
    return " ".join(f"{name}_{axis}" for axis in range(count))


def _lowered(context: Any, *xs: Any, b: Bridge, kind: str) -> Any:
    place = context.module_context.axis_context
    known = getattr(place, "device_assignment", None) and place.abstract_mesh
    several = bool(known) and place.num_devices > 1
    cores = b.tangents if kind == "vjp" and xla.can_cut([prod(core) for core in b.tangents]) else ()

    def evaluated(*xs: Any) -> list[Any]:
        found = b.evaluate(kind, xs, functools.partial(_run, b, several, cores), jnp)
        return found if cores else b.parted(kind, found)

    return mlir.lower_fun(evaluated, multiple_results=True)(context, *xs)


def _on_gpu(context: Any, *xs: Any, b: Bridge, kind: str) -> Any:
    return _lowered(context, *xs, b=b.on_gpu, kind=kind)


def _refused(context: Any, *xs: Any, b: Bridge, kind: str) -> Any:
    raise ArgumentError(
        f"torsor.jax runs on CPUs and NVIDIA's GPUs: jax.device_put(x, jax.devices('cpu')[0]) places the arrays of "
        f"{b.algorithm.name} on the CPU"
    )


with contextlib.suppress(ImportError, AttributeError):  # no public name in JAX; without it, jit gathers the arrays
    import_module("jax._src.dispatch").prim_requires_devices_during_lowering.add(call_p)

mlir.register_lowering(call_p, _refused)
mlir.register_lowering(call_p, _lowered, platform="cpu")
mlir.register_lowering(call_p, _on_gpu, platform="cuda")
