"""Inputs and outputs of an algorithm: where numbers belong, and how they are collected.

An input belongs to a place of the machine: coordinates, freedoms, bodies or the base.  An output is a type that defines
its shape, how it is collected from the values that the passes keep, and where loops put its entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.linalg import Mat, Scalar, Vec
from torsor.model.joints import Joint
from torsor.model.model import Model
from torsor.spatial import Rigid, Spatial

if TYPE_CHECKING:
    from torsor.sweeps import Walk

Array = NDArray[Any]
Keep = Mapping[str, Any]

# Inputs --------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where the numbers of an input belong."""

    shape: Callable[[Model], tuple[int, ...]]  # of the input, for one state
    count: Callable[[Joint], int]  # the number of values that belong to a body with this joint
    starts: Callable[[Model], Array]  # (n + 1,) where the values of each body begin along the first axis
    wrap: Callable[[Iterable[Scalar]], Any]  # the numbers of a body as its steps see them
    rank: int = 1

    def parts(self, model: Model, values: Sequence[Any]) -> list[Any]:
        """The numbers of each body."""
        starts = self.starts(model).tolist()
        return [self.wrap(_flat(values[i:j])) for i, j in pairwise(starts)]


def _flat(values: Sequence[Any]) -> Iterator[Scalar]:
    for x in values:
        yield from x if isinstance(x, list | tuple | np.ndarray) else (x,)


COORDINATES = Place(lambda model: (model.nq,), lambda joint: joint.nq, lambda model: model.q_start, Vec.of)
FREEDOMS = Place(lambda model: (model.nv,), lambda joint: joint.nv, lambda model: model.v_start, Vec.of)
BODIES = Place(lambda model: (model.n, 6), lambda joint: 6, lambda model: np.arange(model.n + 1), Spatial.of, rank=2)
BASE = Place(lambda model: (6,), lambda joint: 0, lambda model: np.zeros(model.n + 1, int), Spatial.of)

# a wrench on each body, and the acceleration of the base; everything else is one number per freedom
PLACES = {"q": COORDINATES, "external": BODIES, "acceleration": BASE}


def place_of(name: str) -> Place:
    return PLACES.get(name, FREEDOMS)


# Outputs -------------------------------------------------------------------------------------------------------


class At(NamedTuple):
    """A body in a loop: its number, and its first freedom."""

    i: Any
    v: Any


Add = Callable[[Any, int], Any]


