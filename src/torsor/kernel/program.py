"""`Program`: a compiled function of one model.

What a kernel needs to run (its machine code, and an `Outline` of how it wants to be told of a model) is kept on disk
under a name that is known without tracing anything.  So a program that was made before starts in milliseconds, and
the tape behind it is traced only when somebody asks to see it.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import sys
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ArgumentError
from torsor.kernel import cache, machine
from torsor.kernel.data import Layout, input_shapes, loop_data, unrolled_data
from torsor.kernel.frames import Kind, framed
from torsor.kernel.gufunc import gufunc, signature
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.outputs import place_of
from torsor.sweeps import Algorithm

if TYPE_CHECKING:
    from torsor.kernel.build import Build
    from torsor.kernel.tape import Operations


class Unrolling(NamedTuple):
    """Up to how many freedoms, and operations, code is unrolled over one model.

    Unrolled code beats loops by 1.2 to 2.1 times while it fits the caches (bench/results/unrolling.json), but it is
    compiled for every model anew, 1000 operations in 0.15 s; a loop is shared by all models of its kinds.
    """

    freedoms: float
    operations: float


QUICK = Unrolling(12, 4500)  # for a call that should not wait long for a model not met before
PATIENT = Unrolling(40, 6000)  # for a program somebody asked for
ALWAYS, NEVER = Unrolling(math.inf, math.inf), Unrolling(0, 0)
# Below this many states a batch is not worth handing to other threads.
THREAD_STATES = 16384


class Program(functools.partial):
    """A compiled function: call it like the torsor function it was made from, without the model.

    It is a `functools.partial` of a NumPy generalised ufunc (so that calling it costs nothing more): batch
    axes broadcast, inputs are cast, `out=` is filled in place and the GIL is released.

    model, name, dtype, lanes, specialised   what it computes, and how
    inputs, shape, signature                 its arguments, and the shape of a result for one state
    operations                               exact counts for one state
    operations_per_joint                     loops: the counts of one body, by kind of joint
    operations_formula                       loops: the counts as functions a n + b of the number n of bodies, were
                                             there more of the most common kind
    source("tape" | "llvm" | "asm" | "cuda" | "c")  the code at each stage
    """

    request: Request
    outline: Outline
    ufunc: np.ufunc  # one thread; it keeps the machine code alive
    entry: tuple[int, int]  # the addresses of the ufunc's inner loop and of its data, good while the ufunc lives
    threads: int

    def __repr__(self) -> str:
        how = "unrolled" if self.specialised else "looped"
        return f"<{self.name} of {self.model!r}: {self.dtype}, {self.lanes} lanes, {how}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as what to compile."""
        return _compile_again, (self.request, self.threads)

    def __deepcopy__(self, memo: Any) -> Program:
        return self  # nothing in it can change

    @property
    def model(self) -> Model:
        return self.request.model

    @property
    def name(self) -> str:
        return self.request.algorithm.name

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.request.inputs

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.request.dtype)

    @property
    def lanes(self) -> int:
        return self.request.lanes

    @property
    def specialised(self) -> bool:
        return self.outline.layout is None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.outline.shape

    @property
    def signature(self) -> str:
        return signature(self.request.shapes(self.outline))

    @property
    def operations(self) -> Operations:
        return self.request.build.operations

    @property
    def operations_per_joint(self) -> dict[Kind, Operations]:
        return self.request.build.operations_per_joint

    @property
    def operations_formula(self) -> str:
        return self.request.build.operations_formula

    def source(self, stage: str = "tape") -> str:
        return self.request.build.source(stage)


class Outline(NamedTuple):
    """What must be known of a kernel to run it."""

    kernel: str  # the name of its machine code
    shape: tuple[int, ...]  # of the output, for one state
    layout: Layout | None  # of a loop kernel

    def to_json(self) -> str:
        return json.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> Outline:
        kernel, shape, layout = json.loads(text)
        return cls(kernel, tuple(shape), Layout(*layout) if layout else None)


