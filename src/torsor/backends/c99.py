"""Plain C99 for controllers: a function of one model as a header and a source file that need only libm.

The code repeats the CPU program operation by operation: the same multiply-adds (`fma` of libm) and the same
polynomials for sine, cosine and logarithm.  It allocates nothing and keeps no state.  Loops keep values from pass to
pass in a workspace that the caller owns; straight-line code needs no workspace.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends.c_language import SCRATCH, CMemory, CWriter, array, element, horner, turn_statements
from torsor.backends.elementary import EXPONENT, LN2, LOG, TRIG_LIMIT
from torsor.compiler.abi import loop_data, tree_data
from torsor.compiler.language import Int
from torsor.compiler.loops import Body, Loops
from torsor.compiler.trace import LoopCode
from torsor.files import made
from torsor.inputs import COTANGENT, PLACES
from torsor.model.joints import FORCE_UNITS, JOINTS
from torsor.model.model import Model

if TYPE_CHECKING:
    from torsor.compiler.request import Request

MARK = "Written by torsor"  # in the first lines of every file: files without it are never replaced
MOST_ROWS = 100  # most bodies in the table of the header
NUMBER = {64: "double", 32: "float"}
KEYWORDS = frozenset((
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while",
))  # fmt: skip
# the functions of math.h, which also exist with the suffixes f and l
MATH = frozenset((
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh", "erf",
    "erfc", "exp", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "frexp", "hypot",
    "ilogb", "ldexp", "lgamma", "llrint", "llround", "log", "log10", "log1p", "log2", "logb", "lrint", "lround",
    "modf", "nan", "nearbyint", "nextafter", "nexttoward", "pow", "remainder", "remquo", "rint", "round", "scalbln",
    "scalbn", "sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc", "j0", "j1", "jn", "y0", "y1", "yn", "gamma",
    "drem", "significand", "exp10", "pow10",
))  # fmt: skip


class C99Writer(CWriter):
    """The statements of a C99 function."""

    turn = "turn({x}, &{s}, &{c});"


# Names and comments --------------------------------------------------------------------------------------------


def identifier(*words: str) -> str:
    """A C identifier made of words in any alphabet."""
    text = "_".join(re.sub(r"[^A-Za-z0-9]+", "_", word).strip("_")[:40] for word in words).strip("_") or "model"
    return f"model_{text}" if text[0].isdigit() or text in KEYWORDS else text


def quoted(text: str) -> str:
    """A name in a form safe for comments: one line of ASCII without comment delimiters or trigraphs."""
    text = text if len(text) <= 80 else f"{text[:77]}..."
    text = "".join(x if x.isprintable() else " " for x in text).encode("ascii", "backslashreplace").decode()
    return f'"{harmless(text)}"'


def harmless(text: str) -> str:
    """A text that neither ends nor begins a comment, and contains no trigraph."""
    return re.sub(r"\*(?=/)|/(?=\*)|\?(?=\?)", r"\g<0> ", text)


def comment(lines: Sequence[str]) -> str:
    return "/* " + "\n".join(f" * {line}".rstrip() for line in lines)[3:] + "\n */\n"


# The functions that the code calls -----------------------------------------------------------------------------


@functools.cache
def functions(bits: int) -> Mapping[str, str]:
    """Definitions that a source may need before its function; each uses only those before it."""
    w, f = CWriter(bits), "" if bits == 64 else "f"
    mantissa, half_root, one = (52, 0x3FE6A09E667F3BCD, 0x3FF) if bits == 64 else (23, 0x3F3504F3, 0x7F)
    exponent, (high, low) = f"UINT{bits}_C(0x{EXPONENT[bits]:X})", LN2[bits]
    infinity, nan = w.const(float("inf")), w.const(float("nan"))
    bias = f"UINT{bits}_C(0x{(one << mantissa) - half_root:X})"
    return {
        "FMA": f"#define FMA(a, b, c) fma{f}(a, b, c)",
        "ABS": f"#define ABS(x) fabs{f}(x)",
        "SQRT": f"#define SQRT(x) sqrt{f}(x)",
        "MAX": "#define MAX(x, y) ((x) > (y) ? (x) : (y))",
        "INV": f"#define INV(x) ({w.const(1.0)} / (x))",
        "Bits": f"typedef union {{ T number; uint{bits}_t bits; }} Bits;",
        "down_scale": f"""\
