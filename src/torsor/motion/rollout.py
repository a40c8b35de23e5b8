"""Rollouts: many trajectories of one model, with a whole step of the integrator in one kernel.

The step is written once, over any scalar.  Tracing turns it into a tape.  On the CPU this tape is a kernel that moves a
vector of states by one step; on the GPU it is the body of a loop over time in which a state never leaves its thread.
Models too large to unroll take the same step around a loop kernel for the accelerations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import validate
from torsor.algorithms import articulated
from torsor.algorithms import pulls as pulled
from torsor.algorithms.newton_euler import inverse_dynamics
from torsor.compiler.frames import straight_line_frames
from torsor.compiler.members import Members, members
from torsor.compiler.request import NEVER, ON_GPU, QUICK, Request
from torsor.compiler.store import store
from torsor.compiler.tape import Code, Tape
from torsor.compiler.trace import outputs_on
from torsor.dynamics.calls import gpu_array, program_for
from torsor.dynamics.couplings import obeying
from torsor.dynamics.methods import COUPLED, MOST_COUPLED
from torsor.errors import ArgumentError
from torsor.inputs import place_of
from torsor.linalg import Scalar
from torsor.model.batch import ModelBatch, machine_of, require_models
from torsor.model.freedoms import limited_coordinates
from torsor.model.joints import JOINTS
from torsor.model.model import Model, require_model
from torsor.motion.coordinates import by_joint, rates
from torsor.motion.feedback import Feedback, Law, followed, kept_law, pulls_on
from torsor.motion.forces import Pull
from torsor.motion.laws import DRIVE, KINDS, Action, action, passing
from torsor.motion.stops import Stop, Watch, outside, stop_inputs, stops_key, stops_of, watching
from torsor.outputs import numbered
from torsor.sweeps import Algorithm

if TYPE_CHECKING:
    from torsor.backends.cuda import RolloutKernel

Array = NDArray[Any]
Scalars = Sequence[Scalar]

GPU_UNROLL_FREEDOMS = 12  # a step of RK4 is four times the forward dynamics, all unrolled
MOST_FREEDOMS_OF_MEMBERS = 24  # of a ModelBatch, for its step to be straight-line code
CHUNK = 1024  # states that a thread moves through all steps before it takes the next ones: they stay in its cache


class Rollout(NamedTuple):
    """The states after every k-th step: q (..., stored, nq), v (..., stored, nv)."""

    q: Any
    v: Any


class StoppedRollout(NamedTuple):
    """A rollout with stop conditions.

    q, v     the states after every k-th step; a trajectory that has stopped stays where it is
    time     (...) of the first stop of each trajectory, NaN if there is none
    reason   (..., stored) which of the stops it was, 1 for the first; 0 for none.  Where trajectories begin again: the
             last one since the state stored before
    """

    q: Any
    v: Any
    time: Any
    reason: Any


# One step, over any scalar -----------------------------------------------------------------------------------


class Plant:
    """What an integrator sees of a model under a law: accelerations, rates of coordinates, and sums of lists.

    accelerate(q, v, tau, added) are the accelerations with `added` on the diagonal of M (None: M alone); inverse(q, v,
    a) the torques that `law.computed` needs for accelerations, by default written out.
    """

    inverse: Callable[..., Scalars] | None = None

    def __init__(self, model: Model, law: Law, gain: Scalars, tau: Scalars, accelerate: Callable[..., Scalars]) -> None:
        self.model, self.law, self.tau, self.accelerate = model, law, tau, accelerate
        self.rows: list[list[tuple[int, Scalar]]] = [[] for _ in range(model.nv)]
        for (row, column), value in zip(law.gains.tolist(), gain):
            self.rows[row].append((column, value))
        self.kinds: list[list[str]] = [[] for _ in range(model.nv)]
        self.numbers: list[list[Scalar]] = [[] for _ in range(model.nv)]
        at = len(law.gains)
        for kind, freedoms in law.parts:
            count, m = len(KINDS[kind][1]), len(freedoms)
            for j, i in enumerate(freedoms):
                self.kinds[i].append(kind)
                self.numbers[i] += [gain[at + k * m + j] for k in range(count)]
            at += count * m

    def free(self, q: Scalars, v: Scalars) -> Scalars:
        """The accelerations under the law."""
        return self.accelerate(q, v, self.torques(q, v), None)

    def torques(self, q: Scalars, v: Scalars) -> list[Scalar]:
        return [x.tau for x in self.actions(q, v, self.drives(q, v))]

    def actions(self, q: Scalars, v: Scalars, drives: Sequence[Action]) -> list[Action]:
        """The torque at every joint, and how much it falls with its own position and velocity."""
        column = limited_coordinates(self.model).tolist()
        found = enumerate(zip(self.kinds, drives, v, self.numbers))
        return [action(kinds, u, q[column[i]], x, iter(numbers)) for i, (kinds, u, x, numbers) in found]

    def tracking(self, q: Scalars, v: Scalars, drives: Sequence[Action]) -> list[tuple[Scalar, Scalar]]:
        """(kp, kd) of the computed torques at every freedom; zero while the limits of any drive cut a torque off."""
        passed: Scalar = 1.0
        for x, rate, u, kinds, numbers in zip(q, v, drives, self.kinds, self.numbers):
            if any(kind in DRIVE for kind in kinds):
                passed = passed * passing(kinds, u.tau, x, rate, iter(numbers))
        nq = self.model.nq
        gains = (dict(row) for row in self.rows)
        return [(gain.get(i, 0.0) * passed, gain.get(nq + i, 0.0) * passed) for i, gain in enumerate(gains)]

    def drives(self, q: Scalars, v: Scalars) -> list[Action]:
        """The commands of the drives."""
        x, column, nq = [*q, *v], limited_coordinates(self.model).tolist(), self.model.nq
        commands = []
        for i, (tau, row) in enumerate(zip(self.tau, self.rows)):
            K: Scalar = 0.0
            D: Scalar = 0.0
            for k, value in row:
                tau = tau - value * x[k]
                K, D = K + value if k == column[i] else K, D + value if k == nq + i else D
            commands.append(Action(tau, K, D))
        if self.law.computed is not None:
            inverse = self.inverse or partial(inverse_dynamics_of, self.law.computed)
            return [Action(tau) for tau in inverse(q, v, [x.tau for x in commands])]
        if self.law.policy:
            return [u.and_(Action(tau)) for u, tau in zip(commands, self.law.policy(x))]
        return commands

    def moved(self, x: Scalars, rate: Scalars, h: Scalar) -> list[Scalar]:
        return [a + b * h for a, b in zip(x, rate)]

    def rate(self, q: Scalars, v: Scalars) -> list[Scalar]:
        """dq/dt = N(q) v"""
        return rates(self.model, q, v)

    def normalised(self, q: Scalars) -> list[Scalar]:
        """q with every quaternion at unit length."""
        parts = by_joint(q, self.model.q_start)
        return [x for code, own in zip(self.model.joint, parts) for x in JOINTS[code].normalised(own)]


def inverse_dynamics_of(model: Model, q: Scalars, v: Scalars, a: Scalars) -> Scalars:
    """The torques of a model for accelerations, over any scalars; columns of numbers go through a program."""
    if not any(isinstance(x, np.ndarray) for x in (*q, *v, *a)):
        return list(outputs_on(inverse_dynamics, straight_line_frames(model), {"q": q, "v": v, "qdd": a}).values())
    given: tuple[Any, ...] = q, v, a
    columns = [np.stack(np.broadcast_arrays(*x), axis=-1) for x in given]
    program = program_for(inverse_dynamics, model, (), np.result_type(*columns).char, None)
    return list(program.ufunc(*columns).T)  # on one thread: chunks of states are spread over threads already


def semi_implicit(plant: Plant, q: Scalars, v: Scalars, h: Scalar) -> tuple[Scalars, Scalars]:
    """v' = v + h a(q, v),   q' = q + h N(q) v'                              (symplectic Euler, first order)"""
    v = plant.moved(v, plant.free(q, v), h)
    return plant.moved(q, plant.rate(q, v), h), v


