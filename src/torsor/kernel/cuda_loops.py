"""Loops over the bodies of a model in CUDA C: what `loops.py` is for the CPU.

What a body keeps lies in scratch memory, number by number, the threads side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any

from torsor.kernel.cuda_language import OPERATIONS, Writer, array, element
from torsor.kernel.data import BASE_BRANCHES, BASE_PLACES, BRANCHES, CHAINED, FIRST, INDEX_WORDS, IS_TREE
from torsor.kernel.language import Loops, cases, named
from torsor.kernel.tape import Code
from torsor.kernel.trace import LoopCode, LoopColumns, LoopPass


class LoopWriter(Loops):
    """Mirrors `loops.LoopWriter`; see there what the flags mean and what goes through memory."""

    w: Writer

    def __init__(self, w: Writer, code: LoopCode, inputs: Sequence[tuple[str, int]], shape: tuple[int, ...]) -> None:
        """`inputs`: the name of each, and how many numbers it has per state."""
        assert not code.algorithm.product, "loops of CUDA go by columns"
        self.w, self.code, self.inputs, self.shape = w, code, inputs, shape
        self.slots, self.row = code.slots, code.layout.kept
        self.handed = code.layout.handed

    def write(self) -> None:
        if not self.code.hides_inputs:
            return super().write()
        self.w.do("T zero = 0;")  # or NaN where an input is not finite
        for name, size in self.inputs:
            with self.w.block(f"for (int k = 0; k < {size}; k += 1)"):
                self.w.do("zero = zero + " + OPERATIONS["zero"].format(f"{array(name)}[k]") + ";")
        super().write()
        self.w.do("out[0] = out[0] - zero;")

    # -- what codes read and write

    def _base(self, name: Any) -> str:
        return f"tree.base[{BASE_PLACES[name[1]] + name[2]}]" if name[0] == "base" else element(name)

    def _put(self, x: str, name: Any) -> None:
        self.w.do(f"{element(name, self.shape)} = {x};")

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
            if first == "base":
                return self._base(name)
            if first == "kept":
                return self._slot(i, name)
            if first == "number":
                return f"tree.numbers[{i}_numbers + {self.code.numbers[kind].index(name[1])}]"
            if first == "external":
                return f"{array(first)}[{i} * 6 + {name[1]}]"
            return f"{array(first)}[{i}_{'q' if first == 'q' else 'v'} + {name[1]}]"

        return read

    def _write_outputs(self, i: str, values: dict[Any, str]) -> None:
        kind, shape = self.code.algorithm.kind, self.shape
        for name, x in values.items():
            if name[0] == "kept":
                self.w.do(f"{self._slot(i, name)} = {x};")
            elif name[0] == "out" and kind == "joint":
                self.w.do(f"out[{i}_v + {name[1]}] = {x};")
            elif name[0] == "out" and kind == "body":
                place = element(("out", 0, *name[1:]), shape)[4:-1]
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

    def _pass(self, p: LoopPass, end: str = "tree.n") -> list[str]:
        """Over all bodies, or outward over those before `end`."""
        w = self.w
        values = w.emit(p.start, self._base)
        start = [values[("near", k)] for k in p.live]
        carried = w.variables(start)
        if p.outward:
            if start:
                with w.block(f"if (tree.flags & {IS_TREE})"):
                    w.set([self._hand("-1", k) for k in range(len(start))], start)
            with w.block(f"for (int i = 0; i < {end}; i += 1)"):
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
        near = named(carried, p.live)
        hand = self._dispatch("i_kind", cases(p.codes), "i", near, p.live)
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
        near = named(carried, p.live)
        hand = self._dispatch("i_kind", cases(p.codes), "i", near, p.live)
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
        """Every body, every freedom of it: one column.  Of a symmetric matrix no body after the column's is asked."""
        w = self.w
        end = "j + 1" if self.code.algorithm.symmetric else "tree.n"
        if c.outward is None:
            with w.block(f"if (tree.flags & {IS_TREE})"):
                self._clear()
        with w.block("for (int j = 0; j < tree.n; j += 1)"):
            self._at("j", "freedoms")
            with w.block("for (int freedom = 0; freedom < j_freedoms; freedom += 1)"):
                w.do(f"const int column = tree.index[j * {INDEX_WORDS} + 3] + freedom;")
                if c.rest:
                    with w.block(f"for (int k = 0; k < {end}; k += 1)"):
                        for name in c.rest:
                            if name in self.slots:
                                w.do(f"{self._slot('k', name)} = 0;")
                self._climb(c, "j", "freedom")
                if c.outward:
                    self._pass(c.outward, end)

    def _path(self, c: LoopColumns) -> None:
        self._clear()
        self.w.do("const int from = tree.from;")
        with self.w.block("if (from >= 0)"):
            self._climb(c, "from", "0")

    def _climb(self, c: LoopColumns, start: str, freedom: str) -> None:
        w = self.w
        self._at(start, "kind", "parent", "q", "v", "numbers")
        starts = [(8 * kind + k, kind, code) for (kind, k), code in c.starts.items()]
        hand = self._dispatch(f"{start}_kind * 8 + {freedom}", starts, start, {}, c.live)
        w.do(f"int above = {start}_parent;")
        with w.block("while (above >= 0)"):
            self._at("above", "kind", "parent", "q", "v", "numbers")
            near = named(hand, c.live)
            w.set(hand, self._dispatch("above_kind", cases(c.codes), "above", near, c.live))
            w.do("above = above_parent;")
