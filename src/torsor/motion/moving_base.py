"""A base with a given motion: a shaken table, a lift, a ship.

In the frame of the base, inertial forces act on every body. At the joints they are the difference of two bias forces,
with a moving base and with a base at rest (`ts.base_forces`), so every method of forward dynamics and every integrator
can be used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import interpolate
from scipy.spatial.transform import Rotation, RotationSpline

from torsor.dynamics.functions import base_forces
from torsor.errors import ArgumentError
from torsor.model.model import Model
from torsor.motion.law import NUMBERS, Called, Term
from torsor.validate import function, real_array

Array = NDArray[Any]
BaseMotion = Callable[[float], tuple[ArrayLike, ArrayLike, ArrayLike]]
ROUNDING = 1e-9  # how far a time may lie outside a table, relative to its length


@dataclass(frozen=True)
class MovingBase:
    """A force: the base of the machine moves with the given `motion`.

    Parameters
    ----------
    motion : function
        t -> (R, V_0, dV_0): the rotation (3, 3) of the base in space, its twist (angular, linear) (6,) and the time
        derivative of the twist, both in the axes of the base. The model's gravity is in the axes of space.

    Examples
    --------
    A lift that accelerates upwards at 2 m/s^2:

    >>> import numpy as np, torsor as ts
    >>> lift = ts.MovingBase(lambda t: (np.eye(3), np.zeros(6), [0, 0, 0, 0, 0, 2.0]))
    >>> run = ts.simulate(ts.zoo.planar3(), duration=0.1, forces=lift)
    """

    motion: BaseMotion
    reads_its_fields = True  # `law.content`

    def __post_init__(self) -> None:
        function("motion", self.motion)

    @classmethod
    def through(cls, t: ArrayLike, position: ArrayLike, rotation: ArrayLike | None = None) -> MovingBase:
        """Move the base smoothly through a table of positions and rotations in space.

        The motion is defined only within the table: a run beyond it raises an error.

        Parameters
        ----------
        t : (m,) array_like
            Times, in s.
        position : (m, 3) array_like
            Positions of the base, in m.
        rotation : (m, 3) array_like, optional
            Rotation vectors of the base, in rad. Default: zero.

        Returns
        -------
        base : MovingBase
            The motion, for `forces=`.

        Raises
        ------
        ArgumentError
            The shapes do not match, or the times do not increase.
        """
        t, position = real_array("t", t), real_array("position", position)
        turns = np.zeros_like(position) if rotation is None else real_array("rotation", rotation)
        m = len(t) if t.ndim == 1 else 0
        if m < 2 or not (np.diff(t) > 0).all() or position.shape != (m, 3) or turns.shape != (m, 3):
            raise ArgumentError(
                f"t {t.shape} must grow, and position {position.shape} and rotation {turns.shape} must be (m, 3): "
                "one row per time"
            )
        place, turn = interpolate.CubicSpline(t, position), RotationSpline(t, Rotation.from_rotvec(turns))

        def motion(time: float) -> tuple[Array, Array, Array]:
            first, last = float(t[0]), float(t[-1])
            if not first - ROUNDING * (last - first) <= time <= last + ROUNDING * (last - first):
                raise ArgumentError(f"the base moves by a table from t = {first:g} to {last:g}, not at t = {time:g}")
            time = min(max(time, first), last)
            R = turn(time).as_matrix()
            omega, alpha = turn(time, 1), turn(time, 2)  # in the axes of the base already
            v, a = R.T @ place(time, 1), R.T @ place(time, 2)
            return R, np.concatenate([omega, v]), np.concatenate([alpha, a - np.cross(omega, v)])

        return cls(motion)

    def terms(self, model: Model) -> Iterable[Term]:
        """Bind the motion to the model whose base it moves.

        Parameters
        ----------
        model : Model
            The machine.

        Returns
        -------
        terms : sequence of Term
            The terms of the law of motion.
        """
        g = model.gravity

        def torque(t: float, q: Array, v: Array) -> Array:
            found = self.motion(t)
            shapes = [np.shape(x) for x in found] if isinstance(found, tuple | list) else []
            if shapes != [(3, 3), (6,), (6,)]:
                raise ArgumentError(f"the motion of a base must give R (3, 3), V_0 (6,) and dV_0 (6,), not {shapes}")
            R, V, dV = (np.asarray(x, dtype=np.float64) for x in found)
            return base_forces(model, q, v, V, dV + np.concatenate([np.zeros(3), g - R.T @ g]))

        return (Called(torque, batched=True, reads=NUMBERS),)
