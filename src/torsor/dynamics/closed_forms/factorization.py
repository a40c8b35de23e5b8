"""The square factorization of M and M^-1, matrix by matrix (Ploen & Park 1999, Eqs 40-43, Propositions 1-2).

    M    = [1 + S^T G^T Pi] Omega [1 + S^T G^T Pi]^T
    M^-1 = [1 - S^T Y Pi]^T Omega^-1 [1 - S^T Y Pi]

The armature R of a model adds to the pivots: Omega = S^T J^ S + R.  For practical use, `torsor.mass_factor` applies the
same factors in O(n).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.dense import inverse, solve
from torsor.dynamics.closed_forms.operators import Operators, block_diagonal

Array = NDArray[Any]


@dataclass(frozen=True)
class Factorization:
    """The operators of the factorization, built on `Operators` and in the same frames."""

    operators: Operators

    @cached_property
    def J_hat_blocks(self) -> Array:
        """J^_i = J_i + sum Ad*_{f^-1} (J^ - J^ S Omega^-1 S^T J^) Ad_{f^-1}                     (Eq. 40)"""
        o = self.operators
        J_hat, rotors = o.J_blocks.copy(), o.by_joint(o.model.armature)
        for i, parent in reversed(list(enumerate(o.model.parent.tolist()))):
            if parent >= 0:
                J_hat[parent] += o.Ad_inv[i].T @ _freed(J_hat[i], o.S_blocks[i], rotors[i]) @ o.Ad_inv[i]
        return J_hat

    @cached_property
    def J_hat(self) -> Array:
        """diag(J^_i), (6n, 6n)."""
        return block_diagonal(tuple(self.J_hat_blocks))

    @cached_property
    def Omega(self) -> Array:
        """S^T J^ S + R, (nv, nv), block diagonal: the pivots."""
        S = self.operators.S
        return S.T @ self.J_hat @ S + np.diag(self.operators.model.armature)

    @cached_property
    def Phi(self) -> Array:
        """Omega^-1 S^T J^, (nv, 6n): the gains."""
        return solve(self.Omega, self.operators.S.T @ self.J_hat)

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
        return inverse(np.eye(len(self.X)) - self.X.T)

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
        return self.K_inverse.T @ solve(self.Omega, self.K_inverse)


def _freed(J: Array, S: Array, rotors: Array) -> Array:
    """J - J S (S^T J S + R)^-1 S^T J, freedom by freedom, so that eliminated entries vanish to the last digit."""
    for p, rotor in zip(reversed(S.T), reversed(rotors)):
        U = J @ p
        J = J - np.outer(U, U) / (p @ U + rotor)
    return J
