"""Writers against readers: every joint type with every field of its freedoms, through torsor, MuJoCo and Pinocchio.

Whatever is written comes back, freedom by freedom; whatever does not is named in the warning, with its joint.
"""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from peers.installed import peer
from peers.robot_files import MuJoCoFile, PinocchioFile, random_state

import torsor as ts
from torsor.errors import ModelError
from torsor.formats.urdf import MOMENTS
from torsor.formats.urdf_writer import angles
from torsor.formats.writer import PRIMITIVES
from torsor.model.extras import Actuator, Coupling, Extras, Visual
from torsor.model.freedoms import DEFAULTS
from torsor.model.joints import joint_named

mujoco = peer("mujoco")
pin = peer("pinocchio")

KINDS = sorted(PRIMITIVES)
WHOLE = {".urdf": ("spherical", "free"), ".xml": ("spherical", "free")}  # no several joints make these
FIELDS = {  # ranges of random values, positive but for the rest
    "damping": (0.1, 1), "friction": (0.1, 1), "stiffness": (1, 9), "rest": (-0.3, 0.3), "armature": (0.01, 0.1),
    "lower": (-3, -1), "upper": (1, 3), "effort": (10, 90), "speed": (1, 9),
    "stop_stiffness": (1, 9), "stop_damping": (1, 9),
}  # fmt: skip
NOWHERE = ("stop_stiffness", "stop_damping")  # fields that no format has
LIMITED = ("lower", "upper")
# Rotations are written as angles or quaternions, and compositions of them differ by a few roundings.
ROUNDING = 1e-12
# Relative to the largest number of its kind; peer and torsor sum in different orders.
AGREEMENT = 1e-10


def rotation(rng):
    Q = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    return Q * np.sign(np.linalg.det(Q))


def inertia(rng, flat=False):
    """Of a random body; a flat one is on the edge of the triangle inequality."""
    a, b, c = rng.uniform(0.1, 1, 3) * (1, 1, 0 if flat else 1)
    Q = rotation(rng)
    I = Q @ np.diag([b + c, c + a, a + b]) @ Q.T
    return (I + I.T) / 2


def machine(kind, rng, fields=(), alike=False, flat=False):
    """A joint of one type between a hinge and a slide, with random numbers (alike: one for all freedoms)."""
    builder = ts.Model.builder(f"a {kind}")
    joints = [kind, "revolute", "prismatic"] if kind == "free" else ["revolute", kind, "prismatic"]
    for k, joint in enumerate(joints):
        nv = joint_named(joint).nv
        own = [key for key in fields if key not in LIMITED or joint not in ("spherical", "free")]
        values = {key: rng.uniform(*FIELDS[key], 1 if alike else nv) * np.ones(nv) for key in own}
        place = {} if joint == "free" else {"p": rng.normal(size=3), "R": rotation(rng)}
        builder.add(
            f"b{k}", f"b{k - 1}" if k else None, joint, axis=rng.normal(size=3), mass=rng.uniform(1, 2),
            com=rng.normal(size=3), inertia=inertia(rng, flat), **place, **values,
        )  # fmt: skip
    return builder.build()


