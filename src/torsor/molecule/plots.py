"""Plots of runs of molecules: energies, temperature, sizes; Ramachandran plots; torsions over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torsor.molecule.structure import Array
from torsor.validate import chosen
from torsor.view.style import BLUE, GREY, ORANGE, Drawing, style

if TYPE_CHECKING:
    from torsor.molecule.results import MolecularRun

MOST_CURVES = 8
ANGLES = (-180, -90, 0, 90, 180)


def draw(run: MolecularRun, what: str) -> Figure:
    """A figure: "overview", "ramachandran" or "torsions"."""
    kinds = {"overview": _overview, "ramachandran": _ramachandran, "torsions": _torsions}
    chosen("plot", what, kinds)
    with style():
        figure = Drawing(figsize=(6.4, 4.6), layout="constrained")
        kinds[what](figure, run)
        figure.suptitle(f"{run.torsions.molecule.name}, {run.about['method']}", fontsize=9)
    return figure


def _overview(figure: Figure, run: MolecularRun) -> None:
    panels: list[tuple[str, Array]] = [
        ("potential energy, kJ/mol", run.potential), ("temperature, K", run.temperature),
        ("distance from the start (backbone), nm", run.rmsd(atoms=_some(run))),
        ("radius of gyration, nm", run.radius_of_gyration()),
    ]  # fmt: skip
    for axes, (title, values) in zip(figure.subplots(2, 2, sharex=True).flat, panels):
        for k in range(min(run.replicas, MOST_CURVES)):
            axes.plot(run.t, values[:, k], color=BLUE if run.replicas == 1 else None, lw=0.9)
        axes.set_title(title, loc="left")
        axes.set_xlim(run.t[0], max(run.t[-1], run.t[0] + 1e-12))
    figure.supxlabel("time, ps", fontsize=8)


def _some(run: MolecularRun) -> str:
    """Atoms for the distance: the backbone, or heavy atoms if there is none."""
    return "backbone" if len(run.atoms("backbone")) > 2 else "heavy"


def _ramachandran(figure: Figure, run: MolecularRun) -> None:
    phi, psi = (np.degrees(x) for x in run.phi_psi())
    axes = figure.subplots()
    dense = phi.size > 4000
    if dense:
        axes.hexbin(
            phi.ravel(), psi.ravel(), gridsize=60, bins="log", cmap="Blues", extent=(-180, 180, -180, 180), mincnt=1
        )
    else:
        axes.plot(phi.ravel(), psi.ravel(), ".", ms=2.5, color=BLUE, alpha=0.5)
    axes.plot(phi[0].ravel(), psi[0].ravel(), "o", ms=4, mfc="none", mec=ORANGE, label="start")
    _angles(axes, "phi, degrees", "psi, degrees")
    axes.legend(loc="upper right")


def _angles(axes: Axes, below: str, beside: str) -> None:
    axes.set(xlim=(-180, 180), ylim=(-180, 180), xticks=ANGLES, yticks=ANGLES, xlabel=below, ylabel=beside)
    axes.set_aspect("equal")
    axes.axhline(0, color=GREY, lw=0.5)
    axes.axvline(0, color=GREY, lw=0.5)


def _torsions(figure: Figure, run: MolecularRun) -> None:
    """phi above psi; every residue is a curve of dots, which shows jumps."""
    found: dict[str, Any] = dict(zip(("phi", "psi"), run.phi_psi()))
    for axes, (name, angles) in zip(figure.subplots(2, 1, sharex=True), found.items()):
        degrees = np.degrees(angles[:, 0])
        for k in np.unique(np.linspace(0, degrees.shape[1] - 1, MOST_CURVES).astype(int)) if degrees.shape[1] else ():
            axes.plot(run.t, degrees[:, k], ".", ms=1.5, label=f"{k + 2}")
        axes.set(ylim=(-180, 180), yticks=ANGLES, ylabel=f"{name}, degrees")
        if degrees.shape[1]:
            axes.legend(title="residue", loc="center left", bbox_to_anchor=(1, 0.5), markerscale=4)
    figure.supxlabel("time, ps", fontsize=8)
