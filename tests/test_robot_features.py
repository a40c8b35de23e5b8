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


def test_limits_springs_and_drives_of_an_mjcf_are_those_of_mujoco(tmp_path):
    words = (
        'stiffness="3" springref="20" damping="0.3" frictionloss="0.7" armature="0.05" range="-30 60" limited="true"'
    )
    model, theirs = mjcf(tmp_path, f'type="hinge" axis="0 1 0" {words}')
    assert (model.stiffness[0], model.damping[0], model.friction[0], model.armature[0]) == (3, 0.3, 0.7, 0.05)
    np.testing.assert_allclose([model.rest[0], model.lower[0], model.upper[0]], np.deg2rad([20, -30, 60]), rtol=WRITTEN)
    np.testing.assert_allclose((model.lower[0], model.upper[0]), theirs.jnt_range[0], rtol=WRITTEN)
    assert model.rest[0] == pytest.approx(theirs.qpos_spring[0], rel=WRITTEN)
    fields = ["dof_damping", "dof_frictionloss", "dof_armature", "jnt_stiffness"]
    assert [getattr(theirs, name)[0] for name in fields] == [0.3, 0.7, 0.05, 3]


@pytest.mark.parametrize("pitch", [90, -90, 89.9999999, 12])
def test_angles_of_an_mjcf_and_an_sdf_at_gimbal_lock(tmp_path, pitch):
    """MuJoCo turns about x, y and z in turn, each in the frame turned before; SDF as URDF, about fixed axes."""
    roll, yaw = 30, -70
    path = tmp_path / "m.xml"
    path.write_text(
        f'<mujoco><worldbody><body name="a" euler="{roll} {pitch} {yaw}"><joint name="j"/>'
        f'<inertial pos="0 0 0" mass="1" diaginertia="1 1.5 2"/></body></worldbody></mujoco>'
    )
    turned = Rotation.from_euler("XYZ", [roll, pitch, yaw], degrees=True).as_matrix()
    np.testing.assert_allclose(ts.load(path, repair="quiet").R[0], turned, atol=WRITTEN)
    angles = " ".join(repr(float(x)) for x in np.deg2rad([roll, pitch, yaw]))
    model = sdf(tmp_path, f'type="revolute">{ENDS}{Z.format("")}', link=f"<pose>0 0 0 {angles}</pose>")
    turned = Rotation.from_euler("xyz", [roll, pitch, yaw], degrees=True).as_matrix()
    np.testing.assert_allclose(ts.body_poses(model, [0.0])[0, :3, :3], turned, atol=WRITTEN)


@pytest.mark.parametrize("kind", ["urdf", "sdf"])
def test_all_24_right_angles_of_a_frame_of_inertia(tmp_path, kind):
    """I = R diag R^T about the mass centre, whichever way the file turns the axes of the tensor."""
    moments, place = np.diag([1.0, 1.5, 2.0]), (0.1, 0.2, 0.3)
    found = set()
    for turns in product(range(4), repeat=3):
        R = Rotation.from_euler("xyz", np.multiply(90, turns), degrees=True).as_matrix().round()
        found.add(tuple(R.astype(int).ravel()))
        angles = " ".join(repr(float(x)) for x in np.deg2rad(np.multiply(90.0, turns)))
        tensor = "".join(f"<{name}>{x}</{name}>" for name, x in (("ixx", 1.0), ("iyy", 1.5), ("izz", 2.0)))
        if kind == "sdf":
            link = f"<inertial><pose>0.1 0.2 0.3 {angles}</pose><mass>2</mass><inertia>{tensor}</inertia></inertial>"
            model = sdf(tmp_path, f'type="revolute">{ENDS}{Z.format("")}', link=link)
        else:
            body = f'<origin xyz="0.1 0.2 0.3" rpy="{angles}"/><mass value="2"/><inertia ixx="1" iyy="1.5" izz="2"/>'
            path = tmp_path / "m.urdf"
            path.write_text(
                f'<robot name="m"><link name="base"/><link name="a"><inertial>{body}</inertial></link>'
                '<joint name="j" type="continuous"><parent link="base"/><child link="a"/></joint></robot>'
            )
            model = ts.load(path)
        np.testing.assert_allclose(model.inertia[0], R @ moments @ R.T, atol=WRITTEN)
        np.testing.assert_allclose(model.com[0], place, atol=WRITTEN)
    assert len(found) == 24


def test_sizes_of_shapes_are_those_of_the_file(tmp_path):
    """MuJoCo gives half lengths, URDF whole ones; a box has half sides in MJCF, whole sides in the others."""
    shapes = '<cylinder radius="0.1" length="0.7"/>', '<box size="0.2 0.4 0.6"/>', '<sphere radius="0.3"/>'
    visuals = "".join(f"<visual><geometry>{shape}</geometry></visual>" for shape in shapes)
    path = tmp_path / "m.urdf"
    path.write_text(
        f'<robot name="m"><link name="base"/><link name="a">{visuals}{BODY.format(SOUND)}</link><joint name="j" '
        'type="continuous"><parent link="base"/><child link="a"/></joint></robot>'
    )
    wanted = [("cylinder", (0.1, 0.7)), ("box", (0.2, 0.4, 0.6)), ("sphere", (0.3,))]
    assert [(x.shape, x.size) for x in ts.load(path).visuals] == wanted
    path = tmp_path / "m.xml"
    geoms = '<geom type="cylinder" size="0.1 0.35"/><geom type="box" size="0.1 0.2 0.3"/><geom size="0.3"/>'
    path.write_text(f'<mujoco><worldbody><body name="a"><joint name="j"/>{geoms}</body></worldbody></mujoco>')
    found = ts.load(path, repair="quiet").visuals
    assert [x.shape for x in found] == [shape for shape, _ in wanted]
    for visual, (_, size) in zip(found, wanted):
        np.testing.assert_allclose(visual.size, size, rtol=WRITTEN)


def test_arrays_of_a_model_are_read_only():
    """Whatever a model holds or has computed once: a number written there would change it behind its programs."""
    model = zoo.humanoid()
    with pytest.raises(ValueError, match="read-only"):
        model.mass[...] = 0
    arrays = {name: x for name in dir(model) if isinstance(x := getattr(model, name), np.ndarray)}
    arrays |= ts.ModelBatch(model, mass=np.ones((3, model.n))).varied
    assert {"mass", "com", "inertia", "R", "p", "axis", "parent", "joint", "lower", "gravity"} <= set(arrays)
    assert [name for name, x in arrays.items() if x.flags.writeable] == []
