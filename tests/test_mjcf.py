"""MJCF files, compiled by MuJoCo and computed by torsor."""

from pathlib import Path

import numpy as np
import pytest
from peers.installed import peer
from peers.robot_files import MuJoCoFile, random_state

import torsor as ts
from torsor.errors import ArgumentError, ModelError, ModelWarning

mujoco = peer("mujoco")

FEATURES = Path(__file__).parent / "robots" / "features.xml"
# MuJoCo keeps inertias as principal moments and a quaternion; both sides lose a few digits in between.
AGREEMENT = 1e-12
ARM = '<body name="arm"><joint name="j"/><geom size="0.1" pos="0.2 0 0"/></body>'


@pytest.fixture(scope="module")
def features():
    return ts.load(FEATURES, repair="quiet")


def write(tmp_path, world, more=""):
    path = tmp_path / "m.xml"
    path.write_text(f"<mujoco><worldbody>{world}</worldbody>{more}</mujoco>")
    return path


def test_dynamics_and_poses_are_those_of_mujoco(features):
    peer = MuJoCoFile(FEATURES)
    assert list(peer.kinds) == list(features.joint_names)
    state = random_state(peer.kinds, np.random.default_rng(2))
    M, bias, links = peer.terms(state, features.joint_names)
    q, v = (np.concatenate([state[name][k] for name in features.joint_names]) for k in (0, 1))
    np.testing.assert_allclose(ts.mass_matrix(features, q), M, rtol=0, atol=AGREEMENT * np.abs(M).max())
    np.testing.assert_allclose(ts.bias_forces(features, q, v), bias, rtol=0, atol=AGREEMENT * np.abs(bias).max())
    tau = np.random.default_rng(3).normal(size=features.nv)
    exact = np.linalg.solve(M, tau - bias)
    free = features.uncoupled()
    np.testing.assert_allclose(ts.forward_dynamics(free, q, v, tau), exact, rtol=0, atol=1e-9 * np.abs(exact).max())
    poses = ts.body_poses(features, q)
    for name, (p, R) in links.items():
        body, Rf, pf = features.frame(name)
        T = poses[body] if body >= 0 else np.eye(4)
        np.testing.assert_allclose(T[:3, :3] @ Rf, R, rtol=0, atol=AGREEMENT, err_msg=name)
        np.testing.assert_allclose(T[:3, :3] @ pf + T[:3, 3], p, rtol=0, atol=AGREEMENT, err_msg=name)


def test_q_is_qpos_and_ref_is_where_the_file_draws_the_machine(features):
    data = mujoco.MjData(peer := mujoco.MjModel.from_xml_path(str(FEATURES)))
    mujoco.mj_forward(peer, data)
    q = features.keyframes["qpos0"]
    np.testing.assert_array_equal(q, peer.qpos0)
    body, R, p = features.frame("tip")
    T = ts.body_poses(features, q)[body]
    np.testing.assert_allclose(T[:3, :3] @ p + T[:3, 3], data.site("tip").xpos, rtol=0, atol=AGREEMENT)
    np.testing.assert_allclose(T[:3, :3] @ R, data.site("tip").xmat.reshape(3, 3), rtol=0, atol=AGREEMENT)
    np.testing.assert_allclose(features.keyframes["up"], peer.key("up").qpos, atol=0)
    np.testing.assert_allclose(features.frame("mark").p, [1, 2, 3])


def test_joints_on_one_body_and_joints_away_from_the_origin(features):
    assert features.joint_names == ("yaw", "lift", "pitch", "ball", "loose", "body7/0")
    assert list(features.names) == ["yaw", "lift", "pitch", "ball", "box", "body7"]
    assert {"pedestal", "turret", "boom", "wrist", "nail", "target", "tip", "mark"} <= set(features.frames)


