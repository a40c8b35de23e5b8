"""One motion on an NVIDIA GPU: the same integrators, with states that stay on the device.

A state is a CuPy array. NumPy's functions pass such arrays to CuPy, so the steppers are those of the host. This file
contains what differs: the right-hand side, the torques at the joints, and the maps of curved joints. A long chain is
solved by levels (`parallel/device.py`), all links at once; a short machine by the kernel that computes one state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from math import sqrt
from typing import Any

import numpy as np

from torsor.algorithms import articulated
from torsor.backends import gpu
from torsor.backends.pointwise import trace
from torsor.dynamics.calls import levels
from torsor.errors import ArgumentError, SingularError
from torsor.model.joints import Joint
from torsor.model.model import Model
from torsor.motion import steps
from torsor.motion.coordinates import Array, Coordinates, joint_map
from torsor.motion.device_run import DeviceRun
from torsor.motion.law import Law
from torsor.motion.lowering import Step
from torsor.motion.motion import ADDED, CompiledLaw, Motion, compiled_with, torques_and_slopes
from torsor.sweeps import Algorithm

# The other methods need sweeps without a version in levels: complex pivots, momenta, discrete mechanics.
METHODS = ("auto", "dopri5", "rkf45", "dop853", "abm", "trbdf2", "esdirk4", *steps.METHODS)
# Levels divide by the numbers added to the pivots, and lose digits in proportion to pivot / added. So they add at least
# SHARE of a pivot, the largest over some CONFIGURATIONS; further solves remove the difference. Ten digits remain, eight
# for a chain that is curled up.
SHARE, CONFIGURATIONS, ROUNDS, SETTLED = 1e-7, 3, 12, 1e-10


class DeviceCoordinates(Coordinates):
    """`Coordinates` of arrays on the device."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        place = gpu.cupy().asarray
        self._plain = tuple(map(place, self._plain))
        self._curved = [(joint, place(q), place(v)) for joint, q, v in self._curved]
        self.quaternion, self._velocity_of = place(self.quaternion), place(self.velocity_of)

    def of_velocity(self, x: Array) -> Array:
        return x if self.flat else x[self._velocity_of]

    def gathered(self, x: Array) -> Array:
        return gpu.cupy().bincount(self._velocity_of, x, self.nv)

    def weighted(self, weights: Array, values: Array) -> Array:
        columns = gpu.cupy().asarray(weights)
        total = columns[:, :1] * values[0]
        for k in range(1, len(values)):
            total = total + columns[:, k : k + 1] * values[k]
        return total

    def normalise(self, q: Array) -> Array:
        return super().normalise(q) if not self.flat else q[..., :0]

    def _compiled(self, joint: Joint, name: str) -> Callable[..., Array]:
        return _map_on_device(joint, name)


@cache
def _map_on_device(joint: Joint, name: str) -> Callable[..., Array]:
    function, inputs = joint_map(joint, name)
    return gpu.Pointwise(trace(function, inputs), inputs)


class DeviceLaw(CompiledLaw):
    """`CompiledLaw` of states on the device: functions take CuPy arrays."""

    def __init__(self, law: Law) -> None:
        self.law = law
        step = Step(torques_and_slopes, "torques and slopes", law, 1, implicit=True, moves=False)
        given = {"tau": law.constant.reshape(1, -1), "gain": law.values[None]}
        given |= {name: x[None] for name, x in (law.loads or {}).items()}
        self.run = DeviceRun(step, np.ones(1), given, functions=law.called)

    def loads(self, t: float) -> list[Array]:
        return [gpu.cupy().asarray(x) for x in super().loads(t)]

    def __call__(self, t: float, q: Array, v: Array) -> Array:
        law, run, at = self.law, self.run, np.array([t])
        run.t = t
        if law.changes:
            run.write({"tau": law.commands_at(at)})
        if law.schedule is not None:
            run.write({"gain": law.values_at(at)})
        return run.once(q[None], v[None])[0]


