"""Dynamics on an NVIDIA GPU: states per second, checked against float64 results computed on a CPU.

    python bench/gpu.py [--quick] [--out FOLDER]        needs CuPy; JAX and PyTorch are used where they are there
    python bench/gpu.py --references                    writes bench/gpu_reference.npz, on any machine with torsor

Inputs are random, outputs are poisoned with NaN before the run that is checked, and every time is the median of
several, between CUDA events.  The two floors of each case are the bytes it must move over the bandwidth of a copy,
and its arithmetic instructions over the rate of a kernel that does nothing else, both measured in the same run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from harness import cupy, write

import torsor as ts
from torsor.backends.cuda import Launch
from torsor.backends.cuda_prelude import OPTIONS, prelude
from torsor.compiler.language import fuse

HERE = Path(__file__).parent
REFERENCES = HERE / "gpu_reference.npz"
STATES = 64  # with a known result, scattered among the others
RUNS, QUEUED = 11, 10
TOLERANCE = {"float64": 1e-10, "float32": 2e-3}  # relative, of the worst state; single precision loses digits with M

MODELS: dict[str, Callable[[], ts.Model]] = {
    "PUMA 6R": ts.zoo.puma_saha,
    "general 7R": lambda: ts.zoo.general_arm(7),
    "Panda-like 7R": ts.zoo.panda,
    "general 20R": lambda: ts.zoo.general_arm(20),
    "general 40R": lambda: ts.zoo.general_arm(40),
    "humanoid": ts.zoo.humanoid,
}
FUNCTIONS = {
    "forward_dynamics": ts.forward_dynamics, "inverse_dynamics": ts.inverse_dynamics,
    "mass_matrix": ts.mass_matrix, "inverse_mass_matrix": ts.inverse_mass_matrix,
    "vjp(forward_dynamics)": ts.vjp(ts.forward_dynamics), "jvp(forward_dynamics)": ts.jvp(ts.forward_dynamics),
    "vjp(inverse_dynamics)": ts.vjp(ts.inverse_dynamics),
    "forward_dynamics_derivatives": ts.forward_dynamics_derivatives,
    "inverse_dynamics_derivatives": ts.inverse_dynamics_derivatives, "torque_regressor": ts.torque_regressor,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    model: str
    function: str = "forward_dynamics"
    dtype: str = "float32"
    trig: str = "accurate"
    specialised: bool | None = None
    target: float = 0.0  # billion states per second that are wanted
    count: int = 2**22

    @property
    def label(self) -> str:
        how = {None: "", True: ", unrolled", False: ", looped"}[self.specialised]
        trig = f", {self.trig}" if self.dtype == "float32" else ""
        return f"{self.model}, {self.function}, {self.dtype}{trig}{how}"


CASES = [
    Case("PUMA 6R", trig="accurate", target=8),
    Case("PUMA 6R", trig="fast", target=15),
    Case("PUMA 6R", dtype="float64", target=2.5),
    Case("general 7R", trig="accurate", target=5),
    Case("general 7R", trig="fast", target=9),
    Case("general 7R", dtype="float64", target=2.5),
    Case("humanoid", specialised=True, target=0.3, count=2**20),
    Case("humanoid", specialised=True, trig="fast", count=2**20),
    Case("humanoid", specialised=True, dtype="float64", count=2**20),
    Case("humanoid", specialised=False, count=2**20),
    Case("general 7R", specialised=False),
    Case("general 20R", specialised=True, count=2**20),
    Case("general 20R", specialised=False, count=2**20),
    Case("general 40R", specialised=True, count=2**20),
    Case("general 40R", specialised=False, count=2**20),
    Case("Panda-like 7R", "inverse_dynamics", target=5),
    Case("Panda-like 7R", "mass_matrix", target=2),
    Case("Panda-like 7R", "inverse_mass_matrix", target=1),
    Case("general 7R", "inverse_dynamics", target=5),
    Case("general 7R", "mass_matrix", target=2),
    Case("general 7R", "inverse_mass_matrix", target=1),
    Case("general 7R", "vjp(forward_dynamics)", target=6),
    Case("general 7R", "vjp(forward_dynamics)", trig="fast"),
    Case("general 7R", "vjp(forward_dynamics)", dtype="float64"),
    Case("general 7R", "jvp(forward_dynamics)"),
    Case("general 7R", "vjp(inverse_dynamics)"),
    Case("general 7R", "vjp(forward_dynamics)", specialised=False),
    Case("humanoid", "vjp(forward_dynamics)", specialised=False, count=2**20),
    Case("general 7R", "forward_dynamics_derivatives", target=2),
    Case("general 7R", "forward_dynamics_derivatives", dtype="float64"),
    Case("general 7R", "inverse_dynamics_derivatives"),
    Case("Panda-like 7R", "forward_dynamics_derivatives"),
    Case("Panda-like 7R", "torque_regressor", count=2**20),
    Case("humanoid", "forward_dynamics_derivatives", specialised=False, count=2**16),
]


@dataclass(frozen=True)
class RolloutCase:
    model: str
    method: str
    dtype: str
    count: int
    steps: int = 20
    target: float = 0.0  # billion steps per second

    @property
    def key(self) -> str:
        return f"{self.model}/rollout {self.method} {self.steps}"

    def options(self, tau: np.ndarray) -> dict[str, Any]:
        """Of a rollout with torques for every trajectory."""
        lengths = {"steps": self.steps, "every": self.steps, "step": STEP}
        return {"method": self.method, "forces": ts.Constant(tau), **lengths}


STEP = 1e-3
ROLLOUTS = [
    RolloutCase("PUMA 6R", "rk4", "float32", 2**20, target=1.5),
    RolloutCase("PUMA 6R", "semi-implicit", "float32", 2**20),
    RolloutCase("PUMA 6R", "rk4", "float64", 2**20),
    RolloutCase("humanoid", "rk4", "float32", 2**17),
]
LAUNCHES = [Launch(64, registers) for registers in (255, 128, 96, 80, 64)] + [Launch(128, 255), Launch(128, 80)]
QUICK = [Launch(64, 255)]


@dataclass
class Row:
    case: str
    layout: str
    launch: Launch
    registers: int
    spilled: int  # bytes of local memory a thread
    milliseconds: float
    billion_a_second: float
    error: float
    target: float
    floor_bytes: float  # billion a second, were the copy of its arrays all
    floor_operations: float  # billion a second, were its arithmetic all


@dataclass
class Report:
    device: str = ""
    copy_TB_a_second: float = 0.0
    instructions_T_a_second: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


# References --------------------------------------------------------------------------------------------------


def states(model: ts.Model, count: int, seed: int) -> dict[str, np.ndarray]:
    """Random states whose numbers are exact in single precision."""
    rng = np.random.default_rng(seed)
    q = model.random_configuration(rng, count).astype(np.float32)
    names = ("v", "tau", "qdd")
    return {"q": q} | {name: rng.normal(size=(count, model.nv)).astype(np.float32) for name in names}


def write_references() -> None:
    results = {}
    for name, make in MODELS.items():
        model = make()
        given = {k: x.astype(np.float64) for k, x in states(model, STATES, 1).items()}
        for function in FUNCTIONS.values():
            if name in ("humanoid", "general 20R", "general 40R") and "mass" in function.__name__:
                continue  # not measured, and large
            if any(word in function.__name__ for word in ("(", "derivatives", "regressor")):
                continue  # derivatives are computed where they are measured
            results[f"{name}/{function.__name__}"] = function(model, *(given[k] for k in inputs_of(function)))
    write_rollouts(results)
    np.savez_compressed(REFERENCES, **results)


def on_host(model: ts.Model, function: Callable[..., Any]) -> np.ndarray:
    """The results of a derivative for the reference states, all numbers of a state in one row."""
    given = {k: x.astype(np.float64) for k, x in states(model, STATES, 1).items()}
    result = function(model, *(given[k] for k in inputs_of(function)))
    return np.concatenate([x.reshape(STATES, -1) for x in result], axis=-1) if isinstance(result, tuple) else result


def write_rollouts(results: dict[str, np.ndarray]) -> None:
    for case in ROLLOUTS:
        model = MODELS[case.model]()
        given = {k: x.astype(np.float64) for k, x in states(model, STATES, 1).items()}
        path = ts.rollout(model, given["q"], given["v"], **case.options(given["tau"]))
        results[case.key] = np.concatenate([path.q[:, -1], path.v[:, -1]], axis=-1)


def inputs_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's inputs; of a derivative, those of random arrays that serve."""
    known = {
        "forward_dynamics": ("q", "v", "tau"), "inverse_dynamics": ("q", "v", "qdd"),
        "vjp(forward_dynamics)": ("q", "v", "tau", "qdd"), "vjp(inverse_dynamics)": ("q", "v", "qdd", "tau"),
        "jvp(forward_dynamics)": ("q", "v", "tau", "qdd", "v", "qdd"),
        "forward_dynamics_derivatives": ("q", "v", "tau"), "inverse_dynamics_derivatives": ("q", "v", "qdd"),
        "torque_regressor": ("q", "v", "qdd"),
    }  # fmt: skip
    return known.get(function.__name__, ("q",))


