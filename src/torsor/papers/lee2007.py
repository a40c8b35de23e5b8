"""K. Lee, Y. Wang, G. S. Chirikjian, O(n) mass matrix inversion for serial manipulators and polypeptide chains
using Lie derivatives, 2007: its equations, the poses of section 4, the mass matrices of the appendix and the times."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor import lie, zoo
from torsor.algorithms import fixman
from torsor.backends.cpu import compile_program
from torsor.dense import determinant, inverse, log_determinant, solve
from torsor.dynamics import functions as dynamics
from torsor.dynamics import programs
from torsor.dynamics.fixman import parameters
from torsor.dynamics.fixman.points import planar_derivatives
from torsor.dynamics.fixman.rigid import relax, relax_dh
from torsor.dynamics.fixman.solve import Relaxed
from torsor.linalg import atan2, cos, sin, sqrt
from torsor.model import Model
from torsor.papers import arithmetic
from torsor.papers.figures import exponent, time_against_n
from torsor.papers.rows import AGREES, MISPRINT, OURS, Row, identity, misprint, ours, relative, table, timed
from torsor.zoo.lee2007 import dh_columns, hold_bodies

Array = NDArray[Any]

# Half a unit of the last printed digit; M_66 of the PUMA is an exact tie.
HALF_DIGIT = 5.001e-5
HALF_OF_THREE = 5e-4 + 1e-9  # of three decimals
DIFFERENCES = 1e-10  # relative: Lie derivatives by differences on the group
PLACES = {"puma_lee": "4.2, PUMA 560", "polypeptide": "4.3, polypeptide"}
APPENDIX = {"puma_lee": "Appendix, PUMA 560", "polypeptide": "Appendix, polypeptide"}
# The diagonals of M of the chain described in the text (Table II's angles, full masses and inertias).
FAITHFUL = [1787.13, 737.81, 512.59, 270.15, 143.80, 109.34, 31.97]
LONG, DENSE = (250, 500, 1000, 2000), (100, 400, 1600)  # numbers of torsions for measuring the growth of the time
COUNTED = (300, 600, 1200, 2400)  # and the growth of operations: whole periods of three torsions


def printed_tables() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "lee2007.toml").read_text(encoding="utf-8"))


def _calculus() -> Iterator[Row]:
    """Section 3: Jacobians and Lie derivatives on SO(3) and SE(3)."""
    angles = arithmetic.given([0.3, 0.9, -0.4])
    A, J = lie.euler_zxz(angles), lie.euler_zxz_jacobian(angles)
    by_steps = arithmetic.lie_derivative(lambda R: R, A)
    yield identity("Eqs 10-12", "omega = J dq/dt, ZXZ angles", _dual(A, by_steps) @ J, J, DIFFERENCES)

    def zxz(R: Array) -> Array:
        across = sqrt(R[0, 2] ** 2 + R[1, 2] ** 2)
        return np.array([atan2(R[0, 2], -R[1, 2]), atan2(across, R[2, 2]), atan2(R[2, 0], R[2, 1])])

    found = arithmetic.lie_derivative(zxz, A)
    yield identity("Eq. 13, J^-1 after it", "d(angles)/dxi = J^-1", found, inverse(J), DIFFERENCES)
    x = arithmetic.given([0.2, 0.9, -0.7, 0.3, 0.5, -0.4])
    T, J6 = parameters.transform("C", x), parameters.jacobian("C", x)
    dt = arithmetic.step(2, 1e-9)
    yield identity(
        "Eq. 14", f"exp(X dt) = 1 + X dt, dt = {float(dt):.0e}", lie.exp_se3(dt * x), np.eye(4) + dt * lie.hat(x)
    )
    columns = arithmetic.jacobian(lambda y: parameters.transform("C", y), x)
    body = np.stack([lie.vee(lie.inverse(T) @ columns[..., i]) for i in range(6)], axis=-1)
    yield identity("Eq. 15", "J from dT/dq_i", body, J6)
    along = arithmetic.lie_derivative(lambda X: X, T)
    directions = np.stack([T @ E for E in lie.hat(np.eye(6))], axis=-1)
    yield identity("Eq. 16", "dT/dxi^i = T E_i", along, directions, DIFFERENCES)
    found = arithmetic.lie_derivative(lambda X: parameters.coordinates("C", X), T)
    yield identity("Eqs 17, 18", "dq/dxi = J^-1", found, inverse(J6), DIFFERENCES)


def _dual(A: Array, by_steps: Array) -> Array:
    """The columns (A^T dA/dxi^i)^vee, which are the identity."""
    return np.stack([lie.vee(A.T @ by_steps[..., i]) for i in range(3)], axis=-1)


def _coordinates() -> Iterator[Row]:
    """Section 4.1: Denavit-Hartenberg coordinates."""
    rng = np.random.default_rng(0)
    x = arithmetic.given(rng.uniform(0.2, 0.7, (20, 6)))
    plain = x.copy()
    plain[:, [parameters.ALPHA, parameters.A]] = 0
    beta, gamma, b, c = (plain[:, k] for k in (parameters.BETA, parameters.GAMMA, parameters.B, parameters.C))
    T = _equation_23(beta, gamma, b, c)
    if arithmetic.doubles():  # the placements of a Model are doubles
        yield identity("Eq. 23", "T of two screws, Model.from_dh", _dh_transforms(beta, gamma, b, c), T)
    for kind, number in (("A", 24), ("B", 25), ("C", 26)):
        yield identity(f"Eq. {number}", f"kind {kind}, a = alpha = 0, is Eq. 23", parameters.transform(kind, plain), T)
        determinants = np.abs(determinant(parameters.jacobian(kind, x)))
        yield identity("4.1", f"det J of kind {kind}", determinants, parameters.determinant(kind, x))
    T = parameters.transform("C", x)
    yield identity("Eq. 27", "the coordinates of T", parameters.coordinates("C", T), x)
    Q0, Q1 = (lie.exp_se3(arithmetic.given([0, 0, 0, *rng.uniform(-1, 1, 3)])) for _ in range(2))
    dT = parameters.transform_derivatives(T, Q0, Q1)
    own = arithmetic.lie_derivative(lambda X: X @ lie.inverse(Q1), T @ Q1)
    other = arithmetic.lie_derivative(lambda X: Q0 @ lie.inverse(X) @ T, np.broadcast_to(Q0, T.shape))
    both = np.moveaxis(np.stack([other, own]), -1, -3)
    yield identity("Eqs 21, 22", "dT/dxi by both neighbours", dT, both, DIFFERENCES)
    by_equation = parameters.lie_derivatives(T[..., None, :, :], dT).swapaxes(-1, -2)
    before = np.broadcast_to(Q0, T.shape)
    by_steps = np.stack([
        arithmetic.lie_derivative(lambda X: parameters.coordinates("C", Q0 @ lie.inverse(X) @ T), before),
        arithmetic.lie_derivative(lambda X: parameters.coordinates("C", X @ lie.inverse(Q1)), T @ Q1),
    ])  # fmt: skip
    yield identity("Eq. 28", "all six Lie derivatives", by_equation, by_steps, DIFFERENCES)


def _dh_transforms(beta: Array, gamma: Array, b: Array, c: Array) -> Array:
    """T_{k-1,k} of a Model with these Denavit-Hartenberg parameters."""
    arm = Model.from_dh(a=b, alpha=beta, d=c, theta=gamma, mass=1.0, inertia=(1.0, 1.0, 1.0), n=len(b))
    poses = dynamics.body_poses(arm, np.zeros(arm.nq))
    return lie.compose(lie.inverse(np.concatenate([np.eye(4)[None], poses[:-1]])), poses)


def _equation_23(beta: Array, gamma: Array, b: Array, c: Array) -> Array:
    cb, sb, cg, sg = cos(beta), sin(beta), cos(gamma), sin(gamma)
    zero, one = np.zeros_like(cb), np.ones_like(cb)
    T = [[cg, -sg, zero, b], [sg * cb, cg * cb, -sb, -c * sb], [sg * sb, cg * sb, cb, c * cb], [zero, zero, zero, one]]
    return np.moveaxis(np.array(T), -1, 0)


def _soft_and_hard() -> Iterator[Row]:
    """Sections 2 and 3.6 on a chain of the paper: the blocks of H, and results computed from them."""
    chain, free = zoo.polypeptide(), relaxed("polypeptide")
    # the placements of a Model are doubles: with mpmath, M is that of the kinetic energy
    M = dynamics.mass_matrix(chain, chain.neutral()) if arithmetic.doubles() else _energy_matrix()
    H11, H12, H22 = free.dense()
    b = arithmetic.given(np.arange(1.0, 8.0))
    schur = H11 - H12 @ solve(H22, H12.T)
    yield identity("Eqs 1, 6", "M^-1 = H11 - H12 H22^-1 H12'", schur, inverse(M))
    yield identity("Eqs 5, 7", "x = M^-1 b, steps I-V", free.solve(b), solve(M, b))
    H = np.block([[H11, H12], [H12.T, H22]])
    yield identity("Eqs 2-4, 8", "G H = 1, G11 = M", inverse(H)[:7, :7], M, 1e-9)
    inverse_of_H = inverse(free.inverse())
    yield identity("Eqs 9, 19, 20", "M from the kinetic energy of free bodies", _energy_matrix(), inverse_of_H, 1e-9)
    value = log_determinant(M)
    yield identity("2.2, Fixman's theorem", "log det M = log det G + log det H22", free.log_det(), value)


def _energy_matrix() -> Array:
    """M of the polypeptide from K = sum (m x' x + omega' I omega) / 2, velocities by differences of the poses."""
    data = dh_table("polypeptide")

    def centres(q: Array) -> Array:
        x = data["x"].astype(q.dtype)
        x[:, parameters.BETA] += q
        return _mass_centres(x, data["com"])

    rest = arithmetic.given(np.zeros(7))
    pose = centres(rest)
    M = np.zeros((7, 7), rest.dtype)
    rates = np.moveaxis(arithmetic.jacobian(centres, rest), -1, 0)
    for k in range(7):
        R = pose[k, :, :3]
        omega = np.array([lie.vee(R.T @ rate[k, :, :3]) for rate in rates])
        v = rates[:, k, :, 3]
        M += data["mass"][k] * v @ v.T + omega @ data["inertia"][k] @ omega.T
    return M


def _puma() -> Iterator[Row]:
    yield from _of_chain("puma_lee")


def _polypeptide() -> Iterator[Row]:
    yield from _of_chain("polypeptide")


def _of_chain(name: str) -> Iterator[Row]:
    tables = printed_tables()[name]
    yield from _poses(name, np.array(tables["poses"]))
    yield from _matrices(name, tables)


def _poses(name: str, printed: Array) -> Iterator[Row]:
    """The printed poses, to their own rounding; the entries that differ by more are listed."""
    place, computed = PLACES[name], mass_centres(name)
    apart = np.abs(printed - computed)
    late = np.argwhere(apart > HALF_OF_THREE)
    met = apart <= HALF_OF_THREE
    yield Row(place, "T_k^c, to half a unit", f"{apart.size} entries", f"{met.sum()} met", f"{apart[met].max():.1e}",
              AGREES, len(late) <= 4 and apart.max() < 5.4e-4)  # fmt: skip
    if len(late):
        where = [f"T_{k + 1}^c({i + 1},{j + 1})" for k, i, j in late]
        entries = [tuple(place) for place in late]
        twice = [np.sign(computed[e]) * _half_up(_half_up(abs(computed[e]), 4), 3) for e in entries]
        holds = bool(np.allclose(twice, [printed[e] for e in entries], atol=1e-9))
        words = ["  ".join(f"{x[e]:.{digits}f}" for e in entries) for x, digits in ((printed, 3), (computed, 5))]
        what = "the others, rounded twice: " + ", ".join(where)
        yield Row(place, what, words[0], words[1], f"{apart.max():.1e}", MISPRINT, holds)


def _half_up(x: float, decimals: int) -> float:
    return float(np.floor(x * 10**decimals + 0.5 + 1e-9) / 10**decimals)


def _matrices(name: str, tables: dict[str, Any]) -> Iterator[Row]:
    model, where = zoo.get(name), APPENDIX[name]
    q, printed_inverse = model.neutral(), np.array(tables["inverse"])
    digits = np.select([abs(printed_inverse) >= 1000, abs(printed_inverse) >= 100], [0.05, 0.005], 5e-5)
    fitted = " (the link data, not printed, are fitted to it)" if name == "puma_lee" else ""
    yield table(where, f"M{fitted}", tables["mass_matrix"], dynamics.mass_matrix(model, q), HALF_DIGIT)
    yield table(where, "M^-1, articulated sweeps", printed_inverse, dynamics.inverse_mass_matrix(model, q), digits)
    yield table(
        where, "M^-1, method fixman", printed_inverse, dynamics.inverse_mass_matrix(model, q, method="fixman"), digits
    )
    schur = relaxed(name).inverse()
    yield table(where, "M^-1 = H11 - H12 H22^-1 H12'", printed_inverse, schur, digits)
    yield table(where, "M from the blocks of H", tables["mass_matrix"], inverse(schur), HALF_DIGIT)


def _misprints() -> Iterator[Row]:
    """Statements of the text, compared with the printed matrices."""
    printed = printed_tables()
    rest = np.zeros(6)
    M = np.array(printed["puma_lee"]["mass_matrix"])
    by = {soft: dynamics.mass_matrix(zoo.puma_lee(soft), rest) for soft in ("gamma", "beta")}
    yield misprint("4.2", "gamma_k soft", "beta_k soft", by["gamma"], by["beta"], M, HALF_DIGIT / np.abs(M).max())
    M = np.array(printed["polypeptide"]["mass_matrix"])
    within = HALF_DIGIT / np.abs(M).max()
    right = inverse(relaxed("polypeptide").inverse())
    for k, angle in ((3, 289.5), (6, 70.5)):
        data = dh_table("polypeptide")
        corrected = np.degrees(data["x"][k, parameters.GAMMA])
        data["x"][k, parameters.GAMMA] = np.radians(angle)
        wrong = inverse(relax_dh(soft="beta", **data).inverse())
        printed_form, form = (f"gamma_{k + 1} = {x:.1f}" for x in (angle, corrected))
        yield misprint("Table II", printed_form, form, wrong, right, M, within)
    data = dh_table("polypeptide")
    data["mass"][[0, 3, 6]] = 12.0107 * 2 + 4 * 1.00794
    wrong = inverse(relax_dh(soft="beta", **data).inverse())
    yield misprint("4.3", "a C_alpha body weighs C + CH3 + H", "C + 3 H = 15.03452 amu", wrong, right, M, within)
    H11, H12, H22 = relaxed("polypeptide").dense()
    squared, once = (H11 - H12 @ np.linalg.matrix_power(inverse(H22), k) @ H12.T for k in (2, 1))
    printed_inverse = np.array(printed["polypeptide"]["inverse"])
    yield misprint(
        "Appendix", "H11 - H12 H22^-2 H12'", "H11 - H12 H22^-1 H12'", squared, once, printed_inverse, 5e-5 / 0.114
    )
    n = 8
    counts = _derivative_counts(n)
    yield Row("2.2", f"nonzero d theta/dx and dL/dx, n = {n}", f"3n - 2 = {3 * n - 2}, 2n - 1 = {2 * n - 1}",
              f"3n - 3 = {counts[0]}, {counts[1]}", "one", MISPRINT,
              counts == (3 * n - 3, 2 * n - 1))  # fmt: skip


def _derivative_counts(n: int) -> tuple[int, int]:
    """The numbers of nonzero blocks d theta_i/dx_j and dL_i/dx_j of a planar chain of n masses."""
    C = planar_derivatives(np.linspace(0.3, 1.2, n), np.ones(n))
    inside = [(i, k) for i in range(n) for k in range(3) if i - k >= 0]
    return tuple(sum(bool(np.any(C[k, i, row])) for i, k in inside) for row in range(2))  # type: ignore[return-value]


def _not_printed() -> Iterator[Row]:
    model = zoo.polypeptide_faithful()
    faithful = np.diag(dynamics.mass_matrix(model, np.zeros(7)))
    yield ours("4.3, the chain of the text", "diag M, amu A^2", faithful, FAITHFUL, 0.005)
    b = np.ones(7)
    braced = dynamics.mass_solve(model, np.zeros(7), b, method="fixman")
    dense = solve(dynamics.mass_matrix(model, np.zeros(7)), b)
    yield Row("4.3, the chain of the text", "M^-1 b by relaxed constraints, rods C'=O and N-H", "-", "equal",
              f"{relative(braced, dense):.0e}", OURS, relative(braced, dense) < 1e-11)  # fmt: skip
    five = five_soft()
    chain = zoo.polypeptide()
    stiff = hold_bodies(chain, np.isin(np.arange(7), (2, 5)), np.radians(120.0), name="five soft")
    M = inverse(five.inverse())
    apart = relative(M, dynamics.mass_matrix(stiff, np.zeros(5)))
    words = f"diag M  {'  '.join(f'{x:.4g}' for x in np.diag(M))}"
    yield Row("4.3, beta_3 = beta_6 = 180 deg", "five soft variables", "announced, not printed", words,
              f"{apart:.0e} to a rigid model", OURS, apart < 1e-10)  # fmt: skip


# Figure 3 ----------------------------------------------------------------------------------------------------


def case(n: int) -> tuple[Model, Array, Array]:
    """The polypeptide of n torsions in a state, and b."""
    model = zoo.polypeptide(n)
    return model, model.random_configuration(n), np.ones(n)


def dense_solve(n: int) -> Callable[[], Array]:
    """M^-1 b by the inverse of M: the paper's dashed line."""
    model, q, b = case(n)
    mass_matrix = programs.compile(model, dynamics.mass_matrix)
    return lambda: inverse(mass_matrix(q)) @ b


