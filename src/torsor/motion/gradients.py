"""Gradients of rollouts, backwards in time: from the cotangents of the stored states to those of the initial state.

The adjoint of a step (`adjoint.py`) needs the state before the step. For few steps all these states are kept. For T
steps, about sqrt(T) of them are kept on the way forward, and those in between are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isqrt, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor import validate
from torsor.backends.cpu import pool
from torsor.dynamics.calls import gpu_array
from torsor.errors import ArgumentError
from torsor.inputs import PARAMETERS
from torsor.model.batch import machine_of, require_models
from torsor.model.freedoms import limited_coordinates
from torsor.model.model import Model, require_model
from torsor.motion.adjoint import AdjointRun, adjoint_of, cotangents
from torsor.motion.driver import CHUNK, PATH, Fixed, States, checked_states, settings
from torsor.motion.forces import ACTIVATIONS, PD, Constant, Limits, Table, sampled
from torsor.motion.law import collect, force_list
from torsor.motion.steps import METHODS
from torsor.motion.time_loop import StepRun, at_once

Array = NDArray[Any]
NUDGE = 7.310585786e-4  # the change of a parameter; not a round number, so that it makes no parameter zero
TINY = 1e-300  # replaces parameters that are zero, so that the law contains them and they have a gradient


@dataclass(frozen=True)
class RolloutGradient:
    """The cotangents of the inputs of a rollout, per trajectory.

    q, v (..., nv): of the initial state;  tau (..., steps, nv): of torques of the drives in every step. Those of the
    names in `wrt` are items: gradient["inertia"].
    """

    q: Any
    v: Any
    tau: Any
    others: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.others[name]


def rollout_vjp(model: Any, q: Any, v: Any, cotangent: tuple[Any, Any], *, steps: int, step: float,
                method: str = "semi-implicit", forces: Any = (), gravity: bool = True, every: int = 1,
                wrt: str | Iterable[str] = ()) -> RolloutGradient:  # fmt: skip
    """`ts.vjp(ts.rollout, wrt)`: the gradient of a function of the states of a rollout, by one backward sweep in time.

        states = ts.rollout(model, q, v, steps=T, step=h, forces=forces)
        gradient = ts.vjp(ts.rollout, "PD.kp")(model, q, v, (dL_dq, dL_dv), steps=T, step=h, forces=forces)
        gradient.q, gradient.tau, gradient["PD.kp"]

    cotangent   of the stored states: a pair, for q and for v, (..., stored, nv) both. Cotangents of q, also those of
                the initial q, are with respect to displacements along v, as everywhere (see `vjp`)
    wrt         numbers of the model: "inertia", "placement", "gravity" (see `vjp`). The derivative includes computed
                torques of the same model, but not the stiffness that torsor chose for stops. Also parameters of forces,
                by class: "PD.kp", "Spring.stiffness", "Friction.coulomb", "Feedback.K", "Constant.tau", "Table.tau",
                "Policy.layers" (a list of (W, b)). At quaternions, where a servo is a function, kp has the gradient NaN

    All other arguments are those of `rollout`. Memory grows with the square root of `steps`.
    """
    names = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    if len(set(names)) < len(names):
        raise ArgumentError(f"wrt names something twice: {', '.join(names)}")
    require_models(model)
    complete = _complete(machine_of(model), force_list(forces), names)
    setup, steps, every = settings(model, steps, step, method, complete, gravity, every)
    if gpu_array(q) or gpu_array(v):
        raise ArgumentError("the gradient of a rollout runs on the CPU: give it NumPy arrays")
    if setup.law.called:
        raise ArgumentError(
            "a rollout under functions, or servos on quaternions, has no gradient: give other forces, or "
            "servos whose gains are zero at free and ball joints"
        )
    states = States(setup, checked_states(setup.model, {"q": q, "v": v}), steps)
    back = _Backwards(setup, states, steps, every, names)
    kept, nv = steps // every, setup.model.nv
    gq, gv = (_cotangent(name, x, states, (kept, nv)) for name, x in zip("qv", _pair(cotangent)))

    def chunk(first: int) -> None:
        rows = slice(first, first + CHUNK)
        back.run(rows, gq[rows], gv[rows])

    if states.count <= CHUNK:
        chunk(0)
    else:
        list(pool().map(chunk, range(0, states.count, CHUNK)))
    return back.result(complete)


def _complete(model: Model, forces: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """The forces; in parameters named in `wrt`, TINY replaces zeros."""
    found = list(forces)
    for name in names:
        kind, _, parameter = name.rpartition(".")
        if not kind:
            if owners := [type(force).__name__ for force in found if hasattr(force, name)]:
                raise ArgumentError(f'wrt: a parameter of a force goes by its class, "{owners[0]}.{name}"')
            validate.chosen("wrt", name, PARAMETERS)
            continue
        k = force_place(found, kind, parameter)
        if parameter != "layers" and not isinstance(found[k], Limits):  # zeros of Limits are limits or ask for defaults
            try:
                x = np.array(getattr(found[k], parameter), float)
            except (TypeError, ValueError):
                raise ArgumentError(f"{name} has no gradient: it holds no numbers") from None
            absent = (x == 0) & _is_number(model, found[k], parameter)
            found[k] = replace(found[k], **{parameter: np.where(absent, TINY, x)})
    return found


def _is_number(model: Model, force: Any, parameter: str) -> Array:
    """Which entries of a parameter are numbers of the law: a servo on quaternions is a function."""
    shape = np.shape(getattr(force, parameter))
    own = limited_coordinates(model) >= 0 if isinstance(force, PD) and parameter == "kp" and shape else True
    return np.broadcast_to(own, shape)


def force_place(forces: Sequence[Any], kind: str, parameter: str) -> int:
    places = [k for k, force in enumerate(forces) if type(force).__name__ == kind and hasattr(force, parameter)]
    if len(places) != 1:
        there = ", ".join(type(force).__name__ for force in forces) or "none"
        raise ArgumentError(
            f"wrt names {kind}.{parameter}: that needs one force {kind} with it; the forces are {there}"
        )
    return places[0]


def _pair(cotangent: Any) -> tuple[Any, Any]:
    if not isinstance(cotangent, tuple | list) or len(cotangent) != 2:
        raise ArgumentError(f"cotangent must be a pair: of q and of v, not {validate.shown(cotangent)}")
    return cotangent[0], cotangent[1]


def _cotangent(name: str, x: Any, states: States, core: tuple[int, ...]) -> Array:
    array = validate.real_array(f"the cotangent of {name}", x)
    if array.shape != (*states.batch, *core):
        wanted = (*states.batch, *core)
        raise ArgumentError(f"the cotangent of {name} has shape {array.shape}; it must be {wanted}")
    return array.reshape(-1, *core).astype(states.dtype, copy=False)


class _Backwards:
    """The steps of a rollout, forward and backward, and the sums of their cotangents."""

    def __init__(self, setup: Fixed, states: States, steps: int, every: int, names: Sequence[str]) -> None:
        self.setup, self.states, self.steps, self.every, model = setup, states, steps, every, setup.model
        self.names = names
        self.of_model = tuple(name for name in names if name in PARAMETERS)
        self.by_network = "Policy.layers" in names
        count, dtype, nv = states.count, states.dtype, model.nv
        self.step = setup.step
        if self.by_network:  # one slot per evaluation of the network, so that its torques have separate cotangents
            self.step = self.step._replace(slots=len(setup.method.times))
        self.adjoint = adjoint_of(self.step, np.dtype(dtype).name, self.of_model, self.by_network)
        self.q, self.v = np.empty((2, count, nv), dtype)
        self.slots = self.step.slots
        self.tau = np.zeros((count, steps, self.slots, setup.law.rows, nv), dtype)
        self.gain = np.zeros((count, 1 if setup.law.schedule is None else steps, setup.law.values.shape[-1]), dtype)
        self.model = {name: np.zeros((count, *PARAMETERS[name].shape(model)), dtype) for name in self.of_model}
        policy = setup.law.policy
        self.layers = [[np.zeros((count, *np.shape(x))) for x in layer] for layer in policy.layers] if (
            self.by_network and policy
        ) else []  # fmt: skip

    def run(self, rows: slice, gq: Array, gv: Array) -> None:
        """Differentiate some trajectories; gq, gv: the cotangents of their stored states."""
        steps, part = self.steps, self.states.part(rows)
        forth, back = self.states.run(part), self._adjoint_run(part)
        kept = [np.concatenate([part["q"], part["v"]], axis=1)]  # the states before the steps 0, apart, 2 apart, ...
        apart = min(steps, max(isqrt(steps - 1) + 1, PATH // max(1, kept[0].size)))
        for start in range(0, steps - apart, apart):
            kept.append(self._forward(forth, kept[-1], part, start, start + apart)[-1])
        for start in reversed(range(0, steps, apart)):
            end = min(start + apart, steps)
            states = self._forward(forth, kept.pop(), part, start, end - 1)
            stored = np.zeros((end - start, len(gq), 2 * gq.shape[-1]), self.states.dtype)
            first = -(start + 1) % self.every  # the first of these steps with a stored state
            among = slice((start + first) // self.every, end // self.every)
            stored[first :: self.every] = np.moveaxis(np.concatenate([gq[:, among], gv[:, among]], axis=-1), 1, 0)
            each = partial(self._weights, rows, back) if self.layers else None
            for at, found in back(states, stored, self._changing(part, start, end - start), each):
                self._take(rows, start + at, back, found)
        self.q[rows], self.v[rows] = (back.of(name, found[:1])[0] for name in "qv")
        for name, x in back.of_model.items():
            self.model[name][rows] = x.reshape(self.model[name][rows].shape)

    def _adjoint_run(self, part: Mapping[str, Array]) -> AdjointRun:
        """The adjoint of the steps of some trajectories."""
        given = self.states.inputs(part)
        given["tau"] = self._of_slots(given["tau"])
        return AdjointRun(self.adjoint, len(part["q"]), np.array([self.setup.length]), given)

    def _of_slots(self, commands: Array) -> Array:
        """Commands, repeated for all times at which the step reads them."""
        return np.tile(commands, self.slots // self.setup.step.slots)

    def _changing(self, part: Mapping[str, Array], first: int, count: int) -> dict[str, Array]:
        found = self.states.changing(part, first, count)
        return found | ({"tau": self._of_slots(found["tau"])} if "tau" in found else {})

    def _take(self, rows: slice, first: int, back: AdjointRun, found: Array) -> None:
        """Store the cotangents of commands and of the law's numbers in some steps."""
        some, law = slice(first, first + len(found)), self.setup.law
        tau = np.moveaxis(back.of("tau", found), 0, 1)
        self.tau[rows, some] = tau.reshape(self.tau[rows, some].shape)
        if law.schedule is not None:
            self.gain[rows, some] = np.moveaxis(back.of("gain", found), 0, 1)
        elif first == 0:  # the row of the first step has the sum over all steps
            self.gain[rows, 0] = back.of("gain", found[:1])[0]

    def _weights(self, rows: slice, back: AdjointRun) -> None:
        """Add the cotangents of a network's weights in the last step."""
        tau = back.of("tau", back.operands["row"][None])[0].reshape(self.tau[rows, 0].shape)
        self._by_layers(rows, back.evaluations, tau[:, :, 0])

    def _forward(self, run: StepRun, x: Array, part: Mapping[str, Array], start: int, end: int) -> Array:
        """The states before the steps start, ..., end."""
        states = np.empty((end - start + 1, *x.shape), x.dtype)
        states[0] = x
        if end > start:
            out = np.moveaxis(states[1:], 0, 1)
            self.states.move(run, part, x.copy(), range(1, end - start + 1), out, start)
        return states

    def _by_layers(self, rows: slice, states: Sequence[tuple[Array, Array]], tau: Array) -> None:
        """Add the cotangents of a network's weights, from those of its torques at all evaluations."""
        policy = self.setup.law.policy
        assert policy is not None
        for k, (q, v) in enumerate(states):
            inputs, x = [], np.concatenate([q, v], axis=1)
            for i, (W, b) in enumerate(policy.layers):
                x = ACTIVATIONS[policy.activation](x) if i else x
                inputs.append(x)
                x = x @ np.asarray(W).T + np.asarray(b)
            seed = tau[:, k]
            for i in reversed(range(len(policy.layers))):
                W = np.asarray(policy.layers[i][0])
                self.layers[i][0][rows] += seed[:, :, None] * inputs[i][:, None, :]
                self.layers[i][1][rows] += seed
                seed = (seed @ W) * SLOPES[policy.activation](inputs[i])

    # ---- from the law's numbers to the parameters of forces ----

    def result(self, forces: Sequence[Any]) -> RolloutGradient:
        batch = self.states.batch
        others = {name: x.reshape(*batch, *x.shape[1:]) for name, x in self.model.items()}
        for name in self.names:
            if name not in PARAMETERS:
                others[name] = self._of_force(forces, *name.rsplit(".", 1))
        q, v, tau = self.q, self.v, self.tau[:, :, :, 0].sum(axis=2)
        q, v, tau = (x.reshape(*batch, *x.shape[1:]) for x in (q, v, tau))
        return RolloutGradient(q, v, tau, others)

    def _of_force(self, forces: Sequence[Any], kind: str, parameter: str) -> Any:
        k, batch = force_place(forces, kind, parameter), self.states.batch
        if parameter == "layers":
            return [tuple(x.reshape(*batch, *x.shape[1:]) for x in layer) for layer in self.layers]
        if isinstance(forces[k], Table) and parameter == "tau":
            return self._of_table(forces[k]).reshape(*batch, len(forces[k].t), self.setup.model.nv)
        x = np.array(getattr(forces[k], parameter), float)
        rank = (2 if parameter == "K" else 1) + (getattr(forces[k], "t", None) is not None)
        core = x.shape[max(0, x.ndim - rank) :]
        known = np.broadcast_to(_is_number(self.setup.model, forces[k], parameter), x.shape).reshape(-1, prod(core))
        found = np.full((self.states.count, prod(core)), np.nan)

        def slopes(along: Array, step: float) -> list[Array]:
            """The changes of commands and of the law's numbers: quadratic, so central differences are exact."""
            try:
                up, down = (self._numbers([*forces[:k], replace(forces[k], **{parameter: x + s * along}),
                                           *forces[k + 1 :]]) for s in (step, -step))  # fmt: skip
            except ArgumentError as error:
                raise ArgumentError(f"{kind}.{parameter} has no gradient: {error}") from None
            return [(a - b) / (2 * step) for a, b in zip(up, down)]

        size = NUDGE * max(1.0, float(np.abs(x).max(initial=0.0)))
        everywhere = np.cos(np.arange(prod(core))).reshape(core) * known[0].reshape(core)
        near, far = slopes(everywhere, size / 2), slopes(everywhere, size)
        if not any(y.any() for y in far) or not all(map(np.allclose, near, far)):
            raise ArgumentError(f"{kind}.{parameter} has no gradient: it is no number of the law of the joints")
        for entry in np.flatnonzero(known[0]):
            found[:, entry] = 0.0
            for slope, seed in zip(slopes(np.eye(prod(core))[entry].reshape(core), size), (self.tau, self.gain)):
                found[:, entry] += _inner(slope, seed, batch)
        return found.reshape((*batch, *core))

    def _numbers(self, forces: Sequence[Any]) -> list[Array]:
        """Commands (..., 1 or steps, slots, rows, nv) and the law's numbers (..., 1 or steps, k) under forces."""
        setup = self.setup._replace(law=collect(self.setup.machine, forces))
        commands = setup.commands(0, self.steps)
        shape = (*commands.shape[:-1], setup.step.slots, setup.law.rows, setup.model.nv)
        return [commands.reshape(shape), setup.values(0, self.steps)]

    def _of_table(self, table: Table) -> Array:
        """The adjoint of reading a table at the times of all steps."""
        t, times = np.asarray(table.t), self.setup.sample_times(0, self.steps)
        weights = sampled(t, np.eye(len(t)), table.between)(times)  # (times, knots)
        seed = self.tau[:, :, :, 0].reshape(self.states.count, len(times), self.setup.model.nv)
        return np.einsum("tk,btv->bkv", weights, seed)


