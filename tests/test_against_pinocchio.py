"""torsor against Pinocchio, built from the same numbers: every joint type, fixed and floating base."""

import numpy as np
import pytest
from peers import QUESTIONS, State, assert_close, random_models
from peers.pinocchio_peer import PinocchioPeer

import torsor as ts

# Rounding times the condition of M, at most 1e5 here.
TOLERANCE = 1e-11

MODELS = random_models(PinocchioPeer.JOINTS)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("function", QUESTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_torsor_agrees_with_pinocchio(name, function):
    model = MODELS[name]
    state = State.random(model, seed=2)
    expected = state.ask(PinocchioPeer(model), function)
    assert_close(model, state.ask(ts, function, model), expected, TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_coriolis_matrix_times_velocity_is_pinocchios_velocity_bias(name):
    """C is not unique, C v is: the bias less gravity."""
    model = MODELS[name]
    state, peer = State.random(model, seed=3), PinocchioPeer(model)
    expected = peer.bias_forces(state.q, state.v) - peer.gravity_forces(state.q)
    C = ts.coriolis_matrix(model, state.q, state.v)
    assert_close(model, C @ state.v, expected, TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_coriolis_matrix_is_pinocchios(name):
    """Both take the Christoffel symbols, so that dM/dt = C + C' and the matrices themselves coincide."""
    model = MODELS[name]
    state = State.random(model, seed=3)
    expected = PinocchioPeer(model).coriolis_matrix(state.q, state.v)
    assert_close(model, ts.coriolis_matrix(model, state.q, state.v), expected, TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_its_states_one_by_one(name):
    """Leading axes are only more states: (2, 3) of them, each against Pinocchio."""
    model = MODELS[name]
    states = [State.random(model, seed) for seed in range(6)]
    peer = PinocchioPeer(model)
    q, v, tau = (np.reshape([getattr(s, x) for s in states], (2, 3, -1)) for x in ("q", "v", "tau"))
    expected = np.reshape([peer.forward_dynamics(s.q, s.v, s.tau) for s in states], (2, 3, -1))
    assert_close(model, ts.forward_dynamics(model, q, v, tau), expected, TOLERANCE)
