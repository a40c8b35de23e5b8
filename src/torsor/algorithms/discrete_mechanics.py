"""Discrete mechanics: the parts of a variational integrator on the Lie groups of the joints.

A joint at q moves with constant velocity v for the time h to q [+] h v. If the joint has a quaternion, it moves on the
group of rotations or of rigid motions; if not, [+] is plain addition, and ad = 0 and Ad = dexp = 1 below. These are
`retract`, `carried` and `averaged` of the joint's class. With L = T - U, let

    F = dL/dq       along the joint's directions, in the body's frame ("left-trivialised").

In V_i = Ad_{f^-1} V_parent + S v, joint k of body i turns the first term and, where S depends on q, S itself. All
bodies that it carries move along. With P its momentum and W its weight, both summed over the bodies it carries,

    F_k = <P, ad_{Ad_{f^-1} V_parent} S_k + dS/dq_k v> + <W, S_k>.

There are two kinds of step, adjoint to each other: one takes L at the beginning, the other at the end (N. Bou-Rabee,
J. E. Marsden, Hamilton-Pontryagin integrators on Lie groups, Found. Comput. Math. 9, 2009). With y = h v and p the
momenta,

    beginning   M(q) v       = dexp_y^T (p + h F(q, v))      p_new = Ad_{exp y}^T (p + h F(q, v))
    end         M(q [+] y) v = dexp_y^T p                    p_new = Ad_{exp y}^T p + h F(q [+] y, v)

The first equations are implicit in v; `begin` and `end` are v_new = M^-1 (their right-hand side at v).

Forces at the joints act at the middle of the step, half of their impulse before it and half after it: p is first
replaced by p + (h/2) tau, and (h/2) tau is also added to p_new (J. E. Marsden, M. West, Discrete mechanics and
variational integrators, Acta Numerica 2001, 3.2). Springs and dampers make tau depend on v. With R = h/2 D + h^2/4 K,
the iteration v_new = (M + R)^-1 (right-hand side + R v) treats them exactly in one round, however stiff they are:
`begin_driven` and `end_driven`, with R as the input `added_inertia`.

The midpoint rule takes L at the middle q^ = q [+] y, y = (h/2) v. With f = (h/2) (F(q^, v) + tau),

    M(q^) v = Ad_{exp y}^T p + f,      p_new = Ad_{exp y}^T (Ad_{exp y}^T p + 2 f).

`middle` is v_new = M^-1 (the right-hand side at v), and `rebound` is p_new; their q is q^, their h is
h/2, and their `impulse` is (h/2) tau.
"""

from __future__ import annotations

from torsor.algorithms.articulated import accelerate, articulate
from torsor.linalg import Vec, cross
from torsor.outputs import PerFreedom
from torsor.spatial import Spatial, ad_dual, pair
from torsor.sweeps import Algorithm, Sweep, inward, outward

# The sweeps --------------------------------------------------------------------------------------------------


@outward(start=lambda base: dict(V=Spatial.zero(), g=base.gravity))
def body_velocities(link, here, parent):
    """V_i = Ad_{f^-1} V_{i-1} + S_i v_i, and gravity, in the body's frame."""
    f, S = link.placed(here)
    before, g = f.Ad_inv(parent.V), f.unturn(parent.g)
    V = before + S @ here.v
    return dict(V=V, g=g), dict(E=f.factors[-1], S=S, V=V, before=before, g=g)


@inward(start=lambda base: dict(P=Spatial.zero(), W=Spatial.zero()))
def gather(link, here, children):
    """P and W, and the force F that they exert at the joint."""
    f, S = link.placed(here)
    P = link.inertia @ here.V + children.P
    W = Spatial(cross(link.first_moment, here.g), here.g * link.mass) + children.W
    turning = S.T(ad_dual(here.before, P) + W)
    directions = (Vec.unit(k, link.joint.nv) for k in range(link.joint.nv))
    bending = Vec.of(pair(P, link.S_rate(here.q, k) @ here.v) for k in directions)
    return dict(P=f.Ad_inv_dual(P), W=f.Ad_inv_dual(W)), dict(F=turning + bending)


@outward(start=lambda base: {})
def kick(link, here, parent):
    """p + h F, averaged and carried over the step."""
    y, p = here.v * here.h[0], here.p + here.F * here.h[0]
    return {}, dict(tau=_with_added(here, link.joint.averaged(y, p)), carried=link.joint.carried(y, p))


def _with_added(here, p: Vec) -> Vec:
    """p + R v, R the inertia added to M."""
    return p if here.added_inertia is None else p + Vec.of(r * v for r, v in zip(here.added_inertia, here.v))


@outward(start=lambda base: {})
def drift(link, here, parent):
    """q [+] h v of the joint, and p averaged over the step."""
    y = here.v * here.h[0]
    q = link.joint.retract(here.q, y)
    return {}, dict(E=link.exp(q), S=link.S(q), tau=_with_added(here, link.joint.averaged(y, here.p)))


@outward(start=lambda base: {})
def land(link, here, parent):
    """p carried over the step, then kicked."""
    return {}, dict(carried=link.joint.carried(here.v * here.h[0], here.p) + here.F * here.h[0])


@outward(start=lambda base: {})
def balance(link, here, parent):
    """p carried to the middle of the step, with half of the impulse; and p carried to the end, with all of it."""
    y = here.v * here.h[0]
    p, f = link.joint.carried(y, here.p), here.F * here.h[0] + here.impulse
    return {}, dict(tau=_with_added(here, p + f), carried=link.joint.carried(y, p + f + f))


@outward(start=accelerate.start)
def renew(link, here, parent):
    """M^-1 tau becomes the velocity for the following passes."""
    hand, keep = accelerate.step(link, here, parent)
    return hand, dict(v=keep["qdd"])


INPUTS = ("q", "v", "p", "h")  # h: the step, repeated once per freedom
ROUNDS = 3  # rounds of the iteration per call: two calls suffice for most steps


def _algorithm(name: str, passes: tuple[Sweep, ...], output: str, *more: str) -> Algorithm:
    return Algorithm(name, (*INPUTS, *more), passes, PerFreedom(output), options=("added_inertia",), torques_only=True,
                     inverts=output == "v")  # fmt: skip


begin = _algorithm("begin", (body_velocities, gather, kick, articulate, renew) * ROUNDS, "v")
leave = _algorithm("leave", (body_velocities, gather, kick), "carried")
end = _algorithm("end", (drift, articulate, renew) * ROUNDS, "v")
begin_driven = _algorithm("begin_driven", (body_velocities, gather, kick, articulate, renew), "v")
end_driven = _algorithm("end_driven", (drift, articulate, renew), "v")
middle = _algorithm("middle", (body_velocities, gather, balance, articulate, renew), "v", "impulse")
rebound = _algorithm("rebound", (body_velocities, gather, balance), "carried", "impulse")
arrive = _algorithm("arrive", (body_velocities, gather, land), "carried")  # q here is the new one
