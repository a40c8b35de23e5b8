"""Rollouts under every force: wrenches, motions to follow, computed torques and joints, on the CPU and as CUDA text."""

import gc
from dataclasses import replace

import cuda_host
import cuda_reader
import fake_cupy
import numpy as np
import pytest
import strict_cupy
from machines import difference
from test_joint_laws import busy, slow

import torsor as ts
from torsor import zoo
from torsor.backends import gpu
from torsor.compiler.frames import framed
from torsor.dynamics.members import members
from torsor.motion import fused, lowering, time_loop
from torsor.motion import rollout as rollouts
from torsor.motion.device_run import DeviceRun
from torsor.motion.driver import Fixed
from torsor.motion.gpu_rollout import kernel_of
from torsor.motion.law import Part, collect
from torsor.motion.motion import Motion
from torsor.motion.steps import METHODS as STEPS_OF

ROUNDING = 1e-11  # twenty steps of 1 ms, in float64
FOLLOWED = 1e-9  # a motion at rest at its ends, by rk4 with steps of 1 ms
H, STEPS = 1e-3, 5
METHODS = ["semi-implicit", "implicit-euler", "rk4"]
FEW = ["implicit-euler", *slow("semi-implicit", "rk4")]
RNG = np.random.default_rng
ARM, LONG = zoo.random_chain(4, 1), zoo.random_chain(14, 2)
TREE = zoo.random_tree(5, 3)


def start(model, count=3, seed=0):
    rng = RNG(seed)
    return model.random_configuration(rng, count), rng.normal(size=(count, model.nv))


def one_by_one(path, model, q, v, torque, method, gains=(0.0, 0.0), held=False):
    """A rollout (q, v) takes the steps of its definition, by the public forward dynamics; for joints with dq/dt = v.

    torque(t, q, v) at the time of an evaluation, or of the beginning of the step if it is held, both in steps.
    """

    def f(s, y):
        q, v = np.split(y, 2)
        return np.concatenate([v, ts.forward_dynamics(model, q, v, torque(t if held else t + s, q, v))])

    for t in range(STEPS):
        if method == "rk4":
            y = np.concatenate([q, v])
            k1 = f(0, y)
            k2 = f(0.5, y + H / 2 * k1)
            k3 = f(0.5, y + H / 2 * k2)
            q, v = np.split(y + H / 6 * (k1 + 2 * k2 + 2 * k3 + f(1, y + H * k3)), 2)
        else:
            K, D = gains if method == "implicit-euler" else (0.0, 0.0)
            added = np.broadcast_to(H * D + H**2 * K, v.shape)
            tau = torque(t + (method == "implicit-euler" and not held), q, v)
            v = v + H * ts.forward_dynamics(model, q, v, tau - H * K * v, added_inertia=added)
            q = q + H * v
        assert difference(path[0][t], q) < ROUNDING
        assert difference(path[1][t], v) < ROUNDING


def felt(model, *forces):
    """The torques of forces at the joints, as `simulate` knows them."""
    return Motion(replace(model, gravity=model.gravity), forces).felt


@pytest.mark.parametrize("method", FEW)
@pytest.mark.parametrize("model", [ARM, LONG], ids=["unrolled", "loops"])
def test_wrenches_on_the_bodies(model, method):
    q, v = start(model)
    wrenches = RNG(1).normal(size=(3, model.n, 6))
    path = ts.rollout(model, q, v, steps=STEPS, step=H, forces=ts.External(wrenches), method=method)
    for k in range(3):
        one_by_one((path.q[k], path.v[k]), model, q[k], v[k], felt(model, ts.External(wrenches[k])), method)
    alone = ts.rollout(model, q, v, steps=STEPS, step=H, forces=ts.External(wrenches[0]), method=method)
    assert difference(alone.q[0], path.q[0]) < ROUNDING


