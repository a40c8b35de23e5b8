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
from torsor.dynamics.factor import mass_factor, sample_velocities
from torsor.dynamics.methods import method_for
from torsor.dynamics.task_space import operational_space
from torsor.errors import ArgumentError, DeviceError, ModelError, SingularError, TorsorError
from torsor.formats import load
from torsor.model import Model
from torsor.simulate import Simulation, Trajectory, simulate

if TYPE_CHECKING:
    from torsor.dynamics.exports import export
    from torsor.simulate.rollout import JointFeedback, LinearFeedback, Rollout, rollout
    from torsor.theory import symbolic

__version__ = "0.1.0"

__all__ = [
    "ArgumentError", "DeviceError", "JointFeedback", "LinearFeedback", "Model", "ModelError", "Rollout", "Simulation",
    "SingularError", "TorsorError", "Trajectory", "bias_forces", "body_poses", "body_twists", "center_of_mass",
    "compile", "constraint_forces", "coriolis_matrix", "export", "fixman_force", "forward_dynamics", "gravity_forces",
    "inverse_dynamics", "inverse_mass_matrix", "jacobian", "jacobian_dot", "kinetic_energy", "lie", "load",
    "log_det_gradient", "log_det_mass_matrix", "mass_factor", "mass_matrix", "mass_solve", "method_for",
    "momentum", "operational_space", "potential_energy", "rollout", "sample_velocities", "simulate", "symbolic",
    "zoo",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """What few programs need is imported when first asked for."""
    import importlib

    if name == "symbolic":
        return importlib.import_module("torsor.theory.symbolic")
    if name == "export":
        return importlib.import_module("torsor.dynamics.exports").export
    if name in ("JointFeedback", "LinearFeedback", "Rollout", "rollout"):
        return getattr(importlib.import_module("torsor.simulate.rollout"), name)
    raise AttributeError(f"module 'torsor' has no attribute {name!r}")
