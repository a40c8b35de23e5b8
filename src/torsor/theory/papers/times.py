"""Figures of time against the length of a chain, measured on the current machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from torsor.view.plots import BLUE, GREEN, GREY, ORANGE, STYLE, save

SIZES = (10, 20, 50, 100, 200, 400)  # the figures of Lee et al. end at 400
REPEATS = 5


def time_against_n(path: Path, title: str, problem: Callable[[int], tuple[Any, ...]],
                   solvers: Mapping[str, Callable[..., Any]]) -> Path:  # fmt: skip
    """Plot over n the shortest of a few times of each solver(*problem(n))."""
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(5, 3.5), layout="constrained")
        axes = figure.add_subplot()
        problems = {n: problem(n) for n in SIZES}
        for (name, solver), colour in zip(solvers.items(), (GREY, ORANGE, BLUE, GREEN)):
            axes.loglog(SIZES, [1e3 * _shortest(solver, *problems[n]) for n in SIZES], "o-", color=colour, label=name)
        axes.set(title=title, xlabel="n", ylabel="ms")
        axes.legend()
        save(figure, path)
    return path


def _shortest(solver: Callable[..., Any], *arguments: Any) -> float:
    solver(*arguments)  # compiles
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        solver(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)
