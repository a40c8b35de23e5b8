"""Forces: each does what its equation says, and together they balance the energy."""

from dataclasses import replace

import numpy as np
import pytest
from machines import torque_of
from scipy.integrate import simpson

import torsor as ts
from torsor import (
    PD,
    ComputedTorque,
    Constant,
    Cycloid,
    External,
    Friction,
    Limits,
    Pull,
    Simulation,
    Spring,
    Table,
    simulate,
    zoo,
)
from torsor.errors import ArgumentError
from torsor.model import Model
from torsor.motion.integrators import METHODS
from torsor.motion.motion import Motion

TIGHT = {"rtol": 1e-11, "atol": 1e-12}
CLOSE = 1e-8


@pytest.fixture(scope="module")
def cart():
    """One kilogram on a rail, without weight."""
    return Model.chain("prismatic", mass=1.0, inertia=(1, 1, 1), gravity=(0, 0, 0))


def test_constant_force_gives_uniform_acceleration(cart):
    run = simulate(cart, [0.0], [1.0], 2.0, forces=Constant([3.0]))
    assert run.q[-1, 0] == pytest.approx(1.0 * 2 + 3.0 * 2**2 / 2, abs=CLOSE)
    np.testing.assert_array_equal(run.tau, np.full((len(run), 1), 3.0))


def test_forces_add_up(cart):
    run = simulate(cart, duration=1.0, forces=[Constant([3.0]), lambda t, q, v: np.array([-2.0])])
    assert run.v[-1, 0] == pytest.approx(1.0, abs=CLOSE)


def test_a_force_of_the_wrong_shape_is_named(cart):
    def shove(t, q, v):
        return np.zeros(3)

    with pytest.raises(ArgumentError, match=r"shove.*\(3,\)"):
        simulate(cart, forces=shove)


@pytest.mark.parametrize(("between", "at_a_quarter"), [("linear", 0.5), ("previous", 0.0), ("cubic", 0.25 * 1.75)])
def test_tables_interpolate_as_stated(cart, between, at_a_quarter):
    table = Table([0.0, 0.5, 1.0], [[0.0], [1.0], [0.0]], between)
    state = np.zeros(1), np.zeros(1)
    if between == "cubic":  # not-a-knot through three points is the parabola 4 t (1 - t)
        at_a_quarter = 4 * 0.25 * 0.75
    for t, expected in ((0.25, at_a_quarter), (0.5, 1.0), (-1.0, 0.0), (9.0, 0.0)):
        assert torque_of(cart, table, t, *state)[0] == pytest.approx(expected)


def test_bad_tables_are_refused():
    with pytest.raises(ArgumentError, match="increase"):
        Table([0.0, 0.0], [[1.0], [2.0]])
    with pytest.raises(ArgumentError, match="tau"):
        Table([0.0, 1.0], [1.0, 2.0])
    with pytest.raises(ArgumentError, match="between"):
        Table([0.0, 1.0], [[1.0], [2.0]], "quartic")


def test_cycloid_is_sahas_law_between_its_ends_and_at_rest_outside():
    law = Cycloid([0.0, 1.0], [np.pi, 2.0], 10.0)
    t = 3.0
    x = 2 * np.pi * t / 10
    q, v, a = law(t)
    assert q[0] == pytest.approx((x - np.sin(x)) / 2)  # Eq. 18 as printed, 0 -> pi
    h = 1e-5
    np.testing.assert_allclose(v, (law(t + h)[0] - law(t - h)[0]) / (2 * h), rtol=0, atol=1e-9)
    np.testing.assert_allclose(a, (law(t + h)[1] - law(t - h)[1]) / (2 * h), rtol=0, atol=1e-9)
    for outside, end in ((-1.0, [0.0, 1.0]), (11.0, [np.pi, 2.0])):
        q, v, a = law(outside)
        np.testing.assert_allclose(q, end, rtol=0, atol=1e-15)
        np.testing.assert_allclose([v, a], 0, rtol=0, atol=1e-15)
    with pytest.raises(ArgumentError, match="T"):
        Cycloid(0.0, 1.0, 0.0)


