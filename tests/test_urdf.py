"""URDF files: what is read, what is repaired, what is refused, and what a hostile file cannot do."""

import pickle
import re
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from peers.robot_files import PinocchioFile, physical, random_state

import torsor as ts
from torsor.algorithms import articulated
from torsor.errors import ArgumentError, ModelError, ModelWarning
from torsor.formats.repair import nearest_possible
from torsor.reference import evaluate

FEATURES = Path(__file__).parent / "robots" / "features.urdf"
# Both sides round differently; sums of a few hundred terms of order one.
AGREEMENT = 1e-12
# Specks of mass of links that have none are 1e-14 of the mass that moves, each.
UNFELT = 1e-12
SANE = 1e-6  # the smallest articulated inertia of a machine that can be simulated, relative to the largest

INERTIA = '<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/>'
LINK = f'<link name="{{}}"><inertial><mass value="1"/>{INERTIA}</inertial></link>'
HINGE = '<joint name="hinge" type="revolute"><parent link="a"/><child link="b"/><axis xyz="0 0 1"/>{}</joint>'
LIMIT = '<limit lower="-1" upper="1" effort="1" velocity="1"/>'
JOINT, LINK_B = HINGE.format(LIMIT), LINK.format("b")


@pytest.fixture(scope="module")
def features():
    return ts.load(FEATURES)


def write(tmp_path, *lines, name="r"):
    path = tmp_path / "robot.urdf"
    path.write_text("\n".join([f'<robot name="{name}">', *lines, "</robot>"]))
    return path


def two_links(tmp_path, joint=JOINT, b=LINK_B):
    return write(tmp_path, LINK.format("a"), b, joint)


def state_of(model, state):
    return (np.concatenate([state[name][k] for name in model.joint_names]) for k in (0, 1))


# ---- what is read ----


def test_a_root_that_is_freed_above_a_floating_joint_is_noted(tmp_path):
    float_ = '<joint name="drift" type="floating"><parent link="a"/><child link="b"/></joint>'
    path = two_links(tmp_path, joint=float_)
    assert [note.where for note in ts.load(path, base="free").notes] == ["joint 'drift'"]
    assert not ts.load(path).notes


@pytest.mark.parametrize("base", ["fixed", "free"])
def test_dynamics_and_frames_are_those_of_pinocchio(base):
    model, peer = replace(ts.load(FEATURES, base=base), armature=0.0), PinocchioFile(FEATURES, base)  # which reads none
    assert set(peer.kinds) == set(model.joint_names)
    state = random_state(peer.kinds, np.random.default_rng(1))
    M, bias, links = peer.terms(state, model.joint_names)
    q, v = state_of(model, state)
    np.testing.assert_allclose(ts.mass_matrix(model, q), M, rtol=0, atol=AGREEMENT * M.max())
    np.testing.assert_allclose(ts.bias_forces(model, q, v), bias, rtol=0, atol=AGREEMENT * np.abs(bias).max())
    poses = ts.body_poses(model, q)
    for name, (p, R) in links.items():
        body, Rf, pf = model.frame(name)
        T = poses[body] if body >= 0 else np.eye(4)
        np.testing.assert_allclose(T[:3, :3] @ Rf, R, rtol=0, atol=AGREEMENT, err_msg=name)
        np.testing.assert_allclose(T[:3, :3] @ pf + T[:3, 3], p, rtol=0, atol=10 * AGREEMENT, err_msg=name)


def test_joints_keep_the_order_of_the_file_where_parents_come_first(features):
    # pan carries elbow, which comes before it in the file
    assert features.joint_names == ("pan", "elbow", "extend", "turn", "grip", "grip2", "curl2", "floor", "string")
    assert list(features.names) == [
        "shoulder", "upper", "slide", "wrist", "finger1", "finger2", "tip2", "cart", "balloon",
    ]  # fmt: skip


