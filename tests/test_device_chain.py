"""The log-depth schedule as CUDA C: what can be said of it without a GPU."""

import re
from math import prod

import pytest

from torsor import zoo
from torsor.parallel.device import source
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
