"""Steps in time: pure functions (plant, q, v, h) over any scalar, and the table of methods made from them.

A new method is one function and one row of `METHODS`. It then runs in `simulate`, in rollouts and ensembles, on CPUs
and GPUs, and has gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torsor.linalg import Scalar
from torsor.motion.plant import Plant

Scalars = Sequence[Scalar]
Pair = tuple[Scalars, Scalars]


def semi_implicit(plant: Plant, q: Scalars, v: Scalars, h: Scalar) -> Pair:
    """v' = v + h a(q, v),   q' = q + h N(q) v'                (first order; usual in games and robot simulators)"""
    return plant.stepped(q, v, plant.free(q, v), h)


def implicit_euler(plant: Plant, q: Scalars, v: Scalars, h: Scalar) -> Pair:
    """(M + h D + h^2 K) a = tau - bias - h K v,   v' = v + h a,   q' = q + h N(q) v'   (linearly implicit, first order)

    K and D are the stiffness and damping of all forces at the joints; the step is stable for any of them. For computed
    torques they are M kp and M kd; with S = h kd + h^2 kp and z = h kp v, the matrix is M (1 + S) + R (`implicit.py`):

        a = (1 + S)^-1 ((M + R')^-1 (tau - bias - h K v + R' z) - z),     R' = (h D + h^2 K) (1 + S)^-1.
    """
    actions, drives = plant.actions(q, v)
    added = [(x.damping + x.stiffness * h) * h for x in actions]
    tau = [x.tau - x.stiffness * h * rate for x, rate in zip(actions, v)]
    if not plant.tracking:
        return plant.stepped(q, v, plant.accelerate(q, v, tau, added, 0), h)
    gains = plant.tracked_gains(q, v, drives)
    share = [1.0 / (1.0 + (kd + kp * h) * h) for kp, kd in gains]
    z = [kp * h * x for (kp, _), x in zip(gains, v)]
    added = [x * y for x, y in zip(added, share)]
    tau = [x + y * e for x, y, e in zip(tau, added, z)]
    a = [(x - e) * y for x, e, y in zip(plant.accelerate(q, v, tau, added, 0), z, share)]
    return plant.stepped(q, v, a, h)


def rk4(plant: Plant, q: Scalars, v: Scalars, h: Scalar) -> Pair:
    """y' = y + h/6 (k1 + 2 k2 + 2 k3 + k4) for y = (q, v)                   (Kutta 1901, fourth order)"""

    def f(at: int, q: Scalars, v: Scalars) -> Pair:
        return plant.rate(q, v), plant.free(q, v, at)

    half, sixth = h * 0.5, h * (1 / 6)
    k1 = f(0, q, v)
    k2 = f(1, *(plant.moved(x, k, half) for x, k in zip((q, v), k1)))
    k3 = f(2, *(plant.moved(x, k, half) for x, k in zip((q, v), k2)))
    k4 = f(3, *(plant.moved(x, k, h) for x, k in zip((q, v), k3)))
    sums = ([a + d + (b + c) * 2.0 for a, b, c, d in zip(*ks)] for ks in zip(k1, k2, k3, k4))
    new = [plant.moved(x, k, sixth) for x, k in zip((q, v), sums)]
    return new[0], new[1]


class Method(NamedTuple):
    """A method of fixed steps.

    step      (plant, q, v, h) -> (q', v')
    times     when it reads commands and wrenches, one time per evaluation, relative to the step
    order     the order of its error
    implicit  whether numbers are added to the pivots of its accelerations
    """

    step: Callable[[Plant, Scalars, Scalars, Scalar], Pair]
    times: tuple[float, ...]
    order: int
    implicit: bool = False

    def __call__(self, plant: Plant, q: Scalars, v: Scalars, h: Scalar) -> list[Scalar]:
        """The new state (q', v'), with quaternions of unit length."""
        q, v = self.step(plant, q, v, h)
        return [*plant.normalised(q), *v]


METHODS = {
    "semi-implicit": Method(semi_implicit, (0.0,), 1),
    "implicit-euler": Method(implicit_euler, (1.0,), 1, implicit=True),
    "rk4": Method(rk4, (0.0, 0.5, 0.5, 1.0), 4),
}
