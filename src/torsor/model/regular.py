"""Requirements of algorithms on a model: no couplings, no rotors, given masses, invertible inertias of all bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.dense import inverse
from torsor.errors import ArgumentError, SingularError, warn_caller
from torsor.lie import hat
from torsor.model.model import Model

Array = NDArray[Any]

# A smallest moment of inertia below this fraction of the largest is rounding error: the body is a rod or a point.
FLAT = 1e-12


def require_no_armature(model: Model, what: str) -> None:
    """Refuse a model whose mass matrix is not that of its bodies alone."""
    for k in np.flatnonzero(model.armature)[:1]:
        body = int(np.searchsorted(model.v_start, k, side="right")) - 1
        raise ArgumentError(
            f"{what} knows no rotors, and joint {model.names[body]!r} has an armature of {model.armature[k]:g}: use "
            "method='articulated', or a model without armature"
        )


def require_uncoupled(model: Model, what: str) -> None:
    """Refuse a model whose joints follow others."""
    for coupling in model.couplings[:1]:
        follower, leader = (model.joint_names[i] for i in coupling[:2])
        raise ArgumentError(
            f"{what} knows no coupled joints, and {follower!r} follows {leader!r}: use model.uncoupled(), whose "
            "joints are all free, or a function that obeys couplings (docs/robots.md)"
        )


def warn_of_invented_masses(model: Model) -> None:
    """Warn that a file gave no masses: forces and accelerations are then meaningless."""
    for note in model.notes:
        if note.kind == "invented":
            words = "forces, accelerations and energies of it mean nothing; give its links masses"
            warn_caller(f"{model!r}: {note}; {words}")


def check_regular(names: Sequence[str], mass: Array, inertia: Array) -> None:
    """Refuse a body that has no inverse inertia, by name."""
    moments = np.linalg.eigvalsh(np.asarray(inertia, dtype=np.float64))
    flat = moments[..., 0] <= FLAT * moments[..., 2]
    if not (bad := flat | (mass <= 0)).any():
        return
    i = int(np.flatnonzero(bad)[0])
    others = f" (and {bad.sum() - 1} more)" if bad.sum() > 1 else ""
    what = "no mass" if mass[i] <= 0 else f"the inertia of a {'rod' if moments[i, 1] > 0 else 'point'}"
    raise SingularError(
        f"body {names[i]!r}{others} has {what}, which cannot be inverted, and the blocks of H need the inverse: merge "
        "it with a neighbour, give it extent, or use mass_solve with method='fixman', which braces it"
    )


def inverse_inertia(mass: Array, com: Array, inertia: Array) -> Array:
    """J^-1 (..., 6, 6) about the frame's origin: [[I^-1, -I^-1 [c]], [[c] I^-1, 1/m - [c] I^-1 [c]]]."""
    K = np.zeros((*np.shape(mass), 6, 6), np.result_type(mass, com, inertia))
    C, L = hat(com), inverse(inertia)
    CL = C @ L
    K[..., :3, :3] = (L + L.swapaxes(-1, -2)) / 2
    K[..., 3:, :3] = CL
    K[..., :3, 3:] = CL.swapaxes(-1, -2)
    K[..., 3:, 3:] = np.eye(3) / np.asarray(mass)[..., None, None] - CL @ C
    return K
