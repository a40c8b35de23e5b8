"""The closed forms as explicit matrices: block operators, changes of frames, square factorizations, Table I."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle
import pytest
from machines import difference

import torsor as ts
from torsor import lie, reference, zoo
from torsor.algorithms import articulated, composite, kinematics, newton_euler, ploen_park, square_factor
from torsor.dynamics import closed_forms
from torsor.dynamics.closed_forms import block_diagonal
from torsor.dynamics.fixman.rigid import relax
from torsor.papers import ploen1999, saha_udut

MACHINES = {
    "tree": lambda: zoo.random_tree(30, 1),
    "chain": lambda: zoo.random_chain(30, 3, joints=None),
    "arm": lambda: zoo.general_arm(6, 5),
    "humanoid": zoo.humanoid,
}
FRAMES = {
    "joint frames": lambda model, q: None,
    "mass centres": lambda model, q: closed_forms.com_frames(model),
    "Denavit-Hartenberg": lambda model, q: closed_forms.dh_frames(model),
    "inertial": closed_forms.inertial_com_frames,
    "any": lambda model, q: lie.exp_se3(np.random.default_rng(2).normal(size=(model.n, 6))),
}
SOLVED = 1e-9  # M^-1 M of machines whose condition reaches 1e5
IDENTITY = 1e-12  # sums of some thousand products of order one


@pytest.fixture(params=MACHINES, scope="module")
def case(request):
    """(model, q, v), and what the reference says of it."""
    model = MACHINES[request.param]()
    rng = np.random.default_rng(6)
    q, v = model.random_configuration(rng), rng.normal(size=model.nv)
    return model, q, v


@pytest.fixture(params=FRAMES)
def operators(case, request):
    model, q, v = case
    return closed_forms.operators(model, q, v, Q=FRAMES[request.param](model, q))


def evaluated(algorithm, model, **inputs):
    frame = inputs.pop("frame", None)
    return np.array(reference.evaluate(algorithm, model, {k: x.tolist() for k, x in inputs.items()}, frame=frame))


# The block operators, in any frames ----------------------------------------------------------------------------


def test_closed_form_of_the_mass_matrix(operators):
    o = operators
    assert difference(o.M, oracle.mass_matrix(o.model, o.q)) < IDENTITY


def test_closed_form_of_velocity_and_gravity_terms(operators):
    o = operators
    gravity = evaluated(newton_euler.gravity_forces, o.model, q=o.q)
    bias = evaluated(newton_euler.bias_forces, o.model, q=o.q, v=o.v)
    assert difference(o.phi, gravity, bias) < IDENTITY
    assert difference(o.C + o.phi, bias) < IDENTITY


def test_closed_form_of_the_tip_jacobian(operators):
    o = operators
    for body in (-1, o.n // 2):
        expected = evaluated(kinematics.jacobian, o.model, q=o.q, frame=o.model.frame(body))
        assert difference(o.J_t(body), expected) < IDENTITY


def test_gamma_is_nilpotent_and_G_the_sum_of_its_powers(operators):
    o = operators
    total = power = np.eye(6 * o.n)
    for _ in range(o.n - 1):
        power = power @ o.Gamma
        total = total + power
    assert not (power @ o.Gamma).any()
    assert difference(o.G, total) < IDENTITY


def test_operators_without_matrices(operators):
    o = operators
    x = np.random.default_rng(1).normal(size=6 * o.n)
    assert difference(o.G_apply(x), o.G @ x) < IDENTITY
    assert difference(o.GT_apply(x), o.G.T @ x) < IDENTITY
    assert difference(o.M_apply(o.v), o.M @ o.v) < IDENTITY


def test_newton_euler_in_global_form(operators):
    """Eqs 6-9, with a wrench on the tip: tau = S^T F."""
    o = operators
    rng = np.random.default_rng(3)
    qdd, f_t = rng.normal(size=o.model.nv), rng.normal(size=6)
    a = o.ad_Sv @ o.Gamma @ o.V + o.P_0 @ o.dV_0
    for i, (S_rate, v) in enumerate(zip(o.S_rate_blocks, np.split(o.v, o.model.v_start[1:-1]))):
        a[6 * i : 6 * i + 6] += S_rate @ v
    dV = o.G_apply(o.S @ qdd + a)
    F = o.GT_apply(o.J @ dV + o.ad_V @ o.J @ o.V + o.P_t().T @ f_t)
    external = np.zeros((o.n, 6))
    external[-1] = -f_t  # f_t is exerted by the tip
    inputs = {"q": o.q, "v": o.v, "qdd": qdd, "external": external}
    assert difference(o.S.T @ F, evaluated(newton_euler.inverse_dynamics, o.model, **inputs)) < IDENTITY


def test_operators_transform_as_tensors(case):
    """A = Q S, L = Q G Q^-1, D = Q^-T J Q^-1 and the others                                  (Eqs 15-26)"""
    model, q, v = case
    poses = FRAMES["any"](model, q)
    old, new = closed_forms.operators(model, q, v), closed_forms.operators(model, q, v, Q=poses)
    Q = block_diagonal(lie.Ad(poses))
    inverse = block_diagonal(lie.Ad(lie.inverse(poses)))
    pairs = {
        "A": (new.S, Q @ old.S), "L": (new.G, Q @ old.G @ inverse), "D": (new.J, inverse.T @ old.J @ inverse),
        "Gamma": (new.Gamma, Q @ old.Gamma @ inverse), "ad_Sv": (new.ad_Sv, Q @ old.ad_Sv @ inverse),
        "ad_V": (new.ad_V, inverse.T @ old.ad_V @ Q.T), "P_0": (new.P_0, Q @ old.P_0),
        "P_t": (new.P_t(), old.P_t() @ inverse), "V": (new.V, Q @ old.V),
    }  # fmt: skip
    for name, (a, b) in pairs.items():
        assert difference(a, b) < IDENTITY, name


def test_inertias_at_mass_centres_are_block_diagonal(case):
    model, q, _ = case
    for D, m, I in zip(
        closed_forms.operators(model, q, Q=closed_forms.com_frames(model)).J_blocks, model.mass, model.inertia
    ):
        expected = np.zeros((6, 6))
        expected[:3, :3], expected[3:, 3:] = I, m * np.eye(3)
        assert np.abs(D - expected).max() < IDENTITY * max(m, np.abs(I).max())


def test_denavit_hartenberg_frames_have_the_axis_on_z():
    model = zoo.general_arm(6, 5)
    o = closed_forms.operators(model, np.ones(6), Q=closed_forms.dh_frames(model))
    assert np.abs(o.S - np.kron(np.eye(6), [[0], [0], [1], [0], [0], [0]])).max() < IDENTITY


@pytest.mark.parametrize("frames", FRAMES)
@pytest.mark.parametrize(
    "algorithm",
    [ploen_park.inverse_dynamics, newton_euler.inverse_dynamics, articulated.forward_dynamics, square_factor.solve,
     composite.mass_matrix, kinematics.body_twists],
    ids=lambda a: a.name,
)  # fmt: skip
def test_the_recursions_keep_their_form_in_any_frames(frames, algorithm):
    model = zoo.random_tree(8, 5)
    rng = np.random.default_rng(0)
    q = model.random_configuration(rng)
    inputs = {"q": q.tolist()} | {name: rng.normal(size=model.nv).tolist() for name in algorithm.inputs[1:]}
    expected = np.array(reference.evaluate(algorithm, model, inputs))
    found = np.array(closed_forms.evaluate(algorithm, model, FRAMES[frames](model, q), inputs))
    assert difference(found, expected) < IDENTITY


@pytest.mark.parametrize(
    ("Q", "words"),
    [(np.eye(4), "shape"), (np.zeros((6, 4, 4)), "link1"), (np.diag([1, 1, -1, 1]) * np.ones((6, 1, 1)), "not a pose")],
)
def test_frames_that_are_no_poses_are_refused(Q, words):
    with pytest.raises(ts.ArgumentError, match=words):
        closed_forms.operators(zoo.puma_saha(), np.zeros(6), Q=Q)


# Rotors --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["tree", "humanoid"])
def with_rotors(request):
    """(model, q, v, qdd) of a machine with an armature at every joint, free ones included."""
    model, rng = MACHINES[request.param](), np.random.default_rng(4)
    model = replace(model, armature=rng.uniform(0.1, 2.0, model.nv))
    return model, model.random_configuration(rng), *rng.normal(size=(2, model.nv))


def test_operators_and_factors_contain_the_armature(with_rotors):
    model, q, v, qdd = with_rotors
    o = closed_forms.operators(model, q, v)
    M = ts.mass_matrix(model, q)
    factors, decomposed = closed_forms.Factorization(o), saha_udut.decompose(saha_udut.denoc(model, q))
    assert difference(o.M, M) < IDENTITY
    assert difference(o.M_apply(v), M @ v) < IDENTITY
    assert difference(o.C + o.phi, ts.bias_forces(model, q, v)) < IDENTITY
    assert difference(o.tau(qdd), ts.inverse_dynamics(model, q, v, qdd)) < IDENTITY
    assert difference(factors.M, M) < IDENTITY
    assert difference(decomposed.U @ np.diag(decomposed.D) @ decomposed.U.T, M) < IDENTITY
    assert np.abs(factors.M_inverse @ M - np.eye(model.nv)).max() < SOLVED
    assert np.abs(decomposed.M_inverse @ M - np.eye(model.nv)).max() < SOLVED


def test_relaxation_and_table_I_refuse_an_armature_by_name():
    model = replace(zoo.general_arm(4), armature=[0.0, 0.0, 0.5, 0.0])
    with pytest.raises(ts.ArgumentError, match=f"relax, .* joint '{model.names[2]}' has an armature of 0.5"):
        relax(model, np.zeros(4))
    with pytest.raises(ts.ArgumentError, match="Table I knows no rotors"):
        ploen1999.correspondence(closed_forms.Factorization(closed_forms.operators(model, np.zeros(4))))


# Square factorizations -----------------------------------------------------------------------------------------


def test_square_factorization_of_the_mass_matrix(operators):
    """M = [1 + S^T G^T Pi] Omega [1 + S^T G^T Pi]^T                       (Proposition 1, Eq. 42)"""
    f = closed_forms.Factorization(operators)
    assert difference(f.M, oracle.mass_matrix(operators.model, operators.q)) < IDENTITY


def test_square_factorization_of_the_inverse(operators):
    """M^-1 = [1 - S^T Y Pi]^T Omega^-1 [1 - S^T Y Pi]                     (Proposition 2, Eq. 43)"""
    f = closed_forms.Factorization(operators)
    one = np.eye(operators.model.nv)
    assert np.abs(f.K_inverse @ f.K - one).max() < IDENTITY * np.abs(f.K_inverse).max() * np.abs(f.K).max()
    M, inverse = operators.M, f.M_inverse
    assert np.abs(M @ inverse - one).max() < IDENTITY * np.abs(M).max() * np.abs(inverse).max()


def test_articulated_inertias_satisfy_the_matrix_equation(operators):
    """J = J^ - Gamma^T J^ Gamma + Gamma^T J^ S (S^T J^ S)^-1 S^T J^ Gamma                       (Eq. 41)"""
    f, o = closed_forms.Factorization(operators), operators
    G = o.Gamma.T @ f.J_hat
    assert difference(f.J_hat - G @ o.Gamma + G @ o.S @ f.Phi @ o.Gamma, o.J, f.J_hat) < IDENTITY


def test_the_explicit_factor_is_the_one_that_is_compiled():
    model = zoo.general_arm(6, 5)
    q = model.random_configuration(0)
    f = closed_forms.Factorization(closed_forms.operators(model, q))
    assert difference(f.K @ np.sqrt(f.Omega), ts.mass_factor(model, q).matrix()) < IDENTITY


@pytest.mark.parametrize("machine", ["chain", "arm"])
def test_spatial_operator_algebra(machine):
    model = MACHINES[machine]()
    q = model.random_configuration(6)
    table = ploen1999.correspondence(closed_forms.Factorization(closed_forms.operators(model, q)))
    assert len(table) == len(ploen1999.TABLE_I) == 7
    for names, (ours, theirs) in table.items():
        assert difference(ours, theirs) < IDENTITY, names


def test_table_I_is_about_chains():
    model = zoo.random_tree(9, 2, branching=0.7)
    with pytest.raises(ts.ArgumentError, match="branches"):
        ploen1999.correspondence(closed_forms.Factorization(closed_forms.operators(model, model.neutral())))


def test_code_of_the_page_on_closed_forms_runs(capsys):
    page = (Path(__file__).parent.parent / "docs" / "closed_forms.md").read_text(encoding="utf-8")
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    assert r"\[ M =" in capsys.readouterr().out
    assert difference(names["o"].M, ts.mass_matrix(names["model"], names["q"])) < IDENTITY
