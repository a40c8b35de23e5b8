"""The contenders: the same function of the same machine, by torsor and by its peers, over the same states."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import mujoco
import numpy as np
import pinocchio as pin
from harness import Contender
from mujoco.rollout import Rollout

import torsor as ts

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from peers import Translation
from peers.mujoco_peer import MujocoPeer
from peers.pinocchio_peer import PinocchioPeer, mirrored

BATCH = 4096
SETS = 4  # batches of states, used in turn
FLOAT32 = 2e-2  # the answers of ill-conditioned states in single precision still show that the problem is the same

State = tuple[np.ndarray, ...]  # q (..., nq), then velocities, forces or accelerations (..., nv)

MACHINES: dict[str, Callable[[], ts.Model]] = {
    "general 6R": lambda: ts.zoo.general_arm(6),
    "Panda-like 7R": lambda: ts.zoo.panda(),
    "PUMA 560": lambda: ts.zoo.puma_saha(),
    "floating humanoid": lambda: ts.zoo.humanoid(),
}


def states(model: ts.Model, batch: int | None = BATCH, sets: int = SETS, seed: int = 0) -> list[State]:
    """`sets` times (q, v, u), u a force or an acceleration."""
    rng = np.random.default_rng(seed)
    shape = (model.nv,) if batch is None else (batch, model.nv)
    return [
        (model.random_configuration(rng, batch), rng.normal(size=shape), rng.normal(size=shape)) for _ in range(sets)
    ]


def torsor_program(name: str, model: ts.Model, function, sets: Sequence[State], **options) -> Contender:
    """A compiled Program writing into one array; `options` are those of ts.compile, target and tolerance."""
    target, tolerance = options.pop("target", None), options.pop("tolerance", 1e-10)
    program = ts.compile(model, function, **options)
    sets = [tuple(x.astype(options.get("dtype", "float64")) for x in state) for state in sets]
    out = np.empty_like(program.rows(*sets[0]))
    return Contender(
        f"torsor {name}", lambda *state: program.rows(*state, out=out), sets, target=target, tolerance=tolerance
    )


def pinocchio_batch(model: ts.Model, function: str, sets: list[State]) -> Contender:
    """abaInParallel or rneaInParallel on one thread, columns of states as Pinocchio wants them."""
    peer = PinocchioPeer(model)
    pool = pin.ModelPool(peer.pin_model, 1)
    out = np.zeros((model.nv, len(sets[0][0])), order="F")
    parallel = getattr(pin, function)
    columns = [tuple(np.asfortranarray(x.T) for x in in_peer(peer, state, function)) for state in sets]

    def run(x, w, u):
        parallel(1, pool, x, w, u, out)
        return out

    return Contender(f"pin.{function}(1)", run, columns, lambda result: in_torsor(peer, sets[0], result.T, function))


def pinocchio_loop(model: ts.Model, function: str, sets: list[State]) -> Contender:
    """Pinocchio has no batch of these."""
    peer = PinocchioPeer(model)
    single = partial(getattr(pin, function), peer.pin_model, peer.pin_model.createData())
    return matrix_loop(f"pin.{function}, Python loop", peer, single, sets)


def matrix_loop(name: str, peer: Translation, matrix_of: Callable, sets: list[State]) -> Contender:
    """A Python loop over states; the last matrix is the answer."""
    configurations = [([peer.configuration(q) for q in state[0]],) for state in sets]

    def run(configurations):
        for x in configurations:
            matrix = matrix_of(x)
        return matrix

    def answer(matrix):
        T = peer.velocity_map(sets[0][0][-1])
        return T.T @ mirrored(matrix) @ T

    return Contender(name, run, configurations, answer)


def mujoco_rollout(model: ts.Model, sets: list[State]) -> Contender:
    """One step of `mujoco.rollout` on one thread: forward dynamics, then v + dt dv, from which dv is read."""
    peer = MujocoPeer(model)
    mj_model = peer.mj_model
    mj_model.opt.enableflags = 0  # no energies
    data, step = [mujoco.MjData(mj_model)], mj_model.opt.timestep
    rollout = Rollout(nthread=0)
    physics = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
    velocity = slice(1 + mj_model.nq, 1 + mj_model.nq + mj_model.nv)  # after the time and qpos
    arguments, velocities = [], []
    for state in sets:
        x, w, force = in_peer(peer, state, "aba")
        arguments.append((np.hstack([np.zeros((len(x), 1)), x, w]), force[:, None]))
        velocities.append(w)
    assert mujoco.mj_stateSize(mj_model, physics) == arguments[0][0].shape[1]

    def run(initial, force):
        after, _ = rollout.rollout(
            [mj_model], data, initial, force, nstep=1, control_spec=int(mujoco.mjtState.mjSTATE_QFRC_APPLIED)
        )
        return after

    def answer(after):
        return in_torsor(peer, sets[0], (after[:, 0, velocity] - velocities[0]) / step, "aba")

    return Contender("mujoco.rollout, one Euler step", run, arguments, answer, tolerance=1e-8)  # of (v' - v) / dt


def drake(model: ts.Model, function: str, sets: list[State]) -> list[Contender]:
    """A Python loop over states, since Drake has no batch; nobody where Drake is not installed."""
    if not has_drake():
        return []
    from drake_peer import DrakePeer

    peer, name = DrakePeer(model), f"Drake {function}, Python loop"
    if function == "CalcMassMatrix":
        return [matrix_loop(name, peer, peer.mass_matrix, sets)]
    single, alike = {
        "EvalTimeDerivatives": (peer.forward_dynamics, "aba"),
        "CalcInverseDynamics": (peer.inverse_dynamics, "rnea"),
    }[function]
    arguments = []
    for state in sets:
        x, w, u = in_peer(peer, state, alike)
        arguments.append((list(np.hstack([x, w])), list(u)))

    def run(states, u):
        return list(map(single, states, u))

    return [Contender(name, run, arguments, lambda rows: in_torsor(peer, sets[0], np.array(rows), alike))]


def has_drake() -> bool:
    """Not every machine that Pinocchio and MuJoCo run on has a wheel of Drake."""
    return find_spec("pydrake") is not None


def in_peer(peer: Translation, state: State, function: str) -> tuple[np.ndarray, ...]:
    """(x, w, force) or (x, w, dw/dt) of the peer, one state per row."""
    q, v, u = state
    x = np.array([peer.configuration(q_k) for q_k in q])
    T = np.array([peer.velocity_map(q_k) for q_k in q])
    w, u = turned(T, v), turned(T, u)
    return x, w, (u + drift(peer, state) if function.startswith("rnea") else u)


def in_torsor(peer: Translation, state: State, result: np.ndarray, function: str) -> np.ndarray:
    """The peer's accelerations or forces in torsor's coordinates."""
    T = np.array([peer.velocity_map(q_k) for q_k in state[0]])
    return turned(T.swapaxes(1, 2), result if function.startswith("rnea") else result - drift(peer, state))


def drift(peer: Translation, state: State) -> np.ndarray:
    """dT/dt v."""
    q, v, _ = state
    return np.array([peer.velocity_map_dot(q_k, v_k) @ v_k for q_k, v_k in zip(q, v)])


def turned(T: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.einsum("kij,kj->ki", T, rows)
