"""From a request to its intermediate code and its cost: everything that needs tracing.

`request.py` imports this on demand.  A program found on disk starts without it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from torsor.compiler.counts import operations_of
from torsor.compiler.derivative import Derivative, root_of
from torsor.compiler.frames import Framed, Kind, framed, straight_line_frames
from torsor.compiler.loop_derivatives import looped_derivative
from torsor.compiler.tape import Code, Operations
from torsor.compiler.tape_derivatives import unrolled_derivative
from torsor.compiler.trace import LoopCode, looped, shape_of, unroll
from torsor.inputs import MEMBERS
from torsor.model.model import Model
from torsor.model.names import BodyFrames, Frame
from torsor.sweeps import Algorithm

if TYPE_CHECKING:
    from torsor.compiler.request import Request


def code_of(request: Request) -> Code | LoopCode:
    """Straight-line code if it has few operations, else loops."""
    return _straight(request, request.algorithm, request.inputs) if _unrolls(request) else loops_of(request)


def _unrolls(request: Request) -> bool:
    """Whether the code is unrolled, because it has few operations.  A derivative is unrolled if its primal is."""
    if not request.may_unroll or not request.algorithm.has_loops:
        return request.may_unroll
    root = root_of(request.algorithm)
    options = (name for name in request.inputs[len(request.algorithm.inputs) :] if name in (*root.options, *MEMBERS))
    return sum(Operations.of(_straight(request, root, (*root.inputs, *options)))) <= request.unroll.operations


def _straight(request: Request, algorithm: Algorithm, inputs: tuple[str, ...]) -> Code:
    if request.members:
        return _straight_line(algorithm, request.frames, inputs, request.frame)
    return unrolled(algorithm, request.model, inputs, request.frame, request.body_frames)


@functools.lru_cache(maxsize=4)
def unrolled(algorithm: Algorithm, model: Model, inputs: tuple[str, ...], frame: Frame | None = None,
             body_frames: BodyFrames | None = None) -> Code:  # fmt: skip
    """The straight-line code of an algorithm for one model; cached briefly, because the choice of a method reads it
    too."""
    moved = isinstance(algorithm, Derivative) and "placement" in algorithm.parameters
    may_regroup = algorithm.torques_only and not moved
    frames = straight_line_frames(model, body_frames) if may_regroup else framed(model, body_frames)
    return _straight_line(algorithm, frames, inputs, frame)


def _straight_line(algorithm: Algorithm, frames: Framed, inputs: tuple[str, ...], frame: Frame | None) -> Code:
    if isinstance(algorithm, Derivative):
        return unrolled_derivative(algorithm, frames, inputs, frame)
    return unroll(algorithm, frames, inputs, frame)


def loops_of(request: Request) -> LoopCode:
    """The loops of a request, whether or not its own code is loops."""
    return _loops(request.algorithm, request.inputs, request.frames.kinds)


@functools.lru_cache(maxsize=256)
def _loops(algorithm: Algorithm, inputs: tuple[str, ...], kinds: tuple[Kind, ...]) -> LoopCode:
    if isinstance(algorithm, Derivative):
        return looped_derivative(algorithm, inputs, kinds)
    return looped(algorithm, inputs, kinds)


def output_shape(request: Request) -> tuple[int, ...]:
    code = request.code
    if isinstance(code, LoopCode):
        return request.algorithm.output.shape(request.model, code.entry)
    return shape_of(code)


# What it costs -------------------------------------------------------------------------------------------------


def operations(request: Request) -> Operations:
    return operations_of(request.code, request.frames, request.frame)


def operations_per_joint(request: Request) -> dict[Kind, Operations]:
    code = request.code
    return {kind: code.operations(k) for k, kind in enumerate(code.kinds)} if isinstance(code, LoopCode) else {}


def operations_formula(request: Request) -> str:
    total, n = operations(request), request.model.n
    per_joint = list(operations_per_joint(request).values())
    each = per_joint[int(np.bincount(request.frames.kind).argmax())] if per_joint else Operations()
    counts = zip(Operations._fields, each, total)
    return ", ".join(f"{name} {f'{a} n {b - a * n:+d}' if a else b}" for name, a, b in counts if b)
