"""Kernels: the code of an algorithm put between the arrays of a call.

`unrolled_kernel` is one straight line for one model.  `loop_kernel` walks over the bodies of any model whose
kinds it knows; the model is data (see `data.py`):

    work     the turned arrays (see `Arrays`), for every body what is kept there, then (trees only) for the base and
             every body what it hands on

What is handed on stays in registers from a body to the next if that is its child; only at branches does it go
through memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torsor.kernel.data import (
    BASE,
    BASE_BRANCHES,
    BASE_PLACES,
    BODIES,
    BRANCHES,
    CHAINED,
    COLUMNS,
    ENTRIES,
    FIRST,
    FLAGS,
    FREEDOMS,
    FROM,
    INDEX,
    INDEX_WORDS,
    IS_TREE,
    NUMBERS,
    PLACES,
    PRODUCT_COUNT,
    PRODUCTS,
    SECOND,
    SIZES,
    WORDS,
)  # fmt: skip
from torsor.kernel.entry import kernel_module, rows_to_vectors, vectors_to_rows
from torsor.kernel.language import Loops, cases, named
from torsor.kernel.llvm import Target, Writer
from torsor.kernel.packing import TOGETHER
from torsor.kernel.tape import Code
from torsor.kernel.trace import LoopCode, LoopColumns, LoopPass

# Rows of so many numbers, a few vectors, are turned on the spot in straight-line code.
FEWEST, FEW = 4, 16
# Output of more bytes than this is written past the caches, which could not hold it anyway.
STREAMED = 8 << 20


class Packed(NamedTuple):
    """How an output is packed."""

    size: str  # how many places there are
    entries: str  # pointer to the place of every entry, int32


class Arrays:
    """The arrays of a call, seen from a block of states.

    One state reads and writes them where they are.  A block of states first copies its part of every input to
    scratch memory, turned so that the states lie side by side, and copies the output back in the end: rows of
    contiguous numbers are turned several columns at a time, much faster than gathered one by one.

    A packed output is put to places, among which all its entries are found in the end: those that are equal are
    computed, and held, once.
    """

    def __init__(self, w: Writer, inputs: Mapping[str, int], output_rank: int, sizes_at: int,
                 packed: Packed | None = None, columns: Mapping[str, int] | None = None) -> None:  # fmt: skip
        """`sizes_at`: the word of `data` where the sizes of all axes of all arrays begin; `columns`: how many numbers
        an array has a state, where that is known here: a few are turned on the spot and never go through a buffer."""
        self.w, self.packed = w, packed
        self.turned = w.target.lanes > 1
        self.places: dict[str, tuple[str, list[str], list[str]]] = {}  # pointer, strides, sizes
        self.buffers: dict[str, str] = {}
        self.lane_steps: dict[str, str] = {}
        self.end = "%work"  # scratch memory behind the buffers
        ranks = {**inputs, "out": output_rank}
        axis = 0
        for a, (name, rank) in enumerate(ranks.items()):
            step = w.load_i64("%steps", a)
            pointer = w.address(w.load_ptr("%args", a), w.i64("mul", step, "%first"))
            strides = [w.load_i64("%steps", len(ranks) + axis + k) for k in range(rank)]
            sizes = [w.load_i64("%data", sizes_at + axis + k) for k in range(rank)]
            axis += rank
            self.places[name], self.lane_steps[name] = (pointer, strides, sizes), step
            places = packed.size if packed and name == "out" else None
            if self.turned or places:
                self.buffers[name] = self.end
                count = places or self._count(sizes)
                self.end = w.address(self.end, w.i64("mul", count, w.target.lanes * w.target.size))
        few = {name: n for name, n in (columns or {}).items() if w.target.lanes >= FEWEST <= n <= FEW}
        self.vectors: dict[str, list[str]] = {}  # columns that never go through a buffer
        self.results = [""] * few.pop("out", 0)  # likewise, of the output
        if self.turned:
            for name in inputs:
                if name not in few:
                    self._copy("turn_in", name)
        if few:
            self._turn_few(few)

    def _turn_few(self, few: Mapping[str, int]) -> None:
        """Rows of contiguous numbers are turned here; others by way of the buffer."""
        w = self.w
        quick, slow, done = (w.new_label(name) for name in ("rows", "others", "turned"))
        contiguous = w.op("icmp eq i64 0, 0")
        for name in few:
            contiguous = w.op(f"and i1 {contiguous}, {self._contiguous(name)}")
        w.branch(contiguous, quick, slow)
        w.start(quick)
        turned = {name: rows_to_vectors(w, self.places[name][0], self.lane_steps[name], n) for name, n in few.items()}
        w.jump(done)
        w.start(slow)
        for name in few:
            self._copy("turn_in", name)
        width = w.target.lanes * w.target.size
        copied = {name: [w.load(w.address(self.buffers[name], k * width)) for k in range(n)] for name, n in few.items()}
        w.jump(done)
        w.start(done)
        for name in few:
            pairs = zip(turned[name], copied[name])
            self.vectors[name] = [w.merge(w.target.vector, (x, quick), (y, slow)) for x, y in pairs]

    def zero(self) -> str:
        """0, or NaN where an input is not finite."""
        w, total = self.w, self.w.target.const(0.0)
        for name, (_, _, sizes) in self.places.items():
            if name == "out":
                continue
            rows, columns = [*sizes, "1"][:2]
            with w.loop("rows", "0", [(w.target.vector, total)]) as row:
                with w.loop("columns", "0", [(w.target.vector, row.carried[0])]) as column:
                    x = self.get(name, row.i, column.i) if len(sizes) == 2 else self.get(name, row.i)
                    column.carry = [w.arithmetic("fadd", column.carried[0], w.operation("zero", x))]
                    column.count_to(w, columns)
                row.carry = column.carry
                row.count_to(w, rows)
            (total,) = row.carry
        return total

    def taint(self, zero: str) -> None:
        """Show what `zero` says in the first entry of the output."""
        first = [0] * len(self.places["out"][2])
        if self.packed:
            place = self.w.op(f"load i32, ptr {self.packed.entries}, align 4")
            place = self.w.op(f"sext i32 {place} to i64")
            self.put_at(self.w.arithmetic("fsub", self.get_at(place), zero), place)
        else:
            self.put(self.w.arithmetic("fsub", self.get("out", *first), zero), "out", *first)

    def finish(self) -> None:
        """The output is complete."""
        if self.packed:
            self._copy("unpack", "out", self.packed.entries)
        elif self.results:
            self._finish_few()
        elif self.turned:
            self._copy("turn_out", "out")

    def _finish_few(self) -> None:
        w = self.w
        quick, slow, done = (w.new_label(name) for name in ("rows", "others", "finished"))
        w.branch(self._contiguous("out"), quick, slow)
        w.start(quick)
        vectors_to_rows(w, self.results, self.places["out"][0], self.lane_steps["out"])
        w.jump(done)
        w.start(slow)
        for k, x in enumerate(self.results):
            w.store(x, w.address(self.buffers["out"], k * w.target.lanes * w.target.size))
        self._copy("turn_out", "out")
        w.jump(done)
        w.start(done)

    def _count(self, sizes: Sequence[str]) -> str:
        count = "1"
        for size in sizes:
            count = self.w.i64("mul", count, size)
        return count

    def _copy(self, direction: str, name: str, *entries: str) -> None:
        w, T = self.w, self.w.target
        pointer, strides, sizes = self.places[name]
        contiguous = self._contiguous(name)
        axes = ["1", "1", "1", *sizes][-3:], ["0", "0", "0", *strides][-3:]
        numbers = ", ".join(f"i64 {x}" for x in (*axes[0], *axes[1]))
        states = w.load_i64("%work", -1)
        stream = w.op(f"icmp sgt i64 {w.i64('mul', states, self.lane_steps[name])}, {STREAMED}")
        w.turnings.add(direction)
        pointers = ", ".join(f"ptr {x}" for x in (self.buffers[name], *entries))
        w.do(f"call void @{direction}_{T.lanes}(ptr {pointer}, i64 {self.lane_steps[name]}, {numbers}, "
             f"i1 {contiguous}, i1 {stream}, {pointers})")  # fmt: skip

    def _contiguous(self, name: str) -> str:
        """Whether the numbers of a state follow each other."""
        w = self.w
        _, strides, sizes = self.places[name]
        packed, contiguous = str(w.target.size), w.op("icmp eq i64 0, 0")
        for stride, size in zip(reversed(strides), reversed(sizes)):
            same = w.op(f"icmp eq i64 {stride}, {packed}")
            contiguous = w.op(f"and i1 {contiguous}, {same}")
            packed = w.i64("mul", packed, size)
        return contiguous

    def _address(self, name: str, indices: Sequence[str | int]) -> str:
        pointer, strides, sizes = self.places[name]
        if not self.turned:
            for stride, index in zip(strides, indices):
                if index != 0:
                    pointer = self.w.address(pointer, self.w.i64("mul", stride, index))
            return pointer
        flat: str | int = indices[0] if indices else 0
        for index, size in zip(indices[1:], sizes[1:]):
            flat = self.w.i64("add", self.w.i64("mul", flat, size), index)
        width = self.w.target.lanes * self.w.target.size
        offset = flat * width if isinstance(flat, int) else self.w.i64("mul", flat, width)
        return self.w.address(self.buffers[name], offset)

    def get(self, name: str, *indices: str | int) -> str:
        if name in self.vectors and isinstance(indices[0], int):
            return self.vectors[name][indices[0]]
        return self.w.load(self._address(name, indices))

    def put(self, x: str, name: str, *indices: str | int) -> None:
        if self.results and isinstance(indices[0], int):
            self.results[indices[0]] = x
        else:
            self.w.store(x, self._address(name, indices))

    def put_at(self, x: str, place: str | int) -> None:
        """To a place of the packed output."""
        self.w.store(x, self._place(place))

    def get_at(self, place: str) -> str:
        return self.w.load(self._place(place))

    def _place(self, place: str | int) -> str:
        width = self.w.target.lanes * self.w.target.size
        return self.w.address(self.buffers["out"], self.w.i64("mul", place, width))


def ranks_of(inputs: Sequence[str]) -> dict[str, int]:
    """How many axes of an input are its own, not the batch's."""
    return {name: 2 if name == "external" else 1 for name in inputs}


