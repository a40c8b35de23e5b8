"""The constraint force algorithm (Featherstone & Fijany 1999): it solves for the wrenches in the joints.

A joint lets its body move along S and constrains it by a reaction; the wrench that it transmits is

    f_i = R_i lambda_i + T'_i tau_i,       R_i spans the wrenches reciprocal to S_i  (h_i^perp of the paper),
                                           T'_i = S (S^T S)^-1: I_X of Eq. 16 is the identity map,

and with R orthonormal lambda = R^T f.  A joint is "loaded" if it has rotors: the wrench that it transmits then depends
on its acceleration in all six directions, R is the identity and T' is zero.  The lambda of all joints solve one block
tridiagonal system (T2^T I^-1 T2 of Eq. 16), one block per joint.  Here it is written in link coordinates and never
assembled.  A run of bodies between two joints enters it only through

    alpha_1 =  C11 lambda_1   - C12 lambda_2 + c1       alpha = R^T Ad_{f^-1} A: the acceleration of the body
    alpha_2 =  C12^T lambda_1 - C22 lambda_2 + c2       before a joint, in the directions that the joint blocks

(a two-handle articulated body).  Two runs are joined by eliminating the lambda of the joint between them: one block
pivot.  The order is free: joining pairs, then pairs of pairs, ... takes log2 n rounds.  Articulated sweeps condense
a run of one or a few bodies ("constrained dynamics"); the mobilities C join runs ("unconstrained minus immobilised
dynamics").  These are the two sides of Eq. 8.

Every function here is pure and pointwise, over scalars of any type.  `torsor.parallel` builds the schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from torsor.algorithms.articulated import accelerate, articulate, drop, eliminate, lift
from torsor.algorithms.newton_euler import MOTION_OPTIONS, motion, spin
from torsor.linalg import Mat, Scalar, Vec, dot, factor, log, solve
from torsor.model.links import Link
from torsor.outputs import PerBody
from torsor.spatial import Inertia, Spatial, pair
from torsor.sweeps import Algorithm, inward, outward

# Reactions of a joint ----------------------------------------------------------------------------------------


class Handle(NamedTuple):
    """The action of a joint on the body before it: reactions and unit torques in that body's frame."""

    reactions: tuple[Spatial, ...]  # Ad*_{f^-1} R, filled up with zeros to the size of a block
    torques: tuple[Spatial, ...]  # Ad*_{f^-1} T'


def handle(link: Link, here: Any, size: int, loaded: bool) -> Handle:
    f, S = link.placed(here)
    R = [f.Ad_inv_dual(r) for r in unknown_wrenches(link, here.q, loaded)]
    padding = [Spatial.zero()] * (size - len(R))
    torques = [Spatial.zero()] * len(S.columns) if loaded else [f.Ad_inv_dual(t) for t in S.dual().columns]
    return Handle((*R, *padding), tuple(torques))


def unknown_wrenches(link: Link, q: Vec, loaded: bool) -> tuple[Spatial, ...]:
    """R: a basis of the unknown wrenches through a joint."""
    return tuple(map(Spatial.unit, range(6))) if loaded else link.reactions(q)


def combine(wrenches: Sequence[Spatial], factors: Sequence[Scalar]) -> Spatial:
    total = Spatial.zero()
    for w, x in zip(wrenches, factors):
        total = total + w * x
    return total


# Angular velocities: ω' = R^T ω + w composes -----------------------------------------------------------------


class Turn(NamedTuple):
    """The map of angular velocity along a run of bodies: ω -> R^T ω + w, from before the run to the last body's
    frame."""

    R: Mat
    w: Vec

    @classmethod
    def none(cls) -> Turn:
        return cls(Mat.identity(), Vec.zero())

    def after(self, w: Vec) -> Vec:
        return self.R.T @ w + self.w

    def then(self, next: Turn) -> Turn:
        return Turn(self.R @ next.R, next.after(self.w))


def turn_of(links: Sequence[Link], here: Sequence[Any]) -> Turn:
    """ω_i = R_i^T ω_{i-1} + S_i v_i along a run."""
    total = Turn.none()
    for link, h in zip(links, here):
        f, S = link.placed(h)
        total = total.then(Turn(f.rotation(), (S @ h.v).ang))
    return total


