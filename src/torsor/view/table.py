"""Models, studies and steps of algorithms as HTML tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

from torsor.dynamics.sweep_steps import written
from torsor.model.freedoms import nondefault
from torsor.model.joints import JOINTS

if TYPE_CHECKING:
    from torsor.dynamics.sweep_steps import SweepStep
    from torsor.ensembles.study import Study
    from torsor.model.model import Model

VALUES = "white-space: pre; text-align: left; vertical-align: top; font-family: monospace"  # columns of matrices align
MOST_ROWS = 40  # bodies or steps of a table; of more, the first ones


def of_model(model: Model) -> str:
    """One row per body: its parent, its joint, its mass, and the passive quantities of its joint."""
    own = sorted(set(nondefault(model)))
    head = ["body", "parent", "joint", f"mass, {model.units.mass}", *own]

    def row(i: int) -> list[str]:
        parent = int(model.parent[i])
        numbers = nondefault(model, i)
        cells = [" ".join(f"{x:.4g}" for x in numbers[key]) if key in numbers else "" for key in own]
        where = model.names[parent] if parent >= 0 else "base"
        return [model.names[i], where, JOINTS[model.joint[i]].name, f"{model.mass[i]:.4g}", *cells]

    title = f"{model.name}: {model.n} bodies, {model.nv} degrees of freedom, {model.mass.sum():.4g} {model.units.mass}"
    more = [f"{model.n - MOST_ROWS} more bodies"] if model.n > MOST_ROWS else []
    return _table(title, head, map(row, range(min(model.n, MOST_ROWS))), more)


def of_study(study: Study) -> str:
    """The stored quantities of the members, and their progress."""
    rows = [
        [name.removeprefix("vary/"), "drawn" if name.startswith("vary/") else "stored", str((x.rows, *x.shape))]
        for name, x in study.group.variables.items()
        if name not in ("digest", "status", "t")
    ]
    done, failed = int((study.status > 0).sum()), len(study.failed)
    title = f"{study.path}: {study.n} members, {done} done, {failed} failed"
    return _table(title, ["quantity", "is", "shape"], rows, [])


def of_steps(title: str, steps: Sequence[SweepStep]) -> str:
    """A row per step: what it received, read, kept and handed on, with the values; above those of a sweep, its law."""

    def row(step: SweepStep) -> list[str]:
        where = step.body if step.freedom is None else f"{step.body}, from freedom {step.freedom}"
        return [
            where,
            *("\n".join(f"{name} =\n{written(x)}" for name, x in part.items()) for part in step.parts.values()),
        ]

    def rows() -> Iterator[list[str]]:
        for title, found in groupby(steps[:MOST_ROWS], lambda step: f"{step.number} {step.sweep}, {step.direction}"):
            sweep = list(found)
            yield [f"{title}\n{sweep[0].says}".rstrip()]
            yield from map(row, sweep)

    more = [f"{len(steps) - MOST_ROWS} more steps"] if len(steps) > MOST_ROWS else []
    shown = _table(title, ["body", "receives", "reads", "keeps", "hands on"], rows(), more)
    return shown.replace("<td", f'<td style="{VALUES}"')


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]], more: Sequence[str]) -> str:
    def line(cells: Sequence[Any], kind: str) -> str:
        wide = f" colspan={len(head)}" if len(cells) == 1 else ""  # a cell alone is as wide as the table
        return "<tr>" + "".join(f"<{kind}{wide}>{escape(str(cell))}</{kind}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in (*rows, *([f"... {words}"] for words in more)))
    return f"<table><caption>{escape(title)}</caption><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"
