"""Other people's dynamics, in torsor's conventions.

A peer is built from the same numbers as a `torsor.Model` and answers the same questions with its own code,
so that a test reads  `close(ts.mass_matrix(m, q), peer.mass_matrix(q))`.  Peers take one state at a time.

A peer may order its bodies and choose its velocities otherwise.  With x its configuration and w its velocity,

    w = T(q) v,    dw/dt = T dv/dt + dT/dt v,    tau = T' (peer's forces),    T orthogonal,

and everything below follows from these; T is orthogonal because it only turns and reorders.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torsor import Model

Array = NDArray[np.float64]

JOINTS = ("revolute", "prismatic", "helical", "universal", "spherical", "planar", "free")
DEGREES = dict(zip(JOINTS, (1, 1, 1, 2, 3, 3, 6)))


class Peer(ABC):
    """Translates states and results; a subclass builds the peer's model and calls its functions."""

    def __init__(self, model: "Model") -> None:
        self.model = model
        self.joint = [JOINTS[code] for code in model.joint]
        # where body i's coordinates and velocities begin in the peer's vectors; filled by the subclass
        self.q_address = np.zeros(len(model.parent), dtype=int)
        self.v_address = np.zeros(len(model.parent), dtype=int)

    # --- torsor's state -> the peer's ---------------------------------------------------------------------

    def configuration(self, q: Array) -> Array:
        """x(q)."""
        x = np.empty(self.model.nq)
        for i, q_i in enumerate(np.split(q, self.model.q_start[1 : len(self.joint)])):
            x[self.q_address[i] : self.q_address[i] + len(q_i)] = self._coordinates(i, q_i)
        return x

    def velocity_map(self, q: Array) -> Array:
        """T(q)."""
        T = np.zeros((self.model.nv, self.model.nv))
        for i, rows, columns in self._blocks():
            T[rows, columns] = self._rates(i, q[self.model.q_start[i] :])
        return T

    def velocity_map_dot(self, q: Array, v: Array) -> Array:
        """dT/dt."""
        T_dot = np.zeros((self.model.nv, self.model.nv))
        for i, rows, columns in self._blocks():
            T_dot[rows, columns] = self._rates_dot(i, q[self.model.q_start[i] :], v[columns])
        return T_dot

    def _blocks(self) -> Iterator[tuple[int, slice, slice]]:
        for i, joint in enumerate(self.joint):
            k, row, column = DEGREES[joint], self.v_address[i], int(self.model.v_start[i])
            yield i, slice(row, row + k), slice(column, column + k)

    def _coordinates(self, i: int, q_i: Array) -> Array:
        return q_i

    def _rates(self, i: int, q_i: Array) -> Array:
        return np.eye(DEGREES[self.joint[i]])

    def _rates_dot(self, i: int, q_i: Array, v_i: Array) -> Array:
        return np.zeros((len(v_i), len(v_i)))

    # --- the peer's own functions, in its own coordinates --------------------------------------------------

    @abstractmethod
    def _inverse_dynamics(self, x: Array, w: Array, w_dot: Array, external: Array | None) -> Array: ...

    @abstractmethod
    def _forward_dynamics(self, x: Array, w: Array, force: Array, external: Array | None) -> Array: ...

    @abstractmethod
    def _mass_matrix(self, x: Array) -> Array: ...

    @abstractmethod
    def _inverse_mass_matrix(self, x: Array) -> Array: ...

    @abstractmethod
    def _jacobian(self, x: Array, body: int) -> Array: ...

    @abstractmethod
    def _jacobian_dot(self, x: Array, w: Array, body: int) -> Array: ...

    @abstractmethod
    def _body_poses(self, x: Array) -> Array: ...

    @abstractmethod
    def _energies(self, x: Array, w: Array) -> tuple[float, float]:
        """Kinetic and potential."""

    @abstractmethod
    def _center_of_mass(self, x: Array) -> Array: ...

    # --- the same in torsor's conventions ------------------------------------------------------------------

    def body_poses(self, q: Array) -> Array:
        return self._body_poses(self.configuration(q))

    def jacobian(self, q: Array, body: int) -> Array:
        return self._jacobian(self.configuration(q), body) @ self.velocity_map(q)

    def jacobian_dot(self, q: Array, v: Array, body: int) -> Array:
        x, T = self.configuration(q), self.velocity_map(q)
        return self._jacobian_dot(x, T @ v, body) @ T + self._jacobian(x, body) @ self.velocity_map_dot(q, v)

    def inverse_dynamics(self, q: Array, v: Array, v_dot: Array, external: Array | None = None) -> Array:
        T = self.velocity_map(q)
        w_dot = T @ v_dot + self.velocity_map_dot(q, v) @ v
        return T.T @ self._inverse_dynamics(self.configuration(q), T @ v, w_dot, external)

    def forward_dynamics(self, q: Array, v: Array, tau: Array, external: Array | None = None) -> Array:
        T = self.velocity_map(q)
        w_dot = self._forward_dynamics(self.configuration(q), T @ v, T @ tau, external)
        return T.T @ (w_dot - self.velocity_map_dot(q, v) @ v)

    def bias_forces(self, q: Array, v: Array) -> Array:
        return self.inverse_dynamics(q, v, np.zeros_like(v))

    def gravity_forces(self, q: Array) -> Array:
        rest = np.zeros(self.model.nv)
        return self.inverse_dynamics(q, rest, rest)

    def mass_matrix(self, q: Array) -> Array:
        T = self.velocity_map(q)
        return T.T @ self._mass_matrix(self.configuration(q)) @ T

    def inverse_mass_matrix(self, q: Array) -> Array:
        T = self.velocity_map(q)
        return T.T @ self._inverse_mass_matrix(self.configuration(q)) @ T

    def kinetic_energy(self, q: Array, v: Array) -> float:
        return self._energies(self.configuration(q), self.velocity_map(q) @ v)[0]

    def potential_energy(self, q: Array) -> float:
        return self._energies(self.configuration(q), np.zeros(self.model.nv))[1]

    def center_of_mass(self, q: Array) -> Array:
        return self._center_of_mass(self.configuration(q))


def depth_first(parent: NDArray[np.integer]) -> list[int]:
    """The bodies, every subtree contiguous: the order both peers number their bodies in."""
    children: dict[int, list[int]] = {}
    for i, p in enumerate(parent):
        children.setdefault(int(p), []).append(i)
    order: list[int] = []
    waiting = children.get(-1, [])[::-1]
    while waiting:
        order.append(waiting.pop())
        waiting += children.get(order[-1], [])[::-1]
    return order


def pose(R: Array, p: Array) -> Array:
    """[R p; 0 1]."""
    f = np.eye(4)
    f[:3, :3], f[:3, 3] = R, p
    return f