def test_computed_torque_follows_its_reference():
    arm = zoo.puma_saha()
    law = Cycloid(np.zeros(6), np.linspace(0.5, 1.5, 6), 2.0)
    run = simulate(arm, duration=2.0, forces=ComputedTorque(law), rtol=1e-9, atol=1e-10, dt=0.1)
    wanted = np.array([law(t)[0] for t in run.t])
    np.testing.assert_allclose(run.q, wanted, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run.tau, [ts.inverse_dynamics(arm, *law(t)) for t in run.t], rtol=0, atol=1e-4)


def test_computed_torque_forgets_a_wrong_start():
    """e'' + kd e' + kp e = 0, critically damped: e = e0 (1 + w t) exp(-w t)."""
    arm, w = zoo.puma_saha(), 10.0
    law = Cycloid(np.zeros(6), np.ones(6), 1.0)
    start = np.full(6, 0.1)
    control = ComputedTorque(law, kp=w**2, kd=2 * w)
    run = simulate(arm, start, duration=1.0, forces=control, **TIGHT)
    error = run.q - np.array([law(t)[0] for t in run.t])
    expected = 0.1 * (1 + w * run.t) * np.exp(-w * run.t)
    np.testing.assert_allclose(error, np.tile(expected[:, None], 6), rtol=0, atol=CLOSE)


@pytest.mark.parametrize(("method", "most"), [("esdirk4", 3000), ("trbdf2", 5000)])
def test_stiff_computed_torques_take_few_evaluations(method, most):
    """Their stiffness M kp and damping M kd are part of Newton's matrix: one sweep or two per stage (kp = 1e6)."""
    arm, w = zoo.puma_saha(), 1e3
    law = Cycloid(np.zeros(6), np.linspace(0.5, 1.5, 6), 1.0)
    control = ComputedTorque(law, kp=w**2, kd=2 * w)
    run = Simulation(arm, np.full(6, 0.05), forces=control, method=method, rtol=1e-6, atol=1e-8)
    path = run.run(1.0)
    assert run.stepper.evaluations < most
    assert np.abs(path.q[-1] - law(1.0)[0]).max() < 1e-8
    early = path.t < 5 / w
    error = path.q[early] - np.array([law(t)[0] for t in path.t[early]])
    expected = 0.05 * (1 + w * path.t[early]) * np.exp(-w * path.t[early])
    np.testing.assert_allclose(error, np.tile(expected[:, None], 6), rtol=0, atol=1e-5)


def test_implicit_euler_takes_the_steps_of_a_rollout_under_computed_torques():
    arm = replace(zoo.puma_saha(), damping=2.0)
    control = ComputedTorque(np.full(6, 0.3), 1e8, 2e4, model=zoo.puma_saha())
    run = simulate(arm, duration=0.1, forces=control, method="implicit-euler", step=1e-2)
    path = ts.rollout(arm, np.zeros(6), np.zeros(6), steps=10, step=1e-2, forces=control, method="implicit-euler")
    np.testing.assert_allclose(run.q[-1], path.q[-1], rtol=0, atol=1e-9)
    np.testing.assert_allclose(run.q[-1], 0.3, rtol=0, atol=1e-3)


@pytest.mark.parametrize("effort", [np.inf, 50.0])
def test_stiff_computed_torques_beside_stiff_joints(effort):
    """With dampers, a wrong model, and drives that are cut off, as an explicit method with short steps finds it."""
    arm = replace(zoo.puma_saha(), damping=20.0, stiffness=100.0, effort=effort)
    control = ComputedTorque(np.full(6, 0.3), 1e4, 200.0, model=replace(arm, mass=1.2 * arm.mass))
    one, other = (simulate(arm, duration=0.1, forces=control, method=method, rtol=1e-8, atol=1e-10)
                  for method in ("esdirk4", "dop853"))  # fmt: skip
    np.testing.assert_allclose(one.q[-1], other.q[-1], rtol=0, atol=1e-6)


