"""Every example runs from the command line, says something and warns of nothing."""

from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def output_of(example, folder):
    """What the example prints, run in an empty folder with warnings as errors."""
    done = processes.run("-W", "error", example, cwd=folder)
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
