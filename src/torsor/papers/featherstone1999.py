"""R. Featherstone, A. Fijany, A technique for analysing constrained rigid-body systems, and its application to the
constraint force algorithm, 1999: the equations of the change of basis and of the algorithm, and its depth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from torsor import zoo
from torsor.dense import complement, inverse, solve
from torsor.dynamics import functions as dynamics
from torsor.dynamics import programs
from torsor.dynamics.closed_forms import block_diagonal, operators
from torsor.model.model import Model
from torsor.papers import arithmetic
from torsor.papers.change_of_basis import MAPPINGS, DualBases, change_of_basis, in_new_bases
from torsor.papers.figures import panels, write_data
from torsor.papers.rows import AGREES, IDENTITY, OURS, Row, identity, relative
from torsor.parallel.solver import schedule
from torsor.view.style import BLUE, GREY, ORANGE

Array = NDArray[Any]

EXPONENTS = (6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20)  # of the lengths 2^k over which the depth is measured
BITS = 2**6  # numbers are multiples of its reciprocal
ENDS = 3  # levels in addition to the two per factor of four in the length
ARM = np.radians([15.0, 100.0])  # the posture of the two-link arm in Figure 1


class Global(NamedTuple):
    """The matrices of section 4 in link coordinates: I and P (6n x 6n), H (6n x nv), H_perp (6n x 6n - nv)."""

    I: Array
    P: Array
    H: Array
    H_perp: Array


def global_matrices(model: Model, q: Array) -> Global:
    o = operators(model, q)
    perp = [complement(S) for S in o.S_blocks]
    return Global(o.J, np.eye(6 * o.n) - o.Gamma, o.S, block_diagonal(perp))


def bases(g: Global) -> DualBases:
    """The dual bases of I with S1 = P^-1 H and T2 = P^T H_perp."""
    return change_of_basis(g.I, solve(g.P, g.H))._replace(T2=g.P.T @ g.H_perp)


class RestingChain(NamedTuple):
    """A chain of every joint type at rest, without weight, under joint torques."""

    model: Model
    q: Array
    tau: Array
    qdd: Array
    g: Global
    b: DualBases


@arithmetic.once
def case() -> RestingChain:
    model = arithmetic.placed(zoo.random_chain(8, 1, joints=None).weightless)
    rng = np.random.default_rng(0)
    q, tau = arithmetic.given(model.random_configuration(rng)), arithmetic.given(rng.normal(size=model.nv))
    g = global_matrices(model, q)
    return RestingChain(model, q, tau, dynamics.mass_solve(model, q, tau), g, bases(g))


def _equations_11_to_16() -> Iterator[Row]:
    """Section 4: the accelerations a of bodies are torsor's twists with v = qdd; f comes from the forces in joints."""
    model, q, tau, qdd, g, b = case()
    a = dynamics.body_twists(model, q, qdd).ravel()
    through = dynamics.constraint_forces(model, q, np.zeros(model.nv), tau).ravel()
    f = g.P.T @ through  # the wrench of a joint on its body, minus that of the next joint
    own = [solve(g.I[6 * i : 6 * i + 6, 6 * i : 6 * i + 6], part) for i, part in enumerate(f.reshape(-1, 6))]
    yield identity("Eqs 11, 12", "a_i = I_i^-1 f_i, body by body", np.concatenate(own), a)
    yield identity("Eq. 13", "P a = H qdd", g.P @ a, g.H @ qdd)
    yield identity("Eq. 14", "tau = H' P'^-1 f", g.H.T @ solve(g.P.T, f), tau)
    yield identity("Eq. 15", "qdd = (H' P'^-1 I P^-1 H)^-1 tau", solve(b.S1.T @ g.I @ b.S1, tau), qdd)
    roots = arithmetic.given(np.random.default_rng(1).normal(size=(model.n, 6, 6)))
    any_map = block_diagonal(tuple(A @ A.T + np.eye(6) for A in roots))
    for words, I_X in (("the identity", np.eye(len(g.I))), ("I", g.I), ("any block-diagonal map", any_map)):
        T = g.P.T @ I_X @ g.H @ inverse(g.H.T @ I_X @ g.H)
        yield identity("Eq. 16", f"with I_X {words}", b.solve(tau, T), qdd)
    yield _fijanys_form(b.solve(tau, g.P.T @ g.H), qdd)


