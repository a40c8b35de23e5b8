"""WebAssembly: every function computes in Node what the CPU program does, and the module tells the truth."""

import json
import shutil
import zlib
from math import prod

import numpy as np
import processes
import pytest
from test_c import CASES, FEW, MACHINES

import torsor as ts
from torsor import cli, zoo
from torsor.backends.wasm import Module, WasmKernel
from torsor.dynamics.exports import random_states

NODE = shutil.which("node")
if not NODE:
    pytest.skip("Node is not installed", allow_module_level=True)

COUNT = 3  # states of each case
# WebAssembly rounds every product: the CPU's fused multiply-adds do not. Of the largest number of an output.
SAME = {"float64": 1e-12, "float32": 3e-4}
# backwards and forwards through the tape and the loops
DERIVED = [(ts.vjp(ts.forward_dynamics), {}), (ts.jvp(ts.forward_dynamics), {}), (ts.vjp(ts.inverse_dynamics), {})]

RUN = """
const { readFileSync } = require("fs"), [folder] = process.argv.slice(1);
const { cases, bits } = JSON.parse(readFileSync(`${folder}/cases.json`));
const Numbers = bits === 64 ? Float64Array : Float32Array;
const env = { sin: Math.sin, cos: Math.cos };
WebAssembly.instantiate(readFileSync(`${folder}/all.wasm`), { env }).then(({ instance }) => {
  const view = ([at, size]) => new Numbers(instance.exports.memory.buffer, at, size);
  const found = cases.map(({ name, inputs, out, states }) => states.map((state) => {
    inputs.forEach((array, k) => view(array).set(state[k]));
    view(out).fill(NaN);
    instance.exports[name]();
    return Array.from(view(out), (x) => (Number.isFinite(x) ? x : String(x)));
  }));
  process.stdout.write(JSON.stringify(found));
});
"""


def in_node(programs, states, folder):
    """The outputs of programs for states, found by one module in Node."""
    module, cases = Module(), []
    for k, (program, given) in enumerate(zip(programs, states)):
        exported = module.export(f"f{k}", WasmKernel.of(program.request))
        places = [[x.at, prod(x.shape)] for x in (*exported.inputs.values(), exported.out)]
        rows = [[np.ravel(x[s]).tolist() for x in given] for s in range(len(given[0]))]
        cases.append({"name": f"f{k}", "inputs": places[:-1], "out": places[-1], "states": rows})
    folder.mkdir(exist_ok=True)
    (folder / "all.wasm").write_bytes(module.to_bytes())
    (folder / "cases.json").write_text(json.dumps({"cases": cases, "bits": programs[0].request.bits}))
    done = processes.call(NODE, "-e", RUN, folder)
    assert done.returncode == 0, done.stderr[:3000]
    return [np.array(rows, float) for rows in json.loads(done.stdout)]


def check_every_function(name, dtype, cases, folder):
    """Functions of a machine in Node against the CPU."""
    model, specialised = MACHINES[name]
    programs = [ts.compile(model, f, dtype=dtype, specialised=specialised, lanes=1, **more) for f, more in cases]
    states = [random_states(program, COUNT) for program in programs]
    for program, given, found in zip(programs, states, in_node(programs, states, folder)):
        expected = np.asarray(program.rows(*given), float).reshape(found.shape)
        largest = np.abs(expected).max(axis=1, keepdims=True)
        assert (np.abs(found - expected) <= SAME[dtype] * largest).all(), program


def test_functions_of_a_tree_of_every_joint_compute_what_the_cpu_programs_do(tmp_path):
    cases = [CASES[k] for k in FEW] + [(ts.forward_dynamics, {"external": True}), (ts.vjp(ts.forward_dynamics), {})]
    check_every_function("tree, loops", "float64", cases, tmp_path)


