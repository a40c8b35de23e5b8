"""Change of link frames (Ploen & Park 1999, section II.C, Eqs 15-17 and 34).

Another choice of frames is one pose Q_i per body, which transforms old coordinates to new ones.  Then

    A_i = Ad_{Q_i} S_i     D_i = Ad*_{Q_i^-1} J_i Ad_{Q_i^-1}     f_{i-1,i} = Q_{i-1} M_i Q_i^-1 exp(A_i q_i)

and every algorithm keeps its form: the results of `reframed_links` are ordinary links.  A set of frames is an array
of poses (n, 4, 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import lie, reference
from torsor.compiler.frames import reframe
from torsor.dense import number_of
from torsor.dynamics.frames import checked_poses
from torsor.dynamics.functions import body_poses
from torsor.linalg import Mat, Scalar, Vec
from torsor.model.joints import Joint
from torsor.model.links import Link, links
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.outputs import plain
from torsor.spatial import Pose, Product, Rigid, Spatial, Subspace
from torsor.sweeps import Algorithm, run

Array = NDArray[Any]


# Choices of frames ---------------------------------------------------------------------------------------


def joint_frames(model: Model) -> Array:
    """Q_i = 1: the model's own frames, at the joints."""
    return np.tile(np.eye(4), (model.n, 1, 1))


def com_frames(model: Model) -> Array:
    """Q_i = (1, -r_i): parallel to the model's frames, at the mass centres, where D_i = diag(I_i, m_i 1)."""
    Q = joint_frames(model)
    Q[:, :3, 3] = -model.com
    return Q


def dh_frames(model: Model) -> Array:
    """Frames after Denavit & Hartenberg: each axis on z, x along the common normal to a next axis.

    The compiler works in these frames; a body whose joint has no axis keeps its own frame.
    """
    x = reframe(model).numbers
    T = joint_frames(model)
    T[:, :3, :3] = np.stack([np.stack([x[f"Q{i}{j}"] for j in range(3)], axis=-1) for i in range(3)], axis=-2)
    T[:, :3, 3] = np.stack([x[f"Q{i}"] for i in range(3)], axis=-1)
    return lie.inverse(T)


def inertial_com_frames(model: Model, q: ArrayLike) -> Array:
    """At the mass centres and parallel to the base: the frames of the DeNOC matrices (Saha 2001)."""
    Q = com_frames(model)
    R = body_poses(model, q)[:, :3, :3]
    Q = Q.astype(R.dtype)
    Q[:, :3, :3] = R
    Q[:, :3, 3] = -np.einsum("nij,nj->ni", R, model.com)
    return Q


def checked_frames(model: Model, Q: ArrayLike | None) -> Array:
    """Q as an array of n poses; None: the model's own frames."""
    return joint_frames(model) if Q is None else checked_poses(model, Q)


# The model in other frames ---------------------------------------------------------------------------------


class _Anywhere(Subspace):
    """A subspace whose axes are not known to be unit vectors."""

    @property
    def axes(self) -> tuple[int | None, ...]:
        return (None,) * len(self.columns)


@dataclass(frozen=True)
class ReframedLink(Link):
    """A link described in another frame: Q transforms the model's coordinates of the body to the new ones."""

    Q: Rigid

    def exp(self, q: Vec) -> Pose:
        """exp(A q) = Q exp(S q) Q^-1"""
        return Product((self.Q, super().exp(q), self.Q.inverse()))

    def S(self, q: Vec) -> Subspace:
        return self._moved(super().S(q))

    def S_rate(self, q: Vec, v: Vec) -> Subspace:
        return self._moved(super().S_rate(q, v))

    def _moved(self, S: Subspace) -> Subspace:
        return _Anywhere(tuple(self.Q.Ad(column) for column in S.columns))

    def from_body(self, F: Spatial) -> Spatial:
        return self.Q.Ad_inv_dual(F)

    def body_frame(self) -> Rigid:
        return self.Q

    def body_pose(self, f: Rigid) -> Rigid:
        return self.Q.after(f)

    def body_twist(self, V: Spatial) -> Spatial:
        return self.Q.Ad_inv(V)


def reframed_links(model: Model, Q: ArrayLike | None = None,
                   number: Callable[[float], Scalar] = float) -> list[ReframedLink]:  # fmt: skip
    """The links of a model in the frames Q: Q_{i-1} M_i Q_i^-1, A_i and D_i."""
    poses = [Rigid(Mat.of(T[:3, :3].tolist()), Vec.of(T[:3, 3].tolist())) for T in checked_frames(model, Q)]
    base = Rigid(Mat.identity(), Vec.zero())
    result = []
    for link, parent, new in zip(links(model, number), model.parent.tolist(), poses):
        old = poses[parent] if parent >= 0 else base
        M = Product((old, link.M, new.inverse())).as_rigid()
        D = new.carry(link.inertia)
        result.append(ReframedLink(_anywhere(link.joint), M, link.axis, link.pitch, D, new,
                                   armature=link.armature))  # fmt: skip
    return result


def _anywhere(joint: Joint) -> Joint:
    """The joint, but without the assumption that its axis goes through the origin of the body's frame."""
    joint = copy(joint)
    joint.axial = False  # type: ignore[misc]
    return joint


def evaluate(algorithm: Algorithm, model: Model, Q: ArrayLike | None, inputs: dict[str, Sequence[Scalar]], *,
             frame: Frame | None = None) -> Any:  # fmt: skip
    """An algorithm's output at one state, computed in the frames Q; it does not depend on Q."""
    parent = model.parent.tolist()
    base = reference.base_of(model.gravity.tolist(), inputs)
    here = reference.scatter(model, inputs)
    number = number_of(*inputs.values())
    return plain(run(algorithm, reframed_links(model, Q, number), parent, base, here, frame))
