"""The loops of an algorithm over the bodies of a model, written once for every language.

Values that one body hands to the next stay in registers if the next body is its child; they go through memory only at
branches.  A backend supplies the language (`language.py`) and the memory.  The memory consists of the arrays, the
values kept at each body, the values handed on at branches, and the tables of the model (`abi.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torsor.compiler.abi import BASE_BRANCHES, BASE_PLACES, BRANCHES, CHAINED, FIRST, IS_TREE
from torsor.compiler.language import Int, Language, Loop
from torsor.compiler.packing import HEADER, TILE, TOGETHER
from torsor.compiler.tape import Code
from torsor.compiler.trace import LoopCode, LoopColumns, LoopPass
from torsor.inputs import MEMBERS, place_of
from torsor.outputs import At, Matrix, Several, matrices_of


@dataclass
class Body:
    """The body of a step: its number and its row of the index table."""

    i: Int
    kind: Int
    parent: Int
    q: Int
    v: Int
    flags: Int
    freedoms: Int
    numbers: Int
    above: Int


class RowsOfNumbers(Protocol):
    """Scratch memory: numbers by row and index."""

    def get(self, row: Int, k: int) -> str: ...
    def put(self, x: str, row: Int, k: int) -> None: ...


class ArraysOfCall(Protocol):
    """The arrays of a call, for one state.  A matrix is addressed by places, not by indices (see `packing.py`)."""

    def sizes(self, name: str) -> Sequence[Int]: ...
    def get(self, name: str, *indices: Int) -> str: ...
    def put(self, x: str, name: str, *indices: Int) -> None: ...
    def get_at(self, place: Int) -> str: ...
    def put_at(self, x: str, place: Int) -> None: ...
    def finish(self) -> None: ...


class LoopMemory(Protocol):
    """The memory of a backend: arrays, kept values, values handed on (row -1 is the base), tables, and integers."""

    @property
    def arrays(self) -> ArraysOfCall: ...
    @property
    def kept(self) -> RowsOfNumbers: ...
    @property
    def handed(self) -> RowsOfNumbers: ...
    @property
    def n(self) -> Int: ...
    @property
    def nv(self) -> Int: ...
    @property
    def flags(self) -> Int: ...
    @property
    def start(self) -> Int: ...  # the body where a path starts
    @property
    def second(self) -> Int: ...
    @property
    def product_count(self) -> Int: ...
    @property
    def first_entry(self) -> Int: ...

    def body(self, i: Int) -> Body: ...
    def number(self, body: Body, kind: int, name: str) -> str: ...
    def base(self, k: int) -> str: ...
    def turn(self, place: Int) -> tuple[str, str] | None: ...  # sine and cosine of an entry of q, if they are known
    def column(self, freedom: Int) -> Int: ...
    def products(self, place: Int, words: int) -> list[Int]: ...


class Loops:
    """Writes the loops of an algorithm."""

    def __init__(self, w: Language, code: LoopCode, memory: LoopMemory) -> None:
        self.w, self.code, self.memory = w, code, memory
        self.output = code.algorithm.output
        self.column: Int | None = None  # the place of the first entry of the current column
        self.arrived: dict[Any, str] = {}  # the values that passes have handed to the base

    def write(self) -> None:
        zero = self._zero() if self.code.hides_inputs else None
        at_base = {name for code in self.code.base_codes for name in code.inputs}
        for p in self.code.passes:
            handed = self.sweep(p)
            names = [("arrived", k, p.stage) for k in p.live]
            if at_base.intersection(names):
                self.arrived |= zip(names, self._at_base(handed))
        if self.code.columns and self.code.packing:
            self._matrix(self.code.columns)
        elif self.code.columns:
            self._path(self.code.columns)
        if self.code.finish:
            for name, x in self.w.emit(self.code.finish, self._base).items():
                self._put_output(name[1:], At(0, 0, 0, self.memory.n, self.memory.nv), x)
        if zero:
            self._taint(zero)
        self.memory.arrays.finish()

    # -- what steps read and write

    def _base(self, name: Any) -> str:
        """A value at the base: gravity, the frame of a path, the motion of the base, or a value that arrived there."""
        if name[0] == "arrived":
            return self.arrived[name]
        if name[0] == "base":
            return self.memory.base(BASE_PLACES[name[1]] + name[2])
        return self.memory.arrays.get(*name)

    def reader(self, body: Body, near: dict[Any, str], kind: int) -> Callable[[Any], str]:
        """The function that reads the inputs of a step at a body."""

        def read(name: Any) -> str:
            first = name[0]
            if first == "near":
                return near[name]
            if first == "kept":
                return self.memory.kept.get(body.i, self.code.slots[name])
            if first == "number":
                return self.memory.number(body, kind, name[1])
            per = "" if first == "base" else place_of(first).per
            if not per:
                return self._base(name)
            if per == "n":
                return self.memory.arrays.get(first, body.i, *name[1:])
            start = body.q if per == "nq" else body.v
            return self.memory.arrays.get(first, self.w.index("add", start, name[1]))

        return read

    def _emit(self, code: Code, body: Body, near: dict[Any, str], kind: int) -> dict[Any, str]:
        """Write a step at a body; returns its outputs."""

        def turn(name: Any) -> tuple[str, str] | None:
            return self.memory.turn(self.w.index("add", body.q, name[1])) if name[0] == "q" else None

        return self.w.emit(code, self.reader(body, near, kind), turn)

    def _put(self, body: Body, values: dict[Any, str]) -> None:
        """Store the values that a step keeps, and its part of the output."""
        for name, x in values.items():
            if name[0] == "kept":
                self.memory.kept.put(x, body.i, self.code.slots[name])
            elif name[0] == "out" and self.code.packing:
                self._put_entry(body, name, x)
            elif name[0] == "out":
                self._put_output(name[1:], At(body.i, body.q, body.v, self.memory.n, self.memory.nv), x)

    def _put_output(self, place: Any, at: At, x: str) -> None:
        if isinstance(self.output, Several):
            indices = (self.output.flat(place, at, self.code.entry, self.w.index),)
        else:
            indices = self.output.indices(place, at, self.w.index)
        self.memory.arrays.put(x, "out", *indices)

    def _put_entry(self, body: Body, name: Any, x: str) -> None:
        """Store an entry of the current column; the columns of its further sets follow it."""
        assert self.column is not None
        _, k, r = name
        place = self.w.index("add", self.column, self.w.index("add", body.above, r))
        if k:
            place = self.w.index("add", place, self.w.index("mul", self.memory.second, k))
        self.memory.arrays.put_at(x, place)

    def step(self, selector: Int, cases: Sequence[tuple[int, int, Code]], body: Body, near: dict[Any, str],
             live: Sequence[int]) -> list[str]:  # fmt: skip
        """Run the selected case (case, kind, code); returns the values handed on."""

        def run(kind: int, code: Code) -> list[str]:
            values = self._emit(code, body, near, kind)
            self._put(body, values)
            return [values["hand", k] for k in live]

        return self.w.switch(selector, [(case, partial(run, kind, code)) for case, kind, code in cases])

    def climb_step(self, c: LoopColumns, selector: Int, cases: Sequence[tuple[int, int, Code]], body: Body,
                   near: dict[Any, str]) -> list[str]:  # fmt: skip
        """`step` in a climb.  Nothing reads the values that a root body hands on: if they are many, skip them."""
        if not c.hands_much:
            return self.step(selector, cases, body, near, c.live)
        w, last = self.w, self.w.compare("<", body.parent, 0)
        unread = [near.get(("near", k)) or w.const(0.0) for k in c.live]

        def run(kind: int, code: Code) -> list[str]:
            own, handing = c.parts(code)
            self._put(body, self._emit(own, body, near, kind))

            def handed() -> list[str]:
                values = self._emit(handing, body, near, kind)
                return [values["hand", k] for k in c.live]

            return w.when(last, unread, handed)

        return w.switch(selector, [(case, partial(run, kind, code)) for case, kind, code in cases])

    # -- passes

    def sweep(self, p: LoopPass, end: Int | None = None) -> list[str]:
        """A pass over all bodies, or outward over those before `end`.  Returns the values that body 0 hands to the
        base."""
        w, memory = self.w, self.memory
        values = w.emit(p.start, self._base)
        start = [values["near", k] for k in p.live]
        if p.outward and start:
            w.unless(w.has_no(memory.flags, IS_TREE), lambda: self._hand(start, -1))
        first: Int = 0 if p.outward else w.index("sub", memory.n, 1)
        with w.loop("outward" if p.outward else "inward", first, start) as loop:
            if p.outward:
                self._outward(p, loop)
                loop.count_to(w, memory.n if end is None else end)
            else:
                self._inward(p, loop, start)
                loop.next = w.index("sub", loop.i, 1)
                loop.again = w.compare(">=", loop.next, 0)
        return [] if p.outward else list(loop.carry)

    def _at_base(self, arrived: Sequence[str]) -> list[str]:
        """The values that arrived at the base: in registers from body 0, in memory from other roots."""
        one_root = self.w.has_no(self.memory.flags, BASE_BRANCHES)
        return self.w.when(one_root, arrived, lambda: self._with_handed(arrived, -1))

    def _hand(self, values: Sequence[str], i: Int) -> None:
        for k, x in enumerate(values):
            self.memory.handed.put(x, i, k)

    def _with_handed(self, values: Sequence[str], i: Int) -> list[str]:
        """Values added to those handed through memory."""
        return [self.w.operation("add", x, self.memory.handed.get(i, k)) for k, x in enumerate(values)]

    def _outward(self, p: LoopPass, loop: Loop) -> None:
        w, memory = self.w, self.memory
        body, near = memory.body(loop.i), list(loop.carried)
        if near:
            count = range(len(near))
            near = w.when(w.has(body.flags, CHAINED), near, lambda: [memory.handed.get(body.parent, k) for k in count])
        hand = self.step(body.kind, cases(p.codes), body, named(near, p.live), p.live)
        if hand:
            w.unless(w.has_no(body.flags, BRANCHES), lambda: self._hand(hand, body.i))
        loop.carry = hand

    def _inward(self, p: LoopPass, loop: Loop, start: Sequence[str]) -> None:
        w, memory = self.w, self.memory
        body, near = memory.body(loop.i), list(loop.carried)
        if near:
            near = w.when(w.has_no(body.flags, BRANCHES), near, lambda: self._with_handed(loop.carried, body.i))
        hand = self.step(body.kind, cases(p.codes), body, named(near, p.live), p.live)

        def to_memory() -> Sequence[str]:
            total = w.when(w.has(body.flags, FIRST), hand, lambda: self._with_handed(hand, body.parent))
            self._hand(total, body.parent)
            return start

        loop.carry = w.when(w.has(body.flags, CHAINED), hand, to_memory) if hand else []

    # -- matrices

    def _matrix(self, c: LoopColumns) -> None:
        """One column per freedom of every body.  For a symmetric matrix, bodies after that of the column are
        skipped."""
        w, memory = self.w, self.memory
        symmetric = isinstance(self.output, Matrix) and self.output.symmetric
        memory.arrays.put_at(w.const(0.0), 0)  # for entries that are in no column
        with w.loop("body", 0) as bodies:
            body = memory.body(bodies.i)
            end = w.index("add", body.i, 1) if symmetric else memory.n
            with w.loop("freedom", 0) as freedom:
                self.column = memory.column(w.index("add", body.v, freedom.i))
                if c.rest:
                    self._rest(c, end)
                self._climb(c, body, freedom.i)
                if c.outward:
                    self.sweep(c.outward, end)
                freedom.count_to(w, 1 if c.per_body else body.freedoms)
            bodies.count_to(w, memory.n)
        if "product" in self.code.packing:
            self._product()
        if "response" in self.code.packing:
            self._responses()

    def _product(self) -> None:
        """sum u x over the freedoms that two columns share, for all pairs that share some."""
        w, memory, arrays = self.w, self.memory, self.memory.arrays
        sets = sum(len(matrix.sets) for matrix in matrices_of(self.output))
        results = w.index("add", w.index("mul", memory.second, sets), 1)
        with w.loop("product", 0) as row:
            u, shared, *xs = memory.products(w.index("mul", row.i, 2 + TOGETHER), 2 + TOGETHER)
            with w.loop("shared", 0, [w.const(0.0)] * TOGETHER) as loop:
                factor, *others = (arrays.get_at(w.index("add", place, loop.i)) for place in (u, *xs))
                loop.carry = [w.operation("fmadd", factor, x, sum_) for x, sum_ in zip(others, loop.carried)]
                loop.count_to(w, shared)
            first = w.index("add", results, w.index("mul", row.i, TOGETHER))
            for k, sum_ in enumerate(loop.carry):
                arrays.put_at(sum_, w.index("add", first, k))
            row.count_to(w, memory.product_count)

    def _responses(self) -> None:
        """-A B in tiles of several rows and columns, so that each number read serves several entries (`packing.py`)."""
        w, memory, arrays = self.w, self.memory, self.memory.arrays
        high, wide = TILE
        table = w.index("mul", memory.product_count, 2 + TOGETHER)
        column_groups, row_groups, terms, first = memory.products(table, HEADER)
        heads = w.index("add", table, HEADER)
        rows = w.index("add", heads, w.index("mul", column_groups, 2))
        terms = w.index("add", table, terms)
        with w.loop("columns", 0) as group:
            begin, count = memory.products(w.index("add", heads, w.index("mul", group.i, 2)), 2)
            begin = w.index("add", terms, w.index("mul", begin, 1 + wide))
            with w.loop("rows", 0) as above:
                places = w.index("add", rows, w.index("mul", w.index("mul", above.i, memory.nv), high))
                with w.loop("term", 0, [w.const(0.0)] * (high * wide)) as term:
                    at = w.index("add", begin, w.index("mul", term.i, 1 + wide))
                    k, *others = memory.products(at, 1 + wide)
                    A = memory.products(w.index("add", places, w.index("mul", k, high)), high)
                    a, b = [arrays.get_at(x) for x in A], [arrays.get_at(x) for x in others]
                    products = ((x, y) for x in a for y in b)
                    term.carry = [w.operation("fnmadd", x, y, z) for (x, y), z in zip(products, term.carried)]
                    term.count_to(w, count)
                tile = w.index("add", w.index("mul", group.i, row_groups), above.i)
                place = w.index("add", first, w.index("mul", tile, high * wide))
                for k, x in enumerate(term.carry):
                    arrays.put_at(x, w.index("add", place, k))
                above.count_to(w, row_groups)
            group.count_to(w, column_groups)

    def _path(self, c: LoopColumns) -> None:
        w, memory = self.w, self.memory
        with w.loop("row", 0) as row:  # entries that the climb does not reach are zero
            with w.loop("entry", 0) as entry:
                memory.arrays.put(w.const(0.0), "out", row.i, entry.i)
                entry.count_to(w, memory.nv)
            row.count_to(w, 6)
        on_base = w.compare("<", memory.start, 0)
        w.unless(on_base, lambda: self._climb(c, memory.body(memory.start), 0))

    def _rest(self, c: LoopColumns, end: Int) -> None:
        with self.w.loop("rest", 0) as loop:
            for name in c.rest:
                if name in self.code.slots:
                    self.memory.kept.put(self.w.const(0.0), loop.i, self.code.slots[name])
            loop.count_to(self.w, end)

    def _climb(self, c: LoopColumns, body: Body, freedom: Int) -> None:
        w = self.w
        selector = w.index("add", w.index("mul", body.kind, 8), freedom)
        starts = [(8 * kind + k, kind, code) for (kind, k), code in c.starts.items()]
        hand = self.climb_step(c, selector, starts, body, {})

        def up() -> None:
            with w.loop("climb", body.parent, hand) as loop:
                above = self.memory.body(loop.i)
                loop.carry = self.climb_step(c, above.kind, cases(c.codes), above, named(loop.carried, c.live))
                loop.next = above.parent
                loop.again = w.compare(">=", loop.next, 0)

        w.unless(w.compare("<", body.parent, 0), up)

    # -- numbers that are not finite

    def _zero(self) -> str:
        """0, or NaN if an input is not finite."""
        w, arrays, total = self.w, self.memory.arrays, self.w.const(0.0)

        def over(name: str, sizes: Sequence[Int], indices: Sequence[Int], total: str) -> str:
            if not sizes:
                return w.operation("add", total, w.operation("zero", arrays.get(name, *indices)))
            with w.loop("entry", 0, [total]) as entry:
                entry.carry = [over(name, sizes[1:], (*indices, entry.i), entry.carried[0])]
                entry.count_to(w, sizes[0])
            return entry.carry[0]

        for name in self.code.inputs:
            if name not in MEMBERS:  # the models of a batch are checked
                total = over(name, arrays.sizes(name), (), total)
        return total

    def _taint(self, zero: str) -> None:
        """Subtract `zero` from the first entry of the output, so that a NaN shows there."""
        w, arrays = self.w, self.memory.arrays
        if self.code.packing:
            place = self.memory.first_entry
            arrays.put_at(w.operation("sub", arrays.get_at(place), zero), place)
        else:
            first: list[Int] = [0] * self.code.rank
            arrays.put(w.operation("sub", arrays.get("out", *first), zero), "out", *first)


def named(values: Sequence[str], live: Sequence[int]) -> dict[Any, str]:
    """The values handed on, by the names of the next step's inputs."""
    return {("near", k): x for k, x in zip(live, values)}


def cases(codes: Sequence[Code]) -> list[tuple[int, int, Code]]:
    """(case, kind, code) of a step: one case per kind of body."""
    return [(kind, kind, code) for kind, code in enumerate(codes)]
