"""What to compute, and its intermediate code: straight-line code for one model, or loops over its bodies."""

from __future__ import annotations

import functools
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torsor.algorithms.derivative import Derivative, derivative, root_of
from torsor.compiler.frames import Framed, Kind, framed, straight_line_frames
from torsor.compiler.members import Members
from torsor.compiler.store import store
from torsor.errors import ArgumentError
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.model.regular import require_uncoupled, warn_of_invented_masses
from torsor.outputs import MEMBERS, Several, matrices_of, place_of
from torsor.sweeps import Algorithm

if TYPE_CHECKING:
    from torsor.compiler.tape import Code, Operations
    from torsor.compiler.trace import LoopCode


class Unrolling(NamedTuple):
    """The largest numbers of freedoms and operations for which code is unrolled over one model.

    Unrolled code is 1.2 to 2.1 times faster than loops while it fits the caches (bench/results/unrolling.json).  But it
    is compiled anew for every model, at 0.15 s per 1000 operations; all models of the same kinds share one loop.  On a
    GPU, unrolled code for a general arm is 8 times faster at 36 freedoms and 2 times at 40, where compiling takes six
    seconds (bench/results/gpu.json).
    """

    freedoms: float
    operations: float


QUICK = Unrolling(12, 4500)  # for a call, which should not wait long for a new model
PATIENT = Unrolling(40, 6000)  # for a program that the caller asked to compile
ON_GPU = Unrolling(64, 15000)
ALWAYS, NEVER = Unrolling(math.inf, math.inf), Unrolling(0, 0)


def unrolling(specialised: bool | None, usual: Unrolling) -> Unrolling:
    """The policy that the caller asked for; `usual` if `specialised` is None."""
    return usual if specialised is None else ALWAYS if specialised else NEVER


# module and name of one of torsor's own algorithms; of a derivative: mode, wrt, and where the algorithm is defined
Home = tuple[Any, ...]


def home_of(algorithm: Algorithm) -> Home | None:
    """Where one of torsor's own algorithms is defined; None for any other, whose changes torsor cannot notice."""
    if isinstance(algorithm, Derivative):
        home = home_of(algorithm.primal)
        return home and (algorithm.mode, algorithm.wrt, home)
    for name, module in list(sys.modules.items()):
        if name.startswith("torsor.algorithms."):
            for attribute, value in list(vars(module).items()):
                if value is algorithm:
                    return name, attribute
    return None


def at_home(home: Home) -> Algorithm:
    """The algorithm that is defined there."""
    if len(home) == 2:
        return getattr(importlib.import_module(home[0]), home[1])
    mode, wrt, primal = home
    return derivative(at_home(primal), mode, wrt)


