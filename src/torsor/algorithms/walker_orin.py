"""Forward dynamics through the mass matrix: form it, factor it, solve (Walker & Orin 1982, method 3).

The cost is O(n^3), yet for machines of a few joints it takes the fewest operations (Saha 2001, Table I).  M comes from
composite bodies.  It is factored as L^T D L from the last freedom backwards, which keeps the zeros between branches of
a tree.  Only in straight-line code: a sweep cannot pass on n^2 numbers.
"""

from __future__ import annotations

from torsor.algorithms.composite import branch_factor, branch_solve, compose, dof_parents, rise, unit_acceleration
from torsor.algorithms.newton_euler import MOTION_OPTIONS, motion
from torsor.algorithms.udut import remaining
from torsor.linalg import Mat, Scalar
from torsor.outputs import Symmetric
from torsor.sweeps import Algorithm, Columns, Walk


def solve_along_branches(M: Mat, walk: Walk) -> list[Scalar]:
    """qdd = M^-1 phi"""
    torques = [h.b if h.phi is None else h.phi for h in walk.here]
    above = dof_parents(walk.parent, [len(b) for b in torques])
    return branch_solve(*branch_factor(M, above), above, [x for b in torques for x in b])


forward_dynamics = Algorithm(
    "forward_dynamics_composite", ("q", "v", "tau"),
    (motion, remaining, compose, Columns(unit_acceleration, rise)), Symmetric("M"),
    options=MOTION_OPTIONS, inverts=True, torques_only=True, then=solve_along_branches,
)  # fmt: skip
mass_solve = Algorithm(
    "mass_solve_composite", ("q", "b"),
    (compose, Columns(unit_acceleration, rise)), Symmetric("M"),
    inverts=True, torques_only=True, then=solve_along_branches,
)  # fmt: skip
