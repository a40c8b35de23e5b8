"""Every public function on a GPU: random trees of every joint type, loops and straight line, both precisions.

    python bench/gpu_check.py [--only TEXT ...] [--out FOLDER]    needs CuPy; uses PyTorch and JAX where they are there

The oracle is the reference engine, which runs the same equations number by number on the host and shares no compiled
code with the GPU.  Writes gpu_check.json: the error of every case, relative to its largest number.  With --only, the
cases whose names contain all of these texts; their rows replace those of a report that is there.  Derivatives in parts:
--only "vjp(" looped;  --only "jvp(" looped;  --only "vjp(" unrolled;  --only "jvp(" unrolled;  --only links.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import write

import torsor as ts
from torsor import duals, reference
from torsor.algorithms import pulls as pulled
from torsor.dynamics.derivatives import DIFFERENTIABLE
from torsor.dynamics.functions import ALGORITHMS
from torsor.dynamics.methods import COUPLED, METHODS
from torsor.model.extras import Coupling, Extras
from torsor.motion import PD, ComputedTorque, Cycloid, Pull
from torsor.outputs import Path as PathOutput

STATES = 70  # two blocks of threads, the second one not full
CHECKED = (0, 31, 64, 69)
# The reference rounds otherwise: no multiply-adds, other frames.  Random trees lose five digits with M^-1.
TOLERANCE = {"float64": 1e-9, "float32": 5e-2}
WORKERS = 16  # kernels compiled at once
STEP = 1e-6  # of differences, whose error is its square
ROLLED, ROLLED_STEP = 3, 1e-4  # steps of rollouts
DIFFERENCE = 1e-7  # relative: random trees are curved, and y^T J dx may cancel


def right_angles(n: int = 42) -> ts.Model:
    """A chain whose loops leave out zeros (`compiler.frames.structured`)."""
    axes = np.array([(0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)])[np.arange(n) % 3]
    joint = np.where(np.arange(n) % 5, "revolute", "prismatic")
    p, com = (0.1, 0.0, 0.0), (0.05, 0.0, 0.0)
    return ts.Model.chain(joint, n=n, axis=axes, p=p, mass=1.0, com=com, inertia=(0.1, 0.2, 0.2))


MODELS: dict[str, Callable[[], ts.Model]] = {
    "tree of every joint type": lambda: ts.zoo.random_tree(11, 1),
    "bushy tree": lambda: ts.zoo.random_tree(9, 5, branching=0.7),
    "chain of every joint type": lambda: ts.zoo.random_chain(9, 3, joints=None),
    "general 6R": lambda: ts.zoo.general_arm(6, 5),
    "right angles": right_angles,
}


def coupled_joints() -> ts.Model:
    """A tree in which two joints follow others."""
    tree = ts.zoo.random_tree(8, 2, joints=("revolute", "prismatic"))
    return tree.with_extras(Extras(couplings=(Coupling(3, 0, -2.0, 0.1), Coupling(5, 1, 0.5))))


class Case(NamedTuple):
    model: str
    function: str
    dtype: str
    specialised: bool
    method: str = "auto"
    external: bool = False

    @property
    def label(self) -> str:
        how = "unrolled" if self.specialised else "looped"
        more = f", {self.method}" * (self.method != "auto") + ", external" * self.external
        return f"{self.function}, {self.model}, {self.dtype}, {how}{more}"


def cases() -> Iterator[Case]:
    for function in COUPLED:
        for dtype in TOLERANCE:
            yield Case(coupled_joints.__name__, function, dtype, True)
    for model in MODELS:
        for function, algorithm in ALGORITHMS.items():
            for dtype in TOLERANCE:
                for specialised in (True, False):
                    if dtype == "float32" and model != "tree of every joint type":
                        continue
                    if specialised and model == "right angles":
                        continue
                    for external in (False, True)[: 1 + ("external" in algorithm.options)]:
                        yield Case(model, function.__name__, dtype, specialised, "auto", external)
    for function, methods in METHODS.items():
        for method, algorithm in methods.items():
            for specialised in (True, False)[: 1 + algorithm.has_loops]:
                model = "tree of every joint type" if algorithm.has_loops else "general 6R"
                yield Case(model, function, "float64", specialised, method)


def arguments(model: ts.Model, names: tuple[str, ...], dtype: str) -> dict[str, np.ndarray]:
    """Random states whose numbers are exact in single precision."""
    rng = np.random.default_rng(0)
    given = {"q": model.random_configuration(rng, STATES), "external": rng.normal(size=(STATES, model.n, 6))}
    return {
        name: (given[name] if name in given else rng.normal(size=(STATES, model.nv))).astype(np.float32).astype(dtype)
        for name in names
    }


def expected(model: ts.Model, algorithm: Any, given: dict[str, np.ndarray]) -> np.ndarray:
    frame = model.frame(-1) if isinstance(algorithm.output, PathOutput) else None
    states = [{name: x[k].astype(float).tolist() for name, x in given.items()} for k in CHECKED]
    return np.array([duals.evaluate(algorithm, model, state, frame=frame) for state in states], dtype=float)


def varied(model: ts.Model) -> ts.ModelBatch:
    """Models that differ in masses, lengths and gravity, one per state."""
    rng = np.random.default_rng(1)
    factor = rng.uniform(0.8, 1.2, (STATES, model.n))
    return ts.ModelBatch(
        model, mass=model.mass * factor, p=model.p * factor[..., None], gravity=rng.normal(size=(STATES, 3))
    )  # fmt: skip


def one_by_one(batch: ts.ModelBatch, algorithm: Any, given: dict[str, np.ndarray]) -> np.ndarray:
    """`expected` for a batch of models."""
    return np.array([expected(batch[k], algorithm, given)[i] for i, k in enumerate(CHECKED)])


def run(case: Case, models: dict[str, ts.Model], cp: Any) -> dict[str, Any]:
    """One case; an exception is part of the report."""
    begin, row = time.perf_counter(), {"case": case.label}
    try:
        model, function = models[case.model], getattr(ts, case.function)
        path = isinstance(ALGORITHMS[function].output, PathOutput)
        program = ts.compile(
            model, function, target="cuda", dtype=case.dtype, specialised=case.specialised, method=case.method,
            external=case.external, body=model.n - 1 if path else None,
        )  # fmt: skip
        given = arguments(model, program.inputs, case.dtype)
        result = on_host(program(*map(cp.asarray, given.values())), cp.asnumpy)[list(CHECKED)].astype(float)
        exact = expected(model, program.request.algorithm, given)
        row["error"] = float(np.abs(result - exact).max() / np.abs(exact).max())
        row["ok"] = bool(row["error"] <= TOLERANCE[case.dtype])
    except Exception as error:
        row |= {"ok": False, "failure": f"{type(error).__name__}: {error}"[:400]}
    return row | {"seconds": round(time.perf_counter() - begin, 2)}


def on_host(result: Any, back: Callable[[Any], np.ndarray]) -> np.ndarray:
    """A result as an array; several results as one row of numbers per state."""
    if not isinstance(result, tuple):
        return back(result)
    return np.concatenate([back(x).reshape(len(x), -1) for x in result], axis=1)


def plain_calls(cp: Any) -> Iterator[Job]:
    """The functions themselves, called with arrays of every library that is there; rollouts; one long chain."""
    model = ts.zoo.random_tree(9, 5, branching=0.7)
    libraries = {"CuPy": (cp.asarray, cp.asnumpy)}
    try:
        import torch

        libraries["PyTorch"] = (lambda x: torch.as_tensor(x, device="cuda")), (lambda x: x.cpu().numpy())
    except ImportError:
        pass
    for library, (there, back) in libraries.items():
        for function, algorithm in ALGORITHMS.items():
            given = arguments(model, algorithm.inputs, "float64")
            body = (model.n - 1,) if isinstance(algorithm.output, PathOutput) else ()
            arrays = [there(x) for x in given.values()]
            yield Job(
                f"ts.{function.__name__}, {library}",
                partial(_called, function, model, arrays, body, back),
                partial(expected, model, algorithm, given),
            )
    batch = varied(model)
    for function, algorithm in ALGORITHMS.items():
        given = arguments(model, algorithm.inputs, "float64")
        body = (model.n - 1,) if isinstance(algorithm.output, PathOutput) else ()
        yield Job(
            f"ts.{function.__name__}, a batch of models",
            partial(_called, function, batch, [cp.asarray(x) for x in given.values()], body, cp.asnumpy),
            partial(one_by_one, batch, algorithm, given),
        )
    yield from derivatives(cp)
    yield from large_matrices(cp, libraries)
    yield from rollouts(cp)
    rope = ts.zoo.rope(3000)
    rng = np.random.default_rng(0)
    q, v, tau = rope.random_configuration(rng), np.zeros(rope.nv), rng.normal(size=rope.nv)
    algorithm = ALGORITHMS[ts.forward_dynamics]
    yield Job(
        "ts.forward_dynamics, one chain of 3000 links",
        lambda: cp.asnumpy(ts.forward_dynamics(rope, *map(cp.asarray, (q, v, tau)))),
        lambda: np.array(reference.evaluate(algorithm, rope, {"q": q.tolist(), "v": v.tolist(), "tau": tau.tolist()})),
    )
    pulled, weight = ts.vjp(ts.forward_dynamics), rng.normal(size=rope.nv)  # against the sweeps' adjoint, on the host
    yield Job(
        "vjp of ts.forward_dynamics, one chain of 3000 links",
        lambda: np.stack([cp.asnumpy(x) for x in pulled(rope, *map(cp.asarray, (q, v, tau, weight)))]),
        lambda: np.stack(pulled(rope, q, v, tau, weight)),
    )


def derivatives(cp: Any) -> Iterator[Job]:
    """vjp and jvp of every function along a random direction, against differences by the reference engine."""
    for name in ("tree of every joint type", "general 6R"):
        model = MODELS[name]()
        for function in DIFFERENTIABLE:
            algorithm = ALGORITHMS[function]
            path = isinstance(algorithm.output, PathOutput)
            for specialised in (True, False) if model.nv < 10 else (False,):
                for derived in (ts.vjp(function), ts.jvp(function)):
                    options = {"specialised": specialised} | ({"body": model.n - 1} if path else {})
                    how = "unrolled" if specialised else "looped"
                    both = _along(cp, model, derived, algorithm, options)
                    yield Job(f"{derived.__name__}, {name}, {how}", *both, tolerance=DIFFERENCE)


def large_matrices(cp: Any, libraries: dict[str, Any]) -> Iterator[Job]:
    """The vjp of matrices above 24 freedoms, called with arrays of every library, against the host's."""
    model, rng = ts.zoo.humanoid(), np.random.default_rng(0)
    try:
        import jax

        jax.config.update("jax_enable_x64", True)
        libraries = libraries | {"JAX": (jax.numpy.asarray, np.asarray)}
    except ImportError:
        pass
    for function in (ts.mass_matrix, ts.inverse_mass_matrix, ts.coriolis_matrix, ts.jacobian, ts.jacobian_dot):
        algorithm, pull = ALGORITHMS[function], ts.vjp(function)
        rows, body = (6, {"body": model.n - 1}) if isinstance(algorithm.output, PathOutput) else (model.nv, {})
        given = arguments(model, algorithm.inputs, "float64") | {"y": rng.normal(size=(STATES, rows, model.nv))}
        for machine, name in ((model, "humanoid"), (varied(model), "a batch of humanoids")):
            for library, (there, back) in libraries.items():
                run_on = partial(_pulled, partial(pull, machine, **body), list(given.values()))
                yield Job(
                    f"{pull.__name__}, {name}, {library}",
                    partial(run_on, there, back),
                    partial(run_on, np.asarray, np.asarray),
                )


