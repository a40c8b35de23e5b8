"""A base that moves: the arm on a free body that carries it, the lift, tables."""

from dataclasses import replace

import numpy as np
import pytest
from machines import difference

import torsor as ts
from torsor import lie, zoo

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


@pytest.mark.parametrize(
    "method", ["auto", "articulated", "composite", "udut", "ploen-park", "fixman", "constraint-force"]
)
def test_the_arm_on_its_carrier_accelerates_as_one_on_a_moving_base(method):
    arm, whole, q, v, tau = states()
    qdd = ts.forward_dynamics(whole, q, v, tau)
    alone = turned_gravity(arm, q)
    felt = ts.base_forces(alone, q[7:], v[6:], v[:6], qdd[:6])
    assert difference(ts.forward_dynamics(alone, q[7:], v[6:], tau[6:] + felt, method=method), qdd[6:]) < ROUNDING


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
