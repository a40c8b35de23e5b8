"""Forces: what acts on a machine, as data. `forces=[...]` means the same in `simulate`, `rollout` and `ensemble`.

    ts.simulate(arm, forces=[ts.PD(goal, kp=100.0, kd=10.0), ts.Friction(coulomb=0.2), ts.Pull("hand", (0, 0, -20))])

A force belongs to no model: it binds to the machine on which it acts. Parameters at the joints are numbers, one for all
freedoms or (nv,); in a rollout they may have leading axes (..., nv), with one value per trajectory. Any function
(t, q, v) -> tau is a force, too; a rollout calls it once per stage with all states.

Commands of the drives (`Constant`, `Table`, `PD`, `ComputedTorque`, `Feedback`, `Policy`) keep to the effort and the
speed of the model; springs, friction, stops, and what acts on the bodies do not pass through the drives.

A new force is a class with a method `terms(model)`: see `law.py` for the terms of which forces are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.dynamics import functions as dynamics
from torsor.errors import ArgumentError
from torsor.files import FEW, digest
from torsor.later import Later
from torsor.linalg import Scalar, maximum
from torsor.model.freedoms import limited_coordinates
from torsor.model.model import Model, require_model
from torsor.motion.law import (
    Called,
    Command,
    Linear,
    Load,
    Network,
    Part,
    Schedule,
    Servo,
    Term,
    Track,
    spring_terms,
    stop_part,
)
from torsor.motion.laws import CREEP
from torsor.motion.references import Reference
from torsor.validate import chosen, flag, function, number, real_array, shown

interpolate = Later("scipy.interpolate")

Array = NDArray[Any]
Scalars = Sequence[Scalar]


class _Data:
    """A force whose parameters are data."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        if given and isinstance(given[0], Model):
            raise ArgumentError(f"{cls.__name__} binds to the model on which it acts: leave out the model")
        return super().__new__(cls)

    def described(self) -> dict[str, Any]:
        """Name and parameters as JSON values, for the headers of files."""
        return {"name": type(self).__name__} | {key: _plain(x) for key, x in vars(self).items() if key[0] != "_"}

    def terms(self, model: Model) -> Iterable[Term]:
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(_Data):
    """Constant torques tau of the drives."""

    tau: ArrayLike

    def terms(self, model: Model) -> Iterable[Term]:
        return (Command(at_joints(model, self, "tau")),)


@dataclass(frozen=True)
class Table(_Data):
    """Torques tau (..., m, nv) of the drives at times t (m,); before and after the table, its ends hold.

    Between the times: "linear" (straight lines), "previous" (each value until the next one: a digital controller) or
    "cubic" (a twice continuously differentiable spline).
    """

    t: ArrayLike
    tau: ArrayLike
    between: str = "linear"

    def __post_init__(self) -> None:
        _set(self, t=real_array("t", self.t), tau=real_array("tau", self.tau))
        _check_table(self, "tau", 1)

    def terms(self, model: Model) -> Iterable[Term]:
        times = np.asarray(self.t)
        return (Command(Schedule(sampled(times, _wide(model, self, "tau"), self.between), times)),)

    @classmethod
    def following(cls, model: Model, reference: Reference, t: ArrayLike, between: str = "linear") -> Table:
        """The torques that a reference motion needs, by inverse dynamics at the times t."""
        times = np.atleast_1d(real_array("t", t))
        if times.ndim != 1 or not times.size:
            raise ArgumentError(f"t must be times (m,), not {times.shape}")
        q, v, a = followed(function("reference", reference), times)
        return cls(times, dynamics.inverse_dynamics(model, q, v, a), between)


