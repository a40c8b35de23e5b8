"""Implicit methods in O(n): diagonally implicit Runge-Kutta methods whose equations are solved by articulated sweeps.

A stage needs the acceleration a at the end of a step of length g = gamma h from (q*, v*):

    M(q) a + bias(q, v) = tau(t, q, v),     v = v* + g a,     q = q* + g N(q) v.

With K and D the stiffness and the damping of the forces at the joints, Newton's matrix is close to

    M + R,     R = g D + g^2 K      (diagonal),

which is the mass matrix of a machine with heavier rotors: one articulated sweep solves a system with it. So

    a <- (M + R)^-1 (tau - bias + R a)

is one forward dynamics with R added to the pivots. For constant M and linear forces, however stiff, one iteration is
exact; otherwise it converges quickly if h resolves the rest of the motion. If the rest is stiff, too (a taut rope,
forces with unknown gains), the same sweep is the preconditioner of Newton's method with GMRES. The derivative along a
vector is then a difference of two sweeps: GMRES needs only three digits, and exact products (`tangent.py`, as in
`radau`) take two sweeps each, 1.0 to 1.7 times the total time. Later stages and steps of the same length reuse the
Krylov space of one solve, with one sweep per iteration, as long as they converge. No matrix is formed.

The stiffness and the damping of computed torques are M kp and M kd. Newton's matrix is then M (1 + S) + R with a
diagonal S = g kd + g^2 kp, and one sweep still solves with it:

    a <- (1 + S)^-1 ((M + R')^-1 (tau - bias + R' a) + S a),     R' = R (1 + S)^-1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from math import sqrt

import numpy as np

from torsor.backends.pointwise import compile_pointwise
from torsor.compiler.store import store
from torsor.linalg import Scalar
from torsor.motion.lowering import STATE
from torsor.motion.motion import Motion
from torsor.motion.plant import Plant, Scalars
from torsor.motion.stepper import (
    Adaptive,
    Array,
    Control,
    ErrorScale,
    Memory,
    Settings,
)
from torsor.motion.tangent import NUDGE

SETTLED = 0.03  # the error of a stage's equations, relative to the error allowed for the step
ITERATIONS = 8  # per stage; beyond, Krylov vectors or a shorter step are cheaper
LEAST_RATE, FADING = 1e-3, 0.8  # of convergence: the least rate assumed; the power of the old rate if none is measured
SLOW = 0.5  # the rate of convergence above which Krylov vectors are cheaper
VECTORS, KRYLOV_ROUNDS, FORCING = 30, 4, 1e-3  # GMRES: vectors per solve, solves per stage, relative residual
NEWTON_ROUNDS = 10  # per stage, including those with a reused Krylov space
MOST_COORDINATES = 60  # of a machine with quaternions whose stages are one kernel: that takes a second to compile
CURVED_ROUNDS = 4  # rounds for q = q* + g N(q) v where N depends on q


@dataclass(frozen=True)
class Tableau:
    """An explicit first stage, then stages with the same gamma; the last stage is the new state.

    A      (s, s)   weights of the rates            order  the order of the method
    E      (s,)     weights of the error estimate
    dense  (p, s)   weights of the rates in y(theta) = y + h sum_k theta^(k+1) sum_i dense_ki f_i
    """

    A: Array
    E: Array
    dense: Array
    order: int

    @property
    def gamma(self) -> float:
        return float(self.A[-1, -1])


def _tr_bdf2() -> Tableau:
    """TR-BDF2; its dense output is the parabola through the stages, without the rates, which are large if stiff."""
    d, w = 1 - sqrt(2) / 2, sqrt(2) / 4
    A = np.array([[0, 0, 0], [d, d, 0], [w, w, d]])
    other = np.array([(1 - w) / 3, (3 * w + 1) / 3, d / 3])
    c = 2 * d
    middle, last = np.array([[1.0], [-1.0]]) / (c - c * c), np.array([[-c], [1.0]]) / (1 - c)  # Lagrange's parabolas
    return Tableau(A, A[-1] - other, middle * A[1] + last * A[2], order=2)


def _esdirk4() -> Tableau:
    A = np.zeros((6, 6))
    A[1, :2] = 1 / 4, 1 / 4
    A[2, :3] = 8611 / 62500, -1743 / 31250, 1 / 4
    A[3, :4] = 5012029 / 34652500, -654441 / 2922500, 174375 / 388108, 1 / 4
    A[4, :5] = 15267082809 / 155376265600, -71443401 / 120774400, 730878875 / 902184768, 2285395 / 8070912, 1 / 4
    A[5] = 82889 / 524892, 0, 15625 / 83664, 69875 / 102672, -2260 / 8211, 1 / 4
    other = np.array([4586570599 / 29645900160, 0, 178811875 / 945068544, 814220225 / 1159782912, -3700637 / 11593932,
                      61727 / 225920])  # fmt: skip
    dense = np.array([
        [6943876665148 / 7220017795957, 0, 7640104374378 / 9702883013639, -20649996744609 / 7521556579894,
         8854892464581 / 2390941311638, -11397109935349 / 6675773540249],
        [-54480133 / 30881146, 0, -11436875 / 14766696, 174696575 / 18121608, -12120380 / 966161, 3843 / 706],
        [6818779379841 / 7100303317025, 0, 2173542590792 / 12501825683035, -31592104683404 / 5083833661969,
         61146701046299 / 7138195549469, -17219254887155 / 4939391667607],
    ])  # fmt: skip
    return Tableau(A, A[-1] - other, dense, order=4)


class Implicit(Adaptive):
    """An implicit method with adaptive steps."""

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings)
        self.scale = ErrorScale(motion, settings)
        self.h = min(self.scale.first_step(motion, t, self.row, self.order - 1), settings.max_step)
        self.evaluations += 1


class Dirk(Implicit):
    """A diagonally implicit method on the vector space of (q, v)."""

    tableau: Tableau

    def __init__(self, motion: Motion, t: float, q: Array, v: Array, settings: Settings) -> None:
        super().__init__(motion, t, q, v, settings)
        self.rate_of_convergence = 1.0, 0.0  # the rate of the last stage, and the length of that stage
        self.space: Krylov | None = None  # of the last solve by GMRES
        self.rates = np.empty_like(self.row, shape=(len(self.tableau.A), self.nq + self.nv))

        short = motion.coordinates.flat or motion.model.nq <= MOST_COORDINATES
        can_compile = type(motion) is Motion and motion.compiled_law.is_one_kernel and short
        self.kernel = StageKernel(motion) if can_compile else None

    @property
    def steady(self) -> bool:
        return self.space is not None

    def expected_rate(self, g: float) -> float:
        """The expected rate of convergence of a stage of length g: from the last stage, it grows at most as g^2."""
        rate, length = self.rate_of_convergence
        return min(1.0, rate * max(1.0, g / length) ** 2) if length else 1.0

    def remember_rate(self, rate: float, g: float) -> None:
        self.rate_of_convergence = min(1.0, max(rate, LEAST_RATE)), g

    def _try(self, h: float) -> float:
        y, tableau, nq = self.row[: self.nq + self.nv], self.tableau, self.nq
        self.rates[0] = self.rate(y, self.a)
        stage = _Stage(self, tableau.gamma * h, y, self.a.copy())
        times = tableau.A.sum(axis=1)
        for i, (weights, c) in enumerate(zip(tableau.A[1:], times[1:]), start=1):
            if i > 1 and times[i - 1] > times[i - 2]:  # initial guess: the straight line through the last two stages
                slope = (self.rates[i - 1, nq:] - self.rates[i - 2, nq:]) / (times[i - 1] - times[i - 2])
                stage.a = self.rates[i - 1, nq:] + (c - times[i - 1]) * slope
            if not stage.solve(self.before_jump(self.t + c * h), _combined(y, h * weights[:i], self.rates)):
                return np.inf
            self.rates[i, :nq], self.rates[i, nq:] = stage.q_rate, stage.a
        self._new = stage.q.copy(), stage.v.copy(), stage.a
        error = stage.damped(_combined(np.zeros_like(y), h * tableau.E, self.rates))
        error /= self.scale(y, np.concatenate([stage.q, stage.v]))
        return sqrt(_square(error) / len(error))

    def _take(self, t: float, h: float) -> None:
        self.row, self.row_old = self.row_old, self.row
        self.q[:], self.v[:], self.a[:] = self._new
        self.motion.coordinates.normalise(self.q)
        self.t_old, self.t = self.t, t

    def between(self, t: Array) -> tuple[Array, Array]:
        h = self.t - self.t_old
        theta = (t - self.t_old)[:, None] / h
        powers = theta ** np.arange(1, len(self.tableau.dense) + 1)
        place = self.motion.place
        y = self.row_old[: self.nq + self.nv] + place(h * powers) @ (place(self.tableau.dense) @ self.rates)
        self.motion.coordinates.normalise(y[:, : self.nq])
        return y[:, : self.nq], y[:, self.nq :]

    def memory(self) -> Memory:
        own = {"h": np.array([self.h, *self.rate_of_convergence])}
        if (space := self.space) is not None:
            own |= {"basis": space.basis, "hessenberg": space.H, "length": np.array([space.g])}
        return super().memory() | own

    def recall(self, memory: Memory) -> None:
        super().recall(memory)
        self.h, *rate = map(float, memory["h"])
        self.rate_of_convergence = (rate[0], rate[1]) if len(rate) > 1 else (1.0, 0.0)  # files of older versions
        if "basis" in memory:
            g = float(memory["length"][0])
            self.space = Krylov(self.motion.place(memory["basis"]), memory["hessenberg"], g)


class TrBdf2(Dirk):
    """The trapezoidal rule, then a backward difference: order 2, L-stable, two implicit stages.

    M. E. Hosea, L. F. Shampine, Analysis and implementation of TR-BDF2, Appl. Numer. Math. 20, 1996.
    """

    tableau = _tr_bdf2()
    order, points, control = 2, 3, Control(3)


class Esdirk4(Dirk):
    """The implicit half of ARK4(3)6L[2]SA: order 4, L-stable, five implicit stages, dense output of order 3.

    C. A. Kennedy, M. H. Carpenter, Additive Runge-Kutta schemes for convection-diffusion-reaction equations,
    Appl. Numer. Math. 44, 2003.
    """

    tableau = _esdirk4()
    order, points, control = 4, 4, Control(4)


def place_and_act(plant: Plant, q: Scalars, v: Scalars, g: Scalar, a: Scalars) -> list[list[Scalar]]:
    """The end of a stage of length g from (q, v) with the accelerations a: dq/dt, q, v, torques, R, stiffness."""
    end_v = plant.moved(v, a, g)
    rate = plant.rate(q, end_v)
    end_q = plant.moved(q, rate, g)
    for _ in range(0 if plant.model.nq == plant.model.nv else CURVED_ROUNDS):
        rate = plant.rate(end_q, end_v)
        end_q = plant.moved(q, rate, g)
    actions, _ = plant.actions(end_q, end_v)
    added = [(x.damping - x.excess + x.stiffness * g) * g for x in actions]
    return [rate, end_q, end_v, [x.tau for x in actions], added, [x.stiffness for x in actions]]


class StageKernel:
    """`place_and_act` as one kernel with its own memory: NumPy's arithmetic would take longer than the sweeps."""

    def __init__(self, motion: Motion) -> None:
        law, model = motion.compiled_law, motion.model
        own = law.step.step._replace(moves=True)
        self.compiled_law, self.by_freedoms = law, own.by_freedoms
        step = own.one_freedom if self.by_freedoms else own
        inputs = {name: step.inputs[name] for name in STATE} | {"a": (step.model.nv,)}

        def stage(q: Scalars, v: Scalars, tau: Scalars, gain: Scalars, h: Scalars, a: Scalars) -> list[Scalar]:
            plant = Plant(step.law, gain, tau, lambda *_: (), step.torques_on_tape({}))
            return [x for part in place_and_act(plant, q, v, h[0], a) for x in part]

        key = ("stage", "implicit", step.law.key, step.model.joint.tobytes())
        kernel = lambda: compile_pointwise(stage, inputs, "float64", None if step.law.tracked else key)  # noqa: E731
        self.kernel = store(model).once(("implicit stage", step.law.key, self.by_freedoms), kernel)
        nq, nv, sizes = model.nq, model.nv, (model.nq, model.nq, *[model.nv] * 4)
        self.q, self.v, self.tau, self.g = np.empty(nq), np.empty(nv), np.empty(motion.law.constant.size), np.ones(1)
        if self.by_freedoms:
            self.given = [self.q[:, None], self.v[:, None], self.tau[:, None], law.gain, self.g]
            out = np.empty((6, nv))
            self.found: Array = np.moveaxis(out, 0, -1)
            self.parts = list(out)
        else:
            self.given = [self.q, self.v, self.tau, law.values, self.g]
            self.found = np.empty(sum(sizes))
            self.parts = np.split(self.found, np.cumsum(sizes)[:-1])

    def start(self, t: float, q: Array, v: Array, g: float) -> None:
        """Set the initial state of a stage of length g that ends at t."""
        self.q[:], self.v[:], self.tau[:], self.g[0] = q, v, self.compiled_law.commands(t), g

    def __call__(self, a: Array) -> list[Array]:
        self.kernel(*self.given, a[:, None] if self.by_freedoms else a, self.found)
        return self.parts


