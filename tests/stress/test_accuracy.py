"""The accuracy contract (docs/accuracy.md): method="auto" is as accurate as the articulated sweeps on any machine."""

import functools
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import torsor as ts
from stress.family import (
    EPS,
    LONG,
    MORE_LONG,
    MORE_SMALL,
    SMALL,
    error,
    exact,
    states,
    stiff_arm,
    uneven,
    with_masses,
)
from torsor import zoo
from torsor.algorithms import articulated, composite
from torsor.compiler.frames import framed, straight_line_frames
from torsor.dynamics import calls
from torsor.dynamics.accuracy import AGREEMENT
from torsor.dynamics.methods import METHODS, explain
from torsor.model.conditioning import EVEN, REGROUPED, pivot_ratio, pivot_ratios
from torsor.parallel.segments import Segments, serving

# What is added to the sweeps' own error before the factor: one machine's sweeps may be exact by luck.
FEW = 4 * EPS
# Functions that invert nothing: a norm-wise error of some tens of rounding units, summed along at most 30 bodies; some
# hundreds where axes are parallel and velocity terms cancel (300 seen).
DIRECT = 500 * EPS
# Named methods: what they may lose without raising.
NAMED = 2 * AGREEMENT["d"]
STATES = 3

MACHINES = SMALL | MORE_SMALL
CHAINS = LONG | MORE_LONG
machines = pytest.mark.parametrize(
    "name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_SMALL)]
)
chains = pytest.mark.parametrize("name", [*LONG, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_LONG)])


@functools.lru_cache(maxsize=4)
def example(name):
    """A machine, states of it, and the exact accelerations and M^-1 tau there."""
    model = MACHINES[name]()
    q, v, tau = states(model, STATES)
    return (
        model, (q, v, tau), exact(ts.forward_dynamics, model, q, v, tau, method="articulated"),
        exact(ts.mass_solve, model, q, tau, method="articulated"),
    )  # fmt: skip


def loops(model, function):
    """The articulated sweeps as loops, nothing regrouped: the measure."""
    return ts.compile(model, function, method="articulated", specialised=False)


# method="auto" ---------------------------------------------------------------------------------------------------


@machines
def test_forward_dynamics_is_as_accurate_as_the_sweeps(name):
    model, state, expected, _ = example(name)
    allowed = EVEN * (error(loops(model, ts.forward_dynamics)(*state), expected) + FEW)
    assert error(ts.forward_dynamics(model, *state), expected) <= allowed
    one = np.array([ts.forward_dynamics(model, *(x[i] for x in state)) for i in range(STATES)])
    assert error(one, expected) <= allowed
    assert error(ts.compile(model, ts.forward_dynamics)(*state), expected) <= allowed


@machines
def test_mass_solve_is_as_accurate_as_the_sweeps(name):
    model, (q, _, tau), _, expected = example(name)
    allowed = EVEN * (error(loops(model, ts.mass_solve)(q, tau), expected) + FEW)
    assert error(ts.mass_solve(model, q, tau), expected) <= allowed


@machines
def test_the_inverse_mass_matrix_is_as_accurate_as_the_sweeps(name):
    model, (q, *_), *_ = example(name)
    expected = exact(ts.inverse_mass_matrix, model, q, method="articulated")
    allowed = EVEN * (error(loops(model, ts.inverse_mass_matrix)(q), expected) + FEW)
    assert error(ts.inverse_mass_matrix(model, q), expected) <= allowed
    for method in METHODS["inverse_mass_matrix"]:
        assert error(ts.inverse_mass_matrix(model, q, method=method), expected) <= allowed, method


@chains
def test_one_long_chain_is_as_accurate_as_the_sweeps(name):
    model = CHAINS[name]()
    q, v, tau = states(model, 1)
    expected = exact(ts.forward_dynamics, model, q, v, tau, method="articulated")
    sweeps = error(ts.forward_dynamics(model, q, v, tau, method="articulated"), expected)
    for method in ("auto", "segments"):
        found = ts.forward_dynamics(model, q[0], v[0], tau[0], method=method)[None]
        assert error(found, expected) <= EVEN * (sweeps + FEW), method
    for method in ("fixman", "constraint-force"):
        assert named_error(ts.forward_dynamics, method, expected, model, q, v, tau) <= NAMED + EVEN * sweeps


