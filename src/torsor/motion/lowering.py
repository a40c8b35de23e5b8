"""Lower a step over any scalar: to one kernel, or to pieces of code with programs in between.

`move(plant, q, v, h)` requests accelerations, the torques of computed-torque control, and the results of the user's
functions from the plant. For few freedoms everything except the functions is written out, and the step is one kernel.
Otherwise it is cut at each request: one piece of code computes the arguments of a program, and the next piece reads the
program's result. If every freedom acts separately, the pieces of a machine with one freedom serve all freedoms of all
states, which are the lanes of its code.

`time_loop.py` runs the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms import articulated, pulls
from torsor.algorithms.newton_euler import inverse_dynamics
from torsor.backends import pointwise
from torsor.compiler.frames import straight_line_frames
from torsor.compiler.lowering import unrolled
from torsor.compiler.members import Members
from torsor.compiler.request import QUICK
from torsor.compiler.store import store
from torsor.compiler.tape import Code, Expr, Tape
from torsor.compiler.tape_derivatives import Replay, scalars
from torsor.compiler.trace import outputs_on, symbols
from torsor.dynamics.calls import program_for
from torsor.dynamics.methods import COUPLED
from torsor.errors import ArgumentError
from torsor.inputs import place_of
from torsor.linalg import Scalar
from torsor.model.model import Model
from torsor.motion.law import Law
from torsor.motion.laws import KINDS
from torsor.motion.plant import Inverse, Plant
from torsor.outputs import numbered
from torsor.sweeps import Algorithm

Array = NDArray[Any]
Scalars = Sequence[Scalar]
Move = Callable[[Plant, Scalars, Scalars, Scalar], Any]

MOST_MOVED = 64  # freedoms of a machine with couplings: its forward dynamics is straight-line code, 44 compile in 2 s
MOST_FREEDOMS_OF_MEMBERS = 24  # of a ModelBatch, for its step to be straight-line code
# The most of a compiled piece. Rows of many numbers take long to compile: 1000 in and 800 out take 5 s.
MOST_OPERATIONS, MOST_NUMBERS = 15_000, 800
STATE = ("q", "v", "tau", "gain", "h")  # the first inputs of a step
WAVES = "external"  # the input with the wrenches
# The results of functions are FOUND rows: torque, stiffness and damping of the drives, then from OTHERS on of the rest.
FOUND, OTHERS = 6, 3


class Step(NamedTuple):
    """A step to be lowered.

    move, key   a function (plant, q, v, h), and a key that identifies it
    law         the law of the forces
    slots       the number of times at which it reads changing commands;  waves: changing wrenches
    implicit    whether numbers are added to the pivots
    moves       whether it moves the state; otherwise it only evaluates forces there
    asks        whether it requests algorithms other than the dynamics (`Plant.evaluate`)
    """

    move: Move
    key: Any
    law: Law
    slots: int = 1
    implicit: bool = False
    members: Members | None = None
    moves: bool = True
    waves: int = 1
    asks: bool = False

    @property
    def model(self) -> Model:
        return self.law.model

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all inputs, for one state."""
        model, law = self.model, self.law
        sizes = model.nq, model.nv, self.slots * law.rows * model.nv, law.values.shape[-1], 1
        own = {name: place_of(name).shape(model) for name in self.numbers}
        own |= {WAVES: (self.waves * model.n, 6)} if WAVES in own else {}
        return {name: (size,) for name, size in zip(STATE, sizes)} | own

    @property
    def loads(self) -> dict[str, Array]:
        """The constant loads on the bodies, as the step reads them."""
        found = dict(self.law.loads or {})
        return found if self.waves == 1 else found | {WAVES: np.concatenate([found[WAVES]] * self.waves, axis=-2)}

    def taken_by(self, ask: Ask, numbers: Sequence[Array]) -> list[Array]:
        """The numbers of states that the requested algorithm takes."""
        return [self.read(name, x, ask.at) for name, x in zip(self.numbers, numbers) if name in ask.options]

    def read(self, name: str, x: Any, at: int) -> Any:
        """The rows of an input at time `at` of the step: only changing wrenches have rows for every time."""
        if name != WAVES or self.waves == 1:
            return x
        rows = slice(at * self.model.n, (at + 1) * self.model.n)
        return x[rows] if isinstance(x, list | tuple) else x[:, rows]

    @property
    def reads(self) -> tuple[Any, ...]:
        """Everything that its code depends on, except the machine."""
        return self.key, self.law.key, self.slots, self.waves

    @property
    def numbers(self) -> tuple[str, ...]:
        """The other inputs per state: loads on the bodies, and the numbers in which members differ."""
        return (*self.law.load_names, *self.differing)

    @property
    def differing(self) -> tuple[str, ...]:
        """The numbers in which members differ."""
        return (*self.members.inputs,) if self.members else ()

    @property
    def algorithm(self) -> Algorithm:
        """The forward dynamics: sweeps, or the projected equations of coupled joints."""
        model = self.model
        if model.couplings and model.nv > MOST_MOVED:
            raise ArgumentError(
                f"joints that follow others are moved for {MOST_MOVED} freedoms at most, not {model.nv}"
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
        return not (self.written_out or self.asks) and (self.law.is_local if whole else self.law.is_diagonal)

    @property
    def whole(self) -> Callable[..., Any]:
        """A function of lists, one per input, with the dynamics written out in it."""

        def step(q: Scalars, v: Scalars, tau: Scalars, gain: Scalars, h: Scalars, *numbers: Any) -> Any:
            own = dict(zip(self.numbers, numbers))
            frames = self.members.frames if self.members else straight_line_frames(self.model)

            def accelerate(q: Scalars, v: Scalars, tau: Scalars, added: Scalars | None, at: int) -> Scalars:
                given = {"q": q, "v": v, "tau": tau, **{name: self.read(name, x, at) for name, x in own.items()}}
                given |= {} if added is None else {"added_inertia": added}
                return list(outputs_on(self.algorithm, frames, given).values())

            plant = Plant(self.law, gain, tau, accelerate, self.torques_on_tape(own), evaluate=on_tape)
            return self.move(plant, q, v, h[0])

        return step

    def torques_on_tape(self, own: Mapping[str, Any]) -> Inverse:
        """The inverse dynamics of the tracked model, over any scalars; `own`: the numbers of a member."""

        def torques(tracked: Model, q: Scalars, v: Scalars, a: Scalars) -> Scalars:
            itself = self.members is not None and self.law.tracks_itself
            frames = self.members.frames if self.members and itself else straight_line_frames(tracked)
            numbers = {name: own[name] for name in self.differing} if itself else {}
            return list(outputs_on(inverse_dynamics, frames, {"q": q, "v": v, "qdd": a, **numbers}).values())

        return torques

    def members_in(self, ask: Ask) -> Members | None:
        """The members, if the requested algorithm depends on their numbers."""
        return self.members if self._is_of_machine(ask) else None

    def parameters_in(self, ask: Ask, wrt: tuple[str, ...]) -> tuple[str, ...]:
        """The names in `wrt`, if the requested algorithm depends on the machine's numbers."""
        return wrt if self._is_of_machine(ask) else ()

    def _is_of_machine(self, ask: Ask) -> bool:
        return ask.is_forward or self.law.tracks_itself

    @property
    def one_freedom(self) -> Step:
        """The same step for one freedom, for a machine whose freedoms act separately."""
        law, one = self.law, Model.chain("revolute", n=1, mass=1.0, inertia=(1.0, 1.0, 1.0))
        places = [(0, 0), (0, 1)] if len(law.gains) else []
        count = len(places) + sum(len(KINDS[kind][1]) for kind, _ in law.parts)
        parts = tuple((kind, (0,)) for kind, _ in law.parts)
        alone = Law(one, np.array(places, int).reshape(-1, 2), parts, (), np.zeros(max(count, 1)), np.zeros((1, 1)),
                    called=law.called)  # fmt: skip
        return Step(self.move, self.key, alone, self.slots, self.implicit)


# ---- pieces ----


class Ask(NamedTuple):
    """The request of a piece at a time of the step: the output of an algorithm for a model, or of the functions."""

    algorithm: Algorithm | None
    model: Model
    options: tuple[str, ...] = ()
    at: int = 0

    @property
    def is_forward(self) -> bool:
        """Whether it is the forward dynamics."""
        return self.algorithm is not None and "tau" in self.algorithm.inputs


class Piece(NamedTuple):
    """A part of a step: its code, its inputs, and the request to which its outputs belong; the last piece has none.

    parts   the slices of the outputs: q, v, tau, ...
    """

    code: Code
    inputs: dict[str, tuple[int, ...]]
    parts: tuple[slice, ...]
    ask: Ask | None


def cut(step: Step, inverse: bool = True) -> list[Piece]:
    """Cut a step at each request; without `inverse`, computed torques are written out.

    A piece may read the answer to request r as inputs ("a<r>", i); its outputs are ("out", k).
    """
    tape, model, law = Tape(), step.model, step.law
    pieces: list[tuple[dict[Any, Any], Ask]] = []
    nq, nv = model.nq, model.nv

    def ask(what: Ask, count: int, *asked: Scalars) -> Scalars:
        outputs = [x for part in asked for x in part]
        pieces.append(({("out", k): x for k, x in enumerate(outputs)}, what))
        return [tape.input((f"a{len(pieces) - 1}", i)) for i in range(count)]

    def accelerate(q: Scalars, v: Scalars, tau: Scalars, added: Scalars | None, at: int) -> Scalars:
        what = Ask(step.algorithm, model, (*["added_inertia"] * (added is not None), *step.numbers), at)
        return ask(what, nv, q, v, tau, *([] if added is None else [added]))

    def torques(tracked: Model, q: Scalars, v: Scalars, a: Scalars) -> Scalars:
        own = step.differing if law.tracks_itself else ()
        return ask(Ask(inverse_dynamics, tracked, own), nv, q, v, a)

    def evaluate(algorithm: Algorithm, other: Model, *given: Scalars) -> Scalars:
        return ask(Ask(algorithm, other), other.nv, *given)

    def functions(q: Scalars, v: Scalars, at: int) -> list[Scalars]:
        found = ask(Ask(None, model, (), at), FOUND * nv, q, v)
        return [found[k : k + nv] for k in range(0, FOUND * nv, nv)]

    inputs = {name: shape for name, shape in step.inputs.items() if name in STATE}
    q, v, tau, gain, h = ([tape.input((name, i)) for i in range(shape[0])] for name, shape in inputs.items())
    own = {name: symbols(tape, name, place_of(name).shape(model)) for name in step.differing}
    on_tape = torques if inverse else step.torques_on_tape(own)
    plant = Plant(law, gain, tau, accelerate, on_tape, functions if law.called else None, evaluate)
    end = step.move(plant, q, v, h[0])
    result = []
    for s, (outputs, what) in enumerate(pieces):
        first, size = (what.model.nq, what.model.nv) if what.algorithm else (nq, nv)
        parts = slice(0, first), *(slice(k, k + size) for k in range(first, len(outputs), size))
        result.append(Piece(Code.of(tape, outputs), dict(inputs), parts, what))
        inputs[f"a{s}"] = (size if what.algorithm else FOUND * nv,)
    last = Code.of(tape, {("out", *index): x for index, x in numbered(end)})
    return [*result, Piece(last, inputs, (), None)]


def on_tape(algorithm: Algorithm, model: Model, *given: Scalars) -> Scalars:
    """The output of an algorithm, written out on the tape of its inputs; some of them may be plain numbers."""
    code, values = unrolled(algorithm, model, algorithm.inputs), dict(zip(algorithm.inputs, given))
    tape = next(x.tape for part in given for x in part if isinstance(x, Expr))

    outputs = Replay(code, tape, lambda entry: tape.node_of(values[entry[0]][entry[1]])).outputs
    return list(scalars(tape, (outputs[name] for name in sorted(outputs))))


def compiled_piece(code: Code, inputs: Mapping[str, tuple[int, ...]], dtype: str) -> Callable[..., Array]:
    """A code as a function of rows: compiled if it is short, otherwise evaluated on columns by NumPy."""
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


# ---- kernels ----


def gains_by_freedom(law: Law, gain: Array, m: int) -> Array:
    """The gains of every freedom, then the numbers of its parts: (k, m, nv), never empty."""
    model = law.model
    K, D = np.zeros((2, m, model.nv), gain.dtype)
    for diagonal, own in ((K, law.gains[:, 1] < model.nq), (D, law.gains[:, 1] >= model.nq)):
        diagonal[:, law.gains[own, 0]] = gain[..., law.layout.gains][..., own]
    rows = [K, D] if len(law.gains) else []
    for kind, freedoms, places in law.layout.parts:
        for idle, place in zip(KINDS[kind][1].values(), places):
            row = np.full((m, model.nv), idle, gain.dtype)
            row[:, list(freedoms)] = gain[..., place]
            rows.append(row)
    return np.stack(rows or [K])


class Lowered:
    """A step as kernels, kept with the model or with the structure of a batch."""

    def __init__(self, step: Step, dtype: str = "float64", in_pieces: bool = False) -> None:
        """`in_pieces`: even if the whole step could be written out."""
        self.step, self.dtype = step, dtype
        self.written_out = step.written_out and not in_pieces
        self.by_freedoms = step.by_freedoms
        pieces = [] if self.written_out else cut(step.one_freedom if self.by_freedoms else step)
        self.pieces = [(compiled_piece(x.code, x.inputs, dtype), x) for x in pieces]
        asks = {self.whole(x.ask) for _, x in self.pieces if x.ask and x.ask.algorithm}
        self.programs = {ask: self._program(ask) for ask in asks}

    def _program(self, ask: Ask) -> Any:
        algorithm = self.step.algorithm if ask.is_forward else ask.algorithm
        assert algorithm is not None
        number = np.dtype(self.dtype).char
        return program_for(algorithm, ask.model, ask.options, number, None, self.step.members_in(ask))

    @cached_property
    def kernel(self) -> Any:
        """The whole step, written out."""
        step = self.step
        key = "step", *step.reads, step.members.key if step.members else step.model.key
        return pointwise.compile_pointwise(step.whole, step.inputs, self.dtype, key)

    @property
    def is_machine_code(self) -> bool:
        """Whether all pieces are compiled."""
        return self.written_out or all(isinstance(kernel, np.ufunc) for kernel, _ in self.pieces)

    def program(self, ask: Ask) -> Any:
        return self.programs[self.whole(ask)]

    def whole(self, ask: Ask) -> Ask:
        """The request for all freedoms that corresponds to the request of a piece for one freedom."""
        return ask._replace(model=self.step.model, options=self.step.options) if self.by_freedoms else ask


def lowered(step: Step, dtype: str = "float64") -> Lowered:
    """A step as kernels, made once."""
    made = step.members.store if step.members else store(step.model)
    return made.once(("step", *step.reads, dtype), lambda: Lowered(step, dtype))


def tangent_of(low: Lowered) -> Any:
    """The kernel of the directional derivative of a step along (dq, dv), its last two inputs.

    The step must be one piece of code.
    """
    inputs = low.step.inputs if low.written_out else low.pieces[-1][1].inputs
    inputs = {name: shape for name, shape in inputs.items() if name in STATE}
    code = pointwise.trace(low.step.whole, low.step.inputs) if low.written_out else low.pieces[-1][1].code

    def tangent(*given: Any) -> list[Scalar]:
        tape = given[0][0].tape
        again = Replay(code, tape)
        seeds = {(name, k): x.i for name, along in zip("qv", given[-2:]) for k, x in enumerate(along)}
        found, zero = again.push(seeds), tape.const(0.0)
        return list(scalars(tape, (found.get(i, zero) for i in code.outputs.values())))

    return pointwise.compile_pointwise(tangent, inputs | {"dq": inputs["q"], "dv": inputs["v"]}, low.dtype)
