"""Adams-Bashforth-Moulton, predict-evaluate-correct-evaluate, of variable step and variable order.

The rates y' at the last times t_0 = t_n > t_1 > ... are kept as divided differences phi_i = y'[t_0, ...,
t_i]. With g_i = int_0^h prod_{j<i} (s - (t_j - t_n)) ds the integral of Newton's basis,

    predict   p_k = y + sum_{i<k} g_i phi_i                              (Adams-Bashforth of order k)
    evaluate  D_0 = f(p_k),  D_{i+1} = (D_i - phi_i) / (t_n + h - t_i)   (differences from the new time on)
    correct   y  <- p_k + g_k D_k                                        (Adams-Moulton of order k + 1)
    evaluate  D with f(y): the phi of the next step.

Two corrections of neighbouring orders differ by (g_k - g_{k-1} (t_n + h - t_{k-1})) D_k, which is the error
estimate of order k; the order is the one that allows the longest next step. Starting needs nothing special:
order 1, a small step. (L. F. Shampine, Numerical Solution of Ordinary Differential Equations, 1994, chapter
5.)
"""

from __future__ import annotations

import numpy as np

from torsor.simulate.motion import Motion
from torsor.simulate.stepper import Array, ErrorScale, Memory, Settings, Stepper, no_step

HIGHEST = 8  # of the predictor
SAFETY, SHRINK, GROW = 0.8, 0.5, 2.0
NODES, WEIGHTS = np.polynomial.legendre.leggauss(
    HIGHEST // 2 + 1
)  # exact for the products of up to HIGHEST + 1 factors


class Adams(Stepper):
    order = HIGHEST

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings)
        self.scale = ErrorScale(motion, settings)
        self.h = min(self.scale.first_step(motion, t, self.row, 1), settings.max_step)
        self.evaluations += 1
        self.k = 1  # order of the predictor
        self.times = np.array([t])
        self.phi = self._rate(self.row)[None]

    def _rate(self, row: Array) -> Array:
        nq, nv = self.nq, self.nv
        q, v = row[:nq], row[nq : nq + nv]
        return np.concatenate([self.motion.coordinates.rate(q, v), row[nq + nv :]])

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
        k, y = self.k, self.row[: self.nq + self.nv]
        tau = self.times - self.t
        g = _newton_integrals(h, tau[: len(self.phi)])
        predicted = y + g[:k] @ self.phi[:k]
        D = self._differences(self._evaluate(h, predicted), h, tau)
        y_new = predicted + g[k] * D[k]
        if not np.isfinite(y_new).all():
            return 0.0
        allowed = {}
        for order in range(max(1, k - 1), min(k + 1, len(D) - 1) + 1):
            error = (g[order] - g[order - 1] * (h - tau[order - 1])) * D[order]
            allowed[order] = max(self.scale.norm(error, y, y_new), 1e-10) ** (-1 / (order + 1))
        if allowed[k] < 1:
            return allowed[k]
        self.k = max(allowed, key=lambda order: allowed[order])
        self._accept(h, y_new, tau)
        return allowed[self.k]

    def _evaluate(self, h: float, y: Array) -> Array:
        q, v = y[: self.nq], y[self.nq :]
        a = np.empty(self.nv)
        self.motion.accelerate(self.t + h, q, v, a)
        self.evaluations += 1
        return np.concatenate([self.motion.coordinates.rate(q, v), a])

    def _differences(self, f: Array, h: float, tau: Array) -> Array:
        """D_0 ... D_m of the rate f at t + h and the m rates before."""
        D = np.empty((len(self.phi) + 1, len(f)))
        D[0] = f
        for i, phi in enumerate(self.phi):
            D[i + 1] = (D[i] - phi) / (h - tau[i])
        return D

    def _accept(self, h: float, y: Array, tau: Array) -> None:
        self.motion.coordinates.normalise(y[: self.nq])
        f = self._evaluate(h, y)
        np.copyto(self.row_old, self.row)
        self.row[:] = np.concatenate([y, f[self.nq :]])
        self.phi = self._differences(f, h, tau)[: HIGHEST + 1]
        self.times = np.concatenate([[self.t + h], self.times])[: HIGHEST + 1]

    def memory(self) -> Memory:
        return super().memory() | {"h": np.array([self.h, self.k]), "times": self.times, "phi": self.phi}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.h, self.k = float(memory["h"][0]), int(memory["h"][1])
        self.times, self.phi = memory["times"].copy(), memory["phi"].copy()


def _newton_integrals(h: float, tau: Array) -> Array:
    """g_i = int_0^h prod_{j<i} (s - tau_j) ds for i = 0 ... len(tau), by Gauss's rule (exact)."""
    s = h * (NODES + 1) / 2
    products = np.cumprod(s[:, None] - tau, axis=1)
    return np.concatenate([[h], h / 2 * (WEIGHTS @ products)])
