"""Rollouts: many trajectories of one model, with a whole step of the integrator in one kernel.

The step is written once, over any scalar.  Tracing turns it into a tape.  On the CPU this tape is a kernel that moves a
vector of states by one step; on the GPU it is the body of a loop over time in which a state never leaves its thread.
Models too large to unroll take the same step around a loop kernel for the accelerations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import validate
from torsor.algorithms import articulated
from torsor.compiler.request import NEVER, QUICK, Request
from torsor.compiler.store import store
from torsor.compiler.tape import Code, Tape
from torsor.errors import ArgumentError
from torsor.linalg import Scalar, Vec
from torsor.model.joints import JOINTS
from torsor.model.model import Model, require_model
from torsor.model.regular import require_uncoupled
from torsor.reference import base_of, scatter
from torsor.sweeps import run

if TYPE_CHECKING:
    from torsor.backends.cuda import RolloutKernel

Array = NDArray[Any]
Scalars = Sequence[Scalar]
Accelerate = Callable[[Scalars, Scalars], Scalars]

GPU_UNROLL_FREEDOMS = 12  # a step of RK4 is four times the forward dynamics, all unrolled
CHUNK = 1024  # states that a thread moves through all steps before it takes the next ones: they stay in its cache


class Rollout(NamedTuple):
    """The states after every k-th step: q (..., stored, nq), v (..., stored, nv)."""

    q: Any
    v: Any


@dataclass(frozen=True)
class LinearFeedback:
    """tau = Kq (q_ref - q) + Kv (v_ref - v), the same for all trajectories.

    Kq (nv, nq) and Kv (nv, nv), or their diagonals (nv,); the references default to zero.
    """

    Kq: ArrayLike
    Kv: ArrayLike
    q_ref: ArrayLike = 0.0
    v_ref: ArrayLike = 0.0


# One step, over any scalar -----------------------------------------------------------------------------------


def semi_implicit(model: Model, accelerate: Accelerate, q: Scalars, v: Scalars, h: Scalar) -> tuple[Scalars, Scalars]:
    """v' = v + h a(q, v),   q' = q + h N(q) v'                              (symplectic Euler, first order)"""
    v = _moved(v, accelerate(q, v), h)
    return _moved(q, rate(model, q, v), h), v


def rk4(model: Model, accelerate: Accelerate, q: Scalars, v: Scalars, h: Scalar) -> tuple[Scalars, Scalars]:
    """y' = y + h/6 (k1 + 2 k2 + 2 k3 + k4) for y = (q, v)                   (Kutta 1901, fourth order)"""
    n, y = len(q), [*q, *v]

    def f(y: Scalars) -> Scalars:
        return [*rate(model, y[:n], y[n:]), *accelerate(y[:n], y[n:])]

    half = h * 0.5
    k1 = f(y)
    k2 = f(_moved(y, k1, half))
    k3 = f(_moved(y, k2, half))
    k4 = f(_moved(y, k3, h))
    y = _moved(y, [a + d + (b + c) * 2.0 for a, b, c, d in zip(k1, k2, k3, k4)], h * (1 / 6))
    return y[:n], y[n:]


INTEGRATORS = {"semi-implicit": semi_implicit, "rk4": rk4}


def _moved(x: Scalars, rate: Scalars, h: Scalar) -> list[Scalar]:
    return [a + b * h for a, b in zip(x, rate)]


def rate(model: Model, q: Scalars, v: Scalars) -> list[Scalar]:
    """dq/dt = N(q) v, joint by joint."""
    parts = zip(_by_joint(model, q, model.q_start), _by_joint(model, v, model.v_start))
    return [x for code, (own_q, own_v) in zip(model.joint, parts) for x in JOINTS[code].rate(own_q, own_v)]


def normalised(model: Model, q: Scalars) -> list[Scalar]:
    """q with every quaternion at unit length."""
    parts = _by_joint(model, q, model.q_start)
    return [x for code, own in zip(model.joint, parts) for x in JOINTS[code].normalised(own)]


def _by_joint(model: Model, x: Scalars, start: Array) -> list[Vec]:
    return [Vec.of(x[i:j]) for i, j in zip(start[:-1].tolist(), start[1:].tolist())]


