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
    """tau (..., nv) of the inputs u (..., k), one for each of `model.actuators`; u and the forces are clipped to their
    ranges.  Lengths and speeds are those of the joints, times the gear ratios.
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
    coordinate = limited_coordinates(model)  # of each freedom; a part of a rotation has no length
    lengths = np.where(coordinate >= 0, states["q"][..., coordinate], 0.0) @ gear
    force = gain * np.clip(inputs, *control) + bias[0] + bias[1] * lengths + bias[2] * (states["v"] @ gear)
    return np.broadcast_to(np.clip(force, *effort) @ gear.T, (*batch, model.nv)).copy()
