"""Race contenders on the same work: interleaved rounds, warm-up, states that change from call to call.

A time on its own says little on a shared machine, so every contender runs once a round, in turn, and is
compared with a named peer that runs in the same rounds.  The minimum shows the work itself, the median what a
user meets.  Before the clock starts each answer is compared with the peer's: a wrong one is no contender.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

import torsor as ts
from torsor.files import made

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("numpy", "llvmlite", "casadi", "gymnasium", "pin", "mujoco", "dynibo", "drake")
FEATURES = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512dq", "avx512vl", "asimd", "sve")

ROUNDS = 15
SAMPLE = 5e-3  # seconds: shorter calls are repeated within a sample, so that the clock's grain vanishes


@dataclass(frozen=True)
class Contender:
    """Calls `function(*a)` for each a of `arguments`; `answer` brings a result to torsor's layout."""

    name: str
    function: Callable[..., Any]
    arguments: Sequence[tuple]
    answer: Callable[[Any], np.ndarray] | None = np.asarray
    target: float | None = None  # how many times faster than the peer it is meant to be
    tolerance: float = 1e-10  # of the answer, relative to the peer's


@dataclass(frozen=True)
class Row:
    """One contender in one case; times in seconds for one unit of work."""

    case: str
    contender: str
    unit: str
    min: float
    median: float
    peer: str | None = None
    ratio: float | None = None  # the peer's minimum / this minimum
    ratio_median: float | None = None
    target: float | None = None
    difference: float | None = None  # from the peer's answer, relative


@dataclass(frozen=True)
class Claim:
    """A figure that is not a time against the peer (an error, a growth, a start-up time), and its bound."""

    what: str
    reached: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def met(self) -> bool:
        """Without a bound, a figure is only reported."""
        above = self.at_most is not None and self.reached > self.at_most
        return not (above or (self.at_least is not None and self.reached < self.at_least))


@dataclass
class Report:
    """What one benchmark measured, where and with what."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    def save(self, folder: Path = RESULTS) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        record = {
            "name": self.name,
            "title": self.title,
            "machine": machine(),
            "rows": [asdict(row) for row in self.rows],
            "claims": [asdict(claim) for claim in self.claims],
        }
        return write(path, record)


def words(usage: str | None, least: int = 1) -> list[str]:
    """The words of the command line; without enough of them the script ends and says how it is called."""
    given = sys.argv[1:]
    if len(given) < least or {"-h", "--help"} & {*given}:
        sys.exit(usage)
    return given


def cupy(usage: str | None) -> Any:
    """CuPy; where it is missing the script ends and says how it is called."""
    try:
        return import_module("cupy")
    except ImportError:
        sys.exit(f"{usage}\nCuPy is not installed here.")


def write(path: Path, record: dict[str, Any]) -> Path:
    """Write what was measured, and with which torsor and packages, when, and with which options."""
    options = [Path(x).name if Path(x).is_absolute() else x for x in sys.argv[1:]]
    maker = {"date": made()["date"], "versions": versions(), "options": options}
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(record | maker, indent=1) + "\n")
    return aside.replace(path)  # whoever reads meanwhile reads the whole of one or the other


def race(case: str, contenders: Sequence[Contender], *, unit: str, per: int = 1, rounds: int = ROUNDS,
         clock: Callable[[], float] = time.perf_counter) -> list[Row]:  # fmt: skip
    """Time the contenders against the first of them, the peer.  `per` units of work are done by one call.

    `clock`: time.thread_time for work of one thread, which a busy machine interrupts.
    """
    peer = contenders[0]
    expected = _first_answer(peer)
    differences = [_difference(c, expected) for c in contenders]  # also the warm-up
    repeats = [_repeats(c, clock) for c in contenders]
    times: list[list[float]] = [[] for _ in contenders]
    for r in range(rounds):
        progress(f"{case}: round {r + 1} of {rounds}")
        for c, repeat, kept in zip(contenders, repeats, times):
            kept.append(_sample(c, repeat, r, clock) / per)
    progress("")
    return [
        Row(
            case=case,
            contender=c.name,
            unit=unit,
            min=min(t),
            median=statistics.median(t),
            peer=peer.name,
            ratio=min(times[0]) / min(t),
            ratio_median=statistics.median(times[0]) / statistics.median(t),
            target=c.target,
            difference=d,
        )
        for c, t, d in zip(contenders, times, differences)
    ]


def _sample(contender: Contender, repeat: int, start: int, clock: Callable[[], float]) -> float:
    """Seconds a call, over `repeat` calls whose states all differ from those of the sample before."""
    function, sets = contender.function, contender.arguments
    first = start * repeat % len(sets)
    turn = list(islice(cycle(sets), first, first + repeat))
    begin = clock()
    for arguments in turn:
        function(*arguments)
    return (clock() - begin) / repeat


def _repeats(contender: Contender, clock: Callable[[], float]) -> int:
    return max(1, round(SAMPLE / min(_sample(contender, 1, start, clock) for start in range(3))))


def _first_answer(contender: Contender) -> np.ndarray | None:
    result = contender.function(*contender.arguments[0])
    return None if contender.answer is None else np.array(contender.answer(result), dtype=float)


def _difference(contender: Contender, expected: np.ndarray | None) -> float | None:
    got = _first_answer(contender)
    if got is None or expected is None:
        return None
    difference = float(np.max(np.abs(got - expected)) / np.max(np.abs(expected)))
    if not difference <= contender.tolerance:
        raise AssertionError(f"{contender.name} differs from the peer by {difference:.1e}")
    return difference


def progress(text: str) -> None:
    """One line on the terminal, rewritten; nothing in a log."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def table(report: Report) -> str:
    """The report as people read it: one block a case, the target beside each ratio, then the other claims."""
    lines = [report.title]
    case = None
    for row in report.rows:
        if row.case != case:
            case = row.case
            lines += ["", f"{f'{case} ({row.unit})':<50} {'min':>9} {'median':>9}   ratio (of medians)"]
        lines.append(f"  {row.contender:<48} {quantity(row.min):>9} {quantity(row.median):>9} {_ratio(row)}")
    lines += [""] + [f"  {c.what:<58} {c.reached:>9.3g}  {_bound(c)}" for c in report.claims]
    return "\n".join(lines)


def _ratio(row: Row) -> str:
    if row.ratio is None or row.ratio_median is None:
        return ""
    text = f"{row.ratio:8.2f}x ({row.ratio_median:.2f}x)"
    if row.target is not None:
        text += f"  target {row.target:g}x: {_word(row.ratio >= row.target)}"
    return text + (f"  differs by {row.difference:.0e}" if row.difference else "")


def _bound(claim: Claim) -> str:
    if claim.at_most is None and claim.at_least is None:
        return ""
    bound = f"at most {claim.at_most:g}" if claim.at_most is not None else f"at least {claim.at_least:g}"
    return f"target {bound}: {_word(claim.met)}"


def _word(met: bool) -> str:
    return "met" if met else "MISSED"


def quantity(seconds: float) -> str:
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {name}"
    return f"{seconds / 1e-9:.3g} ns"


def machine() -> dict[str, Any]:
    """The processor and what it can do, not whose it is."""
    fields = _cpuinfo()
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return {
        "cpu": fields.get("model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "features": [f for f in FEATURES if f in flags],
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def _cpuinfo() -> dict[str, str]:
    """The first processor's fields, where the system lists them."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    pairs = (line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def versions() -> dict[str, str]:
    """Of torsor as imported, which need not be installed, and of the packages that are."""
    return {"torsor": ts.__version__} | {name: found for name in PACKAGES if (found := _version(name))}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
