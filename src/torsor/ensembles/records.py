"""What is stored of the members: quantities by name, over time or reduced to one value, and functions of the user.

"q", "v", "energy"               at every stored time
"hand.pose", "hand.position"     of a body or a frame: 4x4 matrices, and points, in the base frame
"q.last", "energy.max"           reduced over time: last, min, max, mean or std; of any of these
{"name": function}               of t (times,), q (members, times, nq) and v: an array (members, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.dynamics import functions as dynamics
from torsor.dynamics.frames import frame_poses
from torsor.errors import ArgumentError
from torsor.model.batch import ModelBatch
from torsor.model.model import Model
from torsor.validate import function, real_array, shown

Array = NDArray[Any]
Function = Callable[[Array, Array, Array], Array]

AXES = {
    "q": ("coordinate",), "v": ("freedom",), "energy": (), "pose": ("row", "column"), "position": ("xyz",),
}  # fmt: skip
OF_FRAMES = ("pose", "position")
REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "last": lambda x: x[:, -1], "min": lambda x: x.min(axis=1), "max": lambda x: x.max(axis=1),
    "mean": lambda x: x.mean(axis=1), "std": lambda x: x.std(axis=1),
}  # fmt: skip
TAKEN = (*AXES, "status", "digest", "t", "stop_time", "vary", "zarr.json")  # other names in a store


@dataclass(frozen=True)
class Record:
    """One array of a store."""

    name: str
    quantity: str = ""
    frame: str = ""
    reduction: str = ""
    function: Function | None = None

    @property
    def axes(self) -> tuple[str, ...] | None:
        """The names of the axes after that of the members; None if they are the user's."""
        if self.function:
            return None
        return (*([] if self.reduction else ["time"]), *AXES[self.quantity])

    def values(self, batch: ModelBatch, t: Array, q: Array, v: Array, every: int) -> Array:
        """(members, ...) from the states of the members at the times t."""
        if self.function:
            with np.errstate(all="ignore"):
                result = real_array(f"record[{self.name!r}]", self.function(t, q, v), finite=False).astype(float)
            if result.shape[:1] != q.shape[:1]:
                raise ArgumentError(
                    f"record[{self.name!r}] gives shape {result.shape}; its first axis is that of the members"
                )
            return result
        if self.reduction != "last":
            rows = slice(None) if self.reduction else slice(every - 1, None, every)
            return REDUCTIONS.get(self.reduction, np.asarray)(self._over_time(batch, q[:, rows], v[:, rows]))
        return self._over_time(batch, q[:, -1:], v[:, -1:])[:, 0]

    def _over_time(self, batch: ModelBatch, q: Array, v: Array) -> Array:
        if self.quantity in ("q", "v"):
            return {"q": q, "v": v}[self.quantity]
        sound: Any = np.isfinite(q).all(-1) & np.isfinite(v).all(-1)
        q, v = np.where(sound[..., None], q, batch.model.neutral()), np.where(sound[..., None], v, 0.0)
        machines: Any = batch
        if batch.shape:
            machines = ModelBatch(batch.model, **{name: x[:, None] for name, x in batch.varied.items()})
        if self.quantity == "energy":
            result = dynamics.kinetic_energy(machines, q, v) + dynamics.potential_energy(machines, q)
        else:
            result = frame_poses(machines, q, self.frame)
            result = result[..., :3, 3] if self.quantity == "position" else result
        return np.where(sound.reshape(sound.shape + (1,) * (result.ndim - 2)), result, np.nan)


def records(model: Model, asked: str | Sequence[str] | Mapping[str, Function | None]) -> tuple[Record, ...]:
    """What the user asked for, checked."""
    if not isinstance(asked, str | Sequence | Mapping):
        raise ArgumentError(f"record must be names of quantities, or functions by name, not {shown(asked)}")
    named = asked if isinstance(asked, Mapping) else dict.fromkeys([asked] if isinstance(asked, str) else asked)
    return tuple(_named(model, name) if how is None else _own(name, how) for name, how in named.items())


def _own(name: str, how: Function) -> Record:
    if not isinstance(name, str) or not name or name in TAKEN or {"/", "\0"} & {*name} or name.startswith("."):
        raise ArgumentError(f"record[{shown(name)}]: this name is taken")
    function(f"record[{name!r}]", how)
    return Record(name, function=how)


def _named(model: Model, name: str) -> Record:
    words = name.split(".") if isinstance(name, str) else [""]
    reduction = words.pop() if len(words) > 1 and words[-1] in REDUCTIONS else ""
    quantity, frame = words[-1], ".".join(words[:-1])
    if quantity not in AXES or (quantity in OF_FRAMES) != bool(frame):
        raise ArgumentError(
            f"unknown quantity to record {shown(name)}; give q, v, energy, FRAME.pose or FRAME.position, alone or with "
            f".{', .'.join(REDUCTIONS)}, or a function under a name of its own"
        )
    if frame:
        model.frame(frame)  # raises if there is none
    if "/" in frame:
        raise ArgumentError(f"record {shown(name)}: a name with / is no name in a store; record a function instead")
    return Record(name, quantity, frame, reduction)
