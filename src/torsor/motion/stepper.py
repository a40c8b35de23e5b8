"""The interface of every integrator: it takes one step, interpolates within it, and can be resumed."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.errors import ArgumentError, SingularError, TorsorError
from torsor.motion.hermite import interpolate
from torsor.motion.motion import Motion
from torsor.validate import number, parameter

Array = NDArray[Any]
Memory = dict[str, Array]
STEADY = 1.2  # a step that could grow by less than this keeps its length, if that is cheaper


class StiffnessWarning(UserWarning):
    """An explicit method takes short steps only to stay stable."""


@dataclass(frozen=True)
class Settings:
    """The accuracy of an integrator. Adaptive methods use the tolerances, fixed-step methods use `step`.

    rtol, atol: the error allowed per step is atol + rtol |value| for each q and v. They are one number for all, or one
    per freedom (nv,), used for its position and its velocity. `max_step` bounds adaptive steps.
    """

    rtol: ArrayLike = 1e-6
    atol: ArrayLike = 1e-9
    step: float | None = None
    max_step: float = float("inf")

    def __post_init__(self) -> None:
        parameter("rtol", self.rtol)
        parameter("atol", self.atol)
        if self.step is not None:
            object.__setattr__(self, "step", number("step", self.step, above=0))
        object.__setattr__(self, "max_step", number("max_step", self.max_step, above=0, infinite=True))


class Stepper:
    """The state of an integrator: the last row (q, v, a), reached at time t, and the row before."""

    adaptive: ClassVar[bool] = True
    order: ClassVar[int]
    points: ClassVar[int | None] = None  # how many determine `between`; None: the quintic of the rows at both ends

    jump: float = float("inf")  # the next time at which commands jump; a step that ends there uses those before it
    t: float
    t_old: float
    row: Array
    row_old: Array
    h: float  # the next step

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        self.motion, self.settings = motion, settings
        self.t = self.t_old = t
        self.evaluations = 1
        self.nq, self.nv = motion.model.nq, motion.model.nv
        self.row = np.concatenate([q, v, motion.checked(t, q, v)])
        self.row_old = self.row.copy()

    def step(self, t_end: float) -> None:
        """Take one step that ends at t_end at the latest."""
        raise NotImplementedError

    every_row: bool = True  # whether every row is kept; otherwise only `complete` computes accelerations

    def complete(self) -> None:
        """Compute the acceleration of the last row, if it was left out."""
        if not self.every_row:
            self.motion.accelerate(self.t, self.q, self.v, self.a)

    def restart(self) -> None:
        """Restart from the last row, at which forces have jumped."""
        self.motion.accelerate(self.t, self.q, self.v, self.a)
        self.evaluations += 1

    def before_jump(self, t: float) -> float:
        """A time of the step, limited to just before the next jump."""
        return t if t < self.jump else float(np.nextafter(self.jump, -np.inf))

    @property
    def stiff(self) -> bool:
        """Whether only stability limits the steps; explicit methods detect this."""
        return False

    def between(self, t: Array) -> tuple[Array, Array]:
        """q, v (m, ...) at times t (m,) on the last step."""
        return interpolate(self.motion.coordinates, self.t_old, self.row_old, self.t, self.row, t)

    def memory(self) -> Memory:
        """Everything that the next step depends on, as arrays of floats."""
        return {"t": np.array([self.t]), "row": self.row.copy()}

    def recall(self, memory: Memory) -> None:
        """Restore the integrator from its memory."""
        self.t = self.t_old = float(memory["t"][0])
        self.row[:] = self.row_old[:] = self.motion.place(memory["row"])

    def acceleration(self, t: float, q: Array, v: Array) -> Array:
        """a(t, q, v), finite or not."""
        self.evaluations += 1
        a = np.empty_like(v)
        self.motion.accelerate(self.before_jump(t), q, v, a)
        return a

    def rate(self, y: Array, a: Array) -> Array:
        """dy/dt for y = (q, v)."""
        return np.concatenate([self.motion.coordinates.rate(y[: self.nq], y[self.nq :]), a])

    @property
    def q(self) -> Array:
        return self.row[: self.nq]

    @property
    def v(self) -> Array:
        return self.row[self.nq : self.nq + self.nv]

    @property
    def a(self) -> Array:
        return self.row[self.nq + self.nv :]


class Control(NamedTuple):
    """The step size control: the next step is the last one times a factor from its error, which is O(h^power)."""

    power: float
    safety: float = 0.9
    shrink: float = 0.2
    grow: float = 5.0

    def factor(self, error: float) -> float:
        """The factor from the norm of the error: 1 at the limit, infinite or NaN if the state is not finite."""
        if not error < np.inf:
            return self.shrink
        return min(self.grow, max(self.shrink, self.safety * max(error, 1e-10) ** (-1 / self.power)))

    def factors(self, error: Array) -> Array:
        """`factor` for many errors."""
        factor = np.clip(self.safety * np.maximum(error, 1e-10) ** (-1 / self.power), self.shrink, self.grow)
        return np.where(np.isfinite(error), factor, self.shrink)


class Adaptive(Stepper):
    """Steps whose length follows from an error estimate."""

    control: ClassVar[Control]
    rejected = False  # whether a longer step from here was tried before

    @property
    def steady(self) -> bool:
        """Whether steps of the same length are cheaper."""
        return False

    def _try(self, h: float) -> float:
        """Compute a step; return the norm of its error, infinite if the step failed."""
        raise NotImplementedError

    def _take(self, t: float, h: float) -> None:
        """Accept the step that was tried last, of length h, to t."""
        raise NotImplementedError

    def step(self, t_end: float) -> None:
        t, h, self.rejected = self.t, min(self.h, self.settings.max_step), False
        shortest = shortest_step(t)
        while True:
            clipped = t + h >= t_end
            h_now = t_end - t if clipped else h
            error = self._try(h_now)
            if error < 1:
                break
            h = h_now * min(self.control.safety, self.control.factor(error))
            self.rejected = True
            if h < shortest:
                raise no_step(self.t)
        self._take(t_end if clipped else t + h_now, h_now)
        grow = self.growth(error)
        grow = 1.0 if self.steady and 1 <= grow < STEADY else grow
        proposal = h_now * (min(1.0, grow) if self.rejected else grow)
        # a step that is cut short at t_end is no reason to shorten the planned step
        self.h = max(h, proposal) if clipped and not self.rejected else proposal

    def growth(self, error: float) -> float:
        """The factor of the next step, after an accepted step with this error."""
        return self.control.factor(error)


class FixedStep(Stepper):
    """Steps of one length h; the last one before t_end may be shorter."""

    adaptive = False

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        if settings.step is None:
            raise ArgumentError("this method takes fixed steps: give step=..., in seconds")
        super().__init__(motion, t, q, v, settings)
        self.h, self.start, self.count = settings.step, t, 0

    def step(self, t_end: float) -> None:
        h = self.h
        # t = start + count h, not a running sum: a million roundings would shift the phase
        t = self.start + (self.count + 1) * h
        if t >= t_end - 1e-9 * h:
            t = t_end
        np.copyto(self.row_old, self.row)
        self.t_old = self.t
        try:
            self.advance(t - self.t)
            if not self.row.dot(self.row) < np.inf:  # faster than testing every number
                raise SingularError(f"the motion has no finite state after t = {self.t:.6g}: take smaller steps")
        except TorsorError:
            np.copyto(self.row, self.row_old)  # the last row is the last state that was reached
            raise
        self.t, self.count = t, self.count + 1

    def advance(self, h: float) -> None:
        """Move row from t to t + h."""
        raise NotImplementedError

    def memory(self) -> Memory:
        return super().memory() | {"clock": np.array([self.start, self.count])}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.start, self.count = float(memory["clock"][0]), int(memory["clock"][1])


class ErrorScale:
    """The allowed errors per step, atol + rtol |y|, and the norm of errors: root mean square, 1 at the limit."""

    def __init__(self, motion: Motion, settings: Settings) -> None:
        spread = (_spread(motion, name, getattr(settings, name)) for name in ("rtol", "atol"))
        self.rtol, self.atol = map(motion.place, spread)
        self._scale, self._other = np.empty_like(self.rtol), np.empty_like(self.rtol)

    def __call__(self, y: Array, y_new: Array) -> Array:
        """atol + rtol max(|y|, |y_new|); the next call overwrites the result."""
        scale, other = self._scale, self._other
        np.abs(y, scale)
        np.abs(y_new, other)
        np.maximum(scale, other, out=scale)
        np.multiply(scale, self.rtol, scale)
        return np.add(scale, self.atol, scale)

    def norm(self, error: Array, y: Array) -> float:
        ratio = error / self(y, y)
        return sqrt(ratio.dot(ratio) / len(ratio))

    def first_step(self, motion: Motion, t: float, row: Array, order: int) -> float:
        """A safe first step from the sizes of y, y' and y'' (Hairer et al., Solving ODEs I, II.4)."""
        c = motion.coordinates
        q, v, a = np.split(row, [c.nq, c.nq + c.nv])
        y, f = row[: c.nq + c.nv], np.concatenate([c.rate(q, v), a])
        size, slope = self.norm(y, y), self.norm(f, y)
        h0 = 1e-6 if min(size, slope) < 1e-5 else 0.01 * size / slope
        if not h0 > 0:
            raise no_first_step(t)
        q1, v1 = (y + h0 * f)[: c.nq], (y + h0 * f)[c.nq :]
        f1 = np.concatenate([c.rate(q1, v1), motion.checked(t + h0, q1, v1)])
        bend = self.norm(f1 - f, y) / h0
        largest = max(slope, bend)
        h1 = max(1e-6, h0 * 1e-3) if largest <= 1e-15 else (0.01 / largest) ** (1 / (order + 1))
        if not h1 > 0:
            raise no_first_step(t)
        return min(100 * h0, h1)


