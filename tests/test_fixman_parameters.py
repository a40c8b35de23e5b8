"""Six coordinates of a joint: Lee, Wang & Chirikjian 2007, Eqs 22-28, and chains with any of them soft."""

import numpy as np
import oracle
import printed
import pytest
from machines import difference

import torsor as ts
from torsor import lie, zoo
from torsor.dynamics.fixman import parameters
from torsor.dynamics.fixman.parameters import ALPHA, BETA, GAMMA, NAMES, A
from torsor.dynamics.fixman.rigid import relax_dh
from torsor.papers import lee2007
from torsor.zoo.lee2007 import hold_bodies

ROUNDING = 1e-12
INVERSE = 1e-10  # times the condition of M, up to 1e4 here
DIFFERENCES = 1e-9  # of order eight, near coordinates that vary over a fifth of a radian
KINDS = pytest.mark.parametrize("kind", ["A", "B", "C"])


@pytest.fixture
def x():
    """Coordinates away from every singularity, with |alpha| < pi/2."""
    return np.random.default_rng(1).uniform(0.2, 1.4, (20, 6)) * np.random.default_rng(2).choice([-1, 1], (20, 6))


# One joint -----------------------------------------------------------------------------------------------


@KINDS
def test_coordinates_of_a_transform_are_those_it_was_made_of(kind, x):
    np.testing.assert_allclose(parameters.coordinates(kind, parameters.transform(kind, x)), x, rtol=0, atol=ROUNDING)


@KINDS
def test_any_transform_has_coordinates(kind):
    T = lie.exp_se3(np.random.default_rng(3).normal(size=(50, 6)) * 2)
    y = parameters.coordinates(kind, T)
    np.testing.assert_allclose(parameters.transform(kind, y), T, rtol=0, atol=1e-11)
    assert (np.abs(y[:, ALPHA]) <= np.pi / 2).all()


@KINDS
def test_with_a_and_alpha_zero_all_kinds_are_the_DH_transform(kind, x):
    """Eq. 23."""
    x[:, [A, ALPHA]] = 0
    np.testing.assert_allclose(parameters.transform(kind, x), parameters.transform("C", x), rtol=0, atol=ROUNDING)
    T, (_, beta, gamma, _, b, c) = parameters.transform(kind, x)[0], x[0]
    cb, sb, cg, sg = np.cos(beta), np.sin(beta), np.cos(gamma), np.sin(gamma)
    expected = [[cg, -sg, 0, b], [sg * cb, cg * cb, -sb, -c * sb], [sg * sb, cg * sb, cb, c * cb], [0, 0, 0, 1]]
    np.testing.assert_allclose(T, expected, rtol=0, atol=ROUNDING)


@KINDS
def test_jacobian_is_the_derivative_of_the_transform(kind, x):
    """T^-1 dT/dx_k = hat of column k (Eq. 15), by differences of order four."""
    J, h = parameters.jacobian(kind, x), 1e-3
    for k in range(6):
        near, far = (
            parameters.transform(kind, x + m * h * np.eye(6)[k]) - parameters.transform(kind, x - m * h * np.eye(6)[k])
            for m in (1, 2)
        )
        dT = (8 * near - far) / (12 * h)
        np.testing.assert_allclose(
            lie.vee(lie.inverse(parameters.transform(kind, x)) @ dT), J[..., k], rtol=0, atol=1e-10
        )


@KINDS
def test_determinants_of_section_4_1(kind, x):
    """sin^2 beta, sin^2 gamma, cos^2 alpha."""
    np.testing.assert_allclose(
        np.abs(np.linalg.det(parameters.jacobian(kind, x))), parameters.determinant(kind, x), rtol=1e-12
    )


def test_lie_derivatives_of_equation_28_are_the_inverse_jacobian(x):
    """Eqs 22 and 28: with dT = T E_i, the derivatives of the coordinates are column i of J^-1 (Eq. 18)."""
    T, inverse = parameters.transform("C", x), np.linalg.inv(parameters.jacobian("C", x))
    for i in range(6):
        derivatives = parameters.lie_derivatives(T, T @ lie.hat(np.eye(6)[i]))
        np.testing.assert_allclose(derivatives, inverse[..., i], rtol=0, atol=1e-12)


