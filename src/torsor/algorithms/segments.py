"""Forward dynamics of one long chain cut into segments, each an articulated body with two handles.

What the world does to a segment it does at its ends (Featherstone 1999, "A divide-and-conquer articulated-body
algorithm"): the body before it accelerates by a, and what hangs on its last body pulls there with the wrench f.  With
all joints of the segment free,

    F     = I a + P f + p            F    the wrench that the segment demands at its base
    A_tip = P^T a - C f + b          A_tip how its last body accelerates

so I, P, C, p and b are all that its neighbours need to know of it: `condense` finds them, in one inward sweep that is
`articulated.articulate` with six more columns.  No segment waits for another to do so: segments are the lanes of a
vector.  What is left is a chain of few "bodies", the segments themselves, and the sweeps along it are `absorb` and
`spread`.  They tell each segment how its base accelerates and what hangs on its tip: it is then a chain of its own, and
`articulated.forward_dynamics` does the rest.  (To keep what `condense` knows of every joint until then would save a
third of the operations, and on very long chains cost more time than that, for memory.)

Velocities come first: a segment only needs the angular velocity before it, and what a segment does to that is one
rotation and one vector (`turns`).  Accelerations are measured, in each segment, from those it would have if its base
and its joints did not accelerate (`newton_euler.motion`).
"""

from __future__ import annotations

from typing import NamedTuple

from torsor.algorithms.articulated import eliminate, lift
from torsor.algorithms.constraint_force import Turn, combine
from torsor.algorithms.newton_euler import motion
from torsor.linalg import Mat, Scalar, Vec, factor, solve, sqrt
from torsor.model.links import Link
from torsor.outputs import AtBase
from torsor.spatial import Inertia, Spatial, pair
from torsor.sweeps import Algorithm, inward

# A pivot smaller than this part of its diagonal entry has lost too many digits: a light tip carries a heavy rest.
# Measured errors were at most 0.3 of the rounding unit divided by that part.  Even chains of 20,000 links keep 0.02.
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
    C: Inertia  # symmetric 6x6, and not more

    @classmethod
    def nothing(cls, A0: Spatial) -> TwoHandles:
        """Beyond the last body, which accelerates by A0 as long as nothing else does."""
        return cls(Inertia.zero(), Spatial.zero(), tuple(map(Spatial.unit, range(6))), A0, Inertia.zero())


@inward(start=lambda base: dict(segment=TwoHandles.nothing(Spatial.zero())))
def condense(link, here, beyond):
    """`articulate`, for what acts on the bodies and for a unit of every wrench at the tip"""
    f, S = link.placed(here)
    I, p, P, b, C = beyond.segment
    I, G, D = eliminate(S, I + link.inertia)
    p, x = lift(S, G, D, p + here.W, here.tau)
    pushed = zip(*(S.T(column) for column in P))
    P, yielding = zip(*(lift(S, G, D, column, Vec.zero(len(x))) for column in P))
    U, X = (tuple(map(Spatial.of, rows)) for rows in (pushed, zip(*yielding)))  # by freedom: P^T S and -P^T S D^-1
    segment = TwoHandles(
        f.carry(I), f.Ad_inv_dual(p), tuple(map(f.Ad_inv_dual, P)), b + combine(U, x), C.minus_outer(U, X)
    )
    return dict(segment=segment), {}


sweeps = Algorithm(
    "segment", ("q", "v", "tau"), (turns, motion, condense), AtBase("segment"), options=("external",),
    inverts=True,
)  # fmt: skip


# From segment to segment ---------------------------------------------------------------------------------------


class Handle(NamedTuple):
    """The first joint of a segment, from the side of the body before it.

    f = H lambda + T is all that a joint can transmit: reactions, which do no work, and the wrench T of its torque.
    """

    H: tuple[Spatial, ...]  # wrenches
    G: tuple[Spatial, ...]  # twists, <H_i, G_j> = 1 if i = j, else 0;  <T, G_j> = 0
    T: Spatial


def hold(link: Link, q: Vec, tau: Vec) -> Handle:
    """Of the first body of a segment."""
    f, R = link.pose(q), link.reactions(q)
    T = f.Ad_inv_dual(link.S(q).dual() @ tau)
    return Handle(tuple(map(f.Ad_inv_dual, R)), tuple(map(f.as_rigid().Ad, R)), T)


class Rest(NamedTuple):
    """What hangs on a body demands the wrench I A + F of it when it accelerates by A."""

    I: Inertia
    F: Spatial

    @classmethod
    def nothing(cls) -> Rest:
        return cls(Inertia.zero(), Spatial.zero())

    def at(self, A0: Spatial) -> Rest:
        """The same for accelerations that are measured from A0."""
        return Rest(self.I, self.F + self.I @ A0)


class Pull(NamedTuple):
    """f = Y a + f0, the wrench at the tip of a segment whose base accelerates by a."""

    Y: tuple[Spatial, ...]  # columns
    f0: Spatial


def absorb(segment: TwoHandles, handle: Handle, rest: Rest) -> tuple[Rest, Pull]:
    """A segment and the rest, which hangs on it by the handle, as one.  What that joint transmits solves

        (N + H^T C H) lambda = H^T (P^T a + b - C T) + N G^T F,          N = (G^T I G)^-1,

    I and F those of the rest.  The compliance C may be singular, as that of a plane chain is; N is not.  Where the tip
    is much lighter than the rest, C is so large that the digits of N are lost: the pivot is then NaN (`sound`), and so
    are all results.
    """
    H, G, T = handle
    felt = [rest.I @ g for g in G]
    held = factor(Mat.symmetric(lambda i, j: pair(felt[i], G[j]), len(G)))
    N = [solve(held, Vec.unit(k, len(G))) for k in range(len(G))]
    CH = [segment.C @ h for h in H]
    yielding = Mat.symmetric(lambda i, j: N[i][j] + pair(CH[i], H[j]), len(H))
    L, pivots = factor(yielding)
    pivot = L, [sound(d, yielding[k][k]) for k, d in enumerate(pivots)]
    PH = [combine(segment.P, h.coordinates) for h in H]
    X = [solve(pivot, row) for row in zip(*(column.coordinates for column in PH))]  # lambda = X^T a + x
    free, pushed = segment.b - segment.C @ T, solve(held, [pair(rest.F, g) for g in G])
    x = solve(pivot, [pair(h, free) + y for h, y in zip(H, pushed)])
    f0 = combine(H, x) + T
    lifted = [Spatial.of(column) for column in zip(*X)]
    whole = Rest(segment.I.minus_outer([-u for u in PH], lifted), segment.p + combine(segment.P, f0.coordinates))
    return whole, Pull(tuple(combine(H, row) for row in X), f0)


def sound(pivot: Scalar, diagonal: Scalar) -> Scalar:
    """The pivot itself, but NaN if it is less than `SMALLEST_PIVOT` of its diagonal entry.

    A step has no branches: the square root of a negative number says it.
    """
    least = diagonal * SMALLEST_PIVOT
    root = sqrt(pivot - least)
    return least + root * root


def spread(segment: TwoHandles, pull: Pull, a: Spatial) -> Spatial:
    """A_tip = P^T a - C f + b"""
    f = combine(pull.Y, a.coordinates) + pull.f0
    return Spatial.of(pair(column, a) for column in segment.P) - segment.C @ f + segment.b
