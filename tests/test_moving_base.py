"""A base that moves: the arm on a free body that carries it, the lift, tables."""

from dataclasses import replace

import mpmath
import numpy as np
import oracle
import pytest
from machines import difference

import torsor as ts
from torsor import lie, zoo
from torsor.dynamics.methods import METHODS, NOT_COMPILED
from torsor.model.extras import Coupling, Extras

ROUNDING = 1e-10  # of the difference of two bias forces, which are some ten times what remains


def carried(arm):
    """The arm on a free body of its own: the base of the arm is that body's frame."""
    tree = ts.Model.builder("carrier", gravity=arm.gravity)
    tree.add("carrier", joint="free", mass=3.0, com=(0.1, 0.0, 0.2), inertia=(0.4, 0.5, 0.6))
    names = ["carrier"]
    for i in range(arm.n):
        tree.add(
            arm.names[i], parent=names[arm.parent[i] + 1], axis=arm.axis[i], R=arm.R[i], p=arm.p[i], mass=arm.mass[i],
            com=arm.com[i], inertia=arm.inertia[i],
        )  # fmt: skip
        names.append(arm.names[i])
    return tree.build()


def states(seed=0):
    arm = zoo.general_arm(4, 1)
    whole, rng = carried(arm), np.random.default_rng(seed)
    q, v, tau = whole.random_configuration(rng), rng.normal(size=whole.nv), rng.normal(size=whole.nv)
    return arm, whole, q, v, tau


def turned_gravity(arm, q):
    """The arm with gravity as the carrier's frame sees it."""
    return replace(arm, gravity=lie.quaternion_to_matrix(q[3:7]).T @ arm.gravity)


@pytest.fixture(scope="module")
def ride():
    """An arm alone, its state, and the motion of its base: what it does on its carrier."""
    arm, whole, q, v, tau = states()
    qdd = ts.forward_dynamics(whole, q, v, tau)
    base = {"base_velocity": v[:6], "base_acceleration": qdd[:6]}
    return turned_gravity(arm, q), (q[7:], v[6:], tau[6:]), base, (whole, q, v, tau, qdd)


FORWARD = [method for method in (*METHODS["forward_dynamics"], *NOT_COMPILED) if method != "segments"]


@pytest.mark.parametrize("method", ["auto", *FORWARD])
def test_the_arm_on_its_carrier_accelerates_as_one_on_a_moving_base(ride, method):
    arm, (q, v, tau), base, (*_, qdd) = ride
    felt = ts.base_forces(arm, q, v, **base)
    assert difference(ts.forward_dynamics(arm, q, v, tau + felt, method=method), qdd[6:]) < ROUNDING
    assert difference(ts.forward_dynamics(arm, q, v, tau, method=method, **base), qdd[6:]) < ROUNDING


def test_wrenches_and_torques_are_those_on_the_carrier(ride):
    arm, (q, v, tau), base, (whole, *state, qdd) = ride
    assert difference(ts.constraint_forces(arm, q, v, tau, **base), ts.constraint_forces(whole, *state)[1:]) < ROUNDING
    assert difference(ts.inverse_dynamics(arm, q, v, qdd[6:], **base), tau) < ROUNDING
    Y = ts.torque_regressor(arm, q, v, qdd[6:], **base)
    assert difference(Y @ arm.inertial_parameters().ravel(), tau) < ROUNDING


def test_energy_and_momentum_are_those_on_the_carrier(ride):
    """Less the carrier's own, momentum seen from the frame of the carrier."""
    arm, (q, v, _), base, (whole, q_all, v_all, *_) = ride
    V, c, m, I = v_all[:6], whole.com[0], whole.mass[0], whole.inertia[0]
    p = m * (V[3:] + np.cross(V[:3], c))
    own = np.concatenate([I @ V[:3] + np.cross(c, p), p])
    moving = {"base_velocity": base["base_velocity"]}
    T = ts.kinetic_energy(whole, q_all, v_all) - own @ V / 2
    assert difference(ts.kinetic_energy(arm, q, v, **moving), T) < ROUNDING
    pose = ts.body_poses(whole, q_all)[0]
    P = lie.Ad(pose).T @ ts.momentum(whole, q_all, v_all) - own
    assert difference(ts.momentum(arm, q, v, **moving), P) < ROUNDING
    assert difference(ts.body_twists(arm, q, v, **moving), ts.body_twists(whole, q_all, v_all)[1:]) < ROUNDING


