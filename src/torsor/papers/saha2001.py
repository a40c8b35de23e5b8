"""S. K. Saha, Simulation of industrial manipulators based on the UDU^T decomposition of inertia matrix, 2001: the
decomposition, its cost counted from the code (Table I), and the simulations of section 4 (`dynamics="udut"`).

The paper prints curves and a few sentences about them, but no numbers. The numbers for the curves are ours: those of
the same free falls, integrated to an energy error below 1e-6 J by an independent program.

In the forced runs nothing keeps an arm on its path, and the motion amplifies every error: for the Stanford arm
tenfold every 0.5 s. The torques are tabulated every 0.01 s and interpolated linearly. This alone drives
the arm away, and integration errors add to it. Where runs with two integrators leave the path, and to which
side, depends on the signs of the first errors. They agree up to a time, which the rows state, and not afterwards.

The three-DoF planar arm of section 4 is compared with its explicit equations of motion. With
phi_i = theta_1 + ... + theta_i, h_i = m_i c_i + L_i (m_{i+1} + ...) and a_ij = L_i h_j for i < j,
a_ii = I_i + m_i c_i^2 + L_i^2 (m_{i+1} + ...), they are (any textbook)

    sum_j a_ij (cos(phi_i - phi_j) phidd_j + sin(phi_i - phi_j) phid_j^2) + g h_i cos phi_i = tau_i - tau_{i+1}.

The paper prints no data for this arm; those of `zoo.planar3` are chosen.

Section 1 says that O(n) accelerations are "smooth functions of time", so that integration takes fewer steps. The
experiment integrates the same motion with accelerations by U D U', by articulated bodies and through M, for tolerances
down to rounding. The accepted and rejected steps of an integrator depend on the method only if the rounding noise of
the accelerations reaches the tolerance. That happens first if M is ill conditioned: here, for an arm of light links
with a tip 1e4 times heavier, straight or bent. Links of equal mass take the same steps with every method, and so do the
free falls of section 4.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import solve_ivp

from torsor import lie, zoo
from torsor.algorithms import articulated
from torsor.compiler.lowering import unrolled
from torsor.compiler.tape import Operations
from torsor.dense import inverse, solve
from torsor.dynamics import functions as dynamics
from torsor.dynamics.closed_forms import Operators, inertial_com_frames
from torsor.errors import ModelError
from torsor.linalg import cos, sin
from torsor.model import Model
from torsor.motion.forces import Table
from torsor.motion.references import Cycloid
from torsor.motion.simulation import Simulation, simulate
from torsor.motion.trajectory import Trajectory
from torsor.papers import arithmetic
from torsor.papers import saha_udut as saha
from torsor.papers.figures import MARKERS, panels, series_data, write_data
from torsor.papers.rows import AGREES, ALONE, CONFLICTS, MISPRINT, OURS, Row, identity, misprint, ours
from torsor.view.plots import axis_labels, small_multiples
from torsor.view.style import GREY, lines, save, style

Array = NDArray[Any]

T = 10.0
TABULATED = 0.01  # seconds between torques, and between plotted points: the paper's step
TIMES = np.linspace(0, T, round(T / TABULATED) + 1)
RIGHT_ANGLE, SIXTY = np.pi / 2, np.pi / 3
STARTS = {"stanford": np.array([0, RIGHT_ANGLE, 0, 0, 0, 0]), "puma_saha": np.zeros(6)}
GOALS = {"stanford": np.array([SIXTY, SIXTY, 0.1, SIXTY, SIXTY, SIXTY]), "puma_saha": np.full(6, np.pi)}
TITLES = {"stanford": "Stanford arm", "puma_saha": "PUMA"}
PARTS_OF_FIGURES = {"stanford": "i", "puma_saha": "ii"}
VISIBLE = 0.01  # rad or m: the difference at which curves visibly separate, in the figures of both arms
DEPARTURES = {"stanford": 2.5, "puma_saha": 6.0}  # "after about", s
ABOUT = 0.5  # s
HALF = 0.0005  # of the last digit of numbers with three decimals


# Sections 2 and 3: the decomposition ------------------------------------------------------------------------


def _decomposition() -> Iterator[Row]:
    model = zoo.stanford()
    q = arithmetic.given([0.3, 1.1, 0.4, -0.7, 0.5, 0.2])
    o = saha.denoc(model, q)
    u = saha.decompose(o)
    M = dynamics.mass_matrix(model, q)
    phi = arithmetic.given(np.arange(1.0, 7.0))
    yield identity("Eq. 1", "I qdd = phi, phi = tau - C qd", M @ dynamics.mass_solve(model, q, phi, method="udut"), phi)
    yield identity("Eqs 2, 3", "I = N_d' N_l' M N_l N_d, Stanford arm", o.S.T @ (o.G.T @ o.J @ o.G) @ o.S, M)
    v = arithmetic.given(np.linspace(-1, 1, 6))
    to_centres = lie.Ad(inertial_com_frames(model, q))
    twists = np.einsum("nij,nj->ni", to_centres, dynamics.body_twists(model, q, v))
    step = [o.Ad_inv[i] @ twists[i - 1] + o.S_blocks[i][:, 0] * v[i] for i in range(1, 6)]
    yield identity("Eqs 4, 5", "t_i = B_ij t_j + p_i thetad_i, torsor's twists", np.array(step), twists[1:])
    yield identity("Eq. 6", "i_ij = p_i' M~_i B_ij p_j", _composite(o), M)
    elementary = list(saha.elementary(M))
    E = np.linalg.multi_dot([E for E, _ in reversed(elementary)])
    yield identity("Eqs 7, 19-24", "E I = L_2, lower triangular", E @ M, np.tril(elementary[-1][1]))
    last = elementary[0][0]
    yield identity("Eq. 8", "E_k^-1 = 1 + alpha_k lambda_k'", inverse(last), 2 * np.eye(6) - last)
    U, D = saha.reverse_elimination(M)
    yield identity("Eqs 9, 10", "I = U D L", U @ np.diag(D) @ (elementary[-1][1] / D[:, None]), M)
    yield identity("Eq. 11", "I = U D U', U and D without forming I", u.U @ np.diag(u.D) @ u.U.T, M)
    recursive, eliminated = np.r_[u.U.ravel(), u.D], np.r_[U.ravel(), D]
    yield identity("Eqs 25-28", "alpha_ik and m^_k are those of the elimination", recursive, eliminated)
    yield identity("section 1", "the analytic inverse", u.M_inverse @ M, np.eye(model.nv))


def _composite(o: Operators) -> Array:
    """Eq. 6 for a chain: M~_i are the diagonal blocks of G' J G, B_ij those of G below the diagonal."""
    carried, p, M = o.G.T @ o.J @ o.G, [S[:, 0] for S in o.S_blocks], np.zeros((o.n, o.n), o.J.dtype)
    for i, j in zip(*np.tril_indices(o.n)):
        own, other = slice(6 * i, 6 * i + 6), slice(6 * j, 6 * j + 6)
        M[i, j] = M[j, i] = p[i] @ carried[own, own] @ o.G[own, other] @ p[j]
    return M


