"""Inverse kinematics: many targets at once, by damped least squares with random restarts.

A step solves (J_w J_w' + lambda 1) y = e_w, dv = J_w' y. e = (log R'R*, R'(p* - p)) is the error in the frame's axes,
J the Jacobian in the same axes; both are weighted. The damping lambda = DAMPING |e_w|^2 + LEAST_DAMPING (after
Sugihara, IEEE Trans. Robotics 27 (2011) 984) vanishes with the error, so the last steps are Newton steps. A joint stays
at a limit while the error pushes against it. Unsolved targets start again from random configurations, several at a
time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import kinematics
from torsor.dynamics.calls import program_for
from torsor.errors import ArgumentError
from torsor.model.freedoms import coordinate_bounds, limited_coordinates
from torsor.model.model import Model, require_model
from torsor.model.parameters import free_freedoms
from torsor.sweeps import way_to_base
from torsor.validate import array, flag, generator, integer, number, real_array

Array = NDArray[Any]

# For 10,000 targets of a Panda, 0.5 (Sugihara) takes 323,000 steps, 0.1 187,000, 0.05 180,000 and 0.003 238,000.
DAMPING, LEAST_DAMPING = 0.05, 1e-9
STEPS = 16  # steps from one start; near a solution, Newton needs five
BLOCK = 1024  # rows at a time, so that they stay in the processor's cache
COPIES = 16  # starts of one target at a time
CROWD = 512  # this many rows cost hardly more than one
ORTHONORMAL = 1e-6  # the largest deviation of a target's rotation from an orthonormal matrix


class Solution(NamedTuple):
    """Hold the solutions for all targets, as a named tuple.

    Attributes
    ----------
    q : (..., nq) ndarray
        Configurations; for an unsolved target, the one with the least error.
    solved : (...) ndarray
        Whether the error is within the tolerance.
    error : (...) ndarray
        The larger of the weighted angle (rad) and distance (m) to the target.

    Examples
    --------
    >>> import torsor as ts
    >>> arm = ts.zoo.panda()
    >>> target = ts.frame_poses(arm, [0.1, 0.5, 0, -1.5, 0, 2, 0.3], "link7")
    >>> print(ts.inverse_kinematics(arm, "link7", target).solved)
    True
    """

    q: Array
    solved: Array
    error: Array


def inverse_kinematics(model: Model, frame: int | str, targets: ArrayLike, q0: ArrayLike | None = None, *,
                       weights: ArrayLike | None = None, limits: bool = True, tolerance: float = 1e-6,
                       restarts: int = 100, rng: Any = 0) -> Solution:  # fmt: skip
    """Find configurations that bring a frame to targets, many at once.

    Steps are damped least squares on the manifold of the joints; unsolved targets start again at random. Every solution
    obeys the couplings of the model.

    Parameters
    ----------
    model : Model
        The machine.
    frame : str or int
        A body, joint or frame by name; a body also by number.
    targets : (..., 4, 4) or (..., 3) array_like
        Poses in the base's frame, or positions (in m) with any orientation.
    q0 : (..., nq) array_like, optional
        The start. Default: the middle of the limits, or the neutral configuration.
    weights : (6,) array_like, optional
        Weights of the error's components, angular first, in the frame's axes; 0: that component is free.
    limits : bool, default True
        Whether q stays within model.lower and model.upper.
    tolerance : float, default 1e-6
        The tolerance of the weighted angle (rad) and distance (m).
    restarts : int, default 100
        The largest number of random starts of a target after the first one.
    rng : Generator or int, default 0
        The random generator of the starts, or a seed.

    Returns
    -------
    solution : Solution
        `q` (..., nq), `solved` (...) and `error` (...), a named tuple.

    Raises
    ------
    ArgumentError
        A shape does not fit, or a target is not a pose.

    Examples
    --------
    >>> import torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> found = ts.inverse_kinematics(arm, "tip", [1.0, 0.0, -1.0])
    >>> bool(found.solved), ts.frame_poses(arm, found.q, "tip")[:3, 3].round(3).tolist()
    (True, [1.0, 0.0, -1.0])
    """
    require_model(model)
    wanted, batch, weight = _targets(targets, weights)
    problem = _Problem(model, frame, weight, flag("limits", limits), number("tolerance", tolerance, above=0))
    rng, tries = generator("rng", rng), integer("restarts", restarts, least=0)
    start = problem.start(q0, batch)
    best, error = start.copy(), np.full(len(wanted), np.inf)
    rows, q = np.arange(len(wanted)), start
    while len(rows):
        for first in range(0, len(rows), BLOCK):
            block = slice(first, first + BLOCK)
            _keep_best(best, error, rows[block], *problem.descend(q[block], wanted[rows[block]]))
        left = np.flatnonzero(error > problem.tolerance)
        copies = min(COPIES, max(1, CROWD // max(len(left), 1)), tries)
        if not copies:
            break
        tries -= copies
        rows = np.repeat(left, copies)
        q = problem.random(rng, start[rows])
    solved = error <= problem.tolerance
    return Solution(best.reshape(*batch, model.nq), solved.reshape(batch), error.reshape(batch))


def _keep_best(best: Array, error: Array, rows: Array, q: Array, found: Array) -> None:
    """For each target keep the attempt with the least error, if it improves on the best so far."""
    order = np.lexsort((found, rows))
    rows, q, found = rows[order], q[order], found[order]
    first = np.append(True, rows[1:] != rows[:-1])
    rows, q, found = rows[first], q[first], found[first]
    better = found < error[rows]
    best[rows[better]], error[rows[better]] = q[better], found[better]


def _targets(targets: ArrayLike, weights: ArrayLike | None) -> tuple[Array, tuple[int, ...], Array]:
    """Targets as poses (m, 4, 4), their batch axes, and the weights."""
    x = array("targets", targets)
    if x.dtype.kind not in "iuf" or not np.isfinite(x.astype(np.float64)).all():
        raise ArgumentError("targets must be finite real numbers")
    x = x.astype(np.float64)
    usual = np.ones(6)
    if x.ndim >= 2 and x.shape[-2:] == (4, 4):
        batch, poses = x.shape[:-2], x.reshape(-1, 4, 4)
        R = poses[:, :3, :3]
        if not _are_rotations(R):
            raise ArgumentError("targets: the upper left 3x3 part of a pose must be a rotation")
        if (poses[:, 3] != (0.0, 0.0, 0.0, 1.0)).any():
            raise ArgumentError("targets: the last row of a pose must be 0 0 0 1, its position is the last column")
    elif x.ndim >= 2 and x.shape[-2:] == (3, 3) and x.size and _are_rotations(x.reshape(-1, 3, 3)):
        raise ArgumentError(
            f"targets of shape {x.shape} are rotations: give poses (..., 4, 4), and weights=[1, 1, 1, 0, 0, 0] if the "
            "position may be anything (for three positions, add an axis: (3, 1, 3))"
        )
    elif x.ndim >= 1 and x.shape[-1] == 3:
        batch, usual[:3] = x.shape[:-1], 0.0
        poses = np.broadcast_to(np.eye(4), (int(np.prod(batch, dtype=int)), 4, 4)).copy()
        poses[:, :3, 3] = x.reshape(-1, 3)
    else:
        raise ArgumentError(f"targets must have shape (..., 4, 4) or (..., 3), not {x.shape}")
    weight = usual if weights is None else real_array("weights", weights, (6,))
    if (weight < 0).any() or not weight.any():
        raise ArgumentError("weights must not be negative, nor all zero")
    return poses, batch, weight


def _are_rotations(R: Array) -> bool:
    """Whether all matrices (m, 3, 3) are rotations, up to `ORTHONORMAL`."""
    apart = np.abs(R @ R.swapaxes(1, 2) - np.eye(3)).max(initial=0)
    return bool(apart <= ORTHONORMAL and (np.linalg.det(R) > 0).all())


class _Problem:
    """A frame of a model to move to targets. Arrays for many rows have the rows along the last axis."""

    def __init__(self, model: Model, frame: int | str, weight: Array, limits: bool, tolerance: float):
        self.model, self.weight, self.limits, self.tolerance = model, weight, limits, tolerance
        self.frame = model.frame(frame)
        if self.frame.body < 0:
            raise ArgumentError(f"frame {frame!r} sits on the base: no joint moves it")
        self.poses = program_for(kinematics.body_poses, model, (), "d", None)
        self.jacobian = program_for(kinematics.jacobian, model, (), "d", self.frame)
        way = list(way_to_base(model.parent.tolist(), self.frame.body))
        moving = np.concatenate([np.arange(model.v_start[i], model.v_start[i + 1]) for i in way])
        G, free = model.coupling_matrix(), free_freedoms(model)
        used = G[moving].any(axis=0)  # the freedoms that move the frame, directly or through followers
        self.G, self.free = G[:, used], free[used]
        self.simple = bool((self.G.sum(axis=0) == 1).all() and (np.count_nonzero(self.G, axis=0) == 1).all())
        unlimited = np.full(model.nq, -np.inf), np.full(model.nq, np.inf)
        self.lower, self.upper = coordinate_bounds(model) if limits else unlimited
        coordinate = limited_coordinates(model)[self.free]  # of each free freedom; -1: a part of a rotation
        self.coordinate, self.limited = np.maximum(coordinate, 0), (coordinate >= 0)[:, None]
        body = np.searchsorted(model.v_start, self.free, side="right") - 1
        self.moves = np.isin(np.repeat(np.arange(model.n), np.diff(model.q_start)), body)  # coordinates, (nq,)
        self.flat = all(joint.flat for joint, _, _ in model.joint_groups)

    def start(self, q0: ArrayLike | None, batch: tuple[int, ...]) -> Array:
        model, m = self.model, int(np.prod(batch, dtype=int))
        if q0 is None:
            q = model.neutral()
            both = np.isfinite(self.lower) & np.isfinite(self.upper)
            q[both] = (self.lower[both] + self.upper[both]) / 2
        else:
            q = real_array("q0", q0)
            if q.shape[-1:] != (model.nq,) or q.shape not in ((model.nq,), (*batch, model.nq)):
                raise ArgumentError(f"q0 must have shape ({model.nq},) or {(*batch, model.nq)}, not {q.shape}")
            model.check_quaternions(q, "q0")
        q = np.broadcast_to(q.reshape(-1, model.nq), (m, model.nq))
        return self.allowed(q)

    def random(self, rng: np.random.Generator, start: Array) -> Array:
        """Random configurations within the limits; what does not move the frame stays where it started."""
        q = self.model.random_configuration(rng, len(start), limits=self.limits)
        return self.allowed(np.where(self.moves, q, start))

    def allowed(self, q: Array) -> Array:
        """q with the leaders within their limits, and the followers at their coupled positions.

        Limits of leaders imply those of followers (`coordinate_bounds`): clipping these only removes rounding errors.
        """
        q = self.model.coupled(np.clip(q, self.lower, self.upper))
        return np.clip(q, self.lower, self.upper) if self.model.couplings else q

    def descend(self, q: Array, wanted: Array) -> tuple[Array, Array]:
        """Damped steps from q (m, nq); the configurations reached, and their errors."""
        q, error = q.copy(), np.full(len(q), np.inf)
        rows, wanted = np.arange(len(q)), _rows_last(wanted[:, :3, :])
        for step in range(STEPS + 1):
            at = q[rows]
            e = self.errors(at, wanted)
            error[rows] = np.sqrt(np.maximum((e[:3] ** 2).sum(axis=0), (e[3:] ** 2).sum(axis=0)))
            going = error[rows] > self.tolerance
            if not going.all():
                rows, at, e, wanted = rows[going], at[going], e[:, going], wanted[..., going]
            if not len(rows) or step == STEPS:
                break
            q[rows] = self.moved(at, e)
        return q, error

    def errors(self, q: Array, wanted: Array) -> Array:
        """The weighted error (6, m) in the frame's axes; wanted (3, 4, m)."""
        T = _rows_last(self.poses(q)[:, self.frame.body, :3, :])
        R, p = T[:, :3], T[:, 3] + np.tensordot(self.frame.p, T[:, :3], ((0,), (1,)))
        if not np.array_equal(self.frame.R, np.eye(3)):
            R = np.einsum("ikm,kj->ijm", R, self.frame.R)
        e = np.zeros((6, len(q)))
        if self.weight[:3].any():
            e[:3] = _rotation_vector(np.einsum("kim,kjm->ijm", R, wanted[:, :3]))
        e[3:] = np.einsum("kim,km->im", R, wanted[:, 3] - p)
        return e * self.weight[:, None]

    def moved(self, q: Array, e: Array) -> Array:
        """One step of damped least squares."""
        J = _rows_last(self.jacobian(q))  # (6, nv, m)
        J = J[:, self.free] if self.simple else np.einsum("ijm,jk->ikm", J, self.G)
        J *= self.weight[:, None, None]
        push = np.einsum("ikm,im->km", J, e)  # steepest descent, freedom by freedom
        at, lower, upper = q.T[self.coordinate], self.lower[self.coordinate, None], self.upper[self.coordinate, None]
        blocked = self.limited & (((at <= lower) & (push < 0)) | ((at >= upper) & (push > 0)))
        if blocked.any():
            J *= ~blocked
        y = _solved(J, e, DAMPING * (e**2).sum(axis=0) + LEAST_DAMPING)
        step = np.einsum("ikm,im->km", J, y)
        if self.flat and self.simple:
            q = q.copy()
            q[:, self.coordinate] = np.clip(at + step, lower, upper).T
            return q
        return self.allowed(self.model.integrate(q, step.T @ self.G.T))


