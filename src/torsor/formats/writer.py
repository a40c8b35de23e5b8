"""Common code of the URDF and MJCF writers: primitive joints, names, paths of meshes, and the text of an XML tree.

A format has joints of one freedom, with all quantities, and some joints of several freedoms, with at most one number
per quantity.  If these freedoms differ, the joint is written as several joints if that gives the same motion; otherwise
the field is omitted.  `Draft` lists the omissions, by field and joint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ModelError
from torsor.formats.folders import Folders
from torsor.formats.robot import WORLD, unused
from torsor.model import JOINTS, Model
from torsor.model.freedoms import DEFAULTS, nondefault
from torsor.model.joints import joint_named

Array = NDArray[Any]

X, Y, Z = np.eye(3)
# The primitive joints that compose a joint, in the order of its coordinates: type and axis (None: its own).
PRIMITIVES: dict[str, list[tuple[str, Any]]] = {
    "revolute": [("revolute", None)], "prismatic": [("prismatic", None)],
    "spherical": [("spherical", Z)], "free": [("free", Z)],
    "universal": [("revolute", X), ("revolute", Y)],
    "gimbal": [("revolute", X), ("revolute", Y), ("revolute", Z)],
    "planar": [("prismatic", X), ("prismatic", Y), ("revolute", Z)],
    "cylindrical": [("revolute", None), ("prismatic", None)],
}  # fmt: skip
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML


class Primitive(NamedTuple):
    """A joint of the file: `values` are the fields without default values, one number for all of its freedoms."""

    name: str
    kind: str  # revolute, prismatic, or a joint of several freedoms that the format has
    axis: Array
    values: dict[str, float]


class Draft:
    """A file under construction.

    single   the fields of a joint of one freedom that the format has
    whole    the joints of several freedoms that the format has -> the fields of which it has one number for all
    """

    def __init__(self, model: Model, path: str | Path, form: str, single: Collection[str],
                 whole: Mapping[str, Collection[str]]):  # fmt: skip
        self.model, self.single, self.whole = model, single, whole
        self.folder, self.folders = os.path.dirname(os.path.abspath(path)), Folders(path)
        self.losses: list[str] = []
        self._lost: dict[str, list[str]] = {}
        for i in range(model.n):
            if (kind := JOINTS[model.joint[i]].name) not in PRIMITIVES:
                raise ModelError(f"{form} has no {kind} joint, which {model.names[i]!r} hangs on; save as .toml")
        self.taken = {*model.names, *model.frames}
        self.names = list(model.names)
        if WORLD in self.names:
            self.names[self.names.index(WORLD)] = name = unused(WORLD, self.taken)
            self.losses.append(f"the name of body {WORLD!r}, which is that of the base: here {name!r}")
        self.joint_names = set(model.joint_names)
        self.joints = [self._primitives(i) for i in range(model.n)]
        # the place of each freedom: its joint in the file, and its index there
        self.freedoms = [
            (joint, k) for joints in self.joints for joint in joints for k in range(joint_named(joint.kind).nv)
        ]
        self.losses += [f"{key} of {', '.join(map(repr, joints))}" for key, joints in self._lost.items()]

    def _primitives(self, i: int) -> list[Primitive]:
        """The joints of the file that represent the joint of body i."""
        model, joint, name = self.model, JOINTS[self.model.joint[i]], self.model.joint_names[i]
        known, parts = nondefault(model, i), PRIMITIVES[joint.name]
        has = self.whole.get(joint.name, ())
        common = {key: float(x[0]) for key, x in known.items() if key in has and (x == x[0]).all()}
        if "rest" in known:  # formats have no rest positions for several freedoms
            common.pop("stiffness", None)
        if has and (len(parts) == 1 or len(common) == len(known)):
            self._lose(name, known.keys() - common.keys())
            return [Primitive(name, joint.name, Z, common)]
        found = []
        for k, (kind, axis) in enumerate(parts):
            values = {key: float(x[k]) for key, x in known.items() if x[k] != DEFAULTS[key]}
            own = name if len(parts) == 1 else unused(f"{name}/{joint.coordinates[k][0]}", self.joint_names)
            lost = {key for key in values if key not in self.single or (key == "rest" and "stiffness" not in values)}
            self._lose(own, lost)
            values = {key: x for key, x in values.items() if key not in lost}
            found.append(Primitive(own, kind, model.axis[i] if axis is None else axis, values))
            self.joint_names.add(own)
        return found

    def _lose(self, joint: str, keys: Iterable[str]) -> None:
        for key in DEFAULTS:
            if key in keys:
                self._lost.setdefault(key, []).append(joint)

    def mesh(self, file: str) -> str:
        """The file of a mesh relative to the folder of the robot file; a path that is not absolute is unchanged."""
        if not os.path.isabs(file):
            return file
        if not self.folders.bounds(file):
            home = os.path.dirname(file)
            self.losses.append(f"where meshes of {home} are to be found: load it with folders=[{home!r}]")
        common = os.path.commonpath([file, self.folder])
        return file if common == os.path.dirname(common) else os.path.relpath(file, self.folder).replace(os.sep, "/")


def number(x: Any) -> str:
    """A number with all its digits."""
    return repr(float(x))


def numbers(x: Iterable[Any]) -> str:
    """Numbers with all their digits."""
    return " ".join(map(number, x))


def text(root: Element) -> bytes:
    """The XML of a tree of any depth, one element per line."""
    lines: list[str] = []
    todo: list[tuple[Element, int, bool]] = [(root, 0, False)]
    while todo:
        element, depth, closing = todo.pop()
        words = "".join(f" {key}={quoteattr(value)}" for key, value in element.items())
        if closing:
            lines.append(f"{'  ' * depth}</{element.tag}>")
        elif len(element):
            lines.append(f"{'  ' * depth}<{element.tag}{words}>")
            todo += [(element, depth, True), *((child, depth + 1, False) for child in reversed(element))]
        else:
            end = f">{escape(element.text)}</{element.tag}>" if element.text else " />"
            lines.append(f"{'  ' * depth}<{element.tag}{words}{end}")
    whole = "\n".join(lines)
    if bad := FORBIDDEN.search(whole):
        line = whole[: bad.start()].rpartition("\n")[2].strip() + bad[0]
        raise ModelError(f"XML has no character {bad[0]!r}, which is in {line!r}: rename it, or save as .toml")
    return f"{whole}\n".encode()
