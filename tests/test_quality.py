"""The linter, the formatter and the type checker, run as tests."""

from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parent.parent

TOOLS = {
    "ruff check": ["ruff", "check", "src", "tests", "bench", "examples"],
    "ruff format": ["ruff", "format", "--check", "src", "tests", "bench", "examples"],
    "mypy": ["mypy"],  # pyproject.toml says on what
}


@pytest.mark.parametrize("tool", TOOLS)
def test_nothing_to_complain_about(tool):
    done = processes.run("-m", *TOOLS[tool], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
