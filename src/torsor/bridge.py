"""What the bridges to JAX and PyTorch share: the programs of a function and of its derivatives, and their use.

A framework asks for five derivatives beside the value f(x) of a function. With E_t the derivative along a tangent t,
and c a cotangent of the result, they are

    kind     operands   gives                       computed by
    value    x          f
    jvp      x, t       E_t f                       jvp(f)
    vjp      x, c       the row (E_i c.f)_i         vjp(f)
    second   x, t, c    the row (E_i E_t c.f)_i     vjp(jvp(f))
    along    x, t, c    the row (E_t E_i c.f)_i     `second`, and the bracket of t with what vjp(f) gives
    twice    x, s, t    E_s E_t f                   `second`, once per entry of the result

A row holds the cotangents of all inputs, one behind the other. All are linear in all operands but x. `DERIVATIVES` and
`TRANSPOSES` say the rest: all derivatives of first and second order, forwards, backwards and mixed.

**Tangents.** A framework knows the numbers of an input: q has nq. The derivatives of torsor are along the freedoms: nv.
A chart goes from one to the other: dx = N(q)^+ dq for quaternions. The result does not depend on the length of a
quaternion, so the gradient that this gives is exact. Along freedoms, second derivatives are not symmetric where motions
do not commute: E_t E_i - E_i E_t is the derivative along [t, i], the Lie bracket.

**Numbers of the model** are inputs if `wrt` names them. Programs of a batch of models take them
(`compiler/members.py`), in frames of their own; `Numbers` computes these from what the user gives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import factorial, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor import validate
from torsor.backends.cpu import Program, compile_request, cores
from torsor.compiler.derivative import takes_frame
from torsor.compiler.frames import GIVEN, Framed, Kind, axis_to_z, framed, short_frames, with_inertia
from torsor.compiler.members import Members
from torsor.compiler.request import PATIENT, Request, unrolling
from torsor.compiler.store import store
from torsor.dynamics.derivatives import DIFFERENTIABLE, Differentiated
from torsor.dynamics.functions import algorithm_for
from torsor.errors import ArgumentError
from torsor.inputs import PARAMETERS, place_of
from torsor.lie import TERMS
from torsor.linalg import Vec
from torsor.model.batch import ModelBatch
from torsor.model.joints import JOINTS
from torsor.model.model import Model, require_model
from torsor.model.rounding import NOISE
from torsor.sweeps import Algorithm

Array = NDArray[Any]

# The operands of each kind beside x: tangents s and t (an array per input), a cotangent c of the result.
OPERANDS = {"value": "", "jvp": "t", "vjp": "c", "second": "tc", "along": "tc", "twice": "st"}
ROWS = ("vjp", "second", "along")  # the kinds that give a row
# The derivative of a kind by x along s: a kind, and its operands.  There are no third derivatives.
DERIVATIVES = {"value": ("jvp", "s"), "jvp": ("twice", "st"), "vjp": ("along", "sc")}
# The transpose of a kind in an operand: a kind, and its operands; w is the cotangent of what the kind gives.
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
    """What gives the cotangent of x: the transpose of the derivative by x; w as in `TRANSPOSES`."""
    if kind not in DERIVATIVES:
        raise ArgumentError(NO_THIRD)
    forward, letters = DERIVATIVES[kind]
    back, order = TRANSPOSES[forward, OPERANDS[forward][0]]
    return back, order.translate(str.maketrans(OPERANDS[forward], letters))


class Options(NamedTuple):
    """How a function is compiled, as for `compile`; `wrt`: the numbers of the model that are inputs."""

    wrt: tuple[str, ...] = ()
    external: bool = False
    body: int | str | None = None
    method: str = "auto"
    specialised: bool | None = None
    threads: int | None = None

    def checked(self) -> Options:
        wrt = (self.wrt,) if isinstance(self.wrt, str) else tuple(self.wrt)
        for name in wrt:
            validate.chosen("wrt", name, PARAMETERS)
        if len(set(wrt)) < len(wrt):
            raise ArgumentError(f"wrt names something twice: {', '.join(wrt)}")
        validate.flag("external", self.external)
        validate.word("method", self.method)
        threads = cores() if self.threads is None else validate.integer("threads", self.threads, least=1)
        return self._replace(wrt=wrt, threads=threads)


def bridge(model: Model, function: Callable[..., Any], dtype: str, options: Options) -> Bridge:
    """The bridge of a function, kept with the model; `options` are checked."""
    return store(model).once(("bridge", function, dtype, options), lambda: Bridge(model, function, dtype, options))


class Bridge:
    """A function of a model in one number type, for a framework.

    names      of the inputs, in the order of a call: those of the function, "external", those of `wrt`
    shapes     of each input, for one state
    tangents   the shape of the tangent of each, for one state
    shape      of the result, for one state
    """

    def __init__(self, model: Model, function: Callable[..., Any], dtype: str, options: Options) -> None:
        require_model(model)
        if isinstance(function, Differentiated):
            raise ArgumentError(f"give {function.root.__name__} itself: the framework differentiates it")
        self.model, self.function, self.dtype, self.options = model, function, dtype, options
        machine: Any = ModelBatch(model) if options.wrt else model  # a batch's "auto" suits all numbers
        self.machine = machine
        algorithm: Algorithm = algorithm_for(machine, function, options.method, options.specialised)
        if options.external and "external" not in algorithm.options:
            raise ArgumentError(f"{algorithm.name} takes no external wrenches")
        if (options.body is None) == takes_frame(algorithm):
            raise ArgumentError(f"{algorithm.name} {'needs' if options.body is None else 'takes no'} body=")
        self.frame = None if options.body is None else model.frame(options.body)
        self.algorithm = algorithm
        self.numbers = Numbers(model, options.wrt) if options.wrt else None
        self.names = (*algorithm.inputs, *("external",) * options.external, *options.wrt)
        self.shapes = [place_of(name).shape(model) for name in self.names]
        self.tangents = [place_of(f"d{name}").shape(model) for name in self.names]
        self._programs: dict[str, Program] = {}

    def __repr__(self) -> str:
        return f"<{self.algorithm.name} of {self.model!r}: {self.dtype}>"

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.program("value").shape)

    @cached_property
    def row(self) -> int:
        """How many numbers the cotangents of all inputs are."""
        return sum(map(prod, self.tangents))

    @cached_property
    def key(self) -> str:
        """A hash of all that determines the programs."""
        numbers = self.numbers.members.key if self.numbers else self.model.key
        frame = self.frame and self.frame.key
        parts = self._request("value").key, self.model.key, numbers, frame, self.names, self.dtype, self.options
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def result(self, kind: str) -> tuple[int, ...]:
        """The shape of what a kind gives, for one state."""
        return (self.row,) if kind in ROWS else self.shape

    def operand_shapes(self, kind: str) -> list[tuple[int, ...]]:
        """Of all operands, for one state."""
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
        """A row as the cotangents, or tangents, of the inputs."""
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
        """What a kind gives, as an operand of another: tangents, or a cotangent."""
        return self.split(result) if kind in ROWS else [result]

    # ---- programs ----

    def program(self, kind: str) -> Program:
        """The program that computes a kind; its inputs are named in `Program.inputs`."""
        kind = "second" if kind in ("along", "twice") else kind
        if kind not in self._programs:
            self._programs[kind] = self._compiled(kind)
        return self._programs[kind]

    def _compiled(self, kind: str) -> Program:
        return compile_request(self._request(kind), threads=self.options.threads or 1)

    def _request(self, kind: str) -> Request:
        algorithm = self.algorithm if kind == "value" else self._derivative(kind)
        numbers = self.numbers.members if self.numbers else None
        options = (*("external",) * self.options.external, *(numbers.inputs if numbers else ()))
        return Request(algorithm, self.model, options=options, dtype=self.dtype, frame=self.frame,
                       unroll=unrolling(self.options.specialised, PATIENT), members=numbers)  # fmt: skip

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

    # ---- what the kinds compute, in terms of `run` ----

    def evaluate(self, kind: str, xs: Sequence[Any], run: Callable[..., Any], xp: Any) -> Any:
        """A kind, for operands whose batch axes broadcast.

        run   (program, *arrays) -> its result, all in one row
        xp    the framework's functions of arrays: `jax.numpy` or `torch`
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
        """How much of the bracket [t, i] of each input is added to what the program gives.

        By placements, the program gives the mean of both orders: M exp(t + i) is symmetric.
        """
        weights = {"second": {"placement": -0.5}, "along": {"q": 1.0, "placement": 0.5}}.get(kind, {})
        flat = () if self.model.nq > self.model.nv else ("q",)
        return {name: x for name, x in weights.items() if name in self.names and name not in flat}

    def _ordered(self, program: Program, groups: dict[str, list[Any]], xp: Any) -> list[Any]:
        """The arrays of a program, in its order."""
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
        """How tangents and cotangents of the inputs change into those along freedoms, and back."""
        return store(self.model).once(("charts", self.names, xp.__name__), lambda: Charts(self.model, self.names, xp))


