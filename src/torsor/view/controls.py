"""The controls and readings of a page: joints, torques, limits, and curves over time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import isfinite, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.dynamics import functions as dynamics
from torsor.model.freedoms import limited_coordinates
from torsor.model.joints import JOINTS, METRE, RADIAN
from torsor.model.model import Model
from torsor.motion.trajectory import Trajectory
from torsor.view.limbs import limbs
from torsor.view.tube import floats

Array = NDArray[Any]

TURN, SHIFT = pi, 1.0  # the range of a joint without limits (rad, m)
MOST_SLIDERS = 120
MOST_NUMBERS = 400_000  # in the curves of a page


def single_joints(model: Model) -> list[tuple[int, int, int, str]]:
    """(body, index in q, index in v, unit) of the joints with one coordinate that follow no other."""
    followers = {coupling.follower for coupling in model.couplings}
    found = []
    for i, (begin, end) in enumerate(pairwise(model.q_start.tolist())):
        if end - begin == 1 and i not in followers:
            found.append((i, begin, int(model.v_start[i]), JOINTS[model.joint[i]].coordinates[0][1]))
    return found


def joint_sliders(model: Model) -> list[dict[str, Any]]:
    """The joints that the user can turn, with their limits."""
    result = []
    for body, at, v, unit in single_joints(model)[:MOST_SLIDERS]:
        most = TURN if unit == "rad" else SHIFT
        limits = [float(model.lower[v]), float(model.upper[v])]
        low, high = (x if isfinite(x) else side * most for x, side in zip(limits, (-1, 1)))
        shown = _position_units(model)[unit]
        numbers = {"at": at, "low": low, "high": high, "unit": shown, "limited": all(map(isfinite, limits))}
        result.append({"name": model.joint_names[body], **numbers})
    return result


def torque_sliders(model: Model, scale: float) -> list[dict[str, Any]]:
    """The joints on which the user can push; `scale`: the largest torque (N m) of a joint without a limit."""
    result = []
    for body, _, v, unit in single_joints(model)[:MOST_SLIDERS]:
        effort = float(model.effort[v])
        most = effort if isfinite(effort) and effort > 0 else scale
        result.append({"name": model.joint_names[body], "at": v, "most": most, "unit": force_units(model)[unit]})
    return result


def _position_units(model: Model) -> dict[str, str]:
    """The unit of a coordinate as the model states it."""
    return {RADIAN: RADIAN, METRE: model.units.length}


def force_units(model: Model) -> dict[str, str]:
    """The unit of a generalised force, by the unit of the coordinate."""
    return {RADIAN: model.units.torque, METRE: model.units.force}


def limits_of(model: Model, body: int) -> list[list[Any]]:
    """[lower, upper, unit] of every freedom of a body that has a limit; None for none."""
    freedoms = range(model.v_start[body], model.v_start[body + 1])
    units = [_position_units(model)[unit] for _, unit in JOINTS[model.joint[body]].velocities]
    pairs = [[float(x) if isfinite(x) else None for x in (model.lower[v], model.upper[v])] for v in freedoms]
    return [[*pair, unit] for pair, unit, v in zip(pairs, units, freedoms) if limited_coordinates(model)[v] >= 0]


def columns(model: Model, with_torques: bool = True) -> dict[str, list[dict[str, Any]]]:
    """The curves of a page by quantity: name, unit, limb and index."""
    found, names = limbs(model), limbs(model).names
    single = single_joints(model)

    def rows(place: int, unit_of: Any) -> list[dict[str, Any]]:
        return [
            {"name": model.joint_names[i], "unit": unit_of(unit), "limb": names[found.of[i]], "at": (at, v)[place]}
            for i, at, v, unit in single
        ]

    position = _position_units(model).__getitem__
    quantities = {"q": rows(0, position), "v": rows(1, lambda x: f"{position(x)}/{model.units.time}")} if single else {}
    if with_torques and single:
        quantities["tau"] = rows(1, force_units(model).get)
    parts = [{"name": name, "unit": model.units.energy, "limb": ""} for name in ("kinetic", "potential", "sum")]
    return {"energy": parts, **quantities}


def series(run: Trajectory, t: Array) -> dict[str, str]:
    """The numbers of `columns` at some times; nothing for machines of very many joints."""
    model, wanted = run.model, columns(run.model, run.tau is not None)
    q, v = run.at(t)
    energies = [dynamics.kinetic_energy(model, q, v), dynamics.potential_energy(model, q)]
    rows = {"q": q, "v": v}
    if run.tau is not None:
        rows["tau"] = np.stack([np.interp(t, run.t, x) for x in np.asarray(run.tau).T], axis=-1)
    found = {"energy": np.stack([*energies, sum(energies)], axis=-1)}
    for name in rows.keys() & wanted.keys():
        found[name] = rows[name][:, [x["at"] for x in wanted[name]]]
    return {name: floats(x) for name, x in found.items()} if sum(x.size for x in found.values()) <= MOST_NUMBERS else {}


def couplings(model: Model) -> Iterator[list[float]]:
    """For every joint that follows another: its index in q, that of the other, ratio and offset."""
    for follower, leader, ratio, offset in model.couplings:
        yield [int(model.q_start[follower]), int(model.q_start[leader]), ratio, offset]
