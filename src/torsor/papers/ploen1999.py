"""S. R. Ploen, F. C. Park, Coordinate-invariant algorithms for robot dynamics, 1999: every numbered result.

The paper prints equations, not numbers; each is evaluated, with the corrections listed in docs/papers.md, on a
tree of twelve bodies with every type of joint (Table I: a chain), on a base that moves. The printed forms without
their corrections are evaluated as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor import lie, reference, zoo
from torsor.algorithms import articulated, composite, kinematics, newton_euler, ploen_park, ploen_park_forward
from torsor.dense import inverse, solve
from torsor.dynamics import closed_forms
from torsor.dynamics import functions as dynamics
from torsor.dynamics.closed_forms import block_diagonal
from torsor.dynamics.programs import compile
from torsor.errors import ArgumentError
from torsor.model import Model
from torsor.model.regular import require_no_armature
from torsor.papers import arithmetic
from torsor.papers.rows import Row, identity, misprint
from torsor.sweeps import Algorithm

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A machine in motion, on a moving base, and other frames Q for its bodies."""

    model: Model
    q: Array
    v: Array
    qdd: Array
    V_0: Array
    dV_0: Array
    Q: Array

    @classmethod
    def of(cls, model: Model, rng: np.random.Generator) -> Case:
        model = arithmetic.placed(model)
        q, (v, qdd) = model.random_configuration(rng), rng.normal(size=(2, model.nv))
        V_0, dV_0 = rng.normal(size=(2, 6))
        others = lie.exp_se3(arithmetic.given(rng.normal(size=(model.n, 6))))
        return cls(*(model, *map(arithmetic.given, (q, v, qdd, V_0, dV_0)), others))

    @property
    def base(self) -> dict[str, Array]:
        return {"base_velocity": self.V_0, "base_acceleration": self.dV_0}

    def evaluated(self, algorithm: Algorithm, **inputs: Array) -> Array:
        """The result of an algorithm of torsor, run step by step on plain numbers."""
        given: dict[str, Any] = {name: values.tolist() for name, values in {"q": self.q, **inputs}.items()}
        frame, number = self.model.frame(-1), arithmetic.number
        return np.array(reference.evaluate(algorithm, self.model, given, frame=frame, number=number))

    @cached_property
    def torques(self) -> Array:
        """The torques by Newton-Euler, on the moving base."""
        return self.evaluated(newton_euler.inverse_dynamics, v=self.v, qdd=self.qdd, **self.base)


@arithmetic.once
def case() -> Case:
    """A tree of every joint type on a moving base."""
    return Case.of(zoo.random_tree(12, 1), np.random.default_rng(0))


def _recursions() -> Iterator[Row]:
    """Eqs 1-5 and 34-38: the recursive inverse dynamics, on a base with the twist V_0 and the acceleration dV_0."""
    tree = case()
    found = tree.evaluated(ploen_park.inverse_dynamics, v=tree.v, qdd=tree.qdd, **tree.base)
    yield identity("Eqs 1-5", "recursive inverse dynamics, moving base", found, tree.torques)
    twists = tree.evaluated(kinematics.body_twists, v=tree.v, base_velocity=tree.V_0)
    o = closed_forms.operators(tree.model, tree.q, tree.v, base_velocity=tree.V_0)
    yield identity("Eq. 2", "V_i = Ad V_{i-1} + S_i dq_i is G S dq + G P_0 V_0", twists.ravel(), o.V)
    state = {name: x.tolist() for name, x in ({"q": tree.q, "v": tree.v, "qdd": tree.qdd} | tree.base).items()}
    again = closed_forms.evaluate(ploen_park.inverse_dynamics, tree.model, tree.Q, state)
    yield identity("Eqs 34-38", "the same recursion, any frames Q", np.array(again), tree.torques)


