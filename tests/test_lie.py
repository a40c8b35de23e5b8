"""SO(3) and SE(3) over every scalar type, against definitions evaluated with 50 digits."""

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import to_digits
from mpmath import mp, mpf
from peers.installed import peer
from scipy.linalg import expm

from torsor import lie
from torsor.errors import ArgumentError
from torsor.linalg import Mat, Vec, down_scale

ca = peer("casadi")

DIGITS = 50
# Each function is a few dozen operations on numbers of size up to 4: so many rounding units are lost at most.
ULPS = 40
EPS = np.finfo(np.float64).eps


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(DIGITS):
        yield


# The oracle: definitions over arrays of mpmath numbers -------------------------------------------------


def exponential(X):
    with mp.workdps(DIGITS + 10):
        return np.array(mp.expm(mp.matrix(X.tolist()), method="taylor").tolist())


def matrix_of(V):
    """The 3x3 or 4x4 matrix of a rotation vector or a twist."""
    x, y, z = V[:3]
    W = np.array([[0 * x, -z, y], [z, 0 * x, -x], [-y, x, 0 * x]])
    return W if len(V) == 3 else np.block([[W, V[3:, None]], [np.zeros((1, 4)) * x]])


def vector_of(X):
    w = [X[2, 1], X[0, 2], X[1, 0]]
    return np.array(w if len(X) == 3 else [*w, *X[:3, 3]])


def linear_map(f, n):
    """The matrix of f: X -> f(X) on so(3) or se(3)."""
    basis = np.eye(n, dtype=int) * mpf(1)
    return np.stack([vector_of(f(matrix_of(e))) for e in basis], axis=-1)


def turn(axis, angle):
    return exponential(matrix_of(np.eye(3, dtype=int)[axis] * angle))


def zxz(angles):
    return turn(2, angles[0]) @ turn(0, angles[1]) @ turn(2, angles[2])


