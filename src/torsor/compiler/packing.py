"""Where each entry of a matrix is stored.  Only the entries that are needed are computed; they are packed by column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ArgumentError
from torsor.model.model import Model

Array = NDArray[Any]

# Which rows of a matrix its columns hold (`trace.LoopCode` chooses):
ON_WAY = ("symmetric path", "path", "two paths", "product")
#   "symmetric path", "path"   the rows on the path to the base
#   "two paths"                the same, then a second set for the lower triangle
#   "product"                  two such sets of columns, u and x, then all distinct entries of U^T X
#   "symmetric"                the rows up to the last of the column's own body
#   "full"                     all rows

TOGETHER = 4  # entries of a product that are computed together: each number read from one column serves several


@dataclass(frozen=True)
class Packing:
    """Places of numbers; place 0 holds a zero, for entries that are in no column."""

    count: int  # number of places
    above: NDArray[np.int32]  # (n,) number of entries of a column before a body's own
    columns: NDArray[np.int32]  # (nv,) place of each column's first entry
    entries: NDArray[np.int32]  # (nv, nv) place of each entry
    second: int  # how many places a column of the second set is after that of the first
    products: NDArray[np.int32]  # (:, 2 + TOGETHER) place of a column u, how many freedoms it shares with columns x,
    # and the places of the columns x: one row makes TOGETHER entries of U^T X

    @classmethod
    def of(cls, kind: str, model: Model) -> Packing:
        own = np.diff(model.v_start)
        ways = _ways(kind, model)
        bodies = np.repeat(np.arange(model.n), own)
        lengths = np.array([len(ways[i]) for i in bodies])
        columns = 1 + np.concatenate([[0], np.cumsum(lengths)[:-1]])
        total = int(lengths.sum())
        entries = np.zeros((model.nv, model.nv), np.int32)
        products = np.zeros((0, 2 + TOGETHER), np.int32)
        count = 1 + total * (2 if kind in ("two paths", "product") else 1)
        if kind == "product":
            products = _products([ways[i] for i in bodies], columns, total, entries, count)
            count += TOGETHER * len(products)
        else:
            for j, (i, start) in enumerate(zip(bodies, columns)):
                rows, places = ways[i], start + np.arange(len(ways[i]))
                entries[rows, j] = places
                if kind == "two paths":
                    proper = rows < model.v_start[i]
                    entries[j, rows[proper]] = total + places[proper]
                elif kind.startswith("symmetric"):  # in a body's own block the last column written wins
                    entries[j, rows] = places
        if count >= 2**31:
            raise ArgumentError(f"{model!r} has too many freedoms for a matrix: its entries could not be numbered")
        above = np.array([len(way) for way in ways]) - own if kind in ON_WAY else model.v_start[:-1]
        return cls(count, above.astype(np.int32), columns.astype(np.int32), entries, total, products)


def _ways(kind: str, model: Model) -> list[Array]:
    """The rows of a column, for each body.  On a path to the base, each body's rows begin with those of its parent."""
    ways: list[Array] = []
    every = np.arange(model.nv)
    for parent, first, end in zip(model.parent, model.v_start[:-1], model.v_start[1:]):
        if kind in ON_WAY:
            ways.append(np.concatenate([ways[parent] if parent >= 0 else every[:0], every[first:end]]))
        else:
            ways.append(every[:end] if kind == "symmetric" else every)
    return ways


def _products(ways: list[Array], columns: Array, second: int, entries: Array, first: int) -> NDArray[np.int32]:
    """The products to compute.  Their results get the places from `first` on, and these are written into `entries`.

    Up to `TOGETHER` columns are taken together if each continues the one before.  Then they all share the same freedoms
    with any column before them.
    """
    table = np.full((len(ways), max(map(len, ways))), -1)
    for row, way in zip(table, ways):
        row[: len(way)] = way
    products: list[Array] = []
    start, place = 0, first
    while start < len(ways):
        end = start + 1
        while end < min(start + TOGETHER, len(ways)) and _goes_on(ways[end], ways[end - 1]):
            end += 1
        shared = (table[:end, : len(ways[end - 1])] == ways[end - 1]).sum(axis=1)
        i = np.flatnonzero(shared)
        x = second + columns[np.minimum(np.arange(start, start + TOGETHER), end - 1)]
        products.append(np.column_stack([columns[i], shared[i], np.broadcast_to(x, (len(i), TOGETHER))]))
        for k, j in enumerate(range(start, end)):
            above = i <= j
            entries[i[above], j] = entries[j, i[above]] = place + TOGETHER * np.flatnonzero(above) + k
        start, place = end, place + TOGETHER * len(i)
    return np.ascontiguousarray(np.concatenate(products), np.int32)


def _goes_on(way: Array, before: Array) -> bool:
    return np.array_equal(way[: len(before)], before)