def test_fixed_links_and_fixed_joints_are_frames(features):
    assert set(features.frames) == {
        "foot", "camera", "camera_optical", "palm", "camera_mount", "optics", "hand",
    }  # fmt: skip
    assert features.frame("hand") == features.frame("palm")
    assert features.frame("elbow") == features.frame("upper")
    assert features.frame("foot").body == -1


def test_numbers_of_the_joints(features):
    at = dict(zip(features.joint_names, features.v_start))
    assert features.lower[at["elbow"]] == -1.5
    assert features.upper[at["elbow"]] == 2.5
    assert (features.effort[at["elbow"]], features.speed[at["elbow"]]) == (80, 2)
    assert (features.damping[at["elbow"]], features.friction[at["elbow"]]) == (0.5, 0.1)
    assert (features.stiffness[at["extend"]], features.rest[at["extend"]]) == (20, 0.1)
    assert features.armature[at["pan"]] == 50**2 * 1e-4
    assert (features.lower[at["pan"]], features.upper[at["pan"]]) == (-np.inf, np.inf)
    assert features.effort[at["pan"]] == 100
    np.testing.assert_allclose(features.axis[1], np.array([1, 2, -2]) / 3)


def test_followers_follow_the_first_leader(features):
    joint = features.joint_names.index
    assert [tuple(c) for c in features.couplings] == [
        (joint("grip2"), joint("grip"), -1.0, 0.0),
        (joint("curl2"), joint("grip"), -0.5, 0.1),
    ]


def test_shapes_colours_and_actuators(features):
    shapes = {visual.shape: visual for visual in features.visuals}
    assert shapes["cylinder"].color == (0.5, 0.5, 0.6, 1)
    assert (shapes["cylinder"].body, shapes["cylinder"].p) == (-1, (0, 0, 0.1))
    assert shapes["mesh"].size == (1, 1, -1)
    assert shapes["mesh"].file == "package://features/meshes/shoulder.stl"
    assert shapes["box"].color == (1, 0.2, 0, 0.5)
    assert shapes["capsule"].size == (0.02, 0.1)
    (motor,) = features.actuators
    assert (motor.name, motor.gear) == ("pan_motor", ((0, 50.0),))


def test_what_is_not_read_is_noted(features):
    said = " ".join(map(str, features.notes))
    assert "<gazebo>: 1 of them" in said
    assert "<safety_controller>: 1 of them" in said
    assert "1 meshes: not found: package://features/meshes/shoulder.stl" in said


@pytest.mark.parametrize("suffix", [".toml", ".torsor"])
def test_everything_comes_back_from_a_file(features, tmp_path, suffix):
    path = tmp_path / f"features{suffix}"
    ts.save(features, path)
    again = ts.load(path)
    assert again == features
    assert again.extras == features.extras
    assert pickle.loads(pickle.dumps(features)).extras == features.extras


def test_a_root_named_world_that_is_no_link_is_the_base(tmp_path):
    model = ts.load(write(tmp_path, LINK.format("b"), HINGE.format(LIMIT).replace('"a"', '"world"')))
    assert (model.n, model.frame("world").body) == (1, -1)


@pytest.mark.parametrize(
    ("head", "tail"),
    [
        ('<?xml version="0.0"?>', ""),
        ('\n\n<?xml version="1.0" encoding="utf-8"?>', ""),
        ("\ufeff", ""),
        ("<!-- a -- b -->", ""),
        ("", "<gazebo:thing never:declared='1'/>"),
    ],
)
def test_odd_declarations_comments_and_prefixes_are_forgiven(tmp_path, head, tail):
    path = two_links(tmp_path)
    text = path.read_text()
    path.write_text(head + text.replace("</robot>", f"{tail}</robot>"), encoding="utf-8")
    assert ts.load(path).joint_names == ("hinge",)


def test_text_after_the_robot_is_left_out_aloud(tmp_path):
    path = two_links(tmp_path)
    path.write_text(path.read_text() + "</robot>")
    with pytest.warns(ModelWarning, match="what follows </robot> is not read"):
        assert ts.load(path).joint_names == ("hinge",)