def implicit(plant: Plant, q: Scalars, v: Scalars, h: Scalar) -> tuple[Scalars, Scalars]:
    """(M + h D + h^2 K) a = tau - bias - h K v,   v' = v + h a,   q' = q + h N(q) v'   (linearly implicit Euler)

    K and D are the stiffness and damping of all that acts at the joints: stable for any of them.  Those of computed
    torques are M kp and M kd; with S = h kd + h^2 kp and z = h kp v, the matrix is M (1 + S) + R and (`implicit.py`)

        a = (1 + S)^-1 ((M + R')^-1 (tau - bias - h K v + R' z) - z),     R' = (h D + h^2 K) (1 + S)^-1.
    """
    drives = plant.drives(q, v)
    actions = plant.actions(q, v, drives)
    added = [(damping + stiffness * h) * h for _, stiffness, damping in actions]
    tau = [tau - stiffness * h * x for (tau, stiffness, _), x in zip(actions, v)]
    if plant.law.computed is None:
        a = plant.accelerate(q, v, tau, added)
    else:
        gains = plant.tracking(q, v, drives)
        share = [1.0 / (1.0 + (kd + kp * h) * h) for kp, kd in gains]
        z = [kp * h * x for (kp, _), x in zip(gains, v)]
        added = [x * y for x, y in zip(added, share)]
        tau = [x + y * e for x, y, e in zip(tau, added, z)]
        a = [(x - e) * y for x, e, y in zip(plant.accelerate(q, v, tau, added), z, share)]
    v = plant.moved(v, a, h)
    return plant.moved(q, plant.rate(q, v), h), v