def _pulled(function: Any, arrays: list[np.ndarray], there: Any, back: Any) -> np.ndarray:
    return on_host(function(*map(there, arrays)), back)


def _along(
    cp: Any, model: ts.Model, derived: Any, algorithm: Any, options: dict[str, Any]
) -> tuple[Callable, Callable]:
    """y^T J dx at the states that are checked, on the device and by differences of long doubles."""
    rng = np.random.default_rng(0)
    given = arguments(model, algorithm.inputs, "float64")
    tangents = {name: rng.normal(size=(STATES, model.nv)) for name in algorithm.inputs}
    frame = model.frame(-1) if isinstance(algorithm.output, PathOutput) else None
    seed: list[np.ndarray] = []  # y, made when the shape of the output is known

    def moved(k: int, h: float) -> np.ndarray:
        state = {name: x[k].astype(np.longdouble) for name, x in given.items()}
        change = {name: x[k].astype(np.longdouble) * h for name, x in tangents.items()}
        state = {
            name: model.integrate(x, change[name]) if name == "q" else x + change[name] for name, x in state.items()
        }
        lists = {name: list(x) for name, x in state.items()}
        return np.array(duals.evaluate(algorithm, model, lists, frame=frame, number=np.longdouble), np.longdouble)

    def here() -> np.ndarray:
        slopes = np.array([(moved(k, STEP) - moved(k, -STEP)) / (2 * STEP) for k in CHECKED])
        seed.append(np.random.default_rng(1).normal(size=slopes.shape))
        return (seed[0] * slopes).reshape(len(CHECKED), -1).sum(axis=1).astype(float)

    def there() -> np.ndarray:
        program = ts.compile(model, derived, target="cuda", **options)
        arrays = [cp.asarray(x) for x in given.values()]
        if derived.mode == "jvp":
            result = cp.asnumpy(program(*arrays, *map(cp.asarray, tangents.values())))[list(CHECKED)]
            return (seed[0] * result).reshape(len(CHECKED), -1).sum(axis=1)
        y = np.zeros((STATES, *seed[0].shape[1:]))
        y[list(CHECKED)] = seed[0]
        found = program(*arrays, cp.asarray(y))
        total = sum(
            (cp.asnumpy(x).reshape(STATES, -1) * tangents[name]).sum(axis=1) for name, x in zip(tangents, found)
        )
        return total[list(CHECKED)]

    return there, here


