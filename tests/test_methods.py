"""method="auto": the algorithm with the fewest operations, decided once, told when asked."""

import numpy as np
import pytest
from machines import difference

import torsor as ts
from torsor import zoo
from torsor.compiler.lowering import unrolled
from torsor.compiler.tape import Operations
from torsor.dynamics.methods import METHODS, MOST_FREEDOMS, SETTLED, automatic, explain
from torsor.model.conditioning import EVEN, pivot_ratio

IDENTITY = 1e-12
FUNCTIONS = [ts.forward_dynamics, ts.mass_solve]


def count(algorithm, model):
    return sum(Operations.of(unrolled(algorithm, model, algorithm.inputs)))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "model", [zoo.general_arm(3), zoo.general_arm(7), zoo.puma_saha(), zoo.stanford()], ids=lambda m: m.name
)
def test_the_choice_has_the_fewest_operations(model, function):
    """Of the methods that keep their digits on this model."""
    choice = explain(model, function)
    methods = METHODS[function.__name__]
    counts = {name: count(algorithm, model) for name, algorithm in methods.items()}
    accurate = counts if pivot_ratio(model) <= EVEN else {"articulated": counts["articulated"]}
    assert counts[choice.method] == min(accurate.values())
    assert {name: sum(found) for name, found in choice.operations.items()} == counts
    assert choice.why.startswith(choice.method)
    assert str(counts[choice.method]) in choice.why


def test_short_chains_go_through_the_mass_matrix_and_long_ones_do_not():
    chosen = [explain(zoo.general_arm(n), ts.forward_dynamics).method for n in (3, 8)]
    assert chosen == ["composite", "articulated"]


def industrial_arm(n, seed):
    """Right angles and zeros as in real arms: the more special, the better the way through M does."""
    rng = np.random.default_rng(seed)
    return ts.Model.from_dh(
        a=rng.choice([0, 0.3, 0.5], n), d=rng.choice([0, 0.2], n), theta=np.zeros(n), variable="theta",
        alpha=rng.choice([0, np.pi / 2, -np.pi / 2, 0.3], n), com=rng.choice([0, 0.1, 0.2], (n, 3)),
        mass=rng.uniform(1, 2, n), inertia=(1.0, 1.1, 1.2),
    )  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_revolute_chains_need_no_counting_where_it_is_skipped(function, seed):
    """`automatic` does not count there; this does."""
    n = SETTLED[function.__name__]
    for model in (zoo.general_arm(n, seed), industrial_arm(n, seed)):
        assert automatic(model, function) is METHODS[function.__name__]["articulated"]
        assert explain(model, function).method == "articulated"


@pytest.mark.parametrize("seed", range(4))
def test_the_automatic_choice_is_the_one_told(seed, tmp_path, monkeypatch):
    """Counted and remembered, then read back."""
    monkeypatch.setenv("TORSOR_CACHE", str(tmp_path))
    model = industrial_arm(5, seed)
    assert pivot_ratio(model) <= EVEN
    for function in (*FUNCTIONS, *FUNCTIONS):
        told = METHODS[function.__name__][explain(model, function).method]
        assert automatic(model, function) is told
    assert len(list(tmp_path.iterdir())) == 2


def test_large_machines_use_sweeps():
    choice = explain(zoo.humanoid(), ts.forward_dynamics)
    assert choice.method == "articulated"
    assert not choice.operations


@pytest.mark.parametrize("model", [zoo.general_arm(3), zoo.random_tree(4, 2)], ids=["arm", "tree"])
def test_every_method_gives_the_same(model):
    rng = np.random.default_rng(0)
    q, (v, tau) = model.random_configuration(rng, 3), rng.normal(size=(2, 3, model.nv))
    external = rng.normal(size=(3, model.n, 6))
    expected = ts.forward_dynamics(model, q, v, tau, external=external)
    for method in METHODS["forward_dynamics"]:
        found = ts.forward_dynamics(model, q, v, tau, external=external, method=method)
        assert difference(found, expected) < IDENTITY, method
    for method in METHODS["mass_solve"]:
        assert difference(ts.mass_solve(model, q, tau, method=method), ts.mass_solve(model, q, tau)) < IDENTITY


