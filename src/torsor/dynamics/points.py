"""Many points of the bodies: their positions, and the joint torques of forces on them.

A point moves with one body. Forces are first summed per body, sum f and sum f p^T (twelve numbers that do not depend
on the state: see `algorithms/pulls.py`); two sweeps turn these sums into torques.

Between the sweeps, two kernels loop over the points of every body (`backends/point_kernels.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import kinematics, pulls
from torsor.backends.cpu import Program, compile_program
from torsor.backends.point_kernels import point_kernels
from torsor.compiler.request import NEVER
from torsor.compiler.store import store
from torsor.errors import ArgumentError
from torsor.model.model import Model, require_model
from torsor.sweeps import Algorithm
from torsor.validate import array, integer_array, real_array

Array = NDArray[Any]
CACHED = 2**16  # numbers between two kernels
FEWEST = 8  # states in a block: they fill the lanes of a vector
EVERY = (slice(None),)  # one block


def looped(algorithm: Algorithm, model: Model) -> Program:
    """A program in loops, stored with the model: all trees share its machine code, so a new model need not compile."""
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

    def __reduce__(self) -> Any:
        """A pickle or a copy builds its kernels again."""
        return Points, (self.model, self.body, self.place)

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
        if len(self):
            for few in self._blocks(len(states)):
                self._placed(self._poses(states[few]), out=out[few])
        if len(self._on_base):
            out[:, self._on_base] = self.place[self._on_base]
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
        if not len(self):
            return np.zeros((*q.shape[:-1], self.model.nv))
        states, pulls = q.reshape(-1, self.model.nq), forces.reshape(-1, len(self), 3)
        tau = np.empty((len(states), self.model.nv))
        for few in self._blocks(len(states)):
            self._torque_program(states[few], self.sums(pulls[few]), out=tau[few])
        return tau.reshape(*q.shape[:-1], self.model.nv)

    def _blocks(self, count: int) -> Sequence[slice]:
        """Slices of states such that the intermediate numbers between kernels stay in the cache."""
        few = self._few
        return [slice(k, k + few) for k in range(0, count, few)] if count > few else EVERY

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
        return self._pulled(np.ascontiguousarray(forces))

    @cached_property
    def _kernels(self) -> tuple[Any, Any]:
        return point_kernels(self.body, self.place, self.model.n)

    @cached_property
    def _placed(self) -> Any:
        return self._kernels[0]

    @cached_property
    def _pulled(self) -> Any:
        return self._kernels[1]

    @cached_property
    def _poses(self) -> Any:
        return looped(kinematics.body_poses, self.model)

    @cached_property
    def _torque_program(self) -> Any:
        return looped(pulls.torques, self.model)


def _rows(name: str, x: ArrayLike, *core: int) -> Array:
    """x as float64 with these last axes; its numbers need not be finite."""
    if type(x) is np.ndarray and x.dtype == np.float64 and x.shape[x.ndim - len(core) :] == core:
        return x  # fast path: the checks below take half of the time of a small molecule
    found = array(name, x)
    if found.dtype.kind not in "iuf" or found.shape[found.ndim - len(core) :] != core:
        wanted = ", ".join(map(str, core))
        raise ArgumentError(f"{name} must be numbers (..., {wanted}), not {found.dtype} {found.shape}")
    return found if found.dtype == np.float64 else found.astype(np.float64)