class DeviceMotion(Motion):
    """`Motion` whose states are CuPy arrays."""

    program = None  # no host program: stages are not fused

    def __init__(self, model: Model, forces: Any, dynamics: str, method: str) -> None:
        if method not in METHODS:
            raise ArgumentError(
                f"method {method!r} runs on the host only: give NumPy arrays, or choose one of {', '.join(METHODS)}"
            )
        if dynamics != "auto":
            raise ArgumentError(f"on a GPU, dynamics must be 'auto', not {dynamics!r}: the length of the chain decides")
        if model.couplings:
            raise ArgumentError(f"{model!r} has joints that follow others: simulate it with NumPy arrays")
        super().__init__(model, forces)
        if "pulls" in self.law.load_names and self._is_long:
            raise ArgumentError(
                f"a Pull acts on fewer than {gpu.LONG_CHAIN} links of a GPU: simulate with NumPy arrays"
            )
        self.on_host = self.compiled_law
        self._coordinates_on_host, self.coordinates = self.coordinates, DeviceCoordinates(model)
        self.compiled_law = DeviceLaw(self.law)
        self.accelerate = self._accelerate
        self._asked: Array | None = None  # the last array added to the pivots, and whether it is too small for levels
        self._is_little = False

    def check_forces(self, t: float, q: Array, v: Array) -> None:
        """Check that functions of the state return nv numbers on the device."""
        if self.law.called:
            self.compiled_law(t, self.place(q), self.place(v))

    @property
    def is_free(self) -> bool:
        return False

    @property
    def coordinates_on_host(self) -> Coordinates:
        return self._coordinates_on_host

    @staticmethod
    def place(x: Array) -> Array:
        return gpu.cupy().asarray(x)

    @staticmethod
    def fetch(x: Array) -> Array:
        return gpu.cupy().asnumpy(x)

    def _choose(self) -> Any:
        return self._accelerate

    def _accelerate(self, t: float, q: Array, v: Array, out: Array) -> None:
        out[:] = self._solver(self._dynamics)(q, v, self.torque(t, q, v), *self._loads(t))

    def torques(self, t: Array, q: Array, v: Array) -> Array:
        """The torques of many states, from and to the host."""
        if self.law.is_data:
            return self.on_host.many(t, q, v)[:, 0] + self._felt(t, q, v)
        own = [self.fetch(self.torque(*state)) for state in zip(t.tolist(), self.place(q), self.place(v))]
        return np.array(own).reshape(v.shape) + self._felt(t, q, v)

    def steps(self, step: Step, h: float, given: Mapping[str, Array], times: Sequence[float]) -> Any:
        solve = self._solve if self._is_long else None
        return DeviceRun(step, np.array([h]), given, times, self.law.called, solve=solve)

    def _solve(self, algorithm: Algorithm, options: Sequence[str], args: Sequence[Array]) -> Array:
        """The accelerations of one state of a long chain, (1, nv)."""
        q, v, tau, *more = (x[0] for x in args)
        added = more.pop(0) if "added_inertia" in options else None
        pushes = [x.ravel() for x in more]
        if added is None:
            return self._solver(algorithm)(q, v, tau, *pushes)[None]
        return self._raised(algorithm, (q, v), tau, added, pushes)[None]

    def implicit(self, t: float, q: Array, v: Array, tau: Array, added: Array) -> Array:
        return self._raised(self._dynamics, (q, v), tau, added, self._loads(t))

    def implicit_solve(self, q: Array, b: Array, added: Array) -> Array:
        return self._raised(articulated.mass_solve, (q,), b, added, ())

    def _raised(self, algorithm: Algorithm, state: tuple[Array, ...], tau: Array, added: Array, pushes: Any) -> Array:
        """x with (M + diag(added)) x = tau - ..., by levels, which add at least `SHARE` to every pivot."""
        solve = self._solver(algorithm, True)
        if not self._is_long:
            return solve(*state, tau, *pushes, added)
        if self._asked is not added:  # an implicit step passes the same array many times
            self._asked, self._is_little = added, bool((added < self._least).any())
        if not self._is_little:
            return solve(*state, tau, *pushes, added)
        if not added.any():
            return self._solver(algorithm)(*state, tau, *pushes)
        more = np.maximum(added, self._least)
        x = solve(*state, tau, *pushes, more)
        last = _length(x)
        for _ in range(ROUNDS):  # (M + R') x_k+1 = ... + (R' - R) x_k: the error falls as fast as the changes do
            x, before = solve(*state, tau + (more - added) * x, *pushes, more), x
            change = _length(x - before)
            if not change > 0 or change * change <= SETTLED * last * _length(x):
                return x
            last = change
        raise self._uneven()

    @property
    def _is_long(self) -> bool:
        return self.model.n >= gpu.LONG_CHAIN

    @property
    def _dynamics(self) -> Algorithm:
        return self.on_host.step.step.algorithm

    def _loads(self, t: float) -> tuple[Array, ...]:
        """The loads on the bodies at a time."""
        if self.law.waves:
            return self._laid(t)
        return self._constant

    @cached_property
    def _constant(self) -> tuple[Array, ...]:
        return self._laid(0.0)

    def _laid(self, t: float) -> tuple[Array, ...]:
        return tuple(x.ravel() if self._is_long else x for x in self.compiled_law.loads(t))

    @cached_property
    def _least(self) -> Array:
        pivots, rng = compiled_with(self.model, articulated.pivots, ()), np.random.default_rng(0)
        some = [self.model.neutral(), *self.model.random_configuration(rng, CONFIGURATIONS)]
        return self.place(SHARE * np.max([pivots(q) for q in some], axis=0))

    def _solver(self, algorithm: Algorithm, added: bool = False) -> Callable[..., Array]:
        """(q, v, tau) or (q, b), wrenches if any, and with `added` the numbers added to the pivots -> accelerations."""
        loads = self.law.load_names if algorithm is self._dynamics else ()
        options = (*loads, *ADDED[:added])
        if not self._is_long:
            return lambda *args: gpu.program(algorithm, self.model, args, options, None)(*args)
        try:
            chain = levels(algorithm, self.model, options)
        except (ArgumentError, SingularError) as error:
            raise type(error)(f"on a GPU, {error}; or simulate with NumPy arrays") from None
        if chain is None:
            raise self._uneven()
        return chain

    def _uneven(self) -> SingularError:
        return SingularError(
            f"{self.model!r} is too uneven for the levels of a GPU, which would lose digits: simulate it with NumPy "
            "arrays"
        )


def _length(x: Array) -> float:
    return sqrt(float(x.dot(x)))
