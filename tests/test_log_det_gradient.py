"""The gradient of log det M, which is the force that corrects chains with rigid bonds."""

import mpmath
import numpy as np
import pytest
from machines import difference, precise
from mpmath import mp
from scipy.integrate import quad

import torsor as ts
from torsor import zoo
from torsor.algorithms import articulated
from torsor.backends.cpu import compile_program
from torsor.compiler.derivative import log_det_gradient
from torsor.dynamics.fixman.points import relax_spatial
from torsor.model.joints import JOINTS

# float64 against differences with 50 digits, which are exact to 1e-20
ROUNDING = 1e-11
STEP = 1e-12  # central differences of log det M in 50 digits: error STEP^2


@pytest.fixture(
    scope="module",
    params=[
        lambda: zoo.random_chain(7, 3, joints=None),
        lambda: zoo.random_tree(8, 1),
        zoo.polypeptide_faithful,  # rods: only M itself must be regular
    ],
    ids=["chain of every joint type", "tree", "polypeptide"],
)
def model(request):
    return request.param()


def moved(model, q, v):
    """q moved by the velocity v for a unit of time, to first order in v: enough for central differences."""
    q = np.array([mpmath.mpf(x) for x in q])
    for joint, i, j in zip(model.joint, model.q_start, model.v_start):
        joint = JOINTS[joint]
        dq = v[j : j + joint.nv]
        if joint.nq == joint.nv:
            q[i : i + joint.nq] += dq
            continue
        w, x, y, z = q[i + joint.nq - 4 : i + joint.nq]
        a, b, c = dq[:3] / 2
        q[i + joint.nq - 4 : i + joint.nq] += [-x * a - y * b - z * c, w * a + y * c - z * b,
                                               w * b + z * a - x * c, w * c + x * b - y * a]  # fmt: skip
        if joint.name == "free":
            R = ts.lie.quaternion_to_matrix(np.array([w, x, y, z]) / mpmath.sqrt(w * w + x * x + y * y + z * z))
            q[i : i + 3] += R @ dq[3:]
    return q


def log_det(model, q):
    from torsor import reference

    return reference.evaluate(articulated.log_det, model, {"q": list(q)}, number=mpmath.mpf)


def test_gradient_is_that_of_differences_with_fifty_digits(model):
    q = model.random_configuration(2)
    with mp.workdps(50):
        h = mpmath.mpf(STEP)
        steps = [np.array([h * (i == k) for i in range(model.nv)]) for k in range(model.nv)]
        exact = [(log_det(model, moved(model, q, d)) - log_det(model, moved(model, q, -d))) / (2 * h) for d in steps]
        digits = precise(log_det_gradient, model, q=q)
        assert max(abs(a - b) for a, b in zip(digits, exact)) < 1e-14  # axes are of unit length to 16 digits
    assert difference(ts.log_det_gradient(model, q), np.array(exact, dtype=float)) <= ROUNDING


def test_nothing_depends_on_the_first_joint_of_a_chain():
    model = zoo.general_arm(5, 1)
    assert ts.log_det_gradient(model, model.random_configuration(0))[0] == 0


def test_batches_and_compiled_programs(model):
    q = model.random_configuration(3, size=(2, 3))
    gradient = ts.log_det_gradient(model, q)
    assert gradient.shape == (2, 3, model.nv)
    assert difference(gradient[1, 2], ts.log_det_gradient(model, q[1, 2])) <= ROUNDING
    assert difference(ts.compile(model, ts.log_det_gradient)(q), gradient) <= ROUNDING


def test_gradient_costs_a_fixed_number_of_operations_a_link():
    short, long = (sum(compile_program(log_det_gradient, zoo.random_chain(n)).operations) for n in (1_000, 100_000))
    assert abs(np.log(long / short) / np.log(100) - 1) <= 0.01


