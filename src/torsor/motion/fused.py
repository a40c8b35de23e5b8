"""All stages of an explicit step in one call of machine code.

Where the right-hand side is compiled (forces are data), one NumPy call per sum would cost more than the dynamics
themselves. This code does the same sums as `Stages.one_by_one`, as a loop around the machine code of the right-hand
side: a list of calls per stage, which are the rates of coordinates, computed torques, the law of the joints and the
forward dynamics. It serves every model, every list and every tableau.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.backends.gufunc import entry_of
from torsor.compiler.store import store
from torsor.linalg import Scalar
from torsor.model.freedoms import limited_coordinates
from torsor.model.model import Model
from torsor.motion.coordinates import rates
from torsor.motion.laws import kernel

if TYPE_CHECKING:
    from torsor.backends.cpu import Program
    from torsor.backends.llvm import LLVMWriter
    from torsor.motion.joint_forces import JointForces
    from torsor.motion.motion import Motion

Array = NDArray[Any]

# The words that the code reads: addresses of arrays, and sizes; then those of every call.
SIZES = ("s", "m", "n", "first", "estimates", "count")
WORDS = ("calls", "P", "Y", "A", "rtol", "atol", "squares", *SIZES)
CALL = ("function", "data", "args", "dims", "steps", "width")


class Call(NamedTuple):
    """A function of machine code, with its arguments as NumPy passes them: a row of addresses per stage."""

    owner: Any  # of the code
    entry: tuple[int, int]  # the function, and its data
    args: Array  # (s, arrays)
    dims: Array
    steps: Array  # bytes: in every array from state to state, then between the numbers of a state, along all axes

    @classmethod
    def of_freedoms(cls, kernel: Any, rows: Sequence[Sequence[int]], n: int) -> Call:
        """A law of one freedom, at n of them."""
        return cls(kernel, entry_of(kernel), np.array(rows), np.array([n]), np.full(len(rows[0]), 8))

    @classmethod
    def of_state(cls, program: Any, rows: Sequence[Sequence[int]], n: int, given: Sequence[Array] = ()) -> Call:
        """A program or kernel of a state; `given`: its arrays but the first, the second and the last."""
        ends = [8] * min(len(rows[0]) - 1, 2)
        steps = [*[0] * len(rows[0]), *ends, *(x for array in given for x in array.strides), 8]
        entry = program.entry if hasattr(program, "entry") else entry_of(program)
        return cls(program, entry, np.array(rows), np.array([1, n]), np.array(steps))

    @property
    def words(self) -> list[int]:
        arrays = (x.ctypes.data for x in (self.args, self.dims, self.steps))
        return [*self.entry, *arrays, 8 * self.args.shape[1]]


class FusedStages:
    """h -> the sums of squares of the errors of a step, relative to their tolerances, one per estimate; the stages are
    stored in P and Y (see `Stages`, whose `weights` are A here).
    """

    def __init__(
        self, motion: Motion, program: Program, P: Array, Y: Array, A: Array, rtol: Array, atol: Array, first: int
    ) -> None:
        """`program`: that of the motion, whose law gives the torques, the first of its inputs, at every stage."""
        s, m = Y.shape
        nq, n, law = motion.model.nq, motion.model.nv, motion.law
        given = [np.ascontiguousarray(x) for x in motion.given]
        others, states = [[x.ctypes.data] * s for x in given], [[y, y + 8 * nq] for y in _rows(Y)]
        rates: list[int] = _rows(P[1:])
        self.first, self._changing = first, list[tuple[Array, Any]]()
        calls, room, commands, wrenches, x = [], None, None, None, np.empty(n)
        at_freedoms = states
        if not motion.coordinates.flat:
            rate, coordinate = rates_of(motion.model)
            calls = [Call.of_state(rate, [[*state, k] for state, k in zip(states, rates)], n)]
            calls += [Call.of_state(coordinate, [[q, x.ctypes.data] for q, _ in states], n)]
            at_freedoms = [[x.ctypes.data, v] for _, v in states]
        if motion.joints.waves:  # the wrenches follow the torques, with a row per stage
            wrenches = np.empty((s, *given[1].shape))
            others[1] = _rows(wrenches)
            self._changing.append((wrenches[first:], motion.joints.wrenches_at))
        if law is not None:
            commands = np.zeros((len(law.commands), s, n))
            for command, (steady, at) in zip(commands, law.commands):
                command[:] = at([0.0]) if steady else 0.0
                self._changing += [] if steady else [(command[first:], at)]
            room = np.empty((len(law.computed), 5, n))
            calls += _torques(law, at_freedoms, commands, room, others[0][0])
        rows = [[*state, *own, k + 8 * nq] for state, own, k in zip(states, zip(*others), rates)]
        calls.append(Call.of_state(program, rows, n, given))
        table = np.array([call.words for call in calls], dtype=np.int64)
        arrays = {"calls": table, "P": P, "Y": Y, "A": A, "rtol": rtol, "atol": atol, "squares": np.empty(len(A) - s)}
        values = {name: array.ctypes.data for name, array in arrays.items()}
        # where dq/dt is not v, the first call overwrites what is copied
        values |= {
            "s": s,
            "m": m,
            "n": n if motion.coordinates.flat else 0,
            "first": first,
            "estimates": len(A) - s,
            "count": len(calls),
        }
        self._words = np.array([values[name] for name in WORDS], dtype=np.int64)
        self._alive = (calls, given, arrays, law, commands, room, wrenches, x)
        self._squares = arrays["squares"]
        (self._call, self._code), self._at = _function(), self._words.ctypes.data

    def follow(self, t: float, h: float, c: Sequence[float]) -> None:
        """Evaluate what changes in time, at the times t + c h of the stages."""
        for rows, at in self._changing:
            rows[:] = at([t + x * h for x in c[self.first :]])

    def __call__(self, h: float) -> list[float]:
        self._call(self._at, h)
        return self._squares.tolist()


def _torques(law: JointForces, states: list[list[int]], commands: Array, room: Array, out: int) -> Iterator[Call]:
    """The law of the joints, after the computed torques that add to its command.

    commands   of the drives, and the accelerations that each computed torque demands, (s, n) each
    room       (computed torques, 5, n): kp, kd, accelerations, torques, and the command with these torques
    """
    n, (u, *demands) = room.shape[-1], map(_rows, commands)
    for force, demand, own in zip(law.computed, demands, room):
        own[0], own[1] = force.kp, force.kd
        kp, kd, a, tau, total = _rows(own)
        servo = kernel(("servo",), slopes=False)
        yield Call.of_freedoms(servo, [[*state, w, kp, kd, a] for state, w in zip(states, demand)], n)
        yield Call.of_state(force.program, [[*state, a, tau] for state in states], n, [own[2]])
        yield Call.of_freedoms(_sum(), [[x, tau, total] for x in u], n)
        u = [total] * len(u)
    numbers = [x.ctypes.data for x in law.numbers]
    yield Call.of_freedoms(law.kernel, [[*state, x, *numbers, out] for state, x in zip(states, u)], n)


MOST_COORDINATES = 128  # of a machine with quaternions: its rates are straight-line code


def rates_of(model: Model) -> tuple[Any, Any]:
    """Kernels of a machine with quaternions: q, v -> dq/dt, and q -> the coordinate of every freedom."""
    from torsor.backends.pointwise import compile_pointwise

    def coordinate_rates(q: Sequence[Scalar], v: Sequence[Scalar]) -> list[Scalar]:
        return rates(model, q, v)

    def freedom_coordinates(q: Sequence[Scalar]) -> list[Scalar]:
        return [q[k] for k in limited_coordinates(model).tolist()]

    def make() -> tuple[Any, Any]:
        q, v = (model.nq,), (model.nv,)
        return compile_pointwise(coordinate_rates, {"q": q, "v": v}), compile_pointwise(freedom_coordinates, {"q": q})

    return store(model).once("coordinate rates", make)


@cache
def _sum() -> Any:
    from torsor.backends.pointwise import compile_pointwise  # imported late, so that `import torsor` stays quick

    def sum_of_two(a: Scalar, b: Scalar) -> Scalar:
        return a + b

    return compile_pointwise(sum_of_two, {"a": (), "b": ()})


def _rows(x: Array) -> list[int]:
    """The addresses of the rows of an array."""
    return [x.ctypes.data + k * x.strides[0] for k in range(len(x))]


def write_calls(w: LLVMWriter, calls: str, count: str, stage: int | str = 0) -> None:
    """Write the calls of a table, one after the other, with the arguments of a stage."""
    with w.loop("call", 0) as call:
        own = w.address(calls, w.i64("mul", call.i, 8 * len(CALL)))
        found = {name: (w.load_i64 if name == "width" else w.load_ptr)(own, k) for k, name in enumerate(CALL)}
        args = w.address(found["args"], w.i64("mul", stage, found["width"]))
        rest = ", ".join(f"ptr {found[name]}" for name in ("dims", "steps", "data"))
        w.do(f"call void {found['function']}(ptr {args}, {rest})")
        call.count_to(w, count)


TYPES = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "double": ctypes.c_double}


def function_of(write: Callable[[LLVMWriter], None], **parameters: str) -> tuple[Any, Any]:
    """(a function whose body `write` writes, the code that must live as long as it does); LLVM's types by name."""
    from torsor.backends import codegen  # imported late, so that `import torsor` stays quick
    from torsor.backends.llvm import LLVMWriter, Target

    host = codegen.host()
    w = LLVMWriter(Target(1, 64, host.fma, host.x86))
    write(w)
    head = f"define void @kernel({', '.join(f'{kind} %{name}' for name, kind in parameters.items())}) nounwind"
    code = "\n".join([w.declarations, f"{head} {{", "entry:", *w.lines, "  ret void", "}", ""])
    loaded = codegen.load(codegen.name_of(code), lambda: code)
    return ctypes.CFUNCTYPE(None, *(TYPES[kind] for kind in parameters.values()))(loaded.address), loaded


