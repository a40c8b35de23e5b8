"""Models written as URDF and MJCF: what comes back, what the engines read, and what cannot be said."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from peers.installed import peer

import torsor as ts
from torsor import zoo
from torsor.errors import ModelError, ModelWarning
from torsor.model.freedoms import DEFAULTS

mujoco = peer("mujoco")
pin = peer("pinocchio")

ROBOTS = Path(__file__).parent / "robots"
# Rotations are written as three angles or a quaternion: a few roundings.
ROUNDING = 1e-13


def same(model, again, ignored=()):
    assert again.joint_names == model.joint_names
    for key in ("parent", "joint", "mass", "com", "inertia", "p", *DEFAULTS):
        if key not in ignored:
            np.testing.assert_array_equal(getattr(again, key), getattr(model, key), err_msg=key)
    np.testing.assert_allclose(again.R, model.R, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(again.axis, model.axis, rtol=0, atol=ROUNDING)
    assert again.couplings == model.couplings


def same_frames(model, again):
    q = model.random_configuration(0)
    for name in model.frames:
        ours, theirs = (ts.frame_poses(m, q, name) for m in (model, again))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12, err_msg=name)


def test_a_urdf_comes_back(tmp_path):
    model = ts.load(ROBOTS / "features.urdf")
    path = tmp_path / "again.urdf"
    ts.save(model, path)
    again = ts.load(path)
    same(model, again)
    same_frames(model, again)
    assert set(again.frames) == set(model.frames)
    assert again.actuators == model.actuators
    strip = lambda visuals: [(v.body, v.shape, v.size, v.color, v.file) for v in visuals]  # noqa: E731
    assert sorted(strip(again.visuals)) == sorted(strip(model.visuals))


@pytest.mark.parametrize("name", ["panda", "puma560", "stanford", "humanoid"])
def test_zoo_machines_go_to_pinocchio_and_back(tmp_path, name):
    model = zoo.get(name)
    path = tmp_path / "m.urdf"
    with pytest.warns(ModelWarning, match="gravity") if model.gravity.tolist() != [0, 0, -9.81] else _quiet():
        ts.save(model, path)
    again = ts.load(path, repair="strict")
    same(model, again)
    peer = pin.buildModelFromUrdf(str(path))
    assert peer.nv == model.nv
    q = model.random_configuration(0)
    M = pin.crba(peer, peer.createData(), ts.formats.to_pinocchio(again, peer, q))
    order = np.concatenate([np.arange(peer.joints[k].idx_v, peer.joints[k].idx_v + peer.joints[k].nv)
                            for k in map(peer.getJointId, again.joint_names)])  # fmt: skip
    M = np.triu(M) + np.triu(M, 1).T
    M[np.diag_indices(model.nv)] += model.armature[np.argsort(order)]  # Pinocchio leaves it out
    ours = ts.mass_matrix(again, q)
    if name == "humanoid":  # Pinocchio: linear first
        order[:6] = np.roll(order[:6], 3)
    np.testing.assert_allclose(ours, M[np.ix_(order, order)], rtol=0, atol=1e-11)


def _quiet():
    import contextlib

    return contextlib.nullcontext()


def test_mjcf_comes_back(tmp_path):
    model = ts.load(ROBOTS / "features.xml", repair="quiet")
    path = tmp_path / "again.xml"
    # the mesh is given by its vertices, not by a file
    with pytest.warns(ModelWarning, match=r"does not say: mesh wedge; couplings as such"):
        ts.save(model, path)
    again = ts.load(path, repair="quiet")
    # MuJoCo keeps inertias by their principal axes, and the bodies of this file at their joints
    same(model, again, ignored=("inertia", "p"))
    np.testing.assert_allclose(again.p, model.p, rtol=0, atol=1e-16)
    np.testing.assert_allclose(again.inertia, model.inertia, rtol=0, atol=1e-15)
    np.testing.assert_allclose(again.keyframes["up"], model.keyframes["up"])
    assert again.actuators == model.actuators
    assert again.couplings == model.couplings
    same_frames(model, again)


def test_every_joint_that_mjcf_can_say(tmp_path):
    rng = np.random.default_rng(1)
    kinds = ["free", "universal", "gimbal", "planar", "cylindrical", "spherical", "revolute", "prismatic"]
    builder = ts.Model.builder("all", gravity=(0, 1, -9))
    parent = None
    for k, kind in enumerate(kinds):
        p = (0, 0, 0) if k == 0 else rng.normal(size=3)
        builder.add(f"b{k}", parent, kind, axis=(1, 2, 2), p=p, mass=1 + k, com=rng.normal(size=3), inertia=(1, 2, 2.5))
        parent = f"b{k}"
    model = builder.build()
    path = tmp_path / "all.xml"
    ts.save(model, path)
    again = ts.load(path)
    assert again.nv == model.nv
    q, v = model.random_configuration(rng), rng.normal(size=model.nv)
    np.testing.assert_allclose(ts.mass_matrix(again, q), ts.mass_matrix(model, q), rtol=0, atol=1e-9)
    bias = ts.bias_forces(model, q, v)
    np.testing.assert_allclose(ts.bias_forces(again, q, v), bias, rtol=0, atol=1e-9 * np.abs(bias).max())
    assert mujoco.MjModel.from_xml_path(str(path)).nv == model.nv


def test_keyframes_follow_the_order_of_mujoco(tmp_path):
    """Bodies in breadth-first order are numbered depth first by MuJoCo."""
    model = ts.Model.tree([-1, -1, 0, 1], mass=1, inertia=(1, 1, 1), names=["a", "b", "c", "d"])
    model = replace(model, extras=ts.model.extras.Extras(keyframes={"k": (1.0, 2.0, 3.0, 4.0)}))
    with pytest.warns(ModelWarning, match="the order of the joints"):
        ts.save(model, tmp_path / "k.xml")
    again = ts.load(tmp_path / "k.xml")
    assert again.joint_names == ("a", "c", "b", "d")
    assert again.keyframes["k"].tolist() == [1, 3, 2, 4]


def test_what_a_format_cannot_say_is_refused_or_listed(tmp_path):
    screw = ts.Model.chain("helical", pitch=0.1, mass=1, inertia=(1, 1, 1))
    for suffix in (".urdf", ".xml"):
        with pytest.raises(ModelError, match="has no helical joint, which 'link1' hangs on"):
            ts.save(screw, tmp_path / f"s{suffix}")
    moved = ts.Model.chain("free", mass=1, inertia=(1, 1, 1), p=(1, 0, 0))
    with pytest.raises(ModelError, match="a free body hangs on the world"):
        ts.save(moved, tmp_path / "m.xml")
    fast = replace(zoo.panda(), speed=2.0)
    with pytest.warns(ModelWarning, match="does not say: speed of 'link1', 'link2'"):
        ts.save(fast, tmp_path / "f.xml")
    assert (tmp_path / "f.xml").exists()
    assert not (tmp_path / "s.urdf").exists()


def test_names_are_escaped(tmp_path):
    model = replace(zoo.planar3(), name='<a & "b">', names=["<", "&", '"'])
    for suffix in (".urdf", ".xml"):
        with pytest.warns(ModelWarning) if model.gravity.tolist() != [0, 0, -9.81] and suffix == ".urdf" else _quiet():
            ts.save(model, tmp_path / f"n{suffix}")
        assert list(ts.load(tmp_path / f"n{suffix}").names) == ["<", "&", '"']
