"""Forward dynamics and M^-1 by articulated-body inertias (Ploen & Park 1999, Eqs 39-41; Featherstone 1983).

An inward sweep eliminates each joint.  Through the free joint the body's inertia acts on the parent as

    I^ = I - U D^-1 U^T,   U = I S,   D = S^T U + R,        the D being the pivots of M:  det M = prod det D.

R is diagonal: the armature of the joint (inertias of its rotors), and `added_inertia`, an optional input.  With this
input the same sweeps solve (M + diag(added_inertia)) x = b, which is all that an implicit step needs.

The accelerations A0 of all bodies with the joint accelerations set to zero come first (`newton_euler`);
the sweeps here solve for the difference A - A0.  So no bias acceleration appears, and the same sweeps
without the first one compute M^-1 b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torsor.algorithms.newton_euler import MOTION_OPTIONS, motion
from torsor.linalg import Mat, Scalar, Vec, factor, is_literal, log, solve
from torsor.outputs import AtBase, Gram, PerFreedom, Symmetric
from torsor.spatial import Inertia, Spatial, Subspace, pair
from torsor.sweeps import Algorithm, Columns, Sweep, inward, outward


def eliminate(S: Subspace, I: Inertia, rotors: Vec) -> tuple[Inertia, tuple[Spatial, ...], tuple]:
    """Eliminate the joint: (I^, G, D) with G^T = D^-1 U^T and D factored.

    If S is a coordinate axis without a rotor, I^ has a zero row and column there and G has a one: these are set, not
    computed.
    """
    U = [I @ s for s in S.columns]
    D = factor(Mat.symmetric(lambda i, j: pair(U[i], S.columns[j]) + (rotors[i] if i == j else 0.0), len(U)))
    G = list(zip(*(solve(D, row) for row in zip(*(u.coordinates for u in U)))))
    known = [k for k, rotor in zip(S.axes, rotors) if k is not None and is_literal(rotor, 0.0)]
    gains = with_known(S, known, G)
    return I.minus_outer(U, gains).without(known), gains, D


def with_known(S: Subspace, known: Sequence[int], G: Sequence[Sequence[Scalar]]) -> tuple[Spatial, ...]:
    """Gains with known entries: in the row of a freedom, one along its own axis and zero along the others' axes."""
    rows = zip(S.axes, G)
    return tuple(Spatial.of(float(k == axis) if k in known else x for k, x in enumerate(row)) for axis, row in rows)


def known_axes(S: Subspace, G: Sequence[Spatial]) -> tuple[int | None, ...]:
    """For each freedom, the coordinate along which `eliminate` knew the gain in advance, or None."""
    found = zip(S.axes, G)
    return tuple(None if k is None or not is_literal(g.coordinates[k], 1.0) else k for k, g in found)


def pass_on(S: Subspace, G: Sequence[Spatial], F: Spatial, b: Vec) -> tuple[Spatial, Vec]:
    """(F^, u): the force passed to the parent and the remaining torque of the joint, u = b - S^T F, F^ = F + G u."""
    u = b - S.T(F)
    for g, x in zip(G, u):
        F = F + g * x
    axes = known_axes(S, G)
    return Spatial.of(b[axes.index(k)] if k in axes else x for k, x in enumerate(F.coordinates)), u


def lift(S: Subspace, G: Sequence[Spatial], D: tuple, F: Spatial, b: Vec) -> tuple[Spatial, Vec]:
    """(F^, D^-1 u) of `pass_on`: the force passed to the parent and the joint's own acceleration."""
    F, u = pass_on(S, G, F, b)
    return F, solve(D, u)


def drop(S: Subspace, G: Sequence[Spatial], x: Vec, A: Spatial) -> tuple[Spatial, Vec]:
    """(A + S qdd, qdd) with qdd = x - G^T A."""
    qdd: list[Scalar] = []
    coordinates, axes = list(A.coordinates), known_axes(S, G)
    for axis, g, xi in zip(axes, G, x):
        if axis is None:
            qdd.append(xi - pair(g, A))
        else:  # g[axis] = 1, and only this column changes that coordinate: A[axis] + qdd = x - (the rest of G^T A)
            others = Spatial.of(0.0 if k == axis else gk for k, gk in enumerate(g.coordinates))
            coordinates[axis] = xi - pair(others, A)
            qdd.append(coordinates[axis] - A.coordinates[axis])
    for s, axis, acceleration in zip(S.columns, axes, qdd):
        if axis is None:
            coordinates = [a + sk * acceleration for a, sk in zip(coordinates, s.coordinates)]
    return Spatial.of(coordinates), Vec.of(qdd)


@inward(start=lambda base: dict(I=Inertia.zero()))
def articulated_inertias(link, here, children):
    """I_i = J_i + sum Ad*_{f^-1} I^ Ad_{f^-1}                                               (Eq. 40)"""
    f, S = link.placed(here)
    I, G, D = eliminate(S, children.I + link.inertia, link.rotors(here))
    return dict(I=f.carry(I)), dict(E=f.factors[-1], S=S, G=G, D=D, pivots=Vec.of(D[1]))


