"""Forces on the joints: every force is a callable (t, q, v) -> tau (nv,), and forces add up.

Any function of that form is a force. Parameters are numbers, one for all degrees of freedom or (nv,).

A force may also have a method gains(t, q, v) -> (stiffness, damping): how much its torque at a joint falls with that
joint's own position and velocity, -d tau_k/dq_k and -d tau_k/dv_k, numbers or (nv,). Implicit methods use them
(`implicit.py`). They need not be exact, and a force without them is not wrong, only slower where it is stiff.

A force may know how it changes: changes(t, q, v, dq, dv) -> (k, nv), along k changes of the state, or None. Where it
does not, differences stand in for it (`tangent.py`, `sensitivities.py`).

A force that is data says so, and becomes part of the compiled right-hand side (`joint_forces.py`): what a joint does by
itself has a method parts() -> parts of `laws.py`, or None. The command of a drive, `drive = True`, keeps to the effort
and the speed of the model. It may have methods servo() -> (kp, kd), or None, and command(t), with
tau = command(t) - kp q - kd v; `steady` says whether that command never changes. commands(times) -> (m, nv) gives many
at once, if there is such a method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import newton_euler
from torsor.algorithms.pulls import bias_forces
from torsor.compiler.derivative import derivative
from torsor.dynamics import functions as dynamics
from torsor.dynamics import programs
from torsor.dynamics.calls import program_for
from torsor.errors import ArgumentError
from torsor.files import FEW
from torsor.model.freedoms import limited_coordinates
from torsor.model.model import Model, require_model
from torsor.motion import laws
from torsor.motion.laws import CREEP
from torsor.motion.references import Reference
from torsor.validate import chosen, function, number, parameter, real_array, shown

Array = NDArray[Any]
Force = Callable[[float, Array, Array], Array]
Parameter = float | Array  # for all degrees of freedom, or (nv,)
Gains = tuple[Parameter, Parameter]  # stiffness, damping

# how computed torques, wrenches and pulls change
DEMANDED = derivative(newton_euler.inverse_dynamics, "jvp", ("q", "v", "qdd"))
PUSHED, PULLED = (derivative(algorithm, "jvp", ("q",)) for algorithm in (newton_euler.bias_forces, bias_forces))


@dataclass(frozen=True)
class Constant:
    """A constant tau of the drives."""

    tau: ArrayLike
    drive: ClassVar = True
    steady: ClassVar = True

    def __post_init__(self) -> None:
        parameter("tau", self.tau)

    def __call__(self, t: float, q: Array, v: Array) -> Array:
        return np.asarray(self.tau, dtype=np.float64)

    def servo(self) -> Gains:
        return 0.0, 0.0

    def command(self, t: float) -> Array:
        return np.asarray(self.tau, dtype=np.float64)


class Table:
    """Torques tau (m, nv) of the drives at times t (m,); before and after the table, its first and last values hold.

    Between the times: "linear" (straight lines), "previous" (each value until the next one: a digital
    controller) or "cubic" (a twice continuously differentiable spline).
    """

    drive = True
    steady = False
    options = ("t", "tau", "between")

    def __init__(self, t: ArrayLike, tau: ArrayLike, between: str = "linear") -> None:
        self.t, self.tau = real_array("t", t), real_array("tau", tau)
        if self.t.ndim != 1 or self.tau.shape[:1] != self.t.shape or self.tau.ndim != 2 or len(self.t) < 2:
            raise ArgumentError(f"a table needs t (m,) and tau (m, nv), m > 1, not {self.t.shape}, {self.tau.shape}")
        if not (np.diff(self.t) > 0).all():
            raise ArgumentError("the times of a table must increase")
        ways: dict[str, Callable[[Any], Array]] = {
            "linear": self._linear, "previous": self._previous, "cubic": self._cubic,
        }  # fmt: skip
        chosen("between", between, ways)
        self.between, self._at = between, ways[between]

    def __call__(self, t: float, q: Array, v: Array) -> Array:
        return self.command(t)

    def command(self, t: float) -> Array:
        return self._at(min(max(t, self.t[0]), self.t[-1]))

    def commands(self, t: Sequence[float] | Array) -> Array:
        """Those at many times, (m, nv)."""
        return self._at(np.clip(t, self.t[0], self.t[-1]))

    def servo(self) -> Gains:
        return 0.0, 0.0

    def _linear(self, t: Any) -> Array:
        k = np.minimum(np.maximum(self.t.searchsorted(t, "right") - 1, 0), len(self.t) - 2)
        s = ((t - self.t[k]) / (self.t[k + 1] - self.t[k]))[..., None]
        return (1 - s) * self.tau[k] + s * self.tau[k + 1]

    def _previous(self, t: Any) -> Array:
        return self.tau[self.t.searchsorted(t, "right") - 1]

    def _cubic(self, t: Any) -> Array:
        return self._spline(t)

    @cached_property
    def _spline(self) -> Callable[[Any], Array]:
        from scipy.interpolate import CubicSpline  # imported late, because SciPy is slow to load

        return CubicSpline(self.t, self.tau)

    @classmethod
    def following(cls, model: Model, reference: Reference, t: ArrayLike, between: str = "linear") -> Table:
        """The torques that a reference motion needs, by inverse dynamics at the times t."""
        times = np.atleast_1d(real_array("t", t))
        if times.ndim != 1 or not times.size:
            raise ArgumentError(f"t must be times (m,), not {times.shape}")
        q, v, a = (np.array(x) for x in zip(*map(function("reference", reference), times)))
        return cls(times, dynamics.inverse_dynamics(model, q, v, a), between)


@dataclass(frozen=True)
class PD:
    """tau = kp (q_d - q) + kd (v_d - v), the difference taken on the manifold of q.

    `reference` is a motion t -> (q_d, v_d, a_d), or a configuration (nq,) to hold.
    """

    model: Model
    reference: Any
    kp: Parameter
    kd: Parameter
    drive: ClassVar = True

    def __post_init__(self) -> None:
        _check(self, "kp", "kd")

    def __call__(self, t: float, q: Array, v: Array) -> Array:
        q_d, v_d, _ = followed_at(self.reference, t)
        error = _difference(self.model, q, q_d)
        try:
            return self.kp * error + self.kd * (v_d - v)
        except ValueError:
            raise _unfit(self.model) from None

    def gains(self, t: float, q: Array, v: Array) -> Gains:
        return self.kp, self.kd

    @property
    def steady(self) -> bool:
        return isinstance(self.reference, Hold)

    def servo(self) -> Gains | None:
        return None if _is_curved(self.model, self.kp) else (self.kp, self.kd)

    def command(self, t: float) -> Array:
        return self._demand(*followed_at(self.reference, t))

    def commands(self, t: Sequence[float] | Array) -> Array:
        """Those at many times, (m, nv)."""
        return _many(self, t)

    def _demand(self, q_d: Array, v_d: Array, a_d: Array) -> Array:
        return self.kp * _coordinates(self.model, q_d) + self.kd * v_d


@dataclass(frozen=True)
class ComputedTorque:
    """tau = M(q) (a_d + kd (v_d - v) + kp (q_d - q)) + bias(q, v): the error obeys e'' + kd e' + kp e = 0."""

    model: Model
    reference: Reference
    kp: Parameter = 100.0
    kd: Parameter = 20.0
    drive: ClassVar = True

    def __post_init__(self) -> None:
        _check(self, "kp", "kd")

    def __call__(self, t: float, q: Array, v: Array) -> Array:
        q_d, v_d, a_d = followed_at(self.reference, t)
        error = _difference(self.model, q, q_d)
        try:
            return dynamics.inverse_dynamics(self.model, q, v, a_d + self.kd * (v_d - v) + self.kp * error)
        except ValueError:
            raise _unfit(self.model) from None

    @property
    def steady(self) -> bool:
        return isinstance(self.reference, Hold)

    def is_data(self, model: Model) -> bool:
        """Whether the torques are those of `program` at the accelerations command(t) - kp q - kd v."""
        return self.model.nv == model.nv and _is_flat(self.model)

    def torques(self, t: Array, q: Array, v: Array) -> Array:
        """Those of many states, (m, nv), if they are data."""
        return self.program(q, v, self.commands(t) - self.kp * q - self.kd * v)

    def command(self, t: float) -> Array:
        return self._demand(*followed_at(self.reference, t))

    def commands(self, t: Sequence[float] | Array) -> Array:
        """Those at many times, (m, nv)."""
        return _many(self, t)

    def _demand(self, q_d: Array, v_d: Array, a_d: Array) -> Array:
        return a_d + self.kd * v_d + self.kp * _coordinates(self.model, q_d)

    @cached_property
    def program(self) -> Any:
        """The compiled inverse dynamics."""
        return programs.compile(self.model, dynamics.inverse_dynamics)

    def changes(self, t: float, q: Array, v: Array, dq: Array, dv: Array) -> Array | None:
        if not self.is_data(self.model):
            return None
        a, da = self.command(t) - self.kp * q - self.kd * v, -self.kp * dq - self.kd * dv
        return program_for(DEMANDED, self.model, (), "d", None).ufunc(q, v, a, dq, dv, da)


