"""Rollouts: many trajectories of one model, with a whole step of the integrator in one kernel.

The step is written once, over any scalar.  Tracing turns it into a tape.  On the CPU this tape is a kernel that moves a
vector of states by one step; on the GPU it is the body of a loop over time in which a state never leaves its thread.
Models too large to unroll take the same step around a loop kernel for the accelerations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import validate
from torsor.algorithms import articulated
from torsor.compiler.members import Members, members
from torsor.compiler.request import NEVER, QUICK, Request
from torsor.compiler.store import store
from torsor.compiler.tape import Code, Tape
from torsor.dynamics.calls import gpu_array
from torsor.dynamics.couplings import obeying
from torsor.dynamics.methods import COUPLED, MOST_COUPLED
from torsor.errors import ArgumentError
from torsor.linalg import Scalar, Vec, maximum
from torsor.model.batch import VARIABLE, ModelBatch, machine_of
from torsor.model.freedoms import USUAL, limited_coordinates
from torsor.model.joints import JOINTS
from torsor.model.model import Model, require_model
from torsor.outputs import numbered, place_of
from torsor.reference import base_of, scatter
from torsor.simulate.laws import (
    CREEP,
    FAR,
    KINDS,
    STOP_DAMPING,
    STOP_STIFFNESS,
    Action,
    action,
    finite,
    kernel,
    most,
)
from torsor.sweeps import Algorithm, run

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


@dataclass(frozen=True)
class LinearFeedback:
    """tau = Kq (q_ref - q) + Kv (v_ref - v).

    Kq (nv, nq) and Kv (nv, nv), or their diagonals (nv,); the references default to zero.  References may have leading
    batch axes, one per trajectory; so may matrices.  For gains per joint and trajectory, see `JointFeedback`.
    """

    Kq: ArrayLike
    Kv: ArrayLike
    q_ref: ArrayLike = 0.0
    v_ref: ArrayLike = 0.0


@dataclass(frozen=True)
class JointFeedback:
    """tau_k = kp_k (q_ref_k - q_k) + kd_k (v_ref_k - v_k): a servo at every joint, in O(n).

    Numbers, (nv,), or (..., nv) with a value for each trajectory.  The joints must have no quaternions.
    """

    kp: ArrayLike
    kd: ArrayLike
    q_ref: ArrayLike = 0.0
    v_ref: ArrayLike = 0.0


@dataclass(frozen=True)
class Policy:
    """A small neural network, compiled into the step: tau = W_k f(... f(W_1 (q, v) + b_1) ...) + b_k.

    layers      (W, b) each: W (outputs, inputs) and b (outputs,); the first takes (q, v), the last gives (nv,)
    activation  f, between the layers: "relu", max(x, 0), or "softsign", x / (1 + |x|)
    """

    layers: Sequence[tuple[ArrayLike, ArrayLike]]
    activation: str = "relu"

    def checked(self, model: Model) -> Policy:
        """The policy with arrays for a model."""
        validate.chosen("activation", self.activation, ACTIVATIONS)
        width = model.nq + model.nv
        layers: list[tuple[Array, Array]] = []
        for k, layer in enumerate(self.layers):
            if not isinstance(layer, tuple | list) or len(layer) != 2:
                raise ArgumentError(f"layers[{k}] of a policy must be a pair (W, b), not {validate.shown(layer)}")
            W, b = (validate.real_array(f"{name} of layers[{k}]", x) for name, x in zip("Wb", layer))
            if W.ndim != 2 or W.shape[1] != width or b.shape != W.shape[:1]:
                raise ArgumentError(
                    f"layers[{k}] has W {W.shape} and b {b.shape}; W (m, {width}) and b (m,) are needed"
                )
            layers.append((W, b))
            width = len(b)
        if not layers or width != model.nv:
            raise ArgumentError(
                f"the last layer of a policy must give {model.nv} torques, not {width if layers else 0}"
            )
        return Policy(tuple(layers), self.activation)

    def __call__(self, x: Scalars) -> Scalars:
        """The torques, over any scalars; structural zeros of W cost nothing."""
        for k, (W, b) in enumerate(self.layers):
            if k:
                x = [ACTIVATIONS[self.activation](xi) for xi in x]
            rows = zip(np.asarray(W).tolist(), np.asarray(b).tolist())
            x = [sum((w * xi for w, xi in zip(row, x) if w), start=bias) for row, bias in rows]
        return x

    @property
    def key(self) -> bytes:
        return b"|".join([self.activation.encode(), *(np.asarray(x).tobytes() for layer in self.layers for x in layer)])


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: maximum(x, 0.0),
    "softsign": lambda x: x / (maximum(x, -x) + 1.0),  # abs has no slope on a tape
}


Feedback = LinearFeedback | JointFeedback | Policy

# The law of the joints -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Law:
    """Torques in the form that a kernel takes.

    The command of the drives is tau (..., nv) - K (q, v), K sparse, and that of a policy; tau includes the references.
    The parts (`laws.py`) limit the drives, and add what the joints do by themselves.
    """

    gains: Array  # (k, 2): row, column of the entries of K
    parts: tuple[tuple[str, tuple[int, ...]], ...]  # a kind of `laws.KINDS`, and the freedoms where it acts
    values: Array  # (..., m): the entries of K, then the numbers of the parts; never empty
    constant: Array  # (..., nv)
    policy: Policy | None = None  # adds torques of its own

    @property
    def key(self) -> bytes:
        """What the code of a step depends on."""
        return b"|".join([self.gains.tobytes(), repr(self.parts).encode(), self.policy.key if self.policy else b""])

    @property
    def smooth(self) -> bool:
        """Whether the law is linear: no friction, no stops, no limits of drives, no policy."""
        return not (self.policy or self.parts)


def law_of(model: Model, feedback: Feedback | None,
           own: Mapping[str, Array] | None = None) -> Law:  # fmt: skip
    """The law of a feedback and of the model's own springs, dampers, friction, stops and limits of its drives.

    `own`: those of its quantities (..., nv) in which trajectories differ.
    """
    given = {name: np.asarray((own or {}).get(name, getattr(model, name))) for name in VARIABLE}
    given = {name: most(x) if name in ("effort", "speed") else finite(x) for name, x in given.items()}
    limited = bool((given["effort"] < FAR).any() or (given["speed"] < FAR).any())
    # a drive without limits adds to springs and dampers: they are entries of the same K
    linear = [_linear(model, feedback) if isinstance(feedback, LinearFeedback) else _servos(model, feedback)]
    linear = linear if limited else [_own(model, given), *linear]
    width = model.nq + model.nv
    places, where = np.unique(np.concatenate([rows * width + columns for rows, columns, _, _ in linear]),
                              return_inverse=True)  # fmt: skip
    parts = list(_parts(model, given, limited))
    shapes = [x.shape[:-1] for x in (*(values for _, _, values, _ in linear), *(x for _, _, own in parts for x in own))]
    try:
        batch = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ArgumentError(f"the batch axes of members and gains do not go together: {sorted(set(shapes))}") from None
    total = np.zeros((*batch, len(places)))
    ends = np.cumsum([0, *(len(rows) for rows, _, _, _ in linear)])
    for first, end, (_, _, values, _) in zip(ends[:-1], ends[1:], linear):
        total[..., where[first:end]] += values
    numbers = [np.broadcast_to(x, (*batch, x.shape[-1])) for _, _, own in parts for x in own]
    values = np.concatenate([total, *numbers], axis=-1)
    constant = sum((x for _, _, _, x in linear), np.zeros(model.nv))
    gains = np.stack([places // width, places % width], axis=1)
    policy = feedback.checked(model) if isinstance(feedback, Policy) else None
    structure = tuple((kind, tuple(freedoms.tolist())) for kind, freedoms, _ in parts)
    return Law(gains, structure, values if values.shape[-1] else np.zeros((*batch, 1)), constant, policy)


def _parts(model: Model, given: Mapping[str, Array], limited: bool) -> Iterator[tuple[str, Array, list[Array]]]:
    """Kind, freedoms and numbers (..., m) of what is not linear; with limits of drives, springs and dampers, too."""

    def where(*names: str) -> Array:
        used = [given[name] != finite(np.array(USUAL[name])) for name in names]
        return np.flatnonzero(np.any([x.reshape(-1, model.nv).any(axis=0) for x in used], axis=0))

    for kind, names, more in (
        ("spring", ("rest", "stiffness", "damping"), ()),
        ("friction", ("friction",), (CREEP,)),
        ("stops", ("lower", "upper"), (STOP_STIFFNESS, STOP_DAMPING)),
        ("effort", ("effort",), ()),
        ("speed", ("speed",), ()),
    ):
        freedoms = where(*names)
        if not len(freedoms) or (kind == "spring" and not limited):
            continue
        numbers = [given[name] for name in names]
        if kind == "spring":
            _refuse_curved_springs(model, given["stiffness"])
            numbers[0] = given["stiffness"] * given["rest"]
        yield kind, freedoms, [x[..., freedoms] for x in numbers] + [np.full(len(freedoms), x) for x in more]


Linear = tuple[Array, Array, Array, Array]  # rows, columns, values (..., k), constant (..., nv)


def _own(model: Model, given: Mapping[str, Array]) -> Linear:
    """The springs and dampers of the model."""
    stiffness, damping, rest = np.broadcast_arrays(*(given[name] for name in ("stiffness", "damping", "rest")))
    stiff, damped = (x.reshape(-1, model.nv).any(axis=0) for x in (stiffness, damping))
    _refuse_curved_springs(model, stiffness)
    column = limited_coordinates(model)
    springs, dampers = np.flatnonzero(stiff), np.flatnonzero(damped)
    rows, columns = np.concatenate([springs, dampers]), np.concatenate([column[springs], model.nq + dampers])
    return rows, columns, np.concatenate([stiffness[..., springs], damping[..., dampers]], axis=-1), stiffness * rest


def _refuse_curved_springs(model: Model, stiffness: Array) -> None:
    stiff = stiffness.reshape(-1, model.nv).any(axis=0)
    for k in np.flatnonzero(stiff & (limited_coordinates(model) < 0))[:1]:
        body = int(np.searchsorted(model.v_start, k, side="right")) - 1
        raise ArgumentError(f"a rollout knows no springs on quaternions: joint {model.names[body]!r} has one")


def _servos(model: Model, feedback: JointFeedback | Policy | None) -> Linear:
    if not isinstance(feedback, JointFeedback):
        return np.zeros(0, int), np.zeros(0, int), np.zeros(0), np.zeros(model.nv)
    if model.nq != model.nv:
        raise ArgumentError(f"JointFeedback needs joints without quaternions; {model!r} has some")
    given = {}
    for name in ("kp", "kd", "q_ref", "v_ref"):
        x = validate.real_array(name, getattr(feedback, name))
        if x.ndim and x.shape[-1] != model.nv:
            raise ArgumentError(f"{name} has shape {x.shape}; a number or (..., {model.nv}) is needed")
        given[name] = x
    try:
        kp, kd, q_ref, v_ref = np.broadcast_arrays(*given.values(), np.empty(model.nv))[:4]
    except ValueError:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in given.items())
        raise ArgumentError(f"the batch axes do not go together: {shapes}") from None
    joints = np.arange(model.nv)
    rows, columns = np.concatenate([joints, joints]), np.concatenate([joints, model.nq + joints])
    return rows, columns, np.concatenate([kp, kd], axis=-1), kp * q_ref + kd * v_ref


def _linear(model: Model, feedback: LinearFeedback) -> Linear:
    parts = _gain(model, "Kq", feedback.Kq, model.nq), _gain(model, "Kv", feedback.Kv, model.nv)
    batch = np.broadcast_shapes(*(x.shape[:-2] for x in parts))
    K = np.concatenate([np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in parts], axis=-1)
    references = []
    for name, x, size in (("q_ref", feedback.q_ref, model.nq), ("v_ref", feedback.v_ref, model.nv)):
        x = validate.real_array(name, x)
        if x.ndim and x.shape[-1] != size:
            raise ArgumentError(f"{name} has shape {x.shape}; a number or (..., {size}) is needed")
        references.append(np.broadcast_to(x, (*x.shape[:-1], size)))
    batch = np.broadcast_shapes(*(x.shape[:-1] for x in references))
    reference = np.concatenate([np.broadcast_to(x, (*batch, x.shape[-1])) for x in references], axis=-1)
    rows, columns = np.nonzero(np.any(K, axis=tuple(range(K.ndim - 2))))
    return rows, columns, K[..., rows, columns], (K @ reference[..., None])[..., 0]


def _gain(model: Model, name: str, K: ArrayLike, columns: int) -> Array:
    matrix = validate.real_array(name, K)
    if matrix.shape == (model.nv,) and columns == model.nv:
        matrix = np.diag(matrix)
    if matrix.shape[-2:] != (model.nv, columns):
        raise ArgumentError(f"{name} has shape {matrix.shape}; finite gains ({model.nv}, {columns}) are needed")
    return matrix


# One step, over any scalar -----------------------------------------------------------------------------------


class Plant:
    """What an integrator sees of a model under a law: accelerations, rates of coordinates, and sums of lists.

    accelerate(q, v, tau, added) are the accelerations with `added` on the diagonal of M (None: M alone).
    """

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
        return [x.tau for x in self.actions(q, v)]

    def actions(self, q: Scalars, v: Scalars) -> list[Action]:
        """The torque at every joint, and how much it falls with its own position and velocity."""
        column, drives = limited_coordinates(self.model).tolist(), self._drives(q, v)
        found = enumerate(zip(self.kinds, drives, v, self.numbers))
        return [action(kinds, u, q[column[i]], x, iter(numbers)) for i, (kinds, u, x, numbers) in found]

    def _drives(self, q: Scalars, v: Scalars) -> list[Action]:
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
        if self.law.policy:
            return [u.and_(Action(tau)) for u, tau in zip(commands, self.law.policy(x))]
        return commands

    def moved(self, x: Scalars, rate: Scalars, h: Scalar) -> list[Scalar]:
        return [a + b * h for a, b in zip(x, rate)]

    def rate(self, q: Scalars, v: Scalars) -> list[Scalar]:
        """dq/dt = N(q) v, joint by joint."""
        model = self.model
        parts = zip(_by_joint(q, model.q_start), _by_joint(v, model.v_start))
        return [x for code, (own_q, own_v) in zip(model.joint, parts) for x in JOINTS[code].rate(own_q, own_v)]

    def normalised(self, q: Scalars) -> list[Scalar]:
        """q with every quaternion at unit length."""
        parts = _by_joint(q, self.model.q_start)
        return [x for code, own in zip(self.model.joint, parts) for x in JOINTS[code].normalised(own)]


def _by_joint(x: Scalars, start: Array) -> list[Vec]:
    return [Vec.of(x[i:j]) for i, j in zip(start[:-1].tolist(), start[1:].tolist())]


def semi_implicit(plant: Plant, q: Scalars, v: Scalars, h: Scalar) -> tuple[Scalars, Scalars]:
    """v' = v + h a(q, v),   q' = q + h N(q) v'                              (symplectic Euler, first order)"""
    v = plant.moved(v, plant.free(q, v), h)
    return plant.moved(q, plant.rate(q, v), h), v


