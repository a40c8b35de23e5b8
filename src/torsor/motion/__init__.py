"""Simulation: integrators, forces, trajectories, recording.

simulation   Simulation and simulate: the entry points
forces       forces on the joints;  references: motions to follow
laws         what acts at one freedom, over any scalar;  joint_forces: all forces together
motion       the right-hand side
integrators  the methods by name: runge_kutta, adams (made of stages, which may be fused), implicit and radau (in O(n));
             structure (fixed step)
hermite      dense output;  coordinates: dq/dt = N(q) v
trajectory   the result;  series: the result if only some quantities are kept;  recording, tables: their files
"""

from torsor.motion.forces import (
    PD,
    ComputedTorque,
    Constant,
    Drive,
    External,
    Friction,
    Limits,
    Pull,
    Spring,
    Table,
)
from torsor.motion.integrators import METHODS
from torsor.motion.recording import RecordingError
from torsor.motion.references import Cycloid
from torsor.motion.series import Series
from torsor.motion.simulation import Simulation, simulate
from torsor.motion.stepper import StiffnessWarning
from torsor.motion.trajectory import Trajectory

__all__ = [
    "METHODS",
    "PD",
    "ComputedTorque",
    "Constant",
    "Cycloid",
    "Drive",
    "External",
    "Friction",
    "Limits",
    "Pull",
    "RecordingError",
    "Series",
    "Simulation",
    "Spring",
    "StiffnessWarning",
    "Table",
    "Trajectory",
    "simulate",
]  # fmt: skip
