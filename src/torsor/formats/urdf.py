"""URDF: the links and joints of a robot, read with the standard library alone.

Joints keep the order of the file.  A continuous joint is a revolute one, with one angle.  Omissions that the standard
forbids but simulators accept are accepted with a note: a limit without effort or velocity, a joint without limit, a
robot without a name, an <inertial> without <inertia>, a parent "world" that is not a link (it is the base).
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from math import copysign, inf
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from numpy.typing import NDArray

from torsor.errors import ModelError
from torsor.formats.folders import Folders
from torsor.formats.robot import ROOT_JOINT, WORLD, Robot, RobotLink, color, rotation, shape, tensor, unused
from torsor.formats.xml import Document
from torsor.validate import shown

Array = NDArray[Any]

JOINT_TYPES = {
    "revolute": "revolute", "continuous": "revolute", "prismatic": "prismatic", "fixed": "fixed", "floating": "free",
    "planar": "planar", "spherical": "spherical", "ball": "spherical",
}  # fmt: skip
MOMENTS = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
HUGE = 1e300
READ = {"link", "joint", "material", "transmission"}
JOINT_CHILDREN = {"origin", "parent", "child", "axis", "limit", "dynamics", "mimic", "safety_controller", "calibration"}
X, ZERO3 = (1.0, 0.0, 0.0), (0.0, 0.0, 0.0)


def read(document: Document, folders: Folders, base: str | None) -> Robot:
    """The robot of a URDF; its root link is fixed to the base, or free."""
    root = document.root
    robot = Robot(root.get("name") or Path(document.path).stem, document.path)
    if not root.get("name"):
        robot.note("read", "<robot>", f"it has no name; it is called {robot.name!r}")
    links = document.named(root, "link")
    joints = document.named(root, "joint")
    if not links:
        hint = "; expand xacro files with xacro=True" if any(":" in e.tag for e in root.iter()) else ""
        raise document.error(root, f"it has no <link>{hint}")
    bodies = {name: RobotLink(name, **inertial(document, link, robot)) for name, link in links.items()}
    top = _hang(document, robot, joints, bodies)
    if base == "free":
        if floating := [link.joint_name for link in bodies.values() if link.parent == top and link.joint == "free"]:
            robot.note("read", f"joint {floating[0]!r}", 'it floats without base="free", which frees the root as well')
        bodies[top].joint, bodies[top].joint_name = "free", unused(ROOT_JOINT, joints.keys() - robot.aliases.keys())
    # the root first, then the links in the order of their joints
    robot.links = [bodies[top]] + [bodies[_link(document, j, "child")] for j in joints.values()]
    _mimics(document, robot, joints)
    _visuals(document, robot, links, folders)
    _actuators(document, robot, joints)
    _leftovers(document, robot)
    return robot


def _link(document: Document, joint: Element, tag: str) -> str:
    return document.word(document.need(joint, tag), "link")


# ---- numbers ----


def placement(document: Document, element: Element) -> dict[str, Any]:
    """R and p of the <origin> of an element; nothing if it has none."""
    origin = element.find("origin")
    if origin is None:
        return {}
    found: dict[str, Any] = {"p": document.numbers(origin, "xyz", 3, ZERO3)}
    turn = document.numbers(origin, "rpy", 3, ZERO3)
    return found | {"R": rotation(*turn)} if any(turn) else found


def inertial(document: Document, link: Element, robot: Robot) -> dict[str, Any]:
    """mass, com and inertia of a link, in its frame; nothing for a link without <inertial>."""
    element = link.find("inertial")
    if element is None:
        return {}
    if element.find("mass") is None:
        robot.note("ignored", f"link {link.get('name')!r}", "its <inertial>, which has no <mass>")
        return {}
    place = placement(document, element)
    mass = document.number(document.need(element, "mass"), "value")
    inertia = element.find("inertia")
    if inertia is None:
        robot.note("read", f"link {link.get('name')!r}", "its <inertial> has no <inertia>: it is a point mass")
        return {"mass": mass, "com": place.get("p", ZERO3)}
    I = tensor([document.number(inertia, key, 0.0) for key in MOMENTS], place.get("R"))
    return {"mass": mass, "com": place.get("p", ZERO3), "inertia": I}


# ---- the tree ----


def _hang(document: Document, robot: Robot, joints: dict[str, Element], bodies: dict[str, RobotLink]) -> str:
    """Connect every link to its parent; returns the name of the root link."""
    joint_of: dict[str, str] = {}
    for name, joint in joints.items():
        child, parent = _link(document, joint, "child"), _link(document, joint, "parent")
        if child not in bodies:
            raise document.error(joint, f"its child {child!r} is no link of this robot")
        if child in joint_of:
            words = (
                f"its child {child!r} hangs on joint {joint_of[child]!r} already: a loop, which URDF cannot describe"
            )
            raise document.error(joint, words)
        if parent not in bodies and parent != WORLD:
            raise document.error(joint, f"its parent {parent!r} is no link of this robot")
        if parent not in bodies:
            bodies[WORLD] = RobotLink(WORLD)
            robot.note("read", f"joint {name!r}", "its parent 'world' is no link: it is the base")
        joint_of[child] = name
        _joint(document, robot, name, joint, bodies[child])
        bodies[child].parent = parent
    roots = [name for name in bodies if name not in joint_of]
    if len(roots) != 1:
        found = f"{len(roots)} roots ({', '.join(map(repr, roots[:4]))})" if roots else "only links that hang in a loop"
        raise document.error(document.root, f"it has {found}; exactly one link must hang on no joint")
    return roots[0]


def _joint(document: Document, robot: Robot, name: str, joint: Element, link: RobotLink) -> None:
    kind = document.word(joint, "type")
    if kind not in JOINT_TYPES:
        raise document.error(joint, f"unknown joint type {shown(kind)}; torsor knows {', '.join(JOINT_TYPES)}")
    for key, value in placement(document, joint).items():
        setattr(link, key, value)
    link.joint, link.joint_name = JOINT_TYPES[kind], name
    if kind == "fixed":
        robot.aliases[name] = link.name
        return
    axis = joint.find("axis")
    link.axis = X if axis is None else document.numbers(axis, "xyz", 3, X)
    if link.joint in ("revolute", "prismatic") and not any(link.axis):
        raise document.error(joint, "its axis is zero")
    if link.joint == "planar" and axis is not None and any(link.axis[:2]):
        # Peers move a planar joint in the plane x, y whatever its axis is; so does this reader, with a note.
        robot.note(
            "ignored", f"joint {name!r}", f"its axis {link.axis}: a planar joint moves in the plane of its x and y"
        )
    if link.joint in ("revolute", "prismatic"):
        link.freedoms |= _limits(document, robot, name, joint, kind)
    link.freedoms |= _dynamics(document, joint)
    for child in joint:
        if child.tag not in JOINT_CHILDREN and not child.tag.startswith("drake:"):
            robot.note("ignored", f"joint {name!r}", f"<{child.tag}>")


def _limits(document: Document, robot: Robot, name: str, joint: Element, kind: str) -> dict[str, float]:
    limit = joint.find("limit")
    if limit is None:
        if kind != "continuous":
            robot.note("read", f"joint {name!r}", "it has no <limit>: it is free to move")
        return {}
    found = {}
    for key, word in (("effort", "effort"), ("speed", "velocity")):
        if limit.get(word) is None:
            robot.note("read", f"joint {name!r}", f"its <limit> has no {word}: there is none")
        found[key] = _unlimited(document.number(limit, word, inf, infinite=True))
    if kind == "continuous":
        return found
    bounds = [_unlimited(document.number(limit, key, 0.0, infinite=True)) for key in ("lower", "upper")]
    if limit.get("lower") is None and limit.get("upper") is None:
        robot.note("read", f"joint {name!r}", "its <limit> has neither lower nor upper: it is free to move")
    elif bounds[0] > bounds[1]:
        robot.note("repair", f"joint {name!r}", f"lower {bounds[0]:g} exceeds upper {bounds[1]:g}: it is free to move")
    else:
        found |= {"lower": bounds[0], "upper": bounds[1]}
    return found


def _unlimited(x: float) -> float:
    """Convert the largest numbers to no limit; files use them because the standard requires a limit."""
    return copysign(inf, x) if abs(x) >= HUGE else x


def _dynamics(document: Document, joint: Element) -> dict[str, float]:
    """Damping, friction, springs and rotors."""
    found: dict[str, float] = {}
    dynamics = joint.find("dynamics")
    if dynamics is not None:
        words = {"damping": "damping", "friction": "friction", "spring_stiffness": "stiffness"}
        found = {key: document.number(dynamics, word, 0.0) for word, key in words.items()}
        if found["stiffness"] and joint.get("type") in ("revolute", "continuous", "prismatic"):
            found["rest"] = document.number(dynamics, "spring_reference", 0.0)
    rotor, gear = joint.find("drake:rotor_inertia"), joint.find("drake:gear_ratio")
    if rotor is not None:
        ratio = 1.0 if gear is None else document.number(gear, "value", 1.0)
        found["armature"] = ratio * ratio * document.number(rotor, "value", 0.0)
    return {key: value for key, value in found.items() if value}


def _mimics(document: Document, robot: Robot, joints: dict[str, Element]) -> None:
    for name, joint in joints.items():
        mimic = joint.find("mimic")
        if mimic is None or joint.get("type") == "fixed":
            continue
        leader = document.word(mimic, "joint")
        if leader not in joints:
            robot.note("ignored", f"joint {name!r}", f"its <mimic>: {leader!r} is no joint of this robot")
        elif not all(JOINT_TYPES[j.get("type", "")] in ("revolute", "prismatic") for j in (joint, joints[leader])):
            robot.note("ignored", f"joint {name!r}", f"its <mimic> of {leader!r}: both must have one freedom")
        else:
            ratio, offset = document.number(mimic, "multiplier", 1.0), document.number(mimic, "offset", 0.0)
            robot.mimics[name] = leader, ratio, offset


# ---- elements without effect on the motion ----


def _visuals(document: Document, robot: Robot, links: dict[str, Element], folders: Folders) -> None:
    colors: dict[str, Any] = {}
    for material in document.root.iter("material"):
        own, name = material.find("color"), material.get("name")
        if own is not None and name and name not in colors:
            with suppress(ModelError):  # reported where it is used
                colors[name] = _color(document, own)

    def sizes(element: Element, word: str, count: int) -> list[float]:
        return document.numbers(element, word, count, ZERO3) if count > 1 else [document.number(element, word)]

    def mesh(element: Element) -> tuple[str, list[float]]:
        uri = document.word(element, "filename")
        return folders.find(uri) or uri, document.numbers(element, "scale", 3, (1.0, 1.0, 1.0))

    def visual(element: Element) -> dict[str, Any]:
        paint, own = element.find("material"), element.find("material/color")
        named = None if paint is None else colors.get(paint.get("name", ""))
        rgba = named if own is None else _color(document, own)
        words = shape(document, element, sizes, mesh) | placement(document, element)
        return words if rgba is None else words | {"color": rgba}

    for name, link in links.items():
        robot.draw(name, link.iterfind("visual"), visual)
    folders.note_missing(robot.note)


def _color(document: Document, element: Element) -> tuple[float, ...]:
    return color(document.numbers(element, "rgba", 4, (0.7, 0.72, 0.75, 1.0)))


def _actuators(document: Document, robot: Robot, joints: dict[str, Element]) -> None:
    """The actuators of <transmission> elements with one joint and one actuator."""
    for transmission in document.root.iterfind("transmission"):
        ends = transmission.findall("joint"), transmission.findall("actuator")
        if len(ends[0]) != 1 or len(ends[1]) != 1 or ends[0][0].get("name") not in joints:
            robot.note("read", f"transmission {transmission.get('name')!r}", "not from one actuator to one joint")
            continue
        (joint,), (actuator,) = ends
        reduction = next((e.text or "" for e in (*actuator, *transmission) if e.tag == "mechanicalReduction"), "")
        name, ratio = actuator.get("name") or document.word(joint, "name"), 1.0
        try:
            ratio = document.parsed(actuator, "<mechanicalReduction> ", reduction.strip() or "1")
        except ModelError as error:
            robot.note("ignored", f"actuator {name!r}", str(error))
        robot.actuators.append(({document.word(joint, "name"): ratio}, {"name": name}))


def _leftovers(document: Document, robot: Robot) -> None:
    """A note for each kind of element that is not read."""
    counts = Counter(element.tag for element in document.root if element.tag not in READ)
    counts |= Counter(element.tag for element in document.root.iterfind("joint/safety_controller"))
    for tag, count in counts.items():
        robot.note("ignored" if tag.startswith("drake:") else "read", f"<{tag}>", f"{count} of them, not read")
