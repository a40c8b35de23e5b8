"""S. K. Saha, Simulation of industrial manipulators based on the UDU^T decomposition of inertia matrix, 2001:
the simulations of section 4, computed by the paper's own algorithm (`dynamics="udut"`).

The paper prints curves and a few sentences about them, no numbers. The numbers beside the curves are ours: those of the
same free falls, integrated to an energy error below 1e-6 J by an independent program.

In the forced runs nothing keeps an arm on its path, and the motion multiplies every error: that of the Stanford arm
grows tenfold every 0.5 s. The torques are tabulated every 0.01 s with straight lines between them. This alone drives
the arm away, and the errors of integration add to it. Where runs with two integrators leave the path, and to which
side, depends on the signs of the first errors. They agree up to a time, which the rows state, and not afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from numpy.typing import NDArray

from torsor import dynamics, zoo
from torsor.errors import ModelError
from torsor.model import Model
from torsor.motion import Cycloid, Table, Trajectory, simulate
from torsor.theory.papers import saha_algorithm, saha_planar, saha_steps
from torsor.theory.papers.figures import series_data
from torsor.theory.papers.rows import AGREES, CONFLICTS, MISPRINT, OURS, Row, misprint, ours
from torsor.view.plots import GREY, STYLE, coordinate_units, force_units, save, small_multiples

Array = NDArray[Any]

T = 10.0
TABULATED = 0.01  # seconds between torques, and between plotted points: the paper's step
TIMES = np.linspace(0, T, round(T / TABULATED) + 1)
RIGHT_ANGLE, SIXTY = np.pi / 2, np.pi / 3
STARTS = {"stanford": np.array([0, RIGHT_ANGLE, 0, 0, 0, 0]), "puma_saha": np.zeros(6)}
GOALS = {"stanford": np.array([SIXTY, SIXTY, 0.1, SIXTY, SIXTY, SIXTY]), "puma_saha": np.full(6, np.pi)}
TITLES = {"stanford": "Stanford arm", "puma_saha": "PUMA"}
PARTS = {"stanford": "i", "puma_saha": "ii"}
VISIBLE = 0.01  # rad or m: where a curve leaves another, in the figures of both arms
DEPARTURES = {"stanford": 2.5, "puma_saha": 6.0}  # "after about", s
ABOUT = 0.5  # s
HALF = 0.0005  # of the last digit of numbers with three decimals


def rows() -> Iterator[Row]:
    yield from saha_algorithm.rows()
    yield from saha_steps.rows()
    yield from saha_planar.rows()
    yield from _data()
    yield from _free_falls()
    for name in STARTS:
        yield from _forced(name)


def _data() -> Iterator[Row]:
    """Eq. 18 and Table II."""
    start, goal = STARTS["stanford"], GOALS["stanford"]
    printed = np.full(6, (2 * np.pi - np.sin(2 * np.pi)) / 2)
    law, general = "theta = (2 pi t/T - sin(2 pi t/T)) / 2", "theta(0) + (theta(T) - theta(0)) / pi times that"
    yield misprint("Eq. 18", law, general, printed, Cycloid(start, goal, T)(T)[0], goal)
    model = zoo.puma_saha()
    try:
        Model.from_dh(convention="standard", n=6, mass=model.mass, inertia=PRINTED_MOMENTS)
        refused = ""
    except ModelError as error:
        refused = str(error)
    yield Row("Table II(ii)", "moments of inertia, PUMA, kg m^2", "I_yy = -1.612, ...", "1.612, ...: absolute values",
              "no body has negative ones: refused by name", MISPRINT, "link1" in refused)  # fmt: skip


PRINTED_MOMENTS = (
    (1.612, -1.612, 0.5091), (0.4898, 8.0783, 8.2672), (3.3768, 3.3768, -0.3009), (0.181, -0.1273, 0.181),
    (0.0735, 0.1273, -0.0735), (0.0071, 0.0071, 0.0141),
)  # fmt: skip


def _free_falls() -> Iterator[Row]:
    fall = free_fall("stanford")
    at = fall.at([0.5, 0.6, 0.7, 1.0])[0]
    yield ours("Fig. 4(i)b, curve", "theta_2 at .5, .6, .7, 1 s, rad", at[:, 1], [0.567, 0.365, 0.238, 0.081], HALF)
    digits = [HALF, HALF, 0.005, 0.005]
    yield ours("Fig. 4(i)c, curve", "b_3 at .5, .6, .7, 1 s, m", at[:, 2], [0.348, 0.661, 1.09, 3.00], digits)
    yield ours("Fig. 4(i)a,c, curve", "theta_1, b_3 at 10 s, rad, m", fall.q[-1, [0, 2]], [1.527, 471.7], [HALF, 0.05])
    crossing = first_crossing()
    yield Row("section 4", "Stanford arm: theta_2 is zero", "a little after 0.5 s", f"first at {crossing:.2f} s",
              f"{crossing - 0.5:.1f} s", CONFLICTS, abs(crossing - 2.244) < HALF)  # fmt: skip
    rest = np.zeros(6)
    a = dynamics.forward_dynamics(zoo.puma_saha(), rest, rest, rest, method="udut")
    independent, within = [0.0197, 6.475, -5.825, -0.0197, -0.692, 0.0], [5e-5, HALF, HALF, 5e-5, HALF, 5e-5]
    yield ours("Fig. 4(ii), curve", "PUMA, first accelerations, rad/s^2", a, independent, within)
    turns = free_fall("puma_saha").at(0.5)[0][1]
    yield Row("section 4", "PUMA: joint 2 turns", "positive", f"{turns:+.3f} rad at 0.5 s", "", AGREES, bool(turns > 0))


def _forced(name: str) -> Iterator[Row]:
    """When the forced arm leaves its path, by one threshold for both arms, and how far two integrators agree."""
    place, text = f"Fig. 6({PARTS[name]})", DEPARTURES[name]
    away = {method: departure(name, method) for method in ("rkf45", "abm", "dopri5")}
    found = away["rkf45"]
    close = abs(found - text) <= ABOUT
    verdict = AGREES if name == "stanford" else CONFLICTS
    yield Row(place, f"{TITLES[name]} is {VISIBLE:g} off its path, RKF", f"after about {text:g} s", f"{found:.2f} s",
              f"{found - text:+.1f} s", verdict, close == (verdict == AGREES))  # fmt: skip
    tight = departure(name, "dop853", 1e-10)
    words = (
        f"ABM {away['abm']:.2f} s, Dormand-Prince {away['dopri5']:.2f} s; {tight:.2f} s for the table of torques alone"
    )
    yield Row(place, "the same by other integrators", "-", words, "", OURS)
    until = agreement(name)
    sides = sides_of(name, until + 0.5)
    yield Row(place, f"RKF and ABM at 1e-6 agree to {VISIBLE:g}", '"similar plots"' if name == "stanford" else "-",
              f"until {until:.2f} s; half a second later they are {sides[0]:+.3f} and {sides[1]:+.3f} off the path",
              f"grows tenfold in {tenfold(name):.2f} s", OURS, bool(until > 0.8 * found))  # fmt: skip


def figures(folder: Path) -> Iterator[Path]:
    yield saha_steps.figure(folder / "saha2001_section1_steps.png")
    for name in STARTS:
        yield from _figures_of(name, folder)
    path = folder / "saha2001_fig7_stanford_end_effector.png"
    model = zoo.stanford()
    curves = {"RKF": forced("stanford").q, "desired": wanted("stanford")}
    tips = {key: dynamics.body_poses(model, q)[:, -1, :3, 3] for key, q in curves.items()}
    labels, heading = ["$X_1$", "$Y_1$", "$Z_1$"], "End effector of the Stanford arm, forced motion (Fig. 7)"
    series = {key: (TIMES, x) for key, x in tips.items()}
    small_multiples(series, labels, ["m"] * 3, heading, path, {"figure": path.stem})
    series_data(path, TIMES, tips, ["X1", "Y1", "Z1"])
    yield path


def _figures_of(name: str, folder: Path) -> Iterator[Path]:
    """Figures 4 to 6 of one arm."""
    model, part, title = zoo.get(name), PARTS[name], TITLES[name]
    labels, units = [f"joint {k + 1}" for k in range(model.nv)], coordinate_units(model)
    run = forced(name)

    def draw(
        number: int, what: str, series: dict[str, Array], units: list[str], heading: str, until: float = 0
    ) -> Path:
        path = folder / f"saha2001_fig{number}_{name}_{what}.png"
        figure = small_multiples({key: (TIMES, x) for key, x in series.items()}, labels, units, heading)
        for axes in figure.axes if until else ():
            axes.axvline(until, color=GREY, lw=0.8, ls=":")
        with rc_context(STYLE):  # type: ignore[arg-type]
            save(figure, path, {"figure": path.stem})
        series_data(path, TIMES, series, labels)
        return path

    fall = {"": free_fall(name).at(TIMES)[0]}
    yield draw(4, "free_fall", fall, units, f"Free fall of the {title} (Saha 2001, Fig. 4({part}))")
    heading = f"Forces and torques for the cycloidal motion of the {title} (Fig. 5({part}))"
    yield draw(5, "torques", {"": run.tau}, force_units(model), heading)
    series = {"RKF": run.q, "ABM": forced(name, "abm").q, "desired": wanted(name)}
    heading = f"Forced motion of the {title}, tolerance 1e-6 (Fig. 6({part})); dotted: RKF and ABM part by {VISIBLE:g}"
    yield draw(6, "forced", series, units, heading, agreement(name))


# The runs ----------------------------------------------------------------------------------------------------


@cache
def free_fall(name: str) -> Trajectory:
    """Free fall from the paper's initial state: at rest, no torques."""
    options: dict[str, Any] = {"method": "rkf45", "rtol": 1e-10, "atol": 1e-12, "dynamics": "udut"}
    return simulate(zoo.get(name), STARTS[name], duration=T, **options)


