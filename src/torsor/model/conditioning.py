"""How many digits an algorithm can lose on a model: bounds that hold for every configuration.

The articulated sweeps are the reference (docs/accuracy.md).  Other methods keep their digits on most machines; this
file decides once per model whether they do.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.model.joints import JOINTS, METRE, RADIAN
from torsor.model.model import Model

Array = NDArray[Any]

# Factoring M loses digits in the ratio of a diagonal entry to its pivot.  On 1900 random stiff arms the error was at
# most twice this ratio times that of the sweeps, often close to it: method="auto" loses two digits at most.
EVEN = 1e2
# Regrouped masses (`compiler.frames.regroup`) were at most 25 times less accurate on arms of 30 joints up to this
# ratio; beyond it, up to 1e5 times.
REGROUPED = 1e6
# Bounds are cached only for this many models: a cache keeps its models, and all code compiled for them, alive.
FEW_MODELS = 4


@lru_cache(maxsize=FEW_MODELS)
def pivot_ratio(model: Model) -> float:
    """A bound on M_ii / d_i over all freedoms i and all configurations, d_i the pivots of M = L^T D L."""
    return float(pivot_ratios(model).max())


@lru_cache(maxsize=FEW_MODELS)
def may_regroup(model: Model) -> bool:
    """Whether masses can be regrouped without losing digits.

    Masses move across constant placements, so the travel of sliding joints does not matter.  Massless bodies lose
    nothing: no loss was seen on arms in which every other body was massless.
    """
    return bool(pivot_ratios(model, slide=0.0)[model.mass > 0].max() <= REGROUPED)


def pivot_ratios(model: Model, slide: float = np.inf) -> Array:
    """Per body, a bound on M_ii / d_i for its freedoms, in any configuration.

    A pivot is the inertia that freedom i moves when all freedoms beyond it are free: at least that of its own body.  A
    diagonal entry is the inertia that it moves when these are locked: at most that of all bodies that it carries, with
    the chain stretched out.  `slide` is the largest displacement of sliding joints.
    """
    slides = np.array([joint.slides for joint in JOINTS])[model.joint]
    step = np.linalg.norm(model.p, axis=1) + np.where(slides, slide, 0.0)
    square = np.einsum("ni,ni->n", model.com, model.com)
    about_joint = model.inertia + model.mass[:, None, None] * (
        square[:, None, None] * np.eye(3) - model.com[:, :, None] * model.com[:, None, :]
    )
    carried = model.mass.copy()
    moment = np.trace(about_joint, axis1=1, axis2=2) / 2  # sum of m r^2, an upper bound of the moments of inertia
    for i in range(model.n - 1, -1, -1):
        if (parent := model.parent[i]) >= 0:
            moment[parent] += (np.sqrt(moment[i]) + step[i] * np.sqrt(carried[i])) ** 2
            carried[parent] += carried[i]
    with np.errstate(divide="ignore", invalid="ignore"):
        turning, sliding = _own_inertias(model, about_joint, square)
        along = model.pitch**2  # a helical joint turns and slides together
        turned = np.where(np.isinf(turning), 0.0, (moment + along * carried) / (turning + along * model.mass))
        ratios = np.maximum(turned, carried / sliding)
    return np.where(np.isnan(ratios), np.inf, ratios)  # NaN: neither the body nor those it carries have an inertia


def _own_inertias(model: Model, about_joint: Array, square: Array) -> tuple[Array, Array]:
    """The least inertia of the own body in rotation and in translation; infinite without such a freedom."""
    smallest, central = (np.linalg.eigvalsh(I)[:, 0].clip(0.0) for I in (about_joint, model.inertia))
    shifted = 1 / (1 / model.mass + square / central)  # the body is free to turn
    about_axis = np.einsum("ni,nij,nj->n", model.axis, about_joint, model.axis)
    one, turns, shifts, slides = (
        np.array(facts)[model.joint]
        for facts in (
            [joint.axial and joint.nv == 1 for joint in JOINTS],
            [any(unit == RADIAN for _, unit in joint.velocities) for joint in JOINTS],
            [any(unit == METRE for _, unit in joint.velocities) for joint in JOINTS],
            [joint.slides for joint in JOINTS],
        )
    )
    turning = np.where(one, about_axis, np.where(slides, central, smallest))
    return np.where(turns, turning, np.inf), np.where(shifts, np.where(one, model.mass, shifted), np.inf)
