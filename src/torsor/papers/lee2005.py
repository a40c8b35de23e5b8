"""K. Lee, G. S. Chirikjian, A new perspective on O(n) mass-matrix inversion for serial revolute manipulators, 2005: the
planar chain of point masses, with masses and lengths that differ. The paper prints equations and a figure of times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor import zoo
from torsor.algorithms import fixman
from torsor.backends.cpu import compile_program
from torsor.dense import inverse, log_determinant, solve
from torsor.dynamics import functions as dynamics
from torsor.dynamics import programs
from torsor.dynamics.fixman.points import PLANAR, planar_positions, relax_planar
from torsor.linalg import sin
from torsor.model.model import Model
from torsor.motion.brownian import brownian
from torsor.papers import arithmetic
from torsor.papers.figures import exponent, panels, shortest, time_against_n, write_data
from torsor.papers.rows import AGREES, OURS, Row, identity, misprint, timed
from torsor.view.style import BLUE, ORANGE

Array = NDArray[Any]

# Equation 24: the bandwidth of the blocks of H, below and above the diagonal.
BANDS = {"H^{theta theta}": (2, 2), "H^{theta L}": (2, 1), "H^{L L}": (1, 1)}
MASSES = 8
LONG = (500, 1000, 2000, 4000)  # numbers of masses for measuring the growth of the time
COUNTED = (500, 1000, 2000)  # and the growth of operations, with code in loops
SMALL, LARGE = 3, 200
CONDITION = 1e-8  # relative: cond M of that chain is 1e6, and two of its solvers invert M
REPLICAS, STEPS, RECORDS, TIME_STEP = 20_000, 600, 30, 0.005


class Chain(NamedTuple):
    mass: Array
    theta: Array
    L: Array

    @classmethod
    def random(cls, n: int) -> Chain:
        rng = np.random.default_rng(n)
        numbers = rng.uniform(0.5, 2, n), rng.uniform(-np.pi, np.pi, n), rng.uniform(0.5, 1.5, n)
        return cls(*(arithmetic.given(np.round(x * 1024) / 1024) for x in numbers))  # of few bits: products are exact

    def model(self) -> Model:
        return zoo.point_chain(len(self.mass), mass=self.mass.astype(float), length=self.L.astype(float))

    @property
    def jacobian(self) -> Array:
        """d x / d (theta, L), (2n, 2n), through Eq. 14."""
        n = len(self.mass)
        return arithmetic.jacobian(lambda y: planar_positions(y[:n], y[n:]).ravel(), np.append(self.theta, self.L))

    @property
    def G(self) -> Array:
        """The mass matrix of the free particles in (theta, L)                                       (Eqs 3, 4)"""
        J = self.jacobian
        return J.T @ (np.repeat(self.mass, 2)[:, None] * J)


def _free() -> Iterator[Row]:
    """Section II: the unconstrained chain, its blocks, and Fixman's theorem; G from Eq. 14 by complex steps."""
    chain = Chain.random(MASSES)
    n, G, J = len(chain.mass), chain.G, chain.jacobian
    back = inverse(J)
    b = arithmetic.given(np.linspace(-1, 1, n))
    model = chain.model()
    free, whole = relax_planar(*chain), relax_planar(*chain, soft=PLANAR)
    rest = arithmetic.given(np.zeros(n))
    tau = b + dynamics.bias_forces(model, chain.theta, rest)
    yield identity("Eqs 1, 2, 9", "qdd = G^aa^-1 (tau - C)", dynamics.forward_dynamics(model, chain.theta, rest, tau,
                   method="fixman"), solve(G[:n, :n], b))  # fmt: skip
    order = np.r_[np.arange(0, 2 * n, 2), np.arange(1, 2 * n, 2)]  # theta, L of one bond are neighbours there
    both = np.ix_(order, order)
    yield identity("Eqs 3-5", "H = G^-1, all coordinates soft", whole.inverse()[both], inverse(G))
    H = whole.dense()[0][both]
    expected = back @ (back.T / np.repeat(chain.mass, 2)[:, None])
    yield identity("Eqs 6, 7, 22, 23", "the blocks of H, link by link", H, expected)
    log_det = log_determinant(G[:n, :n])
    yield identity("Eq. 8", "Fixman's theorem: log det H^bb = log det G^aa - log det G", free.log_det_hard(),
                   log_det - log_determinant(G))  # fmt: skip
    yield identity("Eq. 8", "log det M by relaxed lengths", free.log_det(), log_det)
    swept = dynamics.log_det_mass_matrix(model, chain.theta, method="fixman")
    yield identity("Eq. 8", "the same, method fixman", swept, log_det)
    larger = np.block([[G[:n, :n], np.zeros((n, n))], [G[n:, :n], np.eye(n)]])
    solved = solve(larger, np.concatenate([b, np.zeros(n)]))
    H11, H12, H22 = free.dense()
    H22_inverse = inverse(H22)
    product = np.block([[np.eye(n), -H12 @ H22_inverse], [np.zeros((n, n)), H22_inverse]])
    right = np.concatenate([H11 @ b, H12.T @ b])
    yield identity("Eqs 10, 11", "the larger system, by the blocks of H", product @ right, solved)
    yield identity("Eqs 12, 13", "c - f by banded factors", free.solve(b), solved[:n])
    x = planar_positions(chain.theta, chain.L)
    d = np.diff(np.vstack([np.zeros(2), x]), axis=0)
    lengths = np.zeros((n, n, 2), x.dtype)
    for i in range(n):
        lengths[i, i] = d[i] / chain.L[i]
        if i:
            lengths[i, i - 1] = -d[i] / chain.L[i]
    yield identity("Eqs 14-18", "dL_i/dx_k = d_i' (delta_ki - delta_k,i-1) / L_i", lengths.reshape(n, -1), back[n:])