def test_lie_derivatives_of_equation_28_are_those_of_the_coordinates_as_functions(x):
    """Eqs 16, 22 and 28 against differences on the group of the formulas after Eq. 27."""
    T = parameters.transform("C", x)
    Q0, Q1 = lie.exp_se3([0, 0, 0, 0.3, -0.2, 0.5]), lie.exp_se3([0, 0, 0, -0.1, 0.4, 0.2])
    dT = parameters.transform_derivatives(T, Q0, Q1)
    found = parameters.lie_derivatives(T[..., None, :, :], dT).swapaxes(-1, -2)
    by_own = lie.derivative(lambda X: parameters.coordinates("C", X @ lie.inverse(Q1)), T @ Q1)
    np.testing.assert_allclose(found[1], by_own, rtol=0, atol=DIFFERENCES)
    # body k - 1 moves: T = Q0 X^-1 (X0 T), X its pose at the mass centre
    start = np.broadcast_to(Q0, T.shape)
    by_other = lie.derivative(lambda X: parameters.coordinates("C", Q0 @ lie.inverse(X) @ T), start)
    np.testing.assert_allclose(found[0], by_other, rtol=0, atol=DIFFERENCES)


def test_lie_derivatives_by_the_mass_centres_of_both_neighbours(x):
    """Eq. 22: moving body k - 1 or k in the frame of its own mass centre, Q a translation."""
    T = parameters.transform("C", x)
    Q0, Q1 = lie.exp_se3([0, 0, 0, 0.3, -0.2, 0.5]), lie.exp_se3([0, 0, 0, -0.1, 0.4, 0.2])
    inverse = np.linalg.inv(parameters.jacobian("C", x))
    for i, E in enumerate(lie.hat(np.eye(6))):
        after = parameters.lie_derivatives(T, T @ Q1 @ E @ lie.inverse(Q1))
        np.testing.assert_allclose(after, (inverse @ lie.Ad(Q1))[..., i], rtol=0, atol=1e-11)
        before = parameters.lie_derivatives(T, -Q0 @ E @ lie.inverse(Q0) @ T)
        expected = -(inverse @ lie.Ad(lie.inverse(T)) @ lie.Ad(Q0))[..., i]
        np.testing.assert_allclose(before, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("kind", "angles"), [("A", (0.3, 0.0, 0.4)), ("B", (0.3, 0.5, np.pi)), ("C", (np.pi / 2, 0.5, 0.4))]
)
def test_singular_parameterisation_is_refused_and_another_is_found(kind, angles):
    x = np.array([[*angles, 0.1, 0.2, 0.3]])
    T = parameters.transform(kind, x)
    with pytest.raises(ts.SingularError, match=f"parameterisation {kind} is singular at joint 1"):
        parameters.coordinates(kind, T)
    kinds, y = parameters.from_transforms(T)
    assert kinds[0] != kind
    assert parameters.determinant(str(kinds[0]), y)[0] >= 0.5
    np.testing.assert_allclose(parameters.transform(str(kinds[0]), y), T, rtol=0, atol=ROUNDING)


def test_some_kind_is_regular_for_every_transform():
    T = lie.exp_se3(np.random.default_rng(4).normal(size=(500, 6)) * 3)
    kinds, x = parameters.from_transforms(T)
    for i, kind in enumerate(kinds):
        assert parameters.determinant(str(kind), x[i]) >= 0.5 - ROUNDING


# Chains --------------------------------------------------------------------------------------------------


def mass_matrix(kinds, x, soft, mass, com, inertia):
    """M from explicit Jacobians of the bodies, in the base frame."""
    M = 0
    columns, pose = [], np.eye(4)  # of soft variables so far: twists in the base frame
    for kind, xi, on, m, c, I in zip(kinds, x, soft, mass, com, inertia):
        pose = pose @ parameters.transform(kind, xi)
        columns += list((lie.Ad(pose) @ parameters.jacobian(kind, xi))[:, on].T)
        W, V = np.array(columns)[:, :3], np.array(columns)[:, 3:]
        V = V + np.cross(W, pose[:3, 3] + pose[:3, :3] @ c)
        W = W @ pose[:3, :3]
        body = np.zeros((soft.sum(), soft.sum()))
        body[: len(W), : len(W)] = m * V @ V.T + W @ I @ W.T
        M = M + body
    return M


