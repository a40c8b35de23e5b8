"""Values, gradients, Jacobians and Hessians of a function, in blocks with known zeros.

For y = f(x_1, ..., x_k) and a multiplier c, solvers of optimal control need

    value      y
    gradient   J^T c, one part per input
    jacobian   J, one block per input
    hessian    d(J^T c)/dx, one block per pair of inputs, and d(J^T c)/dc = J^T

Each is a `BlockTable`: a row of numbers per state, computed by a few programs, and the places of the entries in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.backends.cpu import Program
from torsor.dynamics.derivatives import DIFFERENTIABLE, jvp, vjp
from torsor.dynamics.functions import (
    forward_dynamics,
    forward_dynamics_derivatives,
    inverse_dynamics,
    inverse_dynamics_derivatives,
)
from torsor.dynamics.jacobians import MOST_DENSE
from torsor.dynamics.matrix_gradients import MatrixGradient
from torsor.dynamics.programs import compile
from torsor.inputs import COORDINATES, COTANGENT, place_of
from torsor.model.model import Model

Array = NDArray[Any]

# Functions whose Jacobian with respect to their first three inputs is a separate algorithm; it takes a sixteenth of the
# time of the jvp along all unit vectors (50 states of the Panda).
WHOLE = {forward_dynamics: forward_dynamics_derivatives, inverse_dynamics: inverse_dynamics_derivatives}
# An entry is a structural zero if it is exactly zero at this many random states.
PROBES, SEED = 3, 0


def random_states(program: Program, count: int, seed: int = SEED) -> list[Array]:
    """Random inputs (count, ...) of a program, the same every time."""
    rng, model = np.random.default_rng(seed), program.model
    result = []
    for name in program.inputs:
        place = place_of(name)
        x = model.random_configuration(rng, count) if place is COORDINATES else rng.normal(
            size=(count, *place.shape(model))
        )  # fmt: skip
        result.append(x.astype(program.dtype))
    return result


class Portion(NamedTuple):
    """Numbers of a row that one program computes, for one direction after the other.

    name    the name of the numbers
    first   the index of the first
    along   the input that takes all unit vectors one after the other, or nothing
    """

    name: str
    program: Program
    first: int
    along: str | None = None

    @property
    def size(self) -> int:
        """The count of numbers for one direction."""
        return prod(self.program.shape)

    @property
    def directions(self) -> int:
        return prod(place_of(self.along).shape(self.program.model)) if self.along else 1

    @property
    def end(self) -> int:
        return self.first + self.size * self.directions

    def run(self, given: Mapping[str, Array], out: Array) -> None:
        """Compute the numbers at many states: out (directions, states, size)."""
        program, own = self.program, {}
        if self.along:
            own[self.along] = np.eye(len(out)).reshape(-1, 1, *place_of(self.along).shape(program.model))
        arrays = (own[x] if x in own else given[x] for x in program.inputs)
        program.rows(*arrays, out=out.reshape(*out.shape[:2], *program.shape))

    def places(self, count: int) -> Array:
        """The places of a row's numbers for many states, (states, directions * size), after `first` of all states."""
        found = np.arange(self.directions * count * self.size).reshape(self.directions, count, self.size)
        return self.first * count + found.swapaxes(0, 1).reshape(count, -1)


@dataclass(frozen=True, eq=False)
class Block:
    """A matrix whose entries are numbers of a row.

    shape    of the matrix
    index    for each entry that is not a structural zero, column by column: its place in the row
    rows     the row of each of these entries
    starts   where each column begins among them, and their number
    """

    shape: tuple[int, int]
    index: Array
    rows: Array
    starts: Array

    @classmethod
    def of(cls, places: Array, keep: Array) -> Block:
        """A block from the places of all entries and whether each is kept."""
        columns, rows = np.nonzero(keep.T)
        starts = np.searchsorted(columns, np.arange(places.shape[1] + 1))
        return cls(places.shape, places.T[columns, rows], rows, starts)

    @property
    def is_dense(self) -> bool:
        return len(self.index) == prod(self.shape)


@dataclass(frozen=True, eq=False)
class BlockTable:
    """Rows of numbers, one per state, and the blocks in them."""

    parts: tuple[Portion, ...]
    blocks: tuple[Block, ...]

    @property
    def width(self) -> int:
        return self.parts[-1].end if self.parts else 0

    def numbers(self, given: Mapping[str, Array], count: int) -> Array:
        """All numbers at the states `given`, an array (count, ...) per input: portion by portion."""
        found = np.empty(self.width * count)
        for part in self.parts:
            own = found[part.first * count : part.end * count]
            part.run(given, own.reshape(part.directions, count, part.size))
        return found

    def places(self, count: int) -> Array:
        """The places of the rows of this many states among these numbers, (count, width)."""
        return np.concatenate([part.places(count) for part in self.parts], axis=1)


