"""Rollouts under every force: wrenches, motions to follow, computed torques and joints, on the CPU and as CUDA text."""

import gc
from dataclasses import replace

import cuda_host
import cuda_reader
import fake_cupy
import numpy as np
import pytest
from machines import difference
from test_joint_laws import busy, slow

import torsor as ts
from torsor import zoo
from torsor.backends import gpu
from torsor.compiler.frames import framed
from torsor.compiler.members import members
from torsor.motion import PD, ComputedTorque, Cycloid, External, Pull, Simulation, fused
from torsor.motion import rollout as rollouts
from torsor.motion import rollout_march as march
from torsor.motion.feedback import law_of
from torsor.motion.rollout import gpu_kernel, own_numbers

ROUNDING = 1e-11  # twenty steps of 1 ms, in float64
DT, STEPS = 1e-3, 5
INTEGRATORS = ["semi-implicit", "implicit", "rk4"]
FEW = ["implicit", *slow("semi-implicit", "rk4")]
RNG = np.random.default_rng
ARM, LONG = zoo.random_chain(4, 1), zoo.random_chain(14, 2)
TREE = zoo.random_tree(5, 3)


def start(model, count=3, seed=0):
    rng = RNG(seed)
    return model.random_configuration(rng, count), rng.normal(size=(count, model.nv))


def one_by_one(path, model, q, v, torque, integrator, gains=(0.0, 0.0)):
    """A rollout takes the steps of its definition, by the public forward dynamics; for joints with dq/dt = v."""

    def f(t, y):
        q, v = np.split(y, 2)
        return np.concatenate([v, ts.forward_dynamics(model, q, v, torque(t, q, v))])

    for t in range(STEPS):
        if integrator == "rk4":
            y = np.concatenate([q, v])
            k1 = f(t, y)
            k2 = f(t, y + DT / 2 * k1)
            k3 = f(t, y + DT / 2 * k2)
            q, v = np.split(y + DT / 6 * (k1 + 2 * k2 + 2 * k3 + f(t, y + DT * k3)), 2)
        else:
            K, D = gains if integrator == "implicit" else (0.0, 0.0)
            added = np.broadcast_to(DT * D + DT**2 * K, v.shape)
            v = v + DT * ts.forward_dynamics(model, q, v, torque(t, q, v) - DT * K * v, added_inertia=added)
            q = q + DT * v
        assert difference(path.q[t], q) < ROUNDING
        assert difference(path.v[t], v) < ROUNDING


@pytest.mark.parametrize("integrator", FEW)
@pytest.mark.parametrize("model", [ARM, LONG], ids=["unrolled", "loops"])
def test_wrenches_on_the_bodies(model, integrator):
    q, v = start(model)
    wrenches = RNG(1).normal(size=(3, model.n, 6))
    path = ts.rollout(model, q, v, steps=STEPS, dt=DT, external=wrenches, integrator=integrator)
    for k in range(3):
        one_by_one(ts.Rollout(path.q[k], path.v[k]), model, q[k], v[k], External(model, wrenches[k]), integrator)
    alone = ts.rollout(model, q, v, steps=STEPS, dt=DT, external=wrenches[0], integrator=integrator)
    assert difference(alone.q[0], path.q[0]) < ROUNDING


@pytest.mark.parametrize("integrator", FEW)
@pytest.mark.parametrize("model", [ARM, LONG], ids=["unrolled", "loops"])
def test_pulls_on_points_of_the_bodies(model, integrator):
    """Of every trajectory, and the same for all; with wrenches, without gravity, and in single precision."""
    q, v = start(model)
    force, at = RNG(1).normal(size=(2, 3, 3))
    given = dict(steps=STEPS, dt=DT, integrator=integrator)
    body = model.names[2]
    pulls = [Pull(model, body, force, at), Pull(model, model.names[-1], force[0])]
    wrenches = RNG(2).normal(size=(model.n, 6))
    path = ts.rollout(model, q, v, pulls=pulls, external=wrenches, gravity=False, **given)
    bare = replace(model, gravity=np.zeros(3))
    for k in range(3):
        forces = Pull(model, body, force[k], at[k]), pulls[1], External(model, wrenches)
        own = ts.Rollout(path.q[k], path.v[k])
        one_by_one(own, bare, q[k], v[k], lambda *state, forces=forces: sum(f(*state) for f in forces), integrator)
    alone = ts.rollout(model, q, v, pulls=[Pull(model, body, force[0], at[0]), pulls[1]], **given)
    batch = ts.rollout(model, q, v, pulls=pulls, **given)
    np.testing.assert_array_equal(alone.q[0], batch.q[0])
    single = ts.rollout(model, *(x.astype(np.float32) for x in (q, v)), pulls=pulls, **given)
    assert single.q.dtype == np.float32
    assert difference(single.q, batch.q) < 1e-5


