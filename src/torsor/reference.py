"""The reference engine: an algorithm run step by step on plain scalars.  It is slow and simple: the oracle of the
tests.

The inputs determine the scalars: floats, longdoubles, mpmath numbers, CasADi symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from torsor.inputs import BASE, PLACES, place_of
from torsor.linalg import Scalar, Vec
from torsor.model.links import Link, links
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.outputs import plain
from torsor.sweeps import Algorithm, Columns, Here, Step, Sweep, Walk, Whole, run


def evaluate(algorithm: Algorithm, model: Model, inputs: Mapping[str, Sequence[Scalar]], *, frame: Frame | None = None,
             number: Callable[[float], Scalar] = float) -> Any:  # fmt: skip
    """The output of an algorithm at one state: a scalar, a list or nested lists, according to its type.

    `inputs` are flat sequences by name (external: six numbers per body); `number` converts the model's constants;
    `frame` is the frame of a Jacobian.
    """
    return _evaluate(algorithm, model, links(model, number), inputs, frame, number)


def _evaluate(algorithm: Algorithm, model: Model, bodies: Sequence[Link], inputs: Mapping[str, Sequence[Scalar]],
              frame: Frame | None, number: Callable[[float], Scalar]) -> Any:  # fmt: skip
    base = base_of([number(g) for g in model.gravity.tolist()], inputs)
    here = scatter(model, inputs)
    return plain(run(algorithm, bodies, model.parent.tolist(), base, here, frame, model.couplings))


def base_of(gravity: Sequence[Scalar], inputs: Mapping[str, Sequence[Scalar]] = MappingProxyType({})) -> Here:
    """The values at the base that steps can read: gravity, and the inputs that belong to the base."""
    base = Here(gravity=Vec.of(gravity))
    for name, values in inputs.items():
        if PLACES.get(name) is BASE:
            setattr(base, name, BASE.wrap(values))
    return base


def scatter(model: Model, inputs: Mapping[str, Sequence[Scalar]]) -> list[Here]:
    """One `Here` per body, holding its own part of every input."""
    here = [Here() for _ in range(model.n)]
    for name, values in inputs.items():
        place = place_of(name)
        if place.per:
            for h, part in zip(here, place.parts(model, values)):
                setattr(h, name, part)
    return here


# What each step reads and keeps ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepRecord:
    """One call of a step: at one body, in one pass.  Values are those that the step got (`torsor.spatial`)."""

    number: int  # of the pass, from 1
    sweep: str  # the name of its step
    direction: str  # "outward", "inward", "climb", or "whole": one function for all bodies
    says: str  # the first line of the step's docstring, usually the equation
    body: int
    freedom: int | None  # where the climb began
    received: dict[str, Any] = field(default_factory=dict)  # the values it read from the neighbours
    read: dict[str, Any] = field(default_factory=dict)  # the inputs it read, and values that earlier passes kept here
    kept: dict[str, Any] = field(default_factory=dict)
    handed: dict[str, Any] = field(default_factory=dict)


class _Watched:
    """Values by name that records which of them are read."""

    def __init__(self, values: Any, read: dict[str, Any]) -> None:
        self._values, self._read = values, read

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._values, name)
        if value is not None:  # an optional input that is missing
            self._read[name] = value
        return value


class StepRecorder:
    """Runs an algorithm by the reference engine and keeps a `StepRecord` of every step."""

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self.model = model
        self.freedom: int | None = None
        self.records: dict[tuple[int, str, int | None, int], StepRecord] = {}  # outputs may repeat a climb
        self.algorithm = replace(
            algorithm, passes=tuple(self._watched(number, one) for number, one in enumerate(algorithm.passes, 1))
        )

    def evaluate(self, inputs: Mapping[str, Sequence[Scalar]], *, frame: Frame | None = None,
                 number: Callable[[float], Scalar] = float) -> Any:  # fmt: skip
        """`evaluate`, while recording."""
        bodies = links(self.model, number)
        self.places = {id(link): i for i, link in enumerate(bodies)}
        return _evaluate(self.algorithm, self.model, bodies, inputs, frame, number)

    def _watched(self, number: int, one: Sweep | Columns | Whole) -> Sweep | Columns | Whole:
        if isinstance(one, Whole):
            return Whole(self._whole(number, one.run))
        if isinstance(one, Sweep):
            direction = "outward" if one.outward else "inward"
            return replace(one, step=self._step(number, one.step, direction))
        spread = one.outward and replace(one.outward, step=self._step(number, one.outward.step, "outward"))
        climb = self._step(number, one.climb, "climb")
        return replace(one, start=self._start(number, one.start, one.per_body), climb=climb, outward=spread)

    def _step(self, number: int, step: Step, direction: str) -> Step:
        def watched(link: Link, here: Any, near: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            read: dict[str, Any] = {}
            received: dict[str, Any] = {}
            hand, keep = step(link, _Watched(here, read), _Watched(near, received))
            self._note(
                StepRecord(
                    number, *_named(step, direction), self.places[id(link)], self.freedom, received, read, keep, hand
                )
            )
            return hand, keep

        return watched

    def _start(self, number: int, start: Step, per_body: bool) -> Step:
        def watched(link: Link, here: Any, k: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            body = self.places[id(link)]
            read: dict[str, Any] = {}
            of_freedom = isinstance(k, int) and not per_body
            self.freedom = int(self.model.v_start[body]) + k if of_freedom else None
            hand, keep = start(link, _Watched(here, read), k)
            self._note(StepRecord(number, *_named(start, "climb"), body, self.freedom, {}, read, keep, hand))
            return hand, keep

        return watched

    def _whole(self, number: int, run: Callable[[Walk], None]) -> Callable[[Walk], None]:
        def watched(walk: Walk) -> None:
            before = [dict(vars(here)) for here in walk.here]
            run(walk)
            for body, (here, old) in enumerate(zip(walk.here, before)):
                kept = {name: x for name, x in vars(here).items() if name not in old or x is not old[name]}
                self._note(StepRecord(number, *_named(run, "whole"), body, None, kept=kept))

        return watched

    def _note(self, record: StepRecord) -> None:
        self.records.setdefault((record.number, record.sweep, record.freedom, record.body), record)


def _named(step: Callable[..., Any], direction: str) -> tuple[str, str, str]:
    """The name of a step, its direction, and the first line of its docstring."""
    says = (step.__doc__ or "").strip().partition("\n")[0]
    return step.__name__, direction, " ".join(says.split())
