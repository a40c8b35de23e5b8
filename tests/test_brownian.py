"""Brownian dynamics against closed forms: weights, diffusion, relaxation; small samples, five standard errors."""

from dataclasses import replace

import cuda_host
import fake_cupy
import numpy as np
import pytest
from machines import difference

import torsor as ts
from torsor import zoo
from torsor.algorithms import square_factor
from torsor.backends import gpu
from torsor.backends.cpu import compile_program
from torsor.motion import brownian as module
from torsor.motion.brownian import brownian

ERRORS = 5.0  # standard errors: once in a million runs by chance, and the seeds are fixed
COUNT = 4000


def standard_error(x):
    return ERRORS * np.std(x) / len(x) ** 0.5


# Weights -----------------------------------------------------------------------------------------------------


def rigid_weight(mass, grid):
    """sqrt(det M) of three free masses on two bonds of length 1: x and y, two angles; constants left out."""
    model = zoo.point_chain(2, mass=mass, free=True)
    q = np.zeros((len(grid), 4))
    q[:, 3] = grid
    x = np.zeros((len(grid), 3, 2, 4))  # d(positions)/dq
    x[:, :, 0, 0] = x[:, :, 1, 1] = 1
    for k in (1, 2):
        bond = np.where(k == 1, 0.0, grid)
        normal = np.stack([-np.sin(bond), np.cos(bond)], axis=-1)
        x[:, k:, :, 2] += normal[:, None]
        if k == 2:
            x[:, k:, :, 3] += normal[:, None]
    M = np.einsum("gkij,k,gkil->gjl", x, mass, x)
    assert np.allclose(M, ts.mass_matrix(model, q))
    return np.sqrt(np.linalg.det(M))


@pytest.mark.parametrize("how", ["rigid", "stiff", "fixman_force", "rigid, beads", "stiff, beads"])
def test_chains_visit_angles_with_their_weight(how):
    """Three free masses: rigid bonds weigh sqrt(det M(theta_2)), stiff ones not at all, whatever the friction is."""
    mass = np.array([1.0, 0.8, 2.0])
    model = zoo.point_chain(2, mass=mass, free=True)
    grid = np.linspace(-np.pi, np.pi, 401)[:-1]
    corrected = not how.startswith("rigid")
    weight = np.ones_like(grid) if corrected else rigid_weight(mass, grid)
    start = np.concatenate([np.zeros((COUNT, 2)), np.random.default_rng(1).uniform(-np.pi, np.pi, (COUNT, 2))], axis=1)
    options = {"stiff": how.startswith("stiff")}
    if how == "fixman_force":
        options["forces"] = lambda q: ts.fixman_force(model, q)
    if how.endswith("beads"):
        options["friction"] = zoo.point_chain(2, mass=[0.7, 1.5, 0.5], free=True)
    run = brownian(model, start, steps=250, step=0.004, every=50, rng=0, **options)
    assert run.shape == (5, COUNT, 4)
    for k in (1, 2):
        expected = (weight * np.cos(k * grid)).sum() / weight.sum()
        means = np.cos(k * run[2:, :, -1]).mean(axis=0)
        assert abs(means.mean() - expected) < standard_error(means) + 0.004
    if not corrected:
        assert abs(expected) > standard_error(means) + 0.004  # the test can tell the two apart


@pytest.mark.parametrize("joint", ["gimbal", "spherical"])
def test_a_body_that_turns_freely_takes_every_orientation(joint):
    """The z axis of the body: <z^2> = 1/3. On a gimbal, all second angles would be alike without the right weight."""
    body = ts.Model.chain(joint, mass=1.0, inertia=(1.0, 1.2, 1.4), n=1)
    start = np.broadcast_to(body.neutral(), (COUNT, body.nq))
    z = ts.body_poses(body, brownian(body, start, steps=100, step=0.02, rng=3, every=25)[1:])[..., 0, 2, 2] ** 2
    means = z.mean(axis=0)
    assert abs(means.mean() - 1 / 3) < standard_error(means) + 0.01


# Diffusion and relaxation ------------------------------------------------------------------------------------


def test_a_sphere_on_a_ball_joint_turns_by_debyes_law():
    """<u(t) . u(0)> = exp(-2 kT t / zeta)"""
    kT, zeta, t = 0.7, 2.0, 0.8
    body = ts.Model.chain("spherical", mass=1.0, inertia=(1.0, 2.0, 2.5), n=1)
    drag = replace(body, inertia=zeta * np.eye(3)[None])
    start = np.broadcast_to(body.neutral(), (COUNT, 4))
    end = brownian(body, start, steps=40, step=t / 40, kT=kT, friction=drag, stiff=True, rng=5, every=40)[-1]
    assert np.allclose(np.linalg.norm(end, axis=-1), 1)
    along = ts.body_poses(body, end)[:, 0, 2, 2]
    assert abs(along.mean() - np.exp(-2 * kT * t / zeta)) < standard_error(along)


