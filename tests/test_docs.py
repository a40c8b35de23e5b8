"""The pages show the results that are there, name what is there, and their code runs."""

import importlib.util
import json
import re
import shlex

import pages
import processes
import pytest
from pages import PAGES, ROOT

from torsor import cli


def script(path):
    """A script of the tree as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables, sources = script(ROOT / "bench" / "tables.py"), script(ROOT / "docs" / "sources.py")

IDS = {"ids": lambda page: str(page.relative_to(ROOT))}
# These add joints, methods, forces and quantities to torsor, which other tests must not meet.
OWN_PROCESS = ("extend.md",)


@pytest.mark.parametrize("page", tables.PAGES)
def test_tables_are_those_of_the_results(page):
    text = (ROOT / page).read_text()
    assert "<!-- table:" in text
    assert tables.filled(text) == text, "run  python bench/tables.py"


FOLDERS = "algorithms|backends|compiler|dynamics|formats|kernel|model|parallel|motion|papers|view|zoo"
FOLDERS += "|bench|docs|tests|examples"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "bench" / "README.md"], **IDS)
def test_pages_name_only_what_is_there(page):
    """Links to other pages and pictures, and source files named in code style."""
    text = page.read_text()
    links = [x for x in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in x]
    files = re.findall(rf"`((?:{FOLDERS})/[\w/]+\.(?:py|md|json|png))\b", text)
    missing = [x for x in links if not (page.parent / x).exists()]
    missing += [x for x in files if not (ROOT / x).exists() and not (ROOT / "src" / "torsor" / x).exists()]
    assert not missing


@pytest.mark.parametrize("page", [page for page in PAGES if pages.has_code(page)], **IDS)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    """Its blocks, one after the other, in an empty folder; `pages.py` says what is compared."""
    monkeypatch.chdir(tmp_path)
    if page.name not in OWN_PROCESS:
        pages.check(page)
        return
    done = processes.run("-W", "error", pages.__file__, page)
    assert done.returncode == 0, done.stdout + done.stderr


COMMANDS = [
    pytest.param(command, id=f"{page.stem}:{block.line} {command[:40]}")
    for page in PAGES
    for block in pages.blocks(page)
    if block.kind == "sh"
    for line in block.text.replace("\\\n", " ").splitlines()
    for command in line.split("&&")
    if command.strip().startswith("torsor ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_pages_are_understood(command):
    """Every `torsor ...` line of a `sh` block, by the parser of the command."""
    cli.parser().parse_args(cli._with_negative_lists(shlex.split(command, comments=True)[1:]))


def test_no_figure_is_older_than_its_data():
    """`docs/sources.py` notes what each figure was drawn from."""
    known = json.loads(sources.SOURCES.read_text())
    assert sorted(known) == sorted(path.name for path in sources.FIGURES.iterdir() if path.suffix in (".png", ".gif"))
    late = {name: known[name]["by"] for name in sources.outdated()}
    assert not late, f"draw them again, look at them, and run  python docs/sources.py {' '.join(late)}"