def test_pd_settles_where_it_balances_gravity():
    arm = zoo.planar3()
    hold = Cycloid(np.zeros(3), np.zeros(3), 1.0)
    kp = 400.0
    run = simulate(arm, duration=20.0, forces=PD(hold, kp, 60.0), method="radau")
    np.testing.assert_allclose(run.v[-1], 0, rtol=0, atol=1e-5)
    np.testing.assert_allclose(-kp * run.q[-1], ts.gravity_forces(arm, run.q[-1]), rtol=0, atol=1e-3)


def test_viscous_friction_slows_exponentially(cart):
    run = simulate(cart, [0.0], [2.0], 3.0, forces=Friction(viscous=0.7), **TIGHT)
    np.testing.assert_allclose(run.v[:, 0], 2.0 * np.exp(-0.7 * run.t), rtol=0, atol=CLOSE)


def test_coulomb_friction_stops_a_sliding_body(cart):
    run = simulate(cart, [0.0], [1.0], 2.0, forces=Friction(coulomb=2.0), rtol=1e-8)
    assert run.q[-1, 0] == pytest.approx(1.0 / (2 * 2.0), abs=1e-3)  # v^2 / 2 mu
    assert abs(run.v[-1, 0]) < 1e-3


def test_spring_swings_with_its_frequency(cart):
    run = simulate(cart, [0.3], duration=2.0, forces=Spring(25.0), **TIGHT)
    np.testing.assert_allclose(run.q[:, 0], 0.3 * np.cos(5 * run.t), rtol=0, atol=CLOSE)


def test_spring_of_a_ball_joint_acts_along_the_rotation_to_rest():
    ball = Model.chain("spherical", mass=1.0, inertia=(1, 1, 1), gravity=(0, 0, 0))
    q0 = ball.integrate(ball.neutral(), [0.0, 0.4, 0.0])
    run = simulate(ball, q0, duration=1.0, forces=Spring(9.0), **TIGHT)
    turn = ball.difference(np.tile(ball.neutral(), (len(run), 1)), run.q)
    np.testing.assert_allclose(turn[:, 1], 0.4 * np.cos(3 * run.t), rtol=0, atol=CLOSE)


def test_linear_forces_are_part_of_the_compiled_right_hand_side():
    """The same motion as with the forces in Python, with all stages of a step in one call."""
    model = replace(zoo.random_chain(5, 1), stiffness=3.0, rest=0.2, damping=0.5)
    rng = np.random.default_rng(0)
    forces = [Constant(rng.normal(size=5)), Spring(2.0, rng.normal(size=5), 0.1), Friction(rng.uniform(size=5)),
              PD(rng.normal(size=5), rng.uniform(1, 5, 5), 0.7)]  # fmt: skip
    inside, outside = (simulate(model, duration=2.0, forces=f, method="dopri5", **TIGHT) for f in (
        forces, [*forces, lambda t, q, v: np.zeros(5)]))  # fmt: skip
    assert np.abs(inside.q[-1] - outside.q[-1]).max() < 1e-9
    motion, plain = Motion(model, forces), Motion(model, [lambda t, q, v: np.zeros(5)])
    assert motion.compiled_law.is_one_kernel
    assert not plain.compiled_law.is_one_kernel
    q, v, a = rng.normal(size=(3, 5))
    motion.accelerate(0.0, q, v, a)
    expected = ts.forward_dynamics(model, q, v, motion.torque(0.0, q, v))
    assert np.abs(a - expected).max() < 1e-11 * np.abs(expected).max()


