"""K. Lee, G. S. Chirikjian, A new perspective on O(n) mass-matrix inversion for serial revolute manipulators, 2005: the
planar chain of point masses; no numbers are printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor import dynamics, zoo
from torsor.theory.fixman.points import relax_planar
from torsor.theory.papers.check import Check, identity
from torsor.theory.papers.times import time_against_n

Array = NDArray[Any]

# Equation 24: how far from the diagonal the blocks of H reach, below and above it.
BANDS = {"H^{theta theta}": (2, 2), "H^{theta L}": (2, 1), "H^{L L}": (1, 1)}


def checks() -> Iterator[Check]:
    for n in (2, 5, 20):
        yield _inverse(f"M^-1 by relaxed lengths, {n} masses", np.random.default_rng(n).uniform(-np.pi, np.pi, n))
    yield _inverse("the same, straight", np.zeros(8))
    yield _inverse("the same, folded", np.full(8, np.pi))
    n = 8
    free = relax_planar(np.ones(n), np.random.default_rng(0).uniform(-np.pi, np.pi, n), np.ones(n))
    for (name, (below, above)), block in zip(BANDS.items(), free.dense()):
        i, j = np.nonzero(block)
        words = f"{int((i - j).max())} below and {int((j - i).max())} above the diagonal"
        printed = f"{below} below and {above} above the diagonal"
        yield Check("Eq. 24", f"{name} reaches", printed, words, words == printed)


def _inverse(what: str, theta: Array) -> Check:
    n = len(theta)
    relaxed = relax_planar(np.ones(n), theta, np.ones(n)).inverse()
    return identity("Eqs 12-25", what, relaxed, np.linalg.inv(dynamics.mass_matrix(zoo.point_chain(n), theta)))


def figures(folder: Path) -> Iterator[Path]:
    """Figure 2: times of M^-1 b on this machine."""

    def chain(n: int) -> tuple[Array, Array]:
        return np.random.default_rng(n).uniform(-1, 1, n), np.ones(n)

    def dense(theta: Array, b: Array) -> Array:
        return np.linalg.inv(dynamics.mass_matrix(zoo.point_chain(len(theta)), theta)) @ b

    def relaxed(theta: Array, b: Array) -> Array:
        return relax_planar(np.ones_like(theta), theta, np.ones_like(theta)).solve(b)

    solvers = {"inverse of M": dense, "blocks of H and LAPACK": relaxed}
    yield time_against_n(folder / "lee2005_fig2_times.png", "Planar chain of n point masses (Fig. 2)", chain, solvers)
