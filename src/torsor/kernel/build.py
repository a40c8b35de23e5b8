"""What goes into a kernel: the code of an algorithm for a model, its text at every stage, and its operations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from torsor.accuracy import may_regroup
from torsor.errors import ArgumentError
from torsor.kernel import machine
from torsor.kernel.data import input_shapes
from torsor.kernel.frames import Framed, Kind, framed, regroup
from torsor.kernel.llvm import Target
from torsor.kernel.llvm_arrays import loop_kernel, unrolled_kernel
from torsor.kernel.packing import TOGETHER, Packing
from torsor.kernel.tape import Code, Operations
from torsor.kernel.trace import LoopCode, looped, shape_of, unroll
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.sweeps import Algorithm, way_to_base


class Build(NamedTuple):
    algorithm: Algorithm
    model: Model
    inputs: tuple[str, ...]
    target: Target
    code: Code | LoopCode
    frame: Frame | None = None  # where the climb of a "path" starts

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the output, for one state."""
        return shape_of(self.code) if isinstance(self.code, Code) else shape_of_loops(self.code, self.model)

    def ir(self) -> str:
        if isinstance(self.code, Code):
            shapes = dict(zip(self.inputs, input_shapes(self.inputs, self.model)))
            return unrolled_kernel(self.code, shapes, self.shape, self.target)
        return loop_kernel(self.code, self.target)

    def name(self) -> str:
        """Under which its machine code is kept: the same for all loops over bodies of the same kinds."""
        # what else decides the text: of straight-line code the shapes, of loops where things are kept
        more = input_shapes(self.inputs, self.model) if isinstance(self.code, Code) else self.code.layout
        return machine.name_of(f"{text_of(self.code)}|{self.inputs}|{more}|{self.target}")

    def source(self, stage: str) -> str:
        makers: dict[str, Callable[[], str]] = {
            "tape": lambda: text_of(self.code), "llvm": self.ir, "asm": lambda: machine.assembly(self.ir()),
            "cuda": self._cuda, "c": self._c,
        }  # fmt: skip
        if stage not in makers:
            raise ArgumentError(f"unknown stage {stage!r}; choose one of: {', '.join(makers)}")
        return makers[stage]()

    def _cuda(self) -> str:
        from torsor.kernel.cuda import Kernel

        shapes = input_shapes(self.inputs, self.model)
        sizes = tuple((name, math.prod(shape)) for name, shape in zip(self.inputs, shapes))
        return Kernel(self.code, sizes, self.shape, self.target.bits).source()

    def _c(self) -> str:
        from torsor.kernel.c import CFunction

        return CFunction.of(self).text()

    @property
    def operations(self) -> Operations:
        if isinstance(self.code, Code):
            return Operations.of(self.code)
        return count(self.code, framed(self.model), self.frame)

    @property
    def operations_per_joint(self) -> dict[Kind, Operations]:
        code = self.code
        return {} if isinstance(code, Code) else {kind: code.operations(k) for k, kind in enumerate(code.kinds)}

    @property
    def operations_formula(self) -> str:
        total, kinds = self.operations, framed(self.model).kind
        per_joint = list(self.operations_per_joint.values())
        each = per_joint[int(np.bincount(kinds).argmax())] if per_joint else Operations()
        n = self.model.n
        terms = [
            f"{name} {f'{a} n {b - a * n:+d}' if a else b}" for name, a, b in zip(Operations._fields, each, total) if b
        ]
        return ", ".join(terms)


@functools.lru_cache(maxsize=4)
def unrolled(algorithm: Algorithm, model: Model, inputs: tuple[str, ...], frame: Frame | None = None) -> Code:
    """The straight-line code of an algorithm for one model; kept a while, as choosing a method looks at it too."""
    frames = straight_line_frames(model) if algorithm.torques_only else framed(model)
    return unroll(algorithm, frames, inputs, frame)


def straight_line_frames(model: Model) -> Framed:
    """The model in its short frames, masses regrouped unless that would cost digits."""
    frames = framed(model)
    return regroup(frames) if may_regroup(model) else frames