def test_armature_is_inertia_about_the_joint():
    heavy = replace(zoo.point_chain(1), inertia=np.diag([0.25, 0.25, 0.5])[None])
    added = simulate(zoo.point_chain(1), [0.3], duration=1.0, armature=0.5, **TIGHT)
    built_in = simulate(heavy, [0.3], duration=1.0, **TIGHT)
    np.testing.assert_allclose(added.q[-1], built_in.q[-1], rtol=0, atol=CLOSE)
    variational = simulate(zoo.point_chain(1), [0.3], duration=1.0, armature=0.5, method="variational", step=1e-3)
    np.testing.assert_allclose(variational.q[-1], built_in.q[-1], rtol=0, atol=1e-4)


def test_limits_hold_a_falling_pendulum():
    pendulum = zoo.point_chain(1)
    run = simulate(pendulum, [0.0], duration=4.0, forces=Limits(-1.0, 1.0), rtol=1e-7)
    assert run.q.min() > -1.05
    assert run.q[-1, 0] == pytest.approx(-1.0, abs=0.01)
    with pytest.raises(ArgumentError, match=r"infinite for joint"):
        simulate(zoo.humanoid(), duration=0.1, forces=Limits(-1.0, 1.0))


def test_limits_act_beside_a_floating_base():
    model = zoo.humanoid()
    bounds = np.full(model.nv, np.inf)
    bounds[6:] = 0.5  # the first six freedoms are those of the base
    q, v = model.neutral(), np.zeros(model.nv)
    q[7:] = 0.6
    push = torque_of(model, Limits(-bounds, bounds, stiffness=10.0), 0.0, q, v)
    np.testing.assert_allclose(push, np.where(np.arange(model.nv) < 6, 0.0, -1.0), rtol=0, atol=1e-12)


