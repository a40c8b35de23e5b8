"""Sweeps: the one form in which every O(n) algorithm of torsor is written.

An algorithm is a few passes along the tree of bodies.  A pass calls one *step* function at every body:

    step(link, here, near) -> hand, keep

    link   the body's constants (`torsor.model.links.Link`)
    here   the body's own q, v, tau, ... and whatever earlier passes kept there
    near   what the neighbour handed on: the parent in an `outward` pass, the sum over the children in an
           `inward` one; at the base or at a tip, what the pass starts with
    hand   a dict: what is handed on         keep   a dict: what is kept here for later passes

Matrices need one more pass: `columns` starts at one degree of freedom, climbs to the base, and may then
spread outward over the tree; it is repeated for every degree of freedom, or for one chosen body.

A step is a pure function over scalars of any type and never asks what they are.  `run` below interprets an
algorithm on plain numbers; `torsor.kernel` runs the very same steps on symbols and compiles what they did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torsor.linalg import Mat, Scalar, Vec
from torsor.model.links import Link
from torsor.model.names import Frame
from torsor.spatial import Rigid

Step = Callable[[Link, Any, Any], tuple[dict[str, Any], dict[str, Any]]]


class Here(SimpleNamespace):
    """What is known at one body.  An input that was not given reads as None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


@dataclass(frozen=True)
class Sweep:
    """A pass over all bodies, from the base outward or from the tips inward."""

    step: Step
    start: Callable[[Any], dict[str, Any]]  # base -> what the first body of the pass is handed
    outward: bool


@dataclass(frozen=True)
class Columns:
    """For each degree of freedom: climb from its body to the base, then (perhaps) spread outward over all.

    `start(link, here, k)` is the step at the body the climb begins with, for its k-th freedom (in a "path", k is the
    placement of a frame on that body); `climb` the step at the bodies above it.  `outward` reads what these kept, which
    is `rest(nv)` off the way.
    """

    start: Step
    climb: Step
    outward: Sweep | None = None
    rest: Callable[[int], dict[str, Any]] | None = None


def outward(start: Callable[[Any], dict[str, Any]]) -> Callable[[Step], Sweep]:
    """A pass from the base to the tips; `start(base)` is what the base hands to the first bodies."""
    return lambda step: Sweep(step, start, outward=True)


def inward(start: Callable[[Any], dict[str, Any]]) -> Callable[[Step], Sweep]:
    """A pass from the tips to the base; `start(base)` is zero: what a body without children is handed."""
    return lambda step: Sweep(step, start, outward=False)


@dataclass(frozen=True, eq=False)
class Algorithm:
    """Passes and what comes out of them.

    inputs     the names of the arrays it takes: q, v, tau, ... ; `options` may be left out
    passes     `Sweep`s, perhaps followed by one `Columns`
    output     the name kept (for kind "base": handed to the base) that is the answer
    kind       "joint": nv numbers, one a degree of freedom      "body": an entry a body
               "base": what arrives at the base                  "matrix": nv x nv, from `Columns`
               "path": the columns along the way from a frame on one body to the base
    """

    name: str
    inputs: tuple[str, ...]
    passes: tuple[Sweep | Columns, ...]
    output: str
    kind: str
    options: tuple[str, ...] = ()
    symmetric: bool = False  # a matrix of which the climb gives the upper triangle
    lower: str | None = None  # a matrix whose lower triangle has a name of its own
    product: bool = False  # the matrix is U^T X, where the climb keeps the columns of U (`output`) and X (`lower`)
    by_columns: Algorithm | None = None  # of a product: the same column by column, for loops that cannot do it (CUDA)
    finish: Callable[[Any, Any], Scalar] | None = None  # kind "base": (base, what arrived) -> the answer
    solve: Callable[[Mat, Sequence[int], Sequence[Here]], list[Scalar]] | None = None  # made of a matrix, by
    # (matrix, parents, here); such an algorithm has straight-line code only
    inverts: bool = False  # the mass matrix must be regular
    torques_only: bool = False  # only joint torques and accelerations come out: mass may be regrouped


# The interpreter -------------------------------------------------------------------------------------------


def add(a: Any, b: Any) -> Any:
    """The sum of two things handed on, entry by entry."""
    if isinstance(a, dict):
        return {k: add(a[k], b[k]) for k in a}
    if isinstance(a, tuple) and not hasattr(a, "__add__"):
        return tuple(add(x, y) for x, y in zip(a, b))
    return a + b


def sweep(pass_: Sweep, links: Sequence[Link], parent: Sequence[int], base: Any, here: Sequence[Here]) -> Any:
    """Run one pass; what it keeps is added to `here`.  An inward pass returns what arrives at the base."""
    start = pass_.start(base)
    if pass_.outward:
        handed: list[Any] = [None] * len(links)
        for i, link in enumerate(links):
            near = start if parent[i] < 0 else handed[parent[i]]
            handed[i], keep = pass_.step(link, here[i], SimpleNamespace(**near))
            vars(here[i]).update(keep)
        return None
    children: dict[int, Any] = {}
    for i in reversed(range(len(links))):
        hand, keep = pass_.step(links[i], here[i], SimpleNamespace(**children.pop(i, start)))
        vars(here[i]).update(keep)
        p = parent[i]
        children[p] = add(children[p], hand) if p in children else hand
    return children.get(-1, start)


