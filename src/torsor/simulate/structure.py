"""Fixed-step methods that keep the structure of mechanics, for long runs: their energy error does not grow.

All of them move q along the manifold, q [+] h v, so that rotations stay rotations.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial

import numpy as np
from scipy.special import bernoulli

from torsor import dynamics
from torsor.errors import SingularError
from torsor.simulate.coordinates import Coordinates
from torsor.simulate.motion import Motion, compiled
from torsor.simulate.stepper import Array, FixedStep, Memory, Settings

# Implicit equations are iterated until they change by rounding only.
SETTLED = 8 * np.finfo(np.float64).eps
ITERATIONS = 100
# dexp^-1 is a series in the turn of half a step; with 12 terms and turns below 1/2 rad its tail is below
# 1e-14.
TERMS = 12
LARGEST_TURN = 0.5
BERNOULLI = [(k, bernoulli(TERMS)[k] / factorial(k)) for k in range(TERMS + 1) if k == 1 or k % 2 == 0]


class SemiImplicitEuler(FixedStep):
    """v <- v + h a(q, v), then q <- q [+] h v: order 1, one evaluation a step.

    Symplectic where M is constant. The usual method of games and of robot simulators.
    """

    order = 1

    def advance(self, h: float) -> None:
        self.v[:] += h * self.a
        self.q[:] = self.move(self.q, h * self.v)
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
        self.q[:] = self.move(q, h * w)
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
        functions = (dynamics.mass_matrix, dynamics.coriolis_matrix, dynamics.gravity_forces)
        self._M, self._C, self._gravity = (compiled(motion.model, function) for function in functions)
        self._armature = np.diag(motion.armature)
        self.p = self._mass(self.q) @ self.v

    def advance(self, h: float) -> None:
        t, k, q0, p0 = self.t, h / 2, self.q.copy(), self.p
        M = self._mass(q0)
        x = settle(lambda x: self._velocity(M, k * x, p0 + k * self._force(t, q0, x, M)), self.v.copy(), t)
        middle, p = self.move(q0, k * x), self._legendre(M, -k * x, x)
        x = settle(lambda x: self._velocity(self._mass(self.move(middle, k * x)), k * x, p), x, t)
        self.q[:] = self.move(middle, k * x)
        M = self._mass(self.q)
        self.p = self._legendre(M, -k * x, x) + k * self._force(t + h, self.q, x, M)
        self.v[:] = np.linalg.solve(M, self.p)
        self.a[:] = self.acceleration(t + h, self.q, self.v)

    def _mass(self, q: Array) -> Array:
        return self._M(q) + self._armature

    def _legendre(self, M: Array, y: Array, x: Array) -> Array:
        """D(y)^T M x"""
        p = M @ x
        return p if self.motion.coordinates.flat else dexp_inverse(adjoint(self.motion.coordinates, y)).T @ p

    def _velocity(self, M: Array, y: Array, p: Array) -> Array:
        """The x with D(y)^T M x = p"""
        if not self.motion.coordinates.flat:
            p = np.linalg.solve(dexp_inverse(adjoint(self.motion.coordinates, y)).T, p)
        return np.linalg.solve(M, p)

    def _force(self, t: float, q: Array, v: Array, M: Array) -> Array:
        inertial = self._C(q, v).T @ v
        if not self.motion.coordinates.flat:
            inertial -= adjoint(self.motion.coordinates, v).T @ (M @ v)
        return inertial - self._gravity(q) + self.motion.torque(t, q, v)

    def memory(self) -> Memory:
        return super().memory() | {"p": self.p}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.p = memory["p"].copy()


def settle(update: Callable[[Array], Array], x: Array, t: float) -> Array:
    """The fixed point x = update(x)."""
    for _ in range(ITERATIONS):
        x, before = update(x), x
        if np.abs(x - before).max() <= SETTLED * (1 + np.abs(x).max()):
            return x
    raise SingularError(f"the implicit step at t = {t:.6g} does not settle: take smaller steps")


def adjoint(c: Coordinates, x: Array) -> Array:
    """ad_x of the product of the joints' groups, (nv, nv): blocks for rotations and rigid motions."""
    ad = np.zeros((c.nv, c.nv))
    for columns in c.omega:
        ad[np.ix_(columns, columns)] = _hat(x[columns])
    for turning, linear in zip(c.turning_of_free, c.linear):
        omega = c.omega[turning]
        ad[np.ix_(linear, linear)] = _hat(x[omega])
        ad[np.ix_(linear, omega)] = _hat(x[linear])
    return ad


def dexp_inverse(ad: Array) -> Array:
    """dexp_y^-1 = sum B_k / k! ad_y^k"""
    if np.abs(ad).max() > LARGEST_TURN:
        raise SingularError(
            f"a joint turns or moves by more than {LARGEST_TURN} in half a step: take smaller steps"
        )
    result, power, at = np.zeros_like(ad), np.eye(len(ad)), 0
    for k, factor in BERNOULLI:
        while at < k:
            power, at = power @ ad, at + 1
        result += factor * power
    return result


def _hat(x: Array) -> Array:
    return np.array([[0, -x[2], x[1]], [x[2], 0, -x[0]], [-x[1], x[0], 0]])