def _three_steps() -> Iterator[Row]:
    links = saha.general_links(6)
    q, phi = arithmetic.given([0.3, 1.1, 0.4, -0.7, 0.5, 0.2]), arithmetic.given(np.arange(1.0, 7.0))
    if not arithmetic.doubles():  # twists whose cosines are exact
        links = [replace(link, alpha=np.pi / 2) for link in links]
    model = saha.model_of(links)
    if not arithmetic.doubles():
        links = [replace(link, alpha=arithmetic.radians(90.0)) for link in links]
    M = dynamics.mass_matrix(model, q)
    found = np.array(saha.forward_dynamics(links, q.tolist(), phi.tolist()))
    yield identity("section 3, Eqs 16, 17", "steps A, B, C: I qdd = phi", M @ found, phi)
    o, expected = saha.denoc(model, q), solve(M, phi)
    right = saha.three_steps(o, phi).qdd
    yield identity("Eqs 12-15", "eta, psi and mu in one frame", right, expected)
    J, B = o.J_blocks.copy(), o.Ad_inv.copy()
    J[:-1, :3, :3] = 0  # the inertias I_i of the links
    B[1:, 3:] += np.hstack([np.eye(3), -np.eye(3)])  # the top of mu_{i-1} instead of its bottom
    yield misprint("A3(b)", "I^_i = I^_{i+1,i+1} + ...", "I^_i = I_i + I^_{i+1,i+1} + ...",
                   saha.three_steps(replace(o, J_blocks=J), phi).qdd, right, expected)  # fmt: skip
    yield misprint("C3", "mu_{i,i-1(b)} = mu_{i-1(t)} + c x ...", "mu_{i-1(b)} + c x ...",
                   saha.three_steps(o, phi, outward=B).qdd, right, expected)  # fmt: skip