class Request:
    """A program asked for."""

    def __init__(self, algorithm: Algorithm, model: Model, inputs: tuple[str, ...], dtype: str, lanes: int,
                 unroll: Unrolling, frame: Frame | None) -> None:  # fmt: skip
        self.algorithm, self.model, self.inputs, self.dtype = algorithm, model, inputs, dtype
        self.lanes, self.unroll, self.frame = lanes, unroll, frame

    def __getstate__(self) -> dict[str, Any]:
        """An algorithm goes by the name of its module and its own: its steps are functions that no pickle holds."""
        home = _home(self.algorithm)
        if home is None:
            raise ArgumentError(f"{self.algorithm.name} is not an algorithm of torsor's own, and cannot be pickled")
        state = {name: x for name, x in vars(self).items() if name != "build"}
        return state | {"algorithm": home}

    def __setstate__(self, state: dict[str, Any]) -> None:
        module, _, name = state["algorithm"].rpartition(".")
        self.__dict__ |= state | {"algorithm": getattr(importlib.import_module(module), name)}

    @property
    def bits(self) -> int:
        return 64 if self.dtype == "float64" else 32

    @functools.cached_property
    def build(self) -> Build:
        """The code, traced now."""
        from torsor.kernel.build import Build, loops, unrolled
        from torsor.kernel.llvm import Target
        from torsor.kernel.tape import Operations

        host = machine.host()
        target = Target(self.lanes, self.bits, host.fma, host.x86)
        code: Any = None
        if self.may_unroll:
            code = unrolled(self.algorithm, self.model, self.inputs, self.frame)
            if self.algorithm.has_loops and sum(Operations.of(code)) > self.unroll.operations:
                code = None
        code = code or loops(self.algorithm, self.model, self.inputs)
        return Build(self.algorithm, self.model, self.inputs, target, code, self.frame)

    @property
    def may_unroll(self) -> bool:
        """Whether code for this model alone comes into question."""
        return not self.algorithm.has_loops or self.model.nv <= self.unroll.freedoms

    def outline(self) -> Outline:
        """Remembered from an earlier run, or found by tracing."""
        algorithm, model = _home(self.algorithm), self.model
        if algorithm is None:
            return self._trace()
        code: tuple[Any, ...] = framed(model).kinds, model.n, model.nv
        if self.may_unroll:
            code = model.key, self.frame and self.frame.key, self.unroll
        key = "outline", algorithm, code, self.inputs, self.dtype, self.lanes, machine.host(), cache.SOURCES
        return Outline.from_json(cache.remembered(repr(key), lambda: self._trace().to_json()))

    def _trace(self) -> Outline:
        from torsor.kernel.trace import LoopCode

        build = self.build
        return Outline(build.name(), build.shape, build.code.layout if isinstance(build.code, LoopCode) else None)

    def shapes(self, outline: Outline) -> list[tuple[int, ...]]:
        """Of the inputs and of the output, for one state."""
        return [*input_shapes(self.inputs, self.model), outline.shape]


