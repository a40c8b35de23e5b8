"""Rotors: the armature of a model, and inertias added by an input, are on the diagonal of M in everything that uses M.

The oracle is dense: M of the bodies alone, from NumPy's `solve`, plus a diagonal.
"""

from dataclasses import replace

import numpy as np
import pytest
from machines import difference
from peers import State, relative_difference
from peers.mujoco_peer import MujocoPeer
from peers.pinocchio_peer import PinocchioPeer

import torsor as ts
from torsor import ArgumentError, reference, zoo
from torsor.algorithms import articulated, square_factor
from torsor.dynamics.methods import METHODS
from torsor.model.joints import JOINTS

ROUNDING = 1e-9  # a dense solve of badly conditioned random machines
SINGLE = 1e-5  # the same in float32: the worst seen is 4e-7
MACHINES = {
    "tree": zoo.random_tree(11, 3),
    "arm": zoo.random_chain(6, 1),
    "chain": zoo.random_chain(40, 2, joints=("revolute", "prismatic")),
    **{joint.name: zoo.random_chain(3, 1, joints=(joint.name,)) for joint in JOINTS},
}
QUICK = ("chain", "cylindrical")  # the tree has joints of all types
each_machine = pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MACHINES]
)


def with_rotors(name, share=1.0, seed=0):
    """(the model with armature, the same without, a state): about `share` of the bodies have rotors."""
    model, rng = MACHINES[name], np.random.default_rng(seed)
    bodies = rng.random(model.n) < share
    armature = rng.uniform(0.1, 2.0, model.nv) * np.repeat(bodies, np.diff(model.v_start))
    state = model.random_configuration(rng), *rng.normal(size=(2, model.nv))
    return replace(model, armature=armature), model, state


def levels(name):
    """The method by levels, where its many operations are compiled quickly."""
    return () if name == "tree" else ("constraint-force",)


def dense(bare, armature, q, v, tau, turning=None):
    """M, and accelerations under the bias of the bodies and of the rotors of free joints."""
    M = ts.mass_matrix(bare, q) + np.diag(armature)
    bias = ts.bias_forces(bare, q, v) + rotor_bias(bare, armature if turning is None else turning, v)
    return M, np.linalg.solve(M, tau - bias)


def rotor_bias(model, armature, v):
    """The momentum p = A v of a free joint's rotors changes direction with the body: (v x p, w x p)."""
    bias = np.zeros(model.nv)
    for k in model.v_start[:-1][np.diff(model.v_start) == 6]:
        spin, slide = v[k : k + 3], v[k + 3 : k + 6]
        p = armature[k + 3 : k + 6] * slide
        bias[k : k + 6] = *np.cross(slide, p), *np.cross(spin, p)
    return bias


@each_machine
@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.slow), 0.5], ids=["all", "some"])
def test_every_function_of_the_mass_matrix_has_the_armature_on_its_diagonal(name, share):
    model, bare, (q, v, tau) = with_rotors(name, share)
    M, qdd = dense(bare, model.armature, q, v, tau)
    assert difference(ts.mass_matrix(model, q), M) < ROUNDING
    for method in (*METHODS["forward_dynamics"], *levels(name)):
        if model.nv <= 12 or method != "composite":
            assert difference(ts.forward_dynamics(model, q, v, tau, method=method), qdd) < ROUNDING, method
    for method in METHODS["inverse_dynamics"]:
        assert difference(ts.inverse_dynamics(model, q, v, qdd, method=method), tau) < ROUNDING * 100, method
    for method in METHODS["inverse_mass_matrix"]:
        assert difference(ts.inverse_mass_matrix(model, q, method=method) @ M, np.eye(model.nv)) < ROUNDING, method
    for method in (*METHODS["mass_solve"], *levels(name)):
        assert difference(M @ ts.mass_solve(model, q, tau, method=method), tau) < ROUNDING, method
    assert difference(ts.log_det_mass_matrix(model, q), np.linalg.slogdet(M)[1]) < ROUNDING
    assert difference(ts.kinetic_energy(model, q, v), v @ M @ v / 2) < ROUNDING
    bias = rotor_bias(model, model.armature, v)
    added = ts.bias_forces(model, q, v) - ts.bias_forces(bare, q, v)
    assert difference(added, bias) < ROUNDING if bias.any() else not added.any()
    C = ts.coriolis_matrix(model, q, v) - ts.coriolis_matrix(bare, q, v)
    assert difference(C @ v, bias) < ROUNDING
    assert difference(C, -C.T) < ROUNDING  # the rotors' part of M is constant
    W = ts.mass_factor(model, q).matrix()
    assert difference(W @ W.T, M) < ROUNDING
    for function, x in (
        (square_factor.solve, np.linalg.solve(W, tau)),
        (square_factor.solve_T, np.linalg.solve(W.T, tau)),
    ):
        assert difference(np.array(reference.evaluate(function, model, {"q": q, "x": tau})), x) < ROUNDING


