"""SDF (SDFormat 1.4 to 1.12): one model, its links, joints and frames.

Poses are resolved according to the specification: those of links and frames relative to the model unless `relative_to`
names another frame, those of joints relative to the child. A link without a joint to a parent is free, unless the model
is static, the link is named "world", or base="fixed". A joint that closes a loop is omitted, with a note. If a joint is
not at the origin of its child, the body of the Model is at the joint and has the joint's name; the name of the link is
then a frame.
"""

from __future__ import annotations

from math import inf, pi
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from torsor.formats.folders import Folders
from torsor.formats.robot import ONE, ROOT_JOINT, WORLD, Robot, RobotLink, color, rotation, shape, tensor, unused
from torsor.formats.xml import Document
from torsor.model.portable import product, turned
from torsor.validate import shown

Array = NDArray[Any]
Pose = tuple[Array, Array]

MODEL_FRAME = "__model__"
SINGLE = {"revolute": "revolute", "continuous": "revolute", "prismatic": "prismatic", "screw": "helical"}
SEVERAL = {"ball": "spherical", "fixed": "fixed", "universal": "", "revolute2": ""}  # the last two: two revolute joints
READ = {"link", "joint", "frame", "pose", "static", "plugin", "self_collide", "allow_auto_disable", "enable_wind"}
ROUNDING = 1e-14  # of composed poses: a joint this close to the origin of its child counts as there
MODEL_AXES_BEFORE = (1, 5)  # older files give the axis in the model's frame
TRUE = ("1", "true")
UNLIMITED = 1e16
LIMITS = {"effort": "effort", "speed": "velocity"}
DYNAMICS = {"damping": "damping", "friction": "friction", "stiffness": "spring_stiffness"}
MOMENTS = {"ixx": 1.0, "ixy": 0.0, "ixz": 0.0, "iyy": 1.0, "iyz": 0.0, "izz": 1.0}  # with the defaults


def read(document: Document, folders: Folders, base: str | None) -> Robot:
    """The robot of an SDF file."""
    models = [*document.root.iterfind("model"), *document.root.iterfind("world/model")]
    if len(models) != 1:
        names = ", ".join(repr(m.get("name")) for m in models[:6]) or "none"
        raise document.error(document.root, f"torsor reads SDF files with one <model>; here are {len(models)}: {names}")
    return _SdfReader(document, folders, models[0]).robot(base)


