"""torsor: the dynamics of articulated chains, from a six-joint arm to a rope of a million links."""

from typing import TYPE_CHECKING, Any

import torsor.backends.cache  # first, as it reads the sources  # noqa: F401
from torsor import lie, zoo
from torsor.dynamics import (
    bias_forces,
    body_poses,
    body_twists,
    center_of_mass,
    compile,
    constraint_forces,
    coriolis_matrix,
    fixman_force,
    forward_dynamics,
    forward_dynamics_derivatives,
    gravity_forces,
    inverse_dynamics,
    inverse_dynamics_derivatives,
    inverse_mass_matrix,
    jacobian,
    jacobian_dot,
    kinetic_energy,
    log_det_gradient,
    log_det_mass_matrix,
    mass_matrix,
    mass_solve,
    momentum,
    potential_energy,
    torque_regressor,
)
from torsor.dynamics.couplings import coupled, coupling_matrix
from torsor.dynamics.derivatives import jvp, vjp
from torsor.dynamics.factor import mass_factor, sample_velocities
from torsor.dynamics.frames import frame_poses
from torsor.dynamics.methods import method_for
from torsor.dynamics.task_space import operational_space
from torsor.errors import ArgumentError, DeviceError, ModelError, ModelWarning, SingularError, TorsorError
from torsor.formats import load, save
from torsor.model import Model, ModelBatch
from torsor.motion import Simulation, Trajectory, simulate

if TYPE_CHECKING:
    from torsor.dynamics.actuators import actuator_forces
    from torsor.dynamics.exports import export
    from torsor.dynamics.identification import (
        base_parameters,
        identify,
        inertial_parameters,
        with_inertial_parameters,
    )
    from torsor.dynamics.inverse_kinematics import inverse_kinematics
    from torsor.dynamics.linear import linearize
    from torsor.ensembles import LogNormal, Normal, StoreError, Study, Uniform, ensemble
    from torsor.formats.states import from_mujoco, from_pinocchio, to_mujoco, to_pinocchio
    from torsor.motion.feedback import JointFeedback, LinearFeedback, Policy
    from torsor.motion.rollout import Rollout, StoppedRollout, rollout
    from torsor.motion.rollout_gradients import RolloutGradient, rollout_vjp
    from torsor.motion.sensitivities import Sensitivities, sensitivities
    from torsor.motion.stops import Stop
    from torsor.theory import symbolic

__version__ = "0.1.0"

__all__ = [
    "ArgumentError", "DeviceError", "JointFeedback", "LinearFeedback", "LogNormal", "Model", "ModelBatch",
    "ModelError", "ModelWarning", "Normal", "Policy", "Rollout", "RolloutGradient", "Sensitivities", "Simulation",
    "SingularError", "Stop", "StoppedRollout", "StoreError", "Study", "TorsorError", "Trajectory", "Uniform",
    "actuator_forces", "base_parameters", "bias_forces", "body_poses", "body_twists", "center_of_mass", "compile",
    "constraint_forces", "coriolis_matrix", "coupled", "coupling_matrix", "ensemble", "export", "fixman_force",
    "forward_dynamics", "forward_dynamics_derivatives", "frame_poses", "from_mujoco", "from_pinocchio",
    "gravity_forces", "identify", "inertial_parameters", "inverse_dynamics", "inverse_dynamics_derivatives",
    "inverse_kinematics", "inverse_mass_matrix", "jacobian", "jacobian_dot", "jvp", "kinetic_energy", "lie",
    "linearize", "load", "log_det_gradient", "log_det_mass_matrix", "mass_factor", "mass_matrix", "mass_solve",
    "method_for", "momentum", "operational_space", "potential_energy", "rollout", "rollout_vjp",
    "sample_velocities", "save", "sensitivities", "simulate", "symbolic", "to_mujoco", "to_pinocchio",
    "torque_regressor", "vjp", "with_inertial_parameters", "zoo",
]  # fmt: skip


# What few programs need, and where it is.
LATER = {
    "actuator_forces": "dynamics.actuators",
    "export": "dynamics.exports", "inverse_kinematics": "dynamics.inverse_kinematics", "linearize": "dynamics.linear",
    **dict.fromkeys(
        ("base_parameters", "identify", "inertial_parameters", "with_inertial_parameters"), "dynamics.identification"
    ),
    **dict.fromkeys(("LogNormal", "Normal", "StoreError", "Study", "Uniform", "ensemble"), "ensembles"),
    **dict.fromkeys(("JointFeedback", "LinearFeedback", "Policy"), "motion.feedback"),
    **dict.fromkeys(("Rollout", "StoppedRollout", "rollout"), "motion.rollout"), "Stop": "motion.stops",
    **dict.fromkeys(("RolloutGradient", "rollout_vjp"), "motion.rollout_gradients"),
    **dict.fromkeys(("Sensitivities", "sensitivities"), "motion.sensitivities"),
    **dict.fromkeys(("from_mujoco", "from_pinocchio", "to_mujoco", "to_pinocchio"), "formats.states"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """What is imported when it is first asked for."""
    import importlib

    if name == "symbolic":
        return importlib.import_module("torsor.theory.symbolic")
    if name in LATER:
        return getattr(importlib.import_module(f"torsor.{LATER[name]}"), name)
    raise AttributeError(f"module 'torsor' has no attribute {name!r}")
