"""Simulations whose states are on a GPU, with a stand-in for CuPy: they are those of the host."""

from dataclasses import replace
from functools import partial

import cuda_host
import numpy as np
import pytest
import strict_cupy

from torsor import (
    PD,
    ArgumentError,
    ComputedTorque,
    Constant,
    DeviceError,
    External,
    Feedback,
    Friction,
    Function,
    Limits,
    MovingBase,
    Policy,
    Pull,
    Simulation,
    SingularError,
    Spring,
    Table,
    simulate,
    zoo,
)
from torsor.model import Model
from torsor.model.extras import Coupling, Extras
from torsor.motion import recording
from torsor.motion.device import METHODS as ON_DEVICE
from torsor.motion.device import DeviceMotion
from torsor.motion.integrators import METHODS
from torsor.motion.motion import Motion
from torsor.motion.steps import METHODS as STEPS

ROUNDING = 1e-9  # of levels with something added to their pivots, times what a motion makes of it
LITTLE_ADDED = 1e-8  # the digits that levels keep where little is added to the pivots
UNSTEADY = 1e-6  # where friction and stops begin to act, and adaptive steps end, at a point that rounding moves
slow = partial(pytest.param, marks=pytest.mark.slow)
needs_compiler = pytest.mark.skipif(not cuda_host.compiler(), reason="kernels run on the host through a C++ compiler")


@pytest.fixture
def cupy(monkeypatch):
    monkeypatch.setattr("torsor.backends.gpu.LONG_CHAIN", 6)  # so that short chains go by levels
    return strict_cupy.install(monkeypatch)


def difference(x, y):
    return np.linalg.norm(x - y) / np.linalg.norm(y)


def both(model, cupy, q0, v0, **options):
    """The trajectory of the host, and that of the device."""
    return simulate(model, q0, v0, **options), simulate(model, cupy.asarray(q0), cupy.asarray(v0), **options)


def assert_same(host, device, tolerance=ROUNDING):
    np.testing.assert_allclose(device.t, host.t, rtol=0, atol=tolerance)
    for name in ("q", "v", "a", "tau"):
        mine, other = getattr(device, name), getattr(host, name)
        assert type(mine) is np.ndarray
        np.testing.assert_allclose(mine, other, rtol=0, atol=tolerance * max(1.0, np.abs(other).max()), err_msg=name)


CHAIN = zoo.random_chain(8, 3)
Q, V = 0.3 * np.random.default_rng(1).normal(size=(2, 8))
UP = np.array([0, 0, 0, 0, 0, 1.0])
# The first steps of abm are as long as differences of rounding errors allow: it is the same only to its tolerance.
TOLERANCE = {"abm": 1e-3}


@needs_compiler
@pytest.mark.parametrize("method", ["trbdf2", "dopri5", *map(slow, ("esdirk4", "rkf45", "dop853", "abm", "auto"))])
def test_every_method_on_a_chain_with_springs(method, cupy):
    forces = Spring(20.0, damping=2.0)
    found = both(CHAIN, cupy, Q, V, duration=0.2, dt=0.05, forces=forces, method=method, rtol=1e-4)
    assert_same(*found, TOLERANCE.get(method, ROUNDING))


def pulled(t, q, v):
    """Any function of arrays, wherever they are."""
    return np.sin(q) * (1 + t) - 0.3 * v


def table():
    return Table([0.0, 0.03, 1.0], np.random.default_rng(2).normal(size=(3, 8)))


