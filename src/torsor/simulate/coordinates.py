"""How coordinates move with velocities: dq/dt = N(q) v, its inverse and its time derivative.

For all joints but two, N is the identity. A spherical joint has a quaternion and the angular velocity in the
body's frame, a free joint also a position p and the linear velocity in the body's frame:

    d quat/dt = quat (0, omega) / 2          dp/dt = R(quat) v

Both keep the length of the quaternion, whatever it is, and no result depends on that length; integrators on
the vector space (q, v) therefore only trim the rounding and truncation errors in it, once a step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, wraps
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms import discrete_mechanics as mechanics
from torsor.lie import quaternion_product, quaternion_to_matrix
from torsor.linalg import Vec, dot
from torsor.model.joints import JOINTS
from torsor.model.model import Model

if TYPE_CHECKING:
    from torsor.kernel.program import Program

Array = NDArray[Any]
CONJUGATE = np.array([1.0, -1.0, -1.0, -1.0])
SPHERICAL, FREE = (next(j.code for j in JOINTS if j.name == name) for name in ("spherical", "free"))


class Coordinates:
    """The map between velocities v and coordinate rates dq/dt of a model; leading batch axes welcome."""

    def __init__(self, model: Model) -> None:
        q, v = model.q_start[:-1], model.v_start[:-1]
        free = model.joint == FREE
        turning = free | (model.joint == SPHERICAL)
        self.flat = not turning.any()  # dq/dt = v for every joint
        self.quaternion = (q + 3 * free)[turning, None] + np.arange(4)
        self.omega = v[turning, None] + np.arange(3)
        self.position = q[free, None] + np.arange(3)
        self.linear = v[free, None] + np.arange(3, 6)
        self.turning_of_free = np.flatnonzero(free[turning])  # rows of `quaternion` that belong to free joints
        self.model, self.nq, self.nv = model, model.nq, model.nv
        plain_q = np.setdiff1d(np.arange(model.nq), np.concatenate([self.quaternion, self.position], axis=None))
        plain_v = np.setdiff1d(np.arange(model.nv), np.concatenate([self.omega, self.linear], axis=None))
        self.plain = plain_q, plain_v
        # the velocity that bounds the error of each coordinate: its own, or the first of its joint's
        self.velocity_of = np.empty(model.nq, dtype=np.int64)
        self.velocity_of[plain_q] = plain_v
        self.velocity_of[self.quaternion] = self.omega[:, :1]
        self.velocity_of[self.position] = self.linear
        sizes = np.diff(model.q_start)
        self._own = np.flatnonzero(np.arange(mechanics.WIDEST) < sizes[:, None])  # of (n, WIDEST) coordinates

    def rate(self, q: Array, v: Array) -> Array:
        """dq/dt = N(q) v."""
        if self.flat:
            return v
        out = np.empty((*v.shape[:-1], self.nq))
        plain_q, plain_v = self.plain
        quaternion = q[..., self.quaternion]
        out[..., plain_q] = v[..., plain_v]
        out[..., self.quaternion] = spin(quaternion, v[..., self.omega])
        out[..., self.position] = rotate(quaternion[..., self.turning_of_free, :], v[..., self.linear])
        return out

    def rate_dot(self, q: Array, v: Array, a: Array) -> Array:
        """d^2 q/dt^2 = N(q) a + dN/dt v."""
        out = self.rate(q, a)
        if self.flat:
            return out
        quaternion, omega = q[..., self.quaternion], v[..., self.omega]
        out[..., self.quaternion] += spin(spin(quaternion, omega), omega)
        swirl = np.cross(omega[..., self.turning_of_free, :], v[..., self.linear])
        out[..., self.position] += rotate(quaternion[..., self.turning_of_free, :], swirl)
        return out

    def velocity(self, q: Array, rate: Array) -> Array:
        """The v with N(q) v = dq/dt."""
        if self.flat:
            return rate
        out = np.empty((*rate.shape[:-1], self.nv))
        plain_q, plain_v = self.plain
        quaternion = q[..., self.quaternion]
        out[..., plain_v] = rate[..., plain_q]
        out[..., self.omega] = spin_of(quaternion, rate[..., self.quaternion])
        back = quaternion[..., self.turning_of_free, :] * CONJUGATE
        out[..., self.linear] = rotate(back, rate[..., self.position])
        return out

    def move(self, q: Array, dv: Array) -> Array:
        """q [+] dv, as Model.integrate has it; compiled, because integrators call it several times a step."""
        if self.flat:
            return q + dv
        return self._program(q, dv).reshape(*q.shape[:-1], -1).take(self._own, axis=-1)

    @cached_property
    def _program(self) -> Program:
        from torsor.kernel.program import compile_program  # when it is needed: `import torsor` stays quick

        return compile_program(mechanics.move, self.model)

    def lengths(self, q: Array) -> Array:
        """The lengths of the quaternions in q, (..., number of them)."""
        return np.linalg.norm(q[..., self.quaternion], axis=-1)

    def normalise(self, q: Array) -> Array:
        """Make every quaternion in q a unit one, in place; the lengths they had."""
        lengths = self.lengths(q)
        q[..., self.quaternion] /= lengths[..., None]
        return lengths


# ---- functions of one quaternion, compiled when first called: integrators call them at every stage ----


def _compiled(*sizes: int) -> Callable[[Callable[..., Any]], Callable[..., Array]]:
    """A function of vectors of scalars as one of arrays (..., size)."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Array]:
        @cache
        def program() -> Any:
            from torsor.kernel.pointwise import compile_pointwise

            inputs = {f"x{k}": (n,) for k, n in enumerate(sizes)}
            return compile_pointwise(lambda *vectors: list(function(*(Vec(*x) for x in vectors))), inputs)

        return wraps(function)(lambda *arrays: program()(*arrays))

    return decorate


@_compiled(4, 3)
def spin(quaternion: Vec, omega: Vec) -> Vec:
    """quat (0, omega) / 2"""
    return quaternion_product(quaternion, Vec(0.0, *omega)) * 0.5


@_compiled(4, 4)
def spin_of(quaternion: Vec, rate: Vec) -> Vec:
    """The omega of a rate of change: twice the vector part of quat^-1 rate."""
    w, x, y, z = quaternion
    product = quaternion_product(Vec(w, -x, -y, -z), rate) * (2.0 / dot(quaternion, quaternion))
    return Vec(*product[1:])


@_compiled(4, 3)
def rotate(quaternion: Vec, x: Vec) -> Vec:
    """R(quat) x"""
    return quaternion_to_matrix(quaternion) @ x

