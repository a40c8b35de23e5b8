"""Passive quantities and limits of joints: numbers per degree of freedom of a Model, (nv,) each.

    damping     viscous friction: -damping v               armature   inertia of a rotor, adds to M_kk
    friction    dry friction: -friction sign(v)            effort     the largest |tau| of its drive
    stiffness   of a spring that pulls the joint to rest   speed      the |v| up to which its drive pushes
    rest        the displacement from the neutral configuration at which the spring is slack: the coordinate itself,
                or a rotation vector (a twist) where the coordinates include a quaternion
    lower, upper   limits of the coordinate; infinite where a joint has no coordinate that is the integral of v
    stop_stiffness, stop_damping   of the stops at these limits; 0: from the inertia at the joint (`motion.law`)

The rotors of a free joint resist accelerations in its parent's axes, like a mass without weight (`Free.rotor_bias`).
Units: N m, rad and s for rotations, N, m and s for translations; armature in kg m^2 or kg.  All of these act in
`simulate` and `rollout`.  The functions of the dynamics use only the armature: their tau is the total torque at a
joint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.errors import ArgumentError, ModelError
from torsor.model.joints import JOINTS, joint_named
from torsor.validate import real_array, shown

if TYPE_CHECKING:
    from torsor.model.model import Model

Array = NDArray[Any]

# The default of each quantity.
DEFAULTS = {
    "damping": 0.0, "friction": 0.0, "stiffness": 0.0, "rest": 0.0, "armature": 0.0,
    "lower": -inf, "upper": inf, "stop_stiffness": 0.0, "stop_damping": 0.0, "effort": inf, "speed": inf,
}  # fmt: skip


# The number of freedoms per joint code, including that of a fixed joint; and the types with a coordinate per limit.
WIDTHS = np.array([*(joint.nv for joint in JOINTS), 0])
LIMITABLE = np.array([min(joint.limited) >= 0 for joint in JOINTS])


class Freedoms(TypedDict, total=False):
    """The arguments of this file in `Model.tree`: one number for all freedoms, or (nv,)."""

    damping: ArrayLike
    friction: ArrayLike
    stiffness: ArrayLike
    rest: ArrayLike
    armature: ArrayLike
    lower: ArrayLike
    upper: ArrayLike
    stop_stiffness: ArrayLike
    stop_damping: ArrayLike
    effort: ArrayLike
    speed: ArrayLike


def filled(model: Model, key: str) -> Array:
    """A quantity of a model as (nv,), read-only; defaults take no memory."""
    value, default = real_array(key, getattr(model, key), finite=False), DEFAULTS[key]
    if value.item() == default if value.ndim == 0 else (value == default).all():
        return _repeated(default, model.nv)
    if value.shape not in ((), (1,), (model.nv,)):
        raise ArgumentError(f"{key} must be one number, or {model.nv} for {model!r}, not {value.shape}")
    value = value.copy() if value.shape == (model.nv,) else np.full(model.nv, value.item())
    value.flags.writeable = False
    return value


@lru_cache(64)
def _repeated(default: float, nv: int) -> Array:
    return np.broadcast_to(default, (nv,))


def nondefault(model: Model, body: int | None = None) -> dict[str, Array]:
    """The quantities that differ from their defaults, of a model or of one body of it."""
    own = slice(None) if body is None else slice(model.v_start[body], model.v_start[body + 1])
    found = {}
    for key, default in DEFAULTS.items():
        x = getattr(model, key)
        if x is not _repeated(default, model.nv) and (x[own] != default).any():
            found[key] = x[own]
    return found


def one_body(label: str, joint: str, given: Mapping[str, Any]) -> dict[str, Array]:
    """The quantities given for one body, as arrays."""
    rows = {}
    for key, value in _known(given).items():
        count = 0 if joint == "fixed" else joint_named(joint).nv
        found = real_array(f"{label}: {key}", value, finite=False)
        if not count or found.shape not in ((), (count,)):
            raise ArgumentError(f"{label}: {key} = {shown(value)}, but a {joint} joint has {count} freedoms")
        rows[key] = np.broadcast_to(found, (count,))
    return rows


def columns(joints: Sequence[str], rows: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The quantities of bodies given one by one: one array per quantity that some body has."""
    moving = [(joint_named(joint).nv, row) for joint, row in zip(joints, rows) if joint != "fixed"]
    return {
        key: np.concatenate([row.get(key, np.full(nv, default)) for nv, row in moving])
        for key, default in DEFAULTS.items()
        if any(key in row for row in rows)
    }