def test_derivatives_are_those_on_the_carrier(ride):
    """By q, v and qdd of the arm, with the carrier's motion held."""
    arm, (q, v, _), base, (whole, *state, _, qdd) = ride
    alone = ts.inverse_dynamics_derivatives(arm, q, v, qdd[6:], **base)
    for own, rest in zip(alone, ts.inverse_dynamics_derivatives(whole, *state, qdd)):
        assert difference(own, rest[6:, 6:]) < ROUNDING


@pytest.mark.parametrize("method", METHODS["forward_dynamics_derivatives"])
def test_derivatives_of_accelerations_are_their_differences(ride, method):
    arm, (q, v, tau), base, _ = ride
    found = ts.forward_dynamics_derivatives(arm, q, v, tau, method=method, **base)
    h, units = 1e-6, np.eye(arm.nv)

    def accelerations(q, v, tau):
        return ts.forward_dynamics(arm, q, v, tau, **base)

    for k, derivative in enumerate(found):
        moved = [[x + sign * h * units if k == j else x for j, x in enumerate((q, v, tau))] for sign in (1, -1)]
        ahead, behind = (accelerations(*x) for x in moved)
        assert difference(derivative, (ahead - behind).T / (2 * h)) < 1e-7
    A, B = ts.linearize(arm, q, v, tau, **base)
    assert difference(A[arm.nv :], np.hstack(found[:2])) < ROUNDING
    assert difference(B[arm.nv :], found.dtau) < ROUNDING