def loops(algorithm: Algorithm, model: Model, inputs: tuple[str, ...]) -> LoopCode:
    """The loops of an algorithm over bodies of the kinds that the model has."""
    return _loops(algorithm, inputs, framed(model).kinds)


@functools.lru_cache(maxsize=256)
def _loops(algorithm: Algorithm, inputs: tuple[str, ...], kinds: tuple[Kind, ...]) -> LoopCode:
    return looped(algorithm, inputs, kinds)


def shape_of_loops(code: LoopCode, model: Model) -> tuple[int, ...]:
    return code.algorithm.output.shape(model, code.entry)


def text_of(code: Code | LoopCode) -> str:
    """The tape, to read and to know it by."""
    if isinstance(code, Code):
        return str(code)
    parts = []
    for p in code.passes:
        parts.append(f"{'outward' if p.outward else 'inward'} pass, start\n{p.start}")
        parts += [f"at {kind.joint} ({kind.form})\n{c}" for kind, c in zip(code.kinds, p.codes)]
    if code.columns:
        for (kind, k), c in code.columns.starts.items():
            parts.append(f"climb from freedom {k} of {code.kinds[kind].joint} ({code.kinds[kind].form})\n{c}")
        parts += [f"climb through {kind.joint} ({kind.form})\n{c}" for kind, c in zip(code.kinds, code.columns.codes)]
        if code.columns.outward:
            parts.append(f"{code.columns.rest} at rest; outward pass after it, start\n{code.columns.outward.start}")
            parts += [f"at {kind.joint} ({kind.form})\n{c}" for kind, c in zip(code.kinds, code.columns.outward.codes)]
    if code.finish:
        parts.append(f"at the base\n{code.finish}")
    return f"{code.algorithm.output}\n" + "\n\n".join(parts)


def count(code: LoopCode, frames: Framed, frame: Frame | None) -> Operations:
    """The exact count for one state: every pass at every body, every climb along its way."""
    bodies = np.bincount(frames.kind, minlength=len(code.kinds))
    total = Operations()
    for p in code.passes:
        total = total + Operations.of(p.start)
        for c, times in zip(p.codes, bodies):
            total = total + Operations.of(c) * int(times)
    if code.finish:
        total = total + Operations.of(code.finish)
    if code.columns and frame is not None:  # one climb only
        way = [int(frames.kind[i]) for i in way_to_base(frames.model.parent.tolist(), frame.body)]
        for start in way[:1]:
            total = total + Operations.of(code.columns.starts[start, 0])
        for kind, times in zip(*np.unique(way[1:], return_counts=True)):
            total = total + Operations.of(code.columns.codes[int(kind)]) * int(times)
    elif code.columns:
        model = frames.model
        freedoms = (model.v_start[1:] - model.v_start[:-1]).copy()
        below = np.zeros(model.n, np.int64)  # freedoms carried by each body: how often a climb comes by
        for i in range(model.n - 1, -1, -1):
            if model.parent[i] >= 0:
                below[model.parent[i]] += below[i] + freedoms[i]
        visits = np.bincount(frames.kind, weights=below, minlength=len(code.kinds)).astype(int)
        for c, times in zip(code.columns.codes, visits):
            total = total + Operations.of(c) * int(times)
        for (kind, _), c in code.columns.starts.items():
            total = total + Operations.of(c) * int(bodies[kind])
        if code.columns.outward:  # of a symmetric matrix, bodies up to the column's own
            asked = np.cumsum(freedoms[::-1])[::-1] if code.packing == "symmetric" else np.full(model.n, model.nv)
            visits = np.bincount(frames.kind, weights=asked, minlength=len(code.kinds)).astype(int)
            for c, times in zip(code.columns.outward.codes, visits):
                total = total + Operations.of(c) * int(times)
        if code.packing == "product":
            shared = TOGETHER * int(Packing.of("product", model).products[:, 1].sum())
            total = total + Operations(mul=shared, add=shared)
    return total
