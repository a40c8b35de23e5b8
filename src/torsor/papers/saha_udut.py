"""Saha 2001, sections 2 and 3 and Appendix B: DeNOC matrices, M = U D U^T, and the three steps as printed.

    M = N_d^T (N_l^T M_b N_l) N_d                                                            (Eqs 2, 3)

is the closed form of Ploen & Park in frames at the mass centres, parallel to the base: N_l = G, N_d = S and
M_b = J there, with blocks B_ij = [[1, 0], [C_ij, 1]] and M_i = diag(I_i, m_i 1).

Eliminating the columns of M from the last to the first, one freedom after the other, gives U (unit upper triangular)
and D. The elimination works on the recursive entries of M and never needs M itself. On a tree the entries between
branches stay zero. The armature of a model adds to the pivots.

`forward_dynamics` has every vector in the frame that the paper uses for it, with the paper's shortcuts and no others,
over any scalar; its cost is counted on a tape. Frame i+1 is on link i; r_i runs from the mass centre C_i to O_{i+1};
Q_i rotates vectors from frame i+1 to frame i. Misprints corrected: step A1 is [d_i]_i = [a_i]_i - Q_i [r_i]_{i+1};
A3(b) adds the link's own inertia; A3(b) and A4(b) run to i = 1; C3 begins with the bottom of mu_{i-1}.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.backends.pointwise import trace
from torsor.compiler.tape import Operations
from torsor.dense import numbers_like
from torsor.dynamics.closed_forms import Operators, inertial_com_frames, operators
from torsor.dynamics.functions import bias_forces
from torsor.linalg import Mat, Scalar, Vec, cos, cross, dot, sin
from torsor.model.model import Model
from torsor.model.regular import require_uncoupled
from torsor.spatial import Screw

Array = NDArray[Any]
Pair = tuple[Vec, Vec]  # the top and the bottom half of a six-vector
Z, ZERO = Vec.unit(2), (Vec.zero(), Vec.zero())


def denoc(model: Model, q: ArrayLike, v: ArrayLike | None = None) -> Operators:
    """The operators in Saha's frames: N_l is `.G`, N_d is `.S`, the mass matrix of the bodies is `.J`."""
    return operators(model, q, v, Q=inertial_com_frames(model, q))


# On any symmetric positive definite matrix -----------------------------------------------------------------


def elementary(M: Array) -> Iterator[tuple[Array, Array]]:
    """(E_k, L_k) for k = n..2: E_k = 1 - alpha_k lambda_k^T, L_k = E_k L_{k+1}, L_{n+1} = M   (Eqs 19-24)

    E_k annihilates the entries above the diagonal in column k.
    """
    L = numbers_like(M)
    for k in reversed(range(1, len(L))):
        E = np.eye(len(L), dtype=L.dtype)
        E[:k, k] = -L[:k, k] / L[k, k]
        L = E @ L
        yield E, L


def reverse_elimination(M: ArrayLike) -> tuple[Array, Array]:
    """(U, D) with M = U diag(D) U^T: U = (E_2 ... E_n)^-1, D the pivots                      (Eqs 7-11)"""
    M = numbers_like(M)
    U, L = np.eye(len(M), dtype=M.dtype), M
    for E, reduced in elementary(M):
        U = U + np.triu(np.eye(len(M)) - E, 1)  # the columns alpha_k of Eq. 8, side by side
        L = reduced
    return U, np.diag(L).copy()


# On the recursive entries of a mass matrix -----------------------------------------------------------------


@dataclass(frozen=True)
class UDUT:
    """M = U diag(D) U^T and the intermediate results of the elimination, freedom by freedom."""

    U: Array  # (nv, nv) unit upper triangular: alpha_ik
    D: Array  # (nv,): m^_k, the inertia of articulated body k about its joint
    U_inverse: Array  # (nv, nv)
    psi: Array  # (nv, 6): psi_k = psi^_k / m^_k
    M_hat: Array  # (n, 6, 6): the articulated-body inertias

    @property
    def M_inverse(self) -> Array:
        """U^-T D^-1 U^-1, from the known entries of U^-1."""
        return self.U_inverse.T @ (self.U_inverse / self.D[:, None])


