"""Schedules: levels of independent operations, as data that any engine can run."""

from itertools import pairwise

import numpy as np
import pytest
from machines import difference

import torsor as ts
from torsor import zoo
from torsor.parallel.branches import main_chain
from torsor.parallel.chain import RUN, runs_of
from torsor.parallel.engine import ScheduleRunner
from torsor.parallel.schedule import places
from torsor.parallel.solver import Solver, schedule

ROUNDING = 1e-12  # two ways through the same equations


@pytest.fixture(scope="module")
def tree():
    return zoo.random_tree(7, 2, joints=("revolute", "spherical"), branching=0.6)


@pytest.fixture(scope="module")
def arm():
    return zoo.general_arm(40, 1)


def state(model, seed=0):
    rng = np.random.default_rng(seed)
    q, v, tau = model.random_configuration(rng), 0.3 * rng.normal(size=model.nv), rng.normal(size=model.nv)
    return {"q": q, "v": v, "tau": tau}


def all_places(operand, shape):
    """Every place an operand touches: (lanes, entries)."""
    index = np.asarray(operand.base)
    for n, stride in zip(shape, operand.strides):
        index = index[..., None] + stride * np.arange(n)
    return index.reshape(len(operand.base), -1)


@pytest.mark.parametrize(("name", "vjp"), [("tree", False), ("arm", False), ("arm", True)])
@pytest.mark.parametrize("function", ["forward_dynamics", "mass_solve"])
@pytest.mark.parametrize("lanes_apart", [True, False])
def test_operations_of_a_level_are_independent(name, vjp, function, lanes_apart, request):
    """Nothing is written twice in a level, and nothing that is written is read by another lane."""
    for level in schedule(request.getfixturevalue(name), function, vjp=vjp, lanes_apart=lanes_apart).levels:
        writers = {}
        for t, task in enumerate(level.tasks):
            shapes = task.operation.written, *task.operation.adds.values()
            for operand, shape in zip((task.write, *task.adds), shapes, strict=True):
                for lane, row in enumerate(all_places(operand, shape)):
                    for place in row.tolist():
                        assert writers.setdefault((operand.buffer, place), (t, lane)) == (t, lane)
        for t, task in enumerate(level.tasks):
            for operand, shape in zip(task.reads, task.operation.inputs.values()):
                for lane, row in enumerate(all_places(operand, shape)):
                    for place in row.tolist():
                        assert writers.get((operand.buffer, place), (t, lane)) == (t, lane)


@pytest.mark.parametrize("name", ["tree", "arm"])
def test_the_schedule_is_all_an_engine_needs(name, request):
    """Levels, buffers and functions run one number at a time in plain Python give the same answer."""
    model = request.getfixturevalue(name)
    s, inputs = schedule(model), state(model)
    buffers = {name: np.zeros(size) for name, size in s.sizes.items()}
    for buffer, values in (s.contents | inputs).items():
        buffers[buffer][:] = values
    for level in s.levels:
        for task in level.tasks:
            read = [all_places(x, shape) for x, shape in zip(task.reads, task.operation.inputs.values())]
            write = all_places(task.write, task.operation.shape)
            for lane in range(task.lanes):
                arguments = [
                    buffers[x.buffer][index[lane]].reshape(shape).tolist()
                    for x, index, shape in zip(task.reads, read, task.operation.inputs.values())
                ]
                buffers[task.write.buffer][write[lane]] = np.ravel(task.operation.function(*arguments))
    assert difference(buffers["qdd"], ts.forward_dynamics(model, *inputs.values())) < ROUNDING


def test_lanes_side_by_side_give_the_same(arm):
    """The layout for threads that read together."""
    inputs = state(arm)
    apart, beside = (ScheduleRunner(schedule(arm, lanes_apart=x)).run(inputs, ["qdd"])[0] for x in (True, False))
    assert np.array_equal(apart, beside)


def test_threads_give_the_same_bits():
    model = zoo.general_arm(9000, 1)  # lanes enough to share
    inputs = state(model)
    one, two = (Solver(model, threads=k)(inputs) for k in (1, 2))
    assert np.array_equal(one, two)


