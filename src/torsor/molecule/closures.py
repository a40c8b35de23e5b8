"""Bonds that close loops: S-S bonds, which the tree leaves out; constraints on distances between atoms close them.

A disulfide keeps three distances: S-S, and from each sulphur to the carbon bonded to the other. They fix a length and
two angles. With g(q) = (|x_i - x_j|^2 - d^2) / 2 per distance and G = dg/dq, a drift is that of RATTLE with these rows:

    J(q0)^T z0(q0, q1) = p - G(q0)^T a,   g(q1) = 0,     then     p1 - G(q1)^T b   with   G M^-1 p = 0.

Newton's method finds the multipliers a, with the derivative -h G(q1) M(q0)^-1 G(q0)^T and one drift per iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from torsor.algorithms import articulated
from torsor.dynamics.points import Points, looped
from torsor.errors import ModelError
from torsor.molecule.structure import Array, Bond, Structure
from torsor.motion.rattle import Drifted

if TYPE_CHECKING:
    from torsor.molecule.molecule import Torsions

CLOSED = 1e-12  # nm^2, of g: a bond of 0.2 nm is closed to 1e-11 nm
ROUNDS = 12  # at most, of Newton's method for the multipliers


def held_distances(structure: Structure, cut: tuple[Bond, ...]) -> list[Bond]:
    """The pairs of atoms whose distances are constrained, to close the bonds that were cut."""
    pairs = []
    for a, b in cut:
        pairs.append((a, b))
        pairs += [(k, b) for k in structure.neighbours[a] if k != b][:1]
        pairs += [(a, k) for k in structure.neighbours[b] if k != a][:1]
    return pairs


class Closures:
    """The constraints that close a tree, for states (B, nq)."""

    def __init__(self, torsions: Torsions) -> None:
        structure, model = torsions.molecule.structure, torsions.model
        pairs = np.array(held_distances(structure, torsions.cut), int).reshape(-1, 2)
        atoms = np.unique(pairs)
        self.first, self.second = (np.searchsorted(atoms, pairs[:, k]) for k in (0, 1))
        self.points = Points(model, torsions.points.body[atoms], torsions.points.place[atoms])
        self.solve = looped(articulated.mass_solve, model)
        self.square = 2 * self._half_squares(self.points.positions(model.neutral()))
        if len(self.square) and self.square.min() <= 0:
            raise ModelError("two atoms of a disulfide lie on each other: mend the positions")

    def __bool__(self) -> bool:
        return len(self.square) > 0

    def _half_squares(self, x: Array) -> Array:
        d = x[..., self.first, :] - x[..., self.second, :]
        return (d * d).sum(-1) / 2

    def open(self, q: Array) -> Array:
        """g, (B, rows) nm^2"""
        return self._half_squares(self.points.positions(q)) - self.square / 2

    def gaps(self, q: Array) -> Array:
        """The errors of the constrained distances, (B, rows) nm."""
        return np.sqrt(2 * self._half_squares(self.points.positions(q))) - np.sqrt(self.square)

    def rows(self, q: Array) -> Array:
        """G, (B, rows, nv): each row is the torques of a pair of opposite forces."""
        x, count = self.points.positions(q), len(self.square)
        d = x[..., self.first, :] - x[..., self.second, :]
        forces = np.zeros((*d.shape[:-1], x.shape[-2], 3))
        row = np.arange(count)
        forces[..., row, self.first, :] = d
        forces[..., row, self.second, :] -= d
        return self.points.torques(q[:, None], forces)

    def projected(self, q: Array, p: Array) -> Array:
        """Momenta whose velocities preserve the distances: p - G^T (G M^-1 G^T)^-1 G M^-1 p"""
        G = self.rows(q)
        speed = (G @ self.solve(q, p)[..., None])[..., 0]
        return p - self._pull(G, _solved(self._matrix(q, G, G), speed))

    def _matrix(self, q: Array, left: Array, right: Array) -> Array:
        """left M^-1 right^T"""
        return left @ np.swapaxes(self.solve(q[:, None], right), -1, -2)

    @staticmethod
    def _pull(G: Array, a: Array) -> Array:
        """G^T a"""
        return (a[..., None, :] @ G)[..., 0, :]

    def drifted(self, q: Array, p: Array, x: Array, h: Array | float, drift: Callable[..., Drifted]) -> Drifted:
        """A drift at whose end all constraints are satisfied."""
        h, G = np.broadcast_to(np.asarray(h, float), q.shape[:1]), self.rows(q)
        a, closed = np.zeros((len(q), len(self.square))), np.zeros(len(q), bool)
        with np.errstate(all="ignore"):  # states that do not converge
            for _ in range(ROUNDS):
                found = drift(q, p - self._pull(G, a), x, h)
                gap, x = self.open(found.q), np.where(found.settled[:, None], found.x, x)
                closed = np.all(np.abs(gap) < CLOSED, axis=-1)
                if (closed | ~found.settled).all():
                    break
                more = _solved(self._matrix(q, self.rows(found.q), G), gap) / h[:, None]
                a = np.where(closed[:, None], a, a + more)
            p1 = self.projected(found.q, found.p)
        return Drifted(found.q, p1, found.x, found.settled & closed)


def _solved(A: Array, b: Array) -> Array:
    """A^-1 b for every state; NaN where A is singular or not finite."""
    good = np.isfinite(A).all((-1, -2)) & (np.abs(np.linalg.det(np.where(np.isfinite(A), A, 0.0))) > 0)
    x = np.linalg.solve(np.where(good[:, None, None], A, np.eye(A.shape[-1])), b[..., None])[..., 0]
    return np.where(good[:, None], x, np.nan)
