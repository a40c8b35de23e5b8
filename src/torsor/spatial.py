"""Twists, wrenches, poses and inertias of rigid bodies, over any scalar (see `torsor.linalg`).

Notation (Ploen & Park 1999): a pose f = (R, p) takes child coordinates to parent coordinates;
V = (omega, v) is a twist, F = (moment, force) a wrench, J a 6x6 inertia; Ad_{f^-1} moves a twist from
parent to child, its transpose moves a wrench from child to parent.

A pose is a `Rigid` (any R and p), a `Screw` (a rotation about a coordinate axis and a shift along it, as in a
Denavit-Hartenberg link, at half the cost) or a `Product` of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torsor.linalg import Mat, Scalar, Vec, cross, dot, factor, is_literal, solve


class Spatial(NamedTuple):
    """A twist (omega, v) or a wrench (moment, force)."""

    ang: Vec
    lin: Vec

    @classmethod
    def zero(cls) -> Spatial:
        return cls(Vec.zero(), Vec.zero())

    @classmethod
    def unit(cls, k: int) -> Spatial:
        return cls.of(Vec.unit(k, 6))

    @classmethod
    def of(cls, xs: Iterable[Scalar]) -> Spatial:
        xs = tuple(xs)
        return cls(Vec.of(xs[:3]), Vec.of(xs[3:]))

    @property
    def coordinates(self) -> Vec:
        return Vec(*self.ang, *self.lin)

    def __add__(self, other: Spatial) -> Spatial:  # type: ignore[override]
        return Spatial(self.ang + other.ang, self.lin + other.lin)

    def __sub__(self, other: Spatial) -> Spatial:
        return Spatial(self.ang - other.ang, self.lin - other.lin)

    def __neg__(self) -> Spatial:
        return Spatial(-self.ang, -self.lin)

    def __mul__(self, s: Scalar) -> Spatial:  # type: ignore[override]
        return Spatial(self.ang * s, self.lin * s)


def pair(F: Spatial, V: Spatial) -> Scalar:
    """<F, V>: the power of a wrench on a twist."""
    return dot(F.ang, V.ang) + dot(F.lin, V.lin)


def ad(V: Spatial, W: Spatial) -> Spatial:
    """ad_V W = [V, W]."""
    return Spatial(cross(V.ang, W.ang), cross(V.lin, W.ang) + cross(V.ang, W.lin))


def ad_dual(V: Spatial, F: Spatial) -> Spatial:
    """ad*_V F = ad_V^T F."""
    return Spatial(cross(F.ang, V.ang) + cross(F.lin, V.lin), cross(F.lin, V.ang))


# Inertia -------------------------------------------------------------------------------------------------


class Inertia(NamedTuple):
    """A symmetric 6x6 matrix [[J, H], [H^T, M]]: a rigid, composite or articulated inertia.

    J and M are symmetric, and each off-diagonal entry is computed once, so that the matrix stays symmetric
    to the last bit.  Without that, long chains lose half their digits.
    """

    J: Mat
    H: Mat
    M: Mat

    @classmethod
    def zero(cls) -> Inertia:
        return cls(Mat.zero(), Mat.zero(), Mat.zero())

    @classmethod
    def rigid(cls, m: Scalar, h: Vec, J: Mat) -> Inertia:
        """A rigid body: mass, first moment h = m c and rotational inertia J, both about the frame's origin."""
        H = Mat((0.0, -h[2], h[1]), (h[2], 0.0, -h[0]), (-h[1], h[0], 0.0))
        return cls(J, H, Mat.identity() * m)

    def __add__(self, other: Inertia) -> Inertia:  # type: ignore[override]
        return Inertia(
            Mat.symmetric(lambda i, j: self.J[i][j] + other.J[i][j]),
            self.H + other.H,
            Mat.symmetric(lambda i, j: self.M[i][j] + other.M[i][j]),
        )

    def __matmul__(self, V: Spatial) -> Spatial:
        return Spatial(self.J @ V.ang + self.H @ V.lin, self.H.T @ V.ang + self.M @ V.lin)

    def minus_outer(self, U: Sequence[Spatial], G: Sequence[Spatial]) -> Inertia:
        """self - sum_k U_k G_k^T; the caller guarantees that it is symmetric."""

        def block(A: Mat, a: str, b: str, i: int, j: int) -> Scalar:
            return A[i][j] - dot([getattr(u, a)[i] for u in U], [getattr(g, b)[j] for g in G])

        return Inertia(
            Mat.symmetric(lambda i, j: block(self.J, "ang", "ang", i, j)),
            Mat.of((block(self.H, "ang", "lin", i, j) for j in range(3)) for i in range(3)),
            Mat.symmetric(lambda i, j: block(self.M, "lin", "lin", i, j)),
        )

    def without(self, axes: Iterable[int]) -> Inertia:
        """The same with the rows and columns of the coordinates `axes` (0..5) set to zero."""
        removed = set(axes)

        def cut(A: Mat, rows: int, columns: int) -> Mat:
            return Mat.of(
                (0.0 if {rows + i, columns + j} & removed else x for j, x in enumerate(row)) for i, row in enumerate(A)
            )

        return Inertia(cut(self.J, 0, 0), cut(self.H, 0, 3), cut(self.M, 3, 3))


