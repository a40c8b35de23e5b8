"""Inverse dynamics by Newton-Euler, in the form with the fewest operations.

Written about the origin of the body's frame, with a the acceleration of that origin and

    Omega = [dw/dt] + [w]^2,                 so that the point r of the body accelerates by a + Omega r,

the force and the moment on a body are one line each (h = m c first moment, Sigma = int r r^T dm second moment):

    force = m a + Omega h        moment = h x a + vee(Omega Sigma - (Omega Sigma)^T)

This is the coordinate-invariant recursion of `ploen_park` with dV = (dw/dt, a - w x v) substituted.  The
linear velocity v cancels in every equation; this saves a third of the multiplications.
"""

from __future__ import annotations

from torsor.linalg import Mat, Vec, cross
from torsor.outputs import PerFreedom
from torsor.spatial import Spatial
from torsor.sweeps import Algorithm, inward, outward

BASE_MOTION = ("base_velocity", "base_acceleration")
MOTION_OPTIONS = ("external", *BASE_MOTION)  # the optional inputs of `motion`


def spin(w: Vec, dw: Vec) -> Mat:
    """Omega = [dw] + [w]^2."""
    x, y, z = w
    xx, yy, zz, xy, xz, yz = x * x, y * y, z * z, x * y, x * z, y * z
    return Mat(
        (-(yy + zz), xy - dw[2], xz + dw[1]), (xy + dw[2], -(xx + zz), yz - dw[0]), (xz - dw[1], yz + dw[0], -(xx + yy))
    )


def axial(P: Mat) -> Vec:
    """vee(P - P^T); for P = F p^T, this is p x F."""
    return Vec(P[2][1] - P[1][2], P[0][2] - P[2][0], P[1][0] - P[0][1])


def wrench(link, a: Vec, Omega: Mat) -> Spatial:
    """The wrench that gives the body its acceleration."""
    h = link.first_moment
    return Spatial(cross(h, a) + axial(Omega @ link.second_moment), a * link.mass + Omega @ h)


def base_motion(base) -> dict:
    """A base at rest in gravity g is equivalent to a base that accelerates by -g without gravity; a = dv/dt + w x v."""
    w, dw, a = Vec.zero(), Vec.zero(), -base.gravity
    if base.base_acceleration is not None:
        dw, a = base.base_acceleration.ang, a + base.base_acceleration.lin
    if base.base_velocity is not None:
        w, a = base.base_velocity.ang, a + cross(base.base_velocity.ang, base.base_velocity.lin)
    return dict(w=w, dw=dw, a=a, Omega=spin(w, dw))


@outward(start=base_motion)
def motion(link, here, parent):
    """Angular velocity and acceleration, and the acceleration of the frame's origin; then the wrench."""
    f, S = link.placed(here)
    M, E = f.factors
    v = here.v if here.v is not None else Vec.zero(link.joint.nv)
    J = S @ v  # the joint's own twist and acceleration, in the child's frame
    dJ = link.S_rate(here.q, v) @ v
    if here.qdd is not None:
        dJ = dJ + S @ here.qdd

    w1, dw1 = E.unturn(M.unturn(parent.w)), E.unturn(M.unturn(parent.dw))
    a1 = E.unturn(M.unturn(parent.a + parent.Omega @ M.p))
    w = w1 + J.ang
    dw = dw1 + cross(w1, J.ang) + dJ.ang
    Omega = spin(w, dw)
    # along a joint's own axis Omega is the same before and after the joint, and the one after is computed anyway
    Omega_p = Omega if link.joint.axial else spin(w1, dw1)
    a = a1 + Omega_p @ E.unturn(E.p) + cross(w1, J.lin) * 2.0 + cross(J.ang, J.lin) + dJ.lin

    W = wrench(link, a, Omega)
    if here.external is not None:
        W = W - link.from_body(here.external)
    return dict(w=w, dw=dw, a=a, Omega=Omega), dict(E=E, S=S, W=W)


@inward(start=lambda base: dict(F=Spatial.zero()))
def forces(link, here, children):
    """F_i = W_i + sum Ad*_{f^-1} F;   tau_i = S_i^T F_i, plus the torques of the rotors"""
    f, S = link.placed(here)
    F = here.W + children.F
    return dict(F=f.Ad_inv_dual(F)), dict(tau=link.torque_of(F, S, here))


inverse_dynamics = Algorithm(
    "inverse_dynamics", ("q", "v", "qdd"), (motion, forces), PerFreedom("tau"), torques_only=True,
    options=MOTION_OPTIONS,
)  # fmt: skip
bias_forces = Algorithm(
    "bias_forces", ("q", "v"), (motion, forces), PerFreedom("tau"), torques_only=True, options=MOTION_OPTIONS,
)  # fmt: skip
gravity_forces = Algorithm("gravity_forces", ("q",), (motion, forces), PerFreedom("tau"), torques_only=True)