# Measuring ---------------------------------------------------------------------------------------------------


def median_ms(cp: Any, run: Callable[[], Any], samples: int = RUNS, queued: int = QUEUED) -> float:
    """Milliseconds of a run: the median over samples of several runs queued back to back.

    (One alone would count the time Python takes to queue it.)
    """
    run()
    times = []
    for _ in range(samples):
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        begin.record()
        for _ in range(queued):
            run()
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(begin, end) / queued)
    return float(np.median(times))


def warm_up(cp: Any, seconds: float = 1.0) -> None:
    """Work until the clock has risen."""
    a = cp.random.standard_normal((4096, 4096), dtype=cp.float32)
    begin = time.time()
    while time.time() - begin < seconds:
        a @ a
        cp.cuda.Device().synchronize()


SPIN_BLOCKS = 132 * 64
SPIN = """extern "C" __global__ void spin(T* p) {
  T x[8], s = 0;
  const T c = p[8], d = p[9];
  for (int k = 0; k < 8; ++k) x[k] = p[k];
  for (int i = 0; i < 512; ++i)
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = x[k] * c + d;
  for (int k = 0; k < 8; ++k) s += x[k];
  if (s == 12345) p[0] = s;
}"""


def ceilings(cp: Any, report: Report) -> None:
    """The bandwidth of a copy and the rate of multiply-adds."""
    a = cp.random.uniform(size=2**27).astype(cp.float32)
    b = cp.empty_like(a)
    report.copy_TB_a_second = 2 * a.nbytes / median_ms(cp, lambda: cp.copyto(b, a)) / 1e9
    for number, dtype in (("float", "float32"), ("double", "float64")):
        spin = cp.RawKernel(SPIN.replace("T", number), "spin")
        p = cp.random.uniform(size=16).astype(dtype)
        ms = median_ms(cp, lambda spin=spin, p=p: spin((SPIN_BLOCKS,), (256,), (p,)))
        report.instructions_T_a_second[dtype] = SPIN_BLOCKS * 256 * 512 * 8 / ms / 1e9


