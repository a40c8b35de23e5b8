"""The method "rattle": kick - drift - kick, with forces once per step and a drift solved by Newton in O(n).

The drift is one variational step of the free machine (`algorithms/rattle.py`). Before and after it, forces change the
momenta. The state is (q, p). Without dampers the method is symplectic and reversible, and it conserves the momenta that
the machine conserves. The fixed-point iterations of other variational methods converge only while bodies turn little
within a step; Newton's iteration converges in three or four rounds for trees of any size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torsor.algorithms import rattle
from torsor.dynamics import functions as dynamics
from torsor.dynamics.points import looped
from torsor.errors import SingularError
from torsor.model.model import Model
from torsor.motion.driver import INSIDE
from torsor.motion.motion import Motion, compiled
from torsor.motion.stepper import Array, Memory, Settings
from torsor.motion.structure import Symplectic

# The norm of the last correction over all freedoms. Newton's iteration squares it: only rounding is left.
SETTLED = 1e-7
ARRIVING = 2  # rounds for the velocity at the end of a step, on which forces may depend
FURTHER = 20  # the most rounds for states that have not converged after the first ones


class Drifted(NamedTuple):
    """States after a drift: coordinates, momenta, mean velocities (guesses for the next step), and which converged.

    The numbers of a state that has not converged are meaningless.
    """

    q: Array
    p: Array
    x: Array
    settled: Array


class Drift:
    """The free motion of many states of a model over a step; convergence is checked per state.

    near             whether guesses include the acceleration, so that fewer rounds of Newton are taken at first
    rounds, drifts   the number of rounds of Newton, and of drifts of one state
    """

    def __init__(self, model: Model, near: bool = False) -> None:
        self.model = model
        self._begin = looped(rattle.drift_near if near else rattle.drift, model)
        self._first = rattle.NEAR_ROUNDS if near else rattle.ROUNDS
        self.rounds = self.drifts = 0

    def __call__(self, q: Array, p: Array, x: Array, h: Array | float) -> Drifted:
        """Move states q (..., nq) with momenta p (..., nv) for h (...); x (..., nv) is a guess of the mean velocity."""
        steps = np.full_like(p, h) if isinstance(h, float) else _wide(h, p)
        found = self._begin(q, p, x, steps)
        settled = found.change < SETTLED**2
        self.drifts += settled.size
        self.rounds += self._first * settled.size
        if np.count_nonzero(settled) == settled.size:  # a fifth of the time of all()
            return Drifted(found.q, found.p, found.x, settled)
        rows = Drifted(*(np.array(a).reshape(settled.size, -1) for a in (found.q, found.p, found.x, settled)))
        given = [np.broadcast_to(a, (*settled.shape, a.shape[-1])).reshape(settled.size, -1) for a in (q, p, steps)]
        self._finish(given, rows, np.isfinite(found.change).reshape(-1))
        q, p, x = (a.reshape(*settled.shape, a.shape[-1]) for a in rows[:3])
        return Drifted(q, p, x, rows.settled.reshape(settled.shape))

    def _finish(self, given: list[Array], rows: Drifted, finite: Array) -> None:
        """Take more rounds for the rows that need them, in place."""
        further = looped(rattle.drift_further, self.model)
        for _ in range(FURTHER):
            left = np.flatnonzero(finite & ~rows.settled[:, 0])
            if not len(left):
                return
            q, p, h = (a[left] for a in given)
            found = further(q, p, rows.x[left], h)
            self.rounds += len(left)
            rows.q[left], rows.p[left], rows.x[left] = found.q, found.p, found.x
            finite[left], rows.settled[left, 0] = np.isfinite(found.change), found.change < SETTLED**2


def _wide(h: Array | float, p: Array) -> Array:
    """The step of every state at each of its freedoms."""
    steps = np.empty_like(p)
    steps[...] = np.asarray(h, dtype=float)[..., None]
    return steps


class Rattle(Symplectic):
    """Kick - drift - kick, order 2.

    Dampers act by the trapezoidal rule: explicitly before the drift, implicitly after it.
    """

    order, parts = 2, 2

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings)
        self.x = self.v.copy()

    def _compile(self) -> None:
        model = self.motion.model
        self.drift = Drift(model)
        self._accelerations = compiled(model, dynamics.forward_dynamics)
        self._gravity = compiled(model, dynamics.gravity_forces) if model.gravity.any() else None

    def _push(self, t: float) -> Array | float:
        """All torques that depend only on t and q."""
        return self.pull(t) - (0.0 if self._gravity is None else self._gravity(self.q))

    def advance(self, h: float) -> None:
        tau, inside = self._push(self.t), INSIDE * h if len(self.motion.law.knots) else 0.0
        if self.driven:
            tau = tau + self._felt(self.t + inside, self.q, self.v)
        self.p = self.p + h / 2 * tau
        moved = self.drift(self.q, self.p, self.x, h)
        if not moved.settled:
            raise SingularError(f"the implicit step at t = {self.t:.6g} does not settle. {self._remedy()}")
        self.q[:], self.p, self.x = moved.q, moved.p, moved.x
        t = self.t + h
        self.p = self.p + h / 2 * self._push(t)
        if self.driven:
            self._arrive_driven(t - inside, h)
        self.finish(t)

    def acceleration(self, t: float, q: Array, v: Array) -> Array:
        """The acceleration, without calling the functions of t and q again."""
        if len(self.kicks) < len(self.motion.law.called) or self._kicked[0] != t:
            return super().acceleration(t, q, v)
        return self._accelerations(q, v, self.pull(t) + self._felt(t, q, v))

    def _arrive_driven(self, t: float, h: float) -> None:
        """M v = p + (h/2) tau(v):  (M + (h/2) D) v <- p + (h/2) (tau(v) + D v).

        The first round is exact if tau is linear in v with the slopes -D. If not, the second round makes the order 2.
        """
        v = self.motion.solve(self.q, self.p)
        for _ in range(ARRIVING):
            self.evaluations += 1
            damping = np.maximum(self.steady(t, self.q, v)[2], 0.0)
            impulse = h / 2 * (self._felt(t, self.q, v) + damping * v)
            v = self.motion.implicit_solve(self.q, self.p + impulse, h / 2 * damping)
        self.p = self.p + impulse - h / 2 * damping * v

    def memory(self) -> Memory:
        return super().memory() | {"x": self.x}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.x = memory["x"].copy()
