"""Rollouts: the step against the definitions, CPU lanes against the reference, the CUDA text against both."""

from dataclasses import replace
from itertools import pairwise

import cuda_host
import cuda_reader
import numpy as np
import pytest
from machines import difference

import torsor as ts
from torsor import zoo
from torsor.compiler.frames import framed
from torsor.motion import Limits
from torsor.motion.feedback import law_of
from torsor.motion.rollout import gpu_kernel, step_inputs

ROUNDING = 1e-11  # twenty steps of 1 ms, in float64
DT, STEPS, EVERY = 1e-3, 20, 5
INTEGRATORS = ["semi-implicit", "implicit", "rk4"]

ARM = zoo.puma_saha()
TREE = zoo.random_tree(7, 1)  # every joint type: quaternions and a free body among them


def start(model, count=3, seed=0):
    rng = np.random.default_rng(seed)
    return (model.random_configuration(rng, count), *rng.normal(size=(2, count, model.nv)))


def small_feedback(model, seed=1):
    rng = np.random.default_rng(seed)
    return ts.LinearFeedback(0.1 * rng.normal(size=(model.nv, model.nq)), 0.1 * rng.normal(size=(model.nv, model.nv)),
                             rng.normal(size=model.nq), rng.normal(size=model.nv))  # fmt: skip


def coordinate_rate(model, q, v):
    """dq/dt by a difference quotient of the manifold's own exponential, which is exact for the first order."""
    h = 1e-6
    return (model.integrate(q, v * h) - model.integrate(q, -v * h)) / (2 * h)


