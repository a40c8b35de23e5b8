"""Every public function on a GPU: random trees of every joint type, loops and straight line, both precisions.

    python bench/gpu_check.py [PART ...] [--only TEXT ...] [--out FOLDER] [--processes N]

needs CuPy; uses PyTorch and JAX where they are there.  The oracle of functions is the reference engine, which runs the
same equations number by number on the host and shares no compiled code with the GPU; that of motion in time (rollouts,
ensembles, simulations) is the CPU.  Writes gpu_check.json after every case: its error, relative to its largest number.
Parts are named in PARTS and take less than two minutes each.  With --only, the cases whose names contain all of these
texts.  Rows replace those of a report that is there.  With --processes, parts run side by side.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from harness import cupy, write

import torsor as ts
from torsor import duals, reference
from torsor.dynamics.derivatives import DIFFERENTIABLE
from torsor.dynamics.functions import ALGORITHMS
from torsor.dynamics.methods import COUPLED, METHODS
from torsor.model.batch import VARIABLE
from torsor.model.extras import Coupling, Extras
from torsor.model.freedoms import limited_coordinates
from torsor.motion.brownian import brownian
from torsor.motion.law import felt_inertia
from torsor.outputs import Path as PathOutput

STATES = 70  # two blocks of threads, the second one not full
CHECKED = (0, 31, 64, 69)
# The reference rounds otherwise: no multiply-adds, other frames.  Random trees lose five digits with M^-1.
TOLERANCE = {"float64": 1e-9, "float32": 5e-2}
WORKERS = 16  # kernels compiled at once
SHIFT = 1e-6  # of differences, whose error is its square
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


class Job(NamedTuple):
    """A case that is more than a program: what is computed, and what it should be."""

    label: str
    compute: Callable[[], Any]
    oracle: Callable[[], Any]
    tolerance: float = 1e-9
    may_refuse: bool = False  # an error that says so is an answer, too

    def run(self) -> dict[str, Any]:
        begin, row = time.perf_counter(), {"case": self.label}
        try:
            exact = np.asarray(self.oracle(), dtype=float)
            try:
                result = np.asarray(self.compute(), dtype=float)
            except ts.ArgumentError as error:
                if not self.may_refuse:
                    raise
                return row | {"ok": True, "refused": str(error)[:400]}
            known = np.isfinite(exact)
            row["error"] = float(np.abs(result[known] - exact[known]).max() / np.abs(exact[known]).max())
            row["ok"] = bool(row["error"] <= self.tolerance)
        except Exception as error:
            row |= {"ok": False, "failure": f"{type(error).__name__}: {error}"[:400]}
        return row | {"seconds": round(time.perf_counter() - begin, 2)}


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


def libraries_of(cp: Any) -> dict[str, Any]:
    """How arrays get to the device and back, by library."""
    libraries = {"CuPy": (cp.asarray, cp.asnumpy)}
    try:
        import torch

        libraries["PyTorch"] = (lambda x: torch.as_tensor(x, device="cuda")), (lambda x: x.cpu().numpy())
    except ImportError:
        pass
    return libraries


def plain_calls(cp: Any) -> Iterator[Job]:
    """The functions themselves, called with arrays of every library that is there; and with batches of models."""
    model, libraries = ts.zoo.random_tree(9, 5, branching=0.7), libraries_of(cp)
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


def long_chains(cp: Any) -> Iterator[Job]:
    """One state of one long chain, and its gradient."""
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


def derivatives(mode: str, unrolled: bool, cp: Any) -> Iterator[Job]:
    """vjp or jvp of every function along a random direction, against differences by the reference engine."""
    for name in ("tree of every joint type", "general 6R"):
        model = MODELS[name]()
        for function in DIFFERENTIABLE:
            algorithm = ALGORITHMS[function]
            path = isinstance(algorithm.output, PathOutput)
            if unrolled and model.nv >= 10:
                continue
            derived = getattr(ts, mode)(function)
            options = {"specialised": unrolled} | ({"body": model.n - 1} if path else {})
            both = _along(cp, model, derived, algorithm, options)
            yield Job(f"{derived.__name__}, {name}, {'unrolled' if unrolled else 'looped'}", *both, DIFFERENCE)


def large_matrices(cp: Any) -> Iterator[Job]:
    """The vjp of matrices above 24 freedoms, called with arrays of every library, against the host's."""
    model, rng, libraries = ts.zoo.humanoid(), np.random.default_rng(0), libraries_of(cp)
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
        slopes = np.array([(moved(k, SHIFT) - moved(k, -SHIFT)) / (2 * SHIFT) for k in CHECKED])
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


