"""From a step over any scalar to something that runs: one kernel, or pieces of code around the programs they ask for.

`move(plant, q, v, h)` asks the plant for accelerations, for the torques of computed-torque control, and for what
functions of the user give. For few freedoms all but the functions is written out, and the step is one kernel. Otherwise
it is cut where it asks: a piece of code finds what a program is asked for, and the next piece reads what it found.
Where every freedom acts by itself, pieces of a machine with one freedom serve all freedoms of all states: these are the
lanes of its code.

Either way a step is a list of calls on fixed memory. If all of them are machine code, so is the loop over time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms import articulated, pulls
from torsor.algorithms.newton_euler import inverse_dynamics
from torsor.backends import codegen, pointwise
from torsor.backends.gufunc import entry_of
from torsor.compiler.frames import straight_line_frames
from torsor.compiler.members import Members
from torsor.compiler.request import QUICK
from torsor.compiler.store import store
from torsor.compiler.tape import Code, Tape
from torsor.compiler.tape_derivatives import Replay, scalars
from torsor.compiler.trace import outputs_on
from torsor.dynamics.calls import program_for
from torsor.dynamics.methods import COUPLED, MOST_COUPLED
from torsor.errors import ArgumentError
from torsor.inputs import place_of
from torsor.linalg import Scalar
from torsor.model.freedoms import limited_coordinates
from torsor.model.model import Model
from torsor.motion.law import Called, Law
from torsor.motion.laws import KINDS
from torsor.motion.plant import Plant
from torsor.outputs import numbered
from torsor.sweeps import Algorithm

if TYPE_CHECKING:
    from torsor.backends.llvm import LLVMWriter

Array = NDArray[Any]
Scalars = Sequence[Scalar]
Move = Callable[[Plant, Scalars, Scalars, Scalar], Any]

MOST_FREEDOMS_OF_MEMBERS = 24  # of a ModelBatch, for its step to be straight-line code
# Of a piece that is compiled. Rows of many numbers take long to compile: 1000 in and 800 out take 5 s.
MOST_OPERATIONS, MOST_NUMBERS = 15_000, 800
UNINTERRUPTED = 2_000_000  # freedoms and steps of one call, a tenth of a second: Ctrl-C waits for it
STATE = ("q", "v", "tau", "gain", "h")  # the first inputs of a step
FOUND, OTHERS = 6, 3  # rows that functions give: torque, stiffness and damping of the drives, and from here of others


class Step(NamedTuple):
    """A step to be lowered.

    move, key   a function (plant, q, v, h), and what determines it
    law         under which it moves
    slots       at how many times it reads commands that change
    implicit    whether something is added to the pivots
    moves       whether it moves the state; else it only reads what acts there
    """

    move: Move
    key: Any
    law: Law
    slots: int = 1
    implicit: bool = False
    members: Members | None = None
    moves: bool = True

    @property
    def model(self) -> Model:
        return self.law.model

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all inputs, for one state."""
        model, law = self.model, self.law
        sizes = model.nq, model.nv, self.slots * law.rows * model.nv, law.values.shape[-1], 1
        own = {name: place_of(name).shape(model) for name in self.numbers}
        return {name: (size,) for name, size in zip(STATE, sizes)} | own

    @property
    def numbers(self) -> tuple[str, ...]:
        """What else a state has of its own: what acts on its bodies, and the numbers in which members differ."""
        return (*self.law.load_names, *(self.members.inputs if self.members else ()))

    @property
    def algorithm(self) -> Algorithm:
        """The forward dynamics: sweeps, or the projected equations of coupled joints."""
        model = self.model
        if model.couplings and model.nv > MOST_COUPLED:
            raise ArgumentError(
                f"joints that follow others are moved for {MOST_COUPLED} freedoms at most, not {model.nv}"
            )
        if "pulls" in self.law.load_names:
            return pulls.forward_dynamics_coupled if model.couplings else pulls.forward_dynamics
        return COUPLED["forward_dynamics"] if model.couplings else articulated.forward_dynamics

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the forward dynamics."""
        return (*["added_inertia"] * self.implicit, *self.numbers)

    @property
    def written_out(self) -> bool:
        """Whether the step is one kernel."""
        return self.law.is_data and self.model.nv <= (MOST_FREEDOMS_OF_MEMBERS if self.members else QUICK.freedoms)

    @property
    def by_freedoms(self) -> bool:
        """Whether pieces of a machine with one freedom serve all freedoms."""
        whole = self.moves or self.law.called  # steps and functions need whole configurations
        return not self.written_out and (self.law.is_local if whole else self.law.is_diagonal)

    @property
    def whole(self) -> Callable[..., Any]:
        """A function of lists, one per input, with the dynamics written out in it."""

        def step(q: Scalars, v: Scalars, tau: Scalars, gain: Scalars, h: Scalars, *numbers: Any) -> Any:
            own = dict(zip(self.numbers, numbers))
            frames = self.members.frames if self.members else straight_line_frames(self.model)

            def accelerate(q: Scalars, v: Scalars, tau: Scalars, added: Scalars | None) -> Scalars:
                given = {"q": q, "v": v, "tau": tau, **own} | ({} if added is None else {"added_inertia": added})
                return list(outputs_on(self.algorithm, frames, given).values())

            return self.move(Plant(self.law, gain, tau, accelerate), q, v, h[0])

        return step

    @property
    def one_freedom(self) -> Step:
        """The same at one freedom, of a machine whose freedoms act each by themselves."""
        law, one = self.law, Model.chain("revolute", n=1, mass=1.0, inertia=(1.0, 1.0, 1.0))
        places = [(0, 0), (0, 1)] if len(law.gains) else []
        count = len(places) + sum(len(KINDS[kind][1]) for kind, _ in law.parts)
        parts = tuple((kind, (0,)) for kind, _ in law.parts)
        alone = Law(one, np.array(places, int).reshape(-1, 2), parts, (), np.zeros(max(count, 1)), np.zeros((1, 1)),
                    called=law.called)  # fmt: skip
        return Step(self.move, self.key, alone, self.slots, self.implicit)


# ---- pieces ----


class Ask(NamedTuple):
    """What a piece asks for: the output of an algorithm of a model, or of the functions at a time of the step."""

    algorithm: Algorithm | None
    model: Model
    options: tuple[str, ...] = ()
    at: int = 0

    @property
    def is_forward(self) -> bool:
        """Whether it is the forward dynamics, which alone takes what acts on the bodies and numbers of members."""
        return self.algorithm is not None and self.algorithm is not inverse_dynamics


class Piece(NamedTuple):
    """A part of a step: its code, its inputs, and what is asked for with its outputs; the last piece asks for nothing.

    parts   of its outputs: q, v, tau, ...
    """

    code: Code
    inputs: dict[str, tuple[int, ...]]
    parts: tuple[slice, ...]
    ask: Ask | None


def cut(step: Step, inverse: bool = True) -> list[Piece]:
    """A step cut where it asks; without `inverse`, computed torques are written out.

    Piece s may read what was found before, as inputs ("a<r>", i); its outputs are ("out", k).
    """
    tape, model, law = Tape(), step.model, step.law
    pieces: list[tuple[dict[Any, Any], Ask]] = []
    nq, nv = model.nq, model.nv

    def ask(what: Ask, count: int, *asked: Scalars) -> Scalars:
        outputs = [x for part in asked for x in part]
        pieces.append(({("out", k): x for k, x in enumerate(outputs)}, what))
        return [tape.input((f"a{len(pieces) - 1}", i)) for i in range(count)]

    def accelerate(q: Scalars, v: Scalars, tau: Scalars, added: Scalars | None) -> Scalars:
        what = Ask(step.algorithm, model, (*["added_inertia"] * (added is not None), *step.numbers))
        return ask(what, nv, q, v, tau, *([] if added is None else [added]))

    def torques(tracked: Model, q: Scalars, v: Scalars, a: Scalars) -> Scalars:
        return ask(Ask(inverse_dynamics, tracked), nv, q, v, a)

    def functions(q: Scalars, v: Scalars, at: int) -> list[Scalars]:
        found = ask(Ask(None, model, (), at), FOUND * nv, q, v)
        return [found[k : k + nv] for k in range(0, FOUND * nv, nv)]

    inputs = {name: shape for name, shape in step.inputs.items() if name in STATE}
    q, v, tau, gain, h = ([tape.input((name, i)) for i in range(shape[0])] for name, shape in inputs.items())
    plant = Plant(law, gain, tau, accelerate, functions=functions if law.called else None)
    plant.inverse = torques if inverse else plant.inverse
    end = step.move(plant, q, v, h[0])
    result = []
    for s, (outputs, what) in enumerate(pieces):
        parts = slice(nq), *(slice(k, k + nv) for k in range(nq, len(outputs), nv))
        result.append(Piece(Code.of(tape, outputs), dict(inputs), parts, what))
        inputs[f"a{s}"] = (nv if what.algorithm else FOUND * nv,)
    last = Code.of(tape, {("out", *index): x for index, x in numbered(end)})
    return [*result, Piece(last, inputs, (), None)]


def compiled_piece(code: Code, inputs: Mapping[str, tuple[int, ...]], dtype: str) -> Callable[..., Array]:
    """A code as a function of rows: compiled if it is short, and otherwise column by column."""
    numbers = len(code.outputs) + sum(map(prod, inputs.values()))
    if len(code.nodes) <= MOST_OPERATIONS and numbers <= MOST_NUMBERS:
        return pointwise.compile_code(code, inputs, dtype, "piece_of_a_step")

    def by_columns(*rows: Array) -> Array:
        columns = {name: np.moveaxis(x, 0, -1) for name, x in zip(inputs, rows)}
        entries = code.evaluate(columns)
        shape = tuple(k + 1 for k in max(name[1:] for name in entries))
        out = rows[len(inputs)] if len(rows) > len(inputs) else np.empty((len(rows[0]), *shape), dtype)
        for name, x in entries.items():
            out[:, *name[1:]] = x
        return out

    return by_columns


# ---- memory: how the numbers of many states lie ----


def spread(x: Array, shape: tuple[int, ...]) -> Array:
    """x with this shape; the same array, which may be written to, if it has it."""
    return x if x.shape == shape else np.broadcast_to(x, shape)


class Rows:
    """A row per state."""

    def __init__(self, step: Step, m: int, dtype: Any) -> None:
        self.step, self.m, self.dtype, model = step, m, dtype, step.model
        self.width = model.nq + model.nv
        self.states = [np.empty((m, self.width), dtype) for _ in range(2)]  # before a step and after it, in turn

    def room(self, count: int) -> Array:
        return np.empty((self.m, count), self.dtype)

    def operand(self, x: Array) -> Array:
        return x

    def parts(self, x: Array, parts: Sequence[slice]) -> list[Array]:
        return [x[:, part] for part in parts]

    def state(self, k: int) -> list[Array]:
        """q and v as operands."""
        x, nq = self.states[k], self.step.model.nq
        return [x[:, :nq], x[:, nq:]]

    def result(self, k: int) -> Array:
        return self.states[k]

    def values(self, gain: Array) -> Array:
        """The numbers of the law as an operand, (m, k)."""
        return spread(gain, (self.m, gain.shape[-1]))

    def commands(self, tau: Array) -> Array:
        """Commands (steps, m, width) as they lie in memory."""
        return np.ascontiguousarray(np.broadcast_to(tau, (len(tau), self.m, tau.shape[-1])), self.dtype)

    def enter(self, x: Array) -> None:
        self.states[0][:] = x

    def leave(self, x: Array, steps: int) -> None:
        x[:] = self.states[steps % 2]


class Freedoms:
    """A row per quantity, with all freedoms of all states side by side: (k, m, nv)."""

    def __init__(self, step: Step, m: int, dtype: Any) -> None:
        self.step, self.m, self.dtype, self.n = step, m, dtype, step.model.nv
        self.x = np.empty((2, m, self.n), dtype)

    def room(self, count: int) -> Array:
        return np.empty((count, self.m, self.n), self.dtype)

    def operand(self, x: Array) -> Array:
        return np.moveaxis(x, 0, -1)

    def parts(self, x: Array, parts: Sequence[slice]) -> list[Array]:
        return list(x)

    def state(self, k: int) -> list[Array]:
        return [self.operand(self.x[:1]), self.operand(self.x[1:])]

    def result(self, k: int) -> Array:
        return self.x

    def values(self, gain: Array) -> Array:
        return self.operand(gains_by_freedom(self.step.law, gain, self.m).astype(self.dtype, copy=False))

    def commands(self, tau: Array) -> Array:
        rows = tau.shape[-1] // self.n
        wide = np.broadcast_to(tau, (len(tau), self.m, tau.shape[-1])).reshape(len(tau), self.m, rows, self.n)
        return np.ascontiguousarray(np.moveaxis(wide, 2, 1), self.dtype)

    def enter(self, x: Array) -> None:
        model = self.step.model
        self.x[0] = x[:, : self.n] if model.nq == self.n else x[:, limited_coordinates(model)]
        self.x[1] = x[:, model.nq :]

    def leave(self, x: Array, steps: int) -> None:
        x[:, : self.n], x[:, self.n :] = self.x


def gains_by_freedom(law: Law, gain: Array, m: int) -> Array:
    """The gains of every freedom, then the numbers of its parts: (k, m, nv), never empty."""
    model, at = law.model, len(law.gains)
    K, D = np.zeros((2, m, model.nv), gain.dtype)
    for diagonal, own in ((K, law.gains[:, 1] < model.nq), (D, law.gains[:, 1] >= model.nq)):
        diagonal[:, law.gains[own, 0]] = gain[..., :at][..., own]
    rows = [K, D] if at else []
    for kind, freedoms in law.parts:
        for idle in KINDS[kind][1].values():
            row = np.full((m, model.nv), idle, gain.dtype)
            row[:, list(freedoms)] = gain[..., at : at + len(freedoms)]
            rows.append(row)
            at += len(freedoms)
    return np.stack(rows or [K])


# ---- what runs ----


class Lowered:
    """A step as kernels, kept with the model or with the structure of a batch."""

    def __init__(self, step: Step, dtype: str = "float64") -> None:
        self.step, self.dtype = step, dtype
        self.by_freedoms = step.by_freedoms
        pieces = [] if step.written_out else cut(step.one_freedom if self.by_freedoms else step)
        self.pieces = [(compiled_piece(x.code, x.inputs, dtype), x) for x in pieces]
        if step.written_out:
            key = "step", step.key, step.law.key, step.slots, step.members.key if step.members else step.model.key
            self.kernel = pointwise.compile_pointwise(step.whole, step.inputs, dtype, key)
        asks = {self._whole(x.ask) for _, x in self.pieces if x.ask and x.ask.algorithm}
        self.programs = {ask: self._program(ask) for ask in asks}

    def _program(self, ask: Ask) -> Any:
        assert ask.algorithm is not None
        own = self.step.members if ask.is_forward else None
        algorithm = self.step.algorithm if ask.is_forward else ask.algorithm
        return program_for(algorithm, ask.model, ask.options, np.dtype(self.dtype).char, None, own)

    @property
    def is_machine_code(self) -> bool:
        """Whether all pieces are compiled."""
        return self.step.written_out or all(isinstance(kernel, np.ufunc) for kernel, _ in self.pieces)

    def program(self, ask: Ask) -> Any:
        return self.programs[self._whole(ask)]

    def _whole(self, ask: Ask) -> Ask:
        """What is asked for all freedoms by a piece of one freedom."""
        return ask._replace(model=self.step.model, options=self.step.options) if self.by_freedoms else ask

    def __call__(self, q: Array, v: Array, tau: Array, gain: Array, h: Array, *numbers: Array) -> Array:
        """One step of many states, each with a length of its own, h (m, 1) or (1,)."""
        if self.step.written_out:
            return self.kernel(q, v, tau, gain, h, *numbers)
        return Run(self, len(q), gain, h, numbers).once(np.concatenate([q, v], axis=1), tau)


def lowered(step: Step, dtype: str = "float64") -> Lowered:
    """A step as kernels, made once."""
    made = step.members.store if step.members else store(step.model)
    return made.once(("step", step.key, step.law.key, step.slots, dtype), lambda: Lowered(step, dtype))


class Run:
    """Steps of m states: the list of calls of a step, on memory of its own.

    gain      (k,) or (m, k) the numbers of the law;  h: the length of a step;  numbers: the last inputs of a step
    times     of a step at which functions are called, and these;  alone: a state alone goes to them without its axis
    """

    def __init__(self, step: Lowered, m: int, gain: Array, h: Array, numbers: Sequence[Array],
                 times: Sequence[float] = (0.0,), functions: Sequence[Called] = (),
                 alone: bool = True) -> None:  # fmt: skip
        self.lowered, self.m, self.times, self.functions, self.alone = step, m, times, functions, alone and m == 1
        self.h = np.broadcast_to(np.asarray(h, step.dtype), (m, 1))
        self.memory = (Freedoms if step.by_freedoms else Rows)(step.step, m, np.dtype(step.dtype))
        wide = step.step.slots * step.step.law.rows * (1 if step.by_freedoms else step.step.model.nv)
        self.tau = self.memory.room(wide)
        self.gain = self.memory.values(gain)
        shapes = [place_of(name).shape(step.step.model) for name in step.step.numbers]
        self.numbers = [spread(np.ascontiguousarray(x), (m, *shape)) for x, shape in zip(numbers, shapes)]
        self.t = 0.0
        self.calls = [self._calls(k) for k in ((0,) if step.by_freedoms else (0, 1))]

    def _calls(self, k: int) -> list[Call]:
        """From the k-th state to the other one."""
        memory, low = self.memory, self.lowered
        h = self.h if not low.by_freedoms else np.broadcast_to(self.h[:, None], (self.m, low.step.model.nv, 1))
        given = [*memory.state(k), memory.operand(self.tau), self.gain, h]
        out = memory.operand(memory.result(1 - k))
        if low.step.written_out:
            return [Call(low.kernel, [*given, *self.numbers], out)]
        calls = []
        for kernel, piece in low.pieces[:-1]:
            assert piece.ask is not None
            asked = memory.room(len(piece.parts) if low.by_freedoms else piece.parts[-1].stop)
            calls.append(Call(kernel, given[:], memory.operand(asked)))
            parts = memory.parts(asked, piece.parts)
            if piece.ask.algorithm is None:
                found = memory.room(FOUND if low.by_freedoms else FOUND * low.step.model.nv)
                calls.append(Call(self._functions(piece.ask.at, found), parts, found))
            else:
                found = memory.room(1 if low.by_freedoms else low.step.model.nv)
                own = self.numbers if piece.ask.is_forward else []
                program = low.program(piece.ask)
                calls.append(Call(program, [*parts, *own], found[0] if low.by_freedoms else found))
            given.append(memory.operand(found))
        return [*calls, Call(low.pieces[-1][0], given, out)]

    def _functions(self, at: int, found: Array) -> Callable[..., None]:
        nv, by_freedoms = self.lowered.step.model.nv, self.lowered.by_freedoms

        def call(q: Array, v: Array, out: Array) -> None:
            t = self.t + self.times[min(at, len(self.times) - 1)] * float(self.h[0, 0])
            for k, x in enumerate(called(self.functions, t, q, v, self.lowered.step.implicit, self.alone)):
                if by_freedoms:
                    found[k] = x
                else:
                    found[:, k * nv : (k + 1) * nv] = x

        return call

    @cached_property
    def _loop(self) -> Loop | None:
        """The loop over time in machine code, if all calls are."""
        return (
            Loop(self.calls, self.tau) if all(call.is_machine_code for calls in self.calls for call in calls) else None
        )

    def once(self, x: Array, tau: Array) -> Array:
        """What a step gives, (m, ...), which need not be a state."""
        self.memory.enter(x)
        self.tau[...] = self.memory.commands(tau[None])[0].reshape(self.tau.shape)
        *calls, last = self.calls[0]
        for call in calls:
            call()
        if not self.lowered.by_freedoms:
            return last.function(*last.inputs)
        columns = last.function(*last.inputs)  # (m, nv, ...)
        return np.moveaxis(columns, 1, -1).reshape(self.m, *columns.shape[2:-1], columns.shape[1] * columns.shape[-1])

    def __call__(self, x: Array, tau: Array, steps: int, t: float = 0.0) -> None:
        """Move the states x (m, nq + nv) in place; commands tau (1 or steps, m or 1, width)."""
        if not self.m:  # NumPy calls machine code only for what is there, and so do we
            return
        memory, rows = self.memory, self.memory.commands(tau)
        memory.enter(x)
        if self._loop:
            at_once = max(1, UNINTERRUPTED // max(1, x.size) * 2)
            for done in range(0, steps, at_once + at_once % 2):
                self._loop(rows[done:] if len(rows) > 1 else rows, min(at_once + at_once % 2, steps - done))
        else:
            for k in range(steps):
                self.t = t + k * float(self.h[0, 0])
                self.tau[...] = rows[k if len(rows) > 1 else 0].reshape(self.tau.shape)
                for call in self.calls[k % len(self.calls)]:
                    call()
        memory.leave(x, steps)


def called(functions: Sequence[Called], t: float, q: Array, v: Array, slopes: bool, alone: bool) -> Array:
    """What functions give at many states (m, nq), (m, nv): `FOUND` rows (m, nv).

    `alone`: one state is handed over without its axis.
    """
    total = np.zeros((FOUND, *v.shape))
    q, v = q.view(), v.view()
    q.flags.writeable = v.flags.writeable = False
    for term in functions:
        state = (q[0], v[0]) if alone and not term.batched else (q, v)
        first = 0 if term.drive else OTHERS
        total[first] += given_by(term, t, *state)
        if slopes and term.slopes is not None:
            total[first + 1 : first + 3] += slopes_by(term.slopes, t, *state)
    return total


def given_by(term: Called, t: float, q: Array, v: Array) -> Array:
    """The torques of a function, with the shape of v."""
    try:
        found = term.torque(t, q, v)
        if found is None or isinstance(found, np.ma.MaskedArray):
            raise TypeError(f"it gives {'nothing' if found is None else 'a masked array'}")
        return np.broadcast_to(np.asarray(found, dtype=float), v.shape)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"the force {_name(term.torque)} must be a function of t, q and v that gives {v.shape} numbers for "
            f"q {q.shape}: {error}"
        ) from error


def slopes_by(slopes: Callable[..., Any], t: float, q: Array, v: Array) -> Array:
    """The stiffness and the damping of a function, (2, ...), each with the shape of v."""
    try:
        stiffness, damping = slopes(t, q, v)
        found = np.stack([np.broadcast_to(np.asarray(x, dtype=float), v.shape) for x in (stiffness, damping)])
        if not np.isfinite(found).all() and np.isfinite(q).all() and np.isfinite(v).all():
            raise ValueError("a number is not finite")
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"the slopes {_name(slopes)} must be a function of t, q and v that gives a stiffness and a damping, "
            f"{v.shape} finite numbers each, for q {q.shape}: {error}"
        ) from error
    return found.reshape(2, -1, v.shape[-1])


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def tangent_of(low: Lowered) -> Any:
    """The kernel of the change of a step that is one piece of code along (dq, dv), its last two inputs."""
    inputs = low.step.inputs if low.step.written_out else low.pieces[-1][1].inputs
    inputs = {name: shape for name, shape in inputs.items() if name in STATE}
    code = pointwise.trace(low.step.whole, low.step.inputs) if low.step.written_out else low.pieces[-1][1].code

    def tangent(*given: Any) -> list[Scalar]:
        tape = given[0][0].tape
        again = Replay(code, tape)
        seeds = {(name, k): x.i for name, along in zip("qv", given[-2:]) for k, x in enumerate(along)}
        found, zero = again.push(seeds), tape.const(0.0)
        return list(scalars(tape, (found.get(i, zero) for i in code.outputs.values())))

    return pointwise.compile_pointwise(tangent, inputs | {"dq": inputs["q"], "dv": inputs["v"]}, low.dtype)


class Call:
    """A function of arrays with its arguments."""

    def __init__(self, function: Any, inputs: Sequence[Array], out: Array) -> None:
        self.function = getattr(function, "ufunc", function)
        self.inputs, self.out, self.machine = list(inputs), out, function

    def __call__(self) -> None:
        self.function(*self.inputs, self.out)

    @property
    def is_machine_code(self) -> bool:
        return isinstance(self.function, np.ufunc)

    def words(self, keep: list[Any]) -> tuple[list[int], Array]:
        """Function, data, and the addresses of arguments, dimensions and steps, as NumPy passes them."""
        arrays, ranks = [*self.inputs, self.out], _ranks(self.function.signature)
        count = prod(self.out.shape[: self.out.ndim - ranks[-1]])
        outer = [x.strides[x.ndim - rank - 1] if x.ndim > rank and count > 1 else 0 for x, rank in zip(arrays, ranks)]
        inner = [step for x, rank in zip(arrays, ranks) for step in x.strides[x.ndim - rank :]]
        own = [np.array(x, dtype=np.int64) for x in (list(map(address, arrays)), [count], outer + inner)]
        keep.append((own, arrays, self.machine))
        return [*entry_of(self.function), *map(address, own)], own[0]


def address(x: Array) -> int:
    """Where an array lies: quicker than `x.ctypes.data`."""
    return x.__array_interface__["data"][0]


@cache
def _ranks(signature: str) -> list[int]:
    """How many core axes every array of a gufunc has."""
    cores = signature.replace("->", ",").replace("),(", ")|(").split("|")
    return [core.count(",") + 1 if core != "()" else 0 for core in cores]


class Loop:
    """All calls of a step, one after the other, for many steps, in machine code."""

    def __init__(self, calls: Sequence[Sequence[Call]], tau: Array) -> None:
        self._keep: list[Any] = []
        rows, self._slots = [], []
        for call in (call for half in calls for call in half):
            words, args = call.words(self._keep)
            rows.append(words)
            self._slots += [(args, k) for k, x in enumerate(call.inputs) if np.may_share_memory(x, tau)]
        self._table, self._count = np.array(rows, dtype=np.int64), len(calls[0])
        self._turns = 0 if len(calls) == 1 else 8 * self._table.shape[1] * self._count  # bytes to the other half
        self._places = np.array([args.ctypes.data + 8 * k for args, k in self._slots], dtype=np.int64)
        self._call, self._code = _function()

    def __call__(self, rows: Array, steps: int) -> None:
        """`steps` steps with commands from rows (1 or steps, ...)."""
        for args, k in self._slots:
            args[k] = rows.ctypes.data
        stride = rows.strides[0] if len(rows) > 1 else 0
        table, places = self._table.ctypes.data, self._places.ctypes.data
        self._call(table, self._count, self._turns, places, len(self._places), stride, steps)


TYPES = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "double": ctypes.c_double}


def function_of(write: Callable[[LLVMWriter], None], **parameters: str) -> tuple[Any, Any]:
    """(a function whose body `write` writes, the code that must live as long as it does); LLVM's types by name."""
    from torsor.backends.llvm import LLVMWriter, Target  # slow to load, and needed only where the code is not on disk

    host = codegen.host()
    w = LLVMWriter(Target(1, 64, host.fma, host.x86))
    write(w)
    head = f"define void @kernel({', '.join(f'{kind} %{name}' for name, kind in parameters.items())}) nounwind"
    code = "\n".join([w.declarations, f"{head} {{", "entry:", *w.lines, "  ret void", "}", ""])
    loaded = codegen.load(codegen.name_of(code), lambda: code)
    return ctypes.CFUNCTYPE(None, *(TYPES[kind] for kind in parameters.values()))(loaded.address), loaded


