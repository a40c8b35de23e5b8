"""python bench/operations.py: Saha's Table I, counted on the code that runs.

Multiplications (divisions among them) and additions for one state: for a general Denavit-Hartenberg arm of 1 to 20
joints, the PUMA and the Stanford arm, without the bias (phi given, as in the table) and with it.  Printed to the
terminal, written to results/operations.json and drawn to docs/figures/operations.png.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from harness import RESULTS, write
from plot import FIGURES

from torsor import Model, zoo
from torsor.algorithms import articulated, udut, walker_orin
from torsor.compiler.lowering import unrolled
from torsor.compiler.tape import Operations
from torsor.papers import saha2001, saha_udut
from torsor.sweeps import Algorithm
from torsor.view.style import BLUE, GREEN, GREY, ORANGE

LENGTHS = range(1, 21)
TABLE_LENGTHS = (6, 10)
SOLVES = {"UDU^T": udut.mass_solve, "articulated": articulated.mass_solve, "composite": walker_orin.mass_solve}
DYNAMICS = {
    "UDU^T": udut.forward_dynamics,
    "articulated": articulated.forward_dynamics,
    "composite": walker_orin.forward_dynamics,
}
TO_THE_LETTER = "UDU^T, to the letter"
AUTHORS = {
    "UDU^T": "Saha",
    TO_THE_LETTER: "Saha",
    "articulated": "Featherstone",
    "composite": "Walker & Orin",
}
COLOURS = {"UDU^T": GREEN, "articulated": BLUE, "composite": ORANGE}


def printed(author: str, n: int) -> tuple[int, int]:
    """(M, A) by the formulas of Table I."""
    return saha2001.TABLE_I[author].at(n)


@dataclass(frozen=True)
class Count:
    machine: str
    n: int
    algorithm: str
    bias: bool
    mul: int  # divisions among them, as in the table
    add: int
    printed_mul: int | None = None  # Table I is about general arms, without the bias
    printed_add: int | None = None

    @property
    def total(self) -> int:
        return self.mul + self.add


def counts() -> Iterator[Count]:
    for n in LENGTHS:
        model = saha_udut.model_of(saha_udut.general_links(n))
        letter = saha_udut.operations(n)
        yield Count("general", n, TO_THE_LETTER, False, *_pair(letter), *printed("Saha", n))
        for bias, algorithms in ((False, SOLVES), (True, DYNAMICS)):
            for name, algorithm in algorithms.items():
                formula = (None, None) if bias else printed(AUTHORS[name], n)
                yield Count("general", n, name, bias, *_count(algorithm, model), *formula)
    for machine, model in (("PUMA", zoo.puma_saha()), ("Stanford", zoo.stanford())):
        for bias, algorithms in ((False, SOLVES), (True, DYNAMICS)):
            for name, algorithm in algorithms.items():
                yield Count(machine, model.nv, name, bias, *_count(algorithm, model))


def _count(algorithm: Algorithm, model: Model) -> tuple[int, int]:
    return _pair(Operations.of(unrolled(algorithm, model, algorithm.inputs)))


def _pair(count: Operations) -> tuple[int, int]:
    return count.mul + count.div, count.add


def crossover(rows: list[Count], bias: bool) -> int:
    """The first length from which the sweeps do fewer operations than the way through M."""
    total = {(r.algorithm, r.n): r.total for r in rows if r.machine == "general" and r.bias == bias}
    behind = [n for n in LENGTHS if total["articulated", n] > total["composite", n]]
    return max(behind, default=0) + 1


def tables(rows: list[Count]) -> str:
    lines = ["General arm, without the bias      counted here        Table I"]
    for n in TABLE_LENGTHS:
        for r in rows:
            if r.machine == "general" and r.n == n and not r.bias:
                table = _words(r.printed_mul, r.printed_add)
                lines.append(f"n = {n:2}  {r.algorithm:22} {_words(r.mul, r.add)}   {table}")
        for author in ("Valasek", "Brandl et al."):
            lines.append(f"n = {n:2}  {author:22} {'':17}   {_words(*printed(author, n))}")
    lines.append("\nWith the bias, and special machines")
    for r in rows:
        if r.machine != "general" or (r.bias and r.n in TABLE_LENGTHS):
            bias = "with" if r.bias else "without"
            lines.append(f"{r.machine:9} n = {r.n:2}  {r.algorithm:12} {bias:8} {_words(r.mul, r.add)}")
    without, with_bias = crossover(rows, False), crossover(rows, True)
    lines.append(f"\nO(n) does fewer than O(n^3) from n = {without} on, with the bias from n = {with_bias} on")
    return "\n".join(lines)


def _words(mul: int | None, add: int | None) -> str:
    return f"{mul:6} M {add:6} A"


def figure(record: dict) -> plt.Figure:
    """Operations over the number of joints, without and with the bias; the printed formulas dashed."""
    rows = [Count(**row) for row in record["rows"]]
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    for panel, bias in zip(panels, (False, True)):
        for (name, colour), marker in zip(COLOURS.items(), "os^"):
            chosen = [r for r in rows if r.machine == "general" and r.algorithm == name and r.bias == bias]
            panel.plot(
                [r.n for r in chosen], [r.total for r in chosen], f"{marker}-", color=colour, markersize=3, label=name
            )
            if not bias:
                lengths = [n for n in LENGTHS if n > 2]
                formula = [sum(printed(AUTHORS[name], n)) for n in lengths]
                panel.plot(lengths, formula, "--", color=colour, alpha=0.6, label=f"{AUTHORS[name]}, as printed")
        n = crossover(rows, bias)
        panel.axvline(n - 0.5, color=GREY, linewidth=1)
        panel.annotate(f"O(n) wins\nfrom n = {n}", (n - 0.4, 7500), fontsize=8)
        panel.set_title("with the bias" if bias else "phi given, as in Table I", fontsize=9)
        panel.set_xticks(range(0, 21, 2))
        panel.set_xlabel("revolute joints of a general arm")
        panel.grid(alpha=0.2)
        panel.legend(fontsize=7)
    panels[0].set_ylabel("multiplications and additions")
    figure.suptitle("Forward dynamics: operations per state (Saha 2001, Table I)", fontsize=10)
    return figure


def main() -> None:
    rows = list(counts())
    print(tables(rows))
    record = {"name": "operations", "rows": [asdict(r) for r in rows]}
    write(RESULTS / "operations.json", record)
    figure(record).savefig(FIGURES / "operations.png", dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