def other_functions(cp: Any) -> Iterator[Job]:
    """What is computed from several programs, or from options of them; some of it only on the host, which it says."""
    for name, make in MACHINES.items():
        model = make()
        given = arguments(model, ("q", "v", "tau"), "float64")
        for what, (call, inputs) in {**composed(model, **given), **moving_base(model, given)}.items():
            yield Job(
                f"ts.{what}, {name}", partial(_composed, cp, call, inputs), partial(call, *inputs), may_refuse=True
            )  # fmt: skip
        frames = np.tile(np.eye(4), (model.n, 1, 1))
        frames[:, :3, :3] = ts.lie.exp_so3(np.random.default_rng(5).normal(size=(model.n, 3)))
        frames[:, :3, 3] = np.random.default_rng(6).normal(size=(model.n, 3))
        for function in (ts.forward_dynamics, ts.body_twists):
            made, inputs = partial(ts.compile, model, function, Q=frames), [given[x] for x in inputs_of(function)]
            yield Job(
                f"ts.compile(Q=), {function.__name__}, {name}",
                lambda made=made, inputs=inputs: cp.asnumpy(made(target="cuda")(*map(cp.asarray, inputs))),
                lambda made=made, inputs=inputs: made()(*inputs),
            )


Composed = dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]]


def composed(model: ts.Model, q: np.ndarray, v: np.ndarray, tau: np.ndarray) -> Composed:
    """By name: what is called, and its arrays."""
    rng, hand = np.random.default_rng(4), model.n - 1
    points = ts.Points(model, np.arange(model.n), rng.normal(size=(model.n, 3)))
    goals, pulls = ts.body_poses(model, q)[:, -1], rng.normal(size=(STATES, model.n, 3))
    turned = partial(ts.jacobian, model, body=hand, reference="world-aligned")
    moved = partial(ts.vjp(ts.rollout), model, steps=2, step=STEP, every=2)
    return {
        "frame_poses": (partial(ts.frame_poses, model, frames=hand), (q,)),
        "mass_factor, solve": (lambda q, b: ts.mass_factor(model, q).solve(b), (q, tau)),
        "mass_factor, log_det": (lambda q: ts.mass_factor(model, q).log_det, (q,)),
        "sample_velocities": (partial(ts.sample_velocities, model, rng=1), (q,)),
        "fixman_potential": (partial(ts.fixman_potential, model), (q,)),
        "fixman_force": (partial(ts.fixman_force, model), (q,)),
        "operational_space": (lambda q, v: ts.operational_space(model, q, hand, v).inertia, (q, v)),
        "inverse_kinematics": (lambda T: ts.inverse_kinematics(model, hand, T).q, (goals,)),
        "linearize": (lambda *x: ts.linearize(model, *x).A, (q, v, tau)),
        "linearize, dt": (lambda *x: ts.linearize(model, *x, dt=0.01).A, (q, v, tau)),
        "step_derivatives": (lambda *x: ts.step_derivatives(model, *x).dx, (q, v, tau)),
        "Points.positions": (points.positions, (q,)), "Points.torques": (points.torques, (q, pulls)),
        "jacobian, world-aligned": (turned, (q,)),
        "vjp of rollout": (lambda q, v: moved(q, v, (v[:, None], v[:, None])).v, (q, v)),
    }  # fmt: skip


def moving_base(model: ts.Model, given: dict[str, np.ndarray]) -> Composed:
    twist, change = np.random.default_rng(7).normal(size=(2, STATES, 6))
    found: Composed = {}
    for function in (ts.forward_dynamics, ts.inverse_dynamics, ts.bias_forces):

        def call(*x: Any, function: Any = function) -> Any:
            return function(model, *x[:-2], base_velocity=x[-2], base_acceleration=x[-1])

        found[f"{function.__name__}, moving base"] = call, (
            *(given.get(x, given["tau"]) for x in inputs_of(function)), twist, change,
        )  # fmt: skip
    return found


