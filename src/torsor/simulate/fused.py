"""All stages of an explicit step in one call of machine code.

Where the right-hand side is one compiled program (no forces written in Python) and dq/dt = v, one NumPy call per sum
would cost more than the dynamics themselves. This code does the same sums as `Stages.one_by_one`, as a loop around the
program's own machine code. It serves every model and every tableau.
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

# The words that the code reads: addresses of arrays, and sizes.
SIZES = ("s", "m", "n", "first", "estimates")
WORDS = ("rhs", "data", "args", "dims", "steps", "P", "Y", "A", "rtol", "atol", "squares", *SIZES)

CODE = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare double @llvm.fabs.f64(double)
declare double @llvm.maxnum.f64(double, double)

; dot of A[row, 0:count] with column d of the rates P[1:]
define private double @combine(ptr %A, i64 %row, ptr %P, i64 %m, i64 %d, i64 %count) nounwind {
entry:
  br label %loop
loop:
  %j = phi i64 [0, %entry], [%j2, %loop]
  %sum = phi double [0.0, %entry], [%sum2, %loop]
  %a_at = add i64 %row, %j
  %a_p = getelementptr double, ptr %A, i64 %a_at
  %a = load double, ptr %a_p
  %j2 = add i64 %j, 1
  %k_row = mul i64 %j2, %m
  %k_at = add i64 %k_row, %d
  %k_p = getelementptr double, ptr %P, i64 %k_at
  %k = load double, ptr %k_p
  %ak = fmul contract double %a, %k
  %sum2 = fadd contract double %sum, %ak
  %more = icmp slt i64 %j2, %count
  br i1 %more, label %loop, label %done
done:
  ret double %sum2
}

define void @kernel(ptr %words, double %h) nounwind {
entry:
@LOADS@
  %bytes = mul i64 %n, 8
  br label %stage

stage: ; i = first ... s - 1
  %i = phi i64 [%first, %entry], [%i2, %call]
  %a_row = mul i64 %i, %s
  %y_row = mul i64 %i, %m
  br label %component
component: ; y_i = y + h sum_j A_ij k_j
  %d = phi i64 [0, %stage], [%d2, %component]
  %sum = call double @combine(ptr %A, i64 %a_row, ptr %P, i64 %m, i64 %d, i64 %i)
  %y0_p = getelementptr double, ptr %P, i64 %d
  %y0 = load double, ptr %y0_p
  %step = fmul contract double %h, %sum
  %y = fadd contract double %y0, %step
  %y_at = add i64 %y_row, %d
  %y_p = getelementptr double, ptr %Y, i64 %y_at
  store double %y, ptr %y_p
  %d2 = add i64 %d, 1
  %more_d = icmp slt i64 %d2, %m
  br i1 %more_d, label %component, label %call
call: ; k_i = (v_i, a_i)
  %v_at = add i64 %y_row, %n
  %v_p = getelementptr double, ptr %Y, i64 %v_at
  %i2 = add i64 %i, 1
  %k_at = mul i64 %i2, %m
  %k_p = getelementptr double, ptr %P, i64 %k_at
  call void @llvm.memcpy.p0.p0.i64(ptr %k_p, ptr %v_p, i64 %bytes, i1 false)
  %args_at = mul i64 %i, 4
  %args_i = getelementptr ptr, ptr %args, i64 %args_at
  call void %rhs(ptr %args_i, ptr %dims, ptr %steps, ptr %data)
  %more_i = icmp slt i64 %i2, %s
  br i1 %more_i, label %stage, label %judge

judge: ; of each estimate the sum of (h sum_j E_j k_j / (atol + rtol max(|y|, |y_new|)))^2
  %last = sub i64 %s, 1
  %new_row = mul i64 %last, %m
  br label %estimate
estimate:
  %r = phi i64 [0, %judge], [%r2, %judged]
  %row = add i64 %s, %r
  %e_row = mul i64 %row, %s
  br label %error
error:
  %c = phi i64 [0, %estimate], [%c2, %error]
  %total = phi double [0.0, %estimate], [%total2, %error]
  %e = call double @combine(ptr %A, i64 %e_row, ptr %P, i64 %m, i64 %c, i64 %s)
  %he = fmul double %h, %e
  %old_p = getelementptr double, ptr %P, i64 %c
  %old = load double, ptr %old_p
  %new_at = add i64 %new_row, %c
  %new_p = getelementptr double, ptr %Y, i64 %new_at
  %new = load double, ptr %new_p
  %old_size = call double @llvm.fabs.f64(double %old)
  %new_size = call double @llvm.fabs.f64(double %new)
  %size = call double @llvm.maxnum.f64(double %old_size, double %new_size)
  %rtol_p = getelementptr double, ptr %rtol, i64 %c
  %rtol_c = load double, ptr %rtol_p
  %atol_p = getelementptr double, ptr %atol, i64 %c
  %atol_c = load double, ptr %atol_p
  %relative = fmul contract double %rtol_c, %size
  %scale = fadd contract double %atol_c, %relative
  %ratio = fdiv double %he, %scale
  %square = fmul contract double %ratio, %ratio
  %total2 = fadd contract double %total, %square
  %c2 = add i64 %c, 1
  %more_c = icmp slt i64 %c2, %m
  br i1 %more_c, label %error, label %judged
judged:
  %square_p = getelementptr double, ptr %squares, i64 %r
  store double %total2, ptr %square_p
  %r2 = add i64 %r, 1
  %more_r = icmp slt i64 %r2, %estimates
  br i1 %more_r, label %estimate, label %done
done:
  ret void
}
"""


