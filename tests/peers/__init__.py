"""Other people's dynamics, in torsor's conventions.

A peer is built from the same numbers as a `torsor.Model` and answers the same questions with its own code,
so that a test reads  `close(ts.mass_matrix(m, q), peer.mass_matrix(q))`.  Peers take one state at a time.

A peer may order its bodies and choose its velocities otherwise.  With x its configuration and w its velocity,

    w = T(q) v,    dw/dt = T dv/dt + dT/dt v,    tau = T' (peer's forces),    T orthogonal,

and everything below follows from these; T is orthogonal because it only turns and reorders.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import Model, zoo
from torsor.model.joints import JOINTS

Array = NDArray[np.float64]


class Translation:
    """Translates states; a subclass builds the peer's model and says how its joints differ."""

    JOINTS: Sequence[str]  # the names of the joint types the peer has

    def __init__(self, model: Model) -> None:
        self.model = model
        self.joint = [JOINTS[code].name for code in model.joint]
        # where body i's coordinates and velocities begin in the peer's vectors; filled by the subclass
        self.q_address = np.zeros(model.n, dtype=int)
        self.v_address = np.zeros(model.n, dtype=int)

    # --- torsor's state -> the peer's ---------------------------------------------------------------------

    def armature(self, nv: int) -> Array:
        """The armature of every freedom of the peer; given for joints of one freedom only, whose velocities agree."""
        result = np.zeros(nv)
        for i in np.flatnonzero(np.diff(self.model.v_start) == 1):
            result[self.v_address[i]] = self.model.armature[self.model.v_start[i]]
        return result

    def configuration(self, q: Array) -> Array:
        """x(q)."""
        x = np.empty(self.model.nq)
        for i, q_i in enumerate(self._by_joint(q)):
            x[self.q_address[i] :][: len(q_i)] = self._coordinates(i, q_i)
        return x

    def velocity_map(self, q: Array) -> Array:
        """T(q)."""
        T = np.zeros((self.model.nv, self.model.nv))
        for (i, block), q_i in zip(self._blocks(), self._by_joint(q)):
            T[block] = self._rates(i, q_i)
        return T

    def velocity_map_dot(self, q: Array, v: Array) -> Array:
        """dT/dt."""
        T_dot = np.zeros((self.model.nv, self.model.nv))
        for (i, block), q_i in zip(self._blocks(), self._by_joint(q)):
            T_dot[block] = self._rates_dot(i, q_i, v[block[1]])
        return T_dot

    def _by_joint(self, q: Array) -> list[Array]:
        return np.split(q, self.model.q_start[1:-1])

    def _blocks(self) -> Iterator[tuple[int, tuple[slice, slice]]]:
        """Body i, its rows (the peer's velocities) and columns (torsor's) of T."""
        for i, (first, last) in enumerate(zip(self.model.v_start, self.model.v_start[1:])):
            row = self.v_address[i]
            yield i, (slice(row, row + last - first), slice(first, last))

    def _coordinates(self, i: int, q_i: Array) -> Array:
        return q_i

    def _rates(self, i: int, q_i: Array) -> Array:
        return np.eye(JOINTS[self.model.joint[i]].nv)

    def _rates_dot(self, i: int, q_i: Array, v_i: Array) -> Array:
        return np.zeros((len(v_i), len(v_i)))


class Peer(Translation, ABC):
    """Translates results too; a subclass calls the peer's functions."""

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

    @abstractmethod
    def _momentum_about_center(self, x: Array, w: Array) -> tuple[Array, Array]:
        """Angular and linear."""

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

    def momentum(self, q: Array, v: Array) -> Array:
        """Both peers give it about the centre of mass; torsor about the base's origin."""
        angular, linear = self._momentum_about_center(self.configuration(q), self.velocity_map(q) @ v)
        return np.concatenate([angular + np.cross(self.center_of_mass(q), linear), linear])


