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
    arguments = State.random(model, seed=1).arguments(function)
    mujoco, pinocchio = (getattr(Peer(model), function)(*arguments) for Peer in (MujocoPeer, PinocchioPeer))
    assert relative_difference(mujoco, pinocchio) <= TOLERANCE


def test_mujoco_peer_refuses_a_helical_joint():
    (model,) = (m for name, m in random_models(["helical"]).items() if name == "chain of helical joints")
    with pytest.raises(NotImplementedError, match="helical"):
        MujocoPeer(model)
