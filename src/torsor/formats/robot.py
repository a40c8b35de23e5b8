"""From the links and joints of a robot file to a Model: order, names, couplings, and common code of the readers.

The readers of URDF, MJCF and SDF collect a `Robot`; `build` makes the Model.  `model.notes` lists everything in a file
that torsor does not model, and every change (`repair.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ModelError, warn_caller
from torsor.formats.repair import note_fixed, repair_bodies, with_rotors
from torsor.formats.xml import Document
from torsor.model import Model
from torsor.model.builder import GRAVITY, assemble
from torsor.model.extras import Actuator, Coupling, Extras, Note, Visual
from torsor.model.freedoms import DEFAULTS
from torsor.model.joints import joint_named
from torsor.model.names import Frame
from torsor.model.portable import cosine_and_sine, product, turned

Array = NDArray[Any]

POLICIES = ("warn", "strict", "quiet")
ONE, NOWHERE = np.eye(3), np.zeros(3)
WORLD, ROOT_JOINT = "world", "root_joint"
MOST_WARNED = 8  # notes quoted in a warning
# The words for the sizes of a shape, with the count of numbers of each.
SIZES = {
    "box": {"size": 3}, "sphere": {"radius": 1}, "cylinder": {"radius": 1, "length": 1},
    "capsule": {"radius": 1, "length": 1}, "ellipsoid": {"radii": 3},
}  # fmt: skip


@dataclass(slots=True)
class RobotLink:
    """A link with the joint to its parent; the joint is at (R, p) on the parent, and at the link's origin."""

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
    """The data that a reader collects; joints and links are referred to by name."""

    name: str
    path: str
    gravity: Any = GRAVITY
    links: list[RobotLink] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)  # further names of links: those of fixed joints
    mimics: dict[str, tuple[str, float, float]] = field(default_factory=dict)  # joint -> leader, ratio, offset
    actuators: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)  # joint -> gear, other fields
    keyframes: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> joint -> q
    visuals: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # link, fields of a Visual
    notes: list[Note] = field(default_factory=list)

    def note(self, kind: str, where: str, text: str) -> None:
        self.notes.append(Note(kind, where, text))

    def draw(self, link: str, visuals: Iterable[Element], read: Callable[[Element], dict[str, Any]]) -> None:
        """Add the shapes of a link; an unreadable shape is no error."""
        for visual in visuals:
            try:
                self.visuals.append((link, read(visual)))
            except ModelError as error:
                self.note("read", f"link {link!r}", f"a <visual> is left out: {error}")


def build(robot: Robot, repair: str) -> Model:
    """The model; `repair` is the treatment of impossible numbers: "warn", "strict" (refuse) or "quiet"."""
    links = _sorted(robot)
    if not any(link.joint != "fixed" for link in links):
        raise ModelError(
            f'{robot.path}: nothing moves: all of its {len(links)} links are fixed; base="free" frees the root'
        )
    index = {link.name: i for i, link in enumerate(links)} | {None: -1}
    rows: dict[str, Any] = {
        key: [getattr(link, key) for link in links] for key in ("axis", "pitch", "R", "p", "mass", "com", "inertia")
    }
    try:
        note_fixed(links, robot.notes)
        fields = assemble(
            [index[link.parent] for link in links], [link.joint for link in links], **rows,
            names=tuple(link.name for link in links), name=robot.name, gravity=robot.gravity, checked=False,
            **_freedoms(robot, links),
        )  # fmt: skip
        massive = repair_bodies(fields, robot.notes)
        fields["frames"] |= _aliases(robot, fields["names"], fields["frames"])
        model = with_rotors(Model(**fields), massive, robot.notes)
        extras = _extras(robot, model, {link.name: link.joint_name for link in links})
        model = model.with_extras(extras)
    except ModelError as error:
        raise ModelError(f"{robot.path}: {error}") from None
    _report(robot, repair)
    return model


def _report(robot: Robot, repair: str) -> None:
    """One warning for all changes and omissions, or a refusal."""
    changed = [note for note in robot.notes if note.kind in ("repair", "invented")]
    if changed and repair == "strict":
        raise ModelError(f'{robot.path}: {_quoted(changed)}; repair="warn" changes these numbers as little as it can')
    said = [note for note in robot.notes if note.kind != "read"]
    if said and repair == "warn":
        warn_caller(f"{robot.path}: {_quoted(said)} (all remarks: model.notes)")


def _quoted(notes: list[Note]) -> str:
    more = f"; and {len(notes) - MOST_WARNED} more" if len(notes) > MOST_WARNED else ""
    return "; ".join(map(str, notes[:MOST_WARNED])) + more


