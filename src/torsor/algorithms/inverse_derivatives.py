"""The derivatives of inverse dynamics, d tau/dq, d tau/dv and d tau/dqdd = M (after Singh, Russell & Wensing 2022).

Written here in body frames, for joints of any type, including S(q).  V' and A' are the twist and the acceleration of
the parent in the child's frame; with the joint, V = V' + S v and A = A' + ad_{V'} S v + S qdd + dS/dt v.  A motion of
freedom k of a joint moves its body by the twist S_k.  In the body's frame, with S,k the derivative of S with respect to
that freedom,

    dV = ad_{V'} S_k + S,k v
    dA = ad_{A'} S_k + ad_{ad_{V'} S_k} (S v) + ad_{V'} (S,k v) + S,k qdd + (dS/dt),k v,

and all bodies beyond share dV and chi = dA + ad_V dV as rigid motions.  A change dv of the velocity moves them by
S_k and by chi_v = ad_{V'} S_k + ad_V S_k + dS_k/dt + S,k v.  The wrench through the joint therefore changes by

    dF = I^c chi + 2 B^c dV                      dF_v = I^c chi_v + 2 B^c S_k

with I^c the inertia of all bodies beyond, as one body, and B^c the sum of their velocity forms.  That of one body is

    2 B (w, v) = (K w, w x f)                    K = -2 ([w] Sigma + [h] [v]),    f = 2 (m v + w x h).

Towards the base the frame moves too: dF - ad*_{S_k} F acts on the parent.  Wrenches on the bodies are constant in the
frame of their body.  The lower triangle uses the same numbers transposed: for i on the path of j,

    d tau_j/dq_i = (I^c S_j)^T chi_i + (2 B^c^T S_j)^T dV_i.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

from torsor.algorithms import newton_euler
from torsor.lie import hat
from torsor.linalg import Mat, Scalar, Vec, cross, derivative, dot
from torsor.outputs import Several, Symmetric, TwoTriangles
from torsor.spatial import Inertia, Pose, Product, Spatial, ad, ad_dual, pair
from torsor.sweeps import Algorithm, Columns, inward, outward


def base_motion(base) -> dict:
    """`newton_euler.base_motion`, and the linear velocity."""
    v = Vec.zero() if base.base_velocity is None else base.base_velocity.lin
    return dict(newton_euler.base_motion(base), v=v)


@outward(start=base_motion)
def move(link, here, parent):
    """`newton_euler.motion`, the linear velocity, and the effect of each freedom on all bodies that the joint carries.

    Kept per freedom: dV and chi of a motion, chi_v of a velocity, and S,k.
    """
    f, S = link.placed(here)
    M, E = f.factors
    J, S_rate = S @ here.v, link.S_rate(here.q, here.v)
    dJ = S_rate @ here.v + S @ here.qdd
    r = E.unturn(E.p)

    w1, dw1 = E.unturn(M.unturn(parent.w)), E.unturn(M.unturn(parent.dw))
    v1 = E.unturn(M.unturn(parent.v + cross(parent.w, M.p))) + cross(w1, r)
    w, v = w1 + J.ang, v1 + J.lin
    dw = dw1 + cross(w1, J.ang) + dJ.ang
    Omega = newton_euler.spin(w, dw)
    Omega1 = Omega if link.joint.axial else newton_euler.spin(w1, dw1)  # the same along the axis (`newton_euler`)
    a1 = E.unturn(M.unturn(parent.a + parent.Omega @ M.p)) + Omega1 @ r
    a = a1 + cross(w1, J.lin) * 2.0 + cross(J.ang, J.lin) + dJ.lin
    W = newton_euler.wrench(link, a, Omega)
    if here.external is not None:
        W = W - link.from_body(here.external)

    V, V1, A1 = Spatial(w, v), Spatial(w1, v1), Spatial(dw1, a1 - cross(w1, v1))
    dV, chi, chi_v, S_by = [], [], [], []
    for k, s in enumerate(S.columns):
        by_k = link.S_rate(here.q, Vec.unit(k, link.joint.nv))  # S,k
        turn = ad(V1, s)
        if link.joint.axial:  # ad_{S_k} S v = 0 and S is constant: the terms of chi add up to those of Omega
            motion = turn
            field = Spatial(Omega1 @ s.ang, cross(a1, s.ang) + cross(v1, turn.ang) * 2.0 + Omega1 @ s.lin)
            velocity = turn * 2.0
        else:
            bent = by_k @ here.v
            motion = turn + bent
            dA = ad(A1, s) + ad(turn, J) + ad(V1, bent) + by_k @ here.qdd + _rate_by(link, here, k)
            field = dA + ad(V, motion)
            velocity = turn + ad(V, s) + S_rate.columns[k] + bent
        dV.append(motion)
        chi.append(field)
        chi_v.append(velocity)
        S_by.append(by_k)
    return (
        dict(w=w, dw=dw, a=a, Omega=Omega, v=v),
        dict(E=E, S=S, V=V, W=W, dV=tuple(dV), chi=tuple(chi), chi_v=tuple(chi_v), S_by=tuple(S_by)),
    )


def _rate_by(link, here, k: int) -> Spatial:
    """(dS/dt),k v; if S depends on q, v is dq/dt."""
    if not link.joint.flat:
        return Spatial.zero()
    return Spatial.of(derivative(lambda q: (link.S_rate(q, here.v) @ here.v).coordinates, here.q, k))


class Composite(NamedTuple):
    """All bodies beyond a joint: mass, first and second moments (six numbers), and a velocity form as (K, f)."""

    m: Scalar
    h: Vec
    second: Vec
    K: Mat
    f: Vec

    @classmethod
    def zero(cls) -> Composite:
        return cls(0.0, Vec.zero(), Vec.zero(6), Mat.zero(), Vec.zero())

    @classmethod
    def of(cls, link, V: Spatial) -> Composite:
        """One body, and its velocity form B for the twist V."""
        (w, v), h, Sigma = V, link.first_moment, link.second_moment
        f = v * link.mass + cross(w, h)
        return cls(link.mass, h, _upper(Sigma), -(hat(w) @ Sigma + hat(h) @ hat(v)), f)

    def __add__(self, other: Composite) -> Composite:  # type: ignore[override]
        return Composite(
            self.m + other.m, self.h + other.h, self.second + other.second, self.K + other.K, self.f + other.f
        )

    def inertia(self) -> Inertia:
        xx, xy, xz, yy, yz, zz = self.second
        return Inertia.rigid(self.m, self.h, Mat((yy + zz, -xy, -xz), (-xy, xx + zz, -yz), (-xz, -yz, xx + yy)))

    def change(self, I: Inertia, acceleration: Spatial, velocity: Spatial) -> Spatial:
        """I a + B V"""
        return I @ acceleration + Spatial(self.K @ velocity.ang, cross(velocity.ang, self.f))

    def turned(self, s: Spatial) -> Vec:
        """B^T S, a moment without force."""
        return self.K.T @ s.ang + cross(self.f, s.lin)

    def carried(self, pose: Pose) -> Composite:
        """The same in the parent's frame."""
        if isinstance(pose, Product):
            result = self
            for factor in reversed(pose.factors):
                result = result.carried(factor)
            return result
        p, h, f = pose.p, pose.turn(self.h), pose.turn(self.f)
        Sigma, entry = pose.turn_matrix(_symmetric(self.second)), h + p * self.m
        Sigma = Mat.symmetric(lambda i, j: Sigma[i][j] + p[i] * h[j] + entry[i] * p[j])
        return Composite(self.m, entry, _upper(Sigma), pose.turn_matrix(self.K) - hat(p) @ hat(f), f)


