"""The papers, reproduced: every printed result next to torsor's, with a verdict, and every figure redrawn.

To add a paper: write a module here with `PARTS`, functions that yield `Row`s, `IDENTITIES`, those of them that run with
any number of digits (`arithmetic.py`), and `figures(folder)`, which draws figures and yields their paths; list it in
PAPERS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

from torsor.errors import ArgumentError
from torsor.papers import arithmetic, digits, featherstone1999, lee2005, lee2007, ploen1999, saha2001
from torsor.papers.rows import Row, every_row

PAPERS: dict[str, ModuleType] = {
    "Featherstone & Fijany 1999": featherstone1999,
    "Ploen & Park 1999": ploen1999,
    "Saha 2001": saha2001,
    "Lee, Wang & Chirikjian 2007": lee2007,
    "Lee & Chirikjian 2005": lee2005,
}


def reproduce(names: Sequence[str] = ()) -> Iterator[tuple[str, Row]]:
    """(paper, row) for every row of the papers whose names contain one of `names`; without names, of all papers."""
    for name, paper in _chosen(names).items():
        for row in every_row(paper.PARTS):
            yield name, row


def to_digits(count: int, names: Sequence[str] = ()) -> Iterator[tuple[str, Row]]:
    """(paper, row) for every identity of the papers, and those between algorithms, with `count` digits."""
    for name, paper in _chosen(names).items():
        with arithmetic.digits(count):
            found = list(every_row((*paper.IDENTITIES, partial(digits.of_paper, name))))
        yield from ((name, row) for row in found)


def draw(folder: str | Path, names: Sequence[str] = ()) -> Iterator[Path]:
    """Draw the figures of the papers into a folder, with tables of their numbers; yield their paths.

    The folder is made at once, the figures on demand.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{folder}: no folder for figures can be made ({error.strerror})") from None
    return (path for paper in _chosen(names).values() for path in paper.figures(folder))


def _chosen(names: Sequence[str]) -> dict[str, ModuleType]:
    chosen = {
        title: paper for title, paper in PAPERS.items()
        if not names or any(name.lower() in title.lower() for name in names)
    }  # fmt: skip
    if not chosen:
        raise ArgumentError(f"no paper is named like {', '.join(names)}; there are: {'; '.join(PAPERS)}")
    return chosen


__all__ = ["PAPERS", "Row", "draw", "reproduce", "to_digits"]
