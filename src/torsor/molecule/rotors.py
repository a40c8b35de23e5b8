"""Which bonds of a molecule turn: phi, psi, omega, chi, and those of methyl and hydroxyl groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from torsor.errors import ArgumentError
from torsor.molecule.structure import Array, Bond, Structure
from torsor.validate import flag, word

SOFT = ("phi", "psi", "omega", "chi")
# Bonds in side chains that are double in part: they are held, as rings are. TYR's hydroxyl turns, like others.
PLANAR = {("ARG", "CZ", "NE"), ("ARG", "CZ", "NH1"), ("ARG", "CZ", "NH2"), ("ASN", "CG", "ND2"), ("GLN", "CD", "NE2")}
PROTONATED = {"ASH": "ASN", "GLH": "GLN"}
STRAIGHT = 1e-6  # nm: a group that reaches no further from the axis has no inertia about it


@dataclass(frozen=True)
class Rotor:
    """A bond that turns: its two atoms, its kind and its name."""

    bond: Bond
    kind: str  # one of SOFT, methyl or hydroxyl
    name: str


def rotors(structure: Structure, places: Array, soft: str = "phi psi omega chi", methyl: bool = True,
           hydroxyl: bool = True) -> list[Rotor]:  # fmt: skip
    """The bonds that turn.

    Parameters
    ----------
    structure : Structure
    places : (n, 3) array
        Positions: a group that lies on its axis, such as a nitrile, does not turn.
    soft : str
        Kinds of backbone and side-chain torsions, some of "phi psi omega chi". Bonds of molecules that are no peptides
        count as chi.
    methyl, hydroxyl : bool
        Whether groups turn that end in three hydrogens (methyl, ammonium) or in one (OH, SH).

    Returns
    -------
    list of Rotor
        In the order of the atoms. Bonds in rings, bonds to single atoms and double bonds never turn.
    """
    kinds = set(word("soft", soft).replace(",", " ").split())
    if unknown := kinds - set(SOFT):
        raise ArgumentError(f"soft names {sorted(unknown)[0]!r}; it may name some of: {' '.join(SOFT)}")
    ends = {"methyl": flag("methyl", methyl), "hydroxyl": flag("hydroxyl", hydroxyl)}
    chosen = []
    for bond in sorted(structure.bridges):
        end = _end(structure, bond)
        if end == "atom" or _held(structure, bond) or _on_axis(structure, bond, places):
            continue
        kind = _backbone(structure, bond) or "chi"
        if ends.get(end, kind in kinds):
            chosen.append(Rotor(bond, end or kind, _name(structure, bond, kind)))
    return chosen


def _sides(bond: Bond) -> tuple[tuple[int, int], tuple[int, int]]:
    return bond, (bond[1], bond[0])


def _end(structure: Structure, bond: Bond) -> str:
    """What is at an end: a single "atom", a "methyl" (three hydrogens), a "hydroxyl" (one), or more (an empty word)."""
    found = ""
    for atom, other in _sides(bond):
        rest = [k for k in structure.neighbours[atom] if k != other]
        if not rest:
            return "atom"
        if all(structure.elements[k] == "H" for k in rest):
            found = {1: "hydroxyl", 3: "methyl"}.get(len(rest), found)
    return found


def _held(structure: Structure, bond: Bond) -> bool:
    """Whether it is double in part, in a side chain or by its atoms: N and O beside a flat carbon, or two flat ones."""
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
    """Whether one end, with all that moves with it, lies on the axis."""
    axis = places[bond[1]] - places[bond[0]]
    axis = axis / np.linalg.norm(axis)
    for atom, other in _sides(bond):
        beyond = list(_beyond(structure, atom, other))
        away = np.cross(places[beyond] - places[atom], axis)
        if np.abs(away).max(initial=0.0) < STRAIGHT:
            return True
    return False


def _beyond(structure: Structure, atom: int, other: int) -> Iterator[int]:
    """The atoms on the side of `atom` of its bond to `other`, up to some: a group on its axis is small."""
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


def _name(structure: Structure, bond: Bond, kind: str) -> str:
    """TRP6.phi, TRP6.CA-CB; omega belongs to the residue before the bond."""
    first = structure.residues[min(structure.residue[k] for k in bond)]
    if kind != "chi":
        return f"{first}.{kind}"
    return f"{first}.{'-'.join(structure.names[k] for k in bond)}"


def unique(names: Iterable[str]) -> list[str]:
    """Names with a number behind those that occurred before."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return found
