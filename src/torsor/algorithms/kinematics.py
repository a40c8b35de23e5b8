"""Kinematics: poses, twists, Jacobians and their time derivatives."""

from __future__ import annotations

from types import SimpleNamespace

from torsor.linalg import Mat, Vec
from torsor.outputs import Path, PerBody
from torsor.spatial import Rigid, Spatial, ad
from torsor.sweeps import Algorithm, Columns, outward


@outward(start=lambda base: dict(T=Rigid(Mat.identity(), Vec.zero())))
def poses(link, here, parent):
    """f_{0,i} = f_{0,i-1} f_{i-1,i}"""
    T = link.pose(here.q).after(parent.T)
    return dict(T=T), dict(pose=link.body_pose(T))


@outward(start=lambda base: dict(V=Spatial.zero() if base.base_velocity is None else base.base_velocity))
def twists(link, here, parent):
    """V_i = Ad_{f^-1} V_{i-1} + S_i v_i                                        (Ploen & Park 1999, Eq. 2)"""
    f, S = link.placed(here)
    V = f.Ad_inv(parent.V) + S @ here.v
    return dict(V=V), dict(E=f.factors[-1], S=S, V=V, twist=link.body_twist(V))


def jacobian_step(link, here, tip):
    """The columns of joint i: Ad_{f_{i,b}^-1} S_i, with f_{i,b} the pose of body b in body i."""
    columns = tuple(tip.f.Ad_inv(s) for s in link.S(here.q).columns)
    return dict(f=tip.f.after(link.pose(here.q).as_rigid())), dict(J=columns)


def jacobian_rate_step(link, here, tip):
    """d/dt (Ad_{f^-1} S) = Ad_{f^-1} dS/dt - ad_V (Ad_{f^-1} S), V the twist of body b relative to body i."""
    S, S_rate = link.S(here.q), link.S_rate(here.q, here.v)
    columns = tuple(tip.f.Ad_inv(rate) - ad(tip.V, tip.f.Ad_inv(s)) for s, rate in zip(S.columns, S_rate.columns))
    V = tip.V + tip.f.Ad_inv(S @ here.v)
    return dict(f=tip.f.after(link.pose(here.q).as_rigid()), V=V), dict(J=columns)


def at_body(step):
    """The first step of a climb: a frame on the body, at rest relative to it."""

    def at_frame(link, here, tip):
        return step(link, here, SimpleNamespace(f=tip.after(link.body_frame()), V=Spatial.zero()))

    return at_frame


body_poses = Algorithm("body_poses", ("q",), (poses,), PerBody("pose"), kinematic=True)
body_twists = Algorithm(
    "body_twists", ("q", "v"), (twists,), PerBody("twist"), options=("base_velocity",), kinematic=True
)
jacobian = Algorithm("jacobian", ("q",), (Columns(at_body(jacobian_step), jacobian_step),), Path("J"), kinematic=True)
jacobian_dot = Algorithm(
    "jacobian_dot", ("q", "v"), (Columns(at_body(jacobian_rate_step), jacobian_rate_step),), Path("J"), kinematic=True
)
