"""M^-1 b, M^-1 and det M by relaxed constraints: Fixman 1974; Lee, Wang & Chirikjian 2007, Eqs 6-8 and 20.

Let every body float.  The inverse mass matrix of free bodies in any coordinates q = (s, h) is sparse, and
what the joints allow (soft, s) and forbid (hard, h) are such coordinates of neighbouring bodies:

    H = [ds/dxi; dh/dxi] diag(J_1^-1 ... J_n^-1) [ds/dxi; dh/dxi]^T,
    M^-1 = H11 - H12 H22^-1 H12^T,        det M = det G det H22,    G = H^-1.

With A and B the soft and hard directions of a joint (covectors: A S = 1, B S = 0) and X = Ad_{f^-1}, the rows
of body i are ds_i = A (xi_i - X xi_parent) and dh_i = B (xi_i - X xi_parent): hard variables meet at bodies.
Eliminating them from the leaves to the root fills nothing in:

    Phi_i = (J_i + sum X^T N X)^-1 over the children,     N = B^T (B Phi B^T)^-1 B.

A and B are unimodular, so det G = det J_1 ... det J_n and det M = prod det Phi^-1 det (B Phi B^T).
"""

from __future__ import annotations

from collections.abc import Sequence

from torsor.errors import ArgumentError
from torsor.linalg import Mat, Scalar, Vec, cross, dot, factor, is_literal, log, solve
from torsor.spatial import Inertia, Spatial, Subspace
from torsor.sweeps import Algorithm, Columns, inward, outward

ZERO = Vec.zero()
X, Y, Z = (Vec.unit(k) for k in range(3))
TURNS, SHIFTS = (tuple(Spatial.unit(k) for k in ks) for ks in (range(3), range(3, 6)))


# Soft and hard directions ------------------------------------------------------------------------------


def soft_directions(link, S: Subspace) -> Subspace:
    """A, with A S = 1: S itself, whose columns are orthonormal in every joint but the helical one."""
    return Subspace((Spatial(link.axis, ZERO),)) if link.joint.name == "helical" else S


def hard_directions(link, S: Subspace) -> Subspace:
    """B, with B S = 0: what the joint holds, in variables that are regular wherever the joint stands."""
    name = link.joint.name
    if link.joint.axial:
        x, y = across(link.axis)
        turns, shifts = ((Spatial(x, ZERO), Spatial(y, ZERO)), (Spatial(ZERO, x), Spatial(ZERO, y)))
        along = Spatial(-(link.axis * link.pitch) if name == "helical" else ZERO, link.axis)
        return Subspace((*TURNS, *shifts) if name == "prismatic" else (*turns, *shifts, along))
    if name == "universal":
        twist = cross(S.columns[0].ang, S.columns[1].ang)
        return Subspace((Spatial(twist, ZERO), *SHIFTS))
    held = {"spherical": SHIFTS, "planar": (*TURNS[:2], SHIFTS[2]), "free": ()}
    if name not in held:
        raise ArgumentError(f"no hard directions are known for joint type {name!r}; use method='articulated'")
    return Subspace(held[name])


def across(z: Vec) -> tuple[Vec, Vec]:
    """Two unit vectors that make a right-handed frame with the unit vector z; x and y for z itself."""
    if is_literal(z[2], 1.0):
        return X, Y
    sign = 1.0 if z[2] >= 0 else -1.0
    k = -1.0 / (sign + z[2])
    x = Vec(1.0 + sign * k * z[0] * z[0], sign * k * z[0] * z[1], -sign * z[0])
    return x, cross(z, x)


# Six by six --------------------------------------------------------------------------------------------


def dense(I: Inertia) -> Mat:
    """An inertia as a 6x6 matrix."""
    top = [(*j, *h) for j, h in zip(I.J, I.H)]
    return Mat.of([*top, *((*h, *m) for h, m in zip(I.H.T, I.M))])


