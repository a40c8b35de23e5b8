"""Runs the CUDA C that torsor writes without a GPU or a compiler: read line by line, as Python over NumPy lanes.

Only the small language of `torsor.backends.c_language.CWriter` is understood: one statement a line, loops and branches
that all states take alike.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np

from torsor.backends.cuda import TREE_TABLES, TREE_WORDS, Kernel
from torsor.backends.elementary import TRIG_LIMIT
from torsor.compiler.abi import loop_data, tree_data
from torsor.linalg import down_scale
from torsor.motion.cuda_loops import RolloutKernel

RULES = [
    (r"while \(1\) \{", "while True:"),
    (r"if \(!(near\d+)\) \{", r"if not \1.all():"),
    (r"if \(!NEAR\((\w+)\)\) far_turn\(\1, (\w+), (\w+)\);", r"\2, \3 = far_turn(\1)"),
    (r"if \(!(again\d+)\) break;", r"if not \1: break"),
    (r"if \(!\((.+)\)\) \{", r"if not (\1):"),
    (r"if \((.+)\) \{", r"if \1:"),
    (r"else if \((.+)\) \{", r"elif \1:"),
    (r"T \w+, \w+;", "pass"),
    (r"T (\w+)\[(\d+)\];", r"\1 = array(\2)"),
    (r"state\((.+)\);", r"state(\1)"),
    (r"(far_turn|turn)\((\w+), (\w+), (\w+)\);", r"\3, \4 = \1(\2)"),
    (r"(?:const )?(?:T|int) (\w+ = .+);", r"\1"),
    (r"(.+\] = .+|\w+ = .+);", r"\1"),
]


def python_of(text: str, name: str = "state") -> str:
    """The function of that name as Python."""
    head, *lines = text[text.index(f"__forceinline__ void {name}(") :].splitlines()
    names = re.findall(r"const \w+ (\w+)[,)]", head)
    result, depth = [f"def {name}({', '.join(names)}):"], 1
    for line in lines[: len(lines) - 1 - lines[::-1].index("}")]:
        line = line.strip()
        if line == "}":
            result.append("  " * depth + "pass")
            depth -= 1
            continue
        matches = ((re.fullmatch(pattern, line), replacement) for pattern, replacement in RULES)
        found = next((match.expand(replacement) for match, replacement in matches if match), None)
        if found is None:
            raise SyntaxError(f"not in the language that torsor writes: {line}")
        result.append("  " * depth + re.sub(r"(?<=\d)f\b", "", found))
        depth += line.endswith("{")
    return "\n".join(result)


class Lanes:
    """An array (states, numbers): indexed by number, as a kernel does for its own state."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __getitem__(self, k):
        assert 0 <= k < self.numbers.shape[1]
        return self.numbers[:, k]

    def __setitem__(self, k, x):
        assert 0 <= k < self.numbers.shape[1]
        self.numbers[:, k] = x

    def after(self, k):
        """What a pointer to number k would be."""
        return Lanes(self.numbers[:, k:])


def run(kernel: Kernel, arrays, framed=None, frame=None):
    """The output of a kernel for arrays (states, ...) as NumPy would give it; memory never written reads as NaN."""
    dtype = np.dtype(f"float{kernel.bits}")
    count = len(arrays[0])
    out = np.full((count, *kernel.shape), np.nan, dtype)
    views = [Lanes(np.asarray(x, dtype).reshape(count, -1)) for x in arrays] + [Lanes(out.reshape(count, -1))]
    if kernel.looped:
        views += _tree(kernel, framed, [x.shape[1:] for x in (*arrays, out)], frame, count)
    names = _functions(kernel.bits, count)
    _define(kernel.state(), "state", names)
    with np.errstate(invalid="ignore"):
        names["state"](*views)
    return out


def run_step(kernel: RolloutKernel, arrays, framed=None):
    """(q, v) after one step, from arrays q, v, tau, gain, h and further numbers (states, ...)."""
    dtype = np.dtype(f"float{kernel.bits}")
    count = len(arrays[0])
    out = np.full((count, *kernel.step.shape), np.nan, dtype)
    views = [Lanes(np.asarray(x, dtype).reshape(count, -1)) for x in (*arrays, out)]
    views[-1].numbers = out
    names = _functions(kernel.bits, count)
    if kernel.dynamics:
        q, v = (x.shape[1:] for x in arrays[:2])
        numbers = [x.shape[1:] for x in arrays[5:]]
        added = [v] * (len(kernel.dynamics.inputs) - 3 - len(numbers))
        views += _tree(kernel.dynamics, framed, [q, v, v, *added, *numbers, v], None, count)
        _define(kernel.dynamics.state(), "state", names)
    _define(kernel.advance(), "advance", names)
    with np.errstate(invalid="ignore"):
        names["advance"](*views)
    return out


def _define(text, name, names):
    """Define a function of the CUDA text among `names`."""
    text = python_of(text, name)
    text = re.sub(r"Row\{(\w+)\}", r"\1", text)
    text = re.sub(r"Row\{(\w+) \+ (\d+)\}", r"\1.after(\2)", text)
    exec(compile(text, "cuda", "exec"), names)


def _functions(bits, count):
    dtype = np.dtype(f"float{bits}")
    return {
        "FMA": lambda a, b, c: a * b + c, "INV": lambda x: dtype.type(1) / x, "SQRT": np.sqrt, "LOG": np.log,
        "ABS": np.abs, "MAX": np.maximum, "down_scale": lambda x: down_scale([x]),
        "NEAR": lambda x: np.abs(x) < TRIG_LIMIT[bits],
        "turn": lambda x: (np.sin(x), np.cos(x)), "far_turn": lambda x: (np.sin(x), np.cos(x)),
        "array": lambda size: Lanes(np.full((count, size), np.nan, dtype)),
    }  # fmt: skip


def _tree(kernel, framed, shapes, frame, count):
    words, tables = tree_data(kernel.code, framed, shapes, kernel.bits, frame)
    integers = {name: int(x) for name, x in zip(TREE_WORDS, words)}
    arrays = {name: x.ravel().tolist() for name, x in zip(TREE_TABLES, tables)}
    tree = SimpleNamespace(**integers, **arrays, numbers=tables[-2], base=tables[-1])
    rows = int(loop_data(kernel.code.layout, framed, shapes, kernel.bits, frame).words[0]) + 64
    return [tree, *(Lanes(np.full((count, rows), np.nan, f"float{kernel.bits}")) for _ in range(3))]