/* a power of two that brings x into [2, 4) */
static T down_scale(const T x) {{
  Bits y;
  y.number = x;
  y.bits = {exponent} - (y.bits & {exponent});
  return y.number;
}}""",
        "LOG": f"""\
/* log x = k log 2 + log(1 + f), with sqrt(1/2) <= 1 + f < sqrt(2) */
static T LOG(const T x) {{
  Bits y;
  int k;
  T f, s, z, square, small;
  if (!(x > 0)) return x == 0 ? -{infinity} : {nan};
  if (!(x < {infinity})) return x;
  y.number = x;
  k = (int)((y.bits + {bias}) >> {mantissa}) - {one};
  y.bits -= (uint{bits}_t)k << {mantissa};
  f = y.number - {w.const(1.0)};
  s = f / (f + {w.const(2.0)});
  z = s * s;
  square = f * f * {w.const(0.5)};
  small = FMA(s, square + z * {horner(w, LOG[bits])}, (T)k * {w.const(low)});
  return (T)k * {w.const(high)} - ((square - small) - f);
}}""",
        "NEAR": f"static int NEAR(const T x) {{ return ABS(x) < {w.const(TRIG_LIMIT[bits])}; }}",
        "flip": f"""\
/* x with its sign changed in the third and fourth quadrants */
static T flip(const T x, const uint{bits}_t quadrant) {{
  Bits y;
  y.number = x;
  y.bits ^= (quadrant & 2) << {bits - 2};
  return y.number;
}}""",
        "turn": f"""\
/* sine and cosine of an angle for which NEAR holds */
static void turn(const T x, T *sine_of_x, T *cosine_of_x) {{
  Bits y;
  T s, c;
{turn_statements(bits, f"const uint{bits}_t quadrant = (y.number = shifted, y.bits);")}
  *sine_of_x = s;
  *cosine_of_x = c;
}}""",
        "far_turn": """\