@pytest.mark.parametrize("beads", [np.ones(4), np.array([0.5, 2.0, 1.0, 0.2])])
def test_the_centre_of_a_chain_diffuses_with_the_sum_of_its_frictions(beads):
    """Without hydrodynamic interaction Kirkwood's D is kT / sum zeta, of the centre of friction, rigid bonds or not."""
    model = zoo.point_chain(3, mass=[1.0, 0.7, 1.3, 0.9], free=True)
    drag = zoo.point_chain(3, mass=beads, free=True)
    q = np.zeros((COUNT, model.nq))
    q[:, 3:] = 0.4
    end = brownian(model, q, steps=30, step=0.01, kT=0.6, friction=drag, rng=2, every=30)[-1]
    squares = ((ts.center_of_mass(drag, end) - ts.center_of_mass(drag, q)) ** 2).sum(axis=-1)
    expected = 4 * 0.6 / beads.sum() * 0.3
    assert abs(squares.mean() - expected) < standard_error(squares)


def test_beads_are_points_with_friction_at_the_mass_centres():
    """Chains on a base: beads are the model with frictions as masses, and the same noise gives the same path."""
    model, beads = zoo.point_chain(3, mass=[1.0, 0.7, 1.3]), [0.5, 2.0, 1.0]
    q = np.full((2, 3), 0.3)
    paths = [brownian(model, q, steps=5, step=0.01, friction=x, rng=1) for x in (beads, zoo.point_chain(3, mass=beads))]
    assert np.array_equal(*paths)


def test_modes_of_a_rouse_chain_relax_with_their_times():
    """Beads on springs k on a line: tau_p = zeta / (4 k sin^2(p pi / 2N)) of mode p, <X_p^2> = kT tau_p / zeta."""
    n, k, zeta, kT, lag = 6, 1.5, 0.8, 0.5, 0.25
    rouse = ts.Model.tree([-1] * n, "prismatic", mass=1.0, inertia=(1.0, 1.0, 1.0))
    mode = np.cos(np.pi * (np.arange(n) + 0.5)[:, None] * np.arange(1, n) / n) * np.sqrt(2 / n)  # orthonormal
    tau = zeta / (4 * k * np.sin(np.arange(1, n) * np.pi / (2 * n)) ** 2)
    laplace = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    laplace[0, 0] = laplace[-1, -1] = 1
    start = (np.random.default_rng(0).normal(size=(COUNT, n - 1)) * np.sqrt(kT * tau / zeta)) @ mode.T
    end = brownian(
        rouse,
        start,
        steps=100,
        step=lag / 100,
        kT=kT,
        friction=[zeta] * n,
        forces=lambda q: -k * q @ laplace,
        rng=1,
        every=100,
    )[-1]
    before, after = start @ mode, end @ mode
    for p in range(n - 1):
        product = before[:, p] * after[:, p] / (kT * tau[p] / zeta)
        assert abs(product.mean() - np.exp(-lag / tau[p])) < standard_error(product) + 0.02


def by_hand(model, drag, q, xi, kT, step, stiff, torque):
    """One step in NumPy, with matrices; xi: white noise."""
    noise = np.sqrt(2 * kT / step) * compile_program(square_factor.apply, drag)(q, xi)
    weight = ts.log_det_gradient(model, q)
    force = noise + torque + (kT / 2 * weight + ts.fixman_force(model, q, kT=kT) * stiff)
    rate = np.linalg.solve(ts.mass_matrix(drag, q), force[..., None])[..., 0]
    middle = model.integrate(q, step / 2 * rate)
    rate = np.linalg.solve(ts.mass_matrix(drag, middle), force[..., None])[..., 0]
    return model.integrate(q, step * rate)


MACHINES = {
    "gimbals": lambda: zoo.random_chain(3, 5, joints=("gimbal", "revolute")),
    "every joint": lambda: zoo.random_tree(9, 4),
    "quaternions": lambda: zoo.random_chain(3, 5, joints=("spherical", "free")),
    "points in space": lambda: ts.Model.chain("universal", n=3, p=(1, 0, 0), mass=[1.0, 2.0, 0.5], com=(1, 0, 0),
                                              inertia=np.zeros((3, 3)), allow_degenerate=True),
    "one joint": lambda: zoo.pendulum(),
}  # fmt: skip


ON_GPU = pytest.param("cuda", (2, 3), marks=pytest.mark.slow)


def on_stand_in(monkeypatch):
    """Arrays of this CuPy lie on a GPU, although they are NumPy's."""
    cupy = fake_cupy.Cupy()
    fake_cupy.install(monkeypatch, cupy)
    monkeypatch.setattr(module, "gpu_array", gpu.on_device)
    return cupy


