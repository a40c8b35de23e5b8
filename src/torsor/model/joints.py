"""Joint types: how a joint moves its body, and how its coordinates are added and subtracted.

A joint places its body at f = M exp(...): `exp` is that motion, `subspace` the directions S it moves in
(V = S v in the child's frame) and `subspace_rate` is dS/dt.  These three are written over any scalar and are
all an algorithm needs.  `integrate`, `difference` and `random` work on NumPy arrays of coordinates.

To add a joint: write a class, put it into `JOINTS` (its place there is its code in `Model.joint`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from torsor import lie
from torsor.errors import ModelError
from torsor.linalg import Mat, Scalar, Vec, cos, is_literal, sin
from torsor.spatial import Pose, Rigid, Screw, Spatial, Subspace

Array = NDArray[np.floating]
ZERO = Vec.zero()
X, Y, Z = (Vec.unit(k) for k in range(3))


class Joint:
    """One type of joint.  Coordinates q (nq of them), velocities v (nv); v = dq/dt unless stated."""

    name: ClassVar[str]
    nq: ClassVar[int]
    nv: ClassVar[int]
    axial: ClassVar[bool] = False  # a screw motion along `axis`: revolute, prismatic, helical

    def exp(self, q: Vec, axis: Vec, pitch: Scalar) -> Pose:
        """The motion of the joint at q."""
        raise NotImplementedError

    def subspace(self, q: Vec, axis: Vec, pitch: Scalar) -> Subspace:
        """S(q), with V = S v in the child's frame."""
        raise NotImplementedError

    def subspace_rate(self, q: Vec, v: Vec) -> Subspace:
        """dS/dt."""
        return Subspace((Spatial.zero(),) * self.nv)

    @property
    def code(self) -> int:
        return JOINTS.index(self)

    @property
    def neutral(self) -> tuple[float, ...]:
        """The coordinates of no motion."""
        return (0.0,) * self.nq

    def integrate(self, q: Array, dv: Array) -> Array:
        """q moved by the velocity dv held for unit time."""
        return q + dv

    def difference(self, q0: Array, q1: Array) -> Array:
        """The dv with integrate(q0, dv) = q1."""
        return q1 - q0

    def random(self, rng: np.random.Generator, size: int) -> Array:
        """`size` random coordinates: angles and lengths in [-pi, pi], rotations uniform."""
        return rng.uniform(-np.pi, np.pi, (size, self.nq))

    def __repr__(self) -> str:
        return f"<joint {self.name}>"


class Axial(Joint):
    """One degree of freedom: a turn about `axis`, a shift along it, or both."""

    nq = nv = 1
    axial = True
    turns: ClassVar[bool]

    def shift(self, q: Scalar, pitch: Scalar) -> Scalar:
        raise NotImplementedError

    def exp(self, q: Vec, axis: Vec, pitch: Scalar) -> Pose:
        c, s = (cos(q[0]), sin(q[0])) if self.turns else (1.0, 0.0)
        d = self.shift(q[0], pitch)
        if is_literal(axis[2], 1.0):  # the compiler puts every axis on z
            return Screw(2, c, s, d)
        return Rigid(lie.rodrigues(axis, c, s), axis * d)

    def subspace(self, q: Vec, axis: Vec, pitch: Scalar) -> Subspace:
        turn = axis if self.turns else ZERO
        return Subspace((Spatial(turn, axis * (self.shift(1.0, pitch))),))


class Revolute(Axial):
    """q: the angle about `axis`."""

    name = "revolute"
    turns = True

    def shift(self, q: Scalar, pitch: Scalar) -> Scalar:
        return 0.0


class Prismatic(Axial):
    """q: the distance along `axis`."""

    name = "prismatic"
    turns = False

    def shift(self, q: Scalar, pitch: Scalar) -> Scalar:
        return q


class Helical(Axial):
    """q: the angle about `axis`; the body also moves by pitch * q along it."""

    name = "helical"
    turns = True

    def shift(self, q: Scalar, pitch: Scalar) -> Scalar:
        return pitch * q


class Universal(Joint):
    """q: a turn about x, then one about the y axis that has turned with it."""

    name = "universal"
    nq = nv = 2

    def exp(self, q: Vec, axis: Vec, pitch: Scalar) -> Pose:
        c1, s1, c2, s2 = cos(q[0]), sin(q[0]), cos(q[1]), sin(q[1])
        return Rigid(Mat((c2, 0.0, s2), (s1 * s2, c1, -s1 * c2), (-c1 * s2, s1, c1 * c2)), ZERO)

    def subspace(self, q: Vec, axis: Vec, pitch: Scalar) -> Subspace:
        return Subspace((Spatial(Vec(cos(q[1]), 0.0, sin(q[1])), ZERO), Spatial(Y, ZERO)))

    def subspace_rate(self, q: Vec, v: Vec) -> Subspace:
        return Subspace((Spatial(Vec(-sin(q[1]), 0.0, cos(q[1])) * v[1], ZERO), Spatial.zero()))


