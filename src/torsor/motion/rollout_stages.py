"""A step cut into stages: compiled code between the programs of the dynamics, for models too large to unroll.

A stage is the code that finds what a program is asked for: (q, v, tau, ...) of the forward dynamics, or (q, v, a) of
the inverse dynamics of computed torques.  It reads what the programs found in earlier stages.  On a GPU the same stages
stand around the loop kernel of a large model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms.newton_euler import inverse_dynamics
from torsor.compiler.members import Members
from torsor.compiler.tape import Code
from torsor.dynamics.calls import program_for
from torsor.model.model import Model
from torsor.motion.rollout import STATE, Law, cut, dynamics_of, own_numbers, step_inputs
from torsor.sweeps import Algorithm

Array = NDArray[Any]
Function = Callable[..., Array]

# Of a stage that is compiled.  Rows of many numbers take long to compile: 1000 in and 800 out take 5 s.
MOST_OPERATIONS, MOST_NUMBERS = 15_000, 800


class Ask(NamedTuple):
    """What a stage asks for: the output of an algorithm of a model."""

    algorithm: Algorithm
    model: Model
    options: tuple[str, ...] = ()

    @property
    def is_forward(self) -> bool:
        """Whether it is the forward dynamics, which alone takes what acts on the bodies and numbers of members."""
        return self.algorithm is not inverse_dynamics


class Stage(NamedTuple):
    """A part of a step: its code, its inputs, and what is asked for with its outputs; the last stage asks for nothing.

    parts   of its outputs: q, v, tau, ...
    """

    code: Code
    inputs: dict[str, tuple[int, ...]]
    parts: tuple[slice, ...]
    ask: Ask | None


def stages_of(model: Model, law: Law, move: Callable[..., Any], found: Members | None = None) -> list[Stage]:
    """All stages of `move(plant, q, v, h)`."""
    codes, end = cut(model, law, move, inverse=True)
    nq, nv = model.nq, model.nv
    inputs = {name: shape for name, shape in step_inputs(model, law).items() if name in STATE}
    inverse = [Ask(inverse_dynamics, law.computed)] if law.computed else []
    result = []
    for s, code in enumerate(codes):
        parts = slice(nq), *(slice(k, k + nv) for k in range(nq, len(code.outputs), nv))
        added = ("added_inertia",) * (len(parts) > 3)
        asks = [*inverse, Ask(dynamics_of(model, law), model, (*added, *own_numbers(law, found)))]
        result.append(Stage(code, dict(inputs), parts, asks[s % len(asks)]))
        inputs[f"a{s}"] = (nv,)
    return [*result, Stage(end, inputs, (), None)]


def compiled_stage(code: Code, inputs: Mapping[str, tuple[int, ...]], dtype: str) -> Function:
    """A code as a function of rows: compiled if it is short, and otherwise column by column."""
    from torsor.backends.pointwise import compile_code

    numbers = len(code.outputs) + sum(map(prod, inputs.values()))
    if len(code.nodes) <= MOST_OPERATIONS and numbers <= MOST_NUMBERS:
        return compile_code(code, inputs, dtype, "rollout_stage")

    def by_columns(*rows: Array) -> Array:
        columns = {name: x.T for name, x in zip(inputs, rows)}
        found = np.stack(np.broadcast_arrays(*code.evaluate(columns).values(), rows[0][:, 0])[:-1], axis=-1)
        for out in rows[len(inputs) :]:
            out[:] = found
        return found.astype(dtype, copy=False)

    return by_columns


def staged_step(model: Model, law: Law, move: Callable[..., Any], dtype: str,
                found: Members | None = None) -> Function:  # fmt: skip
    """`move(plant, q, v, h)` as a function of all inputs of a step, and of the array for the new states."""
    *asking, last = stages_of(model, law, move, found)
    number = np.dtype(dtype).char

    def program(ask: Ask) -> Function:
        own = found if ask.is_forward else None
        return program_for(ask.algorithm, ask.model, ask.options, number, None, own).ufunc  # on one thread: chunks are

    steps = [
        (compiled_stage(x.code, x.inputs, dtype), x.parts, program(x.ask), x.ask.is_forward) for x in asking if x.ask
    ]
    finish = compiled_stage(last.code, last.inputs, dtype)

    def step(q: Array, v: Array, tau: Array, gain: Array, h: Array, *others: Array) -> Array:
        *numbers, out = others
        known: list[Array] = []
        for stage, parts, program, is_forward in steps:
            x = stage(q, v, tau, gain, h, *known)
            known.append(program(*[x[:, part] for part in parts], *(numbers if is_forward else ())))
        return finish(q, v, tau, gain, h, *known, out)

    return step
