"""Floating chains of rigid bodies: H by Lie derivatives on SE(3) (Lee, Wang & Chirikjian 2007, section 3.6).

The coordinates of joint k are functions of the poses of bodies k - 1 and k.  Their Lie derivatives are

    d q_k / d xi_k = R_k,      d q_k / d xi_{k-1} = -R_k X_k,      X_k = Ad of f_{k-1,k}^-1,

where R_k is the inverse of the body Jacobian of the coordinates; Eq. 22 is the same in frames at the mass centres.
Everything is in link coordinates, so no number grows along the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import log1p
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.backends.pointwise import compile_pointwise
from torsor.dense import numbers_like
from torsor.dynamics.fixman import parameters
from torsor.dynamics.fixman.solve import Relaxed
from torsor.errors import ArgumentError
from torsor.linalg import Mat, Vec
from torsor.model.joints import JOINTS, Joint
from torsor.model.links import Link
from torsor.model.model import Model
from torsor.model.regular import check_regular, inverse_inertia, require_no_armature
from torsor.spatial import Inertia, Rigid

Array = NDArray[Any]
Partition = str | Sequence[str | Sequence[str]]


def relax(model: Model, q: ArrayLike) -> Relaxed:
    """A serial chain of any joints at q (..., nq) with released joints: six coordinates per link, soft ones first."""
    chain = _chain(model)
    q = np.asarray(q, dtype=np.float64)
    if q.ndim == 0 or q.shape[-1] != model.nq:
        raise ArgumentError(f"q has shape {q.shape}; {model!r} needs (..., {model.nq})")
    C = np.empty((*q.shape[:-1], model.n, 2, 6, 6))
    for group in chain.groups:
        C[..., group.bodies, :, :, :] = group.derivatives(q[..., group.columns], *group.constants)
    own, parents = C[..., 0, :, :], C[..., 1, :, :]
    log_det_H = np.broadcast_to(chain.log_det_K, q.shape[:-1])
    if len(chain.locking):
        log_det_H = log_det_H + 2 * np.linalg.slogdet(own[..., chain.locking, :, :])[1].sum(axis=-1)
    before = np.zeros_like(own)
    before[..., 1:, :, :] = own[..., :-1, :, :]
    H = _blocks()(own, parents, before, chain.K, chain.K_parent)
    return Relaxed(H, chain.soft, log_det_H)


def relax_dh(x: ArrayLike, soft: Partition, *, mass: ArrayLike, com: ArrayLike, inertia: ArrayLike,
             kind: str | Sequence[str] | Array = "auto", names: Sequence[str] = ()) -> Relaxed:  # fmt: skip
    """A chain given by DH coordinates x (..., n, 6) (see `parameters`) at any values, any of them soft.

    soft      "beta", or for each joint a name or several: ["beta", ("gamma", "c"), (), ...]
    mass, com, inertia   of each link, in its DH frame; the inertia about the mass centre
    kind      "A", "B" or "C", one for all joints or one per joint; "auto" is C, which is regular if (a, alpha) are
              zero. `parameters.from_transforms` finds kinds and coordinates that are regular for any poses.
    """
    x = numbers_like(x)
    n = x.shape[-2]
    mass, com = np.broadcast_to(mass, (n,)), np.broadcast_to(com, (n, 3))
    inertia = np.broadcast_to(inertia, (n, 3, 3))
    check_regular(names or [f"link{k + 1}" for k in range(n)], mass, inertia)
    kinds = np.broadcast_to("C" if isinstance(kind, str) and kind == "auto" else np.asarray(kind), (n,))
    T, J = parameters.transforms_and_jacobians(kinds, x)
    C = parameters.coordinate_derivatives(kinds, T, J)[::-1]  # by body k, by body k - 1
    K = np.broadcast_to(inverse_inertia(mass, com, inertia), J.shape)
    return Relaxed.of(C, K, parameters.partition(soft, n))


class _Group(NamedTuple):
    """The links of one joint type: their indices, their columns in q, their constants and their code."""

    bodies: Array
    columns: Array
    constants: tuple[Array, ...]
    derivatives: Any


class _Chain(NamedTuple):
    groups: tuple[_Group, ...]
    soft: Array
    K: Array
    K_parent: Array
    log_det_K: float  # the constant part of log det H; `locking` joints add a part that depends on q
    locking: Array


@lru_cache(maxsize=16)
def _chain(model: Model) -> _Chain:
    """The part that does not depend on q, in the model's frames rotated so that every axis is z.

    The compiler's short frames may be far from their bodies, where J^-1 would lose digits.
    """
    if not model.is_chain:
        raise ArgumentError(f"{model!r} branches; mass_solve(..., method='fixman') takes any tree")
    require_no_armature(model, "relax, which lets every body float on its own,")
    check_regular(model.names, model.mass, model.inertia)
    A = _axes_on_z(model.axis)
    before = np.concatenate([np.eye(3)[None], A[:-1]]).swapaxes(1, 2)
    R, p = before @ model.R @ A, np.einsum("nij,nj->ni", before, model.p)
    back = A.swapaxes(1, 2)
    K = inverse_inertia(model.mass, np.einsum("nij,nj->ni", back, model.com), back @ model.inertia @ A)
    groups = []
    for code in np.unique(model.joint).tolist():
        bodies = np.flatnonzero(model.joint == code)
        columns = model.q_start[bodies, None] + np.arange(JOINTS[code].nq)
        constants = (R[bodies], p[bodies], model.pitch[bodies])
        groups.append(_Group(bodies, columns, constants, _derivatives(code)))
    soft = np.arange(6) < np.diff(model.v_start)[:, None]
    parents = np.concatenate([np.zeros((1, 6, 6)), K[:-1]])
    locking = np.flatnonzero([bool(JOINTS[code].locking) for code in model.joint])
    volumes = [_log_volume(JOINTS[code], pitch) for code, pitch in zip(model.joint.tolist(), model.pitch.tolist())]
    return _Chain(tuple(groups), soft, K, parents, float(np.linalg.slogdet(K)[1].sum() - sum(volumes)), locking)


def _log_volume(joint: Joint, pitch: float) -> float:
    """log det (S^T S), if it does not depend on q."""
    return 0.0 if joint.locking or not pitch else log1p(pitch * pitch)


def _axes_on_z(z: Array) -> Array:
    """Rotations (n, 3, 3) whose third column is the unit vector z."""
    sign = np.where(z[:, 2] >= 0, 1.0, -1.0)
    k = -sign / (sign + z[:, 2])
    x = np.stack([1 + k * z[:, 0] ** 2, k * z[:, 0] * z[:, 1], -sign * z[:, 0]], axis=-1)
    return np.stack([x, np.cross(z, x), z], axis=-1)


@lru_cache(maxsize=16)
def _derivatives(code: int) -> Any:
    """A gufunc with links as lanes: (d q_k / d xi_k, d q_k / d xi_{k-1}) of joints of one type, (2, 6, 6)."""
    joint = JOINTS[code]

    def derivatives(q, R, p, pitch):
        link = Link(joint, Rigid(Mat.of(R), Vec.of(p)), Vec.unit(2), pitch, Inertia.zero())
        f, S = link.pose(Vec.of(q)), link.S(Vec.of(q))
        rows = (*S.dual().columns, *link.reactions(Vec.of(q)))
        own = [row.coordinates for row in rows]
        parents = [(-f.Ad_inv_dual(row)).coordinates for row in rows]  # a row times Ad_{f^-1}
        return [own, parents]

    return compile_pointwise(derivatives, {"q": (joint.nq,), "R": (3, 3), "p": (3,), "pitch": ()})


@lru_cache(maxsize=1)
def _blocks() -> Any:
    """A gufunc with links as lanes: H_{k,k} and H_{k,k-1}, (2, 6, 6)."""

    def blocks(own, parents, before, K, K_parent):
        own, parents, before = Mat.of(own), Mat.of(parents), Mat.of(before)
        OK, PK = own @ Mat.of(K), parents @ Mat.of(K_parent)
        A, B = OK @ own.T, PK @ parents.T
        return [Mat.symmetric(lambda i, j: A[i][j] + B[i][j], 6), PK @ before.T]

    return compile_pointwise(blocks, dict.fromkeys(("own", "parents", "before", "K", "K_parent"), (6, 6)))
