"""An independent oracle: kinematics and mass matrix from explicit link Jacobians, in plain NumPy and SciPy.

It reads the attributes of a Model and shares no code with torsor's algorithms, joints or Lie algebra.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

EYE, NONE = np.eye(3), np.zeros((3, 3))


def turn(vector):
    return Rotation.from_rotvec(vector).as_matrix()


def joint_motion(name, q, axis, pitch):
    """(R, p) of the joint at q, and the columns (omega, v) of the body's velocity in its own frame."""
    if name in ("revolute", "prismatic", "helical"):
        turns, slides = {"revolute": (1, 0), "prismatic": (0, 1), "helical": (1, pitch)}[name]
        return turn(turns * q[0] * axis), slides * q[0] * axis, turns * axis[:, None], slides * axis[:, None]
    if name == "cylindrical":
        one, none = axis[:, None], np.zeros((3, 1))
        return turn(q[0] * axis), q[1] * axis, np.hstack([one, none]), np.hstack([none, one])
    if name == "gimbal":
        second, third = turn(q[1] * EYE[1]), turn(q[2] * EYE[2])
        omega = np.stack([(second @ third).T @ EYE[0], third.T @ EYE[1], EYE[2]], axis=1)
        return turn(q[0] * EYE[0]) @ second @ third, np.zeros(3), omega, NONE
    if name == "universal":
        second = turn(q[1] * EYE[1])
        omega = np.stack([second.T @ EYE[0], EYE[1]], axis=1)
        return turn(q[0] * EYE[0]) @ second, np.zeros(3), omega, np.zeros((3, 2))
    if name == "spherical":
        return Rotation.from_quat(np.roll(q, -1)).as_matrix(), np.zeros(3), EYE, NONE
    if name == "planar":
        R = turn(q[2] * EYE[2])
        omega = np.stack([np.zeros(3), np.zeros(3), EYE[2]], axis=1)
        return R, np.array([q[0], q[1], 0.0]), omega, np.stack([R[0], R[1], np.zeros(3)], axis=1)
    assert name == "free"
    R = Rotation.from_quat(np.roll(q[3:], -1)).as_matrix()
    return R, q[:3], np.hstack([EYE, NONE]), np.hstack([NONE, EYE])


def kinematics(model, q):
    """For each body its rotation and position in the world, and its Jacobians (3, nv) of angular velocity and
    of the velocity of its mass centre, in world axes."""
    from torsor.model import JOINTS

    bodies = []
    for i in range(model.n):
        q_i = q[model.q_start[i] : model.q_start[i + 1]]
        dofs = slice(model.v_start[i], model.v_start[i + 1])
        R_joint, p_joint, omega, v = joint_motion(JOINTS[model.joint[i]].name, q_i, model.axis[i], model.pitch[i])
        if model.parent[i] < 0:
            R0, p0, W, V = EYE, np.zeros(3), np.zeros((3, model.nv)), np.zeros((3, model.nv))
        else:
            R0, p0, W, V = bodies[model.parent[i]]
        p = p0 + R0 @ (model.p[i] + model.R[i] @ p_joint)
        R = R0 @ model.R[i] @ R_joint
        V = V + np.cross(W, p - p0, axis=0)  # of the new origin, carried by the parent
        W = W.copy()
        W[:, dofs] += R @ omega
        V[:, dofs] += R @ v
        bodies.append((R, p, W, V))
    at_com = [R @ c for (R, *_), c in zip(bodies, model.com)]
    return [(R, p, W, V + np.cross(W, c, axis=0)) for (R, p, W, V), c in zip(bodies, at_com)]


def mass_matrix(model, q):
    """M = sum m V'V + W' (R I R') W over the bodies."""
    M = np.zeros((model.nv, model.nv))
    for (R, _, W, V), m, I in zip(kinematics(model, q), model.mass, model.inertia):
        M += m * V.T @ V + W.T @ R @ I @ R.T @ W
    return M


def frame_pose(model, q, name):
    """(R, p) of a named frame in the world."""
    body, R_frame, p_frame = model.frame(name)
    R, p = kinematics(model, q)[body][:2] if body >= 0 else (EYE, np.zeros(3))
    return R @ R_frame, p + R @ p_frame
