"""A model re-expressed in frames that make its equations short.

Results do not depend on the frames in which bodies are described (Ploen & Park 1999, section II.C), but operation
counts do.  Here every joint axis is on z and every placement is written as screws about z, x and z,

    f = [screw_z(gamma, s)] [shift_y(b)] screw_x(alpha, a) screw_z(theta, d) exp(q)     (Denavit & Hartenberg 1955).

For one child of every axial joint, the first screw is absorbed into the parent's frame.  For an axial joint,
theta and d are absorbed into its motion.  Nearly parallel axes have no usable common normal; for them d is
zero, and a shift b along y replaces it.

Rounding noise is set to zero (`torsor.model.rounding`), relative to the size of one placement or of one inertia.

Everything is vectorised over the bodies: a million links are re-framed in seconds.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.compiler.store import store
from torsor.errors import ArgumentError
from torsor.linalg import Mat, Scalar, Vec, cos, sin
from torsor.model.conditioning import may_regroup
from torsor.model.joints import JOINTS, Axial, joint_named
from torsor.model.links import Link
from torsor.model.model import Model
from torsor.model.names import BodyFrames
from torsor.model.portable import length, product, transposed, turned
from torsor.model.rounding import NOISE, clean_cosine, clean_sum, turned_tensor, turned_vector
from torsor.spatial import Inertia, Pose, Product, Rigid, Screw, Spatial, small_motion

Array = NDArray[Any]

# The origin of a body may move along its axis by this many times the body's size.  About an origin farther away, its
# inertia would lose more than four digits.
FAR = 100.0
# Below this sine of the angle between two axes, the foot of their common normal is ill conditioned.
NEARLY_PARALLEL = 0.1

# The range of float32 (1e-38 to 3e38), with a margin for the seven digits and the products that a computation needs.
SINGLE_RANGE = 1e-30, 1e30

SYMMETRIC = ("xx", "xy", "xz", "yy", "yz", "zz")
UPPER = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))

# The numbers of a body that become inputs of a program if the models of a batch differ in them.
GIVEN = {
    "inertias": ("m", "hx", "hy", "hz", *(f"S{label}" for label in SYMMETRIC)),
    "placements": (
        "cg", "sg", "s", "b", "ca", "sa", "a", "ct", "st", "d0", "pitch",
        *(f"Q{i}{j}" for i in range(3) for j in range(3)), "Q0", "Q1", "Q2",
    ),
    "armatures": tuple(f"rotor{k}" for k in range(max(joint.nv for joint in JOINTS))),
}  # fmt: skip


class Kind(NamedTuple):
    """The joint's type and the form of its placement: together they determine the code of a step."""

    joint: str
    form: str  # the axes of its screws, y for a pure shift: "xz", "yxz", "zxz" or "zyxz"
    rotors: bool = False  # whether its joint has an armature
    known: tuple[tuple[str, float], ...] = ()  # the zeros and right angles that its bodies share (`structured`)
    root: bool = False  # whether its bodies are known to be roots, with the base as parent (`compact`)

    def __str__(self) -> str:
        known = f", {len(self.known)} numbers known" if self.known else ""
        return f"{self.joint} ({self.form}{', rotors' if self.rotors else ''}{known}{', root' if self.root else ''})"


