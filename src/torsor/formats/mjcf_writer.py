"""A Model as MJCF.  Joints of several freedoms become several MuJoCo joints.  What MJCF cannot express is listed."""

from __future__ import annotations

from math import inf, isfinite
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ModelError
from torsor.formats.mjcf import MOST
from torsor.formats.robot import unused
from torsor.formats.writer import Draft, Primitive, number, numbers, text
from torsor.lie import matrix_to_quaternion
from torsor.model import JOINTS, Model
from torsor.model.extras import Visual

Array = NDArray[Any]

SMALLEST = 1e-15  # the smallest mass and moment of inertia that MuJoCo accepts (mjMINVAL)
DEEPEST = 496  # the deepest tree that MuJoCo's parser accepts
TYPES = {"revolute": "hinge", "prismatic": "slide", "spherical": "ball", "free": "free"}
# The joints of several freedoms, with the fields for which they have one number for all.
WHOLE = {"spherical": ("damping", "friction", "armature", "stiffness"), "free": ("damping", "friction", "armature")}
FIELDS = {"damping": "damping", "friction": "frictionloss", "armature": "armature", "stiffness": "stiffness"} | {
    "rest": "springref"
}
SINGLE = (*FIELDS, "lower", "upper", "effort")  # what a joint of one freedom has


def encode(model: Model, path: str | Path) -> tuple[bytes, list[str]]:
    """The content of a file, and the list of what it cannot express."""
    carried = _carried(model)
    draft = Draft(model, path, "MJCF", SINGLE, WHOLE)
    _check(model, carried)
    root = Element("mujoco", model=model.name)
    SubElement(root, "compiler", angle="radian", autolimits="true", balanceinertia="false")
    SubElement(root, "option", gravity=numbers(model.gravity))
    meshes = _assets(root, draft)
    bodies, order = {-1: SubElement(root, "worldbody")}, _depth_first(model)
    for i in order:
        if i not in carried:
            bodies[i] = _body(bodies, draft, i, carried)
    for visual in model.visuals:
        if visual.body in carried or not _geom(bodies[visual.body], visual, meshes):
            draft.losses.append(f"a {visual.shape} on {(*model.names, 'the base')[visual.body]!r}")
    for name, (body, R, p) in model.frames.items():
        if body in carried:
            draft.losses.append(f"frame {name!r}, on a body without mass")
        else:
            SubElement(bodies[body], "site", _place(R, p) | {"name": name})
    _actuators(root, draft)
    if model.couplings:
        draft.losses.append("couplings as such: MuJoCo holds them by soft constraints")
        equality = SubElement(root, "equality")
        for follower, leader, ratio, offset in model.couplings:
            names = {"joint1": model.joint_names[follower], "joint2": model.joint_names[leader]}
            SubElement(equality, "joint", names | {"polycoef": numbers((offset, ratio, 0, 0, 0))})
    if order != list(range(model.n)):
        draft.losses.append("the order of the joints: MuJoCo's is depth first")
    keys = SubElement(root, "keyframe") if model.keyframes else None
    for name, q in model.keyframes.items():
        ordered = np.concatenate([q[model.q_start[i] : model.q_start[i + 1]] for i in order])
        SubElement(keys, "key", name=name, qpos=numbers(ordered))  # type: ignore[arg-type]
    return text(root), draft.losses


def _carried(model: Model) -> set[int]:
    """Massless bodies that carry one other body: MuJoCo has none, so their joints become joints of the other body."""
    turned = np.abs(model.R - np.eye(3)).max(axis=(1, 2)) > 0
    child = np.full(model.n + 1, -1)
    child[model.parent] = np.arange(model.n)
    found, freedoms = set(), np.diff(model.v_start)  # of each MuJoCo body, which has at most six
    for i in np.flatnonzero((model.mass == 0) & (model.children_count == 1))[::-1].tolist():
        kinds = [JOINTS[model.joint[k]].name for k in (i, child[i])]
        freedoms[i] += freedoms[child[i]]
        if "free" not in kinds and not (kinds[0] == "spherical" and turned[child[i]]) and freedoms[i] <= 6:
            found.add(i)
    return found


def _body(bodies: dict[int, Element], draft: Draft, i: int, carried: set[int]) -> Element:
    """A body, with its own joints after those of the massless bodies that carry it."""
    model, way = draft.model, [i]
    while int(model.parent[way[-1]]) in carried:
        way.append(int(model.parent[way[-1]]))
    R, p, seen = np.eye(3), np.zeros(3), []  # the pose of the body in each body on the way, the last first
    for k in way:
        seen.append((k, R, p))
        R, p = model.R[k] @ R, model.p[k] + model.R[k] @ p
    place = {} if JOINTS[model.joint[i]].name == "free" else _place(R, p)
    element = SubElement(bodies[int(model.parent[way[-1]])], "body", {"name": draft.names[i]} | place)
    for k, R, p in reversed(seen):
        for joint in draft.joints[k]:
            _joint(element, draft, joint, R, p)
    _inertial(element, model, i)
    return element


def _check(model: Model, carried: set[int]) -> None:
    depth = np.zeros(model.n + 1, dtype=int)  # the last: the base
    moments = np.linalg.eigvalsh(model.inertia)
    for i in range(model.n):
        depth[i] = depth[model.parent[i]] + (i not in carried)
        moved = model.p[i].any() or not np.array_equal(model.R[i], np.eye(3))
        if JOINTS[model.joint[i]].name == "free" and (model.parent[i] >= 0 or moved):
            raise ModelError(
                f"in MJCF a free body hangs on the world, at its origin; {model.names[i]!r} does not: save as .toml"
            )
        if min(model.mass[i], moments[i, 0]) < SMALLEST and i not in carried:
            raise ModelError(f"MuJoCo takes no body without mass or extent: give {model.names[i]!r} some")
    for i in np.flatnonzero(depth > DEEPEST)[:1]:
        raise ModelError(f"MuJoCo reads at most {DEEPEST} bodies on one another; {model.names[i]!r} is one more")


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