def random_models(joints: Sequence[str]) -> dict[str, Model]:
    """By name: a chain of each joint type, then trees of all of them on a fixed and on a floating base."""
    chains = {f"chain of {joint} joints": zoo.random_chain(5, seed=1, joints=[joint]) for joint in joints}
    trees = {f"tree {seed}": zoo.random_tree(12, seed, joints=joints, branching=0.5) for seed in (2, 3)}
    return chains | trees | {f"floating {name}": floating(tree) for name, tree in trees.items()}


def floating(model: Model) -> Model:
    """The first body free, all others on it, and gravity aslant."""
    joint, pitch, parent = model.joint.copy(), model.pitch.copy(), np.maximum(model.parent, 0)
    joint[0], pitch[0], parent[0] = [j.name for j in JOINTS].index("free"), 0.0, -1
    return replace(model, joint=joint, pitch=pitch, parent=parent, gravity=(1.0, -2.0, -9.0))


@dataclass(frozen=True)
class State:
    """A random state of a model, and what the functions of `torsor.dynamics` ask besides."""

    q: Array
    v: Array
    v_dot: Array
    tau: Array
    external: Array
    body: int

    @classmethod
    def random(cls, model: Model, seed: int) -> "State":
        rng = np.random.default_rng(seed)
        v, v_dot, tau = rng.normal(size=(3, model.nv))
        external = rng.normal(size=(model.n, 6))
        return cls(model.random_configuration(rng), v, v_dot, tau, external, int(rng.integers(model.n)))

    @property
    def b(self) -> Array:
        """The right-hand side of M x = b."""
        return self.tau

    def ask(self, owner: Any, function: str, *first: Any) -> Array:
        """`owner.function(*first, ...)` at this state."""
        given = {name: getattr(self, name) for name in QUESTIONS[function]}
        options = {name: given.pop(name) for name in ("external",) if name in given}
        return getattr(owner, function)(*first, *given.values(), **options)


# The functions asked of a peer, and their arguments after the model.
QUESTIONS = {
    "body_poses": ("q",),
    "jacobian": ("q", "body"),
    "jacobian_dot": ("q", "v", "body"),
    "center_of_mass": ("q",),
    "momentum": ("q", "v"),
    "kinetic_energy": ("q", "v"),
    "potential_energy": ("q",),
    "gravity_forces": ("q",),
    "bias_forces": ("q", "v"),
    "inverse_dynamics": ("q", "v", "v_dot", "external"),
    "forward_dynamics": ("q", "v", "tau", "external"),
    "mass_matrix": ("q",),
    "inverse_mass_matrix": ("q",),
}


def relative_difference(a: ArrayLike, b: ArrayLike) -> float:
    """max |a - b| / max |b|; a b that vanishes (dJ/dt of a slide) counts as 0.01, in SI units."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    return float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 0.01))


def assert_close(model: Model, got: ArrayLike, want: ArrayLike, tolerance: float) -> None:
    """Fail unless `got` is `want` to a tolerance relative to its largest number; the message has the worst entry, the
    joints its axes stand for, and both numbers.
    """
    got, want = np.asarray(got), np.asarray(want)
    if np.array_equal(got, want) or relative_difference(got, want) <= tolerance:
        return
    apart = np.where(np.isfinite(got), np.abs(got - want), np.inf)
    worst = np.unravel_index(np.argmax(apart), got.shape)
    joints = np.repeat(model.joint_names, np.diff(model.v_start))
    at = [f"{k} ({joints[k]})" if size == model.nv else str(k) for k, size in zip(worst, got.shape)]
    raise AssertionError(
        f"{model!r}: entry [{', '.join(at)}] is {got[worst]:.17g}, not {want[worst]:.17g}: {np.max(apart):.3g} apart, "
        f"{relative_difference(got, want):.3g} of the largest entry; allowed is {tolerance:g}"
    )


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
