"""The square factorization of M and M^-1, matrix by matrix (Ploen & Park 1999, Eqs 40-43, Propositions 1-2).

    M    = [1 + S^T G^T Pi] Omega [1 + S^T G^T Pi]^T
    M^-1 = [1 - S^T Y Pi]^T Omega^-1 [1 - S^T Y Pi]

and the spatial operators of Rodriguez, Jain & Kreutz-Delgado that correspond to each factor (Table I).  For practical
use, `torsor.mass_factor` applies the same factors in O(n).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ArgumentError
from torsor.theory.study.blocks import Operators, block_diagonal, rows

Array = NDArray[Any]


@dataclass(frozen=True)
class Factorization:
    """The operators of the factorization, built on `Operators` and in the same frames."""

    operators: Operators

    @cached_property
    def J_hat_blocks(self) -> Array:
        """J^_i = J_i + sum Ad*_{f^-1} (J^ - J^ S (S^T J^ S)^-1 S^T J^) Ad_{f^-1}                (Eq. 40)"""
        o = self.operators
        J_hat = o.J_blocks.copy()
        for i, parent in reversed(list(enumerate(o.model.parent.tolist()))):
            if parent >= 0:
                J_hat[parent] += o.Ad_inv[i].T @ _freed(J_hat[i], o.S_blocks[i]) @ o.Ad_inv[i]
        return J_hat

    @cached_property
    def J_hat(self) -> Array:
        """diag(J^_i), (6n, 6n)."""
        return block_diagonal(tuple(self.J_hat_blocks))

    @cached_property
    def Omega(self) -> Array:
        """S^T J^ S, (nv, nv), block diagonal: the pivots."""
        S = self.operators.S
        return S.T @ self.J_hat @ S

    @cached_property
    def Phi(self) -> Array:
        """Omega^-1 S^T J^, (nv, 6n): the gains."""
        return np.linalg.solve(self.Omega, self.operators.S.T @ self.J_hat)

    @cached_property
    def Pi(self) -> Array:
        """Gamma^T Phi^T, (6n, nv)."""
        return self.operators.Gamma.T @ self.Phi.T

    @cached_property
    def X(self) -> Array:
        """(1 - S Phi) Gamma, (6n, 6n): Gamma with every joint free to move."""
        o = self.operators
        return o.Gamma - o.S @ (self.Phi @ o.Gamma)

    @cached_property
    def Y(self) -> Array:
        """(1 - X^T)^-1, (6n, 6n)."""
        return np.linalg.inv(np.eye(len(self.X)) - self.X.T)

    @cached_property
    def K(self) -> Array:
        """1 + S^T G^T Pi, (nv, nv), unit upper triangular in blocks                     (Proposition 1)"""
        o = self.operators
        return np.eye(len(self.Omega)) + o.S.T @ o.G.T @ self.Pi

    @cached_property
    def K_inverse(self) -> Array:
        """1 - S^T Y Pi                                                                  (Proposition 2)"""
        return np.eye(len(self.Omega)) - self.operators.S.T @ self.Y @ self.Pi

    @property
    def M(self) -> Array:
        return self.K @ self.Omega @ self.K.T

    @property
    def M_inverse(self) -> Array:
        return self.K_inverse.T @ np.linalg.solve(self.Omega, self.K_inverse)


def _freed(J: Array, S: Array) -> Array:
    """J - J S (S^T J S)^-1 S^T J, one freedom after the other, so that eliminated entries vanish to the last digit."""
    for p in reversed(S.T):
        U = J @ p
        J = J - np.outer(U, U) / (p @ U)
    return J


# Table I: the spatial operator algebra ---------------------------------------------------------------------

TABLE_I = (
    ("G^T = (1 - Gamma^T)^-1", "phi = (1 - E_phi)^-1"),
    ("J^ = X^T J^ X + J", "P = E_psi P E_psi* + M"),
    ("Omega = S^T J^ S", "D = H P H*"),
    ("Phi^T = J^ S Omega^-1", "G = P H* D^-1"),
    ("Pi = Gamma^T Phi^T", "K = E_phi G"),
    ("X^T = Gamma^T (1 - Phi^T S^T)", "E_psi = E_phi (1 - G H)"),
    ("Y = (1 - X^T)^-1", "psi = (1 - E_psi)^-1"),
)


@dataclass(frozen=True)
class SpatialOperators:
    """The spatial operators of a chain, links numbered from the tip (1) to the base (n), as their authors do.

    They are built from their own recursions, link by link, not from the Lie-group operators.
    """

    phi: Array  # (6n, 6n)
    P: Array  # (6n, 6n)
    D: Array  # (nv, nv)
    G: Array  # (6n, nv)
    K: Array  # (6n, nv)
    E_psi: Array  # (6n, 6n)
    psi: Array  # (6n, 6n)


def spatial_operators(o: Operators) -> SpatialOperators:
    """phi(k+1, k) moves a force from link k to link k+1; P, D, G as in a Kalman filter run from the tip."""
    n = _chain_length(o)
    outer = list(reversed(range(n)))  # link k of the algebra is body outer[k]
    phi, psi = np.eye(6 * n), np.eye(6 * n)
    P, D, G = [], [], []
    K, E_psi, P_plus = np.zeros((6 * n, o.model.nv)), np.zeros((6 * n, 6 * n)), np.zeros((6, 6))
    ends = np.cumsum([0, *(o.S_blocks[i].shape[1] for i in outer)])
    for k, i in enumerate(outer):
        H = o.S_blocks[i].T
        below = o.Ad_inv[outer[k - 1]].T if k else np.zeros((6, 6))
        P.append(below @ P_plus @ below.T + o.J_blocks[i])
        D.append(H @ P[k] @ H.T)
        G.append(P[k] @ H.T @ np.linalg.inv(D[k]))
        free = np.eye(6) - G[k] @ H
        P_plus = free @ P[k] @ free.T  # the form of the Riccati equation that stays symmetric under rounding
        if k + 1 < n:
            up = o.Ad_inv[i].T  # phi(k+1, k)
            K[rows(k + 1), ends[k] : ends[k + 1]] = up @ G[k]
            E_psi[rows(k + 1), rows(k)] = up @ free
            phi[rows(k + 1), : 6 * (k + 1)] = up @ phi[rows(k), : 6 * (k + 1)]
            psi[rows(k + 1), : 6 * (k + 1)] = up @ free @ psi[rows(k), : 6 * (k + 1)]
    all_P, all_D, all_G = (block_diagonal(tuple(x)) for x in (P, D, G))
    return SpatialOperators(phi, all_P, all_D, all_G, K, E_psi, psi)


def correspondence(f: Factorization) -> dict[tuple[str, str], tuple[Array, Array]]:
    """Table I in numbers: (ours, theirs) -> both matrices, ours renumbered from the tip to the base."""
    o = f.operators
    theirs = spatial_operators(o)
    bodies = np.concatenate([np.arange(6) + 6 * i for i in reversed(range(o.n))])
    starts = o.model.v_start
    freedoms = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in reversed(range(o.n))])
    ours = (
        (o.G.T, bodies, bodies), (f.X.T @ f.J_hat @ f.X + o.J, bodies, bodies), (f.Omega, freedoms, freedoms),
        (f.Phi.T, bodies, freedoms), (f.Pi, bodies, freedoms), (f.X.T, bodies, bodies), (f.Y, bodies, bodies),
    )  # fmt: skip
    matrices = (theirs.phi, theirs.P, theirs.D, theirs.G, theirs.K, theirs.E_psi, theirs.psi)
    return {names: (A[np.ix_(top, left)], B) for names, (A, top, left), B in zip(TABLE_I, ours, matrices)}


def _chain_length(o: Operators) -> int:
    if not o.model.is_chain:
        raise ArgumentError(f"{o.model!r} branches; Table I is about chains, each body hung on the one before it")
    return o.n