def test_defaults_of_launch_files_stand_for_their_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("PLACE", "7 7 7")  # not read: a file should mean the same everywhere
    path = two_links(tmp_path, JOINT.replace("<axis", '<origin xyz="$(optenv PLACE 1 2 3)"/><axis'))
    with pytest.warns(ModelWarning, match="stands for its default"):
        assert ts.load(path).p[0].tolist() == [1, 2, 3]


# ---- what is repaired ----


def bad_link(mass="1", moments=(1.0, 1.0, 3.0)):
    xx, yy, zz = moments
    inertia = f'<inertia ixx="{xx}" iyy="{yy}" izz="{zz}" ixy="0.1" ixz="0" iyz="0"/>'
    return f'<link name="b"><inertial><mass value="{mass}"/>{inertia}</inertial></link>'


def test_an_impossible_inertia_is_changed_as_little_as_possible_and_reported(tmp_path):
    path = two_links(tmp_path, b=bad_link())
    with pytest.warns(
        ModelWarning, match=r"link 'b': no body has principal moments of inertia \(0.9, 1.1, 3\): -> "
    ) as said:
        model = ts.load(path)
    assert said[0].filename == __file__  # the line that loads, not one of torsor's
    given = np.array([[1, 0.1, 0], [0.1, 1, 0], [0, 0, 3.0]])
    np.testing.assert_allclose(
        model.inertia[0], physical(given), rtol=0, atol=1e-11
    )  # within what can be by 1e-12 of the trace
    moments = np.linalg.eigvalsh(model.inertia[0])
    assert moments[2] <= moments[0] + moments[1] + 1e-12
    assert [note.kind for note in model.notes] == ["repair"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ts.load(path, repair="quiet") == model
    with pytest.raises(ModelError, match=r"robot\.urdf: link 'b': no body has principal moments"):
        ts.load(path, repair="strict")


def test_the_nearest_possible_inertia_is_nearest():
    """No other possible second moments of mass are nearer (Frobenius), whatever the axes."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        A = rng.normal(size=(3, 3))
        I = A + A.T
        wanted = np.trace(I) / 2 * np.eye(3) - I
        found = nearest_possible(I)
        spread = np.trace(found) / 2 * np.eye(3) - found
        distance = np.linalg.norm(spread - wanted)
        assert np.linalg.eigvalsh(spread)[0] >= -1e-12
        for _ in range(50):
            B = rng.normal(size=(3, 3)) * rng.uniform(0, 1)
            other = spread + rng.uniform(0, 0.3) * (B @ B.T - spread)  # also positive semidefinite
            assert np.linalg.norm(other - wanted) >= distance - 1e-9


@pytest.mark.parametrize("kind", ["revolute", "prismatic", "floating", "planar"])
def test_a_joint_that_moves_nothing_gets_a_rotor_that_nothing_else_feels(tmp_path, kind):
    end = HINGE.replace("hinge", "end").replace("revolute", kind).replace('"b"', '"c"').replace('"a"', '"b"')
    path = write(
        tmp_path, LINK.format("a"), LINK.format("b"), '<link name="c"/>', HINGE.format(LIMIT), end.format(LIMIT)
    )
    with pytest.warns(ModelWarning, match=r"link 'c': its joint moves nothing.* a rotor holds it, .*1% of 'b'"):
        model = ts.load(path)
    assert (pivots_of(model)[1:] > SANE * pivots_of(model)[0]).all()
    rng = np.random.default_rng(0)
    q, v, tau = model.random_configuration(rng), rng.normal(size=model.nv), np.zeros(model.nv)
    tau[0] = 1.0
    M = ts.mass_matrix(model, q)
    np.testing.assert_allclose(M[0, 0], 1.0, rtol=0, atol=UNFELT)
    assert np.isfinite(ts.forward_dynamics(model, q, v, tau)).all()
    np.testing.assert_allclose(ts.forward_dynamics(model, q, v, tau)[0], 1.0, rtol=0, atol=UNFELT * 100)


def test_mass_on_the_axis_moves_nothing_either(tmp_path):
    point = '<link name="b"><inertial><mass value="1"/><origin xyz="0 0 0.3"/></inertial></link>'
    with pytest.warns(ModelWarning, match="its joint moves nothing"):
        model = ts.load(two_links(tmp_path, b=point))
    assert np.isfinite(ts.forward_dynamics(model, [0.1], [0.2], [0.0])).all()


def test_an_inertia_without_mass_stays_and_a_robot_without_mass_has_kinematics(tmp_path):
    model = ts.load(two_links(tmp_path, b=bad_link("0", (1.0, 1.0, 1.0))), repair="quiet")
    np.testing.assert_allclose(ts.mass_matrix(model, [0.0]), [[1.0]], rtol=0, atol=UNFELT)
    model = ts.load(write(tmp_path, '<link name="a"/><link name="b"/>', HINGE.format(LIMIT)), repair="quiet")
    np.testing.assert_allclose(ts.body_poses(model, [0.5])[0, :2, 0], [np.cos(0.5), np.sin(0.5)])


def pivots_of(model):
    return np.array(evaluate(articulated.pivots, model, {"q": model.neutral().tolist()}))


def virtual_links(heads=3):
    """A hand whose fingers are chains of links without inertia, as Romeo's: each joint has limits and damping."""
    lines = [LINK.format("a"), LINK.format("b"), HINGE.format(LIMIT)]
    for finger in range(heads):
        parent = "b"
        for joint in range(3):
            name, kind = f"f{finger}{joint}", ("revolute", "prismatic")[joint % 2]
            lines.append(
                f'<link name="{name}"/><joint name="to_{name}" type="{kind}"><parent link="{parent}"/>'
                f'<child link="{name}"/><origin xyz="0 0.1 0.02"/><axis xyz="0 1 0"/>{LIMIT}'
                f'<dynamics damping="0.1"/></joint>'
            )
            parent = name
    return lines


def test_chains_of_virtual_links_can_be_simulated(tmp_path):
    model = ts.load(write(tmp_path, *virtual_links()), repair="quiet")
    pivots = pivots_of(model)
    assert pivots.min() > SANE * pivots.max()
    moved = ts.simulate(model, duration=0.2, v0=np.full(model.nv, 0.1))
    assert np.isfinite(moved.q).all()
    rested = ts.simulate(model, duration=0.2)
    np.testing.assert_allclose(rested.q[-1, 1:], 0, rtol=0, atol=1e-9)  # nothing pulls at the fingers
    M = ts.mass_matrix(model, model.neutral())
    np.testing.assert_allclose(M[1:, 1:], np.diag(model.armature[1:]), rtol=0, atol=UNFELT)


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_a_link_of_almost_no_mass_moves_nothing_either(tmp_path, size):
    """Whatever the unit: in grams and in tonnes."""
    tiny, heavy = (LINK.format("b").replace('"1"', f'"{mass!r}"') for mass in (1e-13 * size, size))
    second = HINGE.replace('"hinge"', '"second"').replace('link="b"', 'link="c"').replace('link="a"', 'link="b"')
    lines = LINK.format("a"), heavy, tiny.replace('"b"', '"c"'), HINGE.format(LIMIT), second.format(LIMIT)
    model = ts.load(write(tmp_path, *lines), repair="quiet")
    assert model.mass.tolist() == [size, 1e-13 * size]
    assert pivots_of(model)[1] > SANE * pivots_of(model)[0]


def test_joints_on_one_axis_without_mass_between_them(tmp_path):
    """M is singular though every joint carries mass: the first of the two gets the rotor."""
    second = HINGE.replace('"hinge"', '"second"').replace('link="b"', 'link="c"').replace('link="a"', 'link="b"')
    lines = LINK.format("a"), '<link name="b"/>', LINK.format("c"), HINGE.format(LIMIT), second.format(LIMIT)
    model = ts.load(write(tmp_path, *lines), repair="quiet")
    assert [note.where for note in model.notes if note.kind == "repair"] == ["link 'b'"]
    assert np.isfinite(ts.forward_dynamics(model, [0.1, 0.2], [0, 0], [1, 0])).all()


def test_a_file_without_masses_says_so_at_the_first_dynamics_call(tmp_path):
    lines = '<link name="a"/><link name="b"/><link name="c"/>', HINGE.format(LIMIT)
    second = HINGE.replace('"hinge"', '"second"').replace('link="b"', 'link="c"').replace('link="a"', 'link="b"')
    path = write(tmp_path, *lines, second.format(LIMIT))
    with pytest.warns(ModelWarning, match="no link that moves has a mass"):
        ts.load(path)
    with pytest.raises(ModelError, match="no link that moves has a mass"):
        ts.load(path, repair="strict")
    model = ts.load(path, repair="quiet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ts.body_poses(model, [0.1, 0.2])
        ts.jacobian(model, [0.1, 0.2], "c")
    with pytest.warns(ModelWarning, match="all inertias are invented; forces, accelerations and energies"):
        ts.forward_dynamics(model, [0.1, 0.2], [0.0, 0.0], [0.0, 0.0])
    with warnings.catch_warnings():  # once
        warnings.simplefilter("error")
        ts.forward_dynamics(model, [0.3, 0.2], [0.0, 0.0], [0.0, 0.0])
        ts.mass_matrix(model, [0.3, 0.2])
    np.testing.assert_allclose(pivots_of(model), 1e-4)  # rotors of 1 % of a ball of 1 kg, 0.1 m
    again = ts.load(path, repair="quiet")
    ts.save(again, tmp_path / "m.toml")
    with pytest.warns(ModelWarning, match="all inertias are invented"):
        ts.simulate(replace(ts.load(tmp_path / "m.toml"), gravity=(0, 0, -1)), duration=0.1)


def test_limits_the_wrong_way_round_are_dropped_aloud(tmp_path):
    limit = '<limit lower="1" upper="-1" effort="-3" velocity="1"/>'
    with pytest.warns(ModelWarning, match="lower 1 exceeds upper -1"):
        model = ts.load(two_links(tmp_path, HINGE.format(limit)))
    assert (model.lower[0], model.upper[0], model.effort[0]) == (-np.inf, np.inf, 3)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([LINK.format("a"), LINK.format("a")], r"urdf:3: <link name='a'>: there are two links of this name"),
        (["<link/>"], r"urdf:2: <link>: it needs name="),
        ([], r"urdf:1: <robot name='r'>: it has no <link>"),
        ([LINK.format("a")], "nothing moves"),
        ([LINK.format("a"), LINK.format("b")], r"it has 2 roots \('a', 'b'\)"),
        ([LINK.format("a"), HINGE], r"urdf:3: <joint name='hinge'>: its child 'b' is no link"),
        ([LINK.format("b"), HINGE], r"urdf:3: <joint name='hinge'>: its parent 'a' is no link"),
        ([LINK.format("a"), LINK.format("b"), HINGE, HINGE.replace("hinge", "two")], "hangs on joint 'hinge' already"),
        ([LINK.format("a"), LINK.format("b"), HINGE, HINGE], "there are two joints of this name"),
        ([LINK.format("a"), LINK.format("b"), HINGE.replace("revolute", "hinge")], "unknown joint type 'hinge'"),
        ([LINK.format("a"), LINK.format("b"), HINGE.replace('type="revolute"', "")], "it needs type="),
        ([LINK.format("a"), LINK.format("b"), HINGE.replace("0 0 1", "0 0 0")], "its axis is zero"),
        ([LINK.format("a"), LINK.format("b"), HINGE.replace("0 0 1", "0 0")], "xyz='0 0' must be 3 numbers, not 2"),
        ([LINK.format("a"), LINK.format("b"), HINGE.replace("0 0 1", "0 0 x")], "<axis>: xyz='x' is not a number"),
        ([LINK.format("a"), LINK.format("b"), HINGE.replace("0 0 1", "0 0 nan")], "xyz='nan' is not a finite number"),
        ([LINK.format("a"), LINK.format("b").replace("1", "1_0"), HINGE], "value='1_0' is not a number"),
        ([LINK.format("a"), LINK.format("b").replace("1", "-1", 1), HINGE], "mass -1 is negative"),
        ([LINK.format("a"), LINK.format("b"), HINGE.replace('<child link="b"/>', "")], "it needs a <child>"),
        (["<link name='a'><inertial>"], r"urdf:3: not well-formed XML: mismatched tag"),
        (["<xacro:macro name='x'/>"], "expand xacro files with xacro=True"),
    ],
)
def test_a_faulty_file_is_refused_with_file_line_and_element(tmp_path, lines, message):
    with pytest.raises(ModelError, match=message):
        ts.load(write(tmp_path, *(line.replace("{}", LIMIT) for line in lines)))