@dataclass(frozen=True)
class PD(_Data):
    """tau = kp (q_d - q) + kd (v_d - v) of the drives, the difference taken on the manifold of q.

    `reference` is a motion t -> (q_d, v_d, a_d), or a configuration (..., nq) to hold.
    """

    reference: Any
    kp: ArrayLike
    kd: ArrayLike

    def __post_init__(self) -> None:
        _set(self, reference=_reference(self.reference))

    def terms(self, model: Model) -> Iterable[Term]:
        kp, kd = at_joints(model, self, "kp"), at_joints(model, self, "kd")
        if _is_curved(model, kp):
            yield self._called(model, kp, kd)
            return
        column = limited_coordinates(model)

        def demand(q: Array, v: Array) -> Array:
            return kp[..., None, :] * (q if _is_flat(model) else q[..., column]) + kd[..., None, :] * v

        yield Servo(kp, kd)
        if callable(self.reference):
            reference: Reference = self.reference
            yield Command(Schedule(lambda t: demand(*_motion(model, reference, t)[:2])))
        else:
            q = _configuration(model, "reference", self.reference)
            yield Command(demand(q[..., None, :], np.zeros(model.nv))[..., 0, :])

    def _called(self, model: Model, kp: Array, kd: Array) -> Called:
        def torque(t: float, q: Array, v: Array) -> Array:
            if callable(self.reference):
                q_d, v_d, _ = (x[0] for x in _motion(model, self.reference, np.array([t])))
            else:
                q_d, v_d = _configuration(model, "reference", self.reference), np.zeros(model.nv)
            return kp * model.difference(q, np.broadcast_to(q_d, q.shape)) + kd * (v_d - v)

        return Called(torque, lambda t, q, v: (kp, kd), drive=True, batched=True)


@dataclass(frozen=True)
class ComputedTorque(_Data):
    """tau = M(q) (a_d + kd (v_d - v) + kp (q_d - q)) + bias(q, v): the error obeys e'' + kd e' + kp e = 0.

    `reference` is a motion t -> (q_d, v_d, a_d), or a configuration (nq,) to hold; `model`, if it is given, the one
    that the controller believes in.
    """

    reference: Any
    kp: ArrayLike = 100.0
    kd: ArrayLike = 20.0
    model: Model | None = None

    def __post_init__(self) -> None:
        _set(self, reference=_reference(self.reference))
        if self.model is not None:
            require_model(self.model)

    def terms(self, model: Model) -> Iterable[Term]:
        own = self.model or model
        if (own.nq, own.nv) != (model.nq, model.nv):
            raise ArgumentError(f"ComputedTorque is for {own!r}, which does not have the freedoms of {model!r}")
        kp, kd = at_joints(model, self, "kp"), at_joints(model, self, "kd")
        if not _is_flat(model):
            yield self._called(own, kp, kd)
            return

        def demand(q: Array, v: Array, a: Array) -> Array:
            return kp[..., None, :] * q + kd[..., None, :] * v + a

        if callable(self.reference):
            reference: Reference = self.reference
            yield Track(own, kp, kd, Schedule(lambda t: demand(*_motion(model, reference, t))))
        else:
            q = _configuration(model, "reference", self.reference)
            yield Track(own, kp, kd, kp * q)

    def _called(self, model: Model, kp: Array, kd: Array) -> Called:
        def torque(t: float, q: Array, v: Array) -> Array:
            if callable(self.reference):
                q_d, v_d, a_d = (x[0] for x in _motion(model, self.reference, np.array([t])))
            else:
                q_d, v_d, a_d = _configuration(model, "reference", self.reference), 0.0 * v, 0.0 * v
            error = model.difference(q, np.broadcast_to(q_d, q.shape))
            return dynamics.inverse_dynamics(model, q, v, a_d + kd * (v_d - v) + kp * error)

        return Called(torque, drive=True, batched=True)


