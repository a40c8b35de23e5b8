"""The law of a rollout: what a feedback commands and what joints do by themselves, in the form that a kernel takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import validate
from torsor.errors import ArgumentError
from torsor.linalg import Scalar, maximum
from torsor.model.batch import VARIABLE, ModelBatch, machine_of
from torsor.model.freedoms import DEFAULTS, limited_coordinates, nondefault
from torsor.model.model import Model
from torsor.motion.forces import PD, ComputedTorque, Hold, Pull, followed_at
from torsor.motion.laws import CREEP, FAR, STOP_DAMPING, STOP_STIFFNESS, finite, most

Array = NDArray[Any]
Scalars = Sequence[Scalar]


@dataclass(frozen=True)
class LinearFeedback:
    """tau = Kq (q_ref - q) + Kv (v_ref - v).

    Kq (nv, nq) and Kv (nv, nv), or their diagonals (nv,); the references default to zero.  References may have leading
    batch axes, one per trajectory; so may matrices.  For gains per joint and trajectory, see `JointFeedback`.
    """

    Kq: ArrayLike
    Kv: ArrayLike
    q_ref: ArrayLike = 0.0
    v_ref: ArrayLike = 0.0


@dataclass(frozen=True)
class JointFeedback:
    """tau_k = kp_k (q_ref_k - q_k) + kd_k (v_ref_k - v_k): a servo at every joint, in O(n).

    Numbers, (nv,), or (..., nv) with a value for each trajectory.  The joints must have no quaternions.
    """

    kp: ArrayLike
    kd: ArrayLike
    q_ref: ArrayLike = 0.0
    v_ref: ArrayLike = 0.0


@dataclass(frozen=True)
class Policy:
    """A small neural network, compiled into the step: tau = W_k f(... f(W_1 (q, v) + b_1) ...) + b_k.

    layers      (W, b) each: W (outputs, inputs) and b (outputs,); the first takes (q, v), the last gives (nv,)
    activation  f, between the layers: "relu", max(x, 0), or "softsign", x / (1 + |x|)
    """

    layers: Sequence[tuple[ArrayLike, ArrayLike]]
    activation: str = "relu"

    def checked(self, model: Model) -> Policy:
        """The policy with arrays for a model."""
        validate.chosen("activation", self.activation, ACTIVATIONS)
        width = model.nq + model.nv
        layers: list[tuple[Array, Array]] = []
        for k, layer in enumerate(self.layers):
            if not isinstance(layer, tuple | list) or len(layer) != 2:
                raise ArgumentError(f"layers[{k}] of a policy must be a pair (W, b), not {validate.shown(layer)}")
            W, b = (validate.real_array(f"{name} of layers[{k}]", x) for name, x in zip("Wb", layer))
            if W.ndim != 2 or W.shape[1] != width or b.shape != W.shape[:1]:
                raise ArgumentError(
                    f"layers[{k}] has W {W.shape} and b {b.shape}; W (m, {width}) and b (m,) are needed"
                )
            layers.append((W, b))
            width = len(b)
        if not layers or width != model.nv:
            raise ArgumentError(
                f"the last layer of a policy must give {model.nv} torques, not {width if layers else 0}"
            )
        return Policy(tuple(layers), self.activation)

    def __call__(self, x: Scalars) -> Scalars:
        """The torques, over any scalars; structural zeros of W cost nothing."""
        for k, (W, b) in enumerate(self.layers):
            if k:
                x = [ACTIVATIONS[self.activation](xi) for xi in x]
            rows = zip(np.asarray(W).tolist(), np.asarray(b).tolist())
            x = [sum((w * xi for w, xi in zip(row, x) if w), start=bias) for row, bias in rows]
        return x

    @property
    def key(self) -> bytes:
        return b"|".join([self.activation.encode(), *(np.asarray(x).tobytes() for layer in self.layers for x in layer)])


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: maximum(x, 0.0),
    "softsign": lambda x: x / (maximum(x, -x) + 1.0),  # abs has no slope on a tape
}


Feedback = LinearFeedback | JointFeedback | Policy | PD | ComputedTorque

# The law of the joints -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Law:
    """Torques in the form that a kernel takes.

    The command of the drives is tau (..., nv) - K (q, v), K sparse, and that of a policy; tau includes the references.
    The parts (`laws.py`) limit the drives, and add what the joints do by themselves.
    """

    gains: Array  # (k, 2): row, column of the entries of K
    parts: tuple[tuple[str, tuple[int, ...]], ...]  # a kind of `laws.KINDS`, and the freedoms where it acts
    values: Array  # (..., m): the entries of K, then the numbers of the parts; never empty
    constant: Array  # (..., nv)
    policy: Policy | None = None  # adds torques of its own
    computed: Model | None = None  # the command is accelerations: this model's inverse dynamics gives the torques
    wrenches: bool = False  # there are wrenches on the bodies, one more input of a step
    pulls: Array | None = None  # (..., n, 12): forces in the base's axes, one more input (`algorithms.pulls`)

    @cached_property
    def key(self) -> bytes:
        """What the code of a step depends on."""
        names = repr((self.parts, self.loads, self.computed and self.computed.key)).encode()
        return b"|".join([self.gains.tobytes(), names, self.policy.key if self.policy else b""])

    @property
    def loads(self) -> tuple[str, ...]:
        """The options of the forward dynamics for what acts on the bodies."""
        return (*["external"] * self.wrenches, *["pulls"] * (self.pulls is not None))

    @property
    def smooth(self) -> bool:
        """Whether the law is linear: no friction, no stops, no limits of drives, no policy, no computed torques."""
        return not (self.policy or self.parts or self.computed)


def kept_law(machine: Model | ModelBatch, feedback: Feedback | None) -> Law:
    """`law_of` a machine; the last one is kept with it, for as long as its feedback has the same numbers.

    It is not in the store: models that differ in what their joints do share one.
    """
    now = _content(feedback)
    before, law = vars(machine).get(KEPT, (None, None))
    if law is None or before != now:
        varied = machine.varied if isinstance(machine, ModelBatch) else {}
        law = law_of(machine_of(machine), feedback, varied)
        vars(machine)[KEPT] = now, law
    return law


KEPT = "last law"  # the attribute of a machine


def _content(x: Any) -> Any:
    """All numbers that a law depends on, as something that can be compared; a motion to follow is not part of it."""
    if isinstance(x, np.ndarray):
        return x.shape, x.dtype.str, x.tobytes()
    if isinstance(x, Model):
        return x.key
    if is_dataclass(x):
        return type(x), *(_content(getattr(x, field.name)) for field in fields(x))
    if isinstance(x, list | tuple):
        return tuple(map(_content, x))
    return x if isinstance(x, int | float | str | None) else type(x) if callable(x) else object()


def law_of(model: Model, feedback: Feedback | None, own: Mapping[str, Array] | None = None) -> Law:
    """The law of a feedback and of the model's own springs, dampers, friction, stops and limits of its drives.

    `own` are those of its quantities (..., nv) in which trajectories differ.  What a feedback follows in time is not
    part of the law (see `followed`), nor is what acts on the bodies.
    """
    computed = _own_model(model, feedback) if isinstance(feedback, ComputedTorque) else None
    if isinstance(feedback, PD | ComputedTorque):
        _own_model(model, feedback)
        goal = feedback.reference.q if isinstance(feedback.reference, Hold) else 0.0
        feedback = JointFeedback(feedback.kp, feedback.kd, goal)
    given = _quantities(model, own or {})
    limited = any((given[name] < FAR).any() for name in ("effort", "speed") if name in given)
    apart = limited or computed is not None
    # a drive without limits adds to springs and dampers: they are entries of the same K
    linear = [_linear(model, feedback) if isinstance(feedback, LinearFeedback) else _servos(model, feedback)]
    linear = linear if apart or "stiffness" not in given else [_own(model, given), *linear]
    width = model.nq + model.nv
    places, where = np.unique(np.concatenate([rows * width + columns for rows, columns, _, _ in linear]),
                              return_inverse=True)  # fmt: skip
    parts = list(_parts(model, given, apart))
    shapes = [x.shape[:-1] for x in (*(values for _, _, values, _ in linear), *(x for _, _, own in parts for x in own))]
    try:
        batch = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ArgumentError(f"the batch axes of members and gains do not go together: {sorted(set(shapes))}") from None
    total = np.zeros((*batch, len(places)))
    ends = np.cumsum([0, *(len(rows) for rows, _, _, _ in linear)])
    for first, end, (_, _, values, _) in zip(ends[:-1], ends[1:], linear):
        total[..., where[first:end]] += values
    numbers = [np.broadcast_to(x, (*batch, x.shape[-1])) for _, _, own in parts for x in own]
    values = np.concatenate([total, *numbers], axis=-1)
    constant = sum((x for _, _, _, x in linear), np.zeros(model.nv))
    gains = np.stack([places // width, places % width], axis=1)
    policy = feedback.checked(model) if isinstance(feedback, Policy) else None
    structure = tuple((kind, tuple(freedoms.tolist())) for kind, freedoms, _ in parts)
    values = values if values.shape[-1] else np.zeros((*batch, 1))
    return Law(gains, structure, values, constant, policy, computed)


def pulls_on(model: Model, pulls: Pull | Sequence[Pull] | None) -> Array | None:
    """The sum of all pulls, (..., n, 12)."""
    given = pulls if isinstance(pulls, list | tuple) else [] if pulls is None else [pulls]
    total: Any = None
    for each in given:
        if not isinstance(each, Pull):
            raise ArgumentError(f"pulls must be made by Pull(model, body, force, at), not be {validate.shown(each)}")
        if not all(np.array_equal(getattr(each.model, name), getattr(model, name)) for name in ("parent", "joint")):
            raise ArgumentError(f"the pull on {each.body!r} was made for {each.model!r}, not for {model!r}")
        try:
            total = each.pulls if total is None else total + each.pulls
        except ValueError:
            raise ArgumentError(f"the axes of the pull on {each.body!r} do not go with those before it") from None
    return total


# The parts of a law that are in a model: the names of their numbers there, and numbers that are the same for all.
PARTS: dict[str, tuple[tuple[str, ...], tuple[float, ...]]] = {
    "spring": (("rest", "stiffness", "damping"), ()),
    "held friction": (("friction",), (CREEP,)),
    "stops": (("lower", "upper"), (STOP_STIFFNESS, STOP_DAMPING)),
    "effort": (("effort",), ()),
    "speed": (("speed",), ()),
}


def _quantities(model: Model, own: Mapping[str, Array]) -> dict[str, Array]:
    """What the joints do, (..., nv) each, with finite limits; what they all do not is left out."""
    given = {name: x for name, x in (nondefault(model) | dict(own)).items() if name in VARIABLE}
    for names, _ in PARTS.values():
        if given.keys() & {*names}:
            given |= {name: given.get(name, getattr(model, name)) for name in names}
    return {name: most(x) if name in ("effort", "speed") else finite(np.asarray(x)) for name, x in given.items()}


def _own_model(model: Model, feedback: PD | ComputedTorque) -> Model:
    """The model that a feedback was made for."""
    own = feedback.model
    if own.nv != model.nv or own.nq != model.nq:
        raise ArgumentError(f"the feedback was made for {own!r}, which does not have the freedoms of {model!r}")
    return own


def followed(feedback: Feedback | None, steps: int, dt: float) -> Array | None:
    """What a feedback adds to the command in every step (steps, nv), if it follows a motion: kp q_d + kd v_d, and the
    acceleration for computed torques."""
    if not isinstance(feedback, PD | ComputedTorque) or isinstance(feedback.reference, Hold):
        return None
    rows = []
    for t in dt * np.arange(steps):
        q, v, a = _sample(feedback, t)
        rows.append(feedback.kp * q + feedback.kd * v + (a if isinstance(feedback, ComputedTorque) else 0.0))
    return validate.real_array("what the reference gives", rows, (steps, feedback.model.nv))


def _sample(feedback: PD | ComputedTorque, t: float) -> list[Array]:
    """q, v and a of a motion to follow."""
    found, sizes = followed_at(feedback.reference, t), ((), (feedback.model.nv,))
    return [validate.real_array(f"{name} of the reference", x, *sizes) for name, x in zip("qva", found)]


def _parts(model: Model, given: Mapping[str, Array], apart: bool) -> Iterator[tuple[str, Array, list[Array]]]:
    """Kind, freedoms and numbers (..., m) of what is not linear; apart from the drives, springs and dampers, too."""

    def where(*names: str) -> Array:
        used = [given[name] != finite(np.array(DEFAULTS[name])) for name in names]
        return np.flatnonzero(np.any([x.reshape(-1, model.nv).any(axis=0) for x in used], axis=0))

    for kind, (names, more) in PARTS.items():
        freedoms = where(*names) if names[0] in given else np.zeros(0, int)
        if not len(freedoms) or (kind == "spring" and not apart):
            continue
        numbers = [given[name] for name in names]
        if kind == "spring":
            _refuse_curved_springs(model, given["stiffness"])
            numbers[0] = given["stiffness"] * given["rest"]
        yield kind, freedoms, [x[..., freedoms] for x in numbers] + [np.full(len(freedoms), x) for x in more]


Linear = tuple[Array, Array, Array, Array]  # rows, columns, values (..., k), constant (..., nv)


def _own(model: Model, given: Mapping[str, Array]) -> Linear:
    """The springs and dampers of the model."""
    stiffness, damping, rest = np.broadcast_arrays(*(given[name] for name in ("stiffness", "damping", "rest")))
    stiff, damped = (x.reshape(-1, model.nv).any(axis=0) for x in (stiffness, damping))
    _refuse_curved_springs(model, stiffness)
    column = limited_coordinates(model)
    springs, dampers = np.flatnonzero(stiff), np.flatnonzero(damped)
    rows, columns = np.concatenate([springs, dampers]), np.concatenate([column[springs], model.nq + dampers])
    return rows, columns, np.concatenate([stiffness[..., springs], damping[..., dampers]], axis=-1), stiffness * rest


def _refuse_curved_springs(model: Model, stiffness: Array) -> None:
    stiff = stiffness.reshape(-1, model.nv).any(axis=0)
    for k in np.flatnonzero(stiff & (limited_coordinates(model) < 0))[:1]:
        body = int(np.searchsorted(model.v_start, k, side="right")) - 1
        raise ArgumentError(f"a rollout knows no springs on quaternions: joint {model.names[body]!r} has one")


def _servos(model: Model, feedback: Any) -> Linear:
    if not isinstance(feedback, JointFeedback):
        return np.zeros(0, int), np.zeros(0, int), np.zeros(0), np.zeros(model.nv)
    if model.nq != model.nv:
        raise ArgumentError(f"JointFeedback needs joints without quaternions; {model!r} has some")
    given = {}
    for name in ("kp", "kd", "q_ref", "v_ref"):
        x = validate.real_array(name, getattr(feedback, name))
        if x.ndim and x.shape[-1] != model.nv:
            raise ArgumentError(f"{name} has shape {x.shape}; a number or (..., {model.nv}) is needed")
        given[name] = x
    try:
        kp, kd, q_ref, v_ref = np.broadcast_arrays(*given.values(), np.empty(model.nv))[:4]
    except ValueError:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in given.items())
        raise ArgumentError(f"the batch axes do not go together: {shapes}") from None
    joints = np.arange(model.nv)
    rows, columns = np.concatenate([joints, joints]), np.concatenate([joints, model.nq + joints])
    return rows, columns, np.concatenate([kp, kd], axis=-1), kp * q_ref + kd * v_ref


def _linear(model: Model, feedback: LinearFeedback) -> Linear:
    parts = _gain(model, "Kq", feedback.Kq, model.nq), _gain(model, "Kv", feedback.Kv, model.nv)
    axes = {name: np.shape(getattr(feedback, name)) for name in ("Kq", "Kv", "q_ref", "v_ref")}
    try:
        np.broadcast_shapes(*(x.shape[:-2] for x in parts), *(axes[name][:-1] for name in ("q_ref", "v_ref")))
    except ValueError:
        shapes = ", ".join(f"{name} {shape}" for name, shape in axes.items())
        raise ArgumentError(f"the batch axes do not go together: {shapes}") from None
    batch = np.broadcast_shapes(*(x.shape[:-2] for x in parts))
    K = np.concatenate([np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in parts], axis=-1)
    references = []
    for name, x, size in (("q_ref", feedback.q_ref, model.nq), ("v_ref", feedback.v_ref, model.nv)):
        x = validate.real_array(name, x)
        if x.ndim and x.shape[-1] != size:
            raise ArgumentError(f"{name} has shape {x.shape}; a number or (..., {size}) is needed")
        references.append(np.broadcast_to(x, (*x.shape[:-1], size)))
    batch = np.broadcast_shapes(*(x.shape[:-1] for x in references))
    reference = np.concatenate([np.broadcast_to(x, (*batch, x.shape[-1])) for x in references], axis=-1)
    rows, columns = np.nonzero(np.any(K, axis=tuple(range(K.ndim - 2))))
    return rows, columns, K[..., rows, columns], (K @ reference[..., None])[..., 0]


def _gain(model: Model, name: str, K: ArrayLike, columns: int) -> Array:
    matrix = validate.real_array(name, K)
    if matrix.shape == (model.nv,) and columns == model.nv:
        matrix = np.diag(matrix)
    if matrix.shape[-2:] != (model.nv, columns):
        raise ArgumentError(f"{name} has shape {matrix.shape}; finite gains ({model.nv}, {columns}) are needed")
    return matrix