@dataclass(frozen=True)
class Drive:
    """Any force as a command of the drives: it keeps to the effort and the speed of the model."""

    force: Force
    drive: ClassVar = True

    def __post_init__(self) -> None:
        function("force", self.force)

    def __call__(self, t: float, q: Array, v: Array) -> Array:
        return self.force(t, q, v)

    def gains(self, t: float, q: Array, v: Array) -> Gains:
        known = getattr(self.force, "gains", None)
        return (0.0, 0.0) if known is None else known(t, q, v)


@dataclass(frozen=True)
class Friction:
    """tau = -viscous v - coulomb v / sqrt(v^2 + creep^2): dry friction, its jump smoothed over speeds of `creep`."""

    viscous: Parameter = 0.0
    coulomb: Parameter = 0.0
    creep: float = CREEP

    def __post_init__(self) -> None:
        _check(self, "viscous", "coulomb")
        if not 1e-100 <= number("creep", self.creep, above=0) <= 1e100:  # its square must be a number
            raise ArgumentError(f"creep must be from 1e-100 to 1e100, not {self.creep!r}")

    def __call__(self, t: float, q: Array, v: Array) -> Array:
        return self._action(v).tau

    def gains(self, t: float, q: Array, v: Array) -> Gains:
        return 0.0, self._action(v).damping

    def _action(self, v: Array) -> Any:
        try:
            return laws.spring(0.0, v, 0.0, 0.0, self.viscous).and_(laws.friction(0.0, v, self.coulomb, self.creep))
        except ValueError:
            sizes = f"{np.shape(self.viscous)} and {np.shape(self.coulomb)}"
            raise ArgumentError(f"viscous and coulomb have shapes {sizes}; the model has {len(v)} freedoms") from None

    def parts(self) -> list[laws.Part]:
        parts = [laws.Part("spring", (0.0, 0.0, self.viscous))]
        return [*parts, laws.Part("friction", (self.coulomb, self.creep))] if np.any(self.coulomb) else parts


