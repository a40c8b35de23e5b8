"""The loop over time: it repeats a step of many states, a list of calls on fixed memory, and stores states on the way.

If all calls are machine code (`lowering.py`), so is the loop: no Python runs between two steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends import codegen
from torsor.backends.cache import sources
from torsor.backends.gufunc import entry_of
from torsor.errors import ArgumentError
from torsor.later import Later
from torsor.model.freedoms import limited_coordinates
from torsor.motion.law import Called
from torsor.motion.lowering import FOUND, OTHERS, WAVES, Ask, Lowered, Step, gains_by_freedom
from torsor.validate import masked

if TYPE_CHECKING:
    from torsor.backends.llvm import LLVMWriter

llvm = Later("torsor.backends.llvm")  # imported only if the code is not on disk

Array = NDArray[Any]
# The inputs that change from step to step: (first, count) -> rows (1 or count, ...) by name.
Changing = Callable[[int, int], Mapping[str, Array]]
UNINTERRUPTED = 2_000_000  # numbers of states and inputs per call, a tenth of a second: Ctrl-C waits for the call


def spread(x: Array, shape: tuple[int, ...]) -> Array:
    """x broadcast to this shape; if x has it already, the same array, which stays writable."""
    return x if x.shape == shape else np.broadcast_to(x, shape)


class RowMemory:
    """The memory of a run with one row per state."""

    def __init__(self, step: Step, m: int, dtype: Any) -> None:
        self.step, self.m, self.dtype, model = step, m, dtype, step.model
        self.width = model.nq + model.nv
        self.states = [np.empty((m, self.width), dtype) for _ in range(2)]  # before a step and after it, in turn

    def room(self, count: int) -> Array:
        return np.empty((self.m, count), self.dtype)

    def operand(self, x: Array) -> Array:
        return x

    def parts(self, x: Array, parts: Sequence[slice]) -> list[Array]:
        return [x[:, part] for part in parts]

    def state(self, k: int) -> list[Array]:
        """q and v as operands."""
        x, nq = self.states[k], self.step.model.nq
        return [x[:, :nq], x[:, nq:]]

    def result(self, k: int) -> Array:
        return self.states[k]

    def laid(self, name: str, rows: Array) -> Array:
        """Numbers (steps, m or 1, ...) of an input of a step, in the layout of this memory."""
        return np.ascontiguousarray(np.broadcast_to(rows, (len(rows), self.m, *rows.shape[2:])), self.dtype)

    def enter(self, x: Array) -> None:
        self.states[0][:] = x

    def lying(self, steps: int) -> list[Array]:
        """The columns of the states after some steps, in the layout of this memory."""
        return [self.states[steps % 2]]


BY_FREEDOM = ("tau", "x", "stored")  # inputs with the same quantities for every freedom


class FreedomMemory:
    """The memory of a run with one row per quantity: all freedoms of all states are lanes, (k, m, nv)."""

    def __init__(self, step: Step, m: int, dtype: Any) -> None:
        self.step, self.m, self.dtype, self.n = step, m, dtype, step.model.nv
        self.x = np.empty((2, m, self.n), dtype)

    def room(self, count: int) -> Array:
        return np.empty((count, self.m, self.n), self.dtype)

    def operand(self, x: Array) -> Array:
        return np.moveaxis(x, 0, -1)

    def parts(self, x: Array, parts: Sequence[slice]) -> list[Array]:
        return list(x)

    def state(self, k: int) -> list[Array]:
        return [self.operand(self.x[:1]), self.operand(self.x[1:])]

    def result(self, k: int) -> Array:
        return self.x

    def laid(self, name: str, rows: Array) -> Array:
        if name == "gain":
            return np.stack([gains_by_freedom(self.step.law, gain, self.m) for gain in rows]).astype(self.dtype)
        if name not in BY_FREEDOM:
            return np.ascontiguousarray(np.broadcast_to(rows, (len(rows), self.m, *rows.shape[2:])), self.dtype)
        kinds = rows.shape[-1] // self.n
        wide = np.broadcast_to(rows, (len(rows), self.m, rows.shape[-1])).reshape(len(rows), self.m, kinds, self.n)
        return np.ascontiguousarray(np.moveaxis(wide, 2, 1), self.dtype)

    def enter(self, x: Array) -> None:
        model = self.step.model
        self.x[0] = x[:, : self.n] if model.nq == self.n else x[:, limited_coordinates(model)]
        self.x[1] = x[:, model.nq :]

    def lying(self, steps: int) -> list[Array]:
        return list(self.x)


class PieceRun:
    """The pieces of a step of m states as calls, with their own memory.

    h          (1,) or (m, 1) the length of a step
    given      the other inputs of a step by name, (m or 1, ...): "tau", "gain", and numbers of the states
    times      the times, as fractions of a step, at which functions are called
    functions  the functions of the user;  alone: a single state is passed to them without its batch axis
    """

    def __init__(self, step: Lowered, m: int, h: Array, given: Mapping[str, Array], times: Sequence[float] = (0.0,),
                 functions: Sequence[Called] = (), alone: bool = True) -> None:  # fmt: skip
        self.lowered, self.m, self.times, self.functions, self.alone = step, m, times, functions, alone and m == 1
        self.h = np.broadcast_to(np.asarray(h, step.dtype), (m, 1))
        self.memory = memory = (FreedomMemory if step.by_freedoms else RowMemory)(step.step, m, np.dtype(step.dtype))
        names, inputs = step.step.numbers, step.step.inputs
        shapes = [(m, *inputs[name]) for name in names]
        self.numbers = [spread(np.ascontiguousarray(given[name]), shape) for name, shape in zip(names, shapes)]
        if step.step.law.waves:  # they are written to, state by state
            self.numbers = [x.copy() if name == WAVES else x for name, x in zip(names, self.numbers)]
        # the arrays that calls read: numbers that change in time are copied there, or `TimeLoop` reads them in place
        own = {name: memory.laid(name, np.reshape(given[name], (1, -1, given[name].shape[-1])))[0] for name in LAW}
        self.operands = {name: x.copy() for name, x in own.items()} | dict(zip(names, self.numbers))
        self.t = self.begin = 0.0

    def inputs(self, state: Sequence[Array]) -> list[Array]:
        """The first inputs of the pieces (`lowering.STATE`), from the operands of q and v."""
        memory, low = self.memory, self.lowered
        h = self.h if not low.by_freedoms else np.broadcast_to(self.h[:, None], (self.m, low.step.model.nv, 1))
        return [*state, *(memory.operand(self.operands[name]) for name in LAW), h]

    def asking(self, given: list[Array]) -> Iterator[tuple[list[Call], Ask, list[Array]]]:
        """Yield the calls, the request and the arguments of every piece except the last.

        The answer to the request is appended to `given`, as an input of the next pieces.
        """
        memory, low = self.memory, self.lowered
        for kernel, piece in low.pieces[:-1]:
            assert piece.ask is not None
            asked = memory.room(len(piece.parts) if low.by_freedoms else piece.parts[-1].stop)
            calls, parts = [Call(kernel, given[:], memory.operand(asked))], memory.parts(asked, piece.parts)
            if piece.ask.algorithm is None:
                found = memory.room(FOUND if low.by_freedoms else FOUND * low.step.model.nv)
                calls.append(Call(self._functions(piece.ask.at, found), parts, found))
            else:
                found = memory.room(1 if low.by_freedoms else piece.ask.model.nv)
                parts += low.step.taken_by(low.whole(piece.ask), self.numbers)
                program = low.program(piece.ask)
                calls.append(Call(program, parts, found[0] if low.by_freedoms else found))
            given.append(memory.operand(found))
            yield calls, piece.ask, parts

    def _functions(self, at: int, found: Array) -> Callable[..., None]:
        nv, by_freedoms = self.lowered.step.model.nv, self.lowered.by_freedoms

        def call(q: Array, v: Array, out: Array) -> None:
            t = self.t + self.times[min(at, len(self.times) - 1)] * float(self.h[0, 0])
            for k, x in enumerate(called(self.functions, t, q, v, self.lowered.step.implicit, self.alone)):
                if by_freedoms:
                    found[k] = x
                else:
                    found[:, k * nv : (k + 1) * nv] = x

        return call

    def write(self, rows: Mapping[str, Array], step: int = 0) -> None:
        """Copy the numbers of a step to the operands."""
        for name, x in rows.items():
            self.operands[name][...] = x[step if len(x) > 1 else 0]


class StepRun(PieceRun):
    """Steps of m states: the list of calls of a step; the arguments are those of `PieceRun`."""

    def __init__(self, step: Lowered, m: int, *given: Any, **functions: Any) -> None:
        super().__init__(step, m, *given, **functions)
        self.calls = [self._calls(k) for k in ((0,) if step.by_freedoms else (0, 1))]

    def _calls(self, k: int) -> list[Call]:
        """The calls of a step from state memory k to the other one."""
        memory, low = self.memory, self.lowered
        given, out = self.inputs(memory.state(k)), memory.operand(memory.result(1 - k))
        if low.written_out:
            return [Call(low.kernel, [*given, *self.numbers], out)]
        calls = [call for calls, _, _ in self.asking(given) for call in calls]
        return [*calls, Call(low.pieces[-1][0], given, out)]

    @cached_property
    def _loop(self) -> TimeLoop | None:
        """The loop over time in machine code, if all calls are machine code."""
        if not all(call.is_machine_code for calls in self.calls for call in calls):
            return None
        return TimeLoop(self.calls, self.operands, [self.memory.lying(k) for k in (0, 1)])

    def once(self, x: Array) -> Array:
        """The result of a step, (m, ...), which need not be a state."""
        self.memory.enter(x)
        *calls, last = self.calls[0]
        for call in calls:
            call()
        if not self.lowered.by_freedoms:
            return last.function(*last.inputs)
        columns = last.function(*last.inputs)  # (m, nv, ...)
        return np.moveaxis(columns, 1, -1).reshape(self.m, *columns.shape[2:-1], columns.shape[1] * columns.shape[-1])

    def __call__(self, x: Array, changing: Changing, ends: Sequence[int] = (1,), out: Array | None = None,
                 t: float = 0.0) -> None:  # fmt: skip
        """Move x (m, nq + nv) in place to the last of `ends`; out[:, k] are the states after ends[k] steps."""
        if not self.m:  # without states, machine code does not run, as in NumPy
            return
        memory, at, k = self.memory, 0, 0
        memory.enter(x)
        self.begin = t
        size = x.size + sum(y.size for y in self.operands.values())
        alone = len(ends) == 1 and ends[0] == 1 and out is None  # for one step, Python is as fast
        for every, count in ((1, 0),) if alone else calls_until(ends, max(1, UNINTERRUPTED // size)):
            stored, steps = None if out is None or not count else out[:, k : k + count], every * max(count, 1)
            rows = {name: memory.laid(name, y) for name, y in changing(at, steps).items()}
            (self._in_turn if alone or not self._loop else self._loop)(rows, at, every, max(count, 1), stored)
            at, k = at + steps, k + count
        np.concatenate(memory.lying(at), axis=1, out=x)

    def _in_turn(self, rows: Mapping[str, Array], at: int, every: int, count: int, out: Array | None) -> None:
        """Do the work of `TimeLoop` call by call."""
        for step in range(every * count):
            self.t = self.begin + (at + step) * float(self.h[0, 0])
            self.write(rows, step)
            for call in self.calls[(at + step) % len(self.calls)]:
                call()
            if out is not None and (step + 1) % every == 0:
                np.concatenate(self.memory.lying(at + step + 1), axis=1, out=out[:, step // every])


def at_once(step: Lowered, q: Array, v: Array, tau: Array, gain: Array, h: Array, *numbers: Array) -> Array:
    """One step of many states, with one length per state, h (m, 1), or one for all, (1,)."""
    if step.written_out:
        return step.kernel(q, v, tau, gain, h, *numbers)
    given = {"tau": tau, "gain": gain, **dict(zip(step.step.numbers, numbers))}
    return StepRun(step, len(q), h, given).once(np.concatenate([q, v], axis=1))


def calls_until(ends: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """The calls of machine code that move states to the last of `ends`, each with at most `most` steps.

    Yields the number of steps between two stored states, and the number of stored states; 0: none is stored yet.
    """
    gaps = np.diff(ends, prepend=0)
    changes = np.flatnonzero(np.diff(gaps)) + 1
    for alike in np.split(gaps, changes):
        every, left = int(alike[0]), len(alike)
        if every > most:
            for _ in range(left):
                yield from ((most, 0) for _ in range((every - 1) // most))
                yield (every - 1) % most + 1, 1
            continue
        while left:
            count = min(left, most // every)
            yield every, count
            left -= count


def called(functions: Sequence[Called], t: float, q: Array, v: Array, slopes: bool, alone: bool) -> Array:
    """The results of functions at many states (m, nq), (m, nv): `FOUND` rows (m, nv).

    `alone`: a single state is passed without its batch axis.
    """
    total = np.zeros((FOUND, *v.shape))
    q, v = q.copy(), v.copy()  # functions may keep them, while the next states overwrite the originals
    q.flags.writeable = v.flags.writeable = False
    for term in functions:
        state = (q[0], v[0]) if alone and not term.batched else (q, v)
        first = 0 if term.drive else OTHERS
        total[first] += given_by(term, t, *state)
        if slopes and term.slopes is not None:
            total[first + 1 : first + 3] += slopes_by(term.slopes, t, *state)
    return total


def given_by(term: Called, t: float, q: Array, v: Array) -> Array:
    """The torques of a function, with the shape of v."""
    try:
        return _reals(term.torque(t, q, v), v.shape)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"the force {_name(term.torque)} must be a function of t, q and v that gives {v.shape} numbers for "
            f"q {q.shape}: {error}"
        ) from error


def _reals(found: Any, shape: tuple[int, ...]) -> Array:
    """The result of a function as real numbers of this shape; complex numbers raise an error."""
    if found is None or masked(found):
        raise TypeError(f"it gives {'nothing' if found is None else 'a masked array'}")
    if (x := np.asarray(found)).dtype.kind not in "biuf":
        raise TypeError(f"it gives numbers of dtype {x.dtype}")
    return np.broadcast_to(x.astype(float, copy=False), shape)


def slopes_by(slopes: Callable[..., Any], t: float, q: Array, v: Array) -> Array:
    """The stiffness and the damping of a function, (2, ...), each with the shape of v."""
    try:
        stiffness, damping = slopes(t, q, v)
        found = np.stack([_reals(x, v.shape) for x in (stiffness, damping)])
        if not np.isfinite(found).all() and np.isfinite(q).all() and np.isfinite(v).all():
            raise ValueError("a number is not finite")
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"the slopes {_name(slopes)} must be a function of t, q and v that gives a stiffness and a damping, "
            f"{v.shape} finite numbers each, for q {q.shape}: {error}"
        ) from error
    return found.reshape(2, -1, v.shape[-1])


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


class Call:
    """A function of arrays, with its arguments."""

    def __init__(self, function: Any, inputs: Sequence[Array], out: Array) -> None:
        self.function = getattr(function, "ufunc", function)
        self.inputs, self.out, self.machine = list(inputs), out, function

    def __call__(self) -> None:
        self.function(*self.inputs, self.out)

    @property
    def is_machine_code(self) -> bool:
        return isinstance(self.function, np.ufunc)

    def words(self, keep: list[Any]) -> Iterator[tuple[list[int], Array]]:
        """Yield function, data, and the addresses of arguments, dimensions and steps, as NumPy passes them.

        Also yields the array of the arguments. If one stride cannot reach all states and lanes, yields once per state.
        """
        arrays, ranks = [*self.inputs, self.out], _ranks(self.function.signature)
        outer = self.out.shape[: self.out.ndim - ranks[-1]]
        several = len(outer) > 1 and not all(map(_is_even, arrays, ranks))
        for k in range(outer[0] if several else 1):
            parts = [x[k] if several and x.ndim - rank == len(outer) else x for x, rank in zip(arrays, ranks)]
            count = prod(outer[several:])
            steps = [
                x.strides[x.ndim - rank - 1] if x.ndim > rank and count > 1 else 0 for x, rank in zip(parts, ranks)
            ]
            inner = [step for x, rank in zip(parts, ranks) for step in x.strides[x.ndim - rank :]]
            own = [np.array(x, dtype=np.int64) for x in (list(map(address, parts)), [count], steps + inner)]
            keep.append((own, arrays, self.machine))
            yield [*entry_of(self.function), *map(address, own)], own[0]


def _is_even(x: Array, rank: int) -> bool:
    """Whether one stride reaches all entries along the axes before the last `rank` ones."""
    axes = [*zip(x.shape, x.strides)][: x.ndim - rank]
    return all(size == 1 or step == n * inner for (size, step), (n, inner) in pairwise(axes))


def address(x: Array) -> int:
    """The address of an array: faster than `x.ctypes.data`."""
    return x.__array_interface__["data"][0]


def _extent(x: Array) -> int:
    """How many bytes the numbers of an array span."""
    return sum((size - 1) * step for size, step in zip(x.shape, x.strides)) + x.itemsize


@cache
def _ranks(signature: str) -> list[int]:
    """The number of core axes of every array of a gufunc."""
    cores = signature.replace("->", ",").replace("),(", ")|(").split("|")
    return [core.count(",") + 1 if core != "()" else 0 for core in cores]


NOTHING = [[np.zeros((1, 1), np.int32)]] * 2  # a placeholder if no states are stored: loops run at least once


class TimeLoop:
    """All calls of a step, one after the other, for many steps, in machine code.

    operands    the arrays that the calls read and write, by name
    lying       the columns of the states before the first and before the second step of a pair, if states are stored
    """

    def __init__(self, calls: Sequence[Sequence[Call]], operands: Mapping[str, Array],
                 lying: Sequence[Sequence[Array]] = NOTHING) -> None:  # fmt: skip
        self._keep: list[Any] = []
        rows, self._slots, self._operands = [], [], operands
        places = [(name, address(x), address(x) + _extent(x)) for name, x in operands.items()]
        for call in (call for half in calls for call in half):
            for words, args in call.words(self._keep):
                rows.append(words)
                for k, at in enumerate(args.tolist()):
                    self._slots += [(name, args, k, at - start) for name, start, end in places if start <= at < end]
        self._calls, self._count = np.array(rows, dtype=np.int64), len(rows) // len(calls)
        self._turns = 0 if len(calls) == 1 else 8 * self._calls.shape[1] * self._count  # bytes to the other half
        self._places = np.array([[args.ctypes.data + 8 * k, 0] for _, args, k, _ in self._slots], dtype=np.int64)
        parts, widths = [], [0]
        for first, second in zip(*lying):
            size = first.shape[1] * first.itemsize
            parts.append([address(first), address(second), first.strides[0], size // WORD, sum(widths)])
            widths.append(size)
        self._parts = np.array(parts, dtype=np.int64)
        self._aside = np.empty((len(lying[0][0]), 1, sum(widths)), np.int8)  # receives states that are not stored
        self._function, self._code = _function()

    def __call__(self, rows: Mapping[str, Array], at: int, every: int, count: int, out: Array | None) -> None:
        """Take count * every steps, beginning with step `at`; store the states after each `every` steps as out[:, k].

        `rows`: operands that change, (1 or steps, ...), by name.
        """
        for place, (name, args, k, offset) in zip(self._places, self._slots):
            x = rows.get(name)
            args[k] = address(self._operands[name] if x is None else x) + offset
            place[1] = x.strides[0] if x is not None and len(x) > 1 else 0
        stored = self._aside if out is None else out
        between, row = stored.strides[0], 0 if out is None else stored.strides[1]
        self._function(address(self._calls), self._count, self._turns, address(self._places), len(self._places), at,
                       every, count, address(self._parts), len(self._parts), address(stored), between, row,
                       len(stored))  # fmt: skip


TYPES = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "double": ctypes.c_double}


def function_of(write: Callable[[LLVMWriter], None], **parameters: str) -> tuple[Any, Any]:
    """A function whose body `write` writes, and its code, which must live as long; parameters: LLVM's types by name."""

    def written() -> str:
        host = codegen.host()
        w = llvm.LLVMWriter(llvm.Target(1, 64, host.fma, host.x86))
        write(w)
        head = f"define void @kernel({', '.join(f'{kind} %{name}' for name, kind in parameters.items())}) nounwind"
        return "\n".join([w.declarations, f"{head} {{", "entry:", *w.lines, "  ret void", "}", ""])

    loaded = codegen.load(codegen.name_of(f"{write.__module__}.{write.__qualname__}|{sources()}"), written)
    return ctypes.CFUNCTYPE(None, *(TYPES[kind] for kind in parameters.values()))(loaded.address), loaded


