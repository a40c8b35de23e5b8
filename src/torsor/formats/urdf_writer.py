"""A Model as URDF.  Numbers are written with all their digits; rotations become angles, and are restored to rounding.

What URDF cannot express is returned as a list, with which `torsor.formats.save` warns.  Springs and rotors are written
in the form that Drake reads (spring_stiffness, drake:rotor_inertia).  Joints that URDF does not have become several,
with massless links between them.
"""

from __future__ import annotations

from math import atan2, cos, isfinite, sin
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement

import numpy as np
from numpy.typing import NDArray

from torsor.formats.robot import unused
from torsor.formats.urdf import HUGE, MOMENTS
from torsor.formats.writer import Draft, Primitive, number, numbers, text
from torsor.model import Model
from torsor.model.builder import GRAVITY
from torsor.model.extras import Visual

Array = NDArray[Any]

ONE = np.eye(3)
TYPES = {"revolute": "continuous", "prismatic": "prismatic", "spherical": "spherical", "planar": "planar"} | {
    "free": "floating"
}
DYNAMICS = {"damping": "damping", "friction": "friction", "spring_stiffness": "stiffness", "spring_reference": "rest"}
ALIKE = ("damping", "friction", "stiffness", "armature")  # fields for which a joint of several freedoms has one number
LIMITS = {"effort": "effort", "velocity": "speed", "lower": "lower", "upper": "upper"}
SINGLE = (*DYNAMICS.values(), *LIMITS.values(), "armature")  # what a joint of one freedom has
UPPER = np.triu_indices(3)
DRAKE = "http://drake.mit.edu"


def encode(model: Model, path: str | Path) -> tuple[bytes, list[str]]:
    """The content of a file, and what it does not say."""
    draft = Draft(model, path, "URDF", SINGLE, dict.fromkeys(("spherical", "planar", "free"), ALIKE))
    root = Element("robot", {"name": model.name, "xmlns:drake": DRAKE})
    names = {-1: _root_name(model), **dict(enumerate(draft.names))}
    links = {i: SubElement(root, "link", name=name) for i, name in names.items()}
    for i in range(model.n):
        _inertial(links[i], model, i)
    for visual in model.visuals:
        if visual.shape == "ellipsoid":
            draft.losses.append(f"an ellipsoid on {names[visual.body]!r}")
        else:
            _visual(links[visual.body], visual, draft)
    for i in range(model.n):
        _joints(root, draft, i, names)
    for name, (body, R, p) in model.frames.items():
        if name != names[-1]:
            SubElement(root, "link", name=name)
            # a frame may have the name of a moving joint, another joint may not
            fixed = unused(name, draft.joint_names, "_fixed")
            draft.joint_names.add(fixed)
            _ends(SubElement(root, "joint", name=fixed, type="fixed"), names[body], name, R, p)
    for actuator in model.actuators:
        if len(actuator.gear) == 1:
            ((freedom, ratio),) = actuator.gear
            _transmission(root, actuator.name, draft.freedoms[freedom][0].name, ratio)
    return b"<?xml version='1.0' encoding='utf-8'?>\n" + text(root), draft.losses + _losses(model)


def _losses(model: Model) -> list[str]:
    """What a URDF cannot express, apart from joints."""
    found = []
    if model.gravity.tolist() != list(GRAVITY):
        found.append(f"gravity {model.gravity.tolist()} (readers assume {list(GRAVITY)})")
    found += ["spherical joints, which are not in the standard"] if (model.joint == 4).any() else []
    found += [f"keyframe {name!r}" for name in model.keyframes]
    for actuator in model.actuators:
        plain = len(actuator.gear) == 1 and actuator.gain == 1 and not any(actuator.bias)
        if not plain or any(map(isfinite, (*actuator.control, *actuator.effort))):
            found.append(f"actuator {actuator.name!r}, but for one gear ratio")
    return found


def _root_name(model: Model) -> str:
    """The name of a frame that coincides with the base, or an unused name."""
    for name, (body, R, p) in model.frames.items():
        if body < 0 and not p.any() and np.array_equal(R, ONE):
            return name
    return unused("base", {*model.names, *model.frames})


