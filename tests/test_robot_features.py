"""Features of robot files one by one: what is read, in numbers written here or as MuJoCo computes it."""

from itertools import permutations, product

import numpy as np
import pytest
from machines import difference
from peers.installed import peer
from scipy.spatial.transform import Rotation

import torsor as ts
from torsor import zoo
from torsor.motion.motion import Motion

mujoco = peer("mujoco")

ROUNDING = 1e-15
WRITTEN = 1e-14  # rotations are written as angles or quaternions
AGREEMENT = 1e-12
BODY = '<inertial><mass value="1"/><inertia {}/></inertial>'
SOUND = 'ixx="1" iyy="1.5" izz="2" ixz="0.1" iyz="0.2"'


def sdf(tmp_path, joint, more="", link=""):
    path = tmp_path / "m.sdf"
    path.write_text(
        f'<sdf version="1.9"><model name="m">{more}<link name="a">{link}</link>'
        f'<joint name="j" {joint}</joint></model></sdf>'
    )
    return ts.load(path, repair="quiet")


def urdf(tmp_path, joint="", inertia=SOUND):
    path = tmp_path / "m.urdf"
    path.write_text(
        f'<robot name="m"><link name="base"/><link name="a">{BODY.format(inertia)}</link><joint name="j" '
        f'type="continuous"><parent link="base"/><child link="a"/>{joint}</joint></robot>'
    )
    return ts.load(path)


def mjcf(tmp_path, joint, more=""):
    path = tmp_path / "m.xml"
    path.write_text(
        f'<mujoco><worldbody><body name="a" quat="0.8 0.6 0 0"><joint name="j" {joint}/>'
        f'<inertial pos="0 0 0" mass="1" diaginertia="1 1.5 2"/></body></worldbody>{more}</mujoco>'
    )
    return ts.load(path, repair="quiet"), mujoco.MjModel.from_xml_path(str(path))


ENDS = "<parent>world</parent><child>a</child>"
Z = "<axis><xyz>0 0 1</xyz>{}</axis>"


@pytest.mark.parametrize(
    ("words", "pitch"),
    [
        ("<screw_thread_pitch>0.5</screw_thread_pitch>", 0.5 / (2 * np.pi)),  # metres per turn
        ("<thread_pitch>4</thread_pitch>", -0.25),  # radians per metre, the other way round
        ("<screw_thread_pitch>0.5</screw_thread_pitch><thread_pitch>4</thread_pitch>", 0.5 / (2 * np.pi)),
        ("", 1 / (2 * np.pi)),
    ],
)
def test_both_pitches_of_sdf_screws(tmp_path, words, pitch):
    model = sdf(tmp_path, f'type="screw">{ENDS}{words}{Z.format("")}')
    assert model.pitch[0] == pytest.approx(pitch, rel=ROUNDING)
    np.testing.assert_allclose(ts.body_poses(model, [0.3])[0, :3, 3], [0, 0, 0.3 * pitch], rtol=0, atol=ROUNDING)


def test_springs_of_sdf_rest_where_they_say(tmp_path):
    words = "<dynamics><spring_stiffness>5</spring_stiffness><spring_reference>0.3</spring_reference></dynamics>"
    model = sdf(tmp_path, f'type="revolute">{ENDS}{Z.format(words)}')
    assert (model.stiffness[0], model.rest[0]) == (5, 0.3)
    assert Motion(model, ()).felt(0.0, np.array([0.5]), np.zeros(1))[0] == pytest.approx(-5 * 0.2)


def test_axes_of_sdf_are_expressed_in_named_frames(tmp_path):
    turned = '<frame name="f"><pose>0 0 0 1.5707963267948966 0 0</pose></frame>'
    axis = '<axis><xyz expressed_in="f">0 0 1</xyz></axis>'
    model = sdf(tmp_path, f'type="revolute"><pose>0 0 0 0 0 1.5707963267948966</pose>{ENDS}{axis}', more=turned)
    # z of f is -y of the model, which is -x of the joint's frame, turned by 90 degrees about z
    world = ts.body_poses(model, [0.7])[0][:3, :3] @ model.axis[0]
    np.testing.assert_allclose(world, [0, -1, 0], rtol=0, atol=1e-15)


@pytest.mark.parametrize(("said", "meant"), [("-1", np.inf), ("-0.5", np.inf), ("0", 0.0), ("0.5", 0.5)])
def test_negative_limits_of_sdf_are_none(tmp_path, said, meant):
    words = f"<limit><effort>{said}</effort><velocity>{said}</velocity></limit>"
    model = sdf(tmp_path, f'type="revolute">{ENDS}{Z.format(words)}')
    assert (model.effort[0], model.speed[0]) == (meant, meant)