@pytest.mark.parametrize("n", [4, 60])  # straight-line code, and loops
@pytest.mark.parametrize(
    ("function", "options"),
    [
        (ts.forward_dynamics, ("base_velocity", "base_acceleration")),
        (ts.inverse_dynamics, ("base_velocity", "base_acceleration")),
        (ts.constraint_forces, ("base_velocity", "base_acceleration")),
        (ts.kinetic_energy, ("base_velocity",)),
        (ts.momentum, ("base_velocity",)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_gradients_by_the_motion_of_the_base_are_differences(function, options, n):
    """jvp against central differences, vjp against jvp: y . (J x) = x . (J' y)."""
    arm, rng = zoo.general_arm(n, 1), np.random.default_rng(2)
    count = 2 if function in (ts.kinetic_energy, ts.momentum) else 3
    arrays = dict(
        zip(("q", "v", "qdd" if function is ts.inverse_dynamics else "tau"), 0.3 * rng.normal(size=(count, n)))
    )
    names = (*arrays, *options)
    point = arrays | {name: rng.normal(size=6) for name in options}
    step = {name: rng.normal(size=x.shape) for name, x in point.items()}

    def value(h):
        moved = {name: x + h * step[name] for name, x in point.items()}
        return function(arm, *(moved.pop(name) for name in arrays), **moved)

    given = {name: point[name] for name in options}
    change = ts.jvp(function, names)(arm, *arrays.values(), *step.values(), **given)
    assert difference(change, (value(1e-6) - value(-1e-6)) / 2e-6) < 1e-6
    y = rng.normal(size=np.shape(change))
    back = ts.vjp(function, names)(arm, *arrays.values(), y, **given)
    assert difference(sum(np.sum(x * s) for x, s in zip(back, step.values())), np.sum(y * change)) < 1e-9


@pytest.mark.parametrize("method", METHODS["forward_dynamics"])
def test_forty_five_digits_by_differences_of_poses_in_space(method):
    """All numbers are exact in binary, placements are quarter turns: nothing but the digits of the sum is rounded."""
    rng = np.random.default_rng(4)
    joints, axes = ["revolute", "revolute", "prismatic", "revolute"], np.eye(3)[[2, 0, 1, 1]]
    turned = np.eye(3)[[1, 2, 0]]
    arm = ts.Model.chain(
        joints, axis=axes, R=[np.eye(3), turned, turned.T, np.eye(3)], p=rng.integers(-8, 9, (4, 3)) / 8,
        mass=[2.0, 1.5, 1.0, 0.5], com=rng.integers(-8, 9, (4, 3)) / 16, inertia=np.full((4, 3), 0.25),
    )  # fmt: skip
    with mpmath.workdps(oracle.DIGITS):
        q, v, tau, V, dV = (oracle.exact(rng.normal(size=k)) for k in (4, 4, 4, 6, 6))
        qdd = ts.forward_dynamics(arm, q, v, tau, base_velocity=V, base_acceleration=dV, method=method)
        wrenches = oracle.wrenches_along(arm, q, v, qdd, V, dV)
        wrong = [arm.axis[i] @ wrenches[i][3 * (i == 2) :][:3] - tau[i] for i in range(4)]
        assert max(map(abs, wrong)) < mpmath.mpf(10) ** -45


@pytest.mark.parametrize("kind", ["coupled", "batch", "long", "one motion per state"])
def test_a_base_that_moves_serves_every_machine(kind):
    """Against the torques of the moving base, which two other functions find."""
    rng = np.random.default_rng(5)
    size = (3,) if kind != "long" else ()
    arm = {"long": lambda: zoo.rope(50)}.get(kind, lambda: zoo.general_arm(4, 1))()
    if kind == "coupled":
        arm = replace(arm, extras=Extras(couplings=(Coupling(2, 1, 0.5),)))
    q, v, tau = arm.random_configuration(rng, size=size), rng.normal(size=(*size, arm.nv)), np.zeros(arm.nv)
    if kind == "coupled":
        q, v = arm.coupled(q), arm.coupled(v)
    if kind == "batch":
        arm = ts.ModelBatch(arm, mass=arm.mass * rng.uniform(0.5, 2.0, (3, arm.n)))
    V, dV = (rng.normal(size=(3, 6)) if "state" in kind else rng.normal(size=6) for _ in range(2))
    felt = ts.base_forces(arm, q, v, V, dV)
    found = ts.forward_dynamics(arm, q, v, tau, base_velocity=V, base_acceleration=dV)
    assert difference(found, ts.forward_dynamics(arm, q, v, tau + felt)) < 1e-8


def test_segments_on_a_moving_base():
    chain, rng = zoo.rope(200), np.random.default_rng(6)
    state, base = rng.normal(size=(3, chain.nv)), dict(base_velocity=rng.normal(size=6), base_acceleration=np.ones(6))
    exact = ts.forward_dynamics(chain, *state, method="articulated", **base)
    assert difference(ts.forward_dynamics(chain, *state, method="segments", **base), exact) < 1e-8


@pytest.mark.parametrize("method", ["auto", "fixman", "constraint-force"])
def test_a_motion_of_another_shape_is_named(method):
    arm = zoo.general_arm(4, 1)
    zero = np.zeros(4)
    with pytest.raises(ts.ArgumentError, match=r"base_velocity has shape \(3,\); .* needs \(\.\.\., 6\)"):
        ts.forward_dynamics(arm, zero, zero, zero, base_velocity=np.zeros(3), method=method)
    with pytest.raises(ts.ArgumentError, match=r"base_acceleration\[1\] is nan"):
        ts.forward_dynamics(arm, zero, zero, zero, base_acceleration=[0, np.nan, 0, 0, 0, 0], method=method)
    with pytest.raises(ts.ArgumentError, match="batch axes do not go together"):
        ts.forward_dynamics(arm, np.zeros((3, 4)), zero, zero, base_acceleration=np.zeros((2, 6)), method=method)


def test_a_lift_makes_everything_heavier():
    arm = zoo.random_tree(8, 2)
    rng = np.random.default_rng(1)
    q, v = arm.random_configuration(rng, size=3), rng.normal(size=(3, arm.nv))
    up = np.array([0, 0, 0, 0.3, -0.2, 2.0])
    heavier = replace(arm, gravity=arm.gravity - up[3:])
    tau = ts.base_forces(arm, q, v, np.zeros(6), up)
    assert difference(ts.forward_dynamics(arm, q, v, tau), ts.forward_dynamics(heavier, q, v, np.zeros(arm.nv))) < 1e-8


def test_an_arm_moves_as_on_its_free_carrier():
    """The carrier's motion, recorded, moves the base of the arm alone."""
    arm, whole, q, v, _ = states(3)
    options = dict(method="dop853", rtol=1e-10, atol=1e-10)
    run = ts.simulate(whole, q, 0.5 * v, duration=0.8, **options)

    def motion(t):
        q, v = (x[0] for x in run.at([t])[:2])
        return lie.quaternion_to_matrix(q[3:7]), v[:6], ts.forward_dynamics(whole, q, v, np.zeros(whole.nv))[:6]

    end = run.at([0.2])[0][0, 7:]
    alone = ts.simulate(arm, q[7:], 0.5 * v[6:], duration=0.2, forces=ts.MovingBase(motion), **options)
    assert difference(alone.q[-1], end) < 1e-6
    still = ts.simulate(arm, q[7:], 0.5 * v[6:], duration=0.2, **options)
    assert difference(still.q[-1], end) > 1e-3


def test_a_pendulum_on_a_lift_by_rollout_and_simulate():
    """Two lifts: a function, and a table through s = a t^2 / 2; the pendulum swings as with g + a."""
    pendulum = ts.Model.chain("revolute", n=1, axis=(0, 1, 0), mass=1.0, com=(0, 0, -1.0), inertia=(0.1, 0.1, 0.1))
    a, t = 3.0, np.linspace(0, 1, 11)
    table = np.stack([0 * t, 0 * t, a * t * t / 2], axis=-1)
    heavier = replace(pendulum, gravity=(0, 0, -9.81 - a))
    expected = ts.simulate(heavier, [0.5], duration=1.0, rtol=1e-9, atol=1e-9).q[-1]
    lifts = ts.MovingBase(lambda t: (np.eye(3), np.zeros(6), [0, 0, 0, 0, 0, a])), ts.MovingBase.through(t, table)
    for lift in lifts:
        run = ts.simulate(pendulum, [0.5], duration=1.0, forces=lift, rtol=1e-9, atol=1e-9)
        assert difference(run.q[-1], expected) < 1e-7
    path = ts.rollout(pendulum, [0.5], [0.0], steps=500, step=2e-3, method="rk4", forces=lifts[0])
    assert difference(path.q[-1], expected) < 1e-7


def test_tables_give_the_twist_and_its_derivative_in_the_axes_of_the_base():
    """Against differences of the poses."""
    rng = np.random.default_rng(0)
    t = np.linspace(0, 2, 9)
    base = ts.MovingBase.through(t, rng.normal(size=(9, 3)), 0.4 * rng.normal(size=(9, 3)))
    h, at = 1e-5, 0.83
    (R0, V0, _), (R, V, dV), (R1, V1, _) = (base.motion(at + x) for x in (-h, 0.0, h))
    assert (
        difference(lie.vee(np.block([[R.T @ (R1 - R0), np.zeros((3, 1))], [np.zeros((1, 4))]]))[:3] / (2 * h), V[:3])
        < 1e-6
    )
    assert difference((V1 - V0) / (2 * h), dV) < 1e-5
    with pytest.raises(ts.ArgumentError, match="one row per time"):
        ts.MovingBase.through(t, rng.normal(size=(8, 3)))
    with pytest.raises(ts.ArgumentError, match="motion"):
        ts.MovingBase(3.0)


def test_what_a_base_does_not_say_is_refused():
    """Motions of other shapes, and times beyond a table."""
    arm = ts.zoo.planar3()
    with pytest.raises(
        ts.ArgumentError, match=r"must give R \(3, 3\), V_0 \(6,\) and dV_0 \(6,\), not \[\(6,\), \(6,\)\]"
    ):
        ts.simulate(arm, duration=0.1, forces=ts.MovingBase(lambda t: (np.zeros(6), np.zeros(6))))
    base = ts.MovingBase.through([0.0, 0.1], np.zeros((2, 3)))
    assert np.isfinite(ts.simulate(arm, duration=0.1, forces=base).q).all()
    with pytest.raises(ts.ArgumentError, match=r"by a table from t = 0 to 0\.1, not at t ="):
        ts.simulate(arm, duration=0.2, forces=base)
