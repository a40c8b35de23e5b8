"""The Coriolis matrix C(q, v) of the Christoffel symbols: C v is the velocity term, dM/dt - 2C is skew.

After Echeandia & Wensing (2021).  A body's own matrix B, with B V = -ad*_V J V and dJ/dt - 2B skew, is

    B = [[A, 0], [-[f], 0]],   A = ([w] J - J [w] - [J w]) / 2 - [h] [v],   f = m v + w x h   (its momentum),

worked out here from their definition; most of the 6x6 matrix is zero and stays so in composite bodies.
"""

from __future__ import annotations

from types import SimpleNamespace

from torsor.algorithms.kinematics import twists
from torsor.lie import hat
from torsor.linalg import Mat, Vec, cross
from torsor.outputs import TwoTriangles
from torsor.spatial import Inertia, Spatial, Subspace, ad
from torsor.sweeps import Algorithm, Columns, inward


def _body_matrix(link, V: Spatial) -> tuple[Mat, Vec]:
    w, v = V
    J, h = link.inertia.J, link.first_moment
    WJ = hat(w) @ J
    A = (WJ + WJ.T - hat(J @ w)) * 0.5 - hat(h) @ hat(v)  # -J [w] = ([w] J)^T
    return A, v * link.mass + cross(w, h)


@inward(start=lambda base: dict(I=Inertia.zero(), A=Mat.zero(), f=Vec.zero()))
def compose(link, here, children):
    """Composite I and B, and the three wrenches that each freedom sends towards the base."""
    pose, S = link.placed(here)
    I = children.I + link.inertia
    A, f = _body_matrix(link, here.V)
    A, f = A + children.A, f + children.f
    rates = tuple(rate + ad(here.V, s) for s, rate in zip(S.columns, link.S_rate(here.q, here.v).columns))
    F1 = tuple(I @ rate + Spatial(A @ s.ang, cross(s.ang, f)) for s, rate in zip(S.columns, rates))
    F2 = tuple(I @ s for s in S.columns)
    F3 = tuple(Spatial(A.T @ s.ang + cross(f, s.lin), Vec.zero()) for s in S.columns)

    p, R = pose.p, pose.rotation()
    f_up = R @ f
    A_up = R @ A @ R.T - hat(p) @ hat(f_up)
    return dict(I=pose.carry(I), A=A_up, f=f_up), dict(rates=rates, F1=F1, F2=F2, F3=F3)


def rise(link, here, below):
    """C_ij = S_i^T F1     C_ji = (dS_i/dt)^T F2 + S_i^T F3"""
    f, S = link.placed(here)
    upper = S.T(below.F1)
    lower = Subspace(here.rates).T(below.F2) + S.T(below.F3)
    return {name: f.Ad_inv_dual(F) for name, F in vars(below).items()}, dict(C=upper, C_lower=lower)


def unit_velocity(link, here, k):
    hand, keep = rise(link, here, SimpleNamespace(F1=here.F1[k], F2=here.F2[k], F3=here.F3[k]))
    if link.turns_rotors:  # B(e_k, v), which is skew
        keep["C"] = keep["C"] + link.rotor_bias(Vec.unit(k, link.joint.nv), here.v)
    return hand, keep


coriolis_matrix = Algorithm(
    "coriolis_matrix", ("q", "v"), (twists, compose, Columns(unit_velocity, rise)), TwoTriangles("C", "C_lower"),
    torques_only=True,
)  # fmt: skip
