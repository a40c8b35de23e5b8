"""Adjoints of steps: from the cotangents of the state after a step to those of everything that the step depends on.

The adjoint of a step is made from the tape of that step (`compiler/tape_derivatives.py`). It is one kernel, or the
pieces and their adjoints, with the programs that the pieces ask for and the vjps of these in between. Like the step
itself it is a list of calls, and the loop over time is machine code (`time_loop.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, reduce
from itertools import chain
from math import prod
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.backends.pointwise import trace
from torsor.compiler.derivative import derivative
from torsor.compiler.store import store
from torsor.compiler.tape import Code
from torsor.compiler.tape_derivatives import Replay, along_freedoms, by_joint, of_coordinates, scalars, summed
from torsor.dynamics.calls import program_for
from torsor.inputs import COORDINATES, FREEDOMS
from torsor.linalg import Scalar
from torsor.motion.laws import KINDS
from torsor.motion.lowering import Ask, Lowered, Step, compiled_piece
from torsor.motion.time_loop import Call, PieceRun, TimeLoop

Array = NDArray[Any]
Scalars = Sequence[Scalar]
OF = ("q", "v", "tau", "gain")  # the inputs with cotangents
ROOM = 1 << 17  # numbers in the rows of one block of steps: these rows stay in the cache


class Reverse(NamedTuple):
    """A kernel that writes cotangents in one row, and the place of each input's cotangents in that row."""

    kernel: Any
    places: dict[str, slice]

    @property
    def size(self) -> int:
        return max(place.stop for place in self.places.values())


def adjoint(step: Step, code: Code, sizes: Mapping[str, int], cotangents: Sequence[Scalars]) -> dict[str, list[Scalar]]:
    """The cotangents of some inputs of a code whose outputs begin with (q, v, ...).

    Cotangents of q are with respect to displacements along v. `sizes`: the size of each of these inputs.
    `cotangents`: of the outputs q (nv numbers), v, ..., as scalars of a tape; the code is replayed on that tape.
    """
    model = step.model
    tape = next(x.tape for x in cotangents[0] if hasattr(x, "tape"))
    again = Replay(code, tape)
    outputs = list(code.outputs.values())
    q = scalars(tape, (again.at[i] for i in outputs[: model.nq]))
    given = [*by_joint(model, of_coordinates, q, FREEDOMS, cotangents[0]), *(x for g in cotangents[1:] for x in g)]
    seeds = summed(tape, ((i, tape.node_of(g)) for i, g in zip(outputs, given)))
    found = again.pull(seeds, {(name, k) for name in sizes for k in range(sizes[name])})
    zero = tape.const(0.0)
    result = {name: list(scalars(tape, (found.get((name, k), zero) for k in range(n)))) for name, n in sizes.items()}
    start = [tape.input(("q", k)) for k in range(model.nq)]
    result["q"] = by_joint(model, along_freedoms, start, COORDINATES, result["q"])
    return result


def reverse(step: Step, code: Code, inputs: Mapping[str, tuple[int, ...]], seeds: int, dtype: str) -> Reverse:
    """The adjoint of a piece of a step.

    Its inputs are those of the piece, the cotangents of the `seeds` arrays of the piece's request, and the row of the
    later pieces, to which it adds. The last piece requests nothing, and seeds is 0: it takes the cotangents of the
    state after the step in two parts that are added (from the next step, and of this state itself), and the cotangents
    of the law's numbers from the later steps.
    """
    of = [name for name in inputs if name in OF or (name[0] == "a" and name[1:].isdigit())]
    sizes, nv = {name: inputs[name][0] for name in of}, step.model.nv
    ends = np.cumsum([nv if name == "q" else size for name, size in sizes.items()]).tolist()
    groups = [(f"g{k}",) for k in range(seeds)] if seeds else [("q'", "stored q'"), ("v'", "stored v'")]
    added = {"gain": sizes["gain"]} if not seeds else dict(zip(of, np.diff(ends, prepend=0).tolist()))
    wide = dict(inputs) | {name: (nv,) for group in groups for name in group} | {"before": (sum(added.values()),)}

    def row(*given: Any) -> list[Scalar]:
        named = dict(zip(wide, given))
        g = [[reduce(add, xs) for xs in zip(*map(named.get, group))] for group in groups]
        found, before = adjoint(step, code, sizes, g), iter(named["before"])
        return [x + next(before) if name in added else x for name in of for x in found[name]]

    places = {name: slice(start, end) for name, start, end in zip(of, [0, *ends], ends)}
    return Reverse(compiled_piece(trace(row, wide), wide, dtype), places)


