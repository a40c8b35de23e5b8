"""The map of the house: every module imports only from its own layer and from those before it.

Imports are read from the sources, also those inside functions; only what is imported for type checking is left out.
"""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "torsor"

# A layer is a module or a package of torsor; what stands on one line may import each other.
LAYERS = [
    {"errors", "logs", "later"},
    {"validate", "linalg"},
    {"files", "lie", "spatial", "dense"},
    {"model"},
    {"inputs"},
    {"outputs", "sweeps"},
    {"algorithms", "reference"},
    {"compiler"},
    {"duals"},
    {"backends"},
    {"parallel"},
    {"dynamics"},
    {"formats"},
    {"zoo"},
    {"motion"},
    {"casadi", "gym"},
    {"ensembles"},
    {"view"},
    {"molecule"},
    {"papers"},
    {"bridge"},
    {"jax", "torch"},
    {"bench"},
    {"cli", "__main__"},
]
# Methods that users look for on an object, imported when they are called: what they need knows that object.
METHODS = {
    ("model.model", "view"),
    ("dynamics.sweep_steps", "view"),
    ("motion.trajectory", "view"),
    ("ensembles.plots", "view"),
    ("ensembles.study", "view"),
}
# Within a package nothing goes in circles: each module imports only from those named before it.  Modules joined by +
# still import each other.
ORDER = {
    "algorithms": "newton_euler composite kinematics ploen_park articulated inverse_derivatives regressor energy "
    "complex_pivots constraint_force discrete_mechanics fixman ploen_park_forward square_factor udut coriolis products "
    "segments operational_space walker_orin forward_derivatives coupled pulls rattle",
    "backends": "cache elementary c_language cuda_prelude llvm llvm_entry llvm_arrays elf cpuid codegen gufunc "
    "turning point_kernels pointwise cuda cuda_launch c99 cpu_code cpu xla gpu cuda_graph wasm wasm_files",
    "bridge": "charts numbers functions rollouts",
    "compiler": "store frames members tape packing abi trace counts derivative tape_derivatives loop_derivatives "
    "lowering request language loops",
    "dynamics": "accuracy methods members calls graphs couplings frames jacobians matrix_gradients functions "
    "derivatives programs linear factor points task_space inverse_kinematics actuators identification blocks external "
    "exports closed_forms fixman symbolic sweep_steps",
    "dynamics.closed_forms": "frames operators factorization",
    "dynamics.fixman": "measure parameters solve points rigid",
    "ensembles": "engine streams places plots ray records device exchange draws zarr dataset files study",
    "formats": "binary folders meshes xml repair robot states toml writer xacro mjcf mjcf_writer urdf urdf_writer sdf "
    "robots",
    "model": "portable names joints rounding parameters check units extras freedoms links builder dh screws locked "
    "model batch conditioning regular",
    "motion": "coordinates cuda_loops laws progress recording references stops tables hermite law quantities forces "
    "moving_base plant lowering time_loop device_run steps driver adjoint gradients motion device fused stepper "
    "tangent dense events fixed implicit stages structure rattle adams radau runge_kutta stiffness trajectory "
    "gpu_rollout rollout brownian integrators rows simulation sensitivities",
    "molecule": "structure soft forcefields prepare tree page plots output molecule closures mover methods results "
    "run gibbs polymers command",
    "papers": "arithmetic rows figures digits change_of_basis featherstone1999 ploen1999 saha_udut saha2001 lee2005 "
    "lee2007",
    "parallel": "schedule engine operations chain segment_kernel adjoint branches determinant solver device segments",
    "view": "style limbs shapes tube controls showcase machine plots page table browser movies",
    "zoo": "families humanoid lee2007 small",
}
# Modules of torsor that are imported inside functions, because most programs do without them and they take long.
LATE = {
    "backends.cpu": {"backends.cpu_code"},  # of a program that is found on disk, nothing is traced or written
    "compiler.request": {"compiler.lowering"},
    "dynamics.calls": {"backends.gpu", "parallel.device.DeviceChain"},
    "dynamics.functions": {"parallel.segments", "parallel.solver"},
    "cli": {"papers", "bench.forward_dynamics_times", "bench.installed_peers", "ensembles.files", "ensembles.places",
            "view.style.picture"},
}  # fmt: skip
UNLISTED = ("motion", "ensembles", "formats", "molecule")  # rooms in which imports inside functions are not listed

MODULES = sorted(".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("*.py"))
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def tree_of(module: str) -> ast.Module:
    return ast.parse((SOURCE / Path(*module.split("."))).with_suffix(".py").read_text())


def names_in(nodes) -> set[str]:
    """The modules of torsor that statements import."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Later":
            names |= {x.value for x in node.args[:1] if isinstance(x, ast.Constant)}
    return {name.removeprefix("torsor.") for name in names if name.startswith("torsor.")}


def imported(module: str) -> set[str]:
    """The modules of torsor that a module imports, when it is imported or later."""
    tree = tree_of(module)
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    return names_in(node for node in ast.walk(tree) if id(node) not in hidden)


def test_every_module_has_a_layer():
    assert {module.split(".")[0] for module in MODULES} - {"__init__"} == set(RANK)


@pytest.mark.parametrize("module", [m for m in MODULES if m != "__init__"])
def test_a_module_imports_only_from_the_layers_before_it(module):
    own = RANK[module.split(".")[0]]
    for name in imported(module):
        layer = name.split(".")[0]
        if layer in RANK and (module, layer) not in METHODS:
            assert RANK[layer] <= own, f"{module} imports {name}"


def test_every_package_has_an_order():
    assert {module.rpartition(".")[0] for module in MODULES} - {""} == set(ORDER)


@pytest.mark.parametrize("package", ORDER)
def test_no_package_goes_in_circles(package):
    order = {name: rank for rank, names in enumerate(ORDER[package].split()) for name in names.split("+")}
    inside = [module.removeprefix(f"{package}.") for module in MODULES if module.startswith(f"{package}.")]
    modules = [module for module in inside if module != "__init__"]
    assert {module.split(".")[0] for module in modules} == set(order), "every module has its place in ORDER"
    for module in modules:
        for name in imported(f"{package}.{module}"):
            other = name.removeprefix(f"{package}.").split(".")[0]
            if name.startswith(f"{package}.") and other in order:
                assert order[other] <= order[module.split(".")[0]], f"{package}.{module} imports {name}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.split(".")[0] not in UNLISTED])
def test_only_what_takes_long_is_imported_inside_functions(module):
    functions = [node for node in ast.walk(tree_of(module)) if isinstance(node, ast.FunctionDef)]
    late = names_in(node for function in functions for node in ast.walk(function))
    assert late <= LATE.get(module, set())
