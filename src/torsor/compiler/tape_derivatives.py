"""Derivatives of straight-line code: from the code of an algorithm to the code of its products with a Jacobian.

A code is replayed on a new tape.  Then every operation is followed by its tangent (`push`), or all operations are
followed in reverse order by the cotangents of their operands (`pull`).  Value numbering shares the operations
that derivatives have in common with the values and with each other.  `loop_derivatives.py` does the same for loops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from torsor.algorithms.newton_euler import inverse_dynamics
from torsor.compiler.derivative import SOLVERS, Derivative
from torsor.compiler.frames import Framed
from torsor.compiler.tape import Code, Expr, Node, Tape, operands
from torsor.compiler.trace import outputs_on, showing_all, symbols, unroll
from torsor.inputs import COORDINATES, FREEDOMS, MEMBERS, Place, is_parameter, place_of
from torsor.linalg import Scalar, Vec, dot
from torsor.model.joints import JOINTS, Joint
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.outputs import numbered
from torsor.sweeps import Algorithm

Seeds = Mapping[int, int]  # node of a code -> node of the tape

# These operations only choose a power of two that scales a quaternion, or add zero: their slope is zero.
FLAT = ("abs", "down_scale", "zero")
NOTHING = 1e-30  # x / (x + NOTHING) is 1 where x > 0 and 0 where x = 0


class Replay:
    """A code replayed on another tape, and the derivatives of its operations there.

    `value_of` returns the node of the tape that replaces an input, or None for the input itself; `known` has the nodes
    that replace other operations, which are then not recomputed.
    """

    def __init__(self, code: Code, tape: Tape, value_of: Callable[[Any], int | None] = lambda name: None,
                 known: Mapping[int, int] | None = None) -> None:  # fmt: skip
        self.code, self.tape = code, tape
        self.at: list[int] = []  # the node of the tape for each operation of the code
        self._number = {node: i for i, node in enumerate(code.nodes)}
        known = known or {}
        for i, (op, a, b) in enumerate(code.nodes):
            if i in known:
                self.at.append(known[i])
            elif op == "in":
                value = value_of(a)
                self.at.append(tape.input(a).i if value is None else value)
            else:
                self.at.append(tape.again(op, a if op == "const" else self.at[a], None if b is None else self.at[b]))

    @property
    def outputs(self) -> dict[Any, int]:
        return {name: self.at[i] for name, i in self.code.outputs.items()}

    def slopes(self, i: int) -> list[tuple[int, int]]:
        """(operand, node of the derivative of operation i with respect to it)"""
        (op, a, b), t, at = self.code.nodes[i], self.tape, self.at
        match op:
            case "add":
                return [(a, t.const(1.0)), (b, t.const(1.0))]
            case "sub":
                return [(a, t.const(1.0)), (b, t.const(-1.0))]
            case "mul":
                return [(a, t.mul(t.const(2.0), at[a]))] if a == b else [(a, at[b]), (b, at[a])]
            case "neg":
                return [(a, t.const(-1.0))]
            case "inv":
                return [(a, t.neg(t.mul(at[i], at[i])))]
            case "sqrt":
                return [(a, t.mul(t.const(0.5), t.inv(at[i])))]
            case "sin":
                return [(a, self._function("cos", a))]
            case "cos":
                return [(a, t.neg(self._function("sin", a)))]
            case "log":
                return [(a, t.inv(at[a]))]
            case "max":
                above = t.sub(at[i], at[b])  # a > b
                first = t.mul(above, t.inv(t.add(above, t.const(NOTHING))))
                return [(a, first), (b, t.sub(t.const(1.0), first))]
        assert op in (*FLAT, "in", "const"), op
        return []

    def turned(self, i: int) -> list[tuple[int, int]]:
        """`slopes` of c x + s y, a coordinate of a rotated vector (x, y), with respect to the angle, x and y.

        The slope with respect to the angle is the other coordinate, c y - s x.  If the code computes that too, this
        saves two multiplications per rotated vector.  Empty if operation i is not of this form.
        """
        op, *terms = self.code.nodes[i]
        if op not in ("add", "sub"):
            return []
        one, other = (self._turn_product(k) for k in terms)
        if one is None or other is None or one[0] != other[0]:
            return []
        t, before = self.tape, len(self.tape.nodes)
        slope = getattr(t, op)(*(t.mul(self._pure_slope(c), self.at[x]) for _, c, x in (one, other)))
        if any(node.op != "neg" for node in t.nodes[before:]):
            return []
        last = self.at[other[1]] if op == "add" else t.neg(self.at[other[1]])
        return [(one[0], slope), (one[2], self.at[one[1]]), (other[2], last)]

    def _turn_product(self, i: int) -> tuple[int, int, int] | None:
        """(angle, c, x) of a product c x in which c depends only on one angle, and x on more."""
        op, a, b = self.code.nodes[i]
        if op != "mul":
            return None
        angles = self._angle[a], self._angle[b]
        if angles[0] >= 0 > angles[1]:
            return angles[0], a, b
        return (angles[1], b, a) if angles[1] >= 0 > angles[0] else None

    @cached_property
    def _angle(self) -> list[int]:
        """For each operation: the angle if it is linear in the sine and cosine of one angle, else -1."""
        result: list[int] = []
        for op, a, b in self.code.nodes:
            angle = -1
            if op in ("sin", "cos"):
                angle = a
            elif op == "neg" or (op == "mul" and self.code.nodes[a].op == "const"):
                angle = result[a if op == "neg" else b]
            elif op in ("add", "sub") and result[a] == result[b]:
                angle = result[a]
            result.append(angle)
        return result

    def _pure_slope(self, i: int) -> int:
        """The derivative of such an operation with respect to its angle."""
        (op, a, b), t = self.code.nodes[i], self.tape
        if op in ("sin", "cos"):
            return self.slopes(i)[0][1]
        if op == "neg":
            return t.neg(self._pure_slope(a))
        if op == "mul":
            return t.mul(self.at[a], self._pure_slope(b))
        return getattr(t, op)(self._pure_slope(a), self._pure_slope(b))

    def _function(self, op: str, a: int) -> int:
        """The sine or cosine of an operation: the replacement if the code computes it."""
        i = self._number.get(Node(op, a))
        return self.tape.function(op, self.at[a]) if i is None else self.at[i]

    def pull(self, seeds: Seeds, active: Collection[Any]) -> dict[Any, int]:
        """Cotangents of the inputs in `active`, from those of some operations; zeros are omitted."""
        tape, nodes, zero = self.tape, self.code.nodes, self.tape.const(0.0)
        on = active_nodes(self.code, active)
        cotangent = {i: g for i, g in seeds.items() if on[i]}
        for i in range(len(nodes) - 1, -1, -1):
            if i not in cotangent or nodes[i].op == "in":
                continue
            g = cotangent.pop(i)
            if nodes[i].op == "inv":  # first g x, which others may share, then - g x x
                g = tape.mul(g, self.at[i])
                slopes = [(nodes[i].a, tape.neg(self.at[i]))]
            else:
                slopes = self.turned(i) or self.slopes(i)
            for k, slope in slopes:
                if on[k]:
                    cotangent[k] = tape.add(cotangent.get(k, zero), tape.mul(g, slope))
        return {nodes[i].a: g for i, g in cotangent.items() if g != zero}

    def push(self, tangents: Mapping[Any, int]) -> dict[int, int]:
        """Tangents of the operations, from those of inputs by name; zeros are omitted."""
        tape, nodes, zero = self.tape, self.code.nodes, self.tape.const(0.0)
        tangent: dict[int, int] = {}
        for i, node in enumerate(nodes):
            total = tangents.get(node.a, zero) if node.op == "in" else zero
            if node.op != "in" and any(k in tangent for k in operands(node)):
                for k, slope in self.turned(i) or self.slopes(i):
                    if k in tangent:
                        total = tape.add(total, tape.mul(tangent[k], slope))
            if total != zero:
                tangent[i] = total
        return tangent


def active_nodes(code: Code, active: Collection[Any]) -> list[bool]:
    """Which operations depend on the inputs in `active`."""
    on: list[bool] = []
    for node in code.nodes:
        on.append(node.a in active if node.op == "in" else any(on[k] for k in operands(node)))
    return on


def summed(tape: Tape, pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The sum of the nodes of each key: one operation may be several outputs."""
    result: dict[int, int] = {}
    for i, node in pairs:
        result[i] = tape.add(result[i], node) if i in result else node
    return result