def reordered(given: Mapping[str, Any], joint: Array, order: Array) -> dict[str, Array]:
    """The quantities of bodies with these joint codes, for the bodies order[0], order[1], ... of them.

    A code beyond those of `JOINTS` is a fixed joint, which has no freedoms.
    """
    found = {}
    widths = WIDTHS[np.minimum(joint, len(JOINTS))]
    ends = np.cumsum(widths)
    first, count = (ends - widths)[order], widths[order]
    place = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(count.sum())
    for key, value in _known(given).items():
        values = real_array(key, value, finite=False)
        if values.shape not in ((), (1,), (ends[-1],)):
            raise ArgumentError(f"{key} must be one number, or one for each of {ends[-1]} freedoms, not {values.shape}")
        found[key] = values[place] if values.size > 1 else values
    return found


def check_freedoms(model: Model) -> None:
    """Raise a ModelError that names the body of an invalid number."""
    for key, bad, why in faults(model, nondefault(model)):
        _refuse(model, key, bad, why)


def faults(model: Model, given: Mapping[str, Array]) -> Iterator[tuple[str, Array, str]]:
    """For quantities (..., nv): name, mask of invalid numbers, and reason; missing quantities are those of the
    model."""
    for key, x in given.items():
        infinite = np.isinf(DEFAULTS[key])
        bad = np.isnan(x) if infinite else ~np.isfinite(x)
        yield key, bad, "it must be a number" if infinite else "it must be finite"
        if key not in ("rest", "lower", "upper"):
            yield key, x < 0, "it must not be negative"
    if "lower" in given or "upper" in given:
        lower, upper = (given.get(key, getattr(model, key)) for key in ("lower", "upper"))
        yield "lower", lower > upper, "it exceeds upper"
        if not LIMITABLE[model.joint].all():
            limited, why = np.isfinite(lower) | np.isfinite(upper), "no coordinate of this joint is the integral of its"
            yield "lower", limited & (limited_coordinates(model) < 0), f"{why} velocity, so limits mean nothing"


def limited_coordinates(model: Model) -> Array:
    """(nv,) the coordinate that the limits of each freedom bound; -1 if there is none."""
    coordinates = np.zeros(model.nv, dtype=np.int64)
    for joint, q_columns, v_columns in model.joint_groups:
        limited = np.array(joint.limited)
        coordinates[v_columns] = np.where(limited >= 0, q_columns[:, limited], -1)
    return coordinates


def coordinate_bounds(model: Model) -> tuple[Array, Array]:
    """Limits of the coordinates (nq,); those of followers limit their leaders, too."""
    lower, upper = np.full(model.nq, -np.inf), np.full(model.nq, np.inf)
    coordinate = limited_coordinates(model)
    known = coordinate >= 0
    lower[coordinate[known]], upper[coordinate[known]] = model.lower[known], model.upper[known]
    for follower, leader, ratio, offset in model.couplings:
        f, k = model.q_start[follower], model.q_start[leader]
        ends = [lower[f] - offset, upper[f] - offset]
        if ratio:
            least, most = sorted(end / ratio for end in ends)
            lower[k], upper[k] = max(lower[k], least), min(upper[k], most)
        if lower[k] > upper[k] or (not ratio and not ends[0] <= 0 <= ends[1]):
            names = (model.joint_names[i] for i in (follower, leader))
            raise ArgumentError(
                "the limits of joint {!r} and those of {!r}, which it follows, exclude each other: mend them, or give "
                "limits=False".format(*names)
            )
    return lower, upper


def _refuse(model: Model, key: str, bad: Array, why: str) -> None:
    for k in np.flatnonzero(bad)[:1] if bad.any() else ():
        body = int(np.searchsorted(model.v_start, k, side="right")) - 1
        raise ModelError(f"body {model.names[body]!r} (index {body}): {key} = {getattr(model, key)[k]}; {why}")


def _known(given: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in given:
        if key not in DEFAULTS:
            raise TypeError(f"unexpected keyword argument {key!r}")
    return given