def test_joints_in_a_loop_are_refused(tmp_path):
    back = HINGE.replace("hinge", "back").replace('"a"', '"c"').replace('"b"', '"a"').replace('"c"', '"b"')
    with pytest.raises(ModelError, match="it has only links that hang in a loop"):
        ts.load(write(tmp_path, LINK.format("a"), LINK.format("b"), HINGE.format(LIMIT), back.format(LIMIT)))
    aside = HINGE.format(LIMIT), back.format(LIMIT)
    with pytest.raises(ModelError, match="hang on each other in a loop"):
        ts.load(write(tmp_path, '<link name="top"/>', LINK.format("a"), LINK.format("b"), *aside))


def test_a_joint_cannot_mimic_itself(tmp_path):
    joint = HINGE.format(LIMIT + '<mimic joint="hinge"/>')
    with pytest.raises(ModelError, match="joint 'hinge' mimics itself"):
        ts.load(two_links(tmp_path, joint))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": "floating"}, "unknown base 'floating'; choose one of: fixed, free"),
        ({"repair": "no"}, "unknown repair 'no'"),
        ({"folders": "here"}, "folders must be a list"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ArgumentError, match=message):
        ts.load(FEATURES, **options)
    with pytest.raises(ArgumentError, match="are for robot files"):
        ts.load("model.toml", base="free")