FORCES = {
    "none": lambda: (),
    "constant": lambda: Constant(np.arange(8.0)),
    "table": table,
    "servo": lambda: PD(np.ones(8), 30.0, 3.0),
    "followed": lambda: PD(lambda t: (np.full(8, t), np.ones(8), np.zeros(8)), 30.0, 3.0),
    "friction": lambda: Friction(0.1, 0.5, creep=0.1),
    "stops": lambda: Limits(-0.1, 0.1),
    "wrenches": lambda: External(np.tile(UP, (8, 1))),
    "wrenches in time": lambda: External([np.tile(k * UP, (8, 1)) for k in (0.0, 1.0)], [0.0, 0.005], "linear"),
    "wrenches of a function": lambda: External(lambda t, q, v: np.broadcast_to(v[..., None], (*v.shape, 6))),
    "gains": lambda: Feedback(np.random.default_rng(5).normal(size=(8, 16)), 0.1),
    "gains in time": lambda: Feedback(np.random.default_rng(5).normal(size=(2, 8, 16)), 0.1, t=[0.0, 0.01]),
    "computed torques": lambda: ComputedTorque(lambda t: (np.full(8, t), np.ones(8), np.zeros(8)), 30.0, 3.0),
    "a policy": lambda: Policy([(np.random.default_rng(6).normal(size=(8, 16)), np.ones(8))]),
    "a moving base": lambda: MovingBase(lambda t: (np.eye(3), np.zeros(6), np.full(6, np.sin(t)))),
    "a function": lambda: pulled,
    "all": lambda: [table(), PD(np.ones(8), 30.0, 3.0), Friction(0.1, 2.0), Limits(-0.1, 0.1),
                    External(np.tile(UP, (8, 1))), pulled, Function(pulled, drive=True)],
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, method) if (k + j) % 13 == 0 else slow(name, method)
        for k, name in enumerate(FORCES)
        for j, method in enumerate(["esdirk4", "dopri5", "semi-implicit", "implicit-euler", "rk4"])
    ],
)
def test_every_force(name, method, cupy):
    """Adaptive steps end where rounding lets them end: rows are compared at given times, and tolerances are so strict
    that one step more or less near a stop does not show.
    """
    options = {"step": 2e-3} if method in STEPS else {"dt": 5e-3, "rtol": 1e-9, "atol": 1e-11}
    found = both(CHAIN, cupy, Q, V, duration=0.02, forces=FORCES[name](), method=method, **options)
    assert_same(*found, ROUNDING if method in STEPS else UNSTEADY)


@needs_compiler
@pytest.mark.parametrize("method", ["implicit-euler", *map(slow, ("semi-implicit", "rk4", "dopri5", "esdirk4"))])
def test_every_joint_under_forces_that_several_programs_find(method, cupy):
    model = zoo.random_tree(5, 1)
    gains = np.random.default_rng(5).normal(size=(model.nv, model.nq + model.nv))
    forces = [Feedback(0.1 * gains, 0.1), Spring(3.0), Pull(model.names[-1], (0, 0, 1.0)), Friction(0.01, creep=1.0)]
    forces += [lambda t, q, v: -0.1 * v, Function(lambda t, q, v: -v, lambda t, q, v: (0.0 * v, 0.0 * v + 1.0))]
    q0, v0 = model.random_configuration(np.random.default_rng(0)), np.full(model.nv, 0.1)
    options = {"step": 2e-3} if method in STEPS else {"dt": 5e-3, "rtol": 1e-9, "atol": 1e-11}
    assert_same(*both(model, cupy, q0, v0, duration=0.01, forces=forces, method=method, **options), ROUNDING)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("method", ["trbdf2", "dopri5"])
def test_drives_keep_to_their_limits(method, cupy):
    model = replace(CHAIN, effort=np.full(8, 5.0), speed=np.full(8, 2.0), damping=np.full(8, 0.5))
    options = dict(forces=PD(np.ones(8), 300.0, 30.0), method=method, rtol=1e-4)
    assert_same(*both(model, cupy, Q, V, duration=0.03, **options), UNSTEADY)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("method", ["trbdf2", "dopri5"])
def test_joints_with_quaternions(method, cupy):
    rng = np.random.default_rng(4)
    model = zoo.random_chain(7, 5, joints=("spherical", "revolute", "free", "universal", "planar"))
    model = replace(model, damping=rng.uniform(0.5, 1.0, model.nv))
    q0, v0 = model.random_configuration(rng), 0.3 * rng.normal(size=model.nv)
    assert_same(*both(model, cupy, q0, v0, duration=0.05, dt=0.01, method=method, rtol=1e-4))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("method", ["trbdf2", "dopri5"])
