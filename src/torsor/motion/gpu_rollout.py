"""Rollouts on a GPU: a state never leaves its thread."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from torsor.backends import gpu
from torsor.backends.cuda import Kernel, Launch
from torsor.backends.pointwise import trace
from torsor.compiler.members import Members
from torsor.compiler.request import NEVER, ON_GPU, Request
from torsor.compiler.store import store
from torsor.inputs import place_of
from torsor.model.model import Model
from torsor.motion.cuda_loops import RESET, RolloutKernel
from torsor.motion.device_run import DeviceRun
from torsor.motion.driver import Fixed, States, advance
from torsor.motion.lowering import WAVES, Step, cut
from torsor.motion.stops import Stop, Watch, outside, stop_inputs, stops_key
from torsor.motion.trajectory import Trajectory

UNROLLED_FREEDOMS = 12  # an unrolled step of RK4 contains the forward dynamics four times


def kernel_of(step: Step, *, dtype: str, trig: str = "accurate", specialised: bool | None = None, apart: bool = False,
              stops: tuple[Stop, ...] = (), reset: bool = False) -> RolloutKernel:  # fmt: skip
    """The kernel of a rollout: its step unrolled, or cut into stages that call the kernel of the accelerations.

    apart   whether the accelerations are a separate function that all stages call; for members whose numbers differ,
            inlining it at every stage took 1.7 times as long
    """
    model, found, bits = step.model, step.members, 64 if dtype == "float64" else 32
    ends = stops_kernel(model, stops, found, bits) if stops else None
    inputs, shape = step.inputs, (model.nq + model.nv,)
    small = model.couplings or (specialised is None and model.nv <= UNROLLED_FREEDOMS)
    if specialised or (small and not apart):
        return RolloutKernel(
            Kernel(trace(step.whole, inputs), numbers_of_inputs(inputs), shape, bits, trig), (), None, ends, reset
        )
    *pieces, end = cut(step, inverse=False)
    dynamics = Kernel.of(dynamics_request(step, dtype, apart), trig)
    last = Kernel(end.code, numbers_of_inputs(inputs), shape, bits, trig)
    return RolloutKernel(last, tuple(piece.code for piece in pieces), dynamics, ends, reset, apart)


def stops_kernel(model: Model, stops: tuple[Stop, ...], found: Members | None, bits: int) -> Kernel:
    """The kernel of how far a state is beyond each stop condition."""
    inputs = stop_inputs(model, found)
    return Kernel(trace(outside(model, stops, found), inputs), numbers_of_inputs(inputs), (len(stops),), bits)


def dynamics_request(step: Step, dtype: str, apart: bool = False) -> Request:
    """The forward dynamics that the stages of a step need."""
    unroll = ON_GPU if apart else NEVER
    return Request(step.algorithm, step.model, options=step.options, dtype=dtype, unroll=unroll, members=step.members)


def numbers_of_inputs(inputs: Mapping[str, tuple[int, ...]]) -> tuple[tuple[str, int], ...]:
    """The size of each input."""
    return tuple((name, prod(shape)) for name, shape in inputs.items())


def rollout_on_gpu(setup: Fixed, q: Any, v: Any, steps: int, every: int, stops: tuple[Stop, ...],
                   reset: Mapping[str, Any]) -> Trajectory:  # fmt: skip
    """`rollout` of states on a GPU."""
    gpu.refuse_recording("a rollout")
    states = {"q": q, "v": v, **reset}
    move = GpuSteps(setup, gpu.precision(states.values()), stops, bool(reset))
    q, v, *stopped = move(states, 0, steps, every)
    t = setup.length * every * np.arange(1, steps // every + 1)
    names = ("stop_time", "stop_reason") if stops else ()
    about = {"method": setup.name, "step": setup.length, "every": every}
    return Trajectory.of_states(setup.machine, t, q, v, about, **dict(zip(names, stopped)))


class GpuSteps:
    """Fixed steps of many states: by one kernel, or piece by piece if functions are called.

    The kernel is kept with the model or the structure of a batch. `apart` is the argument of `kernel_of`.
    """

    def __init__(self, setup: Fixed, dtype: str, stops: tuple[Stop, ...], reset: bool = False,
                 apart: bool = False) -> None:  # fmt: skip
        self.setup, self.dtype, self.stops, step = setup, dtype, stops, setup.step

        def make() -> tuple[RolloutKernel, dict[str, Any]]:
            kernel = kernel_of(step, dtype=dtype, stops=stops, reset=reset, apart=apart)
            return kernel, {"request": kernel.dynamics and dynamics_request(step, dtype, apart)}

        key = "cuda rollout", *step.reads, dtype, stops_key(step.model, stops), reset, apart
        self.kernel, self.modules = (step.members.store if step.members else store(step.model)).once(key, make)
        self.own = {**step.loads, **(step.members.inputs if step.members else {})}

    def __call__(self, states: Mapping[str, Any], first: int, steps: int, every: int) -> tuple[Any, ...]:
        """The result of `run` for the steps from `first` on; states: q, v, and the reset states."""
        setup, step, own = self.setup, self.setup.step, self.own
        if setup.law.called:
            return self._by_pieces(states, first, steps, every)
        if setup.law.waves:  # the rows of all steps
            rows = own[WAVES][..., None, :, :] + setup.waves(first, steps, setup.begin)[:, 0]
            own = own | {WAVES: rows.reshape(*rows.shape[:-3], prod(rows.shape[-3:-1]), 6)}
        numbers = {name: gpu.columns(own[name], len(step.inputs[name]), self.dtype) for name in step.numbers}
        return run(setup, self.kernel, self.modules, {**states, **numbers}, steps, every, first)

    def _by_pieces(self, states: Mapping[str, Any], first: int, steps: int, every: int) -> tuple[Any, ...]:
        """Step by the loop of the host (`driver.py`); with stop conditions it waits for the device in every step."""
        cp, model, kind, kept = gpu.cupy(), self.setup.model, gpu.kind_of(states["q"]), steps // every
        setup = self.setup._replace(begin=self.setup.begin + first * self.setup.length)
        with gpu.stream(kind):
            given = gpu.in_shape(model, states, self.dtype)
            moving = DeviceStates(setup, given, steps, kind)
            part, batch, count = moving.part(slice(None)), moving.batch, moving.count
            x, width = np.concatenate([part["q"], part["v"]], axis=1), model.nq + model.nv
            stored, why = cp.empty((count, kept, width), self.dtype), cp.zeros((count, kept), "int32")
            watch = None
            if self.stops:
                reset = np.concatenate([part[name] for name in RESET], axis=1) if RESET[0] in part else None
                watch = moving.watch(self.stops, part, reset)
            advance(moving, part, x, range(every, kept * every + 1, every), stored, watch, why)
            parts = stored[..., : model.nq], stored[..., model.nq :]
            found = [y.reshape(*batch, kept, y.shape[-1]) for y in parts]
            if watch:
                time = np.where(watch.first < 0, np.nan, (first + watch.first) * setup.length)
                found += [time.reshape(batch), why.reshape(*batch, kept)]
            return tuple(gpu.given_back(kind, cp.ascontiguousarray(y)) for y in found)


class DeviceStates(States):
    """`States` on a GPU; functions take arrays of the caller's library."""

    def __init__(self, setup: Fixed, given: Mapping[str, Any], steps: int, kind: str) -> None:
        super().__init__(setup, given, steps)
        self.kind = kind

    def run(self, part: Mapping[str, Any]) -> Any:
        setup = self.setup
        given, h = self.inputs(part), np.array([setup.length], self.dtype)
        return DeviceRun(setup.step, h, given, setup.method.times, setup.law.called, not self.batch, self.kind)

    def watch(self, stops: tuple[Stop, ...], part: Mapping[str, Any], reset: Any) -> Watch:
        """The stop conditions of some states."""
        cp, model, found = gpu.cupy(), self.setup.model, self.setup.members
        inputs = stop_inputs(model, found)
        program = gpu.Pointwise(trace(outside(model, stops, found), inputs), inputs, np.dtype(self.dtype).name)
        numbers = [cp.asarray(part[name], self.dtype) for name in (found.inputs if found else ())]
        return Watch(program, numbers, part["q"], reset)