def angles(R: Array) -> tuple[float, float, float]:
    """(roll, pitch, yaw) with R = Rz(yaw) Ry(pitch) Rx(roll): yaw first, the others from Rz(-yaw) R, at any pitch."""
    yaw = atan2(R[1, 0], R[0, 0])
    c, s = cos(yaw), sin(yaw)
    pitch = atan2(-R[2, 0], c * R[0, 0] + s * R[1, 0])
    return atan2(s * R[0, 2] - c * R[1, 2], c * R[1, 1] - s * R[0, 1]), pitch, yaw


def _origin(parent: Element, R: Any, p: Any) -> None:
    R, p = np.asarray(R), np.asarray(p)
    if p.any() or not np.array_equal(R, ONE):
        turned = {} if np.array_equal(R, ONE) else {"rpy": numbers(angles(R))}
        SubElement(parent, "origin", {"xyz": numbers(p)} | turned)


def _ends(joint: Element, parent: str, child: str, R: Any, p: Any) -> None:
    _origin(joint, R, p)
    SubElement(joint, "parent", link=parent)
    SubElement(joint, "child", link=child)


def _inertial(link: Element, model: Model, i: int) -> None:
    if model.mass[i] > 0:
        inertial = SubElement(link, "inertial")
        _origin(inertial, ONE, model.com[i])
        SubElement(inertial, "mass", value=number(model.mass[i]))
        SubElement(inertial, "inertia", dict(zip(MOMENTS, map(number, model.inertia[i][UPPER]))))


def _joints(root: Element, draft: Draft, i: int, names: dict[int, str]) -> None:
    """The joints of body i, with massless links between them."""
    model, joints = draft.model, draft.joints[i]
    parent, R, p = names[int(model.parent[i])], model.R[i], model.p[i]
    for joint in joints:
        last = joint is joints[-1]
        child = names[i] if last else unused(joint.name, draft.taken)
        if not last:
            draft.taken.add(child)
            SubElement(root, "link", name=child)
        element = _joint(root, joint, parent, child, R, p)
        parent, R, p = child, ONE, np.zeros(3)
    for follower, leader, ratio, offset in model.couplings:
        if follower == i:
            words = {"joint": model.joint_names[leader], "multiplier": number(ratio), "offset": number(offset)}
            SubElement(element, "mimic", words)


def _joint(root: Element, joint: Primitive, parent: str, child: str, R: Any, p: Any) -> Element:
    values = joint.values
    single, bounded = joint.kind in ("revolute", "prismatic"), "lower" in values or "upper" in values
    kind = "revolute" if joint.kind == "revolute" and bounded else TYPES[joint.kind]
    element = SubElement(root, "joint", name=joint.name, type=kind)
    _ends(element, parent, child, R, p)
    if single:
        SubElement(element, "axis", xyz=numbers(joint.axis))
        limits = {word: values.get(key, -HUGE if key == "lower" else HUGE) for word, key in LIMITS.items()}
        if not bounded:
            del limits["lower"], limits["upper"]
        if kind != "continuous" or any(x < HUGE for x in limits.values()):
            SubElement(element, "limit", {word: number(x) for word, x in limits.items()})
    if dynamics := {word: number(values[key]) for word, key in DYNAMICS.items() if key in values}:
        SubElement(
            element, "dynamics", {"damping": "0.0", "friction": "0.0"} | dynamics
        )  # urdfdom requires one of them
    if "armature" in values:
        SubElement(element, "drake:rotor_inertia", value=number(values["armature"]))
    return element


def _visual(link: Element, visual: Visual, draft: Draft) -> None:
    element = SubElement(link, "visual")
    _origin(element, visual.R, visual.p)
    geometry, size = SubElement(element, "geometry"), visual.size
    if visual.shape == "box":
        SubElement(geometry, "box", size=numbers(size))
    elif visual.shape == "mesh":
        SubElement(geometry, "mesh", filename=draft.mesh(visual.file), scale=numbers(size))
    else:
        SubElement(geometry, visual.shape, dict(zip(("radius", "length"), map(number, size))))
    SubElement(SubElement(element, "material", name=""), "color", rgba=numbers(visual.color))


def _transmission(root: Element, name: str, joint: str, ratio: float) -> None:
    transmission = SubElement(root, "transmission", name=f"{name}_transmission")
    SubElement(transmission, "type").text = "SimpleTransmission"
    SubElement(transmission, "joint", name=joint)
    SubElement(SubElement(transmission, "actuator", name=name), "mechanicalReduction").text = number(ratio)
