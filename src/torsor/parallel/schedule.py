"""A schedule: work divided into levels, with independent operations in each level.  It is plain data.

    Operation   a pure function of a few numbers, written over any scalar
    LaneTask        one operation on many lanes, and where each lane reads and writes
    Level       tasks that may all run at once
    LevelSchedule    levels in order, the buffers they work on, and the initial contents of these

A buffer is a flat row of numbers.  Lane l finds entry (i, j, ...) of an operand at

    base[l] + i * strides[0] + j * strides[1] + ...                with base a `range` or an array of places,

so an engine needs no knowledge of mechanics: a CPU runs the lanes of a task as SIMD vectors
(`torsor.parallel.engine`), a GPU runs them as threads of one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends.pointwise import compile_pointwise, trace
from torsor.compiler.tape import Code, Operations, operands

Array = NDArray[Any]
Places = range | Array


class Operation:
    """A pure function of nested lists of scalars; it is traced, counted and compiled on first use.

    adds: parts of a flat result that are added in place, by name; they are the last entries.
    """

    def __init__(self, name: str, function: Callable[..., Any], inputs: Mapping[str, tuple[int, ...]],
                 adds: Mapping[str, tuple[int, ...]] | None = None) -> None:  # fmt: skip
        self.name, self.function, self.inputs, self.adds = name, function, dict(inputs), dict(adds or {})

    @cached_property
    def code(self) -> Code:
        """Its tape: inputs (name, i, ...), outputs ("out", i, ...)."""
        return trace(self.function, self.inputs)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        indices = np.array([name[1:] for name in self.code.outputs])
        return tuple(int(k) + 1 for k in indices.max(axis=0))

    @cached_property
    def written(self) -> tuple[int, ...]:
        """The shape of the part of the result that is not added."""
        return (self.shape[0] - sum(map(prod, self.adds.values())),) if self.adds else self.shape

    @cached_property
    def ufunc(self) -> Any:
        return compile_pointwise(self.function, self.inputs)

    @cached_property
    def operations(self) -> Operations:
        return Operations.of(self.code)

    @cached_property
    def work(self) -> int:
        """Arithmetic operations per lane."""
        return sum(self.operations)

    @cached_property
    def depth(self) -> int:
        """The longest sequence of dependent operations: the time with unlimited parallelism."""
        longest = [0] * len(self.code.nodes)
        for i, node in enumerate(self.code.nodes):
            counts = node.op not in ("in", "const", "neg")
            longest[i] = max((longest[k] for k in operands(node)), default=0) + counts
        return max((longest[i] for i in self.code.outputs.values()), default=0)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.work} operations>"


@dataclass(frozen=True, eq=False)
class Operand:
    """Where the lanes of a task read an argument or write a result."""

    buffer: str
    base: Places
    strides: tuple[int, ...]

    def places(self, shape: tuple[int, ...]) -> Array:
        """The places of an array of this shape in every lane: (lanes, *shape)."""
        found = np.asarray(self.base)
        for n, stride in zip(shape, self.strides):
            found = found[..., None] + stride * np.arange(n)
        return found

    def extent(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """The first and the last place of an array of this shape in any lane."""
        low, high = (int(min(self.base)), int(max(self.base))) if len(self.base) else (0, -1)
        return low, high + sum((n - 1) * step for n, step in zip(shape, self.strides))


@dataclass(frozen=True, eq=False)
class LaneTask:
    operation: Operation
    reads: tuple[Operand, ...]  # in the order of the operation's inputs
    write: Operand
    adds: tuple[Operand, ...] = ()  # in the order of the operation's adds; no two lanes share a place

    @property
    def lanes(self) -> int:
        return len(self.write.base)


@dataclass(frozen=True, eq=False)
class Level:
    name: str
    tasks: tuple[LaneTask, ...]

    @property
    def lanes(self) -> int:
        return sum(task.lanes for task in self.tasks)

    @property
    def work(self) -> int:
        """Arithmetic operations of all lanes."""
        return sum(task.lanes * task.operation.work for task in self.tasks)

    @property
    def span(self) -> int:
        """Arithmetic operations of one lane: the time with one processor per lane."""
        return max(task.operation.work for task in self.tasks)

    @property
    def depth(self) -> int:
        """The longest sequence of dependent operations: the time with any number of processors."""
        return max(task.operation.depth for task in self.tasks)


@dataclass(frozen=True, eq=False)
class LevelSchedule:
    """Levels in order; `sizes` of all buffers, and the initial `contents` of some.

    The buffers `cleared` are set to zero before each run.
    """

    levels: tuple[Level, ...]
    sizes: Mapping[str, int]
    contents: Mapping[str, Array]
    cleared: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """The number of levels; on a GPU, of launches."""
        return len(self.levels)

    @property
    def work(self) -> int:
        return sum(level.work for level in self.levels)

    @property
    def critical_path(self) -> int:
        """Operations on the longest path, with one processor per lane."""
        return sum(level.span for level in self.levels)

    @property
    def longest_chain(self) -> int:
        """Operations on the longest sequence of dependent ones, with any number of processors."""
        return sum(level.depth for level in self.levels)

    def report(self) -> str:
        """One line per level: its name, the number of lanes, and the operations of one lane and of all lanes."""
        rows = [f"{'level':<32} {'lanes':>9} {'a lane':>7} {'all':>12}"]
        rows += [f"{x.name:<32} {x.lanes:>9} {x.span:>7} {x.work:>12}" for x in self.levels]
        rows.append(f"{f'{self.depth} levels':<32} {'':>9} {self.critical_path:>7} {self.work:>12}")
        return "\n".join(rows)


def places(columns: Array) -> Places:
    """An array of places, as a `range` if it is evenly spaced."""
    columns = np.asarray(columns, dtype=np.int64)
    if columns.size == 0:
        return range(0)
    step = int(columns[1] - columns[0]) if columns.size > 1 else 1
    regular = step > 0 and bool((np.diff(columns) == step).all())
    return range(int(columns[0]), int(columns[-1]) + step, step) if regular else columns
