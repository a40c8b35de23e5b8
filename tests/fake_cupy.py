"""A stand-in for CuPy on machines without a GPU: device arrays are NumPy arrays that say they lie on a device, and a
kernel records what it was launched with, then runs on the host where a C++ compiler is there."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import cuda_host
import numpy as np

GUARD = 1 << 16  # numbers behind every empty array, which no kernel may touch: some hundred rows of scratch memory


class Array(np.ndarray):
    """Lies on a CUDA device, or so it says."""

    guard = None

    def __dlpack_device__(self):
        return (2, 0)


def on_device(x, dtype=None):
    return np.asarray(x, dtype).view(Array)


class Function:
    """A kernel; `launches` holds the grid, the block and the arguments of every launch."""

    num_regs, max_dynamic_shared_size_bytes = 64, 0

    def __init__(self, source):
        self.source, self.launches = source, []

    def __call__(self, grid, block, arguments, shared_mem=0):
        self.launches.append(SimpleNamespace(grid=grid, block=block, arguments=arguments, shared=shared_mem))
        if cuda_host.compiler():
            cuda_host.launch(self.source, grid[0], arguments, threads=block[0])
        for array in arguments:
            guard = getattr(array, "guard", None)
            assert guard is None or (guard == -99).all(), "a kernel wrote behind the end of an array"


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
                get_current_stream=_stream,
                Device=lambda: SimpleNamespace(id=0, attributes={"MultiProcessorCount": 2}),
                runtime=SimpleNamespace(
                    getDeviceCount=lambda: devices,
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
    return found


@contextmanager
def _stream():
    yield "stream"
