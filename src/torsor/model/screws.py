"""Machines as products of exponentials: screws and poses at the zero position, without joint frames.

    T_i(q) = exp([S_1] q_1) ... exp([S_i] q_i) M_i           S_i of joint i on the way to body i, in the base frame
           = M_{0,1} exp([B_1] q_1) ... M_{i-1,i} exp([B_i] q_i),   B_i = Ad_{M_i^-1} S_i, in the frame of body i

R. W. Brockett 1984; Ploen & Park 1999, Eq. 1, whose S_i are the second form; K. M. Lynch & F. C. Park, Modern Robotics
(2017), whose space screws, home poses and spatial inertias are the arguments here.

The joint frame of a model lies on the axis: M_i, shifted to the point of the axis nearest to its origin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.errors import ModelError
from torsor.model.builder import as_rows, assemble
from torsor.model.names import Frame
from torsor.model.portable import product, transposed, turned
from torsor.validate import chosen

Array = NDArray[Any]

# |omega| - 1, or |v| - 1 of a prismatic joint: screws typed with ten decimals pass.
UNIT = 1e-9
# A pitch per length of the screw below this is rounding: the joint is revolute.
NO_PITCH = 1e-12
# Entries of a spatial inertia that a rigid body cannot have, relative to its mass.
RIGID = 1e-9


def screw_fields(S: ArrayLike, M: ArrayLike, inertias: ArrayLike, axes: str, **links: Any) -> dict[str, Any]:
    """The fields of the Model of these screws; see `Model.from_screws`."""
    chosen("axes", axes, ("space", "body"))
    S, M, G = as_rows("S", S, (6,)), as_rows("M", M, (4, 4)), as_rows("inertias", inertias, (6, 6))
    n = len(S)
    if len(M) != n or len(G) != n:
        raise ModelError(f"{n} screws need {n} home poses and {n} inertias, not {len(M)} and {len(G)}")
    R, p = M[:, :3, :3], M[:, :3, 3]
    if (M[:, 3] != (0, 0, 0, 1)).any():
        raise ModelError("the last row of a home pose is 0 0 0 1")
    w, v = S[:, :3], S[:, 3:]
    if axes == "space":
        w, v = turned(transposed(R), w), turned(transposed(R), v - np.cross(p, w))
    turns = np.linalg.norm(w, axis=1) > UNIT
    size = np.where(turns, np.linalg.norm(w, axis=1), np.linalg.norm(v, axis=1))
    for i in np.flatnonzero(~(np.abs(size - 1) <= UNIT))[:1]:
        raise ModelError(
            f"screw {i + 1}, {S[i].tolist()}, has size {size[i]:.6g}: give a unit angular part, or a unit linear "
            "part of a prismatic joint, and scale its coordinate"
        )
    at = np.where(turns[:, None], np.cross(w, v), 0.0)  # the nearest point of the axis, relative to the home frame
    pitch = np.where(turns, (w * v).sum(axis=1), 0.0)
    pitch[np.abs(pitch) <= NO_PITCH * np.linalg.norm(v, axis=1)] = 0.0
    joint = np.where(turns, np.where(pitch == 0, "revolute", "helical"), "prismatic")
    mass, com, inertia = _bodies(G)
    place = p + turned(R, at)
    parent = links.pop("parent", None)
    above = np.arange(-1, n - 1) if parent is None else np.asarray(parent)
    R0, p0 = np.concatenate([R, np.eye(3)[None]]), np.concatenate([place, np.zeros((1, 3))])
    if above.shape != (n,) or (above >= np.arange(n)).any() or (above < -1).any():
        raise ModelError(f"parent must give, for each of {n} bodies, the number of an earlier one or -1")
    fields = assemble(
        above, joint.tolist(), axis=np.where(turns[:, None], w, v), pitch=pitch, R=product(transposed(R0[above]), R),
        p=turned(transposed(R0[above]), place - p0[above]), mass=mass, com=np.where(mass[:, None] > 0, com - at, 0.0),
        inertia=inertia, **links,
    )  # fmt: skip
    homes = {f"{name}/home": Frame(i, np.eye(3), -at[i]) for i, name in enumerate(fields["names"])}
    return fields | {"frames": homes}


def _bodies(G: Array) -> tuple[Array, Array, Array]:
    """Mass, mass centre and inertia about it, of spatial inertias [[J, m [c]], [-m [c], m 1]]."""
    m = np.trace(G[:, 3:, 3:], axis1=1, axis2=2) / 3
    H = G[:, :3, 3:]
    c = np.stack([H[:, 2, 1], H[:, 0, 2], H[:, 1, 0]], axis=-1) / np.where(m > 0, m, 1.0)[:, None]
    square = (c * c).sum(axis=1)[:, None, None] * np.eye(3) - c[:, :, None] * c[:, None, :]
    J = G[:, :3, :3]
    cross = np.zeros_like(J)
    cross[:, 2, 1], cross[:, 0, 2], cross[:, 1, 0] = c.T
    cross -= cross.swapaxes(1, 2)
    rigid = np.block([[J, m[:, None, None] * cross], [-m[:, None, None] * cross, m[:, None, None] * np.eye(3)]])
    for i in np.flatnonzero(~(np.abs(rigid - G).max(axis=(1, 2)) <= RIGID * np.abs(G).max(axis=(1, 2))))[:1]:
        raise ModelError(
            f"inertia {i + 1} is not that of a rigid body, [[J, m [c]], [-m [c], m 1]] with the angular part first"
        )
    return m, c, J - m[:, None, None] * square