def constant(x: Array, like: Any, xp: Any) -> Any:
    """A constant as an array of the framework, of the type of another one."""
    return xp.asarray(x, dtype=like.dtype)


# Charts ---------------------------------------------------------------------------------------------------------------


class _Turning(NamedTuple):
    """Joints with a quaternion, of one type: the places in q of (quaternion, position), in v of (turning, shifting)."""

    quaternion: Array
    position: Array
    turning: Array
    shifting: Array


class Charts:
    """From tangents of the numbers of inputs to tangents along freedoms, and back for cotangents.

    The functions take and return an array per input, for tangents and for cotangents.
    """

    def __init__(self, model: Model, names: Sequence[str], xp: Any) -> None:
        self.names, self.xp, self.model = names, xp, model
        self.joints = [_turning(model, code) for code in np.unique(model.joint) if not JOINTS[code].flat]
        used = [np.concatenate([np.ravel(x) for x in places]) for places in zip(*self.joints)] if self.joints else []
        if used:
            self.flat_q = np.setdiff1d(np.arange(model.nq), np.concatenate(used[:2]))
            self.flat_v = np.setdiff1d(np.arange(model.nv), np.concatenate(used[2:]))
            own = [[x for joint in self.joints for x in joint[first : first + 2]] for first in (0, 2)]
            self.from_parts_q, self.from_parts_v = (
                np.argsort(np.concatenate([flat, *map(np.ravel, parts)])).astype(int)
                for flat, parts in zip((self.flat_q, self.flat_v), own)
            )

    def tangents(self, xs: Sequence[Any], dxs: Sequence[Any]) -> list[Any]:
        """Along freedoms, from changes of the numbers."""
        return [self._changed(name, x, dx, False) for name, x, dx in zip(self.names, xs, dxs)]

    def cotangents(self, xs: Sequence[Any], gs: Sequence[Any]) -> list[Any]:
        """Of the numbers, from those along freedoms: the transpose of `tangents`."""
        return [self._changed(name, x, g, True) for name, x, g in zip(self.names, xs, gs)]

    def along(self, q: Any, g: Any) -> Any:
        """N(q)^T g: a cotangent along freedoms, of one of the numbers of q on which states move."""
        if not self.joints:
            return g
        parts = [self._at(g, self.flat_q)]
        for joint in self.joints:
            quaternion = self._at(q, joint.quaternion)
            inside = self._product(_conjugate(quaternion, self.xp), self._at(g, joint.quaternion))
            parts += [inside[..., 1:] * 0.5, self._turned(quaternion, self._at(g, joint.position), -1.0)]
        return self._joined(parts, self.from_parts_v)

    def bracket(self, row: Any, ts: Sequence[Any], weights: Mapping[str, float]) -> Any:
        """The row w sum_k g_k [t, i]_k, for cotangents g of all inputs in a row; a weight w for some inputs."""
        parts, at = [], 0
        for name, t in zip(self.names, ts):
            core = place_of(f"d{name}").shape(self.model)
            g = row[..., at : at + prod(core)]
            at += prod(core)
            t = t.reshape((*t.shape[: t.ndim - len(core)], prod(core)))
            parts.append(self._bracket(name, g, t) * weights.get(name, 0.0))
        batch = np.broadcast_shapes(*(tuple(x.shape[:-1]) for x in parts))
        return self.xp.concatenate([self.xp.broadcast_to(x, (*batch, x.shape[-1])) for x in parts], -1)

    def _bracket(self, name: str, g: Any, t: Any) -> Any:
        xp = self.xp
        if name == "placement":
            shape = (-1, 6)
            g, t = (x.reshape((*x.shape[:-1], *shape)) for x in (g, t))
            found = xp.concatenate(self._of_twists(g[..., :3], g[..., 3:], t[..., :3], t[..., 3:]), -1)
            return found.reshape((*found.shape[:-2], 6 * self.model.n))
        zero = xp.zeros_like(g + t)
        if name != "q" or not self.joints:
            return zero
        parts = [self._at(zero, self.flat_v)]
        for joint in self.joints:
            found = self._of_twists(*(self._at(x, at) for x in (g, t) for at in (joint.turning, joint.shifting)))
            parts += found
        return self._joined(parts, self.from_parts_v)

    def _of_twists(self, gw: Any, gv: Any, tw: Any, tv: Any) -> list[Any]:
        """g . [t, i] for i = (w, v) in turn, by [(w1, v1), (w2, v2)] = (w1 x w2, w1 x v2 - w2 x v1); v may be empty."""
        cross = self.xp.linalg.cross
        if not gv.shape[-1]:
            return [cross(gw, tw), gv * tv]
        return [cross(gw, tw) + cross(gv, tv), cross(gv, tw)]

    def _changed(self, name: str, x: Any, y: Any, back: bool) -> Any:
        if name == "placement":
            A = _slope_of_exponential(x, self.xp)
            return self.xp.einsum("...ji,...j->...i" if back else "...ij,...j->...i", A, y)
        if name != "q" or not self.joints:
            return y
        return self._to_numbers(x, y) if back else self._to_freedoms(x, y)

    def _to_freedoms(self, q: Any, dq: Any) -> Any:
        """N(q)^+ dq: (omega, v) = (2 vec(quat^-1 dquat), R^T dp)."""
        parts = [self._at(dq, self.flat_q)]
        for joint in self.joints:
            quaternion = self._at(q, joint.quaternion)
            scale = 2.0 / (quaternion * quaternion).sum(-1)[..., None]
            inside = self._product(_conjugate(quaternion, self.xp), self._at(dq, joint.quaternion))
            parts += [inside[..., 1:] * scale, self._turned(quaternion, self._at(dq, joint.position), -1.0)]
        return self._joined(parts, self.from_parts_v)

    def _to_numbers(self, q: Any, g: Any) -> Any:
        """N(q)^+T g: (dquat, dp) = (2 quat^-1* (0, g_omega), R g_v)."""
        parts = [self._at(g, self.flat_v)]
        for joint in self.joints:
            quaternion, turning = self._at(q, joint.quaternion), self._at(g, joint.turning)
            scale = 2.0 / (quaternion * quaternion).sum(-1)[..., None]
            vector = self.xp.concatenate([turning[..., :1] * 0.0, turning], -1)
            parts += [self._product(quaternion, vector) * scale]
            parts += [self._turned(quaternion, self._at(g, joint.shifting), 1.0)]
        return self._joined(parts, self.from_parts_q)

    def _at(self, x: Any, places: Array) -> Any:
        """Entries of the last axis, in the shape of `places`."""
        return x[..., self.xp.asarray(places)]

    def _joined(self, parts: Sequence[Any], order: Array) -> Any:
        """Parts (..., bodies, 3 or 4), the first (..., k), as one axis in another order."""
        rest = [x.reshape((*x.shape[:-2], x.shape[-2] * x.shape[-1])) for x in parts[1:]]
        return self._at(self.xp.concatenate([parts[0], *rest], -1), order)

    def _product(self, p: Any, q: Any) -> Any:
        """Of quaternions."""
        a, u, b, v = p[..., :1], p[..., 1:], q[..., :1], q[..., 1:]
        real = a * b - (u * v).sum(-1)[..., None]
        return self.xp.concatenate([real, a * v + b * u + self.xp.linalg.cross(u, v)], -1)

    def _turned(self, q: Any, v: Any, sign: float) -> Any:
        """R(q) v, or R^T v with the sign -1; nothing of nothing."""
        if not v.shape[-1]:
            return v
        w, u = q[..., :1], q[..., 1:] * sign
        uv = self.xp.linalg.cross(u, v)
        scale = 2.0 / (q * q).sum(-1)[..., None]
        return v + (uv * w + self.xp.linalg.cross(u, uv)) * scale


