"""Torsion-angle dynamics of molecules: exact identities, laws of small chains, long runs of Trp-cage, files, costs.

python bench/molecules.py [PART ...]     writes bench/results/molecules_PART.json

Needs torsor[molecule] and MDTraj; for the files of proteins MDAnalysis and MDAnalysisTests.

Parts: identities, chains, folds, soft_angles, soft_energy, dipeptide, dipeptide_openmm, gibbs, cartesian, energy,
openmm, proteins, costs, speed.
Trp-cage is 1L2Y of the PDB (J. W. Neidigh, R. M. Fesinmeyer, N. H. Andersen, Nat. Struct. Biol. 9, 2002), model 1, in
tests/molecules. The ten proteins are files inside wheels of PyPI: MDAnalysisTests, OpenMM, PDBFixer.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, machine, write
from scipy.interpolate import RectBivariateSpline

import torsor as ts
from torsor import molecule
from torsor.molecule import forcefields, polymers
from torsor.molecule.methods import HybridMonteCarlo
from torsor.molecule.mover import Forces, Mover
from torsor.molecule.results import backbone, dihedrals
from torsor.molecule.run import Setting, generators
from torsor.molecule.tree import mass_points, torsion_tree

TRPCAGE = Path(__file__).parents[1] / "tests" / "molecules" / "1l2y.pdb"
SEQUENCE = "NLYIQWLKDGGPSSGRPPPS"  # Trp-cage's, repeated for longer chains
KELVIN = 300.0
KT = molecule.BOLTZMANN * KELVIN
BINS = 36
Rows = Iterator[tuple[str, Any]]  # what a part finds, row by row; the file is written after each


def trpcage() -> molecule.Molecule:
    return molecule.load(TRPCAGE).minimised(1.0)


# Identities ------------------------------------------------------------------------------------------------------


def fourth_order(function: Any, h: float) -> Any:
    """The slope at zero."""
    return (8 * (function(h) - function(-h)) - (function(2 * h) - function(-2 * h))) / (12 * h)


def identities() -> Rows:
    cage = trpcage()
    tree, alone = cage.torsions(), cage.torsions(share=False)
    rng = np.random.default_rng(0)
    q = tree.model.neutral()
    q[7:] = 0.1 * rng.standard_normal(len(q) - 7)
    M, other = ts.mass_matrix(tree.model, q), ts.mass_matrix(alone.model, q)
    potential = cage.potential("Reference")
    tau = tree.points.torques(q, potential(tree.positions(q[None]))[1][0])
    slopes = []
    for k in range(0, tree.model.nv, 3):
        along = np.eye(tree.model.nv)[k]
        slopes.append(
            fourth_order(
                lambda s, along=along: (
                    -float(potential(tree.positions(tree.model.integrate(q, s * along)[None]))[0][0])
                ),
                3e-5,
            )
        )
    found = tau[: tree.model.nv : 3]
    f = rng.standard_normal((len(cage.positions), 3))
    wrenches, poses = np.zeros((tree.model.n, 6)), ts.body_poses(tree.model, q)
    for body, place, force in zip(tree.points.body, tree.points.place, f):
        own = poses[body, :3, :3].T @ force
        wrenches[body] += np.concatenate([np.cross(place, own), own])
    still = np.zeros(tree.model.nv)
    external = -ts.bias_forces(tree.model, q, still, external=wrenches)
    felt = tree.points.torques(q, f)
    yield "mass matrix with and without shared masses, relative", float(np.abs(M - other).max() / np.abs(M).max())
    yield "J'f against fourth-order differences of U, relative", float(np.abs(found - slopes).max() / np.abs(tau).max())
    yield "J'f against external=, relative", float(np.abs(felt - external).max() / np.abs(external).max())
    L = ts.log_det_mass_matrix(tree.model, q)
    yield "log det M against atoms' Cartesian columns", float(abs(L - by_columns(tree, q)))
    yield "bodies", tree.model.n
    yield "mass points per body, at least", min(len(a) for a, _ in counted(tree))


def counted(tree: molecule.Torsions) -> Any:
    one = tree.molecule
    found = torsion_tree(one.structure.without(tree.cut), one.positions, one.mass, tree.soft)
    return mass_points(found.bodies, found.points.body, one.mass)


def by_columns(tree: molecule.Torsions, q: np.ndarray) -> float:
    """log det of sum m J_i' J_i, with the columns of each atom from rotations about bonds: no sweep, no inertia.

    In long doubles: the condition of M is 2e5, and elimination in doubles would lose five digits.
    """
    wide = np.longdouble
    x, mass = tree.positions(q).astype(wide), tree.molecule.mass.astype(wide)
    model, poses = tree.model, ts.body_poses(tree.model, q).astype(wide)
    columns = []
    R, o = poses[0, :3, :3], poses[0, :3, 3]
    columns += [np.cross(R[:, k], x - o) for k in range(3)]
    columns += [np.tile(R[:, k], (len(x), 1)) for k in range(3)]
    for body in range(1, model.n):
        below = {body}
        for k in range(body + 1, model.n):
            if int(model.parent[k]) in below:
                below.add(k)
        moves = np.isin(tree.points.body, list(below))
        axis = poses[body, :3, :3] @ model.axis[body]
        columns.append(np.where(moves[:, None], np.cross(axis, x - poses[body, :3, 3]), 0))
    J, total = np.array([c.ravel() for c in columns]), wide(0)
    M = (J * np.repeat(mass, 3)) @ J.T
    for k in range(len(M)):
        total += np.log(M[k, k])
        M[k + 1 :, k + 1 :] -= np.outer(M[k + 1 :, k], M[k, k + 1 :]) / M[k, k]
    return float(total)


# Laws of chains --------------------------------------------------------------------------------------------------


def chi2(samples: np.ndarray, weight: Any) -> float:
    """Per degree of freedom, of angles against a density on a circle."""
    edges = np.linspace(-np.pi, np.pi, BINS + 1)
    count, _ = np.histogram((samples + np.pi) % (2 * np.pi) - np.pi, edges)
    inside = edges[:-1, None] + (np.arange(20) + 0.5) / 20 * np.diff(edges)[:, None]
    expected = weight(inside).mean(1)
    expected *= count.sum() / expected.sum()
    return float(((count - expected) ** 2 / expected).sum() / (BINS - 1))


def rigid_law(tree: molecule.Torsions, which: int) -> Any:
    """sqrt(det M) of one torsion, averaged over the others by a grid."""
    nv = tree.model.nv - 6
    grid = -np.pi + 2 * np.pi * np.arange(72 if nv > 1 else 720) / (72 if nv > 1 else 720)
    mesh = np.stack(np.meshgrid(*[grid] * nv, indexing="ij"), axis=-1).reshape(-1, nv)
    q = np.tile(tree.model.neutral(), (len(mesh), 1))
    q[:, 7:] = mesh
    L = ts.log_det_mass_matrix(tree.model, q)
    w = np.exp((L - L.max()) / 2).reshape((len(grid),) * nv)
    one = w.sum(axis=tuple(k for k in range(nv) if k != which))
    return lambda a: np.interp(a, np.append(grid, np.pi), np.append(one, one[0]))


def flat(a: np.ndarray) -> np.ndarray:
    return np.ones_like(a)


def chains() -> Rows:
    for n, replicas, frames in ((4, 2500, 22), (6, 2500, 22)):
        tree = polymers.freely_rotating(n)
        nv = tree.model.nv
        law = rigid_law(tree, (n - 4) // 2)
        torsion = 7 + (n - 4) // 2
        start = np.tile(tree.model.neutral(), (replicas, 1))
        start[:, 7:] = np.random.default_rng(2).uniform(-np.pi, np.pi, (replicas, nv - 6))
        for fixman in (False, True):
            right, wrong = (flat, law) if fixman else (law, flat)
            words = f"{n} atoms, {'with' if fixman else 'without'} Fixman"
            run = molecule.langevin(
                tree,
                frames * 0.75,
                step=0.03,
                friction=5.0,
                every=25,
                replicas=replicas,
                seed=1,
                fixman=fixman,
                start=start,
            )
            samples = run.q[3:, :, torsion].ravel()
            yield (
                f"BAOAB, {words}",
                {
                    "chi2 right": chi2(samples, right),
                    "chi2 wrong": chi2(samples, wrong),
                    "samples": len(samples),
                    "kT": float(run.temperature[3:].mean() / KELVIN),
                },
            )
            run = molecule.hmc(
                tree, 2 * frames, step=0.03, steps=6, every=2, replicas=replicas, seed=2, fixman=fixman, start=start
            )
            samples, c = run.q[3:, :, torsion].ravel(), run.counts
            yield (
                f"HMC, {words}",
                {
                    "chi2 right": chi2(samples, right),
                    "chi2 wrong": chi2(samples, wrong),
                    "samples": len(samples),
                    "acceptance": run.acceptance,
                    "exp(-dH/kT)": c["exp(-dH/kT)"] / c["trajectories"],
                    "unsettled": c["unsettled"] / c["trajectories"],
                },
            )
        yield f"<p v>/kT, {n} atoms", equipartition(tree, start)


def equipartition(tree: molecule.Torsions, start: np.ndarray) -> dict[str, float]:
    """The mean of p_k v_k / kT of every freedom, after some steps of BAOAB, in standard errors from 1."""
    setting = Setting(replicas=len(start))
    mover = Mover(tree, None, setting.kT(0.0))
    walkers, found = mover.start(start, generators(setting, 0)), []
    for frame in range(20):
        rng = generators(setting, frame + 1)
        for _ in range(10):
            walkers, _ = mover.langevin_step(walkers, 0.03, np.exp(-0.15), rng)
        if frame >= 4:
            found.append(walkers.p * mover.velocities(walkers) / KT)
    per_replica = np.mean(found, axis=0)
    sigma = per_replica.std(0, ddof=1) / np.sqrt(len(start))
    return {
        "largest distance from 1, sigma": float(np.abs((per_replica.mean(0) - 1) / sigma).max()),
        "largest distance from 1": float(np.abs(per_replica.mean(0) - 1).max()),
    }


def folds(replicas: int = 40000, h: float = 0.03) -> Rows:
    """Drifts of six atoms that do not settle, followed from a short step to where their solution ends."""
    tree = polymers.freely_rotating(6)
    start = np.tile(tree.model.neutral(), (replicas, 1))
    start[:, 7:] = np.random.default_rng(2).uniform(-np.pi, np.pi, (replicas, 3))
    setting = Setting(replicas=replicas, seed=2)
    mover = Mover(tree, None, setting.kT(0.0), fixman=False)
    s = mover.start(start, generators(setting, 0))
    bad = ~mover.drift(s.q, s.p, s.x, h).settled
    q, p, x = s.q[bad], s.p[bad], s.x[bad]
    reached, step, slopes = np.zeros(len(q)), np.full(len(q), h / 30), []
    for _ in range(100):
        found = mover.drift(q, p, x, reached + step)
        good = found.settled
        slopes.append(np.where(good, np.abs(found.x - x).max(1) / step, np.nan))
        reached, x = np.where(good, reached + step, reached), np.where(good[:, None], found.x, x)
        step = np.where(good, step, step / 2)
    each = [row[np.isfinite(row)] for row in np.array(slopes).T]
    yield (
        "six atoms, 30 fs",
        {
            "drifts": replicas,
            "not settled": len(q),
            "their solution ends at, fs": {"least": reached.min() * 1000, "most": reached.max() * 1000},
            "its slope by the step grows by a factor of, at least": float(min(row[-1] / row[1] for row in each)),
            "settled in two halves": int(mover.drifted(s, h)[1][bad].sum()),
        },
    )


# Soft angles and lengths -------------------------------------------------------------------------------------------

MIDDLE, SPRING = -0.4, 20.0  # the cosine of an angle at rest, and its stiffness in kJ/mol
ELASTIC = polymers.Elastic(6200.0, SPRING, angle=float(np.degrees(np.arccos(MIDDLE))))
LIGHT = np.array([40.0, 10.0, 10.0, 40.0])  # amu: det M and det G differ more where the middle of a chain is light


def two_angles(tree: molecule.Torsions, cells: int = 200) -> tuple[np.ndarray, ...]:
    """On a grid of both angles of four atoms: q, the angles, exp(-U/kT) sqrt(det G) and exp(-U/kT) sqrt(det M)."""
    columns, _, at_zero = tree.volume._angle
    grid = np.pi * (np.arange(cells) + 0.5) / cells
    both = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
    q = np.tile(tree.model.neutral(), (len(both), 1))
    q[:, columns.astype(int)] = both - at_zero
    L = ts.log_det_mass_matrix(tree.model, q)
    weight = np.exp(-SPRING / 2 * ((np.cos(both) - MIDDLE) ** 2).sum(-1) / KT)
    return q, grid, weight * np.sin(both).prod(-1), weight * np.exp((L - L.max()) / 2)


def bends(x: np.ndarray) -> np.ndarray:
    """Both angles of four atoms, as numbers from -pi to pi: 2 theta - pi."""
    t = np.diff(x, axis=-2)
    t /= np.linalg.norm(t, axis=-1, keepdims=True)
    return 2 * np.arccos(-(t[..., 1:, :] * t[..., :-1, :]).sum(-1)).ravel() - np.pi


def soft_angles(replicas: int = 2500) -> Rows:
    """Four atoms with soft angles: their law with and without Fixman's potential, by two methods."""
    beads = polymers.freely_rotating(4, angle=ELASTIC.angle).molecule
    tree = replace(beads, mass=LIGHT).torsions("chi angle", hydrogen_mass=None)
    q, grid, stiff, rigid = two_angles(tree)

    def marginal(w: np.ndarray) -> Any:
        ends = 2 * np.concatenate([[0.0], grid, [np.pi]]) - np.pi
        density = np.concatenate([[0.0], w.reshape(len(grid), -1).sum(1), [0.0]])
        return lambda y: np.interp(y, ends, density) + 1e-12 * density.max()

    for fixman in (True, False):
        right, wrong = (stiff, rigid) if fixman else (rigid, stiff)
        start = q[np.random.default_rng(1).choice(len(q), replicas, p=wrong / wrong.sum())]
        common: dict[str, Any] = {
            "replicas": replicas, "seed": 3, "fixman": fixman, "start": start, "potential": ELASTIC
        }  # fmt: skip
        for name, run in (
            ("HMC", molecule.hmc(tree, 42, step=0.016, steps=12, every=3, **common)),
            ("BAOAB", molecule.langevin(tree, 8.96, step=0.008, friction=5.0, every=80, **common)),
        ):
            samples, c = bends(run.positions[5:]), run.counts
            row = {
                "chi2 right": inner_chi2(samples, marginal(right)),
                "chi2 wrong": inner_chi2(samples, marginal(wrong)),
                "samples": len(samples),
            }
            if name == "HMC":
                row["unsettled"] = c["unsettled"] / c["trajectories"]
                row["exp(-dH/kT)"] = c["exp(-dH/kT)"] / (c["trajectories"] - c["unsettled"])
            yield f"{name}, {'with' if fixman else 'without'} Fixman", row