def rk4(plant: Plant, q: Scalars, v: Scalars, h: Scalar) -> tuple[Scalars, Scalars]:
    """y' = y + h/6 (k1 + 2 k2 + 2 k3 + k4) for y = (q, v)                   (Kutta 1901, fourth order)"""

    def f(q: Scalars, v: Scalars) -> tuple[Scalars, Scalars]:
        return plant.rate(q, v), plant.free(q, v)

    half, sixth = h * 0.5, h * (1 / 6)
    k1 = f(q, v)
    k2 = f(*(plant.moved(x, k, half) for x, k in zip((q, v), k1)))
    k3 = f(*(plant.moved(x, k, half) for x, k in zip((q, v), k2)))
    k4 = f(*(plant.moved(x, k, h) for x, k in zip((q, v), k3)))
    sums = ([a + d + (b + c) * 2.0 for a, b, c, d in zip(*ks)] for ks in zip(k1, k2, k3, k4))
    new = [plant.moved(x, k, sixth) for x, k in zip((q, v), sums)]
    return new[0], new[1]


INTEGRATORS = {"semi-implicit": semi_implicit, "implicit": implicit, "rk4": rk4}


def step(integrator: str, plant: Plant, q: Scalars, v: Scalars, h: Scalar) -> list[Scalar]:
    """(q', v')"""
    q, v = INTEGRATORS[integrator](plant, q, v, h)
    return [*plant.normalised(q), *v]


# The public function -----------------------------------------------------------------------------------------


def rollout(model: Model | ModelBatch, q: Any, v: Any, *, steps: int, dt: float, tau: Any = None, table: Any = None,
            feedback: Feedback | None = None, external: Any = None, pulls: Pull | Sequence[Pull] | None = None,
            gravity: bool = True, every: int = 1, integrator: str = "semi-implicit",
            stop: Stop | Sequence[Stop] | None = None,
            reset: tuple[Any, Any] | None = None) -> Rollout | StoppedRollout:  # fmt: skip
    """Trajectories from the states q (..., nq), v (..., nv): `steps` steps of length dt, every k-th state kept.

    tau         (..., nv) constant torques
    table       (..., steps, nv) torques held over each step
    feedback    a `LinearFeedback`, `JointFeedback` or `Policy`, or a `PD` or `ComputedTorque` of `torsor.motion`,
                added to both and evaluated wherever the integrator evaluates accelerations; gains and references may
                differ from trajectory to trajectory; a motion to follow is sampled at the beginning of every step
    external    (..., n, 6) constant wrenches (moment, force) on the bodies, in their frames
    pulls       constant forces in the base's axes, made by `torsor.motion.Pull`: one, or several
    gravity     False switches it off
    every       keep the state after each `every`-th step: steps // every states per trajectory
    integrator  "semi-implicit" (Euler, one evaluation per step), "implicit" (Euler, one evaluation; stable for springs,
                dampers, stops and gains of any size) or "rk4" (four evaluations)

    stop        a `Stop`, or several: a trajectory stops after the first step that leaves their bounds, and stays there;
                the result is then a `StoppedRollout`
    reset       (q, v), states from which trajectories that stop go on instead, (..., nq) and (..., nv)

    Damping, friction, springs and stops of the model act, too; tau, table and feedback keep to the effort and the speed
    of its drives.  A `ModelBatch` in place of the model gives every trajectory a machine of its own; its batch axes
    broadcast with those of the states.

    NumPy arrays run on the CPU's lanes and threads; CuPy, PyTorch and JAX arrays run on their GPU, where a trajectory
    never leaves its thread.  A trajectory that diverges ends in inf or nan and does not affect the others.
    """
    model = with_gravity(model, gravity)
    task = Task.of(model, steps, dt, tau, table, feedback, every, integrator)
    task = task.loaded(model, external, pulls).ending(model, stop, reset)
    return (_on_gpu if gpu_array(q) else _on_cpu)(model, q, v, task)


