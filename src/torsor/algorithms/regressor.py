"""The torque regressor Y: inverse dynamics is linear in the inertial parameters, tau = Y(q, v, qdd) pi.

The ten parameters of a body are, in the model's body frame and about its origin,

    pi = (m, h_x, h_y, h_z, J_xx, J_xy, J_xz, J_yy, J_yz, J_zz),      h = m c,      J the rotational inertia.

With a the acceleration of the origin (less gravity) and Omega = [dw] + [w]^2, the wrench on the body is

    force = m a + Omega h        moment = h x a + J dw + w x J w,

one wrench for each parameter.  For a freedom i on the path from body j to the base, with its twist t = Ad_{f_ij^-1} S_i
in body j (`kinematics.jacobian`), Y_i,jp = <W_jp, t> (Atkeson, An & Hollerbach 1986).
"""

from __future__ import annotations

from types import SimpleNamespace

from torsor.algorithms.newton_euler import BASE_MOTION, motion, spin
from torsor.linalg import Mat, Scalar, cross, dot
from torsor.outputs import Parameters
from torsor.spatial import Product, Rigid, Spatial
from torsor.sweeps import Algorithm, Columns, outward

ENTRIES = tuple((i, j) for i in range(3) for j in range(i, 3))
UNITS = tuple(Mat.of((float({a, b} == {i, j}) for b in range(3)) for a in range(3)) for i, j in ENTRIES)


@outward(start=motion.start)
def observe(link, here, parent):
    """The motion of Newton-Euler in the model's body frame: a, Omega, and the moment of each entry of J."""
    hand, keep = motion.step(link, here, parent)
    frame = link.body_frame()
    w, dw = frame.unturn(hand["w"]), frame.unturn(hand["dw"])
    a = frame.unturn(hand["a"] + hand["Omega"] @ frame.p)
    moments = tuple(unit @ dw + cross(w, unit @ w) for unit in UNITS)
    return hand, dict(E=keep["E"], S=keep["S"], a=a, Omega=spin(w, dw), moments=moments)


def torque_rows(link, here, tip):
    """The rows of joint i, for the ten parameters of the body where the climb began; f is its frame in this one."""
    f, S = link.placed(here)
    rows = tuple(_row(tip, tip.f.Ad_inv(s)) for s in S.columns)
    return dict(f=_seen_from_parent(f, tip.f), a=tip.a, Omega=tip.Omega, moments=tip.moments), dict(Y=rows)


def _row(tip, t: Spatial) -> tuple[Scalar, ...]:
    first_moment = cross(tip.a, t.ang) + tip.Omega.T @ t.lin
    return (dot(tip.a, t.lin), *first_moment, *(dot(moment, t.ang) for moment in tip.moments))


def _seen_from_parent(f: Product, child: Rigid) -> Rigid:
    """f child, factor by factor: cheaper than a matrix product if the factors are screws."""
    R, p = child
    for factor in reversed(f.factors):
        R, p = Mat.of(factor.turn(column) for column in R.T).T, factor.turn(p) + factor.p
    return Rigid(R, p)


def from_body(link, here, k):
    """The climb begins in the model's body frame."""
    return torque_rows(
        link, here, SimpleNamespace(f=link.body_frame(), a=here.a, Omega=here.Omega, moments=here.moments)
    )


torque_regressor = Algorithm(
    "torque_regressor", ("q", "v", "qdd"), (observe, Columns(from_body, torque_rows, per_body=True)), Parameters("Y"),
    options=BASE_MOTION,
)  # fmt: skip
