"""The law: everything that acts on a machine, collected from its forces into one form for every engine.

    tau = drive(u, x, v) + springs, friction, stops (x, v),        u = command(t) - K (q, v) + ...

A force says what it adds as a few terms (`Servo`, `Part`, `Command`, ...). `collect` adds up the terms of all forces
and of the model's own joints. The result is data: kernels of rollouts, ensembles and simulations, on CPUs and GPUs, are
traced from it (`plant.py`), and read its numbers. Only `Called` holds functions, which are called in every stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms import articulated
from torsor.compiler.store import store
from torsor.dynamics.calls import program_for
from torsor.dynamics.members import members
from torsor.errors import ArgumentError
from torsor.model.batch import INERTIAL, VARIABLE, ModelBatch, machine_of
from torsor.model.freedoms import limited_coordinates, nondefault
from torsor.model.joints import JOINTS
from torsor.model.model import Model
from torsor.motion.laws import CREEP, FAR, KINDS, finite, most
from torsor.validate import function, shown

if TYPE_CHECKING:
    from torsor.motion.forces import Policy

Array = NDArray[Any]
At = Callable[[Array], Array]  # times (m,) -> (..., m, width)

# The stops of a joint are a spring and a damper that would bring the inertia it feels to rest in this time (s), without
# overshoot. A joint that hits a stop leaves it with 0.14 of its speed (exp(-2)); below CUSHION / STOP_TIME, with more.
STOP_TIME = 0.02


class Force(Protocol):
    """Data that acts on a machine."""

    def terms(self, model: Model) -> Iterable[Term]:
        """What it adds to the law of a model."""


# ---- terms: what forces are made of ----


class Schedule(NamedTuple):
    """Numbers that change in time: at(times (m,)) -> (*batch, m, width). At its knots they jump or bend.

    holds   whether they hold over a step of fixed length: gains, and the torques that belong to them
    """

    at: At
    batch: tuple[int, ...] = ()
    knots: Array = np.empty(0)
    holds: bool = False


class Command(NamedTuple):
    """Torques of the drives: (..., nv), or a schedule of them."""

    tau: Array | Schedule


class Servo(NamedTuple):
    """-kp q - kd v at every joint, (..., nv) each, as a command of the drives; the joints have no quaternions."""

    kp: Array
    kd: Array


class Linear(NamedTuple):
    """-K (q, v) as a command of the drives: K (..., nv, nq + nv), or a schedule of it, flattened."""

    K: Array | Schedule


class Part(NamedTuple):
    """One of `laws.OWN` at every freedom, with its numbers: one for all freedoms, or (..., nv)."""

    kind: str
    numbers: tuple[Any, ...]


class CurvedSpring(NamedTuple):
    """Springs at joints with quaternions: the configuration (..., nq) at which they are slack, and their stiffnesses
    (..., nv)."""

    rest: Array
    stiffness: Array


class Track(NamedTuple):
    """The torques of a model for the accelerations demand(t) - kp q - kd v, as a command of the drives.

    itself   whether it is the machine that moves: in a batch, every member with its own numbers
    """

    model: Model
    itself: bool
    kp: Array
    kd: Array
    demand: Array | Schedule


class Load(NamedTuple):
    """What acts on the bodies: `name` is the option of the forward dynamics that takes it."""

    name: str  # "external" (..., n, 6), or "pulls" (..., n, 12)
    numbers: Array | Schedule


class Network(NamedTuple):
    """A small neural network as a command of the drives."""

    policy: Policy


class Called(NamedTuple):
    """A function of the state.

    torque   (t, q, v) -> (..., nv); with many states, q (m, nq), v (m, nv), if `batched`
    slopes   (t, q, v) -> (stiffness, damping) at the joints, or None
    drive    whether it is a command of the drives, which keep to their effort and speed
    needs_v  whether it depends on v
    reads    numbers of the model with which it computes: it cannot serve members that differ in these
    on_host  what it computes with NumPy alone, in words, if it does
    """

    torque: Callable[..., Any]
    slopes: Callable[..., Any] | None = None
    drive: bool = False
    needs_v: bool = True
    batched: bool = False
    reads: tuple[str, ...] = ()
    on_host: str = ""


PLACEMENTS = ("R", "p", "axis", "pitch")
NUMBERS = (*PLACEMENTS, *INERTIAL, "armature", "gravity")  # all that the equations of motion depend on

Term = Command | Servo | Linear | Part | CurvedSpring | Track | Load | Network | Called


# ---- the law ----


class LawLayout(NamedTuple):
    """Where the numbers of a law are.

    gains      of the entries of K
    tracking   kp and kd of the tracked motion, if there is one
    parts      of each part: its kind, the freedoms where it acts, and for each of its numbers those at these freedoms
    curved     of each curved spring: its body, its rest and its stiffness
    """

    gains: slice
    tracking: tuple[slice, ...]
    parts: tuple[tuple[str, tuple[int, ...], tuple[slice, ...]], ...]
    curved: tuple[tuple[int, slice, slice], ...]


@dataclass(frozen=True, eq=False)
class Law:
    """Everything that acts on a model, in the form that kernels take.

    gains      (k, 2) row and column of the entries of K
    parts      a kind of `laws.KINDS`, and the freedoms where it acts
    curved     bodies whose joints have springs although their coordinates hold a quaternion
    values     (..., m): the entries of K, kp and kd of the tracked motion, the numbers of the parts and of the curved
               springs; never empty
    constant   (..., rows, nv): the command of the drives, and with `tracked` the accelerations that are demanded
    commands   what is added to the command in time;  demands: to the accelerations
    schedule   of the entries of K, if they change in time; they hold over a step
    loads      what acts on the bodies and never changes, by name;  waves: wrenches that change in time
    """

    model: Model
    gains: Array
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    curved: tuple[int, ...]
    values: Array
    constant: Array
    commands: tuple[Schedule, ...] = ()
    demands: tuple[Schedule, ...] = ()
    schedule: Schedule | None = None
    tracked: Model | None = None
    tracks_itself: bool = False
    policy: Policy | None = None
    loads: Mapping[str, Array] | None = None
    waves: tuple[Schedule, ...] = ()
    called: tuple[Called, ...] = ()

    @cached_property
    def layout(self) -> LawLayout:
        """Where in `values` each of its numbers is."""
        end = 0

        def following(count: int) -> slice:
            nonlocal end
            start, end = end, end + count
            return slice(start, end)

        joints = [(body, JOINTS[self.model.joint[body]]) for body in self.curved]
        return LawLayout(
            following(len(self.gains)),
            tuple(following(self.model.nv) for _ in ("kp", "kd")) if self.tracked else (),
            tuple((kind, at, tuple(following(len(at)) for _ in KINDS[kind][1])) for kind, at in self.parts),
            tuple((body, following(joint.nq), following(joint.nv)) for body, joint in joints),
        )

    @cached_property
    def key(self) -> bytes:
        """What the code of a step depends on, beside the model."""
        rest = [self.gains.tobytes(), self.policy.key if self.policy else b""]
        tracked = self.tracked and (self.tracked.key, self.tracks_itself)
        names = self.parts, self.curved, self.load_names, tracked, bool(self.called)
        return b"|".join([repr(names).encode(), *rest])

    @property
    def load_names(self) -> tuple[str, ...]:
        """The options of the forward dynamics for what acts on the bodies."""
        return tuple(name for name in ("external", "pulls") if self.loads and name in self.loads)

    @property
    def rows(self) -> int:
        """Of the command."""
        return 1 if self.tracked is None else 2

    @property
    def changes(self) -> bool:
        """Whether commands change in time."""
        return bool(self.commands or self.demands)

    @property
    def batch(self) -> tuple[int, ...]:
        """The axes of trajectories that differ."""
        shapes = [self.values.shape[:-1], self.constant.shape[:-2]]
        shapes += [x.shape[:-2] for x in (self.loads or {}).values()]
        return broadcast("forces", *shapes, *(x.batch for x in self.schedules))

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """All that changes in time."""
        return (*self.commands, *self.demands, *self.waves, *(() if self.schedule is None else (self.schedule,)))

    @property
    def is_data(self) -> bool:
        """Whether no function has to be called with the state."""
        return not self.called

    @property
    def is_by_joints(self) -> bool:
        """Whether every joint acts by itself: with gains for the position and the velocity of the same freedom."""
        model = self.model
        own = np.stack([limited_coordinates(model), model.nq + np.arange(model.nv)], axis=1)[self.gains[:, 0]]
        return bool((self.gains[:, 1:] == own).any(axis=1).all()) and not (self.policy or self.tracked)

    @property
    def is_diagonal(self) -> bool:
        """Whether every freedom acts by itself."""
        return self.is_by_joints and not self.curved

    @property
    def is_local(self) -> bool:
        """Whether every freedom acts and moves by itself."""
        return self.model.nq == self.model.nv and self.is_diagonal

    @cached_property
    def knots(self) -> Array:
        """The times at which something jumps or bends: a step ends there."""
        return np.unique(np.concatenate([np.empty(0), *(x.knots for x in self.schedules)]))

    def commands_at(self, times: Array, starts: Array | None = None) -> Array:
        """All commands at many times, (..., m, rows * nv); `starts`: when the steps begin to which these belong."""
        nv, total = self.model.nv, self.constant[..., None, :, :]
        for row, schedules in enumerate((self.commands, self.demands)):
            for schedule in schedules:
                x = schedule.at(starts if starts is not None and schedule.holds else times)
                wide = broadcast("forces", total.shape[:-2], x.shape[:-1])
                total = np.array(np.broadcast_to(total, (*wide, *total.shape[-2:])))
                total[..., row, :] += x
        total = np.broadcast_to(total, (*total.shape[:-3], len(times), *total.shape[-2:]))
        return total.reshape(*total.shape[:-2], self.rows * nv)

    def values_at(self, times: Array) -> Array:
        """`values` at many times, (..., m, k), if the entries of K change in time."""
        assert self.schedule is not None
        K = self.schedule.at(times)
        entries = K.reshape(*K.shape[:-1], self.model.nv, self.model.nq + self.model.nv)[
            ..., self.gains[:, 0], self.gains[:, 1]
        ]
        batch = broadcast("forces", K.shape[:-2], self.values.shape[:-1])
        total = np.array(np.broadcast_to(self.values[..., None, :], (*batch, len(times), self.values.shape[-1])))
        total[..., : len(self.gains)] += entries
        return total

    def waves_at(self, times: Array) -> Array:
        """What changes in time of the wrenches on the bodies, (m, n, 6), at many times."""
        found = sum((wave.at(times) for wave in self.waves), np.zeros((len(times), 1)))
        return found.reshape(len(times), self.model.n, 6)

    def loads_at(self, t: float) -> Mapping[str, Array]:
        """What acts on the bodies at a time."""
        loads = dict(self.loads or {})
        return loads | ({"external": loads["external"] + self.waves_at(np.array([t]))[0]} if self.waves else {})


def broadcast(what: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes to which all broadcast."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ArgumentError(f"the batch axes of {what} do not go together: {sorted(set(shapes))}") from None


@contextmanager
def broadcasting(what: str) -> Iterator[None]:
    """Say whose batch axes do not go together where NumPy says that they do not."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, ArgumentError) or "broadcast" not in str(error):
            raise
        raise ArgumentError(f"the batch axes of {what} do not go together: {error}") from None


