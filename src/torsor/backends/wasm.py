"""WebAssembly: functions of a model as one module for any browser and for Node, made by LLVM alone.

LLVM's object file for wasm32 is almost a module: its indices and addresses are final, because nothing is left to link.
`finished` replaces its imported memory and stack pointer by the module's own, and adds exports and data. Only the sine
and the cosine of large angles are imported.

A `Module` is a memory with arrays, and procedures without arguments: sequences of calls of kernels on these arrays.
The kernels are those of the CPU for a single state, without fused multiply-adds, which WebAssembly lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.backends import codegen
from torsor.backends.elementary import far_sincos
from torsor.backends.llvm import LLVMWriter, Target
from torsor.backends.llvm_arrays import LLVMArrays, LLVMMemory
from torsor.backends.llvm_entry import BLOCK, EntryFunction, turning
from torsor.compiler.abi import SIZES, KernelData, loop_data, unrolled_data
from torsor.compiler.loops import Loops
from torsor.compiler.tape import Code
from torsor.compiler.trace import LoopCode
from torsor.errors import ArgumentError
from torsor.inputs import place_of
from torsor.later import Later

if TYPE_CHECKING:
    from torsor.compiler.request import Request

llvm = Later("llvmlite.binding")

Array = NDArray[Any]
Shape = tuple[int, ...]

TRIPLE = "wasm32-unknown-unknown"
# The start of the arrays. The stack grows down from here; below it are the few constants of the code.
START, STACK_ROOM = 1 << 20, 1 << 19
PAGE, LINE = 65536, 64  # bytes
MOST_BYTES = 1 << 30  # of memory, which all browsers provide


def target(bits: int) -> Target:
    """One state, without multiply-adds that round once."""
    return Target(1, bits, fma=False, x86=False)


# ---- kernels ----


@dataclass(frozen=True, eq=False)
class WasmKernel:
    """A function of arrays.

    inputs, outputs   the shapes by name, for one state
    data              the words that the code reads
    write             writes the work on one state
    """

    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    bits: int
    data: KernelData
    write: Callable[[LLVMWriter], None]

    @classmethod
    def of(cls, request: Request) -> WasmKernel:
        """What a request computes."""
        code, inputs = request.code, dict(zip(request.inputs, request.input_shapes))
        if not isinstance(code, LoopCode):
            return cls.of_code(code, inputs, {"out": request.shape}, request.bits)
        ranks = {name: place_of(name).rank for name in code.inputs}
        shapes = [*inputs.values(), request.shape]
        data = loop_data(code.layout, request.frames, shapes, request.bits, request.frame)

        def write(w: LLVMWriter) -> None:
            Loops(w, code, LLVMMemory(w, code, ranks, 1)).write()

        return cls(inputs, {"out": request.shape}, request.bits, data, write)

    @classmethod
    def of_code(
        cls, code: Code, inputs: Mapping[str, Shape], outputs: Mapping[str, Shape], bits: int = 64
    ) -> WasmKernel:
        """Straight-line code; its outputs are (name, indices...), and the last name is "out"."""
        *first, last = ((name, len(shape)) for name, shape in {**inputs, **outputs}.items())

        def write(w: LLVMWriter) -> None:
            arrays = LLVMArrays(w, dict(first), last[1], SIZES)
            for place, x in w.emit(code, lambda place: arrays.get(*place)).items():
                arrays.put(x, *place)
            arrays.finish()

        return cls(inputs, outputs, bits, unrolled_data([*inputs.values(), *outputs.values()], bits), write)

    @property
    def shapes(self) -> list[Shape]:
        """Of all arrays."""
        return [*self.inputs.values(), *self.outputs.values()]


class WasmArray(NamedTuple):
    """An array in the memory of a module: its address, its shape and its strides in bytes."""

    at: int
    shape: Shape
    strides: Shape

    def part(self, begin: int, *shape: int) -> WasmArray:
        """A part of an array without gaps, from an index on."""
        size = self.strides[-1]
        strides = tuple(size * prod(shape[k + 1 :]) for k in range(len(shape)))
        return WasmArray(self.at + begin * size, shape, strides)


class KernelCall(NamedTuple):
    """A kernel with its inputs and outputs; arrays with one axis more than the kernel's have one row per state."""

    kernel: WasmKernel
    arrays: Sequence[WasmArray]


