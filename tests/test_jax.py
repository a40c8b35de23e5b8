"""torsor.jax: the bits of the NumPy path, exact derivatives under every transformation, and what XLA is told."""

import ctypes
import re
import warnings
from dataclasses import replace
from importlib import import_module
from itertools import product

import cuda_host
import fake_cupy
import numpy as np
import processes
import pytest
import xla_frames
from bridged import (
    MACHINES,
    MOVING,
    ROUNDING,
    SECOND,
    along_numbers,
    changed,
    moving,
    numbers,
    relative,
    seen_from,
    states,
)
from peers.installed import peer

import torsor as ts
from torsor.backends import xla
from torsor.bridge.numbers import ModelNumbers

# check_grads compares with differences in float64.
DIFFERENCES = 2e-4


@pytest.fixture(scope="module")
def jax():
    """JAX with float64; it is slow to import, so no file does when tests are collected."""
    jax = peer("jax")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module("jax.test_util")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="module")
def bridge(jax):
    return import_module("torsor.jax")


@pytest.fixture(scope="module", params=MACHINES)
def model(request):
    return MACHINES[request.param]()


# Bits -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [ts.forward_dynamics, ts.mass_matrix, ts.kinetic_energy], ids=lambda f: f.__name__)
def test_a_function_gives_the_bits_of_its_program(jax, bridge, model, function):
    program, own = ts.compile(model, function), bridge.function(model, function)
    given = dict(zip(("q", "v", "tau"), states(model, (2, 3))))
    xs = [given[name] for name in program.inputs]
    for some in (xs, [x[0, 0] for x in xs], [xs[0][:, :1], *(x[0] for x in xs[1:])], [x[:0] for x in xs]):
        assert np.array_equal(own(*some), program(*some))
    assert np.array_equal(jax.jit(jax.vmap(jax.vmap(own)))(*xs), program(*xs))


def test_vmap_over_some_arguments_copies_no_other(jax, bridge):
    arm = MACHINES["arm"]()
    own, (_, v, tau) = bridge.function(arm, ts.forward_dynamics), states(arm)
    many = states(arm, (4,))[0]
    mapped = jax.jit(jax.vmap(jax.grad(lambda q, v, tau: own(q, v, tau).sum()), (0, None, None)))
    calls = [line for line in mapped.lower(many, v, tau).compile().as_text().splitlines() if '"torsor"' in line]
    assert len(calls) == 1  # one call for all states, and of the value nothing is left
    assert "f64[1,3]" in calls[0]  # v and tau as they are
    one_by_one = [jax.grad(lambda q: own(q, v, tau).sum())(x) for x in many]
    assert np.array_equal(mapped(many, v, tau), one_by_one)


def test_float32_is_computed_in_float32(bridge):
    arm = MACHINES["arm"]()
    xs = [x.astype(np.float32) for x in states(arm, (5,))]
    found = bridge.function(arm, ts.forward_dynamics)(*xs)
    assert found.dtype == np.float32
    assert np.array_equal(found, ts.compile(arm, ts.forward_dynamics, dtype="float32")(*xs))


def test_integers_are_numbers_of_jaxs_own_type(jax, bridge):
    """Also in lists; without float64 in JAX, that is float32."""
    arm = MACHINES["arm"]()
    own, whole = bridge.function(arm, ts.forward_dynamics), np.arange(3)
    expected = ts.compile(arm, ts.forward_dynamics)(*[whole.astype(float)] * 3)
    for given in (whole, whole.astype(np.int32), whole.tolist()):
        found = own(*[given] * 3)
        assert found.dtype == np.float64
        assert np.array_equal(found, expected)
    assert own(whole, whole.astype(np.float32), whole).dtype == np.float32
    steps = bridge.rollout(arm, steps=2, step=0.1)(whole, whole)
    assert [x.dtype for x in steps] == [np.float64] * 2
    with jax.enable_x64(False):
        assert own(whole, whole, whole).dtype == np.float32


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_large_batches_on_the_threads_of_xla_give_the_same_bits(bridge, threads):
    arm = MACHINES["arm"]()
    q, v, tau = states(arm, (3,))
    q = np.resize(q, (20001, 3)) + np.linspace(0, 1, 20001)[:, None]
    own = bridge.function(arm, ts.forward_dynamics, threads=threads)
    assert np.array_equal(own(q, v[0], tau[0]), ts.compile(arm, ts.forward_dynamics)(q, v[0], tau[0]))