# Runs of bodies ----------------------------------------------------------------------------------------------


class Segment(NamedTuple):
    """The mobilities of a run at its two joints (see the module docstring).  C11 and C22 are symmetric."""

    C11: Mat
    C12: Mat
    C22: Mat
    c1: Vec
    c2: Vec

    @classmethod
    def nothing(cls, size: int) -> Segment:
        """The neutral segment: joined after the last body, it changes nothing."""
        zero = Vec.zero(size)
        return cls(Mat.identity(size), Mat.zero(size), Mat.zero(size), zero, zero)

    def pack(self) -> list[Scalar]:
        """All numbers; each entry of a symmetric matrix appears once."""
        upper = [C[i][j] for C in (self.C11, self.C22) for i, j in _upper(len(self.c1))]
        return [*upper, *(x for row in self.C12 for x in row), *self.c1, *self.c2]

    @classmethod
    def unpack(cls, numbers: Sequence[Scalar], size: int) -> Segment:
        it = iter(numbers)

        def symmetric() -> Mat:
            upper = {ij: next(it) for ij in _upper(size)}
            return Mat.symmetric(lambda i, j: upper[i, j], size)

        C11, C22 = symmetric(), symmetric()
        C12 = Mat.of([next(it) for _ in range(size)] for _ in range(size))
        c1, c2 = (Vec.of(next(it) for _ in range(size)) for _ in range(2))
        return cls(C11, C12, C22, c1, c2)

    @staticmethod
    def length(size: int) -> int:
        """The length of the list that `pack` returns."""
        return 2 * size * size + 3 * size


def _upper(size: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(size) for j in range(i, size)]


class Run(NamedTuple):
    """The values of a condensed run for `release`: those at every body and at the first joint, and A0 of the last
    body."""

    bodies: list[dict[str, Any]]
    R: tuple[Spatial, ...]
    A0: Spatial


class Condensed(NamedTuple):
    segment: Segment
    run: Run
    pivots: list[Scalar]  # of all joints of the run, and of the inertia that the first joint constrains


def condense_run(links: Sequence[Link], here: Sequence[Any], w: Vec | None, tip: Sequence[Spatial], load: Spatial,
             size: int, loaded: bool) -> Condensed:  # fmt: skip
    """A run of bodies as a segment.

    w     the angular velocity before the run (None: only M^-1 b, no velocities)
    tip   the reactions of the joint after the run, and `load` the wrench of its torque, both acting on the last body
    loaded   whether the first joint of the run has rotors

    The outward sweep computes the accelerations A0 for no joint acceleration and no acceleration before the run.  The
    inward sweep eliminates the joints as in `articulated`, for the given forces and for a unit of every tip reaction.
    """
    A0 = _bias(links, here, w)
    I, F, columns = Inertia.zero(), load, list(tip)
    mobility = [[0.0] * size for _ in range(size)]  # of the tip, with the joint before the run at rest
    c2 = [pair(r, A0) for r in tip]
    bodies: list[dict[str, Any]] = []
    pivots: list[Scalar] = []
    for link, h in zip(reversed(links), reversed(here)):
        f, S = link.placed(h)
        J = link.inertia if h.side is None else link.inertia + h.side.I
        I, G, D = eliminate(S, I + J, link.rotors(h))
        pivots += D[1]
        if h.W is not None:
            F = F + h.W
        F, x = lift(S, G, D, F, h.b if h.tau is None else link.left_over(h.tau, h))
        pushed = [S.T(column) for column in columns]
        lifted = [lift(S, G, D, column, Vec.zero(len(x))) for column in columns]
        for j in range(size):
            c2[j] = c2[j] + dot(pushed[j], x)
            for k in range(j, size):
                mobility[j][k] = mobility[j][k] - dot(pushed[j], lifted[k][1])
        columns = [column for column, _ in lifted]
        bodies.append(dict(E=f.factors[-1], S=S, G=G, x=x, X=tuple(xj for _, xj in lifted)))
        if len(bodies) < len(links):
            I, F = f.carry(I), f.Ad_inv_dual(F)
            columns = [f.Ad_inv_dual(column) for column in columns]
    R = unknown_wrenches(links[0], here[0].q, loaded)
    loads = [I @ r for r in R]
    A = factor(Mat.symmetric(lambda i, j: pair(loads[i], R[j]), len(R)))
    segment = _mobilities(R, A, columns, F, mobility, c2, size)
    return Condensed(segment, Run(bodies[::-1], R, A0), [*pivots, *A[1]])