@dataclass(frozen=True)
class Spring:
    """tau = stiffness (rest - q) - damping v, the difference taken on the manifold of q."""

    model: Model
    stiffness: Parameter
    rest: ArrayLike | None = None  # the neutral configuration
    damping: Parameter = 0.0

    def __post_init__(self) -> None:
        _check(self, "stiffness", "damping")
        if self.rest is not None:
            rest = real_array("rest", self.rest, (self.model.nq,))
            self.model.check_quaternions(rest, "rest")

    def __call__(self, t: float, q: Array, v: Array) -> Array:
        rest = self.model.neutral() if self.rest is None else np.asarray(self.rest)
        return self.stiffness * _difference(self.model, q, rest) - self.damping * v

    def gains(self, t: float, q: Array, v: Array) -> Gains:
        return self.stiffness, self.damping

    def parts(self) -> list[laws.Part] | None:
        if _is_curved(self.model, self.stiffness):
            return None
        rest = self.model.neutral() if self.rest is None else np.asarray(self.rest)
        pull = self.stiffness * _coordinates(self.model, rest)
        return [laws.Part("spring", (pull, self.stiffness, self.damping))]


@dataclass(frozen=True)
class Limits:
    """Joint limits as stops: a spring and a damper that act while a joint is outside [lower, upper].

    A freedom can be limited if a coordinate of its joint is its integral (`Joint.limited`). Those of spherical and free
    joints cannot; they need infinite bounds. The damper never pulls a joint back against its stop.
    """

    model: Model
    lower: Parameter
    upper: Parameter
    stiffness: Parameter = 1e4
    damping: Parameter = 1e2
    _coordinate: Any = field(init=False, repr=False, compare=False)  # the coordinate that each freedom is limited by

    def __post_init__(self) -> None:
        _check(self, "stiffness", "damping")
        nv = self.model.nv
        bounds = (parameter(key, getattr(self, key), nv, finite=False) for key in ("lower", "upper"))
        lower, upper = (np.broadcast_to(x, (nv,)) for x in bounds)
        if (lower > upper).any():
            raise ArgumentError("lower must not exceed upper")
        coordinate = limited_coordinates(self.model)
        for k in np.flatnonzero((coordinate < 0) & (np.isfinite(lower) | np.isfinite(upper)))[:1]:
            body = int(np.searchsorted(self.model.v_start, k, side="right")) - 1
            raise ArgumentError(
                f"lower and upper must be infinite for joint {self.model.names[body]!r}: no coordinate of it is the "
                "integral of its velocity, and limits of one mean nothing"
            )
        for key, value in (("lower", lower), ("upper", upper), ("_coordinate", coordinate)):
            object.__setattr__(self, key, value)

    def __call__(self, t: float, q: Array, v: Array) -> Array:
        return self._action(q, v).tau

    def gains(self, t: float, q: Array, v: Array) -> Gains:
        return self._action(q, v)[1:]

    def _action(self, q: Array, v: Array) -> Any:
        return laws.stops(q[self._coordinate], v, *self.parts()[0].numbers)

    def parts(self) -> list[laws.Part]:
        bounds = laws.finite(np.asarray(self.lower)), laws.finite(np.asarray(self.upper))
        return [laws.Part("stops", (*bounds, self.stiffness, self.damping))]