def _called(function: Any, model: ts.Model, arrays: list[Any], body: tuple[int, ...], back: Any) -> np.ndarray:
    return on_host(function(model, *arrays, *body), back)[list(CHECKED)]


def rollouts(cp: Any) -> Iterator[Job]:
    """Rollouts under every force, of models and batches of them, against the reference engine; and stop conditions."""
    arms = {"general 6R": MODELS["general 6R"](), "chain of 14 turns": ts.zoo.random_chain(14, 3)}
    for name, model in (*arms.items(), ("bushy tree", MODELS["bushy tree"]())):
        q, v, tau = arguments(model, ("q", "v", "tau"), "float64").values()
        for what, machine, options in forces(model):
            given = {} if isinstance(options.get("feedback"), ComputedTorque) else {"tau": tau}
            for integrator in ("semi-implicit", "implicit", "rk4"):
                label = f"ts.rollout, {what}, {integrator}, {name}"
                yield Job(label, *_both(cp, machine, q, v, {**options, **given, "integrator": integrator}))
        if model.nq == model.nv:
            yield from stopped(cp, name, model, q, v)


def forces(model: ts.Model) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """What acts, the machine, and the options of its rollouts."""
    rng, nv = np.random.default_rng(2), model.nv
    yield "torques", model, {"table": rng.normal(size=(STATES, ROLLED, nv))}
    yield "wrenches", model, {"external": rng.normal(size=(STATES, model.n, 6))}
    points = rng.normal(size=(2, STATES, 3))
    yield "pulls, without gravity", model, {"pulls": Pull(model, model.names[-1], *points), "gravity": False}
    numbers = {"friction": 0.0, "damping": 0.0, "effort": 0.5, "speed": 0.5}
    joints = {name: rng.uniform(least, least + 1, (STATES, nv)) for name, least in numbers.items()}
    yield "a batch of models", ts.ModelBatch(model, **varied(model).varied, **joints), {}
    if model.nq != nv:
        return
    busy = replace(model, stiffness=2.0, rest=0.1, friction=0.3, lower=-0.5, upper=0.5, effort=1.0, speed=0.9)
    yield "joints", busy, {"feedback": ts.JointFeedback(*rng.uniform(1, 9, (2, STATES, nv)))}
    goal = Cycloid(np.zeros(nv), np.ones(nv), 1e-3)
    yield "a servo on its way", model, {"feedback": PD(model, goal, 9.0, 1.0)}
    if nv <= 12:
        yield "computed torques", model, {"feedback": ComputedTorque(replace(model, mass=1.1 * model.mass), goal)}
    layers = [(rng.normal(size=(5, 2 * nv)), rng.normal(size=5)), (rng.normal(size=(nv, 5)), rng.normal(size=nv))]
    yield "a policy", model, {"feedback": ts.Policy(layers, "softsign")}


