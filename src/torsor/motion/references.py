"""Motions to follow: t -> (q, v, a), for joints with dq/dt = v."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import cos, pi, sin, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.dynamics.inverse_kinematics import inverse_kinematics
from torsor.errors import ArgumentError
from torsor.later import Later
from torsor.model.model import Model
from torsor.validate import number, real_array

Array = NDArray[Any]
interpolate = Later("scipy.interpolate")
Reference = Callable[[float], tuple[Array, Array, Array]]


class _Straight:
    """From q0 to q1 along a straight line, at rest at both ends, before and after.

    A subclass defines the completed share s(t) of the way, with its derivatives.
    """

    q0: Any
    q1: Any
    T: float

    def _ends(self) -> None:
        """Both ends as arrays of one shape."""
        q0, q1 = real_array("q0", self.q0), real_array("q1", self.q1)
        try:
            q0, q1 = np.broadcast_arrays(q0, q1)
        except ValueError:
            raise ArgumentError(f"q0 {q0.shape} and q1 {q1.shape} do not go together") from None
        object.__setattr__(self, "q0", q0)
        object.__setattr__(self, "q1", q1)

    def __call__(self, t: float) -> tuple[Array, Array, Array]:
        q, v, a = self._shares(t)
        change = np.asarray(self.q1) - np.asarray(self.q0)
        return np.asarray(self.q0) + change * q, change * v, change * a

    def rows(self, t: Sequence[float]) -> tuple[Array, Array, Array]:
        """Sample the motion at many times, with the same bits as one by one.

        Parameters
        ----------
        t : (m,) array_like
            Times, in s.

        Returns
        -------
        q : (m, n) ndarray
            Configurations.
        v : (m, n) ndarray
            Velocities, in rad/s and m/s.
        a : (m, n) ndarray
            Accelerations, in rad/s^2 and m/s^2.
        """
        q, v, a = np.array([self._shares(x) for x in t]).T[..., None]
        change = np.asarray(self.q1) - np.asarray(self.q0)
        return np.asarray(self.q0) + change * q, change * v, change * a

    def _shares(self, t: float) -> tuple[float, float, float]:
        """The completed share of the way, and its first two time derivatives."""
        raise NotImplementedError


@dataclass(frozen=True)
class Cycloid(_Straight):
    r"""Go from one configuration to another along a cycloid, whose accelerations begin and end at zero.

    $$ q(t) = q_0 + \frac{q_1 - q_0}{2 \pi} \left(\frac{2 \pi t}{T} - \sin \frac{2 \pi t}{T}\right) $$

    This is Saha 2001, Eq. 18, in general form; the printed one is only for 0 -> pi. Before 0 and after T the machine
    rests at the ends.

    Parameters
    ----------
    q0, q1 : (n,) array_like
        Where it begins and ends, in rad or m.
    T : float
        How long it takes, in s.

    Raises
    ------
    ArgumentError
        The shapes of q0 and q1 do not match, or T is not positive.

    Examples
    --------
    >>> import torsor as ts
    >>> q, v, a = ts.Cycloid([0.0], [1.0], T=2.0)(1.0)
    >>> print(q.round(6), v.round(6), abs(a.round(6)))
    [0.5] [1.] [0.]
    """

    q0: ArrayLike
    q1: ArrayLike
    T: float

    def __post_init__(self) -> None:
        number("T, the time a cycloid takes,", self.T, above=0)
        self._ends()

    def _shares(self, t: float) -> tuple[float, float, float]:
        w = 2 * pi / self.T
        x = w * min(max(t, 0.0), self.T)
        return (x - sin(x)) / (2 * pi), (1 - cos(x)) / self.T, w * sin(x) / self.T


@dataclass(frozen=True)
class MinimumJerk(_Straight):
    r"""Go from one configuration to another with the least jerk: the motion of a hand (Flash & Hogan 1985).

    $$ q(t) = q_0 + (q_1 - q_0) (10 s^3 - 15 s^4 + 6 s^5), \qquad s = t / T $$

    Parameters
    ----------
    q0, q1 : (n,) array_like
        Where it begins and ends, in rad or m.
    T : float
        How long it takes, in s.

    Raises
    ------
    ArgumentError
        The shapes of q0 and q1 do not match, or T is not positive.

    Examples
    --------
    >>> import torsor as ts
    >>> q, v, a = ts.MinimumJerk([0.0], [1.0], T=2.0)(1.0)
    >>> print(q, v, a)
    [0.5] [0.9375] [0.]
    """

    q0: ArrayLike
    q1: ArrayLike
    T: float

    def __post_init__(self) -> None:
        number("T, the time a motion takes,", self.T, above=0)
        self._ends()

    def _shares(self, t: float) -> tuple[float, float, float]:
        s = min(max(t / self.T, 0.0), 1.0)
        share = s**3 * (10 - 15 * s + 6 * s * s)
        return share, 30 * (s * (1 - s)) ** 2 / self.T, 60 * s * (1 - s) * (1 - 2 * s) / self.T**2


@dataclass(frozen=True)
class Trapezoid(_Straight):
    """Go from one configuration to another as fast as speeds and accelerations allow, with all joints synchronised.

    The speed rises linearly, is constant, and falls linearly. The joint that needs longest sets the time `T`.

    Parameters
    ----------
    q0, q1 : (n,) array_like
        Where it begins and ends, in rad or m.
    speed, acceleration : float or (n,) array_like
        The limits per joint, in rad/s and rad/s^2, or m/s and m/s^2.

    Attributes
    ----------
    T : float
        How long it takes, in s.

    Raises
    ------
    ArgumentError
        The shapes do not match, or a speed or an acceleration is not positive.

    Examples
    --------
    >>> import torsor as ts
    >>> move = ts.Trapezoid([0.0, 0.0], [1.0, 2.0], speed=1.0, acceleration=2.0)
    >>> move.T
    2.5
    >>> print(*move(1.25))
    [0.5 1. ] [0.5 1. ] [0. 0.]
    """

    q0: ArrayLike
    q1: ArrayLike
    speed: ArrayLike
    acceleration: ArrayLike

    def __post_init__(self) -> None:
        self._ends()
        for name in ("speed", "acceleration"):
            limit = real_array(name, getattr(self, name))
            if limit.shape not in ((), np.shape(self.q0)) or not (limit > 0).all():
                raise ArgumentError(f"{name} must be positive, one number or {np.shape(self.q0)}, not {limit}")

    @cached_property
    def _limits(self) -> tuple[float, float]:
        """The largest first and second time derivatives of the share."""
        change = np.abs(np.asarray(self.q1) - np.asarray(self.q0)).ravel()
        moving = change > 0
        if not moving.any():
            return 1.0, np.inf
        limits = (np.broadcast_to(x, np.shape(self.q0)).ravel() for x in (self.speed, self.acceleration))
        rate, growth = (float((x[moving] / change[moving]).min()) for x in limits)
        return min(rate, sqrt(growth)), growth

    @cached_property
    def T(self) -> float:  # type: ignore[override]
        """How long the motion takes, in s."""
        rate, growth = self._limits
        return 0.0 if growth == np.inf else 1 / rate + rate / growth

    def _shares(self, t: float) -> tuple[float, float, float]:
        rate, growth = self._limits
        if t >= self.T or t <= 0:
            return (1.0, 0.0, 0.0) if t >= self.T else (0.0, 0.0, 0.0)
        rise, left = rate / growth, self.T - t
        if t < rise:
            return growth * t * t / 2, growth * t, growth
        if left < rise:
            return 1 - growth * left * left / 2, growth * left, -growth
        return rate * (t - rise / 2), rate, 0.0


@dataclass(frozen=True, eq=False)
class Spline:
    """Go through configurations at given times along a cubic spline, at rest at both ends.

    Velocities and accelerations are continuous. Before and after, the machine rests at the ends.

    Parameters
    ----------
    t : (m,) array_like
        Increasing times in s.
    q : (m, n) array_like
        The configurations, in rad or m.

    Raises
    ------
    ArgumentError
        The times do not increase, or there is not one configuration per time.

    Examples
    --------
    >>> import torsor as ts
    >>> path = ts.Spline([0.0, 1.0, 2.0], [[0.0], [1.0], [0.0]])
    >>> q, v, a = path(1.0)
    >>> print(q, abs(v), a)
    [1.] [0.] [-6.]
    """

    t: ArrayLike
    q: ArrayLike

    def __post_init__(self) -> None:
        t, q = real_array("t", self.t), real_array("q", self.q)
        if t.ndim != 1 or len(t) < 2 or not (np.diff(t) > 0).all() or q.ndim != 2 or len(q) != len(t):
            raise ArgumentError(f"a Spline needs increasing times t (m,) and q (m, n), m > 1, not {t.shape}, {q.shape}")
        object.__setattr__(self, "t", t)
        object.__setattr__(self, "q", q)

    @classmethod
    def through_poses(cls, model: Model, frame: str | int, t: ArrayLike, targets: ArrayLike,
                      q0: ArrayLike | None = None) -> Spline:  # fmt: skip
        """Go through poses of a frame, by inverse kinematics; each search starts from the solution before.

        Parameters
        ----------
        model : Model
            The machine.
        frame : str or int
            The frame or body that goes through the poses.
        t : (m,) array_like
            Increasing times in s.
        targets : (m, 4, 4) or (m, 3) array_like
            Poses in the base frame, or positions, which leave the orientation free.
        q0 : (nq,) array_like, optional
            The configuration at which the first search starts.

        Returns
        -------
        path : Spline
            The motion.

        Raises
        ------
        ArgumentError
            A pose cannot be reached.
        """
        found: list[Array] = []
        for k, target in enumerate(real_array("targets", targets)):
            solution = inverse_kinematics(model, frame, target, found[-1] if found else q0)
            if not solution.solved:
                raise ArgumentError(f"target {k} cannot be reached: the best configuration misses {solution.error:.2g}")
            found.append(solution.q)
        return cls(t, found)

    @cached_property
    def _spline(self) -> Any:
        return interpolate.CubicSpline(np.asarray(self.t), np.asarray(self.q), bc_type="clamped")

    def __call__(self, t: float) -> tuple[Array, Array, Array]:
        q, v, a = self.rows([t])
        return q[0], v[0], a[0]

    def rows(self, t: Sequence[float]) -> tuple[Array, Array, Array]:
        """Sample the motion at many times.

        Parameters
        ----------
        t : (m,) array_like
            Times, in s.

        Returns
        -------
        q : (m, n) ndarray
            Configurations.
        v : (m, n) ndarray
            Velocities, in rad/s and m/s.
        a : (m, n) ndarray
            Accelerations, in rad/s^2 and m/s^2.
        """
        times, ends = np.asarray(t, float), np.asarray(self.t)
        inside = np.clip(times, ends[0], ends[-1])
        still = ((times < ends[0]) | (times > ends[-1]))[:, None]
        v, a = (np.where(still, 0.0, self._spline(inside, k)) for k in (1, 2))
        return self._spline(inside), v, a
