"""Machines of the papers and families of chains, ready to use: `zoo.puma560()`, `zoo.get("rope", n=100)`.

A machine is a TOML file in this folder, which states the source of its numbers. Models with a variable length or a
symmetry are built by a function.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

from torsor.errors import ArgumentError
from torsor.formats import toml
from torsor.model.model import Model
from torsor.validate import shown
from torsor.zoo.families import general_arm, point_chain, random_chain, random_tree, rope
from torsor.zoo.humanoid import humanoid
from torsor.zoo.lee2007 import polypeptide, polypeptide_faithful, polypeptide_planar, puma_lee
from torsor.zoo.small import acrobot, cart_pole, double_pendulum, pendulum


def puma560() -> Model:
    """Build the industrial PUMA 560, with the link data measured by Armstrong, Khatib & Burdick 1986.

    Returns
    -------
    model : Model
        Six revolute joints.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.puma560()
    Model('puma560', 6 bodies: 6 revolute; nq=6, nv=6)
    """
    return _machine("puma560")


def planar3() -> Model:
    """Build a planar arm of three joints after Saha 2001, falling in its plane; the data are chosen.

    Returns
    -------
    model : Model
        Three revolute joints with parallel axes.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.planar3().nv
    3
    """
    return _machine("planar3")


def stanford() -> Model:
    """Build the Stanford arm of Saha 2001, Table II: five revolute joints and a prismatic one.

    Returns
    -------
    model : Model
        Six joints; the third one is prismatic.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.stanford()
    Model('stanford', 6 bodies: 5 revolute, 1 prismatic; nq=6, nv=6)
    """
    return _machine("stanford")


def puma_saha() -> Model:
    """Build the PUMA of Saha 2001, Table II, with the absolute values of its moments of inertia.

    Returns
    -------
    model : Model
        Six revolute joints.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.puma_saha().n
    6
    """
    return _machine("puma_saha")


def panda() -> Model:
    """Build a seven-joint arm with the kinematics of the Franka Emika Panda and plausible, chosen inertias.

    Returns
    -------
    model : Model
        Seven revolute joints, 15.9 kg.

    Examples
    --------
    >>> import torsor as ts
    >>> arm = ts.zoo.panda()
    >>> print(arm.nv, arm.mass.sum().round(1))
    7 15.9
    """
    return _machine("panda")


_FACTORIES: dict[str, Callable[..., Model]] = {
    factory.__name__: factory
    for factory in (
        puma560, puma_lee, polypeptide, polypeptide_faithful, polypeptide_planar, planar3, stanford, puma_saha, panda,
        humanoid, point_chain, rope, random_tree, random_chain, general_arm, pendulum, double_pendulum, cart_pole,
        acrobot,
    )
}  # fmt: skip


def names() -> tuple[str, ...]:
    """List the names of all machines and families of the zoo.

    Returns
    -------
    names : tuple of str
        The names for `get` and for the command line.

    Examples
    --------
    >>> import torsor as ts
    >>> "panda" in ts.zoo.names()
    True
    """
    return tuple(_FACTORIES)


def get(name: str, *args: Any, **options: Any) -> Model:
    """Build the machine of that name.

    Parameters
    ----------
    name : str
        One of `names()`.
    *args : int
        The length of a family, and the seed.
    **options : float or bool
        Further arguments of its function.

    Returns
    -------
    model : Model
        The machine.

    Raises
    ------
    ArgumentError
        The zoo has no machine of that name.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.get("rope", 100).nv
    200
    """
    if not isinstance(name, str) or name not in _FACTORIES:
        raise ArgumentError(f"the zoo has no {shown(name)}; it has {', '.join(_FACTORIES)}")
    return _FACTORIES[name](*args, **options)


def _machine(name: str) -> Model:
    file = files(__name__) / f"{name}.toml"
    return toml.read(file.read_text(encoding="utf-8"), file.name)


__all__ = ["get", "names", *_FACTORIES]