def by_hand(model, q, v, torque, integrator, steps=STEPS, gains=(0.0, 0.0)):
    """One trajectory with the public forward dynamics; torque(t, q, v), and its stiffness and damping per joint."""

    def rates(t, q, v):
        return coordinate_rate(model, q, v), ts.forward_dynamics(model, q, v, torque(t, q, v))

    path = []
    for t in range(steps):
        if integrator == "implicit":
            K, D = gains
            tau = torque(t, q, v) - DT * K * v
            v = v + DT * ts.forward_dynamics(model, q, v, tau, added_inertia=DT * D + DT**2 * K)
            q = q + DT * coordinate_rate(model, q, v)
        elif integrator == "semi-implicit":
            v = v + DT * rates(t, q, v)[1]
            q = q + DT * coordinate_rate(model, q, v)
        else:
            k1 = rates(t, q, v)
            k2 = rates(t, q + DT / 2 * k1[0], v + DT / 2 * k1[1])
            k3 = rates(t, q + DT / 2 * k2[0], v + DT / 2 * k2[1])
            k4 = rates(t, q + DT * k3[0], v + DT * k3[1])
            q, v = (x + DT / 6 * (a + 2 * b + 2 * c + d) for x, a, b, c, d in zip((q, v), k1, k2, k3, k4))
        path.append(np.concatenate([q, v]))
    return np.array(path)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_rollout_takes_the_steps_of_its_definition(integrator):
    q, v, tau = start(ARM)
    table = np.random.default_rng(2).normal(size=(3, STEPS, ARM.nv))
    law = small_feedback(ARM)
    torques = dict(tau=tau, table=table, feedback=law)
    result = ts.rollout(ARM, q, v, steps=STEPS, dt=DT, every=EVERY, integrator=integrator, **torques)
    assert result.q.shape == (3, STEPS // EVERY, ARM.nq)
    for k in range(3):

        def torque(t, q, v, k=k):
            return tau[k] + table[k, t] + law.Kq @ (law.q_ref - q) + law.Kv @ (law.v_ref - v)

        gains = law.Kq.diagonal(), law.Kv.diagonal()
        expected = by_hand(ARM, q[k], v[k], torque, integrator, gains=gains)[EVERY - 1 :: EVERY]
        assert difference(np.concatenate([result.q[k], result.v[k]], axis=1), expected) < ROUNDING


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_large_models_take_the_same_steps(integrator):
    """The step around a loop kernel is the step with the dynamics written out in it, in stages and column by column."""
    from torsor.motion.rollout import _looped_mover, _staged_mover, _unrolled_mover

    q, v, tau = start(ARM)
    law = law_of(ARM, small_feedback(ARM))
    results = []
    for make in (_unrolled_mover, _staged_mover, _looped_mover):
        out = np.empty((3, ARM.nq + ARM.nv))
        out[:] = np.concatenate([q, v], axis=1)
        make(ARM, integrator, law, "float64")(out, law.values, np.array([DT]))(out, tau + law.constant, 1)
        results.append(out)
    assert difference(results[1], results[0]) < ROUNDING
    assert difference(results[2], results[0]) < ROUNDING


def test_quaternions_keep_their_length_and_turn_as_the_group_says():
    q, v, tau = start(TREE)
    result = ts.rollout(TREE, q, v, steps=STEPS, dt=1e-4, tau=tau, integrator="rk4")
    for code, i in zip(TREE.joint, TREE.q_start):
        joint = ts.model.joints.JOINTS[code]
        if joint.nq != joint.nv:
            lengths = np.linalg.norm(result.q[..., i + joint.nq - 4 : i + joint.nq], axis=-1)
            assert np.abs(lengths - 1).max() < 1e-14
    velocity = np.array([TREE.difference(a, b) for a, b in pairwise(result.q[0])]) / 1e-4
    middle = (result.v[0, 1:] + result.v[0, :-1]) / 2
    assert difference(velocity, middle) < 1e-5  # second order in the step


@pytest.mark.parametrize(("integrator", "order"), [("semi-implicit", 1), ("implicit", 1), ("rk4", 4)])
def test_halving_the_step_shows_the_order(integrator, order):
    q, v, _ = start(ARM, count=1, seed=3)

    def end(steps):
        return ts.rollout(ARM, q, 0.5 * v, steps=steps, dt=0.4 / steps, every=steps, integrator=integrator).q[0, 0]

    exact = ts.rollout(ARM, q, 0.5 * v, steps=4096, dt=0.4 / 4096, every=4096, integrator="rk4").q[0, 0]
    coarse, fine = (np.abs(end(n) - exact).max() for n in (128, 256))
    assert abs(np.log2(coarse / fine) - order) < 0.3


def test_energy_is_kept_and_batch_axes_broadcast():
    q, v, _ = start(ARM, count=4)
    result = ts.rollout(ARM, q.reshape(2, 2, -1), v[0], steps=100, dt=1e-3, every=50, integrator="rk4")
    assert result.q.shape == (2, 2, 2, ARM.nq)
    energy = ts.kinetic_energy(ARM, result.q, result.v) + ts.potential_energy(ARM, result.q)
    assert difference(energy[..., 0], energy[..., 1]) < 1e-6


def test_single_precision_stays_single():
    q, v, tau = (x.astype(np.float32) for x in start(ARM))
    result = ts.rollout(ARM, q, v, steps=5, dt=DT, tau=tau)
    assert result.q.dtype == np.float32
    double = ts.rollout(ARM, q.astype(float), v, steps=5, dt=DT, tau=tau)
    assert double.q.dtype == np.float64
    assert difference(result.v, double.v) < 1e-4


# Forces of the joints ----------------------------------------------------------------------------------------

ROPE = zoo.random_chain(30, 2)  # too many joints to unroll


def own(model, **numbers):
    return replace(model, **numbers)


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("model", [ARM, ROPE], ids=["unrolled", "loops"])
def test_gains_and_references_of_every_trajectory(model, integrator):
    """A rollout of many trajectories is the rollout of each; springs and dampers of the model add to the servos."""
    rng = np.random.default_rng(5)
    kp, kd = rng.uniform(1, 50, (2, 3, model.nv))
    q_ref, v_ref = rng.normal(size=(2, 3, model.nv))
    machine = own(model, stiffness=2.0, rest=0.1, damping=0.5)
    q, v, tau = start(model)
    options = dict(steps=STEPS, dt=DT, every=EVERY, integrator=integrator)
    found = ts.rollout(machine, q, v, tau=tau, feedback=ts.JointFeedback(kp, kd, q_ref, v_ref), **options)
    for k in range(3):

        def torque(t, q, v, k=k):
            servo = kp[k] * (q_ref[k] - q) + kd[k] * (v_ref[k] - v)
            return tau[k] + servo + 2.0 * (0.1 - q) - 0.5 * v

        expected = by_hand(model, q[k], v[k], torque, integrator, gains=(kp[k] + 2.0, kd[k] + 0.5))[EVERY - 1 :: EVERY]
        assert difference(np.concatenate([found.q[k], found.v[k]], axis=1), expected) < ROUNDING
        law = ts.LinearFeedback(np.diag(kp[k]), np.diag(kd[k]), q_ref[k], v_ref[k])
        alone = ts.rollout(machine, q[k], v[k], tau=tau[k], feedback=law, **options)
        assert difference(alone.q, found.q[k]) < ROUNDING


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("model", [ARM, ROPE], ids=["unrolled", "loops"])
def test_friction_and_stops_of_the_model(model, integrator):
    machine = own(model, friction=0.3, lower=-0.1, upper=np.where(np.arange(model.nv) % 2, 0.1, np.inf))
    q, v, _ = start(model, count=1)
    q, v = 0.2 * q[0], 0.1 * v[0]
    stops, creep = Limits(machine, machine.lower, machine.upper), 1e-3

    def torque(t, q, v):
        return stops(t, q, v) - 0.3 * v / np.sqrt(v * v + creep**2)

    if integrator == "implicit":  # the gains change from step to step: one step after the other
        path, x = [], (q, v)
        for _ in range(3):
            K, D = (np.broadcast_to(x, model.nv) for x in stops.gains(0.0, *x))
            D = D + 0.3 / np.sqrt(x[1] ** 2 + creep**2)  # -tau / v
            last = by_hand(model, *x, torque, integrator, steps=1, gains=(K, D))[0]
            path.append(last)
            x = last[: model.nq], last[model.nq :]
        expected = np.array(path)
    else:
        expected = by_hand(model, q, v, torque, integrator, steps=3)
    found = ts.rollout(machine, q, v, steps=3, dt=DT, integrator=integrator)
    assert difference(np.concatenate([found.q, found.v], axis=1), expected) < 1e-9


def test_many_joints_cost_no_more_than_their_number():
    """Gains on the diagonal are O(n); as a matrix they would be O(n^2)."""
    model = zoo.random_chain(400, 1)
    servo = ts.JointFeedback(np.full(400, 1e3), np.full(400, 1e2))
    result = ts.rollout(model, np.zeros(400), np.zeros(400), steps=100, dt=1e-2, feedback=servo, integrator="implicit")
    assert np.isfinite(result.q).all()


@pytest.mark.parametrize("gain", [1e3, 1e7, 1e12])
def test_implicit_steps_are_stable_for_any_gain(gain):
    servo = ts.JointFeedback(gain, gain, q_ref=0.3)
    for model in (ARM, ROPE):
        result = ts.rollout(model, np.zeros(model.nq), np.zeros(model.nv), steps=2000, dt=1e-2, feedback=servo,
                            integrator="implicit", every=2000)  # fmt: skip
        sag = np.abs(ts.gravity_forces(model, result.q[0])).max() / gain
        assert np.abs(result.q - 0.3).max() < 2 * sag + 1e-6


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("model", [ARM, TREE], ids=["arm", "tree"])
def test_every_trajectory_on_a_machine_of_its_own(model, integrator):
    """A rollout of a batch of models is the rollout of each member; axes of members and states broadcast."""
    rng = np.random.default_rng(3)
    varied = dict(mass=model.mass * rng.uniform(0.5, 2, (3, model.n)), damping=rng.uniform(0, 1, (3, model.nv)))
    if model is ARM:
        varied |= dict(p=model.p * rng.uniform(0.9, 1.1, (3, 1, 1)), stiffness=rng.uniform(0, 9, (3, model.nv)),
                       rest=rng.normal(size=(3, model.nv)), gravity=rng.normal(size=(3, 3)))  # fmt: skip
    batch = ts.ModelBatch(model, **varied)
    q, v, tau = start(model)
    options = dict(steps=STEPS, dt=DT, every=EVERY, integrator=integrator)
    found = ts.rollout(batch, q[0], v, tau=tau, **options)
    for k in range(3):
        alone = ts.rollout(batch[k], q[0], v[k], tau=tau[k], **options)
        assert difference(found.q[k], alone.q) < ROUNDING
        assert difference(found.v[k], alone.v) < ROUNDING
    assert ts.rollout(batch, q[:1, None], v[0], **options).q.shape == (1, 3, STEPS // EVERY, model.nq)


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("activation", ["relu", "softsign"])
@pytest.mark.parametrize("model", [ARM, ROPE], ids=["unrolled", "loops"])
def test_a_policy_is_part_of_the_step(model, activation, integrator):
    rng = np.random.default_rng(6)
    sizes = [model.nq + model.nv, 5, 4, model.nv]
    layers = [(rng.normal(size=(m, n)), rng.normal(size=m)) for n, m in pairwise(sizes)]

    def torque(t, q, v):
        x = np.concatenate([q, v])
        for k, (W, b) in enumerate(layers):
            if k:
                x = np.maximum(x, 0) if activation == "relu" else x / (1 + np.abs(x))
            x = W @ x + b
        return x

    q, v, _ = start(model)
    found = ts.rollout(model, q, v, steps=5, dt=DT, feedback=ts.Policy(layers, activation), integrator=integrator)
    for k in range(3):
        none = np.zeros((2, model.nv))  # a policy's gains are not known: it is explicit in an implicit step
        expected = by_hand(model, q[k], v[k], torque, integrator, steps=5, gains=none)
        assert difference(np.concatenate([found.q[k], found.v[k]], axis=1), expected) < 1e-9


def test_the_cuda_text_of_a_policy():
    rng = np.random.default_rng(7)
    policy = ts.Policy([(rng.normal(size=(4, 12)), rng.normal(size=4)), (rng.normal(size=(6, 4)), np.zeros(6))])
    q, v, tau = start(ARM)
    law = law_of(ARM, policy)
    kernel = gpu_kernel(ARM, "semi-implicit", law, dtype="float64", specialised=False)
    arrays = (q, v, tau, np.tile(law.values, (3, 1)), np.full((3, 1), DT))
    got = cuda_reader.run_step(kernel, arrays, framed(ARM))
    expected = ts.rollout(ARM, q, v, steps=1, dt=DT, tau=tau, feedback=policy)
    assert difference(got, np.concatenate([expected.q[:, 0], expected.v[:, 0]], axis=1)) < ROUNDING


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (ts.Policy([(np.zeros((6, 11)), np.zeros(6))]), "W \\(6, 11\\)"),
        (ts.Policy([(np.zeros((5, 12)), np.zeros(5))]), "must give 6 torques"),
        (ts.Policy([]), "must give 6 torques"),
        (ts.Policy([np.zeros(3)]), "layers"),
        (ts.Policy([(np.zeros((6, 12)), np.zeros(6))], "tanh"), "activation"),
        (ts.Policy([(np.full((6, 12), np.nan), np.zeros(6))]), "W of layers"),
    ],
    ids=["inputs", "outputs", "empty", "pair", "activation", "nan"],
)
def test_policies_that_do_not_fit_are_refused(policy, words):
    with pytest.raises(ts.ArgumentError, match=words):
        ts.rollout(ARM, np.zeros(6), np.zeros(6), steps=1, dt=DT, feedback=policy)


