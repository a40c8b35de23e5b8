"""Rollouts under functions of the state, under gains that change in time, and of bodies that spin freely."""

from dataclasses import replace

import numpy as np
import pytest
from machines import difference

import torsor as ts
from torsor import zoo

SAME = 1e-13  # relative: the same sums in another order, over ten steps
KEPT = 1e-12  # relative: what a free body keeps, over a thousand steps
METHODS = ["semi-implicit", "implicit-euler", "rk4"]
STAGES = {"semi-implicit": 1, "implicit-euler": 1, "rk4": 4}
H, STEPS = 1e-3, 10
ARM, LONG = zoo.random_chain(4, 1), zoo.random_chain(14, 2)
TREE = zoo.random_tree(5, 3)
RNG = np.random.default_rng


def start(model, *shape, seed=0):
    rng = RNG(seed)
    return model.random_configuration(rng, shape), rng.normal(size=(*shape, model.nv))


# Functions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", [ARM, LONG], ids=["small", "large"])
def test_functions_are_the_same_laws_as_data(model, method):
    """A servo and friction, with their slopes; as a command within the limits of the drives, and beside them."""
    model = replace(model, effort=3.0, damping=0.1)
    goal, kp, kd, coulomb, creep = 0.3, np.linspace(5, 20, model.nv), 0.7, 0.4, 0.05
    data = [ts.PD(goal, kp, kd), ts.Friction(0.2, coulomb, creep)]

    def secant(v):
        return coulomb / np.sqrt(v * v + creep * creep)

    functions = [
        ts.Function(lambda t, q, v: kp * (goal - q) - kd * v, lambda t, q, v: (kp, kd), drive=True),
        ts.Function(lambda t, q, v: -(0.2 + secant(v)) * v, lambda t, q, v: (0.0, 0.2 + secant(v))),
    ]
    q, v = start(model, 3)
    options = {"steps": STEPS, "step": H, "method": method}
    one, other = (ts.rollout(model, q, v, forces=forces, **options) for forces in (data, functions))
    assert difference(other.q, one.q) < SAME
    assert difference(other.v, one.v) < SAME


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", [ARM, LONG, TREE], ids=["small", "large", "tree"])
def test_functions_are_called_once_per_stage_with_all_states(model, method):
    calls = []

    def drag(t, q, v):
        calls.append((t, q.shape, v.shape))
        return -0.3 * v

    q, v = start(model, 2, 3)
    path = ts.rollout(model, q, v, steps=4, step=H, method=method, forces=drag)
    assert path.q.shape == (2, 3, 4, model.nq)
    assert [shapes for _, *shapes in calls] == [[(6, model.nq), (6, model.nv)]] * (4 * STAGES[method])
    times = {"semi-implicit": [0.0], "implicit-euler": [1.0], "rk4": [0.0, 0.5, 0.5, 1.0]}[method]
    np.testing.assert_allclose(
        [t for t, *_ in calls], [H * (k + s) for k in range(4) for s in times], rtol=0, atol=1e-15
    )
    for state, shape in (((q[0, 0], v[0, 0]), ()), ((q[0, :1], v[0, :1]), (1,))):  # without axes as it is given
        calls.clear()
        one = ts.rollout(model, *state, steps=4, step=H, method=method, forces=drag)
        assert {(a, b) for _, a, b in calls} == {((*shape, model.nq), (*shape, model.nv))}
        np.testing.assert_array_equal(one.q.reshape(4, model.nq), path.q[0, 0])


def test_functions_of_a_simulation_see_the_whole_configuration():
    """Also where laws that are data act freedom by freedom, of which quaternions have one more than coordinates."""
    tree = replace(zoo.random_tree(12, 3), damping=0.1, friction=0.2)
    seen = set()

    def drag(t, q, v):
        seen.add((len(q), len(v)))
        return -0.1 * v

    ts.simulate(tree, duration=0.01, forces=drag)
    assert seen == {(tree.nq, tree.nv)}


def test_many_states_are_one_call():
    """More than are moved at a time where all is data."""
    calls = []
    q = np.zeros((3000, 4))
    ts.rollout(ARM, q, q, steps=1, step=H, forces=lambda t, q, v: calls.append(len(q)) or -v)
    assert calls == [3000]
    calls.clear()
    assert ts.rollout(ARM, q[:0], q[:0], steps=2, step=H, forces=lambda t, q, v: calls.append(0) or -v).q.size == 0
    assert not calls


def test_functions_act_on_machines_that_differ():
    batch = ts.ModelBatch(ARM, mass=ARM.mass * RNG(1).uniform(0.5, 2, (3, ARM.n)))
    q, v = start(ARM, 3)
    for method in METHODS:
        found = ts.rollout(batch, q, v, steps=3, step=H, method=method, forces=lambda t, q, v: -0.5 * v + np.sin(t))
        for k in range(3):
            alone = ts.rollout(batch[k], q[k], v[k], steps=3, step=H, method=method,
                               forces=lambda t, q, v: -0.5 * v + np.sin(t))  # fmt: skip
            assert difference(found.v[k], alone.v) < SAME


