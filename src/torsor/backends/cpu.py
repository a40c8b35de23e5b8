"""`Program`: a compiled function of one model.

To run, a kernel needs its machine code and an `Outline`, which says how to pass the model to it.  Both are stored on
disk under names that are known without tracing.  So a program that was made before starts in milliseconds, and its tape
is traced only when the caller asks to see it.
"""

from __future__ import annotations

import functools
import json
import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor import validate
from torsor.backends import cache, codegen
from torsor.backends.gufunc import gufunc, signature
from torsor.backends.turning import provide
from torsor.compiler.abi import Layout, loop_data, unrolled_data
from torsor.compiler.frames import Kind
from torsor.compiler.request import QUICK, Request, Unrolling
from torsor.errors import ArgumentError
from torsor.inputs import place_of
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.sweeps import Algorithm

if TYPE_CHECKING:
    from torsor.compiler.tape import Operations

# A batch of fewer states than this is not divided among threads.
THREAD_STATES = 16384


class Program(functools.partial):
    """Run a function compiled for one model: called like the original torsor function, without the model.

    It is a `functools.partial` of a NumPy generalised ufunc, so a call has no extra cost. Batch axes broadcast,
    inputs are cast, `out=` is filled in place and the GIL is released. Inputs are not checked.

    Attributes
    ----------
    lanes, threads : int
        States computed side by side; threads that share a large batch.
    signature : str
        The signature of the generalised ufunc, such as "(6),(6),(6)->(6)".

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> program = ts.compile(ts.zoo.pendulum(), ts.forward_dynamics)
    >>> program.inputs, program.shape, program.signature
    (('q', 'v', 'tau'), (1,), '(1),(1),(1)->(1)')
    >>> program(np.zeros((5, 1)), np.zeros(1), np.ones(1)).shape
    (5, 1)
    """

    request: Request
    outline: Outline
    rows: Callable[..., Any]  # the same function, but with all results of a state in one row
    ufunc: np.ufunc  # `rows` on one thread; it keeps the machine code alive
    entry: tuple[int, int]  # the addresses of the ufunc's inner loop and its data, valid while the ufunc lives
    lanes: int
    threads: int
    signature: str

    def __repr__(self) -> str:
        how = "unrolled" if self.specialised else "looped"
        return f"<{self.name} of {self.model!r}: {self.dtype}, {self.lanes} lanes, {how}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle or a copy holds the request and compiles it again."""
        return _compile_again, (self.request, self.lanes, self.threads)

    def __deepcopy__(self, memo: Any) -> Program:
        return self  # it is immutable

    @property
    def model(self) -> Model:
        """The model for which it was compiled."""
        return self.request.model

    @property
    def name(self) -> str:
        """What it computes."""
        return self.request.algorithm.name

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its arguments, in order."""
        return self.request.inputs

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its numbers."""
        return np.dtype(self.request.dtype)

    @property
    def specialised(self) -> bool:
        """Whether it is unrolled over this model; otherwise it loops over the bodies."""
        return self.outline.layout is None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a result, for one state."""
        return self.outline.shape

    @property
    def operations(self) -> Operations:
        """The number of operations of each type for one state; a named tuple."""
        return self.request.operations

    @property
    def operations_per_joint(self) -> dict[Kind, Operations]:
        """For loops: the operations for one body, by the type of its joint."""
        return self.request.operations_per_joint

    @property
    def operations_formula(self) -> str:
        """For loops: the operations as functions a n + b of the number n of bodies."""
        return self.request.operations_formula

    def source(self, stage: str = "tape") -> str:
        """Show the code at a stage of compilation.

        Parameters
        ----------
        stage : str, default "tape"
            "tape", "llvm", "asm", "cuda" or "c".

        Returns
        -------
        text : str
            The code.

        Raises
        ------
        ArgumentError
            There is no such stage.
        """
        return _cpu_code().source(self.request, self.lanes, stage)


def _cpu_code() -> Any:
    from torsor.backends import cpu_code  # a program that is found on disk needs none of it

    return cpu_code


class Outline(NamedTuple):
    """The data needed to run a kernel."""

    kernel: str  # the name of its machine code
    shape: tuple[int, ...]  # the shape of the output, for one state
    layout: Layout | None  # the layout of a loop kernel

    def to_json(self) -> str:
        return json.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> Outline:
        kernel, shape, layout = json.loads(text)
        return cls(kernel, tuple(shape), Layout(*layout) if layout else None)


def compile_program(algorithm: Algorithm, model: Model, *, options: Sequence[str] = (), dtype: str = "float64",
                    unroll: Unrolling = QUICK, lanes: int | None = None, threads: int = 1,
                    frame: Frame | None = None) -> Program:  # fmt: skip
    """Compile an algorithm for a model.

    options      the optional inputs of the algorithm to take
    unroll       the size up to which code is unrolled over this model; larger code loops over the bodies
    lanes        states computed side by side; None: as many as fit a vector of the machine
    threads      the number of threads that share a large batch
    frame        the frame of a Jacobian
    """
    return compile_request(Request(algorithm, model, options=options, dtype=dtype, frame=frame, unroll=unroll), lanes,
                           threads)  # fmt: skip


def compile_request(request: Request, lanes: int | None = None, threads: int = 1) -> Program:
    """The program of a request."""
    validate.integer("threads", threads, least=1)
    if lanes is not None and validate.integer("lanes", lanes) not in (1, 2, 4, 8, 16):
        raise ArgumentError(f"lanes must be 1, 2, 4, 8 or 16, not {lanes}")
    lanes = lanes or codegen.host().lanes(request.bits)
    outline = outline_of(request, lanes)
    shapes = [*request.input_shapes, outline.shape]
    if outline.layout is None:
        data = unrolled_data(shapes, request.bits)
    else:
        data = loop_data(outline.layout, request.frames, shapes, request.bits, request.frame)
    loaded = _loaded(outline.kernel, request, lanes)
    provide(lanes, request.bits)
    entry = loaded.address, data.words.ctypes.data
    ufunc = gufunc(*entry, signature(shapes), request.dtype, request.algorithm.name, "", (loaded, data))
    function: Any = ufunc
    if threads > 1:
        function = Threaded(ufunc, request.inputs, outline.shape, request.dtype, threads)
    program = Program(request.split(function))
    program.request, program.lanes, program.threads, program.outline = request, lanes, threads, outline
    program.rows, program.ufunc, program.entry, program.signature = function, ufunc, entry, signature(shapes)
    return program


def _compile_again(request: Request, lanes: int, threads: int) -> Program:
    """Unpickle a program, perhaps on another machine."""
    return compile_request(request, min(lanes, codegen.host().lanes(request.bits)), threads)


def outline_of(request: Request, lanes: int) -> Outline:
    """The outline: cached from an earlier run, or computed by tracing."""

    def traced() -> Outline:
        return Outline(*_cpu_code().outline(request, lanes))

    if request.home is None:
        return traced()
    key = "outline", *request.key, lanes, codegen.host(), codegen.level(), cache.sources()
    return Outline.from_json(cache.remembered(repr(key), lambda: traced().to_json()))


_machine_code: weakref.WeakValueDictionary[str, codegen.Loaded] = weakref.WeakValueDictionary()


def _loaded(name: str, request: Request, lanes: int) -> codegen.Loaded:
    """Machine code, shared by all programs of the same code: all models of the same kinds share a loop kernel."""
    loaded = _machine_code.get(name)
    if loaded is None:
        loaded = _machine_code[name] = codegen.load(name, lambda: _cpu_code().ir(request, lanes))
    return loaded


# Threads -------------------------------------------------------------------------------------------------------


@functools.cache
def pool() -> Any:
    """Threads that sleep until there is work.  (A forked child makes new threads, because threads are not
    inherited.)"""
    from concurrent.futures import ThreadPoolExecutor  # importing takes 10 ms, which most programs can save

    return ThreadPoolExecutor(cores(), thread_name_prefix="torsor")


def cores() -> int:
    """The number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


