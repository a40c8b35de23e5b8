"""Environments for Gymnasium: they are rollouts, one by one and side by side, and start anew as Gymnasium says."""

import copy
import pickle
import warnings
from dataclasses import replace

import gymnasium
import numpy as np
import processes
import pytest
from gymnasium.utils.env_checker import check_env

import torsor as ts
from torsor import ArgumentError, zoo
from torsor.gym import TASKS, CartPole, InvertedDoublePendulum, MachineEnv, Task, VectorEnv

# The members of a batch are computed in other frames than a model alone.
ROUNDING = 1e-9
NAMES = [f"torsor/{name}-v0" for name in TASKS]


def actions(envs, steps, seed=0, size=1.0):
    return size * np.random.default_rng(seed).uniform(-1, 1, (steps, *envs.action_space.shape))


@pytest.mark.parametrize("name", NAMES)
def test_gymnasium_accepts_every_environment(name):
    env = gymnasium.make(name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*A Box observation space (min|max)imum value is.*")
        check_env(env.unwrapped, skip_render_check=True)
    assert env.spec.max_episode_steps == env.unwrapped.task.episode


@pytest.mark.parametrize("name", NAMES)
def test_environments_side_by_side_are_environments_one_by_one(name):
    """To the bit, with the same starts and actions."""
    envs, single = gymnasium.make_vec(name, num_envs=5), gymnasium.make(name).unwrapped
    envs.reset(seed=3)
    single.reset(seed=0)
    start, goal = envs.crowd.x.copy(), envs.goal.copy()
    path = actions(envs, 8, size=0.1)
    together = [envs.step(a)[:3] for a in path]
    for k in (0, 4):
        single.crowd.x[:], single.goal = start[k], goal[k : k + 1]
        for a, (seen, rewards, ended) in zip(path, together):
            own = single.step(a[k])
            assert (own[1], own[2]) == (rewards[k], ended[k])
            if ended[k]:
                break
            assert np.array_equal(own[0], seen[k])


# of a published environment: which joints are driven, how strongly, seconds per action, the longest episode
PUBLISHED = {
    "CartPole": ((0,), (10,), 0.02, 500), "Acrobot": ((1,), (1,), 0.2, 500),
    "InvertedDoublePendulum": ((0,), (500,), 0.05, 1000),
    "ArmReaching": (tuple(range(7)), (20, 20, 20, 20, 3, 3, 3), 0.04, 100),
}  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_results_of_an_environment_stay_comparable(name):
    """They depend on these numbers, which change with a new version of the environment only."""
    task = TASKS[name]()
    *same, seconds, episode = PUBLISHED[name]
    assert (task.driven, task.gear, task.episode) == (*same, episode)
    assert task.step * task.substeps == pytest.approx(seconds)


def test_ends_and_points_as_the_bodies_lie():
    """The tips' heights by frames, the points as Gymnasium's environment of that name has them."""
    rng, rest = np.random.default_rng(0), np.zeros((200, 1))
    acrobot, double = TASKS["Acrobot"](), TASKS["InvertedDoublePendulum"]()
    q, v = rng.uniform(-3.2, 3.2, (200, 2)), np.zeros((200, 2))
    height = (ts.body_poses(acrobot.model, q)[:, 1] @ [0, 0, -1, 1])[:, 2]
    rewards, ended = acrobot.outcome(q, v, acrobot.observe(q, v, rest), rest)
    assert np.array_equal(ended, height > 1)
    assert np.array_equal(rewards, np.where(height > 1, 0.0, -1.0))
    assert ended.any()
    q, v = rng.uniform(-0.9, 0.9, (200, 3)), rng.normal(size=(200, 3))
    tip = ts.body_poses(double.model, q)[:, 2] @ [0, 0, 0.6, 1]
    rewards, ended = double.outcome(q, v, double.observe(q, v, rest), rest)
    lost = 0.01 * tip[:, 0] ** 2 + (tip[:, 2] - 2) ** 2 + 1e-3 * v[:, 1] ** 2 + 5e-3 * v[:, 2] ** 2
    assert np.array_equal(ended, tip[:, 2] <= 1)
    assert np.abs(rewards - (10.0 * ~ended - lost)).max() < ROUNDING
    assert 0 < ended.sum() < 200


@pytest.mark.parametrize("name", TASKS)
def test_a_step_is_a_rollout(name):
    envs = VectorEnv(name, 3)
    envs.reset(seed=1)
    q, v, task = envs.crowd.q.copy(), envs.crowd.v.copy(), envs.task
    (a,) = actions(envs, 1)
    tau = np.zeros((3, task.model.nv))
    tau[:, list(task.driven)] = a * task.gear
    path = dict(steps=task.substeps, every=task.substeps, step=task.step, method=task.method)
    end = ts.rollout(task.model, q, v, forces=ts.Constant(tau), **path)
    seen = envs.step(a)[0]
    assert np.array_equal(seen, task.observe(end.q[:, 0], end.v[:, 0], envs.goal))


def test_random_machines_are_models_of_their_own():
    """Every one moves as a model with its numbers, also after some have got others."""
    ranges = {"mass": (0.5, 2.0), "com": (0.9, 1.1), "damping": (0.1, 10.0), "gravity": (0.9, 1.1), "armature": (1, 2)}
    envs = VectorEnv("InvertedDoublePendulum", 20, randomize=ranges)
    envs.reset(seed=0)
    first = envs.crowd.machine.varied["mass"].copy()
    path = dict(steps=5, every=5, step=0.01, method="rk4")
    begun = 0
    for step, a in enumerate(actions(envs, 12, size=0.1)):
        q, v = envs.crowd.q.copy(), envs.crowd.v.copy()
        now = {name: x.copy() for name, x in envs.crowd.machine.varied.items()}
        seen, _, ended, _, info = envs.step(a)
        last = np.array([info["final_obs"][k] if ended[k] else seen[k] for k in range(20)])
        begun += ended.sum()
        force = ts.Constant(500 * a * [1, 0, 0])
        end = ts.rollout(ts.ModelBatch(envs.task.model, **now), q, v, forces=force, **path)
        assert np.array_equal(envs.task.observe(end.q[:, 0], end.v[:, 0], envs.goal), last)
        if step == 11:
            for k in (3, 17):
                one = replace(envs.task.model, **{name: x[k] for name, x in now.items()})
                end = ts.rollout(one, q[k], v[k], forces=ts.Constant(force.tau[k]), **path)
                assert np.abs(envs.task.observe(end.q, end.v, envs.goal)[0] - last[k]).max() < ROUNDING
    changed = (envs.crowd.machine.varied["mass"] != first).all(axis=1)
    assert begun > 5
    assert changed.any()
    assert np.array_equal(changed, envs.steps < 12)
    factors = envs.crowd.machine.varied["mass"] / envs.task.model.mass
    assert 0.5 <= factors.min() < 0.7 < 1.6 < factors.max() <= 2.0


def test_many_machines_in_several_threads():
    """More than one thread moves: to the bit what few machines do."""
    ranges = {"mass": (0.5, 2.0), "damping": (0.5, 2.0)}
    envs, few = VectorEnv("CartPole", 2500, randomize=ranges), VectorEnv("CartPole", 2, randomize=ranges)
    envs.reset(seed=0)
    few.reset(seed=0)
    envs.step(np.ones((2500, 1)))  # some get new numbers later on
    for _ in range(12):
        chosen = [0, 2400]
        few.crowd.machine.replaced(slice(None), **{n: x[chosen] for n, x in envs.crowd.machine.varied.items()})
        few.crowd._renew(np.arange(2))
        few.crowd.x[:] = envs.crowd.x[chosen]
        few.steps[:] = 0
        seen, _, ended, _, info = envs.step(np.ones((2500, 1)))
        own = few.step(np.ones((2, 1)))
        for k, which in enumerate(chosen):
            wanted = info["final_obs"][which] if ended[which] else seen[which]
            found = own[4]["final_obs"][k] if own[2][k] else own[0][k]
            assert np.array_equal(found, wanted)
    assert (envs.steps < 13).any()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
@pytest.mark.parametrize("task", ["InvertedDoublePendulum", "ArmReaching"])
def test_a_copy_goes_its_own_way(copied, task):
    """To the bit what the environments do, and without a change of theirs."""
    envs = VectorEnv(task, 20, randomize={"mass": (0.8, 1.2), "damping": (0.5, 2.0)})
    envs.reset(seed=0)
    path = actions(envs, 12)
    envs.step(path[0])
    other, before = copied(envs), envs.crowd.x.copy()
    ahead = [other.step(a)[0] for a in path]
    assert np.array_equal(envs.crowd.x, before)
    assert all(np.array_equal(x, envs.step(a)[0]) for x, a in zip(ahead, path))
    single = MachineEnv(task)
    single.reset(seed=0)
    twin = copied(single)
    assert np.array_equal(single.step(path[0][0])[0], twin.step(path[0][0])[0])


def test_environments_start_anew_in_the_same_step():
    envs = gymnasium.make_vec("torsor/CartPole-v0", num_envs=4)
    assert envs.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.SAME_STEP
    seen, info = envs.reset(seed=0)
    assert info == {}
    assert seen.shape == (4, 4)
    envs.unwrapped.crowd.q[2, 1] = 0.3  # leans too far
    seen, rewards, ended, truncated, info = envs.step(np.zeros((4, 1), np.float32))
    assert ended.tolist() == [False, False, True, False]
    assert not truncated.any()
    assert rewards.tolist() == [1.0] * 4
    assert info["_final_obs"].tolist() == ended.tolist()
    assert info["final_obs"][2][1] > 0.29
    assert info["final_obs"][0] is None
    assert np.abs(seen[2]).max() <= 0.05  # a new episode
    assert envs.unwrapped.steps.tolist() == [1, 1, 0, 1]
    assert envs.step(np.zeros((4, 1)))[4] == {}


def test_episodes_are_cut_off_after_their_length():
    envs = gymnasium.make_vec("torsor/Acrobot-v0", num_envs=2, max_episode_steps=3)
    envs.reset(seed=0)
    cut = [envs.step(np.zeros((2, 1)))[3].tolist() for _ in range(6)]
    assert cut == [[False] * 2, [False] * 2, [True] * 2] * 2
    single = gymnasium.make("torsor/Acrobot-v0", max_episode_steps=3)
    single.reset(seed=0)
    assert [single.step(np.zeros(1, np.float32))[3] for _ in range(3)] == [False, False, True]


def test_the_same_seed_gives_the_same_episodes():
    runs = []
    for seed in (7, 7, 8):
        envs = VectorEnv("InvertedDoublePendulum", 6, randomize={"mass": (0.8, 1.2)})
        envs.reset(seed=seed)
        runs.append(np.array([envs.step(a)[0] for a in actions(envs, 15, size=0.1)]))
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_some_environments_are_reset_by_a_mask():
    envs = VectorEnv("CartPole", 3)
    with pytest.raises(ArgumentError, match="after a first reset"):
        envs.reset(options={"reset_mask": np.array([True, False, False])})
    envs.reset(seed=0)
    envs.step(np.ones((3, 1)))
    before = envs.crowd.x.copy()
    envs.reset(options={"reset_mask": np.array([False, True, False])})
    assert np.array_equal(envs.crowd.x != before, [[False] * 4, [True] * 4, [False] * 4])
    assert envs.steps.tolist() == [1, 0, 1]


def test_a_machine_that_diverges_ends():
    for make in (lambda: VectorEnv(CartPole(), 2), lambda: MachineEnv(CartPole())):
        env = make()
        env.reset(seed=0)
        env.crowd.v[0] = 1e200
        seen, rewards, ended, *_ = env.step(np.zeros(env.action_space.shape))
        assert np.ravel(ended)[0]
        assert np.ravel(rewards)[0] == 0.0
        if env.action_space.shape != (1,):
            assert np.isfinite(seen).all()


def test_actions_keep_to_their_bounds():
    a, b = VectorEnv("CartPole", 2), VectorEnv("CartPole", 2)
    a.reset(seed=0)
    b.reset(seed=0)
    assert np.array_equal(a.step(np.full((2, 1), 50.0))[0], b.step(np.ones((2, 1)))[0])


def test_another_machine_in_a_task():
    """The task of a stranger is a class of their own, or a task with another model."""
    heavy = InvertedDoublePendulum(model=zoo.general_arm(3, 1), substeps=2)
    assert VectorEnv(heavy, 2).reset(seed=0)[0].shape == (2, 8)
    with pytest.raises(NotImplementedError):
        VectorEnv(Task(model=zoo.panda(), driven=(0,), gear=(1.0,), step=0.01, substeps=1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VectorEnv("CartPol"), "CartPole"),
        (lambda: VectorEnv("CartPole", 0), "num_envs"),
        (lambda: VectorEnv("CartPole", max_episode_steps=0), "max_episode_steps"),
        (lambda: VectorEnv("CartPole", randomize={"p": (0.5, 2)}), "'p' does not differ between environments"),
        (lambda: VectorEnv("CartPole", randomize={"mass": (2, 1)}), "must be \\(lowest, highest\\) factors"),
        (lambda: VectorEnv("CartPole", randomize={"mass": 2.0}), "mass"),
        (lambda: VectorEnv("CartPole", randomize=["mass"]), "randomize must be"),
        (lambda: VectorEnv("CartPole").step(np.zeros((1, 1))), "call reset"),
        (lambda: MachineEnv("CartPole").step(np.zeros(1)), "call reset"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_bad_actions():
    envs = VectorEnv("CartPole", 2)
    envs.reset(seed=0)
    for bad, message in ((np.zeros(2), "shape"), (np.full((2, 1), np.nan), "NaN")):
        before = envs.crowd.x.copy()
        with pytest.raises(ArgumentError, match=message):
            envs.step(bad)
        assert np.array_equal(envs.crowd.x, before)


def test_importing_torsor_imports_no_gymnasium():
    code = "import sys, torsor as ts; ts.rollout; assert 'gymnasium' not in sys.modules"
    processes.output(code)


def test_without_gymnasium_the_error_says_what_to_install():
    code = "import sys; sys.modules['gymnasium'] = None; import torsor.gym"
    done = processes.run("-c", code)
    assert "pip install 'torsor[gym]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("make", [VectorEnv, MachineEnv])
def test_environments_that_should_draw_are_refused(make):
    with pytest.raises(ArgumentError, match="render_mode must be None"):
        make("Acrobot", render_mode="human")
