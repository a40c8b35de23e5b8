"""Whole kernels: the work on one block of states between the arrays of a NumPy call.

A kernel is the inner loop of a generalised ufunc,

    void kernel(char **args, intp *dimensions, intp *steps, void *data)

and reads and writes its arrays through their strides, whatever the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torsor.kernel.elementary import far_sincos
from torsor.kernel.llvm import Target, Writer

# A kernel leaves the floating-point flags as it found them (what NumPy would warn of is reported by torsor, with
# the joint's name), and loops flush subnormals to zero: they mean nothing here and cost three times as much.
_FLUSH = 0x8040  # FTZ and DAZ of x86's MXCSR
_MXCSR = "declare void @llvm.x86.sse.stmxcsr(ptr)\ndeclare void @llvm.x86.sse.ldmxcsr(ptr)"


def kernel_module(vector: Target, inputs: int, body: Callable[[Writer], None], flush: bool) -> str:
    """The module of a kernel with so many inputs; `body` writes the work on one block of states.

    It is written twice: for a vector of states and for a single one.
    """
    parts, declarations = [], {}
    targets = [vector] if vector.lanes == 1 else [vector, replace(vector, lanes=1)]
    for target in targets:
        writer = Writer(target)
        text = _block_function(writer, body)
        parts.append(text)
        declarations.update(dict.fromkeys(writer.declarations.splitlines()))
        if writer.far_room and target is targets[-1]:
            parts.append(far_sincos(target))
        if writer.uses_turning:
            parts += [turning(target, into=True), turning(target, into=False)]
    parts.append(_entry(vector, inputs, flush))
    if vector.x86:
        parts.append(_MXCSR)
    return "\n".join([*declarations, *parts])


def _block_function(w: Writer, body: Callable[[Writer], None]) -> str:
    """void block_W(args, steps, data, work, first): the W states from `first` on."""
    T = w.target
    body(w)
    room = f"  %far_angles = alloca [{w.far_room} x i8], align 64\n" if w.far_room else ""
    lines = "\n".join(w.lines)
    return (
        f"define private void @block_{T.lanes}(ptr noalias readonly %args, ptr noalias readonly %steps, "
        f"ptr noalias readonly %data, ptr noalias %work, i64 %first) nounwind {_vector_width(T)} {{\n"
        f"entry:\n{room}{lines}\n  ret void\n}}\n"
    )


def _entry(T: Target, inputs: int, flush: bool) -> str:
    """The gufunc's inner loop: whole blocks, then a last block moved back to end with the batch.

    The states that such a block does again give the same bits again, unless the output is written over an input;
    then, and in batches smaller than a block, the rest is done one by one.  data[0] is the number of bytes of
    scratch memory a lane needs: taken from the stack if small.
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
  %bytes = mul i64 %scratch, %wide
  %small = icmp ule i64 %bytes, 65536
  br i1 %small, label %on_stack, label %on_heap
on_stack:
  %near = alloca i8, i64 %bytes, align 64
  br label %go
on_heap:
  %room = add i64 %bytes, 64
  %heap = call ptr @malloc(i64 %room)
  %heap_address = ptrtoint ptr %heap to i64
  %up = add i64 %heap_address, 63
  %aligned = and i64 %up, -64
  %far = inttoptr i64 %aligned to ptr
  br label %go
