"""Closed forms in symbols: the textbook's planar arms, and every joint against the compiled functions."""

import numpy as np
import pytest
from machines import difference
from peers.installed import peer

import torsor as ts
from torsor import zoo

sympy = peer("sympy")
TR8 = peer("sympy.simplify.fu").TR8

IDENTITY = 1e-12
NAMES = "m_1 m_2 m_3 r_1x r_2x r_3x I_1zz I_2zz I_3zz p_2x p_3x g q1 q2 q3 qd1 qd2 qd3"
m1, m2, m3, r1, r2, r3, I1, I2, I3, l1, l2, g, q1, q2, q3, v1, v2, v3 = sympy.symbols(NAMES, real=True)
cos, sin = sympy.cos, sympy.sin


def planar(n):
    """n links in a vertical plane, each along its own x axis."""
    p = [(0, 0, 0), (1.0, 0, 0), (1.1, 0, 0)][:n]
    return ts.Model.chain(
        "revolute", n=n, p=p, mass=[1.0, 2.0, 3.0][:n], com=(0.5, 0, 0), inertia=(0.1, 0.1, 0.11), gravity=(0, -9.81, 0)
    )


def equal(A, B):
    """Whether nothing is left of A - B as a sum of sines and cosines of sums of angles."""
    return (A - sympy.Matrix(B)).applyfunc(lambda x: sympy.expand(TR8(sympy.expand(x)))).is_zero_matrix


def test_planar_arm_of_two_links_is_the_textbooks():
    """Murray, Li & Sastry 1994, section 4.2: alpha, beta, delta; gravity along -y."""
    machine = ts.symbolic.closed_form(planar(2))
    alpha = I1 + I2 + m1 * r1**2 + m2 * (l1**2 + r2**2)
    beta, delta = m2 * l1 * r2, I2 + m2 * r2**2
    M = [[alpha + 2 * beta * cos(q2), delta + beta * cos(q2)], [delta + beta * cos(q2), delta]]
    C = [[-beta * sin(q2) * v2, -beta * sin(q2) * (v1 + v2)], [beta * sin(q2) * v1, 0]]
    G = [(m1 * r1 + m2 * l1) * g * cos(q1) + m2 * r2 * g * cos(q1 + q2), m2 * r2 * g * cos(q1 + q2)]
    assert equal(machine.M, M)
    assert equal(machine.C, C)
    assert equal(machine.g, G)


def test_planar_arm_of_three_links_is_the_textbooks():
    """From the kinetic energy of three bodies at x_k = sum l cos, y_k = sum l sin of the absolute angles."""
    machine = ts.symbolic.closed_form(planar(3))
    q, v = (q1, q2, q3), (v1, v2, v3)
    theta = [sum(q[: k + 1]) for k in range(3)]
    T, U, joint = 0, 0, sympy.zeros(2, 1)
    for k, (m, I, r, l) in enumerate([(m1, I1, r1, l1), (m2, I2, r2, l2), (m3, I3, r3, 0)]):
        along = sympy.Matrix([cos(theta[k]), sin(theta[k])])
        centre, omega = joint + r * along, sum(v[: k + 1])
        velocity = centre.jacobian(q) * sympy.Matrix(v)
        T += m * velocity.dot(velocity) / 2 + I * omega**2 / 2
        U += m * g * centre[1]
        joint = joint + l * along
    assert equal(machine.M, sympy.hessian(T, v))
    assert equal(machine.g, [U.diff(x) for x in q])
    # Lagrange's equations without the accelerations
    momenta = sympy.Matrix([T.diff(x) for x in v])
    velocity_terms = momenta.jacobian(q) * sympy.Matrix(v) - sympy.Matrix([T.diff(x) for x in q])
    assert equal(machine.C * sympy.Matrix(v), velocity_terms)


def test_entries_are_written_short():
    """One cosine, one coefficient: what a teacher would write on the board."""
    machine = ts.symbolic.closed_form(planar(3))
    assert machine.M[0, 0].coeff(cos(q2)) == 2 * l1 * (m2 * r2 + l2 * m3)
    assert machine.M.atoms(cos) == {cos(q2), cos(q3), cos(q2 + q3)}
    assert not machine.M.atoms(sin)


