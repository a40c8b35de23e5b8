"""Chosen quantities of a motion, by name: what a run keeps instead of all of its rows.

q  v  a  tau                       all entries
q.NAME  v.NAME  a.NAME  tau.NAME   those of one joint (by its body), or one entry of a joint that has several
pose.NAME                          x, y, z and the quaternion w, x, y, z of a body or frame, in the base frame
kinetic_energy  potential_energy  elastic_energy  energy  power        as in `Trajectory`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.dynamics.frames import frame_poses
from torsor.errors import ArgumentError
from torsor.lie import matrix_to_quaternion
from torsor.model.model import Model
from torsor.motion.coordinates import names_of
from torsor.motion.trajectory import Trajectory
from torsor.validate import shown

Array = NDArray[Any]
Quantity = Callable[[Trajectory], Array]  # (m, columns)

ROWS = ("q", "v", "a", "tau")
SCALARS = ("kinetic_energy", "potential_energy", "elastic_energy", "energy", "power")
POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")


class Quantities:
    """The columns that names ask for, and their values along rows."""

    def __init__(self, model: Model, names: Collection[str]) -> None:
        if not isinstance(names, list | tuple | set) or not all(isinstance(name, str) for name in names):
            raise ArgumentError(f"keep must be a list of names of quantities, not {shown(names)}")
        self.names = tuple(names)
        if not self.names:
            raise ArgumentError("keep names no quantity: leave it out, and all rows are kept")
        found = [_quantity(model, name) for name in self.names]
        self.columns = [column for columns, _ in found for column in columns]
        if twice := sorted(x for x, count in Counter(self.columns).items() if count > 1 < len(found)):
            raise ArgumentError(f"keep asks twice for {', '.join(twice[:3])}")
        self._values = [value for _, value in found]

    def __call__(self, rows: Trajectory) -> Array:
        """(m, columns)"""
        return np.hstack([np.empty((len(rows), 0)), *(value(rows) for value in self._values)])


def columns_of(model: Model, name: str) -> list[str]:
    """The columns of a quantity; none if there is no such quantity."""
    try:
        return _quantity(model, name)[0]
    except ArgumentError:
        return []


def _quantity(model: Model, name: str) -> tuple[list[str], Quantity]:
    """The names of the columns of a quantity, and how they follow from rows."""
    if name in SCALARS:
        return [name], lambda rows: getattr(rows, name)[:, None]
    kind, _, of = name.partition(".")
    if kind == "pose" and of:
        model.frame(of)
        return [f"{name}.{x}" for x in POSE], lambda rows: _poses(rows, of)
    if kind not in ROWS:
        raise ArgumentError(
            f"no quantity is named {shown(name)}: ask for {', '.join((*ROWS, 'pose.NAME', *SCALARS))}; q.NAME is "
            "that of one joint"
        )
    labels = names_of(model, "coordinates" if kind == "q" else "velocities")
    if not of:
        return [f"{kind}.{label}" for label in labels], lambda rows: getattr(rows, kind)
    entries = _entries(model, kind, of, labels)
    return [f"{kind}.{labels[i]}" for i in entries], lambda rows: getattr(rows, kind)[:, entries]


def _entries(model: Model, kind: str, of: str, labels: list[str]) -> list[int]:
    """Where the entries of a joint, or the one entry of this label, are in q or v."""
    if of in labels:
        return [labels.index(of)]
    body = model.frame(of).body
    if body < 0:
        raise ArgumentError(f"{kind}.{of}: the base has no joint")
    start = model.q_start if kind == "q" else model.v_start
    return list(range(start[body], start[body + 1]))


def _poses(rows: Trajectory, name: str) -> Array:
    poses = frame_poses(rows.model, rows.q, name)
    return np.hstack([poses[:, :3, 3], matrix_to_quaternion(poses[:, :3, :3])])
