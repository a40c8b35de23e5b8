"""The drift of RATTLE in the coordinates of the joints: one variational step of the bodies, solved by Newton in O(n).

Let x0 and x1 be the positions of a mass point before and after a step of length h. The discrete Lagrangian of free
motion is sum m |x1 - x0|^2 / (2 h) over the points of all bodies (J. Moser, A. P. Veselov, Comm. Math. Phys. 139, 1991,
for a rotation; J. E. Marsden, M. West, Acta Numerica 2001). Its momenta are, for every body, the wrench

    z = sum m (r x (x1 - x0), x1 - x0) / h,

with r from the body's origin to the point, before the step (z0) or after it (z1).

With J(q) the Jacobian of all bodies, a step from (q0, p0) is

    J(q0)^T z0(q0, q1) = p0   for q1,     then     p1 = J(q1)^T z1(q0, q1).

This map is symplectic and reversible, and it conserves the momenta that the machine conserves. It is the map of RATTLE
for the points of the bodies with the joints as constraints (H. C. Andersen, J. Comput. Phys. 52, 1983), without
multipliers.

Newton's matrix is J(q0)^T B J(q1), with B_i the slope of z_i: a mass matrix with the joint axes before the step on the
left and those after it on the right. So the sweeps of `articulated` solve it, with inertias B that are not symmetric.

Everything here is in the axes of the base, about the origins of the bodies. All impulses are multiplied by h.
"""

from __future__ import annotations

from typing import NamedTuple

from torsor.algorithms.newton_euler import axial
from torsor.linalg import Mat, Scalar, Vec, cross, dot, lu, lu_solve
from torsor.outputs import AtBase, PerCoordinate, PerFreedom, Several
from torsor.spatial import Rigid, Spatial, Subspace, pair
from torsor.sweeps import Algorithm, Sweep, inward, outward


class Slope(NamedTuple):
    """A 6x6 matrix [[J, H], [G, M]] from the twist of a body after the step to its momenta before the step."""

    J: Mat
    H: Mat
    G: Mat
    M: Mat

    @classmethod
    def zero(cls) -> Slope:
        return cls(Mat.zero(), Mat.zero(), Mat.zero(), Mat.zero())

    @classmethod
    def rigid(cls, m: Scalar, b0: Vec, b1: Vec, K: Mat) -> Slope:
        """The slope of one body: first moments b = sum m r before and after, K = sum m r1 r0^T.

        r0 x (w x r1) = (tr K - K) w;   r0 x v = [b0] v;   w x r1 = -[b1] w
        """
        trace = K[0][0] + K[1][1] + K[2][2]
        return cls(Mat.identity() * trace - K, skew(b0), -skew(b1), Mat.identity() * m)

    def __add__(self, other: Slope) -> Slope:  # type: ignore[override]
        return Slope(*(a + b for a, b in zip(self, other)))

    def __matmul__(self, V: Spatial) -> Spatial:
        return Spatial(self.J @ V.ang + self.H @ V.lin, self.G @ V.ang + self.M @ V.lin)

    def T(self, V: Spatial) -> Spatial:
        """Its transpose times V."""
        return Spatial(self.J.T @ V.ang + self.G.T @ V.lin, self.H.T @ V.ang + self.M.T @ V.lin)

    def minus_outer(self, U: list[Spatial], G: list[Spatial]) -> Slope:
        """self - sum_k U_k G_k^T"""

        def block(A: Mat, a: str, b: str) -> Mat:
            return Mat.of(
                (A[i][j] - dot([getattr(u, a)[i] for u in U], [getattr(g, b)[j] for g in G]) for j in range(3))
                for i in range(3)
            )

        parts = zip(self, (("ang", "ang"), ("ang", "lin"), ("lin", "ang"), ("lin", "lin")))
        return Slope(*(block(A, *names) for A, names in parts))

    def shifted(self, r0: Vec, r1: Vec) -> Slope:
        """About the parent's origin, which is at -r0 before and at -r1 after the step: v + w x r1, L + r0 x P."""
        X0, X1 = skew(r0), skew(r1)
        J, G = self.J - self.H @ X1, self.G - self.M @ X1
        return Slope(J + X0 @ G, self.H + X0 @ self.M, G, self.M)


def skew(r: Vec) -> Mat:
    """[r] with [r] x = r x x"""
    return Mat((0.0, -r[2], r[1]), (r[2], 0.0, -r[0]), (-r[1], r[0], 0.0))


def moved(F: Spatial, r: Vec) -> Spatial:
    """A wrench about the parent's origin, which is at -r."""
    return Spatial(F.ang + cross(r, F.lin), F.lin)


def turned(R: Mat, S: Subspace) -> Subspace:
    return Subspace(tuple(Spatial(R @ s.ang, R @ s.lin) for s in S.columns))


# The sweeps --------------------------------------------------------------------------------------------------


@outward(start=lambda base: dict(R=Mat.identity()))
def depart(link, here, parent):
    """A body before the step: its axes R, the shift r from its parent's origin, S, and R^T times its second moment.

    The first guess of q1 is q0 [+] h x.
    """
    R, r = link.pose(here.q).after(Rigid(parent.R, Vec.zero()))
    y = here.x * here.h[0]
    first = dict(y=y, q1=link.joint.retract(here.q, y))
    before = dict(r0=r, S0=turned(R, link.S(here.q)), b0=R @ link.first_moment, E0=link.second_moment @ R.T)
    return dict(R=R), before | first