def test_gravity_is_switched_off():
    q, v = start(ARM)
    given = dict(steps=STEPS, dt=DT)
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


@pytest.mark.parametrize("integrator", FEW)
@pytest.mark.parametrize("model", [ARM, LONG], ids=["unrolled", "loops"])
def test_a_servo_follows_a_motion(model, integrator):
    goal = Cycloid(np.zeros(model.nv), np.ones(model.nv), 0.01)
    law = PD(model, goal, np.linspace(1, 20, model.nv), 2.0)
    table = RNG(2).normal(size=(STEPS, model.nv))
    q, v = start(model)
    path = ts.rollout(model, q[0], v[0], steps=STEPS, dt=DT, feedback=law, table=table, integrator=integrator)

    def torque(t, q, v):
        q_d, v_d, _ = goal(DT * t)  # held over the step
        return law.kp * (q_d - q) + law.kd * (v_d - v) + table[t]

    one_by_one(path, model, q[0], v[0], torque, integrator, (law.kp, law.kd))
    hold = ts.rollout(model, q[0], v[0], steps=STEPS, dt=DT, feedback=PD(model, goal(1.0)[0], law.kp, law.kd))
    servo = ts.JointFeedback(law.kp, np.full(model.nv, law.kd), goal(1.0)[0])
    np.testing.assert_array_equal(hold.q, ts.rollout(model, q[0], v[0], steps=STEPS, dt=DT, feedback=servo).q)


@pytest.mark.parametrize("integrator", FEW)
@pytest.mark.parametrize("model", [ARM, LONG], ids=["unrolled", "loops"])
def test_computed_torques_use_a_model_of_their_own(model, integrator):
    """Of a wrong model, and cut off at the effort of the drives."""
    believed = replace(model, mass=1.2 * model.mass)
    goal = Cycloid(np.zeros(model.nv), np.ones(model.nv), 0.01)
    law = ComputedTorque(believed, goal, 80.0, np.linspace(1, 9, model.nv))
    q, v = start(model)
    effort = np.median(np.abs(law(0.0, q[0], v[0])))
    machine = replace(model, effort=effort, damping=0.1)
    path = ts.rollout(machine, q[0], v[0], steps=STEPS, dt=DT, feedback=law, integrator=integrator)

    def torque(t, q, v):
        return np.clip(law(DT * t, q, v), -effort, effort) - 0.1 * v

    one_by_one(path, model, q[0], v[0], torque, integrator, (0.0, 0.1))
    with pytest.raises(ts.ArgumentError, match="leave out tau and table"):
        ts.rollout(model, q, v, steps=1, dt=DT, feedback=law, tau=np.zeros(model.nv))


@pytest.mark.parametrize("model", [ARM, LONG], ids=["unrolled", "staged"])
def test_implicit_steps_know_the_stiffness_of_computed_torques(model):
    """(M + h (D + M_c kd) + h^2 (K + M_c kp)) a = tau - bias - h (K + M_c kp) v, by dense matrices; M_c = M."""
    rng = RNG(3)
    machine = replace(model, damping=0.3, stiffness=2.0)
    kp, kd = rng.uniform(1e4, 1e6, model.nv), rng.uniform(1e2, 1e3, model.nv)
    law = ComputedTorque(model, np.ones(model.nv), kp, kd)
    q, v = start(model)
    path = ts.rollout(machine, q[0], v[0], steps=1, dt=DT, feedback=law, integrator="implicit")
    M = ts.mass_matrix(model, q[0])
    K, D = 2.0 * np.eye(model.nv) + M * kp, 0.3 * np.eye(model.nv) + M * kd
    tau = law(0.0, q[0], v[0]) - 2.0 * q[0] - 0.3 * v[0]
    a = np.linalg.solve(M + DT * D + DT**2 * K, tau - ts.bias_forces(model, q[0], v[0]) - DT * K @ v[0])
    assert difference(path.v[0], v[0] + DT * a) < 1e-9  # the dense matrix has a condition of its own


