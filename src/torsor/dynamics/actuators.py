"""The torques of a model's actuators: force = gain u + bias . (1, length, speed), within limits, times gear ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.dynamics.calls import batch_axes, checked
from torsor.errors import ArgumentError
from torsor.model.freedoms import limited_coordinates
from torsor.model.model import Model, require_model
from torsor.validate import real_array

Array = NDArray[Any]


def actuator_forces(model: Model, u: ArrayLike, q: ArrayLike, v: ArrayLike) -> Array:
    """Compute the joint torques of a model's actuators.

    A force is gain u + bias . (1, length, speed), clipped to its range, times gear ratios.

    Parameters
    ----------
    model : Model
        The machine; `model.actuators` lists them.
    u : (..., k) array_like
        One input per actuator; clipped to its range.
    q : (..., nq) array_like
        Configuration: angles in rad, lengths in m, quaternions (w, x, y, z).
    v : (..., nv) array_like
        Velocities, in rad/s and m/s.

    Returns
    -------
    tau : (..., nv) ndarray
        Torques and forces, in N m and N.

    Raises
    ------
    ArgumentError
        The number of inputs is not that of the actuators, or a shape does not fit.

    Examples
    --------
    >>> import torsor as ts
    >>> from torsor.model.extras import Actuator, Extras
    >>> arm = ts.zoo.double_pendulum().with_extras(Extras(actuators=(Actuator("motor", ((0, 100.0),)),)))
    >>> print(ts.actuator_forces(arm, [0.5], [0.0, 0.0], [0.0, 0.0]))
    [50.  0.]
    """
    require_model(model)
    count = len(model.actuators)
    inputs = real_array("u", u)
    if not count or inputs.shape[-1:] != (count,):
        names = ", ".join(actuator.name for actuator in model.actuators) or "none"
        raise ArgumentError(f"u has shape {inputs.shape}; {model!r} has {count} actuators: {names}")
    states = {"q": checked(model, "q", q), "v": checked(model, "v", v)}
    gear = np.zeros((model.nv, count))
    for k, actuator in enumerate(model.actuators):
        for freedom, ratio in actuator.gear:
            gear[freedom, k] += ratio
    batch = np.broadcast_shapes(batch_axes(model, states), inputs.shape[:-1])
    control, effort = (np.array([getattr(a, key) for a in model.actuators]).T for key in ("control", "effort"))
    gain, bias = np.array([a.gain for a in model.actuators]), np.array([a.bias for a in model.actuators]).T
    coordinate = limited_coordinates(model)  # the coordinate of each freedom; a part of a rotation has no length
    lengths = np.where(coordinate >= 0, states["q"][..., coordinate], 0.0) @ gear
    force = gain * np.clip(inputs, *control) + bias[0] + bias[1] * lengths + bias[2] * (states["v"] @ gear)
    return np.broadcast_to(np.clip(force, *effort) @ gear.T, (*batch, model.nv)).copy()
