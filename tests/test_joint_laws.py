"""What acts at the joints: laws against their definitions, their slopes, and the same in every engine."""

from dataclasses import replace

import numpy as np
import pytest
from machines import torque_of, torques_of
from peers.installed import peer

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
from torsor.motion import laws
from torsor.motion.law import STOP_TIME, Part, collect, felt_inertia
from torsor.motion.laws import CUSHION
from torsor.motion.motion import Motion

mujoco = peer("mujoco")

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
    inertia = felt_inertia(model)
    for depth, away, sign in ((model.lower - q, v, 1), (q - model.upper, -v, -1)):
        damping = 2 * inertia / STOP_TIME * np.clip(depth / CUSHION, 0, 1)
        tau = tau + sign * np.where(depth > 0, np.maximum(inertia / STOP_TIME**2 * depth - damping * away, 0), 0)
    return tau


def test_the_inertia_that_a_joint_feels_is_that_of_all_bodies_beyond_it_with_their_joints_free():
    arm = zoo.random_chain(6, 2)
    M = ts.mass_matrix(arm, arm.neutral())
    expected = [1 / np.linalg.inv(M[k:, k:])[0, 0] for k in range(arm.nv)]
    np.testing.assert_allclose(felt_inertia(arm), expected, rtol=1e-10)


def busy(model, seed=0):
    """The model with something of everything at its joints."""
    rng, n = RNG(seed), model.nv
    some = np.arange(n) % 2 == 0
    return replace(model, stiffness=rng.uniform(1, 9, n), rest=rng.normal(size=n), damping=rng.uniform(0, 1, n),
                   friction=0.3 * some, lower=np.where(some, -0.8, -np.inf), upper=0.7, effort=np.where(some, 3.0, 5.0),
                   speed=np.where(some, np.inf, 1.5))  # fmt: skip


@pytest.mark.parametrize("kinds", [(kind,) for kind in ALL] + [ALL], ids=[*ALL, "all"])
def test_slopes_are_those_of_the_torque(kinds):
    """-d tau/dx and -d tau/dv by differences; for stops, pushes that neither begin nor end in between.

    The slope of a stop does not count how its damper sets in.
    """
    rng, h = RNG(1), 1e-7
    x, v, u = rng.normal(size=(3, 500))
    u = 5 * u
    own = {"spring": (0.3, 2.0, 0.7), "friction": (0.4, 0.1), "stops": (-0.5, 0.4, 1e4, 10.0), "servo": (9.0, 2.0),
           "effort": (3.0,), "speed": (1.2,)}  # fmt: skip
    numbers = [y for kind in kinds for y in own[kind]]
    law, torque = laws.kernel(kinds, slopes=True), laws.kernel(kinds, slopes=False)
    tau, K, D, excess = law(x, v, u, *numbers).T
    D = D - excess  # friction counts with -tau / v in linearly implicit steps
    np.testing.assert_allclose(tau, torque(x, v, u, *numbers), rtol=1e-13, atol=1e-14)
    sides = [[torque(x + i * dx, v + i * dv, u, *numbers) for i in (1, -1)] for dx, dv in ((h, 0), (0, h))]
    lower, upper = own["stops"][:2]
    depth = np.abs(x - np.clip(x, lower, upper))
    soft = ("stops" in kinds) & (depth > 0) & (depth < CUSHION + h)
    for slope, (more, less) in zip((K, D), sides):
        one, other = (less - tau) / h, (tau - more) / h
        smooth = (np.abs(one - other) < 1e-3 * (1 + np.abs(one))) & ~soft  # no corner there
        assert smooth.mean() > 0.95
        assert np.abs(slope - (one + other) / 2)[smooth].max() < SLOPE * (1 + np.abs(slope).max())


def test_limits_that_are_infinite_do_nothing_in_either_precision():
    for dtype in ("float64", "float32"):
        law = laws.kernel(("stops", "effort", "speed"), True, dtype)
        x, v, u = (1e6 * RNG(0).normal(size=(3, 20))).astype(dtype)
        numbers = [np.full(20, y, dtype) for y in (-laws.FAR, laws.FAR, 1e4, 1e2, laws.FAR, laws.FAR)]
        np.testing.assert_array_equal(law(x, v, u, *numbers), np.stack([u, 0 * u, 0 * u, 0 * u], axis=1))


