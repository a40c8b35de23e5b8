"""Tapes to LLVM IR: every operation of a tape becomes one instruction on a vector of states.

The text has explicit vector types and no fast-math flags, and multiply-adds are formed here, not by a later pass.  So a
state gives the same bits in any lane of a vector of any width.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from torsor.backends.elementary import down_scale, log, sincos
from torsor.compiler.language import Int, Language, Loop


@dataclass(frozen=True)
class Target:
    """The vectors and the machine that code is written for."""

    lanes: int  # states side by side in a vector, 1 for none
    bits: int  # 64 or 32
    fma: bool = True  # whether the machine multiplies and adds in one instruction
    x86: bool = True  # whether the floating-point status register is x86's

    @cached_property
    def scalar(self) -> str:
        return "double" if self.bits == 64 else "float"

    @cached_property
    def vector(self) -> str:
        return self.scalar if self.lanes == 1 else f"<{self.lanes} x {self.scalar}>"

    @cached_property
    def ints(self) -> str:
        return self._lanes_of(f"i{self.bits}")

    @cached_property
    def bools(self) -> str:
        return self._lanes_of("i1")

    @cached_property
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


class LLVMWriter(Language):
    """A function body while it is written: instructions on vectors of states, labels, loops."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.multiply_adds = target.fma
        self.lines: list[str] = []
        self.block = "entry"
        self._known: dict[str, str] = {}  # addresses and similar values that this block has computed, by their text
        self._values = 0
        self._labels = 0
        self._declarations: dict[str, None] = {}
        self.far_room = 0  # bytes of stack for angles beyond the range of our sine
        self.turnings: set[str] = set()  # functions of `llvm_entry.turning` that are called
        self.called: set[str] = set()  # other functions of `llvm_entry` that are called

    # -- plain instructions

    def op(self, text: str) -> str:
        self._values += 1
        self.lines.append(f"  %t{self._values} = {text}")
        return f"%t{self._values}"

    def once(self, text: str) -> str:
        """An instruction that depends only on its operands, written once per block.

        Otherwise half of the text of loops would be the same few addresses, and LLVM translates all of it.
        """
        if text not in self._known:
            self._known[text] = self.op(text)
        return self._known[text]

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def declare(self, text: str) -> None:
        self._declarations[f"declare {text}"] = None

    def constants(self, name: str, numbers: Sequence[int]) -> str:
        """A table of int32 beside the code."""
        values = ", ".join(f"i32 {k}" for k in numbers)
        self._declarations[f"@{name} = private constant [{len(numbers)} x i32] [{values}]"] = None
        return f"@{name}"

    @property
    def declarations(self) -> str:
        return "\n".join(self._declarations)

    def new_label(self, name: str) -> str:
        self._labels += 1
        return f"{name}{self._labels}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label
        self._known.clear()

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")

    # -- integers and pointers

    def i64(self, op: str, a: Int, b: Int) -> str:
        return self.once(f"{op} i64 {a}, {b}")

    def address(self, base: str, offset: Int) -> str:
        """base + offset bytes; WebAssembly has instructions for a constant offset within the same object."""
        within = "inbounds " if isinstance(offset, int) and offset >= 0 else ""
        return self.once(f"getelementptr {within}i8, ptr {base}, i64 {offset}")

    def load_i64(self, base: str, index: int) -> str:
        return self.op(f"load i64, ptr {self.address(base, 8 * index)}, align 8")

    def load_ptr(self, base: str, index: int) -> str:
        return self.op(f"load ptr, ptr {self.address(base, 8 * index)}, align 8")

    # -- vectors of states

    def arithmetic(self, op: str, a: str, b: str) -> str:
        return self.op(f"{op} {self.target.vector} {a}, {b}")

    def neg(self, a: str) -> str:
        return self.once(f"fneg {self.target.vector} {a}")

    def fma(self, a: str, b: str, c: str) -> str:
        """a b + c, rounded once if the machine can, else twice."""
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

    # -- integers, loops and choices

    def index(self, op: str, a: Int, b: Int) -> Int:
        return self.i64(op, a, b)

    def compare(self, relation: str, a: Int, b: Int) -> str:
        return self.op(f"icmp {_RELATIONS[relation]} i64 {a}, {b}")

    @contextmanager
    def loop(self, name: str, first: Int, carried: Sequence[str] = ()) -> Iterator[Loop]:
        label, after, before = self.new_label(name), self.new_label(f"after_{name}"), self.block
        self.jump(label)
        self.start(label)
        place = len(self.lines)
        loop = Loop(f"%{label}_i", [f"%{label}_c{k}" for k in range(len(carried))])
        yield loop
        self.branch(loop.again, label, after)
        phis = [f"  {loop.i} = phi i64 [{first}, %{before}], [{loop.next}, %{self.block}]"]
        for phi, start, end in zip(loop.carried, carried, loop.carry):
            phis.append(f"  {phi} = phi {self.target.vector} [{start}, %{before}], [{end}, %{self.block}]")
        self.lines[place:place] = phis
        self.start(after)

    def when(self, condition: str, values: Sequence[str], otherwise: Callable[[], Sequence[str]]) -> list[str]:
        before, other, join = self.block, self.new_label("other"), self.new_label("join")
        self.branch(condition, join, other)
        self.start(other)
        others = otherwise()
        end = self.block
        self.jump(join)
        self.start(join)
        return [self.merge(self.target.vector, (x, before), (y, end)) for x, y in zip(values, others)]

    def switch(self, selector: Int, cases: Sequence[tuple[int, Callable[[], Sequence[str]]]]) -> list[str]:
        if len(cases) == 1:
            return list(cases[0][1]())
        labels = [self.new_label("case") for _ in cases]
        nowhere, join = self.new_label("nowhere"), self.new_label("join")
        targets = " ".join(f"i64 {case}, label %{label}" for (case, _), label in zip(cases, labels))
        self.do(f"switch i64 {selector}, label %{nowhere} [{targets}]")
        arrivals = []
        for label, (_, compute) in zip(labels, cases):
            self.start(label)
            arrivals.append((compute(), self.block))
            self.jump(join)
        self.start(nowhere)
        self.do("unreachable")
        self.start(join)
        count = len(arrivals[0][0])
        return [self.merge(self.target.vector, *((some[k], block) for some, block in arrivals)) for k in range(count)]

    def merge(self, kind: str, *arrivals: tuple[str, str]) -> str:
        """A value that comes from one of several blocks."""
        return self.op(f"phi {kind} " + ", ".join(f"[{x}, %{block}]" for x, block in arrivals))

    # -- one operation of a tape

    def const(self, x: float) -> str:
        return self.target.const(x)

    def operation(self, op: str, *operands: str) -> str:
        T = self.target
        match (op, *operands):
            case ("add" | "sub" | "mul", x, y):
                return self.arithmetic(f"f{op}", x, y)
            case ("fmadd", x, y, z):
                return self.fma(x, y, z)
            case ("fmsub", x, y, z):
                return self.fma(x, y, self.neg(z))
            case ("fnmadd", x, y, z):
                return self.fma(self.neg(x), y, z)
            case ("neg", x):
                return self.neg(x)
            case ("inv", x):
                return self.arithmetic("fdiv", T.const(1.0), x)
            case ("abs", x):
                self.declare(f"{T.vector} @llvm.fabs.{T.suffix}({T.vector})")
                return self.op(f"call {T.vector} @llvm.fabs.{T.suffix}({T.vector} {x})")
            case ("max", x, y):
                larger = self.op(f"fcmp ogt {T.vector} {x}, {y}")
                return self.op(f"select {T.bools} {larger}, {T.vector} {x}, {T.vector} {y}")
            case ("zero", x):
                return self.arithmetic("fmul", self.operation("abs", x), T.const(0.0))
            case ("down_scale", x):
                return down_scale(self, x)
            case ("log", x):
                return log(self, x)
            case ("sqrt", x):
                self.declare(f"{T.vector} @llvm.sqrt.{T.suffix}({T.vector})")
                return self.op(f"call {T.vector} @llvm.sqrt.{T.suffix}({T.vector} {x})")
        raise NotImplementedError(f"{op} of {len(operands)} operands")

    def sincos(self, angles: Sequence[str]) -> list[tuple[str, str]]:
        return sincos(self, angles)


_RELATIONS = {"==": "eq", "!=": "ne", "<": "slt", ">=": "sge"}