def implicit(plant: Plant, q: Scalars, v: Scalars, h: Scalar) -> tuple[Scalars, Scalars]:
    """(M + h D + h^2 K) a = tau - bias - h K v,   v' = v + h a,   q' = q + h N(q) v'   (linearly implicit Euler)

    K and D are the stiffness and damping of all that acts at the joints: stable for any of them.
    """
    actions = plant.actions(q, v)
    added = [(damping + stiffness * h) * h for _, stiffness, damping in actions]
    tau = [tau - stiffness * h * x for (tau, stiffness, _), x in zip(actions, v)]
    v = plant.moved(v, plant.accelerate(q, v, tau, added), h)
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
            feedback: Feedback | None = None, every: int = 1,
            integrator: str = "semi-implicit") -> Rollout:  # fmt: skip
    """Trajectories from the states q (..., nq), v (..., nv): `steps` steps of length dt, every k-th state kept.

    tau         (..., nv) constant torques
    table       (..., steps, nv) torques held over each step
    feedback    a `LinearFeedback`, `JointFeedback` or `Policy`, added to both and evaluated wherever the integrator
                evaluates accelerations; gains and references may differ from trajectory to trajectory
    every       keep the state after each `every`-th step: steps // every states per trajectory
    integrator  "semi-implicit" (Euler, one evaluation per step), "implicit" (Euler, one evaluation; stable for springs,
                dampers, stops and gains of any size) or "rk4" (four evaluations)

    Damping, friction, springs and stops of the model act, too.  A `ModelBatch` in place of the model gives every
    trajectory a machine of its own; its batch axes broadcast with those of the states (on the CPU).

    NumPy arrays run on the CPU's lanes and threads; CuPy, PyTorch and JAX arrays run on their GPU, where a trajectory
    never leaves its thread.  A trajectory that diverges ends in inf or nan and does not affect the others.
    """
    if isinstance(model, ModelBatch):
        return _of_members(model, q, v, Task.of(model, steps, dt, tau, table, feedback, every, integrator))
    task = Task.of(model, steps, dt, tau, table, feedback, every, integrator)
    return _on_gpu(model, q, v, task) if gpu_array(q) else _on_cpu(model, q, v, task)


