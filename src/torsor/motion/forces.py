"""Forces on a machine, as data. `forces=[...]` means the same in `simulate`, `rollout` and `ensemble`.

    ts.simulate(arm, forces=[ts.PD(goal, kp=100.0, kd=10.0), ts.Friction(coulomb=0.2), ts.Pull("hand", (0, 0, -20))])

A force belongs to no model: it binds to the machine on which it acts. Parameters at the joints are numbers, one for all
freedoms or (nv,); in a rollout they may have leading axes (..., nv), with one value per trajectory. Any function
(t, q, v) -> tau is a force, too; a rollout calls it once per stage with all states.

Commands of the drives (`Constant`, `Table`, `PD`, `ComputedTorque`, `Feedback`, `Policy`) are limited by the effort and
speed of the model; springs, friction, stops and loads on the bodies do not pass through the drives.

A new force is a class with a method `terms(model)`; `law.py` defines the terms.
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
    NUMBERS,
    PLACEMENTS,
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
)
from torsor.motion.laws import CREEP
from torsor.motion.references import Reference
from torsor.validate import chosen, flag, function, number, real_array, shown

interpolate = Later("scipy.interpolate")

Array = NDArray[Any]
Scalars = Sequence[Scalar]


class _Data:
    """A force whose parameters are data."""

    reads_its_fields = True  # its terms depend only on its fields, which may be functions (`law.content`)

    def __new__(cls, *given: Any, **named: Any) -> Any:
        if given and isinstance(given[0], Model):
            raise ArgumentError(f"{cls.__name__} binds to the model on which it acts: leave out the model")
        return super().__new__(cls)

    def described(self) -> dict[str, Any]:
        """Describe the force as JSON values, for the headers of files.

        Returns
        -------
        words : dict
            Its name and parameters.
        """
        return {"name": type(self).__name__} | {key: _plain(x) for key, x in vars(self).items() if key[0] != "_"}

    def terms(self, model: Model) -> Iterable[Term]:
        """Bind the force to the model on which it acts.

        Parameters
        ----------
        model : Model
            The machine.

        Returns
        -------
        terms : sequence of Term
            Gains, commands, loads or functions; `torsor.motion.law`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(_Data):
    """Constant torques of the drives.

    Parameters
    ----------
    tau : float or (..., nv) array_like
        In N m and N.

    Examples
    --------
    >>> import torsor as ts
    >>> run = ts.simulate(ts.zoo.pendulum(), duration=0.1, forces=ts.Constant(2.0))
    >>> bool(run.q[-1, 0] > 0)
    True
    """

    tau: ArrayLike

    def terms(self, model: Model) -> Iterable[Term]:
        return (Command(at_joints(model, self, "tau")),)


@dataclass(frozen=True)
class Table(_Data):
    """Torques of the drives at given times; before and after the table, its first and last rows hold.

    Parameters
    ----------
    t : (m,) array_like
        Increasing times, in s.
    tau : (..., m, nv) array_like
        The torques at these times, in N m and N.
    between : str, default "linear"
        Between the times: "linear" (straight lines), "previous" (each value until the next one, as a digital controller
        does) or "cubic" (a twice continuously differentiable spline).

    Raises
    ------
    ArgumentError
        The times do not increase, or there is not one row of torques per time.

    Examples
    --------
    >>> import torsor as ts
    >>> pulse = ts.Table([0.0, 0.1, 0.2], [[0.0], [5.0], [0.0]], "previous")
    >>> run = ts.simulate(ts.zoo.pendulum(), duration=0.3, forces=pulse)
    >>> bool(run.q[-1, 0] > 0)
    True
    """

    t: ArrayLike
    tau: ArrayLike
    between: str = "linear"

    def __post_init__(self) -> None:
        _set(self, t=real_array("t", self.t), tau=real_array("tau", self.tau))
        _check_table(self, "tau", 1)

    def terms(self, model: Model) -> Iterable[Term]:
        times, rows = np.asarray(self.t), _wide(model, self, "tau")
        return (Command(Schedule(sampled(times, rows, self.between), rows.shape[:-2], times)),)

    @classmethod
    def following(cls, model: Model, reference: Reference, t: ArrayLike, between: str = "linear") -> Table:
        """Make the table of the torques that a reference motion needs, by inverse dynamics.

        Parameters
        ----------
        model : Model
            The machine.
        reference : callable
            A function of t that returns q, v and a, such as `Cycloid`.
        t : (m,) array_like
            The times of the rows, in s.
        between : str, default "linear"
            Between the rows: "linear", "cubic" or "previous".

        Returns
        -------
        force : Table
            The torques.
        """
        times = np.atleast_1d(real_array("t", t))
        if times.ndim != 1 or not times.size:
            raise ArgumentError(f"t must be times (m,), not {times.shape}")
        q, v, a = followed(function("reference", reference), times)
        return cls(times, dynamics.inverse_dynamics(model, q, v, a), between)