@pytest.mark.parametrize("method", FEW)
@pytest.mark.parametrize("model", [ARM, LONG], ids=["unrolled", "loops"])
def test_pulls_on_points_of_the_bodies(model, method):
    """Of every trajectory, and the same for all; with wrenches, without gravity, and in single precision."""
    q, v = start(model)
    force, at = RNG(1).normal(size=(2, 3, 3))
    given = dict(steps=STEPS, step=H, method=method)
    body = model.names[2]
    pulls = [ts.Pull(body, force, at), ts.Pull(model.names[-1], force[0])]
    wrenches = ts.External(RNG(2).normal(size=(model.n, 6)))
    path = ts.rollout(model, q, v, forces=[*pulls, wrenches], gravity=False, **given)
    bare = replace(model, gravity=np.zeros(3))
    for k in range(3):
        torque = felt(bare, ts.Pull(body, force[k], at[k]), pulls[1], wrenches)
        one_by_one((path.q[k], path.v[k]), bare, q[k], v[k], torque, method)
    alone = ts.rollout(model, q, v, forces=[ts.Pull(body, force[0], at[0]), pulls[1]], **given)
    batch = ts.rollout(model, q, v, forces=pulls, **given)
    np.testing.assert_array_equal(alone.q[0], batch.q[0])
    single = ts.rollout(model, *(x.astype(np.float32) for x in (q, v)), forces=pulls, **given)
    assert single.q.dtype == np.float32
    assert difference(single.q, batch.q) < 1e-5


def test_gravity_is_switched_off():
    q, v = start(ARM)
    given = dict(steps=STEPS, step=H)
    for arm in (ARM, replace(ARM, damping=1.0)):
        bare = replace(arm, gravity=np.zeros(3))
        off = ts.rollout(arm, q, v, gravity=False, **given)
        np.testing.assert_array_equal(off.q, ts.rollout(bare, q, v, **given).q)
    for varied in ({"gravity": RNG(1).normal(size=(3, 3))}, {"mass": ARM.mass * RNG(1).uniform(1, 2, (3, 4))}):
        batch = ts.ModelBatch(ARM, **varied)
        found = ts.rollout(batch, q, v, gravity=False, **given)
        for k in range(3):
            expected = ts.rollout(replace(batch[k], gravity=np.zeros(3)), q[k], v[k], **given)
            assert difference(found.v[k], expected.v) < ROUNDING
    with pytest.raises(ts.ArgumentError, match="gravity"):
        ts.rollout(ARM, q, v, gravity=9.81, **given)


@pytest.mark.parametrize("method", FEW)
@pytest.mark.parametrize("model", [ARM, LONG], ids=["unrolled", "loops"])
def test_a_servo_follows_a_motion(model, method):
    goal = ts.Cycloid(np.zeros(model.nv), np.ones(model.nv), 0.01)
    law = ts.PD(goal, np.linspace(1, 20, model.nv), 2.0)
    q, v = start(model)
    path = ts.rollout(model, q[0], v[0], steps=STEPS, step=H, forces=law, method=method)

    def torque(t, q, v):
        q_d, v_d, _ = goal(H * t)
        return law.kp * (q_d - q) + law.kd * (v_d - v)

    one_by_one((path.q, path.v), model, q[0], v[0], torque, method, (law.kp, law.kd))
    table = RNG(2).normal(size=(STEPS, model.nv))
    forces = [ts.PD(goal(1.0)[0], law.kp, law.kd), ts.Table(H * np.arange(STEPS), table, "previous")]
    path = ts.rollout(model, q[0], v[0], steps=STEPS, step=H, forces=forces, method=method)

    def tabulated(t, q, v):
        return table[t] + law.kp * (1.0 - q) - law.kd * v

    one_by_one((path.q, path.v), model, q[0], v[0], tabulated, method, (law.kp, law.kd), held=True)
    hold = ts.rollout(model, q[0], v[0], steps=STEPS, step=H, forces=ts.PD(goal(1.0)[0], law.kp, law.kd))
    gains = np.hstack([np.diag(law.kp), law.kd * np.eye(model.nv)])
    servo = ts.Feedback(gains, np.concatenate([goal(1.0)[0], np.zeros(model.nv)]))
    np.testing.assert_array_equal(hold.q, ts.rollout(model, q[0], v[0], steps=STEPS, step=H, forces=servo).q)


