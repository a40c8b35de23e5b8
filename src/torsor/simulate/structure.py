"""Fixed-step methods that keep the structure of mechanics, for long runs: their energy error does not grow.

All of them move q along the manifold, q [+] h v, so that rotations stay rotations.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial, sqrt

import numpy as np

from torsor import dynamics
from torsor.errors import SingularError
from torsor.simulate.coordinates import Coordinates
from torsor.simulate.motion import Motion, compiled
from torsor.simulate.stepper import Array, FixedStep, Memory, Settings

# Implicit equations are iterated until they change by rounding only.
SETTLED, NEARLY = 4 * np.finfo(np.float64).eps, 1e-11
ITERATIONS = 100
# dexp^-1 is a series in the turn of half a step; with 12 terms and turns below 1/2 rad its tail is below
# 1e-14.
TERMS = 12
LARGEST_TURN = 0.5
DEXP = [1 / factorial(k + 1) for k in range(1, TERMS + 1)]
BERNOULLI = [-1 / 2, 1 / 6, 0, -1 / 30, 0, 1 / 42, 0, -1 / 30, 0, 5 / 66, 0, -691 / 2730]
DEXP_INVERSE = [B / factorial(k) for k, B in enumerate(BERNOULLI, start=1)]


class SemiImplicitEuler(FixedStep):
    """v <- v + h a(q, v), then q <- q [+] h v: order 1, one evaluation a step.

    Symplectic where M is constant. The usual method of games and of robot simulators.
    """

    order = 1

    def advance(self, h: float) -> None:
        self.v[:] += h * self.a
        self.q[:] = self.motion.coordinates.move(self.q, h * self.v)
        self.a[:] = self.acceleration(self.t + h, self.q, self.v)


class StoermerVerlet(FixedStep):
    """The symmetric kick - drift - kick, order 2:

        w = v + h/2 a(t, q, w)         implicit in w only, where a depends on velocities: by iteration
        q <- q [+] h w
        v <- w + h/2 a(t + h, q, w)    explicit

    Each half kick is the adjoint of the other, so the step reads the same backwards in time. It is
    symplectic where M is constant, and reversible always.
    """

    order = 2

    def advance(self, h: float) -> None:
        t, q, v = self.t, self.q, self.v.copy()
        w = settle(lambda w: v + h / 2 * self.acceleration(t, q, w), v + h / 2 * self.a, t)
        self.q[:] = self.motion.coordinates.move(q, h * w)
        self.v[:] = w + h / 2 * self.acceleration(t + h, self.q, w)
        self.a[:] = self.acceleration(t + h, self.q, self.v)


class Variational(FixedStep):
    """A variational integrator on the Lie group of the joints, order 2: symplectic for every model and M(q).

    Each half step of length k moves q along a constant velocity, q1 = q0 [+] k x. The first takes the
    Lagrangian at its beginning, L_d = k L(q0, x), the second at its end, L_d = k L(q1, x); the discrete
    Legendre transforms are

        p0 = D(k x)^T M x - k F          p1 = D(-k x)^T M x               M, F at (q0, x)
        p0 = D(k x)^T M x                p1 = D(-k x)^T M x + k F         M, F at (q1, x)

    with p = M v, D(y) = dexp_y^-1, and F = dL/dq = C^T v - gravity - ad_v^T M v + tau the left-trivialised
    force (from dp/dt = C^T v - gravity + tau, since dM/dt = C + C^T). The second half is the adjoint of the
    first. (N. Bou-Rabee, J. E. Marsden, Hamilton-Pontryagin integrators on Lie groups, Found. Comput. Math.
    9, 2009.)
    """

    order = 2

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings)
        self._coriolis = compiled(motion.model, dynamics.coriolis_matrix)
        self._gravity = compiled(motion.model, dynamics.gravity_forces)
        self._adjoint = None if motion.coordinates.flat else Adjoint(motion.coordinates)
        self.p = motion.mass_matrix(self.q) @ self.v

    def advance(self, h: float) -> None:
        """The two halves; m = M x is the momentum in the middle of each, x its velocity."""
        t, k, q0, p0 = self.t, h / 2, self.q.copy(), self.p
        solve, move = self.motion.solve, self.motion.coordinates.move

        def first(m: Array) -> Array:
            x = solve(q0, m)
            return self._series(DEXP, k * x, p0 + k * self._force(t, q0, x, m))

        m = settle(first, p0 + k * self._force(t, q0, self.v, p0), t)
        x = solve(q0, m)
        middle, p = move(q0, k * x), self._series(DEXP_INVERSE, -k * x, m)
        x = settle(lambda x: solve(move(middle, k * x), self._series(DEXP, k * x, p)), x, t)
        self.q[:], m = move(middle, k * x), self._series(DEXP, k * x, p)
        self.p = self._series(DEXP_INVERSE, -k * x, m) + k * self._force(t + h, self.q, x, m)
        self.v[:] = solve(self.q, self.p)
        self.a[:] = self.acceleration(t + h, self.q, self.v)

    def _force(self, t: float, q: Array, v: Array, m: Array) -> Array:
        """C^T v - gravity - ad_v^T m + tau"""
        force = self._coriolis(q, v).T.dot(v) - self._gravity(q) + self.motion.torque(t, q, v)
        return force if self._adjoint is None else force - self._adjoint(v).T.dot(m)

    def _series(self, factors: list[float], y: Array, p: Array) -> Array:
        """sum f_k (ad_y^T)^k p: the dual of dexp_y or of its inverse."""
        if self._adjoint is None:
            return p
        ad = self._adjoint(y)
        if np.abs(ad).max() > LARGEST_TURN:
            raise SingularError(f"a joint moves by more than {LARGEST_TURN} in half a step: take smaller steps")
        total = p
        for factor in factors:
            p = ad.T.dot(p)
            total = total + factor * p
        return total

    def memory(self) -> Memory:
        return super().memory() | {"p": self.p}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.p = memory["p"].copy()


def settle(update: Callable[[Array], Array], x: Array, t: float) -> Array:
    """The fixed point x = update(x): where x changes by rounding only, or is near and comes no nearer."""
    change = np.inf
    for _ in range(ITERATIONS):
        x, before = update(x), x
        step = x - before
        change, last = sqrt(step.dot(step) / (1 + x.dot(x))), change
        if change <= SETTLED or last <= change <= NEARLY:
            return x
    raise SingularError(f"the implicit step at t = {t:.6g} does not settle: take smaller steps")


class Adjoint:
    """x -> ad_x of the product of the joints' groups, (nv, nv): blocks for rotations and rigid motions."""

    def __init__(self, c: Coordinates) -> None:
        omega_of_free = c.omega[c.turning_of_free]
        blocks = [(c.omega, c.omega, c.omega), (c.linear, c.linear, omega_of_free), (c.linear, omega_of_free, c.linear)]
        self.nv = c.nv
        # entry (i, j) of a hat of x[source] is sign * x[source[k]] with (i, j, k) a permutation of 0, 1, 2
        cells = [(rows[:, i], columns[:, j], source[:, 3 - i - j], (-1.0 if (j - i) % 3 == 1 else 1.0))
                 for rows, columns, source in blocks for i in range(3) for j in range(3) if i != j]  # fmt: skip
        self.rows, self.columns, self.source = (np.concatenate([cell[k] for cell in cells]) for k in range(3))
        self.sign = np.concatenate([np.full(len(cell[0]), cell[3]) for cell in cells])

    def __call__(self, x: Array) -> Array:
        ad = np.zeros((self.nv, self.nv))
        ad[self.rows, self.columns] = self.sign * x[self.source]
        return ad
