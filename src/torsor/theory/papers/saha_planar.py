"""Saha 2001, section 4: the three-DoF planar arm, free and forced, against its explicit equations of motion.

With phi_i = theta_1 + ... + theta_i, h_i = m_i c_i + L_i (m_{i+1} + ...) and a_ij = L_i h_j for i < j,
a_ii = I_i + m_i c_i^2 + L_i^2 (m_{i+1} + ...), the equations are (any textbook)

    sum_j a_ij (cos(phi_i - phi_j) phidd_j + sin(phi_i - phi_j) phid_j^2) + g h_i cos phi_i = tau_i - tau_{i+1}.

The paper prints no data for this arm; those of `zoo.planar3` are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor import dynamics, zoo
from torsor.motion import Cycloid, simulate
from torsor.theory.papers.rows import AGREES, Row, identity

Array = NDArray[Any]

DURATION, SAMPLES = 2.5, 26  # beyond, both motions multiply any difference by ten every 0.3 s
TIGHT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
# Two integrations to 1e-12, after the growth of their differences.
MATCH = 1e-7
LENGTHS, MASSES, GRAVITY = np.array([0.5, 0.4, 0.3]), np.array([3.0, 2.0, 1.0]), 9.81
CENTRES = LENGTHS / 2
MOMENTS = np.array([0.063175, 0.027117, 0.007725])  # solid cylinders, about a transverse axis


def explicit_accelerations(theta: Array, rate: Array, tau: Array) -> Array:
    """The joint accelerations by the explicit equations."""
    beyond = np.array([MASSES[k + 1 :].sum() for k in range(3)])
    h = MASSES * CENTRES + LENGTHS * beyond
    a = np.triu(np.outer(LENGTHS, h), 1)
    a = a + a.T + np.diag(MOMENTS + MASSES * CENTRES**2 + LENGTHS**2 * beyond)
    phi, turning = np.cumsum(theta), np.cumsum(rate)
    apart = phi[:, None] - phi
    forces = tau - np.append(tau[1:], 0.0) - (a * np.sin(apart)) @ turning**2 - GRAVITY * h * np.cos(phi)
    return np.diff(np.linalg.solve(a * np.cos(apart), forces), prepend=0.0)


def explicit_motion(law: Callable[[float], Array], times: Array) -> Array:
    """theta at the times, from rest at theta = 0, with the torques law(t)."""
    from scipy.integrate import solve_ivp

    def rate(t: float, y: Array) -> Array:
        return np.concatenate([y[3:], explicit_accelerations(y[:3], y[3:], law(t))])

    run = solve_ivp(rate, (0.0, times[-1]), np.zeros(6), method="DOP853", t_eval=times, **TIGHT)
    return run.y[:3].T


def rows() -> Iterator[Row]:
    model = zoo.planar3()
    rng = np.random.default_rng(0)
    q, v, tau = rng.uniform(-3, 3, (3, 100, 3))
    explicit = np.array([explicit_accelerations(*state) for state in zip(q, v, tau)])
    found = dynamics.forward_dynamics(model, q, v, tau, method="udut")
    yield identity("4, three-DoF arm", "accelerations by UDU', 100 states, and explicitly", found, explicit)
    path = Cycloid(np.zeros(3), np.full(3, np.pi), 10.0)

    def follow(t: float, *state: Array) -> Array:
        """The torques of the motion of Eq. 18, from the start to pi."""
        return dynamics.inverse_dynamics(model, *path(t))

    times = np.linspace(0.0, DURATION, SAMPLES)
    for name, law, forces in (("free fall", lambda t: np.zeros(3), ()), ("forced", follow, follow)):
        options: dict[str, Any] = {"method": "dop853", "dynamics": "udut", "dt": DURATION / (SAMPLES - 1), **TIGHT}
        run = simulate(model, np.zeros(3), duration=DURATION, forces=forces, **options)
        apart = float(np.abs(run.q - explicit_motion(law, times)).max())
        yield Row("4, three-DoF arm", f"{name}, {DURATION:g} s by UDU', and explicitly", "exactly match", "match",
                  f"{apart:.0e} rad", AGREES, apart <= MATCH)  # fmt: skip
