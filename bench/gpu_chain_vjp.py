"""The vjp of one long chain on a GPU: forward dynamics by levels and their adjoint, one CUDA graph, in float64.

    python bench/gpu_chain_vjp.py reference FOLDER             where torsor's CPU compiler runs: the sweeps' adjoint
    python bench/gpu_chain_vjp.py measure FOLDER OUT [RUN ..]  where the GPU is: checks every answer, then times

Writes OUT/gpu_chain_vjp.json.  Times are medians of CUDA events around one run of the recorded graph, inputs copied
into place on the device included; every run gets other inputs, and the outputs are poisoned before it.  RUN: how many
bodies one operation condenses (8, as in `parallel/chain.py`).
"""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from gpu_chain import SIZES, STATES, chain, states
from harness import cupy, words, write

import torsor as ts
from torsor.parallel.chain import RUN

TARGET = 3.0  # milliseconds, at 2^20 links
AGREE = 1e-11  # `torsor.dynamics.accuracy.LEVELS`
ROUNDS, WARM = 40, 8


def inputs(n: int, k: int) -> list[np.ndarray]:
    return [*states(n, k), np.random.default_rng((n, k, 1)).normal(size=n)]


def reference(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for n in SIZES:
        found = ts.vjp(ts.forward_dynamics)(chain(n), *inputs(n, 0))
        np.savez(folder / f"chain_vjp{n}.npz", **found._asdict())
        print(f"reference answers for {n} links", flush=True)


def measure(folder: Path, out: Path, runs: list[int]) -> None:
    cp = cupy(__doc__)

    from torsor.parallel.device import DeviceChain

    rows = []
    for run in runs:
        for n in SIZES:
            device = DeviceChain(chain(n), vjp=True, run=run)
            given = [[cp.asarray(x) for x in inputs(n, k)] for k in range(STATES)]
            expected = np.load(folder / f"chain_vjp{n}.npz")
            found = dict(zip(("q", "v", "tau"), device(*given[0])))
            errors = {name: _error(x.get(), expected[name]) for name, x in found.items()}
            times = _times(cp, device, given)
            row = {"links": n, "run": run, "ms": float(np.median(times)), "ms_min": min(times), "errors": errors,
                   "levels": device.engine.schedule.depth}  # fmt: skip
            if n == SIZES[-1]:
                row |= {"wanted": TARGET, "slowest launches": _slowest(cp, device.engine)}
                row["buffers_MB"] = sum(device.engine.schedule.sizes.values()) * 8 / 1e6
            rows.append(row)
            print(json.dumps(row), flush=True)
            assert max(errors.values()) < AGREE
            del device
            cp.get_default_memory_pool().free_all_blocks()
    if find_spec("llvmlite"):
        _public(cp, chain(SIZES[0]), expected=np.load(folder / f"chain_vjp{SIZES[0]}.npz"))
    else:
        print("ts.vjp of CuPy arrays was not checked: it tries the levels once against the CPU, which needs llvmlite")
    name = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    write(out / "gpu_chain_vjp.json", {"device": name, "rows": rows})


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _times(cp, device, given) -> list[float]:
    times = []
    for k in range(ROUNDS):
        for name in device.outputs:
            device.engine.buffers[name].fill(cp.nan)
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        device.engine.fill(dict(zip(device.inputs, given[k % len(given)])))
        device.engine.launch()
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, end))
    assert all(bool(cp.isfinite(device.engine.buffers[name]).all()) for name in device.outputs)
    return times[WARM:]


def _slowest(cp, engine) -> dict[str, float]:
    """Milliseconds of the slowest levels, each launch on its own."""
    tasks = [(level.name, task) for level in engine.schedule.levels for task in level.tasks]
    total: dict[str, float] = {}
    for (name, _), (kernel, lanes, arguments) in zip(tasks, engine._launches, strict=True):
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        kernel((-(-lanes // 64),), (64,), arguments)
        end.record()
        end.synchronize()
        total[name] = total.get(name, 0.0) + cp.cuda.get_elapsed_time(start, end)
    return dict(sorted(total.items(), key=lambda x: -x[1])[:20])


def _public(cp, model: ts.Model, expected) -> None:
    found = ts.vjp(ts.forward_dynamics)(model, *(cp.asarray(x) for x in inputs(model.n, 0)))
    worst = max(_error(x.get(), expected[name]) for name, x in found._asdict().items())
    print(f"ts.vjp of CuPy arrays: {worst:.1g}")
    assert worst < AGREE


if __name__ == "__main__":
    what, folder, *rest = words(__doc__, 2)
    if what == "reference":
        reference(Path(folder))
    else:
        measure(Path(folder), Path(rest[0]), [int(x) for x in rest[1:]] or [RUN])