@dataclass(frozen=True)
class Framed:
    """A model in its short frames: a kind and a row of numbers per body."""

    model: Model
    kinds: tuple[Kind, ...]  # the distinct ones, sorted
    kind: Array  # (n,) index into kinds
    numbers: Mapping[str, Array]  # name -> (n,)

    def check_single(self) -> None:
        """Raise, naming a body, if float32 cannot hold the numbers of the model.

        Numbers that are too small keep too few digits or become zero, for example the masses of atoms in kilograms.
        """
        x, (smallest, largest) = self.numbers, SINGLE_RANGE
        moment, length = (
            np.max([np.abs(x[name]) for name in names], axis=0)
            for names in (("Sxx", "Syy", "Szz"), ("a", "b", "s", "d0"))
        )
        for what, size in {"mass": x["m"], "inertia": moment, "length": length}.items():
            for i in np.flatnonzero((size != 0) & ~((size >= smallest) & (size <= largest)))[:1]:
                raise ArgumentError(
                    f"body {self.model.names[i]!r}: a {what} of {size[i]:.3g} is beyond what float32 computes with "
                    f"({smallest:.0e} to {largest:.0e}); use float64, or other units"
                )

    @cached_property
    def places(self) -> Array:
        """(n, 3, 4), the frame (Q, r) of each body in the caller's frame of it."""
        rows = [[self.numbers[f"Q{i}{j}"] for j in range(3)] + [self.numbers[f"Q{i}"]] for i in range(3)]
        return np.array(rows).transpose(2, 0, 1).copy()

    def link(self, i: int, given: Mapping[str, Scalar] | None = None, **changes: Vec) -> FramedLink:
        """Body i with its numbers as plain floats, except those that are given; `changes`: `FramedLink.changed`."""
        numbers: dict[str, Scalar] = {name: float(x[i]) for name, x in self.numbers.items()}
        return FramedLink.changed(self.kinds[self.kind[i]], {**numbers, **(given or {})}, **changes)


class FramedLink(Link):
    """A link in its short frame; the numbers are floats (unrolled code) or symbols (loops)."""

    numbers: Mapping[str, Scalar]
    form: str

    @classmethod
    def of(cls, kind: Kind, numbers: Mapping[str, Scalar]) -> FramedLink:
        joint = joint_named(kind.joint)
        x = numbers
        h = Vec(x["hx"], x["hy"], x["hz"])
        link = cls(joint, _placement(kind, joint.axial, x), Vec.unit(2), x["pitch"],
                   Inertia.rigid(x["m"], h, _about_axes(_symmetric(x, "S"))),
                   armature=Vec.of(x[f"rotor{k}"] if kind.rotors else 0.0 for k in range(joint.nv)))  # fmt: skip
        object.__setattr__(link, "numbers", numbers)
        return link

    @classmethod
    def changed(cls, kind: Kind, numbers: dict[str, Scalar], *, inertia: Vec | None = None,
                placement: Vec | None = None) -> FramedLink:  # fmt: skip
        """A link with changed `torsor.inputs.PARAMETERS`, which derivatives use."""
        link = cls.of(kind, numbers if inertia is None else ChainMap(with_inertia(numbers, inertia), numbers))
        if placement is not None:
            object.__setattr__(link, "M", Product((link.M, link._moved(Spatial.of(placement)))))
        return link

    def _moved(self, xi: Spatial) -> Rigid:
        """exp of a twist between placement and joint, to second order; the twist is given in the caller's frames.

        There the joint is placed at M exp(S q), here at M' E(q).  M' ends in the frame X with X E(q) = exp(S q) Q,
        where Q is this link's frame.
        """
        x = self.numbers
        xi = self._frame.Ad_inv(xi)
        if self.joint.axial:
            xi = Product((Screw(2, x["ct"], x["st"], x["d0"]),)).as_rigid().Ad(xi)
        return small_motion(xi)

    def exp(self, q: Vec) -> Pose:
        joint, x = self.joint, self.numbers
        if not isinstance(joint, Axial):
            return super().exp(q)
        angle, shift = joint.motion(q, self.pitch)
        c, s = x["ct"], x["st"]  # of theta; angle + theta would lose the digits of theta at large angles
        if joint.turns:
            cq, sq = cos(angle), sin(angle)
            c, s = cq * c - sq * s, sq * c + cq * s
        return Screw(2, c, s, x["d0"] + shift)

    @cached_property
    def second_moment(self) -> Mat:
        return _symmetric(self.numbers, "S")

    @cached_property
    def _frame(self) -> Rigid:
        """This link's frame in the caller's frame of the body: the model's, or another (`in_body_frames`)."""
        x = self.numbers
        return Rigid(Mat.of((x[f"Q{i}{j}"] for j in range(3)) for i in range(3)), Vec.of(x[f"Q{i}"] for i in range(3)))

    def from_body(self, F: Spatial) -> Spatial:
        return self._frame.Ad_dual(F)

    def body_frame(self) -> Rigid:
        return self._frame.inverse()

    def body_pose(self, f: Rigid) -> Rigid:
        return self._frame.inverse().after(f)

    def body_twist(self, V: Spatial) -> Spatial:
        return self._frame.Ad(V)


