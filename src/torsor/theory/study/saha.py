"""Saha's forward dynamics exactly as published: steps A, B and C of section 3 (2001) for a Denavit-Hartenberg arm.

Every vector is in the frame the paper uses for it, and the paper's shortcuts are taken and no others, over any scalar.
The cost is counted on a tape.  Frame i+1 sits on link i; r_i runs from the mass centre C_i to O_{i+1}; Q_i turns
frame i+1 into frame i.  Misprints corrected: step A1 is [d_i]_i = [a_i]_i - Q_i [r_i]_{i+1}; A3(b) adds the
link's own inertia; A3(b) and A4(b) run to i = 1; C3 begins with the bottom of mu_{i-1}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torsor.linalg import Mat, Scalar, Vec, cos, cross, dot, sin
from torsor.spatial import Screw

Pair = tuple[Vec, Vec]  # the top and the bottom half of a six-vector
Z, ZERO = Vec.unit(2), (Vec.zero(), Vec.zero())


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


class Turn:
    """Q_i = R_z(theta_i) R_x(alpha_i), as two plane turns: 8M 4A per vector, 16M 14A per symmetric matrix."""

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
        """Step A1: [d_i]_i = [a_i]_i - Q_i [r_i]_{i+1}; everything except the turn by theta is constant: 4M 2A."""
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
    Q = [Turn(link, x) for link, x in zip(links, q)]
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