class _SdfReader:
    def __init__(self, document: Document, folders: Folders, model: Element):
        self.document, self.folders, self.model = document, folders, model
        self.result = Robot(model.get("name") or Path(document.path).stem, document.path)
        self.links, self.joints, self.frames = (document.named(model, tag) for tag in ("link", "joint", "frame"))
        for name in self.frames.keys() & (self.links.keys() | self.joints.keys()):
            self.result.note("ignored", f"frame {name!r}", "a link or joint is called so")
            del self.frames[name]
        if not self.links:
            raise document.error(model, "it has no <link>")
        version = document.root.get("version", "1.0").split(".")
        self.version = tuple(int(x) if x.isdigit() else 0 for x in (*version, "0")[:2])
        self.roots: dict[str, str] = {}  # child links -> a link nearer the root of their tree
        self._poses: dict[str, Pose | None] = {MODEL_FRAME: (ONE, np.zeros(3))}
        self._hosts: dict[str, str] = {}  # frame -> the host to which it is finally attached

    def robot(self, base: str | None) -> Robot:
        robot = self.result
        gravity = self.document.root.find("world/gravity")
        if gravity is not None:
            robot.gravity = self._numbers(gravity, 3)
        links = {name: RobotLink(name, **self._inertial(link)) for name, link in self.links.items()}
        joint_of: dict[str, str] = {}
        chains = [self._joint(name, joint, links, joint_of) for name, joint in self.joints.items()]
        roots = [link for name, link in links.items() if name not in joint_of]
        self._place_roots(roots, base)
        robot.links = roots + [link for chain in chains for link in chain]
        taken = {link.name for link in robot.links}
        for name in self.frames:
            self._frame(name, taken)
        for name, link in self.links.items():
            robot.draw(name, link.iterfind("visual"), self._visual)
        self.folders.note_missing(robot.note)
        for element in self.model:
            if element.tag not in READ:
                robot.note("ignored", f"<{element.tag}>", f"{element.get('name') or ''} is not read")
        return robot

    def _place_roots(self, roots: list[RobotLink], base: str | None) -> None:
        """Place the root links, and free them unless they are fixed."""
        static = self._text(self.model, "static", "0") in TRUE
        free = [link for link in roots if base == "free" or (base is None and not static and link.name != WORLD)]
        R0, p0 = self._placement(self.model)
        for link in roots:
            R, p = self._pose(link.name)
            link.R, link.p = product(R0, R), p0 + turned(R0, p)
        for link in free:
            link.joint, link.joint_name = "free", ROOT_JOINT if len(free) == 1 else f"{link.name}_{ROOT_JOINT}"

    # ---- values ----

    def _text(self, element: Element, tag: str, default: str) -> str:
        found = element.find(tag)
        return default if found is None or not (found.text or "").strip() else (found.text or "").strip()

    def _number(self, element: Element | None, tag: str, default: float) -> float:
        found = None if element is None else element.find(tag)
        if found is None or not (found.text or "").strip():
            return default
        return self.document.parsed(found, "", (found.text or "").strip(), infinite=True)

    def _numbers(self, element: Element, count: int) -> list[float]:
        words = (element.text or "").split()
        if len(words) != count:
            raise self.document.error(element, f"{shown(element.text)} must be {count} numbers")
        return [self.document.parsed(element, "", word) for word in words]

    # ---- poses ----

    def _placement(self, element: Element) -> Pose:
        """The <pose> of an element, in its reference frame."""
        pose = element.find("pose")
        if pose is None or not (pose.text or "").strip():
            return ONE, np.zeros(3)
        x, y, z, *turn = self._numbers(pose, 6)
        if pose.get("degrees") in ("1", "true"):
            turn = [angle * pi / 180 for angle in turn]
        return rotation(*turn), np.array([x, y, z])

    def _pose(self, name: str) -> Pose:
        """The pose of a link, joint or frame in the model's frame."""
        chain: dict[str, Pose] = {}
        while name not in self._poses:
            element = self.links.get(name, self.joints.get(name, self.frames.get(name)))
            if element is None:
                raise self.document.error(self.model, f"a pose is relative to {name!r}, which is not there")
            if name in chain:
                raise self.document.error(element, "its pose is relative to itself")
            chain[name] = self._placement(element)
            name = self._origin(name, element)
        for other, (R, p) in reversed(chain.items()):
            R0, p0 = self._poses[name]  # type: ignore[misc]
            self._poses[other] = product(R0, R), p0 + turned(R0, p)
            name = other
        return self._poses[name]  # type: ignore[return-value]

    def _origin(self, name: str, element: Element) -> str:
        """The reference frame of an element's pose."""
        pose = element.find("pose")
        if pose is not None and (named := pose.get("relative_to") or pose.get("frame")):
            return named
        if name in self.joints and name not in self.links:
            return self._end(element, "child")
        return element.get("attached_to") or MODEL_FRAME

    def _relative(self, host: str, pose: Pose) -> Pose:
        """A pose in the model's frame, relative to a link, or to the world, in which the model has a pose."""
        if host == WORLD:
            R, p = self._placement(self.model)
            return product(R, pose[0]), turned(R, pose[1]) + p
        R0, p0 = self._pose(host)
        return product(R0.T, pose[0]), turned(R0.T, pose[1] - p0)

    # ---- links and joints ----

    def _inertial(self, link: Element) -> dict[str, Any]:
        element = link.find("inertial")
        if element is None:
            self.result.note("read", f"link {link.get('name')!r}", "no <inertial>: SDF then means 1 kg and 1 kg m^2")
            return {"mass": 1.0, "inertia": ONE}
        R, p = self._placement(element)
        inertia = element.find("inertia")
        I = tensor([self._number(inertia, key, usual) for key, usual in MOMENTS.items()], R)
        if not np.isfinite(I).all():
            raise self.document.error(element, "its inertia must be finite")
        return {"mass": self._number(element, "mass", 1.0), "com": p, "inertia": I}

    def _host(self, name: str) -> str:
        """The host to which a frame is finally attached: a link, a joint, the world or the model; other names stay."""
        way: list[str] = []
        while name in self.frames and name not in self._hosts:
            if name in way[:1] or len(way) > len(self.frames):
                raise self.document.error(self.frames[name], "it is attached to itself, by way of others")
            way.append(name)
            name = self.frames[name].get("attached_to") or self._origin(name, self.frames[name])
        name = self._hosts.get(name, name)
        self._hosts |= dict.fromkeys(way, name)
        return name

    def _end(self, joint: Element, tag: str) -> str:
        element = self.document.need(joint, tag)
        name = self._host((element.text or "").strip() or self._text(element, "link_name", ""))
        if name not in self.links and name != WORLD:
            raise self.document.error(joint, f"its {tag} {name!r} is no link of this model")
        return name

    def _joint(
        self, name: str, joint: Element, parts: dict[str, RobotLink], joint_of: dict[str, str]
    ) -> list[RobotLink]:
        """The parts that a joint adds, its child last."""
        kind = self.document.word(joint, "type")
        if kind not in SINGLE and kind not in SEVERAL:
            known = ", ".join((*SINGLE, *SEVERAL))
            raise self.document.error(joint, f"unknown joint type {shown(kind)}; torsor knows {known}")
        parent, child = self._end(joint, "parent"), self._end(joint, "child")
        if child == WORLD or child in joint_of or self._tree(parent) == child:
            self.result.note("ignored", f"joint {name!r}", f"it closes a loop, or its child is the world ({kind})")
            return []
        joint_of[child] = name
        self.roots[child] = self._tree(parent)
        at, link = self._pose(name), self._pose(child)
        axes = [joint.find(tag) for tag in ("axis", "axis2")][: 2 if kind in ("universal", "revolute2") else 1]
        if kind in ("fixed", "ball"):
            axes = [None]
        host: str | None = None if parent == WORLD else parent
        R, p = self._relative(parent, at)
        away = product(at[0].T, link[0]), turned(at[0].T, link[1] - at[1])  # the link relative to the joint
        own = float(max(np.abs(away[0] - ONE).max(), np.abs(away[1]).max())) < ROUNDING
        chain: list[RobotLink] = []
        for k, axis in enumerate(axes):
            last = own and k == len(axes) - 1
            part = parts[child] if last else RobotLink(unused(name if k == 0 else f"{name}/{k}", parts, "/joint"))
            part.parent, part.R, part.p, part.joint_name = host, R, p, name if k == 0 else f"{name}/{k}"
            part.joint = SINGLE.get(kind) or SEVERAL[kind] or "revolute"
            if part.joint not in ("fixed", "spherical"):
                self._axis(joint, axis, part, at)
            chain.append(part)
            host, R, p = part.name, ONE, np.zeros(3)
        if not own:
            parts[child].parent, parts[child].R, parts[child].p = host, *away
            chain.append(parts[child])
        if kind == "fixed":
            self.result.aliases[name] = child
        return chain

    def _tree(self, link: str) -> str:
        """The root of the tree to which a link belongs so far (union-find, with path compression)."""
        way = []
        while link in self.roots:
            way.append(link)
            link = self.roots[link]
        self.roots |= dict.fromkeys(way, link)
        return link

    def _axis(self, joint: Element, axis: Element | None, link: RobotLink, at: Pose) -> None:
        """Axis, limits and dynamics of one freedom."""
        link.axis = self._direction(axis, at)
        if not np.any(link.axis):
            raise self.document.error(joint, "its axis is zero")
        if link.joint == "helical":
            link.pitch = self._pitch(joint)
        limit, dynamics = (None if axis is None else axis.find(tag) for tag in ("limit", "dynamics"))
        bounds = {"lower": self._number(limit, "lower", -inf), "upper": self._number(limit, "upper", inf)}
        if joint.get("type") != "continuous":
            link.freedoms |= {key: value for key, value in bounds.items() if abs(value) < UNLIMITED}
        for key, tag in LIMITS.items():
            if 0 <= (value := self._number(limit, tag, inf)) < UNLIMITED:  # negative: no limit
                link.freedoms[key] = value
        link.freedoms |= {key: self._number(dynamics, tag, 0.0) for key, tag in DYNAMICS.items()}
        if link.freedoms["stiffness"]:
            link.freedoms["rest"] = self._number(dynamics, "spring_reference", 0.0)

    def _direction(self, axis: Element | None, at: Pose) -> Array:
        """The direction of an axis, in the joint's frame unless the file says otherwise."""
        xyz = None if axis is None else axis.find("xyz")
        if axis is None or xyz is None:
            return np.array([0.0, 0.0, 1.0])
        direction, named = np.array(self._numbers(xyz, 3)), xyz.get("expressed_in")
        if named and named != MODEL_FRAME:
            return turned(product(at[0].T, self._pose(named)[0]), direction)
        of_model = named or self._text(axis, "use_parent_model_frame", "0") in TRUE
        return turned(at[0].T, direction) if of_model or (0, 0) < self.version < MODEL_AXES_BEFORE else direction

    def _pitch(self, joint: Element) -> float:
        """Metres per radian. The older <thread_pitch> is in radians per metre, with the opposite sign."""
        if joint.find("screw_thread_pitch") is not None or joint.find("thread_pitch") is None:
            return self._number(joint, "screw_thread_pitch", 1.0) / (2 * pi)
        pitch = self._number(joint, "thread_pitch", 1.0)
        if pitch == 0:
            raise self.document.error(joint, "its <thread_pitch> is zero")
        return -1.0 / pitch

    # ---- frames and shapes ----

    def _frame(self, name: str, taken: set[str]) -> None:
        """A <frame>, as a fixed massless link on its host link."""
        host = self._host(name)
        if host in self.joints and host not in self.links:
            host = self._end(self.joints[host], "child")
        host = host if host in self.links else next(iter(self.links))  # the model's frame moves with its first link
        R, p = self._relative(host, self._pose(name))
        if name not in taken:
            self.result.links.append(RobotLink(name, host, R=R, p=p))

    def _visual(self, visual: Element) -> dict[str, Any]:
        def sizes(element: Element, word: str, count: int) -> list[float]:
            if count == 1:
                return [self._number(element, word, 1.0)]
            return self._numbers(self.document.need(element, word), count)

        def mesh(element: Element) -> tuple[str, list[float]]:
            uri, scale = self._text(element, "uri", ""), element.find("scale")
            return self.folders.find(uri) or uri, [1.0] * 3 if scale is None else self._numbers(scale, 3)

        words = shape(self.document, visual, sizes, mesh) | dict(zip("Rp", self._placement(visual)))
        paint = visual.find("material/diffuse")
        count = 0 if paint is None else len((paint.text or "").split())
        return words | ({"color": color(self._numbers(paint, count))} if count in (3, 4) else {})  # type: ignore[arg-type]
