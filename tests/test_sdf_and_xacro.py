"""SDF files, against the same machine in URDF; xacro files, and who may run them."""

from pathlib import Path

import numpy as np
import pytest

import torsor as ts
from torsor.errors import ArgumentError, ModelError, ModelWarning

FEATURES = Path(__file__).parent / "robots" / "features.sdf"
AGREEMENT = 1e-13

# The machine of features.sdf, its poses composed by hand: the slide sits at (0, 0, -0.1), turned by 0.4 about y, in the
# frame of `lower`, and its axis is the model's z axis.
TWIN = """
<robot name="twin">
  <link name="base"><inertial><mass value="3"/>
    <inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <link name="upper"><inertial><origin xyz="0 0 0.2" rpy="0.1 0.2 0.3"/><mass value="2"/>
    <inertia ixx="0.02" iyy="0.02" izz="0.004" ixy="0.001" ixz="0" iyz="0"/></inertial></link>
  <link name="rail"/>
  <link name="lower"><inertial><mass value="1"/>
    <inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <link name="tool"/>
  <joint name="shoulder" type="revolute"><parent link="base"/><child link="upper"/><origin xyz="0 0 0.2" rpy="0.3 0 0"/>
    <axis xyz="0 1 0"/><limit lower="-1" upper="2" effort="30" velocity="4"/><dynamics damping="0.2"/></joint>
  <joint name="to_rail" type="fixed"><parent link="upper"/><child link="rail"/>
    <origin xyz="0 0.1 0.4" rpy="0.2 0 0"/></joint>
  <joint name="slide" type="prismatic"><parent link="rail"/><child link="lower"/><axis xyz="{axis}"/></joint>
  <joint name="to_tool" type="fixed"><parent link="lower"/><child link="tool"/><origin xyz="0 0 0.3"/></joint>
</robot>
"""


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    # z of the model, seen from `lower`, which is turned by 0.3 + 0.2 about x
    axis = f"0 {np.sin(0.5)!r} {np.cos(0.5)!r}".replace("np.float64(", "").replace(")", "")
    path = tmp_path_factory.mktemp("twin") / "twin.urdf"
    path.write_text(TWIN.format(axis=axis))
    return ts.load(path)


def test_dynamics_and_frames_are_those_of_the_same_machine_in_urdf(twin):
    model = ts.load(FEATURES, base="fixed")
    assert model.joint_names == twin.joint_names == ("shoulder", "slide")
    assert list(model.names) == ["upper", "slide"]  # the slide does not sit at the origin of its link
    rng = np.random.default_rng(0)
    q, v = rng.normal(size=(2, 2))
    np.testing.assert_allclose(ts.mass_matrix(model, q), ts.mass_matrix(twin, q), atol=AGREEMENT)
    placed = ts.body_poses(model, q), ts.body_poses(twin, q)
    c, s = np.cos(0.5), np.sin(0.5)
    X = np.array([[c, -s, 0, 0.1], [s, c, 0, 0.2], [0, 0, 1, 0.4], [0, 0, 0, 1.0]])  # of `base`, in the world
    for name in ("base", "upper", "lower", "tool"):
        ours, theirs = (at(m, poses, name) for m, poses in zip((model, twin), placed))
        np.testing.assert_allclose(ours, X @ theirs, atol=AGREEMENT, err_msg=name)
    assert (model.lower[0], model.upper[0], model.effort[0], model.speed[0], model.damping[0]) == (-1, 2, 30, 4, 0.2)
    (box,) = model.visuals
    assert (box.shape, box.size, box.color) == ("box", (0.1, 0.2, 0.3), (1, 0, 0, 1))
    # gravity is along z, about which X turns
    np.testing.assert_allclose(ts.bias_forces(model, q, v), ts.bias_forces(twin, q, v), atol=1e-12)


def at(model, poses, name):
    body, R, p = model.frame(name)
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, p
    return (poses[body] if body >= 0 else np.eye(4)) @ T


def test_a_model_that_hangs_on_nothing_is_free():
    model = ts.load(FEATURES)
    assert model.joint_names == ("root_joint", "shoulder", "slide")
    np.testing.assert_allclose(ts.body_poses(model, model.neutral())[0, :3, 3], [0.1, 0.2, 0.4], atol=AGREEMENT)


def sdf(tmp_path, body, version="1.7"):
    path = tmp_path / "m.sdf"
    path.write_text(f'<sdf version="{version}"><model name="m">{body}</model></sdf>')
    return path


JOINT = '<joint name="j" type="{}"><parent>{}</parent><child>{}</child>{}</joint>'


