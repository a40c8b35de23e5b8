"""Relaxed constraints on any model: M^-1 = H11 - H12 H22^-1 H12', det M = det G det H22."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from machines import difference, precise
from mpmath import mp, mpf
from peers import State, assert_close

import torsor as ts
from torsor import zoo
from torsor.algorithms import articulated, composite, fixman
from torsor.backends.cpu import compile_program
from torsor.dynamics.fixman.rigid import relax

# Rounding times the condition of single bodies' inertias (inverted here, unlike in the articulated sweeps).
ROUNDING = 1e-11
LONG, LONG_ERROR = 10_000, 1e-12  # what the method must keep on long chains and trees
SINGLE = 5e-5  # float32, with the same condition numbers: the worst seen is 5e-6
EXACT = 1e-40  # of 50 digits

MODELS = {
    "tree of every joint type": lambda: zoo.random_tree(9, 1),
    "chain of every joint type": lambda: zoo.random_chain(9, 3, joints=None),
    "bush": lambda: zoo.random_tree(9, 2, branching=1.0),
    "polypeptide, planes held": zoo.polypeptide_planar,
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def state(model):
    return State.random(model, seed=3)


# Any model -----------------------------------------------------------------------------------------------


def test_mass_solve_is_that_of_an_independent_mass_matrix(model, state):
    x = ts.mass_solve(model, state.q, state.tau, method="fixman")
    assert_close(model, x, np.linalg.solve(oracle.mass_matrix(model, state.q), state.tau), ROUNDING)


def test_inverse_times_an_independent_mass_matrix_is_one(model, state):
    inverse = ts.inverse_mass_matrix(model, state.q, method="fixman")
    assert_close(model, inverse @ oracle.mass_matrix(model, state.q), np.eye(model.nv), ROUNDING)


def test_log_det_is_that_of_an_independent_mass_matrix(model, state):
    sign, expected = np.linalg.slogdet(oracle.mass_matrix(model, state.q))
    assert difference(ts.log_det_mass_matrix(model, state.q, method="fixman"), expected) <= ROUNDING
    assert sign > 0


def test_forward_dynamics_is_that_of_the_articulated_sweeps(model, state):
    """External wrenches included."""
    arguments = (model, state.q, state.v, state.tau)
    a, b = (ts.forward_dynamics(*arguments, external=state.external, method=m) for m in ("fixman", "articulated"))
    assert difference(a, b) <= ROUNDING


def test_batches_are_states_one_by_one(model):
    q = model.random_configuration(1, size=(3, 2))
    b = np.random.default_rng(0).normal(size=(2, model.nv))  # broadcasts
    x = ts.mass_solve(model, q, b, method="fixman")
    assert x.shape == (3, 2, model.nv)
    one = ts.mass_solve(model, q[2, 1], b[1], method="fixman")
    assert_close(model, x[2, 1], one, ROUNDING)
    assert ts.log_det_mass_matrix(model, q, method="fixman").shape == (3, 2)


def test_float32_in_float32_out(model, state):
    x = ts.mass_solve(model, *(y.astype(np.float32) for y in (state.q, state.tau)), method="fixman")
    assert x.dtype == np.float32
    assert_close(model, x, ts.mass_solve(model, state.q, state.tau), SINGLE)


def test_with_fifty_digits_both_methods_are_the_same():
    """The steps in mpmath, in the model's own frames; axes of exactly unit length, up, down and sideways."""
    axes = np.array([[0.0, 0, -1], [1, 0, 0], [0, -1, 0], [0, 0, 1]])
    model = replace(zoo.random_tree(8, 4), axis=axes[np.arange(8) % 4])
    state = State.random(model, seed=5)
    with mp.workdps(50):
        a = precise(fixman.mass_solve, model, q=state.q, b=state.tau)
        b = precise(articulated.mass_solve, model, q=state.q, b=state.tau)
        assert max(abs(a - b)) / max(abs(b)) < EXACT
        assert abs(precise(fixman.log_det, model, q=state.q) - precise(articulated.log_det, model, q=state.q)) < EXACT


