"""A kernel for one state of one long chain: its segments are the lanes of vectors (see `torsor.algorithms.segments`).

    chain     a head of a few bodies, which is one segment, then blocks of W segments of equal length.  The k-th body
              of a segment is of the same kind in all of them.
    data      scratch bytes | runtime | blocks | head | block | acceleration of the base | where the records begin in
              the scratch memory | for every array, its first entry that belongs to a block, and how many belong to a
              segment
    head, and block:  bodies | runtime | constants | index | bytes of a segment's constants | the sizes of the axes of
              all arrays for one segment
    constants of a block: for every body, number after number, each a vector of W
    records   one per segment, with the values of the whole segment: W records side by side, that of the head in
              the last lane of the first W

Two functions work on a block.  `condense` computes its records; `release` computes its joint accelerations once all
records are complete.  Blocks are so short that the values that one sweep keeps for the next stay in the cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from torsor.algorithms import segments as sg
from torsor.algorithms.articulated import forward_dynamics
from torsor.algorithms.constraint_force import Turn, standing
from torsor.backends import codegen
from torsor.backends import llvm_entry as entry
from torsor.backends.llvm import LLVMWriter, Target
from torsor.backends.llvm_arrays import LLVMArrays, LLVMRows, Tables
from torsor.backends.llvm_entry import EntryFunction, module_of
from torsor.compiler.abi import Layout
from torsor.compiler.frames import FramedLink, Kind
from torsor.compiler.loops import Body, Loops, cases, named
from torsor.compiler.tape import Code, Expr, Tape
from torsor.compiler.trace import LoopCode, LoopPass, NumberSymbols, leaves, looped, rebuild
from torsor.inputs import place_of
from torsor.linalg import Vec
from torsor.model.joints import joint_named
from torsor.parallel.operations import is_loaded
from torsor.spatial import Spatial

# the int64 words of `data`, and those of the head or of a block; RUNTIME is a word of each
SCRATCH, RUNTIME, BLOCKS, HEAD, BLOCK, BASE, RECORDS, WORDS = range(8)
BODIES, _, NUMBERS, INDEX, NUMBER_BYTES, PART_WORDS = range(6)


class SegmentOutline(NamedTuple):
    """The data needed to run a kernel."""

    name: str  # of its machine code
    head: Layout
    block: Layout
    record: int  # the size of a record, in numbers

    def to_json(self) -> str:
        return json.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> SegmentOutline:
        name, head, block, record = json.loads(text)
        return cls(name, Layout(*head), Layout(*block), record)


@dataclass(frozen=True)
class SegmentKernel:
    """The kernel for a head and blocks of these kinds; `first` is the kind of the first body of every segment."""

    head: tuple[Kind, ...]
    block: tuple[Kind, ...]
    first: Kind
    inputs: tuple[str, ...]
    target: Target

    @cached_property
    def sweeps(self) -> tuple[Sweeps, Sweeps]:
        return Sweeps.of(self.head, self.inputs), Sweeps.of(self.block, self.inputs)

    @cached_property
    def steps(self) -> SegmentSteps:
        return SegmentSteps(self.first, self.inputs)

    def outline(self) -> SegmentOutline:
        head, block = self.sweeps
        name = codegen.name_of(f"segments|{self.ir}")
        return SegmentOutline(name, head.layout, block.layout, len(self.steps.places))

    @cached_property
    def ir(self) -> str:
        one, steps, width = replace(self.target, lanes=1), self.steps, self.target.lanes
        functions = [
            _chain_function("turn", steps.turn, "w", steps, one, width),
            _chain_function("absorb", steps.absorb, "rest", steps, one, width, outward=False),
            _chain_function("spread", steps.spread, "a", steps, one, width),
        ]
        for sweeps, target in zip(self.sweeps, (one, self.target)):
            functions.append(_condense_function(sweeps, steps, target, width))
            functions.append(_release_function(sweeps, steps, target, width))
        functions.append(_state_function(self.inputs, steps, one, width))
        return module_of(functions, one, len(self.inputs), flush=True)


class Sweeps(NamedTuple):
    """The sweeps along segments of bodies of some kinds."""

    condense: LoopCode
    release: LoopCode

    @classmethod
    def of(cls, kinds: tuple[Kind, ...], inputs: tuple[str, ...]) -> Sweeps:
        return cls(*(looped(algorithm, inputs, kinds, circles=True) for algorithm in (sg.sweeps, forward_dynamics)))

    @property
    def layout(self) -> Layout:
        """The layout for both."""
        numbers = [sorted({*a, *b}) for a, b in zip(self.condense.numbers, self.release.numbers)]
        return Layout(numbers, max(code.layout.kept for code in self), 0)


# From segment to segment -----------------------------------------------------------------------------------------


def _traced(function: Callable[..., Mapping[str, Any]], **given: Any) -> tuple[Code, dict[str, Any]]:
    """The tape of a function that takes structures and returns structures by name; None marks an unknown leaf.

    Its inputs and outputs are (name, k), for leaf k.  Also returns the resulting structures, None for unknown leaves.
    """
    tape = Tape()
    arguments = {
        name: rebuild(x, (tape.input((name, k)) if y is None else y for k, y in enumerate(leaves(x))))
        for name, x in given.items()
    }
    results = function(**arguments)
    outputs = {(name, k): y for name, x in results.items() for k, y in enumerate(leaves(x))}
    known = {name: rebuild(x, (None if isinstance(y, Expr) else y for y in leaves(x))) for name, x in results.items()}
    return Code.of(tape, outputs), known


def _unknown(x: Any) -> Any:
    return rebuild(x, iter([None] * len(leaves(x))))


TURN, VECTOR, SPATIAL, REST, SEGMENT = map(
    _unknown, (Turn.none(), Vec.zero(), Spatial.zero(), sg.Rest.nothing(), sg.TwoHandles.nothing(Spatial.zero()))
)


class SegmentSteps:
    """The tapes of the steps from segment to segment, and the places of a record that they read and write."""

    def __init__(self, first: Kind, inputs: Sequence[str]) -> None:
        """`first`: the kind of the first body of every segment."""
        self.first = first
        self.handle, handle = self._handle(first, is_loaded(first, inputs))
        self.turn, _ = _traced(lambda turn, w: dict(w=turn.after(w)), turn=TURN, w=VECTOR)
        self.absorb, more = _traced(
            lambda **x: dict(zip(("rest", "pull"), sg.absorb(**x))), segment=SEGMENT, handle=handle, rest=REST
        )
        self.spread, _ = _traced(
            lambda **x: dict(a=sg.tip_acceleration(**x)), segment=SEGMENT, pull=more["pull"], a=SPATIAL
        )
        record = dict(turn=TURN, w=VECTOR, segment=SEGMENT, handle=handle, rest=REST, pull=more["pull"], a=SPATIAL)
        names = ((name, k) for name, x in record.items() for k, y in enumerate(leaves(x)) if y is None)
        self.places = {name: place for place, name in enumerate(names)}

    @staticmethod
    def _handle(kind: Kind, loaded: bool) -> tuple[Code, Any]:
        """The tape at a first body: its inputs are those of a step, and ("handle", k) its outputs."""
        tape = Tape()
        joint = joint_named(kind.joint)
        q, tau = (Vec.of(tape.input((name, k)) for k in range(n)) for name, n in (("q", joint.nq), ("tau", joint.nv)))
        handle = sg.first_joint(FramedLink.of(kind, NumberSymbols(tape, kind)), q, tau, loaded)
        code = Code.of(tape, {("handle", k): x for k, x in enumerate(leaves(handle))})
        return code, rebuild(handle, (None if isinstance(x, Expr) else x for x in leaves(handle)))


class _Record:
    """The record of one segment, or of one segment per lane of the code, side by side."""

    def __init__(self, w: LLVMWriter, steps: SegmentSteps, width: int, segment: str, records: str = "%records") -> None:
        """`width`: the number of records side by side."""
        self.w, self.places, self.row = w, steps.places, width * w.target.size
        block, lane = w.i64("udiv", segment, width), w.i64("urem", segment, width)
        start = w.address(records, w.i64("mul", block, len(self.places) * self.row))
        self.start = w.address(start, w.i64("mul", lane, w.target.size))

    def get(self, name: str, k: int) -> str:
        return self.w.load(self._address(name, k))

    def get_all(self, name: str, like: Any) -> list[str]:
        return [self.get(name, k) for k in range(len(leaves(like)))]

    def put(self, values: Mapping[tuple[str, int], str]) -> None:
        """Store values; a value without a place in the record is skipped."""
        for name, x in values.items():
            if name in self.places:
                self.w.store(x, self._address(*name))

    def put_all(self, name: str, values: Sequence[str]) -> None:
        self.put({(name, k): x for k, x in enumerate(values)})

    def _address(self, name: str, k: int) -> str:
        return self.w.address(self.start, self.places[name, k] * self.row)


def _chain_function(name: str, code: Code, handed: str, steps: SegmentSteps, one: Target, width: int,
                    outward: bool = True) -> EntryFunction:  # fmt: skip
    """A sweep over the segments %first to %last; the value handed on is read from %hand and finally stored there.

    The handle is that of the next segment outward.
    """
    w = LLVMWriter(one)
    hands = [x for x in code.outputs if x[0] == handed]
    cells = [w.address("%hand", k * one.size) for k in range(len(hands))]
    start, end = ("%first", "%last") if outward else ("%last", "%first")
    with w.loop(name, start, [w.load(cell) for cell in cells]) as loop:
        record, beyond = (_Record(w, steps, width, i) for i in (loop.i, w.i64("add", loop.i, 1)))
        near = dict(zip(hands, loop.carried))
        record.put(near)
        values = w.emit(code, lambda x: near.get(x) or (beyond if x[0] == "handle" else record).get(*x))
        loop.carry = [values.pop(x) for x in hands]
        record.put(values)
        loop.next = w.i64("add", loop.i, 1 if outward else -1)
        loop.again = w.op(f"icmp ne i64 {loop.i}, {end}")
    for x, cell in zip(loop.carry, cells):
        w.store(x, cell)
    return EntryFunction(name, "ptr noalias %records, i64 %first, i64 %last, ptr noalias %hand", w)


# Along segments --------------------------------------------------------------------------------------------------


class _Memory(Tables):
    """The memory of segments, one per lane: constants differ from lane to lane."""

    def __init__(self, w: LLVMWriter, code: LoopCode, layout: Layout) -> None:
        super().__init__(w, layout.numbers)
        self.arrays = LLVMArrays(w, {name: place_of(name).rank for name in code.inputs}, 1, PART_WORDS)
        self.kept = LLVMRows(w, self.arrays.end, layout.kept)
        self.n, size = (w.load_i64("%data", k) for k in (BODIES, NUMBER_BYTES))
        self.index = w.load_ptr("%data", INDEX)
        self.table = w.address(w.load_ptr("%data", NUMBERS), w.i64("mul", "%first", size))
        self.next_table = w.i64("mul", size, w.target.lanes)  # bytes from this one
        self.nv = 0  # not used
        self.fetching = False

    def number(self, body: Body, kind: int, name: str) -> str:
        w, width = self.w, self.w.target.lanes * self.w.target.size
        row = w.address(self.table, w.i64("mul", body.numbers, width))
        place = w.address(row, self.names[kind].index(name) * width)
        if self.fetching and w.target.lanes > 1:
            w.declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)")
            w.do(f"call void @llvm.prefetch.p0(ptr {w.address(place, self.next_table)}, i32 0, i32 2, i32 1)")
        return w.load(place)


class _SegmentWriter(Loops):
    """Loops over the bodies of a segment."""

    w: LLVMWriter

    def __init__(self, w: LLVMWriter, code: LoopCode, layout: Layout, steps: SegmentSteps, width: int) -> None:
        self.segment = _Memory(w, code, layout)
        super().__init__(w, code, self.segment)  # type: ignore[arg-type]  # no trees, no matrices
        self.arrays, self.steps = self.segment.arrays, steps
        self.record = _Record(w, steps, width, "%segment")

    def start(self, function: Callable[..., Any], **given: tuple[Any, Sequence[str]]) -> list[str]:
        """The start values of a sweep: a function of structures, each given by its form and its leaves."""
        code, _ = _traced(lambda **x: dict(near=function(**x)), **{name: form for name, (form, _) in given.items()})
        values = self.w.emit(code, lambda name: given[name[0]][1][name[1]])
        return [values["near", k] for k in range(len(values))]

    def along(self, p: LoopPass, start: Sequence[str], fetching: bool = False) -> list[str]:
        """A pass: from the values `start` to the final values; fetching: also prefetch the next block's constants."""
        w, n, self.segment.fetching = self.w, self.segment.n, fetching
        first = 0 if p.outward else w.index("sub", n, 1)
        with w.loop("outward" if p.outward else "inward", first, [start[k] for k in p.live]) as loop:
            body, near = self.segment.body(loop.i), named(loop.carried, p.live)
            loop.carry = self.step(body.kind, cases(p.codes), body, near, p.live)
            loop.next = w.index("add" if p.outward else "sub", loop.i, 1)
            loop.again = w.compare("<", loop.next, n) if p.outward else w.compare(">=", loop.next, 0)
        arrived = dict(enumerate(start)) | dict(zip(p.live, loop.carry))
        return list(arrived.values())

    def at_first(self, code: Code) -> dict[Any, str]:
        """The values of a tape at the first body."""
        return self.w.emit(code, self.reader(self.segment.body(0), {}, self.code.kinds.index(self.steps.first)))

    def motion(self, p: LoopPass) -> list[str]:
        """The acceleration of the last body if neither the base nor a joint accelerates."""
        arrived = self.along(p, self.start(standing, w=(VECTOR, self.record.get_all("w", VECTOR))))
        moving = rebuild(standing(Vec.zero()), iter(arrived))
        return leaves(Spatial(moving["dw"], moving["a"]))