# ---- modules ----


class Module:
    """Collects arrays and procedures; `to_bytes` makes the module."""

    def __init__(self) -> None:
        self.image = bytearray()
        self.procedures: dict[str, Sequence[KernelCall]] = {}

    def array(self, x: Any) -> WasmArray:
        """An array with initial numbers."""
        x = np.ascontiguousarray(x)
        self.image.extend(bytes(-len(self.image) % LINE))
        at = START + len(self.image)
        self.image.extend(x.tobytes())
        if at + x.nbytes > MOST_BYTES:
            raise ArgumentError(f"the model needs more than {MOST_BYTES >> 20} MB of memory, which no browser gives")
        return WasmArray(at, x.shape, x.strides)

    def zeros(self, shape: Shape, bits: int = 64) -> WasmArray:
        """Room for numbers."""
        return self.array(np.zeros(shape, f"f{bits // 8}"))

    def define(self, name: str, calls: Sequence[KernelCall]) -> None:
        """Export a procedure that makes these calls."""
        self.procedures[name] = calls

    def export(self, name: str, kernel: WasmKernel, inputs: Mapping[str, WasmArray] | None = None) -> Exported:
        """Define a procedure that calls a kernel once, on new arrays or on these."""
        given = {key: (inputs or {}).get(key) or self.zeros(shape, kernel.bits) for key, shape in kernel.inputs.items()}
        out = self.zeros(kernel.outputs["out"], kernel.bits)
        self.define(name, [KernelCall(kernel, [*given.values(), out])])
        return Exported(given, out)

    def to_bytes(self, about: str = "") -> bytes:
        """The module; `about` is a text stored in it."""
        calls = [call for calls in self.procedures.values() for call in calls]
        kernels = dict.fromkeys(call.kernel for call in calls)
        words = {kernel: self._words(kernel.data) for kernel in kernels}
        arguments = [(words[call.kernel], *self._arguments(call)) for call in calls]
        work = START + len(self.image) + -len(self.image) % LINE  # after everything else
        end = work + max((int(kernel.data.words[0]) for kernel in kernels), default=0) + LINE
        functions, texts = {}, []
        for k, kernel in enumerate(kernels):
            w = LLVMWriter(target(kernel.bits))
            kernel.write(w)
            functions[kernel] = EntryFunction(f"kernel_{k}", BLOCK, w)
            texts.append(str(functions[kernel]))
        lines = iter(_call(functions[call.kernel].name, own, work) for call, own in zip(calls, arguments))
        for name, own_calls in self.procedures.items():
            w = LLVMWriter(target(64))
            for _ in own_calls:
                next(lines)(w)
            texts.append("\n".join([f"define void @{name}() {{", "entry:", *w.lines, "  ret void", "}"]))
        ir = "\n".join([*_helpers([f.body for f in functions.values()]), *texts])
        return finished(_object(ir), list(self.procedures), bytes(self.image).rstrip(b"\0"), end, about)

    def _words(self, data: KernelData) -> int:
        """The address of a kernel's words; their addresses become those of this memory, in 8 bytes of which 4 are
        read."""
        words, packing = data.words.copy(), data.packing
        for x in (*data.owned, *((packing.columns, packing.entries, packing.products) if packing else ())):
            words[data.words == x.ctypes.data] = self.array(x).at
        return self.array(words).at

    def _arguments(self, call: KernelCall) -> tuple[int, int, int]:
        """The positions of a call's addresses and strides, and its number of states."""
        arrays = call.arrays
        several = [len(x.shape) > len(shape) for x, shape in zip(arrays, call.kernel.shapes)]
        count = max((x.shape[0] for x, one in zip(arrays, several) if one), default=1)
        outer = [x.strides[0] if one else 0 for x, one in zip(arrays, several)]
        inner = [step for x, one in zip(arrays, several) for step in x.strides[one:]]
        args = self.array(np.array([x.at for x in arrays], np.int64)).at
        return args, self.array(np.array([*outer, *inner], np.int64)).at, count


