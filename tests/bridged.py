"""What the tests of torsor.jax and torsor.torch share: machines, states, and numbers to compare with."""

from dataclasses import replace

import numpy as np

import torsor as ts
from torsor import lie
from torsor.linalg import Vec
from torsor.model.joints import JOINTS

# The same algorithm on numbers that differ by rounding (inertias moved by a matrix): a few units in the last place.
ROUNDING = 1e-12
# Derivatives of second order by four ways, relative to the largest: rounding, amplified by small pivots.
SECOND = 1e-10

MACHINES = {
    "arm": lambda: ts.zoo.general_arm(3, 1),
    "tree with quaternions": lambda: ts.zoo.random_tree(3, 1, joints=("free", "spherical", "revolute")),
}


def states(model, batch=(), seed=0):
    """Random q, v and tau."""
    rng = np.random.default_rng(seed)
    q = np.array([model.random_configuration(rng) for _ in range(int(np.prod(batch)))])
    return q.reshape(*batch, model.nq), rng.normal(size=(*batch, model.nv)), rng.normal(size=(*batch, model.nv))


def changed(model, inertia=None, gravity=None, placement=None):
    """The model with other numbers."""
    if placement is not None:
        moved = lie.exp_se3(placement)
        model = replace(model, R=model.R @ moved[:, :3, :3], p=model.p + (model.R @ moved[:, :3, 3:])[..., 0])
    if inertia is not None:
        model = model.with_inertial_parameters(inertia)
    return model if gravity is None else replace(model, gravity=gravity)


def numbers(model, seed=0):
    """Other inertias, gravity and placements, within which no body becomes impossible."""
    rng = np.random.default_rng(seed)
    return 1.1 * model.inertial_parameters(), rng.normal(size=3), 0.3 * rng.normal(size=(model.n, 6))


MOVING = {"external": True, "base_velocity": True, "base_acceleration": True}


def moving(model, batch=(), seed=1):
    """Frames of the bodies, and wrenches on them and the motion of the base as arguments of a call."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(*batch, model.n, 6)), *rng.normal(size=(2, *batch, 6))
    return lie.exp_se3(rng.normal(size=(model.n, 6))), inputs


def seen_from(Q, inertia, xi):
    """The inertial parameters of bodies, and twists at them, in other frames: Ad_Q^-1' G Ad_Q^-1 and Ad_Q xi."""
    found = np.empty_like(inertia)
    for i, (m, hx, hy, hz, xx, xy, xz, yy, yz, zz) in enumerate(inertia):
        h = lie.hat([hx, hy, hz])
        G = np.block([[np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]), h], [h.T, m * np.eye(3)]])
        back = np.linalg.inv(lie.Ad(Q[i]))
        G = back.T @ G @ back
        found[i] = (m, G[2, 4], G[0, 5], G[1, 3], *G[0, :3], *G[1, 1:3], G[2, 2])
    return found, np.einsum("nij,nj->ni", lie.Ad(Q), xi)


def along_numbers(model, q, g):
    """The cotangent of the numbers of q that is g along the freedoms: N(q)^+T g, joint by joint from the joint's N."""
    found = np.zeros(model.nq)
    for i, code in enumerate(model.joint):
        own_q, own_v = (slice(start[i], start[i + 1]) for start in (model.q_start, model.v_start))
        N = np.array(JOINTS[code].tangent(Vec.of(q[own_q].tolist())), float)
        found[own_q] = np.linalg.pinv(N).T @ g[own_v]
    return found


def relative(a, b):
    """The largest difference, relative to the largest number."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    return np.abs(a - b).max() / max(1e-300, np.abs(b).max())
