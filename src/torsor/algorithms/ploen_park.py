"""Inverse dynamics in the coordinate-invariant form of Ploen & Park (1999), Eqs 1-5 (and 34-38).

Nothing here depends on the frame in which a body is described: another choice of frames is a change of variables
that leaves every equation unchanged.  Misprint corrected: dV_0 = (0, -g).
"""

from __future__ import annotations

from torsor.algorithms.newton_euler import MOTION_OPTIONS
from torsor.linalg import Vec
from torsor.outputs import PerFreedom
from torsor.spatial import Spatial, ad, ad_dual
from torsor.sweeps import Algorithm, inward, outward


def base_motion(base) -> dict:
    """V_0 and dV_0, which includes gravity."""
    V = Spatial.zero() if base.base_velocity is None else base.base_velocity
    A = Spatial(Vec.zero(), -base.gravity)
    return dict(V=V, A=A if base.base_acceleration is None else A + base.base_acceleration)


@outward(start=base_motion)
def accelerations(link, here, parent):
    """V_i  = Ad_{f^-1} V_{i-1} + S_i v_i                                                     (Eq. 2)
    dV_i = Ad_{f^-1} dV_{i-1} + ad_{V_i} S_i v_i + dS_i/dt v_i + S_i dv_i                     (Eq. 3)
    """
    f, S = link.placed(here)
    V = f.Ad_inv(parent.V) + S @ here.v
    A = f.Ad_inv(parent.A) + ad(V, S @ here.v) + link.S_rate(here.q, here.v) @ here.v + S @ here.qdd
    return dict(V=V, A=A), dict(E=f.factors[-1], S=S, V=V, A=A)


@inward(start=lambda base: dict(F=Spatial.zero()))
def forces(link, here, children):
    """F_i = sum Ad*_{f^-1} F + J_i dV_i - ad*_{V_i} J_i V_i        (Eq. 4)     tau_i = S_i^T F_i   (Eq. 5)"""
    f, S = link.placed(here)
    J, V = link.inertia, here.V
    F = children.F + J @ here.A - ad_dual(V, J @ V)
    if here.external is not None:
        F = F - link.from_body(here.external)
    return dict(F=f.Ad_inv_dual(F)), dict(tau=link.torque_of(F, S, here))


inverse_dynamics = Algorithm(
    "inverse_dynamics_ploen_park", ("q", "v", "qdd"), (accelerations, forces), PerFreedom("tau"),
    options=MOTION_OPTIONS, torques_only=True,
)  # fmt: skip
