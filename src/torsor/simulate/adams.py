"""Adams-Bashforth-Moulton, predict-evaluate-correct-evaluate, of variable step and variable order.

The rates y' at the last times t_0 = t_n > t_1 > ... are kept as divided differences phi_i = y'[t_0, ...,
t_i]. With tau_i = t_i - t_n and g_i = int_0^h prod_{j<i} (s - tau_j) ds the integral of Newton's basis,

    predict   p_k = y + sum_{i<k} g_i phi_i                        (Adams-Bashforth of order k)
    evaluate  D_0 = f(p_k),  D_{i+1} = (D_i - phi_i) / (h - tau_i) (differences from the new time on)
    correct   y  <- p_k + g_k D_k                                  (Adams-Moulton of order k + 1)
    evaluate  D with f(y): the phi of the next step.

Two corrections of neighbouring orders differ by (g_k - g_{k-1} (h - tau_{k-1})) D_k, which is the error
estimate of order k; the order is the one that allows the longest next step. Starting needs nothing special:
order 1, a small step. (L. F. Shampine, Numerical Solution of Ordinary Differential Equations, 1994, chapter
5.)
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from torsor.linalg import Scalar
from torsor.simulate.motion import Motion
from torsor.simulate.stepper import Array, ErrorScale, Memory, Settings, Stepper, no_step

HIGHEST = 8  # order of the predictor
KEPT = HIGHEST + 1  # rates: the error is estimated for one order more
SAFETY, SHRINK, GROW = 0.8, 0.5, 2.0
GAUSS = tuple(zip(*np.polynomial.legendre.leggauss(KEPT // 2 + 1)))  # exact for products of KEPT factors


class Adams(Stepper):
    order = HIGHEST + 1

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings)
        self.scale = ErrorScale(motion, settings)
        self.h = min(self.scale.first_step(motion, t, self.row, 1), settings.max_step)
        self.evaluations += 1
        self._integrals, self._differences = _programs()
        y, self._rates = self.row[: self.nq + self.nv], np.empty(self.nq + self.nv)
        self.k = self.known = 1  # order of the predictor, and how many rates there are
        self.times, self.phi = np.full(KEPT, t), np.zeros((len(y), KEPT))
        self.phi[:, 0] = self.rate(y, self.a)

    def step(self, t_end: float) -> None:
        h = min(self.h, self.settings.max_step)
        while True:
            clipped = self.t + h >= t_end
            h_now = t_end - self.t if clipped else h
            allowed = self._try(h_now)
            if allowed >= 1:
                break
            h = h_now * max(SHRINK, min(SAFETY, allowed))
            if h < 16 * np.spacing(max(self.t, 1e-300)):
                raise no_step(self.t)
        proposal = h_now * min(GROW, max(SHRINK, SAFETY * allowed))
        self.h = max(h, proposal) if clipped else proposal
        self.t_old, self.t = self.t, t_end if clipped else self.t + h_now

    def _try(self, h: float) -> float:
        """A step of length h; by what factor it could have been longer. It is taken if that is at least 1."""
        k, y, tau = self.k, self.row[: self.nq + self.nv], self.times - self.t
        g = self._integrals(h, tau)
        predicted = self.phi[:, :k].dot(g[:k])
        predicted += y
        D = self._differences(self._evaluate(h, predicted), self.phi, h, tau)
        y_new = predicted + g[k] * D[:, k]
        squares = np.square(1 / self.scale(y, y_new)).dot(np.square(D)).tolist()
        weights, past = g.tolist(), tau.tolist()
        allowed = {
            i: self._allowed(i, (weights[i] - weights[i - 1] * (h - past[i - 1])) ** 2 * squares[i])
            for i in range(max(1, k - 1), min(k + 1, self.known) + 1)
        }
        if not allowed[k] >= 1:
            return allowed[k] if allowed[k] == allowed[k] else 0.0  # a NaN is an error beyond all bounds
        self.k = self._choose(allowed)
        self._accept(h, y_new, tau)
        return allowed[self.k]

    def _allowed(self, order: int, square: float) -> float:
        """The factor from the sum of the squares of the error, relative to its tolerance."""
        return max(square / (self.nq + self.nv), 1e-20) ** (-0.5 / (order + 1))

    def _choose(self, allowed: dict[int, float]) -> int:
        """The order of the next step."""
        return max(allowed, key=lambda order: allowed[order])

    def _evaluate(self, h: float, y: Array) -> Array:
        """dy/dt at t + h, good until the next call."""
        rates, q, v = self._rates, y[: self.nq], y[self.nq :]
        self.motion.accelerate(self.t + h, q, v, rates[self.nq :])
        rates[: self.nq] = self.motion.coordinates.rate(q, v)
        self.evaluations += 1
        return rates

    def _accept(self, h: float, y: Array, tau: Array) -> None:
        if not self.motion.coordinates.flat:
            self.motion.coordinates.normalise(y[: self.nq])
        f = self._evaluate(h, y)
        self.row, self.row_old = self.row_old, self.row
        self.row[: len(y)], self.row[len(y) :] = y, f[self.nq :]
        self.phi = self._differences(f, self.phi, h, tau)[:, :KEPT]
        self.known = min(self.known + 1, KEPT)
        self.phi[:, self.known :] = 0
        self.times[1:] = self.times[:-1]
        self.times[0] = self.t + h

    def memory(self) -> Memory:
        numbers = np.array([self.h, self.k, self.known])
        return super().memory() | {"numbers": numbers, "times": self.times.copy(), "phi": self.phi}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.h, self.k, self.known = float(memory["numbers"][0]), *map(int, memory["numbers"][1:])
        self.times, self.phi = memory["times"].copy(), memory["phi"].copy()


# ---- the loops over past rates, compiled: as calls of NumPy they would cost far more than the dynamics ----


def newton_integrals(h: Scalar, tau: list[Scalar]) -> list[Scalar]:
    """g_0 ... g_KEPT by Gauss's rule."""
    g: list[Scalar] = [h, *[0.0] * len(tau)]
    for node, weight in GAUSS:
        s, product = h * float((node + 1) / 2), h * float(weight / 2)
        for i, past in enumerate(tau):
            product = product * (s - past)
            g[i + 1] = g[i + 1] + product
    return g


def differences(f: Scalar, phi: list[Scalar], h: Scalar, tau: list[Scalar]) -> list[Scalar]:
    """D_0 ... D_KEPT of one component of the rates."""
    D = [f]
    for past, when in zip(phi, tau):
        D.append((D[-1] - past) / (h - when))
    return D


@cache
def _programs() -> tuple[Any, Any]:
    from torsor.kernel.pointwise import compile_pointwise  # not before it is needed: `import torsor` stays quick

    history = {"h": (), "tau": (KEPT,)}
    return (
        compile_pointwise(newton_integrals, history),
        compile_pointwise(differences, {"f": (), "phi": (KEPT,), **history}),
    )