@pytest.mark.parametrize("method", FEW)
@pytest.mark.parametrize("model", [ARM, LONG], ids=["unrolled", "loops"])
def test_computed_torques_use_a_model_of_their_own(model, method):
    """Of a wrong model, and cut off at the effort of the drives."""
    believed = replace(model, mass=1.2 * model.mass)
    goal = ts.Cycloid(np.zeros(model.nv), np.ones(model.nv), 0.01)
    law = ts.ComputedTorque(goal, 80.0, np.linspace(1, 9, model.nv), model=believed)
    q, v = start(model)

    def computed(t, q, v):
        q_d, v_d, a_d = goal(H * t)
        return ts.inverse_dynamics(believed, q, v, a_d + law.kd * (v_d - v) + law.kp * (q_d - q))

    effort = np.median(np.abs(computed(0.0, q[0], v[0])))
    machine = replace(model, effort=effort, damping=0.1)

    def torque(t, q, v):
        return np.clip(computed(t, q, v), -effort, effort) - 0.1 * v

    if method != "implicit-euler":  # whose steps know the stiffness of those that are not cut off: see below
        path = ts.rollout(machine, q[0], v[0], steps=STEPS, step=H, forces=law, method=method)
        one_by_one((path.q, path.v), model, q[0], v[0], torque, method, (0.0, 0.1))
    both = [law, ts.Constant(np.ones(model.nv))]
    more = ts.rollout(model, q[0], v[0], steps=1, step=H, forces=both)  # commands of the drives add up
    a = ts.forward_dynamics(model, q[0], v[0], computed(0.0, q[0], v[0]) + 1.0)
    assert difference(more.v[0], v[0] + H * a) < ROUNDING
    with pytest.raises(ts.ArgumentError, match="ComputedTorque twice"):
        ts.rollout(model, q, v, steps=1, step=H, forces=[law, law])


@pytest.mark.parametrize("model", [ARM, LONG], ids=["unrolled", "staged"])
def test_implicit_steps_know_the_stiffness_of_computed_torques(model):
    """(M + h (D + M_c kd) + h^2 (K + M_c kp)) a = tau - bias - h (K + M_c kp) v, by dense matrices; M_c = M."""
    rng = RNG(3)
    machine = replace(model, damping=0.3, stiffness=2.0)
    kp, kd = rng.uniform(1e4, 1e6, model.nv), rng.uniform(1e2, 1e3, model.nv)
    law = ts.ComputedTorque(np.ones(model.nv), kp, kd, model=model)
    q, v = start(model)
    path = ts.rollout(machine, q[0], v[0], steps=1, step=H, forces=law, method="implicit-euler")
    M = ts.mass_matrix(model, q[0])
    K, D = 2.0 * np.eye(model.nv) + M * kp, 0.3 * np.eye(model.nv) + M * kd
    computed = ts.inverse_dynamics(model, q[0], v[0], kp * (1.0 - q[0]) - kd * v[0])
    tau = computed - 2.0 * q[0] - 0.3 * v[0]
    a = np.linalg.solve(M + H * D + H**2 * K, tau - ts.bias_forces(model, q[0], v[0]) - H * K @ v[0])
    assert difference(path.v[0], v[0] + H * a) < 1e-9  # the dense matrix has a condition of its own