# One straight line ---------------------------------------------------------------------------------------------


def unrolled_kernel(code: Code, inputs: Mapping[str, tuple[int, ...]], output: tuple[int, ...], target: Target) -> str:
    """`inputs`, `output`: the shapes; inputs of the code are (name, indices...), outputs ("out", indices...)."""
    ranks = {name: len(shape) for name, shape in inputs.items()}
    rows = {name: shape[0] for name, shape in {**inputs, "out": output}.items() if len(shape) == 1}

    places = {node: k for k, node in enumerate(dict.fromkeys(code.outputs.values()))}
    entries = [places[code.outputs[name]] for name in sorted(code.outputs)]

    def body(w: Writer) -> None:
        several = w.target.lanes > 1 and len(places) < len(entries) > FEW
        packed = Packed(str(len(places)), w.constants("entries", entries)) if several else None
        arrays = Arrays(w, ranks, len(output), SIZES, packed, rows)
        values = w.emit(code, lambda name: arrays.get(*name))
        if packed:
            for node, name in {node: name for name, node in code.outputs.items()}.items():
                arrays.put_at(values[name], places[node])
        else:
            for name, x in values.items():
                arrays.put(x, *name)
        arrays.finish()

    return kernel_module(target, len(inputs), body, flush=False)


# Loops over bodies ---------------------------------------------------------------------------------------------


