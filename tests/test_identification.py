"""The torque regressor, base parameters, and inertial parameters from recorded motion."""

from dataclasses import replace

import numpy as np
import pytest
from machines import MACHINES, difference, floating_tree
from peers.pinocchio_peer import PinocchioPeer

import torsor as ts
from torsor import zoo
from torsor.dynamics.identification import SOLVERS, _pseudo_inertia
from torsor.model.joints import JOINTS

ROUNDING = 1e-12
RECOVERED = 3e-7  # base parameters from torques without noise: the pull of the first guess is weighed by 1e-7
DEVIATIONS = 3.0  # of the mean square of 15 to 43 normalised errors; 3 is far beyond chance


def motion(model, count=(), seed=3):
    rng = np.random.default_rng(seed)
    shape = (count, model.nv) if count else (model.nv,)
    q = model.random_configuration(rng, count) if count else model.random_configuration(rng)
    return q, rng.normal(size=shape), rng.normal(size=shape)


def disturbed(model, seed=1):
    """Other bodies on the same joints."""
    rng = np.random.default_rng(seed)
    return replace(
        model, mass=model.mass * rng.uniform(0.5, 2.0, model.n), com=model.com + 0.02 * rng.normal(size=(model.n, 3)),
        inertia=model.inertia * rng.uniform(0.6, 1.8, (model.n, 1, 1)),
    )  # fmt: skip


# The regressor -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joint", JOINTS, ids=lambda joint: joint.name)
def test_torques_are_the_regressor_times_the_parameters(joint):
    model = zoo.random_chain(3, 1, joints=(joint.name,))
    states = motion(model, 4)
    Y = ts.torque_regressor(model, *states)
    assert Y.shape == (4, model.nv, 10 * model.n)
    assert difference(Y @ model.inertial_parameters().ravel(), ts.inverse_dynamics(model, *states)) < ROUNDING


@pytest.mark.parametrize("name", MACHINES)
def test_on_every_machine_in_loops_and_unrolled(name):
    model = MACHINES[name]()
    states = motion(model, 11)
    tau = ts.inverse_dynamics(model, *states)
    for specialised in (True, False) if model.nv < 20 else (False,):
        Y = ts.compile(model, ts.torque_regressor, specialised=specialised)(*states)
        assert difference(Y @ model.inertial_parameters().ravel(), tau) < ROUNDING


@pytest.mark.parametrize(
    "model", [zoo.panda(), zoo.puma560(), zoo.humanoid(), floating_tree()], ids=["Panda", "PUMA", "humanoid", "tree"]
)
def test_the_regressor_is_pinocchios(model):
    peer, states = PinocchioPeer(model), motion(model)
    assert difference(ts.torque_regressor(model, *states), peer.torque_regressor(*states)) < ROUNDING


def test_masses_do_not_matter_to_the_regressor():
    model = zoo.random_tree(4, 3)
    states = motion(model)
    assert np.array_equal(ts.torque_regressor(model, *states), ts.torque_regressor(disturbed(model), *states))


# Parameters --------------------------------------------------------------------------------------------------


def test_parameters_there_and_back():
    model = zoo.random_tree(6, 2)
    pi = model.inertial_parameters()
    back = model.with_inertial_parameters(pi)
    for a, b in ((back.mass, model.mass), (back.com, model.com), (back.inertia, model.inertia)):
        assert difference(a, b) < ROUNDING
    assert model.with_inertial_parameters(pi.ravel()) == back
    pi[1, 0] = -1.0
    with pytest.raises(ts.ModelError, match=r"link2.*mass of -1"):
        model.with_inertial_parameters(pi)
    with pytest.raises(ts.ArgumentError, match="parameters must have shape"):
        model.with_inertial_parameters(pi[:3])


def test_the_pseudo_inertia_of_a_body_that_exists_is_positive():
    P = _pseudo_inertia(zoo.humanoid().inertial_parameters())
    assert (np.linalg.eigvalsh(P) > 0).all()


