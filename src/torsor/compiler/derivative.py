"""The derivative of an algorithm, as an algorithm: products with its Jacobian, along its sweeps or against them.

    jvp   the tangent of the output, for given tangents of the inputs            dy = J dx
    vjp   the cotangents of the inputs, for a given cotangent of the output      x~ = J^T y~
    gradient   of a number: the vjp with respect to one input, for the cotangent 1

None is written by hand: `tape_derivatives` and `loop_derivatives` transform the intermediate code of the algorithm.
This file defines their inputs and outputs.  Tangents and cotangents of q are along the directions of v: dq = N(q) dx
(`Joint.tangent`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from torsor.algorithms import articulated, coupled, ploen_park_forward, udut, walker_orin
from torsor.errors import ArgumentError
from torsor.inputs import COTANGENT, PARAMETERS, place_of
from torsor.model.model import Model
from torsor.outputs import Cotangent, Gram, Output, Path, Response, Several, matrices_of
from torsor.reference import evaluate
from torsor.sweeps import Algorithm, Columns

# For each algorithm with M x = right-hand side: the algorithm that solves M x = b in the same way.  In straight-line
# code such an x is differentiated as a solution: M dx = d(right-hand side) - d(M x).
SOLVERS: dict[Algorithm, Algorithm] = {
    articulated.forward_dynamics: articulated.mass_solve,
    articulated.mass_solve: articulated.mass_solve,
    walker_orin.forward_dynamics: walker_orin.mass_solve,
    walker_orin.mass_solve: walker_orin.mass_solve,
    udut.forward_dynamics: udut.mass_solve,
    udut.mass_solve: udut.mass_solve,
    ploen_park_forward.forward_dynamics: articulated.mass_solve,
    coupled.forward_dynamics: coupled.mass_solve,
    coupled.mass_solve: coupled.mass_solve,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Derivative(Algorithm):
    """The derivative of `primal`; mode "vjp", "jvp" or "gradient"; wrt: the inputs and parameters to differentiate."""

    primal: Algorithm
    mode: str
    wrt: tuple[str, ...]

    @property
    def has_loops(self) -> bool:
        """A jvp can follow climbs; a vjp would have to return along them.  Products of columns have no tangents."""
        products = any(isinstance(matrix, Gram | Response) for matrix in matrices_of(self.output))
        return self.primal.has_loops and (self.primal.columns is None or (self.mode == "jvp" and not products))

    @property
    def columns(self) -> Columns | None:
        return self.primal.columns if self.mode == "jvp" else None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the model with respect to which this or the primal is differentiated."""
        inner = self.primal.parameters if isinstance(self.primal, Derivative) else ()
        return tuple(dict.fromkeys((*inner, *(name for name in self.wrt if name in PARAMETERS))))

    @property
    def own_inputs(self) -> tuple[str, ...]:
        """The inputs that the primal does not have."""
        return self.inputs[len(self.primal.inputs) :]


@functools.cache
def derivative(primal: Algorithm, mode: str, wrt: tuple[str, ...]) -> Derivative:
    """The derivative, the same object for the same arguments: algorithms are compared by identity."""
    known = (*primal.inputs, *primal.options, *PARAMETERS)
    for name in wrt:
        if name not in known or name.startswith(COTANGENT):
            names = ", ".join(x for x in known if not x.startswith(COTANGENT))
            raise ArgumentError(f"{primal.name} has no derivative with respect to {name!r}; it has: {names}")
    inputs: tuple[str, ...]
    output: Output
    if mode == "gradient":
        (name,), inputs = wrt, primal.inputs
        output = Cotangent(name)
    elif mode == "vjp":
        inputs = (*primal.inputs, "_".join((COTANGENT, *axes_of(primal))))
        output = Several(**{name: Cotangent(name) for name in wrt})
    else:
        inputs, output = (*primal.inputs, *(f"d{name}" for name in wrt)), primal.output
    return Derivative(
        f"{primal.name}_{mode}", inputs, (), output, primal.options, primal.then, primal.inverts, primal.torques_only,
        primal.couples, primal=primal, mode=mode, wrt=wrt,
    )  # fmt: skip


def takes_frame(algorithm: Algorithm) -> bool:
    """Whether the algorithm takes a frame: it is a Jacobian, or the derivative of one."""
    return isinstance(root_of(algorithm).output, Path)


def root_of(algorithm: Algorithm) -> Algorithm:
    """The algorithm that is differentiated, once or twice."""
    return root_of(algorithm.primal) if isinstance(algorithm, Derivative) else algorithm


@functools.cache
def axes_of(algorithm: Algorithm) -> tuple[str, ...]:
    """The axes of an algorithm's output: n, nv or a size.  It is run once, on a machine with distinct sizes."""
    if isinstance(algorithm.output, Cotangent):
        return tuple(map(str, algorithm.output.place.axes))
    if isinstance(algorithm, Derivative):
        return axes_of(algorithm.primal)
    model = Model.chain(("gimbal", "cylindrical"), mass=1.0, com=(0.1, 0.2, 0.3), inertia=(1.0, 2.0, 3.0), n=2)
    state = {name: np.ones(place_of(name).shape(model)).tolist() for name in algorithm.inputs}
    frame = model.frame(1) if takes_frame(algorithm) else None
    shape = np.shape(evaluate(algorithm, model, state, frame=frame))
    return tuple({model.n: "n", model.nv: "nv"}.get(size, str(size)) for size in shape)


log_det_gradient = derivative(articulated.log_det, "gradient", ("q",))