# ---- collecting ----


def collect(machine: Model | ModelBatch, forces: Any = (), own: bool = True) -> Law:
    """The law of forces on a model or a batch; `own`: with what the joints do by themselves.

    The last law is kept with the machine for as long as its forces are of torsor and have the same numbers.
    """
    given = force_list(forces)
    if not own:
        return _collected(machine, [*_terms(machine, given)])
    key = content(given)
    before, law = vars(machine).get(KEPT, (None, None))
    if law is None or before != key:
        law = _collected(machine, [*_own_terms(machine), *_terms(machine, given)])
        vars(machine)[KEPT] = key, law
    return law


KEPT = "last law"  # the attribute of a machine


def force_list(forces: Any) -> tuple[Any, ...]:
    """One force, or several: each is a force of torsor or a function (t, q, v) -> tau."""
    several = (forces,) if callable(forces) or hasattr(forces, "terms") else forces
    is_list = isinstance(several, Iterable) and not isinstance(several, str | bytes | Mapping)
    if not is_list or getattr(several, "shape", None) == ():
        raise ArgumentError(f"forces must be forces or functions (t, q, v) -> tau, not {shown(forces)}")
    found = tuple(several)
    for k, force in enumerate(found):
        if not callable(force) and not hasattr(force, "terms"):
            raise ArgumentError(f"forces[{k}] must be a force or a function (t, q, v) -> tau, not {shown(force)}")
        if not hasattr(force, "terms"):
            function(f"forces[{k}]", force, ("t", "q", "v"))
    return found