def _closed_forms(case: Case, Q: Array | None) -> Iterator[Row]:
    """Eqs 6-14 with Propositions 1 and 2, or, in other frames, Eqs 18-21 and 27-30 with 42 and 43."""
    equations, frames = (PLAIN, "") if Q is None else (REFRAMED, ", any frames Q")
    o = closed_forms.operators(case.model, case.q, case.v, Q=Q, **case.base)
    M = case.evaluated(composite.mass_matrix)
    external = np.zeros((case.model.n, 6))
    tip = np.arange(1.0, 7.0)
    external[-1] = -tip
    pushed = case.evaluated(newton_euler.inverse_dynamics, v=case.v, qdd=case.qdd, external=external, **case.base)
    yield identity(equations["F"], f"tau = S' F, with V_0, dV_0 and F_{{n+1}}{frames}", o.tau(case.qdd, tip), pushed)
    still = closed_forms.operators(case.model, case.q, case.v, Q=Q)
    bias, gravity = case.evaluated(newton_euler.bias_forces, v=case.v), case.evaluated(newton_euler.gravity_forces)
    whole = still.M @ case.qdd + still.C + still.phi + still.J_t().T @ tip
    yield identity(equations["motion"], f"M ddq + C + phi + J_t' f_t = tau{frames}", whole, still.tau(case.qdd, tip))
    yield identity(equations["M"], f"M = S'G'JGS{frames}", still.M, M)
    yield identity(equations["C"], f"velocity and gravity terms{frames}", still.C + still.phi, bias)
    yield identity(equations["phi"], f"phi = S'G'JG P_0 dV_0{frames}", still.phi, gravity)
    yield identity(equations["J_t"], f"J_t = P_t G S{frames}", still.J_t(), case.evaluated(kinematics.jacobian))
    f = closed_forms.Factorization(still)
    if Q is None:
        X = f.J_hat - still.Gamma.T @ (f.J_hat - f.J_hat @ still.S @ f.Phi) @ still.Gamma
        yield identity("Eqs 40, 41", "J = J^ - Gamma' (J^ - J^ S Omega^-1 S' J^) Gamma", X, still.J)
    yield identity(equations["square"], f"M = [1+S'G'Pi] Omega [1+S'G'Pi]'{frames}", f.M, M)
    what = f"M^-1 = [1-S'Y Pi]' Omega^-1 [1-S'Y Pi]{frames}"
    yield identity(equations["inverse"], what, f.M_inverse @ case.torques, solve(M, case.torques))


PLAIN = {
    "F": "Eqs 6-9", "motion": "Eq. 10", "M": "Eq. 11", "C": "Eqs 12, 13", "phi": "Eq. 13", "J_t": "Eq. 14",
    "square": "Proposition 1", "inverse": "Proposition 2",
}  # fmt: skip
REFRAMED = {
    "F": "Eqs 27-30", "motion": "Eq. 10", "M": "Eq. 18", "C": "Eqs 19, 20", "phi": "Eq. 20", "J_t": "Eq. 21",
    "square": "Eq. 42", "inverse": "Eq. 43",
}  # fmt: skip


def _plain() -> Iterator[Row]:
    yield from _closed_forms(case(), None)


def _reframed() -> Iterator[Row]:
    yield from _closed_forms(case(), case().Q)


def _transformations() -> Iterator[Row]:
    """Eqs 15-17, 22-26 and 31-33: every operator and every vector in other frames."""
    tree = case()
    old, new = (closed_forms.operators(tree.model, tree.q, tree.v, Q=Q, **tree.base) for Q in (None, tree.Q))
    Q, back = block_diagonal(tuple(lie.Ad(tree.Q))), block_diagonal(tuple(lie.Ad(lie.inverse(tree.Q))))
    yield identity("Eq. 15", "A = Q S", new.S, Q @ old.S)
    yield identity("Eq. 16", "L = Q G Q^-1", new.G, Q @ old.G @ back)
    yield identity("Eq. 17", "D = Q'^-1 J Q^-1", new.J, back.T @ old.J @ back)
    yield identity("Eq. 22", "Gamma-bar = Q Gamma Q^-1", new.Gamma, Q @ old.Gamma @ back)
    yield identity("Eq. 23", "ad-bar_Sdq = Q ad_Sdq Q^-1", new.ad_Sv, Q @ old.ad_Sv @ back)
    yield identity("Eq. 24", "ad-bar*_V = Q'^-1 ad*_V Q'", new.ad_V, back.T @ old.ad_V @ Q.T)
    yield identity("Eq. 25", "P-bar_0 = Q P_0", new.P_0, Q @ old.P_0)
    yield identity("Eq. 26", "P-bar_t' = Q'^-1 P_t'", new.P_t().T, back.T @ old.P_t().T)
    yield identity("Eqs 27, 31", "V-bar = Q V", new.V, Q @ old.V)
    yield identity("Eqs 28, 32", "dV-bar = Q dV", new.dV(tree.qdd), Q @ old.dV(tree.qdd))
    yield identity("Eqs 29, 33", "F-bar = Q'^-1 F", new.F(tree.qdd), back.T @ old.F(tree.qdd))


