"""Series: the result of a simulation that keeps chosen quantities only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ArgumentError
from torsor.files import write_whole
from torsor.formats import toml
from torsor.model.model import Model, require_model
from torsor.motion import recording, tables
from torsor.motion.coordinates import names_of
from torsor.motion.quantities import columns_of
from torsor.motion.trajectory import Trajectory, header, sound
from torsor.validate import real_array, shown

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Series:
    """Chosen quantities of a motion: one row per time.

    t (m,)   values (m, columns)   `columns` names them;  `about` says how it was made
    series["q.link2"] is the column of that name, series["pose.hand"] all columns whose names begin so.
    """

    model: Model
    t: Array = field(repr=False)
    values: Array = field(repr=False)
    columns: Sequence[str] = field(repr=False)
    about: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_model(self.model)
        rows = len(np.atleast_1d(np.asarray(self.t)))
        for key, shape in {"t": (rows,), "values": (rows, len(self.columns))}.items():
            object.__setattr__(self, key, real_array(key, getattr(self, key), shape))

    def __len__(self) -> int:
        return len(self.t)

    def __getitem__(self, name: str) -> Array:
        """A column (m,), or several (m, k) that share the beginning of their names."""
        if name in self.columns:
            return self.values[:, self.columns.index(name)]
        own = [i for i, column in enumerate(self.columns) if isinstance(name, str) and column.startswith(f"{name}.")]
        if len(own) > 1:  # of joints "arm" and "arm.hand", the columns of "arm" only
            exact = {*columns_of(self.model, name)}
            own = [i for i in own if self.columns[i] in exact] if exact else own
        if not own:
            few = ", ".join(self.columns[:6]) + (", ..." if len(self.columns) > 6 else "")
            raise ArgumentError(f"{shown(name)} was not kept; there are {few}")
        return self.values[:, own]

    # ---- files ----

    def to_csv(self, path: str | Path) -> None:
        """A line of column names, one line per row, with every number to its last bit, and a comment (#) at the end."""
        tables.write_csv(path, ["t", *self.columns], np.column_stack([self.t, self.values]), self.about)

    def to_parquet(self, path: str | Path) -> None:
        """One column per quantity; needs pyarrow."""
        tables.write_parquet(path, ["t", *self.columns], np.column_stack([self.t, self.values]), self.about)

    def save(self, path: str | Path) -> None:
        """A trajectory file, checksummed; replaces the file only when it is complete."""
        start = recording.beginning(header(self.model, self.about, self.columns))
        content = start + recording.chunk(np.column_stack([self.t, self.values]), {})
        write_whole(path, content, recording.RecordingError)

    @classmethod
    def load(cls, path: str | Path, *, damaged: bool = False) -> Series:
        """The rows of a file of chosen quantities; damaged=True accepts a damaged file and takes what is before."""
        found = sound(path, damaged)
        columns = found.header.get("columns")
        if not isinstance(columns, list):
            raise recording.RecordingError(f"{path} holds whole rows: load it with Trajectory.load")
        if len(columns) != found.header["width"] - 1:
            raise recording.RecordingError(f"{path} is damaged: it has not as many names as columns")
        model, rows = toml.read(found.header["model"], str(path)), found.rows
        return cls(model, rows[:, 0], rows[:, 1:], columns, found.header["about"])

    # ---- pictures ----

    def plot(self, path: str | Path | None = None) -> Any:
        """Every column over time; a matplotlib Figure, written to `path` if given."""
        from torsor.view.plots import plot_series

        return plot_series(self, path)

    def view(self, path: str | Path | None = None) -> Path:
        """A page that plays the motion in 3-D, if all of q was kept."""
        from torsor.view.page import show

        return show(self.motion(), path)

    def motion(self) -> Trajectory:
        """The configurations as a trajectory; its velocities are those of straight lines from row to row."""
        names = [f"q.{name}" for name in names_of(self.model, "coordinates")]
        if not {*names} <= {*self.columns}:
            raise ArgumentError(f"a motion needs all {self.model.nq} coordinates: keep 'q'")
        q, v = self["q"], np.zeros((len(self), self.model.nv))
        if len(self) > 1:
            v[1:] = self.model.difference(q[:-1], q[1:]) / np.maximum(np.diff(self.t), 1e-300)[:, None]
            v[0] = v[1]
            v[1:-1] = (v[1:-1] + v[2:]) / 2
        still = np.zeros_like(v)
        return Trajectory(self.model, self.t, q, v, still, still, self.about)
