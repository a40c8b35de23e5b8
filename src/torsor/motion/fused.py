"""All stages of an explicit step in one call of machine code.

If all forces are data, one NumPy call per sum would cost more than the dynamics themselves. This code computes the same
sums as `Stages.one_by_one` in a loop around the machine code of the right-hand side: a list of calls per stage, for the
rates of coordinates, the pieces of the law, and the forward dynamics. It serves every model and every tableau.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends.pointwise import compile_pointwise
from torsor.compiler.store import store
from torsor.linalg import Scalar
from torsor.model.freedoms import limited_coordinates
from torsor.model.model import Model
from torsor.motion.coordinates import rates
from torsor.motion.lowering import WAVES, Step, gains_by_freedom, lowered
from torsor.motion.motion import torques_under
from torsor.motion.time_loop import WORDS as CALL
from torsor.motion.time_loop import Call, function_of, write_calls

if TYPE_CHECKING:
    from torsor.backends.cpu import Program
    from torsor.backends.llvm import LLVMWriter
    from torsor.motion.motion import Motion

Array = NDArray[Any]

# The words that the code reads: addresses of arrays, and sizes. `calls` is the table of the words of all calls.
SIZES = ("s", "m", "n", "first", "estimates", "count")
WORDS = ("calls", "P", "Y", "A", "rtol", "atol", "squares", *SIZES)
MOST_COORDINATES = 128  # of a machine with quaternions, whose rates are straight-line code


def can_fuse(motion: Motion) -> bool:
    """Whether the right-hand side is machine code only."""
    small = motion.coordinates.flat or motion.model.nq <= MOST_COORDINATES
    if not (motion.law.is_data and small) or motion.program is None:
        return False
    if motion.dynamics != "auto" and motion.law.load_names:  # another program maps loads to torques at the joints
        return False
    return motion.is_free or lowered(Step(torques_under, "torques", motion.law, moves=False)).is_machine_code


class FusedStages:
    """h -> the sums of squares of error / tolerance of a step, one per estimate.

    The stages are stored in P and Y (see `Stages`, whose `weights` are A here).
    """

    def __init__(self, motion: Motion, P: Array, Y: Array, A: Array, rtol: Array, atol: Array, first: int) -> None:
        s, m = Y.shape
        self.motion, self.first = motion, first
        self._law = lowered(Step(torques_under, "torques", motion.law, moves=False))
        width = motion.law.constant.size
        self._commands = np.array(np.broadcast_to(motion.law.constant.reshape(-1), (s, width)))
        self._gains = np.array(np.broadcast_to(motion.law.values, (s, *motion.law.values.shape)))
        self._wrenches = [np.array(np.broadcast_to(x, (s, *x.shape))) for x in motion.compiled_law.loads(0.0)]
        calls = [self._stage(P[1 + k], Y[k], k) for k in range(s)]
        keep: list[Any] = []
        words = [word for stage in calls for call in stage for word, _ in call.words(keep)]
        table = np.array(words, dtype=np.int64)
        arrays = {"calls": table, "P": P, "Y": Y, "A": A, "rtol": rtol, "atol": atol, "squares": np.empty(len(A) - s)}
        values = {name: array.ctypes.data for name, array in arrays.items()}
        # the code copies n entries of v as dq/dt, at least one; if dq/dt is not v, the first call overwrites that one
        n = motion.model.nv if motion.coordinates.flat else 0
        values |= dict(zip(SIZES, (s, m, n, first, len(A) - s, len(calls[0]))))
        self._words = np.array([values[name] for name in WORDS], dtype=np.int64)
        self._alive = calls, keep, arrays
        self._squares = arrays["squares"]
        (self._call, self._code), self._at = _function(), self._words.ctypes.data

    def _stage(self, rate: Array, y: Array, k: int) -> list[Call]:
        """The calls of stage k: from the state y to its rate."""
        motion, low, nq = self.motion, self._law, self.motion.model.nq
        nv, law = motion.model.nv, motion.law
        q, v, u, h = y[None, :nq], y[None, nq:], self._commands[None, k], np.ones((1, 1))
        loads = [x[k][None] for x in self._wrenches]
        calls = [] if motion.coordinates.flat else [Call(rates_of(motion.model), [q, v], rate[None, :nq])]
        tau = self._commands[None, k, :nv]
        program: Program | None = motion.program
        if not motion.is_free or law.changes:
            tau = np.empty((1, nv))
            if low.by_freedoms:
                gain = np.moveaxis(gains_by_freedom(law, law.values, 1), 0, -1)
                x = q
                if motion.model.nq != nv:
                    x = np.empty((1, nv))
                    calls.append(Call(coordinates_of(motion.model), [q], x))
                given = [x[..., None], v[..., None], u[..., None], gain, np.broadcast_to(h, (1, nv, 1))]
                calls.append(Call(low.pieces[-1][0], given, tau[..., None]))
            else:
                calls += self._by_rows([q, v, u, self._gains[None, k], h], loads, tau)
        return [*calls, Call(program, [q, v, tau, *loads], rate[None, nq:])]

    def _by_rows(self, given: list[Array], loads: Sequence[Array], tau: Array) -> list[Call]:
        low, calls, nv = self._law, [], self.motion.model.nv
        if low.written_out:
            return [Call(low.kernel, [*given, *loads], tau)]
        for kernel, piece in low.pieces[:-1]:
            assert piece.ask is not None
            asked, found = np.empty((1, piece.parts[-1].stop)), np.empty((1, nv))
            calls.append(Call(kernel, given[:], asked))
            calls.append(Call(low.program(piece.ask), [asked[:, part] for part in piece.parts], found))
            given = [*given, found]
        return [*calls, Call(low.pieces[-1][0], given, tau)]

    def follow(self, t: float, h: float, c: Sequence[float], before: float = np.inf) -> None:
        """Read the inputs that change in time at the stages' times t + c h, limited to the time `before`."""
        law = self.motion.law
        if not law.schedules:
            return
        times = np.minimum(t + h * np.array(c[self.first :]), before)
        if law.changes:
            self._commands[self.first :] = law.commands_at(times)
        if law.schedule is not None:
            self._gains[self.first :] = law.values_at(times)
        if law.waves:
            assert law.loads is not None
            self._wrenches[0][self.first :] = law.loads[WAVES] + law.waves_at(times)

    def __call__(self, h: float) -> list[float]:
        self._call(self._at, h)
        return self._squares.tolist()


