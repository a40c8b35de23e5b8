"""What a call through JAX and PyTorch costs: the Panda's forward dynamics and gradient, one thread, float64.

python bench/bridges.py          writes bench/results/bridges.json; needs torsor[jax,torch]

CPU time of the process, since XLA's threads work for the caller. NumPy asks for huge pages and other libraries do not,
so all get them (GLIBC_TUNABLES): without them NumPy only looks faster.
"""

from __future__ import annotations

# ruff: noqa: E402 (the environment comes before the libraries)
import os
import sys
import time
from functools import partial
from typing import Any

PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
if __name__ == "__main__" and PAGES.items() - os.environ.items():
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | PAGES)

import harness
import jax
import jax.numpy as jnp
import numpy as np
import torch
from harness import Contender, Report, race, table

import torsor as ts
import torsor.jax
import torsor.torch

SIZES = {1: "one state", 64: "64 states", 100_000: "100,000 states"}
SETS = 4  # of states that take turns
SCAN = 10_000  # steps


def flat(results: Any) -> np.ndarray:
    return np.concatenate(
        [np.ravel(np.asarray(x)) for x in (results if isinstance(results, tuple | list) else [results])]
    )


def waiting(function: Any) -> Any:
    return lambda *xs: jax.block_until_ready(function(*xs))


def states(model: ts.Model, size: int) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(0)
    shape = (3, model.nv) if size == 1 else (3, size, model.nv)
    return [list(rng.normal(size=shape)) for _ in range(SETS)]


def values(model: ts.Model, size: int) -> list[Any]:
    program = ts.compile(model, ts.forward_dynamics)
    in_jax, in_torch = (room.function(model, ts.forward_dynamics, threads=1) for room in (torsor.jax, torsor.torch))
    sets = states(model, size)
    for_jax, for_torch = ([[make(x) for x in one] for one in sets] for make in (jnp.asarray, torch.tensor))
    contenders = [
        Contender("NumPy: the program", program, sets),
        Contender("JAX, jitted", waiting(jax.jit(in_jax)), for_jax),
        Contender("PyTorch without gradients", in_torch, for_torch),
    ]
    if size == 1:
        empty = Contender(
            "JAX: an empty jitted function", waiting(jax.jit(lambda q, v, tau: tau)), for_jax, answer=None
        )
        contenders.insert(2, empty)
    return race(f"value, {SIZES[size]}", contenders, unit="state", per=size, clock=time.process_time)


def gradients(model: ts.Model, size: int) -> list[Any]:
    """Of the sum of all accelerations, by q, v and tau."""
    fd, vjp = (ts.compile(model, f) for f in (ts.forward_dynamics, ts.vjp(ts.forward_dynamics)))
    in_jax, in_torch = (room.function(model, ts.forward_dynamics, threads=1) for room in (torsor.jax, torsor.torch))
    sets = states(model, size)
    one = np.ones(model.nv)

    def native(*xs: Any) -> Any:
        return vjp(*xs, one)

    def native_both(*xs: Any) -> Any:
        fd(*xs)
        return vjp(*xs, one)

    def product(*xs: Any) -> None:
        for x in xs:
            x.grad = None
        (xs[0] * xs[1] * xs[2]).sum().backward()

    def backward(*xs: Any) -> Any:
        for x in xs:
            x.grad = None
        in_torch(*xs).sum().backward()
        return [x.grad for x in xs]

    gradient = jax.jit(jax.grad(lambda *xs: in_jax(*xs).sum(), argnums=(0, 1, 2)))
    for_jax = [[jnp.asarray(x) for x in one] for one in sets]
    for_torch = [[torch.tensor(x, requires_grad=True) for x in one] for one in sets]
    race_now = partial(race, unit="state", per=size, clock=time.process_time)
    rows = race_now(f"gradient, {SIZES[size]}", [
        Contender("NumPy: the program of vjp", native, sets, answer=flat),
        Contender("JAX: jitted grad", waiting(gradient), for_jax, answer=flat),
    ])  # fmt: skip
    contenders = [
        Contender("NumPy: both programs", native_both, sets, answer=flat),
        Contender("PyTorch: forward and backward", backward, for_torch, answer=flat),
    ]
    if size == 1:
        contenders.append(Contender("PyTorch: a product of three tensors", product, for_torch, answer=None))
    return rows + race_now(f"value and gradient, {SIZES[size]}", contenders)


def scan(model: ts.Model) -> list[Any]:
    own = torsor.jax.function(model, ts.forward_dynamics, threads=1)
    (q, v, tau), *_ = ([jnp.asarray(x) for x in one] for one in states(model, 1))

    def steps(change: Any) -> Any:
        def step(x: Any, _: Any) -> Any:
            q, v = x
            return (q, v + 1e-9 * change(q, v)), None

        return waiting(jax.jit(lambda q, v: jax.lax.scan(step, (q, v), None, length=SCAN)[0]))

    contenders = [
        Contender("lax.scan around forward dynamics", steps(lambda q, v: own(q, v, tau)), [[q, v]], answer=None),
        Contender("lax.scan around nothing", steps(lambda q, v: tau), [[q, v]], answer=None),
    ]
    return race("a step of one state", contenders, unit="step", per=SCAN, clock=time.process_time)


if __name__ == "__main__":
    harness.PACKAGES = (*harness.PACKAGES, "jax", "jaxlib", "torch")
    jax.config.update("jax_enable_x64", True)
    torch.set_num_threads(1)
    panda = ts.zoo.panda()
    report = Report("bridges", __doc__.splitlines()[0])
    for size in SIZES:
        report.rows += values(panda, size) + gradients(panda, size)
    report.rows += scan(panda)
    report.save()
    print(table(report))