@dataclass(frozen=True)
class Feedback(_Data):
    """tau = tau_ref + K (x_ref - x), x = (q, v), of the drives: a linear controller, as LQR and iLQR give it.

    K (..., nv, nq + nv), x_ref (..., nq + nv), tau (..., nv). With times t (m,), each of them has an axis of m before
    its last ones, (..., m, nv, nq + nv) and so on: the k-th holds from t[k] until t[k + 1].
    """

    K: ArrayLike
    x_ref: ArrayLike = 0.0
    tau: ArrayLike = 0.0
    t: ArrayLike | None = None

    def __post_init__(self) -> None:
        _set(self, K=real_array("K", self.K), x_ref=real_array("x_ref", self.x_ref), tau=real_array("tau", self.tau))
        if self.t is not None:
            _set(self, t=real_array("t", self.t), between="previous")
            _check_table(self, "K", 2)

    def terms(self, model: Model) -> Iterable[Term]:
        nv, width = model.nv, model.nq + model.nv
        K, x_ref, tau = np.asarray(self.K), np.asarray(self.x_ref), np.asarray(self.tau)
        if K.shape[-2:] != (nv, width):
            raise ArgumentError(f"K of Feedback has shape {K.shape}; (..., {nv}, {width}) is needed for {model!r}")
        for name, x, size in (("x_ref", x_ref, width), ("tau", tau, nv)):
            if x.ndim and x.shape[-1] != size:
                raise ArgumentError(f"{name} of Feedback has shape {x.shape}; (..., {size}) is needed for {model!r}")
        command = tau + np.einsum("...ij,...j->...i", K, np.broadcast_to(x_ref, (*x_ref.shape[:-1], width)))
        if self.t is None:
            yield Linear(K)
            yield Command(np.broadcast_to(command, (*command.shape[:-1], nv)))
            return
        times = np.asarray(self.t)
        yield Linear(Schedule(sampled(times, K.reshape(*K.shape[:-2], nv * width), "previous"), times))
        yield Command(Schedule(sampled(times, command, "previous"), times))


@dataclass(frozen=True)
class Policy(_Data):
    """A small neural network of the state: tau = W_k f(... f(W_1 (q, v) + b_1) ...) + b_k, a command of the drives.

    layers      (W, b) each: W (outputs, inputs) and b (outputs,); the first takes (q, v), the last gives (nv,)
    activation  f, between the layers: "relu", max(x, 0), or "softsign", x / (1 + |x|)
    """

    layers: Sequence[tuple[ArrayLike, ArrayLike]]
    activation: str = "relu"

    def terms(self, model: Model) -> Iterable[Term]:
        return (Network(self.checked(model)),)

    def checked(self, model: Model) -> Policy:
        """The policy with arrays for a model."""
        chosen("activation", self.activation, ACTIVATIONS)
        if not isinstance(self.layers, list | tuple):
            raise ArgumentError(f"layers of a policy must be a list of pairs (W, b), not {shown(self.layers)}")
        width = model.nq + model.nv
        layers: list[tuple[Array, Array]] = []
        for k, layer in enumerate(self.layers):
            if not isinstance(layer, tuple | list) or len(layer) != 2:
                raise ArgumentError(f"layers[{k}] of a policy must be a pair (W, b), not {shown(layer)}")
            W, b = (real_array(f"{name} of layers[{k}]", x) for name, x in zip("Wb", layer))
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


@dataclass(frozen=True)
class Friction(_Data):
    """tau = -viscous v - coulomb v / sqrt(v^2 + creep^2): dry friction, its jump smoothed over speeds of `creep`."""

    viscous: ArrayLike = 0.0
    coulomb: ArrayLike = 0.0
    creep: float = CREEP

    def __post_init__(self) -> None:
        if not 1e-100 <= number("creep", self.creep, above=0) <= 1e100:  # its square must be a number
            raise ArgumentError(f"creep must be from 1e-100 to 1e100, not {self.creep!r}")

    def terms(self, model: Model) -> Iterable[Term]:
        yield Part("spring", (0.0, 0.0, at_joints(model, self, "viscous")))
        if np.any(coulomb := at_joints(model, self, "coulomb")):
            yield Part("friction", (coulomb, self.creep))


