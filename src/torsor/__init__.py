"""torsor: the dynamics of articulated chains, from a six-joint arm to a rope of a million links."""

from typing import TYPE_CHECKING, Any

import torsor.kernel.cache  # first, as it reads the sources  # noqa: F401
from torsor import lie
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
from torsor.simulate import Simulation, Trajectory, simulate
from torsor.task_space import operational_space

if TYPE_CHECKING:
    from torsor import symbolic
    from torsor.exports import export
    from torsor.rollouts import LinearFeedback, Rollout, rollout

__version__ = "0.1.0"

__all__ = [
    "ArgumentError", "DeviceError", "LinearFeedback", "Model", "ModelError", "Rollout", "Simulation",
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
        return importlib.import_module("torsor.symbolic")
    if name == "export":
        return importlib.import_module("torsor.exports").export
    if name in ("LinearFeedback", "Rollout", "rollout"):
        return getattr(importlib.import_module("torsor.rollouts"), name)
    raise AttributeError(f"module 'torsor' has no attribute {name!r}")
