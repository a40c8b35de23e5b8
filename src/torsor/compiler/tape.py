"""A tape: the operations of a computation in order, each recorded once.

For the algorithms, `Expr` is a scalar like any other (see `torsor.linalg`).  Every operation on an `Expr` looks up
whether its tape already has that operation on those operands (value numbering).  If so, it returns the old node.
Zeros, ones and signs are simplified when an operation is recorded.  A quotient becomes a product with a reciprocal, so
five divisions by one pivot cost one division.

Operations: in const | add sub mul neg | inv sqrt | sin cos log | abs max | down_scale | zero
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from torsor.linalg import Scalar, down_scale

Number = float | int


class Node(NamedTuple):
    op: str
    a: Any = None  # node number; for "in" the name of the input, for "const" its value
    b: Any = None


class Tape:
    """Nodes in the order in which they were first needed."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._number: dict[Node, int] = {}

    def input(self, name: Any) -> Expr:
        return Expr(self, self._node("in", name))

    def _node(self, op: str, a: Any = None, b: int | None = None) -> int:
        node = Node(op, a, b)
        found = self._number.get(node)
        if found is None:
            found = self._number[node] = len(self.nodes)
            self.nodes.append(node)
        return found

    def const(self, x: float) -> int:
        return self._node("const", float(x))

    def node_of(self, x: Any) -> int:
        """The node of an expression or of a plain number."""
        return x.i if isinstance(x, Expr) else self.const(x)

    def neg(self, a: int) -> int:
        op, x, y = self.nodes[a]
        if op == "neg":
            return x
        if op == "const":
            return self.const(-x)
        if op == "sub" and Node("sub", y, x) in self._number:
            return self._number[Node("sub", y, x)]
        return self._node("neg", a)

    def add(self, a: int, b: int) -> int:
        A, B = self.nodes[a], self.nodes[b]
        if A.op == "const" and B.op == "const":
            return self.const(A.a + B.a)
        if A.op == "const" and A.a == 0:
            return b
        if B.op == "const" and B.a == 0:
            return a
        if B.op == "neg":
            return self.sub(a, B.a)
        if A.op == "neg":
            return self.sub(b, A.a)
        return self._node("add", *sorted((a, b)))

    def sub(self, a: int, b: int) -> int:
        if a == b:
            return self.const(0.0)
        A, B = self.nodes[a], self.nodes[b]
        if A.op == "const" and B.op == "const":
            return self.const(A.a - B.a)
        if B.op == "const" and B.a == 0:
            return a
        if A.op == "const" and A.a == 0:
            return self.neg(b)
        if B.op == "neg":
            return self.add(a, B.a)
        if A.op == "neg":
            return self.neg(self.add(A.a, b))
        if Node("sub", b, a) in self._number:  # a change of sign is free, a second subtraction is not
            return self._node("neg", self._number[Node("sub", b, a)])
        return self._node("sub", a, b)

    def mul(self, a: int, b: int) -> int:
        A, B = self.nodes[a], self.nodes[b]
        if B.op == "const":
            a, b, A, B = b, a, B, A
        if A.op == "const":
            if B.op == "const":
                return self.const(A.a * B.a)
            if A.a == 0:
                return self.const(0.0)
            if A.a == 1:
                return b
            if A.a == -1:
                return self.neg(b)
            if B.op == "mul" and self.nodes[B.a].op == "const":
                return self.mul(self.mul(a, B.a), B.b)
        if A.op == "neg":
            return self.neg(self.mul(A.a, b))
        if B.op == "neg":
            return self.neg(self.mul(a, B.a))
        if A.op == "const":  # constants first, so that they combine
            return self._node("mul", a, b)
        return self._node("mul", *sorted((a, b)))

    def inv(self, a: int) -> int:
        op, x, _ = self.nodes[a]
        if op == "const":
            return self.const(1.0 / x if x else math.inf)
        if op == "inv":
            return x
        if op == "neg":
            return self.neg(self.inv(x))
        return self._node("inv", a)

    def function(self, name: str, a: int) -> int:
        op, x, _ = self.nodes[a]
        if op == "const" and name in ("abs", "down_scale", "zero"):
            return self.const({"abs": abs(x), "down_scale": down_scale([x]), "zero": abs(x) * 0.0}[name])
        if op == "const" and (x > 0 or name in ("sin", "cos")):
            return self.const(getattr(math, name)(x))
        return self._node(name, a)

    def again(self, op: str, a: Any, b: int | None) -> int:
        """Replay an operation of another tape on operands of this one."""
        if op in ("const", "neg", "inv"):
            return getattr(self, op)(a)
        if op in ("add", "sub", "mul"):
            return getattr(self, op)(a, b)
        if op == "max":
            assert b is not None
            return self.maximum(a, b)
        return self.function(op, a)

    def maximum(self, a: int, b: int) -> int:
        A, B = self.nodes[a], self.nodes[b]
        if a == b or (A.op == "const" and B.op == "const"):
            return a if a == b or A.a >= B.a else b
        return self._node("max", *sorted((a, b)))