def _placement(kind: Kind, axial: bool, x: Mapping[str, Scalar]) -> Product:
    forms = {
        "z": Screw(2, x["cg"], x["sg"], x["s"]),
        "y": Screw(1, 1.0, 0.0, x["b"]),
        "x": Screw(0, x["ca"], x["sa"], x["a"]),
    }
    screws = [forms[axis] for axis in kind.form[:-1]]
    if not axial:
        screws.append(Screw(2, x["ct"], x["st"], x["d0"]))
    return Product(tuple(screws))


def _symmetric(x: Mapping[str, Scalar], name: str) -> Mat:
    entries = {ij: x[name + label] for ij, label in zip(UPPER, SYMMETRIC)}
    return Mat.symmetric(lambda i, j: entries[i, j])


def with_inertia(x: Mapping[str, Scalar], more: Vec) -> dict[str, Scalar]:
    """The inertial numbers of a body with added inertia: m, h and I about the origin of the caller's body frame."""
    m, h, (xx, xy, xz, yy, yz, zz) = more[0], Vec(*more[1:4]), more[4:]
    half = (xx + yy + zz) * 0.5
    S = Mat((half - xx, -xy, -xz), (-xy, half - yy, -yz), (-xz, -yz, half - zz))
    Q = Mat.of((x[f"Q{i}{j}"] for j in range(3)) for i in range(3))
    r = Vec.of(x[f"Q{i}"] for i in range(3))
    moved = (
        Q.T @ Mat.of((S[i][j] - h[i] * r[j] - r[i] * h[j] + r[i] * r[j] * m for j in range(3)) for i in range(3)) @ Q
    )
    first = Q.T @ (h - r * m)
    result = {"m": x["m"] + m} | {name: x[name] + first[k] for k, name in enumerate(("hx", "hy", "hz"))}
    return result | {f"S{label}": x[f"S{label}"] + moved[i][j] for (i, j), label in zip(UPPER, SYMMETRIC)}


def _about_axes(S: Mat) -> Mat:
    """J = tr(S) 1 - S."""
    return Mat.symmetric(lambda i, j: S[(i + 1) % 3][(i + 1) % 3] + S[(i + 2) % 3][(i + 2) % 3] if i == j else -S[i][j])


# The re-framing itself ---------------------------------------------------------------------------------------


def framed(model: Model, body_frames: BodyFrames | None = None) -> Framed:
    """The model in its short frames, cached per model; the kinds of a large model include its structure.

    `body_frames`: the caller's frames of the bodies, if they are not the model's.
    """

    def make() -> Framed:
        short = short_frames(model)
        return structured(divided(in_body_frames(short, body_frames) if body_frames else short))

    return store(model).once(("frames", body_frames), make)


def short_frames(model: Model) -> Framed:
    """The model in its short frames, cached per model: a million bodies take seconds."""
    return store(model).once("short frames", lambda: reframe(model))


def straight_line_frames(model: Model, body_frames: BodyFrames | None = None) -> Framed:
    """The model in its short frames, masses regrouped unless that would cost digits."""
    frames = framed(model, body_frames)
    return regroup(frames) if may_regroup(model) else frames


