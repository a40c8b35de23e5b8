"""K. Lee, Y. Wang, G. S. Chirikjian, O(n) mass matrix inversion for serial manipulators and polypeptide chains
using Lie derivatives, 2007: the poses of section 4, the mass matrices of the appendix and their inverses."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor import dynamics, zoo
from torsor.model import Model
from torsor.theory.fixman import parameters
from torsor.theory.fixman.rigid import relax, relax_dh
from torsor.theory.fixman.solve import Relaxed
from torsor.theory.papers.check import Check, matrix, numbers
from torsor.theory.papers.times import time_against_n
from torsor.zoo.lee2007 import dh_columns

Array = NDArray[Any]

# Half a unit of the last printed digit; M_66 of the PUMA is an exact tie.
HALF_DIGIT = 5.001e-5
# Half a unit of three decimals; Table II gives its angles to 0.1 degrees only, and some entries are rounded twice.
POSE_DIGITS = {"puma_lee": 5e-4 + 1e-9, "polypeptide": 5.4e-4}
POSES = {"puma_lee": "4.2, PUMA 560", "polypeptide": "4.3, polypeptide"}
WHERE = {"puma_lee": "Appendix, PUMA 560", "polypeptide": "Appendix, polypeptide"}
# The diagonal of M of the chain that the text describes (Table II's angles, full masses and inertias).
FAITHFUL = [1787.13, 737.81, 512.59, 270.15, 143.80, 109.34, 31.97]


def checks() -> Iterator[Check]:
    printed = tomllib.loads((files(__package__) / "lee2007.toml").read_text(encoding="utf-8"))
    for name, tables in printed.items():
        yield matrix(POSES[name], "T_k^c", tables["poses"], mass_centres(name), POSE_DIGITS[name])
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
    """Figure 3: times of M^-1 b on this machine; the others are drawings of frames."""

    def chain(n: int) -> tuple[Model, Array, Array]:
        model = zoo.polypeptide_planar(3 * n // 2)  # n torsions: every third bond is held
        return model, model.random_configuration(n), np.ones(n)

    def dense(model: Model, q: Array, b: Array) -> Array:
        return np.linalg.inv(dynamics.mass_matrix(model, q)) @ b

    def relaxed_chain(model: Model, q: Array, b: Array) -> Array:
        return relax(model, q).solve(b)

    def method(name: str) -> Callable[..., Array]:
        return lambda model, q, b: dynamics.mass_solve(model, q, b, method=name)

    solvers = {"inverse of M": dense, "blocks of H and LAPACK": relaxed_chain,
               "method fixman": method("fixman"), "articulated sweeps": method("articulated")}  # fmt: skip
    yield time_against_n(folder / "lee2007_fig3_times.png", "Polypeptide of n torsions (Fig. 3)", chain, solvers)


def mass_centres(name: str) -> Array:
    """T_k^c = T_{0,1} ... T_{k-1,k} Q_k without its last row, (n, 3, 4)                                  (Eq. 21)"""
    table = dh_table(name)
    pose, result = np.eye(4), []
    for x, com in zip(table["x"], table["com"]):
        pose = pose @ parameters.transform("C", x)
        result.append(np.column_stack([pose[:3, :3], pose[:3, 3] + pose[:3, :3] @ com]))
    return np.array(result)


def dh_table(name: str) -> dict[str, Any]:
    """A chain of the zoo in the paper's form: x (n, 6) in the order of `parameters.NAMES`, mass, com, inertia."""
    columns = dh_columns(name)
    x = np.zeros((len(columns["mass"]), 6))
    x[:, parameters.BETA], x[:, parameters.GAMMA] = np.radians(columns["alpha"]), np.radians(columns["theta"])
    x[:, parameters.B], x[:, parameters.C] = columns["a"], columns["d"]
    inertia = np.array([np.diag(moments) for moments in columns["inertia"]])
    return {"x": x, "mass": np.array(columns["mass"]), "com": np.array(columns["com"]), "inertia": inertia}


def relaxed(name: str, kind: str = "auto") -> Relaxed:
    """A chain of the paper with every beta soft, by the Lie derivatives of section 4.1."""
    return relax_dh(soft="beta", kind=kind, **dh_table(name))


def five_soft(kind: str = "auto") -> Relaxed:
    """The polypeptide with its two peptide bonds held at 180 degrees: beta_3 and beta_6 are hard."""
    table = dh_table("polypeptide")
    table["x"][[2, 5], parameters.BETA] = np.pi
    return relax_dh(soft=[() if k in (2, 5) else "beta" for k in range(7)], kind=kind, **table)
