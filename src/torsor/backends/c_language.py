"""Writing C, for CUDA and for C99: statements, loops, and the memory of loops.

Every operation of a tape becomes one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite, isnan, prod
from typing import Any

import numpy as np

from torsor.backends.elementary import COS, HALF_PI, ROUND, SIN
from torsor.compiler.abi import INDEX_WORDS
from torsor.compiler.language import Int, Language, Loop, TurnOf
from torsor.compiler.loops import Body
from torsor.compiler.tape import Code
from torsor.compiler.trace import LoopCode
from torsor.inputs import place_of

# the scratch memory of loops: values that bodies keep, values that they hand on, the places of a matrix
SCRATCH = ("work", "hands", "packed")
OPERATIONS = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "neg": "-{}",
    "inv": "INV({})", "sqrt": "SQRT({})", "log": "LOG({})",
    "abs": "ABS({})", "max": "MAX({}, {})", "down_scale": "down_scale({})", "zero": "ABS({}) * 0",
    "fmadd": "FMA({}, {}, {})", "fmsub": "FMA({}, {}, -{})", "fnmadd": "FMA(-{}, {}, {})",
}  # fmt: skip


class CWriter(Language):
    """The statements of a function while it is written."""

    turn = "turn({x}, {s}, {c});"

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.lines: list[str] = []
        self.depth = 1
        self._values = 0

    def do(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def new_name(self, kind: str) -> str:
        self._values += 1
        return f"{kind}{self._values}"

    def let(self, text: str) -> str:
        """A new number.  (It is not const: with const numbers, nvcc's compile time grows exponentially with the
        tape.)"""
        name = self.new_name("t")
        self.do(f"T {name} = {text};")
        return name

    def variables(self, values: Sequence[str]) -> list[str]:
        """New numbers that will change."""
        names = [self.new_name("x") for _ in values]
        for name, x in zip(names, values):
            self.do(f"T {name} = {x};")
        return names

    def set(self, names: Sequence[str], values: Sequence[str]) -> None:
        if any(x in names and x != name for name, x in zip(names, values)):  # the assignments are simultaneous
            values = [self.let(x) for x in values]
        for name, x in zip(names, values):
            if name != x:
                self.do(f"{name} = {x};")

    def const(self, x: float) -> str:
        value = float(x) if self.bits == 64 else float(np.float32(x))
        if not isfinite(value):
            return "NAN" if isnan(value) else "INFINITY" if value > 0 else "(-INFINITY)"
        text = repr(value) if self.bits == 64 else f"{value!r}f"
        return f"({text})" if text.startswith("-") else text

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.do(f"{head} {{".lstrip())
        self.depth += 1
        yield
        self.depth -= 1
        self.do("}")

    # -- integers, loops and choices

    def index(self, op: str, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return {"add": a + b, "sub": a - b, "mul": a * b, "and": a & b}[op]
        if (op, b) in (("add", 0), ("sub", 0), ("mul", 1)):
            return a
        return f"({a} {_SIGNS[op]} {b})"

    def compare(self, relation: str, a: Int, b: Int) -> str:
        if isinstance(a, int) and isinstance(b, int):
            return TRUE if {"==": a == b, "!=": a != b, "<": a < b, ">=": a >= b}[relation] else FALSE
        return f"({a} {relation} {b})"

    @contextmanager
    def loop(self, name: str, first: Int, carried: Sequence[str] = ()) -> Iterator[Loop]:
        i, again = self.new_name(name), self.new_name("again")
        self.do(f"int {i} = {first};")
        loop = Loop(i, self.variables(carried))
        with self.block("while (1)"):
            yield loop
            self.do(f"const int {again} = {loop.again};")
            self.set(loop.carried, loop.carry)
            self.do(f"{i} = {loop.next};")
            self.do(f"if (!{again}) break;")
        loop.carry = loop.carried

    def when(self, condition: str, values: Sequence[str], otherwise: Callable[[], Sequence[str]]) -> list[str]:
        if condition in (TRUE, FALSE):  # known while writing: the other branch is not written
            return list(values if condition == TRUE else otherwise())
        names = self.variables(values)
        with self.block(f"if (!{condition})"):
            self.set(names, otherwise())
        return names

    def switch(self, selector: Int, cases: Sequence[tuple[int, Callable[[], Sequence[str]]]]) -> list[str]:
        if isinstance(selector, int):
            cases = [(case, compute) for case, compute in cases if case == selector]
        if len(cases) == 1:
            return list(cases[0][1]())
        place, names = len(self.lines), None
        for position, (case, compute) in enumerate(cases):
            with self.block(f"{'else ' if position else ''}if ({selector} == {case})"):
                values = compute()
                names = names or [self.new_name("x") for _ in values]
                self.set(names, values)
        self.lines[place:place] = ["  " * self.depth + f"T {name} = 0;" for name in names or ()]
        return names or []

    # -- tapes

    def operation(self, op: str, *operands: str) -> str:
        return self.let(OPERATIONS[op].format(*operands))

    def emit(self, code: Code, value_of: Callable[[Any], str], turn_of: TurnOf | None = None) -> dict[Any, str]:
        return super().emit(code, lambda name: self.let(value_of(name)), turn_of)

    def run(self, code: Code, place_of: Callable[[Any], str]) -> None:
        """Write a tape from memory to memory; `place_of` says where its inputs and outputs are."""
        for name, x in self.emit(code, place_of).items():
            self.do(f"{place_of(name)} = {x};")

    def sincos(self, angles: Sequence[str]) -> list[tuple[str, str]]:
        results = []
        for x in angles:
            s, c = self.new_name("s"), self.new_name("c")
            self.do(f"T {s}, {c};")
            self.do(self.turn.format(x=x, s=s, c=c))
            results.append((s, c))
        near = self.new_name("near")
        self.do(f"const int {near} = {' & '.join(f'NEAR({x})' for x in angles)};")
        with self.block(f"if (!{near})"):
            for x, (s, c) in zip(angles, results):
                self.do(f"if (!NEAR({x})) far_{self.turn.format(x=x, s=s, c=c)}")
        return results


TRUE, FALSE = "1", "0"  # conditions that are known while the code is written
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "and": "&"}


def element(name: Any, shape: Sequence[int] = (0,), inputs: Sequence[tuple[str, int]] = ()) -> str:
    """An entry of an array, by name and indices; `out` has this shape, `inputs` has the sizes of the others."""
    first, *indices = name
    sizes = shape if first == "out" else place_of(first).sizes(dict(inputs).get(first, 0))
    return f"{array(first)}[{flat(indices, sizes)}]"


def flat(indices: Sequence[Int], sizes: Sequence[Int]) -> Int:
    """The flat index of an entry of an array of these sizes, row by row."""
    place: Int = 0
    for size, index in zip(sizes, indices):
        if isinstance(place, int) and isinstance(index, int):
            place = place * int(size) + index if place else index
        else:
            place = f"({place} * {size} + {index})" if place != 0 else index
    return place


def array(name: str) -> str:
    """The name of an input or of the output in C.  No other name begins with this prefix."""
    return name if name == "out" else f"in_{name}"


# Functions -----------------------------------------------------------------------------------------------------


def horner(w: CWriter, coefficients: Sequence[float]) -> str:
    """A polynomial in z."""
    text = w.const(coefficients[-1])
    for a in coefficients[-2::-1]:
        text = f"FMA({text}, z, {w.const(a)})"
    return text


def turn_statements(bits: int, quadrant: str) -> str:
    """s = sin x, c = cos x: Cody & Waite's reduction to [-pi/4, pi/4], one polynomial each, and the quadrant.

    `quadrant` declares the integer of that name: the low bits of `shifted`.
    """
    w = CWriter(bits)
    part, magic = [w.const(x) for x in HALF_PI[bits]], w.const(ROUND[bits])
    return f"""\
  const T shifted = FMA(x, {w.const(0.6366197723675814)}, {magic});
  const T k = shifted - {magic};
  {quadrant}
  const T r = FMA(-k, {part[2]}, FMA(-k, {part[1]}, FMA(-k, {part[0]}, x)));
  const T z = r * r;
  const T sine = FMA({horner(w, SIN[bits])} * z, r, r);
  const T cosine = FMA(z * z, {horner(w, COS[bits])}, FMA(z, {w.const(-0.5)}, {w.const(1.0)}));
  const int odd = (int)(quadrant & 1);
  s = flip(odd ? cosine : sine, quadrant);
  c = flip(odd ? sine : cosine, quadrant + 1);"""


# Loops over bodies ---------------------------------------------------------------------------------------------


class CRows:
    """Scratch memory: rows of numbers."""

    def __init__(self, w: CWriter, name: str, length: int, first: int = 0) -> None:
        """`first`: the number of the first row."""
        self.w, self.name, self.length, self.first = w, name, length, first

    def _place(self, row: Int, k: int) -> str:
        row = row - self.first if isinstance(row, int) else f"({row} + {-self.first})" if self.first else row
        return f"{self.name}[{row} * {self.length} + {k}]"

    def get(self, row: Int, k: int) -> str:
        return self._place(row, k)

    def put(self, x: str, row: Int, k: int) -> None:
        self.w.do(f"{self._place(row, k)} = {x};")


class CArrays:
    """The arrays of a call, for one state."""

    def __init__(self, w: CWriter, inputs: Sequence[tuple[str, int]], shape: tuple[int, ...], entries: str) -> None:
        """`inputs`: the name of each and its count of numbers per state.  `entries`: for a packed matrix, the table of
        the places of its entries."""
        self.w, self.shape, self.entries = w, shape, entries
        self.shapes = {name: place_of(name).sizes(size) for name, size in inputs}

    def sizes(self, name: str) -> Sequence[Int]:
        return self.shapes[name]

    def get(self, name: str, *indices: Int) -> str:
        return f"{array(name)}[{flat(indices, self.shapes.get(name, self.shape))}]"

    def put(self, x: str, name: str, *indices: Int) -> None:
        self.w.do(f"{self.get(name, *indices)} = {x};")

    def get_at(self, place: Int) -> str:
        return f"packed[{place}]"

    def put_at(self, x: str, place: Int) -> None:
        self.w.do(f"packed[{place}] = {x};")

    def finish(self) -> None:
        if self.entries:
            with self.w.loop("entry", 0) as entry:
                self.w.do(f"out[{entry.i}] = packed[{self.entries}[{entry.i}]];")
                entry.count_to(self.w, prod(self.shape))


class CMemory:
    """The memory of the loops: scratch memory `work` and `hands`, and the tables of `tree`."""

    n: Int = "tree.n"
    nv: Int = "tree.nv"
    flags: Int = "tree.flags"
    start: Int = "tree.start"
    second: Int = "tree.second"
    product_count: Int = "tree.products"
    first_entry: Int = "tree.entries[0]"
    entries = "tree.entries"

    def __init__(self, w: CWriter, code: LoopCode, inputs: Sequence[tuple[str, int]], shape: tuple[int, ...]) -> None:
        self.w, self.numbers = w, code.layout.numbers
        self.arrays = CArrays(w, inputs, shape, self.entries if code.packing else "")
        self.kept, self.handed = CRows(w, "work", code.layout.kept), CRows(w, "hands", code.layout.handed, -1)

    def body(self, i: Int) -> Body:
        """The index row of a body.  Each word is read once: a compiler would read it again after every store."""
        names = [self.w.new_name("b") for _ in range(INDEX_WORDS)]
        for k, name in enumerate(names):
            self.w.do(f"const int {name} = tree.index[{i} * {INDEX_WORDS} + {k}];")
        return Body(i, *names)

    def number(self, body: Body, kind: int, name: str) -> str:
        return f"tree.numbers[{body.numbers} + {self.numbers[kind].index(name)}]"

    def base(self, k: int) -> str:
        return f"tree.base[{k}]"

    def turn(self, place: Int) -> tuple[str, str] | None:
        return None

    def column(self, freedom: Int) -> Int:
        return f"tree.columns[{freedom}]"

    def products(self, place: Int, words: int) -> list[Int]:
        return [f"tree.product[{place} + {k}]" for k in range(words)]
