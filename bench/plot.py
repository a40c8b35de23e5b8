"""python bench/plot.py: draw the results that the docs show as figures, to docs/figures/<name>.png."""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from harness import RESULTS, quantity
from matplotlib.axes import Axes

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
CUT = 2.0
OURS, PEER, TARGET = "#1b6ca8", "#9aa5b1", "#d1495b"


def main() -> None:
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWN.items():
        record = json.loads((RESULTS / f"{name}.json").read_text())
        draw(record).savefig(FIGURES / f"{name}.png", dpi=150, bbox_inches="tight")
        print(f"{name}.png")


def bars(record: dict) -> plt.Figure:
    """A panel per case, a bar per contender, its length the time; a mark where the time would meet the target."""
    cases = by_case(record["rows"])
    heights = [len(rows) + 1 for rows in cases.values()]
    figure, panels = plt.subplots(
        len(cases),
        1,
        figsize=(8, 0.3 * sum(heights) + 0.6),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for panel, (case, rows) in zip(panels[:, 0], cases.items()):
        draw_bars(panel, rows)
        panel.set_title(f"{case}, time {rows[0]['unit']}", loc="left", fontsize=9)
    figure.suptitle(f"{record['title']}\n{caption(record)}", fontsize=9)
    return figure


def draw_bars(panel: Axes, rows: list[dict]) -> None:
    # a bar several times the peer's is cut, with a ragged end: its length would leave no room for the others
    longest = CUT * rows[0]["min"]
    for y, row in enumerate(rows):
        panel.barh(y, min(row["min"], longest), color=OURS if is_ours(row) else PEER)
        if row["min"] > longest:
            ragged = longest * np.array([0.985, 1.0, 0.985, 1.0, 0.985])
            panel.plot(ragged, y + np.linspace(-0.42, 0.42, 5), "w", linewidth=3)
        ratio = f"  {row['ratio']:.1f}x" if row["ratio"] and row["contender"] != row["peer"] else ""
        needed = row["min"] * row["ratio"] / row["target"] if row["target"] else 0.0
        if needed:
            panel.plot([needed, needed], [y - 0.45, y + 0.45], color=TARGET, linewidth=1.5)
        panel.text(max(min(row["min"], longest), needed), y, f" {quantity(row['min'])}{ratio}", va="center", fontsize=8)
    panel.set_yticks(range(len(rows)), [row["contender"] for row in rows], fontsize=8)
    panel.invert_yaxis()
    panel.set_xlim(0, 1.25 * min(longest, max(row["min"] for row in rows)))
    panel.xaxis.set_visible(False)
    panel.spines[["top", "right", "bottom"]].set_visible(False)


def growth(record: dict) -> plt.Figure:
    """Cost per joint over the length of the chain."""
    figure, panel = plt.subplots(figsize=(7, 4), layout="constrained")
    contenders = dict.fromkeys(row["contender"] for row in record["rows"])
    for name in contenders:
        rows = [row for row in record["rows"] if row["contender"] == name]
        lengths = [int(row["case"].split("=")[1]) for row in rows]
        panel.loglog(lengths, [row["min"] * 1e9 for row in rows], "o-", label=name)
    panel.set_xlabel("links")
    panel.set_ylabel("ns per joint")
    panel.grid(which="both", alpha=0.2)
    panel.legend()
    panel.set_title(f"{record['title']}\n{caption(record)}", fontsize=9)
    return figure


def times(record: dict) -> plt.Figure:
    """Time over the length of the chain, a panel a family of cases: as printed, and as far as it goes."""
    families = dict.fromkeys(row["case"].split(",")[0] for row in record["rows"])
    figure, panels = plt.subplots(1, len(families), figsize=(5 * len(families), 4), layout="constrained")
    colours = dict(zip(dict.fromkeys(row["contender"] for row in record["rows"]), (PEER, "black", OURS, TARGET)))
    for panel, family in zip(panels, families):
        rows = [row for row in record["rows"] if row["case"].startswith(family)]
        for name, colour in colours.items():
            mine = [row for row in rows if row["contender"] == name]
            lengths = [int(row["case"].split("=")[1]) for row in mine]
            panel.loglog(lengths, [row["min"] * 1e3 for row in mine], "o-", color=colour, label=name if mine else None)
        panel.axvline(400, color=PEER, linewidth=0.8, linestyle=":")  # where the papers' figures end
        panel.set(title=family, xlabel="n", ylabel="ms per solve")
        panel.grid(which="both", alpha=0.2)
        panel.legend(fontsize=8)
    figure.suptitle(f"{record['title']}\n{caption(record)}", fontsize=9)
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
    return "torsor" in row["contender"] or row["contender"].startswith("ts.")


def caption(record: dict) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    return f"{record['machine']['cpu']}; {versions}"


if __name__ == "__main__":
    main()
