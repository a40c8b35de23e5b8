"""Plots of trajectories: small multiples, one panel per joint, and the energies below."""

from __future__ import annotations

import io
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from torsor.dynamics import functions as dynamics
from torsor.errors import ArgumentError
from torsor.files import made, signature, write_whole
from torsor.model.model import Model
from torsor.motion.coordinates import names_of, units_of
from torsor.validate import file_path

if TYPE_CHECKING:
    from torsor.motion.trajectory import Trajectory

Array = NDArray[Any]

# Okabe & Ito's palette, safe for colour-blind readers.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7f7f7f"
STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "lines.linewidth": 1.2,
    "legend.frameon": False, "legend.fontsize": 7, "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth":
    0.5, "savefig.dpi": 200, "mathtext.fontset": "cm",
}  # fmt: skip
MOST_PANELS = 12
SOFTWARE, DESCRIPTION = 0x0131, 0x010E  # tags of Exif
SMOOTH = 1000  # points of a curve
MOST_NUMBERS = 5_000_000  # of all curves together: with very many coordinates, fewer points
MOST_CURVES = 300  # in one panel; of more coordinates, evenly chosen ones


class Drawing(Figure):
    """A figure of Matplotlib that notebooks show by themselves."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=110)
        return content.getvalue()


def plot_trajectory(trajectory: Trajectory, path: str | Path | None = None) -> Figure:
    """Positions and energies over time; many joints share one panel."""
    if trajectory.columns is not None:
        return _plot_quantities(trajectory, path)
    with rc_context(STYLE):  # type: ignore[arg-type]
        names, units = names_of(trajectory.model, "coordinates"), coordinate_units(trajectory.model)
        panels = len(names) if len(names) <= MOST_PANELS else 1
        figure, axes, below = _grid(panels, trajectory.model.name)
        t, q, v = _smooth(trajectory)
        if panels == 1 and len(names) > 1:
            _crowd(axes[0], t, q, units)
        else:
            draw_panels(axes, {"": (t, q)}, names, units)
        _energies(below, trajectory.model, t, q, v)
        return save(figure, path, trajectory.about)


def _plot_quantities(series: Trajectory, path: str | Path | None = None) -> Figure:
    """Every quantity over time; many share one panel."""
    names = series.columns or ()
    if len(names) <= MOST_PANELS:
        lines = {"": (series.t, series.values)}
        return small_multiples(lines, names, [""] * len(names), series.model.name, path, series.about)
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Drawing(figsize=(7.0, 4.0), layout="constrained")
        _crowd(ax := figure.subplots(), series.t, series.values, [""])
        ax.set_title(f"{names[0]} ... {names[-1]}", loc="left")
        ax.set_xlabel(f"time, {series.model.units.time}")
        figure.suptitle(series.model.name, fontsize=10)
        return save(figure, path, series.about)


def draw_panels(axes: Sequence[Axes], series: dict[str, tuple[Array, Array]], names: Sequence[str],
                units: Sequence[str]) -> None:  # fmt: skip
    """One panel per column of the series, labelled (a), (b), ...; each series (t, x) is a line in it."""
    styles = [(BLUE, "-"), (ORANGE, "--"), (GREEN, ":")]
    for k, (ax, name, unit) in enumerate(zip(axes, names, units)):
        for (label, (t, x)), (colour, dash) in zip(series.items(), styles):
            ax.plot(t, x[:, k], dash, color=colour, label=label)
        ax.set_title(f"({chr(ord('a') + k)}) {name}", loc="left")
        ax.set_ylabel(unit)
        if k == 0 and len(series) > 1:
            ax.legend()


def small_multiples(series: dict[str, tuple[Array, Array]], names: Sequence[str], units: Sequence[str],
                    title: str, path: str | Path | None = None,
                    about: dict[str, Any] | None = None) -> Figure:  # fmt: skip
    """A figure with one panel per column of the series."""
    with rc_context(STYLE):  # type: ignore[arg-type]
        columns = min(3, len(names))
        rows = ceil(len(names) / columns)
        figure = Drawing(figsize=(7.0, 0.4 + 1.65 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, sharex=True, squeeze=False)
        draw_panels(list(axes.flat), series, names, units)
        for ax in axes.flat[len(names) :]:
            ax.set_visible(False)
        for ax in axes[-1]:
            ax.set_xlabel("time, s")
        figure.suptitle(title, fontsize=9)
        return save(figure, path, about)


def coordinate_units(model: Model) -> list[str]:
    """The unit of each entry of q."""
    return units_of(model, "coordinates")


def force_units(model: Model) -> list[str]:
    """The unit of each entry of tau."""
    words = model.units
    return [words.force if unit == words.length else words.torque for unit in units_of(model, "velocities")]


def save(figure: Figure, path: str | Path | None, about: dict[str, Any] | None = None) -> Figure:
    """Write a figure to a file; the suffix selects the format: .png, .pdf, .svg, and what else Matplotlib writes.

    Its metadata say which torsor drew it, when, and from a run with which options.
    """
    if path is not None:
        path, content = picture(path), io.BytesIO()
        kind = path.suffix[1:].lower() or "png"
        try:
            figure.savefig(content, format=kind, **_metadata(kind, signature(about)))
        except (ValueError, OSError) as error:
            raise ArgumentError(f"{path}: the plot cannot be written: {error}") from None
        write_whole(path, content.getvalue())
    return figure


def picture(path: Any) -> Path:
    """The path of a picture: .png if it has no suffix, and refused if Matplotlib writes no such files."""
    path = file_path("path", path)
    if not path.suffix and (path.is_file() or not path.exists()):  # a pipe keeps its name
        path = Path(f"{path}.png")
    known = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in known:
        raise ArgumentError(f"{path}: the plot cannot be written as {path.suffix}; choose one of {', '.join(known)}")
    return path


def _metadata(kind: str, words: str) -> dict[str, Any]:
    """The arguments of `savefig` by which a format keeps words; Matplotlib adds the date to .pdf and .svg itself."""
    name = f"torsor {made()['torsor']}"
    if kind in ("jpg", "jpeg", "tif", "tiff", "webp"):
        from PIL.Image import Exif

        exif = Exif()
        exif[SOFTWARE], exif[DESCRIPTION] = name, words
        return {"pil_kwargs": {"exif": exif}}
    known = {
        "png": {"Software": name, "Creation Time": made()["date"], "Description": words},
        "pdf": {"Creator": name, "Subject": words},
        "svg": {"Creator": name, "Description": words},
        "ps": {"Creator": f"{name} {words}"},
        "eps": {"Creator": f"{name} {words}"},
    }
    return {"metadata": known[kind]} if kind in known else {}


def _grid(panels: int, name: str) -> tuple[Figure, list[Axes], Axes]:
    """A figure of panels, three per row, above a wide one."""
    columns = min(3, panels)
    rows = ceil(panels / columns)
    figure = Drawing(figsize=(7.0, 2.2 + (1.5 if panels > 1 else 2.6) * rows), layout="constrained")
    figure.suptitle(name, fontsize=10)
    ratios = [1.0] * rows + [1.1 if panels > 1 else 0.6]
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=ratios)
    axes = [figure.add_subplot(grid[k // columns, k % columns]) for k in range(panels)]
    return figure, axes, figure.add_subplot(grid[-1, :])


def _smooth(trajectory: Trajectory) -> tuple[Array, Array, Array]:
    """t, q, v at enough times for smooth curves, between rows that may be far apart."""
    points = min(SMOOTH, max(2, MOST_NUMBERS // trajectory.model.nq))
    if len(trajectory) >= points or len(trajectory) < 2:
        chosen = slice(None) if points == SMOOTH else np.linspace(0, len(trajectory) - 1, points).astype(int)
        return trajectory.t[chosen], trajectory.q[chosen], trajectory.v[chosen]
    t = np.linspace(trajectory.t[0], trajectory.t[-1], points)
    return t, *trajectory.at(t)


def _crowd(ax: Axes, t: Array, q: Array, units: Sequence[str]) -> None:
    """All coordinates in one panel, coloured from the base (dark) to the tips."""
    drawn = np.unique(np.linspace(0, q.shape[1] - 1, min(MOST_CURVES, q.shape[1])).astype(int))
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(drawn)))
    for k, shade in zip(drawn, shades):
        ax.plot(t, q[:, k], color=shade, linewidth=0.7)
    ax.set_ylabel(", ".join(dict.fromkeys(units)))
    how_many = f"all {len(drawn)}" if len(drawn) == q.shape[1] else f"{len(drawn)} of {q.shape[1]}"
    ax.set_title(f"q, {how_many} coordinates, base dark to tip bright", loc="left")


def _energies(ax: Axes, model: Model, t: Array, q: Array, v: Array) -> None:
    kinetic, potential = dynamics.kinetic_energy(model, q, v), dynamics.potential_energy(model, q)
    ax.plot(t, kinetic, color=BLUE, label="kinetic")
    ax.plot(t, potential, color=ORANGE, label="potential")
    ax.plot(t, kinetic + potential, color=GREY, label="sum", linestyle="--")
    ax.set_xlabel(f"time, {model.units.time}")
    ax.set_ylabel(model.units.energy)
    ax.set_title("energy", loc="left")
    ax.legend(ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))  # beside the title, clear of the curves
