"""CasADi's external C API around exported functions: value, Jacobian, gradient and Hessian of one node.

`casadi.external` and code that CasADi generates find a function F and its derivatives by name: F, jac_F, adj1_F and
jac_adj1_F, each with functions beside it that describe its arguments.  Arguments are arrays of the entries that are not
structural zeros, column by column.  A missing input means zeros, a missing output is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torsor.backends import c99
from torsor.backends.c99 import CFunction
from torsor.dynamics.blocks import Block, Blocks, BlockTable, Portion
from torsor.errors import ArgumentError
from torsor.inputs import COTANGENT

SUFFIX = "casadi"  # of the name of F: the exported function itself has the name without it
PER_LINE = 20

HEAD = """\
#include <stddef.h>
INCLUDES
#ifndef casadi_real
#define casadi_real double
#endif
#ifndef casadi_int
#define casadi_int long long int
#endif
#ifndef CASADI_SYMBOL_EXPORT
#if defined(_WIN32) || defined(__WIN32__) || defined(__CYGWIN__)
#define CASADI_SYMBOL_EXPORT __declspec(dllexport)
#else
#define CASADI_SYMBOL_EXPORT
#endif
#endif

/* what missing inputs point to */
static const casadi_real none[MOST] = {0};
"""

FUNCTION = """\
/* NAME(INPUTS) -> (OUTPUTS) */
TABLES
CASADI_SYMBOL_EXPORT int NAME(const casadi_real **arg, casadi_real **res, casadi_int *iw, casadi_real *w, int mem) {
BODY
}