def step(model: Model, integrator: str, gains: Array, accelerate: Callable[[Scalars, Scalars, Scalars], Scalars],
         q: Scalars, v: Scalars, tau: Scalars, gain: Scalars, h: Scalar) -> list[Scalar]:  # fmt: skip
    """(q', v') under the torques tau - K (q, v); `gains` says which entries of K there are, `gain` their values."""
    rows = [[(int(k), gain[n]) for n, (r, k) in enumerate(gains) if r == i] for i in range(model.nv)]

    def controlled(q: Scalars, v: Scalars) -> Scalars:
        x = [*q, *v]
        torques = list(tau)
        for i, row in enumerate(rows):
            for k, value in row:
                torques[i] = torques[i] - value * x[k]
        return accelerate(q, v, torques)

    q, v = INTEGRATORS[integrator](model, controlled, q, v, h)
    return [*normalised(model, q), *v]


# The public function -----------------------------------------------------------------------------------------


def rollout(model: Model, q: Any, v: Any, *, steps: int, dt: float, tau: Any = None, table: Any = None,
            feedback: LinearFeedback | None = None, every: int = 1,
            integrator: str = "semi-implicit") -> Rollout:  # fmt: skip
    """Trajectories from the states q (..., nq), v (..., nv): `steps` steps of length dt, every k-th state kept.

    tau         (..., nv) constant torques
    table       (..., steps, nv) torques held over each step
    feedback    a `LinearFeedback` law, added to both and evaluated wherever the integrator evaluates accelerations
    every       keep the state after each `every`-th step: steps // every states per trajectory
    integrator  "semi-implicit" (Euler, one evaluation per step) or "rk4" (four)

    NumPy arrays run on the CPU's lanes and threads; CuPy, PyTorch and JAX arrays run on their GPU, where a trajectory
    never leaves its thread.  A trajectory that diverges ends in inf or nan and does not affect the others.
    """
    task = Task.of(model, steps, dt, tau, table, feedback, every, integrator)
    if not isinstance(q, np.ndarray) and hasattr(q, "__dlpack_device__"):
        from torsor.backends import gpu

        if gpu.on_device(q):
            return _on_gpu(model, q, v, task)
    return _on_cpu(model, q, v, task)


@dataclass(frozen=True)
class Law:
    """Torques in the form that a kernel takes: tau (..., nv) - K (q, v), K sparse; tau includes the references."""

    gains: Array  # (k, 2): row, column of the entries of K
    values: Array  # (k,), never empty
    constant: Array  # (nv,)


class Task(NamedTuple):
    """What is done to every state: the arguments of `rollout`, checked."""

    steps: int
    dt: float
    tau: Any
    table: Any
    law: Law
    every: int
    integrator: str

    @classmethod
    def of(cls, model: Model, steps: int, dt: float, tau: Any, table: Any, feedback: LinearFeedback | None, every: int,
           integrator: str) -> Task:  # fmt: skip
        require_model(model)
        require_uncoupled(model, "a rollout")
        validate.chosen("integrator", integrator, INTEGRATORS)
        steps, every = validate.integer("steps", steps, least=1), validate.integer("every", every, least=1)
        if every > steps:
            raise ArgumentError(f"steps = {steps} and every = {every} must satisfy 1 <= every <= steps")
        dt = validate.number("dt", dt, above=0.0)
        if not isinstance(feedback, LinearFeedback | None):
            raise ArgumentError(f"feedback must be a LinearFeedback, not {validate.shown(feedback)}")
        return cls(steps, dt, tau, table, law_of(model, feedback), every, integrator)


def law_of(model: Model, feedback: LinearFeedback | None) -> Law:
    if feedback is None:
        return Law(np.zeros((0, 2), int), np.zeros(1), np.zeros(model.nv))
    K = np.concatenate([_gain(model, "Kq", feedback.Kq, model.nq), _gain(model, "Kv", feedback.Kv, model.nv)], axis=1)
    reference = np.concatenate([
        np.broadcast_to(validate.real_array(name, x, (), (size,)), (size,))
        for name, x, size in (("q_ref", feedback.q_ref, model.nq), ("v_ref", feedback.v_ref, model.nv))
    ])  # fmt: skip
    gains = np.argwhere(K)
    return Law(gains, K[tuple(gains.T)] if len(gains) else np.zeros(1), K @ reference)


def _gain(model: Model, name: str, K: ArrayLike, columns: int) -> Array:
    matrix = validate.real_array(name, K)
    if matrix.shape == (model.nv,) and columns == model.nv:
        matrix = np.diag(matrix)
    if matrix.shape != (model.nv, columns):
        raise ArgumentError(f"{name} has shape {matrix.shape}; finite gains ({model.nv}, {columns}) are needed")
    return matrix


