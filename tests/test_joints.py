"""Joint types: the motion subspace is the derivative of the motion, and coordinates add and subtract."""

import numpy as np
import pytest
from machines import to_digits
from mpmath import mp, mpf

from torsor import ModelError, lie
from torsor.linalg import Mat, Vec
from torsor.model.joints import FORCE_UNITS, JOINTS, joint_code
from torsor.spatial import Rigid

DIGITS = 50
# Central differences with this step and 50 digits are right to its square.
STEP = mpf(10) ** -15
DIFFERENCE_TOLERANCE = 1e-28
EXACT = 1e-45  # 50 digits, a few operations
# Coordinates of size 3, through an exponential and a logarithm.
ROUNDING = 100 * np.finfo(np.float64).eps

each_joint = pytest.mark.parametrize("joint", JOINTS, ids=lambda joint: joint.name)
AXIS = np.array([2.0, -3.0, 6.0]) / 7
PITCH = 0.25


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(DIGITS):
        yield


def random_state(joint, seed=0):
    """Coordinates and velocities as 50-digit numbers (the quaternions have length 1 to 16 of them)."""
    rng = np.random.default_rng(seed)
    q, v = joint.random(rng, 1)[0], rng.normal(size=joint.nv)
    return np.array([mpf(x) for x in q]), np.array([mpf(x) for x in v])


def unit_axis():
    axis = np.array([mpf(x) for x in AXIS])
    return Vec.of(axis / mp.sqrt(axis @ axis))


def pose(joint, q):
    """The 4x4 matrix of the joint's motion."""
    R, p = joint.exp(Vec.of(q), unit_axis(), mpf(PITCH)).after(Rigid(Mat.identity(), Vec.zero()))
    return np.array([[*row, x] for row, x in zip(R, p)] + [[0, 0, 0, 1]], dtype=object)


def subspace(joint, q):
    """S as a 6 x nv array."""
    S = joint.subspace(Vec.of(q), unit_axis(), mpf(PITCH))
    return np.array([column.coordinates for column in S.columns], dtype=object).T


def moved(joint, q, v, t):
    """q after the time t at the constant velocity v, to second order in t."""
    if joint.flat:
        return q + v * t
    assert joint.name in ("spherical", "free")
    place, quaternion = q[:-4], q[-4:].tolist()
    turned = lie.quaternion_product(quaternion, lie.exp_quaternion((v[:3] * t).tolist()))
    if joint.name == "spherical":
        return turned
    return np.concatenate([place + lie.quaternion_to_matrix(quaternion) @ v[3:] * t, turned])


def rate(f, joint, q, v):
    """d/dt f(q(t)) at t = 0."""
    return (f(joint, moved(joint, q, v, STEP)) - f(joint, moved(joint, q, v, -STEP))) / (2 * STEP)


def inverse(T):
    R, p = T[:3, :3], T[:3, 3:]
    return np.block([[R.T, -R.T @ p], [T[3:]]])


@each_joint
def test_subspace_is_the_derivative_of_the_motion(joint):
    """f^-1 df/dt = [S v]"""
    q, v = random_state(joint)
    expected = inverse(pose(joint, q)) @ rate(pose, joint, q, v)
    twist = lie.hat((subspace(joint, q) @ v).tolist())
    assert np.max(abs(twist - expected)) <= DIFFERENCE_TOLERANCE


@each_joint
def test_subspace_rate_is_the_derivative_of_the_subspace(joint):
    q, v = random_state(joint)
    columns = joint.subspace_rate(Vec.of(q), Vec.of(v)).columns
    result = np.array([column.coordinates for column in columns], dtype=object).T
    assert np.max(abs(result - rate(subspace, joint, q, v))) <= DIFFERENCE_TOLERANCE


