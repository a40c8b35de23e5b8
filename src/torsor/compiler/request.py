"""What to compute, and its intermediate code: straight-line code for one model, or loops over its bodies."""

from __future__ import annotations

import functools
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torsor.compiler.derivative import Derivative, derivative, root_of
from torsor.compiler.frames import Framed, Kind, framed
from torsor.compiler.members import Members
from torsor.compiler.store import store
from torsor.errors import ArgumentError
from torsor.inputs import place_of
from torsor.model.model import Model
from torsor.model.names import BodyFrames, Frame
from torsor.model.regular import require_uncoupled, warn_of_invented_masses
from torsor.outputs import Several, matrices_of
from torsor.sweeps import Algorithm

if TYPE_CHECKING:
    from torsor.compiler.tape import Code, Operations
    from torsor.compiler.trace import LoopCode


class Unrolling(NamedTuple):
    """The largest numbers of freedoms and operations for which code is unrolled over one model.

    Unrolled code is 1.2 to 2.1 times faster than loops while it fits the caches (bench/results/unrolling.json).  But it
    is compiled for every model, at 0.15 s per 1000 operations; all models of the same kinds share one loop.  On a
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
    """The policy for the caller's `specialised`; `usual` if it is None."""
    return usual if specialised is None else ALWAYS if specialised else NEVER


# module and name of one of torsor's own algorithms; of a derivative: mode, wrt, and where the algorithm is defined
Home = tuple[Any, ...]


def home_of(algorithm: Algorithm) -> Home | None:
    """Where an algorithm of torsor is defined; None for any other algorithm, whose changes torsor cannot detect."""
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
    """A request for a program: its computation, and when its code is unrolled."""

    def __init__(self, algorithm: Algorithm, model: Model, *, options: Sequence[str] = (), dtype: str = "float64",
                 frame: Frame | None = None, unroll: Unrolling = QUICK, members: Members | None = None,
                 body_frames: BodyFrames | None = None) -> None:  # fmt: skip
        """`options`: the optional inputs of the algorithm to take; `frame`: the frame of a Jacobian; `members`: the
        models of a batch, whose differing numbers are options; `body_frames`: the caller's frames of the bodies."""
        self.algorithm, self.model, self.frame, self.unroll, self.members = algorithm, model, frame, unroll, members
        self.body_frames = body_frames
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
        """The model in its short frames; for a batch, the first member."""
        return self.members.frames if self.members else framed(self.model, self.body_frames)

    @property
    def bits(self) -> int:
        return 64 if self.dtype == "float64" else 32

    @property
    def key(self) -> tuple[Any, ...]:
        """The key of the code, as far as it is known without tracing."""
        model = self.model
        if self.may_unroll:
            key = self.members.key if self.members else model.key
            seen = self.frame and self.frame.key, self.body_frames and self.body_frames.key
            return self.home, key, *seen, self.unroll, self.inputs, self.dtype
        return self.home, self.frames.kinds, model.n, model.nv, self.inputs, self.dtype

    # ---- the code and its cost ----

    @property
    def may_unroll(self) -> bool:
        return not self.algorithm.has_loops or self.model.nv <= self.unroll.freedoms

    @property
    def _lowering(self) -> Any:
        from torsor.compiler import lowering  # a program found on disk needs none of it

        return lowering

    @functools.cached_property
    def code(self) -> Code | LoopCode:
        """The intermediate code, traced on first access."""
        return self._lowering.code_of(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the output, for one state."""
        return self._lowering.output_shape(self)

    @property
    def operations(self) -> Operations:
        return self._lowering.operations(self)

    @property
    def operations_per_joint(self) -> dict[Kind, Operations]:
        return self._lowering.operations_per_joint(self)

    @property
    def operations_formula(self) -> str:
        return self._lowering.operations_formula(self)

    @property
    def input_shapes(self) -> list[tuple[int, ...]]:
        """The shape of every input, for one state."""
        return [place_of(name).shape(self.model) for name in self.inputs]

    @property
    def input_sizes(self) -> tuple[tuple[str, int], ...]:
        """The name of every input, and its count of numbers per state."""
        return tuple((name, math.prod(shape)) for name, shape in zip(self.inputs, self.input_shapes))

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of each of several outputs; they are parts of one row of numbers."""
        output = self.algorithm.output
        if not isinstance(output, Several):
            return {}
        known = isinstance(self.algorithm, Derivative) or matrices_of(output)  # their shapes need no tracing
        return output.shapes(self.model, {} if known else self._lowering.loops_of(self).entry)

    def split(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Turn a function that returns one row of numbers into one that returns the algorithm's outputs by name."""
        output = self.algorithm.output
        if not isinstance(output, Several):
            return function
        split = output.splitter(self.parts)
        return lambda *args, **more: split(function(*args, **more))
