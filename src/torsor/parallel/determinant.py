"""log det M of a chain in O(log n) depth: the pivots of all runs and of all reactions between them."""

from __future__ import annotations

import numpy as np

from torsor.algorithms.constraint_force import Segment
from torsor.compiler.frames import Kind
from torsor.errors import ArgumentError
from torsor.parallel.chain import RunTree, ScheduleBuilder
from torsor.parallel.operations import RunDeterminant, run_determinant
from torsor.parallel.schedule import LevelSchedule, Operand, places


class DeterminantPlan(RunTree):
    """The levels of log det M, into the one number of buffer "log_det"."""

    def operations(self, kind: Kind, length: int) -> RunDeterminant:
        return run_determinant(kind, length, self.size)

    def build(self) -> None:
        plan = self.plan
        handles = plan.columns("handle", 6 * self.size, self.runs + 1)
        segments = self._segments([Segment.length(self.size) + 1] * (self.depth + 1))
        plan.sizes["log_det"] = 1
        plan.level("handles", [
            plan.task(
                g.operations.handle.operation, [self._numbers(g, "handle", 1), plan.given("q", g.first)],
                handles.at(places(g.runs), each=handles.wrenches))
            for g in self.groups])  # fmt: skip
        plan.level("condense", [
            plan.task(
                g.operations.condense.operation,
                [self._numbers(g, "condense"), plan.given("q", g.first),
                 handles.at(places(g.runs + 1), each=handles.wrenches)],
                segments[0].at(places(g.runs)))
            for g in self.groups])  # fmt: skip
        for level in range(self.depth):
            self._up(f"measure {level + 1}", self.tree.measure, segments, level)
        total = plan.task(self.tree.total, [segments[-1].at(range(1))], Operand("log_det", range(1), (1,)))
        plan.level("total", [total])


def determinant_schedule(plan: ScheduleBuilder) -> LevelSchedule:
    model = plan.framed.model
    if not model.is_chain:
        raise ArgumentError(f"{model!r} branches; log det M in levels is for chains")
    DeterminantPlan(plan, np.arange(model.n), plan.run).build()
    return plan.schedule()
