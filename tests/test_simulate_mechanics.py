"""Mechanics in steps (`algorithms/discrete_mechanics.py`): forces, motions and momenta on the groups of the joints."""

import mpmath
import numpy as np
import pytest
from machines import MACHINES, difference

from torsor import Model, lie, reference, simulate, zoo
from torsor.algorithms import discrete_mechanics as mechanics
from torsor.backends.cpu import compile_program
from torsor.compiler.request import ALWAYS, NEVER
from torsor.dynamics import functions as dynamics
from torsor.errors import SingularError
from torsor.linalg import Vec
from torsor.model.joints import JOINTS, joint_named
from torsor.motion.coordinates import Coordinates
from torsor.outputs import PerFreedom
from torsor.sweeps import Algorithm

DIFFERENCES = 1e-7  # central differences over 1e-5
ROUNDING = 1e-12
# 12 points integrate what a turn of 2 rad does to a momentum to the last digit.
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)
INPUTS, TORQUES = mechanics.INPUTS, PerFreedom("tau")
STEPS = [
    mechanics.begin,
    mechanics.leave,
    mechanics.end,
    mechanics.arrive,
    mechanics.begin_driven,
    mechanics.end_driven,
]
GROUPS = ["spherical", "free", "universal"]


@pytest.fixture(scope="module", params=MACHINES)
def machine(request):
    return MACHINES[request.param]()


def state_of(model):
    q, v = model.random_configuration(rng=4), np.random.default_rng(5).uniform(-1, 1, model.nv)
    return q, v, dynamics.mass_matrix(model, q) @ v, np.full(model.nv, 0.01)


def vector(*numbers):
    return Vec(*map(float, numbers))


def test_force_is_the_derivative_of_the_lagrangian(machine):
    """With no momentum to carry, a step of 1 s leaves F."""
    q, v, p, _ = state_of(machine)
    F = compile_program(mechanics.arrive, machine)(q, v, 0 * p, np.ones(machine.nv))
    e = 1e-5

    def lagrangian(y):
        x = machine.integrate(q, y)
        return dynamics.kinetic_energy(machine, x, v) - dynamics.potential_energy(machine, x)

    slopes = [(lagrangian(e * unit) - lagrangian(-e * unit)) / (2 * e) for unit in np.eye(machine.nv)]
    assert difference(F, np.array(slopes), scale=1.0) < DIFFERENCES


@pytest.mark.parametrize("algorithm", STEPS, ids=lambda a: a.name)
def test_loops_straight_line_and_reference_agree(algorithm):
    model = zoo.random_tree(7, 1)  # every type of joint
    inputs = state_of(model)
    plain = dict(zip(mechanics.INPUTS, (x.tolist() for x in inputs)))
    expected = np.array(reference.evaluate(algorithm, model, plain))
    for unroll in (ALWAYS, NEVER):
        result = compile_program(algorithm, model, unroll=unroll)(*inputs)
        assert difference(result, expected) < ROUNDING


def test_iterations_settle_on_the_discrete_equations(machine):
    """M(q) v = dexp_y^T (p + h F(q, v)) and M(q [+] y) v = dexp_y^T p."""
    q, v, p, h = state_of(machine)
    kicked = Algorithm("kicked", INPUTS, (mechanics.body_velocities, mechanics.gather, mechanics.kick), TORQUES)
    drifted = Algorithm("drifted", INPUTS, (mechanics.drift,), TORQUES)
    ends = ((mechanics.begin, kicked), (mechanics.end, drifted))
    for iterate, momentum in ends:
        iteration, x = compile_program(iterate, machine), v
        for _ in range(30):
            x = iteration(q, x, p, h)
        at = q if iterate is mechanics.begin else Coordinates(machine).move(q, h * x)
        left, right = dynamics.mass_matrix(machine, at) @ x, compile_program(momentum, machine)(q, x, p, h)
        assert difference(left, right) < ROUNDING


@pytest.mark.parametrize("name", GROUPS)
def test_mean_momentum_is_the_mean_of_the_carried_ones(name):
    """dexp_y^T p = int_0^1 Ad_{exp(s y)}^T p ds"""
    joint = joint_named(name)
    y, p = vector(*np.linspace(-0.9, 1.1, joint.nv)), vector(*np.linspace(2, -1, joint.nv))
    carried = [np.array(joint.carried(y * float(s), p)) for s in (NODES + 1) / 2]
    assert difference(np.array(joint.averaged(y, p)), WEIGHTS / 2 @ np.array(carried)) < ROUNDING


def test_carried_momentum_is_the_coadjoint_action():
    y, p = np.linspace(-0.9, 1.1, 6), np.linspace(2, -1, 6)
    free = joint_named("free").carried(vector(*y), vector(*p))
    assert difference(np.array(free), lie.Ad_dual(lie.exp_se3(y)) @ p) < ROUNDING
    ball = joint_named("spherical").carried(vector(*y[:3]), vector(*p[:3]))
    assert difference(np.array(ball), lie.exp_so3(y[:3]).T @ p[:3]) < ROUNDING


@pytest.mark.parametrize("angle", [0.0, 1e-200, 1e-9, 1e-3, 1.0, 3.1, 6.2])
def test_stumpff_functions_are_good_to_a_whole_turn(angle):
    with mpmath.workdps(60):
        x = mpmath.mpf(angle) ** 2
        exact = [float(mpmath.nsum(lambda j, k=k: (-x) ** j / mpmath.factorial(2 * j + k), [0, 60])) for k in (2, 3)]
    for value, expected in zip(lie.stumpff(angle**2), exact):
        assert value == pytest.approx(expected, abs=2e-15)


@pytest.mark.parametrize("size", [0.0, 1e-12, 1e-3, 1.0])
def test_move_is_integrate(machine, size):
    q, v, _, _ = state_of(machine)
    np.testing.assert_allclose(
        Coordinates(machine).move(q, size * v), machine.integrate(q, size * v), rtol=0, atol=4e-15
    )


@pytest.mark.parametrize("method", ["symplectic-euler", "verlet", "variational"])
def test_a_body_at_rest_in_space_stays_there(method):
    """The exponential at zero, in compiled code."""
    model = Model.chain(["free", "spherical"], mass=1.0, inertia=(1, 2, 3), gravity=(0, 0, 0))
    q0 = model.random_configuration(rng=1)
    run = simulate(model, q0, duration=0.1, method=method, step=0.01)
    np.testing.assert_allclose(run.q, np.tile(q0, (len(run), 1)), rtol=0, atol=1e-15)


@pytest.mark.parametrize("method", ["symplectic-euler", "verlet", "variational"])
def test_steps_of_more_than_a_turn_are_refused(method):
    model = Model.chain("free", mass=1.0, inertia=(1, 2, 3), gravity=(0, 0, 0))
    with pytest.raises(SingularError, match="smaller steps"):
        simulate(model, v0=[900.0, 0, 0.1, 1, 0, 0], duration=0.1, method=method, step=0.02)


def test_every_joint_with_a_quaternion_has_its_group():
    assert {joint.name for joint in JOINTS if joint.nq != joint.nv} == {"spherical", "free"}
