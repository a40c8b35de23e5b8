"""Forward dynamics from the square factorization of M^-1 (Ploen & Park 1999, Eqs 44-68).

    qdd = [1 - S^T Y Pi]^T Omega^-1 [1 - S^T Y Pi] tau^                                        (Eq. 45)
    tau^ = tau - S^T G^T [J G (a~ + P_0 dV_0) + b~ + P_t^T f_t]                                 (Eq. 46)

take two sweeps for tau^ and three for qdd.  The frames are those of the links, so the paper's bars
(A, D, L: S, J, G under a change of frames Q) are omitted.  Any joint type and any tree is allowed, with
a wrench on every body; f_t on the tip is one of them.  Misprints corrected: dV_0 = (0, -g); Ad* is that of f^-1 in 58
and 59; the minus signs of 53 and 54 belong to the block operators; 68 reads Pi^T_{k-1,k} lambda_{k-1}.
"""

from __future__ import annotations

from torsor.algorithms.articulated import articulated_inertias
from torsor.algorithms.newton_euler import MOTION_OPTIONS
from torsor.algorithms.ploen_park import base_motion
from torsor.linalg import Vec, solve
from torsor.outputs import PerFreedom
from torsor.spatial import Spatial, ad, ad_dual, pair
from torsor.sweeps import Algorithm, inward, outward


@outward(start=base_motion)
def velocity_terms(link, here, parent):
    """V_k = Ad_{f^-1} V_{k-1} + S_k v_k                      a^_k = Ad_{f^-1} V_{k-1}             (51, 52)
    a~_k = -ad_{S_k v_k} a^_k (+ dS_k/dt v_k)               b~_k = -ad*_{V_k} J_k V_k          (53, 54)
    alpha_k = Ad_{f^-1} alpha_{k-1} + a~_k                  alpha-bar_k = J_k alpha_k + b~_k   (55-57)
    """
    f, S = link.placed(here)
    a_hat = f.Ad_inv(parent.V)
    joint = S @ here.v
    V = a_hat + joint
    a = link.S_rate(here.q, here.v) @ here.v - ad(joint, a_hat)
    alpha = f.Ad_inv(parent.A) + a  # of the base, dV_0
    load = link.inertia @ alpha - ad_dual(V, link.inertia @ V)
    if here.external is not None:  # exerted on the body; f_t of Eq. 10 is exerted by the tip
        load = load - link.from_body(here.external)
    return dict(V=V, A=alpha), dict(E=f.factors[-1], S=S, load=load)


@inward(start=lambda base: dict(P=Spatial.zero()))
def remaining_torques(link, here, children):
    """P_k = sum Ad*_{f^-1} P_{k+1} + alpha-bar_k            tau^_k = tau_k - S_k^T P_k           (58-61)"""
    f, S = link.placed(here)
    P = children.P + here.load
    return dict(P=f.Ad_inv_dual(P)), dict(tau_hat=link.left_over(here.tau, here) - S.T(P))


@inward(start=lambda base: dict(z=Spatial.zero()))
def whiten(link, here, children):
    """c_k = tau^_k - S_k^T z_k                              c^_k = Omega_k^-1 c_k                (64, 65)
    z_{k-1} = Y_{k-1,k} z_k + Pi_{k-1,k} tau^_k = Ad*_{f^-1} (z_k + Phi_k^T c_k)                (62, 63)
    """
    f, S = link.placed(here)
    c = here.tau_hat - S.T(children.z)
    z = children.z
    for phi, ck in zip(here.G, c):
        z = z + phi * ck
    return dict(z=f.Ad_inv_dual(z)), dict(c_hat=solve(here.D, c))


@outward(start=lambda base: dict(lam=Spatial.zero()))
def recover(link, here, parent):
    """qdd_k = c^_k - Pi^T_{k-1,k} lambda_{k-1}               Pi^T lambda = Phi_k Ad_{f^-1} lambda   (68)
    lambda_k = Y^T_{k-1,k} lambda_{k-1} + S_k c^_k = Ad_{f^-1} lambda_{k-1} + S_k qdd_k         (66, 67)
    """
    f, S = link.placed(here)
    lam = f.Ad_inv(parent.lam)
    qdd = Vec.of(ck - pair(phi, lam) for phi, ck in zip(here.G, here.c_hat))
    return dict(lam=lam + S @ qdd), dict(qdd=qdd)


forward_dynamics = Algorithm(
    "forward_dynamics_ploen_park", ("q", "v", "tau"),
    (velocity_terms, remaining_torques, articulated_inertias, whiten, recover), PerFreedom("qdd"),
    options=MOTION_OPTIONS, inverts=True, torques_only=True,
)  # fmt: skip
