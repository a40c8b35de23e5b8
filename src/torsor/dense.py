"""Dense matrices over any scalar: LAPACK for doubles, elimination with pivoting for mpmath numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.linalg import log
from torsor.validate import real_array

Array = NDArray[Any]


def numbers_like(x: ArrayLike | Sequence[Any]) -> Array:
    """x as doubles; unchanged if its numbers are complex or mpmath's."""
    array = np.asarray(x)
    if array.dtype != object:
        return array if array.dtype.kind == "c" else array.astype(np.float64, copy=False)
    return array if any(hasattr(y, "context") for y in array.flat) else array.astype(np.float64)


def checked_numbers(name: str, x: ArrayLike, shape: tuple[int, ...] | None = None) -> Array:
    """x as finite doubles of this shape; mpmath numbers unchanged."""
    array = np.asarray(x)
    is_exact = array.dtype == object and array.shape == (shape or array.shape) and number_of(array) is not float
    return array if is_exact else real_array(name, x, *([shape] if shape else []))


def number_of(*arrays: ArrayLike | Sequence[Any]) -> Callable[[float], Any]:
    """The function that converts doubles to the number type of some arrays: `float`, or mpmath's."""
    every = (x for array in arrays if (found := np.asarray(array)).dtype == object for x in found.flat)
    return next((x.context.mpf for x in every if hasattr(x, "context")), float)


def solve(A: Array, b: Array) -> Array:
    """A^-1 b for b (n,) or (n, k)."""
    if A.dtype != object and b.dtype != object:
        return np.linalg.solve(A, b)
    return _eliminated(A, b)[0]


def inverse(A: Array) -> Array:
    """A^-1 of a matrix, or of each of a stack."""
    if A.dtype != object:
        return np.linalg.inv(A)
    if A.ndim > 2:
        return np.array([inverse(one) for one in A])
    return _eliminated(A, np.eye(len(A), dtype=object))[0]


def determinant(A: Array) -> Any:
    """det A of a matrix, or of each of a stack."""
    if A.dtype != object:
        return np.linalg.det(A)
    if A.ndim > 2:
        return np.array([determinant(one) for one in A])
    return np.prod(_eliminated(A, np.zeros((len(A), 0), object))[1])


def log_determinant(A: Array) -> Any:
    """log |det A| of a matrix, or of each of a stack."""
    return np.linalg.slogdet(A)[1] if A.dtype != object else log(np.abs(determinant(A)))


def complement(S: Array) -> Array:
    """A basis of the vectors that are orthogonal to the columns of S (n, r), as columns (n, n - r).

    For doubles it is orthonormal; for other numbers it consists of the columns of the projector that differ most.
    """
    n, r = S.shape
    if S.dtype != object:
        return np.linalg.svd(S)[0][:, r:]
    P, columns = np.eye(n) - S @ solve(S.T @ S, S.T), []
    for _ in range(n - r):
        k = int(np.argmax(np.diag(P)))
        columns.append(P[:, k])
        P = P - np.outer(P[:, k], P[:, k]) / P[k, k]
    return np.array(columns, dtype=object).reshape(n - r, n).T


def _eliminated(A: Array, b: Array) -> tuple[Array, Array]:
    """A^-1 b, and the pivots with the signs of the row exchanges, by Gauss-Jordan elimination."""
    n, k = len(A), b.shape[-1] if b.ndim == 2 else 1
    W = np.concatenate([A, b.reshape(n, k)], axis=1).astype(object)
    pivots = np.empty(n, object)
    for i in range(n):
        best = i + int(np.argmax(np.abs(W[i:, i])))
        pivots[i] = W[best, i] * (1 if best == i else -1)
        W[[i, best]] = W[[best, i]]
        W[i, i:] = W[i, i:] / W[i, i]
        others = np.flatnonzero((W[:, i] != 0) & (np.arange(n) != i))
        W[others, i:] -= np.outer(W[others, i], W[i, i:])
    return W[:, n:].reshape(b.shape), pivots
