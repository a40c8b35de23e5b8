"""The numbers in which rows are computed: doubles, or, for identities, mpmath numbers with any number of digits.

The same functions run on both. Inputs are random binary numbers, which are exact; joints are placed by quarter turns
and rotate about coordinate axes, whose matrices are exact. So differences come from rounding of the last digit, or from
a wrong formula. Derivatives that use differences or complex steps in doubles use differences of order eight in mpmath.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, wraps
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import lie
from torsor.later import Later
from torsor.model.model import Model

mpmath = Later("mpmath", "more digits need mpmath", "mpmath")

Array = NDArray[Any]

GUARD = 20  # guard digits in the computation
LOST = 5  # digits that an identity may lose: condition numbers of the machines here are below 1e5
WEIGHTS = ((4, 5), (-1, 5), (4, 105), (-1, 280))  # of central differences of order eight, as fractions

_digits: ContextVar[int | None] = ContextVar("digits", default=None)


@contextmanager
def digits(count: int) -> Iterator[None]:
    """Compute with `count` digits, and GUARD more."""
    token = _digits.set(count)
    try:
        with mpmath.workdps(count + GUARD):
            yield
    finally:
        _digits.reset(token)


def doubles() -> bool:
    return _digits.get() is None


def once(function: Callable[[], Any]) -> Callable[[], Any]:
    """Cache the result of a function, once for doubles and once for every number of digits."""
    made = cache(lambda count: function())
    return wraps(function)(lambda: made(_digits.get()))


def number(x: float) -> Any:
    """A double as a number of the current kind."""
    return float(x) if doubles() else mpmath.mpf(float(x))


def given(x: ArrayLike) -> Array:
    """Doubles as numbers of the current kind, with the same values."""
    array = np.asarray(x, dtype=np.float64)
    if doubles():
        return array
    return np.array([number(value) for value in array.ravel()], dtype=object).reshape(array.shape)


def radians(degrees: float) -> Any:
    return np.radians(degrees) if doubles() else mpmath.mpf(float(degrees)) * mpmath.pi / 180


def placed(model: Model, seed: int = 0) -> Model:
    """The model; with mpmath, with placements by quarter turns and joints about coordinate axes."""
    return model if doubles() else exactly_placed(model, seed)


def exactly_placed(model: Model, seed: int) -> Model:
    """The model with placements by quarter turns and joints about coordinate axes."""
    rng = np.random.default_rng(seed)
    R = np.zeros((model.n, 3, 3))
    for matrix in R:
        matrix[np.arange(3), rng.permutation(3)] = rng.choice([-1.0, 1.0], 3)
        matrix *= np.sign(np.linalg.det(matrix))
    return replace(model, R=R, axis=np.eye(3)[rng.integers(3, size=model.n)])


def within(usual: float) -> float:
    """The tolerance of an identity."""
    count = _digits.get()
    return usual if count is None else 10.0 ** (LOST - count)


def step(order: int, usual: float) -> Any:
    """The step of differences of an order such that their error is below the required digits."""
    count = _digits.get()
    return usual if count is None else mpmath.mpf(10) ** (-mpmath.mpf(count + LOST) / order)


def jacobian(f: Callable[[Array], Array], x: Array) -> Array:
    """The Jacobian of an analytic function: by complex steps in doubles, by differences in mpmath."""
    units = np.eye(len(x))
    if doubles():
        h = 1e-30
        return np.stack([f(x + 1j * h * unit).imag / h for unit in units], axis=-1)
    return np.stack([_central(lambda t: f(x + t), unit) for unit in units], axis=-1)


def lie_derivative(f: Callable[[Array], Array], A: Array) -> Array:
    """`lie.derivative`."""
    if doubles():
        return lie.derivative(f, A)
    exp, units = (lie.exp_so3, np.eye(3)) if A.shape[-1] == 3 else (lie.exp_se3, np.eye(6))
    return np.stack([_central(lambda t: f(A @ exp(t)), unit) for unit in units], axis=-1)


def _central(f: Callable[[Array], Array], unit: Array) -> Array:
    h: Any = step(8, 0.0) * unit
    weights = [mpmath.mpf(a) / b / step(8, 0.0) for a, b in WEIGHTS]
    total: Any = sum(w * (f(k * h) - f(-k * h)) for k, w in enumerate(weights, start=1))
    return total
