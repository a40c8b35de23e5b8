"""Motions whose answer is known: closed forms, conservation laws, and the papers' free falls."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import ellipj, ellipk

import torsor as ts
from torsor import Simulation, simulate, zoo
from torsor.lie import quaternion_to_matrix
from torsor.model import Model
from torsor.papers import saha2001

TIGHT = {"rtol": 1e-12, "atol": 1e-13}
# A run at TIGHT leaves a global error of a few hundred tolerances.
CLOSE = 1e-9


def test_pendulum_period():
    """T = 4 sqrt(l/g) K(sin^2(theta_0 / 2)), found by the event theta = 0 after a quarter of it."""
    length, g, amplitude = 0.7, 9.81, 2.0
    pendulum = zoo.point_chain(1, length=length)
    down = -np.pi / 2
    exact = np.sqrt(length / g) * ellipk(np.sin(amplitude / 2) ** 2)
    run = simulate(pendulum, [down + amplitude], duration=5.0, stop=lambda t, q, v: q[0] - down, **TIGHT)
    assert run.t[-1] == pytest.approx(exact, abs=CLOSE)
    assert run.q[-1, 0] == pytest.approx(down, abs=CLOSE)


@pytest.mark.parametrize("dt", [None, 0.05])
def test_events_follow_one_another_half_a_period_apart(dt):
    """Each run ends where the pendulum hangs down; the next one goes on from there."""
    pendulum, down = zoo.point_chain(1), -np.pi / 2
    simulation = Simulation(pendulum, [down + 1.0], dt=dt, **TIGHT)
    times = []
    for _ in range(4):
        run = simulation.run(20.0, stop=lambda t, q, v: q[0] - down)
        times.append(run.t[-1])
        assert simulation.t == run.t[-1]
    half = 2 * np.sqrt(1 / 9.81) * ellipk(np.sin(0.5) ** 2)
    np.testing.assert_allclose(times, half * (0.5 + np.arange(4)), rtol=0, atol=CLOSE)
    assert (np.diff(run.t) > 0).all()


def test_free_rigid_body_follows_jacobis_elliptic_functions():
    """Euler's equations with I1 < I2 < I3, beyond the separatrix (Landau & Lifshitz, Mechanics, section 37)."""
    I1, I2, I3 = moments = np.array([0.8, 1.5, 2.0])
    body = Model.chain("spherical", mass=1.0, inertia=moments, gravity=(0, 0, 0))
    omega = np.array([0.4, 0.0, 1.3])
    E2, M2 = (moments * omega**2).sum(), (moments**2 * omega**2).sum()
    assert M2 > E2 * I2
    t = np.linspace(0, 10, 41)
    rate = np.sqrt((I3 - I2) * (M2 - E2 * I1) / (I1 * I2 * I3))
    m = (I2 - I1) * (E2 * I3 - M2) / ((I3 - I2) * (M2 - E2 * I1))
    sn, cn, dn, _ = ellipj(rate * t, m)
    exact = np.column_stack([
        np.sqrt((E2 * I3 - M2) / (I1 * (I3 - I1))) * cn,
        np.sqrt((E2 * I3 - M2) / (I2 * (I3 - I2))) * sn,
        np.sqrt((M2 - E2 * I1) / (I3 * (I3 - I1))) * dn,
    ])  # fmt: skip
    run = simulate(body, None, omega, 10.0, method="dop853", dt=0.25, **TIGHT)
    np.testing.assert_allclose(run.v, exact, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(
        ts.momentum(body, run.q, run.v)[:, :3], np.tile(moments * omega, (41, 1)), rtol=0, atol=CLOSE
    )


def test_heavy_symmetric_top_precesses_steadily():
    """A Omega^2 cos(theta) - C w3 Omega + m g l = 0: the tilt stays, the axis turns at the rate Omega."""
    A, C, mass, length, g, tilt, Omega = 0.05, 0.02, 1.0, 0.15, 9.81, 0.6, 1.7
    w3 = (A * Omega**2 * np.cos(tilt) + mass * g * length) / (C * Omega)
    across = A - mass * length**2
    top = Model.chain("spherical", mass=mass, com=(0, 0, length), inertia=(across, across, C))
    q0 = np.array([np.cos(tilt / 2), np.sin(tilt / 2), 0, 0])  # tilted about x
    # spin about the body's axis, precession about the vertical, seen from the body
    v0 = np.array([0, Omega * np.sin(tilt), w3])
    run = simulate(top, q0, v0, 5.0, method="dop853", dt=0.1, **TIGHT)
    axis = np.array([quaternion_to_matrix(q)[:, 2] for q in run.q])
    np.testing.assert_allclose(axis[:, 2], np.cos(tilt), rtol=0, atol=CLOSE)
    heading = np.unwrap(np.arctan2(axis[:, 1], axis[:, 0]))
    np.testing.assert_allclose(heading - heading[0], Omega * run.t, rtol=0, atol=10 * CLOSE)


def test_double_pendulum_against_its_own_equations():
    """Two unit masses on unit rods, in absolute angles from the downward vertical, by SciPy."""
    g = 9.81

    def rate(t, y):
        a, b, w, u = y
        d = a - b
        M = np.array([[2.0, np.cos(d)], [np.cos(d), 1.0]])
        f = [-(u**2) * np.sin(d) - 2 * g * np.sin(a), w**2 * np.sin(d) - g * np.sin(b)]
        return [w, u, *np.linalg.solve(M, f)]

    theirs = solve_ivp(rate, (0, 3), [1.2, -0.4, 0.3, 0.0], method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1]
    q0 = [1.2 - np.pi / 2, -0.4 - 1.2]  # ours are relative angles, the first from the x axis
    run = simulate(zoo.point_chain(2), q0, [0.3, -0.3], 3.0, **TIGHT)
    ours = [run.q[-1, 0] + np.pi / 2, run.q[-1].sum() + np.pi / 2]
    np.testing.assert_allclose(ours, theirs[:2], rtol=0, atol=CLOSE)


@pytest.mark.parametrize("method", ["rkf45", "dopri5", "dop853"])
@pytest.mark.parametrize("name", ["stanford", "puma_saha"])
def test_free_fall_conserves_energy(name, method):
    """To 1e-8 of the energy exchanged, over 10 s, at rtol 1e-10."""
    run = simulate(zoo.get(name), saha2001.STARTS[name], duration=10.0, method=method, rtol=1e-10, atol=1e-12)
    assert np.ptp(run.energy) < 1e-8 * run.kinetic_energy.max()


def test_saha_free_fall_and_accelerations():
    """The figures of the papers' machines to three digits."""
    rows = [*saha2001._free_falls()]
    assert len(rows) == 6
    assert not [row for row in rows if not row.holds]


def test_saha_forced_runs_follow_the_desired_motion_at_first():
    for name, until in (("stanford", 1.5), ("puma_saha", 4.0)):
        run, desired = saha2001.forced(name), saha2001.reference(name)
        early = run.t <= until
        wanted = np.array([desired(t)[0] for t in run.t[early]])
        assert np.abs(run.q[early] - wanted).max() < 5e-3


def test_momentum_of_a_falling_machine_grows_with_its_weight():
    """d(linear momentum)/dt = m g, whatever the joints do."""
    human = zoo.humanoid()
    v0 = np.linspace(-0.5, 0.5, human.nv)
    run = simulate(human, None, v0, 0.5, rtol=1e-9, atol=1e-10)
    p = ts.momentum(human, run.q, run.v)[:, 3:]
    np.testing.assert_allclose(p - p[0], np.outer(run.t, human.mass.sum() * human.gravity), rtol=0, atol=1e-6)
