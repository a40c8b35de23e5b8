"""`Molecule`: atoms, positions, masses and a potential; and `Torsions`: a molecule as a tree of rigid bodies.

Units: nm, ps, amu (dalton), kJ/mol, K; angles in rad unless an argument says degrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from torsor.dynamics.points import Points
from torsor.errors import ArgumentError, ModelError
from torsor.model.model import Model
from torsor.molecule import prepare
from torsor.molecule.forcefields import OpenMMPotential, force_field, masses, openmm, system_of
from torsor.molecule.soft import FLEXIBLE, SoftBond, soft_bonds
from torsor.molecule.structure import Array, Bond, Structure
from torsor.molecule.structure import from_openmm as structure_of
from torsor.molecule.tree import Volume, torsion_tree
from torsor.validate import number, real_array

CLASH = 1e7  # kJ/mol: above this, atoms overlap, and forces overflow single precision
MINIMISED = 10.0  # kJ/mol/nm: the force at which a minimisation ends
BLAMED = 4  # the most atoms named in a message


@dataclass(frozen=True, eq=False)
class Molecule:
    """Hold atoms with their positions and masses, and optionally an OpenMM System as their potential.

    Parameters
    ----------
    structure : Structure
        Atoms, residues and bonds.
    positions : (n, 3) ndarray
        In nm.
    mass : (n,) ndarray
        In amu.
    system : openmm.System, optional
        The force field.
    topology : openmm.app.Topology, optional
        Needed to write output files.
    report : sequence of str, default ()
        What was done to the file, line by line.
    name : str, default "molecule"
        Of the molecule.

    Examples
    --------
    >>> from torsor import molecule
    >>> molecule.from_sequence("ACE-ALA-NME")
    <Molecule ACE-ALA-NME: <22 atoms in 3 residues>, 144.176 amu>
    """

    structure: Structure
    positions: Array
    mass: Array
    system: Any = None
    topology: Any = None
    report: Sequence[str] = ()
    name: str = "molecule"

    def __repr__(self) -> str:
        return f"<Molecule {self.name}: {self.structure!r}, {self.mass.sum():.6g} amu>"

    def potential(self, platform: str | None = None, threads: int | None = None) -> OpenMMPotential:
        """Make the potential on a platform of OpenMM.

        Parameters
        ----------
        platform : str, optional
            As in `OpenMMPotential`.
        threads : int, optional
            As in `OpenMMPotential`.

        Returns
        -------
        potential : OpenMMPotential
            Energies and forces of positions.

        Raises
        ------
        ArgumentError
            The molecule has no force field.
        """
        if self.system is None:
            raise ArgumentError(f"{self.name} has no force field: load it with one, or give potential=...")
        return OpenMMPotential(self.system, platform, threads)

    def energy(self, platform: str | None = None) -> float:
        """Compute the potential energy at its positions.

        Parameters
        ----------
        platform : str, optional
            As in `OpenMMPotential`.

        Returns
        -------
        energy : float
            In kJ/mol.
        """
        return float(self.potential(platform)(self.positions[None])[0][0])

    def minimised(self, tolerance: float = MINIMISED) -> Molecule:
        """Move to a nearby minimum of the potential, all atoms free.

        The minimum is the same in every process, so that a run can be continued. Therefore one thread is used:
        several threads would sum forces in a varying order.

        Parameters
        ----------
        tolerance : float, default 10
            The largest root-mean-square force at the end, in kJ/mol/nm.

        Returns
        -------
        molecule : Molecule
            The same at the minimum.
        """
        mm, potential = openmm(), self.potential("CPU", 1)
        potential.context.setPositions(self.positions)
        try:
            mm.LocalEnergyMinimizer.minimize(potential.context, number("tolerance", tolerance, above=0))
        except mm.OpenMMException:  # forces that are not finite
            where = nearest_atoms(self, self.positions)
            raise ModelError(f"{self.name} cannot be minimised: {where}. Move one of them") from None
        state = potential.context.getState(getPositions=True)
        found = np.array(state.getPositions(asNumpy=True)._value, float)
        return replace(self, positions=found, report=[*self.report, f"minimised to {tolerance:g} kJ/mol/nm"])

    def torsions(self, soft: str = "phi psi omega chi", *, methyl: bool = True, hydroxyl: bool = True,
                 hydrogen_mass: float | None = 4.0, root: str | int = "centroid", share: bool = True
                 ) -> Torsions:  # fmt: skip
        """Make rigid bodies of the molecule, joined by torsions; several molecules are several trees.

        Parameters
        ----------
        soft : str, default "phi psi omega chi"
            Which torsions turn. Rings (and so phi of proline), double bonds and side-chain amides are rigid. S-S bonds
            are cut, and closed again by constraints. With "angle" or "length" among the words, all bonds between heavy
            atoms outside rings also bend or stretch; they need a step of 1 to 4 fs.
        methyl : bool, default True
            Methyl (and ammonium) groups turn.
        hydroxyl : bool, default True
            Hydroxyl groups turn.
        hydrogen_mass : float or None, default 4
            In amu. Hydrogens take this mass from the atoms they are bonded to, so that steps can be longer; None keeps
            all masses. Averages over positions do not change.
        root : str or int, default "centroid"
            "centroid", or the number of an atom: its body becomes the root of its tree.
        share : bool, default True
            Share the masses on an axis between both bodies; M(q) does not depend on this.

        Returns
        -------
        torsions : Torsions
            The tree.

        Examples
        --------
        >>> from torsor import molecule
        >>> peptide = molecule.from_sequence("ACE-ALA-NME")
        >>> peptide.torsions("phi psi", methyl=False).model.nv
        8
        >>> peptide.torsions("phi psi angle").kinds
        {'methyl': 3, 'angle': 8, 'phi': 1, 'psi': 1}
        """
        cut = self.structure.disulfides
        structure = self.structure.without(cut)
        mass = self.mass if hydrogen_mass is None else repartitioned(structure, self.mass, hydrogen_mass)
        chosen = soft_bonds(structure, self.positions, soft, methyl, hydroxyl)
        tree = torsion_tree(structure, self.positions, mass, chosen, root=root, share=share, name=self.name)
        return Torsions(replace(self, mass=mass), tree.model, tree.points, tuple(tree.soft), tuple(cut), tree.volume)

    def save(self, path: str | Path) -> None:
        """Write the positions to a file, by OpenMM.

        Parameters
        ----------
        path : str or Path
            .pdb or .cif.
        """
        from torsor.molecule.output import save_frames

        save_frames(path, self, self.positions[None], np.zeros(1))


@dataclass(frozen=True, eq=False, repr=False)
class Torsions:
    """Hold a molecule as a tree of rigid bodies.

    Parameters
    ----------
    molecule : Molecule
        With the masses of the tree.
    model : Model
        In nm, ps and amu; its neutral configuration is that of the molecule.
    points : Points
        The atoms as points of its bodies: `points.positions(q)` in nm, `points.torques(q, f)`.
    soft : sequence of SoftBond
        The bonds that turn, bend or stretch, with kinds and names.
    cut : sequence of tuple, default ()
        Bonds that the tree leaves out (S-S); constraints close them.
    volume : Volume
        The volume element of soft angles and lengths: log det G of q and its gradient.

    Examples
    --------
    >>> from torsor import molecule
    >>> molecule.polymers.freely_rotating(10)
    Torsions(freely rotating chain of 10, 10 atoms in 8 bodies; nq=14, nv=13)
    """

    molecule: Molecule
    model: Model
    points: Points
    soft: tuple[SoftBond, ...]
    cut: tuple[Bond, ...] = ()
    volume: Volume = field(default_factory=Volume)

    def __repr__(self) -> str:
        one, model = self.molecule, self.model
        return f"Torsions({one.name}, {len(one.mass)} atoms in {model.n} bodies; nq={model.nq}, nv={model.nv})"

    @cached_property
    def kinds(self) -> dict[str, int]:
        """The number of torsions of each kind that turn, and of soft angles and lengths."""
        found: dict[str, int] = {}
        for one in self.soft:
            flexible = [motion for motion in one.motions if motion in FLEXIBLE]
            for kind in [one.kind, *flexible] if one.kind else flexible:
                found[kind] = found.get(kind, 0) + 1
        return found

    def positions(self, q: ArrayLike) -> Array:
        """Compute the positions of the atoms.

        Parameters
        ----------
        q : (..., nq) array_like
            Configurations.

        Returns
        -------
        x : (..., n, 3) ndarray
            In nm.
        """
        return self.points.positions(q)


def repartitioned(structure: Structure, mass: Array, hydrogen_mass: float) -> Array:
    """Masses with heavier hydrogens: each takes the added mass from the heavy atom it is bonded to."""
    number("hydrogen_mass", hydrogen_mass, above=0)
    found = mass.copy()
    for atom, element in enumerate(structure.elements):
        if element == "H":
            heavy = next((k for k in structure.neighbours[atom] if structure.elements[k] != "H"), None)
            if heavy is not None:
                found[heavy] -= hydrogen_mass - mass[atom]
                found[atom] = hydrogen_mass
    if (found <= 0).any():
        k = int(np.argmin(found))
        raise ArgumentError(
            f"hydrogen_mass = {hydrogen_mass:g} leaves {structure.title(k)} a mass of {found[k]:.3g} amu: choose less"
        )
    return found


def load(path: str | Path, *, forcefield: str = "ff14SB", solvent: str = "obc", gaps: str = "refuse") -> Molecule:
    """Load a molecule from a PDB or mmCIF file, and complete it for a force field.

    Parameters
    ----------
    path : str or Path
        .pdb or .cif, also compressed (.gz). Its first model is used. If the force field can take the file as it is,
        nothing is changed. Otherwise modified residues are replaced, water, ions and ligands are left out, missing
        atoms are added, and all hydrogens are placed again; `report` lists every change.
    forcefield : str, default "ff14SB"
        "ff14SB" or "ff19SB".
    solvent : str, default "obc"
        "vacuum", "obc" (OpenMM's own OBC2, fast) or "gbn2".
    gaps : str, default "refuse"
        What to do where residues are missing inside a chain: "refuse", or "split" it there.

    Returns
    -------
    molecule : Molecule
        With its force field.

    Raises
    ------
    ModelError
        The file is damaged, or the force field does not know a residue, which the message names.

    Examples
    --------
    >>> from torsor import molecule
    >>> molecule.from_sequence("ALA-GLY").save("two.pdb")  # in place of your file
    >>> len(molecule.load("two.pdb", solvent="vacuum").positions)
    20
    """
    field_ = force_field(forcefield, solvent)
    topology, positions, report = prepare.read(path, field_, gaps)
    name = Path(path).name.split(".")[0]
    return _made(topology, system_of(topology, field_, solvent), positions, report, name)


def from_sequence(sequence: str, *, forcefield: str = "ff14SB", solvent: str = "obc", phi: float = -60.0,
                  psi: float = -45.0) -> Molecule:  # fmt: skip
    """Build a peptide from its sequence.

    Parameters
    ----------
    sequence : str
        "ACE-ALA-NME" or "NLYIQW".
    forcefield : str, default "ff14SB"
        As in `load`.
    solvent : str, default "obc"
        As in `load`.
    phi : float, default -60
        Of every residue, in degrees. With the default of psi, the peptide is a helix.
    psi : float, default -45
        Of every residue, in degrees.

    Returns
    -------
    molecule : Molecule
        With its force field.

    Raises
    ------
    ModelError
        A residue is not known.

    Examples
    --------
    >>> from torsor import molecule
    >>> molecule.from_sequence("ACE-ALA-NME", solvent="vacuum").torsions().kinds
    {'methyl': 3, 'omega': 2, 'phi': 1, 'psi': 1}
    """
    field_ = force_field(forcefield, solvent)
    topology, positions, report = prepare.build(sequence, field_, number("phi", phi), number("psi", psi))
    return _made(topology, system_of(topology, field_, solvent), positions, report, sequence)


def from_openmm(topology: Any, system: Any, positions: ArrayLike, *, name: str = "molecule") -> Molecule:
    """Make a molecule of an OpenMM topology, any System for it, and positions.

    Parameters
    ----------
    topology : openmm.app.Topology
        Atoms, residues and bonds.
    system : openmm.System or None
        The force field.
    positions : (n, 3) array_like
        In nm, or with OpenMM's units.
    name : str, default "molecule"
        Of the molecule.

    Returns
    -------
    molecule : Molecule
        With this topology, System and positions.

    Raises
    ------
    ArgumentError
        The system and the positions do not belong to the topology.

    Examples
    --------
    >>> from torsor import molecule
    >>> one = molecule.from_sequence("ACE-ALA-NME")
    >>> molecule.from_openmm(one.topology, one.system, one.positions, name="again")
    <Molecule again: <22 atoms in 3 residues>, 144.176 amu>
    """
    given = positions if isinstance(positions, np.ndarray) else _plain(positions)
    x = real_array("positions", given, (topology.getNumAtoms(), 3))
    if system is not None and system.getNumParticles() != len(x):
        raise ArgumentError(f"the system has {system.getNumParticles()} particles, the topology {len(x)} atoms")
    return _made(topology, system, x, [], name)


def _plain(positions: Any) -> Any:
    """Positions with OpenMM's units as numbers in nm."""
    return prepare.in_nm(positions) if hasattr(positions, "value_in_unit") else positions


def _made(topology: Any, system: Any, positions: Array, report: list[str], name: str) -> Molecule:
    structure = structure_of(topology)
    mass = masses(system) if system is not None else np.array([a.element.mass._value for a in topology.atoms()])
    made = Molecule(structure, positions, mass, system, topology, tuple(report), name)
    _refuse_coincident(made)
    return made


def _refuse_coincident(molecule: Molecule) -> None:
    """Raise if bonded atoms coincide: no force field has finite forces there."""
    a, b = molecule.structure.bonds.T
    length = np.linalg.norm(molecule.positions[a] - molecule.positions[b], axis=1)
    if len(length) and length.min() < 1e-3:
        k = int(length.argmin())
        one, other = (molecule.structure.title(int(atom[k])) for atom in (a, b))
        raise ModelError(f"{one} and {other} lie on each other ({length[k]:.2g} nm): mend the positions")


def nearest_atoms(molecule: Molecule, positions: Array) -> str:
    """The two atoms without a bond that are nearest to each other, for messages about clashes."""
    from scipy.spatial import cKDTree

    bonded = {tuple(bond) for bond in molecule.structure.bonds.tolist()}
    pairs = cKDTree(positions).query_pairs(0.12)
    far = [(float(np.linalg.norm(positions[a] - positions[b])), a, b) for a, b in pairs if (a, b) not in bonded]
    if not far:
        return "no two atoms are near each other"
    d, a, b = min(far)
    return f"{molecule.structure.title(a)} and {molecule.structure.title(b)} are {d:.3f} nm apart"
