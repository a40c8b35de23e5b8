"""The methods of `steps.py` for one motion: the same kernels as in rollouts, with the same bits."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from torsor.motion.driver import Fixed
from torsor.motion.motion import Motion
from torsor.motion.stepper import Array, FixedStep, Settings
from torsor.motion.steps import METHODS


class Stepped(FixedStep):
    """A method of fixed steps by name."""

    name: ClassVar[str]

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings)
        self._runs: dict[float, tuple[Fixed, Any]] = {}

    def _run(self, h: float) -> tuple[Fixed, Any]:
        """The steps of length h; only the last step of a run has another length."""
        if h not in self._runs:
            law, setup = self.motion.law, Fixed(self.motion.model, self.motion.law, METHODS[self.name], self.name, h)
            given = {name: np.array(x)[None] for name, x in setup.step.loads.items()}
            given |= {"tau": setup.commands(0, 1, self.t), "gain": law.values}
            run = self.motion.steps(setup.step, h, given, setup.method.times)
            self._runs = {h: (setup, run)} if h == self.h else self._runs | {h: (setup, run)}
        return self._runs[h]

    def advance(self, h: float) -> None:
        h = self.h if abs(h - self.h) <= 1e-9 * self.h else h
        setup, run = self._run(h)
        run(self.row[None, : self.nq + self.nv], lambda first, count: setup.changing(self.t), t=self.t)
        self.evaluations += len(setup.method.times)
        if self.every_row:
            self.motion.accelerate(self.t + h, self.q, self.v, self.a)

    def between(self, t: Array) -> tuple[Array, Array]:
        """Straight lines for a method of first order, as accurate as the method; otherwise the quintic of both rows."""
        if self.order > 1:
            return super().between(t)
        share = self.motion.place(((t - self.t_old) / (self.t - self.t_old))[:, None])
        old, new = (row[: self.nq + self.nv] for row in (self.row_old, self.row))
        y = old + share * (new - old)
        self.motion.coordinates.normalise(y[:, : self.nq])
        return y[:, : self.nq], y[:, self.nq :]


def stepped(name: str) -> type[Stepped]:
    """The integrator of a method of fixed steps."""
    order = METHODS[name].order
    own = {"name": name, "order": order, "points": 2 if order == 1 else None}
    return type("".join(word.title() for word in name.split("-")), (Stepped,), own)
