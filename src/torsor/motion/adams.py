"""Adams-Bashforth-Moulton, predict-evaluate-correct-evaluate, with variable step and variable order.

The rates y' at the last times t_0 = t_n > t_1 > ... are kept as divided differences phi_i = y'[t_0, ..., t_i]. With
tau_i = t_i - t_n, let pi_i = prod_{j<i} (h - tau_j) be Newton's basis at the new time and g_i = int_0^h prod_{j<i}
(s - tau_j) ds its integral. The difference of a new rate f is D_i(f) = (f - sum_{j<i} pi_j phi_j) / pi_i, and

    predict   p = y + sum_{i<k} g_i phi_i       (Adams-Bashforth of order k)
    evaluate  f = f(p)
    correct   y <- p + g_k D_k(f)               (Adams-Moulton of order k + 1)
    evaluate  f = f(y);  phi_i <- D_i(f).

Two corrections of neighbouring orders differ by (g_k / pi_k - g_{k-1} / pi_{k-1}) pi_k D_k, which is the error estimate
of order k. The method takes the order that allows the longest next step. It starts with order 1 and a small step.
(L. F. Shampine, Numerical Solution of Ordinary Differential Equations, 1994, chapter 5.)

All this is linear in the rates. So a step is two stages (`stages.py`) after the given phi, each with a new tableau.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from torsor.backends.pointwise import compile_pointwise
from torsor.linalg import Scalar
from torsor.motion.motion import Motion
from torsor.motion.stages import Staged, StageLayout
from torsor.motion.stepper import Array, Control, Memory, Settings

HIGHEST = 8  # order of the predictor
GAUSS = tuple(zip(*np.polynomial.legendre.leggauss(HIGHEST // 2 + 1)))  # exact for products of HIGHEST factors


class Adams(Staged):
    order, control = HIGHEST + 1, Control(1, safety=0.8, shrink=0.5, grow=2.0)

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings, StageLayout(HIGHEST + 2, 3, HIGHEST, 1))
        self._tableau = _compiled_tableau()
        self.k = self.known = 1  # order of the predictor, and the number of known rates
        self.times = np.full(HIGHEST, t)

    @property
    def phi(self) -> Array:
        """The divided differences, (HIGHEST, m): zeros where none is known yet."""
        return self.stages.P[1 : 1 + HIGHEST]

    def _try(self, h: float) -> float:
        """The error of the current order: the inverse of the factor by which the step may grow (`_allowed`)."""
        k = self.k
        self._rows = self._tableau(h, self.times - self.t)
        self.stages.weights[HIGHEST:] = self._rows[ATTEMPT + k]
        self.stages.c[HIGHEST:] = h, h
        squares = self.attempt(self.t, 1.0)  # the weights already contain h
        orders = range(max(1, k - 1), min(k + 1, self.known, HIGHEST) + 1)
        self._longer = {order: self._allowed(order, squares[order - k + 1]) for order in orders}
        return 1 / self._longer[k] if self._longer[k] == self._longer[k] else np.inf  # NaN counts as an infinite error

    def _take(self, t: float, h: float) -> None:
        self.k = self._choose(self._longer)
        self.take(t)
        self._renew(self._rows[RENEW])

    def growth(self, error: float) -> float:
        return self.control.factor(1 / self._longer[self.k])

    def _allowed(self, order: int, square: float) -> float:
        """The factor by which the step may grow, from the sum of squares of error / tolerance."""
        return max(square / (self.nq + self.nv), 1e-20) ** (-0.5 / (order + 1))

    def _choose(self, allowed: dict[int, float]) -> int:
        """The order of the next step."""
        return max(allowed, key=lambda order: allowed[order])

    def _renew(self, weights: Array) -> None:
        """Compute the divided differences at the new time."""
        self.phi[:] = self.motion.place(weights).dot(self.stages.P[1:])
        self.known = min(self.known + 1, HIGHEST)
        self.phi[self.known :] = 0
        self.times[1:] = self.times[:-1]
        self.times[0] = self.t

    def memory(self) -> Memory:
        orders = np.array([self.k, self.known])
        return super().memory() | {"orders": orders, "times": self.times.copy(), "phi": self.phi.copy()}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        k, known = map(int, memory["orders"])
        if not 1 <= k <= known <= HIGHEST:
            raise ValueError(f"orders {k}, {known}")
        self.k, self.known = k, known
        self.times[:], self.phi[:] = memory["times"], self.motion.place(memory["phi"])


# ---- the tableau, compiled: NumPy calls would cost far more than the dynamics ----

# rows of `tableau`: those that an attempt with k = 0 uses (the next rows are for k = 1, and so on), and the new phi
ATTEMPT = np.array([0, HIGHEST + 1, *(2 * HIGHEST + 1 + np.arange(3))])
RENEW = slice(3 * HIGHEST + 4, None)


def tableau(h: Scalar, tau: list[Scalar]) -> list[list[Scalar]]:
    """Rows of weights of phi_0, phi_1, ..., f(p) and f(y).

    The rows: predictions and corrections with k = 0 ... HIGHEST; error estimates of order 0 ... HIGHEST + 1 (the first
    and the last are all zeros); the new phi_0, phi_1, ...
    """
    g, pi = _integrals(h, tau), [1.0]
    for past in tau:
        pi.append(pi[-1] * (h - past))
    mean = [a / b for a, b in zip(g, pi)]

    def difference(k: int, scale: Scalar, new: bool) -> list[Scalar]:
        """scale (f - sum_{j<k} pi_j phi_j)."""
        return [*(-scale * x for x in pi[:k]), *[0.0] * (HIGHEST - k), 0.0 if new else scale, scale if new else 0.0]

    none: list[Scalar] = [0.0] * (HIGHEST + 2)
    predict = [g[:k] + none[k:] for k in range(HIGHEST + 1)]
    correct = [[a + b for a, b in zip(row, difference(k, mean[k], False))] for k, row in enumerate(predict)]
    estimate = [difference(k, mean[k] - mean[k - 1], False) for k in range(1, HIGHEST + 1)]
    renew = [difference(k, 1.0 / pi[k], True) for k in range(HIGHEST)]
    return [*predict, *correct, none, *estimate, none, *renew]


def _integrals(h: Scalar, tau: list[Scalar]) -> list[Scalar]:
    """g_0 ... g_HIGHEST by Gauss's rule."""
    g: list[Scalar] = [h, *[0.0] * len(tau)]
    for node, weight in GAUSS:
        s, product = h * float((node + 1) / 2), h * float(weight / 2)
        for i, past in enumerate(tau):
            product = product * (s - past)
            g[i + 1] = g[i + 1] + product
    return g


@cache
def _compiled_tableau() -> Any:
    return compile_pointwise(tableau, {"h": (), "tau": (HIGHEST,)})