def first_crossing() -> float:
    """When theta_2 of the falling Stanford arm is zero for the first time, in seconds."""
    options: dict[str, Any] = {"method": "rkf45", "rtol": 1e-10, "atol": 1e-12, "dynamics": "udut"}
    run = simulate(zoo.stanford(), STARTS["stanford"], duration=T, stop=lambda t, q, v: q[1], **options)
    return float(run.t[-1])


def reference(name: str) -> Cycloid:
    return Cycloid(STARTS[name], GOALS[name], T)


@cache
def wanted(name: str) -> Array:
    """The desired positions at TIMES."""
    path = reference(name)
    return np.array([path(t)[0] for t in TIMES])


@cache
def forced(name: str, method: str = "rkf45", tolerance: float = 1e-6) -> Trajectory:
    """The arm driven by the tabulated torques of the cycloidal motion, with nothing to keep it on its path."""
    model: Model = zoo.get(name)
    options: dict[str, Any] = {"method": method, "rtol": tolerance, "atol": tolerance, "dt": TABULATED}
    forces = Table.following(model, reference(name), TIMES)
    return simulate(model, STARTS[name], duration=T, forces=forces, dynamics="udut", **options)


def departure(name: str, method: str = "rkf45", tolerance: float = 1e-6) -> float:
    """The first time at which any joint is VISIBLE off its path; infinite if never."""
    return _first(np.abs(forced(name, method, tolerance).q - wanted(name)).max(axis=1), VISIBLE)


def agreement(name: str) -> float:
    """The time until which the runs with RKF and ABM agree to VISIBLE."""
    return _first(_between(name), VISIBLE)


def tenfold(name: str) -> float:
    """How long the difference between the runs with RKF and ABM takes to grow tenfold, around VISIBLE, in seconds."""
    return _first(_between(name), 10 * VISIBLE) - _first(_between(name), VISIBLE)


def sides_of(name: str, t: float) -> tuple[float, float]:
    """How far RKF and ABM are off the path at a time, in the joint in which they differ most."""
    row = min(round(t / TABULATED), len(TIMES) - 1)
    off = [forced(name, method).q[row] - wanted(name)[row] for method in ("rkf45", "abm")]
    joint = int(np.abs(off[0] - off[1]).argmax())
    return float(off[0][joint]), float(off[1][joint])


def _between(name: str) -> Array:
    return np.abs(forced(name).q - forced(name, "abm").q).max(axis=1)


def _first(x: Array, above: float) -> float:
    late = np.flatnonzero(x > above)
    return float(TIMES[late[0]]) if late.size else np.inf
