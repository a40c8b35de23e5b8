"""Radau IIA in O(n): its order by matrices and by sweeps, the sweep with complex pivots, the changes of the forces."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import expm
from test_simulate_implicit import arm, cable, spinning

import torsor as ts
from torsor import PD, Friction, Limits, Pull, Simulation, Spring, simulate, zoo
from torsor.algorithms import articulated, complex_pivots
from torsor.backends.cpu import compile_program
from torsor.compiler.request import ALWAYS, NEVER
from torsor.model.extras import Coupling, Extras
from torsor.model.joints import JOINTS
from torsor.motion import radau
from torsor.motion.motion import Motion
from torsor.motion.tangent import LANES, Tangent, in_lanes
from torsor.reference import evaluate

ORDER_SLACK = 0.35
ROUNDING = 1e-12  # of a solve, relative, for the masses and lengths drawn here
DIFFERENCE = 1e-6  # of central differences with steps of 1e-5, and of the one-sided ones of functions, relative

by_matrices_and_sweeps = pytest.mark.parametrize("small", [30, 0], ids=["matrices", "sweeps"])


def coupling(stiffness, damping):
    """A spring between two joints, as a plain function: no gains are known."""

    def force(t, q, v):
        stretch = stiffness * (q[1] - q[2]) + damping * (v[1] - v[2])
        return np.array([0.0, -stretch, stretch, *np.zeros(len(v) - 3)])

    return force


# ---- the parts ----


def complex_systems(model):
    """(q, b, r) of three systems M + r, real and complex"""
    rng, nv = np.random.default_rng(1), model.nv
    b = rng.normal(size=(3, nv)) + 1j * rng.normal(size=(3, nv))
    r = np.array([1.0, np.exp(-0.8j), 1e3 * np.exp(-1.7j)])[:, None] * rng.uniform(0, 2, size=(3, nv))
    return model.random_configuration(rng=1), b, r


def assert_solved(model, q, b, r, x):
    M = ts.mass_matrix(model, q)
    exact = np.array([np.linalg.solve(M + np.diag(added), own) for added, own in zip(r, b)])
    assert np.abs(x - exact).max() < ROUNDING * np.abs(exact).max()


@pytest.mark.parametrize("joint", [joint.name for joint in JOINTS])
def test_a_sweep_with_complex_pivots_solves_what_a_dense_solver_does(joint):
    """For every type of joint, with armature, on plain numbers."""
    model = zoo.random_tree(4, 2, joints=(joint, "revolute"))
    model = replace(model, armature=np.where(np.arange(model.nv) % 2, 0.1, 0.0))
    q, b, r = complex_systems(model)
    x = []
    for own, added in zip(b, r):
        numbers = q, own.real, own.imag, added.real, added.imag
        inputs = dict(zip(complex_pivots.mass_solve.inputs, (y.tolist() for y in numbers)))
        re, im = np.split(np.array(evaluate(complex_pivots.mass_solve, model, inputs)), 2)
        x.append(re + 1j * im)
    assert_solved(model, q, b, r, np.array(x))


@pytest.mark.parametrize("unroll", [NEVER, ALWAYS], ids=["loops", "straight line"])
def test_compiled_it_solves_several_systems_side_by_side(unroll):
    model = arm(armature=0.1)
    q, b, r = complex_systems(model)
    found = compile_program(complex_pivots.mass_solve, model, unroll=unroll)(q, b.real, b.imag, r.real, r.imag)
    assert_solved(model, q, b, r, found.re + 1j * found.im)


def forces_of(model):
    return {
        "none": [],
        "data": [Spring(3.0, None, 0.5), Friction(0.2, 0.3, creep=0.5), PD(model.neutral(), 5.0, 1.0)],
        "stops": [Limits(-0.1, 0.1, 50.0, 3.0)] if model.nq == model.nv else [],
        "a function": [lambda t, q, v: np.sin(q[: len(v)] + t) - v**3, Pull(model.names[-1], (1.0, 2.0, 3.0))],
    }


@pytest.mark.parametrize("name", ["none", "data", "stops", "a function"])
@pytest.mark.parametrize("machine", [arm, spinning], ids=lambda f: f.__name__)
def test_the_changes_of_the_forces_are_their_derivatives(machine, name):
    model = machine()
    motion, rng, t, step = Motion(model, forces_of(model)[name]), np.random.default_rng(0), 0.3, 1e-5
    q, (v, a), (dq, dv) = (
        model.random_configuration(rng=2),
        rng.normal(size=(2, model.nv)),
        rng.normal(size=(2, 3, model.nv)),
    )

    def unbalanced(s, dq, dv):
        moved, faster = model.integrate(q, s * dq), v + s * dv
        return ts.inverse_dynamics(model, moved, faster, a) - motion.felt(t, moved, faster)

    exact = np.array([(unbalanced(step, *x) - unbalanced(-step, *x)) / (2 * step) for x in zip(dq, dv)])
    assert np.abs(Tangent(motion, t, q, v, a)(dq, dv) - exact).max() < DIFFERENCE * np.abs(exact).max()


def test_lanes_that_are_filled_change_no_bit():
    model = zoo.rope(30)
    program = compile_program(articulated.forward_dynamics, model, lanes=LANES, unroll=NEVER)
    q, v, tau = np.random.default_rng(0).normal(size=(3, 5, model.nv))
    for count in (1, 2, 3, 4, 5):
        given = q[:count], v[:count], tau[:count]
        assert np.array_equal(in_lanes(program, *given), np.array([program(*one) for one in zip(*given)]))


# ---- the method ----


@pytest.mark.parametrize(
    ("machine", "small"),
    [(arm, 30), (spinning, 0), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(arm, 0), (spinning, 30)])],
    ids=["arm, matrices", "spinning, sweeps", "arm, sweeps", "spinning, matrices"],
)
def test_errors_fall_with_order_five_at_equal_steps(machine, small, monkeypatch):
    monkeypatch.setattr(radau, "SMALL", small)
    model = machine(stiffness=3.0, damping=0.3)
    v0 = np.linspace(0.5, -0.5, model.nv)
    exact = simulate(model, None, v0, 0.8, method="dop853", rtol=1e-13, atol=1e-13)
    errors, middle = [], []
    for h in (0.08, 0.04):
        simulation = Simulation(model, None, v0, method="radau", rtol=10.0, atol=10.0, max_step=h)
        simulation.stepper.h, simulation.stepper.tolerance = h, 1e-12  # solve the equations of the stages exactly
        run = simulation.run(0.8)
        errors.append(np.abs(run.v[-1] - exact.v[-1]).max())
        times = np.linspace(0.2, 0.6, 23)
        middle.append(np.abs(run.at(times)[1] - exact.at(times)[1]).max())
    assert np.log2(errors[0] / errors[1]) == pytest.approx(5, abs=ORDER_SLACK)
    assert np.log2(middle[0] / middle[1]) > 4 - ORDER_SLACK  # the error of a cubic is O(h^4)


@by_matrices_and_sweeps
@pytest.mark.parametrize("stiffness", [1e4, 1e8])
def test_stiffness_that_no_force_declares(stiffness, small, monkeypatch):
    """By sweeps, GMRES has to find it."""
    force, model = coupling(stiffness, 1e-2 * stiffness), arm()
    exact = simulate(model, duration=0.2, forces=force, method="esdirk4", rtol=1e-9, atol=1e-11)
    monkeypatch.setattr(radau, "SMALL", small)
    simulation = Simulation(model, forces=force, method="radau", rtol=1e-5, atol=1e-7)
    run = simulation.run(0.2)
    assert np.abs(run.q[-1] - exact.q[-1]).max() < 1e-6
    assert simulation.stepper.evaluations < 3000


def test_a_long_chain_goes_by_sweeps_and_needs_few_steps():
    """The same motion as by the method with stages in turn; no matrix of the chain is formed."""
    model = cable(300)
    exact = simulate(model, duration=0.2, method="esdirk4", rtol=1e-7, atol=1e-9, dt=0.1)
    simulation = Simulation(model, method="radau", rtol=1e-4, atol=1e-6, dt=0.1)
    run = simulation.run(0.2)
    assert isinstance(simulation.stepper.newton, radau.Swept | None)
    assert np.abs(run.q[-1] - exact.q[-1]).max() < 1e-6
    assert simulation.stepper.evaluations < 700


@by_matrices_and_sweeps
def test_joints_that_follow_others_keep_following(small, monkeypatch):
    monkeypatch.setattr(radau, "SMALL", small)
    model = arm(4, stiffness=1e4, damping=1e2)
    model = replace(model, extras=Extras(couplings=(Coupling(3, 0, -2.0),)))
    exact = simulate(model, duration=0.2, method="dop853", rtol=1e-10, atol=1e-12)
    run = simulate(model, duration=0.2, method="radau", rtol=1e-7, atol=1e-9)
    assert np.abs(run.q[-1] - exact.q[-1]).max() < 1e-7
    assert np.abs(run.q[:, 3] + 2.0 * run.q[:, 0]).max() < 1e-12


# ---- a set of stiff machines ----

EVERY = pytest.mark.parametrize("method", ["trbdf2", "esdirk4", "radau"])
TOLERANCE = {"trbdf2": 1e-4, "esdirk4": 1e-6, "radau": 1e-6}  # relative
# Errors of steps add up, and a method of order 2 makes its step error the tolerance.
GLOBAL = 100
MOST = {"trbdf2": 3000, "esdirk4": 3000, "radau": 3000}  # evaluations


def stiff_run(method, model, q0, v0, duration):
    tolerance = TOLERANCE[method]
    simulation = Simulation(model, q0, v0, method=method, rtol=tolerance, atol=1e-2 * tolerance)
    run = simulation.run(duration)
    assert simulation.stepper.evaluations < MOST[method]
    return run


@EVERY
def test_a_pendulum_on_a_spring_of_1e8_is_a_rigid_one(method):
    """A mass on a stiff spring in a tube that turns: against the pendulum without the spring."""
    b = ts.Model.builder("spring pendulum")
    b.add("tube", joint="revolute", axis=(0, 1, 0), mass=0.1, com=(0.2, 0, 0), inertia=(1e-3, 1e-3, 1e-3))
    b.add("ball", parent="tube", joint="prismatic", axis=(1, 0, 0), p=(1, 0, 0), mass=1.0, inertia=(1e-3, 1e-3, 1e-3))
    model = b.build()
    springs = replace(model, stiffness=[0.0, 1e8], damping=[0.0, 1e4])
    rigid = replace(model, armature=[0.0, 1e12])  # the ball hardly moves in the tube
    exact = simulate(rigid, [0.3, 0.0], None, 2.0, method="dop853", rtol=1e-12, atol=1e-12)
    run = stiff_run(method, springs, [0.3, 0.0], None, 2.0)
    assert abs(run.q[-1, 0] - exact.q[-1, 0]) < GLOBAL * TOLERANCE[method]
    stretch = (9.81 * np.sin(run.q[-1, 0]) + run.v[-1, 0] ** 2) / 1e8  # the weight and the centrifugal force
    assert run.q[-1, 1] == pytest.approx(stretch, rel=1e-2)


@EVERY
def test_damped_carts_with_rates_of_many_sizes(method):
    """As in Robertson's reaction, rates from 0.04 to 3e7 per second; M is constant, and expm knows the motion."""
    model = ts.Model.chain("prismatic", n=3, axis=(1, 0, 0), mass=1.0, inertia=(1, 1, 1), gravity=(0, 0, 0))
    damping, rates = np.array([1e2, 1e4, 3e7]), np.array([0.04, 1e2, 3e3])
    model = replace(model, stiffness=rates * damping, damping=damping)
    q0, M = np.array([1.0, -0.5, 0.2]), ts.mass_matrix(model, np.zeros(3))
    A = np.block([[np.zeros((3, 3)), np.eye(3)], [-np.linalg.solve(M, np.diag(x)) for x in (rates * damping, damping)]])
    exact = expm(2.0 * A) @ np.concatenate([q0, np.zeros(3)])
    run = stiff_run(method, model, q0, None, 2.0)
    assert np.abs(run.q[-1] - exact[:3]).max() < GLOBAL * TOLERANCE[method]