def inner_chi2(samples: np.ndarray, weight: Any, least: float = 20.0) -> float:
    """Per degree of freedom, over the bins of an angle in which samples are expected."""
    edges = np.linspace(-np.pi, np.pi, BINS + 1)
    count, _ = np.histogram(samples, edges)
    expected = weight(edges[:-1, None] + (np.arange(20) + 0.5) / 20 * np.diff(edges)[:, None]).mean(1)
    expected *= count.sum() / expected.sum()
    enough = expected > least
    return float(((count - expected) ** 2 / expected)[enough].sum() / (enough.sum() - 1))


def soft_energy(ps: float = 4.0) -> Rows:
    """Trp-cage at constant energy, from its minimum with velocities of twice 300 K."""
    cage = trpcage()
    for soft, steps in (("angle", (2, 3, 4)), ("angle length", (1, 2))):
        tree = cage.torsions(f"phi psi omega chi {soft}")
        for fs in steps:
            run = molecule.dynamics(tree, ps, step=fs / 1000, every=1, temperature=2 * KELVIN, seed=1, threads=1)
            yield f"torsion {soft}, {fs} fs", energy_error(run) | {"ps": ps, "freedoms": tree.model.nv}


# Alanine dipeptide -----------------------------------------------------------------------------------------------


ANGLES = ("phi", "psi")