@pytest.mark.parametrize("kp", [1e2, 1e8])
def test_implicit_steps_hold_computed_torques_of_any_stiffness(kp):
    """The error obeys implicit Euler's e'' + kd e' + kp e = 0 whatever M is; a drive that is cut off pushes fully."""
    goal, h = np.full(4, 0.5), 1e-2
    law = ComputedTorque(ARM, goal, kp, 2 * np.sqrt(kp))
    path = ts.rollout(ARM, np.zeros(4), np.zeros(4), steps=100, dt=h, feedback=law, integrator="implicit")
    e, rate = 0.5, 0.0
    for k in range(100):
        rate = (rate - h * kp * e) / (1 + 2 * h * np.sqrt(kp) + h * h * kp)
        e = e + h * rate
        np.testing.assert_allclose(goal - path.q[k], e, atol=1e-9)
    weak = replace(ARM, effort=1.0)
    q, v = start(ARM)
    found, plain = (ts.rollout(weak, q, v, steps=1, dt=1e-3, feedback=ComputedTorque(ARM, q[0] + 9.0, 1e6, 1.0),
                               integrator=integrator) for integrator in ("implicit", "semi-implicit"))  # fmt: skip
    assert difference(found.v, plain.v) < ROUNDING


def test_computed_torques_follow_their_motion():
    goal = Cycloid(np.zeros(4), np.linspace(0.5, 1, 4), 0.5)
    law = ComputedTorque(ARM, goal, 400.0, 40.0)
    path = ts.rollout(ARM, np.zeros(4), np.zeros(4), steps=500, dt=1e-3, feedback=law, integrator="rk4")
    wanted = np.array([goal(1e-3 * (k + 1))[0] for k in range(500)])
    assert np.abs(path.q - wanted).max() < 5e-3  # references are held over a step


def test_a_law_is_kept_only_as_long_as_its_numbers():
    """Gains that change in place act, and so do other feedbacks, models and batches with the same structure."""
    q, v = start(ARM)
    kp, given = np.full(4, 5.0), dict(steps=2, dt=DT)
    for feedback in (ts.JointFeedback(kp, 1.0), PD(ARM, np.ones(4), kp, 1.0), ts.LinearFeedback(kp, kp)):
        kp[:] = 5.0
        before = ts.rollout(ARM, q, v, feedback=feedback, **given)
        again = ts.rollout(ARM, q, v, feedback=feedback, **given)
        np.testing.assert_array_equal(before.q, again.q)
        kp[:] = 50.0
        changed = ts.rollout(ARM, q, v, feedback=feedback, **given)
        fresh = ts.rollout(replace(ARM, gravity=ARM.gravity.copy()), q, v, feedback=replace(feedback), **given)
        np.testing.assert_array_equal(changed.q, fresh.q)
        assert np.abs(changed.q - before.q).max() > 1e-6
    free = ts.rollout(ARM, q, v, **given)
    damped = ts.rollout(replace(ARM, damping=1.0), q, v, **given)
    assert np.abs(free.q - damped.q).max() > 1e-6
    batch = ts.ModelBatch(ARM, damping=np.ones((3, 4)))
    np.testing.assert_allclose(ts.rollout(batch, q, v, **given).q, damped.q, atol=ROUNDING)


