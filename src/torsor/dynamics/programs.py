"""`compile`: a public function, or a derivative of one, as a program of one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from torsor import validate
from torsor.backends.cpu import compile_request
from torsor.compiler.derivative import Derivative, takes_frame
from torsor.compiler.request import ON_GPU, PATIENT, Request, unrolling
from torsor.dynamics.calls import gpu_backend
from torsor.dynamics.derivatives import Differentiated
from torsor.dynamics.functions import algorithm_for
from torsor.dynamics.matrix_gradients import MatrixGradient, of_product
from torsor.errors import ArgumentError
from torsor.model.model import Model, require_model
from torsor.model.names import Frame
from torsor.sweeps import Algorithm


def compile(model: Model, function: Callable[..., Any], *, target: str = "cpu", dtype: str = "float64",
            external: bool = False, body: int | str | None = None, method: str = "auto",
            specialised: bool | None = None, lanes: int | None = None, threads: int = 1,
            trig: str = "accurate", wrt: str | Iterable[str] | None = None) -> Any:  # fmt: skip
    """A `Program`: a public function compiled for one model, to be called without the model.

        fd = ts.compile(model, ts.forward_dynamics)
        qdd = fd(q, v, tau)

    target       "cpu", or "cuda": a `CudaProgram`, which takes CuPy, PyTorch or JAX arrays on the GPU
    dtype        "float64" or "float32"
    external     whether the program takes external wrenches, as its last argument
    body         for a Jacobian: the body, by number or name, or a named frame
    method       a method of the function; "fixman", "segments" and "constraint-force" are not compiled, and loops have
                 no "composite"
    specialised  unrolled over this model (True), loops over its bodies (False), whichever is faster (None); a function
                 called without `compile` switches to loops sooner, so that its caller does not wait
    lanes        states computed side by side; None: as many as the machine's vectors hold (cpu)
    threads      how many threads a large batch is spread over (cpu)
    trig         cuda, float32: "accurate" (2 ulp) or "fast" (absolute error 5e-7 for angles up to pi)
    wrt          for `vjp` and `jvp` of a function: by what to differentiate, if they do not say it themselves

    The vjp of a large matrix, and any in loops, is a `MatrixGradient`: a program of the product with a vector, summed
    over the columns.  A program does not check its numbers: NaN in one state gives NaN in that state.
    """
    require_model(model)
    validate.chosen("target", target, ("cpu", "cuda"))
    dtype = dtype.name if isinstance(dtype, np.dtype) else getattr(dtype, "__name__", dtype)
    validate.chosen("dtype", dtype, ("float64", "float32"))
    validate.flag("external", external)
    if specialised is not None:
        validate.flag("specialised", specialised)
    validate.word("method", method)
    validate.word("trig", trig)
    options: tuple[str, ...] = ("external",) if external else ()
    algorithm: Algorithm
    by_columns = False
    if isinstance(function, Differentiated):
        function = function.by(wrt)
        algorithm, by_columns = function.algorithm(model, method, specialised, patient=True)
        options += tuple(
            name for name in algorithm.options if name in function.needed(algorithm) and name not in options
        )
    elif wrt is not None:
        raise ArgumentError(f"wrt is for vjp and jvp: compile ts.vjp({getattr(function, '__name__', 'function')})")
    else:
        algorithm = algorithm_for(model, function, method, specialised)
    if external and "external" not in algorithm.options:
        raise ArgumentError(f"{algorithm.name} takes no external wrenches")
    if (body is None) == takes_frame(algorithm):
        raise ArgumentError(f"{algorithm.name} needs body=" if body is None else f"{algorithm.name} takes no body=")
    frame = None if body is None else model.frame(body)

    def program(algorithm: Algorithm, frame: Frame | None) -> Any:
        unroll = unrolling(specialised, PATIENT if target == "cpu" else ON_GPU)
        request = Request(algorithm, model, options=options, dtype=dtype, frame=frame, unroll=unroll)
        if target == "cuda":
            if lanes is not None or threads != 1:
                raise ArgumentError('lanes and threads are for target="cpu"; a GPU takes one thread per state')
            return gpu_backend().compile_cuda(request, trig)
        if trig != "accurate":
            raise ArgumentError('fast trigonometry is for target="cuda"')
        return compile_request(request, lanes, threads)

    if isinstance(algorithm, Derivative) and by_columns:
        return MatrixGradient(algorithm.name, algorithm.inputs, frame, target, program(of_product(algorithm), None))
    return program(algorithm, frame)
