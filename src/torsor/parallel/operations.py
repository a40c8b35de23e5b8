"""The operations of the schedule of a chain: `torsor.algorithms.constraint_force` on flat numbers.

They depend on the kind of the bodies (joint type and form of placement) and on the size of a block, never on the
model, so all models share them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torsor.algorithms import constraint_force as cf
from torsor.backends.pointwise import trace
from torsor.compiler.frames import FramedLink, Kind
from torsor.compiler.tape import Expr, Tape
from torsor.compiler.trace import NumberSymbols, leaves, rebuild
from torsor.inputs import place_of
from torsor.linalg import Mat, Scalar, Vec, factor
from torsor.model.joints import joint_named
from torsor.parallel.schedule import Operation
from torsor.spatial import Inertia, Spatial
from torsor.sweeps import Here

RADIX = 4  # runs joined by one operation: half as many levels as with 2, at 1.5 times their critical path
TURN = 12  # numbers of a `Turn`
SIDE = 27  # numbers of an inertia and a wrench


def input_shapes(kind: Kind, inputs: Sequence[str]) -> dict[str, int]:
    """The count of numbers of each input for one body of a kind."""
    joint = joint_named(kind.joint)
    return {name: place_of(name).count(joint) for name in inputs}


def is_loaded(kind: Kind, inputs: Sequence[str]) -> bool:
    """Whether the joints of a kind have rotors."""
    return kind.rotors or "added_inertia" in inputs


def bodies(kind: Kind, names: Sequence[str], numbers: Sequence[Sequence[Scalar]],
           given: Mapping[str, Sequence[Sequence[Scalar]]]) -> tuple[list[FramedLink], list[Here]]:  # fmt: skip
    """The links of a run and the known values at each, from rows of numbers."""
    links = [FramedLink.of(kind, _Table([*kind.known, *zip(names, row)])) for row in numbers]
    here = [Here() for _ in links]
    for name, rows in given.items():
        for h, row in zip(here, rows):
            setattr(h, name, place_of(name).wrap(row))
    return links, here


class _Table(dict):
    """A body's constants by name.  An unused constant may be missing; it then reads as zero."""

    def __missing__(self, name: str) -> float:
        return 0.0


@functools.cache
def constants_of(kind: Kind, external: bool) -> tuple[str, ...]:
    """The names of the constants for bodies of a kind."""
    tape = Tape()
    link = FramedLink.of(kind, NumberSymbols(tape, kind))
    scalars = leaves((link.M, link.exp(Vec.of([tape.input("q")] * link.joint.nq)), link.inertia, link.second_moment))
    scalars += [*link.armature, *([link.pitch] if link.joint.has_pitch else [])]
    scalars += leaves(link.body_frame()) if external else []
    used, nodes = set(), [x.i for x in scalars if isinstance(x, Expr)]
    while nodes:
        op, a, b = tape.nodes[nodes.pop()]
        if op == "in" and a[0] == "number":
            used.add(a[1])
        elif op not in ("in", "const"):
            nodes += [k for k in (a, b) if k is not None]
    return tuple(sorted(used))


# Runs of bodies ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RunOperation:
    """An operation on a run, and the constants of its bodies that it takes, as rows of its first input."""

    operation: Operation
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class RunOperations:
    """The operations on runs of `length` bodies of one kind."""

    turn: RunOperation  # -> Turn
    handle: RunOperation  # -> reactions, unit torques and the torque's wrench of the first joint
    condense: RunOperation  # -> Segment, and the kept values
    release: RunOperation  # -> acceleration of the last body, joint accelerations
    settle: Operation  # -> joint accelerations
    kept: int  # numbers kept between `condense` and `release`


