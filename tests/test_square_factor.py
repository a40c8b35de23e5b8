"""M = W W^T: the square factor applied, transposed and inverted in O(n), and what is built on it."""

import numpy as np
import oracle
import pytest
from machines import difference

import torsor as ts
from torsor import reference, zoo
from torsor.algorithms import articulated, newton_euler, ploen_park_forward, square_factor, udut
from torsor.backends.cpu import compile_program

# Thirty bodies of every joint type, interpreted: no compiling.
LARGE = {
    "tree": lambda: zoo.random_tree(30, 1),
    "chain": lambda: zoo.random_chain(30, 3, joints=None),
    "revolute chain": lambda: zoo.random_chain(30, 2),
}
SMALL = {"tree": lambda: zoo.random_tree(5, 1), "arm": lambda: zoo.general_arm(6, 5), "PUMA": zoo.puma_saha}
IDENTITY = 1e-12  # of vectors of order one, on machines whose mass matrix is well scaled
SOLVED = 1e-9  # after a solve: rounding times the condition number of W, up to 1e5 on these machines


@pytest.fixture(params=LARGE)
def large(request):
    return LARGE[request.param]()


@pytest.fixture(params=SMALL)
def small(request):
    return SMALL[request.param]()


def state(model, seed=6, batch=()):
    rng = np.random.default_rng(seed)
    return (model.random_configuration(rng, batch or None), *rng.normal(size=(2, *batch, model.nv)))


def interpret(algorithm, model, q, x):
    return np.array(reference.evaluate(algorithm, model, {"q": q.tolist(), "x": x.tolist()}))


def test_factor_times_its_transpose_is_the_mass_matrix(large):
    q, x, _ = state(large)
    product = interpret(square_factor.apply, large, q, interpret(square_factor.apply_T, large, q, x))
    assert difference(product, oracle.mass_matrix(large, q) @ x) < IDENTITY


def test_transpose_is_the_adjoint(large):
    q, x, y = state(large)
    left = interpret(square_factor.apply, large, q, x) @ y
    right = x @ interpret(square_factor.apply_T, large, q, y)
    scale = np.linalg.norm(x) * np.linalg.norm(interpret(square_factor.apply_T, large, q, y))
    assert abs(left - right) < IDENTITY * scale


@pytest.mark.parametrize(
    ("forth", "back"),
    [(square_factor.apply, square_factor.solve), (square_factor.apply_T, square_factor.solve_T)],
    ids=["W", "transposed"],
)
def test_solve_undoes_apply(large, forth, back):
    q, x, _ = state(large)
    assert difference(interpret(back, large, q, interpret(forth, large, q, x)), x) < SOLVED


def test_factor_of_the_inverse(large):
    q, b, _ = state(large)
    x = interpret(square_factor.solve_T, large, q, interpret(square_factor.solve, large, q, b))
    inputs = {"q": q.tolist(), "b": b.tolist()}
    for algorithm in (articulated.mass_solve, udut.mass_solve):
        assert difference(x, reference.evaluate(algorithm, large, inputs)) < IDENTITY


def test_forward_dynamics_by_every_factorization(large):
    q, v, tau = state(large)
    external = np.random.default_rng(1).normal(size=(large.n, 6))
    inputs = {"q": q.tolist(), "v": v.tolist(), "tau": tau.tolist(), "external": external.tolist()}
    bias = reference.evaluate(newton_euler.bias_forces, large, inputs)
    expected = reference.evaluate(articulated.forward_dynamics, large, inputs)
    for algorithm in (udut.forward_dynamics, ploen_park_forward.forward_dynamics):
        qdd = reference.evaluate(algorithm, large, inputs)
        assert difference(qdd, expected) < SOLVED
        torques = reference.evaluate(newton_euler.inverse_dynamics, large, inputs | {"qdd": qdd})
        assert difference(torques, tau, bias) < IDENTITY


# Compiled ------------------------------------------------------------------------------------------------------


def test_explicit_factor_is_block_upper_triangular_and_squares_to_the_mass_matrix(small):
    q, *_ = state(small)
    W = ts.mass_factor(small, q).matrix()
    assert difference(W @ W.T, ts.mass_matrix(small, q)) < IDENTITY
    body = np.repeat(np.arange(small.n), np.diff(small.v_start))
    below = body[:, None] > body[None, :]
    assert np.all(W[below] == 0)


