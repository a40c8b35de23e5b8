"""Draws docs/figures/one_call.png: the way of one call through the house.

python bench/one_call.py
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "one_call.png"
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#555555"  # Okabe & Ito
WIDTH, HEIGHT = 2.9, 0.62

# name, words below it, column, row, colour
BOXES = {
    "call": ("ts.forward_dynamics(model, q, v, tau)", "dynamics/functions.py", 0, 0, GREY),
    "store": ("a program in the store of the model?", "compiler/store.py", 0, 1, BLUE),
    "run": ("NumPy runs the machine code", "backends/gufunc.py", 0, 5, GREEN),
    "finite": ("is every number finite?", "dynamics/functions.py", 0, 6, GREEN),
    "check": ("check the arguments, choose the method", "dynamics/calls.py, methods.py", 1, 1, BLUE),
    "request": ("what is to be computed", "compiler/request.py", 1, 2, BLUE),
    "cache": ("machine code on disk?", "backends/cpu.py, cache.py", 1, 3, BLUE),
    "load": ("load it", "backends/elf.py", 1, 5, BLUE),
    "explain": ("say what is wrong, and where", "dynamics/calls.py", 1, 6, GREY),
    "trace": ("run the steps on symbols", "compiler/frames.py, trace.py, tape.py", 2, 2, ORANGE),
    "write": ("write LLVM IR", "compiler/loops.py, backends/llvm*.py", 2, 3, ORANGE),
    "object": ("make object code and link it", "backends/codegen.py, elf.py", 2, 4, ORANGE),
    "keep": ("keep it on disk", "backends/cache.py", 2, 5, ORANGE),
}
# from, to, word, where the word stands
ARROWS = [
    ("call", "store", ""), ("store", "run", "yes: a microsecond"), ("store", "check", "no"), ("check", "request", ""),
    ("request", "cache", ""), ("cache", "load", "yes: 6 ms"), ("cache", "trace", "no: 0.2 s"), ("trace", "write", ""),
    ("write", "object", ""), ("object", "keep", ""), ("keep", "load", ""), ("load", "run", ""),
    ("run", "finite", ""), ("finite", "explain", "no"),
]  # fmt: skip


def corner(name: str) -> tuple[float, float]:
    _, _, column, row, _ = BOXES[name]
    return 0.2 + 3.75 * column, 6.45 - 1.05 * row


def draw() -> Figure:
    figure = Figure(figsize=(11.0, 7.2))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 11)
    axes.set_ylim(-0.2, 7.3)
    axes.axis("off")
    for name, (title, files, _, _, colour) in BOXES.items():
        x, y = corner(name)
        box = FancyBboxPatch((x, y), WIDTH, HEIGHT, boxstyle="round,pad=0.04", facecolor="white", edgecolor=colour)
        axes.add_patch(box)
        axes.text(x + WIDTH / 2, y + 0.40, title, ha="center", va="center", fontsize=9.5)
        axes.text(
            x + WIDTH / 2, y + 0.15, files, ha="center", va="center", fontsize=7.5, color=colour, family="monospace"
        )
    for start, end, word in ARROWS:
        (x0, y0), (x1, y1) = corner(start), corner(end)
        if abs(x0 - x1) < 0.1:  # down
            a, b = (x0 + WIDTH / 2, y0 - 0.05), (x1 + WIDTH / 2, y1 + HEIGHT + 0.06)
        elif x1 > x0:
            a, b = (x0 + WIDTH + 0.05, y0 + HEIGHT / 2), (x1 - 0.06, y1 + HEIGHT / 2)
        else:
            a, b = (x0 - 0.05, y0 + HEIGHT / 2), (x1 + WIDTH + 0.06, y1 + HEIGHT / 2)
        axes.annotate("", b, a, arrowprops=dict(arrowstyle="-|>", color=GREY, lw=1.1))
        if word:
            x, y = (a[0] + b[0]) / 2, (a[1] + b[1]) / 2
            upright = abs(a[0] - b[0]) < 0.1
            axes.text(x + (0.08 if upright else 0), y + (0 if upright else 0.12), word, fontsize=8, color=GREY,
                      ha="left" if upright else "center", va="center",
                      bbox=dict(facecolor="white", edgecolor="none", pad=1.0))  # fmt: skip
    return figure


if __name__ == "__main__":
    draw().savefig(FIGURE, dpi=130)
