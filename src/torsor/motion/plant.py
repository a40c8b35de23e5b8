"""The plant: a machine under a law as a step sees it, over any scalar.

A step is a pure function of a plant, a state and a length (`steps.py`). The type of the scalars decides what comes out:
columns of numbers, the tape of a kernel, its adjoint, or the text of a GPU kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from torsor.linalg import Scalar, Vec
from torsor.model.freedoms import limited_coordinates
from torsor.model.joints import JOINTS
from torsor.model.model import Model
from torsor.motion.law import Law
from torsor.motion.laws import DRIVE, Action, action, passing

Scalars = Sequence[Scalar]
# The requests of a plant: accelerations from (q, v, tau, added inertia or None) and a time of the step; torques from
# (q, v, accelerations); and the results of functions at (q, v) and a time: torque, stiffness and damping of the drives,
# then those of other forces.
Accelerate = Callable[[Scalars, Scalars, Scalars, Scalars | None, int], Scalars]
Inverse = Callable[[Model, Scalars, Scalars, Scalars], Scalars]
Functions = Callable[[Scalars, Scalars, int], Sequence[Scalars]]
Evaluate = Callable[..., Scalars]  # (algorithm, model, *inputs) -> its output, of any other algorithm


class Plant:
    """A machine under a law.

    values     the law's numbers;  commands: rows (rows * nv,) at `steps.Method.times`, one after the other
    accelerate, inverse, functions, evaluate    the functions that answer its requests
    """

    def __init__(self, law: Law, values: Scalars, commands: Scalars, accelerate: Accelerate,
                 inverse: Inverse, functions: Functions | None = None,
                 evaluate: Evaluate | None = None) -> None:  # fmt: skip
        self.law, self.model, self.accelerate, self.inverse = law, law.model, accelerate, inverse
        self.functions, self.evaluate, nv = functions, evaluate, law.model.nv
        self.commands = [commands[k : k + nv] for k in range(0, len(commands), nv)]
        self.gains: list[list[tuple[int, Scalar]]] = [[] for _ in range(nv)]
        for (row, column), value in zip(law.gains.tolist(), values[law.layout.gains]):
            self.gains[row].append((column, value))
        self.tracking = [values[place] for place in law.layout.tracking]  # kp and kd, or nothing
        self.kinds: list[list[str]] = [[] for _ in range(nv)]
        self.numbers: list[list[Scalar]] = [[] for _ in range(nv)]
        for kind, freedoms, places in law.layout.parts:
            for i, *own in zip(freedoms, *(values[place] for place in places)):
                self.kinds[i].append(kind)
                self.numbers[i] += own
        self.springs = [(body, Vec.of(values[rest]), Vec.of(values[k])) for body, rest, k in law.layout.curved]

    # ---- forces ----

    def free(self, q: Scalars, v: Scalars, at: int = 0) -> Scalars:
        """The accelerations under the law, with commands and wrenches at time `at` of the step."""
        return self.accelerate(q, v, [x.tau for x in self.actions(q, v, at)[0]], None, at)

    def actions(self, q: Scalars, v: Scalars, at: int = 0) -> tuple[list[Action], list[Action]]:
        """The torque at every freedom with its slopes, and the commands of the drives before their limits."""
        column = limited_coordinates(self.model).tolist()
        called = self.functions(q, v, at) if self.functions else None
        drives = self._drives(q, v, at)
        if called:
            drives = [u.and_(Action(*own)) for u, *own in zip(drives, *called[:3])]
        total = []
        for i, (u, own) in enumerate(zip(drives, self.numbers)):
            total.append(action(self.kinds[i], u, q[column[i]], v[i], iter(own)))
        if called:
            total = [x.and_(Action(*own)) for x, *own in zip(total, *called[3:])]
        for body, rest, stiffness in self.springs:
            first, joint = int(self.model.v_start[body]), JOINTS[self.model.joint[body]]
            own_q = Vec.of(q[self.model.q_start[body] : self.model.q_start[body + 1]])
            for k, (tau, slope) in enumerate(zip(*joint.spring(own_q, rest, stiffness)), first):
                total[k] = total[k].and_(Action(tau, slope))
        return total, drives

    def _drives(self, q: Scalars, v: Scalars, at: int) -> list[Action]:
        """The commands of the drives, without those of functions."""
        x, column, nq = [*q, *v], limited_coordinates(self.model).tolist(), self.model.nq
        rows = self.commands[at * self.law.rows :][: self.law.rows] or self.commands[: self.law.rows]
        commands = []
        for i, (tau, row) in enumerate(zip(rows[0], self.gains)):
            K: Scalar = 0.0
            D: Scalar = 0.0
            for k, value in row:
                tau = tau - value * x[k]
                K, D = K + value if k == column[i] else K, D + value if k == nq + i else D
            commands.append(Action(tau, K, D))
        if self.law.tracked is not None:
            wanted = [a - kp * y - kd * z for a, kp, kd, y, z in zip(rows[1], *self.tracking, q, v)]
            torques = self.inverse(self.law.tracked, q, v, wanted)
            commands = [u.and_(Action(tau)) for u, tau in zip(commands, torques)]
        if self.law.policy:
            commands = [u.and_(Action(tau)) for u, tau in zip(commands, self.law.policy(x))]
        return commands

    def tracked_gains(self, q: Scalars, v: Scalars, drives: Sequence[Action]) -> list[tuple[Scalar, Scalar]]:
        """(kp, kd) of the computed torques at every freedom; zero while the limits of any drive cut off its torque."""
        passed: Scalar = 1.0
        for x, rate, u, kinds, numbers in zip(q, v, drives, self.kinds, self.numbers):
            if any(kind in DRIVE for kind in kinds):
                passed = passed * passing(kinds, u.tau, x, rate, iter(numbers))
        return [(kp * passed, kd * passed) for kp, kd in zip(*self.tracking)]

    # ---- how states move ----

    def moved(self, x: Scalars, rate: Scalars, h: Scalar) -> list[Scalar]:
        return [a + b * h for a, b in zip(x, rate)]

    def stepped(self, q: Scalars, v: Scalars, a: Scalars, h: Scalar) -> tuple[list[Scalar], list[Scalar]]:
        """(q, v) after a step in which velocities change first (`Joint.stepped`)."""
        found = [JOINTS[code].stepped(*own, h) for code, *own in self._joints(q, v, a)]
        return [x for own, _ in found for x in own], [x for _, own in found for x in own]

    def rate(self, q: Scalars, v: Scalars) -> list[Scalar]:
        """dq/dt = N(q) v."""
        return [x for code, *own in self._joints(q, v) for x in JOINTS[code].rate(*own)]

    def retracted(self, q: Scalars, y: Scalars) -> list[Scalar]:
        """q [+] y: moved by the constant velocity y for unit time."""
        return [x for code, *own in self._joints(q, y) for x in JOINTS[code].retract(*own)]

    def normalised(self, q: Scalars) -> list[Scalar]:
        """q with every quaternion at unit length."""
        return [x for code, own in self._joints(q) for x in JOINTS[code].normalised(own)]

    def _joints(self, q: Scalars, *others: Scalars) -> Any:
        """(code, part of q, part of v, ...) of every joint."""
        starts = self.model.q_start, *(self.model.v_start for _ in others)
        parts = ([Vec.of(x[i:j]) for i, j in pairwise(start.tolist())] for x, start in zip((q, *others), starts))
        return zip(self.model.joint, *parts)