def as_inertia(A: Sequence[Sequence[Scalar]]) -> Inertia:
    """A symmetric 6x6 matrix as an inertia; its upper triangle is read."""
    return Inertia(
        Mat.symmetric(lambda i, j: A[i][j]),
        Mat.of((A[i][3 + j] for j in range(3)) for i in range(3)),
        Mat.symmetric(lambda i, j: A[3 + i][3 + j]),
    )


def combine(columns: Sequence[Spatial], x: Sequence[Scalar]) -> Spatial:
    """B^T x: the sum of covectors."""
    return Subspace(tuple(columns)) @ x


# The sweeps --------------------------------------------------------------------------------------------


@inward(start=lambda base: dict(I=Inertia.zero()))
def relax(link, here, children):
    """Eliminate the hard variables of joint i: Z = Phi B^T, N = B^T (B Z)^-1 B to the parent."""
    f, S = link.placed(here)
    A, B = soft_directions(link, S), hard_directions(link, S)
    J = factor(dense(children.I + link.inertia))  # of Phi^-1
    Z = tuple(Spatial.of(solve(J, b.coordinates)) for b in B.columns)
    H = factor(Mat.symmetric(lambda i, j: B.T(Z[j])[i], len(Z)))  # of B Phi B^T, the pivot of H22
    rows = [Vec.of(b.coordinates[i] for b in B.columns) for i in range(6)]  # of B^T
    solved = [solve(H, row) for row in rows]
    N = [[dot(row, y) for y in solved] for row in rows]
    keep = dict(E=f.factors[-1], S=S, A=A.columns, B=B.columns, J=J, Z=Z, H=H)
    return dict(I=f.carry(as_inertia(N))), dict(**keep, pivots=Vec.of((*J[1], *H[1])))


def push(link, here, F: Spatial, b: Vec):
    """A^T b and the wrench F from the children move the body by y; its joint pushes back by l."""
    f, _ = link.placed(here)
    own = combine(here.A, b)
    y = Spatial.of(solve(here.J, (F + own).coordinates))
    l = -solve(here.H, Subspace(here.B).T(y))
    return dict(F=f.Ad_inv_dual(-(own + combine(here.B, l)))), dict(y=y, l=l)


@inward(start=lambda base: dict(F=Spatial.zero()))
def load(link, here, children):
    """y = Phi (F + A^T b),   l = -(B Phi B^T)^-1 B y;   the parent feels -X^T (A^T b + B^T l)."""
    return push(link, here, children.F, here.b)


@outward(start=lambda base: dict(a=Spatial.zero()))
def settle(link, here, parent):
    """a_i = y + Z (l + (B Phi B^T)^-1 B X a_parent);    x_i = A (a_i - X a_parent)."""
    f, S = link.placed(here)
    carried = f.Ad_inv(parent.a)
    l = here.l + solve(here.H, Subspace(here.B).T(carried))
    own = here.y + combine(here.Z, l) - carried  # along S, for the hard variables do not move
    x = Subspace(here.A).T(own)
    return dict(a=carried + S @ x), dict(x=x)


@inward(start=lambda base: dict(log_det=0.0))
def log_pivots(link, here, children):
    """log det M = sum log det Phi^-1 + log det B Phi B^T"""
    total = children.log_det
    for pivot in here.pivots:
        total = total + log(pivot)
    return dict(log_det=total), {}


def unit_torque(link, here, k):
    return push(link, here, Spatial.zero(), Vec.unit(k, link.joint.nv))


def push_on(link, here, below):
    return push(link, here, below.F, Vec.zero(link.joint.nv))


def at_rest(nv: int) -> dict:
    return dict(y=Spatial.zero(), l=Vec.zero(6 - nv))


mass_solve = Algorithm(
    "mass_solve_fixman", ("q", "b"), (relax, load, settle), output="x", kind="joint", inverts=True
)
log_det = Algorithm("log_det_fixman", ("q",), (relax, log_pivots), output="log_det", kind="base", inverts=True)
inverse_mass_matrix = Algorithm(
    "inverse_mass_matrix_fixman", ("q",), (relax, Columns(unit_torque, push_on, settle, rest=at_rest)),
    output="x", kind="matrix", inverts=True,
)  # fmt: skip
