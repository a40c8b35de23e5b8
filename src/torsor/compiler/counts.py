"""Exact operation counts of programs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torsor.compiler.frames import Framed
from torsor.compiler.packing import Packing
from torsor.compiler.tape import Code, Operations
from torsor.compiler.trace import LoopCode, LoopColumns
from torsor.model.names import Frame
from torsor.sweeps import way_to_base


def operations_of(code: Code | LoopCode, frames: Framed, frame: Frame | None) -> Operations:
    """The exact count for one state: every pass at every body, every climb along its path to the base."""
    if isinstance(code, Code):
        return Operations.of(code)
    model = frames.model
    bodies = np.bincount(frames.kind, minlength=len(code.kinds))
    total = Operations()
    for p in code.passes:
        total = total + Operations.of(p.start)
        for c, times in zip(p.codes, bodies):
            total = total + Operations.of(c) * int(times)
    if code.finish:
        total = total + Operations.of(code.finish)
    if code.columns and frame is not None:  # one climb only
        way = [int(frames.kind[i]) for i in way_to_base(model.parent.tolist(), frame.body)]
        for start in way[:1]:
            total = total + Operations.of(code.columns.starts[start, 0])
        for kind, times in zip(*np.unique(way[1:], return_counts=True)):
            total = total + Operations.of(code.columns.codes[int(kind)]) * int(times)
    elif code.columns:
        freedoms = np.ones(model.n, int) if code.columns.per_body else np.diff(model.v_start)
        below = np.zeros(model.n, np.int64)  # freedoms that each body carries: the number of climbs through it
        for i in range(model.n - 1, -1, -1):
            if model.parent[i] >= 0:
                below[model.parent[i]] += below[i] + freedoms[i]
        root = model.parent < 0
        for c, times, on_base in zip(code.columns.codes, *_by_kind(frames, below, below * root)):
            total = total + _climbed(code.columns, c, times, on_base)
        for (kind, _), c in code.columns.starts.items():
            total = total + _climbed(code.columns, c, int(bodies[kind]), int((frames.kind[root] == kind).sum()))
        if code.columns.outward:  # for a symmetric matrix, only the bodies up to that of the column
            visits = np.cumsum(freedoms[::-1])[::-1] if code.packing == ("symmetric",) else np.full(model.n, model.nv)
            for c, times in zip(code.columns.outward.codes, *_by_kind(frames, visits)):
                total = total + Operations.of(c) * times
        if "product" in code.packing:
            shared = Packing.of(code.packing, model).sums
            total = total + Operations(mul=shared, add=shared)
    return total


def _by_kind(frames: Framed, *counts: NDArray[np.int64]) -> list[list[int]]:
    """The sums of counts per body, by kind of body."""
    return [np.bincount(frames.kind, weights=x, minlength=len(frames.kinds)).astype(int).tolist() for x in counts]


def _climbed(columns: LoopColumns, code: Code, times: int, on_base: int) -> Operations:
    """The operations of a climb step that runs `times` times, `on_base` of them at a root body."""
    if not columns.hands_much:
        return Operations.of(code) * times
    own, handing = columns.parts(code)
    return Operations.of(own) * times + Operations.of(handing) * (times - on_base)
