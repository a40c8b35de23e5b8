"""The measure of stiff springs, sqrt(det G), and the force that gives rigid joints the statistics of stiff springs.

Rigid joints visit q with the weight sqrt(det M). Replace the constraints of the joints by springs, and let the
stiffness grow: then q is visited with the weight sqrt(det G), which does not depend on masses (Fixman 1974). It
measures the placement of bodies:

    a body with extent       its pose                             6 numbers
    a rod                    its centre and its direction         5
    a point                  its position                         3
    a massless body          nothing: it only places the bodies that it carries

Bodies are placed one after the other from the base, each relative to the previous one. So det G is a product. The
factor of a body is det (L^T L), where L is the derivative of its placement with respect to the coordinates of the
joints that lead to it: its own joint, and those of massless bodies before it. The springs of a joint resist all
forbidden motions equally.

That product is the determinant of a mass matrix: of the same machine, cut after every body with mass, with each piece
on its own base, and with unit masses and moments. So the functions of M also apply to G, with its gradient in O(n).

Coordinates that do not move the body itself move the next one. A diatomic root on a `free` joint rotates about its own
axis only together with the third atom: a joint about that axis is then inserted before the third atom's own.

Most factors are constant. The others belong to gimbals (cos^2 of the second angle), to points and rods on
universal joints, and to consecutive joints without mass between them.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import lie, validate
from torsor.compiler.store import store
from torsor.dynamics.functions import log_det_gradient, log_det_mass_matrix
from torsor.errors import ArgumentError
from torsor.linalg import Vec
from torsor.model.batch import ModelBatch, machine_of, require_models
from torsor.model.joints import joint_code
from torsor.model.links import Link, links
from torsor.model.model import Model
from torsor.model.regular import FLAT, require_uncoupled
from torsor.spatial import Spatial

Array = NDArray[Any]

# A motion of the joints moves a body if its placement changes by more than this part of its frame's largest motion.
MOVED = 1e-9
# Numbers are constant if they agree to this at this many random configurations.
CONSTANT, SAMPLES = 1e-9, 3
POINT, ROD, EXTENDED = 1, 2, 3  # the kind of a body; 0 if it has no mass
REVOLUTE, SPHERICAL, GIMBAL = map(joint_code, ("revolute", "spherical", "gimbal"))


def fixman_force(model: Model, q: ArrayLike, *, kT: float = 1.0) -> Array:
    r"""Compute the force on rigid joints that gives q the distribution of stiff springs.

    $$ f = -\frac{k_B T}{2} \frac{\partial}{\partial q} (\log\det M - \log\det G) $$

    Parameters
    ----------
    model : Model or ModelBatch
        The machine; for a batch, det G must be constant.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    kT : float, default 1.0
        The temperature, as an energy in the model's units.

    Returns
    -------
    force : (..., nv) ndarray
        The force to add to tau; for a quaternion, along the axes of the body's angular velocity.

    Raises
    ------
    ArgumentError
        det G also depends on the springs of a body; the message names it.

    Notes
    -----
    Fixman 1974.

    Examples
    --------
    >>> import torsor as ts
    >>> print(ts.fixman_force(ts.zoo.point_chain(2), [0.0, 1.0]).round(2) + 0.0)
    [ 0.   -0.27]
    """
    scale = -0.5 * validate.number("kT", kT, least=0.0)
    gradient = log_det_gradient(model, q)
    pieces = pieces_of(model)
    return gradient * scale if pieces is None else (gradient - pieces.gradient(_host(model, q))) * scale


def fixman_potential(model: Model, q: ArrayLike, *, kT: float = 1.0) -> Array:
    r"""Compute the potential of `fixman_force`, up to a constant.

    $$ U = \frac{k_B T}{2} (\log\det M - \log\det G) $$

    The weight exp(-U / kT) turns samples of rigid joints into samples of stiff springs.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine; for a batch, det G must be constant.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    kT : float, default 1.0
        The temperature, as an energy in the model's units.

    Returns
    -------
    U : (...) ndarray
        The potential, in the units of kT.

    Raises
    ------
    ArgumentError
        det G also depends on the springs of a body; the message names it.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.fixman_potential(ts.zoo.point_chain(2), [[0.0, 0.0], [0.0, 1.5708]]).round(3)
    array([0.   , 0.347])
    """
    scale = 0.5 * validate.number("kT", kT, least=0.0)
    log_det = log_det_mass_matrix(model, q)
    pieces = pieces_of(model)
    return log_det * scale if pieces is None else (log_det - pieces.log_det(_host(model, q))) * scale


class Pieces(NamedTuple):
    """The machine whose mass matrix is G, without the pieces whose determinant is constant."""

    model: Model
    columns: Array  # its coordinates, as columns of (q, 0, 1): inserted joints stay at rest
    own: Array  # the indices of its freedoms that belong to the original machine
    freedoms: Array  # the indices of these freedoms in the original machine
    nv: int  # of the original machine

    def log_det(self, q: Array) -> Array:
        """log det G, (...), without the constant factors."""
        return log_det_mass_matrix(self.model, self._coordinates(q))

    def gradient(self, q: Array) -> Array:
        """d log det G / dq, (..., nv)."""
        found = log_det_gradient(self.model, self._coordinates(q))
        every = np.zeros((*found.shape[:-1], self.nv), found.dtype)
        every[..., self.freedoms] = found[..., self.own]
        return every

    def _coordinates(self, q: Array) -> Array:
        rest = np.broadcast_to(np.array([0.0, 1.0], q.dtype), (*q.shape[:-1], 2))
        return np.concatenate([q, rest], axis=-1)[..., self.columns]


def pieces_of(model: Model) -> Pieces | None:
    """The pieces of a model, or None if G is constant."""
    require_models(model)
    machine = machine_of(model)
    pieces = store(machine).once(("pieces",), lambda: Cut(machine).pieces())
    if pieces is not None:
        require_uncoupled(machine, "Fixman's force on a machine whose det G is not constant")
        if isinstance(model, ModelBatch):
            raise ArgumentError(f"det G of {machine!r} is not constant: give its members one by one, not as a batch")
    return pieces


def _host(model: Model, q: ArrayLike) -> Array:
    if hasattr(q, "__dlpack_device__") and not isinstance(q, np.ndarray):
        raise ArgumentError(f"det G of {model!r} is not constant, and is computed on the CPU: give q as a NumPy array")
    q = validate.array("q", q)
    return q if q.dtype.kind == "f" else q.astype(np.float64)


# Cutting a machine into pieces -----------------------------------------------------------------------------


class PieceJoint(NamedTuple):
    """One joint in a piece: that of a body, or (`turns`) a joint for the rotation of a rod or a point about itself."""

    body: int
    turns: Array | None = None  # the axis, (3,), or all axes, (3, 3)


class Pending(NamedTuple):
    """The joints whose motions have not moved a body with mass yet."""

    motions: tuple[PieceJoint, ...]
    S: Array  # (samples, 6, k): their twists, in the frame of the last body


class Cut:
    """A machine cut after every body with mass."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.rows: list[dict[str, Any]] = []  # the bodies of the pieces

    def pieces(self) -> Pieces | None:
        model = self.model
        if not model.has_degenerate_bodies and not (model.joint == GIMBAL).any():
            return None
        q = model.random_configuration(0, size=SAMPLES)
        bodies, extent = links(model), _extent(model)
        ends = Pending((), np.zeros((SAMPLES, 6, 0)))
        pending: list[Pending] = []
        for i, parent in enumerate(model.parent.tolist()):
            before = pending[parent] if parent >= 0 else ends
            if before.motions and model.children_count[parent] > 1:
                raise self._unclear(parent, "carries several bodies, and itself does not show how its joints move")
            at = [Vec(*x) for x in q[:, model.q_start[i] : model.q_start[i + 1]].tolist()]
            S = np.array([_twists(bodies[i], x, S) for x, S in zip(at, before.S)])
            pending.append(self._after(Pending((*before.motions, PieceJoint(i)), S), i, int(extent[i])) or ends)
        return self._built() if self.rows else None

    def _after(self, here: Pending, i: int, extent: int) -> Pending | None:
        """The joints still pending after body i, or None. A piece ends with a body that moves."""
        if not extent:
            return here
        place, frame = (_place(self.model, i, kind) for kind in (extent, EXTENDED))
        L = place @ here.S
        _, sizes, rows = np.linalg.svd(L)
        moved = sizes > MOVED * np.linalg.norm(frame @ here.S, axis=(1, 2))[:, None]
        rank, m = int(moved[0].sum()), here.S.shape[-1]
        if (moved.sum(axis=1) != rank).any():
            raise self._unclear(i, "is moved in more ways in some configurations than in others")
        if rank == 0:
            return here
        if rank == m:
            self._keep(here, L, i, extent)
            return None
        N = rows[:, rank:].swapaxes(1, 2)  # joint motions that do not move the body
        Z = np.linalg.svd(here.S @ N)[0][:, :, : m - rank]  # the rotations of the body about itself
        log_det = 2 * np.log(sizes[:, :rank]).sum(axis=1) + 2 * np.linalg.slogdet(Z.swapaxes(1, 2) @ here.S @ N)[1]
        whole = _log_gram(frame @ here.S)
        if not (_constant(Z @ Z.swapaxes(1, 2)) and _constant(log_det - whole)):
            raise self._unclear(i, "is moved only by some of the motions of its joints, which change with q")
        self._keep(here, frame @ here.S, i, EXTENDED)
        axes = Z[0, :3].T
        if len(axes) == 2:
            raise self._unclear(i, "is a point that turns about two axes")
        return Pending(
            (PieceJoint(i, axes[0] if len(axes) == 1 else axes),), np.broadcast_to(Z[0], (SAMPLES, *Z[0].shape))
        )

    def _keep(self, here: Pending, L: Array, i: int, extent: int) -> None:
        """The bodies of a piece that ends with body i, unless its determinant is constant."""
        if _constant(_log_gram(L)):
            return
        parent = -1
        for k, motion in enumerate(here.motions):
            row = self._turning(motion) if motion.turns is not None else self._joint(motion.body)
            if k and here.motions[k - 1].turns is not None:
                row["p"] = row["p"] - self.model.com[here.motions[k - 1].body]
            self.rows.append(row | dict(parent=parent))
            parent = len(self.rows) - 1
        self.rows[-1] |= _body(self.model, i, extent)

    def _joint(self, i: int) -> dict[str, Any]:
        model = self.model
        of_body = {key: getattr(model, key)[i] for key in ("joint", "axis", "pitch", "R", "p")}
        columns, freedoms = (range(x[i], x[i + 1]) for x in (model.q_start, model.v_start))
        return of_body | dict(columns=columns, freedoms=freedoms)

    def _turning(self, motion: PieceJoint) -> dict[str, Any]:
        """A resting joint at the mass centre of a rod or a point."""
        zero, one, turns = self.model.nq, self.model.nq + 1, motion.turns
        at = dict(pitch=0.0, R=np.eye(3), p=self.model.com[motion.body])
        if turns is not None and turns.ndim == 1:
            axis = turns / np.linalg.norm(turns)
            return at | dict(joint=REVOLUTE, axis=axis, columns=[zero], freedoms=[-1])
        axis = np.array([0.0, 0.0, 1.0])
        return at | dict(joint=SPHERICAL, axis=axis, columns=[one, zero, zero, zero], freedoms=[-1] * 3)

    def _built(self) -> Pieces:
        massless = dict(mass=0.0, com=np.zeros(3), inertia=np.zeros((3, 3)))
        rows: list[dict[str, Any]] = [massless | row for row in self.rows]
        columns, freedoms = (np.array([k for row in rows for k in row.pop(key)]) for key in ("columns", "freedoms"))
        arrays: dict[str, Any] = {key: np.array([row[key] for row in rows]) for key in rows[0]}
        model = Model(**arrays, gravity=np.zeros(3), allow_degenerate=True, name=f"places of {self.model.name}")
        own = freedoms >= 0
        return Pieces(model, columns, np.flatnonzero(own), freedoms[own], self.model.nv)

    def _unclear(self, i: int, why: str) -> ArgumentError:
        return ArgumentError(
            f"body {self.model.names[i]!r} {why}, so det G depends on more than its joints: give it mass and extent, "
            "or add the gradient of its own measure to -(kT/2) log_det_gradient"
        )


