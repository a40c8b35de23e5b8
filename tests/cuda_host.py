"""Runs a whole CUDA kernel on the host: a C++ compiler and a few definitions make its text a program of threads."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np
import processes

from torsor.backends.cuda import Kernel, Launch
from torsor.compiler.abi import loop_data, tree_data
from torsor.motion.cuda_loops import RolloutKernel

LANGUAGE = ["-std=c++20", "-O1", "-fno-strict-aliasing", "-ffp-contract=off", "-w"]
LIBRARY = ["-shared", "-fPIC", "-pthread"]
THREADS = 64  # a block: two warps
ONE_AT_A_TIME = threading.Lock()  # the blocks of a kernel share memory that is the library's
SHIM = """
#include <math.h>
#include <pthread.h>
#include <string.h>
template <class A> A min(A a, A b) { return b < a ? b : a; }
// C++ has barriers and threads, too, whose headers take three times as long to read as all kernels
struct Barrier {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
  int expected, waiting = 0, phase = 0;
  void open() { waiting = 0; ++phase; pthread_cond_broadcast(&turn); }
  void wait() {
    pthread_mutex_lock(&lock);
    int now = phase;
    if (++waiting == expected) open();
    while (phase == now) pthread_cond_wait(&turn, &lock);
    pthread_mutex_unlock(&lock);
  }
  void leave() {
    pthread_mutex_lock(&lock);
    if (--expected == waiting) open();
    pthread_mutex_unlock(&lock);
  }
};
struct Index { unsigned x; };
static thread_local Index threadIdx, blockIdx;
static Index gridDim;
static thread_local Barrier* together;
struct float4 { float x, y, z, w; };
#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __align__(n) alignas(n)
#define __restrict__
#define __launch_bounds__(a, b)
#define __shared__
inline void __syncwarp() { together->wait(); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __frcp_rn(float x) { return 1.0f / x; }
template <class A> A __ldg(const A* p) { return *p; }
inline int __float_as_int(float x) { int i; memcpy(&i, &x, 4); return i; }
inline float __int_as_float(int i) { float x; memcpy(&x, &i, 4); return x; }
inline int __double2loint(double x) { long long i; memcpy(&i, &x, 8); return (int)i; }
inline int __double2hiint(double x) { long long i; memcpy(&i, &x, 8); return (int)(i >> 32); }
inline long long __double_as_longlong(double x) { long long i; memcpy(&i, &x, 8); return i; }
inline double __longlong_as_double(long long i) { double x; memcpy(&x, &i, 8); return x; }
inline double __hiloint2double(int h, int l) {
  long long i = ((long long)h << 32) | (unsigned)l; double x; memcpy(&x, &i, 8); return x; }
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long x) {
  return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST); }
