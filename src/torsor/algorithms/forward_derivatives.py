"""The derivatives of forward dynamics: d qdd/dq and d qdd/dv are -M^-1 times those of inverse dynamics at the same
motion, and d qdd/dtau = M^-1 (Jain & Rodriguez 1993; Carpentier & Mansard 2018).

By articulated bodies, M^-1 = U^T D^-1 U (`articulated.inverse_by_product`): one climb per freedom carries the wrenches
of inverse dynamics and the force of a unit torque.  Through the mass matrix, with its factor that preserves the zeros
of a tree, machines of a few joints take fewer operations.  That needs all of M at once: only in straight-line code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torsor.algorithms import composite
from torsor.algorithms.articulated import accelerate, articulate, innovation, unit_torques
from torsor.algorithms.composite import branch_factor, branch_inverse, dof_parents
from torsor.algorithms.inverse_derivatives import Composite, begin, gather, inverse_dynamics_derivatives, move, rise
from torsor.algorithms.newton_euler import MOTION_OPTIONS, motion
from torsor.algorithms.udut import remaining
from torsor.algorithms.walker_orin import solve_along_branches
from torsor.linalg import Mat, Scalar, Vec
from torsor.outputs import Gram, Response, Several, Symmetric, TwoTriangles
from torsor.spatial import Spatial
from torsor.sweeps import Algorithm, Columns, Step, Walk, Whole, inward


def together(one: Step, other: Step) -> Step:
    """Two steps at once."""

    def step(link, here, near):
        (hand, keep), (more, others) = one(link, here, near), other(link, here, near)
        return hand | more, keep | others

    return step


TORQUES, INVERSE = unit_torques(innovation), Gram("u", "x")
forward_dynamics_derivatives = Algorithm(
    "forward_dynamics_derivatives", ("q", "v", "tau"),
    (
        motion, articulate, accelerate, move, gather,
        Columns(together(begin, TORQUES.start), together(rise, TORQUES.climb)),
    ),
    Several(dq=Response("by_q", "row_q", INVERSE), dv=Response("by_v", "row_v", INVERSE), dtau=INVERSE),
    options=MOTION_OPTIONS, inverts=True, torques_only=True,
)  # fmt: skip


# Through the mass matrix -----------------------------------------------------------------------------------


@inward(start=lambda base: dict(beyond=Composite.zero()))
def weigh(link, here, children):
    """The wrenches of unit accelerations, by the same operations as in `gather`."""
    f, S = link.placed(here)
    beyond = children.beyond + Composite.of(link, Spatial.zero())
    return dict(beyond=beyond.carried(f)), dict(F=tuple(beyond.inertia() @ s for s in S.columns))


def accelerations(solve: Callable[[Mat, Walk], list[Scalar]]) -> Whole:
    """qdd of every joint, for the following passes."""

    def run(walk: Walk) -> None:
        M = Symmetric("M").collect(replace(walk, stage=Columns(composite.unit_acceleration, composite.rise)))
        qdd = solve(M, walk)
        for here, first, end in zip(walk.here, walk.first, walk.first[1:]):
            here.qdd = Vec.of(qdd[first:end])

    return Whole(run)


def response(inverse_of: Callable[[Mat, Walk], Mat]) -> Callable[[Sequence[Scalar], Walk], list[Scalar]]:
    """From (d tau/dq, d tau/dv, M) to (-M^-1 d tau/dq, -M^-1 d tau/dv, M^-1)."""

    def respond(row: Sequence[Scalar], walk: Walk) -> list[Scalar]:
        n = walk.first[-1]
        rows = [row[k : k + n] for k in range(0, len(row), n)]
        by_q, by_v, M = (Mat.of(rows[k : k + n]) for k in (0, n, 2 * n))
        inverse = inverse_of(M, walk)
        return [x for A in (-inverse @ by_q, -inverse @ by_v, inverse) for line in A for x in line]

    return respond


def inverse_along_branches(M: Mat, walk: Walk) -> Mat:
    """M^-1"""
    above = dof_parents(walk.parent, [link.joint.nv for link in walk.links])
    return branch_inverse(*branch_factor(M, above), above)


composite_derivatives = Algorithm(
    "forward_dynamics_derivatives", ("q", "v", "tau"),
    (motion, remaining, weigh, accelerations(solve_along_branches), *inverse_dynamics_derivatives.passes),
    Several(dq=TwoTriangles("by_q", "row_q"), dv=TwoTriangles("by_v", "row_v"), dtau=Symmetric("by_qdd")),
    options=MOTION_OPTIONS, inverts=True, torques_only=True, then=response(inverse_along_branches),
)  # fmt: skip