def run(setup: Any, kernel: RolloutKernel, modules: dict[str, Any], arrays: Mapping[str, Any], steps: int, every: int,
        first: int = 0) -> tuple[Any, ...]:  # fmt: skip
    """The stored q and v, (..., stored, n), and with stop conditions the times of stops and their reasons.

    `modules` keeps the compiled kernel and the model's tables;  arrays: q, v, and the numbers of every trajectory.
    """
    cp, model = gpu.cupy(), setup.model
    kind, like = gpu.kind_of(arrays["q"]), arrays["q"]
    dtype, launch = f"float{kernel.bits}", Launch()
    with gpu.stream(kind):
        moving, numbers, reset, batch = _arrays(setup, kernel, arrays, first, steps, dtype)
        count, stored = prod(batch), model.nq + model.nv
        out = gpu.empty(kind, like, (steps // every, stored, count), dtype)
        arguments = [*moving, cp.asarray([setup.length], dtype), gpu.as_cupy(out, kind), np.int64(count)]
        arguments += [np.int32(steps), np.int32(every), *numbers]
        why, when = cp.empty((steps // every, count), "int32"), cp.empty(count, "int32")
        arguments += [*([why, when] if kernel.ends else []), *reset]
        if "kernel" not in modules:
            modules["kernel"] = gpu.build(kernel.source(launch))
        blocks = -(-count // launch.threads)
        if kernel.dynamics and kernel.looped:
            if "tree" not in modules:
                modules["tree"] = gpu.tree_arguments(kernel.dynamics, modules["request"])
            blocks, scratch = gpu.scratch_for(kernel.dynamics, model, blocks, launch, modules["kernel"])
            arguments += [*modules["tree"], scratch]
        if count:
            modules["kernel"]((blocks,), (launch.threads,), tuple(arguments))
        states = tuple(gpu.rows(kind, part, batch) for part in (out[:, : model.nq], out[:, model.nq :]))
        if not kernel.ends:
            return states
        time = (first + when.astype("float64")) * setup.length
        time[when < 0] = np.nan
        reason = cp.ascontiguousarray(why.T).reshape(*batch, steps // every)
        return (*states, gpu.given_back(kind, time.reshape(batch)), gpu.given_back(kind, reason))


def _arrays(setup: Any, kernel: RolloutKernel, arrays: Mapping[str, Any], first: int, steps: int,
            dtype: str) -> tuple[list[Any], list[Any], list[Any], tuple[int, ...]]:  # fmt: skip
    """The arguments of the kernel in three lists, and the batch axes.

    The lists: states with the inputs that change in time, numbers of trajectories, and reset states.
    """
    cp, model = gpu.cupy(), setup.model
    commands, gain = (x(first, steps, setup.begin) for x in (setup.commands, setup.values))  # (..., 1 or steps, width)
    flat, flat_gain = (x.reshape(*x.shape[:-2], prod(x.shape[-2:])) for x in (commands, gain))
    again = RESET if kernel.reset else ()
    waves = {WAVES: (steps * setup.step.inputs[WAVES][0], 6)} if setup.law.waves else {}
    cores = {name: waves.get(name) or place_of(name).shape(model) for name in ("q", "v", *kernel.numbers, *again)}
    given = {name: arrays[name] for name in cores} | {"tau": cp.asarray(flat, dtype)}
    cores["tau"] = flat.shape[-1:]
    if flat_gain.ndim > 1:  # gains per trajectory: their axes are part of the batch, and each trajectory has a row
        given["gain"], cores["gain"] = cp.asarray(flat_gain, dtype), flat_gain.shape[-1:]
    views, batch = gpu.views_of(model, given, [*cores.values()], dtype)
    seen = dict(zip(given, views))
    if flat_gain.ndim > 1:
        flat_gain = np.broadcast_to(flat_gain, (*batch, flat_gain.shape[-1])).reshape(-1, flat_gain.shape[-1])

    def passed(*names: str) -> list[Any]:
        return [x for name in names for x in (seen[name].array, *map(np.int64, seen[name][1:3]))]

    # strides from the numbers of one step to those of the next
    onward = {name: seen[name].stride * prod(core) // steps for name, core in waves.items()}
    onward |= {"tau": seen["tau"].stride * commands.shape[-1]} if commands.shape[-2] > 1 else {}
    onward |= {"gain": gain.shape[-1]} if gain.shape[-2] > 1 else {}
    moving = [*passed("q", "v", "tau"), *(np.int64(onward.get(name, 0)) for name in kernel.in_time)]
    moving += [cp.asarray(flat_gain, dtype), np.int64(flat_gain.shape[-1] if flat_gain.ndim > 1 else 0)]
    return moving, passed(*kernel.numbers), passed(*again), batch
