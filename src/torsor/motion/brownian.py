"""Brownian dynamics of chains with rigid bonds, with and without Fixman's correction.

M. Fixman, Simulation of polymer dynamics. 1. General theory, J. Chem. Phys. 69 (1978): reference 2 of Lee & Chirikjian
2005. Friction is proportional to mass. With friction over mass as the unit of 1 / time, the mobility of the joint
coordinates is M^-1, and a step is

    R = sqrt(2 kT dt) W(q) xi,              M = W W^T,   xi white noise
    q' = q + M(q)^-1 (F dt + R) / 2
    q  = q + M(q')^-1 (F dt + R)            the random force R is the same, the mobility that of the middle

in O(n). Taking the mobility in the middle adds the drift kT div M^-1 that the changing mobility needs. With rigid bonds

    F = tau + (kT/2) d log det M / dq       q is visited with the weight sqrt(det M) exp(-U / kT)

and with Fixman's force, -(kT/2) d log det M / dq, as part of tau the weight is exp(-U / kT), as of stiff springs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.dynamics import functions as dynamics
from torsor.dynamics.factor import mass_factor
from torsor.errors import ArgumentError
from torsor.model.model import Model, require_model
from torsor.validate import function, generator, integer, number, real_array

Array = NDArray[Any]
Forces = Callable[[Array], ArrayLike]


def brownian(
    model: Model, q: ArrayLike, *, steps: int, dt: float, kT: float = 1.0, forces: Forces | None = None,
    every: int = 1, rng: int | np.random.Generator | None = None,
) -> Array:  # fmt: skip
    """q (records, ..., nq) after every `every` steps of Brownian dynamics from q (..., nq): batch axes are replicas.

    dt          times friction over mass
    forces      q (..., nq) -> tau (..., nv), for example of a potential; gravity does not act. Among them may be
                `ts.fixman_force`: then q has the weights of stiff bonds, not of rigid ones
    """
    require_model(model)
    if model.nq != model.nv:
        raise ArgumentError(f"{model!r} has joints with quaternions; Brownian dynamics takes joints without them")
    steps, every = integer("steps", steps, least=1), integer("every", every, least=1)
    dt, kT = number("dt", dt, above=0), number("kT", kT, above=0)
    if forces is not None:
        function("forces", forces)
    q = real_array("q", q).copy()
    if q.ndim == 0 or q.shape[-1] != model.nq:
        raise ArgumentError(f"q has shape {q.shape}; {model!r} needs (..., {model.nq})")
    noise, records = generator("rng", rng), []
    for k in range(steps):
        push = 0.5 * kT * dynamics.log_det_gradient(model, q)
        if forces is not None:
            push = push + np.broadcast_to(np.asarray(forces(q), dtype=np.float64), q.shape)
        random = mass_factor(model, q).apply(noise.normal(size=q.shape))
        impulse = push * dt + np.sqrt(2 * kT * dt) * random
        middle = q + 0.5 * dynamics.mass_solve(model, q, impulse)
        q = q + dynamics.mass_solve(model, middle, impulse)
        if (k + 1) % every == 0:
            records.append(q.copy())
    return np.array(records).reshape(len(records), *q.shape)
