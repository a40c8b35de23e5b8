"""python examples/notebooks.py: write every example as a notebook, notebooks/NAME.ipynb.

The docstring becomes words; the code is cut into cells at two blank lines, and at a blank line before a comment.
"""

import ast
import json
import re
from pathlib import Path

EXAMPLES = Path(__file__).parent
FOLDER = EXAMPLES / "notebooks"


def notebook(script: Path) -> dict:
    """A script as a notebook without output."""
    text = script.read_text(encoding="utf-8")
    tree = ast.parse(text)
    words = re.sub(r"\n+ *python examples/.*", "", ast.get_docstring(tree))
    code = "\n".join(text.split("\n")[tree.body[0].end_lineno :]).strip()
    cells = [cell("markdown", words)]
    cells += [cell("code", part) for part in re.split(r"\n\n\n|\n\n(?=# )", code)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}


def cell(kind: str, text: str) -> dict:
    more = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text.strip().splitlines(keepends=True)} | more


def content(script: Path) -> str:
    return json.dumps(notebook(script), indent=1) + "\n"


def scripts() -> list[Path]:
    return sorted(EXAMPLES.glob("[0-9]*.py"))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for script in scripts():
        (FOLDER / f"{script.stem}.ipynb").write_text(content(script), encoding="utf-8")
