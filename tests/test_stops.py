"""Stop conditions of rollouts: when and why trajectories stop, what is frozen, what begins again, and the CUDA text."""

import cuda_host
import fake_cupy
import numpy as np
import pytest

import torsor as ts
from torsor import zoo
from torsor.backends import gpu
from torsor.motion import rollout as rollouts

ARM = zoo.random_chain(3, 1)
TREE = zoo.random_tree(5, 3).with_frames({"hand": (None, np.eye(3), np.zeros(3))})
H, STEPS, EVERY = 1e-2, 40, 4
OPTIONS = {"steps": STEPS, "step": H}


def slow_pairs(*pairs):
    return [pytest.param(*pair, marks=pytest.mark.slow) for pair in pairs]


def ball(count=5):
    """A mass that falls from several heights."""
    fall = ts.Model.chain("prismatic", mass=1.0, inertia=(1, 1, 1), axis=(0, 0, 1), gravity=(0, 0, -9.81))
    return fall, np.linspace(0.1, 2.0, count)[:, None], np.zeros((count, 1))


def test_a_mass_stops_at_the_floor():
    """Semi-implicit steps: z_k = z_0 - g h^2 k (k + 1) / 2, so the step that passes the floor is known."""
    model, z, v = ball()
    found = ts.rollout(model, z, v, stop=ts.Stop(q=0, below=0.0), **OPTIONS)
    k = np.arange(1, STEPS + 1)
    path = z - 9.81 * H**2 * k * (k + 1) / 2
    lands = np.where((path < 0).any(axis=1), (path < 0).argmax(axis=1) + 1, -1)
    np.testing.assert_allclose(found.stop_time, np.where(lands < 0, np.nan, lands * H))
    assert (found.stop_reason[:, -1] == (lands > 0)).all()
    for i, end in enumerate(lands):
        moving = slice(None) if end < 0 else slice(0, end)
        np.testing.assert_allclose(found.q[i, moving, 0], path[i, moving], rtol=0, atol=1e-12)
        if end > 0:
            assert (found.q[i, end:] == found.q[i, end - 1]).all()
            assert (found.v[i, end:] == found.v[i, end - 1]).all()
            assert (found.stop_reason[i] == (k >= end)).all()
    free = ts.rollout(model, z, v, **OPTIONS)
    np.testing.assert_array_equal(found.q[lands < 0], free.q[lands < 0])


@pytest.mark.parametrize("model", [ARM, zoo.random_chain(14, 2)], ids=["unrolled", "loops"])
def test_each_trajectory_stops_by_itself(model):
    """The first state of the free rollout that is outside is where each stays, whatever its neighbours do."""
    rng = np.random.default_rng(0)
    q, v = rng.normal(size=(2, 6, model.nv))
    height = ts.body_poses(model, q)[:, -1, 2, 3].mean()
    stops = [ts.Stop(v=1, below=-6.0, above=6.0), ts.Stop(frame=model.n - 1, below=height), ts.Stop(q=0, above=1.5)]
    free = ts.rollout(model, q, v, **OPTIONS)
    found = ts.rollout(model, q, v, stop=stops, every=EVERY, **OPTIONS)
    whole_q, whole_v = (np.concatenate([x[:, None], y], axis=1) for x, y in ((q, free.q), (v, free.v)))
    z = ts.body_poses(model, whole_q)[..., -1, 2, 3]
    gone = np.stack([np.abs(whole_v[..., 1]) > 6, z < height, whole_q[..., 0] > 1.5], axis=-1)
    assert gone.any(axis=(1, 2)).sum() > 1
    for i in range(6):
        if not gone[i].any():
            assert np.isnan(found.stop_time[i])
            np.testing.assert_array_equal(found.q[i], free.q[i, EVERY - 1 :: EVERY])
            continue
        end = gone[i].any(axis=1).argmax()
        assert found.stop_time[i] == pytest.approx(end * H)
        assert found.stop_reason[i, -1] == 1 + gone[i, end].argmax()
        np.testing.assert_allclose(found.q[i, -1], whole_q[i, end], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.v[i, -1], whole_v[i, end], rtol=0, atol=1e-12)


