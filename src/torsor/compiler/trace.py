"""Run an algorithm on symbols and keep the tape.

`unroll` runs the whole algorithm over one model: one long tape in which the model's numbers are constants.
`looped` runs every step once for each kind of body.  This gives short tapes whose inputs are, by name,

    ("number", name)          the body's own constants            ("base", name, k)  gravity; the frame of a path
    ("q", k) ("v", k) ...     its part of the input arrays        ("near", k)        the values handed to it
    ("kept", name, k, stage)  the values that pass number `stage` kept here
    ("arrived", k, stage)     at the base: the values that the pass handed to it

and whose outputs are ("hand", k), ("kept", name, k, stage) and ("out", ...).  A kept value is never overwritten: a pass
that keeps a value under an old name makes a new value.  Values that no output of the algorithm needs are
not computed, handed on or kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from torsor.compiler.abi import Layout
from torsor.compiler.frames import GIVEN, Framed, FramedLink, Kind
from torsor.compiler.tape import Code, Expr, Operations, Tape
from torsor.inputs import BASE, MEMBERS, PLACES, is_parameter, place_of
from torsor.linalg import Mat, Scalar, Vec
from torsor.model.joints import joint_named
from torsor.model.names import Frame
from torsor.outputs import AtBase, Path, Several, matrices_of, numbered, parts_of, plain
from torsor.reference import base_of, scatter
from torsor.spatial import Inertia, Rigid
from torsor.sweeps import Algorithm, Columns, Here, Step, Sweep, Walk, run

# Structures of scalars as flat lists ---------------------------------------------------------------------------


def leaves(x: Any) -> list[Any]:
    """All scalars of a value that is handed on or kept; those of a symmetric matrix appear once each."""
    if isinstance(x, Inertia):
        upper = [A[i][j] for A in (x.J, x.M) for i in range(3) for j in range(i, 3)]
        return upper + leaves(x.H)
    if isinstance(x, dict):
        return [y for v in x.values() for y in leaves(v)]
    if isinstance(x, tuple | list):
        return [y for v in x for y in leaves(v)]
    return [x]


def rebuild(like: Any, scalars: Iterator[Any]) -> Any:
    """The inverse of `leaves`: a value with the structure of `like`, made of other scalars."""
    if isinstance(like, Inertia):
        J, M = ({(i, j): next(scalars) for i in range(3) for j in range(i, 3)} for _ in range(2))
        H = rebuild(like.H, scalars)
        return Inertia(Mat.symmetric(lambda i, j: J[i, j]), H, Mat.symmetric(lambda i, j: M[i, j]))
    if isinstance(like, dict):
        return {name: rebuild(v, scalars) for name, v in like.items()}
    if isinstance(like, Vec | Mat):
        return type(like).of(rebuild(v, scalars) for v in like)
    if isinstance(like, tuple):
        parts = [rebuild(v, scalars) for v in like]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    if isinstance(like, list):
        return [rebuild(v, scalars) for v in like]
    return next(scalars)


# Unrolled ------------------------------------------------------------------------------------------------------


def unroll(algorithm: Algorithm, framed: Framed, inputs: Sequence[str], frame: Frame | None = None) -> Code:
    """One tape for one model.  Inputs are (name, indices...), outputs ("out", indices...)."""
    tape = Tape()
    given = {name: symbols(tape, name, place_of(name).shape(framed.model)) for name in inputs}
    return showing_all(tape, outputs_on(algorithm, framed, given, frame))


def outputs_on(algorithm: Algorithm, framed: Framed, given: Mapping[str, Any], frame: Frame | None = None,
               gravity: Sequence[Scalar] | None = None) -> dict[Any, Scalar]:  # fmt: skip
    """The outputs ("out", indices...) of an algorithm for one model, on the tape of the inputs."""
    model = framed.model
    arrays = {name: x for name, x in given.items() if not is_parameter(name) and name not in MEMBERS}
    changes: list[dict[str, Vec]] = [{} for _ in range(model.n)]  # of each body's constants
    for name in ("inertia", "placement"):
        for change, row in zip(changes, given.get(name, ())):
            change[name] = Vec.of(row)
    gravity = given.get("gravities", model.gravity.tolist()) if gravity is None else gravity
    base = base_of([g + x for g, x in zip(gravity, given.get("gravity", (0.0,) * 3))], given)
    links = [framed.link(i, _own_numbers(given, i), **changes[i]) for i in range(model.n)]
    result = plain(run(algorithm, links, model.parent.tolist(), base, scatter(model, arrays), frame, model.couplings))
    return {("out", *index): x for index, x in numbered(result)}


def _own_numbers(given: Mapping[str, Any], i: int) -> dict[str, Scalar]:
    """The numbers of body i that are inputs."""
    return {name: x for key in GIVEN if key in given for name, x in zip(GIVEN[key], given[key][i])}


def showing_all(tape: Tape, outputs: Mapping[Any, Scalar]) -> Code:
    """A finished code in which an input that is not finite shows in the first output, even if nothing depends on it."""
    outputs = dict(outputs)
    states = {node.a for node in tape.nodes if node.op == "in" and node.a[0] not in MEMBERS}
    unread = states - Code.of(tape, outputs).inputs
    first = next(iter(outputs))
    for name in sorted(unread):
        outputs[first] = outputs[first] - tape.input(name).zero()
    return Code.of(tape, outputs)


def symbols(tape: Tape, name: str, shape: tuple[int, ...], index: tuple[int, ...] = ()) -> Any:
    """Inputs of a tape as nested lists of this shape."""
    if len(index) == len(shape):
        return tape.input((name, *index))
    return [symbols(tape, name, shape, (*index, i)) for i in range(shape[len(index)])]


# Looped --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoopPass:
    """One pass: its start values, and the code of its step for every kind of body."""

    outward: bool
    start: Code  # outputs ("near", k)
    codes: tuple[Code, ...]  # by kind
    live: tuple[int, ...]  # the scalars handed on that are ever read
    stage: int  # the number of the pass


FEW_HANDED = 18


@dataclass(frozen=True)
class LoopColumns:
    """A climb: the code of its first step per kind and freedom, of later steps per kind, and of the pass after it."""

    starts: Mapping[tuple[int, int], Code]
    codes: tuple[Code, ...]
    live: tuple[int, ...]
    rest: tuple[tuple[Any, ...], ...] = ()  # values that are kept; they are zero off the path
    outward: LoopPass | None = None
    per_body: bool = False  # one climb per body, not per freedom

    @property
    def hands_much(self) -> bool:
        """Whether a root body skips the values that its step would hand on: they cost more than a branch around
        them."""
        return len(self.live) > FEW_HANDED

    def parts(self, code: Code) -> tuple[Code, Code]:
        """A step without the values it hands on, and these values alone."""
        handed = [name for name in code.outputs if name[0] == "hand"]
        return code.only(name for name in code.outputs if name[0] != "hand"), code.only(handed)


@dataclass(frozen=True)
class LoopCode:
    """An algorithm as loops over bodies of the given kinds."""

    algorithm: Algorithm
    inputs: tuple[str, ...]
    kinds: tuple[Kind, ...]
    passes: tuple[LoopPass, ...]
    columns: LoopColumns | None
    finish: Code | None  # from what arrives at the base, ("arrived", k, stage), to ("out", ...)

    @property
    def hides_inputs(self) -> bool:
        """Whether an input that is not finite may leave the output finite.

        A value that reaches only the base is lost there unless an outward pass follows, and each entry of a matrix
        depends on few inputs.  A derivative may be independent of an input.
        """
        unread = set(self.inputs) - {name[0] for code in self.all_codes for name in code.inputs}
        return self.columns is not None or bool(unread) or not any(p.outward for p in self.passes)

    @property
    def all_codes(self) -> list[Code]:
        codes = [code for p in self.passes for code in (p.start, *p.codes)]
        if self.columns:
            codes += [*self.columns.starts.values(), *self.columns.codes]
            if self.columns.outward:
                codes += [self.columns.outward.start, *self.columns.outward.codes]
        return codes + ([self.finish] if self.finish else [])

    @property
    def base_codes(self) -> list[Code]:
        """The codes at the base."""
        return [*(p.start for p in self.passes), *([self.finish] if self.finish else [])]

    @cached_property
    def entry(self) -> Any:
        """The shape of the output's part for a body or the base; with several outputs, one shape per output."""
        if self.packing:
            return {}
        codes = [c for p in self.passes for c in p.codes] + ([self.finish] if self.finish else [])
        places = {name[1:] for c in codes for name in c.outputs if name[0] == "out"}
        if not isinstance(self.algorithm.output, Several):
            return _extent(places)
        return {
            name: _extent({place[1:] for place in places if place[0] == name}) for name in self.algorithm.output.parts
        }

    @property
    def rank(self) -> int:
        """The number of axes of the output."""
        return self.algorithm.output.rank(self.entry)

    @cached_property
    def numbers(self) -> tuple[tuple[str, ...], ...]:
        """For each kind, the constants of a body that its code uses, in the order of the body's row."""
        return tuple(
            tuple(sorted({name[1] for code in codes for name in code.inputs if name[0] == "number"}))
            for codes in self._codes_by_kind()
        )

    def _codes_by_kind(self) -> list[list[Code]]:
        result: list[list[Code]] = []
        for kind in range(len(self.kinds)):
            codes = [p.codes[kind] for p in self.passes]
            if self.columns:
                codes += [c for (k, _), c in self.columns.starts.items() if k == kind] + [self.columns.codes[kind]]
                codes += [self.columns.outward.codes[kind]] if self.columns.outward else []
            result.append(codes)
        return result

    @cached_property
    def slots(self) -> dict[Any, int]:
        """A slot in a body's scratch memory for each kept value; the slot is freed after the last read.

        A step reads before it writes, so a slot may be reused in the same pass that reads it last.
        """
        written: dict[Any, int] = {}
        read: dict[Any, int] = {}
        stages: list[Sequence[Code]] = [p.codes for p in self.passes]
        if self.columns:  # climbs visit a body repeatedly: together they count as one last pass
            stages.append([*self.columns.starts.values(), *self.columns.codes])
            stages[-1] = [*stages[-1], *(self.columns.outward.codes if self.columns.outward else ())]
        for stage, codes in enumerate(stages):
            last = self.columns is not None and stage == len(stages) - 1
            for code in codes:
                for name in code.inputs:
                    if name[0] == "kept":
                        read[name] = len(stages) if last else stage
                for name in code.outputs:
                    if name[0] == "kept":
                        written.setdefault(name, stage)
        free_from: list[int] = []  # the pass from which each slot is free
        places: dict[Any, int] = {}
        for name in sorted(read, key=lambda name: (written[name], str(name))):
            place = next((k for k, free in enumerate(free_from) if free <= written[name]), len(free_from))
            free_from[place : place + 1] = [read[name]]
            places[name] = place
        return places

    @cached_property
    def layout(self) -> Layout:
        passes = [*self.passes, *([self.columns.outward] if self.columns and self.columns.outward else [])]
        kept, handed = max(self.slots.values(), default=-1) + 1, max((len(p.live) for p in passes), default=0)
        return Layout(self.numbers, kept, handed, self.packing)

    @property
    def packing(self) -> tuple[str, ...]:
        """For every matrix, which rows its columns contain (see `packing.py`)."""
        if not self.columns:
            return ()
        return tuple(matrix.packing(self.columns.outward is not None) for matrix in matrices_of(self.algorithm.output))

    def __str__(self) -> str:
        """The text of every tape, for reading and for identifying the code."""
        parts = []
        for p in self.passes:
            parts.append(f"{'outward' if p.outward else 'inward'} pass, start\n{p.start}")
            parts += [f"at {kind}\n{c}" for kind, c in zip(self.kinds, p.codes)]
        if self.columns:
            for (kind, k), c in self.columns.starts.items():
                parts.append(f"climb from freedom {k} of {self.kinds[kind]}\n{c}")
            parts += [f"climb through {x}\n{c}" for x, c in zip(self.kinds, self.columns.codes)]
            if spread := self.columns.outward:
                parts.append(f"{self.columns.rest} at rest; outward pass after it, start\n{spread.start}")
                parts += [f"at {kind}\n{c}" for kind, c in zip(self.kinds, spread.codes)]
        if self.finish:
            parts.append(f"at the base\n{self.finish}")
        return f"{self.algorithm.output}\n" + "\n\n".join(parts)

    def operations(self, kind: int) -> Operations:
        """The operations of the passes at one body of a kind (without climbs)."""
        total = Operations()
        for p in self.passes:
            total = total + Operations.of(p.codes[kind])
        return total


