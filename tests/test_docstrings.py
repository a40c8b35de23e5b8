"""Public names say what they take and give, in NumPy style, and their examples run."""

import doctest
import inspect
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import torsor as ts
from torsor.backends.cpu import Program
from torsor.backends.gpu import CudaProgram
from torsor.dynamics.factor import MassFactor
from torsor.dynamics.identification import BaseParameters, Identification
from torsor.dynamics.inverse_kinematics import Solution
from torsor.dynamics.matrix_gradients import MatrixGradient
from torsor.dynamics.methods import Choice
from torsor.dynamics.sweep_steps import SweepStep, SweepSteps
from torsor.dynamics.symbolic import ClosedForm
from torsor.dynamics.task_space import OperationalSpace
from torsor.model.builder import Builder
from torsor.motion.gradients import StepDerivatives

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
# Rooms of extras, where these are installed: the module that each needs, and its public names.
ROOMS = {
    "molecule": ("openmm", [name for name in ts.molecule.__all__ if name not in ("BOLTZMANN", "polymers")]),
    "molecule.polymers": (
        "openmm", ["freely_rotating", "planar", "Bending", "mean_square_end_to_end", "mean_cosine_planar"],
    ),
    "jax": ("jax", ["function", "rollout"]),
    "torch": ("torch", ["function", "rollout"]),
    "gym": (
        "gymnasium",
        ["Task", "VectorEnv", "MachineEnv", "CartPole", "Acrobot", "InvertedDoublePendulum", "ArmReaching"],
    ),
}  # fmt: skip
IN_ROOMS = {
    f"{room}.{name}": getattr(import_module(f"torsor.{room}"), name)
    for room, (needed, names) in ROOMS.items() if find_spec(needed) is not None for name in names
}  # fmt: skip
PUBLIC = {name: getattr(ts, name) for name in ts.__all__} | INNER | IN_ROOMS
CALLABLE = {name: x for name, x in PUBLIC.items() if callable(x)}
PROBLEMS = {name for name, x in CALLABLE.items() if isinstance(x, type) and issubclass(x, Exception)}
FUNCTIONS = [name for name in CALLABLE if name not in PROBLEMS]
# The tasks of the gym have the parameters of `Task`; "poses" is none.
INHERITED = {
    kind: {*inspect.signature(IN_ROOMS["gym.Task"]).parameters, "poses"}
    for name, kind in IN_ROOMS.items() if name.startswith("gym.") and issubclass(kind, IN_ROOMS["gym.Task"])
    and kind is not IN_ROOMS["gym.Task"]
}  # fmt: skip
# What functions return, and what users make, with methods and properties of its own.
CLASSES = [
    *(x for x in CALLABLE.values() if isinstance(x, type) and not issubclass(x, Exception) and x not in INHERITED),
    Builder, Program, CudaProgram, MatrixGradient, MassFactor, OperationalSpace, BaseParameters, Identification, Choice,
    Solution, StepDerivatives, ClosedForm, SweepSteps, SweepStep,
]  # fmt: skip
OF_CLASSES = {"ids": lambda x: x.__name__}
IS_ARRAY = re.compile(r"\b(array_like|ndarray)\b")


def sections(text):
    """The sections of a docstring by their names; that before the first is ""."""
    parts = UNDERLINED.split(inspect.cleandoc(text))
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2]))


def keywords_of(text):
    """The parameters of the function whose keywords `**options` stands for, if a section says so."""
    found = re.search(r"^\*\*\w+ : object\n +The (?:other )?keywords of `(\w+)`", text, re.MULTILINE)
    return set(inspect.signature(getattr(ts, found[1])).parameters) if found and found[1] in ts.__all__ else set()


def entries(text):
    """(names, type) of every entry of a section."""
    return [(re.split(r",\s*", names), kind) for names, kind in ENTRY.findall(text)]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_first_line_is_a_sentence(name):
    first = inspect.cleandoc(PUBLIC[name].__doc__).split("\n")[0]
    assert len(first) < 130
    if name in CALLABLE:
        assert first.endswith((".", ":"))


