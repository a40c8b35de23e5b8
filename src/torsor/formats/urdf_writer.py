"""A Model as URDF.  Numbers are written with all their digits; rotations become angles, and come back to rounding.

What URDF cannot say is returned as a list: `torsor.formats.save` warns with it.  Springs and rotors are written as
Drake reads them (spring_stiffness, drake:rotor_inertia).
"""

from __future__ import annotations

from math import atan2, hypot, isfinite
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ModelError
from torsor.formats.urdf import HUGE
from torsor.model import JOINTS, Model
from torsor.model.builder import GRAVITY
from torsor.model.extras import Visual

Array = NDArray[Any]

TYPES = {
    "revolute": "revolute",
    "prismatic": "prismatic",
    "spherical": "spherical",
    "planar": "planar",
    "free": "floating",
}
DRAKE = "http://drake.mit.edu"


def encode(model: Model) -> tuple[bytes, list[str]]:
    """The content of a file, and what it does not say."""
    for i in range(model.n):
        if (kind := JOINTS[model.joint[i]].name) not in TYPES:
            raise ModelError(
                f"URDF has no {kind} joint, which {model.names[i]!r} hangs on; save as .toml or .xml (MJCF)"
            )
    root = Element("robot", {"name": model.name, "xmlns:drake": DRAKE})
    links = {-1: SubElement(root, "link", name=_root_name(model))}
    for i in range(model.n):
        links[i] = SubElement(root, "link", name=model.names[i])
        _inertial(links[i], model, i)
    for visual in model.visuals:
        if visual.shape != "ellipsoid":
            _visual(links[visual.body], visual)
    for i in range(model.n):
        _joint(root, model, i, links)
    for name, (body, R, p) in model.frames.items():
        if name != links[-1].get("name"):
            SubElement(root, "link", name=name)
            taken = name in model.joint_names  # a frame may be called like a joint that moves, joints may not
            joint = SubElement(root, "joint", name=f"{name}_fixed" if taken else name, type="fixed")
            _ends(joint, links[body].get("name", ""), name, R, p)
    for actuator in model.actuators:
        if len(actuator.gear) == 1:
            _transmission(root, model, actuator.name, *actuator.gear[0])
    indent(root)
    return b"<?xml version='1.0' encoding='utf-8'?>\n" + tostring(root, encoding="utf-8") + b"\n", _losses(model)


def _losses(model: Model) -> list[str]:
    """What a URDF does not say."""
    found = []
    if model.gravity.tolist() != list(GRAVITY):
        found.append(f"gravity {model.gravity.tolist()} (readers assume {list(GRAVITY)})")
    found += ["spherical joints, which are not in the standard"] if (model.joint == 4).any() else []
    found += [f"keyframe {name!r}" for name in model.keyframes]
    for actuator in model.actuators:
        plain = len(actuator.gear) == 1 and actuator.gain == 1 and not any(actuator.bias)
        if not plain or any(map(isfinite, (*actuator.control, *actuator.effort))):
            found.append(f"actuator {actuator.name!r}: more than one gear ratio")
    found += [f"an ellipsoid on body {v.body}" for v in model.visuals if v.shape == "ellipsoid"]
    if any((getattr(model, key)[np.repeat(np.diff(model.v_start) > 1, np.diff(model.v_start))] != usual).any()
           for key, usual in (("lower", -np.inf), ("effort", np.inf), ("armature", 0), ("stiffness", 0))):  # fmt: skip
        found.append("limits, springs and rotors of joints with several freedoms")
    return found


def _root_name(model: Model) -> str:
    """A frame that coincides with the base, if there is one; else a name that is not taken."""
    for name, (body, R, p) in model.frames.items():
        if body < 0 and not p.any() and np.array_equal(R, np.eye(3)):
            return name
    name = "base"
    while name in {*model.names, *model.frames}:
        name += "_"
    return name


def _numbers(x: Any) -> str:
    return " ".join(repr(float(value)) for value in x)


def angles(R: Array) -> tuple[float, float, float]:
    """(roll, pitch, yaw) with R = Rz(yaw) Ry(pitch) Rx(roll)."""
    across = hypot(R[0, 0], R[1, 0])
    if across > 1e-9:
        return atan2(R[2, 1], R[2, 2]), atan2(-R[2, 0], across), atan2(R[1, 0], R[0, 0])
    return atan2(-R[1, 2], R[1, 1]), atan2(-R[2, 0], across), 0.0


