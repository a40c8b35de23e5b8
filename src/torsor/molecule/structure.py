"""Atoms, bonds and their graph: rings, branches, parts. This module uses no positions and no forces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ModelError

Array = NDArray[Any]
Bond = tuple[int, int]  # numbers of two atoms, the smaller one first


@dataclass(frozen=True)
class Residue:
    """A residue: its name (three letters), its number in the file, its chain, and its atoms by name."""

    name: str
    label: str  # the number as written in the file
    chain: str
    atoms: dict[str, int] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.chain}:{self.name}{self.label}" if self.chain else f"{self.name}{self.label}"


@dataclass(frozen=True, eq=False)
class Structure:
    """Atoms, the residues they belong to, and the bonds between them.

    names, elements   of each atom; an element is a symbol, "H" or "Cl"
    residues          in the order of the file
    residue           (n,) the number of each atom's residue
    bonds             (m, 2) numbers of atoms
    """

    names: Sequence[str]
    elements: Sequence[str]
    residues: Sequence[Residue]
    residue: Array
    bonds: Array

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<{len(self)} atoms in {len(self.residues)} residues>"

    def title(self, atom: int) -> str:
        """The name of an atom in messages: A:TRP6.CA"""
        return f"{self.residues[self.residue[atom]]}.{self.names[atom]}"

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """The atoms bonded to each atom, in order."""
        found: list[set[int]] = [set() for _ in self.names]
        for a, b in self.bonds.tolist():
            found[a].add(b)
            found[b].add(a)
        return [sorted(x) for x in found]

    def without(self, bonds: Iterable[Bond]) -> Structure:
        """The same structure without some bonds."""
        gone = {ordered(*bond) for bond in bonds}
        kept = [bond for bond in self.bonds.tolist() if ordered(*bond) not in gone]
        return replace(self, bonds=np.array(kept, int).reshape(-1, 2))

    @cached_property
    def disulfides(self) -> list[Bond]:
        """The bonds between two sulphur atoms."""
        return [ordered(a, b) for a, b in self.bonds.tolist() if self.elements[a] == self.elements[b] == "S"]

    @cached_property
    def bridges(self) -> set[Bond]:
        """The bonds that are in no ring.

        A depth-first walk: the bond to a branch is in no ring if no atom of that branch is bonded to an atom visited
        before it (R. Tarjan, Inform. Process. Lett. 2, 1974).
        """
        found: set[Bond] = set()
        order, low = [-1] * len(self), [0] * len(self)
        clock = 0
        for root in range(len(self)):
            if order[root] >= 0:
                continue
            order[root] = low[root] = clock
            clock += 1
            walk = [(root, -1, iter(self.neighbours[root]))]
            while walk:
                atom, before, rest = walk[-1]
                other = next(rest, None)
                if other is None:
                    walk.pop()
                    if walk:
                        low[before] = min(low[before], low[atom])
                        if low[atom] > order[before]:
                            found.add(ordered(atom, before))
                elif order[other] < 0:
                    order[other] = low[other] = clock
                    clock += 1
                    walk.append((other, atom, iter(self.neighbours[other])))
                elif other != before:
                    low[atom] = min(low[atom], order[other])
        return found

    def parts(self, cut: Iterable[Bond] = ()) -> Array:
        """(n,) the part of each atom without the bonds in `cut`; parts are in the order of their first atoms."""
        gone, part, count = set(cut), np.full(len(self), -1), 0
        for first in range(len(self)):
            if part[first] >= 0:
                continue
            part[first], waiting = count, [first]
            while waiting:
                atom = waiting.pop()
                for other in self.neighbours[atom]:
                    if part[other] < 0 and ordered(atom, other) not in gone:
                        part[other] = count
                        waiting.append(other)
            count += 1
        return part


def ordered(a: int, b: int) -> Bond:
    return (a, b) if a < b else (b, a)


def from_openmm(topology: Any) -> Structure:
    """The structure of an OpenMM topology."""
    atoms = list(topology.atoms())
    several = sum(1 for _ in topology.chains()) > 1
    residues = [
        Residue(r.name, str(r.id), r.chain.id if several else "", {a.name: a.index for a in r.atoms()})
        for r in topology.residues()
    ]
    missing = [a for a in atoms if a.element is None]
    if missing:
        raise ModelError(
            f"{residues[missing[0].residue.index]}.{missing[0].name} has no element (a virtual site?): torsion trees "
            "are made of atoms with mass; remove it, or choose a force field without virtual sites"
        )
    bonds = [ordered(b[0].index, b[1].index) for b in topology.bonds()]
    return Structure(
        [a.name for a in atoms], [a.element.symbol for a in atoms], residues,
        np.array([a.residue.index for a in atoms], int), np.array(sorted(set(bonds)), int).reshape(-1, 2),
    )  # fmt: skip
