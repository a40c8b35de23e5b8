"""States of the same robot in the coordinates of Pinocchio and MuJoCo; joints are matched by name.

                    torsor                            Pinocchio                        MuJoCo
    order           of the file                       depth first, sorted by name      of the file, depth first
    continuous      one angle                         (cos, sin)                       one angle
    quaternion      (w, x, y, z)                      (x, y, z, w)                     (w, x, y, z)
    free: q         position, quaternion              position, quaternion             position, quaternion
    free: v         (omega, v), in the body           (v, omega), in the body          v in the world, omega in the body
    planar: q, v    (x, y, theta), their rates        (x, y, cos, sin), in the body    -

The engines' models give the indices of their numbers; neither package is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.errors import ArgumentError
from torsor.lie import quaternion_to_matrix
from torsor.model.joints import JOINTS
from torsor.model.model import Model, require_model
from torsor.validate import batch_of, real_array, shown

Array = NDArray[Any]


class JointPlace(NamedTuple):
    """A joint in both models: its type here, and the indices of its coordinates and velocities."""

    kind: str
    ours: tuple[slice, slice]
    theirs: tuple[slice, slice]


def from_pinocchio(model: Model, theirs: Any, q: ArrayLike, v: ArrayLike | None = None) -> Any:
    """Convert a state of Pinocchio to torsor's coordinates; leading batch axes are allowed.

    Joints are found by name. Quaternions are reordered, and velocities of free joints are turned into the other axes.

    Parameters
    ----------
    model : Model
        torsor's model of the robot.
    theirs : pinocchio.Model
        Pinocchio's model of the same robot.
    q : (..., their nq) array_like
        Configuration in Pinocchio's coordinates.
    v : (..., their nv) array_like, optional
        Velocities.

    Returns
    -------
    q : (..., nq) ndarray, or (q, v)
        The state; a pair if velocities were given.

    Raises
    ------
    ArgumentError
        Pinocchio's model lacks a joint, or a shape does not fit.

    Examples
    --------
    >>> import pinocchio, torsor as ts
    >>> ts.save(ts.zoo.double_pendulum(), "arm.urdf")
    >>> model, theirs = ts.load("arm.urdf"), pinocchio.buildModelFromUrdf("arm.urdf")
    >>> ts.formats.from_pinocchio(model, theirs, pinocchio.neutral(theirs))
    array([0., 0.])
    """
    return _converted(model, _pinocchio_places(model, theirs), _sizes("Pinocchio", theirs), FROM_PINOCCHIO, q, v)


def to_pinocchio(model: Model, theirs: Any, q: ArrayLike, v: ArrayLike | None = None) -> Any:
    """Convert a state of torsor to Pinocchio's coordinates; leading batch axes are allowed.

    Joints are found by name. Quaternions are reordered, and velocities of free joints are turned into the other axes.

    Parameters
    ----------
    model : Model
        torsor's model of the robot.
    theirs : pinocchio.Model
        Pinocchio's model of the same robot.
    q : (..., nq) array_like
        Configuration in torsor's coordinates.
    v : (..., nv) array_like, optional
        Velocities.

    Returns
    -------
    q : (..., their nq) ndarray, or (q, v)
        The state; a pair if velocities were given.

    Raises
    ------
    ArgumentError
        Pinocchio's model lacks a joint, or a shape does not fit.

    Examples
    --------
    >>> import pinocchio, torsor as ts
    >>> ts.save(ts.zoo.double_pendulum(), "arm.urdf")
    >>> model, theirs = ts.load("arm.urdf"), pinocchio.buildModelFromUrdf("arm.urdf")
    >>> ts.formats.to_pinocchio(model, theirs, [0.0, 0.0])  # (cos, sin) of every joint without limits
    array([1., 0., 1., 0.])
    """
    return _converted(model, _pinocchio_places(model, theirs), _sizes("Pinocchio", theirs), TO_PINOCCHIO, q, v)


def from_mujoco(model: Model, theirs: Any, qpos: ArrayLike, qvel: ArrayLike | None = None) -> Any:
    """Convert a state of MuJoCo to torsor's coordinates; leading batch axes are allowed.

    Joints are found by name. Quaternions are reordered, and velocities of free joints are turned into the other axes.

    Parameters
    ----------
    model : Model
        torsor's model of the robot.
    theirs : mujoco.MjModel
        MuJoCo's model of the same robot.
    qpos : (..., their nq) array_like
        Configuration in MuJoCo's coordinates.
    qvel : (..., their nv) array_like, optional
        Velocities.

    Returns
    -------
    q : (..., nq) ndarray, or (q, v)
        The state; a pair if velocities were given.

    Raises
    ------
    ArgumentError
        MuJoCo's model lacks a joint, or a shape does not fit.

    Examples
    --------
    >>> import mujoco, torsor as ts
    >>> ts.save(ts.zoo.puma_saha(), "arm.xml")
    >>> model, theirs = ts.load("arm.xml"), mujoco.MjModel.from_xml_path("arm.xml")
    >>> ts.formats.from_mujoco(model, theirs, theirs.qpos0)
    array([0., 0., 0., 0., 0., 0.])
    """
    return _converted(model, _mujoco_places(model, theirs), _sizes("MuJoCo", theirs), FROM_MUJOCO, qpos, qvel)


def to_mujoco(model: Model, theirs: Any, q: ArrayLike, v: ArrayLike | None = None) -> Any:
    """Convert a state of torsor to MuJoCo's coordinates; leading batch axes are allowed.

    Joints are found by name. Quaternions are reordered, and velocities of free joints are turned into the other axes.

    Parameters
    ----------
    model : Model
        torsor's model of the robot.
    theirs : mujoco.MjModel
        MuJoCo's model of the same robot.
    q : (..., nq) array_like
        Configuration in torsor's coordinates.
    v : (..., nv) array_like, optional
        Velocities.

    Returns
    -------
    qpos : (..., their nq) ndarray, or (qpos, qvel)
        The state; a pair if velocities were given.

    Raises
    ------
    ArgumentError
        MuJoCo's model lacks a joint, or a shape does not fit.

    Examples
    --------
    >>> import mujoco, torsor as ts
    >>> ts.save(ts.zoo.puma_saha(), "arm.xml")
    >>> model, theirs = ts.load("arm.xml"), mujoco.MjModel.from_xml_path("arm.xml")
    >>> ts.formats.to_mujoco(model, theirs, [0.1, 0.2, 0.3, 0.0, 0.0, 0.0])
    array([0.1, 0.2, 0.3, 0. , 0. , 0. ])
    """
    return _converted(model, _mujoco_places(model, theirs), _sizes("MuJoCo", theirs), TO_MUJOCO, q, v)


# ---- indices of the numbers ----


def _sizes(engine: str, theirs: Any) -> tuple[int, int]:
    """nq and nv of an engine's model."""
    try:
        return theirs.nq, theirs.nv
    except AttributeError:
        raise ArgumentError(f"theirs must be a model of {engine}, not {shown(theirs)}") from None