def with_gravity(machine: Model | ModelBatch, gravity: bool) -> Model | ModelBatch:
    """The machine, or the same without gravity."""
    if validate.flag("gravity", gravity):
        return machine
    require_models(machine)
    return machine.weightless


class Task(NamedTuple):
    """What is done to every state: the arguments of `rollout`, checked."""

    steps: int
    dt: float
    tau: Any
    table: Any
    law: Law
    every: int
    integrator: str
    external: Any = None
    stops: tuple[Stop, ...] = ()
    reset: tuple[Any, Any] | None = None

    @classmethod
    def of(cls, machine: Model | ModelBatch, steps: int, dt: float, tau: Any, table: Any, feedback: Feedback | None,
           every: int, integrator: str) -> Task:  # fmt: skip
        model = machine_of(machine)
        require_model(model)
        validate.chosen("integrator", integrator, INTEGRATORS)
        steps, every = validate.integer("steps", steps, least=1), validate.integer("every", every, least=1)
        if every > steps:
            raise ArgumentError(f"steps = {steps} and every = {every} must satisfy 1 <= every <= steps")
        dt = validate.number("dt", dt, above=0.0)
        if not isinstance(feedback, Feedback | None):
            shown = validate.shown(feedback)
            raise ArgumentError(
                f"feedback must be a LinearFeedback, JointFeedback, Policy, PD or ComputedTorque, not {shown}"
            )
        law = kept_law(machine, feedback)
        if law.computed and not (tau is table is None):
            raise ArgumentError("ComputedTorque gives all torques of the drives: leave out tau and table")
        rows = followed(feedback, steps, dt)
        if rows is not None and gpu_array(table):
            raise ArgumentError("a feedback that follows a motion needs a table on the host, or none")
        if rows is not None:
            table = rows if table is None else rows + _checked(model, "table", table, steps)
        return cls(steps, dt, tau, table, law, every, integrator)

    def loaded(self, machine: Model | ModelBatch, external: Any, pulls: Any = None) -> Task:
        """The same with wrenches and pulls on the bodies."""
        if external is pulls is None:
            return self
        law = replace(self.law, wrenches=external is not None, pulls=pulls_on(machine_of(machine), pulls))
        return self._replace(external=external, law=law)

    def ending(self, machine: Model | ModelBatch, stop: Any, reset: Any) -> Task:
        """The same with stop conditions."""
        if stop is None:
            if reset is not None:
                raise ArgumentError("reset is for trajectories that stop: give stop, too")
            return self
        is_pair = isinstance(reset, tuple | list) and len(reset) == 2 and not any(x is None for x in reset)
        if reset is not None and not is_pair:
            raise ArgumentError(f"reset must be a pair of states (q, v), not {validate.shown(reset)}")
        again = None if reset is None else (reset[0], reset[1])
        return self._replace(stops=stops_of(stop, machine_of(machine)), reset=again)

    def inputs(self, q: Any, v: Any) -> dict[str, Any]:
        """All arrays of states."""
        again = dict(zip(RESET, self.reset or (None, None)))
        return {"q": q, "v": v, "tau": self.tau, "table": self.table, "external": self.external, **again}


def traced_step(model: Model, integrator: str, law: Law, found: Members | None = None) -> Callable[..., list[Scalar]]:
    """The step with the forward dynamics written out in it: a function of lists, one per input of the step."""
    return stepping(model, law, partial(step, integrator), found)


