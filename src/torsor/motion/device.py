"""One motion on an NVIDIA GPU: the same integrators, with states that stay on the device.

A state is a CuPy array there. NumPy's functions hand such arrays on to CuPy's, so the steppers are those of the host.
What differs is here: the right-hand side, what acts at the joints, and the maps of curved joints. A long chain is
solved by levels (`parallel/device.py`), all links at once; a short machine by the kernel that computes one state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from math import sqrt
from typing import Any

import numpy as np

from torsor.algorithms import articulated
from torsor.backends import gpu
from torsor.compiler.store import store
from torsor.dynamics.calls import levels
from torsor.errors import ArgumentError, SingularError
from torsor.model.freedoms import limited_coordinates
from torsor.model.joints import Joint
from torsor.model.model import Model
from torsor.motion.coordinates import Array, Coordinates, joint_map
from torsor.motion.law import Law
from torsor.motion.lowering import Step, gains_by_freedom
from torsor.motion.motion import ADDED, CompiledLaw, Motion, compiled_with, torques_and_slopes
from torsor.sweeps import Algorithm
from torsor.validate import shown

# The others need sweeps that are not cut into levels: complex pivots, momenta, discrete mechanics.
METHODS = ("auto", "dopri5", "rkf45", "dop853", "abm", "trbdf2", "esdirk4")
# Levels divide by what is added to the pivots, and lose as many digits as it is smaller than they are. So they add at
# least this share of a pivot, the largest in some configurations; further solves remove the difference. Ten digits are
# then left, eight where a chain is curled up.
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
    return gpu.Pointwise(*joint_map(joint, name))


class DeviceLaw(CompiledLaw):
    """`CompiledLaw` of states on the device: data at joints that act each by themselves, functions of CuPy arrays."""

    def __init__(self, law: Law) -> None:
        local = law.is_diagonal and law.schedule is None and not law.waves and "pulls" not in law.load_names
        if not local or any(term.batched for term in law.called):
            raise ArgumentError(
                "on a GPU, forces are springs, friction, stops, PD, tables and constant wrenches, at joints without "
                "quaternions, and your own functions of CuPy arrays. Or simulate with NumPy arrays"
            )
        self.law, self.place = law, gpu.cupy().asarray
        one = Step(torques_and_slopes, "torques and slopes", law).one_freedom
        step = one._replace(law=_without_functions(one.law))
        key = "torques on the device", law.key
        self._kernel = store(law.model).once(key, lambda: gpu.Pointwise(step.whole, step.inputs))
        self.gain = self.place(np.moveaxis(gains_by_freedom(law, law.values, 1), 0, -1)[0])
        self.commands = self._constant if not law.changes else self._at
        self._h = self.place(np.ones(1))
        self._column = self.place(limited_coordinates(law.model))

    def loads(self, t: float) -> list[Array]:
        return [self.place(x) for x in super().loads(t)]

    def __call__(self, t: float, q: Array, v: Array) -> Array:
        u = self.place(self.commands(t))
        for term in self.law.called:
            u = u + term.torque(t, q, v) if term.drive else u
        found = self._kernel(q[self._column][:, None], v[:, None], u[:, None], self.gain, self._h)[..., 0].transpose()
        for term in self.law.called:
            if not term.drive:
                found[0] += term.torque(t, q, v)
            if term.slopes is not None:
                for k, x in enumerate(term.slopes(t, q, v)):
                    found[1 + k] += x
        return found


def _without_functions(law: Law) -> Law:
    return Law(law.model, law.gains, law.parts, law.curved, law.values, law.constant)


class DeviceMotion(Motion):
    """`Motion` whose states are CuPy arrays."""

    program = None  # of the host: stages are not fused

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
        self.on_host = self.compiled_law
        self._coordinates_on_host, self.coordinates = self.coordinates, DeviceCoordinates(model)
        self.compiled_law = DeviceLaw(self.law)
        self.accelerate = self._accelerate
        self._asked: Array | None = None  # the last that was added to the pivots, and whether that is little
        self._is_little = False

    def check_forces(self, t: float, q: Array, v: Array) -> None:
        """Functions of the state must give nv numbers, on the device."""
        for term in self.law.called:
            found = term.torque(t, self.place(q), self.place(v))
            if not gpu.on_device(found) or found.shape != (self.model.nv,):
                name = getattr(term.torque, "__qualname__", type(term.torque).__qualname__)
                raise ArgumentError(
                    f"what the force {name} gives must be a CuPy array of {self.model.nv} numbers, as v is, not "
                    f"{shown(found)}"
                )

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
        out[:] = self._solver(articulated.forward_dynamics)(q, v, self.torque(t, q, v), *self._wrenches)

    def torques(self, t: Array, q: Array, v: Array) -> Array:
        """The torques of many states, from and to the host."""
        if self.law.is_data:
            return self.on_host.many(t, q, v)[:, 0] + self._felt(t, q, v)
        own = [self.fetch(self.torque(*state)) for state in zip(t.tolist(), self.place(q), self.place(v))]
        return np.array(own).reshape(v.shape) + self._felt(t, q, v)

    def implicit(self, t: float, q: Array, v: Array, tau: Array, added: Array) -> Array:
        return self._raised(articulated.forward_dynamics, (q, v), tau, added, self._wrenches)

    def implicit_solve(self, q: Array, b: Array, added: Array) -> Array:
        return self._raised(articulated.mass_solve, (q,), b, added, ())

    def _raised(self, algorithm: Algorithm, state: tuple[Array, ...], tau: Array, added: Array, pushes: Any) -> Array:
        """x with (M + diag(added)) x = tau - ..., by levels that need something at every pivot (`SHARE`)."""
        solve = self._solver(algorithm, True)
        if not self._is_long:
            return solve(*state, tau, *pushes, added)
        if self._asked is not added:  # an implicit step asks again and again about the same array
            self._asked, self._is_little = added, bool((added < self._least).any())
        if not self._is_little:
            return solve(*state, tau, *pushes, added)
        if not added.any():
            return self._solver(algorithm)(*state, tau, *pushes)
        more = np.maximum(added, self._least)
        x = solve(*state, tau, *pushes, more)
        last = _length(x)
        for _ in range(ROUNDS):  # (M + R') x_k+1 = ... + (R' - R) x_k, whose error falls at the rate of its changes
            x, before = solve(*state, tau + (more - added) * x, *pushes, more), x
            change = _length(x - before)
            if not change > 0 or change * change <= SETTLED * last * _length(x):
                return x
            last = change
        raise self._uneven()

    @property
    def _is_long(self) -> bool:
        return self.model.n >= gpu.LONG_CHAIN

    @cached_property
    def _wrenches(self) -> tuple[Array, ...]:
        return tuple(x.ravel() if self._is_long else x for x in self.compiled_law.loads(0.0))

    @cached_property
    def _least(self) -> Array:
        pivots, rng = compiled_with(self.model, articulated.pivots, ()), np.random.default_rng(0)
        some = [self.model.neutral(), *self.model.random_configuration(rng, CONFIGURATIONS)]
        return self.place(SHARE * np.max([pivots(q) for q in some], axis=0))

    def _solver(self, algorithm: Algorithm, added: bool = False) -> Callable[..., Array]:
        """(q, v, tau) or (q, b), wrenches if any, and what is added to the pivots -> accelerations."""
        loads = self.law.load_names if algorithm is articulated.forward_dynamics else ()
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
