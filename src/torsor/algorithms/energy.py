"""Energy, momentum and centre of mass: sums over the bodies, gathered by an inward sweep."""

from __future__ import annotations

from torsor.algorithms.kinematics import twists
from torsor.linalg import Vec, dot
from torsor.outputs import AtBase
from torsor.spatial import Spatial, pair
from torsor.sweeps import Algorithm, inward


@inward(start=lambda base: dict(T2=0.0))
def kinetic(link, here, children):
    """2 T = sum V^T J V + armature v^2"""
    T2 = children.T2 + pair(link.inertia @ here.V, here.V)
    return dict(T2=T2 + dot(link.with_rotors(Vec.zero(link.joint.nv), here.v), here.v)), {}


@inward(start=lambda base: dict(F=Spatial.zero()))
def momenta(link, here, children):
    """P_i = J_i V_i + sum Ad*_{f^-1} P"""
    f, _ = link.placed(here)
    return dict(F=f.Ad_inv_dual(link.inertia @ here.V + children.F)), {}


@inward(start=lambda base: dict(m=0.0, h=Vec.zero()))
def moments(link, here, children):
    """Mass and first moment of each body and all it carries."""
    f, _ = link.placed(here)
    m, h = children.m + link.mass, children.h + link.first_moment
    return dict(m=m, h=f.turn(h) + f.p * m), {}


kinetic_energy = Algorithm(
    "kinetic_energy", ("q", "v"), (twists, kinetic), AtBase("T2"), options=("base_velocity",),
    then=lambda T2, walk: T2 * 0.5,
)  # fmt: skip
potential_energy = Algorithm(
    "potential_energy", ("q",), (moments,), AtBase("h"),
    then=lambda h, walk: -dot(walk.base.gravity, h),
)  # fmt: skip
momentum = Algorithm("momentum", ("q", "v"), (twists, momenta), AtBase("F"), options=("base_velocity",))
center_of_mass = Algorithm(
    "center_of_mass", ("q",), (moments,), AtBase("m h"),
    then=lambda moments, walk: moments[1] * (1.0 / moments[0]),
)  # fmt: skip