# Motion subspaces ----------------------------------------------------------------------------------------


class Subspace(NamedTuple):
    """S, the directions in which a joint moves: one twist per degree of freedom, in the child's frame."""

    columns: tuple[Spatial, ...]

    def __matmul__(self, v: Sequence[Scalar]) -> Spatial:
        """S v."""
        total = Spatial.zero()
        for column, x in zip(self.columns, v):
            total = total + column * x
        return total

    def T(self, F: Spatial) -> Vec:
        """S^T F."""
        return Vec.of(pair(F, column) for column in self.columns)

    def gram(self) -> Mat:
        """S^T S."""
        return Mat.symmetric(lambda i, j: pair(self.columns[i], self.columns[j]), len(self.columns))

    def dual(self) -> Subspace:
        """T = S (S^T S)^-1, with T^T S = 1: the wrenches of unit torques without any reaction."""
        square = factor(self.gram())
        rows = [solve(square, row) for row in zip(*(s.coordinates for s in self.columns))]
        return Subspace(tuple(Spatial.of(column) for column in zip(*rows)))

    @property
    def axes(self) -> tuple[int | None, ...]:
        """For each column, the coordinate whose unit vector it is, or None.

        The effect of a joint along such a coordinate is known in advance.  It is written as a number or omitted, not
        computed: this saves a third of the multiplications of an articulated-body sweep.
        """
        return tuple(_unit_coordinate(column.coordinates) for column in self.columns)


def _unit_coordinate(x: Vec) -> int | None:
    ones = [k for k, xk in enumerate(x) if is_literal(xk, 1.0)]
    zeros = sum(is_literal(xk, 0.0) for xk in x)
    return ones[0] if len(ones) == 1 and zeros == 5 else None


# Poses ---------------------------------------------------------------------------------------------------


