"""M = U D U^T: DeNOC matrices, reverse Gaussian elimination, and Saha's three steps to the letter (2001)."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from machines import difference

import torsor as ts
from torsor import zoo
from torsor.backends.pointwise import trace
from torsor.compiler.tape import Operations
from torsor.model.extras import Coupling, Extras
from torsor.papers import saha2001, saha_udut

MACHINES = {
    "tree": lambda: zoo.random_tree(30, 1),
    "chain": lambda: zoo.random_chain(30, 3, joints=None),
    "arm": lambda: zoo.general_arm(10, 5),
    "Stanford": zoo.stanford,
}
IDENTITY = 1e-12
ELIMINATED = 1e-10  # elimination on the entries of M itself, whose condition reaches 1e5 here


@pytest.fixture(params=MACHINES, scope="module")
def denoc(request):
    model = MACHINES[request.param]()
    return saha_udut.denoc(model, model.random_configuration(6))


def test_denoc_blocks(denoc):
    """B_ij = [[1, 0], [C_ij, 1]], M_i = diag(I_i, m_i 1)                                         (Eqs 3, 5)"""
    o = denoc
    bodies = oracle.kinematics(o.model, o.q)
    centres = [p + R @ c for (R, p, *_), c in zip(bodies, o.model.com)]
    for i, parent in enumerate(o.model.parent.tolist()):
        if parent >= 0:
            c = centres[parent] - centres[i]
            expected = np.eye(6)
            expected[3:, :3] = np.cross(np.eye(3), c)  # [c]: row k is e_k x c
            assert np.abs(o.Ad_inv[i] - expected).max() < IDENTITY * max(1, np.abs(centres).max())
        R, I = bodies[i][0], o.model.inertia[i]
        expected = np.zeros((6, 6))
        expected[:3, :3], expected[3:, 3:] = R @ I @ R.T, o.model.mass[i] * np.eye(3)
        assert np.abs(o.J_blocks[i] - expected).max() < IDENTITY * np.abs(expected).max() * 100


def test_mass_matrix_from_denoc_matrices(denoc):
    """M = N_d^T N_l^T M_b N_l N_d                                                                  (Eq. 2)"""
    o = denoc
    assert difference(o.S.T @ o.G.T @ o.J @ o.G @ o.S, oracle.mass_matrix(o.model, o.q)) < IDENTITY


def test_decomposition_of_the_mass_matrix(denoc):
    u = saha_udut.decompose(denoc)
    assert difference(u.U @ np.diag(u.D) @ u.U.T, oracle.mass_matrix(denoc.model, denoc.q)) < IDENTITY
    assert np.array_equal(u.U, np.triu(u.U))
    assert np.all(np.diag(u.U) == 1)
    assert np.all(u.D > 0)


def test_recursive_elimination_is_that_of_the_matrix(denoc):
    u = saha_udut.decompose(denoc)
    U, D = saha_udut.reverse_elimination(oracle.mass_matrix(denoc.model, denoc.q))
    assert difference(u.U, U) < ELIMINATED
    assert difference(u.D, D) < ELIMINATED


def test_entries_between_branches_are_zero():
    model = zoo.random_tree(30, 1)
    u = saha_udut.decompose(saha_udut.denoc(model, model.random_configuration(6)))
    body = np.repeat(np.arange(model.n), np.diff(model.v_start))
    above = [[a in ways(model, b) for b in body] for a in body]
    assert not u.U[~np.array(above)].any()
    assert not u.U_inverse[~np.array(above)].any()


def ways(model, body):
    found = set()
    while body >= 0:
        found.add(body)
        body = int(model.parent[body])
    return found


def test_analytic_inverse(denoc):
    u = saha_udut.decompose(denoc)
    M, one = oracle.mass_matrix(denoc.model, denoc.q), np.eye(denoc.model.nv)
    assert np.abs(u.U_inverse @ u.U - one).max() < IDENTITY * np.abs(u.U).max() * np.abs(u.U_inverse).max()
    assert np.abs(u.M_inverse @ M - one).max() < IDENTITY * np.abs(M).max() * np.abs(u.M_inverse).max()


def test_pivots_are_those_of_the_compiled_sweeps():
    model = zoo.general_arm(6, 5)
    q = model.random_configuration(0)
    D = saha_udut.decompose(saha_udut.denoc(model, q)).D
    assert difference(np.log(D).sum(), ts.log_det_mass_matrix(model, q)) < IDENTITY


def test_elementary_matrices_annihilate_column_after_column():
    A = np.random.default_rng(0).normal(size=(6, 6))
    M = A @ A.T
    previous = M
    for k, (E, L) in zip(range(5, 0, -1), saha_udut.elementary(M)):
        assert np.abs(L[:k, k:]).max() < IDENTITY * np.abs(M).max()
        assert difference(np.linalg.inv(E), 2 * np.eye(6) - E) < IDENTITY  # Eq. 8
        assert difference(L, E @ previous) < IDENTITY
        previous = L


@pytest.mark.parametrize("name", ["general_arm", "random_tree"])
def test_method_udut_agrees_with_articulated_bodies(name):
    model = zoo.general_arm(6, 5) if name == "general_arm" else zoo.random_tree(5, 1)
    rng = np.random.default_rng(0)
    q, (v, tau) = model.random_configuration(rng), rng.normal(size=(2, model.nv))
    external = rng.normal(size=(model.n, 6))
    for method in ("udut", "ploen-park"):
        found = ts.forward_dynamics(model, q, v, tau, external=external, method=method)
        assert difference(found, ts.forward_dynamics(model, q, v, tau, external=external)) < IDENTITY
    assert difference(ts.mass_solve(model, q, tau, method="udut"), ts.mass_solve(model, q, tau)) < IDENTITY


# To the letter -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prismatic", [(), (2,), (0, 3)], ids=["revolute", "one prismatic", "two prismatic"])
def test_three_steps_solve_for_the_accelerations(prismatic):
    rng = np.random.default_rng(0)
    links = saha_udut.general_links(5, prismatic)
    q, phi = rng.normal(size=(2, 5))
    found = saha_udut.forward_dynamics(links, q.tolist(), phi.tolist())
    assert difference(found, ts.mass_solve(saha_udut.model_of(links), q, phi)) < IDENTITY


@pytest.mark.parametrize("n", range(2, 41))
def test_three_steps_cost_exactly(n):
    """193n - 309 M, n of them reciprocals, and 187n - 329 A on a general Denavit-Hartenberg arm, n >= 3.

    His items sum to 192n - 284 M, with six quotients per joint where a reciprocal is shared here, and 187n - 325 A.
    Of two joints the last is also the one next to the base, and the savings at both ends overlap.
    """
    count = saha_udut.operations(n)
    assert (count.mul + count.div, count.add) == (saha2001.COUNTED.at(n) if n > 2 else (90, 68))
    assert count.div == n


def test_items_of_section_3_sum_to_192_n():
    M, A = (np.array([item[k] for item in saha2001.ITEMS.values()]).sum(axis=0) for k in range(2))
    assert M.tolist() == [192, -284]
    assert A.tolist() == [187, -325]


def test_formulas_of_table_I_give_its_numbers_but_for_one():
    wrong = [
        (author, n)
        for author, cost in saha2001.TABLE_I.items()
        for n, printed in cost.printed.items()
        if cost.at(n) != printed
    ]
    assert wrong == [("Walker & Orin", 6)]


def test_turns_cost_what_the_paper_says():
    link = saha_udut.general_links(1)[0]
    vector = Operations.of(
        trace(lambda q, x: saha_udut.Rotation(link, q[0]).out(saha_udut.Vec.of(x)), {"q": (1,), "x": (3,)})
    )
    assert (vector.mul, vector.add) == (8, 4)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_intermediates_of_the_three_steps_have_names(machine):
    """tau^ = U^-1 phi, tau~ = D^-1 tau^, qdd = U^-T tau~; mu accelerates, and eta passes on, what M says."""
    model = MACHINES[machine]()
    rng = np.random.default_rng(8)
    q, (v, tau) = model.random_configuration(rng), rng.normal(size=(2, model.nv))
    found, o = saha_udut.study(model, q, v, tau), saha_udut.denoc(model, q)
    M = oracle.mass_matrix(model, q)
    assert difference(found.U @ np.diag(found.m_hat) @ found.U.T, M) < IDENTITY
    assert difference(found.U @ found.tau_hat, found.phi) < IDENTITY
    assert difference(found.tau_tilde * found.m_hat, found.tau_hat) < IDENTITY
    assert difference(found.U.T @ found.qdd, found.tau_tilde) < ELIMINATED
    assert difference(M @ found.qdd, found.phi) < ELIMINATED
    moved = (o.G @ o.S @ found.qdd).reshape(-1, 6)
    assert difference(found.mu[model.v_start[1:] - 1], moved) < IDENTITY
    bodies = np.repeat(np.arange(model.n), np.diff(model.v_start))
    p = np.concatenate([S.T for S in o.S_blocks])
    assert difference(np.einsum("ki,ki->k", p, found.psi_hat) + model.armature, found.m_hat) < IDENTITY
    tips = np.setdiff1d(np.arange(model.n), model.parent)
    last = model.v_start[tips + 1] - 1
    own = np.einsum("kij,kj->ki", o.J_blocks[bodies[last]], p[last])
    assert difference(found.psi_hat[last], own) < IDENTITY
    assert difference(found.eta[last], found.psi[last] * found.tau_hat[last, None]) < IDENTITY


def test_a_machine_of_coupled_joints_has_no_such_elimination():
    model = zoo.general_arm(3)
    coupled = replace(model, extras=Extras(couplings=(Coupling(1, 0, 0.5),)))
    with pytest.raises(ts.ArgumentError, match="Saha's elimination knows no coupled joints"):
        saha_udut.study(coupled, *np.zeros((3, 3)))
