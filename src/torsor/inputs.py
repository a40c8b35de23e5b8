"""Inputs of an algorithm: the place of each in the machine.
A place is the coordinates, the freedoms, the bodies or the base.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.linalg import Scalar, Vec
from torsor.model.joints import Joint
from torsor.model.model import Model
from torsor.spatial import Spatial

Array = NDArray[Any]


@dataclass(frozen=True)
class Place:
    """The place of an input's numbers.

    The first axis has an entry per coordinate (nq), freedom (nv) or body (n); all other inputs belong to the base.
    """

    axes: tuple[str | int, ...]  # sizes, or the name of a size
    wrap: Callable[[Iterable[Scalar]], Any] = Vec.of  # makes of a body's numbers what its steps read

    @property
    def rank(self) -> int:
        return len(self.axes)

    @property
    def per(self) -> str:
        """ "nq", "nv" or "n"; empty at the base."""
        first = self.axes[0] if self.axes else 1
        return first if isinstance(first, str) else ""

    def shape(self, model: Model) -> tuple[int, ...]:
        """The shape of the input, for one state."""
        return tuple(getattr(model, size) if isinstance(size, str) else size for size in self.axes)

    def sizes(self, count: int) -> tuple[int, ...]:
        """The shape of an input that has this many numbers per state."""
        known = math.prod(size for size in self.axes if isinstance(size, int))
        named = sum(isinstance(size, str) for size in self.axes)
        each = math.isqrt(count) if named == 2 else count // known  # the two named sizes of a matrix are equal
        return tuple(each if isinstance(size, str) else size for size in self.axes)

    def count(self, joint: Joint) -> int:
        """The number of values that belong to a body with this joint."""
        return self.numbers if self.per == "n" else getattr(joint, self.per) if self.per else 0

    @property
    def numbers(self) -> int:
        """How many numbers each entry of the first axis has."""
        return math.prod(size for size in self.axes[1:] if isinstance(size, int))

    def starts(self, model: Model) -> Array:
        """(n + 1,) the index along the first axis where the values of each body begin."""
        return {"nq": model.q_start, "nv": model.v_start, "n": np.arange(model.n + 1)}[self.per]

    def parts(self, model: Model, values: Sequence[Any]) -> list[Any]:
        """The numbers of each body."""
        starts = self.starts(model).tolist()
        return [self.wrap(_flat(values[i:j])) for i, j in pairwise(starts)]


def _flat(values: Sequence[Any]) -> Iterator[Scalar]:
    for x in values:
        yield from x if isinstance(x, list | tuple | np.ndarray) else (x,)


COORDINATES, FREEDOMS = Place(("nq",)), Place(("nv",))
BODIES, BASE = Place(("n", 6), Spatial.of), Place((6,), Spatial.of)
PULLS = Place(("n", 12))  # sum F and sum F p^T of the forces on each body: see `algorithms.pulls`

# Parameters of the model with respect to which functions can be differentiated.  As inputs they are changes, and zero.
PARAMETERS = {
    "inertia": Place(("n", 10)),  # m, h = m c, Ixx Ixy Ixz Iyy Iyz Izz about the origin of the body's frame
    "placement": Place(("n", 6)),  # a twist xi in the joint's frame: M exp(xi) instead of M
    "gravity": Place((3,)),
}
# Numbers of the model in which the members of a batch differ: `torsor.compiler.frames.GIVEN`, and gravity.
MEMBERS = {name: Place(("n", count)) for name, count in (("inertias", 10), ("placements", 23), ("armatures", 6))}
MEMBERS["gravities"] = Place((3,))

# a wrench on each body, and the motion of the base; everything else is one number per freedom
PLACES = {"q": COORDINATES, "external": BODIES, "pulls": PULLS, "base_velocity": BASE, "base_acceleration": BASE}
PLACES |= {"reset_q": COORDINATES}  # where a stopped trajectory continues
PLACES |= PARAMETERS | MEMBERS
COTANGENT = "cotangent"


def place_of(name: str) -> Place:
    """`dNAME` is the tangent of an input, `cotangent_n_4_4` the cotangent of an output with axes n, 4, 4."""
    first, *axes = name.split("_")
    if first == COTANGENT:
        return Place(tuple(int(size) if size.isdigit() else size for size in axes))
    if name[0] == "d" and name[1:] in PLACES:
        return FREEDOMS if name == "dq" else PLACES[name[1:]]
    return PLACES.get(name, FREEDOMS)


def is_parameter(name: str) -> bool:
    """Whether an input is the change of a parameter of the model; its value is zero."""
    return name in PARAMETERS
