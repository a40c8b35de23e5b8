"""Ways to sample a molecule: each moves replicas from one frame to the next and counts what happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import ClassVar

import numpy as np

from torsor.ensembles.exchange import Replicas, Tempering
from torsor.molecule.mover import Mover, Walkers
from torsor.molecule.structure import Array
from torsor.validate import integer, number

Generators = Sequence[np.random.Generator]
Counts = dict[str, float]


@dataclass(frozen=True)
class Dynamics:
    """Constant energy: kick - drift - kick.

    step    ps
    every   steps per frame
    """

    name: ClassVar[str] = "nve"
    step: float
    every: int

    def __post_init__(self) -> None:
        number("step", self.step, above=0)
        integer("every", self.every, least=1)

    @property
    def interval(self) -> float:
        """ps between frames."""
        return self.step * self.every

    def frame(self, mover: Mover, s: Walkers, generators: Generators) -> tuple[Walkers, Counts]:
        for _ in range(self.every):
            s, good = mover.step(s, self.step)
            if not good.all():  # with the same momenta it would repeat the step that failed
                s = mover.refreshed(s, generators).where(~good, s)
        return s, {"steps": self.every}


@dataclass(frozen=True)
class Langevin(Dynamics):
    """Langevin dynamics by BAOAB; friction in 1/ps."""

    name = "langevin"
    friction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        number("friction", self.friction, above=0)

    def frame(self, mover: Mover, s: Walkers, generators: Generators) -> tuple[Walkers, Counts]:
        keep = exp(-self.friction * self.step)
        for _ in range(self.every):
            s, good = mover.langevin_step(s, self.step, keep, generators)
            if not good.all():
                s = mover.refreshed(s, generators).where(~good, s)
        return s, {"steps": self.every}


@dataclass(frozen=True)
class HybridMonteCarlo(Dynamics):
    """Hybrid Monte Carlo: trajectories with random momenta, accepted or rejected by their energy.

    steps    per trajectory;  `every` counts trajectories
    jitter   the largest relative difference between the step of a trajectory and `step`
    """

    name = "hmc"
    steps: int = 10
    jitter: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("steps", self.steps, least=1)
        if not 0 <= number("jitter", self.jitter) < 1:
            number("jitter", self.jitter, above=-1.0, least=0.0)

    @property
    def interval(self) -> float:
        return self.step * self.every * self.steps

    def frame(self, mover: Mover, s: Walkers, generators: Generators) -> tuple[Walkers, Counts]:
        counts: Counts = {"trajectories": 0, "accepted": 0.0, "unsettled": 0, "exp(-dH/kT)": 0.0}
        for _ in range(self.every):
            s, accepted, weight = self.draw(mover, s, generators)
            counts["trajectories"] += len(accepted)
            counts["accepted"] += float(accepted.sum())
            counts["unsettled"] += int((weight == 0).sum())
            counts["exp(-dH/kT)"] += float(weight.sum())
        return s, counts | {"steps": self.every * self.steps}

    def draw(self, mover: Mover, s: Walkers, generators: Generators) -> tuple[Walkers, Array, Array]:
        """One trajectory: the new states, which were accepted, and exp(-dH/kT), zero where a step did not converge."""
        before = mover.refreshed(s, generators)
        draws = np.array([rng.random(2) for rng in generators])
        h = self.step * (1 + self.jitter * (2 * draws[:, 0] - 1))
        after, settled = before, np.ones(len(h), bool)
        for _ in range(self.steps):
            after, good = mover.step(after, h)
            settled &= good
        rise = mover.energy(after) - mover.energy(before)
        weight = np.where(settled & np.isfinite(rise), np.exp(-np.clip(rise / mover.kT, -700, 700)), 0.0)
        accepted = draws[:, 1] < weight
        return after.where(accepted, before), accepted, weight


@dataclass(frozen=True)
class Ladder:
    """Parallel tempering: another method at several temperatures, with exchanges between neighbours after frames.

    The rule is that of ensembles (`torsor.ensembles.exchange.Tempering`). It compares U alone: Fixman's potential is
    (kT/2) log det M, so its weight is the same at every temperature and cancels.
    """

    method: Dynamics
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method.name} with tempering"

    @property
    def step(self) -> float:
        return self.method.step

    @property
    def interval(self) -> float:
        return self.method.interval

    def frame(self, mover: Mover, s: Walkers, generators: Generators) -> tuple[Walkers, Counts]:
        s, counts = self.method.frame(mover, s, generators)
        rule = Tempering(mover.kT, lambda machines, q: s.at.U[None])
        count = int(generators[0].integers(2))  # even or odd pairs
        rng = np.random.default_rng(generators[0].integers(2**63))
        found = Replicas(0.0, count, s.q[None], s.p[None], mover.model, [rng])
        (q,), (v,) = rule(found)
        order = np.array([next(k for k, old in enumerate(s.q) if np.array_equal(old, new)) for new in q])
        s = s.take(order)
        swapped = float((order != np.arange(len(order))).sum()) / 2
        s = mover.refreshed(replace(s, x=v), generators)
        pairs = len(range(count, len(order) - 1, 2))
        return s, counts | {"exchanges": swapped, "exchanges tried": pairs}