# Base parameters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [zoo.panda(), zoo.puma560(), zoo.random_tree(5, 2)], ids=["Panda", "PUMA", "tree"])
def test_base_parameters_explain_all_torques_and_are_independent(model):
    base = ts.base_parameters(model)
    states = motion(model, 300, seed=8)
    Y = ts.torque_regressor(model, *states)
    pi = model.inertial_parameters().ravel()
    bodies = ts.inverse_dynamics(model, *states) - model.armature * states[2]
    assert difference(Y[..., base.columns] @ (base.combinations @ pi), bodies) < 1e-10
    W = Y[..., base.columns].reshape(-1, len(base.columns))
    assert np.linalg.matrix_rank(W / np.linalg.norm(W, axis=0), tol=1e-6) == len(base.names)
    assert np.linalg.matrix_rank(Y.reshape(-1, 10 * model.n), tol=1e-8) == len(base.names)


def test_printed_numbers_of_base_parameters():
    """43 for the Panda (Gaz et al. 2019), 36 for a PUMA 560 (Gautier & Khalil 1990); a planar arm by hand."""
    assert len(ts.base_parameters(zoo.panda()).names) == 43
    assert len(ts.base_parameters(zoo.puma_saha()).names) == 36
    assert ts.base_parameters(zoo.planar3()).names[-3:] == ("link3.hx", "link3.hy", "link3.Jzz")
    assert "link2.hx + 0.4 link3.m" in ts.base_parameters(zoo.planar3()).names


# Identification ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("true", [zoo.planar3(), zoo.general_arm(3, 1), zoo.puma560()], ids=["planar", "3R", "PUMA"])
def test_exact_torques_give_the_true_base_parameters(true, solver):
    q, v, qdd = motion(true, 300)
    tau = ts.inverse_dynamics(true, q, v, qdd)
    found = ts.identify(disturbed(true), q, v, qdd, tau, solver=solver)
    expected = found.base.combinations @ true.inertial_parameters().ravel()
    assert found.converged
    assert difference(found.values, expected) < RECOVERED
    assert found.residual.max() < 1e-6 * np.abs(tau).max()
    other = motion(true, 20, seed=11)
    assert difference(ts.inverse_dynamics(found.model, *other), ts.inverse_dynamics(true, *other)) < RECOVERED


@pytest.mark.parametrize("solver", SOLVERS)
def test_noise_is_met_by_errors_of_its_size_and_bodies_that_can_exist(solver):
    true, rng = zoo.puma560(), np.random.default_rng(5)
    q, v, qdd = motion(true, 400)
    tau = ts.inverse_dynamics(true, q, v, qdd)
    noise = 0.02 * np.sqrt(np.mean(tau**2, axis=0))
    found = ts.identify(disturbed(true), q, v, qdd, tau + noise * rng.normal(size=tau.shape), solver=solver)
    expected = found.base.combinations @ true.inertial_parameters().ravel()
    assert np.mean(((found.values - expected) / found.deviations) ** 2) < DEVIATIONS
    assert np.allclose(found.residual, noise, rtol=0.15)
    assert (np.linalg.eigvalsh(_pseudo_inertia(found.parameters)) > 0).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_heavy_noise_where_least_squares_would_give_negative_masses(solver):
    true, rng = zoo.planar3(), np.random.default_rng(2)
    q, v, qdd = motion(true, 12)
    tau = ts.inverse_dynamics(true, q, v, qdd)
    tau = tau + 3.0 * np.std(tau) * rng.normal(size=tau.shape)
    found = ts.identify(disturbed(true), q, v, qdd, tau, noise=3.0 * np.std(tau), solver=solver)
    assert (found.model.mass > 0).all()
    assert (np.linalg.eigvalsh(_pseudo_inertia(found.parameters)) > 0).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_the_motion_does_not_excite_is_said(solver):
    true = zoo.planar3()
    q, v, qdd = motion(true, 50)
    v[:], qdd[:] = 0.0, 0.0  # at rest only gravity acts, and it knows no rotational inertia
    found = ts.identify(disturbed(true), q, v, qdd, ts.inverse_dynamics(true, q, v, qdd), solver=solver)
    unknown = [name for name, deviation in zip(found.base.names, found.deviations) if np.isinf(deviation)]
    assert unknown == [name for name in found.base.names if "Jzz" in name]
    assert difference(found.parameters[:, 9], disturbed(true).inertial_parameters()[:, 9]) < 0.5  # near the guess


