"""States in which M is singular although every body has mass and extent: joints of three angles lock."""

from dataclasses import replace

import numpy as np
import pytest

import torsor as ts
from torsor.model.joints import JOINTS

MACHINE = ts.Model.chain(
    ["revolute", "gimbal", "revolute"], mass=1.0, com=(0.1, 0.2, 0.3), inertia=(0.1, 0.12, 0.13), p=(0, 0, 0.3)
)
LOCK = 2  # the angle of the gimbal joint that locks it, in q
OPEN = MACHINE.random_configuration(0)
LOCKED = np.where(np.arange(MACHINE.nq) == LOCK, np.pi / 2, OPEN)
STATES = np.stack([OPEN, LOCKED, OPEN])
V, TAU = np.random.default_rng(1).normal(size=(2, MACHINE.nv))
SWEEPS = ("auto", "articulated", "composite", "udut", "fixman", "constraint-force")


def forward(method):
    return lambda model, q: ts.forward_dynamics(model, q, V, TAU, method=method)


def solve(method):
    return lambda model, q: ts.mass_solve(model, q, TAU, method=method)


CALLS = {
    **{f"forward_dynamics by {method}": forward(method) for method in (*SWEEPS, "ploen-park")},
    **{f"mass_solve by {method}": solve(method) for method in SWEEPS},
    "inverse_mass_matrix": ts.inverse_mass_matrix,
    "log_det_mass_matrix": ts.log_det_mass_matrix,
    "log_det_gradient": ts.log_det_gradient,
    "forward_dynamics_derivatives": lambda model, q: ts.forward_dynamics_derivatives(model, q, V, TAU),
    "vjp": lambda model, q: ts.vjp(ts.forward_dynamics)(model, q, V, TAU, TAU),
    "external": lambda model, q: ts.forward_dynamics(model, q, V, TAU, external=np.ones((3, 6))),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_locked_joint_is_named_with_its_state(name):
    call = CALLS[name]
    for _ in range(2):  # the second call takes the fast path
        call(MACHINE, OPEN)
        call(MACHINE, np.stack([OPEN, OPEN]))
        with pytest.raises(ts.SingularError, match=r"joint 'link2' locks: its angle q\[2\] = 1.5708 is a right angle"):
            call(MACHINE, LOCKED)
        with pytest.raises(ts.SingularError, match=r"joint 'link2' locks in state \[1\]"):
            call(MACHINE, STATES)


@pytest.mark.parametrize("method", ["auto", "esdirk4", "radau", "rk4", "verlet", "midpoint"])
def test_a_motion_that_starts_at_a_lock_is_refused_by_name(method):
    for angle in (np.pi / 2, -np.pi / 2):
        q = np.where(np.arange(MACHINE.nq) == LOCK, angle, OPEN)
        with pytest.raises(ts.SingularError, match=r"joint 'link2' locks: its angle q\[2\]"):
            ts.simulate(MACHINE, q, V, 0.01, method=method, step=1e-3)


def test_members_of_a_batch_lock():
    batch = ts.ModelBatch(MACHINE, mass=np.ones((3, 3)) * [[1.0], [2.0], [3.0]])
    for _ in range(2):
        ts.forward_dynamics(batch, OPEN, V, TAU)
        with pytest.raises(ts.SingularError, match=r"joint 'link2' locks in state \[1\]"):
            ts.forward_dynamics(batch, STATES, V, TAU)


def test_a_long_chain_locks_in_one_of_its_segments():
    rope = ts.Model.chain("gimbal", n=16, mass=1.0, com=(0.1, 0.2, 0.3), inertia=(0.1, 0.12, 0.13), p=(0, 0, 0.3))
    q, v = rope.random_configuration(0), np.zeros(rope.nv)
    ts.forward_dynamics(rope, q, v, v, method="segments")
    q[3 * 9 + 1] = np.pi / 2
    with pytest.raises(ts.SingularError, match="joint 'link10' locks"):
        ts.forward_dynamics(rope, q, v, v, method="segments")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_angles_of_other_turns_and_precisions(dtype):
    for angle in (-np.pi / 2, 3 * np.pi / 2, 41 * np.pi / 2):
        q = np.where(np.arange(MACHINE.nq) == LOCK, angle, OPEN).astype(dtype)
        with pytest.raises(ts.SingularError, match="locks"):
            ts.mass_solve(MACHINE, q, TAU.astype(dtype))


def test_rotors_keep_a_locked_machine_regular():
    """M is then the sum of a singular and a diagonal matrix."""
    heavy, added = replace(MACHINE, armature=0.1), np.full(MACHINE.nv, 0.1)
    wanted = np.linalg.solve(ts.mass_matrix(heavy, LOCKED), TAU - ts.bias_forces(heavy, LOCKED, V))
    for found in (
        ts.forward_dynamics(heavy, LOCKED, V, TAU),
        ts.forward_dynamics(MACHINE, LOCKED, V, TAU, added_inertia=added),
        ts.forward_dynamics(ts.ModelBatch(MACHINE, armature=added[None]), LOCKED, V, TAU)[0],
        ts.forward_dynamics(ts.ModelBatch(MACHINE, mass=MACHINE.mass[None]), LOCKED, V, TAU, added_inertia=added)[0],
    ):
        # a regular system of condition 1e2
        np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_near_the_lock_the_equations_hold():
    q = np.where(np.arange(MACHINE.nq) == LOCK, np.pi / 2 - 1e-4, OPEN)
    found = ts.forward_dynamics(MACHINE, q, V, TAU)
    back = ts.inverse_dynamics(MACHINE, q, V, found)
    # accelerations of 1e8 lose as many digits
    np.testing.assert_allclose(back, TAU, rtol=0, atol=1e-15 * np.abs(found).max() * 10)


def test_only_joints_that_lock_are_looked_at():
    assert [joint.name for joint in JOINTS if joint.locking] == ["gimbal"]
    assert list(MACHINE.locking_coordinates) == [LOCK]
    assert not len(ts.zoo.panda().locking_coordinates)


# ---- options of derivatives ----


def test_derivatives_take_the_options_of_their_function():
    added, y = np.full(MACHINE.nv, 0.3), np.ones(MACHINE.nv)
    heavy = replace(MACHINE, armature=added)
    # the rotors of axes act as their inertias added to M
    for f, args in ((ts.forward_dynamics, (OPEN, V, TAU)), (ts.mass_solve, (OPEN, TAU))):
        found, wanted = ts.vjp(f)(MACHINE, *args, y, added_inertia=added), ts.vjp(f)(heavy, *args, y)
        for one, other in zip(found, wanted):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)
    tangents = (y,) * 3
    found = ts.jvp(ts.forward_dynamics)(MACHINE, OPEN, V, TAU, *tangents, added_inertia=added)
    np.testing.assert_allclose(found, ts.jvp(ts.forward_dynamics)(heavy, OPEN, V, TAU, *tangents), rtol=1e-9)


@pytest.mark.parametrize(
    ("function", "args", "option"),
    [
        (ts.jacobian, (OPEN, 2, np.ones((6, MACHINE.nv))), {"reference": "world"}),
        (ts.mass_solve, (OPEN, TAU, TAU), {"base_velocity": np.zeros(6)}),
        (ts.mass_matrix, (OPEN, np.eye(MACHINE.nv)), {"added_inertia": V}),
        (ts.inverse_dynamics, (OPEN, V, TAU, TAU), {"kT": 1.0}),
        (ts.inverse_dynamics, (OPEN, V, TAU, TAU), {"added": None}),
    ],
)
def test_options_that_a_derivative_does_not_have_are_refused(function, args, option):
    with pytest.raises(
        ts.ArgumentError, match=f"takes no {next(iter(option))}=; the options of its derivative are: method"
    ):
        ts.vjp(function)(MACHINE, *args, **option)
