"""The equations of motion as products of block matrices (Ploen & Park 1999, Eqs 6-14 and 18-33).

    V = G (S v + P_0 V_0)        dV = G (S dv + ad_Sv Gamma V + ad_Sv P_0 V_0 + P_0 dV_0)        dV_0 = (0, -g) + ...
    F = G^T (J dV + ad*_V J V + P_t^T F_t)        tau = S^T F

    M = S^T G^T J G S + R    C v = S^T G^T (J G ad_Sv Gamma + ad*_V J) G S v + B(v, v)
    phi = S^T G^T J G P_0 dV_0        J_t = P_t G S

Gamma has the block Ad_{f^-1} of every body at (body, parent), so it is nilpotent on a tree too, and
G = (1 - Gamma)^-1 = 1 + Gamma + Gamma^2 + ... sums along the outward paths.  `G_apply` and `GT_apply` apply
the same operators without dense matrices, in O(n), with one sweep each.  R is the armature of the model, which the
paper does not have, and B(v, v) the torques that the rotors of free joints need at constant velocity.

Misprints corrected: the blocks of G are Ad of f^-1; ad_Sv = diag(-ad_{S_i v_i}) without a star.  If S
depends on q (universal, planar joints), dS/dt v is added to -ad_{S v} Gamma V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import lie
from torsor.dense import checked_numbers, number_of, numbers_like
from torsor.dynamics.closed_forms.frames import ReframedLink, checked_frames, reframed_links
from torsor.inputs import COORDINATES, FREEDOMS
from torsor.linalg import Vec
from torsor.model.model import Model
from torsor.spatial import Rigid, Spatial, Subspace

Array = NDArray[Any]


@dataclass(frozen=True)
class Operators:
    """The block operators of a model at one state, in the frames Q; six rows or columns per body."""

    model: Model
    q: Array
    v: Array
    Q: Array  # (n, 4, 4), see `frames`
    Ad_inv: Array  # (n, 6, 6): Ad_{f^-1} of every body, from its parent's frame to its own
    S_blocks: tuple[Array, ...]  # (6, nv of the joint) each
    S_rate_blocks: tuple[Array, ...]
    J_blocks: Array  # (n, 6, 6)
    rotor_bias: Array  # (nv,): B(v, v)
    V_0: Array  # (6,): the twist of the base, in its frame
    base_acceleration: Array  # (6,): the derivative of V_0, without gravity

    # -- the operators

    @cached_property
    def S(self) -> Array:
        """diag(S_i), (6n, nv)."""
        return block_diagonal(self.S_blocks)

    @cached_property
    def J(self) -> Array:
        """diag(J_i), (6n, 6n)."""
        return block_diagonal(tuple(self.J_blocks))

    @cached_property
    def Gamma(self) -> Array:
        """Ad_{f^-1} at (body, parent), (6n, 6n)."""
        Gamma = np.zeros((6 * self.n, 6 * self.n), self.Ad_inv.dtype)
        for i, parent in enumerate(self.model.parent.tolist()):
            if parent >= 0:
                Gamma[rows(i), rows(parent)] = self.Ad_inv[i]
        return Gamma

    @cached_property
    def G(self) -> Array:
        """(1 - Gamma)^-1, (6n, 6n): Ad_{f_{j,i}^-1} at (i, j) if j is on the path from i to the base."""
        G = np.eye(6 * self.n, dtype=self.Ad_inv.dtype)
        for i, parent in enumerate(self.model.parent.tolist()):
            if parent >= 0:
                G[rows(i), : 6 * i] = self.Ad_inv[i] @ G[rows(parent), : 6 * i]
        return G

    @cached_property
    def P_0(self) -> Array:
        """Ad_{f^-1} of the root bodies, (6n, 6)."""
        P = np.zeros((6 * self.n, 6), self.Ad_inv.dtype)
        for i in np.flatnonzero(self.model.parent < 0).tolist():
            P[rows(i)] = self.Ad_inv[i]
        return P

    def P_t(self, body: int | str = -1) -> Array:
        """(6, 6n): maps the twists of all bodies to that of one body or named frame, in its own coordinates.

        P_t G S is its Jacobian; P_t^T maps a wrench there to the bodies.
        """
        at, T = self._place(body)
        P = np.zeros((6, 6 * self.n), self.Ad_inv.dtype)
        P[:, rows(at)] = lie.Ad(lie.inverse(self.Q[at] @ T))
        return P

    @cached_property
    def ad_Sv(self) -> Array:
        """diag(-ad_{S_i v_i}), (6n, 6n)."""
        return block_diagonal(tuple(-lie.ad(S @ v) for S, v in zip(self.S_blocks, self.by_joint(self.v))))

    @cached_property
    def ad_V(self) -> Array:
        """diag(-ad*_{V_i}), (6n, 6n)."""
        return block_diagonal(tuple(-lie.ad_dual(V) for V in self.V.reshape(-1, 6)))

    @property
    def dV_0(self) -> Array:
        """The acceleration of the base, including gravity."""
        return self.base_acceleration + np.concatenate([np.zeros(3), -self.model.gravity])

    # -- the equations of motion

    @cached_property
    def V(self) -> Array:
        """G S v + G P_0 V_0: the twists of all bodies, (6n,)                                (Eqs 6 and 27)"""
        return self.G_apply(self.S @ self.v + self.P_0 @ self.V_0)

    @cached_property
    def velocity_acceleration(self) -> Array:
        """ad_Sv Gamma V + ad_Sv P_0 V_0, and dS/dt v where S depends on q, (6n,)."""
        return self.ad_Sv @ (self.Gamma @ self.V + self.P_0 @ self.V_0) + block_diagonal(self.S_rate_blocks) @ self.v

    def dV(self, qdd: ArrayLike) -> Array:
        """G S dv + G ad_Sv Gamma V + G ad_Sv P_0 V_0 + G P_0 dV_0, (6n,)                    (Eqs 7 and 28)"""
        return self.G_apply(self.S @ np.asarray(qdd) + self.velocity_acceleration + self.P_0 @ self.dV_0)

    def F(self, qdd: ArrayLike, F_t: ArrayLike | None = None, body: int | str = -1) -> Array:
        """G^T (J dV + ad*_V J V + P_t^T F_t): the wrenches through all joints, (6n,)          (Eqs 8 and 29)

        F_t (6,) is the wrench that `body`, or a named frame, exerts on its surroundings, in its own coordinates.
        """
        own = self.J @ self.dV(qdd) + self.ad_V @ self.J @ self.V
        return self.GT_apply(own if F_t is None else own + self.P_t(body).T @ np.asarray(F_t))

    def tau(self, qdd: ArrayLike, F_t: ArrayLike | None = None, body: int | str = -1) -> Array:
        """S^T F + R dv + B(v, v), (nv,)                                                     (Eqs 9 and 30)"""
        return self.S.T @ self.F(qdd, F_t, body) + self.model.armature * np.asarray(qdd) + self.rotor_bias

    @cached_property
    def M(self) -> Array:
        """S^T G^T J G S + R                                                                     (Eq. 11)"""
        GS = self.G @ self.S
        return GS.T @ self.J @ GS + np.diag(self.model.armature)

    @cached_property
    def C(self) -> Array:
        """The velocity terms of the torques, (nv,)                                              (Eq. 12)"""
        own = self.J @ self.G @ self.velocity_acceleration + self.ad_V @ self.J @ self.V
        return self.S.T @ self.G.T @ own + self.rotor_bias

    @cached_property
    def phi(self) -> Array:
        """S^T G^T J G P_0 dV_0: the torques of gravity, (nv,)                                   (Eq. 13)"""
        return self.S.T @ self.G.T @ self.J @ self.G @ self.P_0 @ self.dV_0

    def J_t(self, body: int | str = -1) -> Array:
        """P_t G S, (6, nv)                                                                      (Eq. 14)"""
        return self.P_t(body) @ self.G @ self.S

    # -- without matrices, O(n)

    def G_apply(self, x: ArrayLike) -> Array:
        """G x for x (6n,): the sum along the outward paths, y_i = Ad_{f^-1} y_parent + x_i."""
        y = numbers_like(x).copy().reshape(self.n, 6)
        for i, parent in enumerate(self.model.parent.tolist()):
            if parent >= 0:
                y[i] += self.Ad_inv[i] @ y[parent]
        return y.ravel()

    def GT_apply(self, x: ArrayLike) -> Array:
        """G^T x for x (6n,): the sum over the bodies that each body carries, y_parent += Ad*_{f^-1} y_i."""
        y = numbers_like(x).copy().reshape(self.n, 6)
        for i, parent in reversed(list(enumerate(self.model.parent.tolist()))):
            if parent >= 0:
                y[parent] += self.Ad_inv[i].T @ y[i]
        return y.ravel()

    def M_apply(self, x: ArrayLike) -> Array:
        """M x = S^T G^T J G S x + R x, factor by factor."""
        twists = self.G_apply(np.concatenate([S @ xi for S, xi in zip(self.S_blocks, self.by_joint(x))]))
        wrenches = self.GT_apply(np.einsum("nij,nj->ni", self.J_blocks, twists.reshape(-1, 6)))
        torques = [S.T @ F for S, F in zip(self.S_blocks, wrenches.reshape(-1, 6))]
        return np.concatenate(torques) + self.model.armature * np.asarray(x)

    # -- helpers

    @property
    def n(self) -> int:
        return self.model.n

    def by_joint(self, x: ArrayLike) -> list[Array]:
        """A vector of nv numbers, split into those of each joint."""
        return np.split(np.asarray(x), self.model.v_start[1:-1])

    def _place(self, body: int | str) -> tuple[int, Array]:
        """The number of a body and the pose of the requested frame, in the model's frame of that body."""
        T = np.eye(4)
        if isinstance(body, str):
            frame = self.model.frame(body)
            T[:3, :3], T[:3, 3] = frame.R, frame.p
            return frame.body, T
        return range(self.n)[body], T


