"""The public functions on arrays.

functions    forward and inverse dynamics, mass matrices, kinematics, energies; `compile`
derivatives  `vjp` and `jvp` of those functions
jacobians    derivatives as matrices, and the torque regressor;  linear: linear systems near a state
identification   inertial parameters, which of them can be known, and which a motion reveals
calls        how they run: checks, programs, explanations;  methods: which algorithm does the work
accuracy     comparisons with the articulated sweeps
factor       M = W W^T and random velocities;  task_space: the dynamics as a frame feels them
"""

from torsor.dynamics.derivatives import jvp, vjp
from torsor.dynamics.functions import (
    ALGORITHMS,
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

__all__ = [
    "ALGORITHMS", "bias_forces", "body_poses", "body_twists", "center_of_mass", "compile", "constraint_forces",
    "coriolis_matrix", "fixman_force", "forward_dynamics", "forward_dynamics_derivatives", "gravity_forces",
    "inverse_dynamics", "inverse_dynamics_derivatives", "inverse_mass_matrix", "jacobian", "jacobian_dot", "jvp",
    "kinetic_energy", "log_det_gradient", "log_det_mass_matrix", "mass_matrix", "mass_solve", "momentum",
    "potential_energy", "torque_regressor", "vjp",
]  # fmt: skip
