"""The framing of a batch of models: one structure, and arrays of the numbers that differ.

Compiled code computes the numbers of bodies with other inertias in the same frames, because members of a batch may be
replaced at the end of every episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends.pointwise import compile_pointwise
from torsor.compiler.frames import (
    FAR,
    FORMS,
    GIVEN,
    UPPER,
    Framed,
    Kind,
    absorbed_children,
    framed,
    reframe,
    short_frames,
)
from torsor.compiler.members import Members
from torsor.linalg import Mat, Scalar, Vec, absolute, maximum
from torsor.model.batch import INERTIAL, ModelBatch
from torsor.model.check import INERTIA_TOLERANCE
from torsor.model.freedoms import DEFAULTS, faults
from torsor.model.joints import JOINTS
from torsor.model.model import Model

Array = NDArray[Any]


def members(batch: ModelBatch) -> Members:
    """The members of a batch, framed once; when members are replaced, only their rows of `inputs` change."""
    found = vars(batch).get("framed")
    if found is None or not all(found.written(*some) for some in batch.replacements):
        found = vars(batch)["framed"] = _members(batch)
    batch.replacements.clear()
    return found


class _Followed(Members):
    """Members that follow their batch: what is replaced there is also written here."""

    def follow(self, batch: ModelBatch, index: Any, rows: Mapping[str, Array]) -> bool:
        """Frame members with these numbers directly, if they are certainly possible and the frames stay the same."""
        if "placements" in self.inputs or not rows.keys() <= {*INERTIAL, "gravity", *DEFAULTS}:
            return False
        joints = {name: x for name, x in rows.items() if name in DEFAULTS}
        if any(bad.any() for _, bad, _ in faults(batch.model, joints)):
            return False
        new = {}
        if "inertias" in self.inputs:
            new["inertias"], margins = _inertias(self.frames, batch.model, rows)
            if margins.size and not margins.min() > 0:  # also if a margin is NaN
                return False
        if "gravity" in rows:
            new["gravities"] = rows["gravity"]
            if not np.isfinite(rows["gravity"]).all():
                return False
        if "armature" in rows:
            new["armatures"] = _rows(batch.model, rows["armature"])
        for name, x in new.items():
            self.inputs[name][index] = x
        return True

    def written(self, index: Any, some: ModelBatch) -> bool:
        """Write the numbers of replaced members among those of all, unless their structure differs."""
        own = _members(some)
        if (own.frames is not self.frames or own.inputs.keys() != self.inputs.keys()) and own.key != self.key:
            return False
        for name, x in self.inputs.items():
            x[index] = own.inputs[name]
        return True


def _members(batch: ModelBatch) -> _Followed:
    varied = batch.varied
    frames, inputs = _framed(batch)
    if "armature" in varied:
        frames = _with_rotors(frames)
        inputs["armatures"] = _rows(batch.model, varied["armature"])
    if "gravity" in varied:
        inputs["gravities"] = varied["gravity"].copy()
    if not inputs and batch.shape:  # members that differ only in their joints: an input with the axes of the batch
        inputs["gravities"] = np.tile(batch.model.gravity, (*batch.shape, 1))
    return _Followed(frames, inputs)


def _framed(batch: ModelBatch) -> tuple[Framed, dict[str, Array]]:
    """The frames, and the inertias and placements that differ."""
    model, varied = batch.model, batch.varied
    if not batch.same_placements:
        return _reframed(batch)
    if not any(name in varied for name in (*INERTIAL, "armature")):
        return framed(model), {}
    frames = short_frames(model)  # whose kinds use no inertias and no rotors
    if not varied.keys() & set(INERTIAL):
        return frames, {}
    inertias, margins = _inertias(frames, model, varied)
    if (margins[..., 0] < 0).any():
        return _reframed(batch)
    return frames, {"inertias": inertias}


def _inertias(frames: Framed, model: Model, varied: Mapping[str, Array]) -> tuple[Array, Array]:
    """The numbers `GIVEN["inertias"]` (..., n, 10) of members in these frames, and their margins (`in_short_frame`)."""
    m, c, I = (varied.get(name, getattr(model, name)) for name in INERTIAL)
    found = _inertia_kernel()(m, c, I, frames.places)
    count = len(GIVEN["inertias"])
    return np.ascontiguousarray(found[..., :count]), found[..., count:]  # NumPy scatters whole rows 2.5 times faster


def in_short_frame(m: Scalar, c: Any, I: Any, frame: Any) -> list[Scalar]:
    """m, m c and the second moment S of a body, in its short frame (Q, r); and three margins.

    The first is negative if the body is too small for a frame at this distance (`FAR`). The second is positive if the
    body has mass and extent and is physically possible by the rules of `model.check`; the third if all numbers are
    finite.
    """
    Q, r = Mat.of(row[:3] for row in frame), Vec.of(row[3] for row in frame)
    moved = Q.T @ (Vec.of(c) - r)
    S = Q.T @ Mat.symmetric(lambda i, j: _second_moment(I, i) if i == j else -I[i][j]) @ Q
    trace, reach = I[0][0] + I[1][1] + I[2][2], maximum(maximum(absolute(c[0]), absolute(c[1])), absolute(c[2]))
    enough = maximum(trace, m * reach * reach) * FAR**2 - m * (r[0] * r[0] + r[1] * r[1] + r[2] * r[2])
    slack = trace * INERTIA_TOLERANCE
    pivots = _pivots([I[k][k] - slack for k in range(3)], 1.0, I)
    pivots += _pivots([trace * 0.5 + slack - I[k][k] for k in range(3)], -1.0, I)
    uneven = (slack - absolute(I[i][j] - I[j][i]) for i, j in UPPER if i != j)
    solid = -reduce(maximum, [-x for x in (m, *pivots, *uneven)])  # the smallest, if there is no NaN
    finite = 1.0 / (absolute(m + c[0] + c[1] + c[2] + pivots[2] + pivots[5]) + 1.0)
    return [m, *(moved * m), *(S[i][j] + m * moved[i] * moved[j] for i, j in UPPER), enough, solid, finite]


def _pivots(diagonal: Sequence[Scalar], sign: float, I: Any) -> list[Scalar]:
    """The pivots of a symmetric matrix with the products of inertia, or with their negatives, off its diagonal."""
    xx, yy, zz = diagonal
    xy, xz, yz = (I[i][j] * sign for i, j in ((0, 1), (0, 2), (1, 2)))
    ratio = xy / xx
    second, mixed = yy - ratio * xy, yz - ratio * xz
    return [xx, second, zz - xz * xz / xx - mixed * mixed / second]


def _second_moment(I: Any, k: int) -> Scalar:
    """tr(I)/2 - I_kk: ((the larger of the other two moments) - I_kk + (the smaller)) / 2, without loss of digits.

    The two largest moments of a body differ by at most a factor of two, so their difference is exact.
    """
    one, other = (I[(k + j) % 3][(k + j) % 3] for j in (1, 2))
    return (maximum(one, other) - I[k][k] - maximum(-one, -other)) * 0.5


@cache
def _inertia_kernel() -> Any:
    inputs: dict[str, tuple[int, ...]] = {"m": (), "c": (3,), "I": (3, 3), "frame": (3, 4)}
    return compile_pointwise(in_short_frame, inputs, key="inertias of members")


def _with_rotors(frames: Framed) -> Framed:
    """The same, with rotors at every joint: a member gives the same bits whether or not another has rotors there."""
    turning = [kind._replace(rotors=True) for kind in frames.kinds]
    kinds = tuple(sorted(set(turning)))
    place = np.array([kinds.index(kind) for kind in turning], np.int32)
    return replace(frames, kinds=kinds, kind=place[frames.kind])


def _rows(model: Model, x: Array) -> Array:
    """Numbers of the freedoms (..., nv) as rows of the bodies (..., n, 6), padded with zeros."""
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
    """For each body, the form (in `FORMS`) of any placement: it omits only a first screw that the parent absorbs."""
    absorbed, axial = absorbed_children(model), np.array([joint.axial for joint in JOINTS])[model.joint]
    form = np.full(model.n, FORMS.index("zyxz"))
    form[absorbed[(absorbed >= 0) & axial]] = FORMS.index("yxz")
    return form
