"""Points of the bodies: positions by poses, and J^T f by wrenches on the bodies and by differences."""

import numpy as np
import pytest

import torsor as ts
from torsor import zoo

ROUNDING = 1e-14  # relative; sums of a few hundred terms
MODELS = {"every joint": zoo.random_tree(7, 1), "one long chain": zoo.random_chain(40, 2), "arm": zoo.panda()}


def points_of(model, count=300, seed=0):
    """Many on some bodies, none on others."""
    rng = np.random.default_rng(seed)
    body = rng.integers(-1, max(1, model.n - 1), count)
    body[: count // 2] = model.n // 2
    return ts.Points(model, body, rng.normal(size=(count, 3))), rng


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_positions_are_those_of_the_poses(model):
    points, rng = points_of(model)
    q = model.random_configuration(rng, size=(2, 3))
    poses = np.concatenate([ts.body_poses(model, q), np.broadcast_to(np.eye(4), (2, 3, 1, 4, 4))], axis=-3)
    expected = np.einsum("...mij,mj->...mi", poses[..., points.body, :3, :3], points.place)
    expected += poses[..., :3, 3][..., points.body, :]
    np.testing.assert_allclose(points.positions(q), expected, rtol=ROUNDING, atol=ROUNDING * np.abs(expected).max())


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_torques_are_those_of_wrenches_on_the_bodies(model):
    points, rng = points_of(model)
    q, f = model.random_configuration(rng, size=5), rng.normal(size=(5, len(points), 3))
    poses = ts.body_poses(model, q)
    external = np.zeros((5, model.n, 6))
    for k, body in enumerate(points.body):
        if body >= 0:
            own = np.einsum("bji,bj->bi", poses[:, body, :3, :3], f[:, k])
            external[:, body] += np.concatenate([np.cross(points.place[k], own), own], axis=-1)
    still = np.zeros((5, model.nv))
    expected = ts.bias_forces(model, q, still) - ts.bias_forces(model, q, still, external=external)
    np.testing.assert_allclose(points.torques(q, f), expected, rtol=0, atol=ROUNDING * np.abs(expected).max() * 10)


def test_torques_are_the_slope_of_the_work():
    """f . dx/dq, by differences of fourth order along every freedom."""
    model = MODELS["every joint"]
    points, rng = points_of(model, 30)
    q, f, h = model.random_configuration(rng), rng.normal(size=(30, 3)), 1e-3
    tau = points.torques(q, f)
    for k, along in enumerate(np.eye(model.nv)):
        near, far = (points.positions(model.integrate(q, s * along)) for s in (h, 2 * h))
        near, far = (
            np.sum(f * (x - points.positions(model.integrate(q, -s * along)))) for s, x in ((h, near), (2 * h, far))
        )
        assert tau[k] == pytest.approx((8 * near - far) / (12 * h), abs=1e-9 * np.abs(tau).max())


def test_no_points_and_no_states():
    model = zoo.planar3()
    none = ts.Points(model, np.zeros(0, int), np.zeros((0, 3)))
    assert none.positions(np.zeros((2, 3))).shape == (2, 0, 3)
    assert none.torques(np.zeros(3), np.zeros((0, 3))).tolist() == [0, 0, 0]
    one = ts.Points(model, [2], [[0.1, 0, 0]])
    assert one.positions(np.zeros((0, 3))).shape == (0, 1, 3)
    assert one.torques(np.zeros((0, 3)), np.zeros((0, 1, 3))).shape == (0, 3)


def test_a_state_that_is_not_finite_leaves_the_others_alone():
    model = zoo.panda()
    points, rng = points_of(model, 20)
    q, f = model.random_configuration(rng, size=9), rng.normal(size=(9, 20, 3))
    expected = points.positions(q), points.torques(q, f)
    q[3], f[5] = np.nan, np.inf
    good = [0, 1, 2, 4, 5, 6, 7, 8]
    np.testing.assert_array_equal(points.positions(q)[good], expected[0][good])
    good.remove(5)
    np.testing.assert_array_equal(points.torques(q, f)[good], expected[1][good])
    assert not np.isfinite(points.torques(q, f)[[3, 5]]).all(axis=1).any()


@pytest.mark.parametrize(
    ("body", "place"),
    [([3], [[0, 0, 0]]), ([-2], [[0, 0, 0]]), ([0.5], [[0, 0, 0]]), ([0], [[0, 0]]), ([[0]], [[0, 0, 0]])],
)
def test_wrong_points_are_refused(body, place):
    with pytest.raises(ts.ArgumentError, match=r"body|place"):
        ts.Points(zoo.planar3(), body, place)


def test_wrong_states_are_refused():
    points = ts.Points(zoo.planar3(), [0], [[0, 0, 0]])
    with pytest.raises(ts.ArgumentError, match="q must be"):
        points.positions(np.zeros(4))
    with pytest.raises(ts.ArgumentError, match="forces must be"):
        points.torques(np.zeros(3), np.zeros((2, 3)))
