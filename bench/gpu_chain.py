"""One long chain on a GPU: forward dynamics, M^-1 b and log det M by the log-depth schedule, in float64.

    python bench/gpu_chain.py reference FOLDER     where torsor's CPU compiler runs: the answers to compare with
    python bench/gpu_chain.py measure FOLDER OUT   where the GPU is: checks every answer, then times

Writes OUT/gpu_chain.json.  Times are medians of CUDA events around one run of the recorded graph, inputs copied
into place on the device included; every run gets other inputs, and the output is poisoned before it.
"""

import json
from pathlib import Path

import numpy as np
from harness import cupy, words, write

import torsor as ts

SIZES = [2**10, 2**14, 2**17, 2**20]
STATES = 2
TARGETS = {2**10: 0.15, 2**14: 0.2, 2**17: 0.4, 2**20: 2.0}  # milliseconds


def chain(n: int) -> ts.Model:
    """Links of a metre, axes turned by a right angle one against the next, masses and inertias at random."""
    rng = np.random.default_rng(n)
    turn = rng.choice([-1.0, 1.0], n)
    R = np.zeros((n, 3, 3))
    R[:, 0, 0], R[:, 1, 2], R[:, 2, 1] = 1.0, -turn, turn
    p = np.zeros((n, 3))
    p[1:, 0] = 1.0
    com = rng.uniform(-0.1, 0.1, (n, 3)) + np.array([0.5, 0.0, 0.0])
    return ts.Model.chain(R=R, p=p, mass=rng.uniform(0.5, 1.5, n), com=com, inertia=rng.uniform(0.1, 0.15, (n, 3)))


def states(n: int, k: int) -> list[np.ndarray]:
    rng = np.random.default_rng((n, k))
    return [rng.uniform(-np.pi, np.pi, n), rng.normal(size=n) * 0.01, rng.uniform(-1, 1, n)]


def reference(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for n in SIZES:
        model = chain(n)
        answers = {}
        for k in range(STATES):
            q, v, tau = states(n, k)
            answers[f"forward_dynamics{k}"] = ts.forward_dynamics(model, q, v, tau)
            answers[f"mass_solve{k}"] = ts.mass_solve(model, q, tau)
            answers[f"log_det{k}"] = np.atleast_1d(ts.log_det_mass_matrix(model, q))
        np.savez(folder / f"chain{n}.npz", **answers)
        print(f"reference answers for {n} links", flush=True)


def measure(folder: Path, out: Path) -> None:
    cp = cupy(__doc__)

    from torsor.parallel.device import DeviceChain
    from torsor.parallel.solver import INPUTS, OUTPUTS

    rows = []
    for n in SIZES:
        model, answers = chain(n), np.load(folder / f"chain{n}.npz")
        for function, names in INPUTS.items():
            device = DeviceChain(model, function)
            inputs = []
            worst = 0.0
            for k in range(STATES):
                q, v, tau = (cp.asarray(x) for x in states(n, k))
                inputs.append([{"q": q, "v": v}.get(name, tau) for name in names])
                device.engine.buffers[OUTPUTS[function]].fill(cp.nan)
                result = np.atleast_1d(device(*inputs[-1]).get())
                expected = answers[f"{function}{k}"]
                worst = max(worst, float(np.abs(result - expected).max() / np.abs(expected).max()))
            times = []
            for k in range(60):
                device.engine.buffers[OUTPUTS[function]].fill(cp.nan)
                start, end = cp.cuda.Event(), cp.cuda.Event()
                start.record()
                device.engine.fill(dict(zip(device.inputs, inputs[k % STATES])))
                device.engine.launch()
                end.record()
                end.synchronize()
                times.append(cp.cuda.get_elapsed_time(start, end))
            schedule = device.engine.schedule
            rows.append({
                "links": n, "function": function, "ms": float(np.median(times[10:])), "ms_min": min(times[10:]),
                "relative_error": worst, "levels": schedule.depth,
                "launches": sum(len(x.tasks) for x in schedule.levels), "operations": schedule.work,
                "buffers_MB": sum(schedule.sizes.values()) * 8 / 1e6,
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    device_name = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    report = {"device": device_name, "cupy": cp.__version__, "targets_ms": TARGETS, "rows": rows}
    write(out / "gpu_chain.json", report)


if __name__ == "__main__":
    what, *folders = words(__doc__, 2)
    if what == "reference":
        reference(Path(folders[0]))
    else:
        measure(Path(folders[0]), Path(folders[1]))