@functools.cache
def run_operations(kind: Kind, length: int, size: int, inputs: tuple[str, ...], branched: bool) -> RunOperations:
    """The operations on runs of `length` bodies of a kind, for a problem with these inputs.

    branched: every body takes the inertia and wrench of its side branches.
    """
    shapes = {name: (length, n) for name, n in input_shapes(kind, inputs).items()}
    torque = "tau" if "tau" in inputs else "b"
    moving = "v" in inputs
    nv, loaded = joint_named(kind.joint).nv, is_loaded(kind, inputs)
    every = constants_of(kind, "external" in inputs)

    def turn(names: Sequence[str], numbers: Any, q: Any, v: Any) -> list[Scalar]:
        R, w = cf.turn_of(*bodies(kind, names, numbers, {"q": q, "v": v}))
        return [*(x for row in R for x in row), *w]

    def handle(names: Sequence[str], numbers: Any, q: Any, tau: Any) -> list[list[Scalar]]:
        (link,), (h,) = bodies(kind, names, numbers, {"q": q})
        R, T = cf.handle(link, h, size, loaded)
        return [list(x.coordinates) for x in (cf.combine(T, tau[0]), *R, *T)]

    def condensed(names: Sequence[str], numbers: Any, *rest: Any) -> cf.Condensed:
        links, here = bodies(kind, names, numbers, dict(zip(inputs, rest)))
        more = list(rest[len(inputs) :])
        w = Vec.of(more.pop(0)) if moving else None
        if branched:
            here[0].side = side_load(more.pop(0))
        load, *tip = (Spatial.of(row) for row in more.pop(0))
        return cf.condense_run(links, here, w, tip, load, size, loaded)

    extra: dict[str, tuple[int, ...]] = {"w": (3,)} if moving else {}
    extra |= {"side": (SIDE,)} if branched else {}
    extra["handle"] = (1 + size, 6)
    layout = _lay_out(condensed, every, {"numbers": (length, len(every)), **shapes, **extra})

    def condense(names: Sequence[str], numbers: Any, *rest: Any) -> list[Scalar]:
        segment, run, _ = condensed(names, numbers, *rest)
        scalars = leaves(run)
        return [*segment.pack(), *(scalars[k] for k in layout.kept)]

    def release(names: Sequence[str], numbers: Any, segment: Any, kept: Any, first: Any, last: Any) -> list[Scalar]:
        links, _ = bodies(kind, names, numbers, {})
        run = layout.restore([link.numbers for link in links], kept)
        qdd, A = cf.release(links, run, cf.Segment.unpack(segment, size), Vec.of(first), Vec.of(last))
        return [*A.coordinates, *(x for row in qdd for x in row)]

    def settle(torques: Any, A: Any, qdd: Any) -> list[Scalar]:
        first = cf.first_joint_acceleration([Spatial.of(t) for t in torques], Spatial.of(A), qdd[:nv])
        return [*first, *qdd[nv:]]

    make = functools.partial(_with_constants, every)
    rest = {
        "segment": (cf.Segment.length(size),), "kept": (len(layout.kept),), "first": (size,), "last": (size,)
    }  # fmt: skip
    return RunOperations(
        turn=make(turn, length, {"q": shapes["q"], "v": (length, nv)}),
        handle=make(handle, 1, {"q": (1, shapes["q"][1]), torque: (1, nv)}),
        condense=make(condense, length, {**shapes, **extra}),
        release=make(release, length, rest),
        settle=Operation("settle", settle, {"torques": (nv, 6), "A": (6,), "qdd": (length * nv,)}),
        kept=len(layout.kept),
    )


def _with_constants(every: tuple[str, ...], function: Callable[..., Any], length: int,
                    more: Mapping[str, tuple[int, ...]]) -> RunOperation:  # fmt: skip
    """The operation, with a table of only the constants that it uses."""

    def with_table(names: tuple[str, ...]) -> Operation:
        given = functools.update_wrapper(functools.partial(function, names), function)
        return Operation(function.__name__, given, {"numbers": (length, len(names)), **more})

    used = {name[2] for name in with_table(every).code.inputs if name[0] == "numbers"}
    names = tuple(every[k] for k in sorted(used)) or every[:1]  # a table must not be empty
    return RunOperation(with_table(names), names)


@dataclass(frozen=True, eq=False)
class RunDeterminant:
    """The operations of log det M on runs of bodies of one kind."""

    handle: RunOperation  # -> reactions of the first joint
    condense: RunOperation  # -> Segment, and the logarithm of its pivots


@functools.cache
def run_determinant(kind: Kind, length: int, size: int) -> RunDeterminant:
    joint = joint_named(kind.joint)

    def handle(names: Sequence[str], numbers: Any, q: Any) -> list[list[Scalar]]:
        (link,), (h,) = bodies(kind, names, numbers, {"q": q})
        return [list(x.coordinates) for x in cf.handle(link, h, size, kind.rotors).reactions]

    def condense(names: Sequence[str], numbers: Any, q: Any, tip: Any) -> list[Scalar]:
        links, here = bodies(kind, names, numbers, {"q": q, "b": [[0.0] * joint.nv] * length})
        tips = [Spatial.of(row) for row in tip]
        found = cf.condense_run(links, here, None, tips, Spatial.zero(), size, kind.rotors)
        return [*found.segment.pack(), cf.log_product(found.pivots)]

    make = functools.partial(_with_constants, constants_of(kind, external=False))
    return RunDeterminant(
        make(handle, 1, {"q": (1, joint.nq)}), make(condense, length, {"q": (length, joint.nq), "tip": (size, 6)})
    )


@dataclass(frozen=True)
class _Number:
    """A scalar that is among the constants of a body."""

    body: int
    name: str


@dataclass(frozen=True)
class _Kept:
    """A scalar that is kept, as number `place`."""

    place: int


