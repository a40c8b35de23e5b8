"""Joint types.  Everything specific to a type of joint is in its class.

A joint places its body at f = M exp(...).  `exp` is that motion, `subspace` has the directions S of the motion (V = S v
in the child's frame), `subspace_rate` is dS/dt, and `reactions` are the wrenches that the joint transmits without doing
work.  These, and the maps between coordinates and velocities, are written over any scalar (`torsor.linalg`):
algorithms, integrators and compiled code use the same methods.  `integrate`, `difference` and `random` work on NumPy
arrays.

To add a joint: write a class and put an instance into `JOINTS` (its index there is its code in `Model.joint`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from torsor import lie
from torsor.errors import ModelError
from torsor.linalg import Mat, Scalar, Vec, cos, cross, dot, down_scale, is_literal, sin, sqrt
from torsor.spatial import Pose, Product, Rigid, Screw, Spatial, Subspace

Array = NDArray[np.floating]
ZERO = Vec.zero()
X, Y, Z = (Vec.unit(k) for k in range(3))
RADIAN, METRE, NONE = "rad", "m", "–"
FORCE_UNITS = {RADIAN: "N m", METRE: "N"}


class Joint:
    """One type of joint.  Coordinates q (nq of them), velocities v (nv); v = dq/dt unless the class says otherwise.

    Every coordinate and every velocity has a name, empty if there is only one, and a unit (for a velocity: the unit of
    its time integral).
    """

    name: ClassVar[str]
    coordinates: ClassVar[tuple[tuple[str, str], ...]]
    velocities: ClassVar[tuple[tuple[str, str], ...]]  # default: those of the coordinates
    axial: ClassVar[bool] = False  # all motion is about and along `axis`
    has_pitch: ClassVar[bool] = False
    only_turns: ClassVar[bool] = False  # the only motion is a rotation about `axis`
    flat: ClassVar[bool] = True  # dq/dt = v
    quaternion: ClassVar[slice] = slice(0, 0)  # the quaternion's entries in q, if there is one
    locking: ClassVar[tuple[int, ...]] = ()  # the entries of q at whose right angles two axes of the joint coincide

    def __init_subclass__(cls) -> None:
        if "coordinates" in vars(cls):
            cls.velocities = vars(cls).get("velocities", cls.coordinates)
            cls.nq, cls.nv = len(cls.coordinates), len(cls.velocities)

    nq: ClassVar[int]
    nv: ClassVar[int]

    # ---- motion ----

    def exp(self, q: Vec, axis: Vec, pitch: Scalar) -> Pose:
        """The motion of the joint at q."""
        raise NotImplementedError

    def subspace(self, q: Vec, axis: Vec, pitch: Scalar) -> Subspace:
        """S(q), with V = S v in the child's frame."""
        raise NotImplementedError

    def subspace_rate(self, q: Vec, v: Vec) -> Subspace:
        """dS/dt."""
        return Subspace((Spatial.zero(),) * self.nv)

    def reactions(self, q: Vec, axis: Vec, pitch: Scalar) -> tuple[Spatial, ...]:
        """An orthonormal basis of the 6 - nv wrenches R with R^T S = 0, in the child's frame."""
        raise NotImplementedError

    def rotor_bias(self, armature: Vec, x: Vec, y: Vec) -> Vec:
        """B(x, y), bilinear: rotors with the energy v^T A v / 2, A diagonal, need the torque A dv/dt + B(v, v)."""
        return Vec.zero(self.nv)

    # ---- coordinates ----

    @property
    def neutral(self) -> tuple[float, ...]:
        """The coordinates at which exp is the identity."""
        return (0.0,) * self.nq

    def rate(self, q: Vec, v: Vec) -> Vec:
        """dq/dt = N(q) v."""
        return v

    def rate_dot(self, q: Vec, v: Vec, a: Vec) -> Vec:
        """d^2 q/dt^2 = N(q) a + dN/dt v."""
        return a

    def velocity(self, q: Vec, rate: Vec) -> Vec:
        """The v with N(q) v = dq/dt."""
        return rate

    def tangent(self, q: Vec) -> Mat:
        """N(q), nq x nv."""
        return Mat.of(self.rate(q, Vec.unit(k, self.nv)) for k in range(self.nv)).T

    def normalised(self, q: Vec) -> Vec:
        """q with its quaternion normalised."""
        return q

    @property
    def error_velocity(self) -> tuple[int, ...]:
        """For each coordinate, the velocity whose tolerance bounds its error."""
        return tuple(range(self.nq))

    @property
    def limited(self) -> tuple[int, ...]:
        """For each velocity, the coordinate that its limits bound; -1 if there is none."""
        return tuple(range(self.nv)) if self.flat else (-1,) * self.nv

    def stepped(self, q: Vec, v: Vec, a: Vec, h: Scalar) -> tuple[Vec, Vec]:
        """(q, v) after a step of length h with the acceleration a, the velocity first: q + h N(q) (v + h a)."""
        v = v + a * h
        return q + self.rate(q, v) * h, v

    # ---- springs ----

    def spring(self, q: Vec, rest: Vec, stiffness: Vec) -> tuple[Vec, Vec]:
        """Minus the gradient of sum_k stiffness_k e_k^2 / 2, e = `elongation`, and minus the derivative of each torque
        with respect to its freedom."""
        return Vec.of(k * (r - x) for k, r, x in zip(stiffness, rest, q)), stiffness

    def elongation(self, q: Array, rest: Array) -> Array:
        """The elongation of springs at the freedoms, (..., nv)."""
        return q - rest

    # ---- the Lie group of the joint: moving along the velocity y for unit time ----

    def retract(self, q: Vec, y: Vec) -> Vec:
        """q [+] y."""
        return q + y

    def carried(self, y: Vec, p: Vec) -> Vec:
        """Ad_{exp y}^T p: a momentum fixed in space, in the body's frame after the motion y."""
        return p

    def averaged(self, y: Vec, p: Vec) -> Vec:
        """dexp_y^T p = int_0^1 Ad_{exp(s y)}^T p ds: the mean of the momentum that is carried along."""
        return p

    # ---- arrays ----

    def integrate(self, q: Array, dv: Array) -> Array:
        """q moved by the constant velocity dv for unit time."""
        return q + dv

    def difference(self, q0: Array, q1: Array) -> Array:
        """The dv with integrate(q0, dv) = q1."""
        return q1 - q0

    def random(self, rng: np.random.Generator, size: int) -> Array:
        """`size` random coordinates: angles and lengths in [-pi, pi], rotations uniform."""
        return rng.uniform(-np.pi, np.pi, (size, self.nq))

    @property
    def slides(self) -> bool:
        """Whether the body's origin can move."""
        return self.has_pitch or any(unit == METRE for _, unit in self.velocities)

    @property
    def code(self) -> int:
        return JOINTS.index(self)

    def __repr__(self) -> str:
        return f"<joint {self.name}>"


