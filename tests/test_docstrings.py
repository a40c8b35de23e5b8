"""Public names say what they take and give, in NumPy style, and their examples run."""

import doctest
import inspect
import re

import pytest

import torsor as ts

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
UNDERLINED = re.compile(r"^([A-Z][A-Za-z ]+)\n-{3,}\n", re.MULTILINE)
ENTRY = re.compile(r"^(\S[^:\n]*?) : (.+)$", re.MULTILINE)
# Public names in packages, beside those of `torsor` itself.
INNER = {
    **{f"zoo.{name}": getattr(ts.zoo, name) for name in ts.zoo.__all__},
    **{f"formats.{name}": getattr(ts.formats, name)
       for name in ("from_mujoco", "from_pinocchio", "to_mujoco", "to_pinocchio")},
    "symbolic.closed_form": ts.symbolic.closed_form,
}  # fmt: skip
PUBLIC = {name: getattr(ts, name) for name in ts.__all__} | INNER
CALLABLE = {name: x for name, x in PUBLIC.items() if callable(x)}
PROBLEMS = {name for name, x in CALLABLE.items() if isinstance(x, type) and issubclass(x, Exception)}
FUNCTIONS = [name for name in CALLABLE if name not in PROBLEMS]
# Methods that users call, of classes whose page lists them.
CLASSES = [ts.Model, ts.ModelBatch, ts.Trajectory, ts.Study, ts.Simulation]


def sections(text):
    """The sections of a docstring by their names; that before the first is ""."""
    parts = UNDERLINED.split(inspect.cleandoc(text))
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2]))


def entries(text):
    """(names, type) of every entry of a section."""
    return [(re.split(r",\s*", names), kind) for names, kind in ENTRY.findall(text)]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_first_line_is_a_sentence(name):
    first = inspect.cleandoc(PUBLIC[name].__doc__).split("\n")[0]
    assert len(first) < 130
    if name in CALLABLE:
        assert first.endswith((".", ":"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_described_once(name):
    parameters = inspect.signature(CALLABLE[name]).parameters.values()
    keywords = {x.name for x in parameters if x.kind is x.VAR_KEYWORD}
    own = [x.name for x in parameters if x.kind is not x.VAR_KEYWORD]
    found = [
        x.lstrip("*") for names, _ in entries(sections(CALLABLE[name].__doc__).get("Parameters", "")) for x in names
    ]
    assert len(set(found)) == len(found)
    assert [x for x in own if x not in found] == []
    if not keywords:
        assert [x for x in found if x not in own] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arrays_have_shapes_and_functions_say_what_they_return(name):
    found = sections(CALLABLE[name].__doc__)
    for part in ("Parameters", "Returns"):
        for names, kind in entries(found.get(part, "")):
            if re.search(r"\b(array_like|ndarray)\b", kind):
                assert "(" in kind or "float or array_like" in kind, f"{names}: {kind} has no shape"
    returned = inspect.signature(CALLABLE[name]).return_annotation
    if inspect.isfunction(CALLABLE[name]) and returned not in (None, "None"):
        assert "Returns" in found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = CALLABLE[name].__doc__
    for peer in re.findall(r"import (pinocchio|mujoco)", text):
        pytest.importorskip(peer)
    examples = doctest.DocTestParser().get_doctest(inspect.cleandoc(text), {}, name, None, None)
    assert examples.examples, "has no example"
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    said = []
    runner.run(examples, out=said.append)
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda x: x.__name__)
def test_methods_are_described(kind):
    for name, x in vars(kind).items():
        if not name.startswith("_") and (callable(x) or isinstance(x, (property, classmethod))):
            assert inspect.getdoc(getattr(kind, name, x)), f"{kind.__name__}.{name}"
