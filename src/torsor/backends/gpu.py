"""`CudaProgram`: a compiled function of one model for arrays on an NVIDIA GPU.

CUDA C (`cuda.py`) is compiled by NVRTC through CuPy.  Arguments are CuPy, PyTorch or JAX arrays and are read in place;
the result is an array of the same kind.  Work is queued on the caller's stream: nothing is copied to the host, and
nothing waits.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from torsor.backends import cache
from torsor.backends.cuda import REGISTERS, Kernel, Launch
from torsor.backends.cuda_launch import PreparedLaunch
from torsor.backends.cuda_prelude import OPTIONS, TRIGONOMETRY
from torsor.compiler.abi import tree_data
from torsor.compiler.derivative import Derivative
from torsor.compiler.members import Members
from torsor.compiler.packing import Packing
from torsor.compiler.request import ON_GPU, Request
from torsor.compiler.store import store
from torsor.compiler.tape import Code, Operations
from torsor.compiler.trace import LoopCode, shape_of
from torsor.errors import ArgumentError, DeviceError
from torsor.inputs import place_of
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.sweeps import Algorithm
from torsor.validate import NO_VMAP

LONG_CHAIN = 1024  # from this many links on, each link of a chain gets a thread
SCRATCH_SHARE = 0.5  # the largest share of free memory for the scratch memory of loops
TUNING = tuple(Launch(threads, registers) for threads in (64, 128, 256) for registers in (64, 80, 96, 128, 168, 255))
TUNING_SAMPLES, TUNING_RUNS = 5, 10
MOST_LAYOUTS = 256  # layouts of arguments that a program remembers


@functools.cache
def cupy() -> Any:
    """CuPy, or an error that names what is missing."""
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(
            "target='cuda' needs CuPy, which cannot be imported "
            f"({error}); install it with  pip install 'torsor[cuda]'  or use target='cpu'"
        ) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise DeviceError(f"no CUDA driver or GPU was found ({error}); use target='cpu'") from None
    if not count:
        raise DeviceError("no CUDA GPU was found; use target='cpu'")
    return cupy


# Arrays of other libraries -----------------------------------------------------------------------------------


def on_device(x: Any) -> bool:
    """Whether an array reports that it is on a CUDA device (DLPack code 2; 13: managed memory)."""
    try:
        return x.__dlpack_device__()[0] in (2, 13)
    except Exception:  # not an array, or one without numbers, as inside vmap; the conversion reports it later
        return False


def is_long_chain(algorithm: Algorithm, model: Model, first: Any) -> bool:
    """Whether a chain is so long that, for a single state, each link gets a thread (CuPy, float64)."""
    known = in_levels(algorithm)[0] in ("forward_dynamics", "mass_solve", "log_det")
    long = known and model.is_chain and model.n >= LONG_CHAIN and not model.has_degenerate_bodies
    return long and first.ndim == 1 and kind_of(first) == "cupy" and str(first.dtype) == "float64"


def in_levels(algorithm: Algorithm) -> tuple[str, bool]:
    """The function to compute by levels, and whether its vjp is wanted."""
    if isinstance(algorithm, Derivative) and algorithm.mode == "vjp" and algorithm.wrt == algorithm.primal.inputs:
        return algorithm.primal.name, True
    return algorithm.name, False


def _first_on_device(arrays: Iterable[Any], name: str = "this function") -> Any:
    for x in arrays:
        if on_device(x):
            return x
    raise ArgumentError(f"{name} is compiled for the GPU: give it CuPy, PyTorch or JAX arrays there")


def kind_of(x: Any) -> str:
    """The library of an array, or of a type of arrays."""
    root = (x if isinstance(x, type) else type(x)).__module__.partition(".")[0]
    return {"torch": "torch", "jax": "jax", "jaxlib": "jax"}.get(root, "cupy")


def torch_module() -> Any:
    """PyTorch, which the caller's arrays have imported."""
    return sys.modules["torch"]


