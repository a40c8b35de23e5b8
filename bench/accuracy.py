"""Digits, not times: the worst error of every method on the stress family of the tests, against 80-bit arithmetic.

python bench/accuracy.py        writes bench/results/accuracy.json, for the table of docs/accuracy.md
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from harness import write  # noqa: E402
from stress import family  # noqa: E402

import torsor as ts  # noqa: E402
from torsor.dynamics.methods import METHODS, SEGMENTS_FROM  # noqa: E402

STATES = 4
RAISES = "raises"
SMALL_METHODS = ("auto", *METHODS["forward_dynamics"], "fixman", "constraint-force")
LONG_METHODS = ("auto", "articulated", "segments", "fixman", "constraint-force")
PITCH = 1e6

FAMILIES: dict[str, Callable[[], list[ts.Model]]] = {
    "arms of 2 to 6 joints, even": lambda: [ts.zoo.general_arm(n, 3) for n in range(2, 7)],
    "masses to 1 : 1e6": lambda: _masses((2, 4, 6), 1e6),
    "masses to 1 : 1e12": lambda: _masses((2, 4, 6), 1e12),
    "parallel axes, light and heavy links": lambda: _stiff("parallel"),
    "joints on one axis, light and heavy": lambda: _stiff("one"),
    "lengths of 1e-6 and of 1e9": lambda: [family.at_length(ts.zoo.general_arm(4, 1), x) for x in (1e-6, 1e9)],
    "lengths in turn 1e-6 and 1e9": lambda: [family.mixed_lengths(4, 1e-6, 1e9)],
    "base 1e9 away": lambda: [family.with_far_base(ts.zoo.general_arm(4, 1), 1e9)],
    "rods, 1e-4 thin": lambda: [family.thin_rods(3, 1e-4)],
    "wrist lighter by 1e6": lambda: [family.light_wrist(1e6), family.light_wrist(1e6, 10.0)],
    "trees of all joint types, masses to 1 : 1e6": lambda: [
        family.uneven(ts.zoo.random_tree(7, seed), "random", 1e6) for seed in (1, 2)
    ],
    "screws of pitch 1e6": lambda: [_steep_screws()],
    "2000 joints, even": lambda: [ts.zoo.general_arm(2000, 1)],
    "2000 joints, masses to 1 : 1e6": lambda: _masses((2000,), 1e6),
    "2000 joints, masses to 1 : 1e12": lambda: _masses((2000,), 1e12),
}


def _masses(lengths: tuple[int, ...], ratio: float) -> list[ts.Model]:
    return [family.uneven(ts.zoo.general_arm(n, 3), pattern, ratio) for n in lengths for pattern in family.PATTERNS]


def _stiff(axes: str) -> list[ts.Model]:
    return [family.stiff_arm(n, seed, axes=axes) for n in (3, 4) for seed in (11, 20, 35)]


def _steep_screws() -> ts.Model:
    arm = ts.zoo.random_chain(4, 1, joints=("helical",))
    return ts.Model.chain("helical", pitch=PITCH, axis=arm.axis, R=arm.R, p=arm.p, mass=arm.mass, com=arm.com,
                          inertia=arm.inertia)  # fmt: skip


def worst(models: list[ts.Model]) -> dict[str, float | str]:
    """By method: the largest error over the machines and states, or that it raises on one of them."""
    found: dict[str, float | str] = {}
    for model in models:
        long = model.n >= SEGMENTS_FROM
        q, v, tau = family.states(model, 1 if long else STATES)
        expected = family.exact(ts.forward_dynamics, model, q, v, tau, method="articulated")
        for method in LONG_METHODS if long else SMALL_METHODS:
            try:
                # one state at a time: a long chain goes by segments only then
                qdd = np.array([ts.forward_dynamics(model, *state, method=method) for state in zip(q, v, tau)])
            except ts.SingularError:
                found[method] = RAISES
            if (before := found.get(method, 0.0)) != RAISES:
                found[method] = max(before, family.error(qdd, expected))
    return found


def main() -> None:
    rows = []
    for name, make in FAMILIES.items():
        rows.append({"family": name, "errors": worst(make())})
        print(name, rows[-1]["errors"], flush=True)
    path = ROOT / "bench" / "results" / "accuracy.json"
    write(path, {"name": "accuracy", "rows": rows})


if __name__ == "__main__":
    main()
