"""torsor in PyTorch: functions for autograd, torch.func and torch.compile (extra `torch`).

    import torch, torsor as ts, torsor.torch

    fd = torsor.torch.function(arm, ts.forward_dynamics)
    fd(q, v, tau).square().sum().backward()

No single mechanism of PyTorch serves all three, so one call chooses between three ways. Inside torch.compile, which
cannot trace torsor's Python, it is an operator of `torch.library`; inside torch.func, an autograd.Function with rules
for jvp and vmap; otherwise, an autograd.Function without them, which costs half. `Bridge` defines the derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

try:
    import torch
except ImportError as error:
    raise ImportError("torsor.torch needs PyTorch: pip install 'torsor[torch]'") from error

from torch.autograd import forward_ad

from torsor.backends.cpu import pool
from torsor.backends.xla import Cutter, can_cut
from torsor.bridge.functions import DERIVATIVES, NO_THIRD, OPERANDS, TRANSPOSES, Bridge, Options, bridge, pulled
from torsor.bridge.rollouts import RolloutBridge
from torsor.compiler.store import store
from torsor.dynamics.programs import OptionalInputs
from torsor.errors import ArgumentError
from torsor.model.model import Model, require_model
from torsor.outputs import Several
from torsor.validate import array

Tensor = Any
_bridges: dict[str, Bridge] = {}  # an operator finds a function by its key, which a graph can store


def function(model: Model, function: Callable[..., Any], *, wrt: str | Iterable[str] = (), Q: ArrayLike | None = None,
             body: int | str | None = None, method: str = "auto", specialised: bool | None = None,
             threads: int | None = None, **inputs: Unpack[OptionalInputs]) -> Callable[..., Any]:  # fmt: skip
    """Make a function of PyTorch tensors from a function of torsor, as `torsor.jax.function` does.

    It is differentiable twice, by autograd, torch.func and inside torch.compile, and its results equal those of
    `torsor.compile` bit for bit: in float64, or in float32 if all tensors are. Tensors are on the CPU, or on one GPU,
    where PyTorch's current stream runs it. They are not copied, and their numbers are not checked.

    Parameters
    ----------
    model : Model
        The machine.
    function : callable
        A function that `torsor.compile` takes, such as `torsor.forward_dynamics`.
    wrt : str or sequence of str, default ()
        Numbers of the model that are further arguments, after the others: "inertia" (..., n, 10), "gravity" (..., 3)
        and "placement" (..., n, 6), as in JAX.
    Q, body, method, specialised, threads : optional
        As in `torsor.compile`; threads: one per core. With Q, inertias and twists of `wrt` are also in these frames.
    **inputs : bool
        As in `torsor.compile`: `external`, `base_velocity`, `base_acceleration`. They are further arguments, before
        those of `wrt`.

    Returns
    -------
    f : callable
        Takes and returns tensors whose batch axes broadcast. Derivatives with respect to q have nq numbers.

    Raises
    ------
    ArgumentError
        A tensor has another shape, tensors are on several devices, or a third derivative is requested.

    Examples
    --------
    >>> import torch, torsor as ts, torsor.torch
    >>> arm = ts.zoo.puma560()
    >>> energy = torsor.torch.function(arm, ts.kinetic_energy)
    >>> v = torch.zeros(6, requires_grad=True)
    >>> energy(torch.zeros(6), v).backward()
    >>> v.grad.shape
    torch.Size([6])
    """
    require_model(model)
    options = Options.checked(model, wrt, Q, inputs, body=body, method=method, specialised=specialised, threads=threads)
    double = bridge(model, function, "float64", options)
    of_double, of_single = _entry(double), _of_single(model, function, options)

    def run(*xs: Any) -> Any:
        for x in xs:
            if type(x) is not torch.Tensor or x.dtype is not torch.float64:
                xs = tuple(map(_tensor, xs))
                if all(x.dtype is torch.float32 for x in xs):
                    return of_single(*xs)
                double.check(xs)
                return of_double(*(x.to(torch.float64) for x in xs))
        return of_double(*xs)

    run.__name__ = run.__qualname__ = function.__name__
    return run


def _tensor(x: Any) -> Tensor:
    """x as a tensor of real numbers; masked arrays are refused."""
    found = torch.as_tensor(array("an argument", x) if isinstance(x, np.ndarray) else x)
    if found.is_complex():
        raise ArgumentError("torsor computes with real numbers: give it the real part of complex tensors, x.real")
    return found


def _of_single(model: Model, function: Callable[..., Any], options: Options) -> Callable[..., Any]:
    """The function in float32, made before the first call because torch.compile cannot trace this."""
    try:
        return _entry(bridge(model, function, "float32", options))
    except ArgumentError as error:  # this model does not fit into float32: raise only for float32 calls
        reason = error

    def refused(*xs: Any) -> Any:
        raise ArgumentError(str(reason))

    return refused


def rollout(model: Model, *, steps: int, step: float, forces: Any = (), wrt: str | Iterable[str] = (),
            **options: Any) -> Callable[..., tuple[Tensor, Tensor]]:  # fmt: skip
    """Make a function of PyTorch tensors from `torsor.rollout`: `torsor.jax.rollout`, for tensors on the CPU.

    Autograd can differentiate it once.

    Parameters
    ----------
    model : Model
        The machine.
    steps, step, forces, **options : optional
        As in `torsor.rollout`: also `method`, `gravity` and `every`. Forces that are functions are refused.
    wrt : str or sequence of str, default ()
        Further arguments, in this order, after q and v: parameters of forces, such as "PD.kp", and numbers of the
        model, as in `function`.

    Returns
    -------
    f : callable
        Returns the stored states, q (..., stored, nq) and v (..., stored, nv).

    Raises
    ------
    ArgumentError
        A tensor has another shape, or a force is a function.

    Examples
    --------
    >>> import torch, torsor as ts, torsor.torch
    >>> servo = ts.PD(0.5, kp=10.0, kd=1.0)
    >>> run = torsor.torch.rollout(ts.zoo.pendulum(), steps=50, step=0.01, forces=[servo], wrt="PD.kp")
    >>> kp = torch.tensor(10.0, requires_grad=True)
    >>> (run(torch.zeros(1), torch.zeros(1), kp)[0] - 0.5).square().sum().backward()
    >>> bool(kp.grad < 0)  # a stiffer servo is closer
    True
    """
    b = RolloutBridge(model, forces, wrt, {"steps": steps, "step": step, **options})

    def call(q: Any, v: Any, *values: Any) -> tuple[Tensor, Tensor]:
        if torch._C._are_functorch_transforms_active():
            raise ArgumentError(
                "torsor.torch.rollout is differentiated by autograd, not by torch.func: call backward() or "
                "torch.autograd.grad, and give it batches instead of vmap"
            )
        xs = [_tensor(x) for x in (q, v, *_leaves(values))]
        dtype = torch.float32 if all(x.dtype is torch.float32 for x in xs) else torch.float64
        b.check([tuple(x.shape) for x in xs])
        for x in xs:
            if x.device.type != "cpu":
                raise ArgumentError("the gradient of a rollout runs on the CPU: give it tensors there, x.cpu()")
        return _Rollout.apply(b, *(x.to(dtype) for x in xs))

    return call


def _leaves(x: Any) -> list[Any]:
    return [leaf for part in x for leaf in _leaves(part)] if isinstance(x, list | tuple) else [x]


class _Rollout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, b: RolloutBridge, *xs: Tensor) -> tuple[Tensor, Tensor]:
        q, v = map(torch.from_numpy, b.forward([x.detach().numpy() for x in xs]))
        ctx.b = b
        ctx.save_for_backward(*xs, q)
        return q, v

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return None, *_RolloutGradient.apply(ctx.b, *ctx.saved_tensors, *cotangents)


class _RolloutGradient(torch.autograd.Function):
    """The cotangents of all tensors. (With `once_differentiable`, a graph would treat them as constants.)"""

    @staticmethod
    def forward(ctx: Any, b: RolloutBridge, *given: Tensor) -> Any:
        *xs, q, gq, gv = (x.detach().numpy() for x in given)
        return tuple(map(torch.from_numpy, b.backward(xs, q, (gq, gv))))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise ArgumentError("torsor.torch.rollout has first derivatives; for second ones, write a loop of a `function`")


def _entry(b: Bridge) -> Callable[..., Any]:
    """The function of tensors of one type: it chooses the way for each call."""
    key, compiling, transforming, count = b.key, torch.compiler.is_compiling, _transforming, len(b.names)
    _bridges[key] = b
    output = b.algorithm.output
    direct = functools.partial(_direct, b, "value")

    def call(*xs: Tensor) -> Tensor:
        if len(xs) != count:
            b.check(xs)
        if compiling():
            return _operator(key, "value", list(xs))
        if transforming():
            return _Transformed.apply(key, "value", *xs)
        if torch.is_grad_enabled() and any(x.requires_grad for x in xs):
            return _Graphed.apply(b, "value", *xs)
        return direct(xs)

    if not isinstance(output, Several):
        return call
    return lambda *xs: output.split(call(*xs), b.program("value").request.parts)


def _transforming() -> bool:
    """Whether a transformation of torch.func, or forward differentiation, is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


