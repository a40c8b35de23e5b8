"""An independent oracle: kinematics and mass matrix from explicit link Jacobians, in plain NumPy and SciPy.

It reads the attributes of a Model and shares no code with torsor's algorithms, joints or Lie algebra.
"""

from __future__ import annotations

import mpmath
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


# Motions in space, differentiated by time ----------------------------------------------------------------------

DIGITS = 150  # of differences of poses by time; what they find has 45
STEP = mpmath.mpf(10) ** -45


def poses_along(chain, q, v, qdd, V, dV, t):
    """Of every body of a chain of revolute and prismatic joints at a time: rotation, mass centre and origin.

    The base moves with the twist V and its derivative dV at t = 0, in its own axes; its turn exp [w t + dw t^2 / 2] is
    cut off where the second derivative at 0 does not see it.
    """
    w, x, dw, dx = (mpmath.matrix(a.tolist()) for a in (V[:3], V[3:], dV[:3], dV[3:]))
    half = t * t / 2
    turned = hat(w * t + dw * half)
    R, p = mpmath.eye(3) + turned + turned**2 / 2, x * t + (dx + hat(w) * x) * half
    found = []
    for i in range(chain.n):
        p, R = p + R * mpmath.matrix(chain.p[i].tolist()), R * mpmath.matrix(chain.R[i].tolist())
        angle, axis = q[i] + v[i] * t + qdd[i] * half, mpmath.matrix(chain.axis[i].tolist())
        if chain.joint[i] == 0:
            K = hat(axis)
            R = R * (mpmath.eye(3) + K * mpmath.sin(angle) + K**2 * (1 - mpmath.cos(angle)))
        else:
            p = p + R * axis * angle
        found.append((R, p + R * mpmath.matrix(chain.com[i].tolist()), p))
    return found


def exact(x):
    return np.array([mpmath.mpf(y) for y in x])


def hat(w):
    return mpmath.matrix([[0, -w[2], w[1]], [w[2], 0, -w[0]], [-w[1], w[0], 0]])


def wrenches_along(chain, *motion):
    """(n, 6): the wrench through every joint, in its body's frame: what accelerates all bodies beyond it.

    Accelerations are differences of the poses in space by time: `motion` is q, v, qdd, V, dV of `poses_along`.
    """
    behind, here, ahead = (poses_along(chain, *motion, t) for t in (-STEP, mpmath.mpf(0), STEP))
    acting = []
    for i, ((R0, c0, _), (R, c, _), (R1, c1, _)) in enumerate(zip(behind, here, ahead)):
        rate, bent = (R1 - R0) / (2 * STEP), (R1 - 2 * R + R0) / STEP**2
        W, dW = rate * R.T, bent * R.T + rate * rate.T  # [w], and [dw]
        w, dw = (mpmath.matrix([x[2, 1], x[0, 2], x[1, 0]]) for x in (W, dW))
        I = R * mpmath.matrix(chain.inertia[i].tolist()) * R.T
        force = float(chain.mass[i]) * ((c1 - 2 * c + c0) / STEP**2 - mpmath.matrix(chain.gravity.tolist()))
        acting.append((c, force, I * dw + W * (I * w)))
    result = []
    for i, (R, _, p) in enumerate(here):
        force = sum((f for _, f, _ in acting[i:]), mpmath.zeros(3, 1))
        moment = sum((m + hat(c - p) * f for c, f, m in acting[i:]), mpmath.zeros(3, 1))
        result.append([*(R.T * moment), *(R.T * force)])
    return np.array(result)
