"""Outputs of an algorithm: how they are collected.

An output is a type that defines its shape, how it is collected from the values that passes keep, and where loops
write its entries.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from torsor.inputs import Place, place_of
from torsor.linalg import Mat, Scalar
from torsor.model.model import Model
from torsor.model.parameters import INERTIAL
from torsor.spatial import Rigid, Spatial

if TYPE_CHECKING:
    from torsor.sweeps import Walk

Array = NDArray[Any]
Keep = Mapping[str, Any]


class At(NamedTuple):
    """The position of a loop: the body's number, first coordinate and first freedom, and the numbers of bodies and
    freedoms."""

    i: Any
    q: Any
    v: Any
    n: Any
    nv: Any


Index = Callable[[str, Any, Any], Any]  # ("add" or "mul", a, b): integers of the code being written
Entry = Any  # the shape of the value of one body, or of the value at the base; for several outputs, one shape each


@dataclass(frozen=True)
class Output:
    """An output, collected from the values that steps keep under a name."""

    name: str

    def collect(self, walk: Walk) -> Any:
        """Collect the output from a finished walk over a machine."""
        raise NotImplementedError

    def shape(self, model: Model, entry: Entry) -> tuple[int, ...]:
        """For one state."""
        raise NotImplementedError

    def rank(self, entry: Entry) -> int:
        """How many axes it has."""
        raise NotImplementedError

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        """The numbers of the output that a step keeps, by ("out", indices within the body)."""
        return {}

    def indices(self, place: tuple[Any, ...], at: At, index: Index) -> tuple[Any, ...]:
        """Where in the output such a number belongs."""
        return place

    def size(self, at: At, entry: Entry, index: Index) -> Any:
        """How many numbers there are, in the code being written."""
        return math.prod(entry)

    def flat(self, place: tuple[Any, ...], at: At, entry: Entry, index: Index) -> Any:
        """`indices` as one index among all numbers of the output, row by row."""
        return _row_by_row(self.indices(place, at, index), entry, index)

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.name}"


class PerFreedom(Output):
    """One number per degree of freedom."""

    def collect(self, walk: Walk) -> list[Scalar]:
        return [x for here in walk.here for x in getattr(here, self.name)]

    def shape(self, model: Model, entry: Entry) -> tuple[int, ...]:
        return (model.nv,)

    def rank(self, entry: Entry) -> int:
        return 1

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        return {("out", r): x for r, x in enumerate(keep.get(self.name, ()))}

    def indices(self, place: tuple[Any, ...], at: At, index: Index) -> tuple[Any, ...]:
        return (index("add", at.v, place[0]),)

    def size(self, at: At, entry: Entry, index: Index) -> Any:
        return at.nv


class PerCoordinate(PerFreedom):
    """One number per coordinate; must be the last of several outputs."""

    def shape(self, model: Model, entry: Entry) -> tuple[int, ...]:
        return (model.nq,)

    def indices(self, place: tuple[Any, ...], at: At, index: Index) -> tuple[Any, ...]:
        return (index("add", at.q, place[0]),)

    def size(self, at: At, entry: Entry, index: Index) -> Any:
        raise NotImplementedError("loops do not know how many coordinates there are: put this output last")


class PerBody(Output):
    """A pose, twist or wrench per body."""

    def collect(self, walk: Walk) -> list[Any]:
        return [getattr(here, self.name) for here in walk.here]

    def shape(self, model: Model, entry: Entry) -> tuple[int, ...]:
        return (model.n, *entry)

    def rank(self, entry: Entry) -> int:
        return 1 + len(entry)

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        return {("out", *index): x for index, x in numbered(plain(keep[self.name]))} if self.name in keep else {}

    def indices(self, place: tuple[Any, ...], at: At, index: Index) -> tuple[Any, ...]:
        return (at.i, *place)

    def size(self, at: At, entry: Entry, index: Index) -> Any:
        return index("mul", at.n, math.prod(entry))

    def flat(self, place: tuple[Any, ...], at: At, entry: Entry, index: Index) -> Any:
        return _row_by_row((at.i, *place), (0, *entry), index)


class AtBase(Output):
    """Values that the last pass hands to the base; several names, separated by spaces, give a tuple."""

    def collect(self, walk: Walk) -> Any:
        values = tuple(walk.arrived[name] for name in self.name.split())
        return values if len(values) > 1 else values[0]

    def shape(self, model: Model, entry: Entry) -> tuple[int, ...]:
        return entry

    def rank(self, entry: Entry) -> int:
        return len(entry)


class Cotangent(Output):
    """The cotangent of an input, placed like that input; the cotangent of q has one number per freedom."""

    @property
    def place(self) -> Place:
        return place_of(f"d{self.name}")

    def shape(self, model: Model, entry: Entry) -> tuple[int, ...]:
        return self.place.shape(model)

    def rank(self, entry: Entry) -> int:
        return self.place.rank

    def indices(self, place: tuple[Any, ...], at: At, index: Index) -> tuple[Any, ...]:
        if self.place.per == "nv":
            return (index("add", at.v, place[0]),)
        return (at.i, *place) if self.place.per else place

    def size(self, at: At, entry: Entry, index: Index) -> Any:
        each = self.place.numbers
        return {"nv": at.nv, "n": index("mul", at.n, each)}.get(self.place.per) or math.prod(self.place.sizes(0))

    def flat(self, place: tuple[Any, ...], at: At, entry: Entry, index: Index) -> Any:
        return _row_by_row(self.indices(place, at, index), self.place.sizes(0), index)


class Climbs(Output):
    """An output made by climbs to the base (`torsor.sweeps.Columns`)."""

    def rank(self, entry: Entry) -> int:
        return 2


class Path(Climbs):
    """The columns along the path from a frame to the base: a 6 x nv Jacobian."""

    def collect(self, walk: Walk) -> list[list[Scalar]]:
        columns: list[Sequence[Scalar]] = [(0.0,) * 6] * walk.first[-1]
        for i, keep in walk.path().items():
            for k, column in enumerate(keep[self.name]):
                columns[walk.first[i] + k] = column.coordinates
        return [list(row) for row in zip(*columns)]

    def shape(self, model: Model, entry: Entry) -> tuple[int, ...]:
        return (6, model.nv)

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        columns = enumerate(keep.get(self.name, ()))
        return {("out", row, r): x for r, column in columns for row, x in enumerate(column.coordinates)}

    def indices(self, place: tuple[Any, ...], at: At, index: Index) -> tuple[Any, ...]:
        return place[0], index("add", at.v, place[1])


class Matrix(Climbs):
    """An nv x nv matrix: each climb keeps the entries of a column.  `packing` says which are computed.

    A climb may keep several named sets of numbers: ("out", s, r) is the number of set s for freedom r.
    """

    @property
    def sets(self) -> tuple[str, ...]:
        """The names of the sets."""
        return (self.name,)

    def shape(self, model: Model, entry: Entry) -> tuple[int, ...]:
        return (model.nv, model.nv)

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        return {("out", s, r): x for s, name in enumerate(self.sets) for r, x in enumerate(keep.get(name, ()))}

    def packing(self, spreads: bool) -> str:
        """Which part of the matrix the columns store, with or without outward spread (`torsor.compiler.packing`)."""
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
    """The climbs keep both triangles, the lower one under a second name."""

    lower: str

    @property
    def sets(self) -> tuple[str, ...]:
        return self.name, self.lower

    def collect(self, walk: Walk) -> Mat:
        A = walk.zeros()
        for column, j, kept in walk.columns():
            for i, keep in kept.items():
                for r, x in enumerate(keep[self.name], walk.first[i]):
                    A[r][column] = x
                if i != j:
                    for r, x in enumerate(keep[self.lower], walk.first[i]):
                        A[column][r] = x
        return Mat.of(A)

    def packing(self, spreads: bool) -> str:
        return "two paths"


@dataclass(frozen=True)
class Gram(Matrix):
    """U^T X, symmetric: the climbs keep the columns of U and, under a second name, those of X."""

    other: str

    @property
    def sets(self) -> tuple[str, ...]:
        return self.name, self.other

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

    def packing(self, spreads: bool) -> str:
        return "product"


class Parameters(Matrix):
    """nv x 10 n: one climb per body keeps, for each freedom on its path, a number per inertial parameter of the
    body."""

    def collect(self, walk: Walk) -> Mat:
        Y: list[list[Scalar]] = [[0.0] * (INERTIAL * len(walk.links)) for _ in range(walk.first[-1])]
        for j in range(len(walk.links)):
            for i, keep in walk.climb(j, 0).items():
                for r, row in enumerate(keep[self.name], walk.first[i]):
                    Y[r][INERTIAL * j : INERTIAL * (j + 1)] = row
        return Mat.of(Y)

    def shape(self, model: Model, entry: Entry) -> tuple[int, ...]:
        return (model.nv, INERTIAL * model.n)

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        rows = enumerate(keep.get(self.name, ()))
        return {("out", 0, INERTIAL * r + p): x for r, row in rows for p, x in enumerate(row)}

    def packing(self, spreads: bool) -> str:
        return "parameters"


@dataclass(frozen=True)
class Response(TwoTriangles):
    """-A B: the climbs keep B in two triangles and, for the output `inverse`, the columns of A = U^T X."""

    inverse: Gram

    def collect(self, walk: Walk) -> Mat:
        return -self.inverse.collect(walk) @ super().collect(walk)

    def packing(self, spreads: bool) -> str:
        return "response"


class Several(Output):
    """Several named outputs: consecutive parts of one row of numbers.
    Loops write either matrices, or outputs per freedom, per body and at the base; straight-line code writes any
    mixture.
    """

    def __init__(self, **parts: Output) -> None:
        super().__init__(" ".join(parts))
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "results", namedtuple("Results", parts))

    parts: dict[str, Output]
    results: Any

    def collect(self, walk: Walk) -> list[Scalar]:
        return [x for part in self.parts.values() for _, x in numbered(plain(part.collect(walk)))]

    def shapes(self, model: Model, entry: Entry) -> dict[str, tuple[int, ...]]:
        """Of every part."""
        return {name: part.shape(model, entry.get(name, ())) for name, part in self.parts.items()}

    def shape(self, model: Model, entry: Entry) -> tuple[int, ...]:
        return (sum(map(math.prod, self.shapes(model, entry).values())),)

    def rank(self, entry: Entry) -> int:
        return 1

    def split(self, row: Any, shapes: Mapping[str, tuple[int, ...]]) -> Any:
        """An array (..., all numbers) as a named tuple of views (..., *shape)."""
        return self.splitter(shapes)(row)

    def splitter(self, shapes: Mapping[str, tuple[int, ...]]) -> Callable[[Any], Any]:
        """`split` prepared for these shapes, to be called for every state."""
        ends = list(accumulate(math.prod(shape) for shape in shapes.values()))
        parts = [(slice(a, b), shape) for a, b, shape in zip([0, *ends], ends, shapes.values())]

        def split(row: Any) -> Any:
            batch = row.shape[:-1]
            return self.results(*[
                row[..., part] if len(shape) == 1 else row[..., part].reshape((*batch, *shape)) for part, shape in parts
            ])  # fmt: skip

        return split

    def entries(self, keep: Keep) -> dict[Any, Scalar]:
        if matrices := matrices_of(self):  # their sets are numbered consecutively
            first = accumulate((len(part.sets) for part in matrices), initial=0)
            return {
                ("out", s + k, r): x for s, part in zip(first, matrices) for (_, k, r), x in part.entries(keep).items()
            }
        return {
            ("out", name, *place): x
            for name, part in self.parts.items()
            for (_, *place), x in part.entries(keep).items()
        }

    def indices(self, place: tuple[Any, ...], at: At, index: Index) -> tuple[Any, ...]:
        raise NotImplementedError("the parts have shapes: see `flat`")

    def flat(self, place: tuple[Any, ...], at: At, entry: Entry, index: Index) -> Any:
        first: Any = 0
        for name, part in self.parts.items():
            if name == place[0]:
                return index("add", first, part.flat(place[1:], at, entry.get(name, ()), index))
            first = index("add", first, part.size(at, entry.get(name, ()), index))
        raise KeyError(place[0])


def parts_of(output: Output) -> list[Output]:
    """The parts of `Several`, or the only output."""
    return list(output.parts.values()) if isinstance(output, Several) else [output]


def matrices_of(output: Output) -> list[Matrix]:
    return [part for part in parts_of(output) if isinstance(part, Matrix)]


def _row_by_row(indices: Sequence[Any], sizes: Sequence[int], index: Index) -> Any:
    place: Any = 0
    for k, size in zip(indices, (0, *sizes[1:]) if sizes else (0,) * len(indices)):
        place = index("add", index("mul", place, size), k) if size else k
    return place


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