# Joints with an axis ---------------------------------------------------------------------------------------------


class Axial(Joint):
    """Rotates about `axis` and shifts along it: `screws` gives both per unit of each coordinate."""

    axial = True

    def screws(self, pitch: Scalar) -> tuple[tuple[Scalar, Scalar], ...]:
        """(rotation, shift) for each coordinate."""
        raise NotImplementedError

    @property
    def turns(self) -> bool:
        return any(not is_literal(turn, 0.0) for turn, _ in self.screws(1.0))

    def motion(self, q: Vec, pitch: Scalar) -> tuple[Scalar, Scalar]:
        """(angle about the axis, distance along it)"""
        turns, shifts = zip(*self.screws(pitch))
        return _weighted(turns, q), _weighted(shifts, q)

    def exp(self, q: Vec, axis: Vec, pitch: Scalar) -> Pose:
        angle, d = self.motion(q, pitch)
        c, s = (cos(angle), sin(angle)) if self.turns else (1.0, 0.0)
        if is_literal(axis[2], 1.0):  # the compiler puts every axis on z
            return Screw(2, c, s, d)
        return Rigid(lie.rodrigues(axis, c, s), axis * d)

    def subspace(self, q: Vec, axis: Vec, pitch: Scalar) -> Subspace:
        return Subspace(tuple(Spatial(axis * turn, axis * shift) for turn, shift in self.screws(pitch)))

    def reactions(self, q: Vec, axis: Vec, pitch: Scalar) -> tuple[Spatial, ...]:
        x, y = across(axis)
        wrenches = (Spatial(x, ZERO), Spatial(y, ZERO), Spatial(ZERO, x), Spatial(ZERO, y))
        if self.nv == 2:
            return wrenches
        ((turn, shift),) = self.screws(pitch)
        size = 1.0 if is_literal(turn * shift, 0.0) else 1.0 / sqrt(turn * turn + shift * shift)
        return (*wrenches, Spatial(axis * (-shift * size), axis * (turn * size)))