def _inner(slope: Array, seed: Array, batch: tuple[int, ...]) -> Array:
    """The sum of slope times seed per trajectory; a slope that is constant in time counts in every step."""
    wide = np.broadcast_to(slope, (*batch, *slope.shape[-(seed.ndim - 1) :]))
    still = tuple(k for k in range(1, seed.ndim - 1) if wide.shape[len(batch) + k - 1] == 1)
    seed = seed.sum(axis=still, keepdims=True)
    return (wide.reshape(seed.shape) * seed).sum(axis=tuple(range(1, seed.ndim)))


SLOPES: dict[str, Callable[[Array], Array]] = {  # of activations, as functions of their values
    "relu": lambda y: (y > 0).astype(float),
    "softsign": lambda y: (1 - np.abs(y)) ** 2,
}


# ---- Jacobians of a step ----


class StepDerivatives(NamedTuple):
    """Hold steps (q', v') and their Jacobians, as a named tuple.

    Attributes
    ----------
    q : (..., nq) ndarray
        Configurations after the step.
    v : (..., nv) ndarray
        Velocities after the step.
    dx : (..., 2 nv, 2 nv) ndarray
        Jacobian with respect to (q, v); displacements of q are along v.
    dtau : (..., 2 nv, nv) ndarray
        Jacobian with respect to torques of the drives that are constant over the step.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.step_derivatives(ts.zoo.pendulum(), [0.1], [0.0], step=0.01).dx.shape
    (2, 2)
    """

    q: Array
    v: Array
    dx: Array
    dtau: Array


