"""R. Featherstone, A. Fijany, A technique for analysing constrained rigid-body systems, and its application to the
constraint force algorithm, 1999: the equations of the change of basis and of the algorithm, and its depth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor import dynamics, lie, zoo
from torsor.model.model import Model
from torsor.parallel.solver import schedule
from torsor.theory.change_of_basis import DualBases, change_of_basis
from torsor.theory.papers.check import Check

Array = NDArray[Any]

HOLDS = 1e-11  # relative: dense algebra on a system with condition number 1e4


class Global(NamedTuple):
    """The matrices of section 4 in link coordinates: I and P (6n x 6n), H (6n x nv), H_perp (6n x 6n - nv)."""

    I: Array
    P: Array
    H: Array
    H_perp: Array


def global_matrices(model: Model, q: Array) -> Global:
    n = model.n
    I, P = np.zeros((2, 6 * n, 6 * n))
    poses = dynamics.body_poses(model, q)
    for i, p in enumerate(model.parent.tolist()):
        rows = slice(6 * i, 6 * i + 6)
        c = lie.hat(model.com[i])
        m = model.mass[i]
        I[rows, rows] = np.block([[model.inertia[i] - m * c @ c, m * c], [-m * c, m * np.eye(3)]])
        P[rows, rows] = np.eye(6)
        if p >= 0:
            P[rows, 6 * p : 6 * p + 6] = -lie.Ad(lie.inverse(poses[i]) @ poses[p])
    H = P @ np.concatenate([dynamics.jacobian(model, q, i) for i in range(n)])
    blocks = []
    for i in range(n):
        rows, columns = slice(6 * i, 6 * i + 6), slice(*model.v_start[i : i + 2])
        perp = np.linalg.svd(H[rows, columns])[0][:, columns.stop - columns.start :]
        blocks.append(np.zeros((6 * n, perp.shape[1])))
        blocks[-1][rows] = perp
    return Global(I, P, H, np.concatenate(blocks, axis=1))


def bases(g: Global) -> DualBases:
    """S1 = P^-1 H and T2 = P^T H_perp in the change of basis of I."""
    return change_of_basis(g.I, np.linalg.solve(g.P, g.H))._replace(T2=g.P.T @ g.H_perp)


def checks() -> Iterator[Check]:
    model = zoo.random_chain(8, 1, joints=None)
    rng = np.random.default_rng(0)
    q, tau = model.random_configuration(rng), rng.normal(size=model.nv)
    g = global_matrices(model, q)
    b = bases(g)
    qdd = dynamics.mass_solve(model, q, tau)
    A = rng.normal(size=g.I.shape)
    I_X = A @ A.T + np.eye(len(A))
    inverse = np.linalg.inv(g.I)
    wrong = g.P.T @ g.H

    def holds(where: str, quantity: str, x: Array, y: Array, fails: bool = False) -> Check:
        error = np.abs(x - y).max() / np.abs(y).max()
        said = "does not hold" if fails else "an identity"
        return Check(where, quantity, said, f"relative difference {error:.0e}", bool((error > HOLDS) == fails))

    fresh = change_of_basis(g.I, b.S1)
    both = np.concatenate([fresh.S1, fresh.S2], axis=1).T @ np.concatenate([fresh.T1, fresh.T2], axis=1)
    yield holds("Eq. 2", "[S1 S2]^T [T1 T2] = 1", both, np.eye(len(both)))
    yield holds("Eq. 3", "M^-1 = active + immobilised", b.active + b.immobilised, inverse)
    yield holds("Eq. 8", "constrained = unconstrained - immobilised", inverse - b.immobilised, b.active)
    yield holds("Eq. 15", "qdd = (H' P'^-1 I P^-1 H)^-1 tau", np.linalg.solve(b.S1.T @ g.I @ b.S1, tau), qdd)
    T = g.P.T @ g.H @ np.linalg.inv(g.H.T @ g.H)
    yield holds("Eq. 16", "with I_X the identity", b.solve(tau, T), qdd)
    yield holds("Eq. 16", "with I_X any positive definite map", b.solve(tau, b.complement(I_X)), qdd)
    yield holds("section 4", "P' H in place of T1', as in Fijany et al. 1995", b.solve(tau, wrong), qdd, fails=True)
    every = dynamics.mass_solve(model, q, tau, method="constraint-force")
    yield holds("section 4", "in O(log n) levels, every joint type", every, qdd)
    tree = zoo.random_tree(14, 1)
    q, tau = tree.random_configuration(rng), rng.normal(size=tree.nv)
    every = dynamics.mass_solve(tree, q, tau, method="constraint-force")
    yield holds("section 4", "with side branches", every, dynamics.mass_solve(tree, q, tau))
    n = 2**12  # links
    levels = schedule(zoo.general_arm(n), "mass_solve").depth
    yield Check("abstract", f"O(log n) steps, n = {n}", "O(log n)", f"{levels} levels", levels <= 2 * 12 + 10)


def figures(folder: Path) -> Iterator[Path]:
    """The paper's only figure is a sketch of bases; this plots its claim instead: steps over the length of a chain."""
    import matplotlib.pyplot as plt

    counts = [8, 64, 512, 4096, 32768]
    levels = [schedule(zoo.general_arm(n), "mass_solve").depth for n in counts]
    figure, panel = plt.subplots(figsize=(6, 4), layout="constrained")
    panel.semilogx(counts, levels, "o-", base=2, label="levels of the constraint force algorithm")
    panel.semilogx(counts, 2 * np.log2(counts) + 10, "--", base=2, label="2 log2 n + 10")
    panel.set_xlabel("links")
    panel.set_ylabel("levels")
    panel.legend()
    path = folder / "featherstone1999_levels.png"
    figure.savefig(path, dpi=150)
    plt.close(figure)
    yield path