@pytest.mark.parametrize("kp", [1e2, 1e8])
def test_implicit_steps_hold_computed_torques_of_any_stiffness(kp):
    """The error obeys implicit Euler's e'' + kd e' + kp e = 0 whatever M is; a drive that is cut off pushes fully."""
    goal, h = np.full(4, 0.5), 1e-2
    law = ts.ComputedTorque(goal, kp, 2 * np.sqrt(kp))
    path = ts.rollout(ARM, np.zeros(4), np.zeros(4), steps=100, step=h, forces=law, method="implicit-euler")
    e, rate = 0.5, 0.0
    for k in range(100):
        rate = (rate - h * kp * e) / (1 + 2 * h * np.sqrt(kp) + h * h * kp)
        e = e + h * rate
        np.testing.assert_allclose(goal - path.q[k], e, rtol=0, atol=1e-9)
    weak = replace(ARM, effort=1.0)
    q, v = start(ARM)
    found, plain = (ts.rollout(weak, q, v, steps=1, step=1e-3, forces=ts.ComputedTorque(q[0] + 9.0, 1e6, 1.0),
                               method=method) for method in ("implicit-euler", "semi-implicit"))  # fmt: skip
    assert difference(found.v, plain.v) < ROUNDING


def test_computed_torques_follow_their_motion():
    goal = ts.Cycloid(np.zeros(4), np.linspace(0.5, 1, 4), 0.5)
    law = ts.ComputedTorque(goal, 400.0, 40.0)
    path = ts.rollout(ARM, np.zeros(4), np.zeros(4), steps=500, step=1e-3, forces=law, method="rk4")
    wanted = np.array([goal(1e-3 * (k + 1))[0] for k in range(500)])
    assert np.abs(path.q - wanted).max() < FOLLOWED


def test_a_law_is_kept_only_as_long_as_its_numbers():
    """Gains that change in place act, and so do other feedbacks, models and batches with the same structure."""
    q, v = start(ARM)
    kp, K, given = np.full(4, 5.0), np.full((4, 8), 5.0), dict(steps=2, step=H)
    for force in (ts.PD(0.0, kp, 1.0), ts.PD(np.ones(4), kp, 1.0), ts.Feedback(K, 0.1)):
        kp[:] = K[:] = 5.0
        before = ts.rollout(ARM, q, v, forces=force, **given)
        again = ts.rollout(ARM, q, v, forces=force, **given)
        np.testing.assert_array_equal(before.q, again.q)
        kp[:] = K[:] = 50.0
        changed = ts.rollout(ARM, q, v, forces=force, **given)
        fresh = ts.rollout(replace(ARM, gravity=ARM.gravity.copy()), q, v, forces=replace(force), **given)
        np.testing.assert_array_equal(changed.q, fresh.q)
        assert np.abs(changed.q - before.q).max() > 1e-6
    free = ts.rollout(ARM, q, v, **given)
    damped = ts.rollout(replace(ARM, damping=1.0), q, v, **given)
    assert np.abs(free.q - damped.q).max() > 1e-6
    batch = ts.ModelBatch(ARM, damping=np.ones((3, 4)))
    np.testing.assert_allclose(ts.rollout(batch, q, v, **given).q, damped.q, rtol=0, atol=ROUNDING)


class Stiffness:
    """A force whose number is where the law cannot see it change."""

    def __init__(self, where):
        self.where, self.table, self.inner = where, {"k": 1.0}, type("", (), {"k": 1.0})()

    @property
    def k(self):
        return self.table["k"] if self.where == "a dictionary" else self.inner.k

    def terms(self, model):
        return (Part("spring", (0.0, self.k, 0.0)),)


class Slots:
    """A force without a dictionary of its own."""

    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k

    def terms(self, model):
        return (Part("spring", (0.0, self.k, 0.0)),)


@pytest.mark.parametrize("where", ["a dictionary", "an object", "slots"])
def test_a_force_of_the_user_acts_with_the_numbers_it_has_now(where):
    model = zoo.general_arm(3)
    start, options = np.ones((2, 3)), dict(steps=3, step=1e-2)
    force = Slots(1.0) if where == "slots" else Stiffness(where)
    for k in (1.0, 50.0):
        if where == "slots":
            force.k = k
        else:
            force.table["k"] = force.inner.k = k
        found = ts.rollout(model, *start, forces=force, **options)
        assert np.array_equal(found.q, ts.rollout(model, *start, forces=ts.Spring(k), **options).q)