class External:
    """Wrenches (moment, force) on bodies, in their frames at their origins, felt at the joints.

    tau = sum J_i^T w_i, by one sweep: minus the bias of the weightless machine at rest under these wrenches.
    `wrenches` is (n, 6); (m, n, 6) at times t (m,), as in a `Table`; or a callable (t, q, v) -> (n, 6).
    """

    options = ("weightless", "wrenches", "table")

    def __init__(
        self, model: Model, wrenches: ArrayLike | Callable[[float, Array, Array], Array], t: ArrayLike | None = None,
        between: str = "linear",
    ) -> None:  # fmt: skip
        self.weightless = _model(model).weightless
        self.wrenches: Any = wrenches
        self.table: Table | None = None
        if t is not None:
            rows = real_array("wrenches", wrenches)
            if rows.ndim != 3 or rows.shape[1:] != (model.n, 6):
                raise ArgumentError(f"wrenches at times t must have shape (m, {model.n}, 6), not {rows.shape}")
            self.wrenches, self.table = rows, Table(t, rows.reshape(len(rows), -1), between)
        elif not callable(wrenches):
            self.wrenches = real_array("wrenches", wrenches, (model.n, 6))

    @property
    def is_data(self) -> bool:
        return not callable(self.wrenches)

    def __call__(self, t: float, q: Array, v: Array) -> Array:
        w = self.wrenches(t, q, v) if callable(self.wrenches) else self.at([t])[0]
        return -dynamics.bias_forces(self.weightless, q, np.zeros_like(v), external=w)

    def torques(self, t: Array, q: Array, v: Array) -> Array:
        """Those of many states, (m, nv), if the wrenches are data."""
        w = self.wrenches if self.table is None else self.at(t)
        return -dynamics.bias_forces(self.weightless, q, np.zeros_like(v), external=w)

    def at(self, t: Sequence[float] | Array) -> Array:
        """The wrenches at many times, (m, n, 6), if they are data."""
        shape = len(t), self.weightless.n, 6
        return np.broadcast_to(self.wrenches if self.table is None else self.table.commands(t).reshape(shape), shape)

    def changes(self, t: float, q: Array, v: Array, dq: Array, dv: Array) -> Array | None:
        if not self.is_data or not _is_flat(self.weightless):
            return None
        push = program_for(PUSHED, self.weightless, ("external",), "d", None)
        return -push.ufunc(q, np.zeros_like(v), dq, self.at([t])[0])


