"""Poses, wrenches, inertias and subspaces against the 6x6 matrices they stand for."""

import numpy as np
import pytest

from torsor import lie, linalg
from torsor.linalg import Mat, Vec, factor, solve
from torsor.model.links import rigid_inertia
from torsor.spatial import Inertia, Product, Rigid, Screw, Spatial, Subspace, ad, ad_dual, pair

# Products of a few 6x6 matrices with entries below 10.
ROUNDING = 1000 * np.finfo(np.float64).eps


def close(a, b):
    np.testing.assert_allclose(np.array(a, dtype=float), b, rtol=0, atol=ROUNDING)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def vec(x):
    return Vec.of(map(float, x))


def spatial(x):
    return Spatial.of(map(float, x))


def matrix_of_pose(f):
    R, p = f.after(Rigid(Mat.identity(), Vec.zero()))
    return np.array([[*row, x] for row, x in zip(R, p)] + [[0, 0, 0, 1]], dtype=float)


def matrix_of_inertia(I):
    J, H, M = (np.array(block, dtype=float) for block in I)
    return np.block([[J, H], [H.T, M]])


def random_rigid(rng):
    return Rigid(Mat.of(lie.exp_so3(rng.normal(size=3)).tolist()), vec(rng.normal(size=3)))


def random_screw(rng, k):
    angle = rng.uniform(-3, 3)
    return Screw(k, float(np.cos(angle)), float(np.sin(angle)), float(rng.normal()))


def random_inertia(rng):
    """Any symmetric matrix: articulated inertias are no more special than that."""
    A = rng.normal(size=(6, 6))
    J, H, M = A[:3, :3] + A[:3, :3].T, A[:3, 3:], A[3:, 3:] + A[3:, 3:].T
    J, M = (Mat.symmetric(lambda i, j, B=B: float(B[i, j])) for B in (J, M))
    return Inertia(J, Mat.of(H.tolist()), M)


POSES = {
    "rigid": random_rigid,
    "screw about x": lambda rng: random_screw(rng, 0),
    "screw about y": lambda rng: random_screw(rng, 1),
    "screw about z": lambda rng: random_screw(rng, 2),
    "product": lambda rng: Product((random_rigid(rng), random_screw(rng, 0), random_screw(rng, 2))),
}


@pytest.fixture(params=POSES)
def pose(request, rng):
    return POSES[request.param](rng)


# Poses -------------------------------------------------------------------------------------------------


def test_a_screw_turns_about_its_axis_and_shifts_along_it():
    for k in range(3):
        e = np.eye(3)[k]
        expected = lie.exp_se3(np.concatenate([e * 0.7, e * 0.2]))
        close(matrix_of_pose(Screw(k, float(np.cos(0.7)), float(np.sin(0.7)), 0.2)), expected)


def test_turn_and_unturn_rotate_free_vectors(pose, rng):
    x, R = rng.normal(size=3), matrix_of_pose(pose)[:3, :3]
    close(pose.turn(vec(x)), R @ x)
    close(pose.unturn(vec(x)), R.T @ x)


def test_the_origin_of_a_pose_is_its_translation(pose):
    close(pose.p, matrix_of_pose(pose)[:3, 3])


def test_twists_move_by_Ad_of_the_inverse(pose, rng):
    V, Ad = rng.normal(size=6), lie.Ad(lie.inverse(matrix_of_pose(pose)))
    close(pose.Ad_inv(spatial(V)).coordinates, Ad @ V)


def test_wrenches_move_by_the_transpose(pose, rng):
    F, Ad = rng.normal(size=6), lie.Ad(lie.inverse(matrix_of_pose(pose)))
    close(pose.Ad_inv_dual(spatial(F)).coordinates, Ad.T @ F)


def test_power_does_not_depend_on_the_frame(pose, rng):
    """<F, Ad_{f^-1} V> = <Ad*_{f^-1} F, V>"""
    F, V = spatial(rng.normal(size=6)), spatial(rng.normal(size=6))
    close(pair(F, pose.Ad_inv(V)), pair(pose.Ad_inv_dual(F), V))


def test_inertias_move_by_congruence(pose, rng):
    I, Ad = random_inertia(rng), lie.Ad(lie.inverse(matrix_of_pose(pose)))
    close(matrix_of_inertia(pose.carry(I)), Ad.T @ matrix_of_inertia(I) @ Ad)


def test_a_moved_inertia_is_symmetric_to_the_last_bit(pose, rng):
    """Left to drift, long chains lose half their digits."""
    for A in (pose.carry(random_inertia(rng)).J, pose.carry(random_inertia(rng)).M):
        assert A == A.T


def test_poses_compose(pose, rng):
    first = random_rigid(rng)
    R, p = pose.after(first)
    close(R, (matrix_of_pose(first) @ matrix_of_pose(pose))[:3, :3])
    close(p, (matrix_of_pose(first) @ matrix_of_pose(pose))[:3, 3])


# Twists and wrenches -----------------------------------------------------------------------------------


def test_ad_and_its_dual_are_the_matrices_of_lie(rng):
    V, W = rng.normal(size=6), rng.normal(size=6)
    close(ad(spatial(V), spatial(W)).coordinates, lie.ad(V) @ W)
    close(ad_dual(spatial(V), spatial(W)).coordinates, lie.ad(V).T @ W)


