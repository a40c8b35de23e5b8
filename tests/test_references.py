"""Motions to follow: velocities and accelerations are derivatives, ends are held, limits are kept."""

import numpy as np
import pytest
from scipy.integrate import cumulative_trapezoid

import torsor as ts
from torsor.errors import ArgumentError

H, DIFFERENCES = 1e-5, 1e-4  # central differences of numbers of order one: h^2 and rounding / h
ENDS = np.zeros(3), np.array([1.0, -2.0, 0.5])
MOTIONS = {
    "cycloid": ts.Cycloid(*ENDS, T=2.0),
    "minimum jerk": ts.MinimumJerk(*ENDS, T=2.0),
    "trapezoid": ts.Trapezoid(*ENDS, speed=[1.0, 1.5, 1.0], acceleration=3.0),
    "triangle": ts.Trapezoid(*ENDS, speed=100.0, acceleration=3.0),
    "spline": ts.Spline([0.0, 0.7, 2.0], [ENDS[0], [0.3, 0.1, 0.9], ENDS[1]]),
}


@pytest.mark.parametrize("motion", MOTIONS.values(), ids=MOTIONS)
def test_velocities_and_accelerations_are_derivatives(motion):
    t = np.linspace(-0.5, 3.0, 57) + 0.0123  # away from the kinks
    q, v, a = motion.rows(t)
    (q1, v1, _), (q0, v0, _) = motion.rows(t + H), motion.rows(t - H)
    assert np.abs((q1 - q0) / (2 * H) - v).max() < DIFFERENCES
    assert np.abs((v1 - v0) / (2 * H) - a).max() < DIFFERENCES
    for k, row in enumerate(t.tolist()):
        assert all(np.array_equal(x, y[k]) for x, y in zip(motion(row), (q, v, a)))


@pytest.mark.parametrize("motion", MOTIONS.values(), ids=MOTIONS)
def test_positions_are_integrals_of_velocities(motion):
    """Also over the kinks: nothing jumps."""
    t = np.linspace(-0.5, 3.0, 20_001)
    q, v, _ = motion.rows(t)
    assert np.abs(q[0] + cumulative_trapezoid(v, t, axis=0, initial=0.0) - q).max() < DIFFERENCES


@pytest.mark.parametrize("motion", MOTIONS.values(), ids=MOTIONS)
def test_ends_are_held(motion):
    for t, end in zip((-1.0, 10.0), ENDS):
        q, v, a = motion(t)
        assert np.allclose(q, end, rtol=1e-15)
        assert np.abs([v, a]).max() < 1e-14  # a sine of 2 pi is not zero


@pytest.mark.parametrize(("name", "fastest"), [("trapezoid", 1.5), ("triangle", np.sqrt(3.0 * 2.0))])
def test_a_trapezoid_uses_its_limits_and_no_more(name, fastest):
    _, v, a = MOTIONS[name].rows(np.linspace(0, MOTIONS[name].T, 2001))
    assert np.isclose(np.abs(v[:, 1]).max(), fastest, rtol=2e-3)  # of the joint that sets the time
    assert np.isclose(np.abs(a).max(), 3.0, rtol=1e-12)


def test_nothing_to_do_takes_no_time():
    still = ts.Trapezoid([1.0], [1.0], speed=1.0, acceleration=1.0)
    assert still.T == 0.0
    assert [x.tolist() for x in still(0.5)] == [[1.0], [0.0], [0.0]]


def test_an_arm_goes_through_poses():
    arm, t = ts.zoo.panda(), [0.0, 1.0, 2.0]
    start = np.array([0.0, -0.3, 0.0, -2.0, 0.0, 1.7, 0.8])
    targets = ts.frame_poses(arm, start + 0.1 * np.arange(3)[:, None], "link7")
    path = ts.Spline.through_poses(arm, "link7", t, targets, start)
    assert np.abs(ts.frame_poses(arm, path.rows(t)[0], "link7") - targets).max() < 1e-5  # 1e-6 of angle and distance
    run = ts.simulate(arm, path.q[0], duration=2.0, forces=ts.ComputedTorque(path))
    assert np.abs(run.q[-1] - path.q[-1]).max() < 1e-3  # the integrator's tolerance
    with pytest.raises(ArgumentError, match="target 1 cannot be reached"):
        ts.Spline.through_poses(arm, "link7", t[:2], [targets[0, :3, 3], [9.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ts.Trapezoid(*ENDS, speed=-1.0, acceleration=1.0), "speed must be positive"),
        (lambda: ts.Trapezoid(*ENDS, speed=1.0, acceleration=[1.0, 1.0]), "acceleration must be positive"),
        (lambda: ts.MinimumJerk(*ENDS, T=0.0), "T, the time"),
        (lambda: ts.Cycloid([0.0, 1.0], [1.0, 2.0, 3.0], T=1.0), "do not go together"),
        (lambda: ts.Spline([0.0, 0.0], [[1.0], [2.0]]), "increasing times"),
    ],
)
def test_what_is_no_motion_is_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