CASADI_SYMBOL_EXPORT casadi_int NAME_n_in(void) { return N_IN; }
CASADI_SYMBOL_EXPORT casadi_int NAME_n_out(void) { return N_OUT; }
CASADI_SYMBOL_EXPORT const char *NAME_name_in(casadi_int i) { return i >= 0 && i < N_IN ? NAME_ins[i] : NULL; }
CASADI_SYMBOL_EXPORT const char *NAME_name_out(casadi_int i) { return i >= 0 && i < N_OUT ? NAME_outs[i] : NULL; }
CASADI_SYMBOL_EXPORT const casadi_int *NAME_sparsity_in(casadi_int i) {
  return i >= 0 && i < N_IN ? NAME_patterns_in[i] : NULL;
}
CASADI_SYMBOL_EXPORT const casadi_int *NAME_sparsity_out(casadi_int i) {
  return i >= 0 && i < N_OUT ? NAME_patterns_out[i] : NULL;
}
CASADI_SYMBOL_EXPORT int NAME_work(casadi_int *n_arg, casadi_int *n_res, casadi_int *n_iw, casadi_int *n_w) {
  if (n_arg) *n_arg = N_IN;
  if (n_res) *n_res = N_OUT;
  if (n_iw) *n_iw = 0;
  if (n_w) *n_w = WORK;
  return 0;
}
"""


@dataclass(frozen=True)
class Argument:
    """An input or output of an API function: a matrix of which the entries of `block` are stored; None: none."""

    name: str
    shape: tuple[int, int]
    block: Block | None

    @property
    def words(self) -> list[int]:
        """The sparsity as CasADi reads it: rows, columns, and 1 if dense, else compressed columns."""
        if self.block is None:
            return [*self.shape, *[0] * (self.shape[1] + 1)]
        if self.block.is_dense:
            return [*self.shape, 1]
        return [*self.shape, *self.block.starts.tolist(), *self.block.rows.tolist()]


class CasadiExternal:
    """The files of a function and its derivatives behind CasADi's API."""

    def __init__(self, blocks: Blocks, name: str) -> None:
        if blocks.has_quaternions:
            raise ArgumentError(
                f'api="casadi" differentiates by q, and {blocks.model!r} has quaternions, whose derivatives here have '
                "one number fewer; use ts.to_casadi, or joints of angles"
            )
        self.blocks, self.name = blocks, name

    @cached_property
    def tables(self) -> dict[str, BlockTable]:
        """The functions of the API."""
        blocks, name = self.blocks, f"{self.name}_{SUFFIX}"
        found = {name: blocks.value}
        if blocks.has_derivatives:
            found[f"jac_{name}"] = blocks.jacobian
        if blocks.has_gradient:
            found[f"adj1_{name}"] = blocks.gradient
            found[f"jac_adj1_{name}"] = blocks.hessian
        return found

    @cached_property
    def functions(self) -> dict[str, CFunction]:
        """The C functions that they call, by the name of the portion."""
        portions = {part.name: part for table in self.tables.values() for part in table.parts}
        return {
            name: CFunction.of(part.program.request, self.name if name == "value" else f"{self.name}_{name}")
            for name, part in portions.items()
        }

    def files(self) -> dict[str, str]:
        """The text of each file except those of the function itself."""
        own = [function for name, function in self.functions.items() if name != "value"]
        texts = {f"{f.name}.h": f.header() for f in own} | {f"{f.name}.c": f.source() for f in own}
        return texts | {f"{self.name}_{SUFFIX}.c": self.source()}

    def source(self) -> str:
        name = f"{self.name}_{SUFFIX}"
        about = [
            f"{name}: {self.name} and its derivatives behind CasADi's external API, for one node.",
            f"{c99.MARK}.",
            "",
            f'casadi.external("{name}", "./lib{name}.so") takes the library of these files; README.txt makes it.',
        ]
        includes = "\n".join(f'#include "{f.name}.h"' for f in self.functions.values())
        most = max(*self.blocks.sizes, self.blocks.count)
        head = HEAD.replace("INCLUDES", includes).replace("MOST", str(most))
        return "\n".join([c99.comment(about) + head, *(self._function(*item) for item in self.tables.items())])

    def readme(self) -> str:
        name = f"{self.name}_{SUFFIX}"
        sources = " ".join(f"{f.name}.c" for f in self.functions.values())
        return (
            f"\nFor CasADi and acados: {name}.c has the function and its derivatives behind CasADi's external API.\n\n"
            f"  cc -std=c99 -O2 -fPIC -shared {name}.c {sources} -lm -o lib{name}.so\n\n"
            f'Then casadi.external("{name}", "./lib{name}.so") is a function with exact derivatives.\n'
        )

    # ---- one function of the API ----

    def _function(self, name: str, table: BlockTable) -> str:
        ins, outs = self._inputs(name), self._outputs(name, table)
        words = {
            "INPUTS": ", ".join(x.name for x in ins),
            "OUTPUTS": ", ".join(x.name for x in outs),
            "TABLES": self._descriptions(name, ins, outs),
            "BODY": "\n".join(f"  {line}" for line in self._body(name, table, outs)),
            "N_IN": str(len(ins)),
            "N_OUT": str(len(outs)),
            "WORK": str(table.width + self._directions(table) + self._workspace(table)),
        }
        text = FUNCTION
        for word, by in words.items():
            text = text.replace(word, by)
        return text.replace("NAME", name)

    def _inputs(self, name: str) -> list[Argument]:
        """x; for derivatives also y, c and the gradients, according to the order of the derivative."""
        blocks = self.blocks
        found = [self._dense(x, size) for x, size in zip(blocks.inputs, blocks.sizes)]
        if name.startswith(("jac_", "adj1_")):
            found.append(Argument("out_out", (blocks.count, 1), None))
        if "adj1_" in name:
            found.append(self._dense("adj_out", blocks.count))
        if name.startswith("jac_adj1_"):
            found += [Argument(f"out_adj_{x}", (size, 1), None) for x, size in zip(blocks.inputs, blocks.sizes)]
        return found

    def _outputs(self, name: str, table: BlockTable) -> list[Argument]:
        blocks, own = self.blocks, iter(table.blocks)
        if name.startswith("jac_adj1_"):
            found = []
            for x, size in zip(blocks.inputs, blocks.sizes):
                found += [self._argument(f"jac_adj_{x}_{y}", next(own)) for y in blocks.inputs]
                found.append(Argument(f"jac_adj_{x}_out_out", (size, blocks.count), None))
                found.append(self._argument(f"jac_adj_{x}_adj_out", next(own)))
            return found
        label = "jac_out_" if name.startswith("jac_") else "adj_" if name.startswith("adj1_") else ""
        names = [f"{label}{x}" for x in blocks.inputs] if label else ["out"]
        return [self._argument(x, next(own)) for x in names]

    @staticmethod
    def _argument(name: str, block: Block) -> Argument:
        return Argument(name, block.shape, block if len(block.index) else None)

    @staticmethod
    def _dense(name: str, size: int) -> Argument:
        return Argument(name, (size, 1), Block.of(np.arange(size)[:, None], np.ones((size, 1), bool)))

    def _descriptions(self, name: str, ins: Sequence[Argument], outs: Sequence[Argument]) -> str:
        """The names and sparsities of the arguments, and the indices of the outputs' numbers."""
        lines = []
        for kind, arguments in (("in", ins), ("out", outs)):
            labels = ", ".join(f'"{x.name}"' for x in arguments)
            lines.append(f"static const char *const {name}_{kind}s[] = {{{labels}}};")
            for k, x in enumerate(arguments):
                lines.append(_table("casadi_int", f"{name}_{kind}{k}", x.words))
            patterns = ", ".join(f"{name}_{kind}{k}" for k in range(len(arguments)))
            lines.append(f"static const casadi_int *const {name}_patterns_{kind}[] = {{{patterns}}};")
        for k, x in enumerate(outs):
            if x.block is not None:
                lines.append(_table("int", f"{name}_places{k}", x.block.index.tolist()))
        return "\n".join(lines)

    def _body(self, name: str, table: BlockTable, outs: Sequence[Argument]) -> list[str]:
        blocks = self.blocks
        lines = [f"const casadi_real *const {x} = arg[{k}] ? arg[{k}] : none;" for k, x in enumerate(blocks.inputs)]
        if "adj1_" in name:
            k = len(blocks.inputs) + 1
            lines.append(f"const casadi_real *const multiplier = arg[{k}] ? arg[{k}] : none;")
        directions = self._directions(table)
        if directions:
            lines.append(f"casadi_real *const unit = w + {table.width};")
        lines += ["int k;", "(void)iw;", "(void)mem;", *(f"(void){x};" for x in blocks.inputs)]
        if directions:
            lines.append(f"for (k = 0; k < {directions}; ++k) unit[k] = 0.0;")
        for part in table.parts:
            lines += self._call(part, table.width + directions)
        for k, x in enumerate(outs):
            if x.block is not None:
                count = len(x.block.index)
                lines.append(f"if (res[{k}]) for (k = 0; k < {count}; ++k) res[{k}][k] = w[{name}_places{k}[k]];")
        return [*lines, "return 0;"]

    def _call(self, part: Portion, workspace: int) -> list[str]:
        """The numbers of a portion: a call, or one per direction."""
        function = self.functions[part.name]
        names = ["multiplier" if x.startswith(COTANGENT) else "unit" if x == part.along else x
                 for x in part.program.inputs]  # fmt: skip
        more = [f"(struct {function.name}_workspace *)(w + {workspace})"] if function.workspace else []
        if part.along is None:
            return [f"{function.name}({', '.join([*names, f'w + {part.first}', *more])});"]
        call = f"{function.name}({', '.join([*names, f'w + {part.first} + {part.size} * k', *more])});"
        return [
            f"for (k = 0; k < {part.directions}; ++k) {{",
            "  unit[k] = 1.0;",
            f"  {call}",
            "  unit[k] = 0.0;",
            "}",
        ]

    @staticmethod
    def _directions(table: BlockTable) -> int:
        return max((part.directions for part in table.parts if part.along), default=0)

    def _workspace(self, table: BlockTable) -> int:
        """The size of the largest workspace, in numbers."""
        return max(sum(self.functions[part.name].workspace.values()) for part in table.parts)


def _table(kind: str, name: str, numbers: Sequence[int]) -> str:
    lines = [", ".join(map(str, numbers[k : k + PER_LINE])) for k in range(0, len(numbers), PER_LINE)]
    return f"static const {kind} {name}[] = {{\n  " + ",\n  ".join(lines) + "\n};"
