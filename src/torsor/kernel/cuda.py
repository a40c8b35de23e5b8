"""Tapes to CUDA C: one thread a state.

The text has three parts: a prelude (arithmetic, sine and cosine, arrays), a function `state` that is the algorithm
on one state, and the kernel that gives every thread its state.  Multiply-adds are formed as on the CPU
(`language.fuse`) and the compiler is told to form no others, so results are the CPU's, bit for bit, but for logarithms
and angles beyond `TRIG_LIMIT`.

`state` is either one straight line for one model, or loops over its bodies that mirror `loops.py`: there what a
body keeps lies in scratch memory, number by number, the threads side by side.

An array is seen as (states, numbers of a state): state b has its number k at  pointer[b * step + k * stride].
Neighbouring threads must read neighbouring memory, so an array whose states are rows (stride 1) is staged: a block
copies its rows as they come into shared memory, each warp its own, and each thread takes its state from there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from torsor.kernel.data import BASE_BRANCHES, BRANCHES, CHAINED, FIRST, INDEX_WORDS, IS_TREE
from torsor.kernel.elementary import COS, HALF_PI, ROUND, SIN, TRIG_LIMIT
from torsor.kernel.language import Language
from torsor.kernel.tape import Code
from torsor.kernel.trace import LoopCode, LoopColumns, LoopPass

TRIGONOMETRY = ("accurate", "fast")
# Compiler options: no multiply-adds but ours, and divisions and roots rounded as IEEE asks.
OPTIONS = ("--std=c++17", "-fmad=false", "-prec-div=true", "-prec-sqrt=true")
SHARED_BYTES = 96 * 1024  # the most shared memory a block may take for staging: two such blocks fit a multiprocessor
REGISTERS = 65536  # of a multiprocessor


@dataclass(frozen=True)
class Launch:
    """Threads a block, and the most registers a thread may use."""

    threads: int = 64
    registers: int = 255

    @property
    def bounds(self) -> str:
        """As the compiler wants it: the least number of blocks that must fit a multiprocessor."""
        return f"__launch_bounds__({self.threads}, {max(1, REGISTERS // (self.threads * self.registers))})"


@dataclass(frozen=True)
class Kernel:
    """What decides the text of a kernel, apart from its launch and the layout of its arrays."""

    code: Code | LoopCode
    inputs: tuple[tuple[str, int], ...]  # name, numbers a state
    shape: tuple[int, ...]  # of the output of a state
    bits: int
    trig: str = "accurate"

    @property
    def arrays(self) -> tuple[tuple[str, int], ...]:
        return (*self.inputs, ("out", prod(self.shape)))

    @property
    def looped(self) -> bool:
        return isinstance(self.code, LoopCode)

    @property
    def scratch_rows(self) -> int:
        """Loops: how many numbers a body keeps."""
        return self.code.layout.kept if isinstance(self.code, LoopCode) else 0

    def stageable(self, threads: int) -> tuple[bool, ...]:
        """Which arrays a block may stage, if their layout asks for it: as many as fit shared memory."""
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

    def state(self) -> str:
        """The function `state`: the algorithm on one state."""
        w = Writer(self.bits)
        if isinstance(self.code, LoopCode):
            _LoopWriter(w, self.code, self.shape).write()
        else:
            for name, x in w.emit(self.code, lambda name: _element(name, self.shape)).items():
                w.do(f"{_element(name, self.shape)} = {x};")
        types = [f"A{k}" for k in range(len(self.arrays))]
        parameters = [f"const {t} {name}" for t, (name, _) in zip(types, self.arrays)]
        if self.looped:
            parameters += ["const Tree tree", "const Strided work", "const Strided hands"]
        head = f"template <{', '.join(f'class {t}' for t in types)}>\n__device__ __forceinline__ void state("
        return f"{head}{', '.join(parameters)}) {{\n" + "\n".join(w.lines) + "\n}\n"

    def loop_text(self, threads: int) -> tuple[list[str], list[str]]:
        """What a kernel of loops takes beside its arrays, and what it makes of that."""
        parameters = [
            "const int n, const int flags, const int from, const int* __restrict__ index",
            "const T* __restrict__ numbers, const T* __restrict__ gravity, T* __restrict__ scratch",
        ]
        return parameters, [
            "const Tree tree{n, flags, from, {index}, {numbers}, {gravity}};",
            f"const long long all = (long long)gridDim.x * {threads};",
            f"T* const mine = scratch + (long long)blockIdx.x * {threads} + threadIdx.x;",
            "const Strided work{mine, all};",
            f"const Strided hands{{mine + (long long)n * {self.scratch_rows} * all, all}};",
        ]

    def _entry(self, launch: Launch, staged: Sequence[bool]) -> str:
        """The kernel itself."""
        parameters, before, load, store, views = [], [], [], [], []
        at, threads = 0, launch.threads
        for (name, size), is_staged in zip(self.arrays, staged):
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
        if self.looped:  # scratch memory is for so many threads: each takes state after state
            loop, scratch = self.loop_text(threads)
            parameters += loop
            before += scratch
            views += ["tree", "work", "hands"]
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
    """Many steps of an integrator: `advance`, a step of one state, in a loop over time.

    step      the kernel whose text is `advance`: q, v, tau, gain, h -> the next (q, v)
    stages    where the accelerations are not written out in it: the code of (q, v, tau) at each evaluation
    dynamics  the loop kernel that finds the accelerations then
    """

    step: Kernel  # of a Code
    stages: tuple[Code, ...]
    dynamics: Kernel | None
    tabulated: bool  # there is a table of torques

    @property
    def bits(self) -> int:
        return self.step.bits

    def source(self, launch: Launch | None = None) -> str:
        launch = launch or Launch()
        parts = [prelude(self.bits, self.step.trig), self.dynamics.state() if self.dynamics else "", self.advance()]
        return "\n".join((*parts, self._entry(launch)))

    def advance(self) -> str:
        """The function `advance`: one step of one state."""
        if self.dynamics is None:
            return self.step.state().replace("void state(", "void advance(")
        assert isinstance(self.step.code, Code)
        w = Writer(self.bits)
        sizes = dict(self.step.inputs)
        nq, nv = sizes["q"], sizes["v"]
        w.do(f"T at[{nq + 2 * nv}];")
        for k, code in enumerate(self.stages):
            w.do(f"T a{k}[{nv}];")
            for name, x in w.emit(code, lambda name: _element(name, (0,))).items():
                w.do(f"at[{name[1]}] = {x};")
            places = ", ".join(f"Row{{{x}}}" for x in ("at", f"at + {nq}", f"at + {nq + nv}", f"a{k}"))
            w.do(f"state({places}, tree, work, hands);")
        for name, x in w.emit(self.step.code, lambda name: _element(name, (0,))).items():
            w.do(f"{_element(name, (0,))} = {x};")
        names = [name for name, _ in self.step.arrays]
        types = ", ".join(f"class A{k}" for k in range(len(names)))
        parameters = [f"const A{k} {name}" for k, name in enumerate(names)]
        parameters += ["const Tree tree", "const Strided work", "const Strided hands"]
        head = f"template <{types}>\n__device__ __forceinline__ void advance({', '.join(parameters)})"
        return f"{head} {{\n" + "\n".join(w.lines) + "\n}\n"

    def _entry(self, launch: Launch) -> str:
        """States x = (q, v) are stored with the trajectories side by side: out[stored][number][trajectory]."""
        sizes, threads = dict(self.step.inputs), launch.threads
        nq, nv = sizes["q"], sizes["v"]
        parameters = [
            f"const T* __restrict__ {name}, const long long {name}_step, const long long {name}_stride"
            for name in ("q", "v", "tau")
        ]
        if self.tabulated:
            parameters.append("const T* __restrict__ table, const long long table_step, const long long table_stride")
            parameters.append("const long long table_time")
        parameters.append("const T* __restrict__ gain, const T* __restrict__ h, T* __restrict__ out")
        parameters.append("const long long count, const int steps, const int every")
        arrays = f"Row{{x}}, Row{{x + {nq}}}, Row{{u}}, Table<T>{{gain}}, Table<T>{{h}}, Row{{y}}"
        before, head = [], f"long long b = (long long)blockIdx.x * {threads} + threadIdx.x"
        if self.dynamics:
            loop, scratch = self.dynamics.loop_text(threads)
            parameters += loop
            before += scratch
            arrays += ", tree, work, hands"
        add = " + table[b * table_step + t * table_time + k * table_stride]" if self.tabulated else ""
        for_k = "for (int k = 0; k < {0}; ++k)"
        lines = [
            *before,
            f"for ({head}; b < count; b += {'all' if self.dynamics else 'count'}) {{",
            f"  T x[{nq + nv}], y[{nq + nv}], held[{nv}], u[{nv}];",
            f"  {for_k.format(nq)} x[k] = q[b * q_step + k * q_stride];",
            f"  {for_k.format(nv)} x[{nq} + k] = v[b * v_step + k * v_stride];",
            f"  {for_k.format(nv)} held[k] = tau[b * tau_step + k * tau_stride];",
            "  int left = every;",
            "  T* to = out + b;",
            "#pragma unroll 1",
            "  for (int t = 0; t < steps; ++t) {",
            f"    {for_k.format(nv)} u[k] = held[k]{add};",
            f"    advance({arrays});",
            f"    {for_k.format(nq + nv)} x[k] = y[k];",
            "    if (--left) continue;",
            "    left = every;",
            f"    {for_k.format(nq + nv)} to[k * count] = x[k];",
            f"    to += {nq + nv} * count;",
            "  }",
            "}",
        ]
        body = "\n".join(line if line.startswith("#") else f"  {line}" for line in lines)
        return f'extern "C" __global__ void {launch.bounds}\nkernel({", ".join(parameters)}) {{\n{body}\n}}\n'


def _pitch(size: int, bits: int) -> int:
    """Numbers from a row to the next in shared memory.

    Rows are copied in pieces of 16 bytes.  Where a row is a whole number of pieces, an odd number of them spreads the
    rows of neighbouring threads over all banks.
    """
    piece = 128 // bits
    return size + piece if size % (2 * piece) == 0 else size


def _element(name: Any, shape: Sequence[int]) -> str:
    """An entry of an array, by name and indices: `external` has six numbers a body, `out` its shape."""
    first, *indices = name
    if first == "external":
        return f"external[{6 * indices[0] + indices[1]}]"
    place = 0
    for size, index in zip(shape if first == "out" else (0,), indices):
        place = place * size + index
    return f"{first}[{place}]"


# The prelude -------------------------------------------------------------------------------------------------


def prelude(bits: int, trig: str) -> str:
    """Numbers, their functions, and arrays."""
    w = Writer(bits)
    number = {64: "double", 32: "float"}[bits]
    suffix = "" if bits == 64 else "f"
    reciprocal = "1.0 / x" if bits == 64 else "__frcp_rn(x)" if trig == "accurate" else "__fdividef(1.0f, x)"
    flip = {
        64: "__hiloint2double(__double2hiint(x) ^ ((quadrant & 2) << 30), __double2loint(x))",
        32: "__int_as_float(__float_as_int(x) ^ ((quadrant & 2) << 30))",
    }[bits]
    low = {64: "__double2loint(shifted)", 32: "__float_as_int(shifted)"}[bits]

    def horner(coefficients: Sequence[float]) -> str:
        text = w.const(coefficients[-1])
        for a in coefficients[-2::-1]:
            text = f"FMA({text}, z, {w.const(a)})"
        return text

    part = [w.const(x) for x in HALF_PI[bits]]
    magic = w.const(ROUND[bits])
    if trig == "fast" and bits == 32:  # the special function units, after a reduction to [-pi, pi]
        two_pi = [w.const(4 * x) for x in HALF_PI[bits][:2]]
        turn = f"""\
  const T k = FMA(x, {w.const(0.15915494309189535)}, {magic}) - {magic};
  const T r = FMA(-k, {two_pi[1]}, FMA(-k, {two_pi[0]}, x));
  s = __sinf(r);
  c = __cosf(r);"""
    else:  # Cody & Waite's reduction to [-pi/4, pi/4], a polynomial each, and the quadrant by bits
        turn = f"""\
  const T shifted = FMA(x, {w.const(0.6366197723675814)}, {magic});
  const T k = shifted - {magic};
  const int quadrant = {low};
  const T r = FMA(-k, {part[2]}, FMA(-k, {part[1]}, FMA(-k, {part[0]}, x)));
  const T z = r * r;
  const T sine = FMA({horner(SIN[bits])} * z, r, r);
  const T cosine = FMA(z * z, {horner(COS[bits])}, FMA(z, {w.const(-0.5)}, {w.const(1.0)}));
  const bool odd = quadrant & 1;
  s = flip(odd ? cosine : sine, quadrant);
  c = flip(odd ? sine : cosine, quadrant + 1);"""
    return f"""\
