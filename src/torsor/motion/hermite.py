"""Dense output: the quintic through position, velocity and acceleration at both ends of a step.

The error over a step of length h is O(h^6) in q and O(h^5) in v: as small as that of a fifth-order method. The
interpolation needs only the recorded rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.motion.coordinates import Coordinates

Array = NDArray[Any]

# Row k: the coefficients of 1, s, ..., s^5 in the basis function of entry k of
# (x0, h x0', h^2 x0'', x1, h x1', h^2 x1'').
QUINTIC = np.array([
    [1, 0, 0, -10, 15, -6], [0, 1, 0, -6, 8, -3], [0, 0, 0.5, -1.5, 1.5, -0.5],
    [0, 0, 0, 10, -15, 6], [0, 0, 0, -4, 7, -3], [0, 0, 0, 0.5, -1, 0.5],
])  # fmt: skip


def interpolate(coordinates: Coordinates, t0: Any, row0: Array, t1: Any, row1: Array, t: Array) -> tuple[Array, Array]:
    """q, v at times t (m,) on steps from (t0, row0) to (t1, row1); rows (q, v, a), one for all t or one per time.

    Quaternions are interpolated in R^4 and then normalised; v follows from the rate of q.
    """
    # a step of zero length, at the last row of a trajectory, is evaluated at its beginning
    h = np.broadcast_to(np.where(t1 > t0, t1 - t0, 1.0), t.shape)[:, None]
    s = (t - t0)[:, None] / h
    data = np.stack([*_derivatives(coordinates, row0), *_derivatives(coordinates, row1)])
    scale = h ** np.array([0, 1, 2, 0, 1, 2])
    powers = s ** np.arange(6)
    basis = powers @ QUINTIC.T * scale
    slope = (powers[:, :5] * np.arange(1, 6)) @ QUINTIC[:, 1:].T * scale / h
    q, rate = (coordinates.weighted(weights, data) for weights in (basis, slope))
    v = coordinates.velocity(q, rate)
    coordinates.normalise(q)
    return q, v


def _derivatives(coordinates: Coordinates, rows: Array) -> tuple[Array, Array, Array]:
    """q and its first two time derivatives, (m or 1, nq) each."""
    nq, nv = coordinates.nq, coordinates.nv
    rows = np.atleast_2d(rows)
    q, v, a = rows[:, :nq], rows[:, nq : nq + nv], rows[:, nq + nv : nq + 2 * nv]
    return q, coordinates.rate(q, v), coordinates.rate_dot(q, v, a)
