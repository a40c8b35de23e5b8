"""Calls on a GPU: are they right, and what do they cost the host?  CuPy, PyTorch, JAX, and recorded graphs.

    python bench/gpu_calls.py [--checks] [--out FOLDER]

needs CuPy; uses PyTorch and JAX where they are there.  First the checks, against programs on the CPU: layouts, threads,
streams, derivatives of every order in every framework, CUDA graphs.  Then, unless --checks, the host's time per call
(4096 Pandas), and the throughput of values and gradients against the program itself.  Writes gpu_calls.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import cupy, write

import torsor as ts

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX leaves memory for the others
DEVICE = "cuda"  # PyTorch's name of it
TOLERANCE = 1e-9  # relative: bits are the same where no framework adds operations of its own
STATES, MANY, CALLS = 70, 4096, 2000
WANTED = {  # microseconds of the host per call
    "CuPy: Program": 10.0, "CuPy: Program, out=": 7.5, "CuPy: forward_dynamics": 14.0, "PyTorch: Program": 12.0,
    "JAX: torsor.jax.function, jitted": 12.0,
}  # fmt: skip
Pair = tuple[Any, Any]  # what was found, and what it should be


class Check(NamedTuple):
    """A case, and what computes pairs of arrays that have to agree."""

    case: str
    pairs: Callable[[], list[Pair]]
    tolerance: float = TOLERANCE

    def run(self) -> dict[str, Any]:
        row: dict[str, Any] = {"case": self.case}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DeprecationWarning)
                row["error"] = max(difference(a, b) for a, b in self.pairs())
            row["ok"] = bool(row["error"] <= self.tolerance)
        except Exception as error:
            row |= {"ok": False, "failure": f"{type(error).__name__}: {error}"[:600]}
        return row


def difference(found: Any, wanted: Any) -> float:
    """The largest, relative to the largest number."""
    a, b = (np.asarray(x, dtype=float) for x in (found, wanted))
    assert a.shape == b.shape, f"{a.shape}, not {b.shape}"
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300)) if b.size else 0.0


def states(model: ts.Model, count: int = STATES, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [model.random_configuration(rng, count), *rng.normal(size=(2, count, model.nv))]


MODELS: dict[str, Callable[[], ts.Model]] = {
    "Panda": ts.zoo.panda,
    "tree with quaternions": lambda: ts.zoo.random_tree(4, 1, joints=("free", "spherical", "revolute")),
    "loops": lambda: ts.zoo.random_chain(70, 3),
}
FD = ts.forward_dynamics


# ---- checks ----


def of_cupy(cp: Any) -> Iterator[Check]:
    for name, make in MODELS.items():
        model = make()
        xs = states(model)
        program, exact = ts.compile(model, FD, target="cuda"), ts.compile(model, FD)(*xs)
        arrays = [cp.asarray(x) for x in xs]

        def layouts(program: Any = program, arrays: Any = arrays, exact: Any = exact, xs: Any = xs) -> list[Pair]:
            """Every layout twice: bound, then by its addresses alone."""
            found: list[Pair] = []
            for _ in range(2):
                out = cp.full(exact.shape, cp.nan)
                program(*arrays, out=out)
                columns = [cp.asfortranarray(x) for x in arrays]
                found += [(cp.asnumpy(x), exact) for x in (out, program(*arrays), program(*columns))]
                found.append((cp.asnumpy(program(*(x[::2] for x in arrays))), exact[::2]))
                found.append((cp.asnumpy(program(*(x[:0] for x in arrays))), exact[:0]))
                found.append((cp.asnumpy(program(arrays[0][:1], *arrays[1:]))[0], exact[0]))
            return found

        yield Check(f"CuPy, layouts, {name}", layouts)

        def called(model: Any = model, arrays: Any = arrays, exact: Any = exact) -> list[Pair]:
            batch = ts.ModelBatch(model, mass=model.mass * np.linspace(1, 2, STATES)[:, None])
            wanted = FD(batch, *map(cp.asnumpy, arrays))
            pairs = []
            for _ in range(3):
                pairs += [(cp.asnumpy(FD(model, *arrays)), exact), (cp.asnumpy(FD(batch, *arrays)), wanted)]
            return pairs

        yield Check(f"CuPy, functions and batches of models, {name}", called)
    model = MODELS["Panda"]()
    program, sets = ts.compile(model, FD, target="cuda"), [states(model, STATES, seed) for seed in range(64)]

    def threads() -> list[Pair]:
        """Threads that have used no GPU before, with streams of their own."""

        def one(xs: Any) -> np.ndarray:
            with cp.cuda.Stream(non_blocking=True) as stream:
                found = program(*map(cp.asarray, xs))
                stream.synchronize()
                return cp.asnumpy(found)

        with ThreadPoolExecutor(8) as pool:
            return list(zip(pool.map(one, sets), (FD(model, *xs) for xs in sets)))

    def recorded() -> list[Pair]:
        """A graph reads what its arrays hold now; memory that is used meanwhile does not disturb it."""
        arrays = [cp.asarray(x) for x in sets[0][:2]]
        run = ts.record(lambda q, v: (ts.inverse_dynamics(model, q, v, -2.0 * v), ts.gravity_forces(model, q)), *arrays)
        pairs = []
        for q, v, _ in sets[:5]:
            arrays[0][:], arrays[1][:] = cp.asarray(q), cp.asarray(v)
            noise = [cp.full((STATES, 7), cp.nan) for _ in range(50)]
            first, second = map(cp.asnumpy, run())
            pairs += [(first, ts.inverse_dynamics(model, q, v, -2.0 * v)), (second, ts.gravity_forces(model, q))]
            del noise
        return pairs

    yield Check("CuPy, threads and streams", threads)
    yield Check("CuPy, a recorded graph", recorded)


def of_torch() -> Iterator[Check]:
    import torch

    import torsor.torch

    def there(xs: Any, graph: bool = False) -> list[Any]:
        return [torch.tensor(np.asarray(x), device=DEVICE, requires_grad=graph) for x in xs]

    def back(x: Any) -> np.ndarray:
        return x.detach().cpu().numpy()

    for name, make in MODELS.items():
        model = make()
        own, xs = torsor.torch.function(model, FD), states(model)

        def values(model: Any = model, own: Any = own, xs: Any = xs) -> list[Pair]:
            exact, program = FD(model, *xs), ts.compile(model, FD, target="cuda")
            side, pairs = torch.cuda.Stream(), []
            for _ in range(3):
                tensors = there(xs)
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):  # on PyTorch's current stream, after what is queued there
                    q = tensors[0] * 1.0
                    found = [own(q, *tensors[1:]), program(q, *tensors[1:]), FD(model, q, *tensors[1:])]
                    side.synchronize()
                pairs += [(back(x), exact) for x in found]
                pairs.append((back(torch.vmap(own)(*tensors)), exact))
            return pairs

        def gradients(own: Any = own, xs: Any = xs) -> list[Pair]:
            def slopes(device: str) -> list[np.ndarray]:
                graph = [torch.tensor(x[:5], device=device, requires_grad=True) for x in xs]
                first = torch.autograd.grad(own(*graph).square().sum(), graph, create_graph=True)
                second = torch.autograd.grad(sum(x.square().sum() for x in first), graph)
                return [back(x) for x in (*first, *second)]

            return list(zip(slopes(DEVICE), slopes("cpu")))

        yield Check(f"PyTorch, values, {name}", values)
        if name != "loops":
            yield Check(f"PyTorch, first and second derivatives, {name}", gradients)
    model = ts.zoo.general_arm(3, 1)
    own, xs = torsor.torch.function(model, FD), states(model, 4)

    def checked() -> list[Pair]:
        graph = there(xs, True)
        done = torch.autograd.gradcheck(own, graph, check_forward_ad=False), torch.autograd.gradgradcheck(own, graph)
        return [(np.float64(done), np.ones(2))]

    def transformed() -> list[Pair]:
        one, here = there([x[0] for x in xs]), [torch.tensor(x[0]) for x in xs]
        ways = [torch.func.jacrev(own), torch.func.jacfwd(own), torch.func.hessian(lambda *x: own(*x).square().sum())]
        return [(back(way(*one)), back(way(*here))) for way in ways]

    def compiled() -> list[Pair]:
        loss = torch.compile(lambda *x: own(*x).square().sum(), fullgraph=True)
        graph, here = there(xs, True), [torch.tensor(x, requires_grad=True) for x in xs]
        loss(*graph).backward()
        own(*here).square().sum().backward()
        return [(back(a.grad), back(b.grad)) for a, b in zip(graph, here)]

    def recorded() -> list[Pair]:
        tensors = there(xs)
        run = ts.record(lambda *x: (own(*x), 2.0 * own(*x)), *tensors)
        pairs = []
        for seed in range(3):
            given = states(model, 4, seed)
            for x, y in zip(tensors, given):
                x.copy_(torch.tensor(y))
            first, second = map(back, run())
            pairs += [(first, FD(model, *given)), (second, 2 * FD(model, *given))]
        return pairs

    yield Check("PyTorch, gradcheck and gradgradcheck", checked)
    yield Check("PyTorch, torch.func", transformed)
    yield Check("PyTorch, torch.compile", compiled)
    yield Check("PyTorch, a recorded graph", recorded)


def of_jax() -> Iterator[Check]:
    import jax

    import torsor.jax

    jax.config.update("jax_enable_x64", True)
    host = jax.devices("cpu")[0]
    for name, make in MODELS.items():
        model = make()
        own, xs = torsor.jax.function(model, FD), states(model)

        def both(function: Callable[..., Any], args: Any) -> list[Pair]:
            """On the GPU and on the CPU, jitted."""
            found = jax.tree.leaves(jax.jit(function)(*args))
            here = jax.tree.leaves(jax.jit(function)(*(jax.device_put(x, host) for x in args)))
            return list(zip(found, here))

        def values(model: Any = model, own: Any = own, xs: Any = xs, both: Any = both) -> list[Pair]:
            arrays = [jax.device_put(x) for x in xs]
            exact = ts.compile(model, FD)(*xs)
            pairs = both(own, arrays) + both(own, (arrays[0], arrays[1][0], arrays[2])) + both(jax.vmap(own), arrays)
            for _ in range(3):
                pairs += [
                    (own(*arrays), exact),
                    (FD(model, *arrays), exact),
                    (FD(model, *(1.0 * x for x in arrays)), exact),
                ]
            return pairs

        def derivatives(own: Any = own, xs: Any = xs, both: Any = both) -> list[Pair]:
            few = [jax.device_put(x[:5]) for x in xs]
            gradient = jax.grad(lambda *x: (own(*x) ** 2).sum(), argnums=(0, 1, 2))
            pairs = both(gradient, few) + both(jax.jacfwd(own), [x[0] for x in few])
            return pairs + both(jax.hessian(lambda *x: (own(*x) ** 2).sum()), [x[0] for x in few])

        yield Check(f"JAX, values, {name}", values)
        if name != "loops":
            yield Check(f"JAX, first and second derivatives, {name}", derivatives)
    model = MODELS["Panda"]()
    own, xs = torsor.jax.function(model, FD), states(model)

    def scanned() -> list[Pair]:
        """Steps in one program of XLA, which may record them in a CUDA graph."""

        def step(x: Any, _: Any) -> Any:
            q, v = x
            v = v + 1e-3 * own(q, v, 0 * v)
            return (q + 1e-3 * v, v), None

        return both(lambda q, v: jax.lax.scan(step, (q, v), None, length=20)[0], [jax.device_put(x) for x in xs[:2]])

    yield Check("JAX, scan", scanned)


# ---- times ----


def host_time(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Microseconds of the host per call: the best of several rounds, in which the queue never fills."""
    for _ in range(20):
        call()
    best = np.inf
    for _ in range(10):
        wait()
        begin = time.perf_counter()
        for _ in range(CALLS // 10):
            call()
        best = min(best, time.perf_counter() - begin)
        wait()
    return best / (CALLS // 10) * 1e6


def run_time(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Microseconds until it is done, per call, in a queue of twenty: the best of several."""
    call()
    best = np.inf
    for _ in range(7):
        wait()
        begin = time.perf_counter()
        for _ in range(20):
            call()
        wait()
        best = min(best, time.perf_counter() - begin)
    return best / 20 * 1e6


def times(cp: Any) -> Iterator[tuple[str, float]]:
    model = MODELS["Panda"]()
    program, wait = ts.compile(model, FD, target="cuda"), cp.cuda.Device().synchronize
    xs = states(model, MANY)
    arrays = [cp.asarray(x) for x in xs]
    out = cp.empty_like(arrays[1])
    run = ts.record(lambda q, v: (ts.inverse_dynamics(model, q, v, v), ts.gravity_forces(model, q)), *arrays[:2])
    batch = ts.ModelBatch(model, mass=model.mass * np.linspace(1, 2, MANY)[:, None])
    calls: dict[str, Callable[[], Any]] = {
        "CuPy: cupy.empty": lambda: cp.empty(out.shape), "CuPy: cupy.add": lambda: cp.add(arrays[1], arrays[2]),
        "CuPy: Program": lambda: program(*arrays), "CuPy: Program, out=": lambda: program(*arrays, out=out),
        "CuPy: forward_dynamics": lambda: FD(model, *arrays),
        "CuPy: forward_dynamics of a batch of models": lambda: FD(batch, *arrays),
        "CuPy: a recorded graph of two functions": run,
    }  # fmt: skip
    for name, call in calls.items():
        yield name, host_time(call, wait)
    if importlib.util.find_spec("torch"):
        import torch

        import torsor.torch

        tensors, own = [torch.tensor(x, device=DEVICE) for x in xs], torsor.torch.function(model, FD)
        yield "PyTorch: torch.add", host_time(lambda: torch.add(tensors[1], tensors[2]), wait)
        yield "PyTorch: Program", host_time(lambda: program(*tensors), wait)
        yield "PyTorch: torsor.torch.function", host_time(lambda: own(*tensors), wait)
    if importlib.util.find_spec("jax"):
        import jax

        import torsor.jax

        placed, jitted = [jax.device_put(x) for x in xs], jax.jit(torsor.jax.function(model, FD))
        empty = jax.jit(lambda q, v, tau: tau + 1.0)
        yield "JAX: a jitted sum", host_time(lambda: empty(*placed), wait)
        yield "JAX: torsor.jax.function, jitted", host_time(lambda: jitted(*placed), wait)
        yield "JAX: forward_dynamics, outside of jit", host_time(lambda: FD(model, *placed), wait)


def throughput(cp: Any) -> Iterator[tuple[str, float]]:
    """The time of each framework, relative to the program's: 1.1 at most is wanted."""
    model, wait = MODELS["Panda"](), cp.cuda.Device().synchronize
    fd, vjp = (ts.compile(model, f, target="cuda") for f in (FD, ts.vjp(FD)))
    for count in (100_000, 1_000_000):
        xs = states(model, count)
        arrays, one = [cp.asarray(x) for x in xs], cp.ones((count, 7))
        value, gradient = (run_time(call, wait) for call in (partial(fd, *arrays), partial(vjp, *arrays, one)))
        yield f"{count} states: the program's value, us", value
        yield f"{count} states: the program's gradient, us", gradient
        if importlib.util.find_spec("torch"):
            import torch

            import torsor.torch

            own, tensors = torsor.torch.function(model, FD), [torch.tensor(x, device=DEVICE) for x in xs]
            graph = [x.clone().requires_grad_() for x in tensors]

            def backward(own: Any = own, graph: Any = graph) -> None:
                torch.autograd.grad(own(*graph).sum(), graph)

            yield f"{count} states: PyTorch, value", run_time(partial(own, *tensors), wait) / value
            yield f"{count} states: PyTorch, value and gradient", run_time(backward, wait) / (value + gradient)
        if importlib.util.find_spec("jax"):
            import jax

            import torsor.jax

            own, placed = torsor.jax.function(model, FD), [jax.device_put(x) for x in xs]
            jitted = jax.jit(own)
            slope = jax.jit(jax.grad(lambda *x, own=own: own(*x).sum(), argnums=(0, 1, 2)))
            yield f"{count} states: JAX, value", run_time(partial(jitted, *placed), wait) / value
            yield f"{count} states: JAX, gradient", run_time(partial(slope, *placed), wait) / gradient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", action="store_true", help="no times")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    options = parser.parse_args()
    cp = cupy(__doc__)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {
        "device": cp.cuda.runtime.getDeviceProperties(0)["name"].decode(), "cupy": cp.__version__, "cases": 0,
        "failed": [], "rows": [], "missing": [x for x in ("torch", "jax") if not importlib.util.find_spec(x)],
        "microseconds": {}, "throughput": {},
    }  # fmt: skip

    def note(place: str, name: str, value: float) -> None:
        wanted = WANTED.get(name)
        report[place][name] = {"reached": value, "wanted": wanted} if wanted else value
        print(f"{name}: {value:.3g}" + (f" ({wanted} wanted)" if wanted else ""), flush=True)
        write(folder / "gpu_calls.json", report)

    groups = [lambda: of_cupy(cp)]
    groups += [group for name, group in (("torch", of_torch), ("jax", of_jax)) if name not in report["missing"]]
    for group in groups:
        for check in group():
            report["rows"].append(row := check.run())
            report["failed"] += [] if row["ok"] else [row]
            report["cases"] += 1
            print(row, flush=True)
            write(folder / "gpu_calls.json", report)
    if options.checks:
        return
    for place, measured in (("microseconds", times), ("throughput", throughput)):
        try:
            for name, value in measured(cp):
                note(place, name, value)
        except Exception as error:
            report["failed"].append({"case": place, "ok": False, "failure": f"{type(error).__name__}: {error}"[:600]})
            write(folder / "gpu_calls.json", report)
            print(report["failed"][-1], flush=True)


if __name__ == "__main__":
    main()
