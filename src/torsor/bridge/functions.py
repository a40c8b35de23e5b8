"""A function of a model for a framework: the programs of its value and its derivatives.

A framework needs five derivatives besides the value f(x) of a function. With E_t the derivative along a tangent t,
and c a cotangent of the result, they are

    kind     operands   gives                       computed by
    value    x          f
    jvp      x, t       E_t f                       jvp(f)
    vjp      x, c       the row (E_i c.f)_i         vjp(f)
    second   x, t, c    the row (E_i E_t c.f)_i     vjp(jvp(f))
    along    x, t, c    the row (E_t E_i c.f)_i     `second`, and the bracket of t with the row of vjp(f)
    twice    x, s, t    E_s E_t f                   `second`, once per entry of the result

A row holds the cotangents of all inputs, one after the other. All kinds are linear in all operands except x.
`DERIVATIVES` and `TRANSPOSES` define all derivatives of first and second order, forward, reverse and mixed.

**Tangents.** A framework uses the numbers of an input: q has nq. torsor differentiates along the nv freedoms. A chart
maps one to the other: dx = N(q)^+ dq for quaternions. The result does not depend on the length of a quaternion, so this
gradient is exact. Along freedoms, second derivatives are not symmetric where motions do not commute: E_t E_i - E_i E_t
is the derivative along [t, i], the Lie bracket.

**Numbers of the model** are inputs if `wrt` names them. Programs of a batch of models take them
(`dynamics/members.py`), in other frames; `ModelNumbers` converts the numbers that the user gives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from torsor import validate
from torsor.backends.cpu import compile_request, cores
from torsor.bridge.charts import Charts, constant
from torsor.bridge.numbers import ModelNumbers
from torsor.compiler.request import ON_GPU, PATIENT, Request, unrolling
from torsor.compiler.store import store
from torsor.dynamics.derivatives import DIFFERENTIABLE, Differentiated, wrt_names
from torsor.dynamics.functions import algorithm_for
from torsor.dynamics.programs import body_frames, seen, taken
from torsor.errors import ArgumentError
from torsor.inputs import PARAMETERS, place_of
from torsor.later import Later
from torsor.model.batch import ModelBatch
from torsor.model.model import Model, require_model
from torsor.model.names import BodyFrames
from torsor.sweeps import Algorithm

gpu = Later("torsor.backends.gpu")

# The operands of each kind besides x: tangents s and t (an array per input), a cotangent c of the result.
OPERANDS = {"value": "", "jvp": "t", "vjp": "c", "second": "tc", "along": "tc", "twice": "st"}
ROWS = ("vjp", "second", "along")  # the kinds that give a row
# The derivative of a kind with respect to x along s: a kind and its operands. There are no third derivatives.
DERIVATIVES = {"value": ("jvp", "s"), "jvp": ("twice", "st"), "vjp": ("along", "sc")}
# The transpose of a kind in an operand: a kind and its operands; w is the cotangent of the kind's result.
TRANSPOSES = {
    ("jvp", "t"): ("vjp", "w"),
    ("vjp", "c"): ("jvp", "w"),
    ("second", "t"): ("along", "wc"),
    ("second", "c"): ("twice", "wt"),
    ("along", "t"): ("second", "wc"),
    ("along", "c"): ("twice", "tw"),
    ("twice", "s"): ("second", "tw"),
    ("twice", "t"): ("along", "sw"),
}
NO_THIRD = "torsor has first and second derivatives; this asks for a third one"


def pulled(kind: str) -> tuple[str, str]:
    """The kind that gives the cotangent of x: the transpose of its derivative along x; w as in `TRANSPOSES`."""
    if kind not in DERIVATIVES:
        raise ArgumentError(NO_THIRD)
    forward, letters = DERIVATIVES[kind]
    back, order = TRANSPOSES[forward, OPERANDS[forward][0]]
    return back, order.translate(str.maketrans(OPERANDS[forward], letters))


class Options(NamedTuple):
    """How a function is compiled, as for `compile`.

    wrt      the numbers of the model that are inputs
    inputs   the optional arguments of the function that are inputs
    """

    wrt: tuple[str, ...] = ()
    Q: BodyFrames | None = None
    body: int | str | None = None
    method: str = "auto"
    specialised: bool | None = None
    threads: int | None = None
    inputs: tuple[str, ...] = ()

    @classmethod
    def checked(cls, model: Model, wrt: str | Iterable[str], Q: ArrayLike | None, inputs: Mapping[str, Any],
                **given: Any) -> Options:  # fmt: skip
        """The options that a user gave."""
        self = cls(wrt_names(wrt if wrt != () else None) or (), **given)
        for name in self.wrt:
            validate.chosen("wrt", name, PARAMETERS)
        validate.word("method", self.method)
        if self.specialised is not None:
            validate.flag("specialised", self.specialised)
        threads = cores() if self.threads is None else validate.integer("threads", self.threads, least=1)
        frames = None if Q is None else body_frames(model, Q)
        return self._replace(Q=frames, threads=threads, inputs=taken(inputs))

    @property
    def key(self) -> tuple[Any, ...]:
        """The options as a hashable key."""
        return (*self._replace(Q=None), self.Q and self.Q.key)


def bridge(model: Model, function: Callable[..., Any], dtype: str, options: Options, target: str = "cpu") -> Bridge:
    """The bridge of a function, cached with the model; `options` are already checked."""
    if options.body is not None:
        model.frame(options.body)  # raises if there is no such body
    given = model, function, dtype, options, target
    return store(model).once(("bridge", *given[1:]), lambda: Bridge(*given))


class Bridge:
    """A function of a model in one number type, for a framework; its programs run on the CPU, or on a GPU ("cuda").

    names      the inputs, in the order of a call: those of the function, its optional ones, those of `wrt`
    shapes     the shape of each input, for one state
    tangents   the shape of the tangent of each input, for one state
    shape      the shape of the result, for one state
    """

    def __init__(self, model: Model, function: Callable[..., Any], dtype: str, options: Options,
                 target: str = "cpu") -> None:  # fmt: skip
        require_model(model)
        self.target = target
        if isinstance(function, Differentiated):
            raise ArgumentError(f"give {function.root.__name__} itself: the framework differentiates it")
        self.model, self.function, self.dtype, self.options = model, function, dtype, options
        machine: Any = ModelBatch(model) if options.wrt else model  # a batch's "auto" suits any numbers
        self.machine = machine
        algorithm: Algorithm = algorithm_for(machine, function, options.method, options.specialised)
        self.frame, self.body_frames = seen(algorithm, model, options.body, options.Q, options.inputs)
        self.algorithm = algorithm
        self.numbers = ModelNumbers(model, options.wrt, self.body_frames) if options.wrt else None
        self.names = (*algorithm.inputs, *options.inputs, *options.wrt)
        self.shapes = [place_of(name).shape(model) for name in self.names]
        self.tangents = [place_of(f"d{name}").shape(model) for name in self.names]
        self._programs: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<{self.algorithm.name} of {self.model!r}: {self.dtype}>"

    @property
    def on_gpu(self) -> Bridge:
        """The same function with programs for a GPU."""
        return bridge(self.model, self.function, self.dtype, self.options, "cuda")

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.program("value").shape)

    @cached_property
    def row(self) -> int:
        """The number of entries of a row."""
        return sum(map(prod, self.tangents))

    @cached_property
    def key(self) -> str:
        """A hash of everything that determines the programs."""
        numbers = self.numbers.members.key if self.numbers else self.model.key
        frame = self.frame and self.frame.key
        parts = self._request("value").key, self.model.key, numbers, frame, self.names, self.dtype, self.options.key
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def result(self, kind: str) -> tuple[int, ...]:
        """The shape of the result of a kind, for one state."""
        return (self.row,) if kind in ROWS else self.shape

    def operand_shapes(self, kind: str) -> list[tuple[int, ...]]:
        """The shapes of all operands, for one state."""
        letters = (([self.shape] if letter == "c" else self.tangents) for letter in OPERANDS[kind])
        return [*self.shapes, *(shape for group in letters for shape in group)]

    def grouped(self, kind: str, xs: Sequence[Any]) -> dict[str, list[Any]]:
        """The operands by letter; "x" are the inputs."""
        groups, at = {}, 0
        for letter in ("x", *OPERANDS[kind]):
            size = 1 if letter == "c" else len(self.names)
            groups[letter] = list(xs[at : at + size])
            at += size
        return groups

    def split(self, row: Any) -> list[Any]:
        """Split a row into the cotangents, or tangents, of the inputs."""
        found, at = [], 0
        for shape in self.tangents:
            size = prod(shape)
            found.append(row[..., at : at + size].reshape((*row.shape[:-1], *shape)))
            at += size
        return found

    def check(self, xs: Sequence[Any]) -> None:
        """Raise unless these arrays are the inputs of one call."""
        if len(xs) != len(self.names):
            raise ArgumentError(f"{self.function.__name__} takes {', '.join(self.names)}; {len(xs)} arrays were given")
        for name, x, core in zip(self.names, xs, self.shapes):
            if len(x.shape) < len(core) or tuple(x.shape[len(x.shape) - len(core) :]) != core:
                wanted = ", ".join(map(str, core))
                raise ArgumentError(f"{name} has shape {tuple(x.shape)}; {self.model!r} needs (..., {wanted})")
        try:
            np.broadcast_shapes(*(tuple(x.shape[: len(x.shape) - len(core)]) for x, core in zip(xs, self.shapes)))
        except ValueError:
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip(self.names, xs))
            raise ArgumentError(f"the batch axes do not go together: {shapes}") from None

    def parted(self, kind: str, result: Any) -> list[Any]:
        """The result of a kind as an operand of another kind: tangents, or a cotangent."""
        return self.split(result) if kind in ROWS else [result]

    # ---- programs ----

    def program(self, kind: str) -> Any:
        """The program that computes a kind; its inputs are named in `Program.inputs`."""
        kind = "second" if kind in ("along", "twice") else kind
        if kind not in self._programs:
            self._programs[kind] = self._compiled(kind)
        return self._programs[kind]

    def _compiled(self, kind: str) -> Any:
        if self.target == "cuda":
            return gpu.compile_cuda(self._request(kind))
        return compile_request(self._request(kind), threads=self.options.threads or 1)

    def _request(self, kind: str) -> Request:
        algorithm = self.algorithm if kind == "value" else self._derivative(kind)
        numbers = self.numbers.members if self.numbers else None
        options = (*self.options.inputs, *(numbers.inputs if numbers else ()))
        return Request(algorithm, self.model, options=options, dtype=self.dtype, frame=self.frame,
                       unroll=unrolling(self.options.specialised, ON_GPU if self.target == "cuda" else PATIENT),
                       members=numbers, body_frames=self.body_frames)  # fmt: skip

    def _derivative(self, kind: str) -> Algorithm:
        if self.function not in DIFFERENTIABLE:
            raise ArgumentError(f"{self.algorithm.name} is a derivative itself: it has none in a framework")
        jvp = Differentiated(self.function, "jvp", self.names)
        by = {"jvp": jvp, "vjp": replace(jvp, mode="vjp"), "second": Differentiated(jvp, "vjp", self.names)}[kind]
        method, specialised = self.options.method, self.options.specialised
        algorithm, by_columns = by.algorithm(self.machine, method, specialised, patient=True)
        if by_columns:
            raise ArgumentError(
                f"{by.__name__} of {self.model!r} is a sum over columns, which a framework cannot call: "
                "differentiate a product (M x, M^-1 x or J v), or give specialised=True and wait for its code"
            )
        return algorithm

    # ---- the kinds in terms of `run` ----

    def evaluate(self, kind: str, xs: Sequence[Any], run: Callable[..., Any], xp: Any) -> Any:
        """A kind, for operands whose batch axes broadcast.

        run   (program, *arrays) -> its result, in one row
        xp    the framework's array functions: `jax.numpy` or `torch`
        """
        groups = self.grouped(kind, xs)
        if kind == "twice":
            return self._twice(groups, run, xp)
        program = self.program(kind)
        found = run(program, *self._ordered(program, groups, xp))
        if weights := self._brackets(kind):
            first = self.evaluate("vjp", [*groups["x"], *groups["c"]], run, xp)
            found = found + self.charts(xp).bracket(first, groups["t"], weights)
        return found

    def _brackets(self, kind: str) -> dict[str, float]:
        """The weight with which the bracket [t, i] of each input is added to the result of the program.

        For placements, the program gives the mean of both orders: M exp(t + i) is symmetric.
        """
        weights = {"second": {"placement": -0.5}, "along": {"q": 1.0, "placement": 0.5}}.get(kind, {})
        flat = () if self.model.nq > self.model.nv else ("q",)
        return {name: x for name, x in weights.items() if name in self.names and name not in flat}

    def _ordered(self, program: Any, groups: dict[str, list[Any]], xp: Any) -> list[Any]:
        """The arrays of a program, in the order of its inputs."""
        given = dict(zip(self.names, groups["x"]))
        given |= {f"d{name}": t for name, t in zip(self.names, groups.get("t", ()))}
        if self.numbers:
            given |= self.numbers.given(given, xp)
        return [given[name] if name in given else groups["c"][0] for name in program.inputs]

    def _twice(self, groups: dict[str, list[Any]], run: Callable[..., Any], xp: Any) -> Any:
        """E_s E_t f = sum_i s_i (E_i E_t e_k.f) for every entry k of the result."""
        size, s = prod(self.shape), groups["s"]
        operands = [*groups["x"], *s, *groups["t"]]
        axes = max(x.ndim - len(core) for x, core in zip(operands, [*self.shapes, *self.tangents, *self.tangents]))
        unit = np.eye(size).reshape(size, *(1,) * axes, *self.shape)
        units = constant(unit, s[0], xp)
        rows = self.split(self.evaluate("second", [*groups["x"], *groups["t"], units], run, xp))
        total: Any = 0.0
        for row, tangent, core in zip(rows, s, self.tangents):
            product = row * tangent
            for _ in core:
                product = product.sum(-1)
            total = total + product
        return xp.moveaxis(total, 0, -1).reshape((*total.shape[1:], *self.shape))

    def charts(self, xp: Any) -> Charts:
        """The maps between tangents and cotangents of the inputs and those along freedoms."""
        return store(self.model).once(("charts", self.names, xp.__name__), lambda: Charts(self.model, self.names, xp))
