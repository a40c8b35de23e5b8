"""Machines of the papers and families of chains, ready to use: `zoo.puma560()`, `zoo.get("rope", n=100)`.

A machine is a TOML file beside this one, which says where its numbers come from. Models with a variable length or a
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
    """The industrial PUMA 560, with the link data measured by Armstrong, Khatib & Burdick 1986."""
    return _machine("puma560")


def planar3() -> Model:
    """A three-DoF planar arm after Saha 2001, falling in its plane; the data are chosen."""
    return _machine("planar3")


def stanford() -> Model:
    """The Stanford arm of Saha 2001, Table II: five revolute joints and a prismatic one."""
    return _machine("stanford")


def puma_saha() -> Model:
    """The PUMA of Saha 2001, Table II, with the absolute values of its moments of inertia."""
    return _machine("puma_saha")


def panda() -> Model:
    """A seven-joint arm with the kinematics of the Franka Emika Panda and chosen, plausible inertias."""
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
    """The names of all models in the zoo."""
    return tuple(_FACTORIES)


def get(name: str, *args: Any, **options: Any) -> Model:
    """The model of that name; families take their length and options: get("rope", 100)."""
    if not isinstance(name, str) or name not in _FACTORIES:
        raise ArgumentError(f"the zoo has no {shown(name)}; it has {', '.join(_FACTORIES)}")
    return _FACTORIES[name](*args, **options)


def _machine(name: str) -> Model:
    file = files(__name__) / f"{name}.toml"
    return toml.read(file.read_text(encoding="utf-8"), file.name)


__all__ = ["get", "names", *_FACTORIES]
