"""Inertial parameters of a model, and the velocities of joints that follow no other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.errors import ModelError
from torsor.validate import real_array

if TYPE_CHECKING:
    from torsor.model.model import Model

Array = NDArray[Any]

INERTIAL = 10  # inertial parameters per body
ROWS, COLUMNS = np.triu_indices(3)  # of the six entries of J


def inertial_parameters(model: Model) -> Array:
    m, c = model.mass, model.com
    J = model.inertia + m[:, None, None] * (
        (c * c).sum(axis=1)[:, None, None] * np.eye(3) - c[:, :, None] * c[:, None, :]
    )
    return np.column_stack([m, m[:, None] * c, J[:, ROWS, COLUMNS]])


def with_inertial_parameters(model: Model, parameters: ArrayLike) -> Model:
    pi = real_array("parameters", parameters, (model.n, INERTIAL), (model.n * INERTIAL,)).reshape(model.n, INERTIAL)
    m, h, J = pi[:, 0], pi[:, 1:4], np.zeros((model.n, 3, 3))
    J[:, ROWS, COLUMNS] = J[:, COLUMNS, ROWS] = pi[:, 4:]
    if (odd := np.flatnonzero((m <= 0) & pi.any(axis=1))).size:
        raise ModelError(f"body {model.names[odd[0]]!r}: a mass of {m[odd[0]]:g} with other parameters cannot exist")
    c = h / np.where(m > 0, m, 1.0)[:, None]
    shift = (c * h).sum(axis=1)[:, None, None] * np.eye(3) - c[:, :, None] * h[:, None, :]
    return replace(model, mass=m, com=c, inertia=J - shift)


def free_freedoms(model: Model) -> Array:
    """The freedoms that follow no other."""
    followers = [int(model.v_start[coupling.follower]) for coupling in model.couplings]
    return np.setdiff1d(np.arange(model.nv), np.array(followers, dtype=int))


def coupling_matrix(model: Model) -> Array:
    free = free_freedoms(model)
    G = np.zeros((model.nv, len(free)))
    G[free, np.arange(len(free))] = 1.0
    column = {int(k): i for i, k in enumerate(free)}
    for follower, leader, ratio, _ in model.couplings:
        G[model.v_start[follower], column[int(model.v_start[leader])]] = ratio
    return G
