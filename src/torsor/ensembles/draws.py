"""The differences between members: distributions, and the quantities of a model that vary.

Member k of a study draws from `default_rng([seed, k])`, so it can be drawn alone, and in any order.  All draws are
uniform numbers u in (0, 1), turned into values by the inverse of a distribution function; a Sobol sequence or a Latin
hypercube gives u instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.ensembles import streams
from torsor.errors import ArgumentError
from torsor.later import Later
from torsor.model.check import SHAPES
from torsor.model.freedoms import DEFAULTS
from torsor.model.model import Model
from torsor.validate import chosen, parameter, real_array, shown

special, qmc = Later("scipy.special"), Later("scipy.stats.qmc")

Array = NDArray[Any]
Forces = Sequence[Any]

SAMPLING = ("random", "sobol", "latin-hypercube", "saltelli")
FEW = 32  # up to this number, members are drawn one by one
TINY = 2.0**-54  # u stays away from 0, where a normal distribution has no value


@dataclass(frozen=True)
class Distribution:
    """`relative`: the value is a factor of the model's value."""

    relative: bool = False

    def value(self, u: Array) -> Array:
        """Compute quantiles of the distribution.

        Parameters
        ----------
        u : (...) ndarray
            Fractions between 0 and 1.

        Returns
        -------
        x : (...) ndarray
            The quantiles at these fractions.
        """
        raise NotImplementedError

    def parameters(self) -> dict[str, Any]:
        """Describe the distribution as JSON values.

        Returns
        -------
        words : dict
            The name and the parameters.
        """
        return {"distribution": type(self).__name__} | {
            key: np.asarray(x).tolist() for key, x in vars(self).items()
        }  # fmt: skip


@dataclass(frozen=True)
class Normal(Distribution):
    """A normal distribution.

    Parameters
    ----------
    relative : bool, default False
        The value is a factor of the model's own.
    mean : float or array_like, default 0.0
        The mean.
    std : float or array_like, default 1.0
        The standard deviation.

    Raises
    ------
    ArgumentError
        The standard deviation is negative.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> print(ts.Normal(mean=1.0, std=0.1).value(np.array([0.5])))
    [1.]
    """

    mean: ArrayLike = 0.0
    std: ArrayLike = 1.0

    def __post_init__(self) -> None:
        _numbers(self, "mean", "std", positive="std")

    def value(self, u: Array) -> Array:
        return np.asarray(self.mean) + np.asarray(self.std) * special.ndtri(u)


@dataclass(frozen=True)
class Uniform(Distribution):
    """A uniform distribution between two numbers.

    Parameters
    ----------
    relative : bool, default False
        The value is a factor of the model's own.
    low, high : float or array_like, default 0.0, 1.0
        The ends.

    Raises
    ------
    ArgumentError
        low exceeds high.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> print(ts.Uniform(low=2.0, high=4.0).value(np.array([0.25])))
    [2.5]
    """

    low: ArrayLike = 0.0
    high: ArrayLike = 1.0

    def __post_init__(self) -> None:
        _numbers(self, "low", "high")
        if not _go_together(np.shape(self.low), np.shape(self.high)):
            raise ArgumentError(f"Uniform: low {np.shape(self.low)} and high {np.shape(self.high)} do not go together")
        if (np.asarray(self.low) > np.asarray(self.high)).any():
            raise ArgumentError(f"Uniform: low = {shown(self.low)} exceeds high = {shown(self.high)}")

    def value(self, u: Array) -> Array:
        return np.asarray(self.low) * (1 - u) + np.asarray(self.high) * u


@dataclass(frozen=True)
class LogNormal(Distribution):
    """The exponential of a normal distribution: median times exp(sigma z).

    Parameters
    ----------
    relative : bool, default False
        The value is a factor of the model's own.
    median : float or array_like, default 1.0
        The median.
    sigma : float or array_like, default 0.1
        The standard deviation of the logarithm.

    Raises
    ------
    ArgumentError
        sigma is negative.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> print(ts.LogNormal(median=50.0, sigma=0.3).value(np.array([0.5])))
    [50.]
    """

    median: ArrayLike = 1.0
    sigma: ArrayLike = 0.1

    def __post_init__(self) -> None:
        _numbers(self, "median", "sigma", positive="sigma")

    def value(self, u: Array) -> Array:
        return np.asarray(self.median) * np.exp(np.asarray(self.sigma) * special.ndtri(u))


def _go_together(*shapes: tuple[int, ...]) -> bool:
    """Whether arrays of these shapes broadcast together."""
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True