class Task(NamedTuple):
    """What is done to every state: the arguments of `rollout`, checked."""

    steps: int
    dt: float
    tau: Any
    table: Any
    law: Law
    every: int
    integrator: str

    @classmethod
    def of(cls, machine: Model | ModelBatch, steps: int, dt: float, tau: Any, table: Any,
           feedback: Feedback | None, every: int, integrator: str) -> Task:  # fmt: skip
        model, varied = machine_of(machine), machine.varied if isinstance(machine, ModelBatch) else {}
        require_model(model)
        validate.chosen("integrator", integrator, INTEGRATORS)
        steps, every = validate.integer("steps", steps, least=1), validate.integer("every", every, least=1)
        if every > steps:
            raise ArgumentError(f"steps = {steps} and every = {every} must satisfy 1 <= every <= steps")
        dt = validate.number("dt", dt, above=0.0)
        if not isinstance(feedback, Feedback | None):
            shown = validate.shown(feedback)
            raise ArgumentError(f"feedback must be a LinearFeedback, a JointFeedback or a Policy, not {shown}")
        return cls(steps, dt, tau, table, law_of(model, feedback, varied), every, integrator)


def traced_step(model: Model, integrator: str, law: Law) -> Callable[..., list[Scalar]]:
    """The step with the forward dynamics written out in it: a function of lists q, v, tau, gain and [h]."""
    from torsor.compiler.frames import straight_line_frames

    frames = straight_line_frames(model)
    links, parent = [frames.link(i) for i in range(model.n)], model.parent.tolist()
    base = base_of(model.gravity.tolist())

    def accelerate(q: Scalars, v: Scalars, tau: Scalars, added: Scalars | None) -> Scalars:
        given = {"q": q, "v": v, "tau": tau} | ({} if added is None else {"added_inertia": added})
        return run(dynamics_of(model), links, parent, base, scatter(model, given), couplings=model.couplings)

    def rollout_step(q: Scalars, v: Scalars, tau: Scalars, gain: Scalars, h: Scalars) -> list[Scalar]:
        return step(integrator, Plant(model, law, gain, tau, accelerate), q, v, h[0])

    return rollout_step