def test_every_public_name_is_in_the_reference():
    pages = (Path(__file__).parent.parent / "docs" / "reference").glob("*.md")
    written = set(re.findall(r"^::: (torsor\.\S+)", "\n".join(page.read_text() for page in pages), re.MULTILINE))
    # where a module has the name of its function, NAME would be the module
    names = {f"torsor.{name}": f"torsor.{name}.{name.rpartition('.')[2]}" for name in CALLABLE}
    assert [name for name, inside in names.items() if name not in written and inside not in written] == []
    inner = {f"{kind.__module__}.{kind.__name__}": kind for kind in CLASSES if kind not in CALLABLE.values()}
    assert [name for name in inner if name not in written and name.replace("dynamics.", "") not in written] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_described_once(name):
    parameters = inspect.signature(CALLABLE[name]).parameters.values()
    keywords = any(x.kind is x.VAR_KEYWORD for x in parameters)
    own = {x.name for x in parameters if x.kind is not x.VAR_KEYWORD}
    text = sections(CALLABLE[name].__doc__).get("Parameters", "")
    found = [x.lstrip("*") for names, _ in entries(text) for x in names]
    assert len(set(found)) == len(found)
    elsewhere = keywords_of(text) | INHERITED.get(CALLABLE[name], set())
    assert own - set(found) - elsewhere == set()
    if not keywords:
        assert set(found) - own <= ({"options"} if elsewhere else set())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arrays_have_shapes_and_functions_say_what_they_return(name):
    found = sections(CALLABLE[name].__doc__)
    for part in ("Parameters", "Returns"):
        for names, kind in entries(found.get(part, "")):
            if IS_ARRAY.search(kind):
                assert "(" in kind or "float or array_like" in kind, f"{names}: {kind} has no shape"
    returned = inspect.signature(CALLABLE[name]).return_annotation
    if inspect.isfunction(CALLABLE[name]) and returned not in (None, "None"):
        assert "Returns" in found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_examples(name, CALLABLE[name].__doc__)


def run_examples(name, text):
    for peer in re.findall(r"import (pinocchio|mujoco)", text):
        pytest.importorskip(peer)
    examples = doctest.DocTestParser().get_doctest(inspect.cleandoc(text), {}, name, None, None)
    assert examples.examples, "has no example"
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    said = []
    runner.run(examples, out=said.append)
    assert not runner.failures, "".join(said)


def members(kind):
    """The public methods, and the functions behind public properties, by name; all that the class itself defines."""
    own = {name: x for name, x in vars(kind).items() if not name.startswith("_") or name == "__getitem__"}
    methods = {name: getattr(x, "__func__", x) for name, x in own.items()}
    properties = {name: getattr(x, "fget", None) or getattr(x, "func", None) for name, x in own.items()}
    return (
        {name: x for name, x in methods.items() if inspect.isfunction(x)},
        {name: x for name, x in properties.items() if inspect.isfunction(x) and x.__module__.startswith("torsor")},
    )


@pytest.mark.parametrize("kind", [x for x in CLASSES if x not in CALLABLE.values()], **OF_CLASSES)
def test_classes_have_examples(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_examples(kind.__name__, kind.__doc__)


@pytest.mark.parametrize("kind", CLASSES, **OF_CLASSES)
def test_methods_are_described(kind, tmp_path, monkeypatch):
    """Every parameter once, arrays with shapes, what is returned, and examples that run."""
    monkeypatch.chdir(tmp_path)
    for name, method in members(kind)[0].items():
        where, text = f"{kind.__name__}.{name}", inspect.getdoc(method) or ""
        found = sections(text)
        assert found[""].split("\n")[0].endswith((".", ":")), f"{where}: {found['']}"
        described = [x.lstrip("*") for names, _ in entries(found.get("Parameters", "")) for x in names]
        taken = [x for x in inspect.signature(method).parameters if x not in ("self", "cls")]
        assert not taken or len(set(described)) == len(described), where
        assert [x for x in taken if x not in described] == [], where
        for part in ("Parameters", "Returns"):
            bare = [names for names, x in entries(found.get(part, "")) if IS_ARRAY.search(x) and "(" not in x]
            assert not [names for names in bare if "float or" not in names], where
        returned = inspect.signature(method).return_annotation
        assert returned in (None, "None") or "Returns" in found, where
        if ">>>" in text:
            run_examples(where, text)


@pytest.mark.parametrize("kind", CLASSES, **OF_CLASSES)
def test_properties_and_fields_are_described(kind):
    """What they are in a sentence, with the shape of an array; a field is an entry of the docstring of its class."""
    for name, of in members(kind)[1].items():
        text = inspect.getdoc(of) or ""
        assert re.match(r"[A-Z].*[.:](\n|$)", text), f"{kind.__name__}.{name}: {text!r}"
        if "Array" in str(inspect.signature(of).return_annotation).partition("[")[0]:
            assert "(" in text, f"{kind.__name__}.{name} is an array and has no shape: {text!r}"
    found = sections(kind.__doc__)
    described = {x for part in ("Parameters", "Attributes") for names, _ in entries(found.get(part, "")) for x in names}
    fields = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "_fields", ())
    assert [x for x in fields if x not in described and not x.startswith("_")] == []