def _any_chain() -> Iterator[Row]:
    """The intermediate results on a tree with joints of every type."""
    model = arithmetic.placed(zoo.random_tree(8, 3))
    rng = np.random.default_rng(3)
    q, (v, tau) = (arithmetic.given(x) for x in (model.random_configuration(rng), rng.normal(size=(2, model.nv))))
    found, o = saha.study(model, q, v, tau), saha.denoc(model, q)
    yield identity("Eq. 12", "tau^ = U^-1 phi, a tree, every joint", found.tau_hat, found.U_inverse @ found.phi)
    yield identity("Eq. 13", "tau~ = D^-1 tau^, likewise", found.tau_tilde * found.m_hat, found.tau_hat)
    expected = dynamics.forward_dynamics(model, q, v, tau, method="articulated")
    yield identity("Eqs 14, 15", "U^-T tau~ are the accelerations", found.qdd, expected)
    moved, last = (o.G @ o.S @ found.qdd).reshape(-1, 6), model.v_start[1:] - 1
    yield identity("Eq. 15", "mu = N_l N_d qdd", found.mu[last], moved)
    parent, first = model.parent, model.v_start[:-1]
    before = np.array([o.Ad_inv[i] @ moved[parent[i]] if parent[i] >= 0 else np.zeros(6) for i in range(o.n)])
    free = found.M_hat - np.array([sum(np.outer(found.psi_hat[k], found.psi[k]) for k in range(a, b + 1))
                                   for a, b in zip(first, last)])  # fmt: skip
    forces = (o.G.T @ o.J @ moved.ravel()).reshape(-1, 6)
    wrenches = np.einsum("nij,nj->ni", free, before) + found.eta[first]
    yield identity("Eqs 26-28", "the wrench in a joint is M^_ii B mu + eta", wrenches, forces)


# Table I ----------------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """M and A as polynomials in n, highest power first, and the printed M and A for n = 6 and n = 10."""

    multiplications: tuple[Fraction, ...]
    additions: tuple[Fraction, ...]
    printed: dict[int, tuple[int, int]]

    @classmethod
    def of(cls, M: Sequence[str | int], A: Sequence[str | int], printed: Mapping[str, Sequence[int]]) -> Cost:
        """From a row of the table, with fractions as "1/6"."""
        counts = {int(n): (count[0], count[1]) for n, count in printed.items()}
        return cls(tuple(map(Fraction, M)), tuple(map(Fraction, A)), counts)

    def at(self, n: int) -> tuple[int, int]:
        """(M, A) of the formulas."""
        values = [sum(c * n**k for k, c in enumerate(reversed(p))) for p in (self.multiplications, self.additions)]
        return int(values[0]), int(values[1])