@pytest.mark.parametrize(
    "shapes",
    [{"Kq": (2, 6, 6), "Kv": (3, 6, 6)}, {"Kq": (2, 6, 6), "q_ref": (3, 6)}, {"q_ref": (3, 6), "v_ref": (2, 6)}],
    ids=["gains", "reference", "references"],
)
def test_gains_whose_batch_axes_do_not_go_together_are_refused(shapes):
    given = {"Kq": np.ones(6), "Kv": np.ones(6)} | {name: np.ones(shape) for name, shape in shapes.items()}
    with pytest.raises(ts.ArgumentError, match="batch axes do not go together: Kq"):
        ts.rollout(ARM, np.zeros(6), np.zeros(6), steps=1, dt=DT, feedback=ts.LinearFeedback(**given))


def test_a_batch_that_cannot_be_rolled_out_is_refused():
    v = np.zeros(6)
    with pytest.raises(ts.ArgumentError, match="batch"):
        ts.rollout(ts.ModelBatch(ARM, mass=np.tile(ARM.mass, (3, 1))), np.zeros((2, 6)), v, steps=1, dt=DT)


@pytest.mark.parametrize("integrator", ["implicit", "rk4"])
def test_a_batch_of_large_machines_takes_loops(integrator):
    masses = ROPE.mass * np.array([[1.0], [2.0]])
    q, v, tau = (x[0] for x in start(ROPE))
    servo = ts.JointFeedback(5.0, [[0.1] * ROPE.nv, [0.2] * ROPE.nv])
    options = {"steps": 4, "dt": DT, "tau": tau, "integrator": integrator}
    found = ts.rollout(ts.ModelBatch(ROPE, mass=masses), q, v, feedback=servo, **options)
    for k, kd in enumerate((0.1, 0.2)):
        one = ts.rollout(replace(ROPE, mass=masses[k]), q, v, feedback=ts.JointFeedback(5.0, kd), **options)
        assert max(difference(found.q[k], one.q), difference(found.v[k], one.v)) < ROUNDING


