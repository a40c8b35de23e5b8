"""Polymers without a force field: chains of beads with closed forms for their sizes.

Lengths are in nm, masses in amu and energies in kJ/mol, as for molecules. Every chain is a `Torsions`: the methods of
this package move it. Beads are C atoms of one residue.

Freely rotating chains keep their bond angles, and turn about their bonds in space. Planar and spatial chains bend at
every bead: freely jointed, or stiff as a worm-like chain is. With Fixman's potential their torsions and bends have the
distribution of stiff springs; without, that of rigid bonds, whose weight is sqrt(det M) (H. A. Kramers, J. Chem. Phys.
14, 1946; M. Fixman, PNAS 71, 1974).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torsor.dynamics.points import Points
from torsor.model.extras import Extras
from torsor.model.model import Model
from torsor.molecule.molecule import Molecule, Torsions
from torsor.molecule.structure import Array, Residue, Structure
from torsor.molecule.tree import UNITS
from torsor.validate import integer, number

BOND, ANGLE, BEAD = 0.153, 112.0, 15.0  # nm, degrees, amu: carbon chains
ROUND = 0.1  # moment of inertia of a bead in space, relative to mass * bond^2: a ball half a bond in radius


def beads(n: int) -> Structure:
    """n beads in a row."""
    names = [f"C{k + 1}" for k in range(n)]
    chain = Residue("POL", "1", "", {name: k for k, name in enumerate(names)})
    return Structure(names, ["C"] * n, [chain], np.zeros(n, int), np.stack([np.arange(n - 1), np.arange(1, n)], axis=1))


def freely_rotating(n: int, *, bond: float = BOND, angle: float = ANGLE, mass: float = BEAD) -> Torsions:
    """A chain of n beads in space with rigid bonds and bond angles (degrees), all torsions free; at first a zigzag."""
    integer("n", n, least=4)
    number("angle", angle, above=0)
    bend = np.radians(180.0 - number("angle", angle, above=0)) / 2
    steps = number("bond", bond, above=0) * np.array(
        [[np.cos(bend), np.sin(bend), 0.0], [np.cos(bend), -np.sin(bend), 0.0]]
    )
    places = np.concatenate([np.zeros((1, 3)), np.cumsum(steps[np.arange(n - 1) % 2], axis=0)])
    chain = Molecule(beads(n), places, np.full(n, number("mass", mass, above=0)), name=f"freely rotating chain of {n}")
    return chain.torsions(hydrogen_mass=None)


def planar(n: int, *, bond: float = BOND, mass: float = BEAD) -> Torsions:
    """A chain of n beads and the bead at the origin on which it hangs, in the plane; it bends at every bead.

    q are the angles between successive bonds, the first with the x axis.
    """
    return _hung(n, bond, mass, "planar", "revolute", 0.0)


def spatial(n: int, *, bond: float = BOND, mass: float = BEAD) -> Torsions:
    """A chain of n beads and the bead at the origin on which it hangs, in space; it bends at every bead.

    q are quaternions, each of a bond relative to the one before it. Beads are balls, not points: a bond also turns
    about itself, and needs inertia for it. sqrt(det M) of two bonds is
    ((2 + a) (1 + a) - cos^2)^(1/2) ((2 + a) (1 + a) - 1)^(1/2) with a = `ROUND`.
    """
    return _hung(n, bond, mass, "spatial", "spherical", ROUND)


def _hung(n: int, bond: float, mass: float, words: str, joint: str, roundness: float) -> Torsions:
    """A chain of n beads on the bead at the origin."""
    integer("n", n, least=1)
    end = (number("bond", bond, above=0), 0.0, 0.0)
    model = Model.tree(
        np.arange(-1, n - 1), joint, n=n, p=np.where(np.arange(n)[:, None] > 0, end, 0.0),
        mass=number("mass", mass, above=0), com=end, inertia=np.full(3, roundness * mass * bond**2),
        gravity=(0.0, 0.0, 0.0), allow_degenerate=not roundness, name=f"{words} chain of {n}",
    ).with_extras(Extras(units=UNITS))  # fmt: skip
    places = np.arange(n + 1)[:, None] * np.array(end)
    masses = np.append(0.0, np.full(n, mass))  # the first bead is held
    chain = Molecule(beads(n + 1), places, masses, name=model.name)
    points = Points(model, np.arange(-1, n), np.concatenate([np.zeros((1, 3)), np.tile(end, (n, 1))]))
    return Torsions(chain, model, points, ())


@dataclass(frozen=True)
class Bending:
    """The stiffness of a worm-like chain: U = k sum (1 - cos of the angle between successive bonds), k in kJ/mol."""

    k: float

    def __call__(self, x: Array) -> tuple[Array, Array]:
        bonds = np.diff(x, axis=-2)
        length = np.linalg.norm(bonds, axis=-1, keepdims=True)
        t = bonds / length
        cosine = (t[..., 1:, :] * t[..., :-1, :]).sum(-1, keepdims=True)
        pull = np.zeros_like(bonds)  # -dU/d bond
        pull[..., :-1, :] += (t[..., 1:, :] - cosine * t[..., :-1, :]) / length[..., :-1, :]
        pull[..., 1:, :] += (t[..., :-1, :] - cosine * t[..., 1:, :]) / length[..., 1:, :]
        forces = np.zeros_like(x)
        forces[..., 1:, :] += self.k * pull
        forces[..., :-1, :] -= self.k * pull
        return self.k * (1 - cosine).sum((-1, -2)), forces


# Closed forms ------------------------------------------------------------------------------------------------------


def mean_square_end_to_end(bonds: int, bond: float, cosine: float) -> float:
    """<R^2> of a chain whose successive bonds have this mean cosine, independent of each other.

    n b^2 ((1 + c) / (1 - c) - 2 c (1 - c^n) / (n (1 - c)^2))                       (P. J. Flory 1969, chapter I)
    """
    n, c = bonds, cosine
    return n * bond**2 * ((1 + c) / (1 - c) - 2 * c * (1 - c**n) / (n * (1 - c) ** 2))


def mean_cosine_planar(k: float, kT: float) -> float:
    """<cos> between successive bonds of a planar chain with `Bending(k)`: I1(k/kT) / I0(k/kT)."""
    from scipy.special import ive

    return float(ive(1, k / kT) / ive(0, k / kT))


def mean_cosine_spatial(k: float, kT: float) -> float:
    """<cos> between successive bonds of a spatial chain with `Bending(k)`: coth(k/kT) - kT/k, and 0 for k = 0."""
    x = k / kT
    return x / 3 if abs(x) < 1e-4 else 1 / np.tanh(x) - 1 / x
