"""Quantities of a motion, by name: runs keep them, ensembles store them, and `trajectory["pose.hand"]` returns them.

    q  v  a  tau                       all entries
    q.NAME  v.NAME  a.NAME  tau.NAME   the entries of one joint (by its body), or one entry of a joint with several
    pose.NAME                          x, y, z and the quaternion w, x, y, z of a body or frame, in the base frame
    position.NAME                      only x, y, z
    kinetic_energy  potential_energy  elastic_energy  energy  power        as in `Trajectory`

A new quantity of a whole machine is one function of a trajectory in `SCALARS`; a new quantity of a frame is one entry
of `OF_FRAMES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.dynamics import functions as dynamics
from torsor.dynamics.frames import frame_poses
from torsor.errors import ArgumentError
from torsor.lie import matrix_to_quaternion
from torsor.model.batch import machine_of
from torsor.model.model import Model
from torsor.motion.coordinates import names_of
from torsor.validate import shown

if TYPE_CHECKING:
    from torsor.motion.trajectory import Trajectory

Array = NDArray[Any]

ROWS = ("q", "v", "a", "tau")


def _kinetic(rows: Trajectory) -> Array:
    return dynamics.kinetic_energy(rows.machines, rows.q, rows.v)


def _potential(rows: Trajectory) -> Array:
    return dynamics.potential_energy(rows.machines, rows.q)


def _elastic(rows: Trajectory) -> Array:
    """sum stiffness e^2 / 2 over the springs in the model's joints, e their elongations."""
    model = machine_of(rows.machines)
    rest = model.integrate(model.neutral(), model.rest)
    total = np.zeros(rows.q.shape[:-1])
    for joint, q_columns, v_columns in model.joint_groups if model.stiffness.any() else ():
        stretch = joint.elongation(rows.q[..., q_columns], rest[q_columns])
        total += (model.stiffness[v_columns] * stretch**2).sum(axis=(-2, -1)) / 2
    return total


SCALARS: dict[str, Callable[[Trajectory], Array]] = {
    "kinetic_energy": _kinetic,
    "potential_energy": _potential,
    "elastic_energy": _elastic,
    "energy": lambda rows: _kinetic(rows) + _potential(rows),
    "power": lambda rows: (rows.tau * rows.v).sum(axis=-1),
}


def _pose(poses: Array) -> Array:
    return np.concatenate([poses[..., :3, 3], matrix_to_quaternion(poses[..., :3, :3])], axis=-1)


# quantities of a frame: the names of the columns, and a function from poses (..., 4, 4) to their values
OF_FRAMES: dict[str, tuple[tuple[str, ...], Callable[[Array], Array]]] = {
    "pose": (("x", "y", "z", "qw", "qx", "qy", "qz"), _pose),
    "position": (("x", "y", "z"), lambda poses: poses[..., :3, 3]),
}


class Quantity(NamedTuple):
    """The names of its columns, and its values (..., m, columns) along a trajectory."""

    columns: list[str]
    values: Callable[[Trajectory], Array]


def quantity(model: Model, name: str) -> Quantity:
    """The quantity with this name."""
    kind, _, of = name.partition(".")
    if name in SCALARS:
        return Quantity([name], lambda rows: SCALARS[name](rows)[..., None])
    if kind in OF_FRAMES and of:
        model.frame(of)
        axes, values = OF_FRAMES[kind]
        return Quantity([f"{name}.{x}" for x in axes], lambda rows: values(frame_poses(rows.machines, rows.q, of)))
    if kind not in ROWS:
        known = (*ROWS, *(f"{x}.NAME" for x in OF_FRAMES), *SCALARS)
        raise ArgumentError(
            f"no quantity is named {shown(name)}: ask for {', '.join(known)}; q.NAME is that of one joint"
        )
    labels = names_of(model, "coordinates" if kind == "q" else "velocities")
    entries = _entries(model, kind, of, labels) if of else range(len(labels))
    return Quantity([f"{kind}.{labels[i]}" for i in entries], lambda rows: getattr(rows, kind)[..., list(entries)])


def _entries(model: Model, kind: str, of: str, labels: list[str]) -> list[int]:
    """The indices in q or v of the entries of a joint, or of the one entry with this label."""
    if of in labels:
        return [labels.index(of)]
    body = model.frame(of).body
    if body < 0:
        raise ArgumentError(f"{kind}.{of}: the base has no joint")
    start = model.q_start if kind == "q" else model.v_start
    return list(range(start[body], start[body + 1]))


class Quantities:
    """The columns of some quantities, and their values along rows."""

    def __init__(self, model: Model, names: Collection[str]) -> None:
        if not isinstance(names, list | tuple | set) or not all(isinstance(name, str) for name in names):
            raise ArgumentError(f"keep must be a list of names of quantities, not {shown(names)}")
        self.names = tuple(names)
        if not self.names:
            raise ArgumentError("keep names no quantity: leave it out, and all rows are kept")
        found = [quantity(model, name) for name in self.names]
        self.columns = [column for columns, _ in found for column in columns]
        if twice := sorted(x for x, count in Counter(self.columns).items() if count > 1 < len(found)):
            raise ArgumentError(f"keep asks twice for {', '.join(twice[:3])}")
        self._values = [x.values for x in found]

    def __call__(self, rows: Trajectory) -> Array:
        """The values, (m, columns)."""
        return np.hstack([np.empty((len(rows), 0)), *(value(rows) for value in self._values)])


def columns_of(model: Model, name: str) -> list[str]:
    """The columns of a quantity; none if there is no such quantity."""
    try:
        return quantity(model, name).columns
    except ArgumentError:
        return []