def cotangent_of(derivative: Derivative, tape: Tape, output: Any) -> int:
    """The node of the cotangent of an output ("out", indices...): an input, or 1 for a gradient."""
    return tape.input((*derivative.own_inputs, *output[1:])).i if derivative.own_inputs else tape.const(1.0)


def scalars(tape: Tape, nodes: Iterable[int]) -> Vec:
    """Nodes as the scalars that algorithms compute with."""
    return Vec.of(Expr(tape, i).value for i in nodes)


def along_freedoms(joint: Joint, q: Vec, cotangent: Vec) -> Vec:
    """N(q)^T cotangent: from numbers per coordinate to numbers per freedom."""
    return cotangent if joint.flat else joint.tangent(q).T @ cotangent


def along_coordinates(joint: Joint, q: Vec, tangent: Vec) -> Vec:
    """N(q) tangent: from numbers per freedom to numbers per coordinate."""
    return tangent if joint.flat else joint.tangent(q) @ tangent


def of_coordinates(joint: Joint, q: Vec, cotangent: Vec) -> Vec:
    """The cotangent of coordinates without a part along a quaternion: N^+^T cotangent, with N^+ dq/dt = v."""
    if joint.flat:
        return cotangent
    return Vec.of(dot(cotangent, joint.velocity(q, Vec.unit(k, joint.nq))) for k in range(joint.nq))


