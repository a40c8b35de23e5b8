"""Saha 2001, section 3 and Table I: the decomposition and its cost, counted from the code, not quoted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from torsor import zoo
from torsor.algorithms import articulated
from torsor.backends.pointwise import trace
from torsor.compiler.request import unrolled
from torsor.compiler.tape import Operations
from torsor.linalg import Mat, Vec
from torsor.model import Model
from torsor.theory import study
from torsor.theory.papers.check import Check, identity
from torsor.theory.study import saha


def checks() -> Iterator[Check]:
    """The checks of Saha 2001 that concern the algorithm."""
    model = zoo.stanford()
    q = np.array([0.3, 1.1, 0.4, -0.7, 0.5, 0.2])
    o = study.denoc(model, q)
    u = study.decompose(o)
    yield identity("Eq. 2", "M = N_d' N_l' M N_l N_d, Stanford arm", o.M, study.operators(model, q).M)
    yield identity("Eqs 11, 25-28", "I = U D U'", u.U @ np.diag(u.D) @ u.U.T, o.M)
    yield identity("section 2", "the analytic inverse", u.M_inverse @ o.M, np.eye(model.nv))
    links = general_links(6)
    phi = np.arange(1.0, 7.0)
    qdd = np.array(saha.forward_dynamics(links, q.tolist(), phi.tolist()))
    yield identity("section 3", "steps A, B, C: I qdd = phi", study.operators(model_of(links), q).M @ qdd, phi)
    for n in (6, 10):
        count = operations(n)
        within = count.mul + count.div <= 192 * n - 284 and count.add <= 187 * n - 325
        yield Check(
            "section 3", f"itemised operations, n = {n}", f"{192 * n - 284} M {187 * n - 325} A",
            f"{count.mul + count.div} M {count.add} A, of these {count.div} reciprocals", within,
        )  # fmt: skip
    ours = Operations.of(unrolled(articulated.mass_solve, zoo.general_arm(6), ("q", "b")))
    yield Check(
        "Table I", "solving for qdd, phi given, n = 6", "862 M 797 A",
        f"{ours.mul + ours.div} M {ours.add} A as compiled here", None,
    )  # fmt: skip
    formula = f"{_walker_orin_additions(6)} by their formula: a misprint"
    yield Check("Table I", "Walker & Orin, additions, n = 6", "480", formula, None)
    ten, eleven = operations(10), operations(11)
    yield Check(
        "Table I", "operations per joint", "191 M 187 A (the items sum to 192 M)",
        f"{eleven.mul - ten.mul} M {eleven.add - ten.add} A and a reciprocal", eleven.mul - ten.mul == 192,
    )  # fmt: skip


def _walker_orin_additions(n: int) -> int:
    """n^3 / 6 + 7 n^2 + 233 n / 6 - 46"""
    return (n**3 + 42 * n**2 + 233 * n) // 6 - 46


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