def inputs_of(function: Any) -> tuple[str, ...]:
    return ALGORITHMS[function].inputs


def _composed(cp: Any, call: Callable[..., Any], inputs: tuple[np.ndarray, ...]) -> np.ndarray:
    return array_of(call(*map(cp.asarray, inputs)), cp)


def array_of(x: Any, cp: Any) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else cp.asnumpy(x)


def brownian_motion(cp: Any) -> Iterator[Job]:
    """Brownian dynamics, whose noise is drawn on the host: the same path on the device and on the CPU."""
    machines = {
        **MACHINES,
        "trimer": lambda: ts.zoo.point_chain(2),
        "gimbal": lambda: ts.Model.chain(["gimbal"], mass=1.0, inertia=[1.0, 2.0, 2.5]),
    }
    for name, make in machines.items():
        model = make()
        q = model.random_configuration(np.random.default_rng(0), STATES)
        for stiff in (False, True):
            for what, force in (("", ()), (", a force", ts.Constant(np.ones(model.nv)))):
                run = partial(brownian, model, steps=20, step=1e-4, rng=1, stiff=stiff, every=10, forces=force)
                yield Job(
                    f"brownian, {'stiff' if stiff else 'rigid'}{what}, {name}",
                    lambda run=run, q=q: cp.asnumpy(run(cp.asarray(q))), lambda run=run, q=q: run(q),
                )  # fmt: skip


# ---- motion in time, against the CPU ----

STEPS, STEP = 10, 1e-3
MACHINES: dict[str, Callable[[], ts.Model]] = {
    "arm": ts.zoo.panda,
    "humanoid": ts.zoo.humanoid,
    "20 links": lambda: ts.zoo.general_arm(20, 3),
}
FIXED = ("semi-implicit", "implicit-euler", "rk4")


def forces(model: ts.Model) -> Iterator[tuple[str, Any]]:
    """Every force that is data, with numbers that differ from trajectory to trajectory where it may have them."""
    rng, nv, nq, inertia = np.random.default_rng(2), model.nv, model.nq, felt_inertia(model)
    straight = np.where(limited_coordinates(model) < 0, 0.0, 1.0)  # servos and stops need a coordinate

    def some(*shape: int) -> np.ndarray:
        return rng.normal(size=shape)

    def gains(size: float) -> np.ndarray:
        """For every trajectory, as large as explicit steps take."""
        return size * inertia * rng.uniform(1, 2, (STATES, nv))

    goal = model.random_configuration(rng, STATES)
    yield "nothing", ()
    yield "constant", ts.Constant(some(STATES, nv))
    times = STEP * np.array([0.0, 3.5, 7.0, 12.0])
    for between in ("linear", "previous", "cubic"):
        yield f"table, {between}", ts.Table(times, some(STATES, 4, nv), between)
    yield "servo", ts.PD(goal, straight * gains(25.0), gains(5.0))
    yield "feedback", ts.Feedback(inertia[:, None] * some(STATES, nv, nq + nv), some(STATES, nq + nv), gains(1.0))
    yield "gains in time", ts.Feedback(inertia[:, None] * some(STATES, 4, nv, nq + nv), 0.1, t=times)
    layers = [(some(5, nq + nv), some(5)), (inertia[:, None] * some(nv, 5), some(nv))]
    for activation in ("relu", "softsign"):
        yield f"policy, {activation}", ts.Policy(layers, activation)
    yield "friction", ts.Friction(gains(5.0), gains(0.1))
    yield "springs", ts.Spring(gains(25.0), model.neutral(), gains(5.0))
    bound = np.where(straight > 0, 0.3, np.inf)
    yield "stops", ts.Limits(-bound, bound, gains(25.0), gains(5.0))
    yield "wrenches", ts.External(some(STATES, model.n, 6))
    for between in ("linear", "previous"):
        yield f"wrenches in time, {between}", ts.External(some(4, model.n, 6), times, between)
    yield "pull", ts.Pull(model.names[-1], some(STATES, 3), some(STATES, 3))
    if nq == nv:
        path = ts.Cycloid(np.zeros(nv), np.ones(nv), 20 * STEP)
        yield "servo on its way", ts.PD(path, 9.0, 1.0)
        yield "computed torques", ts.ComputedTorque(path, 100.0, 20.0, replace(model, mass=1.1 * model.mass))