def test_batches_of_many_joints_are_those_of_each():
    rng = RNG(4)
    batch = ts.ModelBatch(zoo.random_chain(26, 1), mass=rng.uniform(1, 2, (3, 26)), damping=rng.uniform(0, 1, (3, 26)))
    q, v = start(batch.model)
    for integrator in INTEGRATORS:
        found = ts.rollout(batch, q, v, steps=2, dt=DT, integrator=integrator)
        for k in range(3):
            alone = ts.rollout(batch[k], q[k], v[k], steps=2, dt=DT, integrator=integrator)
            assert difference(found.v[k], alone.v) < ROUNDING


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("dtype", ["float64", *slow("float32")])
def test_freedoms_as_lanes_are_those_of_whole_states(integrator, dtype, monkeypatch):
    """Joints each by itself, all at once, against the stages of the whole machine, column by column."""
    model, rng = busy(LONG), RNG(8)
    q, v, external = (x.astype(dtype) for x in (*start(model, 5), rng.normal(size=(5, model.n, 6))))
    servo = ts.JointFeedback(kp=rng.uniform(1, 9, (5, model.nv)), kd=rng.uniform(0, 1, model.nv), q_ref=0.2)
    options = dict(steps=20, dt=DT, every=5, feedback=servo, external=external, integrator=integrator)
    lanes = ts.rollout(model, q, v, **options)
    asked = []
    monkeypatch.setattr(march, "marches", lambda model, law: bool(asked.append(law)))
    other = replace(model, gravity=np.nextafter(model.gravity, 0))  # for which nothing has been made before
    states = ts.rollout(other, q, v, **options)
    assert asked
    assert lanes.q.dtype == dtype
    assert difference(lanes.v, states.v) < (ROUNDING if dtype == "float64" else 2e-3)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_no_trajectories_at_all(integrator):
    for model in (ARM, LONG):
        for shape in ((0,), (2, 0)):
            q, v = np.zeros((*shape, model.nq)), np.zeros((*shape, model.nv))
            path = ts.rollout(model, q, v, steps=4, dt=DT, every=2, integrator=integrator)
            assert path.q.shape == (*shape, 2, model.nq)


def test_steps_own_their_machine_code():
    """Threads that meet while it is made have code of their own, which nothing else keeps alive."""
    law, x = law_of(LONG, None), np.zeros((2, 28))
    move = march.marching(LONG, "implicit", law, "float64")(x, law.values, np.array([DT]))
    simulation = Simulation(ARM)
    march._function.cache_clear()
    fused._function.cache_clear()
    gc.collect()
    move(x, np.zeros((2, 14)), 3)
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
    """Name, machine, options of a rollout."""
    count = 3
    goal = Cycloid(np.zeros(model.nv), np.ones(model.nv), 0.01) if model.nq == model.nv else None
    yield "members", varied(model, count), {}
    yield "wrenches", model, {"external": RNG(6).normal(size=(count, model.n, 6))}
    yield (
        "pulls",
        model,
        {"pulls": [Pull(model, *x) for x in zip(model.names, *RNG(7).normal(size=(2, model.n, 3, 3)))]},
    )
    if goal:
        yield "joints", busy(model), {"feedback": ts.JointFeedback(9.0, 1.0)}
        yield "computed", model, {"feedback": ComputedTorque(model, goal, 80.0, 9.0)}


@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "staged"])
@pytest.mark.parametrize("integrator", ["implicit", *slow("semi-implicit")])
@pytest.mark.parametrize(("model", "case"), [(ARM, k) for k in range(5)] + [(TREE, k) for k in range(3)])
def test_cuda_text_takes_the_same_step(model, case, integrator, specialised):
    _, machine, options = list(cases(model))[case]
    found = members(machine) if isinstance(machine, ts.ModelBatch) else None
    structure = machine.model if found else machine
    q, v = start(structure)
    task = rollouts.Task.of(machine, 1, DT, None, None, options.get("feedback"), 1, integrator)
    task = task.loaded(machine, options.get("external"), options.get("pulls"))
    law = task.law
    kernel = gpu_kernel(structure, integrator, law, dtype="float64", specialised=specialised, found=found)
    command = np.broadcast_to(law.constant, v.shape) + (0.0 if task.table is None else task.table[0])
    numbers = {"external": task.external, "pulls": law.pulls, **(found.inputs if found else {})}
    arrays = [q, v, command, np.broadcast_to(law.values, (3, law.values.shape[-1])), np.full((3, 1), DT)]
    arrays += [numbers[name] for name in own_numbers(law, found)]
    got = cuda_reader.run_step(kernel, arrays, found.frames if found else framed(structure))
    expected = ts.rollout(machine, q, v, steps=1, dt=DT, integrator=integrator, **options)
    assert difference(got, np.concatenate([expected.q[:, 0], expected.v[:, 0]], axis=1)) < ROUNDING


