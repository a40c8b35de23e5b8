"""Programs in other frames of the bodies, Q: what belongs to bodies changes by Ad_Q, what belongs to joints does not.

Expected are the matrices of `closed_forms` in the frames Q, which share no code with programs, and the transformation
laws (Ploen & Park 1999, Eqs 15-33) of results in the model's own frames, where other tests hold those.
"""

import pickle
from dataclasses import replace

import cuda_reader
import numpy as np
import pytest
from machines import difference
from test_derivatives import inertial_parameters

import torsor as ts
from torsor import lie, zoo
from torsor.compiler.frames import LARGE, framed
from torsor.dynamics import closed_forms
from torsor.dynamics.functions import ALGORITHMS
from torsor.model.joints import JOINTS
from torsor.model.names import BodyFrames
from torsor.outputs import Path, PerBody

# The same operations; Q then adds two products per number, and its places of some metres some units in the last place.
ROUNDING = 1e-12
SINGLE = 2e-5  # as in test_kernel.py
COUNT = 5  # states

TREE = zoo.random_tree(12, 1).with_frames(
    {"camera": ("link5", lie.exp_so3([0.3, -0.2, 0.5]), (0.1, 0.2, -0.3)), "post": (None, np.eye(3), (1.0, 0.0, 0.0))}
)
Q = lie.exp_se3(np.random.default_rng(7).normal(size=(TREE.n, 6)))
AD = lie.Ad(Q)
DUAL = lie.Ad(lie.inverse(Q)).swapaxes(-1, -2)  # of wrenches

each_code = pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "looped"])


@pytest.fixture(scope="module")
def states():
    rng = np.random.default_rng(3)
    shapes = dict.fromkeys(("v", "tau", "qdd", "b"), (COUNT, TREE.nv)) | {"external": (COUNT, TREE.n, 6)}
    return {"q": TREE.random_configuration(rng, COUNT)} | {name: rng.normal(size=s) for name, s in shapes.items()}


def moved(A, x):
    """A x for twists or wrenches of all bodies, (..., n, 6)."""
    return np.einsum("nij,...nj->...ni", A, x)


def moved_parameters(pi, DUAL=DUAL):
    """m, m c and the inertia about the origin (n, 10) in the frames Q: D = Ad* J Ad of the matrices (Eq. 17)."""
    m, h = pi[:, 0], pi[:, 1:4]
    zero = np.zeros_like(m)
    cross = np.array([[zero, -h[:, 2], h[:, 1]], [h[:, 2], zero, -h[:, 0]], [-h[:, 1], h[:, 0], zero]])
    cross = cross.transpose(2, 0, 1)
    I = pi[:, [4, 5, 6, 5, 7, 8, 6, 8, 9]].reshape(-1, 3, 3)
    J = np.block([[I, cross], [cross.swapaxes(1, 2), m[:, None, None] * np.eye(3)]])
    D = DUAL @ J @ DUAL.swapaxes(1, 2)
    first = np.stack([D[:, 2, 4], D[:, 0, 5], D[:, 1, 3]], axis=1)
    return np.concatenate([m[:, None], first, D[:, [0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2]]], axis=1)


def parameter_matrices():
    """(n, 10, 10): `moved_parameters` of unit vectors."""
    return np.stack([moved_parameters(np.tile(e, (TREE.n, 1))) for e in np.eye(10)], axis=-1)


def expected(function, results, body):
    """The results of a public function as they are in the frames Q."""
    if function is ts.body_poses:
        return results @ lie.inverse(Q)
    if function is ts.body_twists:
        return moved(AD, results)
    if function is ts.constraint_forces:
        return moved(DUAL, results)
    if function is ts.torque_regressor:
        by_body = results.reshape(*results.shape[:-1], TREE.n, 10)
        return np.einsum("...rnp,npk->...rnk", by_body, np.linalg.inv(parameter_matrices())).reshape(results.shape)
    return AD[body] @ results if body is not None else results


@pytest.mark.thinned(2)
@each_code
@pytest.mark.parametrize("function", ALGORITHMS, ids=lambda f: f.__name__)
def test_what_belongs_to_bodies_changes_and_nothing_else(function, specialised, states):
    body = 7 if isinstance(ALGORITHMS[function].output, Path) else None
    given = [states[name] for name in ALGORITHMS[function].inputs]
    plain = function(TREE, *given, *([] if body is None else [body]))
    program = ts.compile(TREE, function, specialised=specialised, body=body, Q=Q)
    found = program(*given)
    if isinstance(found, tuple):
        for x, y in zip(found, plain):
            assert difference(x, y) < ROUNDING
    else:
        assert difference(found, expected(function, plain, body)) < ROUNDING