@pytest.mark.parametrize("seed", range(6))
def test_any_partition_of_any_kinds_is_the_mass_matrix_of_explicit_jacobians(seed):
    """Several soft variables in a joint, or none; alpha and a soft, hard, and not zero."""
    rng = np.random.default_rng(seed)
    n = 5
    links = zoo.random_chain(n, seed)
    kinds = rng.choice(["A", "B", "C"], n)
    x = rng.uniform(0.3, 1.3, (n, 6))
    soft = [tuple(name for name in NAMES if rng.random() < 0.3) for _ in range(n)]
    soft[0] = (*soft[0], "beta") if "beta" not in soft[0] else soft[0]
    mask = parameters.partition(soft, n)
    bodies = dict(mass=links.mass, com=links.com, inertia=links.inertia)
    free = relax_dh(x, soft, kind=kinds, **bodies)
    M = mass_matrix(kinds, x, mask, **bodies)
    assert difference(free.inverse() @ M, np.eye(len(M))) <= INVERSE
    assert abs(free.log_det() - np.linalg.slogdet(M)[1]) <= INVERSE


def test_kinds_agree_where_a_and_alpha_are_held_at_zero():
    """The dummies are different in A, B and C, and H with them; M^-1 is not."""
    for name in ("puma_lee", "polypeptide"):
        b, c = (lee2007.relaxed(name, kind) for kind in "BC")
        assert difference(b.H, c.H) > 1e-3
        assert difference(b.inverse(), c.inverse()) <= INVERSE


def test_singular_joint_of_a_chain_is_named():
    with pytest.raises(ts.SingularError, match="A is singular at joint 2: sin beta = 0; choose another, or 'auto'"):
        lee2007.relaxed("puma_lee", "A")


def test_batches_of_coordinates():
    table = lee2007.dh_table("puma_lee")
    x = table.pop("x") + np.zeros((3, 1, 1))
    x[1:, :, BETA] += 0.3
    free = relax_dh(x, "beta", **table)
    one = relax_dh(x[2], "beta", **table)
    b = np.ones(6)
    assert difference(free.solve(b)[2], one.solve(b)) <= INVERSE
    assert difference(free.solve(b)[0], relax_dh(x[0], "beta", **table).solve(b)) <= INVERSE


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: parameters.transform("D", np.zeros(6)), "'D'; choose one of: A, B, C"),
        (lambda: parameters.jacobian("C", np.zeros(5)), r"\(5,\); \(..., 6\) is needed: alpha"),
        (lambda: parameters.coordinates("C", np.eye(3)), r"\(3, 3\); \(..., 4, 4\)"),
        (lambda: parameters.partition("delta", 2), "joint 1 has no variable 'delta'"),
        (lambda: parameters.partition(["beta"], 2), "given for 1 joints; the chain has 2"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, words):
    with pytest.raises(ts.ArgumentError, match=words):
        call()


def test_rod_in_a_chain_of_DH_links_is_refused_by_name():
    table = lee2007.dh_table("polypeptide")
    table["inertia"][1] = np.diag([0.0, 1.0, 1.0])
    with pytest.raises(ts.SingularError, match="'link2' has the inertia of a rod"):
        relax_dh(soft="beta", **table)


# What the paper prints -----------------------------------------------------------------------------------

POLYPEPTIDE_DIGITS = np.full((7, 7), 5e-5)
PRINTED = {
    "puma_lee": (printed.PUMA_M, printed.PUMA_M_INVERSE, printed.PUMA_M_INVERSE_TOLERANCE),
    "polypeptide": (printed.POLYPEPTIDE_M, printed.POLYPEPTIDE_M_INVERSE, POLYPEPTIDE_DIGITS),
}
POSES = {
    "puma_lee": (printed.PUMA_POSES, printed.PUMA_POSE_TOLERANCE),
    "polypeptide": (printed.POLYPEPTIDE_POSES, printed.POLYPEPTIDE_POSE_TOLERANCE),
}


@pytest.mark.parametrize("kind", ["B", "C"])
@pytest.mark.parametrize("name", PRINTED)
def test_printed_matrices_by_soft_and_hard_variables(name, kind):
    M, inverse, digits = PRINTED[name]
    computed = lee2007.relaxed(name, kind).inverse()
    assert (np.abs(computed - inverse) <= digits).all()
    assert (np.abs(np.linalg.inv(computed) - M) <= printed.M_TOLERANCE).all()


@pytest.mark.parametrize("name", PRINTED)
def test_printed_matrices_by_the_method_fixman(name):
    M, inverse, digits = PRINTED[name]
    model = zoo.get(name)
    computed = ts.inverse_mass_matrix(model, model.neutral(), method="fixman")
    assert (np.abs(computed - inverse) <= digits).all()
    assert (np.abs(np.linalg.inv(computed) - M) <= printed.M_TOLERANCE).all()