def in_body_frames(short: Framed, body_frames: BodyFrames) -> Framed:
    """The same short frames, with other frames of the caller.

    The computation does not change: only the inputs and outputs of bodies are expressed in Q.
    """
    x, turn, shift = short.numbers, body_frames.Q[:, :3, :3], body_frames.Q[:, :3, 3]
    R = np.array([[x[f"Q{i}{j}"] for j in range(3)] for i in range(3)]).transpose(2, 0, 1)
    p = np.stack([x[f"Q{i}"] for i in range(3)], axis=-1)
    moved = clean_sum(turned(turn, p) + shift, turned(np.abs(turn), np.abs(p)) + np.abs(shift))
    return replace(short, numbers={**x, **_table("Q", clean_cosine(product(turn, R))), **_table("Q", moved)})


def reframe(model: Model) -> Framed:
    """Choose a frame for every body and express the model in it."""
    n = model.n
    axial = np.array([j.axial for j in JOINTS])[model.joint]
    parent = model.parent
    A = axis_to_z(np.where(axial[:, None], model.axis, (0.0, 0.0, 1.0)))
    A_parent = np.concatenate([A, np.eye(3)[None]])[parent]  # entry -1: the base
    R = product(product(transposed(A_parent), model.R), A)
    p = turned(transposed(A_parent), model.p)
    x = _screws(R, p)

    # the first screw of one child of every axial joint goes into that joint's own frame
    absorbed = absorbed_children(model)
    own = (absorbed >= 0) & axial & (np.abs(x.s[absorbed]) <= FAR * _sizes(model))
    c, sine, s, s_terms = np.zeros((4, n + 1))  # entry -1: the base, never rotated
    c[:] = 1.0
    for moved, screws in ((c, x.gamma.c), (sine, x.gamma.s), (s, x.s), (s_terms, x.terms)):
        moved[:n][own] = screws[absorbed[own]]
    before, turn = _Turn(c[parent], -sine[parent]), _Turn(c[:n], sine[:n])

    gamma, pre_s = x.gamma.after(before).clean(), clean_sum(x.s - s[parent], x.terms + s_terms[parent])
    theta, d = x.theta.after(turn).clean(), clean_sum(x.d + s[:n], x.terms + s_terms[:n])
    Q = clean_cosine(product(A, turn.clean().matrices()))
    Qp = clean_sum(A[:, :, 2] * s[:n, None], np.abs(s[:n, None]))
    form = 2 * ((gamma.c != 1) | (pre_s != 0)) + (x.b != 0)  # in FORMS

    numbers = {
        "cg": gamma.c, "sg": gamma.s, "s": pre_s, "b": x.b,
        "ca": clean_cosine(x.ca), "sa": clean_cosine(x.sa), "a": x.a,
        "ct": theta.c, "st": theta.s, "d0": d, "pitch": model.pitch,
    }  # fmt: skip
    rotors = _rotors(model)
    numbers |= _table("Q", Q) | _table("Q", Qp) | _inertia(model, Q, Qp) | rotors

    # a kind for every triple of joint type, form and armature that occurs
    turning = np.any([*rotors.values()], axis=0) if rotors else np.zeros(n, bool)
    pair = (turning * len(JOINTS) + model.joint) * len(FORMS) + form
    occurring = np.flatnonzero(np.bincount(pair)).tolist()
    named = {
        k: Kind(JOINTS[k // len(FORMS) % len(JOINTS)].name, FORMS[k % len(FORMS)], k >= len(JOINTS) * len(FORMS))
        for k in occurring
    }
    kinds = tuple(sorted(named.values()))
    place = np.zeros(2 * len(JOINTS) * len(FORMS), np.int32)
    for k, kind in named.items():
        place[k] = kinds.index(kind)
    return Framed(model, kinds, place[pair], numbers)


# The code of loops omits products with zeros and with cosines of right angles, if all bodies of a kind have them
# in the same places: a chain with right angles takes 0.6 times the operations.  But loops for general numbers serve
# more machines, so only machines too large for straight-line code (`request.PATIENT`) get their own kinds.
LARGE = 40
RARE = 1 / 5  # of the bodies: a pattern rarer than this gets no kind
ANGLES = ("cg", "sg", "ca", "sa", "ct", "st", *(f"Q{i}{j}" for i in range(3) for j in range(3)))
DIVIDING = [
    (name, 0.0) for name in ("cg", "sg", "s", "b", "ca", "sa", "a", "st", "d0", "hx", "hy", "hz", "Sxy", "Sxz", "Syz")
]
DIVIDING += [(name, value) for name in ("cg", "sg", "ca", "sa") for value in (1.0, -1.0)]


def divided(framed: Framed) -> Framed:
    """The same, with a separate kind for bodies of a large machine that have zeros in the same places."""
    if framed.model.n <= LARGE:
        return framed
    bits = sum((framed.numbers[name] == value).astype(np.int64) << k for k, (name, value) in enumerate(DIVIDING))
    shift = len(DIVIDING)
    found, place, count = np.unique(
        framed.kind.astype(np.int64) << shift | bits, return_inverse=True, return_counts=True
    )
    frequent = found[count >= RARE * framed.model.n].tolist()
    groups = []
    for pattern in found.tolist():  # a body may have more zeros than its kind
        less = [x for x in frequent if x >> shift == pattern >> shift and not x & ~pattern]
        groups.append(max(less, key=int.bit_count, default=pattern >> shift << shift))
    patterns, kind = np.unique(groups, return_inverse=True)
    return replace(framed, kinds=tuple(framed.kinds[k] for k in patterns >> shift), kind=kind[place].astype(np.int32))


def structured(framed: Framed) -> Framed:
    """The same, with kinds that know the structure of a large machine."""
    return framed if framed.model.n <= LARGE else _knowing(framed)


def compact(framed: Framed) -> Framed:
    """The same for loops of few operations that serve only this machine: a kind per joint type, and a second kind for
    root bodies with joints of several freedoms, where the elimination of the joint is not needed."""
    model = framed.model
    form, rotors = (np.array(x)[framed.kind] for x in zip(*((FORMS.index(k.form), k.rotors) for k in framed.kinds)))
    root = (model.parent < 0) & (np.diff(model.v_start) > 1)
    type_ = 2 * model.joint + root
    kinds, kind = np.unique(type_, return_inverse=True)
    merged = tuple(
        Kind(JOINTS[k // 2].name, FORMS[np.bitwise_or.reduce(form[own])], bool(rotors[own].any()), root=bool(k % 2))
        for k, own in ((k, type_ == k) for k in kinds.tolist())
    )
    return _knowing(replace(framed, kinds=merged, kind=kind.astype(np.int32)))


def _knowing(framed: Framed) -> Framed:
    """Add to the kinds the zeros, and the ones among cosines, that all their bodies share."""
    present, kind = np.unique(framed.kind, return_inverse=True)
    order = np.argsort(kind, kind="stable")
    starts = np.searchsorted(kind[order], np.arange(len(present)))
    known: list[list[tuple[str, float]]] = [[] for _ in present]
    for name, x in framed.numbers.items():
        least, most = (op.reduceat(x[order], starts).tolist() for op in (np.minimum, np.maximum))
        for numbers, low, high in zip(known, least, most):
            if low == high and (low == 0 or (name in ANGLES and abs(low) == 1)):
                numbers.append((name, low + 0.0))  # not -0.0
    named = [framed.kinds[k]._replace(known=tuple(numbers)) for k, numbers in zip(present, known)]
    kinds = tuple(sorted(set(named)))
    place = np.array([kinds.index(kind) for kind in named], np.int32)
    return replace(framed, kinds=kinds, kind=place[kind])


def absorbed_children(model: Model) -> Array:
    """For each body, the child whose first screw its frame absorbs if its joint has an axis; -1 without children."""
    absorbed = np.full(model.n, -1)
    children = np.flatnonzero(model.parent >= 0)[::-1]
    absorbed[model.parent[children]] = children  # written in reverse order, so the first child wins
    return absorbed


def regroup(framed: Framed) -> Framed:
    """The same joint dynamics with sparser inertias (Gautier & Khalil 1990).

    If a joint only rotates, its rotation does not affect its body's mass, first moment along the axis and second moment
    along the axis.  This function moves these quantities to the parent.  That saves 5 to 15 % of the operations but
    costs a little accuracy with every body, so only unrolled code of a few bodies uses it.
    """
    x = {name: values.copy() for name, values in framed.numbers.items()}
    model = framed.model
    for i in reversed(range(model.n)):
        if not joint_named(framed.kinds[framed.kind[i]].joint).only_turns:
            continue
        m, hz, Szz = (float(x[name][i]) for name in ("m", "hz", "Szz"))
        for name in ("m", "hz", "Szz"):
            x[name][i] = 0.0
        parent = int(model.parent[i])
        if parent < 0:
            continue
        M = Product((framed.link(i).M,)).as_rigid()
        axis = np.array([row[2] for row in M.R], dtype=float)
        p = np.array(M.p, dtype=float) + axis * x["d0"][i]
        S = Szz * np.outer(axis, axis) + hz * (np.outer(axis, p) + np.outer(p, axis)) + m * np.outer(p, p)
        x["m"][parent] += m
        for name, added in zip(("hx", "hy", "hz"), axis * hz + m * p):
            x[name][parent] += added
        for (a, b), label in zip(UPPER, SYMMETRIC):
            x["S" + label][parent] += S[a, b]
    return replace(framed, numbers=x)


FORMS = ("xz", "yxz", "zxz", "zyxz")


class _Turn(NamedTuple):
    """Rotations about z, by their cosines and sines."""

    c: Array
    s: Array

    @classmethod
    def towards(cls, x: Array, y: Array) -> _Turn:
        """From the x axis to (x, y); the identity if both are zero."""
        size = length(x, y)
        safe = np.where(size > 0, size, 1.0)
        return cls(np.where(size > 0, x / safe, 1.0), y / safe)

    def after(self, first: _Turn) -> _Turn:
        return _Turn(first.c * self.c - first.s * self.s, first.s * self.c + first.c * self.s)

    def clean(self) -> _Turn:
        return _Turn(clean_cosine(self.c), clean_cosine(self.s))

    def matrices(self) -> Array:
        R = np.zeros((self.c.size, 3, 3))
        R[:, 0, 0], R[:, 0, 1], R[:, 1, 0], R[:, 1, 1], R[:, 2, 2] = self.c, -self.s, self.s, self.c, 1.0
        return R


class _Screws(NamedTuple):
    """(R, p) = screw_z(gamma, s) shift_y(b) screw_x(alpha, a) screw_z(theta, d)."""

    gamma: _Turn
    s: Array
    ca: Array
    sa: Array
    a: Array
    theta: _Turn
    d: Array
    b: Array
    terms: Array  # the size of the terms whose sums are s and d


def _screws(R: Array, p: Array) -> _Screws:
    ux, uy, ca = R[:, 0, 2], R[:, 1, 2], R[:, 2, 2]
    sa = length(ux, uy)
    parallel = sa < NOISE
    sa = np.where(parallel, 0.0, sa)
    ca = np.where(parallel, np.sign(ca), ca)
    safe = np.where(parallel, 1.0, sa)
    # the common normal; for parallel axes, the direction to the other axis
    reach = length(p[:, 0], p[:, 1])
    gamma = _Turn.towards(np.where(parallel, p[:, 0], -uy), np.where(parallel, p[:, 1], ux))
    c, s = gamma
    across = c * p[:, 1] - s * p[:, 0]
    nearly = ~parallel & (sa < NEARLY_PARALLEL)  # no usable common normal: a shift across instead
    b, across = np.where(nearly, across, 0.0), np.where(nearly, 0.0, across)
    d = np.where(parallel, p[:, 2] * ca, -across / safe)
    shift = np.where(parallel, 0.0, p[:, 2] - d * ca)
    a = np.where(parallel, reach, c * p[:, 0] + s * p[:, 1])
    # theta from the first two columns of Rz(gamma)^T R: its x row is (cos theta, -sin theta, 0)
    theta = _Turn.towards(c * R[:, 0, 0] + s * R[:, 1, 0], -(c * R[:, 0, 1] + s * R[:, 1, 1]))
    terms = np.abs(p).max(axis=1)
    a, b = clean_sum(a, terms), clean_sum(b, terms)
    terms = terms / np.maximum(safe, NEARLY_PARALLEL)
    return _Screws(gamma, clean_sum(shift, terms), ca, sa, a, theta, clean_sum(d, terms), b, terms)


def axis_to_z(axis: Array) -> Array:
    """Rotations whose third column is the axis: the smallest rotation, exact for coordinate axes."""
    flip = axis[:, 2] < 0
    u = axis * np.where(flip[:, None], (1.0, -1.0, -1.0), 1.0)
    x, y, c = u.T
    k = 1 / (1 + c)
    R = np.stack([1 - k * x * x, -k * x * y, x, -k * x * y, 1 - k * y * y, y, -x, -y, c], axis=-1).reshape(-1, 3, 3)
    return R * np.where(flip[:, None, None], np.array([[1.0], [-1.0], [-1.0]]), 1.0)


def _inertia(model: Model, Q: Array, Qp: Array) -> dict[str, Array]:
    """m, h = m c and the second moment S = int r r^T dm, about the new origin."""
    m = model.mass
    c = turned_vector(transposed(Q), model.com - Qp, np.abs(model.com) + np.abs(Qp))
    h = m[:, None] * c
    S, shift = turned_tensor(transposed(Q), _second_moment(model.inertia)), h[:, :, None] * c[:, None, :]
    S = clean_sum(S + shift, np.abs(S) + np.abs(shift))
    result = {"m": m, "hx": h[:, 0], "hy": h[:, 1], "hz": h[:, 2]}
    for (i, j), label in zip(UPPER, SYMMETRIC):
        result["S" + label] = S[:, i, j]
    return result


def _rotors(model: Model) -> dict[str, Array]:
    """The armature of freedom 0, 1, ... of every body, if there is any."""
    if not model.armature.any():
        return {}
    numbers = {}
    for k in range(int(np.diff(model.v_start).max())):
        own = np.diff(model.v_start) > k
        numbers[f"rotor{k}"] = np.zeros(model.n)
        numbers[f"rotor{k}"][own] = model.armature[model.v_start[:-1][own] + k]
    return numbers


def _second_moment(I: Array) -> Array:
    """tr(I)/2 1 - I, without loss of digits: S_xx = ((the larger of I_yy and I_zz) - I_xx + the smaller) / 2.

    The two largest moments of a body differ by at most a factor of two, so their difference is exact.
    """
    S = -I
    for k in range(3):
        one, other = (I[:, (k + j) % 3, (k + j) % 3] for j in (1, 2))
        S[:, k, k] = ((np.maximum(one, other) - I[:, k, k]) + np.minimum(one, other)) / 2
    return S


def _sizes(model: Model) -> Array:
    """The size of every body: the largest of its reach from the joint, its extent and its offset from the parent."""
    with np.errstate(divide="ignore", invalid="ignore"):
        extent = np.sqrt(np.trace(model.inertia, axis1=1, axis2=2) / model.mass)
    extent[model.mass == 0] = np.inf  # a body without inertia has no digits to lose
    return np.maximum(extent, np.abs(np.concatenate([model.com, model.p], axis=1)).max(axis=1))


def _table(name: str, x: Array) -> dict[str, Array]:
    """R (n, 3, 3) -> R00 ... R22;  p (n, 3) -> p0 p1 p2."""
    return {name + "".join(map(str, k)): x[(slice(None), *k)] for k in np.ndindex(*x.shape[1:])}
