"""The arrays of a call and the memory of a kernel, in LLVM IR.

`unrolled_kernel` is straight-line code for one model.  `loop_kernel` loops over the bodies of any model of its kinds
(`loops.py`); the model is data (see `abi.py`).  Scratch memory:

    work     the transposed arrays (see `LLVMArrays`), the values kept at every body, then (trees only) the values
             handed on by the base and by every body
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torsor.backends.llvm import LLVMWriter, Target
from torsor.backends.llvm_entry import (
    ALL_TURNS,
    DIRECTIONS,
    kernel_module,
    rows_to_vectors,
    turns_room,
    vectors_to_rows,
)
from torsor.compiler.abi import (
    BASE,
    BODIES,
    COLUMNS,
    ENTRIES,
    FLAGS,
    FREEDOMS,
    FROM,
    INDEX,
    INDEX_WORDS,
    NUMBERS,
    PLACES,
    PRODUCT_COUNT,
    PRODUCTS,
    RUNTIME,
    SECOND,
    SIZES,
    WORDS,
    turning_place,
)  # fmt: skip
from torsor.compiler.language import TURNS, Int
from torsor.compiler.loops import Body, Loops
from torsor.compiler.tape import Code
from torsor.compiler.trace import LoopCode
from torsor.inputs import place_of

# In straight-line code, rows of this many numbers (a few vectors) are transposed in registers.
FEWEST, FEW = 4, 16
# Output of more bytes than this is written past the caches, because they could not hold it.
STREAMED = 8 << 20


class Packed(NamedTuple):
    """How an output is packed."""

    size: str  # the number of places
    entries: str  # pointer to the place of every entry, int32


class ArrayColumns(NamedTuple):
    """The columns of an array as vectors of states: in its buffer, or in place if the states are neighbours."""

    in_place: str
    first: str
    apart: str  # the bytes from one column to the next


class LLVMArrays:
    """The arrays of a call, for a block of states.

    A single state reads and writes the arrays in place.  A block of states first copies its part of every input to
    scratch memory, transposed so that the states are side by side, and finally copies the output back.  Rows of
    contiguous numbers are transposed several columns at a time; this is much faster than gathering single numbers.

    A packed output is written to places; at the end each entry is copied from its place.  Equal entries share a place,
    so that they are computed and stored once.
    """

    def __init__(self, w: LLVMWriter, inputs: Mapping[str, int], output_rank: int, sizes_at: int,
                 packed: Packed | None = None, columns: Mapping[str, int] | None = None,
                 in_place: bool = False) -> None:  # fmt: skip
        """`sizes_at`: the word of `data` where the sizes of all axes of all arrays begin.

        `columns`: the count of numbers of an array per state, if it is known; a few numbers are transposed in
        registers without a buffer.  `in_place`: see `ArrayColumns`.
        """
        self.w, self.packed = w, packed
        self.turned = w.target.lanes > 1
        self.places: dict[str, tuple[str, list[str], list[str]]] = {}  # pointer, strides, sizes
        self.buffers: dict[str, str] = {}
        self.lane_steps: dict[str, str] = {}
        self.end = "%work"  # scratch memory after the buffers
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
        self.vectors: dict[str, list[str]] = {}  # columns without a buffer
        self.results = [""] * few.pop("out", 0)  # the same for the output
        self.columns: dict[str, ArrayColumns] = {}
        if self.turned:
            if in_place and not packed:
                self.columns = {name: self._columns(name) for name, rank in ranks.items() if rank <= 1}
            for name in inputs:
                if name not in few:
                    self._copy("turn_in", name)
        if few:
            self._turn_few(few)

    def _columns(self, name: str) -> ArrayColumns:
        w, T = self.w, self.w.target
        pointer, strides, _ = self.places[name]
        in_place = w.op(f"icmp eq i64 {self.lane_steps[name]}, {T.size}")
        first = w.op(f"select i1 {in_place}, ptr {pointer}, ptr {self.buffers[name]}")
        apart = w.op(f"select i1 {in_place}, i64 {[*strides, '0'][0]}, i64 {T.lanes * T.size}")
        return ArrayColumns(in_place, first, apart)

    def _turn_few(self, few: Mapping[str, int]) -> None:
        """Transpose rows of contiguous numbers in registers, and others through the buffer."""
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
        copied = {name: [w.load(self._address(name, [k])) for k in range(n)] for name, n in few.items()}
        slow = w.block
        w.jump(done)
        w.start(done)
        for name in few:
            pairs = zip(turned[name], copied[name])
            self.vectors[name] = [w.merge(w.target.vector, (x, quick), (y, slow)) for x, y in pairs]

    def finish(self) -> None:
        """Copy the complete output from scratch memory to its array."""
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
            w.store(x, self._address("out", [k]))
        self._copy("turn_out", "out")
        w.jump(done)
        w.start(done)

    def _count(self, sizes: Sequence[str]) -> str:
        count = "1"
        for size in sizes:
            count = self.w.i64("mul", count, size)
        return count

    def _copy(self, direction: str, name: str, *entries: str) -> None:
        """Copy an array to its buffer or back, unless its columns are already vectors."""
        if name in self.columns:
            self.w.unless(self.columns[name].in_place, lambda: self._copy_all(direction, name))
        else:
            self._copy_all(direction, name, *entries)

    def _copy_all(self, direction: str, name: str, *entries: str) -> None:
        w, T = self.w, self.w.target
        pointer, strides, sizes = self.places[name]
        contiguous = self._contiguous(name)
        axes = ["1", "1", "1", *sizes][-3:], ["0", "0", "0", *strides][-3:]
        numbers = ", ".join(f"i64 {x}" for x in (*axes[0], *axes[1]))
        states = w.load_i64("%work", -1)
        stream = w.op(f"icmp sgt i64 {w.i64('mul', states, self.lane_steps[name])}, {STREAMED}")
        pointers = ", ".join(f"ptr {x}" for x in (self.buffers[name], *(entries or ["null"])))
        given = f"ptr {pointer}, i64 {self.lane_steps[name]}, {numbers}, i1 {contiguous}, i1 {stream}, {pointers}"
        if self.turned:
            turn = w.load_ptr(w.load_ptr("%data", RUNTIME), turning_place(T.lanes, T.bits))
            w.do(f"call void {turn}(i64 {DIRECTIONS.index(direction)}, {given})")
        else:
            w.turnings.add(direction)
            w.do(f"call void @{direction}_{T.lanes}({given})")

    def _contiguous(self, name: str) -> str:
        """Whether the numbers of a state are contiguous."""
        w = self.w
        _, strides, sizes = self.places[name]
        packed, contiguous = str(w.target.size), w.op("icmp eq i64 0, 0")
        for stride, size in zip(reversed(strides), reversed(sizes)):
            same = w.op(f"icmp eq i64 {stride}, {packed}")
            contiguous = w.op(f"and i1 {contiguous}, {same}")
            packed = w.i64("mul", packed, size)
        return contiguous

    def _address(self, name: str, indices: Sequence[Int]) -> str:
        pointer, strides, sizes = self.places[name]
        if not self.turned:
            for stride, index in zip(strides, indices):
                if index != 0:
                    pointer = self.w.address(pointer, self.w.i64("mul", stride, index))
            return pointer
        flat: Int = indices[0] if indices else 0
        if name in self.columns:
            return self.w.address(self.columns[name].first, self.w.i64("mul", self.columns[name].apart, flat))
        for index, size in zip(indices[1:], sizes[1:]):
            flat = self.w.i64("add", self.w.i64("mul", flat, size), index)
        width = self.w.target.lanes * self.w.target.size
        offset = flat * width if isinstance(flat, int) else self.w.i64("mul", flat, width)
        return self.w.address(self.buffers[name], offset)

    def get(self, name: str, *indices: Int) -> str:
        if name in self.vectors and isinstance(indices[0], int):
            return self.vectors[name][indices[0]]
        return self.w.load(self._address(name, indices))

    def put(self, x: str, name: str, *indices: Int) -> None:
        if self.results and isinstance(indices[0], int):
            self.results[indices[0]] = x
        else:
            self.w.store(x, self._address(name, indices))

    def sizes(self, name: str) -> Sequence[str]:
        """The sizes of the axes of an array, for one state."""
        return self.places[name][2]

    def put_at(self, x: str, place: Int) -> None:
        """Write x to a place of the packed output."""
        self.w.store(x, self._place(place))

    def get_at(self, place: Int) -> str:
        return self.w.load(self._place(place))

    def _place(self, place: Int) -> str:
        width = self.w.target.lanes * self.w.target.size
        return self.w.address(self.buffers["out"], self.w.i64("mul", place, width))


# Straight-line code --------------------------------------------------------------------------------------------


def unrolled_kernel(code: Code, inputs: Mapping[str, tuple[int, ...]], output: tuple[int, ...], target: Target,
                    in_place: bool = False) -> str:  # fmt: skip
    """`inputs`, `output`: the shapes; inputs of the code are (name, indices...), outputs ("out", indices...).

    `in_place`: for arrays whose states are usually neighbours.
    """
    ranks = {name: len(shape) for name, shape in inputs.items()}
    rows = {name: shape[0] for name, shape in {**inputs, "out": output}.items() if len(shape) == 1}

    places = {node: k for k, node in enumerate(dict.fromkeys(code.outputs.values()))}
    entries = [places[code.outputs[name]] for name in sorted(code.outputs)]

    def body(w: LLVMWriter) -> None:
        several = w.target.lanes > 1 and len(places) < len(entries) > FEW
        packed = Packed(str(len(places)), w.constants("entries", entries)) if several else None
        arrays = LLVMArrays(w, ranks, len(output), SIZES, packed, rows, in_place)
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
    ranks = {name: place_of(name).rank for name in code.inputs}
    wide = target.lanes if turns_of_state(code) else 1

    def body(w: LLVMWriter) -> None:
        Loops(w, code, LLVMMemory(w, code, ranks, wide)).write()

    return kernel_module(target, len(ranks), body, flush=True)


def turns_of_state(code: LoopCode) -> bool:
    """Whether the code needs sines of coordinates."""
    angles = [x.nodes[node.a] for x in code.all_codes for node in x.nodes if node.op in TURNS]
    return any(angle.op == "in" and angle.a[0] == "q" for angle in angles)


class LLVMRows:
    """Scratch memory: rows of vectors."""

    def __init__(self, w: LLVMWriter, start: str, length: int, first: int = 0) -> None:
        """`first`: the number of the first row."""
        self.w, self.start, self.first = w, start, first
        self.width = w.target.lanes * w.target.size
        self.row_bytes = length * self.width

    def _address(self, row: Int, k: int) -> str:
        row = self.w.i64("sub", row, self.first) if self.first else row
        return self.w.address(self.w.address(self.start, self.w.i64("mul", row, self.row_bytes)), k * self.width)

    def get(self, row: Int, k: int) -> str:
        return self.w.load(self._address(row, k))

    def put(self, x: str, row: Int, k: int) -> None:
        self.w.store(x, self._address(row, k))


class Tables:
    """The model data of a kernel, at the pointer `data`."""

    def __init__(self, w: LLVMWriter, numbers: Sequence[Sequence[str]]) -> None:
        """`numbers`: for each kind of body, the constants that its code reads."""
        self.w, self.names = w, numbers

    def body(self, i: Int) -> Body:
        """Body i with all words of its index row."""
        row = self.w.address(self.index, self.w.i64("mul", i, 4 * INDEX_WORDS))
        return Body(i, *(self.word(row, k) for k in range(INDEX_WORDS)))

    def word(self, row: str, k: int) -> str:
        """The k-th int32 of a table's row."""
        w = self.w
        return w.op(f"sext i32 {w.op(f'load i32, ptr {w.address(row, 4 * k)}, align 4')} to i64")

    def turn(self, place: Int) -> tuple[str, str] | None:
        """The sine and the cosine of an entry of q, if they are known."""
        return None

    def number(self, body: Body, kind: int, name: str) -> str:
        """A constant of a body."""
        w = self.w
        row = w.address(self.table, w.i64("mul", body.numbers, w.target.size))
        return w.splat(w.address(row, self.names[kind].index(name) * w.target.size))

    index: str
    table: str