def _inverses() -> Iterator[Row]:
    chain = Chain.random(MASSES)
    for n in (2, 5, 20):
        yield _inverse(f"M^-1 by relaxed lengths, {n} masses", Chain.random(n))
    yield _inverse("the same, straight", chain._replace(theta=arithmetic.given(np.zeros(MASSES))))
    yield _inverse("the same, folded", chain._replace(theta=arithmetic.given(np.full(MASSES, np.pi))))
    yield _bonded(chain)
    for (name, (below, above)), block in zip(BANDS.items(), relax_planar(*chain).dense()):
        i, j = np.nonzero(block)
        found = int((i - j).max()), int((j - i).max())
        printed, computed = (f"{a} below and {b} above the diagonal" for a, b in ((below, above), found))
        yield Row("Eq. 24", f"{name} reaches", printed, computed, "0", AGREES, found == (below, above))


def _inverse(what: str, chain: Chain) -> Row:
    n = len(chain.mass)
    return identity("Eqs 12-25", what, relax_planar(*chain).inverse(), inverse(chain.G[:n, :n]))


def _bonded(chain: Chain) -> Row:
    """N + 1 masses floating in the plane, as in Fixman's theorem."""
    n = len(chain.mass)
    mass = np.append(3 * chain.mass[0], chain.mass)
    model = zoo.point_chain(n, mass=mass.astype(float), length=chain.L.astype(float), free=True)
    M = dynamics.mass_matrix(model, np.concatenate([arithmetic.given([0.3, -0.4]), chain.theta]))
    return identity("Eqs 4-8", "N + 1 free masses", relax_planar(mass, chain.theta, chain.L, free=True).inverse() @ M,
                    np.eye(n + 2))  # fmt: skip


# Equation 21 -------------------------------------------------------------------------------------------------


def angle_derivatives(chain: Chain, form: str) -> Array:
    """d theta_i / d x_j, (n, n, 2), by Eq. 21 as printed, as corrected, or by the form that is exact everywhere."""
    n = len(chain.mass)
    base = arithmetic.given([-1.0, 0.0])  # x_{-1} = -L_0 e_1, with L_0 = 1
    x = np.vstack([base, np.zeros(2), planar_positions(chain.theta, chain.L)])
    d = np.diff(x, axis=0)  # d[0] belongs to the base, d[i] to bond i
    L = np.append(1.0, chain.L)
    result = np.zeros((n, n + 2, 2), x.dtype)  # columns: particles -1, 0, 1, ...
    for i in range(1, n + 1):
        if form == "exact":
            normal = [np.array([-d[k][1], d[k][0]]) / L[k] ** 2 for k in (i, i - 1)]
            result[i - 1, i + 1] += normal[0]
            result[i - 1, i] -= normal[0] + (normal[1] if i > 1 else 0)
            if i > 1:
                result[i - 1, i - 1] += normal[1]
            continue
        last = d[i] if form == "corrected" else d[i - 1]
        size = -1 / (L[i - 1] * L[i] * sin(chain.theta[i - 1]))
        result[i - 1, i + 1] += size * d[i - 1]
        result[i - 1, i] += size * (d[i] - d[i - 1])
        result[i - 1, i - 1] -= size * last
    return result[:, 2:]  # the base does not move


def schur(chain: Chain, angles: Array) -> Array:
    """M^-1 = H^{theta theta} - H^{theta L} (H^{LL})^-1 H^{L theta} from given d theta/dx          (Eqs 23 and 25)"""
    H, n = _blocks(chain, angles), len(chain.mass)
    return H[:n, :n] - H[:n, n:] @ solve(H[n:, n:], H[n:, :n])