def traced_step(model: Model, integrator: str, gains: Array) -> Callable[..., list[Scalar]]:
    """The step with the forward dynamics written out in it: a function of lists q, v, tau, gain and [h]."""
    from torsor.compiler.frames import straight_line_frames

    frames = straight_line_frames(model)
    links, parent = [frames.link(i) for i in range(model.n)], model.parent.tolist()
    base = base_of(model.gravity.tolist())

    def accelerate(q: Scalars, v: Scalars, tau: Scalars) -> Scalars:
        return run(articulated.forward_dynamics, links, parent, base, scatter(model, {"q": q, "v": v, "tau": tau}))

    def rollout_step(q: Scalars, v: Scalars, tau: Scalars, gain: Scalars, h: Scalars) -> list[Scalar]:
        return step(model, integrator, gains, accelerate, q, v, tau, gain, h[0])

    return rollout_step


def stages(model: Model, integrator: str, law: Law) -> tuple[list[Code], Code]:
    """The step cut where it needs accelerations: the code of (q, v, tau) at each such stage, and of the end.

    Stage s may read the accelerations found by earlier ones, as inputs ("a<r>", i); its outputs are ("out", k).
    """
    tape = Tape()
    asked: list[dict[Any, Any]] = []

    def accelerate(q: Scalars, v: Scalars, tau: Scalars) -> Scalars:
        asked.append({("out", k): x for k, x in enumerate([*q, *v, *tau])})
        return [tape.input((f"a{len(asked) - 1}", i)) for i in range(model.nv)]

    q, v, tau, gain, h = (
        [tape.input((name, i)) for i in range(shape[0])] for name, shape in step_inputs(model, law).items()
    )
    end = step(model, integrator, law.gains, accelerate, q, v, tau, gain, h[0])
    return [Code.of(tape, x) for x in asked], Code.of(tape, {("out", k): x for k, x in enumerate(end)})


def step_inputs(model: Model, law: Law) -> dict[str, tuple[int, ...]]:
    return {"q": (model.nq,), "v": (model.nv,), "tau": (model.nv,), "gain": law.values.shape, "h": (1,)}


# On the CPU --------------------------------------------------------------------------------------------------