class _Stage:
    """The equations of one implicit stage, and their solution (q, v, a)."""

    def __init__(self, stepper: Dirk, g: float, y: Array, a: Array) -> None:
        self.stepper, self.motion = stepper, stepper.motion
        self.g, self.a = g, a
        self.weights = self._weights(stepper.scale(y, y))
        self.tracking = stepper.motion.tracking
        self.S = None if self.tracking is None else g * self.tracking[1] + g**2 * self.tracking[0]

    def solve(self, t: float, y: Array) -> bool:
        """Solve for a, starting from the current guess; return False if the iteration does not converge."""
        nq = self.stepper.nq
        self.t, self.q_start, self.v_start = t, y[:nq], y[nq:]
        if self.stepper.kernel:
            self.stepper.kernel.start(t, self.q_start, self.v_start, self.g)
        if self._space() is not None:
            self._place(self.a)
            return self._by_krylov()
        last, rate = 0.0, self.stepper.expected_rate(self.g)
        before = rate / 2
        for _ in range(ITERATIONS):
            self._place(self.a)
            change = self._swept(self.added) - self.a
            size = self._size(change)
            if not size < np.inf:
                return False
            self.a = self.a + change
            if last:
                rate, before = max(size / last, before), size / last  # rates alternate if q and v correct each other
                if before > SLOW and size > SETTLED:
                    break
            if size * min(rate, 1.0) <= SETTLED * (1 - min(rate, 0.9)) or size == 0:
                self.stepper.remember_rate(rate if last else rate**FADING, self.g)
                self._place(self.a)
                return True
            last = size
        self._place(self.a)
        return self._by_krylov()

    def _place(self, a: Array) -> None:
        """Compute q and v at the end of the stage, the torques there, and R = (g D + g^2 K) / (1 + S)."""
        if self.stepper.kernel:
            self.q_rate, self.q, self.v, self.tau, self.added, self.stiffness = self.stepper.kernel(a)
        else:
            rate = self.motion.coordinates.rate
            self.v = self.v_start + self.g * a
            self.q_rate = self.v if self.motion.coordinates.flat else rate(self.q_start, self.v)
            self.q = self.q_start + self.g * self.q_rate
            for _ in range(0 if self.motion.coordinates.flat else CURVED_ROUNDS):
                self.q_rate = rate(self.q, self.v)
                self.q = self.q_start + self.g * self.q_rate
            self.tau, self.stiffness, damping = self.motion.compiled_law(self.t, self.q, self.v)
            self.added = self.g * damping + self.g**2 * self.stiffness
        if self.S is not None:
            self.added = self.added / (1 + self.S)

    def _swept(self, added: Array) -> Array:
        """(M + R)^-1 (tau - bias + R a) at (q, v); with computed torques, the second formula of this file."""
        self.stepper.evaluations += 1
        a = self.motion.implicit(self.t, self.q, self.v, self.tau + added * self.a, added)
        return a if self.S is None else (a + self.S * self.a) / (1 + self.S)

    def _weights(self, unit: Array) -> Array:
        """Weights of squared changes of a: the changes of (q, v), relative to the allowed errors."""
        nq, coordinates = self.stepper.nq, self.motion.coordinates
        of_v = (self.g / unit[nq:]) ** 2
        of_q = (self.g**2 / unit[:nq]) ** 2
        return of_v + (of_q if coordinates.flat else coordinates.gathered(of_q))

    def _size(self, change: Array) -> float:
        """The norm of a change of a."""
        if isinstance(change, np.ndarray):
            return sqrt(np.einsum("i,i,i", self.weights, change, change) / (self.stepper.nq + self.stepper.nv))
        return sqrt(float((self.weights * change).dot(change)) / (self.stepper.nq + self.stepper.nv))  # on a GPU

    def damped(self, error: Array) -> Array:
        """The error estimate times (1 - g J)^-1, J the Jacobian from K and D: correct for stiff motion, too.

        ev = rv - (M + R)^-1 (R rv + g K rq),    eq = rq + g N ev

        With computed torques, e = g kp rq:  ev = (1 + S)^-1 (rv - e - (M + R')^-1 (R' (rv - e) + g K rq)).
        """
        nq, coordinates = self.stepper.nq, self.motion.coordinates
        rq, rv = coordinates.velocity(self.q, error[:nq]), error[nq:]
        self.stepper.evaluations += 1
        if self.S is None or self.tracking is None:
            ev = rv - self.motion.implicit_solve(self.q, self.added * rv + self.g * self.stiffness * rq, self.added)
        else:
            e = self.g * self.tracking[0] * rq
            b = self.added * (rv - e) + self.g * self.stiffness * rq
            ev = (rv - e - self.motion.implicit_solve(self.q, b, self.added)) / (1 + self.S)
        return np.concatenate([error[:nq] + self.g * coordinates.rate(self.q, ev), ev])

    # ---- Newton's method with GMRES ----

    def _space(self) -> Krylov | None:
        """The Krylov space of the last solve, if that was for a stage of the same length."""
        space = self.stepper.space
        return space if space is not None and space.g == self.g else None

    def _by_krylov(self) -> bool:
        """Newton's method for G(a) = a - swept(a) = 0 from the current a, with R fixed; each G is one sweep."""

        def residual(a: Array) -> Array:
            self.a = a
            self._place(a)
            return a - self._swept(added)

        a, added, solves, space = self.a, self.added, 0, self._space()
        G = a - self._swept(added)
        size = self._size(G)
        for _ in range(NEWTON_ROUNDS):
            if not size < np.inf:
                break
            if size <= SETTLED:
                return True
            fresh = space is None
            if space is None:
                if solves == KRYLOV_ROUNDS:
                    break
                solves += 1
                space = self.stepper.space = gmres(partial(self._along, residual, a, G), -G, VECTORS, FORCING, self.g)
            new = a + space.solve(-G)
            G_new = residual(new)
            before, size_new = size, self._size(G_new)
            if size_new <= SETTLED or (size_new <= 10 * SETTLED and self._size(new - a) <= SETTLED):
                self.stepper.remember_rate(1.0, self.g)
                return True
            if fresh and not size_new <= 2 * before:
                break
            if not size_new <= SLOW * before:
                space = None
            if fresh or size_new < before:
                a, G, size = new, G_new, size_new
        self.stepper.space = None
        return False

    def _along(self, residual: Callable[[Array], Array], a: Array, G: Array, w: Array) -> Array:
        """dG/da w by a difference: about half of the digits are correct."""
        nudge = NUDGE * (1 + sqrt(_square(a))) / max(sqrt(_square(w)), 1e-300)
        return (residual(a + nudge * w) - G) / nudge


