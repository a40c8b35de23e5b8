"""SDF files, against the same machine in URDF and against poses composed here; xacro files, and who may run them."""

from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.spatial.transform import Rotation

import torsor as ts
from torsor.errors import ArgumentError, ModelError, ModelWarning

FEATURES = Path(__file__).parent / "robots" / "features.sdf"
AGREEMENT = 1e-13
COMPOSED = 1e-12  # of seven poses, each relative to others, several metres away

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
    np.testing.assert_allclose(ts.mass_matrix(model, q), ts.mass_matrix(twin, q), rtol=0, atol=AGREEMENT)
    placed = ts.body_poses(model, q), ts.body_poses(twin, q)
    c, s = np.cos(0.5), np.sin(0.5)
    X = np.array([[c, -s, 0, 0.1], [s, c, 0, 0.2], [0, 0, 1, 0.4], [0, 0, 0, 1.0]])  # of `base`, in the world
    for name in ("base", "upper", "lower", "tool"):
        ours, theirs = (at(m, poses, name) for m, poses in zip((model, twin), placed))
        np.testing.assert_allclose(ours, X @ theirs, rtol=0, atol=AGREEMENT, err_msg=name)
    assert (model.lower[0], model.upper[0], model.effort[0], model.speed[0], model.damping[0]) == (-1, 2, 30, 4, 0.2)
    (box,) = model.visuals
    assert (box.shape, box.size, box.color) == ("box", (0.1, 0.2, 0.3), (1, 0, 0, 1))
    # gravity is along z, about which X turns
    np.testing.assert_allclose(ts.bias_forces(model, q, v), ts.bias_forces(twin, q, v), rtol=0, atol=1e-12)


def at(model, poses, name):
    body, R, p = model.frame(name)
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, p
    return (poses[body] if body >= 0 else np.eye(4)) @ T


def test_a_model_that_hangs_on_nothing_is_free():
    model = ts.load(FEATURES)
    assert model.joint_names == ("root_joint", "shoulder", "slide")
    np.testing.assert_allclose(ts.body_poses(model, model.neutral())[0, :3, 3], [0.1, 0.2, 0.4], rtol=0, atol=AGREEMENT)


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
        np.testing.assert_allclose(
            ts.mass_matrix(model, [0.3, 0.4]), ts.mass_matrix(zoo, [0.3, 0.4]), rtol=0, atol=AGREEMENT
        )


def test_axes_of_old_versions_are_in_the_frame_of_the_model(tmp_path):
    body = '<link name="a"><pose>0 0 0 1.5707963267948966 0 0</pose></link>' + JOINT.format(
        "revolute", "world", "a", "<axis><xyz>0 0 1</xyz></axis>"
    )
    np.testing.assert_allclose(ts.load(sdf(tmp_path, body, "1.4")).axis[0], [0, 1, 0], rtol=0, atol=1e-15)
    np.testing.assert_allclose(ts.load(sdf(tmp_path, body, "1.7")).axis[0], [0, 0, 1], rtol=0, atol=1e-15)


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


# ---- files drawn at random, against poses and screws that are composed here ----

KINDS = ("revolute", "prismatic", "screw", "universal", "ball", "fixed")


def numbers(x):
    return " ".join(map(repr, np.asarray(x).tolist()))


def attribute(key, value):
    return "" if value is None else f' {key}="{value}"'


