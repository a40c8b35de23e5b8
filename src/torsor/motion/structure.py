"""Fixed-step methods that preserve the structure of mechanics, for long runs: their energy error does not grow.

Three are compositions of two variational steps. They are symplectic for every M(q), also with springs, conserve the
momenta that the machine conserves, and move q along its manifold, so that rotations stay rotations. But springs that
the step does not resolve can make them unstable: the phase of such a spring advances by almost half a period in each of
the two steps, together almost one period, so that its two multipliers are close to 1. If the machine turns, they
separate along the real axis, by 1 to 20 % per step. The fourth method, the midpoint rule, has multipliers close to -1
that stay on the unit circle, and its energy is corrected down to rounding. Every part of a step is a sweep: time and
memory are O(n). docs/simulation.md shows energy and momentum over a million steps of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf, pi, sqrt
from typing import TYPE_CHECKING

import numpy as np

from torsor.algorithms import discrete_mechanics as mechanics
from torsor.backends.cpu import compile_program
from torsor.dynamics import functions as dynamics
from torsor.errors import ArgumentError, SingularError, warn_caller
from torsor.linalg import Vec
from torsor.model.freedoms import limited_coordinates
from torsor.model.joints import JOINTS
from torsor.model.regular import require_uncoupled
from torsor.motion.law import Law
from torsor.motion.lowering import OTHERS
from torsor.motion.motion import TORQUE, CompiledLaw, Motion
from torsor.motion.stepper import Array, FixedStep, Memory, Settings, StiffnessWarning
from torsor.motion.time_loop import called
from torsor.sweeps import Algorithm

if TYPE_CHECKING:
    from torsor.backends.cpu import Program

# Implicit equations are iterated until only rounding changes the solution.
SETTLED, NEARLY = 4 * np.finfo(np.float64).eps, 1e-11
CLOSE, PATIENCE, HOPELESS, ITERATIONS = 1e-7, 4, 16, 100
CLOSE_PER_FREEDOM, FAR = 1e-9, 1e-5  # rounding in long chains: per freedom, and at most
# Passive forces cannot add energy. Every k-th step (k = CHECKED) it is compared with the initial energy, and may exceed
# that by a share of the largest kinetic energy, which depends on the order of the method.
CHECKED, GAIN = 16, {1: 0.5, 2: 0.1}
NUDGE = 1e-3  # of velocities, for the slopes of dampers
POWERS = 30  # iterations for the fastest spring
HALVINGS = 10  # of a step whose equations do not converge
# for a step to conserve energy: the most rounds, and the relative errors of rounding, at best and in long chains
ENERGY_ROUNDS, EXACT, ROUNDED = 4, 1e-14, 1e-12


class Springs:
    """The springs and constant torques of a law: forces with a potential, c - K x at every freedom."""

    def __init__(self, law: Law) -> None:
        model, nv = law.model, law.model.nv
        self.model, self.column = model, limited_coordinates(model)
        self.stiffness, self.pull = np.zeros(nv), np.zeros(nv)
        limited = {kind for kind, _ in law.parts} & {"effort", "speed"}
        numbers, gains = law.values, law.values[law.layout.gains]
        own = law.gains[:, 1] == self.column[law.gains[:, 0]]
        if not limited and not law.tracked:
            self.stiffness[law.gains[own, 0]] = gains[own]
            self.pull = np.where(self.column >= 0, law.constant[0], 0.0)
        for kind, freedoms, places in law.layout.parts:
            if kind == "spring":
                pull, stiffness, _ = places
                self.stiffness[list(freedoms)] += numbers[stiffness]
                self.pull[list(freedoms)] += numbers[pull]
        self.curved = [(JOINTS[model.joint[i]], i, numbers[rest], numbers[k]) for i, rest, k in law.layout.curved]
        dampers = law.gains[:, 1] == model.nq + law.gains[:, 0]
        plain = law.is_data and not (limited or law.tracked or law.policy or law.changes or law.load_names)
        others = {kind for kind, _ in law.parts} - {"spring", "friction"}
        loaded = bool(np.any(law.constant[0][self.column < 0]) or others or not (own | dampers).all())
        # whether all other forces dissipate energy
        self.are_all = plain and not loaded and bool((gains >= 0).all())

    def energy(self, q: Array) -> float:
        x = q[self.column]
        total = float((self.stiffness * x * x / 2 - self.pull * x).sum())
        for joint, body, rest, stiffness in self.curved:
            stretch = joint.elongation(q[self.model.q_start[body] : self.model.q_start[body + 1]], rest)
            total += float((stiffness * stretch**2).sum()) / 2
        return total

    def torques(self, q: Array) -> Array:
        tau = self.pull - self.stiffness * q[self.column]
        for joint, body, rest, stiffness in self.curved:
            own = Vec.of(q[self.model.q_start[body] : self.model.q_start[body + 1]].tolist())
            found, _ = joint.spring(own, Vec.of(rest.tolist()), Vec.of(stiffness.tolist()))
            tau[self.model.v_start[body] : self.model.v_start[body + 1]] += np.array(list(found))
        return tau


class Symplectic(FixedStep):
    """The base class of methods made from variational steps, with the momenta p = M v, on the joints' Lie groups.

    There are two such steps, each the adjoint of the other: one evaluates the Lagrangian at its beginning, the other at
    its end (`algorithms/discrete_mechanics.py`). Both are implicit in the velocity x, which is constant over the step,
    and are solved by iteration. Forces act at the middle of each step.
    """

    parts = 1  # the number of parts of a step

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        require_uncoupled(motion.model, "a structure-preserving method")
        if motion.model.armature[motion.coordinates.curved_freedoms].any():
            raise ArgumentError(
                "structure-preserving methods know rotors on axes only: make the armature 0 for spherical and free "
                "joints, or choose another method"
            )
        super().__init__(motion, t, q, v, settings)
        kicks = [term for term in motion.law.called if not term.needs_v and not term.drive]
        self.kicks = tuple(kicks)  # functions of t and q: evaluated once per step, where two parts meet
        self.steady = CompiledLaw(replace(motion.law, called=tuple(x for x in motion.law.called if x not in kicks)))
        self._kicked: tuple[float, Array, Array] = (-inf, q, v)  # the last t and q of the kicks, and their torques
        self.driven = not motion.is_idle
        self.springs = Springs(motion.law)
        self._compile()
        self.p = motion.momenta(self.q, self.v)
        kinetic, potential = self._energy()
        self._first, self._largest = kinetic + potential, kinetic
        self._warn_of_dampers()

    def _warn_of_dampers(self) -> None:
        """Warn of dampers that are too fast for the step: forces at its middle only change the sign of the velocities.

        Dry friction is ignored: its slope is steep only at rest, where velocities are small.
        """
        less, more = (self.motion.torque(self.t, self.q, np.full(self.nv, 1.0 + s * NUDGE)) for s in (-1, 1))
        rate = self._quickest(np.maximum(less - more, 0.0) / (2 * NUDGE))
        if self.h * rate > 2 * self.parts:
            warn_caller(
                f"the quickest dampers act in {1 / rate:.2g} s, and steps of {self.h:g} s do not resolve them: some "
                f"velocities will alternate. Take steps of {2 * self.parts / rate:.2g} s, or use esdirk4, trbdf2 or "
                "implicit-euler", StiffnessWarning,
            )  # fmt: skip

    def _quickest(self, gain: Array) -> float:
        """The largest eigenvalue of M^-1 diag(gain)."""
        x = np.ones(self.nv)
        for _ in range(POWERS if gain.any() else 0):
            x = self.motion.solve(self.q, gain * x / sqrt(x.dot(x)))
        return sqrt(x.dot(x)) if gain.any() else 0.0

    def _compile(self) -> None:
        """Compile the programs of a step."""
        begin, end = mechanics.begin, mechanics.end
        if self.driven:
            begin, end = mechanics.begin_driven, mechanics.end_driven
        self._begin, self._end = (self._compiled(algorithm, self.options) for algorithm in (begin, end))
        self._leave, self._arrive = (self._compiled(algorithm) for algorithm in (mechanics.leave, mechanics.arrive))

    @property
    def options(self) -> tuple[str, ...]:
        """The options of an iteration: the stiffness and the damping of forces."""
        return ("added_inertia",) if self.driven else ()

    def _compiled(self, algorithm: Algorithm, options: Sequence[str] = ()) -> Program:

        return compile_program(algorithm, self.motion.model, options=options)

    def from_beginning(self, t: float, h: float, x: Array) -> Array:
        """Take a step from t with the Lagrangian at its beginning; return its velocity; x is the initial guess."""
        x = self._velocity(self._begin, t, h, x)
        impulse = self._impulse(t, h, x)
        self.p = self._leave(self.q, x, self.p + impulse, np.full(self.nv, h)) + impulse
        self.q[:] = self.motion.coordinates.move(self.q, h * x)
        return x

    def to_end(self, t: float, h: float, x: Array) -> Array:
        """Take a step from t with the Lagrangian at its end; return its velocity; x is the initial guess."""
        x = self._velocity(self._end, t, h, x)
        impulse = self._impulse(t, h, x)
        self.q[:] = self.motion.coordinates.move(self.q, h * x)
        self.p = self._arrive(self.q, x, self.p + impulse, np.full(self.nv, h)) + impulse
        return x

    def _felt(self, t: float, q: Array, v: Array) -> Array:
        """All forces except the kicks, as torques at the joints."""
        return self.steady(t, q, v)[TORQUE] + self.motion.felt_loads(t, q, v)

    def pull(self, t: float) -> Array | float:
        """The torques of the kicks, the forces that depend only on t and q."""
        if not self.kicks:
            return 0.0
        before, q, tau = self._kicked
        if before != t or not np.array_equal(q, self.q):  # the end of a step is the beginning of the next
            self.evaluations += 1
            tau = called(self.kicks, t, self.q[None], self.v[None], slopes=False, alone=True)[OTHERS, 0]
            self._kicked = t, self.q.copy(), tau
        return tau

    def kick(self, t: float, h: float) -> None:
        """Add the impulse of the forces that depend only on t and q."""
        self.p = self.p + h * self.pull(t)

    def guess(self, x: Array, h: float) -> Array:
        """A guess for the velocity after the time h; under forces, which may be stiff, it is the last velocity."""
        return x if self.driven else x + h * self.a

    def _velocity(self, iteration: Program, t: float, h: float, x: Array) -> Array:
        """The velocity of a step, by an iteration (q, x, p, h) -> improved x."""
        q, p, hs = self.q, self.p, np.full(self.nv, h)
        if not self.driven:
            return self._settled(lambda x: iteration(q, x, p, hs), x, t)

        def better(x: Array) -> Array:
            self.evaluations += 1
            middle = t + h / 2, self.motion.coordinates.move(q, h / 2 * x), x
            stiffness, damping = self.steady(*middle)[1:]
            return iteration(q, x, p + h / 2 * self._felt(*middle), hs, h / 2 * damping + h**2 / 4 * stiffness)

        return self._settled(better, x, t)

    def _settled(self, update: Callable[[Array], Array], x: Array, t: float) -> Array:
        found = fixed_point(update, x)
        if found is None:
            raise SingularError(f"the implicit step at t = {t:.6g} does not settle. {self._remedy()}")
        return found

    def _impulse(self, t: float, h: float, x: Array) -> Array | float:
        """h/2 tau, at the middle of a step."""
        if not self.driven:
            return 0.0
        return h / 2 * self._felt(t + h / 2, self.motion.coordinates.move(self.q, h / 2 * x), x)

    def finish(self, t: float) -> None:
        """Compute v and a from q and p, and check the energy from time to time."""
        self.v[:] = self.motion.solve(self.q, self.p)
        if self.every_row:
            self.a[:] = self.acceleration(t, self.q, self.v)

        if self.springs.are_all and self.driven and self.count % CHECKED == CHECKED - 1:
            self._check_energy(t)

    def _energy(self) -> tuple[float, float]:
        """The kinetic energy, and the potential energy of gravity and springs."""
        return float(dynamics.kinetic_energy(self.motion.model, self.q, self.v)), self._potential(self.q)

    def _potential(self, q: Array) -> float:
        """The potential energy of gravity and springs."""
        return float(dynamics.potential_energy(self.motion.model, q)) + self.springs.energy(q)

    def _check_energy(self, t: float) -> None:
        """Raise if the machine has gained energy, although its forces cannot add any."""
        kinetic, potential = self._energy()
        self._largest = max(self._largest, kinetic)
        if kinetic + potential - self._first > GAIN[self.order] * self._largest:
            raise SingularError(
                f"the machine has gained {kinetic + potential - self._first:.3g} J by t = {t:.6g}: the step of "
                f"{self.h:g} s is too long. {self._remedy()}"
            )

    def _remedy(self) -> str:
        """Advice for a step that is too long, for the springs or for the motion."""
        square = self._quickest(self.motion.slopes(self.t, self.q, self.v)[0])
        period = 2 * pi / sqrt(square) if square else inf
        if self.h < period / 4:
            return "Take smaller steps"
        return (
            f"The quickest springs swing in {period:.2g} s: take steps of a quarter of that, or use midpoint, which "
            "keeps the energy at any step, or esdirk4 or trbdf2, which damp what they do not resolve"
        )

    def memory(self) -> Memory:
        return super().memory() | {"p": self.p, "energy": np.array([self._first, self._largest])}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.p = memory["p"].copy()
        if "energy" in memory:
            self._first, self._largest = memory["energy"].tolist()


class SymplecticEuler(Symplectic):
    """The symplectic Euler method, order 1: a kick, p <- p + h dL/dq(q, x), then a drift, q <- q [+] h x.

    For constant M this is v <- v + h a, q <- q [+] h v, the usual method of games and robot simulators. If M is not
    constant, that usual method gains or loses energy steadily.
    """

    order = 1

    def advance(self, h: float) -> None:
        self.kick(self.t, h)
        self.from_beginning(self.t, h, self.guess(self.v, h))
        self.finish(self.t + h)


class StoermerVerlet(Symplectic):
    """Drift - kick - drift, order 2: half a step to its end, half a step from there."""

    order, parts = 2, 2

    def advance(self, h: float) -> None:
        x = self.to_end(self.t, h / 2, self.v)
        self.kick(self.t + h / 2, h)
        self.from_beginning(self.t + h / 2, h / 2, self.guess(x, h))
        self.finish(self.t + h)


class Variational(Symplectic):
    """Kick - drift - kick, order 2: half a step from its beginning, half a step to its end."""

    order, parts = 2, 2

    def advance(self, h: float) -> None:
        self.kick(self.t, h / 2)
        x = self.from_beginning(self.t, h / 2, self.guess(self.v, h / 2))
        self.to_end(self.t + h / 2, h / 2, x)
        self.kick(self.t + h, h / 2)
        self.finish(self.t + h)


class EnergyMidpoint(Symplectic):
    """The implicit midpoint rule, order 2, with energy correction: for springs of any stiffness, at any step.

    The rule itself is symplectic, and stable for springs that it does not resolve. Its energy error per step
    (mechanical, elastic, and the work of other forces) is O(h^3). Dampers with one coefficient, at all joints except
    free ones, remove it. A step whose equations do not converge is taken in two halves.
    """

    order = 2

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings)
        self.x, self.energy = self.v.copy(), self._first  # the velocity of the last step; the correct energy
        self.dampers = np.ones(self.nv)
        for joint, _, freedoms in motion.model.joint_groups:
            if joint.nv == 6:
                self.dampers[freedoms] = 0.0

    def _compile(self) -> None:
        self._middle = self._compiled(mechanics.middle, self.options)
        self._rebound = self._compiled(mechanics.rebound)

    def advance(self, h: float) -> None:
        self.kick(self.t, h / 2)
        self._divided(self.t, h, HALVINGS)
        self.kick(self.t + h, h / 2)
        self.finish(self.t + h)

    def _divided(self, t: float, h: float, halvings: int) -> None:
        """Take a step, or its two halves."""
        if self._settles(t, h):
            return
        if not halvings:
            raise SingularError(f"the implicit step at t = {t:.6g} does not settle in {h:.2g} s. Take smaller steps")
        self._divided(t, h / 2, halvings - 1)
        self._divided(t + h / 2, h / 2, halvings - 1)

    def _settles(self, t: float, h: float) -> bool:
        """Take a step if its equations converge; return whether they do."""
        x, taken, least = self.x, None, inf
        damping, before = 0.0, (0.0, 0.0)  # the coefficient of the dampers; the last one, and its excess energy
        for _ in range(ENERGY_ROUNDS):
            found = fixed_point(partial(self._better, t, h, damping), x)
            if found is None:
                break
            x = found
            q, p, wanted = self._after(t, h, x, damping)
            kinetic, potential = p.dot(self.motion.solve(q, p)) / 2, self._potential(q)
            excess, taking = kinetic + potential - wanted, h * (self.dampers * x).dot(x)
            size = kinetic + abs(potential) + abs(wanted)
            if abs(excess) < least:
                taken, least = (x, q, p, wanted), abs(excess) if taking > 0 else 0.0
            if abs(excess) <= EXACT * size or not taking > 0:
                break
            if damping != before[0]:
                taking = (excess - before[1]) / (before[0] - damping)
                if not taking:
                    break
            before = damping, excess
            damping += excess / taking
        if taken is None or least > max(CLOSE * kinetic, ROUNDED * size):
            return False
        self.x, self.q[:], self.p, self.energy = taken
        return True

    def kick(self, t: float, h: float) -> None:
        kinetic = self._kinetic() if self.kicks else 0.0
        super().kick(t, h)
        self.energy += self._kinetic() - kinetic if self.kicks else 0.0

    def _kinetic(self) -> float:
        return float(self.p.dot(self.motion.solve(self.q, self.p))) / 2

    def _middle_of(self, t: float, h: float, x: Array, damping: float) -> tuple[Array, Array]:
        """q and the torques at the middle of a step."""
        q = self.motion.coordinates.move(self.q, h / 2 * x)
        return q, self._felt(t + h / 2, q, x) - damping * self.dampers * x

    def _better(self, t: float, h: float, damping: float, x: Array) -> Array:
        """The iteration for the velocity of a step."""
        q, tau = self._middle_of(t, h, x, damping)
        self.evaluations += 1
        given = [q, x, self.p, np.full(self.nv, h / 2), h / 2 * tau]
        if self.driven:
            _, stiffness, slope = self.steady(t + h / 2, q, x)
            given.append(h / 2 * slope + h**2 / 4 * stiffness)
        return self._middle(*given)

    def _after(self, t: float, h: float, x: Array, damping: float) -> tuple[Array, Array, float]:
        """q and p after a step, and the correct energy."""
        q, tau = self._middle_of(t, h, x, damping)
        p = self._rebound(q, x, self.p, np.full(self.nv, h / 2), h / 2 * tau)
        others = tau + damping * self.dampers * x - self.springs.torques(q)
        return self.motion.coordinates.move(self.q, h * x), p, self.energy + h * float(x.dot(others))

    def memory(self) -> Memory:
        return super().memory() | {"x": self.x, "wanted": np.array([self.energy])}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.x, self.energy = memory["x"].copy(), float(memory["wanted"][0])


def fixed_point(update: Callable[[Array], Array], x: Array) -> Array | None:
    """The fixed point x = update(x), or None if the iteration does not converge.

    It has converged if x changes only by rounding, or if its changes are small and no longer shrink.
    """
    last, best, idle = 0.0, np.inf, 0
    for _ in range(ITERATIONS):
        x, before = update(x), x
        step = x - before
        change = sqrt(step.dot(step) / (1 + x.dot(x)))
        if not change < inf:
            return None
        # changes shrink in proportion: the next one would be change^2 / last
        if change * change <= SETTLED * max(change, last) or last <= change <= NEARLY:
            return x
        # the velocities of long chains have larger rounding errors, at which their changes stop shrinking
        idle = 0 if change < best / 2 else idle + 1
        if idle >= PATIENCE and change <= max(CLOSE, min(CLOSE_PER_FREEDOM * len(x), FAR)):
            return x
        if idle >= HOPELESS:
            return None
        last, best = change, min(best, change)
    return None