def test_short_machines_and_trees_by_one_thread(method, cupy, monkeypatch):
    monkeypatch.setattr("torsor.backends.gpu.LONG_CHAIN", 100)
    model = zoo.random_tree(5, 2, joints=("revolute", "prismatic"))
    forces = [Spring(20.0, damping=2.0), External(np.tile(UP, (5, 1)))]
    q0, v0 = 0.3 * np.random.default_rng(3).normal(size=(2, model.nv))
    assert_same(*both(model, cupy, q0, v0, duration=0.05, forces=forces, method=method, rtol=1e-4))


@needs_compiler
@pytest.mark.parametrize("gains", [0.0, 1e-12, 1e-5], ids=["nothing", "almost nothing", "at some joints"])
def test_little_added_to_the_pivots_costs_no_digits(gains, cupy):
    """Levels divide by it: what is too small is raised, and a second solve removes the difference."""
    spring = np.where(np.arange(8) % 3, gains, 0.0)
    found = both(CHAIN, cupy, Q, V, duration=0.1, method="trbdf2", rtol=1e-3, atol=1e-3, forces=Spring(spring))
    assert_same(*found)


@pytest.mark.parametrize("bend", [0.0, 0.7], ids=["straight", "bent"])
def test_one_solve_with_little_added_to_pivots_that_depend_on_the_configuration(bend, cupy):
    """Thin links that turn about themselves: bent, a joint carries ten thousand times as much as straight."""
    rng, axis = np.random.default_rng(3), np.where(np.arange(8)[:, None] % 2, (1.0, 0, 0), (0, 1.0, 0))
    model = Model.chain("revolute", axis=axis, p=(0.5, 0, 0), mass=1.0, com=(0.25, 0, 0), inertia=(1e-5, 2e-2, 2e-2))
    host, device = Motion(model), DeviceMotion(model, (), "auto", "trbdf2")
    q, v, tau = bend + 1e-3 * rng.normal(size=8), *rng.normal(size=(2, 8))
    for added in (np.zeros(8), np.where(np.arange(8) % 3, 1e-3, 0.0), 10 ** rng.uniform(-14, 2, 8), np.full(8, 1e-15)):
        found = device.implicit(0.0, *map(cupy.asarray, (q, v, tau, added))).get()
        solved = device.implicit_solve(*map(cupy.asarray, (q, tau, added))).get()
        assert difference(found, host.implicit(0.0, q, v, tau, added)) < LITTLE_ADDED
        assert difference(solved, host.implicit_solve(q, tau, added)) < LITTLE_ADDED


def test_newton_with_krylov_vectors(cupy):
    """A stiff function of the state that knows no gains."""

    def stiff(t, q, v):
        return -2000.0 * q - 20.0 * v

    assert_same(*both(CHAIN, cupy, Q, V, duration=0.02, forces=stiff, method="trbdf2", rtol=1e-4, atol=1e-5), 1e-7)


@needs_compiler
def test_few_numbers_are_waited_for(cupy):
    model = replace(CHAIN, stiffness=np.full(8, 30.0), damping=np.full(8, 3.0))
    run = Simulation(model, cupy.asarray(Q), method="trbdf2", rtol=1e-3, dense=False, keep=["q.link8"], dt=10.0)
    run.step()
    strict_cupy.WAITS.clear()
    before = run.stepper.evaluations
    for _ in range(10):
        run.step()
    sweeps = run.stepper.evaluations - before
    assert strict_cupy.WAITS["numbers"] <= 3 * sweeps + 20  # two norms and one test per sweep
    assert strict_cupy.WAITS["copies"] == 0


def test_the_state_of_a_simulation_stays_on_the_device(cupy):
    run = Simulation(CHAIN, v0=cupy.asarray(V), rtol=1e-4)
    run.step()
    assert {type(x) for x in (run.q, run.v)} == {strict_cupy.Array}
    assert run.about["on_gpu"]


def test_events_and_chosen_quantities(cupy):
    options = dict(duration=1.0, method="dopri5", rtol=1e-6, dt=0.01, keep=["q", "energy"])
    host, device = both(CHAIN, cupy, Q, V, stop=lambda t, q, v: q[0] - 0.15, **options)
    assert host.t[-1] < 1.0
    np.testing.assert_allclose(device.t, host.t, rtol=0, atol=1e-9)
    np.testing.assert_allclose(device.values, host.values, rtol=0, atol=1e-7)
    np.testing.assert_allclose(device["q"][-1, 0], 0.15, rtol=0, atol=1e-9)