def stepping(model: Model, law: Law, move: Callable[..., Any], found: Members | None = None) -> Callable[..., Any]:
    """`move(plant, q, v, h)` as a function of all inputs of a step; the numbers of members are inputs, too."""
    frames = found.frames if found else straight_line_frames(model)
    names = own_numbers(law, found)

    def rollout_step(q: Scalars, v: Scalars, tau: Scalars, gain: Scalars, h: Scalars, *numbers: Any) -> Any:
        own = dict(zip(names, numbers))

        def accelerate(q: Scalars, v: Scalars, tau: Scalars, added: Scalars | None) -> Scalars:
            given = {"q": q, "v": v, "tau": tau, **own} | ({} if added is None else {"added_inertia": added})
            return list(outputs_on(dynamics_of(model, law), frames, given).values())

        return move(Plant(model, law, gain, tau, accelerate), q, v, h[0])

    return rollout_step


def stages(model: Model, integrator: str, law: Law, inverse: bool = False) -> tuple[list[Code], Code]:
    """The step of an integrator, cut where it needs accelerations."""
    return cut(model, law, partial(step, integrator), inverse)


def cut(model: Model, law: Law, move: Callable[..., Any], inverse: bool = False) -> tuple[list[Code], Code]:
    """`move(plant, q, v, h)` cut where it needs accelerations: the code of (q, v, tau) at each such stage, and of the
    end; with `inverse` also where it needs computed torques: stages of (q, v, a) before the others.

    Stage s may read what earlier ones found, as inputs ("a<r>", i); its outputs are ("out", k).
    """
    tape = Tape()
    asked: list[dict[Any, Any]] = []

    def ask(q: Scalars, v: Scalars, tau: Scalars, added: Scalars | None = None) -> Scalars:
        asked.append({("out", k): x for k, x in enumerate([*q, *v, *tau, *(added or ())])})
        return [tape.input((f"a{len(asked) - 1}", i)) for i in range(model.nv)]

    inputs = step_inputs(model, law)
    q, v, tau, gain, h = ([tape.input((name, i)) for i in range(inputs[name][0])] for name in STATE)
    plant = Plant(model, law, gain, tau, ask)
    plant.inverse = ask if inverse else None
    end = move(plant, q, v, h[0])
    return [Code.of(tape, x) for x in asked], Code.of(tape, {("out", *index): x for index, x in numbered(end)})


STATE = ("q", "v", "tau", "gain", "h")  # the first inputs of a step
RESET = ("reset_q", "reset_v")


def dynamics_of(model: Model, law: Law) -> Algorithm:
    """The algorithm of the accelerations in a step: sweeps, or the projected equations of coupled joints."""
    if model.couplings and model.nv > MOST_COUPLED:
        raise ArgumentError(f"joints that follow others are moved for {MOST_COUPLED} freedoms at most, not {model.nv}")
    if law.pulls is not None:
        return pulled.forward_dynamics_coupled if model.couplings else pulled.forward_dynamics
    return COUPLED["forward_dynamics"] if model.couplings else articulated.forward_dynamics


