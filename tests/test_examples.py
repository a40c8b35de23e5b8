"""Every example runs from the command line, says something and warns of nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import torsor

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SOURCE = Path(torsor.__file__).parent.parent  # the very torsor under test, installed or not


def output_of(example, folder):
    """What the example prints, run in an empty folder with warnings as errors."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-W", "error", str(example)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example_runs(example, tmp_path):
    assert output_of(example, tmp_path).strip()


def test_the_first_example_recovers_its_torques(tmp_path):
    lines = output_of(EXAMPLES / "01_first_steps.py", tmp_path).splitlines()
    rows = [line.split() for line in lines if line.startswith("link")]
    given, recovered = ([float(row[column]) for row in rows] for column in (3, 5))
    assert len(rows) == 7
    assert given == recovered