def _sorted(robot: Robot) -> list[RobotLink]:
    """The links in the order of the file, except after their parents (Kahn's algorithm, with a heap)."""
    children: dict[str | None, list[int]] = {}
    for i, link in enumerate(robot.links):
        children.setdefault(link.parent, []).append(i)
    ready, order = list(children.get(None, ())), []
    heapq.heapify(ready)
    while ready:
        i = heapq.heappop(ready)
        order.append(robot.links[i])
        for child in children.get(robot.links[i].name, ()):
            heapq.heappush(ready, child)
    if len(order) < len(robot.links):
        placed = {link.name for link in order}
        left = [link.name for link in robot.links if link.name not in placed][:6]
        raise ModelError(f"{robot.path}: the links {', '.join(map(repr, left))} hang on each other in a loop; cut it")
    return order


def _freedoms(robot: Robot, links: list[RobotLink]) -> dict[str, Any]:
    """The quantities of the freedoms, one array per quantity that some joint has; only bounds may be negative."""
    for link in links:
        for key, value in link.freedoms.items():
            if key not in ("rest", "lower", "upper") and _negative(value):
                link.freedoms[key] = np.abs(value) if key in ("effort", "speed") else np.maximum(value, 0.0)
                robot.note("repair", f"joint {link.joint_name!r}", f"{key} {value} -> {link.freedoms[key]}")
    moving = [(joint_named(link.joint).nv, link.freedoms) for link in links if link.joint != "fixed"]
    present = {key for _, freedoms in moving for key in freedoms}
    return {
        key: np.array([x for nv, given in moving for x in _each(given.get(key, usual), nv)])
        for key, usual in DEFAULTS.items() if key in present
    }  # fmt: skip


def _negative(x: Any) -> bool:
    return x < 0 if isinstance(x, float) else bool(np.less(x, 0).any())


def _each(x: Any, nv: int) -> Any:
    """One number per freedom of a joint."""
    return (x,) * nv if isinstance(x, float) else x


# ---- names ----


def _aliases(robot: Robot, names: Sequence[str], frames: dict[str, Frame]) -> dict[str, Frame]:
    """Names of fixed joints, as frames at their links; a name that is already taken is omitted."""
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
            p = p + turned(R, np.array(words.pop("p")))
        if "R" in words:
            R = product(R, words.pop("R"))
        found.append(Visual(body, R=tuple(map(tuple, R.tolist())), p=tuple(p.tolist()), **words))
    return tuple(found)


# ---- common to the readers ----


def unused(name: str, taken: Collection[str], suffix: str = "_") -> str:
    """The name, extended until it is unique."""
    while name in taken:
        name += suffix
    return name


def rotation(roll: float, pitch: float, yaw: float) -> Array:
    """Rz(yaw) Ry(pitch) Rx(roll)."""
    (cr, cp, cy), (sr, sp, sy) = (x.tolist() for x in cosine_and_sine(np.array([roll, pitch, yaw], dtype=np.float64)))
    return np.array([
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ])  # fmt: skip


def tensor(moments: Sequence[float], R: Array | None = None) -> Array:
    """The inertia with the moments xx, xy, xz, yy, yz, zz in axes rotated by R."""
    xx, xy, xz, yy, yz, zz = moments
    I = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    if R is None:
        return I
    I = product(product(R, I), R.T)
    return (I + I.T) / 2


def color(rgba: Sequence[float]) -> tuple[float, ...]:
    """Red, green, blue and opacity, each from 0 to 1; opaque if only three are given."""
    return tuple(min(max(float(x), 0.0), 1.0) for x in (*rgba, 1.0)[:4])


def shape(document: Document, visual: Element, numbers: Callable[[Element, str, int], Sequence[float]],
          mesh: Callable[[Element], tuple[str, Sequence[float]]]) -> dict[str, Any]:  # fmt: skip
    """Shape, size and file of a <visual>; `numbers` reads a given count of numbers by word, `mesh` file and scale."""
    for element in document.need(visual, "geometry"):
        if element.tag in SIZES:
            found = [x for word, count in SIZES[element.tag].items() for x in numbers(element, word, count)]
            return {"shape": element.tag, "size": tuple(found)}
        if element.tag == "mesh":
            file, scale = mesh(element)
            return {"shape": "mesh", "size": tuple(scale), "file": file}
    raise document.error(visual, f"it has none of the shapes {', '.join((*SIZES, 'mesh'))}")
