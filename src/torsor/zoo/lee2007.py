"""The machines of Lee, Wang & Chirikjian 2007: a PUMA 560 and polypeptide chains.

`puma_lee` and `polypeptide` have the data behind the printed mass matrices; `polypeptide_faithful` is the chain that
the text of section 4.3 describes.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.lie import rodrigues
from torsor.linalg import Vec
from torsor.model.extras import Extras
from torsor.model.joints import JOINTS
from torsor.model.model import Model
from torsor.model.portable import cosine_and_sine, product
from torsor.validate import chosen
from torsor.zoo.families import check_length

Array = NDArray[np.float64]

ATOMS = ("CA", "C", "N")
# The paper's names of the four parameters of a joint, and those of `Model.from_dh`.
DH_NAMES = {"beta": "alpha", "gamma": "theta", "b": "a", "c": "d"}


def puma_lee(soft: str = "beta") -> Model:
    """Build the PUMA 560 of Lee et al. 2007; all its angles gamma are 60 degrees at q = 0.

    Parameters
    ----------
    soft : str, default "beta"
        "beta": the joint variables of the printed M and M^-1; "gamma": those of the text.

    Returns
    -------
    model : Model
        Six joints.

    Raises
    ------
    ArgumentError
        soft is neither of these.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.puma_lee("gamma").n
    6
    """
    variable = DH_NAMES[chosen("soft", soft, ("beta", "gamma"))]
    return Model.from_dh(**dh_columns("puma_lee") | {"variable": variable, "name": f"puma_lee({soft})"})


def polypeptide(n: int = 7) -> Model:
    """Build the polypeptide of Lee et al. 2007 with n links and every torsion soft, as in its Figure 3.

    At n = 7 it has the data behind the printed M and M^-1; longer chains repeat links 2 to 7.

    Parameters
    ----------
    n : int, default 7
        The number of links.

    Returns
    -------
    model : Model
        n revolute joints.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.polypeptide(20).nv
    20
    """
    check_length(n)
    columns = dh_columns("polypeptide")
    row = np.where(np.arange(n) == 0, 0, 1 + (np.arange(n) - 1) % 6)
    repeated = {key: np.array(columns[key])[row] for key in ("alpha", "a", "theta", "d", "mass", "com", "inertia")}
    words = {"variable": "alpha", "names": atom_names(n), "name": f"polypeptide({n})"}
    extras = Extras.of(columns.pop("extras"))
    return Model.from_dh(**columns | repeated | words).with_extras(extras)


def atom_names(n: int) -> list[str]:
    return [f"{ATOMS[i % 3]}{i + 1}" for i in range(n)]


def dh_columns(name: str) -> dict[str, Any]:
    """The Denavit-Hartenberg table of a zoo machine by column: the arguments of `Model.from_dh`, and extras."""
    table = tomllib.loads((files(__package__) / f"{name}.toml").read_text(encoding="utf-8"))
    dh = table.pop("dh")
    links = dh.pop("link")
    columns = {key: [link[key] for link in links] for key in links[0]}
    return {**table, **dh, **columns, "names": columns.pop("name")}


# The chain of the text -------------------------------------------------------------------------------------

# Atomic masses (amu), bond lengths (angstrom) and the bond angles gamma (degrees) of Table II, which repeat.
C, N, H, O = 12.0107, 14.00674, 1.00794, 15.9994
BOND = (1.458, 1.525, 1.329)  # N-CA, CA-C', C'-N: the bond that ends in CA, C', N
GAMMA = (70.5, 296.2, 58.3, 289.5, 63.8, 301.7)
TORSION = 60.0  # at q = 0, except for the first bond

# Positions in the frame of the backbone atom, x along the next bond. The side groups of CA close a regular
# tetrahedron: cos and sin of half its angle are 1/sqrt(3) and sqrt(2/3). The paper prints no lengths; these
# agree with its figures: mass centres (-0.2846, -0.4026, 0.6339), (-0.386, 0.5877, 0), (-0.033, -0.0591, 0).
HALF = np.array([1.0, np.sqrt(2.0)]) / np.sqrt(3.0)
METHYL = 1.521 * np.array([-HALF[0] * HALF[0], -HALF[0] * HALF[1], HALF[1]])
HYDROGEN = 1.080 * np.array([-HALF[0] * HALF[0], -HALF[0] * HALF[1], -HALF[1]])
OXYGEN = np.array([-0.386, 0.5877, 0.0]) * (C + O) / O
AMIDE_HYDROGEN = np.array([-0.033, -0.0591, 0.0]) * (N + H) / H
ORIGIN = np.zeros(3)


class MassProperties(NamedTuple):
    mass: float
    com: Array
    inertia: Array


def polypeptide_faithful(n: int = 7) -> Model:
    """Build a polyalanine backbone of n links: atoms with their side groups, joined by torsions about the bonds.

    Atoms run CA, C', N, CA, ...; units are amu and angstrom, without gravity. Unlike the data behind the printed
    matrices (`polypeptide`), it has Table II's angles, full masses and full inertia tensors. Like them, it has one body
    for each kind of atom. C'=O and N-H are rods: their inertia is singular.

    Parameters
    ----------
    n : int, default 7
        The number of links.

    Returns
    -------
    model : Model
        n revolute joints.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.polypeptide_faithful().nv
    7
    """
    check_length(n)
    k = np.arange(n)
    bodies = (
        _body((C, ORIGIN), (C + 3 * H, METHYL), (H, HYDROGEN)),
        _body((C, ORIGIN), (O, OXYGEN)),
        _body((N, ORIGIN), (H, AMIDE_HYDROGEN)),
    )
    mass, com, inertia = (np.array(column)[k % 3] for column in zip(*bodies))
    return Model.from_dh(
        variable="alpha",
        degrees=True,
        a=np.where(k == 0, 0.0, np.array(BOND)[k % 3]),
        alpha=np.where(k == 0, 0.0, TORSION),
        theta=np.array(GAMMA)[k % 6],
        mass=mass,
        com=com,
        inertia=inertia,
        gravity=(0.0, 0.0, 0.0),
        names=atom_names(n),
        name=f"polypeptide_faithful({n})",
        allow_degenerate=True,
    )


def polypeptide_planar(n: int = 7) -> Model:
    """Build `polypeptide_faithful` with every peptide bond C'-N held at 180 degrees: n atoms, n - n // 3 torsions.

    At n = 7 this is the five-variable case of section 4.3 (beta_3 = beta_6 = 180 degrees). C'=O and N-H form one plane
    body, whose inertia is regular.

    Parameters
    ----------
    n : int, default 7
        The number of atoms.

    Returns
    -------
    model : Model
        n - n // 3 revolute joints.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.polypeptide_planar().nv
    5
    """
    model = polypeptide_faithful(n)
    return hold_bodies(model, np.arange(n) % 3 == 2, np.radians(180.0 - TORSION), name=f"polypeptide_planar({n})")


def hold_bodies(model: Model, bodies: NDArray[np.bool_], angle: float, **words: Any) -> Model:
    """The model with the revolute joints of some bodies (a mask) held at an angle; these bodies become frames."""
    c, s = cosine_and_sine(np.array([angle]))
    turned = product(model.R, np.moveaxis(np.array(rodrigues(Vec(*model.axis.T), c, s)), -1, 0))
    joints = ["fixed" if fixed else JOINTS[code].name for fixed, code in zip(bodies, model.joint)]
    return Model.tree(
        model.parent,
        joints,
        axis=model.axis,
        R=np.where(bodies[:, None, None], turned, model.R),
        p=model.p,
        mass=model.mass,
        com=model.com,
        inertia=model.inertia,
        gravity=model.gravity,
        names=list(model.names),
        allow_degenerate=model.allow_degenerate,
        **words,
    )


def _body(*points: tuple[float, Any]) -> MassProperties:
    """Mass, mass centre and inertia sum m (|d|^2 1 - d d') of point masses."""
    m, r = np.array([mass for mass, _ in points]), np.array([place for _, place in points])
    com = (m[:, None] * r).sum(axis=0) / m.sum()
    d = r - com
    S = product((m[:, None] * d).T, d)
    return MassProperties(m.sum(), com, np.trace(S) * np.eye(3) - S)
