"""The law: all forces on a machine, collected into one form for every engine.

    tau = drive(u, x, v) + springs, friction, stops (x, v),        u = command(t) - K (q, v) + ...

A force consists of a few terms (`Servo`, `Part`, `Command`, ...). `collect` adds up the terms of all forces and of the
model's own joints. The result is data: kernels of rollouts, ensembles and simulations, on CPUs and GPUs, are traced
from it (`plant.py`) and read its numbers. Only `Called` contains functions, which are called in every stage.
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

# The stops of a joint are a spring and a damper with critical damping and this time constant (s) for the inertia at the
# joint. A joint that hits a stop leaves it with 0.14 of its speed (exp(-2)); below CUSHION / STOP_TIME, with more.
STOP_TIME = 0.02


class Force(Protocol):
    """A force on a machine, as data."""

    def terms(self, model: Model) -> Iterable[Term]:
        """The terms that the force adds to the law of a model."""


# ---- terms: the parts of forces ----


class Schedule(NamedTuple):
    """Numbers that change in time: at(times (m,)) -> (*batch, m, width). They jump or bend at the knots.

    holds   whether they are constant over a step of fixed length: gains, and the torques that belong to them
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
    """Springs at joints with quaternions: the slack configuration (..., nq) and the stiffness (..., nv)."""

    rest: Array
    stiffness: Array


class Track(NamedTuple):
    """The torques of a model for the accelerations demand(t) - kp q - kd v, as a command of the drives.

    itself   whether the model is the machine that moves; in a batch, every member then has its own numbers
    """

    model: Model
    itself: bool
    kp: Array
    kd: Array
    demand: Array | Schedule


class Load(NamedTuple):
    """Loads on the bodies: `name` is the option of the forward dynamics that takes them."""

    name: str  # "external" (..., n, 6), or "pulls" (..., n, 12)
    numbers: Array | Schedule


class Network(NamedTuple):
    """A small neural network as a command of the drives."""

    policy: Policy


class Called(NamedTuple):
    """A function of the state.

    torque   (t, q, v) -> (..., nv)
    slopes   (t, q, v) -> (stiffness, damping) at the joints, or None
    drive    whether it is a command of the drives, which limit it by their effort and speed
    needs_v  whether it depends on v
    batched  whether it always takes many states, q (m, nq) and v (m, nv)
    reads    the model's numbers that it uses: it cannot serve members that differ in these
    on_host  a description of what it computes with NumPy only; empty: nothing
    """

    torque: Callable[..., Any]
    slopes: Callable[..., Any] | None = None
    drive: bool = False
    needs_v: bool = True
    batched: bool = False
    reads: tuple[str, ...] = ()
    on_host: str = ""


PLACEMENTS = ("R", "p", "axis", "pitch")
NUMBERS = (*PLACEMENTS, *INERTIAL, "armature", "gravity")  # all numbers in the equations of motion

Term = Command | Servo | Linear | Part | CurvedSpring | Track | Load | Network | Called


# ---- the law ----


class LawLayout(NamedTuple):
    """The places of the numbers of a law in `Law.values`.

    gains      the entries of K
    tracking   kp and kd of the tracked motion, if there is one
    parts      for each part: its kind, the freedoms where it acts, and the place of each of its numbers
    curved     for each curved spring: its body, and the places of its rest and of its stiffness
    """

    gains: slice
    tracking: tuple[slice, ...]
    parts: tuple[tuple[str, tuple[int, ...], tuple[slice, ...]], ...]
    curved: tuple[tuple[int, slice, slice], ...]


@dataclass(frozen=True, eq=False)
class Law:
    """All forces on a model, in the form that kernels take.

    gains      (k, 2) row and column of the entries of K
    parts      a kind of `laws.KINDS`, and the freedoms where it acts
    curved     bodies whose joints have quaternions and springs
    values     (..., m): the entries of K, kp and kd of the tracked motion, the numbers of the parts and of the curved
               springs; never empty
    constant   (..., rows, nv): the command of the drives, and with `tracked` the demanded accelerations
    commands   time-dependent additions to the command;  demands: to the accelerations
    schedule   of the entries of K, if they change in time; they are constant over a step
    loads      constant loads on the bodies, by name;  waves: wrenches that change in time
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
        """The place of each number in `values`."""
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
        """Everything that the code of a step depends on, except the model."""
        rest = [self.gains.tobytes(), self.policy.key if self.policy else b""]
        tracked = self.tracked and (self.tracked.key, self.tracks_itself)
        names = self.parts, self.curved, self.load_names, tracked, bool(self.called)
        return b"|".join([repr(names).encode(), *rest])

    @property
    def load_names(self) -> tuple[str, ...]:
        """The options of the forward dynamics for loads on the bodies."""
        return tuple(name for name in ("external", "pulls") if self.loads and name in self.loads)

    @property
    def rows(self) -> int:
        """The number of rows of the command."""
        return 1 if self.tracked is None else 2

    @property
    def changes(self) -> bool:
        """Whether commands change in time."""
        return bool(self.commands or self.demands)

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes: trajectories with different numbers."""
        shapes = [self.values.shape[:-1], self.constant.shape[:-2]]
        shapes += [x.shape[:-2] for x in (self.loads or {}).values()]
        return broadcast("forces", *shapes, *(x.batch for x in self.schedules))

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """Everything that changes in time."""
        return (*self.commands, *self.demands, *self.waves, *(() if self.schedule is None else (self.schedule,)))

    @property
    def is_data(self) -> bool:
        """Whether the law contains no functions of the state."""
        return not self.called

    @property
    def is_by_joints(self) -> bool:
        """Whether the torque at a joint depends only on that joint: gains only for a freedom's own state."""
        model = self.model
        own = np.stack([limited_coordinates(model), model.nq + np.arange(model.nv)], axis=1)[self.gains[:, 0]]
        return bool((self.gains[:, 1:] == own).any(axis=1).all()) and not (self.policy or self.tracked)

    @property
    def is_diagonal(self) -> bool:
        """Whether the torque at a freedom depends only on that freedom."""
        return self.is_by_joints and not self.curved

    @property
    def is_local(self) -> bool:
        """Whether each freedom can be computed and moved separately."""
        return self.model.nq == self.model.nv and self.is_diagonal

    @cached_property
    def knots(self) -> Array:
        """The times at which numbers jump or bend: steps end there."""
        return np.unique(np.concatenate([np.empty(0), *(x.knots for x in self.schedules)]))

    def commands_at(self, times: Array, starts: Array | None = None) -> Array:
        """All commands at many times, (..., m, rows * nv); `starts`: when the step of each time begins."""
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
        """The time-dependent part of the wrenches on the bodies at many times, (m, n, 6)."""
        found = sum((wave.at(times) for wave in self.waves), np.zeros((len(times), 1)))
        return found.reshape(len(times), self.model.n, 6)

    def loads_at(self, t: float) -> Mapping[str, Array]:
        """The loads on the bodies at a time."""
        loads = dict(self.loads or {})
        return loads | ({"external": loads["external"] + self.waves_at(np.array([t]))[0]} if self.waves else {})