def _conjugate(q: Any, xp: Any) -> Any:
    return xp.concatenate([q[..., :1], -q[..., 1:]], -1)


def _turning(model: Model, code: int) -> _Turning:
    """All joints of one type with a quaternion; what is no quaternion in their q is a position."""
    joint = JOINTS[code]
    bodies = np.flatnonzero(model.joint == code)
    quaternion = np.arange(joint.nq)[joint.quaternion]
    position = np.setdiff1d(np.arange(joint.nq), quaternion)
    first_q, first_v = model.q_start[bodies][:, None], model.v_start[bodies][:, None]
    return _Turning(first_q + quaternion, first_q + position, first_v + np.arange(3), first_v + np.arange(3, joint.nv))


def _stumpff(x: Any) -> tuple[Any, Any, Any, Any]:
    """c_2 ... c_5 of `lie.stumpff`, for arrays of a framework."""
    c4, c5 = 0.0 * x, 0.0 * x
    for j in reversed(range(TERMS)):
        c4, c5 = (1 / factorial(2 * j + k) - x * c for k, c in ((4, c4), (5, c5)))
    return 0.5 - x * c4, 1 / 6 - x * c5, c4, c5


def _slope_of_exponential(xi: Any, xp: Any) -> Any:
    """dexp_-xi (..., 6, 6): exp(xi + d) = exp(xi) exp(dexp_-xi d), for twists up to a turn.

    A polynomial of ad_xi (Selig 2005, 7.5), with the coefficients by Stumpff functions of the angle.
    """
    w, v = _hat(xi[..., :3], xp), _hat(xi[..., 3:], xp)
    A = xp.concatenate([xp.concatenate([w, 0.0 * w], -1), xp.concatenate([v, w], -1)], -2)
    x = (xi[..., :3] * xi[..., :3]).sum(-1)[..., None, None]
    c2, c3, c4, c5 = _stumpff(x)
    coefficients = ((1.0 - x * c3 - 4.0 * c2) / 2, (5.0 * c3 - c2) / 2, (2.0 * c4 - c3) / 2, (c4 - 3.0 * c5) / 2)
    found, power = constant(np.eye(6), xi, xp), A
    for coefficient in coefficients:
        found = found + coefficient * power
        power = power @ A
    return found