def test_external_wrenches_are_those_of_forward_dynamics():
    tree = zoo.random_tree(6, 3)
    q, v = tree.random_configuration(rng=1), np.linspace(-1, 1, tree.nv)
    wrenches = np.random.default_rng(0).normal(size=(tree.n, 6))
    felt = torque_of(tree, External(wrenches), 0.0, q, v)
    expected = ts.forward_dynamics(tree, q, v, np.zeros(tree.nv), external=wrenches)
    np.testing.assert_allclose(ts.forward_dynamics(tree, q, v, felt), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_pulls_are_wrenches_turned_into_the_frames_of_the_bodies(seed):
    """On every body of a tree with joints of every type, several on one body, and many states at once."""
    tree, rng = zoo.random_tree(12, seed), np.random.default_rng(seed)
    q, v = tree.random_configuration(rng, 4), rng.normal(size=(4, tree.nv))
    where = [*tree.names, tree.names[3]]
    force, at = rng.normal(size=(2, len(where), 3))
    pulls = [Pull(*given) for given in zip(where, force, at)]
    felt = [torque_of(tree, pulls, 0.0, *state) for state in zip(q, v)]
    poses, wrenches = ts.body_poses(tree, q), np.zeros((4, tree.n, 6))
    for name, F, p in zip(where, force, at):
        i = tree.names.index(name)
        f = F @ poses[:, i, :3, :3]
        wrenches[:, i] += np.concatenate([np.cross(p, f), f], axis=-1)
    expected = -ts.bias_forces(replace(tree, gravity=np.zeros(3)), q, 0 * v, external=wrenches)
    np.testing.assert_allclose(felt, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_pull_is_the_gradient_of_its_work():
    arm = zoo.puma_saha()
    force, point = np.array([1.0, -2.0, 3.0]), np.array([0.1, 0.0, 0.2])
    q = np.linspace(0.1, 0.6, 6)
    felt = torque_of(arm, Pull("link6", force, point), 0.0, q, np.zeros(6))

    def work(q):
        pose = ts.body_poses(arm, q)[-1]
        return force @ (pose[:3, 3] + pose[:3, :3] @ point)

    h = 1e-6
    gradient = [(work(q + h * e) - work(q - h * e)) / (2 * h) for e in np.eye(6)]
    np.testing.assert_allclose(felt, gradient, rtol=0, atol=1e-8)


@pytest.mark.parametrize("n", [4, 14], ids=["straight-line", "loops"])
def test_forces_that_are_data_know_how_they_change(n):
    """Against differences of fourth order of the forces themselves."""
    arm, rng = zoo.random_chain(n, 1), np.random.default_rng(0)
    goal = Cycloid(np.zeros(n), np.ones(n), 1.0)
    for force in (
        ComputedTorque(goal, rng.uniform(1, 50, n), 3.0),
        PD(goal, rng.uniform(1, 50, n), 3.0),
        External(rng.normal(size=(n, 6))),
        Pull(arm.names[2], [1.0, 2.0, 3.0], [0.1, 0.2, 0.3]),
    ):
        assert_changes(arm, force)


def test_forces_at_joints_with_quaternions_know_how_they_change():
    tree = zoo.random_tree(5, 1, joints=["free", "spherical"])
    for force in (External(np.ones((5, 6))), Pull(tree.names[0], [1, 2, 3]), Spring(np.arange(1.0, tree.nv + 1)),
                  PD(tree.neutral(), 3.0, 1.0), ComputedTorque(tree.neutral())):  # fmt: skip
        assert_changes(tree, force)


def assert_changes(model, force):
    rng, h = np.random.default_rng(3), 1e-3
    q, v = model.random_configuration(rng), rng.normal(size=model.nv)
    dq, dv = rng.normal(size=(2, 3, model.nv))

    def near(s, k):
        return torque_of(model, force, 0.3, model.integrate(q, s * dq[k]), v + s * dv[k])

    expected = [(8 * (near(h, k) - near(-h, k)) - near(2 * h, k) + near(-2 * h, k)) / (12 * h) for k in range(3)]
    found = Motion(model, force).changes(0.3, q, v, dq, dv)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_gravity_switch():
    run = simulate(zoo.puma_saha(), duration=1.0, gravity=False)
    np.testing.assert_array_equal(run.q, 0)


def test_energy_changes_by_the_work_of_the_forces():
    """E(t) - E(0) = int tau . v dt, with springs, friction and a drive at once."""
    arm = zoo.puma_saha()
    forces = [Spring(5.0), Friction(viscous=0.5), lambda t, q, v: np.sin(3 * t) * np.ones(6)]
    run = simulate(arm, duration=2.0, forces=forces, dt=0.002, **TIGHT)
    assert simpson(run.power, run.t) == pytest.approx(run.energy[-1] - run.energy[0], rel=1e-7)


@pytest.mark.filterwarnings("ignore::torsor.motion.stepper.StiffnessWarning")  # steps shrink before they end
@pytest.mark.parametrize("t0", [-1.0, 0.0, 1e-9, 5.0])
@pytest.mark.parametrize("method", ["dopri5", "rkf45", "dop853", "abm", "radau"])
def test_a_force_that_breaks_off_is_reported_at_any_time(cart, method, t0):
    def until(t, q, v):
        return np.array([1.0 if t < t0 + 0.1 else np.nan])

    with pytest.raises(ts.SingularError):
        simulate(cart, [0.0], [0.0], 1.0, forces=until, method=method, t0=t0)


# ---- forces that change in time ----

PULSE = 0.5  # N s, within 0.02 s of a run of 2 s
FELT = 1e-5  # some steps with errors of 1e-6
ADAPTIVE = [name for name, method in METHODS.items() if method.adaptive]


def pulse(between):
    """Times and forces of a pulse: a triangle, or a step up and down."""
    if between == "linear":
        return [0.0, 1.0, 1.01, 1.02, 2.0], [0.0, 0.0, 50.0, 0.0, 0.0]
    return [0.0, 1.0, 1.01, 2.0], [0.0, 50.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["table", "wrenches"])
@pytest.mark.parametrize("between", ["linear", "previous"])
@pytest.mark.parametrize("method", ["auto", *ADAPTIVE])
@pytest.mark.parametrize("t0", [0.0, -1.5])
def test_a_pulse_between_two_steps_is_felt(cart, method, between, kind, t0):
    """Steps end at the knots of tables; a cart at rest gives no other reason to take short ones."""
    t, force = (np.array(x) for x in pulse(between))
    if kind == "table":
        acting = Table(t + t0, force[:, None], between)
    else:
        wrenches = np.zeros((len(t), 1, 6))
        wrenches[:, 0, 3:] = force[:, None] * cart.axis[0]
        acting = External(wrenches, t + t0, between)
    run = simulate(cart, duration=2.0, t0=t0, forces=acting, method=method)
    assert run.v[-1, 0] == pytest.approx(PULSE, rel=FELT)
    assert run.v[run.t < t0 + 1.0].max() == 0.0


@pytest.mark.parametrize("method", ["semi-implicit", "implicit-euler", "rk4"])
def test_a_pulse_of_whole_steps_is_felt_by_fixed_steps(cart, method):
    """By one motion and by rollouts alike: a value holds from its time on, and until the next one."""
    table = Table(*([x, np.array(y)[:, None]][k] for k, (x, y) in enumerate([pulse("previous")] * 2)), "previous")
    run = simulate(cart, duration=2.0, forces=table, method=method, step=0.01)
    path = ts.rollout(cart, [0.0], [0.0], steps=200, step=0.01, forces=table, method=method)
    assert run.v[-1, 0] == pytest.approx(PULSE, rel=1e-12)
    assert path.v[-1, 0] == pytest.approx(PULSE, rel=1e-12)


# ---- forces that fail ----


@pytest.mark.filterwarnings("ignore::torsor.motion.stepper.StiffnessWarning")
@pytest.mark.parametrize("options", [{}, {"keep": ["q", "energy"]}, {"dt": 0.05}, {"method": "rk4", "step": 0.01}])
def test_a_run_that_fails_half_way_has_its_rows(options):
    arm = zoo.planar3()

    def blast(t, q, v):
        return np.full(3, np.nan if t > 0.5 else 0.0)

    whole = simulate(arm, [0.3, 0.2, 0.1], duration=0.45, forces=blast, **options)
    with pytest.raises(ts.SingularError) as caught:
        simulate(arm, [0.3, 0.2, 0.1], duration=1.0, forces=blast, **options)
    partial = caught.value.partial
    assert 0.4 < partial.t[-1] <= 0.51
    count = (partial.t < 0.4).sum()
    assert count > 3
    same = "values" if "keep" in options else "q"
    np.testing.assert_allclose(getattr(partial, same)[:count], getattr(whole, same)[:count], rtol=1e-12)
    assert np.isfinite(partial.q).all()


def test_a_recorded_run_that_fails_has_its_rows_in_its_file_and_in_the_error(tmp_path):
    def until(t, q, v):
        if t > 0.5:
            raise ArgumentError("no more")
        return np.zeros(3)

    with pytest.raises(ArgumentError, match="no more") as caught:
        simulate(zoo.planar3(), duration=1.0, forces=until, file=tmp_path / "run.traj", chunk=4, max_step=0.02)
    found = ts.Trajectory.load(tmp_path / "run.traj")
    np.testing.assert_array_equal(found.q, caught.value.partial.q[: len(found)])
    assert len(found) > 8


@pytest.mark.parametrize("which", ["q", "v"])
@pytest.mark.parametrize("method", ["dopri5", "esdirk4", "radau", "verlet", "rk4"])
def test_a_force_cannot_write_into_the_state(which, method):
    def writes(t, q, v):
        (q if which == "q" else v)[:] = 7.0
        return np.zeros(v.shape)

    arm, options = zoo.planar3(), {"method": method, "step": 0.01 if not METHODS[method].adaptive else None}
    with pytest.raises(ArgumentError, match="read-only"):
        simulate(arm, duration=0.1, forces=writes, **options)
    if method == "rk4":
        with pytest.raises(ArgumentError, match="read-only"):
            ts.rollout(arm, np.zeros((5, 3)), np.zeros((5, 3)), steps=2, step=0.01, method=method, forces=writes)


@pytest.mark.parametrize("force", [lambda t, q: q, lambda: 0.0, lambda t, q, v, more: 0.0])
def test_a_force_of_the_wrong_signature_is_named(force):
    arm = zoo.planar3()
    calls = (
        lambda: simulate(arm, duration=0.1, forces=force),
        lambda: simulate(arm, duration=0.1, forces=ts.Function(force)),
        lambda: ts.rollout(arm, np.zeros((5, 3)), np.zeros((5, 3)), steps=2, step=0.01, forces=force),
    )
    for call in calls:
        with pytest.raises(ArgumentError, match=r"\(t, q, v\)|of t, q and v"):
            call()


# ---- words of torsor 0.1 ----

ARM = zoo.planar3()
REST = np.zeros(3), np.zeros(3)


def members(**options):
    return ts.ensemble(ARM, {"v0": ts.Normal(0, 1)}, n=1, store="runs.zarr", duration=1.0, **options)


@pytest.mark.parametrize(("call", "new"), [
    (lambda: simulate(ARM, record="run.traj"), "'file'"),
    (lambda: simulate(ARM, method="euler", step=0.01), "'symplectic-euler'"),
    (lambda: simulate(ARM, method="implicit", step=0.01), "'implicit-euler'"),
    (lambda: ts.rollout(ARM, *REST, steps=1, dt=0.01), "'step'"),
    (lambda: ts.rollout(ARM, *REST, steps=1, step=0.01, integrator="rk4"), "method="),
    (lambda: ts.rollout(ARM, *REST, steps=1, step=0.01, method="implicit"), "implicit-euler"),
    (lambda: ts.rollout(ARM, *REST, steps=1, step=0.01, tau=np.ones(3)), r"ts\.Constant"),
    (lambda: ts.rollout(ARM, *REST, steps=1, step=0.01, table=np.ones((1, 3))), r"ts\.Table"),
    (lambda: ts.rollout(ARM, *REST, steps=1, step=0.01, feedback=None), "forces="),
    (lambda: ts.rollout(ARM, *REST, steps=1, step=0.01, external=np.ones((3, 6))), r"ts\.External"),
    (lambda: ts.rollout(ARM, *REST, steps=1, step=0.01, pulls=()), r"ts\.Pull"),
    (lambda: members(dt=0.1), "step"),
    (lambda: members(record=["q"]), "keep"),
    (lambda: members(kp=1.0), r"ts\.PD"),
    (lambda: members(keep=["q.last"]), "'q:last'"),
    (lambda: PD(ARM, np.zeros(3), 1.0), "leave out the model"),
    (lambda: Spring(ARM, 1.0), "leave out the model"),
    (lambda: Limits(ARM, -1.0, 1.0), "leave out the model"),
    (lambda: External(ARM, np.zeros((3, 6))), "leave out the model"),
    (lambda: Pull(ARM, "link1", (0, 0, 1.0)), "leave out the model"),
    (lambda: ts.rollout_vjp, r"vjp\(torsor\.rollout\)"),
    (lambda: ts.LinearFeedback, "Feedback"),
    (lambda: ts.JointFeedback, "PD"),
    (lambda: ts.Drive, "Function"),
])  # fmt: skip
def test_words_of_the_last_version_are_answered_with_the_new_ones(call, new, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ts.TorsorError, TypeError, AttributeError), match=new):
        call()
    assert not list(tmp_path.iterdir())
