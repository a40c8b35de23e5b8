"""Stop conditions: a trajectory ends, or is reset, when a coordinate, a velocity or a frame leaves its bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms.kinematics import body_poses
from torsor.backends.pointwise import compile_pointwise
from torsor.compiler.frames import framed
from torsor.compiler.members import Members
from torsor.compiler.store import store
from torsor.compiler.trace import outputs_on
from torsor.errors import ArgumentError
from torsor.inputs import place_of
from torsor.linalg import Scalar, maximum
from torsor.model.model import Model
from torsor.validate import chosen, integer, number, shown

Array = NDArray[Any]
Scalars = Sequence[Scalar]

AXES = ("x", "y", "z")
MOST_STOPS = 100  # the number of a stop is stored as a byte, together with the other status codes of ensembles


@dataclass(frozen=True)
class Stop:
    """A condition that ends a motion: a coordinate, a velocity or a frame leaves its bounds.

    Give one of `q`, `v` and `frame`, and `below` or `above` or both.

    Parameters
    ----------
    q : int, optional
        The index of a coordinate.
    v : int, optional
        The index of a freedom.
    frame : str or int, optional
        A frame, body or joint by name (a body also by number): the position of its origin along `axis` of the base.
    axis : str, default "z"
        "x", "y" or "z".
    below, above : float, optional
        Stop below or above this value, in rad, m, rad/s or m/s.

    Examples
    --------
    >>> import torsor as ts
    >>> run = ts.simulate(ts.zoo.pendulum(), [1.0], duration=5.0, stop=ts.Stop(q=0, below=0.0))
    >>> print(run.t[-1].round(6))
    0.43665
    """

    q: int | None = None
    v: int | None = None
    frame: str | int | None = None
    axis: str = "z"
    below: float | None = None
    above: float | None = None

    def checked(self, model: Model) -> Stop:
        """Check the condition against a model.

        Parameters
        ----------
        model : Model
            The machine.

        Returns
        -------
        stop : Stop
            The same condition with plain numbers.

        Raises
        ------
        ArgumentError
            The machine has no such coordinate, freedom or frame, or there are no bounds.
        """
        given = [name for name in ("q", "v", "frame") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ArgumentError(f"a Stop needs one of q, v and frame, not {' and '.join(given) or 'none'}")
        for name, size in (("q", model.nq), ("v", model.nv)):
            if name in given and integer(f"{name} of a Stop", getattr(self, name), least=0) >= size:
                raise ArgumentError(f"{name} = {getattr(self, name)} of a Stop: {model!r} has {size} of them")
        if "frame" in given and model.frame(self.frame).body < 0:
            raise ArgumentError(f"frame = {shown(self.frame)} of a Stop is on the base, which does not move")
        chosen("axis", self.axis, AXES)
        bounds = [(name, getattr(self, name)) for name in ("below", "above")]
        found: dict[str, Any] = {name: number(f"{name} of a Stop", x) for name, x in bounds if x is not None}
        if not found or [*found.values()] != sorted(found.values()):
            raise ArgumentError(f"a Stop needs below or above, and below <= above, not {self.below} and {self.above}")
        return replace(self, **found)

    def excess(self, q: Scalars, v: Scalars, poses: Callable[[], Any], model: Model) -> Scalar:
        """Compute how far the quantity is out of its bounds, over any scalar.

        Parameters
        ----------
        q : sequence of scalars
            The configuration.
        v : sequence of scalars
            The velocities.
        poses : callable
            Returns the poses of all bodies.
        model : Model
            The machine.

        Returns
        -------
        x : scalar
            Positive outside of the bounds.
        """
        if self.frame is not None:
            body, _, p = model.frame(self.frame)
            row, T = AXES.index(self.axis), poses()
            x = T["out", body, row, 3]
            for k, offset in enumerate(p.tolist()):
                x = x + T["out", body, row, k] * offset
        else:
            x = q[self.q] if self.q is not None else v[self.v or 0]
        sides = [] if self.below is None else [self.below - x]
        sides += [] if self.above is None else [x - self.above]
        return sides[0] if len(sides) == 1 else maximum(*sides)


def stops_of(stop: Any, model: Model) -> tuple[Stop, ...]:
    """A tuple of one or several stops, checked."""
    several = (stop,) if isinstance(stop, Stop) else stop
    if not isinstance(several, list | tuple) or not all(isinstance(x, Stop) for x in several) or not several:
        raise ArgumentError(f"stop must be a Stop, or several, not {shown(stop)}")
    if len(several) > MOST_STOPS:
        raise ArgumentError(f"there are {len(several)} stops; {MOST_STOPS} can be told apart")
    return tuple(x.checked(model) for x in several)


def stop_inputs(model: Model, found: Members | None) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs of stops."""
    return {name: place_of(name).shape(model) for name in ("q", "v", *(found.inputs if found else ()))}


