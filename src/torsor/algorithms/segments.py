"""Forward dynamics of one long chain cut into segments, each an articulated body with two handles.

The rest of the chain acts on a segment only at its two ends (Featherstone 1999, "A divide-and-conquer articulated-body
algorithm").  The body before it accelerates by a; the bodies beyond its last body act there with the wrench f.  With
all joints of the segment free,

    F     = I a + P f + p            F    the wrench that the segment needs at its base
    A_tip = P^T a - C f + b          A_tip the acceleration of its last body

so its neighbours need only I, P, C, p and b.  `condense_segment` computes these in one inward sweep, which is
`articulated.articulate` with six more columns.  No segment waits for another in this step, so segments can be the lanes
of a vector.  What remains is a short chain whose "bodies" are the segments; the sweeps along it are `absorb` and
`tip_acceleration`.  They give each segment the acceleration of its base and the wrench at its tip.  The segment is
then a chain of its own, and `articulated.forward_dynamics` does the rest.  (Keeping the values of `condense_segment`
at every joint until then would save a third of the operations, but on very long chains the memory traffic costs more
time than that.)

Velocities come first: a segment needs only the angular velocity before it, and changes it by one rotation and one
vector (`turns`).  In each segment, accelerations are measured from those it would have if its base and its joints did
not accelerate (`newton_euler.motion`).
"""

from __future__ import annotations

from typing import NamedTuple

from torsor.algorithms.articulated import eliminate, lift
from torsor.algorithms.constraint_force import Turn, combine, unknown_wrenches
from torsor.algorithms.newton_euler import motion
from torsor.linalg import Mat, Scalar, Vec, factor, solve, sqrt
from torsor.model.links import Link
from torsor.outputs import AtBase
from torsor.spatial import Inertia, Spatial, pair
from torsor.sweeps import Algorithm, inward

# A pivot below this fraction of its diagonal entry has lost too many digits: a light tip carries a heavy rest.
# Measured errors were at most 0.3 times the rounding unit divided by that fraction.  Chains of 20,000 links still keep
# a fraction of 0.02.
SMALLEST_PIVOT = 1e-3

# Along a segment -----------------------------------------------------------------------------------------------


@inward(start=lambda base: dict(turn=Turn.none()))
def turns(link, here, beyond):
    """ω_tip = R^T ω + w, R = R_i R_{i+1} ..., ω the angular velocity before body i"""
    f, S = link.placed(here)
    R, w = beyond.turn
    turn = Turn(Mat.of(f.turn(column) for column in R.T).T, R.T @ (S @ here.v).ang + w)
    return dict(turn=turn), dict(E=f.factors[-1], S=S)


class TwoHandles(NamedTuple):
    """I, p, P, b and C of the equations above."""

    I: Inertia
    p: Spatial
    P: tuple[Spatial, ...]  # its columns
    b: Spatial
    C: Inertia  # any symmetric 6x6 matrix, stored as an inertia

    @classmethod
    def nothing(cls, A0: Spatial) -> TwoHandles:
        """The empty segment beyond the last body, which accelerates by A0 if base and joints do not accelerate."""
        return cls(Inertia.zero(), Spatial.zero(), tuple(map(Spatial.unit, range(6))), A0, Inertia.zero())


@inward(start=lambda base: dict(segment=TwoHandles.nothing(Spatial.zero())))
def condense_segment(link, here, beyond):
    """`articulate`, for the forces on the bodies and for a unit of every wrench at the tip"""
    f, S = link.placed(here)
    I, p, P, b, C = beyond.segment
    I, G, D = eliminate(S, I + link.inertia, link.rotors(here))
    p, x = lift(S, G, D, p + here.W, link.left_over(here.tau, here))
    pushed = zip(*(S.T(column) for column in P))
    P, yielding = zip(*(lift(S, G, D, column, Vec.zero(len(x))) for column in P))
    U, X = (tuple(map(Spatial.of, rows)) for rows in (pushed, zip(*yielding)))  # by freedom: P^T S and -P^T S D^-1
    segment = TwoHandles(
        f.carry(I), f.Ad_inv_dual(p), tuple(map(f.Ad_inv_dual, P)), b + combine(U, x), C.minus_outer(U, X)
    )
    return dict(segment=segment), {}