def quadrature(tree: molecule.Torsions, potential: Any, n: int) -> tuple[np.ndarray, ...]:
    """On a grid of phi and psi, with 0 at an edge of its cells: q (n * n, nq), U and log det M (n, n)."""
    g = -np.pi + 2 * np.pi * (np.arange(n) + 0.5) / n
    q = np.tile(tree.model.neutral(), (n * n, 1))
    for name, x in zip(ANGLES, np.meshgrid(g, g, indexing="ij")):
        column, at_zero = coordinate(tree, name)
        q[:, column] = np.mod(x.ravel() - at_zero + np.pi, 2 * np.pi) - np.pi
    return q, *(x.reshape(n, n) for x in (potential(tree.positions(q))[0], ts.log_det_mass_matrix(tree.model, q)))


def laws_of(U: np.ndarray, L: np.ndarray, where: np.ndarray) -> dict[str, np.ndarray]:
    """The shares of places by the law of stiff bonds and angles, and by that of rigid ones; none where not `where`."""
    weights = {"flat": np.exp(-(U - U.min()) / KT), "rigid": np.exp(-(U - U.min()) / KT + (L - L.mean()) / 2)}
    return {name: (w * where).ravel() / (w * where).sum() for name, w in weights.items()}


def coordinate(tree: molecule.Torsions, name: str) -> tuple[int, float]:
    """The column of q that turns phi or psi of the dipeptide, behind the seven of the root, and the angle at zero."""
    angle = dihedrals(tree.molecule.positions, chain(tree, name)[None])[0]
    return 6 + list(tree.model.names).index(f"ALA2.{name}"), float(angle)


