"""What acts at the joints: laws against their definitions, their slopes, and the same in every engine."""

from dataclasses import replace

import mujoco
import numpy as np
import pytest

import torsor as ts
from torsor import zoo
from torsor.motion import (
    PD,
    ComputedTorque,
    Constant,
    Cycloid,
    Drive,
    External,
    Friction,
    Limits,
    Pull,
    Simulation,
    Spring,
    Table,
    laws,
    simulate,
)
from torsor.motion.motion import Motion
from torsor.motion.rollout import Rollout

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
ROUNDING = 1e-11  # twenty steps of 1 ms, in float64
SAME_SUMS = 1e-12  # relative: the same sums in another order
SLOPE = 1e-5  # relative: differences of torques that jump by up to 1e4 per radian
CREEP = 1e-3
RNG = np.random.default_rng
ALL = ("spring", "friction", "stops", "servo", "effort", "speed")


def slow(*values):
    """Parameters of the slow tests."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def cart(**numbers):
    """One kilogram on a rail, without weight."""
    return ts.Model.chain("prismatic", mass=1.0, inertia=(1, 1, 1), gravity=(0, 0, 0), **numbers)


def by_hand(model, q, v, u):
    """Everything that a model has, written once more with NumPy."""
    tau = np.clip(u, -model.effort, model.effort)
    with np.errstate(invalid="ignore"):
        room = np.where(np.isinf(model.speed), np.inf, (model.speed - v * np.sign(tau)) / (0.05 * model.speed))
    tau = tau * np.clip(room, 0, 1)
    tau = tau + model.stiffness * (model.rest - q) - model.damping * v - model.friction * v / np.hypot(v, CREEP)
    for depth, away, sign in ((model.lower - q, v, 1), (q - model.upper, -v, -1)):
        tau = tau + sign * np.where(depth > 0, np.maximum(1e4 * depth - 1e2 * away, 0), 0)
    return tau


def busy(model, seed=0):
    """The model with something of everything at its joints."""
    rng, n = RNG(seed), model.nv
    some = np.arange(n) % 2 == 0
    return replace(model, stiffness=rng.uniform(1, 9, n), rest=rng.normal(size=n), damping=rng.uniform(0, 1, n),
                   friction=0.3 * some, lower=np.where(some, -0.8, -np.inf), upper=0.7, effort=np.where(some, 3.0, 5.0),
                   speed=np.where(some, np.inf, 1.5))  # fmt: skip


@pytest.mark.parametrize("kinds", [(kind,) for kind in ALL] + [ALL], ids=[*ALL, "all"])
def test_slopes_are_those_of_the_torque(kinds):
    """-d tau/dx and -d tau/dv by differences; for stops, pushes that neither begin nor end in between."""
    rng, h = RNG(1), 1e-7
    x, v, u = rng.normal(size=(3, 500))
    u = 5 * u
    own = {"spring": (0.3, 2.0, 0.7), "friction": (0.4, 0.1), "stops": (-0.5, 0.4, 1e4, 10.0), "servo": (9.0, 2.0),
           "effort": (3.0,), "speed": (1.2,)}  # fmt: skip
    numbers = [y for kind in kinds for y in own[kind]]
    law, torque = laws.kernel(kinds, slopes=True), laws.kernel(kinds, slopes=False)
    tau, K, D = law(x, v, u, *numbers).T
    np.testing.assert_allclose(tau, torque(x, v, u, *numbers), rtol=1e-13, atol=1e-14)
    sides = [[torque(x + i * dx, v + i * dv, u, *numbers) for i in (1, -1)] for dx, dv in ((h, 0), (0, h))]
    for slope, (more, less) in zip((K, D), sides):
        one, other = (less - tau) / h, (tau - more) / h
        smooth = np.abs(one - other) < 1e-3 * (1 + np.abs(one))  # no corner there
        assert smooth.mean() > 0.95
        assert np.abs(slope - (one + other) / 2)[smooth].max() < SLOPE * (1 + np.abs(slope).max())


def test_limits_that_are_infinite_do_nothing_in_either_precision():
    for dtype in ("float64", "float32"):
        law = laws.kernel(("stops", "effort", "speed"), True, dtype)
        x, v, u = (1e6 * RNG(0).normal(size=(3, 20))).astype(dtype)
        numbers = [np.full(20, y, dtype) for y in (-laws.FAR, laws.FAR, 1e4, 1e2, laws.FAR, laws.FAR)]
        np.testing.assert_array_equal(law(x, v, u, *numbers), np.stack([u, 0 * u, 0 * u], axis=1))


def test_a_drive_gives_no_more_than_its_effort():
    """Far from its goal a strong servo moves the cart by effort / mass."""
    strong = cart(effort=2.0)
    run = simulate(strong, duration=1.0, forces=PD(strong, [100.0], 1e4, 10.0), **TIGHT)
    assert run.q[-1, 0] == pytest.approx(0.5 * 2.0, abs=1e-9)
    np.testing.assert_allclose(run.tau, 2.0, atol=1e-12)
    both = simulate(strong, duration=1.0, forces=[Constant([5.0]), Drive(lambda t, q, v: np.array([-4.0]))], **TIGHT)
    assert both.v[-1, 0] == pytest.approx(1.0, abs=1e-9)  # the limit is that of the sum
    unknown = simulate(cart(effort=0.0, speed=0.0), duration=1.0, forces=Constant([5.0]), **TIGHT)
    assert unknown.v[-1, 0] == pytest.approx(5.0, abs=1e-9)  # nobody said what they are
    beside = simulate(strong, duration=1.0, forces=[Constant([5.0]), lambda t, q, v: np.array([-4.0])], **TIGHT)
    assert beside.v[-1, 0] == pytest.approx(-2.0, abs=1e-9)  # what is not a drive has no limit


TWO_LINKS = """
<mujoco>
  <option timestep="1e-4" integrator="RK4"/>
  <worldbody>
    <body>
      <joint name="a" axis="0 1 0" actuatorfrcrange="-6 6" armature="0.01" damping="0.1"/>
      <geom type="capsule" fromto="0 0 0 0.4 0 0" size="0.03" mass="1"/>
      <body pos="0.4 0 0">
        <joint name="b" axis="0 1 0" actuatorfrcrange="-2 2" armature="0.01" damping="0.1"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03" mass="0.5"/>
      </body>
    </body>
  </worldbody>
  <actuator><position joint="a" kp="60" kv="3"/><position joint="b" kp="40" kv="2"/></actuator>
