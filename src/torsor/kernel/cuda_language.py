"""CUDA C as tapes are written in it: its numbers, functions and arrays (the prelude), and its statements.

Every operation of a tape becomes one statement.  Multiply-adds are formed as on the CPU and the compiler is told to
form no others, so results are the CPU's, bit for bit, but for logarithms and angles beyond `TRIG_LIMIT`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from torsor.kernel.elementary import COS, EXPONENT, HALF_PI, ROUND, SIN, TRIG_LIMIT
from torsor.kernel.language import Language
from torsor.kernel.tape import Code

TRIGONOMETRY = ("accurate", "fast")
# Compiler options: no multiply-adds but ours, and divisions and roots rounded as IEEE asks.
OPTIONS = ("--std=c++17", "-fmad=false", "-prec-div=true", "-prec-sqrt=true")
OPERATIONS = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "neg": "-{}",
    "inv": "INV({})", "sqrt": "SQRT({})", "log": "LOG({})",
    "abs": "ABS({})", "max": "MAX({}, {})", "down_scale": "down_scale({})",
    "zero": "ABS({}) * 0",
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
        text = repr(float(x)) if self.bits == 64 else f"{float(np.float32(x))!r}f"
        return text if x >= 0 else f"({text})"

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

    def run(self, code: Code, place_of: Callable[[Any], str]) -> None:
        """A tape from memory to memory; `place_of` says where its inputs and outputs are."""
        for name, x in self.emit(code, place_of).items():
            self.do(f"{place_of(name)} = {x};")

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
                self.do(f"if (!NEAR({x})) far_turn({x}, {s}, {c});")
        return results


def element(name: Any, shape: Sequence[int] = (0,)) -> str:
    """An entry of an array, by name and indices: `external` has six numbers a body, `out` is flat or of that shape."""
    first, *indices = name
    sizes = shape if first == "out" else (0, 6) if first == "external" else (0,)
    place = 0
    for size, index in zip(sizes, indices):
        place = place * size + index
    return f"{array(first)}[{place}]"


def array(name: str) -> str:
    """What an input is called in CUDA C, where no name of ours begins like this; and the output."""
    return name if name == "out" else f"in_{name}"


# The prelude ---------------------------------------------------------------------------------------------------


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
    exponent = f"0x{EXPONENT[bits]:X}"
    scale = {
        64: f"__longlong_as_double({exponent}ll - (__double_as_longlong(x) & {exponent}ll))",
        32: f"__int_as_float({exponent} - (__float_as_int(x) & {exponent}))",
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
#define ABS(x) fabs{suffix}(x)
#define MAX(x, y) ((x) > (y) ? (x) : (y))
__device__ __forceinline__ T down_scale(const T x) {{ return {scale}; }}
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
struct Tree {{ int n, flags, from; Table<int> index; Table<T> numbers, base; }};
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
