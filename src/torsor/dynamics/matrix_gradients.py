"""The vjp of matrix functions in loops: a matrix A consists of its products A e_j with all unit vectors.

The cotangent of column j is that of the product A e_j, so the vjp of A is the sum of nv vjps of the product, each in
O(n).  They are the states of one batch: the unit vectors add one batch axis, after those of the caller.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import lie
from torsor.algorithms import articulated, composite, coriolis, kinematics, products
from torsor.compiler.derivative import Derivative, derivative, takes_frame
from torsor.compiler.store import store
from torsor.dynamics.calls import batch_axes, call, checked, gpu_array, gpu_backend, same_library, shaped
from torsor.errors import ArgumentError
from torsor.inputs import place_of
from torsor.model.batch import ModelBatch, machine_of
from torsor.model.model import Model
from torsor.model.names import Frame
from torsor.sweeps import Algorithm

if TYPE_CHECKING:
    from torsor.compiler.tape import Operations

Array = NDArray[Any]

# the algorithm of a matrix -> that of its product with a vector, which is the last input
PRODUCTS: dict[Algorithm, Algorithm] = {
    composite.mass_matrix: products.mass_product,
    articulated.inverse_mass_matrix: articulated.mass_solve,
    articulated.inverse_by_product: articulated.mass_solve,
    coriolis.coriolis_matrix: products.coriolis_product,
    kinematics.jacobian: kinematics.body_twists,
    kinematics.jacobian_dot: products.twist_rates,
}
# Straight-line code of a humanoid's vjps is about 10 times faster than the sum, and over 100 times for Jacobians
# (bench/matrix_gradients.py).  With this many entries of A it takes up to 11 s to compile for a humanoid, and 17 s for
# the Coriolis matrix of a chain, the longest code.
MOST_ENTRIES = 360
# Columns at a time: the cotangents of the twists of all bodies are 6 n numbers per column.
AT_ONCE = 128


def by_products(vjp: Derivative) -> bool:
    """Whether the vjp of a matrix can be computed this way."""
    return vjp.mode == "vjp" and vjp.primal in PRODUCTS


def is_short(vjp: Derivative, model: Model) -> bool:
    """Whether the matrix has few computed entries: those along paths to the base, or 6 nv."""
    if model.nv > MOST_ENTRIES:
        return False
    if takes_frame(vjp):
        return 6 * model.nv <= MOST_ENTRIES
    own = np.diff(model.v_start)
    path = own.copy()
    for i, parent in enumerate(model.parent):
        path[i] += path[parent] if parent >= 0 else 0
    return bool(own @ path <= MOST_ENTRIES)


def of_product(vjp: Derivative) -> Derivative:
    """The vjp of the product, with respect to the same inputs."""
    return derivative(PRODUCTS[vjp.primal], "vjp", vjp.wrt)


@same_library
def sum_over_columns(vjp: Derivative, model: Model, args: tuple[ArrayLike, ...], frame: Frame | None) -> Any:
    """The vjp of a matrix, of any number of freedoms."""
    machine, columns = machine_of(model), _with_columns(model)
    given = dict(zip(vjp.inputs, args, strict=True))

    def run(*arrays: Any) -> Any:
        return call(of_product(vjp), columns, *arrays)

    if any(map(gpu_array, args)):
        return _on_the_gpu(run, machine, given, gpu_backend().precision(args), frame)
    arrays = {name: checked(machine, name, x) for name, x in given.items()}
    batch_axes(machine, arrays)
    return _summed(run, machine, tuple(arrays.values()), frame, np)


@dataclass(frozen=True, eq=False)
class MatrixGradient:
    """Run the vjp of a large matrix A, as returned by `compile`: called like any program, without the model.

    Batch axes broadcast, and inputs are cast. There is no `out=`: the results are sums over the products.

    Attributes
    ----------
    name : str
        The name of the derivative.
    inputs : tuple of str
        The names of its arguments, in order.
    frame : Frame or None
        The frame of a Jacobian.
    target : str
        "cpu", or "cuda": it takes CuPy, PyTorch or JAX arrays on the GPU.
    product : Program or CudaProgram
        The program of the vjp of A x; a call runs it with x = e_1 ... e_nv on an additional batch axis.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.compile(ts.zoo.rope(30), ts.vjp(ts.mass_matrix, "q")).inputs
    ('q', 'cotangent_nv_nv')
    """

    name: str
    inputs: tuple[str, ...]
    frame: Frame | None
    target: str
    product: Any  # a Program or a CudaProgram

    def __repr__(self) -> str:
        return f"<{self.name} of {self.model!r}: the sum over {self.model.nv} columns of {self.product!r}>"

    @property
    def model(self) -> Model:
        """The model for which it was compiled."""
        return self.product.model

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its numbers."""
        return self.product.dtype

    @property
    def specialised(self) -> bool:
        """Whether the product is unrolled over this model; otherwise it loops over the bodies."""
        return self.product.specialised

    @property
    def operations(self) -> Operations:
        """The operations of all products for one state; the sums over the columns are not counted."""
        each = self.product.operations
        return type(each)(*(self.model.nv * count for count in each))

    def source(self, stage: str = "tape") -> str:
        """Show the code of the product at a stage of compilation.

        Parameters
        ----------
        stage : str, default "tape"
            As for a program.

        Returns
        -------
        text : str
            The code.

        Raises
        ------
        ArgumentError
            There is no such stage.
        """
        return self.product.source(stage)

    def __call__(self, *args: Any) -> Any:
        if len(args) != len(self.inputs):
            raise ArgumentError(f"{self.name} takes {', '.join(self.inputs)}, not {len(args)} arrays")
        given = dict(zip(self.inputs, args))
        if self.target == "cuda":
            return _on_the_gpu(self.product, self.model, given, self.dtype.name, self.frame)
        arrays = (shaped(self.model, name, x) for name, x in given.items())
        rows = tuple(x.astype(self.dtype, copy=False, casting="same_kind") for x in arrays)
        return _summed(self.product, self.model, rows, self.frame, np)


