"""Launches of CUDA kernels that are prepared once: from call to call, only the addresses of arrays change.

The arguments of a kernel are in one block of eight-byte words, and the driver gets a table of their addresses.  A call
writes the addresses of arrays into the block and gives both to cuLaunchKernel, with a stream.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torsor.errors import DeviceError

NO_CONTEXT = (3, 201)  # CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_INVALID_CONTEXT: in a thread that has not used a GPU


@functools.cache
def driver() -> Any:
    """The function cuLaunchKernel of the CUDA driver."""
    try:
        return ctypes.CDLL("nvcuda" if sys.platform == "win32" else "libcuda.so.1").cuLaunchKernel
    except OSError as error:
        raise DeviceError(f"the CUDA driver cannot be loaded ({error}); use target='cpu'") from None


class PreparedLaunch:
    """A kernel, its grid and all its arguments except the addresses of its arrays.

    arguments   numbers, and None for the address of an array; calls give the addresses in this order
    """

    def __init__(self, function: int, grid: tuple[int, int], shared: int, arguments: Sequence[int | None]) -> None:
        blocks, threads = grid
        self._launch = driver()
        count = len(arguments)
        places = [k for k, x in enumerate(arguments) if x is None]
        constant = [k for k, x in enumerate(arguments) if x is not None]
        words = (ctypes.c_int64 * count)(*[0] * len(places), *(arguments[k] for k in constant))  # type: ignore[misc]
        first = ctypes.addressof(words)
        order = {k: at for at, k in enumerate([*places, *constant])}
        self._table = (ctypes.c_void_p * count)(*(first + 8 * order[k] for k in range(count)))
        self._words, self._fill = words, struct.Struct(f"{len(places)}Q").pack_into
        sizes = (blocks, 1, 1, threads, 1, 1, shared)
        self._head = ctypes.c_void_p(function), *map(ctypes.c_uint, sizes)
        self._lock = threading.Lock()

    def __call__(self, addresses: Sequence[int], stream: int, awake: Callable[[], Any]) -> None:
        """Queue the kernel; `awake` initialises the device in a thread that has not used it."""
        handle = ctypes.c_void_p(stream)
        with self._lock:  # another thread may call with arrays of the same layout; the driver copies the block
            self._fill(self._words, 0, *addresses)
            failure = self._launch(*self._head, handle, self._table, None)
            if failure in NO_CONTEXT:
                awake()
                failure = self._launch(*self._head, handle, self._table, None)
        if failure:
            raise DeviceError(f"the GPU refused a kernel: error {failure} of the CUDA driver")