@needs_compiler
@pytest.mark.parametrize("method", ["trbdf2", *map(slow, ("dopri5", "abm", "auto"))])
def test_a_recorded_run_resumes_on_the_device(method, cupy, tmp_path):
    path, options = tmp_path / "run.traj", dict(method=method, rtol=1e-4, chunk=4)
    forces = Spring(20.0, damping=2.0)
    whole = simulate(CHAIN, cupy.asarray(Q), V, 0.3, forces=forces, **options)
    simulate(CHAIN, cupy.asarray(Q), V, 0.3, forces=forces, file=path, **options)
    found = recording.read(path)
    path.write_bytes(path.read_bytes()[: found.end - 10])  # the last chunk is cut off
    resumed = Simulation.resume(path, model=CHAIN, forces=forces)
    assert resumed.on_gpu
    run = resumed.run(0.3)
    for name in ("t", "q", "v", "a", "tau"):
        np.testing.assert_array_equal(getattr(run, name), getattr(whole, name))
    times = np.linspace(0, 0.3, 20)
    np.testing.assert_array_equal(run.at(times)[0], whole.at(times)[0])


def test_a_run_of_a_gpu_is_not_resumed_without_one(cupy, tmp_path, monkeypatch):
    simulate(CHAIN, cupy.asarray(Q), duration=0.01, file=tmp_path / "run.traj")

    def none():
        raise DeviceError("no CUDA GPU was found")

    monkeypatch.setattr("torsor.backends.gpu.cupy", none)
    with pytest.raises(DeviceError, match="recorded on a GPU, and is resumed on one: no CUDA GPU"):
        Simulation.resume(tmp_path / "run.traj")


REFUSED = {
    **{method: (dict(method=method, step=0.1), "on the host only") for method in METHODS if method not in ON_DEVICE},
    "dynamics": (dict(dynamics="udut"), "dynamics must be 'auto'"),
    "pull": (dict(forces=Pull("link8", (0, 0, 1.0))), "a Pull acts on fewer than 6 links"),
    "a force of the host": (dict(forces=lambda t, q, v: np.zeros(8)), r"must be an array of CuPy .* \(8,\) numbers"),
    "a short force": (dict(forces=lambda t, q, v: v[:3]), r"must be an array of CuPy .* \(8,\) numbers"),
    "a wrong size": (dict(v0=np.zeros(3)), "v0 must be 8"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_on_a_device_is_named(name, cupy):
    options, words = REFUSED[name]
    with pytest.raises(ArgumentError, match=words):
        Simulation(CHAIN, cupy.asarray(Q), **options)


@pytest.mark.parametrize("force", [PD, ComputedTorque])
def test_differences_between_orientations_are_refused(force, cupy):
    model = Model.chain("spherical", n=1, mass=1.0, inertia=(1.0, 2.0, 3.0))
    with pytest.raises(ArgumentError, match=f"a {force.__name__} takes between orientations is computed by NumPy"):
        Simulation(model, cupy.asarray(model.neutral()), forces=force(model.neutral(), 1.0, 1.0))


def test_a_chain_that_is_too_uneven_is_refused(cupy, monkeypatch):
    monkeypatch.setattr("torsor.dynamics.calls.agree", lambda *args: False)
    with pytest.raises(SingularError, match="too uneven"):
        simulate(zoo.random_chain(9, 8), cupy.asarray(np.zeros(9)), duration=0.1)


def test_bodies_without_extent_are_named(cupy):
    with pytest.raises(SingularError, match=r"on a GPU, .* 'link1' is .* or simulate with NumPy arrays"):
        simulate(zoo.point_chain(8), cupy.asarray(np.zeros(8)), duration=0.1)


def test_joints_that_follow_others_are_refused(cupy):
    model = replace(CHAIN, extras=Extras(couplings=(Coupling(1, 0, 1.0, 0.0),)))
    with pytest.raises(ArgumentError, match="follow others"):
        Simulation(model, cupy.asarray(np.zeros(8)))
