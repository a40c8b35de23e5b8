"""Gradients of rollouts: the steps backwards, from the cotangents of the stored states to those of the start.

The adjoint of a step is made from the tape of it (`compiler/tape_derivatives.py`).  It needs the state before the
step.  Of T steps, about sqrt(T) states are kept on the way forward; between two of them, the states are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isqrt, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor import validate
from torsor.compiler.derivative import derivative
from torsor.compiler.request import QUICK
from torsor.compiler.store import store
from torsor.compiler.tape import Code
from torsor.compiler.tape_derivatives import Replay, along_freedoms, by_joint, of_coordinates, scalars, summed
from torsor.errors import ArgumentError
from torsor.inputs import COORDINATES, FREEDOMS, PARAMETERS
from torsor.linalg import Scalar
from torsor.model.batch import machine_of
from torsor.model.model import Model, require_model
from torsor.motion.forces import Pull
from torsor.motion.rollout import (
    CHUNK,
    Feedback,
    Law,
    Task,
    dynamics_of,
    flattened,
    gain_of,
    held,
    mover,
    numbers_in,
    options_of,
    step,
    step_inputs,
    traced_step,
    with_gravity,
)
from torsor.motion.rollout_march import gains_by_freedom, marches, one_freedom
from torsor.motion.rollout_stages import Ask, Stage, compiled_stage, stages_of

Array = NDArray[Any]
Scalars = Sequence[Scalar]
# pull(q, v, tau, gain, h, wrenches and pulls if there are any, q~', v~') -> (q~, v~, tau~, parameters~) in one row, for
# states before a step
Pullback = Callable[..., Array]


class RolloutGradient(NamedTuple):
    """The cotangents of the arguments of a rollout: q, v, tau (..., nv), and table (..., steps, nv) if there is one.

    model: by name, those of the model's numbers that `wrt` names, for each trajectory.
    """

    q: Any
    v: Any
    tau: Any
    table: Any
    model: dict[str, Any]


def rollout_vjp(model: Model, q: Any, v: Any, cotangent: tuple[Any, Any], *, steps: int, dt: float, tau: Any = None,
                table: Any = None, feedback: Feedback | None = None, external: Any = None,
                pulls: Pull | Sequence[Pull] | None = None, gravity: bool = True, every: int = 1,
                integrator: str = "semi-implicit", wrt: str | Iterable[str] = ()) -> RolloutGradient:  # fmt: skip
    """The gradient of a sum over the states of a rollout, by one sweep backwards in time.

        states = ts.rollout(model, q, v, steps=T, dt=dt, table=torques)
        gradient = ts.rollout_vjp(model, q, v, (dL_dq, dL_dv), steps=T, dt=dt, table=torques)

    cotangent   of the states that the rollout stores: those of q and of v, (..., stored, nv) both; those of q are along
                the directions of v, as everywhere (see `vjp`), and so is the cotangent of the first q that is returned

    wrt         numbers of the model: "inertia", "placement", "gravity" (see `vjp`); their cotangents are in `.model`

    All other arguments are those of `rollout`.  Memory grows with the root of `steps`.  With a `ComputedTorque` the
    gradient of tau is that of the accelerations it commands.
    """
    require_model(model)
    wrt = _parameters(wrt)
    model = machine_of(with_gravity(model, gravity))
    task = Task.of(model, steps, dt, tau, table, feedback, every, integrator).loaded(model, external, pulls)
    if any(hasattr(x, "__dlpack_device__") and not isinstance(x, np.ndarray) for x in (q, v, tau, table, external)):
        raise ArgumentError("rollout_vjp runs on the CPU: give it NumPy arrays")
    flat, batch, dtype = flattened(model, task.inputs(q, v), task.law, task.steps)
    stored = task.steps // task.every
    gq, gv = (
        _cotangent(name, x, batch, (stored, model.nv), dtype) for name, x in zip("qv", _pair(cotangent))
    )  # fmt: skip
    count, nv = len(flat["q"]), model.nv
    result = RolloutGradient(
        np.empty((count, nv), dtype), np.empty((count, nv), dtype), np.zeros((count, nv), dtype),
        np.empty((count, task.steps, nv), dtype) if table is not None else None,
        {name: np.zeros((count, *PARAMETERS[name].shape(model)), dtype) for name in wrt},
    )  # fmt: skip
    back = _Backwards(model, task, np.dtype(dtype).name, wrt)

    def chunk(first: int) -> None:
        part = slice(first, first + CHUNK)
        own = _each(result, lambda x: x[part])
        back.run({name: x[part] for name, x in flat.items()}, gq[part], gv[part], own)

    from torsor.backends.cpu import pool

    list(pool().map(chunk, range(0, count, CHUNK)))
    return _each(result, lambda x: x.reshape(*batch, *x.shape[1:]))


def _each(gradient: RolloutGradient, change: Callable[[Array], Array]) -> RolloutGradient:
    """Every array of a gradient changed in the same way."""
    q, v, tau, table = (None if x is None else change(x) for x in gradient[:4])
    return RolloutGradient(q, v, tau, table, {name: change(x) for name, x in gradient.model.items()})


def _parameters(wrt: str | Iterable[str]) -> tuple[str, ...]:
    names = (wrt,) if isinstance(wrt, str) else tuple(wrt) if isinstance(wrt, Iterable) else (wrt,)
    for name in names:
        validate.chosen("wrt", name, tuple(PARAMETERS))
    if len(set(names)) < len(names):
        raise ArgumentError(f"wrt names something twice: {', '.join(names)}")
    return names


def _pair(cotangent: Any) -> tuple[Any, Any]:
    if not isinstance(cotangent, tuple | list) or len(cotangent) != 2:
        raise ArgumentError(f"cotangent must be a pair: of q and of v, not {validate.shown(cotangent)}")
    return cotangent[0], cotangent[1]


def _cotangent(name: str, x: Any, batch: tuple[int, ...], core: tuple[int, ...], dtype: Any) -> Array:
    array = validate.real_array(f"the cotangent of {name}", x)
    if array.shape != (*batch, *core):
        raise ArgumentError(f"the cotangent of {name} has shape {array.shape}; it must be {(*batch, *core)}")
    return array.reshape(-1, *core).astype(dtype, copy=False)


class _Backwards:
    """The steps of a rollout, there and back."""

    def __init__(self, model: Model, task: Task, dtype: str, wrt: tuple[str, ...]) -> None:
        self.model, self.task, self.dtype = model, task, dtype
        self.mover = mover(model, task.integrator, task.law, dtype)
        self.pull = puller(model, task.integrator, task.law, dtype, wrt)
        self.h = np.array([task.dt], dtype)

    def run(self, flat: Mapping[str, Array], gq: Array, gv: Array, result: RolloutGradient) -> None:
        """Fill the result for a few trajectories; gq, gv: the cotangents of their stored states."""
        nv, steps, every = self.model.nv, self.task.steps, self.task.every
        law = self.task.law
        torques, given = held(self.model, law, flat), (gain_of(law, flat), self.h, *numbers_in(flat, law))
        apart = isqrt(steps - 1) + 1
        first = np.concatenate([flat["q"], flat["v"]], axis=1)
        kept = [first]  # the states before the steps 0, apart, 2 apart, ...
        for start in range(0, steps - apart, apart):
            kept.append(self._forward(kept[-1], torques, given, start, start + apart)[-1])
        q, v = np.zeros_like(gq[:, 0]), np.zeros_like(gv[:, 0])
        for start in reversed(range(0, steps, apart)):
            end = min(start + apart, steps)
            states = self._forward(kept.pop(), torques, given, start, end - 1)
            for t in reversed(range(start, end)):
                if (t + 1) % every == 0:
                    q, v = q + gq[:, t // every], v + gv[:, t // every]
                x = states[t - start]
                row = self.pull(x[:, : self.model.nq], x[:, self.model.nq :], torques(t), *given, q, v)
                q, v, tau = row[:, :nv], row[:, nv : 2 * nv], row[:, 2 * nv : 3 * nv]
                result.tau[:] += tau
                place = 3 * nv
                for total in result.model.values():
                    size = prod(total.shape[1:])
                    total += row[:, place : place + size].reshape(total.shape)
                    place += size
                if result.table is not None:
                    result.table[:, t] = tau
        result.q[:], result.v[:] = q, v

    def _forward(self, x: Array, torques: Callable[[int], Array], given: Sequence[Array], start: int,
                 end: int) -> list[Array]:  # fmt: skip
        """The states before the steps start, ..., end."""
        states, x = [x], x.copy()
        move = self.mover(x, *given)
        for t in range(start, end):
            move(x, torques(t), 1)
            states.append(x.copy())
        return states


# The adjoint of a step -------------------------------------------------------------------------------------------


def puller(model: Model, integrator: str, law: Law, dtype: str, wrt: tuple[str, ...] = ()) -> Pullback:
    """The adjoint of a step of many states, kept with the model."""
    unrolled = model.nv <= QUICK.freedoms and not wrt
    key = "rollout adjoint", integrator, law.key, dtype, wrt
    if unrolled:
        return store(model).once(key, lambda: _unrolled_puller(model, integrator, law, dtype))
    return store(model).once(key, lambda: _staged_puller(model, integrator, law, dtype, wrt))


def adjoint(model: Model, code: Code, names: Sequence[str], *cotangents: Scalars) -> dict[str, list[Scalar]]:
    """The cotangents of some inputs of a code whose outputs begin with (q, v, ...); those of q are along v.

    `cotangents`: scalars of a tape, those of q (nv numbers), of v, ...; on that tape, the code is replayed.
    """
    tape = next(x.tape for x in cotangents[0] if hasattr(x, "tape"))
    again = Replay(code, tape)
    outputs = list(code.outputs.values())
    q = scalars(tape, (again.at[i] for i in outputs[: model.nq]))
    given = [*by_joint(model, of_coordinates, q, FREEDOMS, cotangents[0]), *(x for g in cotangents[1:] for x in g)]
    seeds = summed(tape, ((i, tape.node_of(g)) for i, g in zip(outputs, given)))
    sizes = {name: model.nq if name == "q" else model.nv for name in names}
    found = again.pull(seeds, {(name, k) for name in names for k in range(sizes[name])})
    zero = tape.const(0.0)
    result = {name: list(scalars(tape, (found.get((name, k), zero) for k in range(sizes[name])))) for name in names}
    if "q" in result:
        start = [tape.input(("q", k)) for k in range(model.nq)]
        result["q"] = by_joint(model, along_freedoms, start, COORDINATES, result["q"])
    return result


def _unrolled_puller(model: Model, integrator: str, law: Law, dtype: str) -> Pullback:
    from torsor.backends.pointwise import compile_pointwise, trace

    inputs = step_inputs(model, law)
    code = trace(traced_step(model, integrator, law), inputs)

    def rollout_step_adjoint(*given: Scalars) -> list[Scalar]:
        found = adjoint(model, code, ("q", "v", "tau"), *given[-2:])
        return [x for values in found.values() for x in values]

    return compile_pointwise(rollout_step_adjoint, inputs | {"gq": (model.nv,), "gv": (model.nv,)}, dtype)


class _Part(NamedTuple):
    """A stage of a step (`rollout_stages.py`), and its adjoint.

    `given`: q, v, tau, gain, h, and what was asked for before.

    forward(given)            what is asked for with: q, v, tau, ...
    backward(given, seeds)    by name, the cotangents of `given`, from those of the outputs
    """

    forward: Callable[[list[Array]], list[Array]]
    backward: Callable[[list[Array], Sequence[Array]], dict[str, Array]]
    ask: Ask | None

    @classmethod
    def by_rows(cls, model: Model, stage: Stage, dtype: str) -> _Part:
        """All freedoms of a state in one row."""
        (function, names, reverse), nv = _both_ways(model, stage, dtype), model.nv

        def forward(given: list[Array]) -> list[Array]:
            x = function(*given)
            return [x[:, part] for part in stage.parts]

        def backward(given: list[Array], seeds: Sequence[Array]) -> dict[str, Array]:
            row = reverse(*given, *seeds)
            return {name: row[:, k * nv : (k + 1) * nv] for k, name in enumerate(names)}

        return cls(forward, backward, stage.ask)

    @classmethod
    def by_freedoms(cls, one: Model, stage: Stage, ask: Ask, dtype: str) -> _Part:
        """The stage of a machine with one freedom, at every freedom of every state (see `rollout_march.py`).

        Its gain is that of every freedom, (m, nv, k).
        """
        function, names, reverse = _both_ways(one, stage, dtype)

        def lanes(given: Sequence[Array]) -> list[Array]:
            return [x if k in (3, 4) else x[..., None] for k, x in enumerate(given)]

        def forward(given: list[Array]) -> list[Array]:
            return list(np.moveaxis(function(*lanes(given)), -1, 0))

        def backward(given: list[Array], seeds: Sequence[Array]) -> dict[str, Array]:
            return dict(zip(names, np.moveaxis(reverse(*lanes([*given, *seeds])), -1, 0)))

        return cls(forward, backward, stage.ask and ask)


def _both_ways(model: Model, stage: Stage, dtype: str) -> tuple[Any, list[str], Any]:
    """A stage, and the cotangents of (q, v, tau) and of what earlier stages found, in one row, with their names."""
    from torsor.backends.pointwise import trace

    seeds = len(stage.parts) or 2
    names = [name for name in stage.inputs if name not in ("gain", "h")]
    inputs = stage.inputs | {f"g{k}": (model.nv,) for k in range(seeds)}

    def flat(*given: Scalars) -> list[Scalar]:
        return [x for values in adjoint(model, stage.code, names, *given[-seeds:]).values() for x in values]

    return compiled_stage(stage.code, stage.inputs, dtype), names, compiled_stage(trace(flat, inputs), inputs, dtype)


def _parts(model: Model, integrator: str, law: Law, dtype: str) -> list[_Part]:
    """All stages of a step; the last one asks for nothing."""
    move = partial(step, integrator)
    if not marches(model, law):
        return [_Part.by_rows(model, stage, dtype) for stage in stages_of(model, law, move)]
    one, alone = one_freedom(law)
    ask = Ask(dynamics_of(model, law), model, options_of(integrator, law))
    return [_Part.by_freedoms(one, stage, ask, dtype) for stage in stages_of(one, alone, move)]


def _staged_puller(model: Model, integrator: str, law: Law, dtype: str, wrt: tuple[str, ...]) -> Pullback:
    """Around the programs of forward and inverse dynamics and their vjps, the stages of a step and their adjoints."""
    from torsor.backends.cpu import compile_program

    by_freedoms = marches(model, law)
    *parts, end = _parts(model, integrator, law, dtype)
    asks = [part.ask for part in parts if part.ask]

    def programs(ask: Ask) -> tuple[Any, Any]:
        own = ("added_inertia",) * ("added_inertia" in ask.options)
        vjp = derivative(ask.algorithm, "vjp", (*ask.algorithm.inputs, *own, *(wrt if ask.is_forward else ())))
        found = (compile_program(x, ask.model, options=ask.options, dtype=dtype) for x in (ask.algorithm, vjp))
        return next(found), next(found)

    made = {ask: programs(ask) for ask in asks}

    def pull(q: Array, v: Array, tau: Array, gain: Array, h: Array, *others: Array) -> Array:
        *loads, gq, gv = others
        gain = np.moveaxis(gains_by_freedom(model, law, gain, len(q)), 0, -1) if by_freedoms else gain
        given, asked = [q, v, tau, gain, h], []
        for part, ask in zip(parts, asks):
            x = part.forward(given)
            asked.append((x, loads if ask.is_forward else []))
            given.append(made[ask][0](*x, *asked[-1][1]))
        total: dict[str, Any] = dict.fromkeys(wrt, 0.0) | end.backward(given, [gq, gv])
        for s in reversed(range(len(parts))):
            x, more = asked[s]
            found = made[asks[s]][1](*x[:3], np.ascontiguousarray(total[f"a{s}"]), *x[3:], *more)
            for name, y in parts[s].backward(given[: 5 + s], found[: len(x)]).items():
                total[name] = total[name] + y
            for name, y in zip(wrt, found[len(x) :]):
                total[name] = total[name] + y.reshape(len(q), -1)
        return np.concatenate([total[name] for name in ("q", "v", "tau", *wrt)], axis=1)

    return pull