def _with_columns(model: Model) -> Model:
    """A batch of models with an additional axis for the columns; a single model unchanged."""
    if not isinstance(model, ModelBatch):
        return model
    axes = len(model.shape)
    wide: dict[str, Any] = {name: np.expand_dims(x, axes) for name, x in model.varied.items()}
    return store(model).once("with columns", lambda: ModelBatch(model.model, **wide))


def _on_the_gpu(run: Callable[..., Any], model: Model, given: dict[str, Any], dtype: str, frame: Frame | None) -> Any:
    gpu = gpu_backend()
    return gpu.in_cupy(lambda *arrays: _summed(run, model, arrays, frame, gpu.cupy()), model, given, dtype)


def _summed(run: Callable[..., Any], model: Model, arrays: tuple[Any, ...], frame: Frame | None, xp: Any) -> Any:
    """The sum of the vjps of all products; `xp`: the library of the arrays, NumPy or CuPy."""
    *state, cotangent = arrays
    columns, units = cotangent.swapaxes(-1, -2), xp.eye(model.nv, dtype=cotangent.dtype)

    def pulled(some: slice) -> Any:
        cotangents = columns[..., some, :] if frame is None else _on_the_body(model, columns[..., some, :], frame, xp)
        found = run(*(x[..., None, :] for x in state), units[some], cotangents)
        return type(found)(*(x.sum(axis=-1 - place_of(f"d{name}").rank) for name, x in found._asdict().items()))

    parts = [pulled(slice(k, k + AT_ONCE)) for k in range(0, max(1, model.nv), AT_ONCE)]
    return type(parts[0])(*(functools.reduce(operator.add, sums) for sums in zip(*parts)))


def _on_the_body(model: Model, twists: Any, frame: Frame, xp: Any) -> Any:
    """The cotangents (..., n, 6) of the twists of all bodies, from those of a frame on one of them."""
    placement: Any = np.eye(4)
    placement[:3, :3], placement[:3, 3] = frame.R, frame.p
    # The base does not move; a cotangent that is not finite must show even there.
    change = np.asarray(lie.Ad(lie.inverse(placement))) * (frame.body >= 0)
    result = xp.zeros((*twists.shape[:-1], model.n, 6), twists.dtype)
    result[..., max(frame.body, 0), :] = twists @ xp.asarray(change)
    return result
