"""Machines whose joints follow others: q = ratio q_leader + offset.

With v = G v_free, a coupled machine obeys G' (M G a_free + bias - tau) = 0.  It is exact: the forces that hold the
couplings do no work.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.model.model import Model

Array = NDArray[Any]


def free_freedoms(model: Model) -> Array:
    """The freedoms that follow no other."""
    followers = [int(model.v_start[coupling.follower]) for coupling in model.couplings]
    return np.setdiff1d(np.arange(model.nv), np.array(followers, dtype=int))


def coupling_matrix(model: Model) -> Array:
    """G (nv, k) with v = G v[free_freedoms]."""
    free = free_freedoms(model)
    G = np.zeros((model.nv, len(free)))
    G[free, np.arange(len(free))] = 1.0
    column = {int(k): i for i, k in enumerate(free)}
    for follower, leader, ratio, _ in model.couplings:
        G[model.v_start[follower], column[int(model.v_start[leader])]] = ratio
    return G


def coupled(model: Model, q: Array) -> Array:
    """q (..., nq) with the coordinates of followers set to what their leaders say."""
    q = np.array(q)
    for follower, leader, ratio, offset in model.couplings:
        q[..., model.q_start[follower]] = ratio * q[..., model.q_start[leader]] + offset
    return q