@EVERY
def test_a_governor_comes_to_rest_at_its_speed(method):
    """A shaft with two balls on arms with stiff springs and dampers: they swing out; the angular momentum stays."""
    b = ts.Model.builder("governor")
    b.add("shaft", joint="revolute", axis=(0, 0, 1), mass=1.0, inertia=(0.02, 0.02, 0.02))
    for name, side in (("left", -1.0), ("right", 1.0)):
        b.add(name, parent="shaft", joint="revolute", axis=(0, -side, 0), p=(0.05 * side, 0, 0), mass=0.5,
              com=(0.1 * side, 0, -0.3), inertia=(1e-3, 1e-3, 1e-3))  # fmt: skip
    model = replace(b.build(), stiffness=[0.0, 1e3, 1e5], damping=[0.0, 1e3, 1e5])
    v0 = np.array([20.0, 0.0, 0.0])
    run = stiff_run(method, model, None, v0, 10.0)
    spin = [(ts.mass_matrix(model, q) @ v)[0] for q, v in ((run.q[0], run.v[0]), (run.q[-1], run.v[-1]))]
    assert spin[1] == pytest.approx(spin[0], rel=GLOBAL * TOLERANCE[method])
    q, v = run.q[-1], run.v[-1] * [1, 0, 0]
    pull = ts.bias_forces(model, q, v)[1:] + model.stiffness[1:] * q[1:]
    assert np.abs(run.v[-1, 1:]).max() < 1e-3
    assert np.abs(pull).max() < 1e-2 * np.abs(model.stiffness[1:] * q[1:]).min()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("n", range(31, 41))
def test_branched_trees_of_31_to_40_freedoms(n):
    """More than matrices are formed for, and few enough for code without loops (it was a TypeError)."""
    tree = zoo.random_tree(n, n, joints=("revolute", "prismatic"), branching=0.7)
    assert tree.nv == n
    model = replace(tree, stiffness=10.0, damping=1.0)
    v0 = np.random.default_rng(n).normal(size=n)
    exact = simulate(model, None, v0, 0.02, method="dop853", rtol=1e-10, atol=1e-12)
    run = simulate(model, None, v0, 0.02, method="radau", rtol=1e-6, atol=1e-8)
    assert np.abs(run.q[-1] - exact.q[-1]).max() < 1e-5 * max(1.0, np.abs(exact.q[-1]).max())
