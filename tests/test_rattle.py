"""The drift of RATTLE in joint coordinates, and the method "rattle", against discrete mechanics written out."""

import numpy as np
import pytest

import torsor as ts
from torsor import reference, zoo
from torsor.algorithms import rattle
from torsor.backends.cpu import compile_program
from torsor.compiler.request import ALWAYS, NEVER
from torsor.model.joints import JOINTS
from torsor.motion.rattle import Drift

OTHERS = ("free", "cylindrical", "gimbal")
TREES = {"six types of joint": zoo.random_tree(7, 1), "the others": zoo.random_tree(4, 0, joints=OTHERS)}
STEP = 0.02
# Differences of fourth order over 1e-3 lose three digits, and leave 1e-12 of their fifth derivatives.
NUDGE, DIFFERENCES = 1e-3, 1e-9
ROUNDING = 1e-12  # of momenta: differences of places, divided by the step


def state_of(model, seed=0):
    rng = np.random.default_rng(seed)
    q, v = model.random_configuration(rng), rng.normal(size=model.nv)
    return q, ts.mass_matrix(model, q) @ v, v


def discrete_lagrangian(model, q0, q1, h):
    """sum m |x1 - x0|^2 / (2 h) = tr (T1 - T0) E (T1 - T0)^T / (2 h), T the 4x4 poses, E = sum m (r, 1) (r, 1)^T"""
    moved = ts.body_poses(model, q1) - ts.body_poses(model, q0)
    total = 0.0
    for D, m, c, I in zip(moved, model.mass, model.com, model.inertia):
        E = np.empty((4, 4))
        E[:3, :3] = np.trace(I) / 2 * np.eye(3) - I + m * np.outer(c, c)
        E[:3, 3] = E[3, :3] = m * c
        E[3, 3] = m
        total += np.trace(D @ E @ D.T) / (2 * h)
    return total


def slope(function, model, q):
    """The gradient along the directions of the velocities, by differences of fourth order."""
    found = []
    for along in np.eye(model.nv):
        near, far = (
            function(model.integrate(q, s * along)) - function(model.integrate(q, -s * along))
            for s in (NUDGE, 2 * NUDGE)
        )
        found.append((8 * near - far) / (12 * NUDGE))
    return np.array(found)


def test_the_trees_have_every_type_of_joint():
    assert {code for model in TREES.values() for code in model.joint} == set(range(len(JOINTS)))


@pytest.mark.parametrize("model", TREES.values(), ids=TREES)
def test_momenta_are_slopes_of_the_discrete_lagrangian(model):
    """p0 = -dL/dq0 and p1 = dL/dq1."""
    q0, p0, v = state_of(model)
    drifted = Drift(model)(q0, p0, v, STEP)
    assert drifted.settled
    before = -slope(lambda q: discrete_lagrangian(model, q, drifted.q, STEP), model, q0)
    after = slope(lambda q: discrete_lagrangian(model, q0, q, STEP), model, drifted.q)
    size = np.abs(p0).max()
    np.testing.assert_allclose(before, p0, rtol=0, atol=DIFFERENCES * size)
    np.testing.assert_allclose(after, drifted.p, rtol=0, atol=DIFFERENCES * size)


def test_loops_straight_line_and_reference_agree():
    model = zoo.random_tree(7, 1)  # every type of joint
    q, p, v = state_of(model)
    h = np.full(model.nv, STEP)
    near = Drift(model)(q, p, v, STEP).x * (1 + 1e-5)
    for algorithm, x in ((rattle.drift, v), (rattle.drift_near, near), (rattle.drift_further, v)):
        inputs = {"q": q.tolist(), "p": p.tolist(), "x": x.tolist(), "h": h.tolist()}
        expected = np.array(reference.evaluate(algorithm, model, inputs))
        for unroll in (ALWAYS, NEVER):
            found = compile_program(algorithm, model, unroll=unroll)(q, p, x, h)
            found = np.concatenate([np.ravel(part) for part in found])
            np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING * np.abs(expected).max())


def test_near_guesses_lead_to_the_same_place_in_fewer_rounds():
    model = zoo.random_tree(7, 1)
    q, p, v = state_of(model)
    usual, near = Drift(model), Drift(model, near=True)
    expected = usual(q, p, v, STEP)
    found = near(q, p, expected.x * (1 + 1e-6), STEP)
    assert near.rounds == rattle.NEAR_ROUNDS < usual.rounds
    for one, other in zip(found[:2], expected[:2]):  # mean velocities are guesses, and depend on the rounds
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11 * max(1.0, np.abs(other).max()))
    far = near(q, p, 0 * v, STEP)  # a bad guess takes more rounds
    assert far.settled
    np.testing.assert_allclose(far.q, expected.q, rtol=0, atol=1e-11)


