"""Families of chains of any length; some are random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.errors import ArgumentError
from torsor.lie import quaternion_to_matrix
from torsor.model.builder import BODY_BYTES
from torsor.model.joints import JOINTS
from torsor.model.model import Model
from torsor.model.portable import product, transposed
from torsor.validate import check_memory, flag, generator, number, real_array, shown

Array = NDArray[np.float64]


def point_chain(n: int, *, mass: ArrayLike = 1.0, length: ArrayLike = 1.0, free: bool = False) -> Model:
    """Build n point masses on rigid massless links in the plane z = 0, as in Lee & Chirikjian 2005, Fig. 1.

    Mass i sits at the far end of link i; joint i turns link i relative to link i - 1, about z. The chain lies along x
    at q = 0, and gravity pulls along -y.

    Parameters
    ----------
    n : int
        The number of links.
    mass : float or (n,) array_like, default 1.0
        The masses, in kg; (n + 1,) if the chain is free.
    length : float or (n,) array_like, default 1.0
        The lengths of the links, in m.
    free : bool, default False
        Whether the chain floats in its plane: it then begins with one more mass, at the near end of link 1. The first
        joint is planar, q = (x, y of that mass, theta_1, theta_2, ...).

    Returns
    -------
    model : Model
        The chain.

    Raises
    ------
    ArgumentError
        A mass is not positive, or the arrays have other lengths.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> print(ts.mass_matrix(ts.zoo.point_chain(2), np.zeros(2)))
    [[5. 2.]
     [2. 1.]]
    """
    check_length(n)
    flag("free", free)
    masses = _each("mass", mass, n + free)
    if not (masses > 0).all():
        raise ArgumentError(f"mass must be positive, not {shown(mass)}")
    lengths = _each("length", length, n)
    p, com, inertia = np.zeros((n, 3)), np.zeros((n, 3)), np.zeros((n, 3))
    p[1:, 0], com[:, 0] = lengths[:-1], lengths
    if free:  # link 1 carries two masses
        near, far = masses[:2]
        masses = np.array([near + far, *masses[2:]])
        com[0, 0] *= far / (near + far)
        inertia[0, 1:] = near * far / (near + far) * lengths[0] ** 2
    return Model.chain(
        ["planar" if free else "revolute", *["revolute"] * (n - 1)],
        p=p,
        mass=masses,
        com=com,
        inertia=inertia[..., None] * np.eye(3),
        gravity=(0.0, -9.81, 0.0),
        name="point_chain",
        allow_degenerate=True,
    )


def rope(n: int, *, length: float = 1.0, mass: float = 0.1, radius: float = 0.005) -> Model:
    """Build a rope that hangs from one end: n equal solid cylinders along -z, connected by universal joints.

    A rope bends but does not twist; a universal joint about x and y allows exactly this. So nv = 2 n.

    Parameters
    ----------
    n : int
        The number of links.
    length : float, default 1.0
        The length of the whole rope, in m.
    mass : float, default 0.1
        The mass of the whole rope, in kg.
    radius : float, default 0.005
        The radius of the rope, in m.

    Returns
    -------
    model : Model
        The rope.

    Raises
    ------
    ArgumentError
        The mass or the radius is not positive.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.rope(1000)
    Model('rope', 1000 bodies: 1000 universal; nq=2000, nv=2000)
    """
    check_length(n)
    length, mass, radius = number("length", length), number("mass", mass, above=0), number("radius", radius, above=0)
    step, share = length / n, mass / n
    across, along = share * (3 * radius * radius + step * step) / 12, share * radius * radius / 2
    return Model.chain(
        "universal",
        n=n,
        p=_after_base(n, (0.0, 0.0, -step)),
        mass=share,
        com=(0.0, 0.0, -step / 2),
        inertia=(across, across, along),
        name="rope",
    )


def random_tree(n: int, seed: int = 0, *, joints: Sequence[str] | None = None, branching: float = 0.3) -> Model:
    """Build a tree of n random bodies in which every requested joint type occurs, if n allows.

    Parameters
    ----------
    n : int
        The number of bodies.
    seed : int, default 0
        Of the random numbers.
    joints : sequence of str, optional
        Names of joint types. Default: all.
    branching : float, default 0.3
        The probability that the parent of a body is any earlier body instead of the previous one.

    Returns
    -------
    model : Model
        The tree.

    Raises
    ------
    ArgumentError
        There is no such joint type, or branching is not a probability.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.random_tree(5, 1, joints=["revolute"]).nv
    5
    """
    if not 0 <= number("branching", branching) <= 1:
        raise ArgumentError(f"branching is a probability between 0 and 1, not {branching}")
    check_length(n)
    rng = generator("seed", seed)
    before = np.arange(-1, n - 1)
    anywhere = rng.integers(-1, np.maximum(before, 0) + 1)  # -1: a new trunk grows from the base
    parent = np.where(rng.random(n) < branching, np.minimum(anywhere, before), before)
    return Model.tree(parent, **_random_links(n, rng, joints), name=f"random_tree({n}, {seed})")


def random_chain(n: int, seed: int = 0, *, joints: Sequence[str] | None = ("revolute",)) -> Model:
    """Build a chain of n random bodies with joints of the given types in random order.

    Parameters
    ----------
    n : int
        The number of bodies.
    seed : int, default 0
        Of the random numbers.
    joints : sequence of str, default ("revolute",)
        Names of joint types; None: all.

    Returns
    -------
    model : Model
        The chain.

    Raises
    ------
    ArgumentError
        There is no such joint type.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.random_chain(8, 3).is_chain
    True
    """
    check_length(n)
    links = _random_links(n, generator("seed", seed), joints)
    return Model.chain(**links, name=f"random_chain({n}, {seed})")


def general_arm(n: int, seed: int = 0) -> Model:
    """Build a revolute arm in which no Denavit-Hartenberg parameter and no entry of an inertia is special.

    The first axis is the base's z axis, as in the operation counts of Saha 2001 and elsewhere.

    Parameters
    ----------
    n : int
        The number of joints.
    seed : int, default 0
        Of the random numbers.

    Returns
    -------
    model : Model
        The arm.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.general_arm(6).nv
    6
    """
    check_length(n)
    rng = generator("seed", seed)
    alpha, a, d = rng.uniform(-2, 2, n), rng.uniform(-0.4, 0.4, n), rng.uniform(-0.3, 0.3, n)
    alpha[0] = a[0] = d[0] = 0
    return Model.from_dh(alpha=alpha, a=a, d=d, **_random_bodies(n, rng), name=f"general_arm({n}, {seed})")


def _each(name: str, x: ArrayLike, count: int) -> Array:
    """One number for all, or one per link."""
    return np.broadcast_to(real_array(name, x, (), (count,)), (count,)).copy()


def _after_base(n: int, step: tuple[float, float, float]) -> Array:
    """Placements of equal links: the first joint at the base's origin, the others a step further."""
    p = np.tile(step, (n, 1))
    p[:1] = 0
    return p


