"""python bench/plot.py: draw the results that the docs show as figures, to docs/figures/<name>.png."""

import json
from pathlib import Path
from textwrap import fill

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from harness import RESULTS, quantity
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from torsor.view.style import BLUE, GREY, lines, style

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
LEFT_OUT = ("AVX2 lanes", "loop kernel, float32")  # in the tables only


def main() -> None:
    FIGURES.mkdir(parents=True, exist_ok=True)
    with style():
        for name, draw in DRAWN.items():
            record = json.loads((RESULTS / f"{name}.json").read_text())
            draw(record).savefig(FIGURES / f"{name}.png", dpi=150, bbox_inches="tight")
            print(f"{name}.png")


def bars(record: dict) -> plt.Figure:
    """A panel per case, a bar per contender: how many times faster than the peer, whose speed is the line at 1."""
    cases = by_case(record["rows"])
    cases = {case: [row for row in rows if not row["contender"].endswith(LEFT_OUT)] for case, rows in cases.items()}
    heights = [len(rows) + 0.8 for rows in cases.values()]
    size = (7.5, 0.19 * sum(heights) + 1.1)
    options = dict(figsize=size, height_ratios=heights, squeeze=False, sharex=True, layout="constrained")
    figure, panels = plt.subplots(len(cases), 1, **options)
    for panel, (case, rows) in zip(panels[:, 0], cases.items()):
        draw_bars(panel, rows)
        panel.set_title(case, loc="left")
    peers = {rows[0]["peer"] for rows in cases.values()}
    of_peers = f"times as fast as {peers.pop() if len(peers) == 1 else 'the first of a panel'}"
    panels[-1, 0].set_xlabel(f"time, {rows[0]['unit']}" if rows[0]["peer"] is None else of_peers)
    titled(figure, record)
    return figure


def draw_bars(panel: Axes, rows: list[dict]) -> None:
    """Bars from the peer's speed, or where there is no peer, of time from the left."""
    lengths = [row["ratio"] or row["min"] for row in rows]
    start = 1.0 if rows[0]["peer"] else min(lengths) / 3
    for y, (row, x) in enumerate(zip(rows, lengths)):
        panel.barh(y, x - start, left=start, height=0.7, color=BLUE if is_ours(row) else GREY)
        ratio = f", {plain(x)} x" if row["peer"] and row["contender"] != row["peer"] else ""
        panel.annotate(
            f" {quantity(row['min'])}{ratio}", (max(x, start), y), xytext=(2, 0), textcoords="offset points",
            va="center", fontsize=7,
        )  # fmt: skip
    panel.set_xscale("log")
    panel.set_yticks(range(len(rows)), [row["contender"] for row in rows])
    panel.invert_yaxis()
    panel.axvline(start, color="black", linewidth=1.0)
    panel.set_xlim(left=min(start, *lengths) / 1.3, right=max(panel.get_xlim()[1], 3 * max(lengths)))
    plain_axis(panel.xaxis)
    panel.grid(axis="y", visible=False)


def plain(x: float) -> str:
    """A number of two digits without an exponent."""
    return f"{x:.0f}" if x >= 10 else f"{x:.2g}"


def plain_axis(axis: matplotlib.axis.Axis) -> None:
    """Numbers as they are spoken on a logarithmic axis."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def titled(figure: plt.Figure, record: dict) -> None:
    """What was measured; below, when and on which machine."""
    figure.suptitle(record["title"], fontsize=9, x=0.01, ha="left")
    figure.supxlabel(fill(caption(record), 130), fontsize=6.5, color=GREY, x=0.01, ha="left")


def growth(record: dict) -> plt.Figure:
    """Cost per joint over the length of the chain."""
    figure, panel = plt.subplots(figsize=(6, 3.8), layout="constrained")
    for name, (colour, dash) in zip(dict.fromkeys(row["contender"] for row in record["rows"]), lines()):
        rows = [row for row in record["rows"] if row["contender"] == name]
        lengths = [int(row["case"].split("=")[1]) for row in rows]
        nanoseconds = [row["min"] * 1e9 for row in rows]
        panel.loglog(lengths, nanoseconds, color=colour, linestyle=dash, marker="o", ms=3, label=name)
    panel.legend()
    panel.set(xlabel="links", ylabel="time per joint, ns")
    plain_axis(panel.xaxis)
    plain_axis(panel.yaxis)
    titled(figure, record)
    return figure


def times(record: dict) -> plt.Figure:
    """Time over the length of the chain, a panel a family of cases: as printed, and as far as it goes."""
    families = dict.fromkeys(row["case"].split(",")[0] for row in record["rows"])
    figure, panels = plt.subplots(1, len(families), figsize=(4.4 * len(families), 3.8), layout="constrained")
    styles = dict(zip(dict.fromkeys(row["contender"] for row in record["rows"]), lines()))
    for panel, family in zip(panels, families):
        rows = [row for row in record["rows"] if row["case"].startswith(family)]
        for name, (colour, dash) in styles.items():
            mine = [row for row in rows if row["contender"] == name]
            lengths = [int(row["case"].split("=")[1]) for row in mine]
            seconds = [row["min"] * 1e3 for row in mine]
            panel.loglog(lengths, seconds, color=colour, linestyle=dash, marker="o", ms=3, label=name if mine else None)
        panel.axvline(400, color=GREY, linewidth=0.8, linestyle=":")  # where the papers' figures end
        panel.set(title=family, xlabel="n", ylabel="time per solve, ms")
        plain_axis(panel.xaxis)
        plain_axis(panel.yaxis)
        panel.legend()
    titled(figure, record)
    return figure


def operation_counts(record: dict) -> plt.Figure:
    import operations

    return operations.figure(record)


DRAWN = {
    **dict.fromkeys(("forward_dynamics", "latency", "log_depth", "other_functions", "startup", "unrolling"), bars),
    "long_chain": growth,
    "fixman": times,
    "operations": operation_counts,
}


def by_case(rows: list[dict]) -> dict[str, list[dict]]:
    cases: dict[str, list[dict]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    return cases


def is_ours(row: dict) -> bool:
    return "torsor" in row["contender"] or row["contender"].startswith(("ts.", "first call"))


def caption(record: dict) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    return f"{record['date'][:10]}, {record['machine']['cpu']}; {versions}"


if __name__ == "__main__":
    main()