class Blocks:
    """The tables of a function of one model, made on demand.

    function  any function that `compile` takes;  options: those of `compile`
    inputs    the names of its inputs
    shapes    of one state of each
    sizes     their counts of numbers;  widths: those of their derivatives, one fewer for quaternions
    """

    def __init__(self, model: Model, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self.model, self.function, self.options = model, function, dict(options)
        self.program: Program = compile(model, function, **options)
        self.inputs = self.program.inputs
        self.shapes = self.program.request.input_shapes
        self.sizes = [prod(shape) for shape in self.shapes]
        self.widths = [prod(place_of(f"d{name}").shape(model)) for name in self.inputs]
        self.count = prod(self.program.shape)

    @property
    def has_quaternions(self) -> bool:
        """Whether derivatives with respect to q have fewer numbers than q."""
        return self.sizes != self.widths

    @property
    def has_derivatives(self) -> bool:
        return self.function in DIFFERENTIABLE

    @cached_property
    def has_gradient(self) -> bool:
        """Whether J^T c is one program; for large matrices it is not, and they have no second derivatives."""
        return self.has_derivatives and not isinstance(self._gradient, MatrixGradient)

    @cached_property
    def _gradient(self) -> Any:
        return compile(self.model, vjp(self.function, self.inputs), **self.options)

    @property
    def multiplier(self) -> str:
        """The name of c."""
        return next(name for name in self._gradient.inputs if name.startswith(COTANGENT))

    @cached_property
    def value(self) -> BlockTable:
        return BlockTable((Portion("value", self.program, 0),), (_dense(np.arange(self.count)[:, None]),))

    @cached_property
    def gradient(self) -> BlockTable:
        edges = np.cumsum([0, *self.widths])
        parts = [np.arange(a, b)[:, None] for a, b in pairwise(edges)]
        return BlockTable((Portion("gradient", self._gradient, 0),), tuple(map(_dense, parts)))

    @cached_property
    def jacobian(self) -> BlockTable:
        parts, places = self._slopes(0)
        found = self._not_zero(parts)
        return BlockTable(parts, tuple(Block.of(x, found[x]) for x in places))

    @cached_property
    def hessian(self) -> BlockTable:
        """For every input: the blocks with respect to all inputs and to c."""
        first = self._curvatures()
        slopes, jacobian = self._slopes(first[-1].end)
        found = self._not_zero((*first, *slopes))
        used = tuple(part for part in first if found[part.first : part.end].any())
        moved = self._moved(first, used, slopes)
        blocks = []
        for a in range(len(self.inputs)):
            for b in range(len(self.inputs)):
                places, keep = self._second(first, a, b, found)
                blocks.append(Block.of(moved[places], keep))
            blocks.append(Block.of(moved[jacobian[a].T], found[jacobian[a].T]))
        end, kept = 0, []
        for part in (*used, *slopes):
            kept.append(part._replace(first=end))
            end = kept[-1].end
        return BlockTable(tuple(kept), tuple(blocks))

    def _slopes(self, first: int) -> tuple[tuple[Portion, ...], list[Array]]:
        """The programs of the Jacobian, and for each input the places (numbers of y, width) of its entries."""
        parts: list[Portion] = []
        places = []
        whole = self._whole()
        if whole is not None:
            parts.append(Portion("jacobian", whole, first))
            edges = np.cumsum([first, *(prod(shape) for shape in whole.request.parts.values())])
            places += [np.arange(a, b).reshape(self.count, -1) for a, b in pairwise(edges)]
        for name, width in list(zip(self.inputs, self.widths))[len(places) :]:
            start, program = parts[-1].end if parts else first, self._compiled(jvp(self.function, name))
            part = Portion(f"jacobian_{name}", program, start, f"d{name}")
            parts.append(part)
            places.append(np.arange(part.first, part.end).reshape(width, self.count).T)
        return tuple(parts), places

    def _whole(self) -> Any:
        """The program of the Jacobian with respect to the first three inputs, if there is one."""
        usual = self.options.get("method", "auto") == "auto" and not self.model.couplings
        if self.function not in WHOLE or not usual or self.model.nv > MOST_DENSE:
            return None
        return self._compiled(WHOLE[self.function])

    def _curvatures(self) -> tuple[Portion, ...]:
        """The programs of second derivatives: for every input, along its unit vectors, with respect to it and later
        ones."""
        parts: list[Portion] = []
        for a, name in enumerate(self.inputs):
            program = self._compiled(vjp(jvp(self.function, name), self.inputs[a:]))
            parts.append(Portion(f"hessian_{name}", program, parts[-1].end if parts else 0, f"d{name}"))
        return tuple(parts)

    def _second(self, parts: tuple[Portion, ...], a: int, b: int, found: Array) -> tuple[Array, Array]:
        """The places of the entries (width of a, width of b) of a block of the Hessian, and whether each is kept.

        Second derivatives are symmetric, except with respect to quaternions, along axes that rotate with the body.
        """
        if b < a:
            places, keep = self._second(parts, b, a, found)
            return places.T, keep.T
        part, before = parts[a], sum(self.widths[a:b])
        places = np.arange(part.first, part.end).reshape(part.directions, part.size)[:, before:][:, : self.widths[b]]
        keep = found[places]
        return places, keep | keep.T if a == b else keep

    @staticmethod
    def _moved(first: tuple[Portion, ...], used: tuple[Portion, ...], slopes: tuple[Portion, ...]) -> Array:
        """The places of a row's numbers when unused parts are omitted."""
        lengths = [(part.end - part.first, part in used or part in slopes) for part in (*first, *slopes)]
        return np.cumsum(np.concatenate([np.full(n, kept, int) for n, kept in lengths])) - 1

    def _not_zero(self, parts: tuple[Portion, ...]) -> Array:
        """Which numbers of a row are not structural zeros."""
        given = dict(zip(self.inputs, random_states(self.program, PROBES)))
        rng = np.random.default_rng(SEED)
        for part in parts:
            for name in part.program.inputs:
                if name.startswith(COTANGENT):
                    given[name] = rng.normal(size=(PROBES, *self.program.shape))
        table = BlockTable(parts, ())
        return (table.numbers(given, PROBES)[table.places(PROBES)] != 0).any(axis=0)

    def _compiled(self, function: Any) -> Program:
        return compile(self.model, function, **self.options)


def _dense(places: Array) -> Block:
    return Block.of(places, np.ones(places.shape, bool))
