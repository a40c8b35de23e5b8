"""Motions to follow: t -> (q, v, a)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import cos, pi, sin
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.errors import ArgumentError
from torsor.validate import number, real_array

Array = NDArray[Any]
Reference = Callable[[float], tuple[Array, Array, Array]]


@dataclass(frozen=True)
class Cycloid:
    """From q0 to q1 in the time T, at rest at both ends, and held there before and after.

    q(t) = q0 + (q1 - q0) / (2 pi) (2 pi t/T - sin(2 pi t/T))

    This is Saha 2001, Eq. 18, in general form; the printed one holds for 0 -> pi only.
    """

    q0: ArrayLike
    q1: ArrayLike
    T: float

    def __post_init__(self) -> None:
        q0, q1 = real_array("q0", self.q0), real_array("q1", self.q1)
        try:
            q0, q1 = np.broadcast_arrays(q0, q1)
        except ValueError:
            raise ArgumentError(f"q0 {q0.shape} and q1 {q1.shape} do not go together") from None
        number("T, the time a cycloid takes,", self.T, above=0)
        object.__setattr__(self, "q0", q0)
        object.__setattr__(self, "q1", q1)

    def __call__(self, t: float) -> tuple[Array, Array, Array]:
        q, v, a = self._shares(t)
        change = np.asarray(self.q1) - np.asarray(self.q0)
        return np.asarray(self.q0) + change * q, change * v, change * a

    def rows(self, t: Sequence[float]) -> tuple[Array, Array, Array]:
        """q, v and a at many times, a row each, with the same bits."""
        q, v, a = np.array([self._shares(x) for x in t]).T[..., None]
        change = np.asarray(self.q1) - np.asarray(self.q0)
        return np.asarray(self.q0) + change * q, change * v, change * a

    def _shares(self, t: float) -> tuple[float, float, float]:
        """Of the change: how much has been made, its velocity and its acceleration."""
        w = 2 * pi / self.T
        x = w * min(max(t, 0.0), self.T)
        return (x - sin(x)) / (2 * pi), (1 - cos(x)) / self.T, w * sin(x) / self.T
