"""The reference engine: an algorithm run step by step on plain scalars.  Slow, obvious, the oracle of every test.

The scalars are whatever comes in: floats, longdoubles, mpmath numbers, CasADi symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torsor.linalg import Mat, Scalar, Vec
from torsor.model.links import links
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.spatial import Rigid, Spatial
from torsor.sweeps import Algorithm, Here, run, unflatten


def evaluate(algorithm: Algorithm, model: Model, inputs: Mapping[str, Sequence[Scalar]], *, frame: Frame | None = None,
             number: Callable[[float], Scalar] = float) -> Any:  # fmt: skip
    """The output of an algorithm at one state: a scalar, a list or a list of rows, as `Algorithm.kind` says.

    `inputs` are flat sequences by name (external: six numbers per body); `number` makes the model's constants;
    `frame` is that of a Jacobian.
    """
    parent = model.parent.tolist()
    here = scatter(model, inputs)
    base = base_of([number(g) for g in model.gravity.tolist()], inputs.get("acceleration"))
    return plain(run(algorithm, links(model, number), parent, base, here, frame), model)


def base_of(gravity: Sequence[Scalar], acceleration: Sequence[Scalar] | None = None) -> Here:
    """What the steps know of the base."""
    return Here(gravity=Vec.of(gravity), acceleration=None if acceleration is None else Spatial.of(acceleration))


def scatter(model: Model, inputs: Mapping[str, Sequence[Scalar]]) -> list[Here]:
    """One `Here` a body, holding its own part of every input."""
    freedoms = (model.v_start[1:] - model.v_start[:-1]).tolist()
    here = [Here() for _ in freedoms]
    for name, values in inputs.items():
        if name == "external":
            parts: Sequence[Any] = [Spatial.of(w) for w in values]
        elif name == "acceleration":
            continue
        else:
            sizes = (model.q_start[1:] - model.q_start[:-1]).tolist() if name == "q" else freedoms
            parts = unflatten(values, sizes)
        for h, part in zip(here, parts):
            setattr(h, name, part)
    return here


def plain(x: Any, model: Model | None = None) -> Any:
    """An output as nested lists: poses as 4x4 rows, twists as six numbers, a path as the 6 x nv Jacobian."""
    if isinstance(x, dict):  # the columns along a path, by body
        assert model
        columns: list[Sequence[Scalar]] = [(0.0,) * 6] * model.nv
        for i, block in x.items():
            for k, column in enumerate(block):
                columns[int(model.v_start[i]) + k] = column.coordinates
        return [list(row) for row in zip(*columns)]
    if isinstance(x, Rigid):
        return [[*row, pi] for row, pi in zip(x.R, x.p)] + [[0.0, 0.0, 0.0, 1.0]]
    if isinstance(x, Spatial):
        return list(x.coordinates)
    if isinstance(x, Mat):
        return [list(row) for row in x]
    return [plain(y, model) for y in x] if isinstance(x, list | tuple) else x
