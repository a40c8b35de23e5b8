"""The dynamics at frames of the machine (Khatib 1987; in O(n) per frame after Ploen & Park 1999)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import operational_space as algorithms
from torsor.dynamics import functions as dynamics
from torsor.dynamics.calls import on_frame
from torsor.dynamics.factor import MassFactor, mass_factor
from torsor.errors import ArgumentError, SingularError
from torsor.model.model import Model
from torsor.validate import array, real_array, shown

Array = NDArray[Any]


@dataclass(frozen=True, repr=False)
class OperationalSpace:
    """Hold the dynamics of a task: F = inertia a + bias, where the force F (k numbers) causes the acceleration a.

    The task is the twists of some frames, each in its own frame (k = 6 per frame), or combinations T of them. A task
    force F acts on the joints as the torques jacobian^T F.

    Attributes
    ----------
    factor : MassFactor
        The factor of the mass matrix.
    frames : tuple of str or int
        The frames.
    v : (..., nv) ndarray or None
        Velocities.
    jacobian : (..., k, nv) ndarray
        The Jacobian J: J v is the velocity of the task.
    response : (..., k, nv) ndarray
        B = J W^-T, with M = W W^T.
    T : (k, 6 m) ndarray
        The combinations.

    Examples
    --------
    >>> import torsor as ts
    >>> space = ts.operational_space(ts.zoo.panda(), [0, 0.5, 0, -1.5, 0, 2, 0], "link7")
    >>> space.inertia.shape, space.consistent_inverse.shape
    ((6, 6), (7, 6))
    """

    factor: MassFactor
    frames: tuple[int | str, ...]
    v: Array | None
    jacobian: Array  # J (..., k, nv): J v is the velocity of the task
    response: Array  # B = J W^-T (..., k, nv)
    T: Array  # (k, 6 frames)

    def __repr__(self) -> str:
        frames = ", ".join(map(str, self.frames))
        return f"OperationalSpace({self.factor.model.name}, {frames}: {len(self.T)} components)"

    @cached_property
    def inverse_inertia(self) -> Array:
        """The inverse inertia of the task, J M^-1 J^T = B B^T, (..., k, k); it may be singular."""
        return self.response @ self.response.swapaxes(-1, -2)

    @cached_property
    def inertia(self) -> Array:
        """The inertia of the task, (J M^-1 J^T)^-1, (..., k, k): with B^T = Q R it is R^-1 R^-T."""
        k, nv = self.response.shape[-2:]
        sizes = np.linalg.svd(self.response, compute_uv=False)
        rank = (sizes > max(k, nv) * np.finfo(sizes.dtype).eps * sizes[..., :1]).sum(axis=-1).min(initial=k)
        if rank < k:
            raise SingularError(
                f"the task at {', '.join(map(repr, self.frames))} has {k} components, but only {rank} can be "
                "accelerated independently; choose components with task=, or use inverse_inertia"
            )
        R = np.linalg.qr(self.response.swapaxes(-1, -2), mode="r")
        inverse = np.linalg.inv(R)
        return inverse @ inverse.swapaxes(-1, -2)

    @cached_property
    def consistent_inverse(self) -> Array:
        """The inverse of J with the least kinetic energy, M^-1 J^T inertia, (..., nv, k).

        Torques (1 - J^T inverse^T) tau do not accelerate the task.
        """
        spread = MassFactor(self.factor.model, self.factor.q[..., None, :])
        return spread.solve_transposed(self.inertia @ self.response).swapaxes(-1, -2)

    @cached_property
    def bias(self) -> Array:
        """The force at zero acceleration, inertia (J M^-1 h - dJ/dt v), (..., k), with h the joints' bias forces."""
        if self.v is None:
            raise ArgumentError("the bias needs velocities: give v to operational_space")
        model, q = self.factor.model, self.factor.q
        h = dynamics.bias_forces(model, q, self.v)
        rates = [dynamics.jacobian_dot(model, q, self.v, frame) @ self.v[..., None] for frame in self.frames]
        rate = np.concatenate(rates, axis=-2).astype(h.dtype, copy=False)
        drift = self.response @ self.factor.solve(h)[..., None] - self.T @ rate
        return (self.inertia @ drift)[..., 0]


def operational_space(
    model: Model,
    q: ArrayLike,
    frames: int | str | Sequence[int | str],
    v: ArrayLike | None = None,
    *,
    task: ArrayLike | None = None,
) -> OperationalSpace:
    r"""Compute the dynamics at frames, such as a tool or a hand.

    $$ F = \Lambda\, a + \mu, \qquad \Lambda^{-1} = J M^{-1} J^T $$

    Parameters
    ----------
    model : Model
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    frames : str, int or sequence of these
        The frames or bodies.
    v : (..., nv) array_like, optional
        Velocities; without them there is no bias.
    task : (k, 6 m) array_like, optional
        Selects components, or combinations of them, that can be accelerated.

    Returns
    -------
    space : OperationalSpace
        `jacobian`, `inverse_inertia`, `inertia`, `bias`, `consistent_inverse`.

    Raises
    ------
    SingularError
        The task cannot be accelerated in all directions.

    Notes
    -----
    Khatib 1987; Rodriguez, Jain & Kreutz-Delgado 1991.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm, q = ts.zoo.panda(), [0, 0.5, 0, -1.5, 0, 2, 0]
    >>> space = ts.operational_space(arm, q, "link7")
    >>> J = ts.jacobian(arm, q, "link7")
    >>> np.allclose(space.inverse_inertia, J @ ts.inverse_mass_matrix(arm, q) @ J.T)
    True
    """
    if not isinstance(frames, int | str | np.integer | Sequence):
        raise ArgumentError(f"frames must be bodies or frames, by number or name, not {shown(frames)}")
    chosen = (frames,) if isinstance(frames, int | str | np.integer) else tuple(frames)
    if not chosen:
        raise ArgumentError("frames is empty: name at least one body or frame")
    factor = mass_factor(model, q)
    columns, dtype = 6 * len(chosen), factor.q.dtype if factor.q.dtype.kind in "fO" else np.dtype(np.float64)
    T = np.eye(columns) if task is None else real_array("task", task)
    if T.ndim != 2 or T.shape[1] != columns or not len(T):
        raise ArgumentError(f"task has shape {T.shape}; it must be (k, {columns}), six columns a frame")
    T = T.astype(dtype, copy=False)
    J, B = (
        T @ np.concatenate([rows(model, factor.q, frame) for frame in chosen], axis=-2).astype(dtype, copy=False)
        for rows in (dynamics.jacobian, _response)
    )
    return OperationalSpace(factor, chosen, None if v is None else array("v", v), J, B, T)


def _response(model: Model, q: Array, frame: int | str) -> Array:
    """B = J W^-T of one frame, (..., 6, nv)."""
    return on_frame(algorithms.tip_response, model, frame, q)
