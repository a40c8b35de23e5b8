"""Machines that are not this one: without linker, without fork, hardened; other processors, other systems."""

import json
import os
import re
import shutil
import struct
import sys
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
from torsor.backends.llvm_entry import turning_module
from torsor.compiler.abi import runtime, turning_place, unrolled_data
from torsor.compiler.request import ALWAYS, NEVER, Request
from torsor.dynamics.functions import ALGORITHMS
from torsor.outputs import Path

ARM = codegen.Host("aarch64-unknown-linux-gnu", "generic", "+neon")
RISC_V = codegen.Host("riscv64-unknown-linux-gnu", "generic-rv64", "+m,+a,+f,+d,+c")
X86 = "haswell", "+avx2,+fma"
ARM_ELF = b"\x7fELF\x02\x01"
MACHINE_AARCH64 = 183  # e_machine
IMPORTS = {"malloc", "free", "sin", "cos"}  # of the C library


def in_a_new_process(cache, *scripts: str) -> str:
    return processes.output(
        "\n".join(map(textwrap.dedent, scripts)), env=processes.environment(TORSOR_CACHE=str(cache))
    )


COMPUTE = """
    import numpy as np, torsor as ts
    rng = np.random.default_rng(0)
    for model in (ts.zoo.planar3(), ts.zoo.random_tree(6, seed=7)):
        q, v, tau = model.random_configuration(rng, 9), *rng.normal(size=(2, 9, model.nv))
        print(ts.forward_dynamics(model, q, v, tau).tobytes().hex(), ts.mass_matrix(model, q).tobytes().hex())
        print(ts.log_det_mass_matrix(model, q).tobytes().hex())
    print(ts.simulate(ts.zoo.planar3(), duration=0.1).q[-1].tobytes().hex())
"""


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """(a cache, what COMPUTE prints with it)"""
    cache = tmp_path_factory.mktemp("cache")
    return cache, in_a_new_process(cache, COMPUTE)


WITHOUT_LINKER = """
    from torsor.backends import codegen, elf
    def link(code, entry="kernel"):
        raise elf.NotLinkable("switched off")
    codegen.link = link
"""


def test_llvm_loads_the_code_where_torsor_does_not_link(computed, tmp_path):
    """As on macOS, Windows and ARM: the same bits, from a new cache and from a warm one."""
    for _ in range(2):
        assert in_a_new_process(tmp_path, WITHOUT_LINKER, COMPUTE) == computed[1]


# A hardened system: from here on no memory of this process becomes executable that was not so when it was mapped.
HARDENED = """
    import ctypes, sys
    PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
    if ctypes.CDLL(None).prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0):
        sys.exit("no MDWE")
"""
FORBIDDEN = """
    import numpy as np, torsor as ts
    from torsor import reference
    from torsor.dynamics.functions import ALGORITHMS
    model, x = ts.zoo.planar3(), [0.1, 0.2, 0.3]
    try:
        ts.mass_matrix(model, x)
    except ts.DeviceError as error:
        print(error)
    print(sum(reference.evaluate(ALGORITHMS[ts.mass_matrix], model, {"q": x}), start=[]))
"""


needs_mdwe = pytest.mark.skipif(
    sys.platform != "linux" or tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 3),
    reason="needs Linux 6.3 or newer, for PR_SET_MDWE",
)


@needs_mdwe
def test_a_system_that_makes_no_memory_executable_maps_the_code_as_a_file(computed):
    assert in_a_new_process(computed[0], HARDENED, COMPUTE) == computed[1]


@needs_mdwe
@pytest.mark.parametrize("how", ["import os; del os.memfd_create", WITHOUT_LINKER], ids=["no file", "loaded by LLVM"])
def test_where_no_code_may_be_run_an_error_says_what_to_do(tmp_path, how):
    said = in_a_new_process(tmp_path, HARDENED, how, FORBIDDEN).splitlines()
    assert "lets no program run code that it has made" in said[0]
    assert "torsor.reference.evaluate" in said[0]
    want = ts.mass_matrix(zoo.planar3(), [0.1, 0.2, 0.3])
    np.testing.assert_allclose(np.array(json.loads(said[1])).reshape(3, 3), want, rtol=1e-14)