def broadcast(what: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes to which all shapes broadcast."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ArgumentError(f"the batch axes of {what} do not go together: {sorted(set(shapes))}") from None


@contextmanager
def broadcasting(what: str) -> Iterator[None]:
    """Name the arrays in NumPy's errors about shapes that do not broadcast."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, ArgumentError) or "broadcast" not in str(error):
            raise
        raise ArgumentError(f"the batch axes of {what} do not go together: {error}") from None


# ---- collecting ----


def collect(machine: Model | ModelBatch, forces: Any = (), own: bool = True) -> Law:
    """The law of forces on a model or a batch; `own`: with the springs, dampers, friction and stops of the joints.

    The last law is kept with the machine, and reused if the next forces have the same content (`content`).
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
    """A tuple of one or several forces: each has `terms` or is a function (t, q, v) -> tau."""
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
    """All numbers that a law depends on, in a form that can be compared.

    A function is compared by identity: it is called when it is needed. A force of the user may read data that changes
    unseen; its content equals nothing.
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
    """A function, compared by identity; the reference keeps it alive."""

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
    """The joints' own springs, dampers, friction and stops, with the numbers of members where they differ."""
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
    """Stops; a stiffness or damping of 0 is replaced using `STOP_TIME` and the inertia at the joint."""
    if (np.equal(stiffness, 0) | np.equal(damping, 0)).any():
        inertia = felt_inertia(machine)
        stiffness = np.where(np.equal(stiffness, 0), inertia / STOP_TIME**2, stiffness)
        damping = np.where(np.equal(damping, 0), 2 * inertia / STOP_TIME, damping)
    return Part("stops", (finite(np.asarray(lower)), finite(np.asarray(upper)), stiffness, damping))


def felt_inertia(machine: Model | ModelBatch) -> Array:
    """The articulated inertia at each freedom in the neutral configuration, (..., nv): all outboard joints are free."""

    def make() -> Array:
        model, differ = machine_of(machine), {*_varied(machine)} & {*NUMBERS} - {"gravity"}
        found = members(machine) if isinstance(machine, ModelBatch) and differ else None
        own = found.inputs if found else {}
        return program_for(articulated.pivots, model, (*own,), "d", None, found)(model.neutral(), *own.values())

    return store(machine).once("felt inertia", make)


class _Sums:
    """The sums of terms, while they are collected."""

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
        """Add a term."""
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
        """Add entries of K for the position and the velocity of every freedom."""
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
    """The numbers of a part as one array, (..., count, nv)."""
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
    if sums.track is None and not drives:  # drives without limits are linear: springs are gains and commands, too
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
    """Arrays (..., k), joined along the last axis."""
    batch = broadcast("forces and members", *(x.shape[:-1] for x in numbers))
    return np.concatenate([np.broadcast_to(x, (*batch, x.shape[-1])) for x in numbers], axis=-1)


def _where(kind: str, numbers: Array) -> Array:
    """The freedoms at which a part has an effect."""
    idle = np.array([*KINDS[kind][1].values()])
    own = {"spring": (1, 2), "friction": (0,), "stops": (0, 1)}
    named = own.get(kind, range(len(idle)))
    used = [numbers[..., k, :] != idle[k] for k in named]
    return np.flatnonzero(np.any([x.reshape(-1, x.shape[-1]).any(axis=0) for x in used], axis=0))


def _curved_numbers(model: Model, springs: Sequence[CurvedSpring]) -> tuple[tuple[int, ...], list[Array]]:
    """The bodies with springs at quaternions, and their numbers: rest and stiffness, body by body."""
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