# Long chains and trees -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "long", [zoo.random_chain, zoo.random_tree, zoo.polypeptide_planar, zoo.rope], ids=lambda f: f.__name__
)
def test_ten_thousand_links_keep_twelve_digits(long):
    model = long(LONG)
    q = model.random_configuration(2)
    b = np.random.default_rng(2).normal(size=model.nv)
    x = ts.mass_solve(model, q, b, method="fixman")
    assert_close(model, x, ts.mass_solve(model, q, b, method="articulated"), LONG_ERROR)


def test_operations_grow_with_the_first_power_of_n():
    """Growth exponent between n = 1,000 and n = 100,000: 1.0."""
    short, long = (sum(compile_program(fixman.mass_solve, zoo.random_chain(n)).operations) for n in (1_000, 100_000))
    assert abs(np.log(long / short) / np.log(100) - 1) <= 0.01


# Singular bodies -----------------------------------------------------------------------------------------


def thinned(model, seed=0):
    """The model with rods, points and, inside, massless bodies among its bodies."""
    rng = np.random.default_rng(seed)
    inertia, mass, com = model.inertia.copy(), model.mass.copy(), model.com.copy()
    for i in range(model.n):
        kind = rng.integers(4)
        u = rng.normal(size=3)
        if kind == 0:
            inertia[i] = mass[i] * 0.02 * (u @ u * np.eye(3) - np.outer(u, u))
        elif kind == 1:
            inertia[i] = 0
        elif kind == 2 and model.children_count[i]:
            inertia[i], mass[i], com[i] = 0, 0, 0
    return replace(model, inertia=inertia, mass=mass, com=com, allow_degenerate=True)


THIN = {
    "polypeptide of the text": lambda: zoo.polypeptide_faithful(7),
    "long polypeptide": lambda: zoo.polypeptide_faithful(40),
    "points": lambda: zoo.point_chain(6, mass=[1, 2, 3, 1, 0.5, 2], length=[1, 0.3, 2, 1, 1, 0.7]),
    "revolute chain": lambda: thinned(zoo.random_chain(9, 4)),
    "tree": lambda: thinned(
        zoo.random_tree(9, 1, joints=["revolute", "prismatic", "helical", "universal"], branching=0.6)
    ),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow) if x == "tree" else x for x in THIN])
def test_rods_points_and_massless_bodies_are_braced(name):
    """Their missing inertia lies in directions that their joints hold, or M would be singular."""
    model = THIN[name]()
    assert model.has_degenerate_bodies
    rng = np.random.default_rng(3)
    q, (v, b) = model.random_configuration(rng), rng.normal(size=(2, model.nv))
    M = oracle.mass_matrix(model, q)
    loss = ROUNDING * max(1.0, 1e-4 * np.linalg.cond(M))
    assert_close(model, ts.mass_solve(model, q, b, method="fixman"), np.linalg.solve(M, b), loss)
    assert_close(model, ts.inverse_mass_matrix(model, q, method="fixman") @ M, np.eye(model.nv), loss)
    assert abs(ts.log_det_mass_matrix(model, q, method="fixman") - np.linalg.slogdet(M)[1]) <= loss
    expected = ts.forward_dynamics(model, q, v, b)
    assert_close(model, ts.forward_dynamics(model, q, v, b, method="fixman"), expected, loss)
    single = ts.mass_solve(model, q.astype(np.float32), b.astype(np.float32), method="fixman")
    assert single.dtype == np.float32


def test_the_brace_changes_nothing_with_fifty_digits():
    """Also for bodies that need none."""
    model = zoo.random_tree(6, 2)
    rng = np.random.default_rng(0)
    q, b = model.random_configuration(rng), rng.normal(size=model.nv)
    with mp.workdps(50):
        plain, braced = (precise(method.mass_solve, model, q=q, b=b) for method in (fixman.REGULAR, fixman.BRACED))
        assert max(abs(x) for x in plain - braced) < mpf(EXACT) * max(abs(x) for x in plain)