PRINTED = tomllib.loads((files(__package__) / "saha2001.toml").read_text(encoding="utf-8"))
TABLE_I = {author: Cost.of(**row) for author, row in PRINTED["Table I"].items()}
# The costs in braces of section 3: for each step M and A, each as (a, b) for a n + b.
ITEMS = PRINTED["items"]
# The exact cost of the code of `saha_udut`, from n = 3 on: (a, b) for a n + b; n of the M are reciprocals.
COUNTED = Cost.of((193, -309), (187, -329), {})


def _costs() -> Iterator[Row]:
    for author, cost in TABLE_I.items():
        for n, printed in cost.printed.items():
            formula = cost.at(n)
            place, what = "Table I", f"{author}, n = {n}: the formulas"
            verdict = MISPRINT if (author, n) == ("Walker & Orin", 6) else ALONE
            holds = (formula == printed) == (verdict == ALONE)
            yield Row(place, what, _cost(*printed), _cost(*formula), _apart(formula, printed), verdict, holds)
    slope, start = (sum(item[0][k] for item in ITEMS.values()) for k in range(2))
    added, first = (sum(item[1][k] for item in ITEMS.values()) for k in range(2))
    yield Row("section 3", "the sum of the items", "191n - 284 M, 187n - 325 A",
              f"{slope}n - {-start} M, {added}n - {-first} A", "n M", MISPRINT,
              (slope, start, added, first) == (192, -284, 187, -325))  # fmt: skip
    for n in (6, 10):
        count = saha.operations(n)
        found = count.mul + count.div, count.add
        printed = TABLE_I["Saha"].printed[n]
        yield Row("section 3", f"as coded to the letter, n = {n}", "-",
                  f"{_cost(*found)}, of these {count.div} reciprocals", _apart(found, printed), OURS,
                  found == COUNTED.at(n))  # fmt: skip
    ours = Operations.of(unrolled(articulated.mass_solve, zoo.general_arm(6), ("q", "b")))
    found = ours.mul + ours.div, ours.add
    printed = TABLE_I["Saha"].printed[6]
    yield Row("Table I", "as compiled, n = 6", "-", _cost(*found), _apart(found, printed), OURS, found < printed)
    crossing = next(n for n in range(2, 40) if TABLE_I["Saha"].at(n)[0] < TABLE_I["Walker & Orin"].at(n)[0])
    yield Row("section 1", "fewer M than the O(n^3) scheme", "n >= 10", f"n >= {crossing}", str(crossing - 10), ALONE,
              crossing == 10)  # fmt: skip


def _cost(M: int, A: int) -> str:
    return f"{M} M {A} A"


def _apart(found: tuple[int, int], printed: tuple[int, int]) -> str:
    M, A = (a - b for a, b in zip(found, printed))
    return "0" if M == A == 0 else f"{M:+d} M {A:+d} A to the table"


# Section 1: the steps of integrators ------------------------------------------------------------------------


ACCELERATIONS = ("udut", "articulated", "composite")
TOLERANCES = (1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12)
LIGHT = 1e-4  # mass of a link relative to that of the last
LINKS, STRAIGHT, BENT, TIP_DURATION = 6, 1e-3, 0.7, 0.05
FEWER = 3.0  # times fewer steps, where the claim holds


class StepCounts(NamedTuple):
    accepted: int
    rejected: int

    def __str__(self) -> str:
        return f"{self.accepted} ({self.rejected})"


def heavy_tip(light: float = LIGHT, n: int = LINKS) -> Model:
    """A planar arm one metre long in which each link has `light` times the mass of the last."""
    length = 1.0 / n
    mass = np.append(np.full(n - 1, light), 1.0)
    across = length**2 / 12 + 1e-4
    return Model.chain(
        "revolute", n=n, p=[(0.0, 0.0, 0.0), *[(length, 0.0, 0.0)] * (n - 1)], mass=mass, com=(length / 2, 0.0, 0.0),
        inertia=mass[:, None] * np.array([1e-4, across, across]), gravity=(0.0, -9.81, 0.0), name="heavy tip",
    )  # fmt: skip