# ---- what a hostile file cannot do ----


def test_entities_and_document_types_are_refused(tmp_path):
    path = tmp_path / "bomb.urdf"
    laughs = "".join(f'<!ENTITY x{k} "{f"&x{k - 1};" * 10}">' for k in range(1, 12))
    for dtd in (f'<!ENTITY x0 "ha">{laughs}', '<!ENTITY x SYSTEM "file:///etc/passwd">'):
        path.write_text(f'<?xml version="1.0"?><!DOCTYPE robot [{dtd}]><robot name="&x1;&x;"/>')
        began = time.perf_counter()
        with pytest.raises(ModelError, match="document type declaration"):
            ts.load(path)
        assert time.perf_counter() - began < 1


def test_a_mesh_outside_the_folders_is_not_found(tmp_path):
    deep = tmp_path / "a" / "b" / "c" / "d" / "e" / "f" / "g"
    deep.mkdir(parents=True)
    (tmp_path / "secret.stl").write_text("solid")
    (deep / "mesh.stl").write_text("solid")
    (deep / "pack").mkdir()
    (deep / "pack" / "m.stl").write_text("solid")
    uris = {
        "mesh.stl": True, "./../g/mesh.stl": True, "package://g/mesh.stl": True, "package://pack/m.stl": True,
        f"file://{deep}/mesh.stl": True, "../../../../../../../secret.stl": False, f"{tmp_path}/secret.stl": False,
        "package://../../../../../../../secret.stl": False, "package://g/../../../../../../../secret.stl": False,
        "/etc/passwd": False, "file:///etc/passwd": False, "mesh%00.stl": False,
    }  # fmt: skip
    visuals = "".join(f'<visual><geometry><mesh filename="{uri}"/></geometry></visual>' for uri in uris)
    path = two_links(deep, b=LINK.format("b").replace("</link>", f"{visuals}</link>"))
    model = ts.load(path)
    found = [visual.file != uri and Path(visual.file).is_file() for visual, uri in zip(model.visuals, uris)]
    assert found == [inside or uri == "mesh.stl" for uri, inside in uris.items()]
    allowed = ts.load(path, folders=[tmp_path])
    assert sum(Path(visual.file).is_file() for visual in allowed.visuals) > sum(found)


