"""The linker and loader of kernels: code runs the same as LLVM loads it, and what is not understood is refused."""

import ctypes

import pytest

from torsor.backends import codegen
from torsor.backends.elf import Image, NotLinkable, link

SUMS = """
declare double @cos(double)
@table = private constant [3 x double] [double 1.0, double 2.0, double 4.0], align 64
define private double @entry_of_table(i64 %k) noinline nounwind {
  %place = getelementptr double, ptr @table, i64 %k
  %x = load double, ptr %place
  ret double %x
}
define double @kernel(i64 %k, double %angle) nounwind {
  %x = call double @entry_of_table(i64 %k)
  %c = call double @cos(double %angle)
  %p = fmul double %x, %c
  %s = fadd double %p, 0.3
  ret double %s
}
"""
VARIABLE = """
@count = global i64 0
define i64 @kernel() nounwind {
  %n = load i64, ptr @count
  ret i64 %n
}
"""
LINUX = codegen.Host("x86_64-unknown-linux-gnu", "x86-64", "+sse2")
ELSEWHERE = {
    "64-bit ARM": codegen.Host("aarch64-unknown-linux-gnu", "generic", "+neon"),
    "macOS": codegen.Host("x86_64-apple-macosx11.0.0", "x86-64", "+sse2"),
    "Windows": codegen.Host("x86_64-pc-windows-msvc", "x86-64", "+sse2"),
}


def run(loaded: codegen.Loaded) -> list[float]:
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)(loaded.address)
    return [function(k, 0.5 * k) for k in range(3)]


def test_linked_code_computes_what_llvm_loads():
    """Constants, a function of its own, one of the C library: at every address the same."""
    code = codegen.object_code(SUMS, codegen.host())
    expected = run(codegen._load(code))
    assert expected[0] == 1.3
    for _ in range(3):
        assert run(codegen._load(codegen._linked(code))) == expected


def test_an_image_comes_back_from_disk_as_it_was():
    image = link(codegen.object_code(SUMS, LINUX))
    assert set(image.imports) == {"cos"}
    assert Image.from_bytes(image.to_bytes()) == image


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_machines_code_is_left_to_llvm(name):
    code = codegen.object_code(SUMS, ELSEWHERE[name])
    with pytest.raises(NotLinkable):
        link(code)
    assert codegen._linked(code) == code


def test_what_is_not_understood_is_refused():
    with pytest.raises(NotLinkable, match="neither code nor constants"):
        link(codegen.object_code(VARIABLE, LINUX))
    with pytest.raises(NotLinkable, match="no function other"):
        link(codegen.object_code(SUMS, LINUX), entry="other")