@pytest.mark.parametrize("name", ["tree", "arm", "spherical", "cylindrical"])
def test_loops_straight_line_and_single_precision(name):
    model, bare, (q, v, tau) = with_rotors(name, 0.7)
    _, qdd = dense(bare, model.armature, q, v, tau)
    for specialised in (True, False):
        for dtype, tolerance in (("float64", ROUNDING), ("float32", SINGLE)):
            program = ts.compile(model, ts.forward_dynamics, specialised=specialised, dtype=dtype)
            found = program(*(np.tile(x, (5, 1)).astype(dtype) for x in (q, v, tau)))
            assert difference(found, np.tile(qdd, (5, 1))) < tolerance


def test_zero_armature_is_no_armature():
    """The same code, to the bit, for models without rotors and for those whose rotors weigh nothing."""
    bare = zoo.random_tree(9, 5)
    model = replace(bare, armature=np.zeros(bare.nv))
    assert model.key == bare.key
    code = [str(ts.compile(m, ts.forward_dynamics, specialised=False).request.code) for m in (bare, model)]
    assert code[0] == code[1]
    assert "rotor" not in code[0]


def test_a_rotor_on_a_massless_body_makes_the_mass_matrix_regular():
    links = dict(mass=(0.0, 1.0), inertia=np.array([[0, 0, 0], [1, 1, 1.0]]), allow_degenerate=True, gravity=(0, 0, 0))
    model = ts.Model.chain("prismatic", axis=((1, 0, 0), (0, 0, 1)), armature=(0.5, 0.0), **links)
    assert ts.forward_dynamics(model, np.zeros(2), np.zeros(2), (1.0, 1.0)).tolist() == pytest.approx([1 / 1.5, 1.0])


def test_gradient_of_the_logarithm_of_the_determinant():
    model, _, (q, _, _) = with_rotors("chain", 0.5)
    step = 1e-5
    ends = [ts.log_det_mass_matrix(model, q + s * step * np.eye(model.nv)) for s in (1, -1)]
    assert difference(ts.log_det_gradient(model, q), (ends[0] - ends[1]) / (2 * step)) < 1e-6


def heavier(model, more):
    """The model with a mass at the origin of its first body, which also resists turning by the same number."""
    m, c = model.mass[0] + more, model.com[0] * model.mass[0] / (model.mass[0] + more)
    about = [k * ((r @ r) * np.eye(3) - np.outer(r, r)) for k, r in ((model.mass[0], model.com[0]), (-m, c))]
    first = [m, c, model.inertia[0] + sum(about) + more * np.eye(3)]
    rest = (model.mass[1:], model.com[1:], model.inertia[1:])
    mass, com, inertia = (np.concatenate([[x], xs]) for x, xs in zip(first, rest))
    return replace(model, mass=mass, com=com, inertia=inertia)


def with_and_without_rotors(joints):
    """Two machines with the same equations, without gravity: rotors on the first joint, and a heavier first body."""
    like = zoo.random_tree(4, 5, joints=("revolute",))
    links = {key: getattr(like, key)[: len(joints)] for key in ("R", "p", "mass", "com", "inertia")}
    bare = ts.Model.tree([-1, 0, 1, 1][: len(joints)], joints, gravity=(0, 0, 0), **links)
    rng, more = np.random.default_rng(3), 0.7
    state = bare.random_configuration(rng), *rng.normal(size=(2, bare.nv))
    return replace(bare, armature=more * (np.arange(bare.nv) < 6)), heavier(bare, more), state


