"""Rounding noise is set to zero, so that the compiled code can use the structure of a machine.

The threshold depends on the size of the numbers that were added, and on nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.model.portable import product, transposed, turned

Array = NDArray[Any]

# A cosine or sine this close to 0 or 1, or a sum this small relative to its terms, is rounding error of trigonometry.
NOISE = 2e-15


@np.errstate(over="ignore", invalid="ignore")
def clean_sum(x: Array, terms: Array) -> Array:
    """x, set to zero where it is that much smaller than the terms of its sum."""
    return np.where(np.abs(x) <= NOISE * terms, 0.0, x)


def clean_cosine(x: Array) -> Array:
    """Cosines and sines, made exact where they are nearly zero or plus or minus one."""
    x = np.where(np.abs(x) <= NOISE, 0.0, x)
    return np.where(np.abs(np.abs(x) - 1) <= NOISE, np.sign(x), x)


@np.errstate(over="ignore", invalid="ignore")  # values that are not finite are refused where they are used
def turned_tensor(R: Array, A: Array) -> Array:
    """R A R^T of symmetric tensors, (n, 3, 3), symmetric to the bit."""
    found, terms = (product(product(X, Y), transposed(X)) for X, Y in ((R, A), (np.abs(R), np.abs(A))))
    found = clean_sum(found, terms)
    return (found + transposed(found)) / 2


@np.errstate(over="ignore", invalid="ignore")
def turned_vector(R: Array, x: Array, terms: Array | None = None) -> Array:
    """R x, (n, 3); if x is itself a sum, `terms` are the sizes of its terms."""
    size = np.abs(x) if terms is None else terms
    return clean_sum(turned(R, x), turned(np.abs(R), size))
