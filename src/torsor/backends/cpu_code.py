"""The texts of a request: LLVM IR for `lanes` states side by side, and the stages of `Program.source`.

`cpu.py` imports this when machine code is made.  A program found on disk starts without it.
"""

from __future__ import annotations

from collections.abc import Callable

from torsor.backends import codegen
from torsor.backends.c99 import CFunction
from torsor.backends.cuda import Kernel
from torsor.backends.llvm import Target
from torsor.backends.llvm_arrays import loop_kernel, unrolled_kernel
from torsor.compiler.abi import Layout
from torsor.compiler.request import Request
from torsor.compiler.trace import LoopCode
from torsor.errors import ArgumentError


def outline(request: Request, lanes: int) -> tuple[str, tuple[int, ...], Layout | None]:
    """The name of the kernel, the shape of its output and its layout.

    The name is a hash of everything that determines the text; models of the same kinds share one loop kernel.
    """
    code = request.code
    layout = code.layout if isinstance(code, LoopCode) else None
    text = f"{code}|{request.inputs}|{layout or request.input_shapes}|{_target(request, lanes)}"
    return codegen.name_of(text), request.shape, layout


def ir(request: Request, lanes: int) -> str:
    code, target = request.code, _target(request, lanes)
    if isinstance(code, LoopCode):
        return loop_kernel(code, target)
    return unrolled_kernel(code, dict(zip(request.inputs, request.input_shapes)), request.shape, target)


def _target(request: Request, lanes: int) -> Target:
    host = codegen.host()
    return Target(lanes, request.bits, host.fma, host.x86)


def source(request: Request, lanes: int, stage: str) -> str:
    """The code at one stage of compilation."""
    stages: dict[str, Callable[[], str]] = {
        "tape": lambda: str(request.code), "llvm": lambda: ir(request, lanes),
        "asm": lambda: codegen.assembly(ir(request, lanes)), "cuda": lambda: Kernel.of(request).source(),
        "c": lambda: CFunction.of(request).text(),
    }  # fmt: skip
    if stage not in stages:
        raise ArgumentError(f"unknown stage {stage!r}; choose one of: {', '.join(stages)}")
    return stages[stage]()
