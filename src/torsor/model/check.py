"""Checks that a model is a tree and physically possible. This file has all rules for models; messages name the body.

All rules are vectorised: a million bodies are checked in well under a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ArgumentError, ModelError
from torsor.model.joints import JOINTS
from torsor.model.names import Frame, NumberedNames
from torsor.validate import encodable, integer, shown

if TYPE_CHECKING:
    from torsor.model.model import Model

Array = NDArray[Any]
Label = Callable[[int], str]  # names the i-th of the bodies or frames being checked

# |R'R - 1|: a matrix typed with ten decimals passes, one with six does not (energies would be off by 1e-6).
ROTATION_TOLERANCE = 1e-9
# |axis| - 1 after normalising: only rounding.
AXIS_TOLERANCE = 1e-12
# Relative to the trace of the inertia: tensors moved between frames lose a few ulp of symmetry and of the
# triangle inequality, which flat plates and rods meet with equality.
INERTIA_TOLERANCE = 1e-9

# Bodies checked at a time, so that the data stay in the processor's cache.
BLOCK = 8192

HAS_PITCH = np.array([joint.has_pitch for joint in JOINTS])

# A body's row in each array of a Model.
SHAPES: dict[str, tuple[int, ...]] = {
    "axis": (3,),
    "pitch": (),
    "R": (3, 3),
    "p": (3,),
    "mass": (),
    "com": (3,),
    "inertia": (3, 3),
}


def check_model(model: Model) -> None:
    """Raise a ModelError naming the offender unless every rule of this file holds."""
    if not isinstance(model.allow_degenerate, bool | np.bool_):
        raise ModelError(f"allow_degenerate must be True or False, not {shown(model.allow_degenerate)}")
    check_names(model.names, model.frames)
    if model.parent.ndim != 1 or len(model.parent) == 0:
        raise ModelError("a model needs at least one body that moves: parent has shape (n,) with n >= 1")
    if len(model.names) != model.n:
        raise ModelError(f"{len(model.names)} names were given for {model.n} bodies: give one name per body")
    check_parents(model.parent, model.names)
    check_order(model.parent, model.names)
    links = {key: getattr(model, key) for key in ("joint", *SHAPES)}
    check_bodies(links, model.names, model.allow_degenerate)
    check_carried_mass(model.parent, model.mass, model.names)
    check_frames(model.frames, model.n)
    if not isinstance(model.name, str):
        raise ModelError(f"the name of a model is a string, not {shown(model.name)}")
    if not encodable(model.name):
        raise ModelError(f"the name of the model, {model.name!a}, holds a lone surrogate, which is no character")
    if model.gravity.shape != (3,) or not np.isfinite(model.gravity).all():
        raise ModelError(f"gravity must be three finite numbers, not {model.gravity}")


def check_names(names: Sequence[str], frames: Iterable[str]) -> None:
    """Names are words, and no two bodies or frames share one."""
    frames = list(frames)
    words = frames if isinstance(names, NumberedNames) else [*names, *frames]
    for i, word in enumerate(words):
        if not isinstance(word, str) or not word:
            raise ModelError(f"name {i} is {shown(word)}: bodies and frames are named by non-empty strings")
    if not encodable("".join(words)):
        i, word = next((i, word) for i, word in enumerate(words) if not encodable(word))
        raise ModelError(f"name {i} is {word!a}: it holds a lone surrogate, which is no character")
    if isinstance(names, NumberedNames):
        clashes = [name for name in frames if name in names]
    else:
        clashes = _repeated(words) if len(set(words)) < len(words) else []
    if clashes:
        raise ModelError(f"the name {clashes[0]!r} is given twice: name every body and frame differently")


def check_parents(parent: Array, names: Sequence[str]) -> None:
    """Every parent is a body or the base (-1), and no body is its own parent."""
    n = len(parent)
    for i in _first((parent < -1) | (parent >= n)):
        raise ModelError(
            f"{body_label(names, i)} hangs on parent {parent[i]}: parents run from -1 (the base) to {n - 1}"
        )
    for i in _first(parent == np.arange(n)):
        raise ModelError(f"{body_label(names, i)} is its own parent: hang it on another body or on the base (-1)")


def check_order(parent: Array, names: Sequence[str]) -> None:
    """Topological order: a body comes after its parent; this also excludes cycles."""
    for i in _first(parent >= np.arange(len(parent))):
        raise ModelError(
            f"{body_label(names, i)} comes before its parent {names[parent[i]]!r}: "
            "use Model.tree or Model.builder, which sort the bodies"
        )


def check_bodies(links: Mapping[str, Array], names: Sequence[str], allow_degenerate: bool) -> None:
    """Shapes, finite numbers, known joints, unit axes, rotations and inertias of all bodies."""
    n = len(names)
    for key, shape in {"joint": (), **SHAPES}.items():
        if links[key].shape != (n, *shape):
            raise ModelError(f"{key} must have shape {(n, *shape)} for {n} bodies, not {links[key].shape}")
    for start in range(0, n, BLOCK):
        block = {key: x[start : start + BLOCK] for key, x in links.items()}
        _check_block(block, partial(body_label, names, start=start), allow_degenerate)


@np.errstate(over="ignore", invalid="ignore")
def _check_block(links: Mapping[str, Array], label: Label, allow_degenerate: bool) -> None:
    for key in ("axis", "pitch", "R", "p"):
        for i in _first_not_finite(links[key]):
            raise ModelError(f"{label(i)}: {key} holds a NaN or an infinity")
    _check_joints(links["joint"], links["axis"], links["pitch"], label)
    _check_rotations(links["R"], label)
    check_inertias(links["mass"], links["com"], links["inertia"], label, allow_degenerate)


def _check_joints(joint: Array, axis: Array, pitch: Array, label: Label) -> None:
    for i in _first(joint >= len(JOINTS)):
        raise ModelError(f"{label(i)} has joint code {joint[i]}; codes run from 0 to {len(JOINTS) - 1}")
    for i in _first(np.abs(np.linalg.norm(axis, axis=1) - 1) > AXIS_TOLERANCE):
        raise ModelError(f"{label(i)}: axis {axis[i].tolist()} is not a unit vector")
    for i in _first((pitch != 0) & ~HAS_PITCH[joint]):
        kind = JOINTS[joint[i]].name
        raise ModelError(f"{label(i)}: a {kind} joint has no pitch; make it helical or drop pitch = {pitch[i]}")


def _check_rotations(rotations: Array, label: Label) -> None:
    R = _components(rotations)
    defect = np.abs(np.einsum("kin,kjn->ijn", R, R) - np.eye(3)[:, :, None]).max(axis=(0, 1))
    for i in _first(defect > ROTATION_TOLERANCE):
        raise ModelError(
            f"{label(i)}: R is not a rotation, |R'R - 1| = {defect[i]:.2g} exceeds {ROTATION_TOLERANCE}; "
            "give all its digits, or the nearest rotation (its polar factor)"
        )
    (a, b, c), (d, e, f), (g, h, k) = R
    for i in _first(a * (e * k - f * h) + b * (f * g - d * k) + c * (d * h - e * g) < 0):
        raise ModelError(f"{label(i)}: R is a reflection (det R = -1), not a rotation")


def check_inertias(mass: Array, com: Array, inertia: Array, label: Label, allow_degenerate: bool) -> None:
    """Raise unless these can be bodies: fast path first; on any doubt, body by body."""
    if not _are_solid(mass, com, inertia):
        _check_inertias(mass, com, inertia, label, allow_degenerate)


@np.errstate(over="ignore", invalid="ignore")
def _are_solid(mass: Array, com: Array, inertia: Array) -> bool:
    """Whether all of these are bodies with mass and extent, symmetric to the bit, as nearly all are."""
    if not (mass > 0).all() or not np.isfinite(mass.sum() + com.sum()):
        return False
    I = _components(inertia).reshape(9, -1)
    diagonal, above = I[::4], I[[1, 2, 5]]
    if not (above == I[[3, 6, 7]]).all():
        return False
    trace = diagonal[0] + diagonal[1] + diagonal[2]
    both = np.empty((6, 2, len(mass)))  # I, and tr(I)/2 1 - I
    np.subtract(diagonal, INERTIA_TOLERANCE * trace, out=both[:3, 0])
    np.subtract((0.5 + INERTIA_TOLERANCE) * trace, diagonal, out=both[:3, 1])
    both[3:, 0] = above
    np.negative(above, out=both[3:, 1])
    return bool(_positive_definite(*both).all())  # which NaN and infinities are not


@np.errstate(over="ignore", invalid="ignore")
def _check_inertias(mass: Array, com: Array, inertia: Array, label: Label, allow_degenerate: bool) -> None:
    """I is symmetric, I >= 0 and tr(I)/2 1 - I >= 0; and I > 0 unless point masses and rods are permitted.

    tr(I)/2 1 - I = integral of r r' dm: this is positive semidefinite if and only if the principal moments obey the
    triangle inequality, whatever the axes.
    """

    def moments(i: int) -> list[float]:
        return [float(f"{moment:.6g}") for moment in np.linalg.eigvalsh(inertia[i])]

    for key, x in (("mass", mass), ("com", com), ("inertia", inertia)):
        for i in _first_not_finite(x):
            raise ModelError(f"{label(i)}: {key} holds a NaN or an infinity")
    for i in _first(mass < 0):
        raise ModelError(f"{label(i)}: mass {mass[i]} is negative")
    I = _components(inertia)
    trace = np.abs(I[0, 0] + I[1, 1] + I[2, 2])
    for i in _first(np.abs(I - I.swapaxes(0, 1)).max(axis=(0, 1)) > INERTIA_TOLERANCE * trace):
        raise ModelError(
            f"{label(i)}: inertia {inertia[i].tolist()} is not symmetric "
            "(principal moments of three bodies? give them as three 3x3 matrices)"
        )
    massless, shapeless = mass == 0, ~I.any(axis=(0, 1))
    for i in _first(massless & (~shapeless | com.any(axis=1))):
        raise ModelError(f"{label(i)}: it has an inertia or a com but no mass; give it mass")

    one = np.eye(3)[:, :, None]
    slack = INERTIA_TOLERANCE * trace * one
    for i in _first(~shapeless & ~_positive_definite(*_entries(I + slack))):
        raise ModelError(f"{label(i)}: inertia is not positive, principal moments {moments(i)}")
    for i in _first(~shapeless & ~_positive_definite(*_entries(trace / 2 * one - I + slack))):
        raise ModelError(
            f"{label(i)}: principal moments of inertia {moments(i)} break the triangle inequality; "
            "in no body does one exceed the sum of the others"
        )
    if allow_degenerate:
        return
    for i in _first(~massless & ~_positive_definite(*_entries(I - slack))):
        raise ModelError(
            f"{label(i)}: inertia is singular, principal moments {moments(i)}; "
            "allow_degenerate=True permits point masses and rods"
        )


def check_carried_mass(parent: Array, mass: Array, names: Sequence[str]) -> None:
    """Every body has mass or carries a body with mass: otherwise its joint would move nothing."""
    carries = mass > 0
    if carries.all():
        return
    front = np.flatnonzero(carries)
    while len(front):  # one round per generation of massless ancestors
        above = np.unique(parent[front])
        front = above[(above >= 0) & ~carries[above]]
        carries[front] = True
    for i in _first(~carries):
        raise ModelError(f"{body_label(names, i)} has no mass and carries none; give it mass, or fix it to its parent")


def checked_frames(frames: Any, freeze: Callable[[Any], Array]) -> dict[str, Frame]:
    """The Frames of a mapping name -> (body, R, p), their arrays frozen."""
    result = {}
    for name, (body, R, p) in placements(frames).items():
        try:
            result[name] = Frame(integer("body", body), freeze(R), freeze(p))
        except ArgumentError as error:
            raise ModelError(f"frame {shown(name)}: {error}") from None
    return result


def placements(frames: Any) -> Mapping[str, tuple[Any, Any, Any]]:
    """The frames, if they are a mapping name -> (body, R, p)."""
    if not isinstance(frames, Mapping):
        raise ArgumentError(f"frames must map names to (body, R, p), not {shown(frames)}")
    for name, placement in frames.items():
        if not isinstance(placement, tuple | list) or len(placement) != 3:
            raise ArgumentError(f"frame {shown(name)} must be (body, R, p), not {shown(placement)}")
    return frames


def check_frames(frames: Mapping[str, Frame], n: int) -> None:
    """Named frames sit on a body or the base, with a finite placement and a rotation."""
    labels = list(frames)
    for name, (body, R, p) in frames.items():
        if not -1 <= body < n:
            raise ModelError(f"frame {name!r} sits on body {body}: bodies run from -1 (the base) to {n - 1}")
        if R.shape != (3, 3) or p.shape != (3,):
            raise ModelError(f"frame {name!r}: R must have shape (3, 3) and p (3,), not {R.shape} and {p.shape}")
    if labels:
        R, p = (np.stack([getattr(frame, key) for frame in frames.values()]) for key in ("R", "p"))
        for i in _first(~(np.isfinite(R).all(axis=(1, 2)) & np.isfinite(p).all(axis=1))):
            raise ModelError(f"frame {labels[i]!r}: its placement holds a NaN or an infinity")
        _check_rotations(R, lambda i: f"frame {labels[i]!r}")


def _components(A: Array) -> Array:
    """(n, 3, 3) as (3, 3, n): operations then run along contiguous memory, several times faster."""
    return np.ascontiguousarray(A.transpose(1, 2, 0))


def _positive_definite(xx: Array, yy: Array, zz: Array, xy: Array, xz: Array, yz: Array) -> Array:
    """Which of the symmetric matrices have positive pivots? (Determinants would lose digits.)"""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = xy / xx
        second, mixed = yy - ratio * xy, yz - ratio * xz
        third = zz - xz * xz / xx - mixed * mixed / second
        return (xx > 0) & (second > 0) & (third > 0)


def _entries(A: Array) -> tuple[Array, ...]:
    """Of symmetric matrices (3, 3, n): xx, yy, zz, xy, xz, yz."""
    return A[0, 0], A[1, 1], A[2, 2], A[0, 1], A[0, 2], A[1, 2]


def _first(bad: Array) -> Iterable[int]:
    """The first offender, if there is one: `for i in _first(bad): raise ...`."""
    return [int(bad.argmax())] if bad.any() else []


def _first_not_finite(x: Array) -> Iterable[int]:
    """The first row that holds a NaN or an infinity."""
    finite = np.isfinite(x)
    return () if finite.all() else np.argwhere(~finite)[:1, 0].tolist()


def body_label(names: Sequence[str], i: int, start: int = 0) -> str:
    """The label of body start + i in messages."""
    return f"body {names[start + i]!r} (index {start + i})"


def _repeated(words: Sequence[str]) -> list[str]:
    seen: set[str] = set()
    return [word for word in words if word in seen or seen.add(word)]  # type: ignore[func-returns-value]
