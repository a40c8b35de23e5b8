"""torsor against MuJoCo, built from the same numbers: every joint type it has, fixed and floating base."""

import pytest
from peers import QUESTIONS, State, assert_close, random_models
from peers.mujoco_peer import MujocoPeer

import torsor as ts

# Rounding times the condition of M, at most 1e5 here.
TOLERANCE = 1e-11

MODELS = random_models(MujocoPeer.JOINTS)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("function", QUESTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_torsor_agrees_with_mujoco(name, function):
    model = MODELS[name]
    state = State.random(model, seed=4)
    expected = state.ask(MujocoPeer(model), function)
    assert_close(model, state.ask(ts, function, model), expected, TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_coriolis_matrix_times_velocity_is_mujocos_velocity_bias(name):
    """C v is the bias less gravity; MuJoCo forms no C."""
    model = MODELS[name]
    state, peer = State.random(model, seed=5), MujocoPeer(model)
    expected = peer.bias_forces(state.q, state.v) - peer.gravity_forces(state.q)
    C = ts.coriolis_matrix(model, state.q, state.v)
    assert_close(model, C @ state.v, expected, TOLERANCE)
