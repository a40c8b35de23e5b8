"""Complete kernels: from the work on one block of states to the arrays of a NumPy call.

A kernel is the inner loop of a generalised ufunc,

    void kernel(char **args, intp *dimensions, intp *steps, void *data)

It reads and writes its arrays through their strides, so any layout is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from torsor.backends.elementary import far_sincos
from torsor.backends.llvm import LLVMWriter, Target
from torsor.compiler.abi import TURNS_MARGIN

# A kernel restores the floating-point flags, so NumPy does not warn; torsor itself reports errors, with the joint's
# name.  Loops flush subnormals to zero, because these are meaningless here and take three times as long.
_FLUSH = 0x8040  # FTZ and DAZ of x86's MXCSR
_MXCSR = "declare void @llvm.x86.sse.stmxcsr(ptr)\ndeclare void @llvm.x86.sse.ldmxcsr(ptr)"


STACK_BYTES = 65536  # the largest block of scratch memory taken from the stack
KEPT_BYTES = 512 << 20  # the largest block of scratch memory kept between calls
# From this size on, scratch memory requests huge pages: memory-bound sweeps become a tenth faster.
HUGE_FROM = 16 << 20

# The parameters of a function that works on one block of states; `first` is the first state of the block.
BLOCK = (
    "ptr noalias readonly %args, ptr noalias readonly %steps, ptr noalias readonly %data, ptr noalias %work, i64 %first"
)


class EntryFunction(NamedTuple):
    """A function without a result, with its finished body."""

    name: str
    parameters: str
    body: LLVMWriter

    def __str__(self) -> str:
        w = self.body
        room = f"  %far_angles = alloca [{w.far_room} x i8], align 64\n" if w.far_room else ""
        lines = "\n".join(w.lines)
        return (
            f"define private void @{self.name}({self.parameters}) nounwind {_vector_width(w.target)} {{\n"
            f"entry:\n{room}{lines}\n  ret void\n}}\n"
        )


def kernel_module(vector: Target, inputs: int, body: Callable[[LLVMWriter], None], flush: bool) -> str:
    """The module of a kernel with this many inputs; `body` writes the work on one block of states.

    It is written twice: for a vector of states and for a single state.
    """
    blocks = []
    for target in [vector] if vector.lanes == 1 else [vector, replace(vector, lanes=1)]:
        writer = LLVMWriter(target)
        body(writer)
        blocks.append(EntryFunction(f"block_{target.lanes}", BLOCK, writer))
    turns = [all_turns(vector)] if any(ALL_TURNS in block.body.called for block in blocks) else []
    return module_of([*turns, *blocks], vector, inputs, flush)


def module_of(functions: Sequence[EntryFunction], vector: Target, inputs: int, flush: bool) -> str:
    """The functions, the helpers they call, and the entry.  The entry calls @block_1, and @block_W for W states."""
    writers = [f.body for f in functions]
    parts = [str(f) for f in functions]
    if any(w.far_room for w in writers):
        parts.append(far_sincos(vector))
    turnings = dict.fromkeys((w.target, direction) for w in writers for direction in sorted(w.turnings))
    parts += [turning(target, direction) for target, direction in turnings]
    widest = max((w.target for w in writers), key=lambda target: target.lanes)
    parts.append(_entry(vector, inputs, flush, streams(widest)))
    if vector.x86:
        parts.append(_MXCSR)
    if streams(widest):
        parts.append("declare void @llvm.x86.sse.sfence()")
    declarations = dict.fromkeys(line for w in writers for line in w.declarations.splitlines())
    return "\n".join([*declarations, *parts])


def _entry(T: Target, inputs: int, flush: bool, stream: bool) -> str:
    """The gufunc's inner loop: whole blocks, then a last block moved back to end with the batch.

    The states that the last block recomputes give the same bits, unless the output is written over an input.  In
    that case, and in batches smaller than a block, the states are computed one by one.  data[0] is the number of bytes
    of scratch memory per lane: small scratch memory is on the stack, larger comes from `take_room`.  The word before
    the scratch memory is the number of states.  data[1] is the address of the `runtime` words (`compiler/abi.py`).
    The function is long because it is one text, which reads from top to bottom like the code that runs.
    """
    save = restore = ""
    if T.x86:
        save = f"""
  %status = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %status)
  %old = load i32, ptr %status, align 4
  %new = or i32 %old, {_FLUSH if flush else 0}
  store i32 %new, ptr %status, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %status)"""
        restore = """
  store i32 %old, ptr %status, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %status)"""
    W = T.lanes
    fence = "\n  call void @llvm.x86.sse.sfence()" if stream else ""
    alias = f"""
  %out_place = getelementptr ptr, ptr %args, i64 {inputs}
  %out = load ptr, ptr %out_place, align 8
  %alias_0 = icmp eq i64 0, 1"""
    for k in range(inputs):
        alias += f"""
  %in_place_{k} = getelementptr ptr, ptr %args, i64 {k}
  %in_{k} = load ptr, ptr %in_place_{k}, align 8
  %same_{k} = icmp eq ptr %in_{k}, %out
  %alias_{k + 1} = or i1 %alias_{k}, %same_{k}"""
    blocks = f"""{alias}
  %last = sub i64 %count, {W}
  br label %block
