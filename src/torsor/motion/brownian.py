"""Brownian dynamics of chains: no inertia, any friction, rigid joints or stiff springs.

M. Fixman, Simulation of polymer dynamics. 1. General theory, J. Chem. Phys. 69 (1978): reference 2 of Lee & Chirikjian
2005. The friction of the bodies in joint coordinates is Z(q) = sum_i J_i^T zeta_i J_i: a mass matrix, with friction
coefficients in place of masses. So its square factor and Z^-1 b cost O(n). A step is

    R = sqrt(2 kT / step) W(q) xi,            Z = W W^T,   xi white noise
    q' = q [+] Z(q)^-1 (F + R) step / 2
    q  = q [+] Z(q')^-1 (F + R) step          the same force F + R, the mobility of the midpoint

The midpoint mobility adds the drift kT div Z^-1 that a changing mobility needs; [+] moves along a velocity, so that
quaternions stay unit quaternions. The force F decides the equilibrium weight of q (tau is the torque of the potential
U):

    rigid joints    F = tau + (kT/2) d log det M / dq       sqrt(det M) exp(-U / kT)
    stiff springs   F = tau + (kT/2) d log det G / dq       sqrt(det G) exp(-U / kT)

det G is constant for most machines (`fixman_force`): then stiff springs cost no gradient.

The step is lowered by `lowering.py`: its loop over time is machine code on a CPU, and on a GPU a replica never leaves
its thread. Where a rollout reads commands at several times of a step, this step reads the constant torques, the noise,
and half the temperature. The noise is drawn on the host: a seed gives the same path everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import articulated, square_factor
from torsor.backends.cpu import pool
from torsor.compiler.derivative import log_det_gradient
from torsor.dynamics import functions as dynamics
from torsor.dynamics.calls import gpu_array
from torsor.dynamics.fixman.measure import Pieces, pieces_of
from torsor.errors import ArgumentError, SingularError
from torsor.later import Later
from torsor.linalg import Scalar
from torsor.model.model import Model, require_model
from torsor.model.regular import require_uncoupled
from torsor.motion.forces import Function
from torsor.motion.law import Law, collect
from torsor.motion.lowering import Scalars, Step, lowered
from torsor.motion.plant import Plant
from torsor.motion.time_loop import StepRun
from torsor.validate import batch_of, flag, generator, integer, number, real_array

gpu = Later("torsor.backends.gpu")  # imported only if a GPU is used
gpu_rollout = Later("torsor.motion.gpu_rollout")

Array = NDArray[Any]
Potential = Callable[[Array], Array]  # q -> tau

FORCES, NOISE, TEMPERATURE = range(3)  # the rows of commands that a step reads
SLOTS = 3
CHUNK = 512  # replicas per thread
MOST_NUMBERS = 2**22  # numbers of commands drawn at once
MOST_FREEDOMS_ON_GPU = 40  # a step there is straight-line code


def brownian(
    model: Model, q: Any, *, steps: int, step: float, kT: float = 1.0, friction: ArrayLike | Model | None = None,
    stiff: bool = False, forces: Any = (), every: int = 1, rng: int | np.random.Generator | None = None,
) -> Any:  # fmt: skip
    """Move a machine by Brownian dynamics; batch axes are replicas.

    NumPy arrays run on the CPU's lanes, with a loop over time in machine code; CuPy, PyTorch and JAX arrays run on
    their GPU.

    Parameters
    ----------
    model : Model
        any joints; gravity, springs and friction of the joints do not act
    q : array (..., nq)
        initial coordinates
    steps, step : int, float
        the number of steps, and the length of one; without `friction`, in units of mass over friction
    kT : float
        the temperature, as an energy
    friction : array (n,) or Model
        per body: force per velocity of its mass centre, as for a bead. Or a Model with the same joints and placements:
        its masses and moments are the friction coefficients of translation and rotation, its mass centres the points
        where friction acts. Default: friction is proportional to mass, and step is in units of mass over friction
    stiff : bool
        whether the joints are stiff springs (the weights of `ts.fixman_force`) and not rigid
    forces : function, force or sequence of forces
        q -> tau, for example of a potential, called once per step with all replicas, (replicas, nq); or torques at
        joints as in `rollout` (`ts.Spring`, `ts.Constant`, ...), which are machine code, also on a GPU
    every : int
        one record per this many steps
    rng : int or Generator

    Returns
    -------
    array (records, ..., nq)

    Raises
    ------
    ArgumentError
        a shape does not fit, or a force cannot act here
    SingularError
        a motion meets no friction, or step is too long for the forces

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> from torsor.motion.brownian import brownian
    >>> chain = ts.zoo.point_chain(2)
    >>> brownian(chain, np.zeros((100, 2)), steps=20, step=0.01, rng=0, every=10).shape
    (2, 100, 2)
    """
    require_model(model)
    require_uncoupled(model, "Brownian dynamics")
    steps, every = integer("steps", steps, least=1), integer("every", every, least=1)
    length, kT = number("step", step, above=0), number("kT", kT, above=0)
    start = np.asarray(gpu.cupy().asnumpy(gpu.as_cupy(q, gpu.kind_of(q))) if gpu_array(q) else q)
    start = real_array("q", start).astype(np.float64)
    if start.ndim == 0 or start.shape[-1] != model.nq:
        raise ArgumentError(f"q has shape {start.shape}; {model!r} needs (..., {model.nq})")
    model.check_quaternions(start)
    drag, law = _drag(model, friction), _law(model, forces, start.shape)
    dynamics.mass_solve(drag, start, np.zeros((*start.shape[:-1], model.nv)))  # an error names a joint without friction
    overdamped = Overdamped.of(model, drag, flag("stiff", stiff))
    one = Step(overdamped, ("brownian", drag.key, stiff), law, SLOTS, asks=True)
    noise = Noise(model, law, length, kT, start.shape[:-1], generator("rng", rng))
    if gpu_array(q):
        return _on_gpu(one, noise, q, steps, every)
    return _on_cpu(one, noise, start, steps, every)


def _law(model: Model, forces: Any, shape: tuple[int, ...]) -> Law:
    """The law of the torques at the joints."""
    if callable(forces) and not hasattr(forces, "terms"):
        potential: Potential = forces
        forces = Function(lambda t, q, v: potential(q), needs_v=False)
    law = collect(model, forces, own=False)
    if law.schedules or law.load_names or law.tracked is not None:
        raise ArgumentError("forces of Brownian dynamics are torques at joints that do not change in time")
    axes = batch_of({"q": (shape, 1), "forces": (law.values.shape, 1), "torques": (law.constant.shape, 2)})
    if axes != shape[:-1]:
        raise ArgumentError(f"forces for {axes} replicas, but q has {shape[:-1]}")
    return law


def _on_cpu(step: Step, noise: Noise, q: Array, steps: int, every: int) -> Array:
    model, batch, m = step.model, q.shape[:-1], int(np.prod(q.shape[:-1]))
    x = np.concatenate([q.reshape(m, model.nq), np.zeros((m, model.nv))], axis=1)
    kept, width, kernels = steps // every, step.inputs["tau"][0], lowered(step)
    values = np.broadcast_to(step.law.values, (*batch, step.law.values.shape[-1]))
    values = values.reshape(m, step.law.values.shape[-1])
    stored = np.empty((m, kept, x.shape[1]))
    size = max(m, 1) if step.law.called else CHUNK  # functions see all replicas
    runs = {}
    for first in range(0, m, size):
        gain = values[first : first + size]
        given = {"tau": np.zeros((1, width)), "gain": gain}
        runs[first] = StepRun(
            kernels, len(gain), np.array([noise.length]), given, functions=step.law.called, alone=not batch
        )

    def move(first: int, block: range, commands: Array) -> None:
        """Move some replicas through a block of steps."""
        rows, ends = slice(first, first + size), [t + 1 - block.start for t in block if (t + 1) % every == 0]
        records, record = len(ends), block.start // every
        if not ends or ends[-1] < len(block):
            ends.append(len(block))
        path = np.empty((len(x[rows]), len(ends), x.shape[1]))
        runs[first](x[rows], lambda at, count: {"tau": commands[at : at + count, rows]}, ends, path)
        stored[rows, record : record + records] = path[:, :records]

    most = max(1, MOST_NUMBERS // max(1, m * width))
    with np.errstate(all="ignore"):
        for begin in range(0, kept * every, most):
            block = range(begin, min(begin + most, kept * every))
            commands = np.moveaxis(noise.commands(begin, len(block)).reshape(m, len(block), width), 1, 0)
            turn = partial(move, block=block, commands=commands)
            list(map(turn, runs) if len(runs) == 1 else pool().map(turn, runs))
    _require_finite(stored, noise.length)
    return np.moveaxis(stored[..., : model.nq], 1, 0).reshape(kept, *batch, model.nq)


def _on_gpu(step: Step, noise: Noise, q: Any, steps: int, every: int) -> Any:
    model, law, kind, cp = step.model, step.law, gpu.kind_of(q), gpu.cupy()
    if law.called:
        raise ArgumentError("Brownian dynamics on a GPU takes forces that are data, not functions: give NumPy arrays")
    if model.nv > MOST_FREEDOMS_ON_GPU:
        raise ArgumentError(
            f"Brownian dynamics on a GPU moves {MOST_FREEDOMS_ON_GPU} freedoms at most, not {model.nv}: give NumPy "
            "arrays"
        )
    x = gpu.as_cupy(q, kind)
    dtype = gpu.precision([x])
    kernel, modules = gpu_rollout.kernel_of(step, dtype=dtype, specialised=True), dict[str, Any]()
    per_step = max(1, int(np.prod(noise.batch))) * step.inputs["tau"][0]
    most = max(1, MOST_NUMBERS // per_step)  # steps of one launch
    still = cp.zeros((*noise.batch, model.nv), dtype)
    found: list[Any] = []
    for _ in range(steps // every):
        for begin in range(0, every, most):
            count = min(most, every - begin)
            path, _ = gpu_rollout.run(noise, kernel, modules, {"q": x, "v": still}, count, count)
            x = cp.ascontiguousarray(path[..., -1, :])
        found.append(x)
    result = cp.empty((len(found), *noise.batch, model.nq), dtype)
    for row, state in zip(result, found):
        row[...] = state
    _require_finite(cp.asnumpy(result), noise.length)
    return gpu.given_back(kind, result)


def _require_finite(stored: Array, length: float) -> None:
    if not np.isfinite(stored).all():
        raise SingularError(f"Brownian dynamics left all numbers: take steps shorter than {length:g}")


class Noise(NamedTuple):
    """The commands and numbers of the steps, with the methods of `driver.Fixed`."""

    model: Model
    law: Law
    length: float
    kT: float
    batch: tuple[int, ...]
    rng: np.random.Generator

    begin: float = 0.0

    def commands(self, first: int, count: int, t0: float = 0.0) -> Array:
        """The commands of `count` steps, (..., count, SLOTS * nv): the noise is new in every call."""
        nv, size = self.model.nv, np.sqrt(2 * self.kT / self.length)
        rows = np.zeros((*self.batch, count, SLOTS, nv))
        rows[..., FORCES, :] = self.law.constant[..., :1, :]
        rows[..., NOISE, :] = size * np.moveaxis(self.rng.standard_normal((count, *self.batch, nv)), 0, -2)
        rows[..., TEMPERATURE, :] = self.kT / 2
        return rows.reshape(*self.batch, count, SLOTS * nv)

    def values(self, first: int, count: int, t0: float = 0.0) -> Array:
        """The law's numbers, which do not change, (..., 1, k)."""
        return self.law.values[..., None, :]


