"""The showcase of `torsor simulate NAME` without motion options: a suitable start and suitable forces."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.dynamics import functions as dynamics
from torsor.model.freedoms import limited_coordinates, nondefault
from torsor.model.model import Model
from torsor.motion.forces import Friction, Limits, Spring
from torsor.motion.law import felt_inertia
from torsor.view.controls import single_joints
from torsor.view.limbs import is_floating

Array = NDArray[Any]

PIN = 2 * np.pi * 5  # rad/s, of the spring that holds a pinned base: it sags by 1 cm
ASIDE = np.pi / 3  # initial deflection of a machine that would otherwise hang at rest
STILL = 1e-3  # of the weight times the reach: smaller torques count as rest
COAST = 1.0  # s in which friction takes 63 % of the speed of a joint that moves alone
TURN, SHIFT = np.radians(165), 0.5  # limits of joints for which the file gives none (rad; relative to the reach)


class Showcase(NamedTuple):
    """A start, forces, and their description."""

    q0: Array
    forces: list[Any]
    words: list[str]


def showcase(model: Model) -> Showcase:
    """A motion that shows a machine: it falls against friction and stops; a floating base is pinned."""
    q0, forces, words = started(model), resistance(model), list[str]()
    names = {Friction: "its joints have viscous friction", Limits: f"its joints stop at {np.degrees(TURN):.0f} degrees"}
    roots = floating(model)
    if roots:
        forces.append(_pins(model, roots, q0))
        words.append("its base is pinned")
    return Showcase(q0, forces, [*words, *(names[type(force)] for force in forces if type(force) in names)])


def resistance(model: Model) -> list[Any]:
    """Friction and stops of the joints, where a model has none."""
    forces, own = list[Any](), nondefault(model)
    if not own.keys() & {"damping", "friction"}:
        forces.append(Friction(viscous=_viscous(model, floating(model))))
    if single_joints(model) and not own.keys() & {"lower", "upper"}:
        forces.append(Limits(*_limits(model)))
    return forces


def floating(model: Model) -> list[int]:
    """The bodies that are floating bases."""
    return [i for i in range(model.n) if is_floating(model, i)]


def started(model: Model) -> Array:
    """The configuration of the file; for a machine that would hang at rest there, a deflected one."""
    q = shown_configuration(model)
    return q if floating(model) or not _is_at_rest(model, q) else _aside(model, q)


def shown_configuration(model: Model) -> Array:
    """The first keyframe if the file has some, else the neutral configuration, moved into the limits."""
    if model.keyframes:
        return next(iter(model.keyframes.values()))
    q, coordinate = model.neutral(), limited_coordinates(model)
    known = coordinate >= 0
    q[coordinate[known]] = np.clip(q[coordinate[known]], model.lower[known], model.upper[known])
    return q


def _pins(model: Model, roots: list[int], q0: Array) -> Spring:
    """Springs and dampers that hold the positions of floating bases, not their attitudes."""
    stiffness, mass = np.zeros(model.nv), float(model.mass.sum())
    for i in roots:
        stiffness[model.v_start[i + 1] - 3 : model.v_start[i + 1]] = mass * PIN**2
    return Spring(stiffness, rest=q0, damping=2 * stiffness / PIN)


def _is_at_rest(model: Model, q: Array) -> bool:
    weight = float(model.mass.sum() * np.linalg.norm(model.gravity))
    reach = float(np.linalg.norm(model.p, axis=1).sum() + np.linalg.norm(model.com, axis=1).max())
    return bool(np.abs(dynamics.gravity_forces(model, q)).max() <= STILL * weight * reach)


def _aside(model: Model, q: Array) -> Array:
    """Deflect the first coordinate of the first joint that has an effect."""
    for k in range(model.nv):
        dv = np.zeros(model.nv)
        dv[k] = ASIDE
        if not _is_at_rest(model, turned := model.integrate(q, dv)):
            return turned
    return q


def _viscous(model: Model, roots: list[int]) -> Array:
    found = felt_inertia(model) / COAST
    for i in roots:
        found[model.v_start[i] : model.v_start[i + 1]] = 0.0
    return found


def _limits(model: Model) -> tuple[Array, Array]:
    upper = np.full(model.nv, np.inf)
    reach = float(np.linalg.norm(model.p, axis=1).sum())
    for _, _, v, unit in single_joints(model):
        upper[v] = TURN if unit == "rad" else SHIFT * reach
    return -upper, upper