def _pinocchio_places(model: Model, theirs: Any) -> Iterator[JointPlace]:
    joints = {theirs.names[i]: theirs.joints[i] for i in range(1, theirs.njoints)}
    for i, name in enumerate(model.joint_names):
        if name not in joints:
            raise ArgumentError(f"Pinocchio's model has no joint {name!r}; it has {', '.join(list(joints)[:8])} ...")
        joint = joints[name]
        at = slice(joint.idx_q, joint.idx_q + joint.nq), slice(joint.idx_v, joint.idx_v + joint.nv)
        kind = JOINTS[model.joint[i]].name
        yield JointPlace("unbounded" if (joint.nq, joint.nv) == (2, 1) else kind, _own(model, i), at)


def _mujoco_places(model: Model, theirs: Any) -> Iterator[JointPlace]:
    widths = {0: (7, 6), 1: (4, 3), 2: (1, 1), 3: (1, 1)}
    joints = {}
    for j in range(theirs.njnt):
        body = int(theirs.jnt_bodyid[j])
        host = theirs.body(body).name or f"body{body}"
        joints[theirs.joint(j).name or f"{host}/{j - int(theirs.body_jntadr[body])}"] = j
    for i, name in enumerate(model.joint_names):
        if name not in joints:
            raise ArgumentError(f"MuJoCo's model has no joint {name!r}; it has {', '.join(list(joints)[:8])} ...")
        j = joints[name]
        nq, nv = widths[int(theirs.jnt_type[j])]
        q, v = int(theirs.jnt_qposadr[j]), int(theirs.jnt_dofadr[j])
        yield JointPlace(JOINTS[model.joint[i]].name, _own(model, i), (slice(q, q + nq), slice(v, v + nv)))