@dataclass(frozen=True)
class _Layout:
    """How to keep a `Run`: the scalars to store, and where to read each of them."""

    like: cf.Run  # of plain numbers, `_Number`s and `_Kept`s
    kept: tuple[int, ...]  # places among all its scalars

    def restore(self, numbers: Sequence[Mapping[str, Scalar]], kept: Sequence[Scalar]) -> cf.Run:
        def value(x: Any) -> Scalar:
            if isinstance(x, _Number):
                return numbers[x.body][x.name]
            return kept[x.place] if isinstance(x, _Kept) else x

        return rebuild(self.like, iter([value(x) for x in leaves(self.like)]))


def _lay_out(condensed: Callable[..., Any], names: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> _Layout:
    """Keep every scalar that is not a plain number, not a constant of the run and not already kept."""
    runs: list[cf.Run] = []

    def look(*arguments: Any) -> list[Scalar]:
        segment, run, _ = condensed(names, *arguments)
        runs.append(run)
        return segment.pack()

    trace(look, shapes)
    kept: list[int] = []
    order: dict[int, int] = {}

    def place(k: int, x: Scalar) -> Any:
        if not isinstance(x, Expr):
            return x
        op, name, _ = x.tape.nodes[x.i]
        if op == "in" and name[0] == "numbers":
            return _Number(name[1], names[name[2]])
        if x.i not in order:
            order[x.i] = len(kept)
            kept.append(k)
        return _Kept(order[x.i])

    places = [place(k, x) for k, x in enumerate(leaves(runs[0]))]
    return _Layout(rebuild(runs[0], iter(places)), tuple(kept))


class Side:
    """The contributions of the side branches to a body."""

    def __init__(self, I: Inertia, F: Spatial) -> None:
        self.I, self.F = I, F


def side_load(numbers: Sequence[Scalar]) -> Side:
    I, F = rebuild((Inertia.zero(), Spatial.zero()), iter(numbers))
    return Side(I, F)


# Trees of runs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TreeOperations:
    compose: Operation  # Turns -> Turn
    spread: Operation  # Turns, ω before the first -> ω before each
    join: Operation  # Segments -> Segment, and the eliminated reactions
    start: Operation  # the whole chain, the base's acceleration -> lambda at the base
    split: Operation  # the eliminated reactions, lambda at both ends -> lambda before each
    measure: Operation  # Segments with the logarithms of their pivots -> Segment, logarithm
    total: Operation  # the whole chain -> log det M


@functools.cache
def tree_operations(size: int) -> TreeOperations:
    """The operations that are independent of the kind of the bodies."""
    S, J = cf.Segment.length(size), cf.Joined.length(size)

    def compose(parts: Any) -> list[Scalar]:
        turns = [_turn(part) for part in parts]
        R, w = functools.reduce(cf.Turn.then, turns)
        return [*(x for row in R for x in row), *w]

    def spread(parts: Any, w: Any) -> list[list[Scalar]]:
        spins = [Vec.of(w)]
        for part in parts[:-1]:
            spins.append(_turn(part).after(spins[-1]))
        return [list(row) for row in zip(*spins)]

    def join(parts: Any) -> list[Scalar]:
        whole, joined = cf.join_all([cf.Segment.unpack(part, size) for part in parts])
        return [*whole.pack(), *(x for j in joined for x in j.pack())]

    def start(whole: Any, handle: Any, A: Any) -> list[Scalar]:
        alpha = Mat.of(handle) @ A
        return list(cf.first_reaction(cf.Segment.unpack(whole, size), alpha))

    def split(joined: Any, first: Any, last: Any) -> list[list[Scalar]]:
        parts = [cf.Joined.unpack(joined[k : k + J], size) for k in range(0, len(joined), J)]
        between = cf.reactions_between(parts, RADIX, Vec.of(first), Vec.of(last))
        return [list(row) for row in zip(*between)]

    def measure(parts: Any) -> list[Scalar]:
        whole, joined = cf.join_all([cf.Segment.unpack(part, size) for part in parts])
        before = functools.reduce(lambda x, y: x + y, (part[-1] for part in parts))
        return [*whole.pack(), before + cf.log_product([x for j in joined for x in j.pivots])]

    def total(whole: Any) -> list[Scalar]:
        return [whole[-1] + cf.log_product(factor(cf.Segment.unpack(whole, size).C11)[1])]

    return TreeOperations(
        compose=Operation("compose", compose, {"parts": (RADIX, TURN)}),
        spread=Operation("spread", spread, {"parts": (RADIX, TURN), "w": (3,)}),
        join=Operation("join", join, {"parts": (RADIX, S)}),
        start=Operation("start", start, {"whole": (S,), "handle": (size, 6), "A": (6,)}),
        split=Operation("split", split, {"joined": ((RADIX - 1) * J,), "first": (size,), "last": (size,)}),
        measure=Operation("measure", measure, {"parts": (RADIX, S + 1)}),
        total=Operation("total", total, {"whole": (S + 1,)}),
    )


def _turn(numbers: Sequence[Scalar]) -> cf.Turn:
    return cf.Turn(Mat.of(numbers[k : k + 3] for k in (0, 3, 6)), Vec.of(numbers[9:]))