CURVED = "the difference that {} takes between orientations"


@dataclass(frozen=True)
class PD(_Data):
    r"""Servos that hold a configuration or follow a motion, with the difference taken on the manifold of q.

    $$ \tau = k_p (q_d - q) + k_d (v_d - v) $$

    Parameters
    ----------
    reference : float, (..., nq) array_like, or callable
        A configuration to hold, or a motion t -> (q_d, v_d, a_d) such as a `Cycloid`.
    kp : float or (..., nv) array_like
        Stiffness, in N m/rad or N/m.
    kd : float or (..., nv) array_like
        Damping, in N m s/rad or N s/m.

    Raises
    ------
    ArgumentError
        The reference is neither a configuration nor a motion.

    Examples
    --------
    >>> import torsor as ts
    >>> arm = ts.zoo.pendulum()
    >>> run = ts.simulate(arm, duration=3.0, forces=ts.PD(0.5, kp=500.0, kd=40.0))
    >>> bool(abs(run.q[-1, 0] - 0.5) < 0.01)
    True
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
            yield Command(Schedule(lambda t: demand(*_motion(model, reference, t)[:2]), _axes(kp, kd)))
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

        return Called(torque, lambda t, q, v: (kp, kd), drive=True, batched=True, on_host=CURVED.format("a PD"))


@dataclass(frozen=True)
class ComputedTorque(_Data):
    r"""Computed torques: the error of the motion obeys e'' + kd e' + kp e = 0 if the model is exact.

    $$ \tau = M(q)\,(a_d + k_d (v_d - v) + k_p (q_d - q)) + b(q, v) $$

    Parameters
    ----------
    reference : float, (nq,) array_like, or callable
        A configuration to hold, or a motion t -> (q_d, v_d, a_d).
    kp : float or (nv,) array_like, default 100
        In 1/s^2.
    kd : float or (nv,) array_like, default 20
        In 1/s.
    model : Model, optional
        The controller's model. Default: the machine that moves; in a batch of models, each member.

    Raises
    ------
    ArgumentError
        The reference is neither a configuration nor a motion.

    Examples
    --------
    >>> import torsor as ts
    >>> arm, path = ts.zoo.double_pendulum(), ts.MinimumJerk([0.0, 0.0], [1.0, -1.0], T=1.0)
    >>> run = ts.simulate(arm, duration=1.0, forces=ts.ComputedTorque(path))
    >>> print(run.q[-1].round(4))
    [ 1. -1.]
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
        own, itself = self.model or model, self.model is None
        if (own.nq, own.nv) != (model.nq, model.nv):
            raise ArgumentError(f"ComputedTorque is for {own!r}, which does not have the freedoms of {model!r}")
        kp, kd = at_joints(model, self, "kp"), at_joints(model, self, "kd")
        if not _is_flat(model):
            yield self._called(own, kp, kd)._replace(reads=NUMBERS if itself else ())
            return

        def demand(q: Array, v: Array, a: Array) -> Array:
            return kp[..., None, :] * q + kd[..., None, :] * v + a

        if callable(self.reference):
            reference: Reference = self.reference
            yield Track(own, itself, kp, kd, Schedule(lambda t: demand(*_motion(model, reference, t)), _axes(kp, kd)))
        else:
            q = _configuration(model, "reference", self.reference)
            yield Track(own, itself, kp, kd, kp * q)

    def _called(self, model: Model, kp: Array, kd: Array) -> Called:
        def torque(t: float, q: Array, v: Array) -> Array:
            if callable(self.reference):
                q_d, v_d, a_d = (x[0] for x in _motion(model, self.reference, np.array([t])))
            else:
                q_d, v_d, a_d = _configuration(model, "reference", self.reference), 0.0 * v, 0.0 * v
            error = model.difference(q, np.broadcast_to(q_d, q.shape))
            return dynamics.inverse_dynamics(model, q, v, a_d + kd * (v_d - v) + kp * error)

        return Called(torque, drive=True, batched=True, on_host=CURVED.format("a ComputedTorque"))


