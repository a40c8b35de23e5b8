"""Structure-preserving methods on 10,000 links: the energy error over many steps, and what a step costs.

A thin wire of 100 m hangs by one end and swings, without damping: nothing but the method changes its energy.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from harness import Claim, Report, progress
from stiff import cable

from torsor.simulate import Simulation

LINKS, STEPS, STEP = 10_000, 1_000, 1e-4
EVERY = 10  # steps between two energies
START = 0.3  # rad, from the vertical
BENDING = 1e-3  # N m^2
METHODS = {"euler": 1e-1, "verlet": 1e-3, "variational": 1e-3}  # and the energy error that they may make


def measure(rounds: int) -> Report:
    report = Report("long_run", f"Energy of {LINKS:,} links over {STEPS:,} structure-preserving steps")
    for method, most in METHODS.items():
        progress(method)
        seconds, early, late = swing(method)
        report.claims += [
            Claim(f"{method}: energy error / largest kinetic energy, first half", early, at_most=most),
            Claim(f"{method}: ... second half", late, at_most=most),
            Claim(f"{method}: ns per link and step", 1e9 * seconds / (LINKS * STEPS)),
        ]
        progress("")
    return report


def swing(method: str) -> tuple[float, float, float]:
    """(seconds, energy error in the first and in the second half, relative to the largest kinetic energy)."""
    model = cable(LINKS, BENDING, 0.0)
    q, rest = np.zeros((2, LINKS))
    rest[0] = np.pi / 2  # hanging
    q[0] = np.pi / 2 - START
    keep = ["kinetic_energy", "potential_energy", "elastic_energy"]
    simulation = Simulation(replace(model, rest=rest), q, method=method, step=STEP, every=EVERY, keep=keep)
    began = time.perf_counter()
    run = simulation.run(STEPS * STEP)
    seconds = time.perf_counter() - began
    energy = run.values.sum(axis=1)
    error, middle = np.abs(energy - energy[0]) / run["kinetic_energy"].max(), len(energy) // 2
    return seconds, float(error[:middle].max()), float(error[middle:].max())
