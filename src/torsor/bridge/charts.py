"""From the numbers of an input to tangents along freedoms, and back, for arrays of a framework.

The map is N(q)^+ for the quaternions of q, and dexp_-xi for the twists of placements M exp(xi). For all other inputs,
the numbers are the freedoms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import factorial, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.inputs import place_of
from torsor.lie import TERMS
from torsor.model.joints import Joint
from torsor.model.model import Model

Array = NDArray[Any]


def constant(x: Array, like: Any, xp: Any) -> Any:
    """A constant as an array of the framework, with the type and device of `like`."""
    where = {"device": like.device} if xp.__name__ == "torch" else {}
    return xp.asarray(np.array(x), dtype=like.dtype, **where)  # a copy, because PyTorch warns about read-only arrays


class _Turning(NamedTuple):
    """Joints of one type with a quaternion: the columns in q of (quaternion, position), in v of (turning, shifting)."""

    quaternion: Array
    position: Array
    turning: Array
    shifting: Array


class Charts:
    """Map tangents of the numbers of inputs to tangents along freedoms, and cotangents back.

    The functions take and return one array per input.
    """

    def __init__(self, model: Model, names: Sequence[str], xp: Any) -> None:
        self.names, self.xp, self.model = names, xp, model
        self.joints = [_turning(*group) for group in model.joint_groups if not group[0].flat]
        used = [np.concatenate([np.ravel(x) for x in places]) for places in zip(*self.joints)] if self.joints else []
        if used:
            self.flat_q = np.setdiff1d(np.arange(model.nq), np.concatenate(used[:2]))
            self.flat_v = np.setdiff1d(np.arange(model.nv), np.concatenate(used[2:]))
            own = [[x for joint in self.joints for x in joint[first : first + 2]] for first in (0, 2)]
            self.from_parts_q, self.from_parts_v = (
                np.argsort(np.concatenate([flat, *map(np.ravel, parts)])).astype(int)
                for flat, parts in zip((self.flat_q, self.flat_v), own)
            )

    def tangents(self, xs: Sequence[Any], dxs: Sequence[Any]) -> list[Any]:
        """Tangents along freedoms, from changes of the numbers."""
        return [self._changed(name, x, dx, False) for name, x, dx in zip(self.names, xs, dxs)]

    def cotangents(self, xs: Sequence[Any], gs: Sequence[Any]) -> list[Any]:
        """Cotangents of the numbers, from those along freedoms: the transpose of `tangents`."""
        return [self._changed(name, x, g, True) for name, x, g in zip(self.names, xs, gs)]

    def along(self, q: Any, g: Any) -> Any:
        """N(q)^T g: the cotangent along freedoms, from a cotangent of the numbers of q."""
        if not self.joints:
            return g
        parts = [self._at(g, self.flat_q)]
        for joint in self.joints:
            quaternion = self._at(q, joint.quaternion)
            inside = self._product(_conjugate(quaternion, self.xp), self._at(g, joint.quaternion))
            parts += [inside[..., 1:] * 0.5, self._turned(quaternion, self._at(g, joint.position), -1.0)]
        return self._joined(parts, self.from_parts_v)

    def bracket(self, row: Any, ts: Sequence[Any], weights: Mapping[str, float]) -> Any:
        """The row w sum_k g_k [t, i]_k, for a row g of the cotangents of all inputs; w is 0 without a weight."""
        parts, at = [], 0
        for name, t in zip(self.names, ts):
            core = place_of(f"d{name}").shape(self.model)
            g = row[..., at : at + prod(core)]
            at += prod(core)
            t = t.reshape((*t.shape[: t.ndim - len(core)], prod(core)))
            parts.append(self._bracket(name, g, t) * weights.get(name, 0.0))
        batch = np.broadcast_shapes(*(tuple(x.shape[:-1]) for x in parts))
        return self.xp.concatenate([self.xp.broadcast_to(x, (*batch, x.shape[-1])) for x in parts], -1)

    def _bracket(self, name: str, g: Any, t: Any) -> Any:
        xp = self.xp
        if name == "placement":
            shape = (-1, 6)
            g, t = (x.reshape((*x.shape[:-1], *shape)) for x in (g, t))
            found = xp.concatenate(self._of_twists(g[..., :3], g[..., 3:], t[..., :3], t[..., 3:]), -1)
            return found.reshape((*found.shape[:-2], 6 * self.model.n))
        zero = xp.zeros_like(g + t)
        if name != "q" or not self.joints:
            return zero
        parts = [self._at(zero, self.flat_v)]
        for joint in self.joints:
            found = self._of_twists(*(self._at(x, at) for x in (g, t) for at in (joint.turning, joint.shifting)))
            parts += found
        return self._joined(parts, self.from_parts_v)

    def _of_twists(self, gw: Any, gv: Any, tw: Any, tv: Any) -> list[Any]:
        """g . [t, i] for each direction i, with [(w1, v1), (w2, v2)] = (w1 x w2, w1 x v2 - w2 x v1); v may be empty."""
        cross = self.xp.linalg.cross
        if not gv.shape[-1]:
            return [cross(gw, tw), gv * tv]
        return [cross(gw, tw) + cross(gv, tv), cross(gv, tw)]

    def _changed(self, name: str, x: Any, y: Any, back: bool) -> Any:
        if name == "placement":
            A = slope_ofexponential(x, self.xp)
            return self.xp.einsum("...ji,...j->...i" if back else "...ij,...j->...i", A, y)
        if name != "q" or not self.joints:
            return y
        return self._to_numbers(x, y) if back else self._to_freedoms(x, y)

    def _to_freedoms(self, q: Any, dq: Any) -> Any:
        """N(q)^+ dq: (omega, v) = (2 vec(quat^-1 dquat), R^T dp)."""
        parts = [self._at(dq, self.flat_q)]
        for joint in self.joints:
            quaternion = self._at(q, joint.quaternion)
            scale = 2.0 / (quaternion * quaternion).sum(-1)[..., None]
            inside = self._product(_conjugate(quaternion, self.xp), self._at(dq, joint.quaternion))
            parts += [inside[..., 1:] * scale, self._turned(quaternion, self._at(dq, joint.position), -1.0)]
        return self._joined(parts, self.from_parts_v)

    def _to_numbers(self, q: Any, g: Any) -> Any:
        """N(q)^+T g: (dquat, dp) = (2 quat^-1* (0, g_omega), R g_v)."""
        parts = [self._at(g, self.flat_v)]
        for joint in self.joints:
            quaternion, turning = self._at(q, joint.quaternion), self._at(g, joint.turning)
            scale = 2.0 / (quaternion * quaternion).sum(-1)[..., None]
            vector = self.xp.concatenate([turning[..., :1] * 0.0, turning], -1)
            parts += [self._product(quaternion, vector) * scale]
            parts += [self._turned(quaternion, self._at(g, joint.shifting), 1.0)]
        return self._joined(parts, self.from_parts_q)

    def _at(self, x: Any, places: Array) -> Any:
        """Entries of the last axis, in the shape of `places`."""
        return x[..., self.xp.asarray(places)]

    def _joined(self, parts: Sequence[Any], order: Array) -> Any:
        """Parts (..., bodies, 3 or 4), the first (..., k), as one axis in another order."""
        rest = [x.reshape((*x.shape[:-2], x.shape[-2] * x.shape[-1])) for x in parts[1:]]
        return self._at(self.xp.concatenate([parts[0], *rest], -1), order)

    def _product(self, p: Any, q: Any) -> Any:
        """The product of quaternions."""
        a, u, b, v = p[..., :1], p[..., 1:], q[..., :1], q[..., 1:]
        real = a * b - (u * v).sum(-1)[..., None]
        return self.xp.concatenate([real, a * v + b * u + self.xp.linalg.cross(u, v)], -1)

    def _turned(self, q: Any, v: Any, sign: float) -> Any:
        """R(q) v, or R^T v with the sign -1; v may be empty."""
        if not v.shape[-1]:
            return v
        w, u = q[..., :1], q[..., 1:] * sign
        uv = self.xp.linalg.cross(u, v)
        scale = 2.0 / (q * q).sum(-1)[..., None]
        return v + (uv * w + self.xp.linalg.cross(u, uv)) * scale


def _conjugate(q: Any, xp: Any) -> Any:
    return xp.concatenate([q[..., :1], -q[..., 1:]], -1)


def _turning(joint: Joint, q: Array, v: Array) -> _Turning:
    """All joints of one type with a quaternion, from their columns; other columns of q are positions."""
    position = np.delete(q, joint.quaternion, axis=1)
    return _Turning(q[:, joint.quaternion], position, v[:, :3], v[:, 3:])


def _stumpff(x: Any) -> tuple[Any, Any, Any, Any]:
    """c_2 ... c_5 of `lie.stumpff`, for arrays of a framework."""
    c4, c5 = 0.0 * x, 0.0 * x
    for j in reversed(range(TERMS)):
        c4, c5 = (1 / factorial(2 * j + k) - x * c for k, c in ((4, c4), (5, c5)))
    return 0.5 - x * c4, 1 / 6 - x * c5, c4, c5


def slope_ofexponential(xi: Any, xp: Any) -> Any:
    """dexp_-xi (..., 6, 6): exp(xi + d) = exp(xi) exp(dexp_-xi d), for twists up to a turn.

    A polynomial in ad_xi (Selig 2005, 7.5); its coefficients are Stumpff functions of the angle.
    """
    w, v = _hat(xi[..., :3], xp), _hat(xi[..., 3:], xp)
    A = xp.concatenate([xp.concatenate([w, 0.0 * w], -1), xp.concatenate([v, w], -1)], -2)
    x = (xi[..., :3] * xi[..., :3]).sum(-1)[..., None, None]
    c2, c3, c4, c5 = _stumpff(x)
    coefficients = ((1.0 - x * c3 - 4.0 * c2) / 2, (5.0 * c3 - c2) / 2, (2.0 * c4 - c3) / 2, (c4 - 3.0 * c5) / 2)
    found, power = constant(np.eye(6), xi, xp), A
    for coefficient in coefficients:
        found = found + coefficient * power
        power = power @ A
    return found


def exponential(xi: Any, xp: Any) -> tuple[Any, Any]:
    """(R, p) of exp(xi), for twists up to a turn."""
    W = _hat(xi[..., :3], xp)
    x = (xi[..., :3] * xi[..., :3]).sum(-1)[..., None, None]
    c2, c3, _, _ = _stumpff(x)
    one, square = constant(np.eye(3), xi, xp), W @ W
    R = one + (1.0 - x * c3) * W + c2 * square
    p = (one + c2 * W + c3 * square) @ xi[..., 3:, None]
    return R, p[..., 0]


def _hat(w: Any, xp: Any) -> Any:
    """[w] with [w] x = w x x, for a last axis of three."""
    x, y, z = w[..., 0], w[..., 1], w[..., 2]
    zero = 0.0 * x
    return xp.stack([xp.stack(row, -1) for row in ((zero, -z, y), (z, zero, -x), (-y, x, zero))], -2)