def _exponential(xi: Any, xp: Any) -> tuple[Any, Any]:
    """(R, p) of exp(xi), for twists up to a turn."""
    W = _hat(xi[..., :3], xp)
    x = (xi[..., :3] * xi[..., :3]).sum(-1)[..., None, None]
    c2, c3, _, _ = _stumpff(x)
    one, square = constant(np.eye(3), xi, xp), W @ W
    R = one + (1.0 - x * c3) * W + c2 * square
    p = (one + c2 * W + c3 * square) @ xi[..., 3:, None]
    return R, p[..., 0]


def _hat(w: Any, xp: Any) -> Any:
    """[w] with [w] x = w x x, of an axis of three."""
    x, y, z = w[..., 0], w[..., 1], w[..., 2]
    zero = 0.0 * x
    return xp.stack([xp.stack(row, -1) for row in ((zero, -z, y), (z, zero, -x), (-y, x, zero))], -2)


# Numbers of the model -------------------------------------------------------------------------------------------------


class Numbers:
    """The numbers of a model that are inputs of a function, and what its programs read instead.

    With fixed placements, the inertias that a program reads are linear in m, m c and I: a matrix per body.
    """

    def __init__(self, model: Model, wrt: Sequence[str]) -> None:
        self.model, self.wrt = model, wrt
        moved = "placement" in wrt
        frames = _general_frames(model) if moved else short_frames(model) if "inertia" in wrt else framed(model)
        needed = {"inertias": moved or "inertia" in wrt, "placements": moved, "gravities": "gravity" in wrt}
        names = [name for name, needs in needed.items() if needs]
        self.members = Members(frames, {name: np.zeros((0, *place_of(name).shape(model))) for name in names})
        self.linear = _inertial_maps(frames) if "inertias" in names else None
        if moved:
            parents = np.concatenate([_own_frames(model), np.eye(3)[None]])[model.parent]
            self.placed = parents.swapaxes(-1, -2) @ model.R, np.einsum("nji,nj->ni", parents, model.p)

    def given(self, x: dict[str, Any], xp: Any) -> dict[str, Any]:
        """The inputs of a program, by name, from those of the function."""
        found = {}
        like = x[self.wrt[0]]
        if self.linear is not None:
            pi = x["inertia"] if "inertia" in self.wrt else constant(self.model.inertial_parameters(), like, xp)
            found["inertias"] = xp.einsum("nij,...nj->...ni", constant(self.linear, like, xp), pi)
        if "placement" in self.wrt:
            found["placements"] = self._placements(x["placement"], xp)
        if "gravity" in self.wrt:
            found["gravities"] = x["gravity"]
        return found

    def _placements(self, xi: Any, xp: Any) -> Any:
        """The numbers `GIVEN["placements"]` of bodies placed at M exp(xi), for frames as in `_general_frames`."""
        R0, p0 = (constant(x, xi, xp) for x in self.placed)
        own = constant(_own_frames(self.model), xi, xp)
        turn, shift = _exponential(xi, xp)
        R = R0 @ turn @ own
        p = p0 + (R0 @ shift[..., None])[..., 0]
        ux, uy, ca = R[..., 0, 2], R[..., 1, 2], R[..., 2, 2]
        sa = xp.sqrt(ux * ux + uy * uy)
        one, zero = 0.0 * ca + 1.0, 0.0 * ca
        parallel = sa < NOISE
        safe = xp.where(parallel, one, sa)
        cg, sg = xp.where(parallel, one, -uy / safe), xp.where(parallel, zero, ux / safe)
        ct = cg * R[..., 0, 0] + sg * R[..., 1, 0]
        st = -(cg * R[..., 0, 1] + sg * R[..., 1, 1])
        a, b = cg * p[..., 0] + sg * p[..., 1], cg * p[..., 1] - sg * p[..., 0]
        pitch = zero + constant(self.model.pitch, xi, xp)
        frames = [zero + own[:, i, j] for i in range(3) for j in range(3)]
        return xp.stack([cg, sg, p[..., 2], b, ca, sa, a, ct, st, zero, pitch, *frames, zero, zero, zero], -1)


