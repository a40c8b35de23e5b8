"""Stiff motion on a GPU: the cable of `stiff.py` falls by TR-BDF2 in O(log n) levels; implicit rollouts, checked.

    python bench/gpu_stiff.py OUT              where the GPU is; needs CuPy
    python bench/gpu_stiff.py OUT --host       the same levels on the host, for 2000 links: no GPU is needed

Writes OUT/gpu_stiff.json.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from harness import write

import torsor as ts
from torsor.parallel.solver import Solver
from torsor.simulate.implicit import TrBdf2

LENGTH, MASS, BENDING, DAMPING = 100.0, 1.2, 20.0, 0.2  # as in stiff.py, which needs MuJoCo
RTOL = 1e-2
SETTLED, SAFETY = 0.03, 0.9
LONG, TARGET = 100_000, 1.5  # links, seconds
Solve = Callable[..., Any]


def cable(n: int) -> ts.Model:
    L = LENGTH / n
    axis = np.where(np.arange(n)[:, None] % 2, (0.0, 0.0, 1.0), (0.0, 1.0, 0.0))
    p = np.where(np.arange(n)[:, None] > 0, (L, 0.0, 0.0), 0.0)
    inertia = MASS * L * np.array([5e-5, L * L / 12 + 2.5e-5, L * L / 12 + 2.5e-5])
    return ts.Model.chain("revolute", axis=axis, p=p, mass=MASS * L, com=(L / 2, 0, 0), inertia=inertia,
                          stiffness=BENDING / L, damping=DAMPING / L)  # fmt: skip


def fall(model: ts.Model, xp: Any, accelerate: Solve, solve: Solve) -> dict[str, Any]:
    """One second from horizontal, with the equations of `torsor.simulate.implicit` on arrays of xp.

    accelerate(q, v, tau, added) and solve(q, b, added) invert M + diag(added).
    """
    n, tableau = model.nv, TrBdf2.tableau
    K, D = xp.asarray(model.stiffness.copy()), xp.asarray(model.damping.copy())
    q, v = xp.zeros(n), xp.zeros(n)
    a = xp.asarray(ts.forward_dynamics(model, np.zeros(n), np.zeros(n), np.zeros(n)))
    t, h, sweeps, lost, steps = 0.0, 1e-6, 0, 0.0, 0
    loss = 0.0
    while t < 1.0:
        h = min(h, 1.0 - t)
        g = tableau.gamma * h
        added = g * D + g * g * K
        rates, new = [(v, a)], a
        for row in tableau.A[1:]:
            q0 = q + sum(h * w * f[0] for w, f in zip(row.tolist(), rates))
            v0 = v + sum(h * w * f[1] for w, f in zip(row.tolist(), rates))
            for _ in range(4):
                vs = v0 + g * new
                qs = q0 + g * vs
                better = accelerate(qs, vs, added * new - K * qs - D * vs, added)
                size = norm(xp, g * g * (better - new), g * (better - new), qs, vs, n)
                new, sweeps = better, sweeps + 1
                if size <= SETTLED:
                    break
            vs = v0 + g * new
            qs = q0 + g * vs
            rates.append((vs, new))
        eq, ev = (h * sum(w * f[k] for w, f in zip(tableau.E.tolist(), rates)) for k in (0, 1))
        ev = ev - solve(qs, added * ev + g * K * eq, added)
        sweeps += 1
        error = norm(xp, eq + g * ev, ev, qs, vs, n)
        if error < 1:
            before, loss = loss, float(D @ (vs * vs))
            lost += h * (before + loss) / 2
            q, v, a, t, steps = qs, vs, new, t + h, steps + 1
        h *= min(5.0, max(0.2, SAFETY * max(error, 1e-10) ** (-1 / 3)))
    return {"q": q, "v": v, "steps": steps, "sweeps": sweeps, "dissipated": lost}


def norm(xp: Any, dq: Any, dv: Any, q: Any, v: Any, n: int) -> float:
    q, v = dq / (RTOL / n + RTOL * xp.abs(q)), dv / (RTOL / n + RTOL * xp.abs(v))
    return sqrt(float(q @ q + v @ v) / (2 * n))


def balance(model: ts.Model, end: dict[str, Any], host: Callable[[Any], np.ndarray]) -> dict[str, float]:
    """Where the tip is, and the share of the released energy that is missing."""
    q, v = host(end["q"]), host(end["v"])
    released = ts.potential_energy(model, np.zeros(model.nq)) - ts.potential_energy(model, q)
    kept = ts.kinetic_energy(model, q, v) + float(model.stiffness @ q**2) / 2
    tip = ts.body_poses(model, q)[-1, :3, 3]
    return {"missing energy": float(abs(released - kept - end["dissipated"]) / released), "tip": tip.tolist()}


def on_device(out: dict[str, Any]) -> None:
    import cupy as cp

    from torsor.parallel.device import DeviceChain

    out["device"] = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    out["cupy"] = cp.__version__
    model = cable(LONG)
    chains = [DeviceChain(model, name, options=("added_inertia",)) for name in ("forward_dynamics", "mass_solve")]
    rng = np.random.default_rng(0)
    q, tau, added = 1e-4 * rng.normal(size=LONG), rng.normal(size=LONG), 10 ** rng.uniform(-2, 3, LONG)
    found = cp.asnumpy(chains[0](*map(cp.asarray, (q, 0 * q, tau, added))))
    exact = ts.forward_dynamics(model, q, 0 * q, tau, added_inertia=added)
    out["error of one solve"] = float(np.abs(found - exact).max() / np.abs(exact).max())
    fall(cable(2000), cp, *[DeviceChain(cable(2000), name, options=("added_inertia",)) for name in
                            ("forward_dynamics", "mass_solve")])  # fmt: skip
    begin = time.perf_counter()
    end = fall(model, cp, *chains)
    cp.cuda.get_current_stream().synchronize()
    seconds = time.perf_counter() - begin
    out["fall"] = {"links": LONG, "seconds": seconds, "target": TARGET, "met": seconds <= TARGET, "steps": end["steps"],
                   "sweeps": end["sweeps"], **balance(model, end, cp.asnumpy)}  # fmt: skip
    out["rollouts"] = {name: rollouts(cp, *case) for name, case in ROLLOUTS.items()}


ROLLOUTS = {
    "arm, servos of every trajectory": (lambda: ts.zoo.puma560(), "implicit", 50.0),
    "30 joints, loops": (lambda: ts.zoo.random_chain(30, 2), "implicit", 50.0),
    "arm, rk4": (lambda: ts.zoo.puma560(), "rk4", 0.05),
}


def rollouts(cp: Any, make: Callable[[], ts.Model], integrator: str, gain: float) -> float:
    """The largest difference between the GPU's and the CPU's rollouts, with gains that differ between trajectories."""
    model, rng = make(), np.random.default_rng(1)
    q, v, kp, kd, goal = rng.normal(size=(5, 70, model.nv))
    servo = ts.JointFeedback(gain * np.abs(kp), gain / 10 * np.abs(kd), goal)
    options: dict[str, Any] = dict(steps=20, dt=1e-3, every=5, feedback=servo, integrator=integrator)
    here = ts.rollout(model, 0.3 * q, 0.3 * v, **options)
    there = ts.rollout(model, cp.asarray(0.3 * q), cp.asarray(0.3 * v), **options)
    return float(max(np.abs(cp.asnumpy(y) - x).max() / np.abs(x).max() for x, y in zip(here, there)))


def on_host(out: dict[str, Any]) -> None:
    """The same schedule by the engine of the host."""
    model = cable(2000)
    inputs = {"forward_dynamics": ("q", "v", "tau", "added_inertia"), "mass_solve": ("q", "b", "added_inertia")}

    def solver(name: str) -> Solve:
        run = Solver(model, name, options=("added_inertia",))
        return lambda *arrays: run(dict(zip(inputs[name], arrays)))

    begin = time.perf_counter()
    end = fall(model, np, solver("forward_dynamics"), solver("mass_solve"))
    out["fall"] = {"links": 2000, "seconds": time.perf_counter() - begin, "steps": end["steps"],
                   "sweeps": end["sweeps"], **balance(model, end, np.asarray)}  # fmt: skip


def main() -> None:
    folder, host = Path(sys.argv[1]), "--host" in sys.argv[2:]
    out: dict[str, Any] = {"name": "gpu_stiff"}
    (on_host if host else on_device)(out)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "gpu_stiff.json", out)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