class Spherical(Joint):
    """q: a quaternion (w, x, y, z), of any length but zero; v: the angular velocity in the body's frame."""

    name = "spherical"
    nq, nv = 4, 3

    def exp(self, q: Vec, axis: Vec, pitch: Scalar) -> Pose:
        return Rigid(lie.quaternion_to_matrix(q), ZERO)

    def subspace(self, q: Vec, axis: Vec, pitch: Scalar) -> Subspace:
        return Subspace((Spatial(X, ZERO), Spatial(Y, ZERO), Spatial(Z, ZERO)))

    @property
    def neutral(self) -> tuple[float, ...]:
        return (1.0, 0.0, 0.0, 0.0)

    def integrate(self, q: Array, dv: Array) -> Array:
        return lie.unit_quaternion(lie.quaternion_product(lie.unit_quaternion(q), lie.exp_quaternion(dv)))

    def difference(self, q0: Array, q1: Array) -> Array:
        conjugate = lie.unit_quaternion(q0) * np.array([1, -1, -1, -1], q0.dtype)
        step = lie.quaternion_product(conjugate, lie.unit_quaternion(q1))
        return lie.log_quaternion(lie.unit_quaternion(step))

    def random(self, rng: np.random.Generator, size: int) -> Array:
        q = rng.normal(size=(size, 4))
        return q / np.linalg.norm(q, axis=-1, keepdims=True)


class Planar(Joint):
    """q: (x, y, theta), a shift in the plane z = 0 of the joint's frame, then a turn about z."""

    name = "planar"
    nq = nv = 3

    def exp(self, q: Vec, axis: Vec, pitch: Scalar) -> Pose:
        c, s = cos(q[2]), sin(q[2])
        return Rigid(Mat((c, -s, 0.0), (s, c, 0.0), (0.0, 0.0, 1.0)), Vec(q[0], q[1], 0.0))

    def subspace(self, q: Vec, axis: Vec, pitch: Scalar) -> Subspace:
        c, s = cos(q[2]), sin(q[2])
        return Subspace((Spatial(ZERO, Vec(c, -s, 0.0)), Spatial(ZERO, Vec(s, c, 0.0)), Spatial(Z, ZERO)))

    def subspace_rate(self, q: Vec, v: Vec) -> Subspace:
        c, s = cos(q[2]) * v[2], sin(q[2]) * v[2]
        return Subspace((Spatial(ZERO, Vec(-s, -c, 0.0)), Spatial(ZERO, Vec(c, -s, 0.0)), Spatial.zero()))


class Free(Joint):
    """q: position and quaternion (x, y, z, w, qx, qy, qz); v: the body's twist (omega, v), in its frame."""

    name = "free"
    nq, nv = 7, 6

    def exp(self, q: Vec, axis: Vec, pitch: Scalar) -> Pose:
        return Rigid(lie.quaternion_to_matrix(Vec(*q[3:])), Vec(*q[:3]))

    def subspace(self, q: Vec, axis: Vec, pitch: Scalar) -> Subspace:
        return Subspace(tuple(Spatial.unit(k) for k in range(6)))

    @property
    def neutral(self) -> tuple[float, ...]:
        return (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)

    def integrate(self, q: Array, dv: Array) -> Array:
        step = lie.exp_se3(dv)
        R = lie.quaternion_to_matrix(q[..., 3:])
        p = q[..., :3] + np.einsum("...ij,...j", R, step[..., :3, 3])
        return np.concatenate([p, SPHERICAL.integrate(q[..., 3:], dv[..., :3])], axis=-1)

    def difference(self, q0: Array, q1: Array) -> Array:
        T0, T1 = (_transform(q) for q in (q0, q1))
        return lie.log_se3(lie.compose(lie.inverse(T0), T1))

    def random(self, rng: np.random.Generator, size: int) -> Array:
        return np.concatenate([rng.uniform(-1, 1, (size, 3)), SPHERICAL.random(rng, size)], axis=-1)


def _transform(q: Array) -> Array:
    T = np.zeros((*q.shape[:-1], 4, 4), dtype=q.dtype)
    T[..., :3, :3] = lie.quaternion_to_matrix(q[..., 3:])
    T[..., :3, 3] = q[..., :3]
    T[..., 3, 3] = 1
    return T


SPHERICAL = Spherical()
JOINTS: tuple[Joint, ...] = (
    Revolute(), Prismatic(), Helical(), Universal(), SPHERICAL, Planar(), Free(),
)  # fmt: skip


def joint_code(name: str) -> int:
    """The code of a joint type in `Model.joint`."""
    return joint_named(name).code


def joint_named(name: str) -> Joint:
    """The joint type of that name."""
    for joint in JOINTS:
        if joint.name == name:
            return joint
    known = ", ".join(j.name for j in JOINTS)
    raise ModelError(f"unknown joint type {name!r}; torsor knows {known} and fixed")
