"""`linearize`: the dynamics near a state as a linear system, for LQR, observers and stability analysis."""

from __future__ import annotations

from functools import lru_cache
from math import factorial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import validate
from torsor.algorithms.newton_euler import MOTION_OPTIONS
from torsor.dynamics.calls import batch_axes, checked
from torsor.dynamics.jacobians import forward_dynamics_derivatives
from torsor.errors import ArgumentError, SingularError
from torsor.linalg import Vec
from torsor.model.joints import JOINTS, Joint
from torsor.model.model import Model, require_model
from torsor.spatial import ad

Array = NDArray[Any]


class Linearization(NamedTuple):
    """dx/dt = A x + B u, or x_{k+1} = A x_k + B u_k, for small changes x and u."""

    A: Array  # (..., 2 nv, 2 nv)
    B: Array  # (..., 2 nv, nv)


def linearize(model: Model, q: ArrayLike, v: ArrayLike, tau: ArrayLike, dt: float | None = None, *,
              external: ArrayLike | None = None, base_velocity: ArrayLike | None = None,
              base_acceleration: ArrayLike | None = None) -> Linearization:  # fmt: skip
    """Linearize the dynamics: dx/dt = A x + B u, x = (dq, dv), with dq in the tangent space.

    Away from an equilibrium, A and B describe how neighbouring motions diverge.

    Parameters
    ----------
    model : Model or ModelBatch
        The machine.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    v : (..., nv) array_like
        Velocities, in rad/s and m/s.
    tau : (..., nv) array_like
        Joint torques and forces, in N m and N.
    dt : float, optional
        The step in s for an exact discretisation with constant torques per step, by a matrix exponential.
    external : (..., n, 6) array_like, optional
        The wrench (moment, force) on every body, at its origin and in its frame, in N m and N.
    base_velocity : (..., 6) array_like, optional
        Twist (omega, v) of a moving base, in its own frame.
    base_acceleration : (..., 6) array_like, optional
        The time derivative of that twist; gravity acts in addition.

    Returns
    -------
    A : (..., 2 nv, 2 nv) ndarray
        The derivative with respect to the state.
    B : (..., 2 nv, nv) ndarray
        The derivative with respect to the torques.

    Raises
    ------
    ArgumentError
        A shape does not fit the model, or a number is not finite.
    SingularError
        The mass matrix is singular in a state.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> A, B = ts.linearize(ts.zoo.pendulum(), [np.pi], [0.0], [0.0])  # upright: it falls
    >>> print(np.linalg.eigvals(A).max().round(3))
    3.836
    """
    require_model(model)
    step = None if dt is None else validate.number("dt", dt, above=0.0)
    arrays = {"q": checked(model, "q", q), "v": checked(model, "v", v), "tau": checked(model, "tau", tau)}
    options: dict[str, Any] = dict(zip(MOTION_OPTIONS, (external, base_velocity, base_acceleration)))
    arrays |= {name: checked(model, name, x) for name, x in options.items() if x is not None}
    if np.result_type(*arrays.values()).char not in "df":
        raise ArgumentError(f"linearize computes in float64 or float32, not {np.result_type(*arrays.values())}")
    batch, nv = batch_axes(model, arrays), model.nv
    D = forward_dynamics_derivatives(model, q, v, tau, **options)
    A = np.zeros((*batch, 2 * nv, 2 * nv), D.dq.dtype)
    B = np.zeros((*batch, 2 * nv, nv), D.dq.dtype)
    A[..., :nv, nv:] = np.eye(nv)
    A[..., :nv, :nv] = _turning(model, np.broadcast_to(arrays["v"], (*batch, nv)))
    A[..., nv:, :nv], A[..., nv:, nv:], B[..., nv:, :] = D
    return Linearization(A, B) if step is None else _discretised(A, B, step)