# Methods by name -------------------------------------------------------------------------------------------------


def named_error(function, method, expected, *args):
    """Zero if the method says that it cannot."""
    try:
        return error(function(*args, method=method), expected)
    except ts.SingularError:
        return 0.0


@pytest.mark.thinned(3)
@machines
def test_a_named_method_keeps_half_of_the_digits_or_raises(name):
    model, (q, v, tau), accelerations, solved = example(name)
    questions = {ts.forward_dynamics: ((q, v, tau), accelerations), ts.mass_solve: ((q, tau), solved)}
    for function, (args, expected) in questions.items():
        allowed = NAMED + EVEN * error(loops(model, function)(*args), expected)
        for method in (*METHODS[function.__name__], "fixman", "constraint-force"):
            assert named_error(function, method, expected, model, *args) <= allowed, (function.__name__, method)


@pytest.mark.parametrize("method", ["fixman", "constraint-force"])
def test_a_method_that_left_its_domain_says_which_to_use(method):
    model = uneven(zoo.general_arm(2, 3), "heavy second", 1e12)
    q, v, tau = states(model, STATES)
    with pytest.raises(ts.SingularError, match=r'loses too many digits.*use method "auto" or "articulated"'):
        ts.forward_dynamics(model, q, v, tau, method=method)
    with pytest.raises(ts.SingularError, match=method):
        ts.mass_solve(model, q[0], tau[0], method=method)


def test_a_steep_screw_is_refused_by_relaxed_constraints():
    arm = zoo.random_chain(4, 1, joints=("helical",))
    model = ts.Model.chain("helical", pitch=1e6, axis=arm.axis, R=arm.R, p=arm.p, mass=arm.mass, com=arm.com,
                           inertia=arm.inertia)  # fmt: skip
    q, v, tau = states(model, STATES)
    expected = exact(ts.forward_dynamics, model, q, v, tau, method="articulated")
    sweeps = error(loops(model, ts.forward_dynamics)(q, v, tau), expected)
    assert named_error(ts.forward_dynamics, "fixman", expected, model, q, v, tau) <= NAMED + EVEN * sweeps
    assert error(ts.forward_dynamics(model, q, v, tau), expected) <= EVEN * (sweeps + FEW)


# Functions that invert nothing -----------------------------------------------------------------------------------


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_SMALL)])
def test_functions_that_invert_nothing_lose_only_rounding(name):
    model, (q, v, tau), *_ = example(name)
    arguments = {
        ts.inverse_dynamics: (q, v, tau), ts.bias_forces: (q, v), ts.mass_matrix: (q,), ts.kinetic_energy: (q, v),
        ts.body_twists: (q, v), ts.center_of_mass: (q,),
    }  # fmt: skip
    for function, args in arguments.items():
        assert error(function(model, *args), exact(function, model, *args)) <= DIRECT, function.__name__


# The bound and what is decided by it -----------------------------------------------------------------------------


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", range(20))
def test_no_pivot_is_below_the_bound(seed):
    """M_ii / d_i <= pivot_ratio at any configuration, for any tree of any joints."""
    model = with_masses(zoo.random_tree(5, seed), 10.0 ** np.random.default_rng(seed).uniform(-3, 3, 5))
    q = model.random_configuration(np.random.default_rng(seed), 5)
    pivots, diagonal = (loops_of(algorithm, model)(q) for algorithm in (articulated.pivots, composite.diagonal))
    farthest = float(np.linalg.norm(q, axis=-1).max()) * (1 + float(np.abs(model.pitch).max()))
    bound = pivot_ratios(model, farthest)
    body = np.repeat(np.arange(model.n), np.diff(model.v_start))
    assert np.all(diagonal / pivots <= bound[body] * (1 + DIRECT))
    assert bound.max() <= pivot_ratio(model)


def loops_of(algorithm, model):
    from torsor.backends.cpu import compile_program
    from torsor.compiler.request import NEVER

    return compile_program(algorithm, model, unroll=NEVER)