def _combined(x: Array, weights: Array, rows: Array) -> Array:
    """x + sum_j weights_j rows_j."""
    out, part = x.copy(), np.empty_like(x)
    for weight, row in zip(weights.tolist(), rows):
        if weight:
            out += np.multiply(row, weight, part)
    return out


def _square(x: Array) -> float:
    """x . x, without BLAS: its threads take longer than the sum, and their number would change the last bits."""
    square = np.einsum("i,i", x.conj(), x) if isinstance(x, np.ndarray) else x.dot(x)  # on a GPU, BLAS is faster
    return float(square.real)


@dataclass(frozen=True)
class Krylov:
    """A on a space of orthonormal rows: A basis[k] = sum_j H_jk basis[j]; outside of it, A is assumed to be 1."""

    basis: Array  # (k + 1, n), or (k, n) if the space is invariant
    H: Array  # (k + 1, k), or (k, k)
    g: float  # the length of the stage of A

    @cached_property
    def least_squares(self) -> Array:
        """b -> the y that minimises |b - H y|."""
        return np.linalg.pinv(self.H)

    def solve(self, b: Array) -> Array:
        """x with A x close to b."""
        inside = np.einsum("ki,i->k", self.basis.conj(), b)
        y = self.least_squares @ np.array(inside.tolist())
        left = b - np.einsum("k,ki->i", inside, self.basis)
        return left + np.einsum("k,ki->i", np.asarray(y, like=b), self.basis[: len(y)])


