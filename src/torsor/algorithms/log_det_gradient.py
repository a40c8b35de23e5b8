"""The gradient of log det M in two sweeps: the force that corrects chains with rigid bonds.

log det M = sum log det D_i over the pivots of the articulated inertias (`articulated`).  Run backwards, that
inward sweep becomes an outward sweep for the derivative of log det M with respect to an inertia.  This derivative is
the response of body i to unit wrenches on it, Omega_i = J_i M^-1 J_i^T:

    W = Ad_{f^-1} Omega_parent Ad_{f^-1}^T                                        Omega before the joint moves
    Omega_i = (1 - S G^T) W (1 - S G^T)^T + S D^-1 S^T                            and after

A motion of joint i along S turns f by -ad_S and, in joints whose directions depend on q, S itself by dS:

    d log det M = -2 tr(ad_S W I^) + 2 <G - I^ W G, dS>,        I^ the articulated inertia behind the joint.

For a quaternion the derivative is along the three directions of the body's angular velocity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torsor.algorithms.articulated import eliminate
from torsor.linalg import Mat, Scalar, Vec, dot, solve
from torsor.outputs import PerFreedom
from torsor.spatial import Inertia, Pose, Product, Screw, Spatial, pair
from torsor.sweeps import Algorithm, inward, outward

Twists = Sequence[Spatial]


@inward(start=lambda base: dict(I=Inertia.zero()))
def inertias_behind_joints(link, here, children):
    """`articulated.articulated_inertias`, keeping the inertia I^ = I - U D^-1 U^T of the body behind its free joint."""
    f, S = link.placed(here)
    I, G, D = eliminate(S, children.I + link.inertia, link.rotors(here))
    return dict(I=f.carry(I)), dict(E=f.factors[-1], S=S, G=G, D=D, I=I)


@outward(start=lambda base: dict(Omega=Inertia.zero()))
def differentiate(link, here, parent):
    """Omega of the body from that of its parent, and the derivative along the joint."""
    f, S = link.placed(here)
    W = inverse(f).carry(parent.Omega)
    moment = axial_of_product(W, here.I)
    WG = [times(W, g) for g in here.G]
    gradient = []
    for k, s in enumerate(S.columns):
        total: Scalar = pair(moment, s) * -2.0
        for g, Wg, ds in zip(here.G, WG, link.S_rate(here.q, Vec.unit(k, link.joint.nv)).columns):
            total = total + pair(g - here.I @ Wg, ds) * 2.0
        gradient.append(total)
    return dict(Omega=after_joint(W, S.columns, here.G, WG, here.D)), dict(gradient=Vec.of(gradient))


def after_joint(W: Inertia, S: Twists, G: Twists, WG: Twists, D: tuple) -> Inertia:
    """(1 - S G^T) W (1 - S G^T)^T + S D^-1 S^T = W - S Y^T - Y S^T,  Y = W G - S (G^T W G + D^-1) / 2."""
    Y = []
    for k, Wg in enumerate(WG):
        column = solve(D, Vec.unit(k, len(S)))
        for s, g, d in zip(S, G, column):
            Wg = Wg - s * ((pair(g, WG[k]) + d) * 0.5)
        Y.append(Wg)
    S, Y = [swap(s) for s in S], [swap(y) for y in Y]
    return W.minus_outer([*S, *Y], [*Y, *S])


# Omega is a form on wrenches.  With angular and linear parts swapped it transforms between frames as an inertia
# does, with f^-1 for f, and is stored as one.


def swap(V: Spatial) -> Spatial:
    return Spatial(V.lin, V.ang)


def times(W: Inertia, F: Spatial) -> Spatial:
    """W F: the twist of a wrench."""
    return swap(W @ swap(F))


def inverse(f: Pose) -> Any:
    if isinstance(f, Product):
        return Product(tuple(inverse(g) for g in reversed(f.factors)))
    return Screw(f.k, f.c, -f.s, -f.d) if isinstance(f, Screw) else f.inverse()


def axial_of_product(W: Inertia, I: Inertia) -> Spatial:
    """The covector m with <m, V> = tr(ad_V W I)."""
    ww, wv, vv = W.M, W.H.T, W.J  # the blocks of W, unswapped
    P11 = entries(ww, I.J, wv, I.H.T)
    P12 = entries(ww, I.H, wv, I.M)
    P22 = entries(wv.T, I.H, vv, I.M)
    return Spatial(axial(lambda i, j: P11(i, j) + P22(i, j)), axial(P12))


def entries(A: Mat, B: Mat, C: Mat, D: Mat):
    """Entry (i, j) of A B + C D."""
    Bt, Dt = B.T, D.T
    return lambda i, j: dot(A[i], Bt[j]) + dot(C[i], Dt[j])


def axial(P) -> Vec:
    """The vector a with a . w = tr([w] P)."""
    return Vec(P(1, 2) - P(2, 1), P(2, 0) - P(0, 2), P(0, 1) - P(1, 0))


log_det_gradient = Algorithm(
    "log_det_gradient", ("q",), (inertias_behind_joints, differentiate), PerFreedom("gradient"), inverts=True
)
