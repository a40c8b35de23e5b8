"""A rollout and its gradient as one operation of a framework; numbers of the model and of the forces can be inputs.

The derivative is `ts.vjp(ts.rollout)`: one sweep backwards in time, on NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor import lie
from torsor.bridge.charts import Charts
from torsor.errors import ArgumentError
from torsor.inputs import PARAMETERS
from torsor.model.batch import ModelBatch
from torsor.model.model import Model, require_model
from torsor.model.parameters import COLUMNS, ROWS
from torsor.motion.driver import settings
from torsor.motion.gradients import force_place, rollout_vjp
from torsor.motion.law import force_list
from torsor.motion.rollout import rollout

Array = NDArray[Any]
LAYERS = "Policy.layers"


class RolloutBridge:
    """Rollouts of a model as functions of q, v and the numbers that `wrt` names, on NumPy arrays.

    names    q, v, and one name per further array: a network has two arrays per layer
    ranks    the number of axes of each array, for one trajectory
    """

    def __init__(self, model: Model, forces: Any, wrt: str | Iterable[str], options: dict[str, Any]) -> None:
        require_model(model)
        defaults: dict[str, Any] = {"method": "semi-implicit", "gravity": True, "every": 1}
        self.model, self.options = model, {**defaults, **options}
        self.forces = list(force_list(forces))
        self.wrt = (wrt,) if isinstance(wrt, str) else tuple(wrt)
        setup, steps, every = settings(model, forces=self.forces, **self.options)
        if setup.law.called:
            raise ArgumentError(
                "a rollout under functions, or servos on quaternions, has no gradient: give other forces"
            )
        self.stored = steps // every
        self.given = {name: self._own(name) for name in self.wrt}
        self.names = ["q", "v"] + [name for name, arrays in self.given.items() for _ in arrays]
        self.ranks = [1, 1] + [x.ndim for arrays in self.given.values() for x in arrays]

    def _own(self, name: str) -> list[Array]:
        """The current numbers of that name."""
        own = {"inertia": self.model.inertial_parameters, "gravity": lambda: self.model.gravity,
               "placement": lambda: np.zeros((self.model.n, 6))}  # fmt: skip
        if name in own:
            return [np.asarray(own[name]())]
        kind, _, parameter = name.rpartition(".")
        if not kind:
            raise ArgumentError(f"wrt names {name!r}: give {', '.join(PARAMETERS)}, or a parameter of a force: PD.kp")
        value = getattr(self.forces[force_place(self.forces, kind, parameter)], parameter)
        return [np.asarray(x) for layer in value for x in layer] if name == LAYERS else [np.asarray(value, float)]

    @cached_property
    def charts(self) -> Charts:
        return Charts(self.model, ("q",), np)

    def batch(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """The batch axes of a call with arrays of these shapes."""
        own = [shape[: len(shape) - rank] for shape, rank in zip(shapes, self.ranks)]
        try:
            return np.broadcast_shapes(*own)
        except ValueError:
            given = ", ".join(f"{name} {shape}" for name, shape in zip(self.names, shapes))
            raise ArgumentError(f"the batch axes do not go together: {given}") from None

    def check(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Raise unless these are the shapes of q, v and one array per further name."""
        if len(shapes) != len(self.names):
            raise ArgumentError(f"the rollout takes {', '.join(self.names)}; {len(shapes)} arrays were given")
        wanted = [(self.model.nq,), (self.model.nv,), *(x.shape for arrays in self.given.values() for x in arrays)]
        for name, shape, core in zip(self.names, shapes, wanted):
            if len(shape) < len(core) or shape[len(shape) - len(core) :] != core:
                raise ArgumentError(f"{name} has shape {shape}; this rollout needs (..., {', '.join(map(str, core))})")
        self.batch(shapes)

    # ---- forward and backward ----

    def forward(self, xs: Sequence[Array]) -> tuple[Array, Array]:
        """The stored states, q (..., stored, nq) and v (..., stored, nv)."""
        return self._each_network(self._forward, xs)

    def backward(self, xs: Sequence[Array], q: Array, cotangents: tuple[Array, Array], lead: int = 0) -> list[Array]:
        """The cotangents of all arrays, from those of the stored states, and from the stored q.

        lead   leading batch axes that every cotangent keeps; cotangents are summed over other axes that an array lacks
        """
        batch = np.broadcast_shapes(self.batch([x.shape for x in xs]), *(x.shape[:-2] for x in (q, *cotangents)))
        q, gq, gv = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (q, *cotangents))
        wide = [np.broadcast_to(x, (*batch, x.shape[-1])) for x in xs[:2]]
        parts = self._each_network(self._backward, [*wide, *xs[2:], self.charts.along(q, gq), gv])
        found = []
        for x, g, rank in zip(xs, parts, self.ranks):
            full = np.broadcast_to(g, (*batch, *x.shape[x.ndim - rank :]))
            found.append(np.asarray(_summed(full, (*batch[:lead], *x.shape[lead:]), lead), x.dtype))
        return found

    def _forward(self, xs: Sequence[Array]) -> tuple[Array, Array]:
        model, forces = self._with(xs)
        with np.errstate(all="ignore"):
            path = rollout(model, xs[0], xs[1], forces=forces, **self.options)
        return path.q, path.v

    def _backward(self, xs: Sequence[Array]) -> list[Array]:
        *xs, gq, gv = xs
        model, forces = self._with(xs)
        with np.errstate(all="ignore"):
            found = rollout_vjp(model, xs[0], xs[1], (gq, gv), forces=forces, wrt=self.wrt, **self.options)
        gradients = [self.charts.cotangents([xs[0]], [found.q])[0], found.v]
        for name, arrays in self.given.items():
            own = found[name]
            flat = [x for layer in own for x in layer] if name == LAYERS else [own]
            for x, template in zip(flat, arrays):
                gradients.append(x if x.ndim == len(found.v.shape) - 1 + template.ndim else x.sum(-1))
        if "placement" in self.wrt:
            at = self.names.index("placement")
            chart = Charts(self.model, ("placement",), np)
            gradients[at] = chart.cotangents([xs[at]], [gradients[at]])[0]
        return gradients

    def _each_network(self, run: Callable[[Sequence[Array]], Any], xs: Sequence[Array]) -> Any:
        """Run for all trajectories at once, or in turn for each member of a batch of different networks."""
        places = [k for k, name in enumerate(self.names) if name == LAYERS]
        axes = max((xs[k].ndim - self.ranks[k] for k in places), default=0)
        lead = np.broadcast_shapes(*(xs[k].shape[:axes] for k in places)) if axes else ()
        if prod(lead) == 1:
            plain = [x.reshape(x.shape[axes:]) if k in places else x for k, x in enumerate(xs)]
            return run(plain)
        found = []
        for index in np.ndindex(*lead):
            one = [x[tuple(0 if x.shape[a] == 1 else i for a, i in enumerate(index))] for x in xs]
            found.append(run(one))
        return [np.stack(parts).reshape(*lead, *parts[0].shape) for parts in zip(*found)]

    def _with(self, xs: Sequence[Array]) -> tuple[Any, list[Any]]:
        """The model and the forces with other numbers."""
        fields: dict[str, Any] = {}
        forces, at = list(self.forces), 2
        for name, arrays in self.given.items():
            values = list(xs[at : at + len(arrays)])
            at += len(arrays)
            if name in PARAMETERS:
                fields |= _fields(self.model, name, values[0])
                continue
            kind, _, parameter = name.rpartition(".")
            k = force_place(forces, kind, parameter)
            value: Any = values[0]
            if name == LAYERS:
                value = list(zip(values[::2], values[1::2]))
            elif not arrays[0].ndim and value.ndim:  # one number for all freedoms, per trajectory
                value = np.repeat(value[..., None], self.model.nv, axis=-1)
            forces[k] = replace(forces[k], **{parameter: value})
        return (ModelBatch(self.model, **fields) if fields else self.model), forces


def _summed(x: Array, shape: tuple[int, ...], lead: int) -> Array:
    """The sum over all axes that `shape` lacks, or has with length one, except `lead` leading axes."""
    more = x.ndim - len(shape)
    x = x.sum(axis=tuple(range(lead, lead + more)))
    return x.sum(axis=tuple(k for k, size in enumerate(shape) if size == 1 < x.shape[k]), keepdims=True)


def _fields(model: Model, name: str, x: Array) -> dict[str, Array]:
    """The fields of a batch of models, from the numbers of an input."""
    if name == "gravity":
        return {"gravity": x}
    if name == "placement":
        moved = lie.exp_se3(x)
        return {"R": model.R @ moved[..., :3, :3], "p": model.p + (model.R @ moved[..., :3, 3:])[..., 0]}
    m, h, J = x[..., 0], x[..., 1:4], np.zeros((*x.shape[:-1], 3, 3))
    J[..., ROWS, COLUMNS] = J[..., COLUMNS, ROWS] = x[..., 4:]
    c = h / np.where(m > 0, m, 1.0)[..., None]
    shift = (c * h).sum(-1)[..., None, None] * np.eye(3) - c[..., :, None] * h[..., None, :]
    return {"mass": m, "com": c, "inertia": J - shift}
