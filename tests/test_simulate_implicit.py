"""Implicit methods in O(n): orders, stability for any springs, dampers, gains and stops, and what they cost."""

from dataclasses import replace

import numpy as np
import pytest
from machines import torque_of
from scipy.integrate import solve_ivp

import torsor as ts
from torsor import PD, Constant, Friction, Limits, Simulation, Spring, simulate, zoo
from torsor.errors import ArgumentError, SingularError
from torsor.motion import implicit
from torsor.motion.implicit import Esdirk4, TrBdf2, gmres
from torsor.motion.integrators import METHODS
from torsor.motion.motion import Motion
from torsor.motion.stepper import StiffnessWarning

ORDER_SLACK = 0.2
LEFT = 4 * implicit.SETTLED  # the rate of convergence is known from earlier iterations, and to a factor only
ADAPTIVE = {"trbdf2": TrBdf2, "esdirk4": Esdirk4}
each_method = pytest.mark.parametrize("method", ADAPTIVE)
# The first steps are as short as the quickest rate, and then grow: a warning says how short they are.
boundary_layer = pytest.mark.filterwarnings("ignore:steps of.*more are needed:torsor.motion.stepper.StiffnessWarning")


def arm(n=4, seed=1, **freedoms):
    return replace(zoo.random_chain(n, seed), **freedoms)


def spinning(**freedoms):
    """Quaternions: a spherical joint that carries a revolute one."""
    b = ts.Model.builder("spinning")
    b.add("ball", joint="spherical", mass=1.0, com=(0.1, 0.0, -0.3), inertia=(0.02, 0.03, 0.04))
    b.add("arm", parent="ball", joint="revolute", axis=(0, 1, 0), p=(0, 0, -0.5), mass=0.5, com=(0.2, 0, 0),
          inertia=(0.01, 0.01, 0.02))  # fmt: skip
    return replace(b.build(), **freedoms)


