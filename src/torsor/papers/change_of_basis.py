"""The change of basis of Featherstone & Fijany 1999, sections 2 and 3, for any matrices.

A symmetric positive definite M maps motions u to forces v = M u.  Motions must stay in the range of S1.  In the dual
bases [S1 S2] of motions and [T1 T2] of forces, M splits into two blocks: one that the constraint leaves free and one
that it immobilises.  Hence

    S1 (S1^T M S1)^-1 S1^T  =  M^-1  -  M^-1 T2 (T2^T M^-1 T2)^-1 T2^T M^-1                                  (Eq. 8)

    constrained dynamics    =  unconstrained dynamics  -  immobilised dynamics
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.dense import checked_numbers, complement, inverse, numbers_like, solve
from torsor.errors import ArgumentError, SingularError
from torsor.validate import chosen

Array = NDArray[Any]

# Linear mappings by domain and codomain: U are motions, V forces.
MAPPINGS = ("U -> U", "U -> V", "V -> U", "V -> V")

# Singular values below this fraction of the largest are rounding errors: the columns of S1 are then dependent.
DEPENDENT = 1e-12


class DualBases(NamedTuple):
    """[S1 S2]^T [T1 T2] = 1, T1 = M S1 (S1^T M S1)^-1, T2 spans the forces reciprocal to S1           (Eqs 1, 2)"""

    M: Array
    S1: Array
    S2: Array
    T1: Array
    T2: Array

    @property
    def X_U(self) -> Array:
        """[T1 T2]^T: motions in the new basis pair, u_2 = X_U u_1."""
        return np.concatenate([self.T1, self.T2], axis=1).T

    @property
    def X_V(self) -> Array:
        """[S1 S2]^T = X_U^-T: forces in the new basis pair, v_2 = X_V v_1."""
        return np.concatenate([self.S1, self.S2], axis=1).T

    @property
    def active(self) -> Array:
        """S1 (S1^T M S1)^-1 S1^T: the part of M^-1 that the constraint preserves                       (Eq. 7)"""
        return self.S1 @ solve(self.S1.T @ self.M @ self.S1, self.S1.T)

    @property
    def immobilised(self) -> Array:
        """M^-1 T2 (T2^T M^-1 T2)^-1 T2^T M^-1: the part of M^-1 that the constraint removes            (Eq. 3)"""
        moved = solve(self.M, self.T2)
        return moved @ solve(self.T2.T @ moved, moved.T)

    def complement(self, I_X: Array | None = None) -> Array:
        """T1' with S1^T T1' = 1 from any positive definite map I_X (None: the identity)         (after Eq. 9)"""
        image = self.S1 if I_X is None else I_X @ self.S1
        return solve(self.S1.T @ image, image.T).T

    def constraint_force(self, v: Array) -> Array:
        """T2 lambda, the force that keeps u = M^-1 (v + T2 lambda) in the range of S1: T2^T u = 0      (Eq. 5)"""
        moved = solve(self.M, self.T2)
        return -self.T2 @ solve(self.T2.T @ moved, moved.T @ v)

    def solve(self, beta: Array, T1: Array | None = None) -> Array:
        """(S1^T M S1)^-1 beta by T1'^T (M^-1 - immobilised) T1' beta, for any T1' (None: identity map)  (Eq. 10)"""
        T1 = self.complement() if T1 is None else T1
        v = T1 @ beta
        return T1.T @ solve(self.M, v + self.constraint_force(v))


def in_new_bases(mapping: str, A: ArrayLike, X_U: ArrayLike) -> Array:
    """A linear mapping (..., n, n) in another reciprocal basis pair: the four rules of section 2.

        U -> U:  X_U A X_U^-1        U -> V:  X_V A X_U^-1
        V -> U:  X_U A X_V^-1        V -> V:  X_V A X_V^-1        X_V = X_U^-T

    mapping    one of `MAPPINGS`: an inertia is "U -> V", its inverse "V -> U"
    X_U        (n, n), regular: transforms the coordinates of a motion to the new basis
    """
    source, target = chosen("mapping", mapping, MAPPINGS).split(" -> ")
    A, X_U = checked_numbers("A", A), checked_numbers("X_U", X_U)
    n = len(X_U) if X_U.ndim else 0
    if X_U.shape != (n, n) or A.ndim < 2 or A.shape[-2:] != (n, n) or n == 0:
        raise ArgumentError(f"A {A.shape} and X_U {X_U.shape}: needed are (..., n, n) and (n, n)")
    if np.linalg.matrix_rank(X_U.astype(np.float64)) < n:
        raise SingularError("X_U is singular; a change of basis can be undone")
    X_V = inverse(X_U).T
    X = {"U": X_U, "V": X_V}
    undo = {"U": X_V.T, "V": X_U.T}
    return X[target] @ A @ undo[source]


def change_of_basis(M: ArrayLike, S1: ArrayLike) -> DualBases:
    """The dual bases of a symmetric positive definite map (n, n) and the range of S1 (n, r)."""
    M, S1 = numbers_like(M), numbers_like(S1)
    if M.ndim != 2 or M.shape[0] != M.shape[1] or S1.ndim != 2 or len(S1) != len(M):
        raise ArgumentError(f"M {M.shape} and S1 {S1.shape}: needed are (n, n) and (n, r)")
    r = S1.shape[1]
    sizes = np.linalg.svd(S1.astype(np.float64), compute_uv=False)
    if r > len(M) or (r and sizes[-1] <= DEPENDENT * sizes[0]):
        raise SingularError(f"the {r} columns of S1 are linearly dependent; leave out those that add no motion")
    try:
        np.linalg.cholesky(M.astype(np.float64))
    except np.linalg.LinAlgError:
        raise SingularError("M is not positive definite; every motion must have inertia") from None
    T2 = complement(S1)
    moved = solve(M, T2)
    S2 = solve(T2.T @ moved, moved.T).T
    image = M @ S1
    T1 = solve(S1.T @ image, image.T).T
    return DualBases(M, S1, S2, T1, T2)
