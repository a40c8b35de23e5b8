"""The peers against each other: what torsor is compared with must itself be beyond doubt.

Two libraries with other joints, other velocities and other algorithms agree only if both translations into
torsor's conventions are right.
"""

import numpy as np
import pytest
from peers import QUESTIONS, State, assert_close, random_models, relative_difference
from peers.mujoco_peer import MujocoPeer
from peers.pinocchio_peer import PinocchioPeer

import torsor as ts

# Rounding times the condition of M (up to 1e5 here); MuJoCo's sparse factorisation loses the most.
TOLERANCE = 1e-11

MODELS = random_models(MujocoPeer.JOINTS)


@pytest.mark.parametrize("function", QUESTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_mujoco_agrees_with_pinocchio(name, function):
    model = MODELS[name]
    state = State.random(model, seed=1)
    expected = state.ask(PinocchioPeer(model), function)
    assert relative_difference(state.ask(MujocoPeer(model), function), expected) <= TOLERANCE


def test_mujoco_peer_refuses_a_helical_joint():
    with pytest.raises(NotImplementedError, match="helical"):
        MujocoPeer(random_models(["helical"])["chain of helical joints"])


def test_numbers_that_differ_are_told_with_their_joints():
    model = ts.zoo.puma560()
    want = ts.mass_matrix(model, np.zeros(6))
    assert_close(model, want * (1 + 1e-13), want, 1e-12)
    wrong = want.copy()
    wrong[2, 4] += 0.5
    with pytest.raises(AssertionError, match=r"entry \[2 \(\w+3\), 4 \(\w+5\)\] is .* 0\.5 apart"):
        assert_close(model, wrong, want, 1e-12)
    wrong[1, 0] = np.nan
    with pytest.raises(AssertionError, match=r"entry \[1 \(\w+2\), 0 \(\w+1\)\] is nan"):
        assert_close(model, wrong, want, 1e-12)
