"""Information about a machine beyond its dynamics: names of joints, couplings, actuators, named configurations,
shapes to draw, and notes on how the file was read.

Bodies are given by number; -1 is the base.  Only the couplings act on the dynamics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ModelError
from torsor.model.joints import JOINTS
from torsor.model.units import Units
from torsor.validate import encodable, shown

if TYPE_CHECKING:
    from torsor.model.model import Model

Array = NDArray[Any]
INF = float("inf")
GREY = (0.7, 0.72, 0.75, 1.0)
# The shapes that can be drawn, with the number of their sizes (in metres; for a mesh, its scale).
SHAPES = {"box": 3, "sphere": 1, "cylinder": 2, "capsule": 2, "ellipsoid": 3, "mesh": 3}


class Note(NamedTuple):
    """One remark on a file.

    kind   "repair": numbers were changed;  "ignored": torsor does not model this;  "read": how something was
    interpreted
           "invented": the file gave no masses at all
    where  the element of the file
    """

    kind: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class Coupling(NamedTuple):
    """The joint of one body follows that of another: q = ratio q_leader + offset (URDF: mimic)."""

    follower: int
    leader: int
    ratio: float = 1.0
    offset: float = 0.0


class Actuator(NamedTuple):
    """A named input u.  Its force is gain u + bias . (1, length, speed), clipped to `effort`.

    gear     (freedom, ratio) pairs: tau = ratio x force there; length and speed are the sums of ratio x q and ratio x v
    control  the smallest and the largest u
    """

    name: str
    gear: tuple[tuple[int, float], ...]
    control: tuple[float, float] = (-INF, INF)
    effort: tuple[float, float] = (-INF, INF)
    gain: float = 1.0
    bias: tuple[float, float, float] = (0.0, 0.0, 0.0)


class Visual(NamedTuple):
    """A shape to draw, placed at (R, p) on a body.

    size   box: sides;  sphere: radius;  cylinder, capsule: radius, length along z (of a capsule: without its caps);
           ellipsoid: half axes;  mesh: scale
    """

    body: int
    shape: str
    size: tuple[float, ...]
    R: tuple[tuple[float, ...], ...] = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    p: tuple[float, ...] = (0.0, 0.0, 0.0)
    color: tuple[float, ...] = GREY  # red, green, blue, opacity, from 0 to 1
    file: str = ""  # the file of a mesh


@dataclass(frozen=True)
class Extras:
    """The records of this file, as a Model keeps them."""

    joint_names: tuple[str, ...] = ()  # one per body; empty: the names of the bodies
    couplings: tuple[Coupling, ...] = ()
    actuators: tuple[Actuator, ...] = ()
    keyframes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # name -> q
    visuals: tuple[Visual, ...] = ()
    notes: tuple[Note, ...] = ()
    units: str = ""  # of mass, length and time, "amu, nm, ps"; empty: SI

    @classmethod
    def of(cls, table: Any) -> Extras:
        """The extras that `plain` wrote."""
        try:
            return cls(**table)
        except (TypeError, ValueError, AttributeError) as error:
            raise ModelError(f"extras: {error}") from None

    def __post_init__(self) -> None:
        for key, record in RECORDS.items():
            object.__setattr__(self, key, tuple(_record(record, row) for row in getattr(self, key)))
        Units.of(self.units)  # or an error
        object.__setattr__(self, "joint_names", tuple(self.joint_names))
        frozen = {name: tuple(map(float, q)) for name, q in dict(self.keyframes).items()}
        object.__setattr__(self, "keyframes", MappingProxyType(frozen))

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Extras, tuple(self.plain().values())

    def plain(self) -> dict[str, Any]:
        """The records as lists, dictionaries, words and numbers, for any file format."""
        rows = {key: [row._asdict() for row in getattr(self, key)] for key in RECORDS}
        return {f.name: rows.get(f.name, getattr(self, f.name)) for f in fields(self)} | {
            "joint_names": list(self.joint_names),
            "keyframes": {name: list(q) for name, q in self.keyframes.items()},
        }


RECORDS: dict[str, Any] = {"couplings": Coupling, "actuators": Actuator, "visuals": Visual, "notes": Note}


def _record(record: Any, row: Any) -> Any:
    """One record, from a record or from its fields by name; lists become tuples."""
    if type(row) is record and not any(isinstance(value, list | np.ndarray) for value in row):
        return row
    try:
        values = row if isinstance(row, Mapping) else row._asdict() if hasattr(row, "_asdict") else dict(row)
        return record(**{key: _tuple(value) for key, value in values.items()})
    except (TypeError, ValueError) as error:
        raise ModelError(f"{shown(row)} is no {record.__name__}: {error}") from None


def _tuple(x: Any) -> Any:
    return tuple(map(_tuple, x)) if isinstance(x, list | tuple | np.ndarray) else x


NO_EXTRAS = Extras()


def check_extras(model: Model) -> None:
    """Raise a ModelError naming the record that does not fit the model."""
    extras = model.extras
    if extras is NO_EXTRAS:
        return
    if not isinstance(extras, Extras):
        raise ModelError(f"extras must be an Extras, not {shown(extras)}")
    try:
        _check_records(model, extras)
    except (TypeError, ValueError, AttributeError) as error:
        raise error if isinstance(error, ModelError) else ModelError(f"extras: {error}") from None


def _check_records(model: Model, extras: Extras) -> None:
    names = extras.joint_names
    if names and (len(names) != model.n or not all(isinstance(word, str) and word for word in names)):
        raise ModelError(f"joint_names must be one name for each of {model.n} bodies, not {shown(names)}")
    if len(set(names)) < len(names):
        raise ModelError("two joints have the same name")
    _check_couplings(model)
    for name, q in extras.keyframes.items():
        if not isinstance(name, str) or len(q) != model.nq or not np.isfinite(q).all():
            raise ModelError(f"keyframe {shown(name)} must be {model.nq} finite numbers, not {shown(q)}")
    for key, fits in (("actuators", _fits_actuator), ("visuals", _fits_visual), ("notes", _fits_note)):
        for record in getattr(extras, key):
            if not fits(model, record):
                raise ModelError(f"{shown(record)}: words or numbers of it do not fit {model!r}")
    words = [*names, *extras.keyframes, *(x.name for x in extras.actuators), *(x.file for x in extras.visuals)]
    if not encodable("".join([*words, *(word for note in extras.notes for word in note)])):
        raise ModelError("a word of the extras holds a lone surrogate, which is no character")


def _fits_actuator(model: Model, actuator: Actuator) -> bool:
    rows = [*actuator.gear, actuator.control, actuator.effort, actuator.bias, (actuator.gain,)]
    widths = [2] * len(actuator.gear) + [2, 2, 3, 1]
    placed = isinstance(actuator.name, str) and [len(row) for row in rows] == widths and _are_numbers(rows)
    return placed and all(isinstance(k, int) and 0 <= k < model.nv for k, _ in actuator.gear)


def _fits_visual(model: Model, visual: Visual) -> bool:
    rows = [visual.size, *visual.R, visual.p, visual.color]
    widths = [SHAPES.get(visual.shape), 3, 3, 3, 3, 4]
    placed = isinstance(visual.body, int) and -1 <= visual.body < model.n and isinstance(visual.file, str)
    return placed and [len(row) for row in rows] == widths and _are_numbers(rows)


def _fits_note(model: Model, note: Note) -> bool:
    return all(isinstance(word, str) for word in note)


def _are_numbers(rows: list[tuple[Any, ...]]) -> bool:
    return all(isinstance(x, int | float) and x == x for row in rows for x in row)


def _check_couplings(model: Model) -> None:
    """Followers and leaders are joints of one freedom, and no follower is another's leader."""
    followers = {coupling.follower for coupling in model.extras.couplings}
    if len(followers) < len(model.extras.couplings):
        raise ModelError("a joint is the follower of two couplings")
    for coupling in model.extras.couplings:
        for body in coupling[:2]:
            if not isinstance(body, int) or not 0 <= body < model.n or JOINTS[model.joint[body]].nq != 1:
                raise ModelError(f"{coupling} couples body {shown(body)}, which is no joint of one freedom")
        if coupling.leader in followers or not _are_numbers([coupling[2:]]) or not np.isfinite(coupling[2:]).all():
            raise ModelError(f"{coupling}: the leader must be free, ratio and offset finite")
