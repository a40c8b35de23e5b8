"""One chain of n = 2^10 ... 2^20 links by levels: wall time on one core and on two, against Brent's bound.

W operations of which D wait for each other take p processors at most W/p + D (1 - 1/p) steps (R. P. Brent 1974). With
W and D counted and the time of one core measured, that bounds the time of p cores: T_p <= T_1 (1/p + (1 - 1/p) D/W).
The sweeps take fewer operations, W_s, all of which wait for each other but for the arithmetic within a body; levels
can only win from p = W / (W_s - D) processors on.

Work on one core is measured in processor time, which other processes disturb least; on two cores in wall time.
"""

from __future__ import annotations

import os
import time

import numpy as np
from harness import Claim, Contender, Report, Row, progress, race

import torsor as ts
from torsor.parallel.segments import Segments
from torsor.parallel.solver import Solver, schedule

EXPONENTS = (10, 12, 14, 16, 18, 20)
SHORT = 2**16  # links: until there calls are short, and more of them find both cores idle
CORES = 2
SWEEPS, SEGMENTS, ONE, TWO = "sweeps, one core", "segments, one core", "levels, one core", "levels, two cores"
SLOW = 0.01  # rad/s
ROUNDING = 1e-9  # velocities add up along the chain, and so do the terms that differ in their last digits


def measure(rounds: int) -> Report:
    report = Report("brent", "Forward dynamics of one chain of n links, by levels on one core and two, and by sweeps")
    for k in EXPONENTS:
        rows, claims = _measured(k, rounds)
        report.rows += rows
        report.claims += claims
    report.claims.append(
        Claim("processes that waited for a core at the end, on average of a minute", os.getloadavg()[0])
    )
    return report


def _measured(k: int, rounds: int) -> tuple[list[Row], list[Claim]]:
    n = 2**k
    progress(f"2^{k} links")
    model, rng = ts.zoo.general_arm(n, 1), np.random.default_rng(k)
    sets = [tuple(scale * x for scale, x in zip((1.0, SLOW, 1.0), rng.normal(size=(3, n)))) for _ in range(3)]
    given = [(dict(zip(("q", "v", "tau"), state)),) for state in sets]
    sweeps = ts.compile(model, ts.forward_dynamics, specialised=False, lanes=1)
    one, two = (Solver(model, threads=p) for p in (1, CORES))
    alone = [
        Contender(SWEEPS, sweeps, sets),
        Contender(SEGMENTS, Segments(model), given, tolerance=ROUNDING),
        Contender(ONE, one, given, tolerance=ROUNDING),
    ]
    both = [Contender(ONE, one, given), Contender(TWO, two, given, tolerance=ROUNDING)]
    rows = race(f"n = 2^{k}, processor time", alone, unit="per call", rounds=rounds, clock=time.thread_time)
    took = {row.contender: row.min for row in rows}
    walls = race(f"n = 2^{k}, wall time", both, unit="per call", rounds=4 * rounds if n <= SHORT else rounds)
    took[TWO] = walls[1].min
    plan = schedule(model)
    share = plan.critical_path / plan.work
    bound = took[ONE] * (1 / CORES + (1 - 1 / CORES) * share)
    own = sum(sweeps.operations)
    what = f"n = 2^{k}: "
    return rows + walls, [
        Claim(what + "D / W, the part of the operations that wait for each other", share),
        Claim(what + "two cores over Brent's bound", took[TWO] / bound),
        Claim(what + "levels on two cores over the sweeps on one", took[TWO] / took[SWEEPS]),
        Claim(what + "processors from which levels can win, W / (W_s - D)", plan.work / (own - plan.critical_path)),
    ]