def rates_of(model: Model) -> Any:
    """The kernel (q, v) -> dq/dt of a machine with quaternions."""

    def coordinate_rates(q: Sequence[Scalar], v: Sequence[Scalar]) -> list[Scalar]:
        return rates(model, q, v)

    sizes, key = {"q": (model.nq,), "v": (model.nv,)}, ("coordinate rates", model.joint.tobytes())
    return store(model).once("coordinate rates", lambda: compile_pointwise(coordinate_rates, sizes, "float64", key))


def coordinates_of(model: Model) -> Any:
    """The kernel q -> the coordinate of every freedom; an arbitrary number for a freedom without one."""

    def freedom_coordinates(q: Sequence[Scalar]) -> list[Scalar]:
        return [q[k] for k in limited_coordinates(model).tolist()]

    key = "freedom coordinates", model.joint.tobytes()
    make = lambda: compile_pointwise(freedom_coordinates, {"q": (model.nq,)}, "float64", key)  # noqa: E731
    return store(model).once("freedom coordinates", make)


@cache
def _function() -> tuple[Any, Any]:
    return function_of(_write, words="ptr", h="double")


def _write(w: LLVMWriter) -> None:
    """All stages, then the errors."""
    words = {name: (w.load_i64 if name in SIZES else w.load_ptr)("%words", k) for k, name in enumerate(WORDS)}
    s, m, n = words["s"], words["m"], words["n"]

    def at(array: str, *terms: str) -> str:
        """The address of the entry of an array whose index is the sum of the terms."""
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
        own = w.i64("mul", w.i64("mul", stage.i, words["count"]), 8 * len(CALL))
        write_calls(w, w.address(words["calls"], own), words["count"])
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
