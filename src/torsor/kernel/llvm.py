"""Tapes to LLVM IR: every operation of a tape becomes one instruction on a vector of states.

The text written here is plain: explicit vector types, no fast-math flags, multiply-adds formed by us and not
left to a later pass.  So a state gives the same bits in any lane of a vector of any width.

A kernel is the inner loop of a NumPy generalised ufunc,

    void kernel(char **args, intp *dimensions, intp *steps, void *data)

which reads its arrays through their strides, whatever the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torsor.kernel.tape import Code, Node, operands

# sin and cos on [-pi/4, pi/4]: odd and even minimax polynomials, in powers of r^2 (fdlibm's for double,
# Cephes' for single), and pi/2 in three parts (Cody & Waite) for the reduction.
_SIN = {
    64: (-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
         2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10),
    32: (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4),
}  # fmt: skip
_COS = {
    64: (4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
         -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11),
    32: (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5),
}  # fmt: skip
_HALF_PI = {
    64: (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33),
    32: (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058944e-15),
}
_LOG = {
    64: (6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
         1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01),
    32: (0.66666662693, 0.40000972152, 0.28498786688, 0.24279078841),
}  # fmt: skip
_LN2 = {64: (6.93147180369123816490e-01, 1.90821492927058770002e-10), 32: (6.9313812256e-01, 9.0580006145e-06)}
_ROUND = {64: 6755399441055744.0, 32: 12582912.0}  # 1.5 * 2^52, 1.5 * 2^23: adding it rounds to an integer
# Beyond this |angle| three parts of pi/2 are not enough, and the C library's sin and cos are called.
TRIG_LIMIT = {64: 1e9, 32: 1e4}


@dataclass(frozen=True)
class Target:
    """What the code is written for."""

    lanes: int  # states side by side in a vector, 1 for none
    bits: int  # 64 or 32
    fma: bool = True  # the machine multiplies and adds in one instruction
    x86: bool = True  # the floating-point status register is x86's

    @property
    def scalar(self) -> str:
        return "double" if self.bits == 64 else "float"

    @property
    def vector(self) -> str:
        return self.scalar if self.lanes == 1 else f"<{self.lanes} x {self.scalar}>"

    @property
    def ints(self) -> str:
        return self._lanes_of(f"i{self.bits}")

    @property
    def bools(self) -> str:
        return self._lanes_of("i1")

    @property
    def suffix(self) -> str:
        return ("" if self.lanes == 1 else f"v{self.lanes}") + f"f{self.bits}"

    @property
    def size(self) -> int:
        return self.bits // 8

    def _lanes_of(self, kind: str) -> str:
        return kind if self.lanes == 1 else f"<{self.lanes} x {kind}>"

    def splat(self, kind: str, text: str) -> str:
        return text if self.lanes == 1 else f"splat ({kind} {text})"

    def const(self, x: float) -> str:
        if self.bits == 32:
            x = struct.unpack("f", struct.pack("f", x))[0]
        return self.splat(self.scalar, f"0x{struct.unpack('Q', struct.pack('d', x))[0]:016X}")

    def integer(self, x: int) -> str:
        return self.splat(f"i{self.bits}", str(x))


class Writer:
    """A function body being written: instructions on vectors of states, labels, loops."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.lines: list[str] = []
        self.block = "entry"
        self._values = 0
        self._labels = 0
        self._declarations: dict[str, None] = {}
        self.far_room = 0  # bytes of stack for angles beyond the range of our own sine
        self.uses_turning = False

    # -- plain instructions

    def op(self, text: str) -> str:
        self._values += 1
        self.lines.append(f"  %t{self._values} = {text}")
        return f"%t{self._values}"

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def declare(self, text: str) -> None:
        self._declarations[f"declare {text}"] = None

    @property
    def declarations(self) -> str:
        return "\n".join(self._declarations)

    def new_label(self, name: str) -> str:
        self._labels += 1
        return f"{name}{self._labels}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")

    # -- integers and pointers

    def i64(self, op: str, a: str | int, b: str | int) -> str:
        return self.op(f"{op} i64 {a}, {b}")

    def address(self, base: str, offset: str | int) -> str:
        """base + offset bytes."""
        return self.op(f"getelementptr i8, ptr {base}, i64 {offset}")

    def load_i64(self, base: str, index: int) -> str:
        return self.op(f"load i64, ptr {self.address(base, 8 * index)}, align 8")

    def load_ptr(self, base: str, index: int) -> str:
        return self.op(f"load ptr, ptr {self.address(base, 8 * index)}, align 8")

    # -- vectors of states

    def arithmetic(self, op: str, a: str, b: str) -> str:
        return self.op(f"{op} {self.target.vector} {a}, {b}")

    def neg(self, a: str) -> str:
        return self.op(f"fneg {self.target.vector} {a}")

    def fma(self, a: str, b: str, c: str) -> str:
        """a b + c, rounded once where the machine can, twice where it cannot."""
        T = self.target
        if not T.fma:
            return self.arithmetic("fadd", self.arithmetic("fmul", a, b), c)
        self.declare(f"{T.vector} @llvm.fma.{T.suffix}({T.vector}, {T.vector}, {T.vector})")
        return self.op(f"call {T.vector} @llvm.fma.{T.suffix}({T.vector} {a}, {T.vector} {b}, {T.vector} {c})")

    def integer(self, op: str, a: str, b: str) -> str:
        return self.op(f"{op} {self.target.ints} {a}, {b}")

    def load(self, pointer: str) -> str:
        """A vector from consecutive memory."""
        T = self.target
        return self.op(f"load {T.vector}, ptr {pointer}, align {T.size}")

    def store(self, x: str, pointer: str) -> None:
        T = self.target
        self.do(f"store {T.vector} {x}, ptr {pointer}, align {T.size}")

    def splat(self, pointer: str) -> str:
        """One number from memory, the same in every lane."""
        T = self.target
        x = self.op(f"load {T.scalar}, ptr {pointer}, align {T.size}")
        if T.lanes == 1:
            return x
        first = self.op(f"insertelement {T.vector} poison, {T.scalar} {x}, i64 0")
        return self.op(f"shufflevector {T.vector} {first}, {T.vector} poison, <{T.lanes} x i32> zeroinitializer")

    # -- loops

    @contextmanager
    def loop(self, name: str, first: str | int, carried: Sequence[tuple[str, str]] = ()) -> Iterator[Loop]:
        """A loop that runs at least once: set `next`, `again` and `carry` in its body."""
        label, after, before = self.new_label(name), self.new_label(f"after_{name}"), self.block
        self.jump(label)
        self.start(label)
        place = len(self.lines)
        loop = Loop(f"%{label}_i", [f"%{label}_c{k}" for k in range(len(carried))])
        yield loop
        self.branch(loop.again, label, after)
        phis = [f"  {loop.i} = phi i64 [{first}, %{before}], [{loop.next}, %{self.block}]"]
        for phi, (kind, start), end in zip(loop.carried, carried, loop.carry):
            phis.append(f"  {phi} = phi {kind} [{start}, %{before}], [{end}, %{self.block}]")
        self.lines[place:place] = phis
        self.start(after)

    def merge(self, kind: str, *arrivals: tuple[str, str]) -> str:
        """A value that came by one of several blocks."""
        return self.op(f"phi {kind} " + ", ".join(f"[{x}, %{block}]" for x, block in arrivals))

    # -- tapes

    def emit(self, code: Code, value_of: Callable[[Any], str]) -> dict[Any, str]:
        """The instructions of a tape; `value_of` names its inputs.  Returns its outputs.

        Sines and cosines come first, all at once, so that one test serves their range; those of angles that depend
        on other sines come in waves.
        """
        nodes = code.nodes
        fused = fuse(code) if self.target.fma else {}
        gone = {product for product, _ in fused.values()}
        values: dict[int, str] = {}
        turns: dict[int, tuple[str, str]] = {}

        def one(i: int) -> str:
            op, a, b = nodes[i]
            if op == "const":
                return self.target.const(a)
            if op == "in":
                return value_of(a)
            if i in fused:
                product, other = fused[i]
                x, y = (values[k] for k in operands(nodes[product]))
                if op == "sub" and a == product:
                    return self.fma(x, y, self.neg(values[other]))
                return self.fma(self.neg(x) if op == "sub" else x, y, values[other])
            if op in ("add", "sub", "mul"):
                return self.arithmetic("f" + op, values[a], values[b])
            if op == "neg":
                return self.neg(values[a])
            if op == "inv":
                return self.arithmetic("fdiv", self.target.const(1.0), values[a])
            if op == "log":
                return self.log(values[a])
            if op in ("sin", "cos"):
                return turns[a][op == "cos"]
            T = self.target
            self.declare(f"{T.vector} @llvm.sqrt.{T.suffix}({T.vector})")
            return self.op(f"call {T.vector} @llvm.sqrt.{T.suffix}({T.vector} {values[a]})")

        def place(some: Iterable[int]) -> None:
            for i in some:
                if i not in values and i not in gone:
                    values[i] = one(i)

        for angles in waves(nodes):
            place(sorted(_needed(nodes, angles)))
            turns.update(zip(angles, self.sincos([values[a] for a in angles])))
        place(range(len(nodes)))
        return {name: values[i] for name, i in code.outputs.items()}

    # -- sine and cosine

    def sincos(self, angles: Sequence[str]) -> list[tuple[str, str]]:
        """(sin, cos) of every angle: our own code, or the C library's where an angle is beyond its range."""
        T = self.target
        limit = T.const(TRIG_LIMIT[T.bits])
        self.declare(f"{T.vector} @llvm.fabs.{T.suffix}({T.vector})")
        near = ""
        for x in angles:
            size = self.op(f"call {T.vector} @llvm.fabs.{T.suffix}({T.vector} {x})")
            ok = self.op(f"fcmp olt {T.vector} {size}, {limit}")
            near = self.op(f"and {T.bools} {near}, {ok}") if near else ok
        if T.lanes > 1:
            self.declare(f"i1 @llvm.vector.reduce.and.v{T.lanes}i1({T.bools})")
            near = self.op(f"call i1 @llvm.vector.reduce.and.v{T.lanes}i1({T.bools} {near})")
        fast, slow, done = (self.new_label(x) for x in ("sincos", "far_sincos", "sincos_done"))
        self.branch(near, fast, slow)
        self.start(fast)
        quick = [self._sincos(x) for x in angles]
        fast = self.block
        self.jump(done)
        self.start(slow)
        exact = self._library_sincos(angles)
        slow = self.block
        self.jump(done)
        self.start(done)
        return [
            (self.merge(T.vector, (s1, fast), (s2, slow)), self.merge(T.vector, (c1, fast), (c2, slow)))
            for (s1, c1), (s2, c2) in zip(quick, exact)
        ]

    def _sincos(self, x: str) -> tuple[str, str]:
        """Cody & Waite's reduction to [-pi/4, pi/4], a polynomial each, and the quadrant by bits."""
        T, const = self.target, self.target.const
        shifted = self.fma(x, const(0.6366197723675814), const(_ROUND[T.bits]))
        k = self.arithmetic("fsub", shifted, const(_ROUND[T.bits]))
        quadrant = self.op(f"bitcast {T.vector} {shifted} to {T.ints}")
        minus_k = self.neg(k)
        r = x
        for part in _HALF_PI[T.bits]:
            r = self.fma(minus_k, const(part), r)
        z = self.arithmetic("fmul", r, r)
        sine = self.fma(self.arithmetic("fmul", self._horner(_SIN[T.bits], z), z), r, r)
        square = self.arithmetic("fmul", z, z)
        cosine = self.fma(square, self._horner(_COS[T.bits], z), self.fma(z, const(-0.5), const(1.0)))
        odd = self.op(f"icmp ne {T.ints} {self.integer('and', quadrant, T.integer(1))}, {T.integer(0)}")
        s = self.op(f"select {T.bools} {odd}, {T.vector} {cosine}, {T.vector} {sine}")
        c = self.op(f"select {T.bools} {odd}, {T.vector} {sine}, {T.vector} {cosine}")
        return self._signed(s, quadrant), self._signed(c, self.integer("add", quadrant, T.integer(1)))

    def _horner(self, coefficients: Sequence[float], z: str) -> str:
        p = self.target.const(coefficients[-1])
        for a in coefficients[-2::-1]:
            p = self.fma(p, z, self.target.const(a))
        return p

    def _signed(self, x: str, quadrant: str) -> str:
        """x with its sign changed in the third and fourth quadrants: bit 1 moved onto the sign bit."""
        T = self.target
        sign = self.integer("shl", self.integer("and", quadrant, T.integer(2)), T.integer(T.bits - 2))
        bits = self.integer("xor", self.op(f"bitcast {T.vector} {x} to {T.ints}"), sign)
        return self.op(f"bitcast {T.ints} {bits} to {T.vector}")

    def _library_sincos(self, angles: Sequence[str]) -> list[tuple[str, str]]:
        T = self.target
        count = len(angles) * T.lanes
        room = "%far_angles"
        self.far_room = max(self.far_room, 3 * count * T.size)
        step = T.lanes * T.size
        for k, x in enumerate(angles):
            self.store(x, self.address(room, k * step))
        s, c = self.address(room, count * T.size), self.address(room, 2 * count * T.size)
        self.do(f"call void @far_sincos_f{T.bits}(ptr {room}, ptr {s}, ptr {c}, i64 {count})")
        places = [k * step for k in range(len(angles))]
        return [(self.load(self.address(s, place)), self.load(self.address(c, place))) for place in places]


    # -- logarithm

    def log(self, x: str) -> str:
        """log x = k log 2 + log(1 + f), sqrt(1/2) <= 1 + f < sqrt(2); with s = f / (2 + f) an even series in s.

        Subnormal numbers are not met: they are pivots of a joint that moves no mass.
        """
        T, const = self.target, self.target.const
        mantissa, half_root = (52, 0x3FE6A09E667F3BCD) if T.bits == 64 else (23, 0x3F3504F3)
        high, low = _LN2[T.bits]
        bits = self.op(f"bitcast {T.vector} {x} to {T.ints}")
        k = self.integer("ashr", self.integer("sub", bits, T.integer(half_root)), T.integer(mantissa))
        reduced = self.integer("sub", bits, self.integer("shl", k, T.integer(mantissa)))
        f = self.arithmetic("fsub", self.op(f"bitcast {T.ints} {reduced} to {T.vector}"), const(1.0))
        power = self.op(f"sitofp {T.ints} {k} to {T.vector}")
        s = self.arithmetic("fdiv", f, self.arithmetic("fadd", f, const(2.0)))
        z = self.arithmetic("fmul", s, s)
        R = self.arithmetic("fmul", z, self._horner(_LOG[T.bits], z))
        half_square = self.arithmetic("fmul", self.arithmetic("fmul", f, f), const(0.5))
        small = self.fma(s, self.arithmetic("fadd", half_square, R), self.arithmetic("fmul", power, const(low)))
        rest = self.arithmetic("fsub", self.arithmetic("fsub", half_square, small), f)
        result = self.arithmetic("fsub", self.arithmetic("fmul", power, const(high)), rest)
        positive = self.op(f"fcmp ogt {T.vector} {x}, {const(0.0)}")
        finite = self.op(f"fcmp olt {T.vector} {x}, {const(float('inf'))}")
        zero = self.op(f"fcmp oeq {T.vector} {x}, {const(0.0)}")
        wrong = self.op(f"select {T.bools} {zero}, {T.vector} {const(float('-inf'))}, {T.vector} {const(float('nan'))}")
        large = self.op(f"select {T.bools} {positive}, {T.vector} {x}, {T.vector} {wrong}")
        usual = self.op(f"and {T.bools} {positive}, {finite}")
        return self.op(f"select {T.bools} {usual}, {T.vector} {result}, {T.vector} {large}")


