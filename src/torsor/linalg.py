"""Small vectors and matrices over any scalar.

A scalar is anything that can be added and multiplied: a float, a NumPy array (one number per state), an mpmath
number, a CasADi symbol, or the compiler's own expression (`torsor.compiler.tape.Expr`).  Everything here uses
only those operations, so an algorithm written once runs on all of them.

Literal zeros and ones are written as `0.0` and `1.0`; symbolic scalars drop them.  So the structure of a
formula (an axis along z, a massless body) becomes the structure of the compiled code.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np


class Scalar(Protocol):
    """Anything that adds and multiplies: a float, an array, an mpmath number, a CasADi symbol, a tape's expression."""

    def __add__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...
    def __rtruediv__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...


# Functions of a scalar ---------------------------------------------------------------------------------


def _function(name: str) -> Callable[..., Any]:
    def call(*xs: Any) -> Any:
        """The function for the first argument whose type is not a plain number (atan2 takes two)."""
        x = next((x for x in xs if not isinstance(x, float | int)), xs[0])
        if isinstance(x, float | int):
            return getattr(math, name)(*xs)
        if any(isinstance(y, np.ndarray) and y.dtype == object for y in xs):
            elementwise: Any = np.frompyfunc(call, len(xs), 1)
            return elementwise(*xs)
        if isinstance(x, np.ndarray | np.generic):
            return getattr(np, name if name != "atan2" else "arctan2")(*xs)
        if _is_casadi(x):
            return getattr(sys.modules["casadi"], name)(*xs)
        if hasattr(x, "context"):  # mpmath
            return getattr(x.context, name)(*xs)
        if _is_sympy(x):
            return getattr(sys.modules["sympy"], name)(*xs)
        return getattr(x, name)(*(y for y in xs if y is not x))

    call.__name__ = name
    return call


def _is_casadi(x: object) -> bool:
    return type(x).__module__.startswith("casadi")


def _is_sympy(x: object) -> bool:
    return hasattr(x, "free_symbols")


sin, cos, sqrt, _log, atan2 = map(_function, ("sin", "cos", "sqrt", "log", "atan2"))


def log(x: Scalar) -> Scalar:
    """The natural logarithm; for a plain number without one, the IEEE result."""
    if isinstance(x, float | int) and x <= 0:
        return -math.inf if x == 0 else math.nan
    return _log(x)


def maximum(x: Any, y: Any) -> Any:
    """The larger of two numbers."""
    if isinstance(x, np.ndarray | np.generic) or isinstance(y, np.ndarray | np.generic):
        return np.maximum(x, y)
    if _is_casadi(x) or _is_casadi(y):
        return sys.modules["casadi"].fmax(x, y)
    if _is_sympy(x) or _is_sympy(y):
        return sys.modules["sympy"].Max(x, y)
    for one, other in ((x, y), (y, x)):
        if hasattr(one, "maximum"):  # the compiler's own expressions
            return one.maximum(other)
    return max(x, y)


def absolute(x: Any) -> Any:
    """|x|; CasADi has symbols without `abs` before 3.8."""
    return sys.modules["casadi"].fabs(x) if _is_casadi(x) else abs(x)


def down_scale(xs: Sequence[Any]) -> Any:
    """A power of two that brings the largest of some numbers into [2, 4), so that squares neither overflow nor vanish.

    Scaling by it is exact, so numbers of the usual size give the same bits with and without it.
    """
    largest = absolute(xs[0])
    for x in xs[1:]:
        largest = maximum(largest, absolute(x))
    if isinstance(largest, float | int):
        return math.ldexp(1.0, min(1023, 2 - math.frexp(largest)[1])) if math.isfinite(largest) else 1.0
    if isinstance(largest, np.ndarray | np.generic) and largest.dtype != object:
        power = np.minimum(2 - np.frexp(largest)[1], np.finfo(largest.dtype).maxexp - 1)
        return np.ldexp(np.ones_like(largest), power)
    return largest.down_scale() if hasattr(largest, "down_scale") else 1.0  # mpmath and CasADi do not overflow here


