"""Drake's conventions as docs/robots.md states them, by running Drake: `pytest -m drake` (extra `bench`)."""

import numpy as np
import pytest

import torsor as ts
from torsor.lie import quaternion_to_matrix

pytestmark = pytest.mark.drake

ROUNDING = 1e-12
INERTIAL = """<inertial><origin xyz="0.1 -0.2 {k}"/><mass value="{k}.5"/>
  <inertia ixx="1" iyy="1.2" izz="0.9" ixy="0.1" ixz="0" iyz="-0.05"/></inertial>"""
LIMIT = '<limit lower="-3" upper="3" effort="1" velocity="1"/>'
# joints neither depth first nor sorted by name
JOINTS = [
    ("jz", "continuous", "root", "c", '<axis xyz="0 0 1"/>'),
    ("ja", "revolute", "root", "a", f'<axis xyz="0 1 0"/>{LIMIT}'),
    ("jm", "prismatic", "c", "d", f'<axis xyz="0 1 0"/>{LIMIT}'),
    ("jb", "revolute", "a", "b", f'<axis xyz="1 2 2"/>{LIMIT}'),
    ("jp", "planar", "d", "p", '<axis xyz="0 0 1"/>'),
]


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    """(the model, Drake's plant, its context)"""
    from pydrake.multibody.parsing import Parser
    from pydrake.multibody.plant import MultibodyPlant

    links = "".join(f'<link name="{name}">{INERTIAL.format(k=k)}</link>' for k, name in enumerate("cadbp", 1))
    joints = "".join(
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="0.3 0 0.2" rpy="0.1 0.2 0.3"/>{more}</joint>'
        for name, kind, parent, child, more in JOINTS
    )
    path = tmp_path_factory.mktemp("drake") / "order.urdf"
    path.write_text(f'<robot name="order"><link name="root">{INERTIAL.format(k=2)}</link>{links}{joints}</robot>')
    plant = MultibodyPlant(0.0)
    Parser(plant).AddModels(str(path))
    plant.Finalize()
    return ts.load(path, base="free"), plant, plant.CreateDefaultContext()


def test_order_of_joints(robot):
    """Depth first, siblings as in the file; torsor keeps the order of the file.  A root on nothing floats."""
    model, plant, _ = robot
    starts = {plant.get_joint(i).name(): plant.get_joint(i).position_start() for i in plant.GetJointIndices()}
    assert sorted(starts, key=starts.get) == ["root", "jz", "jm", "jp", "ja", "jb"]
    assert list(model.joint_names) == ["root_joint", "jz", "ja", "jm", "jb", "jp"]
    assert all(plant.GetJointByName(name).num_positions() == 1 for name in ("jz", "ja"))  # continuous: one angle


def states(robot, rng):
    """(q, v, T): a state of the model, which is then Drake's too, and T with v_drake = T v."""
    model, plant, context = robot
    q, v = model.random_configuration(rng), rng.normal(size=model.nv)
    theirs, T = np.zeros(model.nq), np.zeros((model.nv, model.nv))
    R = quaternion_to_matrix(q[3:7])
    theirs[:7] = *q[3:7], *q[:3]  # quaternion (w, x, y, z) first, then the position
    T[:3, :3] = T[3:6, 3:6] = R  # (omega, v), both in the world's axes
    for name, kind, *_ in JOINTS:
        joint, (iq, iv) = plant.GetJointByName(name), model.order([name])
        width = 3 if kind == "planar" else 1  # (x, y, theta) and its rate
        theirs[joint.position_start() : joint.position_start() + width] = q[iq]
        T[joint.velocity_start() : joint.velocity_start() + width, iv] = np.eye(width)
    plant.SetPositions(context, theirs)
    plant.SetVelocities(context, T @ v)
    return q, v, T


def test_states_poses_and_dynamics(robot):
    model, plant, context = robot
    for seed in range(3):
        q, v, T = states(robot, np.random.default_rng(seed))
        poses, twists = ts.body_poses(model, q), ts.body_twists(model, q, v)
        for i, name in enumerate(model.names):
            body = plant.GetBodyByName(name)
            pose = body.EvalPoseInWorld(context).GetAsMatrix4()
            np.testing.assert_allclose(poses[i], pose, rtol=0, atol=ROUNDING)
            moving = body.EvalSpatialVelocityInWorld(context).get_coeffs()  # the angular part first
            np.testing.assert_allclose(
                np.ravel(pose[:3, :3] @ twists[i].reshape(2, 3).T, "F"), moving, rtol=0, atol=1e-11
            )
        M = T.T @ plant.CalcMassMatrix(context) @ T
        np.testing.assert_allclose(ts.mass_matrix(model, q), M, rtol=0, atol=ROUNDING * np.abs(M).max())
        drift = np.zeros(model.nv)
        R = quaternion_to_matrix(q[3:7])
        drift[3:6] = R @ np.cross(v[:3], v[3:6])  # d/dt of the velocity in the world's axes
        gravity = plant.CalcGravityGeneralizedForces(context)
        bias = T.T @ (plant.CalcBiasTerm(context) - gravity + plant.CalcMassMatrix(context) @ drift)
        np.testing.assert_allclose(ts.bias_forces(model, q, v), bias, rtol=0, atol=1e-11 * np.abs(bias).max())
