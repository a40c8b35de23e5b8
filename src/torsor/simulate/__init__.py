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

from torsor.simulate.forces import (
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
from torsor.simulate.integrators import METHODS
from torsor.simulate.recording import RecordingError
from torsor.simulate.references import Cycloid
from torsor.simulate.series import Series
from torsor.simulate.simulation import Simulation, simulate
from torsor.simulate.stepper import StiffnessWarning
from torsor.simulate.trajectory import Trajectory

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
