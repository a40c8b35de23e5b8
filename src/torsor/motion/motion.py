"""The equations of motion of one state: accelerations from compiled forward dynamics under a law.

M(q) a = tau(t, q, v) - bias(q, v),    tau the sum of all forces, including those of the model's joints
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torsor.algorithms import articulated, pulls
from torsor.backends.cpu import compile_program
from torsor.compiler.derivative import derivative
from torsor.compiler.request import PATIENT
from torsor.compiler.store import store
from torsor.dynamics import functions as dynamics
from torsor.dynamics import programs
from torsor.dynamics.calls import automatic_algorithm, near_lock, refuse_singular_at
from torsor.dynamics.methods import METHODS, MOST_COUPLED, MOST_FREEDOMS, NOT_COMPILED, SEGMENTS_FROM
from torsor.errors import ArgumentError, SingularError, TorsorError
from torsor.linalg import Scalar
from torsor.model.freedoms import limited_coordinates
from torsor.model.model import Model
from torsor.motion.coordinates import Coordinates
from torsor.motion.law import Law, collect
from torsor.motion.lowering import Step, gains_by_freedom, lowered, tangent_of
from torsor.motion.plant import Plant
from torsor.motion.time_loop import StepRun
from torsor.sweeps import Algorithm
from torsor.validate import chosen

if TYPE_CHECKING:
    from torsor.backends.cpu import Program

Array = NDArray[Any]
Accelerate = Callable[[float, Array, Array, Array], Any]
Solve = Callable[[Array, Array], Array]

# The methods of `forward_dynamics` that a motion can use.
DYNAMICS = ("auto", *METHODS["forward_dynamics"], *NOT_COMPILED)
TORQUE, STIFFNESS, DAMPING = range(3)  # rows of `torques_and_slopes`


def torques_and_slopes(plant: Plant, q: Sequence[Scalar], v: Sequence[Scalar], h: Scalar) -> list[list[Scalar]]:
    """The torques and their slopes: how much each falls with the position and the velocity of its freedom."""
    actions, _ = plant.actions(q, v)
    return [[x.tau for x in actions], [x.stiffness for x in actions], [x.damping - x.excess for x in actions]]


def torques_under(plant: Plant, q: Sequence[Scalar], v: Sequence[Scalar], h: Scalar) -> list[Scalar]:
    """The torques under the law."""
    return [x.tau for x in plant.actions(q, v)[0]]


class CompiledLaw:
    """`torques_and_slopes` of a law as compiled code: (3, nv) per state."""

    def __init__(self, law: Law) -> None:
        step = Step(torques_and_slopes, "torques and slopes", law, 1, implicit=True, moves=False)
        self.law, self.step = law, lowered(step)
        self.is_one_kernel = not self.step.programs and law.is_data and self.step.is_machine_code
        self._column = None if law.model.nq == law.model.nv else limited_coordinates(law.model)
        # the law's numbers, and their layout for the kernel; gains that change in time are written there
        self.values = law.values.copy()
        self.gain = self._laid(self.values)
        self.commands = self._constant if not (law.changes or law.schedule) else self._at
        self._h = np.ones(1)

    def _laid(self, gain: Array) -> Array:
        """The law's numbers in the layout of the kernel."""
        by_freedoms = self.step.by_freedoms
        return np.moveaxis(gains_by_freedom(self.law, gain, 1), 0, -1)[0] if by_freedoms else gain

    def _constant(self, t: float) -> Array:
        return self.law.constant.reshape(-1)

    def _at(self, t: float) -> Array:
        """The commands at a time; the gains are set to that time, too."""
        if self.law.schedule is not None:
            self.values[:] = self.law.values_at(np.array([t]))[0]
            self.gain = self._laid(self.values)
        return self.law.commands_at(np.array([t]))[0]

    def loads(self, t: float) -> list[Array]:
        return [self.law.loads_at(t)[name] for name in self.law.load_names]

    def __call__(self, t: float, q: Array, v: Array) -> Array:
        """At one state, (3, nv)."""
        u = self.commands(t)
        if not self.is_one_kernel:
            run = self._run
            run.t = t
            if self.law.changes:
                run.write({"tau": run.memory.laid("tau", u[None, None])})
            if self.law.schedule is not None:
                run.write({"gain": run.memory.laid("gain", self.law.values_at(np.array([t]))[None])})
            if self.law.waves:
                run.write({name: x[None] for name, x in zip(self.law.load_names, self.loads(t))})
            return run.once(np.concatenate([q, v])[None])[0]
        kernel = self.step.kernel if self.step.written_out else self.step.pieces[-1][0]
        if self.step.by_freedoms:
            x = q if self._column is None else q[self._column]
            return kernel(x[:, None], v[:, None], u[:, None], self.gain, self._h)[..., 0].T
        loads = self.loads(t) if self.step.written_out else ()
        return kernel(q, v, u, self.gain, self._h, *loads)

    @cached_property
    def _run(self) -> StepRun:
        """The calls at one state."""
        given = {name: np.array(x)[None] for name, x in self._given(self.commands(0.0), self.law.values).items()}
        return StepRun(self.step, 1, self._h, given, (0.0,), self.law.called)

    def many(self, t: Array, q: Array, v: Array) -> Array:
        """At many states, (m, 3, nv)."""
        if not len(q):
            return np.zeros((0, 3, self.law.model.nv))
        if self.law.called:
            return np.array([self(*state) for state in zip(t.tolist(), q, v)])
        gain = self.law.values if self.law.schedule is None else self.law.values_at(t)
        run = StepRun(self.step, len(q), self._h, self._given(self.law.commands_at(t), gain))
        return run.once(np.concatenate([q, v], axis=1))

    def _given(self, u: Array, gain: Array) -> dict[str, Array]:
        """The inputs of a step other than states and length."""
        return {"tau": u, "gain": gain, **dict(zip(self.law.load_names, self.loads(0.0)))}