@dataclass
class Loop:
    i: str
    carried: list[str]
    next: str = ""
    again: str = ""
    carry: Sequence[str] = ()

    def count_to(self, w: Writer, end: str | int) -> None:
        """On to the next number, while it is below the end."""
        self.next = w.i64("add", self.i, 1)
        self.again = w.op(f"icmp slt i64 {self.next}, {end}")


def _needed(nodes: Sequence[Node], targets: Sequence[int]) -> set[int]:
    """All nodes that the targets depend on."""
    live: set[int] = set()
    stack = list(targets)
    while stack:
        i = stack.pop()
        if i not in live:
            live.add(i)
            stack.extend(operands(nodes[i]))
    return live


def waves(nodes: Sequence[Node]) -> list[list[int]]:
    """The angles whose sines or cosines are taken: those that need no sine, those that need only sines of these, ..."""
    depth: list[int] = []
    for node in nodes:
        depth.append(max((depth[k] for k in operands(node)), default=0) + (node.op in ("sin", "cos")))
    angles = sorted({node.a for node in nodes if node.op in ("sin", "cos")})
    return [[a for a in angles if depth[a] == d] for d in sorted({depth[a] for a in angles})]


def fuse(code: Code) -> dict[int, tuple[int, int]]:
    """Which additions take in a product: {sum: (product, other operand)}, the product used nowhere else."""
    uses = [0] * len(code.nodes)
    for node in code.nodes:
        for k in operands(node):
            uses[k] += 1
    for k in code.outputs.values():
        uses[k] += 1
    result = {}
    for i, (op, a, b) in enumerate(code.nodes):
        if op in ("add", "sub"):
            for product, other in ((b, a), (a, b)):
                if code.nodes[product].op == "mul" and uses[product] == 1:
                    result[i] = (product, other)
                    break
    return result