@dataclass(frozen=True)
class Spring(_Data):
    """Springs at the joints, slack at the configuration `rest` (default: the neutral one), and dampers.

    tau = stiffness (rest - q) - damping v. At joints with quaternions, where q - rest is a rotation vector e, it is
    minus the gradient of sum stiffness_k e_k^2 / 2: springs conserve energy at every joint.
    """

    stiffness: ArrayLike
    rest: ArrayLike | None = None
    damping: ArrayLike = 0.0

    def terms(self, model: Model) -> Iterable[Term]:
        rest = model.neutral() if self.rest is None else _configuration(model, "rest", self.rest)
        return spring_terms(model, at_joints(model, self, "stiffness"), at_joints(model, self, "damping"), rest)


@dataclass(frozen=True)
class Limits(_Data):
    """Joint limits as stops: a spring and a damper that act while a joint is outside [lower, upper].

    A freedom can be limited if a coordinate of its joint is its integral (`Joint.limited`); those of spherical and free
    joints cannot, and need infinite bounds. Stiffness and damping default to those of a model's own stops (`law.py`).
    """

    lower: ArrayLike
    upper: ArrayLike
    stiffness: ArrayLike = 0.0
    damping: ArrayLike = 0.0

    def terms(self, model: Model) -> Iterable[Term]:
        names = "lower", "upper", "stiffness", "damping"
        lower, upper, stiffness, damping = (at_joints(model, self, name, finite=name in names[2:]) for name in names)
        if (lower > upper).any():
            raise ArgumentError("lower must not exceed upper")
        limited = (np.isfinite(lower) | np.isfinite(upper)).reshape(-1, model.nv).any(axis=0)
        for k in np.flatnonzero((limited_coordinates(model) < 0) & limited)[:1]:
            raise ArgumentError(
                f"lower and upper must be infinite for joint {model.body_of_freedom(k)!r}: no coordinate of it is the "
                "integral of its velocity, and limits of one mean nothing"
            )
        return (stop_part(model, lower, upper, stiffness, damping),)


@dataclass(frozen=True)
class External(_Data):
    """Wrenches (moment, force) on the bodies, in their frames at their origins.

    wrenches  (..., n, 6); (m, n, 6) at times t (m,), as in a `Table`; or a function (t, q, v) -> (n, 6)
    """

    wrenches: Any
    t: ArrayLike | None = None
    between: str = "linear"

    def __post_init__(self) -> None:
        if not callable(self.wrenches):
            _set(self, wrenches=real_array("wrenches", self.wrenches))
        if self.t is not None:
            _set(self, t=real_array("t", self.t))
            _check_table(self, "wrenches", 2)

    def terms(self, model: Model) -> Iterable[Term]:
        if callable(self.wrenches):
            weightless = model.weightless

            def torque(t: float, q: Array, v: Array) -> Array:
                return -dynamics.bias_forces(weightless, q, np.zeros_like(v), external=self.wrenches(t, q, v))

            return (Called(torque, batched=True),)
        w = np.asarray(self.wrenches)
        if w.shape[-2:] != (model.n, 6):
            wanted = f"(..., {model.n}, 6)" if self.t is None else f"(m, {model.n}, 6)"
            raise ArgumentError(f"wrenches must have shape {wanted} for {model!r}, not {w.shape}")
        if self.t is None:
            return (Load("external", w),)
        rows = sampled(np.asarray(self.t), w.reshape(len(w), -1), self.between)
        return (Load("external", Schedule(rows, np.asarray(self.t))),)


@dataclass(frozen=True)
class Pull(_Data):
    """A constant force, given in the base's axes, on a point of a body or frame, given in its frame.

    `force` and `at` may have leading axes, one force and point per trajectory.
    """

    body: str
    force: ArrayLike
    at: ArrayLike = (0.0, 0.0, 0.0)

    def terms(self, model: Model) -> Iterable[Term]:
        frame = model.frame(self.body)
        if frame.body < 0:
            raise ArgumentError(f"{self.body!r} is on the base, which no force moves")
        force, at = (_points(name, getattr(self, name)) for name in ("force", "at"))
        point = frame.p + at @ frame.R.T
        try:
            with np.errstate(over="ignore"):
                moments = force[..., :, None] * point[..., None, :]
        except ValueError:
            raise ArgumentError(f"force {force.shape} and at {at.shape} do not go together") from None
        if not np.isfinite(moments).all():
            raise ArgumentError(f"force and at of the pull on {self.body!r} are too large: their product overflows")
        batch = moments.shape[:-2]
        pulls = np.zeros((*batch, model.n, 12))
        pulls[..., frame.body, :3], pulls[..., frame.body, 3:] = force, moments.reshape(*batch, 9)
        return (Load("pulls", pulls),)


