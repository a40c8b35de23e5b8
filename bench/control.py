"""Optimal control and reinforcement learning: derivatives in CasADi against its own, environments against MuJoCo's.

CPU time of the process.  Functions of CasADi are called on prepared memory (`Function.buffer`), without conversions.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from time import process_time
from typing import Any

import casadi as ca
import gymnasium
import mujoco
import mujoco.rollout
import numpy as np
from harness import Claim, Contender, Report, Row, race
from scipy.linalg import solve_continuous_are

import torsor as ts
from torsor import reference
from torsor.algorithms import articulated
from torsor.gym import InvertedDoublePendulum, MachineEnv, VectorEnv

NODES = 50
MANY = 4096  # environments
START, GOAL = np.zeros(7), np.array([1.0, 0.5, -0.5, -1.5, 0.3, 1.0, 0.4])
LIMITS = {"value": 8e-6, "Jacobian": 120e-6, "Hessian": 400e-6}  # seconds
RANGES = {"mass": (0.8, 1.2), "inertia": (0.8, 1.2)}
MUJOCO_FILE = Path(gymnasium.__file__).parent / "envs/mujoco/assets/inverted_double_pendulum.xml"


def measure(rounds: int) -> Report:
    report = Report("control", f"CasADi with {NODES} nodes of the Panda; {MANY} double pendulums; CPU time")
    arm = ts.zoo.panda()
    functions = {"CasADi": _on_symbols(arm), "torsor": ts.to_casadi(arm, ts.forward_dynamics, NODES)}
    _derivatives(report, functions, rounds)
    _collocation(report, functions, rounds)
    _environments(report, rounds)
    return report


# ---- CasADi ----


def _on_symbols(arm: ts.Model) -> Any:
    """The same algorithm on CasADi's symbols, interpreted."""
    inputs = [ca.SX.sym(name, arm.nv) for name in ("q", "v", "tau")]
    numbers = {name: [x[i] for i in range(arm.nv)] for name, x in zip(("q", "v", "tau"), inputs)}
    y = ca.vertcat(*reference.evaluate(articulated.forward_dynamics, arm, numbers))
    return ca.Function("symbolic", inputs, [y], {"cse": True}).map(NODES)


def _derivatives(report: Report, functions: dict[str, Any], rounds: int) -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(3, NODES, 7))
    z, c = states.reshape(-1), rng.normal(size=(NODES, 7))
    graphs = {name: _graphs(F) for name, F in functions.items()}
    for k, question in enumerate(LIMITS):
        arguments = (z, c) if question == "Hessian" else tuple(states)
        contenders = [_prepared(name, graphs[name][k], arguments) for name in graphs]
        report.rows += race(f"Panda, {NODES} nodes: {question}", contenders, unit="per call", rounds=rounds,
                            clock=process_time)  # fmt: skip
        reached, most = report.rows[-1].min * 1e6, LIMITS[question] * 1e6
        report.claims.append(Claim(f"{question}: microseconds", reached, at_most=most))


def _graphs(F: Any) -> list[Any]:
    """The function, its Jacobians, and the Hessian of its product with a multiplier."""
    xs = [ca.MX.sym(name, 7, NODES) for name in ("q", "v", "tau")]
    y, z, c = F(*xs), ca.MX.sym("z", 21 * NODES), ca.MX.sym("c", 7, NODES)
    L = ca.dot(c, F(*(ca.reshape(x, 7, NODES) for x in ca.vertsplit(z, 7 * NODES))))
    slopes = ca.Function("slopes", xs, [ca.jacobian(y, x) for x in xs])
    return [ca.Function("value", xs, [y]), slopes, ca.Function("curvature", [z, c], [ca.hessian(L, z)[0]])]


def _prepared(name: str, F: Any, arguments: tuple[np.ndarray, ...]) -> Contender:
    """A call on prepared memory; the answer is all outputs."""
    buffer, call = F.buffer()
    inputs = [np.ascontiguousarray(x) for x in arguments]
    outputs = [np.zeros(F.nnz_out(k)) for k in range(F.n_out())]
    for k, x in enumerate(inputs):
        buffer.set_arg(k, memoryview(x))
    for k, x in enumerate(outputs):
        buffer.set_res(k, memoryview(x))

    def run(*_: Any) -> list[np.ndarray]:
        call()
        return outputs

    return Contender(name, run, [(inputs, buffer)], np.concatenate, tolerance=1e-9)


