"""Saha's DeNOC matrices and the decomposition M = U D U^T by reverse Gaussian elimination (2001, section 2, App. B).

    M = N_d^T (N_l^T M_b N_l) N_d                                                            (Eqs 2, 3)

is the closed form of Ploen & Park in frames at the mass centres, parallel to the base: N_l = G, N_d = S and
M_b = J there, with blocks B_ij = [[1, 0], [C_ij, 1]] and M_i = diag(I_i, m_i 1).

Eliminating the columns of M from the last to the first, one freedom after the other, gives U (unit upper
triangular) and D.  The elimination works on the recursive entries of M and never needs M itself.  A joint of several
freedoms is eliminated one freedom after the other, with no link between them.  On a tree nothing is eliminated between
branches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.model.model import Model
from torsor.theory.study.blocks import Operators, operators
from torsor.theory.study.frames import inertial_com_frames

Array = NDArray[Any]


def denoc(model: Model, q: ArrayLike, v: ArrayLike | None = None) -> Operators:
    """The operators in Saha's frames: N_l is `.G`, N_d is `.S`, the mass matrix of the bodies is `.J`."""
    return operators(model, q, v, Q=inertial_com_frames(model, q))


# On any symmetric positive definite matrix -----------------------------------------------------------------


def elementary(M: Array) -> Iterator[tuple[Array, Array]]:
    """(E_k, L_k) for k = n..2: E_k = 1 - alpha_k lambda_k^T, L_k = E_k L_{k+1}, L_{n+1} = M   (Eqs 19-24)

    E_k annihilates the entries above the diagonal in column k.
    """
    L = np.array(M, dtype=np.float64)
    for k in reversed(range(1, len(L))):
        E = np.eye(len(L))
        E[:k, k] = -L[:k, k] / L[k, k]
        L = E @ L
        yield E, L


def reverse_elimination(M: ArrayLike) -> tuple[Array, Array]:
    """(U, D) with M = U diag(D) U^T: U = (E_2 ... E_n)^-1, D the pivots                      (Eqs 7-11)"""
    M = np.asarray(M, dtype=np.float64)
    U, L = np.eye(len(M)), M
    for E, reduced in elementary(M):
        U = U + np.triu(np.eye(len(M)) - E, 1)  # the columns alpha_k of Eq. 8, side by side
        L = reduced
    return U, np.diag(L).copy()


# On the recursive entries of a mass matrix -----------------------------------------------------------------


@dataclass(frozen=True)
class UDUT:
    """M = U diag(D) U^T and the intermediate results of the elimination, freedom by freedom."""

    U: Array  # (nv, nv) unit upper triangular: alpha_ik
    D: Array  # (nv,): m^_k, the inertia of articulated body k about its joint
    U_inverse: Array  # (nv, nv)
    psi: Array  # (nv, 6): psi_k = psi^_k / m^_k
    M_hat: Array  # (n, 6, 6): the articulated-body inertias

    @property
    def M_inverse(self) -> Array:
        """U^-T D^-1 U^-1, from the known entries of U^-1."""
        return self.U_inverse.T @ (self.U_inverse / self.D[:, None])


def decompose(o: Operators) -> UDUT:
    """U and D from the articulated inertias; M is never formed                              (Eqs 25-28)"""
    model, n, nv = o.model, o.n, o.model.nv
    starts = model.v_start
    M_hat, p = o.J_blocks.copy(), np.concatenate([S.T for S in o.S_blocks])
    psi, D = np.zeros((nv, 6)), np.zeros(nv)
    for i in reversed(range(n)):
        free = M_hat[i].copy()
        for k in reversed(range(starts[i], starts[i + 1])):
            psi_hat = free @ p[k]
            D[k] = p[k] @ psi_hat
            psi[k] = psi_hat / D[k]
            free -= np.outer(psi_hat, psi[k])  # M^_kk, Eq. 28
        if model.parent[i] >= 0:
            B = o.Ad_inv[i]
            M_hat[model.parent[i]] += B.T @ free @ B
    U, U_inverse = np.eye(nv), np.eye(nv)
    for k in range(nv):
        rigid = free_ = psi[k]
        for i, B in _way(o, k):
            rigid, free_ = B.T @ rigid, B.T @ free_
            U[i, k] = p[i] @ rigid  # alpha_ik, Eq. 25
            U_inverse[i, k] = -p[i] @ free_
            free_ = free_ + psi[i] * U_inverse[i, k]
    return UDUT(U, D, U_inverse, psi, M_hat)


def _way(o: Operators, k: int) -> Iterator[tuple[int, Array]]:
    """The freedoms between k and the base, nearest first, each with the B that leads to it from the one before."""
    starts, one = o.model.v_start, np.eye(6)
    body, end, B = int(np.searchsorted(starts, k, side="right")) - 1, k, one
    while body >= 0:
        for i in reversed(range(starts[body], end)):
            yield i, B
            B = one
        B = o.Ad_inv[body]
        body = int(o.model.parent[body])
        end = starts[body + 1]
