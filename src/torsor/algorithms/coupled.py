"""Machines whose joints follow others, q = ratio q_leader + offset: projected dynamics, straight-line code only.

With v = G y, where y are the velocities of the joints that follow none, a coupled machine obeys

    G^T (M G dy + bias - tau) = 0,        so        qdd = P (tau - bias),   P = G (G^T M G)^-1 G^T.

This is exact, because the coupling forces do no work.  q, v, tau and qdd have an entry for every joint, including
followers, and P replaces M^-1.  G^T M G is factored from the last freedom backwards, which causes little fill-in.
"""

from __future__ import annotations

from torsor.algorithms.composite import compose, rise, unit_acceleration
from torsor.algorithms.forward_derivatives import accelerations, response, weigh
from torsor.algorithms.inverse_derivatives import inverse_dynamics_derivatives
from torsor.algorithms.newton_euler import MOTION_OPTIONS, motion
from torsor.algorithms.udut import remaining
from torsor.linalg import Mat, Scalar, Vec, factor, log, solve
from torsor.outputs import Several, Symmetric, TwoTriangles
from torsor.sweeps import Algorithm, Columns, Walk

Group = list[tuple[int, float]]  # a freedom that follows none, and those that follow it: (freedom, ratio)


def groups(walk: Walk) -> list[Group]:
    """The columns of G, the last freedom first."""
    followers = {walk.first[coupling.follower] for coupling in walk.couplings}
    found: dict[int, Group] = {k: [(k, 1.0)] for k in reversed(range(walk.first[-1])) if k not in followers}
    for follower, leader, ratio, _ in walk.couplings:
        found[walk.first[leader]].append((walk.first[follower], ratio))
    return list(found.values())


def reduced(M: Mat, walk: Walk) -> Mat:
    """G^T (M + diag(added_inertia)) G"""
    added = [x for h in walk.here for x in (h.added_inertia or ())]

    def entry(i: int, j: int) -> Scalar:
        return M[i][j] + added[i] if i == j and added else M[i][j]

    def total(a: int, b: int) -> Scalar:
        result: Scalar = 0.0
        for i, ri in columns[a]:
            for j, rj in columns[b]:
                result = result + entry(i, j) * (ri * rj)
        return result

    columns = groups(walk)
    return Mat.symmetric(total, len(columns))


def spread(walk: Walk, y: Vec) -> list[Scalar]:
    """G y"""
    x: list[Scalar] = [0.0] * walk.first[-1]
    for yk, group in zip(y, groups(walk)):
        for i, ratio in group:
            x[i] = yk * ratio
    return x


def solve_coupled(M: Mat, walk: Walk) -> list[Scalar]:
    """P b, where b is the input or the torques that remain for accelerations"""
    b = [x for h in walk.here for x in (h.b if h.phi is None else h.phi)]
    pushed = []
    for group in groups(walk):
        total: Scalar = 0.0
        for i, ratio in group:
            total = total + b[i] * ratio
        pushed.append(total)
    return spread(walk, solve(factor(reduced(M, walk)), pushed))


def coupled_inverse(M: Mat, walk: Walk) -> Mat:
    """P"""
    factored, columns = factor(reduced(M, walk)), groups(walk)
    inverse = [solve(factored, Vec.unit(k, len(columns))) for k in range(len(columns))]
    P = walk.zeros()
    for a, first in enumerate(columns):
        for b, second in enumerate(columns[a:], a):
            for i, ri in first:
                for j, rj in second:
                    P[i][j] = P[j][i] = inverse[b][a] * (ri * rj)
    return Mat.of(P)


def _log_det(M: Mat, walk: Walk) -> Scalar:
    total: Scalar = 0.0
    for pivot in factor(reduced(M, walk))[1]:
        total = total + log(pivot)
    return total


def _of_leaders(walk: Walk, values: list[Scalar]) -> list[Scalar]:
    """Values at the freedoms that follow none; ones at the others."""
    x: list[Scalar] = [1.0] * walk.first[-1]
    for value, group in zip(values, groups(walk)):
        x[group[0][0]] = value
    return x


def _pivots(M: Mat, walk: Walk) -> list[Scalar]:
    return _of_leaders(walk, factor(reduced(M, walk))[1])


def _diagonal(M: Mat, walk: Walk) -> list[Scalar]:
    A = reduced(M, walk)
    return _of_leaders(walk, [A[k][k] for k in range(len(A))])


MATRIX = compose, Columns(unit_acceleration, rise)
forward_dynamics = Algorithm(
    "forward_dynamics_coupled", ("q", "v", "tau"), (motion, remaining, *MATRIX), Symmetric("M"),
    options=(*MOTION_OPTIONS, "added_inertia"), inverts=True, torques_only=True, then=solve_coupled, couples=True,
)  # fmt: skip
mass_solve = Algorithm(
    "mass_solve_coupled", ("q", "b"), MATRIX, Symmetric("M"), options=("added_inertia",), inverts=True,
    torques_only=True, then=solve_coupled, couples=True,
)  # fmt: skip
inverse_mass_matrix = Algorithm(
    "inverse_mass_matrix_coupled", ("q",), MATRIX, Symmetric("M"), inverts=True, torques_only=True,
    then=coupled_inverse, couples=True,
)  # fmt: skip
log_det = Algorithm(
    "log_det_coupled", ("q",), MATRIX, Symmetric("M"), inverts=True, torques_only=True, then=_log_det, couples=True,
)  # fmt: skip
forward_dynamics_derivatives = Algorithm(
    "forward_dynamics_derivatives_coupled", ("q", "v", "tau"),
    (motion, remaining, weigh, accelerations(solve_coupled), *inverse_dynamics_derivatives.passes),
    Several(dq=TwoTriangles("by_q", "row_q"), dv=TwoTriangles("by_v", "row_v"), dtau=Symmetric("by_qdd")),
    options=MOTION_OPTIONS, inverts=True, torques_only=True, then=response(coupled_inverse), couples=True,
)  # fmt: skip
pivots, diagonal = (
    Algorithm(
        f"{name}_coupled", ("q",), MATRIX, Symmetric("M"), options=("added_inertia",), torques_only=True, then=then,
        couples=True,
    )
    for name, then in (("pivots", _pivots), ("diagonal", _diagonal))
)  # fmt: skip
