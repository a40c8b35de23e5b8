"""`Program`: a compiled function of one model, and the choice of the kernel behind it."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ArgumentError
from torsor.kernel import machine
from torsor.kernel.frames import Framed, Kind, reframe, regroup
from torsor.kernel.gufunc import gufunc
from torsor.kernel.llvm import Target
from torsor.kernel.loops import loop_data, loop_kernel, ranks_of, unrolled_data, unrolled_kernel
from torsor.kernel.tape import Code, Operations
from torsor.kernel.trace import LoopCode, looped, shape_of, unroll
from torsor.model.model import Model
from torsor.sweeps import Algorithm, way_to_base

# Unrolled code beats the loop, by 1.1 to 1.9 times, while it fits the instruction cache; it takes a second to
# compile where the loop, shared by all models of its kinds, takes none (bench/results/unrolling.json).
UNROLL_FREEDOMS = 12
UNROLL_OPERATIONS = 4500
# Below this many states a batch is not worth handing to other threads.
THREAD_STATES = 16384


class Program(functools.partial):
    """A compiled function: call it like the torsor function it was made from, without the model.

    It is a `functools.partial` of a NumPy generalised ufunc (so that calling it costs nothing more): batch
    axes broadcast, inputs are cast, `out=` is filled in place and the GIL is released.

    model, name, dtype, lanes, specialised   what it computes, and how
    operations                               exact counts for one state
    operations_per_joint                     loops: the counts of one body, by kind of joint
    operations_formula                       loops: the counts as a n + b
    source("tape" | "llvm" | "asm" | "cuda")  the code at each stage
    """

    build: _Build
    ufunc: np.ufunc  # one thread
    entry: tuple[int, int]  # the addresses of the ufunc's inner loop and of its data, good while the program lives

    def __repr__(self) -> str:
        b = self.build
        how = "unrolled" if b.specialised else "looped"
        return f"<{b.algorithm.name} of {b.framed.model!r}: {b.dtype}, {b.target.lanes} lanes, {how}>"

    @property
    def model(self) -> Model:
        return self.build.framed.model

    @property
    def name(self) -> str:
        return self.build.algorithm.name

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.build.dtype)

    @property
    def lanes(self) -> int:
        return self.build.target.lanes

    @property
    def specialised(self) -> bool:
        return self.build.specialised

    @property
    def signature(self) -> str:
        return self.build.signature

    @property
    def operations(self) -> Operations:
        return self.build.operations

    @property
    def operations_per_joint(self) -> dict[Kind, Operations]:
        code = self.build.code
        return {} if isinstance(code, Code) else {kind: code.operations(k) for k, kind in enumerate(code.kinds)}

    @property
    def operations_formula(self) -> str:
        """The counts as functions of the number n of bodies, were there more of the most common kind: a n + b."""
        total, kinds = self.operations, self.build.framed.kind
        per_joint = list(self.operations_per_joint.values())
        each = per_joint[int(np.bincount(kinds).argmax())] if per_joint else Operations()
        n = self.model.n
        terms = [
            f"{name} {f'{a} n {b - a * n:+d}' if a else b}" for name, a, b in zip(Operations._fields, each, total) if b
        ]
        return ", ".join(terms)

    def source(self, stage: str = "tape") -> str:
        return self.build.source(stage)


class _Build(NamedTuple):
    """Everything that went into a program; also keeps its machine code and data alive."""

    algorithm: Algorithm
    framed: Framed
    inputs: tuple[str, ...]
    dtype: str
    target: Target
    specialised: bool
    code: Code | LoopCode
    shape: tuple[int, ...]
    alive: list[Any]
    body: int | None = None  # where the climb of a "path" begins

    @property
    def signature(self) -> str:
        shapes = (*_input_shapes(self.inputs, self.framed.model), self.shape)
        *inputs, output = (f"({','.join(map(str, shape))})" for shape in shapes)
        return f"{','.join(inputs)}->{output}"

    def ir(self) -> str:
        if isinstance(self.code, Code):
            return unrolled_kernel(self.code, ranks_of(self.inputs), len(self.shape), self.target)
        return loop_kernel(self.code, self.target)

    def key(self) -> str:
        return f"{_text(self.code)}|{self.inputs}|{self.target}|{_CODE_VERSION}"

    def source(self, stage: str) -> str:
        makers: dict[str, Callable[[], str]] = {
            "tape": lambda: _text(self.code), "llvm": self.ir, "asm": lambda: machine.assembly(self.ir()),
            "cuda": self._cuda,
        }  # fmt: skip
        if stage not in makers:
            raise ArgumentError(f"unknown stage {stage!r}; choose one of: {', '.join(makers)}")
        return makers[stage]()

    def _cuda(self) -> str:
        from torsor.kernel.cuda import Kernel

        shapes = _input_shapes(self.inputs, self.framed.model)
        sizes = tuple((name, math.prod(shape)) for name, shape in zip(self.inputs, shapes))
        return Kernel(self.code, sizes, self.shape, self.target.bits).source()

    @property
    def operations(self) -> Operations:
        if isinstance(self.code, Code):
            return Operations.of(self.code)
        return _count(self.code, self.framed, self.body)


# part of every cache key: raise it when the text of kernels changes for the same tape
_CODE_VERSION = 3


def _text(code: Code | LoopCode) -> str:
    if isinstance(code, Code):
        return str(code)
    parts = []
    for p in code.passes:
        parts.append(f"{'outward' if p.outward else 'inward'} pass, start\n{p.start}")
        parts += [f"at {kind.joint} ({kind.form})\n{c}" for kind, c in zip(code.kinds, p.codes)]
    if code.columns:
        for (kind, k), c in code.columns.starts.items():
            parts.append(f"climb from freedom {k} of {code.kinds[kind].joint} ({code.kinds[kind].form})\n{c}")
        parts += [f"climb through {kind.joint} ({kind.form})\n{c}" for kind, c in zip(code.kinds, code.columns.codes)]
        if code.columns.outward:
            parts += [f"outward pass after it\n{c}" for c in code.columns.outward.codes]
    if code.finish:
        parts.append(f"at the base\n{code.finish}")
    return f"{code.algorithm.kind} {code.algorithm.symmetric}\n" + "\n\n".join(parts)


def _count(code: LoopCode, framed: Framed, body: int | None) -> Operations:
    """The exact count for one state: every pass at every body, every climb along its way."""
    bodies = np.bincount(framed.kind, minlength=len(code.kinds))
    total = Operations()
    for p in code.passes:
        total = total + Operations.of(p.start)
        for c, times in zip(p.codes, bodies):
            total = total + Operations.of(c) * int(times)
    if code.finish:
        total = total + Operations.of(code.finish)
    if code.columns and body is not None:  # one climb only
        start, *way = (int(framed.kind[i]) for i in way_to_base(framed.model.parent.tolist(), body))
        total = total + Operations.of(code.columns.starts[start, 0])
        for kind, times in zip(*np.unique(way, return_counts=True)):
            total = total + Operations.of(code.columns.codes[int(kind)]) * int(times)
    elif code.columns:
        model = framed.model
        freedoms = (model.v_start[1:] - model.v_start[:-1]).copy()
        below = np.zeros(model.n, np.int64)  # freedoms carried by each body: how often a climb comes by
        for i in range(model.n - 1, -1, -1):
            if model.parent[i] >= 0:
                below[model.parent[i]] += below[i] + freedoms[i]
        visits = np.bincount(framed.kind, weights=below, minlength=len(code.kinds)).astype(int)
        for c, times in zip(code.columns.codes, visits):
            total = total + Operations.of(c) * int(times)
        for (kind, _), c in code.columns.starts.items():
            total = total + Operations.of(c) * int(bodies[kind])
        if code.columns.outward:
            for c, times in zip(code.columns.outward.codes, bodies):
                total = total + Operations.of(c) * (int(times) * model.nv)
    return total


# Making programs -----------------------------------------------------------------------------------------------


def compile_program(algorithm: Algorithm, model: Model, *, options: Sequence[str] = (), dtype: str = "float64",
                    specialised: bool | None = None, lanes: int | None = None, threads: int = 1,
                    body: int | None = None) -> Program:  # fmt: skip
    """Compile an algorithm for a model.

    options      optional inputs to take, of those the algorithm has
    specialised  unrolled over this model (True), loops (False), or whichever is faster (None)
    lanes        states side by side; None: as many as the machine's vectors hold
    threads      how many threads large batches are spread over
    """
    dtype = np.dtype(dtype).name
    if dtype not in ("float64", "float32"):
        raise ArgumentError(f"programs compute in float64 or float32, not {dtype}")
    if model.n == 0:
        raise ArgumentError(f"{model!r} has no bodies to compute with")
    bits = 64 if dtype == "float64" else 32
    host = machine.host()
    widest = host.lanes(bits)
    if lanes is not None and lanes not in (1, 2, 4, 8, 16):
        raise ArgumentError(f"lanes must be 1, 2, 4, 8 or 16, not {lanes}")
    target = Target(lanes or widest, bits, host.fma, host.x86)
    inputs = (*algorithm.inputs, *options)
    framed = _framed(model)
    code: Code | LoopCode | None = None
    if algorithm.solve:
        if specialised is False:
            raise ArgumentError(f"{algorithm.name} has no loops: leave out specialised=False or choose another method")
        specialised = True
    if specialised or (specialised is None and model.nv <= UNROLL_FREEDOMS):
        code = unrolled(algorithm, model, inputs, body)
        if specialised is None and sum(Operations.of(code)) > UNROLL_OPERATIONS:
            code = None
    specialised = isinstance(code, Code)
    if isinstance(code, Code):
        shape = shape_of(code)
        data = unrolled_data([*_input_shapes(inputs, model), shape], target)
    else:
        code = _looped(algorithm, inputs, framed.kinds)
        shape = _shape(algorithm, code, model)
        data = loop_data(code, framed, [*_input_shapes(inputs, model), shape], target, body)
    build = _Build(algorithm, framed, inputs, dtype, target, specialised, code, shape, [data], body)
    loaded = _loaded(build.key(), build)
    ufunc, alive = gufunc(loaded.address, data.words.ctypes.data, build.signature, dtype, algorithm.name, "")
    build.alive.extend((alive, loaded))
    program = Program(ufunc if threads == 1 else Threaded(ufunc, build, threads))
    program.build, program.ufunc, program.entry = build, ufunc, (loaded.address, data.words.ctypes.data)
    return program


@functools.lru_cache(maxsize=64)
def _framed(model: Model) -> Framed:
    return reframe(model)


@functools.lru_cache(maxsize=16)
def unrolled(algorithm: Algorithm, model: Model, inputs: tuple[str, ...], body: int | None = None) -> Code:
    """The straight-line code of an algorithm for one model; kept a while, as choosing a method looks at it too."""
    framed = _framed(model)
    return unroll(algorithm, regroup(framed) if algorithm.torques_only else framed, inputs, body)


@functools.lru_cache(maxsize=256)
def _looped(algorithm: Algorithm, inputs: tuple[str, ...], kinds: tuple[Kind, ...]) -> LoopCode:
    return looped(algorithm, inputs, kinds)


_machine_code: dict[str, machine.Loaded] = {}


def _loaded(key: str, build: _Build) -> machine.Loaded:
    """Machine code is shared by all programs of the same code: a loop kernel by all models of its kinds."""
    if key not in _machine_code:
        _machine_code[key] = machine.load(key, build.ir)
    return _machine_code[key]


def _input_shapes(inputs: Sequence[str], model: Model) -> list[tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"q": (model.nq,), "external": (model.n, 6), "acceleration": (6,)}
    return [shapes.get(name, (model.nv,)) for name in inputs]


def _shape(algorithm: Algorithm, code: LoopCode, model: Model) -> tuple[int, ...]:
    if algorithm.kind == "joint":
        return (model.nv,)
    if algorithm.kind == "matrix":
        return (model.nv, model.nv)
    if algorithm.kind == "path":
        return (6, model.nv)
    if algorithm.kind == "body":
        return (model.n, *shape_of(code.passes[-1].codes[0].only(
            name for name in code.passes[-1].codes[0].outputs if name[0] == "out")))
    assert code.finish
    return shape_of(code.finish)


# Threads -------------------------------------------------------------------------------------------------------


@functools.cache
def pool() -> Any:
    """Threads that sleep until there is work (made anew in a forked child, where the old ones are gone)."""
    from concurrent.futures import ThreadPoolExecutor  # 10 ms that most programs never need

    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="torsor")


os.register_at_fork(after_in_child=pool.cache_clear)


class Threaded:
    """A gufunc that cuts large batches into one piece a thread, along the first batch axis."""

    def __init__(self, ufunc: Any, build: _Build, threads: int) -> None:
        self.ufunc, self.threads = ufunc, threads
        self.cores = [2 if name == "external" else 1 for name in build.inputs]
        self.shape, self.dtype = build.shape, build.dtype

    def __call__(self, *args: Any, out: NDArray[Any] | None = None) -> Any:
        arrays = [np.asarray(x) for x in args]
        batches = [x.shape[: x.ndim - core] for x, core in zip(arrays, self.cores)]
        batch = np.broadcast_shapes(*batches)
        pieces = min(self.threads, int(np.prod(batch, dtype=np.int64)) // THREAD_STATES + 1, *batch[:1]) if batch else 1
        if pieces < 2:
            return self.ufunc(*args) if out is None else self.ufunc(*args, out=out)
        result = np.empty(batch + self.shape, self.dtype) if out is None else out
        edges = [batch[0] * k // pieces for k in range(pieces + 1)]

        def piece(k: int) -> None:
            cut = slice(edges[k], edges[k + 1])
            parts = [
                x[cut] if len(b) == len(batch) and b[0] == batch[0] else x for x, b in zip(arrays, batches)
            ]
            self.ufunc(*parts, out=result[cut])

        jobs = [pool().submit(piece, k) for k in range(1, pieces)]
        piece(0)
        for job in jobs:
            job.result()
        return result
