"""How coordinates move with velocities: dq/dt = N(q) v, its inverse and its time derivative, for a whole model.

The map of each joint is in its class (`torsor.model.joints`). For most joints N is the identity. Quaternions of any
length keep it under dq/dt = N(q) v, and no result depends on that length. Integrators on the vector space (q, v)
therefore normalise only once per step, to remove rounding and truncation errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends.pointwise import compile_pointwise
from torsor.linalg import Scalar, Vec
from torsor.model.joints import JOINTS, Joint
from torsor.model.model import Model

Array = NDArray[Any]
# the methods of a joint that are used here, and whether each argument and the result have the size of q or of v
MAPS = {"rate": ("qv", "q"), "rate_dot": ("qvv", "q"), "velocity": ("qq", "v"), "retract": ("qv", "q")}


class Coordinates:
    """The map between velocities v and coordinate rates dq/dt of a model; leading batch axes are allowed."""

    def __init__(self, model: Model) -> None:
        self.model, self.nq, self.nv = model, model.nq, model.nv
        groups = model.joint_groups
        self.flat = all(joint.flat for joint, _, _ in groups)  # dq/dt = v for every joint
        flat = [(q.ravel(), v.ravel()) for joint, q, v in groups if joint.flat]
        self._plain = tuple(map(np.concatenate, zip(*flat))) if flat else (np.zeros(0, int),) * 2
        self._curved = [group for group in groups if not group[0].flat]
        self.curved_freedoms = np.concatenate([np.zeros(0, int), *(v.ravel() for _, _, v in self._curved)])
        quaternions = (q[:, joint.quaternion] for joint, q, _ in self._curved)
        self.quaternion = np.concatenate([np.zeros((0, 4), int), *quaternions])
        # per coordinate: the index of the velocity that bounds its error
        self.velocity_of = np.empty(model.nq, dtype=np.int64)
        for joint, q, v in groups:
            self.velocity_of[q] = v[:, joint.error_velocity]

    def rate(self, q: Array, v: Array) -> Array:
        """dq/dt = N(q) v."""
        return v if self.flat else self._mapped("rate", v[..., self._plain[1]], q, v)

    def rate_dot(self, q: Array, v: Array, a: Array) -> Array:
        """d^2 q/dt^2 = N(q) a + dN/dt v."""
        return a if self.flat else self._mapped("rate_dot", a[..., self._plain[1]], q, v, a)

    def velocity(self, q: Array, rate: Array) -> Array:
        """The v with N(q) v = dq/dt."""
        return rate if self.flat else self._mapped("velocity", rate[..., self._plain[0]], q, rate)

    def move(self, q: Array, dv: Array) -> Array:
        """q [+] dv, as in Model.integrate; compiled, because integrators call it several times per step."""
        plain_q, plain_v = self._plain
        return q + dv if self.flat else self._mapped("retract", q[..., plain_q] + dv[..., plain_v], q, dv)

    def _mapped(self, name: str, plain: Array, *arrays: Array) -> Array:
        """A method of the joints: compiled for joints that are not flat; `plain` is the result for flat joints."""
        inputs, output = MAPS[name]
        out = np.empty_like(arrays[0], shape=(*arrays[0].shape[:-1], self.nq if output == "q" else self.nv))
        out[..., self._plain["qv".index(output)]] = plain
        for joint, q_columns, v_columns in self._curved:
            columns = {"q": q_columns, "v": v_columns}
            given = (x[..., columns[space]] for space, x in zip(inputs, arrays))
            out[..., columns[output]] = self._compiled(joint, name)(*given)
        return out

    def _compiled(self, joint: Joint, name: str) -> Callable[..., Array]:
        return _compiled(joint, name)

    def of_velocity(self, x: Array) -> Array:
        """For each coordinate, the entry of a vector (nv,) that bounds its error."""
        return x if self.flat else x[self.velocity_of]

    def gathered(self, x: Array) -> Array:
        """For each velocity, the sum of the entries of a vector (nq,) whose errors it bounds."""
        total = np.zeros(self.nv)
        np.add.at(total, self.velocity_of, x)
        return total

    def weighted(self, weights: Array, values: Array) -> Array:
        """sum_k weights (m, k) values (k, m or 1, n): one row per time, (m, n)."""
        return np.einsum("mk,kmi->mi", weights, values)

    def lengths(self, q: Array) -> Array:
        """The lengths of the quaternions in q, (..., number of quaternions)."""
        return np.linalg.norm(q[..., self.quaternion], axis=-1)

    def normalise(self, q: Array) -> Array:
        """Normalise every quaternion in q, in place; return the previous lengths."""
        lengths = self.lengths(q)
        q[..., self.quaternion] /= lengths[..., None]
        return lengths


def by_joint(x: Sequence[Scalar], start: Array) -> list[Vec]:
    """The scalars of every joint; `start`: the index where each joint begins, and the end."""
    return [Vec.of(x[i:j]) for i, j in pairwise(start.tolist())]


def rates(model: Model, q: Sequence[Scalar], v: Sequence[Scalar]) -> list[Scalar]:
    """dq/dt = N(q) v, joint by joint, over any scalars."""
    parts = zip(model.joint, by_joint(q, model.q_start), by_joint(v, model.v_start))
    return [x for code, own_q, own_v in parts for x in JOINTS[code].rate(own_q, own_v)]


@cache
def _compiled(joint: Joint, name: str) -> Callable[..., Array]:
    """A method of a joint as a function of arrays."""
    return compile_pointwise(*joint_map(joint, name))


def joint_map(joint: Joint, name: str) -> tuple[Callable[..., list[Any]], dict[str, tuple[int, ...]]]:
    """A method of a joint as a function of lists of scalars, and the shapes of its arguments."""
    method, spaces = getattr(joint, name), MAPS[name][0]
    sizes = {"q": (joint.nq,), "v": (joint.nv,)}
    inputs: dict[str, tuple[int, ...]] = {f"x{k}": sizes[space] for k, space in enumerate(spaces)}
    return lambda *vectors: list(method(*(Vec(*x) for x in vectors))), inputs


def names_of(model: Model, what: str) -> list[str]:
    """A name per entry of q ("coordinates") or v ("velocities"): the body, and a label if its joint has several."""
    labels = [[f".{name}" if name else "" for name, _ in getattr(joint, what)] for joint in JOINTS]
    return [body + label for body, code in zip(model.names, model.joint) for label in labels[code]]
