"""The linearised equations of motion near a state, for Newton's method in implicit integrators.

Near a state (q, v) with the accelerations a,

    M da + C(dq, dv) = 0,      C(dq, dv) = d(M(q) a + bias(q, v) - tau(t, q, v))  at constant a,

which is exact for the dynamics (the jvp of inverse dynamics) and for forces that are data. Forces that are functions
are differentiated by finite differences.
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
NUDGE = sqrt(np.finfo(np.float64).eps)  # the step of finite differences, relative to the size of the argument
LANES = 4  # states per call in a long chain: four cost as much as one


class Tangent:
    """C of a motion at a state."""

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, a: Array) -> None:
        self.motion, self.t, self.q, self.v, self.a = motion, t, q, v, a

    @property
    def push(self) -> Any:
        """(q, v, a, dq, dv) -> the directional derivative of M a + bias."""
        return compiled_with(self.motion.model, PUSH, (), LANES)

    def __call__(self, dq: Array, dv: Array) -> Array:
        """C along each row of dq, dv (k, nv); dq are displacements along v."""
        return in_lanes(self.push, self.q, self.v, self.a, dq, dv) - self.torques(dq, dv)

    def torques(self, dq: Array, dv: Array) -> Array:
        """The directional derivatives of the torques."""
        return self.motion.changes(self.t, self.q, self.v, dq, dv)


def in_lanes(program: Any, *arrays: Array) -> Array:
    """Call a program with several states.

    If its code is loops, the last state is repeated until the lanes are full, since remaining states run one by one.
    """
    count = max(len(x) for x in arrays if x.ndim == 2)
    outline = getattr(program, "outline", None)
    if outline is None or outline.layout is None or count == 1 or count % LANES == 0:
        return program(*arrays)
    rows = np.minimum(np.arange(-(-count // LANES) * LANES), count - 1)
    return program(*(x[rows] if x.ndim == 2 else x for x in arrays))[:count]