def stages(model: Model, integrator: str, law: Law) -> tuple[list[Code], Code]:
    """The step of an integrator, cut where it needs accelerations."""
    return cut(model, law, partial(step, integrator))


def cut(model: Model, law: Law, move: Callable[..., Any]) -> tuple[list[Code], Code]:
    """`move(plant, q, v, h)` cut where it needs accelerations: the code of (q, v, tau) at each such stage, and of the
    end.

    Stage s may read the accelerations found by earlier ones, as inputs ("a<r>", i); its outputs are ("out", k).
    """
    tape = Tape()
    asked: list[dict[Any, Any]] = []

    def accelerate(q: Scalars, v: Scalars, tau: Scalars, added: Scalars | None) -> Scalars:
        asked.append({("out", k): x for k, x in enumerate([*q, *v, *tau, *(added or ())])})
        return [tape.input((f"a{len(asked) - 1}", i)) for i in range(model.nv)]

    q, v, tau, gain, h = (
        [tape.input((name, i)) for i in range(shape[0])] for name, shape in step_inputs(model, law).items()
    )
    end = move(Plant(model, law, gain, tau, accelerate), q, v, h[0])
    return [Code.of(tape, x) for x in asked], Code.of(tape, {("out", *index): x for index, x in numbered(end)})


