"""Saha 2001, section 1: O(n) accelerations are "smooth functions of time", so that integration takes fewer steps.

The experiment: the same motion integrated with accelerations by U D U', by articulated bodies and through M, for
tolerances down to rounding. The steps that an integrator takes and rejects depend on the method only where the rounding
noise of the accelerations reaches the tolerance. That happens first where M is ill conditioned: here, an arm of light
links with a heavy tip, nearly straight. In the free falls of section 4 it does not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import dynamics, zoo
from torsor.model import Model
from torsor.motion import Simulation
from torsor.theory.papers.figures import COLOURS, panels, write_data
from torsor.theory.papers.rows import AGREES, CONFLICTS, Row

METHODS = ("udut", "articulated", "composite")
TOLERANCES = (1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12)
LIGHT = 1e-4  # mass of a link relative to that of the last
LINKS, BENT, DURATION = 6, 1e-3, 0.05
FEWER = 3.0  # times fewer steps, where the claim shows


class Steps(NamedTuple):
    accepted: int
    rejected: int

    def __str__(self) -> str:
        return f"{self.accepted} ({self.rejected})"


def heavy_tip(n: int = LINKS) -> Model:
    """A planar arm one metre long in which the last link is 1 / LIGHT times heavier than each of the others."""
    length = 1.0 / n
    mass = np.append(np.full(n - 1, LIGHT), 1.0)
    across = length**2 / 12 + 1e-4
    return Model.chain(
        "revolute", n=n, p=[(0.0, 0.0, 0.0), *[(length, 0.0, 0.0)] * (n - 1)], mass=mass, com=(length / 2, 0.0, 0.0),
        inertia=mass[:, None] * np.array([1e-4, across, across]), gravity=(0.0, -9.81, 0.0), name="heavy tip",
    )  # fmt: skip


def steps(model: Model, q0: ArrayLike, duration: float, dynamics: str, tolerance: float, method: str) -> Steps:
    """The steps of an explicit Runge-Kutta pair that were accepted and rejected."""
    options: dict[str, Any] = {"rtol": tolerance, "atol": 1e-3 * tolerance, "dynamics": dynamics}
    simulation = Simulation(model, q0, method=method, **options)
    stepper: Any = simulation.stepper
    before = stepper.evaluations
    accepted = len(simulation.run(duration)) - 1
    attempts = (stepper.evaluations - before) // (len(stepper.stages.Y) - stepper.stages.first)
    return Steps(accepted, attempts - accepted)


@cache
def near_straight(dynamics: str, tolerance: float) -> Steps:
    return steps(heavy_tip(), np.full(LINKS, BENT), DURATION, dynamics, tolerance, "dop853")


def rows() -> Iterator[Row]:
    claim = "fewer steps by O(n)"
    for name, start in (("stanford", [0, np.pi / 2, 0, 0, 0, 0]), ("puma_saha", np.zeros(6))):
        found = {method: steps(zoo.get(name), start, 10.0, method, 1e-6, "rkf45") for method in METHODS}
        same = len({x.accepted for x in found.values()}) == 1
        what = f"steps (rejected), free fall of {name}, tolerance 1e-6"
        yield Row("section 1", what, claim, _words(found), "none", CONFLICTS, same)
    condition = np.linalg.cond(dynamics.mass_matrix(heavy_tip(), np.full(LINKS, BENT)))
    for tolerance in (1e-6, 1e-11):
        found = {method: near_straight(method, tolerance) for method in METHODS}
        ratio = found["composite"].accepted / found["udut"].accepted
        shows = ratio >= FEWER
        verdict = AGREES if tolerance < 1e-9 else CONFLICTS
        what = f"the same, nearly straight, cond M = {condition:.0e}, tolerance {tolerance:g}"
        yield Row("section 1", what, claim, _words(found), f"{ratio:.1f} times", verdict, shows == (verdict == AGREES))


def _words(found: dict[str, Steps]) -> str:
    return ", ".join(f"{method} {count}" for method, count in found.items())


def figure(path: Path) -> Path:
    """Steps over the tolerance, by method."""
    counts: dict[str, NDArray[Any]] = {
        method: np.array([sum(near_straight(method, x)) for x in TOLERANCES]) for method in METHODS
    }
    with panels(path) as (axes,):
        for (method, count), colour in zip(counts.items(), (COLOURS[2], COLOURS[3], COLOURS[1])):
            axes.loglog(TOLERANCES, count, "o-", color=colour, label=method)
        axes.invert_xaxis()
        axes.set(
            title="Steps tried, arm with a heavy tip, nearly straight", xlabel="relative tolerance", ylabel="steps"
        )
        axes.legend(title="accelerations by")
    write_data(path, {"tolerance": TOLERANCES, **counts})
    return path