def test_an_armature_on_a_free_joint_is_a_mass_without_weight():
    """So its velocity terms are those of such a body."""
    model, other, (q, v, x) = with_and_without_rotors(["free", "revolute"])
    for function, *given in ((ts.bias_forces, v), (ts.forward_dynamics, v, x), (ts.mass_matrix,)):
        assert difference(function(model, q, *given), function(other, q, *given)) < ROUNDING, function.__name__


@pytest.mark.slow
@pytest.mark.parametrize("specialised", [True, False])
def test_an_armature_on_a_free_joint_in_every_function(specialised):
    model, other, (q, v, x) = with_and_without_rotors(["free", "revolute", "spherical", "free"])
    for function, *given in (
        (ts.bias_forces, v), (ts.inverse_dynamics, v, x), (ts.forward_dynamics, v, x), (ts.mass_matrix,),
        (ts.kinetic_energy, v),
    ):  # fmt: skip
        ours, theirs = (ts.compile(m, function, specialised=specialised)(q, *given) for m in (model, other))
        assert difference(ours, theirs) < ROUNDING, function.__name__
    assert difference(ts.coriolis_matrix(model, q, v) @ v, ts.bias_forces(other, q, v)) < ROUNDING
    for function in (ts.inverse_dynamics_derivatives, ts.forward_dynamics_derivatives):
        for ours, theirs in zip(function(model, q, v, x), function(other, q, v, x)):
            assert difference(ours, theirs) < ROUNDING, function.__name__
    pulled = (ts.vjp(ts.forward_dynamics)(m, q, v, x, x) for m in (model, other))
    for ours, theirs in zip(*pulled):
        assert difference(ours, theirs) < ROUNDING


def test_an_armature_on_a_free_joint_has_no_weight():
    model = replace(zoo.random_tree(3, 5, joints=("free",)), armature=0.7)
    q = model.random_configuration(0)
    assert np.array_equal(ts.gravity_forces(model, q), ts.gravity_forces(replace(model, armature=0.0), q))


def test_bearing_loads():
    """S^T F is the torque that is left when the rotor has taken its share."""
    model, _, (q, v, tau) = with_rotors("arm")
    qdd = ts.forward_dynamics(model, q, v, tau)
    F = ts.constraint_forces(model, q, v, tau)
    along = np.einsum("ni,ni->n", F[:, :3], model.axis)
    assert difference(along, tau - model.armature * qdd) < ROUNDING


@pytest.mark.slow
def test_trees_by_levels():
    model, bare, (q, v, tau) = with_rotors("tree", 0.5)
    added = np.linspace(0.1, 1, model.nv)
    for extra, options in ((0.0, {}), (added, {"added_inertia": added})):
        _, qdd = dense(bare, model.armature + extra, q, v, tau, turning=model.armature)
        found = ts.forward_dynamics(model, q, v, tau, method="constraint-force", **options)
        assert difference(found, qdd) < ROUNDING


def test_what_knows_no_rotors_says_so():
    model, _, (q, v, tau) = with_rotors("cylindrical")
    for function in (ts.mass_solve, ts.log_det_mass_matrix, ts.inverse_mass_matrix):
        with pytest.raises(ArgumentError, match="armature"):
            function(model, q, *([tau] if function is ts.mass_solve else []), method="fixman")
    half = replace(model, armature=np.arange(model.nv) % 2)
    with pytest.raises(ArgumentError, match="for all freedoms of a joint or for none"):
        ts.forward_dynamics(half, q, v, tau, method="constraint-force")