def relaxed_solve(n: int) -> Callable[[], Array]:
    """The same by the blocks of H: the paper's solid line."""
    model, q, b = case(n)
    return lambda: relax(model, q).solve(b)


def compiled_solve(n: int) -> Callable[[], Array]:
    """The same with the hard variables eliminated in compiled sweeps."""
    model, *state = case(n)
    return partial(compile_program(fixman.mass_solve, model), *state)


def articulated_solve(n: int) -> Callable[[], Array]:
    model, *state = case(n)
    return partial(programs.compile(model, dynamics.mass_solve, method="articulated", specialised=False), *state)


def _operations() -> Iterator[Row]:
    """The claim of section 4.4, counted."""
    counts = [sum(compile_program(fixman.mass_solve, zoo.polypeptide(n)).operations) for n in COUNTED]
    per_period = np.diff(counts) / np.diff(COUNTED)
    words, same = f"{per_period[-1]:.1f} per torsion", bool(np.ptp(per_period) == 0)
    what = f"operations of x = M^-1 b, compiled, n = {COUNTED[0]} ... {COUNTED[-1]}"
    yield Row("4.4, Fig. 3", what, "linear", words, f"{np.ptp(per_period):.1g}", AGREES, same)


def _times() -> Iterator[Row]:
    contenders = ("blocks of H", relaxed_solve, LONG), ("compiled sweeps", compiled_solve, LONG)
    for what, solver, lengths in (*contenders, ("inverse of M", dense_solve, DENSE)):
        p = exponent(solver, lengths)
        claim = "cubic" if solver is dense_solve else "linear"
        what = f"time of x = M^-1 b ~ n^p, {what}, n = {lengths[0]} ... {lengths[-1]}"
        yield timed("4.4, Fig. 3", what, claim, f"p = {p:.2f}")


