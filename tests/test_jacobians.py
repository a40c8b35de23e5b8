"""Derivatives as matrices, against differences with 50 digits, Pinocchio and identities; on every engine."""

from dataclasses import replace
from math import prod

import cuda_reader
import mpmath
import numpy as np
import pytest
from machines import MACHINES, difference, extended, floating_tree
from mpmath import mp
from peers.pinocchio_peer import PinocchioPeer

import torsor as ts
from torsor import zoo
from torsor.algorithms import articulated, forward_derivatives, inverse_derivatives, newton_euler
from torsor.compiler.frames import framed
from torsor.compiler.packing import HEADER, TILE, TOGETHER, Packing
from torsor.dynamics.jacobians import MOST_DENSE
from torsor.model.joints import JOINTS

ROUNDING = 1e-12  # relative to the largest entry; the worst seen is 3e-14
CONDITION = 1e-11  # on trees whose M^-1 loses digits: condition 1e4
SINGLE = 3e-5  # float32 on arms of six and seven joints: the worst seen is 3e-6
DIGITS, STEP = 50, mpmath.mpf(10) ** -15  # central differences: errors of about STEP^2 and 10^-50 / STEP

DERIVATIVES = (ts.inverse_dynamics_derivatives, ts.forward_dynamics_derivatives)
PRIMAL = {
    ts.inverse_dynamics_derivatives: newton_euler.inverse_dynamics,
    ts.forward_dynamics_derivatives: articulated.forward_dynamics,
}

each_joint = pytest.mark.parametrize("joint", JOINTS, ids=lambda joint: joint.name)
each_function = pytest.mark.parametrize("function", DERIVATIVES, ids=lambda f: f.__name__)


def state_of(model, batch=(), seed=3):
    rng = np.random.default_rng(seed)
    q = model.random_configuration(rng, batch) if batch else model.random_configuration(rng)
    return q, rng.normal(size=(*batch, model.nv)), rng.normal(size=(*batch, model.nv))


def rounding_of(model, q, function):
    """M^-1 costs digits."""
    return ROUNDING if function is DERIVATIVES[0] else ROUNDING + 1e-15 * np.linalg.cond(ts.mass_matrix(model, q))


# Differences with 50 digits ----------------------------------------------------------------------------------


def tangents(model, q):
    """The directions dq/dv of every freedom, exactly, as lists of mpmath numbers."""
    directions = []
    numbers = [mpmath.mpf(float(x)) for x in q]
    for i, code in enumerate(model.joint):
        first, end = model.q_start[i : i + 2]
        N = JOINTS[code].tangent(ts.linalg.Vec.of(numbers[first:end]))
        for k in range(JOINTS[code].nv):
            direction = [mpmath.mpf(0)] * model.nq
            direction[first:end] = [row[k] for row in N]
            directions.append(direction)
    return directions


def by_differences(algorithm, model, q, v, last, external):
    """The derivatives by q, v and the third input."""
    with mp.workdps(DIGITS):
        names = algorithm.inputs
        point = {name: [mpmath.mpf(float(x)) for x in values] for name, values in zip(names, (q, v, last))}
        wrench = [[mpmath.mpf(float(x)) for x in row] for row in external]

        def value(name, direction, side):
            moved = [x + side * STEP * d for x, d in zip(point[name], direction)]
            inputs = point | {name: moved, "external": wrench}
            return np.array(ts.reference.evaluate(algorithm, model, inputs, number=mpmath.mpf), dtype=object)

        units = [[mpmath.mpf(i == k) for i in range(model.nv)] for k in range(model.nv)]
        result = []
        for name, directions in zip(names, (tangents(model, q), units, units)):
            columns = [(value(name, d, 1) - value(name, d, -1)) / (2 * STEP) for d in directions]
            result.append(np.array(columns, dtype=float).T)
        return result


@pytest.mark.thinned(3)
@each_joint
@each_function
def test_derivatives_are_the_limits_of_differences(joint, function):
    """Two bodies on each type of joint, and wrenches on them."""
    model = zoo.random_chain(2, 5, joints=(joint.name,))
    q, v, last = state_of(model)
    external = np.random.default_rng(0).normal(size=(model.n, 6))
    exact = by_differences(PRIMAL[function], model, q, v, last, external)
    found = function(model, q, v, last, external=external)
    for a, b in zip(found, exact):
        assert difference(a, b) < rounding_of(model, q, function)