def saved(model, path):
    """The warning's text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ts.save(model, path)
    return "; ".join(str(w.message) for w in caught)


def compare_dynamics(model, again, rng):
    assert again.nv == model.nv
    q, v = model.random_configuration(rng), rng.normal(size=model.nv)
    for function, state in ((ts.mass_matrix, (q,)), (ts.bias_forces, (q, v))):
        ours, theirs = function(model, *state), function(again, *state)
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=ROUNDING * np.abs(ours).max())


def compare_with_peer(model, path, rng):
    peer = MuJoCoFile(path) if path.suffix == ".xml" else PinocchioFile(path, "fixed")
    assert set(peer.kinds) == set(model.joint_names)
    state = random_state(peer.kinds, rng)
    M, bias, _ = peer.terms(state, model.joint_names)
    q, v = (np.concatenate([state[name][k] for name in model.joint_names]) for k in (0, 1))
    ours = ts.mass_matrix(model, q), ts.bias_forces(model, q, v)
    np.testing.assert_allclose(ours[0], M, rtol=0, atol=AGREEMENT * np.abs(M).max())
    np.testing.assert_allclose(ours[1], bias, rtol=0, atol=AGREEMENT * max(1.0, np.abs(bias).max()))
    return peer


@pytest.mark.parametrize("suffix", [".urdf", ".xml"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", [*FIELDS, "all"])
def test_every_field_of_every_freedom_comes_back_or_is_named(tmp_path, kind, suffix, field):
    rng = np.random.default_rng(KINDS.index(kind))
    fields = list(FIELDS) if field == "all" else ["stiffness", "rest"] if field == "rest" else [field]
    model = machine(kind, rng, fields)
    path = tmp_path / f"m{suffix}"
    said = saved(model, path)
    again = ts.load(path, repair="strict")
    body = 0 if kind == "free" else 1
    own = slice(*model.v_start[body : body + 2])
    for key in DEFAULTS:
        wanted, found = getattr(model, key).copy(), getattr(again, key)
        lost = f" {key} of " in said
        if lost and (key in NOWHERE or (key == "speed" and suffix == ".xml")):
            wanted[:] = DEFAULTS[key]
        elif lost:
            assert kind in WHOLE[suffix]
            assert repr(model.joint_names[body]) in said.partition(f" {key} of ")[2].partition(";")[0]
            wanted[own] = DEFAULTS[key]
        np.testing.assert_array_equal(found, wanted, err_msg=key)
    compare_dynamics(model if "armature of " not in said else replace(model, armature=again.armature), again, rng)


@pytest.mark.parametrize("suffix", [".urdf", ".xml"])
@pytest.mark.parametrize("kind", ["spherical", "free", "planar"])
def test_numbers_that_all_freedoms_share_come_back(tmp_path, kind, suffix):
    model = machine(kind, np.random.default_rng(5), ("damping", "friction", "armature", "stiffness"), alike=True)
    if kind == "free" and suffix == ".xml":
        model = replace(model, stiffness=0.0)
    path = tmp_path / f"m{suffix}"
    said = saved(model, path)
    assert " of " not in said.replace("are not in the standard", "")
    again = ts.load(path)
    assert again.joint_names == (model.joint_names if suffix == ".urdf" or kind != "planar" else again.joint_names)
    for key in DEFAULTS:
        np.testing.assert_array_equal(getattr(again, key), getattr(model, key), err_msg=key)


# Pinocchio reads no spherical joints from URDF
@pytest.mark.parametrize(("kind", "suffix"), [(kind, suffix) for kind in KINDS for suffix in (".urdf", ".xml")
                                              if (kind, suffix) != ("spherical", ".urdf")])  # fmt: skip
@pytest.mark.parametrize("flat", [False, True])
def test_engines_read_the_same_machine(tmp_path, kind, suffix, flat):
    """Also where principal moments are on the edge of the triangle inequality, which MuJoCo checks to the last bit."""
    rng = np.random.default_rng(3)
    fields = ("damping", "friction", "armature", "stiffness", "rest") if suffix == ".xml" else ("damping",)
    for alike in (True, False):
        model = machine(kind, rng, fields, alike, flat)
        path = tmp_path / f"m{suffix}"
        saved(model, path)
        again = ts.load(path, repair="strict")
        peer = compare_with_peer(again, path, rng)
        if suffix == ".xml":
            turned = np.roll(np.arange(6), 3) if kind == "free" else np.arange(0)  # MuJoCo: linear first
            order = np.concatenate([turned, np.arange(len(turned), model.nv)]).astype(int)
            for key, theirs in (("damping", "damping"), ("friction", "frictionloss"), ("armature", "armature")):
                np.testing.assert_array_equal(getattr(again, key)[order], getattr(peer.model, f"dof_{theirs}"))


def test_angles_hold_at_any_pitch():
    """Rz(yaw) Ry(pitch) Rx(roll) at and near 90 degrees."""
    from torsor.formats.robot import rotation as turned

    rng = np.random.default_rng(0)
    worst = 0.0
    for size in (0, 1e-16, 1e-12, 1e-9, 3e-9, 1e-8, 1e-6, 1e-3, 0.1, 1):
        for sign in (-1, 1):
            for _ in range(50):
                roll, yaw = rng.uniform(-np.pi, np.pi, 2)
                R = turned(roll, sign * (np.pi / 2 - size), yaw)
                worst = max(worst, np.abs(turned(*angles(R)) - R).max())
    assert worst < 2e-15


@pytest.mark.parametrize("suffix", [".urdf", ".xml"])
def test_a_body_named_world_is_renamed_aloud(tmp_path, suffix):
    model = ts.Model.chain(mass=1, inertia=(1, 1, 1), names=["world", "world_"])
    said = saved(model, tmp_path / f"w{suffix}")
    assert "the name of body 'world', which is that of the base: here 'world__'" in said
    again = ts.load(tmp_path / f"w{suffix}")
    assert list(again.names) == ["world__", "world_"]
    compare_dynamics(model, again, np.random.default_rng(0))


def test_meshes_are_named_relative_to_the_file(tmp_path):
    (tmp_path / "meshes").mkdir()
    (tmp_path / "robots").mkdir()
    mesh = tmp_path / "meshes" / "m.stl"
    mesh.write_bytes(tetrahedron())
    body = ts.Model.chain(mass=1, inertia=(1, 1, 1))
    model = replace(body, extras=Extras(visuals=(Visual(0, "mesh", (1.0, 1.0, 1.0), file=str(mesh)),)))
    for suffix in (".urdf", ".xml"):
        path = tmp_path / "robots" / f"m{suffix}"
        assert saved(model, path) == ""
        assert '"../meshes/m.stl"' in path.read_text()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("meshes", "robots"):
        (tmp_path / name).rename(moved / name)
    for suffix in (".urdf", ".xml"):
        again = ts.load(moved / "robots" / f"m{suffix}")
        assert again.visuals[0].file == str(moved / "meshes" / "m.stl")


def test_a_mesh_that_the_reader_would_not_open_is_named(tmp_path):
    deep = tmp_path / "1" / "2" / "3" / "4" / "5" / "6"
    deep.mkdir(parents=True)
    (tmp_path / "m.stl").write_bytes(tetrahedron())
    body = ts.Model.chain(mass=1, inertia=(1, 1, 1))
    visual = Visual(0, "mesh", (1.0, 1.0, 1.0), file=str(tmp_path / "m.stl"))
    model = replace(body, extras=Extras(visuals=(visual,)))
    said = saved(model, deep / "m.xml")
    assert f"load it with folders=['{tmp_path}']" in said
    assert ts.load(deep / "m.xml", folders=[tmp_path]).visuals[0].file == visual.file


def tetrahedron():
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype="<f4")
    faces = corners[[[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]]
    facets = b"".join(np.zeros(3, "<f4").tobytes() + face.tobytes() + b"\0\0" for face in faces)
    return b"\0" * 80 + len(faces).to_bytes(4, "little") + facets


@pytest.mark.parametrize("suffix", [".urdf", ".xml"])
def test_joints_keep_their_order_or_it_is_said(tmp_path, suffix):
    rng = np.random.default_rng(0)
    for n in range(2, 12):
        parent = [-1] + [int(rng.integers(-1, k)) for k in range(1, n)]
        names = [str(x) for x in rng.permutation(n)]
        model = ts.Model.tree(parent, mass=1, inertia=(1, 1, 1), names=names, damping=rng.uniform(size=n))
        said = saved(model, tmp_path / f"t{suffix}")
        again = ts.load(tmp_path / f"t{suffix}")
        assert ("the order of the joints" in said) == (again.joint_names != model.joint_names)
        assert suffix == ".xml" or again.joint_names == model.joint_names
        place = [list(model.joint_names).index(name) for name in again.joint_names]
        np.testing.assert_array_equal(again.damping, model.damping[place])


def test_long_chains(tmp_path):
    chain = ts.Model.chain(mass=1, inertia=(1, 1, 1), p=(0, 0, 1), n=3000)
    ts.save(chain, tmp_path / "c.urdf")
    assert ts.load(tmp_path / "c.urdf").n == 3000
    with pytest.raises(ModelError, match="MuJoCo reads at most 496 bodies on one another; 'link497' is one more"):
        ts.save(chain, tmp_path / "c.xml")
    longest = ts.Model.chain(mass=1, inertia=(1, 1, 1), p=(0, 0, 1), n=496)
    ts.save(longest, tmp_path / "c.xml")
    assert ts.load(tmp_path / "c.xml").n == 496


def test_actuators_act_on_their_own_freedom(tmp_path):
    """One freedom of a ball joint, all of them, one of a joint that is written as several; limits on one side."""
    model = ts.Model.chain(["spherical", "universal"], mass=1, inertia=(1, 2, 2))
    actuators = (
        Actuator("second", ((1, 2.0),), control=(-np.inf, 3.0)), Actuator("third", ((2, -1.0),), effort=(-1.0, 2.0)),
        Actuator("ball", ((0, 1.0), (1, 2.0), (2, 3.0)), gain=3.0), Actuator("y", ((4, 5.0),), bias=(1.0, 2.0, 3.0)),
    )  # fmt: skip
    model = replace(model, extras=Extras(actuators=actuators))
    assert saved(model, tmp_path / "a.xml") == ""
    assert ts.load(tmp_path / "a.xml").actuators == actuators
    said = saved(model, tmp_path / "a.urdf")
    assert all(f"actuator '{name}', but for one gear ratio" in said for name in ("second", "third", "ball", "y"))
    several = replace(model, extras=Extras(actuators=(Actuator("both", ((0, 1.0), (3, 1.0))),)))
    assert "actuator 'both', which drives a free joint or several joints" in saved(several, tmp_path / "a.xml")


def test_couplings_and_limits_on_one_side(tmp_path):
    limits = {"lower": [-1, -np.inf, -1e5], "upper": [np.inf, 2, 1e5]}
    model = ts.Model.chain(["revolute", "prismatic", "revolute"], mass=1, inertia=(1, 1, 1), **limits)
    model = replace(model, extras=Extras(couplings=(Coupling(2, 0, 0.5, 0.1),)))
    for suffix in (".urdf", ".xml"):
        saved(model, tmp_path / f"m{suffix}")
        again = ts.load(tmp_path / f"m{suffix}")
        assert again.couplings == model.couplings
        np.testing.assert_array_equal(again.lower, model.lower)
        np.testing.assert_array_equal(again.upper, model.upper)


def test_limits_that_leave_nothing_are_named_where_mujoco_takes_them_for_none(tmp_path):
    model = ts.Model.chain(n=2, mass=1, inertia=(1, 1, 1), lower=[0.5, -1], upper=[0.5, 1], effort=[1, 0])
    said = saved(model, tmp_path / "m.xml")
    assert "range of 'link1'" in said
    assert "actuatorfrcrange of 'link2'" in said
    assert saved(model, tmp_path / "m.urdf") == ""
    again = ts.load(tmp_path / "m.urdf")
    for key in ("lower", "upper", "effort"):
        np.testing.assert_array_equal(getattr(again, key), getattr(model, key))


def test_joints_of_a_file_differ_in_name(tmp_path):
    """The parts of a joint that is written as several are called by its coordinates, which others may be called."""
    model = ts.Model.chain(["universal", "revolute", "revolute"], mass=1, inertia=(1, 2, 2), names=["a", "a/x", "a/y"])
    for suffix in (".urdf", ".xml"):
        saved(model, tmp_path / f"m{suffix}")
        again = ts.load(tmp_path / f"m{suffix}", repair="strict")
        assert list(again.joint_names) == ["a/x_", "a/y_", "a/x", "a/y"]
        compare_dynamics(model, again, np.random.default_rng(0))


@pytest.mark.parametrize("suffix", [".urdf", ".xml"])
def test_characters_that_xml_does_not_have_are_refused(tmp_path, suffix):
    for name in ("a\x01b", "a\ufffe"):
        model = ts.Model.chain(mass=1, inertia=(1, 1, 1), names=[name])
        with pytest.raises(ModelError, match=r"XML has no character .*rename it"):
            ts.save(model, tmp_path / f"n{suffix}")
    odd = ts.Model.chain(mass=1, inertia=(1, 1, 1), names=["a\n\tb \"'<&>é😀"])
    ts.save(odd, tmp_path / f"n{suffix}")
    assert list(ts.load(tmp_path / f"n{suffix}").names) == list(odd.names)


def test_repaired_inertias_are_taken_by_mujoco(tmp_path):
    rng = np.random.default_rng(0)
    for k in range(20):
        Q = rotation(rng)
        I = Q @ np.diag([1.0, 1.0, 3.0 + k]) @ Q.T
        words = " ".join(f'{key}="{float(x)!r}"' for key, x in zip(MOMENTS, I[np.triu_indices(3)]))
        (tmp_path / "bad.urdf").write_text(
            '<robot name="r"><link name="a"/><link name="b"><inertial><mass value="1"/>'
            f"<inertia {words}/></inertial></link>"
            '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint></robot>'
        )
        model = ts.load(tmp_path / "bad.urdf", repair="quiet")
        for suffix in (".urdf", ".xml"):
            ts.save(model, tmp_path / f"good{suffix}")
            assert mujoco.MjModel.from_xml_path(str(tmp_path / f"good{suffix}")).nv == 1
        assert pin.buildModelFromUrdf(str(tmp_path / "good.urdf")).nv == 1


def test_bodies_without_mass_keep_their_place_in_mjcf(tmp_path):
    """Their joints become joints of the body they carry, where that comes in the depth-first order; six at most."""
    builder = ts.Model.builder("m")
    builder.add("light", mass=0.0, damping=1.0)
    builder.add("b", mass=1, inertia=(1, 1, 1), damping=2.0)
    builder.add("c", "light", "prismatic", axis=(1, 0, 0), mass=1, inertia=(1, 1, 1), damping=3.0)
    model = replace(builder.build(), extras=Extras(keyframes={"k": (1.0, 2.0, 3.0)}))
    assert "the order of the joints" in saved(model, tmp_path / "m.xml")
    again = ts.load(tmp_path / "m.xml")
    assert list(again.joint_names) == ["light", "c", "b"]
    assert again.damping.tolist() == [1, 3, 2]
    assert again.keyframes["k"].tolist() == [1, 3, 2]
    builder = ts.Model.builder("seven")
    for k, kind in enumerate(["universal", "planar", "universal"]):
        builder.add(f"b{k}", f"b{k - 1}" if k else None, kind, mass=float(k == 2), inertia=(k == 2) * np.ones(3))
    with pytest.raises(ModelError, match="MuJoCo takes no body without mass or extent: give 'b0' some"):
        ts.save(builder.build(), tmp_path / "s.xml")


def test_a_frame_called_world_is_a_frame(tmp_path):
    builder = ts.Model.builder("m").add("a", mass=1, inertia=(1, 1, 1))
    for host in (None, "a"):
        model = builder.build().with_frames({"world": (host, np.eye(3), (1, 2, 3)), "f": (None, np.eye(3), (0, 0, 1))})
        for suffix in (".urdf", ".xml"):
            ts.save(model, tmp_path / f"m{suffix}")
            again = ts.load(tmp_path / f"m{suffix}")
            for name in ("world", "f"):
                ours, theirs = (ts.frame_poses(machine, [0.3], name) for machine in (model, again))
                np.testing.assert_array_equal(theirs, ours)


def test_urdfdom_takes_springs_without_damping(tmp_path):
    ts.save(ts.Model.chain(mass=1, inertia=(1, 1, 1), stiffness=2.0), tmp_path / "m.urdf")
    assert pin.buildModelFromUrdf(str(tmp_path / "m.urdf")).nv == 1