class _Tracer:
    """Traces one step after the other and records, per kind, the values kept under each name."""

    def __init__(self, algorithm: Algorithm, inputs: Sequence[str], kinds: Sequence[Kind]) -> None:
        self.algorithm, self.inputs, self.kinds = algorithm, inputs, kinds
        self.kept: list[dict[str, Any]] = [{} for _ in kinds]  # structures whose leaves are literals or input names
        self.in_memory: set[str] = set()  # names that are always kept in memory
        self.stage = 0

    def base(self, tape: Tape) -> Here:
        given = {name: [tape.input((name, k)) for k in range(6)] for name in self.inputs if PLACES.get(name) is BASE}
        source = ("gravities",) if "gravities" in self.inputs else ("base", "g")
        gravity: list[Scalar] = [tape.input((*source, k)) for k in range(3)]
        if "gravity" in self.inputs:
            gravity = [g + tape.input(("gravity", k)) for k, g in enumerate(gravity)]
        return base_of(gravity, given)

    def start(self, sweep: Sweep) -> tuple[Any, Code]:
        tape = Tape()
        like = sweep.start(self.base(tape))
        return like, Code.of(tape, {("near", k): x for k, x in enumerate(leaves(like))})

    def step(self, step: Step, kind: int, like: Any, third: Callable[[Tape], Any] | None = None) -> tuple[Any, Code]:
        """One step at a body of a kind.  Its third argument has the structure of `like`, or is `third(tape)`."""
        tape = Tape()
        joint = joint_named(self.kinds[kind].joint)
        changes = {
            name: Vec.of(tape.input((name, k)) for k in range(place_of(name).numbers))
            for name in self.inputs if is_parameter(name) and place_of(name).per
        }  # fmt: skip
        link = FramedLink.changed(self.kinds[kind], NumberSymbols(tape, self.kinds[kind], self.inputs), **changes)
        here = Here()
        for name in self.inputs:
            place = place_of(name)
            if place.per and not is_parameter(name) and name not in MEMBERS:
                setattr(here, name, place.wrap(tape.input((name, k)) for k in range(place.count(joint))))
        for name, structure in self.kept[kind].items():
            symbols = (tape.input(x.name) if isinstance(x, _Stored) else x for x in leaves(structure))
            setattr(here, name, rebuild(structure, symbols))
        near = third(tape) if third else None
        if like is not None:
            count = len(leaves(like))
            near = SimpleNamespace(**rebuild(like, (tape.input(("near", k)) for k in range(count))))
        hand, keep = step(link, here, near)
        outputs: dict[Any, Any] = {("hand", k): x for k, x in enumerate(leaves(hand))}
        for name, value in keep.items():
            places = [self._place(tape, x, (name, k)) for k, x in enumerate(leaves(value))]
            for k, (place, x) in enumerate(zip(places, leaves(value))):
                if place == _Stored(("kept", name, k, self.stage)):
                    outputs["kept", name, k, self.stage] = x
            self.kept[kind][name] = rebuild(value, iter(places))
        outputs |= self.algorithm.output.entries(keep)
        return hand, Code.of(tape, outputs)

    def _place(self, tape: Tape, x: Scalar, name: tuple[str, int]) -> Any:
        """How a later pass reads a scalar: as a literal, as a constant of the body, or from memory."""
        if name[0] not in self.in_memory:
            if not isinstance(x, Expr):
                return x
            op, input_name, _ = tape.nodes[x.i]
            if op == "in" and input_name[0] in ("number", "kept", *GIVEN):
                return _Stored(input_name)
        return _Stored(("kept", *name, self.stage))


