"""Force fields of OpenMM by name, and potentials that an OpenMM System computes for many states.

Units: nm, ps, amu (dalton), kJ/mol, K.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from torsor.errors import ArgumentError, ModelError
from torsor.molecule.structure import Array, Structure, from_openmm
from torsor.validate import chosen

BOLTZMANN = 0.00831446261815324  # kJ/mol/K, CODATA 2018 (exact)
FORCE_FIELDS = {"ff14SB": "amber14/protein.ff14SB.xml", "ff19SB": "amber19/protein.ff19SB.xml"}
SOLVENTS = ("vacuum", "obc", "gbn2")
# Bondi radii modified for generalised Born models (nm), and their screening factors: A. Onufriev, D. Bashford,
# D. A. Case, Proteins 55, 383 (2004), and Amber's manual.  Hydrogen's radius is larger if it is bonded to nitrogen.
RADII = {"N": 0.155, "C": 0.17, "O": 0.15, "S": 0.18, "F": 0.15, "P": 0.185, "Cl": 0.17, "H": 0.12}
SCREENING = {"N": 0.79, "C": 0.72, "O": 0.85, "S": 0.96, "H": 0.85, "F": 0.88, "P": 0.86}
ON_NITROGEN, OTHERS, SCREENED = 0.13, 0.15, 0.8


class Potential(Protocol):
    """A potential: energies and forces of many states."""

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Energies (B,) in kJ/mol and forces (B, n, 3) in kJ/mol/nm at positions (B, n, 3) in nm."""
        ...


def openmm() -> Any:
    """The OpenMM package, or an error that says how to get it."""
    try:
        import openmm
        import openmm.app
    except ImportError:
        raise ArgumentError("force fields and files of molecules need OpenMM: pip install 'torsor[molecule]'") from None
    return openmm


def force_field(name: str, solvent: str) -> Any:
    """OpenMM's ForceField of that name, with the parameters of the solvent."""
    app, files = openmm().app, [FORCE_FIELDS[chosen("force field", name, FORCE_FIELDS)]]
    chosen("solvent", solvent, SOLVENTS)
    return app.ForceField(*files, *(["implicit/gbn2.xml"] if solvent == "gbn2" else []))


def system_of(topology: Any, field: Any, solvent: str) -> Any:
    """An OpenMM System without constraints and without cutoff."""
    app = openmm().app
    try:
        system = field.createSystem(topology, nonbondedMethod=app.NoCutoff, constraints=None, removeCMMotion=False)
    except ValueError as error:
        raise ModelError(
            f"the force field cannot describe the molecule: {error}. Leave that residue out of the file, or give an "
            "OpenMM System of your own: molecule.from_openmm(topology, system, positions)"
        ) from None
    if solvent == "obc":
        system.addForce(native_obc(system, from_openmm(topology)))
    return system


def native_obc(system: Any, structure: Structure) -> Any:
    """OpenMM's own OBC2 force, several times as fast as the general force for generalised Born models."""
    mm = openmm()
    force = mm.GBSAOBCForce()
    force.setSolventDielectric(78.5)
    force.setSoluteDielectric(1.0)
    force.setNonbondedMethod(mm.GBSAOBCForce.NoCutoff)
    charges = next(f for f in system.getForces() if isinstance(f, mm.NonbondedForce))
    charges.setReactionFieldDielectric(1.0)
    for atom, element in enumerate(structure.elements):
        radius = RADII.get(element, OTHERS)
        if element == "H" and any(structure.elements[k] == "N" for k in structure.neighbours[atom]):
            radius = ON_NITROGEN
        force.addParticle(charges.getParticleParameters(atom)[0], radius, SCREENING.get(element, SCREENED))
    return force


def masses(system: Any) -> Array:
    """(n,) in amu."""
    return np.array([system.getParticleMass(k)._value for k in range(system.getNumParticles())])


class OpenMMPotential:
    """Compute energies and forces of an OpenMM System, one state after the other, in one context.

    `potential(x)`, x (states, n, 3) in nm, gives energies (states,) in kJ/mol and forces (states, n, 3) in kJ/mol/nm.
    `potential.calls` counts the states computed.

    Parameters
    ----------
    system : openmm.System
        The force field of the molecule.
    platform : str, optional
        Of OpenMM. Default: its fastest. "CPU" computes in single precision, "Reference" in double.
    threads : int, optional
        Of the platform "CPU". Default: all cores.

    Raises
    ------
    ArgumentError
        OpenMM has no such platform here.

    Examples
    --------
    >>> from torsor import molecule
    >>> protein = molecule.from_sequence("ACE-ALA-NME")
    >>> energies, forces = protein.potential("Reference")(protein.positions[None])
    >>> energies.shape, forces.shape
    ((1,), (1, 22, 3))
    """

    def __init__(self, system: Any, platform: str | None = None, threads: int | None = None) -> None:
        mm = openmm()
        self.system, self.calls = system, 0
        self._failure, self._forces = mm.OpenMMException, mm.State.Forces
        try:
            found = (mm.Platform.getPlatformByName(platform),) if platform else ()
        except mm.OpenMMException:
            known = [mm.Platform.getPlatform(k).getName() for k in range(mm.Platform.getNumPlatforms())]
            raise ArgumentError(f"OpenMM has no platform {platform!r} here; it has {', '.join(known)}") from None
        properties: Mapping[str, str] = {"Threads": str(threads)} if platform == "CPU" and threads else {}
        # a context needs an integrator; it never takes a step
        self.context = mm.Context(system, mm.VerletIntegrator(0.001), *found, *((properties,) if properties else ()))

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Energies and forces of many states; NaN where an energy or a force is not finite."""
        energies, forces = np.full(len(x), np.nan), np.full(x.shape, np.nan)
        for k in np.flatnonzero(np.isfinite(x).all((1, 2))):
            energies[k] = self._one(x[k], forces[k])
        self.calls += len(x)
        return energies, forces

    def _one(self, places: Array, forces: Array) -> float:
        """The energy of one state; its forces are written to `forces`."""
        self.context.setPositions(places)
        try:
            state = self.context.getState(energy=True, forces=True)
        except self._failure:  # a force that is not finite
            return np.nan
        # getForces() would take longer than computing the forces of a peptide
        state._getVectorAsNumpy(self._forces, forces)
        return float(state.getPotentialEnergy()._value)