@cache
def _function() -> tuple[Any, Any]:
    parameters = dict.fromkeys(("count", "turns", "moving", "stride", "steps"), "i64")
    names = ("calls", "count", "turns", "places", "moving", "stride", "steps")
    return function_of(_write, **{name: parameters.get(name, "ptr") for name in names})


def _write(w: LLVMWriter) -> None:
    """For every step: all calls of its half of the table; then every place moves on by the stride."""
    with w.loop("step", 0) as step:
        half = w.i64("mul", w.i64("and", step.i, 1), "%turns")
        write_calls(w, w.address("%calls", half), "%count")
        with w.loop("place", 0) as place:
            own = w.load_ptr(w.address("%places", w.i64("mul", place.i, 8)), 0)
            w.do(f"store i64 {w.i64('add', w.load_i64(own, 0), '%stride')}, ptr {own}")
            place.count_to(w, "%moving")
        step.count_to(w, "%steps")


WORDS = ("function", "data", "args", "dims", "steps")


def write_calls(w: LLVMWriter, calls: str, count: str) -> None:
    """Write the calls of a table, one after the other."""
    with w.loop("call", 0) as call:
        own = w.address(calls, w.i64("mul", call.i, 8 * len(WORDS)))
        found = {name: w.load_ptr(own, k) for k, name in enumerate(WORDS)}
        w.do(
            f"call void {found['function']}({', '.join(f'ptr {found[x]}' for x in ('args', 'dims', 'steps', 'data'))})"
        )
        call.count_to(w, count)