def outside(model: Model, stops: Sequence[Stop], found: Members | None) -> Callable[..., list[Scalar]]:
    """A function of lists, one per input of `stop_inputs`: how far each stop is exceeded."""

    def excesses(q: Scalars, v: Scalars, *numbers: Any) -> list[Scalar]:
        given = dict(zip(stop_inputs(model, found), (q, v, *numbers)))
        frames = found.frames if found else framed(model)

        def poses() -> Any:
            return outputs_on(body_poses, frames, {name: x for name, x in given.items() if name != "v"})

        return [stop.excess(q, v, poses, model) for stop in stops]

    return excesses


class Watch:
    """The stops of some trajectories.

    frozen   (m,) whether a trajectory has stopped and no longer moves
    first    (m,) the number of steps before the first stop, or -1
    reason   (m,) the number of the stop, from 1; if trajectories are reset, the last one since `reasons` was called
    """

    def __init__(self, program: Any, numbers: Sequence[Array], like: Array, reset: Array | None) -> None:
        """`like`: an array of these trajectories, (m, ...)."""
        self.program, self.numbers, self.reset, m = program, numbers, reset, len(like)
        self.frozen, self.reason = (np.zeros_like(like, kind, shape=m) for kind in (bool, np.int8))
        self.first = np.full_like(like, -1, int, shape=m)

    def outside(self, path: Array, nq: int) -> Array:
        """Which states (m, k, n) of moving trajectories are out of bounds, per stop: (m, k, stops).

        If trajectories are reset, the result ends with the first state at which one of them is.
        """
        with np.errstate(invalid="ignore"):
            excess: Array = self.program(path[..., :nq], path[..., nq:], *(x[:, None] for x in self.numbers))
        gone: Array = excess > 0
        gone &= ~self.frozen[:, None, None]
        steps = np.flatnonzero(gone.any(axis=(0, 2)))
        return gone if self.reset is None or not len(steps) else gone[:, : int(steps[0]) + 1]

    def stop(self, path: Array, gone: Array, done: int) -> None:
        """Freeze or reset trajectories that are out of bounds, in a path whose first state is after `done` steps."""
        left: Any = gone.any(axis=-1)
        rows = np.flatnonzero(left.any(axis=1))
        if not len(rows):
            return
        k = left[rows].argmax(axis=1)
        self.reason[rows] = 1 + gone[rows, k].argmax(axis=1)
        self.first[rows] = np.where(self.first[rows] < 0, done + k, self.first[rows])
        if self.reset is None:
            self.frozen[rows] = True
            stays = np.minimum(np.arange(path.shape[1], like=k), k[:, None])
            path[rows] = path[rows[:, None], stays]
        else:
            path[rows, k] = self.reset[rows]

    def reasons(self, steps: Array) -> Array:
        """The reasons (m, k) of trajectories that have stopped within the numbers of steps (k,), 0 for the others.

        If trajectories are reset, returns the reasons in the first column and clears them.
        """
        if self.reset is None:
            first, steps = self.first[:, None], np.asarray(steps, like=self.first)
            return np.where((first >= 0) & (first <= steps), self.reason[:, None], 0)
        found = np.zeros_like(self.reason, shape=(len(self.reason), len(steps)))
        found[:, 0], self.reason[:] = self.reason, 0
        return found


def watching(model: Model, stops: tuple[Stop, ...], found: Members | None, dtype: str) -> Any:
    """`outside` as a kernel, kept with the model or the structure of a batch."""
    made, key = found.store if found else store(model), ("stops", stops_key(model, stops), dtype)
    return made.once(key, lambda: compile_pointwise(outside(model, stops, found), stop_inputs(model, found), dtype))


def stops_key(model: Model, stops: tuple[Stop, ...]) -> Any:
    """Everything that the code of stops depends on, except the model."""
    frames = (model.frame(stop.frame) for stop in stops if stop.frame is not None)
    return stops, tuple((frame.body, frame.p.tobytes()) for frame in frames)