/* the same for all other angles, infinities and NaN */
static void far_turn(const T x, T *sine_of_x, T *cosine_of_x) {
  *sine_of_x = (T)sin((double)x);
  *cosine_of_x = (T)cos((double)x);
}""",
    }  # fmt: skip


def prelude(bits: int, body: str) -> str:
    """The type T and the functions that the body uses."""
    used: list[str] = []
    known = functions(bits)
    for name in reversed(list(known)):
        if any(re.search(rf"\b{name}\b", x) for x in (body, *used)):
            used.insert(0, known[name])
    return "\n".join((f"typedef {NUMBER[bits]} T;", *used)) + "\n"


CONTRACTION = """\
#if defined(__FAST_MATH__)
#error "compile without -ffast-math (or -Ofast): it would change the results and lose NaN"
#endif
/* only the multiply-adds written here: every compiler then rounds in the same way */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize ("fp-contract=off")
#else
#pragma STDC FP_CONTRACT OFF
#endif
"""


# Loops over the bodies of one model ----------------------------------------------------------------------------


class StaticTables(CMemory):
    """The memory of loops over one model: its tables are constants in the source, its words are literals.

    If a column of the index is the same for all bodies, that number replaces it, and branches on it are omitted.
    """

    entries = "entries"

    def __init__(self, w: CWriter, request: Request, code: LoopCode, inputs: Sequence[tuple[str, int]]) -> None:
        super().__init__(w, code, inputs, request.shape)
        self.w = w
        shapes = [*request.input_shapes, request.shape]
        words, tables = tree_data(code, request.frames, shapes, request.bits, request.frame)
        self.n, self.nv, self.flags, self.start, self.second, self.product_count = map(int, words)
        index, columns, entries, products, numbers, self._base = tables
        self.first_entry = int(entries.flat[0])
        words_of_body = [field.name for field in fields(Body)][1:]  # after its number
        self._index = dict(zip(words_of_body, index.T))
        self.tables = {
            **{f"{name}_of": column for name, column in self._index.items()},
            "columns": columns, "entries": entries, "products": products, "numbers": numbers,
        }  # fmt: skip

    def body(self, i: Int) -> Body:
        return Body(i, *(self._word(name, column, i) for name, column in self._index.items()))

    def _word(self, name: str, column: NDArray[Any], i: Int) -> Int:
        if isinstance(i, int) or (column == column[0]).all():
            return int(column[i if isinstance(i, int) else 0])
        return f"{name}_of[{i}]"

    def number(self, body: Body, kind: int, name: str) -> str:
        return f"numbers[{self.w.index('add', body.numbers, self.numbers[kind].index(name))}]"

    def base(self, k: int) -> str:
        return self.w.const(self._base[k])

    def column(self, freedom: Int) -> Int:
        return f"columns[{freedom}]"

    def products(self, place: Int, words: int) -> list[Int]:
        return [f"products[{place} + {k}]" for k in range(words)]


# One function --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CFunction:
    """The text of a function of one model in C99."""

    request: Request
    name: str

    @classmethod
    def of(cls, request: Request, name: str | None = None) -> CFunction:
        return cls(request, name or identifier(request.model.name, request.algorithm.name))

    @property
    def bits(self) -> int:
        return self.request.bits

    @property
    def number(self) -> str:
        return NUMBER[self.bits]

    @functools.cached_property
    def inputs(self) -> list[tuple[str, int]]:
        """The name of each input and its count of numbers."""
        return list(self.request.input_sizes)

    @property
    def size(self) -> int:
        """The count of numbers of the output."""
        return prod(self.request.shape)

    @functools.cached_property
    def _written(self) -> tuple[str, dict[str, NDArray[Any]]]:
        """The statements, and the tables that they read."""
        request, w = self.request, C99Writer(self.bits)
        tables: dict[str, NDArray[Any]] = {}
        if isinstance(request.code, LoopCode):
            memory = StaticTables(w, request, request.code, self.inputs)
            Loops(w, request.code, memory).write()
            tables = memory.tables
        else:
            w.run(request.code, lambda entry: element(entry, request.shape, self.inputs))
        body = "\n".join(without_unread(w.lines)) + "\n"
        return body, {name: x for name, x in tables.items() if _uses(body, name)}

    @functools.cached_property
    def workspace(self) -> dict[str, int]:
        """The arrays of the workspace: the name of each and its count of numbers."""
        request = self.request
        if not isinstance(request.code, LoopCode):
            return {}
        layout, shapes = request.code.layout, [*request.input_shapes, request.shape]
        packing = loop_data(layout, request.frames, shapes, self.bits, request.frame).packing
        n = request.model.n
        sizes = n * layout.kept, (n + 1) * layout.handed, packing.count if packing else 0
        return {name: size for name, size in zip(SCRATCH, sizes) if _uses(self._written[0], name)}

    @property
    def workspace_bytes(self) -> int:
        return sum(self.workspace.values()) * self.bits // 8

    @property
    def table_bytes(self) -> int:
        return sum(x.size * (self.bits // 8 if x.dtype.kind == "f" else 4) for x in self._written[1].values())

    @property
    def stack_bytes(self) -> int:
        """The total size of all local values: the stack use without optimisation."""
        body = self._written[0]
        numbers = len(re.findall(r"^ *T \w+", body, re.M)) + len(re.findall(r"^ *T \w+, \w+;", body, re.M))
        return numbers * self.bits // 8 + 4 * len(re.findall(r"^ *(?:const )?int \w+", body, re.M))

    # -- the texts

    def header(self) -> str:
        guard, parameters = f"{self.name.upper()}_H", [f"const {self.number} *{name}" for name, _ in self.inputs]
        parameters.append(f"{self.number} *out")
        lines = [f"#define {self.macro(name)} {size}" for name, size in (*self.inputs, ("out", self.size))]
        if self.workspace:
            parameters.append(f"struct {self.name}_workspace *workspace")
            members = [f"  {self.number} {name}[{size}];" for name, size in self.workspace.items()]
            lines += ["", f"struct {self.name}_workspace {{", *members, "};"]
        prototype = f"void {self.name}({', '.join(parameters)});"
        return "\n".join((
            comment(self.about()), f"#ifndef {guard}", f"#define {guard}", "", *lines, "",
            "#ifdef __cplusplus", 'extern "C" {', "#endif", "", prototype, "",
            "#ifdef __cplusplus", "}", "#endif", "", "#endif", "",
        ))  # fmt: skip

    def source(self) -> str:
        return f'/* {MARK}; {self.name}.h describes this function. */\n#include "{self.name}.h"\n\n{self._definition()}'

    def text(self) -> str:
        """Header and source as one text."""
        return f"{self.header()}\n{self._definition()}"

    def _definition(self) -> str:
        body, tables = self._written
        w = CWriter(self.bits)
        parameters = [f"const T *{array(name)}" for name, _ in self.inputs] + ["T *out"]
        first = [f"(void){array(name)};" for name, _ in self.inputs if not _uses(body, array(name))]
        if self.workspace:
            parameters.append(f"struct {self.name}_workspace *workspace")
            first += [f"T *const {name} = workspace->{name};" for name in self.workspace]
        head = f"void {self.name}({', '.join(parameters)}) {{\n" + "".join(f"  {line}\n" for line in first)
        shown = "\n".join(_table(w, name, x) for name, x in tables.items())
        parts = ["#include <math.h>\n#include <stdint.h>\n", CONTRACTION, prelude(self.bits, body)]
        return "\n".join((*parts, *([shown] if shown else []), f"{head}{body}}}\n"))

    def macro(self, array_name: str) -> str:
        """The macro that holds the size of an array."""
        return f"{self.name}_{array_name}_SIZE".upper()

    # -- the comment of the header

    def about(self) -> list[str]:
        request, model = self.request, self.request.model
        counts = ", ".join(f"{n} {name}" for name, n in request.operations._asdict().items() if n)
        how = "loops over its bodies" if isinstance(request.code, LoopCode) else "straight-line code"
        lines = [
            f"{self.name}: {request.algorithm.name} of the model {quoted(model.name)}, {self.number}, {how}.",
            f"{MARK} {made()['torsor']}. Generated: change the model and export again instead of editing.",
            "",
            f"Operations, worst case: {counts or 'none'} (a multiply-add counts as one mul and one add).",
            f"Memory: {self.table_bytes} bytes of constant tables; {self.workspace_bytes} bytes of workspace; "
            f"about {self.stack_bytes} bytes of",
            "stack if every local value is kept there, less when the compiler optimises.",
            "Reentrant; allocates nothing; no global state. All loops have fixed bounds.",
            *(
                [f"Angles beyond {TRIG_LIMIT[self.bits]:g} rad call sin and cos of libm, which takes longer."]
                if request.operations.trig
                else []
            ),
            "A NaN or an infinity in the input gives a NaN or an infinity in the output.",
            "",
            "Arrays, in SI units; matrices row by row; spatial vectors angular first, in the body's frame:",
            *(f"  {name:<12} {size:>6} numbers: {meaning(name)}" for name, size in self.inputs),
            f"  {'out':<12} {self.size:>6} numbers: the result, shape {request.shape}; must not overlap the inputs",
        ]
        if parts := request.parts:
            shapes = ", ".join(f"{name} {shape}" for name, shape in parts.items())
            lines.append(f"  {'':<12} {'':>6} one after the other: {shapes}")
        if self.workspace:
            lines.append("  workspace: memory of the caller, one for each call that runs at a time; any content")
        return [*lines, "", *joint_table(model)]


def free_name(name: str) -> bool:
    """Whether a function may have this name: not a word of C or libm, and not a name that the files use."""
    own = {*SCRATCH, "T", "columns", "entries", "products", "numbers", *(f"{x.name}_of" for x in fields(Body))}
    texts = "\n".join((*functions(64).values(), *functions(32).values(), EXAMPLE))
    file_names = ("example", "readme")  # compared without case, as some file systems do
    return (
        re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,99}", name) is not None
        and name not in KEYWORDS | own | set(_NAME.findall(texts))
        and not MATH & {name, name[:-1]}
        and name.lower() not in file_names
    )


_ASSIGNMENT = re.compile(r" *(?:T )?(\w+) = (.*);")
_NAME = re.compile(r"\b[A-Za-z]\w*")


def without_unread(lines: Sequence[str]) -> list[str]:
    """The statements without those that set a number that is never read; compilers would warn about these.

    They remain where the outcome of a branch was known when the code was written.
    """
    reads: dict[str, int] = {}  # the number of reads of each name
    sets: dict[str, list[int]] = {}  # the lines that set it
    read_by: list[list[str]] = []
    for k, line in enumerate(lines):
        found = _ASSIGNMENT.fullmatch(line)
        if found:
            sets.setdefault(found[1], []).append(k)
        read_by.append(_NAME.findall(found[2] if found else line))
        for name in read_by[-1]:
            reads[name] = reads.get(name, 0) + 1
    unread = [name for name in sets if not reads.get(name)]
    removed: set[int] = set()
    while unread:
        for k in sets[unread.pop()]:
            removed.add(k)
            for name in read_by[k]:
                reads[name] -= 1
                if not reads[name] and name in sets:
                    unread.append(name)
    return [line for k, line in enumerate(lines) if k not in removed]


def _uses(body: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", body) is not None


def _table(w: CWriter, name: str, x: NDArray[Any]) -> str:
    """A constant array, written in short lines."""
    words = [w.const(y) if x.dtype.kind == "f" else str(y) for y in x.ravel().tolist()]
    per_line = 6 if x.dtype.kind == "f" else 20
    lines = ["  " + ", ".join(words[k : k + per_line]) for k in range(0, len(words), per_line)]
    kind = "T" if x.dtype.kind == "f" else "int"
    return f"static const {kind} {name}[{len(words)}] = {{\n" + ",\n".join(lines) + "\n};"


def meaning(name: str) -> str:
    if name.startswith(COTANGENT):
        return "the cotangent of the result"
    if name[0] == "d" and name[1:] in PLACES:
        return f"the tangent of {name[1:]}"
    known = {"external": "for each body the wrench (moment, force) that acts on it, at its origin", "q": "coordinates",
             "v": "velocities", "tau": "joint forces", "qdd": "accelerations", "b": "the right-hand side",
             "base_velocity": "the twist (angular, linear) of the base, in its frame",
             "base_acceleration": "the derivative of that twist, without gravity"}  # fmt: skip
    return known.get(name, "one number per degree of freedom")


def joint_table(model: Model) -> list[str]:
    """Which entries of q and v belong to which body, and their units."""
    lines = ["Bodies, their joints, and their entries of q and of v (and of all arrays with one number per freedom):"]
    for i in range(min(model.n, MOST_ROWS)):
        joint = JOINTS[model.joint[i]]
        q = _entries("q", int(model.q_start[i]), joint.coordinates, "")
        v = _entries("v", int(model.v_start[i]), joint.velocities, "/s")
        forces = ", ".join(dict.fromkeys(FORCE_UNITS[unit] for _, unit in joint.velocities))
        lines.append(f"  {i} {quoted(model.names[i])} {joint.name}: {q}; {v}; forces in {forces}")
    if model.n > MOST_ROWS:
        lines.append(f"  ... and {model.n - MOST_ROWS} more bodies, in the order of the model")
    return lines


def _entries(array_name: str, start: int, labels: Sequence[tuple[str, str]], rate: str) -> str:
    words = []
    for k, (label, unit) in enumerate(labels):
        measure = f"{unit}{rate}" if unit in FORCE_UNITS else ""
        words.append(f"{array_name}[{start + k}] {' '.join(x for x in (label, measure) if x)}".rstrip())
    return ", ".join(words)


# Test vectors and the example ----------------------------------------------------------------------------------


def vectors(function: CFunction, states: Sequence[NDArray[Any]], expected: NDArray[Any]) -> str:
    """A header with inputs and expected outputs as exact numbers; `states`: (count, ...) for each input."""
    name, count = function.name, len(expected)
    guard = f"{name.upper()}_VECTORS_H"
    lines = [f"/* {MARK}: inputs, and the outputs of torsor's CPU program, as exact hexadecimal numbers. */",
             f"#ifndef {guard}", f"#define {guard}", "", f"#define {name.upper()}_VECTORS {count}", ""]  # fmt: skip
    for (array_name, size), x in zip((*function.inputs, ("out", function.size)), (*states, expected)):
        rows = ",\n".join("  {" + ", ".join(map(_exact, row)) + "}" for row in x.reshape(count, size))
        lines.append(f"static const {function.number} {name}_vector_{array_name}[{count}][{size}] = {{\n{rows}\n}};")
    return "\n".join((*lines, "", "#endif", ""))


def _exact(x: Any) -> str:
    if not np.isfinite(x):
        return "NAN" if np.isnan(x) else "INFINITY" if x > 0 else "-INFINITY"
    return float(x).hex() + ("f" if x.dtype == np.float32 else "")


ULPS = 4  # the largest error that the example allows


EXAMPLE = """\
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "NAME.h"
#include "NAME_vectors.h"

