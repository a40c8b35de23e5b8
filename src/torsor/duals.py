"""Derivatives by dual numbers: the reference for the derivatives of the compiler, on scalars of any type.

A dual number x + dx eps, with eps^2 = 0, carries a directional derivative through any computation (Clifford 1873).  The
reference engine runs on them as on any scalar.  A vjp takes one such run per number of its result: slow, but simple.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torsor import linalg
from torsor.compiler.derivative import Derivative
from torsor.inputs import COORDINATES, FREEDOMS, PARAMETERS, is_parameter, place_of
from torsor.linalg import Mat, Scalar, Vec
from torsor.model.joints import JOINTS
from torsor.model.links import Link, links
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.outputs import plain
from torsor.reference import base_of, scatter
from torsor.spatial import Inertia, Spatial, small_motion
from torsor.sweeps import Algorithm, run

Inputs = Mapping[str, Sequence[Any]]


class Dual:
    """x + dx eps.  Each nested derivative has its own eps: numbers of a lower level are constants."""

    __slots__ = ("dx", "level", "x")
    __array_ufunc__ = None  # a NumPy number on the left leaves the operation to this class

    def __init__(self, level: int, x: Any, dx: Any) -> None:
        self.level, self.x, self.dx = level, x, dx

    def _parts(self, other: Any) -> tuple[Any, Any] | None:
        """The parts of another number at this level; None if its own level is higher."""
        level = other.level if isinstance(other, Dual) else -1
        return None if level > self.level else (other.x, other.dx) if level == self.level else (other, 0.0)

    def _made(self, x: Any, dx: Any) -> Dual:
        return Dual(self.level, x, dx)

    def __add__(self, other: Any) -> Any:
        parts = self._parts(other)
        return other + self if parts is None else self._made(self.x + parts[0], self.dx + parts[1])

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        parts = self._parts(other)
        if parts is None:
            return other * self
        return self._made(self.x * parts[0], self.dx * parts[0] + self.x * parts[1])

    __rmul__ = __mul__

    def __neg__(self) -> Dual:
        return self._made(-self.x, -self.dx)

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def inverse(self) -> Dual:
        one = 1.0 / self.x
        return self._made(one, -(self.dx * one * one))

    def __truediv__(self, other: Any) -> Any:
        return self * (other.inverse() if isinstance(other, Dual) else 1.0 / other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.inverse() * other

    def sin(self) -> Dual:
        return self._made(linalg.sin(self.x), self.dx * linalg.cos(self.x))

    def cos(self) -> Dual:
        return self._made(linalg.cos(self.x), -(self.dx * linalg.sin(self.x)))

    def sqrt(self) -> Dual:
        root = linalg.sqrt(self.x)
        return self._made(root, self.dx * 0.5 / root)

    def log(self) -> Dual:
        return self._made(linalg.log(self.x), self.dx / self.x)

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def maximum(self, other: Any) -> Any:
        return other if self < other else self

    def down_scale(self) -> Any:
        """A power of two, which is constant under small changes."""
        return linalg.down_scale([self.x])

    def __lt__(self, other: Any) -> bool:
        return self.x < (other.x if isinstance(other, Dual) and other.level == self.level else other)

    def __gt__(self, other: Any) -> bool:
        return self.x > (other.x if isinstance(other, Dual) and other.level == self.level else other)


def evaluate(algorithm: Algorithm, model: Model, inputs: Inputs, *, frame: Frame | None = None,
             number: Callable[[float], Scalar] = float) -> Any:  # fmt: skip
    """`reference.evaluate`, also for a derivative; the result of a vjp is one row."""
    return _Evaluation(model, frame, number).value(algorithm, inputs, {}, 0)


class _Evaluation:
    def __init__(self, model: Model, frame: Frame | None, number: Callable[[float], Scalar]) -> None:
        self.model, self.frame, self.number = model, frame, number

    def value(self, algorithm: Algorithm, inputs: Inputs, changes: Inputs, level: int) -> Any:
        """The output; `changes` are added to the parameters of the model."""
        if not isinstance(algorithm, Derivative):
            return self.root(algorithm, inputs, changes)
        given = {name: x for name, x in inputs.items() if name not in algorithm.own_inputs}
        if algorithm.mode == "jvp":
            tangents = {name: _flat(inputs[f"d{name}"]) for name in algorithm.wrt}
            return self.pushed(algorithm.primal, given, changes, tangents, level)
        cotangent = _flat(inputs[algorithm.own_inputs[0]]) if algorithm.own_inputs else [1.0]
        row = []
        for name in algorithm.wrt:
            size = int(np.prod(place_of(f"d{name}").shape(self.model)))
            for k in range(size):
                unit = [1.0 if j == k else 0.0 for j in range(size)]
                change = self.pushed(algorithm.primal, given, changes, {name: unit}, level)
                row.append(linalg.dot(_flat(change), cotangent))
        return row

    def pushed(self, primal: Algorithm, inputs: Inputs, changes: Inputs, tangents: Inputs, level: int) -> Any:
        """The change of the output along tangents (flat)."""
        inputs, changes = dict(inputs), dict(changes)
        for name, tangent in tangents.items():
            if is_parameter(name):
                before = changes.get(name, [0.0] * len(tangent))
                changes[name] = [Dual(level, x, dx) for x, dx in zip(before, tangent)]
            else:
                x = _flat(inputs[name])
                dx = self.along_coordinates(x, tangent) if name == "q" else tangent
                inputs[name] = [Dual(level, y, dy) for y, dy in zip(x, dx)]

        def change(x: Any) -> Any:
            if isinstance(x, list):
                return [change(y) for y in x]
            return x.dx if isinstance(x, Dual) and x.level == level else 0.0

        return change(self.value(primal, inputs, changes, level + 1))

    def along_coordinates(self, q: Sequence[Any], tangent: Sequence[Any]) -> list[Any]:
        parts = zip(self.model.joint, COORDINATES.parts(self.model, q), FREEDOMS.parts(self.model, tangent))
        return [x for code, own, dx in parts for x in JOINTS[code].rate(own, dx)]

    def root(self, algorithm: Algorithm, inputs: Inputs, changes: Inputs) -> Any:
        """The algorithm itself, on the model with the changes of its parameters."""
        model = self.model
        here = scatter(model, {name: _shaped(x, place_of(name).shape(model)) for name, x in inputs.items()})
        gravity = [self.number(g) for g in model.gravity.tolist()]
        if "gravity" in changes:
            gravity = [g + dg for g, dg in zip(gravity, changes["gravity"])]
        bodies = links(model, self.number)
        for name in changes.keys() - {"gravity"}:
            rows = PARAMETERS[name].parts(model, _shaped(changes[name], PARAMETERS[name].shape(model)))
            bodies = [_CHANGED[name](link, row) for link, row in zip(bodies, rows)]
        return plain(
            run(algorithm, bodies, model.parent.tolist(), base_of(gravity, inputs), here, self.frame, model.couplings)
        )


def _heavier(link: Link, more: Vec) -> Link:
    """A body with more inertia: m, h and I about the origin."""
    m, h, (xx, xy, xz, yy, yz, zz) = more[0], Vec(*more[1:4]), more[4:]
    return replace(link, inertia=link.inertia + Inertia.rigid(m, h, Mat((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))))


def _moved(link: Link, xi: Vec) -> Link:
    """A body whose joint is placed at M exp(xi)."""
    return replace(link, M=small_motion(Spatial.of(xi)).after(link.M))  # type: ignore[arg-type]


_CHANGED: dict[str, Callable[[Link, Vec], Link]] = {"inertia": _heavier, "placement": _moved}


def _flat(x: Any) -> list[Any]:
    return np.asarray(x, dtype=object).ravel().tolist()


def _shaped(x: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Numbers as nested lists of this shape."""
    flat = _flat(x)
    return [flat[k : k + shape[1]] for k in range(0, len(flat), shape[1])] if len(shape) == 2 else flat