def test_what_a_rollout_cannot_do_is_said():
    ball = own(TREE, stiffness=np.ones(TREE.nv))
    q, v, _ = start(TREE)
    with pytest.raises(ts.ArgumentError, match="springs on quaternions"):
        ts.rollout(ball, q, v, steps=1, dt=DT)
    with pytest.raises(ts.ArgumentError, match="quaternions"):
        ts.rollout(TREE, q, v, steps=1, dt=DT, feedback=ts.JointFeedback(1.0, 1.0))
    for wrong in ({"kp": np.ones(5)}, {"q_ref": np.ones((2, 5))}, {"kd": np.nan}):
        with pytest.raises(ts.ArgumentError, match=next(iter(wrong))):
            ts.rollout(
                ARM, *start(ARM)[:2], steps=1, dt=DT, feedback=ts.JointFeedback(**{"kp": 1.0, "kd": 1.0} | wrong)
            )
    with pytest.raises(ts.ArgumentError, match="batch"):
        ts.rollout(ARM, *start(ARM)[:2], steps=1, dt=DT, feedback=ts.JointFeedback(np.ones((2, 6)), np.ones((3, 6))))


# The CUDA text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "staged"])
@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("model", [ARM, TREE], ids=["arm", "tree"])
def test_cuda_text_takes_the_same_step(model, integrator, specialised):
    q, v, tau = start(model)
    feedback = small_feedback(model)
    law = law_of(model, feedback)
    kernel = gpu_kernel(model, integrator, law, dtype="float64", specialised=specialised)
    gain, h = np.tile(law.values, (3, 1)), np.full((3, 1), DT)
    assert [len(x[0]) for x in (q, v, tau, gain, h)] == [shape[0] for shape in step_inputs(model, law).values()]
    got = cuda_reader.run_step(kernel, (q, v, tau + law.constant, gain, h), framed(model))
    expected = ts.rollout(model, q, v, steps=1, dt=DT, tau=tau, feedback=feedback, integrator=integrator)
    assert difference(got, np.concatenate([expected.q[:, 0], expected.v[:, 0]], axis=1)) < ROUNDING