class Motion:
    """The equations of motion of a model under forces.

    accelerate(t, q, v, out) writes the accelerations into out. torque(t, q, v) is the sum of the forces at the joints
    and slopes(t, q, v) their stiffness and damping; `dynamics` is the method of `forward_dynamics`.
    """

    def __init__(self, model: Model, forces: Any = (), dynamics: str = "auto") -> None:
        self.model, self.coordinates = model, Coordinates(model)
        self.dynamics = chosen("dynamics", dynamics, DYNAMICS)
        self.law = collect(model, forces)
        if self.law.batch:
            raise ArgumentError(f"a force has batch axes {self.law.batch}: that is for rollouts, not for one motion")
        self.compiled_law = CompiledLaw(self.law)
        self.accelerate = self._choose()

    @property
    def coordinates_on_host(self) -> Coordinates:
        return self.coordinates

    @staticmethod
    def place(x: Array) -> Array:
        """Move an array from the host to the device of the states; here that is the host."""
        return x

    @staticmethod
    def fetch(x: Array) -> Array:
        """Copy an array from the device of the states to the host."""
        return x.copy()

    # ---- forces ----

    @property
    def is_free(self) -> bool:
        """Whether constant torques are the only forces at the joints."""
        law = self.law
        return law.is_data and not (
            len(law.gains) or law.parts or law.curved or law.tracked or law.policy or law.changes
        )

    @property
    def is_idle(self) -> bool:
        """Whether there are no forces."""
        return self.is_free and not self.law.load_names and not self.law.constant.any()

    def torque(self, t: float, q: Array, v: Array) -> Array:
        """The torques at the joints, without the loads on the bodies."""
        return self.law.constant[0] if self.is_free else self.compiled_law(t, q, v)[TORQUE]

    def slopes(self, t: float, q: Array, v: Array) -> tuple[Array, Array]:
        """The stiffness and the damping of all forces at the joints."""
        found = self.compiled_law(t, q, v)
        return found[STIFFNESS], found[DAMPING]

    def torques(self, t: Array, q: Array, v: Array) -> Array:
        """The sum of all forces at many states, as torques at the joints, (m, nv)."""
        return self.compiled_law.many(t, q, v)[:, TORQUE] + self._felt(t, q, v)

    def felt(self, t: float, q: Array, v: Array) -> Array:
        """The sum of all forces at one state, as torques at the joints, (nv,)."""
        return self.torque(t, q, v) + self.felt_loads(t, q, v)

    def felt_loads(self, t: float, q: Array, v: Array) -> Array:
        """The loads on the bodies at one state, as torques at the joints, (nv,)."""
        return np.reshape(self._felt(np.array([t]), q[None], v[None]), -1)

    def _felt(self, t: Array, q: Array, v: Array) -> Any:
        """The loads on the bodies, as torques at the joints: minus the bias of the weightless machine at rest."""
        names = self.law.load_names
        if not names:
            return 0.0
        program = compiled_with(self.model.weightless, pulls.bias_forces, names)
        rows = [[self.law.loads_at(x)[name] for x in t.tolist()] for name in names]
        return -program(q, np.zeros_like(v), *map(np.array, rows))

    def changes(self, t: float, q: Array, v: Array, dq: Array, dv: Array) -> Array:
        """The directional derivatives of `felt` along the rows of dq, dv (k, nv); dq are displacements along v.

        Exact for forces that are data; functions are differentiated by fourth-order differences.
        """
        moved = self.coordinates.rate(np.broadcast_to(q, (len(dq), len(q))), dq)
        if (kernel := self._tangent) is None:
            changes = self._differences(t, q, v, moved, dv)
        else:
            given = [q, v, self.compiled_law.commands(t), self.compiled_law.gain, np.ones(1), moved, dv]
            if self.compiled_law.step.by_freedoms:
                if (column := self.compiled_law._column) is not None:
                    given[0], given[5] = q[column], moved[:, column]
                given = [x if k in (3, 4) else x[..., None] for k, x in enumerate(given)]
            changes = kernel(*given).reshape(dv.shape)
        if names := self.law.load_names:
            push = compiled_with(self.model.weightless, FELT, names)
            changes = changes - push(q, np.zeros_like(v), dq, *self.compiled_law.loads(t))
        return changes

    @cached_property
    def _tangent(self) -> Any:
        """The kernel of the directional derivative of the torques, if the law is one piece of code."""
        return (
            tangent_of(lowered(Step(torques_under, "torques", self.law, moves=False)))
            if self.compiled_law.is_one_kernel
            else None
        )

    def _differences(self, t: float, q: Array, v: Array, dq: Array, dv: Array) -> Array:
        changes = np.zeros_like(dv)
        for change, along, faster in zip(changes, dq, dv):
            size = max(np.abs(along).max(initial=0), np.abs(faster).max(initial=0))
            if size:
                h = NUDGE * max(1.0, np.abs(q).max(initial=0), np.abs(v).max(initial=0)) / size
                near, far = (
                    self.torque(t, q + s * along, v + s * faster) - self.torque(t, q - s * along, v - s * faster)
                    for s in (h, 2 * h)
                )
                change += (8 * near - far) / (12 * h)
        return changes

    @cached_property
    def tracking(self) -> tuple[Array, Array] | None:
        """(kp, kd) of computed torques: M(q) kp and M(q) kd are their stiffness and damping."""
        if self.law.tracked is None:
            return None
        kp, kd = (self.place(self.law.values[place]) for place in self.law.layout.tracking)
        return kp, kd

    def steps(self, step: Step, h: float, given: Mapping[str, Array], times: Sequence[float]) -> Any:
        """A run of steps of length h; the other arguments are those of `StepRun`."""
        return StepRun(lowered(step), 1, np.array([h]), given, times, self.law.called)

    # ---- accelerations ----

    @cached_property
    def program(self) -> Program | None:
        """The compiled forward dynamics, if its method is compiled for this model.

        Its arguments are (q, v, tau, loads ...) with dynamics "auto"; other methods take no loads.
        """
        names = self.law.load_names
        large = self.dynamics == "composite" and self.model.nv > MOST_FREEDOMS
        if self.dynamics in NOT_COMPILED or large or (self.model.couplings and self.model.nv > MOST_COUPLED):
            return None
        if not names or self.dynamics != "auto":
            return compiled(self.model, dynamics.forward_dynamics, self.dynamics)
        return compiled_with(self.model, self.compiled_law.step.step.algorithm, names)

    def _choose(self) -> Accelerate:
        """The cheapest form of the right-hand side."""
        program, law = self.program, self.law
        if program is None:
            return lambda t, q, v, out: np.copyto(out, self._by_call(t, q, v))
        if law.load_names and self.dynamics != "auto":
            return lambda t, q, v, out: program(q, v, self.felt(t, q, v), out)
        if law.waves:
            return lambda t, q, v, out: program(q, v, self.torque(t, q, v), *self.compiled_law.loads(t), out)
        loads = self.compiled_law.loads(0.0)
        if self.is_free:
            constant = law.constant[0]
            return lambda t, q, v, out: program(q, v, constant, *loads, out)
        return lambda t, q, v, out: program(q, v, self.compiled_law(t, q, v)[TORQUE], *loads, out)

    def _by_call(self, t: float, q: Array, v: Array) -> Array:
        return dynamics.forward_dynamics(self.model, q, v, self.felt(t, q, v), method=self.dynamics)

    def implicit(self, t: float, q: Array, v: Array, tau: Array, added: Array) -> Array:
        """(M(q) + diag(added))^-1 (tau - bias(q, v)), in one sweep; for a long chain, by segments."""
        if (program := self._implicit_program) is not None:
            return program(q, v, tau, added, *(self.compiled_law.loads(t) if self.law.waves else self._constant_loads))
        if self.model.couplings:
            return self._projected(q, tau - self._bias(q, v, *self.compiled_law.loads(t)), added)
        loads = self.law.loads_at(t)
        try:
            return dynamics.forward_dynamics(self.model, q, v, tau, external=loads.get("external"), added_inertia=added)
        except TorsorError:  # arguments are not finite: the method takes a shorter step
            return np.full(self.model.nv, np.nan)

    @cached_property
    def _implicit_program(self) -> Program | None:
        """The forward dynamics with numbers added to the pivots, if it is one program; long chains use segments."""
        names, model = self.law.load_names, self.model
        if model.couplings or ("pulls" not in names and model.n >= SEGMENTS_FROM):
            return None
        return compiled_with(model, self.compiled_law.step.step.algorithm, (*ADDED, *names))

    @cached_property
    def _constant_loads(self) -> list[Array]:
        return self.compiled_law.loads(0.0)

    def implicit_solve(self, q: Array, b: Array, added: Array) -> Array:
        """(M(q) + diag(added))^-1 b in one sweep, for any chain: as fast as a forward dynamics by segments."""
        if self.model.couplings:
            return self._projected(q, b, added)
        return self._solve_program(q, b, added)

    def _projected(self, q: Array, b: Array, added: Array) -> Array:
        """G (G' (M + diag(added)) G)^-1 G' b, for machines with couplings; NaN if the matrix is singular."""
        M, G = compiled(self.model, dynamics.mass_matrix)(q), self._followed
        M.reshape(-1)[:: len(M) + 1] += added
        try:
            return G @ np.linalg.solve(G.T @ M @ G, b @ G)
        except np.linalg.LinAlgError:
            return np.full(len(b), np.nan)

    @cached_property
    def _followed(self) -> Array:
        """G, with v = G (the velocities of the joints that follow no other)."""
        return self.model.coupling_matrix()

    @cached_property
    def _bias(self) -> Program:
        return compiled_with(self.model, pulls.bias_forces, self.law.load_names)

    @cached_property
    def _solve_program(self) -> Program:
        return compiled_with(self.model, articulated.mass_solve, ADDED)

    @cached_property
    def solve(self) -> Solve:
        """(q, p) -> M(q)^-1 p."""
        return compiled(self.model, dynamics.mass_solve)

    @cached_property
    def momenta(self) -> Solve:
        """(q, v) -> M(q) v, in one sweep: the torques that accelerate the weightless machine at rest by v."""
        still = np.zeros(self.model.nv)
        program = compiled(self.model.weightless, dynamics.inverse_dynamics)
        return lambda q, v: program(q, still, v)

    def checked(self, t: float, q: Array, v: Array) -> Array:
        """The accelerations at a state; raises if they are not finite or a joint locks."""
        if isinstance(q, np.ndarray) and near_lock(self.model, q):
            refuse_singular_at(automatic_algorithm(self.model, dynamics.forward_dynamics), self.model, q)
        out = np.empty_like(v)
        self.accelerate(t, q, v, out)
        if not np.isfinite(out).all():
            k = int(np.flatnonzero(~np.isfinite(out))[0])
            raise SingularError(
                f"the acceleration of {self.model.body_of_freedom(k)!r} at t = {t:g} is {out[k]}: check its mass and "
                "the forces"
            )
        return out


# the derivative with respect to q of the torques of loads on the bodies
FELT = derivative(pulls.bias_forces, "jvp", ("q",))
NUDGE = 1e-3  # the step of fourth-order differences, relative to the larger of 1 and |(q, v)|
ADDED = ("added_inertia",)  # the option of the forward dynamics that implicit methods need


def compiled_with(model: Model, algorithm: Algorithm, options: tuple[str, ...], lanes: int | None = None) -> Program:
    """The program of an algorithm that takes these options, made once per model."""

    def make() -> Program:
        return compile_program(algorithm, model, options=options, unroll=PATIENT, lanes=lanes)

    return store(model).once(("program with", options, algorithm, lanes), make)


def compiled(model: Model, function: Callable[..., Array], method: str = "auto") -> Program:
    """The program of a function, made once per model."""
    key = ("program", function, method)
    return store(model).once(key, lambda: programs.compile(model, function, method=method))