class Exported(NamedTuple):
    """The inputs and the output of an exported kernel."""

    inputs: dict[str, WasmArray]
    out: WasmArray


def _call(name: str, own: tuple[int, int, int, int], work: int) -> Callable[[LLVMWriter], None]:
    words, args, steps, count = own
    given = ", ".join(f"ptr inttoptr (i32 {at} to ptr)" for at in (args, steps, words, work))

    def write(w: LLVMWriter) -> None:
        if count == 1:
            w.do(f"call void @{name}({given}, i64 0)")
            return
        with w.loop("state", 0) as state:
            w.do(f"call void @{name}({given}, i64 {state.i})")
            state.count_to(w, count)

    return write


def _helpers(writers: Sequence[LLVMWriter]) -> list[str]:
    """Declarations, and the functions that kernels call."""
    lines = dict.fromkeys(line for w in writers for line in w.declarations.splitlines())
    turned = dict.fromkeys((w.target, x) for w in writers for x in sorted(w.turnings))  # of packed matrices
    far = dict.fromkeys(w.target for w in writers if w.far_room)
    texts = [far_sincos(x) for x in far]
    declared = dict.fromkeys(line for text in texts for line in text.splitlines() if line.startswith("declare"))
    bodies = ["\n".join(x for x in text.splitlines() if not x.startswith("declare")) for text in texts]
    return [*lines, *declared, *bodies, *(turning(*x) for x in turned)]


def _object(ir: str) -> bytes:
    """LLVM's object file."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(opt=codegen.level(), reloc="static")
    module = llvm.parse_assembly(ir)
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    return machine.emit_object(module)


# ---- the file: a list of sections (https://webassembly.github.io/spec/core/binary/modules.html) ----

CUSTOM, IMPORT, MEMORY, GLOBAL, EXPORT, CODE, DATA, DATA_COUNT = 0, 2, 5, 6, 7, 10, 11, 12
ORDER = (CUSTOM, 1, IMPORT, 3, 4, MEMORY, GLOBAL, EXPORT, 8, 9, DATA_COUNT, CODE, DATA)
OF_FUNCTION, OF_MEMORY, OF_GLOBAL = 0, 2, 3  # kinds of imports and exports
SYMBOLS = 8  # the subsection of "linking" that names functions
UNDEFINED, NAMED = 0x10, 0x40  # flags of a symbol
I32, MUTABLE, I32_CONST, END = 0x7F, 1, 0x41, 0x0B


def finished(code: bytes, names: Sequence[str], image: bytes, end: int, about: str = "") -> bytes:
    """A module from LLVM's object file, with the exports `names` and "memory".

    Its memory has `end` bytes; `image` starts at START, where the stack ends.
    """
    sections, symbols = _sections(code)
    if _end_of_data(sections.get(DATA, b"\0")) > START - STACK_ROOM:
        raise ArgumentError("the code has more constants than a module has room for")
    functions, has_stack = _imported_functions(sections[IMPORT])
    pages = -(-end // PAGE)
    rows = [_name(name) + bytes([OF_FUNCTION]) + _leb(symbols[name]) for name in names]
    rows.append(_name("memory") + bytes([OF_MEMORY]) + _leb(0))
    segments = _rows(sections.get(DATA, b"\0"))
    first = bytes([0, I32_CONST]) + _signed(START) + bytes([END]) + _leb(len(image)) + image
    sections |= {
        IMPORT: _section(functions),
        MEMORY: _section([b"\0" + _leb(pages)]),
        EXPORT: _section(rows),
        DATA: _leb(segments.number + 1) + segments.rest + first,
    }
    if has_stack:
        sections[GLOBAL] = _section([bytes([I32, MUTABLE, I32_CONST]) + _signed(START - LINE) + bytes([END])])
    if about:
        sections[CUSTOM] = _name("torsor") + about.encode()
    parts = (bytes([kind]) + _leb(len(sections[kind])) + sections[kind] for kind in ORDER if kind in sections)
    return code[:8] + b"".join(parts)


class _Bytes:
    """A reader of bytes."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def number(self) -> int:
        """An unsigned number in LEB128: seven bits per byte, the lowest first."""
        n = shift = 0
        while True:
            byte = self.data[self.at]
            n, shift, self.at = n | (byte & 127) << shift, shift + 7, self.at + 1
            if byte < 128:
                return n

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def name(self) -> str:
        return self.take(self.number()).decode()


