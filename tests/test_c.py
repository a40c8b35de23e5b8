"""C99: the exported text compiles without a warning, computes what the CPU program does, and tells the truth."""

import ctypes
import functools
import os
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import processes
import pytest

import torsor as ts
from torsor import cli, lie, zoo
from torsor.backends import codegen
from torsor.backends.c99 import CFunction, identifier, quoted
from torsor.dynamics.exports import random_states
from torsor.dynamics.functions import ALGORITHMS
from torsor.files import digest
from torsor.model.joints import JOINTS
from torsor.outputs import Path as PathOutput

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
if not COMPILERS:
    pytest.skip("no C compiler (gcc or clang) is installed", allow_module_level=True)
FLAGS = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"]
DTYPES = ("float64", "float32")
COUNT = 6  # states
ULPS = 4  # of the largest entry of a state's output: what the export promises where the host has no multiply-adds
PLACE = np.eye(3), np.array([0.1, -0.2, 0.3])


def with_frames(model):
    return model.with_frames({"hand": (model.names[-1], *PLACE), "camera": (None, *PLACE)})


def tree_of_every_joint():
    """A tree with every joint type, with branches, and with more than one body on the base."""
    for seed in range(1000):
        model = zoo.random_tree(len(JOINTS), seed, branching=0.5)
        if len(set(model.joint)) == len(JOINTS) and (model.parent < 0).sum() > 1:
            return model
    raise AssertionError("no such tree")


ARM, TREE = with_frames(zoo.general_arm(3, 5)), with_frames(tree_of_every_joint())
SMALL_TREE = with_frames(zoo.random_tree(4, 3, branching=0.5))
MACHINES = {
    "arm, straight line": (ARM, True), "arm, loops": (ARM, False), "tree, loops": (TREE, False),
    "small tree, loops": (SMALL_TREE, False),
}  # fmt: skip
# every function, and what else one may ask for
CASES = [(function, {"body": "hand"} if isinstance(algorithm.output, PathOutput) else {})
         for function, algorithm in ALGORITHMS.items()]  # fmt: skip
CASES += [
    (ts.forward_dynamics, {"external": True}), (ts.inverse_dynamics, {"external": True}),
    (ts.jacobian, {"body": "camera"}), (ts.jacobian, {"body": 0}), (ts.inverse_mass_matrix, {"method": "product"}),
    (ts.mass_solve, {"method": "udut"}), (ts.forward_dynamics, {"method": "ploen-park"}),
]  # fmt: skip


def compiled(compiler, folder, functions, *flags):
    """A shared library of C functions, the files compiled side by side."""

    def run_compiler(*words):
        done = processes.call(compiler, *FLAGS, *flags, *words)
        assert done.returncode == 0, done.stderr[:3000]

    def one(function):
        (folder / f"{function.name}.h").write_text(function.header(), encoding="ascii")
        source, compiled_file = (folder / f"{function.name}.{end}" for end in "co")
        source.write_text(function.source(), encoding="ascii")
        run_compiler("-fPIC", "-c", source, "-o", compiled_file)
        return compiled_file

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        files = list(pool.map(one, functions))
    library = folder / f"{functions[0].name}.so"
    run_compiler("-shared", *files, "-lm", "-o", library)
    return ctypes.CDLL(str(library))


def run(library, function, states):
    """The outputs of a C function for states (count, ...)."""
    dtype = np.dtype(f"float{function.bits}")
    out = np.full((len(states[0]), *function.request.shape), np.pi, dtype)
    workspace = [np.full(sum(function.workspace.values()), np.nan, dtype)] if function.workspace else []
    call = getattr(library, function.name)
    call.restype = None
    for k in range(len(out)):
        arrays = [np.ascontiguousarray(x[k], dtype) for x in states]
        call(*(ctypes.c_void_p(x.ctypes.data) for x in (*arrays, out[k : k + 1], *workspace)))
    return out


@functools.cache
def programs(name, dtype, cases=None):
    """{case: (program, C function)}; one lane, as that compiles fastest and lanes do not change bits."""
    model, specialised = MACHINES[name]
    result = {}
    for k in cases or range(len(CASES)):
        function, options = CASES[k]
        program = ts.compile(model, function, dtype=dtype, specialised=specialised, lanes=1, **options)
        assert program.specialised == specialised
        result[k] = program, CFunction.of(program.request, f"{function.__name__}_{k}")
    return result


