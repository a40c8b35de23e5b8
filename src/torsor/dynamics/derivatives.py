"""`vjp` and `jvp`: products with the Jacobian of a public function, in O(n) like the function itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import ArrayLike

from torsor.compiler.derivative import Derivative, derivative, takes_frame
from torsor.compiler.store import store
from torsor.dynamics.calls import call, call_carefully
from torsor.dynamics.functions import ALGORITHMS, algorithm_for
from torsor.dynamics.matrix_gradients import by_products, is_short, sum_over_columns
from torsor.dynamics.methods import METHODS, MOST_COUPLED
from torsor.errors import ArgumentError
from torsor.inputs import COTANGENT, PARAMETERS
from torsor.model.batch import machine_of, require_models
from torsor.model.model import Model
from torsor.outputs import Parameters, Several
from torsor.sweeps import Algorithm
from torsor.validate import refused_function, shown

# Dense Jacobians and regressors are themselves derivatives.
DIFFERENTIABLE = [f for f, algorithm in ALGORITHMS.items() if not isinstance(algorithm.output, Several | Parameters)]
# The vjp of a matrix is straight-line code up to this many freedoms, because the code is long.
MOST_FREEDOMS = 24
# Functions that are products: M x without gravity and velocity, M^-1 x, and J v of every body.
PRODUCTS = ("inverse_dynamics", "mass_solve", "body_twists")
# How to get products with the derivatives of functions that are themselves derivatives.
INSTEAD = {
    "inverse_dynamics_derivatives": "ts.vjp(ts.jvp(ts.inverse_dynamics)) is the product of second derivatives",
    "forward_dynamics_derivatives": "ts.vjp(ts.jvp(ts.forward_dynamics)) is the product of second derivatives",
    "torque_regressor": 'Y x is ts.jvp(ts.inverse_dynamics, "inertia"), which ts.vjp differentiates',
}


def vjp(function: Callable[..., Any], wrt: str | Iterable[str] | None = None) -> Differentiated:
    r"""Make the function that multiplies the transposed Jacobian of a function by a vector: a gradient.

    For $y = f(x)$ it returns $\bar x = J^T \bar y$, the gradient of $\bar y \cdot y$, at the cost of about two
    evaluations of f. Gradients with respect to q have nv numbers, along `model.integrate(q, dx)`.

    Parameters
    ----------
    function : callable
        A public function, `jvp` of one, or `rollout`.
    wrt : str or sequence of str, optional
        The inputs to differentiate: an argument ("q", "v", "tau", "qdd", "b", "external", "base_velocity",
        "base_acceleration"), "gravity", "inertia", "placement"; for `rollout` also parameters of forces, "PD.kp".
        Default: all required arrays of the function.

    Returns
    -------
    gradient : callable
        A function of the original arguments and the cotangents; it returns an array, or a named tuple of arrays.

    Raises
    ------
    ArgumentError
        The function has no derivative, or none with respect to that input.

    Examples
    --------
    Which torques change the acceleration of the last joint most? A row of M^-1:

    >>> import numpy as np, torsor as ts
    >>> arm, q, zero = ts.zoo.double_pendulum(), np.array([0.1, 0.2]), np.zeros(2)
    >>> row = ts.vjp(ts.forward_dynamics, "tau")(arm, q, zero, zero, [0.0, 1.0])
    >>> np.allclose(row.tau, ts.inverse_mass_matrix(arm, q)[1])
    True
    """
    if (own := getattr(function, "vjp", None)) is not None:  # a function with its own vjp, such as a rollout
        return own(wrt)
    return Differentiated(_known(function, "jvp"), "vjp", wrt_names(wrt))


def jvp(function: Callable[..., Any], wrt: str | Iterable[str] | None = None) -> Differentiated:
    r"""Make the function that multiplies the Jacobian of a function by a vector: a directional derivative.

    For $y = f(x)$ it returns $\dot y = J \dot x$, at the cost of about two evaluations of f. A direction of q has nv
    numbers, along `model.integrate(q, dx)`.

    Parameters
    ----------
    function : callable
        A public function, or `vjp` or `jvp` of one.
    wrt : str or sequence of str, optional
        The inputs to differentiate, as in `vjp`.

    Returns
    -------
    derivative : callable
        A function of the original arguments and the tangents; its results have the same form.

    Raises
    ------
    ArgumentError
        The function has no derivative, or none with respect to that input.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm, q, v = ts.zoo.double_pendulum(), np.array([0.1, 0.2]), np.array([0.5, -1.0])
    >>> change = ts.jvp(ts.potential_energy)(arm, q, v)  # dU/dt = g . v
    >>> np.allclose(change, ts.gravity_forces(arm, q) @ v)
    True
    """
    return Differentiated(_known(function), "jvp", wrt_names(wrt))


@dataclass(frozen=True, repr=False)
class Differentiated:
    """The result of `vjp` and `jvp`: a function of a model and arrays, which `compile` and `export` also take."""

    function: Callable[..., Any]
    mode: str
    wrt: tuple[str, ...] | None

    @property
    def __name__(self) -> str:
        return f"{self.mode}({self.function.__name__})"

    def __repr__(self) -> str:
        return self.__name__ if self.wrt is None else f"{self.__name__[:-1]}, {', '.join(self.wrt)})"

    @property
    def root(self) -> Callable[..., Any]:
        """The function that is differentiated, once or twice."""
        return self.function.root if isinstance(self.function, Differentiated) else self.function

    def __call__(self, model: Model, *args: ArrayLike, method: str = "auto", body: int | str | None = None,
                 **options: ArrayLike | None) -> Any:  # fmt: skip
        require_models(model)
        if method == "auto" and options.get("added_inertia") is not None and not machine_of(model).couplings:
            method = next(iter(METHODS.get(self.root.__name__, ("auto",))))  # the method that takes it, if there is one
        algorithm, by_columns = store(model).once(("derivative", self, method), lambda: self.algorithm(model, method))
        if not options and body is None and not by_columns and self.plain(algorithm, len(args)):
            return call(algorithm, model, *args)
        arrays, body = self._arranged(algorithm, args, body)
        given = {name: x for name, x in options.items() if x is not None}
        self.check_options(algorithm, tuple(options), tuple(given))
        frame = None if body is None else machine_of(model).frame(body)
        if by_columns:
            return sum_over_columns(algorithm, model, arrays, frame)
        if given or body is not None:
            return call_carefully(algorithm, model, arrays, frame, **given)
        return call(algorithm, model, *arrays)

    @functools.cache  # noqa: B019 (few derivatives are made, and these live as long as the functions)
    def plain(self, algorithm: Derivative, count: int) -> bool:
        """Whether this number of arguments matches the arrays of the algorithm, and it needs nothing else."""
        return count == len(algorithm.inputs) and not takes_frame(algorithm) and not self.needed(algorithm)

    def algorithm(self, model: Model, method: str = "auto", specialised: bool | None = None, *,
                  patient: bool = False) -> tuple[Derivative, bool]:  # fmt: skip
        """The algorithm for a model, and whether it is computed as a sum over the columns of a matrix.

        `patient`: the caller waits for straight-line code of up to 70,000 operations.
        """
        result = self._made(model, method, specialised)
        nv, most = machine_of(model).nv, MOST_COUPLED if result.couples else MOST_FREEDOMS
        straight = nv <= most or specialised or (patient and by_products(result) and is_short(result, model))
        if result.has_loops or (straight and specialised is not False):
            return result, False
        if by_products(result):
            return result, True
        M, inverse, J = (self.__name__.replace(self.root.__name__, f) for f in PRODUCTS)
        raise ArgumentError(
            f"{self.__name__} is compiled as straight-line code only, for at most {most} freedoms, not {nv} "
            f"unless specialised=True; differentiate a product instead: {M} of M x, {inverse} of M^-1 x, {J} of J v"
        )

    def _made(self, model: Model, method: str, specialised: bool | None) -> Derivative:
        if isinstance(self.function, Differentiated):
            primal: Algorithm = self.function._made(model, method, specialised)
        else:
            primal = algorithm_for(model, self.function, method, specialised)
        result = derivative(primal, self.mode, primal.inputs if self.wrt is None else self.wrt)
        has_others = not result.has_loops and not result.couples and self.function in ALGORITHMS
        if method == "auto" and has_others and not by_products(result) and (_is_large(model) or specialised is False):
            # one that loops can differentiate
            return derivative(ALGORITHMS[self.function], self.mode, result.wrt)
        return result

    def check_options(self, algorithm: Derivative, named: tuple[str, ...], given: tuple[str, ...]) -> None:
        """Refuse options that the function does not take, and missing options that `wrt` needs."""
        for name in named:
            if name not in algorithm.options:
                known = ", ".join(("method", *inspect.signature(self.root).parameters.keys() & {*algorithm.options}))
                raise ArgumentError(f"{self.__name__} takes no {name}=; the options of its derivative are: {known}")
        for name in sorted(self.needed(algorithm) - set(given)):
            raise ArgumentError(f"{self.__name__} is to be differentiated by {name}: give {name}=, perhaps zeros")

    def needed(self, algorithm: Algorithm) -> set[str]:
        """The options with respect to which the function is differentiated."""
        wrt = algorithm.wrt if isinstance(algorithm, Derivative) else ()
        return {name for name in algorithm.options if name in wrt or f"d{name}" in algorithm.inputs}

    def _arranged(self, algorithm: Derivative, args: tuple[Any, ...], body: Any) -> tuple[tuple[Any, ...], Any]:
        """The arrays, and the body of a Jacobian, which may be among them."""
        names = [
            p.name for p in list(inspect.signature(self.root).parameters.values())[1:] if p.kind is not p.KEYWORD_ONLY
        ]
        takes_body = "body" in names
        names += [COTANGENT if x.startswith(COTANGENT) else x for x in algorithm.inputs if x not in names]
        if takes_body and body is not None:
            names.remove("body")
        if len(args) != len(names) or (body is not None and not takes_body):
            raise ArgumentError(
                f"{self.__name__} takes {', '.join(('model', *names))}; {len(args) + 1} arguments were given"
            )
        if "body" in names:
            place = names.index("body")
            args, body = (*args[:place], *args[place + 1 :]), args[place]
            if body is None:
                raise ArgumentError("body None is the base, which never moves: give a body or frame by number or name")
        return args, body

    def by(self, wrt: str | Iterable[str] | None) -> Differentiated:
        """The same with another `wrt`; None keeps it."""
        return self if wrt is None else replace(self, wrt=wrt_names(wrt))


def _is_large(model: Model) -> bool:
    """Whether a model has too many freedoms for straight-line code of the vjp of a matrix."""
    return machine_of(model).nv > MOST_FREEDOMS


def _known(function: Callable[..., Any], again: str = "") -> Callable[..., Any]:
    """The function, if it has a derivative; `again`: the mode of a derivative that may be differentiated again."""
    if isinstance(function, Differentiated):
        if isinstance(function.function, Differentiated) or function.mode != again:
            raise ArgumentError(
                f"{function.__name__} is not differentiated this way; for second derivatives: vjp(jvp(f))"
            )
        return function
    if any(function is known for known in DIFFERENTIABLE):
        return function
    if any(function is known for known in ALGORITHMS):
        raise ArgumentError(f"{function.__name__} is a derivative itself: {INSTEAD[function.__name__]}")
    known = (*(f.__name__ for f in DIFFERENTIABLE), "rollout")  # which brings its own vjp
    raise refused_function(function, "has no derivative; these have", known)


def wrt_names(wrt: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """The names in `wrt`, checked; None if none are given."""
    if wrt is None:
        return None
    given: Any = (wrt,) if isinstance(wrt, str) or getattr(wrt, "shape", None) == () else wrt
    names = tuple(given) if isinstance(given, Iterable) else (given,)
    if not names or not all(isinstance(name, str) for name in names):
        raise ArgumentError(
            f"wrt must be one or more names of arguments or of {', '.join(PARAMETERS)}, not {shown(wrt)}"
        )
    if len(set(names)) < len(names):
        raise ArgumentError(f"wrt names something twice: {', '.join(names)}")
    return tuple(names)
