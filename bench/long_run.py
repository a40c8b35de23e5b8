"""Structure-preserving methods on 10,000 links: the energy error over many steps, and what a step costs.

A wire of 100 m hangs by one end and swings, without damping: nothing but the method changes its energy.  The symplectic
methods take a thin wire and steps that resolve it.  The midpoint rule takes a steel cable, the quickest springs of
which swing dozens of times in one of its steps.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from harness import Claim, Report, progress
from stiff import BENDING, cable

from torsor import Simulation

LINKS = 10_000
START = 0.3  # rad, from the vertical
THIN = 1e-3  # N m^2


class Swing(NamedTuple):
    """One run: the bending stiffness, the steps, and the energy error that the method may make."""

    method: str
    bending: float
    steps: int
    step: float
    every: int  # steps between two energies
    error: float


SWINGS = (
    Swing("symplectic-euler", THIN, 1_000, 1e-4, 10, 1e-1),
    Swing("verlet", THIN, 1_000, 1e-4, 10, 1e-3),
    Swing("variational", THIN, 1_000, 1e-4, 10, 1e-3),
    Swing("midpoint", BENDING, 4_000, 5e-3, 10, 1e-9),
)


def measure(rounds: int) -> Report:
    report = Report("long_run", f"Energy of {LINKS:,} links over thousands of structure-preserving steps")
    for swing in SWINGS:
        progress(swing.method)
        seconds, early, late = swung(swing)
        what = f"{swing.method}, {swing.steps:,} steps of {swing.step:g} s"
        report.claims += [
            Claim(f"{what}: energy error / largest kinetic energy, first half", early, at_most=swing.error),
            Claim(f"{what}: ... second half", late, at_most=swing.error),
            Claim(f"{what}: ns per link and step", 1e9 * seconds / (LINKS * swing.steps)),
        ]
        progress("")
    return report


def swung(swing: Swing) -> tuple[float, float, float]:
    """(seconds, energy error in the first and in the second half, relative to the largest kinetic energy)."""
    model = cable(LINKS, swing.bending, 0.0)
    stiffness, q = model.stiffness.copy(), np.zeros(LINKS)
    stiffness[0], q[0] = 0.0, np.pi / 2 - START  # it hangs by a hinge
    keep = ["kinetic_energy", "potential_energy", "elastic_energy"]
    simulation = Simulation(
        replace(model, stiffness=stiffness), q, method=swing.method, step=swing.step, every=swing.every, keep=keep
    )
    began = time.perf_counter()
    run = simulation.run(swing.steps * swing.step)
    seconds = time.perf_counter() - began
    energy = run.values.sum(axis=1)
    error, middle = np.abs(energy - energy[0]) / run["kinetic_energy"].max(), len(energy) // 2
    return seconds, float(error[:middle].max()), float(error[middle:].max())
