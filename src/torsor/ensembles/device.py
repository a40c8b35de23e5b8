"""Members side by side on a GPU: the steps of `engine.py`, with a thread in place of a lane.

Members with fixed steps are a rollout. Members with adaptive steps use the kernel made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends import gpu
from torsor.backends.cuda import REGISTERS, Kernel, Launch
from torsor.compiler.request import Request
from torsor.dynamics.members import members
from torsor.ensembles import engine
from torsor.ensembles.engine import CONTROL, Timing, fixed, step_of
from torsor.errors import ArgumentError
from torsor.model.batch import ModelBatch
from torsor.motion.cuda_loops import AdaptiveKernel
from torsor.motion.gpu_rollout import GpuSteps, dynamics_request, numbers_of_inputs, stops_kernel
from torsor.motion.law import Law
from torsor.motion.lowering import Step, cut
from torsor.motion.steps import METHODS
from torsor.motion.stops import stops_key
from torsor.motion.time_loop import calls_until

Array = NDArray[Any]


class GpuEngine:
    """Moves the members of one structure under one law, on a GPU; see `engine.LaneEngine`."""

    def __init__(self, batch: ModelBatch, law: Law, timing: Timing) -> None:
        self.batch, self.law, self.timing, self.model = batch, law, timing, batch.model
        self.made: dict[str, Any]
        if not timing.adaptive:
            self.steps = GpuSteps(fixed(batch, law, timing), "float64", timing.stops, apart=True)
            self.made = self.steps.modules
            return
        self.step = step_of(batch, law, timing)
        if law.schedules:
            raise ArgumentError(
                "members on a GPU with a step size of their own take forces that do not change in time: choose one of "
                f"the methods {', '.join(METHODS)}, or device='cpu'"
            )
        found = members(batch)
        key = "ensemble on the device", law.key, timing.method, stops_key(batch.model, timing.stops)
        self.request, self.kernel, self.made = found.store.once(key, lambda: (*kernel_of(self.step, timing), {}))

    def run(self, q0: Array, v0: Array) -> tuple[Array, ...]:
        """The states (members, times, nq + nv) at the times, the status of each member, and its stop time if it can
        stop."""
        return tuple(map(gpu.cupy().asnumpy, self.moved(self.on_device(q0, v0))))

    def on_device(self, q0: Array, v0: Array) -> list[Any]:
        """The arrays of the members for the kernel."""
        law, count = self.law, len(q0)
        given = [(q0, 1), (v0, 1)]
        if self.timing.adaptive:
            own = {**(law.loads or {}), **members(self.batch).inputs}
            given += [(law.constant.reshape(*law.constant.shape[:-2], -1), 1), (law.values, 1)]
            given += [(own[name], len(self.step.inputs[name])) for name in self.step.numbers]
        wide = [np.broadcast_to(x, (count, *x.shape[x.ndim - core :])) for x, core in given]
        return [gpu.columns(x, x.ndim - 1, "float64") for x in wide]

    def moved(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """The results of `run`, as arrays on the device."""
        return self._adaptive(given) if self.timing.adaptive else self._fixed(*given)

    def _fixed(self, q: Any, v: Any) -> tuple[Any, ...]:
        """Move the members by rollouts, one for all times with the same number of steps between them."""
        cp, timing, nq = gpu.cupy(), self.timing, self.model.nq
        ends = np.rint(timing.times / timing.step).astype(int).tolist()
        out = cp.empty((len(q), len(ends), nq + self.model.nv), "float64")
        status, when = cp.empty(len(q), "int8"), cp.empty(len(q), "float64")
        status[:], when[:] = engine.OK, np.nan
        done, row = 0, int(ends[0] == 0)
        out[:, :row, :nq], out[:, :row, nq:] = q[:, None], v[:, None]
        for every, count in calls_until(ends[row:], ends[-1]):
            path_q, path_v, *stopped = self.steps({"q": q, "v": v}, done, every * count, every)
            out[:, row : row + count, :nq], out[:, row : row + count, nq:] = path_q, path_v
            q, v, done, row = path_q[:, -1], path_v[:, -1], done + every * count, row + count
            if stopped:  # members that have stopped before stop again at once
                reason = stopped[1][:, -1]
                when = np.where(np.isnan(when), stopped[0], when)
                status = np.where(reason > 0, engine.STOPPED - 1 + reason, status).astype("int8")
        status[(status == engine.OK) & ~np.isfinite(out).all(axis=(1, 2))] = engine.DIVERGED
        return (out, status, when) if timing.stops else (out, status)

    def _adaptive(self, given: Sequence[Any]) -> tuple[Any, ...]:
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

    def _settings(self) -> tuple[Array, Array]:
        """The numbers of `SETTINGS`, and the times."""
        timing = self.timing
        end = float(timing.times[-1])
        settings = [end, engine.FIRST_STEP * end, timing.rtol, timing.atol, engine.SMALLEST * end, CONTROL.safety]
        settings += [CONTROL.shrink, CONTROL.grow, 1 / CONTROL.power, engine.HALVINGS, engine.LOOKS, engine.TURNS]
        return np.array(settings), np.array(timing.times)

    def _grid(self, count: int, launch: Launch) -> tuple[int, list[Any]]:
        """The number of blocks resident at once, and the further arguments of loops."""
        function, dynamics, blocks = self.made["kernel"], self.kernel.dynamics, -(-count // launch.threads)
        if dynamics.looped:
            if "tree" not in self.made:
                self.made["tree"] = gpu.tree_arguments(dynamics, self.request)
            blocks, scratch = gpu.scratch_for(dynamics, self.model, blocks, launch, function)
            return blocks, [*self.made["tree"], scratch]
        resident = max(1, min(2048 // launch.threads, REGISTERS // (launch.threads * max(32, function.num_regs))))
        return min(blocks, resident * gpu.cupy().cuda.Device().attributes["MultiProcessorCount"]), []


def kernel_of(step: Step, timing: Timing) -> tuple[Request, AdaptiveKernel]:
    """The request of the forward dynamics, and the kernel around it."""
    model, (*pieces, end) = step.model, cut(step, inverse=False)
    request = dynamics_request(step, "float64", apart=True)
    last = Kernel(end.code, numbers_of_inputs(step.inputs), (5, model.nq + model.nv), 64)
    codes = engine.OK, engine.DIVERGED, engine.STUCK, engine.STOPPED
    stops = stops_kernel(model, timing.stops, step.members, 64) if timing.stops else None
    return request, AdaptiveKernel(tuple(piece.code for piece in pieces), last, Kernel.of(request), codes, stops)
