"""Members side by side: every lane of a vector moves a member of its own, with a step of its own.

A step of the integrator is one kernel, traced from the same steps as a rollout (`torsor.motion.rollout`).  The
numbers in which the members differ are inputs of it.  Fixed steps move all members together.  Adaptive steps (Dormand &
Prince 1980, as in `torsor.motion`) have a step size per lane; a lane whose member has arrived takes the next member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.compiler.members import members
from torsor.linalg import Scalar
from torsor.model.batch import ModelBatch
from torsor.motion.rollout import Law, Plant, member_kernel, step
from torsor.motion.runge_kutta import DormandPrince
from torsor.motion.stops import Stop, Watch, watching

Array = NDArray[Any]
Scalars = Sequence[Scalar]

LANES = 1024  # members that are moved together: their states stay in the cache
OK, DIVERGED, STUCK, IMPOSSIBLE = 1, 2, 3, 4
STOPPED = 10  # and more: by which stop condition
HALVINGS = 50  # of a step, to find where a member stops
REASONS = {
    0: "not yet", OK: "ok", DIVERGED: "diverged: its state is not finite", STUCK: "its step became too small",
    IMPOSSIBLE: "no such machine can exist",
}  # fmt: skip
FIRST_STEP, SMALLEST = 1e-3, 1e-12  # steps, relative to the duration
SAFETY, SHRINK, GROW = 0.9, 0.2, 5.0
EXPONENT = 0.2  # of the error, for a method whose error estimate has order 5
# The last term of the continuous extension (Hairer, Norsett & Wanner, Solving ODEs I, II.6), by stage.
EXTENSION = (
    -12715105075 / 11282082432, 0.0, 87487479700 / 32700410799, -10690763975 / 1880347072,
    701980252875 / 199316789632, -1453857185 / 822651844, 69997945 / 29380423,
)  # fmt: skip


@dataclass(frozen=True)
class Steps:
    """How members are moved in time: `method` with steps of dt, or adaptively ("dopri5") to tolerances."""

    times: Array  # at which states are stored, the first not before 0
    method: str = "dopri5"
    dt: float = 1e-3
    rtol: float = 1e-6
    atol: float = 1e-9
    stops: tuple[Stop, ...] = ()  # conditions under which a member stays where it is

    @property
    def adaptive(self) -> bool:
        return self.method == "dopri5"


class Engine:
    """The kernel that moves the members of one structure under one law."""

    def __init__(self, batch: ModelBatch, law: Law, steps: Steps) -> None:
        self.steps, self.nq, self.width = steps, batch.model.nq, batch.model.nq + batch.model.nv
        found, key = members(batch), ("ensemble", law.key, steps.method)
        self.kernel = found.store.once(key, lambda: member_kernel(found, law, moving(steps)))
        self.outside = watching(batch.model, steps.stops, found, "float64") if steps.stops else None

    def moved(self, y: Array, h: Array, given: Sequence[Array], out: Array | None = None) -> Array:
        """One step of the states y (members, nq + nv)."""
        tau, gain, *numbers = given
        return self.kernel(y[:, : self.nq], y[:, self.nq :], tau, gain, h, *numbers, out=out)

    def run(self, states: Mapping[str, Array], numbers: Sequence[Array]) -> tuple[Array, Array, Array]:
        """The states (members, times, nq + nv) at the times, what became of each member, and when it stopped."""
        y = np.concatenate([states["q0"], states["v0"]], axis=1)
        given = [states["tau"], states["gain"], *numbers]
        out = np.full((len(y), len(self.steps.times), self.width), np.nan)
        status, when = np.full(len(y), OK, np.int8), np.full(len(y), np.nan)
        with np.errstate(all="ignore"):
            if self.steps.adaptive:
                _Lanes(self, y, given, out, status, when).run()
            else:
                for first in range(0, len(y), LANES):
                    part = slice(first, first + LANES)
                    self._fixed(y[part], [x[part] for x in given], out[part], status[part], when[part])
        status[(status == OK) & ~np.isfinite(out).all(axis=(1, 2))] = DIVERGED
        return out, status, when

    def gone(self, y: Array, given: Sequence[Array]) -> Array:
        """(members, stops): how far each state is beyond each stop condition."""
        assert self.outside is not None
        return self.outside(y[:, : self.nq], y[:, self.nq :], *given[2:])

    def _fixed(self, y: Array, given: Sequence[Array], out: Array, status: Array, when: Array) -> None:
        dt, times = self.steps.dt, self.steps.times
        ends = np.rint(times / dt).astype(int)
        y, new, h = y.copy(), np.empty_like(y), np.array([dt])
        watch = Watch(self.outside, given[2:], len(y), None) if self.outside else None
        if watch:
            watch.look(y, self.nq, 0)
        done = 0
        for k, end in enumerate(ends):
            for count in range(done + 1, end + 1):
                self.moved(y, h, given, new)
                y, new = new, y
                if watch:
                    y[watch.frozen] = new[watch.frozen]
                    watch.look(y, self.nq, count)
            done = end
            out[:, k] = y
        if watch:
            status[watch.frozen] = STOPPED - 1 + watch.reason[watch.frozen]
            when[watch.frozen] = watch.first[watch.frozen] * dt


def moving(steps: Steps) -> Callable[..., Any]:
    """The step of a method, over any scalar."""
    return embedded if steps.adaptive else partial(step, steps.method)


def embedded(plant: Plant, q: Scalars, v: Scalars, h: Scalar) -> list[list[Scalar]]:
    """A step of Dormand & Prince: the new state, h times its derivative at the start and at the end, the term of the
    continuous extension, and the error, a row each."""
    n, A, (E,) = len(q), DormandPrince.A, DormandPrince.E
    y: list[Scalar] = [*q, *v]

    def slope(y: Scalars) -> list[Scalar]:
        return [x * h for x in (*plant.rate(y[:n], y[n:]), *plant.free(y[:n], y[n:]))]

    def combined(weights: Sequence[float], k: Sequence[Scalars]) -> list[Scalar]:
        sums: list[Scalar] = []
        for terms in zip(*k):
            total: Scalar = 0.0
            for w, x in zip(weights, terms):
                total = total + x * float(w) if w else total
            sums.append(total)
        return sums

    k = [slope(y)]
    for row in A[1:]:  # the last stage is at the new state
        new = [a + b for a, b in zip(y, combined(row, k))]
        k.append(slope(new))
    return [[*plant.normalised(new[:n]), *new[n:]], k[0], k[-1], combined(EXTENSION, k), combined(E, k)]


class _Step(NamedTuple):
    """A step of every lane: from y to new in the time h, with what `embedded` gives."""

    y: Array
    h: Array
    new: Array
    k1: Array
    k7: Array
    extension: Array

    def between(self, lanes: Array, share: Array) -> Array:
        """The states of some lanes after a part of the step: its continuous extension (Hairer & al., II.6)."""
        y0, end, s = self.y[lanes], self.new[lanes], share[:, None]
        change = end - y0
        bend = self.k1[lanes] - change
        tail = change - self.k7[lanes] - bend
        value = y0 + s * (change + (1 - s) * (bend + s * (tail + (1 - s) * self.extension[lanes])))
        at_end = share >= 1
        value[at_end] = end[at_end]
        return value


class _Lanes:
    """Adaptive steps: a lane holds a member until it has arrived, and then takes the next one."""

    def __init__(self, engine: Engine, y: Array, given: Sequence[Array], out: Array, status: Array,
                 when: Array) -> None:  # fmt: skip
        self.engine, self.start, self.given, self.out, self.status, self.when = engine, y, given, out, status, when
        count = min(LANES, len(y))
        self.member = np.arange(count)  # in each lane
        self.next = count
        self.y, self.t, self.row = y[:count].copy(), np.zeros(count), np.zeros(count, int)
        self.own = [x[:count].copy() for x in given]
        self.h = np.full(count, np.nan)
        self.fresh = np.ones(count, bool)  # has no step size yet

    def run(self) -> None:
        steps = self.engine.steps
        end = float(steps.times[-1])
        self._store_start()
        while len(self.member):
            h = np.minimum(np.where(self.fresh, FIRST_STEP * end, self.h), end - self.t)
            result = self.engine.moved(self.y, h[:, None], self.own)
            new, k1, k7, extension, error = np.moveaxis(result, -2, 0)
            scale = steps.atol + steps.rtol * np.maximum(np.abs(self.y), np.abs(new))
            size = np.sqrt(np.mean((error / scale) ** 2, axis=-1))
            accepted = size <= 1
            factor = np.where(size > 0, SAFETY * size**-EXPONENT, GROW)
            factor = np.where(np.isfinite(size), np.clip(factor, SHRINK, GROW), SHRINK)
            step = _Step(self.y, h, new, k1, k7, extension)
            share = self._stopping(accepted, step)
            self._store(accepted, step, self.t + np.where(np.isnan(share), h, share * h))
            stopped = self._stop(step, share)
            self.y[accepted] = new[accepted]
            self.t[accepted] += h[accepted]
            self.h, self.fresh = h * factor, np.zeros(len(h), bool)
            stuck = ~accepted & (self.h < SMALLEST * end)
            self.status[self.member[stuck]] = np.where(np.isfinite(size[stuck]), STUCK, DIVERGED)
            arrived = accepted & (self.row >= len(steps.times))
            self._refill(stuck | arrived | stopped)

    def _stopping(self, accepted: Array, step: _Step) -> Array:
        """The part of its step after which each lane stops, found by halving; NaN for lanes that go on."""
        share = np.full(len(accepted), np.nan)
        if not self.engine.steps.stops:
            return share
        at_once = (self.engine.gone(self.y, self.own) > 0).any(axis=1) & self.fresh
        lanes = np.flatnonzero(accepted & ~at_once & (self.engine.gone(step.new, self.own) > 0).any(axis=1))
        low, high = np.zeros(len(lanes)), np.ones(len(lanes))
        own = [x[lanes] for x in self.own]
        for _ in range(HALVINGS if len(lanes) else 0):
            middle = (low + high) / 2
            beyond = (self.engine.gone(step.between(lanes, middle), own) > 0).any(axis=1)
            low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
        share[lanes] = high
        share[at_once] = 0.0
        return share

    def _stop(self, step: _Step, share: Array) -> Array:
        """Which lanes stop; their members stay where they are."""
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
        """The states at time 0, where that is asked for."""
        at_start = self.engine.steps.times <= 0
        count = int(at_start.sum())
        self.out[:, :count] = self.start[:, None]
        self.row[:] = count
        self.first_row = count

    def _store(self, accepted: Array, step: _Step, t1: Array) -> None:
        """The continuous extension of accepted steps, at all times that they pass up to t1."""
        times = self.engine.steps.times
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
        """Give the lanes that are free the next members; when there are none, drop the lanes."""
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