def inputs(cp: Any, case: Case, model: ts.Model, where: Any) -> list[Any]:
    """Random device arrays (count, n) of the case's type, the reference states scattered at `where`."""
    known = states(model, STATES, 1)
    arrays = []
    for name in inputs_of(FUNCTIONS[case.function]):
        size = model.nq if name == "q" else model.nv
        x = cp.random.standard_normal((case.count, size), dtype=cp.float32)
        if name == "q" and model.nq == model.nv:
            x = cp.random.uniform(-np.pi, np.pi, (case.count, size)).astype(cp.float32)
        x[where] = cp.asarray(known[name])
        arrays.append(x.astype(case.dtype))
    return arrays


def measure(cp: Any, case: Case, launches: list[Launch], report: Report, reference: Any) -> None:
    model = MODELS[case.model]()
    options: dict[str, Any] = dict(target="cuda", dtype=case.dtype, trig=case.trig, specialised=case.specialised)
    program = ts.compile(model, FUNCTIONS[case.function], **options)
    where = cp.asarray(np.random.default_rng(2).choice(case.count, STATES, replace=False))
    rows = inputs(cp, case, model, where)
    columns = [cp.ascontiguousarray(x.T).T for x in rows]
    key = f"{case.model}/{case.function}"
    expected = reference[key] if key in reference else on_host(model, FUNCTIONS[case.function])
    begin = time.time()
    kernel = program.kernel
    layouts = {"columns": (False,) * len(kernel.arrays), "rows": (True,) * len(kernel.arrays)}
    jobs = [(launch, layout) for launch in launches for layout in layouts.values()]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda job: program._function(*job), jobs))
    seconds = time.time() - begin
    size = int(np.prod(kernel.shape))
    moved = (sum(x.shape[1] for x in rows) + size) * np.dtype(case.dtype).itemsize
    counts = program.operations
    work = counts.mul + counts.add - (len(fuse(kernel.code)) if program.specialised else 0)
    for layout, arrays in (("columns", columns), ("rows", rows)):
        out = cp.empty((case.count, *kernel.shape), case.dtype)
        if layout == "columns":
            flat = cp.empty((size, case.count), case.dtype).T
            out = flat if len(kernel.shape) == 1 else cp.lib.stride_tricks.as_strided(
                flat, (case.count, *kernel.shape),
                (flat.strides[0], flat.strides[1] * kernel.shape[1], flat.strides[1]))  # fmt: skip
        for launch in launches:
            program.launch = launch
            out[...] = cp.nan
            try:
                program(*arrays, out=out)
            except Exception as error:
                print("failed", case.label, layout, launch, repr(error)[:300], flush=True)
                continue
            got = out[where].get().astype(np.float64)
            bad = int(cp.isnan(out).sum())
            worst = np.abs(got - expected).reshape(STATES, -1).max(1) / np.abs(expected).reshape(STATES, -1).max(1)
            error = float(worst.max())
            if bad or not error < TOLERANCE[case.dtype]:
                print("WRONG", case.label, layout, launch, bad, error, flush=True)
            ms = median_ms(cp, lambda arrays=arrays, out=out: program(*arrays, out=out))
            function, _ = program._function(launch, layouts[layout])
            rate = case.count / ms / 1e6
            report.rows.append(Row(
                case.label, layout, launch, function.num_regs, function.local_size_bytes, ms, rate, error, case.target,
                report.copy_TB_a_second * 1e3 / moved,
                report.instructions_T_a_second[case.dtype] * 1e3 / work,
            ))  # fmt: skip
        rows_of = [r for r in report.rows if r.case == case.label and r.layout == layout]
        if rows_of:
            best = max(rows_of, key=lambda r: r.billion_a_second)
            tried = (
                f"{r.launch.threads}/{r.launch.registers}:{r.billion_a_second:.2f}({r.registers},{r.spilled})"
                for r in rows_of
            )
            print(f"{case.label} [{layout}] {best.billion_a_second:.2f} G/s, error {best.error:.1e}, compiled in "
                  f"{seconds:.1f} s | {' '.join(tried)}", flush=True)  # fmt: skip
    del rows, columns
    cp.get_default_memory_pool().free_all_blocks()