def content(x: Any) -> Any:
    """All numbers that a law depends on, as something that can be compared.

    A function is compared by identity: it is called when it is needed. What else could change without being seen, such
    as what a force of the user reads, is equal to nothing.
    """
    if isinstance(x, np.ndarray | np.generic):
        return x.shape, x.dtype.str, x.tobytes()
    if isinstance(x, Model):
        return x.key
    if getattr(x, "reads_its_fields", False):
        return type(x), *(content(value) for value in vars(x).values())
    if isinstance(x, list | tuple):
        return tuple(map(content, x))
    if isinstance(x, int | float | str | None):
        return x
    return _Same(x) if callable(x) and not hasattr(x, "terms") else _Never()


class _Same:
    """A function, compared by identity, and alive as long as it is compared."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.x is other.x

    __hash__ = None  # type: ignore[assignment]


class _Never:
    """Equal to nothing."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _terms(machine: Model | ModelBatch, forces: Sequence[Any]) -> Iterable[Term]:
    model, varied = machine_of(machine), _varied(machine)
    for force in forces:
        with broadcasting(type(force).__name__):
            terms = [*force.terms(model)] if hasattr(force, "terms") else [Called(force)]
        if differ := [x for term in terms if isinstance(term, Called) for x in term.reads if x in varied]:
            name, what = type(force).__name__, ", ".join(differ)
            raise ArgumentError(f"{name} computes with one model, and members differ in {what}: move them one by one")
        yield from terms