@pytest.fixture
def cupy(monkeypatch):
    """A stand-in for CuPy whose arrays are NumPy's; kernels run on the host where a C++ compiler is there."""
    module = fake_cupy.Cupy()
    monkeypatch.setattr(gpu, "cupy", lambda: module)
    monkeypatch.setattr(rollouts, "gpu_array", gpu.on_device)
    return module


@pytest.mark.slow
@pytest.mark.skipif(not cuda_host.compiler(), reason="needs a C++ compiler")
@pytest.mark.parametrize("model", [zoo.random_chain(3, 7), zoo.random_chain(13, 8)], ids=["unrolled", "staged"])
def test_whole_rollouts_on_a_device_are_those_of_the_cpu(cupy, model):
    count = 66 if model.nv < 5 else 3
    batch, (q, v) = varied(model, count), start(model, count)
    options = dict(steps=4, dt=DT, every=2, integrator="implicit")
    wrenches = RNG(6).normal(size=(model.n, 6))
    options["pulls"] = [Pull(model, "link2", [1.0, 2.0, 3.0]), Pull(model, "link3", RNG(7).normal(size=(count, 3)))]
    expected = ts.rollout(batch, q, v, external=wrenches, **options)
    q, v, wrenches = (fake_cupy.on_device(x) for x in (q, v, wrenches))
    got = ts.rollout(batch, q, v, external=wrenches, **options)
    assert max(difference(np.asarray(a), b) for a, b in zip(got, expected)) < ROUNDING


# Refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"external": np.zeros((4, 5))}, "external is"),
        ({"external": np.full((4, 6), np.nan)}, "external holds"),
        ({"external": np.zeros((2, 4, 6)), "q": np.zeros((3, 4))}, "batch axes"),
        ({"feedback": PD(LONG, np.zeros(14), 1.0, 1.0)}, "made for"),
        ({"feedback": PD(ARM, lambda t: (np.zeros(3),) * 3, 1.0, 1.0)}, "reference"),
        ({"feedback": "servo"}, "feedback must be"),
        ({"pulls": np.zeros((4, 6))}, "pulls must be made by Pull"),
        ({"pulls": Pull(LONG, LONG.names[0], [1, 2, 3])}, "was made for"),
        ({"pulls": [Pull(ARM, "link1", np.ones((k, 3))) for k in (2, 3)]}, "axes of the pull on 'link1'"),
        ({"pulls": Pull(ARM, "link1", np.ones((2, 3))), "q": np.zeros((3, 4))}, "batch axes"),
    ],
)
def test_arguments_that_are_wrong_are_named(options, words):
    given = {"q": np.zeros(4)} | options
    with pytest.raises(ts.ArgumentError, match=words):
        ts.rollout(ARM, given.pop("q"), np.zeros(4), steps=2, dt=DT, **given)
    q, v = start(TREE)
    with pytest.raises(ts.ArgumentError, match="quaternions"):
        ts.rollout(TREE, q, v, steps=1, dt=DT, feedback=PD(TREE, TREE.neutral(), 1.0, 1.0))


@pytest.mark.parametrize(
    ("motion", "words"),
    [
        ((np.zeros(4), np.zeros(4)), "q, v and a"),
        ((np.zeros(3), np.zeros(4), np.zeros(4)), "q of the reference"),
        (3, "q, v"),
    ],
    ids=["two", "short", "number"],
)
def test_motions_that_do_not_fit_are_refused(motion, words):
    with pytest.raises(ts.ArgumentError, match=words):
        ts.rollout(ARM, np.zeros(4), np.zeros(4), steps=2, dt=DT, feedback=PD(ARM, lambda t: motion, 1.0, 1.0))