def _discretised(A: Array, B: Array, dt: float) -> Linearization:
    """The exact discretisation: exp [[A, B], [0, 0]] dt = [[A_d, B_d], [0, 1]]."""
    n = A.shape[-1]
    with np.errstate(over="ignore", invalid="ignore"):
        exponentials = _exponentials(np.concatenate([A, B], axis=-1, dtype=np.float64) * dt).astype(A.dtype)
    if not np.isfinite(exponentials).all():
        raise SingularError(f"linearize: changes grow beyond all numbers within dt = {dt:g}; take a shorter one")
    return Linearization(exponentials[..., :n], exponentials[..., n:])


# exp X = (exp X / 2^s)^(2^s), with Taylor's polynomial of degree 16 once X / 2^s is at most 1/2 in size, from its
# powers: the first omitted term is below 2^-65 (after Al-Mohy & Higham, SIAM J. Matrix Anal. Appl. 31 (2009) 970).
INVERSE_FACTORIALS = [1 / factorial(k) for k in range(17)]
# OpenBLAS uses several threads for a product of more multiplications than this.  They wait for each other: SciPy's
# expm took 2 to 2000 ms for 250 matrices of 6 rows, on a busy machine.
ONE_THREAD = 2**18
FEWEST_ROWS = 4  # of a block: with fewer rows the matrices are large, and threads are worthwhile


def _exponentials(X: Array) -> Array:
    """exp of matrices [[A, B], [0, 0]]; of each matrix only the upper rows are stored, (..., n, n + m).

    A product of two is  [[A, B], [0, b]] [[C, D], [0, d]] = [[A C, A D + B d], [0, b d]]  with numbers b and d.
    """
    n = X.shape[-2]
    X2 = _product(X, X)
    powers = [X, X2, _product(X2, X), _product(X2, X2)]
    d2, d3, d4 = (np.abs(P).sum(axis=-2).max(axis=-1, initial=0.0) ** (1 / k) for k, P in enumerate(powers[1:], 2))
    _, exponent = np.frexp(2 * np.minimum(np.maximum(d2, d3), np.maximum(d3, d4)))
    halvings = np.maximum(exponent, 0)
    P1, P2, P3, P4 = (np.ldexp(P, -k * halvings[..., None, None]) for k, P in enumerate(powers, 1))
    c = INVERSE_FACTORIALS
    R = c[16] * P4
    for k in (12, 8, 4, 0):
        if k < 12:
            R = _product(P4, R)
            R[..., n:] += c[k + 4] * P4[..., n:]
        R += c[k + 1] * P1
        R += c[k + 2] * P2
        R += c[k + 3] * P3
        R[..., range(n), range(n)] += c[k]
    for k in range(halvings.max(initial=0)):
        rows = halvings > k
        part = R if rows.all() else R[rows]
        square = _product(part, part)
        square[..., n:] += part[..., n:]
        R[rows] = square
    return R


def _product(A: Array, B: Array) -> Array:
    """A B, where the last rows of both are zero; in blocks of rows for which BLAS uses one thread."""
    n, columns = B.shape[-2:]
    A, rows = A[..., :n], ONE_THREAD // max(1, n * columns)
    if rows >= n or rows < FEWEST_ROWS:
        return A @ B
    return np.concatenate([A[..., k : k + rows, :] @ B for k in range(0, n, rows)], axis=-2)


def _turning(model: Model, v: Array) -> Array:
    """-ad_v, joint by joint: if v is not dq/dt, d(dq)/dt = dv - ad_v dq, because the frame of dq rotates with v."""
    result = np.zeros((*v.shape, model.nv), v.dtype)
    for i, code in enumerate(model.joint.tolist()):
        if not JOINTS[code].flat:
            own = slice(*model.v_start[i : i + 2])
            result[..., own, own] = np.einsum("kab,...k->...ab", _brackets(JOINTS[code]), -v[..., own])
    return result


@lru_cache
def _brackets(joint: Joint) -> Array:
    """(nv, nv, nv): ad of each unit velocity in the coordinates of v; S is constant and orthonormal."""
    S = joint.subspace(Vec.of(joint.neutral), Vec.unit(2), 0.0)
    return np.array([[S.T(ad(one, other)) for other in S.columns] for one in S.columns]).swapaxes(1, 2)