def chain(tree: molecule.Torsions, name: str) -> np.ndarray:
    """The four atoms of phi or psi."""
    s = tree.molecule.structure.residues
    found = [s[0].atoms["C"], *(s[1].atoms[atom] for atom in ("N", "CA", "C")), s[2].atoms["N"]]
    return np.array(found[ANGLES.index(name) :][:4])


class Surface(Mover):
    """Energies interpolated in phi and psi by quintic splines, so that a million draws take seconds.

    Barriers above `height` are levelled: U -> height tanh(U / height).
    """

    def __init__(self, tree: molecule.Torsions, U: np.ndarray, kT: np.ndarray, fixman: bool, height: float = 80.0):
        super().__init__(tree, None, kT, fixman)
        n, overlap = len(U), 8
        around = np.arange(-overlap, n + overlap)
        g = -np.pi + 2 * np.pi * (around + 0.5) / n
        levelled = height * np.tanh((U - U.min()) / height)
        self.spline = RectBivariateSpline(g, g, levelled[np.ix_(around % n, around % n)], kx=5, ky=5)

    def at(self, q: np.ndarray) -> Forces:
        angles, found = [angles_of(self.torsions, q, name) for name in ANGLES], super().at(q)
        for name, slope in zip(ANGLES, ({"dx": 1}, {"dy": 1})):
            found.tau[:, coordinate(self.torsions, name)[0] - 1] = -self.spline.ev(*angles, **slope)
        return replace(found, U=self.spline.ev(*angles))


