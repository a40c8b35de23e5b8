"""The code that transposes rows of numbers to vectors of states and back, compiled once for all kernels.

Kernels find it through the `runtime` words (`compiler/abi.py`). Inside each kernel it would take 30 ms to compile.
"""

from __future__ import annotations

import functools

from torsor.backends import codegen
from torsor.compiler.abi import runtime, turning_place
from torsor.later import Later

llvm, llvm_entry = Later("torsor.backends.llvm"), Later("torsor.backends.llvm_entry")  # if the code is not on disk


@functools.cache
def provide(lanes: int, bits: int) -> codegen.Loaded | None:
    """Provide the code for vectors of this many numbers, before the first kernel runs."""
    if lanes == 1:
        return None  # a single state is read and written in place

    def written() -> str:
        host = codegen.host()
        return llvm_entry.turning_module(llvm.Target(lanes, bits, host.fma, host.x86))

    loaded = codegen.load(codegen.name_of(f"turning|{lanes}|{bits}"), written)
    runtime()[turning_place(lanes, bits)] = loaded.address
    return loaded
