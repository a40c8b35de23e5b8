"""Rollouts: many trajectories, with a loop over time in machine code; on a GPU a state never leaves its thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor import validate
from torsor.backends.cpu import pool
from torsor.dynamics.calls import gpu_array
from torsor.errors import ArgumentError
from torsor.later import Later
from torsor.model.batch import ModelBatch, machine_of, require_models
from torsor.model.model import Model
from torsor.motion.driver import CHUNK, Fixed, States, advance, checked_states, settings, watch_of
from torsor.motion.stops import Stop, stops_of
from torsor.motion.trajectory import Trajectory

gpu_rollout = Later("torsor.motion.gpu_rollout")  # imported only if a GPU is used
gradients = Later("torsor.motion.gradients")

Array = NDArray[Any]

RESET = ("reset_q", "reset_v")
# keywords of torsor 0.1, and their current names
OLD = {
    "dt": "step=", "integrator": "method=", "tau": "forces=[ts.Constant(tau)]",
    "table": "forces=[ts.Table(t, tau, 'previous')]", "feedback": "forces=[...]",
    "external": "forces=[ts.External(wrenches)]", "pulls": "forces=[ts.Pull(...)]",
}  # fmt: skip


def rollout(model: Model | ModelBatch, q: Any, v: Any, *, steps: int, step: float, method: str = "semi-implicit",
            forces: Any = (), gravity: bool = True, every: int = 1, stop: Stop | Sequence[Stop] | None = None,
            reset: tuple[Any, Any] | None = None, **old: Any) -> Trajectory:  # fmt: skip
    """Move many states by steps of fixed length, with the loop over time in machine code.

    Damping, friction, springs and stops of the model act, too; commands of the drives are limited by effort and speed.
    NumPy arrays run on the CPU's lanes and threads; CuPy, PyTorch and JAX arrays run on their GPU. A trajectory that
    diverges ends in inf or nan and does not affect the others.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine, or one per trajectory; batch axes broadcast with those of the states.
    q : (..., nq) array_like
        Initial configurations.
    v : (..., nv) array_like
        Initial velocities, in rad/s and m/s.
    steps : int
        The number of steps.
    step : float
        The length of a step, in s.
    method : str, default "semi-implicit"
        "semi-implicit" (Euler, one evaluation per step), "implicit-euler" (one evaluation; stable for springs, dampers,
        stops and gains of any size) or "rk4" (four evaluations).
    forces : force or sequence of forces, optional
        As in `simulate`; numbers may have axes (..., nv), one value per trajectory. Functions are called with all
        states, once per stage.
    gravity : bool, default True
        Whether gravity acts.
    every : int, default 1
        Keep every k-th state: steps // every states per trajectory.
    stop : Stop or sequence of Stop, optional
        A trajectory stops after the first step that leaves these bounds, and stays there.
    reset : pair of (..., nq) and (..., nv) array_like, optional
        States (q, v) from which stopped trajectories continue.

    Returns
    -------
    path : Trajectory
        With batch axes: q (..., stored, nq), v (..., stored, nv); with stops also `stop_time` and `stop_reason`.

    Raises
    ------
    ArgumentError
        A shape does not fit, or a force cannot act here.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> start = np.linspace(0.1, 1.0, 10)[:, None]
    >>> path = ts.rollout(ts.zoo.pendulum(), start, 0 * start, steps=100, step=0.01, every=10)
    >>> path
    Trajectory((10,) of pendulum, 10 rows, 0.1 to 1 s)
    """
    for name in old:
        hint = f": it is called {OLD[name]} now" if name in OLD else ""
        raise TypeError(f"rollout got an unexpected keyword argument {name!r}{hint}")
    require_models(model)
    setup, steps, every = settings(model, steps, step, method, forces, gravity, every)
    stops = () if stop is None else stops_of(stop, machine_of(model))
    again = _reset(reset, stops)
    if gpu_array(q):
        return gpu_rollout.rollout_on_gpu(setup, q, v, steps, every, stops, again)
    return _on_cpu(setup, {"q": q, "v": v, **again}, steps, every, stops)


rollout.vjp = lambda wrt=None: partial(gradients.rollout_vjp, wrt=wrt or ())  # type: ignore[attr-defined]


def _reset(reset: Any, stops: tuple[Stop, ...]) -> dict[str, Any]:
    if reset is None:
        return {}
    if not stops:
        raise ArgumentError("reset is for trajectories that stop: give stop, too")
    if not isinstance(reset, tuple | list) or len(reset) != 2 or any(x is None for x in reset):
        raise ArgumentError(f"reset must be a pair of states (q, v), not {validate.shown(reset)}")
    return dict(zip(RESET, reset))


def _on_cpu(setup: Fixed, given: Mapping[str, Any], steps: int, every: int, stops: tuple[Stop, ...]) -> Trajectory:
    model, kept = setup.model, steps // every
    width, given = model.nq + model.nv, checked_states(model, given)
    states = States(setup, given, steps)
    count, batch = states.count, states.batch
    validate.check_memory("steps", count * kept * width * 8)
    stored = np.empty((count, kept, width), states.dtype)
    reason, first_stop = np.zeros((count, kept), np.int8), np.full(count, -1)

    def chunk(first: int, size: int = CHUNK) -> None:
        rows = slice(first, first + size)
        part = states.part(rows)
        x = np.concatenate([part["q"], part["v"]], axis=1)
        reset = np.concatenate([part[name] for name in RESET], axis=1) if RESET[0] in part else None
        watch = watch_of(setup, stops, part, reset) if stops else None
        advance(states, part, x, range(every, kept * every + 1, every), stored[rows], watch, reason[rows])
        if watch:
            first_stop[rows] = watch.first

    with np.errstate(all="ignore"):
        if setup.law.called:  # functions see all states at once
            chunk(0, max(count, 1))
        elif count <= CHUNK:
            chunk(0)
        else:
            list(pool().map(chunk, range(0, count, CHUNK)))
    stored = stored.reshape(*batch, kept, width)
    t = setup.length * every * np.arange(1, kept + 1)
    stopped = {}
    if stops:
        time = np.where(first_stop < 0, np.nan, first_stop * setup.length)
        stopped = {"stop_time": time.reshape(batch), "stop_reason": reason.reshape(*batch, kept)}
    about = {"method": setup.name, "step": setup.length, "every": every}
    return Trajectory.of_states(setup.machine, t, stored[..., : model.nq], stored[..., model.nq :], about, **stopped)