@pytest.mark.parametrize("count", [None, 5])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda t, q, v: np.zeros(3), lambda t, q, v: np.zeros((2, 4)), lambda t, q, v: "fast", lambda t, q, v: None,
        lambda t, q, v: [[1.0], [2.0, 3.0]], lambda t, q, v: 1j * v, lambda t, q, v: np.full(v.shape, "1"),
        lambda t, q, v: np.full(v.shape, None), lambda t, q, v: np.ma.array(v, mask=True),
    ],
    ids=["short", "rows", "a word", "nothing", "ragged", "complex", "words", "objects", "masked"],
)  # fmt: skip
def test_functions_of_the_wrong_shape_are_named(wrong, count):
    q = np.zeros((count, 4) if count else 4)
    with pytest.raises(ts.ArgumentError, match=r"the force .*<lambda> must be a function of t, q and v that gives"):
        ts.rollout(ARM, q, q, steps=1, step=H, forces=wrong)
    with pytest.raises(ts.ArgumentError, match=r"forces\[0\] is called as f\(t, q, v\)"):
        ts.rollout(ARM, q, q, steps=1, step=H, forces=lambda t, q: q)


def test_a_function_cannot_write_into_the_states():
    def greedy(t, q, v):
        q[...] = 0.0
        return v

    with pytest.raises(ts.ArgumentError, match="read-only"):
        ts.rollout(ARM, *start(ARM, 2), steps=1, step=H, forces=greedy)


# Gains that change in time -----------------------------------------------------------------------------------------


def gains_in_time(model, *shape, seed=1):
    rng, width = RNG(seed), model.nq + model.nv
    K = 0.5 * rng.normal(size=(*shape, STEPS, model.nv, width))
    return K, rng.normal(size=(*shape, STEPS, width)), rng.normal(size=(*shape, STEPS, model.nv))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", [ARM, LONG, TREE], ids=["small", "large", "tree"])
def test_gains_in_time_are_those_of_every_step(model, method):
    """One rollout is many of one step, each with its gains, reference and torques."""
    K, x_ref, tau = gains_in_time(model, 3)
    q, v = start(model, 3)
    force = ts.Feedback(K, x_ref, tau, t=H * np.arange(STEPS))
    path = ts.rollout(model, q, v, steps=STEPS, step=H, method=method, forces=[force, ts.Friction(0.1)])
    for k in range(STEPS):
        now = ts.Feedback(K[:, k], x_ref[:, k], tau[:, k])
        one = ts.rollout(model, q, v, steps=1, step=H, method=method, forces=[now, ts.Friction(0.1)])
        q, v = one.q[:, 0], one.v[:, 0]
        assert difference(path.q[:, k], q) < SAME
        assert difference(path.v[:, k], v) < SAME


@pytest.mark.parametrize("early", [0.0, 0.4])
def test_gains_in_time_hold_until_the_next(early):
    """Fewer gains than steps: the k-th holds from the first step after t[k] on; the first and the last hold outside."""
    K, _, _ = gains_in_time(ARM)
    rare = ts.Feedback(K[:3], 0.2, t=H * (np.array([2.0, 4.0, 7.0]) - early))
    often = ts.Feedback(K[[0, 0, 0, 0, 1, 1, 1, 2, 2, 2]], 0.2, t=H * np.arange(STEPS))
    q, v = start(ARM, 2)
    one, other = (ts.rollout(ARM, q, v, steps=STEPS, step=H, method="rk4", forces=f) for f in (rare, often))
    np.testing.assert_array_equal(one.q, other.q)


@pytest.mark.parametrize("method", METHODS)
def test_a_forward_pass_of_ilqr(method):
    """Ten step lengths at once: tau + alpha k + K (x_ref - x); alpha = 0 is the trajectory itself."""
    model, alphas = zoo.general_arm(2), np.linspace(0, 1, 10)
    rng = RNG(3)
    tau, k = rng.normal(size=(2, STEPS, 2))
    t = H * np.arange(STEPS)
    q, v = rng.normal(size=(2, 2))
    base = ts.rollout(model, q, v, steps=STEPS, step=H, method=method, forces=ts.Table(t, tau, "previous"))
    before = np.concatenate([[np.concatenate([q, v])], np.hstack([base.q, base.v])[:-1]])
    K = rng.normal(size=(STEPS, 2, 4))
    law = ts.Feedback(K, before, tau + alphas[:, None, None] * k, t)
    path = ts.rollout(model, q, v, steps=STEPS, step=H, method=method, forces=law)
    assert path.q.shape == (10, STEPS, 2)
    if method == "semi-implicit":  # else gains act within the step, too
        assert difference(path.q[0], base.q) < SAME
    for i, alpha in enumerate(alphas):
        one = ts.rollout(
            model, q, v, steps=STEPS, step=H, method=method, forces=ts.Feedback(K, before, tau + alpha * k, t)
        )
        np.testing.assert_array_equal(path.q[i], one.q)
        np.testing.assert_array_equal(path.v[i], one.v)