def test_a_solver_may_be_called_again(tree):
    """Nothing of one call is left for the next."""
    solver, first, second = Solver(tree), state(tree), state(tree, seed=1)
    before = solver(first)
    solver(second)
    assert np.array_equal(solver(first), before)


@pytest.mark.parametrize("joints", [("revolute",), ("helical", "planar"), pytest.param(None, marks=pytest.mark.slow)])
def test_log_det_in_levels(joints):
    model = zoo.random_chain(9, 3, joints=joints)
    q = state(model)["q"]
    solver = Solver(model, "log_det")
    assert solver.schedule.depth <= np.log2(model.n) + 5
    assert abs(solver({"q": q})[0] - ts.log_det_mass_matrix(model, q)) < ROUNDING * model.nv


def test_log_det_in_levels_is_for_chains(tree):
    with pytest.raises(ts.ArgumentError, match="branches"):
        schedule(tree, "log_det")


def levels(n, function):
    return schedule(zoo.general_arm(n, 1), function).depth


@pytest.mark.parametrize("n", [1, 10, 100, 1000, 2**14, pytest.param(2**20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", ["forward_dynamics", "mass_solve", "log_det"])
def test_depth_is_logarithmic(n, function):
    assert levels(n, function) <= 2 * np.log2(n) + 10


def test_depth_is_logarithmic_where_every_body_is_a_run_of_its_own():
    """Kinds that change from body to body: the worst case."""
    n = 2000
    model = zoo.random_chain(n, 1, joints=("revolute", "prismatic"))
    assert schedule(model).depth <= 2 * np.log2(n) + 10


def test_work_stays_near_that_of_the_sweeps():
    model = zoo.general_arm(2**13, 1)
    for function in (ts.forward_dynamics, ts.mass_solve):
        sweeps = sum(ts.compile(model, function, specialised=False, lanes=1).operations)
        assert schedule(model, function.__name__).work <= 5 * sweeps


def test_the_critical_path_grows_like_the_logarithm():
    """Four times the links: one more level each way, however long the chain."""
    paths = [schedule(zoo.rope(n)).critical_path for n in (400, 1600, 6400)]
    assert paths[2] - paths[1] == paths[1] - paths[0] > 0


def test_the_report_names_every_level(arm):
    s = schedule(arm)
    text = s.report()
    assert all(level.name in text for level in s.levels)
    assert f"{s.depth} levels" in text
    assert str(s.work) in text


def test_depth_of_a_tree_is_that_of_its_main_chain_and_its_side_branches():
    """A comb: 64 teeth of 3 bodies cost a few levels a generation, whatever the length of the back."""
    back = np.arange(-1, 63)
    parent = np.concatenate([back, np.arange(64), 64 + np.arange(128)])
    parts = zoo.random_tree(256, 1, joints=("revolute",))
    model = ts.Model.tree(
        parent, axis=parts.axis, R=parts.R, p=parts.p, mass=parts.mass, com=parts.com, inertia=parts.inertia
    )
    assert schedule(model).depth <= 2 * np.log2(64) + 10 + 5 * 3
    inputs = state(model)
    got = ts.forward_dynamics(model, **inputs, method="constraint-force")
    assert difference(got, ts.forward_dynamics(model, **inputs)) < ROUNDING


def test_the_main_chain_is_the_longest_way_out():
    parent = [-1, 0, 1, 0, 3, 4, -1, 6]
    model = ts.Model.tree(parent, p=(0.1, 0, 0), mass=1.0, com=(0.1, 0, 0), inertia=(0.1, 0.1, 0.1))
    assert main_chain(model).tolist() == [0, 3, 4, 5]


def test_runs_are_bodies_of_one_kind():
    kind = np.array([0] * (2 * RUN + 1) + [1] * 2 + [0] * RUN)
    starts = runs_of(kind, RUN)
    assert starts[-1] == len(kind)
    for a, b in pairwise(starts):
        assert b - a in (1, RUN)
        assert len(set(kind[a:b])) == 1
    assert len(starts) - 1 == 2 + 1 + 2 + 1


def test_places_are_a_range_where_they_can_be():
    assert places(np.array([3, 5, 7])) == range(3, 9, 2)
    assert places(np.array([4])) == range(4, 5)
    assert isinstance(places(np.array([3, 5, 8])), np.ndarray)