def test_several_results_a_body_and_external_wrenches(bridge, model):
    q, v, tau = states(model)
    wrenches = np.random.default_rng(1).normal(size=(model.n, 6))
    derivatives = bridge.function(model, ts.inverse_dynamics_derivatives)(q, v, tau)
    expected = ts.compile(model, ts.inverse_dynamics_derivatives)(q, v, tau)
    assert derivatives._fields == expected._fields
    assert all(map(np.array_equal, derivatives, expected))
    J = bridge.function(model, ts.jacobian, body=model.n - 1)(q)
    assert np.array_equal(J, ts.compile(model, ts.jacobian, body=model.n - 1)(q))
    fd = bridge.function(model, ts.forward_dynamics, external=True)(q, v, tau, wrenches)
    assert np.array_equal(fd, ts.compile(model, ts.forward_dynamics, external=True)(q, v, tau, wrenches))


@pytest.mark.parametrize("specialised", [True, False], ids=["straight", "loops"])
def test_a_moving_base_and_frames_of_the_bodies(jax, bridge, model, specialised):
    """The bits of the program; and wrenches as the model's frames see them are Ad_Q' F."""
    state, (Q, inputs) = states(model, (2, 3)), moving(model, (2, 3))
    own = bridge.function(model, ts.forward_dynamics, Q=Q, specialised=specialised, **MOVING)
    program = ts.compile(model, ts.forward_dynamics, Q=Q, specialised=specialised, **MOVING)
    assert program.inputs[3:] == (*MOVING,)
    xs = (*state, *inputs)
    for some in (xs, [x[0, 0] for x in xs], [xs[0][:, :1], *(x[0] for x in xs[1:])], [x[:0] for x in xs]):
        assert np.array_equal(own(*some), program(*some))
    assert np.array_equal(jax.jit(jax.vmap(jax.vmap(own)))(*xs), program(*xs))
    wrenches = np.einsum("nji,...nj->...ni", ts.lie.Ad(Q), inputs[0])
    given = dict(zip(MOVING, (wrenches, *inputs[1:])))
    assert relative(own(*xs), ts.forward_dynamics(model, *state, **given)) <= SECOND
    twists = bridge.function(model, ts.body_twists, Q=Q, base_velocity=True)(*state[:2], inputs[1])
    seen = np.einsum("nij,...nj->...ni", ts.lie.Ad(Q), ts.body_twists(model, *state[:2], base_velocity=inputs[1]))
    assert relative(twists, seen) <= ROUNDING


@pytest.mark.parametrize("wrt", ["gravity", "inertia", "placement", "all"])
def test_numbers_of_the_model_are_those_in_the_frames_of_the_bodies(jax, bridge, model, wrt):
    names = ("inertia", "gravity", "placement") if wrt == "all" else (wrt,)
    q, v, tau = states(model)
    Q, (_, *base) = moving(model)
    other = dict(zip(("inertia", "gravity", "placement"), numbers(model)))
    pi, xi = seen_from(Q, other["inertia"], other["placement"])
    given = [(other | {"inertia": pi, "placement": xi})[name] for name in names]
    options = {"Q": Q, "base_velocity": True, "base_acceleration": True}
    own = bridge.function(model, ts.constraint_forces, wrt=names, **options)
    expected = ts.compile(changed(model, **{name: other[name] for name in names}), ts.constraint_forces, **options)
    assert relative(own(q, v, tau, *base, *given), expected(q, v, tau, *base)) <= ROUNDING
    weight = np.random.default_rng(1).normal(size=(model.n, 6))
    places = range(5, 5 + len(names))
    rest = [{"inertia": seen_from(Q, model.inertial_parameters(), xi)[0], "gravity": model.gravity,
             "placement": np.zeros((model.n, 6))}[name] for name in names]  # fmt: skip
    slopes = jax.grad(lambda *x: (own(*x) * weight).sum(), argnums=(*places,))(q, v, tau, *base, *rest)
    exact = ts.compile(model, ts.vjp(ts.constraint_forces, names), **options)(q, v, tau, weight, *base)
    for slope, one in zip(slopes, [exact] if len(names) == 1 else exact):
        assert relative(slope, one if len(names) > 1 else np.asarray(one).reshape(slope.shape)) <= SECOND


# Derivatives ----------------------------------------------------------------------------------------------------------


def test_derivatives_by_the_motion_of_the_base(jax, bridge, model):
    state, (Q, inputs) = states(model), moving(model)
    own = bridge.function(model, ts.forward_dynamics, Q=Q, **MOVING)
    weight = np.random.default_rng(2).normal(size=model.nv)
    found = jax.jit(jax.grad(lambda *x: own(*x) @ weight, argnums=(3, 4, 5)))(*state, *inputs)
    exact = ts.compile(model, ts.vjp(ts.forward_dynamics, (*MOVING,)), Q=Q)(*state, weight, *inputs)
    for slope, one in zip(found, exact):
        assert relative(slope, one) <= ROUNDING
    check = jax.test_util.check_grads
    check(lambda *base: own(*state, inputs[0], *base), inputs[1:], order=2, rtol=DIFFERENCES, atol=DIFFERENCES)