class Request:
    """A request for a program: what it computes, and when its code is unrolled."""

    def __init__(self, algorithm: Algorithm, model: Model, *, options: Sequence[str] = (), dtype: str = "float64",
                 frame: Frame | None = None, unroll: Unrolling = QUICK, members: Members | None = None
                 ) -> None:  # fmt: skip
        """`options`: which of the algorithm's optional inputs to take; `frame`: the frame of a Jacobian; `members`: the
        models of a batch, whose differing numbers are options."""
        self.algorithm, self.model, self.frame, self.unroll, self.members = algorithm, model, frame, unroll, members
        self.inputs, self.dtype = (*algorithm.inputs, *options), np.dtype(dtype).name
        if self.dtype not in ("float64", "float32"):
            raise ArgumentError(f"programs compute in float64 or float32, not {self.dtype}")
        if (algorithm.inverts or "tau" in self.inputs) and not algorithm.couples:
            require_uncoupled(model, f"the compiled {algorithm.name}")
        if not root_of(algorithm).kinematic:
            store(model).once("masses of its own", lambda: warn_of_invented_masses(model))
        if not algorithm.has_loops and unroll is NEVER:
            raise ArgumentError(f"{algorithm.name} has no loops: leave out specialised=False or choose another method")
        if self.bits == 32:
            self.frames.check_single()

    def __getstate__(self) -> dict[str, Any]:
        """An algorithm is pickled as its module and name, because its steps are functions that cannot be pickled."""
        if self.home is None:
            raise ArgumentError(f"{self.algorithm.name} is not an algorithm of torsor's own, and cannot be pickled")
        state = {name: x for name, x in vars(self).items() if name not in ("code", "home")}
        return state | {"algorithm": self.home}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"algorithm": at_home(state["algorithm"])}

    @functools.cached_property
    def home(self) -> Home | None:
        return home_of(self.algorithm)

    @property
    def frames(self) -> Framed:
        """The model in its short frames; of a batch, its first member."""
        return self.members.frames if self.members else framed(self.model)

    @property
    def bits(self) -> int:
        return 64 if self.dtype == "float64" else 32

    @property
    def key(self) -> tuple[Any, ...]:
        """What determines the code, as far as this is known without tracing."""
        model = self.model
        if self._may_unroll:
            key = self.members.key if self.members else model.key
            return self.home, key, self.frame and self.frame.key, self.unroll, self.inputs, self.dtype
        return self.home, self.frames.kinds, model.n, model.nv, self.inputs, self.dtype

    # ---- the code ----

    @property
    def _may_unroll(self) -> bool:
        return not self.algorithm.has_loops or self.model.nv <= self.unroll.freedoms

    @functools.cached_property
    def code(self) -> Code | LoopCode:
        """The intermediate code, traced on first access."""
        if self._unrolls:
            return self._straight(self.algorithm, self.inputs)
        return _loops(self.algorithm, self.inputs, self._kinds)

    @property
    def _unrolls(self) -> bool:
        """Whether the code is unrolled: it has few operations.  Derivatives are unrolled where the primal is."""
        from torsor.compiler.tape import Operations

        if not self._may_unroll or not self.algorithm.has_loops:
            return self._may_unroll
        root = root_of(self.algorithm)
        options = (name for name in self.inputs[len(self.algorithm.inputs) :] if name in (*root.options, *MEMBERS))
        code = self._straight(root, (*root.inputs, *options))
        return sum(Operations.of(code)) <= self.unroll.operations

    @property
    def input_shapes(self) -> list[tuple[int, ...]]:
        """The shape of every input, for one state."""
        return [place_of(name).shape(self.model) for name in self.inputs]

    @property
    def input_sizes(self) -> tuple[tuple[str, int], ...]:
        """The name of every input, and how many numbers it has per state."""
        return tuple((name, math.prod(shape)) for name, shape in zip(self.inputs, self.input_shapes))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the output, for one state."""
        from torsor.compiler.trace import LoopCode, shape_of

        if isinstance(self.code, LoopCode):
            return self.algorithm.output.shape(self.model, self.code.entry)
        return shape_of(self.code)

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        """Of several outputs, the name and the shape of each; they are parts of one row of numbers."""
        output = self.algorithm.output
        if not isinstance(output, Several):
            return {}
        known = isinstance(self.algorithm, Derivative) or matrices_of(output)  # their shapes need no tracing
        return output.shapes(self.model, {} if known else self._looped.entry)

    def split(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Turn a function that returns one row of numbers into one that returns the algorithm's outputs by name."""
        output = self.algorithm.output
        if not isinstance(output, Several):
            return function
        split = output.splitter(self.parts)
        return lambda *args, **more: split(function(*args, **more))

    @property
    def _looped(self) -> LoopCode:
        from torsor.compiler.trace import LoopCode

        code = self.__dict__.get("code")
        return code if isinstance(code, LoopCode) else _loops(self.algorithm, self.inputs, self._kinds)

    @property
    def _kinds(self) -> tuple[Kind, ...]:
        return self.frames.kinds

    def _straight(self, algorithm: Algorithm, inputs: tuple[str, ...]) -> Code:
        if self.members:
            return _straight_line(algorithm, self.frames, inputs, self.frame)
        return unrolled(algorithm, self.model, inputs, self.frame)

    # ---- what it costs ----

    @property
    def operations(self) -> Operations:
        from torsor.compiler.counts import operations_of

        return operations_of(self.code, self.frames, self.frame)

    @property
    def operations_per_joint(self) -> dict[Kind, Operations]:
        from torsor.compiler.trace import LoopCode

        code = self.code
        return {kind: code.operations(k) for k, kind in enumerate(code.kinds)} if isinstance(code, LoopCode) else {}

    @property
    def operations_formula(self) -> str:
        from torsor.compiler.tape import Operations

        total, n = self.operations, self.model.n
        per_joint = list(self.operations_per_joint.values())
        each = per_joint[int(np.bincount(self.frames.kind).argmax())] if per_joint else Operations()
        counts = zip(Operations._fields, each, total)
        return ", ".join(f"{name} {f'{a} n {b - a * n:+d}' if a else b}" for name, a, b in counts if b)


@functools.lru_cache(maxsize=4)
def unrolled(algorithm: Algorithm, model: Model, inputs: tuple[str, ...], frame: Frame | None = None) -> Code:
    """The straight-line code of an algorithm for one model; cached briefly, because choosing a method reads it too."""
    moved = isinstance(algorithm, Derivative) and "placement" in algorithm.parameters
    may_regroup = algorithm.torques_only and not moved
    return _straight_line(algorithm, straight_line_frames(model) if may_regroup else framed(model), inputs, frame)


def _straight_line(algorithm: Algorithm, frames: Framed, inputs: tuple[str, ...], frame: Frame | None) -> Code:
    if isinstance(algorithm, Derivative):
        from torsor.compiler.derivatives import unrolled_derivative

        return unrolled_derivative(algorithm, frames, inputs, frame)
    from torsor.compiler.trace import unroll

    return unroll(algorithm, frames, inputs, frame)


@functools.lru_cache(maxsize=256)
def _loops(algorithm: Algorithm, inputs: tuple[str, ...], kinds: tuple[Kind, ...]) -> LoopCode:
    if isinstance(algorithm, Derivative):
        from torsor.compiler.loop_derivatives import looped_derivative

        return looped_derivative(algorithm, inputs, kinds)
    from torsor.compiler.trace import looped

    return looped(algorithm, inputs, kinds)
