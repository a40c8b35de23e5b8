"""Stiff motion on a GPU: `ts.simulate` with CuPy arrays against the same run on the host, and the fall of a long cable.

    python bench/gpu_stiff.py OUT              where the GPU is; needs CuPy
    python bench/gpu_stiff.py OUT --quick      the checks, without the long cables

Writes OUT/gpu_stiff.json after every part. A case that fails is reported there and does not stop the others.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from harness import cupy, words, write

import torsor as ts
from torsor import PD, Simulation, Spring
from torsor.motion import recording

LENGTH, MASS, BENDING, DAMPING = 100.0, 1.2, 20.0, 0.2  # as in stiff.py, which needs MuJoCo
RTOL = 1e-2
LONG, LONGER, TARGET = 100_000, 1_000_000, 1.5  # links, links, seconds for the first
SHORT = 1200  # links of the cables that are checked: enough to go by levels
SAME = 1e-6  # of the size of q and v: rounding, and what adaptive steps make of it
METHODS = ("trbdf2", "esdirk4", "dopri5", "rkf45", "dop853", "auto")
ABM = 1e-3  # the first steps of abm are as long as differences of rounding errors allow


def cable(n: int, **options: Any) -> ts.Model:
    L = LENGTH / n
    axis = np.where(np.arange(n)[:, None] % 2, (0.0, 0.0, 1.0), (0.0, 1.0, 0.0))
    p = np.where(np.arange(n)[:, None] > 0, (L, 0.0, 0.0), 0.0)
    inertia = MASS * L * np.array([5e-5, L * L / 12 + 2.5e-5, L * L / 12 + 2.5e-5])
    springs = dict(stiffness=BENDING / L, damping=DAMPING / L) | options
    return ts.Model.chain("revolute", axis=axis, p=p, mass=MASS * L, com=(L / 2, 0, 0), inertia=inertia, **springs)


# The long cables -------------------------------------------------------------------------------------------------


def fall(model: ts.Model, xp: Any) -> dict[str, Any]:
    """One second from horizontal, with states that are arrays of xp: NumPy or CuPy."""
    n, damping = model.nv, xp.asarray(model.damping)
    options: dict[str, Any] = dict(method="trbdf2", rtol=RTOL, atol=RTOL / n, dt=1.0, dense=False)
    prepared = time.perf_counter()
    Simulation(model, xp.zeros(n), **options).step()
    begin, times, losses = time.perf_counter(), [0.0], [0.0]
    simulation = Simulation(model, xp.zeros(n), **options)
    while simulation.t < 1.0:
        times.append(simulation.step(1.0))
        losses.append(float(damping @ simulation.v**2))
    seconds = time.perf_counter() - begin
    q, v = (np.asarray(x if xp is np else x.get()) for x in (simulation.q, simulation.v))
    released = ts.potential_energy(model, np.zeros(n)) - ts.potential_energy(model, q)
    kept = ts.kinetic_energy(model, q, v) + float(model.stiffness @ q**2) / 2
    missing = float(abs(released - kept - np.trapezoid(losses, times)) / released)
    return {
        "links": n, "seconds": seconds, "seconds to prepare": begin - prepared, "steps": len(times) - 1,
        "sweeps": simulation.stepper.evaluations, "missing energy": missing,
        "tip": ts.body_poses(model, q)[-1, :3, 3].tolist(),
    }  # fmt: skip


def long_cables(cp: Any) -> dict[str, Any]:
    model = cable(LONG)
    fall(cable(2000), cp)  # compiles the kernels
    there, here = fall(model, cp), fall(model, np)
    apart = float(np.linalg.norm(np.subtract(there["tip"], here["tip"]))) / LENGTH
    begin = time.perf_counter()
    run = ts.simulate(model, cp.zeros(LONG), duration=1.0, method="trbdf2", rtol=RTOL, atol=RTOL / LONG, dt=0.1)
    whole = time.perf_counter() - begin
    return {
        "fall": there | {"target": TARGET, "met": there["seconds"] <= TARGET}, "fall on the host": here,
        "tips apart / length": apart, "simulate with 11 rows and dense output: seconds": whole,
        "rows": list(run.q.shape), "fall of a million": fall(cable(LONGER), cp),
    }  # fmt: skip


# CPU = GPU -------------------------------------------------------------------------------------------------------


def pulled(t: float, q: Any, v: Any) -> Any:
    """Any function of arrays, wherever they are."""
    return 0.1 * np.sin(q) * (1 + t) - 0.3 * v


def forces_of(model: ts.Model) -> dict[str, Any]:
    n, rng = model.nv, np.random.default_rng(2)
    up, some = np.zeros((model.n, 6)), 1e-3 * rng.normal(size=(3, n))
    up[-1, 5] = 1.0
    forces = {
        "none": (), "constant": ts.Constant(some[0]), "table": ts.Table([0.0, 0.03, 1.0], some),
        "servo": PD(np.full(n, 1e-3), 30.0, 3.0),
        "followed": PD(lambda t: (np.full(n, 1e-3 * t), np.full(n, 1e-3), np.zeros(n)), 30.0, 3.0),
        "friction": ts.Friction(0.1, 2.0), "stops": ts.Limits(-2e-4, 2e-4, 30.0, 3.0), "wrenches": ts.External(up),
        "springs": Spring(20.0, damping=2.0), "function": pulled, "driven function": ts.Function(pulled, drive=True),
    }  # fmt: skip
    return forces | {"all": [x for x in forces.values() if x != ()]}


def difference(cp: Any, model: ts.Model, q: Any, v: Any, **options: Any) -> float:
    """How far a run on the device is from that of the host, of the size of q and v."""
    rows: dict[str, Any] = {"dt": 0.01} | options
    here, there = (ts.simulate(model, xp.asarray(q), xp.asarray(v), **rows) for xp in (np, cp))
    pairs = [(getattr(here, name), getattr(there, name)) for name in ("q", "v")]
    assert all(type(y) is np.ndarray for _, y in pairs)
    return float(max(np.abs(x - y).max() / max(np.abs(x).max(), 1e-3) for x, y in pairs))


def cases(cp: Any) -> dict[str, tuple[Callable[[], float], float]]:
    """name: (what measures a difference, how large it may be)"""
    found: dict[str, tuple[Callable[[], float], float]] = {}
    plain, rng = cable(SHORT, stiffness=0.0, damping=0.0), np.random.default_rng(1)
    q, v = 1e-4 * rng.normal(size=(2, SHORT))
    stiff, arm = cable(SHORT), ts.zoo.puma560()

    def add(name: str, model: ts.Model, q: Any, v: Any, same: float = SAME, **options: Any) -> None:
        usual: dict[str, Any] = {"duration": 0.03, "rtol": 1e-4, "atol": 1e-6, "step": 1e-3}
        found[name] = lambda: difference(cp, model, q, v, **usual | options), same

    for method in METHODS:
        add(f"cable, {method}", stiff if method not in ("dopri5", "rkf45", "dop853") else plain, q, v, method=method)
        add(f"arm, {method}", arm, np.full(6, 0.3), np.full(6, 0.5), method=method)
    add("cable, abm", plain, q, v, ABM, method="abm")
    for name, forces in forces_of(plain).items():
        add(f"cable, {name}", plain, q, v, forces=forces, method="trbdf2")
    for name in ("constant", "servo", "wrenches", "function"):
        add(f"cable, {name}, dopri5", plain, q, v, forces=forces_of(plain)[name], method="dopri5", duration=0.01)
    some = np.where(np.arange(SHORT) % 3, 1e-9, 0.0)
    add("almost no springs", plain, q, v, forces=Spring(some), method="trbdf2")
    limited = replace(stiff, effort=np.full(SHORT, 5.0), speed=np.full(SHORT, 2.0))
    add("limited drives", limited, q, v, forces=PD(np.full(SHORT, 1e-3), 30.0, 3.0), method="trbdf2")
    for n in (40, SHORT):
        balls = ts.zoo.random_chain(n, 5, joints=("spherical", "revolute", "universal"))
        balls = replace(balls, damping=np.full(balls.nv, 5.0), stiffness=np.full(balls.nv, 0.0))
        start, rate = balls.random_configuration(rng), 0.01 * rng.normal(size=balls.nv)
        for method in ("trbdf2", "dopri5"):
            add(f"{n} joints with quaternions, {method}", balls, start, rate, method=method, duration=2e-3, dt=1e-3)
    found["a resumed run"] = (lambda: resumed(cp, stiff, q)), 0.0
    found["an event"] = (lambda: event(cp, arm)), 1e-9
    if find_spec("torch"):
        found["a tensor of PyTorch"] = (lambda: tensor(arm)), SAME
    return found


def resumed(cp: Any, model: ts.Model, q: Any) -> float:
    """A run that lost its last chunk, resumed, against the whole run: the same bits."""
    options: dict[str, Any] = dict(duration=0.05, method="trbdf2", rtol=1e-4, chunk=4)
    whole = ts.simulate(model, cp.asarray(q), **options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.traj"
        ts.simulate(model, cp.asarray(q), file=path, **options)
        path.write_bytes(path.read_bytes()[: recording.read(path).end - 10])
        again = Simulation.resume(path)
        assert again.on_gpu
        return float(np.abs(again.run(0.05).q - whole.q).max())


def event(cp: Any, arm: ts.Model) -> float:
    """How far the joint is from where the run is to stop."""
    start = cp.asarray(np.zeros(6))
    return abs(float(ts.simulate(arm, start, duration=2.0, rtol=1e-8, stop=lambda t, q, v: q[1] - 0.2).q[-1, 1]) - 0.2)


def tensor(arm: ts.Model) -> float:
    """A run from a state of PyTorch, against the host's."""
    import torch

    q = torch.full((6,), 0.3, dtype=torch.float64, device="cuda")
    here, there = (ts.simulate(arm, x, duration=0.1, rtol=1e-6, dt=0.01) for x in (np.full(6, 0.3), q))
    assert type(there.q) is np.ndarray
    return float(np.abs(here.q - there.q).max())