def _origin(parent: Element, R: Any, p: Any) -> None:
    R, p = np.asarray(R), np.asarray(p)
    if p.any() or not np.array_equal(R, np.eye(3)):
        turned = {} if np.array_equal(R, np.eye(3)) else {"rpy": _numbers(angles(R))}
        SubElement(parent, "origin", {"xyz": _numbers(p)} | turned)


def _ends(joint: Element, parent: str, child: str, R: Any, p: Any) -> None:
    _origin(joint, R, p)
    SubElement(joint, "parent", link=parent)
    SubElement(joint, "child", link=child)


def _inertial(link: Element, model: Model, i: int) -> None:
    if model.mass[i] > 0:
        inertial, I = SubElement(link, "inertial"), model.inertia[i]
        _origin(inertial, np.eye(3), model.com[i])
        SubElement(inertial, "mass", value=repr(float(model.mass[i])))
        places = {"ixx": (0, 0), "ixy": (0, 1), "ixz": (0, 2), "iyy": (1, 1), "iyz": (1, 2), "izz": (2, 2)}
        SubElement(inertial, "inertia", {key: repr(float(I[place])) for key, place in places.items()})


def _joint(root: Element, model: Model, i: int, links: dict[int, Element]) -> None:
    kind, k = JOINTS[model.joint[i]].name, int(model.v_start[i])
    single = kind in ("revolute", "prismatic")
    bounded = single and (isfinite(model.lower[k]) or isfinite(model.upper[k]))
    written = "continuous" if kind == "revolute" and not bounded else TYPES[kind]
    joint = SubElement(root, "joint", name=model.joint_names[i], type=written)
    _ends(joint, links[int(model.parent[i])].get("name", ""), model.names[i], model.R[i], model.p[i])
    if single:
        SubElement(joint, "axis", xyz=_numbers(model.axis[i]))
        bounds = {"effort": model.effort[k], "velocity": model.speed[k]}
        if bounded:
            bounds |= {"lower": model.lower[k], "upper": model.upper[k]}
        if written != "continuous" or any(map(isfinite, bounds.values())):
            SubElement(joint, "limit", {key: repr(float(np.clip(x, -HUGE, HUGE))) for key, x in bounds.items()})
        springs = (
            {"spring_stiffness": model.stiffness[k], "spring_reference": model.rest[k]} if model.stiffness[k] else {}
        )
        found = {"damping": model.damping[k], "friction": model.friction[k]} | springs
        if any(found.values()):
            SubElement(joint, "dynamics", {key: repr(float(x)) for key, x in found.items()})
        if model.armature[k]:
            SubElement(joint, "drake:rotor_inertia", value=repr(float(model.armature[k])))
    elif model.damping[k] or model.friction[k]:
        SubElement(joint, "dynamics", damping=repr(float(model.damping[k])), friction=repr(float(model.friction[k])))
    for follower, leader, ratio, offset in model.couplings:
        if follower == i:
            words = {"multiplier": repr(float(ratio)), "offset": repr(float(offset))}
            SubElement(joint, "mimic", {"joint": model.joint_names[leader]} | words)


def _visual(link: Element, visual: Visual) -> None:
    element = SubElement(link, "visual")
    _origin(element, visual.R, visual.p)
    geometry, size = SubElement(element, "geometry"), visual.size
    if visual.shape == "box":
        SubElement(geometry, "box", size=_numbers(size))
    elif visual.shape == "sphere":
        SubElement(geometry, "sphere", radius=repr(float(size[0])))
    elif visual.shape == "mesh":
        SubElement(geometry, "mesh", filename=visual.file, scale=_numbers(size))
    else:
        SubElement(geometry, visual.shape, radius=repr(float(size[0])), length=repr(float(size[1])))
    material = SubElement(element, "material", name="")
    SubElement(material, "color", rgba=_numbers(visual.color))


def _transmission(root: Element, model: Model, name: str, freedom: int, ratio: float) -> None:
    body = int(np.searchsorted(model.v_start, freedom, side="right")) - 1
    transmission = SubElement(root, "transmission", name=f"{name}_transmission")
    SubElement(transmission, "type").text = "SimpleTransmission"
    SubElement(transmission, "joint", name=model.joint_names[body])
    SubElement(SubElement(transmission, "actuator", name=name), "mechanicalReduction").text = repr(float(ratio))