def test_batches_of_many_joints_are_those_of_each():
    rng = RNG(4)
    batch = ts.ModelBatch(zoo.random_chain(26, 1), mass=rng.uniform(1, 2, (3, 26)), damping=rng.uniform(0, 1, (3, 26)))
    q, v = start(batch.model)
    for method in METHODS:
        found = ts.rollout(batch, q, v, steps=2, step=H, method=method)
        for k in range(3):
            alone = ts.rollout(batch[k], q[k], v[k], steps=2, step=H, method=method)
            assert difference(found.v[k], alone.v) < ROUNDING


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["float64", *slow("float32")])
def test_freedoms_as_lanes_are_those_of_whole_states(method, dtype, monkeypatch):
    """Joints each by itself, all at once, against the stages of the whole machine, column by column."""
    model, rng = busy(LONG), RNG(8)
    q, v, external = (x.astype(dtype) for x in (*start(model, 5), rng.normal(size=(5, model.n, 6))))
    servo = ts.PD(0.2, kp=rng.uniform(1, 9, (5, model.nv)), kd=rng.uniform(0, 1, model.nv))
    options = dict(steps=20, step=H, every=5, forces=[servo, ts.External(external)], method=method)
    lanes = ts.rollout(model, q, v, **options)
    asked = []
    monkeypatch.setattr(lowering.Law, "is_local", property(lambda law: bool(asked.append(law))))
    other = replace(model, gravity=np.nextafter(model.gravity, 0))  # for which nothing has been made before
    states = ts.rollout(other, q, v, **options)
    assert asked
    assert lanes.q.dtype == dtype
    assert difference(lanes.v, states.v) < (ROUNDING if dtype == "float64" else 2e-3)


@pytest.mark.parametrize("method", METHODS)
def test_no_trajectories_at_all(method):
    for model in (ARM, LONG):
        for shape in ((0,), (2, 0)):
            q, v = np.zeros((*shape, model.nq)), np.zeros((*shape, model.nv))
            path = ts.rollout(model, q, v, steps=4, step=H, every=2, method=method)
            assert path.q.shape == (*shape, 2, model.nq)


def test_steps_own_their_machine_code():
    """Threads that meet while it is made have code of their own, which nothing else keeps alive."""
    law, x = collect(LONG), np.zeros((2, 28))
    step = Fixed(LONG, law, STEPS_OF["implicit-euler"], "implicit-euler", H)
    move = time_loop.StepRun(step.kernels("float64"), 2, np.array([H]), {"tau": np.zeros((1, 14)), "gain": law.values})
    simulation = ts.Simulation(ARM)
    move(x, lambda first, count: {}, range(1, 4))
    time_loop._function.cache_clear()
    fused._function.cache_clear()
    gc.collect()
    move(x, lambda first, count: {}, range(1, 4))
    simulation.step(0.1)
    assert np.isfinite(x).all()
    assert np.isfinite(simulation.q).all()


# The CUDA text -----------------------------------------------------------------------------------------------


def varied(model, count):
    """Models that differ in masses, lengths, gravity, and what their joints do."""
    rng = RNG(5)
    factor = rng.uniform(0.8, 1.2, (count, model.n))
    masses = {"mass": model.mass * factor, "p": model.p * factor[..., None], "gravity": rng.normal(size=(count, 3))}
    names = {"friction": 0.0, "damping": 0.0, "effort": 1.0, "speed": 0.5}
    joints = {name: rng.uniform(least, least + 1, (count, model.nv)) for name, least in names.items()}
    return ts.ModelBatch(model, **masses, **joints)


def cases(model):
    """Name, machine, forces of a rollout."""
    count = 3
    goal = ts.Cycloid(np.zeros(model.nv), np.ones(model.nv), 0.01) if model.nq == model.nv else None
    yield "members", varied(model, count), []
    yield "wrenches", model, [ts.External(RNG(6).normal(size=(count, model.n, 6)))]
    yield "pulls", model, [ts.Pull(*x) for x in zip(model.names, *RNG(7).normal(size=(2, model.n, 3, 3)))]
    if goal:
        yield "joints", busy(model), [ts.PD(0.0, 9.0, 1.0)]
        yield "computed", model, [ts.ComputedTorque(goal, 80.0, 9.0)]