# The kinds on tensors -------------------------------------------------------------------------------------------------


def _direct(b: Bridge, kind: str, xs: Sequence[Tensor]) -> Tensor:
    """A kind, computed by its program on the memory of the tensors, without a graph."""
    try:
        if _on_gpu(xs[0]):
            return b.on_gpu.evaluate(kind, xs, _queue, torch)
        if kind == "value" and not b.options.wrt:
            return _run(b.program(kind), *xs)
        return b.evaluate(kind, xs, _run, torch)
    except (TypeError, ValueError, RuntimeError):
        places = ", ".join(sorted({str(x.device) for x in xs}))
        if "," in places or not places.startswith(("cpu", "cuda")):
            raise ArgumentError(
                f"the tensors of {b.function.__name__} are on {places}: torsor.torch takes tensors on the CPU, or "
                "all of them on one NVIDIA GPU"
            ) from None
        if kind == "value":
            b.check(xs)
        raise


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def _queue(program: Any, *xs: Tensor) -> Tensor:
    """A program on a GPU, on PyTorch's current stream."""
    return program.rows(*(x.detach() for x in xs))


def _run(program: Any, *xs: Tensor) -> Tensor:
    found = program.rows(*[x.detach().numpy() for x in xs])
    return torch.from_numpy(found) if type(found) is np.ndarray else torch.tensor(found)