def step_inputs(model: Model, law: Law) -> dict[str, tuple[int, ...]]:
    return {"q": (model.nq,), "v": (model.nv,), "tau": (model.nv,), "gain": law.values.shape[-1:], "h": (1,)}


def dynamics_of(model: Model) -> Algorithm:
    """The algorithm of the accelerations in a step: sweeps, or the projected equations of coupled joints."""
    if model.couplings and model.nv > MOST_COUPLED:
        raise ArgumentError(f"joints that follow others are moved for {MOST_COUPLED} freedoms at most, not {model.nv}")
    return COUPLED["forward_dynamics"] if model.couplings else articulated.forward_dynamics


def options_of(integrator: str) -> tuple[str, ...]:
    """The options of the forward dynamics that an integrator needs."""
    return ("added_inertia",) if integrator == "implicit" else ()


# On the CPU --------------------------------------------------------------------------------------------------


def _on_cpu(model: Model, q: ArrayLike, v: ArrayLike, task: Task) -> Rollout:
    flat, batch, dtype = flattened(model, {"q": q, "v": v, "tau": task.tau, "table": task.table}, task.law, task.steps)
    moving = mover(model, task.integrator, task.law, np.dtype(dtype).name)
    return _rolled(model, flat, batch, task, lambda part, x, h: moving(x, gain_of(task.law, part), h))