@pytest.mark.parametrize("stiff", [False, True])
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize(("device", "size"), [("cpu", ()), ("cpu", (1,)), ("cpu", (2, 3)), ON_GPU], ids=str)
def test_steps_are_those_of_matrices(name, stiff, device, size, monkeypatch):
    """Straight-line code and pieces on the CPU; on a GPU's text that runs on the host. The noise is the same."""
    model = MACHINES[name]()
    q = model.random_configuration(1, size=size)
    drag, torque, kT, step = model, 0.3 * np.ones(model.nv), 0.4, 1e-3
    expected, rng = q, np.random.default_rng(7)
    for _ in range(4):
        expected = by_hand(model, drag, expected, rng.standard_normal((*size, model.nv)), kT, step, stiff, torque)
    on_gpu = device == "cuda"
    if on_gpu:
        on_stand_in(monkeypatch)
    start = fake_cupy.on_device(q) if on_gpu else q
    options = {"steps": 4, "step": step, "kT": kT, "stiff": stiff, "every": 2, "rng": 7}
    found = brownian(model, start, forces=ts.Constant(torque), **options)
    assert found.shape == (2, *size, model.nq)
    assert (on_gpu and not cuda_host.compiler()) or difference(np.array(found)[-1], expected) < 1e-9
    if device == "cpu":
        called = brownian(model, start, forces=lambda q: torque + 0 * q[..., :1], **options)
        assert difference(called, found) < 1e-12


def test_blocks_chunks_and_records_do_not_change_the_path(monkeypatch):
    """Of replicas in threads, and of steps whose noise is drawn at once."""
    q = np.random.default_rng(0).normal(size=(7, 2))
    springs = ts.Spring(np.linspace(1.0, 2.0, 7)[:, None] * np.ones(2), 0.3)  # one stiffness per replica
    options = {"steps": 23, "step": 0.01, "rng": 3, "forces": springs}
    whole = brownian(CHAIN, q, every=1, **options)
    monkeypatch.setattr(module, "CHUNK", 3)
    monkeypatch.setattr(module, "MOST_NUMBERS", 4 * 7 * 6)
    for every in (1, 5, 23):
        assert np.array_equal(brownian(CHAIN, q, every=every, **options), whole[every - 1 :: every])
    cupy = on_stand_in(monkeypatch)
    found = brownian(CHAIN, fake_cupy.on_device(q), every=5, **options)
    assert cupy.functions
    assert not cuda_host.compiler() or difference(np.array(found), whole[4::5]) < 1e-12


def test_no_replica_and_what_cannot_act():
    assert brownian(CHAIN, np.zeros((0, 2)), steps=2, step=0.1).shape == (2, 0, 2)
    assert brownian(CHAIN, np.zeros((3, 2), np.float32), steps=2, step=0.01, rng=0).dtype == np.float64
    for force in (ts.Table([0.0, 1.0], np.zeros((2, 2))), ts.ComputedTorque(np.zeros(2), 1.0, 1.0)):
        with pytest.raises(ts.ArgumentError, match="torques at joints that do not change"):
            brownian(CHAIN, np.zeros(2), steps=1, step=0.1, forces=force)
    with pytest.raises(ts.ArgumentError, match=r"forces for \(4,\) replicas, but q has \(\)"):
        brownian(CHAIN, np.zeros(2), steps=1, step=0.1, forces=ts.Spring(np.ones((4, 2))))


def test_forces_and_replicas():
    model = zoo.point_chain(2)
    spring = brownian(model, np.zeros((500, 2)), steps=300, step=0.01, kT=0.05, stiff=True, forces=lambda q: -q, rng=2)
    assert abs(np.mean(spring[-100:] ** 2) - 0.05) < 0.01  # <q^2> = kT / k
    one = brownian(model, np.zeros(2), steps=3, step=0.01, rng=2)
    assert one.shape == (3, 2)
    free = zoo.random_chain(6, 3, joints=None)
    run = brownian(free, free.random_configuration(0, size=(2, 3)), steps=4, step=1e-4, every=2, rng=0, stiff=True)
    assert run.shape == (2, 2, 3, free.nq)
    free.check_quaternions(run)


CHAIN = zoo.point_chain(2)
REFUSED = {
    "no steps": (lambda: brownian(CHAIN, np.zeros(2), steps=0, step=0.1), "steps"),
    "no time": (lambda: brownian(CHAIN, np.zeros(2), steps=1, step=0.0), "step"),
    "cold": (lambda: brownian(CHAIN, np.zeros(2), steps=1, step=0.1, kT=-1), "kT"),
    "shape": (lambda: brownian(CHAIN, np.zeros(3), steps=1, step=0.1), "q has shape"),
    "friction": (lambda: brownian(CHAIN, np.zeros(2), steps=1, step=0.1, friction=[1.0]), "2 numbers, one per body"),
    "negative": (lambda: brownian(CHAIN, np.zeros(2), steps=1, step=0.1, friction=[1.0, -1.0]), "none negative"),
    "other machine": (
        lambda: brownian(CHAIN, np.zeros(2), steps=1, step=0.1, friction=zoo.point_chain(3)), "must have the joints",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_named(name):
    call, words = REFUSED[name]
    with pytest.raises(ts.ArgumentError, match=words):
        call()


def test_no_friction_and_steps_that_are_too_long_end_with_a_word():
    with pytest.raises(ts.TorsorError, match="link2"):
        brownian(CHAIN, np.full(2, 0.3), steps=1, step=0.1, friction=[1.0, 0.0])
    with pytest.raises(ts.SingularError, match="steps shorter"), np.errstate(all="ignore"):
        brownian(CHAIN, np.full(2, 0.3), steps=900, step=5.0, forces=lambda q: -1e6 * q, stiff=True, rng=0)