@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "staged"])
@pytest.mark.parametrize("method", ["implicit-euler", *slow("semi-implicit")])
@pytest.mark.parametrize(("model", "case"), [(ARM, k) for k in range(5)] + [(TREE, k) for k in range(3)])
def test_cuda_text_takes_the_same_step(model, case, method, specialised):
    _, machine, forces = list(cases(model))[case]
    found = members(machine) if isinstance(machine, ts.ModelBatch) else None
    structure = machine.model if found else machine
    q, v = start(structure)
    setup = Fixed(machine, collect(machine, forces), STEPS_OF[method], method, H)
    step, law = setup.step, setup.law
    kernel = kernel_of(step, dtype="float64", specialised=specialised)
    numbers = {**(law.loads or {}), **(found.inputs if found else {})}
    command = np.broadcast_to(setup.commands(0, 1)[..., 0, :], (3, step.inputs["tau"][0]))
    arrays = [q, v, command, np.broadcast_to(law.values, (3, law.values.shape[-1])), np.full((3, 1), H)]
    arrays += [numbers[name] for name in step.numbers]
    got = cuda_reader.run_step(kernel, arrays, found.frames if found else framed(structure))
    expected = ts.rollout(machine, q, v, steps=1, step=H, method=method, forces=forces)
    assert difference(got, np.concatenate([expected.q[:, 0], expected.v[:, 0]], axis=1)) < ROUNDING


@pytest.fixture
def cupy(monkeypatch):
    """A stand-in for CuPy whose arrays are NumPy's; kernels run on the host where a C++ compiler is there."""
    module = fake_cupy.Cupy()
    fake_cupy.install(monkeypatch, module)
    monkeypatch.setattr(rollouts, "gpu_array", gpu.on_device)
    return module


@pytest.mark.slow
@pytest.mark.skipif(not cuda_host.compiler(), reason="needs a C++ compiler")
@pytest.mark.parametrize("model", [zoo.random_chain(3, 7), zoo.random_chain(13, 8)], ids=["unrolled", "staged"])
def test_whole_rollouts_on_a_device_are_those_of_the_cpu(cupy, model):
    count = 66 if model.nv < 5 else 3
    batch, (q, v) = varied(model, count), start(model, count)
    forces = [ts.External(RNG(6).normal(size=(model.n, 6))), ts.Pull("link2", [1.0, 2.0, 3.0])]
    forces += [ts.Pull("link3", RNG(7).normal(size=(count, 3)))]
    options = dict(steps=4, step=H, every=2, method="implicit-euler", forces=forces)
    expected = ts.rollout(batch, q, v, **options)
    got = ts.rollout(batch, *(fake_cupy.on_device(x) for x in (q, v)), **options)
    assert difference(np.asarray(got.q), expected.q) < ROUNDING
    assert difference(np.asarray(got.v), expected.v) < ROUNDING


