"""Many points of the bodies: their positions, and the joint torques of forces on them.

A point moves with one body. Forces are first summed per body, sum f and sum f p^T (twelve numbers that do not depend
on the state: see `algorithms/pulls.py`); two sweeps turn these sums into torques.

Points are stored in rows. First comes one row of four places for every body, in order, so that no gather is needed to
combine poses and rows. Bodies with more points have longer rows after these instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import kinematics, pulls
from torsor.backends.cpu import Program, compile_program
from torsor.backends.pointwise import compile_pointwise
from torsor.compiler.request import NEVER
from torsor.compiler.store import store
from torsor.errors import ArgumentError
from torsor.linalg import dot
from torsor.model.model import Model, require_model
from torsor.sweeps import Algorithm
from torsor.validate import array, integer_array, real_array

Array = NDArray[Any]
FIRST, FURTHER = 4, 16  # points in a row: most bodies of a molecule carry one to four atoms, rings up to sixteen
CACHED = 2**16  # intermediate numbers between two kernels
FEWEST = 8  # states in a block: they fill the lanes of a vector
EVERY = (slice(None),)  # one block


def looped(algorithm: Algorithm, model: Model) -> Program:
    """A program in loops, stored with the model: all trees share its machine code, so a new model does not wait."""
    return store(model).once(("looped", algorithm), lambda: compile_program(algorithm, model, unroll=NEVER))


class Points:
    """Hold points that move with the bodies of a model: compute their positions, and the torques of forces on them.

    Parameters
    ----------
    model : Model
        The machine.
    body : (m,) array_like
        The number of the body with which each point moves; -1 is the base.
    place : (m, 3) array_like
        The position of each point in the frame of its body, in m.

    Raises
    ------
    ArgumentError
        A shape does not fit, or there is no such body.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.planar3()
    >>> corners = ts.Points(arm, [0, 2, 2], [[0, 0, 0], [0.1, 0, 0], [0, 0.1, 0]])
    >>> x = corners.positions(np.zeros((5, 3)))
    >>> x.shape
    (5, 3, 3)
    >>> corners.torques(np.zeros((5, 3)), np.ones_like(x)).shape
    (5, 3)
    """

    def __init__(self, model: Model, body: ArrayLike, place: ArrayLike) -> None:
        require_model(model)
        self.model, self.body = model, integer_array("body", body, np.int64)
        if self.body.ndim != 1 or (self.body.size and not -1 <= self.body.min() <= self.body.max() < model.n):
            raise ArgumentError(f"body must be (m,) numbers of bodies, from -1 to {model.n - 1}, not {body!r:.80}")
        self.place = real_array("place", place, (len(self.body), 3)).copy()
        self.place.flags.writeable = False
        self._on_base = np.flatnonzero(self.body < 0)
        self._few = max(FEWEST, CACHED // (16 * model.n + 3 * len(self)))
        first, further, self._bodies = _rows_of(self.body, model.n)
        self._owner, self._begin = np.unique(self._bodies, return_index=True)
        self._first, self._further = PointRows.of(first, self.place), PointRows.of(further, self.place)
        slots = np.concatenate([first.ravel(), further.ravel()])
        self._slot = np.zeros(len(self), int)
        self._slot[slots[slots >= 0]] = np.flatnonzero(slots >= 0)

    def __len__(self) -> int:
        return len(self.body)

    def __repr__(self) -> str:
        return f"Points({len(self)} on {self.model.name})"

    def positions(self, q: ArrayLike) -> Array:
        """Compute the positions of the points in the base's axes.

        Parameters
        ----------
        q : (..., nq) array_like
            Configurations; if one is not finite, only its own points are not finite.

        Returns
        -------
        x : (..., m, 3) ndarray
            Positions, in m.
        """
        q = _rows("q", q, self.model.nq)
        states = q.reshape(-1, self.model.nq)
        out = np.empty((len(states), len(self), 3))
        for few in self._blocks(len(states)):
            self._place(states[few], out[few])
        return out.reshape(*q.shape[:-1], len(self), 3)

    def torques(self, q: ArrayLike, forces: ArrayLike) -> Array:
        """Compute the joint torques of forces on the points: J(q)^T f.

        Parameters
        ----------
        q : (..., nq) array_like
            Configurations.
        forces : (..., m, 3) array_like
            Forces in the base's axes, in N.

        Returns
        -------
        tau : (..., nv) ndarray
            Torques and forces, in N m and N.
        """
        q, forces = _rows("q", q, self.model.nq), _rows("forces", forces, len(self), 3)
        if q.shape[:-1] != forces.shape[:-2]:
            batch = np.broadcast_shapes(q.shape[:-1], forces.shape[:-2])
            q, forces = np.broadcast_to(q, (*batch, q.shape[-1])), np.broadcast_to(forces, (*batch, len(self), 3))
        out = np.zeros((*q.shape[:-1], self.model.nv))
        if len(self):
            states, pulls = q.reshape(-1, self.model.nq), forces.reshape(-1, len(self), 3)
            tau = out.reshape(-1, self.model.nv)
            for few in self._blocks(len(states)):
                self._torque_program(states[few], self.sums(pulls[few]), out=tau[few])
        return out

    def _blocks(self, count: int) -> Sequence[slice]:
        """Slices of states such that the intermediate numbers between kernels stay in the cache."""
        few = self._few
        return [slice(k, k + few) for k in range(0, count, few)] if count > few else EVERY

    def _place(self, q: Array, out: Array) -> None:
        """Positions of a block of states."""
        poses, cut = self._poses(q), self._first.place.size // 4
        slots = np.empty((len(q), cut + self._further.place.size // 4, 3))
        self._first.positions(poses, slots[:, :cut])
        if len(self._bodies):
            self._further.positions(poses.take(self._bodies, axis=1), slots[:, cut:])
        slots.take(self._slot, axis=1, out=out, mode="clip")
        if len(self._on_base):
            out[:, self._on_base] = self.place[self._on_base]

    def sums(self, forces: Array) -> Array:
        """Sum the forces on the points of every body: sum f, and the rows of sum f p^T.

        Parameters
        ----------
        forces : (..., m, 3) ndarray
            Forces in the base's axes, in N.

        Returns
        -------
        sums : (..., n, 12) ndarray
            The sums, as the kernels take them.
        """
        found = self._first.sums(forces)
        if len(self._bodies):
            more = self._further.sums(forces)
            if len(self._owner) < len(self._bodies):
                more = np.add.reduceat(more, self._begin, axis=1)
            found[:, self._owner] = more
        return found

    @cached_property
    def _poses(self) -> Any:
        return looped(kinematics.body_poses, self.model)

    @cached_property
    def _torque_program(self) -> Any:
        return looped(pulls.torques, self.model)


def _rows(name: str, x: ArrayLike, *core: int) -> Array:
    """x as float64 with these last axes; its numbers need not be finite."""
    found = array(name, x)
    if found.dtype.kind not in "iuf" or found.shape[found.ndim - len(core) :] != core:
        wanted = ", ".join(map(str, core))
        raise ArgumentError(f"{name} must be numbers (..., {wanted}), not {found.dtype} {found.shape}")
    return found if found.dtype == np.float64 else found.astype(np.float64)


@dataclass(frozen=True)
class PointRows:
    """Rows of points of one body each.

    place   (rows, width, 4) position in the body, followed by 1; zero where there is no point
    point   (rows, width) index of the point; where there is none, another one of the row
    """

    place: Array
    point: Array

    @classmethod
    def of(cls, points: Array, place: Array) -> PointRows:
        """Make rows from a table (rows, width) of points; -1: none."""
        exists = points >= 0
        padded = np.zeros((*points.shape, 4))
        padded[exists] = np.append(place, np.ones((len(place), 1)), axis=1)[points[exists]]
        return cls(padded, np.where(exists, points, points[:, :1]).clip(0))

    def positions(self, poses: Array, out: Array) -> None:
        """Write positions (B, rows * width, 3) for poses (B, rows, 4, 4)."""
        _placed(self.place.shape[1])(poses, self.place, out=out.reshape(len(out), *self.point.shape, 3))

    def sums(self, forces: Array) -> Array:
        """Sums (B, rows, 12) for forces (B, m, 3)."""
        return _pulled(self.place.shape[1])(forces.take(self.point, axis=1), self.place)


def _rows_of(body: Array, n: int) -> tuple[Array, Array, Array]:
    """Tables of points (-1: none): for every body with few points; for bodies with more; and these bodies."""
    members, count = np.argsort(body, kind="stable"), np.bincount(body[body >= 0], minlength=n)
    start = np.searchsorted(body[members], np.arange(n))
    many = count > FIRST
    rest = np.where(many, -(-count // FURTHER), 0)
    owner = np.repeat(np.arange(n), rest)
    skipped = FURTHER * (np.arange(len(owner)) - np.repeat(np.cumsum(rest) - rest, rest))

    def table(of: Array, skip: Array, count: Array, width: int) -> Array:
        at = skip[:, None] + np.arange(width)
        exists = at < count[of][:, None]
        found = np.full(at.shape, -1)
        found[exists] = members[(start[of][:, None] + at)[exists]]
        return found

    every = np.arange(n)
    few = table(every, np.zeros(n, int), np.where(many, 0, count), FIRST)
    return few, table(owner, skipped, count, FURTHER), owner


@cache
def _placed(width: int) -> Any:
    def placed(T: Any, x: Any) -> list[Any]:
        """R x + p of a few points; the fourth number of each only marks that it exists."""
        return [[dot(row[:3], point[:3]) + row[3] for row in T[:3]] for point in x]

    return compile_pointwise(placed, {"T": (4, 4), "x": (width, 4)}, key=("points", "placed"))


@cache
def _pulled(width: int) -> Any:
    def pulled(f: Any, x: Any) -> list[Any]:
        """sum f and the rows of sum f p^T of a few points (p, 1), or zero for none."""
        total = [[0.0] * 4] * 3
        for force, point in zip(f, x):
            total = [[s + a * b for s, b in zip(row, point)] for row, a in zip(total, force)]
        return [row[3] for row in total] + [s for row in total for s in row[:3]]

    return compile_pointwise(pulled, {"f": (width, 3), "x": (width, 4)}, key=("points", "pulled"))