def test_ten_thousand_links():
    """The derivative of log det M along a direction, against a difference over a step that loses half the digits."""
    model = zoo.random_chain(10_000, 1)
    q, v = model.random_configuration(0), np.random.default_rng(0).normal(size=model.nv)
    h = 1e-5
    up, down = (ts.log_det_mass_matrix(model, q + step * v) for step in (h, -h))
    np.testing.assert_allclose(ts.log_det_gradient(model, q) @ v, (up - down) / (2 * h), rtol=1e-6)


# Three point masses --------------------------------------------------------------------------------------


MASSES = (1.0, 2.0, 0.5)


def trimer(masses=MASSES):
    """Three point masses on two rigid bonds, free in space: a rod of two, and the third hinged to its end."""
    m1, m2, m3 = masses
    builder = ts.Model.builder("trimer", gravity=(0, 0, 0), allow_degenerate=True)
    c, I = m1 / (m1 + m2), m1 * m2 / (m1 + m2)
    builder.add("rod", joint="free", mass=m1 + m2, com=(-c, 0, 0), inertia=(0.0, I, I))
    builder.add("end", parent="rod", axis=(0, 0, 1), mass=m3, com=(1.0, 0, 0), inertia=(0.0, 0.0, 0.0))
    return builder.build()


def log_det_hard(cosine, masses=MASSES):
    """log det H22 of the two bonds: (1/m1 + 1/m2)(1/m2 + 1/m3) - cos^2 theta / m2^2, theta = 0 if straight."""
    m1, m2, m3 = masses
    return np.log((1 / m1 + 1 / m2) * (1 / m2 + 1 / m3) - cosine**2 / m2**2)


def test_fixmans_determinant_of_a_trimer_is_its_closed_form():
    """Straight and folded included: theta = 0 and pi."""
    theta = np.array([0.0, 0.3, 1.2, np.pi / 2, 3.0, np.pi])
    bonds = np.ones((len(theta), 2))
    angles = np.stack([np.full(len(theta), 1.0), theta], axis=-1)
    free = relax_spatial(MASSES, bonds, angles, np.full((len(theta), 2), 0.7), ("theta", "phi"), free=True)
    np.testing.assert_allclose(free.log_det_hard(), log_det_hard(np.cos(theta)), rtol=0, atol=1e-14)


def test_force_on_the_angle_of_a_trimer_is_its_closed_form():
    """log det M = const + 2 log sin theta + log det H22: the first is the sphere's, the second the constraints'."""
    model = trimer()
    theta = np.linspace(0.2, 2.9, 7)
    q = np.array([[*model.random_configuration(3)[:7], t] for t in theta])
    c, s = np.cos(theta), np.sin(theta)
    m2 = MASSES[1]
    expected = 2 * c / s + 2 * c * s / m2**2 / np.exp(log_det_hard(c))
    gradient = ts.log_det_gradient(model, q)
    np.testing.assert_allclose(gradient[:, -1], expected, rtol=1e-12)
    np.testing.assert_allclose(gradient[:, :6], 0, rtol=0, atol=1e-12)  # where and how it lies in space is all the same


def test_correction_makes_the_cosine_of_a_trimer_uniform():
    """Rigid bonds weigh cos theta by sqrt(det H22); the corrected weight is sin theta d theta alone."""
    model = trimer()

    def weight(theta, corrected):
        q = np.array([*model.neutral()[:7], theta])
        log_det = ts.log_det_mass_matrix(model, q)
        correction = log_det_hard(np.cos(theta)) if corrected else 0.0
        return np.exp(0.5 * (log_det - correction)) / np.sin(theta)  # a density of cos theta

    thetas = np.arccos([-0.9, -0.5, 0.0, 0.4, 0.95])
    rigid = np.array([weight(t, False) for t in thetas])
    assert np.ptp(rigid) / rigid.mean() > 0.03
    corrected = np.array([weight(t, True) for t in thetas])
    assert np.ptp(corrected) / corrected.mean() < 1e-12
    total = quad(lambda c: np.exp(0.5 * log_det_hard(c)), -1, 1)[0]
    closed = np.exp(0.5 * log_det_hard(np.cos(thetas))) / total
    np.testing.assert_allclose(rigid / rigid.sum(), closed / closed.sum(), rtol=1e-12)
