"""Explicit Runge-Kutta pairs with adaptive steps, on the vector space of (q, v)."""

from __future__ import annotations

from math import sqrt
from typing import ClassVar

import numpy as np

from torsor.later import Later
from torsor.motion.motion import Motion
from torsor.motion.stages import Staged, StageLayout
from torsor.motion.stepper import Array, Control, Memory, Settings

integrate = Later("scipy.integrate")

# A motion is stiff after STIFF_STEPS suspicious steps with fewer than CALM_STEPS others between two of them. Until the
# first suspicious step, only every k-th step is checked, k = SELDOM.
STIFF_STEPS, CALM_STEPS, SELDOM = 15, 6, 8


class ExplicitPair(Staged):
    """A pair of tableaus: for the new state, and for the error estimate, its difference from a less accurate state."""

    A: Array  # (s, s), the last row has the weights of the new state
    E: Array  # (r, s), one row per estimate of the error
    # the second stage at the new time, and the h |lambda| up to which the method is stable, for lambda < 0
    beside: ClassVar[int]
    stable: ClassVar[float]

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings, StageLayout(len(self.A), len(self.E), 1, self.order - 1))
        self.stages.weights[:] = np.vstack([self.A, self.E])
        self.stages.c = self.A.sum(axis=1).tolist()
        self.steps, self.suspect, self.calm = 0, 0, 0

    def _take(self, t: float, h: float) -> None:
        self.take(t)
        self.stages.P[1] = self.stages.P[-1]
        self._watch(h)

    @property
    def stiff(self) -> bool:
        return self.suspect >= STIFF_STEPS

    def _watch(self, h: float) -> None:
        """Count steps limited only by stability: two stages at the new time estimate the largest eigenvalue.

        E. Hairer, G. Wanner, Solving Ordinary Differential Equations II, 2nd ed., 1996, IV.2.
        """
        self.steps += 1
        if not self.suspect and self.steps % SELDOM:
            return
        Y, K = self.stages.Y, self.stages.P[1:]
        states, rates = Y[-1] - Y[self.beside], K[-1] - K[self.beside]
        if rates.dot(rates) * h**2 > self.stable**2 * states.dot(states):
            self.suspect, self.calm = self.suspect + 1, 0
        else:
            self.calm += 1
            self.suspect = self.suspect if self.calm < CALM_STEPS else 0

    def _try(self, h: float) -> float:
        error = self._norm(self.attempt(self.t, h))
        return error if error == error else np.inf  # NaN counts as an infinite error

    def _norm(self, squares: list[float]) -> float:
        """Root mean square; `squares` has one sum per estimate."""
        return sqrt(squares[0] / (self.nq + self.nv))

    def memory(self) -> Memory:
        return super().memory() | {"watch": np.array([self.steps, self.suspect, self.calm], dtype=np.float64)}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.stages.P[1] = self.rate(self.row[: self.nq + self.nv], self.a)
        self.steps, self.suspect, self.calm = map(int, memory.get("watch", (0, 0, 0)))


def _tableau(*rows: list[float] | Array) -> Array:
    A = np.zeros((len(rows) + 1, len(rows) + 1))
    for i, row in enumerate(rows, start=1):
        A[i, : len(row)] = row
    return A


class Fehlberg45(ExplicitPair):
    """Runge-Kutta-Fehlberg 4(5), the integrator of Saha 2001; the step continues from the fifth-order result.

    E. Fehlberg, Low-order classical Runge-Kutta formulas with stepsize control, NASA TR R-315, 1969.
    """

    order, beside, stable, control = 5, 4, 3.0, Control(5, grow=10.0)
    A = _tableau(
        [1 / 4],
        [3 / 32, 9 / 32],
        [1932 / 2197, -7200 / 2197, 7296 / 2197],
        [439 / 216, -8, 3680 / 513, -845 / 4104],
        [-8 / 27, 2, -3544 / 2565, 1859 / 4104, -11 / 40],
        [16 / 135, 0, 6656 / 12825, 28561 / 56430, -9 / 50, 2 / 55],
    )
    E = np.array([[1 / 360, 0, -128 / 4275, -2197 / 75240, 1 / 50, 2 / 55, 0]])


class DormandPrince(ExplicitPair):
    """Dormand & Prince 5(4): SciPy's RK45 with the same step control, in a faster loop.

    J. R. Dormand, P. J. Prince, A family of embedded Runge-Kutta formulae, J. Comput. Appl. Math. 6, 1980.
    """

    order, beside, stable, control = 5, -2, 3.25, Control(5, grow=10.0)
    A = _tableau(
        [1 / 5],
        [3 / 40, 9 / 40],
        [44 / 45, -56 / 15, 32 / 9],
        [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
        [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
        [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
    )
    E = np.array([[71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40]])


class DormandPrince853(ExplicitPair):
    """Dormand & Prince 8(5,3), 12 stages, and 3 more for dense output of order 7; the coefficients are SciPy's.

    E. Hairer, S. P. Norsett, G. Wanner, Solving Ordinary Differential Equations I, 2nd ed., 1993, II.5 and II.6.
    """

    order, beside, stable, control = 8, -2, 6.1, Control(8, grow=10.0)
    points = 8

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        self.tableau = DOP853 = integrate.DOP853
        self.A = _tableau(*DOP853.A[1:], DOP853.B)
        self.E = np.stack([DOP853.E5, DOP853.E3])
        super().__init__(motion, t, q, v, settings)

    def _norm(self, squares: list[float]) -> float:
        """The estimate of order 5, reduced if it is much smaller than the estimate of order 3."""
        fifth, third = squares
        return fifth / sqrt((fifth + 0.01 * third) * (self.nq + self.nv)) if fifth else 0.0

    def between(self, t: Array) -> tuple[Array, Array]:
        """Dense output by the polynomial of order 7 (Hairer et al., II.6)."""
        m, h = self.nq + self.nv, self.t - self.t_old
        y0, y1, place = self.row_old[:m], self.row[:m], self.motion.place
        K = self._all_stages(y0, h)
        change = y1 - y0
        F = [change, h * K[0] - change, 2 * change - h * (K[0] + K[len(self.A) - 1]), *(place(h * self.tableau.D) @ K)]
        s = place(((t - self.t_old) / h)[:, None])
        y = np.zeros_like(y0, shape=(len(t), m))
        for i, f in enumerate(reversed(F)):
            y = (y + f) * (1 - s if i % 2 else s)
        y += y0
        self.motion.coordinates.normalise(y[:, : self.nq])
        return y[:, : self.nq], y[:, self.nq :]

    def _all_stages(self, y0: Array, h: float) -> Array:
        """The rates of the last step and of the three additional stages of its dense output."""
        rates = [self.rate(y0, self.row_old[len(y0) :]), *self.stages.P[2:]]
        for c, weights in zip(self.tableau.C_EXTRA, self.tableau.A_EXTRA):
            y = y0 + h * (self.motion.place(weights[: len(rates)]) @ np.stack(rates))
            rates.append(self.rate(y, self.acceleration(self.t_old + c * h, y[: self.nq], y[self.nq :])))
        return np.stack(rates)