def way_to_base(parent: Sequence[int], body: int) -> Iterator[int]:
    """The body, its parent, and so on to the base."""
    while body >= 0:
        yield body
        body = parent[body]


def climb(stage: Columns, links: Sequence[Link], parent: Sequence[int], here: Sequence[Here], body: int,
          k: Any) -> dict[int, dict[str, Any]]:  # fmt: skip
    """One climb from freedom k of a body: what it keeps at each body on the way."""
    kept: dict[int, dict[str, Any]] = {}
    near, kept[body] = stage.start(links[body], here[body], k)
    for i in way_to_base(parent, parent[body]):
        near, kept[i] = stage.climb(links[i], here[i], SimpleNamespace(**near))
    return kept


def run(algorithm: Algorithm, links: Sequence[Link], parent: Sequence[int], base: Any, here: Sequence[Here],
        frame: Frame | None = None) -> Any:  # fmt: skip
    """Interpret an algorithm on whatever scalars `links` and `here` hold, and return its output.

    A vector comes back as a flat list, a matrix as a list of rows; `frame` is where the climb of a "path" starts.
    """
    arrived: dict[str, Any] = {}
    for stage in algorithm.passes:
        if isinstance(stage, Sweep):
            arrived = sweep(stage, links, parent, base, here) or arrived
    if algorithm.kind == "base":
        arrival = SimpleNamespace(**arrived)
        return algorithm.finish(base, arrival) if algorithm.finish else getattr(arrival, algorithm.output)
    if algorithm.kind == "joint":
        return [x for h in here for x in getattr(h, algorithm.output)]
    if algorithm.kind == "body":
        return [getattr(h, algorithm.output) for h in here]
    stage = algorithm.passes[-1]
    assert isinstance(stage, Columns)
    if algorithm.kind == "path":
        assert frame is not None
        tip = Rigid(Mat.of(frame.R.tolist()), Vec.of(frame.p.tolist()))
        kept = climb(stage, links, parent, here, frame.body, tip) if frame.body >= 0 else {}
        return {i: keep[algorithm.output] for i, keep in kept.items()}
    matrix = _matrix(algorithm, stage, links, parent, base, here)
    return algorithm.solve(matrix, parent, here) if algorithm.solve else matrix


def _matrix(algorithm: Algorithm, stage: Columns, links: Sequence[Link], parent: Sequence[int], base: Any,
            here: Sequence[Here]) -> Mat:  # fmt: skip
    first = [0]
    for link in links:
        first.append(first[-1] + link.joint.nv)
    n = first[-1]
    if algorithm.product:
        ways = [climb(stage, links, parent, here, j, k) for j, link in enumerate(links) for k in range(link.joint.nv)]
        return Mat.symmetric(lambda i, j: _along(algorithm, ways[i], ways[j]), n)
    A: list[list[Scalar]] = [[0.0] * n for _ in range(n)]
    for j, link in enumerate(links):
        for k in range(link.joint.nv):
            column = first[j] + k
            kept = climb(stage, links, parent, here, j, k)
            if stage.outward:
                assert stage.rest
                for i, h in enumerate(here):
                    vars(h).update(kept.get(i) or stage.rest(links[i].joint.nv))
                sweep(stage.outward, links, parent, base, here)
                kept = {i: vars(h) for i, h in enumerate(here)}
            for i, keep in kept.items():
                for r, x in enumerate(keep[algorithm.output]):
                    A[first[i] + r][column] = x
                if algorithm.symmetric:  # within the body's own block too, so that M is symmetric to the bit
                    for r, x in enumerate(keep[algorithm.output]):
                        A[column][first[i] + r] = x
                elif algorithm.lower and i != j:
                    for r, x in enumerate(keep[algorithm.lower]):
                        A[column][first[i] + r] = x
    return Mat.of(A)


def _along(algorithm: Algorithm, one: dict[int, dict[str, Any]], other: dict[int, dict[str, Any]]) -> Scalar:
    """sum u x over the freedoms on both ways."""
    assert algorithm.lower
    total: Scalar = 0.0
    for i in sorted(one.keys() & other.keys()):
        for u, x in zip(one[i][algorithm.output], other[i][algorithm.lower]):
            total = total + u * x
    return total


def unflatten(xs: Sequence[Scalar], sizes: Sequence[int]) -> list[Vec]:
    """Cut a flat sequence into one `Vec` a body."""
    result, at = [], 0
    for size in sizes:
        result.append(Vec.of(xs[at : at + size]))
        at += size
    return result
