"""Rollouts: the step against the definitions, CPU lanes against the reference, the CUDA text against both."""

from dataclasses import replace
from itertools import pairwise

import cuda_host
import cuda_reader
import numpy as np
import pytest
from machines import difference, quaternion_columns

import torsor as ts
from torsor import zoo
from torsor.compiler.frames import framed
from torsor.model.joints import JOINTS
from torsor.motion import lowering, steps, time_loop
from torsor.motion.driver import Fixed
from torsor.motion.gpu_rollout import kernel_of
from torsor.motion.law import collect
from torsor.motion.lowering import Lowered
from torsor.motion.motion import DAMPING, STIFFNESS, TORQUE, CompiledLaw

ROUNDING = 1e-11  # twenty steps of 1 ms, in float64
SMALL = 1e-5  # central differences of potentials: ten digits, and a torque moves a state by 1e-3 of it per step
H, STEPS, EVERY = 1e-3, 20, 5
METHODS = ["semi-implicit", "implicit-euler", "rk4"]

ARM = zoo.puma_saha()
TREE = zoo.random_tree(7, 1)  # every joint type: quaternions and a free body among them


def start(model, count=3, seed=0):
    rng = np.random.default_rng(seed)
    return (model.random_configuration(rng, count), *rng.normal(size=(2, count, model.nv)))


def small_feedback(model, seed=1):
    rng = np.random.default_rng(seed)
    width = model.nq + model.nv
    return ts.Feedback(0.1 * rng.normal(size=(model.nv, width)), rng.normal(size=width))


def step_of(model, method, forces):
    """A step as it is lowered."""
    return Fixed(model, collect(model, forces), steps.METHODS[method], method, H).step


def held(table):
    """The torques of a digital controller, one row per step."""
    return ts.Table(H * np.arange(table.shape[-2]), table, "previous")


def states(path):
    return np.concatenate([path.q, path.v], axis=-1)


def coordinate_rate(model, q, v):
    """dq/dt by a difference quotient of the manifold's own exponential, which is exact for the first order."""
    h = 1e-6
    return (model.integrate(q, v * h) - model.integrate(q, -v * h)) / (2 * h)


def by_hand(model, q, v, torque, method, steps=STEPS, gains=(0.0, 0.0)):
    """One trajectory with the public forward dynamics; torque(t, q, v), and its stiffness and damping per joint."""

    def rates(t, q, v):
        return coordinate_rate(model, q, v), ts.forward_dynamics(model, q, v, torque(t, q, v))

    path = []
    for t in range(steps):
        if method == "implicit-euler":
            K, D = gains
            tau = torque(t, q, v) - H * K * v
            v = v + H * ts.forward_dynamics(model, q, v, tau, added_inertia=H * D + H**2 * K)
            q = q + H * coordinate_rate(model, q, v)
        elif method == "semi-implicit":
            v = v + H * rates(t, q, v)[1]
            q = q + H * coordinate_rate(model, q, v)
        else:
            k1 = rates(t, q, v)
            k2 = rates(t, q + H / 2 * k1[0], v + H / 2 * k1[1])
            k3 = rates(t, q + H / 2 * k2[0], v + H / 2 * k2[1])
            k4 = rates(t, q + H * k3[0], v + H * k3[1])
            q, v = (x + H / 6 * (a + 2 * b + 2 * c + d) for x, a, b, c, d in zip((q, v), k1, k2, k3, k4))
        for columns, _ in quaternion_columns(model):
            q[columns] /= np.linalg.norm(q[columns])
        path.append(np.concatenate([q, v]))
    return np.array(path)