def measure_rollout(cp: Any, case: RolloutCase, report: Report, reference: Any) -> None:
    """Steps a second, all of a trajectory's in one kernel; the end of the known trajectories is compared."""
    model = MODELS[case.model]()
    where = cp.asarray(np.random.default_rng(2).choice(case.count, STATES, replace=False))
    arrays = inputs(cp, Case(case.model, dtype=case.dtype, count=case.count), model, where)
    q, v, tau = (cp.ascontiguousarray(x.T).T for x in arrays)

    options = case.options(cp.asnumpy(tau))

    def run() -> ts.Trajectory:
        return ts.rollout(model, q, v, **options)

    result = run()
    end = np.concatenate([cp.asnumpy(x[where, -1]) for x in (result.q, result.v)], axis=-1)
    expected = reference[case.key]
    error = float(np.abs(end - expected).max() / np.abs(expected).max())
    ms = median_ms(cp, run)
    report.facts[f"rollout, {case.model}, {case.method}, {case.dtype}"] = {
        "billion_steps_a_second": case.count * case.steps / ms / 1e6, "target": case.target, "error": error,
    }  # fmt: skip
    cp.get_default_memory_pool().free_all_blocks()


# Other libraries ---------------------------------------------------------------------------------------------


def interoperation(cp: Any, report: Report, reference: Any) -> None:
    """The public function on arrays of each library, on a stream of the caller's."""
    model = MODELS["PUMA 6R"]()
    known = states(model, STATES, 1)
    given = [known[k] for k in ("q", "v", "tau")]
    expected = reference["PUMA 6R/forward_dynamics"]

    def check(name: str, result: Any, kind: type, back: Callable[[Any], np.ndarray]) -> None:
        error = float(np.abs(back(result) - expected).max() / np.abs(expected).max())
        report.facts[name] = {"type": type(result).__name__, "same kind": isinstance(result, kind), "error": error}

    def check_rollout(name: str, arrays: list[Any], kind: type, back: Callable[[Any], np.ndarray]) -> None:
        q, v, tau = arrays
        case = ROLLOUTS[0]
        path = ts.rollout(model, q, v, **case.options(back(tau)) | {"every": 10})
        end = np.concatenate([back(x)[:, -1] for x in (path.q, path.v)], axis=-1)
        error = float(np.abs(end - reference[case.key]).max() / np.abs(reference[case.key]).max())
        report.facts[f"{name}, rollout"] = {"same kind": isinstance(path.q, kind), "error": error}

    with cp.cuda.Stream(non_blocking=True):
        arrays = [cp.asarray(x) for x in given]
        check("CuPy", ts.forward_dynamics(model, *arrays), cp.ndarray, cp.asnumpy)
        check_rollout("CuPy", arrays, cp.ndarray, cp.asnumpy)
    walker = ts.zoo.humanoid()
    J = ts.jacobian(walker, cp.asarray(walker.neutral()), "left_palm")
    report.facts["Jacobian of a named frame"] = f"{type(J).__module__} {J.shape}"
    for make in (torch_arrays, jax_arrays):
        try:
            name, arrays, kind, back = make(given)
        except ImportError:
            continue
        try:
            check(name, ts.forward_dynamics(model, *arrays), kind, back)
            check_rollout(name, arrays, kind, back)
        except Exception as error:
            report.facts[name] = repr(error)[:400]