@pytest.mark.parametrize("case", ["elements", "nesting", "attribute", "links"])
def test_large_files_take_bounded_time(tmp_path, case):
    n = 200_000
    chain = "".join(
        f'{LINK.format(f"l{k}")}<joint name="j{k}" type="revolute"><parent link="l{k - 1}"/>'
        f'<child link="l{k}"/></joint>'
        for k in range(1, 2000)
    )
    text = {
        "elements": "<gazebo/>" * n,
        "nesting": "<gazebo>" * n + "</gazebo>" * n,
        "attribute": f'<gazebo a="{"x" * n}"/>',
        "links": chain,
    }[case]
    path = two_links(tmp_path) if case != "links" else write(tmp_path, LINK.format("l0"))
    path.write_text(path.read_text().replace("</robot>", f"{text}</robot>"))
    began = time.perf_counter()
    model = ts.load(path, repair="quiet")
    assert time.perf_counter() - began < 10
    assert model.n == (1999 if case == "links" else 1)


def test_a_file_beyond_the_size_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("torsor.formats.xml.MOST_BYTES", 100)
    with pytest.raises(ModelError, match=r"too large; at most 0\.0001 MB are read"):
        ts.load(two_links(tmp_path))


def test_relative_meshes_are_found_in_folders_above(tmp_path):
    """Beside the file first; never outside the folders that a file may name."""
    for folder in ("robot/urdf", "robot/meshes", "robot/urdf/meshes"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    path = tmp_path / "robot" / "urdf" / "two.urdf"
    mesh = '<visual><geometry><mesh filename="meshes/{}.stl"/></geometry></visual>'
    links = f'<link name="a">{mesh.format("one")}{mesh.format("two")}</link>' + LINK.format("b")
    path.write_text(
        f'<robot name="r">{links}<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint></robot>'
    )
    for name in ("robot/meshes/one", "robot/meshes/two", "robot/urdf/meshes/two"):
        (tmp_path / f"{name}.stl").write_bytes(b"")
    found = [visual.file for visual in ts.load(path, repair="quiet").visuals]
    assert found == [str(tmp_path / "robot/meshes/one.stl"), str(tmp_path / "robot/urdf/meshes/two.stl")]


def test_a_name_of_robot_descriptions(monkeypatch, tmp_path):
    import sys
    from types import ModuleType

    package, module = ModuleType("robot_descriptions"), ModuleType("robot_descriptions.features_description")
    module.URDF_PATH, module.PACKAGE_PATH = str(FEATURES), str(FEATURES.parent)
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "robot_descriptions", package)
    monkeypatch.setitem(sys.modules, "robot_descriptions.features_description", module)
    assert ts.load("robot_descriptions:features_description").key == ts.load(FEATURES).key
    assert ts.load(module, base="free").nv == ts.load(FEATURES).nv + 6
    with pytest.raises(ArgumentError, match="pip install robot_descriptions"):
        ts.load("robot_descriptions:none_description")
    with pytest.raises(ArgumentError, match="not the name of a module"):
        ts.load("robot_descriptions:../x")
    (tmp_path / "far_description.py").write_text("raise RuntimeError('no network')")
    package.__path__ = [str(tmp_path)]
    with pytest.raises(ArgumentError, match="cannot fetch it: no network"):
        ts.load("robot_descriptions:far_description")


def test_the_command_takes_robot_files(capsys):
    from torsor.cli import main

    assert main(["info", str(FEATURES), "--base", "free"]) == 0
    said = capsys.readouterr().out
    assert re.search("grip2 = -1 grip", said)
    assert "pan_motor" in said
    assert main(["info", "puma560", "--base", "free"]) == 1