def _place(R: Any, p: Any) -> dict[str, str]:
    place = {"pos": numbers(p)}
    if not np.array_equal(R, np.eye(3)):
        place["quat"] = numbers(matrix_to_quaternion(np.asarray(R, dtype=np.float64)))
    return place


def _range(draft: Draft, name: str, key: str, lower: float, upper: float) -> dict[str, str]:
    """The limits of something; MuJoCo reads its largest number, but also equal limits, as no limit."""
    if lower < upper:
        return {key: numbers(np.clip((lower, upper), -MOST, MOST))} if isfinite(lower) or isfinite(upper) else {}
    draft.losses.append(f"{key} of {name!r}, {lower:g} to {upper:g}, which MuJoCo takes for none")
    return {}


def _joint(body: Element, draft: Draft, joint: Primitive, R: Array, p: Array) -> None:
    """A joint of the body whose frame is at (R, p) relative to the joint."""
    values = joint.values
    words = {"name": joint.name, "type": TYPES[joint.kind]}
    words |= {word: number(values[key]) for key, word in FIELDS.items() if key in values}
    if joint.kind in ("revolute", "prismatic"):
        words["axis"] = numbers(R.T @ joint.axis)
    words |= _range(draft, joint.name, "range", values.get("lower", -inf), values.get("upper", inf))
    words |= _range(draft, joint.name, "actuatorfrcrange", -values.get("effort", inf), values.get("effort", inf))
    if p.any():
        words["pos"] = numbers(-R.T @ p)
    SubElement(body, "joint", words)


def _inertial(body: Element, model: Model, i: int) -> None:
    """Mass and principal moments; MuJoCo could compute these, but would refuse flat bodies because of rounding."""
    if model.mass[i] == 0:
        return
    I, words = model.inertia[i], {}
    moments = np.diag(I).copy()
    if (np.diag(moments) != I).any():
        moments, axes = np.linalg.eigh(I)
        moments = np.maximum(moments, SMALLEST)  # for a long rod, the smallest may be lost in rounding
        words = _place(axes * np.sign(np.linalg.det(axes)), model.com[i])
    largest = moments.argmax()
    moments[largest] = min(moments[largest], moments[largest - 1] + moments[largest - 2])
    words |= {"pos": numbers(model.com[i]), "mass": number(model.mass[i]), "diaginertia": numbers(moments)}
    SubElement(body, "inertial", words)


def _assets(root: Element, draft: Draft) -> dict[tuple[str, tuple[float, ...]], str]:
    """Names of the meshes, by file and scale."""
    names: dict[tuple[str, tuple[float, ...]], str] = {}
    asset = SubElement(root, "asset")
    for visual in draft.model.visuals:
        key = visual.file, visual.size
        if visual.shape != "mesh" or key in names:
            continue
        if visual.file.lower().endswith((".stl", ".obj")) and Path(visual.file).is_file():
            names[key] = f"mesh{len(names)}"
            words = {"name": names[key], "file": draft.mesh(visual.file), "scale": numbers(visual.size)}
            SubElement(asset, "mesh", words | {"inertia": "shell"})
        elif (loss := f"mesh {visual.file}") not in draft.losses:
            draft.losses.append(loss)
    return names


def _geom(body: Element, visual: Visual, meshes: dict[tuple[str, tuple[float, ...]], str]) -> bool:
    """A shape that is only drawn: without mass and without collisions.  MuJoCo accepts none without extent."""
    words = {"type": visual.shape, "rgba": numbers(visual.color), **_place(visual.R, visual.p)}
    words |= {"contype": "0", "conaffinity": "0", "group": "1", "mass": "0"}
    if visual.shape == "mesh":
        if (visual.file, visual.size) not in meshes:
            return True  # listed already
        words["mesh"] = meshes[visual.file, visual.size]
    else:
        half = {"box": 0.5, "cylinder": (1.0, 0.5), "capsule": (1.0, 0.5)}.get(visual.shape, 1.0)
        words["size"] = numbers(np.array(visual.size) * half)
    sized = all(visual.size) if visual.shape == "mesh" else min(visual.size) > 0
    if sized:
        SubElement(body, "geom", words)
    return sized


def _actuators(root: Element, draft: Draft) -> None:
    section = SubElement(root, "actuator") if draft.model.actuators else None
    taken: set[str] = set()
    for actuator in draft.model.actuators:
        ends = [(*draft.freedoms[freedom], ratio) for freedom, ratio in actuator.gear]
        if section is None or len({joint.name for joint, _, _ in ends}) != 1 or ends[0][0].kind == "free":
            draft.losses.append(f"actuator {actuator.name!r}, which drives a free joint or several joints")
            continue
        gear = np.zeros(3)
        for _, k, ratio in ends:
            gear[k] += ratio
        name = unused(actuator.name, taken)  # MuJoCo's names must differ
        taken.add(name)
        words = {"name": name, "joint": ends[0][0].name, "gear": numbers(gear), "gainprm": number(actuator.gain)}
        if any(actuator.bias):
            words |= {"biastype": "affine", "biasprm": numbers(actuator.bias)}
        for key, limits in (("ctrlrange", actuator.control), ("forcerange", actuator.effort)):
            words |= _range(draft, name, key, *limits)
        SubElement(section, "general", words)