def decompose(o: Operators) -> UDUT:
    """U and D from the articulated inertias; M is never formed                              (Eqs 25-28)"""
    model, n, nv = o.model, o.n, o.model.nv
    starts = model.v_start
    M_hat, p = o.J_blocks.copy(), np.concatenate([S.T for S in o.S_blocks])
    psi, D = np.zeros((nv, 6), M_hat.dtype), np.zeros(nv, M_hat.dtype)
    for i in reversed(range(n)):
        free = M_hat[i].copy()
        for k in reversed(range(starts[i], starts[i + 1])):
            psi_hat = free @ p[k]
            D[k] = p[k] @ psi_hat + model.armature[k]
            psi[k] = psi_hat / D[k]
            free -= np.outer(psi_hat, psi[k])  # M^_kk, Eq. 28
        if model.parent[i] >= 0:
            B = o.Ad_inv[i]
            M_hat[model.parent[i]] += B.T @ free @ B
    U, U_inverse = (np.eye(nv, dtype=M_hat.dtype) for _ in range(2))
    for k in range(nv):
        rigid = free_ = psi[k]
        for i, B in _way(o, k):
            rigid, free_ = B.T @ rigid, B.T @ free_
            U[i, k] = p[i] @ rigid  # alpha_ik, Eq. 25
            U_inverse[i, k] = -p[i] @ free_
            free_ = free_ + psi[i] * U_inverse[i, k]
    return UDUT(U, D, U_inverse, psi, M_hat)


def _way(o: Operators, k: int) -> Iterator[tuple[int, Array]]:
    """The freedoms between k and the base, nearest first, each with the B from the previous one."""
    starts, one = o.model.v_start, np.eye(6)
    body, end, B = int(np.searchsorted(starts, k, side="right")) - 1, k, one
    while body >= 0:
        for i in reversed(range(starts[body], end)):
            yield i, B
            B = one
        B = o.Ad_inv[body]
        body = int(o.model.parent[body])
        end = starts[body + 1]


# The three steps in one frame -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ThreeSteps(UDUT):
    """M = U D U^T, and the results of steps A, B and C, freedom by freedom."""

    p: Array  # (nv, 6): the motion of each freedom
    phi: Array  # (nv,): tau - C qd - gravity
    tau_hat: Array  # (nv,): U^-1 phi                                                             (Eq. 12)
    eta: Array  # (nv, 6): eta_k = psi_k tau^_k + eta_{k,k+1}, the wrench that the freedom passes on
    tau_tilde: Array  # (nv,): D^-1 tau^                                                          (Eq. 13)
    mu: Array  # (nv, 6): mu_k = p_k qdd_k + mu_{k,k-1}, the acceleration beyond the freedom
    qdd: Array  # (nv,): U^-T tau~                                                                (Eqs 14, 15)

    @property
    def m_hat(self) -> Array:
        """m^_k = p_k^T psi^_k, the pivots D."""
        return self.D

    @property
    def psi_hat(self) -> Array:
        """psi^_k = M^_k p_k."""
        return self.psi * self.D[:, None]


def study(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike) -> ThreeSteps:
    """Saha's recursions on any model, with their intermediates by name; vectors are in the frames of `denoc`."""
    require_uncoupled(model, "Saha's elimination")
    return three_steps(denoc(model, q), np.asarray(tau) - bias_forces(model, q, v))


def three_steps(o: Operators, phi: Array, outward: Array | None = None) -> ThreeSteps:
    """Eqs 12-15 and 26-28; `outward`: other B_{i,i-1} for step C than those of the machine."""
    u, parent, starts = decompose(o), o.model.parent.tolist(), o.model.v_start
    p, B = np.concatenate([S.T for S in o.S_blocks]), o.Ad_inv if outward is None else outward
    eta, mu, passed, ahead = (np.zeros((k, 6), phi.dtype) for k in (o.model.nv, o.model.nv, o.n, o.n))
    tau_hat, qdd = np.zeros((2, o.model.nv), phi.dtype)
    for i in reversed(range(o.n)):
        for k in reversed(range(starts[i], starts[i + 1])):
            tau_hat[k] = phi[k] - p[k] @ passed[i]
            passed[i] += u.psi[k] * tau_hat[k]
            eta[k] = passed[i]
        if parent[i] >= 0:
            passed[parent[i]] += o.Ad_inv[i].T @ passed[i]
    tau_tilde = tau_hat / u.D
    for i in range(o.n):
        if parent[i] >= 0:
            ahead[i] = B[i] @ ahead[parent[i]]
        for k in range(starts[i], starts[i + 1]):
            qdd[k] = tau_tilde[k] - u.psi[k] @ ahead[i]
            ahead[i] += p[k] * qdd[k]
            mu[k] = ahead[i]
    return ThreeSteps(**vars(u), p=p, phi=phi, tau_hat=tau_hat, eta=eta, tau_tilde=tau_tilde, mu=mu, qdd=qdd)


# As printed, for a Denavit-Hartenberg arm ----------------------------------------------------------------