def _random_links(n: int, rng: np.random.Generator, joints: Sequence[str] | None) -> dict[str, Any]:
    """Arguments of Model.tree: the given joint types in equal shares, general placements and bodies."""
    names = [joint.name for joint in JOINTS] if joints is None else _joint_names(joints)
    joint = rng.permutation(np.resize(names, n))
    return {
        "joint": joint,
        "axis": rng.normal(size=(n, 3)),
        "pitch": np.where(joint == "helical", rng.uniform(-0.2, 0.2, n), 0),
        "R": _random_rotations(n, rng),
        "p": rng.normal(scale=0.3, size=(n, 3)),
        **_random_bodies(n, rng),
    }


def _joint_names(joints: Any) -> list[str]:
    """The requested joint type names; `Model` checks that they exist."""
    if not isinstance(joints, Sequence) or not joints or not all(isinstance(name, str) for name in joints):
        raise ArgumentError(f"joints must be names of joint types, or None for all, not {shown(joints)}")
    return [joints] if isinstance(joints, str) else list(joints)


def _random_bodies(n: int, rng: np.random.Generator) -> dict[str, Any]:
    """Physically possible mass properties: I = tr(S) 1 - S from a positive second moment S, see `check.py`."""
    mass, Q = rng.uniform(0.5, 3, n), _random_rotations(n, rng)
    spread = mass[:, None] * rng.uniform(0.05, 0.15, (n, 3)) ** 2
    S = product(Q * spread[:, None, :], transposed(Q))
    inertia = spread.sum(axis=1)[:, None, None] * np.eye(3) - S
    return {"mass": mass, "com": rng.normal(scale=0.1, size=(n, 3)), "inertia": inertia}


def _random_rotations(n: int, rng: np.random.Generator) -> Array:
    """Uniform on SO(3)."""
    q = rng.normal(size=(n, 4))
    return quaternion_to_matrix(q / np.linalg.norm(q, axis=1, keepdims=True))


def check_length(n: int) -> None:
    """Raise unless n is a number of links that fits into memory."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ArgumentError(f"n = {shown(n)}: a chain has a whole number of links, at least one")
    check_memory(f"n = {shown(n)}", int(n) * BODY_BYTES)
