"""Numbers of a model as inputs of a function: from the numbers of the user to those that programs read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor import lie
from torsor.bridge.charts import constant, exponential
from torsor.compiler.frames import GIVEN, Framed, Kind, axis_to_z, framed, in_body_frames, short_frames, with_inertia
from torsor.compiler.members import Members
from torsor.inputs import place_of
from torsor.linalg import Vec
from torsor.model.joints import JOINTS
from torsor.model.model import Model
from torsor.model.names import BodyFrames
from torsor.model.rounding import NOISE

Array = NDArray[Any]


class ModelNumbers:
    """The numbers of a model that are inputs of a function, and the numbers that its programs read instead.

    With fixed placements, the inertias that a program reads are linear in m, m c and I: one matrix per body. The
    inputs are in the frames of the bodies that the caller chose, if any.
    """

    def __init__(self, model: Model, wrt: Sequence[str], body_frames: BodyFrames | None = None) -> None:
        self.model, self.wrt = model, wrt
        moved = "placement" in wrt
        if moved or "inertia" in wrt:
            own = _general_frames(model) if moved else short_frames(model)
            frames = in_body_frames(own, body_frames) if body_frames else own
        else:
            own = frames = framed(model, body_frames)
        needed = {"inertias": moved or "inertia" in wrt, "placements": moved, "gravities": "gravity" in wrt}
        names = [name for name, needs in needed.items() if needs]
        self.members = Members(frames, {name: np.zeros((0, *place_of(name).shape(model))) for name in names})
        known = frames if "inertia" in wrt else own  # the model's own inertias are in the model's frames
        self.linear = _inertial_maps(known) if "inertias" in names else None
        if moved:
            self.places = frames.places
            self.turned = np.linalg.inv(lie.Ad(body_frames.Q)) if body_frames else None
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
        own, places = constant(_own_frames(self.model), xi, xp), constant(self.places, xi, xp)
        if self.turned is not None:
            xi = xp.einsum("nij,...nj->...ni", constant(self.turned, xi, xp), xi)
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
        frames = [zero + places[:, i, j] for i, j in (*np.ndindex(3, 3), (0, 3), (1, 3), (2, 3))]
        return xp.stack([cg, sg, p[..., 2], b, ca, sa, a, ct, st, zero, pitch, *frames], -1)


def _own_frames(model: Model) -> Array:
    """The rotation that maps the axis of every joint to z."""
    axial = np.array([joint.axial for joint in JOINTS])[model.joint]
    return axis_to_z(np.where(axial[:, None], model.axis, (0.0, 0.0, 1.0)))


def _general_frames(model: Model) -> Framed:
    """Frames whose form does not depend on placements: the axis along z, the origin at the joint."""
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