def test_numbers_of_the_joints(features):
    at = dict(zip(features.joint_names, features.v_start))
    assert (features.lower[at["yaw"]], features.upper[at["yaw"]]) == (-2, 2)
    assert (features.stiffness[at["yaw"]], features.rest[at["yaw"]]) == (3, 0.2)
    assert (features.friction[at["pitch"]], features.armature[at["pitch"]]) == (0.3, 0.1)
    assert features.armature[at["body7/0"]] == 0.02
    np.testing.assert_allclose(features.damping[: at["loose"]], 0.1)
    np.testing.assert_allclose(features.gravity, [0, 0.5, -9.7])


def test_actuators(features):
    motor, servo = features.actuators
    assert (motor.name, motor.gear, motor.control) == ("yaw_motor", ((0, 30.0),), (-1, 1))
    assert (servo.gain, servo.bias, servo.effort) == (50, (0, -50, 0), (-5, 5))


def test_torques_of_actuators_are_those_of_mujoco(features):
    peer = mujoco.MjModel.from_xml_path(str(FEATURES))
    data = mujoco.MjData(peer)
    rng = np.random.default_rng(7)
    for _ in range(5):
        q, v = features.random_configuration(rng), 3 * rng.normal(size=features.nv)
        data.qpos, data.qvel = ts.formats.to_mujoco(features, peer, q, v)
        data.ctrl[:2], data.ctrl[2] = 2 * rng.normal(size=2), 0.0
        mujoco.mj_forward(peer, data)
        expected = data.qfrc_actuator[: features.nv]
        found = ts.actuator_forces(features, data.ctrl[:2], q, v)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert ts.actuator_forces(features, np.zeros((4, 1, 2)), q, v).shape == (4, 1, features.nv)
    with pytest.raises(ArgumentError, match="has 2 actuators: yaw_motor, pitch_servo"):
        ts.actuator_forces(features, [1.0], q, v)


def test_what_is_not_modelled_is_named():
    with pytest.warns(ModelWarning) as caught:
        model = ts.load(FEATURES)
    said = str(caught[0].message)
    for words in ("tendon 'rope'", "actuator 'pull'", "joint 'ball': its limit"):
        assert words in said
    notes = " ".join(map(str, model.notes))
    for words in ("mocap bodies: 1 of them", "weld of 'box' and 'target': it is not active", "'yaw' and 'pitch': one"):
        assert words in notes


def test_shapes_are_where_mujoco_puts_its_geoms(features):
    peer = mujoco.MjModel.from_xml_path(str(FEATURES))
    data = mujoco.MjData(peer)
    mujoco.mj_forward(peer, data)
    poses = ts.body_poses(features, features.keyframes["qpos0"])
    found = {visual.shape: visual for visual in features.visuals}
    for shape, kind in (("box", mujoco.mjtGeom.mjGEOM_BOX), ("capsule", mujoco.mjtGeom.mjGEOM_CAPSULE)):
        (i,) = np.flatnonzero(peer.geom_type == int(kind))
        visual = found[shape]
        T = poses[visual.body]
        np.testing.assert_allclose(T[:3, :3] @ visual.p + T[:3, 3], data.geom_xpos[i], rtol=0, atol=AGREEMENT)
        np.testing.assert_allclose(T[:3, :3] @ visual.R, data.geom_xmat[i].reshape(3, 3), rtol=0, atol=AGREEMENT)
    np.testing.assert_allclose(found["box"].size, [0.2, 0.16, 0.1])
    np.testing.assert_allclose(found["capsule"].color, [0.8, 0.2, 0.2, 1], rtol=0, atol=1e-7)
    # a mesh is drawn where its file has it: MuJoCo's vertices, moved back
    (i,) = np.flatnonzero(peer.geom_type == int(mujoco.mjtGeom.mjGEOM_MESH))
    visual = found["mesh"]
    corners = np.array([[0, 0, 0], [0.1, 0, 0], [0, 0.2, 0], [0, 0, 0.3]]) * visual.size
    T = poses[visual.body]
    ours = (corners @ np.array(visual.R).T + visual.p) @ T[:3, :3].T + T[:3, 3]
    theirs = peer.mesh_vert @ data.geom_xmat[i].reshape(3, 3).T + data.geom_xpos[i]
    for point in ours:
        assert np.abs(theirs - point).sum(axis=1).min() < 1e-6  # MuJoCo's vertices are in single precision