def dipeptide() -> Rows:
    """Energies of OpenMM, interpolated."""
    yield from against_quadrature(Surface, 1024)


def dipeptide_openmm() -> Rows:
    """Energies of OpenMM."""
    yield from against_quadrature(lambda tree, U, *rest: Mover(tree, tree.molecule.potential("Reference"), *rest), 512)


def against_quadrature(moved: Any, replicas: int, draws: int = 1000) -> Rows:
    """Alanine dipeptide, phi and psi soft; replicas begin with exact draws, and are independent of each other.

    Places with 0 < phi < 120 degrees are left out: 0.04 % of the law, which a replica enters or leaves once in many
    runs, so that their share would come from the few that began there.
    """
    tree = (
        molecule.from_sequence("ACE-ALA-NME", solvent="vacuum")
        .minimised(1.0)
        .torsions("phi psi", methyl=False, hydrogen_mass=None)
    )
    for n in (48, 96, 192):
        q, U, L = quadrature(tree, tree.molecule.potential("Reference"), n)
        laws = laws_of(U, L, allowed(tree, q).reshape(U.shape))
        yield f"mean of log det M, {n} x {n} cells", {name: float(w @ L.ravel()) for name, w in laws.items()}
    observables = {
        "log det M": lambda tree, q: ts.log_det_mass_matrix(tree.model, q),
        "population of |psi| > 120 degrees": extended,
        "population of phi < -120 degrees": turned_far,
    }
    values = {what: of(tree, q) for what, of in observables.items()}
    for fixman in (True, False):
        begin, method = time.process_time(), HybridMonteCarlo(0.03, 1, 8)
        mover = moved(tree, U, np.full(replicas, KT), fixman)
        laws = laws_of(mover.at(q).U.reshape(U.shape), L, allowed(tree, q).reshape(U.shape))
        right, wrong = (laws[name] for name in (("flat", "rigid") if fixman else ("rigid", "flat")))
        rng = [np.random.default_rng([3, fixman, r]) for r in range(replicas)]
        walkers = mover.start(q[rng[0].choice(len(q), replicas, p=right)], rng)
        count, accepted, unsettled = np.zeros(replicas), 0.0, 0
        total = dict.fromkeys(observables, np.zeros(replicas))
        for draw in range(1, draws + 1):
            walkers, taken, weight = method.draw(mover, walkers, rng)
            accepted, unsettled = accepted + taken.mean(), unsettled + int((weight == 0).sum())
            inside = allowed(tree, walkers.q)
            count = count + inside
            total = {what: x + inside * observables[what](tree, walkers.q) for what, x in total.items()}
            if draw % 100 == 0:
                row = {"draws": draw * replicas, "accepted": accepted / draw, "unsettled": unsettled}
                for what, x in total.items():
                    row[what] = against(x[count > 0] / count[count > 0], values[what], right, wrong)
                yield ("with" if fixman else "without") + " Fixman", row | {"processor, s": time.process_time() - begin}


