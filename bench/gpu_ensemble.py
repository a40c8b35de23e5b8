"""Many different machines on an NVIDIA GPU: forward dynamics of a `ModelBatch`, and ensembles.

    python bench/gpu_ensemble.py [--quick] [--out FOLDER]        needs CuPy; --quick: only the forward dynamics

Every state has a model of its own.  The last 64 are checked against float64 results of the reference engine, model by
model; outputs are poisoned with NaN before the run that is checked.  Writes gpu_ensemble.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gpu import median_ms, warm_up

import torsor as ts
from torsor import reference
from torsor.algorithms import articulated
from torsor.backends.gpu import columns, compile_cuda
from torsor.compiler.members import members
from torsor.compiler.request import ON_GPU, Request

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the forward dynamics")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    options = parser.parse_args()
    import cupy as cp

    report: dict[str, Any] = {"device": cp.cuda.runtime.getDeviceProperties(0)["name"].decode(), "cupy": cp.__version__}
    warm_up(cp)
    report["forward_dynamics"] = [row for case in CASES for row in forward_dynamics(cp, *case)]
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu_ensemble.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
