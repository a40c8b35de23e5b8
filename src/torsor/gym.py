"""Environments for Gymnasium: N machines moved at once, with random models, or one environment at a time.

    import gymnasium, torsor.gym

    env = gymnasium.make("torsor/CartPole-v0")
    envs = gymnasium.make_vec("torsor/CartPole-v0", num_envs=4096, randomize={"mass": (0.8, 1.2)})

An environment is a `Task`: a machine, its actions, observations, rewards and the end of episodes. A step of all
environments is one run of machine code; environments whose episode ends are reset in the same step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from torsor import validate
from torsor.backends.cpu import Program, pool
from torsor.dynamics.functions import body_poses
from torsor.dynamics.members import members
from torsor.dynamics.programs import compile
from torsor.errors import ArgumentError
from torsor.model.batch import VARIABLE, ModelBatch
from torsor.model.check import SHAPES
from torsor.model.model import Model
from torsor.motion.driver import CHUNK, Fixed, States
from torsor.motion.law import collect
from torsor.motion.steps import METHODS
from torsor.motion.time_loop import StepRun
from torsor.zoo import panda

try:
    import gymnasium
    from gymnasium.spaces import Box
    from gymnasium.vector import AutoresetMode
    from gymnasium.vector.utils import batch_space
except ImportError as reason:
    raise ArgumentError("torsor.gym needs Gymnasium: pip install 'torsor[gym]'") from reason

Array = NDArray[Any]
Ranges = Mapping[str, tuple[float, float]]  # by field: the lowest and the highest factor

MEASURED = ("R", "p", "axis", "pitch")  # tasks measure with these: they are those of the task's model


# ---- tasks ----


@dataclass(frozen=True, kw_only=True)
class Task:
    """Define an environment. A subclass defines how episodes begin and end, the observations and the rewards.

    Parameters
    ----------
    model : Model
        The machine; its joints' own springs, friction and limits act.
    driven : tuple of int
        The freedoms that actions drive, each from -1 to 1.
    gear : tuple of float
        The torque or force of each at action 1, in N m or N.
    step : float
        The step of the method, in s.
    substeps : int
        Steps per action.
    method : str, default "rk4"
        A method with fixed steps: "rk4", "semi-implicit" or "implicit-euler".
    episode : int, default 500
        The largest number of actions.

    Examples
    --------
    >>> from torsor.gym import CartPole, VectorEnv
    >>> seen, info = VectorEnv(CartPole(episode=100), 16).reset(seed=0)
    >>> seen.shape
    (16, 4)
    """

    model: Model
    driven: tuple[int, ...]
    gear: tuple[float, ...]
    step: float
    substeps: int
    method: str = "rk4"
    episode: int = 500

    def begin(self, rng: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
        """Draw the first states of episodes.

        Parameters
        ----------
        rng : numpy.random.Generator
            The random generator.
        count : int
            The number of environments.

        Returns
        -------
        q : (count, nq) ndarray
            The first configurations.
        v : (count, nv) ndarray
            The first velocities.
        goal : (count, k) ndarray
            Further data of an episode; (count, 0) if there is none.
        """
        raise NotImplementedError

    def observe(self, q: Array, v: Array, goal: Array) -> Array:
        """Compute the observations.

        Parameters
        ----------
        q : (count, nq) ndarray
            Configurations.
        v : (count, nv) ndarray
            Velocities.
        goal : (count, k) ndarray
            As `begin` returned it.

        Returns
        -------
        seen : (count, m) ndarray
            The observations.
        """
        raise NotImplementedError

    def outcome(self, q: Array, v: Array, seen: Array, action: Array) -> tuple[Array, Array]:
        """Compute rewards, and which episodes have ended.

        Parameters
        ----------
        q : (count, nq) ndarray
            Configurations after the action.
        v : (count, nv) ndarray
            Velocities.
        seen : (count, m) ndarray
            The result of `observe`.
        action : (count, driven) ndarray
            From -1 to 1.

        Returns
        -------
        rewards : (count,) ndarray
            The rewards of the action.
        ended : (count,) ndarray
            Whether each episode has ended.
        """
        raise NotImplementedError

    def _around(self, rng: np.random.Generator, count: int, spread: float) -> tuple[Array, Array, Array]:
        """First states near zero: uniform numbers up to `spread`."""
        x = rng.uniform(-spread, spread, (count, self.model.nq + self.model.nv))
        return x[:, : self.model.nq], x[:, self.model.nq :], np.empty((count, 0))


def _cart_pole() -> Model:
    return Model.chain(
        ["prismatic", "revolute"], axis=[[1, 0, 0], [0, 1, 0]], mass=[1.0, 0.1], com=np.outer([0, 1], [0, 0, 0.5]),
        inertia=[[0.01] * 3, [0.1 / 12, 0.1 / 12, 1e-4]], names=["cart", "pole"],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CartPole(Task):
    """Balance a pole on a cart by a force of up to 10 N.

    One point per action, until the pole leans by 12 degrees or the cart is 2.4 m away. The parameters are those of
    `Task`, all with defaults.

    Notes
    -----
    Barto, Sutton & Anderson 1983.

    Examples
    --------
    >>> import gymnasium, torsor.gym
    >>> gymnasium.make("torsor/CartPole-v0").action_space.shape
    (1,)
    """

    model: Model = field(default_factory=_cart_pole)
    driven: tuple[int, ...] = (0,)
    gear: tuple[float, ...] = (10.0,)
    step: float = 0.01
    substeps: int = 2
    bounds: ClassVar[Array] = np.array([2.4, np.radians(12.0)])

    def begin(self, rng: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
        return self._around(rng, count, 0.05)

    def observe(self, q: Array, v: Array, goal: Array) -> Array:
        return np.concatenate([q, v], axis=1)

    def outcome(self, q: Array, v: Array, seen: Array, action: Array) -> tuple[Array, Array]:
        return np.ones(len(q)), np.any(np.abs(q) > self.bounds, axis=1)


def _acrobot() -> Model:
    return Model.chain(
        axis=[0, 1, 0], p=[[0, 0, 0], [0, 0, -1]], mass=1.0, com=[0, 0, -0.5], inertia=[1.0, 1.0, 1.0], n=2,
        names=["arm", "legs"],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Acrobot(Task):
    """Swing two hanging links up by a torque of up to 1 N m between them.

    Minus one point per action, until the tip is a link's length above the base. The parameters are those of `Task`, all
    with defaults.

    Notes
    -----
    Sutton 1996.

    Examples
    --------
    >>> import gymnasium, torsor.gym
    >>> gymnasium.make("torsor/Acrobot-v0").action_space.shape
    (1,)
    """

    model: Model = field(default_factory=_acrobot)
    driven: tuple[int, ...] = (1,)
    gear: tuple[float, ...] = (1.0,)
    step: float = 0.05
    substeps: int = 4

    def begin(self, rng: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
        return self._around(rng, count, 0.1)

    def observe(self, q: Array, v: Array, goal: Array) -> Array:
        return np.concatenate([np.cos(q), np.sin(q), v], axis=1)

    def outcome(self, q: Array, v: Array, seen: Array, action: Array) -> tuple[Array, Array]:
        (c, c2), (s, s2) = seen[:, :2].T, seen[:, 2:4].T
        ended = -c - (c * c2 - s * s2) > 1.0
        return ended - 1.0, ended


def _double_pendulum() -> Model:
    cart, pole = np.diag([0.1] * 3), np.diag([0.155, 0.155, 0.0042])
    return Model.chain(
        ["prismatic", "revolute", "revolute"], axis=[[1, 0, 0], [0, 1, 0], [0, 1, 0]],
        p=np.outer([0, 0, 1], [0, 0, 0.6]), mass=[10.5, 4.2, 4.2], com=np.outer([0, 1, 1], [0, 0, 0.3]),
        inertia=[cart, pole, pole], names=["cart", "lower", "upper"], damping=0.05, lower=[-1, -np.inf, -np.inf],
        upper=[1, np.inf, np.inf],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InvertedDoublePendulum(Task):
    """Balance two poles on a cart by a force of up to 500 N.

    Ten points per action, less for a tip that is low, away from the middle or fast, until it is lower than 1 m, as in
    Gymnasium's environment of this name.

    Parameters
    ----------
    length : float, default 0.6
        Of each pole, in m. The others are those of `Task`, all with defaults.

    Examples
    --------
    >>> import gymnasium, torsor.gym
    >>> gymnasium.make("torsor/InvertedDoublePendulum-v0").action_space.shape
    (1,)
    """

    model: Model = field(default_factory=_double_pendulum)
    driven: tuple[int, ...] = (0,)
    gear: tuple[float, ...] = (500.0,)
    step: float = 0.01
    substeps: int = 5
    episode: int = 1000
    length: float = 0.6  # of each pole

    def begin(self, rng: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
        return rng.uniform(-0.1, 0.1, (count, 3)), 0.1 * rng.standard_normal((count, 3)), np.empty((count, 0))

    def observe(self, q: Array, v: Array, goal: Array) -> Array:
        angles = q[:, 1:]
        return np.concatenate([q[:, :1], np.sin(angles), np.cos(angles), v.clip(-10.0, 10.0)], axis=1)

    def outcome(self, q: Array, v: Array, seen: Array, action: Array) -> tuple[Array, Array]:
        x, s, s2, c, c2 = seen[:, :5].T
        x, y = x + self.length * (s + s * c2 + c * s2), self.length * (c + c * c2 - s * s2)
        ended = y <= 1.0
        lost = 0.01 * x * x + (y - 2.0) ** 2 + 1e-3 * v[:, 1] ** 2 + 5e-3 * v[:, 2] ** 2
        return 10.0 * ~ended - lost, ended


@dataclass(frozen=True, kw_only=True)
class ArmReaching(Task):
    """Bring the hand of an arm to a goal, without gravity: minus the distance and a hundredth of the squared actions.

    Parameters
    ----------
    hand : (float, float, float), default (0, 0, 0.107)
        The position of the hand in the frame of the last body, in m. The others are those of `Task`, all with defaults.

    Examples
    --------
    >>> import gymnasium, torsor.gym
    >>> gymnasium.make("torsor/ArmReaching-v0").action_space.shape
    (7,)
    """

    model: Model = field(default_factory=lambda: panda().weightless)
    driven: tuple[int, ...] = tuple(range(7))
    gear: tuple[float, ...] = (20.0, 20.0, 20.0, 20.0, 3.0, 3.0, 3.0)
    step: float = 0.01
    substeps: int = 4
    method: str = "implicit-euler"
    episode: int = 100
    hand: tuple[float, float, float] = (0.0, 0.0, 0.107)
    poses: Program = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "poses", compile(self.model, body_poses))

    def _hands(self, q: Array) -> Array:
        pose = self.poses(q)[:, -1]
        return pose[:, :3, :3] @ np.array(self.hand) + pose[:, :3, 3]

    def _drawn(self, rng: np.random.Generator, count: int) -> Array:
        """Configurations within the limits of the joints, or within half a turn."""
        lower, upper = np.maximum(self.model.lower, -np.pi), np.minimum(self.model.upper, np.pi)
        return rng.uniform(lower, upper, (count, self.model.nq))

    def begin(self, rng: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
        return self._drawn(rng, count), np.zeros((count, self.model.nv)), self._hands(self._drawn(rng, count))

    def observe(self, q: Array, v: Array, goal: Array) -> Array:
        return np.concatenate([q, v, goal, goal - self._hands(q)], axis=1)

    def outcome(self, q: Array, v: Array, seen: Array, action: Array) -> tuple[Array, Array]:
        distance = np.linalg.norm(seen[:, -3:], axis=1)
        return -distance - 0.01 * (action * action).sum(axis=1), np.zeros(len(q), bool)


TASKS: dict[str, Any] = {
    "CartPole": CartPole, "Acrobot": Acrobot, "InvertedDoublePendulum": InvertedDoublePendulum,
    "ArmReaching": ArmReaching,
}  # fmt: skip


def _task(task: Any, render_mode: Any) -> Task:
    """A task, or the task of this name; rendering is refused."""
    if render_mode is not None:
        raise ArgumentError(
            f"render_mode must be None, not {validate.shown(render_mode)}: environments draw nothing; "
            "model.view(q) shows configurations"
        )
    if isinstance(task, Task):
        return task
    validate.chosen("task", task, tuple(TASKS))
    return TASKS[task]()


# ---- machines that are moved repeatedly ----


class Crowd:
    """Many machines of one task: their states, moved in place, and their numbers, redrawn when they are reset.

    randomize  {field: (lowest, highest factor)} for the numbers of the task's model: one factor per body or freedom
    """

    def __init__(self, task: Task, count: int, randomize: Ranges | None) -> None:
        model = task.model
        self.task, self.count, self.ranges = task, count, _ranges(randomize)
        self.machine: Model | ModelBatch = model
        self._hold(np.zeros((count, model.nq + model.nv)))

    def _hold(self, x: Array) -> None:
        """Move these states, (count, nq + nv); the steps are prepared when they are first taken."""
        task, model = self.task, self.task.model
        self.x, self.q, self.v = x, x[:, : model.nq], x[:, model.nq :]
        self.tau = np.zeros((1, self.count, model.nv))
        self._runs: list[tuple[slice, StepRun]] = []
        self._gear, self._driven = np.array(task.gear), list(task.driven)

    def __getstate__(self) -> dict[str, Any]:
        """Prepared steps contain addresses of these states, so a copy prepares its own."""
        return {name: getattr(self, name) for name in ("task", "count", "ranges", "machine", "x")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._hold(self.x)

    def draw(self, rng: np.random.Generator, where: Array) -> None:
        """Give some machines other numbers."""
        if self.ranges:
            numbers = self._numbers(rng, len(where))
            if isinstance(self.machine, ModelBatch):
                self.machine.replaced(where, **numbers)
                self._renew(where)
            else:  # the first time, for all machines
                self.machine = ModelBatch(self.task.model, **numbers)
        if not self._runs:
            self._bind()

    def _numbers(self, rng: np.random.Generator, count: int) -> dict[str, Any]:
        model, found = self.task.model, {}
        for name, (low, high) in self.ranges.items():
            own = getattr(model, name)
            axes = own.shape[:1] if name != "gravity" else ()
            factor = rng.uniform(low, high, (count, *axes))
            found[name] = own * factor.reshape(count, *axes, *[1] * (own.ndim - len(axes)))
        return found

    def _bind(self) -> None:
        """Prepare the steps of all machines."""
        task, model = self.task, self.task.model
        law = collect(self.machine)
        setup = Fixed(self.machine, law, METHODS[task.method], task.method, task.step)
        states = States(setup, {"q": np.tile(model.neutral(), (self.count, 1)), "v": self.v}, 1)
        self._frames = members(self.machine) if isinstance(self.machine, ModelBatch) else None
        rows = [slice(k, k + CHUNK) for k in range(0, self.count, CHUNK)]
        self._runs = [(some, states.run(states.part(some))) for some in rows]

    def _renew(self, where: Array) -> None:
        """Update the prepared steps with the new numbers of some machines."""
        assert isinstance(self.machine, ModelBatch)
        if not self._runs:
            return
        joints = self.ranges.keys() & set(VARIABLE)
        if members(self.machine) is not self._frames or (joints and self._runs[0][1].lowered.by_freedoms):
            self._bind()
        elif joints:
            values = collect(self.machine[where]).values
            for some, run in self._runs:
                own = (where >= some.start) & (where < some.stop)
                run.operands["gain"][where[own] - some.start] = values[own]

    def move(self, action: Array) -> None:
        """Take the steps of one action, (count, driven)."""
        if not self._runs:  # a copy
            self._bind()
        self.tau[0][:, self._driven] = action * self._gear
        ends = (self.task.substeps,)

        def run(chunk: tuple[slice, StepRun]) -> None:
            steps = chunk[1]
            steps.write({"tau": steps.memory.laid("tau", self.tau[:, chunk[0]])})
            steps(self.x[chunk[0]], lambda first, count: {}, ends)

        with np.errstate(all="ignore"):  # an episode that diverges ends
            if len(self._runs) == 1:
                run(self._runs[0])
            else:
                list(pool().map(run, self._runs))


def _ranges(randomize: Any) -> dict[str, tuple[float, float]]:
    if randomize is None:
        return {}
    if not isinstance(randomize, Mapping):
        raise ArgumentError(f"randomize must be {{field: (lowest, highest factor)}}, not {validate.shown(randomize)}")
    known = [name for name in (*SHAPES, "gravity", "armature", *VARIABLE) if name not in MEASURED]
    found = {}
    for name, pair in randomize.items():
        if name not in known:
            raise ArgumentError(
                f"randomize: {name!r} does not differ between environments; these can: {', '.join(known)}"
            )
        low, high = validate.real_array(f"randomize[{name!r}]", pair, (2,)).tolist()
        if low > high:
            raise ArgumentError(f"randomize[{name!r}] must be (lowest, highest) factors, not {validate.shown(pair)}")
        found[name] = (low, high)
    return found


# ---- environments ----


class VectorEnv(gymnasium.vector.VectorEnv):
    """Run N environments of one task at once; those whose episode ends are reset in the same step.

    `info["final_obs"]` has the last observations of episodes that ended in a step. If the state of a machine is no
    longer finite, its episode ends with a reward of zero.

    Parameters
    ----------
    task : Task or str
        A task, or one of "CartPole", "Acrobot", "InvertedDoublePendulum", "ArmReaching".
    num_envs : int, default 1
        The number of environments.
    randomize : dict, optional
        {field: (lowest, highest factor)}: every machine has its own masses, damping, ..., redrawn for every episode,
        such as {"mass": (0.8, 1.2), "inertia": (0.8, 1.2), "gravity": (0.9, 1.1)}.
    max_episode_steps : int, optional
        Default: that of the task.
    render_mode : None
        Rendering is not supported.

    Raises
    ------
    ArgumentError
        There is no such task, or a field cannot differ.

    Examples
    --------
    >>> from torsor.gym import VectorEnv
    >>> envs = VectorEnv("CartPole", 1000, randomize={"mass": (0.8, 1.2)})
    >>> seen, info = envs.reset(seed=0)
    >>> seen, rewards, terminated, truncated, info = envs.step(envs.action_space.sample())
    >>> rewards.shape
    (1000,)
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(self, task: Task | str, num_envs: int = 1, *, randomize: Ranges | None = None,
                 max_episode_steps: int | None = None, render_mode: None = None) -> None:  # fmt: skip
        self.task = _task(task, render_mode)
        self.num_envs = validate.integer("num_envs", num_envs, least=1)
        self.most = self.task.episode
        if max_episode_steps is not None:
            self.most = validate.integer("max_episode_steps", max_episode_steps, least=1)
        self.crowd = Crowd(self.task, self.num_envs, randomize)
        self.single_observation_space, self.single_action_space = _spaces(self.task)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.goal = self.task.begin(np.random.default_rng(0), self.num_envs)[2]
        self.steps = np.full(self.num_envs, -1)  # before the first reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start all environments, or some of them.

        Parameters
        ----------
        seed : int, optional
            Of all that is drawn.
        options : dict, optional
            "reset_mask": (num_envs,) booleans, True for those that start.

        Returns
        -------
        seen : (num_envs, m) ndarray
            Observations.
        info : dict
            Empty.

        Raises
        ------
        ArgumentError
            The mask does not fit, or is given before a first reset of all.
        """
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask")
        where = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        if mask is not None and (np.shape(mask) != (self.num_envs,) or (self.steps < 0).any()):
            raise ArgumentError(f"reset_mask must be {self.num_envs} booleans, after a first reset of all environments")
        self._begin(where)
        return self.task.observe(self.crowd.q, self.crowd.v, self.goal), {}

    def _begin(self, where: Array) -> None:
        crowd = self.crowd
        crowd.draw(self.np_random, where)
        crowd.q[where], crowd.v[where], self.goal[where] = self.task.begin(self.np_random, len(where))
        self.steps[where] = 0

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Take one action in each environment.

        Parameters
        ----------
        actions : (num_envs, driven) array_like
            Cut to [-1, 1].

        Returns
        -------
        seen : (num_envs, m) ndarray
            Observations; for environments that were reset, those of the new episode.
        rewards : (num_envs,) ndarray
            The rewards of these actions.
        terminated : (num_envs,) ndarray
            Which episodes have ended.
        truncated : (num_envs,) ndarray
            Which episodes were cut off at the largest number of actions.
        info : dict
            "final_obs", if an episode ended.

        Raises
        ------
        ArgumentError
            Before a first reset, or for actions of another shape.
        """
        task, crowd = self.task, self.crowd
        if self.steps[0] < 0:
            raise ArgumentError("call reset() before step()")
        actions = _actions(actions, self.action_space.shape)
        crowd.move(actions)
        self.steps += 1
        seen = task.observe(crowd.q, crowd.v, self.goal)
        rewards, ended = task.outcome(crowd.q, crowd.v, seen, actions)
        if not np.isfinite(seen.sum()):
            lost = ~np.isfinite(seen).all(axis=1)
            rewards, ended = np.where(lost, 0.0, rewards), ended | lost
        truncated = (self.steps >= self.most) & ~ended
        done = ended | truncated
        info: dict[str, Any] = {}
        if done.any():
            where = np.flatnonzero(done)
            info = _final(seen, done, where)
            self._begin(where)
            seen[where] = task.observe(crowd.q[where], crowd.v[where], self.goal[where])
        return seen, rewards, ended, truncated, info