def test_the_factor_is_compiled_and_broadcasts(small):
    q, x, _ = state(small, batch=(4, 3))
    factor = ts.mass_factor(small, q)
    algorithms = (square_factor.apply, square_factor.apply_T, square_factor.solve, square_factor.solve_T)
    methods = (factor.apply, factor.apply_transposed, factor.solve, factor.solve_transposed)
    for algorithm, method in zip(algorithms, methods):
        assert difference(method(x)[2, 1], interpret(algorithm, small, q[2, 1], x[2, 1])) < IDENTITY
        assert method(x[0, 0]).shape == (4, 3, small.nv)


def test_log_det_of_the_factor_is_half_that_of_the_mass_matrix(small):
    q, *_ = state(small)
    _, log_det = np.linalg.slogdet(ts.mass_matrix(small, q))
    assert abs(2 * ts.mass_factor(small, q).log_det - log_det) < IDENTITY * small.nv * 10


def test_square_of_the_transposed_factor_is_twice_the_kinetic_energy(small):
    q, v, _ = state(small)
    y = ts.mass_factor(small, q).apply_transposed(v)
    assert abs(y @ y - 2 * ts.kinetic_energy(small, q, v)) < IDENTITY * (y @ y)


def test_a_joint_that_moves_no_mass_is_named():
    point = ts.Model.chain("revolute", mass=1.0, n=1, inertia=(0, 0, 0), allow_degenerate=True, names=["hinge"])
    with pytest.raises(ts.SingularError, match="hinge"):
        ts.mass_factor(point, [0.3]).solve([1.0])


@pytest.mark.parametrize("algorithm", [square_factor.apply, square_factor.solve_T], ids=lambda a: a.name)
def test_operations_grow_linearly_up_to_ten_thousand_bodies(algorithm):
    lengths = (100, 1000, 10_000)
    counts = [sum(compile_program(algorithm, zoo.rope(n)).operations) for n in lengths]
    exponents = np.diff(np.log(counts)) / np.diff(np.log(lengths))
    assert np.all(np.abs(exponents - 1) < 0.01)


def test_ten_thousand_bodies():
    model = zoo.random_chain(10_000, 1)
    q, x, _ = state(model)
    factor = ts.mass_factor(model, q)
    assert difference(factor.solve(factor.apply(x)), x) < SOLVED
    b = factor.solve(x)
    assert difference(factor.solve_transposed(b), ts.mass_solve(model, q, x)) < IDENTITY


# Sampling ------------------------------------------------------------------------------------------------------

SAMPLES = 40_000
# An entry of the covariance of N whitened samples is off by sqrt(2/N) at one sigma; the largest of a hundred such
# entries stays below five sigma. The seed is fixed: it is not a matter of luck twice.
FIVE_SIGMA = 5 * np.sqrt(2 / SAMPLES)


@pytest.mark.parametrize("kT", [1.0, 0.37])
def test_sampled_velocities_have_the_covariance_kT_over_M(small, kT):
    q, *_ = state(small)
    v = ts.sample_velocities(small, q, rng=1, kT=kT, size=SAMPLES)
    white = v @ np.linalg.cholesky(ts.mass_matrix(small, q)) / np.sqrt(kT)  # by another route than W
    covariance = white.T @ white / SAMPLES
    assert np.abs(covariance - np.eye(small.nv)).max() < FIVE_SIGMA
    assert np.abs(white.mean(axis=0)).max() < 5 / np.sqrt(SAMPLES)


def test_every_freedom_carries_half_kT():
    model = zoo.general_arm(6, 5)
    q = model.random_configuration(0)
    energies = ts.kinetic_energy(model, q, ts.sample_velocities(model, q, rng=2, kT=2.0, size=SAMPLES))
    # the energy of f freedoms has the mean f kT/2 and the variance f kT^2/2
    assert abs(energies.mean() - 6.0) < 5 * np.sqrt(6 * 2.0 / SAMPLES)


def test_samples_follow_the_batch_the_seed_and_the_temperature():
    model = zoo.planar3()
    q = model.random_configuration(0, 4)
    v = ts.sample_velocities(model, q, rng=3, size=(2, 5))
    assert v.shape == (2, 5, 4, 3)
    assert np.array_equal(v, ts.sample_velocities(model, q, rng=3, size=(2, 5)))
    assert not ts.sample_velocities(model, q, rng=3, kT=0.0).any()
    with pytest.raises(ts.ArgumentError, match="kT"):
        ts.sample_velocities(model, q, kT=-1.0)