LAW = ("tau", "gain")  # the inputs of a step from the law
POINTERS = ("calls", "places", "parts", "out")
WORD = 4  # bytes copied at a time


@cache
def _function() -> tuple[Any, Any]:
    names = ("calls", "calls_count", "turns", "places", "moving", "at", "every", "count", "parts", "parts_count", "out",
             "between", "row", "states")  # fmt: skip
    return function_of(_write, **{name: "ptr" if name in POINTERS else "i64" for name in names})


def _write(w: LLVMWriter) -> None:
    """Write the loop: per step all calls of its half of the table, then each moving address advances by its stride.

    After each `every` steps, the states are stored.
    """
    with w.loop("stored", 0) as stored:
        first = w.i64("add", "%at", w.i64("mul", stored.i, "%every"))
        with w.loop("step", 0) as step:
            half = w.i64("mul", w.i64("and", w.i64("add", first, step.i), 1), "%turns")
            write_calls(w, w.address("%calls", half), "%calls_count")
            with w.loop("place", 0) as place:
                pair = w.address("%places", w.i64("mul", place.i, 16))
                own, stride = w.load_ptr(pair, 0), w.load_i64(pair, 1)
                w.do(f"store i64 {w.i64('add', w.load_i64(own, 0), stride)}, ptr {own}")
                place.count_to(w, "%moving")
            step.count_to(w, "%every")
        turn = w.i64("mul", w.i64("and", w.i64("add", first, "%every"), 1), 8)
        with w.loop("part", 0) as part:
            own = w.address("%parts", w.i64("mul", part.i, 40))
            source, stride, words = w.load_ptr(w.address(own, turn), 0), w.load_i64(own, 2), w.load_i64(own, 3)
            out = w.address("%out", w.i64("add", w.load_i64(own, 4), w.i64("mul", stored.i, "%row")))
            with w.loop("state", 0) as state:
                begin = w.address(source, w.i64("mul", state.i, stride))
                end = w.address(out, w.i64("mul", state.i, "%between"))
                with w.loop("word", 0) as word:
                    place_of_word = w.i64("mul", word.i, WORD)
                    x = w.op(f"load i32, ptr {w.address(begin, place_of_word)}, align {WORD}")
                    w.do(f"store i32 {x}, ptr {w.address(end, place_of_word)}, align {WORD}")
                    word.count_to(w, words)
                state.count_to(w, "%states")
            part.count_to(w, "%parts_count")
        stored.count_to(w, "%count")


WORDS = ("function", "data", "args", "dims", "steps")


def write_calls(w: LLVMWriter, calls: str, count: str) -> None:
    """Write the calls of a table, one after the other."""
    with w.loop("call", 0) as call:
        own = w.address(calls, w.i64("mul", call.i, 8 * len(WORDS)))
        found = {name: w.load_ptr(own, k) for k, name in enumerate(WORDS)}
        w.do(
            f"call void {found['function']}({', '.join(f'ptr {found[x]}' for x in ('args', 'dims', 'steps', 'data'))})"
        )
        call.count_to(w, count)
