"""K. Lee, G. S. Chirikjian, A new perspective on O(n) mass-matrix inversion for serial revolute manipulators, 2005: the
planar chain of point masses; no numbers are printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from torsor import dynamics
from torsor.fixman.points import relax_planar
from torsor.model import zoo
from torsor.papers.check import Check, identity


def checks() -> Iterator[Check]:
    for n in (2, 5, 20):
        theta = np.random.default_rng(n).uniform(-np.pi, np.pi, n)
        relaxed = relax_planar(np.ones(n), theta, np.ones(n)).inverse()
        usual = np.linalg.inv(dynamics.mass_matrix(zoo.point_chain(n), theta))
        yield identity("Eqs 12-25", f"M^-1 by relaxed lengths, {n} masses", relaxed, usual)


def figures(folder: Path) -> Iterator[Path]:
    """The paper's figures are drawings of the chain."""
    return iter(())
