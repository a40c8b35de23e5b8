"""What frames of a machine feel of its inertia: J M^-1 J^T, its inverse, the consistent inverse and the bias."""

import numpy as np
import pytest
from machines import difference

import torsor as ts
from torsor import reference, zoo
from torsor.algorithms import composite, kinematics, operational_space
from torsor.backends.cpu import compile_program

IDENTITY = 1e-12
# After inverting the 6x6 or 12x12 inertia: rounding times its condition, below 1e3 for the states here.
INVERTED = 1e-10


@pytest.fixture(scope="module")
def arm():
    model = zoo.panda()
    frame = np.eye(3)[[1, 2, 0]], (0.1, 0.2, 0.3)
    return model.with_frames({"tool": (model.names[-1], *frame)})


@pytest.fixture(scope="module")
def state(arm):
    rng = np.random.default_rng(3)
    return arm.random_configuration(rng), *rng.normal(size=(2, arm.nv))


@pytest.mark.parametrize("name", ["tree", "chain"])
def test_response_squares_to_the_inverse_inertia_of_every_pair_of_bodies(name):
    """J_a M^-1 J_b^T = B_a B_b^T on thirty bodies of every joint type."""
    model = zoo.random_tree(30, 1) if name == "tree" else zoo.random_chain(30, 3, joints=None)
    q = {"q": model.random_configuration(6).tolist()}
    M = np.array(reference.evaluate(composite.mass_matrix, model, q))
    bodies = (29, 17, 4)
    J, B = (
        np.concatenate([reference.evaluate(algorithm, model, q, frame=model.frame(body)) for body in bodies])
        for algorithm in (kinematics.jacobian, operational_space.tip_response)
    )
    assert difference(B @ B.T, J @ np.linalg.solve(M, J.T)) < INVERTED


def test_inverse_inertia_of_frames_and_bodies(arm, state):
    q, *_ = state
    frames = ("tool", 3)
    space = ts.operational_space(arm, q, frames)
    J = np.concatenate([ts.jacobian(arm, q, frame) for frame in frames])
    assert difference(space.jacobian, J) == 0
    assert difference(space.inverse_inertia, J @ ts.inverse_mass_matrix(arm, q) @ J.T) < IDENTITY


def test_task_inertia_is_the_inverse_of_the_inverse(arm, state):
    space = ts.operational_space(arm, state[0], "tool")
    assert difference(space.inertia @ space.inverse_inertia, np.eye(6)) < INVERTED


def test_consistent_inverse(arm, state):
    """J J^# = 1, and torques (1 - J^T J^#^T) tau do not accelerate the task."""
    q, _, tau = state
    space = ts.operational_space(arm, q, "tool")
    J, inverse = space.jacobian, space.consistent_inverse
    assert difference(J @ inverse, np.eye(6)) < INVERTED
    silent = tau - J.T @ (inverse.T @ tau)
    assert np.abs(J @ ts.mass_solve(arm, q, silent)).max() < INVERTED * np.abs(J @ ts.mass_solve(arm, q, tau)).max()


def test_equation_of_motion_of_the_task(arm, state):
    """F = Lambda a + bias: with torques J^T F the task accelerates by a."""
    q, v, _ = state
    space = ts.operational_space(arm, q, "tool", v)
    a = np.random.default_rng(0).normal(size=6)
    tau = space.jacobian.T @ (space.inertia @ a + space.bias)
    qdd = ts.forward_dynamics(arm, q, v, tau)
    found = space.jacobian @ qdd + ts.jacobian_dot(arm, q, v, "tool") @ v
    assert difference(found, a) < INVERTED


def test_components_of_a_task_in_batches():
    """The planar arm moves its tip in the plane: x, y and the angle, or the two places alone."""
    model = zoo.planar3()
    rng = np.random.default_rng(1)
    q, v = rng.normal(size=(2, 5, 3))
    reachable = np.abs(ts.jacobian(model, q[0], 2)).max(axis=1) > 0
    task = np.eye(6)[reachable]
    space = ts.operational_space(model, q, 2, v, task=task)
    assert space.inertia.shape == (5, 3, 3)
    assert space.bias.shape == (5, 3)
    for k in range(5):
        single = ts.operational_space(model, q[k], 2, v[k], task=task)
        assert difference(space.inertia[k], single.inertia) < INVERTED
        assert difference(space.consistent_inverse[k], single.consistent_inverse) < INVERTED
        assert difference(space.bias[k], single.bias) < INVERTED


def test_one_frame_costs_order_n():
    lengths = (100, 1000, 10_000)
    ropes = [zoo.rope(n) for n in lengths]
    programs = [compile_program(operational_space.tip_response, rope, frame=rope.frame(-1)) for rope in ropes]
    counts = [sum(program.operations) for program in programs]
    assert np.all(np.abs(np.diff(np.log10(counts)) - 1) < 0.1)


def test_a_task_that_cannot_be_accelerated_is_refused():
    model = zoo.planar3()
    space = ts.operational_space(model, np.ones(3), 2)
    with pytest.raises(ts.SingularError, match=r"6 components, but only 3"):
        _ = space.inertia
    assert space.inverse_inertia.shape == (6, 6)


@pytest.mark.parametrize(
    ("frames", "options", "words"),
    [((), {}, "empty"), (0, {"task": np.eye(5)}, "six columns"), ("nowhere", {}, "nowhere")],
)
def test_bad_tasks_are_refused(frames, options, words):
    with pytest.raises(ts.ArgumentError, match=words):
        ts.operational_space(zoo.planar3(), np.zeros(3), frames, **options)


def test_bias_needs_velocities():
    with pytest.raises(ts.ArgumentError, match="velocities"):
        _ = ts.operational_space(zoo.planar3(), np.zeros(3), 2).bias
