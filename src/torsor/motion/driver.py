"""The driver of fixed steps: it moves many states together, stores them every few steps, and stops them out of bounds.

Rollouts and ensembles of fixed steps are this driver around a `time_loop.StepRun`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor import validate
from torsor.compiler.members import Members
from torsor.dynamics.calls import checked
from torsor.dynamics.couplings import obeying
from torsor.dynamics.members import members
from torsor.errors import ArgumentError
from torsor.inputs import place_of
from torsor.model.batch import ModelBatch, machine_of, require_models
from torsor.model.model import Model
from torsor.motion.law import Law, collect
from torsor.motion.lowering import WAVES, Lowered, Step, lowered
from torsor.motion.steps import METHODS, Method
from torsor.motion.stops import Stop, Watch, watching
from torsor.motion.time_loop import StepRun

Array = NDArray[Any]
# Commands may jump at the beginning or at the end of a step: they are read this far inside it, in steps.
INSIDE = 1e-9


class Fixed(NamedTuple):
    """Fixed steps of a method under a law.

    length   the length of a step
    begin    the time at which the first step begins
    """

    machine: Model | ModelBatch
    law: Law
    method: Method
    name: str  # of the method
    length: float
    begin: float = 0.0

    @property
    def model(self) -> Model:
        return machine_of(self.machine)

    @property
    def members(self) -> Members | None:
        return members(self.machine) if isinstance(self.machine, ModelBatch) else None

    @property
    def step(self) -> Step:
        law, times = self.law, len(self.method.times)
        slots, waves = times if law.changes else 1, times if law.waves else 1
        return Step(self.method.__call__, self.name, law, slots, self.method.implicit, self.members, waves=waves)

    def kernels(self, dtype: Any) -> Lowered:
        return lowered(self.step, np.dtype(dtype).name)

    def commands(self, first: int, count: int, t0: float = 0.0) -> Array:
        """The commands of steps, (..., 1 or count, width)."""
        law, width = self.law, self.law.rows * self.model.nv
        if not law.changes:
            return law.constant.reshape(*law.constant.shape[:-2], 1, width)
        starts = np.repeat(self.starts(first, count, t0), len(self.method.times))
        found = law.commands_at(self.sample_times(first, count, t0), starts)
        return found.reshape(*found.shape[:-2], count, len(self.method.times) * width)

    def sample_times(self, first: int, count: int, t0: float = 0.0) -> Array:
        """The times at which steps read commands and wrenches, step by step."""
        times = np.array(self.method.times)
        inside = np.clip(times, INSIDE, 1 - INSIDE) if len(self.law.knots) else times
        return (t0 + self.length * (np.arange(first, first + count)[:, None] + inside)).ravel()

    def values(self, first: int, count: int, t0: float = 0.0) -> Array:
        """The law's numbers in steps, (..., 1 or count, k)."""
        if self.law.schedule is None:
            return self.law.values[..., None, :]
        return self.law.values_at(self.starts(first, count, t0))

    def starts(self, first: int, count: int, t0: float = 0.0) -> Array:
        """Times just after the beginnings of steps."""
        return t0 + self.length * (np.arange(first, first + count) + INSIDE)

    def waves(self, first: int, count: int, t0: float = 0.0) -> Array:
        """The time-dependent part of the wrenches on the bodies in steps, (steps, 1, rows, 6)."""
        return self.law.waves_at(self.sample_times(first, count, t0)).reshape(count, 1, *self.step.inputs[WAVES])

    def changing(self, t: float) -> dict[str, Array]:
        """The inputs that change in time, by name, for the step of one state that begins at t: rows (1, 1, ...)."""
        law, found = self.law, {}
        if law.changes:
            found["tau"] = self.commands(0, 1, t)[:, None]
        if law.schedule is not None:
            found["gain"] = self.values(0, 1, t)[:, None]
        if law.waves:
            found[WAVES] = self.step.loads[WAVES] + self.waves(0, 1, t)
        return found


PATH = 1 << 17  # numbers of states kept between two checks of stop conditions: they stay in the cache
CHUNK = 1024  # states that a thread moves through all steps before it takes the next ones: they stay in its cache


def settings(machine: Any, steps: int, step: float, method: str, forces: Any, gravity: bool,
             every: int) -> tuple[Fixed, int, int]:  # fmt: skip
    """Check the arguments of a rollout."""
    require_models(machine)
    machine = machine if validate.flag("gravity", gravity) else machine.weightless
    validate.chosen("method", method, METHODS)
    steps, every = validate.integer("steps", steps, least=1), validate.integer("every", every, least=1)
    if every > steps:
        raise ArgumentError(f"steps = {steps} and every = {every} must satisfy 1 <= every <= steps")
    length = validate.number("step", step, above=0.0)
    return Fixed(machine, collect(machine, forces), METHODS[method], method, length), steps, every


def checked_states(model: Model, given: Mapping[str, Any]) -> dict[str, Array]:
    """Check arrays of states: real and finite numbers, the right shape, and couplings."""
    found = {name: checked(model, name, x) for name, x in given.items()}
    for name, x in found.items():
        if x.dtype.kind != "f":
            raise ArgumentError(f"{name} holds {x.dtype} and not real numbers")
        obeying(model, name, x, offset=name.endswith("q"))
    return found


