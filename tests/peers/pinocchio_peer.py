"""Pinocchio (PyPI `pin`).

Universal and planar joints become single-axis joints with massless bodies between them: exact, and v = dq/dt
as in torsor.  Pinocchio's own universal joint is not used because, in 4.1, `computeCoriolisMatrix` and
`computeJointJacobiansTimeVariation` leave out the derivative of its moving axis, so that C v is not the bias;
its own planar joint has body velocities.
"""

import numpy as np

from . import Array, Peer, depth_first
from .installed import peer

pin = peer("pinocchio")

X, Y, Z = np.eye(3)


class PinocchioPeer(Peer):
    JOINTS = ("revolute", "prismatic", "helical", "cylindrical", "universal", "gimbal", "spherical", "planar", "free")

    def __init__(self, model) -> None:
        super().__init__(model)
        self.pin_model = pin.Model()
        self.pin_model.gravity.linear = np.array(model.gravity)
        self.pin_joint = np.zeros(model.n, dtype=int)  # the joint that carries body i
        for i in depth_first(model.parent):
            self._add(i)
        self.pin_model.armature = self.armature(self.pin_model.nv)
        self.data = self.pin_model.createData()

    def _add(self, i: int) -> None:
        m = self.model
        at = 0 if m.parent[i] < 0 else int(self.pin_joint[m.parent[i]])
        placement = pin.SE3(np.array(m.R[i]), np.array(m.p[i]))
        self.q_address[i], self.v_address[i] = self.pin_model.nq, self.pin_model.nv
        for k, joint in enumerate(self._joints(i)):
            at = self.pin_model.addJoint(at, joint, placement, f"{i}.{k}")
            placement = pin.SE3.Identity()
        inertia = pin.Inertia(float(m.mass[i]), np.array(m.com[i]), np.array(m.inertia[i]))
        self.pin_model.appendBodyToJoint(at, inertia, pin.SE3.Identity())
        self.pin_joint[i] = at

    def _joints(self, i: int) -> list:
        axis, pitch = np.array(self.model.axis[i]), float(self.model.pitch[i])
        match self.joint[i]:
            case "revolute":
                return [turn(axis)]
            case "prismatic":
                return [slide(axis)]
            case "helical":
                return [pin.JointModelHelicalUnaligned(axis, pitch)]
            case "cylindrical":
                return [turn(axis), slide(axis)]
            case "universal":
                return [turn(X), turn(Y)]
            case "gimbal":
                return [turn(X), turn(Y), turn(Z)]
            case "spherical":
                return [pin.JointModelSpherical()]
            case "planar":
                return [slide(X), slide(Y), turn(Z)]
            case "free":
                return [pin.JointModelFreeFlyer()]
            case other:
                raise NotImplementedError(f"joint type {other} of body {i}")

    def _coordinates(self, i: int, q_i: Array) -> Array:
        if self.joint[i] in ("spherical", "free"):  # Pinocchio's quaternions end with w
            return np.concatenate([q_i[:-4], np.roll(q_i[-4:], -1)])
        return q_i

    def _rates(self, i: int, q_i: Array) -> Array:
        T = super()._rates(i, q_i)
        return np.roll(T, 3, axis=0) if self.joint[i] == "free" else T  # linear first

    def _inverse_dynamics(self, x, w, w_dot, external):
        return pin.rnea(self.pin_model, self.data, x, w, w_dot, self._forces(external)).copy()

    def _forward_dynamics(self, x, w, force, external):
        return pin.aba(self.pin_model, self.data, x, w, force, self._forces(external)).copy()

    def _forces(self, external: Array | None):
        forces = [pin.Force.Zero() for _ in range(self.pin_model.njoints)]
        if external is not None:
            for i, wrench in enumerate(external):
                forces[self.pin_joint[i]] = pin.Force(wrench[3:], wrench[:3])
        vector = pin.StdVec_Force()
        vector.extend(forces)
        return vector

    def _mass_matrix(self, x):
        return mirrored(pin.crba(self.pin_model, self.data, x))

    def _inverse_mass_matrix(self, x):
        return mirrored(pin.computeMinverse(self.pin_model, self.data, x))

    def _jacobian(self, x, body):
        data, joint = self.pin_model.createData(), int(self.pin_joint[body])
        J = pin.computeJointJacobian(self.pin_model, data, x, joint)
        return np.roll(J, 3, axis=0)

    def _jacobian_dot(self, x, w, body):
        data = self.pin_model.createData()
        pin.computeJointJacobiansTimeVariation(self.pin_model, data, x, w)
        J_dot = pin.getJointJacobianTimeVariation(self.pin_model, data, int(self.pin_joint[body]), pin.LOCAL)
        return np.roll(J_dot, 3, axis=0)

    def _body_poses(self, x):
        pin.forwardKinematics(self.pin_model, self.data, x)
        return np.array([self.data.oMi[int(j)].homogeneous for j in self.pin_joint])

    def _energies(self, x, w):
        kinetic = pin.computeKineticEnergy(self.pin_model, self.data, x, w)
        return kinetic, pin.computePotentialEnergy(self.pin_model, self.data, x)

    def _center_of_mass(self, x):
        return pin.centerOfMass(self.pin_model, self.data, x).copy()

    def _momentum_about_center(self, x, w):
        h = pin.computeCentroidalMomentum(self.pin_model, self.data, x, w)
        return h.angular.copy(), h.linear.copy()

    def coriolis_matrix(self, q: Array, v: Array) -> Array:
        """T' (C T + M dT/dt); here dT/dt = 0."""
        x, T = self.configuration(q), self.velocity_map(q)
        return T.T @ pin.computeCoriolisMatrix(self.pin_model, self.data, x, T @ v) @ T

    # Derivatives; T is constant here.  Columns by x belong to Pinocchio's own retraction, that of torsor.

    def inverse_dynamics_derivatives(self, q, v, qdd, external=None):
        x, T = self.configuration(q), self.velocity_map(q)
        forces = self._forces(external)
        dq, dv, M = pin.computeRNEADerivatives(self.pin_model, self.data, x, T @ v, T @ qdd, forces)
        return [T.T @ A @ T for A in (dq, dv, mirrored(M))]

    def forward_dynamics_derivatives(self, q, v, tau, external=None):
        x, T = self.configuration(q), self.velocity_map(q)
        forces = self._forces(external)
        dq, dv, inverse = pin.computeABADerivatives(self.pin_model, self.data, x, T @ v, T @ tau, forces)
        return [T.T @ A @ T for A in (dq, dv, mirrored(inverse))]

    def torque_regressor(self, q, v, qdd):
        """Pinocchio's order of J is xx, xy, yy, xz, yz, zz."""
        x, T = self.configuration(q), self.velocity_map(q)
        Y = T.T @ pin.computeJointTorqueRegressor(self.pin_model, self.data, x, T @ v, T @ qdd)
        bodies = [Y[:, 10 * (j - 1) : 10 * j][:, [0, 1, 2, 3, 4, 5, 7, 6, 8, 9]] for j in self.pin_joint]
        return np.concatenate(bodies, axis=1)


def turn(axis: Array):
    return aligned("JointModelR", axis) or pin.JointModelRevoluteUnaligned(axis)


def slide(axis: Array):
    return aligned("JointModelP", axis) or pin.JointModelPrismaticUnaligned(axis)


def aligned(joints: str, axis: Array):
    """The joint along x, y or z where the unit vector `axis` is one of them: Pinocchio's faster code."""
    return getattr(pin, joints + "XYZ"[int(np.argmax(axis))])() if np.max(axis) == 1.0 else None


def mirrored(A: Array) -> Array:
    """Pinocchio fills the upper triangle of its symmetric matrices."""
    return np.triu(A) + np.triu(A, 1).T