@dataclass(frozen=True)
class _Stored:
    """A placeholder for a scalar that is read from an input."""

    name: tuple[Any, ...]


class NumberSymbols(dict):
    """A body's constants as symbols, made on demand; those that differ from state to state are inputs."""

    def __init__(self, tape: Tape, kind: Kind, inputs: Sequence[str] = ()) -> None:
        super().__init__(kind.known)
        self.tape = tape
        self.given = {name: (key, k) for key in GIVEN if key in inputs for k, name in enumerate(GIVEN[key])}

    def __missing__(self, name: str) -> Expr:
        return self.tape.input(self.given.get(name, ("number", name)))


def looped(algorithm: Algorithm, inputs: Sequence[str], kinds: Sequence[Kind], circles: bool = False) -> LoopCode:
    """Trace every pass for every kind of body; `circles`: see `prune`."""
    tracer = _Tracer(algorithm, inputs, kinds)
    passes: list[LoopPass] = []
    columns: LoopColumns | None = None
    like: Any = None
    for stage in algorithm.passes:
        if isinstance(stage, Sweep):
            like, traced = _sweep(tracer, stage)
            passes.append(traced)
        elif isinstance(stage, Columns):
            columns = _columns(tracer, stage)
    finish = _finish(tracer, like) if any(isinstance(part, AtBase) for part in parts_of(algorithm.output)) else None
    return prune(LoopCode(algorithm, tuple(inputs), tuple(kinds), tuple(passes), columns, finish), circles)


