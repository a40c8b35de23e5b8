"""`compile`: a public function, or a derivative of one, as a program of one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from torsor import validate
from torsor.backends.cpu import compile_request
from torsor.compiler.derivative import Derivative, takes_frame
from torsor.compiler.request import ON_GPU, PATIENT, Request, unrolling
from torsor.dynamics.calls import gpu_backend
from torsor.dynamics.derivatives import Differentiated
from torsor.dynamics.frames import checked_poses
from torsor.dynamics.functions import algorithm_for
from torsor.dynamics.matrix_gradients import MatrixGradient, of_product
from torsor.errors import ArgumentError
from torsor.model.model import Model, require_model
from torsor.model.names import BodyFrames, Frame
from torsor.sweeps import Algorithm


class OptionalInputs(TypedDict, total=False):
    """Arguments that a function may be given, and whether they are inputs of a program."""

    external: bool
    base_velocity: bool
    base_acceleration: bool


WORDS = {"external": "external wrenches", "base_velocity": "base_velocity", "base_acceleration": "base_acceleration"}


def compile(model: Model, function: Callable[..., Any], *, target: str = "cpu", dtype: str = "float64",
            body: int | str | None = None, method: str = "auto", specialised: bool | None = None,
            lanes: int | None = None, threads: int = 1, trig: str = "accurate",
            wrt: str | Iterable[str] | None = None, Q: ArrayLike | BodyFrames | None = None,
            **inputs: Unpack[OptionalInputs]) -> Any:  # fmt: skip
    """Compile a public function, or a derivative of one, for one model: a program that is called without the model.

    The vjp of a large matrix, or of a matrix in loops, is a `MatrixGradient`: a program of the product with a vector,
    summed over the columns. A program does not check its inputs: NaN in one state gives NaN in that state's result.

    Parameters
    ----------
    model : Model
        The machine.
    function : callable
        A public function, or `vjp` or `jvp` of one.
    target : str, default "cpu"
        "cpu", or "cuda": a program that takes CuPy, PyTorch or JAX arrays on the GPU.
    dtype : str, default "float64"
        "float64" or "float32".
    body : int or str, optional
        For a Jacobian: the body, by number or name, or a named frame.
    method : str, default "auto"
        A method of the function; "fixman", "segments" and "constraint-force" are not compiled, and loops have no
        "composite".
    specialised : bool, optional
        Code unrolled over this model (True), or loops over its bodies (False). Default: whichever is faster.
    lanes : int, optional
        States computed side by side (cpu). Default: as many as fit a vector of the processor.
    threads : int, default 1
        The number of threads that share a large batch (cpu).
    trig : str, default "accurate"
        For cuda in float32: "accurate" (2 ulp) or "fast" (absolute error 5e-7 for angles up to pi).
    wrt : str or sequence of str, optional
        For `vjp` and `jvp` without their own `wrt`: the inputs with respect to which to differentiate.
    Q : (n, 4, 4) array_like, optional
        Frames anywhere on the bodies: for each body the pose of the model's frame relative to the new one. Twists,
        wrenches, poses and Jacobians of bodies, and the inertias and placements in `wrt`, are in these frames. Joint
        coordinates, velocities, torques and named frames do not change.

    Returns
    -------
    program : Program, CudaProgram or MatrixGradient
        Called with the function's arrays; `operations`, `source(...)`.

    Raises
    ------
    ArgumentError
        The function cannot be compiled, or does not take an option.

    Examples
    --------
    >>> import torsor as ts
    >>> program = ts.compile(ts.zoo.pendulum(), ts.forward_dynamics)
    >>> print(program([0.0], [0.0], [1.0]).round(6))
    [3.]

    Twists with the frame of the body at its mass centre, 0.5 m below the joint:

    >>> import numpy as np
    >>> Q = np.array([[[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.5], [0, 0, 0, 1]]])
    >>> twists = ts.compile(ts.zoo.pendulum(), ts.body_twists, Q=Q)
    >>> print(twists([0.0], [2.0]) + 0.0)
    [[ 0.  2.  0. -1.  0.  0.]]
    """
    require_model(model)
    validate.chosen("target", target, ("cpu", "cuda"))
    dtype = dtype.name if isinstance(dtype, np.dtype) else getattr(dtype, "__name__", dtype)
    validate.chosen("dtype", dtype, ("float64", "float32"))
    options = taken(inputs)
    if specialised is not None:
        validate.flag("specialised", specialised)
    validate.word("method", method)
    validate.word("trig", trig)
    algorithm: Algorithm
    by_columns = False
    if isinstance(function, Differentiated):
        function = function.by(wrt)
        algorithm, by_columns = function.algorithm(model, method, specialised, patient=True)
        options += tuple(x for x in algorithm.options if x in function.needed(algorithm) and x not in options)
    elif wrt is not None:
        raise ArgumentError(f"wrt is for vjp and jvp: compile ts.vjp({getattr(function, '__name__', 'function')})")
    else:
        algorithm = algorithm_for(model, function, method, specialised)
    frame, frames = seen(algorithm, model, body, Q, options)

    def program(algorithm: Algorithm, frame: Frame | None) -> Any:
        unroll = unrolling(specialised, PATIENT if target == "cpu" else ON_GPU)
        request = Request(
            algorithm, model, options=options, dtype=dtype, frame=frame, unroll=unroll, body_frames=frames
        )
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


def taken(inputs: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the optional arguments that are to be inputs, in the order of a call."""
    for name, flag in inputs.items():
        if name not in WORDS:
            raise ArgumentError(f"there is no option {name!r}; optional inputs of a program are: {', '.join(WORDS)}")
        validate.flag(name, flag)
    return tuple(name for name in WORDS if inputs.get(name))


def seen(algorithm: Algorithm, model: Model, body: int | str | None, Q: ArrayLike | BodyFrames | None,
         options: tuple[str, ...]) -> tuple[Frame | None, BodyFrames | None]:  # fmt: skip
    """The frame of which an algorithm tells, and the frames of all bodies if they are not the model's.

    Raises unless the algorithm takes these options, and a body if and only if it needs one.
    """
    for name in options:
        if name not in algorithm.options:
            raise ArgumentError(f"{algorithm.name} takes no {WORDS[name]}")
    if (body is None) == takes_frame(algorithm):
        raise ArgumentError(f"{algorithm.name} needs body=" if body is None else f"{algorithm.name} takes no body=")
    frame = None if body is None else model.frame(body)
    if Q is None:
        return frame, None
    frames = body_frames(model, Q)
    # a named frame stays where it is on its body; the frame of a body itself is the new one
    return frames.placed(frame) if frame and body in model.frames else frame, frames


def body_frames(model: Model, Q: ArrayLike | BodyFrames) -> BodyFrames:
    """Q as frames of the bodies, checked; nobody else's array."""
    if isinstance(Q, BodyFrames):
        return Q
    return BodyFrames(checked_poses(model, validate.real_array("Q", Q, finite=False)).copy())
