"""Redrawn figures of the papers, and tables of their numbers."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from torsor.motion.tables import write_csv
from torsor.view.style import lines, save, style

MARKERS = "os^vd"
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 400)  # the figures of Lee et al. end at 400
ROUNDS, SAMPLE = 7, 1e-3  # rounds of a timing, and the least duration of one, in seconds


@contextmanager
def panels(path: Path, columns: int = 1, size: tuple[float, float] = (5.0, 3.5)) -> Iterator[list[Axes]]:
    """The panels of a figure, side by side, in torsor's plot style; the figure is written at the end."""
    with style():
        figure = Figure(figsize=size, layout="constrained")
        yield list(figure.subplots(1, columns, squeeze=False).flat)
        save(figure, path, {"figure": path.stem})


def write_data(figure: Path, columns: Mapping[str, ArrayLike]) -> None:
    """Write the numbers of a figure next to it, as a table with one column per name."""
    table = np.column_stack([np.asarray(x, dtype=np.float64) for x in columns.values()])
    write_csv(figure.with_suffix(".csv"), [*columns], table, {"figure": figure.stem})


def series_data(figure: Path, t: NDArray[Any], series: Mapping[str, NDArray[Any]], labels: list[str]) -> None:
    """The same for curves over time: series (rows, k), with one label per column."""
    columns: dict[str, ArrayLike] = {"t": t}
    for name, x in series.items():
        columns |= {f"{label} {name}".strip(): x[:, k] for k, label in enumerate(labels)}
    write_data(figure, columns)


# Times over the length of a chain ----------------------------------------------------------------------------


def time_against_n(path: Path, title: str, solvers: Mapping[str, Callable[[int], Callable[[], Any]]]) -> Path:
    """Plot the shortest of a few times over n: solvers[name](n) prepares a call, and only that call is timed."""
    times = {name: shortest([solver(n) for n in SIZES]) for name, solver in solvers.items()}
    with panels(path) as (axes,):
        for (name, seconds), (colour, dashes), marker in zip(times.items(), lines(), MARKERS):
            axes.loglog(SIZES, 1e3 * seconds, color=colour, linestyle=dashes, marker=marker, label=name)
        axes.set(title=title, xlabel="n", ylabel="time per solve, ms")
        axes.legend()
    write_data(path, {"n": SIZES, **{f"{name} (s)": seconds for name, seconds in times.items()}})
    return path


def shortest(calls: Sequence[Callable[[], Any]], rounds: int = ROUNDS) -> NDArray[Any]:
    """The shortest of a few times of each call, in seconds; short calls are repeated.

    The calls alternate in every round, so that other load does not affect one of them in all rounds.
    """
    times = np.full((rounds + 1, len(calls)), np.inf)
    with one_blas_thread():
        for k in range(rounds + 1):
            for i, call in enumerate(calls):
                count, start = 0, time.perf_counter()
                while not count or time.perf_counter() - start < SAMPLE:
                    call()
                    count += 1
                times[k, i] = (time.perf_counter() - start) / count
    return times[1:].min(axis=0)  # the first round compiles


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """One thread for NumPy and SciPy, as for torsor, if their bundled OpenBLAS can be found."""
    counts: list[tuple[Any, int]] = []
    for package in (np, scipy):
        folder = Path(package.__path__[0]).parent / f"{package.__name__}.libs"
        for path in folder.glob("*openblas*"):
            library = ctypes.CDLL(str(path))
            for name in ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads"):
                get, put = (getattr(library, name.format(verb), None) for verb in ("get", "set"))
                if get and put:
                    counts.append((put, get()))
                    put(1)
    try:
        yield
    finally:
        for put, count in counts:
            put(count)


def exponent(solver: Callable[[int], Callable[[], Any]], sizes: Sequence[int]) -> float:
    """p in time ~ n^p, from the shortest times of a few lengths."""
    return float(np.polyfit(np.log(sizes), np.log(shortest([solver(n) for n in sizes])), 1)[0])