@dataclass(frozen=True)
class Function(_Data):
    """A function (t, q, v) -> tau with what is known about it; plain functions are forces, too.

    slopes    (t, q, v) -> (stiffness, damping): how much the torque at a joint falls with that joint's own position and
              velocity, numbers or (nv,). Implicit methods use them; they need not be exact
    drive     True: a command of the drives, which keep to their effort and speed
    needs_v   False: depends on t and q alone. Methods that move positions and velocities in turn then call it once
              per step
    """

    torque: Callable[[float, Array, Array], Array]
    slopes: Callable[[float, Array, Array], tuple[Any, Any]] | None = None
    drive: bool = False
    needs_v: bool = True

    def __post_init__(self) -> None:
        function("torque", self.torque)
        if self.slopes is not None:
            function("slopes", self.slopes)
        flag("drive", self.drive)
        flag("needs_v", self.needs_v)

    def terms(self, model: Model) -> Iterable[Term]:
        return (Called(self.torque, self.slopes, self.drive, self.needs_v),)


# ---- tables and motions ----


def sampled(t: Array, rows: Array, between: str) -> Callable[[Array], Array]:
    """A function of times (m,) -> (..., m, width) of rows (..., knots, width) at the times t."""
    if between == "cubic":
        spline: list[Any] = []

        def cubic(times: Array) -> Array:
            if not spline:
                spline.append(interpolate.CubicSpline(t, rows, axis=-2))
            return spline[0](np.clip(times, t[0], t[-1]))

        return cubic

    def stepwise(times: Array) -> Array:
        return rows[..., np.maximum(t.searchsorted(times, "right") - 1, 0), :]

    def linear(times: Array) -> Array:
        times = np.clip(times, t[0], t[-1])
        k = np.minimum(np.maximum(t.searchsorted(times, "right") - 1, 0), len(t) - 2)
        s = ((times - t[k]) / (t[k + 1] - t[k]))[:, None]
        return (1 - s) * rows[..., k, :] + s * rows[..., k + 1, :]

    return stepwise if between == "previous" else linear


def followed(reference: Reference, times: Array) -> tuple[Array, Array, Array]:
    """q, v and a of a motion at many times, a row each; a motion may give its rows at once."""
    if (rows := getattr(reference, "rows", None)) is not None:
        return rows(times)
    found = [reference(t) for t in times.tolist()]
    for x in found:
        if not isinstance(x, tuple | list) or len(x) != 3:
            raise ArgumentError(f"a reference must give q, v and a, not {shown(x)}")
        if (shapes := [*map(np.shape, x)]) != (first := [*map(np.shape, found[0])]):
            raise ArgumentError(f"a reference gives q, v and a of shapes {first} at first, and then {shapes}")
    q, v, a = (real_array(f"{name} of the reference", [x[k] for x in found]) for k, name in enumerate("qva"))
    return q, v, a


def _motion(model: Model, reference: Reference, times: Array) -> tuple[Array, Array, Array]:
    """`followed`, with the shapes of a model."""
    sizes = model.nq, model.nv, model.nv
    found = followed(reference, times)
    for name, x, size in zip("qva", found, sizes):
        if x.ndim > 1 and x.shape[1:] not in ((), (1,), (size,)):
            raise ArgumentError(f"a reference gives {name} with {x.shape[1:]} numbers; {model!r} needs {size}")
    q, v, a = (np.broadcast_to(x if x.ndim > 1 else x[:, None], (len(times), n)) for x, n in zip(found, sizes))
    return q, v, a


