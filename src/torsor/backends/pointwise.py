"""A function of a few scalars, compiled to a gufunc that runs it on many numbers at once.

For work without a recurrence, the lanes of a vector are the entries of any batch axis: links, segments, levels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torsor.backends import cache, codegen
from torsor.backends.gufunc import gufunc, signature
from torsor.backends.turning import provide
from torsor.compiler.abi import unrolled_data
from torsor.later import Later
from torsor.outputs import numbered

if TYPE_CHECKING:
    from torsor.compiler.tape import Code

# needed if the code is not on disk
llvm, llvm_arrays = Later("torsor.backends.llvm"), Later("torsor.backends.llvm_arrays")
tape, tracing = Later("torsor.compiler.tape"), Later("torsor.compiler.trace")


def trace(function: Callable[..., Any], inputs: Mapping[str, tuple[int, ...]]) -> Code:
    """The tape of a function of (nested) lists of scalars, one argument per input, that returns nested lists."""
    own = tape.Tape()
    arguments = [tracing.symbols(own, name, shape) for name, shape in inputs.items()]
    return tape.Code.of(own, {("out", *index): x for index, x in numbered(function(*arguments))})


def compile_pointwise(function: Callable[..., Any], inputs: Mapping[str, tuple[int, ...]], dtype: str = "float64",
                      key: Any = None) -> Any:  # fmt: skip
    """A gufunc with the core dimensions of `inputs` and of the function's result; batch axes broadcast.

    `key`: everything that determines the function, besides torsor's sources. With a key, the function is traced only if
    its code is not on disk.
    """
    traced = lru_cache(1)(lambda: trace(function, inputs))
    return _kernel(traced, inputs, dtype, function.__name__, function.__doc__ or "", key)


def compile_code(code: Code, inputs: Mapping[str, tuple[int, ...]], dtype: str, name: str, doc: str = "") -> Any:
    """The same, from the tape of the function."""
    return _kernel(lambda: code, inputs, dtype, name, doc)


def _kernel(code: Callable[[], Code], inputs: Mapping[str, tuple[int, ...]], dtype: str, name: str, doc: str,
            key: Any = None) -> Any:  # fmt: skip
    host, bits = codegen.host(), 64 if dtype == "float64" else 32

    def outline() -> str:
        return json.dumps(
            [codegen.name_of(f"pointwise|{code()}|{dict(inputs)}|{bits}|{host}"), tracing.shape_of(code())]
        )

    def written() -> str:
        target = llvm.Target(host.lanes(bits), bits, host.fma, host.x86)
        return llvm_arrays.unrolled_kernel(code(), inputs, tuple(shape), target, in_place=True)

    known = "pointwise", key, dict(inputs), bits, host, codegen.level(), cache.sources()
    kernel, shape = json.loads(outline() if key is None else cache.remembered(repr(known), outline))
    loaded = codegen.load(kernel, written)
    provide(host.lanes(bits), bits)
    shapes = [*inputs.values(), tuple(shape)]
    data = unrolled_data(shapes, bits)
    return gufunc(loaded.address, data.words.ctypes.data, signature(shapes), dtype, name, doc, (loaded, data))
