"""Six coordinates of a joint after Denavit and Hartenberg: Lee, Wang & Chirikjian 2007, section 4.1.

Two DH screws do not cover two directions of SE(3); a third screw (a, alpha), fixed at zero, completes them:

    A   screw_z(a, alpha) screw_x(b, beta) screw_z(c, gamma)      (Eq. 24)      |det J| = sin^2 beta
    B   screw_x(b, beta) screw_z(c, gamma) screw_x(a, alpha)      (Eq. 25)      |det J| = sin^2 gamma
    C   screw_x(b, beta) screw_y(a, alpha) screw_z(c, gamma)      (Eq. 26)      |det J| = cos^2 alpha

Coordinates are arrays (..., 6) in the order of `NAMES`; kinds are "A", "B", "C" or "auto".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import lie
from torsor.dense import inverse, numbers_like
from torsor.errors import ArgumentError, SingularError
from torsor.linalg import atan2, cos, sin, sqrt

Array = NDArray[Any]

NAMES = ("alpha", "beta", "gamma", "a", "b", "c")
ALPHA, BETA, GAMMA, A, B, C = range(6)
X, Y, Z = range(3)
# The three screws of each kind: (axis, angle about it, length along it).
SCREWS = {
    "A": ((Z, ALPHA, A), (X, BETA, B), (Z, GAMMA, C)),
    "B": ((X, BETA, B), (Z, GAMMA, C), (X, ALPHA, A)),
    "C": ((X, BETA, B), (Y, ALPHA, A), (Z, GAMMA, C)),
}
KINDS = ("C", "A", "B")  # the first is preferred
# A determinant below this means a singular parameterisation: more than half of the digits would be lost.
SINGULAR = 1e-14


# Coordinates to transforms -------------------------------------------------------------------------------


def screw(axis: int, angle: ArrayLike, length: ArrayLike) -> Array:
    """A rotation about a coordinate axis and a shift along it, (..., 4, 4)."""
    c, s, d = (np.asarray(x) for x in (cos(angle), sin(angle), length))
    i, j = (axis + 1) % 3, (axis + 2) % 3
    T = np.zeros((*np.broadcast_shapes(c.shape, d.shape), 4, 4), np.result_type(c, d))
    T[..., axis, axis] = T[..., 3, 3] = 1.0
    T[..., i, i] = T[..., j, j] = c
    T[..., i, j], T[..., j, i] = -s, s
    T[..., axis, 3] = d
    return T


def transform(kind: str, x: ArrayLike) -> Array:
    """T_{k-1,k} (..., 4, 4) of the coordinates x (..., 6)."""
    x = _six(x)
    first, second, third = (screw(axis, x[..., t], x[..., d]) for axis, t, d in _screws(kind))
    return first @ second @ third


def jacobian(kind: str, x: ArrayLike) -> Array:
    """J (..., 6, 6) with J dx/dt the twist of frame k relative to frame k - 1, in frame k (Eq. 15)."""
    x = _six(x)
    after = np.broadcast_to(np.eye(4), (*x.shape[:-1], 4, 4))
    J = np.zeros((*x.shape[:-1], 6, 6), x.dtype)
    for axis, angle, length in reversed(_screws(kind)):
        X = lie.Ad(lie.inverse(after))  # a screw moves along its own axis, here in the frame after it
        J[..., angle], J[..., length] = X[..., axis], X[..., 3 + axis]
        after = screw(axis, x[..., angle], x[..., length]) @ after
    return J


def determinant(kind: str, x: ArrayLike) -> Array:
    """|det J|: sin^2 beta, sin^2 gamma or cos^2 alpha."""
    x = _six(x)
    _screws(kind)
    function, angle = {"A": (sin, BETA), "B": (sin, GAMMA), "C": (cos, ALPHA)}[kind]
    return function(x[..., angle]) ** 2


def _screws(kind: str) -> tuple[tuple[int, int, int], ...]:
    if kind not in SCREWS:
        raise ArgumentError(f"unknown parameterisation {kind!r}; choose one of: A, B, C, auto")
    return SCREWS[kind]


def _six(x: ArrayLike) -> Array:
    x = numbers_like(x)
    if x.ndim == 0 or x.shape[-1] != 6:
        raise ArgumentError(f"coordinates have shape {x.shape}; (..., 6) is needed: {', '.join(NAMES)}")
    return x


# Transforms to coordinates -------------------------------------------------------------------------------


def _gaps(T: Array) -> Array:
    """|det J| in each of KINDS, (3, ...); where one vanishes, another is at least 1/2."""
    return np.stack([1 - T[..., 0, 2] ** 2, 1 - T[..., 2, 2] ** 2, 1 - T[..., 0, 0] ** 2])


def coordinates(kind: str, T: ArrayLike) -> Array:
    """The x (..., 6) with transform(kind, x) = T and |alpha| <= pi/2, so that alpha = 0 for a DH transform."""
    T = numbers_like(T)
    if T.ndim < 2 or T.shape[-2:] != (4, 4):
        raise ArgumentError(f"transforms have shape {T.shape}; (..., 4, 4) is needed")
    _screws(kind)
    R, p = T[..., :3, :3], T[..., :3, 3]
    singular = np.asarray(_gaps(T)[KINDS.index(kind)] < SINGULAR)
    if singular.any():
        refuse_singular(kind, singular)
    x = np.empty((*T.shape[:-2], 6), T.dtype)
    {"A": _coordinates_a, "B": _coordinates_b, "C": _coordinates_c}[kind](R, p, x)
    return x


def from_transforms(T: ArrayLike) -> tuple[Array, Array]:
    """(kinds (n,), x (..., n, 6)): for each joint the kind farthest from its singularity in all states."""
    T = np.asarray(T, dtype=np.float64)
    worst = _gaps(T).reshape(3, -1, T.shape[-3]).min(axis=1)
    kinds = np.array(KINDS)[np.argmax(worst, axis=0)]
    x = np.empty((*T.shape[:-2], 6))
    for kind in np.unique(kinds):
        x[..., kinds == kind, :] = coordinates(str(kind), T[..., kinds == kind, :, :])
    return kinds, x


def transforms_and_jacobians(kinds: Array, x: Array) -> tuple[Array, Array]:
    """T (..., n, 4, 4) and J (..., n, 6, 6) of joints of several kinds; an error names a singular joint."""
    T, J = (np.empty((*x.shape[:-1], k, k), x.dtype) for k in (4, 6))
    for kind in np.unique(kinds).tolist():
        joints = kinds == kind
        singular = np.zeros(x.shape[:-1], dtype=bool)
        singular[..., joints] = determinant(kind, x[..., joints, :]) < SINGULAR
        if singular.any():
            refuse_singular(kind, singular)
        T[..., joints, :, :] = transform(kind, x[..., joints, :])
        J[..., joints, :, :] = jacobian(kind, x[..., joints, :])
    return T, J


def _coordinates_c(R: Array, p: Array, x: Array) -> None:
    """The formulas after Eq. 27."""
    r = sqrt(R[..., 0, 0] ** 2 + R[..., 0, 1] ** 2)
    x[..., ALPHA] = atan2(R[..., 0, 2], r)
    x[..., BETA] = atan2(-R[..., 1, 2], R[..., 2, 2])
    x[..., GAMMA] = atan2(-R[..., 0, 1], R[..., 0, 0])
    x[..., A] = (p[..., 1] * R[..., 2, 2] - p[..., 2] * R[..., 1, 2]) / r
    x[..., C] = (p[..., 1] * R[..., 1, 2] + p[..., 2] * R[..., 2, 2]) / r**2
    x[..., B] = p[..., 0] - R[..., 0, 2] * x[..., C]


def _coordinates_a(R: Array, p: Array, x: Array) -> None:
    s = np.copysign(np.hypot(R[..., 0, 2], R[..., 1, 2]), -R[..., 1, 2])  # sin beta, so that cos alpha >= 0
    x[..., BETA] = np.arctan2(s, R[..., 2, 2])
    x[..., ALPHA] = np.arctan2(R[..., 0, 2] / s, -R[..., 1, 2] / s)
    x[..., GAMMA] = np.arctan2(R[..., 2, 0] / s, R[..., 2, 1] / s)
    ca, sa = np.cos(x[..., ALPHA]), np.sin(x[..., ALPHA])
    x[..., B] = ca * p[..., 0] + sa * p[..., 1]
    x[..., C] = (sa * p[..., 0] - ca * p[..., 1]) / s
    x[..., A] = p[..., 2] - x[..., C] * R[..., 2, 2]


def _coordinates_b(R: Array, p: Array, x: Array) -> None:
    s = np.copysign(np.hypot(R[..., 0, 1], R[..., 0, 2]), -R[..., 0, 1])  # sin gamma, so that cos alpha >= 0
    x[..., GAMMA] = np.arctan2(s, R[..., 0, 0])
    x[..., ALPHA] = np.arctan2(R[..., 0, 2] / s, -R[..., 0, 1] / s)
    x[..., BETA] = np.arctan2(R[..., 2, 0] / s, R[..., 1, 0] / s)
    cb, sb = np.cos(x[..., BETA]), np.sin(x[..., BETA])
    x[..., A] = (cb * p[..., 1] + sb * p[..., 2]) / s
    x[..., C] = cb * p[..., 2] - sb * p[..., 1]
    x[..., B] = p[..., 0] - x[..., A] * R[..., 0, 0]


def refuse_singular(kind: str, where: Array) -> None:
    """Raise an error that names the joint where this kind is singular and suggests another kind."""
    place = [int(i) for i in np.argwhere(where)[0]]
    joint = f"joint {place[-1] + 1}" if place else "the joint"
    angle = {"A": "sin beta = 0", "B": "sin gamma = 0", "C": "cos alpha = 0"}[kind]
    raise SingularError(f"parameterisation {kind} is singular at {joint}: {angle}; choose another, or 'auto'")


# Lie derivatives -----------------------------------------------------------------------------------------


def transform_derivatives(T: ArrayLike, Q_before: ArrayLike | None = None, Q: ArrayLike | None = None) -> Array:
    """(2, ..., 6, 4, 4): dT_{k-1,k} / d xi^i for a motion of body k - 1, or of body k, along E_i in its frame (Eq. 22).

    The frames are those at the mass centres, Q_{k-1} and Q_k in the link frames; by default the link frames themselves.
    """
    T = numbers_like(T)[..., None, :, :]
    one = np.eye(4)
    before, own = (one if x is None else numbers_like(x)[..., None, :, :] for x in (Q_before, Q))
    E = lie.hat(np.eye(6))
    dT = (-before @ E @ lie.inverse(before) @ T, T @ own @ E @ lie.inverse(own))
    return np.stack(np.broadcast_arrays(*dT))


def coordinate_derivatives(kinds: Array, T: Array, J: Array) -> Array:
    """(2, ..., n, 6, 6): derivatives of each joint's coordinates with respect to both neighbours, in the link frames.

    For kind C by Eqs 22 and 28; for the others by Eq. 18, d q / d xi_k = J^-1 and d q / d xi_{k-1} = -J^-1 Ad(T^-1).
    """
    rows = inverse(J)
    result = np.stack([-rows @ lie.Ad(lie.inverse(T)), rows])
    third = kinds == "C"
    T = T[..., third, :, :]
    by_direction = lie_derivatives(T[..., None, :, :], transform_derivatives(T))
    result[..., third, :, :] = by_direction.swapaxes(-1, -2)
    return result


def lie_derivatives(T: ArrayLike, dT: ArrayLike) -> Array:
    """(..., 6): the change of the coordinates of kind C when T changes by dT (Eq. 28)."""
    T, dT = np.asarray(T), np.asarray(dT)

    def t(i: int, j: int) -> Array:
        return T[..., i - 1, j - 1]

    def d(i: int, j: int) -> Array:
        return dT[..., i - 1, j - 1]

    r2 = t(1, 1) ** 2 + t(1, 2) ** 2
    r = sqrt(r2)
    turn = t(1, 1) * d(1, 1) + t(1, 2) * d(1, 2)
    across = t(2, 4) * t(3, 3) - t(3, 4) * t(2, 3)
    along = t(2, 4) * t(2, 3) + t(3, 4) * t(3, 3)
    d_along = t(2, 4) * d(2, 3) + t(2, 3) * d(2, 4) + t(3, 4) * d(3, 3) + t(3, 3) * d(3, 4)
    alpha = (r2 * d(1, 3) - t(1, 3) * turn) / r
    beta = (t(2, 3) * d(3, 3) - t(3, 3) * d(2, 3)) / (t(2, 3) ** 2 + t(3, 3) ** 2)
    gamma = (t(1, 2) * d(1, 1) - t(1, 1) * d(1, 2)) / r2
    d_across = t(2, 4) * d(3, 3) + t(3, 3) * d(2, 4) - t(3, 4) * d(2, 3) - t(2, 3) * d(3, 4)
    a = d_across / r - across * turn / r**3
    b = d(1, 4) - along * (r2 * d(1, 3) - 2 * t(1, 3) * turn) / r2**2 - t(1, 3) * d_along / r2
    c = d_along / r2 - 2 * along * turn / r2**2
    return np.stack([alpha, beta, gamma, a, b, c], axis=-1)


# Soft and hard -------------------------------------------------------------------------------------------


def partition(soft: str | Sequence[str | Sequence[str]], n: int) -> Array:
    """(n, 6) bool from names: "beta" for every joint, or names per joint (no name: all fixed)."""
    rows = [soft] * n if isinstance(soft, str) else list(soft)
    if len(rows) != n:
        raise ArgumentError(f"soft variables are given for {len(rows)} joints; the chain has {n}")
    mask = np.zeros((n, 6), dtype=bool)
    for i, row in enumerate(rows):
        for name in [row] if isinstance(row, str) else row:
            if name not in NAMES:
                raise ArgumentError(f"joint {i + 1} has no variable {name!r}; choose from {', '.join(NAMES)}")
            mask[i, NAMES.index(name)] = True
    return mask