def _compiled() -> Iterator[Row]:
    """Results of programs for bodies in the frames Q, on a base at rest."""
    tree = case()
    o = closed_forms.operators(tree.model, tree.q, tree.v, Q=tree.Q)
    twists, wrenches = (compile(tree.model, f, Q=tree.Q) for f in (dynamics.body_twists, dynamics.constraint_forces))
    yield identity("Eqs 27, 31", "V-bar, by a compiled program in the frames Q", twists(tree.q, tree.v).ravel(), o.V)
    yield identity("Eqs 29, 33", "F-bar, by a compiled program in the frames Q",
                   wrenches(tree.q, tree.v, o.tau(tree.qdd)).ravel(), o.F(tree.qdd))  # fmt: skip


def _forward_dynamics() -> Iterator[Row]:
    tree = case()
    external = np.zeros((tree.model.n, 6))
    external[-1] = np.random.default_rng(1).normal(size=6)
    given = {"v": tree.v, "tau": tree.qdd, "external": external}
    expected = tree.evaluated(articulated.forward_dynamics, **given)
    yield identity("Eqs 39-41", "forward dynamics by F_i = J^_i dV_i + b_i",
                   tree.evaluated(composite.mass_matrix) @ expected
                   + tree.evaluated(newton_euler.bias_forces, v=tree.v, external=external), tree.qdd)  # fmt: skip
    found = tree.evaluated(ploen_park_forward.forward_dynamics, **given)
    yield identity("Eqs 44-68", "forward dynamics, a wrench on the tip", found, expected)


def _table_1() -> Iterator[Row]:
    chain = Case.of(zoo.random_chain(8, 3, joints=None), np.random.default_rng(2))
    operators = closed_forms.operators(chain.model, chain.q)
    for (ours, theirs), (a, b) in correspondence(closed_forms.Factorization(operators)).items():
        yield identity("Table I", f"{ours.split(' = ')[0]} is {theirs}", a, b)


def _misprints() -> Iterator[Row]:
    """Printed forms that do not hold, on a chain of six revolute joints."""
    case = Case.of(zoo.random_chain(6, 5), np.random.default_rng(3))
    o = closed_forms.operators(case.model, case.q, case.v, **case.base)
    still = closed_forms.operators(case.model, case.q, case.v)
    gravity = case.evaluated(newton_euler.gravity_forces)
    yield identity("after Eq. 5", "dV_0 = (0, g), g upwards: the base accelerates against gravity", still.phi, gravity)
    forward = [[lie.Ad(lie.inverse(_between(still, i, j))) if i > j else np.eye(6) * (i == j)
                for j in range(still.n)] for i in range(still.n)]  # fmt: skip
    backward = [[lie.Ad(_between(still, i, j)) if i > j else np.eye(6) * (i == j) for j in range(still.n)]
                for i in range(still.n)]  # fmt: skip
    yield misprint("after Eq. 9", "blocks of G are Ad of f_{j,i}", "Ad of f_{j,i}^-1", np.block(backward),
                   np.block(forward), inverse(np.eye(6 * still.n) - still.Gamma))  # fmt: skip
    star = block_diagonal(tuple(-lie.ad_dual(S @ v) for S, v in zip(o.S_blocks, case.v[:, None])))
    wrong = o.G @ (o.S @ case.qdd + star @ (o.Gamma @ o.V + o.P_0 @ o.V_0) + o.P_0 @ o.dV_0)
    yield misprint("Eq. 7", "-ad*_{S dq} on the diagonal", "-ad_{S dq}", o.J @ wrong, o.J @ o.dV(case.qdd),
                   _wrenches(case))  # fmt: skip
    J_hat = closed_forms.Factorization(still).J_hat
    blocks = [J_hat[6 * i : 6 * i + 6, 6 * i : 6 * i + 6] for i in range(still.n)]
    last, S = blocks[-1], still.S_blocks[-1]
    less = last - last @ S @ S.T @ last / (S.T @ last @ S)
    Ad_inv = still.Ad_inv[-1]
    Ad = inverse(Ad_inv)
    own = still.J_blocks[-2]
    yield misprint("Eqs 40, 58, 59", "Ad*_f and Ad_f, without inverse", "Ad*_{f^-1} and Ad_{f^-1}",
                   own + Ad.T @ less @ Ad, own + Ad_inv.T @ less @ Ad_inv, blocks[-2])  # fmt: skip


def _between(o: closed_forms.Operators, i: int, j: int) -> Array:
    """f_{j,i}, the pose of body i in body j on a chain."""
    poses = dynamics.body_poses(o.model, o.q)
    return lie.inverse(poses[j]) @ poses[i]


