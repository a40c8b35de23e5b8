"""The result of a run of a molecule: frames, energies, torsions, sizes; files, plots, pages and other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, eq=False)
class MolecularRun:
    """Frames of replicas.

    torsions    the tree
    t           (frames,) ps; of Monte Carlo, the length of all trajectories
    q           (frames, replicas, nq)
    potential, kinetic, log_det   (frames, replicas): U and the kinetic energy in kJ/mol, and log det M if it is known
    counts      what happened: steps, accepted trajectories, ...
    about       the method and its numbers
    places      (frames, replicas, n, 3) nm, if bonds and angles changed, too; q is then empty
    """

    torsions: Torsions
    t: Array
    q: Array = field(repr=False)
    potential: Array = field(repr=False)
    kinetic: Array = field(repr=False)
    log_det: Array = field(repr=False)
    counts: dict[str, float]
    about: dict[str, Any] = field(repr=False)
    places: Array | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.t)

    @property
    def replicas(self) -> int:
        return self.q.shape[1]

    @property
    def temperature(self) -> Array:
        """(frames, replicas) kelvin: twice the kinetic energy per freedom that closed bonds leave."""
        freedoms = self.torsions.model.nv - len(held_distances(self.torsions.molecule.structure, self.torsions.cut))
        return 2 * self.kinetic / (BOLTZMANN * freedoms)

    @property
    def acceptance(self) -> float:
        """The share of trajectories that were accepted; NaN for dynamics."""
        return self.counts.get("accepted", np.nan) / self.counts.get("trajectories", np.nan)

    @cached_property
    def positions(self) -> Array:
        """(frames, replicas, n, 3) nm"""
        return self.torsions.positions(self.q) if self.places is None else self.places

    def open_bonds(self) -> Array:
        """(frames, replicas) nm: the largest error of the distances that close S-S bonds; zero if there are none."""
        closures = Closures(self.torsions)
        if not closures:
            return np.zeros(self.potential.shape)
        gaps = closures.gaps(self.q.reshape(-1, self.q.shape[-1]))
        return np.abs(gaps).max(-1).reshape(self.potential.shape)

    # ---- torsions ----

    def dihedrals(self, atoms: ArrayLike) -> Array:
        """(frames, replicas, m) rad: the angles of (m, 4) atoms, by the usual sign (IUPAC)."""
        return dihedrals(self.positions, np.asarray(atoms, int).reshape(-1, 4))

    @cached_property
    def backbone(self) -> dict[str, Array]:
        """phi, psi and omega: (residues with all three atoms before and after, 4) atoms each."""
        return backbone(self.torsions)

    def phi_psi(self) -> tuple[Array, Array]:
        """(frames, replicas, residues) rad each, of the residues that have both."""
        found = self.backbone
        return self.dihedrals(found["phi"]), self.dihedrals(found["psi"])

    # ---- sizes ----

    def atoms(self, names: str | Sequence[int] = "all") -> Array:
        """Numbers of atoms: "all", "heavy", "backbone" (N, CA, C, O), "CA", or given."""
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
        """(frames, replicas) nm: the distance from the reference (n, 3), after the best rotation (W. Kabsch, 1976).

        reference: None, the first frame of the first replica
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
        """(frames, replicas) nm, weighted with the masses."""
        m = self.torsions.molecule.mass
        m, x = m / m.sum(), self.positions
        centre = (m[:, None] * x).sum(-2, keepdims=True)
        return np.sqrt((m[:, None] * (x - centre) ** 2).sum((-1, -2)))

    def end_to_end(self, first: int | None = None, last: int | None = None) -> Array:
        """(frames, replicas) nm between two atoms; by default the first and last CA, or the first and last atom."""
        ends = self.atoms("CA")
        ends = ends if len(ends) > 1 else self.atoms("all")
        a, b = (end if own is None else own for own, end in ((first, ends[0]), (last, ends[-1])))
        return np.linalg.norm(self.positions[..., a, :] - self.positions[..., b, :], axis=-1)

    # ---- out ----

    def save(self, path: str | Path, replica: int = 0) -> None:
        """Write the frames of a replica to a .dcd, .xtc, .pdb or .cif file, by OpenMM."""
        save_frames(path, self.torsions.molecule, self._frames(replica), self.t)

    def to_mdtraj(self, replica: int = 0) -> Any:
        """The frames of a replica as an `mdtraj.Trajectory`."""
        return to_mdtraj(self.torsions.molecule, self._frames(replica), self.t)

    def to_mdanalysis(self, replica: int = 0) -> Any:
        """The frames of a replica as an `MDAnalysis.Universe`."""
        return to_mdanalysis(self.torsions.molecule, self._frames(replica), self.t)

    def plot(self, what: str = "overview") -> Any:
        """A figure: "overview", "ramachandran" or "torsions"."""
        from torsor.molecule.plots import draw

        return draw(self, what)

    def view(self, path: str | Path, replica: int = 0, title: str | None = None) -> Path:
        """Write a page that plays the frames of a replica in a browser: sticks, and a ribbon along the backbone."""
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