def test_base(tmp_path):
    path = write(tmp_path, ARM.replace("<joint", "<freejoint") + ARM.replace('"arm"', '"b"').replace('"j"', '"k"'))
    assert ts.load(path).nv == 7
    assert ts.load(path, base="fixed").nv == 1
    stand = '<body name="stand"><geom size="0.1"/>' + ARM + "</body>"
    free = ts.load(write(tmp_path, stand), base="free")
    assert free.joint_names == ("root_joint", "j")
    assert ts.load(write(tmp_path, stand)).joint_names == ("j",)


def test_a_body_without_mass_but_inertia_and_several_trees(tmp_path):
    text = (
        '<body name="a"><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/><joint name="j"/>'
        '<body name="b"><inertial pos="0 0 0" mass="0" diaginertia="1 1 1"/></body></body>'
    )
    model = ts.load(write(tmp_path, text), repair="quiet")
    np.testing.assert_allclose(ts.mass_matrix(model, [0.3]), MuJoCoFile(tmp_path / "m.xml").terms(
        {"j": (np.array([0.3]), np.array([0.0]))}, ["j"])[0], rtol=0, atol=1e-12)  # fmt: skip


def test_negative_damping_is_repaired_aloud(tmp_path):
    with pytest.warns(ModelWarning, match="joint 'j': damping"):
        assert ts.load(write(tmp_path, ARM.replace('"j"', '"j" damping="-1"'))).damping[0] == 0


@pytest.mark.parametrize(
    ("world", "more", "message"),
    [
        ('<body><joint type="hing"/></body>', "", "MuJoCo refuses it: .*line 1"),
        ("<geom size='1'/>", "", "nothing moves"),
        (ARM, '<asset><mesh file="/etc/passwd"/></asset>', r"<mesh>: file='/etc/passwd' lies outside the folders"),
        (ARM, '<asset><mesh file="../../../../../../../../x.stl"/></asset>', "lies outside the folders"),
        ('<include file="/etc/passwd"/>', "", "lies outside the folders"),
    ],
)
def test_faulty_files_are_refused(tmp_path, world, more, message):
    folder = tmp_path / "a" / "b" / "c" / "d" / "e" / "f"
    folder.mkdir(parents=True)
    with pytest.raises(ModelError, match=message):
        ts.load(write(folder, world, more))


def test_includes_are_followed_within_bounds(tmp_path):
    (tmp_path / "part.xml").write_text(f"<mujocoinclude>{ARM}</mujocoinclude>")
    assert ts.load(write(tmp_path, '<include file="part.xml"/>')).joint_names == ("j",)
    (tmp_path / "part.xml").write_text(
        "<mujocoinclude><body><geom mesh='m'/><x file='/etc/passwd'/></body></mujocoinclude>"
    )
    with pytest.raises(ModelError, match=r"part\.xml:1: <x>: file='/etc/passwd' lies outside"):
        ts.load(write(tmp_path, '<include file="part.xml"/>'))


def test_without_mujoco_the_extra_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ArgumentError, match=r"pip install 'torsor\[mjcf\]'"):
        ts.load(FEATURES)


GEARED = """<mujoco><worldbody>
  <body name="a"><joint name="a" axis="0 1 0" ref="20"/><geom type="capsule" size="0.05" fromto="0 0 0 0 0 -1"/>
    <body name="b" pos="0 0 -1"><joint name="b" axis="0 1 0" ref="-10"/>
      <geom type="capsule" size="0.05" fromto="0 0 0 0 0 -1"/></body>
    <body name="c" pos="0.3 0 -1"><joint name="c" type="slide" axis="1 0 1"/><geom size="0.1"/></body>
    <body name="d" pos="0.6 0 -1"><joint name="d" axis="1 0 0"/><geom size="0.1" pos="0.2 0 0"/></body>
  </body></worldbody>
  <equality>
    <joint joint1="b" joint2="a" polycoef="0.1 -0.5 0 0 0"/><joint joint1="b" joint2="c" polycoef="0 2 0 0 0"/>
    <joint joint1="c" joint2="a" polycoef="0.05 -0.25 0 0 0"/>%s
  </equality><tendon><fixed name="rope"><joint joint="a" coef="1"/></fixed></tendon></mujoco>"""


