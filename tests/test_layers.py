"""The map of the house: every module imports only from its own layer and from those before it.

Imports are read from the sources, also those inside functions; only what is imported for type checking is left out.
"""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "torsor"

# A layer is a module or a package of torsor; what stands on one line may import each other.
LAYERS = [
    {"errors", "logs"},
    {"validate", "linalg"},
    {"files", "lie", "spatial"},
    {"model"},
    {"outputs", "sweeps"},
    {"algorithms", "reference", "duals"},
    {"compiler"},
    {"backends"},
    {"parallel"},
    {"dynamics"},
    {"formats"},
    {"zoo"},
    {"motion"},
    {"ensembles"},
    {"view"},
    {"theory"},
    {"bench"},
    {"cli", "__main__"},
]
# Methods that users look for on an object, imported when they are called: what they need knows that object.
METHODS = {
    ("model.model", "formats"), ("motion.series", "view"), ("motion.trajectory", "view"),
    ("ensembles.plots", "view"),
}  # fmt: skip
# Within compiler and backends nothing goes in circles: each module imports only from those named before it.
ORDER = {
    "compiler": "store frames members tape packing abi trace counts derivatives loop_derivatives request language "
    "loops",
    "backends": "cache elementary c_language cuda_prelude llvm llvm_entry llvm_arrays elf cpuid codegen gufunc "
    "pointwise cuda cuda_members c99 cpu gpu",
}

MODULES = sorted(".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("*.py"))
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def imported(module: str) -> set[str]:
    """The modules of torsor that a module imports, when it is imported or later."""
    tree = ast.parse((SOURCE / Path(*module.split("."))).with_suffix(".py").read_text())
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("torsor.") for name in names if name.startswith("torsor.")}


def test_every_module_has_a_layer():
    assert {module.split(".")[0] for module in MODULES} - {"__init__"} == set(RANK)


@pytest.mark.parametrize("module", [m for m in MODULES if m != "__init__"])
def test_a_module_imports_only_from_the_layers_before_it(module):
    own = RANK[module.split(".")[0]]
    for name in imported(module):
        layer = name.split(".")[0]
        if layer in RANK and (module, layer) not in METHODS:
            assert RANK[layer] <= own, f"{module} imports {name}"


@pytest.mark.parametrize("package", ORDER)
def test_no_package_goes_in_circles(package):
    order = ORDER[package].split()
    modules = [m.removeprefix(f"{package}.") for m in MODULES if m.startswith(f"{package}.") and "__init__" not in m]
    assert set(modules) <= set(order), "a new module needs its place in ORDER"
    for module in modules:
        for name in imported(f"{package}.{module}"):
            other = name.removeprefix(f"{package}.").split(".")[0]
            if name.startswith(f"{package}.") and other in order:
                assert order.index(other) <= order.index(module), f"{package}.{module} imports {name}"
