"""Kernels for many points on bodies: positions of points from poses, and sums of forces on points.

Each is the inner loop of a generalised ufunc, like all kernels, but its loop runs over tables of the points of each
body and their positions. The tables come with the call's `data`, so the code is compiled once for all machines. The
numbers of a point fill a vector; sums are taken in the order of the tables on every processor. The arrays of a state
must be contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends import codegen
from torsor.backends.gufunc import gufunc

Array = NDArray[Any]

# data: the number of bodies, and the addresses of `start`, `point` and `place` (see `point_kernels`)
_OPEN = """
{declared}
define void @kernel(ptr %args, ptr %dimensions, ptr %steps, ptr %data) nounwind {{
entry:
  {save}
  %states = load i64, ptr %dimensions
  %args1 = getelementptr ptr, ptr %args, i64 1
  %from0 = load ptr, ptr %args
  %to0 = load ptr, ptr %args1
  %steps1 = getelementptr i64, ptr %steps, i64 1
  %from_step = load i64, ptr %steps
  %to_step = load i64, ptr %steps1
  %data1 = getelementptr i64, ptr %data, i64 1
  %data2 = getelementptr i64, ptr %data, i64 2
  %data3 = getelementptr i64, ptr %data, i64 3
  %bodies = load i64, ptr %data
  %start = load ptr, ptr %data1
  %point = load ptr, ptr %data2
  %place = load ptr, ptr %data3
  br label %state
state:
  %s = phi i64 [0, %entry], [%s1, %state_end]
  %left = icmp slt i64 %s, %states
  br i1 %left, label %state_begin, label %done
state_begin:
  %from_at = mul i64 %s, %from_step
  %to_at = mul i64 %s, %to_step
  %from = getelementptr i8, ptr %from0, i64 %from_at
  %to = getelementptr i8, ptr %to0, i64 %to_at
  br label %body
body:
  %b = phi i64 [0, %state_begin], [%b1, %body_end]
  %more = icmp slt i64 %b, %bodies
  br i1 %more, label %body_begin, label %state_end
body_begin:
  %first_at = getelementptr i64, ptr %start, i64 %b
  %first = load i64, ptr %first_at
  %last_at = getelementptr i64, ptr %first_at, i64 1
  %last = load i64, ptr %last_at
"""
_POINT = """
  %p_at = getelementptr <4 x double>, ptr %place, i64 %k
  %p = load <4 x double>, ptr %p_at, align 8
  %a_at = getelementptr i64, ptr %point, i64 %k
  %a = load i64, ptr %a_at
"""
_CLOSE = """
  %b1 = add i64 %b, 1
  br label %body
state_end:
  %s1 = add i64 %s, 1
  br label %state
done:
  {restore}
  ret void
}}
"""


def _splat(name: str, vector: str, k: int) -> str:
    indices = ", ".join([f"i32 {k}"] * 4)
    return f"  %{name} = shufflevector <4 x double> {vector}, <4 x double> poison, <4 x i32> <{indices}>\n"


def _shuffle(name: str, one: str, other: str, *entries: int) -> str:
    indices = ", ".join(f"i32 {k}" for k in entries)
    return f"  %{name} = shufflevector <4 x double> %{one}, <4 x double> %{other}, <4 x i32> <{indices}>\n"


def _placed() -> str:
    """x = c0 p0 + c1 p1 + c2 p2 + c3, with the columns c of the pose (4, 4) of a body."""
    rows = "  %pose = getelementptr [16 x double], ptr %from, i64 %b\n" + "".join(
        f"  %row{i}_at = getelementptr double, ptr %pose, i64 {4 * i}\n"
        f"  %row{i} = load <4 x double>, ptr %row{i}_at, align 8\n"
        for i in range(3)
    )
    columns = _shuffle("low", "row0", "row1", 0, 4, 1, 5) + _shuffle("high", "row0", "row1", 2, 6, 3, 7)
    columns += _shuffle("c0", "low", "row2", 0, 1, 4, 4) + _shuffle("c1", "low", "row2", 2, 3, 5, 5)
    columns += _shuffle("c2", "high", "row2", 0, 1, 6, 6) + _shuffle("c3", "high", "row2", 2, 3, 7, 7)
    sums = "".join(
        _splat(f"p{j}", "%p", j) + f"  %t{j} = fmul <4 x double> %c{j}, %p{j}\n" for j in range(3)
    ) + "".join(
        f"  %x{j} = fadd <4 x double> %{one}, %{other}\n"
        for j, one, other in ((0, "t0", "t1"), (1, "x0", "t2"), (2, "x1", "c3"))
    )
    return f"""{rows}{columns}
  br label %points