IDENTITIES = (_calculus, _coordinates, _soft_and_hard)
PARTS = (_calculus, _coordinates, _soft_and_hard, _puma, _polypeptide, _misprints, _not_printed, _operations, _times)


def figures(folder: Path) -> Iterator[Path]:
    """Figure 3: times of M^-1 b on this machine; the others are drawings of frames."""
    solvers = {"inverse of M": dense_solve, "blocks of H and LAPACK": relaxed_solve,
               "relaxed, compiled": compiled_solve, "articulated sweeps": articulated_solve}  # fmt: skip
    yield time_against_n(folder / "lee2007_fig3_times.png", "Polypeptide of n torsions, all soft (Fig. 3)", solvers)


# The chains of the paper -------------------------------------------------------------------------------------


def mass_centres(name: str) -> Array:
    """T_k^c = T_{0,1} ... T_{k-1,k} Q_k without its last row, (n, 3, 4)                                  (Eq. 21)"""
    data = dh_table(name)
    return _mass_centres(data["x"], data["com"])


def _mass_centres(x: Array, com: Array) -> Array:
    pose, result = np.eye(4), []
    for coordinates, centre in zip(x, com):
        pose = pose @ parameters.transform("C", coordinates)
        result.append(np.column_stack([pose[:3, :3], pose[:3, 3] + pose[:3, :3] @ centre]))
    return np.array(result)


