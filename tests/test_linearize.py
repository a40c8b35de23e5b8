"""`linearize`, against differences of simulated motion, closed forms, and controllers that balance."""

import sys

import numpy as np
import pytest
from machines import difference, floating_tree
from scipy.linalg import expm, solve_continuous_are, solve_discrete_are

import torsor as ts
from torsor import zoo
from torsor.dynamics import linear

STEP = 1e-5  # of time and of the change
NEAR = 1e-4  # what differences of such steps leave: STEP^2 times third derivatives, and rounding / STEP^2


def test_a_pendulum_upright_and_hanging():
    m, length, g = 1.5, 0.7, 9.81
    pendulum = ts.Model.chain(axis=[0, 1, 0], mass=m, com=[0, 0, -length], inertia=[1e-3] * 3, n=1, gravity=[0, 0, -g])
    J = m * length**2 + 1e-3
    for q, sign in ((0.0, -1.0), (np.pi, 1.0)):
        A, B = ts.linearize(pendulum, [q], [0.0], [0.0])
        assert np.allclose(A, [[0, 1], [sign * m * g * length / J, 0]], atol=1e-14)
        assert np.allclose(B, [[0], [1 / J]], rtol=1e-14)
    w, dt = np.sqrt(m * g * length / J), 0.05
    A, B = ts.linearize(pendulum, [0.0], [0.0], [0.0], dt)
    assert np.allclose(A, [[np.cos(w * dt), np.sin(w * dt) / w], [-w * np.sin(w * dt), np.cos(w * dt)]], rtol=1e-13)
    assert np.allclose(B[:, 0] * J, [(1 - np.cos(w * dt)) / w**2, np.sin(w * dt) / w], rtol=1e-12)


@pytest.mark.parametrize("model", [zoo.random_tree(4, 1), floating_tree(3)], ids=["tree", "floating"])
def test_the_rate_of_a_small_change_in_motion(model):
    """x = (difference of q, of v) of two neighbouring motions changes at the rate A x + B u, also far from rest."""
    rng = np.random.default_rng(0)
    q, v, tau = model.random_configuration(rng), rng.normal(size=model.nv), rng.normal(size=model.nv)
    A, B = ts.linearize(model, q, v, tau)

    def after(dx, u, time):
        """The state after a short time, by the exponential of the mean velocity: an error of time^3."""
        q1, v1 = model.integrate(q, dx[: model.nv]), v + dx[model.nv :]
        a = ts.forward_dynamics(model, q1, v1, tau + u)
        half = v1 + a * (time / 2)
        return model.integrate(q1, half * time), v1 + a * time

    for k in range(3 * model.nv):
        x, u = np.zeros(2 * model.nv), np.zeros(model.nv)
        (x if k < 2 * model.nv else u)[k % (2 * model.nv)] = STEP
        changes = []
        for time in (STEP, -STEP):
            changed = []
            for side in (1.0, -1.0):
                q0, v0 = after(0 * x, 0 * u, time)
                q1, v1 = after(side * x, side * u, time)
                changed.append(np.concatenate([model.difference(q0, q1), v1 - v0]))
            changes.append((changed[0] - changed[1]) / 2)
        rate = (changes[0] - changes[1]) / (2 * STEP) / STEP
        assert difference(rate, (A @ x + B @ u) / STEP, scale=np.abs(A).max()) < NEAR


def cart_pole():
    """A cart of 1 kg on a rail along x, and a pole of 0.3 kg and 1 m on it, upright at q = 0."""
    return ts.Model.chain(
        ["prismatic", "revolute"], axis=[[1, 0, 0], [0, 1, 0]], mass=[1.0, 0.3], com=[[0, 0, 0], [0, 0, 0.5]],
        inertia=[[1e-2] * 3, [0.025, 0.025, 1e-4]], names=["cart", "pole"],
    )  # fmt: skip


def test_a_cart_pole_is_balanced_by_its_linearisation():
    model, zero = cart_pole(), np.zeros(2)
    A, B = ts.linearize(model, zero, zero, zero)
    B = B[:, :1]  # only the cart is driven
    assert np.linalg.eigvals(A).real.max() > 1.0  # it falls by itself
    K = B.T @ solve_continuous_are(A, B, np.eye(4), np.eye(1))
    start = np.array([0.1, 0.2])
    motion = ts.simulate(
        model, start, zero, duration=15.0, forces=lambda t, q, v: np.array([-(K @ np.concatenate([q, v]))[0], 0.0])
    )
    assert np.abs(motion.q[-1]).max() < 1e-3


