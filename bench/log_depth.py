"""One long chain in O(log n) depth: levels, work, critical path, digits, and time on this processor."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from contenders import State, states
from harness import Claim, Contender, Report, progress, race
from long_chain import coil
from plot import FIGURES, plain_axis

import torsor as ts
from torsor.parallel.chain import RUN
from torsor.parallel.solver import Solver, schedule
from torsor.view.style import BLUE, GREY, style

LONG = 100_000
ACCURACY = 20_000  # links, for which the steps are also interpreted in 80-bit numbers
COUNTED = 2**20  # links
RUNS = (1, 2, 4, 8, 16)
LENGTHS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
ROUNDING = 1e-12
CHAINS = {"links at right angles": coil, "general links": lambda n: ts.zoo.general_arm(n, 1)}


def measure(rounds: int) -> Report:
    report = Report("log_depth", "Forward dynamics of one chain in O(log n) levels (method constraint-force)")
    for name, make in CHAINS.items():
        progress(f"{name}: {LONG} links")
        model = make(LONG)
        rows = race(
            f"{name}, n = {LONG}", _contenders(model, _states(model)), unit="per joint", per=LONG, rounds=rounds
        )
        report.rows += rows
        sweeps, one, two = (row.min for row in rows)
        report.claims += [
            Claim(f"{name}: time over that of the sweeps", one / sweeps, at_most=3.0),
            Claim(f"{name}: the same with two threads", two / sweeps),
            Claim(f"{name}: difference from the sweeps", rows[1].difference or 0.0, at_most=1e-13),
        ]
    for name, make in CHAINS.items():
        report.claims += _accuracy(name, make(ACCURACY))
    report.claims += _counts() + _lengths()
    return report


def _states(model: ts.Model) -> list[State]:
    """Slow joints: velocities add up along the chain."""
    return [(q, 0.1 * v, tau) for q, v, tau in states(model, batch=None, sets=3)]


def _contenders(model: ts.Model, sets: list[State]) -> list[Contender]:
    sweeps = ts.compile(model, ts.forward_dynamics, specialised=False, lanes=1)
    solvers = [Solver(model, threads=threads) for threads in (1, 2)]
    given = [(dict(zip(("q", "v", "tau"), state)),) for state in sets]
    return [
        Contender("sweeps, one lane", sweeps, sets),
        Contender("torsor levels", solvers[0], given, tolerance=ROUNDING),
        Contender("torsor levels, two threads", solvers[1], given, tolerance=ROUNDING),
    ]


def _accuracy(name: str, model: ts.Model) -> list[Claim]:
    """Errors of both methods, relative to the largest acceleration."""
    state = _states(model)[0]
    progress(f"{name}, n = {model.n}: the reference in 80-bit numbers")
    exact = ts.forward_dynamics(model, *(x.astype(np.longdouble) for x in state), method="articulated")

    def error(method: str) -> float:
        return float(np.max(np.abs(ts.forward_dynamics(model, *state, method=method) - exact)) / np.max(np.abs(exact)))

    return [
        Claim(f"{name}, n = {model.n}: error of the levels", error("constraint-force"), at_most=1e-13),
        Claim(f"{name}, n = {model.n}: error of the sweeps", error("articulated")),
    ]


def _counts() -> list[Claim]:
    """Levels and work at 2^20 links, for runs of several lengths.

    Runs of one body are block elimination of all constraint forces (nested dissection: the pivots of cyclic
    reduction); longer ones condense two-handle segments by articulated sweeps first.
    """
    claims = []
    small = coil(20_000)
    for function in (ts.forward_dynamics, ts.mass_solve):
        sweeps = sum(ts.compile(small, function, specialised=False, lanes=1).operations) / small.n
        for run in RUNS:
            progress(f"{function.__name__}, runs of {run}")
            s = schedule(small, function.__name__, run=run)
            what = f"{function.__name__}, runs of {run}, n = {small.n}:"
            claims += [
                Claim(f"{what} work over the sweeps'", s.work / small.n / sweeps),
                Claim(f"{what} critical path", s.critical_path),
            ]
        progress(f"{function.__name__}, n = 2^20")
        s = schedule(coil(COUNTED), function.__name__)
        what = f"{function.__name__}, runs of {RUN}, n = 2^20:"
        claims += [
            Claim(f"{what} levels", s.depth, at_most=2 * np.log2(COUNTED) + 10),
            Claim(f"{what} work over the sweeps'", s.work / COUNTED / sweeps, at_most=10.0),
        ]
    return claims


def _lengths() -> list[Claim]:
    """Operations on the longest path over the length of the chain, and their figure."""
    joint = sum(ts.compile(coil(1000), ts.forward_dynamics, specialised=False, lanes=1).operations) / 1000
    paths, chains = [], []
    for n in LENGTHS:
        progress(f"critical path, n = {n}")
        s = schedule(coil(n))
        paths.append(s.critical_path)
        chains.append(s.longest_chain)
    progress("")
    with style():
        figure, panel = plt.subplots(figsize=(7, 4), layout="constrained")
        sweeps = [joint * n for n in LENGTHS]
        panel.loglog(LENGTHS, sweeps, "o-", color=GREY, label="sweeps, one joint after the other")
        panel.loglog(LENGTHS, paths, "o-", color=BLUE, label="levels, one processor per lane")
        panel.loglog(LENGTHS, chains, "o--", color=BLUE, label="levels, any number of processors")
        panel.set_xlabel("links")
        panel.set_ylabel("operations on the longest path")
        plain_axis(panel.xaxis)
        panel.legend()
        panel.set_title("Forward dynamics of one chain of revolute joints", loc="left")
        FIGURES.mkdir(parents=True, exist_ok=True)
        figure.savefig(FIGURES / "critical_path.png", dpi=150)
        plt.close(figure)
    return [
        Claim(f"n = {n}: critical path of the sweeps over that of the levels", joint * n / path)
        for n, path in zip(LENGTHS, paths)
    ]
