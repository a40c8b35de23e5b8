"""The pages show the results that are there."""

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("tables", ROOT / "bench" / "tables.py")
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)


@pytest.mark.parametrize("page", tables.PAGES)
def test_tables_are_those_of_the_results(page):
    text = (ROOT / page).read_text()
    assert "<!-- table:" in text
    assert tables.filled(text) == text, "run  python bench/tables.py"


PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "bench/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
FOLDERS = "algorithms|backends|compiler|dynamics|formats|kernel|model|parallel|motion|papers|view|zoo"
FOLDERS += "|bench|docs|tests|examples"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_only_what_is_there(page):
    """Links to other pages and pictures, and source files named in code style."""
    text = page.read_text()
    links = [x for x in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in x]
    files = re.findall(rf"`((?:{FOLDERS})/[\w/]+\.(?:py|md|json|png))\b", text)
    missing = [x for x in links if not (page.parent / x).exists()]
    missing += [x for x in files if not (ROOT / x).exists() and not (ROOT / "src" / "torsor" / x).exists()]
    assert not missing


RUN = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{page}.md" for page in ("simulation", "ensembles", "derivatives", "jacobians", "control")),
]


@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page_runs(page, tmp_path):
    """Its blocks, one after the other, in a process of its own: some add methods and forces."""
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", (ROOT / page).read_text(encoding="utf-8"), re.S | re.M)
    script = tmp_path / "page.py"
    script.write_text("\n".join(textwrap.dedent(block) for block in blocks))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
