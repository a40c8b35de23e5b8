"""`steps`: an algorithm shown step by step, for learning and teaching."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import validate
from torsor.compiler.derivative import Derivative, takes_frame
from torsor.dynamics.calls import checked, core_shape
from torsor.dynamics.functions import ALGORITHMS, algorithm_for
from torsor.dynamics.methods import COUPLED, METHODS, MOST_FREEDOMS, named
from torsor.errors import ArgumentError
from torsor.later import Later
from torsor.model.model import Model, require_model
from torsor.outputs import Several, plain
from torsor.reference import StepRecord, StepRecorder
from torsor.spatial import Inertia, Product, Rigid, Screw, Spatial, Subspace
from torsor.sweeps import Algorithm

table = Later("torsor.view.table")

Array = NDArray[Any]
FUNCTIONS = {function.__name__: function for function in ALGORITHMS}
MOST_BODIES = 12  # bodies of a sweep shown in a terminal; of more, the first ones
DIGITS = 5


@dataclass(frozen=True, repr=False)
class SweepStep:
    """One step of one sweep at one body: the values it read, kept and handed on, by the names of the source code.

    Arrays are in the body's frame, angular parts first: twists and wrenches (6,), inertias (6, 6), poses (4, 4),
    motion subspaces (6, nv of the joint).

    Attributes
    ----------
    number : int
        The number of the sweep, from 1.
    sweep : str
        The name of the sweep: that of its step in `torsor.algorithms`.
    direction : str
        "outward" from the base, "inward" to it, "climb" (to the base from one freedom), or "whole" (one function for
        all bodies).
    says : str
        The first line of the step's docstring, usually its equation with the number.
    body : str
        The body.
    freedom : int or None
        The freedom where the climb began; None in other sweeps.
    received : dict
        The values it read from its neighbour: the parent (or the base) in an outward sweep, the sum over the children
        in an inward one.
    read : dict
        The inputs of the body that it read, and values that earlier sweeps kept there.
    kept : dict
        The values it kept for later sweeps.
    handed : dict
        The values it handed on.

    Examples
    --------
    >>> import torsor as ts
    >>> run = ts.steps(ts.zoo.double_pendulum(), "articulated", [0.5, -1.0], [0, 0], [0, 0])
    >>> step = run["articulate", "link2"]
    >>> step.direction, sorted(step.read), sorted(step.kept), sorted(step.handed)
    ('inward', ['E', 'S', 'W', 'tau'], ['D', 'E', 'G', 'S', 'x'], ['F', 'I'])
    """

    number: int
    sweep: str
    direction: str
    says: str
    body: str
    freedom: int | None
    received: Mapping[str, Any]
    read: Mapping[str, Any]
    kept: Mapping[str, Any]
    handed: Mapping[str, Any]

    @property
    def parts(self) -> dict[str, Mapping[str, Any]]:
        """The values in and out: `received`, `read`, `kept` and `handed`, by the words of the table."""
        return {"receives": self.received, "reads": self.read, "keeps": self.kept, "hands on": self.handed}

    @property
    def title(self) -> str:
        """The step in words: the sweep, the body and the direction."""
        start = "" if self.freedom is None else f", from freedom {self.freedom}"
        return f"{self.sweep} at {self.body} ({self.direction}{start})"

    def __repr__(self) -> str:
        lines = [self.title, *([f"    {self.says}"] if self.says else [])]
        for word, values in self.parts.items():
            for name, x in values.items():
                head = f"{word:9} {name:8} "
                lines.append(head + written(x).replace("\n", "\n" + " " * len(head)))
                word = ""
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return table.of_steps(self.title, [self])


class SweepSteps(Sequence[SweepStep]):
    """All steps of an algorithm at one state, in the order in which they ran, and their result.

    `run[3]` is a step; `run["articulate"]` has the steps of one sweep, `run["articulate", "link2"]` is the step at
    one body, `run["rise", "link2", 4]` that of the climb from freedom 4. It prints as a table of names; a notebook
    also shows the values.

    Attributes
    ----------
    title : str
        The algorithm and the machine.
    result : float or ndarray
        The result of the algorithm, in the shape that its function returns.
    sweeps : tuple of str
        The names of the sweeps, in order.

    Examples
    --------
    >>> import torsor as ts
    >>> run = ts.steps(ts.zoo.double_pendulum(), ts.mass_matrix, [0.5, -1.0])
    >>> print(run["compose"])
    compose in mass_matrix of double_pendulum: 2 steps
    <BLANKLINE>
    1 compose (inward)
        I^c_i = J_i + sum Ad*_{f^-1} I^c Ad_{f^-1}
        body   receives  reads  keeps           hands on
        link2  I         q      E S F diagonal  I
        link1  I         q      E S F diagonal  I
    <BLANKLINE>
    result [[2.20697 0.60348]
            [0.60348 0.33333]]
    """

    def __init__(self, title: str, steps: Sequence[SweepStep], result: Any) -> None:
        self.title, self.result = title, result
        self._steps = tuple(steps)

    @property
    def sweeps(self) -> tuple[str, ...]:
        """The names of the sweeps, in order."""
        return tuple(dict.fromkeys(step.sweep for step in self._steps))

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[SweepStep]:
        return iter(self._steps)

    @overload
    def __getitem__(self, key: int | tuple[Any, ...]) -> SweepStep: ...
    @overload
    def __getitem__(self, key: slice | str) -> SweepSteps: ...
    def __getitem__(self, key: Any) -> Any:
        """Find steps by number, sweep, body and freedom.

        Parameters
        ----------
        key : int, slice, str or tuple
            A number, the name of a sweep, (sweep, body) or (sweep, body, freedom).

        Returns
        -------
        steps : SweepStep or SweepSteps
            One step, or several.

        Raises
        ------
        ArgumentError
            There is no such step, or the freedom of the climb is missing.
        """
        if isinstance(key, int | np.integer):
            return self._steps[key]
        if isinstance(key, slice):
            return SweepSteps(self.title, self._steps[key], self.result)
        sweep, *where = key if isinstance(key, tuple) else (key,)
        validate.chosen("sweep", sweep, self.sweeps)
        found = [step for step in self._steps if step.sweep == sweep]
        if not where:
            return SweepSteps(f"{sweep} in {self.title}", found, self.result)
        validate.chosen("body", where[0], dict.fromkeys(step.body for step in found))
        here = [step for step in found if step.body == where[0] and step.freedom in (where[1:] or [step.freedom])]
        if len(here) == 1:
            return here[0]
        freedoms = [step.freedom for step in found if step.body == where[0]]
        raise ArgumentError(
            f"{sweep} ran at {where[0]} for the freedoms {freedoms}: say which, run[sweep, body, freedom]"
        )

    def __repr__(self) -> str:
        lines = [f"{self.title}: {len(self)} steps"]
        for (number, sweep, direction, says), found in groupby(
            self._steps, lambda step: (step.number, step.sweep, step.direction, step.says)
        ):
            steps = list(found)
            lines += ["", f"{number} {sweep} ({direction})", *([f"    {says}"] if says else [])]
            rows = [[step.body, *map(" ".join, step.parts.values())] for step in steps[:MOST_BODIES]]
            lines += _aligned([["body", *steps[0].parts], *rows])
            if len(steps) > MOST_BODIES:
                lines += [f"    ... {len(steps) - MOST_BODIES} more steps"]
        return "\n".join([*lines, "", f"result {written(self.result)}".replace("\n", "\n       ")])

    def _repr_html_(self) -> str:
        return table.of_steps(self.title, self._steps)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["    " + "  ".join(cell.ljust(n) for cell, n in zip(row, widths)).rstrip() for row in rows]


def written(x: Any) -> str:
    """A value as text, with few digits."""
    if isinstance(x, np.ndarray) and x.dtype.kind == "f":
        return np.array2string(x + 0.0, precision=DIGITS, suppress_small=True)
    if isinstance(x, Mapping):
        return "\n".join(f"{name} = {written(y)}" for name, y in x.items())
    return f"{x:.{DIGITS}g}" if isinstance(x, float) else str(x)


def steps(model: Model, algorithm: str | Callable[..., Any], *state: ArrayLike, method: str = "auto",
          body: int | str | None = None, **options: ArrayLike) -> SweepSteps:  # fmt: skip
    """Show an algorithm step by step: the values that the step of every body read, kept and handed on.

    These are the steps that are compiled. Here the reference engine runs them on plain numbers, one after the other, in
    the model's own frames.

    Parameters
    ----------
    model : Model
        The machine.
    algorithm : str or callable
        A public function or its name ("mass_matrix"), or a method of one ("articulated", "udut", "composite",
        "ploen-park": of forward dynamics; "newton-euler": of inverse dynamics; "product": of M^-1).
    *state : (nq,), (nv,) array_like
        One state, as for the function: q, v and tau for forward dynamics, in rad, rad/s and N m (m, m/s, N).
        SymPy and CasADi symbols and mpmath numbers are allowed.
    method : str, default "auto"
        A method of the function, if `algorithm` is one.
    body : int or str, optional
        For a Jacobian: the body or the named frame.
    **options : (nv,) or (n, 6) or (6,) array_like
        Options of the function, such as `external`, `added_inertia` and `base_velocity`.

    Returns
    -------
    run : SweepSteps
        A sequence of `SweepStep`, with the `result`. A terminal and a notebook show it as a table.

    Raises
    ------
    ArgumentError
        There is no such algorithm, it has no sweeps (a derivative by code transformation), or an argument does not fit.

    Notes
    -----
    `docs/notation.md` explains the names: V and A are the twist and its rate, W and F wrenches, I an
    (articulated) inertia, S the motion subspace, G and D the gain and the pivot of the joint, x = D^-1 u.

    Examples
    --------
    >>> import torsor as ts
    >>> run = ts.steps(ts.zoo.double_pendulum(), "articulated", [0.5, -1.0], [0, 0], [0, 0])
    >>> run.sweeps
    ('motion', 'articulate', 'accelerate')
    >>> print(run["articulate", "link2"].kept["D"].round(5))  # m l^2 / 3 of a rod of 1 kg and 1 m
    [[0.33333]]
    """
    require_model(model)
    found = _algorithm(model, algorithm, method)
    if (body is None) == takes_frame(found):
        raise ArgumentError(f"{found.name} needs body=" if body is None else f"{found.name} takes no body=")
    if unknown := sorted(set(options) - set(found.options)):
        raise ArgumentError(f"{found.name} takes no {unknown[0]}; options: {', '.join(found.options) or 'none'}")
    if len(state) != len(found.inputs):
        raise ArgumentError(
            f"{found.name} takes {', '.join(found.inputs)}: {len(found.inputs)} arrays, not {len(state)}"
        )
    arrays = {name: checked(model, name, x) for name, x in (*zip(found.inputs, state), *options.items())}
    for name, x in arrays.items():
        if x.ndim != len(core_shape(model, name)):
            raise ArgumentError(f"{name} has shape {x.shape}; steps shows one state, {core_shape(model, name)}")
    recorder = StepRecorder(found, model)
    result = recorder.evaluate(
        {name: x.tolist() for name, x in arrays.items()}, frame=None if body is None else model.frame(body)
    )
    result = np.asarray(result) if isinstance(result, list) else result
    if isinstance(found.output, Several):
        result = found.output.split(result, found.output.shapes(model, {}))
    shown = [_readable(record, model.names) for record in recorder.records.values()]
    return SweepSteps(f"{found.name} of {model.name}", shown, result)


def _algorithm(model: Model, algorithm: str | Callable[..., Any], method: str) -> Algorithm:
    """The algorithm of a name or a function."""
    if isinstance(algorithm, str) and algorithm not in FUNCTIONS:
        owners = [name for name, methods in METHODS.items() if algorithm in methods]
        if not owners or method != "auto":
            known = dict.fromkeys([*(name for methods in METHODS.values() for name in methods), *FUNCTIONS])
            raise ArgumentError(f"unknown algorithm {algorithm!r}; choose one of: {', '.join(known)}")
        function, method = FUNCTIONS[owners[0]], algorithm
    else:
        function = FUNCTIONS[algorithm] if isinstance(algorithm, str) else algorithm
    couples = bool(model.couplings) and getattr(function, "__name__", "") in COUPLED
    if couples and method != "auto":
        raise ArgumentError(f"method {method!r} knows no coupled joints: name the function, or use model.uncoupled()")
    few = couples or model.nv <= MOST_FREEDOMS  # beyond, nothing is unrolled, but every method can be shown
    found = algorithm_for(model, function, method, None) if few or method == "auto" else named(function, method)
    if isinstance(found, Derivative):
        raise ArgumentError(
            f"{found.name} has no sweeps of its own: it is a derivative of the code of another function"
        )
    return found


def _readable(record: StepRecord, names: Sequence[str]) -> SweepStep:
    parts = ({k: readable(x) for k, x in part.items()}
             for part in (record.received, record.read, record.kept, record.handed))  # fmt: skip
    return SweepStep(record.number, record.sweep, record.direction, record.says, names[record.body], record.freedom,
                     *parts)  # fmt: skip


def readable(x: Any) -> Any:
    """A value of a step as an array if possible; otherwise unchanged, or as a dict of its parts."""
    if isinstance(x, Screw | Product):
        return readable(Product((x,)).as_rigid())
    if isinstance(x, Inertia):
        return np.block([[_array(x.J), _array(x.H)], [_array(x.H).T, _array(x.M)]])
    if isinstance(x, Subspace):
        return _array(list(x.columns)).T
    if _is_factored(x):
        L, d = x
        L = [_array([*row, 1.0, *[0.0] * (len(d) - len(row) - 1)]) for row in L]
        return np.array(L) @ np.diag(_array(d)) @ np.array(L).T
    if hasattr(x, "_fields") and not isinstance(x, Rigid | Spatial):
        return {name: readable(getattr(x, name)) for name in x._fields}
    return _array(x) if isinstance(x, list | tuple) else x


def _array(x: Any) -> Any:
    return np.array(plain(x))


def _is_factored(x: Any) -> bool:
    """Whether this is (L, d) of `torsor.linalg.factor`: the matrix L diag(d) L^T."""
    if type(x) is not tuple or len(x) != 2 or not all(isinstance(y, list) for y in x):
        return False
    L, d = x
    return len(L) == len(d) and all(isinstance(row, list) and len(row) == i for i, row in enumerate(L))