def _weighted(weights: Sequence[Scalar], q: Vec) -> Scalar:
    """Sum w q, without the factors and terms of literal weights: so that sin(q1) does not become sin(1.0 q1)."""
    terms = [x if is_literal(w, 1.0) else w * x for w, x in zip(weights, q) if not is_literal(w, 0.0)]
    total: Scalar = terms[0] if terms else 0.0
    for term in terms[1:]:
        total = total + term
    return total


def across(z: Vec) -> tuple[Vec, Vec]:
    """Two unit vectors that make a right-handed frame with the unit vector z; x and y for z itself."""
    if is_literal(z[2], 1.0):
        return X, Y
    sign = 1.0 if z[2] >= 0 else -1.0
    k = -1.0 / (sign + z[2])
    x = Vec(1.0 + sign * k * z[0] * z[0], sign * k * z[0] * z[1], -sign * z[0])
    return x, cross(z, x)


class Revolute(Axial):
    """q: the angle about `axis`."""

    name = "revolute"
    coordinates = (("", RADIAN),)
    only_turns = True

    def screws(self, pitch: Scalar) -> tuple[tuple[Scalar, Scalar], ...]:
        return ((1.0, 0.0),)


class Prismatic(Axial):
    """q: the distance along `axis`."""

    name = "prismatic"
    coordinates = (("", METRE),)

    def screws(self, pitch: Scalar) -> tuple[tuple[Scalar, Scalar], ...]:
        return ((0.0, 1.0),)


class Helical(Axial):
    """q: the angle about `axis`; the body also moves by pitch * q along it."""

    name = "helical"
    coordinates = (("", RADIAN),)
    has_pitch = True

    def screws(self, pitch: Scalar) -> tuple[tuple[Scalar, Scalar], ...]:
        return ((1.0, pitch),)


class Cylindrical(Axial):
    """q: (angle about `axis`, distance along it)."""

    name = "cylindrical"
    coordinates = (("angle", RADIAN), ("shift", METRE))

    def screws(self, pitch: Scalar) -> tuple[tuple[Scalar, Scalar], ...]:
        return ((1.0, 0.0), (0.0, 1.0))


# Joints of several angles ----------------------------------------------------------------------------------------

SHIFTS = tuple(Spatial.unit(k) for k in (3, 4, 5))


class Universal(Joint):
    """q: angles about x, then about the y axis after the first rotation."""

    name = "universal"
    coordinates = (("x", RADIAN), ("y", RADIAN))

    def exp(self, q: Vec, axis: Vec, pitch: Scalar) -> Pose:
        c1, s1, c2, s2 = cos(q[0]), sin(q[0]), cos(q[1]), sin(q[1])
        return Rigid(Mat((c2, 0.0, s2), (s1 * s2, c1, -s1 * c2), (-c1 * s2, s1, c1 * c2)), ZERO)

    def subspace(self, q: Vec, axis: Vec, pitch: Scalar) -> Subspace:
        return Subspace((Spatial(Vec(cos(q[1]), 0.0, sin(q[1])), ZERO), Spatial(Y, ZERO)))

    def subspace_rate(self, q: Vec, v: Vec) -> Subspace:
        return Subspace((Spatial(Vec(-sin(q[1]), 0.0, cos(q[1])) * v[1], ZERO), Spatial.zero()))

    def reactions(self, q: Vec, axis: Vec, pitch: Scalar) -> tuple[Spatial, ...]:
        """All forces, and the moment along the axis that is normal to both joint axes."""
        return (Spatial(Vec(-sin(q[1]), 0.0, cos(q[1])), ZERO), *SHIFTS)


