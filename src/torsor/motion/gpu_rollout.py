"""Rollouts on a GPU: a state never leaves its thread."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from torsor.backends import gpu
from torsor.backends.cuda import Kernel, Launch
from torsor.backends.pointwise import trace
from torsor.compiler.request import NEVER, Request
from torsor.compiler.store import store
from torsor.errors import ArgumentError
from torsor.inputs import place_of
from torsor.motion.cuda_loops import RESET, RolloutKernel
from torsor.motion.driver import Fixed
from torsor.motion.lowering import WAVES, Step, cut
from torsor.motion.stops import Stop, outside, stop_inputs, stops_key
from torsor.motion.trajectory import Trajectory

UNROLLED_FREEDOMS = 12  # a step of RK4 is four times the forward dynamics, all unrolled


def kernel_of(step: Step, *, dtype: str, trig: str = "accurate", specialised: bool | None = None,
              stops: tuple[Stop, ...] = (), reset: bool = False) -> RolloutKernel:  # fmt: skip
    """The kernel of a rollout: its step unrolled, or cut into stages around the loop kernel of a large model."""
    model, found, bits = step.model, step.members, 64 if dtype == "float64" else 32
    ends = None
    if stops:
        own = stop_inputs(model, found)
        ends = Kernel(trace(outside(model, stops, found), own), numbers_of_inputs(own), (len(stops),), bits)
    inputs, shape = step.inputs, (model.nq + model.nv,)
    if specialised or model.couplings or (specialised is None and model.nv <= UNROLLED_FREEDOMS):
        return RolloutKernel(
            Kernel(trace(step.whole, inputs), numbers_of_inputs(inputs), shape, bits, trig), (), None, ends, reset
        )
    *pieces, end = cut(step, inverse=False)
    dynamics = Kernel.of(dynamics_request(step, dtype), trig)
    last = Kernel(end.code, numbers_of_inputs(inputs), shape, bits, trig)
    return RolloutKernel(last, tuple(piece.code for piece in pieces), dynamics, ends, reset)


def dynamics_request(step: Step, dtype: str) -> Request:
    """The loops of the forward dynamics that a step needs."""
    return Request(step.algorithm, step.model, options=step.options, dtype=dtype, unroll=NEVER, members=step.members)


def numbers_of_inputs(inputs: Mapping[str, tuple[int, ...]]) -> tuple[tuple[str, int], ...]:
    """How many numbers each input has."""
    return tuple((name, prod(shape)) for name, shape in inputs.items())


def rollout_on_gpu(setup: Fixed, q: Any, v: Any, steps: int, every: int, stops: tuple[Stop, ...],
                   reset: Mapping[str, Any]) -> Trajectory:  # fmt: skip
    """`rollout` of states on a GPU."""
    gpu.refuse_recording("a rollout")
    law, step, model = setup.law, setup.step, setup.model
    if law.called:
        raise ArgumentError("rollouts on a GPU take forces that are data, not functions: give NumPy arrays")
    arrays = {"q": q, "v": v, **reset}
    dtype = gpu.precision(arrays.values())
    key = "cuda rollout", *step.reads, dtype, stops_key(model, stops), bool(reset)

    def make() -> tuple[RolloutKernel, dict[str, Any]]:
        kernel = kernel_of(step, dtype=dtype, stops=stops, reset=bool(reset))
        return kernel, {"request": kernel.dynamics and dynamics_request(step, dtype)}

    kernel, modules = (step.members.store if step.members else store(model)).once(key, make)
    own = {**step.loads, **(step.members.inputs if step.members else {})}
    if law.waves:  # the rows of all steps
        rows = own[WAVES][..., None, :, :] + setup.waves(0, steps)[:, 0]
        own[WAVES] = rows.reshape(*rows.shape[:-3], prod(rows.shape[-3:-1]), 6)
    arrays |= {name: gpu.columns(own[name], len(step.inputs[name]), dtype) for name in step.numbers}
    q, v, *stopped = run(setup, kernel, modules, arrays, steps, every)
    t = setup.length * every * np.arange(1, steps // every + 1)
    names = ("stop_time", "stop_reason") if stops else ()
    about = {"method": setup.name, "step": setup.length, "every": every}
    return Trajectory.of_states(setup.machine, t, q, v, about, **dict(zip(names, stopped)))


def run(setup: Fixed, kernel: RolloutKernel, modules: dict[str, Any], arrays: Mapping[str, Any], steps: int,
        every: int) -> tuple[Any, ...]:  # fmt: skip
    """The stored q and v, and with stop conditions time and reason.

    `modules` keeps the compiled kernel and the model's tables;  arrays: q, v, and the numbers of every trajectory
    """
    cp, model = gpu.cupy(), setup.model
    kind, like = gpu.kind_of(arrays["q"]), arrays["q"]
    dtype, launch = f"float{kernel.bits}", Launch()
    with gpu.stream(kind):
        moving, numbers, reset, batch = _arrays(setup, kernel, arrays, steps, dtype)
        count, stored = prod(batch), model.nq + model.nv
        out = gpu.empty(kind, like, (steps // every, stored, count), dtype)
        arguments = [*moving, cp.asarray([setup.length], dtype), gpu.as_cupy(out, kind), np.int64(count)]
        arguments += [np.int32(steps), np.int32(every), *numbers]
        why, when = cp.empty((steps // every, count), "int32"), cp.empty(count, "int32")
        arguments += [*([why, when] if kernel.ends else []), *reset]
        if "kernel" not in modules:
            modules["kernel"] = gpu.build(kernel.source(launch))
        blocks = -(-count // launch.threads)
        if kernel.dynamics:
            if "tree" not in modules:
                modules["tree"] = gpu.tree_arguments(kernel.dynamics, modules["request"])
            blocks, scratch = gpu.scratch_for(kernel.dynamics, model, blocks, launch, modules["kernel"])
            arguments += [*modules["tree"], scratch]
        if count:
            modules["kernel"]((blocks,), (launch.threads,), tuple(arguments))
        states = tuple(gpu.rows(kind, part, batch) for part in (out[:, : model.nq], out[:, model.nq :]))
        if not kernel.ends:
            return states
        time = when.astype("float64") * setup.length
        time[when < 0] = np.nan
        reason = cp.ascontiguousarray(why.T).reshape(*batch, steps // every)
        return (*states, gpu.given_back(kind, time.reshape(batch)), gpu.given_back(kind, reason))


def _arrays(setup: Fixed, kernel: RolloutKernel, arrays: Mapping[str, Any], steps: int,
            dtype: str) -> tuple[list[Any], list[Any], list[Any], tuple[int, ...]]:  # fmt: skip
    """Arguments of the kernel: states with what changes in time, numbers of trajectories, and states to go on from;
    and the batch axes."""
    cp, model = gpu.cupy(), setup.model
    commands, gain = setup.commands(0, steps), setup.values(0, steps)  # (..., 1 or steps, width)
    flat, flat_gain = (x.reshape(*x.shape[:-2], prod(x.shape[-2:])) for x in (commands, gain))
    again = RESET if kernel.reset else ()
    waves = {WAVES: (steps * setup.step.inputs[WAVES][0], 6)} if setup.law.waves else {}
    cores = {name: waves.get(name) or place_of(name).shape(model) for name in ("q", "v", *kernel.numbers, *again)}
    given = {name: arrays[name] for name in cores} | {"tau": cp.asarray(flat, dtype)}
    cores["tau"] = flat.shape[-1:]
    if flat_gain.ndim > 1:  # gains for every trajectory: their batch axes count, and each has its own row
        given["gain"], cores["gain"] = cp.asarray(flat_gain, dtype), flat_gain.shape[-1:]
    views, batch = gpu.views_of(model, given, [*cores.values()], dtype)
    seen = dict(zip(given, views))
    if flat_gain.ndim > 1:
        flat_gain = np.broadcast_to(flat_gain, (*batch, flat_gain.shape[-1])).reshape(-1, flat_gain.shape[-1])

    def passed(*names: str) -> list[Any]:
        return [x for name in names for x in (seen[name].array, *map(np.int64, seen[name][1:3]))]

    # from the numbers of a step to those of the next one
    onward = {name: seen[name].stride * prod(core) // steps for name, core in waves.items()}
    onward |= {"tau": seen["tau"].stride * commands.shape[-1]} if commands.shape[-2] > 1 else {}
    onward |= {"gain": gain.shape[-1]} if gain.shape[-2] > 1 else {}
    moving = [*passed("q", "v", "tau"), *(np.int64(onward.get(name, 0)) for name in kernel.in_time)]
    moving += [cp.asarray(flat_gain, dtype), np.int64(flat_gain.shape[-1] if flat_gain.ndim > 1 else 0)]
    return moving, passed(*kernel.numbers), passed(*again), batch