def step_inputs(model: Model, law: Law, found: Members | None = None) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs of a step: those of `STATE`, and of the numbers of `own_numbers`."""
    sizes = (model.nq,), (model.nv,), (model.nv,), law.values.shape[-1:], (1,)
    return dict(zip(STATE, sizes)) | {name: place_of(name).shape(model) for name in own_numbers(law, found)}


def own_numbers(law: Law, found: Members | None) -> tuple[str, ...]:
    """What else a trajectory has of its own: what acts on its bodies, and the numbers in which members differ."""
    return (*law.loads, *(found.inputs if found else ()))


def options_of(integrator: str, law: Law, found: Members | None = None) -> tuple[str, ...]:
    """The options of the forward dynamics that a step needs."""
    return (*["added_inertia"] * (integrator == "implicit"), *own_numbers(law, found))


# On the CPU --------------------------------------------------------------------------------------------------


def _on_cpu(machine: Model | ModelBatch, q: ArrayLike, v: ArrayLike, task: Task) -> Rollout | StoppedRollout:
    from torsor.backends.cpu import pool

    model, found = machine_of(machine), _members(machine)
    flat, batch, dtype = flattened(model, task.inputs(q, v), task.law, task.steps, found)
    moving = mover(model, task.integrator, task.law, np.dtype(dtype).name, found)
    steps, every, law = task.steps, task.every, task.law
    count, width = len(flat["q"]), model.nq + model.nv
    validate.check_memory("steps", count * (steps // every) * width * 8)
    stored = np.empty((count, steps // every, width), dtype)
    reason, first_stop = np.zeros((count, steps // every), np.int8), np.full(count, -1)
    h = np.array([task.dt], dtype)

    def chunk(first: int) -> None:
        rows = slice(first, first + CHUNK)
        part = {name: x[rows] for name, x in flat.items()}
        x = np.concatenate([part["q"], part["v"]], axis=1)
        move = moving(x, gain_of(law, part), h, *numbers_in(part, law, found))
        watch = _watch(model, found, task, part) if task.stops else None
        if watch:
            watch.look(x, model.nq, 0)
        torques, t = held(model, law, part), 0
        while t < steps:
            still = x[watch.frozen] if watch else None
            for_now = 1 if watch or "table" in flat else every - t % every  # steps under the same torques
            move(x, torques(t), min(for_now, steps - t))
            t += for_now
            if watch:
                x[watch.frozen] = still
                watch.look(x, model.nq, t)
            if t <= steps and t % every == 0:
                stored[rows, t // every - 1] = x
                reason[rows, t // every - 1] = watch.told() if watch else 0
        if watch:
            first_stop[rows] = watch.first

    if count <= CHUNK:
        chunk(0)
    else:
        list(pool().map(chunk, range(0, count, CHUNK)))
    stored = stored.reshape(*batch, steps // every, width)
    states = stored[..., : model.nq], stored[..., model.nq :]
    if not task.stops:
        return Rollout(*states)
    time = np.where(first_stop < 0, np.nan, first_stop * task.dt)
    return StoppedRollout(*states, time.reshape(batch), reason.reshape(*batch, steps // every))


def _watch(model: Model, found: Members | None, task: Task, part: Mapping[str, Array]) -> Watch:
    """What looks whether some trajectories stop."""
    program = watching(model, task.stops, found, part["q"].dtype.name)
    numbers = [part[name] for name in (found.inputs if found else ())]
    reset = None if task.reset is None else np.concatenate([part[name] for name in RESET], axis=1)
    return Watch(program, numbers, len(part["q"]), reset)


def _members(machine: Model | ModelBatch) -> Members | None:
    return members(machine) if isinstance(machine, ModelBatch) else None


def member_kernel(found: Members, law: Law, move: Callable[..., Any], dtype: str = "float64") -> Callable[..., Any]:
    """`move(plant, q, v, h)` as a kernel of q, v, tau, gain, [h] and the numbers in which members differ."""
    from torsor.backends.pointwise import compile_pointwise

    model = found.frames.model
    if model.nv > MOST_FREEDOMS_OF_MEMBERS:
        return looped_step(model, law, move, dtype, found)
    return compile_pointwise(stepping(model, law, move, found), step_inputs(model, law, found), dtype)


def flattened(model: Model, given: Mapping[str, Any], law: Law, steps: int,
              found: Members | None = None) -> tuple[dict[str, Array], tuple[int, ...], Any]:  # fmt: skip
    """The arrays that are given, and those of a law or of members that differ from trajectory to trajectory, with one
    batch axis; the batch axes, and the number type."""
    arrays = {name: _checked(model, name, x, steps) for name, x in given.items() if x is not None}
    for name in {"q", "v", *RESET} & arrays.keys():
        obeying(model, name, arrays[name], offset=name.endswith("q"))
    dtype = np.float32 if all(x.dtype == np.float32 for x in arrays.values()) else np.float64
    arrays |= {name: x for name, x in (("gain", law.values), ("constant", law.constant)) if x.ndim > 1}
    arrays |= {"pulls": law.pulls} if law.pulls is not None and law.pulls.ndim > 2 else {}
    arrays |= found.inputs if found else {}
    core = {name: 1 if name == "gain" else len(_core(model, name, steps)) for name in arrays}
    try:
        batch = np.broadcast_shapes(*(x.shape[: x.ndim - core[name]] for name, x in arrays.items()))
    except ValueError:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in arrays.items())
        raise ArgumentError(f"the batch axes do not go together: {shapes}") from None
    flat = {}
    for name, x in arrays.items():
        own = x.shape[x.ndim - core[name] :]
        flat[name] = np.broadcast_to(x, batch + own).reshape(-1, *own).astype(dtype, copy=False)
    return flat, batch, dtype


def numbers_in(flat: Mapping[str, Array], law: Law, found: Members | None = None) -> list[Array]:
    """The last inputs of a step; pulls that are the same for all trajectories have no axis for them."""
    same = {} if law.pulls is None else {"pulls": law.pulls.astype(flat["q"].dtype)}
    return [flat[name] if name in flat else same[name] for name in own_numbers(law, found)]


def gain_of(law: Law, flat: Mapping[str, Array]) -> Array:
    """The values of the gains, (k,) or (count, k)."""
    return flat["gain"] if "gain" in flat else law.values.astype(flat["q"].dtype)


def held(model: Model, law: Law, flat: Mapping[str, Array]) -> Callable[[int], Array]:
    """The torques without feedback in each step."""
    own = flat["constant"] if "constant" in flat else law.constant.astype(flat["q"].dtype)
    constant = np.broadcast_to(own, (len(flat["q"]), model.nv))
    constant = constant + flat["tau"] if "tau" in flat else constant
    return lambda t: constant + flat["table"][:, t] if "table" in flat else constant


def _core(model: Model, name: str, steps: int) -> tuple[int, ...]:
    """The shape of an array for one trajectory."""
    if name == "table":
        return steps, model.nv
    return place_of(name.removeprefix("reset_")).shape(model)


def _checked(model: Model, name: str, x: Any, steps: int) -> Array:
    array, core = validate.array(name, x), _core(model, name, steps)
    if array.dtype.kind not in "fiub" or array.shape[array.ndim - len(core) :] != core or array.ndim < len(core):
        wanted = ", ".join(map(str, core))
        raise ArgumentError(f"{name} is {array.dtype} {array.shape}; {model!r} needs real numbers (..., {wanted})")
    if not np.isfinite(array).all():
        raise ArgumentError(f"{name} holds numbers that are not finite")
    if name in ("q", "reset_q"):
        model.check_quaternions(array, name)
    return array


Move = Callable[[Array, Array, int], None]  # (x, torques, steps): moves the states x = (q, v) in place
Mover = Callable[..., Move]  # from states, gains, [h] and the numbers of `own_numbers`


def mover(model: Model, integrator: str, law: Law, dtype: str, found: Members | None = None) -> Mover:
    """How many states take steps, kept with the model, or with the structure of a batch."""

    def make() -> Mover:
        from torsor.motion.rollout_march import marches, marching

        if model.nv <= (MOST_FREEDOMS_OF_MEMBERS if found else QUICK.freedoms):
            return _unrolled_mover(model, integrator, law, dtype, found)
        if marches(model, law):
            return marching(model, integrator, law, dtype, found)
        cut_up = _staged_mover if model.nv <= ON_GPU.freedoms else _looped_mover
        return cut_up(model, integrator, law, dtype, found)

    key = "rollout", integrator, law.key, dtype
    return (found.store if found else store(model)).once(key, make)


def _unrolled_mover(model: Model, integrator: str, law: Law, dtype: str, found: Members | None = None) -> Mover:
    from torsor.backends.pointwise import compile_pointwise

    program = compile_pointwise(traced_step(model, integrator, law, found), step_inputs(model, law, found), dtype)

    return partial(_repeated, program, model)


def _repeated(program: Callable[..., Any], model: Model, like: Array, gain: Array, h: Array, *numbers: Array) -> Move:
    """Steps by a kernel that takes one step of all states; `like`: an array of such states."""
    other = np.empty_like(like)

    def move(x: Array, torques: Array, steps: int) -> None:
        now, then = x, other
        for _ in range(steps):
            program(now[:, : model.nq], now[:, model.nq :], torques, gain, h, *numbers, then)
            now, then = then, now
        if now is not x:
            x[:] = now

    return move


def _staged_mover(model: Model, integrator: str, law: Law, dtype: str, found: Members | None = None) -> Mover:
    from torsor.motion.rollout_stages import staged_step

    return partial(_repeated, staged_step(model, law, partial(step, integrator), dtype, found), model)


def _looped_mover(model: Model, integrator: str, law: Law, dtype: str, found: Members | None = None) -> Mover:
    return partial(_repeated, looped_step(model, law, partial(step, integrator), dtype, found), model)


def looped_step(model: Model, law: Law, move: Callable[..., Any], dtype: str,
                found: Members | None = None) -> Callable[..., Any]:  # fmt: skip
    """`move(plant, q, v, h)` on columns of numbers, one per coordinate, around the loop kernel for accelerations."""
    names = own_numbers(law, found)

    def member_step(q: Array, v: Array, tau: Array, gain: Array, h: Array, *others: Array, out: Any = None) -> Array:
        numbers, (out, *_) = others[: len(names)], (*others[len(names) :], out)

        def accelerate(q: Scalars, v: Scalars, tau: Scalars, added: Scalars | None) -> Scalars:
            given: list[Any] = [q, v, tau, *([] if added is None else [added])]
            columns = [np.stack(np.broadcast_arrays(*x, *given[0])[: len(x)], axis=-1) for x in given]
            options = (*["added_inertia"] * (added is not None), *names)
            program = program_for(dynamics_of(model, law), model, options, np.dtype(dtype).char, None, found)
            return list(program.ufunc(*columns, *numbers).T)  # on one thread, as above

        plant = Plant(model, law, list(gain.T), list(tau.T), accelerate)
        entries: dict[Any, Any] = dict(numbered(move(plant, list(q.T), list(v.T), h[..., 0])))
        result = np.empty((len(q), *(k + 1 for k in max(entries))), dtype) if out is None else out
        for index, x in entries.items():
            result[:, *index] = x
        return result

    return member_step


# On the GPU --------------------------------------------------------------------------------------------------


def gpu_kernel(model: Model, integrator: str, law: Law, *, dtype: str, trig: str = "accurate", tabulated: bool = False,
               specialised: bool | None = None, found: Members | None = None, stops: tuple[Stop, ...] = (),
               reset: bool = False) -> RolloutKernel:  # fmt: skip
    """The kernel of a rollout: its step unrolled, or cut into stages around the loop kernel of a large model."""
    from torsor.backends.cuda import Kernel, RolloutKernel
    from torsor.backends.pointwise import trace

    ends = None
    if stops:
        own = stop_inputs(model, found)
        flat = tuple((name, prod(s)) for name, s in own.items())
        ends = Kernel(trace(outside(model, stops, found), own), flat, (len(stops),), 64 if dtype == "float64" else 32)

    inputs = step_inputs(model, law, found)
    shape, bits = (model.nq + model.nv,), 64 if dtype == "float64" else 32
    sizes = tuple((name, prod(s)) for name, s in inputs.items())
    if specialised or model.couplings or (specialised is None and model.nv <= GPU_UNROLL_FREEDOMS):
        code = trace(traced_step(model, integrator, law, found), inputs)
        return RolloutKernel(Kernel(code, sizes, shape, bits, trig), (), None, tabulated, ends, reset)
    dynamics = Kernel.of(dynamics_request(model, integrator, law, dtype, found), trig)
    codes, end = stages(model, integrator, law)
    return RolloutKernel(Kernel(end, sizes, shape, bits, trig), tuple(codes), dynamics, tabulated, ends, reset)


def dynamics_request(model: Model, integrator: str, law: Law, dtype: str, found: Members | None = None) -> Request:
    """The loops of the forward dynamics that a step needs."""
    options = options_of(integrator, law, found)
    return Request(dynamics_of(model, law), model, options=options, dtype=dtype, unroll=NEVER, members=found)


def _on_gpu(machine: Model | ModelBatch, q: Any, v: Any, task: Task) -> Rollout | StoppedRollout:
    from torsor.backends.gpu import columns, precision, run_rollout

    model, found, law, integrator = machine_of(machine), _members(machine), task.law, task.integrator
    arrays = task.inputs(q, v)
    dtype = precision(arrays.values())
    reset = task.reset is not None
    if law.pulls is not None:
        arrays["pulls"] = columns(law.pulls, 2, dtype)
    key = "cuda rollout", integrator, law.key, dtype, task.table is not None, stops_key(model, task.stops), reset

    def make() -> tuple[RolloutKernel, dict[str, Any]]:
        tabulated = task.table is not None
        kernel = gpu_kernel(model, integrator, law, dtype=dtype, tabulated=tabulated, found=found, stops=task.stops,
                            reset=reset)  # fmt: skip
        return kernel, {"request": kernel.dynamics and dynamics_request(model, integrator, law, dtype, found)}

    kernel, modules = (found.store if found else store(model)).once(key, make)
    if isinstance(machine, ModelBatch) and found:
        arrays |= store(machine).once(("rollout on the device", dtype), lambda: {
            name: columns(x, x.ndim - len(machine.shape), dtype) for name, x in found.inputs.items()
        })  # fmt: skip
    result = run_rollout(model, kernel, modules, arrays, law, task.steps, task.dt, task.every)
    return StoppedRollout(*result) if task.stops else Rollout(*result)
