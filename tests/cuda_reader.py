"""Runs the CUDA C that torsor writes without a GPU or a compiler: read line by line, as Python over NumPy lanes.

Only the small language of `torsor.kernel.cuda.Writer` is understood: one statement a line, loops and branches
that all states take alike.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np

from torsor.kernel.cuda import Kernel
from torsor.kernel.llvm import TRIG_LIMIT, Target
from torsor.kernel.loops import BODIES, FLAGS, FROM, loop_data

RULES = [
    (r"for \(int (\w+) = (.+); \1 < (.+); \1 \+= 1\) \{", r"for \1 in range(\2, \3):"),
    (r"for \(int (\w+) = (.+); \1 >= 0; \1 -= 1\) \{", r"for \1 in range(\2, -1, -1):"),
    (r"while \((.+)\) \{", r"while \1:"),
    (r"if \(!(near\d+)\) \{", r"if not \1.all():"),
    (r"if \(!\((.+)\)\) \{", r"if not (\1):"),
    (r"if \((.+)\) \{", r"if \1:"),
    (r"else if \((.+)\) \{", r"elif \1:"),
    (r"else \{", "else:"),
    (r"\{", "if True:"),
    (r"T \w+, \w+;", "pass"),
    (r"(far_turn|turn)\((\w+), (\w+), (\w+)\);", r"\3, \4 = \1(\2)"),
    (r"(?:const )?(?:T|int|bool) (\w+ = .+);", r"\1"),
    (r"(.+\] = .+|\w+ = .+);", r"\1"),
]


def python_of(text: str) -> str:
    """The function `state` as Python."""
    head, *lines = text[text.index("__forceinline__ void state(") :].splitlines()
    names = re.findall(r"const \w+ (\w+)[,)]", head)
    result, depth = [f"def state({', '.join(names)}):"], 1
    for line in lines[: len(lines) - 1 - lines[::-1].index("}")]:
        line = line.strip()
        if line == "}":
            result.append("  " * depth + "pass")
            depth -= 1
            continue
        for pattern, replacement in RULES:
            found = re.fullmatch(pattern, line)
            if found:
                break
        else:
            raise SyntaxError(f"not in the language that torsor writes: {line}")
        statement = re.sub(r"(?<=\d)f\b", "", found.expand(replacement))
        result.append("  " * depth + statement)
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


def run(kernel: Kernel, arrays, framed=None, body=None):
    """The output of a kernel for arrays (states, ...) as NumPy would give it; memory never written reads as NaN."""
    dtype = np.dtype(f"float{kernel.bits}")
    count = len(arrays[0])
    out = np.full((count, *kernel.shape), np.nan, dtype)
    views = [Lanes(np.asarray(x, dtype).reshape(count, -1)) for x in arrays] + [Lanes(out.reshape(count, -1))]
    if kernel.looped:
        shapes = [x.shape[1:] for x in (*arrays, out)]
        data = loop_data(kernel.code, framed, shapes, Target(1, kernel.bits), body)
        numbers, index, gravity = data.owned
        n, flags, start = (int(data.words[k]) for k in (BODIES, FLAGS, FROM))
        index = index.ravel().tolist()
        views.append(SimpleNamespace(n=n, flags=flags, numbers=numbers, index=index, gravity=gravity, **{"from": start}))
        rows = int(data.words[0]) // dtype.itemsize
        views += [Lanes(np.full((count, rows), np.nan, dtype)) for _ in range(2)]
    names = {
        "FMA": lambda a, b, c: a * b + c, "INV": lambda x: dtype.type(1) / x, "SQRT": np.sqrt, "LOG": np.log,
        "NEAR": lambda x: np.abs(x) < TRIG_LIMIT[kernel.bits],
        "turn": lambda x: (np.sin(x), np.cos(x)), "far_turn": lambda x: (np.sin(x), np.cos(x)),
    }  # fmt: skip
    text = re.sub(r"\bfrom\b", "start", python_of(kernel.state()))
    if kernel.looped:
        views[len(arrays) + 1].start = start
    with np.errstate(invalid="ignore"):
        exec(compile(text, "cuda", "exec"), names)
        names["state"](*views)
    return out
