"""Fixed-step methods that keep the structure of mechanics, for long runs: their energy error does not grow.

All are compositions of two variational steps. They are symplectic for every M(q), conserve the momenta that the machine
conserves, and move q along its manifold, so that rotations stay rotations. docs/simulation.md shows what a million
steps of each do to energy and momentum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from torsor.algorithms import discrete_mechanics as mechanics
from torsor.errors import SingularError
from torsor.simulate.motion import Motion
from torsor.simulate.stepper import Array, FixedStep, Memory, Settings
from torsor.sweeps import Algorithm

if TYPE_CHECKING:
    from torsor.backends.cpu import Program

# Implicit equations are iterated until only rounding changes the solution.
SETTLED, NEARLY = 4 * np.finfo(np.float64).eps, 1e-11
ITERATIONS = 100


class Symplectic(FixedStep):
    """The base of methods made of variational steps: they carry the momenta p = M v, on the Lie groups of the joints.

    There are two such steps, each the adjoint of the other: one takes the Lagrangian at its beginning, one at its end
    (`algorithms/discrete_mechanics.py`). Both are implicit in the velocity x, which is constant over the step, and are
    solved by iteration. Forces change p by h tau at the same point as the Lagrangian.
    """

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings)
        self._begin, self._end = self._iterations()
        self._leave, self._arrive = self._compiled(mechanics.leave, mechanics.arrive)
        self.p = motion.mass_matrix(self.q) @ self.v

    def _compiled(self, *algorithms: Algorithm) -> list[Program]:
        from torsor.backends.cpu import compile_program  # imported late, so that `import torsor` stays quick

        return [compile_program(algorithm, self.motion.model) for algorithm in algorithms]

    def _iterations(self) -> Sequence[Callable[..., Array]]:
        """(q, x, p, h) -> a better x, for both steps; sweeps cannot include armature: M^-1 is then applied after."""
        if not self.motion.armature.any():
            return self._compiled(mechanics.begin, mechanics.end)
        solve, move = self.motion.solve, self.motion.coordinates.move
        begin, end = self._compiled(mechanics.momentum_at_begin, mechanics.momentum_at_end)
        return (
            lambda q, x, p, h: solve(q, begin(q, x, p, h)),
            lambda q, x, p, h: solve(move(q, h * x), end(q, x, p, h)),
        )

    def from_beginning(self, t: float, h: float, x: Array) -> Array:
        """A step from t with the Lagrangian at t; returns its velocity, for which x is a first guess."""
        q, hs = self.q, np.full(self.nv, h)
        x = fixed_point(lambda x: self._begin(q, x, self._pushed(t, h, x), hs), x, t)
        self.p = self._leave(q, x, self._pushed(t, h, x), hs)
        self.q[:] = self.motion.coordinates.move(q, h * x)
        return x

    def to_end(self, t: float, h: float, x: Array) -> Array:
        """A step to t with the Lagrangian at t; returns its velocity, for which x is a first guess."""
        q, p, hs = self.q, self.p, np.full(self.nv, h)
        x = fixed_point(lambda x: self._end(q, x, p, hs), x, t)
        self.q[:] = self.motion.coordinates.move(q, h * x)
        self.p = self._arrive(self.q, x, p, hs)
        self.p = self._pushed(t, h, x)
        return x

    def finish(self, t: float) -> None:
        """v and a from q and p."""
        self.v[:] = self.motion.solve(self.q, self.p)
        self.a[:] = self.acceleration(t, self.q, self.v)

    def _pushed(self, t: float, h: float, x: Array) -> Array:
        """p + h tau(t, q, x)"""
        return self.p + h * self.motion.torque(t, self.q, x) if self.motion.forces else self.p

    def memory(self) -> Memory:
        return super().memory() | {"p": self.p}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.p = memory["p"].copy()


class SemiImplicitEuler(Symplectic):
    """The symplectic Euler method, order 1: a kick, p <- p + h dL/dq(q, x), then a drift, q <- q [+] h x.

    Where M is constant this is v <- v + h a, q <- q [+] h v, the usual method of games and of robot simulators. Where M
    is not constant, that usual method gains or loses energy steadily.
    """

    order = 1

    def advance(self, h: float) -> None:
        self.from_beginning(self.t, h, self.v + h * self.a)
        self.finish(self.t + h)


class StoermerVerlet(Symplectic):
    """Drift - kick - drift, order 2: half a step to its end, half a step from there. Forces act in the middle."""

    order = 2

    def advance(self, h: float) -> None:
        middle = self.t + h / 2
        x = self.to_end(middle, h / 2, self.v)
        self.from_beginning(middle, h / 2, x + h * self.a)
        self.finish(self.t + h)


class Variational(Symplectic):
    """Kick - drift - kick, order 2: half a step from its beginning, half a step to its end."""

    order = 2

    def advance(self, h: float) -> None:
        x = self.from_beginning(self.t, h / 2, self.v + h / 2 * self.a)
        self.to_end(self.t + h, h / 2, x)
        self.finish(self.t + h)


def fixed_point(update: Callable[[Array], Array], x: Array, t: float) -> Array:
    """The fixed point x = update(x): where x changes by rounding only, or is close and comes no closer."""
    last = 0.0
    for _ in range(ITERATIONS):
        x, before = update(x), x
        step = x - before
        change = sqrt(step.dot(step) / (1 + x.dot(x)))
        # changes shrink in proportion: the next one would be change^2 / last
        if change * change <= SETTLED * max(change, last) or last <= change <= NEARLY:
            return x
        last = change
    raise SingularError(f"the implicit step at t = {t:.6g} does not settle: take smaller steps")
