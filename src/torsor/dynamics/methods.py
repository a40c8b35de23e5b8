"""The choice of the algorithm for a function and a model: the one named, or the one with the fewest operations.

O(n) sweeps are faster on long chains, the O(n^3) method through the mass matrix on short ones (Saha 2001, Table I).
The crossover depends on the machine, so the operations of the actual code are counted.  Only methods that are as
accurate as the articulated sweeps on this machine are considered (`torsor.model.conditioning`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torsor.algorithms import (
    articulated,
    coupled,
    forward_derivatives,
    newton_euler,
    ploen_park,
    ploen_park_forward,
    udut,
    walker_orin,
)
from torsor.backends.cache import remembered, sources
from torsor.compiler.request import ALWAYS, Request
from torsor.errors import ArgumentError
from torsor.model.conditioning import EVEN, pivot_ratio
from torsor.model.joints import joint_code
from torsor.model.model import Model, require_model
from torsor.sweeps import Algorithm
from torsor.validate import refused_function

if TYPE_CHECKING:
    from torsor.compiler.tape import Operations

# by function: the compiled methods; the first works for machines of any size
METHODS: dict[str, dict[str, Algorithm]] = {
    "forward_dynamics": {
        "articulated": articulated.forward_dynamics,
        "composite": walker_orin.forward_dynamics,
        "udut": udut.forward_dynamics,
        "ploen-park": ploen_park_forward.forward_dynamics,
    },
    "mass_solve": {"articulated": articulated.mass_solve, "composite": walker_orin.mass_solve, "udut": udut.mass_solve},
    "inverse_mass_matrix": {"articulated": articulated.inverse_mass_matrix, "product": articulated.inverse_by_product},
    "log_det_mass_matrix": {"articulated": articulated.log_det},
    "forward_dynamics_derivatives": {
        "articulated": forward_derivatives.forward_dynamics_derivatives,
        "composite": forward_derivatives.composite_derivatives,
    },
    "inverse_dynamics": {"newton-euler": newton_euler.inverse_dynamics, "ploen-park": ploen_park.inverse_dynamics},
}
# by function: the algorithm for machines whose joints follow others; straight-line code, limited in freedoms
COUPLED: dict[str, Algorithm] = {
    "forward_dynamics": coupled.forward_dynamics,
    "mass_solve": coupled.mass_solve,
    "inverse_mass_matrix": coupled.inverse_mass_matrix,
    "log_det_mass_matrix": coupled.log_det,
    "forward_dynamics_derivatives": coupled.forward_dynamics_derivatives,
}
MOST_COUPLED = 40
# Methods of forward dynamics and M^-1 b that are called state by state and have no program.
NOT_COMPILED = ("fixman", "segments", "constraint-force")
# The methods that method="auto" counts and chooses from; the others never had the fewest operations.
CANDIDATES = ("articulated", "composite", "newton-euler")
# Straight-line code is made up to this many freedoms; the method through the mass matrix exists only as such code.
MOST_FREEDOMS = 12
# The derivatives of forward dynamics use the mass matrix up to this many freedoms: 9000 operations, compiled in 1.5 s.
FEW_FREEDOMS = 8
# On 150 random arms up to this pivot ratio they were at most 20 times less accurate than by articulated bodies, which
# also multiply by M^-1.
EVEN_DERIVATIVES = 1e6
# On chains of this many revolute joints or more the sweeps always had the fewest operations: nothing is counted.
SETTLED = {"forward_dynamics": 8, "mass_solve": 10, "inverse_dynamics": 0, "log_det_mass_matrix": 0}
# M^-1 as a product sums over the freedoms that two paths to the base share.  It is faster up to this many freedoms per
# path (1.2 times at 48 and 1.1 times at 60, where the operations are equal).
SHORT_WAY = 60
# Segments of one long chain are 1.6 to 2 times faster from this many bodies on, and less below
# (bench/results/long_chain.json).
SEGMENTS_FROM = 2000


class Choice(NamedTuple):
    """Hold the method that method="auto" takes, and the reason, as a named tuple.

    Attributes
    ----------
    method : str
        The name of the method.
    operations : dict of str to Operations
        Those of every method, for one state; empty if nothing was counted.
    why : str
        The reason, in words.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.explain(ts.zoo.panda(), ts.inverse_dynamics).method
    'newton-euler'
    """

    method: str
    operations: dict[str, Operations]  # of every method, for one state; empty if nothing was counted
    why: str


def explain(model: Model, function: Callable[..., Any]) -> Choice:
    """Explain the choice of method="auto" for a function on this machine.

    Parameters
    ----------
    model : Model
        The machine.
    function : callable
        A public function with several methods, such as `forward_dynamics`.

    Returns
    -------
    choice : Choice
        `method`, `operations` of every method for one state, and a sentence `why`; a named tuple.

    Raises
    ------
    ArgumentError
        The function has only one method.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.explain(ts.zoo.humanoid(), ts.forward_dynamics).why
    'articulated: O(n) sweeps; 36 freedoms are too many for code through the mass matrix'
    """
    require_model(model)
    return _choice(model, function, _methods(function))


def _choice(model: Model, function: Callable[..., Any], counted: dict[str, Algorithm]) -> Choice:
    """`counted`: the methods whose operations are counted."""
    methods = _methods(function)
    if model.couplings and function.__name__ in COUPLED:
        return Choice("coupled", {}, "coupled: joints follow others, so the mass matrix is projected")
    if methods is METHODS["inverse_mass_matrix"]:
        longest = _longest_way(model)
        best = "product" if longest <= SHORT_WAY else "articulated"
        return Choice(best, {}, f"{best}: the longest way to the base has {longest} freedoms (product: to {SHORT_WAY})")
    if methods is METHODS["forward_dynamics_derivatives"]:
        if model.nv <= FEW_FREEDOMS and pivot_ratio(model) <= EVEN_DERIVATIVES:
            return Choice("composite", {}, f"composite: the fewest operations up to {FEW_FREEDOMS} freedoms")
        why = "too many freedoms" if model.nv > FEW_FREEDOMS else "masses or lengths too uneven"
        return Choice("articulated", {}, f"articulated: {why} for code through the mass matrix")
    first = next(iter(methods))
    if model.nv > MOST_FREEDOMS:
        why = f"{first}: O(n) sweeps; {model.nv} freedoms are too many for code through the mass matrix"
        if model.n >= SEGMENTS_FROM and methods is METHODS["forward_dynamics"]:
            why += "; for one state alone, segments of the chain, if its joints and masses allow"
        return Choice(first, {}, why)
    counts = {method: _count(algorithm, model) for method, algorithm in counted.items()}
    words = ", ".join(f"{method} {sum(count)}" for method, count in counts.items())
    if _inverts(methods) and pivot_ratio(model) > EVEN:
        ratio = pivot_ratio(model)
        times = f"{ratio:.1g} times their pivots" if np.isfinite(ratio) else "any number of times their pivots"
        why = f"entries of M may be {times}, and only sweeps keep the digits then"
        return Choice(first, counts, f"{first}: {why} (operations per state: {words})")
    candidates = [method for method in counts if method in CANDIDATES]
    best = min(candidates, key=lambda method: sum(counts[method]))  # the first, if several are equal
    return Choice(best, counts, f"{best}: the fewest operations per state ({words})")


def automatic(model: Model, function: Callable[..., Any]) -> Algorithm:
    """The algorithm of `explain`.  Counting takes some 20 ms, so the result is stored on disk with the kernels."""
    methods = _methods(function)
    if model.couplings and function.__name__ in COUPLED:
        return COUPLED[function.__name__]
    if methods in (METHODS["inverse_mass_matrix"], METHODS["forward_dynamics_derivatives"]):
        return methods[explain(model, function).method]
    if _settled(model, function):
        return next(iter(methods.values()))
    key = f"{sources()}|{model.key}|{function.__name__}"
    candidates = {method: algorithm for method, algorithm in methods.items() if method in CANDIDATES}
    return methods[remembered(key, lambda: _choice(model, function, candidates).method)]


def _inverts(methods: dict[str, Algorithm]) -> bool:
    return any(algorithm.inverts for algorithm in methods.values())


def _settled(model: Model, function: Callable[..., Any]) -> bool:
    """Whether it is clear without counting that the sweeps are fastest, or that only they are accurate."""
    if model.nv > MOST_FREEDOMS:
        return True
    revolute = model.is_chain and bool(np.all(model.joint == joint_code("revolute")))
    if revolute and model.nv >= SETTLED[function.__name__]:
        return True
    return _inverts(_methods(function)) and pivot_ratio(model) > EVEN


def _longest_way(model: Model) -> int:
    """The most freedoms between a body and the base."""
    if model.is_chain:
        return model.nv
    ways: list[int] = []
    for parent, freedoms in zip(model.parent.tolist(), np.diff(model.v_start).tolist()):
        ways.append(freedoms + (ways[parent] if parent >= 0 else 0))
    return max(ways)


def _methods(function: Callable[..., Any]) -> dict[str, Algorithm]:
    methods = METHODS.get(getattr(function, "__name__", ""))
    if methods is None:
        raise refused_function(function, "has one method only; those with a choice", METHODS)
    return methods


def _count(algorithm: Algorithm, model: Model) -> Operations:
    """The operations of the code for this model."""
    return Request(algorithm, model, unroll=ALWAYS).operations


def most_freedoms(algorithm: Algorithm) -> float:
    """The largest number of freedoms for which an algorithm is compiled."""
    return inf if algorithm.has_loops else MOST_COUPLED if algorithm.couples else MOST_FREEDOMS


def named(function: Callable[..., Any], method: str, *others: str) -> Algorithm:
    """The algorithm of that name; `others` are methods that are not algorithms."""
    methods = METHODS.get(function.__name__, {})
    if not methods:
        raise ArgumentError(f"unknown method {method!r}: {function.__name__} has one method only; leave out method=")
    return methods[choose(method, *methods, *others)]


def choose(method: str, *known: str) -> str:
    """The method; for "auto", the first of the known ones."""
    if method not in ("auto", *known):
        raise ArgumentError(f"unknown method {method!r}; choose one of: auto, {', '.join(known)}")
    return known[0] if method == "auto" else method
