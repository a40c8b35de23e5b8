"""Joints that follow others: the projected dynamics, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from peers.robot_files import PinocchioFile, random_state

import torsor as ts
from torsor.dynamics.couplings import coupled, coupling_matrix
from torsor.errors import ArgumentError
from torsor.model.extras import Coupling, Extras
from torsor.simulate import METHODS

FEATURES = Path(__file__).parent / "robots" / "features.urdf"
ROUNDING = 1e-11


def gears(ratio=-3.0, offset=0.2, **options):
    """Two rotors on parallel axes, the second geared to the first."""
    model = ts.Model.tree(
        [-1, -1], mass=1, inertia=[np.diag([1, 1, 2.0]), np.diag([1, 1, 0.5])], p=[[0, 0, 0], [1, 0, 0]]
    )
    return replace(model, extras=Extras(couplings=(Coupling(1, 0, ratio, offset),)), **options)


def test_a_gear_adds_the_square_of_its_ratio():
    """(I_1 + r^2 I_2) a = tau_1 + r tau_2"""
    qdd = ts.forward_dynamics(gears(), [0.1, -0.1], [0, 0], [1.0, 2.0])
    np.testing.assert_allclose(qdd[0], (1.0 - 3 * 2.0) / (2.0 + 9 * 0.5), rtol=1e-14)
    np.testing.assert_allclose(qdd[1], -3 * qdd[0], rtol=1e-14)


def test_accelerations_are_those_of_the_projected_equations_of_pinocchio():
    model, peer = replace(ts.load(FEATURES), armature=0.0), PinocchioFile(FEATURES, "fixed")
    rng = np.random.default_rng(5)
    state = random_state(peer.kinds, rng)
    for joint, leader, ratio, offset in (("grip2", "grip", -1, 0), ("curl2", "grip", -0.5, 0.1)):
        state[joint] = ratio * state[leader][0] + offset, ratio * state[leader][1]
    M, bias, _ = peer.terms(state, model.joint_names)
    q, v = (np.concatenate([state[name][k] for name in model.joint_names]) for k in (0, 1))
    np.testing.assert_allclose(q, coupled(model, q), atol=1e-15)
    tau = rng.normal(size=model.nv)
    kept = [k for k, name in enumerate(model.joint_names) if name not in ("grip2", "curl2")]
    free = np.concatenate([np.arange(model.v_start[k], model.v_start[k + 1]) for k in kept])
    G = np.zeros((model.nv, len(free)))
    G[free, np.arange(len(free))] = 1
    at = dict(zip(model.joint_names, model.v_start))
    grip = free.tolist().index(at["grip"])
    G[at["grip2"], grip], G[at["curl2"], grip] = -1, -0.5
    np.testing.assert_array_equal(coupling_matrix(model), G)
    exact = G @ np.linalg.solve(G.T @ M @ G, G.T @ (tau - bias))
    qdd = ts.forward_dynamics(model, q, v, tau)
    np.testing.assert_allclose(qdd, exact, atol=ROUNDING * np.abs(exact).max())
    np.testing.assert_allclose(ts.forward_dynamics(model, np.stack([q] * 3), v, tau)[1], qdd, rtol=1e-12)
    assert not np.allclose(ts.forward_dynamics(model.uncoupled(), q, v, tau), qdd)


def pendulums():
    """A double pendulum whose second angle is minus half its first, plus 0.3."""
    model = ts.Model.chain(
        n=2, axis=(0, 1, 0), mass=1, com=(0, 0, -0.5), inertia=(0.1, 0.1, 0.02), p=[[0, 0, 0], [0, 0, -1]]
    )
    return replace(model, extras=Extras(couplings=(Coupling(1, 0, -0.5, 0.3),)))


@pytest.mark.parametrize("method", [name for name, kind in METHODS.items() if kind.adaptive])
def test_a_simulation_stays_on_its_couplings_and_keeps_its_energy(method):
    model = pendulums()
    run = ts.simulate(model, coupled(model, np.array([1.0, 0])), duration=1.0, method=method, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(run.q[:, 1], -0.5 * run.q[:, 0] + 0.3, atol=1e-10)
    np.testing.assert_allclose(run.v[:, 1], -0.5 * run.v[:, 0], atol=1e-9)
    np.testing.assert_allclose(run.energy, run.energy[0], atol=1e-4)
    assert np.ptp(run.q[:, 0]) > 0.5


def test_a_simulation_starts_on_its_couplings():
    model = pendulums()
    assert ts.simulate(model, duration=0.01).q[0, 1] == 0.3
    with pytest.raises(ArgumentError, match=r"q0: joint 'link2' follows 'link1', so it must be -0\.2, not 0"):
        ts.simulate(model, [1.0, 0.0], duration=0.1)
    with pytest.raises(ArgumentError, match="v0: joint 'link2' follows 'link1'"):
        ts.simulate(model, [0.0, 0.3], [1.0, 0.0], duration=0.1)


def test_what_knows_no_couplings_says_so():
    model = gears()
    state = [0.0, 0.2], [0.0, 0.0], [1.0, 0.0]
    for refused in (
        lambda: ts.compile(model, ts.forward_dynamics),
        lambda: ts.compile(model, ts.constraint_forces),
        lambda: ts.constraint_forces(model, *state),
        lambda: ts.rollout(model, *np.array(state[:2]), steps=2, dt=0.1),
        lambda: ts.forward_dynamics(model, *state, method="articulated"),
        lambda: ts.simulate(model, [0.0, 0.2], duration=0.1, method="verlet", step=0.01),
    ):
        with pytest.raises(ArgumentError, match="coupled joints"):
            refused()
    assert np.isfinite(ts.forward_dynamics(model.uncoupled(), *state)).all()


def test_a_coupled_model_shares_no_programs_with_a_free_one():
    model, state = gears(), (np.array([0.0, 0.2]), np.zeros(2), np.array([1.0, 0.0]))
    free = ts.forward_dynamics(model.uncoupled(), *state)
    assert model.key != model.uncoupled().key
    assert not np.array_equal(ts.forward_dynamics(model, *state), free)
    np.testing.assert_array_equal(ts.forward_dynamics(model.uncoupled(), *state), free)


def test_external_wrenches_and_single_precision():
    model = gears(offset=0.0)
    wrench = np.zeros((2, 6))
    wrench[1, 2] = 2.0
    pushed = ts.forward_dynamics(model, [0.0, 0], [0.0, 0], [0.0, 0], external=wrench)
    np.testing.assert_allclose(pushed, ts.forward_dynamics(model, [0.0, 0], [0.0, 0], [0.0, 2.0]))
    single = ts.forward_dynamics(model, *np.array([[0, 0], [0, 0], [1, 0]], dtype=np.float32))
    assert single.dtype == np.float32


@pytest.mark.parametrize(
    "couplings",
    [
        [Coupling(0, 0)], [Coupling(5, 0)], [Coupling(1, 0), Coupling(1, 0)], [Coupling(1, 0), Coupling(0, 1)],
        [Coupling(1, 0, np.nan)], [(1, 0)], 3, [Coupling("a", "b")],
    ],
)  # fmt: skip
def test_couplings_that_cannot_be_are_refused(couplings):
    with pytest.raises(ts.ModelError):
        replace(gears(), extras=Extras.of({"couplings": couplings}))