def _levels() -> Iterator[Row]:
    for what, machine in (("in O(log n) levels, every joint type", zoo.random_chain(8, 1, joints=None)),
                          ("with side branches", zoo.random_tree(14, 1))):  # fmt: skip
        rng, model = np.random.default_rng(2), machine if arithmetic.doubles() else exactly_framed(machine)
        q, tau = arithmetic.given(model.random_configuration(rng)), arithmetic.given(rng.normal(size=model.nv))
        yield identity("section 4", what, in_levels(model, q, tau), dynamics.mass_solve(model, q, tau))


def in_levels(model: Model, q: Array, b: Array) -> Array:
    """M^-1 b by method "constraint-force"; numbers other than doubles run the steps of its schedule one by one."""
    if arithmetic.doubles():
        return dynamics.mass_solve(model, q, b, method="constraint-force")
    plan = schedule(model, "mass_solve")
    buffers = {name: np.zeros(size, object) for name, size in plan.sizes.items()}
    for name, values in ({key: arithmetic.given(x) for key, x in plan.contents.items()} | {"q": q, "b": b}).items():
        buffers[name][:] = values
    for task in (task for level in plan.levels for task in level.tasks):
        shapes = task.operation.inputs.values()
        read = [buffers[x.buffer][x.places(shape)] for x, shape in zip(task.reads, shapes)]
        for lane, place in enumerate(task.write.places(task.operation.shape)):
            found = task.operation.function(*(x[lane].tolist() for x in read))
            buffers[task.write.buffer][place.ravel()] = np.ravel(np.array(found, object))
    return buffers["qdd"]


def exactly_framed(model: Model) -> Model:
    """The machine with numbers of few bits, so that its frames in compiled code are also exact."""
    model, along = arithmetic.exactly_placed(model, 0), np.eye(3)[np.arange(model.n) % 3]
    few = {name: np.round(getattr(model, name) * BITS) / BITS for name in ("mass", "com")}
    size = np.round(np.trace(model.inertia, axis1=1, axis2=2) * BITS + 1) / BITS
    inertia = size[:, None, None] * np.diag([1.0, 1.25, 1.5])
    return replace(model, p=np.round(model.p * BITS) / BITS * along, inertia=inertia, **few)


def _sections_2_and_3() -> Iterator[Row]:
    """The change of basis, on the free bodies of a chain and the constraint of its joints."""
    g, b, rng = case().g, case().b, np.random.default_rng(3)
    fresh = change_of_basis(g.I, b.S1)
    n, r = fresh.S1.shape
    M_inverse = inverse(g.I)
    X_U, X_V = fresh.X_U, fresh.X_V
    for mapping in MAPPINGS:
        A, x = arithmetic.given(rng.normal(size=(n, n))), arithmetic.given(rng.normal(size=n))
        X = {"U": X_U, "V": X_V}
        moved = in_new_bases(mapping, A, X_U) @ (X[mapping[0]] @ x)
        yield identity("section 2", f"rule of a mapping {mapping}", moved, X[mapping[-1]] @ A @ x)
    yield identity("section 2", "X_U' = X_V^-1", X_U.T @ X_V, np.eye(n))
    S2_image = fresh.T2 @ solve(fresh.T2.T @ fresh.T2, fresh.T2.T @ g.I @ fresh.S2)
    yield identity("Eq. 1", "T2 = M S2, as spaces", S2_image, g.I @ fresh.S2)
    yield identity("Eq. 2", "[S1 S2]' [T1 T2] = 1", X_V @ X_U.T, np.eye(n))
    blocks = np.zeros((n, n), g.I.dtype)
    blocks[:r, :r] = fresh.S1.T @ g.I @ fresh.S1
    blocks[r:, r:] = inverse(fresh.T2.T @ M_inverse @ fresh.T2)
    yield identity("section 2", "X_V M X_U^-1 is block diagonal", in_new_bases("U -> V", g.I, X_U), blocks)
    yield identity("Eq. 3", "M^-1 = active + immobilised", b.active + b.immobilised, M_inverse)
    v = arithmetic.given(rng.normal(size=(n,)))
    u = M_inverse @ (v + b.constraint_force(v))
    alpha, beta, gamma = X_U @ u, X_V @ v, X_V @ b.constraint_force(v)
    free, immobile = (solve(block, force) for block, force in (
        (blocks[:r, :r], beta[:r] + gamma[:r]), (blocks[r:, r:], beta[r:] + gamma[r:])))  # fmt: skip
    yield identity("Eq. 4", "alpha_1 = (S1' M S1)^-1 (beta_1 + gamma_1)", free, alpha[:r])
    size = float(max(np.abs(immobile).max(), np.abs(alpha[r:]).max()) / np.abs(alpha[:r]).max())
    yield Row(
        "Eq. 5",
        "alpha_2 = 0: immobilised",
        "0",
        f"{size:.0e}",
        f"{size:.0e}",
        AGREES,
        size <= arithmetic.within(IDENTITY),
    )
    yield identity("Eq. 6", "alpha_1 = (S1' M S1)^-1 beta_1", solve(blocks[:r, :r], beta[:r]), alpha[:r])
    yield identity("Eq. 7", "u = S1 (S1' M S1)^-1 S1' v", b.active @ v, u)
    yield identity("Eq. 8", "constrained = unconstrained - immobilised", M_inverse - b.immobilised, b.active)
    yield identity("Eq. 9", "u = (M^-1 - immobilised) v", (M_inverse - b.immobilised) @ v, u)
    yield identity(
        "Eq. 10",
        "with any T1'",
        b.solve(beta[:r], b.complement(np.diag(arithmetic.given(rng.uniform(1, 2, n))))),
        alpha[:r],
    )


