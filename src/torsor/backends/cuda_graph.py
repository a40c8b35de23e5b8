"""Many launches as one CUDA graph: recorded once, then launched by one call of the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torsor.backends.gpu import cupy, kind_of, torch_module


def recorded(step: Callable[..., Any], arrays: Sequence[Any]) -> tuple[Any, Callable[[], None], Any]:
    """(the result of a function of GPU arrays, a function that launches all its kernels again, objects to keep alive).

    The function is first called without recording, because compiling and loading kernels and allocating memory cannot
    be recorded.  The memory of all its arrays is reserved, because every launch uses it again.
    """
    return _in_torch(step, arrays) if kind_of(arrays[0]) == "torch" else _in_cupy(step, arrays)


def _in_cupy(step: Callable[..., Any], arrays: Sequence[Any]) -> tuple[Any, Callable[[], None], Any]:
    cp = cupy()
    current = cp.cuda.get_current_stream
    stream, memory = cp.cuda.Stream(non_blocking=True), cp.cuda.MemoryPool()
    ready = current().record()
    with stream, cp.cuda.using_allocator(memory.malloc):
        stream.wait_event(ready)
        for _ in range(2):  # the second call is like all later ones
            step(*arrays)
        stream.synchronize()
        stream.begin_capture()
        try:
            results = step(*arrays)
        finally:
            graph = stream.end_capture()
    return results, lambda: graph.launch(current()), memory


def _in_torch(step: Callable[..., Any], arrays: Sequence[Any]) -> tuple[Any, Callable[[], None], Any]:
    torch = torch_module()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step(*arrays)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        results = step(*arrays)
    return results, graph.replay, None