# Whole functions -------------------------------------------------------------------------------------------

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


def far_sincos(target: Target) -> str:
    """The C library's sin and cos, one number after the other: for angles beyond TRIG_LIMIT, inf and nan."""
    T, single = target.scalar, target.bits == 32
    widen = "  %y = fpext float %x to double\n" if single else ""
    narrow = "  %s = fptrunc double %sd to float\n  %c = fptrunc double %cd to float\n" if single else ""
    x, s, c = ("%y", "%sd", "%cd") if single else ("%x", "%s", "%c")
    return f"""
declare double @sin(double)
declare double @cos(double)
define private void @far_sincos_f{target.bits}(ptr %xs, ptr %ss, ptr %cs, i64 %n) noinline nounwind {{
entry:
  br label %one
one:
  %i = phi i64 [0, %entry], [%j, %one]
  %px = getelementptr {T}, ptr %xs, i64 %i
  %ps = getelementptr {T}, ptr %ss, i64 %i
  %pc = getelementptr {T}, ptr %cs, i64 %i
  %x = load {T}, ptr %px, align {target.size}
{widen}  {s} = call double @sin(double {x})
  {c} = call double @cos(double {x})
{narrow}  store {T} %s, ptr %ps, align {target.size}
  store {T} %c, ptr %pc, align {target.size}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %one, label %done
done:
  ret void
}}
"""
