"""Dense output of a whole run: the integrator's own continuous extension of every step.

Most methods interpolate by the quintic through both ends of a step (`hermite.py`), which needs only the rows at the
ends. The extension of other methods, a polynomial of degree p, is stored as its values at p + 1 points of the step,
which determine it. This matters for stiff motion: accelerations at the ends then say nothing about the motion in
between, and quintics overshoot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ArgumentError
from torsor.motion.coordinates import Coordinates
from torsor.motion.hermite import interpolate
from torsor.motion.stepper import Memory, Stepper

Array = NDArray[Any]

MOST_BYTES = 2**28  # kept per run; later steps are interpolated between their rows
STEPS, NUMBERS = "dense steps", "dense numbers"  # in files


class Dense:
    """The steps of a run so far: times[k] to times[k + 1], each with its extension, if it is kept.

    Only the first steps of a very long run are kept.
    """

    def __init__(self, coordinates: Coordinates, t: float) -> None:
        self.coordinates = coordinates
        self.times = [t]
        # (2, nq + 2 nv): the rows at the ends; (p + 1, nq + nv): values at points; None: not kept
        self.pieces: list[Array | None] = []
        self.room = MOST_BYTES
        self._saved = 0  # the number of pieces in the file

    def add(self, stepper: Stepper) -> None:
        """Add the last step of an integrator."""
        if self.room < 0:
            return
        if stepper.points is None:
            piece = stepper.motion.fetch(np.stack([stepper.row_old, stepper.row]))
        else:
            nodes = stepper.t_old + (stepper.t - stepper.t_old) * lobatto(stepper.points)
            piece = stepper.motion.fetch(np.hstack(stepper.between(nodes)))
        self._append(stepper.t_old, stepper.t, piece)

    def _append(self, begin: float, end: float, piece: Array) -> None:
        if begin > self.times[-1]:
            self.times.append(begin)
            self.pieces.append(None)
        self.times.append(end)
        self.pieces.append(piece)
        self.room -= piece.nbytes

    def end(self, t: float) -> None:
        """Shorten the last step to end at t, an event within it."""
        begin, piece = self.times[-2], self.pieces[-1]
        if piece is None or not begin < t < self.times[-1]:
            return
        nodes = begin + (t - begin) * lobatto(max(6, len(piece)))
        self.times[-1], self.pieces[-1] = t, np.hstack(self._within(len(self.pieces) - 1, piece, nodes))

    def fill(self, t: Array, q: Array, v: Array) -> Array:
        """Write q and v at those times (m,) whose step has its extension kept; return which times these are, (m,)."""
        known = np.zeros(len(t), bool)
        if not self.pieces or not len(t):
            return known
        step = np.searchsorted(self.times, t, "right") - 1
        step[(step == len(self.pieces)) & (t == self.times[-1])] -= 1
        for k in np.unique(step[(step >= 0) & (step < len(self.pieces))]).tolist():
            if (piece := self.pieces[k]) is not None:
                own = step == k
                q[own], v[own] = self._within(k, piece, t[own])
                known |= own
        return known

    # ---- in files: next to the memory of the integrator, chunk by chunk ----

    def unsaved(self) -> Memory:
        """The steps since the last call of this function, as arrays."""
        first, self._saved = self._saved, len(self.pieces)
        return self.saved(first)

    def saved(self, first: int = 0) -> Memory:
        """The steps from the `first` one on, as arrays: begin, end and shape of each; their numbers."""
        kept = [(k, piece) for k, piece in enumerate(self.pieces[first:], first) if piece is not None]
        steps = np.array([(self.times[k], self.times[k + 1], *piece.shape) for k, piece in kept]).reshape(-1, 4)
        return {STEPS: steps, NUMBERS: np.concatenate([np.empty(0), *(piece.ravel() for _, piece in kept)])}

    @classmethod
    def restored(cls, coordinates: Coordinates, t: float, memories: Iterable[Memory]) -> Dense:
        """The steps of the chunks of a file, whose first row is at t."""
        dense, nq, nv = cls(coordinates, t), coordinates.nq, coordinates.nv
        for memory in memories:
            steps, numbers = memory.get(STEPS, np.empty((0, 4))), memory.get(NUMBERS, np.empty(0))
            for begin, end, *shape in steps.tolist():
                count, width = map(int, shape)
                if not dense.times[-1] <= begin < end or width not in (nq + nv, nq + 2 * nv) or count < 2:
                    raise ArgumentError("its dense output does not fit the model")
                piece, numbers = np.split(numbers, [count * width])
                dense._append(begin, end, piece.reshape(count, width))
        dense._saved = len(dense.pieces)
        return dense

    def _within(self, k: int, piece: Array, t: Array) -> tuple[Array, Array]:
        begin, end = self.times[k], self.times[k + 1]
        nq, nv = self.coordinates.nq, self.coordinates.nv
        if piece.shape[1] != nq + nv:
            return interpolate(self.coordinates, begin, piece[0], end, piece[1], t)
        y = lagrange(lobatto(len(piece)), (t - begin) / (end - begin)) @ piece
        self.coordinates.normalise(y[:, :nq])
        return y[:, :nq], y[:, nq:]


def lobatto(count: int) -> Array:
    """Chebyshev points in [0, 1] with both ends: polynomials through them are well conditioned."""
    return (1 - np.cos(np.pi * np.arange(count) / (count - 1))) / 2


def lagrange(nodes: Array, x: Array) -> Array:
    """The Lagrange polynomials, 1 at one node and 0 at the others, at points x: (len(x), len(nodes))."""
    others = ~np.eye(len(nodes), dtype=bool)
    factors = (x[:, None, None] - nodes) / np.where(others, nodes[:, None] - nodes, 1.0)
    return np.where(others, factors, 1.0).prod(axis=-1)