class Adjoint(Lowered):
    """The adjoint of a step as kernels.

    wrt     the model's numbers with respect to which the step is differentiated as well
    apart   whether the caller needs the states at which accelerations are evaluated
    """

    def __init__(self, step: Step, dtype: str, wrt: tuple[str, ...] = (), apart: bool = False) -> None:
        super().__init__(step, dtype, in_pieces=bool(wrt) or apart)
        self.wrt, alone = wrt, step.one_freedom if self.by_freedoms else step
        if self.written_out:
            self.backward = [reverse(step, trace(step.whole, step.inputs), step.inputs, 0, dtype)]
        else:
            pieces = [piece for _, piece in self.pieces]
            self.backward = [reverse(alone, x.code, x.inputs, len(x.parts), dtype) for x in pieces]
        self.vjps = {ask: self._vjp(ask) for ask in self.programs}

    def _vjp(self, ask: Ask) -> Any:
        algorithm = self.step.algorithm if ask.is_forward else ask.algorithm
        assert algorithm is not None
        own = ("added_inertia",) * ("added_inertia" in ask.options)
        vjp = derivative(algorithm, "vjp", (*algorithm.inputs, *own, *self.step.parameters_in(ask, self.wrt)))
        number = np.dtype(self.dtype).char
        return program_for(vjp, ask.model, ask.options, number, None, self.step.members_in(ask))

    @property
    def row(self) -> Reverse:
        """The kernel that writes the row of a step: the cotangents of q, v, commands and the law's numbers."""
        return self.backward[0]


def adjoint_of(step: Step, dtype: str, wrt: tuple[str, ...] = (), apart: bool = False) -> Adjoint:
    """The adjoint of a step, kept with the model or the structure of a batch."""
    made = step.members.store if step.members else store(step.model)
    return made.once(("adjoint", *step.reads, dtype, wrt, apart), lambda: Adjoint(step, dtype, wrt, apart))


@cache
def adding(count: int, dtype: str) -> Callable[..., Array]:
    """x + y of rows of numbers, as a piece of a step."""

    def total(x: Scalars, y: Scalars) -> list[Scalar]:
        return [a + b for a, b in zip(x, y)]

    inputs = {"x": (count,), "y": (count,)}
    return compiled_piece(trace(total, inputs), inputs, dtype)


