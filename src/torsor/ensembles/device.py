"""Members side by side on a GPU: the steps of `engine.py`, with a thread in place of a lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends import gpu
from torsor.backends.cuda import REGISTERS, Kernel, Launch
from torsor.backends.pointwise import trace
from torsor.compiler.members import Members, members
from torsor.compiler.request import ON_GPU, Request
from torsor.ensembles import engine
from torsor.ensembles.engine import CONTROL, Timing, step_of
from torsor.errors import ArgumentError
from torsor.model.batch import ModelBatch
from torsor.motion.cuda_loops import MembersKernel
from torsor.motion.gpu_rollout import numbers_of_inputs
from torsor.motion.law import Law
from torsor.motion.lowering import Step, cut
from torsor.motion.stops import outside, stop_inputs, stops_key

Array = NDArray[Any]


class GpuEngine:
    """The kernel that moves the members of one structure under one law, on a GPU; see `engine.LaneEngine`."""

    def __init__(self, batch: ModelBatch, law: Law, timing: Timing) -> None:
        self.batch, self.law, self.timing, self.model = batch, law, timing, batch.model
        self.step = step_of(batch, law, timing)
        if law.called or law.schedules:
            raise ArgumentError(
                "members on a GPU take forces that are data and do not change in time: use device='cpu'"
            )
        found = members(batch)
        key = "ensemble on the device", law.key, timing.method, stops_key(batch.model, timing.stops)
        self.made: dict[str, Any]
        self.request, self.kernel, self.made = found.store.once(key, lambda: (*kernel_of(self.step, timing), {}))

    def run(self, q0: Array, v0: Array) -> tuple[Array, ...]:
        """The states (members, times, nq + nv) at the times, what became of each member, and when it stopped, if it may
        stop."""
        return tuple(map(gpu.cupy().asnumpy, self.moved(self.on_device(q0, v0))))

    def on_device(self, q0: Array, v0: Array) -> list[Any]:
        """The arrays of members that the kernel reads."""
        law, count = self.law, len(q0)
        constant = law.constant.reshape(*law.constant.shape[:-2], -1)
        own = {**(law.loads or {}), **members(self.batch).inputs}
        given = [
            (constant, 1),
            (law.values, 1),
            *((own[name], len(self.step.inputs[name])) for name in self.step.numbers),
        ]
        wide = [np.broadcast_to(x, (count, *x.shape[x.ndim - core :])) for x, core in given]
        return [gpu.columns(x, x.ndim - 1, "float64") for x in (q0, v0, *wide)]

    def moved(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """What `run` gives, as arrays on the device."""
        cp, launch, count, stored = gpu.cupy(), Launch(), len(given[0]), len(self.timing.times)
        out = cp.empty((count, stored, self.model.nq + self.model.nv), "float64")
        status = cp.empty(count, "int8")
        if "kernel" not in self.made:
            self.made["kernel"] = gpu.build(self.kernel.source(launch))
        blocks, tree = self._grid(count, launch)
        next_member = cp.asarray(np.array([blocks * launch.threads], "uint64"))
        arguments = [*given, *map(cp.asarray, self._settings()), np.int32(stored), out, status, next_member]
        when = [cp.empty(count, "float64")] if self.timing.stops else []
        self.made["kernel"]((blocks,), (launch.threads,), (*arguments, np.int64(count), *when, *tree))
        return out, status, *when

    def _settings(self) -> tuple[Array, Array, Array]:
        """The numbers of `SETTINGS`, the times, and after how many steps they are."""
        timing = self.timing
        end = float(timing.times[-1])
        first = engine.FIRST_STEP * end if timing.adaptive else timing.step
        settings = [end, first, timing.rtol, timing.atol, engine.SMALLEST * end, CONTROL.safety, CONTROL.shrink]
        settings += [CONTROL.grow, 1 / CONTROL.power, engine.HALVINGS, engine.LOOKS, engine.TURNS]
        ends = np.zeros(1) if timing.adaptive else np.rint(timing.times / timing.step)
        return np.array(settings), np.array(timing.times), ends.astype(np.int32)

    def _grid(self, count: int, launch: Launch) -> tuple[int, list[Any]]:
        """How many blocks are resident at once, and what loops need beside the arrays."""
        function, dynamics, blocks = self.made["kernel"], self.kernel.dynamics, -(-count // launch.threads)
        if dynamics.looped:
            if "tree" not in self.made:
                self.made["tree"] = gpu.tree_arguments(dynamics, self.request)
            blocks, scratch = gpu.scratch_for(dynamics, self.model, blocks, launch, function)
            return blocks, [*self.made["tree"], scratch]
        resident = max(1, min(2048 // launch.threads, REGISTERS // (launch.threads * max(32, function.num_regs))))
        return min(blocks, resident * gpu.cupy().cuda.Device().attributes["MultiProcessorCount"]), []


def kernel_of(step: Step, timing: Timing) -> tuple[Request, MembersKernel]:
    """The request of the forward dynamics, and the kernel around it."""
    assert step.members is not None
    model, (*pieces, end) = step.model, cut(step, inverse=False)
    request = Request(step.algorithm, model, options=step.options, unroll=ON_GPU, members=step.members)
    width = model.nq + model.nv
    last = Kernel(end.code, numbers_of_inputs(step.inputs), (5, width) if timing.adaptive else (width,), 64)
    codes = engine.OK, engine.DIVERGED, engine.STUCK, engine.STOPPED
    stages = tuple(piece.code for piece in pieces)
    return request, MembersKernel(stages, last, Kernel.of(request), codes, _stops(step.members, timing))


def _stops(found: Members, timing: Timing) -> Kernel | None:
    """The kernel of the stop conditions."""
    if not timing.stops:
        return None
    model = found.frames.model
    inputs = stop_inputs(model, found)
    return Kernel(
        trace(outside(model, timing.stops, found), inputs), numbers_of_inputs(inputs), (len(timing.stops),), 64
    )
