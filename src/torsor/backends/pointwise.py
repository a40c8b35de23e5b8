"""A function of a few scalars, compiled to a gufunc that runs it on many numbers at once.

For work without a recurrence, the lanes of a vector are whatever the batch axis is: links of a chain, segments, levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torsor.backends import codegen
from torsor.backends.gufunc import gufunc, signature
from torsor.backends.llvm import Target
from torsor.backends.llvm_arrays import unrolled_kernel
from torsor.compiler.abi import unrolled_data
from torsor.compiler.tape import Code, Tape
from torsor.compiler.trace import shape_of, symbols
from torsor.outputs import numbered


def trace(function: Callable[..., Any], inputs: Mapping[str, tuple[int, ...]]) -> Code:
    """The tape of a function of (nested) lists of scalars, one argument per input, that returns nested lists."""
    tape = Tape()
    arguments = [symbols(tape, name, shape) for name, shape in inputs.items()]
    return Code.of(tape, {("out", *index): x for index, x in numbered(function(*arguments))})


def compile_pointwise(function: Callable[..., Any], inputs: Mapping[str, tuple[int, ...]],
                      dtype: str = "float64") -> Any:  # fmt: skip
    """A gufunc with the core dimensions of `inputs` and of the function's result; batch axes broadcast."""
    return compile_code(trace(function, inputs), inputs, dtype, function.__name__, function.__doc__ or "")


def compile_code(code: Code, inputs: Mapping[str, tuple[int, ...]], dtype: str, name: str, doc: str = "") -> Any:
    """The same from the tape of the function."""
    host = codegen.host()
    bits = 64 if dtype == "float64" else 32
    target = Target(host.lanes(bits), bits, host.fma, host.x86)
    shape = shape_of(code)
    key = codegen.name_of(f"pointwise|{code}|{dict(inputs)}|{target}")
    loaded = codegen.load(key, lambda: unrolled_kernel(code, inputs, shape, target, in_place=True))
    shapes = [*inputs.values(), shape]
    data = unrolled_data(shapes, bits)
    return gufunc(loaded.address, data.words.ctypes.data, signature(shapes), dtype, name, doc, (loaded, data))