def stream(kind: str) -> Any:
    """The caller's stream, for CuPy."""
    cp = cupy()
    if kind != "torch":
        return cp.cuda.get_current_stream()
    number = torch_module().cuda.current_stream().cuda_stream
    known = getattr(cp.cuda.Stream, "from_external", None)  # before CuPy 14
    return known(_Stream(number)) if known else cp.cuda.ExternalStream(number)


class _Stream(NamedTuple):
    """A stream of another library, in the form that CuPy takes."""

    number: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.number


def as_cupy(x: Any, kind: str) -> Any:
    """The same memory as a CuPy array; JAX makes our stream wait until the numbers are computed."""
    cp = cupy()
    try:
        if kind == "torch":
            return cp.asarray(x.detach())
        if kind == "jax":
            return cp.from_dlpack(x)
        return x if isinstance(x, cp.ndarray) else cp.asarray(x)
    except Exception as error:  # whatever a library raises for an array without numbers
        raise ArgumentError(f"an array of {kind} has no numbers to read: {error}. {NO_VMAP}") from None


def empty(kind: str, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array for the result, from the allocator of the caller's library."""
    if kind == "torch":
        return torch_module().empty(shape, dtype=getattr(torch_module(), dtype), device=like.device)
    return cupy().empty(shape, dtype)


def given_back(kind: str, x: Any) -> Any:
    """A CuPy array as an array of the caller's library."""
    if kind == "torch":
        return torch_module().from_dlpack(x)
    return _as_jax(x) if kind == "jax" else x


def _as_jax(x: Any) -> Any:
    from jax import dlpack

    return dlpack.from_dlpack(x)


# Arrays in known layouts ----------------------------------------------------------------------

Layout = tuple[Any, ...]  # the library of an array, its shape, strides, type and device
READ = {
    "cupy": lambda x: (("cupy", x.shape, x.strides, x.dtype), x.data.ptr),
    "torch": lambda x: (("torch", x.shape, x.stride(), x.dtype, x.get_device()), x.data_ptr()),
    "jax": lambda x: (("jax", x.shape, x.dtype, x.device), _address_in_jax(x)),
}


def _reader(array: type) -> Callable[[Any], tuple[Layout, int]]:
    """A function that returns the layout and the address of arrays of a type, without a call of the CUDA runtime.

    It raises an error for an array without an address, or without one yet.
    """
    kind = kind_of(array)
    return _unreadable if kind == "cupy" and not issubclass(array, cupy().ndarray) else READ[kind]


reader: Callable[[type], Callable[[Any], tuple[Layout, int]]] = functools.cache(_reader)


def _unreadable(x: Any) -> tuple[Layout, int]:
    raise LookupError(type(x))


def _address_in_jax(x: Any) -> int:
    if not x.is_ready():
        raise LookupError("JAX still computes it; through DLPack, our stream waits for it, and the host does not")
    return x.unsafe_buffer_pointer()


def _stream_number(kind: str, like: Any) -> int:
    """The caller's stream, for the driver."""
    if kind != "torch":
        return cupy().cuda.get_current_stream().ptr
    quick = getattr(torch_module()._C, "_cuda_getCurrentRawStream", None)
    device = like.get_device()
    return quick(device) if quick else torch_module().cuda.current_stream(device).cuda_stream


@dataclass
class Bound:
    """A program with arguments of one layout.

    launch    None for an empty batch
    shape     of the result
    scratch   the scratch memory of loops, in numbers
    """

    launch: PreparedLaunch | None
    kind: str
    shape: tuple[int, ...]
    dtype: str
    scratch: int

    def __call__(self, addresses: list[int], args: Sequence[Any], out: Any) -> Any:
        """Queue the kernel for arrays at these addresses; returns the result, for JAX as a CuPy array."""
        kind, like, address = self.kind, args[0], _address_in_torch if self.kind == "torch" else _address
        result = out
        if out is None:
            result = empty(kind, like, self.shape, self.dtype)
            addresses.append(address(result))
        if self.launch:
            if self.scratch:
                memory = empty(kind, like, (self.scratch,), self.dtype)
                addresses.append(address(memory))
            self.launch(addresses, _stream_number(kind, like), _wake)
            if kind == "jax":
                _keep_until_read(args)
        return result


def _address(x: Any) -> int:
    return x.data.ptr


def _address_in_torch(x: Any) -> int:
    return x.data_ptr()


def _wake() -> None:
    cupy().cuda.Device().use()


_arrays_in_use: deque[tuple[Any, Sequence[Any]]] = (
    deque()
)  # JAX arrays, and the events after the kernels that read them


def _keep_until_read(args: Sequence[Any]) -> None:
    """Keep JAX arrays alive until the queued kernels have read them: XLA does not know our stream."""
    event = cupy().cuda.Event(disable_timing=True)
    event.record()
    _arrays_in_use.append((event, args))
    while _arrays_in_use[0][0].done:
        _arrays_in_use.popleft()
        if not _arrays_in_use:
            return


# Programs ----------------------------------------------------------------------------------------------------


class View(NamedTuple):
    """An array in the form of a kernel: number k of state b is at pointer + b * step + k * stride."""

    array: Any
    step: int
    stride: int
    size: int

    @property
    def rows(self) -> bool:
        """Whether states are rows of several numbers, contiguous in memory."""
        return self.stride == 1 and self.step == self.size > 1


def view_of(x: Any, batch: tuple[int, ...], core: tuple[int, ...]) -> View | None:
    """An array, broadcast to batch + core, as a View; None if it must be copied first."""
    size = prod(core)
    if x.flags.c_contiguous and x.shape == batch + core:  # the usual case
        return View(x, size, 1, size)
    itemsize, own = x.dtype.itemsize, x.ndim - len(core)
    strides = [0] * (len(batch) - own) + [0 if n == 1 else s for n, s in zip(x.shape[:own], x.strides)]
    step, stride = _merged(batch, strides), _merged(core, list(x.strides[own:]))
    if step is None or stride is None or step % itemsize or stride % itemsize:
        return None
    return View(x, step // itemsize, stride // itemsize, size)


def _merged(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The common stride of several axes merged into one, or None if there is none."""
    axes = [(n, s) for n, s in zip(shape, strides) if n != 1]
    for (_, outer), (n, inner) in pairwise(axes):
        if outer != n * inner:
            return None
    return axes[-1][1] if axes else 0


def views_of(model: Model, given: Mapping[str, Any], cores: Sequence[tuple[int, ...]],
             dtype: Any) -> tuple[list[View], tuple[int, ...]]:  # fmt: skip
    """Arguments by name as views, and the batch axes to which they broadcast.

    An argument is copied, on the device, only if its type differs or its axes cannot be merged.
    """
    arrays = _in_shape(model, given, cores, dtype)
    batches = {x.shape[: x.ndim - len(core)] for x, core in zip(arrays, cores)}
    try:
        batch = np.broadcast_shapes(*batches) if len(batches) > 1 else batches.pop()
    except ValueError:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in zip(given, arrays))
        raise ArgumentError(f"the batch axes do not go together: {shapes}") from None
    return [_view_or_copy(x, batch, core) for x, core in zip(arrays, cores)], batch


def _view_or_copy(x: Any, batch: tuple[int, ...], core: tuple[int, ...]) -> View:
    """An array as a view, in place if possible."""
    view = view_of(x, batch, core)
    if view is None:
        cp = cupy()
        view = view_of(cp.ascontiguousarray(cp.broadcast_to(x, batch + core)), batch, core)
    assert view
    return view


def _in_shape(model: Model, given: Mapping[str, Any], cores: Sequence[tuple[int, ...]], dtype: Any) -> list[Any]:
    """Arguments by name as CuPy arrays of real numbers of the right shape."""
    cp = cupy()
    arrays = []
    for (name, x), core in zip(given.items(), cores):
        array = as_cupy(x, kind_of(x)) if on_device(x) else cp.asarray(x)
        if array.shape[array.ndim - len(core) :] != core or array.ndim < len(core) or array.dtype.kind not in "fiub":
            wanted = ", ".join(map(str, core))
            raise ArgumentError(f"{name} is {array.dtype} {array.shape}; {model!r} needs real numbers (..., {wanted})")
        arrays.append(array if array.dtype == dtype else array.astype(dtype))
    return arrays


def in_shape(model: Model, given: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
    """Arguments by name as CuPy arrays of real numbers of the right shape."""
    return dict(zip(given, _in_shape(model, given, [place_of(name).shape(model) for name in given], dtype)))


def in_cupy(function: Callable[..., Any], model: Model, given: Mapping[str, Any], dtype: str) -> Any:
    """Run a function of CuPy arrays, on the caller's stream; its named results are arrays of the caller's library."""
    kind = kind_of(_first_on_device(given.values()))
    with stream(kind):
        found = function(*in_shape(model, given, dtype).values())
        return type(found)(*(given_back(kind, cupy().ascontiguousarray(x)) for x in found))


def refuse_recording(what: str) -> None:
    """Raise while a CUDA graph is recorded: copies from the host would happen once, not in every run."""
    if cupy().cuda.get_current_stream().is_capturing():
        raise ArgumentError(f"{what} copies numbers from the host, which a CUDA graph cannot hold: do it outside")


def precision(arrays: Iterable[Any]) -> str:
    """The number type for computing with these arrays on the device."""
    return "float64" if any("float64" in str(getattr(x, "dtype", "")) for x in arrays) else "float32"


def columns(x: Any, core: int, dtype: str) -> Any:
    """An array of the host on the device, with corresponding numbers of all states side by side, as threads read them;
    its last `core` axes are those of a state."""
    cp = cupy()
    axes, batch = tuple(range(x.ndim)), x.ndim - core
    across = cp.ascontiguousarray(cp.asarray(x, dtype).transpose(*axes[batch:], *axes[:batch]))
    return across.transpose(*axes[core:], *axes[:core])


def build(source: str, shared: int = 0) -> Any:
    """The compiled kernel; CuPy stores the binary on disk."""
    cp = cupy()
    try:
        function = cp.RawModule(code=source, options=OPTIONS).get_function("kernel")
        if shared > 48 * 1024:
            function.max_dynamic_shared_size_bytes = shared
    except (cp.cuda.compiler.CompileException, cp.cuda.driver.CUDADriverError) as error:
        raise DeviceError(f"this GPU or its compiler cannot take this kernel: {str(error)[:500]}") from None
    return function


def tree_arguments(kernel: Kernel, request: Request) -> tuple[Any, ...]:
    """The model's tables, on the device."""
    cp = cupy()
    assert isinstance(kernel.code, LoopCode)
    shapes = [*request.input_shapes, kernel.shape]
    words, tables = tree_data(kernel.code, request.frames, shapes, kernel.bits, request.frame)
    return (*words, *(cp.asarray(x) for x in tables))


def scratch_for(kernel: Kernel, model: Model, blocks: int, launch: Launch, function: Any) -> tuple[int, Any]:
    """The number of blocks that can be resident at once, and scratch memory for them."""
    blocks, size = scratch_size(kernel, model, blocks, launch, function)
    return blocks, cupy().empty(size, f"float{kernel.bits}")


def scratch_size(kernel: Kernel, model: Model, blocks: int, launch: Launch, function: Any) -> tuple[int, int]:
    """The number of blocks that can be resident at once, and the size of their scratch memory in numbers."""
    cp = cupy()
    assert isinstance(kernel.code, LoopCode)
    resident = max(1, min(2048 // launch.threads, REGISTERS // (launch.threads * max(32, function.num_regs))))
    layout = kernel.code.layout
    places = Packing.of(layout.matrix, model).count if layout.matrix else 0
    rows = max(1, layout.kept * model.n + layout.handed * (model.n + 1) + places)
    block_bytes = rows * launch.threads * kernel.bits // 8
    pool = cp.get_default_memory_pool()
    free = int((cp.cuda.runtime.memGetInfo()[0] + pool.free_bytes()) * SCRATCH_SHARE)
    processors = cp.cuda.Device().attributes["MultiProcessorCount"]
    blocks = min(blocks, processors * resident, free // block_bytes)
    if blocks < 1:
        raise DeviceError(
            f"{model!r} needs {block_bytes >> 20} MiB of scratch memory for {launch.threads} states, more than half of "
            "what is free on the GPU; free some, or use target='cpu'"
        )
    return blocks, rows * blocks * launch.threads


class CudaProgram:
    """Run a function compiled for one model and the GPU: called with device arrays, without the model.

    Batch axes broadcast; any strides are accepted; `out=` is filled in place. Inputs are not checked: NaN in one
    state gives NaN in that state's result.

    Attributes
    ----------
    launch : Launch
        Threads per block and register limit in use.

    Examples
    --------
    >>> import torsor as ts
    >>> program = ts.compile(ts.zoo.panda(), ts.mass_matrix, target="cuda")  # doctest: +SKIP
    """

    def __init__(self, request: Request, kernel: Kernel) -> None:
        self.request, self.kernel = request, kernel
        self.model, self.inputs, self.frame = request.model, request.inputs, request.frame
        self.launch = _remembered(kernel) or Launch()
        self._modules: dict[tuple[Launch, tuple[bool, ...]], tuple[Any, int]] = {}
        self._cores = request.input_shapes
        self._tree: tuple[Any, ...] | None = None
        self._bound: dict[tuple[Any, ...], Bound] = {}
        self._split = request.split(lambda result: result)

    def __repr__(self) -> str:
        how = "unrolled" if self.specialised else "looped"
        return f"<{self.name} of {self.model!r}: {self.dtype} on CUDA, {self.trig} trigonometry, {how}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle or a copy holds the request and compiles it again."""
        return compile_cuda, (self.request, self.trig)

    @property
    def name(self) -> str:
        """What it computes."""
        return self.request.algorithm.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its numbers."""
        return np.dtype(f"float{self.kernel.bits}")

    @property
    def trig(self) -> str:
        """The kind of its sines and cosines: "accurate" or "fast"."""
        return self.kernel.trig

    @property
    def specialised(self) -> bool:
        """Whether it is unrolled over this model; otherwise it loops over the bodies."""
        return not self.kernel.looped

    @property
    def operations(self) -> Operations:
        """The number of operations of each type for one state; a named tuple."""
        return self.request.operations

    def source(self, stage: str = "tape") -> str:
        """Show the code at a stage of compilation.

        Parameters
        ----------
        stage : str, default "tape"
            "tape" or "cuda".

        Returns
        -------
        text : str
            The code.

        Raises
        ------
        ArgumentError
            There is no such stage.
        """
        makers: dict[str, Callable[[], str]] = {
            "tape": lambda: str(self.kernel.code), "cuda": lambda: self.kernel.source(self.launch),
        }  # fmt: skip
        if stage not in makers:
            raise ArgumentError(f"unknown stage {stage!r}; choose one of: {', '.join(makers)}")
        return makers[stage]()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a result for one state; several results are in one row."""
        return self.kernel.shape

    def __call__(self, *args: Any, out: Any = None) -> Any:
        return self._split(self.rows(*args, out=out))

    def rows(self, *args: Any, out: Any = None) -> Any:
        """Run the program, and return several results in one row, as the kernel writes them.

        Parameters
        ----------
        *args : (...) array_like on the device
            The arguments.
        out : (...) array on the device, optional
            The array for the result.

        Returns
        -------
        row : (...) array
            The result.
        """
        found = self._quick(args, out)
        return self._first(args, out) if found is None else found

    def quick(self, args: Sequence[Any]) -> Any:
        """Run the program for arrays in a known layout.

        Parameters
        ----------
        args : tuple
            The arguments.

        Returns
        -------
        result : array or None
            None for an unknown layout; then nothing was done.
        """
        found = self._quick(args, None)
        return None if found is None else self._split(found)

    def _quick(self, args: Sequence[Any], out: Any) -> Any:
        """As `rows`, or None for an unknown layout."""
        layouts, addresses = [], []
        try:
            for x in args if out is None else (*args, out):
                layout, address = reader(type(x))(x)
                layouts.append(layout)
                addresses.append(address)
            bound = self._bound[cupy().cuda.runtime.getDevice(), out is None, *layouts]
        except Exception:  # whatever an array without an address raises; the slow path reports it
            return None
        result = bound(addresses, args, out)
        return _as_jax(result) if bound.kind == "jax" and out is None else result

    def _first(self, args: Sequence[Any], out: Any) -> Any:
        """A call whose arguments have an unknown layout, or must be copied or converted."""
        like = _first_on_device(args, self.name)
        kind = kind_of(like)
        with stream(kind):
            views, batch = self._views(args)
            shape = (*batch, *self.kernel.shape)
            result = empty(kind, like, shape, self.dtype.name) if out is None else out
            target = as_cupy(result, kind)
            self._check_out(target, batch)
            view = view_of(target, batch, self.kernel.shape)
            if view is None:
                raise ArgumentError(f"out has strides {target.strides}; give a contiguous array")
            views = [*views, view]
            bound = self._bind(views, prod(batch), self.launch, kind, shape)
            bound([x.array.data.ptr for x in views], [like, *args], result)
        self._remember(bound, args, out, views)
        return _as_jax(result) if kind == "jax" and out is None else result

    def _remember(self, bound: Bound, args: Sequence[Any], out: Any, views: Sequence[View]) -> None:
        """Remember this layout if no array was copied; arguments after the first may be CuPy arrays."""
        layouts = []
        for x, view in zip(args if out is None else (*args, out), views):
            try:
                layout, address = reader(type(x))(x)
            except Exception:  # as in `quick`
                return
            if address != view.array.data.ptr or layout[0] not in (bound.kind, "cupy"):
                return
            layouts.append(layout)
        if layouts[0][0] != bound.kind:
            return
        if len(self._bound) >= MOST_LAYOUTS:
            self._bound.clear()
        self._bound[cupy().cuda.runtime.getDevice(), out is None, *layouts] = bound

    def _views(self, args: Sequence[Any]) -> tuple[list[View], tuple[int, ...]]:
        """The arguments as views."""
        if len(args) != len(self.inputs):
            raise ArgumentError(f"{self.name} takes {', '.join(self.inputs)}, not {len(args)} arrays")
        return views_of(self.model, dict(zip(self.inputs, args)), self._cores, self.dtype)

    def _check_out(self, out: Any, batch: tuple[int, ...]) -> None:
        wanted = (*batch, *self.kernel.shape)
        if out.shape != wanted or out.dtype != self.dtype:
            raise ArgumentError(f"out is {out.dtype} {out.shape}; it must be {self.dtype} {wanted}")

    def _bind(self, views: Sequence[View], count: int, launch: Launch, kind: str, shape: tuple[int, ...]) -> Bound:
        """The kernel for arrays in this layout, the result last."""
        scratch, queue = 0, None
        if count:
            rows = tuple(view.rows for view in views)
            function, grid, shared, more, scratch = self.prepared(rows, count, launch)
            places: list[int | None] = [y for view in views for y in (None, view.step, view.stride)]
            queue = PreparedLaunch(function, grid, shared, [*places, count, *more])
        return Bound(queue, kind, shape, self.dtype.name, scratch)

    def prepared(self, rows: tuple[bool, ...], count: int,
                 launch: Launch | None = None) -> tuple[int, tuple[int, int], int, list[int | None], int]:  # fmt: skip
        """Prepare the kernel for a number of states.

        Parameters
        ----------
        rows : tuple of bool
            Which arrays (the result last) have the numbers of a state side by side.
        count : int
            The number of states.
        launch : Launch, optional
            Default: the launch of the program.

        Returns
        -------
        function : int
            The address of the kernel for the driver.
        grid : (2,) tuple of int
            Blocks, and threads per block.
        shared : int
            The shared memory, in bytes.
        more : list
            The arguments after the count; None stands for scratch memory.
        scratch : int
            The scratch memory, in numbers.
        """
        launch = launch or self.launch
        function, shared = self._function(launch, rows)
        blocks, more, scratch = -(-count // launch.threads), [], 0
        if self.kernel.looped:
            if self._tree is None:
                self._tree = tree_arguments(self.kernel, self.request)
            blocks, scratch = scratch_size(self.kernel, self.model, blocks, launch, function)
            more = [*(x.data.ptr if isinstance(x, cupy().ndarray) else int(x) for x in self._tree), None]
        return function.kernel.ptr, (blocks, launch.threads), shared, more, scratch

    def _function(self, launch: Launch, rows: tuple[bool, ...]) -> tuple[Any, int]:
        """The kernel of a launch and a layout (which arrays are rows), and the shared memory of its blocks."""
        if (launch, rows) not in self._modules:
            staged = tuple(a and b for a, b in zip(rows, self.kernel.stageable(launch.threads)))
            shared = self.kernel.shared_bytes(staged, launch.threads)
            self._modules[launch, rows] = build(self.kernel.source(launch, staged), shared), shared
        return self._modules[launch, rows]

    # -- tuning

    def autotune(self, *args: Any, launches: Sequence[Launch] = TUNING) -> Launch:
        """Time launches on these arrays; keep the fastest, and remember it in torsor's cache folder.

        Parameters
        ----------
        *args : (...) array_like on the device
            The arguments of a call.
        launches : sequence of Launch, optional
            The launches to try.

        Returns
        -------
        launch : Launch
            The fastest launch.
        """
        cp = cupy()
        kind = kind_of(args[0])
        with stream(kind):
            views, batch = self._views(args)
            out = cp.empty((*batch, *self.kernel.shape), self.dtype)
            result = view_of(out, batch, self.kernel.shape)
            assert result
            views = [*views, result]
            addresses = [x.array.data.ptr for x in views]
            times: dict[Launch, float] = {}
            for launch in launches:
                try:
                    bound = self._bind(views, prod(batch), launch, "cupy", out.shape)
                    times[launch] = _time(lambda: bound(addresses[:], [out], out), cp)  # noqa: B023
                except DeviceError:
                    continue  # too large for this GPU
        self.launch = min(times, key=lambda launch: times[launch])
        self._bound.clear()
        cache.write(_key(self.kernel), json.dumps(asdict(self.launch)).encode())
        return self.launch


def _time(run: Callable[[], None], cp: Any) -> float:
    """Milliseconds per run: the median of a few samples.  Each sample queues several runs back to back, because a
    single run would include the time that Python takes to queue it."""
    run()
    times = []
    for _ in range(TUNING_SAMPLES):
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        begin.record()
        for _ in range(TUNING_RUNS):
            run()
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(begin, end))
    return float(np.median(times)) / TUNING_RUNS


def _key(kernel: Kernel) -> str:
    """The cache name of the tuned launch for this code on this GPU."""
    cp = cupy()
    device = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["name"]
    text = repr((str(kernel.code), kernel.inputs, kernel.shape, kernel.bits, kernel.trig, device))
    return "launch-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _remembered(kernel: Kernel) -> Launch | None:
    try:
        found = cache.read(_key(kernel))
        return Launch(**json.loads(found)) if found else None
    except (DeviceError, ValueError, TypeError):
        return None  # no GPU here, or a damaged file


def compile_cuda(request: Request, trig: str = "accurate") -> CudaProgram:
    """The program of a request; `trig` is "accurate" or, in float32, "fast"."""
    if trig not in TRIGONOMETRY:
        raise ArgumentError(f"trig must be one of: {', '.join(TRIGONOMETRY)}; not {trig!r}")
    if trig == "fast" and request.dtype == "float64":
        raise ArgumentError("fast trigonometry is for float32; float64 has only the accurate one")
    return CudaProgram(request, Kernel.of(request, trig))


def program(algorithm: Algorithm, model: Model, args: Sequence[Any], options: tuple[str, ...], frame: Frame | None,
            members: Members | None = None) -> CudaProgram:  # fmt: skip
    """The program for device arrays, in their own precision, stored with the model.

    `members`: the models of a batch, whose numbers follow `args` as the last arguments of the program.
    """
    dtype = precision(args)

    def make() -> CudaProgram:
        request = Request(
            algorithm, model, options=options, dtype=dtype, frame=frame, unroll=ON_GPU, members=members
        )  # fmt: skip
        return compile_cuda(request)

    made = members.store if members else store(model)
    return made.once(("cuda", algorithm, frame, dtype, options), make)


class Pointwise:
    """Code of a few scalars on CuPy arrays, like `backends/pointwise.py` for the host; a lane is a thread.

    inputs   the shape of each argument in one lane; batch axes broadcast
    """

    def __init__(self, code: Code, inputs: Mapping[str, tuple[int, ...]], dtype: str = "float64") -> None:
        sizes = tuple((name, prod(shape)) for name, shape in inputs.items())
        self.cores, self.shape, self.dtype = tuple(inputs.values()), shape_of(code), dtype
        self.kernel = Kernel(code, sizes, self.shape, 64 if dtype == "float64" else 32)
        self._function: Any = None

    def __call__(self, *arrays: Any) -> Any:
        cp = cupy()
        batches = {x.shape[: x.ndim - len(core)] for x, core in zip(arrays, self.cores)}
        batch = np.broadcast_shapes(*batches) if len(batches) > 1 else batches.pop()
        views, out = (
            [_view_or_copy(x, batch, core) for x, core in zip(arrays, self.cores)],
            cp.empty(batch + self.shape, self.dtype),
        )
        views.append(View(out, prod(self.shape), 1, prod(self.shape)))
        launch, count = Launch(), prod(batch)
        if count:
            if self._function is None:
                self._function = build(self.kernel.source(launch))
            arguments = [y for x in views for y in (x.array, np.int64(x.step), np.int64(x.stride))]
            self._function((-(-count // launch.threads),), (launch.threads,), (*arguments, np.int64(count)))
        return out


def host_array(x: Any) -> Any:
    """An array on the device as a NumPy array."""
    kind = kind_of(x)
    with stream(kind):
        return cupy().asnumpy(as_cupy(x, kind))


def rows(kind: str, x: Any, batch: tuple[int, ...]) -> Any:
    """(stored, n, count) as (*batch, stored, n), in the caller's library."""
    x = x.reshape(*x.shape[:2], *batch) if kind != "torch" else x.unflatten(2, batch) if batch else x[..., 0]
    order = (*range(2, x.ndim), 0, 1)
    if kind == "torch":
        return x.permute(order)
    x = x.transpose(order)
    return _as_jax(cupy().ascontiguousarray(x)) if kind == "jax" else x