def test_gradients_are_those_of_vjp(jax, bridge, model):
    """By q, in the numbers of q: the transpose of N(q)^+, whatever the length of a quaternion."""
    q, v, tau = states(model)
    q = 1.3 * q
    weight = np.random.default_rng(1).normal(size=model.nv)
    own = bridge.function(model, ts.forward_dynamics)
    found = jax.jit(jax.grad(lambda *x: own(*x) @ weight, argnums=(0, 1, 2)))(q, v, tau)
    expected = ts.vjp(ts.forward_dynamics)(model, q, v, tau, weight)
    assert relative(found[0], along_numbers(model, q, expected.q)) <= ROUNDING
    assert np.array_equal(found[1], expected.v)
    assert np.array_equal(found[2], expected.tau)


@pytest.mark.parametrize("name", ["arm", pytest.param("tree with quaternions", marks=pytest.mark.slow)])
def test_derivatives_agree_with_differences(jax, bridge, name):
    model = MACHINES[name]()
    own, xs = bridge.function(model, ts.inverse_dynamics), states(model)
    check = jax.test_util.check_grads
    check(own, xs, order=2, modes=["rev"], rtol=DIFFERENCES, atol=DIFFERENCES)
    check(own, xs, order=1, modes=["fwd"], rtol=DIFFERENCES, atol=DIFFERENCES)


def test_a_hessian_is_symmetric(jax, bridge, model):
    """In the numbers of q; along freedoms it is not, where quaternions are turned."""
    q, v, tau = states(model)
    own = bridge.function(model, ts.inverse_dynamics)
    H = np.asarray(jax.jit(jax.hessian(lambda q: (own(q, v, tau) ** 2).sum()))(q))
    assert relative(H, H.T) <= SECOND


@pytest.mark.slow
def test_hessians_are_the_same_four_ways(jax, bridge, model):
    q, v, tau = states(model)
    own = bridge.function(model, ts.forward_dynamics)
    ways = [jax.jacfwd, jax.jacrev]
    found = [outer(inner(lambda q: (own(q, v, tau) ** 2).sum()))(q) for outer, inner in product(ways, ways)]
    assert all(relative(H, found[0]) <= SECOND for H in found)


def lagrangian(jax, arm):
    """Forward dynamics of an arm of revolute joints from its energies alone, in jax.numpy."""
    jnp = jax.numpy

    def turn(axis, angle):
        K = jnp.cross(jnp.eye(3), axis)
        return jnp.eye(3) + jnp.sin(angle) * K + (1 - jnp.cos(angle)) * K @ K

    def energies(q, v):
        R, p, w, u, T, U = jnp.eye(3), jnp.zeros(3), jnp.zeros(3), jnp.zeros(3), 0.0, 0.0
        for i in range(arm.n):
            u = u + jnp.cross(w, R @ arm.p[i])
            p, R = p + R @ arm.p[i], R @ arm.R[i] @ turn(arm.axis[i], q[i])
            w = w + R @ arm.axis[i] * v[i]
            c, spin = R @ arm.com[i], R.T @ w
            T = T + (arm.mass[i] * ((u + jnp.cross(w, c)) ** 2).sum() + spin @ arm.inertia[i] @ spin) / 2
            U = U - arm.mass[i] * arm.gravity @ (p + c)
        return T, U

    def acceleration(q, v, tau):
        M = jax.hessian(lambda v: energies(q, v)[0])(v)
        rate = jax.jvp(lambda q: jax.grad(lambda v: energies(q, v)[0])(v), (q,), (v,))[1]
        slope = jax.grad(lambda q: energies(q, v)[0] - energies(q, v)[1])(q)
        return jnp.linalg.solve(M, tau - rate + slope)

    return acceleration


@pytest.mark.slow
def test_values_and_gradients_are_those_of_lagranges_equations(jax, bridge):
    arm = ts.zoo.general_arm(2, 1)
    own, other, xs = bridge.function(arm, ts.forward_dynamics), lagrangian(jax, arm), states(arm)

    def both(f):
        return jax.jit(jax.value_and_grad(lambda *x: (f(*x) ** 2).sum(), argnums=(0, 1, 2)))(*xs)

    (ours, our_slopes), (theirs, their_slopes) = both(own), both(other)
    assert relative(ours, theirs) <= SECOND
    assert all(relative(a, b) <= SECOND for a, b in zip(our_slopes, their_slopes))


def test_a_third_derivative_is_refused(jax, bridge):
    arm = MACHINES["arm"]()
    q, v, tau = states(arm)
    own = bridge.function(arm, ts.forward_dynamics)
    with pytest.raises(ts.ArgumentError, match="third"):
        jax.make_jaxpr(jax.jacfwd(jax.hessian(lambda q: own(q, v, tau)[0])))(q)


