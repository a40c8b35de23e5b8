"""Many different machines on an NVIDIA GPU: forward dynamics of a `ModelBatch`, and ensembles.

    python bench/gpu_ensemble.py [--quick | --ensembles] [--out FOLDER]        needs CuPy

--quick: only forward dynamics; --ensembles: only ensembles.

Every state has a model of its own.  The last 64 are checked against float64 results of the reference engine, model by
model; outputs are poisoned with NaN before the run that is checked.  Motions are checked against the lanes of the
host.  Writes gpu_ensemble.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gpu import median_ms, warm_up
from harness import cupy, write

import torsor as ts
from torsor import reference
from torsor.algorithms import articulated
from torsor.backends.gpu import columns, compile_cuda
from torsor.compiler.request import ON_GPU, Request
from torsor.dynamics.members import members
from torsor.ensembles.device import GpuEngine
from torsor.ensembles.engine import STOPPED, LaneEngine, Timing
from torsor.motion.law import Law, collect

CHECKED = 64
TOLERANCE = {"float64": 1e-10, "float32": 2e-3}  # relative, of the worst state; single precision loses digits with M
WANTED = 2.0  # billion forward dynamics per second of a 7R in float32

MODELS: dict[str, Callable[[], ts.Model]] = {"general 7R": lambda: ts.zoo.general_arm(7), "Panda-like 7R": ts.zoo.panda}
CASES = [  # model, what varies, number type, members
    ("general 7R", "inertias", "float32", 2**20),
    ("Panda-like 7R", "inertias", "float32", 2**20),
    ("general 7R", "inertias and lengths", "float32", 2**18),
    ("general 7R", "inertias", "float64", 2**19),
]


def batch_of(model: ts.Model, what: str, count: int) -> ts.ModelBatch:
    factor = np.random.default_rng(0).uniform(0.9, 1.1, (count, model.n))
    fields = {"mass": model.mass * factor, "inertia": model.inertia * factor[..., None, None]}
    return ts.ModelBatch(model, **fields, **({"p": model.p * factor[..., None]} if "lengths" in what else {}))


def forward_dynamics(cp: Any, name: str, what: str, dtype: str, count: int) -> list[dict[str, Any]]:
    """Billions of states per second, for the public function and for the program with both layouts of the arrays."""
    model = MODELS[name]()
    batch = batch_of(model, what, count)
    found = members(batch)
    rng = np.random.default_rng(1)
    state = [rng.uniform(-2, 2, (count, 7)).astype(np.float32).astype(dtype) for _ in range(3)]
    last = ({name: x[k].tolist() for name, x in zip(("q", "v", "tau"), state)} for k in range(count - CHECKED, count))
    models = (batch[k] for k in range(count - CHECKED, count))
    expected = np.array([reference.evaluate(articulated.forward_dynamics, *case) for case in zip(models, last)])
    request = Request(articulated.forward_dynamics, model, options=tuple(found.inputs), dtype=dtype, unroll=ON_GPU,
                      members=found)  # fmt: skip
    program = compile_cuda(request)
    numbers = {
        "columns": [columns(x, x.ndim - 1, dtype) for x in found.inputs.values()],
        "rows": [cp.asarray(x, dtype) for x in found.inputs.values()],
    }
    device = {"columns": [columns(x, 1, dtype) for x in state], "rows": [cp.asarray(x) for x in state]}
    moved = sum(x.nbytes for x in (*numbers["rows"], *device["rows"], device["rows"][0])) / count
    rows = []
    runs: dict[str, Callable[[], Any]] = {
        f"program, {layout}": lambda layout=layout, out=out: program(*device[layout], *numbers[layout], out=out)
        for layout, out in (("columns", cp.empty((7, count), dtype).T), ("rows", cp.empty((count, 7), dtype)))
    }
    runs |= {f"ts.forward_dynamics, {layout}": lambda layout=layout: ts.forward_dynamics(batch, *device[layout])
             for layout in device}  # fmt: skip
    for how, run in runs.items():
        if how.startswith("program"):
            run()[...] = cp.nan
        got = cp.asnumpy(run()[-CHECKED:]).astype(float)
        error = float((np.abs(got - expected).max(1) / np.abs(expected).max(1)).max())
        rate = count / median_ms(cp, run) / 1e6
        row = {"case": f"{name}, {what} differ, {dtype}", "how": how, "members": count, "billion_per_second": rate,
               "wanted": WANTED if dtype == "float32" else None, "error": error, "ok": error < TOLERANCE[dtype],
               "bytes_per_state": moved}  # fmt: skip
        rows.append(row)
        print(f"{row['case']}, {how}: {rate:.2f} G/s, error {error:.1e}", flush=True)
    function = program._function(program.launch, (False,) * len(program.kernel.arrays))[0]
    rows[0] |= {"registers": function.num_regs, "spilled": function.local_size_bytes}
    cp.get_default_memory_pool().free_all_blocks()
    return rows


# Ensembles ---------------------------------------------------------------------------------------------------

SECOND = np.linspace(0.01, 1, 100)
MOVE = 1e-3, 1e-6, 1e-9  # step of fixed methods, rtol, atol
STEPS = {"rk4, steps of 1 ms": Timing(SECOND, "rk4", *MOVE), "dopri5, rtol 1e-6": Timing(SECOND, "dopri5", *MOVE)}
SOME, SHORT = 1, 10  # members that are moved on the host, too; rows of fixed steps that are compared
# Fixed steps differ by rounding, which a falling arm amplifies.  Adaptive ones may choose other steps.
NEAR = {"rk4": 1e-9, "dopri5": 1e-5}
MOVED = 2**17  # members per launch
STORED, THREADS = 2**17, 8  # members that are stored; threads of the host that draw and write


def falling(batch: ts.ModelBatch) -> tuple[Law, np.ndarray, np.ndarray]:
    """Free fall, from rest."""
    model, count = batch.model, batch.size
    return collect(batch), np.tile(model.neutral(), (count, 1)), np.zeros((count, model.nv))


def on_host(batch: ts.ModelBatch, timing: Timing, q: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The motion of the first members by lanes of the host."""
    some = ts.ModelBatch(batch.model, **{name: x[:SOME] for name, x in batch.varied.items()})
    return LaneEngine(some, collect(some), timing).run(q[:SOME], v[:SOME])[0]