def _collocation(report: Report, functions: dict[str, Any], rounds: int) -> None:
    """The least squared torque from rest to rest, by the trapezoidal rule and IPOPT with exact Hessians."""
    solvers = {name: _solver(F) for name, F in functions.items()}
    found: dict[str, tuple[int, float]] = {}

    def solve(name: str) -> np.ndarray:
        solver, start = solvers[name]
        result = solver(x0=start, lbg=0, ubg=0)
        found[name] = solver.stats()["iter_count"], float(result["f"])
        return np.array(result["f"]).ravel()

    contenders = [Contender(name, solve, [(name,)], tolerance=1e-7) for name in solvers]
    case, few = "Panda, collocation with 49 intervals, IPOPT", max(3, rounds // 3)
    rows = race(case, contenders, unit="per solution", rounds=few, clock=process_time)
    report.rows += rows
    report.claims += [Claim(f"iterations with {name}", count) for name, (count, _) in found.items()]
    report.claims.append(Claim("share of CasADi's CPU time", rows[1].min / rows[0].min, at_most=0.2))


def _solver(F: Any) -> tuple[Any, Any]:
    q, v, u = (ca.MX.sym(name, 7, NODES) for name in "qvu")
    h = 1.0 / (NODES - 1)
    a = F(q, v, u)
    steps = [x[:, 1:] - x[:, :-1] - h / 2 * (rate[:, 1:] + rate[:, :-1]) for x, rate in ((q, v), (v, a))]
    ends = [q[:, 0] - START, v[:, 0], q[:, -1] - GOAL, v[:, -1]]
    problem = {"x": ca.veccat(q, v, u), "f": h * ca.sumsqr(u), "g": ca.veccat(*steps, *ends)}
    options = {"print_time": False, "ipopt": {"print_level": 0, "sb": "yes"}}
    start = ca.veccat(np.linspace(START, GOAL, NODES).T, np.zeros((14, NODES)))
    return ca.nlpsol("least", "ipopt", problem, options), start


# ---- environments ----


def _environments(report: Report, rounds: int) -> None:
    own = InvertedDoublePendulum(model=ts.load(MUJOCO_FILE))  # the same machine as MuJoCo's
    plain, random = VectorEnv(own, MANY), VectorEnv(own, MANY, randomize=RANGES)
    balance = _gains(own.model)
    contenders = [_crowd("one model", plain, balance), _crowd("masses and inertias differ", random, balance)]
    rows = _race(f"{MANY} double pendulums that are balanced", contenders, rounds, MANY)
    falling = [_crowd("one model, falling", plain, None), _crowd("masses and inertias differ, falling", random, None)]
    rows += _race(f"{MANY} double pendulums that fall, ten actions per episode", falling, rounds, MANY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = gymnasium.make("InvertedDoublePendulum-v5").unwrapped
    singles = [_single("gymnasium's, with MuJoCo", theirs), _single("torsor", MachineEnv(own))]
    rows += _race("one double pendulum", singles, rounds)
    rows += _race("64 states, five steps each, without Python", [_mujoco_rollout(64)], rounds, 64)
    report.rows += rows
    million = {row.contender: 1e-6 / row.min for row in rows}
    report.claims += [
        Claim("balanced: million environment steps per CPU second", million["one model"], at_least=2.0),
        Claim("balanced: share of that with models that differ", rows[0].min / rows[1].min, at_least=0.8),
        Claim("falling: million environment steps per CPU second", million["one model, falling"]),
        Claim("falling: share of that with models that differ", rows[2].min / rows[3].min),
        Claim("one environment: microseconds per step", rows[5].min * 1e6, at_most=60.0),
        Claim("one environment of MuJoCo: microseconds per step", rows[4].min * 1e6),
        Claim("mujoco.rollout: million environment steps per CPU second", million["mujoco.rollout"]),
    ]


def _race(case: str, contenders: list[Contender], rounds: int, per: int = 1) -> list[Row]:
    return race(case, contenders, unit="per environment step", per=per, rounds=rounds, clock=process_time)


def _gains(model: ts.Model) -> np.ndarray:
    """A feedback (x, two angles, three speeds) that balances the machine."""
    zero = np.zeros(3)
    A, B = ts.linearize(model, zero, zero, zero)
    Q, R = np.diag([50.0, 10.0, 10.0, 1.0, 1.0, 1.0]), np.array([[1e-3]])
    return np.linalg.solve(R, B[:, :1].T @ solve_continuous_are(A, B[:, :1], Q, R)).ravel()


def _crowd(name: str, envs: VectorEnv, gains: np.ndarray | None) -> Contender:
    rng = np.random.default_rng(0)
    noise = [0.05 * rng.uniform(-1, 1, (envs.num_envs, 1)) for _ in range(8)]
    seen, _ = envs.reset(seed=0)
    kept = [seen]

    def step(action: np.ndarray) -> None:
        if gains is not None:
            action = -(kept[0][:, [0, 1, 2, 5, 6, 7]] @ gains)[:, None] / 500.0
        kept[0] = envs.step(action)[0]

    for action in noise * 5:
        step(action)
    return Contender(name, step, [(action,) for action in noise], None)


def _single(name: str, env: Any) -> Contender:
    env.reset(seed=0)
    action = np.zeros(1, np.float32)

    def step() -> None:
        _, _, ended, *_ = env.step(action)
        if ended:
            env.reset()

    return Contender(name, step, [()], None)


def _mujoco_rollout(count: int) -> Contender:
    model = mujoco.MjModel.from_xml_path(str(MUJOCO_FILE))
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    states = np.zeros((count, size))
    states[:, 1:7] = 0.1 * rng.normal(size=(count, 6))
    control = 0.05 * rng.uniform(-1, 1, (count, 5, 1))

    def run() -> None:
        mujoco.rollout.rollout(model, data, states, control)

    return Contender("mujoco.rollout", run, [()], None)
