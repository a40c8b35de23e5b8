"""Forward dynamics of one long chain by segments in the lanes of vectors, on one core.

This takes twice the operations of the sweeps along the whole chain, but computes eight at a time
(`torsor.algorithms.segments`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.backends import cache, codegen
from torsor.backends.gufunc import gufunc, signature
from torsor.backends.llvm import Target
from torsor.backends.turning import provide
from torsor.compiler.abi import INDEX_WORDS, Layout, runtime
from torsor.compiler.frames import Framed, framed, short_frames, structured
from torsor.errors import ArgumentError, TorsorError
from torsor.inputs import place_of
from torsor.model.model import Model
from torsor.parallel import segment_kernel as kernel
from torsor.parallel.solver import alike, check_inertias

Array = NDArray[Any]

INPUTS = ("q", "v", "tau")
FEWEST_LANES = 4  # with two, the segments would not compensate for their additional operations
LENGTH = 128  # most bodies per segment: the values kept for a block of segments must stay in the cache
HEAD = 4  # bodies next to the base whose kinds may differ from those that follow
PERIOD = 16  # the longest repeating pattern of kinds
# The costs of a body in the head, and of one more segment, relative to a body in a segment.
HEAD_COST, SEGMENT_COST = 7, 8
CACHE_LINE = 64  # bytes
# words of a body's row of the index (see `torsor.compiler.abi`)
KIND, FIRST_Q, FIRST_V, PLACE = 0, 2, 3, 6


class ChainPart(NamedTuple):
    """Some of the bodies of a chain, as blocks of `lanes` segments of `length` bodies."""

    first: int  # body
    length: int
    blocks: int
    lanes: int

    @property
    def end(self) -> int:
        return self.first + self.blocks * self.lanes * self.length


def cut(kind: Array, lanes: int) -> tuple[ChainPart, ChainPart] | None:
    """Cut a chain of bodies of these kinds into a head, which is one segment, and segments of equal kinds, if possible.

    Every length that the kinds allow is tried; the cheapest is used.
    """
    n = kind.size
    period = next((p for p in range(1, PERIOD + 1) if np.array_equal(kind[HEAD + p :], kind[HEAD:-p])), None)
    if period is None or n < HEAD + lanes * period:
        return None
    lengths = np.arange(period, min(LENGTH, (n - HEAD) // lanes) + 1, period)
    blocks = (n - HEAD) // (lanes * lengths)
    heads = n - blocks * lanes * lengths
    best = int(np.argmin(HEAD_COST * heads + SEGMENT_COST * blocks * lanes))
    head, length, count = (int(x[best]) for x in (heads, lengths, blocks))
    return ChainPart(0, head, 1, 1), ChainPart(head, length, count, lanes)


class Segments:
    """Forward dynamics of one chain: called with q (..., nq), v and tau (..., nv), and the inputs in `options`."""

    def __init__(self, model: Model, *, options: Sequence[str] = (), lanes: int | None = None) -> None:
        host = codegen.host()
        target = Target(lanes or max(FEWEST_LANES, host.lanes(64)), 64, host.fma, host.x86)
        frames, self.parts = _framed(model, target.lanes)
        check_inertias(model, "segments")
        inputs = (*INPUTS, *options)
        head, block = (tuple(frames.kinds[k] for k in np.unique(_kind(frames, part))) for part in self.parts)
        first = frames.kinds[frames.kind[self.parts[1].first]]
        wanted = kernel.SegmentKernel(head, block, first, inputs, target)
        known = cache.remembered(repr((wanted, host, cache.sources())), lambda: wanted.outline().to_json())
        outline = kernel.SegmentOutline.from_json(known)
        words, owned = _data(frames, self.parts, outline, inputs)
        loaded = codegen.load(outline.name, lambda: wanted.ir)
        provide(target.lanes, target.bits)
        shapes = [*(place_of(name).shape(model) for name in inputs), (model.nv,)]
        self.ufunc = gufunc(
            loaded.address, words.ctypes.data, signature(shapes), "float64", "forward_dynamics", "",
            (loaded, words, owned),
        )  # fmt: skip

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        """The accelerations; NaN in states whose segments lose too many digits (`algorithms.segments.sound`)."""
        return self.ufunc(*inputs.values())


def serving(model: Model) -> Segments | None:
    """The `Segments` of a model, if the chain can be cut and does not lose digits.

    Whether a state loses digits is known only after computing it.  A chain that loses digits at random angles does so
    in most states: for such a chain plain sweeps are better.
    """
    try:
        segments = Segments(model)
    except TorsorError:
        return None
    q, still = model.random_configuration(np.random.default_rng(0)), np.zeros(model.nv)
    with np.errstate(invalid="ignore"):
        return segments if np.isfinite(segments({"q": q, "v": still, "tau": still})).all() else None


def _framed(model: Model, lanes: int) -> tuple[Framed, tuple[ChainPart, ChainPart]]:
    """The model in its short frames, or with placements of one form if only that makes the segments equal."""
    if model.is_chain:
        for frames in (framed(model), structured(alike(short_frames(model), HEAD))):
            parts = cut(frames.kind, lanes)
            if parts:
                return frames, parts
    raise ArgumentError(
        f'method "segments" is for a chain of {HEAD + lanes} or more bodies whose joints are of one type or of a few '
        f'types in turn, which {model!r} is not; use method "articulated"'
    )


def _kind(frames: Framed, part: ChainPart) -> Array:
    """The kinds of the bodies of any segment."""
    return frames.kind[part.first : part.first + part.length]


# The model as data -----------------------------------------------------------------------------------------------


def _data(frames: Framed, parts: tuple[ChainPart, ChainPart], outline: kernel.SegmentOutline,
          inputs: Sequence[str]) -> tuple[Array, tuple[Any, ...]]:  # fmt: skip
    """The words of `torsor.parallel.segment_kernel`, and the data that they point to."""
    model, block = frames.model, parts[1]
    arrays = {name: place_of(name).starts(model) for name in (*inputs, "qdd")}
    data = [_part(frames, part, layout, arrays) for part, layout in zip(parts, (outline.head, outline.block))]
    base = np.array([0.0, 0.0, 0.0, *-model.gravity])  # at rest in gravity g: acceleration -g
    words = np.zeros(kernel.WORDS + 2 * len(arrays), np.int64)
    words[kernel.RUNTIME] = runtime().ctypes.data
    words[kernel.BLOCKS], words[kernel.BASE] = block.blocks, base.ctypes.data
    words[kernel.HEAD], words[kernel.BLOCK] = (x.words.ctypes.data for x in data)
    words[kernel.RECORDS] = -(-max(x.scratch for x in data) // CACHE_LINE) * CACHE_LINE
    words[kernel.SCRATCH] = words[kernel.RECORDS] + (block.blocks + 1) * block.lanes * outline.record * 8
    bounds = np.array([start[[block.first, block.first + block.length]] for start in arrays.values()])
    words[kernel.WORDS :: 2], words[kernel.WORDS + 1 :: 2] = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
    return words, (data, base)


class _PartData(NamedTuple):
    """The data of one part that the kernel receives."""

    words: Array
    owned: tuple[Array, ...]
    scratch: int  # bytes of scratch memory for a block


def _part(frames: Framed, part: ChainPart, layout: Layout, arrays: Mapping[str, Array]) -> _PartData:
    model, m, lanes = frames.model, part.length, part.lanes
    _, kind = np.unique(_kind(frames, part), return_inverse=True)
    rows = np.concatenate([[0], np.cumsum(np.array([len(names) for names in layout.numbers])[kind])])
    table = _lined_up(part.blocks, int(rows[-1]), lanes)
    for k, names in enumerate(layout.numbers):
        bodies = np.flatnonzero(kind == k)
        for j, name in enumerate(names):
            numbers = frames.numbers[name][part.first : part.end].reshape(part.blocks, lanes, m)
            table[:, rows[bodies] + j] = numbers[:, :, bodies].transpose(0, 2, 1)
    segment = slice(part.first, part.first + m)
    index = np.zeros((m, INDEX_WORDS), np.int32)
    index[:, KIND], index[:, PLACE] = kind, rows[:-1]
    index[:, FIRST_Q], index[:, FIRST_V] = (x[segment] - x[part.first] for x in (model.q_start, model.v_start))
    sizes = {name: int(start[part.first + m] - start[part.first]) for name, start in arrays.items()}
    axes = [n for name, size in sizes.items() for n in ((size, 6) if name == "external" else (size,))]
    numbers_per_lane = layout.kept * m + sum(size * (6 if name == "external" else 1) for name, size in sizes.items())
    addresses = [x.ctypes.data for x in (runtime(), table, index)]
    words = np.array([m, *addresses, 8 * rows[-1], *axes], np.int64)
    return _PartData(words, (table, index), 8 * lanes * numbers_per_lane)


def _lined_up(*shape: int) -> Array:
    """An empty array whose vectors do not straddle cache lines."""
    size = math.prod(shape)
    room = np.empty(size + CACHE_LINE // 8)
    first = -room.ctypes.data % CACHE_LINE // 8
    return room[first : first + size].reshape(shape)