def test_no_function_of_bodies_is_forgotten():
    known = {ts.body_poses, ts.body_twists, ts.constraint_forces}
    assert {f for f, algorithm in ALGORITHMS.items() if isinstance(algorithm.output, PerBody)} == known


@each_code
@pytest.mark.parametrize("joint", JOINTS, ids=lambda joint: joint.name)
def test_twists_of_every_joint_are_those_of_the_interpreted_matrices(joint, specialised):
    """Eq. 27: V-bar = L A v; and Eq. 29: the wrenches F-bar, without those of the motion that the joints leave open."""
    model = zoo.random_chain(4, 1, joints=(joint.name,))
    rng = np.random.default_rng(1)
    q, v, tau = model.random_configuration(rng), rng.normal(size=model.nv), rng.normal(size=model.nv)
    Q = lie.exp_se3(rng.normal(size=(model.n, 6)))
    o = closed_forms.operators(model, q, v, Q=Q)
    twists = ts.compile(model, ts.body_twists, specialised=specialised, Q=Q)
    assert difference(twists(q, v).ravel(), o.V) < ROUNDING
    wrenches = ts.compile(model, ts.constraint_forces, specialised=specialised, Q=Q)
    qdd = ts.forward_dynamics(model, q, v, tau)
    # the accelerations have the condition of M, and the wrenches are sums of forces that may be larger than they are
    assert difference(wrenches(q, v, tau).ravel(), o.F(qdd), o.J @ o.dV(qdd)) < 1e-9
    jacobian = ts.compile(model, ts.jacobian, body=-1, specialised=specialised, Q=Q)
    tip = o.G[-6:] @ o.S  # in the frame Q of the last body; J_t is in that of the model
    assert difference(jacobian(q), tip) < ROUNDING


@each_code
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_external_wrenches_are_in_these_frames(specialised, dtype, states):
    q, v, tau, external = (states[name].astype(dtype) for name in ("q", "v", "tau", "external"))
    options = {"specialised": specialised, "dtype": dtype, "external": True, "Q": Q}
    tolerance = ROUNDING if dtype == "float64" else SINGLE
    given = moved(DUAL, states["external"]).astype(dtype)
    for function, third in ((ts.inverse_dynamics, "qdd"), (ts.constraint_forces, "tau")):
        third = states[third].astype(dtype)
        found = ts.compile(TREE, function, **options)(q, v, third, given)
        plain = function(TREE, *(x.astype(float) for x in (q, v, third)), external=external.astype(float))
        assert found.dtype == dtype
        assert difference(found, expected(function, plain, None)) < tolerance
    program = ts.compile(TREE, ts.forward_dynamics, **options)
    assert (program(q, v, tau, given)[2] == program(q[2], v[2], tau[2], given[2])).all()


@each_code
def test_a_named_frame_stays_where_it_is(specialised, states):
    for frame in ("camera", "post"):
        program = ts.compile(TREE, ts.jacobian, body=frame, specialised=specialised, Q=Q)
        assert difference(program(states["q"]), ts.jacobian(TREE, states["q"], frame), 1.0) < ROUNDING


@each_code
def test_derivatives_are_by_inertias_placements_and_wrenches_in_these_frames(specialised, states):
    q, v, tau, external = (states[name][0] for name in ("q", "v", "tau", "external"))
    rng = np.random.default_rng(5)
    tangents = inertial_parameters(TREE) * 0.1, rng.normal(size=(TREE.n, 6)), rng.normal(size=(TREE.n, 6))
    wrt = ("inertia", "placement", "external")
    plain = ts.jvp(ts.inverse_dynamics, wrt)(TREE, q, v, tau, *tangents, external=external)
    new = moved_parameters(tangents[0]), moved(AD, tangents[1]), moved(DUAL, tangents[2])
    push = ts.compile(TREE, ts.jvp(ts.inverse_dynamics, wrt), specialised=specialised, Q=Q)
    found = push(*_named(push, q, v, tau, moved(DUAL, external), new))
    assert difference(found, plain) < ROUNDING
    cotangent = rng.normal(size=TREE.nv)
    pull = ts.compile(TREE, ts.vjp(ts.inverse_dynamics, wrt), specialised=specialised, Q=Q)
    pulled = pull(*_named(pull, q, v, tau, moved(DUAL, external), (), cotangent))
    terms = [(x * y).sum() for x, y in zip(pulled, new)]
    assert abs(sum(terms) - cotangent @ plain) < ROUNDING * np.abs(terms).sum()


