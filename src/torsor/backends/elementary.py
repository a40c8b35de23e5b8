"""Sine, cosine and logarithm as instructions on vectors of states; CUDA uses the same constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torsor.model.portable import COSINE, SINE

if TYPE_CHECKING:
    from torsor.backends.llvm import LLVMWriter, Target

# sin and cos on [-pi/4, pi/4]: odd and even minimax polynomials, in powers of r^2 (fdlibm's for double,
# Cephes' for single), and pi/2 in three parts (Cody & Waite) for the reduction.
SIN = {
    64: SINE,
    32: (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4),
}  # fmt: skip
COS = {
    64: COSINE,
    32: (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5),
}  # fmt: skip
HALF_PI = {
    64: (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33),
    32: (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058944e-15),
}
LOG = {
    64: (6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
         1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01),
    32: (0.66666662693, 0.40000972152, 0.28498786688, 0.24279078841),
}  # fmt: skip
LN2 = {64: (6.93147180369123816490e-01, 1.90821492927058770002e-10), 32: (6.9313812256e-01, 9.0580006145e-06)}
ROUND = {64: 6755399441055744.0, 32: 12582912.0}  # 1.5 * 2^52, 1.5 * 2^23: adding it rounds to an integer
# Beyond this |angle| three parts of pi/2 are not accurate enough, and the C library's sin and cos are called.
TRIG_LIMIT = {64: 1e9, 32: 1e4}


def sincos(w: LLVMWriter, angles: Sequence[str]) -> list[tuple[str, str]]:
    """(sin, cos) of every angle: by our own code, or by the C library for angles beyond its range.

    The choice is made per lane and angle, so the bits of a state do not depend on its neighbours.
    """
    T = w.target
    limit = T.const(TRIG_LIMIT[T.bits])
    quick, near, all_near = [], [], ""
    for x in angles:
        quick.append(_sincos(w, x))
        near.append(w.op(f"fcmp olt {T.vector} {w.operation('abs', x)}, {limit}"))
        all_near = w.op(f"and {T.bools} {all_near}, {near[-1]}") if all_near else near[-1]
    if T.lanes > 1:
        w.declare(f"i1 @llvm.vector.reduce.and.v{T.lanes}i1({T.bools})")
        all_near = w.op(f"call i1 @llvm.vector.reduce.and.v{T.lanes}i1({T.bools} {all_near})")
    before, far, done = w.block, w.new_label("far_sincos"), w.new_label("sincos_done")
    w.branch(all_near, done, far)
    w.start(far)
    mixed = [
        tuple(w.op(f"select {T.bools} {ok}, {T.vector} {x}, {T.vector} {y}") for x, y in zip(own, library))
        for ok, own, library in zip(near, quick, _library_sincos(w, angles))
    ]
    far = w.block
    w.jump(done)
    w.start(done)
    return [
        (w.merge(T.vector, (s1, before), (s2, far)), w.merge(T.vector, (c1, before), (c2, far)))
        for (s1, c1), (s2, c2) in zip(quick, mixed)
    ]


def _sincos(w: LLVMWriter, x: str) -> tuple[str, str]:
    """Cody & Waite's reduction to [-pi/4, pi/4], one polynomial each, and the quadrant from the low bits."""
    T, const = w.target, w.target.const
    shifted = w.fma(x, const(0.6366197723675814), const(ROUND[T.bits]))
    k = w.arithmetic("fsub", shifted, const(ROUND[T.bits]))
    quadrant = w.op(f"bitcast {T.vector} {shifted} to {T.ints}")
    minus_k = w.neg(k)
    r = x
    for part in HALF_PI[T.bits]:
        r = w.fma(minus_k, const(part), r)
    z = w.arithmetic("fmul", r, r)
    sine = w.fma(w.arithmetic("fmul", _horner(w, SIN[T.bits], z), z), r, r)
    square = w.arithmetic("fmul", z, z)
    cosine = w.fma(square, _horner(w, COS[T.bits], z), w.fma(z, const(-0.5), const(1.0)))
    odd = w.op(f"icmp ne {T.ints} {w.integer('and', quadrant, T.integer(1))}, {T.integer(0)}")
    s = w.op(f"select {T.bools} {odd}, {T.vector} {cosine}, {T.vector} {sine}")
    c = w.op(f"select {T.bools} {odd}, {T.vector} {sine}, {T.vector} {cosine}")
    return _signed(w, s, quadrant), _signed(w, c, w.integer("add", quadrant, T.integer(1)))


def _horner(w: LLVMWriter, coefficients: Sequence[float], z: str) -> str:
    p = w.target.const(coefficients[-1])
    for a in coefficients[-2::-1]:
        p = w.fma(p, z, w.target.const(a))
    return p


def _signed(w: LLVMWriter, x: str, quadrant: str) -> str:
    """x with its sign changed in the third and fourth quadrants: bit 1 moved onto the sign bit."""
    T = w.target
    sign = w.integer("shl", w.integer("and", quadrant, T.integer(2)), T.integer(T.bits - 2))
    bits = w.integer("xor", w.op(f"bitcast {T.vector} {x} to {T.ints}"), sign)
    return w.op(f"bitcast {T.ints} {bits} to {T.vector}")


