"""A Model as MJCF.  Joints of several freedoms become several of MuJoCo's.  What MJCF cannot say is listed."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ModelError
from torsor.lie import matrix_to_quaternion
from torsor.model import JOINTS, Model

Array = NDArray[Any]

X, Y, Z = np.eye(3)
SMALLEST = 1e-15  # mass and moment of inertia that MuJoCo takes (mjMINVAL)
# The joints of MuJoCo that make a joint of torsor, in the order of its coordinates: type and axis (None: its own).
PARTS: dict[str, list[tuple[str, Any]]] = {
    "revolute": [("hinge", None)], "prismatic": [("slide", None)], "spherical": [("ball", Z)], "free": [("free", Z)],
    "universal": [("hinge", X), ("hinge", Y)], "gimbal": [("hinge", X), ("hinge", Y), ("hinge", Z)],
    "planar": [("slide", X), ("slide", Y), ("hinge", Z)], "cylindrical": [("hinge", None), ("slide", None)],
}  # fmt: skip


def encode(model: Model) -> tuple[bytes, list[str]]:
    """The content of a file, and what it does not say."""
    _check(model)
    root = Element("mujoco", model=model.name)
    SubElement(root, "compiler", angle="radian", autolimits="true", balanceinertia="false")
    SubElement(root, "option", gravity=_numbers(model.gravity))
    meshes = _assets(root, model)
    world = SubElement(root, "worldbody")
    bodies = {-1: world}
    carried = _carried(model)
    for i in range(model.n):
        if i not in carried:
            bodies[i] = _body(bodies, model, i, carried)
    for visual in model.visuals:
        if visual.body not in carried:
            _geom(bodies[visual.body], visual, meshes)
    losses = _losses(model)
    for name, (body, R, p) in model.frames.items():
        if body in carried:
            losses.append(f"frame {name!r}, on a body without mass")
        else:
            SubElement(bodies[body], "site", _place(R, p) | {"name": name})
    _actuators(root, model)
    if model.couplings:
        equality = SubElement(root, "equality")
        for follower, leader, ratio, offset in model.couplings:
            names = {"joint1": model.joint_names[follower], "joint2": model.joint_names[leader]}
            SubElement(equality, "joint", names | {"polycoef": _numbers((offset, ratio, 0, 0, 0))})
    if model.keyframes:
        keys = SubElement(root, "keyframe")
        for name, q in model.keyframes.items():
            ordered = np.concatenate([q[model.q_start[i] : model.q_start[i + 1]] for i in _depth_first(model)])
            SubElement(keys, "key", name=name, qpos=_numbers(ordered))
    indent(root)
    return tostring(root, encoding="utf-8") + b"\n", losses


def _carried(model: Model) -> set[int]:
    """Bodies without mass that carry one other: MuJoCo knows none, so their joints become joints of that other body."""
    turned = np.abs(model.R - np.eye(3)).max(axis=(1, 2)) > 0
    found = set()
    for i in np.flatnonzero((model.mass == 0) & (model.children_count == 1)).tolist():
        (child,) = np.flatnonzero(model.parent == i).tolist()
        kinds = [JOINTS[model.joint[k]].name for k in (i, child)]
        if "free" not in kinds and not (kinds[0] == "spherical" and turned[child]):
            found.add(i)
    return found


def _body(bodies: dict[int, Element], model: Model, i: int, carried: set[int]) -> Element:
    """A body, with its own joints after those of the massless bodies that carry it."""
    way = [i]
    while int(model.parent[way[0]]) in carried:
        way.insert(0, int(model.parent[way[0]]))
    R, p, seen = np.eye(3), np.zeros(3), []  # of the body, seen from each on the way, the last first
    for k in reversed(way):
        seen.append((k, R, p))
        R, p = model.R[k] @ R, model.p[k] + model.R[k] @ p
    place = {} if JOINTS[model.joint[i]].name == "free" else _place(R, p)
    element = SubElement(bodies[int(model.parent[way[0]])], "body", {"name": model.names[i]} | place)
    for k, R, p in reversed(seen):
        _joints(element, model, k, R, p)
    _inertial(element, model, i)
    return element


def _check(model: Model) -> None:
    carried = _carried(model)
    for i in range(model.n):
        kind = JOINTS[model.joint[i]].name
        if kind not in PARTS:
            raise ModelError(f"MJCF has no {kind} joint, which {model.names[i]!r} hangs on; save as .toml")
        moved = model.p[i].any() or not np.array_equal(model.R[i], np.eye(3))
        if kind == "free" and (model.parent[i] >= 0 or moved):
            raise ModelError(
                f"in MJCF a free body hangs on the world, at its origin; {model.names[i]!r} does not: save as .toml"
            )
        least = min(model.mass[i], np.linalg.eigvalsh(model.inertia[i])[0])
        if least < SMALLEST and i not in carried:
            raise ModelError(f"MuJoCo takes no body without mass or extent: give {model.names[i]!r} some")


def _losses(model: Model) -> list[str]:
    found = [f"the speed limit of {model.names[i]!r}" for i in range(model.n) if _finite(model.speed, model, i)]
    if _depth_first(model) != list(range(model.n)):
        found.append("the order of the joints: MuJoCo's is depth first")
    if model.couplings:
        found.append("couplings as such: MuJoCo holds them by soft constraints")
    found += [f"mesh {file}" for file in {v.file for v in model.visuals if v.shape == "mesh"} if not _drawable(file)]
    found += [f"actuator {a.name!r}, which drives several joints" for a in model.actuators if len(a.gear) != 1]
    return found


def _depth_first(model: Model) -> list[int]:
    """The bodies in the order in which MuJoCo numbers their joints."""
    children: dict[int, list[int]] = {}
    for i, parent in enumerate(model.parent.tolist()):
        children.setdefault(parent, []).append(i)
    order, todo = [], children[-1][::-1]
    while todo:
        order.append(todo.pop())
        todo += children.get(order[-1], [])[::-1]
    return order


def _finite(x: Array, model: Model, i: int) -> bool:
    return bool(np.isfinite(x[model.v_start[i] : model.v_start[i + 1]]).any())


def _numbers(x: Any) -> str:
    return " ".join(repr(float(value)) for value in x)


def _place(R: Any, p: Any) -> dict[str, str]:
    place = {"pos": _numbers(p)}
    if not np.array_equal(R, np.eye(3)):
        place["quat"] = _numbers(matrix_to_quaternion(np.asarray(R, dtype=np.float64)))
    return place


def _joints(body: Element, model: Model, i: int, R: Array, p: Array) -> None:
    """The joints of body i, for an element whose frame is at (R, p) on that body."""
    joint = JOINTS[model.joint[i]]
    parts = PARTS[joint.name]
    for k, (kind, axis) in enumerate(parts):
        name = model.joint_names[i] + (f"/{joint.coordinates[k][0]}" if len(parts) > 1 else "")
        at = int(model.v_start[i]) + (k if len(parts) > 1 else 0)
        words = {"name": name, "type": kind}
        if kind in ("hinge", "slide"):
            words["axis"] = _numbers(R.T @ (model.axis[i] if axis is None else axis))
            if isfinite(model.lower[at]) or isfinite(model.upper[at]):
                words["range"] = _numbers(np.clip((model.lower[at], model.upper[at]), -1e10, 1e10))
            if isfinite(model.effort[at]):
                words["actuatorfrcrange"] = _numbers((-model.effort[at], model.effort[at]))
            if model.stiffness[at]:
                words |= {"stiffness": repr(float(model.stiffness[at])), "springref": repr(float(model.rest[at]))}
        for key, word in (("damping", "damping"), ("friction", "frictionloss"), ("armature", "armature")):
            if value := float(getattr(model, key)[at]):
                words[word] = repr(value)
        if p.any():
            words["pos"] = _numbers(-R.T @ p)
        SubElement(body, "joint", words)


def _inertial(body: Element, model: Model, i: int) -> None:
    if model.mass[i] > 0:
        I = model.inertia[i]
        full = (I[0, 0], I[1, 1], I[2, 2], I[0, 1], I[0, 2], I[1, 2])
        SubElement(
            body, "inertial", pos=_numbers(model.com[i]), mass=repr(float(model.mass[i])), fullinertia=_numbers(full)
        )


def _assets(root: Element, model: Model) -> dict[tuple[str, tuple[float, ...]], str]:
    """Names of the meshes, by file and scale."""
    names: dict[tuple[str, tuple[float, ...]], str] = {}
    asset = SubElement(root, "asset")
    for visual in model.visuals:
        key = visual.file, visual.size
        if visual.shape == "mesh" and key not in names and _drawable(visual.file):
            names[key] = f"mesh{len(names)}"
            SubElement(
                asset,
                "mesh",
                {"name": names[key], "file": visual.file, "scale": _numbers(visual.size), "inertia": "shell"},
            )
    return names


def _drawable(file: str) -> bool:
    return file.lower().endswith((".stl", ".obj")) and Path(file).is_file()


def _geom(body: Element, visual: Any, meshes: dict[tuple[str, tuple[float, ...]], str]) -> None:
    """A shape that is only drawn: without mass, and touching nothing."""
    if not all(visual.size):  # MuJoCo takes no shape without extent
        return
    words = {"type": visual.shape, "rgba": _numbers(visual.color), **_place(visual.R, visual.p)}
    words |= {"contype": "0", "conaffinity": "0", "group": "1", "mass": "0"}
    if visual.shape == "mesh":
        if (visual.file, visual.size) not in meshes:
            return
        words["mesh"] = meshes[visual.file, visual.size]
    else:
        half = visual.shape in ("box", "cylinder", "capsule")
        size = np.array(visual.size) * ([0.5] * 3 if visual.shape == "box" else [1, 0.5] if half else 1.0)
        words["size"] = _numbers(size)
    SubElement(body, "geom", words)


def _actuators(root: Element, model: Model) -> None:
    section = SubElement(root, "actuator") if model.actuators else None
    taken: set[str] = set()
    for actuator in model.actuators:
        if len(actuator.gear) != 1 or section is None:
            continue
        ((freedom, ratio),) = actuator.gear
        body = int(np.searchsorted(model.v_start, freedom, side="right")) - 1
        joint = JOINTS[model.joint[body]]
        part = f"/{joint.coordinates[freedom - model.v_start[body]][0]}" if len(PARTS[joint.name]) > 1 else ""
        name = actuator.name
        while name in taken:  # MuJoCo's names differ
            name += "_"
        taken.add(name)
        words = {"name": name, "joint": model.joint_names[body] + part, "gear": repr(float(ratio))}
        words |= {"gainprm": repr(float(actuator.gain))}
        if any(actuator.bias):
            words |= {"biastype": "affine", "biasprm": _numbers(actuator.bias)}
        for key, limits in (("ctrlrange", actuator.control), ("forcerange", actuator.effort)):
            if all(map(isfinite, limits)):
                words[key] = _numbers(limits)
        SubElement(section, "general", words)
