"""The public names: one list in the stub, which `__all__`, `dir` and editors read; imports when they are first used."""

import ast
import re
from pathlib import Path

import processes
import pytest

import torsor as ts

TESTS = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.rglob("test_*.py")))
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


@pytest.mark.parametrize("name", ts.__all__)
def test_every_public_name_is_in_a_test(name):
    assert re.search(rf"\b{name}\b", TESTS)


def test_importing_torsor_imports_nothing_of_it_but_the_cache():
    code = "import sys, torsor; print(*sorted(m for m in sys.modules if m.startswith(('torsor', 'numpy', 'scipy'))))"
    assert processes.output(code).split() == ["torsor", "torsor.backends", "torsor.backends.cache"]