def _own(model: Model, i: int) -> tuple[slice, slice]:
    return slice(*model.q_start[i : i + 2].tolist()), slice(*model.v_start[i : i + 2].tolist())


# ---- conversions: (q, v) of one joint to (q, v) ----

Conversion = Callable[[Array, Array], tuple[Array, Array]]


def _turn_by(angle: Array, v: Array) -> Array:
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([c * v[..., 0] - s * v[..., 1], s * v[..., 0] + c * v[..., 1], v[..., 2]], axis=-1)


def _angle(q: Array) -> Array:
    return np.arctan2(q[..., -1], q[..., -2])


def _rotated(q: Array, v: Array, transposed: bool) -> Array:
    """v rotated by the quaternion of q = (position, quaternion)."""
    R = quaternion_to_matrix(q[..., 3:])
    return np.einsum("...ji,...j->...i" if transposed else "...ij,...j->...i", R, v)


FROM_PINOCCHIO: dict[str, Conversion] = {
    "unbounded": lambda q, v: (_angle(q)[..., None], v),
    "spherical": lambda q, v: (np.roll(q, 1, axis=-1), v),
    "free": lambda q, v: (np.concatenate([q[..., :3], np.roll(q[..., 3:], 1, axis=-1)], -1), np.roll(v, 3, axis=-1)),
    "planar": lambda q, v: (np.concatenate([q[..., :2], _angle(q)[..., None]], -1), _turn_by(_angle(q), v)),
}
TO_PINOCCHIO: dict[str, Conversion] = {
    "unbounded": lambda q, v: (np.concatenate([np.cos(q), np.sin(q)], -1), v),
    "spherical": lambda q, v: (np.roll(q, -1, axis=-1), v),
    "free": lambda q, v: (np.concatenate([q[..., :3], np.roll(q[..., 3:], -1, axis=-1)], -1), np.roll(v, 3, axis=-1)),
    "planar": lambda q, v: (
        np.concatenate([q[..., :2], np.cos(q[..., 2:]), np.sin(q[..., 2:])], -1), _turn_by(-q[..., 2], v)
    ),
}  # fmt: skip
FROM_MUJOCO: dict[str, Conversion] = {
    "free": lambda q, v: (q, np.concatenate([v[..., 3:], _rotated(q, v[..., :3], True)], -1)),
}
TO_MUJOCO: dict[str, Conversion] = {
    "free": lambda q, v: (q, np.concatenate([_rotated(q, v[..., 3:], False), v[..., :3]], -1)),
}


def _converted(model: Model, places: Iterator[JointPlace], sizes: tuple[int, int], conversions: dict[str, Conversion],
               q: ArrayLike, v: ArrayLike | None) -> Any:  # fmt: skip
    """Convert every joint; `sizes` are those of the engine."""
    require_model(model)
    inward = conversions in (FROM_PINOCCHIO, FROM_MUJOCO)
    own = model.nq, model.nv
    given, made = (sizes, own) if inward else (own, sizes)
    x = _rows("q", q, given[0])
    y = np.zeros((*x.shape[:-1], given[1])) if v is None else _rows("v", v, given[1])
    batch = batch_of({"q": (x.shape, 1), "v": (y.shape, 1)})
    x, y = np.broadcast_to(x, (*batch, given[0])), np.broadcast_to(y, (*batch, given[1]))
    q_out, v_out = np.zeros((*batch, made[0])), np.zeros((*batch, made[1]))
    for kind, ours, theirs in places:
        source, target = (theirs, ours) if inward else (ours, theirs)
        part = x[..., source[0]], y[..., source[1]]
        converted = conversions[kind](*part) if kind in conversions else part
        q_out[..., target[0]], v_out[..., target[1]] = converted
    return q_out if v is None else (q_out, v_out)


def _rows(name: str, x: ArrayLike, width: int) -> Array:
    rows = real_array(name, x)
    if rows.ndim == 0 or rows.shape[-1] != width:
        raise ArgumentError(f"{name} must have shape (..., {width}), not {rows.shape}")
    return rows