SEGMENTS = f"{entry.BLOCK}, ptr %records, i64 %segment"


def _condense_function(sweeps: Sweeps, steps: SegmentSteps, target: Target, width: int) -> EntryFunction:
    """The records of W segments, which depend on other segments only through the angular velocity before them."""
    w = LLVMWriter(target)
    s = _SegmentWriter(w, sweeps.condense, sweeps.layout, steps, width)
    turns, motion, condense = sweeps.condense.passes
    s.record.put_all("turn", s.along(turns, s.start(lambda: Turn.none())))
    last = w.i64("add", "%segment", target.lanes - 1)
    w.do(f"call void @turn(ptr %records, i64 %segment, i64 {last}, ptr %spin)")
    A0 = (SPATIAL, s.motion(motion))
    s.record.put_all("segment", s.along(condense, s.start(sg.TwoHandles.nothing, A0=A0), fetching=True))
    if target.lanes == width:  # the handle of the head is not used
        s.record.put(s.at_first(steps.handle))
    return EntryFunction(f"condense_{target.lanes}", f"{SEGMENTS}, ptr noalias %spin", w)


def _release_function(sweeps: Sweeps, steps: SegmentSteps, target: Target, width: int) -> EntryFunction:
    """The joint accelerations of W segments: independent chains, each with a known base and a known load."""
    w = LLVMWriter(target)
    s = _SegmentWriter(w, sweeps.release, sweeps.layout, steps, width)
    motion, articulate, accelerate = sweeps.release.passes
    A0, rest = (SPATIAL, s.motion(motion)), (REST, s.record.get_all("rest", REST))
    s.along(articulate, s.start(lambda A0, rest: rest.at(A0), A0=A0, rest=rest), fetching=True)
    s.along(accelerate, s.record.get_all("a", SPATIAL))
    s.arrays.finish()
    return EntryFunction(f"release_{target.lanes}", SEGMENTS, w)