class Expr:
    """A scalar that records the operations on it."""

    __slots__ = ("i", "tape")
    __array_ufunc__ = None

    def __init__(self, tape: Tape, i: int) -> None:
        self.tape = tape
        self.i = i

    def _wrap(self, i: int) -> Expr | float:
        node = self.tape.nodes[i]
        return node.a if node.op == "const" else Expr(self.tape, i)

    @property
    def value(self) -> Expr | float:
        """This scalar, as a plain number if it is known."""
        return self._wrap(self.i)

    def __add__(self, other: Expr | Number) -> Expr | float:
        return self._wrap(self.tape.add(self.i, self.tape.node_of(other)))

    __radd__ = __add__

    def __sub__(self, other: Expr | Number) -> Expr | float:
        return self._wrap(self.tape.sub(self.i, self.tape.node_of(other)))

    def __rsub__(self, other: Number) -> Expr | float:
        return self._wrap(self.tape.sub(self.tape.const(other), self.i))

    def __mul__(self, other: Expr | Number) -> Expr | float:
        return self._wrap(self.tape.mul(self.i, self.tape.node_of(other)))

    __rmul__ = __mul__

    def __truediv__(self, other: Expr | Number) -> Expr | float:
        return self._wrap(self.tape.mul(self.i, self.tape.inv(self.tape.node_of(other))))

    def __rtruediv__(self, other: Number) -> Expr | float:
        return self._wrap(self.tape.mul(self.tape.const(other), self.tape.inv(self.i)))

    def __neg__(self) -> Expr | float:
        return self._wrap(self.tape.neg(self.i))

    def sin(self) -> Expr | float:
        return self._wrap(self.tape.function("sin", self.i))

    def cos(self) -> Expr | float:
        return self._wrap(self.tape.function("cos", self.i))

    def log(self) -> Expr | float:
        return self._wrap(self.tape.function("log", self.i))

    def __abs__(self) -> Expr | float:
        return self._wrap(self.tape.function("abs", self.i))

    def maximum(self, other: Expr | Number) -> Expr | float:
        return self._wrap(self.tape.maximum(self.i, self.tape.node_of(other)))

    def down_scale(self) -> Expr | float:
        return self._wrap(self.tape.function("down_scale", self.i))

    def zero(self) -> Expr | float:
        """0, or NaN if this number is not finite."""
        return self._wrap(self.tape.function("zero", self.i))

    def sqrt(self) -> Expr | float:
        return self._wrap(self.tape.function("sqrt", self.i))

    def __repr__(self) -> str:
        return f"t{self.i}"