class RandomSdf:
    """Links, joints and frames whose poses are relative to whatever was there before, and where they are in the end.

    Every `at[name]` is a pose in the world, composed when the element is written; joints move bodies by products of
    exponentials in the world.  The reader and the dynamics of torsor have no part in it.
    """

    def __init__(self, seed, count=7):
        self.rng = np.random.default_rng(seed)
        self.at = {}
        self.pose = self.placed("__model__", None)
        self.bodies, self.joints, self.text = {}, {}, ""
        for k in range(count):
            self.link(f"a{k}")
            self.joint(f"j{k}", "world" if k == 0 else f"a{self.rng.integers(k)}", f"a{k}", KINDS[(seed + k) % 6])
            self.frame(f"f{k}", f"a{self.rng.integers(k + 1)}")

    def placed(self, name, usual):
        """A <pose>, relative to an element or, unless it says to which, to the usual one."""
        where = self.rng.normal(size=3), self.rng.uniform(-3, 3, size=3)
        to = self.rng.choice([None, *self.at])
        X = np.eye(4)
        X[:3, :3], X[:3, 3] = Rotation.from_euler("xyz", where[1]).as_matrix(), where[0]  # about fixed axes
        self.at[name] = self.at[to or usual] @ X if self.at else X
        return f"<pose{attribute('relative_to', to)}>{numbers(np.concatenate(where))}</pose>"

    def link(self, name):
        moments, turn = self.rng.uniform(1, 1.5, size=3), self.rng.uniform(-3, 3, size=3)
        mass, com = self.rng.uniform(1, 2), self.rng.normal(size=3)
        Q = Rotation.from_euler("xyz", turn).as_matrix()
        self.bodies[name] = mass, com, Q @ np.diag(moments) @ Q.T
        inertia = "".join(f"<i{x}{x}>{m!r}</i{x}{x}>" for x, m in zip("xyz", moments.tolist()))
        self.text += (
            f'<link name="{name}">{self.placed(name, "__model__")}<inertial><mass>{mass!r}</mass>'
            f"<pose>{numbers([*com, *turn])}</pose><inertia>{inertia}</inertia></inertial></link>"
        )

    def joint(self, name, parent, child, kind):
        text, screws = self.placed(name, child), []
        for word in ("axis", "axis2")[: {"universal": 2, "ball": 0, "fixed": 0}.get(kind, 1)]:
            axis = self.rng.normal(size=3)
            to = self.rng.choice([None, *self.at])
            text += f"<{word}><xyz{attribute('expressed_in', to)}>{numbers(axis)}</xyz></{word}>"
            u = self.at[to or name][:3, :3] @ axis / np.linalg.norm(axis)
            turning = np.append(u, np.cross(self.at[name][:3, 3], u))
            sliding = np.append(np.zeros(3), u)
            screws.append({"prismatic": sliding, "screw": turning + 0.7 / (2 * np.pi) * sliding}.get(kind, turning))
        text += "<screw_thread_pitch>0.7</screw_thread_pitch>" * (kind == "screw")
        text += f"<parent>{parent}</parent><child>{child}</child>"
        self.joints[child] = parent, kind, name, screws
        self.text += f'<joint name="{name}" type="{kind}">{text}</joint>'

    def frame(self, name, on):
        self.text += f'<frame name="{name}" attached_to="{on}">{self.placed(name, on)}</frame>'
        self.bodies[name] = 0.0, np.zeros(3), np.zeros((3, 3))
        self.joints[name] = on, "frame", name, []

    def moved(self, q):
        """By element, how far its joints move it and the columns of its Jacobian: twists in the world."""
        found, q, nv = {"world": (np.eye(4), [])}, list(q), 0
        for child, (parent, kind, name, screws) in self.joints.items():
            T, columns = found[parent]
            if kind == "ball":
                turn = np.eye(4)
                turn[:3, :3] = Rotation.from_quat([q.pop(0) for _ in range(4)], scalar_first=True).as_matrix()
                T = T @ self.at[name] @ turn @ np.linalg.inv(self.at[name])
                rates = [twist(T @ self.at[name], np.append(e, np.zeros(3))) for e in np.eye(3)]
            else:
                rates = []
                for screw in screws:
                    rates.append(twist(T, screw))
                    T = T @ expm(hat(screw) * q.pop(0))
            columns = columns + list(zip(range(nv, nv + len(rates)), rates))
            nv += len(rates)
            found[child] = T, columns
        return found, nv


def hat(screw):
    (x, y, z), out = screw[:3], np.zeros((4, 4))
    out[:3, :3], out[:3, 3] = [[0, -z, y], [z, 0, -x], [-y, x, 0]], screw[3:]
    return out


def twist(T, screw):
    """Ad_T of a screw, by T hat(S) T^-1."""
    X = T @ hat(screw) @ np.linalg.inv(T)
    return np.array([X[2, 1], X[0, 2], X[1, 0], *X[:3, 3]])


@pytest.mark.parametrize("seed", range(6))
def test_files_drawn_at_random_have_the_poses_and_kinetic_energy_composed_by_hand(tmp_path, seed):
    drawn = RandomSdf(seed)
    path = tmp_path / "m.sdf"
    path.write_text(f'<sdf version="1.9"><model name="m">{drawn.pose}{drawn.text}</model></sdf>')
    model = ts.load(path)
    q = model.random_configuration(seed)
    found, nv = drawn.moved(q)
    poses, M = ts.body_poses(model, q), np.zeros((nv, nv))
    assert model.nv == nv
    for name, (mass, com, inertia) in drawn.bodies.items():
        moves, columns = found[name]
        T = moves @ drawn.at[name]
        np.testing.assert_allclose(at(model, poses, name), T, rtol=0, atol=COMPOSED, err_msg=name)
        J = np.zeros((6, nv))
        for k, column in columns:
            J[:, k] = column
        centre, R = T[:3, :3] @ com + T[:3, 3], T[:3, :3]
        speed = J[3:] - np.cross(centre, J[:3], axisb=0, axisc=0)
        M += mass * speed.T @ speed + J[:3].T @ R @ inertia @ R.T @ J[:3]
    np.testing.assert_allclose(ts.mass_matrix(model, q), M, rtol=0, atol=COMPOSED * np.abs(M).max())


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