# The whole chain -------------------------------------------------------------------------------------------------


def _state_function(inputs: Sequence[str], steps: SegmentSteps, one: Target, width: int) -> EntryFunction:
    """One state: condense all parts, sweep along the chain of segments and back, release all parts."""
    w = LLVMWriter(one)
    head, block, base = (w.load_ptr("%data", k) for k in (HEAD, BLOCK, BASE))
    blocks, records = w.load_i64("%data", BLOCKS), w.address("%work", w.load_i64("%data", RECORDS))
    last = w.i64("add", w.i64("mul", blocks, width), width - 1)
    whole, cut = _views(w, [*(place_of(name).rank for name in inputs), 1])
    spin = _cells(w, [one.const(0.0)] * len(VECTOR))

    def each(function: str, more: str = "") -> None:
        w.do(f"call void @{function}_1({whole}, ptr {head}, ptr %work, i64 0, ptr {records}, i64 {width - 1}{more})")
        with w.loop(function, "0") as loop:
            first = w.i64("mul", loop.i, width)
            segment = w.i64("add", first, width)
            w.do(f"call void @{function}_{width}({cut}, ptr {block}, ptr %work, i64 {first}, ptr {records}, "
                 f"i64 {segment}{more})")  # fmt: skip
            loop.count_to(w, blocks)

    each("condense", f", ptr {spin}")
    tip = _Record(w, steps, width, last, records)
    tip.put({name: one.const(0.0) for name in steps.places if name[0] in ("rest", "pull")})
    rest = _cells(w, [tip.get("segment", k) for k in range(len(leaves(REST)))])  # it too begins with I and a wrench
    a = _cells(w, [w.load(w.address(base, k * one.size)) for k in range(len(leaves(SPATIAL)))])
    w.do(f"call void @absorb(ptr {records}, i64 {width - 1}, i64 {w.i64('sub', last, 1)}, ptr {rest})")
    w.do(f"call void @spread(ptr {records}, i64 {width - 1}, i64 {last}, ptr {a})")
    each("release")
    return EntryFunction("block_1", entry.BLOCK, w)


