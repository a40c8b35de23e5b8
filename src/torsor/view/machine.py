"""A machine that computes in a page: its functions and its steps as one module of WebAssembly.

The steps are those of `motion/steps.py` under the law of all forces, friction, stops and springs. `lowering.cut` cuts
each where it asks for accelerations; here, the pieces and the programs they ask for become calls on one memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms import energy, kinematics
from torsor.backends.wasm import KernelCall, Module, WasmArray, WasmKernel
from torsor.compiler.members import members
from torsor.compiler.request import QUICK, Request
from torsor.compiler.store import store
from torsor.errors import ArgumentError
from torsor.model.batch import ModelBatch
from torsor.model.model import Model
from torsor.motion.driver import Fixed
from torsor.motion.law import Law, Load, Part, Term, collect, force_list
from torsor.motion.lowering import Ask, Step, cut, gains_by_freedom
from torsor.motion.steps import METHODS
from torsor.sweeps import Algorithm
from torsor.view.tube import text

Array = NDArray[Any]

STEPS = ("rk4", "implicit-euler")  # the methods of a page
STEP = 1e-3  # s
MOST_FREEDOMS = 2000  # of a machine that moves in a page in real time


@dataclass(frozen=True)
class _Hand:
    """Forces on points of the bodies, which the page gives, and a damper at every joint."""

    damping: float

    def terms(self, model: Model) -> Iterable[Term]:
        yield Load("pulls", np.zeros((model.n, 12)))
        yield Part("spring", (0.0, 0.0, self.damping))


def poses_only(model: Model) -> dict[str, Any]:
    """The data of a page in which the joints of a machine can be turned."""
    module = Module()
    arrays = {"q": module.zeros((model.nq,))}
    functions = {"poses": module.export("poses", _kernel(kinematics.body_poses, model), arrays).out}
    return _data(module, arrays, functions)


def moving(model: Model, forces: Any = ()) -> dict[str, Any]:
    """The data of a page in which a machine moves by its equations of motion."""
    if model.nv > MOST_FREEDOMS:
        raise ArgumentError(f"a page moves {MOST_FREEDOMS} freedoms at most; {model!r} has {model.nv}")
    batch = ModelBatch(model, gravity=np.stack([model.gravity, model.gravity + 1.0]))  # gravity becomes an input
    law = collect(batch, [*force_list(forces), _Hand(1.0)])
    if not law.is_data or law.changes or law.schedule is not None or law.waves:
        raise ArgumentError("a page takes forces that are data and do not change in time, and no functions of the user")
    twice = collect(batch, [*force_list(forces), _Hand(2.0)])
    module = Module()
    arrays = _memory(module, law, 2 * law.values - twice.values)
    damping = module.array(_laid_out(law, twice.values) - _laid_out(law, law.values))
    given = {name: arrays[name].flat() for name in ("q", "v", "gravities")}
    functions = {
        "poses": module.export("poses", _kernel(kinematics.body_poses, model), given).out,
        "kinetic": module.export("kinetic", _kernel(energy.kinetic_energy, model), given).out,
        "potential": module.export("potential", _potential(batch), given).out,
    }
    for name in STEPS:
        step = Fixed(batch, law, METHODS[name], name, STEP).step
        module.define(name, _calls(module, step, arrays))
    alone = collect(batch, force_list(forces))
    is_stiff = bool(alone.parts or np.any(model.damping) or np.any(model.stiffness))
    chosen = {"methods": list(STEPS), "method": STEPS[is_stiff], "tau": law.constant[0].tolist()}
    chosen["conservative"] = not (alone.parts or len(alone.gains))
    return _data(module, {**arrays, "damping": damping}, functions) | chosen


def _potential(batch: ModelBatch) -> WasmKernel:
    return _kernel(energy.potential_energy, batch.model, ("gravities",), members(batch))


def _kernel(algorithm: Algorithm, model: Model, options: Sequence[str] = (), own: Any = None) -> WasmKernel:
    """A kernel, made once, so that all that ask for it call the same code."""
    made = own.store if own else store(model)
    key = "wasm", algorithm.name, tuple(options)
    return made.once(key, lambda: WasmKernel.of(Request(algorithm, model, options=options, unroll=QUICK, members=own)))


def _data(module: Module, arrays: Mapping[str, WasmArray], outputs: Mapping[str, WasmArray]) -> dict[str, Any]:
    """What the page reads: the module, and where its arrays are."""
    places = {name: [x.at, prod(x.shape)] for name, x in arrays.items()}
    found = {name: [x.at, prod(x.shape)] for name, x in outputs.items()}
    return {"module": text(module.to_bytes()), "arrays": places, "outputs": found, "step": STEP}


# ---- steps: a number per coordinate, or where every freedom moves by itself, a row of all freedoms per number ----


def _memory(module: Module, law: Law, values: Array) -> dict[str, WasmArray]:
    """The arrays of a step that the page reads and writes."""
    model = law.model
    if law.is_local:
        state = module.zeros((2, model.nv))
        q, v = state.part(0, 1), state.part(1, 2)
    else:
        state = module.zeros((model.nq + model.nv,))
        q, v = state.part(0, model.nq), state.part(model.nq, model.nq + model.nv)
    return {
        "state": state, "q": q, "v": v,
        "tau": module.array(law.constant if law.is_local else law.constant.reshape(-1)),
        "gain": module.array(_laid_out(law, values)), "h": module.array(np.array([STEP])),
        "pulls": module.zeros((model.n, 12)), "added_inertia": module.zeros((model.nv,)),
        "gravities": module.array(model.gravity),
    }  # fmt: skip


def _laid_out(law: Law, values: Array) -> Array:
    """The numbers of a law."""
    return gains_by_freedom(law, values, 1)[:, 0] if law.is_local else values


def _calls(module: Module, step: Step, arrays: Mapping[str, WasmArray]) -> list[KernelCall]:
    """A step as calls that move the state in place."""
    *pieces, last = cut(step.one_freedom if step.law.is_local else step)
    given = [arrays[name].transposed() for name in ("q", "v", "tau", "gain", "h")]
    wide = (step.model.nv,) if step.law.is_local else ()
    calls = []
    for piece in pieces:
        assert piece.ask is not None
        kernel = WasmKernel.of_code(piece.code, piece.inputs)
        asked = module.zeros((*kernel.shape, *wide))
        found = module.zeros((1, *wide) if wide else (step.model.nv,))
        calls.append(KernelCall(kernel, given[:], asked.transposed()))
        own = [asked.part(x.start or 0, x.stop).flat() for x in piece.parts]
        if piece.ask.is_forward:
            own = [*own[:3], *(own[3:] or [arrays["added_inertia"]])]
        own += [arrays[name] for name in (step.numbers if piece.ask.is_forward else piece.ask.options)]
        calls.append(KernelCall(_asked(step, piece.ask), own, found.flat()))
        given.append(found.transposed())
    return [*calls, KernelCall(WasmKernel.of_code(last.code, last.inputs), given, arrays["state"].transposed())]


def _asked(step: Step, ask: Ask) -> WasmKernel:
    """What a piece asks for, for all freedoms; one forward dynamics, with an added inertia, serves all methods."""
    if not ask.is_forward:
        assert ask.algorithm is not None
        return _kernel(ask.algorithm, ask.model, ask.options, step.members_in(ask))
    return _kernel(step.algorithm, step.model, ("added_inertia", *step.numbers), step.members)