def _sweep(tracer: _Tracer, stage: Sweep) -> tuple[Any, LoopPass]:
    like, start = tracer.start(stage)
    codes = tuple(_code_at(tracer, stage, kind, like) for kind in range(len(tracer.kinds)))
    tracer.stage += 1
    return like, LoopPass(stage.outward, start, codes, tuple(range(len(leaves(like)))), tracer.stage - 1)


def _code_at(tracer: _Tracer, stage: Sweep, kind: int, like: Any) -> Code:
    """The step at a body of a kind.  Known root bodies are handed the values of the base, and hand on only values that
    are outputs."""
    if not tracer.kinds[kind].root:
        return tracer.step(stage.step, kind, like)[1]
    if stage.outward:
        return tracer.step(stage.step, kind, None, partial(_handed_by_base, tracer, stage))[1]
    code = tracer.step(stage.step, kind, like)[1]
    if any(isinstance(part, AtBase) for part in parts_of(tracer.algorithm.output)):
        return code
    tape = Tape()
    tape.nodes = list(code.nodes)
    return Code.of(tape, {name: 0.0 if name[0] == "hand" else Expr(tape, i) for name, i in code.outputs.items()})


def _handed_by_base(tracer: _Tracer, stage: Sweep, tape: Tape) -> SimpleNamespace:
    return SimpleNamespace(**stage.start(tracer.base(tape)))


