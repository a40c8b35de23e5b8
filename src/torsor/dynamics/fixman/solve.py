"""Relaxed chains: H of free particles or bodies in blocks, and M^-1 and det M from its hard and soft parts.

Link i of a chain has d coordinates, functions of its own position and of those of the w links before it:

    C[k] = d q_i / d xi_{i-k}  (k = 0 ... w, each d x d),    K_i = the inverse inertia of link i alone,
    H_{i,i-k} = sum_j C[j+k]_i K_{i-k-j} C[j]_{i-k}^T                         (Lee et al. 2007, Eqs 8 and 20)

H is banded and positive definite.  With H22, its rows and columns of hard variables, in banded Cholesky form,

    M^-1 b = H11 b - H12 H22^-1 H12^T b,      log det M = log det H22 - log det H    (Eqs 6 and 7, steps I-V).

All arrays have the links on the axis before the blocks, and any number of batch axes before that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_solve_banded, cholesky_banded

from torsor.dense import log_determinant, numbers_like, solve
from torsor.errors import ArgumentError, SingularError

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Relaxed:
    """A floating chain of n links, with soft coordinates (which move) and hard ones (which are fixed)."""

    H: Array  # (..., n, w + 1, d, d): H[..., i, k] = H_{i,i-k}, rows of link i, columns of link i - k; zero for k > i
    soft: Array  # (n, d) bool
    log_det_H: Array  # (...)
    singular: str = ""  # the reason, if the soft coordinates have no mass matrix here

    @classmethod
    def of(cls, C: Array, K: Array, soft: Array, singular: str = "") -> Relaxed:
        """From derivatives C (w + 1, ..., n, d, d) and inverse inertias K (..., n, d, d)."""
        CK = np.stack([C[j] @ _before(K, j) for j in range(len(C))])
        H = np.zeros((*C.shape[1:-2], len(C), *C.shape[-2:]), CK.dtype)
        for k in range(len(C)):
            for j in range(len(C) - k):
                H[..., k, :, :] += CK[j + k] @ _before(C[j], k).swapaxes(-1, -2)
        # C is block triangular, so det H = prod det C_ii^2 det K
        log_det = 2 * log_determinant(C[0]) + log_determinant(K)
        return cls(H, soft, log_det.sum(axis=-1), singular)

    # ---- results ----

    def solve(self, b: ArrayLike) -> Array:
        """M^-1 b for b (..., f), where f is the number of soft variables, in the order of the chain."""
        self._require_regular()
        b = numbers_like(b)
        f = int(self.soft.sum())
        if b.ndim == 0 or b.shape[-1] != f:
            raise ArgumentError(f"b has shape {b.shape}; a chain of {f} soft variables needs (..., {f})")
        batch = np.broadcast_shapes(b.shape[:-1], self.batch)
        if batch[len(batch) - len(self.batch) :] != self.batch:
            raise ArgumentError(f"the batch axes {b.shape[:-1]} of b do not fit the chain's {self.batch}")
        y = self.times(_spread(b, self.soft, batch))
        reaction = _spread(self._solve_hard(y[..., ~self.soft]), ~self.soft, batch)
        return (y - self.times(reaction))[..., self.soft]

    def inverse(self) -> Array:
        """M^-1 (..., f, f), at f times the work of `solve`."""
        f = int(self.soft.sum())
        units = np.eye(f).reshape(f, *(1 for _ in self.batch), f)
        return np.moveaxis(self.solve(units), 0, -1)

    def log_det_hard(self) -> Array:
        """log det H22 (...): the part of det M that rigid constraints add (Fixman 1974)."""
        if self.H.dtype == object:
            return log_determinant(self.dense()[2])
        return 2 * np.log(self._factor[0]).reshape(*self.batch, -1).sum(axis=-1)

    def log_det(self) -> Array:
        """log det M (...) = log det G + log det H22, with G = H^-1."""
        self._require_regular()
        return self.log_det_hard() - self.log_det_H

    def _require_regular(self) -> None:
        if self.singular:
            raise SingularError(f"the mass matrix is singular: {self.singular}")

    def times(self, x: Array) -> Array:
        """H x, for x (..., n, d)."""
        y = np.einsum("...ij,...j->...i", self.H[..., 0, :, :], x)
        for k in range(1, self.H.shape[-3]):
            Hk = self.H[..., k:, k, :, :]
            y[..., k:, :] += np.einsum("...ij,...j->...i", Hk, x[..., :-k, :])
            y[..., :-k, :] += np.einsum("...ji,...j->...i", Hk, x[..., k:, :])
        return y

    def dense(self) -> tuple[Array, Array, Array]:
        """H11, H12, H22 as full matrices, for inspection; no other function here forms them."""
        n, d = self.soft.shape
        H = np.zeros((*self.batch, n, d, n, d), self.H.dtype)
        for k in range(self.H.shape[-3]):
            for i in range(k, n):
                H[..., i, :, i - k, :] = self.H[..., i, k, :, :]
                H[..., i - k, :, i, :] = self.H[..., i, k, :, :].swapaxes(-1, -2)
        H = H.reshape(*self.batch, n * d, n * d)
        s = self.soft.ravel()
        return H[..., s, :][..., s], H[..., s, :][..., ~s], H[..., ~s, :][..., ~s]

    # ---- the banded system ----

    @property
    def batch(self) -> tuple[int, ...]:
        return self.H.shape[:-4]

    @cached_property
    def _factor(self) -> Array:
        """The banded Cholesky factor of H22, (bandwidth, states * r): all states as separate pieces of one chain."""
        n, d = self.soft.shape
        w = self.H.shape[-3] - 1
        blocks = self.H.reshape(-1, n * (w + 1) * d * d)
        band = np.take(blocks, _band_index(self.soft.tobytes(), n, d, w), axis=1)  # (states, bandwidth, r)
        band = np.moveaxis(band, 0, 1).reshape(band.shape[1], -1)
        try:
            return cholesky_banded(band, lower=True, overwrite_ab=True, check_finite=False)
        except np.linalg.LinAlgError:
            raise SingularError("H22 is singular: the hard variables are not independent here") from None

    def _solve_hard(self, c: Array) -> Array:
        """H22^-1 c for c (..., r); additional axes are further right-hand sides."""
        if not c.size:
            return c
        if c.dtype == object:
            return solve(self.dense()[2], c.reshape(-1, c.shape[-1]).T).T.reshape(c.shape)
        sides = c.reshape(-1, self._factor.shape[1]).T
        return cho_solve_banded((self._factor, True), sides, check_finite=False).T.reshape(c.shape)


@lru_cache(maxsize=16)
def _band_index(partition: bytes, n: int, d: int, w: int) -> Array:
    """The indices of the lower band of H22, (bandwidth, r), in the flattened blocks (n, w + 1, d, d)."""
    soft = np.frombuffer(partition, dtype=bool).reshape(n, d)
    link, coordinate = np.nonzero(~soft)  # of each hard variable
    bandwidth = int(np.convolve((~soft).sum(axis=1), np.ones(w + 1, int)).max())
    column = np.arange(len(link))
    row = column + np.arange(max(bandwidth, 1))[:, None]
    inside = row < len(link)
    row = np.where(inside, row, 0)
    k = link[row] - link[column]
    flat = ((link[row] * (w + 1) + k) * d + coordinate[row]) * d + coordinate[column]
    return np.where(inside & (k <= w), flat, w * d * d)  # the first link has no link before it: that block is zero


def _spread(x: Array, where: Array, batch: tuple[int, ...]) -> Array:
    """x, one number per chosen variable, as (..., n, d) with zeros at the others."""
    full = np.zeros((*batch, *where.shape), x.dtype)
    full[..., where] = x
    return full


def _before(x: Array, k: int) -> Array:
    """x of the link k places earlier; zero before the first."""
    if k == 0:
        return x
    shifted = np.zeros_like(x)
    shifted[..., k:, :, :] = x[..., :-k, :, :]
    return shifted
