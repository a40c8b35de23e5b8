"""The model data and array sizes that a kernel reads: the words behind the pointer `data`.

    data     scratch bytes per lane | runtime | bodies | freedoms | flags | body where a climb starts | constants |
             index | base | the packing of a matrix: places, columns, entries, second, products and their number |
             the sizes of the axes of all arrays
    index    eight int32 per body: kind, parent, first q, first v, flags, freedoms, index of its constants, index of its
             first freedom in a column
    base     gravity, and the placement (R, p) of the frame where a climb starts
    runtime  shared by all kernels of a process: the block of scratch memory kept between calls (see `llvm_entry.py`),
             the addresses of the three functions of Python's C API with which a kernel raises MemoryError, of Linux's
             madvise or 0, and, for each vector type, of `backends/turning.py` once it is needed

Straight-line code contains its model, so it reads only the scratch bytes, the runtime and the sizes.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.compiler.frames import Framed
from torsor.compiler.packing import Packing
from torsor.model.model import Model
from torsor.model.names import Frame

# where the numbers of the base begin
BASE_PLACES = {"g": 0, "frame": 3}
# the int64 words of `data`
SCRATCH, RUNTIME, SIZES = range(3)
BODIES, FREEDOMS, FLAGS, FROM, NUMBERS, INDEX, BASE = range(2, 9)
PLACES, COLUMNS, ENTRIES, SECOND, PRODUCTS, PRODUCT_COUNT, WORDS = range(9, 16)
# flags of a body
CHAINED, BRANCHES, FIRST = 1, 2, 4  # parent is the body before | exchanges values through memory | stores, not adds
# flags of the model
IS_TREE, BASE_BRANCHES = 1, 2
INDEX_WORDS = 8
# runtime: where the addresses for each type of vector begin, and how many there are
TURNING, TURNINGS = 5, 8
# padding after the sines, cosines and angles of one state in scratch memory: the longest vector
TURNS_MARGIN = 16


class Layout(NamedTuple):
    """The layout of each body's data in a loop kernel."""

    numbers: Sequence[Sequence[str]]  # for each kind of body, the constants it reads
    kept: int  # the count of numbers that a body keeps from pass to pass
    handed: int  # the largest count of numbers that a pass hands on
    matrix: Sequence[str] = ()  # which part of each matrix is computed: see `packing.py`

    def scratch(self, model: Model) -> int:
        """The scratch memory of one state, in numbers."""
        return self.kept * model.n + (0 if model.is_chain else self.handed * (model.n + 1))


@dataclass(frozen=True)
class KernelData:
    """The words and the arrays that they point to: a model's numbers, index and base, and the packing of a matrix."""

    words: NDArray[np.int64]
    owned: tuple[NDArray[Any], ...] = ()
    packing: Packing | None = None


def unrolled_data(shapes: Sequence[tuple[int, ...]], bits: int) -> KernelData:
    """The words for straight-line code.  `shapes`: those of all inputs, then that of the output."""
    numbers = sum(math.prod(shape) for shape in shapes)
    words = [numbers * bits // 8, runtime().ctypes.data, *(n for shape in shapes for n in shape)]
    return KernelData(np.array(words, np.int64))


@functools.cache
def runtime() -> NDArray[np.int64]:
    """The `runtime` words of this process."""
    names = ("PyGILState_Ensure", "PyErr_NoMemory", "PyGILState_Release")
    functions = [getattr(ctypes.pythonapi, name) for name in names]
    advise = [ctypes.CDLL(None).madvise] if sys.platform == "linux" else []
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in (*functions, *advise)]
    return np.array([0, *addresses, 0][:TURNING] + [0] * TURNINGS, np.int64)


def turning_place(lanes: int, bits: int) -> int:
    """The index of the `runtime` word for vectors of 2, 4, 8 or 16 numbers of this many bits."""
    return TURNING + 2 * (lanes.bit_length() - 2) + (bits == 64)