def _extent(model: Model) -> Array:
    """POINT, ROD or EXTENDED for every body; 0 for a massless body."""
    moments = np.linalg.eigvalsh(model.inertia)
    kinds = np.where(moments[:, 0] > FLAT * moments[:, 2], EXTENDED, np.where(moments[:, 1] > 0, ROD, POINT))
    return np.where(model.mass > 0, kinds, 0)


def _body(model: Model, i: int, extent: int) -> dict[str, Any]:
    """The body whose mass matrix measures placements: unit mass, and moments of the size of body i."""
    if extent == EXTENDED:
        return dict(mass=1.0, com=np.zeros(3), inertia=_size(model, i) * np.eye(3))
    inertia = np.zeros((3, 3)) if extent == POINT else _size(model, i) * _across(model, i)
    return dict(mass=1.0, com=model.com[i], inertia=inertia)


def _place(model: Model, i: int, extent: int) -> Array:
    """P (rows, 6): the rate of the placement of body i under its twist is P V; P^T P is the inertia of `_body`."""
    com = np.zeros(3) if extent == EXTENDED else model.com[i]
    turned = np.eye(3) if extent == EXTENDED else _across(model, i) if extent == ROD else np.zeros((0, 3))
    turning = np.hstack([sqrt(_size(model, i)) * turned, np.zeros((len(turned), 3))])
    return np.vstack([turning, np.hstack([-lie.hat(com), np.eye(3)])])


def _size(model: Model, i: int) -> float:
    """The square of the size of the body."""
    square = model.inertia[i].trace() / (3 * model.mass[i]) + model.com[i] @ model.com[i]
    return float(square) or 1.0


def _across(model: Model, i: int) -> Array:
    """The projection normal to the axis of a rod."""
    axis = np.linalg.eigh(model.inertia[i])[1][:, 0]
    return np.eye(3) - np.outer(axis, axis)


def _log_gram(L: Array) -> Array:
    return np.linalg.slogdet(L.swapaxes(1, 2) @ L)[1]


def _constant(x: Array) -> bool:
    """Whether it is the same in all samples."""
    return bool((np.abs(x - x[0]) <= CONSTANT).all())


def _twists(link: Link, q: Vec, S: Array) -> Array:
    """The twists S (6, k) of the parent, followed by those of the joint, in the body's frame, (6, k + nv)."""
    carried = [link.pose(q).Ad_inv(Spatial.of(column)) for column in S.T.tolist()]
    return np.array([twist.coordinates for twist in (*carried, *link.S(q).columns)]).T
