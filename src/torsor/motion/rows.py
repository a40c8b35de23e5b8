"""The rows of a run: taken step by step, and collected chunk by chunk, in memory or in a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from typing import Any

import numpy as np

from torsor.errors import ArgumentError
from torsor.motion.dense import Dense
from torsor.motion.motion import Motion
from torsor.motion.quantities import Quantities
from torsor.motion.recording import LAST, Memory, Recorder, read
from torsor.motion.stepper import Array, FixedStep, Stepper
from torsor.motion.trajectory import Trajectory
from torsor.validate import check_memory, file_path, flag, integer, number

CHUNK = 256  # rows between two syncs to the disk
MOST_BYTES = 2**25  # of the rows between two syncs


@dataclass(frozen=True)
class RowOptions:
    """Options of the rows of a run.

    dt       rows at t0, t0 + dt, ...; None: every step, or every k-th step (k = `every`) and the last
    keep     names of quantities (see `quantities.py`), instead of whole rows
    file     the file to which rows are written during the run, `chunk` rows at a time
    dense    the continuous extension of every step; None: on, except for dop853
    """

    dt: float | None = None
    every: int = 1
    keep: Sequence[str] | None = None
    file: str | Path | None = None
    chunk: int = CHUNK
    dense: bool | None = None

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "dt": None if self.dt is None else number("dt", self.dt, above=0),
            "every": integer("every", self.every, least=1, most=2**53),
            "file": None if self.file is None else file_path("file", self.file),
            "chunk": integer("chunk", self.chunk, least=1),
            "dense": None if self.dense is None else flag("dense", self.dense),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.dt is not None and self.every > 1:
            raise ArgumentError("rows are dt apart, or `every` steps apart: leave out dt or every")


class Rows:
    """The rows of a run so far.

    dense        the continuous extension of its steps, if it is kept
    quantities   the quantities that are kept instead of whole rows, if any
    recorder     the file, if there is one
    steps        the number of steps so far
    marks        arrays for the file in addition to the memory of the integrator
    """

    def __init__(self, options: RowOptions, motion: Motion, t0: float, dense: bool) -> None:
        self.options, self.motion, self.t0 = options, motion, t0
        self.quantities = None if options.keep is None else Quantities(motion.model, options.keep)
        self.dense = Dense(motion.coordinates_on_host, t0) if self.quantities is None else None
        self.all_steps = dense and self.quantities is None  # otherwise only steps that end where forces jump
        self.recorder: Recorder | None = None
        self.steps = 0
        self.marks: Memory = {}
        self._finished_steps = 0  # the number of steps up to the last chunk
        self._next = 0  # the next row is at t0 + next dt
        self._times: list[float] = []
        self._rows: list[Array] = []
        self._latest = -inf  # the time of the last row
        self._chunks: list[Array] = []  # finished chunks of a run without a file
        width = motion.model.nq + 2 * motion.model.nv
        self._many = min(options.chunk, max(1, MOST_BYTES // (8 * width)))

    @property
    def columns(self) -> list[str] | None:
        return None if self.quantities is None else self.quantities.columns

    @property
    def extensions(self) -> Dense | None:
        """The continuous extensions, if any are kept."""
        return self.dense if self.all_steps or (self.dense is not None and self.dense.pieces) else None

    def expected_bytes(self, until: float | None, step: float | None) -> int:
        """A lower bound on the bytes of the rows of a run with steps of at most this length."""
        spacing = self.options.dt or (step and step * self.options.every)
        if until is None or spacing is None or spacing == inf:
            return 0
        rows, model = (until - self.t0) / spacing, self.motion.model
        width = 1 + (model.nq + 3 * model.nv if self.columns is None else len(self.columns))
        return 8 * width * (ceil(rows) if rows < inf else sys.maxsize)

    # ---- step by step ----

    def begin(self, stepper: Stepper) -> None:
        """Take the first row."""
        if isinstance(stepper, FixedStep):
            stepper.every_row = self.all_steps or self.options.dt is not None or self.options.every == 1
        self._times, self._rows, self._next = [], [], 1
        self._take(stepper.t, stepper.row)

    def collect(self, stepper: Stepper) -> None:
        """Take the rows of the last step, and finish a chunk when it is full."""
        all_rows = self.options.dt is None and self.options.every == 1
        jumps = stepper.t == stepper.jump  # the step that ends at a jump has the acceleration before it, rows after it
        if self.dense is not None and (jumps or (self.all_steps and not (all_rows and stepper.points is None))):
            self.dense.add(stepper)
        self.steps += 1
        if self.options.dt is not None:
            self._sample(stepper, stepper.t)
        if jumps:
            stepper.restart()
        if self.options.dt is None and self.steps % self.options.every == 0:
            stepper.complete()
            self._take(stepper.t, stepper.row)
        if len(self._rows) >= self._many:
            self.flush(stepper)

    def end_within(self, stepper: Stepper, t: float) -> None:
        """Take the rows of the last step up to t, where the run stops, and one row at t."""
        if self.dense is not None and self.all_steps:
            self.dense.add(stepper)
            self.dense.end(t)
        if self.options.dt is not None:
            self._sample(stepper, t)
        if self._latest < t:
            self._interpolate(stepper, np.array([t]))

    def _take(self, t: float, row: Array) -> None:
        self._times.append(t)
        self._rows.append(self.motion.fetch(row))
        self._latest = t

    def _sample(self, stepper: Stepper, end: float) -> None:
        """Take rows at t0 + k dt by dense output."""
        dt, last = self.options.dt, self._last_sample(end)
        assert dt is not None
        check_memory(f"dt = {dt:g}", 8 * (last - self._next) * len(stepper.row))
        if last >= self._next:
            self._interpolate(stepper, np.minimum(self.t0 + dt * np.arange(self._next, last + 1), end))
            self._next = last + 1

    def _last_sample(self, end: float) -> int:
        """The k of the last row t0 + k dt of a step to `end`."""
        dt = self.options.dt
        assert dt is not None
        # a row that rounding puts just after the end of its step still belongs to that step
        rows = np.floor((end - self.t0) / dt * (1 + 4e-16) + 1e-9)
        if not abs(rows) < 2**53:
            raise ArgumentError(f"dt = {dt:g} is too short to tell its rows apart at t = {end:g}")
        return int(rows)

    def _interpolate(self, stepper: Stepper, times: Array) -> None:
        """Take rows at times within the last step."""
        q, v = stepper.between(times)
        for t, q_t, v_t in zip(times.tolist(), q, v):
            self._take(t, np.concatenate([q_t, v_t, self.motion.checked(t, q_t, v_t)]))

    # ---- chunks ----

    def flush(self, stepper: Stepper) -> None:
        """Write or keep the rows since the last chunk, and the memory from which the integrator continues."""
        if not self._rows:
            return
        chunk = self._finished(stepper, self._times, self._rows, {})
        if self.recorder is None:
            self._chunks.append(chunk)
        self._times, self._rows = [], []

    def all(self, stepper: Stepper) -> Array:
        """All rows so far.

        If rows are `every` steps apart, the last state is one more row until the run continues.
        """
        self.flush(stepper)
        last = []
        if self.options.dt is None and self._latest < stepper.t:
            stepper.complete()
            row = self.motion.fetch(stepper.row)
            last.append(self._finished(stepper, [stepper.t], [row], {LAST: np.ones(1)}))
        elif self._finished_steps < self.steps:  # no rows, but a state to resume from
            self._finished(stepper, [], [], {})
        return np.concatenate([*self._chunks, *last]) if self.recorder is None else read(self.recorder.path).rows

    def _finished(self, stepper: Stepper, times: list[float], rows: list[Array], own: Memory) -> Array:
        """A chunk of rows t, q, v, a, tau, or t and the quantities to keep; it is written if there is a file."""
        memory = stepper.memory() | {"next": np.array([self._next]), "steps": np.array([self.steps])}
        self._finished_steps = self.steps
        model, t = self.motion.model, np.array(times)
        states = np.array(rows).reshape(len(t), model.nq + 2 * model.nv)
        tau = self.motion.torques(t, states[:, : model.nq], states[:, model.nq : model.nq + model.nv])
        chunk = np.column_stack([t, states, tau])
        if self.quantities is not None:
            chunk = np.column_stack([t, self.quantities(Trajectory.from_rows(model, chunk, {}))])
        if self.recorder is not None:
            memory = {name: x if isinstance(x, np.ndarray) else self.motion.fetch(x) for name, x in memory.items()}
            between = {} if self.dense is None else self.dense.unsaved()
            self.recorder.append(chunk, memory | self.marks | own | between)
        return chunk

    def recall(self, t: float, last_row: float, memories: Sequence[Memory]) -> None:
        """Continue the rows of a file at the time t; its last row is at `last_row`."""
        self.steps = int(memories[-1]["steps"][0]) if "steps" in memories[-1] else 0
        if self.dense is not None:
            self.dense = Dense.restored(self.motion.coordinates_on_host, self.t0, memories)
        self._times, self._rows, self._latest, self._finished_steps = [], [], last_row, self.steps
        self._next = 1 if self.options.dt is None else self._last_sample(t) + 1