def zxz_body_rates(angles):
    """Columns (R' dR/dangle)^vee by central differences: their error is of the order of h^2."""
    h = mpf(10) ** (-DIGITS // 3)
    steps = np.eye(3, dtype=int) * h
    R = zxz(angles)
    return np.stack([vector_of(R.T @ (zxz(angles + s) - zxz(angles - s)) / (2 * h)) for s in steps], axis=-1)


def spinor(q):
    """The 2x2 complex matrix of a quaternion; multiplying quaternions is multiplying these."""
    w, x, y, z = q
    return np.array([[mp.mpc(w, x), mp.mpc(y, z)], [mp.mpc(-y, z), mp.mpc(w, -x)]])


def quaternion(w):
    angle = mp.sqrt(w @ w)
    return np.array([mp.cos(angle / 2), *(w * mp.sin(angle / 2) / angle)])


def sample(seed):
    """What the functions take and return at one random point, by name."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=3)
    w = direction / np.linalg.norm(direction) * rng.uniform(0.1, 3.0) * mpf(1)
    V = np.array([*w, *(rng.normal(size=3) * mpf(1))])
    T, T2 = exponential(matrix_of(V)), exponential(matrix_of(rng.normal(size=6) * mpf(1)))
    q, q2 = quaternion(w), quaternion(rng.normal(size=3) * mpf(1))
    product = (spinor(q) @ spinor(q2))[0]
    angles = rng.uniform(0.2, 2.8, 3) * mpf(1)
    T_inverse = np.array((mp.matrix(T.tolist()) ** -1).tolist())
    Ad = linear_map(lambda X: T @ X @ T_inverse, 6)
    ad = linear_map(lambda X: matrix_of(V) @ X - X @ matrix_of(V), 6)
    return {
        "w": w, "V": V, "[w]": matrix_of(w), "[V]": matrix_of(V), "R": exponential(matrix_of(w)), "T": T,
        "T2": T2, "T T2": T @ T2, "T^-1": T_inverse, "q": q, "q2": q2,
        "q q2": np.array([product[0].real, product[0].imag, product[1].real, product[1].imag]),
        "Ad": Ad, "Ad'": Ad.T, "ad": ad, "ad'": ad.T, "angles": angles, "zxz": zxz(angles),
        "zxz rates": zxz_body_rates(angles),
    }  # fmt: skip


ARROWS = [  # (function, its arguments, its value)
    ("hat", ["w"], "[w]"),
    ("hat", ["V"], "[V]"),
    ("vee", ["[w]"], "w"),
    ("vee", ["[V]"], "V"),
    ("exp_so3", ["w"], "R"),
    ("log_so3", ["R"], "w"),
    ("exp_se3", ["V"], "T"),
    ("log_se3", ["T"], "V"),
    ("Ad", ["T"], "Ad"),
    ("Ad_dual", ["T"], "Ad'"),
    ("ad", ["V"], "ad"),
    ("ad_dual", ["V"], "ad'"),
    ("compose", ["T", "T2"], "T T2"),
    ("inverse", ["T"], "T^-1"),
    ("quaternion_to_matrix", ["q"], "R"),
    ("matrix_to_quaternion", ["R"], "q"),
    ("exp_quaternion", ["w"], "q"),
    ("log_quaternion", ["q"], "w"),
    ("quaternion_product", ["q", "q2"], "q q2"),
    ("euler_zxz", ["angles"], "zxz"),
    ("euler_zxz_jacobian", ["angles"], "zxz rates"),
]
each_function = pytest.mark.parametrize(("name", "arguments", "value"), ARROWS, ids=lambda x: "".join(x))


@pytest.fixture(scope="module")
def samples():
    """Six samples as arrays with batch axes (2, 3)."""
    with mp.workdps(DIGITS):
        points = [sample(seed) for seed in range(6)]
    return {key: np.reshape([p[key] for p in points], (2, 3, *np.shape(points[0][key]))) for key in points[0]}


def to_dtype(x, dtype):
    """Numbers of 50 digits, each rounded once to the dtype."""
    return np.array([dtype(mp.nstr(y, 25)) for y in x.flat]).reshape(x.shape)


def error(result, expected):
    """The largest difference, relative to the largest entry or to 1."""
    assert result.shape == expected.shape
    return np.max(abs(result - expected)) / max(1, np.max(abs(expected)))


# Every function over every scalar type -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
@each_function
def test_arrays_with_batch_axes(samples, name, arguments, value, dtype):
    result = getattr(lie, name)(*(to_dtype(samples[a], dtype) for a in arguments))
    assert result.dtype == dtype
    assert error(to_digits(result), samples[value]) <= ULPS * float(np.finfo(dtype).eps)


@each_function
def test_mpmath_numbers(samples, name, arguments, value):
    result = getattr(lie, name)(*(samples[a][0, 0].tolist() for a in arguments))
    # the differences of the oracle are good to h^2, two thirds of the digits
    digits = DIGITS // 2 if value == "zxz rates" else DIGITS
    assert error(result, samples[value][0, 0]) <= ULPS * mpf(10) ** -digits


@each_function
def test_casadi_symbols(samples, name, arguments, value):
    points = [samples[a][0, 0].astype(np.float64) for a in arguments]
    symbols = [ca.SX.sym(f"x{k}", *p.shape) for k, p in enumerate(points)]
    function = ca.Function("f", symbols, [getattr(lie, name)(*symbols)])
    result = np.array(function(*points)).reshape(samples[value][0, 0].shape)
    assert error(to_digits(result), samples[value][0, 0]) <= ULPS * EPS


@each_function
def test_lists_and_integers_are_doubles(name, arguments, value):
    lengths, three = {"w": 3, "angles": 3, "V": 6, "q": 4, "q2": 4}, ("R", "[w]")
    integers = [
        np.arange(1, 1 + lengths[a]) if a in lengths else np.eye(3 if a in three else 4, dtype=int) for a in arguments
    ]
    from_integers, from_lists = (getattr(lie, name)(*xs) for xs in (integers, [x.tolist() for x in integers]))
    assert from_integers.dtype == from_lists.dtype == np.float64
    np.testing.assert_array_equal(from_integers, from_lists)


@each_function
def test_an_empty_batch_stays_empty(samples, name, arguments, value):
    result = getattr(lie, name)(*(samples[a][:0].astype(np.float64) for a in arguments))
    assert result.shape == samples[value][:0].shape


@pytest.mark.parametrize(("name", "a", "b"), [("compose", "T", "T2"), ("quaternion_product", "q", "q2")])
def test_batch_axes_broadcast(samples, name, a, b):
    x, y = samples[a].astype(np.float64), samples[b].astype(np.float64)
    together = getattr(lie, name)(x[:, :, None], y[0])
    np.testing.assert_array_equal(together[1, 2, 0], getattr(lie, name)(x[1, 2], y[0, 0]))
    assert together.shape[:3] == (2, 3, 3)


def test_vectors_of_torsor_stay_so():
    assert isinstance(lie.exp_so3(Vec(0.1, 0.2, 0.3)), Mat)
    assert isinstance(lie.log_so3(Mat.identity()), Vec)


# Where formulas divide by zero or cancel ---------------------------------------------------------------

DIRECTION = np.array([2.0, -1.0, 2.0]) / 3
SMALL = [0.0, 1e-300, 1e-160, 1e-20, 1e-8, 1e-4, 0.01]
ORDINARY = [0.3, 0.4999, 0.5, 0.5001, 0.9999, 1.0, 1.0001, 2.0, 3.0]
NEAR_PI = [np.pi - d for d in (1e-2, 1e-4, 1e-8, 1e-12)]


@pytest.mark.parametrize("angle", SMALL)
def test_logarithm_undoes_exponential_to_relative_precision_at_small_angles(angle):
    w = DIRECTION * angle
    for back in (lie.log_so3(lie.exp_so3(w)), lie.log_quaternion(lie.exp_quaternion(w))):
        np.testing.assert_allclose(back, w, rtol=ULPS * EPS, atol=0)


@pytest.mark.parametrize("angle", [*ORDINARY, *NEAR_PI])
def test_logarithm_undoes_exponential_at_large_angles(angle):
    """Near pi an angle is known from matrix entries of size 1, to their rounding."""
    w = DIRECTION * angle
    for back in (lie.log_so3(lie.exp_so3(w)), lie.log_quaternion(lie.exp_quaternion(w))):
        np.testing.assert_allclose(back, w, rtol=0, atol=ULPS * EPS)


@pytest.mark.parametrize("axis", [DIRECTION, *np.eye(3), -np.eye(3)[1], np.array([0.6, -0.8, 0.0])])
def test_half_a_turn_has_one_of_two_logarithms(axis):
    R = 2 * np.outer(axis, axis) - np.eye(3)
    w = lie.log_so3(R)
    assert abs(np.linalg.norm(w) - np.pi) <= ULPS * EPS
    np.testing.assert_allclose(lie.exp_so3(w), R, rtol=0, atol=ULPS * EPS)


@pytest.mark.parametrize("angle", [*SMALL, *ORDINARY, *NEAR_PI])
def test_exponential_of_a_twist_is_the_matrix_exponential(angle):
    V = np.array([*(DIRECTION * angle), 0.3, -0.7, 1.1])
    expected = exponential(matrix_of(V * mpf(1)))
    assert error(to_digits(lie.exp_se3(V)), expected) <= ULPS * EPS


@pytest.mark.parametrize("angle", [*SMALL, *ORDINARY, *NEAR_PI])
def test_logarithm_of_a_transform_undoes_its_exponential(angle):
    V = np.array([*(DIRECTION * angle), 0.3, -0.7, 1.1])
    np.testing.assert_allclose(lie.log_se3(lie.exp_se3(V)), V, rtol=0, atol=ULPS * EPS)


def test_a_rotation_by_many_turns_loses_only_the_rounding_of_the_angle():
    w = DIRECTION * 1000
    expected = exponential(matrix_of(w * mpf(1)))
    assert error(to_digits(lie.exp_so3(w)), expected) <= 1000 * ULPS * EPS


def test_a_batch_may_hold_every_kind_of_angle():
    """No division by zero in one entry (warnings are errors), and no entry touches another."""
    V = np.array([[*(DIRECTION * angle), 1.0, 2.0, 3.0] for angle in (*SMALL, *ORDINARY, *NEAR_PI)])
    for f, g in ((lie.exp_se3, lie.log_se3), (lambda V: lie.exp_so3(V[..., :3]), lie.log_so3)):
        together = f(V)
        np.testing.assert_array_equal(together, [f(x) for x in V])
        np.testing.assert_array_equal(g(together), [g(T) for T in together])


# Identities over random twists -------------------------------------------------------------------------

twists = st.lists(st.floats(-1.7, 1.7), min_size=6, max_size=6).map(np.array)  # turns by less than pi


def close(a, b, ulps=10 * ULPS):
    """Equal up to the rounding of products of several matrices, whose entries are below 30."""
    np.testing.assert_allclose(a, b, rtol=0, atol=ulps * EPS)


@given(twists)
def test_log_is_the_inverse_of_exp(V):
    close(lie.log_se3(lie.exp_se3(V)), V)
    close(lie.log_so3(lie.exp_so3(V[:3])), V[:3])


@given(twists)
def test_exp_of_minus_a_twist_is_the_inverse(V):
    close(lie.compose(lie.exp_se3(V), lie.exp_se3(-V)), np.eye(4))
    close(lie.exp_se3(-V), lie.inverse(lie.exp_se3(V)))


@given(twists)
def test_rotations_are_orthonormal(V):
    R = lie.exp_so3(V[:3])
    close(R.T @ R, np.eye(3))
    close(np.linalg.det(R), 1.0)


@given(twists, twists)
def test_Ad_is_a_homomorphism(V, W):
    S, T = lie.exp_se3(V), lie.exp_se3(W)
    close(lie.Ad(lie.compose(S, T)), lie.Ad(S) @ lie.Ad(T))
    close(lie.Ad(lie.inverse(S)) @ lie.Ad(S), np.eye(6))


@given(twists, twists)
def test_Ad_conjugates(V, W):
    """[Ad_T W] = T [W] T^-1"""
    T = lie.exp_se3(V)
    close(lie.hat(lie.Ad(T) @ W), T @ lie.hat(W) @ lie.inverse(T))


@given(twists, twists)
def test_ad_is_the_lie_bracket(V, W):
    X, Y = lie.hat(V), lie.hat(W)
    close(lie.hat(lie.ad(V) @ W), X @ Y - Y @ X)
    close(lie.ad(V) @ W, -lie.ad(W) @ V)


@given(twists)
def test_exponential_of_ad_is_Ad_of_the_exponential(V):
    close(lie.Ad(lie.exp_se3(V)), expm(lie.ad(V)))


@given(twists)
def test_duals_are_transposes(V):
    T = lie.exp_se3(V)
    np.testing.assert_array_equal(lie.Ad_dual(T), lie.Ad(T).T)
    np.testing.assert_array_equal(lie.ad_dual(V), lie.ad(V).T)


def test_ad_is_the_derivative_of_Ad():
    """d/dt Ad(exp tV) = ad V at t = 0, by central differences with 50 digits."""
    V, h = np.array([mpf(k) / 3 for k in range(-2, 4)]), mpf(10) ** -16
    ahead, behind = (lie.Ad(lie.exp_se3((s * h * V).tolist())) for s in (1, -1))
    assert error((ahead - behind) / (2 * h), lie.ad(V.tolist())) <= 100 * h**2


@given(twists, twists)
def test_hat_multiplies_like_the_cross_product_and_vee_undoes_it(V, W):
    close(lie.hat(V[:3]) @ W[:3], np.cross(V[:3], W[:3]))
    np.testing.assert_array_equal(lie.vee(lie.hat(V)), V)
    np.testing.assert_array_equal(lie.vee(lie.hat(V[:3])), V[:3])


@given(twists, twists)
def test_the_product_of_quaternions_composes_rotations(V, W):
    p, q = lie.exp_quaternion(V[:3]), lie.exp_quaternion(W[:3])
    product = lie.quaternion_to_matrix(lie.quaternion_product(p, q))
    close(product, lie.quaternion_to_matrix(p) @ lie.quaternion_to_matrix(q))


@given(twists)
def test_a_quaternion_survives_its_matrix_and_comes_back_with_a_positive_real_part(V):
    q = lie.exp_quaternion(V[:3])
    back = lie.matrix_to_quaternion(lie.quaternion_to_matrix(q))
    assert back[0] >= 0
    close(back, q)


@given(twists, st.floats(0.1, 10))
def test_a_quaternion_its_opposite_and_its_multiples_are_one_rotation(V, length):
    q = lie.exp_quaternion(V[:3])
    close(lie.quaternion_to_matrix(-q), lie.quaternion_to_matrix(q))
    close(lie.quaternion_to_matrix(q * length), lie.quaternion_to_matrix(q))
    close(lie.log_quaternion(-q), lie.log_quaternion(q))


@pytest.mark.parametrize("k", range(4))
def test_every_branch_of_the_quaternion_of_a_matrix(k):
    """Each component in turn is the largest."""
    q = np.full(4, 0.1)
    q[k] = 1.0
    q /= np.linalg.norm(q)
    close(lie.matrix_to_quaternion(lie.quaternion_to_matrix(q)), q)


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=3))
def test_determinant_of_the_zxz_jacobian_is_minus_sine_beta(angles):
    close(np.linalg.det(lie.euler_zxz_jacobian(angles)), -np.sin(angles[1]))


# Trigonometric functions are what costs ----------------------------------------------------------------


class Counted:
    """A number that writes down every sine, cosine and arctangent taken of it."""

    def __init__(self, x, calls):
        self.x, self.calls = x, calls

    def _binary(f):
        return lambda a, b: Counted(f(a.x, getattr(b, "x", b)), a.calls)

    def _reflected(f):
        return lambda a, b: Counted(f(b, a.x), a.calls)

    def _compare(f):
        return lambda a, b: f(a.x, getattr(b, "x", b))

    def __abs__(self):
        return Counted(abs(self.x), self.calls)

    def maximum(self, other):
        return Counted(max(self.x, other.x), self.calls)

    def down_scale(self):
        return down_scale([self.x])

    def _call(name):
        def call(self, *others):
            self.calls.append((name, self.x, *(o.x for o in others)))
            return Counted(float(getattr(np, name)(self.x, *(o.x for o in others))), self.calls)

        return call

    __add__, __sub__, __mul__, __truediv__ = map(_binary, (operator.add, operator.sub, operator.mul, operator.truediv))
    __radd__, __rsub__, __rmul__, __rtruediv__ = map(
        _reflected, (operator.add, operator.sub, operator.mul, operator.truediv)
    )
    __lt__, __gt__, __eq__ = map(_compare, (operator.lt, operator.gt, operator.eq))
    sin, cos, atan2 = map(_call, ("sin", "cos", "arctan2"))
    __hash__ = None

    def __neg__(self):
        return Counted(-self.x, self.calls)

    def sqrt(self):
        return Counted(self.x**0.5, self.calls)


@pytest.mark.parametrize(
    ("name", "argument", "allowed"),
    [
        ("exp_so3", "w", 2),
        ("exp_se3", "V", 2),
        ("exp_quaternion", "w", 2),
        ("euler_zxz", "angles", 6),
        ("euler_zxz_jacobian", "angles", 4),
        ("log_quaternion", "q", 1),
        ("log_so3", "R", 1),
        ("log_se3", "T", 3),
        ("quaternion_to_matrix", "q", 0),
        ("matrix_to_quaternion", "R", 0),
    ],
)
def test_no_trigonometric_function_is_called_twice_for_one_angle(samples, name, argument, allowed):
    calls = []
    numbers = np.vectorize(lambda x: Counted(float(x), calls), otypes=[object])(samples[argument][0, 0])
    getattr(lie, name)(Vec.of(numbers) if numbers.ndim == 1 else Mat.of(numbers))
    assert len(calls) == len(set(calls)) == allowed


# Lie derivatives of functions (Lee, Wang & Chirikjian 2007, sections 3.3 and 3.5)

TWELVE_DIGITS = 1e-12


def test_lie_derivatives_of_euler_angles_are_the_inverse_jacobian():
    """Eqs 13, 17, 18: dq/dxi = J^-1, with the printed J^-1 of the ZXZ angles."""
    angles = np.array([[0.3, 0.9, -0.4], [-2.0, 1.7, 1.1]])

    def zxz(R):
        return np.stack(
            [np.arctan2(R[..., 0, 2], -R[..., 1, 2]), np.arccos(R[..., 2, 2]), np.arctan2(R[..., 2, 0], R[..., 2, 1])],
            axis=-1,
        )

    found = lie.derivative(zxz, lie.euler_zxz(angles))
    _, beta, gamma = angles.T
    zero, one, cot = np.zeros(2), np.ones(2), 1 / np.tan(beta)
    printed = np.array([
        [np.sin(gamma) / np.sin(beta), np.cos(gamma) / np.sin(beta), zero],
        [np.cos(gamma), -np.sin(gamma), zero],
        [-cot * np.sin(gamma), -cot * np.cos(gamma), one],
    ])  # fmt: skip
    np.testing.assert_allclose(found, np.moveaxis(printed, -1, 0), rtol=0, atol=TWELVE_DIGITS)
    np.testing.assert_allclose(
        found @ lie.euler_zxz_jacobian(angles), np.broadcast_to(np.eye(3), (2, 3, 3)), rtol=0, atol=1e-11
    )


def test_lie_derivatives_on_SE3_are_T_E_i():
    """Eq. 16 of f(T) = T itself, and of a distance."""
    T = lie.exp_se3([0.4, -0.3, 0.8, 0.5, 0.2, -0.7])
    found = lie.derivative(lambda X: X, T)
    for i, E in enumerate(lie.hat(np.eye(6))):
        np.testing.assert_allclose(found[..., i], T @ E, rtol=0, atol=TWELVE_DIGITS)
    distance = lie.derivative(lambda X: np.linalg.norm(X[..., :3, 3], axis=-1), T)
    p = T[:3, 3]
    np.testing.assert_allclose(
        distance, np.r_[np.zeros(3), p @ T[:3, :3] / np.linalg.norm(p)], rtol=0, atol=TWELVE_DIGITS
    )


def test_a_small_machine_needs_its_own_length():
    T = lie.exp_se3([0.4, -0.3, 0.8, 1e-3, 2e-3, -1e-3])
    found = lie.derivative(lambda X: np.linalg.norm(X[..., :3, 3], axis=-1), T, length=1e-3)
    p = T[:3, 3]
    np.testing.assert_allclose(found[3:], p @ T[:3, :3] / np.linalg.norm(p), rtol=0, atol=1e-10)


def test_a_function_that_varies_fast_keeps_its_digits():
    R = lie.exp_so3([0.1, 0.2, 0.3])
    found = lie.derivative(lambda X: np.sin(300 * X[..., 0, 1]), R)
    plain = lie.derivative(lambda X: X[..., 0, 1], R)
    np.testing.assert_allclose(found, 300 * np.cos(300 * R[0, 1]) * plain, rtol=1e-9)


NOT_SMOOTH = {
    "a kink": lambda X: abs(X[..., 0, 1]),
    "half a kink": lambda X: np.maximum(X[..., 0, 1], 0.0),
    "a jump": lambda X: np.sign(X[..., 2, 0]),
    "a root": lambda X: np.sqrt(abs(X[..., 0, 1])),
    "no number": lambda X: np.nan * X[..., 0, 0],
}


@pytest.mark.parametrize("name", NOT_SMOOTH)
def test_a_function_that_is_not_smooth_is_refused(name):
    with pytest.raises(ArgumentError, match="do not settle"):
        lie.derivative(NOT_SMOOTH[name], np.eye(3))


def test_no_rotations_have_no_derivatives():
    assert lie.derivative(lambda R: R[..., 0, 0], np.zeros((0, 3, 3))).shape == (0, 3)


@pytest.mark.parametrize(
    ("f", "A", "options", "words"),
    [
        (np.sum, np.eye(2), {}, r"A has shape \(2, 2\)"),
        (None, np.eye(3), {}, "needs a function"),
        (np.sum, np.eye(3), {"length": 0.0}, "a length above 0"),
        (np.sum, np.eye(3), {"length": np.inf}, "a length above 0"),
    ],
)
def test_lie_derivatives_that_cannot_be_taken_are_refused(f, A, options, words):
    with pytest.raises(ArgumentError, match=words):
        lie.derivative(f, A, **options)
