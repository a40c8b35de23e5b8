"""Replica exchange: members of an ensemble exchange their states at intervals.

A member keeps its machine and its place in a ladder of `size` members; states move between the members of a ladder.
A ladder draws from `default_rng([seed, EXCHANGE, ladder, count])`.  So results depend on the seed, not on
chunks or workers, and a study with exchanges is resumed like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.dynamics import functions as dynamics
from torsor.ensembles.engine import OK, Timing
from torsor.errors import ArgumentError
from torsor.model.batch import ModelBatch
from torsor.model.model import Model
from torsor.validate import function, integer, number, real_array

Array = NDArray[Any]
Move = Callable[[Timing, Array, Array], tuple[Array, ...]]  # states, status, ... at the times of the steps
Rule = Callable[["Replicas"], tuple[Array, Array]]

EXCHANGE = 0x45584348  # separates these streams from those of the members


@dataclass(frozen=True, eq=False)
class Replicas:
    """The states of some ladders at the time t, before the exchange number `count` (from 0).

    q (ladders, size, nq), v (ladders, size, nv); `machines`: a ModelBatch (ladders, size), or the one Model.
    """

    t: float
    count: int
    q: Array
    v: Array
    machines: Any
    generators: Sequence[np.random.Generator]

    def uniform(self, *shape: int) -> Array:
        """New numbers in [0, 1), (ladders, *shape)."""
        return np.array([generator.random(shape) for generator in self.generators])

    def normal(self, *shape: int) -> Array:
        """New numbers of the standard normal distribution, (ladders, *shape)."""
        return np.array([generator.standard_normal(shape) for generator in self.generators])


@dataclass(frozen=True)
class Exchange:
    """Exchanges of states within ladders of `size` members (0 ... size - 1, size ... 2 size - 1, ...).

    interval   seconds between exchanges
    rule       replicas -> (q, v), the states after the exchange, of the same shapes; for example a `Tempering`.  For
               workers in other processes it must be importable.
    """

    interval: float
    size: int
    rule: Rule

    def __post_init__(self) -> None:
        number("interval", self.interval, above=0)
        integer("size", self.size, least=2)
        function("rule", self.rule)

    def described(self) -> list[Any]:
        """For the key of a study."""
        describe = getattr(self.rule, "described", None)
        name = getattr(self.rule, "__qualname__", type(self.rule).__qualname__)
        return [self.interval, self.size, name, describe() if describe else None]

    def check(self, n: int, timing: Timing) -> None:
        """Raise if the exchanges do not fit a study."""
        if n % self.size:
            raise ArgumentError(f"n = {n} members are not ladders of {self.size}")
        if not timing.adaptive and abs(np.rint(self.interval / timing.step) * timing.step / self.interval - 1) > 1e-9:
            raise ArgumentError(
                f"the interval of exchanges, {self.interval}, must be a multiple of step = {timing.step}"
            )

    def run(self, move: Move, timing: Timing, machines: ModelBatch, q: Array, v: Array,
            streams: tuple[int, int]) -> tuple[Array, Array]:  # fmt: skip
        """The states (members, times, nq + nv) and the status of each member; `move(timing, given)` moves all of them
        from one exchange to the next.  `streams`: the seed, and the number of the first ladder."""
        times, nq = timing.times, q.shape[1]
        out = np.full((len(q), len(times), nq + v.shape[1]), np.nan)
        status, begin, count = np.full(len(q), OK, np.int8), 0.0, 0
        tiny = 1e-9 * min(self.interval, float(times[-1]))
        while begin < times[-1] - tiny:
            end = min((count + 1) * self.interval, float(times[-1]))
            rows = np.flatnonzero((times > begin + tiny if count else times >= 0) & (times <= end + tiny))
            local = np.minimum(times[rows], end) - begin
            local = local if len(local) and local[-1] == end - begin else np.append(local, end - begin)
            part, codes, *_ = move(replace(timing, times=local, begin=begin), q, v)
            out[:, rows] = part[:, : len(rows)]
            status = np.where(status == OK, codes, status)
            q, v = part[:, -1, :nq], part[:, -1, nq:]
            if end < times[-1] - tiny:
                q, v = self._exchanged(end, count, q, v, machines, streams)
            begin, count = end, count + 1
        return out, status

    def _exchanged(self, t: float, count: int, q: Array, v: Array, machines: ModelBatch,
                   streams: tuple[int, int]) -> tuple[Array, Array]:  # fmt: skip
        ladders, (seed, first) = len(q) // self.size, streams
        axes = ladders, self.size
        fields = {name: x.reshape(*axes, *x.shape[1:]) for name, x in machines.varied.items()}
        generators = [np.random.default_rng([seed, EXCHANGE, first + k, count]) for k in range(ladders)]
        owners = ModelBatch(machines.model, **fields) if fields else machines.model
        before = Replicas(t, count, q.reshape(*axes, -1), v.reshape(*axes, -1), owners, generators)
        with np.errstate(all="ignore"):  # of members that failed
            after = self.rule(before)
        try:
            new_q, new_v = (np.asarray(x, float) for x in after)
        except (TypeError, ValueError):
            raise ArgumentError("the rule of an exchange must return q and v") from None
        if new_q.shape != before.q.shape or new_v.shape != before.v.shape:
            raise ArgumentError(
                f"the rule of an exchange gives q {new_q.shape} and v {new_v.shape}; {before.q.shape} and "
                f"{before.v.shape} are needed"
            )
        return new_q.reshape(q.shape), new_v.reshape(v.shape)


@dataclass(frozen=True)
class Tempering:
    """Parallel tempering: neighbours i, i + 1 exchange their positions with probability min(1, exp(-d)), where
    d = (1/T_i - 1/T_{i+1}) (U_{i+1} - U_i); even and odd pairs alternate.

    Then velocities are redrawn from the normal distribution with covariance T M^-1, which keeps every member at its
    temperature.  The positions of member i then have a density proportional to sqrt(det M) exp(-U / T_i).

    temperatures   (size,) of the members of a ladder, in units of energy (k_B T)
    potential      U(machines, q) -> (ladders, size); default: that of gravity, for machines without springs

    R. H. Swendsen, J.-S. Wang, Replica Monte Carlo simulation of spin-glasses, Phys. Rev. Lett. 57, 1986.
    Y. Sugita, Y. Okamoto, Replica-exchange molecular dynamics method for protein folding, Chem. Phys. Lett. 314, 1999.
    """

    temperatures: ArrayLike
    potential: Callable[[Any, Array], Array] = field(default=dynamics.potential_energy)

    def __post_init__(self) -> None:
        T = real_array("temperatures", self.temperatures)
        if T.ndim != 1 or len(T) < 2 or not (T > 0).all():
            raise ArgumentError("temperatures must be at least two positive numbers")
        function("potential", self.potential)

    def described(self) -> list[Any]:
        name = getattr(self.potential, "__qualname__", type(self.potential).__qualname__)
        return [np.asarray(self.temperatures, float).tolist(), name]

    def __call__(self, replicas: Replicas) -> tuple[Array, Array]:
        T, q = np.asarray(self.temperatures, float), replicas.q
        if len(T) != q.shape[1]:
            raise ArgumentError(f"there are {len(T)} temperatures for ladders of {q.shape[1]} members")
        if self.potential is dynamics.potential_energy and _has_springs(replicas.machines):
            raise ArgumentError("the joints have springs: give Tempering a potential that holds their energy, too")
        U = np.asarray(self.potential(replicas.machines, _finite(replicas.machines, q)), float)
        U = np.where(np.isfinite(q).all(axis=-1), U, np.nan)
        low = np.arange(replicas.count % 2, len(T) - 1, 2)
        gain = (1 / T[low] - 1 / T[low + 1]) * (U[:, low] - U[:, low + 1])
        swapped = np.log(1 - replicas.uniform(len(low))) < gain  # False if a member has failed
        ladder, pair = np.nonzero(swapped)
        order = np.tile(np.arange(len(T)), (len(q), 1))
        order[ladder, low[pair]], order[ladder, low[pair] + 1] = low[pair] + 1, low[pair]
        q = np.take_along_axis(q, order[..., None], axis=1)
        return q, self._velocities(replicas, q, T)

    def _velocities(self, replicas: Replicas, q: Array, T: Array) -> Array:
        M = dynamics.mass_matrix(replicas.machines, _finite(replicas.machines, q))
        z = replicas.normal(len(T), M.shape[-1])
        upper = np.linalg.cholesky(M).swapaxes(-1, -2)  # M = U^T U: U^-1 z has the covariance M^-1
        v = np.sqrt(T)[:, None] * np.linalg.solve(upper, z[..., None])[..., 0]
        return np.where(np.isfinite(q).all(axis=-1, keepdims=True), v, np.nan)


def _has_springs(machines: Any) -> bool:
    varied, model = (machines.varied, machines.model) if isinstance(machines, ModelBatch) else ({}, machines)
    return bool(np.any(varied.get("stiffness", model.stiffness)))


def _finite(machines: Any, q: Array) -> Array:
    """q, with the neutral configuration for members that have failed."""
    model: Model = machines.model if isinstance(machines, ModelBatch) else machines
    return np.where(np.isfinite(q).all(axis=-1, keepdims=True), q, model.neutral())
