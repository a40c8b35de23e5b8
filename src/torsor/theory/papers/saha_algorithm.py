"""Saha 2001, sections 2 and 3, Appendix B and Table I: the decomposition, and its cost counted from the code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor import dynamics, zoo
from torsor.algorithms import articulated
from torsor.backends.pointwise import trace
from torsor.compiler.request import unrolled
from torsor.compiler.tape import Operations
from torsor.linalg import Mat, Vec
from torsor.model import Model
from torsor.theory import study
from torsor.theory.papers.rows import AGREES, MISPRINT, OURS, Row, identity, misprint
from torsor.theory.study import saha

Array = NDArray[Any]


# Table I -------------------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """M and A as polynomials of n, the highest power first; and the printed M and A for n = 6 and n = 10."""

    multiplications: tuple[Fraction | int, ...]
    additions: tuple[Fraction | int, ...]
    printed: dict[int, tuple[int, int]]

    def at(self, n: int) -> tuple[int, int]:
        """(M, A) of the formulas."""
        values = [sum(c * n**k for k, c in enumerate(reversed(p))) for p in (self.multiplications, self.additions)]
        return int(values[0]), int(values[1])


SIXTH = Fraction(1, 6)
TABLE_I = {
    "Saha": Cost((191, -284), (187, -325), {6: (862, 797), 10: (1626, 1545)}),
    "Featherstone": Cost((199, -198), (174, -173), {6: (996, 871), 10: (1792, 1567)}),
    "Valasek": Cost((226, -343), (206, -345), {6: (1013, 891), 10: (1917, 1715)}),
    "Brandl et al.": Cost((250, -222), (220, -198), {6: (1278, 1122), 10: (2278, 2002)}),
    "Walker & Orin": Cost((SIXTH, Fraction(23, 2), Fraction(115, 3), -47), (SIXTH, 7, Fraction(233, 6), -46),
                          {6: (633, 480), 10: (1653, 1209)}),
}  # fmt: skip
# The costs in braces of section 3: for each step M and A, each as (a, b) for a n + b.
ITEMS = {
    "A1": ((4, 0), (2, 0)), "A2": ((0, 0), (3, -3)), "A3(a)": ((0, 16), (0, 17)), "A3(b)": ((86, -179), (101, -215)),
    "A4(a)": ((0, 2), (0, 0)), "A4(b)": ((12, -36), (12, -36)), "A5": ((2, 0), (2, 0)), "A6": ((6, -7), (0, 0)),
    "A7(a)": ((0, 15), (0, 8)), "A7(b)": ((21, -42), (21, -42)), "A8(a)": ((0, 5), (0, 0)),
    "A8(b)": ((6, -12), (6, -12)), "A9": ((22, -26), (14, -18)), "A10(b)": ((2, -2), (3, -3)), "B": ((1, 0), (0, 0)),
    "C1(b)": ((6, -6), (6, -6)), "C2(a)": ((0, 12), (0, 2)), "C2(b)": ((18, -18), (11, -11)), "C3": ((6, -6), (6, -6)),
}  # fmt: skip
# What the code of `study.saha` costs, exactly, from n = 3 on: (a, b) for a n + b; n of the M are reciprocals.
COUNTED = Cost((193, -309), (187, -329), {})


def rows() -> Iterator[Row]:
    """The rows of Saha 2001 that concern the algorithm."""
    yield from _decomposition()
    yield from _three_steps()
    yield from _costs()


def _decomposition() -> Iterator[Row]:
    model = zoo.stanford()
    q = np.array([0.3, 1.1, 0.4, -0.7, 0.5, 0.2])
    o = study.denoc(model, q)
    u = study.decompose(o)
    M = dynamics.mass_matrix(model, q)
    phi = np.arange(1.0, 7.0)
    yield identity("Eq. 1", "I qdd = phi, phi = tau - C qd", M @ dynamics.mass_solve(model, q, phi, method="udut"), phi)
    yield identity("Eqs 2, 3", "I = N_d' N_l' M N_l N_d, Stanford arm", o.S.T @ (o.G.T @ o.J @ o.G) @ o.S, M)
    v = np.linspace(-1, 1, 6)
    moving = study.denoc(model, q, v)
    twists = moving.V.reshape(-1, 6)
    step = [moving.Ad_inv[i] @ twists[i - 1] + moving.S_blocks[i][:, 0] * v[i] for i in range(1, 6)]
    yield identity("Eqs 4, 5", "t_i = B_ij t_j + p_i thetad_i", np.array(step), twists[1:])
    yield identity("Eq. 6", "i_ij = p_i' M~_i B_ij p_j", _composite(o), M)
    elementary = list(study.elementary(M))
    E = np.linalg.multi_dot([E for E, _ in reversed(elementary)])
    yield identity("Eqs 7, 19-24", "E I = L_2, lower triangular", E @ M, np.tril(elementary[-1][1]))
    last = elementary[0][0]
    yield identity("Eq. 8", "E_k^-1 = 1 + alpha_k lambda_k'", np.linalg.inv(last), 2 * np.eye(6) - last)
    U, D = study.reverse_elimination(M)
    yield identity("Eqs 9, 10", "I = U D L", U @ np.diag(D) @ (elementary[-1][1] / D[:, None]), M)
    yield identity("Eq. 11", "I = U D U', U and D without forming I", u.U @ np.diag(u.D) @ u.U.T, M)
    recursive, eliminated = np.r_[u.U.ravel(), u.D], np.r_[U.ravel(), D]
    yield identity("Eqs 25-28", "alpha_ik and m^_k are those of the elimination", recursive, eliminated)
    yield identity("section 1", "the analytic inverse", u.M_inverse @ M, np.eye(model.nv))


def _composite(o: study.Operators) -> Array:
    """Eq. 6 for a chain, entry by entry."""
    n = o.n
    bodies = o.J_blocks.copy()
    for i in reversed(range(n - 1)):
        bodies[i] += o.Ad_inv[i + 1].T @ bodies[i + 1] @ o.Ad_inv[i + 1]
    M = np.zeros((n, n))
    for i in range(n):
        moved = o.S_blocks[i].T @ bodies[i]
        for j in reversed(range(i + 1)):
            M[i, j] = M[j, i] = (moved @ o.S_blocks[j])[0, 0]
            moved = moved @ o.Ad_inv[j]
    return M


def _three_steps() -> Iterator[Row]:
    links = general_links(6)
    q, phi = np.array([0.3, 1.1, 0.4, -0.7, 0.5, 0.2]), np.arange(1.0, 7.0)
    model = model_of(links)
    M = dynamics.mass_matrix(model, q)
    found = np.array(saha.forward_dynamics(links, q.tolist(), phi.tolist()))
    yield identity("section 3, Eqs 16, 17", "steps A, B, C: I qdd = phi", M @ found, phi)
    o, expected = study.denoc(model, q), np.linalg.solve(M, phi)
    right = three_steps(o, phi)
    yield identity("Eqs 12-15", "eta, psi and mu in one frame", right, expected)
    yield misprint("A3(b)", "I^_i = I^_{i+1,i+1} + ...", "I^_i = I_i + I^_{i+1,i+1} + ...",
                   three_steps(o, phi, own_inertia=False), right, expected)  # fmt: skip
    yield misprint("C3", "mu_{i,i-1(b)} = mu_{i-1(t)} + c x ...", "mu_{i-1(b)} + c x ...",
                   three_steps(o, phi, bottom=False), right, expected)  # fmt: skip


def three_steps(o: study.Operators, phi: Array, own_inertia: bool = True, bottom: bool = True) -> Array:
    """Eqs 12-15 and 26-28 for a chain, in one frame; or what steps A3(b) and C3 give as they are printed."""
    n, p = o.n, [S[:, 0] for S in o.S_blocks]
    psi, tilde = np.zeros((n, 6)), np.zeros(n)
    M_hat, eta = o.J_blocks[-1], np.zeros(6)
    for i in reversed(range(n)):
        hat = M_hat @ p[i]
        m = p[i] @ hat
        psi[i] = hat / m
        torque = phi[i] - p[i] @ eta
        tilde[i] = torque / m
        if i:
            B = o.Ad_inv[i]
            own = o.J_blocks[i - 1].copy()
            if not own_inertia:
                own[:3, :3] = 0
            M_hat, eta = own + B.T @ (M_hat - np.outer(hat, psi[i])) @ B, B.T @ (psi[i] * torque + eta)
    qdd, mu = np.zeros(n), np.zeros(6)
    for i in range(n):
        carried = o.Ad_inv[i] @ mu if i else mu
        if not bottom and i:
            carried[3:] += mu[:3] - mu[3:]
        qdd[i] = tilde[i] - psi[i] @ carried
        mu = p[i] * qdd[i] + carried
    return qdd


def _costs() -> Iterator[Row]:
    for author, cost in TABLE_I.items():
        for n, printed in cost.printed.items():
            formula = cost.at(n)
            place, what = "Table I", f"{author}, n = {n}: the formulas"
            verdict = MISPRINT if (author, n) == ("Walker & Orin", 6) else AGREES
            holds = (formula == printed) == (verdict == AGREES)
            yield Row(place, what, _cost(*printed), _cost(*formula), _apart(formula, printed), verdict, holds)
    slope, start = (sum(item[0][k] for item in ITEMS.values()) for k in range(2))
    added, first = (sum(item[1][k] for item in ITEMS.values()) for k in range(2))
    yield Row("section 3", "the sum of the items", "191n - 284 M, 187n - 325 A",
              f"{slope}n - {-start} M, {added}n - {-first} A", "n M", MISPRINT,
              (slope, start, added, first) == (192, -284, 187, -325))  # fmt: skip
    for n in (6, 10):
        count = operations(n)
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
    yield Row("section 1", "fewer M than the O(n^3) scheme", "n >= 10", f"n >= {crossing}", str(crossing - 10), AGREES,
              crossing == 10)  # fmt: skip


def _cost(M: int, A: int) -> str:
    return f"{M} M {A} A"


def _apart(found: tuple[int, int], printed: tuple[int, int]) -> str:
    M, A = (a - b for a, b in zip(found, printed))
    return "0" if M == A == 0 else f"{M:+d} M {A:+d} A to the table"


# A general arm -------------------------------------------------------------------------------------------------


@cache
def operations(n: int) -> Operations:
    """The cost of Saha's three steps on a general arm of n revolute joints, with phi given."""
    links = general_links(n)
    return Operations.of(trace(lambda q, phi: saha.forward_dynamics(links, q, phi), {"q": (n,), "phi": (n,)}))


