"""Denavit-Hartenberg tables: two conventions, with any of the four parameters as the joint variable.

A row is two screw motions, one along and about x by (a, alpha), one along and about z by (d, theta):

    craig      T_{k-1,k} = screw_x(a, alpha) screw_z(d, theta)    Lee et al. 2007, Eq. 23 (b, beta, c, gamma)
    standard   T_{k-1,k} = screw_z(d, theta) screw_x(a, alpha)    Saha 2001, Appendix A (b, theta, a, alpha)

The joint moves one of the screws: T = A exp(S q) B, with B = 1 if it is the second one. torsor puts the body's frame at
its joint, so body k is placed on body k-1 at B_{k-1} A_k. Both papers give the mass properties in the DH frame of the
link; these are transformed by B_k. (Saha's frame i+1 is that of link i.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.errors import ArgumentError
from torsor.model.builder import as_rows, assemble, count_bodies, refuse_ambiguous_inertia
from torsor.model.freedoms import Freedoms
from torsor.model.names import Frame, word_list
from torsor.model.portable import cosine_and_sine, product
from torsor.model.rounding import clean_sum, turned_tensor, turned_vector
from torsor.validate import array, chosen, flag, shown

Array = NDArray[Any]
Placement = tuple[Array, Array]  # (R, p), one row per link

# Cosines and sines this small come from right angles typed as doubles (cos of pi/2 is 6e-17): the table means zero,
# and the compiler drops exact zeros.
RIGHT_ANGLE = 1e-15
X, Z = 0, 2
# For each variable: whether it turns the link, and the axis of its motion.
MOVES = {"theta": (True, Z), "d": (False, Z), "alpha": (True, X), "a": (False, X)}


class DHTable(Freedoms, total=False):
    """The arguments of `Model.from_dh`."""

    a: ArrayLike
    alpha: ArrayLike
    d: ArrayLike
    theta: ArrayLike
    variable: str | Sequence[str]
    convention: str
    degrees: bool
    mass: ArrayLike
    com: ArrayLike
    r: ArrayLike
    inertia: ArrayLike
    gravity: ArrayLike
    names: Sequence[str] | None
    name: str
    n: int | None
    allow_degenerate: bool


def dh_fields(
    *, variable: str | Sequence[str] = "theta", convention: str = "craig", degrees: bool = False,
    com: ArrayLike | None = None, r: ArrayLike | None = None, n: int | None = None, **table: Any,
) -> dict[str, Any]:  # fmt: skip
    """The fields of the Model of a DH table; see `Model.from_dh`."""
    chosen("DH convention", convention, ("craig", "standard"))
    rows = {key: as_rows(key, table.pop(key, 0.0), ()) for key in ("a", "alpha", "d", "theta", "mass")}
    inertia = table.pop("inertia", (0.0, 0.0, 0.0))
    rows |= {"com": _mass_centre(com, r), "inertia": as_rows("inertia", inertia, (3, 3))}
    for key, x in rows.items():
        for i in np.argwhere(~np.isfinite(x))[:1, 0]:
            raise ArgumentError(f"{key} of DH row {i} holds a NaN or an infinity; every number must be finite")
    rows["variable"] = _moves(variable)
    table["names"] = word_list(table.get("names"))
    n = count_bodies(n, rows, table["names"])
    refuse_ambiguous_inertia(inertia, n)
    rows = {key: np.broadcast_to(x, (n, *x.shape[1:])) for key, x in rows.items()}
    turns, along = rows["variable"].T

    unit = np.pi / 180 if flag("degrees", degrees) else 1.0
    x_screw, z_screw = _screw(X, rows["a"], rows["alpha"] * unit), _screw(Z, rows["d"], rows["theta"] * unit)
    first, second = (x_screw, z_screw) if convention == "craig" else (z_screw, x_screw)
    first_moves = along == (X if convention == "craig" else Z)
    A = _choose(first_moves, first, _compose(first, second))
    B = _choose(first_moves, second, _at_rest(n))
    R, p = _compose(_shifted(B), A)

    fields = assemble(
        None, np.where(turns, "revolute", "prismatic"), n=n, axis=np.eye(3)[along], R=R, p=p, mass=rows["mass"],
        com=_apply(B, rows["com"]), inertia=turned_tensor(B[0], rows["inertia"]), **table,
    )  # fmt: skip
    fields["frames"] = _dh_frames(B, fields["names"])
    return fields


def _mass_centre(com: ArrayLike | None, r: ArrayLike | None) -> Array:
    """The mass centre in the DH frame: com, or the opposite of Saha's r, which runs to the origin."""
    if com is not None and r is not None:
        raise ArgumentError("give com (from the DH frame to the mass centre) or r (the other way), not both")
    if r is not None:
        return 0 - as_rows("r", r, (3,))
    return as_rows("com", (0.0, 0.0, 0.0) if com is None else com, (3,))


def _moves(variable: str | Sequence[str]) -> Array:
    """For each row: (whether the joint turns, the axis of its motion)."""
    names = np.atleast_1d(array("variable", variable)).tolist()
    for i, name in enumerate(names):
        if not isinstance(name, str) or name not in MOVES:
            raise ArgumentError(f"variable {shown(name)} of DH row {i} is unknown: choose from {', '.join(MOVES)}")
    return np.array([MOVES[name] for name in names])


def _screw(axis: int, length: Array, angle: Array) -> Placement:
    """A rotation about a coordinate axis and a shift along it."""
    c, s = (np.where(np.abs(f) < RIGHT_ANGLE, 0.0, f) for f in cosine_and_sine(angle))
    i, j = (axis + 1) % 3, (axis + 2) % 3
    R, p = np.zeros((len(angle), 3, 3)), np.zeros((len(angle), 3))
    R[:, axis, axis], R[:, i, i], R[:, i, j], R[:, j, i], R[:, j, j] = 1, c, -s, s, c
    p[:, axis] = length
    return R, p


def _at_rest(n: int) -> Placement:
    return np.broadcast_to(np.eye(3), (n, 3, 3)), np.zeros((n, 3))


def _apply(f: Placement, x: Array) -> Array:
    shift = turned_vector(f[0], x)
    with np.errstate(over="ignore", invalid="ignore"):
        return clean_sum(f[1] + shift, np.abs(f[1]) + np.abs(shift))


def _compose(f: Placement, g: Placement) -> Placement:
    return product(f[0], g[0]), _apply(f, g[1])


def _choose(condition: Array, f: Placement, g: Placement) -> Placement:
    return np.where(condition[:, None, None], f[0], g[0]), np.where(condition[:, None], f[1], g[1])


def _shifted(f: Placement) -> Placement:
    """Row k is row k - 1 of f; the first row is the identity."""
    R, p = _at_rest(len(f[1]))
    return np.concatenate([R[:1], f[0][:-1]]), np.concatenate([p[:1], f[1][:-1]])


def _dh_frames(B: Placement, names: Sequence[str]) -> dict[str, Frame]:
    R, p = B
    differs = (R - np.eye(3)).any(axis=(1, 2)) | p.any(axis=1)
    return {f"{names[i]}/dh": Frame(i, R[i], p[i]) for i in np.flatnonzero(differs).tolist()}
