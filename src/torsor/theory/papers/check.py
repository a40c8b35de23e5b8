"""A published result and the computed one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Check:
    """What a paper states and where, what torsor computes, and whether they agree (None: the reader judges)."""

    where: str
    quantity: str
    published: str
    computed: str
    agrees: bool | None


def numbers(where: str, quantity: str, published: ArrayLike, computed: ArrayLike, within: ArrayLike) -> Check:
    """A few numbers; each must be within a tolerance of the published one."""
    a, b = np.asarray(published, dtype=np.float64), np.asarray(computed, dtype=np.float64)
    return Check(where, quantity, _words(a), _words(b), bool((np.abs(a - b) <= within).all()))


def matrix(where: str, quantity: str, published: ArrayLike, computed: ArrayLike, within: ArrayLike) -> Check:
    """A table of numbers; the check reports how many of them agree."""
    a, b = np.asarray(published, dtype=np.float64), np.asarray(computed, dtype=np.float64)
    met = int((np.abs(a - b) <= within).sum())
    worst = np.abs(a - b).max()
    return Check(where, quantity, f"{a.size} entries", f"{met} met, largest difference {worst:.1e}", met == a.size)


def _words(x: NDArray[Any]) -> str:
    return "  ".join(f"{value:.4g}" for value in x.ravel())


def identity(where: str, quantity: str, one: ArrayLike, other: ArrayLike, within: float = 1e-11) -> Check:
    """Two ways to compute the same result, where a paper gives a proof but no numbers."""
    a, b = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    apart = float(np.abs(a - b).max() / np.abs(b).max())
    return Check(where, quantity, "equal", f"{apart:.0e} apart, relative", apart <= within)
