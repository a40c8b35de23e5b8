"""The schedule of a chain: runs of bodies are condensed, joined four by four to one, and released again.

For forward dynamics the levels are, with L = log4 of the number of runs,

    turns and handles      every run: its map of angular velocity; its first joint in the frame before it
    compose (L), spread (L)             angular velocities before every run
    condense               every run: a two-handle segment
    join (L), start, split (L)          the reactions between all runs
    release, settle        every run: its joint accelerations

M^-1 b has the same levels without turns and angular velocities.  A run has `RUN` bodies if that many of one kind
follow one another, otherwise one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms.constraint_force import Joined, Segment
from torsor.compiler.frames import Framed, Kind
from torsor.model.joints import joint_named
from torsor.parallel.operations import RADIX, TURN, RunOperations, is_loaded, run_operations, tree_operations
from torsor.parallel.schedule import LaneTask, Level, LevelSchedule, Operand, Operation, places

Array = NDArray[Any]

# Bodies per run: longer runs save little work and lengthen the critical path again (bench/log_depth.py).
RUN = 8


@dataclass(frozen=True, eq=False)
class RunGroup:
    """All runs of the same kind and length: their indices among the runs, and the first body of each."""

    operations: Any
    length: int
    nv: int
    runs: Array
    first: Array


@dataclass
class ScheduleBuilder:
    """A schedule under construction: buffers are added, and levels in order.

    lanes_apart: True if the numbers of one lane are adjacent in memory (the vectors of a processor then touch few cache
    lines), False if corresponding numbers of all lanes are adjacent (the threads of a GPU then read together).
    run: bodies per run.
    """

    framed: Framed
    inputs: tuple[str, ...]
    lanes_apart: bool = True
    run: int = RUN

    def __post_init__(self) -> None:
        self.levels: list[Level] = []
        self.contents: dict[str, Array] = {}
        model = self.framed.model
        self.sizes = {name: {"q": model.nq, "external": 6 * model.n}.get(name, model.nv) for name in self.inputs}
        self.sizes["qdd"] = model.nv

    def level(self, name: str, tasks: Sequence[LaneTask]) -> None:
        if tasks:
            self.levels.append(Level(name, tuple(tasks)))

    def task(self, operation: Operation, reads: Sequence[Operand], write: Operand) -> LaneTask:
        return LaneTask(operation, tuple(reads), write)

    def schedule(self) -> LevelSchedule:
        return LevelSchedule(tuple(self.levels), self.sizes, self.contents)

    def table(self, name: str, values: Array) -> None:
        """A buffer with the initial content `values`."""
        self.sizes[name], self.contents[name] = values.size, values.ravel()

    def constants(self, name: str, names: Sequence[str], bodies: Array) -> Operand:
        """A table of the constants of the bodies (lanes, length)."""
        lanes, length = bodies.shape
        values = np.array([self.framed.numbers[x][bodies[:, t]] for t in range(length) for x in names])
        columns = self.columns(name, len(values), lanes, values)
        return columns.at(range(lanes), each=(len(names) * columns.down, columns.down))

    def columns(self, name: str, rows: int, count: int, values: Array | float = 0.0) -> LaneColumns:
        """A buffer of columns with the initial content `values` (rows, count)."""
        table = np.broadcast_to(values, (rows, count))
        self.table(name, table.T if self.lanes_apart else table)
        return LaneColumns(name, rows, *((1, rows) if self.lanes_apart else (count, 1)))

    def result(self, first: Array) -> Operand:
        """The joint accelerations of runs that begin at these bodies."""
        return Operand("qdd", places(self.framed.model.v_start[first]), (1,))

    def given(self, name: str, first: Array) -> Operand:
        """An input of runs that begin at these bodies."""
        model = self.framed.model
        if name == "external":
            return Operand(name, places(6 * first), (6, 1))
        start = (model.q_start if name == "q" else model.v_start)[first]
        joint = joint_named(self.framed.kinds[self.framed.kind[first[0]]].joint)
        return Operand(name, places(start), (joint.nq if name == "q" else joint.nv, 1))


@dataclass(frozen=True)
class LaneColumns:
    """A buffer of columns of numbers, one per lane: `down` and `across` are the strides to the next row and column."""

    name: str
    rows: int
    down: int
    across: int

    def at(self, columns: Array | range, row: int = 0, each: tuple[int, ...] | None = None) -> Operand:
        """One column per lane, starting at a row; `each`: strides other than down the rows."""
        start = row * self.down
        if isinstance(columns, range):
            places: Array | range = range(
                columns.start * self.across + start, columns.stop * self.across + start, columns.step * self.across
            )
        else:
            places = columns * self.across + start
        return Operand(self.name, places, (self.down,) if each is None else each)

    @property
    def wrenches(self) -> tuple[int, int]:
        """The strides of columns that are lists of six numbers."""
        return 6 * self.down, self.down


def runs_of(kind: Array, length: int) -> Array:
    """The starts of runs of `length` bodies of one kind, or of one body; the last entry is the end of the chain."""
    n = len(kind)
    edges = np.flatnonzero(np.diff(kind, prepend=-1, append=-1))
    stretch = np.repeat(np.arange(len(edges) - 1), np.diff(edges))  # the stretch of equal kinds to which a body belongs
    place = np.arange(n) - edges[stretch]
    whole = place < np.diff(edges)[stretch] // length * length
    return np.append(np.flatnonzero(~whole | (place % length == 0)), n)


class RunTree:
    """A chain with the bodies `main`, cut into runs, which are grouped by four until one is left."""

    def __init__(self, plan: ScheduleBuilder, main: Array, run: int) -> None:
        self.plan = plan
        kind = plan.framed.kind[main]
        starts = runs_of(kind, run)
        self.runs = len(starts) - 1
        present = [plan.framed.kinds[k] for k in np.unique(kind)]
        sizes = (6 if is_loaded(k, plan.inputs) else 6 - joint_named(k.joint).nv for k in present)
        self.size = max(1, *sizes)
        self.groups = self._groups(main, kind, starts)
        self.tree = tree_operations(self.size)
        # one more place than there are runs, for the angular velocity after the last run
        self.counts = [self.runs + 1]
        while self.counts[-1] > 1:
            self.counts.append(-(-self.counts[-1] // RADIX))
        self.depth = len(self.counts) - 1
        self.widths = [RADIX * c for c in self.counts[1:]] + [1]

    def operations(self, kind: Kind, length: int) -> Any:
        """The operations on runs of `length` bodies of a kind."""
        raise NotImplementedError

    def _groups(self, main: Array, kind: Array, starts: Array) -> list[RunGroup]:
        kinds, lengths = self.plan.framed.kinds, np.diff(starts)
        groups = []
        for k, length in np.unique(np.stack([kind[starts[:-1]], lengths]), axis=1).T.tolist():
            runs = np.flatnonzero((kind[starts[:-1]] == k) & (lengths == length))
            nv = joint_named(kinds[k].joint).nv
            groups.append(RunGroup(self.operations(kinds[k], length), length, nv, runs, main[starts[runs]]))
        return groups

    def _numbers(self, g: RunGroup, operation: str, length: int | None = None) -> Operand:
        """The constants of the bodies of all runs of a group, or of the first `length` of each."""
        names = getattr(g.operations, operation).names
        bodies = g.first[:, None] + np.arange(length or g.length)
        return self.plan.constants(f"{operation} numbers {self.groups.index(g)}", names, bodies)

    def _segments(self, rows: Sequence[int]) -> list[LaneColumns]:
        """One buffer of segments per level; places without a run keep the initial content."""
        result = []
        for level, (width, count) in enumerate(zip(self.widths, rows)):
            nothing = Segment.nothing(self.size).pack()
            column = np.array([*nothing, *[0.0] * (count - len(nothing))])
            result.append(self.plan.columns(f"segment{level}", count, width, column[:, None]))
        return result

    def _nodes(self, level: int) -> range:
        """The first child of every node above a level."""
        return range(0, self.widths[level], RADIX)

    def _parts(self, columns: LaneColumns, level: int) -> Operand:
        """The children of every node, one after the other."""
        return columns.at(self._nodes(level), each=(columns.across, columns.down))

    def _beside(self, columns: LaneColumns) -> tuple[int, int]:
        """The strides down the rows and from child to child."""
        return columns.down, columns.across

    def _up(self, name: str, operation: Operation, columns: list[LaneColumns], level: int) -> None:
        """From the children on a level to their nodes on the next."""
        write = columns[level + 1].at(range(self.counts[level + 1]))
        self.plan.level(name, [self.plan.task(operation, [self._parts(columns[level], level)], write)])


class ChainPlan(RunTree):
    """The levels of a main chain.

    side: the contributions of the side branches to every body; runs are then single bodies.
    """

    def __init__(self, plan: ScheduleBuilder, main: Array, side: LaneColumns | None = None) -> None:
        self.side = side
        super().__init__(plan, main, 1 if side else plan.run)
        self._buffers()

    def operations(self, kind: Kind, length: int) -> RunOperations:
        return run_operations(kind, length, self.size, self.plan.inputs, self.side is not None)

    def _buffers(self) -> None:
        plan, size, moving = self.plan, self.size, "v" in self.plan.inputs
        S, J = Segment.length(size), Joined.length(size)
        kept = max(g.operations.kept for g in self.groups)
        nv = max(g.nv * g.length for g in self.groups)
        self.handles = plan.columns("handle", 6 * (1 + size + max(g.nv for g in self.groups)), self.runs + 1)
        start = np.zeros((6 + nv, self.runs + 1))  # column 0 is the base
        if moving:  # a base at rest in gravity g is equivalent to one that accelerates by -g without gravity
            start[3:6, 0] = -plan.framed.model.gravity
        self.motion = plan.columns("motion", *start.shape, start)
        self.segments = self._segments([S + kept, *[S + (RADIX - 1) * J] * self.depth])
        self.reactions, self.turns, self.spins = [], [], []
        for level, width in enumerate(self.widths):
            self.reactions.append(plan.columns(f"lambda{level}", size, width + 1))
            if moving:
                no_turn = np.array([*np.eye(3).ravel(), 0.0, 0.0, 0.0])
                self.turns.append(plan.columns(f"turn{level}", TURN, width, no_turn[:, None]))
                self.spins.append(plan.columns(f"omega{level}", 3, width))

    # -- levels

    def prepare(self) -> None:
        """Handles, and angular velocities before every run."""
        plan = self.plan
        torque = "tau" if "tau" in plan.inputs else "b"
        tasks = [
            plan.task(
                g.operations.handle.operation,
                [self._numbers(g, "handle", 1), plan.given("q", g.first), plan.given(torque, g.first)],
                self.handles.at(places(g.runs), each=self.handles.wrenches),
            )
            for g in self.groups
        ]
        if not self.turns:
            plan.level("handles", tasks)
            return
        tasks += [
            plan.task(
                g.operations.turn.operation,
                [self._numbers(g, "turn"), plan.given("q", g.first), plan.given("v", g.first)],
                self.turns[0].at(places(g.runs)),
            )
            for g in self.groups
        ]
        plan.level("turns and handles", tasks)
        for level in range(self.depth):
            self._up(f"compose {level + 1}", self.tree.compose, self.turns, level)
        for level in reversed(range(self.depth)):
            reads = [self._parts(self.turns[level], level), self.spins[level + 1].at(range(self.counts[level + 1]))]
            write = self.spins[level].at(self._nodes(level), each=self._beside(self.spins[level]))
            plan.level(f"spread {level + 1}", [plan.task(self.tree.spread, reads, write)])

    def solve(self) -> None:
        """Condense all runs, join them, and compute the reactions between them."""
        plan, size = self.plan, self.size
        tasks = []
        for g in self.groups:
            reads = [self._numbers(g, "condense"), *(plan.given(name, g.first) for name in plan.inputs)]
            if self.spins:
                reads.append(self.spins[0].at(places(g.runs)))
            if self.side:
                reads.append(self.side.at(places(g.first)))
            reads.append(self.handles.at(places(g.runs + 1), each=self.handles.wrenches))
            tasks.append(plan.task(g.operations.condense.operation, reads, self.segments[0].at(places(g.runs))))
        plan.level("condense", tasks)
        for level in range(self.depth):
            self._up(f"join {level + 1}", self.tree.join, self.segments, level)
        top = [self.segments[-1].at(range(1)), self.handles.at(range(1), row=6, each=self.handles.wrenches),
               self.motion.at(range(1))]  # fmt: skip
        plan.level("start", [plan.task(self.tree.start, top, self.reactions[-1].at(range(1)))])
        for level in reversed(range(self.depth)):
            count, above = self.counts[level + 1], self.reactions[level + 1]
            joined = self.segments[level + 1].at(range(count), row=Segment.length(size))
            write = self.reactions[level].at(self._nodes(level), each=self._beside(self.reactions[level]))
            reads = [joined, above.at(range(count)), above.at(range(1, count + 1))]
            plan.level(f"split {level + 1}", [plan.task(self.tree.split, reads, write)])

    def finish(self) -> None:
        """Joint accelerations."""
        plan = self.plan
        S = Segment.length(self.size)
        release, settle = [], []
        for g in self.groups:
            runs, lam = places(g.runs), self.reactions[0]
            after = places(g.runs + 1)
            segment, kept = self.segments[0].at(runs), self.segments[0].at(runs, row=S)
            reads = [self._numbers(g, "release"), segment, kept, lam.at(runs), lam.at(after)]
            release.append(plan.task(g.operations.release.operation, reads, self.motion.at(after)))
            torques = self.handles.at(runs, row=6 * (1 + self.size), each=self.handles.wrenches)
            reads = [torques, self.motion.at(runs), self.motion.at(after, row=6)]
            settle.append(plan.task(g.operations.settle, reads, plan.result(g.first)))
        plan.level("release", release)
        plan.level("settle", settle)
