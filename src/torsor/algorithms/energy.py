"""Energy, momentum and centre of mass: sums over the bodies, gathered by an inward sweep."""

from __future__ import annotations

from torsor.algorithms.kinematics import twists
from torsor.linalg import Mat, Scalar, Vec, dot
from torsor.outputs import AtBase, PerBody, Several
from torsor.spatial import Rigid, Spatial, pair
from torsor.sweeps import Algorithm, inward, outward


def doubled_energy(link, here, V: Spatial) -> Scalar:
    """V^T J V + armature v^2"""
    return pair(link.inertia @ V, V) + dot(link.with_rotors(Vec.zero(link.joint.nv), here.v), here.v)


@inward(start=lambda base: dict(T2=0.0))
def kinetic(link, here, children):
    """2 T = sum V^T J V + armature v^2"""
    return dict(T2=children.T2 + doubled_energy(link, here, here.V)), {}


@outward(start=lambda base: dict(T=Rigid(Mat.identity(), Vec.zero()), V=Spatial.zero()))
def moved(link, here, parent):
    """f_{0,i} = f_{0,i-1} f_{i-1,i};   V_i = Ad_{f^-1} V_{i-1} + S_i v_i;   T_i = (V^T J V + armature v^2) / 2"""
    f, S = link.placed(here)
    T, V = f.after(parent.T), f.Ad_inv(parent.V) + S @ here.v
    return dict(T=T, V=V), dict(pose=link.body_pose(T), kinetic=doubled_energy(link, here, V) * 0.5)


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
# what a page shows for every body, in one pass
bodies = Algorithm("bodies", ("q", "v"), (moved,), Several(pose=PerBody("pose"), kinetic=PerBody("kinetic")))
