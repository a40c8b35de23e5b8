"""`record`: a function of GPU arrays, such as a step of a controller, as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torsor.dynamics.calls import gpu_array, gpu_backend
from torsor.errors import ArgumentError
from torsor.later import Later

cuda_graph = Later("torsor.backends.cuda_graph")  # few programs record one


class Recorded:
    """Hold a function whose kernels are launched together: a call runs them on the current contents of its arrays.

    Parameters
    ----------
    step : callable
        The function.
    arrays : tuple
        Its arguments, on a GPU; `record` is the usual way to give them.

    Attributes
    ----------
    arrays : tuple
        Its input arrays. Write new numbers into these arrays, in place.
    results : array or tuple
        Its output arrays: the same arrays in every run.

    Examples
    --------
    >>> import torsor as ts
    >>> run = ts.record(lambda q: ts.gravity_forces(arm, q), q)  # doctest: +SKIP
    >>> run() is run.results  # doctest: +SKIP
    True
    """

    def __init__(self, step: Callable[..., Any], arrays: tuple[Any, ...]) -> None:
        self.arrays = arrays
        self.results, self._launch, self._memory = cuda_graph.recorded(step, arrays)

    def __call__(self) -> Any:
        """Queue one run on the current stream; returns `results`, whose numbers are overwritten."""
        self._launch()
        return self.results


def record(step: Callable[..., Any], *arrays: Any) -> Recorded:
    """Record a function of arrays on a GPU as one CUDA graph: several functions at the cost of one launch.

    The function is called three times. It may call functions and programs of torsor and of the arrays' library, and
    must not read numbers on the host. Shapes, constants and decisions are fixed in the graph.

    Parameters
    ----------
    step : callable
        The function. It takes the arrays and returns an array, or a tuple of arrays.
    *arrays : (...) array_like on the device
        CuPy arrays, or PyTorch tensors. The graph reads them in place: keep them, and write into them.

    Returns
    -------
    run : Recorded
        ``run()`` queues all kernels and returns the results, always in the same arrays.

    Raises
    ------
    ArgumentError
        The first array is not on a GPU, or is a JAX array: `jax.jit` records graphs itself.

    Examples
    --------
    >>> import torsor as ts
    >>> def control(q, v):  # computed torques that brake
    ...     return ts.inverse_dynamics(arm, q, v, -10.0 * v)
    >>> run = ts.record(control, q, v)  # doctest: +SKIP
    >>> q[:], v[:] = sensors()  # doctest: +SKIP
    >>> tau = run()  # doctest: +SKIP
    """
    if not arrays or not gpu_array(arrays[0]):
        raise ArgumentError("record takes a function and its arrays, the first of them on a GPU: CuPy's or PyTorch's")
    if gpu_backend().kind_of(arrays[0]) == "jax":
        raise ArgumentError(
            "arrays of JAX cannot be written into: give CuPy's, or use jax.jit, which records by itself"
        )
    return Recorded(step, arrays)