def _both(cp: Any, machine: Any, q: np.ndarray, v: np.ndarray, options: dict[str, Any]) -> tuple[Callable, Callable]:
    """A rollout on the device, and the same steps with accelerations by the reference engine."""

    def there() -> np.ndarray:
        arrays = {name: cp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        path = ts.rollout(machine, cp.asarray(q), cp.asarray(v), steps=ROLLED, dt=ROLLED_STEP, **arrays)
        return np.concatenate([cp.asnumpy(path.q), cp.asnumpy(path.v)], axis=-1)[list(CHECKED)]

    return there, lambda: np.array([_rolled(machine, q, v, k, options) for k in CHECKED])


def _rolled(machine: Any, q: np.ndarray, v: np.ndarray, k: int, options: dict[str, Any]) -> np.ndarray:
    """The states of trajectory k."""
    from torsor.motion import rollout as steps

    batch = isinstance(machine, ts.ModelBatch)
    model = machine[k] if batch else machine
    names = ("tau", "table", "feedback", "external", "pulls")
    tau, table, feedback, external, pulls = (options.get(name) for name in names)
    model = replace(model, gravity=model.gravity * options.get("gravity", True))
    task = steps.Task.of(machine, ROLLED, ROLLED_STEP, tau, table, feedback, 1, options["integrator"])
    task = task.loaded(machine, external, pulls)
    law = task.law
    values, constant = (x[k] if x.ndim > 1 else x for x in (law.values, law.constant))
    more = {} if external is None else {"external": external[k].tolist()}
    more |= {} if law.pulls is None else {"pulls": law.pulls[k].tolist()}
    rows = np.zeros((ROLLED, model.nv)) if task.table is None else task.table[k] if task.table.ndim > 2 else task.table
    algorithm = ALGORITHMS[ts.forward_dynamics] if law.pulls is None else pulled.forward_dynamics

    def accelerate(q: Any, v: Any, tau: Any, added: Any) -> Any:
        given = {"q": list(q), "v": list(v), "tau": list(tau), **more}
        return reference.evaluate(algorithm, model, given | ({} if added is None else {"added_inertia": list(added)}))

    x, path = [*q[k].tolist(), *v[k].tolist()], []
    for t in range(ROLLED):
        command = (constant + rows[t] + (0.0 if tau is None else tau[k])).tolist()
        plant = steps.Plant(model, law, values.tolist(), command, accelerate)
        x = steps.step(options["integrator"], plant, x[: model.nq], x[model.nq :], ROLLED_STEP)
        path.append(x)
    return np.array(path)


def stopped(cp: Any, name: str, model: ts.Model, q: np.ndarray, v: np.ndarray) -> Iterator[Job]:
    """Where trajectories stop, against the CPU."""
    height = float(np.median(ts.body_poses(model, q)[:, -1, 2, 3]))
    stops = [ts.Stop(v=0, below=-1.0, above=1.0), ts.Stop(frame=model.n - 1, below=height)]
    for what, again in (("frozen", {}), ("reset", {"reset": (q[0], v[0])})):
        options = {"stop": stops, "steps": 20, "dt": 1e-3, "every": 5}
        there = {"reset": tuple(map(cp.asarray, again["reset"]))} if again else {}

        def flat(path: Any, back: Callable[[Any], np.ndarray]) -> np.ndarray:
            parts = [np.nan_to_num(back(x).astype(float), nan=-1.0).reshape(STATES, -1) for x in path]
            return np.concatenate(parts, axis=1)

        yield Job(
            f"ts.rollout, stop, {what}, {name}",
            lambda o=options, r=there: flat(ts.rollout(model, cp.asarray(q), cp.asarray(v), **o, **r), cp.asnumpy),
            lambda o=options, r=again: flat(ts.rollout(model, q, v, **o, **r), np.asarray),
        )


class Job(NamedTuple):
    """A case that is more than a program: what is computed, and what it should be."""

    label: str
    compute: Callable[[], Any]
    oracle: Callable[[], Any]
    tolerance: float = 1e-9

    def run(self) -> dict[str, Any]:
        begin, row = time.perf_counter(), {"case": self.label}
        try:
            exact = np.asarray(self.oracle(), dtype=float)
            result = np.asarray(self.compute(), dtype=float)
            known = np.isfinite(exact)
            row["error"] = float(np.abs(result[known] - exact[known]).max() / np.abs(exact[known]).max())
            row["ok"] = bool(row["error"] <= self.tolerance)
        except Exception as error:
            row |= {"ok": False, "failure": f"{type(error).__name__}: {error}"[:400]}
        return row | {"seconds": round(time.perf_counter() - begin, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    parser.add_argument("--only", nargs="+", default=[], help="cases whose names contain all of these")
    options = parser.parse_args()
    import cupy as cp

    models = {name: make() for name, make in (MODELS | {coupled_joints.__name__: coupled_joints}).items()}
    with ThreadPoolExecutor(WORKERS) as pool:
        wanted = [x for x in (*cases(), *plain_calls(cp)) if all(text in x.label for text in options.only)]
        rows = list(pool.map(lambda x: x.run() if isinstance(x, Job) else run(x, models, cp), wanted))
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "gpu_check.json"
    if options.only and file.exists():
        done = {row["case"] for row in rows}
        rows += [row for row in json.loads(file.read_text())["rows"] if row["case"] not in done]
    properties = cp.cuda.runtime.getDeviceProperties(0)
    report = {
        "device": properties["name"].decode(), "cupy": cp.__version__, "cases": len(rows),
        "failed": [row for row in rows if not row["ok"]], "rows": rows,
    }  # fmt: skip
    write(file, report)
    worst = max((row["error"] for row in rows if "error" in row and "float32" not in row["case"]), default=0.0)
    print(f"{report['device']}: {len(rows)} cases, {len(report['failed'])} failed, worst float64 error {worst:.1e}")
    for row in report["failed"]:
        print(row)


if __name__ == "__main__":
    main()