@pytest.mark.parametrize("method", METHODS)
def test_rollout_takes_the_steps_of_its_definition(method):
    q, v, tau = start(ARM)
    table = np.random.default_rng(2).normal(size=(3, STEPS, ARM.nv))
    law = small_feedback(ARM)
    forces = [ts.Constant(tau), held(table), law]
    result = ts.rollout(ARM, q, v, steps=STEPS, step=H, every=EVERY, method=method, forces=forces)
    assert result.q.shape == (3, STEPS // EVERY, ARM.nq)
    for k in range(3):

        def torque(t, q, v, k=k):
            return tau[k] + table[k, t] + law.K @ (law.x_ref - np.concatenate([q, v]))

        gains = law.K.diagonal(), law.K.diagonal(ARM.nq)
        expected = by_hand(ARM, q[k], v[k], torque, method, gains=gains)[EVERY - 1 :: EVERY]
        assert difference(states(result)[k], expected) < ROUNDING


@pytest.mark.parametrize("method", METHODS)
def test_large_models_take_the_same_steps(method, monkeypatch):
    """The step around a loop kernel is the step with the dynamics written out in it, in stages and column by column."""
    q, v, tau = start(ARM)
    step = step_of(ARM, method, small_feedback(ARM))
    results = []
    for written_out, operations in ((True, 0), (False, lowering.MOST_OPERATIONS), (False, 0)):
        monkeypatch.setattr(lowering.Step, "written_out", written_out)
        monkeypatch.setattr(lowering, "MOST_OPERATIONS", operations)
        given = q, v, tau + step.law.constant[0], step.law.values, np.array([H])
        results.append(time_loop.at_once(Lowered(step), *given))
    assert difference(results[1], results[0]) < ROUNDING
    assert difference(results[2], results[0]) < ROUNDING


def test_quaternions_keep_their_length_and_turn_as_the_group_says():
    q, v, tau = start(TREE)
    result = ts.rollout(TREE, q, v, steps=STEPS, step=1e-4, forces=ts.Constant(tau), method="rk4")
    for code, i in zip(TREE.joint, TREE.q_start):
        joint = ts.model.joints.JOINTS[code]
        if joint.nq != joint.nv:
            lengths = np.linalg.norm(result.q[..., i + joint.nq - 4 : i + joint.nq], axis=-1)
            assert np.abs(lengths - 1).max() < 1e-14
    velocity = np.array([TREE.difference(a, b) for a, b in pairwise(result.q[0])]) / 1e-4
    middle = (result.v[0, 1:] + result.v[0, :-1]) / 2
    assert difference(velocity, middle) < 1e-5  # second order in the step


@pytest.mark.parametrize(("method", "order"), [("semi-implicit", 1), ("implicit-euler", 1), ("rk4", 4)])
def test_halving_the_step_shows_the_order(method, order):
    q, v, _ = start(ARM, count=1, seed=3)

    def end(steps):
        return ts.rollout(ARM, q, 0.5 * v, steps=steps, step=0.4 / steps, every=steps, method=method).q[0, 0]

    exact = ts.rollout(ARM, q, 0.5 * v, steps=4096, step=0.4 / 4096, every=4096, method="rk4").q[0, 0]
    coarse, fine = (np.abs(end(n) - exact).max() for n in (128, 256))
    assert abs(np.log2(coarse / fine) - order) < 0.3


def test_energy_is_kept_and_batch_axes_broadcast():
    q, v, _ = start(ARM, count=4)
    result = ts.rollout(ARM, q.reshape(2, 2, -1), v[0], steps=100, step=1e-3, every=50, method="rk4")
    assert result.q.shape == (2, 2, 2, ARM.nq)
    energy = ts.kinetic_energy(ARM, result.q, result.v) + ts.potential_energy(ARM, result.q)
    assert difference(energy[..., 0], energy[..., 1]) < 1e-6


@pytest.mark.parametrize("shape", [(), (1,), (2, 1)], ids=str)
def test_a_trajectory_that_diverges_ends_in_no_number(shape):
    """It says so by what it holds, alone and beside others, which it does not change."""
    q, v = np.zeros((*shape, 6)), np.full((*shape, 6), 1e200)
    found = ts.rollout(ARM, q, v, steps=4, step=1.0)
    assert not np.isfinite(found.q[..., -1, :]).any()
    calm = ts.rollout(ARM, np.zeros(6), np.ones(6), steps=4, step=H)
    both = ts.rollout(ARM, np.zeros((2, 6)), np.stack([np.ones(6), np.full(6, 1e200)]), steps=4, step=H)
    np.testing.assert_array_equal(both.q[0], calm.q)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_state_alone_has_the_bits_it_has_in_a_batch(method, dtype):
    """In straight-line code, in loops, with joints as lanes and with quaternions."""
    for model, count in ((ARM, 21), (TREE, 5), (ROPE, 5), (zoo.random_tree(14, 2), 3)):
        q, v, tau = (x.astype(dtype) for x in start(model, count))
        options = {"steps": 3, "step": H, "method": method}
        flat = model.nq == model.nv
        forces = [ts.Friction(0.1, 0.2)] + [ts.PD(0.1, 3.0, 0.2)] * flat
        batch = ts.rollout(model, q, v, forces=[*forces, ts.Constant(tau)], **options)
        assert batch.q.dtype == batch.v.dtype == dtype
        for k in (0, count - 1):
            alone = ts.rollout(model, q[k], v[k], forces=[*forces, ts.Constant(tau[k])], **options)
            assert alone.q.dtype == dtype
            np.testing.assert_array_equal(alone.q, batch.q[k])
            np.testing.assert_array_equal(alone.v, batch.v[k])


@pytest.mark.parametrize("method", METHODS)
def test_states_that_threads_share_have_the_bits_they_have_alone(method):
    """More states than a thread moves at a time, with numbers of their own and numbers for all."""
    count, rng = 2500, np.random.default_rng(1)
    q, v, tau = start(ARM, count)
    kp, table = rng.uniform(1, 9, (count, 6)), rng.normal(size=(count, 3, 6))
    wrenches = rng.normal(size=(ARM.n, 6))

    def run(rows):
        forces = [ts.PD(0.1, kp[rows], 0.2), held(table[rows]), ts.Constant(tau[0]), ts.External(wrenches)]
        return ts.rollout(ARM, q[rows], v[rows], steps=3, step=H, method=method, forces=forces)

    whole = run(slice(None))
    for rows in (slice(0, 3), slice(1022, 1027), slice(2047, 2049), slice(2499, 2500)):
        np.testing.assert_array_equal(run(rows).q, whole.q[rows])


@pytest.mark.parametrize("method", METHODS)
def test_a_loop_over_time_that_pauses_goes_on_where_it_was(method, monkeypatch):
    """Ctrl-C is looked for after some steps."""
    for model in (ARM, ROPE):
        q, v, _ = start(model)
        table = np.random.default_rng(2).normal(size=(7, model.nv))
        options = {"steps": 7, "step": H, "method": method, "forces": held(table)}
        expected = ts.rollout(model, q, v, **options)
        for most in (1, 3 * 4 * model.nv, 2_000_000):
            monkeypatch.setattr(time_loop, "UNINTERRUPTED", most)
            for every in (1, 2, 3, 7):
                found = ts.rollout(model, q, v, **options, every=every)
                np.testing.assert_array_equal(states(found), states(expected)[:, every - 1 :: every])


def test_calls_end_where_states_are_stored():
    """No call moves more steps than it may, and all of them together reach every end."""
    for ends in ([1], [7], range(1, 9), range(3, 31, 3), [1, 2, 3, 10, 17, 18]):
        for most in (1, 2, 3, 5, 100):
            at, found = 0, []
            for every, count in time_loop.calls_until(ends, most):
                assert every * max(count, 1) <= most
                found += [at + every * (k + 1) for k in range(count)]
                at += every * max(count, 1)
            assert found == list(ends)


def test_stops_and_resets_under_functions_and_gains_in_time():
    """Trajectories that stop stay where they are, others go on as if alone, whatever acts on them."""
    rng = np.random.default_rng(4)
    gains = ts.Feedback(rng.normal(size=(STEPS, 6, 12)), t=H * np.arange(STEPS))
    q, v, _ = start(ARM, 5)
    stop = ts.Stop(v=0, below=-0.5, above=0.5)
    for forces in (gains, lambda t, q, v: -0.1 * v * np.cos(100 * t)):
        free = ts.rollout(ARM, q, 0.3 * v, steps=STEPS, step=H, forces=forces)
        found = ts.rollout(ARM, q, 0.3 * v, steps=STEPS, step=H, forces=forces, stop=stop)
        whole = np.concatenate([np.concatenate([q, 0.3 * v], axis=1)[:, None], states(free)], axis=1)
        gone = np.abs(whole[..., 6]) > 0.5
        assert 0 < gone.any(axis=1).sum() < 5
        for k in range(5):
            last = gone[k].argmax() if gone[k].any() else STEPS
            expected = whole[k, np.minimum(np.arange(1, STEPS + 1), last)]
            np.testing.assert_array_equal(states(found)[k], expected)
        again = ts.rollout(ARM, q, 0.3 * v, steps=STEPS, step=H, forces=forces, stop=stop, reset=(q, 0 * v))
        np.testing.assert_array_equal(again.stop_time, found.stop_time)


def test_single_precision_stays_single():
    q, v, tau = (x.astype(np.float32) for x in start(ARM))
    result = ts.rollout(ARM, q, v, steps=5, step=H, forces=ts.Constant(tau))
    assert result.q.dtype == np.float32
    double = ts.rollout(ARM, q.astype(float), v, steps=5, step=H, forces=ts.Constant(tau))
    assert double.q.dtype == np.float64
    assert difference(result.v, double.v) < 1e-4


# Forces of the joints ----------------------------------------------------------------------------------------

ROPE = zoo.random_chain(30, 2)  # too many joints to unroll


def own(model, **numbers):
    return replace(model, **numbers)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", [ARM, ROPE], ids=["unrolled", "loops"])
def test_gains_and_references_of_every_trajectory(model, method):
    """A rollout of many trajectories is the rollout of each; springs and dampers of the model add to the servos."""
    rng = np.random.default_rng(5)
    kp, kd = rng.uniform(1, 50, (2, 3, model.nv))
    q_ref, v_ref = rng.normal(size=(2, 3, model.nv))
    machine = own(model, stiffness=2.0, rest=0.1, damping=0.5)
    q, v, tau = start(model)
    options = dict(steps=STEPS, step=H, every=EVERY, method=method)
    found = ts.rollout(machine, q, v, forces=[ts.PD(q_ref, kp, kd), ts.Constant(tau + kd * v_ref)], **options)
    for k in range(3):

        def torque(t, q, v, k=k):
            servo = kp[k] * (q_ref[k] - q) + kd[k] * (v_ref[k] - v)
            return tau[k] + servo + 2.0 * (0.1 - q) - 0.5 * v

        expected = by_hand(model, q[k], v[k], torque, method, gains=(kp[k] + 2.0, kd[k] + 0.5))[EVERY - 1 :: EVERY]
        assert difference(states(found)[k], expected) < ROUNDING
        law = ts.Feedback(np.hstack([np.diag(kp[k]), np.diag(kd[k])]), np.concatenate([q_ref[k], v_ref[k]]), tau[k])
        alone = ts.rollout(machine, q[k], v[k], forces=law, **options)
        assert difference(alone.q, found.q[k]) < ROUNDING


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", [ARM, ROPE], ids=["unrolled", "loops"])
def test_friction_and_stops_of_the_model(model, method):
    machine = own(model, friction=0.3, lower=-0.1, upper=np.where(np.arange(model.nv) % 2, 0.1, np.inf))
    q, v, _ = start(model, count=1)
    q, v = 0.2 * q[0], 0.1 * v[0]
    stops, creep = CompiledLaw(collect(model, ts.Limits(machine.lower, machine.upper), own=False)), 1e-3

    def torque(t, q, v):
        return stops(t, q, v)[TORQUE] - 0.3 * v / np.sqrt(v * v + creep**2)

    if method == "implicit-euler":  # the gains change from step to step: one step after the other
        path, x = [], (q, v)
        for _ in range(3):
            K, D = stops(0.0, *x)[[STIFFNESS, DAMPING]]
            D = D + 0.3 / np.sqrt(x[1] ** 2 + creep**2)  # -tau / v
            last = by_hand(model, *x, torque, method, steps=1, gains=(K, D))[0]
            path.append(last)
            x = last[: model.nq], last[model.nq :]
        expected = np.array(path)
    else:
        expected = by_hand(model, q, v, torque, method, steps=3)
    found = ts.rollout(machine, q, v, steps=3, step=H, method=method)
    assert difference(states(found), expected) < 1e-9


def test_many_joints_cost_no_more_than_their_number():
    """Gains on the diagonal are O(n); as a matrix they would be O(n^2)."""
    model = zoo.random_chain(400, 1)
    servo = ts.PD(0.0, np.full(400, 1e3), np.full(400, 1e2))
    result = ts.rollout(
        model, np.zeros(400), np.zeros(400), steps=100, step=1e-2, forces=servo, method="implicit-euler"
    )
    assert np.isfinite(result.q).all()


@pytest.mark.parametrize("gain", [1e3, 1e7, 1e12])
def test_implicit_steps_are_stable_for_any_gain(gain):
    servo = ts.PD(0.3, gain, gain)
    for model in (ARM, ROPE):
        result = ts.rollout(model, np.zeros(model.nq), np.zeros(model.nv), steps=2000, step=1e-2, forces=servo,
                            method="implicit-euler", every=2000)  # fmt: skip
        sag = np.abs(ts.gravity_forces(model, result.q[0])).max() / gain
        assert np.abs(result.q - 0.3).max() < 2 * sag + 1e-6


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", [ARM, TREE], ids=["arm", "tree"])
def test_every_trajectory_on_a_machine_of_its_own(model, method):
    """A rollout of a batch of models is the rollout of each member; axes of members and states broadcast."""
    rng = np.random.default_rng(3)
    varied = dict(mass=model.mass * rng.uniform(0.5, 2, (3, model.n)), damping=rng.uniform(0, 1, (3, model.nv)))
    if model is ARM:
        varied |= dict(p=model.p * rng.uniform(0.9, 1.1, (3, 1, 1)), stiffness=rng.uniform(0, 9, (3, model.nv)),
                       rest=rng.normal(size=(3, model.nv)), gravity=rng.normal(size=(3, 3)))  # fmt: skip
    batch = ts.ModelBatch(model, **varied)
    q, v, tau = start(model)
    options = dict(steps=STEPS, step=H, every=EVERY, method=method)
    found = ts.rollout(batch, q[0], v, forces=ts.Constant(tau), **options)
    for k in range(3):
        alone = ts.rollout(batch[k], q[0], v[k], forces=ts.Constant(tau[k]), **options)
        assert difference(found.q[k], alone.q) < ROUNDING
        assert difference(found.v[k], alone.v) < ROUNDING
    assert ts.rollout(batch, q[:1, None], v[0], **options).q.shape == (1, 3, STEPS // EVERY, model.nq)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("activation", ["relu", "softsign"])
@pytest.mark.parametrize("model", [ARM, ROPE], ids=["unrolled", "loops"])
def test_a_policy_is_part_of_the_step(model, activation, method):
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
    found = ts.rollout(model, q, v, steps=5, step=H, forces=ts.Policy(layers, activation), method=method)
    for k in range(3):
        none = np.zeros((2, model.nv))  # a policy's gains are not known: it is explicit in an implicit step
        expected = by_hand(model, q[k], v[k], torque, method, steps=5, gains=none)
        assert difference(states(found)[k], expected) < 1e-9


def test_the_cuda_text_of_a_policy():
    rng = np.random.default_rng(7)
    policy = ts.Policy([(rng.normal(size=(4, 12)), rng.normal(size=4)), (rng.normal(size=(6, 4)), np.zeros(6))])
    q, v, tau = start(ARM)
    step = step_of(ARM, "semi-implicit", policy)
    kernel = kernel_of(step, dtype="float64", specialised=False)
    arrays = (q, v, tau, np.tile(step.law.values, (3, 1)), np.full((3, 1), H))
    got = cuda_reader.run_step(kernel, arrays, framed(ARM))
    expected = ts.rollout(ARM, q, v, steps=1, step=H, forces=[ts.Constant(tau), policy])
    assert difference(got, states(expected)[:, 0]) < ROUNDING


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
        ts.rollout(ARM, np.zeros(6), np.zeros(6), steps=1, step=H, forces=policy)


@pytest.mark.parametrize(
    "shapes",
    [{"K": (2, 6, 12), "x_ref": (3, 12)}, {"K": (2, 6, 12), "tau": (3, 6)}, {"x_ref": (3, 12), "tau": (2, 6)}],
    ids=["reference", "torques", "references"],
)
def test_gains_whose_batch_axes_do_not_go_together_are_refused(shapes):
    given = {"K": np.ones((6, 12))} | {name: np.ones(shape) for name, shape in shapes.items()}
    with pytest.raises(ts.ArgumentError, match="batch axes of Feedback do not go together"):
        ts.rollout(ARM, np.zeros(6), np.zeros(6), steps=1, step=H, forces=ts.Feedback(**given))
    forces = [ts.PD(np.ones((2, 6)), 1.0, 1.0), ts.Constant(np.ones((3, 6)))]
    with pytest.raises(ts.ArgumentError, match="batch axes of forces do not go together"):
        ts.rollout(ARM, np.zeros(6), np.zeros(6), steps=1, step=H, forces=forces)


def test_a_batch_that_cannot_be_rolled_out_is_refused():
    v = np.zeros(6)
    with pytest.raises(ts.ArgumentError, match="batch"):
        ts.rollout(ts.ModelBatch(ARM, mass=np.tile(ARM.mass, (3, 1))), np.zeros((2, 6)), v, steps=1, step=H)


@pytest.mark.parametrize("method", ["implicit-euler", "rk4"])
def test_a_batch_of_large_machines_takes_loops(method):
    masses = ROPE.mass * np.array([[1.0], [2.0]])
    q, v, tau = (x[0] for x in start(ROPE))
    servo, constant = ts.PD(0.0, 5.0, [[0.1] * ROPE.nv, [0.2] * ROPE.nv]), ts.Constant(tau)
    options = {"steps": 4, "step": H, "method": method}
    found = ts.rollout(ts.ModelBatch(ROPE, mass=masses), q, v, forces=[servo, constant], **options)
    for k, kd in enumerate((0.1, 0.2)):
        one = ts.rollout(replace(ROPE, mass=masses[k]), q, v, forces=[ts.PD(0.0, 5.0, kd), constant], **options)
        assert max(difference(found.q[k], one.q), difference(found.v[k], one.v)) < ROUNDING


@pytest.mark.parametrize("written_out", [True, False], ids=["unrolled", "loops"])
def test_springs_and_servos_act_on_quaternions(written_out, monkeypatch):
    """Servos along the shortest turn, springs by the gradient of their potential; both against public functions."""
    monkeypatch.setattr(lowering.Step, "written_out", property(lambda step: written_out and step.law.is_data))
    model = replace(TREE, name=f"tree {written_out}", gravity=np.nextafter(TREE.gravity, written_out))
    q, v, _ = start(model)
    goal = model.random_configuration(np.random.default_rng(9))
    kp, kd = np.random.default_rng(8).uniform(1, 5, (2, model.nv))

    def servo(t, q, v):
        return kp * model.difference(q, goal) - kd * v

    def spring(t, q, v):
        moves = (model.integrate(q, h * np.eye(model.nv)) for h in (SMALL, -SMALL))
        up, down = (energy(x) for x in moves)
        return -(up - down) / (2 * SMALL)

    def energy(q):
        elongation = [
            JOINTS[code].elongation(x, rest) for code, x, rest in zip(model.joint, *map(by_joint, (q, slack)))
        ]
        return (kp * np.concatenate(elongation, axis=-1) ** 2).sum(axis=-1) / 2

    def by_joint(q):
        return np.split(q, model.q_start[1:-1], axis=-1)

    slack = np.broadcast_to(model.neutral(), (model.nv, model.nq))

    for force, torque in ((ts.PD(goal, kp, kd), servo), (ts.Spring(kp), spring)):
        found = ts.rollout(model, q, v, steps=2, step=H, method="rk4", forces=force)
        for k in range(3):
            expected = by_hand(model, q[k], v[k], torque, "rk4", steps=2)
            assert difference(states(found)[k], expected) < ROUNDING


def test_what_a_rollout_cannot_do_is_said():
    for wrong, words in (({"kp": np.ones(5)}, "kp of PD"), ({"reference": np.ones((2, 5))}, "reference"),
                         ({"kd": np.nan}, "kd of PD")):  # fmt: skip
        servo = ts.PD(**{"reference": 0.0, "kp": 1.0, "kd": 1.0} | wrong)
        with pytest.raises(ts.ArgumentError, match=words):
            ts.rollout(ARM, *start(ARM)[:2], steps=1, step=H, forces=servo)
    with pytest.raises(ts.ArgumentError, match="batch"):
        ts.rollout(ARM, *start(ARM)[:2], steps=1, step=H, forces=ts.PD(0.0, np.ones((2, 6)), np.ones((3, 6))))


# The CUDA text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "staged"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", [ARM, TREE], ids=["arm", "tree"])
def test_cuda_text_takes_the_same_step(model, method, specialised):
    q, v, tau = start(model)
    feedback = small_feedback(model)
    step = step_of(model, method, feedback)
    kernel = kernel_of(step, dtype="float64", specialised=specialised)
    gain, h = np.tile(step.law.values, (3, 1)), np.full((3, 1), H)
    assert [len(x[0]) for x in (q, v, tau, gain, h)] == [shape[0] for shape in step.inputs.values()]
    got = cuda_reader.run_step(kernel, (q, v, tau + step.law.constant[0], gain, h), framed(model))
    expected = ts.rollout(model, q, v, steps=1, step=H, forces=[ts.Constant(tau), feedback], method=method)
    assert difference(got, states(expected)[:, 0]) < ROUNDING


@pytest.mark.thinned(2)
@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "staged"])
@pytest.mark.parametrize("method", ["rk4", "implicit-euler"])
def test_whole_kernel_on_the_host(specialised, method):
    """The loop over time and what is stored, where a C++ compiler is there; else step after step by the reader."""
    count = 70 if cuda_host.compiler() else 3
    q, v, tau = start(ARM, count)
    table = np.random.default_rng(2).normal(size=(count, STEPS, ARM.nv))
    servo = ts.PD(0.0, *np.random.default_rng(3).uniform(1, 9, (2, count, ARM.nv)))
    forces = [ts.Constant(tau), held(table), servo]
    setup = Fixed(ARM, collect(ARM, forces), steps.METHODS[method], method, H)
    kernel, law = kernel_of(setup.step, dtype="float64", specialised=specialised), setup.law
    commands = setup.commands(0, STEPS)
    if cuda_host.compiler():
        got = cuda_host.run_rollout(kernel, (q, v, commands), law.values, H, STEPS, EVERY, framed(ARM))
    else:
        got, x = [], np.concatenate([q, v], axis=1)
        for t in range(STEPS):
            now = (x[:, : ARM.nq], x[:, ARM.nq :], commands[:, t], law.values, np.full((count, 1), H))
            x = cuda_reader.run_step(kernel, now, framed(ARM))
            got.append(x)
        got = np.stack(got[EVERY - 1 :: EVERY], axis=1)
    expected = ts.rollout(ARM, q, v, steps=STEPS, step=H, every=EVERY, method=method, forces=forces)
    assert difference(got, states(expected)) < ROUNDING


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"method": "euler"}, "method"),
        ({"steps": 0}, "steps"),
        ({"every": 9}, "every"),
        ({"step": -1.0}, "step"),
        ({"step": np.nan}, "step"),
        ({"q": np.zeros(5)}, r"q has shape \(5,\)"),
        ({"forces": ts.Constant(np.zeros(7))}, "tau of Constant"),
        ({"forces": held(np.zeros((3, 5)))}, "tau of Table has 5 columns"),
        ({"forces": "servo"}, "forces must be"),
        ({"forces": [3]}, r"forces\[0\] must be"),
        ({"v": np.full(6, np.inf)}, "finite"),
        ({"q": np.zeros((2, 6)), "v": np.zeros((3, 6))}, "batch"),
        ({"forces": ts.Feedback(np.zeros((6, 11)))}, "K of Feedback"),
        ({"forces": ts.Feedback(np.zeros((6, 12)), np.zeros(11))}, "x_ref of Feedback"),
        ({"forces": [ts.PD(0.0, 1.0, 1.0), ts.Constant(np.full(6, np.nan))]}, "tau of Constant"),
    ],
)
def test_arguments_that_are_wrong_are_named(wrong, words):
    given = {"q": np.zeros(6), "v": np.zeros(6), "steps": 5, "step": H} | wrong
    with pytest.raises(ts.ArgumentError, match=words):
        ts.rollout(ARM, given.pop("q"), given.pop("v"), **given)


@pytest.mark.parametrize(
    "old",
    ["dt", "integrator", "tau", "table", "feedback", "external", "pulls"],
)
def test_old_keywords_name_the_new_ones(old):
    with pytest.raises(TypeError, match=r"is called (step=|method=|forces=)"):
        ts.rollout(ARM, np.zeros(6), np.zeros(6), steps=1, step=H, **{old: 1.0})


def test_gains_that_are_not_numbers_are_refused_when_they_are_given():
    with pytest.raises(ts.ArgumentError, match="K"):
        ts.Feedback(np.full((6, 12), np.nan))
