"""Gibbs sampling of a flexible molecule: hybrid Monte Carlo of torsions alternates with Langevin dynamics of all atoms.

Rigid bonds and angles restrict the torsions; this matters more than Fixman's potential. Here they are rigid only while
torsions move: at given bonds and angles, torsions have the density exp(-U/kT), which hybrid Monte Carlo with Fixman's
potential samples. In between, all atoms move by OpenMM's Langevin dynamics with short steps, and the tree is rebuilt
from their positions. Both moves preserve the distribution of the flexible molecule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torsor.errors import ArgumentError
from torsor.molecule.forcefields import BOLTZMANN, openmm
from torsor.molecule.methods import HybridMonteCarlo
from torsor.molecule.molecule import Molecule, Torsions
from torsor.molecule.mover import Mover, temperatures
from torsor.molecule.results import MolecularRun
from torsor.molecule.run import HMC_STEP, Setting, generators
from torsor.molecule.structure import Array
from torsor.molecule.tree import torsion_tree
from torsor.validate import integer, number

WIDE = 2**31 - 1  # the largest seed of OpenMM


class Cartesian:
    """Langevin dynamics of all atoms of a molecule, without constraints, by OpenMM."""

    def __init__(self, molecule: Molecule, step: float, friction: float, platform: str | None) -> None:
        mm = openmm()
        if molecule.system is None:
            raise ArgumentError(f"{molecule.name} has no OpenMM System: the atoms cannot move by themselves")
        self.integrator = mm.LangevinMiddleIntegrator(300.0, friction, step)
        found = (mm.Platform.getPlatformByName(platform),) if platform else ()
        self.context = mm.Context(molecule.system, self.integrator, *found)

    def __call__(self, places: Array, kelvin: float, steps: int, rng: np.random.Generator) -> Array:
        """Positions after some steps that start with random velocities."""
        self.integrator.setTemperature(kelvin)
        self.integrator.setRandomNumberSeed(int(rng.integers(1, WIDE)))
        self.context.reinitialize()  # the seed takes effect
        self.context.setPositions(places)
        self.context.setVelocitiesToTemperature(kelvin, int(rng.integers(1, WIDE)))
        self.integrator.step(steps)
        return np.array(self.context.getState(getPositions=True).getPositions(asNumpy=True)._value, float)


def gibbs(torsions: Torsions, draws: int, *, step: float = HMC_STEP, steps: int = 10, jitter: float = 0.2,
          trajectories: int = 1, cartesian: int = 50, cartesian_step: float = 0.0005, friction: float = 5.0,
          **setting: Any) -> MolecularRun:  # fmt: skip
    """Sample a flexible molecule: a draw is trajectories of torsions, then Cartesian Langevin dynamics.

    Parameters
    ----------
    torsions : Torsions
        The molecule, and which torsions move far.
    draws : int
        Per replica.
    step : float, default 0.012
        Step of a trajectory of torsions, in ps.
    steps : int, default 10
        Steps per trajectory of torsions.
    jitter : float, default 0.2
        The largest relative difference between the step of a trajectory and `step`.
    trajectories : int, default 1
        Trajectories of torsions per draw.
    cartesian : int, default 50
        Cartesian steps per draw.
    cartesian_step : float, default 0.0005
        Length of a Cartesian step, in ps.
    friction : float, default 5
        Of the Cartesian dynamics, in 1/ps.
    **setting : object
        The keywords of `Setting`; file, resume and start are not among them.

    Returns
    -------
    run : MolecularRun
        With positions, but without q.

    Raises
    ------
    ArgumentError
        There is no force field, or `file` or `start` is given.

    Examples
    --------
    >>> from torsor import molecule
    >>> tree = molecule.from_sequence("ACE-ALA-NME").minimised().torsions()
    >>> molecule.gibbs(tree, 2).positions.shape
    (3, 1, 22, 3)
    """
    given = Setting(**setting)
    if given.file is not None or given.start is not None or given.ramp:
        raise ArgumentError("gibbs takes no file, start or ramp: bonds and angles change, so there is no q")
    integer("draws", draws, least=1)
    integer("cartesian", cartesian, least=1)
    method = HybridMonteCarlo(step, 1, steps, jitter)
    kelvin = temperatures(given.temperature, given.replicas)
    molecule = torsions.molecule
    potential = given.potential or molecule.potential(given.platform, given.threads)
    move = Cartesian(molecule, number("cartesian_step", cartesian_step, above=0), friction, given.platform)
    places = np.tile(molecule.positions, (given.replicas, 1, 1))
    frames, energies, counts = [places.copy()], [potential(places)[0]], {"trajectories": 0.0, "accepted": 0.0}
    for draw in range(1, draws + 1):
        energy = np.empty(given.replicas)
        for r, rng in enumerate(generators(given, draw)):
            tree = at_places(torsions, move(places[r], kelvin[r], cartesian, rng))
            mover = Mover(tree, potential, BOLTZMANN * kelvin[r : r + 1], given.fixman)
            walker = mover.start(tree.model.neutral()[None], [rng])
            for _ in range(trajectories):
                walker, accepted, _ = method.draw(mover, walker, [rng])
                counts["trajectories"] += 1
                counts["accepted"] += float(accepted.sum())
            places[r], energy[r] = tree.positions(walker.q[0]), walker.at.U[0]
        frames.append(places.copy())
        energies.append(energy)
        if given.progress is not None:
            given.progress(draw, draws)
    t = np.arange(draws + 1) * (cartesian * cartesian_step + trajectories * steps * step)
    return _result(torsions, t, frames, energies, counts, given)


def at_places(torsions: Torsions, places: Array) -> Torsions:
    """The same torsions for other positions, with the bonds and angles of these positions."""
    molecule = replace(torsions.molecule, positions=places)
    structure = molecule.structure.without(torsions.cut)
    tree = torsion_tree(structure, places, molecule.mass, torsions.soft, name=torsions.model.name)
    return replace(torsions, molecule=molecule, model=tree.model, points=tree.points, volume=tree.volume)


def _result(torsions: Torsions, t: Array, frames: Sequence[Array], energies: Sequence[Array],
            counts: dict[str, float], given: Setting) -> MolecularRun:  # fmt: skip
    none = np.full((len(t), given.replicas), np.nan)
    about = {"method": "gibbs", "seed": given.seed, "fixman": given.fixman}
    return MolecularRun(
        torsions,
        t,
        np.empty((len(t), given.replicas, 0)),
        np.array(energies),
        none,
        none,
        counts,
        about,
        np.array(frames),
    )
