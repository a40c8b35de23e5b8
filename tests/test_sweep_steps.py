"""`ts.steps`: the steps that are shown are those that compute the result, and what they read is all that they need."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from peers.installed import peer

import torsor as ts
from torsor.dynamics.functions import ALGORITHMS
from torsor.dynamics.methods import METHODS
from torsor.model.extras import Coupling, Extras
from torsor.model.links import links
from torsor.reference import StepRecorder
from torsor.sweeps import Here, Sweep

sympy = peer("sympy")
TOLERANCE = 1e-9  # of numbers of order one to a hundred, by the same formulas in another order
CASES = [
    (function, method)
    for function, algorithm in ALGORITHMS.items()
    if function is not ts.log_det_gradient
    for method in METHODS.get(function.__name__, ["auto"])
]
NAMES = {"ids": lambda x: getattr(x, "__name__", x)}


def state_of(model, function, seed=0):
    """A state as the function takes it, and the body of a Jacobian."""
    rng = np.random.default_rng(seed)
    count = len(ALGORITHMS[function].inputs) - 1
    more = {"body": model.n - 1} if function in (ts.jacobian, ts.jacobian_dot) else {}
    return [model.random_configuration(rng), *rng.normal(size=(count, model.nv))], more


def numbers(result):
    return np.concatenate([np.ravel(x) for x in (result if isinstance(result, tuple) else (result,))])


@pytest.mark.parametrize(("function", "method"), CASES, **NAMES)
def test_the_result_of_the_steps_is_that_of_the_function(function, method):
    model = ts.zoo.random_tree(6, np.random.default_rng(3))
    state, more = state_of(model, function)
    run = ts.steps(model, function, *state, method=method, **more)
    expected = numbers(function(model, *state, **more))
    assert np.abs(numbers(run.result) - expected).max() < TOLERANCE * max(1.0, np.abs(expected).max())
    assert set(run.sweeps) == {step.sweep for step in run}
    assert repr(run).count("\n") > len(run.sweeps)


def test_what_a_step_read_is_all_that_it_needs():
    """A step called again with nothing but that gives the same values."""
    model = ts.zoo.random_tree(8, np.random.default_rng(5))
    state, _ = state_of(model, ts.forward_dynamics)
    recorder = StepRecorder(ALGORITHMS[ts.forward_dynamics], model)
    recorder.evaluate(dict(zip(("q", "v", "tau"), (x.tolist() for x in state))))
    bodies, passes = links(model), ALGORITHMS[ts.forward_dynamics].passes
    assert len(recorder.records) == 3 * model.n
    for record in recorder.records.values():
        sweep = passes[record.number - 1]
        assert isinstance(sweep, Sweep)
        hand, keep = sweep.step(bodies[record.body], Here(**record.read), SimpleNamespace(**record.received))
        assert (hand, keep) == (record.handed, record.kept)


def test_pivots_are_those_of_the_mass_matrix():
    model = ts.zoo.general_arm(4)
    q = model.random_configuration(np.random.default_rng(0))
    run = ts.steps(model, "articulated", q, np.zeros(4), np.zeros(4))
    pivots = [run["articulate", name].kept["D"][0, 0] for name in model.names]
    M = ts.mass_matrix(model, q)
    corners = [np.linalg.det(M[k:, k:]) for k in range(4)] + [1.0]
    assert np.allclose(pivots, [a / b for a, b in pairwise(corners)], rtol=1e-9)


def test_outward_sweeps_receive_what_the_parent_handed_on():
    model = ts.zoo.humanoid()
    run = ts.steps(model, ts.body_twists, model.neutral(), np.arange(model.nv))
    for step in run:
        parent = model.parent[model.names.index(step.body)]
        if parent >= 0:
            assert np.array_equal(step.received["V"], run["twists", model.names[parent]].handed["V"])


def test_coupled_joints():
    model = replace(ts.zoo.general_arm(3), extras=Extras(couplings=(Coupling(1, 0, 0.5, 0.0),)))
    run = ts.steps(model, ts.mass_solve, [0.2, 0.1, 0.3], [1, 2, 3])
    assert np.allclose(run.result, ts.mass_solve(model, [0.2, 0.1, 0.3], [1, 2, 3]), rtol=TOLERANCE)
    with pytest.raises(ts.ArgumentError, match="knows no coupled joints"):
        ts.steps(model, "articulated", np.zeros(3), np.zeros(3), np.zeros(3))


def test_symbols():
    a, b = sympy.symbols("a b")
    run = ts.steps(ts.zoo.double_pendulum(), "newton-euler", [a, b], [0, 0], [0, 0])
    torque = sympy.lambdify((a, b), run.result[1])(0.3, 0.4)
    assert torque == pytest.approx(9.81 / 2 * np.sin(0.7))
    assert repr(run["forces", "link2"]).startswith("forces at link2 (inward)")


def test_climbs_are_told_apart_by_their_freedom():
    run = ts.steps(ts.zoo.panda(), "mass_matrix", np.zeros(7))
    step = run["rise", "link2", 5]
    assert step.freedom == 5
    assert step.kept["M"] == pytest.approx(run.result[1, 5])
    with pytest.raises(ts.ArgumentError, match=r"freedoms \[2, 3, 4, 5, 6\]"):
        run["rise", "link2"]
    assert run[0].title == "compose at link7 (inward)"
    assert len(run[1:3]) == 2


def test_a_notebook_shows_the_values():
    run = ts.steps(ts.zoo.pendulum(), "articulated", [0.5], [0], [1])
    assert run._repr_html_().count("<tr>") == 1 + len(run.sweeps) + len(run)  # the head, a law per sweep, the steps
    assert "tau =\n[1.]" in run["articulate", "link1"]._repr_html_()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("articulatd", [0], [0], [0]), "unknown algorithm 'articulatd'; choose one of: articulated, composite"),
        (("articulated", [0], [0]), "forward_dynamics takes q, v, tau: 3 arrays, not 2"),
        (("articulated", [[0]], [[0]], [[0]]), r"q has shape \(1, 1\); steps shows one state, \(1,\)"),
        ((ts.log_det_gradient, [0]), "no sweeps of its own"),
        ((ts.jacobian, [0]), "jacobian needs body="),
        ((print, [0]), "print"),
        (("articulated", [np.nan], [0], [0]), "q"),
    ],
)
def test_bad_requests_are_refused(arguments, message):
    with pytest.raises(ts.ArgumentError, match=message):
        ts.steps(ts.zoo.pendulum(), *arguments)


def test_unknown_options_sweeps_and_bodies_are_refused():
    pendulum = ts.zoo.pendulum()
    with pytest.raises(ts.ArgumentError, match="mass_matrix takes no external; options: none"):
        ts.steps(pendulum, "mass_matrix", [0], external=np.zeros((1, 6)))
    run = ts.steps(pendulum, "articulated", [0], [0], [0], external=np.ones((1, 6)))
    assert run["motion", "link1"].read["external"].shape == (6,)
    for key in ("no", ("motion", "no")):
        with pytest.raises(ts.ArgumentError, match="no"):
            run[key]


def test_formulas_of_joints_have_no_idle_factors():
    """The angle of a revolute joint is its coordinate: sin(q1), not sin(1.0 q1)."""
    symbols = sympy.symbols("q1 q2")
    run = ts.steps(ts.zoo.double_pendulum(), "newton-euler", symbols, [0, 0], [0, 0])
    turned = {str(x) for step in run["motion"] for x in np.ravel(step.kept["E"])}
    assert "cos(q2)" in turned
    assert not [x for x in turned if "*q" in x]