# Rollouts --------------------------------------------------------------------------------------------------------

ROLLOUTS = {
    "arm, servos of every trajectory": (lambda: ts.zoo.puma560(), "implicit-euler", 50.0),
    "30 joints, loops": (lambda: ts.zoo.random_chain(30, 2), "implicit-euler", 50.0),
    "arm, rk4": (lambda: ts.zoo.puma560(), "rk4", 0.05),
}


def rollouts(cp: Any, make: Callable[[], ts.Model], method: str, gain: float) -> float:
    """The largest difference between the GPU's and the CPU's rollouts, with gains that differ between trajectories."""
    model, rng = make(), np.random.default_rng(1)
    q, v, kp, kd, goal = rng.normal(size=(5, 70, model.nv))
    servo = PD(goal, gain * np.abs(kp), gain / 10 * np.abs(kd))
    options: dict[str, Any] = dict(steps=20, step=1e-3, every=5, forces=servo, method=method)
    here = ts.rollout(model, 0.3 * q, 0.3 * v, **options)
    there = ts.rollout(model, cp.asarray(0.3 * q), cp.asarray(0.3 * v), **options)
    pairs = ((here.q, there.q), (here.v, there.v))
    return float(max(np.abs(cp.asnumpy(y) - x).max() / np.abs(x).max() for x, y in pairs))


