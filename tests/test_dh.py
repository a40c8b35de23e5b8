"""Denavit-Hartenberg tables: the model's DH frames are the products of screws that define them."""

import math

import numpy as np
import oracle
import pytest

from torsor.errors import ArgumentError
from torsor.model import Model

TOLERANCE = 1e-13  # products of six rotations
VARIABLES = ("theta", "d", "alpha", "a")
N = 6


def screw(axis, length, angle):
    """A turn about a coordinate axis and a shift along it, as a 4x4 matrix."""
    T = np.eye(4)
    T[:3, :3] = oracle.turn(angle * np.eye(3)[axis])
    T[axis, 3] = length
    return T


def dh_transform(convention, row):
    x, z = screw(0, row["a"], row["alpha"]), screw(2, row["d"], row["theta"])
    return x @ z if convention == "craig" else z @ x


def random_table(rng):
    return {key: rng.normal(size=N) for key in ("a", "alpha", "d", "theta")}


def random_inertias(rng):
    S = rng.normal(size=(N, 3, 3))
    S = S @ S.swapaxes(1, 2)
    return np.trace(S, axis1=1, axis2=2)[:, None, None] * np.eye(3) - S


def dh_poses(convention, table, variable, q):
    """The DH frames with q added to the row's variable."""
    T, poses = np.eye(4), []
    for k in range(N):
        row = {key: column[k] for key, column in table.items()}
        row[variable[k]] += q[k]
        T = T @ dh_transform(convention, row)
        poses.append(T)
    return poses


def frame_of_link(model, name):
    return f"{name}/dh" if f"{name}/dh" in model.frames else name


@pytest.mark.parametrize("convention", ["craig", "standard"])
@pytest.mark.parametrize("variable", [*([v] * N for v in VARIABLES), ["theta", "d", "alpha", "a", "theta", "d"]])
def test_q_adds_to_the_variable_of_each_row(convention, variable):
    rng = np.random.default_rng(1)
    table, q = random_table(rng), rng.normal(size=N)
    model = Model.from_dh(convention=convention, variable=variable, mass=1.0, inertia=(1, 1, 1), **table)
    for name, expected in zip(model.names, dh_poses(convention, table, variable, q)):
        R, p = oracle.frame_pose(model, q, frame_of_link(model, name))
        assert np.abs(R - expected[:3, :3]).max() < TOLERANCE
        assert np.abs(p - expected[:3, 3]).max() < TOLERANCE


@pytest.mark.parametrize("convention", ["craig", "standard"])
def test_a_mass_centre_that_is_left_out_is_the_origin_of_the_dh_frame(convention):
    rng = np.random.default_rng(3)
    table, q = random_table(rng), rng.normal(size=N)
    model = Model.from_dh(convention=convention, mass=1.0, inertia=(1, 1, 1), **table)
    poses = dh_poses(convention, table, ["theta"] * N, q)
    for T, (R, p, *_), com in zip(poses, oracle.kinematics(model, q), model.com):
        assert np.abs(p + R @ com - T[:3, 3]).max() < TOLERANCE


@pytest.mark.parametrize("convention", ["craig", "standard"])
@pytest.mark.parametrize("variable", VARIABLES)
def test_mass_properties_are_those_given_in_the_dh_frame(convention, variable):
    rng = np.random.default_rng(2)
    table, q = random_table(rng), rng.normal(size=N)
    com, inertia = rng.normal(size=(N, 3)), random_inertias(rng)
    model = Model.from_dh(convention=convention, variable=variable, mass=1.0, com=com, inertia=inertia, **table)
    bodies = oracle.kinematics(model, q)
    for k, T in enumerate(dh_poses(convention, table, [variable] * N, q)):
        R, p = bodies[k][:2]
        assert np.abs(p + R @ model.com[k] - (T[:3, 3] + T[:3, :3] @ com[k])).max() < 10 * TOLERANCE
        assert np.abs(R @ model.inertia[k] @ R.T - T[:3, :3] @ inertia[k] @ T[:3, :3].T).max() < 100 * TOLERANCE


def test_sahas_r_is_the_opposite_of_com():
    r = np.random.default_rng(3).normal(size=(N, 3))
    common = {"convention": "standard", "alpha": np.arange(N), "a": 0.3, "mass": 1.0, "inertia": (1, 1, 1)}
    assert Model.from_dh(r=r, **common) == Model.from_dh(com=-r, **common)


def test_degrees_are_degrees():
    angles = np.array([0.0, 90.0, -90.0, 60.0, 180.0, 33.0])
    common = {"a": 0.2, "mass": 1.0, "inertia": (1, 1, 1)}
    in_degrees = Model.from_dh(alpha=angles, theta=angles, degrees=True, **common)
    in_radians = Model.from_dh(alpha=np.radians(angles), theta=np.radians(angles), **common)
    assert in_degrees == in_radians


def test_right_angles_are_exact():
    """cos(pi/2) is 6e-17 in floating point; the table means 0, and zeros are worth having."""
    model = Model.from_dh(alpha=[math.pi / 2, -math.pi / 2, math.pi], d=1.0, mass=1.0, inertia=(1, 1, 1))
    assert set(np.unique(model.R)) == {-1.0, 0.0, 1.0}
    assert set(np.unique(model.p)) == {-1.0, 0.0, 1.0}


def test_craigs_frames_are_the_bodies_own():
    model = Model.from_dh(alpha=0.3, a=0.2, d=0.1, theta=0.4, n=4, mass=1.0, inertia=(1, 1, 1))
    assert not model.frames


def test_standard_frames_are_kept():
    model = Model.from_dh(convention="standard", a=0.2, n=3, names=["x", "y", "z"], mass=1.0, inertia=(1, 1, 1))
    assert list(model.frames) == ["x/dh", "y/dh", "z/dh"]


def test_both_conventions_describe_one_arm():
    """A standard row's x screw is the next modified row's: the same arm, to its mass matrix."""
    rng = np.random.default_rng(4)
    table, q = random_table(rng), rng.normal(size=N)
    mass, com, inertia = rng.uniform(1, 2, N), rng.normal(size=(N, 3)), random_inertias(rng)
    standard = Model.from_dh(convention="standard", mass=mass, com=com, inertia=inertia, **table)
    shifted = {key: np.concatenate([[0.0], table[key][:-1]]) for key in ("a", "alpha")}
    craig = Model.from_dh(
        convention="craig", d=table["d"], theta=table["theta"], mass=mass, com=standard.com,
        inertia=standard.inertia, **shifted,
    )  # fmt: skip
    difference = oracle.mass_matrix(standard, q) - oracle.mass_matrix(craig, q)
    assert np.abs(difference).max() < 1e-11 * np.abs(oracle.mass_matrix(craig, q)).max()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"convention": "khalil"}, "unknown DH convention 'khalil'"),
        ({"variable": ["theta", "gamma"]}, "variable 'gamma' of DH row 1"),
        ({"com": (0, 0, 1), "r": (0, 0, 1)}, "not both"),
        ({"alpha": [0, 1, 2], "theta": [0, 1]}, "alpha is given for 3 bodies, theta for 2"),
        ({"alpha": "ninety"}, "alpha must be numbers"),
        ({"d": np.zeros((2, 2))}, r"d must have shape .* not \(2, 2\)"),
    ],
)
def test_bad_tables_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        Model.from_dh(mass=1.0, inertia=(1, 1, 1), **arguments)