def _columns(tracer: _Tracer, stage: Columns) -> LoopColumns:
    before = [dict(kept) for kept in tracer.kept]
    joints = [joint_named(kind.joint) for kind in tracer.kinds]
    rests = [stage.rest(j.nv) if stage.rest else {} for j in joints]
    # the outward pass reads the climb's values from memory, even if one of the climb's steps knew them as constants
    tracer.in_memory = {name for rest in rests for name in rest}
    starts, codes, like = {}, [], None
    path = isinstance(tracer.algorithm.output, Path)
    for kind, joint in enumerate(joints):
        for k in range(1 if path or stage.per_body else joint.nv):
            tracer.kept[kind] = dict(before[kind])
            like, starts[kind, k] = tracer.step(stage.start, kind, None, _tip if path else partial(_freedom, k))
    for kind in range(len(joints)):
        tracer.kept[kind] = dict(before[kind])
        codes.append(tracer.step(stage.climb, kind, like)[1])
    live = tuple(range(len(leaves(like))))
    if stage.outward is None:
        return LoopColumns(starts, tuple(codes), live, per_body=stage.per_body)
    sizes = {(name, len(leaves(x))) for rest in rests for name, x in rest.items()}
    names = {("kept", name, k, tracer.stage) for name, size in sizes for k in range(size)}
    tracer.stage += 1
    return LoopColumns(starts, tuple(codes), live, tuple(sorted(names)), _sweep(tracer, stage.outward)[1])


def _freedom(k: int, tape: Tape) -> int:
    return k


def _tip(tape: Tape) -> Rigid:
    """The placement of the frame where a path begins, on its body."""
    *R, p = ([tape.input(("base", "frame", 3 * i + j)) for j in range(3)] for i in range(4))
    return Rigid(Mat.of(R), Vec.of(p))


def _finish(tracer: _Tracer, like: Any) -> Code:
    tape = Tape()
    arrived = rebuild(like, (tape.input(("arrived", k, tracer.stage - 1)) for k in range(len(leaves(like)))))
    walk = Walk((), (), tracer.base(tape), (), arrived=arrived)
    a = tracer.algorithm
    if isinstance(a.output, Several):
        parts = {name: part.collect(walk) for name, part in a.output.parts.items() if isinstance(part, AtBase)}
        return Code.of(
            tape, {("out", name, *index): x for name, part in parts.items() for index, x in numbered(plain(part))}
        )
    result = a.output.collect(walk)
    result = a.then(result, walk) if a.then else result
    return Code.of(tape, {("out", *index): x for index, x in numbered(plain(result))})


# Pruning ---------------------------------------------------------------------------------------------------------


