"""float64 against the very same steps in mpmath with 50 digits, for 6 and for 30 bodies."""

import mpmath
import numpy as np
import pytest
from machines import precise
from mpmath import mp
from peers import State

import torsor as ts
from torsor import zoo
from torsor.algorithms import articulated, composite, coriolis, energy, kinematics, newton_euler, ploen_park

DIGITS = 50
TOLERANCE = 1e-13  # relative to the largest entry of the answer
THROUGH_M = 1e-12  # solving with M itself pays for its condition, 1e4 here; the sweeps do not

MODELS = {
    "arm of 6": lambda: zoo.general_arm(6, 0),
    "tree of 30, every joint type": lambda: zoo.random_tree(30, 0),
}
MORE_MODELS = {
    "tree of 6": lambda: zoo.random_tree(6, 0),
    "arm of 30": lambda: zoo.general_arm(30, 0),
}

# Public functions whose answer is the output of one algorithm, taking that algorithm's inputs in order.
STEPS = {
    "forward_dynamics": articulated.forward_dynamics,
    "inverse_dynamics": newton_euler.inverse_dynamics,
    "bias_forces": newton_euler.bias_forces,
    "gravity_forces": newton_euler.gravity_forces,
    "mass_matrix": composite.mass_matrix,
    "inverse_mass_matrix": articulated.inverse_mass_matrix,
    "mass_solve": articulated.mass_solve,
    "coriolis_matrix": coriolis.coriolis_matrix,
    "body_poses": kinematics.body_poses,
    "body_twists": kinematics.body_twists,
    "kinetic_energy": energy.kinetic_energy,
    "potential_energy": energy.potential_energy,
    "momentum": energy.momentum,
    "center_of_mass": energy.center_of_mass,
}


@pytest.fixture(scope="module", params=[*MODELS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_MODELS)])
def model(request):
    return (MODELS | MORE_MODELS)[request.param]()


@pytest.fixture(scope="module")
def state(model):
    return State.random(model, seed=14)


def inputs(algorithm, state, *options):
    """What the algorithm takes, by its names."""
    in_state = {"qdd": "v_dot", "b": "tau"}
    return {x: getattr(state, in_state.get(x, x)) for x in (*algorithm.inputs, *options)}


def exactly(algorithm, model, state, *options, body=None):
    with mp.workdps(DIGITS):
        return precise(algorithm, model, body, **inputs(algorithm, state, *options))


def relative_error(result, exact):
    """max |result - exact| / max |exact|, subtracted with all digits."""
    result, exact = np.asarray(result), np.asarray(exact, dtype=object)
    assert result.shape == exact.shape
    with mp.workdps(DIGITS):
        errors = [abs(mpmath.mpf(float(a)) - b) for a, b in zip(result.flat, exact.flat)]
        return float(max(errors) / max(abs(b) for b in exact.flat))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("function", STEPS)
def test_double_precision_loses_no_more_than_rounding(model, state, function):
    algorithm = STEPS[function]
    result = getattr(ts, function)(model, *inputs(algorithm, state).values())
    assert relative_error(result, exactly(algorithm, model, state)) <= TOLERANCE


@pytest.mark.parametrize("function", ["jacobian", "jacobian_dot"])
def test_jacobians_are_as_precise(model, state, function):
    algorithm, tip = getattr(kinematics, function), model.n - 1
    result = getattr(ts, function)(model, *inputs(algorithm, state).values(), tip)
    assert relative_error(result, exactly(algorithm, model, state, body=tip)) <= TOLERANCE


def test_log_det_is_as_precise(model, state):
    pivots = exactly(articulated.pivots, model, state)
    with mp.workdps(DIGITS):
        exact = mp.fsum(map(mp.log, pivots))
    assert relative_error(ts.log_det_mass_matrix(model, state.q), exact) <= TOLERANCE


@pytest.mark.parametrize("method", ["newton-euler", "ploen-park"])
def test_inverse_dynamics_under_external_wrenches_is_as_precise(model, state, method):
    tau = ts.inverse_dynamics(model, state.q, state.v, state.v_dot, external=state.external, method=method)
    assert relative_error(tau, exactly(ploen_park.inverse_dynamics, model, state, "external")) <= TOLERANCE


@pytest.mark.parametrize(("method", "tolerance"), [("articulated", TOLERANCE), ("composite", THROUGH_M)])
def test_forward_dynamics_under_external_wrenches_is_as_precise(model, state, method, tolerance):
    qdd = ts.forward_dynamics(model, state.q, state.v, state.tau, external=state.external, method=method)
    assert relative_error(qdd, exactly(articulated.forward_dynamics, model, state, "external")) <= tolerance


def test_composite_and_articulated_steps_agree_to_all_digits(model, state):
    """M^-1 from one algorithm times M from another, with 50 digits: no misprint can hide in the last one."""
    M, M_inverse = (
        exactly(algorithm, model, state) for algorithm in (composite.mass_matrix, articulated.inverse_mass_matrix)
    )
    with mp.workdps(DIGITS):
        assert np.max(abs(M_inverse @ M - np.eye(model.nv))) <= mpmath.mpf(10) ** (10 - DIGITS)