class AdjointRun(PieceRun):
    """Adjoint steps of m states: the list of calls of one adjoint step; the arguments are those of `PieceRun`.

    of_model      the cotangents (m, k) of the model's numbers by name, summed over all steps
    evaluations   the states (q, v) at which the last step evaluated accelerations
    """

    lowered: Adjoint

    def __init__(self, low: Adjoint, m: int, h: Array, given: Mapping[str, Array]) -> None:
        super().__init__(low, m, h, given)
        model, row = low.step.model, self.memory.room(low.row.size)
        self.operands |= {"row": row, "next": np.zeros_like(row)}  # the rows of this step and of the step after it
        for name, size in {"x": model.nq + model.nv, "stored": 2 * model.nv}.items():
            self.operands[name] = self.memory.laid(name, np.zeros((1, m, size), low.dtype))[0].copy()
        self.of_model: dict[str, Array] = {}
        self.evaluations: list[tuple[Array, Array]] = []
        self.calls = [*self._calls()]

    def _calls(self) -> Iterator[Call]:
        low, memory, nq, nv = self.lowered, self.memory, self.lowered.step.model.nq, self.lowered.step.model.nv
        q, v = memory.parts(self.operands["x"], (slice(0, nq), slice(nq, nq + nv)))
        stored = memory.parts(self.operands["stored"], (slice(0, nv), slice(nv, 2 * nv)))
        row, following = (memory.operand(self.operands[name]) for name in ("row", "next"))
        given = self.inputs(self._lanes(q, v))
        asked: list[tuple[Ask, list[Array]]] = []
        for calls, ask, parts in self.asking(given):
            yield from calls
            asked.append((low.whole(ask), parts))
            self.evaluations += [(parts[0], parts[1])] if ask.is_forward else []
        *others, last = low.backward
        pairs = zip((following[..., low.row.places[name]] for name in "qv"), self._lanes(*stored))
        found = following[..., low.row.places["gain"]]
        if low.step.law.schedule is not None:  # every step has its own numbers
            found = np.zeros_like(found)
        total = memory.operand(memory.room(last.size)) if others else row
        numbers = self.numbers if low.written_out else []
        yield Call(last.kernel, [*given, *numbers, *chain(*pairs), found], total)
        for s, own in reversed([*enumerate(others)]):
            seed, count = total[..., low.backward[s + 1].places[f"a{s}"]], len(low.pieces[s][1].parts)
            before, total = total[..., : own.size], memory.operand(memory.room(own.size)) if s else row
            ask, parts = asked[s]
            calls, of_asked = self._answered(ask, parts, seed, count)
            yield from calls
            yield Call(own.kernel, [*given[: 5 + s], *self._lanes(*of_asked), before], total)

    def _answered(self, ask: Ask, parts: list[Array], seed: Array, count: int) -> tuple[list[Call], list[Array]]:
        """From the cotangents of the answer to a request to those of its `count` arrays; cotangents of the model's
        numbers are added up.
        """
        low = self.lowered
        vjp, out = low.vjps[ask], np.empty((self.m, low.vjps[ask].shape[0]), low.dtype)
        calls = [Call(vjp, [*parts[:3], seed[..., 0] if low.by_freedoms else seed, *parts[3:]], out)]
        found = columns(out, vjp.request.parts)
        of_asked = [found.pop(name) for name in [*found][:count]]
        for name, x in found.items():
            total = self.of_model.setdefault(name, np.zeros(x.shape, low.dtype))
            calls.append(Call(adding(x.shape[1], low.dtype), [total, x], total))
        return calls, of_asked

    def _lanes(self, *arrays: Array) -> list[Array]:
        """Operands of the pieces: rows, or all freedoms as lanes."""
        return [x[..., None] for x in arrays] if self.lowered.by_freedoms else list(arrays)

    @cached_property
    def _loop(self) -> TimeLoop | None:
        """The loop over time in machine code, if all calls are machine code."""
        if not all(call.is_machine_code for call in self.calls):
            return None
        return TimeLoop([self.calls], self.operands)

    def __call__(self, path: Array, stored: Array, changing: Mapping[str, Array],
                 each: Callable[[], None] | None = None) -> Iterator[tuple[int, Array]]:  # fmt: skip
        """Step back from the last state of a path (k, m, nq + nv) to the first; a later call continues from there.

        Yields the index of the first step of a block, and the rows of the block.

        stored     (k, m, 2 nv) the cotangents of the states after these steps themselves
        changing   the inputs that change in time, by name, (1 or k, m or 1, ...)
        each       called after every step, before the next one overwrites the operands
        """
        following, most = self.operands["next"], max(1, ROOM // max(1, self.operands["row"].size))
        given = {name: self.memory.laid(name, x) for name, x in {**changing, "x": path, "stored": stored}.items()}
        for end in range(len(path), 0, -most):
            first = max(0, end - most)
            rows = np.empty((end - first + 1, *following.shape), following.dtype)
            rows[-1] = following
            own = {name: x if len(x) == 1 < len(path) else x[first:end][::-1] for name, x in given.items()}
            if self.m and each is None and self._loop:  # without states, machine code does not run, as in NumPy
                self._loop(own | {"row": rows[:-1][::-1], "next": rows[1:][::-1]}, 0, end - first, 1, None)
            elif self.m:
                self._in_turn(own, rows, each)
            following[...] = rows[0]
            yield first, rows[:-1]

    def _in_turn(self, given: Mapping[str, Array], rows: Array,
                 each: Callable[[], None] | None) -> None:  # fmt: skip
        """Do the work of `TimeLoop` call by call."""
        for k in reversed(range(len(rows) - 1)):
            self.write({**given, "next": rows[k + 1 : k + 2]}, len(rows) - 2 - k)
            for call in self.calls:
                call()
            rows[k] = self.operands["row"]
            if each:
                each()

    def of(self, name: str, rows: Array) -> Array:
        """The cotangents of an input, (k, m, ...), from the rows (k, ...) of k steps."""
        step, place = self.lowered.step, self.lowered.row.places[name]
        if not self.lowered.by_freedoms:
            return rows[..., place]
        found = np.moveaxis(rows[:, place], 1, 2)  # (k, m, kinds, nv)
        if name == "gain":
            return np.array([gathered(step, np.moveaxis(x, 1, 2)) for x in found])
        return found.reshape(*found.shape[:2], prod(found.shape[2:]))


def cotangents(low: Adjoint, h: Array, given: Mapping[str, Array], x: Array, seeds: Array) -> dict[str, Array]:
    """The cotangents (m, k, ...) of q, v and the commands for one step from m states x, each with k seeds.

    `seeds` (k, 2 nv) are cotangents of the state after the step; `given` holds the other inputs, (m or 1, ...) each.
    """
    step, nv, m, k = low.step, low.step.model.nv, len(x), len(seeds)
    names = "q", "v", "tau"
    if low.written_out and isinstance(low.row.kernel, np.ufunc):  # states are the inner axis: they are the lanes
        state = x[:, : step.model.nq], x[:, step.model.nq :], given["tau"], given["gain"]
        none = np.zeros(max(nv, given["gain"].shape[-1]))
        pairs = chain(*((g[:, None], none[:nv]) for g in np.split(seeds, 2, axis=1)))
        numbers = (given[name] for name in step.numbers)
        row = low.row.kernel(*state, h, *numbers, *pairs, none[: given["gain"].shape[-1]])
        return {name: row[..., low.row.places[name]].swapaxes(0, 1) for name in names}
    rows = np.repeat(np.arange(m), k)
    many = {name: y if len(y) == 1 < m else y[rows] for name, y in given.items()}
    run = AdjointRun(low, len(rows), h, many)
    ((_, row),) = run(x[rows][None], np.tile(seeds, (m, 1))[None], {})
    return {name: (y := run.of(name, row)[0]).reshape(m, k, *y.shape[1:]) for name in names}


def columns(rows: Array, parts: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Cut rows (m, ...) into the arrays that they contain one after the other, (m, k) each."""
    found, start = {}, 0
    for name, shape in parts.items():
        end = start + prod(shape)
        found[name], start = rows[:, start:end], end
    return found


def gathered(step: Step, gain: Array) -> Array:
    """The cotangents of the law's numbers, (m, k), from those of every freedom, (m, nv, kinds)."""
    law = step.law
    found, at = [], 2 if len(law.gains) else 0
    for row, column in law.gains.tolist():
        found.append(gain[:, row, int(column >= step.model.nq)])
    for kind, freedoms in law.parts:
        for _ in KINDS[kind][1]:
            found += [gain[:, i, at] for i in freedoms]
            at += 1
    return np.stack(found, axis=-1) if found else np.zeros((len(gain), 1))
