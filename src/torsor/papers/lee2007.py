"""K. Lee, Y. Wang, G. S. Chirikjian, O(n) mass matrix inversion for serial manipulators and polypeptide chains
using Lie derivatives, 2007: the mass matrices of the appendix and their inverses."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np

from torsor import dynamics
from torsor.model import zoo
from torsor.papers.check import Check, matrix

# Half a unit of the last printed digit; M_66 of the PUMA is an exact tie.
HALF_DIGIT = 5.001e-5
WHERE = {"puma560": "Appendix, PUMA 560", "polypeptide": "Appendix, polypeptide"}


def checks() -> Iterator[Check]:
    printed = tomllib.loads((files(__package__) / "lee2007.toml").read_text(encoding="utf-8"))
    for name, tables in printed.items():
        model = zoo.get(name)
        q = model.neutral()
        inverse = np.array(tables["inverse"])
        digits = np.select([abs(inverse) >= 1000, abs(inverse) >= 100], [0.05, 0.005], 5e-5)
        yield matrix(WHERE[name], "M", tables["mass_matrix"], dynamics.mass_matrix(model, q), HALF_DIGIT)
        yield matrix(WHERE[name], "M^-1", inverse, dynamics.inverse_mass_matrix(model, q), digits)


def figures(folder: Path) -> Iterator[Path]:
    """The paper's figures are drawings of frames; none shows results."""
    return iter(())