@pytest.mark.slow
@pytest.mark.skipif(not cuda_host.compiler(), reason="needs a C++ compiler")
@pytest.mark.parametrize("method", STEPS_OF)
@pytest.mark.parametrize("each", [False, True], ids=["alike", "each"])
@pytest.mark.parametrize("model", [zoo.random_chain(3, 7), zoo.random_chain(13, 8)], ids=["unrolled", "staged"])
def test_what_changes_in_time_does_so_on_a_device(cupy, model, each, method):
    count, (q, v), rng = 3, start(model, 3), RNG(9)
    axes, times = (count,) * each, [0.0, 1.5 * H, 3 * H]
    K = rng.normal(size=(*axes, 3, model.nv, 2 * model.nv)) / model.nv
    forces = [ts.Feedback(K, 0.1, 0.2, t=times), ts.External(rng.normal(size=(*axes, model.n, 6)))]
    forces += [ts.External(rng.normal(size=(3, model.n, 6)), times, "linear"), ts.Pull("link2", [1.0, 2.0, 3.0])]
    options = dict(steps=5, step=H, method=method, forces=forces)
    expected = ts.rollout(model, q, v, **options)
    got = ts.rollout(model, *(fake_cupy.on_device(x) for x in (q, v)), **options)
    assert difference(np.asarray(got.q), expected.q) < ROUNDING
    assert difference(np.asarray(got.v), expected.v) < ROUNDING


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
def test_no_trajectory_under_forces_of_each(cupy, on_device):
    forces = [ts.Feedback(np.zeros((0, 2, 4, 8)), t=[0.0, H]), ts.External(np.zeros((0, 4, 6)))]
    forces += [ts.External(np.zeros((2, 4, 6)), [0.0, H]), ts.PD(0.0, np.zeros((0, 4)), 1.0)]
    q = np.zeros((0, 4))
    q = fake_cupy.on_device(q) if on_device else q
    for method in STEPS_OF:
        assert ts.rollout(ARM, q, q, steps=2, step=H, method=method, forces=forces).q.shape == (0, 2, 4)


def push(t, q, v):
    return np.sin(q[..., : v.shape[-1]]) * (1 + t) - 0.3 * v


PUSHED = {
    "several": lambda model: [push, ts.Friction(0.1), ts.Function(push, drive=True), ts.Constant(np.ones(model.nv))],
    "in time": lambda model: [push, ts.Table([0.0, 0.01], np.ones((2, model.nv))),
                              ts.External(RNG(3).normal(size=(2, model.n, 6)), [0.0, 0.01], "linear")],
    "of each": lambda model: [push, ts.Constant(RNG(4).normal(size=(5, model.nv))), ts.Pull("link2", [1.0, 2.0, 3.0])],
    "slopes": lambda model: ts.Function(lambda t, q, v: -9.0 * v, lambda t, q, v: (0.0, 9.0)),
}  # fmt: skip


@pytest.fixture
def strict(monkeypatch):
    if not cuda_host.compiler():
        pytest.skip("no C++ compiler")
    return strict_cupy.install(monkeypatch)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("forces", PUSHED)
@pytest.mark.parametrize("method", STEPS_OF)
@pytest.mark.parametrize("model", [ARM, LONG, zoo.random_tree(5, 1)], ids=["arm", "long", "tree"])
def test_functions_act_on_a_device(strict, model, method, forces):
    q, v = start(model, 5)
    options = dict(steps=4, step=H, every=2, method=method, forces=PUSHED[forces](model))
    expected = ts.rollout(model, q, v, **options)
    got = ts.rollout(model, strict.asarray(q), strict.asarray(v), **options)
    assert difference(got.q.get(), expected.q) < ROUNDING
    assert difference(got.v.get(), expected.v) < ROUNDING


