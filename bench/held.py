"""Stiffness that is not at the joints: an arm whose hand a Cartesian spring holds, and a cable held by its tip.

The springs are plain functions, so that no method knows their gains.  Errors are those of the joints at the end,
against a run at a far tighter tolerance.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from harness import Claim, Report, progress
from stiff import cable

import torsor as ts

RTOL, TIGHT = 1e-6, 1e-9
# stiffness (N/m), damping (N s/m): the error that radau may make, and the evaluations that it may take
ARM = {(1e6, 0.0): (1e-7, 6000), (1e6, 1e3): (1e-8, 3000), (1e8, 1e4): (1e-7, 6000)}
LINKS, TIP = 400, (1e7, 1e3)
Force = Callable[[float, Any, Any], Any]


def measure(rounds: int) -> Report:
    report = Report("held", f"Springs that no joint knows: 0.1 s at rtol = {RTOL:g}")
    for (k, c), (error, evaluations) in ARM.items():
        arm, start = ts.zoo.panda(), np.array([0.1, 0.5, -0.3, -1.5, 0.2, 1.2, 0.3])
        what = f"arm, hand held by {k:g} N/m, {c:g} N s/m"
        report.claims += _compared(what, arm, start, held(arm, start, k, c), 0.1, error, evaluations)
    model = cable(LINKS, 0.5, 0.01)
    start = model.neutral()
    what = f"cable of {LINKS} links, tip held by {TIP[0]:g} N/m"
    report.claims += _compared(what, model, start, held(model, start, *TIP), 0.05, 1e-7, 6000)
    return report


def held(model: ts.Model, q0: np.ndarray, k: float, c: float) -> Force:
    """A spring and a damper between the last body and a point 1 mm above where it begins."""
    weightless = replace(model, gravity=np.zeros(3))
    place = ts.body_poses(model, q0)[-1, :3, 3] + [0.0, 0.0, 1e-3]

    def force(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        pose, twist = ts.body_poses(model, q)[-1], ts.body_twists(model, q, v)[-1]
        wrenches = np.zeros((model.n, 6))
        wrenches[-1, 3:] = k * pose[:3, :3].T @ (place - pose[:3, 3]) - c * twist[3:]
        return -ts.bias_forces(weightless, q, np.zeros_like(v), external=wrenches)

    return force


def _compared(what: str, model: ts.Model, q0: np.ndarray, force: Force, duration: float, error: float,
              evaluations: int) -> list[Claim]:  # fmt: skip
    def end(method: str, rtol: float) -> tuple[np.ndarray, int, float]:
        progress(f"{what}, {method}")
        simulation = ts.Simulation(model, q0, forces=force, method=method, rtol=rtol, atol=1e-3 * rtol, dt=duration)
        began = time.perf_counter()
        q = simulation.run(duration).q[-1]
        progress("")
        return q, simulation.stepper.evaluations, time.perf_counter() - began

    exact, _, _ = end("radau", TIGHT)
    claims = []
    for method in ("esdirk4", "radau"):
        q, count, seconds = end(method, RTOL)
        most = (error, evaluations) if method == "radau" else (None, None)
        claims += [
            Claim(f"{what}, {method}: error", float(np.abs(q - exact).max()), at_most=most[0]),
            Claim("... evaluations", count, at_most=most[1]),
            Claim("... seconds", seconds),
        ]
    return claims