def _numbers(distribution: Distribution, *names: str, positive: str = "") -> None:
    for name in names:
        value = real_array(f"{type(distribution).__name__}: {name}", getattr(distribution, name))
        if name == positive and (value < 0).any():
            raise ArgumentError(f"{type(distribution).__name__}: {name} must not be negative, not {value}")


# Quantities ------------------------------------------------------------------------------------------------------

STATES = ("q0", "v0")
JOINTS = tuple(DEFAULTS)  # quantities of the freedoms


@dataclass(frozen=True, eq=False)
class Varied:
    """Entries of an array that vary: `field`, and the bodies or entries along its first axis."""

    key: str  # as the user named it
    field: str  # q0, v0, a field of the model, density, or FORCE.PARAMETER
    rows: Array  # along the first axis
    shape: tuple[int, ...]  # of the values: (rows, ...)

    @classmethod
    def named(cls, key: str, model: Model, forces: Forces = ()) -> Varied:
        """q0, v0, gravity, FORCE.PARAMETER, or BODY.FIELD with * for all bodies: `link3.mass`, `*.damping`, `PD.kp`."""
        body, _, name = key.rpartition(".") if isinstance(key, str) else ("", "", "")
        whole = {"q0": model.nq, "v0": model.nv, "gravity": 3}
        if (force := _force_named(forces, body)) is not None and hasattr(force, name):
            size = model.nq if name in ("reference", "rest") else model.nv
            return cls(key, key, np.arange(size), (size,))
        if not body and name in whole:
            return cls(key, name, np.arange(whole[name]), (whole[name],))
        known = ("density", *SHAPES, *JOINTS)
        if not body or name not in known:
            raise ArgumentError(
                f"vary[{shown(key)}] is unknown: give {', '.join(whole)}, or BODY.FIELD with one of the fields "
                f"{', '.join(known)}"
            )
        bodies = np.arange(model.n) if body == "*" else np.array([model.frame(body).body])
        if bodies.min() < 0:
            raise ArgumentError(f"vary[{shown(key)}]: {body!r} is on the base, of which nothing varies")
        if name in JOINTS:
            freedoms = [np.arange(model.v_start[i], model.v_start[i + 1]) for i in bodies.tolist()]
            rows = np.concatenate(freedoms)
            return cls(key, name, rows, (len(rows),))
        return cls(key, name, bodies, (len(bodies), *SHAPES.get(name, ())))

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def of_force(self) -> bool:
        """Whether it is a parameter of a force."""
        return "." in self.field

    def nominal(self, model: Model, forces: Forces = ()) -> Array:
        """The values of the model or of a force."""
        if self.field == "density":
            return np.ones(self.shape)
        if self.of_force:
            body, _, name = self.field.rpartition(".")
            return np.broadcast_to(np.asarray(getattr(_force_named(forces, body), name), float), self.shape)
        own = {"q0": model.neutral(), "v0": np.zeros(model.nv)}
        return np.asarray(own.get(self.field, getattr(model, self.field, None)))[self.rows]


def _force_named(forces: Forces, name: str) -> Any:
    """The only force of that class, if there is one."""
    found = [force for force in forces if type(force).__name__ == name]
    return found[0] if len(found) == 1 else None


def forces_of(forces: Forces, drawn: Mapping[Varied, Array]) -> list[Any]:
    """The forces with the drawn parameters of some members."""
    changed: dict[int, dict[str, Array]] = {}
    for quantity, values in drawn.items():
        if quantity.of_force:
            name, _, parameter = quantity.field.rpartition(".")
            changed.setdefault(id(_force_named(forces, name)), {})[parameter] = values
    return [replace(force, **changed[id(force)]) if id(force) in changed else force for force in forces]