@dataclass(frozen=True)
class DHLink:
    """A link after Appendix A; `prismatic` joints move b, the others theta."""

    a: float
    b: float
    alpha: float
    theta: float
    m: float
    r: Vec  # from the mass centre to O_{i+1}, in frame i+1
    I: Mat  # about the mass centre, in frame i+1
    prismatic: bool = False


class Rotation:
    """Q_i = R_z(theta_i) R_x(alpha_i), as two plane rotations: 8M 4A per vector, 16M 14A per symmetric matrix."""

    def __init__(self, link: DHLink, q: Scalar) -> None:
        theta = link.theta if link.prismatic else link.theta + q
        self.b = link.b + q if link.prismatic else link.b
        self.z = Screw(2, cos(theta), sin(theta), 0.0)
        self.x = Screw(0, cos(link.alpha), sin(link.alpha), 0.0)

    def out(self, v: Vec) -> Vec:
        """Q v: from frame i+1 to frame i."""
        return self.z.turn(self.x.turn(v))

    def back(self, v: Vec) -> Vec:
        """Q^T v."""
        return self.x.unturn(self.z.unturn(v))

    def symmetric(self, A: Mat) -> Mat:
        """Q A Q^T of a symmetric A."""
        return self.z._turn_symmetric(self.x._turn_symmetric(A))

    def general(self, A: Mat) -> Mat:
        """Q A Q^T: 24M 22A."""
        return self.z.turn_matrix(self.x.turn_matrix(A))

    def d(self, link: DHLink) -> Vec:
        """Step A1: [d_i]_i = [a_i]_i - Q_i [r_i]_{i+1}; everything except the rotation by theta is constant: 4M 2A."""
        in_plane = Vec(link.a, 0.0, 0.0) - self.x.turn(link.r)
        return self.z.turn(in_plane) + Vec(0.0, 0.0, self.b)

    def p_outside(self, link: DHLink) -> Pair:
        """[p_i]_{i+1}, which does not depend on theta."""
        e = self.x.unturn(Z)
        if link.prismatic:
            return Vec.zero(), e
        return e, cross(e, Vec(link.a, 0.0, 0.0) + e * self.b - link.r)


@dataclass(frozen=True)
class Articulated:
    """M^ = [[I, F^T], [F, G]]                                                                  (Eq. 16)"""

    I: Mat
    F: Mat
    G: Mat

    def times(self, p: Pair) -> Pair:
        """psi^ = M^ p"""
        return self.I @ p[0] + self.F.T @ p[1], self.F @ p[0] + self.G @ p[1]

    def less(self, psi_hat: Pair, psi: Pair) -> Articulated:
        """Step A7: M^ - psi^ psi^T"""
        (hat_t, hat_b), (t, b) = psi_hat, psi
        return Articulated(
            Mat.symmetric(lambda i, j: self.I[i][j] - hat_t[i] * t[j]),
            Mat.of((self.F[i][j] - hat_b[i] * t[j] for j in range(3)) for i in range(3)),
            Mat.symmetric(lambda i, j: self.G[i][j] - hat_b[i] * b[j]),
        )

    def on_parent(self, c: Vec, parent: DHLink) -> Articulated:
        """Step A3(b) in the child's frame: B^T M^ B + M_parent, c = c_{i+1,i}."""
        F = self.F + Mat.of(cross(row, c) for row in self.G)  # F + G C, row by row

        def moment(i: int, j: int) -> Scalar:
            """(F_old^T C - C F)_ij = (F_old^T C)_ij + (F^T C)_ji: 15M 18A in all."""
            if i == j:
                k, l = (i + 1) % 3, (i + 2) % 3
                return (self.F[k][i] + F[k][i]) * c[l] - (self.F[l][i] + F[l][i]) * c[k]
            k = 3 - i - j
            s = 1.0 if (j - i) % 3 == 1 else -1.0
            return (self.F[k][i] * c[i] - F[k][j] * c[j] + (F[j][j] - self.F[i][i]) * c[k]) * s

        return Articulated(
            Mat.symmetric(lambda i, j: self.I[i][j] + parent.I[i][j] + moment(i, j)),
            F,
            Mat.symmetric(lambda i, j: self.G[i][j] + parent.m if i == j else self.G[i][j]),
        )


