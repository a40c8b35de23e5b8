"""Repairs of robot files: impossible inertias, and joints that move nothing.

A body is changed as little as possible to make it physically possible.  A joint that moves nothing (a gripper or a
virtual link without mass, a point mass on the axis) makes M singular.  It gets a rotor with a share of the inertia of
its parent link, which adds only to its own entry of M.  The joint can then be driven and simulated, and otherwise
rests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms.articulated import pivots
from torsor.errors import ModelError
from torsor.model import JOINTS, Model
from torsor.model.check import INERTIA_TOLERANCE
from torsor.model.extras import Note
from torsor.model.joints import METRE
from torsor.reference import evaluate

Array = NDArray[Any]

ONE = np.eye(3)
# A massless link that carries no mass becomes a ball of this share of the moving mass, with this radius of
# gyration (m): a Model needs it, and it affects neither M nor the bias.
SPECK, EXTENT = 1e-14, 0.3
WEIGHTLESS = 1e-13  # kg assumed for the moving mass of a robot without mass
# The assumed parent if no link above a joint has mass: a ball of the mean mass, or of this many kg if there is no mass.
ALONE, RADIUS = 1.0, 0.1
POINT = 1e-3  # the radius of gyration (m) below which a link is a point, on which nothing is modelled
# A joint moves nothing if its articulated inertia is below IDLE, relative to its parent link; its rotor has ROTOR.
IDLE, ROTOR = 1e-9, 1e-2
FLAT = 1e-12  # of the trace: the margin of a repaired inertia from the impossible, so that other engines accept it


def repair_bodies(fields: dict[str, Any], notes: list[Note]) -> Array:
    """Change the bodies among the fields of a Model as little as possible to make them physically possible.

    Returns which of them have mass or inertia of their own.
    """
    names, parent = fields["names"], fields["parent"]
    mass, com, inertia = (np.array(fields[key]) for key in ("mass", "com", "inertia"))
    for i in np.flatnonzero(mass < 0)[:1]:
        raise ModelError(f"link {names[i]!r}: mass {mass[i]:g} is negative")
    _check_finite(mass, inertia, names)
    com[mass == 0] = 0.0
    if not mass.any() and not inertia.any():
        words = "no link that moves has a mass: it weighs nothing, and all inertias are invented"
        notes.append(Note("invented", f"{len(mass)} links", words))
    speck = SPECK * (float(mass.sum()) or WEIGHTLESS)
    spread = inertia.any(axis=(1, 2))
    massive = (mass > IDLE * mass.max()) | spread
    for i in np.flatnonzero((mass == 0) & spread):
        mass[i] = speck
        notes.append(Note("repair", f"link {names[i]!r}", f"it has an inertia but no mass: mass 0 -> {speck:.3g} kg"))
    for i in np.flatnonzero(spread & _impossible(np.linalg.eigvalsh(inertia))):
        possible = nearest_possible(inertia[i])
        words = f"no body has principal moments of inertia {_moments(inertia[i])}: -> {_moments(possible)} kg m^2"
        notes.append(Note("repair", f"link {names[i]!r}", words))
        inertia[i] = possible
    for i in np.flatnonzero(~_carrying(parent, mass > 0)):
        mass[i], inertia[i] = speck, speck * EXTENT**2 * ONE
    moments = np.linalg.eigvalsh(inertia)
    thin = (mass > 0) & (moments[:, 0] <= 2 * INERTIA_TOLERANCE * moments.sum(axis=1))
    fields |= {"mass": mass, "com": com, "inertia": inertia, "allow_degenerate": bool(thin.any())}
    return massive


def note_fixed(links: Sequence[Any], notes: list[Note]) -> None:
    """Note fixed links that are impossible alone, even if the links they are fixed to compensate."""
    fixed = [link for link in links if link.joint == "fixed" and np.any(link.inertia)]
    inertia = np.array([link.inertia for link in fixed]).reshape(-1, 3, 3)
    _check_finite(np.zeros(len(fixed)), inertia, [link.name for link in fixed])
    for i in np.flatnonzero(_impossible(np.linalg.eigvalsh(inertia))):
        words = f"no body has principal moments of inertia {_moments(inertia[i])}; it is part of the one it is fixed to"
        notes.append(Note("read", f"link {fixed[i].name!r}", words))


def _check_finite(mass: Array, inertia: Array, names: Sequence[str]) -> None:
    """Refuse numbers so large that sums of them overflow."""
    for i in np.flatnonzero(~np.isfinite(np.abs(inertia).sum(axis=(1, 2)) * 4 + mass * len(mass)))[:1]:
        raise ModelError(f"link {names[i]!r}: its mass or inertia is too large to compute with")


def _impossible(moments: Array) -> Array:
    """Whether tr(I)/2 1 - I = integral of r r' dm is not positive semidefinite (see `check.py`)."""
    trace = moments.sum(axis=1)
    return trace / 2 - moments[:, 2] < -0.5 * INERTIA_TOLERANCE * np.abs(trace)


