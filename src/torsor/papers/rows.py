"""The rows of `torsor papers`: the printed value, torsor's value, their difference, and the verdict.

"Printed" means printed in the paper. A row holds as long as its verdict is true: numbers still agree, a misprint is
still wrong as printed and right as corrected, a conflict is still a conflict. Times are shown but not judged, because
they depend on the load of the computer. Operation counts are judged instead.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.dense import numbers_like
from torsor.papers import arithmetic

AGREES, MISPRINT, CONFLICTS, OURS = "agrees", "misprint, corrected form", "conflicts", "not printed, ours"
ALONE = "agrees, the paper alone"  # one printed number follows from others, without torsor
TIMED = "timed, not judged"
FAILED = "not computed"
VERDICTS = (AGREES, ALONE, MISPRINT, CONFLICTS, OURS, TIMED, FAILED)

# Relative: dense algebra in double precision on machines of a dozen bodies.
IDENTITY = 1e-11
# Relative: a printed form with at least this error is wrong, not rounded.
WRONG = 1e-6


@dataclass(frozen=True)
class Row:
    """One result: its place in the paper, the values, and whether the verdict is true (`holds`)."""

    place: str
    quantity: str
    printed: str
    computed: str
    difference: str
    verdict: str
    holds: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", bool(self.holds))  # JSON has no NumPy booleans


Part = Callable[[], Iterator[Row]]  # the rows of one part of a paper, which share their numbers


def every_row(parts: Sequence[Part]) -> Iterator[Row]:
    """The rows of all parts. If a part fails, its exception becomes a row, and the other parts continue."""
    for part in parts:
        try:
            yield from part()
        except Exception as error:
            name = getattr(part, "__name__", "").strip("_").replace("_", " ")
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            yield Row(name, "the other rows of this part", "-", words, "", FAILED, holds=False)


def timed(place: str, quantity: str, printed: str, computed: str, difference: str = "") -> Row:
    """A time, or a result derived from times."""
    return Row(place, quantity, printed, computed, difference, TIMED)


def numbers(place: str, quantity: str, printed: ArrayLike, computed: ArrayLike, within: ArrayLike) -> Row:
    """A few printed numbers; each must agree within a tolerance."""
    a, b = _arrays(printed, computed)
    met = bool((np.abs(a - b) <= within).all())
    return Row(place, quantity, words(a), words(b), f"{np.abs(a - b).max():.1e}", AGREES, met)


def table(place: str, quantity: str, printed: ArrayLike, computed: ArrayLike, within: ArrayLike) -> Row:
    """Many printed numbers; the row reports how many agree."""
    a, b = _arrays(printed, computed)
    apart = np.abs(a - b)
    met = int((apart <= within).sum())
    return Row(place, quantity, f"{a.size} entries", f"{met} met", f"{apart.max():.1e}", AGREES, met == a.size)


def identity(place: str, quantity: str, one: ArrayLike, other: ArrayLike, within: float = IDENTITY) -> Row:
    """An equation that the paper proves, evaluated: both sides must be equal."""
    apart, within = relative(one, other), arithmetic.within(within)
    return Row(place, quantity, "equal", "equal" if apart <= within else "not equal", f"{apart:.0e}", AGREES,
               apart <= within)  # fmt: skip


def misprint(place: str, printed: str, corrected: str, as_printed: ArrayLike, as_corrected: ArrayLike,
             expected: ArrayLike, within: float = IDENTITY) -> Row:  # fmt: skip
    """A printed form that does not hold and one that does; both are compared with the expected result."""
    wrong, right, within = relative(as_printed, expected), relative(as_corrected, expected), arithmetic.within(within)
    difference = f"{wrong:.0e} as printed, {right:.0e} corrected"
    holds = right <= within and not wrong <= WRONG
    return Row(place, "as printed, and corrected", printed, corrected, difference, MISPRINT, holds)


def ours(place: str, quantity: str, computed: ArrayLike, independent: ArrayLike, within: ArrayLike) -> Row:
    """Numbers that the paper does not print, compared with those of an independent program."""
    a, b = _arrays(independent, computed)
    met = bool((np.abs(a - b) <= within).all())
    return Row(place, quantity, "-", words(b), f"{np.abs(a - b).max():.1e} to another program", OURS, met)


def relative(one: ArrayLike, other: ArrayLike) -> float:
    """max |one - other| relative to the largest entry of the other."""
    a, b = _arrays(one, other)
    return float(np.abs(a - b).max() / np.abs(b).max())


def as_csv(table: Sequence[dict[str, Any]]) -> str:
    """A table with a header line; cells with commas or quotes are quoted."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def words(x: NDArray[Any]) -> str:
    return "  ".join(f"{value:.4g}" for value in np.asarray(x).ravel())


def _arrays(one: ArrayLike, other: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.atleast_1d(numbers_like(one)), np.atleast_1d(numbers_like(other))
