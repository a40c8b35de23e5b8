"""The machines every identity is checked on, and small helpers to move and to compare them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor import Model, duals, lie, zoo
from torsor.dynamics.functions import ALGORITHMS
from torsor.model.freedoms import DEFAULTS
from torsor.model.joints import JOINTS, joint_code
from torsor.motion.motion import Motion
from torsor.outputs import Several
from torsor.sweeps import Algorithm

Array = NDArray[Any]

# The functions that return one array; those that return several matrices have their own tests (test_jacobians.py).
ARRAY_FUNCTIONS = [f for f, algorithm in ALGORITHMS.items() if not isinstance(algorithm.output, Several)]

JOINT_NAMES = tuple(joint.name for joint in JOINTS)

# Central differences of fourth order in extended precision: the truncation (STEP^4 times a fifth derivative)
# and the rounding (eps / STEP) are both far below the tolerances of the identities.
STEP = 1e-4
EXTENDED_EPS = float(np.finfo(np.longdouble).eps)


def with_first_joint(model: Model, joint: str) -> Model:
    """The model, its first body hung on another joint."""
    codes, pitch = model.joint.copy(), model.pitch.copy()
    codes[0], pitch[0] = joint_code(joint), 0.0
    return replace(model, joint=codes, pitch=pitch)


def floating_tree(n: int = 5, seed: int = 0) -> Model:
    """One tree on a free first body; nothing else touches the base."""
    model = with_first_joint(zoo.random_tree(n, seed, branching=0.7), "free")
    parent = model.parent.copy()
    parent[1:] = np.maximum(parent[1:], 0)
    return replace(model, parent=parent)


MACHINES: dict[str, Callable[[], Model]] = {
    "tree of every joint type": lambda: zoo.random_tree(7, 1),
    "floating tree": floating_tree,
    "general arm": lambda: zoo.general_arm(6, 5),
    "point masses": lambda: zoo.point_chain(4),
    "humanoid": zoo.humanoid,
}
# Compiling for every one of these takes its time: they are left to the slow tests.
MORE_MACHINES: dict[str, Callable[[], Model]] = {
    "bushy tree": lambda: zoo.random_tree(14, 2, branching=0.7),
    "chain of every joint type": lambda: zoo.random_chain(7, 3, joints=None),
    "rope": lambda: zoo.rope(5, mass=5.0),  # heavy enough for forces of 1 N to be small
    "PUMA 560": zoo.puma560,
    "PUMA of Lee": zoo.puma_lee,
    "PUMA of Saha": zoo.puma_saha,
    "polypeptide": zoo.polypeptide,
    "planar arm": zoo.planar3,
    "Stanford arm": zoo.stanford,
    "Panda": zoo.panda,
}


def _scaled(model: Model, factor: Array) -> Model:
    return replace(model, mass=model.mass * factor, inertia=model.inertia * factor[:, None, None])


# Neighbours whose masses differ by up to 1e6.
UNEVEN_ARMS = {
    name: _scaled(zoo.general_arm(200, 1), factor)
    for name, factor in {
        "at random": 10.0 ** np.random.default_rng(5).uniform(-3, 3, 200),
        "in turn": np.where(np.arange(200) % 2, 1e-3, 1e3),
        "heavy tip": np.where(np.arange(200) == 199, 1e6, 1.0),
    }.items()
}


def quaternion_columns(model: Model) -> list[tuple[slice, slice]]:
    """(columns of q, columns of v) of every quaternion of the model."""
    found = []
    for code, q, v in zip(model.joint, model.q_start, model.v_start):
        if JOINTS[code].name == "spherical":
            found.append((slice(q, q + 4), slice(v, v + 3)))
        elif JOINTS[code].name == "free":
            found.append((slice(q + 3, q + 7), slice(v, v + 3)))
    return found


def configuration_rate(model: Model, q: Array, v: Array) -> Array:
    """dq/dt: v itself, (0, omega)/2 after the quaternion, and R v for the position of a free body."""
    rate = np.empty(model.nq)
    for i, code in enumerate(model.joint):
        rows, columns = slice(*model.q_start[i : i + 2]), slice(*model.v_start[i : i + 2])
        if JOINTS[code].nq == JOINTS[code].nv:
            rate[rows] = v[columns]
        elif JOINTS[code].name == "free":
            rate[rows][:3] = lie.quaternion_to_matrix(q[rows][3:]) @ v[columns][3:]
    for rows, columns in quaternion_columns(model):
        rate[rows] = lie.quaternion_product(q[rows], np.concatenate([[0.0], v[columns]])) / 2
    return rate


def time_derivative(f: Callable[[Any], ArrayLike]) -> Array:
    """df/dt at t = 0, from f at +-STEP and +-2 STEP in extended precision."""
    h = np.longdouble(STEP)
    near, far = (np.asarray(f(k * h)) - np.asarray(f(-k * h)) for k in (1, 2))
    return np.asarray((8 * near - far) / (12 * h), dtype=np.float64)


def extended(algorithm: Algorithm, model: Model, **inputs: Array) -> Array:
    """The reference engine in extended precision."""
    numbers = {name: [np.longdouble(x) for x in values] for name, values in inputs.items()}
    return np.array(duals.evaluate(algorithm, model, numbers, number=np.longdouble), dtype=np.longdouble)


def precise(algorithm: Algorithm, model: Model, body: int | None = None, **inputs: Array) -> Array:
    """The reference engine in mpmath, at the precision that is set: an array of mpf."""
    numbers = {
        name: [[mpmath.mpf(float(y)) for y in x] if np.ndim(x) else mpmath.mpf(float(x)) for x in values]
        for name, values in inputs.items()
    }
    frame = None if body is None else model.frame(body)
    return np.array(duals.evaluate(algorithm, model, numbers, frame=frame, number=mpmath.mpf), dtype=object)


def to_digits(x: Array) -> Array:
    """NumPy numbers of any precision as mpmath numbers, exactly."""
    head = x.astype(np.float64)
    rest = (x - head).astype(np.float64)
    pairs = zip(head.flat, rest.flat)
    return np.array([mpmath.mpf(float(a)) + mpmath.mpf(float(b)) for a, b in pairs]).reshape(x.shape)


def difference(a: ArrayLike, b: ArrayLike, scale: ArrayLike = 0.0) -> float:
    """max |a - b| relative to the largest entry of b, or to `scale` where b may vanish by cancellation."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape, f"{a.shape} is not {b.shape}"
    largest = max(np.max(np.abs(b), initial=0), np.max(np.abs(scale)))
    error = np.max(np.abs(a - b), initial=0)
    return float(error / largest) if largest else float(error)


def torques_of(model: Model, force: Any) -> Callable[[float, Array, Array], Array]:
    """The torques of a force, as they are felt at the joints, without what the joints do by themselves."""
    return Motion(replace(model, **{name: x for name, x in DEFAULTS.items() if name != "armature"}), force).felt


def torque_of(model: Model, force: Any, t: float, q: Array, v: Array) -> Array:
    """The same at one state."""
    return torques_of(model, force)(t, q, v)