def _cells(w: LLVMWriter, values: Sequence[str]) -> str:
    """A few numbers in memory."""
    cells = w.op(f"alloca [{len(values)} x {w.target.scalar}], align 8")
    for k, x in enumerate(values):
        w.store(x, w.address(cells, k * w.target.size))
    return cells


def _views(w: LLVMWriter, ranks: Sequence[int]) -> tuple[str, str]:
    """(args, steps) of one state, for the head and for the blocks; in blocks, segments take the role of states."""
    count = len(ranks)
    whole, cut = (w.op(f"alloca [{count} x ptr], align 8") for _ in range(2))
    steps = w.op(f"alloca [{count + sum(ranks)} x i64], align 8")

    def put(kind: str, x: str, array: str, place: int) -> None:
        w.do(f"store {kind} {x}, ptr {w.address(array, 8 * place)}, align 8")

    axis = count
    for a, rank in enumerate(ranks):
        here = w.address(w.load_ptr("%args", a), w.i64("mul", w.load_i64("%steps", a), "%first"))
        first, size = (w.load_i64("%data", WORDS + 2 * a + k) for k in range(2))
        strides = [w.load_i64("%steps", axis + k) for k in range(rank)]
        put("ptr", here, whole, a)
        put("ptr", w.address(here, w.i64("mul", strides[0], first)), cut, a)
        put("i64", w.i64("mul", strides[0], size), steps, a)
        for k, stride in enumerate(strides):
            put("i64", stride, steps, axis + k)
        axis += rank
    return f"ptr {whole}, ptr {steps}", f"ptr {cut}, ptr {steps}"