def cable(n, length=10.0, EI=0.5, eta=0.01):
    """A cable from horizontal, its bending stiffness and damping per joint growing with the number of links."""
    L = length / n
    axis = np.tile([[0, 1.0, 0], [0, 0, 1.0]], (n // 2 + 1, 1))[:n]
    inertia = L * np.array([5e-5, L * L / 12 + 2.5e-5, L * L / 12 + 2.5e-5])
    p = np.where(np.arange(n)[:, None] > 0, (L, 0.0, 0.0), 0.0)
    return ts.Model.chain("revolute", axis=axis, p=p, mass=L, com=(L / 2, 0, 0), inertia=inertia,
                          stiffness=EI / L, damping=eta / L)  # fmt: skip


# ---- the tableaus ----


@each_method
def test_order_conditions(method):
    """Of the method, of its error estimate, of its dense output, and of the stages (order 2)."""
    t = ADAPTIVE[method].tableau
    A, b, c = t.A, t.A[-1], t.A.sum(axis=1)

    def conditions(b, x=1.0):
        yield [b.sum() - x]
        yield [b @ c - x**2 / 2]
        yield [b @ c**2 - x**3 / 3, b @ A @ c - x**3 / 6]
        yield [b @ c**3 - x**4 / 4, (b * c) @ A @ c - x**4 / 8, b @ A @ c**2 - x**4 / 12, b @ A @ A @ c - x**4 / 24]

    def order(b, x=1.0):
        held = [np.abs(condition).max() < 1e-13 for condition in conditions(b, x)]
        return held.index(False) if False in held else 4

    assert order(b) == t.order
    assert min(order(b), order(b - t.E)) == ADAPTIVE[method].control.power - 1
    for x in (0.3, 0.8, 1.0):
        weights = x ** np.arange(1, len(t.dense) + 1) @ t.dense
        assert order(weights, x) >= t.order - (t.order > 2)
    assert np.allclose(t.dense.sum(axis=0), b, atol=1e-14)
    assert np.abs(A @ c - c**2 / 2)[1:].max() < 1e-15
    assert (np.diag(A)[1:] == t.gamma).all()


@each_method
@pytest.mark.parametrize("machine", [arm, spinning], ids=lambda f: f.__name__)
def test_errors_fall_with_the_order_at_equal_steps(method, machine, monkeypatch):
    monkeypatch.setattr(implicit, "SETTLED", 1e-13)  # solve the equations of the stages exactly
    model = machine(stiffness=3.0, damping=0.3)
    v0 = np.linspace(0.5, -0.5, model.nv)
    exact = simulate(model, None, v0, 0.8, method="dop853", rtol=1e-13, atol=1e-13)
    errors = []
    for h in (0.02, 0.01):
        simulation = Simulation(model, None, v0, method=method, rtol=10.0, atol=10.0, max_step=h)
        simulation.stepper.h = h
        end = simulation.run(0.8)
        errors.append(np.abs(end.v[-1] - exact.v[-1]).max())
    assert np.log2(errors[0] / errors[1]) == pytest.approx(ADAPTIVE[method].order, abs=ORDER_SLACK)


# ---- stiffness ----

STIFF = {
    "springs": dict(stiffness=1e8, damping=1e4),
    "dampers": dict(damping=1e7),
    "dry friction": dict(friction=5.0, damping=0.1),
    "stops": dict(lower=-0.2, upper=0.2, damping=0.5),
}


@pytest.mark.thinned(2)
@boundary_layer
@pytest.mark.parametrize("case", STIFF)
@pytest.mark.parametrize("machine", [arm, zoo.random_tree], ids=["arm", "tree"])
def test_stiff_motion_is_that_of_a_dense_implicit_solver(case, machine):
    """Against SciPy's Radau on the same right-hand side, whose Jacobian is dense and by differences."""
    joints = ("revolute", "prismatic", "helical")
    base = zoo.random_tree(5, 2, joints=joints) if machine is zoo.random_tree else arm()
    model = replace(base, **STIFF[case])
    motion, n = Motion(model), model.nv

    def rate(t, y):
        a = np.empty(n)
        motion.accelerate(t, y[:n], y[n:], a)
        return np.concatenate([y[n:], a])

    v0 = np.linspace(0.3, -0.3, n)
    exact = solve_ivp(rate, (0, 0.3), np.concatenate([np.zeros(n), v0]), method="Radau", rtol=1e-9, atol=1e-11).y[:, -1]
    for method, tolerance in (("trbdf2", 2e-3), ("esdirk4", 2e-4)):
        simulation = Simulation(model, None, v0, method=method, rtol=1e-6, atol=1e-8)
        run = simulation.run(0.3)
        assert np.abs(run.q[-1] - exact[:n]).max() < tolerance * max(1e-2, np.abs(exact[:n]).max()), method
        assert simulation.stepper.evaluations < 9000


@pytest.mark.parametrize("stiffness", [1e2, 1e6, 1e12])
@pytest.mark.parametrize("method", [*ADAPTIVE, "implicit-euler"])
def test_stability_has_no_bound(stiffness, method):
    """A fixed step of 0.1 s, whatever the springs: the motion ends at rest, where the springs hold the weight."""
    model = arm(stiffness=stiffness, damping=stiffness)
    options = {"step": 0.1} if method == "implicit-euler" else {"rtol": 0.1, "atol": 0.1, "max_step": 0.1}
    run = simulate(model, np.full(4, 0.5), duration=30.0, method=method, **options)
    sag = np.linalg.norm(ts.gravity_forces(model, run.q[-1])) / stiffness
    assert np.abs(run.v[-1]).max() < 1e-3
    assert np.abs(run.q[-1]).max() < 2 * sag + 1e-3


@boundary_layer
def test_a_light_wrist_under_strong_gains_takes_few_evaluations():
    """An arm with a wrist of 1e-6 kg m^2 held by the gains of its shoulder: its fastest rate is 1e8 per second."""
    model, goal = wrist()
    counts = {}
    for method in ADAPTIVE:
        simulation = Simulation(model, forces=PD(goal, 1e3, 1e2), method=method)
        end = simulation.run(3.0)
        counts[method] = simulation.stepper.evaluations
        assert np.abs(end.v[-1]).max() < 1e-2
    assert counts["esdirk4"] <= 3000, counts


def wrist():
    """(an arm of three joints with a light wrist, a goal)"""
    model = ts.Model.chain(
        "revolute", axis=((0, 0, 1), (0, 1, 0), (0, 1, 0), (1, 0, 0)),
        p=((0, 0, 0), (0, 0, 0.3), (0.4, 0, 0), (0.3, 0, 0)),
        mass=(5.0, 3.0, 2.0, 0.01), com=((0, 0, 0.1), (0.2, 0, 0), (0.15, 0, 0), (0.01, 0, 0)),
        inertia=np.array([[0.05] * 3, [0.04] * 3, [0.02] * 3, [1e-6] * 3]),
    )  # fmt: skip
    return model, np.array([0.8, -0.5, 0.9, 1.2])


@pytest.mark.parametrize("n", [60, 240])
def test_the_work_does_not_grow_with_the_number_of_links(n):
    simulation = Simulation(cable(n), method="trbdf2", rtol=1e-3, atol=1e-3 / n, dt=0.1)
    simulation.run(0.5)
    assert simulation.stepper.evaluations < 700


def test_a_cable_keeps_its_energy_balance():
    """Mechanical and elastic energy, and what the dampers took, add up to nothing."""
    model = cable(100)
    run = simulate(model, duration=0.5, method="esdirk4", rtol=1e-6, atol=1e-9)
    dissipated = np.trapezoid((model.damping * run.v**2).sum(axis=1), run.t)
    fallen = run.potential_energy[0] - run.potential_energy[-1]
    assert run.energy[-1] - run.energy[0] + run.elastic_energy[-1] + dissipated == pytest.approx(0, abs=1e-3 * fallen)


def test_stiffness_that_no_force_declares_is_left_to_krylov_vectors():
    """A spring between two joints, as a plain function: no gains are known, and the sweeps alone do not settle."""
    model = arm()

    def coupling(t, q, v):
        stretch = q[1] - q[2] + 1e-2 * (v[1] - v[2])
        return np.array([0.0, -1e6 * stretch, 1e6 * stretch, 0.0])

    exact = simulate(model, duration=0.3, forces=coupling, method="radau", rtol=1e-8, atol=1e-10)
    for method in ADAPTIVE:
        simulation = Simulation(model, forces=coupling, method=method, rtol=1e-5, atol=1e-7)
        run = simulation.run(0.3)
        assert np.abs(run.q[-1] - exact.q[-1]).max() < 1e-3
        assert simulation.stepper.evaluations < 30_000


@each_method
@pytest.mark.parametrize("case", ["top", "servos"])
def test_stages_that_are_accepted_leave_no_more_than_they_may(method, case, monkeypatch):
    """The next iteration would change them by a small part of what the tolerance allows."""
    left, solve = [], implicit._Stage.solve

    def watched(stage, t, y):
        if not solve(stage, t, y):
            return False
        left.append(stage._size(stage._swept(stage.added) - stage.a))
        return True

    monkeypatch.setattr(implicit._Stage, "solve", watched)
    if case == "top":
        model = ts.Model.chain("spherical", mass=1.0, com=(0, 0, 0.5), inertia=(0.02, 0.02, 0.01))
        q, v, forces = (np.cos(0.25), np.sin(0.25), 0, 0), (0, 0, 60.0), ()
    else:
        model, forces = zoo.panda(), PD(np.full(7, 0.5), 1e4, 1e2)
        q = v = np.zeros(7)
    for rtol in (1e-4, 1e-5):
        simulate(model, q, v, 0.1, forces=forces, method=method, rtol=rtol, atol=1e-2 * rtol)
    assert max(left) < LEFT


def test_gmres_solves_what_a_dense_solver_does():
    rng = np.random.default_rng(0)
    A, b = np.eye(40) + 0.1 * rng.normal(size=(40, 40)), rng.normal(size=40)
    space = gmres(lambda w: A @ w, b, 40, 1e-12)
    assert np.abs(A @ space.solve(b) - b).max() < 1e-9
    c = rng.normal(size=40)
    assert np.abs(A @ space.solve(c) - c).max() < 1e-9  # the whole space: every right-hand side
    few, low = rng.normal(size=(2, 40, 3))
    A = np.eye(40) + few @ low.T
    space = gmres(lambda w: A @ w, few @ rng.normal(size=3), 10, 1e-12)
    assert space.H.shape == (3, 3)  # invariant
    c = few @ rng.normal(size=3)
    assert np.abs(A @ space.solve(c) - c).max() < 1e-9


# ---- forces and their gains ----


def forces_of(model):
    rng = np.random.default_rng(1)
    return {
        "spring": Spring(rng.uniform(1, 2, model.nv), None, rng.uniform(1, 2, model.nv)),
        "friction": Friction(rng.uniform(1, 2, model.nv), rng.uniform(1, 2, model.nv), creep=0.3),
        "pd": PD(model.neutral(), rng.uniform(1, 2, model.nv), 0.3),
        "limits": Limits(-0.1, 0.1, 50.0, 3.0),
    }


@pytest.mark.parametrize("name", ["spring", "friction", "pd", "limits"])
def test_gains_are_the_derivatives_of_the_torques(name):
    model = arm()
    motion, rng, step = Motion(model, forces_of(model)[name]), np.random.default_rng(3), 1e-6
    q, v = rng.normal(size=(2, model.nv))
    force, (stiffness, damping) = motion.felt, motion.slopes(0.0, q, v)
    for k, e in enumerate(step * np.eye(model.nv)):
        by_q = (force(0.0, q - e, v) - force(0.0, q + e, v)) / (2 * step)
        by_v = (force(0.0, q, v - e) - force(0.0, q, v + e)) / (2 * step)
        assert by_q[k] == pytest.approx(stiffness[k], rel=1e-6, abs=1e-6)
        assert by_v[k] == pytest.approx(damping[k], rel=1e-6, abs=1e-6)


def test_what_joints_do_by_themselves_acts_in_a_simulation_and_not_in_the_dynamics():
    bare = arm()
    numbers = dict(damping=0.2, friction=0.1, stiffness=2.0, rest=0.3, lower=-0.5, upper=0.5)
    model = replace(bare, **numbers)
    q, v = np.random.default_rng(0).normal(size=(2, model.nv))
    assert np.array_equal(ts.forward_dynamics(model, q, v, v), ts.forward_dynamics(bare, q, v, v))
    same = [Friction(0.2, 0.1), Spring(2.0, np.full(4, 0.3)), Limits(-0.5, 0.5)]
    one, other = (simulate(m, duration=0.5, forces=f, rtol=1e-9) for m, f in ((model, ()), (bare, same)))
    assert np.abs(one.q[-1] - other.q[-1]).max() < 1e-7
    assert not Motion(model).is_idle
    assert Motion(bare).is_idle


def test_a_spherical_joint_is_pulled_to_its_rest():
    model = spinning(stiffness=50.0, damping=5.0, rest=[0.3, -0.2, 0.1, 0.4], gravity=np.zeros(3))
    run = simulate(model, duration=20.0, method="esdirk4")
    rest = model.integrate(model.neutral(), model.rest)
    assert np.abs(model.difference(run.q[-1], rest)).max() < 1e-4
    assert run.elastic_energy[-1] < 1e-6 < run.elastic_energy[0]


def test_a_set_point_is_a_reference_that_stays():
    goal = np.full(4, 0.2)
    assert np.array_equal(torque_of(arm(), PD(goal, 3.0, 1.0), 0.0, 0 * goal, 0 * goal), 3.0 * goal)
    for bad in ([0.0, 1.0], "nowhere", np.array([np.nan] * 4)):
        with pytest.raises(ArgumentError, match="reference"):
            simulate(arm(), duration=0.1, forces=PD(bad, 1.0, 1.0))


# ---- dense output ----


@boundary_layer
def test_between_the_rows_of_a_stiff_start():
    """Quintics through rows 0.5 s apart know nothing of what happens between them."""
    model, goal = wrist()
    force = PD(goal, 1e3, 1e2)
    exact = simulate(model, duration=1.0, forces=force, method="radau", rtol=1e-8, atol=1e-10, dt=1e-3)
    for method in ("trbdf2", "esdirk4", "radau", "auto"):
        for dt in (0.5, None):
            run = simulate(model, duration=1.0, forces=force, method=method, dt=dt)
            q, v = run.at(exact.t)
            assert np.abs(q - exact.q).max() < 1e-3, method
            assert np.abs(v[1:] - exact.v[1:]).max() < 0.1, method


@pytest.mark.parametrize(
    "method", ["dopri5", "abm", "radau", "trbdf2", "esdirk4", "verlet", "implicit-euler", "dop853"]
)
def test_rows_and_extensions_agree(method):
    """A run with rows 0.01 s apart and one with two rows give the same values between."""
    model = spinning(damping=0.1)
    options = dict(method=method, dense=True) | ({"step": 0.004} if method in ("verlet", "implicit-euler") else {})
    v0 = np.array([0.5, -0.8, 1.1, 0.7])
    close, apart = (simulate(model, None, v0, 0.5, dt=dt, **options) for dt in (0.01, 0.25))
    q, v = apart.at(close.t)
    assert np.abs(q - close.q).max() < 1e-9  # quaternions are normalised after they are interpolated, twice
    assert np.abs(v - close.v).max() < 1e-8


def test_an_event_ends_the_extension():
    model = arm()
    run = simulate(model, np.full(4, 0.3), duration=5.0, dt=0.4, stop=lambda t, q, v: q[0] - 0.7)
    q, _ = run.at(np.linspace(0, run.t[-1], 50))
    assert run.t[-1] < 5
    assert (q[:, 0] < 0.7 + 1e-9).all()
    assert q[-1, 0] == pytest.approx(0.7, abs=1e-9)


# ---- which method ----


def test_auto_is_dopri5_where_nothing_is_stiff():
    model = arm()
    one, other = (simulate(model, np.full(4, 0.3), duration=2.0, method=method) for method in ("auto", "dopri5"))
    assert np.array_equal(one.q, other.q)
    assert "switched" not in one.about


def test_auto_meets_stiffness_and_says_so():
    model, goal = wrist()
    simulation = Simulation(model, forces=PD(goal, 1e3, 1e2))
    run = simulation.run(3.0)
    assert "esdirk4" in run.about["switched"]
    assert simulation.stepper.evaluations <= 3000
    assert np.abs(run.v[-1]).max() < 1e-2


@pytest.mark.parametrize("method", ["dopri5", "rkf45", "dop853"])
def test_explicit_methods_name_the_remedy(method):
    model, goal = wrist()
    simulation = Simulation(model, forces=PD(goal, 1e2, 1e0), method=method, rtol=1e-3)
    with pytest.warns(StiffnessWarning, match="method='auto' or 'esdirk4'"):
        simulation.run(0.05)


def test_a_resumed_run_switches_where_the_uninterrupted_one_does(tmp_path):
    model, goal = wrist()
    force = PD(goal, 1e3, 1e2)
    whole = Simulation(model, forces=force, file=tmp_path / "whole.traj", chunk=8).run(0.5)
    for end in (1e-4, 0.2):
        Simulation(model, forces=force, file=tmp_path / "part.traj", chunk=8).run(end)
        rest = Simulation.resume(tmp_path / "part.traj", forces=force)
        simulation = Simulation(model, forces=force, file=tmp_path / "both.traj", chunk=8)
        simulation.run(end)
        assert np.array_equal(simulation.run(0.5).table, rest.run(0.5).table)
        (tmp_path / "part.traj").unlink()
        (tmp_path / "both.traj").unlink()
    assert "esdirk4" in whole.about["switched"]


# ---- resuming, and structure ----


@pytest.mark.parametrize("method", [*ADAPTIVE, "radau", "implicit-euler", "verlet", "midpoint"])
def test_resumed_runs_have_the_same_bits(method, tmp_path):
    model = spinning(stiffness=100.0, damping=1.0)
    options = dict(method=method, chunk=5, rtol=1e-4, atol=1e-6, **({} if METHODS[method].adaptive else {"step": 0.01}))
    whole = simulate(model, duration=0.5, **options)
    half = Simulation(model, file=tmp_path / "run.traj", **options)
    half.run(float(whole.t[len(whole) // 2 + 1]))
    again = Simulation.resume(tmp_path / "run.traj").run(0.5)
    full = Simulation(model, file=tmp_path / "full.traj", **options)
    full.run(float(whole.t[len(whole) // 2 + 1]))
    assert np.array_equal(full.run(0.5).table, again.table)


@pytest.mark.parametrize("method", ["symplectic-euler", "verlet", "variational", "midpoint"])
def test_symplectic_methods_keep_the_energy_of_stiff_springs(method):
    """At a step of 20 radians of the springs: an explicit method would have failed at 2."""
    model = replace(zoo.random_chain(20, 3), stiffness=1e6, gravity=np.zeros(3))
    v0 = np.random.default_rng(0).normal(size=20)
    h = 20 / np.sqrt(1e6 / ts.mass_matrix(model, np.zeros(20)).diagonal().min())
    run = simulate(model, None, v0, 400 * h, method=method, step=h)
    energy = run.energy + run.elastic_energy
    error = np.abs(energy - energy[0]) / energy[0]
    assert error.max() < 0.05


@pytest.mark.slow
def test_energy_of_ten_thousand_links():
    model = replace(cable(10_000, EI=20.0, eta=0.0), damping=0.0)
    run = simulate(model, duration=0.02, method="verlet", step=2e-4, dt=2e-3)
    energy = run.energy + run.elastic_energy
    assert np.abs(energy - energy[0]).max() < 2e-5 * run.kinetic_energy.max()


def test_symplectic_methods_need_no_matrix():
    """10,000 links: M alone would take 800 MB."""
    import tracemalloc

    model = replace(cable(10_000), damping=np.zeros(10_000))
    tracemalloc.start()
    run = simulate(model, duration=2e-3, method="verlet", step=1e-3)
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()
    assert np.isfinite(run.q).all()


@pytest.mark.parametrize("method", ["variational", "verlet"])
def test_springs_that_shake_a_structure_preserving_method_are_reported_with_the_remedy(method):
    """A falling cable without damping, at steps of two periods of its quickest springs: energy grows from nothing."""
    L = 0.05
    model = ts.Model.chain("revolute", n=200, axis=(0, 1, 0), p=(L, 0, 0), mass=0.1 * L, com=(L / 2, 0, 0),
                           inertia=(1e-6, 1e-6, 1e-6), stiffness=2 / L)  # fmt: skip
    with pytest.raises(SingularError, match=r"quickest springs.*esdirk4"):
        simulate(model, duration=1.0, method=method, step=2e-3)
    period = (
        2
        * np.pi
        / np.sqrt(np.linalg.eigvals(ts.inverse_mass_matrix(model, model.neutral()) * model.stiffness).real.max())
    )
    run = simulate(model, duration=0.1, method=method, step=period / 4)
    energy = run.energy + run.elastic_energy
    assert np.abs(energy - energy[0]).max() < 1e-4 * run.kinetic_energy.max()


def test_the_midpoint_rule_keeps_the_energy_of_springs_that_it_does_not_resolve():
    """The same cable, at four periods of its quickest springs; the tip comes where shorter steps bring it."""
    L = 0.05
    model = ts.Model.chain("revolute", n=200, axis=(0, 1, 0), p=(L, 0, 0), mass=0.1 * L, com=(L / 2, 0, 0),
                           inertia=(1e-6, 1e-6, 1e-6), stiffness=2 / L)  # fmt: skip
    tips = []
    for step in (2e-3, 1e-3):
        run = simulate(model, duration=0.3, method="midpoint", step=step)
        energy = run.energy + run.elastic_energy
        assert np.abs(energy - energy[0]).max() < 1e-11 * run.kinetic_energy.max()
        tips.append(ts.body_poses(model, run.q[-1])[-1, :3, 3])
    assert np.linalg.norm(tips[0] - tips[1]) < 1e-4


def multipliers(model, method, h, speed):
    """The sizes of the eigenvalues of one step, as a map of (q, p), of a machine that turns."""
    n, step = model.nv, 1e-6
    q, v = np.linspace(-0.02, 0.02, n), speed * np.eye(n)[0]
    start = np.concatenate([q, Motion(model).momenta(q, v)])

    def moved(z):
        simulation = Simulation(model, z[:n], ts.mass_solve(model, z[:n], z[n:]), method=method, step=h)
        simulation.step()
        return np.concatenate([simulation.q, simulation.stepper.p])

    J = [(moved(start + step * e) - moved(start - step * e)) / (2 * step) for e in np.eye(2 * n)]
    return np.abs(np.linalg.eigvals(np.array(J)))


@pytest.mark.slow
def test_why_unresolved_springs_shake_two_steps_and_not_the_midpoint_rule():
    """Multipliers next to 1 part when the machine turns; those next to -1 do not."""
    L = 0.25
    model = ts.Model.chain("revolute", n=8, axis=(0, 1, 0), p=(L, 0, 0), mass=0.1 * L, com=(L / 2, 0, 0),
                           inertia=(1e-6, 1e-6, 1e-6), stiffness=2e3 / L)  # fmt: skip
    assert multipliers(model, "verlet", 5e-3, 0.0).max() == pytest.approx(1, abs=1e-4)
    assert multipliers(model, "verlet", 5e-3, 40.0).max() > 1.1
    # the dampers that keep the energy change them a little
    assert multipliers(model, "midpoint", 5e-3, 40.0).max() == pytest.approx(1, abs=3e-3)


def test_the_midpoint_rule_balances_the_work_of_other_forces():
    """What dampers take and a motor gives is what the energy changes by, at the middle of every step."""
    model, h = arm(stiffness=1e4, damping=3.0), 5e-3
    motor = Constant(np.array([0.3, -0.2, 0.1, 0.2]))
    run = simulate(model, duration=0.5, forces=motor, method="midpoint", step=h)
    x = np.diff(run.q, axis=0) / h
    work = h * (x * (motor.tau - 3.0 * x)).sum(axis=1)
    change = np.diff(run.energy + run.elastic_energy)
    assert np.abs(change - work).max() < 1e-10 * run.kinetic_energy.max()


def test_a_step_that_does_not_settle_is_taken_in_halves():
    """Links that turn by more than a radian per step."""
    model = replace(zoo.point_chain(3), stiffness=1e3)
    run = simulate(model, [0.4, 0.3, 0.2], [40.0, -80.0, 60.0], 0.5, method="midpoint", step=0.05)
    energy = run.energy + run.elastic_energy
    assert np.abs(energy - energy[0]).max() < 1e-6 * energy[0]


def test_energy_that_springs_cannot_give_is_reported():
    """As if it had begun with less energy than it had."""
    simulation = Simulation(zoo.rope(3), np.full(6, 0.3), forces=Spring(1.0), method="verlet", step=1e-3)
    simulation.run(0.05)
    simulation.stepper._first -= 1.0
    with pytest.raises(SingularError, match=r"has gained 1 J by t = 0\.0.*Take smaller steps"):
        simulation.run(0.2)


@pytest.mark.parametrize("method", ["symplectic-euler", "verlet", "variational", "midpoint"])
def test_dampers_that_a_step_does_not_resolve_are_told(method):
    """Structure-preserving methods do not damp what they do not resolve: its velocities change their sign each step."""
    link = dict(axis=(0, 1, 0), p=(0.1, 0, 0), mass=0.1, com=(0.05, 0, 0), inertia=(1e-6, 1e-4, 1e-4))
    rope = ts.Model.chain("revolute", n=5, **link, damping=10.0, friction=1.0)
    with pytest.warns(StiffnessWarning, match=r"steps of 0.001 s do not resolve them.*esdirk4"):
        Simulation(rope, method=method, step=1e-3)
    Simulation(replace(rope, damping=np.full(5, 1e-3)), method=method, step=1e-3)  # resolved, and friction is no damper