def steps(model: Model, q0: ArrayLike, duration: float, dynamics: str, tolerance: float, method: str) -> StepCounts:
    """The steps of an explicit Runge-Kutta pair that were accepted and rejected."""
    options: dict[str, Any] = {"rtol": tolerance, "atol": 1e-3 * tolerance, "dynamics": dynamics}
    simulation = Simulation(model, q0, method=method, **options)
    stepper: Any = simulation.stepper
    before = stepper.evaluations
    accepted = len(simulation.run(duration)) - 1
    attempts = (stepper.evaluations - before) // (len(stepper.stages.Y) - stepper.stages.first)
    return StepCounts(accepted, attempts - accepted)


@cache
def tip_steps(dynamics: str, tolerance: float, light: float = LIGHT, angle: float = STRAIGHT) -> StepCounts:
    """The steps of an arm with a heavy tip that falls from rest with all joints at one angle."""
    return steps(heavy_tip(light), np.full(LINKS, angle), TIP_DURATION, dynamics, tolerance, "dop853")


def _steps_taken() -> Iterator[Row]:
    claim = "fewer steps by O(n)"
    for name, start in STARTS.items():
        found = {method: steps(zoo.get(name), start, 10.0, method, 1e-6, "rkf45") for method in ACCELERATIONS}
        same = len({x.accepted for x in found.values()}) == 1
        what = f"steps (rejected), free fall of {name}, tolerance 1e-6"
        yield Row("section 1", what, claim, _words(found), "none", CONFLICTS, same)
    for light, angle, tolerance in ((LIGHT, STRAIGHT, 1e-6), (LIGHT, STRAIGHT, 1e-11), (LIGHT, BENT, 1e-11),
                                    (1.0, STRAIGHT, 1e-11)):  # fmt: skip
        found = {method: tip_steps(method, tolerance, light, angle) for method in ACCELERATIONS}
        ratio = found["composite"].accepted / found["udut"].accepted
        shows = ratio >= FEWER
        verdict = AGREES if tolerance < 1e-9 and light < 1 else CONFLICTS
        what = f"the same, tip {1 / light:.0e} times heavier, angles of {angle:g} rad, tolerance {tolerance:g}"
        yield Row("section 1", what, claim, _words(found), f"{ratio:.1f} times", verdict, shows == (verdict == AGREES))


def _words(found: dict[str, StepCounts]) -> str:
    return ", ".join(f"{method} {count}" for method, count in found.items())


def _figure_of_steps(path: Path) -> Path:
    """Steps over the tolerance, by method."""
    counts = {method: np.array([sum(tip_steps(method, x)) for x in TOLERANCES]) for method in ACCELERATIONS}
    with panels(path) as (axes,):
        for (method, count), (colour, dashes), marker in zip(counts.items(), lines(), MARKERS):
            axes.loglog(TOLERANCES, count, color=colour, linestyle=dashes, marker=marker, label=method)
        axes.invert_xaxis()
        axes.set(title="Steps tried, arm with a tip 1e4 times heavier", xlabel="tolerance", ylabel="steps")
        axes.legend(title="accelerations by")
    write_data(path, {"tolerance": TOLERANCES, **counts})
    return path


# Section 4: the three-DoF planar arm ------------------------------------------------------------------------


PLANAR_TIMES = np.linspace(0.0, 2.5, 26)  # later, both motions amplify any difference tenfold every 0.3 s
TIGHT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
# Two integrations to 1e-12, after the growth of their differences.
MATCH = 1e-7
LENGTHS, MASSES, GRAVITY = np.array([0.5, 0.4, 0.3]), np.array([3.0, 2.0, 1.0]), 9.81
MOMENTS = np.array([0.063175, 0.027117, 0.007725])  # solid cylinders, about a transverse axis


