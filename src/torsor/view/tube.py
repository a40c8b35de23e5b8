"""Very many bodies as one tube: the points of every frame as small integers, compressed.

A point is the origin of a body or the far end of a tip. In a frame, each is an integer number of quanta (`quantum`, a
32768th of the machine's reach) away from the root of its tree, and is stored as the step from its parent: along a chain
these steps are small and similar, and take about one bit each. A frame can be read without the others.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.dynamics import functions as dynamics
from torsor.model.model import Model

Array = NDArray[Any]

QUANTA = 32768  # per reach of the machine: a tube is 260 quanta thick
FRAMES_PER_SECOND = 30
MOST_POINTS = 32_000_000  # of all frames: they take 100 to 200 MB of the browser's memory
MOST_BYTES = 21_000_000  # compressed; as text, a third more
LEVEL = 6  # of zlib
MOST_TRACES = 20  # paths of tips
AT_ONCE = 1_000_000  # poses computed at a time
KINDS: dict[int, Any] = {1: np.int8, 2: np.int16, 4: np.int32}  # of a step, by its bytes


def frame_times(t: Array, points: int) -> Array:
    """Times of the frames of rows at times t: evenly spaced."""
    if len(t) < 2:
        return t
    wanted = int(FRAMES_PER_SECOND * (t[-1] - t[0])) + 1
    return np.linspace(t[0], t[-1], max(2, min(wanted, MOST_POINTS // points)))


@dataclass(frozen=True)
class Tube:
    """Frames: their times, the paths (frames, tips, 3) of some tips, points of a few frames, data of the page."""

    times: Array
    traces: Array
    seen: Array
    data: dict[str, Any]


def tube(model: Model, times: Array, at: Callable[[Array], Array], tips: dict[int, Array], reach: float) -> Tube:
    """The configurations at(times) as frames of a page; every second, fourth, ... frame if all would be too many."""
    ends, far, quantum = np.fromiter(tips, int), np.array([*tips.values()]), reach / QUANTA
    traced = slice(None, None, -(-len(ends) // MOST_TRACES))
    above = np.concatenate([model.parent, ends])
    root, roots = _roots(above), np.flatnonzero(above < 0)
    frames = []
    for part in np.array_split(times, max(1, len(times) * model.n // AT_ONCE)):
        poses = dynamics.body_poses(model, at(part))
        tip = poses[:, ends]
        tip_ends = tip[..., :3, 3] + (tip[..., :3, :3] @ far[..., None])[..., 0]
        p = np.concatenate([poses[..., :3, 3], tip_ends], axis=1)
        whole = np.rint((p - p[:, root]) / quantum).astype(np.int32)
        step = whole - whole[:, np.maximum(above, 0)]
        step[:, roots] = 0
        # x of all points, then y, then z
        frames.append((_smallest(np.moveaxis(step, 1, 2)), p[:, roots], tip_ends[:, traced], p[:: max(1, len(p) - 1)]))
    size = max(step.itemsize for step, *_ in frames)
    steps = np.concatenate([step.astype(KINDS[size], copy=False) for step, *_ in frames])
    starts, traces, seen = (np.concatenate(x) for x in [*zip(*frames)][1:])
    chosen, packed = _thinned(steps)
    other = np.flatnonzero(above != np.arange(-1, len(above) - 1))
    data = {
        "steps": packed, "bytes": size, "quantum": quantum, "points": len(above),
        "roots": floats(starts[chosen]),  # frame, root, (x, y, z)
        "parents": np.stack([other, above[other]], axis=1).tolist(),  # of points that do not follow their parent
    }  # fmt: skip
    return Tube(times[chosen], traces[chosen], seen, data)


def floats(x: Array) -> str:
    """Numbers in single precision, as text."""
    return text(np.ascontiguousarray(x, dtype="<f4").tobytes())


def text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _thinned(steps: Array) -> tuple[Array, str]:
    """The frames that fit into a page, and their compressed text: all frames, or every second, fourth, ... one."""
    chosen = np.arange(len(steps))
    while True:
        packed = zlib.compress(steps[chosen].astype(steps.dtype.newbyteorder("<"), copy=False).tobytes(), LEVEL)
        if len(packed) <= MOST_BYTES or len(chosen) < 3:
            return chosen, text(packed)
        chosen = np.union1d(chosen[::2], chosen[-1:])


def _smallest(steps: Array) -> Array:
    """The same integers in the smallest sufficient type."""
    largest = int(np.abs(steps).max(initial=0))
    return steps.astype(next(kind for kind in KINDS.values() if largest <= np.iinfo(kind).max))


def _roots(above: Array) -> Array:
    """For each point, the root of its tree; parents come before their children."""
    root = np.where(above < 0, np.arange(len(above)), above)
    while (root != root[root]).any():
        root = root[root]
    return root