@pytest.mark.parametrize(
    ("model", "function"),
    [
        (zoo.random_tree(4, 1), DERIVATIVES[0]),
        (floating_tree(3), DERIVATIVES[1]),
        *(pytest.param(MACHINES[name](), f, marks=pytest.mark.slow)
          for f in DERIVATIVES for name in ("tree of every joint type", "floating tree")),
    ],
    ids=lambda x: getattr(x, "__name__", None) or f"{x.n} bodies",
)  # fmt: skip
def test_trees_too(model, function):
    q, v, last = state_of(model)
    external = np.random.default_rng(0).normal(size=(model.n, 6))
    exact = by_differences(PRIMAL[function], model, q, v, last, external)
    for a, b in zip(function(model, q, v, last, external=external), exact):
        assert difference(a, b) < rounding_of(model, q, function)


# Every engine ------------------------------------------------------------------------------------------------

ALGORITHMS_OF = {
    "inverse": inverse_derivatives.inverse_dynamics_derivatives,
    "articulated": forward_derivatives.forward_dynamics_derivatives,
    "composite": forward_derivatives.composite_derivatives,
}


@pytest.mark.parametrize("which", ALGORITHMS_OF)
@pytest.mark.parametrize(
    "name",
    ["general arm", *(pytest.param(x, marks=pytest.mark.slow) for x in ("floating tree", "tree of every joint type"))],
)
def test_straight_line_and_loops_agree_with_the_steps(name, which):
    model = MACHINES[name]()
    method = {} if which == "inverse" else {"method": which}
    function = DERIVATIVES[which != "inverse"]
    states = state_of(model, (13,))
    algorithm = ALGORITHMS_OF[which]
    inputs = dict(zip(algorithm.inputs, (x[5] for x in states)))
    exact = extended(algorithm, model, **inputs).astype(float).reshape(3, model.nv, model.nv)
    for specialised in (True, False)[: 1 + algorithm.has_loops]:
        if algorithm is ALGORITHMS_OF["composite"] and model.nv > 12:
            continue  # refused, see below
        program = ts.compile(model, function, specialised=specialised, **method)
        found = program(*states)
        assert found._fields == ("dq", "dv", "M" if which == "inverse" else "dtau")
        for a, b in zip(found, exact):
            assert difference(a[5], b) < CONDITION
        one = program(*(x[5] for x in states))
        for a, b in zip(found, one):
            assert np.array_equal(a[5], b), "a state has its own bits in any batch"


@pytest.mark.slow
@each_joint
@each_function
def test_every_joint_in_loops_and_unrolled(joint, function):
    model = zoo.random_chain(3, 1, joints=(joint.name,))
    states = state_of(model)
    expected = np.asarray(function(model, *(x.astype(np.longdouble) for x in states)), dtype=float)
    for specialised in (True, False):
        found = ts.compile(model, function, specialised=specialised)(*states)
        assert difference(found, expected) < 10 * rounding_of(model, states[0], function)


@each_function
@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "looped"])
def test_cuda_text_computes_what_the_cpu_does(function, specialised):
    model = floating_tree(4)
    states = state_of(model, (2,))
    program = ts.compile(model, function, target="cuda", specialised=specialised)
    found = cuda_reader.run(program.kernel, list(states), framed(model), program.frame)
    cpu = ts.compile(model, function, specialised=specialised).rows(*states)
    assert difference(found, cpu) < CONDITION


def test_the_header_of_exported_code_names_the_parts(tmp_path):
    ts.export(zoo.puma_saha(), ts.forward_dynamics_derivatives, tmp_path, name="response")
    assert "dq (6, 6), dv (6, 6), dtau (6, 6)" in (tmp_path / "response.h").read_text()


@pytest.mark.parametrize("seed", range(6))
def test_no_place_is_beyond_the_packed_numbers(seed):
    """Sizes that are no multiple of a group, branches, several roots: every table stays inside, every result apart."""
    model = zoo.random_tree(5 + seed, seed, branching=0.4)
    packing = Packing.of(("response", "response", "product"), model)
    nv, end = model.nv, packing.product_count * (2 + TOGETHER)
    column_groups, row_groups, terms, first = packing.products[end : end + HEADER].tolist()
    assert first + column_groups * row_groups * prod(TILE) == packing.count
    assert packing.entries.size == 3 * nv * nv
    assert packing.entries.max() < packing.count
    assert packing.products[end + terms :].max() < first
    results = packing.entries[: 2 * nv * nv]
    assert results.min() >= first
    assert len(set(results.tolist())) == results.size


