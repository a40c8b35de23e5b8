"""The prelude of CUDA kernels: numbers, their functions, and arrays.

Multiply-adds are formed as on the CPU; an option prevents the compiler from forming others.  So results equal the CPU's
bit for bit, except for logarithms and angles beyond `TRIG_LIMIT`.
"""

from __future__ import annotations

from torsor.backends.c_language import CWriter, turn_statements
from torsor.backends.elementary import EXPONENT, HALF_PI, ROUND, TRIG_LIMIT

TRIGONOMETRY = ("accurate", "fast")
# Compiler options: only our multiply-adds, and divisions and roots rounded as IEEE requires.
OPTIONS = ("--std=c++17", "-fmad=false", "-prec-div=true", "-prec-sqrt=true")


def prelude(bits: int, trig: str) -> str:
    """Numbers, their functions, and arrays, as one long text of CUDA C."""
    w = CWriter(bits)
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

    if trig == "fast" and bits == 32:  # the special function units, after a reduction to [-pi, pi]
        two_pi, magic = [w.const(4 * x) for x in HALF_PI[bits][:2]], w.const(ROUND[bits])
        turn = f"""\
  const T k = FMA(x, {w.const(0.15915494309189535)}, {magic}) - {magic};
  const T r = FMA(-k, {two_pi[1]}, FMA(-k, {two_pi[0]}, x));
  s = __sinf(r);
  c = __cosf(r);"""
    else:
        turn = turn_statements(bits, f"const int quadrant = {low};")
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
struct SineCosine {{ T s, c; }};
// an angle beyond the range of `turn`, inf or nan: rare, and kept out of the way
__device__ __noinline__ SineCosine far(const T x) {{ return {{(T)sin((double)x), (T)cos((double)x)}}; }}
__device__ __forceinline__ void far_turn(const T x, T& s, T& c) {{ const SineCosine t = far(x); s = t.s; c = t.c; }}
struct Read {{
  const T* p; long long stride;
  __device__ __forceinline__ T operator[](const int k) const {{ return __ldg(p + k * stride); }}
}};
__device__ __forceinline__ Read from(const Read x, const int k) {{ return Read{{x.p + k * x.stride, x.stride}}; }}
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
struct Tree {{
  int n, nv, flags, start, second, products; Table<int> index, columns, entries, product; Table<T> numbers, base;
}};
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