def _reference(reference: Any) -> Any:
    """A motion, or the configuration to hold as an array."""
    if callable(reference):
        return reference
    if not isinstance(reference, list | tuple | np.ndarray | float | int):
        return function("reference", reference)
    return real_array("reference", reference)


# ---- checks ----


def at_joints(model: Model, force: Any, name: str, finite: bool = True) -> Array:
    """A parameter of a force as (..., nv)."""
    what = f"{name} of {type(force).__name__}"
    x = real_array(what, getattr(force, name), finite=finite)
    if np.isnan(x).any():
        raise ArgumentError(f"{what} holds a NaN")
    if x.ndim and x.shape[-1] not in (1, model.nv):
        raise ArgumentError(f"{what} has shape {x.shape}; one number or (..., {model.nv}) is needed for {model!r}")
    return np.broadcast_to(x, (*x.shape[:-1], model.nv))


def _wide(model: Model, force: Any, name: str) -> Array:
    """The rows of a table, (..., m, nv)."""
    x = np.asarray(getattr(force, name))
    if x.shape[-1] != model.nv:
        raise ArgumentError(f"{name} of {type(force).__name__} has {x.shape[-1]} columns; {model!r} needs {model.nv}")
    return x


def _check_table(force: Any, name: str, rank: int) -> None:
    """The times of a table must increase, and its rows belong to them."""
    t, rows = np.asarray(force.t), np.asarray(getattr(force, name))
    if t.ndim != 1 or rows.ndim < 1 + rank or rows.shape[-1 - rank] != len(t) or len(t) < (1 if rank == 2 else 2):
        core = ", nv" if rank == 1 else ", ..."
        raise ArgumentError(f"a table needs t (m,) and {name} (m{core}), m > 1, not {t.shape}, {rows.shape}")
    if not (np.diff(t) > 0).all():
        raise ArgumentError("the times of a table must increase")
    chosen("between", getattr(force, "between", "linear"), ("linear", "previous", "cubic"))


def _configuration(model: Model, name: str, q: Any) -> Array:
    """A configuration (..., nq) of a model."""
    x = real_array(name, q)
    if x.ndim == 0 and model.nq == model.nv:
        x = np.full(model.nq, float(x))
    if x.shape[-1:] != (model.nq,):
        raise ArgumentError(f"{name} has shape {x.shape}; {model!r} needs (..., {model.nq})")
    model.check_quaternions(x, name)
    return x


def _points(name: str, x: ArrayLike) -> Array:
    array = real_array(name, x)
    if array.shape[-1:] != (3,):
        raise ArgumentError(f"{name} has shape {array.shape}; (..., 3) is needed")
    return array


def _set(force: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(force, name, value)


def _is_curved(model: Model, stiffness: Array) -> bool:
    """Whether there is stiffness at a freedom whose position is not a coordinate: one of a quaternion."""
    return bool(np.any((limited_coordinates(model) < 0) & (stiffness != 0)))


def _is_flat(model: Model) -> bool:
    """Whether dq/dt = v at every joint."""
    return np.array_equal(limited_coordinates(model), np.arange(model.nq))


# ---- in the headers of files ----


def described(force: Any) -> dict[str, Any]:
    """A force as JSON values; a function by its name."""
    return force.described() if isinstance(force, _Data) else {"name": name_of(force)}


def name_of(force: Any) -> str:
    return getattr(force, "__qualname__", type(force).__qualname__)


def _plain(x: Any) -> Any:
    if x is None or isinstance(x, bool | str):
        return x
    if isinstance(x, Model):
        return x.key
    if isinstance(x, list | tuple) and not all(isinstance(y, int | float) for y in x):
        return [_plain(y) for y in x]
    if isinstance(x, int | float | np.generic | np.ndarray | list | tuple):
        numbers = np.asarray(x, float)
        return numbers.tolist() if numbers.size <= FEW else f"{numbers.shape}, blake2b {digest(numbers)}"
    own = {part.name: _plain(getattr(x, part.name)) for part in fields(x)} if hasattr(x, "__dataclass_fields__") else {}
    return {"name": name_of(x)} | own
