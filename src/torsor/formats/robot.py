"""From the links and joints of a robot file to a Model: order, repairs, names, couplings.

The readers of URDF, MJCF and SDF collect a `Robot`; `build` makes the Model.  Whatever a file says that torsor does not
model, and whatever had to be changed, is in `model.notes`.
"""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ModelError, ModelWarning
from torsor.linalg import Vec
from torsor.model import Model
from torsor.model.builder import GRAVITY, assemble
from torsor.model.check import INERTIA_TOLERANCE
from torsor.model.extras import Actuator, Coupling, Extras, Note, Visual
from torsor.model.freedoms import DEFAULTS
from torsor.model.joints import JOINTS, joint_named
from torsor.model.names import Frame

Array = NDArray[Any]
Arrays = dict[str, Array]

POLICIES = ("warn", "strict", "quiet")
ONE, NOWHERE = np.eye(3), np.zeros(3)
# The mass of what is given mass only to make M regular, relative to the mass that moves: the largest entries of M and
# the bias do not feel it, and pivots of M still resolve it.  It is a ball of this radius of gyration (m).
SPECK, SPECK_RADIUS = 1e-14, 0.1
MASSLESS = 1e-13  # kg taken for the mass that moves, of a robot without any: it can be used for its kinematics
MOST_WARNED = 8  # notes quoted in a warning


@dataclass(slots=True)
class Part:
    """A link, with the joint on which it hangs; the joint sits at (R, p) on the parent, at the link's origin."""

    name: str
    parent: str | None = None
    joint: str = "fixed"
    joint_name: str = ""
    axis: Any = (0.0, 0.0, 1.0)
    pitch: float = 0.0
    R: Array = field(default_factory=lambda: ONE)
    p: Any = (0.0, 0.0, 0.0)
    mass: float = 0.0
    com: Any = (0.0, 0.0, 0.0)
    inertia: Array = field(default_factory=lambda: np.zeros((3, 3)))
    freedoms: dict[str, Any] = field(default_factory=dict)  # damping, lower, ...: a number, or one per freedom


@dataclass(slots=True)
class Robot:
    """What a reader has collected; joints and links are referred to by name."""

    name: str
    path: str
    gravity: Any = GRAVITY
    parts: list[Part] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)  # more names of links: of fixed joints
    mimics: dict[str, tuple[str, float, float]] = field(default_factory=dict)  # joint -> leader, ratio, offset
    actuators: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)  # joint -> gear, other fields
    keyframes: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> joint -> q
    visuals: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # link, fields of a Visual
    notes: list[Note] = field(default_factory=list)

    def note(self, kind: str, where: str, text: str) -> None:
        self.notes.append(Note(kind, where, text))


def build(robot: Robot, repair: str) -> Model:
    """The model; `repair` says what happens to numbers that cannot be: "warn", "strict" (refuse) or "quiet"."""
    parts = _sorted(robot)
    if not any(part.joint != "fixed" for part in parts):
        raise ModelError(
            f'{robot.path}: nothing moves: all of its {len(parts)} links are fixed; base="free" frees the root'
        )
    index = {part.name: i for i, part in enumerate(parts)} | {None: -1}
    rows: dict[str, Any] = {
        key: [getattr(part, key) for part in parts] for key in ("axis", "pitch", "R", "p", "com", "inertia")
    }
    mass = np.array([part.mass for part in parts])
    rows["inertia"] = np.array(rows["inertia"])
    _note_parts(robot, parts, rows["inertia"])
    try:
        fields = assemble(
            [index[part.parent] for part in parts], [part.joint for part in parts], mass=mass, **rows,
            names=tuple(part.name for part in parts), name=robot.name, gravity=robot.gravity,
            repair=lambda links, names: repaired(links, names, robot.notes), **_freedoms(robot, parts),
        )  # fmt: skip
        fields["allow_degenerate"] = _degenerate(fields["mass"], fields["inertia"])
        fields["frames"] |= _aliases(robot, fields["names"], fields["frames"])
        model = Model(**fields)
        extras = _extras(robot, model, {part.name: part.joint_name for part in parts})
        model = model.with_extras(extras, checked=True)  # made of checked numbers
    except ModelError as error:
        raise ModelError(f"{robot.path}: {error}") from None
    _report(robot, repair)
    return model


