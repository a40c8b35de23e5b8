"""How the forces on a machine change near a state: what Newton's method needs to solve implicit equations.

Near a state (q, v) with the accelerations a,

    M da + C(dq, dv) = 0,      C(dq, dv) = d(M(q) a + bias(q, v) - tau(t, q, v))  at constant a,

which is exact for the dynamics (the jvp of inverse dynamics) and for forces that are data. Forces that are functions
are differentiated by differences.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms.newton_euler import inverse_dynamics
from torsor.compiler.derivative import derivative
from torsor.motion.motion import Motion, compiled_with

Array = NDArray[Any]

PUSH = derivative(inverse_dynamics, "jvp", ("q", "v"))
NUDGE = sqrt(np.finfo(np.float64).eps)  # of differences, relative to the larger of 1 and |(q, v)|
LANES = 4  # states side by side in a long chain: four cost as much as one


class Tangent:
    """C of a motion at a state."""

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, a: Array) -> None:
        self.motion, self.t, self.q, self.v, self.a = motion, t, q, v, a

    @property
    def push(self) -> Any:
        """(q, v, a, dq, dv) -> the change of M a + bias"""
        return compiled_with(self.motion.model, PUSH, (), LANES)

    def __call__(self, dq: Array, dv: Array) -> Array:
        """C along each row of dq, dv (k, nv), both along the directions of v."""
        return in_lanes(self.push, self.q, self.v, self.a, dq, dv) - self.torques(dq, dv)

    def torques(self, dq: Array, dv: Array) -> Array:
        """How the torques change."""
        return self.motion.changes(self.t, self.q, self.v, dq, dv)


def in_lanes(program: Any, *arrays: Array) -> Array:
    """A program of several states; in loops, the last one is repeated until they fill its lanes, for what is left over
    goes singly."""
    count = max(len(x) for x in arrays if x.ndim == 2)
    outline = getattr(program, "outline", None)
    if outline is None or outline.layout is None or count == 1 or count % LANES == 0:
        return program(*arrays)
    rows = np.minimum(np.arange(-(-count // LANES) * LANES), count - 1)
    return program(*(x[rows] if x.ndim == 2 else x for x in arrays))[:count]