@dataclass(frozen=True)
class Feedback(_Data):
    """A linear controller of the drives, as LQR and iLQR compute it: tau = tau_ref + K (x_ref - x), x = (q, v).

    With times, each array has an axis of length m before its last axes: entry k holds from t[k] until t[k + 1].

    Parameters
    ----------
    K : (..., nv, nq + nv) array_like
        Gains.
    x_ref : float or (..., nq + nv) array_like, default 0
        The target state.
    tau : float or (..., nv) array_like, default 0
        Torques at that state, in N m and N.
    t : (m,) array_like, optional
        Increasing times, in s, for gains that change.

    Raises
    ------
    ArgumentError
        The times do not increase, or there is not one matrix of gains per time.

    Examples
    --------
    >>> import torsor as ts
    >>> law = ts.Feedback([[20.0, 5.0]], x_ref=[0.3, 0.0])
    >>> run = ts.simulate(ts.zoo.pendulum(), duration=4.0, forces=law)
    >>> print(run.q[-1].round(3))
    [0.241]
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
        yield Linear(Schedule(sampled(times, K.reshape(*K.shape[:-2], nv * width), "previous"), K.shape[:-3], times))
        yield Command(Schedule(sampled(times, command, "previous"), command.shape[:-2], times, holds=True))


@dataclass(frozen=True)
class Policy(_Data):
    r"""A small neural network of the state; its output is a command of the drives.

    $$ \tau = W_k f(\dots f(W_1 (q, v) + b_1) \dots) + b_k $$

    Parameters
    ----------
    layers : sequence of ((outputs, inputs), (outputs,)) array_like
        Pairs (W, b); the first takes (q, v), the last returns (nv,).
    activation : str, default "relu"
        f, between layers: "relu", max(x, 0), or "softsign", x / (1 + abs(x)).

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> rng = np.random.default_rng(0)
    >>> layers = [(rng.normal(size=(4, 2)), np.zeros(4)), (rng.normal(size=(1, 4)), np.zeros(1))]
    >>> path = ts.rollout(ts.zoo.pendulum(), np.ones((8, 1)), np.zeros((8, 1)), steps=10, step=0.01,
    ...                   forces=ts.Policy(layers, "softsign"))
    >>> path.q.shape
    (8, 10, 1)
    """

    layers: Sequence[tuple[ArrayLike, ArrayLike]]
    activation: str = "relu"

    def terms(self, model: Model) -> Iterable[Term]:
        return (Network(self.checked(model)),)

    def checked(self, model: Model) -> Policy:
        """Check the network against a model.

        Parameters
        ----------
        model : Model
            The machine.

        Returns
        -------
        policy : Policy
            The same, with its numbers as arrays.

        Raises
        ------
        ArgumentError
            A layer does not fit.
        """
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
        """Its activation and its numbers as bytes."""
        return b"|".join([self.activation.encode(), *(np.asarray(x).tobytes() for layer in self.layers for x in layer)])


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: maximum(x, 0.0),
    "softsign": lambda x: x / (maximum(x, -x) + 1.0),  # abs has no slope on a tape
}


@dataclass(frozen=True)
class Friction(_Data):
    r"""Friction at the joints: viscous, and dry friction whose jump is smoothed over speeds of `creep`.

    $$ \tau = -d\,v - c\,\frac{v}{\sqrt{v^2 + \epsilon^2}} $$

    Parameters
    ----------
    viscous : float or (..., nv) array_like, default 0
        d, in N m s/rad or N s/m.
    coulomb : float or (..., nv) array_like, default 0
        c, in N m or N.
    creep : float, default 1e-3
        The speed over which the jump is smoothed, in rad/s or m/s.

    Raises
    ------
    ArgumentError
        creep is not positive.

    Examples
    --------
    >>> import torsor as ts
    >>> run = ts.simulate(ts.zoo.pendulum(), [1.0], duration=5.0, forces=ts.Friction(viscous=0.5))
    >>> bool(run.energy[-1] < run.energy[0])
    True
    """

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
    """Springs and dampers at the joints: tau = stiffness (rest - q) - damping v.

    At joints with quaternions, where q - rest is a rotation vector e, the torque is minus the gradient of
    sum stiffness_k e_k^2 / 2: springs conserve energy at every joint. At a free joint, the last three e_k are the
    displacement from `rest` along the axes of the parent.

    Parameters
    ----------
    stiffness : float or (..., nv) array_like
        In N m/rad or N/m.
    rest : (nq,) array_like, optional
        The configuration at which the springs are slack. Default: the neutral configuration.
    damping : float or (..., nv) array_like, default 0
        In N m s/rad or N s/m.

    Examples
    --------
    >>> import torsor as ts
    >>> spring = ts.Spring(3.0, rest=[0.2], damping=2.0)
    >>> run = ts.simulate(ts.zoo.pendulum(), duration=5.0, gravity=False, forces=spring)
    >>> print(run.q[-1].round(3))
    [0.2]
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

    A freedom can have limits if its joint has a coordinate that is the integral of the freedom's velocity. Freedoms of
    spherical and free joints have none, and need infinite bounds.

    Parameters
    ----------
    lower, upper : float or (..., nv) array_like
        The limits, in rad or m; infinite: no limit.
    stiffness, damping : float or (..., nv) array_like, default 0
        Of the stops; 0: chosen from the inertia that the joint carries, so that it stops within 20 ms.

    Examples
    --------
    >>> import torsor as ts
    >>> run = ts.simulate(ts.zoo.pendulum(), [1.0], duration=3.0, forces=ts.Limits(lower=-0.5, upper=2.0))
    >>> bool(run.q.min() > -0.6)
    True
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
        return (Part("stops", (lower, upper, stiffness, damping)),)


