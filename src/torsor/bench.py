"""The command `torsor bench` without a checkout: forward dynamics, compared with other installed libraries.

The folder `bench/` of a checkout measures more cases, and more carefully.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.dynamics import functions as dynamics
from torsor.dynamics import programs
from torsor.errors import TorsorError
from torsor.model import Model
from torsor.model.joints import JOINTS

Array = NDArray[Any]
ROUNDS, SECONDS = 5, 0.05
AGREE = 1e-8  # relative: both solve the same problem


def installed_peers() -> dict[str, Callable[[Model, Array, Array, Array], Callable[[], Any]]]:
    """By name: the function that prepares a peer's call for a model and its states."""
    return {"Pinocchio": _pinocchio} if find_spec("pinocchio") else {}


def forward_dynamics_times(model: Model, states: int) -> list[float]:
    """Seconds per state, in calls of `states` states: torsor, then each installed peer, on one core."""
    rng = np.random.default_rng(0)
    q, v, tau = (rng.normal(size=(states, model.nv)) for _ in range(3))
    program, out = programs.compile(model, dynamics.forward_dynamics), np.empty((states, model.nv))
    peers = [prepare(model, q, v, tau) for prepare in installed_peers().values()]
    calls = [lambda: program(q, v, tau, out=out), *peers]
    answers = [np.asarray(call()) for call in calls]
    if any(np.abs(answer - answers[0]).max() > AGREE * np.abs(answers[0]).max() for answer in answers):
        raise TorsorError(f"{model!r}: the peers disagree; nothing is measured")
    return [_seconds(call) / states for call in calls]


def _seconds(call: Callable[[], Any]) -> float:
    """The shortest of a few rounds of repeated calls."""
    best = np.inf
    for _ in range(ROUNDS):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS / ROUNDS:
            call()
            count += 1
        best = min(best, (time.perf_counter() - start) / count)
    return best


def _pinocchio(model: Model, q: Array, v: Array, tau: Array) -> Callable[[], Any]:
    """The same chain of revolute and prismatic joints in Pinocchio, on one thread."""
    import pinocchio as pin

    kinds = {"revolute": pin.JointModelRevoluteUnaligned, "prismatic": pin.JointModelPrismaticUnaligned}
    robot = pin.Model()
    robot.gravity.linear = model.gravity
    for i in range(model.n):
        placement = pin.SE3(model.R[i], model.p[i])
        kind = kinds[JOINTS[model.joint[i]].name](*model.axis[i])
        joint = robot.addJoint(int(model.parent[i]) + 1, kind, placement, model.names[i])
        inertia = pin.Inertia(model.mass[i], model.com[i], model.inertia[i])
        robot.appendBodyToJoint(joint, inertia, pin.SE3.Identity())
    robot.armature = np.array(model.armature)
    if len(q) == 1:
        data = robot.createData()
        return lambda: pin.aba(robot, data, q[0], v[0], tau[0])[None]
    pool, out = pin.ModelPool(robot, 1), np.zeros((model.nv, len(q)), order="F")
    columns = [np.asfortranarray(x.T) for x in (q, v, tau)]
    return lambda: pin.abaInParallel(1, pool, *columns, out) or out.T
