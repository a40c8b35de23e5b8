"""The adjoint of the log-depth schedule, on the CPU: the same levels run on a GPU."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from machines import difference

import torsor as ts
from torsor import zoo
from torsor.algorithms import articulated
from torsor.backends.gpu import in_levels
from torsor.compiler.derivative import derivative
from torsor.dynamics import calls
from torsor.model.joints import JOINTS
from torsor.parallel.schedule import Operation
from torsor.parallel.solver import Solver, schedule

# Both round in another order, along a chain; the sweeps' adjoint errs by 2e-15 itself (bench/derivatives.py).
ROUNDING = 1e-12
FUNCTIONS = {
    "forward_dynamics": (ts.forward_dynamics, ("q", "v", "tau"), "~qdd"),
    "mass_solve": (ts.mass_solve, ("q", "b"), "~qdd"),
    "log_det": (ts.log_det_mass_matrix, ("q",), "~log_det"),
}


def state_of(model, names, seed=0):
    rng = np.random.default_rng(seed)
    state = {"q": model.random_configuration(rng), "v": 0.1 * rng.normal(size=model.nv)}
    return {name: state.get(name, rng.normal(size=model.nv)) for name in names}


def compared(function, model, run=8):
    public, names, output = FUNCTIONS[function]
    state = state_of(model, names)
    cotangent = np.random.default_rng(1).normal(size=1 if function == "log_det" else model.nv)
    found = Solver(model, function, run=run, vjp=True)({**state, output: cotangent})
    expected = ts.vjp(public)(model, *state.values(), cotangent[0] if function == "log_det" else cotangent)
    assert len(found) == len(expected)
    largest = max(np.abs(x).max() for x in expected)  # M of sliding joints does not depend on q: that cotangent is zero
    return max(difference(a, b, scale=largest) for a, b in zip(found, expected))


def interpreted(operation):
    """An operation on NumPy arrays: no compiler needs to be waited for."""

    def run(*reads, out=None):
        arrays = {name: np.moveaxis(x, 0, -1) for name, x in zip(operation.inputs, reads)}
        result = np.zeros((len(reads[0]), *operation.shape)) if out is None else out
        for (_, *place), x in operation.code.evaluate(arrays).items():
            result[(slice(None), *place)] = x
        return result

    return run


@pytest.mark.parametrize("function", FUNCTIONS)
def test_levels_have_the_vjp_of_sweeps(function, monkeypatch):
    monkeypatch.setattr(Operation, "ufunc", property(interpreted))
    assert compared(function, zoo.rope(21), run=2) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_levels_as_machine_code(function):
    assert compared(function, zoo.rope(21), run=2) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("joint", [joint.name for joint in JOINTS if 0 < joint.nv < 6])
def test_every_joint(joint, function):
    # on sliding joints the accelerations by levels differ by 1e-13 themselves
    assert compared(function, zoo.random_chain(9, 3, joints=(joint,)), run=2) < 10 * ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 9, 100, 3000])
def test_every_length(n):
    assert compared("forward_dynamics", zoo.random_chain(n, 1)) < 10 * ROUNDING


@pytest.mark.slow
def test_rotors_and_batches():
    model = replace(zoo.rope(6), armature=0.1)
    assert compared("forward_dynamics", model, run=2) < ROUNDING
    solver = Solver(model, vjp=True, run=2)
    state = {name: np.stack([x, 2 * x]) for name, x in state_of(model, ("q", "v", "tau")).items()}
    state["q"][1] /= 2
    both = solver({**state, "~qdd": np.ones((2, model.nv))})
    again = solver({name: x[0] for name, x in state.items()} | {"~qdd": np.ones(model.nv)})
    assert all(np.array_equal(a[0], b) for a, b in zip(both, again))


def test_the_adjoint_doubles_the_levels_and_takes_no_tree():
    primal, both = (schedule(zoo.rope(64), vjp=vjp) for vjp in (False, True))
    assert len(primal.levels) < both.depth < 6 * primal.depth
    with pytest.raises(ts.ArgumentError, match="branches"):
        schedule(zoo.random_tree(7, 1, joints=("revolute",)), vjp=True)


def test_which_derivatives_go_by_levels():
    fd = articulated.forward_dynamics
    assert in_levels(fd) == ("forward_dynamics", False)
    assert in_levels(derivative(fd, "vjp", fd.inputs)) == ("forward_dynamics", True)
    assert in_levels(derivative(fd, "vjp", ("q",)))[0] == "forward_dynamics_vjp"
    assert in_levels(derivative(fd, "jvp", fd.inputs))[0] == "forward_dynamics_jvp"


@pytest.mark.parametrize("lost", [0.0, 1e-9])
def test_a_vjp_on_a_gpu_goes_by_levels_if_they_keep_their_digits(lost, monkeypatch):
    """With the engine of the CPU in place of the device's."""
    monkeypatch.setattr(Operation, "ufunc", property(interpreted))

    class Levels:
        def __init__(self, model, function, options, vjp):
            self.solver = Solver(model, function, vjp=vjp, run=2)

        def __call__(self, *state):
            found = self.solver(dict(zip(("q", "v", "tau", "~qdd"), state)))
            return [x * (1 + lost) for x in found]

    monkeypatch.setattr("torsor.parallel.device.DeviceChain", Levels)
    monkeypatch.setattr("torsor.backends.gpu.cupy", lambda: SimpleNamespace(asnumpy=np.asarray))
    model, fd = zoo.random_chain(6, 4 + (lost > 0)), articulated.forward_dynamics
    chain = calls.levels(derivative(fd, "vjp", fd.inputs), model)
    if lost:
        assert chain is None
        return
    state = [*state_of(model, ("q", "v", "tau")).values(), np.ones(model.nv)]
    found, expected = chain(*state), ts.vjp(ts.forward_dynamics)(model, *state)
    assert found._fields == ("q", "v", "tau")
    assert all(difference(x, y) < ROUNDING for x, y in zip(found, expected))