def _own_frames(model: Model) -> Array:
    """The turn that puts the axis of every joint on z."""
    axial = np.array([joint.axial for joint in JOINTS])[model.joint]
    return axis_to_z(np.where(axial[:, None], model.axis, (0.0, 0.0, 1.0)))


def _general_frames(model: Model) -> Framed:
    """Frames whose form no placement changes: the axis on z, the origin at the joint."""
    frames = short_frames(model)
    own, n = _own_frames(model), model.n
    each = [Kind(JOINTS[code].name, "zyxz", frames.kinds[k].rotors) for code, k in zip(model.joint, frames.kind)]
    kinds = tuple(sorted(set(each)))
    zeros = {name: np.zeros(n) for names in GIVEN.values() for name in names}
    turns = {f"Q{i}{j}": own[:, i, j] for i in range(3) for j in range(3)}
    rotors = {name: x for name, x in frames.numbers.items() if name.startswith("rotor")}
    zeros = {name: x for name, x in zeros.items() if not name.startswith("rotor")}
    return Framed(model, kinds, np.array([kinds.index(kind) for kind in each], np.int32), zeros | turns | rotors)


def _inertial_maps(frames: Framed) -> Array:
    """(n, 10, 10): from m, m c, I of every body to the numbers `GIVEN["inertias"]` in its frame."""
    x = dict(frames.numbers) | {name: np.zeros(frames.model.n) for name in GIVEN["inertias"]}
    maps = np.zeros((frames.model.n, 10, 10))
    for k in range(10):
        column: dict[str, Any] = with_inertia(x, Vec.unit(k, 10))
        for i, name in enumerate(GIVEN["inertias"]):
            maps[:, i, k] = column[name]
    return maps