typedef {number} T;
#define FMA(a, b, c) __fma{suffix}_rn(a, b, c)
#define LOG(x) log{suffix}(x)
#define SQRT(x) sqrt{suffix}(x)
#define NEAR(x) (fabs{suffix}(x) < {w.const(TRIG_LIMIT[bits])})
__device__ __forceinline__ T INV(const T x) {{ return {reciprocal}; }}
__device__ __forceinline__ T flip(const T x, const int quadrant) {{ return {flip}; }}
__device__ __forceinline__ void turn(const T x, T& s, T& c) {{
{turn}
}}
struct Turn {{ T s, c; }};
// an angle beyond the range of `turn`, inf or nan: rare, and kept out of the way
__device__ __noinline__ Turn far(const T x) {{ return {{(T)sin((double)x), (T)cos((double)x)}}; }}
__device__ __forceinline__ void far_turn(const T x, T& s, T& c) {{ const Turn t = far(x); s = t.s; c = t.c; }}
struct Read {{
  const T* p; long long stride;
  __device__ __forceinline__ T operator[](const int k) const {{ return __ldg(p + k * stride); }}
}};
struct Strided {{
  T* p; long long stride;
  __device__ __forceinline__ T& operator[](const int k) const {{ return p[k * stride]; }}
}};
struct Row {{
  T* p;
  __device__ __forceinline__ T& operator[](const int k) const {{ return p[k]; }}
}};
template <class Number> struct Table {{
  const Number* p;
  __device__ __forceinline__ Number operator[](const int k) const {{ return __ldg(p + k); }}
}};
struct Tree {{ int n, flags, from; Table<int> index; Table<T> numbers, gravity; }};
// 16 bytes from global to shared memory, without waiting where the GPU can; then wait for all of them.
__device__ __forceinline__ void copy_piece(float4* to, const float4* from) {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const unsigned place = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(place), "l"(from) : "memory");
#else
  *to = *from;
