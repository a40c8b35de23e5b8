"""Where a motion ends: zeros of functions and `Stop` conditions, found within steps."""

import numpy as np
import pytest

import torsor as ts
from torsor import zoo

G = 9.81
FOUND = 1e-6  # of a time, by methods with tolerances of 1e-6
LEVEL = 2.0
ABOVE = 0.07  # s that the ball is above the level


def ball():
    """A mass in free fall along z, thrown so that it is above the level for a short time."""
    model = ts.Model.chain("prismatic", axis=(0, 0, 1), mass=1.0, inertia=(1, 1, 1), gravity=(0, 0, -G))
    apex = LEVEL + G * (ABOVE / 2) ** 2 / 2
    speed = np.sqrt(2 * G * apex)
    return model, speed, speed / G - ABOVE / 2


@pytest.mark.parametrize("size", [1.0, 1e-200, -1e-200, 1e200])
@pytest.mark.parametrize("method", ["esdirk4", "radau", "dopri5", "trbdf2", "dop853", "abm", "auto"])
def test_a_ball_above_a_level_for_a_moment_is_found(method, size):
    model, speed, when = ball()
    run = ts.simulate(model, [0.0], [speed], 1.2, method=method, stop=lambda t, q, v: size * (q[0] - LEVEL))
    assert run.t[-1] == pytest.approx(when, abs=FOUND)
    assert run.q[-1, 0] == pytest.approx(LEVEL, abs=FOUND)


@pytest.mark.parametrize("method", ["esdirk4", "dopri5", "rk4", "implicit-euler"])
def test_a_stop_is_the_zero_of_its_function(method):
    """The same bits; and it says no more than that the bounds are reached."""
    model, speed, _ = ball()
    options = dict(method=method, step=None if method in ("esdirk4", "dopri5") else 1e-3)
    found, expected = (
        ts.simulate(model, [0.0], [speed], 1.2, stop=stop, **options)
        for stop in (ts.Stop(q=0, above=LEVEL), lambda t, q, v: q[0] - LEVEL)
    )
    assert expected.t[-1] < 1.2
    np.testing.assert_array_equal(found.table, expected.table)


def test_a_stop_of_a_frame_is_where_the_frame_passes_its_bound():
    arm = zoo.panda()
    q0 = np.array([0.0, 0.3, 0.0, -1.5, 0.0, 1.5, 0.0])
    z = ts.body_poses(arm, q0)[-1, 2, 3]
    stops = [ts.Stop(frame=arm.names[-1], below=z - 0.1), ts.Stop(v=1, above=100.0)]
    run = ts.simulate(arm, q0, duration=2.0, stop=stops)
    assert run.t[-1] < 2.0
    assert run.path(arm.names[-1])[-1, 2] == pytest.approx(z - 0.1, abs=FOUND)


def test_a_run_that_starts_outside_its_bounds_ends_there():
    model, speed, _ = ball()
    run = ts.simulate(model, [LEVEL + 1], [speed], 1.0, stop=ts.Stop(q=0, above=LEVEL))
    np.testing.assert_array_equal(run.t, [0.0])


def test_a_function_that_starts_beyond_zero_ends_a_run_where_it_comes_back():
    model, _, _ = ball()
    run = ts.simulate(model, [LEVEL + 1], [0.0], 1.0, stop=lambda t, q, v: q[0] - LEVEL)
    assert run.t[-1] == pytest.approx(np.sqrt(2 / G), abs=FOUND)


def test_a_run_goes_on_after_its_event():
    model, speed, when = ball()
    run = ts.Simulation(model, [0.0], [speed], method="esdirk4")
    stop = lambda t, q, v: q[0] - LEVEL  # noqa: E731
    assert run.run(1.2, stop=stop).t[-1] == pytest.approx(when, abs=FOUND)
    assert run.run(1.2, stop=stop).t[-1] == pytest.approx(when + ABOVE, abs=FOUND)
    assert run.run(1.2, stop=stop).t[-1] == 1.2


@pytest.mark.parametrize("method", ["dopri5", "rkf45", "dop853", "abm", "trbdf2", "esdirk4", "radau"])
def test_what_lies_before_a_jump_does_not_know_of_it(method, tmp_path):
    """The step that ends where torques jump is continued within itself, also in files and with rows dt apart."""
    pulse = ts.Table([0.0, 0.1, 0.2], [[0.0], [5.0], [0.0]], "previous")
    options = dict(duration=0.4, method=method, forces=pulse)
    run = ts.simulate(ts.zoo.pendulum(), **options, file=tmp_path / "run.traj")
    for found in (run, ts.Trajectory.load(tmp_path / "run.traj")):
        np.testing.assert_array_equal(found.at(np.linspace(0, 0.1, 21))[0], 0.0)
    exact = ts.simulate(ts.zoo.pendulum(), **options | {"method": "dop853"}, rtol=1e-12, atol=1e-14, dt=0.01)
    sampled = ts.simulate(ts.zoo.pendulum(), **options, dt=0.01)
    np.testing.assert_allclose(sampled.q, exact.q, rtol=0, atol=JUMP)
    np.testing.assert_allclose(run.at(exact.t)[0], exact.q, rtol=0, atol=JUMP)


JUMP = 2e-5  # of trbdf2 at its default tolerance; the others are closer