def test_every_function_in_straight_lines_computes_what_the_cpu_program_does(tmp_path):
    check_every_function("arm, straight line", "float64", [*CASES, *DERIVED], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", SAME)
@pytest.mark.parametrize("name", MACHINES)
def test_every_function_of_every_machine_computes_what_the_cpu_program_does(name, dtype, tmp_path):
    check_every_function(name, dtype, [*CASES, *(DERIVED if dtype == "float64" else ())], tmp_path)


def test_an_exported_function_runs_its_own_example(tmp_path):
    arm = zoo.general_arm(3, 5)
    for options in ({}, {"specialised": False}, {"external": True, "dtype": "float32"}):
        paths = ts.export(arm, ts.forward_dynamics, tmp_path, name="fd", language="wasm", **options)
        assert [path.name for path in paths] == ["fd.wasm", "fd.mjs", "fd_vectors.json", "example.mjs", "README.txt"]
        assert all(b"Written by torsor" in path.read_bytes()[:1000] for path in paths)
        done = processes.call(NODE, tmp_path / "example.mjs")
        assert done.returncode == 0, done.stderr + done.stdout
        assert "5 states, largest relative error" in done.stdout


def test_a_call_with_wrong_arrays_is_refused(tmp_path):
    ts.export(zoo.general_arm(3, 5), ts.mass_matrix, tmp_path, name="M", language="wasm")
    for arrays, message in (("[1]", "array 0 has 1 numbers, not 3"), ("", "M takes (q), not 0 arrays")):
        script = f'import {{ load }} from "{tmp_path}/M.mjs"; (await load())({arrays});'
        done = processes.call(NODE, "--input-type=module", "-e", script)
        assert done.returncode == 1
        assert message in done.stderr


def test_infinite_and_undefined_numbers_show_in_the_result(tmp_path):
    program = ts.compile(zoo.general_arm(3, 5), ts.forward_dynamics)
    states = [np.array([[np.nan, 0, 0]]), np.zeros((1, 3)), np.zeros((1, 3))]
    module = Module()
    exported = module.export("f0", WasmKernel.of(program.request))
    (tmp_path / "all.wasm").write_bytes(module.to_bytes())
    script = f"""
    const env = {{ sin: Math.sin, cos: Math.cos }}, bytes = require("fs").readFileSync("{tmp_path}/all.wasm");
    WebAssembly.instantiate(bytes, {{ env }}).then(({{ instance: {{ exports }} }}) => {{
      new Float64Array(exports.memory.buffer, {exported.inputs["q"].at}, 3).set([NaN, 0, 0]);
      exports.f0();
      console.log(new Float64Array(exports.memory.buffer, {exported.out.at}, 3).some(Number.isNaN));
    }});"""
    done = processes.call(NODE, "-e", script, check=True)
    assert done.stdout == "true\n"
    assert np.isnan(program(*states)).any()


def test_far_angles_use_the_sine_of_javascript(tmp_path):
    program = ts.compile(zoo.general_arm(3, 5), ts.body_poses)
    states = [np.array([[1e12, -3e15, 0.1], [0.1, 0.2, 0.3]])]
    [found] = in_node([program], [states], tmp_path / "far")
    assert np.allclose(found, program(*states).reshape(found.shape), atol=1e-12)


def test_a_language_that_is_not_known_is_refused(tmp_path):
    with pytest.raises(ts.ArgumentError, match="language"):
        ts.export(zoo.panda(), ts.forward_dynamics, tmp_path, language="rust")
    assert not any(tmp_path.iterdir())


def test_a_module_is_small(monkeypatch):
    monkeypatch.delenv("TORSOR_OPTIMIZE", raising=False)
    program = ts.compile(zoo.humanoid(), ts.forward_dynamics)
    module = Module()
    module.export("f", WasmKernel.of(program.request))
    text = zlib.compress(module.to_bytes(), 9)
    assert len(text) < 20_000


def test_the_command_exports_webassembly(tmp_path):
    words = ["export", "panda", "--function", "mass_matrix", "--language", "wasm", "-o", str(tmp_path / "out")]
    assert cli.main(words) == 0
    assert (tmp_path / "out" / "panda_mass_matrix.wasm").exists()