def odd_arrays(cp: Any, report: Report, reference: Any) -> None:
    """Layouts, broadcasting and types as they come; every answer is compared."""
    model, wanted = MODELS["PUMA 6R"](), reference["PUMA 6R/forward_dynamics"]
    q, v, tau = (cp.asarray(states(model, STATES, 1)[k]).astype(cp.float64) for k in ("q", "v", "tau"))
    fd = ts.compile(model, ts.forward_dynamics, target="cuda")
    external = ts.compile(model, ts.forward_dynamics, target="cuda", external=True)
    same = fd(q, v, cp.broadcast_to(tau[0], tau.shape))
    out = cp.full((STATES, 6), cp.nan)
    cases = {
        "rows": (fd(q, v, tau), wanted),
        "columns": (fd(*(cp.asfortranarray(x) for x in (q, v, tau))), wanted),
        "every second number": (fd(*(cp.repeat(x, 2, axis=1)[:, ::2] for x in (q, v, tau))), wanted),
        "every second row": (fd(*(cp.repeat(x, 2, axis=0)[::2] for x in (q, v, tau))), wanted),
        "two batch axes": (fd(*(x.reshape(8, 8, 6) for x in (q, v, tau))).reshape(-1, 6), wanted),
        "turned batch axes": (fd(*(x.reshape(8, 8, 6).swapaxes(0, 1) for x in (q, v, tau))),
                              wanted.reshape(8, 8, 6).swapaxes(0, 1)),
        "one torque for all": (fd(q, v, tau[0]), same.get()),
        "one state": (fd(q[3], v[3], tau[3]), wanted[3]),
        "no states": (fd(q[:0], v[:0], tau[:0]), wanted[:0]),
        "out=": (fd(q, v, tau, out=out), wanted),
        "no wrenches": (external(q, v, tau, cp.zeros((6, 6))), wanted),
        "single precision q": (fd(q.astype(cp.float32), v, tau), wanted),
    }  # fmt: skip
    for name, (got, expected) in cases.items():
        error = float(np.abs(got.get() - expected).max(initial=0.0) / np.abs(wanted).max())
        report.facts[f"arrays: {name}"] = error if got.shape == expected.shape else f"shape {got.shape}"


def trigonometry(cp: Any, report: Report) -> None:
    """The largest absolute errors of sine and cosine over a million angles."""
    for bits, trig in ((32, "accurate"), (32, "fast"), (64, "accurate")):
        body = "int i = blockIdx.x * 256 + threadIdx.x; if (i < n) turn(x[i], s[i], c[i]);"
        source = f'{prelude(bits, trig)}extern "C" __global__ void k(const T* x, T* s, T* c, int n) {{ {body} }}'
        kernel = cp.RawModule(code=source, options=OPTIONS).get_function("k")
        for most in (np.pi, 1e4):
            x = cp.random.uniform(-most, most, 2**20).astype(f"float{bits}")
            s, c = cp.empty_like(x), cp.empty_like(x)
            kernel((2**12,), (256,), (x, s, c, np.int32(x.size)))
            exact = x.get().astype(np.longdouble)
            worst = max(np.abs(s.get() - np.sin(exact)).max(), np.abs(c.get() - np.cos(exact)).max())
            report.facts[f"sine and cosine, float{bits}, {trig}, up to {most:.3g}"] = float(worst)


