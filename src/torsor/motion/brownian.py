"""Brownian dynamics of chains: no inertia, any friction, rigid joints or stiff springs.

M. Fixman, Simulation of polymer dynamics. 1. General theory, J. Chem. Phys. 69 (1978): reference 2 of Lee & Chirikjian
2005. The friction of the bodies, seen from the joints, is Z(q) = sum_i J_i^T zeta_i J_i: a mass matrix, with
coefficients of friction in place of masses. So its square factor and Z^-1 b cost O(n). A step is

    R = sqrt(2 kT / step) W(q) xi,            Z = W W^T,   xi white noise
    q' = q [+] Z(q)^-1 (F + R) step / 2
    q  = q [+] Z(q')^-1 (F + R) step          the force F + R is the same, the mobility that of the middle

Taking the mobility in the middle adds the drift kT div Z^-1 that the changing mobility needs; [+] moves along a
velocity, so that quaternions stay on their sphere. The force F decides which weight q has in the long run (tau: that of
the potential U):

    rigid joints    F = tau + (kT/2) d log det M / dq       sqrt(det M) exp(-U / kT)
    stiff springs   F = tau + (kT/2) d log det G / dq       sqrt(det G) exp(-U / kT)

det G is constant for most machines (`fixman_force`): then stiff springs cost no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import articulated, square_factor
from torsor.backends.cpu import Program, compile_program
from torsor.compiler.derivative import log_det_gradient
from torsor.compiler.store import store
from torsor.dynamics import functions as dynamics
from torsor.dynamics.fixman.measure import pieces_of
from torsor.errors import ArgumentError, SingularError
from torsor.model.model import Model, require_model
from torsor.model.regular import require_uncoupled
from torsor.validate import flag, function, generator, integer, number, real_array

Array = NDArray[Any]
Forces = Callable[[Array], ArrayLike]


def brownian(
    model: Model, q: ArrayLike, *, steps: int, step: float, kT: float = 1.0, friction: ArrayLike | Model | None = None,
    stiff: bool = False, forces: Forces | None = None, every: int = 1, rng: int | np.random.Generator | None = None,
) -> Array:  # fmt: skip
    """Move a machine by Brownian dynamics; batch axes are replicas.

    Parameters
    ----------
    model : Model
        any joints; gravity, springs and friction of the joints do not act
    q : array (..., nq)
        where it starts
    steps, step : int, float
        how many steps, and how long one is; without `friction`, in units of mass over friction
    kT : float
        the temperature, as an energy
    friction : array (n,) or Model
        of each body: force per velocity of its mass centre, as of a bead. Or a Model with the same joints and places,
        whose masses, mass centres and moments are the coefficients of friction: of moving, of which point, of turning.
        Left out, friction is proportional to mass, and step counts in units of mass over friction
    stiff : bool
        whether the joints are stiff springs (the weights of `ts.fixman_force`) and not rigid
    forces : function
        q (..., nq) -> tau (..., nv), for example of a potential
    every : int
        records are taken after so many steps
    rng : int or Generator

    Returns
    -------
    array (records, ..., nq)

    Raises
    ------
    SingularError
        a motion meets no friction, or step is too long for the forces

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> from torsor.motion.brownian import brownian
    >>> chain = ts.zoo.point_chain(2)
    >>> brownian(chain, np.zeros((100, 2)), steps=20, step=0.01, rng=0, every=10).shape
    (2, 100, 2)
    """
    require_model(model)
    require_uncoupled(model, "Brownian dynamics")
    steps, every = integer("steps", steps, least=1), integer("every", every, least=1)
    step, kT = number("step", step, above=0), number("kT", kT, above=0)
    flag("stiff", stiff)
    if forces is not None:
        function("forces", forces)
    q = real_array("q", q).astype(np.float64)
    if q.ndim == 0 or q.shape[-1] != model.nq:
        raise ArgumentError(f"q has shape {q.shape}; {model!r} needs (..., {model.nq})")
    model.check_quaternions(q)
    drag = _drag(model, friction)
    dynamics.mass_solve(drag, q, np.zeros((*q.shape[:-1], model.nv)))  # names a joint that meets no friction
    medium = store(drag).once(("brownian",), lambda: Medium.of(drag))
    weight = _weight(model, stiff)
    noise, size = generator("rng", rng), np.sqrt(2 * kT / step)
    move = np.add if model.nq == model.nv and _is_flat(model) else model.integrate
    records = []
    for k in range(steps):
        force = size * medium.factor(q, noise.standard_normal((*q.shape[:-1], model.nv)))
        if weight is not None:
            force += 0.5 * kT * weight(q)
        if forces is not None:
            force += np.asarray(forces(q), dtype=np.float64)
        middle = move(q, (0.5 * step) * medium.mobility(q, force))
        q = move(q, step * medium.mobility(middle, force))
        if (k + 1) % every == 0:
            records.append(q)
        if not np.isfinite(q).all():
            raise SingularError(
                f"Brownian dynamics left all numbers in the step {k + 1}: take steps shorter than {step:g}"
            )
    return np.array(records).reshape(len(records), *q.shape)


def _weight(model: Model, stiff: bool) -> Callable[[Array], Array] | None:
    """The gradient of log det M, or of log det G; None if that is constant."""
    if not stiff:
        return store(model).once(("rigid weight",), lambda: compile_program(log_det_gradient, model))
    pieces = pieces_of(model)
    return None if pieces is None else pieces.gradient


class Medium(NamedTuple):
    """The friction of a machine: q, xi -> W xi and q, F -> Z^-1 F."""

    factor: Program
    mobility: Program

    @classmethod
    def of(cls, drag: Model) -> Medium:
        return cls(compile_program(square_factor.apply, drag), compile_program(articulated.mass_solve, drag))


def _drag(model: Model, friction: ArrayLike | Model | None) -> Model:
    """The machine whose mass matrix is the friction."""
    bare = replace(model, armature=np.zeros(model.nv))
    if friction is None:
        return bare
    if isinstance(friction, Model):
        placed = "parent", "joint", "axis", "pitch", "R", "p"
        if not all(np.array_equal(getattr(model, key), getattr(friction, key)) for key in placed):
            raise ArgumentError(f"friction: {friction!r} must have the joints and placements of {model!r}")
        return friction
    beads = real_array("friction", friction)
    if beads.shape != (model.n,) or (beads < 0).any():
        raise ArgumentError(
            f"friction must be {model.n} numbers, one per body, none negative; its shape is {beads.shape}"
        )
    com = np.where(beads[:, None] > 0, model.com, 0.0)
    return replace(bare, mass=beads, com=com, inertia=np.zeros((model.n, 3, 3)), allow_degenerate=True)


def _is_flat(model: Model) -> bool:
    return all(joint.flat for joint, _, _ in model.joint_groups)
