"""M^-1 b, M^-1 and det M by relaxed constraints: Fixman 1974; Lee, Wang & Chirikjian 2007, Eqs 6-8 and 20.

Let every body float.  The inverse mass matrix of free bodies in any coordinates q = (s, h) is sparse.  The motions that
the joints allow (soft, s) and forbid (hard, h) are such coordinates of neighbouring bodies:

    H = [ds/dxi; dh/dxi] diag(J_1^-1 ... J_n^-1) [ds/dxi; dh/dxi]^T,
    M^-1 = H11 - H12 H22^-1 H12^T,        det M = det G det H22,    G = H^-1.

Let A = (S^T S)^-1 S^T and B = R^T be the soft and hard directions of a joint (covectors: A S = 1, B S = 0; R are the
orthonormal reactions) and X = Ad_{f^-1}.  The rows of body i are ds_i = A (xi_i - X xi_parent) and
dh_i = B (xi_i - X xi_parent): hard variables are coupled only through bodies.

Eliminating them from the leaves to the root causes no fill-in:

    Phi_i = (J_i + sum X^T N X)^-1 over the children,     N = B^T (B Phi B^T)^-1 B,
    qdd_i = G (y_i - X a_parent),     G = A - A Phi B^T (B Phi B^T)^-1 B,     y_i = Phi_i (wrenches on i).

A body without an inverse inertia (a rod, a point) is braced in the hard directions of its joint, which never move.

The determinant of (A, B) is det(S^T S)^-1/2, so that det M = prod det Phi^-1 det (B Phi B^T) det (S^T S).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torsor.algorithms.articulated import log_pivots, unit_torques
from torsor.linalg import Mat, Scalar, Vec, dot, factor, solve
from torsor.outputs import AtBase, PerFreedom, Symmetric
from torsor.spatial import Inertia, Spatial, Subspace, pair
from torsor.sweeps import Algorithm, Sweep, inward, outward

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


# The sweeps --------------------------------------------------------------------------------------------


class EliminatedJoint(NamedTuple):
    """A body with the hard variables of its joint eliminated."""

    A: tuple[Spatial, ...]
    B: tuple[Spatial, ...]
    J: tuple  # factor of Phi^-1
    H: tuple  # factor of B Phi B^T, the pivot of H22
    G: tuple[Spatial, ...]  # A - B^T (B Phi B^T)^-1 B Phi A^T: maps a motion of the body to its soft variables

    def push(self, F: Spatial, b: Vec) -> tuple[Spatial, Vec]:
        """From the wrench F of the children and b at the joint: (wrench on the parent, soft accelerations).

        They move the body by y = Phi (F + A^T b), and the joint pushes back by l = -(B Phi B^T)^-1 B y.
        """
        own = Subspace(self.A) @ b
        y = Spatial.of(solve(self.J, (F + own).coordinates))
        l = solve(self.H, Subspace(self.B).T(y))
        return (Subspace(self.B) @ l) - own, Subspace(self.G).T(y)


def eliminate_hard(S: Subspace, B: Subspace, I: Inertia) -> tuple[Inertia, EliminatedJoint]:
    """(N, the joint): N = B^T (B Phi B^T)^-1 B is the inertia added to the parent, Phi = I^-1."""
    A = S.dual()
    J = factor(dense(I))
    Z = [Spatial.of(solve(J, b.coordinates)) for b in B.columns]  # Phi B^T
    H = factor(Mat.symmetric(lambda i, j: pair(B.columns[i], Z[j]), len(Z)))
    rows = [Vec.of(b.coordinates[i] for b in B.columns) for i in range(6)]  # of B^T
    solved = [solve(H, row) for row in rows]
    N = [[dot(row, y) for y in solved] for row in rows]
    G = tuple(a - B @ solve(H, Vec.of(pair(a, z) for z in Z)) for a in A.columns)
    return as_inertia(N), EliminatedJoint(A.columns, B.columns, J, H, G)


def eliminate_braced(S: Subspace, B: Subspace, I: Inertia) -> tuple[Inertia, EliminatedJoint]:
    """`eliminate_hard` for a body that is a rod, a point or massless, whose inertia I has no inverse.

    An inertia W in the hard directions of the joint changes nothing, because they never move: I + B^T W B replaces I,
    N becomes N + B^T W B, and B^T W B is subtracted again. The sum is invertible wherever M is.
    W = B K B^T, with K as large as the body: the mean moments and masses of I.
    """
    turning, moving = (sum(A[k][k] for k in range(3)) * (1 / 3) for A in (I.J, I.M))
    columns = [Spatial(b.ang * turning, b.lin * moving) for b in B.columns]  # K B^T
    W = [[pair(b, k) for k in columns] for b in B.columns]
    rows = [Vec.of(b.coordinates[i] for b in B.columns) for i in range(6)]  # of B^T
    braced = [[dot(row, Vec.of(dot(w, other) for w in W)) for other in rows] for row in rows]
    N, joint = eliminate_hard(S, B, I + as_inertia(braced))
    return N + as_inertia([[-x for x in row] for row in braced]), joint


def sweeps(eliminate: Callable[[Subspace, Subspace, Inertia], tuple[Inertia, EliminatedJoint]]) -> tuple[Sweep, Sweep]:
    """The two inward sweeps, for one way to eliminate hard variables."""

    @inward(start=lambda base: dict(I=Inertia.zero()))
    def relax(link, here, children):
        """Phi_i^-1 = J_i + sum X^T N X; eliminate the hard variables of joint i."""
        f, S = link.placed(here)
        N, joint = eliminate(S, Subspace(link.reactions(here.q)), children.I + link.inertia)
        pivots = Vec.of((*joint.J[1], *joint.H[1], *factor(S.gram())[1]))
        keep = dict(E=f.factors[-1], S=S, eliminated=joint, G=joint.G, pivots=pivots)
        return dict(I=f.carry(N)), keep

    @inward(start=lambda base: dict(I=Inertia.zero(), F=Spatial.zero()))
    def relax_and_push(link, here, children):
        """`relax`, with the forces as well as the inertias."""
        f, S = link.placed(here)
        N, joint = eliminate(S, Subspace(link.reactions(here.q)), children.I + link.inertia)
        F, x = joint.push(children.F, here.b)
        return dict(I=f.carry(N), F=f.Ad_inv_dual(F)), dict(E=f.factors[-1], S=S, G=joint.G, x=x)

    return relax, relax_and_push


@outward(start=lambda base: dict(a=Spatial.zero()))
def soft_accelerations(link, here, parent):
    """qdd_i = G (y - X a_parent),    a_i = X a_parent + S qdd_i."""
    f, S = link.placed(here)
    carried = f.Ad_inv(parent.a)
    qdd = here.x - Subspace(here.G).T(carried)
    return dict(a=carried + S @ qdd), dict(qdd=qdd)


def push_on(here, F: Spatial, b: Vec) -> tuple[Spatial, dict[str, Vec]]:
    """The force that a joint passes on after `relax`, and its own share."""
    F, x = here.eliminated.push(F, b)
    return F, dict(x=x)


class FixmanMethod(NamedTuple):
    """The functions of M^-1, computed by relaxed constraints."""

    mass_solve: Algorithm
    log_det: Algorithm
    inverse_mass_matrix: Algorithm


def method(
    name: str, eliminate: Callable[[Subspace, Subspace, Inertia], tuple[Inertia, EliminatedJoint]]
) -> FixmanMethod:
    relax, relax_and_push = sweeps(eliminate)
    columns = unit_torques(push_on, soft_accelerations)
    return FixmanMethod(
        Algorithm(
            f"mass_solve_{name}", ("q", "b"), (relax_and_push, soft_accelerations), PerFreedom("qdd"), inverts=True
        ),
        Algorithm(f"log_det_{name}", ("q",), (relax, log_pivots), AtBase("log_det"), inverts=True),
        Algorithm(f"inverse_mass_matrix_{name}", ("q",), (relax, columns), Symmetric("qdd"), inverts=True),
    )


mass_solve, log_det, inverse_mass_matrix = REGULAR = method("fixman", eliminate_hard)
BRACED = method("fixman_braced", eliminate_braced)  # for machines with rods, points or massless bodies