def _on_cpu(model: Model, q: ArrayLike, v: ArrayLike, task: Task) -> Rollout:
    from torsor.backends.cpu import pool

    steps, dt, tau, table, law, every, integrator = task
    flat, batch, dtype = flattened(model, {"q": q, "v": v, "tau": tau, "table": table}, steps)
    count, width = len(flat["q"]), model.nq + model.nv
    validate.check_memory("steps", count * (steps // every) * width * 8)
    stored = np.empty((count, steps // every, width), dtype)
    move = mover(model, integrator, law, np.dtype(dtype).name)
    gain, h = law.values.astype(dtype), np.array([dt], dtype)

    def chunk(first: int) -> None:
        part = slice(first, first + CHUNK)
        x = np.concatenate([flat["q"][part], flat["v"][part]], axis=1)
        torques = held(model, law, {name: y[part] for name, y in flat.items()})
        y = np.empty_like(x)
        for t in range(steps):
            move(x[:, : model.nq], x[:, model.nq :], torques(t), gain, h, y)
            x, y = y, x
            if (t + 1) % every == 0:
                stored[part, t // every] = x

    list(pool().map(chunk, range(0, count, CHUNK)))
    stored = stored.reshape(*batch, steps // every, width)
    return Rollout(stored[..., : model.nq], stored[..., model.nq :])


def flattened(model: Model, given: Mapping[str, Any], steps: int) -> tuple[dict[str, Array], tuple[int, ...], Any]:
    """The arrays that are given, with one batch axis; the batch axes, and the number type."""
    arrays = {name: _checked(model, name, x, steps) for name, x in given.items() if x is not None}
    dtype = np.float32 if all(x.dtype == np.float32 for x in arrays.values()) else np.float64
    try:
        batch = np.broadcast_shapes(*(x.shape[: x.ndim - 1 - (name == "table")] for name, x in arrays.items()))
    except ValueError:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in arrays.items())
        raise ArgumentError(f"the batch axes do not go together: {shapes}") from None
    flat = {
        name: np.broadcast_to(x, batch + x.shape[x.ndim - 1 - (name == "table") :]).reshape(
            -1, *x.shape[x.ndim - 1 - (name == "table") :]).astype(dtype, copy=False)
        for name, x in arrays.items()
    }  # fmt: skip
    return flat, batch, dtype


def held(model: Model, law: Law, flat: Mapping[str, Array]) -> Callable[[int], Array]:
    """The torques without feedback in each step."""
    constant = np.broadcast_to(law.constant.astype(flat["q"].dtype), (len(flat["q"]), model.nv))
    constant = constant + flat["tau"] if "tau" in flat else constant
    return lambda t: constant + flat["table"][:, t] if "table" in flat else constant


def _checked(model: Model, name: str, x: Any, steps: int) -> Array:
    array = validate.array(name, x)
    core = {"q": (model.nq,), "table": (steps, model.nv)}.get(name, (model.nv,))
    if array.dtype.kind not in "fiub" or array.shape[array.ndim - len(core) :] != core or array.ndim < len(core):
        wanted = ", ".join(map(str, core))
        raise ArgumentError(f"{name} is {array.dtype} {array.shape}; {model!r} needs real numbers (..., {wanted})")
    if not np.isfinite(array).all():
        raise ArgumentError(f"{name} holds numbers that are not finite")
    if name == "q":
        model.check_quaternions(array)
    return array


def mover(model: Model, integrator: str, law: Law, dtype: str) -> Callable[..., Any]:
    """move(q, v, tau, gain, h, out): one step of many states, kept with the model."""
    make = _unrolled_mover if model.nv <= QUICK.freedoms else _looped_mover
    key = "rollout", integrator, law.gains.tobytes(), dtype
    return store(model).once(key, lambda: make(model, integrator, law, dtype))


def _unrolled_mover(model: Model, integrator: str, law: Law, dtype: str) -> Callable[..., Any]:
    from torsor.backends.pointwise import compile_pointwise

    return compile_pointwise(traced_step(model, integrator, law.gains), step_inputs(model, law), dtype)


def _looped_mover(model: Model, integrator: str, law: Law, dtype: str) -> Callable[..., Any]:
    from torsor.backends.cpu import compile_program

    program = compile_program(articulated.forward_dynamics, model, dtype=dtype)

    def accelerate(*columns: Any) -> Scalars:
        return list(program(*(np.stack(x, axis=-1) for x in columns)).T)

    def move(q: Array, v: Array, tau: Array, gain: Array, h: Array, out: Array) -> None:
        out.T[:] = step(model, integrator, law.gains, accelerate, list(q.T), list(v.T), list(tau.T), list(gain), h[0])

    return move


# On the GPU --------------------------------------------------------------------------------------------------


def gpu_kernel(model: Model, integrator: str, law: Law, *, dtype: str, trig: str = "accurate", tabulated: bool = False,
               specialised: bool | None = None) -> RolloutKernel:  # fmt: skip
    """The kernel of a rollout: its step unrolled, or cut into stages around the loop kernel of a large model."""
    from torsor.backends.cuda import Kernel, RolloutKernel
    from torsor.backends.pointwise import trace

    inputs = step_inputs(model, law)
    shape, bits = (model.nq + model.nv,), 64 if dtype == "float64" else 32
    sizes = tuple((name, s[0]) for name, s in inputs.items())
    if specialised or (specialised is None and model.nv <= GPU_UNROLL_FREEDOMS):
        code = trace(traced_step(model, integrator, law.gains), inputs)
        return RolloutKernel(Kernel(code, sizes, shape, bits, trig), (), None, tabulated)
    dynamics = Kernel.of(Request(articulated.forward_dynamics, model, dtype=dtype, unroll=NEVER), trig)
    codes, end = stages(model, integrator, law)
    return RolloutKernel(Kernel(end, sizes, shape, bits, trig), tuple(codes), dynamics, tabulated)


def _on_gpu(model: Model, q: Any, v: Any, task: Task) -> Rollout:
    from torsor.backends.gpu import run_rollout

    steps, dt, tau, table, law, every, integrator = task
    double = any("float64" in str(x.dtype) for x in (q, v, tau, table) if hasattr(x, "dtype"))
    dtype = "float64" if double else "float32"
    key = "cuda rollout", integrator, law.gains.tobytes(), dtype, table is not None
    modules: dict[str, Any]
    kernel, modules = store(model).once(
        key, lambda: (gpu_kernel(model, integrator, law, dtype=dtype, tabulated=table is not None), {})
    )
    arrays = {"q": q, "v": v, "tau": tau, "table": table}
    return Rollout(*run_rollout(model, kernel, modules, arrays, law.values, law.constant, steps, dt, every))