@dataclass(frozen=True)
class Code:
    """A finished piece of straight-line code: nodes in order, and its outputs among them."""

    nodes: tuple[Node, ...]
    outputs: Mapping[Any, int]

    @classmethod
    def of(cls, tape: Tape, outputs: Mapping[Any, Scalar]) -> Code:
        """The part of a tape that the outputs need, renumbered."""
        wanted = {name: tape.node_of(x) for name, x in outputs.items()}
        place: dict[int, int] = {}
        nodes: list[Node] = []
        for i in sorted(needed(tape.nodes, wanted.values())):
            op, a, b = tape.nodes[i]
            if op not in ("in", "const"):
                a, b = place[a], None if b is None else place[b]
            place[i] = len(nodes)
            nodes.append(Node(op, a, b))
        return cls(tuple(nodes), {name: place[i] for name, i in wanted.items()})

    def only(self, names: Iterable[Any]) -> Code:
        """The same code for fewer outputs."""
        tape = Tape()
        tape.nodes = list(self.nodes)
        return Code.of(tape, {name: Expr(tape, self.outputs[name]) for name in names})

    @property
    def inputs(self) -> set[Any]:
        return {node.a for node in self.nodes if node.op == "in"}

    def inputs_of(self, names: Iterable[Any]) -> set[Any]:
        """The inputs that these outputs depend on."""
        nodes = (self.nodes[i] for i in needed(self.nodes, (self.outputs[name] for name in names)))
        return {node.a for node in nodes if node.op == "in"}

    def evaluate(self, arrays: Mapping[str, Any]) -> dict[Any, Any]:
        """The outputs on NumPy arrays: an input (name, indices...) is arrays[name][indices]."""
        x: list[Any] = []
        for node in self.nodes:
            if node.op in ("in", "const"):
                x.append(arrays[node.a[0]][node.a[1:]] if node.op == "in" else node.a)
            else:
                x.append(_NUMPY[node.op](*(x[k] for k in operands(node))))
        return {name: x[i] for name, i in self.outputs.items()}

    def __str__(self) -> str:
        """One line per operation, readable from top to bottom."""
        shown = {
            "add": "t{} + t{}", "sub": "t{} - t{}", "mul": "t{} * t{}", "neg": "-t{}", "inv": "1 / t{}",
            "max": "max(t{}, t{})",
        }  # fmt: skip
        lines = []
        for i, node in enumerate(self.nodes):
            if node.op in ("in", "const"):
                text = _label(node.a) if node.op == "in" else repr(node.a)
            else:
                text = shown.get(node.op, f"{node.op}(t{{}})").format(*operands(node))
            lines.append(f"t{i} = {text}")
        return "\n".join(lines + [f"{_label(name)} = t{i}" for name, i in self.outputs.items()])


_NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "inv": lambda x: 1.0 / x,
    "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "log": np.log, "abs": np.abs, "max": np.maximum,
    "zero": lambda x: x * 0.0, "down_scale": lambda x: down_scale([x]),
}  # fmt: skip


def operands(node: Node) -> tuple[int, ...]:
    if node.op in ("in", "const"):
        return ()
    return (node.a,) if node.b is None else (node.a, node.b)


def needed(nodes: Sequence[Node], targets: Iterable[int]) -> set[int]:
    """The targets and all nodes that they depend on."""
    live: set[int] = set()
    stack = list(targets)
    while stack:
        i = stack.pop()
        if i not in live:
            live.add(i)
            stack.extend(operands(nodes[i]))
    return live


def _label(name: Any) -> str:
    return ".".join(map(str, name)) if isinstance(name, tuple) else str(name)


class Operations(NamedTuple):
    """The number of operations of each type in a piece of code.  A subtraction or a comparison counts as an addition;
    an operation that only changes the sign or the exponent of a number is free."""

    mul: int = 0
    add: int = 0
    div: int = 0
    sqrt: int = 0
    trig: int = 0
    log: int = 0

    @classmethod
    def of(cls, code: Code) -> Operations:
        kind = {"sub": "add", "max": "add", "inv": "div", "sin": "trig", "cos": "trig"}
        counts = dict.fromkeys(cls._fields, 0)
        for node in code.nodes:
            name = kind.get(node.op, node.op)
            if name in counts:
                counts[name] += 1
        return cls(**counts)

    def __add__(self, other: Operations) -> Operations:  # type: ignore[override]
        return Operations(*(x + y for x, y in zip(self, other)))

    def __mul__(self, times: int) -> Operations:  # type: ignore[override]
        return Operations(*(x * times for x in self))
