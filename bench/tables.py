"""python bench/tables.py: write the tables of README.md and of pages in docs/ anew.

They come from bench/results/*.json, and those of the command from its parser.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torsor import cli

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"


def main() -> None:
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text()))
        print(page)


def filled(text: str) -> str:
    """A page with every table between `<!-- table: name -->` and `<!-- end -->` made anew."""
    return re.sub(
        r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)",
        lambda found: found[1] + "\n".join(TABLES[found[2]]()) + "\n" + found[3],
        text,
        flags=re.DOTALL,
    )


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def rows(head: Sequence[str], body: Iterator[Sequence[Any]]) -> list[str]:
    lines = [head, ["---"] * len(head), *body]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


# One core against the peers --------------------------------------------------------------------------------------

MACHINES = ("general 6R", "Panda-like 7R", "PUMA 560", "floating humanoid")
PEERS = {
    "inverse dynamics": "inverse dynamics",
    "mass matrix": "mass matrix (against `crba` in a Python loop)",
    "inverse mass matrix": "inverse mass matrix (`computeMinverse`, likewise)",
}


def speedups() -> list[str]:
    """The best ratio of minima that torsor has in float64, and that of medians."""
    forward, other = read("forward_dynamics")["rows"], read("other_functions")["rows"]
    lines = [["forward dynamics", *(_best(forward, machine) for machine in MACHINES)]]
    for question, label in PEERS.items():
        lines.append([label, *(_best(other, f"{machine}: {question}") for machine in MACHINES)])
    return rows(["", *MACHINES[:-1], "floating humanoid, 36 DoF"], iter(lines))


def _best(found: list[dict], case: str) -> str:
    mine = [row for row in found if row["case"] == case and row["contender"].startswith("torsor")]
    ours = [row for row in mine if not re.search("float32|AVX2", row["contender"])]
    best = max(ours, key=lambda row: row["ratio"])
    return f"{best['ratio']:.0f} ({best['ratio_median']:.0f})"


# On a GPU --------------------------------------------------------------------------------------------------------


def gpu() -> list[str]:
    cases: dict[str, dict[str, dict]] = {}
    for row in read("gpu")["rows"]:
        layouts = cases.setdefault(row["case"].replace("_", " "), {})
        best = layouts.get(row["layout"])
        if best is None or row["billion_a_second"] > best["billion_a_second"]:
            layouts[row["layout"]] = row
    head = ["case", "columns", "rows", "wanted", "floors: bytes, operations", "error"]

    def line(case: str, columns: dict, as_rows: dict) -> list[str]:
        floors = f"{columns['floor_bytes']:.3g}, {columns['floor_operations']:.3g}"
        wanted = f"{columns['target']:g}" if columns["target"] else ""
        speeds = [f"{row['billion_a_second']:.3g}" for row in (columns, as_rows)]
        return [case, *speeds, wanted, floors, f"{max(columns['error'], as_rows['error']):.0e}"]

    return rows(head, (line(case, x["columns"], x["rows"]) for case, x in cases.items()))


def rollouts() -> list[str]:
    head = ["rollout", "billion steps per second", "wanted", "error after 20 steps"]
    facts = {name: x for name, x in read("gpu")["facts"].items() if name.startswith("rollout, ")}

    def line(name: str, x: dict) -> list[str]:
        speed = f"{x['billion_steps_a_second']:.3g}"
        return [name.removeprefix("rollout, "), speed, f"{x['target'] or ''}", f"{x['error']:.0e}"]

    return rows(head, (line(name, x) for name, x in facts.items()))


def gpu_chain() -> list[str]:
    record = read("gpu_chain")
    found = {(row["links"], row["function"]): row for row in record["rows"]}
    head = ["links", "forward dynamics", "wanted", "M^-1 b", "log det M", "launches", "error, forward dynamics"]

    def line(n: int) -> list[str]:
        times = [f"{found[n, f]['ms']:.3f}" for f in ("forward_dynamics", "mass_solve", "log_det")]
        forward = found[n, "forward_dynamics"]
        wanted = f"{record['targets_ms'][str(n)]:g}"
        return [f"2^{n.bit_length() - 1}", times[0], wanted, *times[1:], forward["launches"],
                f"{forward['relative_error']:.0e}"]  # fmt: skip

    return rows(head, (line(n) for n in sorted({n for n, _ in found})))


# Digits ----------------------------------------------------------------------------------------------------------


def accuracy() -> list[str]:
    """The worst relative error of each method, by family of machines."""
    found = read("accuracy")["rows"]
    methods = list(dict.fromkeys(method for row in found for method in row["errors"]))

    def cell(error: float | str) -> str:
        return error if isinstance(error, str) else f"{error:.0e}"

    def line(row: dict) -> list[str]:
        return [row["family"], *(cell(row["errors"].get(method, "")) for method in methods)]

    return rows(["machines", *methods], map(line, found))


# Optimal control and environments ----------------------------------------------------------------------------------


def control() -> list[str]:
    """Functions and a problem in CasADi: its own derivatives against ours."""
    found = [row for row in read("control")["rows"] if row["contender"] in ("CasADi", "torsor")]
    cases = {row["case"]: {} for row in found if row["case"].startswith("Panda")}
    for row in found:
        cases.get(row["case"], {})[row["contender"]] = row
    body = (
        [case, *(_seconds(pair[name]["min"]) for name in ("CasADi", "torsor")), f"{pair['torsor']['ratio']:.3g}"]
        for case, pair in cases.items()
    )
    return rows(["", "CasADi", "torsor", "times faster"], body)


def environments() -> list[str]:
    """Environment steps per CPU second."""
    found = [row for row in read("control")["rows"] if row["unit"] == "per environment step"]
    body = ([row["case"], row["contender"], f"{1 / row['min']:,.0f}"] for row in found)
    return rows(["", "", "steps per CPU second"], body)


def _seconds(t: float) -> str:
    scale, unit = next((x for x in ((1.0, "s"), (1e-3, "ms")) if t >= x[0]), (1e-6, "us"))
    return f"{t / scale:.3g} {unit}"


# Results as they are, for the page of benchmarks ------------------------------------------------------------------


def measured(name: str) -> Callable[[], list[str]]:
    """Every contender of a result: its times, and how they compare with those of the peer."""

    def table() -> list[str]:
        found = read(name)["rows"]
        head = ["case", "contender", "shortest", "median", "times faster than the peer (by the median)"]

        def line(row: dict) -> list[str]:
            times = [f"{_short(1e9 * row[key])} ns" for key in ("min", "median")]
            is_peer = row["contender"] == row["peer"]
            ratio = (
                f"{_short(row['ratio'])} ({_short(row['ratio_median'])})" if row.get("ratio") and not is_peer else ""
            )
            return [row["case"], row["contender"], *times, ratio]

        return rows(head, map(line, found))

    return table


def _short(x: float) -> str:
    """Two digits at least, and no exponents."""
    return f"{x:,.0f}" if x >= 10 else f"{x:.2g}"


def machines() -> list[str]:
    """When and where the results were measured."""

    def line(path: Path) -> list[str]:
        record = json.loads(path.read_text())
        machine = record.get("machine", {})
        return [path.stem, record.get("date", "")[:10], record.get("device") or machine.get("cpu", "")]

    return rows(["result", "date", "machine"], map(line, sorted(RESULTS.glob("*.json"))))


# The command -----------------------------------------------------------------------------------------------------


def command(name: str) -> Callable[[], list[str]]:
    """The arguments and options of a command."""

    def table() -> list[str]:
        found = next(x for x in cli.parser()._actions if isinstance(x, argparse._SubParsersAction)).choices[name]
        return rows(["argument", "meaning"], (_argument(x) for x in found._actions if x.dest != "help"))

    return table


def _argument(action: argparse.Action) -> list[str]:
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    if action.choices and not action.metavar:
        value = ""
    words = " ".join(str(word).replace("|", "\\|") for word in (", ".join(action.option_strings), value) if word)
    text = re.sub("from the zoo: [^;]*", "from the zoo", action.help or "")
    text = text.replace("%(default)s", str(action.default)).replace("|", "\\|")
    if action.choices:
        text += f"; one of {', '.join(map(str, action.choices))}"
    return [f"`{words or action.dest}`", text.lstrip("; ")]


COMMANDS = ("simulate", "info", "view", "sweep", "fold", "export", "papers", "bench", "cache")

MEMBERS = {
    "rk4, steps of 1 ms": "rk4, steps of 1 ms",
    "dopri5, rtol 1e-6": "dopri5, rtol 1e-6",
    "MuJoCo rollout, RK4, steps of 1 ms": "MuJoCo's `rollout`, RK4, steps of 1 ms, new masses each",
    "scipy solve_ivp with pin.aba, rtol 1e-6": "SciPy's `solve_ivp` with `pin.aba`, rtol 1e-6, a new model each",
    "ts.simulate in a Python loop, dopri5, rtol 1e-6": (
        "`ts.simulate` in a Python loop, dopri5, rtol 1e-6, a new model each"
    ),
}


def ensemble() -> list[str]:
    """Members that are drawn, moved and stored per second of one core."""
    found = read("ensemble")["members_per_core_second"]
    best = {words: float(f"{found[name]['best']:.3g}") for name, words in MEMBERS.items()}
    return rows(["", "members per core-second"], ((words, f"{x:,.{0 if x > 10 else 1}f}") for words, x in best.items()))


TABLES: dict[str, Callable[[], list[str]]] = {
    "speedups": speedups, "gpu": gpu, "rollouts": rollouts, "gpu_chain": gpu_chain, "accuracy": accuracy,
    **{name: measured(name) for name in ("forward_dynamics", "other_functions", "latency", "jacobians")},
    **{f"torsor_{name}": command(name) for name in COMMANDS}, "machines": machines,
    "control": control, "environments": environments, "ensemble": ensemble,
}  # fmt: skip
PAGES = ("README.md", "docs/gpu.md", "docs/accuracy.md", "docs/control.md", "docs/benchmarks.md",
         "docs/ensembles.md", "docs/reference/command.md")  # fmt: skip


if __name__ == "__main__":
    main()