def explicit_accelerations(theta: Array, rate: Array, tau: Array) -> Array:
    """The joint accelerations by the explicit equations, any numbers."""
    lengths, masses, moments = map(arithmetic.given, (LENGTHS, MASSES, MOMENTS))
    centres, beyond = lengths / 2, np.array([masses[k + 1 :].sum() for k in range(3)])
    h = masses * centres + lengths * beyond
    a = np.triu(np.outer(lengths, h), 1)
    a = a + a.T + np.diag(moments + masses * centres**2 + lengths**2 * beyond)
    phi, turning = np.cumsum(theta), np.cumsum(rate)
    apart = phi[:, None] - phi
    forces = tau - np.append(tau[1:], 0.0) - (a * sin(apart)) @ turning**2 - GRAVITY * h * cos(phi)
    return np.diff(solve(a * cos(apart), forces), prepend=0.0)


def explicit_motion(law: Callable[[float], Array], times: Array) -> Array:
    """theta at the times, from rest at theta = 0, with the torques law(t)."""

    def rate(t: float, y: Array) -> Array:
        return np.concatenate([y[3:], explicit_accelerations(y[:3], y[3:], law(t))])

    run = solve_ivp(rate, (0.0, times[-1]), np.zeros(6), method="DOP853", t_eval=times, **TIGHT)
    return run.y[:3].T


def _explicit_arm() -> Iterator[Row]:
    q, v, tau = arithmetic.given(np.random.default_rng(0).uniform(-3, 3, (3, 100, 3)))
    explicit = np.array([explicit_accelerations(*state) for state in zip(q, v, tau)])
    found = dynamics.forward_dynamics(zoo.planar3(), q, v, tau, method="udut")
    yield identity("4, three-DoF arm", "accelerations by UDU', 100 states, and explicitly", found, explicit)


def _planar_arm() -> Iterator[Row]:
    model = zoo.planar3()
    path = Cycloid(np.zeros(3), np.full(3, np.pi), 10.0)

    def follow(t: float, *state: Array) -> Array:
        """The torques of the motion of Eq. 18, from the start to pi."""
        return dynamics.inverse_dynamics(model, *path(t))

    for name, law, forces in (("free fall", lambda t: np.zeros(3), ()), ("forced", follow, follow)):
        options: dict[str, Any] = {"method": "dop853", "dynamics": "udut", "dt": PLANAR_TIMES[1], **TIGHT}
        run = simulate(model, np.zeros(3), duration=PLANAR_TIMES[-1], forces=forces, **options)
        apart = float(np.abs(run.q - explicit_motion(law, PLANAR_TIMES)).max())
        yield Row("4, three-DoF arm", f"{name}, 2.5 s by UDU', and explicitly", "exactly match", "match",
                  f"{apart:.0e} rad", AGREES, apart <= MATCH)  # fmt: skip


# Section 4: the industrial arms -----------------------------------------------------------------------------


def printed_mass_matrix(rows: Array, q: Array, prismatic: Sequence[int] = ()) -> Array:
    """M of the printed links (a, b, alpha in degrees, m, r, I), from the velocities of their mass centres."""
    T, axes, origins, centres, turns = np.eye(4), [], [], [], []
    for k, (a, b, alpha, _, rx, ry, rz, *_) in enumerate(rows):
        axes.append(T[:3, 2])
        origins.append(T[:3, 3])
        theta, b = (0.0, b + q[k]) if k in prismatic else (q[k], b)
        (c, s), (ca, sa) = ((cos(x), sin(x)) for x in (theta, arithmetic.radians(alpha)))
        T = T @ [[c, -s * ca, s * sa, a * c], [s, c * ca, -c * sa, a * s], [0, sa, ca, b], [0, 0, 0, 1]]
        centres.append(T[:3, 3] - T[:3, :3] @ [rx, ry, rz])  # r runs from the mass centre to the origin of frame i + 1
        turns.append(T[:3, :3])
    M = np.zeros((len(q), len(q)), q.dtype)
    for i, (row, centre, R) in enumerate(zip(rows, centres, turns)):
        J, W = np.zeros((2, 3, len(q)), q.dtype)
        for k in range(i + 1):
            J[:, k], W[:, k] = (axes[k], 0) if k in prismatic else (np.cross(axes[k], centre - origins[k]), axes[k])
        M += row[3] * J.T @ J + W.T @ R @ np.diag(np.abs(row[7:])) @ R.T @ W
    return M


