"""Sweeps: the form in which every O(n) algorithm of torsor is written.

An algorithm is a few passes along the tree of bodies.  A pass calls one *step* function at every body:

    step(link, here, near) -> hand, keep

    link   the body's constants (`torsor.model.links.Link`)
    here   the body's own q, v, tau, ... and the values that earlier passes kept there
    near   the values handed on by the neighbour: those of the parent in an `outward` pass, the sum over the children
           in an `inward` pass; at the base or at a tip, the start values of the pass
    hand   a dict: values to hand on         keep   a dict: values to keep here for later passes

Matrices need one more pass: `Columns` starts at one degree of freedom, climbs to the base, and may then
spread outward over the tree; it is repeated for every degree of freedom, or for one chosen body.

A step is a pure function over scalars of any type and never tests their type.  `run` below interprets an
algorithm on plain numbers; `torsor.compiler` runs the same steps on symbols and compiles the recorded operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from torsor.linalg import Mat, Scalar, Vec
from torsor.model.extras import Coupling
from torsor.model.links import Link
from torsor.model.names import Frame
from torsor.outputs import Output, matrices_of
from torsor.spatial import Rigid

Step = Callable[[Link, Any, Any], tuple[dict[str, Any], dict[str, Any]]]


class Here(SimpleNamespace):
    """The known values at one body, or at the base.  An optional value that is missing reads as None."""

    OPTIONAL = frozenset(("v", "tau", "qdd", "b", "external", "pulls", "base_velocity", "base_acceleration", "E", "W",
                          "phi", "side", "added_inertia", "stiffness", "damping"))  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        if name in self.OPTIONAL:
            return None
        raise AttributeError(f"{name!r} is not an input, and no pass has kept it here")


@dataclass(frozen=True)
class Sweep:
    """A pass over all bodies, from the base outward or from the tips inward."""

    step: Step
    start: Callable[[Any], dict[str, Any]]  # base -> the values handed to the first body of the pass
    outward: bool


@dataclass(frozen=True)
class Columns:
    """For each degree of freedom: climb from its body to the base, then optionally spread outward over all bodies.

    `start(link, here, k)` is the step at the first body of the climb, for its k-th freedom (in a "path", k is the
    placement of a frame on that body).  `climb` is the step at the bodies between it and the base.  `outward` reads the
    values that these steps kept; at bodies off the path it reads `rest(nv)`.
    """

    start: Step
    climb: Step
    outward: Sweep | None = None
    rest: Callable[[int], dict[str, Any]] | None = None
    per_body: bool = False  # one climb per body, not per freedom: `start` is always given k = 0


@dataclass(frozen=True)
class Whole:
    """A pass in which one function gets the whole walk, for dense matrices.  Only in straight-line code."""

    run: Callable[[Walk], None]


def outward(start: Callable[[Any], dict[str, Any]]) -> Callable[[Step], Sweep]:
    """A pass from the base to the tips; `start(base)` returns the values that the base hands to the first bodies."""
    return lambda step: Sweep(step, start, outward=True)


def inward(start: Callable[[Any], dict[str, Any]]) -> Callable[[Step], Sweep]:
    """A pass from the tips to the base; `start(base)` returns zeros, the values handed to a body without children."""
    return lambda step: Sweep(step, start, outward=False)


@dataclass(frozen=True, eq=False)
class Algorithm:
    """Passes and their output.

    inputs     the names of the arrays it takes: q, v, tau, ... (`torsor.inputs.PLACES`); `options` are optional
    passes     `Sweep`s, perhaps followed by one `Columns`; in straight-line code, `Whole` passes between them
    output     the type of the output (`torsor.outputs`)
    then       the result as a function of (that output, the walk); only for a matrix in straight-line code
    inverts    requires a regular mass matrix
    torques_only   the outputs are only joint torques and accelerations: masses may be regrouped
    couples    the result obeys couplings of joints
    kinematic  does not depend on masses
    """

    name: str
    inputs: tuple[str, ...]
    passes: tuple[Sweep | Columns | Whole, ...]
    output: Output
    options: tuple[str, ...] = ()
    then: Callable[[Any, Any], Any] | None = None
    inverts: bool = False
    torques_only: bool = False
    couples: bool = False
    kinematic: bool = False

    @property
    def has_loops(self) -> bool:
        """Whether loop kernels exist: in loops no pass may hand on n^2 numbers."""
        whole = any(isinstance(stage, Whole) for stage in self.passes)
        return not whole and (self.then is None or not matrices_of(self.output))

    @property
    def columns(self) -> Columns | None:
        last = self.passes[-1]
        return last if isinstance(last, Columns) else None


# The interpreter -------------------------------------------------------------------------------------------


def add(a: Any, b: Any) -> Any:
    """The sum of two handed-on values, entry by entry."""
    if isinstance(a, dict):
        return {k: add(a[k], b[k]) for k in a}
    if type(a) is tuple:  # not a Vec, which has its own addition
        return tuple(add(x, y) for x, y in zip(a, b))
    return a + b


def way_to_base(parent: Sequence[int], body: int) -> Iterator[int]:
    """The body, its parent, and so on to the base."""
    while body >= 0:
        yield body
        body = parent[body]


@dataclass
class Walk:
    """A walk over a machine, on the scalars of `links` and `here`."""

    links: Sequence[Link]
    parent: Sequence[int]
    base: Here
    here: Sequence[Here]
    frame: Frame | None = None  # where a path starts
    stage: Columns | None = None
    arrived: dict[str, Any] = field(default_factory=dict)  # values handed to the base by the last inward pass
    couplings: Sequence[Coupling] = ()

    @cached_property
    def first(self) -> list[int]:
        """The first freedom of every body, and the total number of freedoms."""
        return [0, *accumulate(link.joint.nv for link in self.links)]

    def sweep(self, pass_: Sweep) -> None:
        """Run one pass; the values it keeps are added to `here`."""
        links, parent, here, start = self.links, self.parent, self.here, pass_.start(self.base)
        if pass_.outward:
            handed: list[Any] = [None] * len(links)
            for i, link in enumerate(links):
                near = start if parent[i] < 0 else handed[parent[i]]
                handed[i], keep = pass_.step(link, here[i], SimpleNamespace(**near))
                vars(here[i]).update(keep)
            return
        children: dict[int, Any] = {}
        for i in reversed(range(len(links))):
            hand, keep = pass_.step(links[i], here[i], SimpleNamespace(**children.pop(i, start)))
            vars(here[i]).update(keep)
            p = parent[i]
            children[p] = add(children[p], hand) if p in children else hand
        self.arrived = children.get(-1, start)

    def climb(self, body: int, k: Any) -> dict[int, dict[str, Any]]:
        """One climb from freedom k of a body: the values it keeps at each body on the path."""
        assert self.stage
        kept: dict[int, dict[str, Any]] = {}
        near, kept[body] = self.stage.start(self.links[body], self.here[body], k)
        for i in way_to_base(self.parent, self.parent[body]):
            near, kept[i] = self.stage.climb(self.links[i], self.here[i], SimpleNamespace(**near))
        return kept

    def path(self) -> dict[int, dict[str, Any]]:
        """The climb from the frame, or nothing if it is on the base."""
        assert self.frame is not None
        tip = Rigid(Mat.of(self.frame.R.tolist()), Vec.of(self.frame.p.tolist()))
        return self.climb(self.frame.body, tip) if self.frame.body >= 0 else {}

    def columns(self) -> Iterator[tuple[int, int, Mapping[int, dict[str, Any]]]]:
        """(freedom, its body, values kept at each body) for the climbs from every freedom."""
        assert self.stage
        for j, link in enumerate(self.links):
            for k in range(link.joint.nv):
                kept: Mapping[int, dict[str, Any]] = self.climb(j, k)
                if self.stage.outward:
                    assert self.stage.rest
                    for i, h in enumerate(self.here):
                        vars(h).update(kept.get(i) or self.stage.rest(self.links[i].joint.nv))
                    self.sweep(self.stage.outward)
                    kept = {i: dict(vars(h)) for i, h in enumerate(self.here)}
                yield self.first[j] + k, j, kept

    def zeros(self) -> list[list[Scalar]]:
        n = self.first[-1]
        return [[0.0] * n for _ in range(n)]


def run(algorithm: Algorithm, links: Sequence[Link], parent: Sequence[int], base: Here, here: Sequence[Here],
        frame: Frame | None = None, couplings: Sequence[Coupling] = ()) -> Any:  # fmt: skip
    """Interpret an algorithm on the scalars of `links` and `here`, and return its output."""
    walk = Walk(links, parent, base, here, frame, algorithm.columns, couplings=couplings)
    for stage in algorithm.passes:
        if isinstance(stage, Sweep):
            walk.sweep(stage)
        elif isinstance(stage, Whole):
            stage.run(walk)
    value = algorithm.output.collect(walk)
    return algorithm.then(value, walk) if algorithm.then else value
