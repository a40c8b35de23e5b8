"""S. R. Ploen, F. C. Park, Coordinate-invariant algorithms for robot dynamics, 1999: recursions, proved equal to the
usual ones; no numbers are printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from torsor import dynamics
from torsor.model import zoo
from torsor.papers.check import Check, identity


def checks() -> Iterator[Check]:
    arm = zoo.general_arm(6)
    q, v, a = np.random.default_rng(0).normal(size=(3, 100, 6))
    tau = dynamics.inverse_dynamics(arm, q, v, a, method="newton-euler")
    ours = dynamics.inverse_dynamics(arm, q, v, a, method="ploen-park")
    yield identity("Eqs 1-6", "inverse dynamics and Newton-Euler", ours, tau)
    yield identity(
        "Eqs 40-68", "forward dynamics inverts it", dynamics.forward_dynamics(arm, q, v, tau, method="ploen-park"), a
    )


def figures(folder: Path) -> Iterator[Path]:
    """None shows results."""
    return iter(())
