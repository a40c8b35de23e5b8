"""A stand-in for CuPy and the CUDA driver on machines without a GPU: device arrays are NumPy arrays that say they lie
on a device, and a kernel records what it was launched with, then runs on the host where a C++ compiler is there."""

from __future__ import annotations

import ctypes
import re
from contextlib import nullcontext
from types import SimpleNamespace
from weakref import WeakValueDictionary

import cuda_host
import numpy as np

from torsor.backends import cuda_launch, gpu

GUARD = 1 << 16  # numbers behind every empty array, which no kernel may touch: some hundred rows of scratch memory
GUARDED = WeakValueDictionary()  # by identity: arrays compare entry by entry


class Array(np.ndarray):
    """Lies on a CUDA device, or so it says."""

    guard = None

    def __dlpack_device__(self):
        return (2, 0)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


def on_device(x, dtype=None):
    return np.asarray(x, dtype).view(Array)


class Function:
    """A kernel; `launches` holds the grid, the block and the arguments of every launch."""

    num_regs, max_dynamic_shared_size_bytes = 64, 0

    handles = {}  # noqa: RUF012  of all functions, as the driver knows them

    def __init__(self, source):
        self.source, self.launches = source, []
        self.kernel = SimpleNamespace(ptr=1000 + len(self.handles))
        self.handles[self.kernel.ptr] = self

    def __call__(self, grid, block, arguments, shared_mem=0):
        self.launches.append(SimpleNamespace(grid=grid, block=block, arguments=arguments, shared=shared_mem))
        if cuda_host.compiler():
            cuda_host.launch(self.source, grid[0], arguments, threads=block[0])
        for array in list(GUARDED.values()):  # launches may bring addresses alone
            assert (array.guard == -99).all(), "a kernel wrote behind the end of an array"


def launch(function, blocks, y, z, threads, ty, tz, shared, stream, table, extra):
    """cuLaunchKernel: reads the arguments as the kernel declares them, and launches it as CuPy does."""
    function = Function.handles[function.value]
    declared = re.search(r"__global__[^{;]*\nkernel\((.*?)\) \{", function.source).group(1).split(",")
    values = []
    if isinstance(table, int):  # an address
        table = (ctypes.c_void_p * len(declared)).from_address(table)
    for place, parameter in zip(table, declared, strict=True):
        if "*" in parameter:
            values.append(cuda_host.Pointer(ctypes.c_void_p.from_address(place).value))
        else:
            number = ctypes.c_longlong if "long long" in parameter else ctypes.c_int
            values.append((np.int64 if number is ctypes.c_longlong else np.int32)(number.from_address(place).value))
    assert [x.value for x in (y, z, ty, tz)] == [1] * 4

    def run():
        Function.__call__(function, (blocks.value,), (threads.value,), tuple(values), shared.value)
        function.launches[-1].stream = stream.value

    if Stream.captured is None:
        run()
    else:
        Stream.captured.append(run)
    return 0


def install(monkeypatch, module):
    """torsor finds this CuPy, and this driver."""
    monkeypatch.setattr(gpu, "cupy", lambda: module)
    monkeypatch.setattr(cuda_launch, "driver", lambda: launch)


class Cupy(SimpleNamespace):
    """What torsor uses of CuPy; `functions` are the kernels it compiled, `free` the bytes of free memory."""

    def __init__(self, free=2**30, devices=1):
        self.functions = []
        errors = {"CompileException": type("CompileException", (Exception,), {})}
        driver = {"CUDADriverError": type("CUDADriverError", (Exception,), {})}
        super().__init__(
            ndarray=Array,
            asarray=on_device,
            asnumpy=np.array,
            empty=_empty,
            zeros=lambda shape, dtype=float: np.zeros(shape, dtype).view(Array),
            eye=lambda n, dtype=float: np.eye(n, dtype=dtype).view(Array),
            broadcast_to=lambda x, shape: np.broadcast_to(x, shape, subok=True),
            ascontiguousarray=lambda x: np.ascontiguousarray(x).view(Array),
            get_default_memory_pool=lambda: SimpleNamespace(free_bytes=lambda: 0),
            RawModule=self._module,
            cuda=SimpleNamespace(
                compiler=SimpleNamespace(**errors),
                driver=SimpleNamespace(**driver),
                get_current_stream=Stream,
                Stream=Stream,
                MemoryPool=lambda: SimpleNamespace(malloc=None),
                using_allocator=lambda allocator: nullcontext(),
                Device=lambda: SimpleNamespace(id=0, attributes={"MultiProcessorCount": 2}),
                runtime=SimpleNamespace(
                    getDeviceCount=lambda: devices,
                    getDevice=lambda: 0,
                    memGetInfo=lambda: (free, free),
                    getDeviceProperties=lambda device: {"name": b"stand-in"},
                ),
            ),
        )

    def _module(self, code, options):
        self.functions.append(Function(code))
        return SimpleNamespace(get_function=lambda name: self.functions[-1])


def _empty(shape, dtype=float):
    size = int(np.prod(shape))
    whole = np.full(size + GUARD, np.nan if np.dtype(dtype).kind == "f" else 99, dtype)
    whole[size:] = -99
    found = whole[:size].reshape(shape).view(Array)
    found.guard = whole[size:]
    GUARDED[id(found)] = found
    return found


class Stream:
    """A stream; while one is captured, launches of the driver become a graph and are not run."""

    ptr, captured = 7, None

    def __init__(self, non_blocking=False):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def record(self):
        return "event"

    def wait_event(self, event):
        assert event == "event"

    def synchronize(self):
        assert not self.is_capturing()

    def is_capturing(self):
        return Stream.captured is not None

    def begin_capture(self):
        Stream.captured = []

    def end_capture(self):
        runs, Stream.captured = Stream.captured, None
        return SimpleNamespace(launch=lambda stream: [run() for run in runs])
