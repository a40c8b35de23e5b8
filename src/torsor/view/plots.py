"""Plots of trajectories: one panel per quantity, unit and limb, with the joints' names and limits; and the energies."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from torsor.dynamics import functions as dynamics
from torsor.errors import ArgumentError
from torsor.model.freedoms import limited_coordinates
from torsor.model.joints import JOINTS
from torsor.model.model import Model
from torsor.model.names import word_list
from torsor.validate import chosen, shown
from torsor.view.limbs import is_floating, limbs
from torsor.view.style import BLUE, GREEN, ORANGE, Drawing, lines, save, style

if TYPE_CHECKING:
    from torsor.motion.trajectory import Trajectory

Array = NDArray[Any]

MOST_PANELS, MOST_LABELS = 12, 8
SMOOTH = 1000  # points of a curve
MOST_NUMBERS = 5_000_000  # of all curves together: with very many coordinates, fewer points
MOST_CURVES = 300  # in one panel; of more coordinates, evenly chosen ones
FLAT = 0.02  # of the range of the energies: a sum that changes less is drawn on its own
NEAR = 0.05  # of the range of a joint: its limits are drawn if it comes so close to them
APART = 0.085  # of the height of a panel: the least distance of labels

QUANTITIES = ("q", "v", "a", "tau", "energy")
ANGLE, LENGTH, NUMBER = "rad", "m", "–"
# Smaller coordinates (degrees, radians, lengths) are rounding errors: drawn as zero, in the middle of such a range.
STILL = {ANGLE: (1e-7, 1.0), LENGTH: (1e-14, 0.05)}
# what an axis says, by quantity and by the unit of the coordinate; {0} are the units of the model
MEASURES = {
    "q": {ANGLE: "angle, rad", LENGTH: "position, {0.length}", NUMBER: "quaternion"},
    "v": {ANGLE: "angular velocity, rad/{0.time}", LENGTH: "velocity, {0.length}/{0.time}"},
    "a": {ANGLE: "angular acceleration, rad/{0.time}²", LENGTH: "acceleration, {0.length}/{0.time}²"},
    "tau": {ANGLE: "torque, {0.torque}", LENGTH: "force, {0.force}"},
}


class Curve(NamedTuple):
    """An entry of q, v, a or tau: its index, its name, and its limits."""

    at: int
    name: str
    limits: tuple[float, float] = (-np.inf, np.inf)


class Panel(NamedTuple):
    """Curves of one quantity, one unit and one limb."""

    title: str
    quantity: str
    unit: str
    label: str
    curves: list[Curve]


def plot_trajectory(run: Trajectory, path: str | Path | None = None, quantities: Sequence[str] = ("q", "energy"), *,
                    joints: Any = None, units: str = "deg", theme: str = "light") -> Figure:  # fmt: skip
    """Quantities over time; see `Trajectory.plot`."""
    if run.columns is not None:
        return _plot_quantities(run, path)
    chosen("units", units, ("deg", "rad"))
    for name in quantities:
        chosen("a quantity of plot", name, QUANTITIES)
    if np.ndim(run.q) > 2:
        one = "Trajectory(run.model, run.t, run.q[0], run.v[0])"
        raise ArgumentError(f"a plot shows one trajectory, not {np.shape(run.q)[:-2]}; {one} is the first of a batch")
    run._need(*(name for name in quantities if name in ("a", "tau")))
    run = run if run.a is not None else run.motion()
    with style(theme):
        t, rows = _smooth(run, quantities)
        panels = [panel for name in quantities if name != "energy" for panel in panels_of(run.model, name, joints)]
        energies = _energies(run.model, rows["q"], rows["v"]) if "energy" in quantities else []
        figure, axes = _grid(len(panels) + len(energies), run.model.name)
        for ax, panel in zip(axes, panels):
            _draw_panel(ax, panel, t, rows[panel.quantity], units, theme)
        for ax, (title, unit, curves) in zip(axes[len(panels) :], energies):
            _draw_curves(ax, t, np.array([*curves.values()]), list(curves), theme)
            ax.set(ylabel=unit)
            ax.set_title(title, loc="left")
        for ax in axes[-_columns(len(axes)) :]:
            ax.set_xlabel(f"time, {run.model.units.time}")
        return save(figure, path, run.about)


# ---- choice of panels ----


def panels_of(model: Model, quantity: str, joints: Any = None) -> list[Panel]:
    """The panels of a quantity; if very many, one for each unit. The motion of a floating base has its own panels."""
    wanted, found = _chosen_bodies(model, joints), limbs(model)
    what = "coordinates" if quantity == "q" else "velocities"
    starts = model.q_start if quantity == "q" else model.v_start
    column = limited_coordinates(model)
    groups: dict[tuple[Any, str], list[Curve]] = {}
    for i in wanted:
        for k, (label, unit) in enumerate(getattr(JOINTS[model.joint[i]], what)):
            at, limits = int(starts[i]) + k, (-np.inf, np.inf)
            if quantity == "q" and at in column:
                v = int(np.flatnonzero(column == at)[0])
                limits = float(model.lower[v]), float(model.upper[v])
            name = model.joint_names[i] + (f".{label}" if label else "")
            limb = "base" if is_floating(model, i) else found.names[found.of[i]] if len(found.names) > 1 else ""
            groups.setdefault((limb, unit), []).append(Curve(at, label if limb == "base" else name, limits))
    if len(groups) > MOST_PANELS:
        merged: dict[tuple[Any, str], list[Curve]] = {}
        for (limb, unit), curves in groups.items():
            merged.setdefault(("base" if limb == "base" else "", unit), []).extend(curves)
        groups = merged
    labels = {unit: text.format(model.units) for unit, text in MEASURES[quantity].items()}
    return [Panel(limb, quantity, unit, labels[unit], curves) for (limb, unit), curves in groups.items()]


def _chosen_bodies(model: Model, joints: Any) -> list[int]:
    """The bodies of joints, given by the names of joints or bodies, or by numbers."""
    if joints is None:
        return list(range(model.n))
    several = [joints] if isinstance(joints, str | int) else list(joints)
    names = list(model.joint_names)
    found = []
    for joint in several:
        if isinstance(joint, str) and joint in names:
            found.append(names.index(joint))
        elif isinstance(joint, str | int | np.integer):
            found.append(model.frame(joint if isinstance(joint, str) else int(joint)).body)
        else:
            raise ArgumentError(f"joints must be names or numbers of joints, not {shown(joint)}")
    if not found or min(found) < 0:
        raise ArgumentError(f"joints = {shown(joints)} names no joint; there are {word_list(names[:MOST_PANELS])}")
    return found


# ---- drawing ----


def _draw_panel(ax: Axes, panel: Panel, t: Array, x: Array, units: str, theme: str) -> None:
    turn = panel.unit == ANGLE and units == "deg" and panel.quantity != "tau"
    scale, label = np.degrees(1.0) if turn else 1.0, panel.label
    y = scale * x[:, [curve.at for curve in panel.curves]].T
    ax.set_ylabel(label.replace("rad", "deg") if turn else label)
    if panel.title:
        ax.set_title(panel.title, loc="left")
    if len(y) > MOST_LABELS:
        _crowd(ax, t, y, [curve.name for curve in panel.curves])
        return
    smallest, half = STILL.get(panel.unit, (0.0, 1.0))
    if panel.quantity == "q" and np.abs(y).max() < smallest:
        ax.set_ylim(-half, half)  # which curves do not change
    _draw_curves(ax, t, y, [curve.name for curve in panel.curves], theme)
    for curve, own, (colour, _) in zip(panel.curves, y, lines(theme)):
        _draw_limits(ax, own, scale * curve.limits[0], scale * curve.limits[1], colour)


def _draw_limits(ax: Axes, y: Array, lower: float, upper: float, colour: str) -> None:
    """A band beyond each limit that a curve reaches or approaches."""
    low, high = ax.get_ylim()
    near = NEAR * (upper - lower) if np.isfinite(upper - lower) else 0.0
    if np.isfinite(lower) and y.min() < lower + near:
        ax.axhspan(min(low, lower) - 0.04 * (high - low), lower, color=colour, alpha=0.12, lw=0)
    if np.isfinite(upper) and y.max() > upper - near:
        ax.axhspan(upper, max(high, upper) + 0.04 * (high - low), color=colour, alpha=0.12, lw=0)


def _draw_curves(ax: Axes, t: Array, y: Array, names: Sequence[str], theme: str) -> None:
    """Curves with their names at the right ends if there are several."""
    for own, (colour, dashes) in zip(y, lines(theme)):
        ax.plot(t, own, color=colour, linestyle=dashes)
    ax.set_xlim(t[0], t[-1] if t[-1] > t[0] else t[0] + 1)
    low, high = ax.get_ylim()
    ends = [float(np.clip((own[-1] - low) / (high - low), 0, 1)) if np.isfinite(own[-1]) else 0.5 for own in y]
    for name, place, (colour, _) in zip(names, _apart(ends), lines(theme)):
        ax.annotate(name, (1.01, place), xycoords="axes fraction", va="center", color=colour, fontsize=6.5)


def _apart(places: Sequence[float]) -> list[float]:
    """Positions from 0 to 1, moved as little as possible to be `APART` from each other."""
    order, found = np.argsort(places), np.array(places, float)
    for _ in range(50):
        gaps = APART - np.diff(found[order])
        close = np.flatnonzero(gaps > 1e-6)
        if not len(close):
            break
        for k in close:
            shift = (APART - (found[order[k + 1]] - found[order[k]])) / 2
            found[order[k]], found[order[k + 1]] = found[order[k]] - shift, found[order[k + 1]] + shift
    return found.tolist()


def _crowd(ax: Axes, t: Array, y: Array, names: Sequence[str]) -> None:
    """Very many curves, coloured from the first (dark) to the last."""
    drawn = np.unique(np.linspace(0, len(y) - 1, min(MOST_CURVES, len(y))).astype(int))
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(drawn)))
    for k, shade in zip(drawn, shades):
        ax.plot(t, y[k], color=shade, linewidth=0.7)
    how_many = f"all {len(drawn)}" if len(drawn) == len(y) else f"{len(drawn)} of {len(y)}"
    before = f"{ax.get_title(loc='left')}: " if ax.get_title(loc="left") else ""
    ax.set_title(f"{before}{how_many} coordinates, {names[0]} (dark) to {names[-1]} (bright)", loc="left")


def _energies(model: Model, q: Array, v: Array) -> list[tuple[str, str, dict[str, Array]]]:
    """The energies; a flat sum gets its own panel, relative to the greatest kinetic energy."""
    kinetic, potential = dynamics.kinetic_energy(model, q, v), dynamics.potential_energy(model, q)
    total, most = kinetic + potential, float(kinetic.max())
    parts = [("energy", f"energy, {model.units.energy}", {"kinetic": kinetic, "potential": potential, "sum": total})]
    if most > 0 and np.ptp(total) < FLAT * most:
        change = (total - total[0]) / most
        parts.append(("change of the sum, of the greatest kinetic energy", "energy, relative", {"sum": change}))
    return parts


def _columns(panels: int) -> int:
    return 1 if panels <= 4 else 2


def _grid(panels: int, name: str) -> tuple[Figure, list[Axes]]:
    """A figure of panels in one or two columns with a common time axis."""
    columns = _columns(panels)
    rows = ceil(panels / columns)
    height = 1.75 if panels > 1 else 3.0
    figure = Drawing(figsize=(5.2 if columns == 1 else 8.0, 0.4 + height * rows), layout="constrained")
    figure.suptitle(name, fontsize=10)
    axes = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for ax in axes[panels:]:
        ax.remove()
    for ax in axes[max(0, panels - columns) : panels]:
        ax.tick_params(labelbottom=True)
    return figure, list(axes[:panels])


def _smooth(run: Trajectory, quantities: Sequence[str]) -> tuple[Array, dict[str, Array]]:
    """t, and rows at enough times for smooth curves, between rows that may be far apart."""
    points = min(SMOOTH, max(2, MOST_NUMBERS // run.model.nq))
    if len(run) >= points or len(run) < 2:
        own = slice(None) if points == SMOOTH else np.linspace(0, len(run) - 1, points).astype(int)
        return run.t[own], {name: getattr(run, name)[own] for name in {"q", "v", *quantities} - {"energy"}}
    t = np.linspace(run.t[0], run.t[-1], points)
    q, v = run.at(t)
    rest = {name: _between(t, run.t, getattr(run, name)) for name in {*quantities} & {"a", "tau"}}
    return t, {"q": q, "v": v, **rest}


def _between(t: Array, rows_at: Array, rows: Array) -> Array:
    return np.stack([np.interp(t, rows_at, x) for x in rows.T], axis=-1)


# ---- chosen quantities, and the papers' figures: one panel for each ----


def _plot_quantities(series: Trajectory, path: str | Path | None = None) -> Figure:
    """Every quantity over time; many share one panel."""
    names = series.columns or ()
    if len(names) <= MOST_PANELS:
        curves = {"": (series.t, series.values)}
        return small_multiples(curves, names, [""] * len(names), series.model.name, path, series.about)
    with style():
        figure = Drawing(figsize=(7.0, 4.0), layout="constrained")
        _crowd(ax := figure.subplots(), series.t, series.values.T, names)
        ax.set_xlabel(f"time, {series.model.units.time}")
        figure.suptitle(series.model.name, fontsize=10)
        return save(figure, path, series.about)


def draw_panels(axes: Sequence[Axes], series: dict[str, tuple[Array, Array]], names: Sequence[str],
                ylabels: Sequence[str]) -> None:  # fmt: skip
    """One panel per column of the series, labelled (a), (b), ...; each series (t, x) is a line in it."""
    styles = [(BLUE, "-"), (ORANGE, "--"), (GREEN, ":")]
    for k, (ax, name, ylabel) in enumerate(zip(axes, names, ylabels)):
        for (label, (t, x)), (colour, dash) in zip(series.items(), styles):
            ax.plot(t, x[:, k], dash, color=colour, label=label)
        ax.set_title(f"({chr(ord('a') + k)}) {name}", loc="left")
        ax.set_ylabel(ylabel)
        if k == 0 and len(series) > 1:
            ax.legend()


def small_multiples(series: dict[str, tuple[Array, Array]], names: Sequence[str], ylabels: Sequence[str],
                    title: str, path: str | Path | None = None,
                    about: dict[str, Any] | None = None) -> Figure:  # fmt: skip
    """A figure with one panel per column of the series."""
    with style():
        columns = min(3, len(names))
        rows = ceil(len(names) / columns)
        figure = Drawing(figsize=(7.0, 0.4 + 1.65 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, sharex=True, squeeze=False)
        draw_panels(list(axes.flat), series, names, ylabels)
        for ax in axes.flat[len(names) :]:
            ax.set_visible(False)
        for ax in axes.flat[max(0, len(names) - columns) : len(names)]:
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("time, s")
        figure.suptitle(title, fontsize=9)
        return save(figure, path, about)


def axis_labels(model: Model, quantity: str) -> list[str]:
    """The axis label for each entry of a quantity."""
    what = "coordinates" if quantity == "q" else "velocities"
    words = {unit: text.format(model.units) for unit, text in MEASURES[quantity].items()}
    return [words[unit] for code in model.joint for _, unit in getattr(JOINTS[code], what)]
