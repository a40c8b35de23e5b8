"""The stored quantities of the members: by name, over time or reduced to one value, and functions of the user.

"q", "energy", "pose.hand", "q.link3"    at every stored time: the names of `torsor.motion.quantities`
"q:last", "energy:max"                   reduced over time: last, min, max, mean or std; of any of these
{"name": function}                       of t (times,), q (members, times, nq) and v: an array (members, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ArgumentError
from torsor.model.batch import ModelBatch
from torsor.model.model import Model
from torsor.motion.quantities import SCALARS, quantity
from torsor.motion.trajectory import Trajectory
from torsor.validate import function, real_array, shown

Array = NDArray[Any]
Function = Callable[[Array, Array, Array], Array]

AXES = {"q": "coordinate", "v": "freedom", "pose": "pose", "position": "xyz"}
NOT_STORED = ("a", "tau", "power")  # members have only states
REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "last": lambda x: x[:, -1], "min": lambda x: x.min(axis=1), "max": lambda x: x.max(axis=1),
    "mean": lambda x: x.mean(axis=1), "std": lambda x: x.std(axis=1),
}  # fmt: skip
TAKEN = ("status", "digest", "t", "stop_time", "vary", "zarr.json")  # other names in a store


@dataclass(frozen=True)
class Record:
    """One array of a store."""

    name: str
    quantity: str = ""
    reduction: str = ""
    function: Function | None = None

    @property
    def axes(self) -> tuple[str, ...] | None:
        """The names of the axes after that of the members; None for a function of the user."""
        if self.function:
            return None
        kind = self.quantity.partition(".")[0]
        own = () if kind in SCALARS else (AXES[kind] if self.quantity == kind else f"{self.quantity}_entry",)
        return (*([] if self.reduction else ["time"]), *own)

    def values(self, batch: ModelBatch, t: Array, q: Array, v: Array, every: int) -> Array:
        """(members, ...) from the states of the members at the times t."""
        if self.function:
            with np.errstate(all="ignore"):
                result = real_array(f"keep[{self.name!r}]", self.function(t, q, v), finite=False).astype(float)
            if result.shape[:1] != q.shape[:1]:
                raise ArgumentError(
                    f"keep[{self.name!r}] gives shape {result.shape}; its first axis is that of the members"
                )
            return result
        if self.reduction == "last":
            return self._over_time(batch, t[-1:], q[:, -1:], v[:, -1:])[:, 0]
        rows = slice(None) if self.reduction else slice(every - 1, None, every)
        return REDUCTIONS.get(self.reduction, np.asarray)(self._over_time(batch, t[rows], q[:, rows], v[:, rows]))

    def _over_time(self, batch: ModelBatch, t: Array, q: Array, v: Array) -> Array:
        if self.quantity in ("q", "v"):
            return {"q": q, "v": v}[self.quantity]
        sound: Any = np.isfinite(q).all(-1) & np.isfinite(v).all(-1)
        q, v = np.where(sound[..., None], q, batch.model.neutral()), np.where(sound[..., None], v, 0.0)
        rows = Trajectory.of_states(batch, t, q, v, {})
        result = quantity(batch.model, self.quantity).values(rows)
        result = result[..., 0] if self.quantity in SCALARS else result
        return np.where(sound.reshape(sound.shape + (1,) * (result.ndim - 2)), result, np.nan)


def records(model: Model, asked: str | Sequence[str] | Mapping[str, Function | None]) -> tuple[Record, ...]:
    """The requested records, checked."""
    if not isinstance(asked, str | Sequence | Mapping):
        raise ArgumentError(f"keep must be names of quantities, or functions by name, not {shown(asked)}")
    named = asked if isinstance(asked, Mapping) else dict.fromkeys([asked] if isinstance(asked, str) else asked)
    return tuple(_named(model, name) if how is None else _own(name, how) for name, how in named.items())


def _own(name: str, how: Function) -> Record:
    taken = name in (*TAKEN, *AXES, *SCALARS)
    if not isinstance(name, str) or not name or taken or {"/", "\0"} & {*name} or name.startswith("."):
        raise ArgumentError(f"keep[{shown(name)}]: this name is taken")
    function(f"keep[{name!r}]", how)
    return Record(name, function=how)


def _named(model: Model, name: Any) -> Record:
    if not isinstance(name, str):
        raise ArgumentError(f"keep must hold names of quantities, not {shown(name)}")
    what, colon, reduction = name.partition(":")
    if colon and reduction not in REDUCTIONS:
        raise ArgumentError(f"keep {shown(name)}: a reduction is one of {', '.join(REDUCTIONS)}, as in 'q:last'")
    if what.partition(".")[0] in NOT_STORED:
        raise ArgumentError(f"keep {shown(name)}: members have q and v, and what follows from them")
    try:
        quantity(model, what)
    except ArgumentError:
        before, _, last = what.rpartition(".")
        if last in REDUCTIONS:  # the syntax of torsor 0.1
            raise ArgumentError(f"keep {shown(name)}: a reduction follows a colon, '{before}:{last}'") from None
        raise
    if "/" in what:
        raise ArgumentError(f"keep {shown(name)}: a name with / cannot be a name in a store; keep a function instead")
    return Record(name.replace(":", "."), what, reduction)  # every file system allows a dot