def checks() -> list[dict[str, Any]]:
    """Motions on the device and on the host: straight-line code and loops, fixed and adaptive steps."""
    rows = []
    machines = {"Panda-like 7R": ts.zoo.panda(), "chain of 70, loops": ts.zoo.random_chain(70, 2)}
    for name, model in machines.items():
        batch = batch_of(model, "inertias and lengths", 100)
        law, q, v = falling(batch)
        for method in ("dopri5", "rk4", "semi-implicit", "implicit-euler"):
            timing = Timing(np.array([0.0, 0.002, 0.005])[method != "dopri5" :], method, *MOVE)
            got, status = GpuEngine(batch, law, timing).run(q, v)
            expected = on_host(batch, timing, q, v)
            error = float(np.abs(got[:SOME] - expected).max() / np.abs(expected).max())
            ok = bool((status == 1).all() and np.isfinite(got).all() and error < NEAR.get(method, 1e-9))
            rows.append({"case": f"{name}, {method}", "error": error, "ok": ok})
            print(rows[-1], flush=True)
    return rows


def stops() -> list[dict[str, Any]]:
    """Members that stop where a velocity passes a bound: they are at it, stay there, and moved as others before."""
    model, rows = ts.zoo.panda(), []
    batch = batch_of(model, "inertias and lengths", 100)
    law, q, v = falling(batch)
    for method, near in (("dopri5", 1e-9), ("rk4", 0.1)):
        timing = Timing(np.linspace(0.01, 0.2, 20), method, *MOVE)
        free, _ = GpuEngine(batch, law, timing).run(q, v)
        bound = 0.9 * np.abs(free[:, -1, 8]).min()
        watched = replace(timing, stops=(ts.Stop(v=1, below=-bound, above=bound),))
        got, status, when = GpuEngine(batch, law, watched).run(q, v)
        before = timing.times < when[:, None]
        error = float(np.abs(np.abs(got[:, -1, 8]) - bound).max() / bound)
        stays = np.where(before[..., None], free, got[:, -1:])
        ok = bool((got == stays).all() and (status == STOPPED).all() and error < near)
        rows.append({"case": f"stops, {method}", "error": error, "ok": ok})
        print(rows[-1], flush=True)
    return rows


def falls(cp: Any, folder: Path) -> list[dict[str, Any]]:
    """Members per second of 1 s of a falling Panda-like arm: moved on the device; drawn, moved, copied and stored."""
    model, rows = ts.zoo.panda(), []
    batch = batch_of(model, "inertias", MOVED)
    law, q, v = falling(batch)
    for name, timing in STEPS.items():
        row: dict[str, Any] = {"case": name, "members": MOVED}
        compared = timing if timing.adaptive else replace(timing, times=timing.times[:SHORT])
        expected = on_host(batch, compared, q, v)
        engine = GpuEngine(batch, law, timing)
        given, begin = engine.on_device(q, v), time.time()
        out, status = engine.moved(given)
        error = float(np.abs(cp.asnumpy(out[:SOME, : expected.shape[1]]) - expected).max())
        built = time.time() - begin
        rate = MOVED / median_ms(cp, lambda engine=engine, given=given: engine.moved(given), 5, 1) * 1e3
        function = engine.made["kernel"]
        row |= {
            "moved, members per second": rate, "seconds_to_build": built, "registers": function.num_regs,
            "spilled": function.local_size_bytes, "error": error,
            "ok": bool(error < NEAR[timing.method] and (cp.asnumpy(status) == 1).all()),
        }  # fmt: skip
        options: dict[str, Any] = {"method": timing.method, "duration": 1.0, "device": "cuda"}
        vary = {"*.density": ts.Uniform(low=0.9, high=1.1)}
        for kept, keep in {"all states": ("q", "v"), "the last q": "q:last"}.items():
            for threads in (1, THREADS):
                path = folder / f"{timing.method}.zarr"
                begin = time.time()
                with ThreadPoolExecutor(threads) as pool:
                    ts.ensemble(model, vary, n=STORED, store=path, chunk=STORED // 16, keep=keep, executor=pool,
                                **options)  # fmt: skip
                how = f"drawn, moved and stored ({kept}) by {threads} threads, members per second"
                row[how] = STORED / (time.time() - begin)
                shutil.rmtree(path)
        print(row, flush=True)
        rows.append(row)
        cp.get_default_memory_pool().free_all_blocks()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only forward dynamics")
    parser.add_argument("--ensembles", action="store_true", help="only ensembles")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    options = parser.parse_args()
    cp = cupy(__doc__)

    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "gpu_ensemble.json"
    report: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    report |= {"device": cp.cuda.runtime.getDeviceProperties(0)["name"].decode(), "cupy": cp.__version__}
    warm_up(cp)
    if not options.ensembles:
        report["forward_dynamics"] = [row for case in CASES for row in forward_dynamics(cp, *case)]
    if not options.quick:
        report["checks"] = [*checks(), *stops()]
        with tempfile.TemporaryDirectory() as stores:
            report["falls"] = falls(cp, Path(stores))
    write(file, report)


if __name__ == "__main__":
    main()