class Draws:
    """The draws of the members of a study: `vary` maps names of quantities to distributions or arrays (n, ...)."""

    def __init__(self, model: Model, vary: Mapping[str, Any] | Callable[[np.random.Generator], Mapping[str, Any]],
                 n: int, seed: int, sampling: str, forces: Forces = ()) -> None:  # fmt: skip
        self.model, self.n, self.seed, self.forces = model, n, seed, forces
        self.first = 0  # the member to which the first row of every array belongs
        self.sampling = chosen("sampling", sampling, SAMPLING)
        self.function = vary if callable(vary) else None
        self.varied: dict[Varied, Any] = {}
        if not callable(vary) and not isinstance(vary, Mapping):
            raise ArgumentError(f"vary must be a dict of names, or a function that gives one, not {shown(vary)}")
        for key, value in {} if callable(vary) else vary.items():
            quantity = Varied.named(key, model, forces)
            if not isinstance(value, Distribution):
                value = real_array(f"vary[{key!r}]", value)
                own = value.shape[1:]
                fits = _go_together(own, quantity.shape) and np.broadcast_shapes(own, quantity.shape) == quantity.shape
                if value.shape[:1] != (n,) or not fits:
                    raise ArgumentError(f"vary[{key!r}] has shape {value.shape}; {(n, *quantity.shape)} is needed")
            else:
                self._check(key, quantity, value)
            self.varied[quantity] = value
        self._check_overlaps()
        if self.function and sampling != "random":
            raise ArgumentError("a function draws by itself: leave sampling at 'random'")
        if sampling == "saltelli":
            self._check_design()

    def _check_overlaps(self) -> None:
        """Raise if everything drawn for a quantity is replaced by a later one."""
        for last, later in enumerate(self.varied):
            for earlier in list(self.varied)[:last]:
                if earlier.field == later.field != "density" and {*earlier.rows.tolist()} <= {*later.rows.tolist()}:
                    raise ArgumentError(
                        f"vary[{earlier.key!r}] would be replaced by vary[{later.key!r}]: give it later"
                    )

    @staticmethod
    def _check(key: str, quantity: Varied, distribution: Distribution) -> None:
        try:
            shape = np.broadcast_shapes(distribution.value(np.full(quantity.shape, 0.5)).shape, quantity.shape)
        except ValueError:
            shape = ()
        if shape != quantity.shape:
            raise ArgumentError(f"vary[{key!r}]: the parameters of {distribution} do not fit shape {quantity.shape}")

    def _check_design(self) -> None:
        """Raise unless the members are those of Saltelli's design: N (d + 2), N a power of two."""
        blocks = self.width + 2
        rows = self.n // blocks
        if not all(isinstance(x, Distribution) for x in self.varied.values()) or not self.varied:
            raise ArgumentError("sampling 'saltelli' needs a distribution for everything that varies")
        if rows * blocks != self.n or rows < 2 or rows & (rows - 1):
            near = 2 ** max(1, round(np.log2(max(self.n / blocks, 1))))
            raise ArgumentError(
                f"sampling 'saltelli' of {self.width} numbers needs n = N * {blocks} members, N a power of 2, for "
                f"example {near * blocks}, not {self.n}"
            )

    @property
    def width(self) -> int:
        """The count of uniform numbers that a member draws."""
        return sum(q.size for q, value in self.varied.items() if isinstance(value, Distribution))

    def part(self, first: int, end: int) -> Draws:
        """The same for some members only, without arrays of all members, so that it is quick to send."""
        some = object.__new__(Draws)
        some.__dict__ |= {name: x for name, x in self.__dict__.items() if name not in ("cube", "rows")}
        some.first = first
        some.varied = {
            q: x if isinstance(x, Distribution) else x[first - self.first : end - self.first]
            for q, x in self.varied.items()
        }
        if self.sampling != "random":  # a worker would make the whole sequence
            some.__dict__["part"] = self.uniform(first, end)
        return some

    def members(self, first: int, end: int) -> dict[Varied, Array]:
        """The values (end - first, ...) of some members."""
        if self.function:
            return self._by_function(first, end)
        found: dict[Varied, Array] = {}
        u, at = self.uniform(first, end), 0
        for quantity, value in self.varied.items():
            if isinstance(value, Distribution):
                x = value.value(u[:, at : at + quantity.size].reshape(-1, *quantity.shape))
                at += quantity.size
                found[quantity] = x * quantity.nominal(self.model, self.forces) if value.relative else x
            else:
                found[quantity] = np.array(
                    np.broadcast_to(value[first - self.first : end - self.first], (end - first, *quantity.shape))
                )
        return found

    def uniform(self, first: int, end: int) -> Array:
        """Numbers in (0, 1), (end - first, width)."""
        if not self.width:
            return np.zeros((end - first, 0))
        if "part" in self.__dict__:
            return self.__dict__["part"][first - self.first : end - self.first]
        if self.sampling == "random":
            u = self._random(first, end)
        elif self.sampling == "sobol":
            sequence = qmc.Sobol(self.width, scramble=True, rng=np.random.default_rng(self.seed))
            with warnings.catch_warnings():  # SciPy warns about parts of a sequence
                warnings.simplefilter("ignore")
                u = (sequence.fast_forward(first) if first else sequence).random(end - first)
        elif self.sampling == "saltelli":
            u = self._design(first, end)
        else:
            u = self._hypercube[first:end]
        return np.clip(u, TINY, 1 - TINY)

    def _random(self, first: int, end: int) -> Array:
        """The numbers of every member; many at once, unless this version of NumPy seeds or draws differently."""
        own = np.random.default_rng([self.seed, first]).random(self.width)
        if end - first > FEW:
            together = streams.uniform(self.seed, first, end, self.width)
            if np.array_equal(together[0], own):
                return together
        others = (np.random.default_rng([self.seed, k]).random(self.width) for k in range(first + 1, end))
        return np.array([own, *others])

    @property
    def _hypercube(self) -> Array:
        if "cube" not in self.__dict__:
            self.__dict__["cube"] = qmc.LatinHypercube(self.width, rng=np.random.default_rng(self.seed)).random(self.n)
        return self.__dict__["cube"]

    def _design(self, first: int, end: int) -> Array:
        """Rows of A, of B, and of A with one column of B after the other, for first and total Sobol indices.

        A. Saltelli & al., Variance based sensitivity analysis of model output, Comput. Phys. Commun. 181, 2010.
        """
        d = self.width
        if "rows" not in self.__dict__:
            self.__dict__["rows"] = qmc.Sobol(2 * d, rng=np.random.default_rng(self.seed)).random(self.n // (d + 2))
        A, B = np.split(self.__dict__["rows"], 2, axis=1)
        block, row = np.divmod(np.arange(first, end), len(A))
        from_B = (block == 1)[:, None] | (block[:, None] - 2 == np.arange(d))
        return np.where(from_B, B[row], A[row])

    def _by_function(self, first: int, end: int) -> dict[Varied, Array]:
        assert self.function
        rows: list[dict[str, Any]] = []
        for k in range(first, end):
            drawn = self.function(np.random.default_rng([self.seed, k]))
            if not isinstance(drawn, Mapping):
                raise ArgumentError(f"the function of vary must return a dict, not {shown(drawn)}")
            rows.append(dict(drawn))
        found = {}
        for key in rows[0]:
            quantity = Varied.named(key, self.model, self.forces)
            try:
                values = [np.broadcast_to(real_array(f"vary[{key!r}]", row[key]), quantity.shape) for row in rows]
            except (KeyError, ValueError):
                raise ArgumentError(
                    f"the function of vary must give {key!r} of shape {quantity.shape} always"
                ) from None
            found[quantity] = np.array(values)
        return found

    def quantities(self) -> Iterator[Varied]:
        """What is drawn, in order."""
        if self.function:
            yield from self.members(0, 1)
        else:
            yield from self.varied

    def described(self) -> Any:
        """A description of the draws for the store."""
        if self.function:
            return getattr(self.function, "__qualname__", "function")
        return {q.key: x.parameters() if isinstance(x, Distribution) else "given" for q, x in self.varied.items()}


def fields_of(model: Model, drawn: Mapping[Varied, Array]) -> dict[str, Array]:
    """The fields of a `ModelBatch` from the draws of some members, without states and parameters of forces."""
    fields: dict[str, Array] = {}
    # density comes last, because it is a factor
    for quantity, values in sorted(drawn.items(), key=lambda x: x[0].field == "density"):
        if quantity.field in STATES or quantity.of_force:
            continue
        if quantity.field == "density":
            for name in ("mass", "inertia"):
                factors = values.reshape(*values.shape, *[1] * len(SHAPES[name]))
                _copies(model, name, fields, len(values))[:, quantity.rows] *= factors
        else:
            _copies(model, quantity.field, fields, len(values))[:, quantity.rows] = values
    return fields


def _copies(model: Model, name: str, fields: dict[str, Array], count: int) -> Array:
    """Copies of a field of the model, one per member, to be changed."""
    own = getattr(model, name)
    return fields.setdefault(name, np.tile(own, (count, *[1] * own.ndim)))


def states_of(model: Model, drawn: Mapping[Varied, Array], size: int, **usual: ArrayLike) -> dict[str, Array]:
    """q0 and v0, (size, ...)."""
    widths = {"q0": model.nq, "v0": model.nv}
    found = {name: np.tile(np.broadcast_to(parameter(name, usual[name], width), (width,)), (size, 1))
             for name, width in widths.items() if name in usual}  # fmt: skip
    for quantity, values in drawn.items():
        if quantity.field in widths:
            found[quantity.field] = np.array(values, float)
    return found