def test_spatial_vectors_form_a_vector_space(rng):
    a, b = rng.normal(size=6), rng.normal(size=6)
    A, B = spatial(a), spatial(b)
    close((A + B * 2.0 - A * 0.5).coordinates, a + 2 * b - a / 2)
    close((-A).coordinates, -a)
    assert Spatial.zero() + Spatial.unit(4) == Spatial.unit(4)


# Inertias ----------------------------------------------------------------------------------------------


def test_a_rigid_inertia_is_the_sum_of_its_points(rng):
    """V^T J V / 2 is the kinetic energy of the point masses that make up the body."""
    masses, places = rng.uniform(0.5, 2, 5), rng.normal(size=(5, 3))
    m, c = masses.sum(), masses @ places / masses.sum()
    r = places - c
    I = np.einsum("k,kij->ij", masses, np.einsum("kl,kl->k", r, r)[:, None, None] * np.eye(3)
                  - r[:, :, None] * r[:, None, :])  # fmt: skip
    V = rng.normal(size=6)
    velocities = V[3:] + np.cross(V[:3], places)
    J = rigid_inertia(float(m), vec(c), Mat.of(I.tolist()))
    close(pair(J @ spatial(V), spatial(V)), np.sum(masses * np.sum(velocities**2, axis=1)))


def test_an_inertia_multiplies_and_adds_like_its_matrix(rng):
    A, B, V = random_inertia(rng), random_inertia(rng), rng.normal(size=6)
    close((A @ spatial(V)).coordinates, matrix_of_inertia(A) @ V)
    close(matrix_of_inertia(A + B), matrix_of_inertia(A) + matrix_of_inertia(B))
    close(matrix_of_inertia(A + Inertia.zero()), matrix_of_inertia(A))


def test_minus_outer_subtracts_a_symmetric_product(rng):
    I, U, D = random_inertia(rng), rng.normal(size=(6, 2)), np.array([[2.0, 0.5], [0.5, 1.0]])
    G = U @ np.linalg.inv(D)
    result = I.minus_outer([spatial(u) for u in U.T], [spatial(g) for g in G.T])
    close(matrix_of_inertia(result), matrix_of_inertia(I) - U @ G.T)
    assert result.J == result.J.T
    assert result.M == result.M.T


def test_without_writes_zeros_in_rows_and_columns(rng):
    I = random_inertia(rng)
    expected = matrix_of_inertia(I)
    expected[[2, 4]] = 0
    expected[:, [2, 4]] = 0
    close(matrix_of_inertia(I.without([2, 4])), expected)


# Subspaces ---------------------------------------------------------------------------------------------


def test_a_subspace_maps_velocities_to_twists_and_wrenches_to_torques(rng):
    S, v, F = rng.normal(size=(6, 3)), rng.normal(size=3), rng.normal(size=6)
    subspace = Subspace(tuple(spatial(s) for s in S.T))
    close((subspace @ v).coordinates, S @ v)
    close(subspace.T(spatial(F)), S.T @ F)


def test_only_literal_unit_columns_count_as_coordinate_axes():
    """The compiler may leave out what is known while the code is written, and nothing else."""
    array_of_ones = Spatial.of([np.ones(2), 0.0, 0.0, 0.0, 0.0, 0.0])
    columns = (Spatial.unit(2), Spatial.unit(3) * 2.0, array_of_ones, Spatial.unit(5))
    assert Subspace(columns).axes == (2, None, None, 5)


# Small matrices ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 7))
def test_a_positive_definite_matrix_is_factored_and_solved(n, rng):
    A = rng.normal(size=(n, n))
    A, b = A @ A.T + np.eye(n), rng.normal(size=n)
    L, d = factor(Mat.of(A.tolist()))
    lower = np.array([[*row, 1.0, *[0.0] * (n - len(row) - 1)] for row in L])
    close(lower @ np.diag(d) @ lower.T, A)
    close(solve((L, d), b.tolist()), np.linalg.solve(A, b))


def test_matrices_multiply_like_arrays(rng):
    A, B, x = rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), rng.normal(size=3)
    M, N = Mat.of(A.tolist()), Mat.of(B.tolist())
    close(M @ N, A @ B)
    close(M @ vec(x), A @ x)
    close(M + N - M * 2.0, B - A)
    close((-M).T, -A.T)
    close(Mat.identity() @ M, A)


def test_a_symmetric_matrix_computes_each_entry_once():
    asked = []
    A = Mat.symmetric(lambda i, j: asked.append((i, j)) or float(10 * i + j))
    assert asked == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
    assert A == A.T


def test_an_array_is_a_scalar_to_a_vector():
    """One number per state: the vector of a batch is three arrays, whichever side the factor is on."""
    factor_of_two = np.full(4, 2.0)
    v = Vec(np.ones(4), 0.0, 1.0)
    for product in (v * factor_of_two, factor_of_two * v):
        assert isinstance(product, Vec)
        np.testing.assert_array_equal(product[2], factor_of_two)


@pytest.mark.parametrize("x", [2.0, 1, 0.0, -0.0, -1.0, -np.inf, np.inf, np.nan])
def test_logarithms_of_plain_numbers_are_those_of_arrays(x):
    """Also where math.log raises an error."""
    with np.errstate(all="ignore"):
        np.testing.assert_equal(float(linalg.log(x)), float(np.log(np.float64(x))))