def test_programs_work_where_there_is_no_fork(computed):
    without = "import os, random, logging\ndel os.register_at_fork"  # Python's own modules use it where it is
    assert in_a_new_process(computed[0], without, COMPUTE) == computed[1]


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
    code = codegen.object_code(ir(Request(algorithm, model, frame=frame, unroll=unroll), ARM), ARM)
    assert code[:6] == ARM_ELF
    assert struct.unpack_from("<H", code, 18) == (MACHINE_AARCH64,)
    assert undefined_symbols(code) <= IMPORTS


def vectors(request: Request, host: codegen.Host) -> Target:
    return Target(host.lanes(request.bits), request.bits, fma=True, x86=host.x86)


def ir(request: Request, host: codegen.Host) -> str:
    target = vectors(request, host)
    if request.unroll is NEVER:
        return loop_kernel(request.code, target)
    return unrolled_kernel(request.code, dict(zip(request.inputs, request.input_shapes)), request.shape, target)


def relocations_of_coff(code: bytes) -> tuple[int, set[int], set[str]]:
    """(the machine, the kinds of relocations in code, the names they leave to others) of an object file of Windows."""
    machine, sections, _, table, count = struct.unpack_from("<HHIII", code)
    kinds, symbols = set(), set()
    for k in range(sections):
        *_, first, _, found, _, flags = struct.unpack_from("<IIIIIIHHI", code, 20 + 40 * k + 8)
        if flags & 0x20:  # IMAGE_SCN_CNT_CODE
            entries = [struct.unpack_from("<IIH", code, first + 10 * j) for j in range(found)]
            kinds |= {kind for _, _, kind in entries}
            symbols |= {symbol for _, symbol, _ in entries}
    names = set()
    for symbol in symbols:
        name, _, section = struct.unpack_from("<8sIh", code, table + 18 * symbol)
        if section == 0:
            short, at = struct.unpack("<II", name)
            at += table + 18 * count
            names.add((name.rstrip(b"\0") if short else code[at : code.index(b"\0", at)]).decode())
    return machine, kinds, names


def relocations_of_mach_o(code: bytes) -> tuple[int, set[int], set[str]]:
    """The same of an object file of macOS, whose names begin with an underscore."""
    _, machine, _, _, commands = struct.unpack_from("<IIIII", code)
    kinds, names, at = set(), set(), 32
    for _ in range(commands):
        command, size = struct.unpack_from("<II", code, at)
        if command == 0x19:  # LC_SEGMENT_64
            for k in range(struct.unpack_from("<I", code, at + 64)[0]):
                section = at + 72 + 80 * k
                first, found = struct.unpack_from("<II", code, section + 56)
                if code[section : section + 6] == b"__text":
                    kinds |= {struct.unpack_from("<II", code, first + 8 * j)[1] >> 28 for j in range(found)}
        if command == 2:  # LC_SYMTAB
            table, count, text, _ = struct.unpack_from("<IIII", code, at + 8)
            for k in range(count):
                name, kind = struct.unpack_from("<IB", code, table + 16 * k)
                if not kind & 0x0E:  # N_UNDF
                    names.add(code[text + name : code.index(b"\0", text + name)].decode().removeprefix("_"))
        at += size
    return machine, kinds, names


# What code of these systems may ask of its loader: distances, and places within a page.  An absolute address (kind 0 on
# macOS, 1 and 2 on Windows) could be out of reach of code that is loaded far away.
SYSTEMS = {
    "Windows, x86-64": (("x86_64-pc-windows-msvc", *X86), relocations_of_coff, 0x8664, {4, 5, 6, 7, 8, 9}),
    "Windows, ARM": (("aarch64-pc-windows-msvc", *ARM[1:3]), relocations_of_coff, 0xAA64, {3, 4, 6, 7}),
    "macOS, x86-64": (("x86_64-apple-macosx", *X86), relocations_of_mach_o, 0x01000007, {1, 2, 6, 7, 8}),
    "macOS, ARM": (("arm64-apple-macosx", *ARM[1:3]), relocations_of_mach_o, 0x0100000C, {2, 3, 4}),
}