def test_radius_and_length_of_cylinders_are_not_mixed_up(tmp_path):
    shape = (
        "<visual name='v'><geometry><cylinder><radius>0.1</radius><length>0.7</length></cylinder></geometry></visual>"
    )
    (visual,) = sdf(tmp_path, f'type="revolute">{ENDS}{Z.format("")}', link=shape).visuals
    assert (visual.shape, visual.size) == ("cylinder", (0.1, 0.7))


def test_a_fixed_joint_is_another_name_of_its_link(tmp_path):
    more = '<link name="b"><pose>0 0 0.4 0 0 0</pose></link><joint name="weld" type="fixed"><parent>a</parent>'
    model = sdf(tmp_path, f'type="revolute">{ENDS}{Z.format("")}', more=more + "<child>b</child></joint>")
    for one, other in zip(model.frame("weld"), model.frame("b")):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(model.frame("weld").p, [0, 0, 0.4], rtol=0, atol=ROUNDING)


def test_products_of_inertia_that_a_urdf_leaves_out_are_zero(tmp_path):
    model = urdf(tmp_path)
    np.testing.assert_allclose(model.inertia[0], [[1, 0, 0.1], [0, 1.5, 0.2], [0.1, 0.2, 2]], rtol=0, atol=ROUNDING)


def test_friction_and_damping_of_a_urdf(tmp_path):
    model = urdf(tmp_path, '<axis xyz="0 0 1"/><dynamics damping="0.3" friction="0.7"/>')
    assert (model.damping[0], model.friction[0]) == (0.3, 0.7)


@pytest.mark.parametrize("pitch", [90.0, -90.0, 89.9999999, 12.0])
def test_angles_of_a_urdf_at_gimbal_lock(tmp_path, pitch):
    roll, yaw, pitch = 0.3, -1.2, np.deg2rad(pitch)
    model = urdf(tmp_path, f'<origin xyz="1 2 3" rpy="{roll!r} {pitch.item()!r} {yaw!r}"/>')
    np.testing.assert_allclose(
        model.R[0], Rotation.from_euler("xyz", [roll, pitch, yaw]).as_matrix(), rtol=0, atol=WRITTEN
    )
    ts.save(model, tmp_path / "again.urdf")
    np.testing.assert_allclose(ts.load(tmp_path / "again.urdf").R[0], model.R[0], rtol=0, atol=WRITTEN)


RIGHT_ANGLES = [
    np.array(signs)[:, None] * np.eye(3)[list(order)]
    for order, signs in product(permutations(range(3)), product((1, -1), repeat=3))
    if np.linalg.det(np.array(signs)[:, None] * np.eye(3)[list(order)]) > 0
]


@pytest.mark.parametrize("suffix", [".urdf", ".xml", ".toml", ".torsor"])
def test_all_24_right_angle_rotations_come_back(tmp_path, suffix):
    assert len(RIGHT_ANGLES) == 24
    names = [f"j{k}" for k in range(24)]
    model = ts.Model.chain("revolute", n=24, R=RIGHT_ANGLES, p=(0.1, 0.2, 0.3), mass=1, inertia=(1, 1, 1), names=names)
    ts.save(model, tmp_path / f"m{suffix}")
    again = ts.load(tmp_path / f"m{suffix}")
    q = np.linspace(-1, 1, 24)
    assert difference(ts.body_poses(again, q), ts.body_poses(model, q)) < 24 * WRITTEN


def test_a_machine_is_called_as_its_mjcf_file_says_or_as_the_file(tmp_path):
    path = tmp_path / "file.xml"
    body = '<worldbody><body><joint/><geom size="0.1"/></body></worldbody></mujoco>'
    for said, name in (("<mujoco>", "file"), ('<mujoco model="arm">', "arm")):
        path.write_text(said + body)
        assert ts.load(path, repair="quiet").name == name


def test_springs_of_balls_pull_to_where_mujoco_has_them(tmp_path):
    model, theirs = mjcf(tmp_path, 'type="ball" stiffness="2"')
    data = mujoco.MjData(theirs)
    rng = np.random.default_rng(0)
    for _ in range(5):
        q = rng.normal(size=4)
        q /= np.linalg.norm(q)
        data.qpos, data.qvel = ts.formats.to_mujoco(model, theirs, q, np.zeros(3))
        mujoco.mj_forward(theirs, data)
        ours = ts.formats.to_mujoco(model, theirs, q, Motion(model, ()).felt(0.0, q, np.zeros(3)))[1]
        np.testing.assert_allclose(ours, data.qfrc_passive, rtol=0, atol=AGREEMENT)


def test_ranges_of_the_forces_on_a_joint_are_its_effort(tmp_path):
    model, theirs = mjcf(tmp_path, 'type="hinge" actuatorfrcrange="-3 3"')
    assert theirs.jnt_actfrcrange[0].tolist() == [-3, 3]
    assert model.effort[0] == 3


def test_arrays_of_a_model_are_read_only():
    model = zoo.humanoid()
    for name in ("mass", "com", "inertia", "R", "p", "axis", "parent", "joint", "lower", "damping", "gravity"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(model, name)[...] = 0
