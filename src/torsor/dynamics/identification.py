"""Inertial parameters: which of them torques reveal, and their identification from a motion.

pi has ten numbers per body, in its frame and about the frame's origin: m, h = m c, J (`algorithms/regressor.py`).  A
physically possible body has a positive definite pseudo-inertia (Wensing, Kim & Slotine 2018)

    P = [[Sigma, h], [h^T, m]],      Sigma = int r r^T dm = (tr J / 2) 1 - J.

Identification varies P = L U U^T L^T about that of a first model, P_0 = L L^T, with U upper triangular and
exponentials on its diagonal: ten free numbers theta per body, zero for the first model (Rucker & Wensing 2022).  So
every candidate is possible.  The map is smooth and one-to-one, so the convex least-squares problem keeps its single
minimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, log10
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import validate
from torsor.algorithms import newton_euler
from torsor.dynamics.calls import batch_axes, call, checked
from torsor.dynamics.jacobians import torque_regressor
from torsor.errors import ArgumentError, ModelError
from torsor.later import Later
from torsor.model.model import Model, require_model
from torsor.model.parameters import COLUMNS, INERTIAL, ROWS

optimize, sparse = Later("scipy.optimize"), Later("scipy.sparse")
clarabel = Later("clarabel", 'solver = "clarabel" needs the package clarabel', "torsor[conic]")

Array = NDArray[Any]

LABELS = ("m", "hx", "hy", "hz", "Jxx", "Jxy", "Jxz", "Jyy", "Jyz", "Jzz")
# A column of the regressor depends on others if less than this part of it remains; rounding leaves some 1e-13.
DEPENDENT = 1e-8
# A torque is assumed to be measured no better than this part of its root mean square.
FINEST = 1e-7
# The largest ratio of the torques, or their noise, to those that the first model needs for the same motion: a wrong
# unit is refused, and squares stay far from overflow.
FARTHEST = 1e6
STATES_AT_ONCE = 1024  # rows of the regressor are computed and condensed in pieces, to save memory
ITERATIONS = 1000
ROUNDS = 4  # rounds of least squares, each weighted by the previous residuals, which estimate the noise


# Base parameters ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class BaseParameters:
    """Hold the combinations of inertial parameters that the torques depend on: `combinations @ pi`.

    They are independent, and no other combination affects the torques.

    Attributes
    ----------
    names : tuple of str
        Names such as "link2.Jxx - link2.Jyy + 0.16 link3.m".
    columns : (r,) ndarray
        The columns of the regressor for them: Y pi = Y[:, columns] @ combinations @ pi.
    combinations : (r, 10 n) ndarray
        The combinations.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.base_parameters(ts.zoo.pendulum()).names
    ('link1.hx', 'link1.hz', 'link1.Jyy')
    """

    names: tuple[str, ...]
    columns: Array
    combinations: Array

    def __repr__(self) -> str:
        return f"BaseParameters({len(self.names)} combinations of {self.combinations.shape[1]})"


def base_parameters(model: Model) -> BaseParameters:
    """Find which combinations of inertial parameters torques can reveal, from the regressor at random states.

    Columns are processed from the base outward; a column that depends on earlier ones is expressed by them, so
    parameters are regrouped towards the base (Gautier & Khalil 1990; numerically, Gautier 1991).

    Parameters
    ----------
    model : Model
        The machine.

    Returns
    -------
    base : BaseParameters
        `names`, `columns` of the regressor, and `combinations` (r, 10 n).

    Examples
    --------
    >>> import torsor as ts
    >>> ts.base_parameters(ts.zoo.pendulum()).names
    ('link1.hx', 'link1.hz', 'link1.Jyy')
    """
    require_model(model)
    rng = np.random.default_rng(0)
    count = 4 * (INERTIAL * model.n // model.nv + 2)
    q, (v, qdd) = model.random_configuration(rng, count), rng.normal(size=(2, count, model.nv))
    W = torque_regressor(model, q, v, qdd).reshape(count * model.nv, INERTIAL * model.n)
    sizes = np.linalg.norm(W, axis=0)
    significant = sizes > DEPENDENT * sizes.max()
    basis: list[Array] = []
    columns: list[int] = []
    for k in np.flatnonzero(significant):
        rest = W[:, k] / sizes[k]
        for _ in range(2):  # the second time removes what rounding left
            for unit in basis:
                rest = rest - unit * (unit @ rest)
        if (left := np.linalg.norm(rest)) > DEPENDENT:
            basis.append(rest / left)
            columns.append(int(k))
    scaled = W[:, columns] / sizes[columns]
    combinations = np.linalg.lstsq(scaled, W, rcond=None)[0] / sizes[columns][:, None]
    combinations[np.abs(combinations) < DEPENDENT * np.maximum(1.0, np.abs(combinations).max(axis=1))[:, None]] = 0.0
    combinations[:, columns] = np.eye(len(columns))
    labels = [f"{name}.{label}" for name in model.names for label in LABELS]
    names = tuple(_combination(row, labels, first) for row, first in zip(combinations, columns))
    return BaseParameters(names, np.array(columns), combinations)


def _combination(row: Array, labels: list[str], first: int) -> str:
    """A sum as text, its main parameter first."""
    others = [k for k in np.flatnonzero(row) if k != first]
    terms = [labels[first]]
    for k in others:
        size = f"{abs(row[k]):.6g} "
        terms.append(f"{'-' if row[k] < 0 else '+'} {'' if size == '1 ' else size}{labels[k]}")
    return " ".join(terms)


# Identification ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Identification:
    """Hold the inertial parameters estimated from a recorded motion.

    Attributes
    ----------
    model : Model
        The machine with the estimated parameters.
    parameters : (n, 10) ndarray
        As in `Model.inertial_parameters`; those that the motion does not determine are near the first model's.
    base : BaseParameters
        The combinations that can be identified at all.
    values : (r,) ndarray
        The estimated values of these combinations.
    deviations : (r,) ndarray
        Their standard errors by least squares without constraints; infinite if not excited.
    residual : (nv,) ndarray
        The root mean square of tau - Y pi, for each freedom.
    converged : bool
        Whether the minimum was found within the allowed iterations. Torques without any noise may end in False with a
        `residual` of rounding size: that model is as good as possible.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm, rng = ts.zoo.pendulum(), np.random.default_rng(0)
    >>> q, v, qdd = rng.normal(size=(3, 50, 1))
    >>> found = ts.identify(arm, q, v, qdd, ts.inverse_dynamics(arm, q, v, qdd))
    >>> found.converged, bool(found.residual.max() < 1e-6)
    (True, True)
    """

    model: Model
    parameters: Array
    base: BaseParameters
    values: Array
    deviations: Array
    residual: Array
    converged: bool

    def __repr__(self) -> str:
        known, end = int(np.isfinite(self.deviations).sum()), "" if self.converged else ", not converged"
        return f"Identification({self.model.name}, {known} of {len(self.values)} combinations excited{end})"


def identify(model: Model, q: ArrayLike, v: ArrayLike, qdd: ArrayLike, tau: ArrayLike, *,
             noise: ArrayLike | None = None, spread: float = 1.0, solver: str = "scipy") -> Identification:  # fmt: skip
    """Find the physically possible inertial parameters that explain recorded torques best.

    Parameters
    ----------
    model : Model
        The joints, the placements, the armature and a first guess of the bodies.
    q : (..., nq) array_like
        Samples of a motion, suitably filtered.
    v : (..., nv) array_like
        Their velocities, in rad/s and m/s.
    qdd : (..., nv) array_like
        Their accelerations, in rad/s^2 and m/s^2.
    tau : (..., nv) array_like
        The torques, without friction, in N m and N.
    noise : float or (nv,) array_like, optional
        The standard deviation of each torque. Default: estimated from the residuals.
    spread : float, default 1.0
        The distance from the first guess that parameters may have if the motion does not determine them: 1.0 for a
        factor of about e.
    solver : str, default "scipy"
        "scipy" (nonlinear least squares over parameters that keep bodies possible), or "clarabel" (a semidefinite
        program; the extra `conic`).

    Returns
    -------
    found : Identification
        `model`, `parameters`, `base`, `values`, `deviations`, `residual`, `converged`.

    Raises
    ------
    ArgumentError
        A shape does not fit, or the torques are far from those of such a machine, perhaps because of a wrong unit.

    Notes
    -----
    Rucker & Wensing 2022; Wensing, Kim & Slotine 2018.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm, t = ts.zoo.pendulum(mass=2.0), np.linspace(0, 5, 200)[:, None]
    >>> q, v, qdd = np.sin(2 * t), 2 * np.cos(2 * t), -4 * np.sin(2 * t)
    >>> found = ts.identify(ts.zoo.pendulum(), q, v, qdd, ts.inverse_dynamics(arm, q, v, qdd))
    >>> print(found.values.round(3) + 0.0)  # m c and J of the rod
    [ 0.    -1.     0.667]
    """
    require_model(model)
    fit = SOLVERS[validate.chosen("solver", solver, SOLVERS)]
    spread = validate.number("spread", spread, above=0.0)
    if not 1 / FARTHEST <= spread <= FARTHEST:
        raise ArgumentError(f"spread must be from {1 / FARTHEST:g} to {FARTHEST:g}, not {spread:g}")
    arrays = {name: checked(model, name, x) for name, x in (("q", q), ("v", v), ("qdd", qdd), ("tau", tau))}
    batch = batch_axes(model, arrays)
    samples = {name: np.broadcast_to(x, (*batch, x.shape[-1])).reshape(-1, x.shape[-1]).astype(np.float64)
               for name, x in arrays.items()}  # fmt: skip
    if len(samples["q"]) == 0:
        raise ArgumentError("identify needs samples; q is empty")
    samples["tau"] = samples["tau"] - _of_rotors(model, samples)  # the remainder moves the bodies
    factors = _factors(model)
    _check_sizes(model, samples, noise)
    finest = FINEST * np.sqrt(np.mean(samples["tau"] ** 2))
    if noise is None:
        deviation = np.ones(model.nv)
        for _ in range(ROUNDS):
            free = _least_squares(_condensed(model, samples, 1.0 / deviation))
            deviation = np.maximum(_residual(model, samples, free), finest)
    else:
        deviation = np.maximum(np.broadcast_to(validate.parameter("noise", noise, model.nv), model.nv), finest)
    R = _condensed(model, samples, 1.0 / deviation)
    found, converged = fit(R, factors, spread)
    parameters = found.reshape(model.n, INERTIAL)
    base = base_parameters(model)
    try:
        _require_bodies(model, parameters, factors)
        explained = model.with_inertial_parameters(parameters)
    except ModelError as error:
        raise ArgumentError(
            f"bodies that can hardly exist explain these torques best: {error}. Check signs and units, or take "
            'solver="clarabel"'
        ) from None
    return Identification(
        explained, parameters, base, base.combinations @ parameters.ravel(),
        _deviations(R, base), _residual(model, samples, parameters.ravel()), converged,
    )  # fmt: skip


def _require_bodies(model: Model, parameters: Array, L: Array) -> None:
    """Raise if a body is far thinner than its first guess: the best fit is then at the limit of possible bodies."""
    halves = np.linalg.solve(L, _pseudo_inertia(parameters))
    thinnest = np.linalg.eigvalsh(np.linalg.solve(L, halves.swapaxes(-1, -2)))[:, 0]
    for k in np.flatnonzero(thinnest < THINNEST / 2).tolist():
        raise ModelError(f"body {model.names[k]!r} has lost all but {thinnest[k]:.1g} of its extent")


def _check_sizes(model: Model, samples: dict[str, Array], noise: ArrayLike | None) -> None:
    """Raise if the size of the torques or their noise differs from that which the first model needs for this motion."""
    rotorless = replace(model, armature=np.zeros(model.nv))
    needed = np.abs(
        call(newton_euler.inverse_dynamics, rotorless, *(samples[name] for name in ("q", "v", "qdd")))
    ).max()
    if not needed:
        raise ArgumentError("these samples say nothing of the bodies: without gravity they neither move nor accelerate")
    sizes = {"tau": np.array(np.abs(samples["tau"]).max())}
    if noise is not None:
        sizes["noise"] = validate.parameter("noise", noise, model.nv)
        if (sizes["noise"] < 0).any():
            raise ArgumentError(f"noise must be standard deviations, not {validate.shown(noise)}")
    for name, size in sizes.items():
        least = needed / FARTHEST if name == "tau" else 0.0
        for x in size[~((size >= least) & (size <= needed * FARTHEST))].ravel()[:1]:
            raise ArgumentError(
                f"{name}: {x:g} is not of the size of the torques that the first model needs for this motion, up to "
                f"{needed:.3g}; check the units, or give a better first model"
            )


def _of_rotors(model: Model, samples: dict[str, Array]) -> Array:
    """The torques of the rotors: armature qdd, and those of free joints at constant velocity."""
    if not model.armature.any():
        return np.zeros_like(samples["qdd"])
    state, rotorless = (samples["q"], samples["v"]), replace(model, armature=np.zeros(model.nv))
    bias = call(newton_euler.bias_forces, model, *state) - call(newton_euler.bias_forces, rotorless, *state)
    return model.armature * samples["qdd"] + bias


def _pieces(model: Model, samples: dict[str, Array]) -> Iterator[tuple[Array, Array]]:
    """(Y, tau) of a few samples at a time: (count, nv, 10 n) and (count, nv)."""
    for k in range(0, len(samples["q"]), STATES_AT_ONCE):
        q, v, qdd, tau = (samples[name][k : k + STATES_AT_ONCE] for name in ("q", "v", "qdd", "tau"))
        yield torque_regressor(model, q, v, qdd), tau


def _condensed(model: Model, samples: dict[str, Array], weights: Array) -> Array:
    """The triangle R of the weighted [Y, tau]: |Y pi - tau| = |R (pi, -1)| for every pi."""
    R = np.zeros((0, INERTIAL * model.n + 1))
    for Y, tau in _pieces(model, samples):
        rows = np.concatenate([Y, tau[..., None]], axis=-1) * weights[:, None]
        R = np.asarray(np.linalg.qr(np.concatenate([R, rows.reshape(-1, rows.shape[-1])]), mode="r"))
    return R


def _residual(model: Model, samples: dict[str, Array], pi: Array) -> Array:
    """(nv,) root mean squares of tau - Y pi."""
    squares = sum(((tau - Y @ pi) ** 2).sum(axis=0) for Y, tau in _pieces(model, samples))
    return np.sqrt(squares / len(samples["q"]))


def _least_squares(R: Array) -> Array:
    sizes = np.linalg.norm(R[:, :-1], axis=0)
    sizes[sizes == 0] = 1.0
    return np.linalg.lstsq(R[:, :-1] / sizes, R[:, -1], rcond=DEPENDENT)[0] / sizes


def _deviations(R: Array, base: BaseParameters) -> Array:
    """Standard errors of the base parameters by least squares, in units in which every torque has deviation 1."""
    W = R[:, base.columns]
    sizes = np.linalg.norm(W, axis=0)
    sizes[sizes == 0] = 1.0
    _, s, Vt = np.linalg.svd(W / sizes, full_matrices=False)
    kept = s > DEPENDENT * s.max(initial=0.0)
    variance = ((Vt[kept] / s[kept, None]) ** 2).sum(axis=0)
    lost = (Vt[~kept] ** 2).sum(axis=0) > DEPENDENT
    if len(s) < len(base.columns):  # fewer torques than parameters
        lost |= 1.0 - (Vt**2).sum(axis=0) > DEPENDENT
    return np.where(lost, np.inf, np.sqrt(variance) / sizes)


# Pseudo-inertias ---------------------------------------------------------------------------------------------

TRIANGLE = np.triu_indices(4, 1)


def _pseudo_inertia(pi: Array) -> Array:
    """P (..., 4, 4) of parameters (..., 10)."""
    P, J = np.zeros((*pi.shape[:-1], 4, 4)), np.zeros((*pi.shape[:-1], 3, 3))
    J[..., ROWS, COLUMNS] = J[..., COLUMNS, ROWS] = pi[..., 4:]
    P[..., :3, :3] = np.trace(J, axis1=-2, axis2=-1)[..., None, None] / 2 * np.eye(3) - J
    P[..., :3, 3] = P[..., 3, :3] = pi[..., 1:4]
    P[..., 3, 3] = pi[..., 0]
    return P


def _from_pseudo_inertia(P: Array) -> Array:
    """The inverse of `_pseudo_inertia`, linear: J = tr Sigma 1 - Sigma."""
    Sigma = P[..., :3, :3]
    J = np.trace(Sigma, axis1=-2, axis2=-1)[..., None, None] * np.eye(3) - Sigma
    return np.concatenate([P[..., 3, 3:], P[..., :3, 3], J[..., ROWS, COLUMNS]], axis=-1)


def _factors(model: Model) -> Array:
    """L (n, 4, 4) with P_0 = L L^T."""
    P = _pseudo_inertia(model.inertial_parameters())
    for i, body in enumerate(P):
        scale = np.sqrt(np.abs(np.diag(body)))
        if scale.min() == 0 or np.linalg.eigvalsh(body / np.outer(scale, scale)).min() < 1e-14:
            raise ArgumentError(
                f"body {model.names[i]!r} has no mass or no extent in some direction; as a first guess for identify "
                "give it mass and three positive principal moments that obey the triangle inequality strictly"
            )
    return np.linalg.cholesky(P)


def _changed(theta: Array, L: Array) -> tuple[Array, Array]:
    """pi (n, 10) and d pi/d theta (n, 10, 10) for theta (n, 10): the logarithms of U's diagonal, then its triangle."""
    n = len(theta)
    U = np.zeros((n, 4, 4))
    U[:, range(4), range(4)] = np.exp(theta[:, :4])
    U[:, TRIANGLE[0], TRIANGLE[1]] = theta[:, 4:]
    slopes = np.zeros((n, INERTIAL, 4, 4))
    for k in range(4):
        slopes[:, k, k, k] = U[:, k, k]
    for k, (i, j) in enumerate(zip(*TRIANGLE), 4):
        slopes[:, k, i, j] = 1.0
    LU = L @ U
    halves = L[:, None] @ slopes @ LU.swapaxes(-1, -2)[:, None]
    dP = halves + halves.swapaxes(-1, -2)
    return _from_pseudo_inertia(LU @ LU.swapaxes(-1, -2)), _from_pseudo_inertia(dP).swapaxes(-1, -2)


