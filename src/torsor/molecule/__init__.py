"""Molecules as torsion trees: files and force fields, torsion-angle dynamics, Monte Carlo, output.

Units: nm, ps, amu (dalton), kJ/mol, K. Files and force fields need the extra `torsor[molecule]`.

    load, from_sequence, from_openmm    a `Molecule`; its `torsions()` is a tree of rigid bodies
    dynamics, langevin, hmc, gibbs, tempering, anneal    move the tree; the result is a `MolecularRun`
    polymers                            chains without a force field
"""

from torsor.molecule import polymers
from torsor.molecule.forcefields import BOLTZMANN, OpenMMPotential
from torsor.molecule.gibbs import gibbs
from torsor.molecule.molecule import Molecule, Torsions, from_openmm, from_sequence, load
from torsor.molecule.results import MolecularRun
from torsor.molecule.run import Setting, anneal, dynamics, hmc, langevin, tempering

__all__ = [
    "BOLTZMANN", "MolecularRun", "Molecule", "OpenMMPotential", "Setting", "Torsions", "anneal", "dynamics",
    "from_openmm", "from_sequence", "gibbs", "hmc", "langevin", "load", "polymers", "tempering",
]  # fmt: skip