alignas(16) unsigned char shared[1 << 18];
"""
DRIVER = """
extern "C" void launch_{kernel}(int blocks, int threads, {parameters}) {{
  gridDim.x = blocks;
  for (int b = 0; b < blocks; ++b) {{
    Barrier barrier;
    barrier.expected = threads;
    auto run = [&](int t) {{
      threadIdx.x = t; blockIdx.x = b; together = &barrier;
      {kernel}({names});
      barrier.leave();
    }};
    struct Thread {{ decltype(run)* run; int t; pthread_t id; }} block[1024];
    for (int t = 0; t < threads; ++t) {{
      block[t].run = &run; block[t].t = t;
      pthread_create(&block[t].id, nullptr, [](void* p) -> void* {{
        Thread* thread = static_cast<Thread*>(p);
        (*thread->run)(thread->t);
        return nullptr;
      }}, &block[t]);
    }}
    for (int t = 0; t < threads; ++t) pthread_join(block[t].id, nullptr);
  }}
}}
"""


@functools.cache
def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("clang++")


def run(kernel: Kernel, arrays, framed=None, frame=None, staged=False):
    """The output of a kernel for arrays (states, ...); `staged`: through shared memory."""
    dtype = np.dtype(f"float{kernel.bits}")
    count = len(arrays[0])
    out = np.full((count, *kernel.shape), np.nan, dtype)
    views, values = [*(np.ascontiguousarray(x, dtype) for x in arrays), out], []
    for x in views:
        values += [x, np.prod(x.shape[1:], dtype=int), 1]
    values.append(count)
    blocks = -(-count // THREADS)
    if kernel.looped:
        blocks -= 1  # fewer than there are states: each thread takes more than one
        values += _tree(kernel, framed, [x.shape[1:] for x in views], frame, blocks)
    launch(kernel.source(Launch(THREADS), kernel.stageable(THREADS) if staged else None), blocks, values)
    return out


def run_rollout(kernel: RolloutKernel, arrays, gain, dt, steps, every, framed=None, numbers=()):
    """(trajectories, stored, numbers) of a rollout from arrays q, v and commands (trajectories, 1 or steps, width).

    numbers: further inputs of a step, one row per trajectory
    """
    dtype = np.dtype(f"float{kernel.bits}")
    q, v, tau = (np.ascontiguousarray(x, dtype) for x in arrays)
    count, blocks = len(q), -(-len(q) // THREADS)
    out = np.full((steps // every, q.shape[1] + v.shape[1], count), np.nan, dtype)
    values = [y for x in (q, v, tau) for y in (x, np.prod(x.shape[1:], dtype=int), 1)]
    values += [
        *({"tau": tau.shape[2] if tau.shape[1] > 1 else 0}.get(name, 0) for name in kernel.in_time),
        np.ascontiguousarray(gain, dtype),
        gain.shape[-1] if gain.ndim > 1 else 0,
        np.array([dt], dtype),
        out,
        count,
        np.int32(steps),
        np.int32(every),
    ]
    numbers = [np.ascontiguousarray(x, dtype) for x in numbers]
    values += [y for x in numbers for y in (x, np.prod(x.shape[1:], dtype=int), 1)]
    if kernel.dynamics:
        added = [v.shape[1:]] * (len(kernel.dynamics.inputs) - 3 - len(numbers))
        shapes = [q.shape[1:], v.shape[1:], v.shape[1:], *added, *(x.shape[1:] for x in numbers), v.shape[1:]]
        values += _tree(kernel.dynamics, framed, shapes, None, blocks)
    launch(kernel.source(Launch(THREADS)), blocks, values)
    return out.transpose(2, 0, 1)


def _tree(kernel, framed, shapes, frame, blocks):
    words, tables = tree_data(kernel.code, framed, shapes, kernel.bits, frame)
    data = loop_data(kernel.code.layout, framed, shapes, kernel.bits, frame)
    size = int(data.words[0]) // (kernel.bits // 8) + kernel.handed * (framed.model.n + 1)
    scratch = np.full(size * blocks * THREADS, np.nan, f"float{kernel.bits}")
    return [*words, *tables, scratch]


def launch(source, blocks, values, threads=THREADS, kernel="kernel"):
    """Run that kernel of that text; `values` are its arguments."""
    function = library(source)[f"launch_{kernel}"]
    function.argtypes = [ctypes.c_int, ctypes.c_int, *map(_ctype, values)]
    with ONE_AT_A_TIME:
        function(blocks, threads, *(x.ctypes.data if isinstance(x, np.ndarray) else int(x) for x in values))


class Pointer(int):
    """The address of an array."""


def _ctype(x):
    if isinstance(x, np.ndarray | Pointer):
        return ctypes.c_void_p
    return ctypes.c_int if isinstance(x, np.int32) else ctypes.c_longlong


@functools.cache
def library(source: str) -> ctypes.CDLL:
    """The kernels of a text, each behind a function launch_..., as a library of the host."""
    drivers = []
    for kernel, parameters in re.findall(r"__global__[^{;]*\n(\w+)\((.*?)\) \{", source):
        names = ", ".join(p.split()[-1] for p in parameters.split(","))
        drivers.append(DRIVER.format(kernel=kernel, parameters=parameters, names=names))
    source = source.replace("extern __shared__ __align__(16) unsigned char shared[];", "")
    with tempfile.TemporaryDirectory() as folder:
        text, binary = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
        text.write_text(SHIM + source + "".join(drivers))
        processes.call(compiler(), *LANGUAGE, *LIBRARY, text, "-o", binary, check=True)
        return ctypes.CDLL(str(binary))
