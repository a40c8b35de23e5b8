"""One published result beside the computed one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Check:
    """Where a paper says what, what torsor finds, and whether they agree (None: look and judge)."""

    where: str
    quantity: str
    published: str
    computed: str
    agrees: bool | None


def numbers(where: str, quantity: str, published: ArrayLike, computed: ArrayLike, within: ArrayLike) -> Check:
    """A few numbers, each within so much of the published one."""
    a, b = np.asarray(published, dtype=np.float64), np.asarray(computed, dtype=np.float64)
    return Check(where, quantity, _words(a), _words(b), bool((np.abs(a - b) <= within).all()))


def matrix(where: str, quantity: str, published: ArrayLike, computed: ArrayLike, within: ArrayLike) -> Check:
    """A table of numbers; said is how many of them are met."""
    a, b = np.asarray(published, dtype=np.float64), np.asarray(computed, dtype=np.float64)
    met = int((np.abs(a - b) <= within).sum())
    worst = np.abs(a - b).max()
    return Check(where, quantity, f"{a.size} entries", f"{met} met, largest difference {worst:.1e}", met == a.size)


def _words(x: NDArray[Any]) -> str:
    return "  ".join(f"{value:.4g}" for value in x.ravel())


def identity(where: str, quantity: str, one: ArrayLike, other: ArrayLike, within: float = 1e-11) -> Check:
    """Two ways to the same result, for what a paper proves and prints no numbers of."""
    a, b = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    apart = float(np.abs(a - b).max() / np.abs(b).max())
    return Check(where, quantity, "equal", f"{apart:.0e} apart, relative", apart <= within)
