"""The zoo: every machine is a sound model, and those of the papers give the papers' numbers."""

import math
from dataclasses import replace

import numpy as np
import oracle
import printed
import pytest

import torsor as ts
from torsor import zoo
from torsor.errors import ArgumentError, ModelError
from torsor.formats import toml
from torsor.model import JOINTS, Model

LENGTHS = {"point_chain": 4, "rope": 4, "random_tree": 14, "random_chain": 4, "general_arm": 6}
ROUNDING = 1e-12  # a few sums of numbers of order one


def every_machine():
    return {name: zoo.get(name, LENGTHS[name]) if name in LENGTHS else zoo.get(name) for name in zoo.names()}


@pytest.mark.parametrize("name", zoo.names())
def test_mass_matrix_is_positive_definite(name):
    model = every_machine()[name]
    M = oracle.mass_matrix(model, model.random_configuration(rng=1))
    assert np.linalg.eigvalsh(M).min() > 0


def test_get_refuses_an_unknown_name():
    with pytest.raises(ArgumentError, match=r"no 'pumba'.*puma560"):
        zoo.get("pumba")


@pytest.mark.parametrize("name", sorted(LENGTHS))
def test_a_family_needs_a_link(name):
    with pytest.raises(ArgumentError, match="n = 0"):
        zoo.get(name, 0)


# Lee, Wang & Chirikjian 2007


@pytest.mark.parametrize(
    ("name", "poses", "tolerance"),
    [
        ("puma_lee", printed.PUMA_POSES, printed.PUMA_POSE_TOLERANCE),
        ("polypeptide", printed.POLYPEPTIDE_POSES, printed.POLYPEPTIDE_POSE_TOLERANCE),
    ],
)
def test_poses_of_mass_centres_are_lees(name, poses, tolerance):
    """T_k^c = T_k Q_k, Q_k a shift to the mass centre: the axes are those of the DH frame."""
    model = zoo.get(name)
    bodies = oracle.kinematics(model, model.neutral())
    for i, expected in enumerate(poses):
        R, p = bodies[i][:2]
        frame = model.frames.get(f"{model.names[i]}/dh", model.frame(model.names[i]))
        assert np.abs(R @ frame.R - expected[:3, :3]).max() <= tolerance
        assert np.abs(p + R @ model.com[i] - expected[:3, 3]).max() <= tolerance


def test_puma_mass_matrix_and_its_inverse_are_lees():
    model = zoo.puma_lee()
    M = oracle.mass_matrix(model, model.neutral())
    assert np.abs(M - printed.PUMA_M).max() <= printed.M_TOLERANCE
    assert (np.abs(np.linalg.inv(M) - printed.PUMA_M_INVERSE) <= printed.PUMA_M_INVERSE_TOLERANCE).all()


def test_with_gamma_soft_axes_5_and_6_of_lees_puma_coincide():
    """This is why its printed matrix cannot be that of the text: M_56 = M_66 for any masses."""
    model = zoo.puma_lee("gamma")
    M = oracle.mass_matrix(model, model.neutral())
    assert abs(M[4, 5] - M[5, 5]) < ROUNDING
    assert abs(printed.PUMA_M[4, 5] - printed.PUMA_M[5, 5]) > 2 * printed.M_TOLERANCE
    tips = [oracle.kinematics(zoo.puma_lee(soft), np.zeros(6))[-1] for soft in ("beta", "gamma")]
    assert np.abs(tips[0][1] - tips[1][1]).max() < ROUNDING  # one arm, in one posture


def test_lees_puma_has_two_soft_variables():
    with pytest.raises(ArgumentError, match=r"soft.*'alpha'.*beta"):
        zoo.puma_lee("alpha")


def test_polypeptide_repeats_links_2_to_7():
    model = zoo.polypeptide(20)
    for array in (model.R, model.p, model.mass, model.com, model.inertia):
        assert np.array_equal(array[2:8], array[8:14])
    short = zoo.polypeptide()
    assert np.array_equal(short.inertia, model.inertia[:7])
    assert zoo.polypeptide(1).n == 1


def test_polypeptide_mass_matrix_and_its_inverse_are_lees():
    model = zoo.polypeptide()
    M = oracle.mass_matrix(model, model.neutral())
    assert np.abs(M - printed.POLYPEPTIDE_M).max() <= printed.M_TOLERANCE
    assert np.abs(np.linalg.inv(M) - printed.POLYPEPTIDE_M_INVERSE).max() <= printed.M_TOLERANCE


def test_faithful_polypeptide_has_the_diagonal_of_the_text():
    model = zoo.polypeptide_faithful()
    diagonal = np.diag(oracle.mass_matrix(model, model.neutral()))
    assert np.abs(diagonal - printed.POLYPEPTIDE_FAITHFUL_DIAGONAL).max() <= printed.FAITHFUL_TOLERANCE