def _table_2() -> Iterator[Row]:
    """The zoo's arms have the printed data, with the absolute values of the PUMA's moments."""
    for name, prismatic in (("stanford", (2,)), ("puma_saha", ())):
        q = arithmetic.given(np.random.default_rng(4).uniform(-1, 1, (3, 6)))
        expected = [printed_mass_matrix(np.array(PRINTED["links"][name]), x, prismatic) for x in q]
        found = dynamics.mass_matrix(zoo.get(name), q)
        place = f"Table II({PARTS_OF_FIGURES[name]})"
        yield identity(place, f"M of the printed links, {TITLES[name]}", found, expected)


def _data() -> Iterator[Row]:
    """Eq. 18 and signs of Table II."""
    start, goal = STARTS["stanford"], GOALS["stanford"]
    printed = np.full(6, (2 * np.pi - np.sin(2 * np.pi)) / 2)
    law, general = "theta = (2 pi t/T - sin(2 pi t/T)) / 2", "theta(0) + (theta(T) - theta(0)) / pi times that"
    yield misprint("Eq. 18", law, general, printed, Cycloid(start, goal, T)(T)[0], goal)
    model = zoo.puma_saha()
    try:
        moments = np.array(PRINTED["links"]["puma_saha"])[:, 7:]
        Model.from_dh(convention="standard", n=6, mass=model.mass, inertia=moments)
        refused = ""
    except ModelError as error:
        refused = str(error)
    yield Row("Table II(ii)", "moments of inertia, PUMA, kg m^2", "I_yy = -1.612, ...", "1.612, ...: absolute values",
              "no body has negative ones: refused by name", MISPRINT, "link1" in refused)  # fmt: skip


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
    """The time when the forced arm leaves its path, by one threshold for both arms, and the agreement of
    integrators."""
    place, text = f"Fig. 6({PARTS_OF_FIGURES[name]})", DEPARTURES[name]
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


def _forced_stanford() -> Iterator[Row]:
    yield from _forced("stanford")


def _forced_puma() -> Iterator[Row]:
    yield from _forced("puma_saha")


PARTS = (
    _decomposition, _three_steps, _any_chain, _costs, _steps_taken, _explicit_arm, _planar_arm, _table_2, _data,
    _free_falls, _forced_stanford, _forced_puma,
)  # fmt: skip
IDENTITIES = (_decomposition, _three_steps, _any_chain, _explicit_arm, _table_2)


def figures(folder: Path) -> Iterator[Path]:
    yield _figure_of_steps(folder / "saha2001_section1_steps.png")
    for name in STARTS:
        yield from _figures_of(name, folder)
    path = folder / "saha2001_fig7_stanford_end_effector.png"
    model = zoo.stanford()
    curves = {"RKF": forced("stanford").q, "desired": wanted("stanford")}
    tips = {key: dynamics.body_poses(model, q)[:, -1, :3, 3] for key, q in curves.items()}
    labels, heading = ["$X_1$", "$Y_1$", "$Z_1$"], "End effector of the Stanford arm, forced motion (Fig. 7)"
    series = {key: (TIMES, x) for key, x in tips.items()}
    small_multiples(series, labels, ["position, m"] * 3, heading, path, {"figure": path.stem})
    series_data(path, TIMES, tips, ["X1", "Y1", "Z1"])
    yield path