def _spread(motion: Motion, name: str, tolerance: ArrayLike) -> Array:
    """A tolerance for each entry of y = (q, v)."""
    x = parameter(name, tolerance, motion.model.nv)
    if not (x >= 0).all():
        raise ArgumentError(f"{name} must not be negative; it holds {x.min():g}")
    if name == "rtol" and (x < 1e-14).any():
        raise ArgumentError(f"rtol = {x.min():g} is below what double precision can hold; use 1e-13 or more")
    x = np.broadcast_to(x, motion.model.nv)
    return np.concatenate([x[motion.coordinates.velocity_of], x])


def shortest_step(t: float) -> float:
    """The step length below which t + h hardly differs from t."""
    return float(16 * np.spacing(abs(t))) if t else 1e-300


def no_first_step(t: float) -> SingularError:
    """The error for a first state whose numbers exceed the range of doubles."""
    return SingularError(
        f"the motion overflows at its beginning, t = {t:.9g}: q0, v0 or the forces are too large, or atol is too small"
    )


def no_step(t: float, blamed: str = "") -> SingularError:
    """The error if no step is small enough."""
    joint = f" ({blamed} moves quickest)" if blamed else ""
    return SingularError(
        f"the step shrinks to nothing at t = {t:.9g}{joint}: the motion is singular there, or stiff (use "
        "method='esdirk4' or 'radau')"
    )