def dh_table(name: str) -> dict[str, Any]:
    """A chain of the zoo in the paper's form: x (n, 6) in the order of `parameters.NAMES`, mass, com, inertia."""
    columns = dh_columns(name)
    x = np.zeros((len(columns["mass"]), 6))
    x[:, parameters.BETA], x[:, parameters.GAMMA] = np.radians(columns["alpha"]), np.radians(columns["theta"])
    x[:, parameters.B], x[:, parameters.C] = columns["a"], columns["d"]
    inertia = np.array([np.diag(moments) for moments in columns["inertia"]])
    numbers = {"x": x, "mass": columns["mass"], "com": columns["com"], "inertia": inertia}
    return {name: arithmetic.given(values) for name, values in numbers.items()}


def relaxed(name: str, kind: str = "auto") -> Relaxed:
    """A chain of the paper with every beta soft, by the Lie derivatives of section 4.1."""
    return relax_dh(soft="beta", kind=kind, **dh_table(name))


def five_soft(kind: str = "auto") -> Relaxed:
    """The polypeptide with its two peptide bonds fixed at 180 degrees: beta_3 and beta_6 are hard."""
    data = dh_table("polypeptide")
    data["x"][[2, 5], parameters.BETA] = np.pi
    return relax_dh(soft=[() if k in (2, 5) else "beta" for k in range(7)], kind=kind, **data)