def test_linear_equalities_of_joints_are_couplings(tmp_path):
    """Residuals and Jacobians are MuJoCo's; the accelerations solve its equations with these as exact constraints."""
    path = tmp_path / "geared.xml"
    path.write_text(GEARED % "")
    with pytest.warns(ModelWarning, match="equality 2: joint of 'c' and 'a'") as said:  # it says nothing new
        model = ts.load(path)
    assert "equality 1" not in str(said[0].message)
    assert len(model.couplings) == 2
    theirs = mujoco.MjModel.from_xml_path(str(path))
    data, rng = mujoco.MjData(theirs), np.random.default_rng(0)
    q = model.coupled(rng.normal(size=4))
    v, tau = model.coupling_matrix() @ rng.normal(size=2), rng.normal(size=4)
    data.qpos[:], data.qvel[:] = q, v
    mujoco.mj_forward(theirs, data)
    J = data.efc_J.reshape(-1, 4)[:3]
    np.testing.assert_allclose(data.efc_pos[:3], 0, rtol=0, atol=1e-15)
    np.testing.assert_allclose(J @ v, 0, rtol=0, atol=1e-15)
    M, bias = ts.mass_matrix(model, q), np.array(data.qfrc_bias)
    J = J[:2]
    qdd = np.linalg.solve(np.block([[M, J.T], [J, np.zeros((2, 2))]]), np.append(tau - bias, [0, 0]))[:4]
    np.testing.assert_allclose(ts.forward_dynamics(model, q, v, tau), qdd, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("element", "words"),
    [
        ('<joint joint1="d" joint2="a" polycoef="0 1 2 0 0"/>', "joint of 'd' and 'a'"),
        ('<joint joint1="d" polycoef="0.1 0 0 0 0"/>', "joint of 'd'"),
        ('<connect body1="d" anchor="0 0 0"/>', "connect of 'd'"),
        ('<weld body1="d"/>', "weld of 'd' and 'world'"),
        ('<tendon tendon1="rope"/>', "tendon of 'rope'"),
    ],
)
def test_other_equalities_are_named(tmp_path, element, words):
    path = tmp_path / "geared.xml"
    path.write_text(GEARED % element)
    with pytest.warns(ModelWarning, match=f"equality 3: {words}"):
        assert len(ts.load(path).couplings) == 2
    path.write_text(GEARED % element.replace("/>", ' active="false"/>'))
    assert any("not active" in str(note) for note in ts.load(path, repair="quiet").notes)


def test_geoms_that_only_collide_are_not_drawn(tmp_path):
    """Where the body has others to be seen; a colour of its own, or a body without such geoms, shows a geom."""
    seen = '<geom size="0.2" contype="0" conaffinity="0" rgba="1 0 0 1"/>'
    world = f"""<body name="a"><joint/><geom size="0.1"/><geom size="0.15" rgba="0 1 0 1"/>{seen}</body>
        <body name="b"><joint/><geom size="0.3"/></body>"""
    model = ts.load(write(tmp_path, world))
    assert [visual.size for visual in model.visuals] == [(0.15,), (0.2,), (0.3,)]


def test_a_flex_is_named(tmp_path):
    more = '<flexcomp name="soft" type="grid" count="3 3 1" spacing=".1 .1 .1" radius=".01" dim="2" mass="1">'
    with pytest.warns(ModelWarning, match="flex of 'soft'"):
        ts.load(write(tmp_path, more + '<edge equality="true"/></flexcomp>'))
