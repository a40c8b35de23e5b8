"""Poses of frames, and the axes in which a twist is written.

"body"            axes of the frame itself, at its origin: V = (omega, v)
"world"           axes of the base, at the base's origin: Ad_T V
"world-aligned"   axes of the base, at the frame's origin: (R omega, R v)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import kinematics
from torsor.dense import determinant, numbers_like
from torsor.dynamics.calls import call, same_library
from torsor.errors import ArgumentError
from torsor.model.batch import machine_of
from torsor.model.model import Model
from torsor.validate import chosen, shown

Array = NDArray[Any]
REFERENCES = ("body", "world", "world-aligned")


@same_library
def frame_poses(model: Model, q: ArrayLike, frames: str | int | Sequence[str | int | None] | None = None) -> Array:
    """Compute the poses of frames in the base's frame.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    frames : str, int or sequence of these, optional
        One body, joint or frame by name (a body also by number; None in a list is the base), or several. Default: every
        name in `model.frames`, in that order.

    Returns
    -------
    poses : (..., 4, 4) or (..., k, 4, 4) ndarray
        Rotation and position (in m).

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> print(ts.frame_poses(arm, [0.0, 0.0], "tip")[:3, 3])
    [ 0.  0. -2.]
    """
    machine = machine_of(model)
    poses = call(kinematics.body_poses, model, q)
    if isinstance(frames, str | int | np.integer):
        return _placed(machine, poses, frames)
    if frames is None:
        frames = tuple(machine.frames)
    if not isinstance(frames, Sequence):
        raise ArgumentError(f"frames must be a name, or a list of names, not {shown(frames)}")
    placed = [_placed(machine, poses, name) for name in frames]
    return np.stack(placed, axis=-3) if placed else np.empty((*poses.shape[:-3], 0, 4, 4), poses.dtype)


def _placed(model: Model, poses: Array, name: str | int | None) -> Array:
    body, R, p = model.frame(name)
    T = np.eye(4, dtype=poses.dtype)
    T[:3, :3], T[:3, 3] = R, p
    if body < 0:
        return np.broadcast_to(T, (*poses.shape[:-3], 4, 4)).copy()
    return poses[..., body, :, :] @ T


def checked_poses(model: Model, Q: ArrayLike) -> Array:
    """Q as an array of one pose per body (n, 4, 4)."""
    Q = numbers_like(Q)
    if Q.shape != (model.n, 4, 4):
        raise ArgumentError(f"Q has shape {Q.shape}; {model!r} needs one pose per body, ({model.n}, 4, 4)")
    finite: Array = np.abs(Q) < np.inf
    R = np.where(finite, Q, 0.0)[:, :3, :3]
    wrong = (np.abs(R @ R.swapaxes(1, 2) - np.eye(3)).max(axis=(1, 2)) > 1e-9) | (determinant(R) < 0)
    wrong |= (~finite).any(axis=(1, 2)) | (Q[:, 3] != (0, 0, 0, 1)).any(axis=1)
    if wrong.any():
        body = model.names[int(np.flatnonzero(wrong)[0])]
        raise ArgumentError(f"Q of body {body!r} is not a pose: [[R, p], [0, 1]] with R a rotation")
    return Q


@same_library
def referred(model: Model, q: ArrayLike, frame: int | str, reference: str, J: Array) -> Array:
    """A Jacobian in the axes given by `reference`."""
    if chosen("reference", reference, REFERENCES) == "body":
        return J
    return _turned(frame_poses(model, q, frame), reference, J)


@same_library
def referred_rate(model: Model, v: ArrayLike, J: Array, rate: Array, where: tuple[ArrayLike, int | str, str]) -> Array:
    """The derivative of such a Jacobian: d/dt (Ad_T J) = Ad_T (dJ/dt + ad_V J); world-aligned, with only the spin of V.

    where    q, frame and reference
    """
    q, frame, reference = where
    if chosen("reference", reference, REFERENCES) == "body":
        return rate
    V = np.einsum("...ij,...j->...i", J, np.asarray(v))
    spin, linear = J[..., :3, :], J[..., 3:, :]
    moved = [_cross(V[..., :3], spin), _cross(V[..., :3], linear)]
    if reference == "world":
        moved[1] = moved[1] + _cross(V[..., 3:], spin)
    return _turned(frame_poses(model, q, frame), reference, rate + np.concatenate(moved, axis=-2))


def _turned(T: Array, reference: str, J: Array) -> Array:
    R, p = T[..., :3, :3], T[..., :3, 3]
    spin, linear = R @ J[..., :3, :], R @ J[..., 3:, :]
    if reference == "world":
        linear = linear + _cross(p, spin)
    return np.concatenate([spin, linear], axis=-2)


def _cross(a: Array, columns: Array) -> Array:
    """a x each column of (..., 3, k)."""
    return np.cross(a[..., None, :], columns.swapaxes(-1, -2)).swapaxes(-1, -2)