def test_operations_are_counted():
    """All of them: loops do more than straight-line code, and the products of M^-1 are among them."""
    model = zoo.humanoid()
    inverse, forward = (sum(ts.compile(model, f, specialised=False).operations) for f in DERIVATIVES)
    assert 30_000 < inverse < 45_000
    assert forward - inverse > 2 * 45_936  # multiply-adds of -M^-1 d tau along the paths
    arm = zoo.general_arm(7)
    counts = [sum(ts.compile(arm, f, specialised=True).operations) for f in DERIVATIVES]
    assert counts[0] < 5000
    assert counts[1] < 7200


# Pinocchio ---------------------------------------------------------------------------------------------------


@each_function
@pytest.mark.parametrize("model", [zoo.general_arm(7), zoo.puma560(), zoo.panda()], ids=["7R", "PUMA", "Panda"])
def test_arms_agree_with_pinocchio(model, function):
    peer = PinocchioPeer(model)
    states = state_of(model, (5,))
    external = np.random.default_rng(0).normal(size=(5, model.n, 6))
    for found in (
        function(model, *states, external=external),
        ts.compile(model, function, external=True)(*states, external),
    ):
        for k in range(5):
            expected = getattr(peer, function.__name__)(*(x[k] for x in states), external[k])
            for a, b in zip(found, expected):
                assert difference(a[k], b) < ROUNDING


@pytest.mark.slow
@each_function
def test_humanoid_and_trees_agree_with_pinocchio(function):
    for model in (zoo.humanoid(), zoo.random_tree(7, 1), floating_tree()):
        peer = PinocchioPeer(model)
        states = state_of(model, (3,))
        found = function(model, *states)
        for k in range(3):
            expected = getattr(peer, function.__name__)(*(x[k] for x in states))
            for a, b in zip(found, expected):
                assert difference(a[k], b) < 10 * rounding_of(model, states[0][k], function)


# Identities --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["general arm", "tree of every joint type", "floating tree", "humanoid"])
def model(request):
    return MACHINES[request.param]()


def test_forward_derivatives_are_those_of_the_inverse_solved_with_M(model):
    q, v, tau = state_of(model, (3,))
    forward = ts.forward_dynamics_derivatives(model, q, v, tau)
    inverse = ts.inverse_dynamics_derivatives(model, q, v, ts.forward_dynamics(model, q, v, tau))
    scale = np.abs(inverse.dq).max()
    assert difference(inverse.M @ forward.dq, -inverse.dq, scale) < CONDITION
    assert difference(inverse.M @ forward.dv, -inverse.dv) < CONDITION
    assert difference(inverse.M @ forward.dtau, np.broadcast_to(np.eye(model.nv), inverse.M.shape)) < CONDITION


def test_the_third_derivatives_are_M_and_its_inverse_symmetric_to_the_bit(model):
    q, v, last = state_of(model, (3,))
    M, inverse = (f(model, q, v, last)[2] for f in DERIVATIVES)
    assert difference(M, ts.mass_matrix(model, q)) < ROUNDING
    assert difference(inverse, ts.inverse_mass_matrix(model, q)) < CONDITION
    for A in (M, inverse):
        assert np.array_equal(A, A.swapaxes(-1, -2))


def test_velocity_forces_are_homogeneous_of_degree_two(model):
    """Euler: (d tau/dv) v = 2 (bias - gravity)."""
    q, v, qdd = state_of(model)
    dv = ts.inverse_dynamics_derivatives(model, q, v, qdd).dv
    expected = 2 * (ts.bias_forces(model, q, v) - ts.gravity_forces(model, q))
    assert difference(dv @ v, expected) < ROUNDING


def test_shifting_a_floating_machine_changes_nothing():
    """Only gravity knows where the machine is, and it is the same everywhere."""
    model = floating_tree()
    q, v, last = state_of(model)
    for function in DERIVATIVES:
        dq = function(model, q, v, last).dq
        assert np.abs(dq[:, 3:6]).max() < ROUNDING * np.abs(dq).max()


