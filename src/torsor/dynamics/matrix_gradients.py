"""The vjp of matrix functions in loops: a matrix A is its products A e_j with all unit vectors.

The cotangent of column j is that of the product A e_j, so the vjp of A is the sum of nv vjps of the product, each in
O(n).  They are the states of one batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import lie
from torsor.algorithms import articulated, composite, coriolis, kinematics, products
from torsor.algorithms.derivative import Derivative, derivative
from torsor.dynamics.calls import call, checked, gpu_array
from torsor.errors import ArgumentError
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.outputs import PerBody, place_of
from torsor.sweeps import Algorithm

Array = NDArray[Any]

# by the algorithm of a matrix: the one of its product with a vector, which is the last input
PRODUCTS: dict[Algorithm, Algorithm] = {
    composite.mass_matrix: products.mass_product,
    articulated.inverse_mass_matrix: articulated.mass_solve,
    articulated.inverse_by_product: articulated.mass_solve,
    coriolis.coriolis_matrix: products.coriolis_product,
    kinematics.jacobian: kinematics.body_twists,
    kinematics.jacobian_dot: products.twist_rates,
}


def by_products(vjp: Derivative) -> bool:
    """Whether the vjp of a matrix can be computed this way."""
    return vjp.mode == "vjp" and vjp.primal in PRODUCTS


def sum_over_columns(vjp: Derivative, model: Model, args: tuple[ArrayLike, ...], frame: Frame | None) -> Any:
    """The vjp of a matrix, of any number of freedoms."""
    if not isinstance(model, Model):
        raise ArgumentError(
            f"{vjp.name} of so many freedoms takes one model, not {model!r}; take its members one by one"
        )
    if any(map(gpu_array, args)):
        raise ArgumentError(f"{vjp.name} of a machine with {model.nv} freedoms is computed on the CPU only")
    product = PRODUCTS[vjp.primal]
    *state, cotangent = (checked(model, name, x) for name, x in zip(vjp.inputs, args, strict=True))
    columns = np.swapaxes(cotangent, -1, -2)
    if isinstance(product.output, PerBody):
        columns = _on_the_body(model, columns, frame)
    unit = np.eye(model.nv, dtype=columns.dtype)
    found: Any = call(derivative(product, "vjp", vjp.wrt), model, *(x[..., None, :] for x in state), unit, columns)
    return type(found)(*(x.sum(axis=-1 - place_of(f"d{name}").rank) for name, x in found._asdict().items()))


def _on_the_body(model: Model, twists: Array, frame: Frame | None) -> Array:
    """The cotangents (..., n, 6) of the twists of all bodies, from those of a frame on one of them."""
    assert frame is not None
    placement: Any = np.eye(4)
    placement[:3, :3], placement[:3, 3] = frame.R, frame.p
    result = np.zeros((*twists.shape[:-1], model.n, 6), twists.dtype)
    if frame.body >= 0:
        result[..., frame.body, :] = twists @ np.asarray(lie.Ad(lie.inverse(placement)))
    return result
