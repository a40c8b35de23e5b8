"""Members side by side on a GPU: the steps of `engine.py`, with a thread in place of a lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms import articulated
from torsor.backends import gpu
from torsor.backends.cuda import REGISTERS, Kernel, Launch
from torsor.backends.cuda_members import MembersKernel
from torsor.backends.pointwise import trace
from torsor.compiler.members import Members, members
from torsor.compiler.request import ON_GPU, Request
from torsor.ensembles import engine
from torsor.ensembles.engine import Steps, moving
from torsor.model.batch import ModelBatch
from torsor.motion.rollout import Law, cut, options_of, step_inputs
from torsor.motion.stops import outside, stop_inputs, stops_key

Array = NDArray[Any]


class DeviceEngine:
    """The kernel that moves the members of one structure under one law, on a GPU; see `engine.Engine`."""

    def __init__(self, batch: ModelBatch, law: Law, steps: Steps) -> None:
        self.steps, self.model = steps, batch.model
        found = members(batch)
        key = "ensemble on the device", law.key, steps.method, stops_key(batch.model, steps.stops)
        self.made: dict[str, Any]
        self.request, self.kernel, self.made = found.store.once(key, lambda: (*kernel_of(found, law, steps), {}))

    def run(self, states: Mapping[str, Array], numbers: Sequence[Array]) -> tuple[Array, ...]:
        """The states (members, times, nq + nv) at the times, what became of each member, and when it stopped, if it may
        stop."""
        return tuple(map(gpu.cupy().asnumpy, self.moved(self.on_device(states, numbers))))

    def on_device(self, states: Mapping[str, Array], numbers: Sequence[Array]) -> list[Any]:
        """The arrays of members that the kernel reads."""
        given = (*(states[name] for name in ("q0", "v0", "tau", "gain")), *numbers)
        return [gpu.columns(x, x.ndim - 1, "float64") for x in given]

    def moved(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """What `run` gives, as arrays on the device."""
        cp, launch, count, stored = gpu.cupy(), Launch(), len(given[0]), len(self.steps.times)
        out = cp.empty((count, stored, self.model.nq + self.model.nv), "float64")
        status = cp.empty(count, "int8")
        if "kernel" not in self.made:
            self.made["kernel"] = gpu.build(self.kernel.source(launch))
        blocks, tree = self._grid(count, launch)
        next_member = cp.asarray(np.array([blocks * launch.threads], "uint64"))
        arguments = [*given, *map(cp.asarray, self._settings()), np.int32(stored), out, status, next_member]
        when = [cp.empty(count, "float64")] if self.steps.stops else []
        self.made["kernel"]((blocks,), (launch.threads,), (*arguments, np.int64(count), *when, *tree))
        return out, status, *when

    def _settings(self) -> tuple[Array, Array, Array]:
        """The numbers of `SETTINGS`, the times, and after how many steps of dt they are."""
        steps = self.steps
        end = float(steps.times[-1])
        first = engine.FIRST_STEP * end if steps.adaptive else steps.dt
        settings = [end, first, steps.rtol, steps.atol, engine.SMALLEST * end, engine.SAFETY, engine.SHRINK]
        settings += [engine.GROW, engine.EXPONENT, engine.HALVINGS]
        ends = np.zeros(1) if steps.adaptive else np.rint(steps.times / steps.dt)
        return np.array(settings), np.array(steps.times), ends.astype(np.int32)

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


def kernel_of(found: Members, law: Law, steps: Steps) -> tuple[Request, MembersKernel]:
    """The request of the forward dynamics, and the kernel around it."""
    model = found.frames.model
    codes, end = cut(model, law, moving(steps))
    options = options_of(steps.method, law, found)
    request = Request(articulated.forward_dynamics, model, options=options, unroll=ON_GPU, members=found)
    inputs = step_inputs(model, law, found)
    width = model.nq + model.nv
    shape = (5, width) if steps.adaptive else (width,)
    step = Kernel(end, _sizes(inputs), shape, 64)
    codes_of = engine.OK, engine.DIVERGED, engine.STUCK, engine.STOPPED
    return request, MembersKernel(tuple(codes), step, Kernel.of(request), codes_of, _stops(found, steps))


def _stops(found: Members, steps: Steps) -> Kernel | None:
    """The kernel of the stop conditions."""
    if not steps.stops:
        return None
    model = found.frames.model
    inputs = stop_inputs(model, found)
    return Kernel(trace(outside(model, steps.stops, found), inputs), _sizes(inputs), (len(steps.stops),), 64)


def _sizes(inputs: Mapping[str, tuple[int, ...]]) -> tuple[tuple[str, int], ...]:
    return tuple((name, prod(shape)) for name, shape in inputs.items())
