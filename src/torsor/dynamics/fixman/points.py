"""Chains of point masses, the case of Fixman. Lee & Chirikjian 2005 (planar), Lee et al. 2007, section 2.2 (spatial).

Each link of a chain is a bond from particle i - 1 to particle i with coordinates

    planar    theta_i (the angle from bond i - 1 to bond i), L_i (its length)
    spatial   r_i (length), theta_i (the angle between bonds i - 1 and i, 0 if straight), phi_i (torsion about bond
              i - 1; 0 is cis to the plane of bonds i - 2 and i - 1: frame i = frame i-1 Rx(phi_i) Rz(theta_i))

on a base: particle 0 is at the origin, and the bonds before it are along x.  Derivatives with respect to particle j are
taken in the frame of bond j, whose x axis is along the bond, so that they depend only on neighbouring coordinates.

The planar derivatives are exact for straight and folded chains.  Equation 21 of the 2005 paper is not: it keeps
lengths constant, divides by sin theta and has a misprint.  The formula used here is, with n_k = (-d_ky, d_kx) / L_k^2,

    d theta_i / d x_j = n_i (delta_ij - delta_{i-1,j}) - n_{i-1} (delta_{i-1,j} - delta_{i-2,j}).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.dense import numbers_like
from torsor.dynamics.fixman.solve import Relaxed
from torsor.errors import ArgumentError, SingularError
from torsor.linalg import cos, sin

Array = NDArray[Any]

PLANAR = ("theta", "L")
SPATIAL = ("r", "theta", "phi")
# An angle with a smaller sine is straight (or folded), up to the rounding of pi.
STRAIGHT = 1e-15


# Planar --------------------------------------------------------------------------------------------------


def relax_planar(mass: ArrayLike, theta: ArrayLike, L: ArrayLike, soft: Sequence[str] = ("theta",), *,
                 free: bool = False) -> Relaxed:  # fmt: skip
    """A planar chain of point masses (n,) at angles theta and lengths L, both (..., n), of which `soft` are free.

    free    the chain floats: `mass` has one more particle, number 0, whose position adds two soft coordinates
            before all others (2005, section II: N + 1 masses)
    """
    mass, (theta, L) = _masses(mass), _together(theta, L)
    n = theta.shape[-1]
    _same_length(mass, n + free)
    C, mask = planar_derivatives(theta, L), _mask(soft, PLANAR, n)
    if free:
        C, mask = _floating(C, mask)
    return Relaxed.of(C, _inverse_masses(mass, 2, C.shape[1:-2]), mask)


def _floating(C: Array, mask: Array) -> tuple[Array, Array]:
    """Derivatives and soft coordinates of a chain including particle 0, whose coordinates are its position."""
    d = C.shape[-1]
    first = np.zeros((len(C), *C.shape[1:-3], 1, d, d), C.dtype)
    first[0] = np.eye(d)
    return np.concatenate([first, C], axis=-3), np.concatenate([np.ones((1, d), bool), mask])


def planar_derivatives(theta: Array, L: Array) -> Array:
    """C (3, ..., n, 2, 2): rows theta, L of bond i with respect to particle i - k, in the frame of bond i - k."""
    C = np.zeros((3, *theta.shape, 2, 2), np.result_type(theta, L))
    c, s = cos(theta), sin(theta)
    C[0, ..., 0, 1] = 1 / L
    C[0, ..., 1, 0] = 1
    # in the frame of bond i - 1, bond i points along (c, s)
    C[1, ..., 0, :] = -np.stack([-s, c], axis=-1) / L[..., None]
    C[1, ..., 1, :] = -np.stack([c, s], axis=-1)
    C[1, ..., 1:, 0, 1] -= 1 / L[..., :-1]
    C[2, ..., 1:, 0, :] = np.stack([-s, c], axis=-1)[..., :-1, :] / L[..., :-1, None]
    return C


def planar_positions(theta: ArrayLike, L: ArrayLike) -> Array:
    """x_i (..., n, 2) = x_{i-1} + L_i (cos, sin)(theta_1 + ... + theta_i)                      (2005, Eq. 14)"""
    theta, L = _together(theta, L)
    turned = np.cumsum(theta, axis=-1)
    return np.cumsum(L[..., None] * np.stack([cos(turned), sin(turned)], axis=-1), axis=-2)


# Spatial -------------------------------------------------------------------------------------------------


def relax_spatial(mass: ArrayLike, r: ArrayLike, theta: ArrayLike, phi: ArrayLike,
                  soft: Sequence[str] | Array = ("phi",), *, free: bool = False) -> Relaxed:  # fmt: skip
    """A chain of point masses in space at r, theta and phi, each (..., n).

    soft    names of the coordinates that move, in all links; or a mask (n, 3), in the order r, theta, phi
    free    the chain floats: `mass` has one more particle, number 0, whose position adds three soft
            coordinates before all others; the first bond's angles are those of its direction

    A torsion is undefined next to a straight angle (sin theta = 0).  If it is soft, M is singular there, and only
    `log_det_hard`, which does not need M, has a value.  If it is hard, the chain is refused.
    """
    r, theta, phi = _together(r, theta, phi)
    mass, n = _masses(mass), r.shape[-1]
    _same_length(mass, n + free)
    mask = np.asarray(soft) if isinstance(soft, np.ndarray) else _mask(soft, SPATIAL, n)
    if mask.shape != (n, 3):
        raise ArgumentError(f"soft has shape {mask.shape}; a mask is (n, 3) = {(n, 3)}: {', '.join(SPATIAL)}")
    straight = _is_straight(theta)
    undefined = (straight | _earlier(straight, 1, False)).reshape(-1, n).any(axis=0)  # torsions
    words = ""
    if undefined.any():
        i = int(np.flatnonzero(undefined)[0]) + 1
        words = f"torsion {i} has no meaning next to a straight angle"
        if (undefined & ~mask[:, 2]).any():
            raise SingularError(f"{words} and cannot be held there; let it be soft, or use relax_planar or a Model")
    C = _spatial_derivatives(r, theta, phi, free)
    if free:
        C, mask = _floating(C, mask)
    return Relaxed.of(C, _inverse_masses(mass, 3, C.shape[1:-2]), mask, words)


def _spatial_derivatives(r: Array, theta: Array, phi: Array, free: bool) -> Array:
    """C (4, ..., n, 3, 3): rows r, theta, phi of bond i with respect to particle i - k, in the frame of bond i - k.

    With B_k the derivative of phi_i with respect to the bond vectors b_k,
        B_i = e3 / (r_i sin theta_i),    B_{i-2} = e3' / (r_{i-2} sin theta_{i-1}),
        B_{i-1} = -(cot theta_{i-1} e3' + cot theta_i e3) / r_{i-1},
    e3 and e3' normal to the planes of bonds i - 1, i and i - 2, i - 1.
    """
    ct, st, cp, sp = np.cos(theta), np.sin(theta), np.cos(phi), np.sin(phi)
    zero = np.zeros_like(ct)
    R = np.stack([ct, -st, zero, cp * st, cp * ct, -sp, sp * st, sp * ct, cp], axis=-1).reshape(*ct.shape, 3, 3)
    bent = np.where(_is_straight(theta), 1.0, st)  # any number where a torsion is undefined
    cot = ct / bent
    e1, e2, e3 = (R[..., :, k] for k in range(3))  # the frame of bond i, in that of bond i - 1
    f2 = np.stack([zero, cp, sp], axis=-1)  # across bond i - 1, towards bond i
    normal = np.broadcast_to([0.0, 0.0, 1.0], f2.shape)  # e3', in the frame of bond i - 1

    w = 1 / r
    w1, w2 = _earlier(w, 1, 0.0 if free else 1.0), _earlier(w, 2, 0.0)
    B0 = e3 * (w / bent)[..., None]
    B1 = -(normal * _earlier(cot, 1, 0.0)[..., None] + e3 * cot[..., None]) * w1[..., None]
    B2 = normal * (w2 / _earlier(bent, 1, 1.0))[..., None]
    bend = f2 * w1[..., None]

    C = np.zeros((4, *ct.shape, 3, 3))
    C[0, ..., 0, 0], C[0, ..., 1, 1], C[0, ..., 2, 2] = 1.0, w, w / bent
    C[1] = np.stack([-e1, -e2 * w[..., None] - bend, B1 - B0], axis=-2)
    C[2, ..., 1:3, :] = _into_earlier(R, 1, np.stack([bend, B2 - B1], axis=-2))
    C[3, ..., 2:3, :] = _into_earlier(R, 2, _into_earlier(R, 1, -B2[..., None, :]))
    return C


def spatial_positions(r: ArrayLike, theta: ArrayLike, phi: ArrayLike) -> Array:
    """x_i (..., n, 3), from particle 0 at the origin (also complex, for complex-step derivatives)."""
    r, theta, phi = _together(r, theta, phi)
    E = np.broadcast_to(np.eye(3), (*r.shape[:-1], 3, 3))
    x = np.zeros((*r.shape[:-1], 3))
    places = []
    for i in range(r.shape[-1]):
        ct, st, cp, sp = (f(y[..., i]) for y in (theta, phi) for f in (np.cos, np.sin))
        zero = np.zeros_like(ct)
        R = np.stack([ct, -st, zero, cp * st, cp * ct, -sp, sp * st, sp * ct, cp], axis=-1)
        E = E @ R.reshape(*ct.shape, 3, 3)
        x = x + r[..., i, None] * E[..., :, 0]
        places.append(x)
    return np.stack(places, axis=-2)


# Small helpers -------------------------------------------------------------------------------------------


def _is_straight(theta: Array) -> Array:
    return np.abs(np.sin(theta)) < STRAIGHT


def _earlier(x: Array, k: int, base: float) -> Array:
    """x of the bond k places earlier; `base` for the bonds of the base."""
    return np.concatenate([np.full((*x.shape[:-1], min(k, x.shape[-1])), base), x[..., :-k]], axis=-1)


def _into_earlier(R: Array, k: int, rows: Array) -> Array:
    """Transform rows from the frame of bond i - k to that of bond i - k - 1: times the transpose of R_{i-k}."""
    turns = np.broadcast_to(np.eye(3), R.shape).copy()
    turns[..., k:, :, :] = R[..., :-k, :, :]
    return rows @ turns.swapaxes(-1, -2)


def _together(*xs: ArrayLike) -> list[Array]:
    arrays = [np.asarray(x) for x in xs]
    try:
        together = np.broadcast_arrays(*arrays)
    except ValueError:
        raise ArgumentError(f"coordinates do not go together: {', '.join(str(x.shape) for x in arrays)}") from None
    if together[0].ndim == 0:
        raise ArgumentError("coordinates are arrays (..., n), one entry per bond")
    return [x if x.dtype.kind in "fc" else numbers_like(x) for x in together]


def _masses(mass: ArrayLike) -> Array:
    mass = np.atleast_1d(numbers_like(mass))
    if (bad := ~(mass > 0)).any():
        raise ArgumentError(f"particle {int(np.flatnonzero(bad)[0])} has mass {mass[bad][0]}; it must be positive")
    return mass


def _same_length(mass: Array, n: int) -> None:
    if mass.shape not in ((1,), (n,)):
        raise ArgumentError(f"mass has shape {mass.shape}; {n} particles need ({n},)")


def _inverse_masses(mass: Array, d: int, shape: tuple[int, ...]) -> Array:
    K = np.broadcast_to(1 / mass, shape[-1:])[:, None, None] * np.eye(d)
    return np.broadcast_to(K, (*shape, d, d))


def _mask(soft: Sequence[str], names: tuple[str, ...], n: int) -> Array:
    chosen = [soft] if isinstance(soft, str) else list(soft)
    for name in chosen:
        if name not in names:
            raise ArgumentError(f"no coordinate is called {name!r}; choose from {', '.join(names)}")
    return np.tile([name in chosen for name in names], (n, 1))
