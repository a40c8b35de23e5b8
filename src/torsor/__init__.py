"""torsor: the dynamics of articulated chains, from a six-joint arm to a rope of a million links.

The public names are listed in `__init__.pyi`, one per line, with the module that defines each.  A module is imported
when one of its names is first used (SPEC 1 of Scientific Python): `import torsor` itself takes a few milliseconds.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import torsor.backends.cache  # first: it records which source files exist  # noqa: F401

__version__ = "0.2.0.dev0"

_LIST = __spec__.loader.get_data(str(Path(__file__).with_suffix(".pyi"))).decode()  # type: ignore  # from a zip, too
_MODULES = {name: module for module, name in re.findall(r"^from (\S+) import (\S+) as \2$", _LIST, re.MULTILINE)}
__all__ = sorted(_MODULES)

# Names of earlier versions, and their replacements.
_RENAMED = {
    "coupled": "model.coupled(q)", "coupling_matrix": "model.coupling_matrix()", "method_for": "torsor.explain",
    "rollout_vjp": "torsor.vjp(torsor.rollout)", "LinearFeedback": "torsor.Feedback", "JointFeedback": "torsor.PD",
    "Rollout": "torsor.Trajectory", "StoppedRollout": "torsor.Trajectory", "Drive": "torsor.Function(f, drive=True)",
    "inertial_parameters": "model.inertial_parameters()",
    "with_inertial_parameters": "model.with_inertial_parameters(parameters)",
    **{name: f"torsor.formats.{name}" for name in ("from_mujoco", "from_pinocchio", "to_mujoco", "to_pinocchio")},
}  # fmt: skip

# Names in other libraries, and the names here.
_ELSEWHERE = {
    "aba": "forward_dynamics", "fd": "forward_dynamics", "rnea": "inverse_dynamics", "id": "inverse_dynamics",
    "crba": "mass_matrix", "nle": "bias_forces", "nonLinearEffects": "bias_forces", "fkine": "frame_poses",
    "forward_kinematics": "body_poses", "forwardKinematics": "body_poses", "fk": "frame_poses",
    "computeMinverse": "inverse_mass_matrix", "computeJointJacobian": "jacobian", "jacob0": "jacobian",
    "inertia": "mass_matrix", "gravload": "gravity_forces", "computeGeneralizedGravity": "gravity_forces",
    "ik": "inverse_kinematics", "ikine": "inverse_kinematics", "accel": "forward_dynamics", "com": "center_of_mass",
    "buildModelFromUrdf": "load", "load_urdf": "load", "read": "load", "step": "rollout", "mj_step": "rollout",
    "coriolis": "coriolis_matrix", "gravity": "gravity_forces", "Simulator": "Simulation",
}  # fmt: skip

_ROOMS = ("jax", "torch", "gym")  # of extras: their import is slow and changes the behaviour of other libraries


def __getattr__(name: str) -> Any:
    """Import a public name and keep it."""
    if name in _ELSEWHERE:
        raise AttributeError(f"torsor has no {name}: here it is torsor.{_ELSEWHERE[name]}")
    if name in _RENAMED:
        raise AttributeError(f"torsor.{name} is now {_RENAMED[name]}")
    if name in _ROOMS:
        raise AttributeError(f"torsor.{name} needs an import of its own: import torsor.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'torsor' has no attribute {name!r}")
    module = _MODULES[name]
    found = import_module(module)
    value = getattr(found, name) if name in vars(found) else import_module(f"{module}.{name}")
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