def test_a_pendulum_by_hand():
    """m l^2 qdd + m g l sin q = tau: d tau/dq = m g l cos q."""
    m, length, g = 1.5, 0.7, 9.81
    pendulum = ts.Model.chain(axis=[0, 1, 0], mass=m, com=[0, 0, -length], inertia=[0.0] * 3, n=1, gravity=[0, 0, -g],
                              allow_degenerate=True)  # fmt: skip
    q, v, tau = np.array([0.3]), np.array([2.0]), np.array([0.1])
    inverse = ts.inverse_dynamics_derivatives(pendulum, q, v, tau)
    assert np.allclose([x.item() for x in inverse], [m * g * length * np.cos(0.3), 0.0, m * length**2], rtol=1e-14)
    forward = ts.forward_dynamics_derivatives(pendulum, q, v, tau)
    expected = [-g / length * np.cos(0.3), 0.0, 1 / (m * length**2)]
    assert np.allclose([x.item() for x in forward], expected, rtol=1e-14)


def test_rotors_are_in_M_and_in_the_response():
    model = replace(zoo.random_tree(4, 1), armature=np.linspace(0.1, 1.0, zoo.random_tree(4, 1).nv))
    q, v, tau = state_of(model)
    qdd = ts.forward_dynamics(model, q, v, tau)
    inverse = ts.inverse_dynamics_derivatives(model, q, v, qdd)
    assert difference(inverse.M, ts.mass_matrix(model, q)) < ROUNDING
    for method in ("articulated", "composite"):
        forward = ts.forward_dynamics_derivatives(model, q, v, tau, method=method)
        assert difference(inverse.M @ forward.dq, -inverse.dq) < CONDITION
        assert difference(forward.dtau, ts.inverse_mass_matrix(model, q)) < CONDITION
    Y = ts.torque_regressor(model, q, v, qdd)
    torque = Y @ model.inertial_parameters().ravel() + model.armature * qdd
    assert difference(torque, ts.inverse_dynamics(model, q, v, qdd)) < ROUNDING


@each_function
def test_they_are_the_products_of_vjp_and_jvp(function):
    """The same derivatives by transforming the code of the function itself."""
    model = zoo.random_tree(4, 1)
    q, v, last = state_of(model)
    primal = {DERIVATIVES[0]: ts.inverse_dynamics, DERIVATIVES[1]: ts.forward_dynamics}[function]
    dq, dv, du = np.random.default_rng(1).normal(size=(3, model.nv))
    found = function(model, q, v, last)
    along = found.dq @ dq + found.dv @ dv + found[2] @ du
    assert difference(along, ts.jvp(primal)(model, q, v, last, dq, dv, du)) < CONDITION
    for a, b in zip(found, ts.vjp(primal)(model, q, v, last, dq)):
        assert difference(dq @ a, b) < CONDITION


@each_function
def test_a_batch_of_models(function):
    model = zoo.general_arm(4, 1)
    masses = model.mass * np.array([[1.0], [2.0]])
    states = state_of(model, (2,))
    found = function(ts.ModelBatch(model, mass=masses), *states)
    for k, mass in enumerate(masses):
        for a, b in zip(found, function(replace(model, mass=mass), *(x[k] for x in states))):
            assert difference(a[k], b) < CONDITION


# Arrays ------------------------------------------------------------------------------------------------------


@each_function
def test_batches_layouts_and_types(function):
    model = zoo.random_tree(4, 3)
    states = state_of(model, (2, 3))
    full = function(model, *states)
    strided = [np.repeat(np.asfortranarray(x), 2, axis=-1)[..., ::2] for x in states]
    for a, b in zip(full, function(model, *strided)):
        assert a.shape == (2, 3, model.nv, model.nv)
        assert np.array_equal(a, b)
    for k, part in enumerate(function(model, *(x[1, 2] for x in states))):
        assert np.array_equal(part, full[k][1, 2])
    broadcast = function(model, states[0], states[1][0], states[2][0, 0])
    assert broadcast.dq.shape == full.dq.shape
    assert [x.shape for x in function(model, *(x[:0] for x in states))] == [(0, 3, model.nv, model.nv)] * 3
    single = function(model, *(x.astype(np.float32) for x in states))
    assert all(x.dtype == np.float32 for x in single)
    many = [np.repeat(x.reshape(6, -1), 6000, axis=0) for x in states]
    one, two = (ts.compile(model, function, threads=n) for n in (1, 2))
    for a, b in zip(two(*many), one(*(x[::6000] for x in many))):
        assert np.array_equal(a[::6000], b)


@pytest.mark.thinned(3)
@each_function
@pytest.mark.parametrize("model", [zoo.puma560(), zoo.panda()], ids=["PUMA", "Panda"])
def test_single_precision_is_near(model, function):
    states = state_of(model, (50,))
    exact = function(model, *states)
    for a, b in zip(function(model, *(x.astype(np.float32) for x in states)), exact):
        assert difference(a, b) < SINGLE


