"""A humanoid machine: a floating pelvis, and 30 revolute joints in its waist, neck, arms and legs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torsor.model.builder import Builder
from torsor.model.model import Model

X, Y, Z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


class Box(NamedTuple):
    """A box attached to the part before it: x is forward, y to the left, z up."""

    name: str
    axis: tuple[float, float, float]
    p: tuple[float, float, float]  # its joint, on the part before
    mass: float
    size: tuple[float, float, float]
    com: tuple[float, float, float]


PELVIS = Box("pelvis", Z, (0.0, 0.0, 0.0), 9.0, (0.18, 0.28, 0.16), (0.0, 0.0, 0.02))
TORSO = (
    Box("waist", Z, (0.0, 0.0, 0.10), 2.0, (0.12, 0.16, 0.08), (0.0, 0.0, 0.03)),
    Box("chest", Y, (0.0, 0.0, 0.07), 16.0, (0.20, 0.32, 0.36), (0.01, 0.0, 0.19)),
)
NECK = (
    Box("neck", Z, (0.0, 0.0, 0.40), 0.8, (0.07, 0.07, 0.08), (0.0, 0.0, 0.03)),
    Box("head", Y, (0.0, 0.0, 0.07), 4.0, (0.18, 0.15, 0.22), (0.02, 0.0, 0.10)),
)
LEFT_ARM = (
    Box("shoulder_pitch", Y, (0.0, 0.19, 0.34), 1.0, (0.08, 0.08, 0.08), (0.0, 0.02, 0.0)),
    Box("shoulder_roll", X, (0.0, 0.04, 0.0), 0.8, (0.08, 0.08, 0.08), (0.0, 0.01, -0.02)),
    Box("upper_arm", Z, (0.0, 0.0, -0.06), 1.6, (0.08, 0.08, 0.24), (0.0, 0.0, -0.11)),
    Box("elbow", Y, (0.0, 0.0, -0.24), 0.6, (0.07, 0.07, 0.07), (0.0, 0.0, -0.02)),
    Box("forearm", Z, (0.0, 0.0, -0.05), 0.9, (0.06, 0.06, 0.20), (0.0, 0.0, -0.09)),
    Box("wrist", X, (0.0, 0.0, -0.20), 0.2, (0.05, 0.05, 0.05), (0.0, 0.0, -0.01)),
    Box("hand", Y, (0.0, 0.0, -0.03), 0.4, (0.03, 0.08, 0.16), (0.0, 0.0, -0.08)),
)
LEFT_LEG = (
    Box("hip_yaw", Z, (0.0, 0.09, -0.06), 1.2, (0.10, 0.10, 0.08), (0.0, 0.0, -0.03)),
    Box("hip_roll", X, (0.0, 0.0, -0.06), 1.2, (0.10, 0.10, 0.08), (-0.01, 0.0, 0.0)),
    Box("thigh", Y, (0.0, 0.01, 0.0), 6.0, (0.13, 0.12, 0.38), (0.01, 0.0, -0.18)),
    Box("shin", Y, (0.0, 0.0, -0.40), 3.0, (0.10, 0.09, 0.36), (0.01, 0.0, -0.17)),
    Box("ankle", Y, (0.0, 0.0, -0.40), 0.4, (0.06, 0.06, 0.05), (0.0, 0.0, 0.0)),
    Box("foot", X, (0.0, 0.0, 0.0), 0.9, (0.24, 0.09, 0.05), (0.04, 0.0, -0.05)),
)


def humanoid() -> Model:
    """Build a humanoid: 31 bodies, 6 + 30 degrees of freedom, 68 kg, about 1.7 m; frames at hands and feet.

    Returns
    -------
    model : Model
        A floating pelvis and 30 revolute joints.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.zoo.humanoid()
    Model('humanoid', 31 bodies: 30 revolute, 1 free; nq=37, nv=36)
    """
    builder = Model.builder("humanoid")
    _add(builder, PELVIS, None, joint="free")
    _hang(builder, TORSO, "pelvis")
    _hang(builder, NECK, "chest")
    for side, mirror in (("left", 1.0), ("right", -1.0)):
        _hang(builder, LEFT_ARM, "chest", f"{side}_", mirror)
        _hang(builder, LEFT_LEG, "pelvis", f"{side}_", mirror)
        builder.frame(f"{side}_palm", f"{side}_hand", p=(0.0, 0.0, -0.10))
        builder.frame(f"{side}_sole", f"{side}_foot", p=(0.03, 0.0, -0.075))
    return builder.build()


def _hang(builder: Builder, limb: tuple[Box, ...], parent: str, prefix: str = "", mirror: float = 1.0) -> None:
    for part in limb:
        part = part._replace(name=prefix + part.name)
        _add(builder, part, parent, mirror=mirror)
        parent = part.name


def _add(builder: Builder, part: Box, parent: str | None, *, joint: str = "revolute", mirror: float = 1.0) -> None:
    """A solid box, I = m/12 diag(b^2 + c^2, a^2 + c^2, a^2 + b^2); mirror = -1 reflects it in y = 0."""
    square = np.square(part.size)
    builder.add(
        part.name,
        parent,
        joint,
        axis=part.axis,
        p=np.multiply(part.p, (1.0, mirror, 1.0)),
        mass=part.mass,
        com=np.multiply(part.com, (1.0, mirror, 1.0)),
        inertia=part.mass / 12 * (square.sum() - square),
    )
