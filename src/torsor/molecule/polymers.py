"""Polymers without a force field: chains of beads with closed forms for their sizes.

Lengths are in nm, masses in amu and energies in kJ/mol, as for molecules. Every chain is a `Torsions`: the methods of
this package move it. Beads are C atoms of one residue.

Freely rotating chains keep their bond angles, and turn about their bonds in space. Planar and spatial chains bend at
every bead: freely jointed, or with the stiffness of a worm-like chain. With Fixman's potential their torsions and bends
have the distribution of stiff springs; without it, that of rigid bonds, whose weight is sqrt(det M) (H. A. Kramers,
J. Chem. Phys. 14, 1946; M. Fixman, PNAS 71, 1974).
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


def freely_rotating(n: int, *, bond: float = BOND, angle: float = ANGLE, mass: float = BEAD, soft: str = "chi"
                    ) -> Torsions:  # fmt: skip
    """Build a chain of beads in space with rigid bonds and bond angles and free torsions; it starts as a zigzag.

    Parameters
    ----------
    n : int
        The number of beads, at least 4.
    bond : float, default 0.153
        In nm.
    angle : float, default 112
        Between successive bonds, in degrees.
    mass : float, default 15
        Of a bead, in amu.
    soft : str, default "chi"
        "chi angle", "chi length" or "chi angle length": bonds also bend or stretch. They need a potential, such as
        `Elastic`, that holds the chain together.

    Returns
    -------
    chain : Torsions
        With n - 3 torsions and a free root, and n - 2 angles and n - 1 lengths if these are soft.

    Examples
    --------
    >>> from torsor.molecule import polymers
    >>> polymers.freely_rotating(10).kinds
    {'chi': 7}
    >>> polymers.freely_rotating(10, soft="chi angle").model.nv
    21
    """
    integer("n", n, least=4)
    number("angle", angle, above=0)
    bend = np.radians(180.0 - number("angle", angle, above=0)) / 2
    steps = number("bond", bond, above=0) * np.array(
        [[np.cos(bend), np.sin(bend), 0.0], [np.cos(bend), -np.sin(bend), 0.0]]
    )
    places = np.concatenate([np.zeros((1, 3)), np.cumsum(steps[np.arange(n - 1) % 2], axis=0)])
    chain = Molecule(beads(n), places, np.full(n, number("mass", mass, above=0)), name=f"freely rotating chain of {n}")
    return chain.torsions(soft, hydrogen_mass=None)


def planar(n: int, *, bond: float = BOND, mass: float = BEAD) -> Torsions:
    """Build a chain of beads in the plane, which bends at every bead; a fixed bead at the origin is its parent.

    q are the angles between successive bonds, the first with the x axis.

    Parameters
    ----------
    n : int
        The number of beads that move.
    bond : float, default 0.153
        In nm.
    mass : float, default 15
        Of a bead, in amu.

    Returns
    -------
    chain : Torsions
        With n bends.

    Examples
    --------
    >>> from torsor.molecule import polymers
    >>> polymers.planar(6).model.nv
    6
    """
    return _hung(n, bond, mass, "planar", "revolute", 0.0)


def spatial(n: int, *, bond: float = BOND, mass: float = BEAD) -> Torsions:
    """A chain of n beads in space, which bends at every bead; a fixed bead at the origin is its parent.

    q are quaternions, each of a bond relative to the bond before it. Beads are balls, not points: a bond also turns
    about itself, which needs inertia. sqrt(det M) of two bonds is
    ((2 + a) (1 + a) - cos^2)^(1/2) ((2 + a) (1 + a) - 1)^(1/2) with a = `ROUND`.
    """
    return _hung(n, bond, mass, "spatial", "spherical", ROUND)


def _hung(n: int, bond: float, mass: float, words: str, joint: str, roundness: float) -> Torsions:
    """A chain of n beads whose parent is the fixed bead at the origin."""
    integer("n", n, least=1)
    end = (number("bond", bond, above=0), 0.0, 0.0)
    model = Model.tree(
        np.arange(-1, n - 1), joint, n=n, p=np.where(np.arange(n)[:, None] > 0, end, 0.0),
        mass=number("mass", mass, above=0), com=end, inertia=np.full(3, roundness * mass * bond**2),
        gravity=(0.0, 0.0, 0.0), allow_degenerate=not roundness, name=f"{words} chain of {n}",
    ).with_extras(Extras(units=UNITS))  # fmt: skip
    places = np.arange(n + 1)[:, None] * np.array(end)
    masses = np.append(0.0, np.full(n, mass))  # the first bead is fixed
    chain = Molecule(beads(n + 1), places, masses, name=model.name)
    points = Points(model, np.arange(-1, n), np.concatenate([np.zeros((1, 3)), np.tile(end, (n, 1))]))
    return Torsions(chain, model, points, ())


@dataclass(frozen=True)
class Bending:
    """Compute the energy of a worm-like chain: k times the sum of 1 - cos of the angles between successive bonds.

    It is a potential for `hmc` and the others: `potential=Bending(k)`.

    Parameters
    ----------
    k : float
        The stiffness, in kJ/mol.

    Examples
    --------
    >>> from torsor import molecule
    >>> from torsor.molecule import polymers
    >>> run = molecule.hmc(polymers.planar(6), 10, step=0.02, potential=polymers.Bending(5.0))
    >>> run.potential.shape
    (11, 1)
    """

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


@dataclass(frozen=True)
class Elastic:
    r"""Compute the energy of a chain whose bonds and angles are springs.

    $$ U = \frac{k_r}{2} \sum (r - r_0)^2 + \frac{k_c}{2} \sum (\cos\theta - \cos\theta_0)^2 $$

    Each length has the density exp(-U/kT) r^2, and the cosine of each angle exp(-U/kT).

    Parameters
    ----------
    length : float
        The stiffness k_r of bonds, in kJ/mol/nm^2.
    cosine : float
        The stiffness k_c of the cosines of angles, in kJ/mol.
    bond : float, default 0.153
        The length r0 at rest, in nm.
    angle : float, default 112
        The angle at rest between the bonds of a bead, in degrees.

    Examples
    --------
    >>> from torsor import molecule
    >>> from torsor.molecule import polymers
    >>> chain = polymers.freely_rotating(6, soft="chi angle length")
    >>> run = molecule.dynamics(chain, 0.2, step=0.002, potential=polymers.Elastic(6000.0, 100.0))
    >>> bool(run.end_to_end(0, 1).std() > 0)
    True
    """

    length: float
    cosine: float
    bond: float = BOND
    angle: float = ANGLE

    def __call__(self, x: Array) -> tuple[Array, Array]:
        bonds = np.diff(x, axis=-2)
        r = np.linalg.norm(bonds, axis=-1, keepdims=True)
        t = bonds / r
        c = -(t[..., 1:, :] * t[..., :-1, :]).sum(-1, keepdims=True)
        longer, off = r - self.bond, c - np.cos(np.radians(self.angle))
        pull = -self.length * longer * t  # -dU/d bond
        pull[..., :-1, :] += self.cosine * off * (t[..., 1:, :] + c * t[..., :-1, :]) / r[..., :-1, :]
        pull[..., 1:, :] += self.cosine * off * (t[..., :-1, :] + c * t[..., 1:, :]) / r[..., 1:, :]
        forces = np.zeros_like(x)
        forces[..., 1:, :] += pull
        forces[..., :-1, :] -= pull
        return (self.length * (longer**2).sum((-1, -2)) + self.cosine * (off**2).sum((-1, -2))) / 2, forces


# Closed forms ------------------------------------------------------------------------------------------------------


def mean_square_end_to_end(bonds: int, bond: float, cosine: float) -> float:
    r"""Compute the mean square end-to-end distance of a chain whose bonds turn independently of each other.

    $$ \langle R^2 \rangle = n b^2 \left(\frac{1 + c}{1 - c} - \frac{2 c (1 - c^n)}{n (1 - c)^2}\right) $$

    Parameters
    ----------
    bonds : int
        Their number n.
    bond : float
        Their length b.
    cosine : float
        The mean cosine c of the angle between successive bonds.

    Returns
    -------
    square : float
        In the square of the unit of b.

    Notes
    -----
    P. J. Flory 1969, chapter I.

    Examples
    --------
    >>> from torsor.molecule import polymers
    >>> polymers.mean_square_end_to_end(100, 1.0, 0.0)  # freely jointed
    100.0
    """
    n, c = bonds, cosine
    return n * bond**2 * ((1 + c) / (1 - c) - 2 * c * (1 - c**n) / (n * (1 - c) ** 2))


def mean_cosine_planar(k: float, kT: float) -> float:
    """Compute the mean cosine between successive bonds of a planar chain with `Bending(k)`: I1(k/kT) / I0(k/kT).

    Parameters
    ----------
    k : float
        The stiffness, in kJ/mol.
    kT : float
        The temperature as an energy, in kJ/mol.

    Returns
    -------
    cosine : float
        Between 0 and 1.

    Examples
    --------
    >>> from torsor.molecule import polymers
    >>> round(polymers.mean_cosine_planar(5.0, 2.5), 3)
    0.698
    """
    from scipy.special import ive

    return float(ive(1, k / kT) / ive(0, k / kT))


def mean_cosine_spatial(k: float, kT: float) -> float:
    """<cos> between successive bonds of a spatial chain with `Bending(k)`: coth(k/kT) - kT/k, and 0 for k = 0."""
    x = k / kT
    return x / 3 if abs(x) < 1e-4 else 1 / np.tanh(x) - 1 / x
