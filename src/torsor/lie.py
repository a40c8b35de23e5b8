"""The groups SO(3) and SE(3) and their algebras, over any scalar (see `torsor.linalg`).

Every function returns the kind of array that it is given: `Vec` and `Mat` inside torsor; outside, NumPy arrays
with leading batch axes, lists of mpmath numbers (object arrays are returned) or CasADi matrices.

    exp_so3, log_so3        rotation vector <-> rotation matrix
    exp_se3, log_se3        twist (omega, v) <-> 4x4 transform
    hat, vee                3-vector <-> skew matrix, twist <-> 4x4 matrix
    Ad, Ad_dual, ad, ad_dual   6x6 matrices, angular part first; X_dual is the transpose of X
    compose, inverse        of 4x4 transforms
    quaternion_to_matrix, matrix_to_quaternion, exp_quaternion, log_quaternion, quaternion_product, unit_quaternion
                            quaternions (w, x, y, z)
    euler_zxz, euler_zxz_jacobian   ZXZ Euler angles and their body Jacobian (Lee, Wang & Chirikjian 2007, Eq. 12)
    derivative              Lie derivatives of any function of a rotation or a transform (the same paper, Eqs 13, 16)
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from torsor.errors import ArgumentError
from torsor.linalg import (
    Mat,
    Scalar,
    Vec,
    _is_casadi,
    absolute,
    atan2,
    cos,
    cross,
    dot,
    down_scale,
    epsilon,
    maximum,
    sin,
    sqrt,
    where,
)  # fmt: skip

# The border: arrays in, the same kind of array out -------------------------------------------------------


def _enter(x: Any, rank: int) -> Any:
    """An argument as a scalar (rank 0), `Vec` (1) or `Mat` (2) whose entries are its scalars."""
    if rank == 0 or isinstance(x, Vec | Mat):
        return x
    if _is_casadi(x):
        return (
            Vec.of(x[i] for i in range(x.numel()))
            if rank == 1
            else Mat.of((x[i, j] for j in range(x.shape[1])) for i in range(x.shape[0]))
        )
    array = x if isinstance(x, np.ndarray) else np.array(x, dtype=object)
    if array.dtype == object and all(isinstance(y, int | float | np.floating) for y in array.flat):
        array = array.astype(np.float64)
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    axes = np.moveaxis(array, tuple(range(-rank, 0)), tuple(range(rank)))
    return Vec.of(axes) if rank == 1 else Mat.of(axes)


def _leave(x: Any) -> Any:
    """A result as a NumPy array or, where a scalar of it is CasADi's, a CasADi matrix."""
    if isinstance(x, Mat):
        return _assembled([y for row in x for y in row], (len(x), len(x[0])))
    if isinstance(x, Vec):
        return _assembled(list(x), (len(x),))
    return tuple(_leave(y) for y in x) if isinstance(x, tuple) else _assembled([x], ())


def _assembled(scalars: list[Any], shape: tuple[int, ...]) -> Any:
    """Scalars as one array: their own axes first, then this shape."""
    if any(map(_is_casadi, scalars)):
        ca = sys.modules["casadi"]
        if len(shape) == 2:
            return ca.vertcat(*(ca.horzcat(*scalars[k : k + shape[1]]) for k in range(0, len(scalars), shape[1])))
        return ca.vertcat(*scalars) if shape else scalars[0]
    if any(hasattr(y, "context") for y in scalars):  # numbers of mpmath
        return np.array(scalars, dtype=object).reshape(shape) if shape else scalars[0]
    # literal 0.0 and 1.0 must not widen float32 or narrow longdouble
    types = [y.dtype for y in scalars if hasattr(y, "dtype")]
    dtype = np.result_type(*types, np.float32 if types else np.float64)
    stacked = np.stack(np.broadcast_arrays(*(np.asarray(y, dtype=dtype) for y in scalars)), axis=-1)
    return stacked.reshape(stacked.shape[:-1] + shape)


