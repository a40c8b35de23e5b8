"""Detection of stiffness: steps that are short only for stability, or so short that a run takes hours."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import TorsorError
from torsor.motion.implicit import Esdirk4
from torsor.motion.law import felt_inertia
from torsor.motion.motion import Motion
from torsor.motion.stepper import Settings, Stepper

Array = NDArray[Any]

FIRST_LOOK = 16  # steps before the first check; each time the number doubles
TINY = 1e-6  # MANY steps in a row below this share of the run cause a warning
MANY = 50
NEAR = 1.0  # h times the largest rate of the forces, above which stability may limit an explicit step
TRIAL = 8  # steps of the implicit method in a trial
WORTHWHILE = 1000  # remaining steps below which no other method is tried
SWEEP = 2.0  # the cost of an evaluation of an implicit stage, relative to an explicit one
POWERS = 4  # iterations for the largest rate


class Watchman:
    """Checks the steps of an integrator from time to time."""

    def __init__(self, motion: Motion, settings: Settings, t0: float) -> None:
        self.motion, self.settings, self.t0 = motion, settings, t0
        self.steps, self.next, self.short = 0, FIRST_LOOK, 0
        self.warned = False
        self._start = (t0, 0)  # time and evaluations at the last check

    def look(self, stepper: Stepper, until: float) -> str | None:
        """A description of what is wrong with the steps, only once, or None."""
        if self.warned or not stepper.adaptive:
            return None
        self.steps += 1
        self.short = self.short + 1 if stepper.t - stepper.t_old < TINY * (until - self.t0) < np.inf else 0
        if self.short >= MANY:
            self.warned = True
            left = (until - stepper.t) / max(stepper.t - stepper.t_old, 1e-300)
            return (
                f"steps of {stepper.t - stepper.t_old:.2g} s at t = {stepper.t:.6g}: {left:.1g} more are needed; "
                f"{self.blamed(stepper)} moves quickest"
            )
        many = self.steps >= self.next and until - stepper.t > WORTHWHILE * stepper.h
        if stepper.stiff or (many and self._costs_more(stepper)):
            self.warned = True
            return (
                f"the motion is stiff at t = {stepper.t:.6g}: steps of {stepper.h:.2g} s keep {self.blamed(stepper)} "
                "stable"
            )
        return None

    def blamed(self, stepper: Stepper) -> str:
        """The joint with the fastest forces, or with the largest acceleration."""
        motion = self.motion
        rates = np.abs(np.nan_to_num(motion.fetch(stepper.a)))
        if not motion.is_free:
            try:
                stiffness, damping = (np.abs(motion.fetch(x)) for x in motion.slopes(stepper.t, stepper.q, stepper.v))
                inertia = np.maximum(felt_inertia(motion.model), 1e-300)
                found = damping / inertia + np.sqrt(stiffness / inertia)
                rates = found if np.isfinite(found).all() and found.any() else rates
            except TorsorError:
                pass
        return f"joint {motion.model.body_of_freedom(int(rates.argmax()))!r}"

    def _costs_more(self, stepper: Stepper) -> bool:
        """Whether an implicit method would take less time; tried only if the forces are fast relative to the steps."""
        self.next = 2 * self.steps
        (since, before), self._start = self._start, (stepper.t, stepper.evaluations)
        motion, plain = self.motion, not self.motion.is_free and stepper.points is None
        on_host = type(motion) is Motion and motion.dynamics == "auto"
        if not plain or not on_host or stepper.h * self._quickest(stepper) < NEAR:
            return False
        trial = Esdirk4(motion, stepper.t, stepper.q.copy(), stepper.v.copy(), self.settings)
        first = trial.t
        try:
            for _ in range(TRIAL):
                begin, count = trial.t, trial.evaluations
                trial.step(np.inf)
        except TorsorError:
            return False
        stepper.evaluations += trial.evaluations
        rate = SWEEP * (trial.evaluations - count) / max(trial.t - begin, trial.h, 1e-300)
        own = (self._start[1] - before) / max(stepper.t - since, 1e-300)
        return trial.t > first and rate < own

    def _quickest(self, stepper: Stepper) -> float:
        """The largest rate of the forces at the joints, by a few iterations with M^-1 K and M^-1 D."""
        motion = self.motion
        stiffness, damping = motion.slopes(stepper.t, stepper.q, stepper.v)
        rates = []
        for gain in (damping, stiffness):
            x = np.ones(len(gain))
            for _ in range(POWERS if gain.any() else 0):
                x = motion.implicit_solve(stepper.q, gain * x / sqrt(x.dot(x)), np.zeros(len(gain)))
            rates.append(sqrt(x.dot(x)) if gain.any() else 0.0)
        return max(rates[0], sqrt(rates[1]))
