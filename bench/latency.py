"""One state per call: what a controller or a Python loop pays."""

import numpy as np
import pinocchio as pin
from contenders import MACHINES, PinocchioPeer, has_drake, in_peer, in_torsor, states, torsor_program
from harness import Contender, Report, race

import torsor as ts

SETS = 64


def measure(rounds: int) -> Report:
    report = Report("latency", "Forward dynamics, one state per call")
    for name, machine in MACHINES.items():
        model = machine()
        sets = states(model, batch=None, sets=SETS)
        contenders = [
            _pinocchio(model, sets),
            *([_drake(model, sets)] if has_drake() else []),
            torsor_program("Program, out=", model, ts.forward_dynamics, sets),
            Contender("torsor Program", ts.compile(model, ts.forward_dynamics), sets, target=1 / 0.5),
            Contender("ts.forward_dynamics", ts.forward_dynamics, [(model, *s) for s in sets], target=1 / 0.8),
        ]
        report.rows += race(name, contenders, unit="per call", rounds=rounds)
    return report


def _pinocchio(model: ts.Model, sets: list) -> Contender:
    peer = PinocchioPeer(model)
    arguments = [(peer.pin_model, peer.data, *_in_peer(peer, *state)) for state in sets]
    T = peer.velocity_map(sets[0][0])  # constant in Pinocchio
    return Contender("pin.aba", pin.aba, arguments, lambda w_dot: T.T @ w_dot)


def _in_peer(peer, q, v, tau):
    T = peer.velocity_map(q)
    return peer.configuration(q), T @ v, T @ tau


def _drake(model: ts.Model, sets: list) -> Contender:
    from drake_peer import DrakePeer

    peer = DrakePeer(model)
    x, w, force = in_peer(peer, tuple(np.array(column) for column in zip(*sets)), "aba")
    first = tuple(column[None] for column in sets[0])
    return Contender(
        "Drake EvalTimeDerivatives", peer.forward_dynamics, list(zip(np.hstack([x, w]), force)),
        lambda w_dot: in_torsor(peer, first, w_dot[None], "aba")[0],
    )  # fmt: skip
