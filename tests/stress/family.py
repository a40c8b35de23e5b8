"""Machines that are hard to compute with: uneven masses, lengths far from one, thin rods, far bases, light wrists.

`tests/stress/test_accuracy.py` checks the accuracy contract on them, and `bench/accuracy.py` makes the table of
docs/accuracy.md.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import torsor as ts
from torsor import zoo

Array = NDArray[Any]
EPS = 2.0**-52

# How masses run along a chain from one to the ratio.
PATTERNS: dict[str, Callable[[int, float], Array]] = {
    "alternating": lambda n, ratio: np.where(np.arange(n) % 2, 1.0, ratio),
    "heavy second": lambda n, ratio: np.where(np.arange(n) % 2, ratio, 1.0),
    "increasing": lambda n, ratio: ratio ** np.linspace(0, 1, n),
    "decreasing": lambda n, ratio: ratio ** np.linspace(1, 0, n),
    "random": lambda n, ratio: ratio ** np.random.default_rng(n).uniform(size=n),
}


def with_masses(model: ts.Model, factor: Array) -> ts.Model:
    """Every body made heavier by a factor, its shape kept."""
    return replace(model, mass=model.mass * factor, inertia=model.inertia * factor[:, None, None])


def at_length(model: ts.Model, length: float) -> ts.Model:
    """All lengths multiplied, masses kept."""
    return replace(model, p=model.p * length, com=model.com * length, inertia=model.inertia * length**2)


def uneven(model: ts.Model, pattern: str, ratio: float) -> ts.Model:
    return with_masses(model, PATTERNS[pattern](model.n, ratio))


def with_far_base(model: ts.Model, distance: float) -> ts.Model:
    p = model.p.copy()
    p[0] += np.array([0.6, -0.48, 0.64]) * distance
    return replace(model, p=p)


def stiff_arm(n: int, seed: int, *, axes: str) -> ts.Model:
    """Parallel axes, or one axis: short light links between heavy ones, the pivots of M far below its entries."""
    rng = np.random.default_rng(seed)
    mass, size = 10.0 ** rng.uniform(-4, 4, n), 10.0 ** rng.uniform(-4, 0, n)
    length = 10.0 ** rng.uniform(-4, 0, n) if axes == "parallel" else np.zeros(n)
    second = mass[:, None] * size[:, None] ** 2 * rng.uniform(0.3, 1.0, (n, 3))
    inertia = np.array([np.diag(s.sum() - s) for s in second])
    p, com = (np.pad(rng.normal(size=(n, 2)), ((0, 0), (0, 1))) for _ in range(2))
    return ts.Model.chain(
        "revolute", axis=np.tile([0.0, 0.0, 1.0], (n, 1)), p=p * length[:, None], mass=mass, com=com * size[:, None],
        inertia=inertia,
    )  # fmt: skip


def thin_rods(n: int, thickness: float) -> ts.Model:
    """Rods along their links, as thick as this part of their length."""
    radius = thickness * 0.3
    inertia = np.diag([0.3**2 / 12, 0.3**2 / 12, radius**2 / 2])
    turned = np.random.default_rng(n).uniform(-1, 1, n)
    R = np.array([[[1, 0, 0], [0, np.cos(x), -np.sin(x)], [0, np.sin(x), np.cos(x)]] for x in turned])
    return ts.Model.chain(
        "revolute", axis=np.eye(3)[np.arange(n) % 3], R=R, p=np.tile([0.0, 0.0, 0.3], (n, 1)), mass=np.ones(n),
        com=np.tile([0.0, 0.0, 0.15], (n, 1)), inertia=np.tile(inertia, (n, 1, 1)), allow_degenerate=True,
    )  # fmt: skip


def light_wrist(ratio: float, load: float = 0.0) -> ts.Model:
    """A 6R arm whose last three axes meet in one point, on bodies lighter by the ratio; perhaps with a load."""
    arm = zoo.general_arm(6, 2)
    p = arm.p.copy()
    p[4:] = 0
    factor = np.array([1.0, 1.0, 1.0, 1 / ratio, 1 / ratio, load or 1 / ratio])
    return with_masses(replace(arm, p=p), factor)


def mixed_lengths(n: int, shortest: float, longest: float) -> ts.Model:
    """Links of very different lengths in turn."""
    arm = zoo.general_arm(n, 4)
    length = np.where(np.arange(n) % 2, shortest, longest)
    return replace(arm, p=arm.p * length[:, None], com=arm.com * length[:, None],
                   inertia=arm.inertia * length[:, None, None] ** 2)  # fmt: skip


# Small machines: their code is unrolled, and the way through M comes into question.
SMALL: dict[str, Callable[[], ts.Model]] = {
    "2R, masses 1 : 1e12": lambda: uneven(zoo.general_arm(2, 3), "heavy second", 1e12),
    "4R, masses in turn 1 : 1e6": lambda: uneven(zoo.general_arm(4, 3), "alternating", 1e6),
    "4R, masses growing to 1e12": lambda: uneven(zoo.general_arm(4, 3), "increasing", 1e12),
    "3R, parallel axes, stiff": lambda: stiff_arm(3, 11, axes="parallel"),
    "4R, parallel axes, stiff": lambda: stiff_arm(4, 20, axes="parallel"),
    "4R, one axis, stiff": lambda: stiff_arm(4, 35, axes="one"),
    "6R, wrist lighter by 1e6": lambda: light_wrist(1e6),
    "6R, wrist lighter by 1e6, load": lambda: light_wrist(1e6, 10.0),
    "3R, thin rods 1e-4": lambda: thin_rods(3, 1e-4),
    "4R, lengths in turn 1e-6 and 1e3": lambda: mixed_lengths(4, 1e-6, 1e3),
    "4R, lengths in turn 1e-6 and 1e9": lambda: mixed_lengths(4, 1e-6, 1e9),
    "4R, lengths of 1e-6": lambda: at_length(zoo.general_arm(4, 1), 1e-6),
    "4R, lengths of 1e9": lambda: at_length(zoo.general_arm(4, 1), 1e9),
    "3R, base 1e9 away": lambda: with_far_base(zoo.general_arm(3, 1), 1e9),
    "tree of every joint type, masses 1 : 1e6": lambda: uneven(zoo.random_tree(7, 1), "random", 1e6),
}
MORE_SMALL: dict[str, Callable[[], ts.Model]] = {
    **{
        f"{n}R, masses {pattern} to {ratio:.0e}": lambda n=n, pattern=pattern, ratio=ratio: uneven(
            zoo.general_arm(n, 3), pattern, ratio
        )
        for n in (2, 3, 5, 7)
        for pattern in PATTERNS
        for ratio in (1e3, 1e12)
    },
    **{
        f"{n}R, {axes} axes, stiff ({seed})": lambda n=n, axes=axes, seed=seed: stiff_arm(n, seed, axes=axes)
        for n in (2, 3, 5, 8)
        for axes in ("parallel", "one")
        for seed in (11, 20, 35)
    },
    **{f"5R, lengths of {x:.0e}": lambda x=x: at_length(zoo.general_arm(5, 1), x) for x in (1e-3, 1e3, 1e6)},
    **{
        f"tree of {n}, masses random to 1e12": lambda n=n: uneven(zoo.random_tree(n, n), "random", 1e12) for n in (4, 9)
    },
    "30R, masses growing to 1e9": lambda: uneven(zoo.general_arm(30, 1), "increasing", 1e9),
}
# One state of these goes by segments.
LONG: dict[str, Callable[[], ts.Model]] = {
    "2000R, even": lambda: zoo.general_arm(2000, 1),
    "2000R, masses in turn 1 : 1e6": lambda: uneven(zoo.general_arm(2000, 1), "alternating", 1e6),
}
MORE_LONG: dict[str, Callable[[], ts.Model]] = {
    f"{n}R, masses {pattern} to {ratio:.0e}": lambda n=n, pattern=pattern, ratio=ratio: uneven(
        zoo.general_arm(n, 1), pattern, ratio
    )
    for n, ratio in ((2000, 1e9), (3000, 1e12))
    for pattern in PATTERNS
} | {"3000 links of rope, masses in turn 1 : 1e9": lambda: uneven(zoo.rope(3000, mass=3e3), "alternating", 1e9)}


def states(model: ts.Model, count: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """q, v and tau of some states: slow joints, as velocities add up along a chain."""
    rng = np.random.default_rng(seed)
    q = model.random_configuration(rng, count)
    return q, 0.1 * rng.normal(size=(count, model.nv)), rng.normal(size=(count, model.nv))


def exact(function: Callable[..., Array], model: ts.Model, *args: Array, **options: Any) -> Array:
    """By the reference engine, in 80-bit numbers."""
    return function(model, *(x.astype(np.longdouble) for x in args), **options)


def error(found: Array, expected: Array) -> float:
    """The largest |found - expected| / |expected| over the states, with the Euclidean norm of a state's result."""
    difference, size = (np.asarray(x, np.longdouble).reshape(len(expected), -1) for x in (found - expected, expected))
    size = np.linalg.norm(size, axis=1)
    return float(np.max(np.linalg.norm(difference, axis=1) / np.where(size > 0, size, 1.0)))