def start_of(model: ts.Model) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return model.random_configuration(rng, STATES), 0.3 * rng.normal(size=(STATES, model.nv))


def rolled(machine: Any, q: Any, v: Any, **options: Any) -> Any:
    """(states, numbers) of a rollout, where its states are."""
    path = ts.rollout(machine, q, v, **{"steps": STEPS, "step": STEP, "every": 5} | options)
    found = [x for x in (path.q, path.v, path.stop_time, path.stop_reason) if x is not None]
    return [x if isinstance(x, np.ndarray) else x.get() for x in found]


def flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.nan_to_num(x.astype(float), nan=-1.0).reshape(len(x), -1) for x in arrays], axis=1)


def rollout_job(cp: Any, label: str, machine: Any, q: Any, v: Any, **options: Any) -> Job:
    """A rollout on the device against the same one on the CPU."""

    def there() -> np.ndarray:
        again = {"reset": tuple(map(cp.asarray, options["reset"]))} if "reset" in options else {}
        return flat(rolled(machine, cp.asarray(q), cp.asarray(v), **options | again))

    return Job(f"ts.rollout, {label}", there, lambda: flat(rolled(machine, q, v, **options)))


def rollouts(name: str, cp: Any) -> Iterator[Job]:
    """A machine under every force that is data, by every method; its own joints and drives; weightless."""
    model = MACHINES[name]()
    q, v = start_of(model)
    straight = limited_coordinates(model) >= 0
    bound, effort = np.where(straight, 0.5, np.inf), np.where(straight, 5.0, np.inf)
    busy = replace(model, stiffness=2.0, damping=0.1, friction=0.3, lower=-bound, upper=bound, effort=effort, speed=0.9)
    servo = ts.PD(model.neutral(), np.where(straight, 9.0, 0.0), 1.0)
    for method in FIXED:
        for what, force in forces(model):
            yield rollout_job(cp, f"{what}, {method}, {name}", model, q, v, forces=force, method=method)
        yield rollout_job(cp, f"joints and drives, {method}, {name}", busy, q, v, forces=servo, method=method)
        yield rollout_job(cp, f"weightless, {method}, {name}", model, q, v, gravity=False, method=method)
        pushed = [ts.Function(lambda t, q, v: (1.0 + t) - 0.3 * v), ts.Friction(0.1), ts.Constant(np.ones(model.nv))]
        yield rollout_job(cp, f"a function and data, {method}, {name}", model, q, v, forces=pushed, method=method)


def stops(cp: Any) -> Iterator[Job]:
    """Trajectories that stop, and that begin again; with a machine of their own."""
    for name, make in MACHINES.items():
        model = make()
        q, v = start_of(model)
        height = float(np.median(ts.body_poses(model, q)[:, -1, 2, 3]))
        ends = [ts.Stop(v=model.nv - 1, below=-0.3, above=0.3), ts.Stop(frame=model.n - 1, below=height)]
        for machine, which in ((model, name), (varied(model), f"a batch of {name}")):
            for what, again in (("frozen", {}), ("reset", {"reset": (q[0], v[0])})):
                options = {"stop": ends, "steps": 20, **again}
                yield rollout_job(cp, f"stop, {what}, {which}", machine, q, v, **options)


def batches(cp: Any) -> Iterator[Job]:
    """Machines that differ in all that may differ."""
    for name, make in MACHINES.items():
        model = make()
        q, v = start_of(model)
        rng, straight = np.random.default_rng(3), limited_coordinates(model) >= 0
        least = {"friction": 0.0, "damping": 0.0, "effort": 0.5, "speed": 0.5, "armature": 0.01}
        fields = {key: rng.uniform(x, x + 1, (STATES, model.nv)) for key, x in least.items() if key in VARIABLE}
        fields |= {"upper": np.where(straight, rng.uniform(0.1, 0.5, (STATES, model.nv)), np.inf)}
        batch = ts.ModelBatch(model, **varied(model).varied, **fields)
        for method in FIXED:
            for what, force in (("", ()), (" with a pull", ts.Pull(model.names[-1], (0.0, 0.0, 5.0)))):
                yield rollout_job(cp, f"a batch of {name}{what}, {method}", batch, q, v, forces=force, method=method)