@dataclass(frozen=True)
class Output:
    """An output, collected from the values that steps keep under a name."""

    name: str

    def collect(self, walk: Walk) -> Any:
        """Collect the output from a finished walk over a machine."""
        raise NotImplementedError

    def shape(self, model: Model, entry: tuple[int, ...]) -> tuple[int, ...]:
        """The output's shape; `entry` is the shape of the value that one body keeps, or that arrives at the base."""
        raise NotImplementedError

    def rank(self, entry: tuple[int, ...]) -> int:
        """The number of axes."""
        raise NotImplementedError

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        """The numbers of the output that a step keeps, by ("out", indices within the body)."""
        return {}

    def indices(self, entry: tuple[Any, ...], body: At, add: Add) -> tuple[Any, ...]:
        """The place of such a number in the output."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.name}"


class PerFreedom(Output):
    """One number per degree of freedom."""

    def collect(self, walk: Walk) -> list[Scalar]:
        return [x for here in walk.here for x in getattr(here, self.name)]

    def shape(self, model: Model, entry: tuple[int, ...]) -> tuple[int, ...]:
        return (model.nv,)

    def rank(self, entry: tuple[int, ...]) -> int:
        return 1

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        return {("out", r): x for r, x in enumerate(keep.get(self.name, ()))}

    def indices(self, entry: tuple[Any, ...], body: At, add: Add) -> tuple[Any, ...]:
        return (add(body.v, entry[0]),)


class PerBody(Output):
    """A pose, twist or wrench per body."""

    def collect(self, walk: Walk) -> list[Any]:
        return [getattr(here, self.name) for here in walk.here]

    def shape(self, model: Model, entry: tuple[int, ...]) -> tuple[int, ...]:
        return (model.n, *entry)

    def rank(self, entry: tuple[int, ...]) -> int:
        return 1 + len(entry)

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        return {("out", *index): x for index, x in numbered(plain(keep[self.name]))} if self.name in keep else {}

    def indices(self, entry: tuple[Any, ...], body: At, add: Add) -> tuple[Any, ...]:
        return (body.i, *entry)


class AtBase(Output):
    """Values that the last pass hands to the base; several names, separated by spaces, give a tuple."""

    def collect(self, walk: Walk) -> Any:
        values = tuple(walk.arrived[name] for name in self.name.split())
        return values if len(values) > 1 else values[0]

    def shape(self, model: Model, entry: tuple[int, ...]) -> tuple[int, ...]:
        return entry

    def rank(self, entry: tuple[int, ...]) -> int:
        return len(entry)


class Climbs(Output):
    """An output made by climbs to the base (`torsor.sweeps.Columns`)."""

    def rank(self, entry: tuple[int, ...]) -> int:
        return 2


class Path(Climbs):
    """The columns along the path from a frame to the base: a 6 x nv Jacobian."""

    def collect(self, walk: Walk) -> list[list[Scalar]]:
        columns: list[Sequence[Scalar]] = [(0.0,) * 6] * walk.first[-1]
        for i, keep in walk.path().items():
            for k, column in enumerate(keep[self.name]):
                columns[walk.first[i] + k] = column.coordinates
        return [list(row) for row in zip(*columns)]

    def shape(self, model: Model, entry: tuple[int, ...]) -> tuple[int, ...]:
        return (6, model.nv)

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        columns = enumerate(keep.get(self.name, ()))
        return {("out", row, r): x for r, column in columns for row, x in enumerate(column.coordinates)}

    def indices(self, entry: tuple[Any, ...], body: At, add: Add) -> tuple[Any, ...]:
        return entry[0], add(body.v, entry[1])


class Matrix(Climbs):
    """An nv x nv matrix: each climb keeps the entries of a column.  `packing` says which are computed."""

    def shape(self, model: Model, entry: tuple[int, ...]) -> tuple[int, ...]:
        return (model.nv, model.nv)

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        return {("out", r): x for r, x in enumerate(keep.get(self.name, ()))}

    def packing(self, spreads: bool) -> str:
        """Which part of the matrix the columns hold, with or without outward spread: see `torsor.compiler.packing`."""
        raise NotImplementedError

    symmetric = False  # bodies after a column's own are not used


class Symmetric(Matrix):
    """Symmetric to the bit: the climbs keep its upper triangle."""

    symmetric = True

    def collect(self, walk: Walk) -> Mat:
        A = walk.zeros()
        for column, _, kept in walk.columns():
            for i, keep in kept.items():  # within the body's own block too
                for r, x in enumerate(keep[self.name]):
                    A[walk.first[i] + r][column] = A[column][walk.first[i] + r] = x
        return Mat.of(A)

    def packing(self, spreads: bool) -> str:
        return "symmetric" if spreads else "symmetric path"


@dataclass(frozen=True)
class TwoTriangles(Matrix):
    """The climbs keep both triangles, the lower one under a name of its own."""

    lower: str

    def collect(self, walk: Walk) -> Mat:
        A = walk.zeros()
        for column, j, kept in walk.columns():
            for i, keep in kept.items():
                for r, (x, y) in enumerate(zip(keep[self.name], keep[self.lower])):
                    A[walk.first[i] + r][column] = x
                    if i != j:
                        A[column][walk.first[i] + r] = y
        return Mat.of(A)

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        return super().entries(keep) | {("second", r): x for r, x in enumerate(keep.get(self.lower, ()))}

    def packing(self, spreads: bool) -> str:
        return "two paths"


@dataclass(frozen=True)
class Gram(Matrix):
    """U^T X, symmetric: the climbs keep the columns of U, and of X under a name of their own."""

    other: str

    def collect(self, walk: Walk) -> Mat:
        ways = [kept for _, _, kept in walk.columns()]
        return Mat.symmetric(lambda i, j: self._along(ways[i], ways[j]), len(ways))

    def _along(self, one: Mapping[int, Keep], other: Mapping[int, Keep]) -> Scalar:
        """sum u x over the freedoms on both paths."""
        total: Scalar = 0.0
        for i in sorted(one.keys() & other.keys()):
            for u, x in zip(one[i][self.name], other[i][self.other]):
                total = total + u * x
        return total

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        return super().entries(keep) | {("second", r): x for r, x in enumerate(keep.get(self.other, ()))}

    def packing(self, spreads: bool) -> str:
        return "product"


# Nested lists --------------------------------------------------------------------------------------------------


def plain(x: Any) -> Any:
    """An output as nested lists: poses as 4x4 rows, twists as six numbers."""
    if isinstance(x, Rigid):
        return [[*row, pi] for row, pi in zip(x.R, x.p)] + [[0.0, 0.0, 0.0, 1.0]]
    if isinstance(x, Spatial):
        return list(x.coordinates)
    if isinstance(x, Mat):
        return [list(row) for row in x]
    return [plain(y) for y in x] if isinstance(x, list | tuple) else x


def numbered(x: Any, index: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Scalar]]:
    """The entries of nested lists, with their indices."""
    if isinstance(x, list | tuple):
        for i, y in enumerate(x):
            yield from numbered(y, (*index, i))
    else:
        yield index, x