def _report(robot: Robot, repair: str) -> None:
    """One warning for all that was changed or left out, or a refusal."""
    changed = [note for note in robot.notes if note.kind == "repair"]
    if changed and repair == "strict":
        raise ModelError(f'{robot.path}: {_quoted(changed)}; repair="warn" changes these numbers as little as it can')
    said = [note for note in robot.notes if note.kind != "read"]
    if said and repair == "warn":
        warnings.warn(f"{robot.path}: {_quoted(said)} (all remarks: model.notes)", ModelWarning, stacklevel=5)


def _quoted(notes: list[Note]) -> str:
    more = f"; and {len(notes) - MOST_WARNED} more" if len(notes) > MOST_WARNED else ""
    return "; ".join(map(str, notes[:MOST_WARNED])) + more


def _sorted(robot: Robot) -> list[Part]:
    """The links in the order of the file, delayed only where a parent comes later (Kahn's algorithm, with a heap)."""
    place = {part.name: i for i, part in enumerate(robot.parts)}
    children: dict[str | None, list[int]] = {}
    for i, part in enumerate(robot.parts):
        children.setdefault(part.parent, []).append(i)
    ready, order = list(children.get(None, ())), []
    heapq.heapify(ready)
    while ready:
        i = heapq.heappop(ready)
        order.append(robot.parts[i])
        for child in children.get(robot.parts[i].name, ()):
            heapq.heappush(ready, child)
    if len(order) < len(place):
        placed = {part.name for part in order}
        left = [part.name for part in robot.parts if part.name not in placed][:6]
        raise ModelError(f"{robot.path}: the links {', '.join(map(repr, left))} hang on each other in a loop; cut it")
    return order


def _freedoms(robot: Robot, parts: list[Part]) -> dict[str, Any]:
    """The quantities of the freedoms, one array for each that some joint has; none but bounds may be negative."""
    for part in parts:
        for key, value in part.freedoms.items():
            if key not in ("rest", "lower", "upper") and _negative(value):
                part.freedoms[key] = np.abs(value) if key in ("effort", "speed") else np.maximum(value, 0.0)
                robot.note("repair", f"joint {part.joint_name!r}", f"{key} {value} -> {part.freedoms[key]}")
    moving = [(joint_named(part.joint).nv, part.freedoms) for part in parts if part.joint != "fixed"]
    present = {key for _, freedoms in moving for key in freedoms}
    return {
        key: np.array([x for nv, given in moving for x in _each(given.get(key, usual), nv)])
        for key, usual in DEFAULTS.items() if key in present
    }  # fmt: skip


def _negative(x: Any) -> bool:
    return x < 0 if isinstance(x, float) else bool(np.less(x, 0).any())


def _each(x: Any, nv: int) -> Any:
    """A number for each of a joint's freedoms."""
    return (x,) * nv if isinstance(x, float) else x


# ---- names ----


def _aliases(robot: Robot, names: Sequence[str], frames: dict[str, Frame]) -> dict[str, Frame]:
    """Names of fixed joints, as frames at their links; a name that is taken already is left out."""
    bodies = {name: Frame(i, ONE, NOWHERE) for i, name in enumerate(names)}
    known = bodies | frames
    return {alias: known[link] for alias, link in robot.aliases.items() if alias not in known}