def gmres(product: Callable[[Array], Array], b: Array, vectors: int, tolerance: float, g: float = 0.0) -> Krylov:
    """The Krylov space with |b - A x| <= tolerance |b| for some x in it, or with `vectors` vectors; product(w) = A w.

    Y. Saad, M. H. Schultz, GMRES, SIAM J. Sci. Stat. Comput. 7, 1986.
    """
    size, whole = sqrt(_square(b)), len(b) <= vectors
    vectors = len(b) if whole else vectors  # the whole space serves many right-hand sides
    basis, H = np.empty_like(b, shape=(vectors + 1, len(b))), np.zeros((vectors + 1, vectors), b.dtype)
    basis[0] = b / size
    for k in range(vectors):
        w, known = product(basis[k]), basis[: k + 1]
        before = sqrt(_square(w))
        for _ in range(2):  # orthogonalising twice is enough
            part = np.einsum("ki,i->k", known.conj(), w)
            H[: k + 1, k] += np.array(part.tolist())
            w = w - np.einsum("k,ki->i", part, known)
        H[k + 1, k] = sqrt(_square(w))
        if not H[k + 1, k] > INVARIANT * before:
            return Krylov(known, H[: k + 1, : k + 1], g)
        basis[k + 1] = w / H[k + 1, k]
        small, target = H[: k + 2, : k + 1], np.zeros(k + 2)
        target[0] = size
        if not whole and _left(small, target) <= tolerance * size:
            break
    return Krylov(basis[: k + 2], small, g)


def _left(A: Array, b: Array) -> float:
    """The minimum of |b - A x|."""
    return sqrt(_square(b - A @ np.linalg.lstsq(A, b, rcond=None)[0]))


INVARIANT = 1e-7  # below this part outside of the space, a product by differences is inside: the rest is rounding
