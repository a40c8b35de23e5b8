"""A batch of models as one structure and arrays of numbers: the numbers that differ become inputs of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.compiler.frames import (
    FORMS,
    GIVEN,
    Framed,
    Kind,
    absorbed_children,
    framed,
    keep_digits,
    reframe,
    short_frames,
    short_inertias,
)
from torsor.compiler.store import Store
from torsor.model.batch import INERTIAL, ModelBatch
from torsor.model.joints import JOINTS
from torsor.model.model import Model

Array = NDArray[Any]

MOST_STRUCTURES = 32  # structures whose programs are kept


@dataclass(frozen=True, eq=False)
class Members:
    """The members of a batch.

    frames   the first member in its short frames; its kinds are general enough for all members
    inputs   the numbers that differ, (*shape, n, 10), ... and (*shape, 3): `torsor.inputs.MEMBERS`
    """

    frames: Framed
    inputs: Mapping[str, Array]

    @cached_property
    def key(self) -> str:
        """A hash of the structure and of the numbers that do not differ: the key of compiled programs."""
        model, digest = self.frames.model, blake2b(digest_size=16)
        digest.update(repr((self.frames.kinds, tuple(self.inputs))).encode())
        if model.couplings:
            digest.update(repr(model.couplings).encode())
        for array in (model.parent, self.frames.kind, *([] if "gravities" in self.inputs else [model.gravity])):
            digest.update(array.tobytes())
        given = {name for key in GIVEN if key in self.inputs for name in GIVEN[key]}
        for name, numbers in self.frames.numbers.items():
            if name not in given:
                digest.update(numbers.tobytes())
        return digest.hexdigest()

    @property
    def store(self) -> Store:
        """The store of this structure."""
        return _structure(self.key)


@lru_cache(maxsize=MOST_STRUCTURES)
def _structure(key: str) -> Store:
    return Store()


def members(batch: ModelBatch) -> Members:
    """The members of a batch, framed once; after `replaced`, only the replaced rows of `inputs` are framed again."""
    found = vars(batch).get("framed")
    if found is None or not all(_written(found, *some) for some in batch.replacements):
        found = vars(batch)["framed"] = _members(batch)
    batch.replacements.clear()
    return found


def _written(found: Members, index: Any, some: ModelBatch) -> bool:
    """Write the numbers of replaced members into the inputs, unless their structure differs."""
    own = _members(some)
    if (own.frames is not found.frames or own.inputs.keys() != found.inputs.keys()) and own.key != found.key:
        return False
    for name, x in found.inputs.items():
        x[index] = own.inputs[name]
    return True


def _members(batch: ModelBatch) -> Members:
    varied = batch.varied
    frames, inputs = _framed(batch)
    if "armature" in varied:
        frames = _with_rotors(frames)
        inputs["armatures"] = _rows(batch.model, varied["armature"])
    if "gravity" in varied:
        inputs["gravities"] = varied["gravity"].copy()
    if not inputs and batch.shape:  # members that differ only in their joints: add an input with their batch axes
        inputs["gravities"] = np.tile(batch.model.gravity, (*batch.shape, 1))
    return Members(frames, inputs)


def _framed(batch: ModelBatch) -> tuple[Framed, dict[str, Array]]:
    """The frames, and the inertias and placements that differ."""
    model, varied = batch.model, batch.varied
    if not batch.same_placements:
        return _reframed(batch)
    if not any(name in varied for name in (*INERTIAL, "armature")):
        return framed(model), {}
    frames = short_frames(model)  # its kinds do not depend on inertias and rotors
    own = {name: getattr(model, name) for name in INERTIAL}
    if not varied.keys() & own.keys():
        return frames, {}
    fields = [np.broadcast_to(varied.get(name, x), batch.shape + x.shape) for name, x in own.items()]
    return (frames, {"inertias": short_inertias(frames, *fields)}) if keep_digits(frames, *fields) else _reframed(batch)


def _with_rotors(frames: Framed) -> Framed:
    """The same, with rotors at every joint, so that a member's bits do not depend on the rotors of other members."""
    turning = [kind._replace(rotors=True) for kind in frames.kinds]
    kinds = tuple(sorted(set(turning)))
    place = np.array([kinds.index(kind) for kind in turning], np.int32)
    return replace(frames, kinds=kinds, kind=place[frames.kind])


def _rows(model: Model, x: Array) -> Array:
    """Numbers of the freedoms (..., nv) as rows of the bodies (..., n, 6), filled up with zeros."""
    freedom = np.arange(model.nv)
    body = np.searchsorted(model.v_start, freedom, side="right") - 1
    rows = np.zeros((*x.shape[:-1], model.n, len(GIVEN["armatures"])))
    rows[..., body, freedom - model.v_start[body]] = x
    return rows


def _reframed(batch: ModelBatch) -> tuple[Framed, dict[str, Array]]:
    """Every member in its own short frames.

    The forms of the placements do not depend on the numbers, so a member gives the same bits in any batch, unless a
    body is so small that its origin must stay at its joint (`frames.FAR`).
    """
    model, forest = batch.model, reframe(batch.forest)
    form = np.array([FORMS.index(kind.form) for kind in forest.kinds])[forest.kind].reshape(-1, model.n)
    general = np.bitwise_or.reduce(form, axis=0) | _general_forms(model)
    rotors = [forest.kinds[k].rotors for k in forest.kind[: model.n]]
    pairs = [Kind(JOINTS[code].name, FORMS[k], r) for code, k, r in zip(model.joint, general, rotors)]
    kinds = tuple(sorted(set(pairs)))
    numbers = {name: x.reshape(-1, model.n) for name, x in forest.numbers.items()}
    first = {name: x[0] for name, x in numbers.items()}
    frames = Framed(model, kinds, np.array([kinds.index(pair) for pair in pairs], np.int32), first)
    given: dict[str, Array] = {}
    for key in ("inertias", "placements"):
        stacked = np.stack([numbers[name][: batch.size] for name in GIVEN[key]], axis=-1)
        given[key] = stacked.reshape(*batch.shape, model.n, len(GIVEN[key]))
    return frames, given


def _general_forms(model: Model) -> Array:
    """For each body, the most general form in `FORMS`: without the first screw if the parent absorbs it."""
    absorbed, axial = absorbed_children(model), np.array([joint.axial for joint in JOINTS])[model.joint]
    form = np.full(model.n, FORMS.index("zyxz"))
    form[absorbed[(absorbed >= 0) & axial]] = FORMS.index("yxz")
    return form