def against(means: np.ndarray, values: np.ndarray, right: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """Means of independent replicas, in standard errors from the exact means by two laws."""
    mean, error = float(means.mean()), float(means.std(ddof=1) / np.sqrt(len(means)))
    return {
        "z right law": (mean - float(right @ values)) / error,
        "z wrong law": (mean - float(wrong @ values)) / error,
        "mean": mean,
        "error": error,
    }


def angles_of(tree: molecule.Torsions, q: np.ndarray, name: str) -> np.ndarray:
    """phi or psi, from -pi to pi."""
    column, at_zero = coordinate(tree, name)
    return np.mod(q[..., column] + at_zero + np.pi, 2 * np.pi) - np.pi


def allowed(tree: molecule.Torsions, q: np.ndarray) -> np.ndarray:
    """Whether not 0 < phi < 120 degrees."""
    phi = angles_of(tree, q, "phi")
    return (phi < 0) | (phi > 2 * np.pi / 3)


def extended(tree: molecule.Torsions, q: np.ndarray) -> np.ndarray:
    """Whether |psi| > 120 degrees."""
    return np.abs(angles_of(tree, q, "psi")) > 2 * np.pi / 3


def turned_far(tree: molecule.Torsions, q: np.ndarray) -> np.ndarray:
    """Whether -180 < phi < -120 degrees."""
    return angles_of(tree, q, "phi") < -2 * np.pi / 3


def flexible() -> molecule.Molecule:
    return molecule.from_sequence("ACE-ALA-NME", solvent="vacuum").minimised(1.0)


def gibbs(draws: int = 3200, replicas: int = 16) -> Rows:
    """Alanine dipeptide, all flexible: the share of |psi| > 115 degrees by Gibbs sampling."""
    tree = flexible().torsions("phi psi", methyl=False, hydrogen_mass=None)
    run = molecule.gibbs(tree, draws, step=0.03, steps=8, trajectories=4, cartesian=50, cartesian_step=0.001,
                         replicas=replicas, seed=4, platform="Reference")  # fmt: skip
    _, psi = run.phi_psi()
    found = share(psi[draws // 10 :, :, 0])
    yield "population of |psi| > 115 degrees", found | {"draws": draws * replicas, "acceptance": run.acceptance}


def cartesian(ns: float = 1.6, replicas: int = 16) -> Rows:
    """The same by OpenMM alone: its Langevin integrator, steps of 1 fs."""
    import openmm as mm

    peptide, contexts = flexible(), []
    for seed in range(1, replicas + 1):
        integrator = mm.LangevinMiddleIntegrator(KELVIN, 5.0, 0.001)
        integrator.setRandomNumberSeed(seed)
        contexts.append(mm.Context(peptide.system, integrator, mm.Platform.getPlatformByName("Reference")))
        contexts[-1].setPositions(peptide.positions)
        contexts[-1].setVelocitiesToTemperature(KELVIN, seed)
    atoms, series = backbone(peptide.torsions())["psi"], []
    for ps in range(1, int(1000 * ns) + 1):
        for _ in range(10):
            for context in contexts:
                context.getIntegrator().step(100)
            x = [context.getState(positions=True).getPositions(asNumpy=True)._value for context in contexts]
            series.append(dihedrals(np.array(x), atoms)[:, 0])
        if ps % 20 == 0:
            found = share(np.array(series[100:]))  # 10 ps to come to equilibrium
            yield "population of |psi| > 115 degrees", found | {"ns": ps * replicas / 1000}


def share(psi: np.ndarray) -> dict[str, float]:
    """Of |psi| > 115 degrees, (frames, replicas)."""
    found = (np.cos(psi) < np.cos(2.0)).mean(0)
    return {"mean": float(found.mean()), "error": float(found.std(ddof=1) / np.sqrt(len(found)))}


# Long runs of Trp-cage -------------------------------------------------------------------------------------------


def energy_error(run: molecule.MolecularRun) -> dict[str, float]:
    """rms of H about its trend, relative to the rms of the kinetic energy; the trend in kT per ns and freedom."""
    H, K = (run.potential + run.kinetic)[:, 0], run.kinetic[:, 0]
    trend = np.polyfit(run.t, H, 1)
    return {
        "rms energy / rms kinetic": float((H - np.polyval(trend, run.t)).std() / K.std()),
        "drift, kT/ns/freedom": float(trend[0] * 1000 / KT / run.torsions.model.nv),
        "failed steps": run.counts["failed steps"],
        "kelvin": float(run.temperature.mean()),
    }


def energy(ps: float = 20.0, seeds: int = 5) -> Rows:
    cage = trpcage()
    trees = {"all torsions": cage.torsions(), "without hydroxyl groups": cage.torsions(hydroxyl=False)}
    for words, fs in (
        ("all torsions", 8),
        ("all torsions", 12),
        ("without hydroxyl groups", 15),
        ("without hydroxyl groups", 16),
        ("all torsions", 16),
        ("all torsions", 20),
    ):
        rows = []
        for seed in range(seeds):
            run = molecule.dynamics(
                trees[words], ps, step=fs / 1000, every=1, temperature=2 * KELVIN, seed=seed, threads=1
            )
            rows.append(energy_error(run))
        yield f"{words}, {fs} fs", {"ps": ps, "seeds": rows}


def openmm(ps: float = 10.0) -> Rows:
    """The same with OpenMM's constraints of bonds to hydrogen, by velocity Verlet with RATTLE and by its leapfrog."""
    import openmm as mm
    from openmm import app, unit

    cage = trpcage()
    field = forcefields.force_field("ff14SB", "obc")
    for fs, heavy in ((2, None), (4, None), (4, 4.0)):
        system = field.createSystem(
            cage.topology,
            constraints=app.HBonds,
            removeCMMotion=False,
            **({} if heavy is None else {"hydrogenMass": heavy * unit.amu}),
        )
        system.addForce(forcefields.native_obc(system, cage.structure))
        integrator = mm.CustomIntegrator(fs / 1000)
        integrator.setConstraintTolerance(1e-8)
        integrator.addPerDofVariable("x1", 0)
        integrator.addUpdateContextState()
        for line in ("v+0.5*dt*f/m",):
            integrator.addComputePerDof("v", line)
        integrator.addComputePerDof("x", "x+dt*v")
        integrator.addComputePerDof("x1", "x")
        integrator.addConstrainPositions()
        integrator.addComputePerDof("v", "v+0.5*dt*f/m+(x-x1)/dt")
        integrator.addConstrainVelocities()
        context = mm.Context(system, integrator, mm.Platform.getPlatformByName("CPU"), {"Threads": "1"})
        context.setPositions(cage.positions)
        context.applyConstraints(1e-8)
        context.setVelocitiesToTemperature(2 * KELVIN, 1)
        H, K = [], []
        for _ in range(int(ps * 1000 / fs)):
            integrator.step(1)
            state = context.getState(getEnergy=True)
            K.append(state.getKineticEnergy()._value)
            H.append(state.getPotentialEnergy()._value + K[-1])
        t, freedoms = np.arange(len(H)) * fs / 1000, 3 * len(cage.mass) - system.getNumConstraints()
        trend = np.polyfit(t, H, 1)
        yield (
            f"HBonds, H = {heavy or 1:g} amu, {fs} fs",
            {
                "rms energy / rms kinetic": float((H - np.polyval(trend, t)).std() / np.std(K)),
                "drift, kT/ns/freedom": float(trend[0] * 1000 / KT / freedoms),
                "ps": ps,
            },
        )


# Files of ten proteins -------------------------------------------------------------------------------------------

DCD, XTC = 2e-7, 5.1e-4  # nm: single precision of small molecules; the steps of XTC's integers
SINGLE = 2**-23  # its spacing, of places far from the origin: a rounding to write, another to change units

FILES = (
    "MDAnalysisTests/data/mmcif/5PTI.cif.gz",
    "MDAnalysisTests/data/nmr_neopetrosiamide.pdb",
    "MDAnalysisTests/data/adk_open.pdb",
    "MDAnalysisTests/data/1hvr.pdb",
    "MDAnalysisTests/data/4E43.pdb",
    "MDAnalysisTests/data/mmcif/1YJP.cif",
    "MDAnalysisTests/data/merge/2zmm/protein.pdb",
    "MDAnalysisTests/data/dssp/2xdgA.pdb.gz",
    "openmm/app/data/test.pdb",
    "pdbfixer/tests/data/1BHL.pdb",
)


def proteins() -> Rows:
    """The tree of each file, its energy, 1 ps of dynamics, how far S-S bonds open, and its frames read by others."""
    for name in FILES:
        package, _, rest = name.partition("/")
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"{name}: install {package}")
        path = Path(spec.submodule_search_locations[0]) / rest
        begin = time.process_time()
        made = molecule.load(path, gaps="split")
        small = made.minimised(30.0)
        tree = small.torsions()
        run = molecule.dynamics(tree, 1.0, step=0.008, every=5, temperature=2 * KELVIN, threads=1)
        yield (
            path.name,
            {
                "report": list(made.report),
                "atoms": len(made.structure),
                "molecules": int((tree.model.parent < 0).sum()),
                "disulfides": len(tree.cut),
                "torsions": tree.kinds,
                "energy, kJ/mol": small.energy(),
                **energy_error(run),
                "S-S open by at most, nm": float(run.open_bonds().max()),
                "read back, nm": read_back(run),
                "processor, s": time.process_time() - begin,
            },
        )


def read_back(run: molecule.MolecularRun) -> dict[str, float]:
    """The largest error of places in files, as MDTraj and MDAnalysis read them."""
    import MDAnalysis
    import mdtraj

    x, topology, found = run.positions[:, 0], run.torsions.molecule.topology, {}
    with tempfile.TemporaryDirectory() as folder:
        pdb = Path(folder) / "first.pdb"
        run.torsions.molecule.save(pdb)
        for kind, tolerance in ((".dcd", DCD), (".xtc", XTC)):
            path = Path(folder) / f"run{kind}"
            run.save(path)
            frames = MDAnalysis.Universe(pdb, path).trajectory
            for reader, read in (
                ("MDTraj", mdtraj.load(path, top=mdtraj.Topology.from_openmm(topology)).xyz),
                ("MDAnalysis", np.array([frame.positions / 10.0 for frame in frames])),
            ):
                found[f"{kind}, {reader}"] = error = float(np.abs(read - x).max())
                assert error <= max(tolerance, SINGLE * np.abs(x).max()), (kind, reader, error)
    return found


# Costs -----------------------------------------------------------------------------------------------------------


def us(function: Any, count: int) -> dict[str, float]:
    function()
    times = []
    for _ in range(9):
        begin = time.process_time()
        for _ in range(count):
            function()
        times.append((time.process_time() - begin) / count * 1e6)
    return {"min": min(times), "median": float(np.median(times))}


def costs() -> Rows:
    """us of the processor per state."""
    for residues in (20, 76, 160, 300):
        made = molecule.from_sequence((SEQUENCE * 15)[:residues], solvent="vacuum")
        tree = made.torsions()
        rng, row = np.random.default_rng(0), {"bodies": tree.model.n}
        for batch in (1, 64):
            setting = Setting(replicas=batch)
            mover = Mover(tree, None, setting.kT(0.0), fixman=False)
            q = np.tile(tree.model.neutral(), (batch, 1))
            w = mover.start(q, generators(setting, 0))
            f = rng.standard_normal((batch, len(made.mass), 3))
            for _ in range(5):
                w, _ = mover.step(w, 0.01)
            mover.drift.rounds = mover.drift.drifts = 0
            count = 30 if batch == 1 else 2
            for words, function in (
                ("drift", lambda w=w, m=mover: m.drifted(w, 0.01)),
                ("positions", lambda q=q, t=tree: t.positions(q)),
                ("J'f", lambda q=q, f=f, t=tree: t.points.torques(q, f)),
            ):
                row[f"{words}, us per state, batch of {batch}"] = {k: x / batch for k, x in us(function, count).items()}
            row[f"rounds per drift, batch of {batch}"] = mover.drift.rounds / mover.drift.drifts
        yield str(residues), row


def speed() -> Rows:
    """ns per day of Trp-cage, one replica, one thread, interleaved with OpenMM's Langevin at 2 fs; torsor's share."""
    import openmm as mm
    from openmm import app

    cage = trpcage()
    tree, field = cage.torsions(), forcefields.force_field("ff14SB", "obc")
    system = field.createSystem(cage.topology, constraints=app.HBonds, removeCMMotion=False)
    system.addForce(forcefields.native_obc(system, cage.structure))
    integrator = mm.LangevinMiddleIntegrator(KELVIN, 1.0, 0.002)
    context = mm.Context(system, integrator, mm.Platform.getPlatformByName("CPU"), {"Threads": "1"})
    context.setPositions(cage.positions)
    potential, x = cage.potential("CPU", 1), cage.positions[None]
    held = [0 * found for found in potential(x)]

    def still(x: np.ndarray) -> Any:
        return held

    def moved(method: Any, fs: float, potential: Any, steps: int) -> None:
        method(tree, steps * fs / 1000, step=fs / 1000, every=steps, potential=potential, seed=1)

    costs = {
        "torsor, Langevin, 8 fs": (8, 100, lambda: moved(molecule.langevin, 8, potential, 100)),
        "torsor, Langevin, 12 fs": (12, 100, lambda: moved(molecule.langevin, 12, potential, 100)),
        "OpenMM, Langevin, 2 fs": (2, 100, lambda: integrator.step(100)),
        "torsor, Langevin, without forces": (8, 100, lambda: moved(molecule.langevin, 8, still, 100)),
        "torsor, constant energy, without forces": (8, 100, lambda: moved(molecule.dynamics, 8, still, 100)),
        "OBC force": (0, 20, lambda: [potential(x) for _ in range(20)]),
    }  # fmt: skip
    rows: dict[str, list[float]] = {name: [] for name in costs}
    for _ in range(12):
        for name, (_, count, function) in costs.items():
            begin = time.process_time()
            function()
            rows[name].append((time.process_time() - begin) / count * 1e6)
    for name, (fs, _, _) in costs.items():
        least, median = min(rows[name]), float(np.median(rows[name]))
        of = {"us per step, min": least, "us per step, median": median}
        yield name, of | ({"ns per day of the processor": fs / least * 86400} if "fs" in name else {})
    for name in ("Langevin", "constant energy"):
        share = min(rows[f"torsor, {name}, without forces"]) / min(rows["OBC force"])
        yield f"torsor's share, {name}, of the OBC force", share


PARTS = (
    identities,
    chains,
    folds,
    soft_angles,
    soft_energy,
    dipeptide,
    dipeptide_openmm,
    gibbs,
    cartesian,
    energy,
    openmm,
    proteins,
    costs,
    speed,
)


def main() -> None:
    warnings.simplefilter("ignore")
    known = {part.__name__: part for part in PARTS}
    known_packages = ("openmm", "pdbfixer", "PeptideBuilder", "mdtraj")
    packages = {name: metadata.version(name) for name in known_packages if find_spec(name)}
    for name in sys.argv[1:] or known:
        found: dict[str, Any] = {}
        for words, row in known[name]():
            found[words] = row
            print(f"{name}: {words}: {json.dumps(row, indent=1)}", flush=True)
            record = {"name": f"molecules_{name}", "machine": machine(), "packages": packages, "figures": found}
            write(RESULTS / f"molecules_{name}.json", record)


if __name__ == "__main__":
    main()