# -----------------------------------------------------------------------------------------------------------------


def attempt(out: dict[str, Any], name: str, measure: Callable[[], Any]) -> Any:
    """What is measured, or None; an error is kept, and printed."""
    try:
        return measure()
    except Exception as error:
        out["failed"][name] = f"{type(error).__name__}: {error}"
        print(name, traceback.format_exc()[-1500:], flush=True)
        return None


def main() -> None:
    folder, *options = words(__doc__)
    folder, quick = Path(folder), "--quick" in options
    cp = cupy(__doc__)

    folder.mkdir(parents=True, exist_ok=True)
    out: dict[str, Any] = {
        "name": "gpu_stiff", "device": cp.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "cupy": cp.__version__, "failed": {}, "differences": {},
    }  # fmt: skip

    def save() -> None:
        write(folder / "gpu_stiff.json", out)

    save()
    if not quick:
        out |= attempt(out, "long cables", lambda: long_cables(cp)) or {}
        save()
    for name, (measure, most) in cases(cp).items():
        begin, found = time.perf_counter(), attempt(out, name, measure)
        print(f"{name}: {found} in {time.perf_counter() - begin:.1f} s", flush=True)
        if found is not None:
            out["differences"][name] = found
            if not found <= most:
                out["failed"][name] = f"{found:.3g} apart, more than {most:g}"
        save()
    out["rollouts"] = {name: attempt(out, name, lambda c=case: rollouts(cp, *c)) for name, case in ROLLOUTS.items()}
    save()
    print(json.dumps(out, indent=1))
    sys.exit(bool(out["failed"]))


if __name__ == "__main__":
    main()