def test_scan_steps_like_a_loop(jax, bridge):
    arm = MACHINES["arm"]()
    own, (q, v, tau) = bridge.function(arm, ts.forward_dynamics), states(arm)

    def step(x, _):
        q, v = x
        v = v + 1e-2 * own(q, v, tau)
        return (q + 1e-2 * v, v), q

    (end, _), path = jax.jit(lambda q, v: jax.lax.scan(step, (q, v), None, length=5))(q, v)
    x = q, v
    for k in range(5):
        x, before = jax.jit(step)(x, None)
        assert np.array_equal(path[k], before)
    assert np.array_equal(end, x[0])
    slope = jax.grad(lambda v: jax.lax.scan(step, (q, v), None, length=5)[0][0].sum())(v)
    assert np.isfinite(slope).all()


# Numbers of the model -------------------------------------------------------------------------------------------------

WRT = ("inertia", "gravity", "placement")


def test_numbers_of_the_model_are_inputs(bridge, model):
    xs, given = states(model), numbers(model)
    own = bridge.function(model, ts.forward_dynamics, wrt=WRT)
    as_it_is = model.inertial_parameters(), model.gravity, np.zeros((model.n, 6))
    assert relative(own(*xs, *as_it_is), ts.forward_dynamics(model, *xs)) <= ROUNDING
    assert relative(own(*xs, *given), ts.forward_dynamics(changed(model, *given), *xs)) <= ROUNDING


def test_numbers_that_programs_read_are_those_of_numpy(jax, model):
    """The formulas are the same for every framework; NumPy's arrays refuse what is out of range."""
    made, given = ModelNumbers(model, WRT), dict(zip(WRT, numbers(model)))
    found = made.given({name: jax.numpy.asarray(x) for name, x in given.items()}, jax.numpy)
    expected = made.given(given, np)
    assert list(found) == list(expected) == ["inertias", "placements", "gravities"]
    assert all(relative(found[name], expected[name]) <= ROUNDING for name in found)


def test_members_differ_along_a_batch_axis(jax, bridge):
    arm = MACHINES["arm"]()
    xs, pi = states(arm), arm.inertial_parameters() * np.array([1.0, 1.2, 0.7])[:, None, None]
    own = bridge.function(arm, ts.forward_dynamics, wrt="inertia")
    found = jax.vmap(lambda pi: own(*xs, pi))(pi)
    assert np.array_equal(found, own(*xs, pi))
    members = ts.ModelBatch.of([arm.with_inertial_parameters(one) for one in pi])
    assert relative(found, ts.forward_dynamics(members, *xs)) <= ROUNDING


def test_gradients_by_numbers_of_the_model(jax, bridge):
    arm = ts.zoo.general_arm(2, 1)
    xs, (pi, g, xi) = states(arm), numbers(arm)
    weight = np.array([1.0, -2.0])
    own = bridge.function(arm, ts.forward_dynamics, wrt=WRT)
    gradient = jax.jit(jax.grad(lambda *x: own(*x) @ weight, argnums=(3, 4, 5)))
    expected = ts.vjp(ts.forward_dynamics, wrt=WRT)(changed(arm, pi, g), *xs, weight)
    found = gradient(*xs, pi, g, np.zeros_like(xi))
    assert all(relative(a, b) <= SECOND for a, b in zip(found, expected))
    step = 1e-6 * np.random.default_rng(2).normal(size=xi.shape)  # away from zero, along a line
    ahead, behind = (own(*xs, pi, g, xi + s * step) @ weight for s in (1, -1))
    assert np.isclose((gradient(*xs, pi, g, xi)[2] * step).sum(), (ahead - behind) / 2, rtol=DIFFERENCES)


def test_second_derivatives_by_placements_are_the_same_forwards_and_backwards(jax, bridge):
    """Along one twist: of the exponential, not of twists one after the other."""
    arm = ts.zoo.general_arm(1, 1)
    (q, *_), (*_, xi) = states(arm), numbers(arm)
    own = bridge.function(arm, ts.gravity_forces, wrt="placement")
    slope, t = jax.grad(lambda xi: own(q, xi)[0] ** 2), np.linspace(-1.0, 1.0, 6)[None]
    backwards = jax.grad(lambda xi: (slope(xi) * t).sum())(xi)
    assert relative(backwards, jax.jvp(slope, (xi,), (t,))[1]) <= SECOND


@pytest.mark.slow
def test_second_derivatives_by_placements(jax, bridge, model):
    xs, (*_, xi) = states(model), numbers(model)
    own = bridge.function(model, ts.forward_dynamics, wrt="placement")
    H = jax.jit(jax.hessian(lambda xi: (own(*xs, xi) ** 2).sum()))(xi).reshape(xi.size, -1)
    assert relative(H, H.T) <= SECOND
    check = jax.test_util.check_grads
    check(lambda xi: own(*xs, xi), (xi,), order=2, modes=["rev"], rtol=DIFFERENCES, atol=DIFFERENCES)


