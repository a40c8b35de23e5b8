"""Radau IIA, order 5: three coupled stages, for stiff motion of any kind, in O(n).

The unknowns are the accelerations a_i of the stages, at the times t + c_i h:

    M(Q_i) a_i + bias(Q_i, V_i) = tau(Q_i, V_i),     V = v + h A a,     Q = q + h A (N(Q) V).

With K and D the stiffness and the damping of the forces at the joints and R = g D + g^2 K, g a part of h, they are
written as G = 0,

    G_i = a_i - (M + R)^-1 (tau - bias + R a_i)  at (Q_i, V_i).

For stiff motion, G is a balance of forces; otherwise, a balance of accelerations. Each form converges slowly in the
other case, because M changes within the step. Newton's method for G has the matrix
(M + R)^-1 (M + h A C_v + (h A)^2 C_q), C as in `tangent.py`, at the beginning of the step. In the eigenvectors of A
it decouples into systems with the matrices

    W_g = M + g C_v + g^2 C_q,      g = h / mu,     mu the eigenvalues of A^-1: one real, two conjugate complex.

For small machines these matrices are formed. For others, C is first replaced by K and D:
W_g^-1 = (M + g D + g^2 K)^-1 is a sweep with complex pivots (`algorithms/complex_pivots.py`). If that converges too
slowly, the sweep is the preconditioner of GMRES. The three stages are computed in lanes, at the cost of one.

E. Hairer, G. Wanner, Solving Ordinary Differential Equations II, 2nd ed., 1996, IV.8.
"""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import Any

import numpy as np

from torsor.algorithms import complex_pivots
from torsor.algorithms.articulated import forward_dynamics
from torsor.dynamics import functions as dynamics
from torsor.dynamics.couplings import coupled_accelerations, reduced
from torsor.motion.dense import lagrange
from torsor.motion.implicit import FORCING, VECTORS, Implicit, Krylov, gmres
from torsor.motion.motion import ADDED, Motion, compiled_with
from torsor.motion.stepper import Array, Control, Memory, Settings
from torsor.motion.tangent import LANES, Tangent, in_lanes

SMALL = 30  # freedoms up to which matrices are formed; beyond, BLAS may start threads that take longer than the work
ITERATIONS = 7  # of Newton's method per step
QUICK, GOOD = 2, 1e-3  # iterations, or a rate of convergence, up to which the matrices serve another step

POWERS, _root = np.arange(1, 4), sqrt(6)
NODES = np.array([(4 - _root) / 10, (4 + _root) / 10, 1])
A = (NODES[:, None] ** POWERS / POWERS) @ np.linalg.inv(NODES[:, None] ** (POWERS - 1))  # collocation at the nodes
_mu, _vectors = np.linalg.eig(np.linalg.inv(A))
_pair = np.argsort(_mu.imag)[[1, 0]]  # the real eigenvalue, and one of the two complex ones
MU, BACK, FORTH = _mu[_pair], _vectors[:, _pair] * [1, 2], np.linalg.inv(_vectors)[_pair]
# the polynomial through 0 and the stages: Z(theta) = sum_k theta^(k+1) sum_i DENSE_ki Z_i
DENSE = np.linalg.inv(NODES[:, None] ** POWERS)
# the error of an embedded method of order 3: (1/g - J)^-1 (f + sum_i ERROR_i Z_i / h), for the real g
ERROR = np.array([-13 - 7 * _root, -13 + 7 * _root, -1]) / 3