def _extras(robot: Robot, model: Model, joint_of: dict[str, str]) -> Extras:
    joint_names = tuple(joint_of[name] or name for name in model.names)
    body = {name: i for i, name in enumerate(joint_names)}
    keyframes = {}
    for name, values in robot.keyframes.items():
        q = model.neutral()
        for joint, value in values.items():
            q[model.q_start[body[joint]] : model.q_start[body[joint] + 1]] = value
        keyframes[name] = tuple(q.tolist())
    actuators = []
    for gears, words in robot.actuators:
        rows = [(int(model.v_start[body[joint]]) + k, float(x)) for joint, gear in gears.items() if joint in body
                for k, x in enumerate(np.atleast_1d(gear)) if x]  # fmt: skip
        actuators.append(Actuator(gear=tuple(rows), **words))
    return Extras(joint_names, _couplings(robot, body), tuple(actuators), keyframes, _visuals(robot, model),
                  tuple(robot.notes))  # fmt: skip


def _couplings(robot: Robot, body: dict[str, int]) -> tuple[Coupling, ...]:
    """Followers of followers follow the first leader: q = k (k' q' + c') + c."""
    first: dict[str, tuple[str, float, float]] = {}
    for joint in robot.mimics:
        way = [joint]
        while (leader := robot.mimics[way[-1]][0]) in robot.mimics and leader not in first:
            if leader in way[:1] or len(way) > len(robot.mimics):
                raise ModelError(f"joint {joint!r} mimics itself, by way of {way[-1]!r}")
            way.append(leader)
        for name in reversed(way):
            leader, ratio, offset = robot.mimics[name]
            if leader in first:
                leader, k, c = first[leader]
                ratio, offset = ratio * k, ratio * c + offset
            first[name] = leader, ratio, offset
    return tuple(Coupling(body[joint], body[leader], ratio, offset) for joint, (leader, ratio, offset) in first.items())


def _visuals(robot: Robot, model: Model) -> tuple[Visual, ...]:
    """The shapes, placed on the bodies into which their links were merged."""
    found = []
    for link, words in robot.visuals:
        body, R, p = model.frame(link)
        if "p" in words:
            p = p + R @ words.pop("p")
        if "R" in words:
            R = R @ words.pop("R")
        found.append(Visual(body, R=tuple(map(tuple, R.tolist())), p=tuple(p.tolist()), **words))
    return tuple(found)


# ---- repairs ----


def repaired(links: Arrays, names: Any, notes: list[Note]) -> Arrays:
    """Bodies changed as little as possible so that they can exist and every joint moves something."""
    links = links | {key: np.array(links[key]) for key in ("mass", "com", "inertia")}
    mass, com, inertia = links["mass"], links["com"], links["inertia"]
    for i in np.flatnonzero(mass < 0)[:1]:
        raise ModelError(f"link {names[i]!r}: mass {mass[i]:g} is negative")
    com[mass == 0] = 0.0
    total = float(mass.sum()) or MASSLESS
    speck = SPECK * total
    spread = np.abs(inertia).max(axis=(1, 2)) > 0
    for i in np.flatnonzero((mass == 0) & spread):
        mass[i] = speck
        notes.append(Note("repair", f"link {names[i]!r}", f"it has an inertia but no mass: mass 0 -> {speck:.3g} kg"))
    moments = np.linalg.eigvalsh(inertia)
    for i in np.flatnonzero(spread & _impossible(moments)):
        fixed = nearest_possible(inertia[i])
        words = f"no body has principal moments of inertia {_moments(inertia[i])}: -> {_moments(fixed)} kg m^2"
        notes.append(Note("repair", f"link {names[i]!r}", words))
        inertia[i], moments[i] = fixed, np.linalg.eigvalsh(fixed)
    for i in _moving_nothing(links, moments, speck / 10 * SPECK_RADIUS**2):
        before = mass[i]
        mass[i] += speck
        inertia[i] = inertia[i] + speck * SPECK_RADIUS**2 * ONE
        words = f"its joint moves nothing, so M would be singular: mass {before:.3g} -> {mass[i]:.3g} kg"
        notes.append(Note("repair", f"link {names[i]!r}", f"{words}, inertia + {speck * SPECK_RADIUS**2:.3g} kg m^2"))
    return links


