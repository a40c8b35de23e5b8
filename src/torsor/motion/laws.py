"""Forces at one freedom of a joint, over any scalar: springs, friction, stops, and a drive with its limits.

    tau = drive(u, x, v) + springs, friction, stops (x, v)

x is the coordinate of the freedom, v its velocity and u the command to its drive. The step of a rollout and the
compiled right-hand side of a simulation contain the same few functions. They also return the slopes of the torque,
which implicit methods need. All their numbers are data and may differ between trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from torsor.backends.pointwise import compile_pointwise
from torsor.linalg import Scalar, maximum, sqrt

Array = NDArray[Any]

CREEP = 1e-3  # speeds over which dry friction is smoothed
CUSHION = 1e-3  # the depth (rad or m) over which the damper of a stop reaches its full value
DROOP = 0.05  # the last part of a drive's speed over which its torque falls to zero
NOTHING = 1e-30  # x / (x + NOTHING) is 1 where x > 0 and 0 where x = 0
FAR = 1e30  # replaces infinite limits: its differences are finite, also in single precision


class Action(NamedTuple):
    """A torque, and how much it falls with the position and the velocity of its freedom.

    The damping of dry friction is a secant, which exceeds its slope by `excess`.
    """

    tau: Scalar
    stiffness: Scalar = 0.0
    damping: Scalar = 0.0
    excess: Scalar = 0.0

    def and_(self, other: Action) -> Action:
        """The sum of both actions."""
        return Action(*(a + b for a, b in zip(self, other)))


def spring(x: Scalar, v: Scalar, pull: Scalar, stiffness: Scalar, damping: Scalar) -> Action:
    """pull - stiffness x - damping v."""
    return Action(pull - stiffness * x - damping * v, stiffness, damping)


def friction(x: Scalar, v: Scalar, size: Scalar, creep: Scalar) -> Action:
    """-size v / sqrt(v^2 + creep^2): dry friction, whose jump at rest is smoothed over speeds of `creep`.

    Its damping is the secant -tau / v, not the slope. A linearly implicit step then comes to rest under friction of any
    size. The slope is small while the joint slides, and would let it overshoot.
    """
    square = v * v + creep * creep
    damping = size / sqrt(square)
    return Action(-(damping * v), 0.0, damping, damping * (v * v) / square)


def stops(x: Scalar, v: Scalar, lower: Scalar, upper: Scalar, stiffness: Scalar, damping: Scalar) -> Action:
    """A spring and a damper while x is outside [lower, upper]; they never pull the joint back to its stop.

    The damper rises over a depth of `CUSHION`, so that the torque is continuous.
    """
    up, down = _stop(lower - x, v, stiffness, damping), _stop(x - upper, -v, stiffness, damping)
    return Action(up.tau - down.tau, up.stiffness + down.stiffness, up.damping + down.damping)


def _stop(depth: Scalar, away: Scalar, stiffness: Scalar, damping: Scalar) -> Action:
    """The push of a stop that the joint has passed by `depth`; `away` is its velocity away from the stop."""
    depth = maximum(depth, 0.0)
    damping = damping * -maximum(depth * (-1.0 / CUSHION), -1.0)
    push = maximum(depth * stiffness - away * damping, 0.0)
    pushes = _is_positive(push)
    return Action(push, pushes * stiffness, pushes * damping)


def servo(u: Action, x: Scalar, v: Scalar, kp: Scalar, kd: Scalar) -> Action:
    """u - kp x - kd v."""
    return u.and_(spring(x, v, 0.0, kp, kd))


def effort(u: Action, x: Scalar, v: Scalar, most: Scalar) -> Action:
    """u, limited to [-most, most]."""
    tau = maximum(-maximum(-u.tau, -most), -most)
    free = 1.0 - _is_positive(maximum(u.tau - tau, tau - u.tau))
    return Action(tau, u.stiffness * free, u.damping * free)


def speed(u: Action, x: Scalar, v: Scalar, most: Scalar) -> Action:
    """u, limited by the speed of the drive: near it, torque along the motion falls to zero; braking is not limited."""
    band = most * DROOP + NOTHING
    total = Action(0.0)
    for sign in (1.0, -1.0):
        push = maximum(u.tau * sign, 0.0)
        share = maximum(-maximum((v * sign - most) / band, -1.0), 0.0)
        falls = _is_positive(share) * _is_positive(1.0 - share)
        slopes = [slope * share * _is_positive(push) for slope in u[1:3]]
        total = total.and_(Action(push * share * sign, slopes[0], slopes[1] + push * falls / band))
    return total


def _is_positive(x: Scalar) -> Scalar:
    """1 where x > 0, and 0 where x = 0; its slope is zero, like that of an absolute value (`tape_derivatives.FLAT`)."""
    size: Any = abs(cast("Any", x))
    return size / (size + NOTHING)


# The passive forces of a joint, and the functions that act on the command of its drive, in this order; with the names
# of their numbers, and the values for which they have no effect.
OWN: dict[str, tuple[Callable[..., Action], dict[str, float]]] = {
    "spring": (spring, {"pull": 0.0, "stiffness": 0.0, "damping": 0.0}),
    "friction": (friction, {"size": 0.0, "creep": CREEP}),
    "stops": (stops, {"lower": -FAR, "upper": FAR, "stiffness": 0.0, "damping": 0.0}),
}
DRIVE: dict[str, tuple[Callable[..., Action], dict[str, float]]] = {
    "servo": (servo, {"kp": 0.0, "kd": 0.0}),
    "effort": (effort, {"most": FAR}),
    "speed": (speed, {"most": FAR}),
}
KINDS = OWN | DRIVE


def action(kinds: Sequence[str], u: Action, x: Scalar, v: Scalar, numbers: Iterator[Scalar]) -> Action:
    """The sum of all parts at a freedom."""
    total = None
    for kind in kinds:
        function, names = KINDS[kind]
        own = [next(numbers) for _ in names]
        if kind in DRIVE:
            u = function(u, x, v, *own)
        else:
            part = function(x, v, *own)
            total = part if total is None else total.and_(part)
    return u if total is None else u.and_(total)


def passing(kinds: Sequence[str], u: Scalar, x: Scalar, v: Scalar, numbers: Iterator[Scalar]) -> Scalar:
    """The share of a change of the command that passes the limits of the drive: 1 within them."""
    found = Action(u, 1.0)
    for kind in kinds:
        function, names = KINDS[kind]
        own = [next(numbers) for _ in names]
        found = function(found, x, v, *own) if kind in DRIVE else found
    return found.stiffness


@cache
def kernel(kinds: tuple[str, ...], slopes: bool, dtype: str = "float64") -> Any:
    """A ufunc of x, v, u and all numbers of the parts: tau, or the entries of an `Action`; lanes are freedoms."""
    return compile_pointwise(*joint_law(kinds, slopes), dtype)


def joint_law(kinds: tuple[str, ...], slopes: bool) -> tuple[Callable[..., Any], dict[str, tuple[()]]]:
    """A function of the scalars x, v, u and all numbers of the parts, and their names with their shapes."""

    def joint_law(x: Scalar, v: Scalar, u: Scalar, *numbers: Scalar) -> Any:
        found = action(kinds, Action(u), x, v, iter(numbers))
        return list(found) if slopes else found.tau

    names = [f"{kind}{k}_{name}".replace(" ", "_") for k, kind in enumerate(kinds) for name in KINDS[kind][1]]
    return joint_law, dict.fromkeys(("x", "v", "u", *names), ())


def finite(x: Array) -> Array:
    """Limits as numbers that a kernel can compute with."""
    return np.clip(x, -FAR, FAR)


def most(x: Array) -> Array:
    """Limits of drives for a kernel; 0 means no limit, because many programs write 0 for an unknown limit."""
    return np.where(x > 0, finite(x), FAR)