@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "staged"])
@pytest.mark.parametrize("integrator", ["rk4", "implicit"])
def test_whole_kernel_on_the_host(specialised, integrator):
    """The loop over time and what is stored, where a C++ compiler is there; else step after step by the reader."""
    count = 70 if cuda_host.compiler() else 3
    q, v, tau = start(ARM, count)
    table = np.random.default_rng(2).normal(size=(count, STEPS, ARM.nv))
    servo = ts.JointFeedback(*np.random.default_rng(3).uniform(1, 9, (2, count, ARM.nv)))
    law = law_of(ARM, servo)
    kernel = gpu_kernel(ARM, integrator, law, dtype="float64", tabulated=True, specialised=specialised)
    if cuda_host.compiler():
        got = cuda_host.run_rollout(kernel, (q, v, tau, table), law.values, DT, STEPS, EVERY, framed(ARM))
    else:
        got, x = [], np.concatenate([q, v], axis=1)
        for t in range(STEPS):
            now = (x[:, : ARM.nq], x[:, ARM.nq :], tau + table[:, t], law.values, np.full((count, 1), DT))
            x = cuda_reader.run_step(kernel, now, framed(ARM))
            got.append(x)
        got = np.stack(got[EVERY - 1 :: EVERY], axis=1)
    options = dict(steps=STEPS, dt=DT, every=EVERY, integrator=integrator)
    expected = ts.rollout(ARM, q, v, tau=tau, table=table, feedback=servo, **options)
    assert difference(got, np.concatenate([expected.q, expected.v], axis=-1)) < ROUNDING


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"integrator": "euler"}, "integrator"),
        ({"steps": 0}, "steps"),
        ({"every": 9}, "every"),
        ({"dt": -1.0}, "dt"),
        ({"dt": np.nan}, "dt"),
        ({"q": np.zeros(5)}, "q is"),
        ({"tau": np.zeros(7)}, "tau is"),
        ({"table": np.zeros((3, 6))}, "table is"),
        ({"v": np.full(6, np.inf)}, "finite"),
        ({"q": np.zeros((2, 6)), "v": np.zeros((3, 6))}, "batch"),
        ({"feedback": ts.LinearFeedback(np.zeros(5), np.zeros(6))}, "Kq"),
        ({"feedback": ts.LinearFeedback(np.zeros(6), np.full((6, 6), np.nan))}, "Kv"),
    ],
)
def test_arguments_that_are_wrong_are_named(wrong, words):
    given = {"q": np.zeros(6), "v": np.zeros(6), "steps": 5, "dt": DT} | wrong
    with pytest.raises(ts.ArgumentError, match=words):
        ts.rollout(ARM, given.pop("q"), given.pop("v"), **given)
