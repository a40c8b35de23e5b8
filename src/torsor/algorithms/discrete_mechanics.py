"""Mechanics in steps: what a variational integrator on the groups of the joints is made of.

A joint at q moves along a constant velocity v for the time h to q [+] h v: on the rotations or the rigid motions if
it has a quaternion, by plain addition if not (there ad = 0 and Ad = dexp = 1 below). With L = T - U, let

    F = dL/dq       along the joint's directions, in the body's frame ("left-trivialised").

In V_i = Ad_{f^-1} V_parent + S v, joint k of body i turns the first term and, where S depends on q, S itself. All that
hangs on the body moves along, so that, with P its momentum and W its weight, both summed over what it carries,

    F_k = <P, ad_{Ad_{f^-1} V_parent} S_k + dS/dq_k v> + <W, S_k>.

Two kinds of step, each the other's adjoint, take L at the beginning and at the end (N. Bou-Rabee, J. E. Marsden,
Hamilton-Pontryagin integrators on Lie groups, Found. Comput. Math. 9, 2009). With y = h v and p the momenta,

    beginning   M(q) v       = dexp_y^T (p + h F(q, v))      p_new = Ad_{exp y}^T (p + h F(q, v))
    end         M(q [+] y) v = dexp_y^T p                    p_new = Ad_{exp y}^T p + h F(q [+] y, v)

The first equations are implicit in v; `begin` and `end` are v_new = M^-1 (their right-hand side at v).
"""

from __future__ import annotations

from math import factorial

from torsor.algorithms.articulated import accelerate, articulate
from torsor.lie import quaternion_product, quaternion_to_matrix, rotation_of, unit_quaternion
from torsor.linalg import Scalar, Vec, cos, cross, dot, sin, sqrt
from torsor.model.joints import Free, Joint, Spherical
from torsor.spatial import Rigid, Spatial, ad_dual, pair
from torsor.sweeps import Algorithm, Sweep, inward, outward

WIDEST = 7  # coordinates of a joint
# The squares of turns of a step: below the first an angle is no different from zero; up to the second, a whole turn,
# the series of `stumpff` are good to the last digits, and beyond it they are made NaN.
TINY, WHOLE_TURN, TERMS = 1e-30, 40.0, 18


# The groups of the joints ------------------------------------------------------------------------------------


def moved(joint: Joint, q: Vec, y: Vec) -> Vec:
    """q [+] y, its quaternion made a unit."""
    if isinstance(joint, Spherical):
        return unit_quaternion(quaternion_product(q, quaternion(y)))
    if isinstance(joint, Free):
        turn = Vec(*q[3:])
        shifted = Vec(*q[:3]) + quaternion_to_matrix(turn) @ rigid(y).p
        return Vec(*shifted, *moved(Spherical(), turn, Vec(*y[:3])))
    return q + y


def carried(joint: Joint, y: Vec, p: Vec) -> Vec:
    """Ad_{exp y}^T p: what a momentum fixed in space is in the body's frame after the motion y."""
    if isinstance(joint, Spherical):
        return rotation_of(quaternion(y)).T @ p
    if isinstance(joint, Free):
        return rigid(y).Ad_dual(Spatial.of(p)).coordinates
    return p


def averaged(joint: Joint, y: Vec, p: Vec) -> Vec:
    """dexp_y^T p = int_0^1 Ad_{exp(s y)}^T p ds: the mean of the momentum that is carried along.

    On rotations 1 - c2 [w] + c3 [w]^2, c_k of `stumpff`. On rigid motions the same in dual numbers w + eps v.
    """
    if not isinstance(joint, Spherical | Free):
        return p
    w = Vec(*y[:3])
    c2, c3, c4, c5 = stumpff(dot(w, w))

    def mean(x: Vec) -> Vec:
        wx = cross(w, x)
        return x - wx * c2 + cross(w, wx) * c3

    if isinstance(joint, Spherical):
        return mean(p)
    v, (moment, force) = Vec(*y[3:]), Spatial.of(p)
    wf, vf, wv = cross(w, force), cross(v, force), dot(w, v)
    d2, d3 = (c4 * 2.0 - c3) * wv, (c5 * 3.0 - c4) * wv  # of c2 and c3: dc_k/dx = (k c_{k+2} - c_{k+1}) / 2
    dual = (cross(w, vf) + cross(v, wf)) * c3 + cross(w, wf) * d3 - vf * c2 - wf * d2
    return Vec(*(mean(moment) + dual), *mean(force))