class Gimbal(Joint):
    """q: angles about x, then about the rotated y axis, then about the twice rotated z axis.

    Where the second angle is a right angle, the first and the last axis coincide and M is singular.
    """

    name = "gimbal"
    coordinates = (("x", RADIAN), ("y", RADIAN), ("z", RADIAN))
    locking = (1,)

    def exp(self, q: Vec, axis: Vec, pitch: Scalar) -> Pose:
        return Product(tuple(Screw(k, cos(x), sin(x), 0.0) for k, x in enumerate(q)))

    def subspace(self, q: Vec, axis: Vec, pitch: Scalar) -> Subspace:
        c2, s2, c3, s3 = cos(q[1]), sin(q[1]), cos(q[2]), sin(q[2])
        turns = Vec(c2 * c3, -(c2 * s3), s2), Vec(s3, c3, 0.0), Z
        return Subspace(tuple(Spatial(turn, ZERO) for turn in turns))

    def subspace_rate(self, q: Vec, v: Vec) -> Subspace:
        c2, s2, c3, s3 = cos(q[1]), sin(q[1]), cos(q[2]), sin(q[2])
        first = Vec(-(s2 * c3), s2 * s3, c2) * v[1] + Vec(-(c2 * s3), -(c2 * c3), 0.0) * v[2]
        return Subspace((Spatial(first, ZERO), Spatial(Vec(c3, -s3, 0.0) * v[2], ZERO), Spatial.zero()))

    def reactions(self, q: Vec, axis: Vec, pitch: Scalar) -> tuple[Spatial, ...]:
        return SHIFTS

    def random(self, rng: np.random.Generator, size: int) -> Array:
        """The second angle stays away from right angles."""
        return super().random(rng, size) * (1.0, 0.3, 1.0)


class Planar(Joint):
    """q: (x, y, theta), a shift in the plane z = 0 of the joint's frame, then a rotation about z."""

    name = "planar"
    coordinates = (("x", METRE), ("y", METRE), ("theta", RADIAN))

    def exp(self, q: Vec, axis: Vec, pitch: Scalar) -> Pose:
        c, s = cos(q[2]), sin(q[2])
        return Rigid(Mat((c, -s, 0.0), (s, c, 0.0), (0.0, 0.0, 1.0)), Vec(q[0], q[1], 0.0))

    def subspace(self, q: Vec, axis: Vec, pitch: Scalar) -> Subspace:
        c, s = cos(q[2]), sin(q[2])
        return Subspace((Spatial(ZERO, Vec(c, -s, 0.0)), Spatial(ZERO, Vec(s, c, 0.0)), Spatial(Z, ZERO)))

    def subspace_rate(self, q: Vec, v: Vec) -> Subspace:
        c, s = cos(q[2]) * v[2], sin(q[2]) * v[2]
        return Subspace((Spatial(ZERO, Vec(-s, -c, 0.0)), Spatial(ZERO, Vec(c, -s, 0.0)), Spatial.zero()))

    def reactions(self, q: Vec, axis: Vec, pitch: Scalar) -> tuple[Spatial, ...]:
        return tuple(Spatial.unit(k) for k in (0, 1, 5))


# Joints with a quaternion ----------------------------------------------------------------------------------------


class Spherical(Joint):
    """q: a quaternion (w, x, y, z) of any nonzero length; v: the angular velocity in the body's frame."""

    name = "spherical"
    coordinates = (("w", NONE), ("x", NONE), ("y", NONE), ("z", NONE))
    velocities = (("x", RADIAN), ("y", RADIAN), ("z", RADIAN))
    flat = False
    quaternion = slice(0, 4)

    def exp(self, q: Vec, axis: Vec, pitch: Scalar) -> Pose:
        return Rigid(lie.quaternion_to_matrix(q), ZERO)

    def subspace(self, q: Vec, axis: Vec, pitch: Scalar) -> Subspace:
        return Subspace((Spatial(X, ZERO), Spatial(Y, ZERO), Spatial(Z, ZERO)))

    def reactions(self, q: Vec, axis: Vec, pitch: Scalar) -> tuple[Spatial, ...]:
        return SHIFTS

    @property
    def neutral(self) -> tuple[float, ...]:
        return (1.0, 0.0, 0.0, 0.0)

    def rate(self, q: Vec, v: Vec) -> Vec:
        """quat (0, omega) / 2"""
        return lie.quaternion_product(q, Vec(0.0, *(v * 0.5)))

    def rate_dot(self, q: Vec, v: Vec, a: Vec) -> Vec:
        return self.rate(q, a) + self.rate(self.rate(q, v), v)

    def velocity(self, q: Vec, rate: Vec) -> Vec:
        """Twice the vector part of quat^-1 rate."""
        scale = down_scale(q)
        (w, x, y, z), rate = q * scale, rate * scale
        product = lie.quaternion_product(Vec(w, -x, -y, -z), rate) * (2.0 / (w * w + x * x + y * y + z * z))
        return Vec(*product[1:])

    def normalised(self, q: Vec) -> Vec:
        return lie.unit_quaternion(q)

    @property
    def error_velocity(self) -> tuple[int, ...]:
        return (0, 0, 0, 0)

    def retract(self, q: Vec, y: Vec) -> Vec:
        return lie.unit_quaternion(lie.quaternion_product(q, lie.straight_exp_quaternion(y)))

    def carried(self, y: Vec, p: Vec) -> Vec:
        return lie.rotation_of(lie.straight_exp_quaternion(y)).T @ p

    def averaged(self, y: Vec, p: Vec) -> Vec:
        """p - c2 y x p + c3 y x (y x p), c_k of `lie.stumpff`"""
        c2, c3, _, _ = lie.stumpff(dot(y, y))
        turned = cross(y, p)
        return p - turned * c2 + cross(y, turned) * c3

    def integrate(self, q: Array, dv: Array) -> Array:
        return lie.unit_quaternion(lie.quaternion_product(lie.unit_quaternion(q), lie.exp_quaternion(dv)))

    def difference(self, q0: Array, q1: Array) -> Array:
        conjugate = lie.unit_quaternion(q0) * np.array([1, -1, -1, -1], q0.dtype)
        step = lie.quaternion_product(conjugate, lie.unit_quaternion(q1))
        return lie.log_quaternion(lie.unit_quaternion(step))

    def spring(self, q: Vec, rest: Vec, stiffness: Vec) -> tuple[Vec, Vec]:
        """-dexp_e^-T (stiffness e), e the rotation vector from `rest` to q"""
        w, x, y, z = rest
        e, c = lie.straight_log_quaternion(lie.unit_quaternion(lie.quaternion_product(Vec(w, -x, -y, -z), q)))
        pull = Vec.of(k * x for k, x in zip(stiffness, e))
        turned = cross(e, pull)
        return turned * 0.5 - pull - cross(e, turned) * c, stiffness

    def elongation(self, q: Array, rest: Array) -> Array:
        return self.difference(np.broadcast_to(rest, q.shape), q)

    def random(self, rng: np.random.Generator, size: int) -> Array:
        q = rng.normal(size=(size, 4))
        return q / np.linalg.norm(q, axis=-1, keepdims=True)


