"""Many steps of many states in one call of machine code, for joints that act each by itself.

Without quaternions, and with gains on the diagonal only, what a step does between two evaluations of the accelerations
is the same for every freedom. So the step of a machine with one freedom, cut into stages (`rollout_stages.py`), serves
all freedoms of all states: they are the lanes of its code. A step is then a list of calls: a stage, the compiled
forward dynamics, the next stage, and so on. As in `fused.py`, the code is a loop around these calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends.gufunc import entry_of
from torsor.compiler.members import Members
from torsor.dynamics.calls import program_for
from torsor.inputs import place_of
from torsor.model.freedoms import limited_coordinates
from torsor.model.model import Model
from torsor.motion.feedback import Law
from torsor.motion.fused import Call, function_of, write_calls
from torsor.motion.laws import KINDS
from torsor.motion.rollout import dynamics_of, options_of, own_numbers, step
from torsor.motion.rollout_stages import compiled_stage, stages_of

if TYPE_CHECKING:
    from torsor.backends.llvm import LLVMWriter

Array = NDArray[Any]
UNINTERRUPTED = 2_000_000  # freedoms and steps of one call, a tenth of a second: Ctrl-C waits for it


def marches(model: Model, law: Law) -> bool:
    """Whether every joint acts by itself: on its own coordinate, with gains for its own position and velocity."""
    own = np.stack([limited_coordinates(model), model.nq + np.arange(model.nv)], axis=1)[law.gains[:, 0]]
    diagonal = (law.gains[:, 1:] == own).any(axis=1).all()
    return bool(model.nq == model.nv and not law.policy and not law.computed and diagonal)


def marching(
    model: Model, integrator: str, law: Law, dtype: str, found: Members | None = None
) -> Callable[..., March]:  # fmt: skip
    """How states take steps: a function of an array of such states, their gains, [h] and the numbers of a step."""
    *asking, last = stages_of(*one_freedom(law), partial(step, integrator))
    stages = [(compiled_stage(x.code, x.inputs, dtype), len(x.parts)) for x in asking]
    end = compiled_stage(last.code, last.inputs, dtype)
    options = options_of(integrator, law, found)
    program = program_for(dynamics_of(model, law), model, options, np.dtype(dtype).char, None, found)
    shapes = [place_of(name).shape(model) for name in own_numbers(law, found)]

    def march(x: Array, gain: Array, h: Array, *numbers: Array) -> March:
        own = [np.broadcast_to(np.ascontiguousarray(y), (len(x), *shape)) for y, shape in zip(numbers, shapes)]
        return March(stages, end, program, gains_by_freedom(model, law, gain, len(x)), h, own)

    return march


def one_freedom(law: Law) -> tuple[Model, Law]:
    """A machine of one freedom, and the law at every freedom of a machine that marches."""
    one = Model.chain("revolute", n=1, mass=1.0, inertia=(1.0, 1.0, 1.0))
    places = [(0, 0), (0, 1)] if len(law.gains) else []
    count = len(places) + sum(len(KINDS[kind][1]) for kind, _ in law.parts)
    parts = tuple((kind, (0,)) for kind, _ in law.parts)
    return one, Law(np.array(places, int).reshape(-1, 2), parts, np.zeros(max(count, 1)), np.zeros(1))


def gains_by_freedom(model: Model, law: Law, gain: Array, m: int) -> Array:
    """The gains of every freedom, then the numbers of its parts: (k, m, nv), never empty."""
    K, D = np.zeros((2, m, model.nv), gain.dtype)
    at = len(law.gains)
    for diagonal, own in ((K, law.gains[:, 1] < model.nq), (D, law.gains[:, 1] >= model.nq)):
        diagonal[:, law.gains[own, 0]] = gain[..., :at][..., own]
    rows = [K, D] if at else []
    for kind, freedoms in law.parts:
        for usual in KINDS[kind][1].values():
            row = np.full((m, model.nv), usual, gain.dtype)
            row[:, list(freedoms)] = gain[..., at : at + len(freedoms)]
            rows.append(row)
            at += len(freedoms)
    return np.stack(rows or [K])


class March:
    """(x, torques, steps): moves the states x = (q, v), (m, 2 n), in place under the torques (m, n)."""

    def __init__(
        self, stages: Sequence[tuple[Any, int]], end: Any, program: Any, gain: Array, h: Array, numbers: Sequence[Array]
    ) -> None:
        """`stages` of one freedom, and how many numbers each gives;  gain (k, m, n);  `numbers`: the last inputs of the
        program."""
        shape = gain.shape[1:]

        def room(*more: int) -> Array:
            return np.empty((*more, *shape), gain.dtype)

        self.state, self.torques = room(2), room()
        every = room()
        every[:] = h
        known, given = [*self.state, self.torques, gain, every], []
        calls = []
        for stage, count in stages:
            asked, a = room(count), room()
            calls += [_of_freedoms(stage, known, asked), _of_states(program, [*asked, *numbers, a])]
            known.append(a)
            given.append(asked)
        calls.append(_of_freedoms(end, known, self.state))
        self._table = np.array([call.words for call in calls], dtype=np.int64)
        self._alive = calls, known, given, numbers
        self._call, self._code = _function()

    def __call__(self, x: Array, torques: Array, steps: int) -> None:
        q, v = self.state
        n = q.shape[1]
        q[:], v[:], self.torques[:] = x[:, :n], x[:, n:], torques
        at_once = max(1, UNINTERRUPTED // max(1, q.size))
        for done in range(0, steps, at_once):
            self._call(self._table.ctypes.data, len(self._table), min(at_once, steps - done))
        x[:, :n], x[:, n:] = q, v


def _of_freedoms(kernel: Any, known: Sequence[Array], out: Array) -> Call:
    """A stage, whose lanes are all freedoms: those of arrays (m, n), or (k, m, n) with k numbers per freedom."""
    arrays = [*known, out]
    steps = [*[out.itemsize] * len(arrays), *(x.strides[0] for x in arrays)]
    return Call(kernel, entry_of(kernel), np.array([_places(arrays)]), np.array([out[0].size]), np.array(steps))


def _of_states(program: Any, arrays: Sequence[Array]) -> Call:
    """The program of m states; its result is the last of the arrays."""
    steps = [*(x.strides[0] for x in arrays), *(y for x in arrays for y in x.strides[1:])]
    return Call(program, program.entry, np.array([_places(arrays)]), np.array(arrays[0].shape), np.array(steps))


def _places(arrays: Sequence[Array]) -> list[int]:
    return [x.ctypes.data for x in arrays]


@cache
def _function() -> tuple[Any, Any]:
    return function_of(_write, calls="ptr", count="i64", steps="i64")


def _write(w: LLVMWriter) -> None:
    """All calls, one after the other, `steps` times."""
    with w.loop("step", 0) as step:
        write_calls(w, "%calls", "%count")
        step.count_to(w, "%steps")