#endif
}}
__device__ __forceinline__ void wait_for_copies() {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  __syncwarp();
}}
// A warp's rows of N numbers, from global to shared memory and back, PITCH apart there; whole warps in pieces.
template <int N, int PITCH>
__device__ __forceinline__ int place_of(const int e) {{
  constexpr int row = N * sizeof(T) / 16, pitch = PITCH * sizeof(T) / 16;
  return PITCH == N ? e : e / row * pitch + e % row;
}}
template <int N, int PITCH>
__device__ __forceinline__ void load_rows(T* tile, const T* from, const long long rows) {{
  constexpr int pieces = 2 * N * sizeof(T);
  const int lane = threadIdx.x % 32;
  if (rows >= 32 && (size_t)from % 16 == 0) {{
#pragma unroll
    for (int k = 0; k < (pieces + 31) / 32; ++k) {{
      const int e = k * 32 + lane;
      if (pieces % 32 && e >= pieces) break;
      copy_piece(reinterpret_cast<float4*>(tile) + place_of<N, PITCH>(e), reinterpret_cast<const float4*>(from) + e);
    }}
  }} else {{
    for (int e = lane; e < min(rows, 32ll) * N; e += 32) tile[e / N * PITCH + e % N] = from[e];
  }}
}}
template <int N, int PITCH>
__device__ __forceinline__ void store_rows(const T* tile, T* to, const long long rows) {{
  constexpr int pieces = 2 * N * sizeof(T);
  const int lane = threadIdx.x % 32;
  if (rows >= 32 && (size_t)to % 16 == 0) {{
#pragma unroll
    for (int k = 0; k < (pieces + 31) / 32; ++k) {{
      const int e = k * 32 + lane;
      if (pieces % 32 && e >= pieces) break;
      reinterpret_cast<float4*>(to)[e] = reinterpret_cast<const float4*>(tile)[place_of<N, PITCH>(e)];
    }}
  }} else {{
    for (int e = lane; e < min(rows, 32ll) * N; e += 32) to[e] = tile[e / N * PITCH + e % N];
  }}
}}
"""


# Statements --------------------------------------------------------------------------------------------------


OPERATIONS = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "neg": "-{}",
    "inv": "INV({})", "sqrt": "SQRT({})", "log": "LOG({})",
    "fmadd": "FMA({}, {}, {})", "fmsub": "FMA({}, {}, -{})", "fnmadd": "FMA(-{}, {}, {})",
}  # fmt: skip


class Writer(Language):
    """The statements of a function being written."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.lines: list[str] = []
        self.depth = 1
        self._values = 0

    def do(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def let(self, text: str) -> str:
        """A new number.  (Not a const one: with those, compile time grows exponentially with the tape.)"""
        self._values += 1
        self.do(f"T t{self._values} = {text};")
        return f"t{self._values}"

    def variables(self, values: Sequence[str]) -> list[str]:
        """New numbers that will change."""
        names = []
        for x in values:
            self._values += 1
            names.append(f"x{self._values}")
            self.do(f"T x{self._values} = {x};")
        return names

    def set(self, names: Sequence[str], values: Sequence[str]) -> None:
        for name, x in zip(names, values):
            if name != x:
                self.do(f"{name} = {x};")

    def const(self, x: float) -> str:
        if self.bits == 32:
            text = repr(float(np.float32(x)))
            return f"{text}f" if x >= 0 else f"({text}f)"
        return repr(float(x)) if x >= 0 else f"({float(x)!r})"

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.do(f"{head} {{".lstrip())
        self.depth += 1
        yield
        self.depth -= 1
        self.do("}")

    def operation(self, op: str, *operands: str) -> str:
        return self.let(OPERATIONS[op].format(*operands))

    def emit(self, code: Code, value_of: Callable[[Any], str]) -> dict[Any, str]:
        return super().emit(code, lambda name: self.let(value_of(name)))

    def sincos(self, angles: Sequence[str]) -> list[tuple[str, str]]:
        results = []
        for x in angles:
            self._values += 1
            s, c = f"s{self._values}", f"c{self._values}"
            self.do(f"T {s}, {c};")
            self.do(f"turn({x}, {s}, {c});")
            results.append((s, c))
        self.do(f"const bool near{self._values} = {' & '.join(f'NEAR({x})' for x in angles)};")
        with self.block(f"if (!near{self._values})"):
            for x, (s, c) in zip(angles, results):
                self.do(f"far_turn({x}, {s}, {c});")
        return results


# Loops over bodies -------------------------------------------------------------------------------------------


class _LoopWriter:
    """Mirrors `loops._LoopWriter`; see there what the flags mean and what goes through memory."""

    def __init__(self, w: Writer, code: LoopCode, shape: tuple[int, ...]) -> None:
        self.w, self.code, self.shape = w, code, shape
        self.slots, self.row = code.slots, code.layout.kept
        self.handed = code.layout.handed

    def write(self) -> None:
        arrived: list[str] = []
        for p in self.code.passes:
            arrived = self._pass(p)
        if self.code.columns and self.code.algorithm.kind == "matrix":
            self._matrix(self.code.columns)
        elif self.code.columns:
            self._clear()
            self.w.do("const int from = tree.from;")
            self._climb(self.code.columns, "from", "0")
        if self.code.finish:
            values = dict(zip((("near", k) for k in self.code.passes[-1].live), arrived))
            for name, x in self.w.emit(self.code.finish, lambda name: values.get(name) or self._base(name)).items():
                self.w.do(f"{_element(name, self.shape)} = {x};")

    # -- what codes read and write

    def _base(self, name: Any) -> str:
        return f"tree.gravity[{name[2]}]" if name[0] == "base" else f"{name[0]}[{name[1]}]"

    def _slot(self, i: str, name: Hashable) -> str:
        return f"work[{i} * {self.row} + {self.slots[name]}]"

    def _hand(self, i: str, k: int) -> str:
        """Where body i (-1: the base) hands on through memory."""
        return f"hands[({i} + 1) * {self.handed} + {k}]"

    def _at(self, i: str, *fields: str) -> None:
        """Read what the index tells of a body, as i_kind, i_parent, ..."""
        for k, field in enumerate(("kind", "parent", "q", "v", "flags", "freedoms", "numbers")):
            if field in fields:
                self.w.do(f"const int {i}_{field} = tree.index[{i} * {INDEX_WORDS} + {k}];")

    def _reader(self, i: str, near: dict[Any, str], kind: int) -> Callable[[Any], str]:
        def read(name: Any) -> str:
            first = name[0]
            if first == "near":
                return near[name]
            if first == "kept":
                return self._slot(i, name)
            if first == "number":
                return f"tree.numbers[{i}_numbers + {self.code.numbers[kind].index(name[1])}]"
            if first == "external":
                return f"external[{i} * 6 + {name[1]}]"
            return f"{first}[{i}_{'q' if first == 'q' else 'v'} + {name[1]}]"

        return read

    def _write_outputs(self, i: str, values: dict[Any, str]) -> None:
        kind, shape = self.code.algorithm.kind, self.shape
        for name, x in values.items():
            if name[0] == "kept":
                self.w.do(f"{self._slot(i, name)} = {x};")
            elif name[0] == "out" and kind == "joint":
                self.w.do(f"out[{i}_v + {name[1]}] = {x};")
            elif name[0] == "out" and kind == "body":
                place = _element(("out", 0, *name[1:]), shape)[4:-1]
                self.w.do(f"out[{i} * {prod(shape[1:])} + {place}] = {x};")
            elif name[0] == "out" and kind == "path":
                self.w.do(f"out[{name[1] * shape[1]} + {i}_v + {name[2]}] = {x};")
            elif name[0] in ("out", "lower"):
                here, columns = f"({i}_v + {name[1]})", shape[1]
                if name[0] == "out":
                    self.w.do(f"out[{here} * {columns} + column] = {x};")
                if name[0] == "lower" or self.code.algorithm.symmetric:
                    self.w.do(f"out[column * {columns} + {here}] = {x};")

    def _dispatch(self, selector: str, cases: Sequence[tuple[int, int, Code]], i: str, near: dict[Any, str],
                  live: Sequence[int]) -> list[str]:  # fmt: skip
        """Run the code of the case (case, kind, code) that the selector names; what it hands on."""
        hand = self.w.variables(["0"] * len(live))
        for position, (case, kind, code) in enumerate(cases):
            head = f"{'else ' if position else ''}if ({selector} == {case})" if len(cases) > 1 else ""
            with self.w.block(head):
                values = self.w.emit(code, self._reader(i, near, kind))
                self._write_outputs(i, values)
                self.w.set(hand, [values[("hand", k)] for k in live])
        return hand

    # -- passes

    def _pass(self, p: LoopPass) -> list[str]:
        w = self.w
        values = w.emit(p.start, self._base)
        start = [values[("near", k)] for k in p.live]
        carried = w.variables(start)
        if p.outward:
            if start:
                with w.block(f"if (tree.flags & {IS_TREE})"):
                    w.set([self._hand("-1", k) for k in range(len(start))], start)
            with w.block("for (int i = 0; i < tree.n; i += 1)"):
                self._outward(p, carried)
            return []
        with w.block("for (int i = tree.n - 1; i >= 0; i -= 1)"):
            self._inward(p, carried, start)
        with w.block(f"if (tree.flags & {BASE_BRANCHES})"):  # other roots than body 0 arrived in memory
            self._add_memory(carried, "-1")
        return carried

    def _add_memory(self, values: Sequence[str], i: str) -> None:
        self.w.set(values, [f"{x} + {self._hand(i, k)}" for k, x in enumerate(values)])

    def _outward(self, p: LoopPass, carried: Sequence[str]) -> None:
        w = self.w
        self._at("i", "kind", "parent", "q", "v", "flags", "numbers")
        if carried:
            with w.block(f"if (!(i_flags & {CHAINED}))"):
                w.set(carried, [self._hand("i_parent", k) for k in range(len(carried))])
        near = dict(zip((("near", k) for k in p.live), carried))
        hand = self._dispatch("i_kind", _cases(p.codes), "i", near, p.live)
        if hand:
            with w.block(f"if (i_flags & {BRANCHES})"):
                w.set([self._hand("i", k) for k in range(len(hand))], hand)
        w.set(carried, hand)

    def _inward(self, p: LoopPass, carried: Sequence[str], start: Sequence[str]) -> None:
        w = self.w
        self._at("i", "kind", "parent", "q", "v", "flags", "numbers")
        if carried:
            with w.block(f"if (i_flags & {BRANCHES})"):
                self._add_memory(carried, "i")
        near = dict(zip((("near", k) for k in p.live), carried))
        hand = self._dispatch("i_kind", _cases(p.codes), "i", near, p.live)
        if not hand:
            return
        with w.block(f"if (i_flags & {CHAINED})"):
            w.set(carried, hand)
        with w.block("else"):
            with w.block(f"if (!(i_flags & {FIRST}))"):
                self._add_memory(hand, "i_parent")
            w.set([self._hand("i_parent", k) for k in range(len(hand))], hand)
            w.set(carried, start)

    # -- matrices

    def _clear(self) -> None:
        """Zeros into the whole output: what no climb reaches is zero."""
        with self.w.block(f"for (int k = 0; k < {prod(self.shape)}; k += 1)"):
            self.w.do("out[k] = 0;")

    def _matrix(self, c: LoopColumns) -> None:
        """Every body, every freedom of it: one column."""
        w = self.w
        if c.outward is None:
            with w.block(f"if (tree.flags & {IS_TREE})"):
                self._clear()
        with w.block("for (int j = 0; j < tree.n; j += 1)"):
            self._at("j", "freedoms")
            with w.block("for (int freedom = 0; freedom < j_freedoms; freedom += 1)"):
                w.do(f"const int column = tree.index[j * {INDEX_WORDS} + 3] + freedom;")
                if c.rest:
                    with w.block("for (int k = 0; k < tree.n; k += 1)"):
                        for name in c.rest:
                            if name in self.slots:
                                w.do(f"{self._slot('k', name)} = 0;")
                self._climb(c, "j", "freedom")
                if c.outward:
                    self._pass(c.outward)

    def _climb(self, c: LoopColumns, start: str, freedom: str) -> None:
        w = self.w
        self._at(start, "kind", "parent", "q", "v", "numbers")
        starts = [(8 * kind + k, kind, code) for (kind, k), code in c.starts.items()]
        hand = self._dispatch(f"{start}_kind * 8 + {freedom}", starts, start, {}, c.live)
        w.do(f"int above = {start}_parent;")
        with w.block("while (above >= 0)"):
            self._at("above", "kind", "parent", "q", "v", "numbers")
            near = dict(zip((("near", k) for k in c.live), hand))
            w.set(hand, self._dispatch("above_kind", _cases(c.codes), "above", near, c.live))
            w.do("above = above_parent;")


def _cases(codes: Sequence[Code]) -> list[tuple[int, int, Code]]:
    return [(kind, kind, code) for kind, code in enumerate(codes)]