def _blocks(chain: Chain, angles: Array) -> Array:
    n = len(chain.mass)
    rows_ = np.vstack([angles.reshape(n, -1), inverse(chain.jacobian)[n:]])
    return rows_ @ (1 / np.repeat(chain.mass, 2)[:, None] * rows_.T)


def _equation_21() -> Iterator[Row]:
    chain = Chain.random(MASSES)
    n = len(chain.mass)
    M_inverse = inverse(chain.G[:n, :n])
    forms = {form: angle_derivatives(chain, form) for form in ("printed", "corrected", "exact")}
    cosine = _cosine_derivatives(chain)
    size = -sin(chain.theta)[:, None, None]
    yield identity("Eqs 19-21", "d cos theta_i/dx_j, lengths held", size * forms["corrected"], cosine, 1e-9)
    yield misprint("Eq. 21", "-delta_{i-2,j} d_{i-1}'", "-delta_{i-2,j} d_i'", schur(chain, forms["printed"]),
                   schur(chain, forms["corrected"]), M_inverse)  # fmt: skip
    H = _blocks(chain, forms["exact"])
    crossed = H[:n, :n] - H[n:, :n] @ solve(H[n:, n:], H[:n, n:])
    yield misprint("Eq. 25", "H^{L theta} (H^{LL})^-1 H^{theta L}", "H^{theta L} (H^{LL})^-1 H^{L theta}", crossed,
                   schur(chain, forms["exact"]), M_inverse)  # fmt: skip
    true = inverse(chain.jacobian)[:n].reshape(n, n, 2)
    yield misprint("Eq. 21", "d theta/dx with lengths held", "n_i' (...) - n_{i-1}' (...): exact, straight chains too",
                   forms["corrected"], forms["exact"], true)  # fmt: skip


def _cosine_derivatives(chain: Chain) -> Array:
    """d/dx_j of (x_i - x_{i-1}).(x_{i-1} - x_{i-2}) / (L_i L_{i-1}) with L constant                        (Eq. 20)"""
    n, L = len(chain.mass), np.append(1.0, chain.L)

    def cosines(x: Array) -> Array:
        d = np.diff(np.vstack([[-1.0, 0.0], np.zeros(2), x.reshape(n, 2)]), axis=0)
        return (d[1:] * d[:-1]).sum(axis=1) / (L[1:] * L[:-1])

    return arithmetic.jacobian(cosines, planar_positions(chain.theta, chain.L).ravel()).reshape(n, n, 2)


# Times: Figure 2 ---------------------------------------------------------------------------------------------


def direct(n: int) -> Callable[[], Array]:
    """M^-1 b by the inverse of M, both by NumPy: M = J' m J with J of the absolute angles."""
    chain, b = Chain.random(n), np.ones(n)
    beyond = np.cumsum(chain.mass[::-1])[::-1]
    shared = beyond[np.maximum.outer(np.arange(n), np.arange(n))] * np.outer(chain.L, chain.L)

    def solve() -> Array:
        absolute = np.cumsum(chain.theta)
        M = shared * np.cos(absolute[:, None] - absolute)
        M = np.cumsum(M[::-1], axis=0)[::-1]  # theta_i turns all bonds from i on
        return inverse(np.cumsum(M[:, ::-1], axis=1)[:, ::-1]) @ b

    return solve


def relaxed(n: int) -> Callable[[], Array]:
    """M^-1 b by the blocks of H and banded factors, both by NumPy and LAPACK."""
    chain, b = Chain.random(n), np.ones(n)
    return lambda: relax_planar(*chain).solve(b)


def compiled_direct(n: int) -> Callable[[], Array]:
    """M^-1 b by M from compiled code, inverted; the program is made beforehand."""
    chain, b = Chain.random(n), np.ones(n)
    mass_matrix = programs.compile(zoo.point_chain(n, mass=chain.mass, length=chain.L), dynamics.mass_matrix)
    return lambda: inverse(mass_matrix(chain.theta)) @ b


def compiled_relaxed(n: int) -> Callable[[], Array]:
    """M^-1 b with the hard variables eliminated in compiled sweeps."""
    chain, b = Chain.random(n), np.ones(n)
    program = compile_program(fixman.BRACED.mass_solve, zoo.point_chain(n, mass=chain.mass, length=chain.L))
    return lambda: program(chain.theta, b)


SOLVERS = {
    "direct, NumPy": direct, "relaxed, NumPy": relaxed, "direct, compiled": compiled_direct,
    "relaxed, compiled": compiled_relaxed,
}  # fmt: skip