def _figures_of(name: str, folder: Path) -> Iterator[Path]:
    """Figures 4 to 6 of one arm."""
    model, part, title = zoo.get(name), PARTS_OF_FIGURES[name], TITLES[name]
    labels, positions = [f"joint {k + 1}" for k in range(model.nv)], axis_labels(model, "q")
    run = forced(name)

    def draw(number: int, what: str, series: dict[str, Array], ylabels: list[str], heading: str, until=0.0) -> Path:
        path = folder / f"saha2001_fig{number}_{name}_{what}.png"
        figure = small_multiples({key: (TIMES, x) for key, x in series.items()}, labels, ylabels, heading)
        for axes in figure.axes if until else ():
            axes.axvline(until, color=GREY, lw=0.8, ls=":")
        with style():
            save(figure, path, {"figure": path.stem})
        series_data(path, TIMES, series, labels)
        return path

    fall = {"": free_fall(name).at(TIMES)[0]}
    yield draw(4, "free_fall", fall, positions, f"Free fall of the {title} (Saha 2001, Fig. 4({part}))")
    heading = f"Forces and torques for the cycloidal motion of the {title} (Fig. 5({part}))"
    yield draw(5, "torques", {"": run.tau}, axis_labels(model, "tau"), heading)
    series = {"RKF": run.q, "ABM": forced(name, "abm").q, "desired": wanted(name)}
    heading = f"Forced motion of the {title}, tolerance 1e-6 (Fig. 6({part})); dotted: RKF and ABM part by {VISIBLE:g}"
    yield draw(6, "forced", series, positions, heading, agreement(name))


# The runs ----------------------------------------------------------------------------------------------------


@cache
def free_fall(name: str) -> Trajectory:
    """Free fall from the paper's initial state: at rest, no torques."""
    options: dict[str, Any] = {"method": "rkf45", "rtol": 1e-10, "atol": 1e-12, "dynamics": "udut"}
    return simulate(zoo.get(name), STARTS[name], duration=T, **options)


def first_crossing() -> float:
    """The time in seconds when theta_2 of the falling Stanford arm is first zero."""
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
    """The arm driven by the tabulated torques of the cycloidal motion, without feedback."""
    model: Model = zoo.get(name)
    options: dict[str, Any] = {"method": method, "rtol": tolerance, "atol": tolerance, "dt": TABULATED}
    forces = Table.following(model, reference(name), TIMES)
    return simulate(model, STARTS[name], duration=T, forces=forces, dynamics="udut", **options)


def departure(name: str, method: str = "rkf45", tolerance: float = 1e-6) -> float:
    """The first time when a joint is VISIBLE away from its path; infinite if never."""
    return _first(np.abs(forced(name, method, tolerance).q - wanted(name)).max(axis=1), VISIBLE)


def agreement(name: str) -> float:
    """The time until which the runs with RKF and ABM agree to VISIBLE."""
    return _first(_between(name), VISIBLE)


def tenfold(name: str) -> float:
    """The time in which the difference between the runs with RKF and ABM grows tenfold, around VISIBLE, in seconds."""
    return _first(_between(name), 10 * VISIBLE) - _first(_between(name), VISIBLE)


def sides_of(name: str, t: float) -> tuple[float, float]:
    """The deviations of RKF and ABM from the path at a time, in the joint in which they differ most."""
    row = min(round(t / TABULATED), len(TIMES) - 1)
    off = [forced(name, method).q[row] - wanted(name)[row] for method in ("rkf45", "abm")]
    joint = int(np.abs(off[0] - off[1]).argmax())
    return float(off[0][joint]), float(off[1][joint])


def _between(name: str) -> Array:
    return np.abs(forced(name).q - forced(name, "abm").q).max(axis=1)


def _first(x: Array, above: float) -> float:
    late = np.flatnonzero(x > above)
    return float(TIMES[late[0]]) if late.size else np.inf