@dataclass(frozen=True)
class Pull:
    """A constant force, given in the base's axes, on a point of a body or frame, given in its frame.

    In a rollout, `force` and `at` may have leading axes, one force and point per trajectory.
    """

    model: Model
    body: str
    force: ArrayLike
    at: ArrayLike = (0.0, 0.0, 0.0)
    pulls: Any = field(init=False, repr=False, compare=False)  # (..., n, 12): see `algorithms.pulls`

    def __post_init__(self) -> None:
        frame = _model(self.model).frame(self.body)
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
        pulls = np.zeros((*batch, self.model.n, 12))
        pulls[..., frame.body, :3], pulls[..., frame.body, 3:] = force, moments.reshape(*batch, 9)
        object.__setattr__(self, "pulls", pulls)

    def __call__(self, t: float, q: Array, v: Array) -> Array:
        """Minus the bias of the weightless machine at rest."""
        return -self._bias(q, np.zeros_like(v), self.load)

    def torques(self, t: Array, q: Array, v: Array) -> Array:
        """Those of many states, (m, nv)."""
        return self(0.0, q, v)

    def changes(self, t: float, q: Array, v: Array, dq: Array, dv: Array) -> Array | None:
        if not _is_flat(self.model):
            return None
        return -program_for(PULLED, self.weightless, ("pulls",), "d", None).ufunc(q, np.zeros_like(v), dq, self.load)

    @property
    def load(self) -> Array:
        """(n, 12), the same for all states."""
        if self.pulls.ndim > 2:
            raise ArgumentError(f"force and at of a pull must be (3,) here, without axes {self.pulls.shape[:-2]}")
        return self.pulls

    @property
    def weightless(self) -> Model:
        return self.model.weightless

    @cached_property
    def _bias(self) -> Callable[..., Array]:
        return program_for(bias_forces, self.weightless, ("pulls",), "d", None)


def _points(name: str, x: ArrayLike) -> Array:
    array = real_array(name, x)
    if array.shape[-1:] != (3,):
        raise ArgumentError(f"{name} has shape {array.shape}; (..., 3) is needed")
    return array


@dataclass(frozen=True)
class Hold:
    """A motion that stays at a configuration."""

    q: Array
    still: Array

    def __call__(self, t: float) -> tuple[Array, Array, Array]:
        return self.q, self.still, self.still


def followed_at(reference: Reference, t: float) -> tuple[Array, Array, Array]:
    """q, v and a of a motion to follow."""
    found = reference(t)
    if not isinstance(found, tuple | list) or len(found) != 3:
        raise ArgumentError(f"the reference of a feedback must give q, v and a, not {shown(found)}")
    return found[0], found[1], found[2]


def _many(force: PD | ComputedTorque, t: Sequence[float] | Array) -> Array:
    """The commands of a force at many times; a motion may give its rows at once."""
    if (rows := getattr(force.reference, "rows", None)) is not None:
        return force._demand(*rows(t))
    try:
        return np.array([np.broadcast_to(force.command(x), force.model.nv) for x in t])
    except ValueError:
        raise _unfit(force.model) from None


def _unfit(model: Model) -> ArgumentError:
    return ArgumentError(f"the reference of a feedback must give q, v and a of {model!r}, and the state be one of it")


def known_changes(force: Force, t: float, q: Array, v: Array, dq: Array, dv: Array) -> Array | None:
    """How the torques of a force change along each row of dq (k, nq) and dv (k, nv), if it knows."""
    changes = getattr(force, "changes", None)
    return None if changes is None else changes(t, q, v, dq, dv)