@inward(start=lambda base: dict(log_det=0.0))
def log_pivots(link, here, children):
    """log det M = sum of log pivot, over all pivots kept by `articulated_inertias`"""
    total = children.log_det
    for pivot in here.pivots:
        total = total + log(pivot)
    return dict(log_det=total), {}


def torque(here) -> Vec:
    """tau - K q - D v, with the springs and dampers of the joint if there are any; for joints with dq/dt = v"""
    if here.stiffness is None:
        return here.tau
    terms = zip(here.tau, here.stiffness, here.q, here.damping, here.v)
    return Vec.of(tau - K * q - D * v for tau, K, q, D, v in terms)


@inward(start=lambda base: dict(I=Inertia.zero(), F=Spatial.zero()))
def articulate(link, here, children):
    """`articulated_inertias`; F_i = W_i + sum Ad*_{f^-1} F^, F^ = F + G u, u = tau - S^T F, x = D^-1 u  (Eq. 41)"""
    f, S = link.placed(here)
    I, G, D = eliminate(S, children.I + link.inertia, link.rotors(here))
    F = children.F if here.W is None else children.F + here.W
    F, x = lift(S, G, D, F, here.b if here.tau is None else link.left_over(torque(here), here))
    return dict(I=f.carry(I), F=f.Ad_inv_dual(F)), dict(E=f.factors[-1], S=S, G=G, D=D, x=x)


@outward(start=lambda base: dict(A=Spatial.zero()))
def accelerate(link, here, parent):
    """qdd_i = D^-1 u - G^T Ad_{f^-1} A_{i-1};    A_i = Ad_{f^-1} A_{i-1} + S_i qdd_i         (Eq. 39)"""
    f, S = link.placed(here)
    A, qdd = drop(S, here.G, here.x, f.Ad_inv(parent.A))
    return dict(A=A), dict(qdd=qdd)


def unit_torques(take: Callable[[Any, Spatial, Vec], tuple[Spatial, dict[str, Any]]],
                 spread: Sweep | None = None) -> Columns:  # fmt: skip
    """For each freedom: a unit torque there and none elsewhere, carried to the base and, with `spread`, to all bodies.

    An earlier pass has eliminated the joints.  `take(here, F, b)` returns the force that a joint passes on, for the
    force F, and the values that it keeps.  `spread` computes the accelerations from the kept values x.
    """

    def on(link, here, F: Spatial, b: Vec):
        f, _ = link.placed(here)
        F, keep = take(here, F, b)
        return dict(F=f.Ad_inv_dual(F)), keep

    def unit_torque(link, here, k):
        return on(link, here, Spatial.zero(), Vec.unit(k, link.joint.nv))

    def pass_unit_torque(link, here, below):
        return on(link, here, below.F, Vec.zero(link.joint.nv))

    return Columns(unit_torque, pass_unit_torque, spread, rest=(lambda nv: dict(x=Vec.zero(nv))) if spread else None)


def innovation(here, F: Spatial, b: Vec) -> tuple[Spatial, dict[str, Any]]:
    """`pass_on` after `articulated_inertias`: keeps u and D^-1 u."""
    F, u = pass_on(here.S, here.G, F, b)
    return F, dict(u=u, x=solve(here.D, u))


forward_dynamics = Algorithm(
    "forward_dynamics", ("q", "v", "tau"), (motion, articulate, accelerate), PerFreedom("qdd"),
    options=(*MOTION_OPTIONS, "added_inertia", "stiffness", "damping"), inverts=True, torques_only=True,
)  # fmt: skip
mass_solve = Algorithm(
    "mass_solve", ("q", "b"), (articulate, accelerate), PerFreedom("qdd"), options=("added_inertia",), inverts=True,
    torques_only=True,
)  # fmt: skip
log_det = Algorithm(
    "log_det", ("q",), (articulated_inertias, log_pivots), AtBase("log_det"), inverts=True, torques_only=True,
)  # fmt: skip
pivots = Algorithm(
    "pivots", ("q",), (articulated_inertias,), PerFreedom("pivots"), options=("added_inertia",), torques_only=True,
)  # fmt: skip
inverse_mass_matrix = Algorithm(
    "inverse_mass_matrix", ("q",), (articulated_inertias, unit_torques(innovation, accelerate)), Symmetric("qdd"),
    inverts=True, torques_only=True,
)  # fmt: skip
# The same as M^-1 = U^T D^-1 U, where U has the columns u (Ploen & Park's square factor without its root).  There is no
# outward sweep.  Every entry is a sum over the freedoms that two paths to the base share: cheap if these are few.
inverse_by_product = Algorithm(
    "inverse_mass_matrix", ("q",), (articulated_inertias, unit_torques(innovation)), Gram("u", "x"),
    inverts=True, torques_only=True,
)  # fmt: skip
