"""The Coriolis matrix C(q, v) of the Christoffel symbols: C v is the velocity term, dM/dt - 2C is skew.

In coordinates whose rates are v, C is half of d tau/dv: the wrenches of `inverse_derivatives`, halved.  There
chi_v / 2 is then the rate ad_V S_k + dS_k/dt of an axis, because S,k v - dS_k/dt = ad_{S v} S_k.  With that rate, C is
also correct for quaternions, where v is not a rate of coordinates (Echeandia & Wensing 2021).
"""

from __future__ import annotations

from types import SimpleNamespace

from torsor.algorithms.inverse_derivatives import Composite
from torsor.algorithms.kinematics import twists
from torsor.linalg import Vec, dot
from torsor.outputs import TwoTriangles
from torsor.spatial import ad, pair
from torsor.sweeps import Algorithm, Columns, inward


@inward(start=lambda base: dict(beyond=Composite.zero()))
def gather(link, here, children):
    """The composite body, and the wrenches that each freedom sends towards the base."""
    f, S = link.placed(here)
    beyond = children.beyond + Composite.of(link, here.V)
    I = beyond.inertia()
    rates = tuple(rate + ad(here.V, s) for s, rate in zip(S.columns, link.S_rate(here.q, here.v).columns))
    keep = dict(
        rates=rates,
        Fv=tuple(beyond.change(I, rate, s) for rate, s in zip(rates, S.columns)),
        FM=tuple(I @ s for s in S.columns),
        turned=tuple(beyond.turned(s) for s in S.columns),
    )
    return dict(beyond=beyond.carried(f)), keep


def rise(link, here, below):
    """C_ij = S_i^T Fv     C_ji = (dS_i/dt)^T FM + S_i^T (B^T S_j)"""
    f, S = link.placed(here)
    lower = Vec.of(pair(below.FM, rate) + dot(below.turned, s.ang) for rate, s in zip(here.rates, S.columns))
    hand = dict(Fv=f.Ad_inv_dual(below.Fv), FM=f.Ad_inv_dual(below.FM), turned=f.turn(below.turned))
    return hand, dict(C=S.T(below.Fv), C_lower=lower)


def unit_velocity(link, here, k):
    hand, keep = rise(link, here, SimpleNamespace(Fv=here.Fv[k], FM=here.FM[k], turned=here.turned[k]))
    if link.turns_rotors:  # B(e_k, v), which is skew
        keep["C"] = keep["C"] + link.rotor_bias(Vec.unit(k, link.joint.nv), here.v)
    return hand, keep


coriolis_matrix = Algorithm(
    "coriolis_matrix", ("q", "v"), (twists, gather, Columns(unit_velocity, rise)), TwoTriangles("C", "C_lower"),
    torques_only=True,
)  # fmt: skip
