"""The identity of an x86-64 processor: the instruction CPUID, which LLVM also uses.

/proc/cpuinfo describes the processor of the machine.  Under an emulator, or if features are switched off for one
program, code for that processor may stop with an illegal instruction.
"""

from __future__ import annotations

import ctypes
import os
import sys

from torsor.backends.elf import PAGE, Image
from torsor.errors import DeviceError

# void cpuid(leaf, subleaf, uint32 out[4]); the processor's answer is in eax, ebx, ecx, edx (System V ABI)
_CPUID = bytes.fromhex("53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
# uint64 xgetbv(): which registers the system saves, in edx:eax
_XGETBV = bytes.fromhex("31c9 0f01d0 48c1e220 4809d0 c3")
# The leaves from which LLVM determines the processor and its features (Host.cpp), and the registers to keep: ebx of
# leaf 1 and others identify the core that answered.
_LEAVES = {
    (0, 0): "abcd", (1, 0): "acd", (7, 0): "bcd", (7, 1): "abcd", (0xD, 1): "a", (0x14, 0): "b", (0x19, 0): "b",
    (0x1E, 1): "a", (0x24, 0): "b", (0x80000001, 0): "cd", (0x80000008, 0): "b",
}  # fmt: skip
_OSXSAVE = 1 << 27  # in ecx of leaf 1: xgetbv is available


def processor() -> tuple[int, ...] | None:
    """Numbers that identify the processor and its features; None on systems where they are not available."""
    if sys.platform != "linux" or sys.maxsize < 2**32 or os.uname().machine != "x86_64":
        return None
    code = (_CPUID + _XGETBV).ljust(PAGE, b"\xcc")
    try:
        memory, address = Image(code, 0, {}).load()
    except DeviceError:
        return None
    cpuid = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(address)
    xgetbv = ctypes.CFUNCTYPE(ctypes.c_uint64)(address + len(_CPUID))

    def ask(leaf: int, subleaf: int) -> dict[str, int]:
        out = (ctypes.c_uint32 * 4)()
        cpuid(leaf, subleaf, out)
        return dict(zip("abcd", out))

    most = {base: ask(base, 0)["a"] for base in (0, 0x80000000)}
    found = []
    for (leaf, subleaf), registers in _LEAVES.items():
        answer = ask(leaf, subleaf) if leaf <= most[leaf & 0x80000000] else dict.fromkeys("abcd", 0)
        found += [answer[register] for register in registers]
    found.append(xgetbv() if ask(1, 0)["c"] & _OSXSAVE else 0)
    del memory  # kept until the code has run
    return tuple(found)