class RadauIIA(Implicit):
    """Collocation at Radau's points, with adaptive steps on the vector space of (q, v)."""

    order, points, control = 5, 4, Control(4)

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings)
        plain = not motion.model.couplings
        self._forward: Any = compiled_with(motion.model, forward_dynamics, ADDED, LANES) if plain else self._coupled
        rtol = float(self.scale.rtol.min())
        self.tolerance = max(10 * np.finfo(np.float64).eps / rtol, min(0.03, sqrt(rtol)))  # of the stages
        self._forget()

    def _coupled(self, q: Array, v: Array, tau: Array, added: Array) -> Array:
        return coupled_accelerations(self.motion.model, q, v, tau, added_inertia=added)

    def _forget(self) -> None:
        """Forget everything that the last steps tell about the next one, except its length."""
        self.newton: Collocation | Swept | None = None
        self.exact = False  # whether C is needed, because K and D were not enough
        self.stages, self.h_old = np.tile(self.a, (3, 1)), 0.0

    @property
    def steady(self) -> bool:
        return self.exact

    def _try(self, h: float) -> float:
        while True:
            fresh = self.newton is None
            if self.newton is None:
                self.newton = Collocation(self) if self.nv <= SMALL else Swept(self)
            self.newton.prepare(h)
            if (a := self._settled(self.newton, h)) is not None:
                self._new = a
                self.Z = np.hstack(self._place(h, a)) - self.row[: self.nq + self.nv]
                return self._error(self.newton, h)
            self.newton = None
            if fresh:
                return np.inf

    def _settled(self, newton: Collocation | Swept, h: float) -> Array | None:
        """The accelerations of the stages, or None if Newton's method does not converge."""
        y, nq, a = self.row[: self.nq + self.nv], self.nq, self._predicted(h)
        unit = self.scale(y, y).copy()
        of_q, last = unit[:nq], 0.0
        self._Q: Array | None = None
        for k in range(1, ITERATIONS + 1):
            change = (BACK @ newton.corrected(-(FORTH @ self._residual(h, a, newton.added)))).real
            dv = h * (A @ change)
            step = np.hstack([h * (A @ dv)[:, self.motion.coordinates.velocity_of] / of_q, dv / unit[nq:]])
            size = sqrt(np.einsum("ij,ij", step, step) / step.size)
            if not size < np.inf:
                return None
            rate = size / last if last else 0.0
            if rate >= 1 or rate ** (ITERATIONS - k) / (1 - rate) * size > self.tolerance:
                if not newton.renew():
                    return None
                last = 0.0
                continue
            a = a + change
            if size == 0 or (last and rate / (1 - rate) * size < self.tolerance):
                self._serves = k <= QUICK or rate <= GOOD
                return a
            last = size
        return None

    def _predicted(self, h: float) -> Array:
        """A guess: the parabola through the accelerations of the last step's stages, extrapolated."""
        if not self.h_old:
            return self.stages
        return lagrange(NODES, 1 + h / self.h_old * NODES) @ self.stages

    def _place(self, h: float, a: Array) -> tuple[Array, Array]:
        """Q and V of the stages."""
        coordinates = self.motion.coordinates
        V = self.v + h * (A @ a)
        if coordinates.flat:
            return self.q + h * (A @ V), V
        # starting from the last Q, Newton's iterations make Q converge, too
        Q, rounds = (np.broadcast_to(self.q, (3, self.nq)), 4) if self._Q is None else (self._Q, 2)
        for _ in range(rounds):
            Q = self.q + h * (A @ coordinates.rate(Q, V))
        self._Q = Q
        return Q, V

    def _residual(self, h: float, a: Array, added: Array) -> Array:
        """G, (3, nv)."""
        Q, V = self._place(h, a)
        self.evaluations += 3
        tau = self.motion.torques(np.minimum(self.t + h * NODES, self.before_jump(np.inf)), Q, V) + added * a
        return a - in_lanes(self._forward, Q, V, tau, added)

    def _error(self, newton: Collocation | Swept, h: float) -> float:
        y, tail = self.row[: self.nq + self.nv], ERROR @ self.Z / h
        unit = self.scale(y, y + self.Z[-1]).copy()

        def size(error: Array) -> float:
            return sqrt(np.einsum("i,i", error / unit, error / unit) / len(error))

        error = newton.filtered(self.rate(y, self.a) + tail)
        if size(error) > 1 and self.rejected:  # the estimate is too large for stiff motion: filter once more
            moved = y + error
            error = newton.filtered(self.rate(moved, self.acceleration(self.t, *np.split(moved, [self.nq]))) + tail)
        return size(error)

    def _take(self, t: float, h: float) -> None:
        self.h_old, self.stages, self.path = t - self.t, self._new, DENSE @ self.Z
        np.copyto(self.row_old, self.row)
        self.row[: self.nq + self.nv] += self.Z[-1]
        self.motion.coordinates.normalise(self.q)
        self.motion.accelerate(self.before_jump(t), self.q, self.v, self.a)
        self.evaluations += 1
        self.t_old, self.t = self.t, t
        if not self._serves:
            self.newton = None

    def between(self, t: Array) -> tuple[Array, Array]:
        theta = (t - self.t_old)[:, None] / (self.t - self.t_old)
        y = self.row_old[: self.nq + self.nv] + theta**POWERS @ self.path
        self.motion.coordinates.normalise(y[:, : self.nq])
        return y[:, : self.nq], y[:, self.nq :]

    def memory(self) -> Memory:
        self._forget()  # a resumed run must continue with the same bits, and does not have this
        return super().memory() | {"h": np.array([self.h])}

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.h = float(memory["h"][0])
        self._forget()


