"""Stages: the parts of a step of every explicit adaptive method.

    y_i = y + h sum_j A_ij k_j        k_i = f(t + c_i h, y_i)        errors h sum_j E_j k_j

The last stage is the new state, so its rate is the first rate of the next step. For a Runge-Kutta method k_0 is the
rate at y; for a multistep method the first few k are combinations of past rates. The right-hand side costs little more
than one NumPy call, so the loop is short: per stage one product, one call of the right-hand side and one copy. If the
right-hand side is machine code, all stages are one call (`fused.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torsor.motion.fused import FusedStages, can_fuse
from torsor.motion.motion import Motion
from torsor.motion.stepper import Adaptive, Array, ErrorScale, Memory, Settings


class StageLayout(NamedTuple):
    """The layout of a step.

    stages      the number of stages, of which the first `given` are given
    estimates   the number of error estimates
    order       the order that the length of the first step assumes
    """

    stages: int
    estimates: int
    given: int
    order: int


class Stages:
    """Arrays for s stages and r error estimates; the stages before `first` are given.

    weights (s + r, s)   the rows of A, then of E
    c                    the times of the stages, relative to the step
    P (1 + s, m)         y and the rates k_0, k_1, ...;  with (1, h A_i0, h A_i1, ...) one product gives y_i
    Y (s, m)             the states y_i
    """

    def __init__(self, motion: Motion, scale: ErrorScale, layout: StageLayout) -> None:
        s, r, first, _ = layout
        nq, m = motion.model.nq, motion.model.nq + motion.model.nv
        self.motion, self.scale, self.first = motion, scale, first
        self.weights, self.c = np.zeros((s + r, s)), [0.0] * s
        self.P, self.Y, self._errors = (motion.place(np.zeros((k, m))) for k in (1 + s, s, r))
        self._scaled = np.ones((s + r, 1 + s))
        self._scaled[s:, 0] = 0.0  # the errors are of the step, not of y
        self._with_y = motion.place(self._scaled)
        self.before = np.inf  # the last time at which forces are read
        # the views that the loop uses, made once
        rows = enumerate(zip(self._with_y, self.Y, self.P[1:]))
        self._each = [(w[: 1 + i], self.P[: 1 + i], y, y[:nq], y[nq:], k[:nq], k[nq:]) for i, (w, y, k) in rows]
        self.fused = (
            FusedStages(motion, self.P, self.Y, self.weights, scale.rtol, scale.atol, first)
            if (can_fuse(motion))
            else None
        )

    def __call__(self, t: float, h: float) -> list[float]:
        """Run a step of length h; per error estimate, return the sum of squares relative to the tolerances."""
        if not self.fused:
            return self.one_by_one(t, h)
        self.fused.follow(t, h, self.c, self.before)
        return self.fused(h)

    def one_by_one(self, t: float, h: float) -> list[float]:
        np.multiply(self.weights, h, self._scaled[:, 1:])
        if self._with_y is not self._scaled:  # on a GPU
            self._with_y[...] = self.motion.place(self._scaled)
        accelerate, rate = self.motion.accelerate, self.motion.coordinates.rate
        for c, (weights, P, y, q, v, dq, a) in zip(self.c[self.first :], self._each[self.first :]):
            weights.dot(P, y)
            accelerate(min(t + c * h, self.before), q, v, a)
            dq[:] = rate(q, v)
        self._with_y[len(self.Y) :].dot(self.P, self._errors)
        self._errors /= self.scale(self.P[0], self.Y[-1])
        return [float(error.dot(error)) for error in self._errors]


class Staged(Adaptive):
    """A method whose steps are stages."""

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings, layout: StageLayout) -> None:
        super().__init__(motion, t, q, v, settings)
        self.scale = ErrorScale(motion, settings)
        self.h = min(self.scale.first_step(motion, t, self.row, layout.order), settings.max_step)
        self.evaluations += 1
        self.stages = Stages(motion, self.scale, layout)
        self.stages.P[1] = self.rate(self.row[: self.nq + self.nv], self.a)

    def attempt(self, t: float, h: float) -> list[float]:
        """Run all stages of a step from the current row."""
        self.stages.P[0] = self.row[: self.nq + self.nv]
        self.evaluations += len(self.stages.Y) - self.stages.first
        self.stages.before = self.before_jump(np.inf)
        return self.stages(t, h)

    def take(self, t: float) -> None:
        """Make the last stage the row, at time t."""
        y, rate = self.stages.Y[-1], self.stages.P[-1]
        if not self.motion.coordinates.flat:  # the acceleration does not depend on the length of quaternions
            self.motion.coordinates.normalise(y[: self.nq])
            rate[: self.nq] = self.motion.coordinates.rate(y[: self.nq], y[self.nq :])
        self.row, self.row_old = self.row_old, self.row
        self.row[: len(y)], self.row[len(y) :] = y, rate[self.nq :]
        self.t_old, self.t = self.t, t

    def restart(self) -> None:
        super().restart()
        self.stages.P[1] = self.rate(self.row[: self.nq + self.nv], self.a)

    def memory(self) -> Memory:
        return super().memory() | {"h": np.array([self.h])}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.h = float(memory["h"][0])