def _varied(machine: Model | ModelBatch) -> Mapping[str, Array]:
    """The numbers in which members differ."""
    return machine.varied if isinstance(machine, ModelBatch) else {}


def _own_terms(machine: Model | ModelBatch) -> Iterable[Term]:
    """What the joints do by themselves: springs, dampers, friction and stops, and those in which members differ."""
    model, varied = machine_of(machine), _varied(machine)
    given = {name: x for name, x in (nondefault(model) | dict(varied)).items() if name in VARIABLE}

    def numbers(*names: str) -> list[Array]:
        return [np.asarray(given.get(name, getattr(model, name))) for name in names]

    if given.keys() & {"stiffness", "damping"}:
        stiffness, damping, rest = numbers("stiffness", "damping", "rest")
        yield from spring_terms(model, stiffness, damping, model.integrate(model.neutral(), rest))
    if "friction" in given:
        yield Part("friction", (given["friction"], CREEP))
    if given.keys() & {"lower", "upper"}:
        yield Part("stops", tuple(numbers("lower", "upper", "stop_stiffness", "stop_damping")))


def spring_terms(model: Model, stiffness: Any, damping: Any, slack: Array) -> Iterable[Term]:
    """Springs that are slack at a configuration (..., nq), and dampers."""
    stiffness, column = np.broadcast_to(stiffness, (*np.shape(stiffness)[:-1], model.nv)), limited_coordinates(model)
    curved = (column < 0) & (np.reshape(stiffness, (-1, model.nv)) != 0).any(axis=0)
    if curved.any():
        yield CurvedSpring(slack, np.where(column < 0, stiffness, 0.0))
    flat = np.where(column < 0, 0.0, stiffness)
    rest = np.where(column < 0, 0.0, slack[..., column])
    yield Part("spring", (flat * rest, flat, damping))


def _complete_stops(machine: Model | ModelBatch, lower: Any, upper: Any, stiffness: Any, damping: Any) -> Part:
    """Stops; where stiffness or damping is 0, it follows from `STOP_TIME` and the inertia that the joint feels."""
    if (np.equal(stiffness, 0) | np.equal(damping, 0)).any():
        inertia = felt_inertia(machine)
        stiffness = np.where(np.equal(stiffness, 0), inertia / STOP_TIME**2, stiffness)
        damping = np.where(np.equal(damping, 0), 2 * inertia / STOP_TIME, damping)
    return Part("stops", (finite(np.asarray(lower)), finite(np.asarray(upper)), stiffness, damping))