@pytest.mark.parametrize(
    ("kind", "more", "nv"),
    [
        ("revolute", "<axis><xyz>0 0 1</xyz></axis>", 1),
        ("prismatic", "", 1),
        ("continuous", "", 1),
        ("ball", "", 3),
        ("universal", "<axis><xyz>1 0 0</xyz></axis><axis2><xyz>0 1 0</xyz></axis2>", 2),
        ("screw", "<axis><xyz>0 0 1</xyz></axis><screw_thread_pitch>0.5</screw_thread_pitch>", 1),
    ],
)
def test_joint_types(tmp_path, kind, more, nv):
    model = ts.load(sdf(tmp_path, '<link name="a"/>' + JOINT.format(kind, "world", "a", more)))
    assert model.nv == nv
    if kind == "screw":
        np.testing.assert_allclose(ts.body_poses(model, [2 * np.pi])[0, 2, 3], 0.5)
    if kind == "universal":
        zoo = ts.Model.chain("universal", mass=1, inertia=(1, 1, 1))
        np.testing.assert_allclose(ts.mass_matrix(model, [0.3, 0.4]), ts.mass_matrix(zoo, [0.3, 0.4]), atol=AGREEMENT)


def test_axes_of_old_versions_are_in_the_frame_of_the_model(tmp_path):
    body = '<link name="a"><pose>0 0 0 1.5707963267948966 0 0</pose></link>' + JOINT.format(
        "revolute", "world", "a", "<axis><xyz>0 0 1</xyz></axis>"
    )
    np.testing.assert_allclose(ts.load(sdf(tmp_path, body, "1.4")).axis[0], [0, 1, 0], atol=1e-15)
    np.testing.assert_allclose(ts.load(sdf(tmp_path, body, "1.7")).axis[0], [0, 0, 1], atol=1e-15)


def test_a_loop_is_cut_aloud(tmp_path):
    body = '<link name="a"/><link name="b"/>' + JOINT.format("revolute", "world", "a", "")
    body += JOINT.replace('"j"', '"k"').format("revolute", "a", "b", "")
    body += JOINT.replace('"j"', '"l"').format("revolute", "world", "b", "")
    with pytest.warns(ModelWarning, match="joint 'l': it closes a loop"):
        assert ts.load(sdf(tmp_path, body)).nv == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "it has no <link>"),
        ('<link name="a"/><link name="a"/>', "two links of this name"),
        ('<link name="a"><pose>1 2</pose></link>', r"m\.sdf:1: <pose>: '1 2' must be 6 numbers"),
        ('<link name="a"><pose relative_to="x">0 0 0 0 0 0</pose></link>', "relative to 'x', which is not there"),
        ('<link name="a"><pose relative_to="a">0 0 0 0 0 0</pose></link>', "its pose is relative to itself"),
        ('<link name="a"/>' + JOINT.format("gearbox", "world", "a", ""), "unknown joint type 'gearbox'"),
        ('<link name="a"/>' + JOINT.format("revolute", "x", "a", ""), "its parent 'x' is no link"),
        ('<link name="a"/></model><model name="two"><link name="a"/>', "one <model>; here are 2: 'm', 'two'"),
    ],
)
def test_faulty_files_are_refused(tmp_path, body, message):
    with pytest.raises(ModelError, match=message):
        ts.load(sdf(tmp_path, body))


# ---- xacro ----

XACRO = """<?xml version="1.0"?>
<robot name="x" xmlns:xacro="http://www.ros.org/wiki/xacro">
  <xacro:arg name="length" default="1"/>
  <xacro:include filename="$(find parts)/limit.xacro"/>
  <link name="a"/>
  <link name="b"><inertial><mass value="${1 + 1}"/>
    <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="j" type="revolute"><parent link="a"/><child link="b"/>
    <origin xyz="$(arg length) 0 0"/><xacro:limit/></joint>
</robot>
"""
LIMIT = """<robot xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:macro name="limit">
  <limit lower="-1" upper="1" effort="1" velocity="1"/></xacro:macro></robot>"""


def test_xacro_is_expanded_only_when_asked(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "limit.xacro").write_text(LIMIT)
    path = tmp_path / "x.urdf.xacro"
    path.write_text(XACRO)
    with pytest.raises(ArgumentError, match="runs code when it is expanded; load it with xacro=True"):
        ts.load(path)
    model = ts.load(path, xacro={"length": 3})
    assert (model.mass[0], model.p[0, 0], model.upper[0]) == (2, 3, 1)
    assert ts.load(path, xacro=True).p[0, 0] == 1
    path.write_text(XACRO.replace("find parts", "find nowhere"))
    with pytest.raises(ModelError, match="package 'nowhere' is in none of"):
        ts.load(path, xacro=True)
    with pytest.raises(ArgumentError, match="xacro must be True or a dictionary"):
        ts.load(path, xacro=3)
