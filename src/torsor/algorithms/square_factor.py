"""The square factor of the mass matrix and of its inverse (Ploen & Park 1999, Propositions 1-2, Eqs 42-43).

    M    = W W^T            W    = [1 + S^T G^T Pi] Omega^1/2               block upper triangular
    M^-1 = W^-T W^-1        W^-1 = Omega^-1/2 [1 - S^T Y Pi]

Omega_i = S^T I^ S is the pivot of joint i, Phi_i = Omega_i^-1 S_i^T I^_i its gain and Pi = Gamma^T Phi^T.
For a joint of several freedoms Omega_i^1/2 is the Cholesky factor L d^1/2 of its pivot.  G and Y are sums
along the tree, so each of W x, W^T x, W^-1 x and W^-T x takes one sweep after that of the articulated inertias.

W^-T turns noise into velocities: if x has unit covariance, W^-T x has the covariance W^-T W^-1 = M^-1.
"""

from __future__ import annotations

from torsor.algorithms.articulated import articulated_inertias, drop, pass_on
from torsor.linalg import Scalar, Vec, dot, quotient, sqrt
from torsor.outputs import PerFreedom
from torsor.spatial import Spatial, pair
from torsor.sweeps import Algorithm, Sweep, inward, outward

Factored = tuple[list[list[Scalar]], list[Scalar]]


# Omega^1/2 = L d^1/2 of one joint --------------------------------------------------------------------------


def root(D: Factored, x: Vec) -> Vec:
    """L d^1/2 x"""
    L, d = D
    y = [sqrt(dk) * xk for dk, xk in zip(d, x)]
    return Vec.of(y[i] + dot(L[i], y) for i in range(len(y)))


def root_T(D: Factored, x: Vec) -> Vec:
    """d^1/2 L^T x"""
    L, d = D
    n = len(d)
    return Vec.of(sqrt(d[k]) * (x[k] + dot([L[i][k] for i in range(k + 1, n)], x[k + 1 :])) for k in range(n))


def root_solve(D: Factored, x: Vec) -> Vec:
    """d^-1/2 L^-1 x"""
    L, d = D
    y: list[Scalar] = []
    for i, xi in enumerate(x):
        y.append(xi - dot(L[i], y))
    return Vec.of(quotient(yi, sqrt(di)) for yi, di in zip(y, d))


def root_T_solve(D: Factored, x: Vec) -> Vec:
    """L^-T d^-1/2 x"""
    L, d = D
    y = [quotient(xi, sqrt(di)) for xi, di in zip(x, d)]
    for k in reversed(range(len(d))):
        y[k] = y[k] - dot([L[i][k] for i in range(k + 1, len(d))], y[k + 1 :])
    return Vec.of(y)


# The four sweeps -------------------------------------------------------------------------------------------


@inward(start=lambda base: dict(F=Spatial.zero()))
def multiply(link, here, children):
    """W x:   y_i = x'_i + S_i^T z_i,   z_{i-1} = Ad*_{f^-1} (z_i + Phi_i^T x'_i),   x' = Omega^1/2 x"""
    f, S = link.placed(here)
    x, F = root(here.D, here.x), children.F
    y = x + S.T(F)
    for g, xk in zip(here.G, x):
        F = F + g * xk
    return dict(F=f.Ad_inv_dual(F)), dict(y=y)


@outward(start=lambda base: dict(A=Spatial.zero()))
def multiply_T(link, here, parent):
    """W^T x:   y_i = Omega^T/2 (x_i + Phi_i a),   a = Ad_{f^-1} A_{i-1},   A_i = a + S_i x_i"""
    f, S = link.placed(here)
    A = f.Ad_inv(parent.A)
    gain = Vec.of(xk + pair(g, A) for g, xk in zip(here.G, here.x))
    return dict(A=A + S @ here.x), dict(y=root_T(here.D, gain))


@inward(start=lambda base: dict(F=Spatial.zero()))
def divide(link, here, children):
    """W^-1 x:   u_i = x_i - S_i^T F_i,   F_{i-1} = Ad*_{f^-1} (F_i + Phi_i^T u_i),   y = Omega^-1/2 u"""
    f, S = link.placed(here)
    F, u = pass_on(S, here.G, children.F, here.x)
    return dict(F=f.Ad_inv_dual(F)), dict(y=root_solve(here.D, u))


@outward(start=lambda base: dict(A=Spatial.zero()))
def divide_T(link, here, parent):
    """W^-T x:   y_i = Omega^-T/2 x_i - Phi_i a,   a = Ad_{f^-1} A_{i-1},   A_i = a + S_i y_i"""
    f, S = link.placed(here)
    A, y = drop(S, here.G, root_T_solve(here.D, here.x), f.Ad_inv(parent.A))
    return dict(A=A), dict(y=y)


def _algorithm(name: str, sweep: Sweep) -> Algorithm:
    return Algorithm(name, ("q", "x"), (articulated_inertias, sweep), PerFreedom("y"), inverts=True,
                     torques_only=True)  # fmt: skip


apply = _algorithm("mass_factor", multiply)
apply_T = _algorithm("mass_factor_transposed", multiply_T)
solve = _algorithm("mass_factor_solve", divide)
solve_T = _algorithm("mass_factor_transposed_solve", divide_T)