block:
  %s = phi i64 [0, %vectors], [%s2, %block]
  call void @block_{W}(ptr %args, ptr %steps, ptr %data, ptr %work, i64 %s)
  %s2 = add i64 %s, {W}
  %more = icmp sle i64 %s2, %last
  br i1 %more, label %block, label %tail
tail:
  %complete = icmp eq i64 %s2, %count
  br i1 %complete, label %done, label %rest
rest:
  br i1 %alias_{inputs}, label %singles, label %again_block
again_block:
  call void @block_{W}(ptr %args, ptr %steps, ptr %data, ptr %work, i64 %last)
  br label %done"""
    vectors, resume = (blocks, "%s2, %rest") if W > 1 else ("\n  br label %singles", "0, %vectors")
    return f"""
declare ptr @malloc(i64)
declare void @free(ptr)
define void @kernel(ptr %args, ptr %dimensions, ptr %steps, ptr %data) nounwind {{
entry:{save}
  %count = load i64, ptr %dimensions, align 8
  %scratch = load i64, ptr %data, align 8
  %enough = icmp sge i64 %count, {W}
  %wide = select i1 %enough, i64 {W}, i64 1
  %needed = mul i64 %scratch, %wide
  %bytes = add i64 %needed, 64
  %small = icmp ule i64 %bytes, {STACK_BYTES}
  br i1 %small, label %on_stack, label %on_heap
on_stack:
  %near = alloca i8, i64 %bytes, align 64
  br label %go
on_heap:
  %room = add i64 %bytes, 128
  %runtime_place = getelementptr i64, ptr %data, i64 1
  %runtime = load ptr, ptr %runtime_place, align 8
  %kept = call ptr @take_room(ptr %runtime, i64 %room)
  %missing = icmp eq ptr %kept, null
  br i1 %missing, label %leave, label %found
found:
  %kept_address = ptrtoint ptr %kept to i64
  %up = add i64 %kept_address, 127
  %aligned = and i64 %up, -64
  %far = inttoptr i64 %aligned to ptr
  br label %go
go:
  %head = phi ptr [%near, %on_stack], [%far, %found]
  %owned = phi ptr [null, %on_stack], [%kept, %found]
  %owner = phi ptr [null, %on_stack], [%runtime, %found]
  %work = getelementptr i8, ptr %head, i64 64
  %count_place = getelementptr i8, ptr %head, i64 56
  store i64 %count, ptr %count_place, align 8
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %work_to_do, label %done
work_to_do:
  br i1 %enough, label %vectors, label %singles
vectors:{vectors}
singles:
  %from = phi i64 [0, %work_to_do], [{resume}]
  br label %single
single:
  %k = phi i64 [%from, %singles], [%k2, %single]
  call void @block_1(ptr %args, ptr %steps, ptr %data, ptr %work, i64 %k)
  %k2 = add i64 %k, 1
  %again = icmp slt i64 %k2, %count
  br i1 %again, label %single, label %done
done:{fence}
  br i1 %small, label %leave, label %give
give:
  call void @give_room(ptr %owner, ptr %owned)
  br label %leave
leave:{restore}
  ret void
}}
{_ROOM}"""


# Scratch memory too large for the stack.  One block is kept between calls, because the page faults of a new block take
# as long as the work in it.  runtime[0] is its address, or 0 while a call uses it.  A block begins with its size.
# If memory runs out, Python's MemoryError is set, and the kernel returns without writing anything.
_ROOM = f"""
define private ptr @take_room(ptr %runtime, i64 %room) noinline nounwind {{
entry:
  %kept = atomicrmw xchg ptr %runtime, i64 0 acq_rel
  %block = inttoptr i64 %kept to ptr
  %none = icmp eq i64 %kept, 0
  br i1 %none, label %fresh, label %look
look:
  %size = load i64, ptr %block, align 8
  %fits = icmp uge i64 %size, %room
  br i1 %fits, label %found, label %drop
found:
  ret ptr %block
drop:
  call void @free(ptr %block)
  br label %fresh
fresh:
  %new = call ptr @malloc(i64 %room)
  %failed = icmp eq ptr %new, null
  br i1 %failed, label %no_memory, label %made
made:
  store i64 %room, ptr %new, align 8
  %advise_place = getelementptr i64, ptr %runtime, i64 4
  %advise = load ptr, ptr %advise_place, align 8
  %unknown = icmp eq ptr %advise, null
  %small = icmp ult i64 %room, {HUGE_FROM}
  %plain = or i1 %unknown, %small
  br i1 %plain, label %done, label %huge
huge:
  %start = ptrtoint ptr %new to i64
  %above = add i64 %start, 4095
  %page = and i64 %above, -4096
  %pages = inttoptr i64 %page to ptr
  %length = sub i64 %room, 4096
  %advised = call i32 %advise(ptr %pages, i64 %length, i32 14)
  br label %done
done:
  ret ptr %new
no_memory:
  %ensure_place = getelementptr i64, ptr %runtime, i64 1
  %ensure = load ptr, ptr %ensure_place, align 8
  %raise_place = getelementptr i64, ptr %runtime, i64 2
  %raise = load ptr, ptr %raise_place, align 8
  %release_place = getelementptr i64, ptr %runtime, i64 3
  %release = load ptr, ptr %release_place, align 8
  %state = call i32 %ensure()
  %null = call ptr %raise()
  call void %release(i32 %state)
  ret ptr null
}}
define private void @give_room(ptr %runtime, ptr %block) noinline nounwind {{
entry:
  %size = load i64, ptr %block, align 8
  %large = icmp ugt i64 %size, {KEPT_BYTES}
  br i1 %large, label %drop, label %keep
drop:
  call void @free(ptr %block)
  ret void
keep:
  %address = ptrtoint ptr %block to i64
  %before = atomicrmw xchg ptr %runtime, i64 %address acq_rel
  %other = inttoptr i64 %before to ptr
  call void @free(ptr %other)
  ret void
}}
"""


ALL_TURNS = "all_turns"


def all_turns(target: Target) -> EntryFunction:
    """A function for the sines and cosines of all angles of one state, as many at a time as there are lanes."""
    T, w, size = target, LLVMWriter(target), target.size
    cosines, angles, _ = turns_room(w, "%room", "%count")
    with w.loop("copy", "0") as one:
        x = w.op(f"load {T.scalar}, ptr {w.address('%angles', w.i64('mul', one.i, '%stride'))}, align {size}")
        w.do(f"store {T.scalar} {x}, ptr {w.address(angles, w.i64('mul', one.i, size))}, align {size}")
        one.count_to(w, "%count")
    w.store(w.const(0.0), w.address(angles, w.i64("mul", "%count", size)))
    with w.loop("turn", "0") as some:
        offset = w.i64("mul", some.i, size)
        [(s, c)] = w.sincos([w.load(w.address(angles, offset))])
        w.store(s, w.address("%room", offset))
        w.store(c, w.address(cosines, offset))
        some.next = w.i64("add", some.i, T.lanes)
        some.again = w.compare("<", some.next, "%count")
    return EntryFunction(ALL_TURNS, "ptr noalias readonly %angles, i64 %stride, i64 %count, ptr noalias %room", w)


def turns_room(w: LLVMWriter, room: str, count: str) -> list[str]:
    """The starts of the cosines and of the angles in the room for sines, cosines and angles of a state, and its end."""
    bytes_each = w.i64("mul", w.i64("add", count, TURNS_MARGIN), w.target.size)
    places = [room]
    for _ in range(3):
        places.append(w.address(places[-1], bytes_each))
    return places[1:]


# from the array to the buffer, where numbers of different states become neighbours | from the buffer to the array |
# from the buffer to the array, each entry from the place that `entries` gives
DIRECTIONS = "turn_in", "turn_out", "unpack"
_TURNED = (
    "ptr %array, i64 %step, i64 %d0, i64 %d1, i64 %d2, i64 %s0, i64 %s1, i64 %s2, i1 %contiguous, i1 %stream, "
    "ptr %buffer, ptr %entries"
)


def turning_module(target: Target) -> str:
    """The module of a function that transposes in any direction: the first argument is the index in DIRECTIONS."""
    T, choices = target, "".join(f"i64 {k}, label %{name} " for k, name in enumerate(DIRECTIONS))
    calls = "".join(f"{x}:\n  call void @{x}_{T.lanes}({_TURNED})\n  ret void\n" for x in DIRECTIONS)
    kernel = (
        f"define void @kernel(i64 %direction, {_TURNED}) nounwind {{\n"
        f"entry:\n  switch i64 %direction, label %none [{choices}]\n{calls}none:\n  unreachable\n}}\n"
    )
    masked = f"declare void @llvm.masked.store.{T.suffix}.p0({T.vector}, ptr, i32, {T.bools})\n!0 = !{{i32 1}}\n"
    return "\n".join([*(turning(T, x) for x in DIRECTIONS), kernel, masked if streams(T) else ""])


def turning(target: Target, direction: str) -> str:
    """A function that transposes between an array and a buffer, in one of the DIRECTIONS.

    In the array every state has its own rows (`step` bytes apart); in the buffer every column is a vector of states.
    Squares of as many columns as there are states, or of four columns, are transposed by shuffles; the last square
    overlaps the previous one.
    """
    T, w, size = target, LLVMWriter(target), target.size
    into, packed = direction == "turn_in", direction == "unpack"

    def vector_of(column: str) -> str:
        if packed:
            entry = w.op(f"load i32, ptr {w.address('%entries', w.i64('mul', column, 4))}, align 4")
            column = w.op(f"sext i32 {entry} to i64")
        return w.address("%buffer", w.i64("mul", column, T.lanes * size))

    columns = w.i64("mul", w.i64("mul", "%d0", "%d1"), "%d2")
    for width in sorted({T.lanes, 4}, reverse=True) if T.lanes >= 4 else ():
        enough = w.op(f"icmp sge i64 {columns}, {width}")
        w.branch(w.op(f"and i1 {enough}, %contiguous"), f"quick_{width}", f"after_{width}")
        w.start(f"quick_{width}")
        _turn_squares(w, width, columns, into, vector_of)
        w.start(f"after_{width}")
    w.branch(w.op(f"icmp eq i64 %step, {size}"), "side_by_side", "one_by_one")  # columns are already vectors
    for label, kind, step in (("side_by_side", T.vector, T.lanes), ("one_by_one", T.scalar, 1)):
        w.start(label)
        with w.loop("x", "0") as x:
            with w.loop("y", "0") as y:
                with w.loop("z", "0") as z:
                    place = "%array"
                    for index, stride in ((x.i, "%s0"), (y.i, "%s1"), (z.i, "%s2")):
                        place = w.address(place, w.i64("mul", index, stride))
                    flat = w.i64("add", w.i64("mul", w.i64("add", w.i64("mul", x.i, "%d1"), y.i), "%d2"), z.i)
                    vector = vector_of(flat)
                    for lane in range(0, T.lanes, step):
                        ends = [w.address(place, w.i64("mul", "%step", lane)), w.address(vector, lane * size)]
                        source, sink = ends if into else reversed(ends)
                        some = w.op(f"load {kind}, ptr {source}, align {size}")
                        w.do(f"store {kind} {some}, ptr {sink}, align {size}")
                    z.count_to(w, "%d2")
                y.count_to(w, "%d1")
            x.count_to(w, "%d0")
        w.do("ret void")
    body = "\n".join(w.lines)
    return (
        f"define private void @{direction}_{T.lanes}({_TURNED}) noinline nounwind {_vector_width(T)} "
        f"{{\nentry:\n{body}\n}}\n"
    )


def _turn_squares(w: LLVMWriter, width: int, columns: str, into: bool, vector_of: Callable[[str], str]) -> None:
    """Transpose all columns, `width` at a time."""
    T, size = w.target, w.target.size
    last = w.i64("sub", columns, width)
    offsets = _offsets(w, "%step")  # computed once, not in every iteration

    def square(first: str, how: str = "", only: str = "") -> None:
        rows = w.address("%array", w.i64("mul", first, size))
        vectors = [vector_of(w.i64("add", first, k)) for k in range(width)]
        if into:
            for x, place in zip(_read_square(w, width, rows, offsets), vectors):
                w.store(x, place)
        else:
            _write_square(w, [w.load(place) for place in vectors], rows, offsets, how, only)

    if streams(T) and width == T.lanes and not into:
        # whole cache lines, if all rows have the same alignment; the columns before and after them separately
        address = w.op("ptrtoint ptr %array to i64")
        odd = w.i64("or", w.i64("and", "%step", 63), w.i64("and", address, size - 1))
        aligned, several = w.op(f"icmp eq i64 {odd}, 0"), w.op(f"icmp sge i64 {columns}, {2 * width}")
        w.branch(w.op(f"and i1 {aligned}, {several}"), "lines", "together")
        w.start("lines")
        start = w.i64("udiv", w.i64("and", w.i64("sub", 0, address), 63), size)
        end = w.i64("add", start, w.i64("and", w.i64("sub", columns, start), -width))
        square("0", only=_lanes_where(w, "ult", start))
        square(last, only=_lanes_where(w, "uge", w.i64("sub", end, last)))
        w.branch("%stream", "past", "through")
        for label, how in (("past", "64, !nontemporal !0"), ("through", "64")):
            w.start(label)
            with w.loop("line", start) as loop:
                square(loop.i, how)
                loop.next = w.i64("add", loop.i, width)
                loop.again = w.op(f"icmp slt i64 {loop.next}, {end}")
            w.do("ret void")
        w.start("together")
    with w.loop("square", "0") as loop:
        over = w.op(f"icmp sgt i64 {loop.i}, {last}")
        square(w.op(f"select i1 {over}, i64 {last}, i64 {loop.i}"))
        loop.next = w.i64("add", loop.i, width)
        loop.again = w.op(f"icmp slt i64 {loop.next}, {columns}")
    w.do("ret void")


def rows_to_vectors(w: LLVMWriter, array: str, step: str, columns: int) -> list[str]:
    """A vector of states for every column of rows of contiguous numbers; there are at least four columns."""
    offsets, width = _offsets(w, step), _width(w.target, columns)
    vectors = [""] * columns
    for first in (*range(0, columns - width, width), columns - width):
        vectors[first : first + width] = _read_square(w, width, w.address(array, first * w.target.size), offsets)
    return vectors


def vectors_to_rows(w: LLVMWriter, vectors: Sequence[str], array: str, step: str) -> None:
    """The inverse of `rows_to_vectors`."""
    offsets, width = _offsets(w, step), _width(w.target, len(vectors))
    for first in (*range(0, len(vectors) - width, width), len(vectors) - width):
        _write_square(w, vectors[first : first + width], w.address(array, first * w.target.size), offsets)


def _width(T: Target, columns: int) -> int:
    return T.lanes if columns >= T.lanes else 4


def _offsets(w: LLVMWriter, step: str) -> list[str]:
    """The distance in bytes from the first row of a block to each row."""
    return [w.i64("mul", step, lane) for lane in range(w.target.lanes)]


def _read_square(w: LLVMWriter, width: int, rows: str, offsets: Sequence[str]) -> list[str]:
    """Read `width` columns as vectors."""
    T = w.target
    part = f"<{width} x {T.scalar}>"
    loaded = [w.op(f"load {part}, ptr {w.address(rows, offset)}, align {T.size}") for offset in offsets]
    return _transposed(w, [_join(w, loaded[k::width], width) for k in range(width)])


def _write_square(w: LLVMWriter, vectors: Sequence[str], rows: str, offsets: Sequence[str], how: str = "",
                  only: str = "") -> None:  # fmt: skip
    """Write vectors as columns of the rows.  `how`: alignment and metadata of the store; `only`: a mask of columns."""
    T, width = w.target, len(vectors)
    part, bools = f"<{width} x {T.scalar}>", f"<{width} x i1>"
    for k, x in enumerate(_transposed(w, vectors)):
        for g in range(T.lanes // width):
            y = x if width == T.lanes else _shuffle(w, x, "poison", range(width * g, width * (g + 1)), T.lanes)
            place = w.address(rows, offsets[width * g + k])
            if only:
                masked = f"llvm.masked.store.v{width}f{T.bits}.p0"
                w.do(f"call void @{masked}({part} {y}, ptr {place}, i32 {T.size}, {bools} {only})")
            else:
                w.do(f"store {part} {y}, ptr {place}, align {how or T.size}")


def _lanes_where(w: LLVMWriter, relation: str, x: str) -> str:
    """A mask of the lanes whose index is in that relation to x."""
    n = w.target.lanes
    first = w.op(f"insertelement <{n} x i64> poison, i64 {x}, i64 0")
    every = w.op(f"shufflevector <{n} x i64> {first}, <{n} x i64> poison, <{n} x i32> zeroinitializer")
    return w.op(f"icmp {relation} <{n} x i64> <{', '.join(f'i64 {k}' for k in range(n))}>, {every}")


def streams(T: Target) -> bool:
    """Whether a vector fills a cache line, so that it can bypass the cache when written."""
    return T.x86 and T.lanes * T.size == 64


def _shuffle(w: LLVMWriter, a: str, b: str, picks: Sequence[int], lanes: int) -> str:
    """Entries picked from two vectors of `lanes` numbers; those of the second are numbered from `lanes` on."""
    vector = f"<{lanes} x {w.target.scalar}>"
    mask = ", ".join(f"i32 {k}" for k in picks)
    return w.op(f"shufflevector {vector} {a}, {vector} {b}, <{len(picks)} x i32> <{mask}>")


def _join(w: LLVMWriter, parts: Sequence[str], lanes: int) -> str:
    """Vectors of `lanes` numbers each, concatenated."""
    if len(parts) == 1:
        return parts[0]
    pairs = [_shuffle(w, a, b, range(2 * lanes), lanes) for a, b in zip(parts[::2], parts[1::2])]
    return _join(w, pairs, 2 * lanes)


def _transposed(w: LLVMWriter, x: Sequence[str]) -> list[str]:
    """n vectors, transposed in every group of n lanes.  The operation is its own inverse.

    Pairs of vectors exchange single numbers, then pairs of numbers, then groups of four, and so on.
    """
    W, n = w.target.lanes, len(x)
    x = list(x)
    for half in (1 << k for k in range(n.bit_length() - 1)):
        for i in range(n):
            if not i & half:
                low, high = x[i], x[i + half]
                x[i] = _shuffle(w, low, high, [k if not k & half else W + k - half for k in range(W)], W)
                x[i + half] = _shuffle(w, low, high, [k + half if not k & half else W + k for k in range(W)], W)
    return x


def _vector_width(T: Target) -> str:
    width = min(512, T.lanes * T.bits)
    return f'"prefer-vector-width"="{width}" "min-legal-vector-width"="{width}"' if T.lanes > 1 else ""
