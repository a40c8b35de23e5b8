"""CUDA kernels: one thread per state.

The text of a kernel has three parts: the prelude (see `cuda_prelude.py`), a function `state` that runs the algorithm on
one state, and the kernel itself, which assigns a state to every thread.  `state` is either straight-line code for one
model, or loops over its bodies (`loops.py`).

An array has the form (states, numbers of a state): number k of state b is at  pointer[b * step + k * stride].
Neighbouring threads must read neighbouring memory, so an array whose states are rows (stride 1) is staged.  Each warp
of a block copies its rows in order into shared memory, and each thread reads its state from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torsor.backends.c_language import SCRATCH, CMemory, CWriter, array, element
from torsor.backends.cuda_prelude import prelude
from torsor.compiler.loops import Loops
from torsor.compiler.request import Request
from torsor.compiler.tape import Code
from torsor.compiler.trace import LoopCode

SHARED_BYTES = 96 * 1024  # the most shared memory of a block for staging: two such blocks fit a multiprocessor
REGISTERS = 65536  # per multiprocessor
# the model data that a loop kernel reads (`torsor.compiler.abi`), and its scratch memory
TREE_WORDS = ("n", "nv", "flags", "start", "second", "products")
TREE_TABLES = ("index", "columns", "entries", "product")


@dataclass(frozen=True)
class Launch:
    """Threads per block, and the most registers per thread."""

    threads: int = 64
    registers: int = 255

    @property
    def bounds(self) -> str:
        """The launch bounds in CUDA C: threads per block, and the least number of blocks per multiprocessor."""
        return f"__launch_bounds__({self.threads}, {max(1, REGISTERS // (self.threads * self.registers))})"


@dataclass(frozen=True)
class Kernel:
    """Everything that determines the text of a kernel, except its launch and the layout of its arrays."""

    code: Code | LoopCode
    inputs: tuple[tuple[str, int], ...]  # name, numbers per state
    shape: tuple[int, ...]  # the shape of the output, for one state
    bits: int
    trig: str = "accurate"

    @classmethod
    def of(cls, request: Request, trig: str = "accurate") -> Kernel:
        return cls(request.code, request.input_sizes, request.shape, request.bits, trig)

    @property
    def arrays(self) -> tuple[tuple[str, int], ...]:
        return (*self.inputs, ("out", prod(self.shape)))

    @property
    def looped(self) -> bool:
        return isinstance(self.code, LoopCode)

    @property
    def kept(self) -> int:
        """For loops: the count of numbers that a body keeps."""
        return self.code.layout.kept if isinstance(self.code, LoopCode) else 0

    @property
    def handed(self) -> int:
        """For loops: the count of numbers that a body hands on."""
        return self.code.layout.handed if isinstance(self.code, LoopCode) else 0

    def stageable(self, threads: int) -> tuple[bool, ...]:
        """Which arrays a block may stage if their layout requires it: as many as fit into shared memory."""
        room = SHARED_BYTES
        result = []
        for _, size in reversed(self.arrays):  # the output first: scattered writes cost the most
            bytes_ = _pitch(size, self.bits) * threads * self.bits // 8
            result.append(bytes_ <= room)
            room -= bytes_ if bytes_ <= room else 0
        return tuple(reversed(result))

    def shared_bytes(self, staged: Sequence[bool], threads: int) -> int:
        pitches = (_pitch(size, self.bits) for (_, size), is_staged in zip(self.arrays, staged) if is_staged)
        return sum(pitches) * threads * self.bits // 8

    def source(self, launch: Launch | None = None, staged: Sequence[bool] | None = None) -> str:
        """The text of the kernel for one launch and one layout, which determines the staged arrays."""
        launch = launch or Launch()
        staged = staged or (False,) * len(self.arrays)
        return "\n".join((prelude(self.bits, self.trig), self.state(), self._entry(launch, staged)))

    def state(self, name: str = "state", inline: bool = True) -> str:
        """The function `state`: the algorithm on one state."""
        w = CWriter(self.bits)
        if isinstance(self.code, LoopCode):
            Loops(w, self.code, CMemory(w, self.code, self.inputs, self.shape)).write()
        else:
            w.run(self.code, lambda entry: element(entry, self.shape, self.inputs))
        return self.function(name, w, self.looped, inline)

    def function(self, name: str, w: CWriter, looped: bool, inline: bool = True) -> str:
        """A function of the kernel's arrays and, for loops, of the model data and scratch memory."""
        parameters = [f"const A{k} {array(x)}" for k, (x, _) in enumerate(self.arrays)]
        types = ", ".join(f"class A{k}" for k in range(len(parameters)))
        if looped:
            parameters += ["const Tree tree", *(f"const Strided {name}" for name in SCRATCH)]
        how = "__forceinline__" if inline else "__noinline__"
        head = f"template <{types}>\n__device__ {how} void {name}({', '.join(parameters)})"
        return f"{head} {{\n" + "\n".join(w.lines) + "\n}\n"

    def loop_text(self, threads: int) -> tuple[list[str], list[str]]:
        """The parameters of a loop kernel besides its arrays, and the statements that unpack them."""
        parameters = [
            *(f"const int {name}" for name in TREE_WORDS),
            *(f"const int* __restrict__ {name}" for name in TREE_TABLES),
            "const T* __restrict__ numbers, const T* __restrict__ base, T* __restrict__ scratch",
        ]
        tables = ", ".join(f"{{{name}}}" for name in (*TREE_TABLES, "numbers", "base"))
        return parameters, [
            f"const Tree tree{{{', '.join(TREE_WORDS)}, {tables}}};",
            f"const long long all = (long long)gridDim.x * {threads};",
            f"T* const mine = scratch + (long long)blockIdx.x * {threads} + threadIdx.x;",
            "const Strided work{mine, all};",
            f"const Strided hands{{mine + (long long)n * {self.kept} * all, all}};",
            f"const Strided packed{{mine + ((long long)n * {self.kept} + (n + 1ll) * {self.handed}) * all, all}};",
        ]

    def _entry(self, launch: Launch, staged: Sequence[bool]) -> str:
        """The kernel itself."""
        parameters, before, load, store, views = [], [], [], [], []
        at, threads = 0, launch.threads
        for (given, size), is_staged in zip(self.arrays, staged):
            name = array(given)
            kind = "T" if name == "out" else "const T"
            parameters.append(f"{kind}* __restrict__ {name}")
            parameters.append(f"const long long {name}_step, const long long {name}_stride")
            if not is_staged:
                views.append(f"{'Strided' if name == 'out' else 'Read'}{{{name} + b * {name}_step, {name}_stride}}")
                continue
            pitch = _pitch(size, self.bits)
            place = f"{at} + threadIdx.x / 32 * {32 * pitch}"
            before.append(f"T* const {name}_tile = reinterpret_cast<T*>(shared) + {place};")
            at += threads * pitch
            views.append(f"Row{{{name}_tile + threadIdx.x % 32 * {pitch}}}")
            if name == "out":
                store.append(f"store_rows<{size}, {pitch}>(out_tile, out + warp * {size}, count - warp);")
            else:
                load.append(f"load_rows<{size}, {pitch}>({name}_tile, {name} + warp * {size}, count - warp);")
        parameters.append("const long long count")
        if any(staged):
            before.insert(0, "extern __shared__ __align__(16) unsigned char shared[];")
        if self.looped:  # scratch memory limits the number of threads: each computes several states one after the other
            loop, scratch = self.loop_text(threads)
            parameters += loop
            before += scratch
            views += ["tree", *SCRATCH]
        head = f"  long long b = (long long)blockIdx.x * {threads} + threadIdx.x"
        head = f"  for ({head.strip()}; b - threadIdx.x < count; b += all) {{" if self.looped else f"{head};"
        work = ["const long long warp = b - threadIdx.x % 32;"] if any(staged) else []
        work += [*load, *(["wait_for_copies();"] if load else []), f"if (b < count) state({', '.join(views)});"]
        sync = ["__syncwarp();"]
        work += [*(sync if store else []), *store, *(sync if self.looped and any(staged) else [])]
        lines = [*(f"  {line}" for line in before), head, *(f"    {line}" for line in work), *["  }"] * self.looped]
        return (
            f'extern "C" __global__ void {launch.bounds}\nkernel({", ".join(parameters)}) {{\n'
            + "\n".join(lines) + "\n}\n"
        )  # fmt: skip


def _pitch(size: int, bits: int) -> int:
    """The distance from one row to the next in shared memory, in numbers.

    Rows are copied in pieces of 16 bytes.  If a row is a whole number of pieces, an odd number of them spreads the
    rows of neighbouring threads over all banks.
    """
    piece = 128 // bits
    return size + piece if size % (2 * piece) == 0 else size