def forward_dynamics(links: Sequence[DHLink], q: Sequence[Scalar], phi: Sequence[Scalar]) -> list[Scalar]:
    """qdd = M^-1 phi by the three steps; phi = tau - C qd - gravity is given, as in the paper.

    The paper does not count M^_1 and psi^_1, only m^_1 = p_1^T M^_1 p_1.  These products are formed in frame 2, where
    p_1 is constant and no rotation is needed.
    """
    n = len(links)
    Q = [Rotation(link, x) for link, x in zip(links, q)]
    d = [Q[i].d(links[i]) for i in range(n)]
    p = [_p(link, di) for link, di in zip(links, d)]
    c = [-links[i - 1].r - d[i] for i in range(1, n)]  # c[i-1] is c_{i,i-1}: step A2, 3A

    # A and B: eliminate from the tip to the base
    psi: list[Pair] = [ZERO] * n
    phi_tilde: list[Scalar] = [0.0] * n
    last = links[-1]
    M = Articulated(last.I, Mat.zero(), Mat.identity() * last.m)  # [M^_n]_{n+1}
    eta = ZERO  # [eta_{i,i+1}]_{i+1}
    for i in reversed(range(1, n)):
        M = Articulated(Q[i].symmetric(M.I), Q[i].general(M.F), Q[i].symmetric(M.G))
        eta = (Q[i].out(eta[0]), Q[i].out(eta[1]))
        psi_hat = M.times(p[i])  # A4
        m_hat = _dot(p[i], psi_hat)  # A5
        psi[i] = (psi_hat[0] * (1.0 / m_hat), psi_hat[1] * (1.0 / m_hat))  # A6
        phi_hat = phi[i] - _dot(p[i], eta)  # A10
        phi_tilde[i] = phi_hat / m_hat  # B
        eta = (psi[i][0] * phi_hat + eta[0], psi[i][1] * phi_hat + eta[1])  # A8
        eta = (eta[0] + cross(eta[1], c[i - 1]), eta[1])  # A9
        M = M.less(psi_hat, psi[i]).on_parent(c[i - 1], links[i - 1])  # A7, A3(b)
    base = Q[0].p_outside(links[0])
    phi_tilde[0] = (phi[0] - _dot(base, eta)) / _dot(base, M.times(base))

    # C: back from the base to the tip
    qdd = [phi_tilde[0]]
    mu = (base[0] * qdd[0], base[1] * qdd[0])  # [mu_{i-1}]_i
    for i in range(1, n):
        mu = (mu[0], mu[1] + cross(c[i - 1], mu[0]))  # C3
        qdd.append(phi_tilde[i] - _dot(psi[i], mu))  # C1
        mu = (Q[i].back(mu[0] + p[i][0] * qdd[i]), Q[i].back(mu[1] + p[i][1] * qdd[i]))  # C2
    return qdd


def _p(link: DHLink, d: Vec) -> Pair:
    """p = (e, e x d), or (0, e) for a prismatic joint; e is z of frame i                          (Eq. 5)"""
    return (Vec.zero(), Z) if link.prismatic else (Z, Vec(-d[1], d[0], 0.0))


def _dot(a: Pair, b: Pair) -> Scalar:
    return dot(a[0], b[0]) + dot(a[1], b[1])


# A general arm -------------------------------------------------------------------------------------------------


@cache
def operations(n: int) -> Operations:
    """The cost of Saha's three steps on a general arm of n revolute joints, with phi given."""
    links = general_links(n)
    return Operations.of(trace(lambda q, phi: forward_dynamics(links, q, phi), {"q": (n,), "phi": (n,)}))


def general_links(n: int, prismatic: Sequence[int] = (), seed: int = 0) -> list[DHLink]:
    """A Denavit-Hartenberg arm in which no length, angle or moment of inertia is zero or equal to another."""
    rng = np.random.default_rng(seed)
    links = []
    for i in range(n):
        second = rng.normal(size=(3, 3))
        second = second @ second.T  # int r r^T dm of some body: its inertia obeys the triangle inequality
        links.append(DHLink(
            a=float(rng.uniform(0.2, 1)), b=float(rng.uniform(0.2, 1)), alpha=float(rng.uniform(0.2, 1)), theta=0.0,
            m=float(rng.uniform(1, 3)), r=Vec.of(rng.uniform(-0.5, 0.5, 3).tolist()),
            I=Mat.of((np.trace(second) * np.eye(3) - second).tolist()), prismatic=i in prismatic,
        ))  # fmt: skip
    return links


def model_of(links: Sequence[DHLink]) -> Model:
    """The same arm as a model."""
    return Model.from_dh(
        a=[x.a for x in links], d=[x.b for x in links], alpha=[x.alpha for x in links],
        theta=[x.theta for x in links], variable=["d" if x.prismatic else "theta" for x in links],
        convention="standard", mass=[x.m for x in links], r=[list(x.r) for x in links],
        inertia=np.array([x.I for x in links]), name=f"general_dh({len(links)})",
    )  # fmt: skip
