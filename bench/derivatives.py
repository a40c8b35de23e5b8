"""Products with Jacobians: what a vjp or a jvp costs, in units of the function itself, on one core.

Dense Jacobians are measured in jacobians.py.
"""

from __future__ import annotations

import mpmath
import numpy as np
from contenders import BATCH, MACHINES, states
from harness import Claim, Contender, Report, race

import torsor as ts
from torsor import reference
from torsor.algorithms.articulated import forward_dynamics

ARMS = {
    "general 7R": lambda: ts.zoo.general_arm(7),
    **{name: MACHINES[name] for name in ("PUMA 560", "Panda-like 7R", "floating humanoid")},
}
FUNCTIONS = {"FD": ts.forward_dynamics, "ID": ts.inverse_dynamics}
# the most that a vjp may cost, times the function
VJP = {
    "FD": {"general 7R": 2.1, "PUMA 560": 2.1, "Panda-like 7R": 2.1, "floating humanoid": 2.0},
    "ID": {"general 7R": 1.8, "PUMA 560": 1.6, "Panda-like 7R": 1.7, "floating humanoid": 1.8},
}
LONG, CHAIN = 100_000, {"vjp of FD": 3.5, "vjp of ID": 2.2, "jvp of FD": 1.8, "jvp of ID": 1.8}
ACCURACY, DIGITS = 1000, 60
STEPS = 100


def measure(rounds: int) -> Report:
    report = Report("derivatives", f"vjp and jvp against the function itself, one core, {BATCH} states")
    for name, make in ARMS.items():
        model = make()
        for label, function in FUNCTIONS.items():
            rows = _race(f"{name}, {label}", model, label, function, states(model), BATCH, rounds)
            report.rows += rows
            cost = _costs(rows)
            report.claims += [
                Claim(f"{name}: vjp of {label} / {label}", cost["vjp"], at_most=VJP[label][name]),
                Claim(f"{name}: jvp of {label} / {label}", cost["jvp"]),
            ]
    report.claims += _chain(report, rounds)
    report.claims += _rollout(rounds)
    report.claims.append(_accuracy())
    return report


def _race(case, model, label, function, sets, per, rounds, **options):
    """The function, its jvp and its vjp; tangents and cotangents are velocities and forces of the same states."""

    def contender(name, what, count):
        program = ts.compile(model, what, **options)
        given = [(q, v, u, *(v, u, v)[:count]) for q, v, u in sets]
        out = np.empty_like(program.rows(*given[0]))
        return Contender(name, lambda *x: program.rows(*x, out=out), given, answer=None)

    named = (
        contender(label, function, 0),
        contender("jvp", ts.jvp(function), 3),
        contender("vjp", ts.vjp(function), 1),
    )
    return race(case, named, unit="per state", per=per, rounds=rounds)


def _costs(rows):
    return {row.contender: row.min / rows[0].min for row in rows}


def _chain(report: Report, rounds: int) -> list[Claim]:
    """One state of one long chain: the adjoint of the sweeps against the sweeps."""
    model, claims = ts.zoo.random_chain(LONG, 1), []
    sets = [tuple(0.1 * x for x in state) for state in states(model, None, 3)]
    for label, function in FUNCTIONS.items():
        rows = _race(f"chain of {LONG}, {label}", model, label, function, sets, 1, rounds, specialised=False)
        report.rows += rows
        cost = _costs(rows)
        for what in ("vjp", "jvp"):
            name = f"{what} of {label}"
            claims.append(Claim(f"chain of {LONG}: {name} / {label}", cost[what], at_most=CHAIN[name]))
    return claims


def _rollout(rounds: int) -> list[Claim]:
    """The gradient of a rollout of 100 steps against the rollout: two runs forwards, one backwards."""
    model = ts.zoo.panda()
    q, v, tau = states(model, 1024, 1)[0]
    cotangent = np.ones((2, 1024, 1, model.nv))
    options = dict(steps=STEPS, step=1e-3, every=STEPS, forces=ts.Constant(tau))
    rows = race("rollout", [
        Contender("rollout", lambda: ts.rollout(model, q, v, **options), [()], answer=None),
        Contender("vjp", lambda: ts.vjp(ts.rollout)(model, q, v, tuple(cotangent), **options), [()], answer=None),
    ], unit="per rollout", rounds=rounds)  # fmt: skip
    return [Claim(f"Panda-like 7R: gradient of {STEPS} steps / rollout", _costs(rows)["vjp"])]


def _accuracy() -> Claim:
    """The vjp of a chain of 1000 links along one direction, against differences of 60 digits."""
    model = ts.zoo.random_chain(ACCURACY, 1)
    rng = np.random.default_rng(0)
    q, v, tau, dq = (0.1 * rng.normal(size=model.nv) for _ in range(4))
    cotangent = rng.normal(size=model.nv)
    found = ts.vjp(ts.forward_dynamics)(model, q, v, tau, cotangent)
    with mpmath.mp.workdps(DIGITS):
        exact = [[mpmath.mpf(float(y)) for y in x] for x in (q, v, tau, dq)]
        h = mpmath.mpf("1e-20")

        def at(s):
            moved = {"q": [a + s * b for a, b in zip(exact[0], exact[3])], "v": exact[1], "tau": exact[2]}
            result = reference.evaluate(forward_dynamics, model, moved, number=mpmath.mpf)
            return sum(a * mpmath.mpf(float(c)) for a, c in zip(result, cotangent))

        expected = (at(h) - at(-h)) / (2 * h)
        products = [mpmath.mpf(float(a)) * mpmath.mpf(float(b)) for a, b in zip(found.q, dq)]
        error = abs(sum(products) - expected) / sum(map(abs, products))
    return Claim(f"chain of {ACCURACY}: error of the vjp of FD", float(error), at_most=2e-14)