def test_a_stiff_arm_goes_by_sweeps_and_says_why():
    model = stiff_arm(3, 11, axes="parallel")
    choice = explain(model, ts.forward_dynamics)
    assert choice.method == "articulated"
    assert "digits" in choice.why
    assert (
        min(choice.operations, key=lambda method: sum(choice.operations[method])) == choice.method or choice.operations
    )


def test_masses_are_regrouped_where_that_costs_no_digits():
    for model in (zoo.panda(), uneven(zoo.general_arm(30, 1), "increasing", 1e9)):
        regrouped = straight_line_frames(model) is not framed(model)
        assert regrouped == (pivot_ratios(model, 0.0).max() <= REGROUPED)
    assert not regrouped


def test_segments_say_where_they_lose_digits():
    """NaN in the states that lose digits, which the public functions leave to sweeps; the others as they are."""
    model = uneven(zoo.general_arm(200, 1), "alternating", 1e6)
    q, v, tau = states(model, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert np.isnan(Segments(model)({"q": q, "v": v, "tau": tau})).all()
    assert serving(model) is None
    sweeps = ts.forward_dynamics(model, q, v, tau, method="articulated")
    assert np.array_equal(ts.forward_dynamics(model, q, v, tau, method="segments"), sweeps)
    assert serving(zoo.general_arm(200, 1)) is not None


@pytest.mark.parametrize("lost", [0.0, 1e-9])
def test_one_long_chain_on_a_gpu_goes_by_levels_only_if_they_keep_their_digits(lost, monkeypatch):
    model, algorithm = with_masses(zoo.general_arm(20, 1), np.full(20, 1.0 + lost)), articulated.forward_dynamics

    class Levels:
        def __init__(self, model, function, options, vjp):
            self.model = model

        def __call__(self, *state):
            return ts.forward_dynamics(self.model, *state) * (1 + lost)

    monkeypatch.setattr("torsor.parallel.device.DeviceChain", Levels)
    monkeypatch.setattr("torsor.backends.gpu.cupy", lambda: SimpleNamespace(asnumpy=np.asarray))
    assert (calls.levels(algorithm, model) is None) == (lost > 0)


# Arguments and singular machines above twelve freedoms ------------------------------------------------------------


@pytest.mark.parametrize("method", ["composite", "fixman"])
def test_a_number_is_no_vector_of_torques(method):
    model = zoo.general_arm(14, 1)
    q, v, _ = (x[0] for x in states(model, 1))
    with pytest.raises(ts.ArgumentError, match="tau has shape"):
        ts.forward_dynamics(model, q, v, 1.0, method=method)
    with pytest.raises(ts.ArgumentError, match="b has shape"):
        ts.mass_solve(model, q, 1.0, method=method)
    with pytest.raises(ts.ArgumentError, match="batch axes"):
        ts.forward_dynamics(model, np.tile(q, (2, 1)), v, np.ones((3, 14)), method=method)


def test_a_singular_mass_matrix_of_many_freedoms_names_the_joint():
    n = 14
    p = np.tile([1.0, 0.0, 0.0], (n, 1))
    points = ts.Model.chain("revolute", n=n, p=p, mass=1.0, inertia=(0, 0, 0), allow_degenerate=True)
    with pytest.raises(ts.SingularError, match="link14"):
        ts.forward_dynamics(points, *np.ones((3, n)), method="composite")
    with pytest.raises(ts.SingularError, match="link14"):
        ts.mass_solve(points, *np.ones((2, n)), method="composite")


def test_compile_takes_the_documented_methods_or_says_why_not():
    model = zoo.planar3()
    q = np.ones(3)
    program = ts.compile(model, ts.log_det_mass_matrix, method="articulated")
    assert program(q) == ts.log_det_mass_matrix(model, q)
    for function in (ts.log_det_mass_matrix, ts.mass_solve, ts.forward_dynamics, ts.inverse_mass_matrix):
        with pytest.raises(ts.ArgumentError, match="not compiled"):
            ts.compile(model, function, method="fixman")
    with pytest.raises(ts.ArgumentError, match="one method only"):
        ts.compile(model, ts.mass_matrix, method="articulated")
