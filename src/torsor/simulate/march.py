"""Many steps of many states in one call of machine code, for forces that are linear at every joint.

    tau = c - K q - E v,     a = accelerations (with inertias added to the pivots),     v <- v + h a,     q <- q + h v

with E = D for the semi-implicit Euler method and E = D + h K for the linearly implicit one. As in `fused.py`, the code
is a loop around the machine code of the compiled forward dynamics, and serves every model without quaternions.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torsor.backends.cpu import Program

Array = NDArray[Any]

# The words that the code reads: addresses of arrays, and how many numbers each array has.
ARRAYS = ("rhs", "data", "args", "dims", "steps", "q", "v", "tau", "a", "c", "K", "E")
WORDS = (*ARRAYS, "size")


class March:
    """(x, torques, steps): moves the states x = (q, v), (m, 2 n), in place under the torques c (m, n)."""

    def __init__(self, program: Program, x: Array, K: Array, E: Array, added: Array | None, h: float) -> None:
        """K, E and added: (m, n)."""
        m, n = K.shape
        self.q, self.v, tau, a, self.c = np.empty((5, m, n))
        inputs = [self.q, self.v, tau, *([] if added is None else [np.ascontiguousarray(added)])]
        rhs, data = program.entry
        count = len(inputs) + 1
        # as NumPy passes them: m states; the strides of the states, then of the numbers, of all inputs and of out
        arrays = {
            "args": np.array([array.ctypes.data for array in (*inputs, a)]), "dims": np.array([m, *[n] * count]),
            "steps": np.array([8 * n] * count + [8] * count), "q": self.q, "v": self.v, "tau": tau, "a": a,
            "c": self.c, "K": np.ascontiguousarray(K), "E": np.ascontiguousarray(E),
        }  # fmt: skip
        values = {name: array.ctypes.data for name, array in arrays.items()} | {"rhs": rhs, "data": data, "size": m * n}
        self._words = np.array([values[name] for name in WORDS], dtype=np.int64)
        self._alive, self._h = (program, inputs, arrays), h
        self._call, _ = _function()

    def __call__(self, x: Array, torques: Array, steps: int) -> None:
        n = self.q.shape[1]
        self.q[:], self.v[:], self.c[:] = x[:, :n], x[:, n:], torques
        self._call(self._words.ctypes.data, self._h, steps)
        x[:, :n], x[:, n:] = self.q, self.v


@cache
def _function() -> tuple[Any, Any]:
    """(the function, the code that must live as long as it does)"""
    from torsor.backends import codegen  # imported late, so that `import torsor` stays quick

    host = codegen.host()
    code = _ir(host.fma, host.x86)
    loaded = codegen.load(codegen.name_of(code), lambda: code)
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_double, ctypes.c_int64)(loaded.address), loaded


def _ir(fma: bool, x86: bool) -> str:
    """void kernel(words, h, count): `count` steps."""
    from torsor.backends.llvm import Target, Writer

    w = Writer(Target(1, 64, fma, x86))
    words = {name: (w.load_i64 if name == "size" else w.load_ptr)("%words", k) for k, name in enumerate(WORDS)}

    def at(array: str, k: str) -> str:
        return w.address(words[array], w.i64("mul", k, 8))

    def times(a: str, b: str) -> str:
        return w.operation("mul", a, b)

    with w.loop("step", "0") as step:
        with w.loop("torque", "0") as d:  # products and sums are rounded one by one, as NumPy does
            held = w.operation("sub", w.load(at("c", d.i)), times(w.load(at("K", d.i)), w.load(at("q", d.i))))
            tau = w.operation("sub", held, times(w.load(at("E", d.i)), w.load(at("v", d.i))))
            w.store(tau, at("tau", d.i))
            d.count_to(w, words["size"])
        w.do(f"call void {words['rhs']}(ptr {words['args']}, ptr {words['dims']}, ptr {words['steps']}, "
             f"ptr {words['data']})")  # fmt: skip
        with w.loop("move", "0") as d:
            v = w.operation("add", w.load(at("v", d.i)), times("%h", w.load(at("a", d.i))))
            w.store(v, at("v", d.i))
            w.store(w.operation("add", w.load(at("q", d.i)), times("%h", v)), at("q", d.i))
            d.count_to(w, words["size"])
        step.count_to(w, "%count")
    body = "\n".join(w.lines)
    head = f"{w.declarations}\ndefine void @kernel(ptr %words, double %h, i64 %count) nounwind {{"
    return f"{head}\nentry:\n{body}\n  ret void\n}}\n"