def loop_kernel(code: LoopCode, target: Target) -> str:
    rank = {"joint": 1, "matrix": 2, "path": 2}.get(code.algorithm.kind)
    if rank is None:
        per_body = code.algorithm.kind == "body"
        codes = [code.finish] if code.finish else list(code.passes[-1].codes)
        rank = next(len(name) - 1 for c in codes for name in c.outputs if name[0] == "out") + per_body
    return kernel_module(target, len(code.inputs), lambda w: LoopWriter(w, code, rank).write(), flush=True)


@dataclass
class Body:
    """The body a step is at: its index and its row of the index table."""

    i: str
    kind: str
    parent: str
    q: str
    v: str
    flags: str
    freedoms: str
    numbers: str
    above: str


class LoopWriter(Loops):
    w: Writer

    def __init__(self, w: Writer, code: LoopCode, rank: int) -> None:
        self.w, self.code = w, code
        self.slots = code.slots
        packed = None
        if code.layout.matrix:
            packed = Packed(w.load_i64("%data", PLACES), w.load_ptr("%data", ENTRIES))
        self.arrays = Arrays(w, ranks_of(code.inputs), rank, WORDS, packed)
        self.n, self.nv, self.flags = (w.load_i64("%data", k) for k in (BODIES, FREEDOMS, FLAGS))
        self.table, self.index, self.base = (w.load_ptr("%data", k) for k in (NUMBERS, INDEX, BASE))
        self.width = w.target.lanes * w.target.size  # bytes of a vector
        self.row = code.layout.kept * self.width
        self.work = self.arrays.end
        self.hands = w.address(self.work, w.i64("mul", self.n, self.row))
        self.hand_row = code.layout.handed * self.width
        self.column: str | None = None  # the place of the first entry of the column being made

    def write(self) -> None:
        zero = self.arrays.zero() if self.code.hides_inputs else None
        super().write()
        if zero:
            self.arrays.taint(zero)
        self.arrays.finish()

    # -- what codes read and write

    def _base(self, name: Any) -> str:
        if name[0] == "base":
            return self.w.splat(self.w.address(self.base, (BASE_PLACES[name[1]] + name[2]) * self.w.target.size))
        return self.arrays.get(*name)  # the base's own acceleration

    def _put(self, x: str, name: Any) -> None:
        self.arrays.put(x, *name)

    def _at(self, i: str) -> Body:
        row = self.w.address(self.index, self.w.i64("mul", i, 4 * INDEX_WORDS))

        return Body(i, *(self._word(row, k) for k in range(INDEX_WORDS)))

    def _word(self, row: str, k: int) -> str:
        """The k-th int32 of a table's row."""
        return self.w.op(f"sext i32 {self.w.op(f'load i32, ptr {self.w.address(row, 4 * k)}, align 4')} to i64")

    def _slot(self, i: str, name: Any) -> str:
        return self.w.address(self.w.address(self.work, self.w.i64("mul", i, self.row)), self.slots[name] * self.width)

    def _reader(self, body: Body, near: dict[Any, str], kind: int) -> Callable[[Any], str]:
        row = None

        def read(name: Any) -> str:
            nonlocal row
            first = name[0]
            if first == "near":
                return near[name]
            if first == "base":
                return self._base(name)
            if first == "kept":
                return self.w.load(self._slot(body.i, name))
            if first == "number":
                size = self.w.target.size
                row = row or self.w.address(self.table, self.w.i64("mul", body.numbers, size))
                return self.w.splat(self.w.address(row, self.code.numbers[kind].index(name[1]) * size))
            if first == "external":
                return self.arrays.get("external", body.i, name[1])
            place = self.w.i64("add", body.q if first == "q" else body.v, name[1])
            return self.arrays.get(first, place)

        return read

    def _write_outputs(self, body: Body, values: dict[Any, str]) -> None:
        kind = self.code.algorithm.kind
        for name, x in values.items():
            if name[0] == "kept":
                self.w.store(x, self._slot(body.i, name))
            elif name[0] == "out" and kind == "joint":
                self.arrays.put(x, "out", self.w.i64("add", body.v, name[1]))
            elif name[0] == "out" and kind == "body":
                self.arrays.put(x, "out", body.i, *name[1:])
            elif name[0] == "out" and kind == "path":
                self.arrays.put(x, "out", name[1], self.w.i64("add", body.v, name[2]))
            elif name[0] in ("out", "lower"):
                self._write_entry(body, name, x)

    def _write_entry(self, body: Body, name: Any, x: str) -> None:
        """An entry of the column being made, or of its second one."""
        w = self.w
        assert self.column
        place = w.i64("add", self.column, w.i64("add", body.above, name[1]))
        if name[0] == "lower":
            place = w.i64("add", place, w.load_i64("%data", SECOND))
        self.arrays.put_at(x, place)

    def _dispatch(self, selector: str, cases: Sequence[tuple[int, int, Code]], body: Body, near: dict[Any, str],
                  live: Sequence[int]) -> list[str]:  # fmt: skip
        """Run the code of the case (case, kind, code) that the selector names; what it hands on."""
        w = self.w

        def run(kind: int, code: Code) -> dict[Any, str]:
            values = w.emit(code, self._reader(body, near, kind))
            self._write_outputs(body, values)
            return values

        if len(cases) == 1:
            values = run(*cases[0][1:])
            return [values[("hand", k)] for k in live]
        labels = [w.new_label("kind") for _ in cases]
        nowhere, join = w.new_label("nowhere"), w.new_label("join")
        targets = " ".join(f"i64 {case}, label %{label}" for (case, _, _), label in zip(cases, labels))
        w.do(f"switch i64 {selector}, label %{nowhere} [{targets}]")
        arrivals = []
        for label, (_, kind, code) in zip(labels, cases):
            w.start(label)
            values = run(kind, code)
            arrivals.append(([values[("hand", k)] for k in live], w.block))
            w.jump(join)
        w.start(nowhere)
        w.do("unreachable")
        w.start(join)
        return [
            w.merge(w.target.vector, *((handed[k], block) for handed, block in arrivals)) for k in range(len(live))
        ]

    # -- passes

    def _hand_slots(self, i: str, count: int) -> list[str]:
        """Where body i (-1: the base) hands on through memory."""
        row = self.w.address(self.hands, self.w.i64("mul", self.w.i64("add", i, 1), self.hand_row))
        return [self.w.address(row, k * self.width) for k in range(count)]

    def _when(self, condition: str, values: Sequence[str], otherwise: Callable[[], Sequence[str]]) -> list[str]:
        """`values` if the condition holds, else what `otherwise` computes."""
        w = self.w
        before, other, join = w.block, w.new_label("other"), w.new_label("join")
        w.branch(condition, join, other)
        w.start(other)
        others = otherwise()
        end = w.block
        w.jump(join)
        w.start(join)
        return [w.merge(w.target.vector, (x, before), (y, end)) for x, y in zip(values, others)]

    def _unless(self, condition: str, action: Callable[[], None]) -> None:
        def nothing() -> Sequence[str]:
            action()
            return ()

        self._when(condition, (), nothing)

    def _has_no(self, flags: str, flag: int) -> str:
        return self.w.op(f"icmp eq i64 {self.w.i64('and', flags, flag)}, 0")

    def _has(self, flags: str, flag: int) -> str:
        return self.w.op(f"icmp ne i64 {self.w.i64('and', flags, flag)}, 0")

    def _pass(self, p: LoopPass, end: str | None = None) -> list[str]:
        """Over all bodies, or outward over those before `end`."""
        w, V = self.w, self.w.target.vector
        values = w.emit(p.start, self._base)
        start = [values[("near", k)] for k in p.live]
        body_loop = self._outward if p.outward else self._inward
        if p.outward and start:
            self._unless(self._has_no(self.flags, IS_TREE), lambda: self._store(start, "-1"))
        first = "0" if p.outward else w.i64("sub", self.n, 1)
        with w.loop("outward" if p.outward else "inward", first, [(V, x) for x in start]) as loop:
            body_loop(p, loop, start)
            loop.next = w.i64("add", loop.i, 1 if p.outward else -1)
            last = (end or self.n) if p.outward else 0
            loop.again = w.op(f"icmp {'slt' if p.outward else 'sge'} i64 {loop.next}, {last}")
        if p.outward:
            return []
        # what arrived at the base: in registers from body 0, in memory from other roots
        return self._when(
            self._has_no(self.flags, BASE_BRANCHES), list(loop.carry), lambda: self._plus_memory(loop.carry, "-1")
        )

    def _store(self, values: Sequence[str], i: str) -> None:
        for x, slot in zip(values, self._hand_slots(i, len(values))):
            self.w.store(x, slot)

    def _plus_memory(self, values: Sequence[str], i: str) -> list[str]:
        slots = self._hand_slots(i, len(values))
        return [self.w.arithmetic("fadd", x, self.w.load(slot)) for x, slot in zip(values, slots)]

    def _outward(self, p: LoopPass, loop: Any, start: Sequence[str]) -> None:
        w = self.w
        body = self._at(loop.i)
        near = list(loop.carried)
        if near:
            near = self._when(self._has(body.flags, CHAINED), near, lambda: [
                w.load(slot) for slot in self._hand_slots(body.parent, len(near))])
        hand = self._dispatch(body.kind, cases(p.codes), body, named(near, p.live), p.live)
        if hand:
            self._unless(self._has_no(body.flags, BRANCHES), lambda: self._store(hand, body.i))
        loop.carry = hand

    def _inward(self, p: LoopPass, loop: Any, start: Sequence[str]) -> None:
        w = self.w
        body = self._at(loop.i)
        near = list(loop.carried)
        if near:
            near = self._when(self._has_no(body.flags, BRANCHES), near, lambda: self._plus_memory(loop.carried, body.i))
        hand = self._dispatch(body.kind, cases(p.codes), body, named(near, p.live), p.live)

        def to_memory() -> Sequence[str]:
            total = self._when(self._has(body.flags, FIRST), hand, lambda: self._plus_memory(hand, body.parent))
            for x, slot in zip(total, self._hand_slots(body.parent, len(hand))):
                w.store(x, slot)
            return start

        loop.carry = self._when(self._has(body.flags, CHAINED), hand, to_memory) if hand else []

    # -- matrices

    def _matrix(self, c: LoopColumns) -> None:
        """Every body, every freedom of it: one column.  Of a symmetric matrix no body after the column's is asked."""
        w = self.w
        self.arrays.put_at(w.target.const(0.0), 0)  # what belongs to no column
        columns = w.load_ptr("%data", COLUMNS)
        with w.loop("body", "0") as bodies:
            body = self._at(bodies.i)
            end = w.i64("add", body.i, 1) if self.code.algorithm.symmetric else self.n
            with w.loop("freedom", "0") as freedom:
                here = w.address(columns, w.i64("mul", w.i64("add", body.v, freedom.i), 4))
                self.column = self._word(here, 0)
                if c.rest:
                    self._rest(c, end)
                self._climb(c, body, freedom.i)
                if c.outward:
                    self._pass(c.outward, end)
                freedom.count_to(w, body.freedoms)
            bodies.count_to(w, self.n)
        if self.code.algorithm.product:
            self._product()

    def _product(self) -> None:
        """sum u x over the freedoms that columns share, for all that share some."""
        w, V = self.w, self.w.target.vector
        table, count = w.load_ptr("%data", PRODUCTS), w.load_i64("%data", PRODUCT_COUNT)
        results = w.i64("add", w.i64("mul", w.load_i64("%data", SECOND), 2), 1)
        with w.loop("product", "0") as row:
            here = w.address(table, w.i64("mul", row.i, 4 * (2 + TOGETHER)))
            u, shared, *xs = (self._word(here, k) for k in range(2 + TOGETHER))
            with w.loop("shared", "0", [(V, w.target.const(0.0))] * TOGETHER) as loop:
                factor, *others = (self.arrays.get_at(w.i64("add", place, loop.i)) for place in (u, *xs))
                loop.carry = [w.operation("fmadd", factor, x, sum_) for x, sum_ in zip(others, loop.carried)]
                loop.count_to(w, shared)
            first = w.i64("add", results, w.i64("mul", row.i, TOGETHER))
            for k, sum_ in enumerate(loop.carry):
                self.arrays.put_at(sum_, w.i64("add", first, k))
            row.count_to(w, count)

    def _path(self, c: LoopColumns) -> None:
        w = self.w
        with w.loop("row", "0") as row:  # what the climb does not reach is zero
            with w.loop("entry", "0") as entry:
                self.arrays.put(w.target.const(0.0), "out", row.i, entry.i)
                entry.count_to(w, self.nv)
            row.count_to(w, 6)
        start = w.load_i64("%data", FROM)
        self._unless(w.op(f"icmp slt i64 {start}, 0"), lambda: self._climb(c, self._at(start), "0"))

    def _rest(self, c: LoopColumns, end: str) -> None:
        w = self.w
        with w.loop("rest", "0") as loop:
            for name in c.rest:
                if name in self.slots:
                    w.store(w.target.const(0.0), self._slot(loop.i, name))
            loop.count_to(w, end)

    def _climb(self, c: LoopColumns, body: Body, freedom: str) -> None:
        w, V = self.w, self.w.target.vector
        selector = w.i64("add", w.i64("mul", body.kind, 8), freedom)
        starts = [(8 * kind + k, kind, code) for (kind, k), code in c.starts.items()]
        hand = self._dispatch(selector, starts, body, {}, c.live)
        up, top = w.new_label("up"), w.new_label("top")
        w.branch(w.op(f"icmp sge i64 {body.parent}, 0"), up, top)
        w.start(up)
        with w.loop("climb", body.parent, [(V, x) for x in hand]) as loop:
            above = self._at(loop.i)
            near = named(loop.carried, c.live)
            loop.carry = self._dispatch(above.kind, cases(c.codes), above, near, c.live)
            loop.next = above.parent
            loop.again = w.op(f"icmp sge i64 {loop.next}, 0")
        w.jump(top)
        w.start(top)