go:
  %work = phi ptr [%near, %on_stack], [%far, %on_heap]
  %owned = phi ptr [null, %on_stack], [%heap, %on_heap]
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
done:
  call void @free(ptr %owned){restore}
  ret void
}}
"""


def turning(target: Target, into: bool) -> str:
    """turn_in: numbers that belong to one state after the other are put side by side; turn_out: back again.

    In memory every state has its own rows (`step` bytes apart); in the buffer there is a vector of states for every
    column.  Four columns of four rows at a time are turned by shuffles; the last four overlap those before.
    """
    T, w, size = target, Writer(target), target.size
    groups = T.lanes // 4
    name = f"turn_{'in' if into else 'out'}_{T.lanes}"

    columns = w.i64("mul", w.i64("mul", "%d0", "%d1"), "%d2")
    enough = w.op(f"icmp sge i64 {columns}, 4")
    w.branch(w.op(f"and i1 {enough}, %contiguous"), "quick" if groups else "slow", "slow")
    if groups:
        _turn_quickly(w, columns, into)
    w.start("slow")
    with w.loop("x", "0") as x:
        with w.loop("y", "0") as y:
            with w.loop("z", "0") as z:
                place = "%array"
                for index, stride in ((x.i, "%s0"), (y.i, "%s1"), (z.i, "%s2")):
                    place = w.address(place, w.i64("mul", index, stride))
                flat = w.i64("add", w.i64("mul", w.i64("add", w.i64("mul", x.i, "%d1"), y.i), "%d2"), z.i)
                vector = w.address("%buffer", w.i64("mul", flat, T.lanes * size))
                for lane in range(T.lanes):
                    ends = [w.address(place, w.i64("mul", "%step", lane)), w.address(vector, lane * size)]
                    source, sink = ends if into else reversed(ends)
                    number = w.op(f"load {T.scalar}, ptr {source}, align {size}")
                    w.do(f"store {T.scalar} {number}, ptr {sink}, align {size}")
                z.count_to(w, "%d2")
            y.count_to(w, "%d1")
        x.count_to(w, "%d0")
    w.do("ret void")
    body = "\n".join(w.lines)
    return (
        f"define private void @{name}(ptr %array, i64 %step, i64 %d0, i64 %d1, i64 %d2, i64 %s0, i64 %s1, i64 %s2, "
        f"i1 %contiguous, ptr %buffer) noinline nounwind {_vector_width(T)} {{\nentry:\n{body}\n}}\n"
    )


def _turn_quickly(w: Writer, columns: str, into: bool) -> None:
    T, size = w.target, w.target.size
    quad, groups = f"<4 x {T.scalar}>", T.lanes // 4
    w.start("quick")
    last = w.i64("sub", columns, 4)
    with w.loop("four", "0") as loop:
        over = w.op(f"icmp sgt i64 {loop.i}, {last}")
        first = w.op(f"select i1 {over}, i64 {last}, i64 {loop.i}")
        rows = w.address("%array", w.i64("mul", first, size))
        places = [w.address(rows, w.i64("mul", "%step", lane)) for lane in range(T.lanes)]
        buffer = w.address("%buffer", w.i64("mul", first, T.lanes * size))
        vectors = [w.address(buffer, k * T.lanes * size) for k in range(4)]
        if into:
            loaded = [w.op(f"load {quad}, ptr {place}, align {size}") for place in places]
            turned = _turn_four(w, [_join(w, [loaded[4 * g + k] for g in range(groups)]) for k in range(4)])
            for x, place in zip(turned, vectors):
                w.store(x, place)
        else:
            for k, x in enumerate(_turn_four(w, [w.load(place) for place in vectors])):
                for g in range(groups):
                    part = _shuffle(w, x, "poison", range(4 * g, 4 * g + 4), T.lanes)
                    w.do(f"store {quad} {part}, ptr {places[4 * g + k]}, align {size}")
        loop.next = w.i64("add", loop.i, 4)
        loop.again = w.op(f"icmp slt i64 {loop.next}, {columns}")
    w.do("ret void")


def _shuffle(w: Writer, a: str, b: str, picks: Sequence[int], lanes: int) -> str:
    """Entries of two vectors of `lanes` numbers, those of the second counted on from the first's."""
    vector = f"<{lanes} x {w.target.scalar}>"
    mask = ", ".join(f"i32 {k}" for k in picks)
    return w.op(f"shufflevector {vector} {a}, {vector} {b}, <{len(picks)} x i32> <{mask}>")


def _join(w: Writer, parts: Sequence[str], lanes: int = 4) -> str:
    """Vectors of four, one behind the other."""
    if len(parts) == 1:
        return parts[0]
    pairs = [_shuffle(w, a, b, range(2 * lanes), lanes) for a, b in zip(parts[::2], parts[1::2])]
    return _join(w, pairs, 2 * lanes)


def _turn_four(w: Writer, x: Sequence[str]) -> list[str]:
    """Transpose four vectors, in every group of four lanes.  Its own inverse."""
    W = w.target.lanes
    groups = range(0, W, 4)
    # single numbers meet their neighbours in a register's 128 bits; the pattern differs with their size
    low, high = ((0, 2), (1, 3)) if w.target.bits == 64 else ((0, 1), (2, 3))

    def mix(a: str, b: str, pick: tuple[int, int]) -> str:
        return _shuffle(w, a, b, [g + k + W * side for g in groups for k in pick for side in (0, 1)], W)

    def halves(a: str, b: str, half: int) -> str:
        return _shuffle(w, a, b, [g + 2 * half + k + W * side for g in groups for side in (0, 1) for k in (0, 1)], W)

    pairs = {pick: (mix(x[0], x[1], pick), mix(x[2], x[3], pick)) for pick in (low, high)}
    result = [""] * 4
    for pick, (a, b) in pairs.items():
        for half in (0, 1):
            result[pick[half]] = halves(a, b, half)
    return result


def _vector_width(T: Target) -> str:
    width = min(512, T.lanes * T.bits)
    return f'"prefer-vector-width"="{width}" "min-legal-vector-width"="{width}"' if T.lanes > 1 else ""