def _bias(links: Sequence[Link], here: Sequence[Any], w: Vec | None) -> Spatial:
    """A0 of the last body; every body keeps the wrench of A0 plus those of its side branches."""
    if w is None:
        for h in here:
            h.W = None if h.side is None else h.side.F
        return Spatial.zero()
    near: dict[str, Any] = standing(w)
    for link, h in zip(links, here):
        near, keep = motion.step(link, h, SimpleNamespace(**near))
        vars(h).update(keep)
        if h.side is not None:
            h.W = h.W + h.side.F + h.side.I @ Spatial(near["dw"], near["a"])
    return Spatial(near["dw"], near["a"])


def standing(w: Vec) -> dict[str, Any]:
    """A body that rotates with ω and does not accelerate, in the form that `motion` expects."""
    return dict(w=w, dw=Vec.zero(), a=Vec.zero(), Omega=spin(w, Vec.zero()))


def _mobilities(R: Sequence[Spatial], A: tuple, columns: Sequence[Spatial], F: Spatial, mobility: Sequence,
                c2: Sequence, size: int) -> Segment:  # fmt: skip
    """From lambda_1 = A alpha_1 + P lambda_2 + p and alpha_2 = P^T alpha_1 - mobility lambda_2 + c2, A factored."""
    P = [Vec.of(pair(r, column) for r in R) for column in columns]

    def padded(x: Sequence[Scalar]) -> Vec:
        return Vec(*x, *[0.0] * (size - len(R)))

    inverse = [padded(solve(A, Vec.unit(k, len(R)))) for k in range(len(R))]
    inverse += [Vec.unit(k, size) for k in range(len(R), size)]  # a direction without constraint: lambda = 0 there
    C12 = [solve(A, p) for p in P]
    c1 = -solve(A, [pair(r, F) for r in R])
    return Segment(
        Mat.symmetric(lambda i, j: inverse[j][i], size),
        Mat.of(padded(c) for c in C12).T,
        Mat.symmetric(lambda i, j: mobility[i][j] + dot(P[i], C12[j]), size),
        padded(c1),
        Vec.of(c2[j] + dot(P[j], c1) for j in range(size)),
    )


class Joined(NamedTuple):
    """lambda = W1 lambda_1 + W2 lambda_2 + y of an eliminated joint, and the pivots of its elimination."""

    W1: Mat
    W2: Mat
    y: Vec
    pivots: tuple[Scalar, ...] = ()

    def reaction(self, first: Vec, last: Vec) -> Vec:
        return self.W1 @ first + self.W2 @ last + self.y

    def pack(self) -> list[Scalar]:
        return [x for W in (self.W1, self.W2) for row in W for x in row] + list(self.y)

    @classmethod
    def unpack(cls, numbers: Sequence[Scalar], size: int) -> Joined:
        rows = [Vec.of(numbers[k : k + size]) for k in range(0, len(numbers), size)]
        return cls(Mat.of(rows[:size]), Mat.of(rows[size : 2 * size]), rows[-1])

    @staticmethod
    def length(size: int) -> int:
        return 2 * size * size + size


def join(a: Segment, b: Segment) -> tuple[Segment, Joined]:
    """Two runs as one: eliminate the reaction between them.

    (C22^a + C11^b) lambda = C12^aT lambda_1 + C12^b lambda_2 + c2^a - c1^b
    """
    size = len(a.c1)
    pivot = factor(Mat.symmetric(lambda i, j: a.C22[i][j] + b.C11[i][j], size))
    W1 = Mat.of(solve(pivot, row) for row in a.C12).T
    W2 = Mat.of(solve(pivot, column) for column in b.C12.T).T
    y = solve(pivot, a.c2 - b.c1)
    C12b = b.C12.T
    segment = Segment(
        Mat.symmetric(lambda i, j: a.C11[i][j] - dot(a.C12[i], [row[j] for row in W1]), size),
        a.C12 @ W2,
        Mat.symmetric(lambda i, j: b.C22[i][j] - dot(C12b[i], [row[j] for row in W2]), size),
        a.c1 - a.C12 @ y,
        b.c2 + C12b @ y,
    )
    return segment, Joined(W1, W2, y, tuple(pivot[1]))


