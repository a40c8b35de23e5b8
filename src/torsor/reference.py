"""The reference engine: an algorithm run step by step on plain scalars.  Slow, obvious, the oracle of every test.

The inputs determine the scalars: floats, longdoubles, mpmath numbers, CasADi symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torsor.inputs import BASE, PLACES, place_of
from torsor.linalg import Scalar, Vec
from torsor.model.links import links
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.outputs import plain
from torsor.sweeps import Algorithm, Here, run


def evaluate(algorithm: Algorithm, model: Model, inputs: Mapping[str, Sequence[Scalar]], *, frame: Frame | None = None,
             number: Callable[[float], Scalar] = float) -> Any:  # fmt: skip
    """The output of an algorithm at one state: a scalar, a list or nested lists, as its type says.

    `inputs` are flat sequences by name (external: six numbers per body); `number` converts the model's constants;
    `frame` is that of a Jacobian.
    """
    parent = model.parent.tolist()
    here = scatter(model, inputs)
    base = base_of([number(g) for g in model.gravity.tolist()], inputs)
    return plain(run(algorithm, links(model, number), parent, base, here, frame, model.couplings))


def base_of(gravity: Sequence[Scalar], inputs: Mapping[str, Sequence[Scalar]] = MappingProxyType({})) -> Here:
    """The values that the steps know at the base: gravity, and the inputs that belong there."""
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
