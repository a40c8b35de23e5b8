"""The result of a run of a molecule: frames, energies, torsions, sizes; files, plots, pages and other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from torsor.errors import ArgumentError
from torsor.molecule.closures import Closures, held_distances
from torsor.molecule.forcefields import BOLTZMANN
from torsor.molecule.molecule import Torsions
from torsor.molecule.output import save_frames, to_mdanalysis, to_mdtraj
from torsor.molecule.structure import Array
from torsor.validate import integer


@dataclass(frozen=True, eq=False, repr=False)
class MolecularRun:
    """Hold the frames of a run: replicas side by side, their energies, torsions and sizes.

    Parameters
    ----------
    torsions : Torsions
        The tree that moved.
    t : (frames,) ndarray
        Times, in ps; for Monte Carlo, the total length of all trajectories.
    q : (frames, replicas, nq) ndarray
        Configurations.
    potential : (frames, replicas) ndarray
        The potential energy U, in kJ/mol.
    kinetic : (frames, replicas) ndarray
        The kinetic energy, in kJ/mol.
    log_det : (frames, replicas) ndarray
        log det M, minus log det G of soft angles and lengths; zero without Fixman's potential.
    counts : dict
        What happened: steps, accepted trajectories, ...
    about : dict
        The method and its numbers.
    places : (frames, replicas, n, 3) ndarray, optional
        Positions in nm, if bonds and angles also changed; q is then empty.

    Examples
    --------
    >>> from torsor import molecule
    >>> run = molecule.hmc(molecule.polymers.freely_rotating(8), 20, replicas=5)
    >>> run
    MolecularRun(freely rotating chain of 8, 21 frames of 5 replicas, 0 to 2.4 ps)
    >>> run.radius_of_gyration().shape
    (21, 5)
    """

    torsions: Torsions
    t: Array
    q: Array
    potential: Array
    kinetic: Array
    log_det: Array
    counts: dict[str, float]
    about: dict[str, Any]
    places: Array | None = None

    def __len__(self) -> int:
        return len(self.t)

    def __repr__(self) -> str:
        name, last = self.torsions.molecule.name, self.t[-1]
        return f"MolecularRun({name}, {len(self)} frames of {self.replicas} replicas, 0 to {last:g} ps)"

    @property
    def replicas(self) -> int:
        """The number of copies that ran side by side."""
        return self.q.shape[1]

    @property
    def temperature(self) -> Array:
        """The kinetic temperature, (frames, replicas), in kelvin; constraints are not counted as freedoms."""
        freedoms = self.torsions.model.nv - len(held_distances(self.torsions.molecule.structure, self.torsions.cut))
        return 2 * self.kinetic / (BOLTZMANN * freedoms)

    @property
    def acceptance(self) -> float:
        """The share of trajectories that were accepted; NaN for dynamics."""
        return self.counts.get("accepted", np.nan) / self.counts.get("trajectories", np.nan)

    @cached_property
    def positions(self) -> Array:
        """The positions of all atoms, (frames, replicas, n, 3), in nm."""
        return self.torsions.positions(self.q) if self.places is None else self.places

    def open_bonds(self) -> Array:
        """Measure how far S-S bonds are open.

        Returns
        -------
        gap : (frames, replicas) ndarray
            The largest error of the distances that close them, in nm; zero if there are none.
        """
        closures = Closures(self.torsions)
        if not closures:
            return np.zeros(self.potential.shape)
        gaps = closures.gaps(self.q.reshape(-1, self.q.shape[-1]))
        return np.abs(gaps).max(-1).reshape(self.potential.shape)

    # ---- torsions ----

    def dihedrals(self, atoms: ArrayLike) -> Array:
        """Measure dihedral angles.

        Parameters
        ----------
        atoms : (m, 4) array_like
            Numbers of atoms.

        Returns
        -------
        angles : (frames, replicas, m) ndarray
            In rad, with the IUPAC sign.
        """
        return dihedrals(self.positions, np.asarray(atoms, int).reshape(-1, 4))

    @cached_property
    def backbone(self) -> dict[str, Array]:
        """The atoms of phi, psi and omega: an array (residues with both neighbours, 4) each."""
        return backbone(self.torsions)

    def phi_psi(self) -> tuple[Array, Array]:
        """Measure the torsions of the backbone, for a Ramachandran plot.

        Returns
        -------
        phi, psi : (frames, replicas, residues) ndarray
            In rad, of the residues that have both.
        """
        found = self.backbone
        return self.dihedrals(found["phi"]), self.dihedrals(found["psi"])

    # ---- sizes ----

    def atoms(self, names: str | Sequence[int] = "all") -> Array:
        """Choose atoms.

        Parameters
        ----------
        names : str or sequence of int, default "all"
            "all", "heavy", "backbone" (N, CA, C, O), "CA", or numbers.

        Returns
        -------
        atoms : (m,) ndarray
            Their numbers.

        Raises
        ------
        ArgumentError
            `names` is none of these words.
        """
        structure = self.torsions.molecule.structure
        if not isinstance(names, str):
            return np.asarray(names, int)
        chosen = {
            "all": lambda k: True,
            "heavy": lambda k: structure.elements[k] != "H",
            "backbone": lambda k: structure.names[k] in ("N", "CA", "C", "O"),
            "CA": lambda k: structure.names[k] == "CA",
        }
        if names not in chosen:
            raise ArgumentError(f"atoms are {', '.join(chosen)}, or numbers; not {names!r}")
        return np.array([k for k in range(len(structure)) if chosen[names](k)], int)

    def rmsd(self, reference: Array | None = None, atoms: str | Sequence[int] = "backbone") -> Array:
        """Measure the distance from a reference, after the best rotation.

        Parameters
        ----------
        reference : (n, 3) array_like, optional
            In nm. Default: the first frame of the first replica.
        atoms : str or sequence of int, default "backbone"
            As in `atoms`.

        Returns
        -------
        distance : (frames, replicas) ndarray
            In nm.

        Notes
        -----
        W. Kabsch, 1976.
        """
        chosen = self.atoms(atoms)
        x = self.positions[..., chosen, :]
        y = x[0, 0] if reference is None else np.asarray(reference, float)[chosen]
        x, y = x - x.mean(-2, keepdims=True), y - y.mean(0)
        U, s, Vt = np.linalg.svd(np.swapaxes(x, -1, -2) @ y)
        s[..., 2] *= np.sign(np.linalg.det(U @ Vt))
        square = (x * x).sum((-1, -2)) + (y * y).sum() - 2 * s.sum(-1)
        return np.sqrt(np.maximum(square, 0) / len(chosen))

    def radius_of_gyration(self) -> Array:
        """Measure the radius of gyration, weighted by the masses.

        Returns
        -------
        radius : (frames, replicas) ndarray
            In nm.
        """
        m = self.torsions.molecule.mass
        m, x = m / m.sum(), self.positions
        centre = (m[:, None] * x).sum(-2, keepdims=True)
        return np.sqrt((m[:, None] * (x - centre) ** 2).sum((-1, -2)))

    def end_to_end(self, first: int | None = None, last: int | None = None) -> Array:
        """Measure the distance between two atoms.

        Parameters
        ----------
        first : int, optional
            Default: the first CA, or the first atom.
        last : int, optional
            Default: the last CA, or the last atom.

        Returns
        -------
        distance : (frames, replicas) ndarray
            In nm.
        """
        ends = self.atoms("CA")
        ends = ends if len(ends) > 1 else self.atoms("all")
        a, b = (end if own is None else own for own, end in ((first, ends[0]), (last, ends[-1])))
        return np.linalg.norm(self.positions[..., a, :] - self.positions[..., b, :], axis=-1)

    # ---- output ----

    def save(self, path: str | Path, replica: int = 0) -> None:
        """Write the frames of a replica to a file, by OpenMM.

        Parameters
        ----------
        path : str or Path
            .dcd, .xtc, .pdb or .cif.
        replica : int, default 0
            Which one.
        """
        save_frames(path, self.torsions.molecule, self._frames(replica), self.t)

    def to_mdtraj(self, replica: int = 0) -> Any:
        """Give the frames of a replica to MDTraj.

        Parameters
        ----------
        replica : int, default 0
            Which one.

        Returns
        -------
        frames : mdtraj.Trajectory
            In nm.
        """
        return to_mdtraj(self.torsions.molecule, self._frames(replica), self.t)

    def to_mdanalysis(self, replica: int = 0) -> Any:
        """Give the frames of a replica to MDAnalysis.

        Parameters
        ----------
        replica : int, default 0
            Which one.

        Returns
        -------
        frames : MDAnalysis.Universe
            In angstrom, as in MDAnalysis.
        """
        return to_mdanalysis(self.torsions.molecule, self._frames(replica), self.t)

    def plot(self, what: str = "overview") -> Any:
        """Draw a figure.

        Parameters
        ----------
        what : str, default "overview"
            "overview", "ramachandran" or "torsions".

        Returns
        -------
        figure : matplotlib.figure.Figure
            The figure; it is not saved.
        """
        from torsor.molecule.plots import draw

        return draw(self, what)

    def view(self, path: str | Path, replica: int = 0, title: str | None = None) -> Path:
        """Write a page that plays the frames of a replica in a browser: sticks, and a ribbon along the backbone.

        Parameters
        ----------
        path : str or Path
            An .html file.
        replica : int, default 0
            Which one.
        title : str, optional
            Of the page. Default: the name of the molecule.

        Returns
        -------
        path : Path
            The page.
        """
        from torsor.molecule.page import write_page

        return write_page(path, self.torsions.molecule, self._frames(replica), self.t, title)

    def _frames(self, replica: int) -> Array:
        return self.positions[:, integer("replica", replica, least=0, most=self.replicas - 1)]


def dihedrals(x: Array, atoms: Array) -> Array:
    """(..., m) rad of positions (..., n, 3) and atoms (m, 4)."""
    a, b, c, d = (x[..., atoms[:, k], :] for k in range(4))
    before, axis, after = b - a, c - b, d - c
    one, two = np.cross(before, axis), np.cross(axis, after)
    sine = (before * two).sum(-1) * np.linalg.norm(axis, axis=-1)
    return np.arctan2(sine, (one * two).sum(-1))


def backbone(torsions: Torsions) -> dict[str, Array]:
    """The atoms of phi, psi and omega, (m, 4) each, of all residues that have both neighbours."""
    structure = torsions.molecule.structure
    bonded = {tuple(bond) for bond in structure.bonds.tolist()}
    found: dict[str, list[tuple[int, ...]]] = {"phi": [], "psi": [], "omega": []}
    for before, here, after in zip(structure.residues, structure.residues[1:], structure.residues[2:]):
        try:
            c0, n, ca, c, n1 = before.atoms["C"], *(here.atoms[name] for name in ("N", "CA", "C")), after.atoms["N"]
            far = after.atoms.get("CA", after.atoms.get("CH3", after.atoms.get("C")))
        except KeyError:
            continue
        if (min(c0, n), max(c0, n)) in bonded and (min(c, n1), max(c, n1)) in bonded and far is not None:
            found["phi"].append((c0, n, ca, c))
            found["psi"].append((n, ca, c, n1))
            found["omega"].append((ca, c, n1, far))
    return {name: np.array(x, int).reshape(-1, 4) for name, x in found.items()}
