"""All stages of an explicit step in one call of machine code.

Where the right-hand side is one compiled program (forces are data) and dq/dt = v, one NumPy call per sum would cost
more than the dynamics themselves. This code does the same sums as `Stages.one_by_one`, as a loop around the program's
own machine code and, where torques change with the state, that of the law of the joints. It serves every model and
every tableau.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends.gufunc import entry_of

if TYPE_CHECKING:
    from torsor.backends.cpu import Program
    from torsor.simulate.joint_forces import JointForces

Array = NDArray[Any]

# The words that the code reads: addresses of arrays, and sizes.
SIZES = ("s", "m", "n", "first", "estimates", "width", "law_width")
LAW = ("law", "law_data", "law_args", "law_dims", "law_steps")
WORDS = ("rhs", "data", "args", "dims", "steps", "P", "Y", "A", "rtol", "atol", "squares", *LAW, *SIZES)


class FusedStages:
    """h -> the sums of squares of the errors of a step, relative to their tolerances, one per estimate; the stages are
    stored in P and Y (see `Stages`, whose `weights` are A here).
    """

    def __init__(
        self, program: Program, given: list[Array], P: Array, Y: Array, A: Array, rtol: Array, atol: Array, first: int,
        law: JointForces | None,
    ) -> None:  # fmt: skip
        """`law`: what gives the torques, the first array of `given`, at every stage."""
        s, m = Y.shape
        n = m // 2
        given = [np.ascontiguousarray(x) for x in given]
        others = [x.ctypes.data for x in given]
        places = list(zip(_rows(Y), _rows(P[1:])))
        strides = [8, 8, *(x for array in given for x in array.strides), 8]
        arrays = _call("", [[y, y + 8 * n, *others, k + 8 * n] for y, k in places], [1, n], 0, strides)
        arrays |= {"P": P, "Y": Y, "A": A, "rtol": rtol, "atol": atol, "squares": np.empty(len(A) - s)}
        self.changing, self.commands = law is not None and not law.is_steady, np.zeros((s, n))
        addresses = dict(zip(("rhs", "data"), program.entry)) | dict.fromkeys(LAW, 0) | {"law_width": 0}
        if law is not None:  # as a function of freedoms, not of states
            self.command = law.command
            self.commands[:] = law.command(0.0) if law.is_steady else 0.0
            numbers = [x.ctypes.data for x in law.numbers]
            rows = [[y, y + 8 * n, c, *numbers, others[0]] for (y, _), c in zip(places, _rows(self.commands))]
            arrays |= _call("law_", rows, [n], 8, [])
            addresses |= dict(zip(("law", "law_data"), entry_of(law.kernel))) | {"law_width": 8 * len(rows[0])}
        values = addresses | {name: array.ctypes.data for name, array in arrays.items()}
        values |= {"s": s, "m": m, "n": n, "first": first, "estimates": len(A) - s}
        values["width"] = 8 * len(arrays["args"][0])
        self._words = np.array([values[name] for name in WORDS], dtype=np.int64)
        self._alive = (program, given, arrays, law)
        self._squares = arrays["squares"]
        (self._call, _), self._at = _function(law is not None), self._words.ctypes.data

    def __call__(self, h: float) -> list[float]:
        self._call(self._at, h)
        return self._squares.tolist()


def _call(name: str, rows: list[list[int]], dims: list[int], apart: int, strides: list[int]) -> dict[str, Array]:
    """The arguments of a function as NumPy passes them, a row of addresses per stage; `apart`: the bytes from state to
    state, in every array; `strides`: those between the numbers of a state, along all axes of all arrays."""
    steps = [*[apart] * len(rows[0]), *strides]
    return {f"{name}args": np.array(rows), f"{name}dims": np.array(dims), f"{name}steps": np.array(steps)}


def _rows(x: Array) -> list[int]:
    """The addresses of the rows of an array."""
    return [x.ctypes.data + k * x.strides[0] for k in range(len(x))]


@cache
def _function(with_law: bool) -> tuple[Any, Any]:
    """(the function, the code that must live as long as it does)"""
    from torsor.backends import codegen  # imported late, so that `import torsor` stays quick

    host = codegen.host()
    code = _ir(host.fma, host.x86, with_law)
    loaded = codegen.load(codegen.name_of(code), lambda: code)
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_double)(loaded.address), loaded


def _ir(fma: bool, x86: bool, with_law: bool) -> str:
    """void kernel(words, h): all stages, then the errors."""
    from torsor.backends.llvm import Target, Writer

    w = Writer(Target(1, 64, fma, x86))
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
        for code, name in ((("law", "law_"),) if with_law else ()) + (("rhs", ""),):
            args = w.address(words[f"{name}args"], w.i64("mul", stage.i, words[f"{name}width"]))
            rest = ", ".join(f"ptr {words[f'{name}{x}']}" for x in ("dims", "steps", "data"))
            w.do(f"call void {words[code]}(ptr {args}, {rest})")
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
    body = "\n".join(w.lines)
    return f"{w.declarations}\ndefine void @kernel(ptr %words, double %h) nounwind {{\nentry:\n{body}\n  ret void\n}}\n"