class States:
    """The arrays of many states, with one batch axis; its length is one if all states share the numbers."""

    def __init__(self, setup: Fixed, given: Mapping[str, Array], steps: int) -> None:
        """`given`: q, v, and other arrays of states, (..., size) each."""
        found = setup.members
        self.setup, self.steps = setup, steps
        own = {"commands": setup.commands(0, steps, setup.begin), "values": setup.values(0, steps, setup.begin)}
        own |= setup.step.loads
        own |= dict(found.inputs) if found else {}
        arrays = {**given, **own}
        rank = {name: 2 if name in ("commands", "values") else place_of(name).rank for name in arrays}
        self.batch = validate.batch_of({name: (x.shape, rank[name]) for name, x in arrays.items()})
        self.dtype = np.float32 if all(x.dtype == np.float32 for x in given.values()) else np.float64
        self.arrays = {name: self._flat(x, rank[name], name in given) for name, x in arrays.items()}
        self.count = len(self.arrays["q"])

    def _flat(self, x: Array, rank: int, each: bool) -> Array:
        batch, core = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
        wide = np.broadcast_to(x, (*self.batch, *core)) if each or np.prod(batch) != 1 else x
        return wide.reshape(-1, *core).astype(self.dtype, copy=False)

    def part(self, rows: slice) -> dict[str, Array]:
        """The arrays of some states."""
        return {name: x if len(x) == 1 < self.count else x[rows] for name, x in self.arrays.items()}

    def inputs(self, part: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs of the first step of some states, except the states and the length."""
        given = {"tau": part["commands"][:, 0], "gain": part["values"][:, 0]}
        return given | {name: part[name] for name in self.setup.step.numbers}

    def run(self, part: Mapping[str, Array]) -> StepRun:
        """The steps of these states."""
        setup, m, given = self.setup, len(part["q"]), self.inputs(part)
        functions, alone = setup.law.called, not self.batch
        kernels, h = setup.kernels(self.dtype), np.array([setup.length])
        return StepRun(kernels, m, h, given, setup.method.times, functions, alone)

    def move(self, run: StepRun, part: Mapping[str, Array], x: Array, ends: Sequence[int], out: Array | None,
             first: int = 0) -> None:  # fmt: skip
        """Move the states x in place, beginning with step `first`; out[:, k] are the states after ends[k] steps."""

        def changing(at: int, count: int) -> dict[str, Array]:
            return self.changing(part, first + at, count)

        run(x, changing, ends, out, self.setup.begin + first * self.setup.length)

    def longest_path(self, x: Array) -> int:
        """The most steps between two checks of stop conditions: one if functions are called, which may fail outside the
        bounds.
        """
        return 1 if self.setup.law.called else max(1, PATH // max(x.size, 1))

    def changing(self, part: Mapping[str, Array], first: int, count: int) -> dict[str, Array]:
        """The inputs that change in time, by name, in some steps: rows (count, m or 1, ...)."""
        law, rows = self.setup.law, slice(first, first + count)
        found = {} if not law.changes else {"tau": np.moveaxis(part["commands"], -2, 0)[rows]}
        found |= {} if law.schedule is None else {"gain": np.moveaxis(part["values"], -2, 0)[rows]}
        if law.waves:
            found[WAVES] = part[WAVES] + self.setup.waves(first, count, self.setup.begin)
        return found


def advance(states: States, part: Mapping[str, Array], x: Array, ends: Sequence[int], out: Array,
            watch: Watch | None = None, reasons: Array | None = None) -> None:  # fmt: skip
    """Move the states x in place; out[:, k] are the states after ends[k] steps, reasons[:, k] why they stopped."""
    run, now = states.run(part), int(ends[0] == 0)  # the states before the first step are stored, too
    if watch is None:
        out[:, :now] = x[:, None]
        states.move(run, part, x, ends[now:], out[:, now:])
        return
    nq, places, done, row = states.setup.model.nq, np.asarray(ends), -1, 0

    def store(path: Array, until: int) -> None:
        nonlocal row
        end = int(places.searchsorted(until, "right"))
        if end > row:
            out[:, row:end] = path[:, np.asarray(places[row:end] - done - 1, like=path)]
            if reasons is not None:
                reasons[:, row:end] = watch.reasons(places[row:end])
            row = end

    path, length = x[:, None].copy(), 1
    while True:  # the path holds the states after the steps done + 1, done + 2, ...
        gone = watch.outside(path, nq)
        count, cut = gone.shape[1], gone.shape[1] < path.shape[1]
        if watch.reset is not None:
            store(path, done + count - 1)
        watch.stop(path, gone, done + 1)
        store(path, done + count)
        done, x[:] = done + count, path[:, count - 1]
        if row == len(places):
            return
        length = min(count if cut else 2 * length, states.longest_path(x), int(places[-1]) - done)
        path, still = np.empty_like(x, shape=(len(x), length, x.shape[1])), x[watch.frozen, None]
        if not watch.frozen.all():
            states.move(run, part, x, range(1, length + 1), path, done)
        path[watch.frozen] = still


def watch_of(setup: Fixed, stops: tuple[Stop, ...], part: Mapping[str, Array], reset: Array | None) -> Watch:
    """The stop conditions of some states."""
    program = watching(setup.model, stops, setup.members, part["q"].dtype.name)
    m = len(part["q"])
    numbers = [np.broadcast_to(part[name], (m, *part[name].shape[1:])) for name in _inputs(setup.members)]
    return Watch(program, numbers, part["q"], reset)


def _inputs(found: Members | None) -> Iterable[str]:
    return found.inputs if found else ()
