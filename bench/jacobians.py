"""Derivatives as matrices, and the torque regressor, of 4096 states on one core, against Pinocchio and CasADi.

Pinocchio has no batch of these functions: it is called from a Python loop, whose cost per call is stated as a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter

import numpy as np
import pinocchio as pin
from casadi_peer import casadi_jacobian
from contenders import BATCH, PinocchioPeer, State, in_peer, states, torsor_program
from harness import Claim, Contender, Report, race

import torsor as ts
from torsor.algorithms import articulated, newton_euler

MACHINES: dict[str, Callable[[], ts.Model]] = {
    "general 7R": lambda: ts.zoo.general_arm(7),
    "PUMA 560": ts.zoo.puma_saha,
    "Panda-like 7R": ts.zoo.panda,
    "floating humanoid": ts.zoo.humanoid,
}
# how many times faster than Pinocchio, machine by machine
TARGETS = {
    "inverse dynamics": (20, 28, 24, 10),
    "forward dynamics": (20, 30, 24, 10),
    "regressor": (18, 22, 20, 10),
}
# how many times faster than CasADi, for forward dynamics
CASADI_TARGETS = {"general 7R": 12.0, "Panda-like 7R": 10.0}
SETS = 2


def measure(rounds: int) -> Report:
    report = Report("jacobians", f"Derivatives as matrices and the regressor, {BATCH} states per call, one core")
    for k, (name, machine) in enumerate(MACHINES.items()):
        model = machine()
        for question, contenders in _races(model, name):
            contenders[-1] = replace(contenders[-1], target=TARGETS[question][k])
            rows = race(f"{name}: {question}", contenders, unit="per state", per=BATCH, rounds=rounds)
            report.rows += rows
            if len(rows) == 3 and question == "forward dynamics":
                ratio = rows[1].min / rows[2].min
                report.claims.append(Claim(f"{name}: times faster than CasADi", ratio, at_least=CASADI_TARGETS[name]))
    report.claims.append(Claim("microseconds of a call of Pinocchio from Python, one joint", _call_overhead() * 1e6))
    return report


def _races(model: ts.Model, name: str) -> Iterator[tuple[str, list[Contender]]]:
    """Pinocchio first, torsor last."""
    sets, peer = states(model, sets=SETS), PinocchioPeer(model)
    questions = {
        "inverse dynamics": (
            ts.inverse_dynamics_derivatives,
            pin.computeRNEADerivatives,
            newton_euler.inverse_dynamics,
        ),
        "forward dynamics": (ts.forward_dynamics_derivatives, pin.computeABADerivatives, articulated.forward_dynamics),
    }
    for question, (function, pinocchio, primal) in questions.items():
        contenders = [_pinocchio_loop(peer, function.__name__, pinocchio, sets)]
        if name in CASADI_TARGETS:
            contenders.append(casadi_jacobian(model, primal, sets))
        yield question, [*contenders, _program(model, function, sets)]
    regressor = _pinocchio_loop(peer, "torque_regressor", pin.computeJointTorqueRegressor, sets)
    yield "regressor", [regressor, _program(model, ts.torque_regressor, sets)]


def _program(model: ts.Model, function: Callable, sets: list[State]) -> Contender:
    program = torsor_program("Program", model, function, sets, threads=1)
    return replace(program, answer=lambda rows: rows[-1].ravel())


def _pinocchio_loop(peer: PinocchioPeer, name: str, function: Callable, sets: list[State]) -> Contender:
    """A Python loop over states; the answer is that of the last state, in torsor's coordinates."""
    data = peer.pin_model.createData()
    arguments = [(list(zip(*in_peer(peer, state, "aba"))),) for state in sets]

    def run(rows):
        for row in rows:
            function(peer.pin_model, data, *row)

    def answer(_):
        return np.concatenate([np.ravel(x) for x in np.asarray(getattr(peer, name)(*(x[-1] for x in sets[0])))])

    return Contender(f"pin.{function.__name__}, Python loop", run, arguments, answer)


def _call_overhead() -> float:
    """Seconds of the cheapest call with three arrays: what the loop adds to Pinocchio's own time."""
    peer = PinocchioPeer(ts.zoo.random_chain(1, 0))
    data, one = peer.pin_model.createData(), np.ones(1)
    best = np.inf
    for _ in range(50):
        start = perf_counter()
        for _ in range(1000):
            pin.rnea(peer.pin_model, data, one, one, one)
        best = min(best, (perf_counter() - start) / 1000)
    return float(best)
