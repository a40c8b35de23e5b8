"""Poses and Jacobians of frames, inverse kinematics, and states in the orders of other engines."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from peers.installed import peer

import torsor as ts
from torsor import zoo
from torsor.errors import ArgumentError
from torsor.model.extras import Coupling, Extras

mujoco = peer("mujoco")
pin = peer("pinocchio")

ROBOTS = Path(__file__).parent / "robots"
ROUNDING = 1e-12
# central differences of step 1e-6: truncation 1e-12 and rounding 1e-10, relative to lengths of metres
DIFFERENCES = 1e-8


@pytest.fixture(scope="module")
def features():
    return ts.load(ROBOTS / "features.urdf")


@pytest.fixture(scope="module")
def state(features):
    rng = np.random.default_rng(4)
    return features.random_configuration(rng), rng.normal(size=features.nv)


# ---- poses and Jacobians ----


def test_frame_poses_of_one_several_and_all(features, state):
    q, _ = state
    one = ts.frame_poses(features, q, "camera_optical")
    several = ts.frame_poses(features, q, ["camera_optical", "upper", "elbow", None, 2])
    np.testing.assert_allclose(several[0], one)
    np.testing.assert_allclose(several[1], ts.body_poses(features, q)[1])
    np.testing.assert_allclose(several[2], several[1])
    np.testing.assert_allclose(several[3], np.eye(4))
    np.testing.assert_allclose(several[4], ts.body_poses(features, q)[2])
    assert ts.frame_poses(features, q).shape == (len(features.frames), 4, 4)
    assert ts.frame_poses(features, np.stack([q] * 3)[None], ["palm"]).shape == (1, 3, 1, 4, 4)
    assert ts.frame_poses(features, q, []).shape == (0, 4, 4)
    assert ts.frame_poses(features, q.astype(np.float32), "palm").dtype == np.float32
    with pytest.raises(ArgumentError, match="no body or frame named 'x'"):
        ts.frame_poses(features, q, ["x"])
    with pytest.raises(ArgumentError, match="frames must be a name"):
        ts.frame_poses(features, q, 1.5)


@pytest.mark.parametrize(
    ("reference", "theirs"),
    [("body", "LOCAL"), ("world", "WORLD"), ("world-aligned", "LOCAL_WORLD_ALIGNED")],
)
def test_jacobians_are_those_of_pinocchio(features, state, reference, theirs):
    q, v = state
    peer = pin.buildModelFromUrdf(str(ROBOTS / "features.urdf"))
    data = peer.createData()
    pq, pv = ts.formats.to_pinocchio(features, peer, q, v)
    frame = peer.getFrameId("palm")
    kind = getattr(pin.ReferenceFrame, theirs)
    J = pin.computeFrameJacobian(peer, data, pq, frame, kind)
    spin_first = np.roll(J, 3, axis=0)
    ours = ts.jacobian(features, q, "palm", reference=reference)
    np.testing.assert_allclose(ours @ v, spin_first @ pv, rtol=0, atol=ROUNDING)
    pin.computeJointJacobiansTimeVariation(peer, data, pq, pv)
    rate = np.roll(pin.getFrameJacobianTimeVariation(peer, data, frame, kind), 3, axis=0)
    _, columns = features.order(["pan", "elbow", "extend", "turn"])  # the path to the palm
    dot = ts.jacobian_dot(features, q, v, "palm", reference=reference)
    at = [peer.joints[peer.getJointId(name)].idx_v for name in ("pan", "elbow", "extend", "turn")]
    np.testing.assert_allclose(dot[:, columns], rate[:, at], rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("reference", ["body", "world", "world-aligned"])
def test_jacobian_rates_are_derivatives(reference):
    model = zoo.random_tree(6, 3)
    rng = np.random.default_rng(0)
    q, v = model.random_configuration(rng), rng.normal(size=model.nv)
    ends = [ts.jacobian(model, model.integrate(q, h * v), 5, reference=reference) for h in (-1e-6, 1e-6)]
    rate = ts.jacobian_dot(model, q, v, 5, reference=reference)
    np.testing.assert_allclose(rate, (ends[1] - ends[0]) / 2e-6, rtol=0, atol=DIFFERENCES * 10)


def test_batches_of_jacobians_in_other_axes(features, state):
    q, v = (np.stack([x] * 3)[:, None] for x in state)
    one = ts.jacobian(features, state[0], "palm", reference="world")
    np.testing.assert_array_equal(ts.jacobian(features, q, "palm", reference="world")[1, 0], one)
    assert ts.jacobian_dot(features, q, v, "palm", reference="world").shape == (3, 1, 6, features.nv)
    with pytest.raises(ArgumentError, match="unknown reference 'local'"):
        ts.jacobian(features, state[0], "palm", reference="local")


def test_batches_of_models_have_frames_too(features, state):
    q, _ = state
    scale = np.array([1.0, 1.1])[:, None, None]
    models = ts.ModelBatch(features, p=features.p * scale)
    for member, k in zip((features, replace(features, p=features.p * 1.1)), range(2)):
        np.testing.assert_allclose(
            ts.frame_poses(models, q, "palm")[k], ts.frame_poses(member, q, "palm"), rtol=0, atol=ROUNDING
        )
        for axes in ("world", "world-aligned"):
            J = ts.jacobian(models, q, "palm", reference=axes)[k]
            np.testing.assert_allclose(J, ts.jacobian(member, q, "palm", reference=axes), rtol=0, atol=ROUNDING)


# ---- inverse kinematics ----


def arm(limits=True):
    model = zoo.panda()
    return replace(model, lower=-2.5, upper=2.5) if limits else model


def test_nearly_every_reachable_target_of_a_seven_joint_arm_is_found():
    model = arm()
    q = np.random.default_rng(0).uniform(-2.5, 2.5, (2000, 7))
    targets = ts.frame_poses(model, q, 6)
    found = ts.inverse_kinematics(model, 6, targets)
    assert found.solved.mean() > 0.999
    reached = ts.frame_poses(model, found.q, 6)
    np.testing.assert_allclose(reached[found.solved], targets[found.solved], rtol=0, atol=1e-6)
    assert (np.abs(found.q) <= 2.5).all()
    again = ts.inverse_kinematics(model, 6, targets[:5])
    np.testing.assert_array_equal(again.q.shape, (5, 7))


def test_batch_shapes_and_one_target():
    model = arm()
    T = ts.frame_poses(model, np.full(7, 0.3), 6)
    found = ts.inverse_kinematics(model, 6, T)
    assert (found.q.shape, found.solved.shape, bool(found.solved)) == ((7,), (), True)
    assert ts.inverse_kinematics(model, 6, np.broadcast_to(T, (2, 3, 4, 4))).q.shape == (2, 3, 7)
    assert ts.inverse_kinematics(model, 6, np.empty((0, 4, 4))).q.shape == (0, 7)


def test_a_target_out_of_reach_is_reported_with_the_nearest_try():
    model = arm()
    found = ts.inverse_kinematics(model, 6, [0.0, 0.0, 9.0], restarts=5)
    assert not found.solved
    reach = np.linalg.norm(ts.frame_poses(model, found.q, 6)[:3, 3] - [0, 0, 9.0])
    np.testing.assert_allclose(found.error, reach, rtol=1e-9)


def test_positions_and_weights_leave_the_rest_free():
    model = arm()
    rng = np.random.default_rng(1)
    points = ts.frame_poses(model, rng.uniform(-2, 2, (50, 7)), 6)[:, :3, 3]
    found = ts.inverse_kinematics(model, 6, points)
    assert found.solved.all()
    np.testing.assert_allclose(ts.frame_poses(model, found.q, 6)[:, :3, 3], points, rtol=0, atol=1e-6)
    targets = ts.frame_poses(model, rng.uniform(-2, 2, (50, 7)), 6)
    pointing = ts.inverse_kinematics(model, 6, targets, weights=[1, 1, 0, 1, 1, 1])  # free to turn about its z axis
    assert pointing.solved.all()
    np.testing.assert_allclose(ts.frame_poses(model, pointing.q, 6)[:, :3, 2], targets[:, :3, 2], rtol=0, atol=2e-6)


def test_limits_and_couplings_hold(features):
    palm = features.with_frames({"fingertip": ("tip2", np.eye(3), [0.03, 0, 0])})
    rng = np.random.default_rng(2)
    q = palm.coupled(palm.random_configuration(rng, 40))
    iq, _ = palm.order(["elbow", "extend", "turn", "grip"])
    q[:, iq] = rng.uniform([-1.5, 0, -3, 0], [2.5, 0.3, 3, 1], (40, 4))
    q = palm.coupled(q)
    targets = ts.frame_poses(palm, q, "fingertip")[:, :3, 3]
    found = ts.inverse_kinematics(palm, "fingertip", targets)
    assert found.solved.all()
    np.testing.assert_allclose(found.q, palm.coupled(found.q))
    assert (found.q[:, iq] >= [-1.5, 0, -3, 0]).all()
    assert (found.q[:, iq] <= [2.5, 0.3, 3, 1]).all()
    untouched, _ = palm.order(["string", "floor"])  # they do not move the fingertip
    np.testing.assert_array_equal(found.q[:, untouched], np.broadcast_to(palm.neutral()[untouched], (40, 10)))


def follower_arm(ratio, offset, lower, upper, seed=0):
    """Five joints; the fourth follows the second."""
    model = zoo.general_arm(5, seed)
    limits = {"lower": np.full(5, -1.0), "upper": np.full(5, 1.0)}
    limits["lower"][3], limits["upper"][3] = lower, upper
    return replace(model, **limits, extras=Extras(couplings=(Coupling(3, 1, ratio, offset),)))


@pytest.mark.parametrize(
    ("ratio", "offset", "lower", "upper"),
    [
        (2.0, 0.0, -2.0, 2.0),
        (-1.5, 0.3, -0.2, 0.9),
        (0.7, -0.4, -np.inf, np.inf),
        (1 / 3, 0.1, 0.0, 0.2),
        (0.0, 0.5, 0.0, 1.0),
    ],
)
def test_a_solution_keeps_every_limit_and_every_coupling(ratio, offset, lower, upper):
    """Most targets are on or beyond the limits, where clipping one joint must move the one that follows it."""
    model, rng = follower_arm(ratio, offset, lower, upper), np.random.default_rng(3)
    q = model.coupled(rng.uniform(-1.2, 1.2, (60, 5)))
    targets = ts.frame_poses(model, q, 4)[:, :3, 3]
    found = ts.inverse_kinematics(model, 4, targets, q, restarts=8)
    reachable = ((model.lower <= q) & (q <= model.upper)).all(axis=1)
    assert found.solved[reachable].all()
    assert found.solved.any()
    assert (model.lower <= found.q).all()
    assert (found.q <= model.upper).all()
    np.testing.assert_allclose(found.q, model.coupled(found.q), rtol=0, atol=ROUNDING)
    reached = ts.frame_poses(model, found.q, 4)[:, :3, 3]
    np.testing.assert_allclose(reached[found.solved], targets[found.solved], rtol=0, atol=2e-6)


@pytest.mark.parametrize(("ratio", "offset", "lower", "upper"), [(1.0, 5.0, -1.0, 1.0), (0.0, 2.0, -1.0, 1.0)])
def test_limits_that_no_coupled_configuration_keeps_are_refused(ratio, offset, lower, upper):
    model = follower_arm(ratio, offset, lower, upper)
    with pytest.raises(ArgumentError, match="limits of joint 'link4' and those of 'link2', which it follows, exclude"):
        ts.inverse_kinematics(model, 4, [0.3, 0.3, 0.3])
    assert ts.inverse_kinematics(model, 4, [0.3, 0.3, 0.3], limits=False, restarts=1).q.shape == (5,)


@pytest.mark.parametrize("seed", range(4))
def test_every_joint_type_can_be_solved_for(seed):
    """From a start near the answer, whatever the joints of the tree."""
    model = zoo.random_tree(5, seed)
    rng = np.random.default_rng(seed)
    q = model.random_configuration(rng, 20)
    targets = ts.frame_poses(model, q, model.n - 1)
    near = model.integrate(q, 0.1 * rng.normal(size=(20, model.nv)))
    found = ts.inverse_kinematics(model, model.n - 1, targets, near)
    assert found.solved.mean() > 0.8
    reached = ts.frame_poses(model, found.q, model.n - 1)
    np.testing.assert_allclose(reached[found.solved], targets[found.solved], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((6, np.eye(3)[:2]), {}, None),
        ((6, np.zeros((2, 5))), {}, r"targets must have shape \(..., 4, 4\) or \(..., 3\)"),
        ((6, np.zeros((4, 4))), {}, "must be a rotation"),
        ((6, np.full(3, np.nan)), {}, "targets must be finite"),
        ((6, np.eye(3)), {}, r"targets of shape \(3, 3\) are rotations: give poses"),
        ((6, ts.lie.exp_so3(np.ones((4, 3)))), {}, r"targets of shape \(4, 3, 3\) are rotations"),
        ((6, np.eye(4) + np.eye(4)[[3, 0, 1, 2]] * [[0], [0], [0], [1]]), {}, "last row of a pose must be 0 0 0 1"),
        ((6, np.zeros(3)), {"weights": np.zeros(6)}, "weights must not be negative, nor all zero"),
        ((6, np.zeros(3)), {"q0": np.zeros(3)}, r"q0 must have shape \(7,\)"),
        ((6, np.zeros(3)), {"tolerance": 0}, "tolerance must be greater than 0"),
        ((6, np.zeros(3)), {"restarts": -1}, "restarts must be at least 0"),
        (("nowhere", np.zeros(3)), {}, "no body or frame named 'nowhere'"),
        ((None, np.zeros(3)), {}, "sits on the base"),
    ],
)
def test_arguments_of_inverse_kinematics(arguments, options, message):
    if message is None:
        assert ts.inverse_kinematics(arm(), *arguments, **options, restarts=1).q.shape == (2, 7)
        return
    with pytest.raises(ArgumentError, match=message):
        ts.inverse_kinematics(arm(), *arguments, **options)


def test_the_coupling_matrix_gives_velocities(features):
    G = features.coupling_matrix()
    q = features.random_configuration(0)
    dv = G @ np.random.default_rng(0).normal(size=G.shape[1]) * 1e-3
    moved = features.integrate(features.coupled(q), dv)
    np.testing.assert_allclose(moved, features.coupled(moved), rtol=0, atol=ROUNDING)


# ---- states of other engines ----


@pytest.mark.parametrize("base", ["fixed", "free"])
def test_states_go_to_pinocchio_and_back(base):
    model = ts.load(ROBOTS / "features.urdf", base=base)
    root = (pin.JointModelFreeFlyer(),) if base == "free" else ()
    peer = pin.buildModelFromUrdf(str(ROBOTS / "features.urdf"), *root)
    data = peer.createData()
    rng = np.random.default_rng(0)
    q, v = model.random_configuration(rng, 5), rng.normal(size=(5, model.nv))
    pq, pv = ts.formats.to_pinocchio(model, peer, q, v)
    back = ts.formats.from_pinocchio(model, peer, pq, pv)
    np.testing.assert_allclose(ts.body_poses(model, back[0]), ts.body_poses(model, q), rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(back[1], v, rtol=0, atol=ROUNDING)
    np.testing.assert_array_equal(ts.formats.from_pinocchio(model, peer, pq), back[0])
    energy = pin.computeKineticEnergy(peer, data, pq[2], pv[2])
    np.testing.assert_allclose(ts.kinetic_energy(replace(model, armature=0.0), q[2], v[2]), energy, rtol=ROUNDING)


def test_states_go_to_mujoco_and_back():
    model = ts.load(ROBOTS / "features.xml", repair="quiet")
    peer = mujoco.MjModel.from_xml_path(str(ROBOTS / "features.xml"))
    data = mujoco.MjData(peer)
    rng = np.random.default_rng(0)
    q, v = model.random_configuration(rng), rng.normal(size=model.nv)
    data.qpos, data.qvel = ts.formats.to_mujoco(model, peer, q, v)
    back = ts.formats.from_mujoco(model, peer, data.qpos, data.qvel)
    np.testing.assert_allclose(back[0], q, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(back[1], v, rtol=0, atol=ROUNDING)
    mujoco.mj_forward(peer, data)
    twist = np.zeros(6)
    mujoco.mj_objectVelocity(peer, data, mujoco.mjtObj.mjOBJ_XBODY, peer.body("box").id, twist, 1)
    np.testing.assert_allclose(ts.body_twists(model, q, v)[model.names.index("box")], twist, rtol=0, atol=ROUNDING)


def test_order_by_joint_and_body_names(features):
    q, v = features.order(["floor", "upper", "string"])
    assert q.tolist() == [7, 8, 9, 1, *range(10, 17)]
    assert v.tolist() == [7, 8, 9, 1, *range(10, 16)]
    assert features.order([])[0].size == 0
    with pytest.raises(ArgumentError, match="has no joint named 'x'"):
        features.order(["x"])
    with pytest.raises(ArgumentError, match="list of names of joints, not 'pan'"):
        features.order("pan")


def test_unlike_robots_are_refused(features):
    peer = pin.buildSampleModelManipulator()
    with pytest.raises(ArgumentError, match="Pinocchio's model has no joint 'pan'"):
        ts.formats.from_pinocchio(features, peer, pin.neutral(peer))
    other = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><joint name='a'/><geom size='1'/></body></worldbody></mujoco>"
    )
    with pytest.raises(ArgumentError, match="MuJoCo's model has no joint 'pan'"):
        ts.formats.from_mujoco(features, other, [0.0])


def test_programs_of_frames_are_kept_by_where_the_frame_is():
    """Two machines that differ in a frame of one name share what was made for the rest; a second call gives the bits of
    the first, and explains what is wrong as the first does."""
    arm = zoo.panda()
    near, far = (arm.with_frames({"tip": ("link7", np.eye(3), (0, 0, z))}) for z in (0.1, 0.3))
    q, v = np.full(7, 0.3), np.ones((5, 7))
    first = [(ts.jacobian(model, q, "tip"), ts.jacobian_dot(model, q, v, "tip")) for model in (near, far)]
    assert np.abs(first[0][0] - first[1][0]).max() > 0.1
    for model, (J, rate) in zip((near, far), first):
        assert np.array_equal(ts.jacobian(model, q, "tip"), J)
        assert ts.jacobian(model, q.astype("f4"), "tip").dtype == np.float32
        assert np.array_equal(ts.jacobian_dot(model, q, v, "tip"), rate)
        with pytest.raises(ts.ArgumentError, match=r"q\[2\] is nan"):
            ts.jacobian(model, np.where(np.arange(7) == 2, np.nan, q), "tip")
        with pytest.raises(ts.ArgumentError, match=r"q has shape \(6,\)"):
            ts.jacobian(model, q[:6], "tip")
