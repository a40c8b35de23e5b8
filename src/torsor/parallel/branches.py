"""Trees: one main chain in O(log n) levels, side branches by articulated bodies (Featherstone & Fijany, section 4).

The main chain is the longest path from the base to a tip (among equally long paths, the one that ends at the body
with the lowest number).  Side branches, on the main chain or on the base, are condensed before it and finished after
it.  Each generation of side bodies is one level.  So the depth is O(log n) if side branches are short, and never worse
than that of the plain sweeps.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms import articulated
from torsor.algorithms.newton_euler import motion, spin
from torsor.compiler.frames import Kind
from torsor.compiler.trace import leaves
from torsor.linalg import Scalar, Vec
from torsor.model.joints import joint_named
from torsor.model.model import Model
from torsor.parallel.chain import ChainPlan, ScheduleBuilder
from torsor.parallel.operations import SIDE, bodies, constants_of, input_shapes, is_loaded, side_load
from torsor.parallel.schedule import LevelSchedule, Operation, places
from torsor.spatial import Spatial

Array = NDArray[Any]

MOVING = 15  # numbers of a side body's motion: ω, dω/dt, a and the wrench that produces them


def main_chain(model: Model) -> Array:
    """The bodies of the longest path from the base to a tip, in order."""
    if model.is_chain:
        return np.arange(model.n)
    generation = np.ones(model.n, np.int64)
    for i, p in enumerate(model.parent.tolist()):
        if p >= 0:
            generation[i] = generation[p] + 1
    body, way = int(np.argmax(generation)), []
    while body >= 0:
        way.append(body)
        body = int(model.parent[body])
    return np.array(way[::-1])


@dataclass(frozen=True, eq=False)
class BodyOperations:
    """The operations on side bodies of one kind."""

    names: tuple[str, ...]
    move: Operation  # the motion of the parent -> its own, and the wrench
    lift: Operation  # the sum of the children's values -> the values passed on, gains, the joint's own share
    drop: Operation  # the acceleration of the parent -> its own, joint accelerations


@functools.cache
def body_operations(kind: Kind, inputs: tuple[str, ...]) -> BodyOperations:
    names = constants_of(kind, "external" in inputs)
    shapes = {"numbers": (1, len(names)), **{name: (1, n) for name, n in input_shapes(kind, inputs).items()}}
    nv, loaded = joint_named(kind.joint).nv, is_loaded(kind, inputs)
    torque = "tau" if "tau" in inputs else "b"
    moving = [name for name in ("q", "v", "external") if name in inputs]
    added = [name for name in ("added_inertia",) if name in inputs]

    def move(numbers: Any, *rest: Any) -> list[Scalar]:
        (link,), (h,) = bodies(kind, names, numbers, dict(zip(moving, rest)))
        w, dw, a = (Vec.of(rest[-1][k : k + 3]) for k in (0, 3, 6))
        near, keep = motion.step(link, h, type(h)(w=w, dw=dw, a=a, Omega=spin(w, dw)))
        return [*near["w"], *near["dw"], *near["a"], *keep["W"].coordinates]

    def lift(numbers: Any, q: Any, tau: Any, *rest: Any) -> list[Scalar]:
        (link,), (h,) = bodies(kind, names, numbers, {"q": q, "tau": tau} | dict(zip(added, rest)))
        h.W, side = Spatial.of(rest[-2]), side_load(rest[-1])
        hand, keep = articulated.articulate.step(link, h, type(h)(I=side.I, F=side.F))
        return [*leaves((hand["I"], hand["F"])), *leaves(keep["G"]), *keep["x"]]

    def drop(numbers: Any, q: Any, kept: Any, A: Any) -> list[Scalar]:
        (link,), (h,) = bodies(kind, names, numbers, {"q": q})
        S, G = link.S(h.q), [kept[6 * k : 6 * k + 6] for k in range(nv)]
        h.G = articulated.with_known(S, [] if loaded else [k for k in S.axes if k is not None], G)
        h.x = Vec.of(kept[6 * nv :])
        hand, keep = articulated.accelerate.step(link, h, type(h)(A=Spatial.of(A)))
        return [*hand["A"].coordinates, *keep["qdd"]]

    one = {"numbers": shapes["numbers"], "q": shapes["q"]}
    return BodyOperations(
        names,
        Operation("move", move, {"numbers": shapes["numbers"], **{k: shapes[k] for k in moving}, "near": (9,)}),
        Operation(
            "lift", lift, {**one, torque: (1, nv), **dict.fromkeys(added, (1, nv)), "W": (6,), "children": (SIDE,)}
        ),
        Operation("drop", drop, {**one, "kept": (7 * nv,), "A": (6,)}),
    )


@functools.cache
def copy_of(count: int) -> Operation:
    return Operation("copy", lambda x: list(x), {"x": (count,)})


@functools.cache
def sum_of(count: int) -> Operation:
    return Operation("sum", lambda x, y: [a + b for a, b in zip(x, y)], {"x": (count,), "y": (count,)})


class SidePlan:
    """The levels of all side branches."""

    def __init__(self, plan: ScheduleBuilder, main: Array) -> None:
        self.plan, model = plan, plan.framed.model
        self.parent = model.parent
        on_main = np.zeros(model.n + 1, bool)
        on_main[main] = on_main[-1] = True  # entry -1 is the base
        self.side = np.flatnonzero(~on_main[: model.n])
        self.on_main = on_main
        generation = np.zeros(model.n + 1, np.int64)  # 1 for children of the main chain or the base
        for i in self.side.tolist():
            generation[i] = generation[self.parent[i]] + 1
        self.generations = [self.side[generation[self.side] == g] for g in range(1, generation.max(initial=0) + 1)]
        rank = np.zeros(model.n, np.int64)  # the index among the side bodies of one parent
        seen: dict[int, int] = {}
        for i in self.side.tolist():
            p = int(self.parent[i])
            rank[i] = seen.get(p, 0)
            seen[p] = rank[i] + 1
        self.rank = rank
        nv = max((joint_named(k.joint).nv for k in plan.framed.kinds), default=1)
        # one column per body, and one more for the base
        self.moving = plan.columns("side motion", MOVING, model.n + 1)
        self.children = plan.columns("side", SIDE, model.n + 1)
        self.lifted = plan.columns("lifted", SIDE + 7 * nv, model.n)
        self.dropped = plan.columns("dropped", 6 + nv, model.n + 1)

    def _column(self, body: Array) -> Array:
        """The column of a body; the base (-1) has the last one."""
        return np.where(body < 0, self.plan.framed.model.n, body)

    def _groups(self, bodies_: Array) -> list[tuple[BodyOperations, Array, Any]]:
        """(operations, bodies, operand of their constants) for each kind among the bodies."""
        framed, groups = self.plan.framed, []
        for k in np.unique(framed.kind[bodies_]).tolist():
            members = bodies_[framed.kind[bodies_] == k]
            operations = body_operations(framed.kinds[k], self.plan.inputs)
            name = f"side numbers {k} {members[0]}"
            groups.append((operations, members, self.plan.constants(name, operations.names, members[:, None])))
        return groups

    def before(self, chain: ChainPlan, main: Array) -> None:
        """Condense: motions outward, inertias and wrenches inward, into column `body` of "side" for the main chain."""
        plan = self.plan
        self.groups = [self._groups(g) for g in self.generations]
        if "v" in plan.inputs:
            spins = chain.spins[0].at(range(1, len(main) + 1))  # the angular velocity after run i is that of body i
            plan.level("angular velocities", [plan.task(copy_of(3), [spins], self.moving.at(places(main)))])
            names = [name for name in ("q", "v", "external") if name in plan.inputs]
            for g, groups in enumerate(self.groups):
                plan.level(f"side bodies move {g + 1}", [
                    plan.task(
                        x.move, [numbers, *(plan.given(name, at) for name in names),
                                 self.moving.at(places(self._column(self.parent[at])))], self.moving.at(places(at)))
                    for x, at, numbers in groups])  # fmt: skip
        given = ["q", "tau" if "tau" in plan.inputs else "b", *(x for x in plan.inputs if x == "added_inertia")]
        for g, groups in reversed(list(enumerate(self.groups))):
            plan.level(f"side bodies lift {g + 1}", [
                plan.task(
                    x.lift, [numbers, *(plan.given(name, at) for name in given), self.moving.at(places(at), row=9),
                             self.children.at(places(at))], self.lifted.at(places(at)))
                for x, at, numbers in groups])  # fmt: skip
            self._add_up(g)

    def _add_up(self, g: int) -> None:
        """Sum the values that a generation passes on: first the first children of all parents, then the second, ...

        Each sum starts fresh: the first child overwrites the result of the previous call.  The base needs no sum.
        """
        at = self.generations[g]
        at = at[self.parent[at] >= 0]
        for n in range(int(self.rank[at].max(initial=-1)) + 1):
            child = at[self.rank[at] == n]
            parent = self.children.at(places(self.parent[child]))
            handed = self.lifted.at(places(child))
            operation, reads = (copy_of(SIDE), [handed]) if n == 0 else (sum_of(SIDE), [parent, handed])
            self.plan.level(f"add up {g + 1}.{n + 1}", [self.plan.task(operation, reads, parent)])

    def after(self, chain: ChainPlan, main: Array) -> None:
        """Finish: propagate the accelerations of the main chain into its side branches."""
        plan = self.plan
        bodies_ = np.append(plan.framed.model.n, main)  # the base and the main chain, as in `chain.motion`
        known = chain.motion.at(range(len(bodies_)))
        plan.level("accelerations", [plan.task(copy_of(6), [known], self.dropped.at(places(bodies_)))])
        write = []
        for g, groups in enumerate(self.groups):
            plan.level(f"side bodies drop {g + 1}", [
                plan.task(
                    x.drop, [numbers, plan.given("q", at), self.lifted.at(places(at), row=SIDE),
                             self.dropped.at(places(self._column(self.parent[at])))], self.dropped.at(places(at)))
                for x, at, numbers in groups])  # fmt: skip
            for _, at, _ in groups:
                joint = joint_named(plan.framed.kinds[plan.framed.kind[at[0]]].joint)
                write.append(plan.task(copy_of(joint.nv), [self.dropped.at(places(at), row=6)], plan.result(at)))
        plan.level("side joints", write)


def tree_schedule(plan: ScheduleBuilder) -> LevelSchedule:
    """The schedule of any tree."""
    main = main_chain(plan.framed.model)
    side = SidePlan(plan, main) if len(main) < plan.framed.model.n else None
    chain = ChainPlan(plan, main, side.children if side else None)
    chain.prepare()
    if side:
        side.before(chain, main)
    chain.solve()
    chain.finish()
    if side:
        side.after(chain, main)
    return plan.schedule()
