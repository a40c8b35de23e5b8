"""A study: the motions of many machines of one structure, drawn, moved and stored chunk by chunk.

A worker draws the members of a chunk, moves them side by side (`engine.py`) and writes them into a Zarr store
(`zarr.py`): first the numbers, then their digests, then the status of every member.  A chunk is complete if its
status exists and its digests match; everything else is computed again.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import logs
from torsor.backends.cpu import cores
from torsor.dynamics import functions as dynamics
from torsor.ensembles import places, zarr
from torsor.ensembles.dataset import dataset
from torsor.ensembles.draws import Draws, Varied, fields_of, forces_of, states_of
from torsor.ensembles.engine import IMPOSSIBLE, OK, REASONS, STOPPED, LaneEngine, Timing
from torsor.ensembles.exchange import Exchange
from torsor.ensembles.places import StoreError
from torsor.ensembles.records import Function, Record, records
from torsor.ensembles.zarr import Group, Variable
from torsor.errors import ArgumentError, ModelError
from torsor.files import made, short
from torsor.formats import toml
from torsor.later import Later
from torsor.model.batch import ModelBatch
from torsor.model.model import Model, require_model
from torsor.model.regular import require_uncoupled
from torsor.motion import steps
from torsor.motion.forces import described
from torsor.motion.law import Law, collect, force_list
from torsor.motion.motion import Motion
from torsor.motion.stops import Stop, stops_of
from torsor.motion.trajectory import Trajectory
from torsor.validate import chosen, function, integer, number, real_array, shown

on_gpu, plots = Later("torsor.ensembles.device"), Later("torsor.ensembles.plots")
page, table = Later("torsor.view.page"), Later("torsor.view.table")

Array = NDArray[Any]
METHODS = ("dopri5", *steps.METHODS)
OLD = {
    "dt": "step",
    "record": "keep",
    "kp": "forces=[ts.PD(...)]",
    "kd": "forces=[ts.PD(...)]",
    "q_ref": "forces=[ts.PD(...)]",
}
DEVICES = ("cpu", "cuda")
CHUNK_SECONDS = 1.0  # work of a chunk: scheduling a task takes a few milliseconds
SMALLEST_CHUNK, LARGEST_CHUNK = 64, 4096
TRIED = 64  # members moved to determine the size of a chunk
ON_DEVICE, CHUNK_BYTES = 2**16, 2**30  # members that fill a GPU; the most memory of their states
STOP_TIME = "stop_time"  # the name of the stop times in a store
IN_FLIGHT = 4  # queued tasks per worker
UNKNOWN = 64  # the assumed number of workers if an executor does not report it


@dataclass(frozen=True, eq=False)
class Plan:
    """The definition of a study, which is sent to the workers."""

    model: Model
    draws: Draws
    timing: Timing
    states: Mapping[str, ArrayLike]  # q0, v0
    record: tuple[Record, ...]
    seed: int
    n: int
    device: str = "cpu"
    every: int = 1  # thinning of the times, for quantities over time
    exchange: Exchange | None = None
    forces: tuple[Any, ...] = ()

    def chunk(self, first: int, end: int) -> dict[str, Array]:
        """Everything stored for the members first ... end - 1."""
        ladder = self.exchange.size if self.exchange else 1  # members that must be moved together
        begin, whole = first // ladder * ladder, -(-end // ladder) * ladder
        return {name: x[first - begin : end - begin] for name, x in self._ladders(begin, whole).items()}

    def _ladders(self, first: int, end: int) -> dict[str, Array]:
        """`chunk`, for whole ladders."""
        drawn = self.draws.members(first, end)
        model, count = self.model, end - first
        impossible = self._impossible(drawn, count)
        taken = dict(drawn)
        if impossible.any():  # the unchanged model moves in their place
            for quantity, values in drawn.items():
                taken[quantity] = values.copy()
                taken[quantity][impossible] = quantity.nominal(model, self.forces)
        batch = ModelBatch(model, **fields_of(model, taken))
        given = states_of(model, taken, count, **{"q0": model.neutral(), "v0": np.zeros(model.nv), **self.states})
        law = collect(batch, forces_of(self.forces, taken))
        found, status, *when = self._moved(batch, law, given["q0"], given["v0"], first)
        status[impossible] = IMPOSSIBLE
        q, v = found[..., : model.nq], found[..., model.nq :]
        result = {x.name: x.values(batch, self.timing.times, q, v, self.every) for x in self.record}
        result |= {f"vary/{quantity.key}": values for quantity, values in drawn.items()}
        result |= {STOP_TIME: when[0]} if self.timing.stops else {}
        return result | {"status": status}

    def _moved(self, batch: ModelBatch, law: Law, q0: Array, v0: Array, first: int) -> tuple[Array, ...]:
        """The states (members, times, nq + nv), the status of each member, and its stop time if it can stop."""

        def move(timing: Timing, q0: Array, v0: Array) -> tuple[Array, ...]:
            if self.device == "cpu":
                return LaneEngine(batch, law, timing).run(q0, v0)
            return on_gpu.GpuEngine(batch, law, timing).run(q0, v0)

        timing = self.timing
        if all(x.reduction == "last" for x in self.record):  # steps do not depend on the stored times
            timing = replace(timing, times=timing.times[-1:])
        if self.exchange is None:
            return move(timing, q0, v0)
        return self.exchange.run(move, timing, batch, q0, v0, (self.seed, first // self.exchange.size))

    def _impossible(self, drawn: Mapping[Varied, Array], count: int) -> Array:
        """Which members are physically impossible."""
        bad = np.zeros(count, bool)
        fields = fields_of(self.model, drawn)
        try:
            ModelBatch(self.model, **fields)
        except ModelError:
            for k in range(count):
                try:
                    ModelBatch(self.model, **{name: x[k] for name, x in fields.items()})
                except ModelError:
                    bad[k] = True
        return bad

    @property
    def options(self) -> dict[str, Any]:
        """Everything that determines the results except the model and the values of arrays, as words and numbers."""
        given = self.draws.function, *(x.function for x in self.record)
        functions = [_text(f) for f in given if f]
        return {
            "draws": self.draws.described(), "seed": self.seed, "n": self.n, "sampling": self.draws.sampling,
            "steps": [*self.timing.described().values(), self.timing.times.tolist()],
            "forces": [described(force) for force in self.forces],
            "states": {name: np.asarray(x).tolist() for name, x in self.states.items()},
            "record": [x.name for x in self.record],
            **({"functions": functions} if functions else {}),
            **({} if self.every == 1 else {"every": self.every}),
            **({"exchange": self.exchange.described()} if self.exchange else {}),
            **({"stops": repr(self.timing.stops)} if self.timing.stops else {}),
            **({} if self.device == "cpu" else {"device": self.device}),
        }  # fmt: skip

    @cached_property
    def key(self) -> str:
        """A hash of everything that determines the results."""
        text = json.dumps(self.options, sort_keys=True) + toml.write(self.model)
        given = [x for x in self.draws.varied.values() if isinstance(x, np.ndarray)]
        return hashlib.blake2b(text.encode() + b"".join(x.tobytes() for x in given), digest_size=16).hexdigest()


def ensemble(model: Model, vary: Mapping[str, Any] | Callable[..., Any], *, n: int, store: str | Path,
             duration: float | None = None, times: ArrayLike | None = None, seed: int = 0, sampling: str = "random",
             method: str = "dopri5", step: float = 1e-3, rtol: float = 1e-6, atol: float = 1e-9, forces: Any = (),
             keep: Sequence[str] | Mapping[str, Function | None] = ("q", "v"), every: int = 1,
             executor: Executor | None = None, chunk: int | None = None, shard: tuple[int, int] = (0, 1),
             device: str = "cpu", exchange: Exchange | None = None, stop: Stop | Sequence[Stop] | None = None,
             progress: Callable[[int, int], Any] | None = None, q0: ArrayLike | None = None,
             v0: ArrayLike | None = None, **old: Any) -> Study:  # fmt: skip
    """Draw members, move them side by side and store their motions in a Zarr folder.

    Member k draws from `default_rng([seed, k])`. An existing store is continued if it belongs to the same
    study, and refused otherwise. A member that fails is stored with its reason (`Study.failed`).

    Parameters
    ----------
    model : Model
        The machine.
    vary : mapping or callable
        Name -> distribution or array (n, ...), or a function f(rng) -> {name: value}. Names: q0, v0, gravity;
        BODY.FIELD, with * for all bodies (`link3.mass`, `*.damping`; density is a factor of mass and inertia); or
        FORCE.PARAMETER (`PD.kp`).
    n : int
        The number of members.
    store : str or Path
        The folder of the store, or a URL.
    duration : float, optional
        The duration in s, with 100 stored times; or give `times`.
    times : (m,) array_like, optional
        The stored times, in s.
    seed : int, default 0
        The seed of the draws.
    sampling : str, default "random"
        "random", "sobol", "latin-hypercube", or "saltelli", for `Study.sobol_indices`.
    method : str, default "dopri5"
        "dopri5" (adaptive, one step size per member), or a method of rollouts: "rk4", "semi-implicit",
        "implicit-euler".
    step : float, default 1e-3
        The step of methods with fixed steps, in s.
    rtol, atol : float, default 1e-6, 1e-9
        Tolerances of dopri5.
    forces : force or sequence of forces, optional
        As in `simulate`; the same for all members except for parameters that vary.
    keep : sequence of str or mapping, default ("q", "v")
        Names of quantities ("q", "energy", "pose.hand"); with a colon only a summary over time ("q:last"; last, min,
        max, mean, std); or name -> function of t, q (members, times, nq), v.
    every : int, default 1
        Store quantities over time only at every `every`-th time.
    executor : concurrent.futures.Executor, optional
        The executor of the work: a process pool, Dask's `client.get_executor()`, MPI, ... Default: this process.
    chunk : int, optional
        Members per chunk. Default: about a second of work.
    shard : (int, int), default (0, 1)
        (i, N): compute only every N-th chunk, beginning with i; N jobs of an array fill one store together.
    device : str, default "cpu"
        "cpu" or "cuda"; on a GPU, every thread moves one member.
    exchange : Exchange, optional
        Exchanges of states between members at intervals (parallel tempering and others).
    stop : Stop or sequence of Stop, optional
        A member that leaves these bounds stays where it is; the store has its "stop_time".
    progress : callable, optional
        Called with (chunks done, all chunks).
    q0 : (nq,) array_like, optional
        The initial configuration of all members.
    v0 : (nv,) array_like, optional
        The initial velocities of all members.

    Returns
    -------
    study : Study
        The study with its store.

    Raises
    ------
    StoreError
        The store belongs to another study, or the executor lost its workers.
    ArgumentError
        An entry of `vary`, `keep` or `forces` does not fit the model.

    Examples
    --------
    >>> import torsor as ts
    >>> vary = {"link1.mass": ts.Normal(mean=1.0, std=0.1), "v0": ts.Uniform(low=-1.0, high=1.0)}
    >>> study = ts.ensemble(ts.zoo.pendulum(), vary, n=16, duration=0.2, keep=["q", "energy:max"], store="runs.zarr")
    >>> study["energy:max"].shape, study.failed
    ((16,), {})
    """
    for name in old:
        hint = f": it is called {OLD[name]} now" if name in OLD else ""
        raise TypeError(f"ensemble got an unexpected keyword argument {name!r}{hint}")
    require_model(model)
    require_uncoupled(model, "an ensemble")
    n, seed = integer("n", n, least=1), integer("seed", seed, least=0)
    if (duration is None) == (times is None):
        raise ArgumentError("give duration= or times=")
    stored = np.linspace(0, number("duration", duration, above=0), 101)[1:] if times is None else _times(times)
    timing = Timing(stored, chosen("method", method, METHODS), number("step", step, above=0),
                    number("rtol", rtol, above=0), number("atol", atol, least=0),
                    () if stop is None else stops_of(stop, model))  # fmt: skip
    if not timing.adaptive and not np.allclose(np.rint(stored / step) * step, stored, rtol=1e-9, atol=0):
        apart = f"{len(stored)} times, the first at {stored[0]:g} s"
        raise ArgumentError(f"the stored times ({apart}) must be multiples of step = {step}; times= chooses them")
    found = force_list(forces)
    if axes := collect(model, found).batch:
        raise ArgumentError(f"a force has batch axes {axes}: in an ensemble, vary= says what differs, as in 'PD.kp'")
    states = {name: x for name, x in (("q0", q0), ("v0", v0)) if x is not None}
    plan = Plan(model, Draws(model, vary, n, seed, sampling, found), timing, states, records(model, keep), seed, n,
                chosen("device", device, DEVICES), integer("every", every, least=1), forces=found)  # fmt: skip
    if exchange is not None:
        if not isinstance(exchange, Exchange):
            raise ArgumentError(f"exchange must be an Exchange, not {shown(exchange)}")
        if timing.stops:
            raise ArgumentError("members that stop cannot exchange their states: leave out stop or exchange")
        exchange.check(n, timing)
        plan = replace(plan, exchange=exchange)
    if clashes := {x.name for x in plan.record if x.function} & {x.key for x in plan.draws.quantities()}:
        raise ArgumentError(f"keep[{min(clashes)!r}]: this name is taken by what varies")
    if plan.every > len(stored):
        raise ArgumentError(f"every = {every} exceeds the number of times, {len(stored)}")
    study = Study._made(plan, store, chunk, _shard(shard))
    return study.resume(executor, shard=shard, progress=progress)


def _text(how: Callable[..., Any]) -> str:
    """The source of a function if it is readable, else its name."""
    try:
        return inspect.getsource(how)
    except (OSError, TypeError):
        return getattr(how, "__qualname__", type(how).__qualname__)


def _shard(shard: Any) -> tuple[int, int]:
    """Which of how many jobs."""
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        raise ArgumentError(f"shard must be a pair of numbers (i, N), not {shown(shard)}")
    which, of = integer("shard", shard[0], least=0), integer("shard", shard[1], least=1)
    if which >= of:
        raise ArgumentError(f"shard {which}/{of}: the first number must be below the second")
    return which, of


def _has_failed(status: Array) -> Array:
    """Which members have no motion."""
    return (status > OK) & (status < STOPPED)


def _times(times: ArrayLike) -> Array:
    found = real_array("times", times)
    if found.ndim != 1 or not len(found) or found[0] < 0 or not (np.diff(found) > 0).all() or found[-1] <= 0:
        raise ArgumentError(f"times must increase from 0 or later, not {shown(times)}")
    return found


def run_chunk(plan: Plan, path: str, index: int) -> int:
    """The work of a task: compute one chunk and write it into the store.  Returns the number of failed members."""
    group = Group(places.at(path))
    size = group.variables["status"].chunk
    result = plan.chunk(index * size, min(plan.n, (index + 1) * size))
    status = result.pop("status")
    digests = [
        group.digest_of(name, status) if name == "status" else group.put(name, index, result[name])
        for name in group.digested
    ]
    group.put("digest", index, np.frombuffer(b"".join(digests), np.uint8).reshape(1, len(digests), zarr.DIGEST))
    group.put("status", index, status)  # last: it marks that the rest is complete
    return int(_has_failed(status).sum())


class Study:
    """Hold the motions in a store: read them, open them, or compute missing ones.

    `study["q"]` is a stored or drawn quantity of all members.

    Parameters
    ----------
    path : str or Path
        The store, or a URL.
    plan : Plan, optional
        The definition of the study, as made by `ensemble`; without it, members cannot be recomputed.

    Attributes
    ----------
    n : int
        The number of members.
    times, status : (times,), (n,) ndarray
        The stored times; the status of every member.
    failed, stopped : dict of int
        Failed members with reasons; stopped members with their conditions.

    Raises
    ------
    StoreError
        This is not a store of an ensemble, or it is damaged.

    Examples
    --------
    >>> import torsor as ts
    >>> vary = {"v0": ts.Uniform(low=-1.0, high=1.0)}
    >>> study = ts.ensemble(ts.zoo.pendulum(), vary, n=8, duration=0.1, store="runs.zarr")
    >>> ts.Study("runs.zarr")["q"].shape
    (8, 100, 1)
    """

    def __init__(self, path: str | Path, plan: Plan | None = None) -> None:
        self.plan, self.group = plan, Group(places.at(path))
        if self.group.attributes.get("kind") != "torsor ensemble":
            raise StoreError(f"{path} is not a store of an ensemble")
        if missing := {"status", "digest", "t"} - self.group.variables.keys():
            raise StoreError(f"{path}: the store is damaged, it does not name the arrays {', '.join(sorted(missing))}")

    @classmethod
    def _made(cls, plan: Plan, path: str | Path, chunk: int | None, shard: tuple[int, int]) -> Study:
        """The store of a plan: a new one, or an existing one of the same study."""
        place = places.at(path)
        if place.read("zarr.json") is not None:
            study = cls(path, plan)
            if study.group.attributes.get("key") != plan.key:
                raise StoreError(f"{path} belongs to another study: choose another store, or delete it")
            return study
        if isinstance(place, places.Remote) and chunk is None and shard[1] > 1:
            raise ArgumentError("several shards that make one store behind a URL need chunk=, the same for all")
        rows = plan.chunk(0, min(1, plan.n))
        size = integer("chunk", chunk, least=1) if chunk is not None else _chunk_size(plan)
        ladder = plan.exchange.size if plan.exchange else 1
        size = min(-(-size // ladder) * ladder, plan.n)
        axes, variables = {x.name: x.axes for x in plan.record}, []
        for name, values in rows.items():
            own = axes.get(name)
            own = tuple(f"{name.replace('/', '_')}_{k}" for k in range(values.ndim - 1)) if own is None else own
            variables.append(Variable(name, plan.n, size, values.shape[1:], values.dtype.name, ("member", *own)))
        chunks, count = -(-plan.n // size), len(variables)
        variables.append(Variable("digest", chunks, 1, (count, zarr.DIGEST), "uint8", ("chunk", "array", "byte")))
        times = plan.timing.times[plan.every - 1 :: plan.every]
        variables.append(Variable("t", len(times), len(times), (), "float64", ("time",)))
        Group.create(place, variables, _about(plan), times)
        return cls._made(plan, path, chunk, shard)

    # -- the content

    @property
    def path(self) -> str:
        """Where the store is."""
        return self.group.place.address

    @property
    def n(self) -> int:
        """The number of members."""
        return self.group.variables["status"].rows

    @property
    def times(self) -> Array:
        """The stored times, (times,), in s."""
        return self.group.whole("t")

    @property
    def status(self) -> Array:
        """The status of every member, (n,): 0 is not yet done, 1 is done; for others see `failed`."""
        return self.group.whole("status")

    @property
    def progress(self) -> float:
        """The share of finished members, from 0 to 1."""
        return float((self.status > 0).mean())

    @property
    def failed(self) -> dict[int, str]:
        """The failed members, with reasons."""
        status = self.status
        return {int(k): REASONS[int(status[k])] for k in np.flatnonzero(_has_failed(status))}

    @property
    def has_motion(self) -> Array:
        """Which members have reached their last time or have stopped before, (n,)."""
        status = self.status
        return (status > 0) & ~_has_failed(status)

    @property
    def stopped(self) -> dict[int, int]:
        """The stopped members, with the number of the stop condition, from 1; "stop_time" has the times."""
        status = self.status
        return {int(k): int(status[k]) - STOPPED + 1 for k in np.flatnonzero(status >= STOPPED)}

    def __getitem__(self, name: str) -> Array:
        """Read a stored or drawn quantity of all members into memory.

        Parameters
        ----------
        name : str
            As in `keep` ("q", "energy:max") or in `vary` ("PD.kp").

        Returns
        -------
        values : (n, ...) ndarray
            One row per member; NaN for members that are not done.

        Raises
        ------
        ArgumentError
            The store has no such quantity; the message lists those it has.
        """
        known = self.group.variables
        found = name.replace(":", ".") if name.replace(":", ".") in known else f"vary/{name}"
        if found not in known:
            raise ArgumentError(f"{shown(name)} is not in the store; these are: {', '.join(self.group.digested)}")
        return self.group.whole(found)

    def missing(self) -> list[int]:
        """Find the chunks that are missing or incomplete, by their digests.

        Returns
        -------
        chunks : list of int
            The numbers of these chunks; empty if the study is complete.
        """
        count = self.group.variables["digest"].rows
        return [chunk for chunk in range(count) if not self._is_whole(chunk)]

    def _is_whole(self, chunk: int) -> bool:
        digests = self.group.get("digest", chunk)
        names = self.group.digested
        if digests is None or any(self.group.digest(name, chunk) != x.tobytes() for name, x in zip(names, digests[0])):
            return False
        status = self.group.get("status", chunk)
        return status is not None and bool(status.all())

    # -- computing missing chunks

    def resume(self, executor: Executor | None = None, *, shard: tuple[int, int] = (0, 1),
               progress: Callable[[int, int], Any] | None = None) -> Study:  # fmt: skip
        """Compute the missing chunks, here or with an executor.

        Parameters
        ----------
        executor : Executor, optional
            An executor of concurrent.futures, Dask (`client.get_executor()`), MPI or Ray. Default: this process.
        shard : tuple of int, default (0, 1)
            (k, m): every m-th chunk, beginning with the k-th: m jobs of a cluster share a study.
        progress : callable, optional
            Called with (chunks done, all chunks) after each chunk.

        Returns
        -------
        study : Study
            This study.

        Raises
        ------
        ArgumentError
            The store was opened by its path; without a plan nothing can be computed.
        """
        if self.plan is None:
            raise ArgumentError(
                "a store that was opened by its path has no plan: call ensemble() again, with its arguments"
            )
        which, of = _shard(shard)
        if progress is not None:
            function("progress", progress)
        if executor is not None:
            function("submit of the executor", getattr(executor, "submit", None))
        todo = [chunk for chunk in self.missing() if chunk % of == which]
        total = self.group.variables["digest"].rows
        done = total - len(todo)
        about = {"store": self.path, "chunks": total}
        logs.event("study begins", members=self.n, seed=self._planned().seed, missing=len(todo), **about)
        for failed in self._run(todo, executor):
            done += 1
            logs.event("chunk done", done=done, failed=failed, **about)
            if progress:
                progress(done, total)
        logs.event("study ends", done=done, **about)
        return self

    def _planned(self) -> Plan:
        if self.plan is None:
            raise ArgumentError("a store opened by its path has no plan: call ensemble() again, with its arguments")
        return self.plan

    def _run(self, todo: Sequence[int], executor: Executor | None) -> Iterator[int]:
        plan = self._planned()
        if executor is None:
            for chunk in todo:
                yield run_chunk(plan, self.path, chunk)
            return
        path, waiting, left = self.path, set[Future[int]](), list(reversed(todo))
        most, size = IN_FLIGHT * _workers(executor), self.group.variables["status"].chunk
        try:
            while left or waiting:
                while left and len(waiting) < most:
                    chunk = left.pop()
                    part = replace(plan, draws=plan.draws.part(chunk * size, min(plan.n, (chunk + 1) * size)))
                    waiting.add(executor.submit(run_chunk, part, path, chunk))
                finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        except (BrokenExecutor, CancelledError) as error:
            raise StoreError(
                f"the executor lost its workers or its scheduler ({type(error).__name__}: {error}); what is done is in "
                f"{path}: call ensemble() again to continue"
            ) from error

    # -- reading and showing

    def member(self, k: int) -> Trajectory:
        """Recompute the motion of one member, to the same bits as in the store.

        Parameters
        ----------
        k : int
            The number of the member.

        Returns
        -------
        run : Trajectory
            All rows, with accelerations and torques.

        Raises
        ------
        ArgumentError
            There is no such member, it has no motion, or the store was opened by its path.
        """
        if self.plan is None:
            raise ArgumentError(
                "a store that was opened by its path has no plan: call ensemble() again, with its arguments"
            )
        k = integer("member", k, least=0)
        if k >= self.n:
            raise ArgumentError(f"member {k} is out of range: there are {self.n}")
        plan = replace(self._planned(), record=records(self._planned().model, ("q", "v")), every=1)
        drawn = plan.draws.members(k, k + 1)
        result = plan.chunk(k, k + 1)
        if _has_failed(result["status"])[0]:
            raise ArgumentError(f"member {k} has no motion: {REASONS[int(result['status'][0])]}")
        batch = ModelBatch(plan.model, **fields_of(plan.model, drawn))
        machine: Any = batch[0] if batch.shape else plan.model
        forces = forces_of(plan.forces, {quantity: x[0] for quantity, x in drawn.items()})
        t, q, v = plan.timing.times, result["q"][0], result["v"][0]
        tau = Motion(machine, forces).torques(t, q, v)
        a = dynamics.forward_dynamics(machine, q, v, tau)
        return Trajectory(machine, t, q, v, a, tau, {"member": k, "seed": plan.seed})

    def open(self) -> Any:
        """Open everything in the store as one xarray Dataset; needs xarray (`torsor[ensemble]`).

        With Dask, chunks are read on demand. Members, times, joints and drawn parameters are coordinates:
        `d.q.sel(coordinate="link2")`, `d["PD.kp"]`.

        Returns
        -------
        dataset : Dataset
            An xarray Dataset with the attributes of the store.
        """
        return dataset(self.group, self.plan.model if self.plan else None)

    def plot(self, quantity: str = "q", path: str | Path | None = None) -> Any:
        """Plot fans of a quantity over time: the median, with bands for 50 % and 90 % of the members.

        Parameters
        ----------
        quantity : str, default "q"
            A quantity stored at every stored time.
        path : str or Path, optional
            A file to write: .png, .svg or .pdf.

        Returns
        -------
        figure : Figure
            A Matplotlib figure; a notebook shows it.

        Raises
        ------
        ArgumentError
            The quantity has no values over time, or no member is done.
        """
        return plots.fans(self, quantity, path)

    def view(self, path: str | Path | None = None) -> Path:
        """Play members in the browser: the first as a machine, some of the others as lines. They are recomputed.

        Parameters
        ----------
        path : str or Path, optional
            The file of the page. Default: a temporary file that is opened in the browser.

        Returns
        -------
        path : Path
            The page, one HTML file.
        """
        return page.show(page.scene_of_members(self.member, np.flatnonzero(self.has_motion)), path)

    def sensitivities(self, quantity: Array | None = None) -> dict[str, Array]:
        """Compute the share of a quantity's variance that each drawn quantity explains, by rank regression.

        Parameters
        ----------
        quantity : (n,) array_like, optional
            One number per member. Default: the first coordinate at the last time.

        Returns
        -------
        shares : dict of str to (...) ndarray
            By the names in `vary`, arrays in the shapes of the draws: first-order Sobol indices if the draws are
            independent.
        """
        return plots.shares(self, quantity)

    def sobol_indices(self, quantity: Array | None = None) -> dict[str, Any]:
        """Compute the Sobol indices of each drawn quantity for one number per member.

        Parameters
        ----------
        quantity : (n,) array_like, optional
            One number per member. Default: the first coordinate at the last time.

        Returns
        -------
        indices : dict
            By the names in `vary`, (first, total).

        Raises
        ------
        ArgumentError
            The members were not drawn with sampling="saltelli".
        """
        return plots.sobol(self, quantity)

    def _repr_html_(self) -> str:
        return table.of_study(self)

    def __repr__(self) -> str:
        return f"Study({self.path}, {self.n} members, {self.progress:.0%} done, {len(self.failed)} failed)"


def _workers(executor: Executor) -> int:
    """The number of tasks that an executor runs at once, if it reports it."""
    client = getattr(executor, "_client", None)  # Dask's, whose cluster may grow
    known = sum(client.nthreads().values()) if client else getattr(executor, "_max_workers", None)
    return known or max(UNKNOWN, cores())


def _chunk_size(plan: Plan) -> int:
    """Members per chunk: about a second of work; on a GPU, as many as fill it."""
    if plan.device != "cpu":
        states = len(plan.timing.times) * (plan.model.nq + plan.model.nv) * 8
        return min(ON_DEVICE, max(SMALLEST_CHUNK, CHUNK_BYTES // states))
    count = min(TRIED, plan.n)
    plan.chunk(0, count)  # compiles
    begin = time.perf_counter()
    plan.chunk(0, count)
    each = (time.perf_counter() - begin) / count
    return int(np.clip(2 ** round(np.log2(CHUNK_SECONDS / each)), SMALLEST_CHUNK, LARGEST_CHUNK))


def _about(plan: Plan) -> dict[str, Any]:
    return made() | {
        "kind": "torsor ensemble", "key": plan.key, "seed": plan.seed, "sampling": plan.draws.sampling,
        "vary": plan.draws.described(), **plan.timing.described(),
        "device": plan.device, "model": toml.write(plan.model), "options": short(plan.options),
        "status": {str(code): words for code, words in REASONS.items()},
    }  # fmt: skip