# Rollouts -------------------------------------------------------------------------------------------------------------


def network(model, rng):
    sizes = [(4, model.nq + model.nv), (model.nv, 4)]
    return ts.Policy([(0.1 * rng.normal(size=size), np.zeros(size[0])) for size in sizes], "softsign")


@pytest.mark.parametrize("name", [pytest.param("arm", marks=pytest.mark.slow), "tree with quaternions"])
def test_a_rollout_and_its_gradient_are_one_operation(jax, bridge, name):
    model = MACHINES[name]()
    rng, options = np.random.default_rng(1), dict(steps=4, step=1e-2, every=2)
    forces = [network(model, rng), ts.Constant(np.ones(model.nv))]
    wrt = ("Policy.layers", "inertia", "Constant.tau")
    q, v, _ = states(model, (3,))
    values = forces[0].layers, model.inertial_parameters(), forces[1].tau
    run = bridge.rollout(model, forces=forces, wrt=wrt, **options)
    expected = ts.rollout(model, q, v, forces=forces, **options)
    assert relative(run(q, v, *values)[0], expected.q) <= ROUNDING
    assert relative(run(q, v, *values)[1], expected.v) <= ROUNDING
    # the end as the loss: the gradients of all trajectories together, and of each by vmap
    c = rng.normal(size=expected.v.shape)
    together = jax.grad(lambda *x: (run(*x)[1] * c).sum(), argnums=(0, 1, 2, 3, 4))(q, v, *values)
    each = jax.vmap(
        jax.grad(lambda q, v, c, *x: (run(q, v, *x)[1] * c).sum(), argnums=(0, 1, 3, 4, 5)), (0, 0, 0, None, None, None)
    )
    summed = [x if k < 2 else jax.tree.map(lambda y: y.sum(0), x) for k, x in enumerate(each(q, v, c, *values))]
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(summed)):
        assert relative(a, b) <= SECOND
    exact = ts.vjp(ts.rollout, wrt)(model, q, v, (0 * c, c), forces=forces, **options)
    assert relative(together[1], exact.v) <= SECOND
    assert relative(together[3], exact["inertia"].sum(0)) <= SECOND
    assert relative(together[2][0][0], exact["Policy.layers"][0][0].sum(0)) <= SECOND
    assert relative(together[0][0], along_numbers(model, q[0], exact.q[0])) <= SECOND


def test_rollouts_take_gravity_and_placements(jax, bridge):
    arm, options = MACHINES["arm"](), dict(steps=4, step=1e-2, every=2)
    (q, v, _), (_, g, xi) = states(arm), numbers(arm)
    run = bridge.rollout(arm, wrt=("gravity", "placement"), **options)
    moved = ts.rollout(changed(arm, gravity=g, placement=xi), q, v, **options)
    assert all(relative(a, b) <= ROUNDING for a, b in zip(run(q, v, g, xi), (moved.q, moved.v)))
    c = np.random.default_rng(1).normal(size=moved.v.shape)
    found = jax.grad(lambda g, xi: (run(q, v, g, xi)[1] * c).sum(), argnums=(0, 1))(g, np.zeros_like(xi))
    expected = ts.vjp(ts.rollout, ("gravity", "placement"))(replace(arm, gravity=g), q, v, (0 * c, c), **options)
    assert relative(found[0], expected["gravity"]) <= SECOND
    assert relative(found[1], expected["placement"]) <= SECOND


def test_rollouts_of_several_networks(jax, bridge):
    arm = MACHINES["arm"]()
    policy, (q, v, _) = network(arm, np.random.default_rng(1)), states(arm)
    run = bridge.rollout(arm, steps=3, step=1e-2, forces=policy, wrt="Policy.layers")
    many = jax.tree.map(lambda x: np.stack([x, 2 * x]), policy.layers)
    found = jax.jit(jax.vmap(lambda layers: run(q, v, layers)[0]))(many)
    for k in range(2):
        assert np.array_equal(found[k], run(q, v, jax.tree.map(lambda x, k=k: x[k], many))[0])


# Mistakes -------------------------------------------------------------------------------------------------------------


