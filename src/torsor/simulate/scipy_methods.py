"""SciPy's DOP853 (order 8) and Radau IIA (order 5, implicit: for stiff motion) as steppers."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from torsor.errors import SingularError
from torsor.simulate.motion import Motion
from torsor.simulate.stepper import Array, ErrorScale, Memory, Settings, Stepper


class ScipyStepper(Stepper):
    """An integrator of scipy.integrate at work on y = (q, v).

    A solver keeps more than t, y and the step between steps. So that a resumed run is the same to the last
    bit, asking for its memory starts it afresh from t, y and its next step, in the uninterrupted run too.
    """

    solver_name: ClassVar[str]  # in scipy.integrate, which is loaded when it is needed: it takes its time
    solver: Any = None

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings)
        self.scale = ErrorScale(motion, settings)
        self.h = min(self.scale.first_step(motion, t, self.row, self.order - 1), settings.max_step)
        self.evaluations += 1

    def _rate(self, t: float, y: Array) -> Array:
        q, v, a = y[: self.nq], y[self.nq :], np.empty(self.nv)
        self.motion.accelerate(t, q, v, a)
        self.evaluations += 1
        return np.concatenate([self.motion.coordinates.rate(q, v), a])

    def _start(self, t_end: float) -> None:
        y = self.row[: self.nq + self.nv].copy()
        first = min(self.h, self.settings.max_step, t_end - self.t)
        # SciPy's implicit methods know one rtol only; a per-joint one is met by its least
        self.solver = getattr(import_module("scipy.integrate"), self.solver_name)(
            self._rate, self.t, y, t_end, rtol=self.scale.rtol.min(), atol=self.scale.atol, first_step=first,
            max_step=self.settings.max_step,
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
        if self.t < t_end:  # the last step was cut short and says nothing of the next
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


class DormandPrince853(ScipyStepper):
    order = 8
    solver_name = "DOP853"


class RadauIIA(ScipyStepper):
    order = 5
    solver_name = "Radau"
