"""MuJoCo (PyPI `mujoco`), without contacts, damping, armature or bounds on masses: bare multibody dynamics.

MuJoCo has no helical joint and no massless bodies.  Its free joint lives on the world only; on another body
three slides and a ball make the same joint.  Inertias are given by principal moments found here, because
MuJoCo's own diagonalisation of a full tensor stops at 1e-12.
"""

import numpy as np

from . import Array, Peer, depth_first, pose
from .installed import peer

mj = peer("mujoco")

HINGE, SLIDE, BALL, FREE = (f"mjJNT_{name}" for name in ("HINGE", "SLIDE", "BALL", "FREE"))
X, Y, Z = np.eye(3)


class MujocoPeer(Peer):
    JOINTS = ("revolute", "prismatic", "cylindrical", "universal", "gimbal", "spherical", "planar", "free")

    def __init__(self, model) -> None:
        super().__init__(model)
        spec = mj.MjSpec()
        spec.option.gravity = model.gravity
        spec.option.enableflags |= int(mj.mjtEnableBit.mjENBL_ENERGY)
        bodies = {-1: spec.worldbody}
        for i in depth_first(model.parent):
            bodies[i] = self._add(bodies[int(model.parent[i])], i)
        self.mj_model = spec.compile()
        self.data = mj.MjData(self.mj_model)
        self.mj_body = np.array([self.mj_model.body(f"body {i}").id for i in range(model.n)])
        self.v_address = self.mj_model.body_dofadr[self.mj_body]
        self.q_address = self.mj_model.jnt_qposadr[self.mj_model.body_jntadr[self.mj_body]]
        self.mj_model.dof_armature[:] = self.armature(self.mj_model.nv)

    def _add(self, parent: mj.MjsBody, i: int) -> mj.MjsBody:
        m = self.model
        moments, axes = np.linalg.eigh(m.inertia[i])
        axes[:, 2] *= np.linalg.det(axes)
        body = parent.add_body(
            name=f"body {i}",
            pos=m.p[i],
            quat=quaternion(m.R[i]),
            mass=m.mass[i],
            ipos=m.com[i],
            iquat=quaternion(axes),
            inertia=moments,
            explicitinertial=True,
        )
        for kind, axis in self._joints(i):
            body.add_joint(type=getattr(mj.mjtJoint, kind), axis=axis)
        return body

    def _joints(self, i: int) -> list[tuple[mj.mjtJoint, Array]]:
        axis = self.model.axis[i]
        match self.joint[i]:
            case "revolute":
                return [(HINGE, axis)]
            case "prismatic":
                return [(SLIDE, axis)]
            case "cylindrical":
                return [(HINGE, axis), (SLIDE, axis)]
            case "universal":
                return [(HINGE, X), (HINGE, Y)]
            case "gimbal":
                return [(HINGE, X), (HINGE, Y), (HINGE, Z)]
            case "spherical":
                return [(BALL, Z)]
            case "planar":
                return [(SLIDE, X), (SLIDE, Y), (HINGE, Z)]
            case "free":
                on_world = self.model.parent[i] < 0
                return [(FREE, Z)] if on_world else [(SLIDE, X), (SLIDE, Y), (SLIDE, Z), (BALL, Z)]
            case other:
                raise NotImplementedError(f"MuJoCo has no {other} joint (body {i})")

    def _placement(self, i: int) -> tuple[Array, Array]:
        """MuJoCo's free joint moves in world axes, past the body's placement; slides move in the joint's."""
        on_world = self.model.parent[i] < 0
        return (self.model.R[i], self.model.p[i]) if on_world else (np.eye(3), np.zeros(3))

    def _coordinates(self, i: int, q_i: Array) -> Array:
        if self.joint[i] != "free":
            return q_i
        R, p = self._placement(i)
        return np.concatenate([R @ q_i[:3] + p, quaternion(R @ rotation(q_i[3:7]))])

    def _rates(self, i: int, q_i: Array) -> Array:
        """A free joint's velocity: linear first and in fixed axes, R v; omega in body axes."""
        T = super()._rates(i, q_i)
        if self.joint[i] == "free":
            T = np.roll(T, 3, axis=0)
            T[:3, 3:] = self._placement(i)[0] @ rotation(q_i[3:7])
        return T

    def _rates_dot(self, i: int, q_i: Array, v_i: Array) -> Array:
        T_dot = super()._rates_dot(i, q_i, v_i)
        if self.joint[i] == "free":
            T_dot[:3, 3:] = self._placement(i)[0] @ rotation(q_i[3:7]) @ hat(v_i[:3])
        return T_dot

    def _set(self, x: Array, w: Array | None = None) -> mj.MjData:
        self.data.qpos = x
        self.data.qvel = 0.0 if w is None else w
        self.data.qfrc_applied = 0.0
        mj.mj_forward(self.mj_model, self.data)
        return self.data

    def _inverse_dynamics(self, x, w, w_dot, external):
        data = self._set(x, w)
        data.qacc = w_dot
        force = np.empty(self.model.nv)
        mj.mj_rne(self.mj_model, data, 1, force)
        return force - self._generalised(external)

    def _forward_dynamics(self, x, w, force, external):
        data = self._set(x, w)
        data.qfrc_applied = force + self._generalised(external)
        mj.mj_forward(self.mj_model, data)
        return data.qacc.copy()

    def _generalised(self, external: Array | None) -> Array:
        """The joint forces of wrenches (moment, force) in body axes at the body's origin."""
        total = np.zeros(self.model.nv)
        for i, wrench in enumerate(() if external is None else external):
            moment, force = wrench.reshape(2, 3) @ self._R(i).T
            mj.mj_applyFT(self.mj_model, self.data, force, moment, self._p(i), int(self.mj_body[i]), total)
        return total

    def _R(self, i: int) -> Array:
        return self.data.xmat[self.mj_body[i]].reshape(3, 3)

    def _p(self, i: int) -> Array:
        return self.data.xpos[self.mj_body[i]]

    def _mass_matrix(self, x):
        data, M = self._set(x), np.empty((self.model.nv, self.model.nv))
        for row, unit in zip(M, np.eye(self.model.nv)):
            mj.mj_mulM(self.mj_model, data, row, unit)
        return M

    def _inverse_mass_matrix(self, x):
        M_inverse = np.empty((self.model.nv, self.model.nv))
        mj.mj_solveM(self.mj_model, self._set(x), M_inverse, np.eye(self.model.nv))
        return M_inverse

    def _jacobian(self, x, body):
        self._set(x)
        return self._in_body(self._world_jacobian(mj.mj_jac, body), body)

    def _jacobian_dot(self, x, w, body):
        """d(R'J)/dt = R' (dJ/dt - [omega] J), R and J in world axes."""
        self._set(x, w)
        J, J_dot = self._world_jacobian(mj.mj_jac, body), self._world_jacobian(mj.mj_jacDot, body)
        turning = np.kron(np.eye(2), hat(J[:3] @ w))
        return self._in_body(J_dot - turning @ J, body)

    def _world_jacobian(self, function, body: int) -> Array:
        linear, angular = np.empty((2, 3, self.model.nv))
        function(self.mj_model, self.data, linear, angular, self._p(body), int(self.mj_body[body]))
        return np.vstack([angular, linear])

    def _in_body(self, J: Array, body: int) -> Array:
        return np.kron(np.eye(2), self._R(body).T) @ J

    def _body_poses(self, x):
        self._set(x)
        return np.array([pose(self._R(i), self._p(i)) for i in range(self.model.n)])

    def _energies(self, x, w):
        potential, kinetic = self._set(x, w).energy
        return float(kinetic), float(potential)

    def _center_of_mass(self, x):
        return self._set(x).subtree_com[0].copy()

    def _momentum_about_center(self, x, w):
        data = self._set(x, w)
        mj.mj_subtreeVel(self.mj_model, data)
        return data.subtree_angmom[0].copy(), data.subtree_linvel[0] * np.sum(self.model.mass)


def quaternion(R: Array) -> Array:
    """(w, x, y, z)."""
    quat = np.empty(4)
    mj.mju_mat2Quat(quat, np.ravel(R))
    return quat


def rotation(quat: Array) -> Array:
    R = np.empty(9)
    mj.mju_quat2Mat(R, quat)
    return R.reshape(3, 3)


def hat(u: Array) -> Array:
    return np.cross(np.eye(3), u)
