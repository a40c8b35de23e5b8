"""Ensembles: members of 1 s of a falling arm per core-second, stored; and what a new set of parameters costs."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, versions

import torsor as ts
from torsor.compiler.members import members

ARM = ts.zoo.panda()
VARY = {"*.density": ts.Normal(mean=1.0, std=0.1)}
MEMBERS, FEW = 4096, 8
NEW = np.random.default_rng()  # other members in every run: none was compiled for before


def drawn(rng: np.random.Generator) -> ts.Model:
    """A new arm, as a user would make it without `ensemble`."""
    from dataclasses import replace

    factor = rng.normal(1, 0.1, ARM.n)
    return replace(ARM, mass=ARM.mass * factor, inertia=ARM.inertia * factor[:, None, None])


def stored(method: str, count: int = MEMBERS) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ts.ensemble(ARM, VARY, n=count, duration=1.0, method=method, store=Path(folder) / "runs.zarr", chunk=1024)


def in_a_loop() -> None:
    for _ in range(FEW):
        ts.simulate(drawn(NEW), duration=1.0, method="dopri5", rtol=1e-6, atol=1e-9, dt=0.01)


def by_scipy() -> None:
    """solve_ivp with Pinocchio's articulated-body algorithm."""
    import sys

    import pinocchio as pin

    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from peers.pinocchio_peer import PinocchioPeer
    from scipy.integrate import solve_ivp

    zero = np.zeros(ARM.nv)
    for _ in range(FEW):
        model = PinocchioPeer(drawn(NEW)).pin_model
        data = model.createData()

        def slope(t: float, y: Any, model: Any = model, data: Any = data) -> Any:
            return np.concatenate([y[7:], pin.aba(model, data, y[:7], y[7:], zero)])

        solve_ivp(slope, (0, 1), np.zeros(14), rtol=1e-6, atol=1e-9, t_eval=np.linspace(0.01, 1, 100))


def parameters() -> float:
    """Microseconds for one more set of parameters of a batch, checked and framed."""
    factor = np.random.default_rng(0).normal(1, 0.1, (10_000, ARM.n))
    mass, inertia = ARM.mass * factor, ARM.inertia * factor[..., None, None]

    def once() -> None:
        members(ts.ModelBatch(ARM, mass=mass, inertia=inertia))

    return least(once) / len(factor) * 1e6


def least(work: Callable[[], Any], rounds: int = 5) -> float:
    """Seconds of CPU time."""
    work()
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def memory(count: int) -> float:
    """Peak memory in MB of a process that runs so many members."""
    import subprocess
    import sys

    code = (
        f"import re, sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import ensemble;"
        f"ensemble.stored('rk4', {count}); print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    kilobytes = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return int(kilobytes) / 1024


def main() -> None:
    peers: dict[str, tuple[int, Callable[[], Any]]] = {
        "rk4, steps of 1 ms": (MEMBERS, lambda: stored("rk4")),
        "dopri5, rtol 1e-6": (MEMBERS, lambda: stored("dopri5")),
        "ts.simulate in a Python loop, dopri5, rtol 1e-6": (FEW, in_a_loop),
    }
    rates = {}
    for name, (count, work) in peers.items():
        rates[name] = count / least(work, 3)
        print(f"{name}: {rates[name]:.3g} members per core-second")
    try:
        rates["scipy solve_ivp with pin.aba, rtol 1e-6"] = FEW / least(by_scipy, 3)
        print(f"scipy with pin.aba: {rates['scipy solve_ivp with pin.aba, rtol 1e-6']:.3g}")
    except ImportError as error:
        print(f"without Pinocchio: {error}")
    each = parameters()
    print(f"a new set of parameters: {each:.2f} us")
    peaks = {count: memory(count) for count in (1000, 10_000, 100_000)}
    print(f"peak memory, MB: {peaks}")
    report = {
        "machine": machine(), "versions": versions(), "members": MEMBERS, "members_per_core_second": rates,
        "microseconds_per_parameter_set": each, "peak_MB": peaks,
    }  # fmt: skip
    (Path(__file__).parent / "results" / "ensemble.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