def step_derivatives(model: Model, q: Any, v: Any, tau: Any = 0.0, step: float = 1e-2, method: str = "rk4",
                     forces: Any = ()) -> StepDerivatives:  # fmt: skip
    r"""Take one step from many states, with its Jacobians, for iLQR and model-predictive control.

    $$ x_{k+1} + A\,dx + B\,d\tau = \mathrm{step}(x_k + dx, \tau + d\tau) $$

    Displacements of q are along v. Forces act as at time 0.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    v : (..., nv) array_like
        Velocities, in rad/s and m/s.
    tau : float or (..., nv) array_like, default 0
        Torques that are constant over the step, in N m and N.
    step : float, default 0.01
        The length of the step, in s.
    method : str, default "rk4"
        "semi-implicit", "implicit-euler" or "rk4".
    forces : force or sequence of forces, optional
        Forces that are data.

    Returns
    -------
    one : StepDerivatives
        `q`, `v`, and the Jacobians `dx` (..., 2 nv, 2 nv) and `dtau` (..., 2 nv, nv); a named tuple.

    Raises
    ------
    ArgumentError
        A shape does not fit, or a force is a function.

    Examples
    --------
    >>> import torsor as ts
    >>> one = ts.step_derivatives(ts.zoo.pendulum(), [0.0], [0.0], step=0.1, method="semi-implicit")
    >>> print(one.dtau.round(3))
    [[0.03]
     [0.3 ]]
    """
    require_model(model)
    validate.chosen("method", method, METHODS)
    setup, _, _ = settings(model, 1, step, method, [*force_list(forces), Constant(tau)], True, 1)
    if setup.law.called:
        raise ArgumentError("a step under functions has no derivative: give forces that are data")
    states = States(setup, checked_states(model, {"q": q, "v": v}), 1)
    part, nq, nv, m, batch = states.part(slice(None)), model.nq, model.nv, states.count, states.batch
    x = np.concatenate([part["q"], part["v"]], axis=1)
    given = states.inputs(part)
    given |= {name: y[0] for name, y in states.changing(part, 0, 1).items()}
    h, kernels = np.array([setup.length]), setup.kernels("float64")
    new = at_once(
        kernels, x[:, :nq], x[:, nq:], given["tau"], given["gain"], h, *(given[name] for name in setup.step.numbers)
    )
    found = cotangents(adjoint_of(setup.step, "float64"), h, given, x, np.eye(2 * nv))
    dx = np.concatenate([found["q"], found["v"]], axis=-1).reshape(*batch, 2 * nv, 2 * nv)
    by_tau = found["tau"].reshape(m, 2 * nv, setup.step.slots, setup.law.rows, nv)[:, :, :, 0].sum(axis=2)
    q_new, v_new = (y.reshape(*batch, y.shape[1]) for y in np.split(new, [nq], axis=1))
    return StepDerivatives(q_new, v_new, dx, by_tau.reshape(*batch, 2 * nv, nv))
