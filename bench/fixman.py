"""Relaxed constraints: Figures 2 and 3 of Lee et al. redrawn, to n = 400 as printed and to 100,000; growth, digits.

NumPy's solver takes all cores unless OPENBLAS_NUM_THREADS=1 is set, as it should be for one core against one.
"""

from __future__ import annotations

import numpy as np
from harness import Claim, Contender, Report, race

import torsor as ts
from torsor import lie
from torsor.algorithms import fixman
from torsor.backends.cpu import compile_program
from torsor.dynamics.fixman.points import planar_positions, relax_planar
from torsor.dynamics.fixman.rigid import relax

PRINTED = (50, 100, 200, 400)  # the papers' figures end at 400
DENSE = 2_000  # links at most, where M is formed
SIZES = (*PRINTED, 1_000, DENSE, 10_000, 100_000)
SHORT, LONG = 1_000, 100_000  # between which growth is measured
DIGITS = 10_000
CONDITION = 1e-5  # how far a solve with M itself may be from the sweeps: its condition grows with n^4

DENSE_NAME, RELAXED, BANDED, ARTICULATED = (
    "NumPy: M and np.linalg.solve", "torsor fixman", "torsor fixman, blocks and LAPACK", "torsor articulated",
)  # fmt: skip


def measure(rounds: int) -> Report:
    report = Report("fixman", "M^-1 b of one chain: polypeptide of n torsions (Fig. 3), planar point masses (Fig. 2)")
    for n in SIZES:
        report.rows += race(f"polypeptide, n = {n}", _polypeptide(n), unit="a solve", rounds=rounds)
    for n in SIZES:
        report.rows += race(f"point masses, n = {n}", _points(n), unit="a solve", rounds=rounds)
    report.claims += [*_growth(rounds), *_errors()]
    return report


def polypeptide(n: int) -> ts.Model:
    """Of n torsions: two of three bonds turn, the third is a peptide bond."""
    model = ts.zoo.polypeptide_planar(3 * n // 2)
    assert model.nv == n
    return model


def _polypeptide(n: int) -> list[Contender]:
    model = polypeptide(n)
    rng = np.random.default_rng(n)
    sets = [(model.random_configuration(rng), rng.normal(size=n)) for _ in range(3)]
    target = 50.0 if n == DENSE else None
    dense = [Contender(DENSE_NAME, lambda q, b: np.linalg.solve(dense_mass_matrix(model, q), b), sets)]
    return [
        *(dense if n <= DENSE else []),
        Contender(ARTICULATED, lambda q, b: ts.mass_solve(model, q, b, method="articulated"), sets,
                  tolerance=CONDITION),
        Contender(RELAXED, lambda q, b: ts.mass_solve(model, q, b, method="fixman"), sets, target=target,
                  tolerance=CONDITION),
        Contender(BANDED, lambda q, b: relax(model, q).solve(b), sets, tolerance=CONDITION),
    ]  # fmt: skip


def dense_mass_matrix(model: ts.Model, q: np.ndarray) -> np.ndarray:
    """M by composite bodies in the base frame, a few whole-array operations: as fast as NumPy can form it."""
    T = ts.body_poses(model, q)
    back = lie.Ad(lie.inverse(T))
    S = np.einsum("nij,nj->ni", lie.Ad(T), np.concatenate([model.axis, np.zeros((model.n, 3))], axis=1))
    C = lie.hat(model.com)
    m = model.mass[:, None, None]
    J = np.zeros((model.n, 6, 6))
    J[:, :3, :3], J[:, :3, 3:], J[:, 3:, :3] = model.inertia - m * C @ C, m * C, -m * C
    J[:, 3:, 3:] = m * np.eye(3)
    composite = np.cumsum((back.swapaxes(1, 2) @ J @ back)[::-1], axis=0)[::-1]
    M = S @ np.einsum("nij,nj->in", composite, S)  # right above the diagonal: body j carries no more than I_j
    return np.triu(M) + np.triu(M, 1).T


def _points(n: int) -> list[Contender]:
    rng = np.random.default_rng(n)
    mass, L = np.ones(n), np.ones(n)
    sets = [(rng.uniform(-1, 1, n), rng.normal(size=n)) for _ in range(3)]
    model = ts.zoo.point_chain(n)
    dense = [Contender(DENSE_NAME, lambda theta, b: np.linalg.solve(_planar_mass_matrix(mass, theta, L), b), sets)]
    return [
        *(dense if n <= DENSE else []),
        Contender(ARTICULATED, ts.compile(model, ts.mass_solve), sets, tolerance=CONDITION),
        Contender(BANDED, lambda theta, b: relax_planar(mass, theta, L).solve(b), sets, tolerance=CONDITION),
    ]


def _planar_mass_matrix(mass: np.ndarray, theta: np.ndarray, L: np.ndarray) -> np.ndarray:
    """M_ij = sum m_k (x_k - x_{i-1}) . (x_k - x_{j-1}) over k >= max(i, j)."""
    x = planar_positions(theta, L)
    joints = np.concatenate([np.zeros((1, 2)), x[:-1]])
    total, first, second = (
        np.cumsum(y[::-1], axis=0)[::-1] for y in (mass, mass[:, None] * x, mass * np.square(x).sum(axis=1))
    )
    M = second + total * (joints @ joints.T) - (joints @ first.T) - (joints * first).sum(axis=1)
    return np.triu(M) + np.triu(M, 1).T


def _growth(rounds: int) -> list[Claim]:
    """Exponents between n = 1,000 and n = 100,000: of the time, in the same rounds, and of the operations."""

    def exponent(short: float, long: float) -> float:
        return float(np.log(long / short) / np.log(LONG / SHORT))

    programs = [compile_program(fixman.mass_solve, polypeptide(n), lanes=1) for n in (SHORT, LONG)]
    lengths = []
    for n, program in zip((SHORT, LONG), programs):
        states = [(program.model.random_configuration(k), np.ones(n)) for k in range(3)]
        lengths.append(Contender(f"n = {n}", program, states, answer=None))
    times = [row.min for row in race("growth", lengths, unit="a solve", rounds=max(rounds, 9))]
    counts = [sum(p.operations) for p in programs]
    between = f"n = {SHORT} to {LONG}"
    return [
        Claim(f"growth exponent of the time, {between}", exponent(*times), at_least=0.9, at_most=1.1),
        Claim(f"growth exponent of the operations, {between}", exponent(*counts), at_least=0.9, at_most=1.1),
        Claim("operations a torsion", counts[1] / LONG),
    ]


def _errors() -> list[Claim]:
    """Of M^-1 b, relative to the articulated sweeps."""
    makers = {"chain": ts.zoo.random_chain, "tree": ts.zoo.random_tree, "polypeptide": polypeptide}
    claims = []
    for name, make in makers.items():
        model = make(DIGITS)
        q, b = model.random_configuration(0), np.random.default_rng(0).normal(size=model.nv)
        a, x = (ts.mass_solve(model, q, b, method=m) for m in ("articulated", "fixman"))
        error = float(np.abs(x - a).max() / np.abs(a).max())
        claims.append(Claim(f"n = {DIGITS}, {name}: difference from the articulated sweeps", error, at_most=1e-12))
    return claims
