"""The right-hand side: accelerations from a state, through the compiled forward dynamics.

(M(q) + diag(armature)) a = tau(t, q, v) - bias(q, v),    tau the sum of all forces
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import dynamics
from torsor.compiler.store import store
from torsor.dynamics.methods import METHODS, MOST_FREEDOMS, NOT_COMPILED
from torsor.errors import ArgumentError, SingularError
from torsor.model.model import Model
from torsor.simulate.coordinates import Coordinates
from torsor.simulate.forces import Constant, Force
from torsor.validate import chosen, parameter

if TYPE_CHECKING:
    from torsor.backends.cpu import Program

Array = NDArray[Any]
Accelerate = Callable[[float, Array, Array, Array], Any]
Solve = Callable[[Array, Array], Array]

# The methods of `forward_dynamics` that a motion can be computed by.
DYNAMICS = ("auto", *METHODS["forward_dynamics"], *NOT_COMPILED)


class Motion:
    """The equations of motion of a model under forces.

    accelerate(t, q, v, out) writes the accelerations into out;  torque(t, q, v) is the sum of the forces.
    `dynamics` is the method of `forward_dynamics` that computes them.
    """

    accelerate: Accelerate

    def __init__(
        self, model: Model, forces: Sequence[Force] = (), armature: ArrayLike = 0.0, dynamics: str = "auto"
    ) -> None:
        self.model, self.coordinates, self.forces = model, Coordinates(model), tuple(forces)
        self.dynamics = chosen("dynamics", dynamics, DYNAMICS)
        self.armature = np.broadcast_to(parameter("armature", armature, model.nv), (model.nv,))
        if not (self.armature >= 0).all():
            raise ArgumentError(f"armature must be inertias >= 0, not {self.armature}")
        if self.armature[self.coordinates.curved_freedoms].any():
            raise ArgumentError("armature is the inertia of rotors on axes: make it 0 for spherical and free joints")
        if self.armature.any() and dynamics != "auto":
            raise ArgumentError("armature is added to the mass matrix, which is then solved: leave dynamics at 'auto'")
        self.steady = all(isinstance(force, Constant) for force in self.forces)
        self._constant = self._sum(0.0, model.neutral(), np.zeros(model.nv)) if self.steady else np.zeros(0)
        self.accelerate = self._choose()

    def torque(self, t: float, q: Array, v: Array) -> Array:
        """The sum of all forces, (nv,)."""
        return self._constant if self.steady else self._sum(t, q, v)

    def torques(self, t: Array, q: Array, v: Array) -> Array:
        """The sum of all forces at many states, (m, nv)."""
        if self.steady:
            return np.broadcast_to(self._constant, v.shape)
        return np.array([self._sum(*state) for state in zip(t, q, v)])

    def _sum(self, t: float, q: Array, v: Array) -> Array:
        tau = np.zeros(self.model.nv)
        for force in self.forces:
            tau += force(t, q, v)
        return tau

    @property
    def program(self) -> Program | None:
        """The compiled right-hand side, if the right-hand side is only that program under constant forces."""
        alone = self.steady and self.coordinates.flat and not self.armature.any()
        return self._program if alone else None

    def _choose(self) -> Accelerate:
        """The cheapest form of the right-hand side."""
        if self.armature.any():
            return self._with_armature
        program, tau = self._forward, self._constant
        if self.steady:
            return lambda t, q, v, out: program(q, v, tau, out)
        return lambda t, q, v, out: program(q, v, self._sum(t, q, v), out)

    def _with_armature(self, t: float, q: Array, v: Array, out: Array) -> None:
        out[:] = self.solve(q, self.torque(t, q, v) - compiled(self.model, dynamics.bias_forces)(q, v))

    @cached_property
    def solve(self) -> Solve:
        """(q, p) -> (M(q) + diag(armature))^-1 p"""
        if self.armature.any():
            return lambda q, p: np.linalg.solve(self.mass_matrix(q), p[..., None])[..., 0]
        return compiled(self.model, dynamics.mass_solve)

    def accelerations(self, t: float, q: Array, v: Array) -> Array:
        """The accelerations of many states at one time, (m, nv)."""
        tau = self.torques(np.full(len(q), t), q, v)
        if self.armature.any():
            return self.solve(q, tau - compiled(self.model, dynamics.bias_forces)(q, v))
        return self._forward(q, v, tau)

    @cached_property
    def _program(self) -> Program | None:
        """The compiled forward dynamics, if its method is compiled for this model."""
        large = self.dynamics == "composite" and self.model.nv > MOST_FREEDOMS
        if self.dynamics in NOT_COMPILED or large:
            return None
        return compiled(self.model, dynamics.forward_dynamics, self.dynamics)

    @property
    def _forward(self) -> Callable[..., Array]:
        """(q, v, tau) -> accelerations, written into a fourth argument if there is one."""
        return self._by_call if self._program is None else self._program

    def _by_call(self, q: Array, v: Array, tau: Array, out: Array | None = None) -> Array:
        result = dynamics.forward_dynamics(self.model, q, v, tau, method=self.dynamics)
        if out is not None:
            out[:] = result
        return result

    def mass_matrix(self, q: Array) -> Array:
        """M(q) + diag(armature)"""
        return compiled(self.model, dynamics.mass_matrix)(q) + np.diag(self.armature)

    def checked(self, t: float, q: Array, v: Array) -> Array:
        """The accelerations at a state, which must be finite."""
        out = np.empty(self.model.nv)
        self.accelerate(t, q, v, out)
        if not np.isfinite(out).all():
            k = int(np.flatnonzero(~np.isfinite(out))[0])
            body = self.model.names[int(np.searchsorted(self.model.v_start, k, "right")) - 1]
            raise SingularError(f"the acceleration of {body!r} at t = {t:g} is {out[k]}: check its mass and the forces")
        return out


def compiled(model: Model, function: Callable[..., Array], method: str = "auto") -> Program:
    """The program of a function, made once per model."""
    key = ("program", function, method)
    return store(model).once(key, lambda: dynamics.compile(model, function, method=method))