@cache
def _function() -> tuple[Any, Any]:
    return function_of(_write, words="ptr", h="double")


def _write(w: LLVMWriter) -> None:
    """All stages, then the errors."""
    words = {name: (w.load_i64 if name in SIZES else w.load_ptr)("%words", k) for k, name in enumerate(WORDS)}
    s, m, n = words["s"], words["m"], words["n"]

    def at(array: str, *terms: str) -> str:
        """The address of the entry of an array whose place is the sum of the terms."""
        place = terms[0]
        for term in terms[1:]:
            place = w.i64("add", place, term)
        return w.address(words[array], w.i64("mul", place, 8))

    def combined(row: str, column: str, count: str) -> str:
        """The product of A[row, 0:count] with a column of the rates P[1:]."""
        first = w.i64("mul", row, s)
        with w.loop("rate", 0, [w.const(0.0)]) as rate:
            rate.count_to(w, count)
            weight, slope = w.load(at("A", first, rate.i)), w.load(at("P", w.i64("mul", rate.next, m), column))
            rate.carry = [w.fma(weight, slope, rate.carried[0])]
        return rate.carry[0]

    with w.loop("stage", words["first"]) as stage:
        stage.count_to(w, s)
        y, k = w.i64("mul", stage.i, m), w.i64("mul", stage.next, m)
        with w.loop("entry", 0) as d:  # y_i = y + h sum_j A_ij k_j
            w.store(w.fma("%h", combined(stage.i, d.i, stage.i), w.load(at("P", d.i))), at("Y", y, d.i))
            d.count_to(w, m)
        with w.loop("velocity", 0) as d:  # k_i = (v_i, a_i)
            w.store(w.load(at("Y", y, n, d.i)), at("P", k, d.i))
            d.count_to(w, n)
        write_calls(w, words["calls"], words["count"], stage.i)
    last = w.i64("mul", w.i64("sub", s, 1), m)
    with w.loop("estimate", 0) as estimate:  # the sum of (h sum_j E_j k_j / (atol + rtol max(|y|, |y_new|)))^2
        with w.loop("error", 0, [w.const(0.0)]) as c:
            error = w.operation("mul", "%h", combined(w.i64("add", s, estimate.i), c.i, s))
            old, new = (w.operation("abs", w.load(place)) for place in (at("P", c.i), at("Y", last, c.i)))
            scale = w.fma(w.load(at("rtol", c.i)), w.operation("max", old, new), w.load(at("atol", c.i)))
            ratio = w.arithmetic("fdiv", error, scale)
            c.carry = [w.fma(ratio, ratio, c.carried[0])]
            c.count_to(w, m)
        w.store(c.carry[0], at("squares", estimate.i))
        estimate.count_to(w, words["estimates"])
