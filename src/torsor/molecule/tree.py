"""From atoms, places and bonds that turn to a torsor Model: rigid bodies joined by torsions.

The two atoms on the axis of a torsion belong to both bodies. Their masses do not move with it, so they may be counted
with either body, or with half of them each: M(q) does not change. Shared, no body is a rod: every body has at least
three mass points that are not on one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torsor.dynamics.points import Points
from torsor.errors import ModelError
from torsor.model.extras import Extras
from torsor.model.model import Model
from torsor.molecule.rotors import Rotor, unique
from torsor.molecule.structure import Array, Structure, ordered

UNITS = "amu, nm, ps"
COLLINEAR = 1e-9  # the smallest of the three moments of a body, relative to the largest


@dataclass(frozen=True)
class Parts:
    """Atoms divided into bodies, parents before children.

    body     (n,) the body of each atom
    parent   (bodies,) -1 for the root of a molecule
    axis     (bodies, 2) the two atoms on the axis of each body, the nearer to the root first; -1 for a root
    """

    body: Array
    parent: Array
    axis: Array


def divide(structure: Structure, rotors: Sequence[Rotor], mass: Array, root: str | int = "centroid") -> Parts:
    """The bodies between bonds that turn, in trees that start at roots.

    root: "centroid", the body that halves the mass of its molecule best, so that chains are short and light ends are
    leaves; or an atom, in whose body its molecule begins.
    """
    cut = [rotor.bond for rotor in rotors]
    rigid, molecule = structure.parts(cut), structure.parts()
    links: list[list[tuple[int, int, int]]] = [[] for _ in range(rigid.max(initial=-1) + 1)]  # (part, own atom, its)
    for a, b in cut:
        links[rigid[a]].append((rigid[b], a, b))
        links[rigid[b]].append((rigid[a], b, a))
    weight = np.bincount(rigid, mass, len(links))
    roots = {int(molecule[k]): part for part, k in reversed(list(zip(*np.unique(rigid, return_index=True))))}
    if root == "centroid":
        roots = {m: _centroid(part, links, weight) for m, part in roots.items()}
    else:
        roots[int(molecule[int(root)])] = int(rigid[int(root)])
    number = np.full(len(links), -1)
    parent: list[int] = []
    axis: list[tuple[int, int]] = []
    for m in sorted(roots):
        waiting = [(roots[m], -1, (-1, -1))]
        while waiting:  # depth first: most bodies follow their parents, and sweeps hand on in registers
            part, above, bond = waiting.pop()
            number[part] = len(parent)
            parent.append(int(above))
            axis.append(bond)
            waiting += [(p, int(number[part]), (a, b)) for p, a, b in links[part] if (b, a) != bond]
    return Parts(number[rigid], np.array(parent, int), np.array(axis, int).reshape(-1, 2))


def _centroid(start: int, links: list[list[tuple[int, int, int]]], weight: Array) -> int:
    """The part whose heaviest branch is lightest."""
    order, above = [start], {start: -1}
    for part in order:
        for other, _, _ in links[part]:
            if other not in above:
                above[other] = part
                order.append(other)
    carried = {part: float(weight[part]) for part in order}
    for part in reversed(order[1:]):
        carried[above[part]] += carried[part]
    total = carried[start]

    def heaviest(part: int) -> float:
        branches = [carried[other] for other, _, _ in links[part] if other != above[part]]
        return max([*branches, total - carried[part]])

    return min(order, key=heaviest)


def mass_points(parts: Parts, mass: Array, share: bool = True) -> list[tuple[Array, Array]]:
    """For each body, the atoms that are counted with it, and with how much of their mass."""
    counted: list[dict[int, float]] = [{} for _ in parts.parent]
    for atom, body in enumerate(parts.body.tolist()):
        counted[body][atom] = float(mass[atom])
    for body, (parent, bond) in enumerate(zip(parts.parent.tolist(), parts.axis.tolist())):
        if parent < 0 or not share:
            continue
        for atom, owner, other in ((bond[0], parent, body), (bond[1], body, parent)):
            half = counted[owner][atom] / 2
            counted[owner][atom] = half
            counted[other][atom] = counted[other].get(atom, 0.0) + half
    return [(np.array(list(x), int), np.array(list(x.values()))) for x in counted]


def torsion_model(structure: Structure, places: Array, mass: Array, rotors: Sequence[Rotor], *,
                  root: str | int = "centroid", share: bool = True, name: str = "molecule"
                  ) -> tuple[Model, Points, Parts]:  # fmt: skip
    """The model whose neutral configuration is these places, and its atoms as points of its bodies.

    Bodies have the axes of the base at first. A root has a free joint; its origin is the mass centre of its atoms. The
    origin of any other body is the second atom of its axis.
    """
    parts = divide(structure, rotors, mass, root)
    counted = mass_points(parts, mass, share)
    n = len(parts.parent)
    roots = parts.parent < 0
    origin = np.where(roots[:, None], 0.0, places[parts.axis[:, 1]])
    for k in np.flatnonzero(roots):
        origin[k] = np.average(places[parts.body == k], axis=0, weights=mass[parts.body == k])
    axis = np.tile((0.0, 0.0, 1.0), (n, 1))
    along = places[parts.axis[~roots, 1]] - places[parts.axis[~roots, 0]]
    axis[~roots] = along / np.linalg.norm(along, axis=1, keepdims=True)
    total, com, inertia = np.empty(n), np.empty((n, 3)), np.empty((n, 3, 3))
    for body, (atoms, shares) in enumerate(counted):
        total[body], com[body], inertia[body] = _rigid(shares, places[atoms] - origin[body])
    by_bond = {rotor.bond: rotor.name for rotor in rotors}
    names = _names(structure, parts, by_bond)
    _refuse_rods(structure, parts, counted, inertia, names, share)
    model = Model.tree(
        parts.parent, ["free" if is_root else "revolute" for is_root in roots], axis=axis,
        p=origin - np.where(roots[:, None], 0.0, origin[parts.parent]), mass=total, com=com, inertia=inertia,
        gravity=(0.0, 0.0, 0.0), names=names, name=name, allow_degenerate=not share,
    ).with_extras(Extras(units=UNITS))  # fmt: skip
    return model, Points(model, parts.body, places - origin[parts.body]), parts


def _rigid(m: Array, r: Array) -> tuple[float, Array, Array]:
    """Mass, mass centre and inertia about it, of mass points."""
    total = m.sum()
    centre = m @ r / total
    d = r - centre
    return total, centre, (m * (d * d).sum(1)).sum() * np.eye(3) - (m * d.T) @ d


def _names(structure: Structure, parts: Parts, by_bond: dict[tuple[int, int], str]) -> list[str]:
    """root, or root1, root2, ...; other bodies have the names of their torsions."""
    several = int((parts.parent < 0).sum()) > 1
    found, count = [], 0
    for bond in parts.axis.tolist():
        if bond[0] < 0:
            count += 1
            found.append(f"root{count}" if several else "root")
        else:
            found.append(by_bond[ordered(*bond)])
    return unique(found)


def _refuse_rods(structure: Structure, parts: Parts, counted: list[tuple[Array, Array]], inertia: Array,
                 names: list[str], share: bool) -> None:  # fmt: skip
    """Raise where a body is a point or a rod: its inertia about one axis vanishes."""
    moments = np.linalg.eigvalsh(inertia)
    thin = np.flatnonzero(moments[:, 0] <= COLLINEAR * moments[:, 2])
    if share and len(thin):
        k = int(thin[0])
        atoms = ", ".join(structure.title(a) for a in counted[k][0][:4].tolist())
        raise ModelError(
            f"the atoms of body {names[k]!r} ({atoms}) lie on one line: it has no inertia about it. Ions and diatomic "
            "molecules are no torsion trees; leave them out, or hold the torsion"
        )
