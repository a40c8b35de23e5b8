"""From atoms, positions and soft bonds to a torsor Model: rigid parts joined by torsions, and by angles and lengths.

A bond from atom b of one part to atom c of the next moves in up to three ways, one after the other:

    angle      a revolute joint at b; its axis is normal to the plane of a, b and c, where a is the atom before b
    length     a prismatic joint along the bond
    torsion    a revolute joint about the bond; with a soft length, both are one cylindrical joint

The direction of the plane of a, b and c about the bond a-b stays hard, for every branch but one; so does everything
inside the parts. So c has the spherical coordinates r, theta and phi of a Z-matrix, about b with the pole along b-a,
and the volume element of positions is r^2 sin theta: see `Volume`.

The two atoms on the axis of a torsion belong to both bodies. Their masses do not move with it, so they may be counted
with either body, or half with each: M(q) does not change. An angle does not move b, so b is shared there. If only
torsions are soft, no body is a rod: every body has at least three mass points that are not on one line. If angles or
lengths are soft, bodies may be points and rods; M(q) is still regular, unless bonds lie on one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torsor.dynamics.functions import log_det_mass_matrix
from torsor.dynamics.points import Points
from torsor.errors import ModelError, SingularError
from torsor.model.extras import Extras
from torsor.model.model import Model
from torsor.molecule.soft import ANGLE, FLEXIBLE, LENGTH, TORSION, SoftBond, unique
from torsor.molecule.structure import Array, Structure, ordered

UNITS = "amu, nm, ps"
COLLINEAR = 1e-9  # the smallest of the three moments of a body, relative to the largest
STRAIGHT = 0.2  # the sine below which an angle is rigid: it could pass through 180 degrees, where M is singular


@dataclass(frozen=True)
class Parts:
    """Atoms divided into rigid parts, parents before children.

    body     (n,) the part of each atom
    parent   (parts,) -1 for the root of a molecule
    axis     (parts, 2) the two atoms of the soft bond before each part, the one nearer the root first; -1 for a root
    """

    body: Array
    parent: Array
    axis: Array


def divide(structure: Structure, soft: Sequence[SoftBond], mass: Array, root: str | int = "centroid") -> Parts:
    """The parts between soft bonds, as trees.

    root: "centroid", the part that best divides the mass of its molecule in half, so that chains are short and light
    ends are leaves; or an atom, whose part becomes the root of its molecule.
    """
    cut = [one.bond for one in soft]
    rigid, molecule = structure.parts(cut), structure.parts()
    links: list[list[tuple[int, int, int]]] = [[] for _ in range(rigid.max(initial=-1) + 1)]  # (part, own, its atom)
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
        while waiting:  # depth first: most bodies follow their parents, so sweeps pass values in registers
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


# Angles and lengths -----------------------------------------------------------------------------------------------


def settled(structure: Structure, places: Array, soft: Sequence[SoftBond], mass: Array, root: str | int = "centroid"
            ) -> tuple[Parts, list[SoftBond]]:  # fmt: skip
    """The parts, and the soft bonds without the angles that cannot bend: straight ones, and one at each root.

    A bond that has no motion left joins the parts on both sides.
    """
    while True:
        parts = divide(structure, soft, mass, root)
        axes = {ordered(*axis): tuple(axis) for axis in parts.axis.tolist() if axis[0] >= 0}
        bent = [
            one.without(ANGLE) if ANGLE in one.motions and not _bends(structure, parts, places, axes[one.bond]) else one
            for one in soft
        ]
        moving = [one for one in bent if one.motions]
        if len(moving) == len(soft):
            return parts, moving
        soft = moving


def before(structure: Structure, parts: Parts, b: int, c: int) -> int:
    """The atom a of the angle a-b-c, with c in the next part; -1 if there is none because others are measured from c.

    a is the atom before b on the axis of b's part. Inside a ring, or at a root, it is a heavy neighbour in the part of
    b, or else b's first heavy neighbour, whose direction is then fixed to the root.
    """
    part = int(parts.body[b])
    if parts.axis[part, 1] == b:
        return int(parts.axis[part, 0])
    heavy = [k for k in structure.neighbours[b] if structure.elements[k] != "H"]
    inside = [k for k in heavy if parts.body[k] == part]
    first = (inside or heavy)[0]
    return -1 if first == c else first


def _bends(structure: Structure, parts: Parts, places: Array, axis: tuple[int, int]) -> bool:
    a = before(structure, parts, *axis)
    return a >= 0 and float(np.linalg.norm(normal(places, a, *axis))) > STRAIGHT


def normal(places: Array, a: int, b: int, c: int) -> Array:
    """The axis at b about which c turns away from a; its length is the sine of the angle."""
    one, two = places[a] - places[b], places[c] - places[b]
    return np.cross(one, two) / (np.linalg.norm(one) * np.linalg.norm(two))


class Volume:
    """det G of soft angles and lengths: log det G = sum 2 log sin theta + sum 4 log r.

    The volume element of atom positions is sqrt(det G) dq; without soft angles and lengths it is constant.

    angle, length   (column of q, column of v, value of the coordinate at q = 0)
    """

    def __init__(self, angle: Sequence[tuple[int, int, float]] = (), length: Sequence[tuple[int, int, float]] = ()):
        self._angle, self._length = (np.array(x, float).reshape(-1, 3).T for x in (angle, length))

    def __bool__(self) -> bool:
        return bool(self._angle.size or self._length.size)

    def __call__(self, q: Array) -> tuple[Array, tuple[Array, Array]]:
        """log det G (B,), and its gradient: the columns of v with entries, and these entries (B, columns)."""
        (qa, va, theta), (ql, vl, r) = self._angle, self._length
        theta, r = theta + q[:, qa.astype(int)], r + q[:, ql.astype(int)]
        with np.errstate(all="ignore"):  # states that are not finite
            log_det = np.log(np.sin(theta) ** 2).sum(-1) + np.log(r**4).sum(-1)
            gradient = np.concatenate([2 / np.tan(theta), 4 / r], axis=-1)
        return log_det, (np.concatenate([va, vl]).astype(int), gradient)


# The model --------------------------------------------------------------------------------------------------------


class BondJoint(NamedTuple):
    """One joint of a tree, and the body it moves. At q = 0 all bodies have the axes of the base.

    motion   "free", "angle", "length", "torsion", or "length torsion"
    bond     the two atoms of its bond
    origin   the position of the joint
    """

    parent: int
    motion: str
    axis: Array
    origin: Array
    name: str
    bond: tuple[int, int] = (-1, -1)


JOINTS = {"free": "free", ANGLE: "revolute", LENGTH: "prismatic", TORSION: "revolute",
          f"{LENGTH} {TORSION}": "cylindrical"}  # fmt: skip


@dataclass(frozen=True)
class Tree:
    """A model whose neutral configuration is that of a molecule, and its atoms as points of its bodies.

    parts     the rigid parts
    bodies    its joints; the last body of a bond carries the part
    soft      the bonds that move, and how
    volume    det G of soft angles and lengths
    """

    model: Model
    points: Points
    parts: Parts
    bodies: list[BondJoint]
    soft: list[SoftBond]
    volume: Volume


def torsion_tree(structure: Structure, places: Array, mass: Array, soft: Sequence[SoftBond], *,
                 root: str | int = "centroid", share: bool = True, name: str = "molecule") -> Tree:  # fmt: skip
    """The tree of a molecule at these positions.

    At q = 0 all bodies have the axes of the base. A root has a free joint; its origin is the mass centre of its atoms.
    The origin of an angle is its middle atom; the origin of any other body is the second atom of its bond.
    """
    parts, soft = settled(structure, places, soft, mass, root)
    bodies, carrier = _bodies(structure, parts, places, mass, soft)
    counted = mass_points(bodies, carrier[parts.body], mass, share)
    parent, origin = np.array([body.parent for body in bodies]), np.array([body.origin for body in bodies])
    n = len(bodies)
    total, com, inertia = np.empty(n), np.empty((n, 3)), np.empty((n, 3, 3))
    for k, (atoms, shares) in enumerate(counted):
        total[k], com[k], inertia[k] = _rigid(shares, places[atoms] - origin[k])
    names = unique(body.name for body in bodies)
    flexible = any(motion in FLEXIBLE for one in soft for motion in one.motions)
    if share and not flexible:
        _refuse_rods(structure, counted, inertia, names)
    model = Model.tree(
        parent, [JOINTS[body.motion] for body in bodies], axis=np.array([body.axis for body in bodies]),
        p=origin - np.where(parent[:, None] < 0, 0.0, origin[parent]), mass=total, com=com, inertia=inertia,
        gravity=(0.0, 0.0, 0.0), names=names, name=name, allow_degenerate=flexible or not share,
    ).with_extras(Extras(units=UNITS))  # fmt: skip
    if flexible:
        _refuse_singular(model)
    points = Points(model, carrier[parts.body], places - origin[carrier[parts.body]])
    return Tree(model, points, parts, bodies, list(soft), _volume(structure, parts, places, model, bodies))


def _bodies(structure: Structure, parts: Parts, places: Array, mass: Array, soft: Sequence[SoftBond]
            ) -> tuple[list[BondJoint], Array]:  # fmt: skip
    """All joints, parents first, and the body that carries each part."""
    by_bond, bodies, carrier = {one.bond: one for one in soft}, list[BondJoint](), list[int]()
    roots = np.flatnonzero(parts.parent < 0)
    for part, (above, (b, c)) in enumerate(zip(parts.parent.tolist(), parts.axis.tolist())):
        if above < 0:
            own = parts.body == part
            centre = np.average(places[own], axis=0, weights=mass[own])
            name = f"root{1 + int(np.searchsorted(roots, part))}" if len(roots) > 1 else "root"
            bodies.append(BondJoint(-1, "free", np.array([0.0, 0.0, 1.0]), centre, name))
        else:
            one, parent = by_bond[ordered(b, c)], carrier[above]
            if ANGLE in one.motions:
                a = before(structure, parts, b, c)
                about, atoms = normal(places, a, b, c), "-".join(structure.names[k] for k in (a, b, c))
                name = f"{structure.residues[structure.residue[b]]}.{atoms}"
                bodies.append(BondJoint(parent, ANGLE, about / np.linalg.norm(about), places[b], name, (b, c)))
                parent = len(bodies) - 1
            if motion := " ".join(m for m in one.motions if m != ANGLE):
                along = places[c] - places[b]
                bodies.append(BondJoint(parent, motion, along / np.linalg.norm(along), places[c], one.name, (b, c)))
        carrier.append(len(bodies) - 1)
    return bodies, np.array(carrier, int)


def mass_points(bodies: Sequence[BondJoint], body: Array, mass: Array, share: bool = True) -> list[tuple[Array, Array]]:
    """For each body, the atoms that count towards its mass, and the mass of each that counts.

    body    (n,) the body that carries each atom
    """
    counted: list[dict[int, float]] = [{} for _ in bodies]
    for atom, own in enumerate(body.tolist()):
        counted[own][atom] = float(mass[atom])
    rest = {ANGLE: 1, TORSION: 2}  # how many of the two atoms of a bond its motion leaves at rest
    for k, one in enumerate(bodies):
        for atom in one.bond[: rest.get(one.motion, 0) if share else 0]:
            owner, other = (k, one.parent) if atom in counted[k] else (one.parent, k)
            half = counted[owner][atom] / 2
            counted[owner][atom] = half
            counted[other][atom] = counted[other].get(atom, 0.0) + half
    return [(np.array(list(x), int), np.array(list(x.values()))) for x in counted]


def _rigid(m: Array, r: Array) -> tuple[float, Array, Array]:
    """Mass, mass centre and inertia about it, of mass points; all zero if there are none."""
    total = m.sum()
    centre = m @ r / total if total else np.zeros(3)
    d = r - centre
    inertia = (m * (d * d).sum(1)).sum() * np.eye(3) - (m * d.T) @ d
    return total, centre, inertia if len(m) > 1 else np.zeros((3, 3))


def _volume(structure: Structure, parts: Parts, places: Array, model: Model, bodies: Sequence[BondJoint]) -> Volume:
    """The volume element of the angles and lengths of a tree."""
    angle, length = list[tuple[int, int, float]](), list[tuple[int, int, float]]()
    for k, one in enumerate(bodies):
        b, c = one.bond
        last = int(model.q_start[k + 1]) - 1, int(model.v_start[k + 1]) - 1  # a cylindrical joint turns, then shifts
        if one.motion == ANGLE:
            x, y = places[before(structure, parts, b, c)] - places[b], places[c] - places[b]
            angle.append((*last, float(np.arctan2(np.linalg.norm(np.cross(x, y)), x @ y))))
        elif one.motion.startswith(LENGTH):
            length.append((*last, float(np.linalg.norm(places[c] - places[b]))))
    return Volume(angle, length)


def _refuse_rods(structure: Structure, counted: list[tuple[Array, Array]], inertia: Array, names: list[str]) -> None:
    """Raise if a body is a point or a rod: its inertia about one axis vanishes."""
    moments = np.linalg.eigvalsh(inertia)
    thin = np.flatnonzero(moments[:, 0] <= COLLINEAR * moments[:, 2])
    if len(thin):
        k = int(thin[0])
        atoms = ", ".join(structure.title(a) for a in counted[k][0][:4].tolist())
        raise ModelError(
            f"the atoms of body {names[k]!r} ({atoms}) lie on one line: it has no inertia about it. Ions and diatomic "
            "molecules are no torsion trees; leave them out, or hold the torsion"
        )


def _refuse_singular(model: Model) -> None:
    """Raise if M is singular: all atoms of a branch lie on one line."""
    try:
        log_det_mass_matrix(model, model.neutral())
    except SingularError as error:
        raise ModelError(
            f"{error}. Bonds on one line have no soft angles and torsions: ions and diatomic molecules are no trees; "
            "leave them out, or hold what is named"
        ) from None