@pytest.mark.parametrize("specialised", [True, False])
@pytest.mark.parametrize("model", [zoo.general_arm(3), zoo.random_tree(7, 2)], ids=["arm", "tree"])
def test_every_inverse_is_the_same(model, specialised):
    q = model.random_configuration(np.random.default_rng(0), 11)
    expected = np.linalg.inv(ts.mass_matrix(model, q))
    assert difference(ts.inverse_mass_matrix(model, q, method="fixman"), expected) < IDENTITY
    for method in METHODS["inverse_mass_matrix"]:
        program = ts.compile(model, ts.inverse_mass_matrix, method=method, specialised=specialised)
        assert difference(program(q), expected) < IDENTITY
        assert difference(ts.inverse_mass_matrix(model, q, method=method), expected) < IDENTITY


def test_the_inverse_is_a_product_while_ways_to_the_base_are_short():
    """With fewer operations, then; a chain of hundreds goes column by column."""
    for model in (zoo.puma_saha(), zoo.humanoid(), zoo.random_chain(300)):
        choice = explain(model, ts.inverse_mass_matrix)
        assert choice.method == ("product" if model.nv < 100 else "articulated")
        programs = {m: ts.compile(model, ts.inverse_mass_matrix, method=m) for m in METHODS["inverse_mass_matrix"]}
        counts = {method: sum(program.operations) for method, program in programs.items()}
        assert counts[choice.method] == min(counts.values())


def test_programs_take_the_same_choice():
    model = zoo.general_arm(3)
    q, v, tau = np.random.default_rng(0).normal(size=(3, 3))
    program = ts.compile(model, ts.forward_dynamics)
    assert np.array_equal(program(q, v, tau), ts.forward_dynamics(model, q, v, tau))
    assert program.operations == explain(model, ts.forward_dynamics).operations["composite"]
    assert ts.compile(model, ts.forward_dynamics, method="udut").name == "forward_dynamics_udut"
    assert not ts.compile(model, ts.forward_dynamics, specialised=False).specialised


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ts.compile(zoo.planar3(), ts.forward_dynamics, method="composite", specialised=False), "no loops"),
        (lambda: ts.compile(zoo.humanoid(), ts.forward_dynamics, method="composite"), str(MOST_FREEDOMS)),
        (lambda: ts.compile(zoo.humanoid(), ts.mass_matrix, method="udut"), "unknown method"),
        (lambda: ts.forward_dynamics(zoo.planar3(), *np.zeros((3, 3)), method="newton"), "unknown method 'newton'"),
        (lambda: explain(zoo.planar3(), ts.mass_matrix), "one method only"),
    ],
)
def test_methods_that_are_not_there_are_refused(call, words):
    with pytest.raises(ts.ArgumentError, match=words):
        call()


def test_composite_still_serves_large_machines():
    model = zoo.humanoid()
    rng = np.random.default_rng(0)
    q, b = model.random_configuration(rng), rng.normal(size=model.nv)
    assert difference(ts.mass_solve(model, q, b, method="composite"), ts.mass_solve(model, q, b)) < 1e-10


@pytest.mark.parametrize("method", METHODS["forward_dynamics"])
def test_every_method_names_the_joint_that_moves_no_mass(method):
    p = [(0, 0, 0), (1, 0, 0)]
    points = ts.Model.chain("revolute", n=2, p=p, mass=1.0, inertia=(0, 0, 0), allow_degenerate=True)
    with pytest.raises(ts.SingularError, match="link2"):
        ts.forward_dynamics(points, *np.ones((3, 2)), method=method)


def test_an_unbounded_ratio_is_told_in_words():
    """A sliding joint may carry what hangs on it as far as it likes."""
    model = ts.Model.chain(["revolute", "prismatic"], n=2, p=(0.1, 0, 0), mass=1.0, inertia=(1, 1, 1))
    assert "M may be any number of times their pivots" in explain(model, ts.forward_dynamics).why


def test_what_has_one_method_is_named():
    with pytest.raises(
        ts.ArgumentError, match=r"^mass_matrix has one method only; those with a choice: forward_dynamics"
    ):
        explain(zoo.planar3(), ts.mass_matrix)
    with pytest.raises(ts.ArgumentError, match=r"give the function, ts\.forward_dynamics"):
        explain(zoo.planar3(), "forward_dynamics")
