"""Explicit Runge-Kutta pairs with adaptive steps, on the vector space of (q, v).

All pairs are written so that the last stage is the new state (FSAL): its acceleration is the first one of the
next step. The loop is lean because the right-hand side costs little more than one NumPy call: the state q, v and the
acceleration of a stage are one row of memory, in which y = (q, v) and y' = (v, a) overlap.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from torsor.errors import SingularError
from torsor.simulate.motion import Motion
from torsor.simulate.stepper import Array, ErrorScale, Memory, Settings, Stepper

SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0


class ExplicitPair(Stepper):
    """y_i = y + h sum_j A_ij k_j,   k_i = f(t + c_i h, y_i),   error = h sum_i E_i k_i."""

    A: ClassVar[Array]  # (s, s), the last row the weights of the new state
    E: ClassVar[Array]  # (s,)
    order: ClassVar[int]

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings)
        self.scale = ErrorScale(motion, settings)
        self.h = min(self.scale.first_step(motion, t, self.row, self.order - 1), settings.max_step)
        self.evaluations += 1
        self._allocate()

    def _allocate(self) -> None:
        """The stages, and the views of them that the loop uses: none is made anew in a step."""
        nq, nv, s = self.nq, self.nv, len(self.A)
        rows = np.zeros((s, nq + 2 * nv))
        rows[0] = self.row
        self.row, self._last = rows[0], rows[-1]
        self._y, self._y_new = rows[0, : nq + nv], rows[-1, : nq + nv]
        flat = self.motion.coordinates.flat
        self._K = rows[:, nq:] if flat else np.zeros((s, nq + nv))
        self._weights = np.zeros((s + 1, s))
        self._unit_weights = np.vstack([self.A, self.E])
        self._error = np.empty(nq + nv)
        self._c = self.A.sum(axis=1).tolist()
        self._stages = [
            (self._weights[i, :i], self._K[:i], rows[i, : nq + nv], rows[i, :nq], rows[i, nq : nq + nv],
             rows[i, nq + nv :], self._K[i])
            for i in range(1, s)
        ]  # fmt: skip
        if not flat:
            self._set_rate(self._K[0], self.q, self.v, self.a)

    def _set_rate(self, k: Array, q: Array, v: Array, a: Array) -> None:
        """y' = (N(q) v, a), where the rows do not hold it already."""
        k[: self.nq] = self.motion.coordinates.rate(q, v)
        k[self.nq :] = a

    def step(self, t_end: float) -> None:
        t, h = self.t, min(self.h, self.settings.max_step)
        shortest = 16 * np.spacing(t) if t else 1e-300
        rejected = False
        while True:
            clipped = t + h >= t_end
            h_now = t_end - t if clipped else h
            error = self._try(t, h_now)
            if error < 1:
                break
            # a state that is not finite has no error to steer by: shrink as far as one goes at once
            h = h_now * (max(SHRINK, SAFETY * error ** (-1 / self.order)) if error < np.inf else SHRINK)
            rejected = True
            if h < shortest:
                raise SingularError(f"the step shrinks to nothing at t = {t:.9g}: the motion is singular there, or stiff "
                                    "(use method='radau')")  # fmt: skip
        grow = GROW if error == 0 else min(GROW, max(SHRINK, SAFETY * error ** (-1 / self.order)))
        proposal = h_now * (min(1.0, grow) if rejected else grow)
        # a step cut short at t_end says nothing against the step that was planned
        self.h = max(h, proposal) if clipped and not rejected else proposal
        self._accept(t_end if clipped else t + h_now)

    def _try(self, t: float, h: float) -> float:
        """All stages of a step; the norm of its error."""
        np.multiply(self._unit_weights, h, self._weights)
        accelerate, y, flat, dot = self.motion.accelerate, self._y, self.motion.coordinates.flat, np.dot
        for c, (weights, K, y_i, q_i, v_i, a_i, k_i) in zip(self._c[1:], self._stages):
            dot(weights, K, y_i)
            y_i += y
            accelerate(t + c * h, q_i, v_i, a_i)
            if not flat:
                self._set_rate(k_i, q_i, v_i, a_i)
        self.evaluations += len(self._stages)
        dot(self._weights[-1], self._K, self._error)
        error = self.scale.norm(self._error, y, self._y_new)
        return error if error == error else np.inf  # a NaN is an error beyond all bounds

    def _accept(self, t: float) -> None:
        np.copyto(self.row_old, self.row)
        np.copyto(self.row, self._last)
        self.t_old, self.t = self.t, t
        if not self.motion.coordinates.flat:
            self.motion.coordinates.normalise(self.q)  # the acceleration does not depend on the length
            self._set_rate(self._K[0], self.q, self.v, self.a)

    def memory(self) -> Memory:
        return super().memory() | {"h": np.array([self.h])}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.h = float(memory["h"][0])
        if not self.motion.coordinates.flat:
            self._set_rate(self._K[0], self.q, self.v, self.a)


def _tableau(*rows: list[float]) -> Array:
    A = np.zeros((len(rows) + 1, len(rows) + 1))
    for i, row in enumerate(rows, start=1):
        A[i, : len(row)] = row
    return A


class Fehlberg45(ExplicitPair):
    """Runge-Kutta-Fehlberg 4(5), the integrator of Saha 2001; the fifth-order result is carried on.

    E. Fehlberg, Low-order classical Runge-Kutta formulas with stepsize control, NASA TR R-315, 1969.
    """

    order = 5
    A = _tableau(
        [1 / 4],
        [3 / 32, 9 / 32],
        [1932 / 2197, -7200 / 2197, 7296 / 2197],
        [439 / 216, -8, 3680 / 513, -845 / 4104],
        [-8 / 27, 2, -3544 / 2565, 1859 / 4104, -11 / 40],
        [16 / 135, 0, 6656 / 12825, 28561 / 56430, -9 / 50, 2 / 55],
    )
    E = np.array([1 / 360, 0, -128 / 4275, -2197 / 75240, 1 / 50, 2 / 55, 0])


class DormandPrince(ExplicitPair):
    """Dormand & Prince 5(4): SciPy's RK45, with the same step control, in a leaner loop.

    J. R. Dormand, P. J. Prince, A family of embedded Runge-Kutta formulae, J. Comput. Appl. Math. 6, 1980.
    """

    order = 5
    A = _tableau(
        [1 / 5],
        [3 / 40, 9 / 40],
        [44 / 45, -56 / 15, 32 / 9],
        [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
        [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
        [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
    )
    E = np.array([71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40])