def tree_data(code: Any, framed: Framed, shapes: Sequence[tuple[int, ...]], bits: int,
              frame: Frame | None = None) -> tuple[list[np.int32], list[NDArray[Any]]]:  # fmt: skip
    """The model data for loops in C: the integers n, nv, flags, start, second, products, and the tables index, columns,
    entries, product, numbers, base."""
    data = loop_data(code.layout, framed, shapes, bits, frame)
    numbers, index, base = data.owned
    packing, none = data.packing, np.zeros(1, np.int32)
    words = [np.int32(data.words[k]) for k in (BODIES, FREEDOMS, FLAGS, FROM, SECOND, PRODUCT_COUNT)]
    matrix = (packing.columns, packing.entries, packing.products) if packing else (none, none, none)
    return words, [index, *(x if x.size else none for x in matrix), numbers, base]


def loop_data(layout: Layout, framed: Framed, shapes: Sequence[tuple[int, ...]], bits: int,
              frame: Frame | None = None) -> KernelData:  # fmt: skip
    """The words for loops over the bodies.  `frame`: where the climb of a "path" starts."""
    model = framed.model
    dtype = np.float64 if bits == 64 else np.float32
    widths = np.array([len(names) for names in layout.numbers], dtype=np.int64)[framed.kind]
    rows = np.concatenate([[0], np.cumsum(widths)])
    numbers = np.empty(int(rows[-1]), dtype)
    for kind, names in enumerate(layout.numbers):
        bodies = np.flatnonzero(framed.kind == kind)
        for k, name in enumerate(names):
            numbers[rows[bodies] + k] = framed.numbers[name][bodies]
    tip = frame or model.frame(None)
    base = np.concatenate([model.gravity, tip.R.ravel(), tip.p]).astype(dtype)
    chained = model.parent == np.arange(-1, model.n - 1)
    far_parents = model.parent[~chained]
    flags = np.where(chained, CHAINED, 0)
    flags[far_parents[far_parents >= 0]] |= BRANCHES
    last_child = np.full(model.n + 1, -1)  # entry -1: the base
    last_child[far_parents] = np.flatnonzero(~chained)  # the last child is written last; an inward pass visits it first
    flags[last_child[last_child >= 0]] |= FIRST
    freedoms = model.v_start[1:] - model.v_start[:-1]
    packing = Packing.of(layout.matrix, model) if layout.matrix else None
    above = packing.above if packing else np.zeros(model.n)
    columns = (framed.kind, model.parent, model.q_start[:-1], model.v_start[:-1], flags, freedoms, rows[:-1], above)
    index = np.zeros((model.n, INDEX_WORDS), np.int32)
    for k, column in enumerate(columns):
        index[:, k] = column
    sizes = [n for shape in shapes for n in shape]
    words = np.zeros(WORDS + len(sizes), np.int64)
    words[WORDS:] = sizes
    buffers = sum(math.prod(shape) for shape in shapes[:-1]) + (packing.count if packing else math.prod(shapes[-1]))
    words[SCRATCH] = (layout.scratch(model) + buffers + 3 * (model.nq + TURNS_MARGIN)) * bits // 8
    words[RUNTIME] = runtime().ctypes.data
    words[BODIES], words[FREEDOMS] = model.n, model.nv
    words[FLAGS] = (0 if model.is_chain else IS_TREE) | (BASE_BRANCHES if (far_parents < 0).any() else 0)
    words[FROM] = tip.body
    words[NUMBERS], words[INDEX], words[BASE] = (x.ctypes.data for x in (numbers, index, base))
    if packing:
        words[PLACES] = packing.count
        words[COLUMNS], words[ENTRIES] = packing.columns.ctypes.data, packing.entries.ctypes.data
        words[SECOND], words[PRODUCTS] = packing.second, packing.products.ctypes.data
        words[PRODUCT_COUNT] = packing.product_count
    return KernelData(words, (numbers, index, base), packing)
