"""Every example runs from the command line, says something and warns of nothing."""

import importlib.util
import json
import re
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"

spec = importlib.util.spec_from_file_location("notebooks", EXAMPLES / "notebooks.py")
notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(notebooks)


def output_of(example, folder):
    """What the example prints, run in an empty folder with warnings as errors."""
    done = processes.run("-W", "error", example, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return done.stdout


def has_table(text):
    """Three lines one after the other with the same number of columns, of which all but the first line hold numbers."""
    rows = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    return any(
        len(a) == len(b) == len(c) > 1 and all(re.search(r"\d", row[-1]) for row in (b, c))
        for a, b, c in zip(rows, rows[1:], rows[2:])
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("example", notebooks.scripts(), ids=lambda path: path.name)
def test_example_shows_a_picture_or_a_table(example, tmp_path):
    text = output_of(example, tmp_path)
    pictures = [path for path in tmp_path.rglob("*") if path.suffix in (".png", ".html")]
    assert all(path.stat().st_size > 5_000 for path in pictures)
    assert pictures or has_table(text), text


def test_the_first_example_recovers_its_torques(tmp_path):
    lines = output_of(EXAMPLES / "01_first_steps.py", tmp_path).splitlines()
    rows = [line.split() for line in lines if line.startswith("link")]
    given, recovered = ([float(row[column]) for row in rows] for column in (3, 5))
    assert len(rows) == 7
    assert given == recovered


@pytest.mark.parametrize("example", notebooks.scripts(), ids=lambda path: path.name)
def test_every_example_is_a_notebook(example):
    """Of the same code, cut into cells that are complete statements."""
    written = notebooks.FOLDER / f"{example.stem}.ipynb"
    assert written.read_text(encoding="utf-8") == notebooks.content(example), "run  python examples/notebooks.py"
    for cell in json.loads(written.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            compile("".join(cell["source"]), example.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("example", notebooks.scripts(), ids=lambda path: path.name)
def test_notebooks_run(example, tmp_path):
    """Cell after cell."""
    cells = json.loads((notebooks.FOLDER / f"{example.stem}.ipynb").read_text(encoding="utf-8"))["cells"]
    script = tmp_path / "cells.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
    assert output_of(script, tmp_path).strip()