def ensembles(names: tuple[str, ...], cp: Any) -> Iterator[Job]:
    """Members on the device against members in lanes, by fixed and adaptive steps; adaptive ones agree to rtol."""
    near = {"dopri5": 1e-6}
    machines = {**MACHINES, "70 links": lambda: ts.zoo.random_chain(70, 2)}
    for name in names:
        model = machines[name]()
        straight = limited_coordinates(model) >= 0
        servo = ts.PD(model.neutral(), np.where(straight, 5.0, 0.0), 1.0)
        vary = {"*.density": ts.Uniform(low=0.8, high=1.2), "v0": ts.Uniform(low=-0.2, high=0.2)}
        sets = {"free": (), "servo and pull": [servo, ts.Pull(model.names[-1], (0.0, 0.0, 5.0))]}
        sets |= {"stops": ()}
        for what, acting in sets.items():
            for method in ("dopri5", *FIXED):
                end = {"stop": ts.Stop(v=model.nv - 1, below=-0.1, above=0.1)} if what == "stops" else {}
                options = {"forces": acting, "method": method, "step": STEP, "times": [0.005, 0.01], **end}
                study = partial(_study, model, vary, options)
                where = partial(study, "cuda"), partial(study, "cpu")
                yield Job(f"ts.ensemble, {what}, {method}, {name}", *where, tolerance=near.get(method, 1e-9))


def _study(model: ts.Model, vary: Any, options: dict[str, Any], device: str) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        found = ts.ensemble(model, vary, n=STATES, store=f"{folder}/runs.zarr", device=device, chunk=STATES, **options)
        names = ("q", "v", *(("stop_time",) if "stop" in options else ()))
        return flat([found[name] for name in names])


def simulations(cp: Any) -> Iterator[Job]:
    """`ts.simulate` of states on the device: short machines by one thread, a long chain by levels."""
    rope = replace(ts.zoo.random_chain(1100, 3), damping=0.5, stiffness=1.0)
    for name, model in {**{key: make() for key, make in MACHINES.items()}, "1100 links": rope}.items():
        rng = np.random.default_rng(0)
        q = model.neutral() if name == "1100 links" else model.random_configuration(rng)
        v, straight = 0.1 * rng.normal(size=model.nv), limited_coordinates(model) >= 0
        servo = ts.PD(model.neutral(), np.where(straight, 5.0, 0.0), 1.0)
        methods = (
            ("trbdf2", "esdirk4")
            if name == "1100 links"
            else ("auto", "dopri5", "rkf45", "dop853", "abm", "trbdf2", "esdirk4", *FIXED)
        )
        for method in methods:
            gains = ts.Feedback(0.1 * rng.normal(size=(model.nv, model.nq + model.nv)), 0.1)
            sets = {"free": (), "servo and friction": [servo, ts.Friction(0.1, 0.1, creep=0.1)]}
            sets |= {"gains and a function": [gains, lambda t, q, v: -0.1 * v]}
            for what, acting in sets.items():
                options = {"duration": 0.01, "rtol": 1e-6, "atol": 1e-8, "step": STEP, "dt": 0.005}
                run = partial(ts.simulate, model, method=method, forces=acting, **options)
                yield Job(
                    f"ts.simulate, {what}, {method}, {name}",
                    lambda run=run, q=q, v=v: flat([(x := run(cp.asarray(q), cp.asarray(v))).q, x.v]),
                    lambda run=run, q=q, v=v: flat([(x := run(q, v)).q, x.v]),
                    tolerance=1e-6,  # adaptive steps follow rounding
                )


def programs(unrolled: bool, which: Callable[[Case], bool], cp: Any) -> Iterator[Case]:
    """Programs of every function."""
    return (case for case in cases() if case.specialised == unrolled and which(case))


