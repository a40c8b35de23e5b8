"""`Link`: the constants of one body for algorithms, as scalars of any type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from torsor.linalg import Mat, Scalar, Vec, is_literal
from torsor.model.joints import JOINTS, Joint
from torsor.spatial import Inertia, Pose, Product, Rigid, Spatial, Subspace

if TYPE_CHECKING:
    from torsor.model.model import Model


@dataclass(frozen=True)
class Link:
    """A body and the joint to its parent: f = M exp(q), inertia about the frame's origin.

    The armature is the inertia of the joint's rotors, one per freedom, which adds to the diagonal of M.
    """

    joint: Joint
    M: Pose
    axis: Vec
    pitch: Scalar
    inertia: Inertia
    armature: Vec = field(default=Vec(), kw_only=True)  # empty: zeros

    def __post_init__(self) -> None:
        if not self.armature:
            object.__setattr__(self, "armature", Vec.zero(self.joint.nv))

    def rotors(self, here: Any) -> Vec:
        """The inertias that add to the joint's pivot: its armature and the input `added_inertia`."""
        return self.armature if here.added_inertia is None else self.armature + here.added_inertia

    def with_rotors(self, x: Vec, v: Vec | None) -> Vec:
        """x + armature v: a torque plus that of the rotors (v: acceleration), or a momentum (v: velocity)."""
        if v is None:
            return x
        return Vec.of(xk if is_literal(rotor, 0.0) else xk + rotor * vk for xk, rotor, vk in zip(x, self.armature, v))

    @property
    def turns_rotors(self) -> bool:
        return not all(is_literal(rotor, 0.0) for rotor in self.armature)

    def rotor_bias(self, x: Vec, y: Vec) -> Vec:
        """B(x, y): B(v, v) is the part of the rotors' torque that depends on the velocity."""
        return self.joint.rotor_bias(self.armature, x, y)

    def torque_of(self, F: Spatial, S: Subspace, here: Any) -> Vec:
        """S^T F + armature qdd + B(v, v): the torque that moves the rotors of the joint and transmits F."""
        tau = self.with_rotors(S.T(F), here.qdd)
        return tau + self.rotor_bias(here.v, here.v) if self.turns_rotors and here.v is not None else tau

    def left_over(self, tau: Vec, here: Any) -> Vec:
        """tau - B(v, v): the part of a torque that accelerates the rotors and is transmitted by the joint."""
        return tau - self.rotor_bias(here.v, here.v) if self.turns_rotors else tau

    def exp(self, q: Vec) -> Pose:
        return self.joint.exp(q, self.axis, self.pitch)

    def pose(self, q: Vec) -> Product:
        """f_{parent, body} = M exp(q)."""
        return Product((self.M, self.exp(q)))

    def S(self, q: Vec) -> Subspace:
        return self.joint.subspace(q, self.axis, self.pitch)

    def S_rate(self, q: Vec, v: Vec) -> Subspace:
        return self.joint.subspace_rate(q, v)

    def reactions(self, q: Vec) -> tuple[Spatial, ...]:
        """R: the 6 - nv directions that the joint constrains."""
        return self.joint.reactions(q, self.axis, self.pitch)

    def from_body(self, F: Spatial) -> Spatial:
        """Transform a wrench from the model's body frame to the frame of this link."""
        return F

    def body_frame(self) -> Rigid:
        """The model's body frame relative to the frame of this link."""
        return Rigid(Mat.identity(), Vec.zero())

    def body_pose(self, f: Rigid) -> Rigid:
        """The pose of the model's body frame, given the pose of this link's frame."""
        return f

    def body_twist(self, V: Spatial) -> Spatial:
        """Transform a twist from the frame of this link to the model's body frame."""
        return V

    def placed(self, here: Any) -> tuple[Product, Subspace]:
        """(f, S) at `here`: kept there by an earlier pass, or computed."""
        if here.E is None:
            return Product((self.M, self.exp(here.q))), self.S(here.q)
        return Product((self.M, here.E)), here.S

    @cached_property
    def mass(self) -> Scalar:
        return self.inertia.M[0][0]

    @cached_property
    def first_moment(self) -> Vec:
        H = self.inertia.H
        return Vec(H[2][1], H[0][2], H[1][0])

    @cached_property
    def second_moment(self) -> Mat:
        """The integral of r r^T dm = (tr J / 2) 1 - J."""
        J = self.inertia.J
        half_trace = (J[0][0] + J[1][1] + J[2][2]) * 0.5
        return Mat.symmetric(lambda i, j: half_trace - J[i][i] if i == j else -J[i][j])


def rigid_inertia(m: Scalar, c: Vec, I: Mat) -> Inertia:
    """The inertia about the frame's origin, from mass, centre of mass and inertia about that centre."""
    h = c * m
    square = sum(ci * hi for ci, hi in zip(c, h))
    J = Mat.symmetric(lambda i, j: I[i][j] - c[i] * h[j] + (square if i == j else 0.0))
    return Inertia.rigid(m, h, J)


def links(model: Model, number: Callable[[float], Scalar] = float) -> list[Link]:
    """The links of a model in its own frames, with its numbers converted by `number` (float, mpf, ...)."""

    def vector(xs: list[float]) -> Vec:
        return Vec.of(map(number, xs))

    def matrix(rows: list[list[float]]) -> Mat:
        return Mat.of(map(vector, rows))

    columns = zip(
        model.joint.tolist(), model.R.tolist(), model.p.tolist(), model.axis.tolist(), model.pitch.tolist(),
        model.mass.tolist(), model.com.tolist(), model.inertia.tolist(),
        np.split(model.armature, model.v_start[1:-1]),
    )  # fmt: skip
    return [
        Link(
            joint=JOINTS[code],
            M=Rigid(matrix(R), vector(p)),
            axis=vector(axis),
            pitch=number(pitch),
            inertia=rigid_inertia(number(m), vector(c), matrix(I)),
            armature=Vec.of(number(a) if a else 0.0 for a in armature.tolist()),
        )
        for code, R, p, axis, pitch, m, c, I, armature in columns
    ]
