"""The mass matrix by composite rigid bodies, and its factorization that preserves the zeros of a branching tree.

M_ij = S_i^T Ad*_{f_ij^-1} I^c_j S_j, where I^c_j is the inertia of body j and all it carries, as one rigid body
(Walker & Orin 1982; Saha 2001, Eq. 6; Featherstone 2005 for the factor).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from torsor.linalg import Mat, Scalar, Vec, dot, quotient
from torsor.outputs import PerFreedom, Symmetric
from torsor.spatial import Inertia, pair
from torsor.sweeps import Algorithm, Columns, inward


@inward(start=lambda base: dict(I=Inertia.zero()))
def compose(link, here, children):
    """I^c_i = J_i + sum Ad*_{f^-1} I^c Ad_{f^-1}"""
    f, S = link.placed(here)
    I = children.I + link.inertia
    F = tuple(I @ s for s in S.columns)
    diagonal = Vec.of(pair(Fk, s) + rotor for Fk, s, rotor in zip(F, S.columns, link.rotors(here)))
    return dict(I=f.carry(I)), dict(E=f.factors[-1], S=S, F=F, diagonal=diagonal)


def rise(link, here, below):
    """M_ij = S_i^T F; F is passed on to the parent."""
    f, S = link.placed(here)
    return dict(F=f.Ad_inv_dual(below.F)), dict(M=S.T(below.F))


def unit_acceleration(link, here, k):
    """F = I^c_j S_j: the wrench of a unit acceleration of freedom k; its rotor adds its inertia."""
    hand, keep = rise(link, here, SimpleNamespace(F=here.F[k]))
    return hand, dict(M=keep["M"].replace(k, keep["M"][k] + link.armature[k]))


mass_matrix = Algorithm(
    "mass_matrix", ("q",), (compose, Columns(unit_acceleration, rise)), Symmetric("M"),
    torques_only=True,
)  # fmt: skip


# M_ii, in O(n)
diagonal = Algorithm("diagonal", ("q",), (compose,), PerFreedom("diagonal"), options=("added_inertia",))


def dof_parents(parent: Sequence[int], freedoms: Sequence[int]) -> list[int]:
    """The parent of every degree of freedom: the next one on the path to the base, or -1."""
    last: list[int] = []
    result: list[int] = []
    for p, nv in zip(parent, freedoms):
        above = last[p] if p >= 0 else -1
        for _ in range(nv):
            result.append(above)
            above = len(result) - 1
        last.append(above)
    return result


def branch_factor(M: Sequence[Sequence[Scalar]], above: Sequence[int]) -> tuple[list[list[Scalar]], list[Scalar]]:
    """M = L^T D L with L unit lower triangular; entries between branches stay zero and are never computed."""
    n = len(above)
    H = [list(row) for row in M]
    for k in reversed(range(n)):
        i = above[k]
        while i >= 0:
            a = quotient(H[k][i], H[k][k])
            j = i
            while j >= 0:
                H[i][j] = H[i][j] - a * H[k][j]
                j = above[j]
            H[k][i] = a
            i = above[i]
    return [[H[i][j] if j < i else float(i == j) for j in range(n)] for i in range(n)], [H[k][k] for k in range(n)]


def branch_inverse(L: Sequence[Sequence[Scalar]], D: Sequence[Scalar], above: Sequence[int]) -> Mat:
    """(L^T D L)^-1 = X D^-1 X^T with X = L^-1, which has the zeros of L."""
    n = len(above)
    X: list[list[Scalar]] = [[float(i == j) for j in range(n)] for i in range(n)]
    for i in range(n):
        for j in range(i):
            k, total = above[i], 0.0
            while k >= j:
                total = total + L[i][k] * X[k][j]
                k = above[k]
            X[i][j] = -total
    Y = [[quotient(x, d) for x, d in zip(row, D)] for row in X]
    return Mat.symmetric(lambda i, j: dot(Y[i][: i + 1], X[j]), n)


def branch_solve(L: Sequence[Sequence[Scalar]], D: Sequence[Scalar], above: Sequence[int],
                 b: Sequence[Scalar]) -> list[Scalar]:  # fmt: skip
    """(L^T D L)^-1 b, using only entries along branches."""
    x = list(b)
    n = len(above)
    for i in reversed(range(n)):
        j = above[i]
        while j >= 0:
            x[j] = x[j] - L[i][j] * x[i]
            j = above[j]
    x = [quotient(xi, d) for xi, d in zip(x, D)]
    for i in range(n):
        j = above[i]
        while j >= 0:
            x[i] = x[i] - L[i][j] * x[j]
            j = above[j]
    return x