class Rigid(NamedTuple):
    """The pose (R, p)."""

    R: Mat
    p: Vec

    def turn(self, x: Vec) -> Vec:
        """R x: a free vector from child to parent coordinates."""
        return self.R @ x

    def unturn(self, x: Vec) -> Vec:
        """R^T x: a free vector from parent to child coordinates."""
        return self.R.T @ x

    def turn_matrix(self, A: Mat) -> Mat:
        """R A R^T."""
        return _congruence(self.R, A)

    def Ad_inv(self, V: Spatial) -> Spatial:
        """Ad_{f^-1} V: a twist from parent to child."""
        return Spatial(self.unturn(V.ang), self.unturn(V.lin + cross(V.ang, self.p)))

    def Ad_inv_dual(self, F: Spatial) -> Spatial:
        """Ad*_{f^-1} F: a wrench from child to parent."""
        n, f = self.turn(F.ang), self.turn(F.lin)
        return Spatial(n + cross(self.p, f), f)

    def carry(self, I: Inertia) -> Inertia:
        """Ad*_{f^-1} I Ad_{f^-1}: an inertia from child to parent."""
        J, H, M = map(self.turn_matrix, I)
        H2 = Mat.of(zip(*(column + cross(self.p, m) for column, m in zip(H.T, M))))  # H + [p] M
        # J + [p] H2^T + H [p]^T; row i of H [p]^T is p x (row i of H)
        A, B = Mat.of(cross(self.p, h) for h in H2), Mat.of(cross(self.p, h) for h in H)
        return Inertia(Mat.symmetric(lambda i, j: J[i][j] + (A[j][i] + B[i][j])), H2, M)

    def Ad(self, V: Spatial) -> Spatial:
        """Ad_f V: a twist from child to parent."""
        w = self.turn(V.ang)
        return Spatial(w, self.turn(V.lin) + cross(self.p, w))

    def Ad_dual(self, F: Spatial) -> Spatial:
        """Ad*_f F: a wrench from parent to child."""
        return Spatial(self.unturn(F.ang - cross(self.p, F.lin)), self.unturn(F.lin))

    def after(self, first: Rigid) -> Rigid:
        """first * self, as one (R, p)."""
        return Rigid(first.R @ self.R, first.p + first.R @ self.p)

    def inverse(self) -> Rigid:
        return Rigid(self.R.T, -(self.R.T @ self.p))


def _is_symmetric(A: Mat) -> bool:
    """Whether the entries below the diagonal are the same objects as those above."""
    return all(A[i][j] is A[j][i] for i in range(3) for j in range(i))


def _congruence(R: Mat, A: Mat) -> Mat:
    RA = R @ A
    if _is_symmetric(A):
        return Mat.symmetric(lambda i, j: dot(RA[i], R[j]))
    return RA @ R.T


def small_motion(xi: Spatial) -> Rigid:
    """exp of a small twist, to second order."""
    w, v = xi
    turn = Mat((0.0, -w[2], w[1]), (w[2], 0.0, -w[0]), (-w[1], w[0], 0.0))
    return Rigid(Mat.identity() + turn + turn @ turn * 0.5, v + cross(w, v) * 0.5)


