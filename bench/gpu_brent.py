"""One long chain by levels on p multiprocessors of a GPU, against Brent's bound and one core of the host.

    python bench/gpu_brent.py [--out FOLDER]

needs CuPy.  W operations of which D wait for each other take p processors at most W/p + D (1 - 1/p) steps (Brent 1974;
see `brent.py`).  Here a processor is a multiprocessor.  To measure p of them, the others are kept busy by one block
each that holds all their registers and only waits.  Writes gpu_brent.json: for each length the time on 1, 4, ... and
all multiprocessors, the bound from the time of one, and the sweeps and segments of one core of the host.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, cupy, write

import torsor as ts
from torsor.parallel.device import DeviceChain
from torsor.parallel.segments import Segments

EXPONENTS = (10, 12, 14, 16, 18, 20)
SOME = (1, 4, 16, 64)  # multiprocessors, and then all of them
SLOW = 0.01  # rad/s: accelerations of long chains stay of the size of the torques'
ROUNDS = 15
STATES = 3
AGREE = 1e-9  # velocities add up along the chain, and so do the terms that differ in their last digits
HELD = 72  # numbers of a thread that waits: with 1024 threads, more than all registers of a multiprocessor
LIMIT = 20_000_000_000  # ns that a block waits at most

WAITING = f"""
extern "C" __global__ void __launch_bounds__(1024, 1) wait(volatile int* stop, volatile int* running, float* numbers) {{
  float x[{HELD}];
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  #pragma unroll
  for (int k = 0; k < {HELD}; ++k) x[k] = numbers[threadIdx.x + k];
  if (threadIdx.x == 0) running[blockIdx.x] = 1;
  do {{
    #pragma unroll
    for (int k = 0; k < {HELD}; ++k) x[k] = x[k] * 0.5f + x[({HELD} - k) % {HELD}];
    __nanosleep(1000);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  }} while (!*stop && now - begin < {LIMIT}ull);
  #pragma unroll
  for (int k = 0; k < {HELD}; ++k) numbers[threadIdx.x + k] = x[k];
}}
"""


class Busy:
    """All multiprocessors but p are kept busy, while this is open."""

    def __init__(self, cp: Any, count: int) -> None:
        self.cp, self.count = cp, count
        self.kernel = cp.RawKernel(WAITING, "wait")
        assert self.kernel.num_regs == 64, f"a waiting thread holds {self.kernel.num_regs} registers, not 64"
        memory = cp.cuda.alloc_pinned_memory(4 * (count + 1))
        self.memory, self.words = memory, np.frombuffer(memory, np.int32, count + 1)
        self.stop, self.running = np.uint64(memory.ptr), np.uint64(memory.ptr + 4)
        self.numbers = cp.zeros(1024 + HELD, cp.float32)
        self.stream = cp.cuda.Stream(non_blocking=True)

    def __enter__(self) -> None:
        self.words[:] = 0
        if self.count:
            with self.stream:
                self.kernel((self.count,), (1024,), (self.stop, self.running, self.numbers))
            begin = time.perf_counter()
            while (running := int(self.words[1:].sum())) < self.count:
                assert time.perf_counter() - begin < 5, f"{running} of {self.count} blocks run"

    def __exit__(self, *_: Any) -> None:
        self.words[0] = 1
        self.stream.synchronize()


def states(n: int) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(n)
    return [[scale * x for scale, x in zip((1.0, SLOW, 1.0), rng.normal(size=(3, n)))] for _ in range(STATES)]


def on_device(cp: Any, chain: DeviceChain, given: list[list[Any]], busy: Busy) -> list[float]:
    """Seconds per call, inputs copied into place included."""
    times, stream = [], cp.cuda.Stream(non_blocking=True)
    with stream, busy:
        for k in range(ROUNDS + 3):
            start, end = cp.cuda.Event(), cp.cuda.Event()
            start.record()
            chain.engine.fill(dict(zip(chain.inputs, given[k % STATES])))
            chain.engine.launch()
            end.record()
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(start, end) * 1e-3)
    return times[3:]


def on_host(call: Callable[[list[np.ndarray]], Any], given: list[list[np.ndarray]]) -> list[float]:
    times = []
    for k in range(ROUNDS + 3):
        begin = time.perf_counter()
        call(given[k % STATES])
        times.append(time.perf_counter() - begin)
    return times[3:]


def measured(cp: Any, k: int) -> list[dict[str, Any]]:
    """Rows of one length."""
    n = 2**k
    model, given = ts.zoo.general_arm(n, 1), states(n)
    sweeps = ts.compile(model, ts.forward_dynamics, specialised=False, lanes=1)
    segments, chain = Segments(model), DeviceChain(model)
    there = [[cp.asarray(x) for x in some] for some in given]
    exact = sweeps(*given[0])
    for found in (cp.asnumpy(chain(*there[0])), segments(dict(zip(("q", "v", "tau"), given[0])))):
        assert np.abs(found - exact).max() <= AGREE * np.abs(exact).max()
    rows = [
        {"links": n, "where": "host, sweeps", **spread(on_host(lambda x: sweeps(*x), given))},
        {
            "links": n, "where": "host, segments",
            **spread(on_host(lambda x: segments(dict(zip(("q", "v", "tau"), x))), given)),
        },
    ]  # fmt: skip
    plan, every = chain.engine.schedule, cp.cuda.Device().attributes["MultiProcessorCount"]
    share = plan.critical_path / plan.work
    found = {p: spread(on_device(cp, chain, there, Busy(cp, every - p))) for p in (*SOME, every)}
    for p, took in found.items():
        bound = found[1]["min"] * (1 / p + (1 - 1 / p) * share)
        rows.append(
            {"links": n, "where": "device", "multiprocessors": p, **took, "bound": bound, "over": took["min"] / bound}
        )
    rows.append({"links": n, "where": "counts", "work": plan.work, "share": share, "levels": plan.depth})
    return rows


def spread(times: list[float]) -> dict[str, float]:
    return {"min": min(times), "median": float(np.median(times))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=str(RESULTS))
    options = parser.parse_args()
    cp = cupy(__doc__)
    name = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    report: dict[str, Any] = {"device": name, "cupy": cp.__version__, "unit": "s", "rows": []}
    for k in EXPONENTS:
        report["rows"] += (new := measured(cp, k))
        print(*map(json.dumps, new), sep="\n", flush=True)
        write(Path(options.out) / "gpu_brent.json", report)


if __name__ == "__main__":
    main()