@each_function
@pytest.mark.parametrize("specialised", [True, False])
def test_no_nan_is_lost(function, specialised):
    model = zoo.random_tree(3, 2)
    states = [x.copy() for x in state_of(model, (5,))]
    program = ts.compile(model, function, specialised=specialised)
    clean = program.rows(*states)
    for name, x in zip(program.inputs, states):
        for k in range(x.shape[1]):
            before, x[2, k] = x[2, k], np.nan
            result = program.rows(*states)
            assert not np.isfinite(result[2]).all(), (name, k)
            assert np.array_equal(np.delete(result, 2, axis=0), np.delete(clean, 2, axis=0))
            with pytest.raises(ts.ArgumentError, match="nan"):
                function(model, *states)
            x[2, k] = before


# What is refused ---------------------------------------------------------------------------------------------


@each_function
def test_too_many_freedoms_are_refused_and_products_named(function):
    model = zoo.rope(MOST_DENSE // 2 + 1)
    zero = np.zeros(model.nv)
    for call in (lambda: function(model, zero, zero, zero), lambda: ts.compile(model, function)):
        with pytest.raises(ts.ArgumentError, match=r"502 freedoms.*500 at most.*ts\.vjp"):
            call()


def test_bad_arguments_are_named():
    model = zoo.panda()
    q, v, x = state_of(model)
    for call, message in {
        lambda: ts.forward_dynamics_derivatives(model, q, v, x, method="fixman"): "unknown method 'fixman'",
        lambda: ts.forward_dynamics_derivatives(zoo.humanoid(), *state_of(zoo.humanoid()), method="composite"): "12",
        lambda: ts.inverse_dynamics_derivatives("panda", q, v, x): "must be a torsor.Model",
        lambda: ts.inverse_dynamics_derivatives(model, q[:3], v, x): "q has shape",
        lambda: ts.inverse_dynamics_derivatives(model, q, v, x, external=np.zeros((3, 6))): "external has shape",
        lambda: ts.compile(model, ts.torque_regressor, external=True): "takes no external",
        lambda: ts.vjp(ts.torque_regressor): "derivative itself",
        lambda: ts.jvp(ts.forward_dynamics_derivatives): "derivative itself",
    }.items():
        with pytest.raises(ts.ArgumentError, match=message):
            call()


@pytest.mark.parametrize("function", [ts.torque_regressor, *DERIVATIVES], ids=lambda f: f.__name__)
def test_a_refusal_names_the_product_that_there_is(function):
    for mode in (ts.vjp, ts.jvp):
        with pytest.raises(ts.ArgumentError, match=r"derivative itself: .*ts\.jvp\(ts\.(inverse|forward)_dynamics"):
            mode(function)


def test_the_product_with_the_derivative_of_the_regressor():
    """Y x differentiated again, against differences of Y."""
    model = zoo.random_tree(4, 1)
    q, v, qdd = state_of(model)
    x, weight = np.random.default_rng(1).normal(size=(model.n, 10)), np.random.default_rng(2).normal(size=model.nv)
    dq, h = np.random.default_rng(3).normal(size=model.nv), 1e-5
    found = ts.vjp(ts.jvp(ts.inverse_dynamics, wrt="inertia"), wrt="q")(model, q, v, qdd, x, weight).q @ dq
    up, down = (ts.torque_regressor(model, model.integrate(q, s * dq), v, qdd) for s in (h, -h))
    expected = weight @ (up - down) @ x.ravel() / (2 * h)
    assert abs(found - expected) <= 1e-7 * abs(expected)


def test_a_singular_machine_is_named():
    model = ts.Model.chain(axis=[0, 0, 1], mass=1.0, com=[0, 0, 0.5], inertia=[0.0] * 3, n=1, allow_degenerate=True)
    with pytest.raises(ts.SingularError, match="moves no mass"):
        ts.forward_dynamics_derivatives(model, *np.ones((3, 1)))


@pytest.mark.slow
@each_function
def test_long_chains_keep_their_digits(function):
    """200 joints: 60,000 times 200 entries, against extended precision."""
    model = zoo.general_arm(200, 1)
    q, v, last = state_of(model)
    v, last = v * 0.1, last * 0.1
    exact = function(model, *(x.astype(np.longdouble) for x in (q, v, last)))
    for a, b in zip(function(model, q, v, last), exact):
        assert difference(a, b.astype(float)) < 1e-10