def general_links(n: int, prismatic: Sequence[int] = (), seed: int = 0) -> list[saha.DHLink]:
    """A Denavit-Hartenberg arm in which no length, angle or moment of inertia is zero or equal to another."""
    rng = np.random.default_rng(seed)
    links = []
    for i in range(n):
        second = rng.normal(size=(3, 3))
        second = second @ second.T  # int r r^T dm of some body: its inertia obeys the triangle inequality
        links.append(saha.DHLink(
            a=float(rng.uniform(0.2, 1)), b=float(rng.uniform(0.2, 1)), alpha=float(rng.uniform(0.2, 1)), theta=0.0,
            m=float(rng.uniform(1, 3)), r=Vec.of(rng.uniform(-0.5, 0.5, 3).tolist()),
            I=Mat.of((np.trace(second) * np.eye(3) - second).tolist()), prismatic=i in prismatic,
        ))  # fmt: skip
    return links


def model_of(links: Sequence[saha.DHLink]) -> Model:
    """The same arm as a model."""
    return Model.from_dh(
        a=[x.a for x in links], d=[x.b for x in links], alpha=[x.alpha for x in links],
        theta=[x.theta for x in links], variable=["d" if x.prismatic else "theta" for x in links],
        convention="standard", mass=[x.m for x in links], r=[list(x.r) for x in links],
        inertia=np.array([x.I for x in links]), name=f"general_dh({len(links)})",
    )  # fmt: skip
