"""The change of basis (Featherstone & Fijany 1999, Eqs 1-10) on random matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torsor as ts
from torsor.papers.change_of_basis import MAPPINGS, change_of_basis, in_new_bases

ROUNDING = 1e-9  # dense algebra on random matrices of condition up to 1e4

sizes = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n), st.integers(0, 1000)))


def problem(n, r, seed):
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    M = (Q * rng.uniform(0.1, 10, n)) @ Q.T
    S1 = np.linalg.qr(rng.normal(size=(n, r)))[0] @ (np.eye(r) + 0.3 * rng.normal(size=(r, r)) / r)
    return rng, M, S1


@given(sizes)
def test_bases_are_dual_and_decouple_the_map(case):
    n, r, _ = case
    _, M, S1 = problem(*case)
    b = change_of_basis(M, S1)
    S, T = np.hstack([b.S1, b.S2]), np.hstack([b.T1, b.T2])
    assert np.allclose(S.T @ T, np.eye(n), atol=ROUNDING)
    block = S.T @ M @ S
    assert np.allclose(block[:r, r:], 0, atol=ROUNDING)
    # Eq. 1: T1 = M S1 and T2 = M S2 as spaces
    assert np.linalg.matrix_rank(np.hstack([T[:, :r], M @ b.S1]), tol=ROUNDING) == r
    assert n == r or np.linalg.matrix_rank(np.hstack([T[:, r:], M @ b.S2]), tol=ROUNDING) == n - r


@given(sizes)
def test_coordinate_transformations_of_the_dual_bases(case):
    """u.v keeps its value, X_U^T = X_V^-1, and the map is block diagonal in the new pair."""
    n, r, _ = case
    rng, M, S1 = problem(*case)
    b = change_of_basis(M, S1)
    u, v = rng.normal(size=(2, n))
    assert np.allclose((b.X_U @ u) @ (b.X_V @ v), u @ v, atol=ROUNDING)
    assert np.allclose(b.X_U.T @ b.X_V, np.eye(n), atol=ROUNDING)
    blocks = in_new_bases("U -> V", M, b.X_U)
    assert np.allclose(blocks[:r, :r], S1.T @ M @ S1, atol=ROUNDING)
    assert np.allclose(blocks[r:, r:], np.linalg.inv(b.T2.T @ np.linalg.solve(M, b.T2)), atol=ROUNDING)
    assert np.allclose(blocks[:r, r:], 0, atol=ROUNDING)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_mapping_in_new_bases_does_what_it_did(mapping):
    """y = A x in the old pair is y = A x in the new one; motions go by X_U, forces by its inverse transpose."""
    rng = np.random.default_rng(0)
    A, X_U, x = rng.normal(size=(5, 5)), rng.normal(size=(5, 5)), rng.normal(size=5)
    moved = {"U": lambda u: X_U @ u, "V": lambda v: np.linalg.solve(X_U.T, v)}
    source, target = moved[mapping[0]], moved[mapping[-1]]
    assert np.allclose(in_new_bases(mapping, A, X_U) @ source(x), target(A @ x), atol=ROUNDING)
    several = in_new_bases(mapping, np.stack([A, 2 * A]), X_U)
    assert np.allclose(several[1], 2 * several[0], atol=ROUNDING)


@pytest.mark.parametrize(
    ("mapping", "A", "X_U", "words"),
    [
        ("U -> W", np.eye(2), np.eye(2), "unknown mapping 'U -> W'"),
        ("U -> V", np.eye(2), np.eye(3), r"A \(2, 2\) and X_U \(3, 3\)"),
        ("U -> V", np.eye(2), 1.0, r"X_U \(\)"),
        ("V -> V", np.eye(2), np.ones((2, 2)), "X_U is singular"),
        ("V -> V", np.full((2, 2), np.nan), np.eye(2), "A must be finite"),
    ],
)
def test_what_is_no_change_of_basis_is_refused(mapping, A, X_U, words):
    with pytest.raises(ts.TorsorError, match=words):
        in_new_bases(mapping, A, X_U)


@given(sizes)
def test_constrained_is_unconstrained_minus_immobilised_dynamics(case):
    _, M, S1 = problem(*case)
    b = change_of_basis(M, S1)
    assert np.allclose(b.active, np.linalg.inv(M) - b.immobilised, atol=ROUNDING)


@given(sizes)
def test_any_complement_solves_the_constrained_system(case):
    n, r, _ = case
    rng, M, S1 = problem(*case)
    b, beta = change_of_basis(M, S1), rng.normal(size=r)
    expected = np.linalg.solve(S1.T @ M @ S1, beta)
    A = rng.normal(size=(n, n))
    for T1 in (None, b.T1, b.complement(A @ A.T + np.eye(n))):
        assert np.allclose(b.solve(beta, T1), expected, atol=ROUNDING)


@given(sizes)
def test_the_constraint_force_does_no_work_and_keeps_the_constraint(case):
    rng, M, S1 = problem(*case)
    b = change_of_basis(M, S1)
    v = rng.normal(size=len(M))
    force = b.constraint_force(v)
    assert np.allclose(S1.T @ force, 0, atol=ROUNDING)
    assert np.allclose(b.T2.T @ np.linalg.solve(M, v + force), 0, atol=ROUNDING)


@pytest.mark.parametrize(
    ("M", "S1", "error", "words"),
    [
        (np.eye(3), np.ones((3, 2)), ts.SingularError, "linearly dependent"),
        (np.eye(3), np.eye(2), ts.ArgumentError, r"M \(3, 3\) and S1 \(2, 2\)"),
        (np.diag([1.0, 0.0, 1.0]), np.eye(3)[:, :1], ts.SingularError, "not positive definite"),
    ],
)
def test_what_has_no_dual_bases_is_refused(M, S1, error, words):
    with pytest.raises(error, match=words):
        change_of_basis(M, S1)
