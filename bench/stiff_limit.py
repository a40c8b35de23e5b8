"""The force of `ts.fixman_force` against Langevin dynamics of atoms on springs whose stiffness grows.

    python bench/stiff_limit.py            # some minutes; writes results/stiff_limit.json

Atoms move in space by Langevin dynamics (BAOAB); all that joints would hold is held by springs. What rigid joints would
visit with and without the correction is integrated from torsor's determinants and potentials. Histograms of one angle
are compared with that by chi^2 per bin: near 1 if the law is right. No line of the springs' program knows torsor.

    gimbal     a body of four atoms on a pivot: the cosines of one of its axes with those of space
    trimer     three atoms, two bonds: the cosine of the angle
    butane     four atoms, three bonds, two angles held: the torsion, without a potential of its own
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from harness import RESULTS, machine

import torsor as ts

KT, BINS, POINTS = 1.0, 12, 24000
STIFFNESS = (100.0, 300.0)
REPLICAS, RECORDS = 1600, 10  # records far enough apart to know nothing of each other
FORGET = 4  # records at the beginning, which know of the start
SPACING = 3.0  # time between records of Langevin dynamics, friction 1 per mass
STEP = 0.12  # times the period scale sqrt(m / k)


class Springs(NamedTuple):
    """Distances that springs hold: pairs of atoms, and lengths; atom -1 is a fixed point, the origin."""

    pairs: np.ndarray
    lengths: np.ndarray


class Case(NamedTuple):
    mass: np.ndarray
    start: np.ndarray  # (atoms, 3)
    springs: Springs
    angle: Callable[[np.ndarray], np.ndarray]  # (..., atoms, 3) -> (...) within (-1, 1), or an angle
    limits: tuple[float, float]
    model: ts.Model
    places: Callable[[np.ndarray], np.ndarray]  # q (..., nq) -> (..., atoms, 3)
    path: Callable[[np.ndarray], np.ndarray]  # s (m,) in (0, 1) -> q (m, nq): the angle moves, all else rests


# Atoms on springs ------------------------------------------------------------------------------------------------


def langevin(case: Case, k: float, rng: np.random.Generator) -> np.ndarray:
    """Samples of the angle, (RECORDS, REPLICAS): BAOAB with springs of stiffness k."""
    m = case.mass[:, None]
    dt = STEP * np.sqrt(case.mass.min() / k)
    x = np.broadcast_to(case.start, (REPLICAS, *case.start.shape)).copy()
    v = rng.normal(size=x.shape) * np.sqrt(KT / m)
    forget = np.exp(-dt)
    kick = np.sqrt((1 - forget**2) * KT / m)
    a = pull(case.springs, x, k) / m
    every, found = round(SPACING / dt), []
    for step in range(every * (RECORDS + FORGET)):
        v += 0.5 * dt * a
        x += 0.5 * dt * v
        v = forget * v + kick * rng.normal(size=x.shape)
        x += 0.5 * dt * v
        a = pull(case.springs, x, k) / m
        v += 0.5 * dt * a
        if step >= every * FORGET and (step + 1) % every == 0:
            found.append(case.angle(x))
    return np.array(found)


def pull(springs: Springs, x: np.ndarray, k: float) -> np.ndarray:
    """The forces of all springs, (replicas, atoms, 3)."""
    force = np.zeros_like(x)
    for (i, j), length in zip(springs.pairs, springs.lengths):
        apart = x[:, j] - (x[:, i] if i >= 0 else 0.0)
        r = np.linalg.norm(apart, axis=-1, keepdims=True)
        f = k * (length / r - 1) * apart
        force[:, j] += f
        if i >= 0:
            force[:, i] -= f
    return force


# Rigid machines --------------------------------------------------------------------------------------------------

LAWS = {
    "rigid": lambda model, q: np.zeros(len(q)),
    "det M": lambda model, q: 0.5 * KT * ts.log_det_mass_matrix(model, q),
    "right": lambda model, q: ts.fixman_potential(model, q, kT=KT),
}


def expected(case: Case, law: str) -> np.ndarray:
    """The shares of the bins, by the weight sqrt(det M) exp(-potential / kT) that rigid joints have in the long run.

    law   "rigid": no correction;  "det M": (kT/2) log det M, all coordinates alike;  "right": `ts.fixman_potential`
    """
    q = case.path(np.linspace(0, 1, POINTS + 2)[1:-1])
    weight = np.exp(0.5 * ts.log_det_mass_matrix(case.model, q) - LAWS[law](case.model, q) / KT)
    x = case.angle(case.places(q)).reshape(POINTS, -1)[:, 0]
    share = np.histogram(x, BINS, case.limits, weights=weight)[0]
    return share / share.sum()


def chi_square(found: np.ndarray, share: np.ndarray, limits: tuple[float, float]) -> float:
    """Per bin; found (records, replicas, ...). Variances are those between replicas, as records know of each other."""
    low, high = limits
    x = found.reshape(*found.shape[:2], -1)
    bins = np.clip(((x - low) / (high - low) * BINS).astype(int), 0, BINS - 1)
    seen = np.stack([(bins == k).mean(axis=(0, 2)) for k in range(BINS)], axis=-1)  # (replicas, bins)
    return float(((seen.mean(axis=0) - share) ** 2 / (seen.var(axis=0) / len(seen))).mean())


# The three cases -------------------------------------------------------------------------------------------------


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def torsion(x: np.ndarray) -> np.ndarray:
    b1, b2, b3 = (x[..., i + 1, :] - x[..., i, :] for i in range(3))
    n1, n2 = np.cross(b1, b2), np.cross(b2, b3)
    along = np.linalg.norm(b2, axis=-1)
    return np.arctan2((b1 * n2).sum(-1) * along, (n1 * n2).sum(-1))


def pairs_of(start: np.ndarray, pairs: list[tuple[int, int]]) -> Springs:
    lengths = [np.linalg.norm(start[j] - (start[i] if i >= 0 else 0.0)) for i, j in pairs]
    return Springs(np.array(pairs), np.array(lengths))


def gimbal() -> Case:
    """Four atoms about a pivot on a gimbal: its second angle is the latitude of the space-fixed x axis in the body."""
    start = np.array([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [0.6, 0.6, 0.6]])
    mass = np.array([1.0, 1.5, 0.7, 1.0])
    pairs = [(-1, j) for j in range(4)] + [(i, j) for i in range(4) for j in range(i)]
    m, c = mass.sum(), mass @ start / mass.sum()
    r = start - c
    inertia = sum(w * (x @ x * np.eye(3) - np.outer(x, x)) for w, x in zip(mass, r))
    model = ts.Model.chain("gimbal", n=1, mass=m, com=c, inertia=inertia[None], gravity=(0, 0, 0))

    def places(q):
        T = ts.body_poses(model, q)[..., 0, :3, :3]
        return np.einsum("...ij,nj->...ni", T, start)

    def path(s):
        return np.stack([0 * s, (s - 0.5) * np.pi, 0 * s], axis=-1)

    def angle(x):
        return x[..., 2, :] / np.linalg.norm(x[..., 2, :], axis=-1, keepdims=True)

    return Case(mass, start, pairs_of(start, pairs), angle, (-1, 1), model, places, path)


def chain_model(angles: tuple[float, ...], mass: np.ndarray) -> ts.Model:
    """A free rod of atoms 0 and 1; the next atoms hinge on it, or turn about the bond before at a held angle."""
    builder = ts.Model.builder("atoms", gravity=(0, 0, 0), allow_degenerate=True)
    a, b = mass[:2]
    if not angles:  # trimer: the third atom bends
        c, I = a / (a + b), a * b / (a + b)
        builder.add("rod", joint="free", mass=a + b, com=(-c, 0, 0), inertia=(0.0, I, I))
        builder.add("end", parent="rod", axis=(0, 0, 1), mass=mass[2], com=(1.0, 0, 0))
        return builder.build()
    first, second = angles  # butane: atoms 0, 1, 2 are one body, atom 3 turns about the bond from 1 to 2
    body = np.array([[-np.cos(first), np.sin(first), 0], [0, 0, 0], [1.0, 0, 0]])
    c = mass[:3] @ body / mass[:3].sum()
    inertia = sum(w * (x @ x * np.eye(3) - np.outer(x, x)) for w, x in zip(mass[:3], body - c))
    builder.add("body", joint="free", mass=mass[:3].sum(), com=c, inertia=inertia)
    end = (np.cos(second), np.sin(second), 0.0)
    builder.add("end", parent="body", axis=(1, 0, 0), p=(1.0, 0, 0), mass=mass[3], com=end)
    return builder.build()


def trimer() -> Case:
    mass = np.array([1.0, 0.3, 1.0])
    start = np.array([[-1.0, 0, 0], [0, 0, 0], [0, 1.0, 0]])
    model = chain_model((), mass)

    def places(q):
        T = ts.body_poses(model, q)
        return np.stack(
            [T[..., 0, :3, 3] - T[..., 0, :3, 0], T[..., 0, :3, 3], T[..., 1, :3, 3] + T[..., 1, :3, 0]], axis=-2
        )

    def path(s):
        return np.column_stack([np.broadcast_to(model.neutral()[:-1], (len(s), model.nq - 1)), s * np.pi])

    return Case(mass, start, pairs_of(start, [(0, 1), (1, 2)]), lambda x: cosine(x[..., 1, :] - x[..., 0, :],
                x[..., 2, :] - x[..., 1, :]), (-1, 1), model, places, path)  # fmt: skip


def butane() -> Case:
    """Springs between neighbours and between next neighbours hold bonds and angles; light middle atoms."""
    mass = np.array([1.0, 0.2, 0.2, 1.0])
    bend = np.radians(100.0)
    model = chain_model((bend, bend), mass)

    def places(q):
        T = ts.body_poses(model, q)
        R, p = T[..., 0, :3, :3], T[..., 0, :3, 3]
        body = np.array([[-np.cos(bend), np.sin(bend), 0], [0, 0, 0], [1.0, 0, 0]])
        x = p[..., None, :] + np.einsum("...ij,nj->...ni", R, body)
        end = T[..., 1, :3, 3] + T[..., 1, :3, :3] @ model.com[1]
        return np.concatenate([x, end[..., None, :]], axis=-2)

    def path(s):
        return np.column_stack([np.broadcast_to(model.neutral()[:-1], (len(s), model.nq - 1)), (2 * s - 1) * np.pi])

    start = places(np.append(model.neutral()[:-1], 1.0))
    pairs = [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3)]
    return Case(mass, start, pairs_of(start, pairs), torsion, (-np.pi, np.pi), model, places, path)


CASES = {"gimbal": gimbal, "trimer": trimer, "butane": butane}


def main() -> None:
    rows = []
    for name, make in CASES.items():
        case = make()
        laws = {law: expected(case, law) for law in LAWS}
        for seed, k in enumerate(STIFFNESS):
            springs = langevin(case, k, np.random.default_rng(10 + seed))
            row = {"case": name, "k": k, "samples": REPLICAS * RECORDS}
            row |= {law: round(chi_square(springs, share, case.limits), 2) for law, share in laws.items()}
            rows.append(row)
            print(row, flush=True)
    result = {"machine": machine(), "kT": KT, "bins": BINS, "rows": rows}
    (RESULTS / "stiff_limit.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
