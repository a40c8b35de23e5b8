"""The right-hand side: accelerations from a state, through the compiled forward dynamics.

M(q) a = tau(t, q, v) - bias(q, v),    tau the sum of all forces, those of the model's own joints included
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms import articulated, pulls
from torsor.compiler.request import PATIENT
from torsor.compiler.store import store
from torsor.dynamics import functions as dynamics
from torsor.dynamics import programs
from torsor.dynamics.couplings import coupled_accelerations, coupled_solve
from torsor.dynamics.methods import METHODS, MOST_COUPLED, MOST_FREEDOMS, NOT_COMPILED, SEGMENTS_FROM
from torsor.errors import SingularError, TorsorError
from torsor.model.model import Model
from torsor.motion.coordinates import Coordinates
from torsor.motion.forces import Force, own_forces
from torsor.motion.fused import MOST_COORDINATES
from torsor.motion.joint_forces import JointForces
from torsor.sweeps import Algorithm
from torsor.validate import chosen

if TYPE_CHECKING:
    from torsor.backends.cpu import Program

Array = NDArray[Any]
Accelerate = Callable[[float, Array, Array, Array], Any]
Solve = Callable[[Array, Array], Array]

# The methods of `forward_dynamics` that a motion can be computed by.
DYNAMICS = ("auto", *METHODS["forward_dynamics"], *NOT_COMPILED)


class Motion:
    """The equations of motion of a model under forces.

    accelerate(t, q, v, out) writes the accelerations into out.  torque(t, q, v) is the sum of the forces, and torques
    that of many states;  gains(t, q, v) are the stiffness and the damping of all forces that know theirs.  `dynamics`
    is the method of `forward_dynamics` that computes the accelerations.
    """

    accelerate: Accelerate

    def __init__(self, model: Model, forces: Sequence[Force] = (), dynamics: str = "auto") -> None:
        self.model, self.coordinates, self.forces = model, Coordinates(model), (*own_forces(model), *forces)
        self.dynamics = chosen("dynamics", dynamics, DYNAMICS)
        self.joints = JointForces(model, self.forces)
        self.torque, self.torques, self.gains = self.joints.torque, self.joints.torques, self.joints.gains
        self.accelerate = self._choose()

    @property
    def coordinates_on_host(self) -> Coordinates:
        return self.coordinates

    @staticmethod
    def place(x: Array) -> Array:
        """Numbers of the host as an array where the states are: here, on the host."""
        return x

    @staticmethod
    def fetch(x: Array) -> Array:
        """A copy on the host of numbers that belong to states."""
        return x.copy()

    @property
    def program(self) -> Program | None:
        """The compiled right-hand side, if it is only a program of q, v and `given`, and `law` of the joints."""
        if not self.joints.is_data or not (self.coordinates.flat or self.model.nq <= MOST_COORDINATES):
            return None
        options = (*self.joints.loads, *(() if self._linear is None else LINEAR))
        if not options or self._program is None:
            return self._program
        plain = self.dynamics == "auto" and not self.model.couplings
        algorithm = pulls.forward_dynamics if "pulls" in options else articulated.forward_dynamics
        return compiled_with(self.model, algorithm, options) if plain else None

    @property
    def given(self) -> list[Array]:
        """The inputs of `program` after q and v: torques, loads on the bodies, and stiffness and damping if linear."""
        constant = self.joints.constant
        c, *gains = self._linear or (np.zeros(self.model.nv) if constant is None else constant,)
        return [c, *self.joints.loads.values(), *gains]

    @property
    def law(self) -> JointForces | None:
        """The forces that give the first of `given` at every evaluation, if it changes."""
        return None if self._linear or self.joints.constant is not None else self.joints

    @cached_property
    def _linear(self) -> tuple[Array, ...] | None:
        """(c, K, D) if the sum of all forces is c - K q - D v, and not constant."""
        plain = self.coordinates.flat and self.dynamics == "auto" and not self.model.couplings
        return self.joints.linear if plain else None

    def _choose(self) -> Accelerate:
        """The cheapest form of the right-hand side."""
        program, given = self.program, self.given
        if program is not None and self.law is None and not self.joints.waves:
            return lambda t, q, v, out: program(q, v, *given, out)
        forward, torque = self.forward, self.torque
        if (constant := self.joints.constant) is not None and not self.joints.pushes:
            return lambda t, q, v, out: forward(q, v, constant, out)
        return lambda t, q, v, out: forward(q, v, torque(t, q, v), out)

    def implicit(self, q: Array, v: Array, tau: Array, added: Array) -> Array:
        """(M(q) + diag(added))^-1 (tau - bias(q, v)), in one sweep; a long chain goes by segments."""
        if self.model.couplings:
            return coupled_accelerations(self.model, q, v, tau, added_inertia=added)
        if self.model.n >= SEGMENTS_FROM:
            try:
                return dynamics.forward_dynamics(self.model, q, v, tau, added_inertia=added)
            except TorsorError:  # numbers that are not finite: the method takes a shorter step
                return np.full(self.model.nv, np.nan)
        return compiled_with(self.model, articulated.forward_dynamics, ADDED)(q, v, tau, added)

    def implicit_solve(self, q: Array, b: Array, added: Array) -> Array:
        """(M(q) + diag(added))^-1 b, in one sweep, at any length: it takes as long as a forward dynamics by segments"""
        if self.model.couplings:
            return coupled_solve(self.model, q, b, added)
        return compiled_with(self.model, articulated.mass_solve, ADDED)(q, b, added)

    @cached_property
    def solve(self) -> Solve:
        """(q, p) -> M(q)^-1 p"""
        return compiled(self.model, dynamics.mass_solve)

    def accelerations(self, t: float, q: Array, v: Array) -> Array:
        """The accelerations of many states at one time, (m, nv)."""
        return self.forward(q, v, self.torques(np.full(len(q), t), q, v))

    @cached_property
    def _program(self) -> Program | None:
        """The compiled forward dynamics, if its method is compiled for this model."""
        large = self.dynamics == "composite" and self.model.nv > MOST_FREEDOMS
        if self.dynamics in NOT_COMPILED or large or (self.model.couplings and self.model.nv > MOST_COUPLED):
            return None
        return compiled(self.model, dynamics.forward_dynamics, self.dynamics)

    @property
    def forward(self) -> Callable[..., Array]:
        """(q, v, tau) -> accelerations, written into a fourth argument if there is one."""
        return self._by_call if self._program is None else self._program

    def _by_call(self, q: Array, v: Array, tau: Array, out: Array | None = None) -> Array:
        result = dynamics.forward_dynamics(self.model, q, v, tau, method=self.dynamics)
        if out is not None:
            out[:] = result
        return result

    @cached_property
    def momenta(self) -> Solve:
        """(q, v) -> M(q) v, in one sweep: the torques that accelerate the weightless machine by v"""
        still = np.zeros(self.model.nv)
        program = compiled(self.model.weightless, dynamics.inverse_dynamics)
        return lambda q, v: program(q, still, v)

    def checked(self, t: float, q: Array, v: Array) -> Array:
        """The accelerations at a state, which must be finite."""
        out = np.empty_like(v)
        self.accelerate(t, q, v, out)
        if not np.isfinite(out).all():
            k = int(np.flatnonzero(~np.isfinite(out))[0])
            body = self.model.names[int(np.searchsorted(self.model.v_start, k, "right")) - 1]
            raise SingularError(f"the acceleration of {body!r} at t = {t:g} is {out[k]}: check its mass and the forces")
        return out


# options of the forward dynamics: what implicit methods add to the diagonal of M, and forces that are linear
ADDED, LINEAR = ("added_inertia",), ("stiffness", "damping")


def compiled_with(model: Model, algorithm: Algorithm, options: tuple[str, ...], lanes: int | None = None) -> Program:
    """The program of an algorithm that takes these options, made once per model."""
    from torsor.backends.cpu import compile_program  # imported late, so that `import torsor` stays quick

    def make() -> Program:
        return compile_program(algorithm, model, options=options, unroll=PATIENT, lanes=lanes)

    return store(model).once(("program with", options, algorithm, lanes), make)


def compiled(model: Model, function: Callable[..., Array], method: str = "auto") -> Program:
    """The program of a function, made once per model."""
    key = ("program", function, method)
    return store(model).once(key, lambda: programs.compile(model, function, method=method))