@pytest.mark.parametrize(("given", "words"), [
    ({"K": np.ones((3, 4, 8)), "t": [0.0, 1.0]}, "table"),
    ({"K": np.ones((2, 4, 8)), "t": [1.0, 0.0]}, "increase"),
    ({"K": np.ones((2, 4, 7)), "t": [0.0, 1.0]}, "K of Feedback"),
    ({"K": np.ones((2, 4, 8)), "t": [0.0, 1.0], "x_ref": np.ones((3, 8))}, "batch axes of Feedback"),
    ({"K": np.ones((2, 4, 8)), "t": [0.0, 1.0], "tau": np.ones((3, 4))}, "batch axes of Feedback"),
    ({"K": np.ones(8), "t": [0.0]}, "table"),
])  # fmt: skip
def test_gains_in_time_that_do_not_fit_are_refused(given, words):
    with pytest.raises(ts.ArgumentError, match=words):
        ts.rollout(ARM, np.zeros(4), np.zeros(4), steps=2, step=H, forces=ts.Feedback(**given))


def test_two_tables_of_wrenches_act_both():
    rng, t = RNG(4), H * np.array([0.0, 3.0, 8.0])
    waves = rng.normal(size=(2, 3, ARM.n, 6))
    q, v = start(ARM, 2)
    both, sums = (ts.rollout(ARM, q, v, steps=STEPS, step=H, forces=f)
                  for f in ([ts.External(w, t) for w in waves], ts.External(waves.sum(axis=0), t)))  # fmt: skip
    assert difference(both.v, sums.v) < SAME
    first = ts.rollout(ARM, q, v, steps=1, step=H, forces=ts.External(waves[0, 0] + waves[1, 0]))
    assert difference(both.v[:, 0], first.v[:, 0]) < 1e-6  # read just inside the step


# Bodies that spin freely -------------------------------------------------------------------------------------------


def spinning(count=3, seed=0):
    """Balls that fly and spin, without forces."""
    ball = ts.Model.chain("free", mass=2.0, inertia=(0.3, 0.3, 0.3), gravity=(0, 0, 0))
    rng = RNG(seed)
    return ball, ball.random_configuration(rng, count), rng.normal(size=(count, 6)) * np.array([14.0] * 3 + [1.0] * 3)


@pytest.mark.parametrize("method", ["semi-implicit", "implicit-euler"])
@pytest.mark.parametrize("step", [1e-3, 5e-3])
def test_a_spinning_ball_keeps_its_speed_and_its_momentum(method, step):
    """Its centre moves along a line with constant speed, whatever the step: the velocity turns with the body."""
    ball, q, v = spinning()
    path = ts.rollout(ball, q, v, steps=1000, step=step, every=100, method=method)
    before, after = ts.momentum(ball, q, v)[:, None], ts.momentum(ball, path.q, path.v)
    assert np.abs(after[..., 3:] - before[..., 3:]).max() <= KEPT * np.abs(before[..., 3:]).max()
    assert np.abs(path.v[..., :3] - v[:, None, :3]).max() <= KEPT * np.abs(v).max()
    speed = np.linalg.norm(v[:, None, 3:], axis=-1)
    assert np.abs(np.linalg.norm(path.v[..., 3:], axis=-1) / speed - 1).max() <= KEPT
    line = q[:, None, :3] + path.t[:, None] * before[..., 3:] / ball.mass[0]
    assert np.abs(path.q[..., :3] - line).max() <= KEPT * np.abs(line).max()
    about_centre = after[..., :3] - np.cross(path.q[..., :3], after[..., 3:])
    start = before[..., :3] - np.cross(q[:, None, :3], before[..., 3:])
    assert np.abs(about_centre - start).max() <= KEPT * np.abs(start).max()


@pytest.mark.parametrize("method", ["semi-implicit", "implicit-euler"])
def test_a_floating_humanoid_keeps_its_momentum_to_the_order_of_the_step(method):
    model = replace(zoo.humanoid(), gravity=np.zeros(3))
    rng = RNG(5)
    q, v = model.neutral(), 0.5 * rng.normal(size=model.nv)

    p, errors = ts.momentum(model, q, v)[3:], []
    for step in (2e-3, 1e-3, 5e-4):
        path = ts.rollout(model, q, v, steps=round(0.1 / step), step=step, every=round(0.1 / step), method=method)
        errors.append(np.abs(ts.momentum(model, path.q[-1], path.v[-1])[3:] - p).max() / np.abs(p).max())
    assert errors[0] < 0.05
    assert 1.6 < errors[0] / errors[1] < 2.4  # first order
    assert 1.6 < errors[1] / errors[2] < 2.4
