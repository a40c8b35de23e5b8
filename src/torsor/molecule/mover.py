"""The steps of torsion-angle dynamics for a batch of replicas. A replica that fails does not affect the others.

The energy of a replica at the temperature T is

    H = p^T M(q)^-1 p / 2 + U(q) + (kT/2) (log det M(q) - log det G(q)),

where the last term is Fixman's potential, if it is on. Rigid bonds and angles would give configurations the weight
sqrt(det M); Fixman's potential removes it, so torsions have the distribution exp(-U/kT) (M. Fixman, PNAS 71, 1974).
sqrt(det G) is the volume element of positions (`tree.Volume`): soft angles and lengths have the distribution
exp(-U/kT) r^2 sin theta. Closed S-S bonds add the weight det(G M^-1 G^T)^(1/2), which is kept (`closures.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any

import numpy as np

from torsor.algorithms import articulated, square_factor
from torsor.compiler.derivative import log_det_gradient
from torsor.dynamics.points import looped
from torsor.errors import ArgumentError, ModelError
from torsor.molecule.closures import Closures
from torsor.molecule.forcefields import Potential
from torsor.molecule.molecule import Torsions, nearest_atoms
from torsor.molecule.structure import Array
from torsor.motion.rattle import Drift, Drifted
from torsor.validate import real_array


@dataclass(frozen=True)
class Forces:
    """U (B,), its torques tau (B, nv), and the gradient (B, nv) of log det M - log det G, at configurations."""

    U: Array
    tau: Array
    gradient: Array


@dataclass(frozen=True)
class Walkers:
    """Configurations, momenta, guesses of mean velocities, and the forces there.

    lag    the mean velocity of the last drift minus the velocity at its start
    """

    q: Array
    p: Array
    x: Array
    at: Forces
    lag: Array

    def where(self, chosen: Array, other: Walkers) -> Walkers:
        """These states where `chosen` (B,), else the others."""
        return self if chosen.all() else _merged(chosen, self, other)

    def take(self, order: Array) -> Walkers:
        """The rows in another order."""
        at = Forces(*(getattr(self.at, f.name)[order] for f in fields(Forces)))
        return Walkers(self.q[order], self.p[order], self.x[order], at, self.lag[order])

    def memory(self) -> dict[str, Array]:
        """All numbers, by name."""
        own = {"q": self.q, "p": self.p, "x": self.x, "lag": self.lag}
        return own | {f.name: getattr(self.at, f.name) for f in fields(Forces)}

    @classmethod
    def recalled(cls, memory: dict[str, Array]) -> Walkers:
        at = Forces(*(memory[f.name].copy() for f in fields(Forces)))
        return cls(memory["q"].copy(), memory["p"].copy(), memory["x"].copy(), at, memory["lag"].copy())


def _merged(chosen: Array, one: Any, other: Any) -> Any:
    if not isinstance(one, np.ndarray):
        return type(one)(*(_merged(chosen, getattr(one, f.name), getattr(other, f.name)) for f in fields(one)))
    return np.where(chosen.reshape(-1, *(1,) * (one.ndim - 1)), one, other)


class Mover:
    """Move replicas of one tree, each at its own temperature.

    kT           (B,) kJ/mol
    force_calls  how many states the potential has computed
    unsettled    how many steps did not converge, or gave numbers that are not finite
    """

    def __init__(self, torsions: Torsions, potential: Potential | None, kT: Array, fixman: bool = True) -> None:
        self.torsions, self.potential, self.fixman = torsions, potential, fixman
        self.kT = kT
        self.model = torsions.model
        self.drift, self.near = Drift(self.model), Drift(self.model, near=True)
        self.closures = Closures(torsions)
        self.force_calls = self.unsettled = 0
        self._noise, self._solve, self._log_det, self._gradient = (
            looped(a, self.model)
            for a in (square_factor.apply, articulated.mass_solve, articulated.log_det, log_det_gradient)
        )

    @property
    def kT(self) -> Array:
        return self._kT

    @kT.setter
    def kT(self, kT: Array) -> None:
        self._kT, self._half_kT = kT, kT[:, None] / 2

    # ---- forces ----

    def at(self, q: Array) -> Forces:
        """The forces at configurations (B, nq), by one call of the potential."""
        if self.potential is None:
            U, tau = np.zeros(len(q)), np.zeros((len(q), self.model.nv))
        else:
            self.force_calls += len(q)
            U, f = self.potential(self.torsions.positions(q))
            tau = self.torsions.points.torques(q, f)
        return Forces(U, tau, self._slope(q) if self.fixman else np.zeros_like(tau))

    def log_det(self, q: Array) -> Array:
        """log det M - log det G, (B,); zero without Fixman's potential."""
        if not self.fixman:
            return np.zeros(len(q))
        return self._log_det(q) - self.torsions.volume(q)[0] if self.torsions.volume else self._log_det(q)

    def _slope(self, q: Array) -> Array:
        """The gradient of `log_det`."""
        gradient = self._gradient(q)
        if self.torsions.volume:
            _, (columns, slopes) = self.torsions.volume(q)
            gradient[:, columns] -= slopes
        return gradient

    def total(self, at: Forces) -> Array:
        """All torques, including those of Fixman's potential."""
        return at.tau - self._half_kT * at.gradient if self.fixman else at.tau

    def velocities(self, s: Walkers) -> Array:
        return self._solve(s.q, s.p)

    def kinetic(self, s: Walkers) -> Array:
        """(B,) p^T M^-1 p / 2"""
        return (s.p * self.velocities(s)).sum(-1) / 2

    def energy(self, s: Walkers) -> Array:
        """(B,) H, with Fixman's potential."""
        return self.kinetic(s) + s.at.U + self.kT / 2 * self.log_det(s.q)

    # ---- beginnings ----

    def noise(self, q: Array, generators: Sequence[np.random.Generator]) -> Array:
        """Momenta with covariance M(q), (B, nv), projected so that they do not open closed bonds."""
        found = self._noise(q, np.array([rng.standard_normal(self.model.nv) for rng in generators]))
        return self.closures.projected(q, found) if self.closures else found

    def refreshed(self, s: Walkers, generators: Sequence[np.random.Generator]) -> Walkers:
        """The same configurations with momenta redrawn at the temperature."""
        p = np.sqrt(self.kT)[:, None] * self.noise(s.q, generators)
        return replace(s, p=p, x=self._solve(s.q, p))

    def start(self, q: Array, generators: Sequence[np.random.Generator]) -> Walkers:
        """Walkers at configurations, with random momenta; raises if forces are not finite."""
        at = self.at(q)
        good = np.isfinite(at.U) & np.isfinite(at.tau).all(-1)
        if not good.all():
            k = int(np.argmin(good))
            where = nearest_atoms(self.torsions.molecule, self.torsions.positions(q[k]))
            raise ModelError(
                f"replica {k} has no finite forces at its start: {where}. Begin at a minimum: molecule.minimised()"
            )
        zero = np.zeros((len(q), self.model.nv))
        return self.refreshed(Walkers(q.copy(), zero, zero, at, zero), generators)

    # ---- steps ----

    def drifted(self, s: Walkers, h: Array | float, near: bool = False) -> tuple[Walkers, Array]:
        """Free motion for h, and which replicas converged; `near`: the guess s.x includes the acceleration."""
        if self.closures:
            q, p, x, settled = self.closures.drifted(s.q, s.p, s.x, h, self.drift)
        else:
            q, p, x, settled = (self.near if near else self.drift)(s.q, s.p, s.x, h)
            if np.count_nonzero(settled) < settled.size:
                self._halve(s, h, Drifted(q, p, x, settled))
        return Walkers(q, p, x, s.at, s.lag), settled

    def _halve(self, s: Walkers, h: Array | float, found: Drifted) -> None:
        """Two drifts of half the length for replicas whose drift has no solution, in place.

        Where bodies turn fast, the equations of a step have a fold and no solution beyond it. Exact sampling needs a
        reversible rule: the halves are used only if the whole drift back from their end has no solution either. Other
        replicas fail.
        """
        rows = np.flatnonzero(~found.settled & np.isfinite(s.p).all(-1))
        half = np.broadcast_to(np.asarray(h, float), found.settled.shape)[rows] / 2
        one = self.drift(s.q[rows], s.p[rows], s.x[rows], half)
        two = self.drift(one.q, one.p, one.x, half)
        back = self.drift(two.q, -two.p, -two.x, 2 * half)
        good = one.settled & two.settled & ~back.settled
        for whole, part in zip(found[:3], two[:3]):
            whole[rows[good]] = part[good]
        found.settled[rows[good]] = True

    def kicked(self, s: Walkers, h: Array | float) -> Walkers:
        return Walkers(s.q, s.p + (h if isinstance(h, float) else h[:, None]) * self.total(s.at), s.x, s.at, s.lag)

    def step(self, s: Walkers, h: Array | float) -> tuple[Walkers, Array]:
        """Kick - drift - kick: one call of the potential. Replicas that fail stay where they were."""
        moved, good = self.drifted(self.kicked(s, h / 2), h)
        return self._landed(s, moved, good, h)

    def langevin_step(self, s: Walkers, h: float, keep: float,
                      generators: Sequence[np.random.Generator]) -> tuple[Walkers, Array]:  # fmt: skip
        """BAOAB: kick, half a drift, p <- keep p + noise, half a drift, kick (B. Leimkuhler, C. Matthews, 2013)."""
        half, moved = h / 2, self.kicked(s, h / 2)
        moved, good = self._lagged(moved, half)
        p = keep * moved.p + np.sqrt(self._half_kT * (2 * (1 - keep**2))) * self.noise(moved.q, generators)
        moved, again = self._lagged(Walkers(moved.q, p, moved.x, moved.at, moved.lag), half)
        return self._landed(s, moved, good & again, h)

    def _lagged(self, s: Walkers, h: float) -> tuple[Walkers, Array]:
        """A drift whose mean velocity is guessed as the velocity plus the lag of the drift before it."""
        v = self.velocities(s)
        moved, good = self.drifted(Walkers(s.q, s.p, v + s.lag, s.at, s.lag), h, near=True)
        return Walkers(moved.q, moved.p, moved.x, s.at, moved.x - v), good

    def _landed(self, before: Walkers, moved: Walkers, good: Array, h: Array | float) -> tuple[Walkers, Array]:
        """The forces at the new configurations, and the second kick."""
        settled = np.count_nonzero(good) == good.size
        # the potential does not get configurations of drifts that failed
        q = moved.q if settled else np.where(good[:, None], moved.q, before.q)
        at = self.at(q)
        after = self.kicked(Walkers(moved.q, moved.p, moved.x, at, moved.lag), h / 2)
        if self.closures:
            after = replace(after, p=self.closures.projected(q, after.p))
        if settled and isfinite(at.U.sum() + after.p.sum()):
            return after, good
        good = good & np.isfinite(at.U) & np.isfinite(after.p).all(-1)
        self.unsettled += int((~good).sum())
        return after.where(good, before), good


def temperatures(temperature: Any, replicas: int) -> Array:
    """(B,) kelvin."""
    found = np.broadcast_to(real_array("temperature", temperature, (), (1,), (replicas,)), (replicas,)).copy()
    if not (found > 0).all():
        raise ArgumentError(
            f"a temperature must be greater than 0 kelvin, not {temperature}: to come to rest use molecule.minimised()"
        )
    return found