def test_a_drive_gives_no_more_than_its_effort():
    """Far from its goal a strong servo moves the cart by effort / mass."""
    strong = cart(effort=2.0)
    run = simulate(strong, duration=1.0, forces=PD([100.0], 1e4, 10.0), **TIGHT)
    assert run.q[-1, 0] == pytest.approx(0.5 * 2.0, abs=1e-9)
    np.testing.assert_allclose(run.tau, 2.0, rtol=0, atol=1e-12)
    both = simulate(
        strong,
        duration=1.0,
        forces=[Constant([5.0]), ts.Function(lambda t, q, v: np.array([-4.0]), drive=True)],
        **TIGHT,
    )
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
    servo = PD(goal, kp, kd)
    path = ts.rollout(model, np.zeros(2), np.zeros(2), steps=1000, step=1e-4, every=1000, forces=servo, method="rk4")
    np.testing.assert_allclose(path.q[-1], data.qpos, rtol=0, atol=1e-13)
    np.testing.assert_allclose(path.v[-1], data.qvel, rtol=0, atol=1e-12)
    run = simulate(model, duration=0.1, forces=servo, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(run.q[-1], data.qpos, rtol=0, atol=1e-6)  # fixed steps pass over the corners of a law
    assert (np.abs(kp * (goal - run.q) - kd * run.v) > model.effort).mean() > 0.3  # it is cut off


def test_a_drive_pushes_up_to_its_speed_and_brakes_beyond_it():
    """Close to its speed s, v' = F (s - v) / (0.05 s): the rest decays with that rate."""
    quick = cart(speed=2.0)
    run = simulate(quick, duration=3.0, forces=Constant([1.0]), **TIGHT)
    assert run.v.max() <= 2.0
    late = run.t > 1.95  # from v = 1.9 at t = 1.9 on
    expected = 2.0 - 0.1 * np.exp(-(run.t[late] - 1.9) / 0.1)
    np.testing.assert_allclose(run.v[late, 0], expected, rtol=0, atol=1e-7)
    braked = simulate(quick, v0=[5.0], duration=1.0, forces=Constant([-1.0]), **TIGHT)
    assert braked.v[-1, 0] == pytest.approx(4.0, abs=1e-9)
    coasting = simulate(quick, v0=[5.0], duration=1.0, forces=Constant([1.0]), **TIGHT)
    np.testing.assert_array_equal(coasting.v, 5.0)


@pytest.mark.parametrize("method", ["dopri5", "esdirk4", *slow("dop853", "abm", "radau")])
def test_forces_that_are_data_move_a_model_as_functions_do(method):
    model, bare = busy(zoo.random_chain(4, 1)), zoo.random_chain(4, 1)
    goal = Cycloid(np.zeros(4), np.full(4, 0.5), 0.3)
    table = Table([0.0, 0.1, 0.3], RNG(2).normal(size=(3, 4)), "cubic")
    forces = [PD(goal, 30.0, 3.0), table]
    assert Motion(model, forces).compiled_law.is_one_kernel
    command = torques_of(bare, forces)

    def torque(t, q, v):
        return by_hand(model, q, v, command(t, q, v))

    inside = simulate(model, duration=0.1, forces=forces, method=method, rtol=1e-8, atol=1e-10)
    outside = simulate(bare, duration=0.1, forces=torque, method="radau", rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(inside.q[-1], outside.q[-1], rtol=0, atol=2e-6)
    expected = np.array([torque(*state) for state in zip(inside.t, inside.q, inside.v)])
    np.testing.assert_allclose(inside.tau, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("joints", [{}, {"stiffness": 3.0, "damping": 0.2}, {"friction": 0.2}], ids=str)
def test_constant_wrenches_are_part_of_the_right_hand_side(joints):
    """The same motion as with the wrenches in a function, and the torques that they are at the joints."""
    model = replace(zoo.random_chain(4, 1), **joints)
    wrenches = RNG(7).normal(size=(2, 4, 6))
    inside = [External(w) for w in wrenches]
    outside = [External(lambda t, q, v: wrenches.sum(axis=0))]
    assert Motion(model, inside).compiled_law.is_one_kernel
    assert not Motion(model, outside).compiled_law.is_one_kernel
    for method in ("dopri5", "esdirk4"):
        one, other = (simulate(model, duration=0.2, forces=f, method=method, **TIGHT) for f in (inside, outside))
        np.testing.assert_allclose(one.q[-1], other.q[-1], rtol=0, atol=1e-8)
        np.testing.assert_allclose(one.tau[-1], other.tau[-1], rtol=0, atol=1e-6)
    run = simulate(model, duration=0.1, forces=inside, dynamics="composite", **TIGHT)
    np.testing.assert_allclose(
        run.q[-1], simulate(model, duration=0.1, forces=outside, **TIGHT).q[-1], rtol=0, atol=1e-8
    )


def with_python(model, forces):
    """The same forces as functions."""
    return [
        ts.Function(torques_of(model, force), drive=isinstance(force, PD | Constant | ComputedTorque))
        for force in forces
    ]


def controlled(joints):
    """A machine under computed torques, of a wrong model and of two models, and under pulls."""
    model = replace(zoo.random_chain(4, 1), **joints)
    goal = Cycloid(np.zeros(4), np.linspace(0.3, 0.6, 4), 0.3)
    wrong = ComputedTorque(goal, 80.0, np.linspace(8, 12, 4), model=replace(model, mass=1.2 * model.mass))
    pulls = [Pull(name, [3.0, -2.0, 5.0], [0.1, 0.2, -0.3]) for name in (model.names[1], model.names[3])]
    push = External(RNG(7).normal(size=(4, 6)))
    waves = [External(RNG(k).normal(size=(3, 4, 6)), [0.0, 0.015, 0.3], between)
             for k, between in enumerate(("linear", "previous", "cubic"))]  # fmt: skip
    return model, {
        "computed": [wrong], "held": [ComputedTorque(np.full(4, 0.2))], "pulls": pulls, "waves": waves,
        "all": [wrong, *pulls, push, waves[0], Constant(np.ones(4)), PD(np.ones(4), 3.0, 2.0)],
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
                       for f in (forces, with_python(model, forces)))  # fmt: skip
    one, other = inside.stepper.stages, outside.stepper.stages
    assert one.fused
    assert not other.fused
    for stages in (one, other):
        stages.P[0] = inside.stepper.row[:8]
        stages(0.01, 0.02)
    np.testing.assert_allclose(one.P, other.P, rtol=0, atol=SAME_SUMS * np.abs(other.P).max())
    t, q, v = np.linspace(0, 0.4, 5), *RNG(3).normal(size=(2, 5, 4))
    many, single = (Motion(model, f).torques(t, q, v) for f in (forces, with_python(model, forces)))
    np.testing.assert_allclose(many, single, rtol=0, atol=SAME_SUMS * np.abs(single).max())


@pytest.mark.parametrize("seed", [1, 2, *slow(3, 4, 5)])
def test_machines_with_quaternions_have_a_compiled_right_hand_side(seed):
    """Stages of trees with joints of every type, under all that their joints do, a table, wrenches and pulls."""
    tree = zoo.random_tree(8, seed)
    flat = ts.model.freedoms.limited_coordinates(tree) >= 0
    model = replace(tree, friction=0.2, lower=np.where(flat, -0.3, -np.inf), effort=2.0, speed=1.5, damping=0.1,
                    stiffness=np.where(flat, 3.0, 0))  # fmt: skip
    rng = RNG(seed)
    forces = [Table([0.0, 0.5], rng.normal(size=(2, tree.nv))), External(rng.normal(size=(tree.n, 6))),
              Pull(tree.names[3], [1.0, 2.0, 3.0])]  # fmt: skip
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
                  for f in (sets["all"], with_python(model, sets["all"])))  # fmt: skip
    np.testing.assert_allclose(one.q[-1], other.q[-1], rtol=0, atol=1e-6)


def test_tables_of_wrenches_are_wrenches_at_every_time():
    model, wrenches = zoo.random_chain(4, 1), RNG(1).normal(size=(3, 4, 6))
    table, (q, v) = External(wrenches, [0.0, 0.2, 0.5]), RNG(2).normal(size=(2, 4))
    for t, expected in ((-1.0, wrenches[0]), (0.1, (wrenches[0] + wrenches[1]) / 2), (0.5, wrenches[2])):
        found, fixed = (torque_of(model, force, t, q, v) for force in (table, External(expected)))
        np.testing.assert_allclose(found, fixed, rtol=0, atol=1e-12)
    run = simulate(model, duration=0.1, forces=table, **TIGHT)
    called = External(lambda t, q, v: wrenches[0] + t / 0.2 * (wrenches[1] - wrenches[0]))
    np.testing.assert_allclose(
        run.q[-1], simulate(model, duration=0.1, forces=called, **TIGHT).q[-1], rtol=0, atol=1e-9
    )
    for wrong in ({"t": [0.0, 1.0]}, {"t": [0.0, 2.0, 1.0]}, {"wrenches": wrenches[:, :3]}, {"between": "lines"}):
        with pytest.raises(ts.ArgumentError, match=r"table|increase|shape|between"):
            simulate(model, duration=0.1, forces=External(**{"wrenches": wrenches, "t": [0.0, 0.2, 0.5]} | wrong))


def test_a_table_gives_many_rows_with_the_same_bits():
    times = np.linspace(-0.1, 0.9, 23)
    for between in ("linear", "previous", "cubic"):
        table = Table([0.0, 0.3, 0.8], RNG(1).normal(size=(3, 4)), between)
        law = collect(zoo.random_chain(4, 1), table)
        one_by_one = [law.commands_at(np.array([t]))[0] for t in times]
        np.testing.assert_array_equal(law.commands_at(times), one_by_one)


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
    np.testing.assert_allclose(found, by_hand(model, x, v, 3 * u), rtol=0, atol=1e-11)


@pytest.mark.parametrize("method", ["auto", "esdirk4", *slow("trbdf2", "implicit-euler", "verlet")])
def test_a_resumed_run_has_the_same_bits(tmp_path, method):
    model = busy(zoo.random_chain(3, 1))
    force = PD(Cycloid(np.zeros(3), np.ones(3), 0.2), 1e3, 30.0)
    options = dict(forces=force, method=method, step=1e-3, rtol=1e-4, atol=1e-6)
    whole = Simulation(model, **options).run(0.2)
    part = Simulation(model, file=tmp_path / "run.traj", chunk=5, **options)
    steps = len(whole.t) // 2
    for _ in range(steps):
        part.step(0.2)
    again = Simulation.resume(tmp_path / "run.traj", forces=force).run(0.2)
    np.testing.assert_array_equal(again.q, whole.q)
    np.testing.assert_array_equal(again.v, whole.v)


# Rollouts ----------------------------------------------------------------------------------------------------


def steps_by_hand(model, bare, q, v, command, method, steps, dt):
    """The steps of a rollout by the public forward dynamics; slopes by differences."""
    h, path = 1e-7, []
    for t in range(steps):
        if method == "rk4":

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
            if method == "implicit-euler":
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


@pytest.mark.parametrize("method", ["implicit-euler", *slow("semi-implicit", "rk4")])
@pytest.mark.parametrize("n", [4, 13], ids=["unrolled", "loops"])
def test_members_of_a_rollout_have_joints_of_their_own(method, n):
    """Springs, friction, stops, effort and speed of every trajectory, against the definitions and one by one."""
    bare = zoo.random_chain(n, 1)
    machines = [replace(busy(bare, seed), effort=2.0 + seed, lower=-0.5 - 0.1 * seed) for seed in range(3)]
    names = ("stiffness", "rest", "damping", "friction", "lower", "upper", "effort", "speed")
    batch = ts.ModelBatch(bare, **{name: np.array([getattr(m, name) for m in machines]) for name in names})
    rng, dt, steps = RNG(4), 1e-3, 4
    q, v, tau = rng.normal(size=(3, 3, n))
    kp, kd, goal = rng.uniform(1, 20, (3, n)), rng.uniform(0, 2, (3, n)), rng.normal(size=(3, n))
    options = dict(steps=steps, step=dt, method=method)
    own = [[PD(goal[k], kp[k], kd[k]), Constant(tau[k])] for k in range(3)]
    alone = [ts.rollout(m, q[k], v[k], forces=own[k], **options) for k, m in enumerate(machines)]
    together = [np.array([run.q for run in alone]), np.array([run.v for run in alone])]
    if n < 5:  # a batch of many joints takes long to compile
        found = ts.rollout(batch, q, v, forces=[PD(goal, kp, kd), Constant(tau)], **options)
        np.testing.assert_allclose(found.q, together[0], rtol=0, atol=ROUNDING)
        np.testing.assert_allclose(found.v, together[1], rtol=0, atol=100 * ROUNDING)
    exact = 1e-5 if method == "implicit-euler" else 1e-10  # slopes by differences
    for k, machine in enumerate(machines):

        def command(t, q, v, k=k):
            return tau[k] + kp[k] * (goal[k] - q) - kd[k] * v

        expected = steps_by_hand(machine, bare, q[k], v[k], command, method, steps, dt)
        got = np.concatenate([x[k] for x in together], axis=-1)
        assert np.abs(got - expected).max() < exact * np.abs(expected).max()


@pytest.mark.parametrize("size", [1.0, 1e3, 1e9])
def test_implicit_steps_stop_at_rest_under_any_friction(size):
    """A light cart never turns round: v' = v / (1 + h F / (m |v|)), where explicit steps would chatter for ever."""
    light = ts.Model.chain("prismatic", mass=0.01, inertia=(1, 1, 1), gravity=(0, 0, 0), friction=size)
    v = ts.rollout(light, [0.0], [0.05], steps=50, step=1e-3, method="implicit-euler").v[:, 0]
    assert v[0] == pytest.approx(0.05 / (1 + 1e-3 * size / (0.01 * np.hypot(0.05, CREEP))))
    assert (np.diff(v) <= 0).all()
    assert 0 <= v[-1] < 1e-6


def test_a_law_acts_wherever_any_of_its_numbers_does_something(monkeypatch):
    """A law of the user, whose first number may be zero where its second is not."""
    monkeypatch.setitem(laws.KINDS, "two springs", (
        lambda x, v, soft, hard: laws.Action(-((soft + hard) * x), soft + hard), {"soft": 0.0, "hard": 0.0}
    ))  # fmt: skip

    class TwoSprings:
        def terms(self, model):
            return (Part("two springs", (np.array([0.0, 2.0, 0.0]), np.array([3.0, 0.0, 0.0]))),)

    model, q, v = zoo.general_arm(3), np.array([1.0, 2.0, 3.0]), np.zeros(3)
    assert np.array_equal(torque_of(model, TwoSprings(), 0.0, q, v), [-3.0, -4.0, 0.0])


def test_one_computed_torque_acts_at_a_time():
    with pytest.raises(ts.ArgumentError, match="ComputedTorque twice"):
        simulate(zoo.general_arm(3), duration=0.1, forces=[ComputedTorque(np.zeros(3)), ComputedTorque(np.ones(3))])


def test_rollouts_and_simulations_agree():
    """Two engines, one law: rk4 at short steps is the motion of dop853."""
    model = busy(zoo.random_chain(3, 1))
    force = Constant([2.0, -4.0, 1.0])
    q0 = np.full(3, 0.1)
    run = simulate(model, q0, duration=0.1, forces=force, method="dop853", **TIGHT)
    path = ts.rollout(model, q0, np.zeros(3), steps=2000, step=0.1 / 2000, forces=force, every=2000, method="rk4")
    np.testing.assert_allclose(path.q[-1], run.q[-1], rtol=0, atol=1e-7)  # fixed steps pass over the corners of a law


def test_forces_of_the_simulation_are_checked():
    arm = zoo.planar3()
    with pytest.raises(ts.ArgumentError, match="torque"):
        ts.Function(3.0, drive=True)
    with pytest.raises(ts.ArgumentError, match=r"viscous of Friction has shape \(2,\)"):
        simulate(arm, forces=Friction(np.ones(2)))
    with pytest.raises(ts.ArgumentError, match="creep"):
        Friction(creep=0.0)
    with pytest.raises(ts.ModelError, match="effort"):
        replace(arm, effort=-1.0)
    assert Motion(arm, [Limits(-1.0, 1.0), Friction(coulomb=1.0)]).compiled_law.is_one_kernel


def test_wrenches_act_on_the_bodies_of_the_model_that_moves():
    """One force on two machines: the motion and the recorded torques agree, as they do for a force that is called."""
    push = External(np.ones((3, 6)))
    for arm in (zoo.general_arm(3, 1), zoo.general_arm(3, 2)):
        called = ts.Function(torques_of(arm, push))
        found, expected = (simulate(arm, duration=0.1, forces=force, **TIGHT) for force in (push, called))
        np.testing.assert_allclose(found.q[-1], expected.q[-1], rtol=0, atol=ROUNDING)


def test_a_spring_of_another_machine_is_refused():
    with pytest.raises(ts.ArgumentError, match=r"stiffness of Spring has shape \(4,\)"):
        simulate(zoo.general_arm(3), duration=0.1, forces=Spring(np.ones(4)))


@pytest.mark.parametrize("motion", [
    (np.zeros(3),) * 2, (np.zeros(2), np.zeros(3), np.zeros(3)), (np.zeros(3), np.zeros(2), np.zeros(3)),
], ids=["two", "short", "slow"])  # fmt: skip
@pytest.mark.parametrize("force", [PD, ComputedTorque])
def test_a_motion_that_does_not_fit_is_refused(force, motion):
    """From the beginning, and from some time on."""
    arm = zoo.general_arm(3)
    for begin in (0.0, 0.05):
        reference = lambda t, begin=begin: motion if t >= begin else (np.zeros(3),) * 3  # noqa: E731
        with pytest.raises(ts.ArgumentError, match=r"must give q, v and a|a reference gives"):
            simulate(arm, duration=0.1, forces=force(reference, 1.0, 1.0))
    with pytest.raises(ts.ArgumentError, match=r"reference has shape \(3,\)"):
        simulate(zoo.general_arm(4), duration=0.1, forces=force(np.zeros(3), 1.0, 1.0))


def test_motions_of_one_number_are_those_of_all_freedoms():
    arm = zoo.general_arm(3)
    for reference in (lambda t: (t, 1.0, 0.0), Cycloid(0.0, 1.0, 0.1)):
        whole = lambda t, one=reference: tuple(np.full(3, x) for x in one(t))  # noqa: E731
        one, all_ = (simulate(arm, duration=0.1, forces=ComputedTorque(r)) for r in (reference, whole))
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
        simulate(arm, duration=0.1, forces=Pull(**{"body": "link1", "force": [1.0, 2.0, 3.0]} | given))
    with pytest.raises(ts.ArgumentError, match=r"batch axes .* for rollouts"):
        simulate(arm, duration=0.1, forces=Pull("link1", np.ones((2, 3))))


# ---- springs at joints with quaternions ----


def sprung(joint, stiffness):
    """A body on springs, without weight or at a ball joint with it, that turns and wobbles."""
    gravity = (0, 0, -9.81) if joint == "spherical" else (0, 0, 0)
    model = ts.Model.chain(joint, mass=1.0, com=(0.05, 0.02, -0.1), inertia=(0.02, 0.03, 0.04), gravity=gravity,
                           rest=np.linspace(0.1, 0.3, len(stiffness)), stiffness=stiffness)  # fmt: skip
    return model, model.integrate(model.neutral(), np.linspace(-0.8, 0.9, model.nv)), np.linspace(0.5, -0.7, model.nv)


@pytest.mark.parametrize("steps", [1000, *slow(10_000)])
@pytest.mark.parametrize("joint", ["spherical", "free"])
@pytest.mark.parametrize("method", ["midpoint", "verlet", "dop853"])
def test_springs_of_different_stiffness_keep_the_energy(joint, method, steps):
    """They are the gradient of a potential: nothing is gained or lost (in 1e4 steps, 10.6 J became 37.4 J).

    Steps of fixed length keep it to their order; the dampers by which the midpoint rule keeps it to rounding do not act
    at free joints.
    """
    model, q0, v0 = sprung(joint, [2.0, 7.0, 15.0] if joint == "spherical" else [2.0, 7.0, 15.0, 30.0, 10.0, 50.0])
    options = {"rtol": 1e-12, "atol": 1e-12} if method == "dop853" else {"step": 1e-3}
    allowed = {"dop853": 1e-8, "verlet": 1e-3, "midpoint": 1e-9 if joint == "spherical" else 1e-3}[method]
    run = simulate(model, q0, v0, steps * 1e-3, method=method, dt=0.01, dense=False, **options)
    energy = run.energy + run.elastic_energy
    assert run.elastic_energy.max() > 0.1
    assert np.ptp(run.kinetic_energy) > 0.1
    assert np.abs(energy - energy[0]).max() < allowed * run.kinetic_energy.max()


def test_springs_at_quaternions_are_the_gradient_of_their_energy():
    """As forces and as part of the model, on a tree with joints of every type."""
    tree, rng, h = zoo.random_tree(7, 1), RNG(2), 1e-6
    model = replace(tree, stiffness=rng.uniform(1, 9, tree.nv), rest=0.2 * rng.normal(size=tree.nv))
    rest = model.integrate(model.neutral(), model.rest)
    q, still = model.random_configuration(rng), np.zeros(model.nv)

    def energy(y):
        rows = np.tile(model.integrate(q, y), (2, 1)), np.zeros((2, model.nv))
        return ts.Trajectory(model, np.arange(2.0), *rows, rows[1], rows[1]).elastic_energy[0]

    slopes = [(energy(-h * e) - energy(h * e)) / (2 * h) for e in np.eye(model.nv)]
    np.testing.assert_allclose(Motion(model).torque(0.0, q, still), slopes, rtol=0, atol=1e-7)
    force = Spring(model.stiffness, rest)
    np.testing.assert_allclose(torque_of(tree, force, 0.0, q, still), slopes, rtol=0, atol=1e-7)


ON_SPRINGS = """
<mujoco>
  <option timestep="1e-4" integrator="RK4" gravity="{gravity}"/>
  <worldbody>
    <body pos="0 0 1">
      <joint type="{joint}" stiffness="6"/>
      <inertial pos="0.05 0.02 -0.1" mass="1" diaginertia="0.02 0.03 0.04"/>
    </body>
  </worldbody>
</mujoco>"""


@pytest.mark.parametrize("joint", ["ball", "free"])
def test_springs_of_equal_stiffness_are_those_of_mujoco(joint, tmp_path):
    text = ON_SPRINGS.format(joint=joint, gravity="0 0 -9.81")
    peer = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(peer)
    (tmp_path / "springs.xml").write_text(text)
    if joint == "ball":
        model = ts.load(tmp_path / "springs.xml")
        rest = model.neutral()
    else:  # springs of free joints are not read
        with pytest.warns(ts.ModelWarning, match="springs"):
            model = replace(ts.load(tmp_path / "springs.xml"), stiffness=6.0, rest=[0, 0, 0, 0, 0, 1.0])
        rest = model.integrate(model.neutral(), model.rest)
        np.testing.assert_allclose(rest, data.qpos)
    q0 = model.integrate(rest, np.linspace(0.5, -0.7, model.nv))
    data.qpos[:] = q0
    for _ in range(2000):
        mujoco.mj_step(peer, data)
    assert (model.stiffness == 6.0).all()
    run = simulate(model, q0, duration=0.2, method="dop853", **TIGHT)
    np.testing.assert_allclose(run.q[-1], data.qpos, rtol=0, atol=1e-8)