@functools.cache
def library(name, dtype, compiler, flag, cases=None):
    folder = Path(tempfile.mkdtemp(prefix="torsor-c-"))
    try:
        return compiled(compiler, folder, [function for _, function in programs(name, dtype, cases).values()], flag)
    finally:
        shutil.rmtree(folder)


def ulps(found, expected):
    """The largest error of each state, in units of the last place of its largest entry."""
    found, expected = (x.reshape(len(x), -1) for x in (found, expected))
    unit = np.spacing(np.abs(expected).max(axis=1)).astype(float)
    return np.abs(found.astype(float) - expected).max(axis=1) / unit


# What is compiled: gcc takes 40 s with -O2 for all functions of the tree in one precision, so that is left to the slow
# tests; the others look at every line without optimising, and optimise a few functions.
FEW = tuple(
    k for k, case in enumerate(CASES)
    if case in ((ts.forward_dynamics, {}), (ts.log_det_mass_matrix, {}), (ts.jacobian, {"body": "hand"}),
                (ts.inverse_mass_matrix, {"method": "product"}))
)  # fmt: skip
FIRST, LAST = COMPILERS[0], COMPILERS[-1]
MOST = tuple(k for k, (function, _) in enumerate(CASES) if "derivatives" not in function.__name__)
LIBRARIES = [
    *(("arm, straight line", dtype, compiler, "-O2", None) for dtype in DTYPES for compiler in COMPILERS),
    ("small tree, loops", "float32", LAST, "-O2", FEW),
    ("arm, loops", "float64", LAST, "-O2", FEW),
]
SLOW = [("tree, loops", "float64", FIRST, "-O0", MOST)]
SLOW += [(name, dtype, compiler, "-O2", None) for name in ("tree, loops", "arm, loops") for dtype in DTYPES
        for compiler in COMPILERS]  # fmt: skip


@pytest.mark.thinned(2)
@pytest.mark.parametrize("which", [*LIBRARIES, *(pytest.param(x, marks=pytest.mark.slow) for x in SLOW)],
                         ids=lambda which: " ".join(which[:4]))  # fmt: skip
def test_c_computes_what_the_cpu_does(which):
    """Bit for bit, where the host has multiply-adds; `-Werror` has the compiler look at every line."""
    name, dtype, *_, cases = which
    for program, function in programs(name, dtype, cases).values():
        states = random_states(program, COUNT, seed=1)
        found, expected = run(library(*which), function, states), program.rows(*states)
        assert np.isfinite(expected).all()
        assert (ulps(found, expected) <= ULPS).all(), function.name
        if codegen.host().fma:
            assert (found == expected).all(), function.name


@pytest.mark.parametrize("which", [LIBRARIES[0], LIBRARIES[-2]], ids=lambda x: x[0])
def test_what_is_not_finite_shows(which):
    for program, function in programs(*which[:2], which[-1]).values():
        for k in range(len(program.inputs)):
            for bad in (np.nan, np.inf):
                states = random_states(program, 1)
                states[k].flat[-1] = bad
                assert not np.isfinite(run(library(*which), function, states)).all(), (function.name, k)


def test_far_angles_turn_as_on_the_cpu(tmp_path):
    for dtype in DTYPES:
        program = ts.compile(ARM, ts.body_poses, dtype=dtype)
        states = [x * np.dtype(dtype).type(1e10) for x in random_states(program, COUNT)]
        function = CFunction.of(program.request, f"poses_{dtype}")
        found = run(compiled(COMPILERS[0], tmp_path, [function]), function, states)
        assert (ulps(found, program(*states)) <= ULPS).all()


@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_compiler_forms_other_multiply_adds(compiler, tmp_path):
    """GNU C and `-march=native` invite the compiler to contract; the text forbids it."""
    if not codegen.host().fma:
        pytest.skip("the processor has no multiply-adds")
    program = ts.compile(zoo.panda(), ts.forward_dynamics)
    function = CFunction.of(program.request)
    library = compiled(compiler, tmp_path, [function], "-std=gnu99", "-O3", "-march=native", "-ffp-contract=fast")
    states = random_states(program, COUNT)
    assert (run(library, function, states) == program(*states)).all()


def test_fast_math_is_refused(tmp_path):
    with pytest.raises(AssertionError, match="compile without -ffast-math"):
        compiled(COMPILERS[0], tmp_path, [programs("arm, straight line", "float64")[0][1]], "-ffast-math")


