"""Derivatives of loops: from the loops of an algorithm to those of its products with a Jacobian.

    jvp   the same passes, in which every scalar that is handed on or kept is followed by its tangent
    vjp   the passes, which also keep the scalars they were handed; then the passes in reverse order, an outward pass as
          an inward one: the cotangent of a scalar handed to the children is the sum of the cotangents that they return
          (copies and sums are each other's transpose)

Names in addition to those of `trace.py` (a pass of the derivative has its own number):

    ("kept", "near", k, stage)       the scalars that the pass `stage` was handed
    ("kept", "turn", k, stage)       its sines and cosines: read, not recomputed (keeping reciprocals is slower)
    ("kept", "~" name, k, reverse)   the cotangent of a kept value or an input, after that reverse pass
    ("kept", "d" name, k, stage)     the tangent of a kept value
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torsor.compiler.derivative import Derivative
from torsor.compiler.frames import Kind
from torsor.compiler.tape import Code, Expr, Node, Tape, operands
from torsor.compiler.tape_derivatives import (
    Replay,
    active_nodes,
    along_coordinates,
    along_freedoms,
    cotangent_of,
    scalars,
    summed,
)
from torsor.compiler.trace import CLIMB, LoopCode, LoopColumns, LoopPass, looped, prune
from torsor.inputs import is_parameter, place_of
from torsor.linalg import Vec
from torsor.model.joints import Joint, joint_named
from torsor.outputs import Several
from torsor.sweeps import Algorithm

Outputs = dict[Any, int]
TURNS = ("sin", "cos")


def looped_derivative(derivative: Derivative, inputs: Sequence[str], kinds: Sequence[Kind]) -> LoopCode:
    """The loops of a derivative, for bodies of these kinds."""
    code = _with_parameters(derivative, tuple(inputs), tuple(kinds), derivative.parameters)
    return _without_idle(_at_zero(replace(code, inputs=tuple(inputs))))


def _with_parameters(algorithm: Algorithm, inputs: Sequence[str], kinds: Sequence[Kind],
                     parameters: Sequence[str]) -> LoopCode:  # fmt: skip
    """The loops of an algorithm with its parameters as inputs, until all derivatives are taken."""
    if not isinstance(algorithm, Derivative):
        return looped(algorithm, (*inputs, *parameters), kinds)
    inner = [name for name in inputs if name not in algorithm.own_inputs]
    primal = _with_parameters(algorithm.primal, inner, kinds, parameters)
    return (_Forward if algorithm.mode == "jvp" else _Reverse)(primal, algorithm).code()


def _at_zero(code: LoopCode) -> LoopCode:
    """Set all parameters to zero and drop the products with them."""

    def at_zero(c: Code) -> Code:
        tape = Tape()
        again = Replay(c, tape, lambda name: tape.const(0.0) if is_parameter(name[0]) else None)
        return finished(tape, again.outputs)

    def of_pass(p: LoopPass) -> LoopPass:
        return replace(p, start=at_zero(p.start), codes=tuple(map(at_zero, p.codes)))

    climbs = code.columns
    if climbs:
        starts = {key: at_zero(c) for key, c in climbs.starts.items()}
        spread = climbs.outward and of_pass(climbs.outward)
        climbs = replace(climbs, starts=starts, codes=tuple(map(at_zero, climbs.codes)), outward=spread)
    finish = code.finish and at_zero(code.finish)
    return prune(replace(code, passes=tuple(map(of_pass, code.passes)), columns=climbs, finish=finish))


def _without_idle(code: LoopCode) -> LoopCode:
    """Remove passes that do nothing.  A pass joins the previous one if their directions agree or it hands nothing
    on."""
    passes: list[LoopPass] = []
    moved: dict[int, tuple[int, int]] = {}  # for each pass that joined another: that one, and where its scalars begin
    for p in code.passes:
        if not any(c.outputs for c in p.codes) and not p.live:
            continue
        last = passes[-1] if passes else None
        before = {moved.get(name[2], name[2:])[0] for name in p.start.inputs if name[0] == "arrived"}
        if last is None or last.stage in before or (p.live and p.outward != last.outward):
            passes.append(p)
            continue
        width = 1 + max(last.live, default=-1)
        moved[p.stage] = last.stage, width
        passes[-1] = replace(
            last, start=_joined(last.start, p.start, width), live=(*last.live, *(width + k for k in p.live)),
            codes=tuple(_joined(one, other, width) for one, other in zip(last.codes, p.codes)),
        )  # fmt: skip

    def arrived(name: Any) -> Any:
        stage, width = moved.get(name[2], (name[2], 0)) if name[0] == "arrived" else (None, 0)
        return ("arrived", width + name[1], stage) if stage is not None else name

    def renamed(c: Code) -> Code:
        tape = Tape()
        return finished(tape, Replay(c, tape, lambda name: tape.input(arrived(name)).i).outputs)

    starts = [replace(p, start=renamed(p.start)) for p in passes]
    return prune(replace(code, passes=tuple(starts), finish=code.finish and renamed(code.finish)))


def _joined(first: Code, second: Code, width: int) -> Code:
    """One code for both: the second reads what the first keeps; its own handed scalars begin at `width`."""
    tape = Tape()
    before = Replay(first, tape).outputs

    def shifted(name: Any) -> Any:
        return (name[0], width + name[1]) if name[0] in ("near", "hand") else name

    def value_of(name: Any) -> int:
        return before[name] if name[0] == "kept" and name in before else tape.input(shifted(name)).i

    after = Replay(second, tape, value_of).outputs
    return finished(tape, before | {shifted(name): i for name, i in after.items()})


def finished(tape: Tape, outputs: Outputs) -> Code:
    return Code.of(tape, {name: Expr(tape, i) for name, i in outputs.items()})


class _Activity:
    """Which scalars depend on the inputs to differentiate: those handed on (by pass) and those kept (by kind)."""

    def __init__(self, code: LoopCode, wrt: Collection[str]) -> None:
        self.wrt = wrt
        self.near: dict[Any, set[int]] = {}
        self.kept: list[set[Any]] = [set() for _ in code.kinds]
        for p in code.passes:
            self._follow(p.stage, [name[1] for name in self._outputs(p.start, set())], enumerate(p.codes))
        if climbs := code.columns:
            self._follow(CLIMB, (), [*((kind, c) for (kind, _), c in climbs.starts.items()), *enumerate(climbs.codes)])
            if spread := climbs.outward:
                start = [name[1] for name in self._outputs(spread.start, set())]
                self._follow(spread.stage, start, enumerate(spread.codes))

    def _follow(self, stage: Any, start: Iterable[int], codes: Iterable[tuple[int, Code]]) -> None:
        """Find the active scalars that the steps (kind, code) of a pass hand on and keep, from its start values."""
        near, steps = self.near.setdefault(stage, set(start)), list(codes)
        while True:
            outputs = [(kind, self._outputs(c, self.inputs(c, kind, stage))) for kind, c in steps]
            more = {name[1] for _, names in outputs for name in names if name[0] == "hand"}
            if more <= near:
                break
            near |= more
        for kind, names in outputs:
            self.kept[kind] |= {name for name in names if name[0] == "kept"}

    def inputs(self, code: Code, kind: int, stage: Any) -> set[Any]:
        """The active inputs of a step."""
        near, kept = self.near[stage], self.kept[kind]
        return {
            name for name in code.inputs
            if (name[0] == "near" and name[1] in near) or name in kept or name[0] in self.wrt
        }  # fmt: skip

    def at_base(self, code: Code) -> set[Any]:
        """The active inputs of a code at the base."""
        arrived = {name for name in code.inputs if name[0] == "arrived" and name[1] in self.near[name[2]]}
        return arrived | {name for name in code.inputs if name[0] in self.wrt}

    def _outputs(self, code: Code, active: set[Any]) -> list[Any]:
        on = active_nodes(code, active | {name for name in code.inputs if name[0] in self.wrt})
        return [name for name, i in code.outputs.items() if on[i]]


# Forward -------------------------------------------------------------------------------------------------------


class _Forward:
    """Loops in which every active scalar is followed by its tangent."""

    def __init__(self, code: LoopCode, derivative: Derivative) -> None:
        self.primal, self.derivative = code, derivative
        self.active = _Activity(code, derivative.wrt)

    def code(self) -> LoopCode:
        primal = self.primal
        finish = None
        if primal.finish:
            tape = Tape()
            outputs = self._at_base(primal.finish, tape)
            finish = finished(tape, {name: tangent for name, (_, tangent) in outputs.items()})
        return prune(LoopCode(
            self.derivative, (*primal.inputs, *self.derivative.own_inputs), primal.kinds,
            tuple(map(self._pass, primal.passes)), primal.columns and self._columns(primal.columns), finish,
        ))  # fmt: skip

    def _width(self, stage: Any) -> int:
        """The index where the tangents begin among the scalars handed on."""
        climbs = self.primal.columns
        if climbs and stage == CLIMB:
            return 1 + max(climbs.live, default=-1)
        passes = [*self.primal.passes, *([climbs.outward] if climbs and climbs.outward else [])]
        return next(1 + max(p.live, default=-1) for p in passes if p.stage == stage)

    def _columns(self, c: LoopColumns) -> LoopColumns:
        width = self._width(CLIMB)
        return replace(
            c, starts={(kind, k): self._step(code, kind, CLIMB) for (kind, k), code in c.starts.items()},
            codes=tuple(self._step(code, kind, CLIMB) for kind, code in enumerate(c.codes)),
            live=(*c.live, *(width + k for k in c.live)),
            rest=(*c.rest, *((first, f"d{what}", *more) for first, what, *more in c.rest)),
            outward=c.outward and self._pass(c.outward),
        )  # fmt: skip

    def _pass(self, p: LoopPass) -> LoopPass:
        width, tape, start = self._width(p.stage), Tape(), Outputs()
        for (near, k), (x, tangent) in self._at_base(p.start, tape).items():
            start |= {(near, k): x, (near, width + k): tangent}
        codes = tuple(self._step(c, kind, p.stage) for kind, c in enumerate(p.codes))
        live = (*p.live, *(width + k for k in p.live))
        return replace(p, start=finished(tape, start), codes=codes, live=live)

    def _at_base(self, code: Code, tape: Tape) -> dict[Any, tuple[int, int]]:
        """The outputs of a code at the base, and their tangents."""

        def tangent(name: Any) -> int:
            first, k, *stage = name
            return tape.input((first, self._width(stage[0]) + k, *stage) if stage else (f"d{first}", k)).i

        again = Replay(code, tape)
        tangents = again.push({name: tangent(name) for name in self.active.at_base(code)})
        zero = tape.const(0.0)
        return {name: (again.at[i], tangents.get(i, zero)) for name, i in code.outputs.items()}

    def _step(self, code: Code, kind: int, stage: Any) -> Code:
        tape, width = Tape(), self._width(stage)
        joint = joint_named(self.primal.kinds[kind].joint)
        again = Replay(code, tape)

        def tangent(name: Any) -> int:
            match name:
                case ("near", k):
                    return tape.input(("near", width + k)).i
                case ("kept", what, k, kept):
                    return tape.input(("kept", f"d{what}", k, kept)).i
                case ("q", k) if not joint.flat:
                    q, dq = (symbols_of(tape, name, joint) for name in ("q", "dq"))
                    return tape.node_of(along_coordinates(joint, q, dq)[k])
            return tape.input((f"d{name[0]}", *name[1:])).i

        tangents = again.push({name: tangent(name) for name in self.active.inputs(code, kind, stage)})
        zero = tape.const(0.0)
        outputs: Outputs = {}
        for name, i in code.outputs.items():
            x, dx = again.at[i], tangents.get(i, zero)
            match name:
                case ("hand", k):
                    outputs |= {name: x, ("hand", width + k): dx}
                case ("kept", what, k, kept):
                    outputs |= {name: x, ("kept", f"d{what}", k, kept): dx}
                case _:
                    outputs[name] = dx
        return finished(tape, outputs)


# Reverse -------------------------------------------------------------------------------------------------------


@dataclass
class _Adjoint:
    """The adjoint of a step, under construction."""

    tape: Tape
    outputs: Outputs
    found: dict[Any, int] = field(default_factory=dict)  # the cotangents of inputs and kept values, so far


class _Reverse:
    """Loops followed by their adjoint."""

    def __init__(self, code: LoopCode, derivative: Derivative) -> None:
        # only a vjp reads at the base what arrived there before the end, and a vjp is not differentiated again
        assert not any(name[0] == "arrived" for p in code.passes for name in p.start.inputs)
        self.primal, self.derivative, self.kinds = code, derivative, range(len(code.kinds))
        self.active = _Activity(code, derivative.wrt)
        self.stage = 1 + max(p.stage for p in code.passes)  # the number of the next reverse pass
        # by kind: the name under which the cotangent of an input or a kept value is kept
        self.latest: list[dict[Any, Any]] = [{} for _ in code.kinds]
        self.steps: dict[int, list[_Adjoint]] = {}  # by reverse pass and kind
        self.reverse_of: dict[int, int] = {}  # the reverse pass of a pass
        self.implied: dict[int, dict[int, Code]] = {}  # by pass: see `_implied`

    def code(self) -> LoopCode:
        reversed_ = [self._reversed(p) for p in reversed(self.primal.passes)]
        self._put_out()
        passes = [*map(self._keeping, self.primal.passes)]
        for p in reversed_:
            passes.append(replace(p, codes=tuple(finished(a.tape, a.outputs) for a in self.steps[p.stage])))
        inputs = (*self.primal.inputs, *self.derivative.own_inputs)
        return prune(
            LoopCode(self.derivative, inputs, self.primal.kinds, tuple(passes), None, self._finish())
        )  # fmt: skip

    def _keeping(self, p: LoopPass) -> LoopPass:
        """A pass that keeps whatever its adjoint may read; the outputs of the primal are not needed."""
        codes = []
        for c in p.codes:
            outputs = {name: i for name, i in c.outputs.items() if name[0] != "out"}
            near = {i: node.a[1] for i, node in enumerate(c.nodes) if node.op == "in" and node.a[0] == "near"}
            outputs |= {("kept", "near", k, p.stage): i for i, k in near.items()}
            outputs |= {("kept", "turn", k, p.stage): i for k, i in enumerate(_turns(c))}
            codes.append(Code(c.nodes, outputs))
        return replace(p, codes=tuple(codes))

    def _reversed(self, p: LoopPass) -> LoopPass:
        """The adjoint of a pass; its steps go to `self.steps`."""
        stage, self.stage = self.stage, self.stage + 1
        self.reverse_of[p.stage] = stage
        start = self._start(p)
        returning = {name[1] for name, i in start.outputs.items() if start.nodes[i] != Node("const", 0.0)}
        while True:  # until the set of nonzero cotangents of handed scalars is stable
            steps = [self._step(c, kind, p, returning) for kind, c in enumerate(p.codes)]
            more = {name[1] for a in steps for name in a.outputs if name[0] == "hand"}
            if more <= returning:
                break
            returning |= more
        for kind, a in enumerate(steps):
            for k in p.live:
                a.outputs.setdefault(("hand", k), a.tape.const(0.0))
            for name, g in a.found.items():
                kept = self.latest[kind][name] = ("kept", f"~{_label(name)}", _entry(name), stage)
                a.outputs[kept] = g
        self.steps[stage] = steps
        return LoopPass(not p.outward, start, (), p.live, stage)

    def near_of(self, p: LoopPass) -> Callable[[Tape, Any], int | None]:
        """The scalars that a step was handed: read from memory, or computed from other handed scalars."""
        if p.stage not in self.implied:
            self.implied[p.stage] = _implied(p)
        implied = self.implied[p.stage]

        def near(tape: Tape, name: Any) -> int | None:
            if name[0] != "near":
                return None
            if name[1] in implied:
                return Replay(implied[name[1]], tape, lambda name: near(tape, name)).outputs[name]
            return tape.input(("kept", "near", name[1], p.stage)).i

        return near

    def _start(self, p: LoopPass) -> Code:
        """The cotangents of the values that arrived at the base; zero at the tips."""
        tape, found = Tape(), {}
        if self.primal.finish:
            found = self._pull_finish(tape)
        zero = tape.const(0.0)
        return finished(tape, {("near", k): found.get(("arrived", k, p.stage), zero) for k in p.live})

    def _pull_finish(self, tape: Tape) -> Outputs:
        """The cotangents of all values at the base that the final code reads."""
        finish = self.primal.finish
        assert finish
        again = Replay(finish, tape)
        seeds = ((i, cotangent_of(self.derivative, tape, name)) for name, i in finish.outputs.items())
        return again.pull(summed(tape, seeds), self.active.at_base(finish))

    def _step(self, code: Code, kind: int, p: LoopPass, returning: Collection[int]) -> _Adjoint:
        """The adjoint of a step, given which cotangents of its handed scalars are not zero."""
        tape, latest = Tape(), self.latest[kind]
        near = self.near_of(p)
        again = Replay(code, tape, lambda name: near(tape, name), _known(code, tape, p.stage))

        def seeds() -> Iterable[tuple[int, int]]:
            for name, i in code.outputs.items():
                if name[0] == "hand" and name[1] in returning:
                    yield i, tape.input(("near", name[1])).i
                elif name[0] == "kept" and name in latest:
                    yield i, tape.input(latest[name]).i
                elif name[0] == "out":
                    yield i, cotangent_of(self.derivative, tape, name)

        pulled = again.pull(summed(tape, seeds()), self.active.inputs(code, kind, p.stage))
        result = _Adjoint(tape, {})
        for name, g in pulled.items():
            if name[0] == "near":
                result.outputs["hand", name[1]] = g
            else:
                result.found[name] = tape.add(tape.input(latest[name]).i, g) if name in latest else g
        return result

    def _put_out(self) -> None:
        """Make the cotangent of an input an output where it is complete."""
        for name in self.derivative.wrt:
            if not place_of(name).per:
                continue
            for kind in self.kinds:
                joint = joint_named(self.primal.kinds[kind].joint)
                stages = [stage for stage, steps in self.steps.items() if any(x[0] == name for x in steps[kind].found)]
                a = self.steps[max(stages or self.steps)][kind]
                q, count = symbols_of(a.tape, "q", joint), place_of(name).count(joint)
                values = scalars(a.tape, (self._complete(a, kind, (name, k)) for k in range(count)))
                if name == "q":
                    values = along_freedoms(joint, q, values)
                for k, x in enumerate(values):
                    a.outputs[self._output(name, k)] = a.tape.node_of(x)

    def _complete(self, a: _Adjoint, kind: int, name: Any) -> int:
        """The cotangent of an input after the last pass that adds to it."""
        if name in a.found:
            return a.found[name]
        return a.tape.input(self.latest[kind][name]).i if name in self.latest[kind] else a.tape.const(0.0)

    def _finish(self) -> Code | None:
        """The cotangents of the inputs that belong to the base."""
        names = [name for name in self.derivative.wrt if not place_of(name).per]
        if not names:
            return None
        tape = Tape()
        total: Outputs = self._pull_finish(tape) if self.primal.finish else {}
        for p in self.primal.passes:
            if not p.outward:
                continue
            again = Replay(p.start, tape)
            stage = self.reverse_of[p.stage]
            seeds = ((i, tape.input(("arrived", near[1], stage)).i) for near, i in p.start.outputs.items())
            for name, g in again.pull(summed(tape, seeds), self.active.at_base(p.start)).items():
                total[name] = tape.add(total[name], g) if name in total else g
        zero = tape.const(0.0)
        entries = ((name, k) for name in names for k in range(place_of(name).sizes(0)[0]))
        return finished(tape, {self._output(name, k): total.get((name, k), zero) for name, k in entries})

    def _output(self, name: str, k: int) -> Any:
        """The name of a number of the output."""
        return ("out", name, k) if isinstance(self.derivative.output, Several) else ("out", k)


# A handed scalar is recomputed, not kept, if this many operations on other handed scalars suffice.  In Newton-Euler
# this applies to Omega = [dw] + [w]^2, a third of the kept values.
FEW = 4


def _implied(p: LoopPass) -> dict[int, Code]:
    """Scalars that an outward pass hands on, as functions of other handed scalars: ("near", j) -> ("near", k)."""
    if not p.outward:
        return {}
    implied: dict[int, Code] = {}
    for k in p.live:
        first, *others = (_from_handed(c, k, [j for j in p.live if j not in implied]) for c in p.codes)
        if first is not None and all(other == first for other in others):
            tape = Tape()
            start = Replay(p.start, tape).outputs
            if Replay(first, tape, start.get).outputs["near", k] == start["near", k]:
                implied[k] = first
    return implied


def _from_handed(code: Code, k: int, handed: Sequence[int]) -> Code | None:
    """Scalar k that a step hands on, from earlier operations that it also hands on; None if that is not possible."""
    end, tape = code.outputs["hand", k], Tape()
    known = {code.outputs["hand", j]: j for j in reversed(handed) if code.outputs["hand", j] < end}

    @functools.cache
    def again(i: int) -> int | None:
        op, *_ = code.nodes[i]
        if i in known:
            return tape.input(("near", known[i])).i
        if op in ("in", "const", *TURNS):
            return None
        read = [again(j) for j in operands(code.nodes[i])]
        return None if None in read else tape.again(op, *(*read, None)[:2])

    node = again(end)
    if node is None or sum(n.op != "in" for n in tape.nodes) > FEW:
        return None
    return finished(tape, {("near", k): node})


def _known(code: Code, tape: Tape, stage: int) -> dict[int, int]:
    """Operations that the adjoint reads from memory: kept values, and sines and cosines."""
    known = {i: tape.input(("kept", "turn", k, stage)).i for k, i in enumerate(_turns(code))}
    for name, i in code.outputs.items():
        if name[0] == "kept" and code.nodes[i].op not in ("in", "const"):
            known[i] = tape.input(name).i
    return known


def _turns(code: Code) -> list[int]:
    kept = {i for name, i in code.outputs.items() if name[0] == "kept"}
    return [i for i, node in enumerate(code.nodes) if node.op in TURNS and i not in kept]


def _label(name: Any) -> str:
    """The label of a kept value or an input."""
    return f"{name[1]}.{name[3]}" if name[0] == "kept" else name[0]


def _entry(name: Any) -> int:
    return name[2] if name[0] == "kept" else name[1]


def symbols_of(tape: Tape, name: str, joint: Joint) -> Vec:
    """A body's part of an input."""
    return Vec.of(tape.input((name, k)) for k in range(place_of(name).count(joint)))