LARGE = 1024  # states: machine code splits the gradients of larger batches


def _gradients(b: Bridge, program: Any, *xs: Tensor) -> Any:
    """The rows of a vjp; for a large batch, the cotangents of all inputs as separate arrays.

    Otherwise PyTorch would copy the parts of a row.
    """
    cores, sizes = program.request.input_shapes, [prod(shape) for shape in b.tangents]
    batches = {x.shape[: x.ndim - len(core)] for x, core in zip(xs, cores)} - {()}
    count = prod(next(iter(batches), ()))
    if [len(batch) for batch in batches] != [1] or count < LARGE or not can_cut(sizes):
        return _run(program, *xs)
    arrays = [np.ascontiguousarray(x.detach().numpy(), program.dtype) for x in xs]
    found = [np.empty((count, *shape), program.dtype) for shape in b.tangents]
    cutter = store(b.model).once(("cutter", b.key, program.lanes), lambda: Cutter(program, sizes))
    steps = [x.nbytes // count if x.ndim > len(core) else 0 for x, core in zip(arrays, cores)]
    addresses = ([x.ctypes.data for x in group] for group in (arrays, found))
    job = cutter.job(next(addresses), steps, next(addresses))
    pieces = max(1, min(program.threads, count // (2 * LARGE)))
    edges = [count * k // pieces for k in range(pieces + 1)]

    def some(first: int, end: int) -> None:
        cutter.run(job.ctypes.data, first, end - first)

    jobs = [pool().submit(some, *edge) for edge in pairwise(edges[1:])]
    some(*edges[:2])
    for one in jobs:
        one.result()
    return [torch.from_numpy(x) for x in found]


def _pulled(b: Bridge, kind: str, xs: Sequence[Tensor], w: Tensor, needed: Sequence[bool],
            run: Callable[..., Any]) -> list[Tensor | None]:  # fmt: skip
    """The cotangents of the needed operands of a kind, from that of its result.

    run   (kind, operands) -> the result of the kind, or a list of its parts
    """
    groups = b.grouped(kind, xs)
    need = b.grouped(kind, needed)
    given = groups | {"w": b.parted(kind, w)}
    found: list[Tensor | None] = []
    for letter, group in groups.items():
        if not any(need[letter]):
            found += [None] * len(group)
            continue
        back, letters = pulled(kind) if letter == "x" else TRANSPOSES[kind, letter]
        answer = run(back, [*groups["x"], *(y for key in letters for y in given[key])])
        parts = answer if isinstance(answer, list) else b.parted(back, answer)
        if letter == "x":
            parts = b.charts(torch).cotangents(groups["x"], parts)
        found += [y if y.shape == x.shape else y.sum_to_size(x.shape) for y, x in zip(parts, group)]
    return found


class _Graphed(torch.autograd.Function):
    """The function for autograd. (With setup_context, every call would take 20 us longer.)"""

    @staticmethod
    def forward(ctx: Any, b: Bridge, kind: str, *xs: Tensor) -> Tensor:
        ctx.b, ctx.kind = b, kind
        ctx.save_for_backward(*xs)
        return _direct(b, kind, xs)

    @staticmethod
    def backward(ctx: Any, w: Tensor) -> Any:
        b, graphed = ctx.b, torch.is_grad_enabled()

        def run(kind: str, xs: Sequence[Tensor]) -> Any:
            if graphed:
                return _Graphed.apply(b, kind, *xs)
            if kind == "vjp" and w.numel() >= LARGE and not _on_gpu(w):
                return b.evaluate(kind, xs, functools.partial(_gradients, b), torch)
            return _direct(b, kind, xs)

        return None, None, *_pulled(b, ctx.kind, ctx.saved_tensors, w, ctx.needs_input_grad[2:], run)


class _Transformed(torch.autograd.Function):
    """The function for torch.func, which needs all rules."""

    @staticmethod
    def forward(key: str, kind: str, *xs: Tensor) -> Tensor:
        return _direct(_bridges[key], kind, xs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.key, ctx.kind, *xs = inputs
        ctx.save_for_backward(*xs)
        ctx.save_for_forward(*xs)

    @staticmethod
    def backward(ctx: Any, w: Tensor) -> Any:
        def run(kind: str, xs: Sequence[Tensor]) -> Tensor:
            return _Transformed.apply(ctx.key, kind, *xs)

        return None, None, *_pulled(_bridges[ctx.key], ctx.kind, ctx.saved_tensors, w, ctx.needs_input_grad[2:], run)

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *given: Tensor | None) -> Tensor:
        b, kind, xs = _bridges[ctx.key], ctx.kind, ctx.saved_tensors
        groups, tangents = (b.grouped(kind, y) for y in (xs, given))
        found = []
        if any(t is not None for t in tangents["x"]):
            if kind not in DERIVATIVES:
                raise ArgumentError(NO_THIRD)
            forward, letters = DERIVATIVES[kind]
            with forward_ad._set_fwd_grad_enabled(True):  # PyTorch disables it here, also for outer jvps
                s = b.charts(torch).tangents(groups["x"], _filled(tangents["x"], groups["x"]))
            more = groups | {"s": s}
            operands = [*groups["x"], *(y for letter in letters for y in more[letter])]
            found.append(_Transformed.apply(ctx.key, forward, *operands))
        for letter in OPERANDS[kind]:
            if any(t is not None for t in tangents[letter]):
                more = groups | {letter: _filled(tangents[letter], groups[letter])}
                found.append(_Transformed.apply(ctx.key, kind, *(y for group in more.values() for y in group)))
        return sum(found[1:], found[0])

    @staticmethod
    def vmap(info: Any, axes: Any, key: str, kind: str, *xs: Tensor) -> tuple[Tensor, int]:
        """One more batch axis, in front of the others of all operands; of size 1 where an operand has none."""
        cores = _bridges[key].operand_shapes(kind)
        own = [x.ndim - (axis is not None) - len(core) for x, axis, core in zip(xs, axes[2:], cores)]
        wide = [x.unsqueeze(0) if axis is None else x.movedim(axis, 0) for x, axis in zip(xs, axes[2:])]
        most = max(own)
        wide = [x.reshape(x.shape[0], *(1,) * (most - k), *x.shape[1:]) for x, k in zip(wide, own)]
        return _Transformed.apply(key, kind, *wide), 0


def _filled(tangents: Sequence[Tensor | None], xs: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(x) if t is None else t for t, x in zip(tangents, xs)]


# The operator, for torch.compile --------------------------------------------------------------------------------------

_library = torch.library.Library("torsor", "DEF")
_library.define("call(str key, str kind, Tensor[] xs) -> Tensor")
for _place in ("CPU", "CUDA"):
    _library.impl("call", lambda key, kind, xs: _direct(_bridges[key], kind, xs), _place)
_operator = torch.ops.torsor.call.default


def _shape_of(key: str, kind: str, xs: Sequence[Tensor]) -> Tensor:
    b = _bridges[key]
    batches = [x.shape[: x.ndim - len(core)] for x, core in zip(xs, b.operand_shapes(kind))]
    return xs[0].new_empty((*torch.broadcast_shapes(*batches), *b.result(kind)), dtype=getattr(torch, b.dtype))


def _remember(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.key, ctx.kind, xs = inputs
    ctx.save_for_backward(*xs)


def _operator_pulled(ctx: Any, w: Tensor) -> Any:
    def run(kind: str, xs: Sequence[Tensor]) -> Tensor:
        return _operator(ctx.key, kind, list(xs))

    xs = ctx.saved_tensors
    return None, None, _pulled(_bridges[ctx.key], ctx.kind, xs, w, [x.requires_grad for x in xs], run)


torch.library.register_fake("torsor::call", _shape_of)
torch.library.register_autograd("torsor::call", _operator_pulled, setup_context=_remember)
