"""Trajectory, the result of simulations and rollouts: times, states, and quantities derived from them on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.dynamics import functions as dynamics
from torsor.dynamics.calls import gpu_array
from torsor.errors import ArgumentError
from torsor.files import made, write_whole
from torsor.formats import toml
from torsor.later import Later
from torsor.model.batch import ModelBatch, machine_of
from torsor.model.model import Model, require_model
from torsor.motion import recording, tables
from torsor.motion.coordinates import Coordinates, names_of
from torsor.motion.dense import Dense
from torsor.motion.hermite import interpolate
from torsor.motion.quantities import ROWS, SCALARS, columns_of, quantity
from torsor.validate import array, integer, real_array, shown

plots, page = Later("torsor.view.plots"), Later("torsor.view.page")
movies = Later("torsor.view.movies")

Array = NDArray[Any]

MOST_NUMBERS = 2**23  # coordinates that are interpolated at a time


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """Hold a motion: one row per time, and quantities derived from the rows by name.

    `run["pose.hand"]` computes a quantity by its name: "q", "v.NAME", "pose.NAME", "position.NAME", "energy", ... A
    rollout has batch axes before the rows: q (..., m, nq), v (..., m, nv), and no a and tau.

    Parameters
    ----------
    model : Model
        The machine.
    t : (m,) array_like
        Times, in s.
    q : (..., m, nq) array_like, optional
        Configurations.
    v : (..., m, nv) array_like, optional
        Velocities, in rad/s and m/s.
    a : (m, nv) array_like, optional
        Accelerations, in rad/s^2 and m/s^2.
    tau : (m, nv) array_like, optional
        The sum of all forces, as torques at the joints, in N m and N.
    about : dict, optional
        How the motion was made.
    dense : Dense, optional
        The motion between the rows, if the run kept it.
    columns : sequence of str, optional
        Names of chosen quantities; q, v, a and tau are then None unless they are among them.
    values : (m, k) array_like, optional
        The chosen quantities.
    stop_time : (...) ndarray, optional
        When each trajectory of a rollout first stopped, in s; NaN if it did not.
    stop_reason : (..., m) ndarray, optional
        The number of the stop, 1 for the first, 0 for none; with resets, the last stop since the row before.
    batch : ModelBatch, optional
        The machines that moved, if they differ.

    Raises
    ------
    ArgumentError
        The shapes do not match, or the times decrease.

    Examples
    --------
    >>> import torsor as ts
    >>> run = ts.simulate(ts.zoo.pendulum(), [1.0], duration=1.0, dt=0.25)
    >>> run
    Trajectory(pendulum, 5 rows, 0 to 1 s)
    >>> print(run["position.tip"][0].round(3))
    [-0.841  0.    -0.54 ]
    """

    model: Model
    t: Array
    q: Any = None
    v: Any = None
    a: Any = None
    tau: Any = None
    about: dict[str, Any] = field(default_factory=dict)
    dense: Dense | None = None  # the motion between the rows, if the run kept it
    columns: Sequence[str] | None = None
    values: Any = None
    stop_time: Any = None
    stop_reason: Any = None
    batch: ModelBatch | None = None

    def __post_init__(self) -> None:
        require_model(self.model)
        if not isinstance(self.about, dict):
            raise ArgumentError(f"about must be a dictionary, not {shown(self.about)}")
        if self.a is None and self.columns is None:  # states of a rollout, which may diverge, in their own precision
            return
        rows, nq, nv = len(np.atleast_1d(array("t", self.t))), self.model.nq, self.model.nv
        shapes = {"t": (rows,), "q": (rows, nq), "v": (rows, nv), "a": (rows, nv), "tau": (rows, nv)}
        if self.columns is not None:
            shapes["values"] = rows, len(self.columns)
        for key, shape in shapes.items():
            if (x := getattr(self, key)) is not None:
                object.__setattr__(self, key, real_array(key, x, shape))
        if (np.diff(self.t) < 0).any():
            raise ArgumentError("t, the times of the rows, must not decrease")

    @classmethod
    def of_states(cls, machine: Model | ModelBatch, t: Array, q: Any, v: Any, about: dict[str, Any],
                  **stopped: Any) -> Trajectory:  # fmt: skip
        """Make the trajectories of a rollout.

        Parameters
        ----------
        machine : Model or ModelBatch
            The machine, or one per trajectory.
        t : (m,) ndarray
            Times, in s.
        q : (..., m, nq) ndarray
            Configurations.
        v : (..., m, nv) ndarray
            Velocities, in rad/s and m/s.
        about : dict
            How the motion was made.
        **stopped : (...) or (..., m) ndarray
            `stop_time` and `stop_reason`.

        Returns
        -------
        run : Trajectory
            With batch axes before the rows, without a and tau.
        """
        batch = machine if isinstance(machine, ModelBatch) else None
        return cls(machine_of(machine), t, q, v, about=about, batch=batch, **stopped)

    @classmethod
    def kept(cls, model: Model, t: Array, values: Array, columns: Sequence[str], about: dict[str, Any]) -> Trajectory:
        """Make a trajectory of chosen quantities; it has q, v, a and tau if all their columns are among them.

        Parameters
        ----------
        model : Model
            The machine.
        t : (m,) ndarray
            Times, in s.
        values : (m, k) ndarray
            The quantities, one per column.
        columns : sequence of str
            The names of the columns.
        about : dict
            How the motion was made.

        Returns
        -------
        run : Trajectory
            With `columns` and `values`.
        """
        place = {name: k for k, name in enumerate(columns)}
        whole = {name: [place.get(column) for column in columns_of(model, name)] for name in ROWS}
        known: dict[str, Any] = {name: values[:, np.array(at)] for name, at in whole.items() if None not in at}
        return cls(model, t, **known, about=about, columns=list(columns), values=values)

    def __repr__(self) -> str:
        shape = "" if self.q is None or self.is_on_device or np.ndim(self.q) < 3 else f"{np.shape(self.q)[:-2]} of "
        span = f", {self.t[0]:g} to {self.t[-1]:g} s" if len(self) else ""
        return f"Trajectory({shape}{self.model.name}, {len(self)} rows{span})"

    def __len__(self) -> int:
        return len(self.t)

    @property
    def is_on_device(self) -> bool:
        """Whether the states are on a GPU."""
        return gpu_array(self.q)

    @property
    def machines(self) -> Any:
        """The model, or the batch of models with an axis for the rows, for functions of the rows."""
        if self.batch is None or not self.batch.shape:
            return self.model
        places = {name: len(self.batch.shape) for name in self.batch.varied}
        rows: Any = {name: np.expand_dims(x, places[name]) for name, x in self.batch.varied.items()}
        return ModelBatch(self.model, **rows)

    # ---- derived from the rows ----

    def __getitem__(self, name: str) -> Array:
        """Compute a quantity of every row by its name.

        Parameters
        ----------
        name : str
            "q", "v.link2", "pose.hand", "position.hand", "energy", ..., as in `keep` of `simulate`; if the run kept
            chosen quantities, one of them.

        Returns
        -------
        values : (..., m) or (..., m, k) ndarray
            One column, or several.

        Raises
        ------
        ArgumentError
            There is no such quantity, or the run did not keep it.
        """
        if self.columns is None:
            if not isinstance(name, str):
                raise ArgumentError(f"a quantity has a name, not {shown(name)}")
            found, values = quantity(self.model, name), None
            values = found.values(self)
            return values[..., 0] if len(found.columns) == 1 else values
        if name in self.columns:
            return self.values[:, list(self.columns).index(name)]
        own = [i for i, column in enumerate(self.columns) if isinstance(name, str) and column.startswith(f"{name}.")]
        if len(own) > 1:  # of joints "arm" and "arm.hand", the columns of "arm" only
            exact = {*columns_of(self.model, name)}
            own = [i for i in own if self.columns[i] in exact] if exact else own
        if not own:
            few = ", ".join(self.columns[:6]) + (", ..." if len(self.columns) > 6 else "")
            raise ArgumentError(f"{shown(name)} was not kept; there are {few}")
        return self.values[:, own]

    def _scalar(self, name: str) -> Array:
        if self.columns is not None and name in self.columns:
            return self[name]
        self._need("q", *(["v"] if name in ("kinetic_energy", "energy", "power") else []))
        return SCALARS[name](self)

    def _need(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) is None:
                raise ArgumentError(f"this run did not keep all of {name}: add {name!r} to keep, or leave out keep")

    @cached_property
    def kinetic_energy(self) -> Array:
        """The kinetic energy of every row, (..., m), in J."""
        return self._scalar("kinetic_energy")

    @cached_property
    def potential_energy(self) -> Array:
        """The potential of gravity of every row, (..., m), in J."""
        return self._scalar("potential_energy")

    @cached_property
    def elastic_energy(self) -> Array:
        """The potential of the springs in the model's joints, (..., m), in J."""
        return self._scalar("elastic_energy")

    @property
    def energy(self) -> Array:
        """The kinetic energy and the potential of gravity, (..., m), in J; without the potential of springs.

        It is constant if no forces act on the joints.
        """
        return self.kinetic_energy + self.potential_energy

    @cached_property
    def power(self) -> Array:
        """The rate tau . v at which the forces on the joints do work, (m,), in W."""
        self._need("tau")
        return self._scalar("power")

    @cached_property
    def poses(self) -> Array:
        """The pose of every body in the base's frame, (..., m, n, 4, 4)."""
        self._need("q")
        return dynamics.body_poses(self.machines, self.q)

    @cached_property
    def drift(self) -> Array:
        """The deviation of each quaternion from unit length, (..., m, number of quaternions)."""
        self._need("q")
        return Coordinates(self.model).lengths(self.q) - 1

    def path(self, body: str | int = -1) -> Array:
        """Follow the origin of a body or frame.

        Parameters
        ----------
        body : str or int, default -1
            A body or frame by name, or a body by number; the last body by default.

        Returns
        -------
        path : (..., m, 3) ndarray
            Its positions in the base's frame, in m.

        Raises
        ------
        ArgumentError
            There is no such body or frame.
        """
        if not isinstance(body, str):
            n, body = self.model.n, integer("body", body)
            if not -n <= body < n:
                raise ArgumentError(f"body {body} is out of range: there are bodies 0 to {n - 1}; or give a name")
            body = self.model.names[body]
        return self[f"position.{body}"]

    def at(self, t: ArrayLike) -> tuple[Array, Array]:
        """Interpolate the state at any times between the first row and the last.

        A trajectory from `simulate` has the continuous extension of every step. Others, and very long ones, are
        interpolated by quintics through q, v and a of their rows: for stiff motion, rows must then be close together.

        Parameters
        ----------
        t : (...) array_like
            Times, in s.

        Returns
        -------
        q : (..., nq) ndarray
            Configurations.
        v : (..., nv) ndarray
            Velocities, in rad/s and m/s.

        Raises
        ------
        ArgumentError
            A time lies outside the rows, or the run did not keep q, v and a.
        """
        self._need("q", "v", "a")
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
            after = np.minimum(k + 1, len(self) - 1)  # the last row is a step of zero length
            before, behind = (np.hstack([self.q[i], self.v[i], self.a[i]]) for i in (k, after))
            q[own], v[own] = interpolate(Coordinates(self.model), self.t[k], before, self.t[after], behind, flat[own])
        return q.reshape(*times.shape, self.model.nq), v.reshape(*times.shape, self.model.nv)

    # ---- files ----

    @property
    def names(self) -> list[str]:
        """The names of the columns of `table`: "t", "q.link1", ..."""
        if self.columns is not None:
            return ["t", *self.columns]
        of = {name: names_of(self.model, "coordinates" if name == "q" else "velocities") for name in ROWS}
        return ["t", *(f"{kind}.{x}" for kind in ROWS for x in of[kind]), "kinetic_energy", "potential_energy"]

    @property
    def table(self) -> Array:
        """All rows with their energies, or the chosen quantities, (m, columns)."""
        if self.columns is not None:
            return np.column_stack([self.t, self.values])
        self._need_rows("a table")
        return np.column_stack([self.t, self.q, self.v, self.a, self.tau, self.kinetic_energy, self.potential_energy])

    def _need_rows(self, what: str) -> None:
        if self.a is None or np.ndim(self.q) != 2:
            raise ArgumentError(f"{what} needs one trajectory with rows of q, v, a and tau, as `simulate` gives it")

    def to_csv(self, path: str | Path) -> None:
        """Write a text file: the names of the columns, then one line per row.

        Numbers have all their digits. A comment (#) at the end says how the run was made.

        Parameters
        ----------
        path : str or Path
            The file.
        """
        tables.write_csv(path, self.names, self.table, self.about)

    def to_parquet(self, path: str | Path) -> None:
        """Write a Parquet file with one column per quantity; needs pyarrow (`torsor[parquet]`).

        Parameters
        ----------
        path : str or Path
            The file.
        """
        tables.write_parquet(path, self.names, self.table, self.about)

    def save(self, path: str | Path) -> None:
        """Write a trajectory file with a checksum; it replaces an existing file only when it is complete.

        Parameters
        ----------
        path : str or Path
            The file, usually *.traj; `Trajectory.load` reads it.
        """
        rows, dense = self.table, {} if self.dense is None else self.dense.saved()
        rows = rows if self.columns is not None else rows[:, :-2]
        content = recording.beginning(header(self.model, self.about, self.columns)) + recording.chunk(rows, dense)
        write_whole(path, content, recording.RecordingError)

    @classmethod
    def load(cls, path: str | Path, *, damaged: bool = False) -> Trajectory:
        """Read a trajectory file, from `save` or from a run that was recorded with `file=`.

        Parameters
        ----------
        path : str or Path
            The file.
        damaged : bool, default False
            Accept a damaged file, and take the rows before the damage.

        Returns
        -------
        run : Trajectory
            The motion, with its model.

        Raises
        ------
        RecordingError
            It is not a trajectory file, or it is damaged.
        """
        found = recording.sound(path, damaged)
        model, rows, columns = toml.read(found.header["model"], str(path)), found.rows, found.header.get("columns")
        if columns is not None:
            if not isinstance(columns, list) or len(columns) != found.header["width"] - 1:
                raise recording.RecordingError(f"{path} is damaged: it has not as many names as columns")
            return cls.kept(model, rows[:, 0], rows[:, 1:], columns, found.header["about"])
        try:
            run, memories = cls.from_rows(model, rows, found.header["about"]), [chunk.memory for chunk in found.chunks]
            return replace(run, dense=Dense.restored(Coordinates(model), run.t[0], memories)) if len(rows) else run
        except (ArgumentError, ValueError) as error:
            raise recording.RecordingError(f"{path}: {error}") from None

    @classmethod
    def from_rows(cls, model: Model, rows: Array, about: dict[str, Any]) -> Trajectory:
        """Make a trajectory from rows (t, q, v, a, tau).

        Parameters
        ----------
        model : Model
            The machine.
        rows : (m, 1 + nq + 3 nv) ndarray
            The rows.
        about : dict
            How the motion was made.

        Returns
        -------
        run : Trajectory
            The motion.

        Raises
        ------
        ArgumentError
            The rows do not fit the model.
        """
        nq, nv = model.nq, model.nv
        if rows.shape[1:] != (1 + nq + 3 * nv,):
            raise ArgumentError(f"rows of {model!r} have {1 + nq + 3 * nv} numbers, not {rows.shape[1:]}")
        t, q, v, a, tau = np.split(rows, np.cumsum([1, nq, nv, nv]), axis=1)
        return cls(model, t[:, 0], q, v, a, tau, about)

    # ---- pictures ----

    def plot(self, what: Sequence[str] | str | Path | None = None, path: str | Path | None = None, *,
             joints: Any = None, units: str = "deg", theme: str = "light") -> Any:  # fmt: skip
        """Plot quantities over time, one panel per unit and limb.

        Parameters
        ----------
        what : sequence of str, or Path, optional
            Some of "q", "v", "a", "tau" and "energy"; or a file to write. Default: q and the energy, or the chosen
            quantities that the run kept.
        path : str or Path, optional
            A file to write: .png, .svg or .pdf.
        joints : sequence of str or int, optional
            The joints to draw. Default: all.
        units : str, default "deg"
            Units of angles: "deg" or "rad".
        theme : str, default "light"
            "light" or "dark" background.

        Returns
        -------
        figure : Figure
            A figure of matplotlib; a notebook shows it.

        Raises
        ------
        ArgumentError
            There is no such quantity or joint.
        """
        if isinstance(what, str | Path):
            what, path = None, what
        quantities = ("q", "energy") if what is None else what
        return plots.plot_trajectory(self, path, quantities, joints=joints, units=units, theme=theme)

    def view(self, path: str | Path | None = None) -> Path:
        """Play the motion in the browser, or write the page that plays it.

        The first of many trajectories is drawn as a machine, some of the others as lines.

        Parameters
        ----------
        path : str or Path, optional
            The file to write. Default: a temporary file that is opened in the browser.

        Returns
        -------
        path : Path
            The page, one HTML file.
        """
        return page.show(self._scene(), path)

    def picture(self, path: str | Path, t: float | None = None, *, size: tuple[int, int] = (1280, 800),
                theme: str = "light") -> Path:  # fmt: skip
        """Write a .png picture of the page at one time; needs Chromium or Chrome.

        Parameters
        ----------
        path : str or Path
            The file.
        t : float, optional
            The time, in s. Default: the first time.
        size : tuple of int, default (1280, 800)
            Width and height in pixels.
        theme : str, default "light"
            "light" or "dark".

        Returns
        -------
        path : Path
            The file.
        """
        return movies.picture(self._scene(), path, t, size, theme)

    def movie(self, path: str | Path, *, fps: float | None = None, speed: float = 1.0,
              size: tuple[int, int] = (1280, 800), theme: str = "light") -> Path:  # fmt: skip
        """Write the motion as a .gif or an .mp4 file; needs Chromium or Chrome, and for .mp4 ffmpeg.

        Parameters
        ----------
        path : str or Path
            The file.
        fps : float, optional
            Frames per second. Default: 20 in a .gif, 30 in an .mp4.
        speed : float, default 1.0
            Seconds of the motion per second of the movie.
        size : tuple of int, default (1280, 800)
            Width and height in pixels.
        theme : str, default "light"
            "light" or "dark".

        Returns
        -------
        path : Path
            The file.
        """
        return movies.movie(self._scene(), path, fps, speed, size, theme)

    def _scene(self) -> Any:
        self._need("q")
        if np.ndim(self.q) > 2:
            return page.scene_of_many(self)
        return page.recorded_scene(self)

    def _repr_html_(self) -> str | None:
        """The page that a notebook shows, if this is one motion with whole rows."""
        return page.inline(self) if self.a is not None and np.ndim(self.q) == 2 else None

    def motion(self) -> Trajectory:
        """Add velocities and accelerations that were not kept, for example for the page.

        Velocities come from straight lines between the configurations of rows, accelerations from straight lines
        between velocities.

        Returns
        -------
        run : Trajectory
            The motion with q, v and a, and with torques if they were kept.
        """
        self._need("q")
        steps = np.maximum(np.diff(self.t), 1e-300)[:, None]
        v = self.v
        if v is None:
            v = _at_rows(self.model.difference(self.q[:-1], self.q[1:]) / steps, len(self))
        return Trajectory(
            self.model, self.t, self.q, v, _at_rows(np.diff(v, axis=0) / steps, len(self)), self.tau, self.about
        )


def _at_rows(between: Array, rows: int) -> Array:
    """Rates at rows, from the rates between rows."""
    if rows < 2:
        return np.zeros((rows, between.shape[1]))
    return np.concatenate([between[:1], (between[1:] + between[:-1]) / 2, between[-1:]])


def header(model: Model, about: dict[str, Any], columns: Sequence[str] | None = None) -> dict[str, Any]:
    """The header of a trajectory file: the model, how the motion was made, versions of software, and the date.

    `columns`: the names of chosen quantities; None: whole rows.
    """
    width = 1 + (model.nq + 3 * model.nv if columns is None else len(columns))
    chosen = {} if columns is None else {"columns": [*columns]}
    return {"model": toml.write(model), "model_key": model.key, "width": width, "about": about, **made(), **chosen}