def where(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where the condition holds, else `no`, for plain, array and symbolic conditions."""
    if isinstance(condition, bool | np.bool_):
        return yes if condition else no
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return sys.modules["casadi"].if_else(condition, yes, no)


def epsilon(x: Scalar) -> float:
    """The rounding unit of the scalar's type; symbols count as doubles."""
    if isinstance(x, np.ndarray | np.generic) and x.dtype.kind == "f":
        return float(np.finfo(x.dtype).eps)
    return float(x.context.eps) if hasattr(x, "context") else 2.0**-52


def is_literal(x: Scalar, value: float) -> bool:
    """Whether x is the plain number `value`, known when the code is written."""
    return isinstance(x, float | int) and x == value


# Scalars made of two others -------------------------------------------------------------------------------------------


class DualScalar:
    """x + eps dx with eps^2 = 0: a scalar that carries its derivative, for sums, products, sines and cosines."""

    def __init__(self, x: Scalar, dx: Scalar = 0.0) -> None:
        self.x, self.dx = x, dx

    def __add__(self, other: Any) -> DualScalar:
        y = _dual(other)
        return DualScalar(self.x + y.x, self.dx + y.dx)

    def __mul__(self, other: Any) -> DualScalar:
        y = _dual(other)
        return DualScalar(self.x * y.x, self.x * y.dx + self.dx * y.x)

    def __neg__(self) -> DualScalar:
        return DualScalar(-self.x, -self.dx)

    def __sub__(self, other: Any) -> DualScalar:
        return self + -_dual(other)

    def __rsub__(self, other: Any) -> DualScalar:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def sin(self) -> DualScalar:
        return DualScalar(sin(self.x), cos(self.x) * self.dx)

    def cos(self) -> DualScalar:
        return DualScalar(cos(self.x), -sin(self.x) * self.dx)


def _dual(x: Any) -> DualScalar:
    return x if isinstance(x, DualScalar) else DualScalar(x)


class Complex:
    """re + i im, of scalars of any type.  A real factor or summand that is not a plain number must be on the right."""

    def __init__(self, re: Scalar, im: Scalar = 0.0) -> None:
        self.re, self.im = re, im

    def __add__(self, other: Any) -> Complex:
        y = _complex(other)
        return Complex(self.re + y.re, self.im + y.im)

    def __mul__(self, other: Any) -> Complex:
        y = _complex(other)
        return Complex(self.re * y.re - self.im * y.im, self.re * y.im + self.im * y.re)

    def __neg__(self) -> Complex:
        return Complex(-self.re, -self.im)

    def __sub__(self, other: Any) -> Complex:
        return self + -_complex(other)

    def __truediv__(self, other: Complex) -> Complex:
        scale = 1.0 / (other.re * other.re + other.im * other.im)
        return self * Complex(other.re * scale, -other.im * scale)

    __radd__, __rmul__ = __add__, __mul__


def _complex(x: Any) -> Complex:
    return x if isinstance(x, Complex) else Complex(x)


def derivative(function: Callable[[Vec], Iterable[Scalar]], x: Vec, k: int) -> Vec:
    """d function / d x_k."""
    moved: Any = (DualScalar(xi, float(i == k)) for i, xi in enumerate(x))
    return Vec.of(_dual(y).dx for y in function(Vec.of(moved)))


# Vectors -----------------------------------------------------------------------------------------------


class Vec(tuple):
    """A vector: a tuple of scalars that adds, scales and crosses."""

    __slots__ = ()
    __array_ufunc__ = None  # an array on the left is treated as a scalar, never as a vector

    def __new__(cls, *xs: Scalar) -> Vec:
        return super().__new__(cls, xs)

    @classmethod
    def of(cls, xs: Iterable[Scalar]) -> Vec:
        return super().__new__(cls, xs)

    @classmethod
    def zero(cls, n: int = 3) -> Vec:
        return cls.of((0.0,) * n)

    @classmethod
    def unit(cls, k: int, n: int = 3) -> Vec:
        return cls.of(1.0 if i == k else 0.0 for i in range(n))

    def __add__(self, other: Vec) -> Vec:  # type: ignore[override]
        return Vec.of(x + y for x, y in zip(self, other))

    def __sub__(self, other: Vec) -> Vec:
        return Vec.of(x - y for x, y in zip(self, other))

    def __neg__(self) -> Vec:
        return Vec.of(-x for x in self)

    def __mul__(self, s: Scalar) -> Vec:  # type: ignore[override]
        return Vec.of(x * s for x in self)

    __rmul__ = __mul__  # type: ignore[assignment]

    def replace(self, k: int, x: Scalar) -> Vec:
        return Vec.of(x if i == k else y for i, y in enumerate(self))


def dot(a: Sequence[Scalar], b: Sequence[Scalar]) -> Scalar:
    total: Scalar = 0.0
    for x, y in zip(a, b):
        total = total + x * y
    return total


def cross(a: Vec, b: Vec) -> Vec:
    return Vec(a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


# Matrices ----------------------------------------------------------------------------------------------


class Mat(tuple):
    """A matrix: a tuple of rows, each a `Vec`."""

    __slots__ = ()
    __array_ufunc__ = None

    def __new__(cls, *rows: Iterable[Scalar]) -> Mat:
        return cls.of(rows)

    @classmethod
    def of(cls, rows: Iterable[Iterable[Scalar]]) -> Mat:
        return super().__new__(cls, tuple(Vec.of(r) for r in rows))

    @classmethod
    def identity(cls, n: int = 3) -> Mat:
        return cls.of(Vec.unit(i, n) for i in range(n))

    @classmethod
    def zero(cls, n: int = 3) -> Mat:
        return cls.of((0.0,) * n for _ in range(n))

    @classmethod
    def symmetric(cls, entry: Callable[[int, int], Scalar], n: int = 3) -> Mat:
        """The symmetric matrix whose upper triangle is `entry(i, j)`, i <= j: each is computed once."""
        upper = {(i, j): entry(i, j) for i in range(n) for j in range(i, n)}
        return cls.of((upper[min(i, j), max(i, j)] for j in range(n)) for i in range(n))

    @property
    def T(self) -> Mat:
        return Mat.of(zip(*self))

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, Mat):
            columns = other.T
            return Mat.of((dot(row, column) for column in columns) for row in self)
        return Vec.of(dot(row, other) for row in self)

    def __add__(self, other: Mat) -> Mat:  # type: ignore[override]
        return Mat.of(a + b for a, b in zip(self, other))

    def __sub__(self, other: Mat) -> Mat:
        return Mat.of(a - b for a, b in zip(self, other))

    def __neg__(self) -> Mat:
        return Mat.of(-a for a in self)

    def __mul__(self, s: Scalar) -> Mat:  # type: ignore[override]
        return Mat.of(a * s for a in self)


def factor(A: Mat) -> tuple[list[list[Scalar]], list[Scalar]]:
    """(L, d) with A = L diag(d) L^T, for a symmetric positive definite matrix; L is unit lower triangular."""
    n = len(A)
    L: list[list[Scalar]] = [[0.0] * i for i in range(n)]
    d: list[Scalar] = []
    for j in range(n):
        column = [A[i][j] - dot([L[i][k] * d[k] for k in range(j)], L[j][:j]) for i in range(j, n)]
        d.append(column[0])
        for i in range(j + 1, n):
            L[i][j] = quotient(column[i - j], d[j])
    return L, d


def quotient(x: Scalar, d: Scalar) -> Scalar:
    """x / d with the IEEE result for plain numbers too: the caller detects a singular matrix by its pivots."""
    return x * math.inf if is_literal(d, 0.0) else x / d


def solve(factored: tuple[list[list[Scalar]], list[Scalar]], b: Sequence[Scalar]) -> Vec:
    """A^-1 b, given `factor(A)`."""
    L, d = factored
    n = len(d)
    x = list(b)
    for i in range(n):
        for k in range(i):
            x[i] = x[i] - L[i][k] * x[k]
    x = [quotient(xi, di) for xi, di in zip(x, d)]
    for i in reversed(range(n)):
        for k in range(i + 1, n):
            x[i] = x[i] - L[k][i] * x[k]
    return Vec.of(x)


def lu(A: Sequence[Sequence[Scalar]]) -> list[list[Scalar]]:
    """A = L U of a general matrix close to a positive definite one, without pivoting: L below the diagonal of U."""
    rows = [list(row) for row in A]
    n = len(rows)
    for j in range(n):
        for i in range(j + 1, n):
            share = rows[i][j] = quotient(rows[i][j], rows[j][j])
            for k in range(j + 1, n):
                rows[i][k] = rows[i][k] - share * rows[j][k]
    return rows


def lu_solve(factors: Sequence[Sequence[Scalar]], b: Sequence[Scalar]) -> Vec:
    """A^-1 b, given `lu(A)`."""
    n = len(factors)
    x = list(b)
    for i in range(n):
        x[i] = x[i] - dot(factors[i][:i], x[:i])
    for i in reversed(range(n)):
        x[i] = quotient(x[i] - dot(factors[i][i + 1 :], x[i + 1 :]), factors[i][i])
    return Vec.of(x)