</mujoco>"""


def test_effort_is_that_of_mujoco(tmp_path):
    """Two links held by servos that are too weak for most of the way: the same steps of the same method."""
    peer = mujoco.MjModel.from_xml_string(TWO_LINKS)
    data, goal = mujoco.MjData(peer), [0.8, -0.5]
    data.ctrl[:] = goal
    for _ in range(1000):
        mujoco.mj_step(peer, data)
    (tmp_path / "two.xml").write_text(TWO_LINKS)
    model, kp, kd = ts.load(tmp_path / "two.xml"), np.array([60.0, 40.0]), np.array([3.0, 2.0])
    servo = ts.JointFeedback(kp, kd, goal)
    path = ts.rollout(
        model, np.zeros(2), np.zeros(2), steps=1000, dt=1e-4, every=1000, feedback=servo, integrator="rk4"
    )
    np.testing.assert_allclose(path.q[-1], data.qpos, atol=1e-13)
    np.testing.assert_allclose(path.v[-1], data.qvel, atol=1e-12)
    run = simulate(model, duration=0.1, forces=PD(model, goal, kp, kd), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(run.q[-1], data.qpos, atol=1e-6)  # fixed steps pass over the corners of a law
    assert (np.abs(kp * (goal - run.q) - kd * run.v) > model.effort).mean() > 0.3  # it is cut off


def test_a_drive_pushes_up_to_its_speed_and_brakes_beyond_it():
    """Close to its speed s, v' = F (s - v) / (0.05 s): the rest decays with that rate."""
    quick = cart(speed=2.0)
    run = simulate(quick, duration=3.0, forces=Constant([1.0]), **TIGHT)
    assert run.v.max() <= 2.0
    late = run.t > 1.95  # from v = 1.9 at t = 1.9 on
    expected = 2.0 - 0.1 * np.exp(-(run.t[late] - 1.9) / 0.1)
    np.testing.assert_allclose(run.v[late, 0], expected, atol=1e-7)
    braked = simulate(quick, v0=[5.0], duration=1.0, forces=Constant([-1.0]), **TIGHT)
    assert braked.v[-1, 0] == pytest.approx(4.0, abs=1e-9)
    coasting = simulate(quick, v0=[5.0], duration=1.0, forces=Constant([1.0]), **TIGHT)
    np.testing.assert_array_equal(coasting.v, 5.0)