@np.errstate(over="ignore", invalid="ignore")  # a step that overflows is rejected, because it lowers nothing
def _fitted(R: Array, L: Array, spread: float) -> tuple[Array, bool]:
    """The parameters pi (10 n,) that minimise |R (pi, -1)|^2 + |theta / spread|^2, and whether this converged."""
    n, theta = len(L), np.zeros(len(L) * INERTIAL)

    def residuals(theta: Array, weight: float) -> Array:
        pi, _ = _changed(theta.reshape(n, INERTIAL), L)
        return np.concatenate([weight * (R[:, :-1] @ pi.ravel() - R[:, -1]), theta / spread])

    def slopes(theta: Array, weight: float) -> Array:
        _, slope = _changed(theta.reshape(n, INERTIAL), L)
        rows = np.einsum("rnp,npk->rnk", R[:, :-1].reshape(-1, n, INERTIAL), slope).reshape(len(R), -1)
        return np.concatenate([weight * rows, np.eye(theta.size) / spread])

    # Precise torques make a narrow, curved valley: start with small weights and raise them step by step.
    begin = min(1.0, 1.0 / float(np.linalg.norm(residuals(theta, 1.0))))
    for weight in np.geomspace(begin, 1.0, 1 + ceil(-log10(begin))):
        found = optimize.least_squares(residuals, theta, slopes, args=(weight,), method="lm", x_scale="jac", xtol=1e-14,
                              ftol=1e-14, gtol=1e-14, max_nfev=ITERATIONS)  # fmt: skip
        theta = found.x
    return _changed(theta.reshape(n, INERTIAL), L)[0].ravel(), bool(found.success)