def build_example(folder, compiler=COMPILERS[0]):
    """Compile an exported folder as its README says, warnings as errors, and run it."""
    command = re.search(r"cc (.*) && ./example", (folder / "README.txt").read_text())[1].split()
    processes.call(compiler, *FLAGS, *command, cwd=folder, check=True)
    return processes.call(folder / "example")


@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}, {"specialised": False, "external": True}])
def test_the_example_runs(options, tmp_path):
    for compiler in COMPILERS:
        paths = ts.export(SMALL_TREE, ts.forward_dynamics, tmp_path / compiler, name="dynamics", **options)
        assert [path.name for path in paths] == [
            "dynamics.h", "dynamics.c", "dynamics_vectors.h", "example.c", "README.txt"]  # fmt: skip
        done = build_example(tmp_path / compiler, compiler)
        assert done.returncode == 0, done.stdout
        assert "largest error" in done.stdout


@pytest.mark.parametrize("specialised", [True, False], ids=["straight line", "loops"])
def test_bodies_in_frames_of_the_caller(specialised, tmp_path):
    """The vectors, which the example compares with, are a program's; which frames they are in, the last line says."""
    Q = lie.exp_se3(np.random.default_rng(4).normal(size=(SMALL_TREE.n, 6)))
    ts.export(SMALL_TREE, ts.body_twists, tmp_path, name="twists", specialised=specialised, Q=Q)
    done = build_example(tmp_path)
    assert done.returncode == 0, done.stdout
    assert f'"Q": "{digest(Q)}"' in (tmp_path / "twists.c").read_text()


@pytest.mark.parametrize("specialised", [True, False], ids=["straight line", "loops"])
def test_derivatives_are_exported(specialised, tmp_path):
    """A matrix of cotangents goes in, or several results come out: one behind the other."""
    dense = ts.vjp(ts.mass_matrix) if specialised else ts.vjp(ts.body_poses)
    for function in (ts.vjp(ts.inverse_dynamics, ("q", "inertia")), dense):
        folder = tmp_path / function.__name__.replace("(", "_").strip(")")
        ts.export(SMALL_TREE, function, folder, specialised=specialised)
        done = build_example(folder)
        assert done.returncode == 0, done.stdout
        assert "largest error 0 ulp" in done.stdout or not codegen.host().fma


def test_the_example_notices_a_wrong_answer(tmp_path):
    ts.export(ARM, ts.mass_matrix, tmp_path, name="M")
    source = tmp_path / "M.c"
    source.write_text(source.read_text().replace("  out[0] = ", "  out[0] = (T)1.0000001 * "))
    assert build_example(tmp_path).returncode == 1
    source.write_text(source.read_text().replace("  out[0] = (T)1.0000001 * ", "  out[0] = (T)NAN * "))
    assert build_example(tmp_path).returncode == 1


HOSTILE = [
    "int", "3 legs", "*/ int main(void) { return 1; } /*", "Bär ‮ 日本", "??/", "a\\", "#error", "/*", "_", "",
    "x" * 500, 'quote " and \n newline',
]  # fmt: skip


@pytest.mark.parametrize("compiler", COMPILERS)
def test_hostile_names(compiler, tmp_path):
    functions = []
    for k, name in enumerate(HOSTILE):
        text = name if name.strip() and name.isprintable() else f"m{k}{name}"
        try:
            model = replace(zoo.planar3(), name=text, names=(text, *zoo.planar3().names[1:]))
        except ts.ModelError:  # the model itself refuses it
            model = replace(zoo.planar3(), name=f"m{k}")
        program = ts.compile(model, ts.gravity_forces)
        functions.append(CFunction.of(program.request, f"{identifier(model.name, 'gravity')}_{k}"))
        assert functions[-1].header().isascii()
    compiled(compiler, tmp_path, functions)


@pytest.mark.parametrize("name", HOSTILE)
def test_identifiers_and_comments(name):
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", identifier(name))
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", identifier(name, "mass_matrix"))
    assert not re.search(r"\*/|/\*|\?\?|[^ -~]", quoted(name))


def test_the_header_says_what_it_costs_and_what_is_where():
    program = ts.compile(TREE, ts.forward_dynamics, specialised=False)
    function, header = CFunction.of(program.request), program.source("c").split("*/")[0]
    assert f"{program.operations.mul} mul, {program.operations.add} add" in header
    assert f"{function.workspace_bytes} bytes of workspace" in header
    assert f"{function.table_bytes} bytes of constant tables" in header
    for i, name in enumerate(TREE.names):
        assert f'{i} "{name}" {JOINTS[TREE.joint[i]].name}: q[{TREE.q_start[i]}]' in header
    assert "must not overlap" in header


