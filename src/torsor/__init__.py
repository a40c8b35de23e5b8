"""torsor: the dynamics of articulated chains, from a six-joint arm to a rope of a million links."""

from torsor import lie, symbolic
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
    gravity_forces,
    inverse_dynamics,
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
)
from torsor.errors import ArgumentError, DeviceError, ModelError, SingularError, TorsorError
from torsor.factor import mass_factor, sample_velocities
from torsor.formats import load
from torsor.methods import method_for
from torsor.model import Model, zoo
from torsor.rollout import LinearFeedback, Rollout, rollout
from torsor.task_space import operational_space

__version__ = "0.1.0"

__all__ = [
    "ArgumentError", "DeviceError", "LinearFeedback", "Model", "ModelError", "Rollout", "SingularError",
    "TorsorError", "bias_forces", "body_poses", "body_twists", "center_of_mass", "compile", "constraint_forces",
    "coriolis_matrix", "fixman_force", "forward_dynamics", "gravity_forces", "inverse_dynamics",
    "inverse_mass_matrix", "jacobian", "jacobian_dot", "kinetic_energy", "lie", "load", "log_det_gradient",
    "log_det_mass_matrix", "mass_factor", "mass_matrix", "mass_solve", "method_for", "momentum",
    "operational_space", "potential_energy", "rollout", "sample_velocities", "symbolic", "zoo",
]  # fmt: skip
