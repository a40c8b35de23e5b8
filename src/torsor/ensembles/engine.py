"""Members side by side: every lane of a vector moves one member, with its own step size.

Fixed steps are those of a rollout (`torsor.motion.driver`), to the same bits. Adaptive steps (Dormand & Prince 1980, as
in `torsor.motion`) are one kernel, traced from `embedded`, with one step size per lane; a lane whose member is finished
takes the next member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.dynamics.members import members
from torsor.errors import ArgumentError
from torsor.linalg import Scalar
from torsor.model.batch import ModelBatch
from torsor.motion.driver import INSIDE, Fixed, States, advance, watch_of
from torsor.motion.law import Law
from torsor.motion.lowering import Step, lowered
from torsor.motion.plant import Plant
from torsor.motion.runge_kutta import DormandPrince
from torsor.motion.steps import METHODS
from torsor.motion.stops import Stop, watching
from torsor.motion.time_loop import at_once

Array = NDArray[Any]
Scalars = Sequence[Scalar]

LANES = 1024  # members moved together, so that their states stay in the cache
OK, DIVERGED, STUCK, IMPOSSIBLE = 1, 2, 3, 4
STOPPED = 10  # plus the index of the stop condition
HALVINGS = 50  # of a step, to find where a member stops
LOOKS = 8  # parts of a step, at whose ends stop conditions are checked
TURNS = 4  # parabolas to find the extremum of a condition that turns back between two checks
REASONS = {
    0: "not yet", OK: "ok", DIVERGED: "diverged: its state is not finite", STUCK: "its step became too small",
    IMPOSSIBLE: "no such machine can exist",
}  # fmt: skip
FIRST_STEP, SMALLEST = 1e-3, 1e-12  # steps, relative to the duration
KNOT = 1e-12  # a knot this close, relative to the duration, counts as reached
CONTROL = DormandPrince.control
TIMES = tuple(DormandPrince.A.sum(axis=1).tolist())
# The last term of the dense output (Hairer, Norsett & Wanner, Solving ODEs I, II.6), by stage.
EXTENSION = (
    -12715105075 / 11282082432, 0.0, 87487479700 / 32700410799, -10690763975 / 1880347072,
    701980252875 / 199316789632, -1453857185 / 822651844, 69997945 / 29380423,
)  # fmt: skip


@dataclass(frozen=True)
class Timing:
    """How members move in time: `method` with steps of fixed length, or adaptively ("dopri5") to tolerances."""

    times: Array  # the times of stored states, the first not before 0
    method: str
    step: float
    rtol: float
    atol: float
    stops: tuple[Stop, ...] = ()  # conditions under which a member stays where it is
    begin: float = 0.0  # the time of the forces at time 0

    @property
    def adaptive(self) -> bool:
        return self.method == "dopri5"

    def described(self) -> dict[str, Any]:
        """The method and its numbers."""
        return {name: getattr(self, name) for name in ("method", "step", "rtol", "atol")}


def step_of(batch: ModelBatch, law: Law, timing: Timing) -> Step:
    """The step of the members of a batch."""
    if not timing.adaptive:
        return fixed(batch, law, timing).step
    if law.called or any(x.batch for x in law.schedules):
        raise ArgumentError(
            "members with a step size of their own take forces that are data, and follow motions with the same gains: "
            f"choose one of the methods {', '.join(METHODS)}"
        )
    slots, waves = (len(TIMES) if change else 1 for change in (law.changes, law.waves))
    return Step(embedded, "dopri5", law, slots, members=members(batch), waves=waves)


def fixed(batch: ModelBatch, law: Law, timing: Timing) -> Fixed:
    """The fixed steps of the members of a batch."""
    return Fixed(batch, law, METHODS[timing.method], timing.method, timing.step, timing.begin)


class LaneEngine:
    """Moves the members of one structure under one law."""

    def __init__(self, batch: ModelBatch, law: Law, timing: Timing) -> None:
        self.batch, self.law, self.timing = batch, law, timing
        self.nq, self.width = batch.model.nq, batch.model.nq + batch.model.nv
        self.step = lowered(step_of(batch, law, timing))
        self.outside = watching(batch.model, timing.stops, members(batch), "float64") if timing.stops else None

    def read(self, t: Array, h: Array, constant: Array, gain: Array, *numbers: Array) -> list[Array]:
        """The inputs of the steps of all lanes after their states: those of the member, and time-dependent ones."""
        law, m, found = self.law, len(t), [constant, gain, *numbers]
        if not law.schedules:
            return found
        inside = np.clip(TIMES, INSIDE, 1 - INSIDE) if len(law.knots) else np.array(TIMES)
        times = (self.timing.begin + t[:, None] + h[:, None] * inside).ravel()
        if law.changes:
            common = replace(law, constant=np.zeros(law.constant.shape[-2:]))
            found[0] = (common.commands_at(times).reshape(m, len(inside), -1) + constant[:, None]).reshape(m, -1)
        if law.schedule is not None:
            common = replace(law, values=np.zeros(law.values.shape[-1:]))
            found[1] = gain + common.values_at(times[:: len(inside)])
        if law.waves:
            found[2] = numbers[0] + law.waves_at(times).reshape(numbers[0].shape)
        return found

    def next_knot(self, t: Array) -> Array:
        """The next time when a command jumps or bends: steps end there."""
        knots = np.append(self.law.knots - self.timing.begin, np.inf)
        return knots[knots.searchsorted(t + KNOT * self.timing.times[-1], "right")]

    def run(self, q0: Array, v0: Array) -> tuple[Array, Array, Array]:
        """The states (members, times, nq + nv) at the times, the status of each member, and its stop time."""
        out = np.full((len(q0), len(self.timing.times), self.width), np.nan)
        status, when = np.full(len(q0), OK, np.int8), np.full(len(q0), np.nan)
        with np.errstate(all="ignore"):
            (self._adaptive if self.timing.adaptive else self._fixed)(q0, v0, out, status, when)
        status[(status == OK) & ~np.isfinite(out).all(axis=(1, 2))] = DIVERGED
        return out, status, when

    def _fixed(self, q0: Array, v0: Array, out: Array, status: Array, when: Array) -> None:
        timing, setup = self.timing, fixed(self.batch, self.law, self.timing)
        ends = np.rint(timing.times / timing.step).astype(int).tolist()
        states = States(setup, {"q": q0, "v": v0}, ends[-1])
        for first in range(0, len(q0), LANES):
            rows = slice(first, first + LANES)
            part = states.part(rows)
            x = np.concatenate([part["q"], part["v"]], axis=1)
            watch = watch_of(setup, timing.stops, part, None) if timing.stops else None
            advance(states, part, x, ends, out[rows], watch)
            if watch:
                status[rows][watch.frozen] = STOPPED - 1 + watch.reason[watch.frozen]
                when[rows][watch.frozen] = watch.first[watch.frozen] * timing.step

    def _adaptive(self, q0: Array, v0: Array, out: Array, status: Array, when: Array) -> None:
        count, law = len(q0), self.law
        constant = np.broadcast_to(law.constant.reshape(*law.constant.shape[:-2], -1), (count, law.constant[0].size
                                   if law.constant.ndim > 2 else law.constant.size))  # fmt: skip
        gain = np.broadcast_to(law.values, (count, law.values.shape[-1]))
        numbers = {**self.step.step.loads, **members(self.batch).inputs}
        shape = self.step.step.inputs
        given = [
            constant,
            gain,
            *(np.broadcast_to(numbers[name], (count, *shape[name])) for name in self.step.step.numbers),
        ]
        _Lanes(self, np.concatenate([q0, v0], axis=1), given, out, status, when).run()

    def gone(self, y: Array, given: Sequence[Array]) -> Array:
        """(members, stops): the distance of each state beyond each stop condition."""
        assert self.outside is not None
        loads = len(self.law.load_names)
        return self.outside(y[:, : self.nq], y[:, self.nq :], *given[2 + loads :])


def embedded(plant: Plant, q: Scalars, v: Scalars, h: Scalar) -> list[list[Scalar]]:
    """A step of Dormand & Prince: the new state, h times its derivative at the start and at the end, the term of the
    dense output, and the error, one row each."""
    n, A, (E,) = len(q), DormandPrince.A, DormandPrince.E
    y: list[Scalar] = [*q, *v]

    def slope(y: Scalars, at: int) -> list[Scalar]:
        return [x * h for x in (*plant.rate(y[:n], y[n:]), *plant.free(y[:n], y[n:], at))]

    def combined(weights: Sequence[float], k: Sequence[Scalars]) -> list[Scalar]:
        sums: list[Scalar] = []
        for terms in zip(*k):
            total: Scalar = 0.0
            for w, x in zip(weights, terms):
                total = total + x * float(w) if w else total
            sums.append(total)
        return sums

    k = [slope(y, 0)]
    for at, row in enumerate(A[1:], 1):  # the last stage is at the new state
        new = [a + b for a, b in zip(y, combined(row, k))]
        k.append(slope(new, at))
    return [[*plant.normalised(new[:n]), *new[n:]], k[0], k[-1], combined(EXTENSION, k), combined(E, k)]


class LaneStep(NamedTuple):
    """A step of every lane, from y to new in the time h, with the results of `embedded`."""

    y: Array
    h: Array
    new: Array
    k1: Array
    k7: Array
    extension: Array

    def between(self, lanes: Array, share: Array) -> Array:
        """The states of some lanes after a part of the step, by the dense output (Hairer & al., II.6)."""
        y0, end, s = self.y[lanes], self.new[lanes], share[:, None]
        change = end - y0
        bend = self.k1[lanes] - change
        tail = change - self.k7[lanes] - bend
        value = y0 + s * (change + (1 - s) * (bend + s * (tail + (1 - s) * self.extension[lanes])))
        at_end = share >= 1
        value[at_end] = end[at_end]
        return value


class _Lanes:
    """Adaptive steps: a lane moves a member to the end, and then takes the next one."""

    def __init__(self, engine: LaneEngine, y: Array, given: Sequence[Array], out: Array, status: Array,
                 when: Array) -> None:  # fmt: skip
        self.engine, self.start, self.given, self.out, self.status, self.when = engine, y, given, out, status, when
        count = min(LANES, len(y))
        self.member = np.arange(count)  # the member in each lane
        self.next = count
        self.y, self.t, self.row = y[:count].copy(), np.zeros(count), np.zeros(count, int)
        self.own = [x[:count].copy() for x in given]
        self.h = np.full(count, np.nan)
        self.fresh = np.ones(count, bool)  # whether a lane has no step size yet

    def run(self) -> None:
        timing, nq = self.engine.timing, self.engine.nq
        end = float(timing.times[-1])
        self._store_start()
        while len(self.member):
            h = np.minimum(np.where(self.fresh, FIRST_STEP * end, self.h), end - self.t)
            h = np.minimum(h, self.engine.next_knot(self.t) - self.t)
            tau, gain, *numbers = self.engine.read(self.t, h, *self.own)
            result = at_once(self.engine.step, self.y[:, :nq], self.y[:, nq:], tau, gain, h[:, None], *numbers)
            new, k1, k7, extension, error = np.moveaxis(result, -2, 0)
            scale = timing.atol + timing.rtol * np.maximum(np.abs(self.y), np.abs(new))
            size = np.sqrt(np.mean((error / scale) ** 2, axis=-1))
            accepted = size <= 1
            step = LaneStep(self.y, h, new, k1, k7, extension)
            share = self._stopping(accepted, step)
            self._store(accepted, step, self.t + np.where(np.isnan(share), h, share * h))
            stopped = self._stop(step, share)
            self.y[accepted] = new[accepted]
            self.t[accepted] += h[accepted]
            self.h, self.fresh = h * CONTROL.factors(size), np.zeros(len(h), bool)
            stuck = ~accepted & (self.h < SMALLEST * end)
            self.status[self.member[stuck]] = np.where(np.isfinite(size[stuck]), STUCK, DIVERGED)
            arrived = accepted & (self.row >= len(timing.times))
            self._refill(stuck | arrived | stopped)

    def _stopping(self, accepted: Array, step: LaneStep) -> Array:
        """The part of its step after which each lane stops, found by bisection; NaN for lanes that continue.

        Conditions are checked after every LOOKS-th part of a step, and where they come close to zero and turn back.
        """
        share = np.full(len(accepted), np.nan)
        if not self.engine.timing.stops:
            return share
        excess = self.engine.gone(self.y, self.own)
        at_once = (excess > 0).any(axis=1) & self.fresh
        lanes = np.flatnonzero(accepted & ~at_once)
        looks: list[Array] = []  # the last three checks
        for part in range(LOOKS + 1):
            states = step.between(lanes, np.full(len(lanes), part / LOOKS)) if part else self.y[lanes]
            looks = [*looks, self.engine.gone(states, [x[lanes] for x in self.own]) if part else excess[lanes]][-3:]
            end = np.where((looks[-1] > 0).any(axis=1) & (part > 0), part / LOOKS, np.nan)
            if len(looks) == 3:
                end = np.fmin(end, self._turned(step, lanes, (part - 2) / LOOKS, looks))
            gone = ~np.isnan(end)
            begin = np.full(len(lanes), max(part - 1, 0) / LOOKS)
            begin[end < part / LOOKS] = (part - 2) / LOOKS
            share[lanes[gone]] = self._halved(step, lanes[gone], begin[gone], end[gone])
            lanes, looks = lanes[~gone], [x[~gone] for x in looks]
            if not len(lanes):
                break
        share[at_once] = 0.0
        return share

    def _turned(self, step: LaneStep, lanes: Array, begin: float, looks: list[Array]) -> Array:
        """Where a lane is outside between three checks from `begin` on, although inside at all three; else NaN."""
        found, ends = np.full(len(lanes), np.nan), np.minimum(looks[0], looks[2])
        close = (looks[1] <= 0) & (looks[1] >= np.maximum(looks[0], looks[2])) & (2 * looks[1] > ends)
        for row, stop in np.argwhere(close):
            points = [(begin + k / LOOKS, float(x[row, stop])) for k, x in enumerate(looks)]
            own, lane = [x[lanes[[row]]] for x in self.own], lanes[[row]]
            for _ in range(TURNS):
                (a, fa), (b, fb), (c, fc) = points
                left, right = (b - a) * (fb - fc), (b - c) * (fb - fa)
                t = b - ((b - a) * left - (b - c) * right) / (2 * (left - right)) if left != right else b
                f = float(self.engine.gone(step.between(lane, np.array([t])), own)[0, stop])
                if f > 0:
                    found[row] = np.fmin(found[row], t)
                if f > 0 or not f > fb:
                    break
                points = [(a, fa), (t, f), (b, fb)] if t < b else [(b, fb), (t, f), (c, fc)]
        return found

    def _halved(self, step: LaneStep, lanes: Array, low: Array, high: Array) -> Array:
        own = [x[lanes] for x in self.own]
        for _ in range(HALVINGS if len(lanes) else 0):
            middle = (low + high) / 2
            beyond = (self.engine.gone(step.between(lanes, middle), own) > 0).any(axis=1)
            low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
        return high

    def _stop(self, step: LaneStep, share: Array) -> Array:
        """The lanes that stop; their members stay where they are."""
        lanes = np.flatnonzero(~np.isnan(share))
        if len(lanes):
            end = step.between(lanes, share[lanes])
            for lane, y in zip(lanes, end):
                self.out[self.member[lane], self.row[lane] :] = y
            reason = (self.engine.gone(end, [x[lanes] for x in self.own]) > 0).argmax(axis=1)
            self.status[self.member[lanes]] = STOPPED + reason
            self.when[self.member[lanes]] = self.t[lanes] + share[lanes] * step.h[lanes]
        return ~np.isnan(share)

    def _store_start(self) -> None:
        """Store the states at time 0, if requested."""
        at_start = self.engine.timing.times <= 0
        count = int(at_start.sum())
        self.out[:, :count] = self.start[:, None]
        self.row[:] = count
        self.first_row = count

    def _store(self, accepted: Array, step: LaneStep, t1: Array) -> None:
        """Store the dense output of accepted steps, at all stored times that they pass up to t1."""
        times = self.engine.timing.times
        lanes = np.flatnonzero(accepted)
        while len(lanes):
            rows = self.row[lanes]
            open_ = rows < len(times)
            lanes, rows = lanes[open_], rows[open_]
            inside = times[rows] <= t1[lanes] * (1 + 1e-15)
            lanes, rows = lanes[inside], rows[inside]
            if not len(lanes):
                break
            self.out[self.member[lanes], rows] = step.between(lanes, (times[rows] - self.t[lanes]) / step.h[lanes])
            self.row[lanes] += 1

    def _refill(self, free: Array) -> None:
        """Give free lanes the next members; without further members, drop the lanes."""
        places = np.flatnonzero(free)
        count = min(len(places), len(self.start) - self.next)
        taken, dropped = places[:count], places[count:]
        fresh = np.arange(self.next, self.next + count)
        self.next += count
        self.member[taken], self.y[taken], self.t[taken], self.row[taken] = (
            fresh,
            self.start[fresh],
            0.0,
            self.first_row,
        )
        self.fresh[taken] = True
        for own, x in zip(self.own, self.given):
            own[taken] = x[fresh]
        if len(dropped):
            keep = np.ones(len(self.member), bool)
            keep[dropped] = False
            for name in ("member", "y", "t", "row", "h", "fresh"):
                setattr(self, name, getattr(self, name)[keep])
            self.own = [x[keep] for x in self.own]


def members_of(given: Mapping[str, Any]) -> int:
    """The number of members."""
    return len(next(iter(given.values())))