points:
  %k = phi i64 [%first, %body_begin], [%k1, %one]
  %some = icmp slt i64 %k, %last
  br i1 %some, label %one, label %body_end
one:{_POINT}{sums}
  %out = getelementptr [3 x double], ptr %to, i64 %a
  %xy = shufflevector <4 x double> %x2, <4 x double> poison, <2 x i32> <i32 0, i32 1>
  %z = extractelement <4 x double> %x2, i32 2
  store <2 x double> %xy, ptr %out, align 8
  %out2 = getelementptr double, ptr %out, i64 2
  store double %z, ptr %out2, align 8
  %k1 = add i64 %k, 1
  br label %points
body_end:"""


def _pulled() -> str:
    """sum f, then the rows of sum f p^T, of the points of every body."""
    zero = "<double 0.0, double 0.0, double 0.0, double 0.0>"
    begin = "".join(f"  %sum{i} = phi <4 x double> [{zero}, %body_begin], [%next{i}, %one]\n" for i in range(3))
    add = "".join(
        f"  %f{i}_at = getelementptr double, ptr %force, i64 {i}\n  %f{i} = load double, ptr %f{i}_at, align 8\n"
        f"  %lane{i} = insertelement <4 x double> poison, double %f{i}, i32 0\n"
        + _splat(f"all{i}", f"%lane{i}", 0)
        + f"  %t{i} = fmul <4 x double> %all{i}, %p\n  %next{i} = fadd <4 x double> %sum{i}, %t{i}\n"
        for i in range(3)
    )
    write = "".join(
        f"  %e{i}_{j} = extractelement <4 x double> %sum{i}, i32 {j}\n"
        f"  %e{i}_{j}_at = getelementptr double, ptr %out, i64 {i if j == 3 else 3 + 3 * i + j}\n"
        f"  store double %e{i}_{j}, ptr %e{i}_{j}_at, align 8\n"
        for i in range(3)
        for j in range(4)
    )
    return f"""
  br label %points
points:
  %k = phi i64 [%first, %body_begin], [%k1, %one]
{begin}
  %some = icmp slt i64 %k, %last
  br i1 %some, label %one, label %body_end
one:{_POINT}
  %force = getelementptr [3 x double], ptr %from, i64 %a
{add}
  %k1 = add i64 %k, 1
  br label %points
body_end:
  %out = getelementptr [12 x double], ptr %to, i64 %b
{write}"""


def _module(work: str) -> str:
    """A kernel; on x86 it restores the floating-point flags, so that NumPy does not warn."""
    flags = codegen.host().x86
    words = {
        "declared": "declare void @llvm.x86.sse.stmxcsr(ptr)\ndeclare void @llvm.x86.sse.ldmxcsr(ptr)" if flags else "",
        "save": "%flags = alloca i32\n  call void @llvm.x86.sse.stmxcsr(ptr %flags)" if flags else "",
        "restore": "call void @llvm.x86.sse.ldmxcsr(ptr %flags)" if flags else "",
    }
    return _OPEN.format(**words) + work + _CLOSE.format(**words)


def point_kernels(body: Array, place: Array, n: int) -> tuple[Any, Any]:
    """Two gufuncs: poses (n, 4, 4) -> positions of the points (m, 3), and forces (m, 3) -> sums (n, 12) per body.

    body     (m,) the body of each point, or -1: such points get no position, and their forces are not summed
    place    (m, 3) the position of each point in the frame of its body
    """
    point = np.argsort(body, kind="stable").astype(np.int64)
    point = point[body[point] >= 0]
    start = np.searchsorted(body[point], np.arange(n + 1)).astype(np.int64)
    padded = np.append(place[point], np.ones((len(point), 1)), axis=1)
    data = np.array([n, *(table.ctypes.data for table in (start, point, padded))], np.int64)
    shapes = (f"({n},4,4)->({len(body)},3)", f"({len(body)},3)->({n},12)")
    owned = data, start, point, padded
    placed, pulled = (_gufunc(work, shape, owned) for work, shape in zip((_placed, _pulled), shapes))
    return placed, pulled


def _gufunc(work: Callable[[], str], shape: str, owned: tuple[Array, ...]) -> Any:
    """A kernel with its tables; the first table is its data."""
    loaded = codegen.load(codegen.name_of(f"points|{work.__name__}"), lambda: _module(work()))
    return gufunc(loaded.address, owned[0].ctypes.data, shape, "float64", work.__name__[1:], "", (loaded, *owned))
