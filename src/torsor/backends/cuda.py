"""CUDA kernels: one thread per state.

The text of a kernel has three parts: the prelude (see `cuda_prelude.py`), a function `state` that runs the algorithm on
one state, and the kernel itself, which assigns a state to every thread.  `state` is either straight-line code for one
model, or loops over its bodies (`loops.py`).

An array is seen as (states, numbers of a state): number k of state b is at  pointer[b * step + k * stride].
Neighbouring threads must read neighbouring memory, so an array whose states are rows (stride 1) is staged.  Each warp
of a block copies its rows in order into shared memory, and each thread reads its state from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from torsor.backends.c_language import SCRATCH, CMemory, CWriter, array, element
from torsor.backends.cuda_prelude import prelude
from torsor.compiler.loops import Loops
from torsor.compiler.request import Request
from torsor.compiler.tape import Code
from torsor.compiler.trace import LoopCode

SHARED_BYTES = 96 * 1024  # the most shared memory a block may take for staging: two such blocks fit a multiprocessor
REGISTERS = 65536  # per multiprocessor
# the model data that a loop kernel reads (`torsor.compiler.abi`), and its scratch memory
TREE_WORDS = ("n", "nv", "flags", "start", "second", "products")
TREE_TABLES = ("index", "columns", "entries", "product")
RESET = ("reset_q", "reset_v")  # states from which a trajectory that stops goes on


@dataclass(frozen=True)
class Launch:
    """Threads per block, and the most registers a thread may use."""

    threads: int = 64
    registers: int = 255

    @property
    def bounds(self) -> str:
        """In the compiler's form: threads per block, and how many blocks must at least fit a multiprocessor."""
        return f"__launch_bounds__({self.threads}, {max(1, REGISTERS // (self.threads * self.registers))})"


@dataclass(frozen=True)
class Kernel:
    """What determines the text of a kernel, apart from its launch and the layout of its arrays."""

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
        """Loops: how many numbers a body keeps."""
        return self.code.layout.kept if isinstance(self.code, LoopCode) else 0

    @property
    def handed(self) -> int:
        """Loops: how many numbers a body hands on."""
        return self.code.layout.handed if isinstance(self.code, LoopCode) else 0

    def stageable(self, threads: int) -> tuple[bool, ...]:
        """Which arrays a block may stage, if their layout requires it: as many as fit shared memory."""
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
        """The text of the kernel for one launch and one layout: which arrays are staged."""
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
        """The parameters of a loop kernel beside its arrays, and the statements that unpack them."""
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
        if self.looped:  # scratch memory limits the number of threads: each computes several states in turn
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