def test_trajectories_begin_again():
    """A mass falls from its height again and again, with one period."""
    model, z, v = ball(2)
    z[:, 0] = 0.3, 0.4
    found = ts.rollout(model, z, v, stop=ts.Stop(q=0, below=0.0), reset=(z, v), steps=100, step=H)
    for i in range(2):
        period = round(found.stop_time[i] / H)
        times = np.flatnonzero(found.stop_reason[i]) + 1
        np.testing.assert_array_equal(times, period * np.arange(1, 100 // period + 1))
        assert (found.q[i, times - 1] == z[i]).all()
        np.testing.assert_array_equal(found.q[i, period : 2 * period], found.q[i, :period])
    thin = ts.rollout(model, z, v, stop=ts.Stop(q=0, below=0.0), reset=([0.3], v), steps=100, step=H, every=100)
    assert (thin.stop_reason == 1).all()


@pytest.mark.parametrize("every", [1, 3, 7])
@pytest.mark.parametrize("again", [False, True], ids=["stay", "again"])
@pytest.mark.parametrize("model", [ARM, TREE], ids=["unrolled", "quaternions"])
def test_states_and_reasons_are_those_found_step_by_step(model, again, every):
    """Looking at many steps at once changes nothing: the oracle takes single steps, and looks after each, in Python."""
    rng, steps, count = np.random.default_rng(3), 100, 9
    q, v = model.random_configuration(rng, count), 3 * rng.normal(size=(count, model.nv))
    reset = model.random_configuration(rng, count), rng.normal(size=(count, model.nv))
    stops = [ts.Stop(v=0, below=-4.0, above=4.0), ts.Stop(v=model.nv - 1, above=3.5)]
    times = np.linspace(0, 1, 11)
    push = ts.Table(times, rng.normal(size=(11, model.nv)))
    options = {"stop": stops, **({"reset": reset} if again else {})}
    found = ts.rollout(model, q, v, forces=push, every=every, **options, steps=steps, step=H)
    x, y, first, reason = q.copy(), v.copy(), np.full(count, -1), np.zeros(count, int)
    for t in range(steps // every * every + 1):
        if t:
            moves = (first < 0) | again
            now = ts.Table(times - (t - 1) * H, push.tau)
            one = ts.rollout(model, x, y, forces=now, steps=1, step=H)
            x[moves], y[moves] = one.q[moves, 0], one.v[moves, 0]
        gone = np.stack([np.abs(y[:, 0]) > 4, y[:, -1] > 3.5], axis=-1)
        rows = gone.any(axis=1) & ((first < 0) | again)
        reason[rows] = 1 + gone[rows].argmax(axis=1)
        first[rows & (first < 0)] = t
        if again:
            x[rows], y[rows] = reset[0][rows], reset[1][rows]
        if t and t % every == 0:
            k = t // every - 1
            np.testing.assert_allclose(found.q[:, k], x, rtol=0, atol=1e-10)  # tables are read at t + dt, rounded
            np.testing.assert_allclose(found.v[:, k], y, rtol=0, atol=1e-10)
            np.testing.assert_array_equal(found.stop_reason[:, k], reason)
            reason *= not again
    assert (first > 0).sum() > 2
    np.testing.assert_allclose(found.stop_time, np.where(first < 0, np.nan, first * H))


def test_a_start_outside_is_a_stop_at_once():
    model, z, v = ball()
    found = ts.rollout(model, -z, v, stop=ts.Stop(q=0, below=0.0), **OPTIONS)
    assert (found.stop_time == 0).all()
    assert (found.q == -z[:, None]).all()


def test_frames_of_members_and_of_trees():
    """Heights of a frame off its body, of machines that differ in their lengths and of one with quaternions."""
    arm = ARM.with_frames({"tool": (ARM.names[-1], np.eye(3), (0.1, 0.2, 0.3))})
    factor = np.array([0.8, 1.0, 1.3])[:, None, None]
    batch = ts.ModelBatch(arm, p=arm.p * factor)
    q, v = np.random.default_rng(1).normal(size=(2, 3))
    for axis, row in (("x", 0), ("z", 2)):
        bound = ts.frame_poses(batch[1], q, "tool")[row, 3] - 0.05
        found = ts.rollout(batch, q, v, stop=ts.Stop(frame="tool", axis=axis, below=bound), **OPTIONS)
        for k in range(3):
            alone = ts.rollout(batch[k], q, v, **OPTIONS)
            x = ts.frame_poses(batch[k], np.concatenate([q[None], alone.q]), "tool")[:, row, 3]
            expected = (x < bound).argmax() * H if (x < bound).any() else np.nan
            np.testing.assert_allclose(found.stop_time[k], expected)
    rng = np.random.default_rng(2)
    q, v = TREE.random_configuration(rng, 4), rng.normal(size=(4, TREE.nv))
    last = TREE.n - 1
    bound = np.median(ts.body_poses(TREE, q)[:, last, 2, 3])
    found = ts.rollout(TREE, q, v, stop=ts.Stop(frame=last, above=bound), steps=1, step=1e-9)
    np.testing.assert_array_equal(found.stop_reason[:, 0], ts.body_poses(TREE, q)[:, last, 2, 3] > bound)


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_batch_axes_and_number_types(shape, dtype):
    q, v = np.zeros((*shape, 3), dtype), np.ones(3, dtype)
    found = ts.rollout(ARM, q, v, stop=ts.Stop(q=0, above=0.1), every=EVERY, **OPTIONS)
    assert found.q.shape == (*shape, STEPS // EVERY, 3)
    assert found.q.dtype == dtype
    assert found.stop_time.shape == shape
    assert found.stop_reason.shape == (*shape, STEPS // EVERY)


@pytest.mark.skipif(not cuda_host.compiler(), reason="needs a C++ compiler")
@pytest.mark.parametrize(("n", "again"), [(3, True), *slow_pairs((3, False), (13, False), (13, True))])
def test_devices_stop_where_the_cpu_does(monkeypatch, n, again):
    module = fake_cupy.Cupy()
    fake_cupy.install(monkeypatch, module)
    monkeypatch.setattr(rollouts, "gpu_array", gpu.on_device)
    model = zoo.random_chain(n, 9)
    rng = np.random.default_rng(3)
    count = 66 if n < 5 else 5
    q, v = rng.normal(size=(2, count, n))
    batch = ts.ModelBatch(model, p=model.p * rng.uniform(0.8, 1.2, (count, 1, 1)))
    height = float(np.quantile(ts.body_poses(batch, q)[:, -1, 2, 3], 0.3))
    stops = [ts.Stop(v=0, below=-4.0, above=4.0), ts.Stop(frame=n - 1, below=height)]
    options = {"stop": stops, "steps": 12, "step": H, "every": 3}
    again = {"reset": (q[0], v)} if again else {}
    expected = ts.rollout(batch, q, v, **options, **again)
    assert 0 < (expected.stop_reason[:, -1] > 0).sum() < count
    there = {"reset": tuple(fake_cupy.on_device(x) for x in again["reset"])} if again else {}
    got = ts.rollout(batch, fake_cupy.on_device(q), fake_cupy.on_device(v), **options, **there)
    for name in ("q", "v", "stop_time", "stop_reason"):
        np.testing.assert_allclose(np.asarray(getattr(got, name)), getattr(expected, name), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stop": ts.Stop()}, "needs one of q, v and frame"),
        ({"stop": ts.Stop(q=0, v=1, below=0.0)}, "not q and v"),
        ({"stop": ts.Stop(q=3, below=0.0)}, "has 3 of them"),
        ({"stop": ts.Stop(q=-1, below=0.0)}, "q of a Stop"),
        ({"stop": ts.Stop(frame="hat", below=0.0)}, "hat"),
        ({"stop": ts.Stop(frame=0, axis="w", below=0.0)}, "axis"),
        ({"stop": ts.Stop(q=0)}, "below or above"),
        ({"stop": ts.Stop(q=0, below=1.0, above=0.0)}, "below <= above"),
        ({"stop": ts.Stop(q=0, below=np.nan)}, "below"),
        ({"stop": 3}, "stop must be"),
        ({"stop": []}, "stop must be"),
        ({"reset": (np.zeros(3), np.zeros(3))}, "give stop"),
        ({"stop": ts.Stop(q=0, below=0.0), "reset": 3}, "pair"),
        ({"stop": ts.Stop(q=0, below=0.0), "reset": (np.zeros(2), np.zeros(3))}, "reset_q"),
        ({"stop": ts.Stop(q=0, below=0.0), "reset": (np.zeros(3), None)}, "pair"),
        ({"stop": [ts.Stop(q=0, below=0.0)] * 101}, "there are 101 stops"),
    ],
    ids=range(16),
)
def test_stops_that_mean_nothing_are_refused_by_name(options, words):
    with pytest.raises(ts.ArgumentError, match=words):
        ts.rollout(ARM, np.zeros(3), np.zeros(3), **OPTIONS, **options)
    with pytest.raises(ts.ArgumentError, match="on the base"):
        ts.rollout(TREE, TREE.neutral(), np.zeros(TREE.nv), stop=ts.Stop(frame="hand", below=0.0), **OPTIONS)


def test_bounds_may_be_arrays_of_one_number():
    model, z, v = ball()
    plain, given = (ts.rollout(model, z, v, stop=ts.Stop(q=0, below=x), **OPTIONS) for x in (0.5, np.array(0.5)))
    np.testing.assert_array_equal(plain.stop_time, given.stop_time)
