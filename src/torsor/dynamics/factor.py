"""The square factor of the mass matrix as an object, and its uses.

M = W W^T,   W = [1 + S^T G^T Pi] Omega^1/2         (Ploen & Park 1999, Propositions 1-2, Eqs 42-43)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import square_factor
from torsor.dynamics.calls import call
from torsor.dynamics.functions import log_det_mass_matrix
from torsor.errors import ArgumentError
from torsor.model.model import Model, require_model
from torsor.model.regular import require_uncoupled
from torsor.validate import array, batch, generator, number

Array = NDArray[Any]


@dataclass(frozen=True, repr=False)
class MassFactor:
    """Multiply by, and solve with, the square factor W of M(q) = W W^T, which is never formed: O(n) each.

    W is block upper triangular in the order of the bodies, and zero between branches. Batch axes of q and of the
    vectors broadcast.

    Attributes
    ----------
    model : Model
        The machine.
    q : (..., nq) ndarray
        Configurations.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> W, arm = ts.mass_factor(ts.zoo.panda(), np.zeros(7)), ts.zoo.panda()
    >>> noise = W.solve_transposed(np.random.default_rng(0).normal(size=(1000, 7)))  # velocities of covariance M^-1
    >>> noise.shape
    (1000, 7)
    """

    model: Model
    q: Array

    def __repr__(self) -> str:
        return f"MassFactor({self.model.name}, states {self.q.shape[:-1]})"

    def apply(self, x: ArrayLike) -> Array:
        """Multiply: W x. Noise of unit covariance becomes momenta of covariance M.

        Parameters
        ----------
        x : (..., nv) array_like
            Vectors.

        Returns
        -------
        y : (..., nv) ndarray
            W x.
        """
        return call(square_factor.apply, self.model, self.q, x)

    def apply_transposed(self, x: ArrayLike) -> Array:
        """Multiply by the transpose: W^T x. Its squared norm is twice the kinetic energy of the velocity x.

        Parameters
        ----------
        x : (..., nv) array_like
            Vectors, such as velocities.

        Returns
        -------
        y : (..., nv) ndarray
            W^T x.
        """
        return call(square_factor.apply_T, self.model, self.q, x)

    def solve(self, b: ArrayLike) -> Array:
        """Solve W x = b.

        Parameters
        ----------
        b : (..., nv) array_like
            Right-hand sides.

        Returns
        -------
        x : (..., nv) ndarray
            W^-1 b.
        """
        return call(square_factor.solve, self.model, self.q, b)

    def solve_transposed(self, b: ArrayLike) -> Array:
        """Solve W^T x = b: unit noise becomes velocities of covariance M^-1.

        Parameters
        ----------
        b : (..., nv) array_like
            Right-hand sides.

        Returns
        -------
        x : (..., nv) ndarray
            W^-T b.
        """
        return call(square_factor.solve_T, self.model, self.q, b)

    @property
    def log_det(self) -> Array:
        """The logarithm of the determinant of W, (...): log det M / 2."""
        return log_det_mass_matrix(self.model, self.q) / 2

    def matrix(self) -> Array:
        """Form W for study, in O(n^2).

        Returns
        -------
        W : (..., nv, nv) ndarray
            The matrix.
        """
        columns = MassFactor(self.model, self.q[..., None, :]).apply(np.eye(self.model.nv))
        return columns.swapaxes(-1, -2)


def mass_factor(model: Model, q: ArrayLike) -> MassFactor:
    """Make the square factor W of the mass matrix, M = W W^T, which is never formed.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).

    Returns
    -------
    W : MassFactor
        Products (`apply`, `apply_transposed`) and solves (`solve`, `solve_transposed`) in O(n); `log_det`, `matrix()`.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.
    SingularError
        The mass matrix is singular in a state.

    Notes
    -----
    Ploen & Park 1999, Propositions 1-2.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> W = ts.mass_factor(arm, [0.3, 0.2]).matrix()
    >>> np.allclose(W @ W.T, ts.mass_matrix(arm, [0.3, 0.2]))
    True
    """
    require_model(model)
    require_uncoupled(model, "the square factor of M")
    return MassFactor(model, array("q", q))


def sample_velocities(model: Model, q: ArrayLike, rng: Any = None, *, kT: float = 1.0,
                      size: int | tuple[int, ...] = ()) -> Array:  # fmt: skip
    r"""Draw velocities in thermal equilibrium, in O(n).

    $$ v \sim \exp(-v^T M(q)\, v / (2 k_B T)) $$

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    rng : Generator or int, optional
        A NumPy Generator or a seed.
    kT : float, default 1.0
        The temperature, as an energy in J.
    size : int or tuple of int, default ()
        Leading axes: the number of draws.

    Returns
    -------
    v : (*size, ..., nv) ndarray
        Velocities, in rad/s and m/s.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.
    SingularError
        The mass matrix is singular in a state.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm = ts.zoo.double_pendulum()
    >>> v = ts.sample_velocities(arm, [0.3, 0.2], rng=0, kT=2.0, size=4000)
    >>> print(ts.kinetic_energy(arm, [0.3, 0.2], v).mean().round(1))  # nv / 2 kT
    2.0
    """
    kT = number("kT", kT, least=0)
    factor = mass_factor(model, q)
    if factor.q.dtype.kind not in "iuf":
        raise ArgumentError(f"q must be numbers, not {factor.q.dtype}")
    shape = (*batch("size", size, factor.q.size), *factor.q.shape[:-1], model.nv)
    noise = generator("rng", rng).standard_normal(shape)
    if factor.q.dtype == np.float32:
        noise = noise.astype(np.float32)
    return sqrt(kT) * factor.solve_transposed(noise)