def test_mistakes_are_named(jax, bridge):
    arm = MACHINES["arm"]()
    q, v, tau = states(arm)
    own = bridge.function(arm, ts.forward_dynamics)
    for mistake, words in {
        lambda: own(q, v): "takes q, v, tau; 2",
        lambda: own(q[:2], v, tau): r"q has shape \(2,\)",
        lambda: own(1.0, v, tau): r"q has shape \(\)",
        lambda: own(): "takes q, v, tau; 0",
        lambda: own(q + 1j, v, tau): "the real part",
        lambda: bridge.rollout(arm, steps=2, step=0.1)(q + 1j, v): "the real part",
        lambda: jax.jit(own)(np.stack([q, q]), np.stack([v] * 3), tau): "batch axes do not go together",
        lambda: bridge.function(arm, ts.vjp(ts.forward_dynamics)): "give forward_dynamics itself",
        lambda: bridge.function(arm, np.sin): "cannot be compiled",
        lambda: bridge.function(arm, ts.forward_dynamics, wrt="masses"): "unknown wrt 'masses'",
        lambda: bridge.function(arm, ts.forward_dynamics, wrt=("inertia", "inertia")): "twice",
        lambda: bridge.function(arm, ts.jacobian): "needs body=",
        lambda: bridge.function(arm, ts.mass_matrix, external=True): "no external wrenches",
        lambda: bridge.function(arm, ts.kinetic_energy, base_acceleration=True): "takes no base_acceleration",
        lambda: bridge.function(arm, ts.forward_dynamics, base_velocity=np.zeros(6)): "must be True or False",
        lambda: bridge.function(arm, ts.forward_dynamics, base=True): "no option 'base'; optional inputs",
        lambda: bridge.function(arm, ts.forward_dynamics, Q=np.eye(4)): "one pose per body",
        lambda: jax.grad(lambda q: bridge.function(arm, ts.torque_regressor)(q, v, tau).sum())(q): "derivative itself",
        lambda: bridge.rollout(arm, steps=2, step=0.1, forces=lambda t, q, v: q): "under functions",
        lambda: bridge.rollout(arm, steps=2, step=0.1, wrt="PD.kp"): "needs one force PD",
        lambda: bridge.rollout(arm, steps=2, step=0.1, wrt="kp"): "wrt names 'kp'",
        lambda: bridge.rollout(arm, steps=2, step=0.1)(q, v, tau): "takes q, v; 3",
        lambda: bridge.rollout(arm, steps=2, step=0.1)(q[:1], v): r"q has shape \(1,\)",
        lambda: jax.jit(lambda q: ts.forward_dynamics(arm, q, v, tau))(q): "torsor.jax.function",
        lambda: jax.jit(own).trace(q, v, tau).lower(lowering_platforms=("rocm",)): "runs on CPUs",
    }.items():
        with pytest.raises(ts.ArgumentError, match=words):
            mistake()


def test_the_gradient_of_a_large_matrix_is_refused(jax, bridge):
    chain = ts.zoo.general_arm(30, 1)
    own = bridge.function(chain, ts.mass_matrix)
    with pytest.raises(ts.ArgumentError, match="sum over columns"):
        jax.grad(lambda q: own(q).sum())(np.zeros(30))


def test_a_program_that_is_not_loaded_is_an_error_of_xla(jax, bridge):
    bridge.function(MACHINES["arm"](), ts.gravity_forces)(np.zeros(3))  # registers the handler
    result = jax.ShapeDtypeStruct((1, 3), np.float64)
    call = jax.jit(lambda x: jax.ffi.ffi_call(bridge.TARGET, result)(x, program=np.int64(12345)))
    with pytest.raises(Exception, match="not loaded in this process"):
        call(np.zeros((1, 3)))


def test_arrays_of_another_program_are_an_error_of_xla(jax, bridge):
    arm = MACHINES["arm"]()
    bridge.function(arm, ts.gravity_forces)(np.zeros(3))
    key = next(key for key, record in xla.table().records.items() if record[3] == 2)
    for shapes, result in ((((1, 3),) * 2, (1, 3)), (((1, 4),), (1, 3)), (((2, 3),), (3, 3))):
        answer = jax.ShapeDtypeStruct(result, np.float64)
        call = jax.jit(lambda *x, a=answer: jax.ffi.ffi_call(bridge.TARGET, a)(*x, program=np.int64(key)))
        with pytest.raises(Exception, match="not those of its program"):
            call(*map(np.zeros, shapes))


def test_without_typed_ffi_python_is_called(jax, bridge, monkeypatch):
    arm = ts.zoo.general_arm(3, 2)
    monkeypatch.setattr(bridge, "_handler", lambda: False)
    own, xs = bridge.function(arm, ts.forward_dynamics), states(arm, (2, 1))
    assert np.array_equal(own(*xs), ts.compile(arm, ts.forward_dynamics)(*xs))
    monkeypatch.undo()
    monkeypatch.setattr(bridge.xla, "handler", lambda text: 1 / 0)
    bridge._handler.cache_clear()
    with pytest.warns(RuntimeWarning, match="every call goes through Python"):
        assert not bridge._handler()
    bridge._handler.cache_clear()


# On a GPU: the handler is called as XLA calls it, and kernels run on the host ---------------------------------------