@pytest.mark.parametrize("solver", SOLVERS)
def test_torques_of_another_size_are_refused(solver):
    model = zoo.general_arm(3, 0)
    q, v, qdd = motion(model, 20)
    tau, still = ts.inverse_dynamics(model, q, v, qdd), 0.0 * v
    floating = replace(model, gravity=(0.0, 0.0, 0.0))
    for call, message in {
        lambda o: ts.identify(model, q, v, qdd, 0 * tau, **o): "tau: 0 is not of the size of the torques",
        lambda o: ts.identify(model, q, v, qdd, 1e200 * tau, **o): "tau: .*e.200 is not of the size",
        lambda o: ts.identify(model, q, v, qdd, 1e-310 * tau, **o): "tau: .* is not of the size",
        lambda o: ts.identify(model, q, v, 1e300 * qdd, tau, **o): "tau: .* is not of the size|overflows",
        lambda o: ts.identify(model, q, v, qdd, tau, noise=-1, **o): "noise must be standard deviations, not -1",
        lambda o: ts.identify(model, q, v, qdd, tau, noise=[1, -1, 1], **o): "noise must be standard deviations",
        lambda o: ts.identify(model, q, v, qdd, tau, noise=1e300, **o): "noise: 1e.300 is not of the size",
        lambda o: ts.identify(model, q, v, qdd, tau, spread=1e-300, **o): "spread must be from 1e-06 to 1e.06",
        lambda o: ts.identify(floating, q, still, still, tau, **o): "say nothing of the bodies",
    }.items():
        with pytest.raises(ts.ArgumentError, match=message):
            call({"solver": solver})
    one = ts.identify(model, q[0], v[0], qdd[0], tau[0], solver=solver)
    assert one.residual.max() < 1e-6 * np.abs(tau).max()
    assert np.isinf(one.deviations).any()


def test_torques_of_the_wrong_sign_are_refused():
    model = zoo.general_arm(3, 0)
    q, v, qdd = np.random.default_rng(0).normal(size=(3, 50, 3))
    with pytest.raises(
        ts.ArgumentError,
        match=r"bodies that can hardly exist explain these torques best: body 'link.*Check signs and units",
    ):
        ts.identify(model, q, v, qdd, -ts.inverse_dynamics(model, q, v, qdd))


def test_bad_arguments_of_identify_are_named():
    model = zoo.planar3()
    q, v, qdd = motion(model, 5)
    for call, message in {
        lambda: ts.identify(model, q[:0], v[:0], qdd[:0], qdd[:0]): "needs samples",
        lambda: ts.identify(model, q, v, qdd, qdd[:3]): "batch axes",
        lambda: ts.identify(model, q, v, qdd, qdd, spread=0.0): "spread must be greater than 0",
        lambda: ts.identify(model, q, v, qdd, qdd, noise=[1.0, 2.0]): "noise",
        lambda: ts.identify(zoo.point_chain(3), *np.ones((4, 5, 3))): "no mass or no extent",
        lambda: ts.identify(model, q, v, qdd, qdd, solver="cvx"): "solver",
        lambda: ts.identify("planar", q, v, qdd, qdd): "must be a torsor.Model",
    }.items():
        with pytest.raises(ts.ArgumentError, match=message):
            call()
