"""Forward dynamics and M^-1 b of one chain or tree by the constraint force algorithm, in O(log n) depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.compiler.frames import Framed, Kind, short_frames, structured
from torsor.compiler.store import store
from torsor.errors import ArgumentError, SingularError
from torsor.model.model import Model
from torsor.parallel.adjoint import BY_FREEDOM, adjoint, along_freedoms_of, cotangent
from torsor.parallel.branches import main_chain, tree_schedule
from torsor.parallel.chain import RUN, ScheduleBuilder, runs_of
from torsor.parallel.determinant import determinant_schedule
from torsor.parallel.engine import ScheduleRunner
from torsor.parallel.schedule import LevelSchedule

Array = NDArray[Any]

# A body whose smallest moment of inertia is below this fraction of its largest counts as a rod.
SINGULAR_INERTIA = 1e-12
# Placements of one form cost 1.1 times the operations, but broken runs cost copies: three times the time on
# 100,000 links of which one in a hundred had another form.
FEWER_RUNS = 0.95
INPUTS = {"forward_dynamics": ("q", "v", "tau"), "mass_solve": ("q", "b"), "log_det": ("q",)}
OUTPUTS = {"forward_dynamics": "qdd", "mass_solve": "qdd", "log_det": "log_det"}


def schedule(model: Model, function: str = "forward_dynamics", *, options: Sequence[str] = (),
             lanes_apart: bool = True, run: int = RUN, vjp: bool = False) -> LevelSchedule:  # fmt: skip
    """The levels that compute a function of a model: "forward_dynamics", "mass_solve" or, for a chain, "log_det".

    lanes_apart   memory for the vectors of a processor; False: for the threads of a GPU
    run           bodies that one operation condenses: 1 is plain block elimination of the constraint forces
    vjp           adds the levels of the adjoint; only for a chain
    """
    inputs = (*INPUTS[function], *options)
    plan = ScheduleBuilder(store(model).once("frames of levels", lambda: _framed(model)), inputs, lanes_apart, run)
    levels = determinant_schedule(plan) if function == "log_det" else tree_schedule(plan)
    if not vjp:
        return levels
    if not model.is_chain:
        raise ArgumentError(f"{model!r} branches; derivatives in levels are for chains")
    return along_freedoms_of(model, adjoint(levels, OUTPUTS[function], INPUTS[function], lanes_apart))


def results_of(function: str, vjp: bool) -> tuple[str, ...]:
    """The buffers of the results: with `vjp`, one for each input."""
    if not vjp:
        return (OUTPUTS[function],)
    return (BY_FREEDOM, *(cotangent(name) for name in INPUTS[function][1:]))


class Solver:
    """A function of one model: its schedule, and an engine that runs it on one state after the other."""

    def __init__(self, model: Model, function: str = "forward_dynamics", *, options: Sequence[str] = (),
                 threads: int = 1, run: int = RUN, vjp: bool = False) -> None:  # fmt: skip
        self.schedule = schedule(model, function, options=options, run=run, vjp=vjp)
        self.outputs, self.vjp = results_of(function, vjp), vjp
        self.engine = ScheduleRunner(self.schedule, threads)

    def __call__(self, inputs: Mapping[str, Array]) -> Any:
        """The accelerations (..., nv), or log det M (..., 1), for inputs with the same batch axes.

        With `vjp`, from a further input "~qdd" or "~log_det": a list of the cotangents of q, v and tau, (..., nv) each.
        """
        cores = {name: 2 if name == "external" else 1 for name in inputs}
        batch = next(x.shape[: x.ndim - cores[name]] for name, x in inputs.items())
        results = [np.empty((*batch, self.schedule.sizes[name])) for name in self.outputs]
        for index in np.ndindex(*batch):
            found = self.engine.run({name: x[index] for name, x in inputs.items()}, self.outputs)
            for result, x in zip(results, found):
                result[index] = x
        return results if self.vjp else results[0]


def check_inertias(model: Model, method: str) -> None:
    """Eq. 11 inverts the inertia of every body of the main chain: refuse points, rods and massless bodies by name."""
    main = main_chain(model)
    moments = np.linalg.eigvalsh(model.inertia[main])
    singular = (model.mass[main] <= 0) | (moments[:, 0] <= SINGULAR_INERTIA * moments[:, -1])
    if singular.any():
        body = int(main[np.flatnonzero(singular)[0]])
        raise SingularError(
            f'method "{method}" inverts inertias, and that of {model.names[body]!r} is '
            'singular (a point, a rod or no mass); give it mass and extent, or use method "articulated"'
        )
    turning, bodies = model.armature > 0, model.v_start
    some, every = (op.reduceat(turning, bodies[:-1])[main] for op in (np.logical_or, np.logical_and))
    for body in main[some & ~every][:1]:
        raise ArgumentError(
            f'method "{method}" needs an armature for all freedoms of a joint or for none, and {model.names[body]!r} '
            'has it for some: use method "articulated"'
        )


def _framed(model: Model) -> Framed:
    """The model in its short frames, or with placements of one form if that leaves fewer runs of equal bodies."""
    check_inertias(model, "constraint-force")
    short = short_frames(model)
    even = alike(short, 1)
    fewer = len(runs_of(even.kind, RUN)) < FEWER_RUNS * len(runs_of(short.kind, RUN))
    return structured(even if fewer else short)


def alike(framed: Framed, first: int) -> Framed:
    """Give bodies with the same joint type one kind, from body `first` on: a placement with the screws of all of them.

    A missing screw becomes a screw by zero.
    """
    longest: dict[tuple[str, bool], Kind] = {}
    for kind in (framed.kinds[k] for k in np.unique(framed.kind[first:])):
        axes = longest.get((kind.joint, kind.rotors), kind).form + kind.form
        form = "".join(axis for axis in "zyx" if axis in axes.replace("xz", "x"))
        longest[kind.joint, kind.rotors] = kind._replace(form=form + "z")
    wanted = [longest.get((kind.joint, kind.rotors), kind) for kind in framed.kinds]
    kinds = tuple(sorted({*wanted, *framed.kinds}))
    own, new = (np.array([kinds.index(k) for k in some], framed.kind.dtype) for some in (framed.kinds, wanted))
    kind = np.concatenate([own[framed.kind[:first]], new[framed.kind[first:]]])
    return replace(framed, kinds=kinds, kind=kind)
