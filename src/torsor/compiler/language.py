"""The interface to a target language: operations on numbers, integers, loops and choices.

This module decides in which order the operations of a tape are written, and which of them are fused.  The decision
is the same for the CPU and the GPU, so that both round in the same way.  A product that only one sum uses is fused with
it (a multiply-add, rounded once); compilers must not fuse anything else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torsor.compiler.tape import Code, Node, needed, operands

Int = str | int  # an integer of the code being written, or a known integer
TURNS = ("sin", "cos")
TurnOf = Callable[[Any], tuple[str, str] | None]  # from an input to its sine and cosine, if these are known


@dataclass
class Loop:
    """A loop while it is written: its body sets `next`, `again` and `carry`."""

    i: str
    carried: list[str]
    next: Int = ""
    again: str = ""
    carry: Sequence[str] = ()

    def count_to(self, w: Language, end: Int) -> None:
        """Continue with the next number while it is below the end."""
        self.next = w.index("add", self.i, 1)
        self.again = w.compare("<", self.next, end)


class Language(ABC):
    """Writes code in a target language.  A value is a name, or the text of a constant."""

    multiply_adds = True  # whether the target has them

    @abstractmethod
    def const(self, x: float) -> str: ...

    @abstractmethod
    def operation(self, op: str, *operands: str) -> str:
        """One operation.

        From a tape: add sub mul neg inv sqrt log abs max down_scale zero.  From `fuse`: fmadd fmsub fnmadd.
        """

    @abstractmethod
    def sincos(self, angles: Sequence[str]) -> list[tuple[str, str]]:
        """(sin, cos) of every angle, with one range test for all of them."""

    # -- integers, loops and choices

    @abstractmethod
    def index(self, op: str, a: Int, b: Int) -> Int:
        """add, sub, mul or and."""

    @abstractmethod
    def compare(self, relation: str, a: Int, b: Int) -> str:
        """A condition: ==, !=, <, >=."""

    @abstractmethod
    def loop(self, name: str, first: Int, carried: Sequence[str] = ()) -> AbstractContextManager[Loop]:
        """A loop that runs at least once and carries numbers from one iteration to the next."""

    @abstractmethod
    def when(self, condition: str, values: Sequence[str], otherwise: Callable[[], Sequence[str]]) -> list[str]:
        """`values` if the condition holds, else the values that `otherwise` computes."""

    @abstractmethod
    def switch(self, selector: Int, cases: Sequence[tuple[int, Callable[[], Sequence[str]]]]) -> list[str]:
        """The values computed by the selected case."""

    def unless(self, condition: str, action: Callable[[], Any]) -> None:
        def nothing() -> Sequence[str]:
            action()
            return ()

        self.when(condition, (), nothing)

    def has(self, flags: Int, flag: int) -> str:
        return self.compare("!=", self.index("and", flags, flag), 0)

    def has_no(self, flags: Int, flag: int) -> str:
        return self.compare("==", self.index("and", flags, flag), 0)

    # -- tapes

    def emit(self, code: Code, value_of: Callable[[Any], str], turn_of: TurnOf | None = None) -> dict[Any, str]:
        """Write a tape and return its outputs.

        `value_of` names the inputs, `turn_of` the sine and cosine of inputs for which these have been computed.  Sines
        and cosines are written first, all together.  If angles depend on other sines, they are written in waves.
        """
        nodes = code.nodes
        fused = fuse(code) if self.multiply_adds else {}
        gone = {sum_.product for sum_ in fused.values()}
        values: dict[int, str] = {}
        turns: dict[int, tuple[str, str]] = {}

        def one(i: int) -> str:
            op, a, _ = nodes[i]
            if op == "const":
                return self.const(a)
            if op == "in":
                return value_of(a)
            if op in TURNS:
                return turns[a][TURNS.index(op)]
            op, read = (fused[i].op, fused[i].operands) if i in fused else (op, operands(nodes[i]))
            return self.operation(op, *(values[k] for k in read))

        def write(some: Iterable[int]) -> None:
            for i in some:
                if i not in values and i not in gone:
                    values[i] = one(i)

        for angles in waves(nodes):
            if turn_of:
                turns |= {i: turn for i in angles if nodes[i].op == "in" and (turn := turn_of(nodes[i].a))}
                angles = [i for i in angles if i not in turns]
            write(sorted(needed(nodes, angles)))
            turns.update(zip(angles, self.sincos([values[a] for a in angles]) if angles else ()))
        write(range(len(nodes)))
        return {name: values[i] for name, i in code.outputs.items()}


class MultiplyAdd(NamedTuple):
    """A sum with a product x y in it: fmadd x y + z, fmsub x y - z, fnmadd z - x y."""

    op: str
    operands: tuple[int, int, int]  # x, y, z
    product: int  # the node of the product, which is not written


_FUSED = {"add": ("fmadd", "fmadd"), "sub": ("fnmadd", "fmsub")}  # product on the right, product on the left


def fuse(code: Code) -> dict[int, MultiplyAdd]:
    """The sums that are fused with a product used nowhere else."""
    nodes = code.nodes
    uses = [0] * len(nodes)
    for k in (*(k for node in nodes for k in operands(node)), *code.outputs.values()):
        uses[k] += 1
    result = {}
    for i, (op, a, b) in enumerate(nodes):
        for fused_op, product, z in zip(_FUSED.get(op, ()), (b, a), (a, b)):
            if nodes[product].op == "mul" and uses[product] == 1:
                result[i] = MultiplyAdd(fused_op, (nodes[product].a, nodes[product].b, z), product)
                break
    return result


def waves(nodes: Sequence[Node]) -> list[list[int]]:
    """The angles whose sines or cosines are needed: those without sines, those with only sines of the former, ..."""
    depth: list[int] = []
    for node in nodes:
        depth.append(max((depth[k] for k in operands(node)), default=0) + (node.op in TURNS))
    angles = sorted({node.a for node in nodes if node.op in TURNS})
    return [[a for a in angles if depth[a] == d] for d in sorted({depth[a] for a in angles})]