def _upper(A: Mat) -> Vec:
    return Vec.of(A[i][j] for i in range(3) for j in range(i, 3))


def _symmetric(upper: Vec) -> Mat:
    xx, xy, xz, yy, yz, zz = upper
    return Mat((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))


@inward(start=lambda base: dict(beyond=Composite.zero(), F=Spatial.zero()))
def gather(link, here, children):
    """The composite body and F of all bodies beyond, and the wrenches that each freedom sends towards the base."""
    f, S = link.placed(here)
    beyond = children.beyond + Composite.of(link, here.V * 2.0)
    I, F = beyond.inertia(), children.F + here.W
    dF = tuple(beyond.change(I, chi, dV) for chi, dV in zip(here.chi, here.dV))
    keep = dict(
        own=tuple(S.T(x) + by_k.T(F) for x, by_k in zip(dF, here.S_by)),
        Fq=tuple(x - ad_dual(s, F) for x, s in zip(dF, S.columns)),
        Fv=tuple(beyond.change(I, chi_v, s) for chi_v, s in zip(here.chi_v, S.columns)),
        FM=tuple(I @ s for s in S.columns),
        turned=tuple(beyond.turned(s) for s in S.columns),
    )
    return dict(beyond=beyond.carried(f), F=f.Ad_inv_dual(F)), keep


def rise(link, here, below):
    """A column of each matrix above its own block, and, from the same wrenches, the row left of it."""
    f, S = link.placed(here)
    changes = zip(here.chi, here.dV, here.chi_v, S.columns)
    pairs = [
        (pair(below.FM, chi) + dot(below.turned, dV.ang), pair(below.FM, chi_v) + dot(below.turned, s.ang))
        for chi, dV, chi_v, s in changes
    ]
    row_q, row_v = map(Vec.of, zip(*pairs))
    columns = dict(by_q=S.T(below.Fq), by_v=S.T(below.Fv), by_qdd=S.T(below.FM))
    return _up(f, below), columns | dict(row_q=row_q, row_v=row_v)


def begin(link, here, k):
    """The entries within the freedoms of one body."""
    f, S = link.placed(here)
    wrenches = SimpleNamespace(Fq=here.Fq[k], Fv=here.Fv[k], FM=here.FM[k], turned=here.turned[k])
    M, hand, by_v = S.T(here.FM[k]), _up(f, wrenches), S.T(here.Fv[k])
    if link.turns_rotors:
        unit = Vec.unit(k, link.joint.nv)
        by_v = by_v + link.rotor_bias(unit, here.v) + link.rotor_bias(here.v, unit)
    return hand, dict(by_q=here.own[k], by_v=by_v, by_qdd=M.replace(k, M[k] + link.armature[k]))


def _up(f: Pose, below) -> dict:
    return dict(
        Fq=f.Ad_inv_dual(below.Fq), Fv=f.Ad_inv_dual(below.Fv), FM=f.Ad_inv_dual(below.FM), turned=f.turn(below.turned)
    )


inverse_dynamics_derivatives = Algorithm(
    "inverse_dynamics_derivatives", ("q", "v", "qdd"), (move, gather, Columns(begin, rise)),
    Several(dq=TwoTriangles("by_q", "row_q"), dv=TwoTriangles("by_v", "row_v"), M=Symmetric("by_qdd")),
    options=newton_euler.MOTION_OPTIONS, torques_only=True,
)  # fmt: skip
