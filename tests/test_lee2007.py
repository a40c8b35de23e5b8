"""The printed numbers of Lee, Wang & Chirikjian 2007, and a free fall of Saha 2001's PUMA.

The tables below are the papers'. The data behind Lee's, and the departures from his text that they need, are
described in `torsor/model/zoo/` and docs/papers.md.
"""

import numpy as np
import pytest

import torsor as ts
from torsor import zoo

# Half a unit of the last printed digit, and a little more: the paper rounds its poses twice, to four digits
# and then to three (0.91948 is printed as 0.920); and M_66 of the PUMA is an exact tie.
POSE_DIGIT = 5.5e-4
MASS_DIGIT = 5.001e-5


def table(text):
    return np.array([line.split() for line in text.strip().splitlines()], dtype=float)


PUMA_POSES = [  # rows of [R p] of T_k^c, from the base to the mass centre of link k
    table("""
         0.500 -0.866      0 -0.069
             0      0     -1      0
         0.866    0.5      0   0.04
    """),
    table("""
          -0.5 -0.866      0  0.108
             0      0     -1  0.026
         0.866   -0.5      0  0.561
    """),
    table("""
         -0.25  0.433 -0.866  0.004
         0.866    0.5      0 -0.108
         0.433  -0.75   -0.5  0.490
    """),
    table("""
        -0.875 -0.217 -0.433 -0.081
         0.433  -0.75   -0.5 -0.206
        -0.217 -0.625   0.75  0.637
    """),
    table("""
        -0.063  0.974 -0.217 -0.089
         0.650 -0.125  -0.75 -0.216
        -0.758 -0.188 -0.625  0.652
    """),
    table("""
         0.813  0.541 -0.217 -0.091
         0.217 -0.625  -0.75 -0.223
        -0.541  0.563 -0.625  0.645
    """),
]

PUMA_MASS = table("""
       7.0719    3.6036    0.3138   -0.0723   -0.0004   -0.0002
       3.6036    2.8533    0.3379    0.0722   -0.0004   -0.0006
       0.3138    0.3379    0.3259    0.1446    0.0002   -0.0005
      -0.0723    0.0722    0.1446    0.2883    0.0003   -0.0003
      -0.0004   -0.0004    0.0002    0.0003    0.0007    0.0002
      -0.0002   -0.0006   -0.0005   -0.0003    0.0002    0.0004
""")

PUMA_INVERSE = table("""
        0.413   -0.5346    0.0655    0.2043   -0.0775   -0.3333
      -0.5346    1.0959   -0.5659   -0.1247    0.4489     0.378
       0.0655   -0.5659     4.537   -2.1106    -2.288    4.0852
       0.2043   -0.1247   -2.1106    4.6143   -2.0481    1.6933
      -0.0775    0.4489    -2.288   -2.0481    1810.6   -908.69
      -0.3333     0.378    4.0852    1.6933   -908.69    2682.8
""")

POLYPEPTIDE_POSES = [  # rows of [R p] of T_k^c, from the base to the mass centre of link k
    table("""
         0.334 -0.943      0  0.285
         0.943  0.334      0 -0.403
             0      0      1  0.634
    """),
    table("""
         0.570  0.091  0.816  0.343
         0.266  0.920 -0.289  1.875
        -0.777  0.382    0.5  0.525
    """),
    table("""
         0.940 -0.090  0.329  1.241
         0.318 -0.117 -0.941  1.788
         0.123  0.989 -0.081 -1.095
    """),
    table("""
        -0.968 -0.065  0.242  3.093
        -0.154  0.917 -0.369  1.696
        -0.198 -0.395 -0.897 -1.207
    """),
    table("""
        -0.268  0.947  0.177  1.821
         0.056  0.199 -0.978  2.116
        -0.962 -0.253 -0.107 -0.933
    """),
    table("""
        -0.674  0.101 -0.732  0.821
         0.666 -0.345 -0.662  2.094
        -0.319 -0.933  0.165 -2.368
    """),
    table("""
        -0.782  0.428 -0.453 -0.415
        -0.465 -0.885 -0.032  3.535
        -0.415  0.186  0.891 -2.292
    """),
]