def _final(seen: Array, done: Array, where: Array) -> dict[str, Any]:
    """What Gymnasium's vector environments report about episodes that ended in a step."""
    last = np.full(len(seen), None, dtype=object)
    for k, row in zip(where.tolist(), seen[where]):
        last[k] = row
    return {"final_obs": last, "_final_obs": done, "final_info": {}, "_final_info": done.copy()}


class MachineEnv(gymnasium.Env):
    """Run one environment of a task.

    Parameters
    ----------
    task : Task or str
        As in `VectorEnv`.
    randomize : dict, optional
        As in `VectorEnv`.
    render_mode : None
        As in `VectorEnv`.

    Examples
    --------
    >>> from torsor.gym import MachineEnv
    >>> env = MachineEnv("Acrobot")
    >>> seen, info = env.reset(seed=0)
    >>> env.step([1.0])[0].shape == seen.shape
    True
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, task: Task | str, *, randomize: Ranges | None = None, render_mode: None = None) -> None:
        self.task = _task(task, render_mode)
        self.crowd = Crowd(self.task, 1, randomize)
        self.observation_space, self.action_space = _spaces(self.task)
        self.goal: Array | None = None  # before the first reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode.

        Parameters
        ----------
        seed : int, optional
            Of all that is drawn.
        options : dict, optional
            Ignored.

        Returns
        -------
        seen : (m,) ndarray
            The observation.
        info : dict
            Empty.
        """
        super().reset(seed=seed)
        crowd = self.crowd
        crowd.draw(self.np_random, np.zeros(1, int))
        crowd.q[:], crowd.v[:], self.goal = self.task.begin(self.np_random, 1)
        return self.task.observe(crowd.q, crowd.v, self.goal)[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take one action.

        Parameters
        ----------
        action : (driven,) array_like
            Cut to [-1, 1].

        Returns
        -------
        seen : (m,) ndarray
            The observation.
        reward : float
            The reward of the action.
        terminated : bool
            The episode has ended.
        truncated : bool
            False: Gymnasium's own wrapper limits the number of actions.
        info : dict
            Empty.

        Raises
        ------
        ArgumentError
            Before a first reset, or for an action of another shape.
        """
        task, crowd, goal = self.task, self.crowd, self.goal
        if goal is None:
            raise ArgumentError("call reset() before step()")
        actions = _actions(action, self.action_space.shape)[None]
        crowd.move(actions)
        seen = task.observe(crowd.q, crowd.v, goal)
        if not isfinite(seen.sum()):
            return seen[0], 0.0, True, False, {}
        rewards, ended = task.outcome(crowd.q, crowd.v, seen, actions)
        return seen[0], float(rewards[0]), bool(ended[0]), False, {}


def _actions(given: Any, shape: tuple[int, ...] | None) -> Array:
    """Actions, cut to [-1, 1]."""
    actions = np.asarray(given, np.float64)
    if actions.shape != shape:
        raise ArgumentError(f"actions have shape {actions.shape}; the action space has {shape}")
    actions = np.minimum(np.maximum(actions, -1.0), 1.0)
    if not isfinite(actions.sum()):
        raise ArgumentError("actions hold a NaN")
    return actions


def _spaces(task: Task) -> tuple[Box, Box]:
    """The spaces of observations and of actions."""
    q, v, goal = task.begin(np.random.default_rng(0), 1)
    seen = task.observe(q, v, goal).shape[1:]
    return Box(-np.inf, np.inf, seen, np.float64), Box(-1.0, 1.0, (len(task.driven),), np.float32)


def register() -> None:
    """Register the tasks in Gymnasium: "torsor/CartPole-v0", ..., one at a time and as vectors."""
    for name, make in TASKS.items():
        if (known := f"torsor/{name}-v0") not in gymnasium.registry:
            gymnasium.register(
                known, "torsor.gym:MachineEnv", max_episode_steps=make.episode,
                vector_entry_point="torsor.gym:VectorEnv", kwargs={"task": name},
            )  # fmt: skip


register()