class LLVMMemory(Tables):
    """The memory of a loop kernel.

    A kernel for one state first computes the sines and cosines of all its coordinates, `wide` of them at a time.
    """

    def __init__(self, w: LLVMWriter, code: LoopCode, ranks: Mapping[str, int], wide: int) -> None:
        super().__init__(w, code.layout.numbers)
        packed = Packed(w.load_i64("%data", PLACES), w.load_ptr("%data", ENTRIES)) if code.packing else None
        self.arrays = LLVMArrays(w, ranks, code.rank, WORDS, packed)
        self.n, self.nv, self.flags, self.start = (w.load_i64("%data", k) for k in (BODIES, FREEDOMS, FLAGS, FROM))
        self.table, self.index, self._base = (w.load_ptr("%data", k) for k in (NUMBERS, INDEX, BASE))
        end, self.turns = self.arrays.end, ""
        if w.target.lanes < wide:
            (place, (stride,), (count,)), self.turns = self.arrays.places["q"], end
            w.do(f"call void @{ALL_TURNS}(ptr {place}, i64 {stride}, i64 {count}, ptr {end})")
            w.called.add(ALL_TURNS)
            self.cosines, _, end = turns_room(w, end, count)
        self.kept = LLVMRows(w, end, code.layout.kept)
        after = w.address(end, w.i64("mul", self.n, self.kept.row_bytes))
        self.handed = LLVMRows(w, after, code.layout.handed, first=-1)

    def turn(self, place: Int) -> tuple[str, str] | None:
        if not self.turns:
            return None
        w = self.w
        offset = w.i64("mul", place, w.target.size)
        return w.load(w.address(self.turns, offset)), w.load(w.address(self.cosines, offset))

    def base(self, k: int) -> str:
        """A number of the base."""
        return self.w.splat(self.w.address(self._base, k * self.w.target.size))

    # -- the packing of a matrix

    def column(self, freedom: Int) -> Int:
        """The place of the first entry of a column."""
        return self.word(self.w.address(self.w.load_ptr("%data", COLUMNS), self.w.i64("mul", freedom, 4)), 0)

    @property
    def second(self) -> Int:
        return self.w.load_i64("%data", SECOND)

    @property
    def product_count(self) -> Int:
        return self.w.load_i64("%data", PRODUCT_COUNT)

    def products(self, place: Int, words: int) -> list[Int]:
        here = self.w.address(self.w.load_ptr("%data", PRODUCTS), self.w.i64("mul", place, 4))
        return [self.word(here, k) for k in range(words)]

    @property
    def first_entry(self) -> Int:
        assert self.arrays.packed
        return self.word(self.arrays.packed.entries, 0)