def _wrenches(case: Case) -> Array:
    """J_i dV_i of every body, from dV as a difference of twists along the motion, not from Eq. 7."""
    h = arithmetic.step(4, 1e-4)

    def twists(t: Any) -> Array:
        q, v = case.q + t * case.v + t * t / 2 * case.qdd, case.v + t * case.qdd
        return closed_forms.operators(case.model, q, v, base_velocity=case.V_0 + t * case.dV_0).V

    rate = (8 * (twists(h) - twists(-h)) - (twists(2 * h) - twists(-2 * h))) / (12 * h)
    still = closed_forms.operators(case.model, case.q)
    return still.J @ (rate + still.G @ still.P_0 @ still.dV_0)


# Table I: the spatial operator algebra ----------------------------------------------------------------------

TABLE_I = (
    ("G^T = (1 - Gamma^T)^-1", "phi = (1 - E_phi)^-1"),
    ("J^ = X^T J^ X + J", "P = E_psi P E_psi* + M"),
    ("Omega = S^T J^ S", "D = H P H*"),
    ("Phi^T = J^ S Omega^-1", "G = P H* D^-1"),
    ("Pi = Gamma^T Phi^T", "K = E_phi G"),
    ("X^T = Gamma^T (1 - Phi^T S^T)", "E_psi = E_phi (1 - G H)"),
    ("Y = (1 - X^T)^-1", "psi = (1 - E_psi)^-1"),
)


def spatial_operators(o: closed_forms.Operators) -> tuple[Array, ...]:
    """(phi, P, D, G, K, E_psi, psi) of a chain, links numbered from the tip (1) to the base (n), as their authors do.

    E_phi(k+1, k) moves a force from link k to link k+1; P, D, G are those of a Kalman filter from the tip, link by
    link.
    """
    if not o.model.is_chain:
        raise ArgumentError(f"{o.model!r} branches; Table I is about chains, each body attached to the one before it")
    require_no_armature(o.model, "Table I")
    outer = list(reversed(range(o.n)))  # link k of the algebra is body outer[k]
    one, E_phi, P_plus = np.eye(6 * o.n), np.zeros((6 * o.n, 6 * o.n), o.J.dtype), np.zeros((6, 6))
    P, D, G = [], [], []
    for k, i in enumerate(outer):
        H = o.S_blocks[i].T
        up = o.Ad_inv[outer[k - 1]].T if k else np.zeros((6, 6))
        E_phi[6 * k : 6 * k + 6, 6 * max(k - 1, 0) : 6 * max(k, 1)] = up
        P.append(up @ P_plus @ up.T + o.J_blocks[i])
        D.append(H @ P[k] @ H.T)
        G.append(P[k] @ H.T @ inverse(D[k]))
        free = np.eye(6) - G[k] @ H
        P_plus = free @ P[k] @ free.T  # the form of the Riccati equation that stays symmetric under rounding
    gains, H = block_diagonal(G), block_diagonal([o.S_blocks[i].T for i in outer])
    E_psi = E_phi @ (one - gains @ H)
    phi, psi = (inverse(one - E) for E in (E_phi, E_psi))
    return phi, block_diagonal(P), block_diagonal(D), gains, E_phi @ gains, E_psi, psi


def correspondence(f: closed_forms.Factorization) -> dict[tuple[str, str], tuple[Array, Array]]:
    """Table I in numbers: (ours, theirs) -> both matrices, ours renumbered from the tip to the base."""
    o = f.operators
    bodies = np.concatenate([np.arange(6) + 6 * i for i in reversed(range(o.n))])
    starts = o.model.v_start
    freedoms = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in reversed(range(o.n))])
    ours = (
        (o.G.T, bodies, bodies), (f.X.T @ f.J_hat @ f.X + o.J, bodies, bodies), (f.Omega, freedoms, freedoms),
        (f.Phi.T, bodies, freedoms), (f.Pi, bodies, freedoms), (f.X.T, bodies, bodies), (f.Y, bodies, bodies),
    )  # fmt: skip
    return {names: (A[np.ix_(top, left)], B) for names, (A, top, left), B in zip(TABLE_I, ours, spatial_operators(o))}


IDENTITIES = (_recursions, _plain, _reframed, _transformations, _forward_dynamics, _table_1, _misprints)
PARTS = (*IDENTITIES, _compiled)


def figures(folder: Path) -> Iterator[Path]:
    """No figures: the paper shows no results."""
    return iter(())