if hasattr(os, "register_at_fork"):  # not on systems without fork
    os.register_at_fork(after_in_child=pool.cache_clear)


class Threaded:
    """A gufunc that cuts large batches into one piece per thread, along the first batch axis."""

    def __init__(self, ufunc: Any, inputs: Sequence[str], shape: tuple[int, ...], dtype: str, threads: int) -> None:
        self.ufunc, self.threads = ufunc, threads
        self.cores = [place_of(name).rank for name in inputs]
        self.shape, self.dtype = shape, dtype

    def __call__(self, *args: Any, out: NDArray[Any] | None = None) -> Any:
        if len(args) == len(self.cores) + 1 and out is None:
            *args, out = args  # type: ignore[assignment]
        if len(args) != len(self.cores):
            return self.ufunc(*args, out=out)  # NumPy reports the error
        arrays = [np.asarray(x) for x in args]
        batches = [x.shape[: x.ndim - core] for x, core in zip(arrays, self.cores)]
        batch = np.broadcast_shapes(*batches)
        pieces = min(self.threads, int(np.prod(batch, dtype=np.int64)) // THREAD_STATES + 1, *batch[:1]) if batch else 1
        if out is not None and (
            getattr(out, "shape", None) != batch + self.shape or any(np.may_share_memory(out, x) for x in arrays)
        ):
            pieces = 1  # NumPy handles overlap only within one piece: it would not see the writes of other pieces
        if pieces < 2:
            return self.ufunc(*args) if out is None else self.ufunc(*args, out=out)
        result = np.empty(batch + self.shape, self.dtype) if out is None else out
        edges = [batch[0] * k // pieces for k in range(pieces + 1)]

        def piece(k: int) -> None:
            cut = slice(edges[k], edges[k + 1])
            parts = [x[cut] if len(b) == len(batch) and b[0] == batch[0] else x for x, b in zip(arrays, batches)]
            self.ufunc(*parts, out=result[cut])

        jobs = [pool().submit(piece, k) for k in range(1, pieces)]
        piece(0)
        for job in jobs:
            job.result()
        return result
