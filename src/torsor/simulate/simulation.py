"""Simulation: a model, its forces and an integrator, run from a state, recorded, interrupted and resumed."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import ceil, inf
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import logs
from torsor.dynamics.couplings import coupled, obeying
from torsor.errors import ArgumentError, ModelError
from torsor.formats import toml
from torsor.model.freedoms import USUAL
from torsor.model.model import Model, require_model
from torsor.simulate.dense import Dense
from torsor.simulate.forces import Force
from torsor.simulate.implicit import Dirk
from torsor.simulate.integrators import AUTOMATIC, METHODS, method_named
from torsor.simulate.motion import Motion
from torsor.simulate.quantities import Quantities
from torsor.simulate.recording import Memory, Recorder, RecordingError, read
from torsor.simulate.series import Series
from torsor.simulate.stepper import Settings, Stepper, StiffnessWarning, no_step
from torsor.simulate.trajectory import Trajectory, header
from torsor.validate import (
    check_memory,
    file_path,
    flag,
    function,
    integer,
    number,
    parameter,
    real_array,
    shown,
)

Array = NDArray[Any]
Event = Callable[[float, Array, Array], float]
Progress = Callable[[float], None]

CHUNK = 256  # rows between two syncs to the disk
MOST_BYTES = 2**25  # of the rows between two syncs
# the options of a Simulation that its file holds; LATER: files of older versions do not
OWN = ("q0", "v0", "method", "rtol", "atol", "step", "max_step", "dt", "t0", "chunk", "dynamics")
LATER = ("every", "keep", "dense")
SHORTEST = 1e-18  # the shortest step, relative to the rest of its run
MOST_STEPS = 1e12  # of a run: two months of the quickest steps
PATIENCE = 64  # steps between two reports of progress


class Simulation:
    """A motion being computed.

    q0, v0     where it starts (default: the neutral configuration, at rest), at the time t0
    forces     callables (t, q, v) -> tau, one or several (see `forces.py`); without forces: free fall
    method     auto: dopri5, and esdirk4 from where the motion is stiff. Or by name: dopri5, rkf45, dop853, abm
               (explicit), trbdf2, esdirk4, radau (implicit, O(n)), all with adaptive steps;
               implicit-euler, euler, verlet, variational (fixed step; the last three keep the structure of mechanics)
    rtol, atol tolerances of the adaptive methods, for all or for each degree of freedom
    step       the step of the fixed-step methods
    dt         record rows at t0, t0 + dt, ... by dense output; None records every step, or every `every`-th
    keep       names of quantities (see `quantities.py`): only these are recorded, and the result is a `Series`
    gravity    False switches it off;  armature: rotor inertias added to the diagonal of M
    dynamics   the method of `forward_dynamics` that computes accelerations, for example "udut" (adaptive methods only)
    record     a file to which rows are written during the run, `chunk` rows at a time
    about      words and numbers to store in that file
    dense      keep the continuous extension of every step, for `Trajectory.at` and plots; by default, of methods for
               which that takes no evaluations (not dop853)
    """

    def __init__(
        self, model: Model, q0: ArrayLike | None = None, v0: ArrayLike | None = None, *,
        forces: Force | Sequence[Force] = (), method: str = "auto", rtol: ArrayLike = 1e-6,
        atol: ArrayLike = 1e-9, step: float | None = None, max_step: float = inf, dt: float | None = None,
        t0: float = 0.0, gravity: bool = True, armature: ArrayLike = 0.0, dynamics: str = "auto",
        record: str | Path | None = None, chunk: int = CHUNK, about: dict[str, Any] | None = None,
        dense: bool | None = None, every: int = 1, keep: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        require_model(model)
        self.model = _changed(model, flag("gravity", gravity), armature)
        self.forces = force_list(forces)
        self.dt = None if dt is None else number("dt", dt, above=0)
        self.t0, self.chunk = number("t0", t0), integer("chunk", chunk, least=1)
        self.every = integer("every", every, least=1, most=2**53)
        if self.dt is not None and self.every > 1:
            raise ArgumentError("rows are dt apart, or every so many steps apart: leave out dt or every")
        self.record = None if record is None else file_path("record", record)
        self.settings = Settings(rtol, atol, step, max_step)
        stepper, self.method = method_named(method), method
        q, v = start_of(self.model, q0, v0)
        for force in self.forces:
            real_array(f"what the force {_name(force)} gives", force(self.t0, q, v), (self.model.nv,), finite=False)
        self.motion = Motion(self.model, self.forces, dynamics)
        if dynamics != "auto" and (not stepper.adaptive or issubclass(stepper, Dirk)):
            raise ArgumentError(f"method {method!r} has sweeps of its own: leave dynamics at 'auto', not {dynamics!r}")
        with np.errstate(all="ignore"):  # values that are not finite are refused by name
            self.motion.coordinates.normalise(q)
            self.stepper = stepper(self.motion, self.t0, q, v, self.settings)
        self._keep = None if keep is None else Quantities(self.model, keep)
        self.about = {
            "method": method, **_plain(self.settings), "dt": self.dt, "t0": self.t0, "chunk": self.chunk,
            "q0": q.tolist(), "v0": v.tolist(), "dynamics": self.motion.dynamics,
            "forces": [_name(force) for force in self.forces], "every": self.every, "dense": dense,
            "keep": None if self._keep is None else list(self._keep.names),
        }  # fmt: skip
        self.about |= _own_words(about, self.about)
        self._recorder: Recorder | None = None
        self._times: list[float] = []
        self._rows: list[Array] = []
        self._kept: list[Array] = []  # finished chunks of a run that is not recorded
        self._next = 0  # the next row is at t0 + next dt
        self._steps = 0
        self._started = False
        self._at_event = False  # the last run ended at a zero of its stop(t, q, v)
        self._told_stiff = False
        between = method != "dop853" if dense is None else flag("dense", dense)
        self._dense = Dense(self.motion.coordinates, self.t0) if between and keep is None else None
        self._chunk = min(self.chunk, max(1, MOST_BYTES // self.stepper.row.nbytes))

    # ---- running ----

    @property
    def t(self) -> float:
        return self.stepper.t

    @property
    def q(self) -> Array:
        return self.stepper.q.copy()

    @property
    def v(self) -> Array:
        return self.stepper.v.copy()

    def step(self, until: float = inf) -> float:
        """Take one step of the integrator, not beyond `until`; return the time reached."""
        number("until", until, above=self.t, infinite=True)
        if not self._started:
            self._start()
        with np.errstate(all="ignore"):
            self._step(until)
            self._collect()
        return self.stepper.t

    def _step(self, until: float) -> None:
        """One step, which must make progress: a run of steps negligible next to t, or to the rest, would never end."""
        if self.stepper.stiff and not self._told_stiff:
            self._meet_stiffness()
        before = self.t
        self.stepper.step(until)
        if not self.t > before or (self.t - before < SHORTEST * (until - before) < inf):
            raise no_step(before)

    def _meet_stiffness(self) -> None:
        """Change to an implicit method, if the method is ours to choose; else say that it would help."""
        self._told_stiff = True
        if self.method == "auto" and self.motion.dynamics == "auto":
            self.about["switched"] = f"to {AUTOMATIC[1]} at t = {self.t:.6g}, where the motion is stiff"
            self._change_method(METHODS[AUTOMATIC[1]])
            return
        warnings.warn(
            f"the motion is stiff at t = {self.t:.6g}: {self.method} takes steps of {self.stepper.h:.2g} s to stay "
            f"stable; method='auto' or '{AUTOMATIC[1]}' takes longer ones", StiffnessWarning, stacklevel=2,
        )  # fmt: skip

    def _change_method(self, method: type[Stepper]) -> None:
        """Go on from here with another method."""
        evaluations = self.stepper.evaluations
        self.stepper = method(self.motion, self.t, self.q, self.v, self.settings)
        self.stepper.evaluations += evaluations

    def run(self, until: float, *, stop: Event | None = None, progress: Progress | None = None) -> Any:
        """Continue to the time `until`, or to the first zero of stop(t, q, v); return the whole trajectory.

        It is a `Trajectory`, or a `Series` of the quantities that are kept.
        An interruption (Ctrl-C, an error in a force) leaves a recorded run at its last chunk, ready to be
        resumed.
        """
        until = number("until", until)
        if not until > self.t - 1e-12:
            raise ArgumentError(f"the simulation is at t = {self.t:g} already; until = {until:g} lies before")
        if stop is not None:
            stop = _event(function("stop", stop))
        if progress is not None:
            function("progress", progress)
        self._check_work(until)
        if not self._started:
            self._start(until)
        about = {"model": self.model.name, "method": self.about["method"], "record": self.record}
        logs.event("simulation begins", t=self.t, until=until, **about)
        with np.errstate(all="ignore"):  # integrators check their results once per step
            self._advance(until, stop, progress)
        logs.event("simulation ends", t=self.t, evaluations=self.stepper.evaluations, **about)
        return self._finish()

    def _check_work(self, until: float) -> None:
        """Raise if the run would not end, or its rows would not fit into memory."""
        longest = self.settings.max_step if self.stepper.adaptive else self.settings.step
        assert longest is not None
        if (until - self.t) / longest > MOST_STEPS:
            name = "max_step" if self.stepper.adaptive else "step"
            raise ArgumentError(
                f"{name} = {longest:g} is too short: it takes more than {MOST_STEPS:g} steps from t = {self.t:g} to "
                f"until = {until:g}"
            )
        if self.record is None:
            check_memory(f"a run to until = {until:g}, with rows so close to each other,", self._expected_bytes(until))

    def _advance(self, until: float, stop: Event | None, progress: Progress | None) -> None:
        steps, value = 0, None if stop is None or self._at_event else stop(self.t, self.stepper.q, self.stepper.v)
        self._at_event = False
        while self.t < until:
            self._step(until)
            if stop is not None:
                before, value = value, stop(self.t, self.stepper.q, self.stepper.v)
                if before is not None and (before * value < 0 or value == 0):
                    self._halt(self._crossing(stop))
                    break
            self._collect()
            steps += 1
            if progress is not None and steps % PATIENCE == 0:
                progress(self.t)

    def _halt(self, t: float) -> None:
        """End at the time t within the last step: return there, so that a later run continues from the event."""
        if self._dense is not None:
            self._dense.add(self.stepper)
            self._dense.end(t)
        q, v = (x[0] for x in self.stepper.between(np.array([t])))
        self._gather(t)
        evaluations = self.stepper.evaluations
        self.stepper = type(self.stepper)(self.motion, t, q, v, self.settings)
        self.stepper.evaluations += evaluations
        self._at_event = True

    def _start(self, until: float | None = None) -> None:
        """Create the file, then add the first row."""
        if self.record is not None:
            expected = self._expected_bytes(until)
            columns = None if self._keep is None else self._keep.columns
            self._recorder = Recorder.create(self.record, header(self.model, self.about, columns), expected)
        self._begin()

    def _begin(self) -> None:
        self._times, self._rows, self._next = [self.stepper.t], [self.stepper.row.copy()], 1
        self._started = True

    def _expected_bytes(self, until: float | None) -> int:
        """A lower bound on the bytes that the rows of a run take."""
        step = self.settings.max_step if self.stepper.adaptive else self.settings.step
        spacing = self.dt or (step and step * self.every)
        if until is None or spacing is None or spacing == inf:
            return 0
        rows = (until - self.t0) / spacing
        width = 1 + (self.model.nq + 3 * self.model.nv if self._keep is None else len(self._keep.columns))
        return 8 * width * (ceil(rows) if rows < inf else sys.maxsize)

    def _collect(self) -> None:
        """Take the rows of the last step, and write a chunk when it is full."""
        all_rows = self.dt is None and self.every == 1
        if self._dense is not None and not (all_rows and self.stepper.points is None):
            self._dense.add(self.stepper)
        self._steps += 1
        self._gather(None)
        if len(self._rows) >= self._chunk:
            self._flush()

    def _gather(self, end: float | None) -> None:
        """The rows of the last step, up to `end` if the run stops there."""
        if self.dt is not None:
            self._sample(self.t if end is None else end)
        elif end is None and self._steps % self.every == 0:
            self._times.append(self.t)
            self._rows.append(self.stepper.row.copy())
        if end is not None and not (self._times and self._times[-1] >= end):
            self._add(np.array([end]))

    def _sample(self, end: float) -> None:
        """Rows at t0 + k dt by dense output."""
        assert self.dt is not None
        last = self._last_row(end)
        check_memory(f"dt = {self.dt:g}", 8 * (last - self._next) * len(self.stepper.row))
        if last >= self._next:
            self._add(np.minimum(self.t0 + self.dt * np.arange(self._next, last + 1), end))
            self._next = last + 1

    def _last_row(self, end: float) -> int:
        """The k of the last row t0 + k dt of a step to `end`."""
        assert self.dt is not None
        # a row that rounding puts just behind the end of its step still belongs to it
        rows = np.floor((end - self.t0) / self.dt * (1 + 4e-16) + 1e-9)
        if not abs(rows) < 2**53:
            raise ArgumentError(f"dt = {self.dt:g} is too short to tell its rows apart at t = {end:g}")
        return int(rows)

    def _add(self, times: Array) -> None:
        """Rows at times within the last step."""
        q, v = self.stepper.between(times)
        for t, q_t, v_t in zip(times.tolist(), q, v):
            self._times.append(t)
            self._rows.append(np.concatenate([q_t, v_t, self.motion.checked(t, q_t, v_t)]))

    def _crossing(self, stop: Event) -> float:
        """The time on the last step at which stop(t, q, v) vanishes."""
        from scipy.optimize import brentq  # imported late, because SciPy is slow to load

        def value(t: float) -> float:
            q, v = self.stepper.between(np.array([t]))
            return stop(t, q[0], v[0])

        a, b = self.stepper.t_old, self.stepper.t
        if value(a) * value(b) >= 0:
            return b
        return float(brentq(value, a, b, xtol=1e-14 * max(1.0, abs(b)), rtol=1e-14))

    def _flush(self) -> None:
        """Write, or keep, the collected rows and the memory from which the integrator continues."""
        if not self._rows:
            return
        memory = self.stepper.memory() | {"next": np.array([self._next]), "steps": np.array([self._steps])}
        if self.method == "auto":
            memory["switched"] = np.array([float("switched" in self.about)])
        chunk = self._chosen(np.array(self._times), np.array(self._rows))
        if self._recorder is None:
            self._kept.append(chunk)
        else:
            self._recorder.append(chunk, memory | ({} if self._dense is None else self._dense.unsaved()))
        self._times, self._rows = [], []

    def _chosen(self, t: Array, rows: Array) -> Array:
        """The rows of a chunk: t, q, v, a, tau, or t and the quantities that are kept."""
        nq, nv = self.model.nq, self.model.nv
        tau = self.motion.torques(t, rows[:, :nq], rows[:, nq : nq + nv])
        whole = np.column_stack([t, rows, tau])
        if self._keep is None:
            return whole
        return np.column_stack([t, self._keep(Trajectory.from_rows(self.model, whole, {}))])

    def _finish(self) -> Trajectory | Series:
        self._flush()
        rows = np.concatenate(self._kept) if self._recorder is None else read(self._recorder.path).rows
        if self._keep is not None:
            return Series(self.model, rows[:, 0], rows[:, 1:], self._keep.columns, self.about)
        return replace(Trajectory.from_rows(self.model, rows, self.about), dense=self._dense)

    # ---- resuming ----

    @classmethod
    def resume(
        cls, path: str | Path, *, model: Model | None = None, forces: Force | Sequence[Force] = ()
    ) -> Simulation:
        """Continue a recorded run after its last complete chunk, with the same bits as without the interruption.

        Forces are code and are not in the file: give the same ones again. A model may be given to check
        that it is the recorded one.
        """
        found = read(path)
        recorded = toml.read(found.header["model"], str(path))
        if model is not None:
            require_model(model)
        if model is not None and model.key != found.header["model_key"]:
            raise ModelError(
                f"{path} was recorded with {recorded!r}, not with the given {model!r}: they differ in structure, "
                "mass or geometry"
            )
        for name in USUAL if model is not None else ():
            if not np.array_equal(getattr(model, name), getattr(recorded, name)):
                raise ModelError(f"{path} was recorded with {recorded!r}; the given model has another {name}")
        about = found.header["about"]
        if missing := [key for key in (*OWN, "forces") if key not in about]:
            raise RecordingError(f"{path} cannot be resumed: its header lacks {', '.join(missing)}")
        options = {key: about[key] for key in OWN}
        options["max_step"] = inf if options["max_step"] is None else options["max_step"]
        options["armature"] = about.get("armature", 0.0)  # files of older versions; the model holds it now
        options |= {key: about[key] for key in LATER if key in about}
        rest = {key: value for key, value in about.items() if key not in (*OWN, *LATER, "forces", "armature")}
        try:
            simulation = cls(recorded, forces=forces, record=path, about=rest, **options)
        except ArgumentError as error:
            raise RecordingError(f"{path} cannot be resumed: {error}") from None
        if simulation.about["forces"] != about["forces"]:
            raise ArgumentError(
                f"{path} was recorded with the forces {about['forces'] or 'none'}; "
                f"{simulation.about['forces'] or 'none'} were given"
            )
        simulation._recall(path, [chunk.memory for chunk in found.chunks])
        simulation._recorder = Recorder.reopen(found)
        return simulation

    def _recall(self, path: str | Path, memories: Sequence[Memory]) -> None:
        """Load the state of a recorded run; it starts from the beginning if it holds no rows yet."""
        self._begin()
        if not memories:
            return
        memory = memories[-1]
        try:
            if not all(np.isfinite(x).all() for x in memory.values()):
                raise ValueError("a number is not finite")
            if self.method == "auto" and memory["switched"][0]:
                self._meet_stiffness()
            self.stepper.recall(memory)
            self._steps = int(memory["steps"][0]) if "steps" in memory else 0
            if self._dense is not None:
                self._dense = Dense.restored(self.motion.coordinates, self.t0, memories)
        except (KeyError, IndexError, ValueError, TypeError, OverflowError, ArgumentError) as error:
            raise RecordingError(
                f"{path} cannot be resumed: the memory of the integrator after its last row does not fit ({error})"
            ) from None
        self._times, self._rows = [], []
        self._next = 1 if self.dt is None else self._last_row(self.t) + 1


@overload
def simulate(
    model: Model, q0: ArrayLike | None = None, v0: ArrayLike | None = None, duration: float = 10.0, *,
    keep: None = None, **options: Any,
) -> Trajectory: ...  # fmt: skip


@overload
def simulate(
    model: Model, q0: ArrayLike | None = None, v0: ArrayLike | None = None, duration: float = 10.0, *,
    keep: Sequence[str], **options: Any,
) -> Series: ...  # fmt: skip


def simulate(
    model: Model, q0: ArrayLike | None = None, v0: ArrayLike | None = None, duration: float = 10.0, *,
    stop: Event | None = None, progress: Progress | None = None, **options: Any,
) -> Any:  # fmt: skip
    """The motion of a model from (q0, v0) for `duration` seconds; the options are those of `Simulation`.

    stop(t, q, v): end at its first zero;  progress(t): called now and then.
    """
    duration = number("duration", duration, above=0)
    simulation = Simulation(model, q0, v0, **options)
    return simulation.run(simulation.t0 + duration, stop=stop, progress=progress)


def _changed(model: Model, gravity: bool, armature: ArrayLike) -> Model:
    """The model without gravity, or with larger rotors, if that was asked for."""
    if not gravity:
        model = replace(model, gravity=np.zeros(3))
    added = parameter("armature", armature, model.nv)
    if not (added >= 0).all():
        raise ArgumentError(f"armature must be inertias >= 0, not {added}")
    return replace(model, armature=model.armature + added) if added.any() else model


def start_of(model: Model, q0: ArrayLike | None, v0: ArrayLike | None) -> tuple[Array, Array]:
    """The first state; by default the neutral configuration, at rest."""
    q = _state("q0", coupled(model, model.neutral()) if q0 is None else q0, model.nq)
    v = _state("v0", np.zeros(model.nv) if v0 is None else v0, model.nv)
    model.check_quaternions(q, "q0")
    obeying(model, "q0", q, offset=True)
    obeying(model, "v0", v, offset=False)
    return q, v


def _state(name: str, x: ArrayLike, size: int) -> Array:
    state = real_array(name, x, finite=False)
    if state.shape != (size,) or not np.isfinite(state).all():
        raise ArgumentError(f"{name} must be {size} finite numbers, not an array of shape {state.shape}: {shown(x)}")
    return state.copy()


def force_list(forces: Any) -> tuple[Force, ...]:
    """One force, or several, each of them a function."""
    if callable(forces):
        return (forces,)
    if not isinstance(forces, Iterable) or getattr(forces, "shape", None) == ():
        raise ArgumentError(f"forces must be functions (t, q, v) -> tau, not {shown(forces)}")
    return tuple(function(f"forces[{i}]", force) for i, force in enumerate(forces))


def _event(stop: Event) -> Event:
    """stop(t, q, v), whose values must be numbers."""
    return lambda t, q, v: number("what stop(t, q, v) gives", stop(t, q, v), infinite=True)


def _own_words(about: Any, taken: dict[str, Any]) -> dict[str, Any]:
    """The caller's own entries for the file, in addition to those of torsor."""
    if about is None:
        return {}
    if not isinstance(about, dict) or not all(isinstance(key, str) for key in about):
        raise ArgumentError(f"about must be a dictionary of words and numbers by name, not {shown(about)}")
    if clashes := sorted(about.keys() & taken.keys()):
        raise ArgumentError(f"about holds {', '.join(clashes)}, which torsor keeps itself: choose other names")
    try:
        json.dumps(about)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"about must be words and numbers, as JSON holds them: {error}") from None
    return dict(about)


def _plain(settings: Settings) -> dict[str, Any]:
    """Settings as JSON values."""
    rtol, atol = (np.asarray(x).tolist() for x in (settings.rtol, settings.atol))
    max_step = None if settings.max_step == inf else settings.max_step
    return {"rtol": rtol, "atol": atol, "step": settings.step, "max_step": max_step}


def _name(force: Force) -> str:
    return getattr(force, "__qualname__", type(force).__qualname__)
