"""Ensembles: members of 1 s of a falling arm per core-second, stored; and what a new set of parameters costs.

    python bench/ensemble.py

Peers run in turns, in the same process on one core; a figure is the best of all rounds, by CPU time, and the median
stands beside it.  Deleting the stores is not counted.
"""

from __future__ import annotations

import copy
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, machine, write

import torsor as ts
from torsor.backends import cache
from torsor.dynamics.members import members

sys.path.append(str(Path(__file__).parents[1] / "tests"))

ARM = ts.zoo.panda()
VARY = {"*.density": ts.Normal(mean=1.0, std=0.1)}
MEMBERS, FEW = 4096, 8
NEW = np.random.default_rng()  # other members in every run: none was compiled for before
ROUNDS = 5
WANTED = {"rk4, steps of 1 ms": 4000, "dopri5, rtol 1e-6": 2000}
STATES = 4096  # of the forward dynamics


def drawn(rng: np.random.Generator) -> ts.Model:
    """A new arm, as a user would make it without `ensemble`."""
    factor = rng.normal(1, 0.1, ARM.n)
    return replace(ARM, mass=ARM.mass * factor, inertia=ARM.inertia * factor[:, None, None])


def stored(method: str, folder: Path, count: int = MEMBERS) -> None:
    path = Path(tempfile.mkdtemp(dir=folder)) / "runs.zarr"
    ts.ensemble(ARM, VARY, n=count, duration=1.0, method=method, store=path, chunk=1024)


def in_a_loop() -> None:
    for _ in range(FEW):
        ts.simulate(drawn(NEW), duration=1.0, method="dopri5", rtol=1e-6, atol=1e-9, dt=0.01)


def by_scipy() -> None:
    """solve_ivp with Pinocchio's articulated-body algorithm."""
    import pinocchio as pin
    from peers.pinocchio_peer import PinocchioPeer
    from scipy.integrate import solve_ivp

    zero = np.zeros(ARM.nv)
    for _ in range(FEW):
        model = PinocchioPeer(drawn(NEW)).pin_model
        data = model.createData()

        def slope(t: float, y: Any, model: Any = model, data: Any = data) -> Any:
            return np.concatenate([y[7:], pin.aba(model, data, y[:7], y[7:], zero)])

        solve_ivp(slope, (0, 1), np.zeros(14), rtol=1e-6, atol=1e-9, t_eval=np.linspace(0.01, 1, 100))


def mujoco_rollout() -> Callable[[], None]:
    """MuJoCo's own rollout of models with other masses: Runge-Kutta of order 4, steps of 1 ms, on one thread."""
    import mujoco as mj
    from mujoco.rollout import rollout
    from peers.mujoco_peer import MujocoPeer

    model = MujocoPeer(ARM).mj_model
    model.opt.timestep, model.opt.integrator, model.opt.enableflags = 1e-3, mj.mjtIntegrator.mjINT_RK4, 0
    model.opt.disableflags |= int(mj.mjtDisableBit.mjDSBL_CONTACT) | int(mj.mjtDisableBit.mjDSBL_CONSTRAINT)
    data = mj.MjData(model)
    state = np.zeros((FEW, mj.mj_stateSize(model, mj.mjtState.mjSTATE_FULLPHYSICS)))

    def run() -> None:
        models = []
        for _ in range(FEW):
            one, factor = copy.copy(model), np.concatenate([[1.0], NEW.normal(1, 0.1, ARM.n)])
            one.body_mass[:], one.body_inertia[:] = model.body_mass * factor, model.body_inertia * factor[:, None]
            mj.mj_setConst(one, data)
            models.append(one)
        rollout(models, data, state, nstep=1000)

    return run


def falls(folder: Path) -> dict[str, dict[str, float]]:
    """Members per core-second."""
    peers: dict[str, tuple[int, Callable[[], Any]]] = {
        "rk4, steps of 1 ms": (MEMBERS, lambda: stored("rk4", folder)),
        "dopri5, rtol 1e-6": (MEMBERS, lambda: stored("dopri5", folder)),
        "ts.simulate in a Python loop, dopri5, rtol 1e-6": (FEW, in_a_loop),
    }
    for name, make in {"scipy solve_ivp with pin.aba, rtol 1e-6": lambda: by_scipy,
                       "MuJoCo rollout, RK4, steps of 1 ms": mujoco_rollout}.items():  # fmt: skip
        try:
            work = make()
            work()
            peers[name] = FEW, work
        except ImportError as error:
            print(f"without {name}: {error}")
    times: dict[str, list[float]] = {name: [] for name in peers}
    for k in range(ROUNDS + 1):
        for name, (count, work) in peers.items():
            begin = time.process_time()
            work()
            if k:
                times[name].append((time.process_time() - begin) / count)
            for path in folder.iterdir():
                shutil.rmtree(path)
    rates = {name: {"best": 1 / min(x), "median": 1 / float(np.median(x))} for name, x in times.items()}
    for name, rate in rates.items():
        print(f"{name}: {rate['best']:.4g} members per core-second (median {rate['median']:.4g}, "
              f"wanted {WANTED.get(name, '-')})")  # fmt: skip
    return rates