def by_joint(model: Model, map_: Callable[[Joint, Vec, Vec], Vec], q: Sequence[Any], place: Place,
             x: Sequence[Any]) -> list[Scalar]:  # fmt: skip
    """One of these maps for all joints; `place`: COORDINATES or FREEDOMS, where the numbers x belong."""
    parts = zip(model.joint, COORDINATES.parts(model, q), place.parts(model, x))
    return [y for code, own_q, own_x in parts for y in map_(JOINTS[code], own_q, own_x)]


# Straight-line code --------------------------------------------------------------------------------------------


def unrolled_derivative(derivative: Derivative, frames: Framed, inputs: Sequence[str], frame: Frame | None) -> Code:
    """The straight-line code of a derivative for one model."""
    model = frames.model
    code = _Unrolled(frames, derivative.parameters, frame).code(derivative, inputs)
    tape = Tape()
    for name in inputs:
        symbols(tape, name, place_of(name).shape(model))
    again = Replay(code, tape, lambda name: tape.const(0.0) if is_parameter(name[0]) else None)
    return showing_all(tape, {name: Expr(tape, i) for name, i in sorted(again.outputs.items())})


class _Unrolled:
    """Derives codes for one model.  Until all derivatives are taken, parameters are inputs."""

    def __init__(self, frames: Framed, parameters: Sequence[str], frame: Frame | None) -> None:
        self.frames, self.model, self.parameters, self.frame = frames, frames.model, parameters, frame

    def code(self, algorithm: Algorithm, inputs: Sequence[str]) -> Code:
        if not isinstance(algorithm, Derivative):
            return unroll(algorithm, self.frames, (*inputs, *self.parameters), self.frame)
        tape = Tape()
        given = {name: self.symbols(tape, name) for name in (*inputs, *self.parameters)}
        # the inputs that the rule for solutions supports
        known = {*algorithm.primal.inputs, *inverse_dynamics.options, *MEMBERS}
        others = set(inputs) - {*algorithm.own_inputs, *known}
        derive = self.of_solution if algorithm.primal in SOLVERS and not others else self.of_code
        return Code.of(tape, derive(algorithm, tape, given))

    def symbols(self, tape: Tape, name: str) -> Any:
        return symbols(tape, name, place_of(name).shape(self.model))

    def of_code(self, derivative: Derivative, tape: Tape, given: Mapping[str, Any]) -> dict[Any, Scalar]:
        """Any code, operation by operation."""
        inner = [name for name in given if name not in (*derivative.own_inputs, *self.parameters)]
        again = Replay(self.code(derivative.primal, inner), tape)
        outputs = again.code.outputs
        if derivative.mode == "jvp":
            tangent = again.push(self.tangents(derivative.wrt, tape, given))
            return {name: Expr(tape, tangent.get(i, tape.const(0.0))) for name, i in outputs.items()}
        seeds = summed(tape, ((i, cotangent_of(derivative, tape, name)) for name, i in outputs.items()))
        return self.cotangents(derivative.wrt, tape, given, again.pull(seeds, self.names(derivative.wrt)))

    def of_solution(self, derivative: Derivative, tape: Tape, given: Mapping[str, Any]) -> dict[Any, Scalar]:
        """The solution x of M x + bias = tau, or M x = b, differentiated as a solution:

            jvp   M dx = dtau - d(M x + bias)          vjp   M y = x~,  tau~ = y,  (q~, v~) = - y^T d(M x + bias)

        where x is constant in d(M x + bias), the derivative of inverse dynamics.
        """
        primal, solver = derivative.primal, SOLVERS[derivative.primal]
        known = {name: x for name, x in given.items() if name not in derivative.own_inputs}
        x = [tape.node_of(y) for y in outputs_on(primal, self.frames, known).values()]
        right = primal.inputs[-1]  # tau or b
        moving = "v" in primal.inputs
        names = ("qdd", *(name for name in known if name != right and (moving or name != "gravity")))
        residual = self.residual(names, gravity=None if moving else (0.0, 0.0, 0.0))
        again = Replay(residual, tape, lambda name: x[name[1]] if name[0] == "qdd" else None)

        def solved(b: Sequence[Scalar]) -> list[Scalar]:
            factor_of = {name: x for name, x in known.items() if name in ("q", *self.parameters, *MEMBERS)}
            return list(outputs_on(solver, self.frames, {**factor_of, "b": b}).values())

        if derivative.mode == "jvp":
            tangent = again.push(self.tangents(set(derivative.wrt) - {right}, tape, given))
            zero, push = tape.const(0.0), given.get(f"d{right}", (0.0,) * len(x))
            rates = scalars(tape, (tangent.get(i, zero) for i in residual.outputs.values()))
            return {("out", k): dx for k, dx in enumerate(solved([b - rate for b, rate in zip(push, rates)]))}
        y = solved(given[derivative.own_inputs[0]])
        seeds = summed(tape, ((i, tape.neg(tape.node_of(yi))) for i, yi in zip(residual.outputs.values(), y)))
        found = again.pull(seeds, self.names(set(derivative.wrt) & set(names)))
        found |= {(right, k): tape.node_of(yk) for k, yk in enumerate(y)}
        return self.cotangents(derivative.wrt, tape, given, found)

    def residual(self, inputs: Sequence[str], gravity: Sequence[Scalar] | None) -> Code:
        """Inverse dynamics."""
        tape = Tape()
        given = {name: self.symbols(tape, name) for name in inputs}
        return Code.of(tape, outputs_on(inverse_dynamics, self.frames, given, gravity=gravity))

    # -- tangents and cotangents of inputs

    def names(self, wrt: Iterable[str]) -> set[Any]:
        """The entries of all these inputs."""
        return {(name, *index) for name in wrt for index in np.ndindex(*place_of(name).shape(self.model))}

    def tangents(self, wrt: Collection[str], tape: Tape, given: Mapping[str, Any]) -> dict[Any, int]:
        """The node of each entry's tangent."""
        result: dict[Any, int] = {}
        for name in wrt:
            tangent = given[f"d{name}"]
            if name == "q":
                tangent = by_joint(self.model, along_coordinates, given["q"], FREEDOMS, tangent)
            result |= {(name, *index): tape.node_of(x) for index, x in numbered(tangent)}
        return result

    def cotangents(self, wrt: Sequence[str], tape: Tape, given: Mapping[str, Any],
                   found: Mapping[Any, int]) -> dict[Any, Scalar]:  # fmt: skip
        """All numbers of the output, in order."""
        result: list[Scalar] = []
        for name in wrt:
            shape, zero = place_of(name).shape(self.model), tape.const(0.0)
            values = scalars(tape, (found.get((name, *index), zero) for index in np.ndindex(*shape)))
            result += by_joint(self.model, along_freedoms, given["q"], COORDINATES, values) if name == "q" else values
        return {("out", k): x for k, x in enumerate(result)}