class Screw(NamedTuple):
    """The pose that rotates about coordinate axis `k` (cosine c, sine s) and shifts by d along it."""

    k: int
    c: Scalar
    s: Scalar
    d: Scalar

    @property
    def _plane(self) -> tuple[int, int]:
        return (self.k + 1) % 3, (self.k + 2) % 3

    @property
    def p(self) -> Vec:
        return Vec.zero().replace(self.k, self.d)

    def turn(self, x: Vec) -> Vec:
        i, j = self._plane
        return x.replace(i, self.c * x[i] - self.s * x[j]).replace(j, self.s * x[i] + self.c * x[j])

    def unturn(self, x: Vec) -> Vec:
        i, j = self._plane
        return x.replace(i, self.c * x[i] + self.s * x[j]).replace(j, self.c * x[j] - self.s * x[i])

    def Ad_inv(self, V: Spatial) -> Spatial:
        return Spatial(self.unturn(V.ang), self.unturn(V.lin + cross(V.ang, self.p)))

    def Ad_inv_dual(self, F: Spatial) -> Spatial:
        n, f = self.turn(F.ang), self.turn(F.lin)
        return Spatial(n + cross(self.p, f), f)

    def carry(self, I: Inertia) -> Inertia:
        i, j = self._plane
        k, d = self.k, self.d
        J, H, M = self._turn_symmetric(I.J), self.turn_matrix(I.H), self._turn_symmetric(I.M)
        dM = {(a, b): d * M[a][b] for a in (i, j) for b in (i, j, k) if not (a == j and b == i)}
        dM[j, i] = dM[i, j]
        H2 = [list(row) for row in H]  # H + [p] M: [p] swaps the rows of the plane
        for b in range(3):
            H2[i][b] = H[i][b] - dM[j, b]
            H2[j][b] = H[j][b] + dM[i, b]
        J2 = {}  # J + [p] H2^T + H [p]^T
        J2[i, i] = J[i][i] - d * (H[i][j] + H2[i][j])
        J2[j, j] = J[j][j] + d * (H[j][i] + H2[j][i])
        J2[k, k] = J[k][k]
        J2[i, j] = J2[j, i] = J[i][j] + d * (H[i][i] - H2[j][j])
        J2[i, k] = J2[k, i] = J[i][k] - d * H[k][j]
        J2[j, k] = J2[k, j] = J[j][k] + d * H[k][i]
        return Inertia(Mat.symmetric(lambda a, b: J2[a, b]), Mat.of(H2), M)

    def _turn_symmetric(self, A: Mat) -> Mat:
        """R A R^T with c^2 + s^2 = 1 used once: 8 multiplications instead of 20."""
        (i, j), k, c, s = self._plane, self.k, self.c, self.s
        K = s * (A[i][i] - A[j][j]) + (c + c) * A[i][j]
        sK = s * K
        B = {
            (i, i): A[i][i] - sK,
            (j, j): A[j][j] + sK,
            (k, k): A[k][k],
            (i, j): c * K - A[i][j],
            (i, k): c * A[i][k] - s * A[j][k],
            (j, k): s * A[i][k] + c * A[j][k],
        }
        return Mat.symmetric(lambda a, b: B[a, b] if (a, b) in B else B[b, a])

    def turn_matrix(self, A: Mat) -> Mat:
        """R A R^T with c^2 + s^2 = 1 used once."""
        if _is_symmetric(A):
            return self._turn_symmetric(A)
        (i, j), k, c, s = self._plane, self.k, self.c, self.s
        K = s * (A[i][i] - A[j][j]) + c * (A[i][j] + A[j][i])
        sK, cK = s * K, c * K
        B = {
            (i, i): A[i][i] - sK,
            (j, j): A[j][j] + sK,
            (i, j): cK - A[j][i],
            (j, i): cK - A[i][j],
            (i, k): c * A[i][k] - s * A[j][k],
            (j, k): s * A[i][k] + c * A[j][k],
            (k, i): c * A[k][i] - s * A[k][j],
            (k, j): s * A[k][i] + c * A[k][j],
            (k, k): A[k][k],
        }
        return Mat.of((B[a, b] for b in range(3)) for a in range(3))

    def after(self, first: Rigid) -> Rigid:
        R = Mat.of(self.unturn(row) for row in first.R)  # row r of (R1 R) is R^T (row r of R1)
        return Rigid(R, first.p + first.R @ self.p)


class Product(NamedTuple):
    """The product of poses, nearest the parent first."""

    factors: tuple[Pose, ...]

    @property
    def p(self) -> Vec:
        """The origin of the child in parent coordinates."""
        p = Vec.zero()
        for f in reversed(self.factors):
            p = f.p + f.turn(p)
        return p

    def turn(self, x: Vec) -> Vec:
        for f in reversed(self.factors):
            x = f.turn(x)
        return x

    def unturn(self, x: Vec) -> Vec:
        for f in self.factors:
            x = f.unturn(x)
        return x

    def Ad_inv(self, V: Spatial) -> Spatial:
        for f in self.factors:
            V = f.Ad_inv(V)
        return V

    def Ad_inv_dual(self, F: Spatial) -> Spatial:
        for f in reversed(self.factors):
            F = f.Ad_inv_dual(F)
        return F

    def carry(self, I: Inertia) -> Inertia:
        for f in reversed(self.factors):
            I = f.carry(I)
        return I

    def after(self, first: Rigid) -> Rigid:
        for f in self.factors:
            first = f.after(first)
        return first

    def as_rigid(self) -> Rigid:
        return self.after(Rigid(Mat.identity(), Vec.zero()))

    def rotation(self) -> Mat:
        return self.as_rigid().R


Pose = Rigid | Screw | Product
