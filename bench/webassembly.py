"""WebAssembly: functions in Node against the exported C through clang -O3, and pages that compute, in Chromium."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import zlib
from base64 import b64decode
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from harness import Claim, Report, Row, progress

import torsor as ts
from torsor import zoo
from torsor.backends.wasm import Module, WasmKernel
from torsor.dynamics.blocks import random_states
from torsor.view.browser import Browser
from torsor.view.machine import STEPS
from torsor.view.page import live_scene, page

MACHINES = {"panda": zoo.panda, "humanoid": zoo.humanoid}
FUNCTIONS = (ts.forward_dynamics, ts.inverse_dynamics, ts.mass_matrix)
# what `zoo.get` takes, and in how many seconds the page is meant to be made
PAGES: dict[str, tuple[tuple[Any, ...], float | None]] = {
    "panda": (("panda",), 1.0), "humanoid": (("humanoid",), 2.0), "rope of 100 links": (("rope", 100), None),
}  # fmt: skip
MAKE = """
import sys, time, torsor as ts
import llvmlite.binding, matplotlib
model = ts.zoo.get(*{})
ts.simulate, model.view
begin = time.process_time()
model.view(path=sys.argv[1], live=True)
print(time.process_time() - begin)
"""
# a page that is drawn again and again leaves little time: several frames one after the other, without drawing
FRAMES = """((method, rounds) => {
  const { machine } = torsor, times = [], steps = Math.round(1 / 60 / machine.x.h[0]);
  torsor.setPlaying(false);
  torsor.reset();
  const frames = (count) => { for (let i = 0; i < count * steps; i++) machine.step(method); };
  frames(60);
  for (let k = 0; k < rounds; k++) {
    const begin = performance.now();
    frames(50);
    times.push((performance.now() - begin) / 5e4);
  }
  return times;
})(%r, %d)"""

# What the exported C needs of libm: WebAssembly has no fused multiply-add.
MATH = """
double sin(double); double cos(double);
static inline double fma(double a, double b, double c) { return a * b + c; }
static inline double fabs(double x) { return __builtin_fabs(x); }
"""
CALL = """
#include "{name}.h"
static double {arrays};
double *place(int k) {{ double *places[] = {{{names}}}; return places[k]; }}
void run(void) {{ {name}({names}); }}
"""
LINKED = "-Wl,--no-entry", "-Wl,--allow-undefined", "-Wl,--export=run", "-Wl,--export=place"
CLANG = ("clang", "--target=wasm32", "-O3", "-mbulk-memory", "-nostdlib", *LINKED)

NODE = """
const { readFileSync } = require("fs"), [file, rounds] = process.argv.slice(1), jobs = JSON.parse(readFileSync(file));
const env = { sin: Math.sin, cos: Math.cos };
const made = jobs.map(({ ours, theirs, states, places, size }) => {
  const load = (path) => new WebAssembly.Instance(new WebAssembly.Module(readFileSync(path)), { env }).exports;
  const a = load(ours), b = load(theirs);
  const view = (exports, at, n) => new Float64Array(exports.memory.buffer, at, n);
  states.forEach((x, k) => { view(a, places[k], x.length).set(x); view(b, b.place(k), x.length).set(x); });
  return { ours: a.run, theirs: b.run, out: [view(a, places.at(-1), size), view(b, b.place(states.length), size)] };
});
const time = (run, count) => {
  const begin = process.hrtime.bigint();
  for (let i = 0; i < count; i++) run();
  return Number(process.hrtime.bigint() - begin) / count * 1e-9;
};
process.stdout.write(JSON.stringify(made.map(({ ours, theirs, out }) => {
  [ours, theirs].forEach((run) => time(run, 20000)); // until it is compiled for good
  const largest = Math.max(...out[1].map(Math.abs));
  const count = Math.ceil(2e-3 / time(ours, 1000)), times = { ours: [], theirs: [] };
  for (let k = 0; k < 5 * rounds; k++) { times.ours.push(time(ours, count)); times.theirs.push(time(theirs, count)); }
  return { ...times, difference: Math.max(...out[0].map((x, k) => Math.abs(x - out[1][k]))) / largest };
})));
"""


def measure(rounds: int) -> Report:
    report = Report("webassembly", "WebAssembly and pages that compute")
    _against_clang(report, rounds)
    for name, (words, most) in PAGES.items():
        progress(name)
        _made(report, name, words, most)
        _in_chromium(report, name, words, rounds)
    return report


# ---- functions ----


def _against_clang(report: Report, rounds: int) -> None:
    """Each function of a machine, as torsor's module and as clang's of the exported C, in turn in one process."""
    with tempfile.TemporaryDirectory() as folder:
        cases = [(name, make(), f) for name, make in MACHINES.items() for f in FUNCTIONS]
        jobs = [_job(Path(folder) / str(k), model, f) for k, (_, model, f) in enumerate(cases)]
        (file := Path(folder) / "jobs.json").write_text(json.dumps(jobs))
        done = subprocess.run(["node", "-e", NODE, file, str(rounds)], capture_output=True, text=True, check=True)
    for (name, _, f), found in zip(cases, json.loads(done.stdout)):
        if not found["difference"] < 1e-10:
            raise AssertionError(f"{f.__name__} of {name} differs by {found['difference']:.1e}")
        times = {"clang -O3 of the exported C": found["theirs"], "torsor": found["ours"]}
        ratios = [low(found["theirs"]) / low(found["ours"]) for low in (min, statistics.median)]
        for contender, x in times.items():
            own = contender == "torsor"
            report.rows.append(Row(
                f"{f.__name__}, {name}, Node", contender, "s per call", min(x), statistics.median(x),
                "clang -O3 of the exported C", *(ratios if own else (1.0, 1.0)), 1 / 1.2 if own else None,
                found["difference"] if own else 0.0,
            ))  # fmt: skip


def _job(folder: Path, model: ts.Model, f: Callable[..., Any]) -> dict[str, Any]:
    """Both modules of a function, and a state."""
    program, module = ts.compile(model, f), Module()
    exported = module.export("run", WasmKernel.of(program.request))
    arrays = [*exported.inputs.values(), exported.out]
    ts.export(model, f, folder, name="of_c")
    (folder / "math.h").write_text(MATH)
    names = [f"a{k}" for k in range(len(arrays))]
    sizes = ", ".join(f"{name}[{prod(x.shape)}]" for name, x in zip(names, arrays))
    (folder / "call.c").write_text(CALL.format(name="of_c", arrays=sizes, names=", ".join(names)))
    ours, theirs = folder / "ours.wasm", folder / "theirs.wasm"
    ours.write_bytes(module.to_bytes())
    subprocess.run([*CLANG, f"-I{folder}", "-o", theirs, folder / "of_c.c", folder / "call.c"], check=True)
    states = [x[0].ravel().tolist() for x in random_states(program, 1)]
    places = [x.at for x in arrays]
    return dict(ours=str(ours), theirs=str(theirs), states=states, places=places, size=prod(exported.out.shape))


# ---- pages ----


def _made(report: Report, name: str, words: tuple[Any, ...], most: float | None) -> None:
    """The sizes of a page, and the time in which a new process makes it, imports not counted."""
    scene = live_scene(zoo.get(*words))
    module, text = b64decode(scene.data["machine"]["module"]), page(scene).encode()
    report.claims.append(Claim(f"{name}: module, deflated, kB", len(module) / 1e3, at_most=20))
    report.claims.append(Claim(f"{name}: page, kB", len(text) / 1e3, at_most=400))
    report.claims.append(Claim(f"{name}: page, deflated, kB", len(zlib.compress(text, 9)) / 1e3, at_most=200))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", MAKE.format(words), Path(folder) / "page.html"]
        times = [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3)]
    report.claims.append(Claim(f"{name}: page made in, s of one core", min(times), at_most=most))


def _in_chromium(report: Report, name: str, words: tuple[Any, ...], rounds: int) -> None:
    """Until a page is ready in Chromium without a graphics card, and what the dynamics of a frame take there."""
    ready, found = list[float](), dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as folder:
        path = zoo.get(*words).view(path=Path(folder) / "page.html", live=True)
        for _ in range(3):
            with Browser(path) as browser:
                ready.append(browser.evaluate("performance.getEntriesByName('ready')[0].startTime") / 1e3)
                found = {method: browser.evaluate(FRAMES % (method, rounds)) for method in STEPS}
    report.claims.append(Claim(f"{name}: page ready in Chromium with software GL, s", min(ready), at_most=2))
    for method, times in found.items():
        row = f"{name}: dynamics of a frame of 1/60 s, Chromium"
        report.rows.append(Row(row, method, "s", min(times), statistics.median(times)))
        report.claims.append(Claim(f"{row}, {method}, ms", 1e3 * min(times), at_most=4))
