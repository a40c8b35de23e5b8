"""Products of exponentials: the printed numbers of Modern Robotics (Lynch & Park 2017), and machines there and back."""

import numpy as np
import pytest
from machines import difference

import torsor as ts
from torsor import lie, zoo

ROUNDING = 1e-12
PRINTED = 5e-8  # eight decimals

# The arm of three joints in the examples of the book's chapter 8; its first screw has an angular part of length sqrt 2.
LINKS = [
    [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.089159], [0, 0, 0, 1]],
    [[0, 0, 1, 0.28], [0, 1, 0, 0.13585], [-1, 0, 0, 0], [0, 0, 0, 1]],
    [[1, 0, 0, 0], [0, 1, 0, -0.1197], [0, 0, 1, 0.395], [0, 0, 0, 1]],
]
MOMENTS = [
    (0.010267, 0.010267, 0.00666, 3.7),
    (0.22689, 0.22689, 0.0151074, 8.393),
    (0.0494433, 0.0494433, 0.004095, 2.275),
]
SCREWS = np.array([[1, 0, 1, 0, 1, 0], [0, 1, 0, -0.089, 0, 0], [0, 1, 0, -0.089, 0, 0.425]])
SCALE = np.array([np.sqrt(2), 1, 1])


def book_arm():
    home = [np.array(LINKS[0])]
    for M in LINKS[1:]:
        home.append(home[-1] @ M)
    inertias = [np.diag([*moments, m, m, m]) for *moments, m in MOMENTS]
    return ts.Model.from_screws(SCREWS / SCALE[:, None], home, inertias, gravity=(0, 0, -9.8), name="book arm")


def test_printed_numbers_of_modern_robotics():
    """Chapter 8: M, the velocity and the gravity terms, and accelerations; joint 1 counts in units of 1 / sqrt 2."""
    arm = book_arm()
    q, v, qdd = np.full(3, 0.1) * SCALE, np.array([0.1, 0.2, 0.3]) * SCALE, np.array([2, 1.5, 1]) * SCALE
    M = ts.mass_matrix(arm, q) * SCALE * SCALE[:, None]
    expected = [
        [22.5433, -0.30714675, -0.00718426], [-0.30714675, 1.96850717, 0.43215737],
        [-0.00718426, 0.43215737, 0.19163085],
    ]  # fmt: skip
    assert np.abs(M - expected).max() < 5e-5
    assert np.abs((M - expected)[1:, 1:]).max() < PRINTED
    gravity = ts.gravity_forces(arm, q)
    assert np.abs(gravity * SCALE - [28.40331262, -37.64094817, -5.4415892]).max() < PRINTED
    quadratic = ts.bias_forces(arm, q, v) - gravity
    assert np.abs(quadratic * SCALE - [0.26453118, -0.05505157, -0.00689132]).max() < PRINTED
    assert difference(ts.forward_dynamics(arm, q, v, ts.inverse_dynamics(arm, q, v, qdd)), qdd) < ROUNDING


@pytest.mark.parametrize("axes", ["space", "body"])
def test_forward_kinematics_of_modern_robotics(axes):
    """Chapter 4: a turning, a sliding and a screwing joint; space and body screws place the same end."""
    M = np.array([[-1, 0, 0, 0], [0, 1, 0, 6], [0, 0, -1, 2], [0, 0, 0, 1.0]])
    S = {
        "space": [[0, 0, 1, 4, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, -1, -6, 0, -0.1]],
        "body": [[0, 0, -1, 2, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0.1]],
    }[axes]
    inertias = np.broadcast_to(np.eye(6), (3, 6, 6))
    arm = ts.Model.from_screws(S, np.broadcast_to(M, (3, 4, 4)), inertias, axes=axes)
    assert [arm.joint_groups[k][0].name for k in range(3)] == ["revolute", "prismatic", "helical"]
    end = ts.frame_poses(arm, np.array([np.pi / 2, 3, np.pi]), ["link3/home"])[0]
    expected = [[0, 1, 0, -5], [1, 0, 0, 4], [0, 0, -1, 1.68584073], [0, 0, 0, 1]]
    assert np.abs(end - expected).max() < PRINTED