class FusedStages:
    """h -> the sums of squares of the errors of a step, relative to their tolerances, one per estimate; the stages are
    stored in P and Y (see `Stages`, whose `weights` are A here).
    """

    def __init__(
        self, program: Program, tau: Array, P: Array, Y: Array, A: Array, rtol: Array, atol: Array, first: int
    ) -> None:  # fmt: skip
        s, m = Y.shape
        n = m // 2
        rhs, data = program.entry
        rows = [[y, y + 8 * n, tau.ctypes.data, k + 8 * n] for y, k in zip(_rows(Y), _rows(P[1:]))]
        # as NumPy passes them: one state; the strides of the states, then of the numbers, of three inputs and out
        arrays = {"args": np.array(rows), "dims": np.array([1, n]), "steps": np.array([0] * 4 + [8] * 4)}
        arrays |= {"P": P, "Y": Y, "A": A, "rtol": rtol, "atol": atol, "squares": np.empty(len(A) - s)}
        values = {name: array.ctypes.data for name, array in arrays.items()}
        values |= {"rhs": rhs, "data": data, "s": s, "m": m, "n": n, "first": first, "estimates": len(A) - s}
        self._words = np.array([values[name] for name in WORDS], dtype=np.int64)
        self._alive = (program, tau, arrays)
        self._squares = arrays["squares"]
        (self._call, _), self._at = _function(), self._words.ctypes.data

    def __call__(self, h: float) -> list[float]:
        self._call(self._at, h)
        return self._squares.tolist()


def _rows(x: Array) -> list[int]:
    """The addresses of the rows of an array."""
    return [x.ctypes.data + k * x.strides[0] for k in range(len(x))]


@cache
def _function() -> tuple[Any, Any]:
    """(the function, the code that must live as long as it does)"""
    from torsor.backends import codegen  # imported late, so that `import torsor` stays quick

    code = _code()
    loaded = codegen.load(codegen.name_of(code), lambda: code)
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_double)(loaded.address), loaded


def _code() -> str:
    loads = []
    for k, name in enumerate(WORDS):
        kind = "i64" if name in SIZES else "ptr"
        loads.append(f"  %at_{name} = getelementptr i64, ptr %words, i64 {k}\n  %{name} = load {kind}, ptr %at_{name}")
    return CODE.replace("@LOADS@", "\n".join(loads))