def arrive(link, here, parent, q1: Vec):
    """A body after the step: d, the displacement of its origin, and K = sum m r1 r0^T."""
    R, r = link.pose(q1).after(Rigid(parent.R, Vec.zero()))
    d = parent.d + r - here.r0
    return dict(R=R, d=d), dict(r1=r, S1=turned(R, link.S(q1)), b1=R @ link.first_moment, K=R @ here.E0, d=d)


@outward(start=lambda base: dict(R=Mat.identity(), d=Vec.zero()))
def guess(link, here, parent):
    """`arrive` at the first guess."""
    return arrive(link, here, parent, here.q1)


def impulse(link, here, arm: Vec) -> Spatial:
    """h z:   sum m r x (x1 - x0) = b x d + axial(K),   sum m (x1 - x0) = m d + b1 - b0"""
    return Spatial(cross(arm, here.d) + axial(here.K), here.d * link.mass + here.b1 - here.b0)


@inward(start=lambda base: dict(B=Slope.zero(), F=Spatial.zero()))
def eliminate(link, here, children):
    """Eliminate the joint:   D = S0^T B S1 + R,   G = D^-1 S0^T B,   B^ = B - U G,   U = B S1,

    u = h p - S0^T F - R y,   F^ = F + U D^-1 u,     with R the rotors of the joint.
    """
    S0, S1, rotors = here.S0, here.S1, link.armature
    B = children.B + Slope.rigid(link.mass, here.b0, here.b1, here.K)
    F = children.F + impulse(link, here, here.b0)
    U, V = [B @ s for s in S1.columns], [B.T(s) for s in S0.columns]
    D = lu([[pair(s, u) + (rotors[i] if i == j else 0.0) for j, u in enumerate(U)] for i, s in enumerate(S0.columns)])
    u = link.with_rotors(S0.T(F), here.y)
    x = lu_solve(D, here.p * here.h[0] - u)
    G = [Spatial.of(g) for g in zip(*(lu_solve(D, row) for row in zip(*(v.coordinates for v in V))))]
    for column, share in zip(U, x):
        F = F + column * share
    return dict(B=B.minus_outer(U, G).shifted(here.r0, here.r1), F=moved(F, here.r0)), dict(G=G, share=x, D=D, U=U)


@inward(start=lambda base: dict(F=Spatial.zero()))
def correct(link, here, children):
    """u and D^-1 u at the improved q1, with D, U and G of the round before: near the solution they hardly change."""
    F = children.F + impulse(link, here, here.b0)
    x = lu_solve(here.D, here.p * here.h[0] - link.with_rotors(here.S0.T(F), here.y))
    for column, share in zip(here.U, x):
        F = F + column * share
    return dict(F=moved(F, here.r0)), dict(share=x)


@outward(start=lambda base: dict(A=Spatial.zero(), R=Mat.identity(), d=Vec.zero()))
def improve(link, here, parent):
    """w = D^-1 u - G a,   a = (w, v + w x r1) of the parent;   q1 <- q1 [+] w"""
    a = Spatial(parent.A.ang, parent.A.lin + cross(parent.A.ang, here.r1))
    w = Vec.of(x - pair(g, a) for x, g in zip(here.share, here.G))
    q1 = link.joint.retract(here.q1, w)
    hand, keep = arrive(link, here, parent, q1)
    return dict(A=a + here.S1 @ w) | hand, keep | dict(q1=q1, y=here.y + w, w=w)


@inward(start=lambda base: dict(F0=Spatial.zero(), F1=Spatial.zero(), change=0.0))
def land(link, here, children):
    """p1 = p0 + J(q1)^T z1 - J(q0)^T z0, and the square of the last correction.

    Rounding of the coordinates appears in z, multiplied by 1/h; in the difference it is multiplied by h again.
    """
    F0, F1 = children.F0 + impulse(link, here, here.b0), children.F1 + impulse(link, here, here.b1)
    per_time = 1.0 / here.h[0]
    p1 = here.p + (here.S1.T(F1) - here.S0.T(F0)) * per_time
    change = children.change + dot(here.w, here.w)
    return dict(F0=moved(F0, here.r0), F1=moved(F1, here.r1), change=change), dict(p1=p1, x1=here.y * per_time)


def _algorithm(name: str, *rounds: Sweep) -> Algorithm:
    """Rounds of Newton from the guess h x; the mean velocity that comes out is a better guess."""
    passes = (depart, guess, *rounds, land)
    output = Several(p=PerFreedom("p1"), x=PerFreedom("x1"), change=AtBase("change"), q=PerCoordinate("q1"))
    return Algorithm(name, ("q", "p", "x", "h"), passes, output, inverts=True, torques_only=True)


ROUNDS, NEAR_ROUNDS = 3, 2  # which settle most steps; the second from guesses that know the acceleration
drift = _algorithm("drift", *(eliminate, improve) * ROUNDS)
drift_near = _algorithm("drift_near", eliminate, improve, correct, improve)
drift_further = _algorithm("drift_further", eliminate, improve)