def nearest_possible(I: Array) -> Array:
    """The inertia whose integral of r r' dm is the nearest positive matrix (in the Frobenius norm)."""
    values, axes = np.linalg.eigh(np.trace(I) / 2 * ONE - I)
    spread = (axes * np.maximum(values, FLAT * np.abs(values).sum())) @ axes.T
    return np.trace(spread) * ONE - (spread + spread.T) / 2


def _moments(I: Array) -> str:
    return "(" + ", ".join(f"{x:.6g}" for x in np.linalg.eigvalsh(I)) + ")"


def _carrying(parent: Array, massive: Array) -> Array:
    """Which bodies are massive, or carry one that is."""
    carries = massive.copy()
    for i in range(len(massive) - 1, -1, -1):
        if carries[i] and parent[i] >= 0:
            carries[parent[i]] = True
    return carries


def with_rotors(model: Model, massive: Array, notes: list[Note]) -> Model:
    """The model with a rotor on every joint that moves nothing, in its neutral configuration or in another one.

    A joint that carries nothing `massive` moves nothing.  Another joint can move nothing only if there are points, rods
    or bodies of little mass: articulated inertias are computed only then.
    """
    carries, moments = _carrying(model.parent, massive), np.linalg.eigvalsh(model.inertia)
    thin = carries & (~_heavy(model) | (moments[:, 0] <= IDLE * moments[:, 2]))
    if carries.all() and not thin.any():
        return model
    scale, hosts = _hosts(model, massive)
    least = np.full(model.nv, np.inf)
    if thin.any():
        safe = replace(model, armature=model.armature + 1e-6 * IDLE * scale)  # no division by zero
        states = safe.neutral(), safe.random_configuration(0)
        least = np.min([evaluate(pivots, safe, {"q": q.tolist()}) for q in states], axis=0)
    armature = np.array(model.armature)
    for i in range(model.n):
        own = slice(*model.v_start[i : i + 2].tolist())
        if carries[i] and (least[own] > IDLE * scale[own]).all():
            continue
        armature[own] += ROTOR * scale[own]
        units = ["kg" if unit == METRE else "kg m^2" for _, unit in JOINTS[model.joint[i]].velocities]
        size = ", ".join(f"{x:.3g} {unit}" for x, unit in zip(ROTOR * scale[own], units))
        words = f"its joint moves nothing, so M would be singular: a rotor holds it, {size} ({ROTOR:.0%} of {hosts[i]})"
        notes.append(Note("repair", f"link {model.names[i]!r}", words))
    return replace(model, armature=armature) if (armature != model.armature).any() else model


def _heavy(model: Model) -> Array:
    return model.mass > IDLE * model.mass.max()


def _hosts(model: Model, massive: Array) -> tuple[Array, list[str]]:
    """For each freedom the mass or mean moment of inertia of the nearest massive ancestor, and its name."""
    mass, moment = model.mass, np.trace(model.inertia, axis1=1, axis2=2) / 3
    mean = float(mass[massive].mean()) if massive.any() else ALONE
    heavy = massive & _heavy(model) & (moment > mass * POINT**2)
    found: list[tuple[float, float, str]] = []
    scale: list[float] = []
    for i, above in enumerate(model.parent.tolist()):
        usual = (mean, mean * RADIUS**2, f"a ball of {mean:.3g} kg")
        if above >= 0:
            usual = (mass[above], moment[above], repr(model.names[above])) if heavy[above] else found[above]
        found.append(usual)
        scale += [usual[0] if unit == METRE else usual[1] for _, unit in JOINTS[model.joint[i]].velocities]
    return np.array(scale), [words for _, _, words in found]