def quaternion(w: Vec) -> Vec:
    """exp(w / 2); without a question asked, which compiled code could not answer."""
    angle = sqrt(dot(w, w) + TINY)
    return Vec(cos(angle * 0.5), *(w * (sin(angle * 0.5) / angle)))


def rigid(y: Vec) -> Rigid:
    """exp of the twist (w, v): (exp [w], v + c2 w x v + c3 w x (w x v))"""
    w, v = Vec(*y[:3]), Vec(*y[3:])
    c2, c3, _, _ = stumpff(dot(w, w))
    wv = cross(w, v)
    return Rigid(rotation_of(quaternion(w)), v + wv * c2 + cross(w, wv) * c3)


def stumpff(x: Scalar) -> list[Scalar]:
    """c_k = sum_j (-x)^j / (2j + k)! for k = 2 ... 5; with x = t^2, c2 = (1 - cos t)/t^2, c3 = (t - sin t)/t^3, ...

    1/k! - c_k = x c_{k+2} loses digits read from left to right, and none the other way.
    """
    inside = sqrt(WHOLE_TURN - x)
    c4, c5 = (inside / inside / factorial(2 * TERMS + k) for k in (4, 5))  # NaN outside
    for j in reversed(range(TERMS)):
        c4, c5 = (1 / factorial(2 * j + k) - x * c for k, c in ((4, c4), (5, c5)))
    return [0.5 - x * c4, 1 / 6 - x * c5, c4, c5]


# The sweeps --------------------------------------------------------------------------------------------------


@outward(start=lambda base: dict(V=Spatial.zero(), g=base.gravity))
def spread(link, here, parent):
    """V_i = Ad_{f^-1} V_{i-1} + S_i v_i, and gravity, in the body's frame."""
    f, S = link.placed(here)
    before, g = f.Ad_inv(parent.V), f.unturn(parent.g)
    V = before + S @ here.v
    return dict(V=V, g=g), dict(E=f.factors[-1], S=S, V=V, before=before, g=g)


@inward(start=lambda base: dict(P=Spatial.zero(), W=Spatial.zero()))
def gather(link, here, children):
    """P and W, and what they do at the joint: F."""
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
    return {}, dict(tau=averaged(link.joint, y, p), carried=carried(link.joint, y, p))


@outward(start=lambda base: {})
def drift(link, here, parent):
    """The joint at q [+] h v, and p averaged over the step."""
    y = here.v * here.h[0]
    q = moved(link.joint, here.q, y)
    return {}, dict(E=link.exp(q), S=link.S(q), tau=averaged(link.joint, y, here.p))


@outward(start=lambda base: {})
def land(link, here, parent):
    """p carried over the step, then kicked."""
    return {}, dict(carried=carried(link.joint, here.v * here.h[0], here.p) + here.F * here.h[0])


@outward(start=accelerate.start)
def renew(link, here, parent):
    """M^-1 tau, taken for the velocity from here on."""
    hand, keep = accelerate.step(link, here, parent)
    return hand, dict(v=keep["qdd"])


@outward(start=lambda base: {})
def displace(link, here, parent):
    """q [+] v, filled up with zeros."""
    q = moved(link.joint, here.q, here.v)
    return {}, dict(q=Vec(*q, *[0.0] * (WIDEST - len(q))))


INPUTS = ("q", "v", "p", "h")  # h: the step, as many times as there are freedoms
ROUNDS = 3  # of the iteration in one call: two calls settle most steps


def _algorithm(name: str, passes: tuple[Sweep, ...], output: str) -> Algorithm:
    return Algorithm(name, INPUTS, passes, output=output, kind="joint", torques_only=True, inverts=output == "v")


begin = _algorithm("begin", (spread, gather, kick, articulate, renew) * ROUNDS, "v")
leave = _algorithm("leave", (spread, gather, kick), "carried")
end = _algorithm("end", (drift, articulate, renew) * ROUNDS, "v")
momentum_at_begin = _algorithm("momentum_at_begin", (spread, gather, kick), "tau")
momentum_at_end = _algorithm("momentum_at_end", (drift,), "tau")
arrive = _algorithm("arrive", (spread, gather, land), "carried")  # q here is the new one
move = Algorithm("move", ("q", "v"), (displace,), output="q", kind="body")