def test_mass_matrix_rate_less_twice_coriolis_is_skew():
    machine = ts.symbolic.closed_form(planar(2))
    rate = sum((machine.M.diff(q) * v for q, v in zip(machine.q, machine.qd)), sympy.zeros(2))
    skew = rate - 2 * machine.C
    assert equal(skew + skew.T, sympy.zeros(2))


def test_latex_is_short_for_sums_of_angles():
    text = ts.symbolic.closed_form(planar(3)).latex()
    assert "c_{23}" in text
    assert r"\dot{q}_{1}" in text
    assert "cos" not in text
    assert text.count(r"\[") == 3


def mixed(*joints):
    rng = np.random.default_rng(len(joints))
    n = len(joints)
    axis = np.eye(3)[rng.integers(3, size=n)]
    pitch = [0.2 if j == "helical" else 0.0 for j in joints]
    turn = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]])
    return ts.Model.chain(
        list(joints), axis=axis, pitch=pitch, p=rng.normal(size=(n, 3)), R=turn, mass=rng.uniform(1, 2, n),
        com=rng.normal(size=(n, 3)), inertia=(1.0, 1.1, 1.2), gravity=rng.normal(size=3),
    )  # fmt: skip


@pytest.mark.parametrize(
    "joints",
    [("revolute", "prismatic", "revolute"), ("helical", "revolute"), ("universal",), ("planar",), ("prismatic",) * 3],
    ids="-".join,
)
def test_closed_forms_evaluate_to_the_compiled_functions(joints):
    model = mixed(*joints)
    q, v = np.random.default_rng(0).normal(size=(2, model.nv))
    M, C, gravity = ts.symbolic.closed_form(model).evaluate(q, v)
    assert difference(M, ts.mass_matrix(model, q)) < IDENTITY
    assert difference(C, ts.coriolis_matrix(model, q, v), M) < IDENTITY
    assert difference(gravity, ts.gravity_forces(model, q)) < IDENTITY


def test_a_tree_and_the_zoo():
    model = zoo.planar3()
    q, v = np.random.default_rng(0).normal(size=(2, 3))
    M, *_ = ts.symbolic.closed_form(model).evaluate(q, v)
    assert difference(M, ts.mass_matrix(model, q)) < IDENTITY


@pytest.mark.parametrize(
    ("model", "words"), [(lambda: zoo.random_chain(1, joints=["spherical"]), "spherical"), (zoo.panda, "7 freedoms")]
)
def test_what_has_no_readable_closed_form_is_refused(model, words):
    with pytest.raises(ts.ArgumentError, match=words):
        ts.symbolic.closed_form(model())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stanford", "puma_saha"])
def test_industrial_arms(name):
    model = zoo.get(name)
    q, v = np.random.default_rng(0).normal(size=(2, 6))
    M, C, gravity = ts.symbolic.closed_form(model).evaluate(q, v)
    assert difference(M, ts.mass_matrix(model, q)) < IDENTITY
    assert difference(C, ts.coriolis_matrix(model, q, v)) < IDENTITY
    assert difference(gravity, ts.gravity_forces(model, q)) < IDENTITY


@pytest.mark.parametrize("function", [ts.mass_matrix, ts.inverse_dynamics, ts.forward_dynamics, ts.kinetic_energy])
def test_public_functions_take_symbols_of_sympy(function):
    """With numbers put in afterwards they give what they give for the numbers."""
    sympy = pytest.importorskip("sympy")
    model, names = ts.zoo.double_pendulum(), ("q", "v", "x")
    count = {"mass_matrix": 1, "kinetic_energy": 2}.get(function.__name__, 3)
    symbols = [sympy.symbols(f"{name}1 {name}2") for name in names[:count]]
    values = np.random.default_rng(0).normal(size=(count, 2))
    numbers = {s: x for pair, row in zip(symbols, values) for s, x in zip(pair, row)}
    found = np.vectorize(lambda x: float(sympy.sympify(x).subs(numbers)))(np.asarray(function(model, *symbols), object))
    assert np.allclose(found, function(model, *values), rtol=1e-12, atol=1e-12)  # a few hundred operations


def test_a_closed_form_shows_itself_in_notebooks():
    pytest.importorskip("sympy")
    shown = ts.symbolic.closed_form(ts.zoo.pendulum())._repr_latex_()
    assert shown.count("$$") == 6
    assert r"\[" not in shown
