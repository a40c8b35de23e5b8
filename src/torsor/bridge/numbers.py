"""Numbers of a model as inputs of a function: what programs of a batch of models read, from what the user gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.bridge.charts import constant, exponential
from torsor.compiler.frames import GIVEN, Framed, Kind, axis_to_z, framed, short_frames, with_inertia
from torsor.compiler.members import Members
from torsor.inputs import place_of
from torsor.linalg import Vec
from torsor.model.joints import JOINTS
from torsor.model.model import Model
from torsor.model.rounding import NOISE

Array = NDArray[Any]


class ModelNumbers:
    """The numbers of a model that are inputs of a function, and what its programs read instead.

    With fixed placements, the inertias that a program reads are linear in m, m c and I: a matrix per body.
    """

    def __init__(self, model: Model, wrt: Sequence[str]) -> None:
        self.model, self.wrt = model, wrt
        moved = "placement" in wrt
        frames = _general_frames(model) if moved else short_frames(model) if "inertia" in wrt else framed(model)
        needed = {"inertias": moved or "inertia" in wrt, "placements": moved, "gravities": "gravity" in wrt}
        names = [name for name, needs in needed.items() if needs]
        self.members = Members(frames, {name: np.zeros((0, *place_of(name).shape(model))) for name in names})
        self.linear = _inertial_maps(frames) if "inertias" in names else None
        if moved:
            parents = np.concatenate([_own_frames(model), np.eye(3)[None]])[model.parent]
            self.placed = parents.swapaxes(-1, -2) @ model.R, np.einsum("nji,nj->ni", parents, model.p)

    def given(self, x: dict[str, Any], xp: Any) -> dict[str, Any]:
        """The inputs of a program, by name, from those of the function."""
        found = {}
        like = x[self.wrt[0]]
        if self.linear is not None:
            pi = x["inertia"] if "inertia" in self.wrt else constant(self.model.inertial_parameters(), like, xp)
            found["inertias"] = xp.einsum("nij,...nj->...ni", constant(self.linear, like, xp), pi)
        if "placement" in self.wrt:
            found["placements"] = self._placements(x["placement"], xp)
        if "gravity" in self.wrt:
            found["gravities"] = x["gravity"]
        return found

    def _placements(self, xi: Any, xp: Any) -> Any:
        """The numbers `GIVEN["placements"]` of bodies placed at M exp(xi), for frames as in `_general_frames`."""
        R0, p0 = (constant(x, xi, xp) for x in self.placed)
        own = constant(_own_frames(self.model), xi, xp)
        turn, shift = exponential(xi, xp)
        R = R0 @ turn @ own
        p = p0 + (R0 @ shift[..., None])[..., 0]
        ux, uy, ca = R[..., 0, 2], R[..., 1, 2], R[..., 2, 2]
        sa = xp.sqrt(ux * ux + uy * uy)
        one, zero = 0.0 * ca + 1.0, 0.0 * ca
        parallel = sa < NOISE
        safe = xp.where(parallel, one, sa)
        cg, sg = xp.where(parallel, one, -uy / safe), xp.where(parallel, zero, ux / safe)
        ct = cg * R[..., 0, 0] + sg * R[..., 1, 0]
        st = -(cg * R[..., 0, 1] + sg * R[..., 1, 1])
        a, b = cg * p[..., 0] + sg * p[..., 1], cg * p[..., 1] - sg * p[..., 0]
        pitch = zero + constant(self.model.pitch, xi, xp)
        frames = [zero + own[:, i, j] for i in range(3) for j in range(3)]
        return xp.stack([cg, sg, p[..., 2], b, ca, sa, a, ct, st, zero, pitch, *frames, zero, zero, zero], -1)


def _own_frames(model: Model) -> Array:
    """The turn that puts the axis of every joint on z."""
    axial = np.array([joint.axial for joint in JOINTS])[model.joint]
    return axis_to_z(np.where(axial[:, None], model.axis, (0.0, 0.0, 1.0)))


def _general_frames(model: Model) -> Framed:
    """Frames whose form no placement changes: the axis on z, the origin at the joint."""
    frames = short_frames(model)
    own, n = _own_frames(model), model.n
    each = [Kind(JOINTS[code].name, "zyxz", frames.kinds[k].rotors) for code, k in zip(model.joint, frames.kind)]
    kinds = tuple(sorted(set(each)))
    zeros = {name: np.zeros(n) for names in GIVEN.values() for name in names}
    turns = {f"Q{i}{j}": own[:, i, j] for i in range(3) for j in range(3)}
    rotors = {name: x for name, x in frames.numbers.items() if name.startswith("rotor")}
    zeros = {name: x for name, x in zeros.items() if not name.startswith("rotor")}
    return Framed(model, kinds, np.array([kinds.index(kind) for kind in each], np.int32), zeros | turns | rotors)


def _inertial_maps(frames: Framed) -> Array:
    """(n, 10, 10): from m, m c, I of every body to the numbers `GIVEN["inertias"]` in its frame."""
    x = dict(frames.numbers) | {name: np.zeros(frames.model.n) for name in GIVEN["inertias"]}
    maps = np.zeros((frames.model.n, 10, 10))
    for k in range(10):
        column: dict[str, Any] = with_inertia(x, Vec.unit(k, 10))
        for i, name in enumerate(GIVEN["inertias"]):
            maps[:, i, k] = column[name]
    return maps