def _home(algorithm: Algorithm) -> str | None:
    """Where one of torsor's own algorithms is defined.  Of any other nobody knows when it changes."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torsor.algorithms."):
            for attribute, value in list(vars(module).items()):
                if value is algorithm:
                    return f"{name}.{attribute}"
    return None


def compile_program(algorithm: Algorithm, model: Model, *, options: Sequence[str] = (), dtype: str = "float64",
                    unroll: Unrolling = QUICK, lanes: int | None = None, threads: int = 1,
                    frame: Frame | None = None) -> Program:  # fmt: skip
    """Compile an algorithm for a model.

    options      optional inputs to take, of those the algorithm has
    unroll       over this model, up to how many operations; beyond, loops over its bodies
    lanes        states side by side; None: as many as the machine's vectors hold
    threads      how many threads large batches are spread over
    frame        of a Jacobian
    """
    dtype = np.dtype(dtype).name
    if dtype not in ("float64", "float32"):
        raise ArgumentError(f"programs compute in float64 or float32, not {dtype}")
    if not isinstance(threads, int | np.integer) or threads < 1:
        raise ArgumentError(f"threads must be a number of threads, 1 or more, not {threads!r}")
    if model.n == 0:
        raise ArgumentError(f"{model!r} has no bodies to compute with")
    if lanes is not None and lanes not in (1, 2, 4, 8, 16):
        raise ArgumentError(f"lanes must be 1, 2, 4, 8 or 16, not {lanes}")
    if not algorithm.has_loops and unroll is NEVER:
        raise ArgumentError(f"{algorithm.name} has no loops: leave out specialised=False or choose another method")
    lanes = lanes or machine.host().lanes(64 if dtype == "float64" else 32)
    inputs = (*algorithm.inputs, *options)
    return _compiled(Request(algorithm, model, inputs, dtype, lanes, unroll, frame), threads)


def _compiled(request: Request, threads: int) -> Program:
    model, dtype = request.model, request.dtype
    if request.bits == 32:
        framed(model).check_single()
    outline = request.outline()
    shapes = request.shapes(outline)
    if outline.layout is None:
        data = unrolled_data(shapes, request.bits)
    else:
        data = loop_data(outline.layout, framed(model), shapes, request.bits, request.frame)
    loaded = _loaded(outline.kernel, request)
    entry = loaded.address, data.words.ctypes.data
    ufunc = gufunc(*entry, signature(shapes), dtype, request.algorithm.name, "", (loaded, data))
    program = Program(ufunc if threads == 1 else Threaded(ufunc, request.inputs, outline.shape, dtype, threads))
    program.request, program.outline, program.ufunc, program.entry = request, outline, ufunc, entry
    program.threads = threads
    return program


def _compile_again(request: Request, threads: int) -> Program:
    """What a pickle holds, on a machine that may be another one."""
    request.lanes = min(request.lanes, machine.host().lanes(request.bits))
    return _compiled(request, threads)


_machine_code: weakref.WeakValueDictionary[str, machine.Loaded] = weakref.WeakValueDictionary()


def _loaded(name: str, request: Request) -> machine.Loaded:
    """Machine code is shared by all programs of the same code: a loop kernel by all models of its kinds."""
    loaded = _machine_code.get(name)
    if loaded is None:
        loaded = _machine_code[name] = machine.load(name, lambda: request.build.ir())
    return loaded


# Threads -------------------------------------------------------------------------------------------------------


@functools.cache
def pool() -> Any:
    """Threads that sleep until there is work (made anew in a forked child, where the old ones are gone)."""
    from concurrent.futures import ThreadPoolExecutor  # 10 ms that most programs never need

    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="torsor")


os.register_at_fork(after_in_child=pool.cache_clear)


class Threaded:
    """A gufunc that cuts large batches into one piece a thread, along the first batch axis."""

    def __init__(self, ufunc: Any, inputs: Sequence[str], shape: tuple[int, ...], dtype: str, threads: int) -> None:
        self.ufunc, self.threads = ufunc, threads
        self.cores = [place_of(name).rank for name in inputs]
        self.shape, self.dtype = shape, dtype

    def __call__(self, *args: Any, out: NDArray[Any] | None = None) -> Any:
        if len(args) == len(self.cores) + 1 and out is None:
            *args, out = args  # type: ignore[assignment]
        if len(args) != len(self.cores):
            return self.ufunc(*args, out=out)  # NumPy says what is wrong
        arrays = [np.asarray(x) for x in args]
        batches = [x.shape[: x.ndim - core] for x, core in zip(arrays, self.cores)]
        batch = np.broadcast_shapes(*batches)
        pieces = min(self.threads, int(np.prod(batch, dtype=np.int64)) // THREAD_STATES + 1, *batch[:1]) if batch else 1
        if out is not None and (
            getattr(out, "shape", None) != batch + self.shape or any(np.may_share_memory(out, x) for x in arrays)
        ):
            pieces = 1  # NumPy knows what to do; of a piece it would not see what the others write
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
