"""Which bonds of a molecule are soft, and how: bonds that turn, bend or stretch.

Torsions are phi, psi, omega, chi, and those of methyl and hydroxyl groups. Angles and lengths are those of all bonds
between heavy atoms outside rings. Hydrogens keep their positions relative to the atom they are bonded to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from torsor.errors import ArgumentError
from torsor.molecule.structure import Array, Bond, Structure
from torsor.validate import flag, word

TURNING = ("phi", "psi", "omega", "chi")
FLEXIBLE = ANGLE, LENGTH = "angle", "length"
TORSION = "torsion"
# Partial double bonds in side chains: they are rigid, like rings. TYR's hydroxyl turns, like other hydroxyls.
PLANAR = {("ARG", "CZ", "NE"), ("ARG", "CZ", "NH1"), ("ARG", "CZ", "NH2"), ("ASN", "CG", "ND2"), ("GLN", "CD", "NE2")}
PROTONATED = {"ASH": "ASN", "GLH": "GLN"}
STRAIGHT = 1e-6  # nm: a group that lies within this distance of the axis has no inertia about it


@dataclass(frozen=True)
class SoftBond:
    """A bond that moves: its two atoms, the kind of its torsion (if it turns), its name, and how it moves."""

    bond: Bond
    kind: str  # one of TURNING, methyl or hydroxyl; empty if it does not turn
    name: str
    motions: tuple[str, ...] = (TORSION,)  # some of angle, length, torsion

    def without(self, motion: str) -> SoftBond:
        """The same bond without one motion."""
        return replace(self, motions=tuple(m for m in self.motions if m != motion))


def soft_bonds(structure: Structure, places: Array, soft: str = " ".join(TURNING), methyl: bool = True,
               hydroxyl: bool = True) -> list[SoftBond]:  # fmt: skip
    """The bonds that move.

    Parameters
    ----------
    structure : Structure
    places : (n, 3) array
        Positions: a group that lies on its axis, such as a nitrile, does not turn.
    soft : str
        Kinds of backbone and side-chain torsions, and whether angles and lengths are soft: some of "phi psi omega chi
        angle length". Bonds of molecules that are not peptides count as chi.
    methyl, hydroxyl : bool
        Whether groups with three hydrogens (methyl, ammonium) or with one (OH, SH) turn.

    Returns
    -------
    list of SoftBond
        In the order of the atoms. Bonds in rings and bonds to hydrogen never move; bonds to single atoms and double
        bonds never turn.
    """
    kinds, known = set(word("soft", soft).replace(",", " ").split()), TURNING + FLEXIBLE
    if unknown := kinds - set(known):
        raise ArgumentError(f"soft names {sorted(unknown)[0]!r}; it may name some of: {' '.join(known)}")
    ends = {"methyl": flag("methyl", methyl), "hydroxyl": flag("hydroxyl", hydroxyl)}
    turning = {kind: kind in kinds for kind in TURNING} | ends
    flexible = tuple(motion for motion in FLEXIBLE if motion in kinds)
    chosen = []
    for bond in sorted(structure.bridges):
        kind = _turning(structure, bond, places)
        kind = kind if turning.get(kind) else ""
        heavy = all(structure.elements[k] != "H" for k in bond)
        if motions := (flexible if heavy else ()) + ((TORSION,) if kind else ()):
            chosen.append(SoftBond(bond, kind, _name(structure, bond, turns=bool(kind)), motions))
    return chosen


def _turning(structure: Structure, bond: Bond, places: Array) -> str:
    """The kind of a torsion; empty for bonds that cannot turn."""
    end = _end(structure, bond)
    if end == "atom" or _held(structure, bond) or _on_axis(structure, bond, places):
        return ""
    return end or _backbone(structure, bond) or "chi"


def _sides(bond: Bond) -> tuple[tuple[int, int], tuple[int, int]]:
    return bond, (bond[1], bond[0])


def _end(structure: Structure, bond: Bond) -> str:
    """What is at an end: an "atom", a "methyl" (three hydrogens), a "hydroxyl" (one), or "" for anything larger."""
    found = ""
    for atom, other in _sides(bond):
        rest = [k for k in structure.neighbours[atom] if k != other]
        if not rest:
            return "atom"
        if all(structure.elements[k] == "H" for k in rest):
            found = {1: "hydroxyl", 3: "methyl"}.get(len(rest), found)
    return found


def _held(structure: Structure, bond: Bond) -> bool:
    """Whether it is partly double: listed in `PLANAR`, or between two flat carbons and not single."""
    a, b = (structure.names[k] for k in bond)
    names = {structure.residues[structure.residue[k]].name for k in bond}
    if len(names) == 1 and (PROTONATED.get(name := names.pop(), name), *sorted((a, b))) in PLANAR:
        return True
    return (
        _backbone(structure, bond) is None
        and all(_is_flat(structure, k) for k in bond)
        and not _single(structure, bond)
    )


def _is_flat(structure: Structure, atom: int) -> bool:
    """A carbon with three neighbours."""
    return structure.elements[atom] == "C" and len(structure.neighbours[atom]) == 3


def _single(structure: Structure, bond: Bond) -> bool:
    """Whether the bond of two flat carbons is single: each has its double bond elsewhere, in a ring or to oxygen."""
    ringed = {k for pair in map(tuple, structure.bonds.tolist()) if pair not in structure.bridges for k in pair}

    def busy(atom: int, other: int) -> bool:
        bare = (k for k in structure.neighbours[atom] if k != other and structure.elements[k] in "OS")
        return atom in ringed or any(len(structure.neighbours[k]) == 1 for k in bare)

    return all(busy(*side) for side in _sides(bond))


def _on_axis(structure: Structure, bond: Bond, places: Array) -> bool:
    """Whether one end, with all atoms that move with it, lies on the axis."""
    axis = places[bond[1]] - places[bond[0]]
    axis = axis / np.linalg.norm(axis)
    for atom, other in _sides(bond):
        beyond = list(_beyond(structure, atom, other))
        away = np.cross(places[beyond] - places[atom], axis)
        if np.abs(away).max(initial=0.0) < STRAIGHT:
            return True
    return False


def _beyond(structure: Structure, atom: int, other: int) -> Iterator[int]:
    """The atoms on the side of `atom` of its bond to `other`, at most a few: a group on its axis is small."""
    seen, waiting = {atom, other}, [atom]
    while waiting and len(seen) < 12:
        here = waiting.pop()
        yield here
        fresh = [k for k in structure.neighbours[here] if k not in seen]
        seen.update(fresh)
        waiting += fresh
    yield from waiting


def _backbone(structure: Structure, bond: Bond) -> str | None:
    """phi, psi or omega, for bonds of amino acids."""
    names = {structure.names[k] for k in bond}
    residues = [int(structure.residue[k]) for k in bond]
    if names == {"C", "N"} and residues[0] != residues[1]:
        return "omega"
    if residues[0] == residues[1] and {"N", "CA", "C"} <= structure.residues[residues[0]].atoms.keys():
        return {frozenset(("N", "CA")): "phi", frozenset(("CA", "C")): "psi"}.get(frozenset(names))
    return None


def _name(structure: Structure, bond: Bond, turns: bool) -> str:
    """TRP6.phi, or TRP6.CA-CB; omega belongs to the residue before the bond."""
    first = structure.residues[min(structure.residue[k] for k in bond)]
    backbone = _backbone(structure, bond) if turns else None
    return f"{first}.{backbone or '-'.join(structure.names[k] for k in bond)}"


def unique(names: Iterable[str]) -> list[str]:
    """Names with a number appended to repeated ones."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return found