def test_a_joint_that_moves_no_mass_is_refused_by_name():
    model = replace(zoo.point_chain(3), com=np.array([[1.0, 0, 0], [1.0, 0, 0], [0, 0, 0]]))
    with pytest.raises(ts.SingularError, match=r"joint 'link3' moves no mass"):
        ts.mass_solve(model, np.zeros(3), np.ones(3), method="fixman")


def test_blocks_of_H_of_a_rod_are_refused_by_name():
    with pytest.raises(ts.SingularError, match=r"'C2' \(and 3 more\) has the inertia of a rod.*merge.*'fixman'"):
        relax(zoo.polypeptide_faithful(), np.zeros(7))


def test_rods_merged_into_planes_are_taken():
    model = zoo.polypeptide_planar(7)
    assert model.nv == 5
    q = model.random_configuration(0)
    M = oracle.mass_matrix(model, q)
    assert_close(model, ts.inverse_mass_matrix(model, q, method="fixman") @ M, np.eye(5), ROUNDING)


def test_unknown_methods_name_this_one():
    model = zoo.general_arm(2)
    q = np.zeros(2)
    for call in (
        lambda: ts.mass_solve(model, q, q, method="fix"),
        lambda: ts.log_det_mass_matrix(model, q, method="fix"),
        lambda: ts.inverse_mass_matrix(model, q, method="fix"),
    ):
        with pytest.raises(ts.ArgumentError, match="fixman"):
            call()


# The banded system of a serial chain ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain():
    return zoo.random_chain(9, 3, joints=None)


def test_banded_blocks_give_the_same_answers(chain):
    q = chain.random_configuration(4, size=(3,))
    b = np.random.default_rng(4).normal(size=(3, chain.nv))
    free = relax(chain, q)
    assert_close(chain, free.solve(b), ts.mass_solve(chain, q, b), ROUNDING)
    assert_close(chain, free.inverse(), ts.inverse_mass_matrix(chain, q), ROUNDING)
    assert difference(free.log_det(), ts.log_det_mass_matrix(chain, q)) <= ROUNDING


def test_blocks_of_H_are_the_inverse_of_the_relaxed_mass_matrix(chain):
    """M^-1 = H11 - H12 H22^-1 H12' with full matrices (Eq. 6)."""
    q = chain.random_configuration(5)
    H11, H12, H22 = relax(chain, q).dense()
    schur = H11 - H12 @ np.linalg.solve(H22, H12.T)
    assert_close(chain, schur, ts.inverse_mass_matrix(chain, q), ROUNDING)


def test_banded_solution_of_a_long_chain():
    model = zoo.random_chain(LONG, 1)
    q, b = model.random_configuration(1), np.random.default_rng(1).normal(size=LONG)
    assert_close(model, relax(model, q).solve(b), ts.mass_solve(model, q, b), LONG_ERROR)


def test_banded_system_is_for_chains(chain):
    with pytest.raises(ts.ArgumentError, match="branches"):
        relax(zoo.random_tree(5, 0, branching=1.0), np.zeros(5))
    with pytest.raises(ts.ArgumentError, match="shape"):
        relax(chain, np.zeros(3))
    with pytest.raises(ts.ArgumentError, match="soft variables"):
        relax(chain, chain.neutral()).solve(np.zeros(2))
    with pytest.raises(ts.ArgumentError, match="batch axes"):
        relax(chain, chain.random_configuration(0, size=(2, 1))).solve(np.zeros((3, chain.nv)))


def test_composite_and_relaxed_determinants_are_those_of_one_matrix(chain):
    q = chain.random_configuration(6)
    M = np.array(precise(composite.mass_matrix, chain, q=q), dtype=float)
    assert difference(relax(chain, q).log_det(), np.linalg.slogdet(M)[1]) <= ROUNDING
