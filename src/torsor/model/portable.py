"""Products, lengths and sines of arrays with the same bits on every processor.

The last digits of NumPy's own matrix products, sums of products, sines and arctangents depend on the vector units of
the processor. Additions, multiplications, quotients and square roots of whole arrays do not (IEEE 754). A model and
its frames are made of these alone, so a state has the same bits on every processor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# pi/2 in three parts (Cody & Waite). The first two have 33 bits: their products with integers below 2^20 are exact.
HALF_PI = 1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21
FAR = 1e5  # beyond this angle the C library's sine is called
# Minimax polynomials of (sin x - x) / x^3 and (cos x - 1 + x^2 / 2) / x^4 in x^2, on [-pi/4, pi/4] (fdlibm's).
SINE = (
    -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
    2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10,
)  # fmt: skip
COSINE = (
    4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
    -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11,
)  # fmt: skip


@np.errstate(over="ignore", invalid="ignore")  # numbers that are not finite are refused where they are used
def product(A: Array, B: Array) -> Array:
    """A B of matrices, (..., i, j) and (..., j, k)."""
    total: Array = A[..., :, 0, None] * B[..., 0, None, :]
    for j in range(1, A.shape[-1]):
        total += A[..., :, j, None] * B[..., j, None, :]
    return total


def turned(R: Array, x: Array) -> Array:
    """R x of matrices and vectors, (..., i, j) and (..., j)."""
    return product(R, x[..., None])[..., 0]


def transposed(A: Array) -> Array:
    """The transposes of matrices, (..., i, j)."""
    return A.swapaxes(-1, -2)


def length(x: Array, y: Array) -> Array:
    """sqrt(x^2 + y^2) without overflow."""
    size = np.maximum(np.abs(x), np.abs(y))
    safe = np.where(size > 0, size, 1.0)
    return size * np.sqrt(np.square(x / safe) + np.square(y / safe))


@np.errstate(invalid="ignore")
def cosine_and_sine(angle: Array) -> tuple[Array, Array]:
    """The cosines and sines of angles in radians, (n,), within one unit of the last digit."""
    near = np.abs(angle) < FAR
    x = np.where(near, angle, 0.0)
    k = np.rint(x * (2 / np.pi))
    first, second = x - k * HALF_PI[0], k * HALF_PI[1]
    r = first - second
    lost = (first - (r - (r - first))) - (second + (r - first))  # the rounding error of this difference (Knuth 1969)
    low = lost - k * HALF_PI[2]  # x - k pi/2 = r + low
    z = r * r
    sine = r + (low + r * z * _polynomial(SINE, z) - 0.5 * z * low)
    half = 0.5 * z
    rest = 1.0 - half
    cosine = rest + (((1.0 - rest) - half) + (z * z * _polynomial(COSINE, z) - r * low))
    quadrant = np.mod(k, 4.0)
    turned = quadrant % 2 == 1
    c = np.where(turned, sine, cosine) * np.where((quadrant == 1) | (quadrant == 2), -1.0, 1.0)
    s = np.where(turned, cosine, sine) * np.where(quadrant >= 2, -1.0, 1.0)
    for i in np.flatnonzero(~near):
        c[i], s[i] = (f(angle[i]) if np.isfinite(angle[i]) else np.nan for f in (math.cos, math.sin))
    return c, s


def _polynomial(coefficients: Sequence[float], z: Array) -> Array:
    total = np.full_like(z, coefficients[-1])
    for a in coefficients[-2::-1]:
        total = total * z + a
    return total