@pytest.mark.parametrize("again", [False, True], ids=["stop", "reset"])
@pytest.mark.parametrize("batch", [False, True], ids=["one machine", "a batch"])
def test_trajectories_under_functions_stop_on_a_device(strict, batch, again):
    machine = ts.ModelBatch(ARM, gravity=RNG(1).normal(size=(5, 3))) if batch else ARM
    q, v = start(ARM, 5)
    stops = [ts.Stop(q=0, above=float(q[2, 0]) + 0.01), ts.Stop(frame="link4", below=0.0)]
    options = dict(steps=40, step=H, every=4, method="rk4", forces=push, stop=stops)
    back = (np.zeros(4), np.ones(4)) if again else None
    expected = ts.rollout(machine, q, v, reset=back, **options)
    got = ts.rollout(machine, strict.asarray(q), strict.asarray(v), **options,
                     reset=back and tuple(map(strict.asarray, back)))  # fmt: skip
    assert (expected.stop_reason > 0).any()
    for name in ("q", "v", "stop_time", "stop_reason"):
        np.testing.assert_allclose(getattr(got, name).get(), getattr(expected, name), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(
    ("force", "words"),
    [(lambda t, q, v: np.zeros(4), r"array of CuPy on the device, of \(2, 4\) numbers"),
     (lambda t, q, v: v[:1, :2], "CuPy"), (lambda t, q, v: None, "not None")],
)  # fmt: skip
def test_functions_on_a_device_give_arrays_there(strict, force, words):
    q = strict.asarray(np.zeros((2, 4)))
    with pytest.raises(ts.ArgumentError, match=words):
        ts.rollout(ARM, q, q, steps=2, step=H, forces=force)


def test_functions_get_arrays_of_the_callers_library(strict, monkeypatch):
    seen = []
    monkeypatch.setattr("torsor.backends.gpu.given_back", lambda kind, x: seen.append((kind, x.shape)) or x)
    setup = Fixed(ARM, collect(ARM, push), STEPS_OF["rk4"], "rk4", H)
    given = {"tau": np.zeros((1, setup.step.inputs["tau"][0])), "gain": setup.law.values[None]}
    run = DeviceRun(setup.step, np.array([H]), given, setup.method.times, setup.law.called, kind="torch")
    run(strict.asarray(np.zeros((2, 8))), lambda at, count: {})
    assert seen == [("torch", (2, 4))] * 8  # q and v at four stages


# Refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ts.External(np.zeros((4, 5))), r"wrenches must have shape \(\.\.\., 4, 6\)"),
        (lambda: ts.External(np.full((4, 6), np.nan)), "wrenches"),
        (lambda: ts.External(np.zeros((2, 4, 6))), "batch axes"),
        (lambda: ts.PD(np.zeros(14), 1.0, 1.0), r"reference has shape \(14,\)"),
        (lambda: ts.PD(lambda t: (np.zeros(3),) * 3, 1.0, 1.0), "reference"),
        (lambda: ts.PD(ARM, 1.0, 1.0), "leave out the model"),
        (lambda: "servo", "forces must be"),
        (lambda: [np.zeros((4, 6))], r"forces\[0\] must be"),
        (lambda: ts.Pull(LONG.names[-1], [1, 2, 3]), LONG.names[-1]),
        (lambda: [ts.Pull("link1", np.ones((k, 3))) for k in (2, 3)], "batch axes of forces"),
        (lambda: ts.Pull("link1", np.ones((2, 3))), "batch axes"),
    ],
)
def test_arguments_that_are_wrong_are_named(make, words):
    with pytest.raises(ts.ArgumentError, match=words):
        ts.rollout(ARM, np.zeros((3, 4)), np.zeros(4), steps=2, step=H, forces=make())


@pytest.mark.parametrize(
    ("motion", "words"),
    [
        ((np.zeros(4), np.zeros(4)), "q, v and a"),
        ((np.zeros(3), np.zeros(4), np.zeros(4)), "a reference gives q with"),
        (3, "q, v"),
    ],
    ids=["two", "short", "number"],
)
def test_motions_that_do_not_fit_are_refused(motion, words):
    with pytest.raises(ts.ArgumentError, match=words):
        ts.rollout(ARM, np.zeros(4), np.zeros(4), steps=2, step=H, forces=ts.PD(lambda t: motion, 1.0, 1.0))


@pytest.mark.parametrize("between", ["linear", "previous", "cubic"])
def test_tables_of_every_trajectory_are_those_of_each_alone(between):
    arm, rng = zoo.general_arm(3, 1), np.random.default_rng(0)
    t, torques, zero = np.array([0.0, 3.0, 7.0, 12.0]) * 1e-3, rng.normal(size=(5, 4, 3)), np.zeros((5, 3))
    options = {"steps": 10, "step": 1e-3, "method": "rk4"}
    together = ts.rollout(arm, zero, zero, forces=ts.Table(t, torques, between), **options)
    for k, own in enumerate(torques):
        alone = ts.rollout(arm, zero[k], zero[k], forces=ts.Table(t, own, between), **options)
        assert np.array_equal(alone.q, together.q[k])