class _Rows(NamedTuple):
    number: int
    rest: bytes


def _rows(section: bytes) -> _Rows:
    """The number of rows of a section, and their bytes."""
    r = _Bytes(section)
    count = r.number()
    return _Rows(count, section[r.at :])


def _sections(code: bytes) -> tuple[dict[int, bytes], dict[str, int]]:
    """The sections without custom ones, and the index of every named function."""
    r, found, symbols = _Bytes(code, 8), {}, {}
    while r.at < len(code):
        kind, content = r.take(1)[0], r.take(r.number())
        if kind not in (CUSTOM, DATA_COUNT):  # the latter is for instructions that we do not use
            found[kind] = content
        elif kind == CUSTOM and (custom := _Bytes(content)).name() == "linking":
            symbols = _functions_by_name(custom)
    return found, symbols


def _functions_by_name(r: _Bytes) -> dict[str, int]:
    r.number()  # the version
    found = {}
    while r.at < len(r.data):
        kind, size = r.take(1)[0], r.number()
        end = r.at + size
        for _ in range(r.number() if kind == SYMBOLS else 0):
            what, flags = r.take(1)[0], r.number()
            if what == 1:  # data
                r.name()
                for _ in range(0 if flags & UNDEFINED else 3):
                    r.number()
                continue
            index = r.number()
            if what != 3 and (not flags & UNDEFINED or flags & NAMED):
                name = r.name()
                if what == OF_FUNCTION:
                    found[name] = index
        r.at = end
    return found


def _imported_functions(section: bytes) -> tuple[list[bytes], bool]:
    """The rows of the imported functions, and whether the stack pointer is imported."""
    r, functions, has_stack = _Bytes(section), [], False
    for _ in range(r.number()):
        begin = r.at
        _, name, kind = r.name(), r.name(), r.take(1)[0]
        if kind == OF_FUNCTION:
            r.number()
            functions.append(section[begin : r.at])
        elif kind == OF_MEMORY:
            flags = r.number()
            for _ in range(1 + (flags & 1)):
                r.number()
        elif kind == OF_GLOBAL and name == "__stack_pointer":
            has_stack, _ = True, r.take(2)
        else:
            raise AssertionError(f"LLVM's object imports {name!r}")
    return functions, has_stack


def _end_of_data(section: bytes) -> int:
    """The first address after the constants of the code."""
    r, end = _Bytes(section), 0
    for _ in range(r.number()):
        r.take(2)  # active, of memory 0; i32.const
        at = r.number()
        r.take(1)
        size = r.number()
        r.take(size)
        end = max(end, at + size)
    return end


def _section(rows: Sequence[bytes]) -> bytes:
    return _leb(len(rows)) + b"".join(rows)


def _name(text: str) -> bytes:
    return _leb(len(text.encode())) + text.encode()


def _leb(n: int) -> bytes:
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + _leb(n >> 7)


def _signed(n: int) -> bytes:
    """A nonnegative number in signed LEB128: bit 6 of the last byte is its sign."""
    return bytes([n]) if n < 64 else bytes([n & 127 | 128]) + _signed(n >> 7)