def own_forces(model: Model) -> tuple[Force, ...]:
    """What the joints of a model do by themselves: its dampers, friction, springs and stops."""
    forces: list[Force] = []
    if model.stiffness.any():
        forces.append(Spring(model, model.stiffness, model.integrate(model.neutral(), model.rest), model.damping))
    elif model.damping.any():
        forces.append(Friction(model.damping))
    if model.friction.any():
        forces.append(Friction(coulomb=model.friction))
    if np.isfinite(model.lower).any() or np.isfinite(model.upper).any():
        forces.append(Limits(model, model.lower, model.upper))
    return tuple(forces)


def name_of(force: Force) -> str:
    return getattr(force, "__qualname__", type(force).__qualname__)


def described(x: Any) -> Any:
    """A force, a motion or a number as JSON values, for the headers of files; code that is not torsor's by its name."""
    if x is None or isinstance(x, bool | str):
        return x
    if isinstance(x, Model):
        return x.key
    if isinstance(x, int | float | np.generic | np.ndarray | list | tuple):
        numbers = np.asarray(x, float)
        return numbers.tolist() if numbers.size <= FEW else f"{numbers.shape}, blake2b {_digest(numbers)}"
    own = type(x).__module__.startswith("torsor.")
    names = [part.name for part in fields(x) if part.init] if is_dataclass(x) else getattr(x, "options", ())
    return {"name": name_of(x)} | ({name: described(getattr(x, name)) for name in names} if own else {})


def _digest(numbers: Array) -> str:
    return blake2b(np.ascontiguousarray(numbers).tobytes(), digest_size=16).hexdigest()


def is_data(force: Force) -> bool:
    """Whether a force is one of torsor's or, by its methods, data; all others are functions of the state."""
    own = type(force).__module__.startswith("torsor.") and not isinstance(force, Drive)
    return own or hasattr(force, "servo") or hasattr(force, "parts")


def _check(force: Any, *parameters: str) -> None:
    """Check the model and the reference of a force, if it has them, and convert these parameters to arrays."""
    model = getattr(force, "model", None)
    if hasattr(force, "model"):
        _model(model)
    if hasattr(force, "reference"):
        object.__setattr__(force, "reference", _motion(force.model, force.reference))
    for name in parameters:
        value = parameter(name, getattr(force, name), None if model is None else model.nv)
        object.__setattr__(force, name, value if value.ndim else float(value))


def _motion(model: Model, reference: Any) -> Reference:
    """A motion to follow, or one that stays at a configuration."""
    if callable(reference) or not isinstance(reference, list | tuple | np.ndarray):
        return function("reference", reference)
    q = real_array("reference", reference, (model.nq,))
    model.check_quaternions(q, "reference")
    return Hold(q, np.zeros(model.nv))


def _model(model: Any) -> Model:
    require_model(model)
    return model


def _is_curved(model: Model, stiffness: Parameter) -> bool:
    """Whether there is stiffness at a freedom whose position is not a coordinate: one of a quaternion."""
    return bool(np.any((limited_coordinates(model) < 0) & (np.asarray(stiffness) != 0)))


def _is_flat(model: Model) -> bool:
    """Whether dq/dt = v at every joint."""
    return np.array_equal(limited_coordinates(model), np.arange(model.nq))


def _coordinates(model: Model, q: ArrayLike) -> Array:
    """The coordinate of every freedom; at the freedoms of a quaternion, any number."""
    q = np.asarray(q)
    return q if model.nq == model.nv else q[..., limited_coordinates(model)]


def _difference(model: Model, q: Array, goal: ArrayLike) -> Array:
    """goal [-] q; where no joint has a quaternion, plain subtraction, which is faster."""
    try:
        return np.asarray(goal) - q if model.nq == model.nv else model.difference(q, goal)
    except ValueError:
        sizes = f"the state has {len(q)} coordinates, and what it follows or rests at {np.shape(goal)}"
        raise ArgumentError(f"a force was made for {model!r}; {sizes}") from None