def _fijanys_form(found: Array, qdd: Array) -> Row:
    apart = relative(found, qdd)
    return Row("section 4", "P' H in place of T1' (Fijany et al. 1995)", "does not hold", "does not hold",
               f"{apart:.0e}", AGREES, apart > 1e-3)  # fmt: skip


# The depth ---------------------------------------------------------------------------------------------------


class Depth(NamedTuple):
    """The cost of M^-1 b for one chain of n general links, level by level."""

    n: int
    levels: int
    path: int  # operations on the longest path, one processor per lane
    work: int  # operations in all


@cache
def depth(exponent: int) -> Depth:
    plan = schedule(zoo.general_arm(2**exponent), "mass_solve")
    return Depth(2**exponent, plan.depth, plan.critical_path, plan.work)


@cache
def sweep_operations() -> float:
    """Operations per link of the O(n) sweeps for M^-1 b."""
    model = zoo.general_arm(1000)
    program = programs.compile(model, dynamics.mass_solve, method="articulated", specialised=False)
    return sum(program.operations) / model.n


def _depth() -> Iterator[Row]:
    measured = [depth(k) for k in EXPONENTS]
    off = max(abs(x.levels - 2 * ceil(k / 2) - ENDS) for k, x in zip(EXPONENTS, measured))
    lengths = f"n = 2^{EXPONENTS[0]} ... 2^{EXPONENTS[-1]}"
    words = f"log2 n + {ENDS} levels, of odd powers + {ENDS + 1}"
    yield Row("abstract", f"steps of M^-1 b, {lengths}", "O(log n)", words, f"{off} levels", AGREES, off == 0)
    even = [(k, x.path) for k, x in zip(EXPONENTS, measured) if k % 2 == 0]
    growth = np.diff([path for _, path in even]) / np.diff([k for k, _ in even])
    words = f"{growth.min():.0f} to {growth.max():.0f} per doubling of n"
    grows_evenly = bool(growth.max() <= 1.5 * growth.min())
    yield Row("abstract", "operations on the longest path", "-", words, "", OURS, grows_evenly)
    work = np.array([x.work / x.n for x in measured])
    words, ratio = f"{work[-1]:.0f} to {work[0]:.0f}", f"{work[-1] / sweep_operations():.1f} times the sweeps'"
    falls = bool((np.diff(work[[k % 2 == 0 for k in EXPONENTS]]) <= 0).all())
    yield Row("section 4", f"operations per link, {lengths}", "O(1)", words, ratio, AGREES, falls)


PARTS = (_sections_2_and_3, _equations_11_to_16, _levels, _depth)
IDENTITIES = (_sections_2_and_3, _equations_11_to_16, _levels)

