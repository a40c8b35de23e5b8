"""The adjoint of a schedule: its levels, followed by the levels of their derivative in reverse order.

A task is a pure operation on many lanes.  Its adjoint reads the task's inputs and the cotangent of its output; the
result is added to the cotangents of the inputs.  The cotangents of buffer "x" are in buffer "~x", place by place.
So a computation in log n levels is differentiated in log n levels, and an engine needs nothing new.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from torsor.compiler.tape_derivatives import Replay, along_freedoms, scalars, summed
from torsor.linalg import Scalar, Vec
from torsor.model.joints import JOINTS, Joint
from torsor.model.model import Model
from torsor.outputs import numbered
from torsor.parallel.chain import LaneColumns
from torsor.parallel.schedule import LaneTask, Level, LevelSchedule, Operand, Operation, places

BY_FREEDOM = "cotangent of q, by freedom"
# by operation and operand: different runs of a chain read different places
Sums = dict[tuple[str, str], list[LaneTask]]


def adjoint(plan: LevelSchedule, output: str, wrt: Sequence[str], lanes_apart: bool) -> LevelSchedule:
    """A schedule that leaves J^T c in the buffers "~x", x in `wrt`, for c in the buffer "~" + `output`.

    J is the derivative of the final content of `output` with respect to the initial contents of the buffers `wrt`.
    """
    active = _active(plan, wrt)
    sizes = dict(plan.sizes) | {cotangent(name): plan.sizes[name] for name in sorted(active)}
    levels: list[Level] = []
    for level in reversed(plan.levels):
        tasks = [task for task in level.tasks if task.write.buffer in active]
        pulls: list[LaneTask] = []
        sums: Sums = {}
        for task, wanted in zip(tasks, _wanted(tasks, active)):
            pull, others = _pull(task, wanted, f"pulled{len(pulls)}", lanes_apart)
            pulls.append(pull)
            sizes[pull.write.buffer] = max(sizes.get(pull.write.buffer, 0), prod(pull.operation.written) * task.lanes)
            for operand, add in others.items():
                sums.setdefault((task.operation.name, operand), []).append(add)
        levels += [Level(f"adjoint of {level.name}", tuple(pulls))] if pulls else []
        levels += [Level(f"add to {operand} of {name}", tuple(tasks)) for (name, operand), tasks in sums.items()]
    cleared = tuple(cotangent(name) for name in sorted(active - {output}))
    return replace(plan, levels=(*plan.levels, *levels), sizes=sizes, cleared=cleared)


def cotangent(buffer: str) -> str:
    return f"~{buffer}"


def _active(plan: LevelSchedule, wrt: Iterable[str]) -> set[str]:
    """The buffers that depend on those in `wrt`."""
    active = set(wrt)
    for level in plan.levels:
        active |= {task.write.buffer for task in level.tasks if any(x.buffer in active for x in task.reads)}
    return active


class Wanted(NamedTuple):
    """An operand whose cotangent is needed."""

    name: str
    shape: tuple[int, ...]
    place: Operand  # of the cotangent
    alone: bool  # no other operand of the level has a cotangent there


def _wanted(tasks: Sequence[LaneTask], active: set[str]) -> list[list[Wanted]]:
    """For each task of a level, the operands whose cotangents are needed."""
    extents: dict[str, list[tuple[int, int]]] = {}
    for task in tasks:
        for shape, place in zip(task.operation.inputs.values(), task.reads):
            extents.setdefault(place.buffer, []).append(place.extent(shape))

    def alone(place: Operand, shape: tuple[int, ...]) -> bool:
        low, high = place.extent(shape)
        return sum(a <= high and low <= b for a, b in extents[place.buffer]) == 1  # itself

    return [
        [
            Wanted(name, shape, replace(place, buffer=cotangent(place.buffer)), alone(place, shape))
            for (name, shape), place in zip(task.operation.inputs.items(), task.reads)
            if place.buffer in active
        ]
        for task in tasks
    ]


def _pull(
    task: LaneTask, wanted: Sequence[Wanted], buffer: str, lanes_apart: bool
) -> tuple[LaneTask, dict[str, LaneTask]]:
    """The adjoint of a task, and the additions that are tasks of later levels, by the name of the operand.

    Lanes may share inputs (both neighbours read the reaction between two runs), but only as different operands.  So
    the cotangents of an operand are added at once if no other operand has its places; else they stay in the buffer.
    """
    here, later = [x for x in wanted if x.alone], [x for x in wanted if not x.alone]
    operation = pulled(task.operation, tuple(x.name for x in later), tuple(x.name for x in here))
    rows = sum(prod(x.shape) for x in later)
    columns = LaneColumns(buffer, rows, *((1, max(rows, 1)) if lanes_apart else (task.lanes, 1)))
    lanes = range(task.lanes)
    reads = (*task.reads, replace(task.write, buffer=cotangent(task.write.buffer)))
    pull = LaneTask(operation, reads, columns.at(lanes), tuple(x.place for x in here))
    sums, row = {}, 0
    for x in later:
        steps = tuple(columns.down * prod(x.shape[k + 1 :]) for k in range(len(x.shape)))
        sums[x.name] = LaneTask(added(x.shape), (x.place, columns.at(lanes, row=row, each=steps)), x.place)
        row += prod(x.shape)
    return pull, sums


@functools.cache
def pulled(operation: Operation, written: tuple[str, ...], adds: tuple[str, ...]) -> Operation:
    """The adjoint of an operation: the cotangents of the named operands, one after the other."""
    names = [(x, *index) for x in (*written, *adds) for index in np.ndindex(*operation.inputs[x])]

    def pull(*given: Any) -> list[Scalar]:
        values: dict[Any, Any] = {
            (x, *index): y for x, argument in zip((*operation.inputs, "out"), given) for index, y in numbered(argument)
        }
        tape = next(iter(values.values())).tape
        again = Replay(operation.code, tape, lambda name: values[name].i)
        seeds = summed(tape, ((i, values[name].i) for name, i in operation.code.outputs.items()))
        found = again.pull(seeds, set(names))
        return list(scalars(tape, (found.get(name, tape.const(0.0)) for name in names)))

    return Operation(
        f"adjoint of {operation.name}", pull, {**operation.inputs, "cotangent": operation.shape},
        {x: operation.inputs[x] for x in adds},
    )  # fmt: skip


@functools.cache
def added(shape: tuple[int, ...]) -> Operation:
    def add(x: Any, y: Any) -> Any:
        return [add(a, b) for a, b in zip(x, y)] if isinstance(x, list) else x + y

    return Operation("add", add, {"x": shape, "y": shape})


def along_freedoms_of(model: Model, plan: LevelSchedule) -> LevelSchedule:
    """The schedule with a last level that maps the cotangent of q from coordinates to freedoms (`Joint.tangent`)."""
    tasks = []
    for code in np.unique(model.joint).tolist():
        bodies = np.flatnonzero(model.joint == code)
        q, v = places(model.q_start[bodies]), places(model.v_start[bodies])
        reads = Operand("q", q, (1,)), Operand(cotangent("q"), q, (1,))
        tasks.append(LaneTask(along_freedoms_at(JOINTS[code]), reads, Operand(BY_FREEDOM, v, (1,))))
    sizes = {**plan.sizes, BY_FREEDOM: model.nv}
    return replace(plan, levels=(*plan.levels, Level("along freedoms", tuple(tasks))), sizes=sizes)


@functools.cache
def along_freedoms_at(joint: Joint) -> Operation:
    def along(q: Any, cotangent: Any) -> list[Scalar]:
        return list(along_freedoms(joint, Vec.of(q), Vec.of(cotangent)))

    return Operation("along freedoms", along, {"q": (joint.nq,), "cotangent": (joint.nq,)})