@pytest.fixture
def device(jax, bridge, monkeypatch):
    """A stand-in for CuPy and the driver; what is lowered for CUDA finds them."""
    module = fake_cupy.Cupy()
    fake_cupy.install(monkeypatch, module)
    queue = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    )(_queued)
    monkeypatch.setattr(xla, "driver", lambda: queue)
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *_, **__: None)
    bridge._handler.cache_clear()
    yield module
    bridge._handler.cache_clear()


def _queued(function, *given):
    *grid, stream, table, _ = given
    return fake_cupy.launch(*map(ctypes.c_uint64, (function, *grid, stream)), table, None)


def on_gpu(jax, function, *args):
    """The calls of torsor's handler in what XLA would run on a GPU: (key, shapes of arrays, shapes of results)."""
    text = jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    found = []
    for line in text.splitlines():
        if "@torsor(" in line:
            key = int(re.search(r"program = (\d+) : i64", line).group(1))
            given, results = line.rsplit(" : ", 1)[1].split(" -> ")
            shapes = [
                [tuple(map(int, x.split("x")[:-1])) for x in re.findall(r"tensor<([^>]*)>", part)]
                for part in (given, results)
            ]
            found.append((key, *shapes))
    return found


@pytest.mark.skipif(not cuda_host.compiler(), reason="kernels run on the host through a C++ compiler")
@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "looped"])
def test_xla_queues_kernels_on_its_stream(jax, bridge, device, specialised):
    """Values and gradients: batches, operands that all states share, and scratch memory for loops."""
    arm = ts.zoo.random_chain(3, 6) if specialised else ts.zoo.random_chain(3, 7)
    own = bridge.function(arm, ts.forward_dynamics, specialised=specialised)
    q, v, tau = states(arm, (70,))
    handler = xla.handler(xla.DEVICE).address
    assert xla_frames.traits(handler) == ((0, 1), 1)  # it may be recorded in a CUDA graph
    assert xla_frames.traits(xla.handler(xla.HOST).address) == ((0, 1), 0)
    for given in ((q, v, tau), (q, v[0], tau)):
        ((key, shapes, results),) = on_gpu(jax, own, *given)
        arrays = [x.reshape(shape) for x, shape in zip(given, shapes)]
        found = [xla_frames.empty(shape, float) for shape in results]
        assert len(found) == 1 + (not specialised)
        assert xla_frames.call(handler, key, arrays, found, stream=13) is None
        assert device.functions[-1].launches[-1].stream == 13
        assert relative(found[0], ts.compile(arm, ts.forward_dynamics)(*given)) <= ROUNDING
    wrong = arrays[:2], [arrays[0][:69], *arrays[1:]], [x.astype(np.float32) for x in arrays]
    for inputs in wrong:
        assert "not those of its program" in xla_frames.call(handler, key, inputs, found)
    assert "not loaded" in xla_frames.call(handler, key + 1, arrays, found)
    assert xla_frames.call(handler, key, arrays, found, stream=None) == "no stream"
    calls = on_gpu(jax, jax.grad(lambda *x: own(*x).sum(), argnums=(0, 1, 2)), q, v, tau)
    (key, shapes, results), expected = calls[-1], ts.compile(arm, ts.vjp(ts.forward_dynamics))
    row = [xla_frames.empty(shape, float) for shape in results]
    assert xla_frames.call(handler, key, [q, v, tau, np.ones((70, 3))], row) is None
    assert relative(row[0], np.concatenate(expected(q, v, tau, np.ones(3)), axis=1)) <= ROUNDING


def test_empty_batches_and_float32_are_lowered_for_a_gpu(jax, bridge, device):
    arm = ts.zoo.planar3()
    own = bridge.function(arm, ts.gravity_forces)
    assert on_gpu(jax, own, np.zeros((0, 3))) == []
    ((_, shapes, results),) = on_gpu(jax, own, np.zeros((2, 5, 3), np.float32))
    assert shapes == results == [(10, 3)]
    assert "typedef float T" in device.functions[-1].source


def test_a_refused_kernel_is_an_error_of_xla(jax, bridge, device, monkeypatch):
    refuse = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    )(lambda *_: 400)
    monkeypatch.setattr(xla, "driver", lambda: refuse)
    own = bridge.function(ts.zoo.planar3(), ts.gravity_forces)
    ((key, *_),) = on_gpu(jax, own, np.zeros((11, 3)))
    message = xla_frames.call(xla.handler(xla.DEVICE).address, key, [np.zeros((11, 3))], [np.zeros((11, 3))])
    assert "refused a kernel" in message


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rows_of_gradients_are_cut_into_the_same_bits(jax, bridge, dtype):
    """Blocks that are full or not, inputs that all states share, and one or several threads."""
    model = ts.zoo.general_arm(3, 1)
    program = ts.compile(model, ts.vjp(ts.forward_dynamics), dtype=dtype)
    for threads in (1, 3):
        own = bridge.function(model, ts.forward_dynamics, threads=threads)
        gradient = jax.jit(jax.grad(lambda *x, own=own: own(*x).sum(), argnums=(0, 1, 2)))
        for count in (1, 7, 455, 456, 9000):
            q, v, tau = (x.astype(dtype) for x in states(model, (count,)))
            expected = program(q, v, tau, np.ones(3, dtype))
            assert all(map(np.array_equal, gradient(q, v, tau), expected))
            shared = gradient(q, v[0], tau)[0]
            assert np.array_equal(shared, program(q, v[0], tau, np.ones(3, dtype)).q)
    assert not xla.can_cut([1000, 1000])
    assert not xla.can_cut([3, 0])


