"""The package: what is in its files, what it asks for, and how its README reads on a package index."""

import ast
import contextlib
import re
import tarfile
import tomllib
import zipfile
from itertools import chain
from pathlib import Path
from runpy import run_path

import processes
import pytest
from peers.installed import PEERS, RARE, WHOLE, peer

import torsor as ts

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
NAME = re.compile(r"[\w.-]+")
RELATIVE = re.compile(r"\]\((?!https?:|mailto:|#)[^)]*\)")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return build("sdist", tmp_path_factory.mktemp("sdist"))


def build(target, folder):
    """The file that pip would have built, by the same function; nothing is fetched."""
    with contextlib.chdir(ROOT):
        return folder / getattr(peer("hatchling.build"), f"build_{target}")(str(folder))


def test_the_sdist_runs_its_own_tests(sdist, tmp_path):
    with tarfile.open(sdist) as file:
        names = file.getnames()
        file.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    for name in (
        "CHANGELOG.md",
        "docs/robots.md",
        "bench/run.py",
        "tests/robots/features.sdf",
        "LICENSES/three.js.txt",
    ):
        assert f"{root.name}/{name}" in names
    assert not [name for name in names if name.endswith((".pyc", ".traj.part")) or "/.venv" in name or "/.git/" in name]
    env = processes.environment() | {"PYTHONPATH": str(root / "src")}
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_names.py", "tests/test_dh.py"]
    done = processes.run(*words, "-n", "0", cwd=root, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_builds_give_the_same_bytes_and_the_wheel_holds_the_package(sdist, tmp_path):
    """The wheel is built from the sdist's tree, as pip does it; times of files do not show."""
    again = build("sdist", tmp_path)
    assert again.read_bytes() == sdist.read_bytes()
    wheel = build("wheel", tmp_path)
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    package = ROOT / "src" / "torsor"
    wanted = {f"torsor/{path.relative_to(package).as_posix()}" for path in package.rglob("*") if path.is_file()}
    about = f"torsor-{ts.__version__}.dist-info/"
    assert {name for name in names if not name.startswith(about)} == {x for x in wanted if "__pycache__" not in x}
    assert {f"{about}licenses/LICENSE", f"{about}licenses/LICENSES/three.js.txt"} <= names


@pytest.mark.parametrize("source", [None, "https://example.org/torsor", "https://example.org/torsor/"])
def test_the_description_on_an_index_has_no_link_to_a_file(source):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(RELATIVE.findall(readme)) > 10
    text = run_path(str(ROOT / "hatch_build.py"))["described"](readme, source, "1.2.3")
    assert RELATIVE.findall(text) == []
    assert text.splitlines()[0] == "# torsor"
    if source:
        assert "(https://example.org/torsor/blob/v1.2.3/CONTRIBUTING.md)" in text
        assert "(https://example.org/torsor/raw/v1.2.3/docs/figures/moving.gif)" in text
    else:
        assert "![" not in text
        assert "CONTRIBUTING.md" in text


def test_no_two_extras_ask_for_different_versions_of_one_package():
    asked = {}
    for requirement in REQUIREMENTS:
        asked.setdefault(NAME.match(requirement)[0], set()).add(requirement.partition(";")[0].strip())
    assert {name: bounds for name, bounds in asked.items() if len(bounds) > 1} == {}
    assert [x for x in REQUIREMENTS if not re.search(r">=\d", x)] == []


def test_every_peer_is_in_the_extra_of_the_tests():
    asked = {NAME.match(requirement)[0] for requirement in PROJECT["optional-dependencies"]["test"]}
    assert set(PEERS.values()) <= asked


def test_peers_are_imported_where_they_may_be_missing():
    """At the top of a file by `peer`, which skips what uses it."""
    for path in Path(__file__).parent.rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        imported = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in body if isinstance(node, ast.ImportFrom) and node.module}
        assert not {name.partition(".")[0] for name in imported} & {*PEERS, *RARE} - {WHOLE.get(path.name)}, path.name


def test_the_newest_changes_are_those_of_this_version():
    released = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert ts.__version__.split(".dev")[0] == released[0]