@pytest.mark.parametrize("peer", [PinocchioPeer, MujocoPeer], ids=["pinocchio", "mujoco"])
def test_peers_agree(peer):
    bare = zoo.random_tree(12, 7, joints=("revolute", "prismatic"))
    model = replace(bare, armature=np.random.default_rng(7).uniform(0, 1, bare.nv))
    state, theirs = State.random(model, seed=4), peer(model)
    others = ("inverse_dynamics",) if peer is PinocchioPeer else ("kinetic_energy",)  # the others leave rotors out
    for function in ("mass_matrix", "inverse_mass_matrix", "forward_dynamics", *others):
        assert relative_difference(state.ask(ts, function, model), state.ask(theirs, function)) < ROUNDING, function


# Inertias added by an input -----------------------------------------------------------------------------------


@each_machine
def test_added_inertia_is_added_to_the_diagonal(name):
    model, bare, (q, v, tau) = with_rotors(name, 0.5)
    added = np.random.default_rng(1).uniform(0, 5, model.nv)
    M, qdd = dense(bare, model.armature + added, q, v, tau, turning=model.armature)
    assert difference(ts.forward_dynamics(model, q, v, tau, added_inertia=added), qdd) < ROUNDING
    for method in levels(name):
        found = ts.forward_dynamics(model, q, v, tau, added_inertia=added, method=method)
        assert difference(found, qdd) < ROUNDING
    assert difference(M @ ts.mass_solve(model, q, tau, added_inertia=added), tau) < ROUNDING
    batch = ts.forward_dynamics(model, np.stack([q, q]), v, tau, added_inertia=added)
    assert np.array_equal(batch[0], batch[1])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("size", [1e-12, 1e-3, 1.0, 1e6], ids=lambda x: f"{x:g}")
@pytest.mark.parametrize("rotors", [False, True], ids=["added", "armature"])
def test_long_chains_by_segments(size, rotors):
    """Also where the rotors weigh next to nothing, or far more than the links."""
    model = zoo.random_chain(700, 4)
    rng = np.random.default_rng(0)
    added = size * rng.uniform(0.5, 2, model.nv)
    if rotors:
        model, options = replace(model, armature=added), {}
    else:
        options = {"added_inertia": added}
    q, tau = 0.1 * rng.normal(size=(2, model.nv))
    v = np.zeros(model.nv)
    sweeps, segments = (
        ts.forward_dynamics(model, q, v, tau, method=method, **options) for method in ("articulated", "segments")
    )
    assert difference(segments, sweeps) < ROUNDING
    if size > 1e-6:  # levels invert the inertia behind a joint, which such a small rotor leaves singular
        levels = ts.forward_dynamics(model, q, v, tau, method="constraint-force", **options)
        assert difference(levels, sweeps) < ROUNDING
    else:
        with pytest.raises(ts.SingularError, match="loses too many digits"):
            ts.forward_dynamics(model, q, v, tau, method="constraint-force", **options)
    exact = ts.forward_dynamics(model, *(x.astype(np.longdouble) for x in (q, v, tau)), **options)
    assert difference(sweeps, exact.astype(float)) < ROUNDING


def test_added_inertia_that_cannot_be_is_refused():
    model, _, (q, v, tau) = with_rotors("arm")
    with pytest.raises(ArgumentError, match="takes no added_inertia"):
        ts.forward_dynamics(model, q, v, tau, added_inertia=tau, method="composite")
    with pytest.raises(ArgumentError, match="takes no added_inertia"):
        ts.mass_solve(model, q, tau, added_inertia=tau, method="fixman")
    with pytest.raises(ArgumentError, match="added_inertia"):
        ts.forward_dynamics(model, q, v, tau, added_inertia=np.ones(3))
    with pytest.raises(ArgumentError, match="finite"):
        ts.mass_solve(model, q, tau, added_inertia=np.full(6, np.nan))


def test_the_reference_engine_agrees():
    model, _, (q, v, tau) = with_rotors("tree", 0.5)
    added = np.linspace(0, 1, model.nv)
    given = {"q": q, "v": v, "tau": tau, "added_inertia": added}
    exact = reference.evaluate(articulated.forward_dynamics, model, given)
    assert difference(ts.forward_dynamics(model, q, v, tau, added_inertia=added), np.array(exact)) < ROUNDING