def _note_parts(robot: Robot, parts: list[Part], inertia: Array) -> None:
    """Links that could not exist alone, even if what they are fixed to makes up for it."""
    fixed = np.array([part.joint == "fixed" for part in parts]) & inertia.any(axis=(1, 2))
    for i in np.flatnonzero(fixed)[_impossible(np.linalg.eigvalsh(inertia[fixed]))] if fixed.any() else ():
        words = f"no body has principal moments of inertia {_moments(inertia[i])}; it is part of the one it is fixed to"
        robot.note("read", f"link {parts[i].name!r}", words)


def _impossible(moments: Array) -> Array:
    """Where tr(I)/2 1 - I = integral of r r' dm is not positive semidefinite (see `check.py`)."""
    trace = moments.sum(axis=1)
    return trace / 2 - moments[:, 2] < -0.5 * INERTIA_TOLERANCE * np.abs(trace)


def nearest_possible(I: Array) -> Array:
    """The inertia whose integral of r r' dm is the nearest positive semidefinite one (in the Frobenius norm)."""
    values, axes = np.linalg.eigh(np.trace(I) / 2 * ONE - I)
    spread = (axes * np.maximum(values, 0.0)) @ axes.T
    return np.trace(spread) * ONE - (spread + spread.T) / 2


def _moments(I: Array) -> str:
    return "(" + ", ".join(f"{x:.6g}" for x in np.linalg.eigvalsh(I)) + ")"


def _degenerate(mass: Array, inertia: Array) -> bool:
    moments = np.linalg.eigvalsh(inertia)
    return bool(((mass > 0) & (moments[:, 0] <= 2 * INERTIA_TOLERANCE * moments.sum(axis=1))).any())


def _moving_nothing(links: Arrays, moments: Array, least: float) -> list[int]:
    """Bodies without mass that carry none, and those whose joint has a freedom with M_kk <= least, all others at rest.

    Only bodies that carry nothing but points, rods and massless bodies come into question.
    """
    parent, mass, inertia = links["parent"], links["mass"], links["inertia"]
    thin = (mass == 0) | (moments[:, 0] <= 1e-9 * np.abs(moments).max(axis=1))
    if not thin.any():
        return []
    carried: list[list[int]] = [[] for _ in mass]
    massless = mass == 0
    for i in range(len(mass) - 1, -1, -1):
        if parent[i] >= 0:
            thin[parent[i]] &= thin[i]
            massless[parent[i]] &= massless[i]
            carried[parent[i]].append(i)
    found: list[int] = []
    composite: dict[int, Array] = {}
    for i in range(len(mass) - 1, -1, -1):
        if not thin[i]:
            continue
        I = _spatial_inertia(mass[i], links["com"][i], inertia[i])
        for k in carried[i]:
            X = _adjoint(links["R"][k], links["p"][k])
            I = I + X.T @ composite[k] @ X
        joint = JOINTS[links["joint"][i]]
        columns = joint.subspace(Vec(*joint.neutral), Vec(*links["axis"][i].tolist()), float(links["pitch"][i])).columns
        S = np.array([column.coordinates for column in columns], dtype=np.float64)
        if massless[i] or (np.einsum("ki,ij,kj->k", S, I, S) <= least).any():
            found.append(i)
            I = I + _spatial_inertia(least, NOWHERE, least * ONE)
        composite[i] = I
    return found[::-1]


def _spatial_inertia(mass: float, com: Array, inertia: Array) -> Array:
    """6x6, about the origin, angular first."""
    c = _cross(com)
    return np.block([[inertia + mass * c @ c.T, mass * c], [mass * c.T, mass * ONE]])


def _adjoint(R: Array, p: Array) -> Array:
    """The twist of a body placed at (R, p) from that of its parent: Ad of the inverse pose."""
    return np.block([[R.T, np.zeros((3, 3))], [-R.T @ _cross(p), R.T]])


def _cross(a: Array) -> Array:
    return np.array([[0.0, -a[2], a[1]], [a[2], 0.0, -a[0]], [-a[1], a[0], 0.0]])
