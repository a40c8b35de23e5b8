"""Of a matrix only what has to be computed is, and kept packed, column by column; here is where each entry is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.model.model import Model

Array = NDArray[Any]

# How much of a matrix its columns are (`trace.LoopCode` says which):
ON_WAY = ("symmetric path", "path", "two paths", "product")
#   "symmetric path", "path"   the rows on the way to the base
#   "two paths"                the same, then once more for the lower triangle
#   "product"                  two such columns, u and x, then all different entries of U^T X
#   "symmetric"                the rows up to the last of the column's own body
#   "full"                     all rows


@dataclass(frozen=True)
class Packing:
    """Places of numbers; place 0 holds a zero, for entries that are in no column."""

    count: int  # of places
    above: NDArray[np.int32]  # (n,) entries of a column before a body's own
    columns: NDArray[np.int32]  # (nv,) place of a column's first entry
    entries: NDArray[np.int32]  # (nv, nv) place of an entry
    second: int  # how many places on the second set of columns is
    pairs: NDArray[np.int32]  # (:, 3) of the entries of a product: place of u, place of x, how many freedoms they share

    @classmethod
    def of(cls, kind: str, model: Model) -> Packing:
        own = np.diff(model.v_start)
        ways = _ways(kind, model)
        bodies = np.repeat(np.arange(model.n), own)
        lengths = np.array([len(ways[i]) for i in bodies])
        columns = 1 + np.concatenate([[0], np.cumsum(lengths)[:-1]])
        total = int(lengths.sum())
        entries = np.zeros((model.nv, model.nv), np.int32)
        pairs = np.zeros((0, 3), np.int32)
        count = 1 + total * (2 if kind in ("two paths", "product") else 1)
        if kind == "product":
            pairs = _pairs([ways[i] for i in bodies], columns, total, entries, count)
            count += len(pairs)
        else:
            for j, (i, start) in enumerate(zip(bodies, columns)):
                rows, places = ways[i], start + np.arange(len(ways[i]))
                entries[rows, j] = places
                if kind == "two paths":
                    proper = rows < model.v_start[i]
                    entries[j, rows[proper]] = total + places[proper]
                elif kind.startswith("symmetric"):  # in a body's own block the last column written holds
                    entries[j, rows] = places
        above = np.array([len(way) for way in ways]) - own if kind in ON_WAY else model.v_start[:-1]
        return cls(count, above.astype(np.int32), columns.astype(np.int32), entries, total, pairs)


def _ways(kind: str, model: Model) -> list[Array]:
    """The rows of a column, for each body: of two on a way to the base, one begins like the other."""
    ways: list[Array] = []
    for parent, first, end in zip(model.parent, model.v_start[:-1], model.v_start[1:]):
        if kind in ON_WAY:
            ways.append(np.concatenate([ways[parent] if parent >= 0 else np.arange(0), np.arange(first, end)]))
        else:
            ways.append(np.arange(end if kind == "symmetric" else model.nv))
    return ways


def _pairs(ways: list[Array], columns: Array, second: int, entries: Array, first: int) -> NDArray[np.int32]:
    """The pairs of columns that share freedoms; their products are put to places from `first` on."""
    n = len(ways)
    table = np.full((n, max(map(len, ways))), -1)
    for row, way in zip(table, ways):
        row[: len(way)] = way
    pairs: list[Array] = []
    for j, way in enumerate(ways):
        shared = (table[: j + 1, : len(way)] == way).sum(axis=1)
        i = np.flatnonzero(shared)
        entries[i, j] = entries[j, i] = first + sum(len(p) for p in pairs) + np.arange(len(i))
        pairs.append(np.stack([columns[i], np.full(len(i), second + columns[j]), shared[i]], axis=1))
    return np.concatenate(pairs).astype(np.int32)
