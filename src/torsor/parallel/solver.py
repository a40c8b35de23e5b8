"""Forward dynamics and M^-1 b of one chain or tree by the constraint force algorithm, in O(log n) depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import SingularError
from torsor.kernel.frames import Framed, Kind, reframe
from torsor.model.joints import JOINTS
from torsor.model.model import Model
from torsor.parallel.branches import main_chain, tree_schedule
from torsor.parallel.chain import RUN, Plan, runs_of
from torsor.parallel.determinant import determinant_schedule
from torsor.parallel.engine import Engine
from torsor.parallel.schedule import Schedule

Array = NDArray[Any]

# A body whose smallest moment of inertia is below this part of its largest cannot be told from a rod.
SINGULAR_INERTIA = 1e-12
# Plain placements cost 1.4 times the operations, but runs in pieces cost copies: 1.7 against 5.2 times the sweeps' time
# on 100,000 links of which one in a hundred had another form (bench/log_depth.py).
FEWER_RUNS = 0.95
INPUTS = {"forward_dynamics": ("q", "v", "tau"), "mass_solve": ("q", "b"), "log_det": ("q",)}
OUTPUTS = {"forward_dynamics": "qdd", "mass_solve": "qdd", "log_det": "log_det"}


def schedule(model: Model, function: str = "forward_dynamics", *, external: bool = False,
             lanes_apart: bool = True, run: int = RUN) -> Schedule:  # fmt: skip
    """The levels that compute a function of a model: "forward_dynamics", "mass_solve" or, of a chain, "log_det".

    lanes_apart   memory for the vectors of a processor; False: for the threads of a GPU
    run           bodies that one operation condenses: 1 is plain block elimination of the constraint forces
    """
    check_inertias(model, "constraint-force")
    inputs = INPUTS[function] + (("external",) if external else ())
    plan = Plan(_framed(model), inputs, lanes_apart, run)
    return determinant_schedule(plan) if function == "log_det" else tree_schedule(plan)


class Solver:
    """A function of one model: its schedule, and an engine to run it on one state after the other."""

    def __init__(self, model: Model, function: str = "forward_dynamics", *, external: bool = False,
                 threads: int = 1, run: int = RUN) -> None:  # fmt: skip
        self.schedule = schedule(model, function, external=external, run=run)
        self.output = OUTPUTS[function]
        self.engine = Engine(self.schedule, threads)

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        """The accelerations (..., nv), or log det M (..., 1), for inputs with the same batch axes."""
        cores = {name: 2 if name == "external" else 1 for name in inputs}
        batch = next(x.shape[: x.ndim - cores[name]] for name, x in inputs.items())
        result = np.empty((*batch, self.schedule.sizes[self.output]))
        for index in np.ndindex(*batch):
            result[index] = self.engine.run({name: x[index] for name, x in inputs.items()}, self.output)
        return result


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


def _framed(model: Model) -> Framed:
    """The model in its short frames; in plain ones where those would leave few runs of equal bodies."""
    framed = reframe(model)
    short, few = (len(runs_of(kind, RUN)) for kind in (framed.kind, model.joint))
    return plain(framed) if few < FEWER_RUNS * short else framed


def plain(framed: Framed) -> Framed:
    """Every placement as (R, p), so that bodies on the same joint are of one kind."""
    x, n = framed.numbers, framed.model.n
    form = np.array([kind.form for kind in framed.kinds])[framed.kind]
    axial = np.array([j.axial for j in JOINTS])[framed.model.joint]
    turned = form == "zxz"
    R, p = np.broadcast_to(np.eye(3), (n, 3, 3)), np.zeros((n, 3))
    R, p = _then(R, p, 2, np.where(turned, x["cg"], 1.0), np.where(turned, x["sg"], 0.0), np.where(turned, x["s"], 0.0))
    R, p = _then(R, p, 0, x["ca"], x["sa"], x["a"])
    R, p = _then(R, p, 2, np.where(axial, 1.0, x["ct"]), np.where(axial, 0.0, x["st"]), np.where(axial, 0.0, x["d0"]))
    numbers = dict(x)
    for i, j in np.ndindex(3, 3):
        numbers[f"R{i}{j}"] = np.where(form == "rigid", x[f"R{i}{j}"], R[:, i, j])
    for i in range(3):
        numbers[f"p{i}"] = np.where(form == "rigid", x[f"p{i}"], p[:, i])
    kinds = tuple(sorted({Kind(kind.joint, "rigid") for kind in framed.kinds}))
    index = np.array([kinds.index(Kind(kind.joint, "rigid")) for kind in framed.kinds], dtype=framed.kind.dtype)
    return replace(framed, kinds=kinds, kind=index[framed.kind], numbers=numbers)


def _then(R: Array, p: Array, axis: int, c: Array, s: Array, d: Array) -> tuple[Array, Array]:
    """(R, p) followed by a turn about a coordinate axis and a shift along it."""
    turn = np.zeros((len(p), 3, 3))
    i, j = (axis + 1) % 3, (axis + 2) % 3
    turn[:, axis, axis] = 1.0
    turn[:, i, i] = turn[:, j, j] = c
    turn[:, i, j], turn[:, j, i] = -s, s
    return R @ turn, p + R[:, :, axis] * d[:, None]
