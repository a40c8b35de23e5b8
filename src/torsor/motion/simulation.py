"""Simulation: a model, its forces and an integrator, run from a state, recorded, interrupted and resumed."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import logs
from torsor.dynamics.calls import gpu_array
from torsor.dynamics.couplings import obeying
from torsor.errors import ArgumentError, DeviceError, ModelError, TorsorError, warn_caller
from torsor.formats import toml
from torsor.later import Later
from torsor.model.freedoms import DEFAULTS, limited_coordinates
from torsor.model.model import Model, require_model
from torsor.motion.events import Event, event_of, first_zero
from torsor.motion.forces import described, name_of
from torsor.motion.implicit import Dirk, Implicit
from torsor.motion.integrators import AUTOMATIC, METHODS, method_named
from torsor.motion.integrators import RENAMED as RENAMED_METHODS
from torsor.motion.law import force_list
from torsor.motion.motion import Motion
from torsor.motion.progress import shown_progress
from torsor.motion.recording import Recorder, Recording, RecordingError, read
from torsor.motion.rows import RowOptions, Rows
from torsor.motion.stepper import Settings, Stepper, StiffnessWarning, no_step
from torsor.motion.stiffness import Watchman
from torsor.motion.trajectory import Trajectory, header
from torsor.validate import check_memory, chosen, flag, number, parameter, real_array, shown

# imported only if a GPU is used
gpu, device = Later("torsor.backends.gpu"), Later("torsor.motion.device")

Array = NDArray[Any]
Progress = Callable[[float], None]

# the options of a Simulation in the header of its file; LATER: options that files of older versions lack
OWN = ("q0", "v0", "method", "rtol", "atol", "step", "max_step", "dt", "t0", "chunk", "dynamics")
LATER = ("every", "keep", "dense")
FORCE_OPTIONS = "force_options"  # also in the header: the parameters of the forces
SWITCHED = "switched"  # in the memory of a chunk: whether method="auto" has switched to its second method
SHORTEST = 1e-18  # the shortest step, relative to the rest of its run
MOST_STEPS = 1e12  # of a run: two months of the fastest steps
PATIENCE = 64  # steps between two reports of progress
RENAMED = {"record": "file"}  # keywords of torsor 0.1


@dataclass(frozen=True)
class Problem:
    """The forces on a model.

    forces     one or several (see `forces.py`); without forces: free fall
    gravity    whether gravity acts
    armature   rotor inertias added to the diagonal of M
    dynamics   the method of `forward_dynamics` that computes accelerations
    """

    forces: Any = ()
    gravity: bool = True
    armature: ArrayLike = 0.0
    dynamics: str = "auto"

    def on(self, model: Model) -> Model:
        """The model, without gravity or with larger rotors if these options say so."""
        if not flag("gravity", self.gravity):
            model = model.weightless
        added = parameter("armature", self.armature, model.nv)
        if not (added >= 0).all():
            raise ArgumentError(f"armature must be inertias >= 0, not {added}")
        return replace(model, armature=model.armature + added) if added.any() else model


class Simulation:
    """Compute a motion step by step: run, inspect, continue, record and resume.

    `simulate` is the short form. A state on a GPU stays there; the result is on the host.

    Parameters
    ----------
    model : Model
        The machine.
    q0 : (nq,) array_like or str, optional
        Initial configuration, or the name of a keyframe. Default: the neutral configuration, or the closest one within
        the limits.
    v0 : (nv,) array_like, optional
        Initial velocities. Default: at rest.
    **options : object
        The keywords of `simulate`, except `stop` and `progress`, which `run` takes.

    Raises
    ------
    ArgumentError
        A shape does not fit, or options contradict each other.

    Examples
    --------
    >>> import torsor as ts
    >>> run = ts.Simulation(ts.zoo.pendulum(), [1.0])
    >>> first = run.run(0.5)
    >>> whole = run.run(1.0)
    >>> whole
    Trajectory(pendulum, ... rows, 0 to 1 s)
    """

    def __init__(
        self, model: Model, q0: ArrayLike | None = None, v0: ArrayLike | None = None, *, method: str = "auto",
        t0: float = 0.0, about: dict[str, Any] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        problem, self.settings, self.options = _composed(options)
        require_model(model)
        self.model, self.forces, self.t0 = problem.on(model), force_list(problem.forces), number("t0", t0)
        self.method, stepper, dynamics = method, method_named(method), problem.dynamics
        self.on_gpu = gpu_array(q0) or gpu_array(v0)
        q, v = start_of(self.model, *map(_on_host, (q0, v0)))
        given = q.copy()  # for the file: a quaternion that is normalised twice may differ in its last bit
        self.motion = self._motion(dynamics, q, v)
        if dynamics != "auto" and (not stepper.adaptive or issubclass(stepper, Dirk)):
            raise ArgumentError(f"method {method!r} has sweeps of its own: leave dynamics at 'auto', not {dynamics!r}")
        with np.errstate(all="ignore"):  # values that are not finite are refused by name
            self.motion.coordinates_on_host.normalise(q)
            self.stepper = stepper(self.motion, self.t0, self.motion.place(q), self.motion.place(v), self.settings)
        dense = method != "dop853" if self.options.dense is None else self.options.dense
        self.rows = Rows(self.options, self.motion, self.t0, dense)
        self.rows.marks |= {SWITCHED: np.zeros(1)} if method == "auto" else {}
        self.about = self._description(given, v)
        self.about |= _own_words(about, self.about)
        self.watchman = Watchman(self.motion, self.settings, self.t0)
        self._started = False
        self._at_event = False  # the last run ended at a zero of its stop(t, q, v)

    def _description(self, q: Array, v: Array) -> dict[str, Any]:
        """The options as JSON values. With them, the model and the forces, a file can be resumed."""
        kept = self.rows.quantities
        return {
            "method": self.method, **_plain(self.settings), "dt": self.options.dt, "t0": self.t0,
            "chunk": self.options.chunk, "q0": q.tolist(), "v0": v.tolist(), "dynamics": self.motion.dynamics,
            "forces": [name_of(force) for force in self.forces],
            FORCE_OPTIONS: [described(force) for force in self.forces], "every": self.options.every,
            "dense": self.options.dense, "on_gpu": self.on_gpu, "keep": None if kept is None else list(kept.names),
        }  # fmt: skip

    def _motion(self, dynamics: str, q: Array, v: Array) -> Motion:
        """The equations of motion, on the device of the state; the forces are called once, to check their results."""
        if not self.on_gpu:
            motion = Motion(self.model, self.forces, dynamics)
            motion.torque(self.t0, q, v)
            return motion
        motion = device.DeviceMotion(self.model, self.forces, dynamics, self.method)
        motion.check_forces(self.t0, q, v)
        return motion

    def __repr__(self) -> str:
        return f"Simulation({self.model.name}, {self.method}, at t = {self.t:g} s)"

    # ---- running ----

    @property
    def file(self) -> Path | None:
        """The file to which the run is recorded, or None."""
        return None if self.options.file is None else Path(self.options.file)

    @property
    def t(self) -> float:
        """The time reached, in s."""
        return self.stepper.t

    @property
    def q(self) -> Array:
        """The configuration reached, (nq,)."""
        return self.stepper.q.copy()

    @property
    def v(self) -> Array:
        """The velocities reached, (nv,), in rad/s and m/s."""
        return self.stepper.v.copy()

    def step(self, until: float = inf) -> float:
        """Take one step of the integrator.

        Parameters
        ----------
        until : float, default infinite
            The step ends at this time at the latest, in s.

        Returns
        -------
        t : float
            The time reached.
        """
        number("until", until, above=self.t, infinite=True)
        if not self._started:
            self._start()
        with np.errstate(all="ignore"):
            self._step(until)
            self.rows.collect(self.stepper)
        return self.stepper.t

    def _step(self, until: float) -> None:
        """Take one step; raise if it is negligible relative to t or to the rest of the run, which would never end."""
        self._meet_stiffness(until)
        before, end, jumps = self.t, until, False
        if self.stepper.adaptive and len(knots := self.motion.law.knots):
            k = int(np.searchsorted(knots, before + 1e-15 * abs(before), "right"))
            if k < len(knots) and knots[k] < until:
                end, jumps = float(knots[k]), True
        self.stepper.jump = end if jumps else inf
        self.stepper.step(end)
        if not self.t > before or (self.t - before < SHORTEST * (until - before) < inf):
            raise no_step(before, self.watchman.blamed(self.stepper))

    def _meet_stiffness(self, until: float) -> None:
        """If the motion is stiff, switch to an implicit method for method="auto", otherwise warn that it would help."""
        if (found := self.watchman.look(self.stepper, until)) is None:
            return
        if self.method == "auto" and self.motion.dynamics == "auto" and type(self.stepper) is METHODS[AUTOMATIC[0]]:
            self._switch()
            return
        implicit = issubclass(type(self.stepper), Implicit)
        advice = "" if implicit else f"; method='auto' or '{AUTOMATIC[1]}' takes longer ones"
        warn_caller(f"{found}{advice}", StiffnessWarning)

    def _switch(self) -> None:
        self.rows.marks[SWITCHED] = np.ones(1)
        self.about["switched"] = f"to {AUTOMATIC[1]} at t = {self.t:.6g}, where the motion is stiff"
        self._go_on(METHODS[AUTOMATIC[1]], self.t, self.q, self.v)

    def _go_on(self, method: type[Stepper], t: float, q: Array, v: Array) -> None:
        """Continue from a state with this method."""
        evaluations = self.stepper.evaluations
        self.stepper = method(self.motion, t, q, v, self.settings)
        self.stepper.evaluations += evaluations

    def run(self, until: float, *, stop: Any = None, progress: Progress | bool | None = None) -> Trajectory:
        """Continue to a time, or to the first event.

        After an interruption (Ctrl-C, an error in a force), a recorded run can be resumed from its last chunk. An error
        of torsor has the rows so far as `error.partial`.

        Parameters
        ----------
        until : float
            The time, in s.
        stop : callable, Stop or sequence of these, optional
            A function of t, q, v whose first zero ends the run, or `Stop` conditions, the first of which ends it.
            Every step is searched, between `events.POINTS` points of its dense output and at turning points close to
            zero. An event that begins and ends between two points may be missed.
        progress : bool or callable, optional
            True shows a bar; a function of t is called from time to time.

        Returns
        -------
        run : Trajectory
            The whole motion, from the start.

        Raises
        ------
        ArgumentError
            The time lies before the current one, or the run would never end.
        """
        until = number("until", until)
        if not until > self.t - 1e-12:
            raise ArgumentError(f"the simulation is at t = {self.t:g} already; until = {until:g} lies before")
        event = None if stop is None else event_of(stop, self.model)
        self._check_work(until)
        if not self._started:
            self._start(until)
        about = {"model": self.model.name, "method": self.about["method"], "file": self.file}
        logs.event("simulation begins", t=self.t, until=until, **about)
        try:
            with np.errstate(all="ignore"), shown_progress(progress, self.t, until) as report:
                self._advance(until, event, report)  # integrators check their results once per step
        except TorsorError as error:
            if not isinstance(error, RecordingError):
                error.partial = self._finish()  # type: ignore[attr-defined]
            raise
        logs.event("simulation ends", t=self.t, evaluations=self.stepper.evaluations, **about)
        return self._finish()

    def _check_work(self, until: float) -> None:
        """Raise if the run would never end, or its rows would not fit into memory."""
        longest = self._longest
        assert longest is not None
        if (until - self.t) / longest > MOST_STEPS:
            name = "max_step" if self.stepper.adaptive else "step"
            raise ArgumentError(
                f"{name} = {longest:g} is too short: it takes more than {MOST_STEPS:g} steps from t = {self.t:g} to "
                f"until = {until:g}"
            )
        if self.file is None:
            expected = self.rows.expected_bytes(until, longest)
            check_memory(f"a run to until = {until:g}, with rows so close to each other,", expected)

    def _advance(self, until: float, event: Event | None, progress: Progress | None) -> None:
        steps, value = 0, None if event is None or self._at_event else event(self.t, self.stepper.q, self.stepper.v)
        self._at_event = False
        if value is not None and value > 0 and getattr(event, "bounds", False):  # the run starts out of bounds
            self._at_event = True
            return
        while self.t < until:
            self._step(until)
            if event is not None:
                t, value = first_zero(event, self.stepper, value)
                if t is not None:
                    self._halt(t)
                    break
            self.rows.collect(self.stepper)
            steps += 1
            if progress is not None and steps % PATIENCE == 0:
                progress(self.t)

    def _halt(self, t: float) -> None:
        """End at the time t within the last step: go back to t, so that a later run continues from the event."""
        self.rows.end_within(self.stepper, t)
        q, v = (x[0] for x in self.stepper.between(np.array([t])))
        self._go_on(type(self.stepper), t, q, v)
        self._at_event = True

    def _start(self, until: float | None = None) -> None:
        """Create the file, then take the first row."""
        if self.file is not None:
            expected = self.rows.expected_bytes(until, self._longest)
            self.rows.recorder = Recorder.create(self.file, header(self.model, self.about, self.rows.columns), expected)
        self._begin()

    def _begin(self) -> None:
        self.rows.begin(self.stepper)
        self._started = True

    @property
    def _longest(self) -> float | None:
        """The longest step."""
        return self.settings.max_step if self.stepper.adaptive else self.settings.step

    def _finish(self) -> Trajectory:
        rows = self.rows.all(self.stepper)
        if self.rows.columns is not None:
            return Trajectory.kept(self.model, rows[:, 0], rows[:, 1:], self.rows.columns, self.about)
        return replace(Trajectory.from_rows(self.model, rows, self.about), dense=self.rows.extensions)

    # ---- resuming ----

    @classmethod
    def resume(cls, path: str | Path, *, model: Model | None = None, forces: Any = ()) -> Simulation:
        """Continue a recorded run after its last complete chunk, with the same bits as without the interruption.

        Parameters
        ----------
        path : str or Path
            The file of the recorded run; new rows are appended to it.
        model : Model, optional
            Checked against the recorded model.
        forces : force or sequence of forces, optional
            The same forces as before: forces are code and are not in the file.

        Returns
        -------
        run : Simulation
            Ready for `run(until)`.

        Raises
        ------
        RecordingError
            The file is damaged, or belongs to another model or other forces.
        """
        found = read(path)
        recorded = toml.read(found.header["model"], str(path))
        if model is not None:
            _require_recorded(model, recorded, found)
        about = found.header["about"]
        if missing := [key for key in (*OWN, "forces") if key not in about]:
            raise RecordingError(f"{path} cannot be resumed: its header lacks {', '.join(missing)}")
        options = {key: about[key] for key in (*OWN, *LATER) if key in about}
        options["max_step"] = inf if options["max_step"] is None else options["max_step"]
        options["method"] = RENAMED_METHODS.get(str(about["method"]), about["method"])
        options["armature"] = about.get("armature", 0.0)  # files of older versions; the model holds it now
        own = (*options, "forces", FORCE_OPTIONS, "on_gpu")
        rest = {key: value for key, value in about.items() if key not in own}
        try:
            if about.get("on_gpu"):
                options["q0"] = _on_gpu(options["q0"], path)
            simulation = cls(recorded, forces=forces, file=path, about=rest, **options)
        except ArgumentError as error:
            raise RecordingError(f"{path} cannot be resumed: {error}") from None
        if simulation.about["forces"] != about["forces"]:
            raise ArgumentError(
                f"{path} was recorded with the forces {about['forces'] or 'none'}; "
                f"{simulation.about['forces'] or 'none'} were given"
            )
        simulation._check_forces(path, about.get(FORCE_OPTIONS))
        simulation._recall(found)
        simulation.rows.recorder = Recorder.reopen(found)
        return simulation

    def _check_forces(self, path: str | Path, recorded: Any) -> None:
        """Raise unless the forces have the recorded numbers; files of older versions do not contain all of them."""
        default = {"model": self.model.key, "rest": self.model.neutral().tolist()}
        for force, before in zip(self.about[FORCE_OPTIONS], recorded if isinstance(recorded, list) else ()):
            for key in (key for key in force if isinstance(before, dict) and key in before):
                given, was = (default.get(key) if x is None else x for x in (force[key], before[key]))
                if not _same_numbers(given, was):
                    raise ArgumentError(f"{path} was recorded with another {key} of {force['name']} than is given now")

    def _recall(self, found: Recording) -> None:
        """Load the state of a recorded run; without recorded rows, the run starts from the beginning."""
        self._begin()
        if not found.chunks:
            return
        memories = [chunk.memory for chunk in found.chunks]
        memory = memories[-1]
        try:
            if not all(np.isfinite(x).all() for x in memory.values()):
                raise ValueError("a number is not finite")
            if self.method == "auto" and memory[SWITCHED][0]:
                self._switch()
            self.stepper.recall(memory)
            last_row = max(chunk.rows[-1, 0] for chunk in found.chunks if len(chunk.rows))
            self.rows.recall(self.t, float(last_row), memories)
        except (KeyError, IndexError, ValueError, TypeError, OverflowError, ArgumentError) as error:
            raise RecordingError(
                f"{found.path} cannot be resumed: the memory of the integrator after its last row does not fit "
                f"({error})"
            ) from None


def simulate(
    model: Model, q0: ArrayLike | None = None, v0: ArrayLike | None = None, duration: float = 10.0, *,
    stop: Any = None, progress: Progress | bool | None = None, **options: Any,
) -> Trajectory:  # fmt: skip
    """Simulate the motion of a machine from an initial state.

    Parameters
    ----------
    model : Model
        The machine.
    q0 : (nq,) array_like or str, optional
        Initial configuration, or the name of a keyframe. Default: the neutral configuration, or the closest one within
        the limits.
    v0 : (nv,) array_like, optional
        Initial velocities. Default: at rest.
    duration : float, default 10.0
        Duration of the motion, in s.
    stop : callable, Stop, or sequence of these, optional
        The motion ends at the first zero of stop(t, q, v), or when it meets a `Stop` condition.
    progress : bool or callable, optional
        True shows a bar; a function of t is called from time to time.
    forces : force or sequence of forces, default ()
        Forces: `PD`, `Friction`, ..., or functions (t, q, v) -> tau. Default: free fall.
    method : str, default "auto"
        "auto" (dopri5, and esdirk4 where the motion is stiff), or by name: "dopri5", "rkf45", "dop853", "abm"
        (explicit), "trbdf2", "esdirk4", "radau" (implicit, O(n)), all with adaptive steps; "semi-implicit",
        "implicit-euler", "rk4" (fixed steps, as in rollouts); "symplectic-euler", "verlet", "variational", "midpoint",
        "rattle" (fixed steps that preserve the structure of mechanics).
    t0 : float, default 0.0
        The initial time, in s.
    about : dict, default None
        Words and numbers to store in the file.
    gravity : bool, default True
        Whether gravity acts.
    armature : float or (nv,) array_like, default 0
        Rotor inertias added to the diagonal of M, in kg m^2 or kg.
    dynamics : str, default "auto"
        The method of `forward_dynamics` that computes accelerations (adaptive methods only).
    rtol : float or (nv,) array_like, default 1e-6
        The relative tolerance of the adaptive methods.
    atol : float or (nv,) array_like, default 1e-9
        Their absolute tolerance, in rad, m, rad/s and m/s.
    step : float, default None
        The step of the fixed-step methods, in s.
    max_step : float, default infinite
        The longest step of the adaptive methods, in s.
    dt : float, default None
        Time between rows, in s, by dense output. Default: one row per step.
    every : int, default 1
        One row per k-th step, and the last one.
    keep : sequence of str, default None
        Names of quantities, "pose.hand" or "energy": only these are kept.
    file : str or Path, default None
        A file that is written during the run, safe against crashes.
    chunk : int, default 256
        Rows per write to the file.
    dense : bool, default None
        Keep the continuous extension of every step, for `Trajectory.at` and plots. Default: on, except for dop853.

    Returns
    -------
    run : Trajectory
        One row per step, or as `dt`, `every` and `keep` say.

    Raises
    ------
    ArgumentError
        A shape does not fit, or options contradict each other.
    SingularError
        No step is short enough; the rows so far are `error.partial`.

    Warns
    -----
    StiffnessWarning
        An explicit method takes short steps only to stay stable.

    Examples
    --------
    A pendulum first hangs straight down after 0.437 s:

    >>> import torsor as ts
    >>> run = ts.simulate(ts.zoo.pendulum(), [1.0], duration=5.0, stop=lambda t, q, v: q[0])
    >>> print(f"{run.t[-1]:.3f} s")
    0.437 s
    """
    duration = number("duration", duration, above=0)
    simulation = Simulation(model, q0, v0, **options)
    return simulation.run(simulation.t0 + duration, stop=stop, progress=progress)


COMPOSED = (Problem, Settings, RowOptions)


def _composed(options: Any) -> list[Any]:
    """The parts of a simulation (`COMPOSED`), each from the options that are its fields."""
    known = {field.name: kind for kind in COMPOSED for field in fields(kind)}
    if unknown := [name for name in options if name not in known]:
        hint = f": it is called {RENAMED[unknown[0]]!r} now" if unknown[0] in RENAMED else ""
        raise TypeError(f"Simulation got an unexpected keyword argument {unknown[0]!r}{hint}")
    return [kind(**{name: x for name, x in options.items() if known[name] is kind}) for kind in COMPOSED]


def _signature() -> inspect.Signature:
    """All keywords, for help() and notebooks."""
    _, *own, _ = inspect.signature(Simulation.__init__).parameters.values()  # without self and **options
    parts = [x for kind in COMPOSED for x in inspect.signature(kind).parameters.values()]
    return inspect.Signature([*own, *(x.replace(kind=x.KEYWORD_ONLY) for x in parts)])


Simulation.__signature__ = _signature()  # type: ignore[attr-defined]
simulate.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
    *list(inspect.signature(simulate).parameters.values())[:-1],
    *(x for x in _signature().parameters.values() if x.kind is x.KEYWORD_ONLY),
])  # fmt: skip


def start_of(model: Model, q0: ArrayLike | None, v0: ArrayLike | None) -> tuple[Array, Array]:
    """The initial state; by default the neutral configuration, or the closest one within the limits, at rest."""
    if isinstance(q0, str) and model.keyframes:
        q0 = model.keyframes[chosen("q0", q0, tuple(model.keyframes))]
    q = _state("q0", within_limits(model) if q0 is None else q0, model.nq)
    v = _state("v0", np.zeros(model.nv) if v0 is None else v0, model.nv)
    model.check_quaternions(q, "q0")
    obeying(model, "q0", q, offset=True)
    obeying(model, "v0", v, offset=False)
    return q, v


def within_limits(model: Model) -> Array:
    """The neutral configuration, with every joint within its limits, and coupled joints following their leaders."""
    q, column = model.neutral(), limited_coordinates(model)
    limited = column >= 0
    q[column[limited]] = np.clip(q[column[limited]], model.lower[limited], model.upper[limited])
    return model.coupled(q)


def _on_host(x: Any) -> Any:
    """A state as a NumPy array, also from a GPU."""
    if not gpu_array(x):
        return x
    return gpu.host_array(x)


def _require_recorded(model: Model, recorded: Model, found: Recording) -> None:
    """Raise if a model is not the recorded one."""
    require_model(model)
    if model.key != found.header["model_key"]:
        raise ModelError(
            f"{found.path} was recorded with {recorded!r}, not with the given {model!r}: they differ in structure, "
            "mass or geometry"
        )
    for name in DEFAULTS:
        if not np.array_equal(getattr(model, name), getattr(recorded, name)):
            raise ModelError(f"{found.path} was recorded with {recorded!r}; the given model has another {name}")


def _on_gpu(x: Any, path: str | Path) -> Any:
    """The initial state of a file that was recorded on a GPU."""
    try:
        return gpu.cupy().asarray(real_array("q0", x))
    except DeviceError as error:
        raise DeviceError(f"{path} was recorded on a GPU, and is resumed on one: {error}") from None


def _state(name: str, x: ArrayLike, size: int) -> Array:
    state = real_array(name, x, finite=False)
    if state.shape != (size,) or not np.isfinite(state).all():
        raise ArgumentError(f"{name} must be {size} finite numbers, not an array of shape {state.shape}: {shown(x)}")
    return state.copy()


def _same_numbers(given: Any, recorded: Any) -> bool:
    """Whether a parameter of a force is the recorded one; older versions recorded one number per freedom."""
    if isinstance(recorded, dict) and recorded.get("name") == "Hold":  # a configuration, in torsor 0.1
        recorded = recorded.get("q")
    if isinstance(given, float) and isinstance(recorded, list):
        return all(_same_numbers(given, x) for x in recorded)
    return json.dumps(given) == json.dumps(recorded)


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
