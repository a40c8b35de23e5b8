"""Run a schedule on the CPU: the lanes of a task are the lanes of its vectors, and may be divided among threads."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from torsor.backends.cpu import pool
from torsor.parallel.schedule import LaneTask, LevelSchedule, Operand

Array = NDArray[Any]
# With fewer lanes than this another thread is not worthwhile.
THREAD_LANES = 512


class ScheduleRunner:
    """Memory for one schedule, and its calls, prepared once; a run is a loop over the calls."""

    def __init__(self, schedule: LevelSchedule, threads: int = 1) -> None:
        self.schedule, self.threads = schedule, threads
        self.buffers = {name: np.zeros(size) for name, size in schedule.sizes.items()}
        for name, values in schedule.contents.items():
            self.buffers[name][:] = values
        self._levels = [[self._calls(task) for task in level.tasks] for level in schedule.levels]
        self._lock = threading.Lock()

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Fill the buffers of the inputs, run all levels in order, and return copies of buffers."""
        with self._lock:
            for name, values in inputs.items():
                self.buffers[name][: values.size] = values.ravel()
            for name in self.schedule.cleared:
                self.buffers[name].fill(0.0)
            for level in self._levels:
                for calls in level:
                    _together(calls)
            return [self.buffers[name].copy() for name in outputs]

    def _calls(self, task: LaneTask) -> list[Callable[[], Any]]:
        """The task, cut into one piece per thread."""
        pieces = min(self.threads, max(1, task.lanes // THREAD_LANES))
        edges = [task.lanes * k // pieces for k in range(pieces + 1)]
        return [self._call(task, slice(a, b)) for a, b in pairwise(edges)]

    def _call(self, task: LaneTask, lanes: slice) -> Callable[[], Any]:
        ufunc, shapes = task.operation.ufunc, tuple(task.operation.inputs.values())
        reads = [self._reader(x, shape, lanes) for x, shape in zip(task.reads, shapes)]
        if task.adds:
            return self._adding(task, lanes, reads)
        base = task.write.base[lanes]
        if isinstance(base, range):
            out = self._view(task.write, base, task.operation.shape)
            if all(isinstance(r, np.ndarray) for r in reads):
                return functools.partial(ufunc, *reads, out=out)
            return lambda: ufunc(*(r if isinstance(r, np.ndarray) else r() for r in reads), out=out)
        buffer, index = self.buffers[task.write.buffer], _index(task.write, base, task.operation.shape)

        def scatter() -> None:
            buffer[index] = ufunc(*(r if isinstance(r, np.ndarray) else r() for r in reads))

        return scatter

    def _adding(self, task: LaneTask, lanes: slice, reads: list[Any]) -> Callable[[], Any]:
        """A call that writes the first entries of its result and adds the others in place."""
        operation = task.operation
        ends = np.cumsum([prod(operation.written), *map(prod, operation.adds.values())]).tolist()
        indices = [
            _index(operand, np.asarray(operand.base)[lanes], shape)
            for operand, shape in zip((task.write, *task.adds), (operation.written, *operation.adds.values()))
        ]

        def add() -> None:
            result = operation.ufunc(*(r if isinstance(r, np.ndarray) else r() for r in reads))
            first, *others = np.split(result, ends[:-1], axis=1)
            self.buffers[task.write.buffer][indices[0]] = first
            for operand, index, part in zip(task.adds, indices[1:], others):
                self.buffers[operand.buffer][index] += part.reshape(index.shape)

        return add

    def _reader(self, operand: Operand, shape: tuple[int, ...], lanes: slice) -> Array | Callable[[], Array]:
        """A view of the buffer if the lanes are evenly spaced, else a function that collects them."""
        base = operand.base[lanes]
        if isinstance(base, range):
            return self._view(operand, base, shape)
        buffer, index = self.buffers[operand.buffer], _index(operand, base, shape)
        return lambda: buffer.take(index)

    def _view(self, operand: Operand, base: range, shape: tuple[int, ...]) -> Array:
        buffer = self.buffers[operand.buffer]
        last = base[-1] + sum((n - 1) * s for n, s in zip(shape, operand.strides))
        assert last < buffer.size, f"{operand.buffer} is read or written beyond its end"
        strides = [8 * s for s in (base.step, *operand.strides)]
        return as_strided(buffer[base.start :], (len(base), *shape), strides)


def _index(operand: Operand, base: Array, shape: tuple[int, ...]) -> Array:
    index = np.asarray(base)
    for n, stride in zip(shape, operand.strides):
        index = index[..., None] + stride * np.arange(n)
    return index


def _together(calls: list[Callable[[], Any]]) -> None:
    jobs = [pool().submit(call) for call in calls[1:]]
    calls[0]()
    for job in jobs:
        job.result()
