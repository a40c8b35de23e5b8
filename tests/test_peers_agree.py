"""The peers against each other: what torsor is compared with must itself be beyond doubt.

Two libraries with other joints, other velocities and other algorithms agree only if both translations into
torsor's conventions are right.
"""

import pytest
from peers import QUESTIONS, State, random_models, relative_difference
from peers.mujoco_peer import MujocoPeer
from peers.pinocchio_peer import PinocchioPeer

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