@dataclass(frozen=True)
class External(_Data):
    """Wrenches (moment, force) on the bodies, in their frames at their origins.

    Parameters
    ----------
    wrenches : (..., n, 6) array_like, or callable
        In N m and N; (m, n, 6) at times t, as in a `Table`; or a function (t, q, v) -> (n, 6).
    t : (m,) array_like, optional
        Increasing times, in s.
    between : str, default "linear"
        As in `Table`.

    Raises
    ------
    ArgumentError
        The times do not increase, or there is not one set of wrenches per time.

    Examples
    --------
    >>> import torsor as ts
    >>> push = ts.External([[0.0, 0.0, 0.0, 5.0, 0.0, 0.0]])
    >>> body = ts.Model.chain("free", mass=1.0, inertia=(0.1, 0.1, 0.1))
    >>> print(ts.simulate(body, duration=1.0, gravity=False, forces=push).q[-1, :3].round(6))
    [2.5 0.  0. ]
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

            return (Called(torque, batched=True, reads=PLACEMENTS),)
        w = np.asarray(self.wrenches)
        if w.shape[-2:] != (model.n, 6):
            wanted = f"(..., {model.n}, 6)" if self.t is None else f"(m, {model.n}, 6)"
            raise ArgumentError(f"wrenches must have shape {wanted} for {model!r}, not {w.shape}")
        if self.t is None:
            return (Load("external", w),)
        rows = sampled(np.asarray(self.t), w.reshape(len(w), -1), self.between)
        return (Load("external", Schedule(rows, knots=np.asarray(self.t))),)


@dataclass(frozen=True)
class Pull(_Data):
    """A force at a point of a body or frame, with a constant direction in the base's axes.

    Parameters
    ----------
    body : str
        The body or named frame.
    force : (..., 3) array_like
        In the base's axes, in N.
    at : (..., 3) array_like, default the origin
        The point, in the frame of the body, in m.

    Examples
    --------
    >>> import torsor as ts
    >>> run = ts.simulate(ts.zoo.pendulum(damping=5.0), duration=20.0, forces=ts.Pull("tip", (-4.905, 0, 0)))
    >>> print(run.q[-1].round(3))
    [0.785]
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
    """A function (t, q, v) -> tau with known properties; plain functions are forces, too.

    Parameters
    ----------
    torque : callable
        (t, q, v) -> tau; in a rollout it is called once per stage with all states.
    slopes : callable, optional
        (t, q, v) -> (stiffness, damping): how much the torque at a joint falls with that joint's own position and
        velocity, numbers or (nv,). Implicit methods use them; they need not be exact.
    drive : bool, default False
        Whether it is a command of the drives, which limit it by their effort and speed.
    needs_v : bool, default True
        False: it depends only on t and q. Methods that move positions and velocities in turn then call it once per
        step.

    Raises
    ------
    ArgumentError
        torque or slopes cannot be called.

    Examples
    --------
    >>> import torsor as ts
    >>> stiff = ts.Function(lambda t, q, v: -1e4 * (q - 0.3), slopes=lambda t, q, v: (1e4, 0.0))
    >>> run = ts.simulate(ts.zoo.pendulum(damping=50.0), duration=1.0, forces=stiff, method="esdirk4")
    >>> print(run.q[-1].round(2))
    [0.3]
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
    """A function times (m,) -> (..., m, width) that interpolates the rows (..., knots, width) at the times t."""
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
    """q, v and a of a motion at many times, one row per time; a motion may have a method `rows` for all times."""
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


def _axes(*numbers: Array) -> tuple[int, ...]:
    """The batch axes of numbers at the joints."""
    return np.broadcast_shapes(*(x.shape[:-1] for x in numbers))


def _check_table(force: Any, name: str, rank: int) -> None:
    """Check that the times of a table increase, and that it has one row per time."""
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
    """Whether a freedom with stiffness has no coordinate of its own: a freedom of a quaternion."""
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