@pytest.mark.parametrize("method", ["dopri5", "esdirk4", *slow("dop853", "abm", "radau")])
def test_forces_that_are_data_move_a_model_as_functions_do(method):
    model, bare = busy(zoo.random_chain(4, 1)), zoo.random_chain(4, 1)
    goal = Cycloid(np.zeros(4), np.full(4, 0.5), 0.3)
    table = Table([0.0, 0.1, 0.3], RNG(2).normal(size=(3, 4)), "cubic")
    forces = [PD(model, goal, 30.0, 3.0), table]
    assert Motion(model, forces).program is not None

    def torque(t, q, v):
        return by_hand(model, q, v, sum(force(t, q, v) for force in forces))

    inside = simulate(model, duration=0.1, forces=forces, method=method, rtol=1e-8, atol=1e-10)
    outside = simulate(bare, duration=0.1, forces=torque, method="radau", rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(inside.q[-1], outside.q[-1], atol=2e-6)
    expected = np.array([torque(*state) for state in zip(inside.t, inside.q, inside.v)])
    np.testing.assert_allclose(inside.tau, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("joints", [{}, {"stiffness": 3.0, "damping": 0.2}, {"friction": 0.2}], ids=str)
def test_constant_wrenches_are_part_of_the_right_hand_side(joints):
    """The same motion as with the wrenches in a function, and the torques that they are at the joints."""
    model = replace(zoo.random_chain(4, 1), **joints)
    wrenches = RNG(7).normal(size=(2, 4, 6))
    inside = [External(model, w) for w in wrenches]
    outside = [External(model, lambda t, q, v: wrenches.sum(axis=0))]
    assert Motion(model, inside).program is not None
    assert Motion(model, outside).program is None
    for method in ("dopri5", "esdirk4"):
        one, other = (simulate(model, duration=0.2, forces=f, method=method, **TIGHT) for f in (inside, outside))
        np.testing.assert_allclose(one.q[-1], other.q[-1], atol=1e-8)
        np.testing.assert_allclose(one.tau[-1], other.tau[-1], atol=1e-6)
    run = simulate(model, duration=0.1, forces=inside, dynamics="composite", **TIGHT)
    np.testing.assert_allclose(run.q[-1], simulate(model, duration=0.1, forces=outside, **TIGHT).q[-1], atol=1e-8)


def with_python(forces):
    """The same forces as functions."""
    own = [lambda t, q, v, force=force: force(t, q, v) for force in forces]
    return [Drive(function) if getattr(force, "drive", False) else function for force, function in zip(forces, own)]


def controlled(joints):
    """A machine under computed torques, of a wrong model and of two models, and under pulls."""
    model = replace(zoo.random_chain(4, 1), **joints)
    goal = Cycloid(np.zeros(4), np.linspace(0.3, 0.6, 4), 0.3)
    wrong = ComputedTorque(replace(model, mass=1.2 * model.mass), goal, 80.0, np.linspace(8, 12, 4))
    pulls = [Pull(model, name, [3.0, -2.0, 5.0], [0.1, 0.2, -0.3]) for name in (model.names[1], model.names[3])]
    push = External(model, RNG(7).normal(size=(4, 6)))
    waves = [External(model, RNG(k).normal(size=(3, 4, 6)), [0.0, 0.015, 0.3], between)
             for k, between in enumerate(("linear", "previous", "cubic"))]  # fmt: skip
    return model, {
        "computed": [wrong], "held": [ComputedTorque(model, np.full(4, 0.2))], "pulls": pulls, "waves": waves,
        "all": [wrong, *pulls, push, waves[0], Constant(np.ones(4)), ComputedTorque(model, np.ones(4), 3.0, 2.0)],
    }  # fmt: skip


@pytest.mark.parametrize("case", ["computed", "held", "pulls", "waves", "all"])
@pytest.mark.parametrize(
    "joints",
    [{}, {"stiffness": 3.0, "damping": 0.2}, {"friction": 0.2, "effort": 4.0}],
    ids=["bare", "springs", "busy"],
)
def test_computed_torques_and_pulls_are_part_of_the_right_hand_side(joints, case):
    """The stages of a step are those that the forces as functions give, and no function is called in them."""
    model, sets = controlled(joints)
    forces = sets[case]
    inside, outside = (Simulation(model, np.full(4, 0.1), np.full(4, 0.5), forces=f, method="dopri5")
                       for f in (forces, with_python(forces)))  # fmt: skip
    one, other = inside.stepper.stages, outside.stepper.stages
    assert one.fused
    assert not other.fused
    for stages in (one, other):
        stages.P[0] = inside.stepper.row[:8]
        stages(0.01, 0.02)
    np.testing.assert_allclose(one.P, other.P, rtol=0, atol=SAME_SUMS * np.abs(other.P).max())
    t, q, v = np.linspace(0, 0.4, 5), *RNG(3).normal(size=(2, 5, 4))
    many, single = (Motion(model, f).torques(t, q, v) for f in (forces, with_python(forces)))
    np.testing.assert_allclose(many, single, rtol=0, atol=SAME_SUMS * np.abs(single).max())


@pytest.mark.parametrize("seed", [1, 2, *slow(3, 4, 5)])
def test_machines_with_quaternions_have_a_compiled_right_hand_side(seed):
    """Stages of trees with joints of every type, under all that their joints do, a table, wrenches and pulls."""
    tree = zoo.random_tree(8, seed)
    flat = ts.model.freedoms.limited_coordinates(tree) >= 0
    model = replace(tree, friction=0.2, lower=np.where(flat, -0.3, -np.inf), effort=2.0, speed=1.5, damping=0.1,
                    stiffness=np.where(flat, 3.0, 0))  # fmt: skip
    rng = RNG(seed)
    forces = [Table([0.0, 0.5], rng.normal(size=(2, tree.nv))), External(tree, rng.normal(size=(tree.n, 6))),
              Pull(tree, tree.names[3], [1.0, 2.0, 3.0])]  # fmt: skip
    q, v = tree.random_configuration(rng), rng.normal(size=tree.nv)
    for given in (forces, []):
        stages = Simulation(model, q, v, forces=given, method="dopri5").stepper.stages
        stages.P[0] = np.concatenate([q, v])
        assert stages.fused
        found = stages(0.01, 0.002)
        P, Y = stages.P.copy(), stages.Y.copy()
        expected = stages.one_by_one(0.01, 0.002)
        np.testing.assert_allclose(P, stages.P, rtol=0, atol=10 * SAME_SUMS * np.abs(P).max())
        np.testing.assert_allclose(Y, stages.Y, rtol=0, atol=10 * SAME_SUMS * np.abs(Y).max())
        np.testing.assert_allclose(found, expected, rtol=1e-5)  # sums of small differences


@pytest.mark.parametrize("method", ["dop853", "esdirk4", *slow("auto", "trbdf2", "abm", "radau")])
def test_computed_torques_and_pulls_move_a_model_as_functions_do(method):
    model, sets = controlled({"damping": 0.1})
    one, other = (simulate(model, duration=0.3, forces=f, method=method, rtol=1e-8, atol=1e-10)
                  for f in (sets["all"], with_python(sets["all"])))  # fmt: skip
    np.testing.assert_allclose(one.q[-1], other.q[-1], atol=1e-6)


def test_tables_of_wrenches_are_wrenches_at_every_time():
    model, wrenches = zoo.random_chain(4, 1), RNG(1).normal(size=(3, 4, 6))
    table, (q, v) = External(model, wrenches, [0.0, 0.2, 0.5]), RNG(2).normal(size=(2, 4))
    for t, expected in ((-1.0, wrenches[0]), (0.1, (wrenches[0] + wrenches[1]) / 2), (0.5, wrenches[2])):
        np.testing.assert_allclose(table(t, q, v), External(model, expected)(t, q, v), atol=1e-12)
    run = simulate(model, duration=0.1, forces=table, **TIGHT)
    called = External(model, lambda t, q, v: wrenches[0] + t / 0.2 * (wrenches[1] - wrenches[0]))
    np.testing.assert_allclose(run.q[-1], simulate(model, duration=0.1, forces=called, **TIGHT).q[-1], atol=1e-9)
    for wrong in ({"t": [0.0, 1.0]}, {"t": [0.0, 2.0, 1.0]}, {"wrenches": wrenches[:, :3]}, {"between": "lines"}):
        with pytest.raises(ts.ArgumentError, match=r"table|increase|shape|between"):
            External(**{"model": model, "wrenches": wrenches, "t": [0.0, 0.2, 0.5]} | wrong)


def test_a_table_gives_many_rows_with_the_same_bits():
    times = np.linspace(-0.1, 0.9, 23)
    for between in ("linear", "previous", "cubic"):
        table = Table([0.0, 0.3, 0.8], RNG(1).normal(size=(3, 4)), between)
        np.testing.assert_array_equal(table.commands(times), [table.command(t) for t in times])


def test_a_cycloid_gives_many_rows_with_the_same_bits():
    goal, times = Cycloid(np.zeros(3), np.linspace(1, 2, 3), 0.7), np.linspace(-0.1, 0.9, 11)
    for rows, ones in zip(goal.rows(times), zip(*map(goal, times))):
        np.testing.assert_array_equal(rows, np.array(ones))


def test_laws_beside_quaternions():
    """Joints of a tree with a free body: the limits of some freedoms, and no word about the others."""
    tree = zoo.random_tree(7, 1)
    flat = ts.model.freedoms.limited_coordinates(tree) >= 0
    model = replace(tree, friction=0.2, lower=np.where(flat, -0.3, -np.inf), effort=2.0, damping=0.1,
                    stiffness=np.where(flat, 3.0, 0))  # fmt: skip
    rng = RNG(3)
    q, v, u = tree.random_configuration(rng), *rng.normal(size=(2, tree.nv))
    found = Motion(model, [Constant(3 * u)]).torque(0.0, q, v)
    x = np.where(flat, q[ts.model.freedoms.limited_coordinates(tree)], 0.0)
    np.testing.assert_allclose(found, by_hand(model, x, v, 3 * u), atol=1e-11)


@pytest.mark.parametrize("method", ["auto", "esdirk4", *slow("trbdf2", "implicit-euler", "verlet")])
def test_a_resumed_run_has_the_same_bits(tmp_path, method):
    model = busy(zoo.random_chain(3, 1))
    force = PD(model, Cycloid(np.zeros(3), np.ones(3), 0.2), 1e3, 30.0)
    options = dict(forces=force, method=method, step=1e-3, rtol=1e-4, atol=1e-6)
    whole = Simulation(model, **options).run(0.2)
    part = Simulation(model, record=tmp_path / "run.traj", chunk=5, **options)
    steps = len(whole.t) // 2
    for _ in range(steps):
        part.step(0.2)
    again = Simulation.resume(tmp_path / "run.traj", forces=force).run(0.2)
    np.testing.assert_array_equal(again.q, whole.q)
    np.testing.assert_array_equal(again.v, whole.v)


# Rollouts ----------------------------------------------------------------------------------------------------


def steps_by_hand(model, bare, q, v, command, integrator, steps, dt):
    """The steps of a rollout by the public forward dynamics; slopes by differences."""
    h, path = 1e-7, []
    for t in range(steps):
        if integrator == "rk4":

            def f(y, t=t):
                q, v = np.split(y, 2)
                return np.concatenate([v, ts.forward_dynamics(bare, q, v, by_hand(model, q, v, command(t, q, v)))])

            y = np.concatenate([q, v])
            k1 = f(y)
            k2 = f(y + dt / 2 * k1)
            k3 = f(y + dt / 2 * k2)
            q, v = np.split(y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + f(y + dt * k3)), 2)
        else:
            tau, added = by_hand(model, q, v, command(t, q, v)), None
            if integrator == "implicit":
                K, D = (
                    (by_hand(model, q - a, v - b, command(t, q - a, v - b)) -
                     by_hand(model, q + a, v + b, command(t, q + a, v + b))) / (2 * h)
                    for a, b in ((h, 0.0), (0.0, h))
                )  # fmt: skip
                sliding = np.hypot(v, CREEP)  # friction counts with -tau / v, not with its slope
                D = D + model.friction * (1 / sliding - CREEP**2 / sliding**3)
                tau, added = tau - dt * K * v, dt * D + dt**2 * K
            v = v + dt * ts.forward_dynamics(bare, q, v, tau, added_inertia=added)
            q = q + dt * v
        path.append(np.concatenate([q, v]))
    return np.array(path)


@pytest.mark.parametrize("integrator", ["implicit", *slow("semi-implicit", "rk4")])
@pytest.mark.parametrize("n", [4, 13], ids=["unrolled", "loops"])
def test_members_of_a_rollout_have_joints_of_their_own(integrator, n):
    """Springs, friction, stops, effort and speed of every trajectory, against the definitions and one by one."""
    bare = zoo.random_chain(n, 1)
    machines = [replace(busy(bare, seed), effort=2.0 + seed, lower=-0.5 - 0.1 * seed) for seed in range(3)]
    names = ("stiffness", "rest", "damping", "friction", "lower", "upper", "effort", "speed")
    batch = ts.ModelBatch(bare, **{name: np.array([getattr(m, name) for m in machines]) for name in names})
    rng, dt, steps = RNG(4), 1e-3, 4
    q, v, tau = rng.normal(size=(3, 3, n))
    servo = ts.JointFeedback(rng.uniform(1, 20, (3, n)), rng.uniform(0, 2, (3, n)), rng.normal(size=(3, n)))
    options = dict(steps=steps, dt=dt, tau=tau, integrator=integrator)
    if n < 5:
        found = ts.rollout(batch, q, v, feedback=servo, **options)
    else:  # a batch of many joints takes long to compile: only the machines themselves
        own = [ts.JointFeedback(servo.kp[k], servo.kd[k], servo.q_ref[k]) for k in range(3)]
        each = [ts.rollout(m, q[k], v[k], feedback=own[k], **options | {"tau": tau[k]}) for k, m in enumerate(machines)]
        found = Rollout(*(np.array(x) for x in zip(*each)))
    exact = 1e-5 if integrator == "implicit" else 1e-10  # slopes by differences
    for k, machine in enumerate(machines):

        def command(t, q, v, k=k):
            return tau[k] + servo.kp[k] * (servo.q_ref[k] - q) - servo.kd[k] * v

        expected = steps_by_hand(machine, bare, q[k], v[k], command, integrator, steps, dt)
        got = np.concatenate([found.q[k], found.v[k]], axis=-1)
        assert np.abs(got - expected).max() < exact * np.abs(expected).max()
        if n > 5:
            continue
        own = ts.JointFeedback(servo.kp[k], servo.kd[k], servo.q_ref[k])
        alone = ts.rollout(machine, q[k], v[k], feedback=own, **options | dict(tau=tau[k]))
        np.testing.assert_allclose(found.q[k], alone.q, atol=ROUNDING)
        np.testing.assert_allclose(found.v[k], alone.v, atol=100 * ROUNDING)


@pytest.mark.parametrize("size", [1.0, 1e3, 1e9])
def test_implicit_steps_stop_at_rest_under_any_friction(size):
    """A light cart never turns round: v' = v / (1 + h F / (m |v|)), where explicit steps would chatter for ever."""
    light = ts.Model.chain("prismatic", mass=0.01, inertia=(1, 1, 1), gravity=(0, 0, 0), friction=size)
    v = ts.rollout(light, [0.0], [0.05], steps=50, dt=1e-3, integrator="implicit").v[:, 0]
    assert v[0] == pytest.approx(0.05 / (1 + 1e-3 * size / (0.01 * np.hypot(0.05, CREEP))))
    assert (np.diff(v) <= 0).all()
    assert 0 <= v[-1] < 1e-6


def test_rollouts_and_simulations_agree():
    """Two engines, one law: rk4 at short steps is the motion of dop853."""
    model = busy(zoo.random_chain(3, 1))
    force = Constant([2.0, -4.0, 1.0])
    q0 = np.full(3, 0.1)
    run = simulate(model, q0, duration=0.1, forces=force, method="dop853", **TIGHT)
    path = ts.rollout(model, q0, np.zeros(3), steps=2000, dt=0.1 / 2000, tau=force.tau, every=2000, integrator="rk4")
    np.testing.assert_allclose(path.q[-1], run.q[-1], atol=1e-8)


def test_forces_of_the_simulation_are_checked():
    arm = zoo.planar3()
    with pytest.raises(ts.ArgumentError, match="force"):
        Drive(3.0)
    with pytest.raises(ts.ArgumentError, match="viscous and coulomb have shapes"):
        simulate(arm, forces=Friction(np.ones(2)))
    with pytest.raises(ts.ArgumentError, match="creep"):
        Friction(creep=0.0)
    with pytest.raises(ts.ModelError, match="effort"):
        replace(arm, effort=-1.0)
    assert Motion(arm, [Limits(arm, -1.0, 1.0), Friction(coulomb=1.0)]).program is not None


def test_wrenches_on_the_bodies_of_another_model_are_felt_at_its_joints():
    """The machine and the recorded torques agree, as they do for a force that is called."""
    arm, other = zoo.general_arm(3, 1), zoo.general_arm(3, 2)
    push = External(other, np.ones((3, 6)))
    found, called = (simulate(arm, duration=0.1, forces=force, **TIGHT) for force in (push, lambda *x: push(*x)))
    np.testing.assert_allclose(found.q[-1], called.q[-1], rtol=0, atol=ROUNDING)


def test_a_spring_of_another_machine_is_refused():
    with pytest.raises(ts.ArgumentError, match="was made for Model"):
        simulate(zoo.general_arm(3), duration=0.1, forces=Spring(zoo.general_arm(4), 1.0))


@pytest.mark.parametrize("motion", [
    (np.zeros(3),) * 2, (np.zeros(2), np.zeros(3), np.zeros(3)), (np.zeros(3), np.zeros(2), np.zeros(3)),
], ids=["two", "short", "slow"])  # fmt: skip
@pytest.mark.parametrize("force", [PD, ComputedTorque])
def test_a_motion_that_does_not_fit_is_refused(force, motion):
    """From the beginning, and from some time on."""
    arm = zoo.general_arm(3)
    for begin in (0.0, 0.05):
        reference = lambda t, begin=begin: motion if t >= begin else (np.zeros(3),) * 3  # noqa: E731
        with pytest.raises(ts.ArgumentError, match=r"must give q, v and a|what it follows"):
            simulate(arm, duration=0.1, forces=force(arm, reference, 1.0, 1.0))
    with pytest.raises(ts.ArgumentError, match="was made for"):
        simulate(zoo.general_arm(4), duration=0.1, forces=force(arm, np.zeros(3), 1.0, 1.0))


def test_motions_of_one_number_are_those_of_all_freedoms():
    arm = zoo.general_arm(3)
    for reference in (lambda t: (t, 1.0, 0.0), Cycloid(0.0, 1.0, 0.1)):
        whole = lambda t, one=reference: tuple(np.full(3, x) for x in one(t))  # noqa: E731
        one, all_ = (simulate(arm, duration=0.1, forces=ComputedTorque(arm, r)) for r in (reference, whole))
        np.testing.assert_array_equal(one.q, all_.q)


@pytest.mark.parametrize(("given", "words"), [
    ({"body": "nobody"}, "nobody"),
    ({"force": [1.0, 2.0]}, "force has shape"),
    ({"at": [np.nan] * 3}, "at must be finite"),
    ({"force": [1e300] * 3, "at": [1e300] * 3}, "overflows"),
    ({"force": np.ones((2, 3)), "at": np.ones((3, 3))}, "do not go together"),
])  # fmt: skip
def test_pulls_that_cannot_be_are_refused_by_name(given, words):
    arm = zoo.general_arm(3)
    with pytest.raises(ts.ArgumentError, match=words):
        Pull(**{"model": arm, "body": "link1", "force": [1.0, 2.0, 3.0]} | given)
    with pytest.raises(ts.ArgumentError, match="without axes"):
        simulate(arm, duration=0.1, forces=Pull(arm, "link1", np.ones((2, 3))))