def join_all(segments: Sequence[Segment]) -> tuple[Segment, list[Joined]]:
    """Join consecutive runs to one, by halves; also returns the eliminated reactions, as `reactions_between` needs."""
    if len(segments) == 1:
        return segments[0], []
    half = (len(segments) + 1) // 2
    (a, first), (b, second) = join_all(segments[:half]), join_all(segments[half:])
    whole, middle = join(a, b)
    return whole, [middle, *first, *second]


def reactions_between(joined: Sequence[Joined], count: int, first: Vec, last: Vec) -> list[Vec]:
    """lambda before each of `count` runs, given lambda before the first and after the last."""
    if count == 1:
        return [first]
    half = (count + 1) // 2
    middle = joined[0].reaction(first, last)
    return [
        *reactions_between(joined[1:half], half, first, middle),
        *reactions_between(joined[half:], count - half, middle, last),
    ]


def first_reaction(whole: Segment, alpha: Vec) -> Vec:
    """lambda of the joint at the base: alpha = C11 lambda + c1, nothing beyond the tip."""
    return solve(factor(whole.C11), alpha - whole.c1)


def release(links: Sequence[Link], run: Run, segment: Segment, first: Vec, last: Vec) -> tuple[list[Vec], Spatial]:
    """The joint accelerations of a run and the acceleration of its last body, from the reactions at both ends.

    Of the acceleration before the run, only the part that the first joint constrains is known.  The rest, S s, appears
    in that joint's own acceleration, which is too large by s until `first_joint_acceleration` subtracts it.
    """
    alpha = segment.C11 @ first - segment.C12 @ last + segment.c1
    A = combine(run.R, alpha)
    accelerations = []
    for i, (link, h) in enumerate(zip(links, run.bodies)):
        if i:
            f, _ = link.placed(SimpleNamespace(**h))
            A = f.Ad_inv(A)
        x = h["x"]
        for xj, force in zip(h["X"], last):
            x = x + xj * force
        A, qdd = drop(h["S"], h["G"], x, A)
        accelerations.append(qdd)
    return accelerations, run.A0 + A


def first_joint_acceleration(torques: Sequence[Spatial], A: Spatial, qdd: Sequence[Scalar]) -> Vec:
    """qdd - T'^T Ad_{f^-1} A: the first joint of a run, once the acceleration A of the body before it is known."""
    return Vec.of(x - pair(t, A) for t, x in zip(torques, qdd))


# The determinant ---------------------------------------------------------------------------------------------


def log_product(pivots: Sequence[Scalar]) -> Scalar:
    """The sum of the logarithms of all pivots, log det M.

    Let every run float in the directions that its first joint constrains: its mass matrix has the pivots of
    `condense_run`.  Constraining all runs again multiplies the determinant by that of the system for the reactions
    (det M = det G det H22, Fixman 1974).  The pivots of that system are those of `join`, and of C11 of the whole chain.
    """
    total: Scalar = 0.0
    for pivot in pivots:
        total = total + log(pivot)
    return total


# Reaction wrenches along a tree, in O(n) ---------------------------------------------------------------------


@outward(start=lambda base: dict(A=Spatial.zero()))
def push(link, here, parent):
    """`accelerate`, and the wrench that moves this body: W of the bias accelerations and J (A - A0)"""
    hand, _ = accelerate.step(link, here, parent)
    return hand, dict(moving=here.W + link.inertia @ hand["A"])


@inward(start=lambda base: dict(F=Spatial.zero()))
def transmit(link, here, children):
    """F_i = (the wrench that moves body i) + sum Ad*_{f^-1} F: the wrench through joint i, in the body's frame"""
    f, _ = link.placed(here)
    F = here.moving + children.F
    return dict(F=f.Ad_inv_dual(F)), dict(wrench=link.body_frame().Ad_dual(F))


constraint_forces = Algorithm(
    "constraint_forces", ("q", "v", "tau"), (motion, articulate, push, transmit), PerBody("wrench"),
    options=MOTION_OPTIONS, inverts=True,
)  # fmt: skip
