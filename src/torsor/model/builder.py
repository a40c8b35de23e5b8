"""From the user's arguments to the arrays of a `Model`: broadcasting, sorting, merging of fixed bodies.

`assemble` works on whole arrays, without a Python object per body; `Builder` collects bodies one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.errors import ArgumentError, ModelError
from torsor.model.check import SHAPES, body_label, check_bodies, check_names, check_parents
from torsor.model.freedoms import Freedoms, columns, one_body, reordered
from torsor.model.joints import JOINTS, joint_code
from torsor.model.names import Frame, NumberedNames, word_list
from torsor.model.portable import product, transposed, turned
from torsor.validate import array, check_memory, integer, integer_array, real_array, shown

if TYPE_CHECKING:
    from torsor.model.model import Model

Array = NDArray[Any]
Arrays = dict[str, Array]

GRAVITY = (0.0, 0.0, -9.81)
IDENTITY = np.eye(3)
BODY_BYTES = 241  # of one body in the arrays of a Model
FIXED = 255  # the code of a joint that does not move; never in a Model, where such bodies are merged
AXIAL = np.zeros(FIXED + 1, dtype=bool)  # by code
AXIAL[: len(JOINTS)] = [j.axial for j in JOINTS]
# A norm this close to 1 is 1 up to rounding: dividing by it again would only change the last bit.
UNIT_NORM = 4 * np.finfo(np.float64).eps


class BodyNumbers(Freedoms, total=False):
    """The arguments that are numbers of bodies and their joints."""

    axis: ArrayLike
    pitch: ArrayLike
    R: ArrayLike
    p: ArrayLike
    mass: ArrayLike
    com: ArrayLike
    inertia: ArrayLike


# The defaults of a body.
PLAIN: dict[str, Any] = {
    "axis": (0.0, 0.0, 1.0), "pitch": 0.0, "R": IDENTITY, "p": (0.0, 0.0, 0.0), "mass": 0.0, "com": (0.0, 0.0, 0.0),
    "inertia": (0.0, 0.0, 0.0),
}  # fmt: skip


class Numbers(BodyNumbers, total=False):
    """The arguments that are numbers of a machine: `Model.tree` takes one set of them, `ModelBatch` one per member."""

    gravity: ArrayLike


class Links(Numbers, total=False):
    """The keyword arguments of `Model.chain` and `Model.tree`; see `Model.tree`."""

    n: int | None
    names: Sequence[str] | None
    name: str
    allow_degenerate: bool


def assemble(
    parent: ArrayLike | None, joint: str | Sequence[str] | Array, *, checked: bool = True, **links: Unpack[Links],
) -> dict[str, Any]:  # fmt: skip
    """The fields of the Model that these arguments describe; parent=None is a chain.

    `checked=False` allows fixed bodies that are physically impossible alone.
    """
    given: dict[str, Any] = {"n": None, "names": None, "name": "model", "allow_degenerate": False, "gravity": GRAVITY}
    given |= links
    inertia = given.get("inertia", PLAIN["inertia"])
    n, names = given.pop("n"), word_list(given.pop("names"))
    words = {key: given.pop(key) for key in ("name", "allow_degenerate", "gravity")}
    rows = {key: as_rows(key, given.pop(key, plain), SHAPES[key]) for key, plain in PLAIN.items()}
    rows["joint"] = _codes(joint)
    if parent is not None:
        rows["parent"] = _parents(parent)
    n = count_bodies(n, rows, names)
    refuse_ambiguous_inertia(inertia, n)
    rows.setdefault("parent", np.arange(-1, n - 1))
    bodies = {key: x if len(x) == n else np.broadcast_to(x, (n, *x.shape[1:])) for key, x in rows.items()}
    names = names or NumberedNames(n)

    check_names(names, ())
    check_parents(bodies["parent"], names)
    joints, bodies["place"] = bodies["joint"], np.arange(n)  # to find the freedoms of a body after sorting and merging
    bodies, names = _sorted(bodies, names)
    bodies["axis"] = _unit_axes(bodies["axis"], bodies["joint"], names)
    frames: dict[str, Frame] = {}
    if (bodies["joint"] == FIXED).any():
        if checked:
            check_bodies(bodies | {"joint": np.where(bodies["joint"] == FIXED, 0, bodies["joint"])}, names, True)
        bodies, names, frames = _merge_fixed(bodies, names)
    freedoms = reordered(given, joints, bodies.pop("place"))  # those of the remaining bodies
    return {**bodies, **words, "names": names, "frames": frames, **freedoms}


# ---- reading the arguments ----


def as_rows(key: str, x: ArrayLike, shape: tuple[int, ...]) -> Array:
    """x as floats of shape (n, *shape), one row per body, or (1, *shape), one row for all."""
    x = real_array(key, x, finite=False)  # check.py names the body of a NaN
    if key == "inertia" and x.shape[-1:] == (3,) and x.ndim < 3 and x.shape != (3, 3):
        with np.errstate(invalid="ignore"):
            x = x[..., None] * IDENTITY  # principal moments; a 3x3 array is always one full tensor
    if x.shape == shape:
        return x[None]
    if x.shape[1:] == shape and x.ndim == len(shape) + 1:
        return x
    raise ArgumentError(f"{key} must have shape {shape} or {_per_body(shape)}, not {x.shape}")


def refuse_ambiguous_inertia(inertia: ArrayLike, n: int) -> None:
    """Raise for a 3x3 array, which means one tensor for all bodies, if its rows can be principal moments of three.
    Such an array is not a tensor: a tensor has |I_xy| <= I_zz / 2, so its rows cannot all obey the triangle inequality.
    """
    x = real_array("inertia", inertia, finite=False)
    if n == 3 and x.shape == (3, 3) and (x > 0).all() and (2 * x.max(axis=1) <= x.sum(axis=1)).all():
        raise ArgumentError(
            "inertia of shape (3, 3) is one tensor for all bodies, but its rows look like the principal moments of "
            "three: give three tensors, [np.diag(row) for row in inertia]"
        )


def _per_body(shape: tuple[int, ...]) -> str:
    return f"({', '.join(['n', *map(str, shape)])}{'' if shape else ','})"


def _codes(joint: str | Sequence[str] | Array) -> Array:
    """The codes of joint names, (n,) or (1,)."""
    given = array("joint", joint)
    if given.ndim > 1 or given.dtype.kind != "U":
        raise ArgumentError(f"joint must be the name of a joint type, or one for each body, not {shown(joint)}")
    words, codes = np.atleast_1d(given).tolist(), {}
    for word in dict.fromkeys(words):
        try:
            codes[word] = FIXED if word == "fixed" else joint_code(word)
        except ModelError as error:
            raise ModelError(f"joint of body {words.index(word)}: {error}") from None
    return np.array([codes[word] for word in words], dtype=np.uint8)


def _parents(parent: ArrayLike) -> Array:
    x = array("parent", parent)
    if x.ndim != 1 or x.dtype.kind not in "iu":
        raise ArgumentError(f"parent must be n integers (-1 is the base), not {x.dtype} of shape {x.shape}")
    return integer_array("parent", x, np.int64)


def count_bodies(n: int | None, rows: Arrays, names: Sequence[str] | None) -> int:
    """The number of bodies; n and all arrays that are given per body must agree on it."""
    counts = {key: len(x) for key, x in rows.items() if len(x) != 1 or key == "parent"}
    if names:
        counts["names"] = len(names)
    if n is not None:
        counts["n"] = integer("n", n)
    if not counts:
        return 1
    (first, count), *others = counts.items()
    for key, other in others:
        if other != count:
            raise ArgumentError(f"{first} is given for {count} bodies, {key} for {other}")
    if count < 1:
        raise ArgumentError(f"a model needs at least one body; {first} is given for {count}")
    check_memory(f"{first} = {shown(count)}", count * BODY_BYTES)
    return count


def _unit_axes(axis: Array, joint: Array, names: Sequence[str]) -> Array:
    """Axes of length 1, and z for the joints that have none."""
    axial = AXIAL[joint]
    axis = np.where(axial[:, None], axis, (0.0, 0.0, 1.0))
    # Axes that are not finite stay so here and are refused with the other arrays.
    with np.errstate(over="ignore", invalid="ignore"):
        norm = np.linalg.norm(axis, axis=1, keepdims=True)
        for i in np.flatnonzero(norm == 0)[:1]:
            raise ModelError(f"{body_label(names, i)}: its axis is zero; give the direction of its joint")
        return np.where(np.abs(norm - 1) <= UNIT_NORM, axis, axis / norm)


# ---- order ----


def _sorted(links: Arrays, names: Sequence[str]) -> tuple[Arrays, Sequence[str]]:
    """Bodies sorted so that parents come first: in the given order if possible, else by distance from the base."""
    parent = links["parent"]
    if (parent < np.arange(len(parent))).all():
        return links, names
    order = np.argsort(_depth(parent, names), kind="stable")
    place = np.append(np.argsort(order), -1)  # a body's new index; the base stays -1
    links = {key: x[order] for key, x in links.items()}
    links["parent"] = place[links["parent"]]
    return links, tuple(names[i] for i in order.tolist())


def _depth(parent: Array, names: Sequence[str]) -> Array:
    """The number of joints between each body and the base, by pointer doubling; a cycle never reaches the base."""
    ancestor, depth = parent.copy(), np.ones(len(parent), dtype=np.int64)
    for _ in range(len(parent).bit_length()):
        climbing = np.flatnonzero(ancestor >= 0)
        above = ancestor[climbing]
        depth[climbing] += depth[above]
        ancestor[climbing] = ancestor[above]
    for i in np.flatnonzero(ancestor >= 0)[:1]:
        # From a body that never reaches the base, 2^k >= n steps upwards end on a cycle.
        raise ModelError(f"the bodies {_cycle(parent, ancestor[i], names)} hang on each other in a cycle; cut it")
    return depth


def _cycle(parent: Array, body: int, names: Sequence[str]) -> str:
    members = [body]
    while parent[members[-1]] != body:
        members.append(parent[members[-1]])
    shown = [repr(names[i]) for i in members[:6]]
    return " -> ".join([*shown, "..."] if len(members) > 6 else shown)


# ---- fixed bodies ----


def _merge_fixed(links: Arrays, names: Sequence[str]) -> tuple[Arrays, Sequence[str], dict[str, Frame]]:
    """Merge each fixed body into its nearest moving ancestor, or the base, and keep it as a frame there."""
    fixed = links["joint"] == FIXED
    parent, R, p = _place_on_moving(links["parent"], links["R"], links["p"], fixed)
    links = links | _lumped(links, parent, R, p, fixed) | {"parent": parent, "R": R, "p": p}

    place = np.append(np.cumsum(~fixed) - 1, -1)  # a body's new index; the base stays -1
    frames = {names[i]: Frame(int(place[parent[i]]), R[i], p[i]) for i in np.flatnonzero(fixed).tolist()}
    links = {key: x[~fixed] for key, x in links.items()}
    links["parent"] = place[links["parent"]]
    return links, tuple(names[i] for i in np.flatnonzero(~fixed).tolist()), frames


def _place_on_moving(parent: Array, R: Array, p: Array, fixed: Array) -> tuple[Array, Array, Array]:
    """Placements on the nearest moving ancestor, f_{host,i} = f_{host,j} ... f_{k,i}, by pointer doubling."""
    parent, R, p = parent.copy(), R.copy(), p.copy()
    fixed = np.append(fixed, False)  # the base, index -1, is a host
    while (on_fixed := np.flatnonzero(fixed[parent])).size:
        host = parent[on_fixed]
        p[on_fixed] = p[host] + turned(R[host], p[on_fixed])
        R[on_fixed] = product(R[host], R[on_fixed])
        parent[on_fixed] = parent[host]
    return parent, R, p


def _lumped(links: Arrays, host: Array, R: Array, p: Array, fixed: Array) -> Arrays:
    """Mass, com and inertia of the bodies that carry fixed ones, with the fixed ones included.

    c = sum m_k c_k / sum m_k,  I = sum R_k I_k R_k' + m_k (|d_k|^2 1 - d_k d_k'),  d_k = c_k - c  (Steiner)
    """
    mass, com, inertia = links["mass"].copy(), links["com"].copy(), links["inertia"].copy()
    heavy = (mass != 0) | inertia.any(axis=(1, 2))
    part = np.flatnonzero(fixed & heavy & (host >= 0))  # a body fixed to the base never moves
    if not part.size:
        return {}
    whole = np.flatnonzero(np.bincount(host[part]))
    slot = np.append(np.searchsorted(whole, host[part]), np.arange(len(whole)))  # the body itself is a part too
    m = np.append(mass[part], mass[whole])
    c = np.concatenate([p[part] + turned(R[part], com[part]), com[whole]])
    I = np.concatenate([product(product(R[part], inertia[part]), transposed(R[part])), inertia[whole]])

    def total(x: Array) -> Array:
        out = np.zeros((len(whole), *x.shape[1:]))
        np.add.at(out, slot, x)
        return out

    mass[whole] = total(m)
    com[whole] = total(m[:, None] * c) / np.where(mass[whole] > 0, mass[whole], 1)[:, None]
    d = c - com[whole][slot]
    steiner = np.sum(d * d, axis=1)[:, None, None] * IDENTITY - d[:, :, None] * d[:, None, :]
    inertia[whole] = total(I + m[:, None, None] * steiner)
    return {"mass": mass, "com": com, "inertia": inertia}


# ---- one by one ----


class Builder:
    """Collect bodies and frames by name, as `Model.builder` begins it; a parent may be added after its children.

    Examples
    --------
    >>> import torsor as ts
    >>> arm = ts.Model.builder("arm")
    >>> arm.add("upper", axis=(0, 1, 0), mass=2, com=(0.2, 0, 0), inertia=(0.01, 0.03, 0.03))
    Builder('arm': upper (revolute))
    >>> arm.add("lower", "upper", axis=(0, 1, 0), p=(0.4, 0, 0), mass=1, inertia=(0.01, 0.01, 0.01))
    Builder('arm': upper (revolute), lower (revolute))
    >>> arm.frame("hand", "lower", p=(0.3, 0, 0)).build()
    Model('arm', 2 bodies: 2 revolute; nq=2, nv=2)
    """

    def __init__(self, model: type[Model], name: str, *, gravity: ArrayLike, allow_degenerate: bool) -> None:
        self._model = model
        self._words: dict[str, Any] = {"name": name, "gravity": gravity, "allow_degenerate": allow_degenerate}
        self._bodies: dict[str, dict[str, Any]] = {}
        self._freedoms: list[dict[str, Array]] = []
        self._frames: dict[str, tuple[str | None, Array, Array]] = {}

    def add(
        self, name: str, parent: str | None = None, joint: str = "revolute", **numbers: Unpack[BodyNumbers]
    ) -> Builder:
        """Add a body.

        Parameters
        ----------
        name : str
            The name of the body; no two bodies or frames may share a name.
        parent : str, optional
            The parent body. Default: the base.
        joint : str, default "revolute"
            The type of the joint to its parent, as in `Model.tree`.
        **numbers : float or (3,) or (3, 3) array_like
            axis, pitch, R, p, mass, com, inertia, damping, ...: as in `Model.tree`, for one body.

        Returns
        -------
        builder : Builder
            This builder.

        Raises
        ------
        ArgumentError
            A shape does not fit.
        ModelError
            The name is taken, or the joint type is unknown.
        """
        label = self._new("body", name)
        if not isinstance(parent, str | None):
            raise ArgumentError(f"{label}: parent must be the name of a body, None for the base, not {shown(parent)}")
        given: dict[str, Any] = {**numbers}
        row = {key: as_row(label, key, given.pop(key, plain), SHAPES[key]) for key, plain in PLAIN.items()}
        if not isinstance(joint, str):
            raise ArgumentError(f"{label}: joint must be the name of a joint type, not {shown(joint)}")
        if joint != "fixed":
            try:
                joint_code(joint)
            except ModelError as error:
                raise ModelError(f"{label}: {error}") from None
        self._bodies[name] = {"parent": parent, "joint": joint, **row}
        self._freedoms.append(one_body(label, joint, given))
        return self

    def frame(
        self, name: str, body: str | None = None, R: ArrayLike = IDENTITY, p: ArrayLike = (0.0, 0.0, 0.0)
    ) -> Builder:
        """Add a named frame.

        Parameters
        ----------
        name : str
            The name of the frame.
        body : str, optional
            The body that carries it. Default: the base.
        R : (3, 3) array_like, optional
            Its rotation relative to that body. Default: none.
        p : (3,) array_like, default 0
            Its position on that body, in m.

        Returns
        -------
        builder : Builder
            This one.
        """
        label = self._new("frame", name)
        if not isinstance(body, str | None):
            raise ArgumentError(f"{label}: body must be the name of a body, None for the base, not {shown(body)}")
        self._frames[name] = (body, as_row(label, "R", R, (3, 3)), as_row(label, "p", p, (3,)))
        return self

    def build(self) -> Model:
        """Make the model. Bodies keep the order in which they were added if each came after its parent.

        Returns
        -------
        model : Model
            The machine.

        Raises
        ------
        ModelError
            A parent is missing, or the machine is physically impossible.
        """
        if not self._bodies:
            raise ModelError("a model needs at least one body: add one before build()")
        bodies = self._bodies.values()
        rows: dict[str, Any] = {key: [body[key] for body in bodies] for key in ("joint", *SHAPES)}
        rows |= columns(rows["joint"], self._freedoms)
        model = self._model(**assemble(self._parents(), names=tuple(self._bodies), **rows, **self._words))
        return model.with_frames(self._frames) if self._frames else model

    def __repr__(self) -> str:
        bodies = ", ".join(f"{name} ({body['joint']})" for name, body in self._bodies.items()) or "no bodies"
        frames = f"; frames {', '.join(self._frames)}" if self._frames else ""
        return f"Builder({self._words['name']!r}: {bodies}{frames})"

    def _new(self, kind: str, name: str) -> str:
        """The name of a new body or frame in error messages."""
        if not isinstance(name, str):
            raise ArgumentError(f"the name of a {kind} must be a string, not {shown(name)}")
        label = f"{kind} {name!r}"
        if name in self._bodies or name in self._frames:
            raise ModelError(f"{label} is there already: name every body and frame differently")
        return label

    def _parents(self) -> list[int]:
        index: dict[str | None, int] = {name: i for i, name in enumerate(self._bodies)} | {None: -1}
        for name, body in self._bodies.items():
            if body["parent"] not in index:
                raise ModelError(f"body {name!r} hangs on {body['parent']!r}, which was never added")
        return [index[body["parent"]] for body in self._bodies.values()]


def as_row(label: str, key: str, x: ArrayLike, shape: tuple[int, ...]) -> Array:
    """x as the value of `key` for one body."""
    try:
        row = as_rows(key, x, shape)
    except ArgumentError:
        row = np.empty(0)
    if len(row) != 1:
        raise ArgumentError(f"{label}: {key} must be numbers of shape {shape}, not {shown(x)}")
    return row[0]
