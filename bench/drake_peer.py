"""Drake (PyPI `drake`), built from the same numbers as a model.  It takes one state per call."""

from __future__ import annotations

import numpy as np
from peers import Translation, depth_first
from peers.mujoco_peer import hat, rotation
from pydrake.math import RigidTransform, RotationMatrix
from pydrake.multibody.plant import MultibodyPlant
from pydrake.multibody.tree import (
    FixedOffsetFrame,
    Frame,
    Joint,
    MultibodyForces,
    PrismaticJoint,
    QuaternionFloatingJoint,
    RevoluteJoint,
    RotationalInertia,
    SpatialInertia,
)

import torsor as ts


class DrakePeer(Translation):
    """The plant is a continuous one, without geometry: bare multibody dynamics."""

    JOINTS = ("revolute", "prismatic", "free")

    def __init__(self, model: ts.Model) -> None:
        super().__init__(model)
        self.plant = plant = MultibodyPlant(time_step=0.0)
        plant.mutable_gravity_field().set_gravity_vector(model.gravity)
        frames = {-1: plant.world_frame()}
        joints = {}
        for i in depth_first(model.parent):
            frames[i] = plant.AddRigidBody(f"body {i}", self._inertia(i)).body_frame()
            joints[i] = plant.AddJoint(self._joint(i, self._placed(i, frames[int(model.parent[i])]), frames[i]))
        plant.Finalize()
        for i, joint in joints.items():
            self.q_address[i], self.v_address[i] = joint.position_start(), joint.velocity_start()
        self.context = plant.CreateDefaultContext()
        self.forces = MultibodyForces(plant)
        self.applied = plant.get_applied_generalized_force_input_port().FixValue(self.context, np.zeros(model.nv))

    def _inertia(self, i: int) -> SpatialInertia:
        m = self.model
        moments = (*np.diag(m.inertia[i]), *m.inertia[i][np.triu_indices(3, 1)])
        return SpatialInertia.MakeFromCentralInertia(m.mass[i], m.com[i], RotationalInertia(*moments))

    def _placed(self, i: int, parent: Frame) -> Frame:
        """The joint's frame on the parent."""
        placement = RigidTransform(RotationMatrix(self.model.R[i]), self.model.p[i])
        return self.plant.AddFrame(FixedOffsetFrame(f"joint {i}", parent, placement))

    def _joint(self, i: int, parent: Frame, child: Frame) -> Joint:
        match self.joint[i]:
            case "revolute":
                return RevoluteJoint(f"joint {i}", parent, child, self.model.axis[i])
            case "prismatic":
                return PrismaticJoint(f"joint {i}", parent, child, self.model.axis[i])
            case "free":
                return QuaternionFloatingJoint(f"joint {i}", parent, child)
            case other:
                raise NotImplementedError(f"joint type {other} of body {i}")

    # -- coordinates: of a free joint the quaternion first, and velocities in the axes of the joint's frame

    def _coordinates(self, i: int, q_i: np.ndarray) -> np.ndarray:
        return np.roll(q_i, 4) if self.joint[i] == "free" else q_i

    def _rates(self, i: int, q_i: np.ndarray) -> np.ndarray:
        return np.kron(np.eye(2), rotation(q_i[3:])) if self.joint[i] == "free" else super()._rates(i, q_i)

    def _rates_dot(self, i: int, q_i: np.ndarray, v_i: np.ndarray) -> np.ndarray:
        if self.joint[i] != "free":
            return super()._rates_dot(i, q_i, v_i)
        return np.kron(np.eye(2), rotation(q_i[3:]) @ hat(v_i[:3]))

    # -- one state; x is its configuration, (x, w) one vector with its velocity

    def forward_dynamics(self, xw: np.ndarray, force: np.ndarray) -> np.ndarray:
        self.plant.SetPositionsAndVelocities(self.context, xw)
        self.applied.GetMutableData().set_value(force)
        return self.plant.EvalTimeDerivatives(self.context).CopyToVector()[len(xw) - len(force) :]

    def inverse_dynamics(self, xw: np.ndarray, w_dot: np.ndarray) -> np.ndarray:
        self.plant.SetPositionsAndVelocities(self.context, xw)
        self.plant.CalcForceElementsContribution(self.context, self.forces)  # gravity
        return self.plant.CalcInverseDynamics(self.context, w_dot, self.forces)

    def mass_matrix(self, x: np.ndarray) -> np.ndarray:
        self.plant.SetPositions(self.context, x)
        return self.plant.CalcMassMatrix(self.context)
