"""A machine that computes in a page: its functions and its steps as one WebAssembly module.

The steps are those of `motion/steps.py` under the law of all forces, friction, stops and springs. `lowering.cut` cuts
each where it needs accelerations; here, the pieces and the programs they need become calls on one memory. If the joints
act independently, a piece for one freedom, or for one joint with a quaternion, serves all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms import energy, kinematics
from torsor.backends.wasm import KernelCall, Module, WasmArray, WasmKernel
from torsor.compiler.frames import compact, short_frames
from torsor.compiler.members import Members
from torsor.compiler.request import QUICK, Request
from torsor.dynamics.members import members
from torsor.errors import ArgumentError
from torsor.model.batch import ModelBatch
from torsor.model.joints import JOINTS
from torsor.model.model import Model
from torsor.motion.driver import Fixed
from torsor.motion.law import Law, Load, Part, Term, collect, force_list
from torsor.motion.laws import KINDS
from torsor.motion.lowering import Piece, Step, cut, gains_by_freedom
from torsor.motion.steps import METHODS
from torsor.sweeps import Algorithm
from torsor.view.tube import text

Array = NDArray[Any]

STEPS = ("rk4", "implicit-euler")  # the methods of a page
STEP = 1e-3  # s
MOST_FREEDOMS = 2000  # of a machine that moves in a page in real time


@dataclass(frozen=True)
class _Hand:
    """Wrenches on the bodies, set by the page, and a damper at every joint."""

    damping: float

    def terms(self, model: Model) -> Iterable[Term]:
        yield Load("external", np.zeros((model.n, 6)))
        yield Part("spring", (0.0, 0.0, self.damping))


def poses_only(model: Model) -> dict[str, Any]:
    """The data of a page in which the user can turn the joints of a machine."""
    module, own = Module(), Members(compact(short_frames(model)), {})
    arrays = {"q": module.zeros((model.nq,))}
    found = module.export("bodies", _kernel(kinematics.body_poses, own), arrays).out
    return _data(module, arrays, {"pose": found.part(0, 16 * model.n)})


def moving(model: Model, forces: Any = (), pace: float = 1.0) -> dict[str, Any]:
    """The data of a page in which a machine moves by its equations of motion, at `pace` times real time."""
    if model.nv > MOST_FREEDOMS:
        raise ArgumentError(f"a page moves {MOST_FREEDOMS} freedoms at most; {model!r} has {model.nv}")
    batch = ModelBatch(model, gravity=np.stack([model.gravity, model.gravity + 1.0]))  # gravity becomes an input
    law = collect(batch, [*force_list(forces), _Hand(1.0)])
    if not law.is_data or law.schedules:
        raise ArgumentError("a page takes forces that are data and do not change in time, and no functions of the user")
    twice = collect(batch, [*force_list(forces), _Hand(2.0)])
    own, module = replace(members(batch), frames=compact(short_frames(model))), Module()
    units = _units(law)
    arrays = _memory(module, law, _numbers(law, 2 * law.values - twice.values, units), pace * STEP)
    damping = module.array(_numbers(law, twice.values, units) - _numbers(law, law.values, units))
    bodies = module.export("bodies", _kernel(energy.bodies, own), {name: arrays[name] for name in "qv"}).out
    outputs = {"pose": bodies.part(0, 16 * model.n), "kinetic": bodies.part(16 * model.n, model.n)}
    moves = _Moves(module, law, units, arrays)
    for name in STEPS:
        module.define(name, moves.calls(Fixed(batch, law, METHODS[name], name, STEP).step._replace(members=own)))
    alone = collect(batch, force_list(forces))
    is_stiff = bool(alone.parts or np.any(model.damping) or np.any(model.stiffness))
    chosen = {"methods": list(STEPS), "method": STEPS[is_stiff], "tau": law.constant[0].tolist()}
    chosen["pace"] = pace
    chosen["conservative"] = not (alone.parts or len(alone.gains))
    return _data(module, {**arrays, "damping": damping}, outputs) | chosen


def _kernel(algorithm: Algorithm, own: Members, options: Sequence[str] = ()) -> WasmKernel:
    """A kernel, made once, so that all callers use the same code."""
    key = "wasm", algorithm.name, tuple(options)
    model = own.frames.model
    return own.store.once(
        key, lambda: WasmKernel.of(Request(algorithm, model, options=options, unroll=QUICK, members=own))
    )


def _data(module: Module, arrays: Mapping[str, WasmArray], outputs: Mapping[str, WasmArray]) -> dict[str, Any]:
    """The data that the page reads: the module, and the positions of its arrays."""
    places = {name: [x.at, prod(x.shape)] for name, x in arrays.items()}
    found = {name: [x.at, prod(x.shape)] for name, x in outputs.items()}
    return {"module": text(zlib.compress(module.to_bytes(), 9)), "arrays": places, "outputs": found}


# ---- units that move independently ----


class _Unit(NamedTuple):
    """Neighbours of one kind that act and move independently: freedoms, joints with quaternions, or a machine.

    joint   the code of the joint, -1 for freedoms, -2 for a whole machine;  curved: whether springs act at a quaternion
    q, v    the starts of their coordinates and velocities;  number: their count
    nq, nv  the coordinates and velocities of one
    """

    joint: int
    curved: bool
    q: int
    v: int
    number: int
    nq: int
    nv: int

    def rows(self, arrays: Sequence[WasmArray], first: int = 0) -> list[WasmArray]:
        """Their part of arrays, one row per unit; the first of (q, v, ...) is an array of coordinates."""
        places = [(self.q, self.nq), *[(self.v, self.nv)] * len(arrays)][first:]
        return [x.part(begin, self.number, width) for x, (begin, width) in zip(arrays, places)]


def _units(law: Law) -> list[_Unit]:
    """The units of a machine, in its order."""
    model = law.model
    if not law.is_by_joints:
        return [_Unit(-2, False, 0, 0, 1, model.nq, model.nv)]
    found = []
    for body, (code, q, v) in enumerate(zip(model.joint.tolist(), model.q_start.tolist(), model.v_start.tolist())):
        joint, curved = JOINTS[code], body in law.curved
        if joint.flat:
            found += [_Unit(-1, False, q + k, v + k, 1, 1, 1) for k in range(joint.nv)]
        else:
            found.append(_Unit(code, curved, q, v, 1, joint.nq, joint.nv))
    runs = (list(run) for _, run in groupby(found, key=lambda unit: unit[:2]))
    return [run[0]._replace(number=len(run)) for run in runs]


def _alone(step: Step, unit: _Unit) -> Step:
    """The step of a single member of a unit."""
    if unit.joint < 0:
        return step.one_freedom if unit.joint == -1 else step
    model, law = Model.chain(JOINTS[unit.joint].name, n=1, mass=1.0, inertia=(1.0, 1.0, 1.0)), step.law
    freedoms = tuple(range(unit.nv))
    places = [(i, unit.nq + i) for i in freedoms] if len(law.gains) else []
    parts = tuple((kind, freedoms) for kind, _ in law.parts)
    count = len(places) + unit.nv * sum(len(KINDS[kind][1]) for kind, _ in parts) + unit.curved * (unit.nq + unit.nv)
    alone = Law(model, np.array(places, int).reshape(-1, 2), parts, (0,) if unit.curved else (),
                np.zeros(count), np.zeros((1, unit.nv)))  # fmt: skip
    return Step(step.move, step.key, alone, step.slots, step.implicit)


def _numbers(law: Law, values: Array, units: Sequence[_Unit]) -> Array:
    """The numbers of a law, unit by unit, in the order of the law of a single member."""
    if units[0].joint == -2:
        return values
    rows = gains_by_freedom(law, values, 1)[:, 0]
    curved = (values[rest.start : stiffness.stop] for _, rest, stiffness in law.layout.curved)
    found = []
    for unit in units:
        first = int(unit.joint >= 0 and len(law.gains) > 0)  # a quaternion has no gains
        for v in range(unit.v, unit.v + unit.number * unit.nv, unit.nv):
            found += [rows[first:, v : v + unit.nv].ravel(), *([next(curved)] if unit.curved else [])]
    return np.concatenate(found)


def _memory(module: Module, law: Law, values: Array, step: float) -> dict[str, WasmArray]:
    """The arrays of a step that the page reads and writes."""
    model = law.model
    state = module.zeros((model.nq + model.nv,))
    return {
        "state": state, "q": state.part(0, model.nq), "v": state.part(model.nq, model.nv),
        "tau": module.array(law.constant.reshape(-1)), "gain": module.array(values),
        "h": module.array(np.array([step])), "external": module.zeros((model.n, 6)),
        "gravities": module.array(model.gravity),
    }  # fmt: skip


class _Moves:
    """The methods of a page as calls that move the state in place; they share kernels and their requests."""

    def __init__(self, module: Module, law: Law, units: Sequence[_Unit], arrays: Mapping[str, WasmArray]) -> None:
        self.module, self.units, self.arrays = module, units, arrays
        self.state, model = [arrays["q"], arrays["v"]], law.model
        self.request_arrays = [module.zeros((n,)) for n in (model.nq, *[model.nv] * 3)]  # q, v, tau, added inertia
        self.nothing_added = module.zeros((model.nv,))

    def calls(self, step: Step) -> list[KernelCall]:
        """A step."""
        alone = {unit[:2]: _alone(step, unit) for unit in self.units}
        pieces = {kind: cut(one) for kind, one in alone.items()}
        kernels = {kind: [_kernel_of(piece, alone[kind].model) for piece in own] for kind, own in pieces.items()}
        calls, found = list[KernelCall](), list[WasmArray]()
        for k, piece in enumerate(pieces[self.units[0][:2]]):
            place = 0
            for unit in self.units:
                kernel = kernels[unit[:2]][k]
                width = prod(kernel.inputs["gain"])
                gain = self.arrays["gain"].part(place, unit.number, width)
                place += unit.number * width
                given = [*unit.rows(self.state), *unit.rows([self.arrays["tau"]], 1), gain, self.arrays["h"]]
                results = (self.request_arrays if piece.ask else self.state)[: len(kernel.outputs)]
                calls.append(KernelCall(kernel, [*given, *unit.rows(found, 1), *unit.rows(results)]))
            if piece.ask:
                found.append(self.module.zeros((step.model.nv,)))
                calls.append(self._answer(step, piece, found[-1]))
        return calls

    def _answer(self, step: Step, piece: Piece, found: WasmArray) -> KernelCall:
        """The call that a piece requests; one forward dynamics, with an added inertia, serves all methods."""
        assert piece.ask is not None
        assert piece.ask.algorithm is not None
        requested = self.request_arrays[: len(piece.parts)]
        if not piece.ask.is_forward:
            own = step.members_in(piece.ask) or Members(compact(short_frames(piece.ask.model)), {})
            numbers = [self.arrays[name] for name in piece.ask.options]
            return KernelCall(_kernel(piece.ask.algorithm, own, piece.ask.options), [*requested, *numbers, found])
        assert step.members is not None
        kernel = _kernel(step.algorithm, step.members, ("added_inertia", *step.numbers))
        added = [] if len(requested) > 3 else [self.nothing_added]
        return KernelCall(kernel, [*requested, *added, *(self.arrays[name] for name in step.numbers), found])


def _kernel_of(piece: Piece, model: Model) -> WasmKernel:
    """A piece with an array for each of its outputs: q, v, tau, ..."""
    parts = piece.parts or (slice(0, model.nq), slice(model.nq, model.nq + model.nv))
    names = [*(f"out{k}" for k in range(len(parts) - 1)), "out"]
    places = {("out", i): (name, i - part.start) for name, part in zip(names, parts)
              for i in range(part.start, part.stop)}  # fmt: skip
    code = replace(piece.code, outputs={places[name]: node for name, node in piece.code.outputs.items()})
    return WasmKernel.of_code(code, piece.inputs, {name: (part.stop - part.start,) for name, part in zip(names, parts)})
