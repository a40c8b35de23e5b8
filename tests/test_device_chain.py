"""The log-depth schedule as CUDA C: what can be said of it without a GPU."""

import re
from functools import partial
from math import prod
from types import SimpleNamespace

import cuda_host
import numpy as np
import pytest
from peers import assert_close

import torsor as ts
from torsor import reference, zoo
from torsor.dynamics.functions import ALGORITHMS
from torsor.parallel.device import DeviceChain, source
from torsor.parallel.solver import schedule


@pytest.fixture(scope="module", params=[False, True], ids=["forward dynamics", "vjp"])
def plan(request):
    return schedule(zoo.random_chain(300, seed=1), lanes_apart=False, vjp=request.param)


def test_every_operation_is_a_kernel_with_all_its_operands(plan):
    operations = list({id(t.operation): t.operation for level in plan.levels for t in level.tasks}.values())
    text = source(operations)
    for k, operation in enumerate(operations):
        head = re.search(rf"task_{k}\((.*?)\) {{", text, re.S)
        assert head
        parameters = head.group(1).split(",")
        operands = [*operation.inputs.values(), operation.written, *operation.adds.values()]
        # pointer, places, base and step of every operand, a stride an axis, and the number of lanes
        assert len(parameters) == 4 * len(operands) + sum(map(len, operands)) + 1
        body = text[head.end() : text.find('extern "C"', head.end()) % len(text)]
        results = (len(re.findall(rf"^  {name}\[.*? = ", body, re.M)) for name in ("out", r"sum_\w+"))
        assert tuple(results) == (prod(operation.written), sum(map(prod, operation.adds.values())))


def test_neighbouring_lanes_read_neighbouring_numbers(plan):
    """Threads of a warp read together: in the big levels every operand is a step of one from lane to lane."""
    condense = next(level for level in plan.levels if level.name == "condense")
    for task in condense.tasks:
        if task.lanes > 16:
            steps = [x.base.step for x in task.reads if isinstance(x.base, range) and x.buffer not in ("q", "v", "tau")]
            assert steps
            assert set(steps) == {1}


def test_launches_grow_like_the_logarithm():
    launches = {n: len(schedule(zoo.rope(n), lanes_apart=False).levels) for n in (64, 4096)}
    assert launches[4096] - launches[64] == 4 * 3  # four tree passes, three more levels of fourfold joins


class Device(np.ndarray):
    """Memory of the device that is memory of the host."""

    @property
    def data(self):
        def memset(value, size):
            self.view(np.uint8)[:size] = value

        return SimpleNamespace(ptr=self.ctypes.data, memset_async=memset)


class Recorded:
    """A stream that records launches, and the graph of them."""

    recording = None

    def __init__(self, **_):
        self.launches = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def synchronize(self):
        pass

    def begin_capture(self):
        Recorded.recording = self

    def end_capture(self):
        Recorded.recording = None
        return self

    def launch(self, stream):
        for again in self.launches:
            again()


class Kernels:
    """A module of CUDA C, compiled for the host."""

    def __init__(self, code, options):
        self.code = code

    def get_function(self, name):
        def launch(grid, block, arguments):
            if Recorded.recording:
                Recorded.recording.launches.append(partial(launch, grid, block, arguments))
            cuda_host.launch(self.code, grid[0], arguments, block[0], name)

        return launch


@pytest.fixture
def host(monkeypatch):
    """What the levels use of CuPy, on the host."""
    on_device = lambda x, dtype=None: np.array(x, dtype).view(Device)  # noqa: E731
    stream = SimpleNamespace(Stream=Recorded, get_current_stream=lambda: None)
    parts = dict(asarray=on_device, zeros=lambda n: np.zeros(n).view(Device), float64=np.float64, RawModule=Kernels)
    monkeypatch.setattr("torsor.parallel.device.cupy", lambda: SimpleNamespace(cuda=stream, **parts))


@pytest.mark.skipif(not cuda_host.compiler(), reason="needs g++ or clang++")
def test_the_launches_of_a_chain_give_its_accelerations(host):
    """The kernels, their grids, arguments and order, run on the host: against the reference engine, and once more on
    another state, because what is added up has to be cleared."""
    model, rng = zoo.random_chain(70, seed=3), np.random.default_rng(0)
    chain = DeviceChain(model, run=2)
    for _ in range(2):
        q, v, tau = model.random_configuration(rng), rng.normal(size=model.nv), rng.normal(size=model.nv)
        expected = reference.evaluate(ALGORITHMS[ts.forward_dynamics], model, dict(q=list(q), v=list(v), tau=list(tau)))
        assert_close(model, chain(q, v, tau), expected, 1e-12)