def test_faithful_polypeptide_repeats_with_period_six():
    model = zoo.polypeptide_faithful(20)
    for array in (model.R, model.p, model.mass, model.com, model.inertia):
        assert np.array_equal(array[7:13], array[13:19])  # the first bond is special: it has no length


def test_faithful_polypeptide_carries_rods():
    model = zoo.polypeptide_faithful()
    singular = [name for name, I in zip(model.names, model.inertia) if np.linalg.cond(I) > 1e12]
    assert singular == ["C2", "N3", "C5", "N6"]


# The industrial arm


def test_puma_560_weighs_on_its_shoulder_and_elbow_as_its_links_do():
    """At q = 0 the upper arm is level and the forearm upright: torques are weights times horizontal distances."""
    model, q = zoo.puma560(), np.zeros(6)
    upper, elbow = 0.4318, -0.0203  # a_2 and a_3
    wrist = 0.82 + 0.34 + 0.09
    shoulder = 17.4 * 0.068 + 4.8 * upper + wrist * (upper + elbow)
    torques = ts.gravity_forces(model, q)
    assert np.abs(torques[:3] - 9.81 * np.array([0, -shoulder, -wrist * elbow])).max() < ROUNDING


def test_puma_560_has_the_measured_inertia_about_its_elbow():
    """I_6 = 0.333 +- 0.016 of Armstrong et al. 1986, with I_zz = 0.066 of link 3 it would be 0.314."""
    model = zoo.puma560()
    assert model.armature.tolist() == [1.14, 4.71, 0.827, 0.2, 0.179, 0.193]
    elbow = oracle.mass_matrix(replace(model, armature=np.zeros(6)), np.zeros(6))[2, 2]
    assert abs(elbow - 0.333) < 0.004
    difference_of_moments = model.inertia[2, 0, 0] - model.inertia[2, 1, 1]
    assert abs(difference_of_moments - (0.066 - 0.0125)) < ROUNDING


def test_puma_560_axes_are_at_right_angles_or_parallel():
    bodies = oracle.kinematics(zoo.puma560(), np.zeros(6))
    axes = np.array([body[0][:, 2] for body in bodies])
    assert np.abs(np.abs(axes @ axes.T) - np.round(np.abs(axes @ axes.T))).max() < ROUNDING


# Saha 2001


def test_sahas_printed_puma_is_refused_naming_its_first_link():
    """Table II(ii) prints I_yy = -1.612 for link 1, and more negative moments further on."""
    printed_inertia = [
        (1.612, -1.612, 0.5091),
        (0.4898, 8.0783, 8.2672),
        (3.3768, 3.3768, -0.3009),
        (0.181, -0.1273, 0.181),
        (0.0735, 0.1273, -0.0735),
        (0.0071, 0.0071, 0.0141),
    ]
    with pytest.raises(ModelError, match=r"'link1' \(index 0\): inertia is not positive.*-1\.612"):
        Model.from_dh(
            convention="standard",
            a=[0, 0.432, 0.02, 0, 0, 0],
            mass=zoo.puma_saha().mass,
            inertia=printed_inertia,
        )


def test_puma_saha_keeps_the_absolute_values():
    model = zoo.puma_saha()
    moments = np.sort(np.linalg.eigvalsh(model.inertia), axis=1)
    assert np.abs(moments[0] - (0.5091, 1.612, 1.612)).max() < ROUNDING
    assert np.abs(moments[2] - (0.3009, 3.3768, 3.3768)).max() < ROUNDING


def test_stanford_slides_along_its_third_axis():
    model = zoo.stanford()
    assert [JOINTS[code].name for code in model.joint] == ["revolute"] * 2 + ["prismatic"] + ["revolute"] * 3


def test_planar_arm_has_the_textbook_mass_matrix():
    """M_33 = I_3 + m_3 c^2, and M_11 at q = 0 is the whole arm's moment about the base."""
    model = zoo.planar3()
    M = oracle.mass_matrix(model, np.zeros(3))
    Izz, at = model.inertia[:, 2, 2], np.array([0.25, 0.5 + 0.2, 0.9 + 0.15])
    assert math.isclose(M[2, 2], Izz[2] + model.mass[2] * 0.15**2, rel_tol=ROUNDING)
    assert math.isclose(M[0, 0], np.sum(Izz + model.mass * at**2), rel_tol=ROUNDING)


# Lee & Chirikjian 2005 and the families


