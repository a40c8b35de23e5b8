"""The places of matrix entries.  Only the entries that are needed are computed; they are packed by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ArgumentError
from torsor.model.model import Model
from torsor.model.parameters import INERTIAL

Array = NDArray[Any]

# Which rows the columns of a matrix contain (`trace.LoopCode` chooses):
ON_WAY = ("symmetric path", "path", "two paths", "product", "response", "parameters")
#   "symmetric path", "path"   the rows on the path to the base
#   "two paths"                the same, then a second set for the lower triangle
#   "product"                  two such sets of columns, u and x, then all distinct entries of U^T X
#   "response"                 "two paths" of a matrix B, then all entries of -U^T X B; needs a "product"
#   "parameters"               `INERTIAL` columns per body that are computed together, row by row
#   "symmetric"                the rows up to the last of the column's own body
#   "full"                     all rows
SETS = {"two paths": 2, "product": 2, "response": 2}  # sets of numbers that a climb keeps; all others keep one

TOGETHER = 4  # entries of a product that are computed together, so that each number read serves several entries
TILE = (6, 3)  # rows and columns of a response that are computed together
HEADER = 4  # words before the table of responses: column groups, row groups, place of the terms, of the first result


@dataclass(frozen=True)
class Packing:
    """Places of numbers; place 0 has a zero, for entries that are in no column."""

    count: int  # number of places
    above: NDArray[np.int32]  # (n,) number of entries in a column before those of each body
    columns: NDArray[np.int32]  # (nv,) place of each column's first entry
    entries: NDArray[np.int32]  # the place of each entry, matrix by matrix, row by row
    second: int  # the distance, in places, between a column and that of the next set
    products: NDArray[np.int32]  # rows (place of a column u, how many freedoms it shares with columns x, the places of
    # the columns x): one row makes TOGETHER entries of U^T X.  The table of `_responses` follows
    product_count: int  # the number of such rows

    @property
    def sums(self) -> int:
        """The number of multiplications, and of additions, of all products."""
        end = self.product_count * (2 + TOGETHER)
        total = TOGETHER * int(self.products[1 : end : 2 + TOGETHER].sum())
        if len(table := self.products[end:]):
            column_groups, row_groups = table[:2].tolist()
            total += prod(TILE) * row_groups * int(table[HEADER + 1 : HEADER + 2 * column_groups : 2].sum())
        return total

    @classmethod
    def of(cls, kinds: Sequence[str], model: Model) -> Packing:
        """`kinds`: the kind of every matrix; several matrices are possible if all are on the path to the base."""
        own, ways = np.diff(model.v_start), _ways(kinds[0], model)
        bodies = np.repeat(np.arange(model.n), own)
        width = INERTIAL if "parameters" in kinds else 1
        lengths = np.array([len(ways[i]) for i in bodies]) * width
        if width > 1:
            lengths[model.v_start[bodies] != np.arange(model.nv)] = 0  # one climb per body
        columns = 1 + np.concatenate([[0], np.cumsum(lengths)[:-1]])
        total = int(lengths.sum())
        firsts = list(accumulate((SETS.get(kind, 1) for kind in kinds), initial=0))
        count = 1 + total * firsts[-1]
        entries: list[Array] = []
        products = np.zeros((0, 2 + TOGETHER), np.int32)
        for kind, first in zip(kinds, firsts):
            if kind == "product":
                table, products = _products([ways[i] for i in bodies], columns + first * total, total, count)
                count += TOGETHER * len(products)
            elif kind == "parameters":
                table = _parameters(model, ways, columns)
            else:
                table = _columns(kind, model, ways, columns + first * total, total)
            entries.append(table)
        rows, words = len(products), products.ravel()
        if "response" in kinds:
            answers = [k for k, kind in enumerate(kinds) if kind == "response"]
            results, table = _responses(entries[kinds.index("product")], [entries[k] for k in answers], count)
            for k, result in zip(answers, results):
                entries[k] = result
            words = np.concatenate([words, table])
            count += len(answers) * prod(size * -(-model.nv // size) for size in TILE)  # whole tiles
        if count >= 2**31:
            raise ArgumentError(f"{model!r} has too many freedoms for a matrix: its entries could not be numbered")
        above = np.array([len(way) for way in ways]) - own if kinds[0] in ON_WAY else model.v_start[:-1]
        places = np.concatenate([table.ravel() for table in entries]).astype(np.int32)
        return cls(count, (above * width).astype(np.int32), columns.astype(np.int32), places, total,
                   np.ascontiguousarray(words, np.int32), rows)  # fmt: skip


def _columns(kind: str, model: Model, ways: list[Array], columns: Array, second: int) -> Array:
    """The places of a matrix whose columns are stored directly."""
    entries = np.zeros((model.nv, model.nv), np.int64)
    for j, (i, start) in enumerate(zip(np.repeat(np.arange(model.n), np.diff(model.v_start)), columns)):
        rows, places = ways[i], start + np.arange(len(ways[i]))
        entries[rows, j] = places
        if SETS.get(kind) == 2:
            proper = rows < model.v_start[i]
            entries[j, rows[proper]] = second + places[proper]
        elif kind.startswith("symmetric"):  # in the block of a body the last column written wins
            entries[j, rows] = places
    return entries


def _parameters(model: Model, ways: list[Array], columns: Array) -> Array:
    """(nv, 10 n): for every row on the path from a body to the base, the ten numbers of that body side by side."""
    entries = np.zeros((model.nv, model.n, INERTIAL), np.int64)
    for j, (way, first) in enumerate(zip(ways, model.v_start)):
        entries[way, j] = columns[first] + np.arange(INERTIAL * len(way)).reshape(-1, INERTIAL)
    return entries.reshape(model.nv, -1)


def _ways(kind: str, model: Model) -> list[Array]:
    """The rows of a column, for each body.  On paths to the base, the rows of a body begin with those of its parent."""
    ways: list[Array] = []
    every = np.arange(model.nv)
    for parent, first, end in zip(model.parent, model.v_start[:-1], model.v_start[1:]):
        if kind in ON_WAY:
            ways.append(np.concatenate([ways[parent] if parent >= 0 else every[:0], every[first:end]]))
        else:
            ways.append(every[:end] if kind == "symmetric" else every)
    return ways


def _products(ways: list[Array], columns: Array, second: int, first: int) -> tuple[Array, Array]:
    """The places of the entries of U^T X, from `first` on, and the products to compute.

    Up to `TOGETHER` columns are grouped if each extends the previous one.  Then all of them share the same freedoms
    with any column before them.
    """
    entries = np.zeros((len(ways), len(ways)), np.int64)
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
    return entries, np.concatenate(products)


def _goes_on(way: Array, before: Array) -> bool:
    return np.array_equal(way[: len(before)], before)


def _responses(inverse: Array, others: list[Array], first: int) -> tuple[list[Array], Array]:
    """The places of the entries of -A B for each B, from `first` on, and the table of the products to compute.

    `inverse`, `others`: the places of the entries of A and of each B.  A tile of TILE entries is a sum over the rows k
    in which its columns of B have entries; few columns per tile mean few such rows.  After the HEADER the table has,
    for each group of columns, the index of its first term and the number of terms; for each group of rows i and each k,
    the places of A_ik; and the terms: k, and the places of B_kj.  An incomplete group repeats its last row or column.
    """
    n, (high, wide) = len(inverse), TILE
    row_groups, column_groups = (np.minimum(np.arange(0, n, size)[:, None] + np.arange(size), n - 1) for size in TILE)
    rows = inverse[row_groups].transpose(0, 2, 1)  # (group, k, row)
    heads, terms, results = [], [], []
    total = 0
    for p, B in enumerate(others):
        for columns in column_groups:
            k = np.flatnonzero(B[:, columns].any(axis=1))
            heads.append((total, len(k)))
            terms.append(np.column_stack([k, B[k][:, columns]]))
            total += len(k)
        i, j = np.arange(n)[:, None], np.arange(n)
        tile = (p * len(column_groups) + j // wide) * len(row_groups) + i // high
        results.append(first + (tile * high + i % high) * wide + j % wide)
    start = HEADER + 2 * len(heads) + rows.size
    header = np.array([len(heads), len(row_groups), start, first])
    return results, np.concatenate([header, np.ravel(heads), rows.ravel(), *(x.ravel() for x in terms)])
