"""One chain of many links: cost a joint, its growth, and the digits that are left."""

from __future__ import annotations

import subprocess
import sys

import dynibo_peer
import numpy as np
import pinocchio as pin
from contenders import PinocchioPeer, State, states, torsor_program
from harness import Claim, Contender, Report, progress, race

import torsor as ts
from torsor.parallel.segments import Segments

SHORT, LONG, LONGEST = 400, 100_000, 1_000_000
SIZES = (SHORT, 2_000, 20_000, LONG, LONGEST)
ACCURACY = 20_000  # links
PINOCCHIO = SHORT  # links at most: its Data needs n^3 memory
SWEEPS, SEGMENTS = "torsor Program", "torsor segments"
ROUNDING = 1e-7  # what the peers' answers keep of their digits on the longest chain


def measure(rounds: int) -> Report:
    report = Report("long_chain", "Forward dynamics of one chain of n revolute joints, one core")
    cost = {}
    for n in SIZES:
        rows = race(f"n = {n}", _contenders(n), unit="per joint", per=n, rounds=rounds)
        report.rows += rows
        times = {row.contender: row.min for row in rows}
        cost[n] = times[SWEEPS]
        report.claims += [
            Claim(f"n = {n}: times faster than dynibo", times["dynibo"] / times[SWEEPS], **_wanted(n)),
            Claim(f"n = {n}: the same by segments", times["dynibo"] / times[SEGMENTS]),
            Claim(f"n = {n}: segments, times faster than sweeps", times[SWEEPS] / times[SEGMENTS], **_gain(n)),
        ]
    report.claims += _general_links(rounds)
    growth = cost[LONG] / cost[SHORT]
    report.claims.append(Claim(f"cost a joint, n = {LONG} over n = {SHORT}", growth, at_most=1.5))
    memory = _call_memory(2 * LONG) / _call_memory(LONG)
    report.claims.append(Claim(f"memory of a call, n = {2 * LONG} over n = {LONG}", memory, at_most=2.2))
    report.claims += _accuracy(ACCURACY)
    return report


def _wanted(n: int) -> dict[str, float]:
    return {"at_least": 3.0} if n in (SHORT, ACCURACY) else {}


def _gain(n: int) -> dict[str, float]:
    return {"at_least": 1.2} if 2_000 <= n <= 20_000 else {}


def _general_links(rounds: int) -> list[Claim]:
    """One axis in twenty is nearly parallel to the one before: such a placement has a screw more, and so has then every
    other, for segments to be alike.
    """
    claims = []
    for n in (2_000, 20_000, LONG):
        model = ts.zoo.general_arm(n, 1)
        sets = _states(model, sets=3)
        sweeps, segments = race("", [_sweeps(model, sets), _segments(model, sets)], unit="", per=n, rounds=rounds)
        what = f"general links, n = {n}: segments, times faster than sweeps"
        claims.append(Claim(what, sweeps.min / segments.min, **_gain(n)))
    return claims


def coil(n: int) -> ts.Model:
    """Links of 0.1 m that turn about x, y and z in turn; straight placements, for URDF's sake."""
    rng = np.random.default_rng(n)
    return ts.Model.chain(
        "revolute",
        axis=np.eye(3)[np.arange(n) % 3],
        p=np.tile([0.0, 0.0, -0.1], (n, 1)),
        mass=rng.uniform(0.5, 1.5, n),
        com=np.tile([0.0, 0.01, -0.05], (n, 1)),
        inertia=np.tile(np.diag([1.0e-3, 1.2e-3, 0.5e-3]), (n, 1, 1)),
        gravity=dynibo_peer.GRAVITY,
    )


def _states(model: ts.Model, sets: int) -> list[State]:
    """Slow joints: velocities add up along the chain."""
    return [(q, 0.1 * v, tau) for q, v, tau in states(model, batch=None, sets=sets)]


def _contenders(n: int) -> list[Contender]:
    model = coil(n)
    sets = _states(model, sets=3)
    peers = [_pinocchio(model, sets)] if n <= PINOCCHIO else []
    target = 4.0 if n == SHORT else None
    return [*peers, _dynibo(model, sets), _sweeps(model, sets, target), _segments(model, sets)]


def _sweeps(model: ts.Model, sets: list[State], target: float | None = None) -> Contender:
    return torsor_program("Program", model, ts.forward_dynamics, sets, target=target, tolerance=ROUNDING)


def _segments(model: ts.Model, sets: list[State]) -> Contender:
    segments, out = Segments(model), np.empty(model.n)
    return Contender(SEGMENTS, lambda *state: segments.ufunc(*state, out), sets, tolerance=ROUNDING)


def _pinocchio(model: ts.Model, sets: list[State]) -> Contender:
    peer = PinocchioPeer(model)
    return Contender("pin.aba", pin.aba, [(peer.pin_model, peer.data, *state) for state in sets])


def _dynibo(model: ts.Model, sets: list[State]) -> Contender:
    robot, out = dynibo_peer.robot(model), np.empty(model.n)
    arguments = [(*state, None, out) for state in sets]
    return Contender("dynibo", robot.forward_dynamics, arguments, lambda _: out, tolerance=ROUNDING)


def _accuracy(n: int) -> list[Claim]:
    """Errors against the same steps interpreted in 80-bit numbers, relative to the largest acceleration."""
    model = coil(n)
    (state,) = _states(model, sets=1)
    progress(f"n = {n}: the reference in 80-bit numbers")
    exact = ts.forward_dynamics(model, *(x.astype(np.longdouble) for x in state))
    progress("")

    def error(qdd: np.ndarray) -> float:
        return float(np.max(np.abs(qdd - exact)) / np.max(np.abs(exact)))

    sweeps, segments = (ts.forward_dynamics(model, *state, method=method) for method in ("articulated", "segments"))
    return [
        Claim(f"n = {n}: error of torsor", error(sweeps), at_most=2e-13),
        Claim(f"n = {n}: error by segments", error(segments), at_most=1e-13),
        Claim(f"n = {n}: error of dynibo", error(dynibo_peer.robot(model).forward_dynamics(*state))),
    ]


CALL = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from long_chain import _states, coil, ts

def kilobytes(field):
    return int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0])

ts.forward_dynamics(coil(8), *_states(coil(8), sets=1)[0])  # the compiler's own memory is not the call's
model = coil({n})
(state,) = _states(model, sets=1)
Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
before = kilobytes("VmRSS")
ts.forward_dynamics(model, *state)
print(kilobytes("VmHWM") - before)
"""


def _call_memory(n: int) -> float:
    """By how many kB one call raises the memory of a fresh process, at its peak (Linux)."""
    code = CALL.format(path=sys.path, n=n)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)