@each_joint
def test_an_axis_on_z_takes_the_short_way_to_the_same_motion(joint):
    """A literal z axis (what the compiler makes of any axis) gives a screw instead of a full rotation."""
    q, _ = random_state(joint)
    short, full = (
        joint.exp(Vec.of(q), axis, PITCH).after(Rigid(Mat.identity(), Vec.zero()))
        for axis in (Vec(0.0, 0.0, 1.0), Vec(mpf(0), mpf(0), mpf(1)))
    )
    np.testing.assert_allclose(np.array(short.R, dtype=float), np.array(full.R, dtype=float), rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(np.array(short.p, dtype=float), np.array(full.p, dtype=float), rtol=0, atol=ROUNDING)


@each_joint
def test_reactions_are_orthonormal_and_do_no_work(joint):
    q, _ = random_state(joint)
    R = np.array([r.coordinates for r in joint.reactions(Vec.of(q), unit_axis(), mpf(PITCH))], dtype=object)
    R = R.reshape(6 - joint.nv, 6)
    assert np.max(abs(R @ R.T - np.eye(6 - joint.nv)), initial=0) <= EXACT
    assert np.max(abs(R @ subspace(joint, q)), initial=0) <= EXACT


@each_joint
def test_coordinates_and_velocities_have_names_and_units(joint):
    for some, count in ((joint.coordinates, joint.nq), (joint.velocities, joint.nv)):
        assert len(some) == len({name for name, _ in some}) == count
        assert all((name == "") == (count == 1) for name, _ in some)
    assert all(unit in FORCE_UNITS for _, unit in joint.velocities)
    assert joint.flat == (joint.coordinates == joint.velocities)
    assert joint.limited == (tuple(range(joint.nv)) if joint.flat else (-1,) * joint.nv)


# Rates of coordinates ------------------------------------------------------------------------------------


def coordinates(joint, q):
    return q


@each_joint
def test_the_rate_of_coordinates_is_their_derivative(joint):
    q, v = random_state(joint)
    result = np.array(joint.rate(Vec.of(q), Vec.of(v)), dtype=object)
    assert np.max(abs(result - rate(coordinates, joint, q, v))) <= DIFFERENCE_TOLERANCE
    tangent = np.array(joint.tangent(Vec.of(q)), dtype=object)
    assert tangent.shape == (joint.nq, joint.nv)
    assert np.max(abs(tangent @ v - result)) <= EXACT
    back = np.array(joint.velocity(Vec.of(q), Vec.of(result)), dtype=object)
    assert np.max(abs(back - v)) <= EXACT


@each_joint
def test_the_second_rate_is_the_derivative_of_the_first(joint):
    q, v = random_state(joint)
    a = np.array([mpf(x) for x in np.random.default_rng(3).normal(size=joint.nv)])

    def first(t):
        """dq/dt at the time t, where the velocity is v + a t."""
        there = moved(joint, q, v + a * t / 2, t)
        return np.array(joint.rate(Vec.of(there), Vec.of(v + a * t)), dtype=object)

    expected = (first(STEP) - first(-STEP)) / (2 * STEP)
    result = np.array(joint.rate_dot(Vec.of(q), Vec.of(v), Vec.of(a)), dtype=object)
    assert np.max(abs(result - expected)) <= DIFFERENCE_TOLERANCE


@each_joint
def test_the_retraction_over_any_scalar_is_that_of_arrays(joint):
    for q, dv in zip(random_coordinates(joint, 6), random_steps(joint)):
        result = [float(x) for x in joint.retract(Vec.of(q.tolist()), Vec.of(dv.tolist()))]
        np.testing.assert_allclose(result, joint.integrate(q, dv), rtol=0, atol=ROUNDING)


@each_joint
def test_the_mean_of_a_carried_momentum_is_an_integral(joint):
    """dexp_y^T p = int_0^1 Ad_{exp(s y)}^T p ds, by Gauss's rule"""
    y, p = (Vec.of(x) for x in (np.random.default_rng(5).normal(size=(2, joint.nv)) * 0.7).tolist())
    points, weights = np.polynomial.legendre.leggauss(12)
    momenta = np.array([joint.carried(y * float(s), p) for s in (points + 1) / 2], dtype=float)
    np.testing.assert_allclose(np.array(joint.averaged(y, p), dtype=float), weights / 2 @ momenta, rtol=0, atol=1e-14)


@each_joint
def test_neutral_coordinates_do_not_move(joint):
    assert np.array_equal(pose(joint, np.array([mpf(x) for x in joint.neutral])), np.eye(4))


# Adding and subtracting coordinates --------------------------------------------------------------------

BATCH = 12


def random_steps(joint, seed=1):
    """(BATCH, nv) velocities that turn by less than pi."""
    return np.random.default_rng(seed).uniform(-1.7, 1.7, (BATCH, joint.nv))


def random_coordinates(joint, seed):
    return joint.random(np.random.default_rng(seed), BATCH)


@each_joint
def test_difference_undoes_integrate(joint):
    q, dv = random_coordinates(joint, 2), random_steps(joint)
    np.testing.assert_allclose(joint.difference(q, joint.integrate(q, dv)), dv, rtol=0, atol=ROUNDING)


@each_joint
def test_integrate_undoes_difference(joint):
    """The same pose comes back; a quaternion may come back as its opposite."""
    q0, q1 = random_coordinates(joint, 3), random_coordinates(joint, 4)
    for back, q in zip(joint.integrate(q0, joint.difference(q0, q1)), q1):
        np.testing.assert_allclose((pose(joint, back) - pose(joint, q)).astype(float), 0, rtol=0, atol=ROUNDING)


@each_joint
def test_nothing_lies_between_equal_coordinates(joint):
    q = random_coordinates(joint, 5)
    np.testing.assert_allclose(joint.difference(q, q), 0, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(joint.integrate(q, np.zeros((BATCH, joint.nv))), q, rtol=0, atol=ROUNDING)


@each_joint
def test_integrate_starts_out_along_the_subspace(joint):
    """d/dt f(integrate(q, t v)) = f [S v] at t = 0, in extended precision."""
    h, tolerance = np.longdouble(1e-6), 1e-9  # truncation h^2; rounding eps / h, where long doubles are short
    q, v = random_state(joint)
    start, velocity = q.astype(np.longdouble), v.astype(np.longdouble)
    ahead, behind = (pose(joint, to_digits(joint.integrate(start, s * h * velocity))) for s in (1, -1))
    expected = pose(joint, q) @ lie.hat((subspace(joint, q) @ v).tolist())
    rate_of_f = (ahead - behind) / mpf(float(2 * h))
    np.testing.assert_allclose((rate_of_f - expected).astype(float), 0, rtol=0, atol=tolerance)


@each_joint
def test_a_constant_velocity_is_a_straight_line(joint):
    """f(integrate(q, dv)) = f(q) exp [S dv] where S is constant; dq/dt is constant in the other joints."""
    rates = joint.subspace_rate(*map(Vec.of, random_state(joint))).columns
    if any(x != 0 for rate in rates for x in rate.coordinates):
        q, dv = random_coordinates(joint, 6), random_steps(joint)
        np.testing.assert_array_equal(joint.integrate(q, dv), q + dv)
        return
    for q, dv in zip(random_coordinates(joint, 6), random_steps(joint)):
        S = subspace(joint, q).astype(float)
        expected = pose(joint, q).astype(float) @ lie.exp_se3(S @ dv)
        np.testing.assert_allclose(pose(joint, joint.integrate(q, dv)).astype(float), expected, rtol=0, atol=ROUNDING)


@each_joint
def test_batch_axes_are_only_more_joints(joint):
    q, dv = random_coordinates(joint, 7).reshape(3, 4, -1), random_steps(joint).reshape(3, 4, -1)
    there = joint.integrate(q, dv)
    np.testing.assert_array_equal(there[1, 2], joint.integrate(q[1, 2], dv[1, 2]))
    np.testing.assert_array_equal(joint.difference(q, there)[1, 2], joint.difference(q[1, 2], there[1, 2]))


@pytest.mark.parametrize("name", ["spherical", "free"])
def test_random_rotations_are_uniform(name):
    """The mean of R over SO(3) is zero, as is that of no smaller set of rotations about one axis."""
    q = JOINTS[joint_code(name)].random(np.random.default_rng(8), 4000)[:, -4:]
    np.testing.assert_allclose(np.linalg.norm(q, axis=1), 1, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(lie.quaternion_to_matrix(q).mean(axis=0), 0, rtol=0, atol=5 / np.sqrt(3 * 4000))


@each_joint
def test_a_joint_is_found_by_its_name(joint):
    assert JOINTS[joint_code(joint.name)] is joint
    assert joint.code == JOINTS.index(joint)


def test_an_unknown_joint_is_refused_by_name():
    with pytest.raises(ModelError, match=r"'hinge'.*revolute, prismatic"):
        joint_code("hinge")