class _Systems:
    """The systems W_g at the beginning of a step, for the real g and a complex one."""

    def __init__(self, stepper: RadauIIA) -> None:
        self.stepper, self.motion, self.h = stepper, stepper.motion, 0.0
        self.q, self.v, self.a = stepper.q.copy(), stepper.v.copy(), stepper.a.copy()
        self.tangent = Tangent(stepper.motion, stepper.t, self.q, self.v, self.a)
        self.stiffness, self.damping = self.motion.slopes(stepper.t, self.q, self.v)

    def prepare(self, h: float) -> None:
        """Prepare for steps of length h."""
        if h != self.h:
            self.h, self.g = h, h / MU
            g = self.g[:, None]
            self.pivots = g * self.damping + g**2 * self.stiffness
            self.added = self.pivots[0].real.copy()  # R
            self.factor()

    def factor(self) -> None:
        """Compute what depends on g."""
        raise NotImplementedError

    def solve(self, b: Array) -> Array:
        """W_g^-1 b, (2, nv)."""
        raise NotImplementedError

    def corrected(self, G: Array) -> Array:
        """W_g^-1 (M + R) G, (2, nv)."""
        raise NotImplementedError

    def unbalanced(self, dq: Array, dv: Array) -> Array:
        """C(dq, dv), (nv,)."""
        return self.tangent(dq[None], dv[None])[0]

    def filtered(self, r: Array) -> Array:
        """x with (1/g - J) x = r, for the real g.

        x_v = g (r_v + z),    W_g z = -C(g r_q + g^2 r_v, g r_v),    x_q = g (r_q + N x_v)
        """
        coordinates, nq, g = self.motion.coordinates, self.stepper.nq, float(self.g[0].real)
        rq, rv = coordinates.velocity(self.q, r[:nq]), r[nq:]
        b = np.zeros((2, len(rv)), complex)
        b[0] = -self.unbalanced(g * rq + g**2 * rv, g * rv)
        xv = g * (rv + self.solve(b)[0].real)
        return np.concatenate([g * (r[:nq] + coordinates.rate(self.q, xv)), xv])

    def renew(self) -> bool:
        """Make the systems more exact; return False if that is not possible."""
        return False


class Collocation(_Systems):
    """The systems as matrices, for machines with few freedoms."""

    def __init__(self, stepper: RadauIIA) -> None:
        super().__init__(stepper)
        n, model = stepper.nv, stepper.motion.model
        found = dynamics.inverse_dynamics_derivatives(model, self.q, self.v, self.a)
        unit, zero = np.eye(n), np.zeros((n, n))
        pulls = self.tangent.torques(np.vstack([unit, zero]), np.vstack([zero, unit]))
        self.M, self.Cq, self.Cv = found.M, found.dq - pulls[:n].T, found.dv - pulls[n:].T
        self.G = model.coupling_matrix() if model.couplings else None
        stepper.evaluations += n

    def factor(self) -> None:
        g, G = self.g[:, None, None], self.G
        W = self.M + g * self.Cv + g**2 * self.Cq
        try:
            self.inverse = np.linalg.inv(W) if G is None else G @ np.linalg.inv(G.T @ W @ G) @ G.T
        except np.linalg.LinAlgError:
            self.inverse = np.full(W.shape, np.nan)  # leads to a shorter step
        self.corrector = self.inverse @ (self.M + np.diag(self.added))

    def solve(self, b: Array) -> Array:
        return (self.inverse @ b[:, :, None])[:, :, 0]

    def corrected(self, G: Array) -> Array:
        return (self.corrector @ G[:, :, None])[:, :, 0]

    def unbalanced(self, dq: Array, dv: Array) -> Array:
        return self.Cq @ dq + self.Cv @ dv


class Swept(_Systems):
    """The systems by sweeps with K and D; if that is not enough, by GMRES with C."""

    def __init__(self, stepper: RadauIIA) -> None:
        super().__init__(stepper)
        model = self.motion.model
        self.program = None if model.couplings else compiled_with(model, complex_pivots.mass_solve, (), 2)

    def factor(self) -> None:
        self.spaces: list[Krylov] = []

    def solve(self, b: Array) -> Array:
        return self._inside(self._swept(b))

    def corrected(self, G: Array) -> Array:
        return self._inside(G + self._swept((self.added - self.pivots) * G))

    def _inside(self, z: Array) -> Array:
        """((M + R_g)^-1 W_g)^-1 z, R_g the pivots."""
        if not self.stepper.exact or not (self.spaces or z.any(axis=1).all()):
            return z
        self.reused = bool(self.spaces)
        if not self.spaces:
            self.spaces = [gmres(partial(self._product, k), zk, VECTORS, FORCING) for k, zk in enumerate(z)]
        return np.array([space.solve(zk) for space, zk in zip(self.spaces, z)])

    def unbalanced(self, dq: Array, dv: Array) -> Array:
        return super().unbalanced(dq, dv) if self.stepper.exact else self.stiffness * dq + self.damping * dv

    def _product(self, k: int, w: Array) -> Array:
        """(M + R_g)^-1 W_g w = w + (M + R_g)^-1 (C(g^2 w, g w) - R_g w)."""
        g, own = self.g[k], slice(k, k + 1)
        c = self.tangent(*(np.stack([(x * w).real, (x * w).imag]) for x in (g**2, g)))
        self.stepper.evaluations += 4
        return w + self._swept((c[0] + 1j * c[1] - self.pivots[k] * w)[None], own)[0]

    def _swept(self, b: Array, systems: slice = slice(None)) -> Array:
        """(M + R_g)^-1 b."""
        added = self.pivots[systems]
        if self.program is None:
            G, W = reduced(self.motion.model, self.q, added)
            return np.linalg.solve(W, (b @ G)[..., None])[..., 0] @ G.T
        parts = (np.ascontiguousarray(x) for z in (b, added) for x in (z.real, z.imag))
        found = self.program(self.q, *parts)
        return found.re + 1j * found.im

    def renew(self) -> bool:
        if self.stepper.exact and not self.reused:
            return False
        self.stepper.exact, self.spaces = True, []
        return True
