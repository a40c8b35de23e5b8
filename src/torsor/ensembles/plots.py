"""Pictures and figures of a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ArgumentError
from torsor.later import Later

if TYPE_CHECKING:
    from torsor.ensembles.study import Study

plots, stats = Later("torsor.view.style"), Later("scipy.stats")

Array = NDArray[Any]

BANDS = ((5, 95, 0.2), (25, 75, 0.35))  # percentiles, and their opacity
MOST_PANELS = 12


def fans(study: Study, quantity: str = "q", path: str | Path | None = None) -> Any:
    """The median of a quantity over time, with bands for 50 % and 90 % of the members."""
    values = study[quantity][study.has_motion]
    if values.ndim < 2 or values.shape[1] != len(study.times):
        raise ArgumentError(f"{quantity!r} has no values over time")
    if not len(values):
        raise ArgumentError("no member is done")
    series = values.reshape(len(values), len(study.times), -1)
    count = min(series.shape[2], MOST_PANELS)
    with plots.style():
        drawing = _fans(study, quantity, series[:, :, :count])
    about = {key: x for key, x in study.group.attributes.items() if key not in ("model", "status")}
    return plots.save(drawing, path, {"study": about})


def _fans(study: Study, quantity: str, series: Array) -> Any:
    """The panels of series (members, times, panels)."""
    count = series.shape[2]
    drawing = plots.Drawing(figsize=(5.2, 1.6 * count + 0.8), layout="constrained")
    for k in range(count):
        axes = drawing.add_subplot(count, 1, k + 1)
        for low, high, dark in BANDS:
            bottom, top = np.percentile(series[:, :, k], (low, high), axis=0)
            axes.fill_between(study.times, bottom, top, alpha=dark, color="C0", lw=0, label=f"{high - low} %")
        axes.plot(study.times, np.median(series[:, :, k], axis=0), color="C0", label="median")
        axes.set_ylabel(f"{quantity}[{k}]" if count > 1 else quantity)
        axes.tick_params(labelbottom=k == count - 1)
    axes.set_xlabel("time, s")
    drawing.axes[0].legend(frameon=False, ncols=3, fontsize="small")
    drawing.suptitle(f"{len(series)} members")
    return drawing


def shares(study: Study, quantity: Array | None = None) -> dict[str, Array]:
    """For each drawn number, the share of the variance of `quantity` (n,) that it explains alone.

    The quantity is expanded in cubic polynomials of the rank of one drawn number at a time: for independent draws these
    are first-order Sobol indices.
    """
    done = study.has_motion
    y = study["q"][:, -1, 0] if quantity is None else np.asarray(quantity, float)
    if y.shape != (study.n,):
        raise ArgumentError(f"the quantity must be one number per member, ({study.n},), not {y.shape}")
    y = y[done] - y[done].mean()
    total = float(y @ y)
    found = {}
    for name in study.group.variables:
        if not name.startswith("vary/"):
            continue
        drawn = study.group.whole(name)[done].reshape(len(y), -1)
        ranks = drawn.argsort(axis=0).argsort(axis=0) / max(1, len(y) - 1) * 2 - 1
        share = []
        for x in ranks.T:
            basis = np.polynomial.legendre.legvander(x, 3)
            fit = basis @ np.linalg.lstsq(basis, y, rcond=None)[0]
            share.append(float(fit @ fit) / total if total else 0.0)
        found[name.removeprefix("vary/")] = np.array(share)
    return found


class Indices(NamedTuple):
    """Sobol indices of a drawn quantity: the share of the variance it explains alone, and with all others."""

    first: Array
    total: Array


def sobol(study: Study, quantity: Array | None = None) -> dict[str, Indices]:
    """The indices of every drawn quantity, by SciPy, for a study with sampling="saltelli"."""
    if study.group.attributes["sampling"] != "saltelli":
        raise ArgumentError("Sobol indices need a study with sampling='saltelli'; sensitivities() takes any")
    y = study["q"][:, -1, 0] if quantity is None else np.asarray(quantity, float)
    if y.shape != (study.n,):
        raise ArgumentError(f"the quantity must be one number per member, ({study.n},), not {y.shape}")
    if not np.isfinite(y).all():
        raise ArgumentError(f"Sobol indices need all members: {int((~np.isfinite(y)).sum())} have no finite value")
    shapes = {name: study.group.variables[name].shape for name in study.group.variables if name.startswith("vary/")}
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    rows = y.reshape(sum(sizes) + 2, -1)
    found = stats.sobol_indices(func={"f_A": rows[:1], "f_B": rows[1:2], "f_AB": rows[2:, None]}, n=rows.shape[1])
    ends = np.cumsum(sizes)[:-1]
    parts = zip(shapes, np.split(np.ravel(found.first_order), ends), np.split(np.ravel(found.total_order), ends))
    return {name.removeprefix("vary/"): Indices(first, total) for name, first, total in parts}
