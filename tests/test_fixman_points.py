"""Chains of point masses let float: planar (Lee & Chirikjian 2005) and in space (Lee et al. 2007, section 2.2)."""

import numpy as np
import pytest
from machines import difference

import torsor as ts
from torsor import zoo
from torsor.dynamics.fixman.points import (
    PLANAR,
    SPATIAL,
    planar_derivatives,
    planar_positions,
    relax_planar,
    relax_spatial,
    spatial_positions,
)

ROUNDING = 1e-11  # the condition of M is 1e3 at most here
N = 6
RNG = np.random.default_rng(5)
MASS = RNG.uniform(0.5, 2, N)
LENGTH = RNG.uniform(0.5, 2, N)

CHAINS = {
    "general": RNG.uniform(-3, 3, N),
    "straight": np.zeros(N),
    "nearly straight": np.full(N, 1e-9),
    "folded": np.tile([0.0, np.pi], N // 2),
    "folded back and forth": np.full(N, np.pi),
}
each_chain = pytest.mark.parametrize("theta", CHAINS.values(), ids=CHAINS)
ZIGZAG = {"general": RNG.uniform(-3, 3, N), "cis": np.zeros(N), "trans": np.full(N, np.pi)}
each_torsion = pytest.mark.parametrize("phi", ZIGZAG.values(), ids=ZIGZAG)


def mass_matrix(positions, x, mass, soft):
    """sum m (dx/dq)' (dx/dq) by complex steps, which are exact: independent of all derivatives in the library."""
    columns = []
    for k in np.flatnonzero(soft):
        y = x.astype(complex).ravel()
        y[k] += 1e-40j
        columns.append(positions(y.reshape(x.shape)).imag.ravel() / 1e-40)
    J = np.array(columns)
    return (J * np.repeat(mass, J.shape[1] // len(mass))) @ J.T


def check(free, M):
    assert difference(free.inverse() @ M, np.eye(len(M))) <= ROUNDING
    assert abs(free.log_det() - np.linalg.slogdet(M)[1]) <= ROUNDING
    b = np.random.default_rng(0).normal(size=len(M))
    assert difference(free.solve(b), np.linalg.solve(M, b)) <= ROUNDING


# Planar --------------------------------------------------------------------------------------------------


@each_chain
@pytest.mark.parametrize("soft", [("theta",), ("L",), PLANAR], ids="+".join)
def test_planar_chain_is_exact_straight_and_folded(theta, soft):
    free = relax_planar(MASS, theta, LENGTH, soft)
    M = mass_matrix(lambda y: planar_positions(*y.T), np.stack([theta, LENGTH], axis=1), MASS, free.soft)
    check(free, M)


@each_chain
def test_planar_chain_is_the_model_of_point_masses(theta):
    """The same chain by articulated sweeps."""
    model = zoo.point_chain(N)
    free = relax_planar(np.ones(N), theta, np.ones(N))
    assert difference(free.inverse(), np.linalg.inv(ts.mass_matrix(model, theta))) <= ROUNDING
    assert difference(free.log_det(), ts.log_det_mass_matrix(model, theta), scale=1.0) <= ROUNDING


def printed_21(theta, L, last_is_misprinted):
    """d theta_i / d x_j (2005, Eq. 21), for a chain that is nowhere straight, in absolute coordinates."""
    x = np.vstack([[-1.0, 0.0], [0.0, 0.0], planar_positions(theta, L)])  # x_{-1} = -L_0 e1, x_0, x_1, ...
    d = np.diff(x, axis=0)  # d_0, d_1, ...
    lengths = np.concatenate([[1.0], L])
    n = len(theta)
    D = np.zeros((n, n + 2, 2))
    for i in range(1, n + 1):
        factor = -1 / (lengths[i - 1] * lengths[i] * np.sin(theta[i - 1]))
        D[i - 1, i + 1] = factor * d[i - 1]
        D[i - 1, i] = factor * (d[i] - d[i - 1])
        D[i - 1, i - 1] = -factor * (d[i - 1] if last_is_misprinted else d[i])
    return D[:, 2:].reshape(n, 2 * n)


def schur(soft, hard, mass, swapped=False):
    """Eq. 25; `swapped` as printed, with the off-diagonal blocks in the wrong places."""
    K = np.repeat(1 / mass, 2)
    H11, H12, H22 = (soft * K) @ soft.T, (soft * K) @ hard.T, (hard * K) @ hard.T
    left, right = (H12.T, H12) if swapped else (H12, H12.T)
    return H11 - left @ np.linalg.solve(H22, right)


def lengths_by_positions(theta, L):
    """dL_i / dx_j (Eq. 18)."""
    x = planar_positions(theta, L)
    d = np.diff(np.vstack([[0.0, 0.0], x]), axis=0)
    n = len(theta)
    D = np.zeros((n, n, 2))
    for i in range(n):
        D[i, i] = d[i] / L[i]
        if i:
            D[i, i - 1] = -d[i] / L[i]
    return D.reshape(n, 2 * n)


def test_equation_21_holds_with_d_i_in_its_last_term_and_fails_as_printed():
    theta = CHAINS["general"]
    inverse = relax_planar(MASS, theta, LENGTH).inverse()
    hard = lengths_by_positions(theta, LENGTH)
    assert difference(schur(printed_21(theta, LENGTH, False), hard, MASS), inverse) <= ROUNDING
    assert difference(schur(printed_21(theta, LENGTH, True), hard, MASS), inverse) > 0.01


def test_equation_25_fails_as_printed():
    """H^{theta L} comes first: the printed order is another matrix."""
    theta = CHAINS["general"]
    soft, hard = printed_21(theta, LENGTH, False), lengths_by_positions(theta, LENGTH)
    inverse = relax_planar(MASS, theta, LENGTH).inverse()
    assert difference(schur(soft, hard, MASS, swapped=True), inverse) > 0.01


def test_equation_21_loses_its_digits_where_the_chain_is_nearly_straight():
    theta = np.full(N, 1e-6)
    hard = lengths_by_positions(theta, LENGTH)
    M = mass_matrix(lambda y: planar_positions(*y.T), np.stack([theta, LENGTH], axis=1), MASS,
                    relax_planar(MASS, theta, LENGTH).soft)  # fmt: skip
    inverse = np.linalg.inv(M)
    assert difference(schur(printed_21(theta, LENGTH, False), hard, MASS), inverse) > 1e-6
    assert difference(relax_planar(MASS, theta, LENGTH).inverse(), inverse) <= ROUNDING


def test_angles_have_3n_minus_3_derivatives_and_lengths_2n_minus_1():
    """Section 2.2 of the 2007 paper prints (3n - 2); theta_i depends on x_i, x_{i-1}, x_{i-2}, but x_0 stays."""
    C = planar_derivatives(CHAINS["general"], LENGTH)
    angles, lengths = sum((C[k, k:] != 0).any(axis=-1).sum(axis=0) for k in range(3))
    assert (angles, lengths) == (3 * N - 3, 2 * N - 1)


# In space ------------------------------------------------------------------------------------------------


@each_torsion
@pytest.mark.parametrize("soft", [("phi",), ("theta", "phi"), SPATIAL, ("r",), ("r", "phi")], ids="+".join)
def test_chain_in_space_with_any_coordinates_soft(phi, soft):
    theta = np.linspace(0.4, 2.8, N)
    free = relax_spatial(MASS, LENGTH, theta, phi, soft)
    M = mass_matrix(lambda y: spatial_positions(*y.T), np.stack([LENGTH, theta, phi], axis=1), MASS, free.soft)
    check(free, M)


def test_soft_coordinates_may_differ_from_bond_to_bond():
    soft = np.random.default_rng(8).random((N, 3)) < 0.5
    theta, phi = np.linspace(0.4, 2.8, N), ZIGZAG["general"]
    free = relax_spatial(MASS, LENGTH, theta, phi, soft)
    M = mass_matrix(lambda y: spatial_positions(*y.T), np.stack([LENGTH, theta, phi], axis=1), MASS, soft)
    check(free, M)


def test_free_chain_in_space():
    mass = RNG.uniform(0.5, 2, N + 1)
    theta, phi = np.linspace(0.4, 2.8, N), ZIGZAG["general"]
    free = relax_spatial(mass, LENGTH, theta, phi, ("theta", "phi"), free=True)

    def positions(y):
        return np.concatenate([y[:1], y[:1] + spatial_positions(*y[1:].T)])

    x = np.concatenate([np.zeros((1, 3)), np.stack([LENGTH, theta, phi], axis=1)])
    check(free, mass_matrix(positions, x, mass, free.soft))


def test_constraint_determinant_of_rigid_bonds_is_exact_straight_and_folded():
    """H22 of bond lengths is tridiagonal with cosines: 1/m + 1/m', and -cos theta / m in between (Fixman 1974)."""
    theta = np.array([0.8, 0.0, np.pi, 0.0, 1.1, np.pi])
    free = relax_spatial(MASS, LENGTH, theta, ZIGZAG["general"], ("theta", "phi"))
    inverse = 1 / MASS
    H22 = np.diag(inverse + np.concatenate([[0.0], inverse[:-1]]))
    for i in range(1, N):
        H22[i, i - 1] = H22[i - 1, i] = -np.cos(theta[i]) * inverse[i - 1]
    assert abs(free.log_det_hard() - np.linalg.slogdet(H22)[1]) <= 1e-14
    with pytest.raises(ts.SingularError, match="torsion 2 has no meaning next to a straight angle"):
        free.log_det()
    with pytest.raises(ts.SingularError, match="singular: torsion 2"):
        free.solve(np.zeros(2 * N))


def test_torsion_held_next_to_a_straight_angle_is_refused():
    theta = np.array([0.8, 1.0, 0.0, 1.0, 1.0, 1.0])
    with pytest.raises(ts.SingularError, match=r"torsion 3 .* cannot be held there"):
        relax_spatial(MASS, LENGTH, theta, np.ones(N), ("theta",))


def test_batches_are_chains_one_by_one():
    theta = np.random.default_rng(9).uniform(0.3, 2.8, (4, N))
    free = relax_spatial(MASS, LENGTH, theta, 0.7)
    x = free.solve(np.ones(N))
    one = relax_spatial(MASS, LENGTH, theta[2], 0.7)
    assert difference(x[2], one.solve(np.ones(N))) <= ROUNDING
    assert difference(free.log_det()[2], one.log_det()) <= ROUNDING
    assert difference(free.inverse()[2], one.inverse()) <= ROUNDING


def test_long_chain_of_points_keeps_its_digits():
    """10,000 particles against the articulated sweeps of the same chain."""
    n = 10_000
    theta = np.random.default_rng(0).uniform(-1, 1, n)
    b = np.random.default_rng(1).normal(size=n)
    x = ts.mass_solve(zoo.point_chain(n), theta, b)
    assert difference(relax_planar(np.ones(n), theta, np.ones(n)).solve(b), x) <= 1e-12


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: relax_planar(np.ones(3), np.zeros(4), 1.0), r"mass has shape \(3,\); 4 particles"),
        (lambda: relax_planar([1, -1.0], np.zeros(2), 1.0), "particle 1 has mass -1.0"),
        (lambda: relax_planar(np.ones(3), np.zeros(3), np.ones(2)), "do not go together"),
        (lambda: relax_planar(np.ones(1), 0.0, 1.0), "arrays"),
        (lambda: relax_planar(np.ones(2), np.zeros(2), 1.0, ("phi",)), "'phi'; choose from theta, L"),
        (lambda: relax_spatial(np.ones(2), 1.0, np.ones(2), 1.0, np.ones((1, 3), bool)), r"mask is \(n, 3\)"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, words):
    with pytest.raises(ts.ArgumentError, match=words):
        call()
