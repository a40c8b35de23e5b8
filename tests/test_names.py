"""The public names: one list in the stub, which `__all__`, `dir` and editors read; imports when they are first used."""

import ast
from pathlib import Path

import processes
import pytest

import torsor as ts

TESTS = sorted(Path(__file__).parent.rglob("test_*.py"))
STUB = Path(ts.__file__).with_suffix(".pyi")


def test_stub_all_and_dir_name_the_same():
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    listed = [alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert len(set(listed)) == len(listed)
    assert sorted(listed) == ts.__all__
    assert dir(ts) == sorted([*ts.__all__, "__version__"])


@pytest.mark.parametrize("name", ts.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name):
    assert getattr(ts, name).__doc__


@pytest.mark.parametrize(
    ("old", "new"),
    [("method_for", "torsor.explain"), ("coupled", r"model\.coupled\(q\)"), ("to_mujoco", "torsor.formats.to_mujoco")],
)
def test_an_old_name_says_the_new_one(old, new):
    with pytest.raises(AttributeError, match=new):
        getattr(ts, old)
    assert not hasattr(ts, "no_such_name")


def test_conversions_of_states_are_with_the_formats():
    assert {"from_mujoco", "from_pinocchio", "to_mujoco", "to_pinocchio"} <= set(vars(ts.formats))


def test_every_public_name_is_used_by_a_test():
    """In its code, as ts.name or imported: a word in a comment, a string or an identifier of a case tests nothing."""
    used = set()
    for path in TESTS:
        if path == Path(__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ts":
                used.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "torsor":
                used.update(node.module.split(".")[1:2], (alias.name for alias in node.names))
    assert sorted(set(ts.__all__) - used) == []


def test_importing_torsor_imports_nothing_of_it_but_the_cache():
    code = "import sys, torsor; print(*sorted(m for m in sys.modules if m.startswith(('torsor', 'numpy', 'scipy'))))"
    assert processes.output(code).split() == ["torsor", "torsor.backends", "torsor.backends.cache"]