def _solvers() -> Iterator[Row]:
    """The four programs of Figure 2 give the same result, and the compiled one takes O(n) operations."""
    expected = direct(LARGE)()
    for name, solver in SOLVERS.items():
        yield identity("Fig. 2", f"M^-1 b, N = {LARGE}, {name}", solver(LARGE)(), expected, CONDITION)
    counts = [sum(compile_program(fixman.BRACED.mass_solve, zoo.point_chain(n)).operations) for n in COUNTED]
    per_link = np.diff(counts) / np.diff(COUNTED)
    words, same = f"{per_link[-1]:.0f} per mass", bool((per_link == per_link[0]).all())
    what = f"operations of M^-1 b, n = {COUNTED[0]} ... {COUNTED[-1]}, compiled"
    yield Row("Fig. 2", what, "O(n)", words, "0" if same else f"{np.ptp(per_link):.0f}", AGREES, same)


def _times() -> Iterator[Row]:
    p = exponent(relaxed, LONG)
    what = f"time of M^-1 b ~ n^p, blocks of H, n = {LONG[0]} ... {LONG[-1]}"
    yield timed("Fig. 2", what, "O(n)", f"p = {p:.2f}", f"{p - 1:+.2f}")
    claims = (SMALL, "direct inversion is faster"), (LARGE, "the new method is faster")
    for n, claim in claims:
        for how, pair in (("NumPy", (direct, relaxed)), ("compiled", (compiled_direct, compiled_relaxed))):
            one, other = shortest([solver(n) for solver in pair])
            words = f"direct {1e3 * one:.4f} ms, relaxed {1e3 * other:.4f} ms"
            yield timed("III, Fig. 2", f"N = {n}, both {how}", claim, words, f"{other / one:.2g} times")


# Brownian dynamics -------------------------------------------------------------------------------------------


@cache
def bend(corrected: bool) -> Array:
    """theta_2 of many chains of two equal masses in Brownian dynamics, (records, replicas), within a turn."""
    start = np.random.default_rng(1).uniform(-np.pi, np.pi, (REPLICAS, 2))
    run = brownian(
        zoo.point_chain(2), start, steps=STEPS, step=TIME_STEP, stiff=corrected, every=STEPS // RECORDS, rng=0
    )
    return np.angle(np.exp(1j * run[RECORDS // 2 :, :, 1]))


def bend_weight(theta: Array, corrected: bool) -> Array:
    """The density of theta_2: rigid bonds sqrt(det M) ~ sqrt(2 - cos^2), stiff springs uniform."""
    weight = np.ones_like(theta) if corrected else np.sqrt(2 - np.cos(theta) ** 2)
    return weight / (2 * np.pi * weight.mean())


def _brownian() -> Iterator[Row]:
    """Reference 2 of the paper: the effect of rigid bonds on the angles, and Fixman's correction of it."""
    grid = np.linspace(-np.pi, np.pi, 20_001)[:-1]
    for corrected, name in ((False, "rigid bonds"), (True, "stiff springs, Fixman's correction")):
        expected = float((bend_weight(grid, corrected) * np.cos(grid) ** 2).mean() * 2 * np.pi)
        means = (np.cos(bend(corrected)) ** 2).mean(axis=0)  # of the independent replicas
        # five standard errors, plus the error of the time step
        within = 5 * float(means.std()) / len(means) ** 0.5 + 0.6 * TIME_STEP
        apart = float(means.mean()) - expected
        what, words = f"<cos^2 theta_2>, Brownian dynamics, {name}", f"{means.mean():.4f} (closed form {expected:.4f})"
        yield Row("refs 1, 2", what, "-", words, f"{apart:+.4f}, tolerance {within:.4f}", OURS, abs(apart) < within)


PARTS = (_free, _inverses, _equation_21, _solvers, _times, _brownian)
IDENTITIES = (_free, _inverses, _equation_21)


def figures(folder: Path) -> Iterator[Path]:
    """Figure 2: times of M^-1 b on this machine, one thread; and the angles of Brownian chains."""
    yield time_against_n(folder / "lee2005_fig2_times.png", "Planar chain of n point masses (Fig. 2)", SOLVERS)
    path = folder / "lee2005_brownian.png"
    edges = np.linspace(-np.pi, np.pi, 25)
    middle, fine = (edges[1:] + edges[:-1]) / 2, np.linspace(-np.pi, np.pi, 200)
    columns: dict[str, Array] = {"theta_2": middle}
    with panels(path, 2, (7.0, 3.0)) as both:
        for axes, corrected, name in zip(both, (False, True), ("rigid bonds", "with Fixman's correction")):
            counts = np.histogram(bend(corrected).ravel(), edges, density=True)[0]
            axes.bar(middle, counts, width=0.9 * (edges[1] - edges[0]), color=BLUE, alpha=0.5)
            axes.plot(fine, bend_weight(fine, corrected), color=ORANGE)
            axes.set(title=name, xlabel=r"$\theta_2$, rad", ylim=(0, 0.25))
            columns |= {name: counts, f"{name}, closed form": bend_weight(middle, corrected)}
        both[0].set_ylabel("density")
    write_data(path, columns)
    yield path