def _library_sincos(w: LLVMWriter, angles: Sequence[str]) -> list[tuple[str, str]]:
    T = w.target
    count = len(angles) * T.lanes
    room = "%far_angles"
    w.far_room = max(w.far_room, 3 * count * T.size)
    step = T.lanes * T.size
    for k, x in enumerate(angles):
        w.store(x, w.address(room, k * step))
    s, c = w.address(room, count * T.size), w.address(room, 2 * count * T.size)
    w.do(f"call void @far_sincos_f{T.bits}(ptr {room}, ptr {s}, ptr {c}, i64 {count})")
    places = [k * step for k in range(len(angles))]
    return [(w.load(w.address(s, place)), w.load(w.address(c, place))) for place in places]


EXPONENT = {64: 0x7FF0000000000000, 32: 0x7F800000}  # the exponent bits of a number


def down_scale(w: LLVMWriter, x: str) -> str:
    """2^-k with x 2^-k in [2, 4): infinity's exponent bits minus those of x, used as exponent bits."""
    T = w.target
    exponent = w.integer("and", w.op(f"bitcast {T.vector} {x} to {T.ints}"), T.integer(EXPONENT[T.bits]))
    power = w.integer("sub", T.integer(EXPONENT[T.bits]), exponent)
    return w.op(f"bitcast {T.ints} {power} to {T.vector}")


def log(w: LLVMWriter, x: str) -> str:
    """log x = k log 2 + log(1 + f), sqrt(1/2) <= 1 + f < sqrt(2); with s = f / (2 + f) an even series in s.

    Subnormal numbers do not occur: they would be pivots of joints that move no mass.
    """
    T, const = w.target, w.target.const
    mantissa, half_root = (52, 0x3FE6A09E667F3BCD) if T.bits == 64 else (23, 0x3F3504F3)
    high, low = LN2[T.bits]
    bits = w.op(f"bitcast {T.vector} {x} to {T.ints}")
    k = w.integer("ashr", w.integer("sub", bits, T.integer(half_root)), T.integer(mantissa))
    reduced = w.integer("sub", bits, w.integer("shl", k, T.integer(mantissa)))
    f = w.arithmetic("fsub", w.op(f"bitcast {T.ints} {reduced} to {T.vector}"), const(1.0))
    power = w.op(f"sitofp {T.ints} {k} to {T.vector}")
    s = w.arithmetic("fdiv", f, w.arithmetic("fadd", f, const(2.0)))
    z = w.arithmetic("fmul", s, s)
    R = w.arithmetic("fmul", z, _horner(w, LOG[T.bits], z))
    half_square = w.arithmetic("fmul", w.arithmetic("fmul", f, f), const(0.5))
    small = w.fma(s, w.arithmetic("fadd", half_square, R), w.arithmetic("fmul", power, const(low)))
    rest = w.arithmetic("fsub", w.arithmetic("fsub", half_square, small), f)
    result = w.arithmetic("fsub", w.arithmetic("fmul", power, const(high)), rest)
    positive = w.op(f"fcmp ogt {T.vector} {x}, {const(0.0)}")
    finite = w.op(f"fcmp olt {T.vector} {x}, {const(float('inf'))}")
    zero = w.op(f"fcmp oeq {T.vector} {x}, {const(0.0)}")
    wrong = w.op(f"select {T.bools} {zero}, {T.vector} {const(float('-inf'))}, {T.vector} {const(float('nan'))}")
    large = w.op(f"select {T.bools} {positive}, {T.vector} {x}, {T.vector} {wrong}")
    usual = w.op(f"and {T.bools} {positive}, {finite}")
    return w.op(f"select {T.bools} {usual}, {T.vector} {result}, {T.vector} {large}")


def far_sincos(target: Target) -> str:
    """The C library's sin and cos, one number after the other: for angles beyond TRIG_LIMIT, inf and nan."""
    T, single = target.scalar, target.bits == 32
    widen = "  %y = fpext float %x to double\n" if single else ""
    narrow = "  %s = fptrunc double %sd to float\n  %c = fptrunc double %cd to float\n" if single else ""
    x, s, c = ("%y", "%sd", "%cd") if single else ("%x", "%s", "%c")
    return f"""
declare double @sin(double)
declare double @cos(double)
define private void @far_sincos_f{target.bits}(ptr %xs, ptr %ss, ptr %cs, i64 %n) noinline nounwind {{
entry:
  br label %one
one:
  %i = phi i64 [0, %entry], [%j, %one]
  %px = getelementptr {T}, ptr %xs, i64 %i
  %ps = getelementptr {T}, ptr %ss, i64 %i
  %pc = getelementptr {T}, ptr %cs, i64 %i
  %x = load {T}, ptr %px, align {target.size}
{widen}  {s} = call double @sin(double {x})
  {c} = call double @cos(double {x})
{narrow}  store {T} %s, ptr %ps, align {target.size}
  store {T} %c, ptr %pc, align {target.size}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %one, label %done
done:
  ret void
}}
"""