def operators(model: Model, q: ArrayLike, v: ArrayLike | None = None, *,
              Q: ArrayLike | None = None, base_velocity: ArrayLike | None = None,
              base_acceleration: ArrayLike | None = None) -> Operators:  # fmt: skip
    """The block operators at q (nq,) and v (nv,; default at rest), in the frames Q (default the model's).

    base_velocity V_0, base_acceleration (6,): the twist of a moving base and its derivative, in the base's frame.
    """
    base = [np.zeros(6) if x is None else checked_numbers(name, x, (6,))
            for name, x in (("base_velocity", base_velocity), ("base_acceleration", base_acceleration))]  # fmt: skip
    q = numbers_like(q)
    v = np.zeros(model.nv) if v is None else numbers_like(v)
    links = reframed_links(model, Q, number_of(q, v))
    coordinates, rates = COORDINATES.parts(model, q.tolist()), FREEDOMS.parts(model, v.tolist())
    return Operators(
        model, q, v, checked_frames(model, Q),
        Ad_inv=np.array([lie.Ad(lie.inverse(_pose(link, x))) for link, x in zip(links, coordinates)]),
        S_blocks=tuple(_columns(link.S(x)) for link, x in zip(links, coordinates)),
        S_rate_blocks=tuple(_columns(link.S_rate(x, y)) for link, x, y in zip(links, coordinates, rates)),
        J_blocks=np.array([_matrix(link) for link in links]),
        rotor_bias=np.concatenate([numbers_like(link.rotor_bias(y, y)) for link, y in zip(links, rates)]),
        V_0=base[0], base_acceleration=base[1],
    )  # fmt: skip


def rows(i: int) -> slice:
    """The rows of body i."""
    return slice(6 * i, 6 * i + 6)


def block_diagonal(blocks: Sequence[Array]) -> Array:
    heights, widths = (np.cumsum([0, *(b.shape[k] for b in blocks)]) for k in range(2))
    A = np.zeros((heights[-1], widths[-1]), np.result_type(*blocks))
    for b, top, left in zip(blocks, heights, widths):
        A[top : top + b.shape[0], left : left + b.shape[1]] = b
    return A


def _pose(link: ReframedLink, q: Vec) -> Array:
    f: Rigid = link.pose(q).as_rigid()
    return np.block([[numbers_like(f.R), numbers_like(f.p)[:, None]], [np.zeros(3), np.ones(1)]])


def _columns(S: Subspace) -> Array:
    return numbers_like([column.coordinates for column in S.columns]).T


def _matrix(link: ReframedLink) -> Array:
    columns = [(link.inertia @ Spatial.unit(k)).coordinates for k in range(6)]
    return numbers_like(columns).T