def _rolled(model: Model, flat: Mapping[str, Array], batch: tuple[int, ...], task: Task,
            moving: Callable[[Mapping[str, Array], Array, Array], Move]) -> Rollout:  # fmt: skip
    """All steps of all states, a chunk at a time; `moving(part, x, h)` moves the states x of a chunk."""
    from torsor.backends.cpu import pool

    steps, every, law, dtype = task.steps, task.every, task.law, flat["q"].dtype
    count, width = len(flat["q"]), model.nq + model.nv
    validate.check_memory("steps", count * (steps // every) * width * 8)
    stored = np.empty((count, steps // every, width), dtype)
    h = np.array([task.dt], dtype)

    def chunk(first: int) -> None:
        part = {name: x[first : first + CHUNK] for name, x in flat.items()}
        x = np.concatenate([part["q"], part["v"]], axis=1)
        torques, move, t = held(model, law, part), moving(part, x, h), 0
        while t < steps:
            for_now = 1 if "table" in flat else every - t % every  # steps under the same torques
            move(x, torques(t), min(for_now, steps - t))
            t += for_now
            if t <= steps and t % every == 0:
                stored[first : first + CHUNK, t // every - 1] = x

    if count <= CHUNK:
        chunk(0)
    else:
        list(pool().map(chunk, range(0, count, CHUNK)))
    stored = stored.reshape(*batch, steps // every, width)
    return Rollout(stored[..., : model.nq], stored[..., model.nq :])


def _of_members(batch: ModelBatch, q: ArrayLike, v: ArrayLike, task: Task) -> Rollout:
    """Every trajectory on a machine of its own."""
    steps, tau, table, law, integrator = task.steps, task.tau, task.table, task.law, task.integrator
    model, found = batch.model, members(batch)
    q = _checked(model, "q", q, steps)
    try:
        q = np.broadcast_to(q, (*np.broadcast_shapes(q.shape[:-1], batch.shape), model.nq))
    except ValueError:
        raise ArgumentError(f"the batch axes do not go together: q {q.shape}, members {batch.shape}") from None
    flat, axes, dtype = flattened(model, {"q": q, "v": v, "tau": tau, "table": table}, law, steps)
    for name, x in found.inputs.items():
        core = place_of(name).shape(model)
        flat[name] = np.broadcast_to(x, axes + core).reshape(-1, *core).astype(dtype)
    key = "rollout of members", integrator, law.key, np.dtype(dtype).name
    move = partial(step, integrator)
    program = found.store.once(key, lambda: member_kernel(found, law, move, np.dtype(dtype).name))

    def moving(part: Mapping[str, Array], x: Array, h: Array) -> Move:
        return _repeated(program, model, x, gain_of(law, part), h, *(part[name] for name in found.inputs))

    return _rolled(model, flat, axes, task, moving)


def member_kernel(found: Members, law: Law, move: Callable[..., Any], dtype: str = "float64") -> Callable[..., Any]:
    """`move(plant, q, v, h)` as a kernel of q, v, tau, gain, [h] and the numbers in which members differ."""
    from torsor.backends.pointwise import compile_pointwise
    from torsor.compiler.trace import outputs_on

    model = found.frames.model
    if model.nv > MOST_FREEDOMS_OF_MEMBERS:
        return _looped_members(found, law, move, dtype)

    def member_step(q: Scalars, v: Scalars, tau: Scalars, gain: Scalars, h: Scalars, *numbers: Any) -> Any:
        own = dict(zip(found.inputs, numbers))

        def accelerate(q: Scalars, v: Scalars, tau: Scalars, added: Scalars | None) -> Scalars:
            given = {"q": q, "v": v, "tau": tau, **own} | ({} if added is None else {"added_inertia": added})
            return list(outputs_on(dynamics_of(model), found.frames, given).values())

        return move(Plant(model, law, gain, tau, accelerate), q, v, h[0])

    inputs = step_inputs(model, law) | {name: place_of(name).shape(model) for name in found.inputs}
    return compile_pointwise(member_step, inputs, dtype)


def _looped_members(found: Members, law: Law, move: Callable[..., Any], dtype: str) -> Callable[..., Any]:
    """`member_kernel` of a large model: the step on columns of numbers, around the loop kernel for accelerations."""
    from torsor.backends.cpu import compile_request

    model, names = found.frames.model, tuple(found.inputs)

    def program(options: tuple[str, ...]) -> Any:
        request = Request(articulated.forward_dynamics, model, options=(*options, *names), dtype=dtype, unroll=NEVER,
                          members=found)  # fmt: skip
        return found.store.once(("members", options, dtype), lambda: compile_request(request))

    def member_step(q: Array, v: Array, tau: Array, gain: Array, h: Array, *others: Array, out: Any = None) -> Array:
        numbers, (out, *_) = others[: len(names)], (*others[len(names) :], out)

        def accelerate(q: Scalars, v: Scalars, tau: Scalars, added: Scalars | None) -> Scalars:
            given: list[Any] = [q, v, tau, *([] if added is None else [added])]
            columns = [np.stack(np.broadcast_arrays(*x, *given[0])[: len(x)], axis=-1) for x in given]
            return list(program(() if added is None else ("added_inertia",))(*columns, *numbers).T)

        plant = Plant(model, law, list(gain.T), list(tau.T), accelerate)
        entries: dict[Any, Any] = dict(numbered(move(plant, list(q.T), list(v.T), h[..., 0])))
        result = np.empty((len(q), *(k + 1 for k in max(entries))), dtype) if out is None else out
        for index, x in entries.items():
            result[:, *index] = x
        return result

    return member_step


def flattened(model: Model, given: Mapping[str, Any], law: Law,
              steps: int) -> tuple[dict[str, Array], tuple[int, ...], Any]:  # fmt: skip
    """The arrays that are given, and those of a law that differ from trajectory to trajectory, with one batch axis; the
    batch axes, and the number type."""
    arrays = {name: _checked(model, name, x, steps) for name, x in given.items() if x is not None}
    obeying(model, "q", arrays["q"], offset=True)
    obeying(model, "v", arrays["v"], offset=False)
    dtype = np.float32 if all(x.dtype == np.float32 for x in arrays.values()) else np.float64
    arrays |= {name: x for name, x in (("gain", law.values), ("constant", law.constant)) if x.ndim > 1}
    try:
        batch = np.broadcast_shapes(*(x.shape[: x.ndim - 1 - (name == "table")] for name, x in arrays.items()))
    except ValueError:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in arrays.items())
        raise ArgumentError(f"the batch axes do not go together: {shapes}") from None
    flat = {
        name: np.broadcast_to(x, batch + x.shape[x.ndim - 1 - (name == "table") :]).reshape(
            -1, *x.shape[x.ndim - 1 - (name == "table") :]).astype(dtype, copy=False)
        for name, x in arrays.items()
    }  # fmt: skip
    return flat, batch, dtype


def gain_of(law: Law, flat: Mapping[str, Array]) -> Array:
    """The values of the gains, (k,) or (count, k)."""
    return flat["gain"] if "gain" in flat else law.values.astype(flat["q"].dtype)


def held(model: Model, law: Law, flat: Mapping[str, Array]) -> Callable[[int], Array]:
    """The torques without feedback in each step."""
    own = flat["constant"] if "constant" in flat else law.constant.astype(flat["q"].dtype)
    constant = np.broadcast_to(own, (len(flat["q"]), model.nv))
    constant = constant + flat["tau"] if "tau" in flat else constant
    return lambda t: constant + flat["table"][:, t] if "table" in flat else constant


def _checked(model: Model, name: str, x: Any, steps: int) -> Array:
    array = validate.array(name, x)
    core = {"q": (model.nq,), "table": (steps, model.nv)}.get(name, (model.nv,))
    if array.dtype.kind not in "fiub" or array.shape[array.ndim - len(core) :] != core or array.ndim < len(core):
        wanted = ", ".join(map(str, core))
        raise ArgumentError(f"{name} is {array.dtype} {array.shape}; {model!r} needs real numbers (..., {wanted})")
    if not np.isfinite(array).all():
        raise ArgumentError(f"{name} holds numbers that are not finite")
    if name == "q":
        model.check_quaternions(array)
    return array


Move = Callable[[Array, Array, int], None]  # (x, torques, steps): moves the states x = (q, v) in place
Mover = Callable[[Array, Array, Array], Move]  # from states, gains and [h]


def mover(model: Model, integrator: str, law: Law, dtype: str) -> Mover:
    """How many states take steps, kept with the model."""
    if model.nv <= QUICK.freedoms:
        make = _unrolled_mover
    elif model.nq == model.nv and law.smooth and integrator != "rk4" and dtype == "float64":
        make = _marching_mover if _is_diagonal(model, law) else _looped_mover
    else:
        make = _looped_mover
    key = "rollout", integrator, law.key, dtype
    return store(model).once(key, lambda: make(model, integrator, law, dtype))


def _unrolled_mover(model: Model, integrator: str, law: Law, dtype: str) -> Mover:
    from torsor.backends.pointwise import compile_pointwise

    program = compile_pointwise(traced_step(model, integrator, law), step_inputs(model, law), dtype)

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


class JointPlant(Plant):
    """A plant of columns of numbers whose law has gains on the diagonal only: all joints at once, by a kernel."""

    def __init__(self, model: Model, law: Law, gain: Array, tau: Array, accelerate: Callable[..., Scalars]) -> None:
        self.model, self.accelerate, self.u = model, accelerate, tau
        self.coordinate, at = limited_coordinates(model), len(law.gains)
        kinds = (*["servo"] * bool(at), *(kind for kind, _ in law.parts))
        self.kernel = kernel(kinds, True, tau.dtype.name)
        self.given = [*diagonals(model, law, gain, len(tau))] if at else []
        for kind, freedoms in law.parts:
            for usual in KINDS[kind][1].values():
                row = np.full((*gain.shape[:-1], model.nv), usual, gain.dtype)
                row[..., list(freedoms)] = gain[..., at : at + len(freedoms)]
                self.given.append(row)
                at += len(freedoms)

    def actions(self, q: Scalars, v: Scalars) -> list[Action]:
        x, rates = (np.stack(np.broadcast_arrays(*x), axis=-1) for x in ([q[k] for k in self.coordinate], v))
        return [Action(*column) for column in np.moveaxis(self.kernel(x, rates, self.u, *self.given), 0, -1)]


def _looped_mover(model: Model, integrator: str, law: Law, dtype: str) -> Mover:
    """The step on columns of numbers, one per coordinate, around the compiled forward dynamics."""
    from torsor.backends.cpu import compile_program

    program = compile_program(dynamics_of(model), model, dtype=dtype, options=options_of(integrator))

    def accelerate(q: Scalars, v: Scalars, tau: Scalars, added: Scalars | None) -> Scalars:
        given: list[Any] = [q, v, tau, *([] if added is None else [added])]
        columns = [np.stack(np.broadcast_arrays(*x), axis=-1) for x in given]
        return list(program(*columns).T)

    at_once = law.parts and not law.policy and _is_diagonal(model, law)

    def mover(x: Array, gain: Array, h: Array) -> Move:
        def move(x: Array, torques: Array, steps: int) -> None:
            if at_once:
                plant: Plant = JointPlant(model, law, gain, torques, accelerate)
            else:
                plant = Plant(model, law, list(gain.T), list(torques.T), accelerate)
            for _ in range(steps):
                x.T[:] = step(integrator, plant, list(x[:, : model.nq].T), list(x[:, model.nq :].T), h[0])

        return move

    return mover


def _is_diagonal(model: Model, law: Law) -> bool:
    """Whether every gain is of a joint's torque for its own position or velocity."""
    own = np.stack([limited_coordinates(model), model.nq + np.arange(model.nv)], axis=1)[law.gains[:, 0]]
    return bool((law.gains[:, 1:] == own).any(axis=1).all())


def diagonals(model: Model, law: Law, gain: Array, count: int) -> Array:
    """The stiffness and the damping (2, count, nv) of a law with gains on the diagonal only."""
    K, D = found = np.zeros((2, count, model.nv), gain.dtype)
    for diagonal, own in ((K, law.gains[:, 1] < model.nq), (D, law.gains[:, 1] >= model.nq)):
        diagonal[:, law.gains[own, 0]] = gain[..., : len(law.gains)][..., own]
    return found


def _marching_mover(model: Model, integrator: str, law: Law, dtype: str) -> Mover:
    """All steps in one call of machine code, for gains on the diagonal and any number of joints (`march.py`)."""
    from torsor.backends.cpu import compile_program
    from torsor.simulate.march import March

    options = options_of(integrator)
    program = compile_program(dynamics_of(model), model, options=options)

    def mover(x: Array, gain: Array, h: Array) -> Move:
        K, D = diagonals(model, law, gain, len(x))
        step = float(h[0])
        if not options:
            return March(program, x, K, D, None, step)
        return March(program, x, K, D + K * step, (D + K * step) * step, step)

    return mover


# On the GPU --------------------------------------------------------------------------------------------------


def gpu_kernel(model: Model, integrator: str, law: Law, *, dtype: str, trig: str = "accurate", tabulated: bool = False,
               specialised: bool | None = None) -> RolloutKernel:  # fmt: skip
    """The kernel of a rollout: its step unrolled, or cut into stages around the loop kernel of a large model."""
    from torsor.backends.cuda import Kernel, RolloutKernel
    from torsor.backends.pointwise import trace

    inputs = step_inputs(model, law)
    shape, bits = (model.nq + model.nv,), 64 if dtype == "float64" else 32
    sizes = tuple((name, s[0]) for name, s in inputs.items())
    if specialised or model.couplings or (specialised is None and model.nv <= GPU_UNROLL_FREEDOMS):
        code = trace(traced_step(model, integrator, law), inputs)
        return RolloutKernel(Kernel(code, sizes, shape, bits, trig), (), None, tabulated)
    request = Request(articulated.forward_dynamics, model, options=options_of(integrator), dtype=dtype, unroll=NEVER)
    dynamics = Kernel.of(request, trig)
    codes, end = stages(model, integrator, law)
    return RolloutKernel(Kernel(end, sizes, shape, bits, trig), tuple(codes), dynamics, tabulated)


def _on_gpu(model: Model, q: Any, v: Any, task: Task) -> Rollout:
    from torsor.backends.gpu import run_rollout

    steps, dt, tau, table, law, every, integrator = task
    double = any("float64" in str(x.dtype) for x in (q, v, tau, table) if hasattr(x, "dtype"))
    dtype = "float64" if double else "float32"
    key = "cuda rollout", integrator, law.key, dtype, table is not None
    modules: dict[str, Any]
    kernel, modules = store(model).once(
        key, lambda: (gpu_kernel(model, integrator, law, dtype=dtype, tabulated=table is not None), {})
    )
    arrays = {"q": q, "v": v, "tau": tau, "table": table}
    return Rollout(*run_rollout(model, kernel, modules, arrays, law.values, law.constant, steps, dt, every))