def parameters() -> float:
    """Microseconds for one more set of parameters of a batch, checked and framed."""
    factor = np.random.default_rng(0).normal(1, 0.1, (10_000, ARM.n))
    mass, inertia = ARM.mass * factor, ARM.inertia * factor[..., None, None]
    return least(lambda: members(ts.ModelBatch(ARM, mass=mass, inertia=inertia))) / len(factor) * 1e6


def least(work: Callable[[], Any], rounds: int = 5) -> float:
    """Seconds of CPU time."""
    work()
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def new_models() -> dict[str, float]:
    """What one more model of a known structure costs: time to its first result, memory and files that stay."""
    zero = np.zeros(7)

    def one() -> float:
        factor = NEW.normal(1, 0.1, ARM.n)
        begin = time.perf_counter()
        batch = ts.ModelBatch(ARM, mass=ARM.mass * factor, inertia=ARM.inertia * factor[:, None, None])
        ts.forward_dynamics(batch, zero, zero, zero)
        return time.perf_counter() - begin

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    for _ in range(300):
        one()
    files, memory = len(cache.entries()), resident()
    times = [one() for _ in range(3000)]
    return {
        "first_result_ms": float(np.median(times)) * 1e3, "wanted_ms": 1.0,
        "bytes_kept": max(0, resident() - memory) / len(times),
        "files_kept": len(cache.entries()) - files,
    }  # fmt: skip


def speeds() -> list[dict[str, Any]]:
    """Forward dynamics of one core: ns per state with one model for all, and with a model for each state."""
    rows = []
    for name, model in {"Panda-like 7R": ARM, "humanoid": ts.zoo.humanoid()}.items():
        rng = np.random.default_rng(0)
        factor = rng.uniform(0.9, 1.1, (STATES, model.n))
        q, (v, tau) = model.random_configuration(rng, STATES), rng.normal(size=(2, STATES, model.nv))
        fields = {"mass": model.mass * factor, "inertia": model.inertia * factor[..., None, None]}
        batches = {
            "inertias differ": ts.ModelBatch(model, **fields),
            "inertias and lengths differ": ts.ModelBatch(model, **fields, p=model.p * factor[..., None]),
        }
        works: dict[str, Callable[..., Any]] = {
            "one model, loops": ts.compile(model, ts.forward_dynamics, specialised=False),
            "one model, straight line": ts.compile(model, ts.forward_dynamics, specialised=True),
        }
        works |= {how: partial(ts.forward_dynamics, batch) for how, batch in batches.items()}
        times: dict[str, list[float]] = {how: [] for how in works}
        for _ in range(20):
            for how, work in works.items():
                begin = time.process_time()
                work(q, v, tau)
                times[how].append(time.process_time() - begin)
        best = {how: min(x) / STATES * 1e9 for how, x in times.items()}
        ratio = {how: best["one model, loops"] / best[how] for how in batches}
        rows.append({"model": name, "ns_per_state": best, "of_the_loops_speed": ratio, "wanted": 1 / 3})
        print(rows[-1])
    return rows


def memory(count: int) -> float:
    """Peak memory in MB of a process that runs so many members."""
    import subprocess

    code = (
        f"import re, sys, tempfile, pathlib; sys.path.insert(0, {str(Path(__file__).parent)!r}); import ensemble;"
        f"ensemble.stored('rk4', pathlib.Path(tempfile.mkdtemp()), {count});"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                              env=os.environ | {"TMPDIR": folder})  # fmt: skip
    return int(done.stdout) / 1024


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, also for functions that take all of them
    with tempfile.TemporaryDirectory() as folder:
        rates = falls(Path(folder))
    each, new = parameters(), new_models()
    print(f"a new set of parameters: {each:.2f} us; a new model: {new}")
    rows = speeds()
    peaks = {count: memory(count) for count in (1000, 10_000, 100_000)}
    print(f"peak memory, MB: {peaks}")
    report = {
        "machine": machine(), "members": MEMBERS, "members_per_core_second": rates,
        "microseconds_per_parameter_set": each, "new_model": new, "forward_dynamics": rows, "peak_MB": peaks,
    }  # fmt: skip
    write(RESULTS / "ensemble.json", report)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
