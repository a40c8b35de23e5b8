"""Machines that are not this one: without the ELF linker, without fork, and with a 64-bit ARM processor."""

import shutil
import struct
import subprocess
import textwrap

import numpy as np
import processes
import pytest
from machines import ARRAY_FUNCTIONS

import torsor as ts
from torsor import zoo
from torsor.backends import codegen
from torsor.backends.llvm import Target
from torsor.backends.llvm_arrays import loop_kernel, unrolled_kernel
from torsor.compiler.abi import unrolled_data
from torsor.compiler.request import ALWAYS, NEVER, Request
from torsor.dynamics.functions import ALGORITHMS
from torsor.outputs import Path

ARM = codegen.Host("aarch64-unknown-linux-gnu", "generic", "+neon")
ARM_ELF = b"\x7fELF\x02\x01"
MACHINE_AARCH64 = 183  # e_machine
IMPORTS = {"malloc", "free", "sin", "cos"}  # of the C library


def in_a_new_process(script: str, cache) -> str:
    return processes.output(script, env=processes.environment(TORSOR_CACHE=str(cache)))


COMPUTE = """
    import numpy as np, torsor as ts
    rng = np.random.default_rng(0)
    for model in (ts.zoo.planar3(), ts.zoo.random_tree(6, seed=7)):
        q, v, tau = model.random_configuration(rng, 9), *rng.normal(size=(2, 9, model.nv))
        print(ts.forward_dynamics(model, q, v, tau).tobytes().hex(), ts.mass_matrix(model, q).tobytes().hex())
        print(ts.log_det_mass_matrix(model, q).tobytes().hex())
    print(ts.simulate(ts.zoo.planar3(), duration=0.1).q[-1].tobytes().hex())
"""


def test_llvm_loads_the_code_where_torsor_does_not_link(tmp_path):
    """As on macOS, Windows and ARM: the same bits, from a new cache and from a warm one."""
    without = """
    from torsor.backends import codegen, elf
    def link(code, entry="kernel"):
        raise elf.NotLinkable("switched off")
    codegen.link = link
    """
    expected = in_a_new_process(COMPUTE, tmp_path / "linked")
    for _ in range(2):
        assert in_a_new_process(textwrap.dedent(without) + textwrap.dedent(COMPUTE), tmp_path / "loaded") == expected


def test_programs_work_where_there_is_no_fork(tmp_path):
    without = "import os, random, logging\ndel os.register_at_fork\n"  # Python's own modules use it where it is
    script = without + textwrap.dedent(COMPUTE)
    assert in_a_new_process(script, tmp_path) == in_a_new_process(COMPUTE, tmp_path)


def undefined_symbols(code: bytes) -> set[str]:
    """The names that an ELF object file leaves to others."""
    table, size, count = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, table + k * size) for k in range(count)]
    symbols = next(section for section in sections if section[1] == 2)
    names = sections[symbols[6]][4]
    found = set()
    for k in range(1, symbols[5] // 24):
        name, _, _, section, _, _ = struct.unpack_from("<IBBHQQ", code, symbols[4] + 24 * k)
        if not section:
            found.add(code[names + name : code.index(b"\0", names + name)].decode())
    return found - {""}


@pytest.mark.parametrize("function", ARRAY_FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("unroll", [ALWAYS, NEVER], ids=["unrolled", "looped"])
def test_code_for_64_bit_arm_is_generated(function, unroll):
    model = zoo.random_tree(4, seed=2)
    algorithm = ALGORITHMS[function]
    frame = model.frame(-1) if isinstance(algorithm.output, Path) else None
    code = codegen.object_code(arm_ir(Request(algorithm, model, frame=frame, unroll=unroll)), ARM)
    assert code[:6] == ARM_ELF
    assert struct.unpack_from("<H", code, 18) == (MACHINE_AARCH64,)
    assert undefined_symbols(code) <= IMPORTS


def arm_ir(request: Request) -> str:
    target = Target(ARM.lanes(request.bits), request.bits, fma=True, x86=False)
    if request.unroll is NEVER:
        return loop_kernel(request.code, target)
    return unrolled_kernel(request.code, dict(zip(request.inputs, request.input_shapes)), request.shape, target)


DRIVER = """
#include <stdint.h>
#include <stdio.h>
void kernel(char **args, int64_t *dimensions, int64_t *steps, void *data);
static double q[{n}][3] = {{{q}}}, v[{n}][3] = {{{v}}}, tau[{n}][3] = {{{tau}}}, out[{n}][3];
int main(void) {{
  char *args[] = {{(char *)q, (char *)v, (char *)tau, (char *)out}};
  int64_t dimensions[] = {{{n}, 3, 3, 3, 3}}, steps[] = {{24, 24, 24, 24, 8, 8, 8, 8}};
  int64_t data[] = {{{scratch}, 0, 3, 3, 3, 3}};
  kernel(args, dimensions, steps, data);
  for (int i = 0; i < {n}; ++i)
    for (int k = 0; k < 3; ++k) printf("%a\\n", out[i][k]);
  return 0;
}}
"""


@pytest.mark.skipif(
    not (shutil.which("qemu-aarch64") and shutil.which("aarch64-linux-gnu-gcc")),
    reason="needs qemu-user and gcc-aarch64-linux-gnu",
)
def test_64_bit_arm_gives_the_same_bits(tmp_path):
    """Run by an emulator: the promise of the same bits on x86 with multiply-adds and on ARM."""
    model, n = zoo.planar3(), 5
    rng = np.random.default_rng(0)
    given = dict(zip(("q", "v", "tau"), rng.normal(size=(3, n, 3))))
    request = Request(ALGORITHMS[ts.forward_dynamics], model, unroll=ALWAYS)
    (tmp_path / "kernel.o").write_bytes(codegen.object_code(arm_ir(request), ARM))
    tables = {name: ",".join(float(x).hex() for x in values.ravel()) for name, values in given.items()}
    scratch = int(unrolled_data([*request.input_shapes, request.shape], 64).words[0])
    (tmp_path / "main.c").write_text(DRIVER.format(n=n, scratch=scratch, **tables))
    compiler = ["aarch64-linux-gnu-gcc", "-static", "main.c", "kernel.o", "-lm", "-o", "main"]
    subprocess.run(compiler, cwd=tmp_path, check=True, timeout=processes.DEADLINE)
    done = subprocess.check_output(["qemu-aarch64", "./main"], cwd=tmp_path, text=True, timeout=processes.DEADLINE)
    result = np.array([float.fromhex(line) for line in done.split()]).reshape(n, 3)
    if codegen.host().fma:
        assert np.array_equal(result, ts.compile(model, ts.forward_dynamics)(*given.values()))