@pytest.mark.parametrize("unroll", [ALWAYS, NEVER], ids=["unrolled", "looped"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_code_for_other_systems_asks_its_loader_for_distances_only(system, unroll):
    host, read, machine, allowed = SYSTEMS[system]
    host = codegen.Host(*host)
    request = Request(ALGORITHMS[ts.forward_dynamics], zoo.random_tree(4, seed=2), unroll=unroll)
    for text in (ir(request, host), turning_module(vectors(request, host))):
        found, kinds, names = read(codegen.object_code(text, host))
        assert found == machine
        assert kinds
        assert kinds <= allowed
        assert names <= IMPORTS | {"__chkstk"}  # what Windows calls before large frames of the stack; in its ntdll


DRIVER = """
#include <stdint.h>
#include <stdio.h>
void kernel(char **args, int64_t *dimensions, int64_t *steps, void *data);
void turning(void);
static double q[{n}][3] = {{{q}}}, v[{n}][3] = {{{v}}}, tau[{n}][3] = {{{tau}}}, out[{n}][3];
int main(void) {{
  char *args[] = {{(char *)q, (char *)v, (char *)tau, (char *)out}};
  int64_t dimensions[] = {{{n}, 3, 3, 3, 3}}, steps[] = {{24, 24, 24, 24, 8, 8, 8, 8}};
  int64_t runtime[{words}] = {{0}}, data[] = {{{scratch}, (int64_t)runtime, 3, 3, 3, 3}};
  runtime[{place}] = (int64_t)turning;
  kernel(args, dimensions, steps, data);
  for (int i = 0; i < {n}; ++i)
    for (int k = 0; k < 3; ++k) printf("%a\\n", out[i][k]);
  return 0;
}}
"""


@pytest.mark.parametrize("host", [ARM, RISC_V], ids=["aarch64", "riscv64"])
def test_other_processors_give_the_same_bits(host, tmp_path):
    """Run by an emulator: the promise of the same bits on x86 with multiply-adds, on ARM and on RISC-V."""
    processor = host.triple.partition("-")[0]
    emulator, compiler = f"qemu-{processor}", f"{processor}-linux-gnu-gcc"
    if not (shutil.which(emulator) and shutil.which(compiler)):
        pytest.skip(f"needs qemu-user and gcc-{processor}-linux-gnu")
    model, n = zoo.planar3(), 5
    rng = np.random.default_rng(0)
    given = dict(zip(("q", "v", "tau"), rng.normal(size=(3, n, 3))))
    request = Request(ALGORITHMS[ts.forward_dynamics], model, unroll=ALWAYS)
    target = vectors(request, host)
    texts = {"kernel.o": ir(request, host), "turning.o": turning_module(target).replace("@kernel", "@turning")}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(codegen.object_code(text, host))
    tables = {name: ",".join(float(x).hex() for x in values.ravel()) for name, values in given.items()}
    scratch = int(unrolled_data([*request.input_shapes, request.shape], 64).words[0])
    about = {"words": len(runtime()), "place": turning_place(target.lanes, target.bits)}
    (tmp_path / "main.c").write_text(DRIVER.format(n=n, scratch=scratch, **about, **tables))
    words = [compiler, "-static", "main.c", *texts, "-lm", "-o", "main"]
    processes.call(*words, cwd=tmp_path, check=True)
    done = processes.call(emulator, "./main", cwd=tmp_path, check=True).stdout
    result = np.array([float.fromhex(line) for line in done.split()]).reshape(n, 3)
    if codegen.host().fma:
        assert np.array_equal(result, ts.compile(model, ts.forward_dynamics)(*given.values()))