def tuning(cp: Any, report: Report) -> None:
    """What autotune finds is remembered by the next program of the same code."""
    model = MODELS["general 7R"]()
    where = cp.asarray(np.random.default_rng(2).choice(2**20, STATES, replace=False))
    arrays = inputs(cp, Case("general 7R", dtype="float64", count=2**20), model, where)
    found = ts.compile(model, ts.forward_dynamics, target="cuda").autotune(*arrays)
    again = ts.compile(model, ts.forward_dynamics, target="cuda").launch
    report.facts["autotune"] = {"found": repr(found), "remembered": again == found}


def torch_arrays(given: list[np.ndarray]) -> tuple[str, list[Any], type, Callable[[Any], np.ndarray]]:
    import torch

    return "PyTorch", [torch.from_numpy(x).cuda() for x in given], torch.Tensor, lambda x: x.cpu().numpy()


def jax_arrays(given: list[np.ndarray]) -> tuple[str, list[Any], type, Callable[[Any], np.ndarray]]:
    import jax

    return "JAX", [jax.device_put(x) for x in given], jax.Array, np.asarray


def jax_peer(cp: Any, report: Report, reference: Any) -> None:
    """The same forward dynamics as a vmapped JAX function of 6x6 matrices."""
    try:
        import jax
    except ImportError:
        return
    from jax_articulated_body import forward_dynamics

    model = MODELS["PUMA 6R"]()
    count = 2**20
    where = np.random.default_rng(2).choice(count, STATES, replace=False)
    arrays = [jax.device_put(cp.asnumpy(x)) for x in inputs(cp, Case("PUMA 6R", count=count), model, cp.asarray(where))]
    jax.config.update("jax_default_matmul_precision", "highest")  # not TF32: the same digits as ours
    function = jax.jit(jax.vmap(forward_dynamics(model)))
    begin = time.time()
    result = np.asarray(function(*arrays))[where]
    compile_seconds = time.time() - begin
    expected = reference["PUMA 6R/forward_dynamics"]
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        function(*arrays).block_until_ready()
        times.append(time.perf_counter() - begin)
    rate = count / float(np.median(times)) / 1e9
    ours = [r.billion_a_second for r in report.rows if r.case == CASES[0].label]
    best = max(ours, default=float("nan"))
    report.facts["JAX vmap of 6x6"] = {
        "billion_a_second": rate, "compile_seconds": compile_seconds, "torsor is faster by": best / rate,
        "error": float(np.abs(result - expected).max() / np.abs(expected).max()),
    }  # fmt: skip


def table(report: Report) -> str:
    """The best launch of every case in both layouts."""
    rates = ", ".join(f"{k} {v:.1f} T multiply-adds/s" for k, v in report.instructions_T_a_second.items())
    lines = [f"{report.device}: copy {report.copy_TB_a_second:.2f} TB/s, {rates}"]
    lines.append(f"{'case':<62} {'columns':>8} {'rows':>8}  target   floors: bytes, operations")
    for label in dict.fromkeys(r.case for r in report.rows):
        best = {}
        for layout in ("columns", "rows"):
            found = [r for r in report.rows if r.case == label and r.layout == layout]
            best[layout] = max((r.billion_a_second for r in found), default=0.0)
        row = next(r for r in report.rows if r.case == label)
        lines.append(f"{label:<62} {best['columns']:8.2f} {best['rows']:8.2f}  {row.target:6.1f}   "
                     f"{row.floor_bytes:7.1f} {row.floor_operations:7.1f}")  # fmt: skip
    return "\n".join([*lines, *(f"{name}: {fact}" for name, fact in report.facts.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--references", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer launches")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--out", default=str(HERE / "results"))
    options = parser.parse_args()
    if options.references:
        return write_references()
    cp = cupy(__doc__)

    report = Report(device=cp.cuda.runtime.getDeviceProperties(0)["name"].decode())
    warm_up(cp)
    ceilings(cp, report)
    reference = np.load(REFERENCES)
    for case in CASES:
        if options.only in case.label:
            few = options.quick or MODELS[case.model]().nv >= 20  # long code takes its time to compile
            measure(cp, case, QUICK if few else LAUNCHES, report, reference)
    for rollout in ROLLOUTS:
        try:
            measure_rollout(cp, rollout, report, reference)
        except Exception as error:
            report.facts[rollout.key] = repr(error)[:600]
    for check in (trigonometry, tuning):
        check(cp, report)
    odd_arrays(cp, report, reference)
    interoperation(cp, report, reference)
    try:
        jax_peer(cp, report, reference)
    except Exception as error:
        report.facts["JAX vmap of 6x6"] = repr(error)[:400]
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "gpu.json", asdict(report))
    print(table(report))


if __name__ == "__main__":
    main()