def test_point_chain_mass_matrix_is_that_of_its_points():
    """M = sum m (dx/dq)' (dx/dq), x_i = L sum_k (cos, sin)(theta_1 + ... + theta_k)."""
    n, q = 5, np.random.default_rng(0).normal(size=5)
    model = zoo.point_chain(n, mass=2.0, length=0.7)
    angle = np.cumsum(q)
    step = 0.7 * np.stack([-np.sin(angle), np.cos(angle)])  # dx_i/dq_j = sum_{k=j..i} step_k
    J = np.array([[step[:, j : i + 1].sum(axis=1) for j in range(n)] for i in range(n)])
    expected = 2.0 * np.einsum("ijx,ikx->jk", J, J)
    assert np.abs(oracle.mass_matrix(model, q) - expected).max() < ROUNDING


def test_rope_has_the_mass_and_length_it_was_asked_for():
    model = zoo.rope(50, length=3.0, mass=0.5)
    tip = oracle.kinematics(model, model.neutral())[-1][1]
    assert math.isclose(model.mass.sum(), 0.5, rel_tol=ROUNDING)
    assert np.abs(tip - (0, 0, -3.0 * 49 / 50)).max() < ROUNDING
    assert model.nv == 100


@pytest.mark.parametrize("seed", range(3))
def test_random_tree_has_every_joint_type_and_branches(seed):
    model = zoo.random_tree(30, seed)
    assert set(model.joint) == set(range(len(JOINTS)))
    assert model.children_count.max() > 1
    assert not model.is_chain


def test_random_tree_without_branching_is_a_chain():
    assert zoo.random_tree(10, 0, branching=0.0).is_chain


def test_random_tree_refuses_a_branching_that_is_no_probability():
    with pytest.raises(ArgumentError, match=r"branching.*1\.5"):
        zoo.random_tree(10, 0, branching=1.5)


def test_random_models_are_reproducible_and_differ_between_seeds():
    assert zoo.random_tree(10, 3) == zoo.random_tree(10, 3)
    assert zoo.random_tree(10, 3).key != zoo.random_tree(10, 4).key


def test_general_arm_turns_about_z_of_frames_set_by_dh_screws():
    model = zoo.general_arm(6, seed=2)
    assert (model.axis == (0, 0, 1)).all()
    assert np.array_equal(model.R[0], np.eye(3))
    assert np.count_nonzero(model.inertia) == 6 * 9


def test_humanoid_is_symmetric_left_and_right():
    model = zoo.humanoid()
    assert (model.n, model.nq, model.nv) == (31, 37, 36)
    q = model.neutral()
    for left in (name for name in [*model.names, *model.frames] if name.startswith("left")):
        mirrored = oracle.frame_pose(model, q, left)[1] * (1, -1, 1)
        assert np.abs(mirrored - oracle.frame_pose(model, q, left.replace("left", "right"))[1]).max() < ROUNDING


def test_panda_flange_is_where_the_dh_table_puts_it():
    """At q = 0 the links stack to 0.333 + 0.316 + 0.384 - 0.107; the flange, 0.088 ahead, looks down."""
    R, p = oracle.frame_pose(zoo.panda(), np.zeros(7), "flange")
    assert np.abs(p - (0.088, 0.0, 0.926)).max() < ROUNDING
    assert np.abs(R - np.diag([1, -1, -1])).max() < ROUNDING


@pytest.mark.parametrize("name", zoo.names())
def test_toml_of_every_machine_reads_back_equal(name):
    model = every_machine()[name]
    assert toml.read(toml.write(model), name) == model


# v'M v and the weight's work at one generic state: whoever changes a number of a machine does it on purpose.
NUMBERS = {
    "puma560": (1.897595817695, -28.44314064607),
    "puma_lee": (10.74853805919, -72.09218676726),
    "polypeptide": (685.3255633585, 0),
    "polypeptide_faithful": (971.4269800344, 0),
    "polypeptide_planar": (700.9761488218, 0),
    "planar3": (2.581614880271, -11.31000347511),
    "stanford": (3.443639867746, -30.22003577604),
    "puma_saha": (17.52473629784, -56.80144188096),
    "panda": (6.001672609431, -99.71438837711),
    "humanoid": (194.5622585088, 296.1356115712),
    "point_chain": (42.07891487709, 29.36671952226),
    "rope": (0.01899156256013, 0.2984985413656),
    "pendulum": (0.2360244727579, 3.268528886152),
    "double_pendulum": (2.947533264163, 8.161423305715),
    "cart_pole": (0.7554546087647, 0.3268528886152),
    "acrobot": (6.994428658078, 7.283417960085),
}


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_no_number_of_a_machine_changes_by_accident(name):
    """By the oracle; every mass, place, axis and moment takes part."""
    model = every_machine()[name]
    v = np.sin(1.0 + np.arange(model.nv))
    q = model.integrate(model.neutral(), v[::-1])
    work = sum(
        m * (p + R @ c) @ model.gravity for m, c, (R, p, *_) in zip(model.mass, model.com, oracle.kinematics(model, q))
    )
    assert NUMBERS[name] == pytest.approx((v @ oracle.mass_matrix(model, q) @ v, work), rel=1e-11)
