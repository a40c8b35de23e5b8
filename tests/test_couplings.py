"""Joints that follow others: the projected dynamics, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from peers.robot_files import PinocchioFile, random_state

import torsor as ts
from torsor.dynamics import couplings as dense
from torsor.errors import ArgumentError
from torsor.model.extras import Coupling, Extras
from torsor.motion.integrators import METHODS

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
    np.testing.assert_allclose(q, model.coupled(q), rtol=0, atol=1e-15)
    tau = rng.normal(size=model.nv)
    kept = [k for k, name in enumerate(model.joint_names) if name not in ("grip2", "curl2")]
    free = np.concatenate([np.arange(model.v_start[k], model.v_start[k + 1]) for k in kept])
    G = np.zeros((model.nv, len(free)))
    G[free, np.arange(len(free))] = 1
    at = dict(zip(model.joint_names, model.v_start))
    grip = free.tolist().index(at["grip"])
    G[at["grip2"], grip], G[at["curl2"], grip] = -1, -0.5
    np.testing.assert_array_equal(model.coupling_matrix(), G)
    exact = G @ np.linalg.solve(G.T @ M @ G, G.T @ (tau - bias))
    qdd = ts.forward_dynamics(model, q, v, tau)
    np.testing.assert_allclose(qdd, exact, rtol=0, atol=ROUNDING * np.abs(exact).max())
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
    run = ts.simulate(model, model.coupled(np.array([1.0, 0])), duration=1.0, method=method, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(run.q[:, 1], -0.5 * run.q[:, 0] + 0.3, rtol=0, atol=1e-10)
    np.testing.assert_allclose(run.v[:, 1], -0.5 * run.v[:, 0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(run.energy, run.energy[0], rtol=0, atol=1e-4)
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
        lambda: ts.compile(model, ts.constraint_forces),
        lambda: ts.constraint_forces(model, *state),
        lambda: ts.log_det_gradient(model, state[0]),
        lambda: ts.mass_factor(model, state[0]).log_det,
        lambda: ts.operational_space(model, state[0], [1]).inertia,
        lambda: ts.forward_dynamics(model, *state, method="articulated"),
        lambda: ts.mass_solve(model, *state[:2], method="fixman"),
        lambda: ts.ensemble(model, {"*.mass": ts.Uniform(low=1, high=2)}, n=2, duration=0.1, store="none.zarr"),
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


@pytest.mark.parametrize("ratio", [-3.0, 2.0])
def test_batches_of_other_couplings_share_no_programs(ratio):
    machines = ts.ModelBatch(gears(ratio, 0.0), mass=np.array([[1.0, 1.0], [2.0, 2.0]]))
    state, exact = (np.zeros(2), np.zeros(2)), (1.0 + 2.0 * ratio) / (2.0 + 0.5 * ratio**2)
    found = ts.forward_dynamics(machines, *state, [1.0, 2.0])
    np.testing.assert_allclose(found[:, 0], exact, rtol=1e-14)
    after = ts.rollout(machines, *state, forces=ts.Constant([1.0, 2.0]), steps=1, step=1.0).v[:, 0, 0]
    np.testing.assert_allclose(after, exact, rtol=1e-14)


def test_external_wrenches_and_single_precision():
    model = gears(offset=0.0)
    wrench = np.zeros((2, 6))
    wrench[1, 2] = 2.0
    pushed = ts.forward_dynamics(model, [0.0, 0], [0.0, 0], [0.0, 0], external=wrench)
    np.testing.assert_allclose(pushed, ts.forward_dynamics(model, [0.0, 0], [0.0, 0], [0.0, 2.0]))
    single = ts.forward_dynamics(model, *np.array([[0, 0], [0, 0], [1, 0]], dtype=np.float32))
    assert single.dtype == np.float32


def hand(free=False):
    """A branching machine with revolute and prismatic joints, three of which follow others; perhaps on a free base."""
    joints = ["free" if free else "prismatic", "revolute", "revolute", "prismatic", "revolute", "prismatic", "revolute"]
    like = ts.zoo.random_tree(7, 1, joints=("revolute",))
    links = {key: getattr(like, key) for key in ("R", "p", "axis", "mass", "com", "inertia")}
    couplings = (Coupling(3, 1, -2.0, 0.1), Coupling(5, 1, 0.5), Coupling(2, 6))
    return replace(ts.Model.tree(like.parent, joints, armature=0.1, **links), extras=Extras(couplings=couplings))


def obeying_state(model, rng, size=()):
    G = model.coupling_matrix()
    q = model.coupled(model.random_configuration(rng, size=size))
    return q, rng.normal(size=(*size, G.shape[1])) @ G.T, rng.normal(size=(*size, model.nv))


def projection(model, q):
    G, M = model.coupling_matrix(), ts.mass_matrix(model, q)
    return G @ np.linalg.inv(G.T @ M @ G) @ G.T


@pytest.mark.parametrize("free", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["fixed", "free"])
def test_everything_that_inverts_M_obeys_the_couplings(free):
    """P = G (G' M G)^-1 G' stands for M^-1; the oracle is dense, of the functions of the tree."""
    model, rng = hand(free), np.random.default_rng(2)
    for size in ((), (3,), (2, 0)):
        q, v, tau = obeying_state(model, rng, size)
        P, bias = projection(model, q), ts.bias_forces(model, q, v)
        qdd = np.einsum("...ij,...j", P, tau - bias)
        for found, exact in (
            (ts.forward_dynamics(model, q, v, tau), qdd),
            (ts.compile(model, ts.forward_dynamics)(q, v, tau), qdd),
            (dense.coupled_accelerations(model, q, v, tau), qdd),
            (ts.mass_solve(model, q, tau), np.einsum("...ij,...j", P, tau)),
            (ts.inverse_mass_matrix(model, q), P),
            (dense.coupled_inverse(model, q), P),
        ):
            np.testing.assert_allclose(found, exact, rtol=0, atol=ROUNDING * max(1, np.abs(exact).max(initial=0)))
        G = model.coupling_matrix()
        log_det = np.linalg.slogdet(G.T @ ts.mass_matrix(model, q) @ G)[1]
        np.testing.assert_allclose(ts.log_det_mass_matrix(model, q), log_det, rtol=1e-12)
        np.testing.assert_allclose(dense.coupled_log_det(model, q), log_det, rtol=1e-12)
        # inverse dynamics is that of the tree; its torques cause these accelerations
        again = ts.forward_dynamics(model, q, v, ts.inverse_dynamics(model, q, v, qdd))
        np.testing.assert_allclose(again, qdd, rtol=0, atol=ROUNDING * max(1, np.abs(qdd).max(initial=0)))


def test_added_inertia_external_wrenches_and_long_doubles():
    model, rng = hand(), np.random.default_rng(3)
    q, v, tau = obeying_state(model, rng)
    added, wrench, G = rng.uniform(0, 1, model.nv), rng.normal(size=(model.n, 6)), model.coupling_matrix()
    M = ts.mass_matrix(model, q) + np.diag(added)
    b = tau - ts.bias_forces(model, q, v, external=wrench)
    exact = G @ np.linalg.solve(G.T @ M @ G, G.T @ b)
    found = ts.forward_dynamics(model, q, v, tau, external=wrench, added_inertia=added)
    np.testing.assert_allclose(found, exact, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(ts.mass_solve(model, q, b, added_inertia=added), exact, rtol=0, atol=ROUNDING)
    long = ts.forward_dynamics(model, *(x.astype(np.longdouble) for x in (q, v, tau)))
    assert long.dtype == np.longdouble
    np.testing.assert_allclose(ts.forward_dynamics(model, q, v, tau), long.astype(float), rtol=0, atol=ROUNDING)


def test_derivatives_are_those_of_differences():
    """Every derivative, against central differences of the dense projection."""
    model, rng = hand(), np.random.default_rng(4)
    q, v, tau = obeying_state(model, rng)
    step, unit = 1e-6, np.eye(model.nv)
    rows = [(q + s * step * unit, v, tau) for s in (1, -1)], [(q, v + s * step * unit, tau) for s in (1, -1)]
    dq, dv = ((dense.coupled_accelerations(model, *up) - dense.coupled_accelerations(model, *down)).T / (2 * step)
              for up, down in rows)  # fmt: skip
    D = ts.forward_dynamics_derivatives(model, q, v, tau)
    scale = max(1, np.abs(dq).max())
    for found, exact in ((D.dq, dq), (D.dv, dv), (D.dtau, projection(model, q))):
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-7 * scale)
    x = rng.normal(size=model.nv)
    pulled = ts.vjp(ts.forward_dynamics)(model, q, v, tau, x)
    for found, exact in zip(pulled, (D.dq, D.dv, D.dtau)):
        np.testing.assert_allclose(found, x @ exact, rtol=0, atol=ROUNDING * scale)
    pushed = ts.jvp(ts.forward_dynamics)(model, q, v, tau, x, 2 * x, 3 * x)
    np.testing.assert_allclose(pushed, D.dq @ x + 2 * D.dv @ x + 3 * D.dtau @ x, rtol=0, atol=10 * ROUNDING * scale)


@pytest.mark.parametrize("method", ["semi-implicit", "rk4", "implicit-euler"])
def test_rollouts_stay_on_the_couplings(method):
    model = replace(pendulums(), damping=0.1)
    q = model.coupled(np.array([[1.0, 0.0], [0.3, 0.0]]))
    path = ts.rollout(model, q, 0 * q, steps=400, step=1e-3, every=100, method=method)
    np.testing.assert_allclose(path.q[..., 1], -0.5 * path.q[..., 0] + 0.3, rtol=0, atol=1e-12)
    run = ts.simulate(model, q[0], duration=0.4, dt=0.1, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(path.q[0], run.q[1:], rtol=0, atol=1e-8 if method == "rk4" else 3e-3)
    with pytest.raises(ArgumentError, match="'link2' follows 'link1'"):
        ts.rollout(model, q + np.array([0, 1e-3]), 0 * q, steps=2, step=0.1)


def test_rollout_gradients_and_batches_of_models():
    model = pendulums()
    q = model.coupled(np.array([[0.7, 0.0]]))
    options = dict(steps=20, step=1e-2, every=20)
    seed = (np.ones((1, 1, 2)), np.zeros((1, 1, 2)))
    found = ts.vjp(ts.rollout, "Constant.tau")(model, q, 0 * q, seed, forces=ts.Constant(np.zeros((1, 2))), **options)
    forces = (ts.Constant(np.array([[s * 1e-5, 0.0]])) for s in (1, -1))
    ends = [ts.rollout(model, q, 0 * q, forces=force, **options).q.sum() for force in forces]
    for slope in (found["Constant.tau"], found.tau.sum(axis=1)):
        np.testing.assert_allclose(slope[0, 0], (ends[0] - ends[1]) / 2e-5, rtol=1e-6)
    heavy = ts.ModelBatch(model, mass=np.stack([model.mass, 2 * model.mass]))
    v, tau = np.array([0.2, -0.1]), np.array([0.3, 0.4])
    alone = [ts.forward_dynamics(heavy[k], q[0], v, tau) for k in range(2)]
    np.testing.assert_allclose(ts.forward_dynamics(heavy, q[0], v, tau), alone, rtol=0, atol=ROUNDING)


def test_large_machines_are_projected_densely(monkeypatch):
    model, rng = hand(), np.random.default_rng(5)
    q, v, tau = obeying_state(model, rng, (2,))
    small = ts.forward_dynamics(model, q, v, tau), ts.inverse_mass_matrix(model, q), ts.log_det_mass_matrix(model, q)
    monkeypatch.setattr("torsor.dynamics.functions.MOST_FREEDOMS", 1)
    other = replace(model, name="other")
    large = ts.forward_dynamics(other, q, v, tau, added_inertia=np.zeros(model.nv)), ts.inverse_mass_matrix(other, q)
    for found, exact in zip((*large, ts.log_det_mass_matrix(other, q)), small):
        np.testing.assert_allclose(found, exact, rtol=0, atol=ROUNDING * max(1, np.abs(exact).max()))


def test_a_coupled_machine_that_moves_nothing_is_refused():
    """Points on their own axes.  One beyond the other has a distance from the first axis, so that M is regular."""
    for distance in (1.0, 0.0):
        points = ts.Model.chain("revolute", p=[(0, 0, 0), (distance, 0, 0)], mass=1, n=2, allow_degenerate=True)
        model = replace(points, extras=Extras(couplings=(Coupling(1, 0),)))
        if distance:
            assert ts.forward_dynamics(model, [0.0, 0], [0.0, 0], [1.0, 0]).tolist() == [1.0, 1.0]
        else:
            with pytest.raises(ts.SingularError):
                ts.forward_dynamics(model, [0.0, 0], [0.0, 0], [1.0, 0])


def test_a_coupled_program_is_written_in_c(tmp_path):
    ts.export(gears(), ts.forward_dynamics, tmp_path / "gears")
    assert any(tmp_path.rglob("*.c"))


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