@dataclass(frozen=True)
class Overdamped:
    """A step without inertia: (q, v) -> (q', v).

    The force contains kT/2 times the gradient of the logarithm of a determinant.

    drag    the machine whose mass matrix is the friction
    weight  the machine with this determinant of the mass matrix
    pieces  or the pieces with this determinant (`measure.Pieces`);  neither: the determinant is constant
    """

    drag: Model
    weight: Model | None = None
    pieces: Pieces | None = None

    @classmethod
    def of(cls, model: Model, drag: Model, stiff: bool) -> Overdamped:
        return cls(drag, pieces=pieces_of(model)) if stiff else cls(drag, model)

    def __call__(self, plant: Plant, q: Scalars, v: Scalars, h: Scalar) -> list[Scalar]:
        assert plant.evaluate is not None
        _, noise, half_kT = plant.commands
        force = plant.evaluate(square_factor.apply, self.drag, q, noise)
        still = [0.0] * plant.model.nv
        force = [x + action.tau for x, action in zip(force, plant.actions(q, still)[0])]
        force = [x + y * half_kT[0] for x, y in zip(force, self._gradient(plant, q))]
        middle = self._moved(plant, q, q, force, h * 0.5)
        return [*plant.normalised(self._moved(plant, q, middle, force, h)), *v]

    def _moved(self, plant: Plant, q: Scalars, at: Scalars, force: Scalars, h: Scalar) -> list[Scalar]:
        """q moved by the force for a time h, with the mobility of the configuration `at`."""
        assert plant.evaluate is not None
        rates = plant.evaluate(articulated.mass_solve, self.drag, at, force)
        return plant.retracted(q, [h * x for x in rates])

    def _gradient(self, plant: Plant, q: Scalars) -> Scalars:
        assert plant.evaluate is not None
        if self.weight is not None:
            return plant.evaluate(log_det_gradient, self.weight, q)
        every: list[Scalar] = [0.0] * plant.model.nv
        if self.pieces is None:
            return every
        coordinates = [[*q, 0.0, 1.0][k] for k in self.pieces.columns.tolist()]
        found = plant.evaluate(log_det_gradient, self.pieces.model, coordinates)
        for k, freedom in zip(self.pieces.own.tolist(), self.pieces.freedoms.tolist()):
            every[freedom] = found[k]
        return every


def _drag(model: Model, friction: ArrayLike | Model | None) -> Model:
    """The machine whose mass matrix is the friction."""
    bare = replace(model, armature=np.zeros(model.nv))
    if friction is None:
        return bare
    if isinstance(friction, Model):
        placed = "parent", "joint", "axis", "pitch", "R", "p"
        if not all(np.array_equal(getattr(model, key), getattr(friction, key)) for key in placed):
            raise ArgumentError(f"friction: {friction!r} must have the joints and placements of {model!r}")
        return friction
    beads = real_array("friction", friction)
    if beads.shape != (model.n,) or (beads < 0).any():
        raise ArgumentError(
            f"friction must be {model.n} numbers, one per body, none negative; its shape is {beads.shape}"
        )
    com = np.where(beads[:, None] > 0, model.com, 0.0)
    return replace(bare, mass=beads, com=com, inertia=np.zeros((model.n, 3, 3)), allow_degenerate=True)