AXIAL = ("revolute", "prismatic", "helical")


@pytest.mark.parametrize("axes", ["space", "body"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_tree_by_its_screws_is_the_same_machine(axes, seed):
    """Screws by the Jacobian at zero, in frames anywhere on the bodies; M, bias and kinetic energy agree."""
    tree = zoo.random_tree(7, seed, joints=list(AXIAL))
    rng, zero = np.random.default_rng(seed), np.zeros(7)
    home = ts.body_poses(tree, zero) @ lie.exp_se3(rng.normal(size=(7, 6)))
    own = lie.Ad(lie.inverse(lie.inverse(ts.body_poses(tree, zero)) @ home))
    body = np.stack([own[i] @ ts.jacobian(tree, zero, i)[:, i] for i in range(7)])
    S = body if axes == "body" else np.einsum("nij,nj->ni", lie.Ad(home), body)
    inertias = []
    for i in range(7):
        c = lie.hat(tree.com[i])
        m, J = tree.mass[i], tree.inertia[i] - tree.mass[i] * c @ c
        back = lie.Ad(lie.inverse(ts.body_poses(tree, zero)[i]) @ home[i])
        inertias.append(back.T @ np.block([[J, m * c], [-m * c, m * np.eye(3)]]) @ back)
    made = ts.Model.from_screws(S, home, inertias, axes=axes, parent=tree.parent, gravity=tree.gravity)
    q, (v, qdd) = rng.uniform(-1, 1, 7), rng.normal(size=(2, 7))
    assert difference(ts.mass_matrix(made, q), ts.mass_matrix(tree, q)) < 100 * ROUNDING
    assert difference(ts.inverse_dynamics(made, q, v, qdd), ts.inverse_dynamics(tree, q, v, qdd)) < 100 * ROUNDING
    poses = ts.body_poses(tree, q) @ (lie.inverse(ts.body_poses(tree, zero)) @ home)
    assert difference(ts.frame_poses(made, q, [f"{name}/home" for name in made.names]), poses) < 100 * ROUNDING


ONE = np.eye(4)[None], np.eye(6)[None]
REFUSED = {
    "two": (lambda: ts.Model.from_screws([[0, 0, 2, 0, 0, 0]], *ONE), "screw 1.*size 2.*unit"),
    "nothing": (lambda: ts.Model.from_screws([[0, 0, 0, 0, 0, 0]], *ONE), "screw 1.*size 0"),
    "shape": (lambda: ts.Model.from_screws([[0, 0, 1]], *ONE), "S must have shape"),
    "count": (lambda: ts.Model.from_screws(np.eye(6)[:2], *ONE), "2 home poses"),
    "axes": (lambda: ts.Model.from_screws([[0, 0, 1, 0, 0, 0]], *ONE, axes="tool"), "axes"),
    "pose": (lambda: ts.Model.from_screws([[0, 0, 1, 0, 0, 0]], 2 * ONE[0], ONE[1]), "0 0 0 1"),
    "inertia": (
        lambda: ts.Model.from_screws([[0, 0, 1, 0, 0, 0]], ONE[0], np.diag([1, 1, 1, 1, 2, 3.0])[None]),
        "rigid body",
    ),
    "rotation": (
        lambda: ts.Model.from_screws([[0, 0, 1, 0, 0, 0]], [np.diag([1, 1, 2, 1.0])], ONE[1], axes="body"),
        "rotation",
    ),
    "parent": (lambda: ts.Model.from_screws([[0, 0, 1, 0, 0, 0]], *ONE, parent=[0]), "parent must give"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_screws_are_named(name):
    call, words = REFUSED[name]
    with pytest.raises(ts.TorsorError, match=words):
        call()
