"""Trajectory: the result of a simulation: rows (t, q, v, a, tau), and quantities derived from them on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.dynamics import functions as dynamics
from torsor.errors import ArgumentError
from torsor.files import made, write_whole
from torsor.formats import toml
from torsor.model.model import Model, require_model
from torsor.motion import recording, tables
from torsor.motion.coordinates import Coordinates, names_of
from torsor.motion.dense import Dense
from torsor.motion.hermite import interpolate
from torsor.validate import array, integer, real_array, shown

Array = NDArray[Any]

MOST_NUMBERS = 2**23  # coordinates that are interpolated at a time


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A motion of a model: one row per time.

    t (m,)   q (m, nq)   v (m, nv)   a (m, nv) accelerations   tau (m, nv) the sum of all forces on the joints
    `about` says how it was made.
    """

    model: Model
    t: Array = field(repr=False)
    q: Array = field(repr=False)
    v: Array = field(repr=False)
    a: Array = field(repr=False)
    tau: Array = field(repr=False)
    about: dict[str, Any] = field(default_factory=dict, repr=False)
    dense: Dense | None = field(default=None, repr=False)  # what lies between the rows, if the run kept it

    def __post_init__(self) -> None:
        require_model(self.model)
        if not isinstance(self.about, dict):
            raise ArgumentError(f"about must be a dictionary, not {shown(self.about)}")
        rows, nq, nv = len(np.atleast_1d(array("t", self.t))), self.model.nq, self.model.nv
        shapes = {"t": (rows,), "q": (rows, nq), "v": (rows, nv), "a": (rows, nv), "tau": (rows, nv)}
        for key, shape in shapes.items():
            object.__setattr__(self, key, real_array(key, getattr(self, key), shape))
        if (np.diff(self.t) < 0).any():
            raise ArgumentError("t, the times of the rows, must not decrease")

    def __len__(self) -> int:
        return len(self.t)

    # ---- derived from the rows ----

    @cached_property
    def kinetic_energy(self) -> Array:
        """T (m,)."""
        return dynamics.kinetic_energy(self.model, self.q, self.v)

    @cached_property
    def potential_energy(self) -> Array:
        """The potential of gravity, (m,)."""
        return dynamics.potential_energy(self.model, self.q)

    @cached_property
    def elastic_energy(self) -> Array:
        """The potential of the springs in the model's joints, stiffness (rest [-] q)^2 / 2, (m,)."""
        if not self.model.stiffness.any():
            return np.zeros(len(self))
        rest = self.model.integrate(self.model.neutral(), self.model.rest)
        stretch = self.model.difference(self.q, np.broadcast_to(rest, self.q.shape))
        return (self.model.stiffness * stretch**2).sum(axis=1) / 2

    @property
    def energy(self) -> Array:
        """T + U (m,), without that of springs: constant where no forces act on the joints."""
        return self.kinetic_energy + self.potential_energy

    @cached_property
    def power(self) -> Array:
        """tau . v (m,), the rate at which the forces on the joints do work."""
        return (self.tau * self.v).sum(axis=1)

    @cached_property
    def poses(self) -> Array:
        """The pose of every body in the base frame, (m, n, 4, 4)."""
        return dynamics.body_poses(self.model, self.q)

    @cached_property
    def drift(self) -> Array:
        """The deviation of each quaternion from unit length, (m, number of them): a tree has no other constraint."""
        return Coordinates(self.model).lengths(self.q) - 1

    def path(self, body: str | int = -1) -> Array:
        """The path (m, 3) of the origin of a body or frame, in the base frame; the last body by default."""
        if not isinstance(body, str):
            n, body = self.model.n, integer("body", body)
            if not -n <= body < n:
                raise ArgumentError(f"body {body} is out of range: there are bodies 0 to {n - 1}; or give a name")
            body = self.model.names[body]
        frame = self.model.frame(body)
        if frame.body < 0:
            return np.tile(frame.p, (len(self), 1))
        poses = self.poses[:, frame.body]
        return poses[:, :3, 3] + poses[:, :3, :3] @ frame.p

    def at(self, t: ArrayLike) -> tuple[Array, Array]:
        """q, v at any times within the trajectory.

        A trajectory that `simulate` returned has the continuous extension of every step (see `dense.py`). Others, and
        very long ones, are interpolated by quintics through their rows (see `hermite.py`): rows of a stiff motion must
        then be close to each other.
        """
        times = real_array("t", t)
        if not len(self):
            raise ArgumentError("the trajectory has no rows: there is no time at which it is known")
        if times.size and not (times.min() >= self.t[0] and times.max() <= self.t[-1]):
            raise ArgumentError(f"times must lie in [{self.t[0]:g}, {self.t[-1]:g}], where the trajectory is known")
        flat = times.ravel()
        q, v = np.empty((len(flat), self.model.nq)), np.empty((len(flat), self.model.nv))
        known = np.zeros(len(flat), bool) if self.dense is None else self.dense.fill(flat, q, v)
        rest = np.flatnonzero(~known)
        for own in np.array_split(rest, 1 + rest.size * self.model.nq // MOST_NUMBERS):
            k = self.t.searchsorted(flat[own], "right") - 1
            after = np.minimum(k + 1, len(self) - 1)  # the last row is a step of its own, of zero length
            before, behind = (np.hstack([self.q[i], self.v[i], self.a[i]]) for i in (k, after))
            q[own], v[own] = interpolate(Coordinates(self.model), self.t[k], before, self.t[after], behind, flat[own])
        return q.reshape(*times.shape, self.model.nq), v.reshape(*times.shape, self.model.nv)

    # ---- files ----

    @property
    def columns(self) -> list[str]:
        """The names of the columns of `table`."""
        q, v = (names_of(self.model, what) for what in ("coordinates", "velocities"))
        letters = [
            (f"{letter}.{name}") for letter, names in (("q", q), ("v", v), ("a", v), ("tau", v)) for name in names
        ]
        return ["t", *letters, "kinetic_energy", "potential_energy"]

    @property
    def table(self) -> Array:
        """All rows with their energies, (m, columns)."""
        return np.column_stack([self.t, self.q, self.v, self.a, self.tau, self.kinetic_energy, self.potential_energy])

    def to_csv(self, path: str | Path) -> None:
        """A line of column names, one line per row, with every number to its last bit, and a comment (#) at the end."""
        tables.write_csv(path, self.columns, self.table, self.about)

    def to_parquet(self, path: str | Path) -> None:
        """One column per quantity; needs pyarrow."""
        tables.write_parquet(path, self.columns, self.table, self.about)

    def save(self, path: str | Path) -> None:
        """A trajectory file, checksummed; replaces the file only when it is complete."""
        rows = np.column_stack([self.t, self.q, self.v, self.a, self.tau])
        dense = {} if self.dense is None else self.dense.saved()
        content = recording.beginning(header(self.model, self.about)) + recording.chunk(rows, dense)
        write_whole(path, content, recording.RecordingError)

    @classmethod
    def load(cls, path: str | Path, *, damaged: bool = False) -> Trajectory:
        """The rows of a trajectory file; damaged=True accepts a damaged file and takes the rows before the damage."""
        found = sound(path, damaged)
        if "columns" in found.header:
            raise recording.RecordingError(f"{path} holds chosen quantities, not whole rows: load it with Series.load")
        model, rows = toml.read(found.header["model"], str(path)), found.rows
        try:
            run, memories = cls.from_rows(model, rows, found.header["about"]), [chunk.memory for chunk in found.chunks]
            return replace(run, dense=Dense.restored(Coordinates(model), run.t[0], memories)) if len(rows) else run
        except (ArgumentError, ValueError) as error:
            raise recording.RecordingError(f"{path}: {error}") from None

    @classmethod
    def from_rows(cls, model: Model, rows: Array, about: dict[str, Any]) -> Trajectory:
        """The trajectory of rows (t, q, v, a, tau)."""
        nq, nv = model.nq, model.nv
        if rows.shape[1:] != (1 + nq + 3 * nv,):
            raise ArgumentError(f"rows of {model!r} have {1 + nq + 3 * nv} numbers, not {rows.shape[1:]}")
        t, q, v, a, tau = np.split(rows, np.cumsum([1, nq, nv, nv]), axis=1)
        return cls(model, t[:, 0], q, v, a, tau, about)

    # ---- pictures ----

    def plot(self, path: str | Path | None = None) -> Any:
        """Positions of the joints and energies over time; a matplotlib Figure, written to `path` if given."""
        from torsor.view.plots import plot_trajectory

        return plot_trajectory(self, path)

    def view(self, path: str | Path | None = None) -> Path:
        """A page that plays the motion in 3-D: written to `path`, or opened in the browser."""
        from torsor.view.page import show

        return show(self, path)


def header(model: Model, about: dict[str, Any], columns: Sequence[str] | None = None) -> dict[str, Any]:
    """The header of a trajectory file: the model, how the motion was made, and by which torsor, when.

    `columns` are those of chosen quantities; without them, rows are whole.
    """
    width = 1 + (model.nq + 3 * model.nv if columns is None else len(columns))
    chosen = {} if columns is None else {"columns": [*columns]}
    return {"model": toml.write(model), "model_key": model.key, "width": width, "about": about, **made(), **chosen}


def sound(path: str | Path, damaged: bool) -> recording.Recording:
    """The content of a file, which must not be damaged unless that is allowed."""
    found = recording.read(path)
    if found.damage and not damaged:
        raise recording.RecordingError(
            f"{path} is damaged: {found.damage}. The {len(found.rows)} rows before are well: load with "
            "damaged=True, or resume the run, which computes the rest again."
        )
    return found