def test_a_step_back_leads_home():
    model = zoo.random_tree(7, 1)
    q, p, v = state_of(model)
    drift = Drift(model)
    there = drift(q, p, v, STEP)
    back = drift(there.q, -there.p, -there.x, STEP)
    np.testing.assert_allclose(model.difference(q, back.q), 0, rtol=0, atol=1e-13)
    np.testing.assert_allclose(back.p, -p, rtol=0, atol=1e-11 * np.abs(p).max())


def test_the_map_is_symplectic():
    """dq ^ dp of two directions stays what it was, on a machine whose freedoms are plain coordinates."""
    model = zoo.general_arm(3)
    q, p, v = state_of(model)
    drift, n = Drift(model), model.nv

    def moved(state):
        found = drift(state[:n], state[n:], v, STEP)
        return np.concatenate([found.q, found.p])

    state = np.concatenate([q, p])
    jacobian = np.empty((2 * n, 2 * n))
    for k, along in enumerate(np.eye(2 * n)):
        near, far = (moved(state + s * along) - moved(state - s * along) for s in (NUDGE, 2 * NUDGE))
        jacobian[:, k] = (8 * near - far) / (12 * NUDGE)
    form = np.block([[np.zeros((n, n)), np.eye(n)], [-np.eye(n), np.zeros((n, n))]])
    np.testing.assert_allclose(jacobian.T @ form @ jacobian, form, rtol=0, atol=1e-9)


def test_a_floating_machine_keeps_its_momentum():
    model = ts.Model.chain(["free", "spherical", "universal", "revolute"], mass=1.0, com=(0.1, 0.2, 0.3),
                           p=(0.3, 0, 0.1), inertia=(0.1, 0.2, 0.25), gravity=(0, 0, 0))  # fmt: skip
    q, p, x = state_of(model)
    first = ts.momentum(model, q, ts.mass_solve(model, q, p))
    drift = Drift(model)
    for _ in range(50):
        q, p, x, settled = drift(q, p, x, STEP)
        assert settled
    last = ts.momentum(model, q, ts.mass_solve(model, q, p))
    np.testing.assert_allclose(last, first, rtol=0, atol=1e-11 * np.abs(first).max())


def test_rows_are_judged_alone():
    """A state that is not finite, or cannot settle, changes nothing about its neighbours, to the bit."""
    model = zoo.random_tree(7, 1)
    q, p, v = (np.array(x) for x in zip(*(state_of(model, seed) for seed in range(9))))
    drift = Drift(model)
    h = np.full(9, STEP)
    expected = [drift(q[k], p[k], v[k], STEP) for k in range(9)]
    p[2, 1], h[5] = np.nan, 50.0
    found = drift(q, p, v, h)
    assert found.settled.tolist() == [k not in (2, 5) for k in range(9)]
    for k in np.flatnonzero(found.settled):
        for one, alone in zip(found, expected[k]):
            np.testing.assert_array_equal(one[k], alone)


def test_no_states_are_no_error():
    model = zoo.planar3()
    found = Drift(model)(*np.zeros((3, 0, 3)), STEP)
    assert found.q.shape == (0, 3)
    assert found.settled.shape == (0,)


def test_a_force_is_called_once_per_step():
    model, calls = zoo.general_arm(4), []

    def force(t, q, v):
        calls.append(t)
        return -np.sin(q)

    run = ts.Simulation(
        model, np.zeros(4), np.ones(4), method="rattle", step=0.01, every=1000, dense=False,
        forces=[ts.Function(force, needs_v=False)],
    )  # fmt: skip
    run.run(until=0.02)
    before = len(calls)
    run.run(until=0.32)
    assert len(calls) - before <= 30 + 2  # and for the row at the end


CROSSED = np.hstack([np.zeros((7, 7)), np.full((7, 7), 0.02)])  # a torque depends on all velocities
FORCES = {
    "free": [],
    "damped": [ts.PD(np.zeros(7), kp=20.0, kd=0.5)],
    "crossed": [ts.Feedback(CROSSED)],
    "computed": [ts.ComputedTorque(np.zeros(7), 30.0, 3.0)],
    "jumping where a step ends": [ts.Table([0.0, 0.1, 0.2], np.outer([1, -1, 1], np.ones(7)), "previous")],
}


@pytest.mark.parametrize("forces", FORCES.values(), ids=FORCES)
def test_the_method_is_of_second_order(forces):
    arm, start = zoo.panda(), (np.full(7, 0.3), np.ones(7))
    exact = ts.simulate(arm, *start, duration=0.2, rtol=1e-11, atol=1e-12, forces=forces).q[-1]
    errors = [
        np.abs(ts.simulate(arm, *start, duration=0.2, method="rattle", step=h, forces=forces).q[-1] - exact).max()
        for h in (2e-3, 1e-3)
    ]
    assert 3.8 < errors[0] / errors[1] < 4.2


def test_the_energy_of_a_long_run_stays_near():
    run = ts.simulate(zoo.point_chain(2), [0.4, 0.3], duration=50.0, method="rattle", step=5e-3)
    error = run.energy - run.energy[0]
    first, last = (np.abs(x).max() for x in np.array_split(error, 2))
    assert last < 1.2 * first