def _arrays(*ranks: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a function of `Vec` and `Mat` (of the given ranks) also take and return arrays."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any) -> Any:
            inside = any(isinstance(x, Vec | Mat) for x in args)
            result = function(*(_enter(x, rank) for x, rank in zip(args, ranks, strict=True)))
            return result if inside else _leave(result)

        return wrapped

    return decorate


# SO(3) ---------------------------------------------------------------------------------------------------


@_arrays(1)
def hat(x: Vec) -> Mat:
    """[x] with [x] y = x × y for a 3-vector; the 4x4 matrix of a twist (omega, v)."""
    if len(x) == 6:
        w, v = Vec.of(x[:3]), x[3:]
        return Mat(*((*row, vi) for row, vi in zip(hat(w), v)), (0.0, 0.0, 0.0, 0.0))
    return Mat((0.0, -x[2], x[1]), (x[2], 0.0, -x[0]), (-x[1], x[0], 0.0))


@_arrays(2)
def vee(X: Mat) -> Vec:
    """The inverse of `hat`, 3x3 or 4x4."""
    w = (X[2][1], X[0][2], X[1][0])
    return Vec(*w, X[0][3], X[1][3], X[2][3]) if len(X) == 4 else Vec(*w)


def rodrigues(axis: Vec, c: Scalar, s: Scalar) -> Mat:
    """The rotation about a unit axis by the angle whose cosine and sine are given."""
    t = axis * (1.0 - c)
    return Mat.of((t[i] * axis[j] + (c if i == j else s * hat(axis)[i][j]) for j in range(3)) for i in range(3))


def _sinc_half(theta2: Scalar) -> tuple[Scalar, Scalar]:
    """(sin(t/2) / t, cos(t/2)) as functions of t^2: the only trigonometric calls of an exponential."""
    zero = theta2 == 0
    theta = sqrt(where(zero, theta2 + 1.0, theta2))
    half = theta * 0.5
    # at zero the angle is replaced by 1, and the limits replace the computed values
    return where(zero, theta2 + 0.5, sin(half) / theta), where(zero, theta2 + 1.0, cos(half))


@_arrays(1)
def exp_so3(w: Vec) -> Mat:
    """exp [w] (Rodrigues), accurate for small and large angles."""
    a, c = _sinc_half(dot(w, w))
    return rotation_of(Vec(c, *(w * a)))


@_arrays(2)
def log_so3(R: Mat) -> Vec:
    """The rotation vector of R, |w| <= pi; accurate at 0 and, by way of the quaternion, near pi."""
    return log_quaternion(matrix_to_quaternion(R))


# Quaternions (w, x, y, z) ----------------------------------------------------------------------------------


@_arrays(1)
def quaternion_to_matrix(q: Vec) -> Mat:
    """The rotation of a quaternion of any nonzero length: the length cancels, so drift does no harm."""
    return rotation_of(q * down_scale(q))


def rotation_of(q: Vec) -> Mat:
    """`quaternion_to_matrix` of a quaternion of about unit length, whose square does not overflow or vanish."""
    w, x, y, z = q
    scale = 2.0 / dot(q, q)
    x2, y2, z2 = x * scale, y * scale, z * scale
    wx, wy, wz = w * x2, w * y2, w * z2
    xx, xy, xz, yy, yz, zz = x * x2, x * y2, x * z2, y * y2, y * z2, z * z2
    return Mat(
        (1.0 - (yy + zz), xy - wz, xz + wy), (xy + wz, 1.0 - (xx + zz), yz - wx), (xz - wy, yz + wx, 1.0 - (xx + yy))
    )


@_arrays(1)
def unit_quaternion(q: Vec) -> Vec:
    """q / |q|, for any nonzero length."""
    q = q * down_scale(q)
    return q * (1.0 / sqrt(dot(q, q)))


@_arrays(2)
def matrix_to_quaternion(R: Mat) -> Vec:
    """The unit quaternion of R with w >= 0.

    4 q q^T is linear in R; its row with the largest diagonal entry is q times a number that is never small.
    """
    (a, b, c), (d, e, f), (g, h, i) = R
    rows = [
        Vec(1.0 + a + e + i, h - f, c - g, d - b),
        Vec(h - f, 1.0 + a - e - i, b + d, c + g),
        Vec(c - g, b + d, 1.0 - a + e - i, f + h),
        Vec(d - b, c + g, f + h, 1.0 - a - e + i),
    ]
    best, size = rows[0], rows[0][0]
    for k in (1, 2, 3):
        larger = rows[k][k] > size
        best = Vec.of(where(larger, x, y) for x, y in zip(rows[k], best))
        size = where(larger, rows[k][k], size)
    q = best * (1.0 / sqrt(dot(best, best)))
    return Vec.of(where(q[0] < 0, -x, x) for x in q)


@_arrays(1, 1)
def quaternion_product(p: Vec, q: Vec) -> Vec:
    """p q: first the rotation q, then p."""
    pv, qv = Vec(*p[1:]), Vec(*q[1:])
    return Vec(p[0] * q[0] - dot(pv, qv), *(qv * p[0] + pv * q[0] + cross(pv, qv)))


@_arrays(1)
def exp_quaternion(w: Vec) -> Vec:
    """The quaternion of the rotation vector w."""
    a, c = _sinc_half(dot(w, w))
    return Vec(c, *(w * a))


@_arrays(1)
def log_quaternion(q: Vec) -> Vec:
    """The rotation vector of a unit quaternion, |w| <= pi (q and -q are the same rotation)."""
    v = Vec(*q[1:])
    n2 = dot(v, v)
    zero = n2 == 0
    n = sqrt(where(zero, n2 + 1.0, n2))
    w = where(q[0] < 0, -q[0], q[0])
    scale = where(zero, n2 + 2.0, 2.0 * atan2(n, w) / n)
    return v * where(q[0] < 0, -scale, scale)


# Without branches, which compiled code does not have ---------------------------------------------------------

# Squares of angles.  Below the first, an angle is numerically zero.  Up to the second, a full turn, the series
# of `stumpff` are accurate to the last digits; beyond it they give NaN.
TINY, WHOLE_TURN, TERMS = 1e-30, 40.0, 18


def straight_exp_quaternion(w: Vec) -> Vec:
    """`exp_quaternion`, in straight-line code."""
    angle = sqrt(dot(w, w) + TINY)
    return Vec(cos(angle * 0.5), *(w * (sin(angle * 0.5) / angle)))


# atan(t) = t sum_k ARC[k] t^(2k) to 1e-5 for 0 <= t <= 1 (Abramowitz & Stegun 4.4.49).
ARC = (0.999866, -0.3302995, 0.180141, -0.085133, 0.0208351)


def straight_log_quaternion(q: Vec) -> tuple[Vec, Scalar]:
    """(w, c): w = `log_quaternion` in straight-line code, and c of dexp_w^-1 = 1 + [w]/2 + c [w]^2.

    A polynomial gives five digits of half the angle; one sine and one cosine give the other ten.
    """
    v = Vec(*q[1:])
    size, cosine = sqrt(dot(v, v) + TINY), maximum(q[0], -q[0])
    front: Any = absolute(maximum(q[0], 0.0))  # whose slope is zero on a tape
    t = size / (cosine + 1.0)
    arc: Scalar = ARC[-1]
    for coefficient in ARC[-2::-1]:
        arc = arc * (t * t) + coefficient
    close = arc * t * 2.0
    left = size * cos(close) - cosine * sin(close)
    half = close + left + left * left * left * (1 / 6)
    sign = front / (front + TINY) * 2.0 - 1.0
    return v * (half * 2.0 / size * sign), (1.0 - half * cosine / size) / (half * half * 4.0)


def stumpff(x: Scalar) -> list[Scalar]:
    """c_k = sum_j (-x)^j / (2j + k)! for k = 2 ... 5; with x = t^2, c2 = (1 - cos t)/t^2, c3 = (t - sin t)/t^3, ...

    With 1/k! - c_k = x c_{k+2}, computing c_{k+2} from c_k loses digits; computing c_k from c_{k+2} does not.
    """
    inside = sqrt(WHOLE_TURN - x)
    c4, c5 = (inside / inside / math.factorial(2 * TERMS + k) for k in (4, 5))  # NaN outside
    for j in reversed(range(TERMS)):
        c4, c5 = (1 / math.factorial(2 * j + k) - x * c for k, c in ((4, c4), (5, c5)))
    return [0.5 - x * c4, 1 / 6 - x * c5, c4, c5]


# SE(3): 4x4 transforms and twists (omega, v) ---------------------------------------------------------------


def transform(R: Mat, p: Sequence[Scalar]) -> Mat:
    """The 4x4 matrix of (R, p)."""
    return Mat(*((*row, pi) for row, pi in zip(R, p)), (0.0, 0.0, 0.0, 1.0))


def split(T: Mat) -> tuple[Mat, Vec]:
    """(R, p) of a 4x4 matrix."""
    return Mat.of(row[:3] for row in T[:3]), Vec.of(row[3] for row in T[:3])


@_arrays(2, 2)
def compose(A: Mat, B: Mat) -> Mat:
    """A B."""
    return A @ B


@_arrays(2)
def inverse(T: Mat) -> Mat:
    """(R, p)^-1 = (R^T, -R^T p)."""
    R, p = split(T)
    return transform(R.T, -(R.T @ p))


def _cubic(theta2: Any, sinc: Scalar) -> Any:
    """(t - sin t) / t^3; by its series below t^2 = 1/4, where the formula loses digits."""
    small = theta2 < 0.25
    terms = 2
    while 0.25**terms / math.factorial(2 * terms + 3) > epsilon(theta2) / 8:
        terms += 1
    series: Scalar = 0.0
    for k in reversed(range(terms)):  # Horner: sum (-t^2)^k / (2k + 3)!
        series = (series * theta2) * (-1.0) + (theta2 * 0.0 + 1.0) / math.factorial(2 * k + 3)
    return where(small, series, (1.0 - sinc) / where(small, theta2 * 0.0 + 1.0, theta2))


@_arrays(1)
def exp_se3(V: Vec) -> Mat:
    """exp of the twist (omega, v): (exp [w], A v) with A = 1 + (1 - cos t)/t^2 [w] + (t - sin t)/t^3 [w]^2."""
    w, v = Vec(*V[:3]), Vec(*V[3:])
    theta2 = dot(w, w)
    a, c = _sinc_half(theta2)
    wv = cross(w, v)
    p = v + wv * (a * a * 2.0) + cross(w, wv) * _cubic(theta2, a * c * 2.0)
    return transform(rotation_of(Vec(c, *(w * a))), p)


@_arrays(2)
def log_se3(T: Mat) -> Vec:
    """The twist whose exponential is T, with |w| <= pi."""
    R, p = split(T)
    w = log_so3(R)
    theta2 = dot(w, w)
    a, c = _sinc_half(theta2)
    # A^-1 = 1 - [w]/2 + b [w]^2,  b = (2B - sinc t) / (2B t^2)  with  2B = 2 (1 - cos t)/t^2 = sinc(t/2)^2.
    # Written with C(t) = (t - sin t)/t^3, t^2 cancels symbolically, and no digit is lost at small angles.
    C, C_half = _cubic(theta2, 2.0 * a * c), _cubic(theta2 * 0.25, 2.0 * a)
    b = (C - 0.5 * C_half + theta2 * C_half * C_half * 0.0625) / (4.0 * a * a)
    wp = cross(w, p)
    return Vec(*w, *(p - wp * 0.5 + cross(w, wp) * b))


@_arrays(2)
def Ad(T: Mat) -> Mat:
    """Ad_T = [[R, 0], [[p] R, R]], angular part first."""
    R, p = split(T)
    pR = hat(p) @ R
    zero = (0.0, 0.0, 0.0)
    return Mat(*((*r, *zero) for r in R), *((*a, *r) for a, r in zip(pR, R)))


@_arrays(2)
def Ad_dual(T: Mat) -> Mat:
    """Ad*_T = Ad_T^T: moves wrenches (moment, force) in the opposite direction."""
    return Ad(T).T


@_arrays(1)
def ad(V: Vec) -> Mat:
    """ad_V = [[[w], 0], [[v], [w]]]: ad_V W = [V, W]."""
    w, v = hat(Vec(*V[:3])), hat(Vec(*V[3:]))
    zero = (0.0, 0.0, 0.0)
    return Mat(*((*r, *zero) for r in w), *((*a, *r) for a, r in zip(v, w)))


@_arrays(1)
def ad_dual(V: Vec) -> Mat:
    """ad*_V = ad_V^T."""
    return ad(V).T


# Euler angles ------------------------------------------------------------------------------------------------


@_arrays(1)
def euler_zxz(angles: Vec) -> Mat:
    """R = R_z(alpha) R_x(beta) R_z(gamma)."""
    (ca, cb, cg), (sa, sb, sg) = (Vec.of(map(f, angles)) for f in (cos, sin))
    return Mat(
        (ca * cg - sa * cb * sg, -ca * sg - sa * cb * cg, sa * sb),
        (sa * cg + ca * cb * sg, -sa * sg + ca * cb * cg, -ca * sb),
        (sb * sg, sb * cg, cb),
    )


@_arrays(1)
def euler_zxz_jacobian(angles: Vec) -> Mat:
    """J with omega = J d(alpha, beta, gamma)/dt in the body frame (Lee, Wang & Chirikjian 2007, Eq. 12).

    det J = -sin(beta): the angles are singular where the two z axes coincide.
    """
    _, beta, gamma = angles
    sb, sg, cg = sin(beta), sin(gamma), cos(gamma)
    return Mat((sb * sg, cg, 0.0), (sb * cg, -sg, 0.0), (cos(beta), 0.0, 1.0))


# Functions of rotations and transforms -------------------------------------------------------------------

# Central differences of order eight: the weights of f(+-h), f(+-2h), ... times h.
DIFFERENCES = (4 / 5, -1 / 5, 4 / 105, -1 / 280)
# With the first step both errors, h^8 / 630 times a ninth derivative and rounding / h, are about 1e-14 for a function
# that varies over a radian. Shorter steps are for functions that vary faster.
STEPS = tuple(0.02 * 2.0**-k for k in range(12))
KINK = (1e-6, 1e-5)
SETTLED, UNSETTLED = 1e-12, 1e-6  # the change from a step to the next, relative to the largest derivative


def derivative(f: Callable[[Any], Any], A: Any, *, length: float = 1.0) -> Any:
    """df(A exp(eps E_i)) / d eps at eps = 0 for every direction i of the group, on a new last axis.

        lie.derivative(lambda R: R[..., 0, 1], R)                     # (..., 3): SO(3), Eq. 13
        lie.derivative(lambda T: np.linalg.norm(T[..., :3, 3], axis=-1), T)    # (..., 6): SE(3), Eq. 16

    f        any smooth function of rotations (..., 3, 3) or transforms (..., 4, 4), with values of any shape
    length   the length over which f varies with position: the first differences are over 2 % of it, and of a radian

    The derivative is a row: for coordinates q of the group it is df/dq J^-1, J their body Jacobian (Eqs 17 and 18).
    Differences of order eight on the group are taken with shorter and shorter steps until they converge. This gives
    twelve digits of a function that varies over a radian and `length`. A function that is not smooth at A is refused.
    """
    A = np.asarray(A, dtype=np.float64)
    if A.ndim < 2 or A.shape[-2:] not in ((3, 3), (4, 4)):
        raise ArgumentError(f"A has shape {A.shape}; rotations (..., 3, 3) or transforms (..., 4, 4) are needed")
    if not callable(f) or not length > 0 or not math.isfinite(length):
        raise ArgumentError("derivative needs a function of A, and a length above 0")
    best = _differences(f, A, length, STEPS[0])
    previous, change = best, np.full(best.shape, np.inf)
    for step in STEPS[1:]:
        found = _differences(f, A, length, step)
        with np.errstate(invalid="ignore"):
            apart = np.abs(found - previous)
        better = apart < change
        best, change, previous = np.where(better, found, best), np.where(better, apart, change), found
        size = np.abs(best).max(initial=0.0)
        if (change <= SETTLED * max(size, 1.0)).all():
            break
    if not (change <= UNSETTLED * max(size, 1.0)).all() or _has_kink(f, A, length, UNSETTLED * max(size, 1.0)):
        raise ArgumentError("the differences of f do not settle: it is not smooth at A, or not over `length`")
    return best


def _has_kink(f: Callable[[Any], Any], A: Any, length: float, small: float) -> bool:
    """Whether the one-sided derivatives differ: then their difference does not shrink with the step."""
    here = np.asarray(f(A))
    near, far = (
        np.stack([np.abs(a + b - 2 * here) / size for a, b, size in _both_sides(f, A, length, step)]) for step in KINK
    )
    return bool((near > np.maximum(0.5 * far, small)).any())


def _both_sides(f: Callable[[Any], Any], A: Any, length: float, step: float) -> Iterator[tuple[Any, Any, float]]:
    """For every direction: f ahead by a step, f behind, and the step."""
    exp, sizes = (exp_so3, np.ones(3)) if A.shape[-1] == 3 else (exp_se3, np.repeat([1.0, length], 3))
    for direction, size in zip(np.eye(len(sizes)), (sizes * step).tolist()):
        yield np.asarray(f(A @ exp(size * direction))), np.asarray(f(A @ exp(-size * direction))), size


def _differences(f: Callable[[Any], Any], A: Any, length: float, step: float) -> Any:
    """The differences of one step, in all directions."""
    total: Any = 0.0
    for k, weight in enumerate(DIFFERENCES, start=1):
        sides = _both_sides(f, A, length, k * step)
        total = total + np.stack([weight * k * (a - b) / size for a, b, size in sides], axis=-1)
    return total