def _rows_last(x: Array) -> Array:
    """(m, ...) as a contiguous array (..., m)."""
    return np.ascontiguousarray(x.reshape(len(x), -1).T).reshape(*x.shape[1:], len(x))


def _rotation_vector(R: Array) -> Array:
    """log of the rotations (3, 3, m), as (3, m); at half a turn the axis is chosen."""
    twice = np.stack([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]])
    sine = np.sqrt((twice**2).sum(axis=0)) / 2
    angle = np.arctan2(sine, (R[0, 0] + R[1, 1] + R[2, 2] - 1) / 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return twice * np.where(sine > 1e-12, angle / (2 * sine), 0.5)


def _solved(J: Array, e: Array, damping: Array) -> Array:
    """(J J' + damping 1)^-1 e for J (6, nv, m): Cholesky factors for all rows at once, entry by entry."""
    L: list[list[Array]] = []
    y: list[Array] = []
    for i in range(6):
        row: list[Array] = []
        for j in range(i + 1):
            x = np.einsum("km,km->m", J[i], J[j])
            if i == j:
                x += damping
            for k in range(j):
                x -= row[k] * L[j][k] if j < i else row[k] * row[k]
            row.append(np.sqrt(np.maximum(x, LEAST_DAMPING)) if i == j else x / L[j][j])
        L.append(row)
        x = e[i].copy()
        for k in range(i):
            x -= row[k] * y[k]
        y.append(x / row[i])
    for i in reversed(range(6)):
        for k in range(i + 1, 6):
            y[i] = y[i] - L[k][i] * y[k]
        y[i] = y[i] / L[i][i]
    return np.stack(y)