POLYPEPTIDE_MASS = table("""
     870.7768   54.2187  161.5036  234.8087 -176.7587   16.9382   -1.8702
      54.2187  434.7277   58.8923  157.5614  -93.0816  -41.1893  -10.7686
     161.5036   58.8923  189.6189  103.2236  -79.4282   53.5038   20.2896
     234.8087  157.5614  103.2236  163.9448 -113.3383   -13.875  -10.3724
    -176.7587  -93.0816  -79.4282 -113.3383   95.9587   13.0774   11.6638
      16.9382  -41.1893   53.5038   -13.875   13.0774   63.0571   29.1266
      -1.8702  -10.7686   20.2896  -10.3724   11.6638   29.1266   23.1711
""")

POLYPEPTIDE_INVERSE = table("""
       0.0025    0.0014    0.0016   -0.0047    0.0022   -0.0021   -0.0012
       0.0014    0.0049     0.001   -0.0089   -0.0021    0.0026   -0.0047
       0.0016     0.001    0.0194   -0.0078    0.0137   -0.0202   -0.0015
      -0.0047   -0.0089   -0.0078    0.0536    0.0389    0.0064   -0.0013
       0.0022   -0.0021    0.0137    0.0389    0.0735   -0.0127   -0.0164
      -0.0021    0.0026   -0.0202    0.0064   -0.0127    0.0629    -0.051
      -0.0012   -0.0047   -0.0015   -0.0013   -0.0164    -0.051     0.114
""")

MACHINES = {
    "PUMA 560": (zoo.puma_lee, PUMA_POSES, PUMA_MASS, PUMA_INVERSE),
    "polypeptide": (zoo.polypeptide, POLYPEPTIDE_POSES, POLYPEPTIDE_MASS, POLYPEPTIDE_INVERSE),
}
each_machine = pytest.mark.parametrize(("build", "poses", "mass", "inverse"), MACHINES.values(), ids=MACHINES.keys())


def half_digits(printed):
    """Half a unit of the last digit of a printed inverse: five figures above 100, else four decimals."""
    return np.select([abs(printed) >= 1000, abs(printed) >= 100], [0.05, 0.005], 5e-5)


def mass_centre_poses(model):
    """T_k^c at q = 0: the axes of link k's DH frame, at its mass centre."""
    result = []
    for pose, name, com in zip(ts.body_poses(model, np.zeros(model.nq)), model.names, model.com):
        axes = model.frames[f"{name}/dh"].R
        result.append(np.column_stack([pose[:3, :3] @ axes, pose[:3, 3] + pose[:3, :3] @ com]))
    return result


@each_machine
def test_printed_poses_of_the_mass_centres(build, poses, mass, inverse):
    np.testing.assert_allclose(mass_centre_poses(build()), poses, rtol=0, atol=POSE_DIGIT)


@each_machine
def test_printed_mass_matrix(build, poses, mass, inverse):
    model = build()
    np.testing.assert_allclose(ts.mass_matrix(model, np.zeros(model.nq)), mass, rtol=0, atol=MASS_DIGIT)


@each_machine
def test_printed_inverse_mass_matrix(build, poses, mass, inverse):
    model = build()
    error = np.abs(ts.inverse_mass_matrix(model, np.zeros(model.nq)) - inverse)
    assert (error <= half_digits(inverse)).all(), error.max()


def test_faithful_polypeptide_has_the_diagonal_of_the_text():
    """Table II's angles, full masses and tensors: not what the paper printed, but what it describes."""
    model = zoo.polypeptide_faithful()
    expected = [1787.13, 737.81, 512.59, 270.15, 143.80, 109.34, 31.97]
    np.testing.assert_allclose(np.diag(ts.mass_matrix(model, np.zeros(7))), expected, rtol=0, atol=0.005)


def test_puma_of_saha_begins_to_fall_as_computed_from_its_data():
    """Saha 2001, Figure 4: released at rest, no torques. Joint 2 turns positive, as the text says."""
    rest = np.zeros(6)
    qdd = ts.forward_dynamics(zoo.puma_saha(), rest, rest, rest)
    expected = [0.0197, 6.475, -5.825, -0.0197, -0.692, 0.0]
    digits = [5e-5, 5e-4, 5e-4, 5e-5, 5e-4, 5e-5]
    assert (np.abs(qdd - expected) <= digits).all(), qdd