class _PassCode(NamedTuple):
    """A code, its pass or climb, and the outputs of the algorithm that it writes."""

    code: Code
    stage: Any
    writes: Callable[[Any], bool]

    def wanted(self, read: Collection[Any]) -> list[Any]:
        """The outputs that are read somewhere."""
        return [
            name for name in self.code.outputs
            if (name[0] in ("hand", "near") and ("near", name[1], self.stage) in read)
            or (name[0] == "kept" and name in read) or (name[0] == "out" and self.writes(name))
        ]  # fmt: skip

    def reads(self, read: Collection[Any]) -> set[Any]:
        """The inputs of these outputs; handed values are named ("near", k, stage), also those that arrived at the
        base."""
        full = {"near": lambda name: (*name, self.stage), "arrived": lambda name: ("near", *name[1:])}
        inputs = self.code.inputs_of(self.wanted(read))
        return {full[name[0]](name) if name[0] in full else name for name in inputs}

    def pruned(self, read: Collection[Any]) -> Code:
        return self.code.only(self.wanted(read))


CLIMB = "climb"


def prune(code: LoopCode, circles: bool = False) -> LoopCode:
    """Drop everything that no output needs: values handed on, kept or computed in vain.

    `circles`: keep values that are handed on only to compute themselves; segments of a chain read them at their ends.
    """
    passes, columns, outward = _steps_of_passes(code), _steps_of_climbs(code), _steps_of_outward(code)
    finish = [_PassCode(code.finish, None, _always)] if code.finish else []
    read = _needed([*(step for steps in passes for step in steps), *columns, *outward, *finish],
                   code.passes if circles else ())  # fmt: skip

    def live(stage: Any) -> tuple[int, ...]:
        return tuple(sorted(name[1] for name in read if name[0] == "near" and name[2] == stage))

    def pruned(p: LoopPass, steps: Sequence[_PassCode]) -> LoopPass:
        start, *codes = (step.pruned(read) for step in steps)
        return replace(p, start=start, codes=tuple(codes), live=live(p.stage))

    climbs = code.columns
    if climbs:
        codes = [step.pruned(read) for step in columns]
        climbs = replace(
            climbs, starts=dict(zip(climbs.starts, codes)), codes=tuple(codes[len(climbs.starts) :]), live=live(CLIMB),
            outward=pruned(climbs.outward, outward) if climbs.outward else None,
        )  # fmt: skip
    return replace(code, passes=tuple(map(pruned, code.passes, passes)), columns=climbs)


def _needed(steps: Sequence[_PassCode], circling: Sequence[LoopPass]) -> set[Any]:
    """The names of all values that are read, directly or indirectly, for an output.

    `circling`: passes whose handed values all count as read.
    """
    read: set[Any] = {("near", k, p.stage) for p in circling for k in p.live}
    if circling:
        read |= {name for step in steps for name in step.code.inputs}
    while (now := {name for step in steps for name in step.reads(read)}) != read:
        read = now
    return read


def _steps_of_passes(code: LoopCode) -> list[list[_PassCode]]:
    """The start and the kinds of every pass; if several passes keep the same output, the last one writes it."""
    giver = {
        (kind, name): p.stage
        for p in code.passes for kind, c in enumerate(p.codes) for name in c.outputs if name[0] == "out"
    }  # fmt: skip

    def writes(p: LoopPass, kind: int) -> Callable[[Any], bool]:
        return _never if code.columns else partial(_gives, giver, p.stage, kind)

    return [_steps_of(p, [writes(p, kind) for kind in range(len(p.codes))]) for p in code.passes]


def _steps_of_climbs(code: LoopCode) -> list[_PassCode]:
    if not code.columns:
        return []
    writes = _never if code.columns.outward else _always
    return [_PassCode(c, CLIMB, writes) for c in (*code.columns.starts.values(), *code.columns.codes)]


def _steps_of_outward(code: LoopCode) -> list[_PassCode]:
    outward = code.columns and code.columns.outward
    return _steps_of(outward, [_always] * len(outward.codes)) if outward else []


def _steps_of(p: LoopPass, writes: Sequence[Callable[[Any], bool]]) -> list[_PassCode]:
    return [_PassCode(p.start, p.stage, _never), *(_PassCode(c, p.stage, w) for c, w in zip(p.codes, writes))]


def _gives(giver: Mapping[Any, int], stage: int, kind: int, name: Any) -> bool:
    return giver[kind, name] == stage


def _always(name: Any) -> bool:
    return True


def _never(name: Any) -> bool:
    return False


def shape_of(code: Code) -> tuple[int, ...]:
    """The shape of an unrolled output."""
    return _extent([name[1:] for name in code.outputs])


def _extent(places: Collection[Sequence[int]]) -> tuple[int, ...]:
    """The shape of the smallest array with these indices."""
    indices = np.array(list(places), dtype=int)
    return tuple(int(k) + 1 for k in indices.max(axis=0)) if indices.size else ()