TREE = "tree of every joint type"
PARTS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "unrolled": partial(programs, True, lambda x: x.model != TREE),
    "unrolled-tree": partial(programs, True, lambda x: x.model == TREE and x.dtype == "float64"),
    "unrolled-tree-single": partial(programs, True, lambda x: x.model == TREE and x.dtype != "float64"),
    "looped": partial(programs, False, lambda x: True), "calls": plain_calls,
    "vjp-unrolled": partial(derivatives, "vjp", True), "vjp-looped": partial(derivatives, "vjp", False),
    "jvp-unrolled": partial(derivatives, "jvp", True), "jvp-looped": partial(derivatives, "jvp", False),
    "matrices": large_matrices, "chains": long_chains,
    "rollouts-arm": partial(rollouts, "arm"), "rollouts-humanoid": partial(rollouts, "humanoid"),
    "rollouts-links": partial(rollouts, "20 links"), "stops": stops, "batches": batches,
    "ensembles-arm": partial(ensembles, ("arm", "70 links")),
    "ensembles-humanoid": partial(ensembles, ("humanoid",)), "ensembles-links": partial(ensembles, ("20 links",)),
    "simulations": simulations, "others": other_functions, "brownian": brownian_motion,
}  # fmt: skip


class Rows:
    """The report, written after every row; rows of the same case are replaced."""

    def __init__(self, file: Path, cp: Any) -> None:
        self.file, self.lock, self.rows = file, Lock(), {}
        if file.exists():
            self.rows = {row["case"]: row for row in json.loads(file.read_text())["rows"]}
        self.about = {"device": cp.cuda.runtime.getDeviceProperties(0)["name"].decode(), "cupy": cp.__version__}

    def add(self, *new: dict[str, Any]) -> None:
        with self.lock:
            self.rows |= {row["case"]: row for row in new}
            rows = [*self.rows.values()]
            failed = [x for x in rows if not x["ok"]]
            write(self.file, self.about | {"cases": len(rows), "failed": failed, "rows": rows})
            if len(new) == 1 and not new[0]["ok"]:
                print(new[0], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"some of {', '.join(PARTS)}; all if none")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    parser.add_argument("--only", nargs="+", default=[], help="cases whose names contain all of these")
    parser.add_argument("--processes", type=int, default=1, help="how many parts run at the same time")
    options = parser.parse_args()
    if unknown := {*options.parts} - {*PARTS}:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    cp = cupy(__doc__)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    report = Rows(folder / "gpu_check.json", cp)
    if options.processes > 1:
        side_by_side(options.parts or [*PARTS], options.only, report, options.processes)
    else:
        in_turn(options.parts or [*PARTS], options.only, report, cp)


def side_by_side(parts: list[str], only: list[str], report: Rows, processes: int) -> None:
    """Every part in a process of its own: Python traces and writes one kernel at a time."""
    more = ["--only", *only] if only else []

    def run_part(part: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, __file__, part, *more, "--out", folder], check=False)
            file = Path(folder, "gpu_check.json")
            rows = json.loads(file.read_text())["rows"] if file.exists() else []
            report.add(*rows or [{"case": part, "part": part, "ok": False, "failure": "no report"}])

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(run_part, parts))


def in_turn(parts: list[str], only: list[str], report: Rows, cp: Any) -> None:
    """Part after part; the kernels of a part are compiled side by side."""
    np.ma.MaskedArray  # noqa: B018  loaded once, not by many threads at the same time
    models = {name: make() for name, make in (MODELS | {coupled_joints.__name__: coupled_joints}).items()}
    for part in parts:
        begin = time.perf_counter()
        wanted = [x for x in PARTS[part](cp) if all(text in x.label for text in only)]

        def done(job: Any) -> dict[str, Any]:
            row = {"part": part} | (job.run() if isinstance(job, Job) else run(job, models, cp))  # noqa: B023
            report.add(row)
            return row

        with ThreadPoolExecutor(WORKERS) as pool:
            rows = list(pool.map(done, wanted))
        worst = max((row["error"] for row in rows if "error" in row and "float32" not in row["case"]), default=0.0)
        failed = sum(not row["ok"] for row in rows)
        print(f"{part}: {len(rows)} cases, {failed} failed, worst float64 error {worst:.1e}, "
              f"{time.perf_counter() - begin:.0f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
