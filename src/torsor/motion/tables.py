"""Tables of named columns as files for other programs: CSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.files import signature, write_whole
from torsor.later import Later

NEEDED = "Parquet files need pyarrow", "torsor[parquet]"
pyarrow, parquet = Later("pyarrow", *NEEDED), Later("pyarrow.parquet", *NEEDED)


def write_csv(path: str | Path, columns: Sequence[str], table: NDArray[Any], about: dict[str, Any]) -> None:
    """Write a line of names, one line per row with all digits of every number, and a comment on how it was made.

    The comment is the last line, so that programs find names in the first line.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(columns)  # names may contain commas
    np.savetxt(text, table, fmt="%.17g", delimiter=",")
    text.write(f"# {signature(about)}\n")
    write_whole(path, text.getvalue().encode("utf-8"))


def write_parquet(path: str | Path, columns: Sequence[str], table: NDArray[Any], about: dict[str, Any]) -> None:
    """Write one column per quantity, with metadata on how it was made; needs pyarrow."""
    content = pyarrow.BufferOutputStream()
    found = pyarrow.table([*map(pyarrow.array, table.T)], names=[*columns])
    parquet.write_table(found.replace_schema_metadata({"torsor": signature(about)}), content)
    write_whole(path, content.getvalue().to_pybytes())
