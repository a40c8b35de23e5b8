"""K. Lee, Y. Wang, G. S. Chirikjian, O(n) mass matrix inversion for serial manipulators and polypeptide chains
using Lie derivatives, 2007: the poses of section 4, the mass matrices of the appendix and their inverses."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from torsor import dynamics
from torsor.fixman import parameters
from torsor.fixman.rigid import relax_dh
from torsor.fixman.solve import Relaxed
from torsor.model import zoo
from torsor.papers.check import Check, matrix, numbers

# Half a unit of the last printed digit; M_66 of the PUMA is an exact tie.
HALF_DIGIT = 5.001e-5
WHERE = {"puma560": "Appendix, PUMA 560", "polypeptide": "Appendix, polypeptide"}
# The diagonal of M of the chain that the text describes (Table II's angles, full masses and inertias).
FAITHFUL = [1787.13, 737.81, 512.59, 270.15, 143.80, 109.34, 31.97]


def checks() -> Iterator[Check]:
    printed = tomllib.loads((files(__package__) / "lee2007.toml").read_text(encoding="utf-8"))
    for name, tables in printed.items():
        model, where = zoo.get(name), WHERE[name]
        q = model.neutral()
        inverse = np.array(tables["inverse"])
        digits = np.select([abs(inverse) >= 1000, abs(inverse) >= 100], [0.05, 0.005], 5e-5)
        yield matrix(where, "M", tables["mass_matrix"], dynamics.mass_matrix(model, q), HALF_DIGIT)
        yield matrix(where, "M^-1", inverse, dynamics.inverse_mass_matrix(model, q), digits)
        schur = relaxed(name).inverse()
        yield matrix(where, "M^-1 = H11 - H12 H22^-1 H12'", inverse, schur, digits)
        yield matrix(where, "M from the blocks of H", tables["mass_matrix"], np.linalg.inv(schur), HALF_DIGIT)
    faithful = np.diag(dynamics.mass_matrix(zoo.polypeptide_faithful(), np.zeros(7)))
    yield numbers("4.3, the chain of the text", "diag M, of an independent program", FAITHFUL, faithful, 0.005)
    held = five_soft()
    yield Check("4.3, beta_3 = beta_6 = 180 deg", "five soft variables", "announced, not printed",
                f"diag M  {'  '.join(f'{x:.4g}' for x in np.diag(np.linalg.inv(held.inverse())))}", None)  # fmt: skip


def figures(folder: Path) -> Iterator[Path]:
    """Figure 3 shows times; bench/fixman.py redraws it. The others are drawings of frames."""
    return iter(())


def dh_table(name: str) -> dict[str, Any]:
    """The chain of the zoo as the paper writes it: x (n, 6) in the order of `parameters.NAMES`, mass, com, inertia."""
    text = (files(zoo.__name__) / f"{name}.toml").read_text(encoding="utf-8")
    links = tomllib.loads(text)["dh"]["link"]
    x = np.zeros((len(links), 6))
    x[:, parameters.BETA] = [np.radians(link["alpha"]) for link in links]
    x[:, parameters.GAMMA] = [np.radians(link["theta"]) for link in links]
    x[:, parameters.B] = [link["a"] for link in links]
    x[:, parameters.C] = [link["d"] for link in links]
    return {
        "x": x,
        "mass": np.array([link["mass"] for link in links]),
        "com": np.array([link["com"] for link in links]),
        "inertia": np.array([np.diag(link["inertia"]) for link in links]),
    }


def relaxed(name: str, kind: str = "auto") -> Relaxed:
    """A chain of the paper with every beta soft, by the Lie derivatives of section 4.1."""
    return relax_dh(soft="beta", kind=kind, **dh_table(name))


def five_soft(kind: str = "auto") -> Relaxed:
    """The polypeptide with its two peptide bonds held at 180 degrees: beta_3 and beta_6 are hard."""
    table = dh_table("polypeptide")
    table["x"][[2, 5], parameters.BETA] = np.pi
    return relax_dh(soft=[() if k in (2, 5) else "beta" for k in range(7)], kind=kind, **table)