def felt_inertia(machine: Model | ModelBatch) -> Array:
    """(..., nv) the articulated inertia at each freedom in the neutral configuration: all joints beyond it are free."""

    def make() -> Array:
        model, differ = machine_of(machine), {*_varied(machine)} & {*NUMBERS} - {"gravity"}
        found = members(machine) if isinstance(machine, ModelBatch) and differ else None
        own = found.inputs if found else {}
        return program_for(articulated.pivots, model, (*own,), "d", None, found)(model.neutral(), *own.values())

    return store(machine).once("felt inertia", make)


class _Sums:
    """What terms add up to, while they are collected."""

    def __init__(self, machine: Model | ModelBatch) -> None:
        self.machine, self.model = machine, machine_of(machine)
        model = self.model
        self.command: Any = np.zeros(model.nv)
        self.entries: list[tuple[Array, Array, Array]] = []  # row, column (k,) and value (..., k) of entries of K
        self.springs: Any = np.zeros((3, model.nv))  # (..., 3, nv): pull, stiffness, damping
        self.parts: list[Part] = []
        self.commands: list[Schedule] = []
        self.schedule: Schedule | None = None
        self.curved: list[CurvedSpring] = []
        self.track: Track | None = None
        self.policy: Policy | None = None
        self.loads: dict[str, Any] = {}
        self.waves: list[Schedule] = []
        self.called: list[Called] = []

    def add(self, term: Any) -> None:
        """A term."""
        match term:
            case Command(Schedule() as schedule):
                self.commands.append(schedule)
            case Command(tau):
                self.command = self.command + tau
            case Servo(kp, kd):
                self.add_diagonal(kp, kd)
            case Linear(Schedule() as schedule):
                self.schedule = self._only("a Feedback whose gains change in time", self.schedule, schedule)
                self.add_matrix(np.ones((self.model.nv, self.model.nq + self.model.nv)), 0.0)
            case Linear(K):
                self.add_matrix(K, 1.0)
            case Part("spring", numbers):
                self.springs = self.springs + _stacked(self.model, numbers)
            case Part("stops", numbers):
                self.parts.append(_complete_stops(self.machine, *numbers))
            case Part():
                self.parts.append(term)
            case CurvedSpring():
                self.curved.append(term)
            case Track():
                self.track = self._only("ComputedTorque", self.track, term)
            case Load(name, Schedule() as schedule):
                self.waves.append(schedule)
                self.loads.setdefault(name, np.zeros((self.model.n, 6)))
            case Load(name, numbers):
                self.loads[name] = self.loads[name] + numbers if name in self.loads else numbers
            case Network(policy):
                self.policy = self._only("a Policy", self.policy, policy)
            case Called():
                self.called.append(term)

    @staticmethod
    def _only(what: str, before: Any, now: Any) -> Any:
        if before is not None:
            raise ArgumentError(f"forces hold {what} twice: one is possible")
        return now

    def add_diagonal(self, stiffness: Any, damping: Any) -> None:
        """Entries of K for the position and the velocity of every freedom."""
        freedoms, column = np.arange(self.model.nv), limited_coordinates(self.model)
        for gain, columns in ((stiffness, column), (damping, self.model.nq + freedoms)):
            gain = np.broadcast_to(gain, (*np.shape(gain)[:-1], self.model.nv))
            at = np.flatnonzero((gain != 0).reshape(-1, self.model.nv).any(axis=0) & (columns >= 0))
            self.entries.append((at, columns[at], gain[..., at]))

    def add_matrix(self, K: Any, factor: float) -> None:
        rows, columns = np.nonzero((K != 0).reshape(-1, *K.shape[-2:]).any(axis=0))
        self.entries.append((rows, columns, factor * K[..., rows, columns]))

    def gains(self) -> tuple[Array, Array]:
        """(k, 2) row and column of the entries of K, and their sums (..., k)."""
        width = self.model.nq + self.model.nv
        places = [rows * width + columns for rows, columns, _ in self.entries]
        found, where = np.unique(np.concatenate([np.zeros(0, int), *places]), return_inverse=True)
        batch = broadcast("forces", *(x.shape[:-1] for _, _, x in self.entries))
        total, at = np.zeros((*batch, len(found))), 0
        for _, _, x in self.entries:
            total[..., where[at : at + x.shape[-1]]] += x
            at += x.shape[-1]
        return np.stack([found // width, found % width], axis=1), total


def _stacked(model: Model, numbers: Sequence[Any]) -> Array:
    """Numbers of a part, (..., count, nv)."""
    batch = broadcast("forces", *(np.shape(x)[:-1] for x in numbers))
    return np.stack([np.broadcast_to(x, (*batch, model.nv)) for x in numbers], axis=-2).astype(float)


def _collected(machine: Model | ModelBatch, terms: Sequence[Term]) -> Law:
    sums, model, varied = _Sums(machine), machine_of(machine), _varied(machine)
    with broadcasting("forces"):
        for term in terms:
            sums.add(term)
    limits = {name: most(np.asarray(varied.get(name, getattr(model, name)))) for name in ("effort", "speed")}
    drives = [Part(name, (x,)) for name, x in limits.items() if (x < FAR).any()]
    parts, springs = [*sums.parts, *drives], tuple(np.moveaxis(sums.springs, -2, 0))
    if sums.track is None and not drives:  # a drive without limits adds to springs
        sums.command = sums.command + springs[0]
        sums.add_diagonal(*springs[1:])
    else:
        parts.insert(0, Part("spring", springs))
    gains, entries = sums.gains()
    numbered = [(part.kind, _stacked(model, part.numbers)) for part in parts]
    structure = [(kind, x, _where(kind, x)) for kind, x in numbered]
    bodies, curved = _curved_numbers(model, sums.curved)
    track, rows = sums.track, [sums.command]
    numbers = [entries, *(x[..., at].reshape(*x.shape[:-2], -1) for _, x, at in structure), *curved]
    if track is not None:
        numbers[1:1] = [np.broadcast_to(x, (*np.shape(x)[:-1], model.nv)) for x in (track.kp, track.kd)]
        rows.append(np.zeros(model.nv) + (0.0 if isinstance(track.demand, Schedule) else track.demand))
    values = _joined(numbers)
    return Law(
        model=model, gains=gains, parts=tuple((kind, tuple(at.tolist())) for kind, _, at in structure if len(at)),
        curved=bodies, values=values if values.shape[-1] else np.zeros((*values.shape[:-1], 1)),
        constant=np.stack(np.broadcast_arrays(*rows), axis=-2), commands=tuple(sums.commands),
        demands=(track.demand,) if track is not None and isinstance(track.demand, Schedule) else (),
        schedule=sums.schedule, tracked=track and track.model, tracks_itself=bool(track and track.itself),
        policy=sums.policy, loads=sums.loads or None,
        waves=tuple(sums.waves), called=tuple(sums.called),
    )  # fmt: skip


def _joined(numbers: Sequence[Array]) -> Array:
    """Numbers (..., k) one after the other."""
    batch = broadcast("forces and members", *(x.shape[:-1] for x in numbers))
    return np.concatenate([np.broadcast_to(x, (*batch, x.shape[-1])) for x in numbers], axis=-1)


def _where(kind: str, numbers: Array) -> Array:
    """The freedoms at which a part does something."""
    idle = np.array([*KINDS[kind][1].values()])
    own = {"spring": (1, 2), "friction": (0,), "stops": (0, 1), "effort": (0,), "speed": (0,)}
    named = own.get(kind, range(len(idle)))
    used = [numbers[..., k, :] != idle[k] for k in named]
    return np.flatnonzero(np.any([x.reshape(-1, x.shape[-1]).any(axis=0) for x in used], axis=0))


def _curved_numbers(model: Model, springs: Sequence[CurvedSpring]) -> tuple[tuple[int, ...], list[Array]]:
    """The bodies with springs at quaternions, and their numbers: the rest and the stiffness of each in turn."""
    bodies: list[int] = []
    numbers: list[Array] = []
    for spring in springs:
        stiffness = np.asarray(spring.stiffness)
        for body in range(model.n):
            v = slice(model.v_start[body], model.v_start[body + 1])
            if np.any(own := stiffness[..., v]):
                bodies.append(body)
                numbers.append(_joined([spring.rest[..., model.q_start[body] : model.q_start[body + 1]], own]))
    return tuple(bodies), numbers
