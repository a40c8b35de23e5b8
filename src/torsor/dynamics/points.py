"""Many points of the bodies: where they are, and how forces on them are felt at the joints.

A point moves with one body. Positions are one gather of poses and one pointwise kernel. Forces are first summed up per
body, sum f and sum f p^T (twelve numbers that do not depend on the state: see `algorithms/pulls.py`); two sweeps turn
these sums into torques. No step knows how many points a body has: sums are taken by four, then by four again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import kinematics, pulls
from torsor.backends.cpu import Program, compile_program
from torsor.backends.pointwise import compile_pointwise
from torsor.compiler.request import NEVER
from torsor.compiler.store import store
from torsor.errors import ArgumentError
from torsor.linalg import Vec, dot
from torsor.model.model import Model, require_model
from torsor.sweeps import Algorithm
from torsor.validate import array, integer_array, real_array

Array = NDArray[Any]
TOGETHER = 4  # numbers summed up by one kernel: most bodies of a molecule carry one to four atoms
CACHED = 2**16  # numbers between two kernels
PULL = 12  # numbers: sum f, and the rows of sum f p^T


def looped(algorithm: Algorithm, model: Model) -> Program:
    """A program in loops, kept with the model: all trees share its machine code, so a new one waits for nothing."""
    return store(model).once(("looped", algorithm), lambda: compile_program(algorithm, model, unroll=NEVER))


class Points:
    """Hold points that move with the bodies of a model: where they are, and how forces on them are felt.

    Parameters
    ----------
    model : Model
        The machine.
    body : (m,) array_like
        The number of the body with which each point moves; -1 is the base.
    place : (m, 3) array_like
        Where each point is, in the frame of its body, in m.

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
        moving = np.flatnonzero(self.body >= 0)
        self._levels = _levels(self.body[moving], model.n)
        self._first = np.append(moving, len(self.body))[self._levels[0]]  # numbers of points; one too large: none
        self._own = np.append(self.place, np.zeros((1, 3)), axis=0)[self._first]

    def __len__(self) -> int:
        return len(self.body)

    def __repr__(self) -> str:
        return f"Points({len(self)} on {self.model.name})"

    def positions(self, q: ArrayLike) -> Array:
        """Compute where the points are in the base's axes.

        Parameters
        ----------
        q : (..., nq) array_like
            Configurations; one that is not finite has points that are not finite, and changes nothing about the others.

        Returns
        -------
        x : (..., m, 3) ndarray
            Places, in m.
        """
        q = _rows("q", q, self.model.nq)
        states = q.reshape(-1, self.model.nq)
        out = np.empty((len(states), len(self), 3))
        for few in self._blocks(len(states)):
            poses = self._poses(states[few])
            if (self.body < 0).any():
                poses = np.concatenate([poses, np.broadcast_to(np.eye(4), (len(poses), 1, 4, 4))], axis=-3)
            _placed()(np.take(poses, self.body, axis=-3), self.place, out=out[few])
        return out.reshape(*q.shape[:-1], len(self), 3)

    def torques(self, q: ArrayLike, forces: ArrayLike) -> Array:
        """Compute how forces on the points are felt at the joints: J(q)^T f.

        Parameters
        ----------
        q : (..., nq) array_like
            Configurations.
        forces : (..., m, 3) array_like
            In the base's axes, in N.

        Returns
        -------
        tau : (..., nv) ndarray
            In N m and N.
        """
        q, forces = _rows("q", q, self.model.nq), _rows("forces", forces, len(self), 3)
        batch = np.broadcast_shapes(q.shape[:-1], forces.shape[:-2])
        count = prod(batch)
        states = np.broadcast_to(q, (*batch, q.shape[-1])).reshape(count, q.shape[-1])
        pulls = np.broadcast_to(forces, (*batch, len(self), 3)).reshape(count, len(self), 3)
        out = np.empty((len(states), self.model.nv))
        for few in self._blocks(len(states)):
            self._felt(states[few], self.sums(pulls[few]), out=out[few])
        return out.reshape(*batch, self.model.nv)

    def _blocks(self, count: int) -> Iterator[slice]:
        """So many states at a time that what lies between the kernels stays in the cache."""
        few = max(1, CACHED // (16 * (len(self) + self.model.n)))
        return (slice(k, k + few) for k in range(0, count, few))

    def sums(self, forces: Array) -> Array:
        """Add up the forces on the points of every body: sum f, and the rows of sum f p^T.

        Parameters
        ----------
        forces : (..., m, 3) ndarray
            In the base's axes, in N.

        Returns
        -------
        sums : (..., n, 12) ndarray
            What the kernels take.
        """
        none = np.zeros((*forces.shape[:-2], 1, 3))
        found = _pulled()(np.take(np.concatenate([forces, none], axis=-2), self._first, axis=-2), self._own)
        for places in self._levels[1:]:
            none = np.zeros((*found.shape[:-2], 1, PULL))
            found = _summed()(np.take(np.concatenate([found, none], axis=-2), places, axis=-2))
        return found

    @cached_property
    def _poses(self) -> Any:
        return looped(kinematics.body_poses, self.model)

    @cached_property
    def _felt(self) -> Any:
        return looped(pulls.torques, self.model)


def _rows(name: str, x: ArrayLike, *core: int) -> Array:
    """x as float64 with these last axes; its numbers need not be finite."""
    found = array(name, x)
    if found.dtype.kind not in "iuf" or found.shape[found.ndim - len(core) :] != core:
        wanted = ", ".join(map(str, core))
        raise ArgumentError(f"{name} must be numbers (..., {wanted}), not {found.dtype} {found.shape}")
    return found.astype(np.float64, copy=False)


def _levels(body: Array, n: int) -> list[Array]:
    """How the sum over the points of each body is taken.

    The first level (chunks, 4) holds numbers of points, every further one numbers of chunks of the level before it, and
    the last one has a row per body. A number beyond the last means none.
    """
    members, owner, levels = np.argsort(body, kind="stable"), np.sort(body), []
    while True:
        start = np.searchsorted(owner, np.arange(n))
        count = np.bincount(owner, minlength=n)
        chunks = np.maximum(-(-count // TOGETHER), 1)  # a body without points has an empty one
        of = np.repeat(np.arange(n), chunks)
        within = np.arange(len(of)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
        at = within[:, None] * TOGETHER + np.arange(TOGETHER)
        there = at < count[of][:, None]
        table = np.full(at.shape, len(members))
        table[there] = members[(start[of][:, None] + at)[there]]
        levels.append(table)
        if (chunks == 1).all():
            return levels
        members, owner = np.arange(len(of)), of


@cache
def _placed() -> Any:
    def placed(T: Any, x: Any) -> list[Any]:
        """R x + p"""
        return [dot(row[:3], x) + row[3] for row in T[:3]]

    return compile_pointwise(placed, {"T": (4, 4), "x": (3,)}, key=("points", "placed"))


@cache
def _pulled() -> Any:
    def pulled(f: Any, x: Any) -> list[Any]:
        """sum f and the rows of sum f p^T of a few points"""
        rows = zip(f, x)
        total = Vec.zero(PULL)
        for force, place in rows:
            total = total + Vec.of((*force, *(a * b for a in force for b in place)))
        return list(total)

    return compile_pointwise(pulled, {"f": (TOGETHER, 3), "x": (TOGETHER, 3)}, key=("points", "pulled"))


@cache
def _summed() -> Any:
    def summed(x: Any) -> list[Any]:
        """The sum of a few rows."""
        total = Vec.of(x[0])
        for row in x[1:]:
            total = total + Vec.of(row)
        return list(total)

    return compile_pointwise(summed, {"x": (TOGETHER, PULL)}, key=("points", "summed"))
