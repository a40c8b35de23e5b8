"""Steps of states on a GPU, piece by piece, with programs and functions of the user between the pieces.

`StepRun` on the host does the same (`time_loop.py`). One kernel for all steps (`gpu_rollout.py`) is faster: pieces are
for laws with functions, and for one motion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends import gpu
from torsor.compiler.store import store
from torsor.errors import ArgumentError
from torsor.model.freedoms import limited_coordinates
from torsor.motion.law import Called
from torsor.motion.lowering import FOUND, OTHERS, Ask, Piece, Step, cut, gains_by_freedom
from torsor.motion.time_loop import Changing
from torsor.validate import shown

Array = NDArray[Any]


class DeviceRun:
    """Steps of many states, (m, nq) and (m, nv).

    h          (1,) the length of a step; its dtype is the dtype of all computations
    given      the other inputs of a step by name, (m or 1, ...), on the host
    times      the times, as fractions of a step, at which functions are called
    functions  the functions of the user;  alone: a single state is passed to them without its batch axis
    kind       the library of the arrays that functions take
    solve      (algorithm, options, arguments) -> accelerations, if no program computes them
    """

    def __init__(self, step: Step, h: Array, given: Mapping[str, Any], times: Sequence[float] = (0.0,),
                 functions: Sequence[Called] = (), alone: bool = True, kind: str = "cupy",
                 solve: Callable[..., Any] | None = None) -> None:  # fmt: skip
        self.step, self.times, self.functions = step, times, functions
        self.dtype = dtype = h.dtype.name
        self.alone, self.kind, self.solve = alone, kind, solve
        if found := next((term.on_host for term in functions if term.on_host), None):
            raise ArgumentError(f"{found} is computed by NumPy: give NumPy arrays, not arrays on a GPU")
        # pieces per freedom do not see whole states; functions at the unmoved state are called with the state itself
        law, model = step.law, step.model
        self.by_freedoms = not step.asks and (law.is_local if step.moves else law.is_diagonal)
        made = step.members.store if step.members else store(model)
        self.pieces: list[tuple[Any, Piece]] = made.once(("pieces on a GPU", *step.reads, dtype), self._pieces)
        self.column = None if model.nq == model.nv else gpu.cupy().asarray(limited_coordinates(model))
        self.given: dict[str, Any] = {"h": self._placed(h)}
        self.write({name: given[name] for name in ("tau", "gain", *step.numbers)})
        self.length, self.t = float(h[0]), 0.0

    def _pieces(self) -> list[tuple[Any, Piece]]:
        pieces = cut(self.step.one_freedom if self.by_freedoms else self.step)
        return [(gpu.Pointwise(piece.code, piece.inputs, self.dtype), piece) for piece in pieces]

    def _placed(self, x: Any) -> Any:
        return gpu.cupy().asarray(x, self.dtype)

    def write(self, rows: Mapping[str, Any]) -> None:
        """Write inputs from the host, by name, (m or 1, ...)."""
        nv = self.step.model.nv
        for name, x in rows.items():
            x = np.atleast_2d(x)
            if self.by_freedoms and name == "gain":
                x = np.moveaxis(gains_by_freedom(self.step.law, x, len(x)), 0, -1)
            elif self.by_freedoms and name == "tau":
                x = np.moveaxis(x.reshape(len(x), -1, nv), 1, 2)
            self.given[name] = self._placed(x)

    def once(self, q: Any, v: Any) -> Any:
        """The result of a step, (m, ...), which need not be a state."""
        state = [q, v]
        if self.by_freedoms:
            state = [q[..., None] if self.column is None else q[:, self.column][..., None], v[..., None]]
        given = [*state, *(self.given[name] for name in ("tau", "gain", "h"))]
        for kernel, piece in self.pieces[:-1]:
            assert piece.ask is not None
            at = [q, v]
            if self.step.moves or piece.ask.algorithm:
                asked = kernel(*given)
                of_freedom = range(asked.shape[-1])
                at = [asked[..., part] for part in (of_freedom if self.by_freedoms else piece.parts)]
            given.append(self._found(piece.ask, at))
        found = self.pieces[-1][0](*given)
        if not self.by_freedoms:
            return found
        m, nv, *rows, last = found.shape  # the numbers of each freedom
        return np.moveaxis(found, 1, -1).reshape(m, *rows, last * nv)

    def _found(self, ask: Ask, at: list[Any]) -> Any:
        """The answer to a request, as the next pieces read it."""
        if ask.algorithm is None:
            t = self.t + self.times[min(ask.at, len(self.times) - 1)] * self.length
            rows = self._called(t, *at)
            return np.moveaxis(rows, 0, -1) if self.by_freedoms else np.concatenate(list(rows), axis=-1)
        step, algorithm = self.step, ask.algorithm
        if self.by_freedoms:
            ask = ask._replace(model=step.model, options=step.options)
        if ask.is_forward:
            algorithm = step.algorithm
        args = [*at, *step.taken_by(ask, [self.given[name] for name in step.numbers])]
        if self.solve and ask.is_forward:
            found = self.solve(algorithm, ask.options, args)
        else:
            found = gpu.program(algorithm, ask.model, args, ask.options, None, step.members_in(ask))(*args)
        return found[..., None] if self.by_freedoms else found

    def _called(self, t: float, q: Any, v: Any) -> Any:
        """The results of the functions: `FOUND` rows (m, nv)."""
        total = gpu.cupy().zeros((FOUND, *v.shape), self.dtype)
        alone = self.alone and len(q) == 1
        for term in self.functions:
            state = [gpu.given_back(self.kind, x[0] if alone and not term.batched else x) for x in (q, v)]
            first = 0 if term.drive else OTHERS
            total[first] += self._numbers(term.torque, state[1], term.torque(t, *state))
            if self.step.implicit and term.slopes is not None:
                for k, x in enumerate(term.slopes(t, *state)):
                    total[first + 1 + k] += self._numbers(term.slopes, state[1], x)
        return total

    def _numbers(self, function: Callable[..., Any], v: Any, found: Any) -> Any:
        """The result of a function in CuPy: numbers on the device, one per velocity or one for all."""
        own, shape = found, tuple(v.shape)
        if gpu.on_device(found):
            own = gpu.as_cupy(found, gpu.kind_of(found))
            if own.shape in (shape, shape[-1:], (1, *shape[-1:])):
                return own.astype(self.dtype, copy=False)
        elif isinstance(found, int | float):
            return found
        name = getattr(function, "__qualname__", type(function).__qualname__)
        library = {"cupy": "CuPy", "torch": "PyTorch", "jax": "JAX"}[self.kind]
        raise ArgumentError(
            f"what the force {name} gives must be an array of {library} on the device, of {shape} numbers as v is, not "
            f"{shown(own)}"
        )

    def __call__(self, x: Any, changing: Changing, ends: Sequence[int] = (1,), out: Any = None,
                 t: float = 0.0) -> None:  # fmt: skip
        """Move x (m, nq + nv) in place to the last of `ends`; out[:, k] are the states after ends[k] steps."""
        done, nq = 0, self.step.model.nq
        for k, end in enumerate(ends):
            for at in range(done, end):
                self.t = t + at * self.length
                self.write({name: rows[0] for name, rows in changing(at, 1).items()})
                x[:] = self.once(x[:, :nq], x[:, nq:])
            done = end
            if out is not None:
                out[:, k] = x
