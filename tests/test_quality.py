"""The linter, the formatter and the type checker, run as tests."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TOOLS = {
    "ruff check": ["ruff", "check", "src", "tests", "bench", "examples"],
    "ruff format": ["ruff", "format", "--check", "src", "tests", "bench", "examples"],
    "mypy": ["mypy"],  # pyproject.toml says on what
}


@pytest.mark.parametrize("tool", TOOLS)
def test_nothing_to_complain_about(tool):
    command = [sys.executable, "-m", *TOOLS[tool]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