@pytest.mark.parametrize("name", POSES)
def test_printed_poses_of_the_mass_centres_from_DH_coordinates(name):
    """T_k^c = T_1^0 ... T_k^{k-1} Q_k, Q_k a translation (Eq. 21)."""
    table = lee2007.dh_table(name)
    pose = np.eye(4)
    expected, digits = POSES[name]
    for x, com, T in zip(table["x"], table["com"], expected):
        pose = pose @ parameters.transform("C", x)
        centre = pose.copy()
        centre[:3, 3] += pose[:3, :3] @ com
        assert (np.abs(centre - T) <= digits).all()


def test_gamma_soft_as_the_text_says_is_not_the_printed_matrix():
    """With gamma soft, axes 5 and 6 coincide and M_56 = M_66; the printed numbers are those of beta."""
    table = lee2007.dh_table("puma_lee")
    M = np.linalg.inv(relax_dh(soft="gamma", **table).inverse())
    assert abs(M[4, 5] - M[5, 5]) <= 1e-9
    assert abs(printed.PUMA_M[4, 5] - printed.PUMA_M[5, 5]) > 1e-4


def test_angles_of_table_II_as_printed_are_not_those_of_the_printed_matrix():
    """gamma_4 = 289.5 and gamma_7 = 70.5 degrees miss it; 190.5 and 69.5 meet it."""
    table = lee2007.dh_table("polypeptide")
    table["x"][[3, 6], GAMMA] = np.radians([289.5, 70.5])
    M = np.linalg.inv(relax_dh(soft="beta", **table).inverse())
    assert np.abs(M - printed.POLYPEPTIDE_M).max() > 1


def test_schur_complement_with_H22_to_the_power_minus_two_is_not_the_printed_inverse():
    """The appendix prints H22^-2."""
    H11, H12, H22 = lee2007.relaxed("polypeptide").dense()
    right = H11 - H12 @ np.linalg.solve(H22, H12.T)
    wrong = H11 - H12 @ np.linalg.solve(H22, np.linalg.solve(H22, H12.T))
    assert (np.abs(right - printed.POLYPEPTIDE_M_INVERSE) <= 5e-5).all()
    assert np.abs(wrong - printed.POLYPEPTIDE_M_INVERSE).max() > 0.01


# The polypeptide with peptide bonds held ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["auto", "B"])
def test_five_soft_variables_are_the_mass_matrix_with_two_torsions_held(kind):
    """beta_3 = beta_6 = 180 degrees, hard: M without rows and columns 3 and 6, and the model with merged bodies."""
    inverse = lee2007.five_soft(kind).inverse()
    model = zoo.polypeptide()
    held = np.arange(7) % 3 == 2
    q = np.where(held, np.radians(120.0), 0.0)  # torsions are 60 degrees at q = 0
    M = oracle.mass_matrix(model, q)[~held][:, ~held]
    assert difference(inverse @ M, np.eye(5)) <= INVERSE
    merged = hold_bodies(model, held, np.radians(120.0))
    assert difference(oracle.mass_matrix(merged, np.zeros(5)), M) <= ROUNDING


@pytest.mark.parametrize("n", [1, 3, 7, 22])
def test_planar_polypeptide_of_any_length_is_the_faithful_one_with_torsions_held(n):
    model, faithful = zoo.polypeptide_planar(n), zoo.polypeptide_faithful(n)
    held = np.arange(n) % 3 == 2
    assert model.nv == n - n // 3
    q = model.random_configuration(0)
    full = np.empty(n)
    full[held], full[~held] = np.radians(120.0), q
    M = oracle.mass_matrix(faithful, full)[~held][:, ~held]
    assert difference(oracle.mass_matrix(model, q), M) <= ROUNDING
    assert difference(ts.inverse_mass_matrix(model, q, method="fixman") @ M, np.eye(model.nv)) <= INVERSE


def test_chain_given_by_poses_takes_the_kinds_that_are_regular_there():
    """Joints that are singular in A, in B and in C; M of explicit Jacobians in the kinds found."""
    x = np.full((3, 6), 0.4)
    x[0, BETA], x[1, GAMMA], x[2, ALPHA] = 0.0, np.pi, np.pi / 2
    T = np.stack([parameters.transform(kind, row) for kind, row in zip("ABC", x)])
    kinds, y = parameters.from_transforms(T)
    links = zoo.random_chain(3, 0)
    bodies = dict(mass=links.mass, com=links.com, inertia=links.inertia)
    soft = ["beta", ("gamma", "b"), "alpha"]
    M = mass_matrix(kinds, y, parameters.partition(soft, 3), **bodies)
    assert difference(relax_dh(y, soft, kind=kinds, **bodies).inverse() @ M, np.eye(4)) <= INVERSE