def _named(program, q, v, qdd, external, tangents, *cotangent):
    known = {"q": q, "v": v, "qdd": qdd, "external": external}
    known |= dict(zip(("dinertia", "dplacement", "dexternal"), tangents))
    return [known[name] if name in known else cotangent[0] for name in program.inputs]


def test_the_vjp_of_a_jacobian_that_is_a_sum_over_its_columns(states):
    q, cotangent = states["q"][0], np.random.default_rng(2).normal(size=(6, TREE.nv))
    for body, expected in ((7, AD[7].T @ cotangent), ("camera", cotangent)):
        plain = ts.vjp(ts.jacobian, "q")(TREE, q, body, expected).q
        program = ts.compile(TREE, ts.vjp(ts.jacobian, "q"), body=body, specialised=False, Q=Q)
        assert difference(program(q, cotangent).q, plain) < ROUNDING


def test_a_large_machine_whose_structure_is_part_of_its_loops():
    """Mass centres as frames: Q is a shift, and loops leave out products with the zeros that all bodies share."""
    model = replace(zoo.rope(LARGE + 10), gravity=(0.0, 0.0, -9.81))
    rng = np.random.default_rng(0)
    q, v = model.random_configuration(rng), rng.normal(size=model.nv)
    Q = closed_forms.com_frames(model)
    program = ts.compile(model, ts.body_twists, Q=Q)
    assert not program.specialised
    assert difference(program(q, v), moved(lie.Ad(Q), ts.body_twists(model, q, v))) < ROUNDING
    some = ts.compile(model, ts.body_twists, Q=lie.exp_se3(rng.normal(size=(model.n, 6))))
    assert sum(program.operations) < sum(some.operations)


def test_the_frames_of_the_model_change_nothing_to_the_bit(states):
    own = closed_forms.joint_frames(TREE)
    for function in (ts.body_twists, ts.inverse_dynamics):
        given = [states[name] for name in ALGORITHMS[function].inputs]
        assert (ts.compile(TREE, function, Q=own)(*given) == ts.compile(TREE, function)(*given)).all()


def test_programs_with_other_frames_are_other_programs(states):
    """And they keep their own, whatever becomes of the caller's array."""
    q, v = states["q"][0], states["v"][0]
    mine = Q.copy()
    changed = ts.compile(TREE, ts.body_twists, specialised=True, Q=mine)
    mine[:] = np.eye(4)
    one, other = (ts.compile(TREE, ts.body_twists, specialised=True, Q=x) for x in (Q, lie.inverse(Q)))
    assert not np.allclose(one(q, v), other(q, v))
    again = pickle.loads(pickle.dumps(one))
    assert (again(q, v) == one(q, v)).all()
    assert changed.request.key == again.request.key == one.request.key != other.request.key


@each_code
def test_cuda_text_in_these_frames(specialised, states):
    given = [states["q"][:2], states["v"][:2]]
    program = ts.compile(TREE, ts.body_twists, target="cuda", specialised=specialised, Q=Q)
    found = cuda_reader.run(program.kernel, given, framed(TREE, BodyFrames(Q)), program.frame)
    assert difference(found, moved(AD, ts.body_twists(TREE, *given))) < ROUNDING


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_frames_that_are_no_poses_are_refused(bad):
    wrong = Q.copy()
    wrong[3, 0, 3] = bad
    with pytest.raises(ts.ArgumentError, match="Q of body 'link4' is not a pose"):
        ts.compile(TREE, ts.body_twists, Q=wrong)
    wrong[3, :3, :3] = bad
    with pytest.raises(ts.ArgumentError, match="Q of body 'link4' is not a pose"):
        ts.compile(TREE, ts.body_twists, Q=wrong)
    with pytest.raises(ts.ArgumentError, match="Q has shape"):
        ts.compile(TREE, ts.body_twists, Q=Q[0])
