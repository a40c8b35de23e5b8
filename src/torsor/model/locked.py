"""A model with some joints locked: their bodies merge into their parents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.errors import ArgumentError, ModelError
from torsor.linalg import Vec
from torsor.model.builder import assemble
from torsor.model.extras import Actuator, Extras
from torsor.model.freedoms import nondefault
from torsor.model.joints import JOINTS
from torsor.model.links import links
from torsor.model.names import Frame
from torsor.model.portable import product, turned
from torsor.validate import real_array, shown

if TYPE_CHECKING:
    from torsor.model.model import Model

Array = NDArray[Any]
BODIES = ("axis", "pitch", "R", "p", "mass", "com", "inertia")


def locked(model: Model, joints: Mapping[str, ArrayLike]) -> Model:
    fixed = _positions(model, joints)
    if len(fixed) == model.n:
        raise ModelError(f"all joints of {model!r} are locked: nothing is left that moves")
    rows: dict[str, Any] = {name: getattr(model, name).copy() for name in BODIES}
    every = links(model)
    for i, q in fixed.items():
        f = every[i].pose(Vec.of(q.tolist())).as_rigid()
        rows["R"][i], rows["p"][i], rows["pitch"][i] = np.array(f.R), np.array(f.p), 0.0
    names = tuple(model.names)
    types = ["fixed" if i in fixed else JOINTS[code].name for i, code in enumerate(model.joint.tolist())]
    left_q, left_v = (_remaining(start, fixed) for start in (model.q_start, model.v_start))
    rest: dict[str, Any] = {key: x[left_v] for key, x in nondefault(model).items()}
    words = {name: getattr(model, name) for name in ("name", "gravity", "allow_degenerate")}
    fields = assemble(model.parent, types, names=names, **words, **rows, **rest)
    places: dict[int, Frame] = {-1: Frame(-1, np.eye(3), np.zeros(3))}
    for i, name in enumerate(names):
        places[i] = fields["frames"][name] if i in fixed else Frame(fields["names"].index(name), np.eye(3), np.zeros(3))
    fields["frames"] |= {name: _on(places[frame.body], frame.R, frame.p) for name, frame in model.frames.items()}
    return type(model)(**fields, extras=_extras(model, fixed, places, left_q, left_v))


def _positions(model: Model, joints: Mapping[str, ArrayLike]) -> dict[int, Array]:
    """The coordinates of every locked joint; joints that follow a locked one are locked at their coupled positions."""
    if not isinstance(joints, Mapping):
        raise ArgumentError(f'joints must be a dictionary such as {{"finger": 0.02}}, not {shown(joints)}')
    q, fixed = model.neutral(), []
    for name, x in joints.items():
        body = model.frame(name).body
        if name in model.frames or body < 0:
            raise ArgumentError(f"{name!r} is a frame, not a joint or a body with one")
        own, width = slice(*model.q_start[body : body + 2]), JOINTS[model.joint[body]].nq
        shapes: list[tuple[int, ...]] = [(width,), ()] if width == 1 else [(width,)]
        q[own] = real_array(f"the position of {name!r}", x, *shapes)
        fixed.append(body)
    for follower, leader, *_ in model.couplings:
        if leader in fixed and follower not in fixed:
            fixed.append(follower)
        elif follower in fixed and leader not in fixed:
            raise ModelError(f"joint {model.names[follower]!r} follows {model.names[leader]!r}: lock that one")
    q = model.coupled(q)
    return {i: q[slice(*model.q_start[i : i + 2])] for i in sorted(fixed)}


def _remaining(start: Array, fixed: Mapping[int, Any]) -> Array:
    """The coordinates, or the freedoms, of the joints that still move."""
    removed = [np.arange(start[i], start[i + 1]) for i in fixed]
    return np.setdiff1d(np.arange(start[-1]), np.concatenate([*removed, np.zeros(0, int)]))


def _on(place: Frame, R: Array, p: Array) -> Frame:
    return Frame(place.body, product(place.R, R), place.p + turned(place.R, p))


def _extras(
    model: Model, fixed: Mapping[int, Any], places: Mapping[int, Frame], left_q: Array, left_v: Array
) -> Extras:
    """Couplings, actuators, keyframes and shapes of the remaining joints."""
    extras, freedom = model.extras, {int(k): i for i, k in enumerate(left_v)}
    visuals = []
    for shape in extras.visuals:
        place = _on(places[shape.body], np.array(shape.R), np.array(shape.p))
        visuals.append(
            shape._replace(body=place.body, R=tuple(map(tuple, place.R.tolist())), p=tuple(place.p.tolist()))
        )
    actuators: list[Actuator] = []
    for actuator in extras.actuators:
        gear = tuple((freedom[k], ratio) for k, ratio in actuator.gear if k in freedom)
        actuators += [actuator._replace(gear=gear)] if gear else []
    return replace(
        extras,
        joint_names=tuple(name for i, name in enumerate(extras.joint_names) if i not in fixed),
        couplings=tuple(
            c._replace(follower=places[c.follower].body, leader=places[c.leader].body)
            for c in extras.couplings
            if c.follower not in fixed
        ),
        actuators=tuple(actuators),
        keyframes={name: tuple(np.asarray(q)[left_q].tolist()) for name, q in extras.keyframes.items()},
        visuals=tuple(visuals),
    )
