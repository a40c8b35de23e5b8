"""Tapes to text in any language: the order in which operations are written, and which of them become one.

Both are decided here, alike for the CPU and the GPU, so that both round alike: a product that only one sum needs is
taken into it (a multiply-add, rounded once), and no compiler is left to form others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torsor.kernel.tape import Code, Node, needed, operands

if TYPE_CHECKING:
    from torsor.kernel.trace import LoopCode, LoopColumns, LoopPass

TURNS = ("sin", "cos")


class Language(ABC):
    """How one operation is written.  A value goes by its name, or by the text of a constant."""

    multiply_adds = True  # the machine has them

    @abstractmethod
    def const(self, x: float) -> str: ...

    @abstractmethod
    def operation(self, op: str, *operands: str) -> str:
        """Of a tape: add sub mul neg inv sqrt log abs max down_scale zero; and of `fuse`: fmadd fmsub fnmadd."""

    @abstractmethod
    def sincos(self, angles: Sequence[str]) -> list[tuple[str, str]]:
        """(sin, cos) of every angle, with one test for the range of all."""

    def emit(self, code: Code, value_of: Callable[[Any], str]) -> dict[Any, str]:
        """Write a tape; `value_of` names its inputs.  Returns its outputs.

        Sines and cosines come first, all at once; those of angles that depend on other sines come in waves.
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
            write(sorted(needed(nodes, angles)))
            turns.update(zip(angles, self.sincos([values[a] for a in angles])))
        write(range(len(nodes)))
        return {name: values[i] for name, i in code.outputs.items()}


class MultiplyAdd(NamedTuple):
    """A sum with a product x y in it: fmadd x y + z, fmsub x y - z, fnmadd z - x y."""

    op: str
    operands: tuple[int, int, int]  # x, y, z
    product: int  # the node that is not written


_FUSED = {"add": ("fmadd", "fmadd"), "sub": ("fnmadd", "fmsub")}  # with the product on the right, on the left


def fuse(code: Code) -> dict[int, MultiplyAdd]:
    """Which sums take in a product that is used nowhere else."""
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
    """The angles whose sines or cosines are taken: those that need no sine, those that need only sines of these, ..."""
    depth: list[int] = []
    for node in nodes:
        depth.append(max((depth[k] for k in operands(node)), default=0) + (node.op in TURNS))
    angles = sorted({node.a for node in nodes if node.op in TURNS})
    return [[a for a in angles if depth[a] == d] for d in sorted({depth[a] for a in angles})]


# Loops over bodies -----------------------------------------------------------------------------------------------


class Loops(ABC):
    """The loops of an algorithm, in the order in which they run; a language says how one is written."""

    w: Language
    code: LoopCode

    def write(self) -> None:
        arrived: Sequence[str] = ()
        for p in self.code.passes:
            arrived = self._pass(p)
        if self.code.columns and self.code.algorithm.kind == "matrix":
            self._matrix(self.code.columns)
        elif self.code.columns:
            self._path(self.code.columns)
        if self.code.finish:
            values = named(arrived, self.code.passes[-1].live)
            for name, x in self.w.emit(self.code.finish, lambda name: values.get(name) or self._base(name)).items():
                self._put(x, name)

    @abstractmethod
    def _pass(self, p: LoopPass) -> Sequence[str]:
        """A pass over all bodies; what arrives at the base."""

    @abstractmethod
    def _matrix(self, c: LoopColumns) -> None:
        """A column for every freedom."""

    @abstractmethod
    def _path(self, c: LoopColumns) -> None:
        """The way from one body to the base."""

    @abstractmethod
    def _base(self, name: Any) -> str:
        """What the base knows: gravity, its own acceleration."""

    @abstractmethod
    def _put(self, x: str, name: Any) -> None:
        """An entry of the output that is found at the base."""


def named(values: Sequence[str], live: Sequence[int]) -> dict[Any, str]:
    """What is handed on, by the names of a step's inputs."""
    return {("near", k): x for k, x in zip(live, values)}


def cases(codes: Sequence[Code]) -> list[tuple[int, int, Code]]:
    """(case, kind, code) of a step: a case for each kind of body."""
    return [(kind, kind, code) for kind, code in enumerate(codes)]
