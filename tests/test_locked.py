"""A model with locked joints moves as the whole one does while those joints are held."""

import numpy as np
import pytest

import torsor as ts
from torsor.errors import ArgumentError, ModelError
from torsor.model.extras import Actuator, Coupling, Extras, Visual

ROUNDING = 1e-11  # sums of a few hundred numbers of order one


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", range(4))
def test_a_locked_tree_has_the_rows_and_columns_of_the_whole_ones_mass_matrix(seed):
    tree = ts.zoo.random_tree(12, seed)
    rng = np.random.default_rng(seed)
    q, v = tree.random_configuration(rng), rng.normal(size=tree.nv)
    held = rng.choice(12, 5, replace=False)
    part = tree.locked({tree.names[i]: q[slice(*tree.q_start[i : i + 2])] for i in held})
    left = [name for i, name in enumerate(tree.names) if i not in held]
    iq, iv = tree.order(left)
    v[np.setdiff1d(np.arange(tree.nv), iv)] = 0.0
    assert list(part.names) == left
    whole = ts.mass_matrix(tree, q)[np.ix_(iv, iv)]
    assert np.abs(ts.mass_matrix(part, q[iq]) - whole).max() < ROUNDING * np.abs(whole).max()
    bias = ts.bias_forces(tree, q, v)[iv]
    assert np.abs(ts.bias_forces(part, q[iq], v[iv]) - bias).max() < ROUNDING * np.abs(bias).max()
    places = ts.frame_poses(tree, q, list(tree.names))
    assert np.abs(ts.frame_poses(part, q[iq], list(tree.names)) - places).max() < ROUNDING * np.abs(places).max()


def test_what_a_file_says_goes_along():
    arm = ts.zoo.panda()
    extras = Extras(
        couplings=(Coupling(6, 5, 0.5, 0.1),),
        actuators=(Actuator("a", ((1, 2.0), (3, 1.0))), Actuator("b", ((3, 1.0),))),
        keyframes={"home": tuple(range(7))},
        visuals=(Visual(3, "sphere", (0.1,), p=(0.0, 0.0, 0.2)),),
    )
    arm = (
        ts.formats.toml.read(ts.formats.toml.write(arm), "panda")
        .with_extras(extras)
        .with_frames({"tool": ("link4", np.eye(3), np.ones(3))})
    )
    part = arm.locked({"link4": -1.0})
    assert part.keyframes["home"].tolist() == [0, 1, 2, 4, 5, 6]
    assert part.couplings == (Coupling(5, 4, 0.5, 0.1),)
    assert [(a.name, a.gear) for a in part.actuators] == [("a", ((1, 2.0),))]
    assert part.visuals[0].body == 2
    q = np.array([0.1, 0.2, 0.3, -1.0, 0.5, 0.6, 0.4])
    tool = ts.frame_poses(part, np.delete(q, 3), "tool")
    assert np.abs(tool - ts.frame_poses(arm, q, "tool")).max() < ROUNDING
    both = arm.locked({"link6": 0.2})  # the joint that follows is held, too
    assert list(both.names) == ["link1", "link2", "link3", "link4", "link5"]


def test_what_cannot_be_locked_is_named():
    arm = ts.zoo.planar3()
    with pytest.raises(ArgumentError, match="no body or frame named 'elbow'"):
        arm.locked({"elbow": 0.0})
    with pytest.raises(ArgumentError, match="position of 'link1'"):
        arm.locked({arm.names[0]: [0.0, 1.0]})
    with pytest.raises(ModelError, match="all joints"):
        arm.locked(dict.fromkeys(arm.names, 0.0))
    with pytest.raises(ArgumentError, match="dictionary"):
        arm.locked("link1")
    coupled = ts.zoo.panda().with_extras(Extras(couplings=(Coupling(6, 5),)))
    with pytest.raises(ModelError, match="follows 'link6'"):
        coupled.locked({"link7": 0.0})