# Arrays of JAX outside of functions -----------------------------------------------------------------------------------


def test_functions_give_arrays_of_jax_for_arrays_of_jax(jax, model):
    xs = states(model)
    given, last = list(map(jax.numpy.asarray, xs)), model.n - 1
    for function in (
        ts.forward_dynamics,
        lambda *x: ts.kinetic_energy(*x[:3]),
        lambda *x: ts.vjp(ts.forward_dynamics)(*x, x[2]).q,
        lambda *x: ts.jacobian_dot(*x[:3], last, reference="world"),
        lambda *x: ts.forward_dynamics(*x, method="composite"),
        lambda *x: ts.forward_dynamics(*x, method="fixman"),
    ):
        found = function(model, *given)
        assert isinstance(found, jax.Array)
        assert np.array_equal(found, function(model, *xs))


# Processes ------------------------------------------------------------------------------------------------------------

SECOND_PROCESS = """
import sys, jax, numpy as np, torsor as ts, torsor.jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("cache_hits") else None)
arm = ts.zoo.general_arm(3, 1)
own = torsor.jax.function(arm, ts.forward_dynamics)
found = jax.jit(lambda x: own(x, 2 * x, 3 * x))(np.ones(3))
expected = ts.compile(arm, ts.forward_dynamics)(*(k * np.ones(3) for k in (1, 2, 3)))
print(len(hits) > 0, np.array_equal(found, expected))
"""


@pytest.mark.slow
def test_a_second_process_runs_what_jax_kept_on_disk(jax, tmp_path):
    """The code of the two processes is at other addresses, and the program is found by its content."""
    first, second = (processes.output(SECOND_PROCESS, tmp_path).split() for _ in range(2))
    assert first == ["False", "True"]
    assert second == ["True", "True"]


SEVERAL_DEVICES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, numpy as np, torsor as ts, torsor.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.config.update("jax_enable_x64", True)
arm = ts.zoo.general_arm(3, 1)
own, mesh = torsor.jax.function(arm, ts.forward_dynamics), Mesh(np.array(jax.devices()), "x")
q, v, tau = np.random.default_rng(0).normal(size=(3, 8, 3))
cut = [jax.device_put(x, NamedSharding(mesh, P("x"))) for x in (q, v, tau)]
mapped = jax.shard_map(own, mesh=mesh, in_specs=(P("x"),) * 3, out_specs=P("x"))
slope = jax.grad(lambda q: own(q, v[0], tau[0]).sum())
expected = ts.compile(arm, ts.forward_dynamics)(q, v, tau)
cases = [(mapped, cut, expected), (own, cut, expected), (slope, cut[:1], slope(q)),
         (own, (cut[0], v[0], tau[0]), own(q, v[0], tau[0])), (own, (q[0], *cut[1:]), own(q[0], v, tau))]
for function, args, wanted in cases:
    found = jax.jit(function)(*args)
    gathered = "all-gather" in jax.jit(function).lower(*args).compile().as_text()
    print(np.array_equal(found, wanted), found.sharding.spec == P("x"), not gathered)
"""


@pytest.mark.slow
def test_arrays_on_several_devices_stay_there(jax):
    """Under shard_map and under jit, values and gradients, also with operands that all devices share."""
    run = processes.run("-c", SEVERAL_DEVICES)
    assert run.stdout.split() == ["True"] * 15, run.stderr


def test_importing_torsor_imports_no_framework():
    code = "import sys, torsor as ts; ts.forward_dynamics; assert not {'jax', 'torch'} & {*sys.modules}"
    processes.output(code)


def test_versions_of_jax_that_end_the_process_are_refused():
    run = processes.run("-c", "import jax; jax.__version_info__ = 0, 7, 1; import torsor.jax")
    assert "needs JAX 0.7.2 or newer" in run.stderr


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_without_the_framework_the_extra_is_named(name):
    code = f"import sys; sys.modules['{name}'] = None; import torsor.{name}"
    run = processes.run("-c", code)
    assert f"pip install 'torsor[{name}]'" in run.stderr
