"""S. K. Saha, Simulation of industrial manipulators based on the UDU^T decomposition of inertia matrix, 2001:
free fall and forced motion of the Stanford arm and a PUMA.

The paper prints curves, not numbers. The numbers here are those of the same free falls integrated to an
energy error below 1e-6 J by an independent program.

In the forced runs nothing keeps an arm on its path, and the motion amplifies every error. The torques are tabulated
every 0.01 s with straight lines between them. This alone drives the Stanford arm 0.001 away after 2.45 s, with every
method when integrated to 1e-10. At the paper's tolerance of 1e-6 the errors of integration add to it: little with
Dormand and Prince's pair or Adams's method, but with Fehlberg's the arm leaves its path half a second earlier. So these
rows measure the tables and the tolerances, not the dynamics, and there is nothing in them to pass or to fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor import dynamics, zoo
from torsor.model import Model
from torsor.simulate import Cycloid, Table, Trajectory, simulate
from torsor.theory.papers import saha_algorithm
from torsor.theory.papers.check import Check, numbers
from torsor.view.plots import coordinate_units, force_units, small_multiples

Array = NDArray[Any]

T = 10.0
TABULATED = 0.01  # seconds between torques, and between plotted points: the paper's step
RIGHT_ANGLE, SIXTY = np.pi / 2, np.pi / 3
STARTS = {"stanford": np.array([0, RIGHT_ANGLE, 0, 0, 0, 0]), "puma_saha": np.zeros(6)}
GOALS = {"stanford": np.array([SIXTY, SIXTY, 0.1, SIXTY, SIXTY, SIXTY]), "puma_saha": np.full(6, np.pi)}
TITLES = {"stanford": "Stanford arm", "puma_saha": "PUMA"}
PARTS = {"stanford": "i", "puma_saha": "ii"}
LEFT = {
    "stanford": (1e-3, 2.5),
    "puma_saha": (1e-2, 6.0),
}  # a visible deviation, and the text's "after about"


def checks() -> Iterator[Check]:
    fall = free_fall("stanford")
    at = fall.at([0.5, 0.6, 0.7, 1.0])[0]
    half = 0.0005  # of the last printed digit
    yield numbers("Fig. 4(i)b, curve", "theta_2 at .5, .6, .7, 1 s, rad", [0.567, 0.365, 0.238, 0.081], at[:, 1], half)
    digits = [half, half, 0.005, 0.005]
    yield numbers("Fig. 4(i)c, curve", "b_3 at .5, .6, .7, 1 s, m", [0.348, 0.661, 1.09, 3.00], at[:, 2], digits)
    yield numbers("Fig. 4(i)a,c, curve", "theta_1, b_3 at 10 s", [1.527, 471.7], fall.q[-1, [0, 2]], [half, 0.05])
    model = zoo.puma_saha()
    rest = np.zeros(6)
    a = dynamics.forward_dynamics(model, rest, rest, rest)
    expected = [0.0197, 6.475, -5.825, -0.0197, -0.692, 0.0]
    yield numbers(
        "Fig. 4(ii), curve",
        "PUMA, first accelerations, rad/s^2",
        expected,
        a,
        [5e-5, half, half, 5e-5, half, 5e-5],
    )
    turns = free_fall("puma_saha").at(0.5)[0][1]
    yield Check("section 4", "PUMA, joint 2 turns", "positive", f"{turns:+.3f} rad at 0.5 s", bool(turns > 0))
    for name in STARTS:
        yield from departures(name)
    yield from saha_algorithm.checks()


def departures(name: str) -> Iterator[Check]:
    """When the forced arm leaves its path, for its tabulated torques and for the errors of integration."""
    seen, text = LEFT[name]
    where, published = f"Fig. 6({PARTS[name]})", f"after about {text:g} s"

    def when(method: str, tolerance: float = 1e-6) -> str:
        return f"{leaves(forced(name, method, tolerance), reference(name), seen):.2f} s"

    words = f"{when('dop853', 1e-10)} (by {seen:g}, torques every {TABULATED:g} s, integrated to 1e-10)"
    yield Check(where, f"{TITLES[name]} leaves the path", published, words, None)
    words = f"RKF {when('rkf45')}, Dormand-Prince {when('dopri5')}, ABM {when('abm')}"
    yield Check(where, "the same, integrated to 1e-6", published, words, None)


def figures(folder: Path) -> Iterator[Path]:
    for name in STARTS:
        model, part, title = zoo.get(name), PARTS[name], TITLES[name]
        fall, run, desired = free_fall(name), forced(name), reference(name)
        t = np.linspace(0, T, round(T / TABULATED) + 1)
        labels = [f"joint {k + 1}" for k in range(model.nv)]
        units = coordinate_units(model)
        path = folder / f"saha2001_fig4_{name}_free_fall.png"
        small_multiples(
            {"": (t, fall.at(t)[0])},
            labels,
            units,
            f"Free fall of the {title} (Saha 2001, Fig. 4({part}))",
            path,
        )
        yield path
        path = folder / f"saha2001_fig5_{name}_torques.png"
        heading = f"Forces and torques for the cycloidal motion of the {title} (Fig. 5({part}))"
        small_multiples({"": (run.t, run.tau)}, labels, force_units(model), heading, path)
        yield path
        path = folder / f"saha2001_fig6_{name}_forced.png"
        wanted = np.array([desired(x)[0] for x in t])
        adams = forced(name, "abm")
        series = {"RKF": (run.t, run.q), "ABM": (adams.t, adams.q), "desired": (t, wanted)}
        small_multiples(series, labels, units, f"Forced motion of the {title}, tolerance 1e-6 (Fig. 6({part}))", path)
        yield path
    path = folder / "saha2001_fig7_stanford_end_effector.png"
    run, desired = forced("stanford"), reference("stanford")
    wanted = dynamics.body_poses(zoo.stanford(), np.array([desired(x)[0] for x in t]))[:, -1, :3, 3]
    series = {"RKF": (run.t, run.path()), "desired": (t, wanted)}
    small_multiples(
        series,
        ["$X_1$", "$Y_1$", "$Z_1$"],
        ["m"] * 3,
        "End effector of the Stanford arm, forced motion (Fig. 7)",
        path,
    )
    yield path


@cache
def free_fall(name: str) -> Trajectory:
    """Free fall from the paper's initial state: at rest, no torques."""
    return simulate(zoo.get(name), STARTS[name], duration=T, method="rkf45", rtol=1e-10, atol=1e-12)


def reference(name: str) -> Cycloid:
    return Cycloid(STARTS[name], GOALS[name], T)


@cache
def forced(name: str, method: str = "rkf45", tolerance: float = 1e-6) -> Trajectory:
    """The arm driven by the tabulated torques of the cycloidal motion, with nothing to keep it on its path."""
    model: Model = zoo.get(name)
    times = np.linspace(0, T, round(T / TABULATED) + 1)
    options: dict[str, Any] = {"method": method, "rtol": tolerance, "atol": tolerance, "dt": TABULATED}
    return simulate(model, STARTS[name], duration=T, forces=Table.following(model, reference(name), times), **options)


def leaves(run: Trajectory, desired: Cycloid, by: float) -> float:
    """The first time at which a run is `by` away from the desired motion in any joint; infinite if never."""
    away = np.abs(run.q - np.array([desired(t)[0] for t in run.t])).max(axis=1)
    late = np.flatnonzero(away > by)
    return float(run.t[late[0]]) if late.size else np.inf