int main(void) {
  static NUMBER out[OUT_SIZE];
  WORKSPACE
  double worst = 0.0;
  int k, i;
  for (k = 0; k < VECTORS; ++k) {
    double largest = 0.0, error = 0.0;
    int exponent;
    NAME(ARGUMENTS);
    for (i = 0; i < OUT_SIZE; ++i) {
      const double expected = (double)NAME_vector_out[k][i], found = (double)out[i];
      if (fabs(expected) > largest) largest = fabs(expected);
      if (!isnan(expected) != !isnan(found)) error = HUGE_VAL;
      else if (!isnan(expected) && found != expected) error = fmax(error, fabs(found - expected));
    }
    frexp(largest, &exponent);
    if (error > 0.0) worst = fmax(worst, error / ldexp((double)EPSILON, exponent - 1));
  }
  printf("NAME: %d states, largest error %g ulp\\n", VECTORS, worst);
  return worst <= ULPS.0 ? 0 : 1;
}
"""


def example(function: CFunction) -> str:
    """A program that runs the function on the test vectors."""
    name = function.name
    arguments = [f"{name}_vector_{array_name}[k]" for array_name, _ in function.inputs] + ["out"]
    words = {
        "NUMBER": function.number,
        "OUT_SIZE": function.macro("out"),
        "WORKSPACE": f"static struct {name}_workspace workspace;" if function.workspace else "",
        "VECTORS": f"{name.upper()}_VECTORS",
        "ARGUMENTS": ", ".join([*arguments, *(["&workspace"] if function.workspace else [])]),
        "EPSILON": "DBL_EPSILON" if function.bits == 64 else "FLT_EPSILON",
        "ULPS": str(ULPS),
    }
    about = comment([
        f"{MARK}: runs {name} on its test vectors.",
        "Prints the largest error in units of the last place (ulp) of the largest number of an output;",
        f"exits with 0 if it is at most {ULPS}.",
    ])  # fmt: skip
    text = re.sub(r"\b(?:" + "|".join(words) + r")\b", lambda found: words[found[0]], EXAMPLE)
    return about + re.sub(r"\bNAME(?=\b|_vector)", name, text).replace("  \n", "")


def readme(function: CFunction) -> str:
    name = function.name
    return f"""\
{MARK}.

  {name}.h          what it computes, its arrays, its cost: read this first
  {name}.c          the function, in C99; it needs libm and nothing else
  {name}_vectors.h  inputs and expected outputs
  example.c         runs the function on them

Compile and run the example:

  cc -std=c99 -O2 example.c {name}.c -lm -o example && ./example

It prints the largest error and exits with 0 if that is at most {ULPS} ulp. Where the processor has fused
multiply-adds, tell the compiler (x86: -mfma or -march=native); without them libm emulates each, slowly.
"""