@dataclass(frozen=True)
class RolloutKernel:
    """Many steps of an integrator: a loop over time around `advance`, one step of one state.

    step      the kernel whose text is `advance`: q, v, tau, gain, h, and numbers of every trajectory -> the next (q, v)
    stages    if the accelerations are not part of that text: the code of (q, v, tau) at each evaluation
    dynamics  the loop kernel that computes the accelerations in that case
    """

    step: Kernel  # its code is a Code
    stages: tuple[Code, ...]
    dynamics: Kernel | None
    tabulated: bool  # whether there is a table of torques
    ends: Kernel | None = None  # q, v, numbers of members -> how far each stop condition is exceeded
    reset: bool = False  # whether trajectories that stop go on from another state

    @property
    def bits(self) -> int:
        return self.step.bits

    @property
    def numbers(self) -> tuple[str, ...]:
        """The inputs of a step that are numbers of a trajectory: all after q, v, tau, gain and h."""
        return tuple(name for name, _ in self.step.inputs[5:])

    def source(self, launch: Launch | None = None) -> str:
        launch = launch or Launch()
        parts = [prelude(self.bits, self.step.trig), self.dynamics.state() if self.dynamics else "", self.advance()]
        parts += [self.ends.state("outside")] if self.ends else []
        return "\n".join((*parts, self._entry(launch)))

    def advance(self) -> str:
        """The function `advance`: one step of one state."""
        if self.dynamics is None:
            return self.step.state("advance")
        assert isinstance(self.step.code, Code)
        w = CWriter(self.bits)
        sizes, places, end = dict(self.step.inputs), [], 0
        nv = sizes["v"]
        for name, size in self.dynamics.inputs:  # what a stage computes, or numbers of the trajectory
            if name in self.numbers:
                places.append(array(name))
            else:
                places.append(f"Row{{at + {end}}}" if end else "Row{at}")
                end += size
        w.do(f"T at[{end}];")
        for k, code in enumerate(self.stages):
            w.do(f"T {array(f'a{k}')}[{nv}];")
            for name, x in w.emit(code, element).items():
                w.do(f"at[{name[1]}] = {x};")
            w.do(f"state({', '.join(places)}, Row{{{array(f'a{k}')}}}, tree, {', '.join(SCRATCH)});")
        w.run(self.step.code, element)
        return self.step.function("advance", w, looped=True)

    def _entry(self, launch: Launch) -> str:
        """The kernel.  States x = (q, v) are stored with trajectories side by side: out[stored][number][trajectory]."""
        sizes, threads = dict(self.step.inputs), launch.threads
        nq, nv = sizes["q"], sizes["v"]
        strided = "const T* __restrict__ {name}, const long long {name}_step, const long long {name}_stride"
        parameters = [strided.format(name=name) for name in ("q", "v", "tau")]
        if self.tabulated:
            parameters += [strided.format(name="table"), "const long long table_time"]
        parameters.append("const T* __restrict__ gain, const long long gain_step")
        parameters.append("const T* __restrict__ h, T* __restrict__ out")
        parameters.append("const long long count, const int steps, const int every")
        reads = {name: f"Read{{{name} + b * {name}_step, {name}_stride}}" for name in self.numbers}
        parameters += [strided.format(name=name) for name in self.numbers]
        own = "".join(f"{x}, " for x in reads.values())
        arrays = f"Row{{x}}, Row{{x + {nq}}}, Row{{u}}, Table<T>{{gain + b * gain_step}}, Table<T>{{h}}, {own}Row{{y}}"
        ends = self._ends(nq, nv, reads)
        parameters += ["int* __restrict__ why, int* __restrict__ when"] if ends else []
        parameters += [strided.format(name=name) for name in RESET] if self.reset else []
        before, head = [], f"long long b = (long long)blockIdx.x * {threads} + threadIdx.x"
        if self.dynamics:
            loop, scratch = self.dynamics.loop_text(threads)
            parameters += loop
            before += scratch
            arrays += f", tree, {', '.join(SCRATCH)}"
        add = " + table[b * table_step + t * table_time + k * table_stride]" if self.tabulated else ""
        for_k = "for (int k = 0; k < {0}; ++k)"
        lines = [
            *before,
            f"for ({head}; b < count; b += {'all' if self.dynamics else 'count'}) {{",
            f"  T x[{nq + nv}], y[{nq + nv}], torques[{nv}], u[{nv}];",
            f"  {for_k.format(nq)} x[k] = q[b * q_step + k * q_stride];",
            f"  {for_k.format(nv)} x[{nq} + k] = v[b * v_step + k * v_stride];",
            f"  {for_k.format(nv)} torques[k] = tau[b * tau_step + k * tau_stride];",
            "  int left = every;",
            "  T* to = out + b;",
            *["  int reason = 0, first = -1, t = -1, *because = why + b;", "  bool frozen = false;"][: 2 * bool(ends)],
            *ends,
            "#pragma unroll 1",
            f"  for ({'' if ends else 'int '}t = 0; t < steps; ++t) {{",
            f"    {for_k.format(nv)} u[k] = torques[k]{add};",
            f"    {'if (!frozen) ' * bool(ends)}advance({arrays});",
            f"    {'if (!frozen) ' * bool(ends)}{for_k.format(nq + nv)} x[k] = y[k];",
            *(f"  {line}" for line in ends),
            "    if (--left) continue;",
            "    left = every;",
            f"    {for_k.format(nq + nv)} to[k * count] = x[k];",
            f"    to += {nq + nv} * count;",
            *(["    *because = reason;", "    because += count;", *["    reason = 0;"] * self.reset] if ends else []),
            "  }",
            *["  when[b] = first;"] * bool(ends),
            "}",
        ]
        body = "\n".join(line if line.startswith("#") else f"  {line}" for line in lines)
        return f'extern "C" __global__ void {launch.bounds}\nkernel({", ".join(parameters)}) {{\n{body}\n}}\n'

    def _ends(self, nq: int, nv: int, reads: Mapping[str, str]) -> list[str]:
        """After step t: look whether a trajectory stops, and freeze it or set it back."""
        if self.ends is None:
            return []
        count, own = self.ends.shape[0], "".join(f"{reads[name]}, " for name, _ in self.ends.inputs[2:])
        lines = [f"  T gone[{count}];", f"  outside(Row{{x}}, Row{{x + {nq}}}, {own}Row{{gone}});"]
        lines.append("  bool stops = false;")
        lines.append(f"  for (int k = {count - 1}; k >= 0; --k) if (gone[k] > 0) {{ stops = true; reason = k + 1; }}")
        lines.append("  if (stops && first < 0) first = t + 1;")
        if self.reset:
            for name, start, size in zip(RESET, (0, nq), (nq, nv)):
                to = f"x[{start} + k] = {name}[b * {name}_step + k * {name}_stride]"
                lines.append(f"  if (stops) for (int k = 0; k < {size}; ++k) {to};")
        else:
            lines.append("  if (stops) frozen = true;")
        return ["  if (!frozen) {", *(f"  {line}" for line in lines), "  }"]


def _pitch(size: int, bits: int) -> int:
    """The distance from one row to the next in shared memory, in numbers.

    Rows are copied in pieces of 16 bytes.  If a row is a whole number of pieces, an odd number of them spreads the
    rows of neighbouring threads over all banks.
    """
    piece = 128 // bits
    return size + piece if size % (2 * piece) == 0 else size
