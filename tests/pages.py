"""The code of the pages: README, CONTRIBUTING and docs/.

    ```python
    # needs mujoco
    print(1 + 1)
    ```

    ```text
    2
    ```

The Python blocks of a page run one after the other, in one namespace and an empty folder. A `text` block that follows
is what the block prints; `...` in it stands for anything. A block that `needs` a module runs where that is installed,
and one that needs `gpu` where CuPy finds one.

Below `<!-- compared -->` stands a table of two columns of code, theirs and ours: both sides of every row give the same
numbers. Of statements with semicolons the last one counts.
"""

from __future__ import annotations

import ast
import doctest
import io
import re
import sys
import textwrap
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<kind>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)(?P=fence)", re.S | re.M
)
NEEDS = re.compile(r"^# needs (.+)$", re.M)
AGREEMENT = 1e-9  # of numbers of order one to a hundred; peers round to some 1e-12 of them
COMPARED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block: what kind it is, its text and the line of the page where that begins."""

    kind: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["kind"], textwrap.dedent(found["text"]), text.count("\n", 0, found.start("text")) + 1)
        for found in FENCE.finditer(text)
    ]


def has_code(page: Path) -> bool:
    return any(block.kind == "python" for block in blocks(page))


def is_there(need: str) -> bool:
    """Is this module installed, or, for "gpu", is there one that CuPy can use?"""
    if need == "gpu":
        return find_spec("cupy") is not None and __import__("cupy").cuda.is_available()
    return find_spec(need) is not None


def run(page: Path, names: dict[str, object] | None = None) -> list[tuple[Block, str]]:
    """Run the Python blocks of a page in the current folder; the `text` blocks that follow one, and what it printed."""
    names = {} if names is None else names
    names["__name__"] = "__main__"
    found, outputs = blocks(page), []
    for block, after in zip(found, [*found[1:], None]):
        needs = [need for line in NEEDS.findall(block.text) for need in re.split(r"[,\s]+", line.strip())]
        if block.kind != "python" or not all(map(is_there, needs)):
            continue
        tree = ast.increment_lineno(ast.parse(block.text, str(page)), block.line - 1)
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(tree, str(page), "exec"), names)
        if after is not None and after.kind == "text":
            outputs.append((after, printed.getvalue()))
    return outputs


def check(page: Path) -> None:
    """Run a page; raise an AssertionError with its line if a block printed something else than the page says."""
    checker, names = doctest.OutputChecker(), {}
    for wanted, printed in run(page, names):
        if not checker.check_output(wanted.text, printed, COMPARED):
            difference = checker.output_difference(doctest.Example("", wanted.text), printed, COMPARED)
            raise AssertionError(f"{page.name}, line {wanted.line}: {difference}")
    for theirs, ours in rows(page) if "ts" in names else ():
        difference = np.abs(np.asarray(_value(theirs, names)) - np.asarray(_value(ours, names))).max()
        assert difference < AGREEMENT, f"{page.name}: {theirs} and {ours} differ by {difference:.1e}"


def rows(page: Path) -> list[tuple[str, str]]:
    """The code of every row of the tables that are compared: theirs and ours."""
    found = re.findall(r"<!-- compared -->\n((?:\|.*\n)+)", page.read_text(encoding="utf-8"))
    cells = [re.findall(r"`([^`]+)`", line)[:2] for table in found for line in table.splitlines()[2:]]
    assert all(len(row) == 2 for row in cells), f"{page.name}: a row of code lacks a side"
    return [(theirs, ours) for theirs, ours in cells]


def _value(code: str, names: dict[str, object]) -> object:
    *first, last = ast.parse(code).body
    exec(compile(ast.Module(first, []), code, "exec"), names)
    return eval(compile(ast.Expression(last.value), code, "eval"), names)


def fill(page: Path) -> None:
    """Write what the blocks print now into the page, except where it leaves something open with `...`."""
    lines = page.read_text(encoding="utf-8").split("\n")
    for wanted, printed in reversed(run(page)):
        if "..." not in wanted.text:
            first = wanted.line - 1
            lines[first : first + wanted.text.count("\n")] = [line.rstrip() for line in printed.rstrip().split("\n")]
    page.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":  # python pages.py [--fill] PAGE.md: in an empty folder
    *option, name = sys.argv[1:]
    (fill if option else check)(Path(name))