# Entries of a symmetric matrix of four rows, column by column, and their weights: the form that Clarabel reads.
CORNER = [(i, j) for j in range(4) for i in range(j + 1)]
HALVED = np.array([1.0 if i == j else np.sqrt(0.5) for i, j in CORNER])
THINNEST = 1e-6  # the least eigenvalue of X: bodies stay this far from impossible ones


def _by_cones(R: Array, L: Array, spread: float) -> tuple[Array, bool]:
    """The parameters pi (10 n,) that minimise |R (pi, -1)|^2 + sum_bodies |X - 1|^2 / (2 spread)^2 with X positive
    definite, P = L X L^T: a quadratic function on cones of matrices, solved by Clarabel (Goulart & Chen 2024).

    To first order X - 1 is theta and its transpose, so both solvers stay equally close to the first model.
    """
    n = len(L)
    units = np.zeros((INERTIAL, 4, 4))
    for k, (i, j) in enumerate(CORNER):
        units[k, i, j] = units[k, j, i] = HALVED[k]
    T = _from_pseudo_inertia(L[:, None] @ units @ L[:, None].swapaxes(-1, -2))  # (n, x, pi)
    W = np.einsum("rnp,nxp->rnx", R[:, :-1].reshape(-1, n, INERTIAL), T).reshape(len(R), -1)
    size, (m, count) = max(float(np.linalg.norm(W, 2)), 1.0), W.shape
    stay = 1.0 / (2 * spread * size) ** 2
    one = np.tile(np.array([float(i == j) for i, j in CORNER]), n)
    # variables: x, the entries of all X, and y = (W x - r) / size; the objective is |y|^2 + stay |x - 1|^2
    A = sparse.csc_array(np.block([[W / size, -np.eye(m)], [-np.eye(count), np.zeros((count, m))]]))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    program = clarabel.DefaultSolver(
        sparse.diags_array(np.repeat([stay, 1.0], [count, m]), format="csc"),
        np.concatenate([-stay * one, np.zeros(m)]), A, np.concatenate([R[:, -1] / size, -THINNEST * one]),
        [clarabel.ZeroConeT(m), *[clarabel.PSDTriangleConeT(4)] * n], settings,
    )  # fmt: skip
    result = program.solve()
    x = np.array(result.x)[:count].reshape(n, INERTIAL)
    if not np.isfinite(x).all():
        raise ArgumentError(f"clarabel finds no parameters: {result.status}")
    return np.einsum("nx,nxp->np", x, T).ravel(), str(result.status) in ("Solved", "AlmostSolved")


SOLVERS = {"scipy": _fitted, "clarabel": _by_cones}
