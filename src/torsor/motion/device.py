"""Motion on an NVIDIA GPU: the same integrators, with states that stay on the device.

A state is a CuPy array there. NumPy's functions hand such arrays on to CuPy's, so the steppers are those of the host.
What differs is here: the right-hand side, what acts at the joints, and the maps of curved joints. A long chain is
solved by levels (`parallel/device.py`), all links at once; a short machine by the kernel that computes one state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from math import sqrt
from typing import Any

import numpy as np

from torsor.algorithms import articulated
from torsor.backends import gpu
from torsor.dynamics.calls import levels
from torsor.errors import ArgumentError, SingularError
from torsor.model.joints import Joint
from torsor.model.model import Model
from torsor.motion.coordinates import Array, Coordinates, joint_map
from torsor.motion.forces import Drive, Force, Pull, name_of
from torsor.motion.joint_forces import JointForces
from torsor.motion.laws import joint_law
from torsor.motion.motion import ADDED, Motion, compiled_with
from torsor.sweeps import Algorithm
from torsor.validate import shown

# The others need sweeps that are not cut into levels: complex pivots, momenta, discrete mechanics.
METHODS = ("auto", "dopri5", "rkf45", "dop853", "abm", "trbdf2", "esdirk4", "implicit-euler")
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


@cache
def _law_on_device(kinds: tuple[str, ...], slopes: bool) -> Callable[..., Array]:
    return gpu.Pointwise(*joint_law(kinds, slopes))


class DeviceForces(JointForces):
    """`JointForces` of arrays on the device. The dynamics take constant wrenches themselves: `wrenches` (n, 6)."""

    def __init__(self, model: Model, forces: Sequence[Force]) -> None:
        super().__init__(model, forces)
        for force in (*self.called, *self.waves, *(force for force in self.pushes if isinstance(force, Pull))):
            inner: Any = force.force if isinstance(force, Drive) else force
            if type(inner).__module__.startswith("torsor."):
                raise ArgumentError(
                    f"{type(inner).__name__} runs on the host here: on a GPU, forces are springs, friction, stops, PD, "
                    "tables and constant wrenches, at joints without quaternions, and your own functions of CuPy "
                    "arrays. Or simulate with NumPy arrays"
                )
        place = gpu.cupy().asarray
        self.numbers = [place(x) for x in self.numbers]
        self._coordinate = None if self._coordinate is None else place(self._coordinate)
        self.wrenches = [place(x) for x in self.loads.values()]
        self.pushes = []

    @property
    def called(self) -> list[Force]:
        """The functions of the state."""
        return [*self.drives, *self.others]

    def command(self, t: float) -> Array:
        return gpu.cupy().asarray(super().command(t))

    @cached_property
    def kernel(self) -> Any:
        return _law_on_device(self.kinds, False)

    @cached_property
    def _slopes(self) -> Any:
        return _law_on_device(self.kinds, True)


class DeviceMotion(Motion):
    """`Motion` whose states are CuPy arrays."""

    program = None

    def __init__(self, model: Model, forces: Sequence[Force], dynamics: str, method: str) -> None:
        if method not in METHODS:
            raise ArgumentError(
                f"method {method!r} runs on the host only: give NumPy arrays, or choose one of {', '.join(METHODS)}"
            )
        if dynamics != "auto":
            raise ArgumentError(f"on a GPU, dynamics must be 'auto', not {dynamics!r}: the length of the chain decides")
        if model.couplings:
            raise ArgumentError(f"{model!r} has joints that follow others: simulate it with NumPy arrays")
        super().__init__(model, forces)
        self._on_host, self.coordinates = self.coordinates, DeviceCoordinates(model)
        self.acting = DeviceForces(model, self.forces)
        self.torque, self.gains, self.torques = self.acting.torque, self.acting.gains, self._torques
        self._asked: Array | None = None  # the last that was added to the pivots, and whether that is little
        self._is_little = False

    def check_forces(self, t: float, q: Array, v: Array) -> None:
        """Functions of the state must give nv numbers, on the device."""
        for force in self.acting.called:
            found = force(t, self.place(q), self.place(v))
            if not gpu.on_device(found) or found.shape != (self.model.nv,):
                raise ArgumentError(
                    f"what the force {name_of(force)} gives must be a CuPy array of {self.model.nv} numbers, as v is, "
                    f"not {shown(found)}"
                )

    @property
    def coordinates_on_host(self) -> Coordinates:
        return self._on_host

    @staticmethod
    def place(x: Array) -> Array:
        return gpu.cupy().asarray(x)

    @staticmethod
    def fetch(x: Array) -> Array:
        return gpu.cupy().asnumpy(x)

    def _choose(self) -> Callable[[float, Array, Array, Array], Any]:
        return self._accelerate

    def _accelerate(self, t: float, q: Array, v: Array, out: Array) -> None:
        out[:] = self._solver(articulated.forward_dynamics)(q, v, self.torque(t, q, v), *self._wrenches)

    def _torques(self, t: Array, q: Array, v: Array) -> Array:
        """The torques of many states, from and to the host."""
        joints = self.joints
        if not joints.drives and not joints.others:
            return joints.torques(t, q, v)
        own = [self.fetch(self.torque(*state)) for state in zip(t.tolist(), self.place(q), self.place(v))]
        return np.array(own) + sum(force(0.0, q, v) for force in joints.pushes)

    def implicit(self, q: Array, v: Array, tau: Array, added: Array) -> Array:
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

    @property
    def _wrenches(self) -> tuple[Array, ...]:
        return tuple(x.ravel() if self._is_long else x for x in self.acting.wrenches)

    @cached_property
    def _least(self) -> Array:
        pivots, rng = compiled_with(self.model, articulated.pivots, ()), np.random.default_rng(0)
        some = [self.model.neutral(), *self.model.random_configuration(rng, CONFIGURATIONS)]
        return self.place(SHARE * np.max([pivots(q) for q in some], axis=0))

    def _solver(self, algorithm: Algorithm, added: bool = False) -> Callable[..., Array]:
        """(q, v, tau) or (q, b), wrenches if any, and what is added to the pivots -> accelerations."""
        loads = self.acting.loads if algorithm is articulated.forward_dynamics else ()
        options = (*loads, *ADDED[:added])
        if not self._is_long:
            return lambda *args: gpu.call(algorithm, self.model, args, options, None)
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
