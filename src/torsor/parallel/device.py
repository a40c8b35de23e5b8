"""Run a schedule on an NVIDIA GPU: a task is one launch, a lane is a thread, and a whole run is one CUDA graph.

Everything stays on the device: the buffers of the schedule, the inputs that are copied into them, and the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torsor.backends.c_language import CWriter, array
from torsor.backends.cuda import Launch
from torsor.backends.cuda_prelude import OPTIONS, prelude
from torsor.backends.gpu import cupy
from torsor.errors import ArgumentError
from torsor.model.model import Model
from torsor.parallel.adjoint import cotangent
from torsor.parallel.chain import RUN
from torsor.parallel.schedule import LaneTask, LevelSchedule, Operand, Operation
from torsor.parallel.solver import INPUTS, OUTPUTS, results_of, schedule

THREADS = 64  # per block: levels near the top of the tree have few lanes, and a lane needs many registers
AT_ONCE = 16  # sums read before any is written: a thread then waits for memory once, not for each of them


def source(operations: Sequence[Operation], threads: int = THREADS) -> str:
    """CUDA C for some operations: one kernel per operation, named `task_0`, `task_1`, ..."""
    return "\n".join([prelude(64, "accurate"), *(_kernel(k, x, threads) for k, x in enumerate(operations))])


def _kernel(number: int, operation: Operation, threads: int) -> str:
    """One thread per lane: it reads its operands in place, computes and writes or adds its result."""
    results = {"out": operation.written} | {f"sum_{name}": shape for name, shape in operation.adds.items()}
    shapes = {array(name): shape for name, shape in operation.inputs.items()} | results
    parameters, places = [], []
    for name, rank in ((name, len(shape)) for name, shape in shapes.items()):
        kind = "T" if name in results else "const T"
        strides = [f"const long long {name}_s{k}" for k in range(rank)]
        where = [f"const long long {name}_base", f"const long long {name}_step", *strides]
        parameters.append(", ".join([f"{kind}* {name}, const long long* {name}_index", *where]))
        places.append(f"  {name} += {name}_index ? {name}_index[lane] : {name}_base + lane * {name}_step;")

    # for a flat result: the part to which each entry belongs
    parts = [(name, *index) for name, shape in results.items() for index in np.ndindex(*shape)]

    def entry(name: Any) -> str:
        first, indices = array(name[0]), name[1:]
        if operation.adds and first == "out":
            first, *indices = parts[indices[0]]
        terms = [f"{i} * {first}_s{k}" for k, i in enumerate(indices) if i] or ["0"]
        return f"{first}[{' + '.join(terms)}]"

    w = CWriter(64)
    found = [(entry(name), x) for name, x in w.emit(operation.code, entry).items()]
    for some in (found[k : k + AT_ONCE] for k in range(0, len(found), AT_ONCE)):
        current = {place: w.let(place) for place, _ in some if place.startswith("sum_")}
        for place, x in some:
            w.do(f"{place} = {f'{current[place]} + {x}' if place in current else x};")
    body = "\n".join([*places, *w.lines])
    return f"""\
