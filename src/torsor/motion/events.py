"""Events that end a motion: functions of the state and `Stop` conditions, checked within every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.dynamics.functions import body_poses
from torsor.errors import ArgumentError
from torsor.model.model import Model
from torsor.motion.dense import lobatto
from torsor.motion.stepper import Stepper
from torsor.motion.stops import Stop, stops_of
from torsor.validate import number, shown

Array = NDArray[Any]
Event = Callable[[float, Array, Array], float]

POINTS = 8  # parts of a step that are searched for events: a change of sign, or a turning point that reaches zero
PARABOLAS, NEAR = 12, 1e-6  # the most per turning point; the change at which they end, relative to their width
HALVINGS = 60  # of the part of a step with an event: down to rounding


def event_of(stop: Any, model: Model) -> Event:
    """The conditions of `run` as one function of t, q, v, whose first zero ends the run."""
    if callable(stop) and not isinstance(stop, Stop):
        return lambda t, q, v: number("what stop(t, q, v) gives", stop(t, *map(read_only, (q, v))), infinite=True)
    several = stop if isinstance(stop, list | tuple) else [stop]
    functions = [x for x in several if callable(x) and not isinstance(x, Stop)]
    if functions:
        raise ArgumentError(f"stop must be one function of t, q, v, or Stop conditions, not {shown(stop)}")
    stops = stops_of(stop, model)

    def excess(t: float, q: Array, v: Array) -> float:
        """How far the state is out of bounds: negative if it is within all of them."""

        def poses() -> Any:
            return _Entries(body_poses(model, q))

        given: Any = (q, v, poses, model)
        return max(float(np.asarray(x.excess(*given))) for x in stops)

    excess.bounds = True  # type: ignore[attr-defined]
    return excess


def read_only(x: Array) -> Array:
    """A view that a caller's function cannot write to, if the state is on the host."""
    if type(x) is not np.ndarray:
        return x
    view = x.view()
    view.flags.writeable = False
    return view


class _Entries:
    """The entries of poses under the names that they have on a tape."""

    def __init__(self, poses: Array) -> None:
        self.poses = poses

    def __getitem__(self, name: tuple[Any, ...]) -> float:
        return float(self.poses[name[1:]])


def first_zero(event: Event, stepper: Stepper, before: float | None) -> tuple[float | None, float]:
    """The time of the first zero of an event within the last step, or None; and the event's value at the step's end."""

    def value(t: float) -> float:
        q, v = stepper.between(np.array([t]))
        return event(t, q[0], v[0])

    begin, end = stepper.t_old, stepper.t
    last = event(end, stepper.q, stepper.v)
    inside = (begin + (end - begin) * lobatto(POINTS + 1)[1:-1]).tolist()
    points = [(begin, before), *((t, value(t)) for t in inside), (end, last)]
    for k, (b, fb) in enumerate(points[1:], 1):
        a, fa = points[k - 1]
        if fa is None or fb is None or fa == 0:
            continue
        if fb != 0 and (fa < 0) == (fb < 0):
            if k == POINTS or (turn := _beyond(value, points[k - 1 : k + 2])) is None:
                continue
            b = turn
        return (b if fb == 0 else _halved(value, a, fa, b)), last
    return None, last


def _beyond(value: Callable[[float], float], points: Sequence[tuple[float, Any]]) -> float | None:
    """A time near the middle of three points where the value has the other sign, if it turns there; by parabolas."""
    (a, fa), (b, fb), (c, fc) = points
    if fc == 0 or (fb < 0) != (fc < 0):
        return None  # the next two points have the zero between them
    for _ in range(PARABOLAS):
        if abs(fb) > min(abs(fa), abs(fc)):
            return None
        left, right = (b - a) * (fb - fc), (b - c) * (fb - fa)
        t = b - ((b - a) * left - (b - c) * right) / (2 * (left - right)) if left != right else b
        if not a < t < c or abs(t - b) < NEAR * (c - a):
            return None
        f = value(t)
        if f == 0 or (f < 0) != (fb < 0):
            return t
        if abs(f) < abs(fb):
            (a, fa), (c, fc) = ((a, fa), (b, fb)) if t < b else ((b, fb), (c, fc))
            b, fb = t, f
        else:
            (a, fa), (c, fc) = ((t, f), (c, fc)) if t < b else ((a, fa), (t, f))
    return None


def _halved(value: Callable[[float], float], a: float, fa: float, b: float) -> float:
    """A time just after the change of sign between a and b, by bisection."""
    for _ in range(HALVINGS):
        middle = (a + b) / 2
        if not a < middle < b:
            break
        f = value(middle)
        if f == 0:
            return middle
        a, b = (middle, b) if (f < 0) == (fa < 0) else (a, middle)
    return b