def test_workspace_and_tables_are_as_large_as_told(tmp_path):
    program, function = programs("tree, loops", "float64")[0]
    (tmp_path / "f.c").write_text(
        function.text() + "#include <stdio.h>\n"
        f'int main(void) {{ printf("%d", (int)sizeof(struct {function.name}_workspace)); return 0; }}\n'
    )
    processes.call(COMPILERS[0], *FLAGS, "-O0", "f.c", "-lm", "-o", "f", cwd=tmp_path, check=True)
    assert int(processes.call(tmp_path / "f").stdout) == function.workspace_bytes
    text = program.source("c")
    sizes = {kind: sum(map(int, re.findall(rf"static const {kind} \w+\[(\d+)\]", text))) for kind in ("T", "int")}
    assert 8 * sizes["T"] + 4 * sizes["int"] == function.table_bytes


BAD = [
    (dict(model="panda"), "model must be a torsor.Model"),
    (dict(function=np.sin), "cannot be exported; these can: forward_dynamics"),
    (dict(function=[]), "cannot be exported"),
    (dict(function="forward_dynamics"), "'forward_dynamics' is only a name: give the function, ts.forward_dynamics"),
    (dict(folder=3), "folder must be the path"),
    (dict(dtype="float16"), "unknown dtype 'float16'"),
    (dict(external=1), "external must be True or False"),
    (dict(specialised="yes"), "specialised must be True or False"),
    (dict(body="hand"), "takes no body="),
    (dict(function=ts.jacobian), "needs body="),
    (dict(method="fixman"), "is not compiled"),
    (dict(method=None), "method must be a string"),
    (dict(function=ts.mass_matrix, external=True), "takes no external wrenches"),
    *((dict(name=name), "name must be a C identifier") for name in (
        "int", "3x", "a b", "../up", "T", "Example", "", "_x", "sinf", "turn", "k", "worst", "numbers", "parent_of")),
    (dict(name=7), "name must be a string"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=lambda x: str(x).partition(" at 0x")[0][:40])
def test_bad_arguments_are_refused_by_name(wrong, message, tmp_path):
    arguments = dict(model=ARM, function=ts.forward_dynamics, folder=tmp_path / "c") | wrong
    with pytest.raises(ts.ArgumentError, match=re.escape(message)):
        ts.export(**arguments)
    assert not (tmp_path / "c").exists()


def test_files_of_others_are_left_alone(tmp_path):
    (tmp_path / "README.txt").write_text("my own notes")
    with pytest.raises(ts.ArgumentError, match=r"README\.txt was not written by torsor"):
        ts.export(ARM, ts.mass_matrix, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.txt"]


def test_all_files_or_none(tmp_path, monkeypatch):
    written = ts.export(ARM, ts.mass_matrix, tmp_path / "good")
    assert written == ts.export(ARM, ts.mass_matrix, tmp_path / "good")  # once more is fine
    from torsor.dynamics import exports

    def full_disk(path, content):
        if path.name == "example.c":
            raise ts.ArgumentError(f"{path}: cannot be written (No space left on device)")
        return path.write_bytes(content)

    monkeypatch.setattr(exports, "write_whole", full_disk)
    with pytest.raises(ts.ArgumentError, match="No space left"):
        ts.export(ARM, ts.mass_matrix, tmp_path / "full")
    assert not list((tmp_path / "full").iterdir())
    with pytest.raises(ts.ArgumentError, match="cannot be written"):
        ts.export(ARM, ts.mass_matrix, written[0])  # a file, not a folder


def test_the_command(tmp_path, capsys):
    assert cli.main(["export", "planar3", "--function", "mass_matrix", "-o", str(tmp_path), "--float"]) == 0
    said = capsys.readouterr().out
    assert "planar3" in said
    assert "14 mul, 20 add, 4 trig" in " ".join(said.split())
    assert "const float *q" in (tmp_path / "planar3_mass_matrix.h").read_text()
    assert build_example(tmp_path).returncode == 0
    jacobian = ["export", "planar3", "--function", "jacobian", "--body", "link2", "--name", "J2"]
    assert cli.main([*jacobian, "-o", str(tmp_path / "J")]) == 0
    assert (tmp_path / "J" / "J2.c").is_file()
    assert cli.main(["export", "planar3", "--function", "levitate", "-o", str(tmp_path / "none")]) == cli.FAILED
    assert "unknown --function 'levitate'" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