// {operation.name}: {operation.work} operations
extern "C" __global__ void {Launch(threads, 255).bounds}
task_{number}({", ".join(parameters)}, const long long lanes) {{
  const long long lane = (long long)blockIdx.x * {threads} + threadIdx.x;
  if (lane >= lanes) return;
{body}
}}
"""


class DeviceScheduleRunner:
    """Memory on the device for one schedule, and all its launches recorded as one graph."""

    def __init__(self, plan: LevelSchedule) -> None:
        cp = cupy()
        self.schedule = plan
        self.buffers = {name: cp.zeros(size) for name, size in plan.sizes.items()}
        for name, values in plan.contents.items():
            self.buffers[name][:] = cp.asarray(values)
        tasks = [task for level in plan.levels for task in level.tasks]
        operations = list({id(task.operation): task.operation for task in tasks}.values())
        text = source(operations)
        module = cp.RawModule(code=text, options=OPTIONS)
        kernels = {id(x): module.get_function(f"task_{k}") for k, x in enumerate(operations)}
        self._alive: list[Any] = []  # arrays of places that launches use
        self._launches = [(kernels[id(task.operation)], task.lanes, self._arguments(task)) for task in tasks]
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            self._all()  # loads the module; loading cannot be recorded
            stream.synchronize()
            stream.begin_capture()
            self._all()
            self.graph = stream.end_capture()

    def _all(self) -> None:
        for name in self.schedule.cleared:
            self.buffers[name].data.memset_async(0, self.buffers[name].nbytes)
        for kernel, lanes, arguments in self._launches:
            kernel((-(-lanes // THREADS),), (THREADS,), arguments)

    def _arguments(self, task: LaneTask) -> tuple[Any, ...]:
        operands = [*task.reads, task.write, *task.adds]
        return (*(x for operand in operands for x in self._operand(operand)), np.int64(task.lanes))

    def _operand(self, operand: Operand) -> list[Any]:
        cp = cupy()
        start, step, index = 0, 0, np.uint64(0)
        if isinstance(operand.base, range):
            start, step = operand.base.start, operand.base.step
        else:
            self._alive.append(cp.asarray(operand.base, dtype=np.int64))
            index = np.uint64(self._alive[-1].data.ptr)
        return [self.buffers[operand.buffer], index, *(np.int64(x) for x in (start, step, *operand.strides))]

    def fill(self, inputs: Mapping[str, Any]) -> None:
        """Copy inputs into their buffers, on the current stream."""
        for name, values in inputs.items():
            self.buffers[name][: values.size] = values.ravel()

    def launch(self) -> None:
        """All levels in order, on the current stream."""
        self.graph.launch(cupy().cuda.get_current_stream())

    def run(self, inputs: Mapping[str, Any], outputs: Sequence[str]) -> list[Any]:
        """Copies of buffers after a run with these inputs; the call does not wait for the device."""
        self.fill(inputs)
        self.launch()
        return [self.buffers[name].copy() for name in outputs]


class DeviceChain:
    """Forward dynamics ("forward_dynamics"), M^-1 b ("mass_solve") or log det M ("log_det") of one long chain, on the
    device, in float64; with `vjp`, the cotangents of their inputs, for one more argument.

    >>> fd = DeviceChain(model)                      # doctest: +SKIP
    >>> qdd = fd(q, v, tau)                          # doctest: +SKIP   CuPy arrays in and out
    """

    def __init__(self, model: Model, function: str = "forward_dynamics", *, options: Sequence[str] = (),
                 vjp: bool = False, run: int = RUN) -> None:  # fmt: skip
        if function not in INPUTS:
            raise ArgumentError(f"unknown function {function!r}; on the device there are: {', '.join(INPUTS)}")
        self.model, self.inputs = model, (*INPUTS[function], *options)
        if vjp:
            self.inputs += (cotangent(OUTPUTS[function]),)
        self.outputs, self.vjp = results_of(function, vjp), vjp
        plan = schedule(model, function, options=options, lanes_apart=False, vjp=vjp, run=run)
        self.sizes = [plan.sizes[name] for name in self.inputs]
        self.engine = DeviceScheduleRunner(plan)

    def __call__(self, *args: Any) -> Any:
        cp = cupy()
        arrays = [cp.asarray(x, dtype=cp.float64) for x in args]
        for name, x, size in zip(self.inputs, arrays, self.sizes, strict=True):
            shape = () if name == cotangent("log_det") else (size,)
            if x.shape != shape:
                raise ArgumentError(f"{name} has shape {x.shape}; {self.model!r} needs {shape}")
        results = self.engine.run(dict(zip(self.inputs, arrays)), self.outputs)
        if self.vjp:
            return results
        return results[0].reshape(()) if self.outputs == ("log_det",) else results[0]
