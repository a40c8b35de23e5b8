"""A progress bar for a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torsor.later import Later
from torsor.validate import function

rich = Later("rich.progress")


@contextmanager
def shown_progress(progress: Any, begin: float, until: float) -> Iterator[Callable[[float], None] | None]:
    """The function that reports the time of a run: a bar if `progress` is True, the caller's function, or None."""
    if progress is None or progress is False:
        yield None
    elif progress is not True:
        yield function("progress", progress)
    else:
        columns = rich.TextColumn("{task.fields[t]:.4g} s"), rich.BarColumn(), rich.TimeRemainingColumn()
        with rich.Progress(*columns, transient=True) as bar:
            task = bar.add_task("", total=until - begin, t=begin)
            yield lambda t: bar.update(task, completed=t - begin, t=t)
