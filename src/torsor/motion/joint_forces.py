"""The sum of all forces at the joints: those that are data in one kernel, all others called one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from torsor.model.freedoms import limited_coordinates
from torsor.model.model import Model
from torsor.motion.forces import ComputedTorque, External, Force, Pull
from torsor.motion.laws import FAR, KINDS, Part, kernel, most, passing

Array = NDArray[Any]

STEP = 1e-6  # of differences, relative to the commands


class JointForces:
    """tau(t, q, v) = law(x, v, u(t, q, v)) + other forces, with the law of `laws.py` at every joint.

    kinds, numbers   of the law: kinds of its parts, and all their numbers, (nv,) each
    commanded        forces that give the command u as a function of time
    pushes           forces on the bodies that are data, `External` and `Pull`; `loads` are the sums of those that never
                     change, by the name of the option of the forward dynamics that takes them
    waves            those pushes that change in time
    drives, others   forces that are functions of the state: as commands of the drives, and beside them
    computed         those drives that are data: computed torques
    """

    def __init__(self, model: Model, forces: Sequence[Force]) -> None:
        self.model = model
        self.commanded: list[Any] = []
        self.pushes: list[Any] = []
        self.drives: list[Force] = []
        self.others: list[Force] = []
        parts: list[Part] = []
        servo, spring = np.zeros((2, model.nv)), np.zeros((3, model.nv))
        for force in forces:
            if getattr(force, "drive", False):
                if (gains := getattr(force, "servo", lambda: None)()) is None:
                    self.drives.append(force)
                    continue
                self.commanded.append(force)
                for total, gain in zip(servo, gains):
                    total += gain
                continue
            if _is_push(force) and _same_places(force.weightless, model):
                self.pushes.append(force)
                continue
            if (own := getattr(force, "parts", lambda: None)()) is None:
                self.others.append(force)
                continue
            parts += [part for part in own if part.kind != "spring"]
            for numbers in (part.numbers for part in own if part.kind == "spring"):
                for total, number in zip(spring, numbers):
                    total += number
        limits = [(kind, most(getattr(model, kind))) for kind in ("effort", "speed")]
        limits = [(kind, x) for kind, x in limits if (x < FAR).any()]
        if limits:
            parts += [Part("servo", tuple(servo))] if servo.any() else []
            parts += [Part(kind, (x,)) for kind, x in limits]
        else:  # a drive without limits adds to springs and dampers
            spring[1:] += servo
        parts = [Part("spring", tuple(spring)), *parts] if spring.any() else parts
        self.kinds = tuple(part.kind for part in parts)
        self.numbers = [np.array(np.broadcast_to(x, model.nv), float) for part in parts for x in part.numbers]
        self.waves = [force for force in self.pushes if isinstance(force, External) and force.table]
        self.loads = _loads(self.pushes)
        self.computed = [force for force in self.drives if isinstance(force, ComputedTorque) and force.is_data(model)]
        column = limited_coordinates(model)
        self._coordinate = None if np.array_equal(column, np.arange(model.nq)) else column
        self._fixed = self.command(0.0) if all(force.steady for force in self.commanded) else None

    @property
    def commands(self) -> list[tuple[bool, Callable[[Sequence[float]], Array]]]:
        """Whether it never changes, and its function of many times: for the command of the drives, and for the
        accelerations that each computed torque demands."""
        return [(self._fixed is not None, self._commands), *((force.steady, force.commands) for force in self.computed)]

    @property
    def is_data(self) -> bool:
        """Whether no force has to be called with the state."""
        return len(self.computed) == len(self.drives) and not self.others

    @property
    def constant(self) -> Array | None:
        """The torques, if they never change; what wrenches do at the joints is not among them."""
        return self._fixed if self.is_data and not self.kinds and not self.drives else None

    @property
    def linear(self) -> tuple[Array, ...] | None:
        """(c, K, D) if tau = c - K q - D v with numbers that never change, beside wrenches."""
        if not self.is_data or self.drives or self._fixed is None or self.kinds != ("spring",):
            return None
        pull, stiffness, damping = self.numbers
        return self._fixed + pull, stiffness, damping

    @property
    def bounds(self) -> list[tuple[Array, Array]]:
        """(lower, upper) of all stops."""
        numbers = iter(self.numbers)
        own = [(kind, [next(numbers) for _ in KINDS[kind][1]]) for kind in self.kinds]
        return [(x[0], x[1]) for kind, x in own if kind == "stops"]

    def command(self, t: float) -> Array:
        """Those commands of the drives that are data."""
        u = np.zeros(self.model.nv)
        for force in self.commanded:
            u += force.command(t)
        return u

    def _commands(self, t: Sequence[float] | Array) -> Array:
        """`command` at many times, (m, nv)."""
        u = np.zeros((len(t), self.model.nv))
        for force in self.commanded:
            many = getattr(force, "commands", None)
            u += [force.command(x) for x in t] if many is None else many(t)
        return u

    def torque(self, t: float, q: Array, v: Array) -> Array:
        u = self._drive(t, q, v)
        tau = self.kernel(*self._state(q, v), u, *self.numbers) if self.kinds else u
        for force in (*self.pushes, *self.others):
            tau = tau + force(t, q, v)
        return tau

    def torques(self, t: Array, q: Array, v: Array) -> Array:
        """The torques of many states, (m, nv)."""
        if len(self.computed) < len(self.drives) or self.others:
            return np.array([self.torque(*state) for state in zip(t, q, v)])
        u = self._commands(t) if self._fixed is None else np.broadcast_to(self._fixed, v.shape)
        for force in self.computed:
            u = u + force.torques(t, q, v)
        tau = self.kernel(*self._state(q, v), u, *self.numbers) if self.kinds else u
        for force in self.pushes:
            tau = tau + force.torques(t, q, v)
        return tau

    def wrenches_at(self, t: Sequence[float]) -> Array:
        """All wrenches at many times, (m, n, 6)."""
        return sum((force.at(t) for force in self.waves), self.loads["external"])

    def gains(self, t: float, q: Array, v: Array) -> tuple[Array, Array]:
        """The stiffness and the damping of all forces that know theirs, (nv,) each (see `forces.py`).

        Those that never change are the same arrays at every call.
        """
        if self.kinds == ("spring",) and not self.drives and not self.others:
            return self.numbers[1], self.numbers[2]
        if self.kinds:
            found = self._slopes(*self._state(q, v), self._drive(t, q, v), *self.numbers)
            stiffness, damping = found[..., 1].copy(), found[..., 2].copy()
        else:
            stiffness, damping = np.zeros_like(v, shape=(2, self.model.nv))
        for force in (*self.drives, *self.others):
            if (known := getattr(force, "gains", None)) is not None:
                of_force = known(t, q, v)
                stiffness += of_force[0]
                damping += of_force[1]
        return stiffness, damping

    @cached_property
    def tracking(self) -> tuple[Array, Array] | None:
        """(kp, kd) of all computed torques together: M(q) kp and M(q) kd are their stiffness and damping."""
        own = [force for force in self.drives if isinstance(force, ComputedTorque)]
        total = np.zeros((2, self.model.nv))
        for force in own:
            total[0] += force.kp
            total[1] += force.kd
        return (total[0], total[1]) if own else None

    def tracking_now(self, t: float, q: Array, v: Array) -> tuple[Array, Array] | None:
        """`tracking`, and zero while the limits of any drive cut a torque off."""
        if self.tracking is None:
            return None
        x, rate = self._state(q, v)
        share: Any = passing(self.kinds, self._drive(t, q, v), x, rate, iter(self.numbers))
        passed = np.prod(share)
        return self.tracking[0] * passed, self.tracking[1] * passed

    def changes(self, t: float, q: Array, v: Array, dq: Array, dv: Array, du: Array) -> Array:
        """How the torques of the law change (k, nv) with the coordinates (k, nq), the velocities and the commands that
        are functions of the state."""
        if not self.kinds:
            return du
        state, u = self._state(q, v), self._drive(t, q, v)
        slopes, along = self._slopes(*state, u, *self.numbers), self._state(dq, dv)
        change = -(slopes[..., 1] * along[0] + slopes[..., 2] * along[1])
        if size := np.abs(du).max(initial=0):  # the law is made of straight lines in u: any short step will do
            h = STEP * max(1.0, np.abs(u).max()) / size
            up, down = (self.kernel(*state, u + s * du, *self.numbers) for s in (h, -h))
            change = change + (up - down) / (2 * h)
        return change

    def _drive(self, t: float, q: Array, v: Array) -> Array:
        u = self.command(t) if self._fixed is None else self._fixed
        for force in self.drives:
            u = u + force(t, q, v)
        return u

    def _state(self, q: Array, v: Array) -> tuple[Array, Array]:
        """The coordinate of every freedom, and its velocity."""
        return (q if self._coordinate is None else q[..., self._coordinate]), v

    @cached_property
    def kernel(self) -> Any:
        """The law as a ufunc of x, v, u and its numbers."""
        return kernel(self.kinds, slopes=False)

    @cached_property
    def _slopes(self) -> Any:
        return kernel(self.kinds, slopes=True)


def _is_push(force: Any) -> TypeGuard[External | Pull]:
    """Whether a force is a force on the bodies that is data."""
    return isinstance(force, Pull) or (isinstance(force, External) and force.is_data)


def _loads(pushes: Sequence[Any]) -> dict[str, Array]:
    """The sum of the wrenches (n, 6) and that of the pulls (n, 12), of those that there are; tables count as zero."""
    found: dict[str, Any] = {}
    for force in pushes:
        name, load = ("pulls", force.load) if isinstance(force, Pull) else ("external", force.wrenches)
        load = np.zeros_like(force.at([0.0])[0]) if name == "external" and force.table else load
        found[name] = found.get(name, 0.0) + load
    return {name: found[name] for name in ("external", "pulls") if name in found}


def _same_places(model: Model, other: Model) -> bool:
    """Whether wrenches on the bodies of two models are felt at their joints in the same way."""
    names = "parent", "joint", "R", "p", "axis", "pitch"
    return all(np.array_equal(getattr(model, name), getattr(other, name)) for name in names)