class Free(Joint):
    """q: position and quaternion (x, y, z, w, qx, qy, qz); v: the body's twist (omega, v), in its frame."""

    name = "free"
    coordinates = (*((x, METRE) for x in "xyz"), *((f"q{x}", NONE) for x in "wxyz"))
    velocities = (*((f"w{x}", RADIAN) for x in "xyz"), *((f"v{x}", METRE) for x in "xyz"))
    flat = False
    quaternion = slice(3, 7)

    def exp(self, q: Vec, axis: Vec, pitch: Scalar) -> Pose:
        return Rigid(lie.quaternion_to_matrix(Vec(*q[3:])), Vec(*q[:3]))

    def subspace(self, q: Vec, axis: Vec, pitch: Scalar) -> Subspace:
        return Subspace(tuple(Spatial.unit(k) for k in range(6)))

    def reactions(self, q: Vec, axis: Vec, pitch: Scalar) -> tuple[Spatial, ...]:
        return ()

    def rotor_bias(self, armature: Vec, x: Vec, y: Vec) -> Vec:
        """The linear momentum p = A y changes direction with the body: w x p, and the moment v x p.

        With equal entries of A for x, y and z, as in MuJoCo, this is a weightless mass that follows the body.
        """
        (w, v), p = Spatial.of(x), Vec.of(a * yk for a, yk in zip(armature[3:], y[3:]))
        return Vec(*cross(v, p), *cross(w, p))

    @property
    def neutral(self) -> tuple[float, ...]:
        return (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)

    def rate(self, q: Vec, v: Vec) -> Vec:
        """dp/dt = R(quat) v, and the rate of the quaternion"""
        turn, (omega, linear) = Vec(*q[3:]), Spatial.of(v)
        return Vec(*(lie.quaternion_to_matrix(turn) @ linear), *SPHERICAL.rate(turn, omega))

    def rate_dot(self, q: Vec, v: Vec, a: Vec) -> Vec:
        turn, (omega, linear), (alpha, bend) = Vec(*q[3:]), Spatial.of(v), Spatial.of(a)
        shift = lie.quaternion_to_matrix(turn) @ (bend + cross(omega, linear))
        return Vec(*shift, *SPHERICAL.rate_dot(turn, omega, alpha))

    def velocity(self, q: Vec, rate: Vec) -> Vec:
        turn = Vec(*q[3:])
        linear = lie.quaternion_to_matrix(turn).T @ Vec(*rate[:3])
        return Vec(*SPHERICAL.velocity(turn, Vec(*rate[3:])), *linear)

    def normalised(self, q: Vec) -> Vec:
        return Vec(*q[:3], *lie.unit_quaternion(Vec(*q[3:])))

    @property
    def error_velocity(self) -> tuple[int, ...]:
        return (3, 4, 5, 0, 0, 0, 0)

    def retract(self, q: Vec, y: Vec) -> Vec:
        turn = Vec(*q[3:])
        shifted = Vec(*q[:3]) + lie.quaternion_to_matrix(turn) @ self._moved(y).p
        return Vec(*shifted, *SPHERICAL.retract(turn, Vec(*y[:3])))

    def carried(self, y: Vec, p: Vec) -> Vec:
        return self._moved(y).Ad_dual(Spatial.of(p)).coordinates

    def averaged(self, y: Vec, p: Vec) -> Vec:
        """The formula for a rotation, in dual numbers w + eps v."""
        w, v = Spatial.of(y)
        moment, force = Spatial.of(p)
        c2, c3, c4, c5 = lie.stumpff(dot(w, w))
        wf, vf, wv = cross(w, force), cross(v, force), dot(w, v)
        d2, d3 = (c4 * 2.0 - c3) * wv, (c5 * 3.0 - c4) * wv  # of c2 and c3: dc_k/dx = (k c_{k+2} - c_{k+1}) / 2
        dual = (cross(w, vf) + cross(v, wf)) * c3 + cross(w, wf) * d3 - vf * c2 - wf * d2
        return Vec(*(SPHERICAL.averaged(w, moment) + dual), *SPHERICAL.averaged(w, force))

    @staticmethod
    def _moved(y: Vec) -> Rigid:
        """exp of the twist (w, v): (exp [w], v + c2 w x v + c3 w x (w x v))"""
        w, v = Spatial.of(y)
        c2, c3, _, _ = lie.stumpff(dot(w, w))
        wv = cross(w, v)
        return Rigid(lie.rotation_of(lie.straight_exp_quaternion(w)), v + wv * c2 + cross(w, wv) * c3)

    def integrate(self, q: Array, dv: Array) -> Array:
        step = lie.exp_se3(dv)
        R = lie.quaternion_to_matrix(q[..., 3:])
        p = q[..., :3] + np.einsum("...ij,...j", R, step[..., :3, 3])
        return np.concatenate([p, SPHERICAL.integrate(q[..., 3:], dv[..., :3])], axis=-1)

    def difference(self, q0: Array, q1: Array) -> Array:
        T0, T1 = (_transform(q) for q in (q0, q1))
        return lie.log_se3(lie.compose(lie.inverse(T0), T1))

    def stepped(self, q: Vec, v: Vec, a: Vec, h: Scalar) -> tuple[Vec, Vec]:
        """The linear velocity turns with the body: R v changes by h R (a + omega x v).

        With v + h a in the body's axes instead, the speed would grow with every rotation.
        """
        turn, (omega, linear), (alpha, bend) = Vec(*q[3:]), Spatial.of(v), Spatial.of(a)
        turned, omega_new = SPHERICAL.stepped(turn, omega, alpha, h)
        moving = lie.quaternion_to_matrix(turn) @ (linear + (bend + cross(omega, linear)) * h)
        after = Vec(*(Vec(*q[:3]) + moving * h), *turned)
        return after, Vec(*omega_new, *(lie.quaternion_to_matrix(turned).T @ moving))

    def spring(self, q: Vec, rest: Vec, stiffness: Vec) -> tuple[Vec, Vec]:
        """As at a ball joint, and springs along the axes of the parent, in the body's axes."""
        R = lie.quaternion_to_matrix(Vec(*q[3:]))
        moment, turning = SPHERICAL.spring(Vec(*q[3:]), Vec(*rest[3:]), Vec(*stiffness[:3]))
        pull = Vec.of(k * (r - x) for k, r, x in zip(stiffness[3:], rest[:3], q[:3]))
        slopes = (dot(Vec.of(x * x for x in column), Vec(*stiffness[3:])) for column in R.T)
        return Vec(*moment, *(R.T @ pull)), Vec(*turning, *slopes)

    def elongation(self, q: Array, rest: Array) -> Array:
        return np.concatenate([SPHERICAL.elongation(q[..., 3:], rest[..., 3:]), q[..., :3] - rest[..., :3]], axis=-1)

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
    Revolute(), Prismatic(), Helical(), Universal(), SPHERICAL, Planar(), Free(), Cylindrical(), Gimbal(),
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
