"""SciPy's Radau IIA (order 5, implicit: for stiff motion) as a stepper."""

from __future__ import annotations

from typing import Any

import numpy as np

from torsor.errors import ArgumentError, SingularError
from torsor.simulate.motion import Motion
from torsor.simulate.stepper import Array, ErrorScale, Memory, Settings, Stepper

MOST_FREEDOMS = 1000  # a step then takes seconds
NUDGE = np.sqrt(np.finfo(np.float64).eps)  # of differences for the Jacobian, relative to the larger of 1 and |y|


class RadauIIA(Stepper):
    """scipy.integrate.Radau applied to y = (q, v).

    Between steps the solver keeps more than t, y and the step length. A resumed run must be the same to the last bit.
    So asking for its memory restarts the solver from t, y and its next step, in the uninterrupted run too.

    E. Hairer, G. Wanner, Solving Ordinary Differential Equations II, 2nd ed., 1996, IV.8.
    """

    order = 5
    points = 4
    solver: Any = None

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        if motion.model.nv > MOST_FREEDOMS:
            raise ArgumentError(
                f"radau factors dense matrices, for up to {MOST_FREEDOMS} freedoms, not {motion.model.nv}: use esdirk4 "
                "or trbdf2, which are implicit in O(n)"
            )
        super().__init__(motion, t, q, v, settings)
        self.scale = ErrorScale(motion, settings)
        self.h = min(self.scale.first_step(motion, t, self.row, self.order - 1), settings.max_step)
        self.evaluations += 1

    def _rate(self, t: float, y: Array) -> Array:
        return self.rate(y, self.acceleration(t, y[: self.nq], y[self.nq :]))

    def _jacobian(self, t: float, y: Array) -> Array:
        """d rate/dy by differences, all of them in one call of the compiled program, one state per row."""
        nudge = NUDGE * np.maximum(np.abs(y), 1)
        states = np.vstack([y, y + np.diag(nudge)])
        q, v = states[:, : self.nq], states[:, self.nq :]
        rates = np.hstack([self.motion.coordinates.rate(q, v), self.motion.accelerations(t, q, v)])
        self.evaluations += len(states)
        return ((rates[1:] - rates[0]) / nudge[:, None]).T

    def _start(self, t_end: float) -> None:
        from scipy.integrate import Radau  # imported late, because SciPy is slow to load

        y = self.row[: self.nq + self.nv].copy()
        first = min(self.h, self.settings.max_step, t_end - self.t)
        rtol: Any = self.scale.rtol.min()  # Radau takes only one: the smallest is right for every joint
        atol: Any = self.scale.atol
        self.solver = Radau(
            self._rate, self.t, y, t_end, rtol=rtol, atol=atol, first_step=first, max_step=self.settings.max_step,
            jac=self._jacobian,
        )  # fmt: skip

    def step(self, t_end: float) -> None:
        if self.solver is None or self.solver.t_bound != t_end:
            self._start(t_end)
        complaint = self.solver.step()
        if self.solver.status == "failed":
            raise SingularError(f"the step fails at t = {self.t:.9g}: {complaint}")
        np.copyto(self.row_old, self.row)
        self.t_old, self.t = self.t, self.solver.t
        y = self.solver.y
        self.motion.coordinates.normalise(y[: self.nq])
        self.row[: len(y)] = y
        self.motion.accelerate(self.t, self.q, self.v, self.a)
        self.evaluations += 1
        if self.t < t_end:  # a step cut short at t_end says nothing about the next one
            self.h = self.solver.h_abs

    def between(self, t: Array) -> tuple[Array, Array]:
        y = self.solver.dense_output()(t).T
        q, v = y[:, : self.nq].copy(), y[:, self.nq :]
        self.motion.coordinates.normalise(q)
        return q, v

    def memory(self) -> Memory:
        self.solver = None
        return super().memory() | {"h": np.array([self.h])}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.h = float(memory["h"][0])
