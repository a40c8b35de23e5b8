"""The adjoint of a schedule: its levels, and then the levels of their derivative, in reverse order.

A task is a pure operation on many lanes.  Its adjoint reads what the task read, and the cotangent of what it wrote; the
result is added to the cotangents of what it read.  The cotangents of buffer "x" are in buffer "~x", place by place.
So what was a sum over log n levels is differentiated in log n levels, and an engine needs to know nothing new.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from torsor.compiler.derivatives import Replay, along_freedoms, scalars, summed
from torsor.linalg import Scalar, Vec
from torsor.model.joints import JOINTS, Joint
from torsor.model.model import Model
from torsor.outputs import numbered
from torsor.parallel.chain import Columns
from torsor.parallel.schedule import Level, Operand, Operation, Schedule, Task, places

BY_FREEDOM = "cotangent of q, by freedom"
# by operation and operand: the runs of a chain read different places
Sums = dict[tuple[str, str], list[Task]]


def adjoint(plan: Schedule, output: str, wrt: Sequence[str], lanes_apart: bool) -> Schedule:
    """A schedule that leaves J^T c in the buffers "~x", x in `wrt`, for c in the buffer "~" + `output`.

    J is the derivative of what the schedule leaves in `output`, by what it finds in the buffers of `wrt`.
    """
    active = _active(plan, wrt)
    sizes = dict(plan.sizes) | {cotangent(name): plan.sizes[name] for name in sorted(active)}
    levels: list[Level] = []
    for level in reversed(plan.levels):
        pulls: list[Task] = []
        sums: Sums = {}
        for task in level.tasks:
            if task.write.buffer in active:
                _pull(task, active, f"pulled{len(pulls)}", lanes_apart, pulls, sums, sizes)
        levels += [Level(f"adjoint of {level.name}", tuple(pulls))] if pulls else []
        levels += [Level(f"add to {operand} of {name}", tuple(tasks)) for (name, operand), tasks in sums.items()]
    cleared = tuple(cotangent(name) for name in sorted(active - {output}))
    return replace(plan, levels=(*plan.levels, *levels), sizes=sizes, cleared=cleared)


def cotangent(buffer: str) -> str:
    return f"~{buffer}"


def _active(plan: Schedule, wrt: Iterable[str]) -> set[str]:
    """The buffers that depend on those in `wrt`."""
    active = set(wrt)
    for level in plan.levels:
        active |= {task.write.buffer for task in level.tasks if any(x.buffer in active for x in task.reads)}
    return active


def _pull(task: Task, active: set[str], name: str, lanes_apart: bool, pulls: list[Task],
          sums: Sums, sizes: dict[str, int]) -> None:  # fmt: skip
    """Add the adjoint of a task: the cotangents of its operands into the buffer `name`, and from there to their places.

    Lanes may share what they read (the reaction between two runs is read by both), but only as different operands.  So
    each operand is a task of its own.
    """
    shapes = task.operation.inputs
    wanted = [(x, y) for x, y in zip(shapes, task.reads) if y.buffer in active]
    operation = pulled(task.operation, tuple(x for x, _ in wanted))
    rows = sum(prod(shapes[x]) for x, _ in wanted)
    columns = Columns(name, rows, *((1, rows) if lanes_apart else (task.lanes, 1)))
    sizes[name] = max(sizes.get(name, 0), rows * task.lanes)
    reads = (*task.reads, replace(task.write, buffer=cotangent(task.write.buffer)))
    pulls.append(Task(operation, reads, columns.at(range(task.lanes))))
    row = 0
    for operand, place in wanted:
        shape = shapes[operand]
        steps = tuple(columns.down * prod(shape[k + 1 :]) for k in range(len(shape)))
        there = replace(place, buffer=cotangent(place.buffer))
        here = columns.at(range(task.lanes), row=row, each=steps)
        sums.setdefault((task.operation.name, operand), []).append(Task(added(shape), (there, here), there))
        row += prod(shape)


@functools.cache
def pulled(operation: Operation, wanted: tuple[str, ...]) -> Operation:
    """The adjoint of an operation: the cotangents of the operands named, one behind the other."""
    names = [(x, *index) for x in wanted for index in np.ndindex(*operation.inputs[x])]

    def pull(*given: Any) -> list[Scalar]:
        values: dict[Any, Any] = {
            (x, *index): y for x, argument in zip((*operation.inputs, "out"), given) for index, y in numbered(argument)
        }
        tape = next(iter(values.values())).tape
        again = Replay(operation.code, tape, lambda name: values[name].i)
        seeds = summed(tape, ((i, values[name].i) for name, i in operation.code.outputs.items()))
        found = again.pull(seeds, set(names))
        return list(scalars(tape, (found.get(name, tape.const(0.0)) for name in names)))

    return Operation(f"adjoint of {operation.name}", pull, {**operation.inputs, "cotangent": operation.shape})


@functools.cache
def added(shape: tuple[int, ...]) -> Operation:
    def add(x: Any, y: Any) -> Any:
        return [add(a, b) for a, b in zip(x, y)] if isinstance(x, list) else x + y

    return Operation("add", add, {"x": shape, "y": shape})


def along_freedoms_of(model: Model, plan: Schedule) -> Schedule:
    """With a last level that takes the cotangent of q from coordinates to freedoms (`Joint.tangent`)."""
    tasks = []
    for code in np.unique(model.joint).tolist():
        bodies = np.flatnonzero(model.joint == code)
        q, v = places(model.q_start[bodies]), places(model.v_start[bodies])
        reads = Operand("q", q, (1,)), Operand(cotangent("q"), q, (1,))
        tasks.append(Task(along_freedoms_at(JOINTS[code]), reads, Operand(BY_FREEDOM, v, (1,))))
    sizes = {**plan.sizes, BY_FREEDOM: model.nv}
    return replace(plan, levels=(*plan.levels, Level("along freedoms", tuple(tasks))), sizes=sizes)


@functools.cache
def along_freedoms_at(joint: Joint) -> Operation:
    def along(q: Any, cotangent: Any) -> list[Scalar]:
        return list(along_freedoms(joint, Vec.of(q), Vec.of(cotangent)))

    return Operation("along freedoms", along, {"q": (joint.nq,), "cotangent": (joint.nq,)})