sweeps = Algorithm(
    "segment", ("q", "v", "tau"), (turns, motion, condense_segment), AtBase("segment"),
    options=("external", "added_inertia"), inverts=True,
)  # fmt: skip


# From segment to segment ---------------------------------------------------------------------------------------


class FirstJoint(NamedTuple):
    """The first joint of a segment, in the frame of the body before it.

    A joint can transmit only f = H lambda + T: reactions, which do no work, and the wrench T of its torque.
    """

    H: tuple[Spatial, ...]  # wrenches
    G: tuple[Spatial, ...]  # twists, <H_i, G_j> = 1 if i = j, else 0;  <T, G_j> = 0
    T: Spatial


def first_joint(link: Link, q: Vec, tau: Vec, loaded: bool) -> FirstJoint:
    """The handle at the first body of a segment; a joint with rotors (`loaded`) may transmit any wrench."""
    f, R = link.pose(q), unknown_wrenches(link, q, loaded)
    if loaded:
        return FirstJoint(R, R, Spatial.zero())
    T = f.Ad_inv_dual(link.S(q).dual() @ tau)
    return FirstJoint(tuple(map(f.Ad_inv_dual, R)), tuple(map(f.as_rigid().Ad, R)), T)


class Rest(NamedTuple):
    """The bodies beyond a body need the wrench I A + F from it when it accelerates by A."""

    I: Inertia
    F: Spatial

    @classmethod
    def nothing(cls) -> Rest:
        return cls(Inertia.zero(), Spatial.zero())

    def at(self, A0: Spatial) -> Rest:
        """The same, for accelerations measured from A0."""
        return Rest(self.I, self.F + self.I @ A0)


class TipWrench(NamedTuple):
    """f = Y a + f0, the wrench at the tip of a segment whose base accelerates by a."""

    Y: tuple[Spatial, ...]  # columns
    f0: Spatial


def absorb(segment: TwoHandles, handle: FirstJoint, rest: Rest) -> tuple[Rest, TipWrench]:
    """Combine a segment with the rest of the chain, joined by the handle.  The reaction lambda of that joint solves

        (N + H^T C H) lambda = H^T (P^T a + b - C T) + N G^T F,          N = (G^T I G)^-1,

    where I and F are those of the rest.  The compliance C may be singular, as for a planar chain; N is not.
    If the tip is much lighter than the rest, C is so large that the digits of N are lost.  The pivot is then NaN
    (`sound`), and so are all results.
    """
    H, G, T = handle
    loads = [rest.I @ g for g in G]
    inertia = factor(Mat.symmetric(lambda i, j: pair(loads[i], G[j]), len(G)))
    N = [solve(inertia, Vec.unit(k, len(G))) for k in range(len(G))]
    CH = [segment.C @ h for h in H]
    yielding = Mat.symmetric(lambda i, j: N[i][j] + pair(CH[i], H[j]), len(H))
    L, pivots = factor(yielding)
    pivot = L, [sound(d, yielding[k][k]) for k, d in enumerate(pivots)]
    PH = [combine(segment.P, h.coordinates) for h in H]
    X = [solve(pivot, row) for row in zip(*(column.coordinates for column in PH))]  # lambda = X^T a + x
    free, pushed = segment.b - segment.C @ T, solve(inertia, [pair(rest.F, g) for g in G])
    x = solve(pivot, [pair(h, free) + y for h, y in zip(H, pushed)])
    f0 = combine(H, x) + T
    lifted = [Spatial.of(column) for column in zip(*X)]
    whole = Rest(segment.I.minus_outer([-u for u in PH], lifted), segment.p + combine(segment.P, f0.coordinates))
    return whole, TipWrench(tuple(combine(H, row) for row in X), f0)


def sound(pivot: Scalar, diagonal: Scalar) -> Scalar:
    """The pivot itself, or NaN if it is less than `SMALLEST_PIVOT` times its diagonal entry.

    A step has no branches, so the square root of a negative number produces the NaN.
    """
    least = diagonal * SMALLEST_PIVOT
    root = sqrt(pivot - least)
    return least + root * root


def tip_acceleration(segment: TwoHandles, pull: TipWrench, a: Spatial) -> Spatial:
    """A_tip = P^T a - C f + b"""
    f = combine(pull.Y, a.coordinates) + pull.f0
    return Spatial.of(pair(column, a) for column in segment.P) - segment.C @ f + segment.b