def test_held_torques_in_discrete_time():
    """A rollout under a feedback that is held between samples follows the discrete system."""
    model, zero, dt = cart_pole(), np.zeros(2), 0.02
    A, B = ts.linearize(model, zero, zero, zero, dt)
    B = B[:, :1]
    P = solve_discrete_are(A, B, np.eye(4), np.eye(1))
    K = np.linalg.solve(np.eye(1) + B.T @ P @ B, B.T @ P @ A)
    x, q, v = np.array([1e-4, 2e-4, 0, 0]), np.array([1e-4, 2e-4]), zero
    for _ in range(100):
        tau = np.array([-(K @ np.concatenate([q, v]))[0], 0.0])
        held = ts.rollout(model, q, v, forces=ts.Constant(tau), steps=20, step=dt / 20, method="rk4")
        q, v, x = held.q[-1], held.v[-1], (A - B @ K) @ x
    assert np.abs(np.concatenate([q, v]) - x).max() < 1e-9  # second order in a state of 1e-4


# Taylor's polynomial is exact to rounding, which every squaring of a growing matrix doubles.
SQUARED = 1e-12


@pytest.mark.parametrize("dt", [1e-6, 0.01, 0.3, 3.0])
@pytest.mark.parametrize("model", [zoo.panda(), zoo.humanoid()], ids=lambda model: model.name)
def test_the_discrete_system_is_the_exponential_of_the_continuous_one(model, dt):
    rng = np.random.default_rng(0)
    q, v, tau = model.random_configuration(rng, 3), *rng.normal(size=(2, 3, model.nv))
    A, B = ts.linearize(model, q, 0.1 * v, tau)
    found = ts.linearize(model, q, 0.1 * v, tau, dt)
    whole = np.zeros((3, 3 * model.nv, 3 * model.nv))
    whole[:, : 2 * model.nv] = np.concatenate([A, B], axis=-1) * dt
    wanted = np.stack([expm(x) for x in whole])[:, : 2 * model.nv]
    for k, x in enumerate(wanted):
        assert difference(np.concatenate([found.A[k], found.B[k]], axis=-1), x) < SQUARED
        alone = ts.linearize(model, q[k], 0.1 * v[k], tau[k], dt)
        assert difference(alone.A, found.A[k]) < SQUARED


@pytest.mark.parametrize("nv", [1, 7, 36, 80])
def test_the_discrete_system_needs_neither_scipy_nor_threads(monkeypatch, nv):
    """SciPy's expm let threads of BLAS wait for each other: 2 to 2000 ms for 250 matrices of 6 rows."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.linalg", None)
    ts.linearize(cart_pole(), [0.1, 0.2], [0.0, 0.0], [0.0, 0.0], 0.1)
    sizes = []

    class Counting(np.ndarray):
        def __matmul__(self, other):
            sizes.append(self.shape[-2] * self.shape[-1] * other.shape[-1])
            return np.matmul(self.view(np.ndarray), other.view(np.ndarray)).view(Counting)

    X = np.random.default_rng(0).normal(size=(2, 2 * nv, 3 * nv))
    found = linear._product(X.view(Counting), X.view(Counting))
    assert difference(found, X[..., : 2 * nv] @ X) < SQUARED
    assert max(sizes) <= linear.ONE_THREAD


def test_changes_that_no_number_holds_are_refused():
    model, zero = cart_pole(), np.zeros(2)
    with pytest.raises(ts.SingularError, match="changes grow beyond all numbers within dt = 1e"):
        ts.linearize(model, zero, zero, zero, 1e6)


def test_batches_and_single_precision():
    model = floating_tree(3)
    rng = np.random.default_rng(0)
    q, v, tau = model.random_configuration(rng, 5), *rng.normal(size=(2, 5, model.nv))
    A, B = ts.linearize(model, q, v, tau, 0.01)
    assert A.shape == (5, 2 * model.nv, 2 * model.nv)
    assert B.shape == (5, 2 * model.nv, model.nv)
    one = ts.linearize(model, q[3], v[3], tau[3], 0.01)
    assert difference(A[3], one.A) < 1e-12
    assert ts.linearize(model, q[:0], v[:0], tau[:0], 0.01).B.shape == (0, 2 * model.nv, model.nv)
    single = ts.linearize(model, *(x.astype(np.float32) for x in (q, v, tau)))
    assert single.A.dtype == np.float32


def test_bad_arguments_of_linearize_are_named():
    model, zero = cart_pole(), np.zeros(2)
    for call, message in {
        lambda: ts.linearize(model, zero, zero, zero, 0.0): "dt must be greater than 0",
        lambda: ts.linearize(model, zero, zero, zero, "fast"): "dt must be one real number",
        lambda: ts.linearize(model, zero[:1], zero, zero): "q has shape",
        lambda: ts.linearize("cart", zero, zero, zero): "must be a torsor.Model",
        lambda: ts.linearize(model, zero.astype(np.longdouble), zero, zero): "float64 or float32",
    }.items():
        with pytest.raises(ts.ArgumentError, match=message):
            call()