# Figures -----------------------------------------------------------------------------------------------------


def figures(folder: Path) -> Iterator[Path]:
    yield _figure_1(folder / "featherstone1999_fig1_reciprocal_bases.png")
    yield _figure_of_depth(folder / "featherstone1999_depth.png")


def reciprocal_bases() -> tuple[Array, Array, Array]:
    """The joints and tip (3, 2) of a two-link arm in the posture ARM, and d_i and e_i at the tip, as columns.

    d_i: the motion of the tip when only joint i turns; e_j: the force at the tip that loads only joint j.
    """
    model = zoo.point_chain(2)
    tip = dynamics.body_poses(model, ARM)
    places = np.array([[0.0, 0.0], tip[1, :2, 3], (tip[1, :3, :3] @ model.com[1] + tip[1, :3, 3])[:2]])
    J = dynamics.jacobian(model, ARM, 1)
    R = tip[1, :2, :2]
    d = R @ (J[3:5] + np.cross(J[:3], model.com[1], axisb=0, axisa=0, axisc=0)[:2])
    return places, d, inverse(d).T


def _figure_1(path: Path) -> Path:
    """Figure 1: an orthonormal basis, and a reciprocal basis pair, here that of the tip of a two-link arm."""
    places, d, e = reciprocal_bases()
    tip = places[-1]
    with panels(path, 2, (7.0, 3.6)) as (left, right):
        for k, name in enumerate(("$e_1$", "$e_2$")):
            _arrow(left, np.zeros(2), np.eye(2)[k], GREY, name)
        left.set_title("(a) orthonormal basis")
        right.plot(*places.T, "o-", color="black", lw=2.5, ms=4, zorder=1)
        for k in range(2):
            _arrow(right, tip, d[:, k], BLUE, f"$d_{k + 1}$")
            _arrow(right, tip, e[:, k], ORANGE, f"$e_{k + 1}$")
        right.set_title("(b) reciprocal pair at the tip:\nmotions $d_i$ by joint $i$, forces $e_j$ on joint $j$ only")
        for axes, corners in ((left, np.array([[-0.3, -0.3], [1.3, 1.3]])),
                              (right, np.vstack([places, (tip[:, None] + d).T, (tip[:, None] + e).T]))):  # fmt: skip
            axes.set_aspect("equal")
            axes.set_xlim(corners[:, 0].min() - 0.25, corners[:, 0].max() + 0.25)
            axes.set_ylim(corners[:, 1].min() - 0.25, corners[:, 1].max() + 0.25)
    write_data(path, {"d1": d[:, 0], "d2": d[:, 1], "e1": e[:, 0], "e2": e[:, 1]})
    return path


def _arrow(axes: Axes, start: Array, along: Array, colour: str, name: str) -> None:
    end, begin = tuple(start + along), tuple(start)
    look = {"arrowstyle": "-|>", "color": colour, "lw": 1.5, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, begin, arrowprops=look)
    away = tuple(9 * along / np.linalg.norm(along))
    words: dict[str, Any] = dict(textcoords="offset points", ha="center", va="center", color=colour, fontsize=10)
    axes.annotate(name, end, xytext=away, **words)


def _figure_of_depth(path: Path) -> Path:
    """The claim of the abstract, measured: levels, the longest path, and the work, over the length of a chain."""
    measured = [depth(k) for k in EXPONENTS]
    n, levels, longest, work = (np.array(x) for x in zip(*measured))
    sweeps = sweep_operations()
    with panels(path, 3, (8.0, 2.8)) as (first, second, third):
        first.semilogx(n, levels, "o-", base=2, color=BLUE)
        first.set(title="levels", xlabel="links")
        second.loglog(n, longest, "o-", base=2, color=BLUE, label="levels")
        second.loglog(n, sweeps * n, "--", base=2, color=GREY, label="sweeps")
        second.set(title="operations on the longest path", xlabel="links")
        second.legend()
        third.semilogx(n, work / n / sweeps, "o-", base=2, color=ORANGE)
        third.set(title="work, relative to the sweeps", xlabel="links", ylim=(0, 4))
    columns = {"n": n, "levels": levels, "longest path": longest, "work": work, "work of the sweeps": sweeps * n}
    write_data(path, columns)
    return path
