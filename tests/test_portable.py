"""Machines and their frames have the same bits on every processor: NumPy's vector units take no part in them."""

import mpmath
import numpy as np
import processes
import pytest

from torsor.model.portable import cosine_and_sine, length, product, turned

# errors of sines in units of the last digit: of the polynomial, of the last sum, and of the remainder of the angle
SINES = 1.0
# A processor without these has none of the sines, products and sums of NumPy that others have. OpenBLAS reads its own.
FEATURES = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR X86_V4 X86_V3 AVX2 FMA3 F16C AVX"
FRAMES = """
import hashlib, warnings
import numpy as np
import torsor as ts
from torsor.compiler.frames import regroup, short_frames
from torsor.formats.robot import rotation, tensor

warnings.simplefilter("ignore")  # NumPy says which features it leaves out
digest, rng = hashlib.sha256(), np.random.default_rng(0)
models = [ts.zoo.panda(), ts.zoo.puma560(), ts.zoo.humanoid(), ts.zoo.rope(60), ts.zoo.polypeptide(12)]
models += [ts.zoo.lee2007.polypeptide_planar(12), *(ts.zoo.random_tree(30, seed) for seed in range(3))]
dh = rng.normal(size=(4, 6))
inertia = np.diag([1.0, 1.2, 1.3])
models.append(ts.Model.from_dh(**dict(zip(("alpha", "a", "theta", "d"), dh)), mass=1.0, inertia=inertia))
axes = np.array([[0, 0, 1, 0.1, 0.2, 0], [0, 1, 0, 0.3, 0.0, 0.4]])
homes = np.tile(np.eye(4), (2, 1, 1))
homes[:, :3, :3] = [rotation(*x) for x in rng.normal(size=(2, 3))]
homes[:, :3, 3] = rng.normal(size=(2, 3))
models.append(ts.Model.from_screws(axes, homes, [np.diag([1.0, 1.0, 1.2, 2.0, 2.0, 2.0])] * 2))
free = [ts.zoo.random_tree(9, 7, joints="spherical")]
for model in models + free:
    found = short_frames(model)
    for frames in (found, regroup(found)):
        for name, x in frames.numbers.items():
            digest.update(name.encode() + np.ascontiguousarray(x).tobytes())
    digest.update(model.inertial_parameters().tobytes())
digest.update(tensor([1, 0.1, 0.2, 1.3, 0.1, 1.4], rotation(0.1, 0.2, 0.3)).tobytes())
print(digest.hexdigest())
"""


def test_frames_have_the_same_bits_without_the_vector_units_of_the_processor():
    plain = processes.environment(NPY_DISABLE_CPU_FEATURES=FEATURES, OPENBLAS_CORETYPE="Prescott")
    assert processes.output(FRAMES, env=plain) == processes.output(FRAMES)


@pytest.mark.parametrize("scale", [1e-9, 0.5, 3.0, 100.0, 9e4])
def test_sines_are_right_to_the_last_digit(scale):
    angle = np.append(np.random.default_rng(0).uniform(-scale, scale, 500), np.arange(-8, 9) * np.pi / 4)
    with mpmath.workprec(200):
        for found, exact in zip(cosine_and_sine(angle), (mpmath.cos, mpmath.sin)):
            for x, y in zip(angle.tolist(), found.tolist()):
                assert abs(exact(mpmath.mpf(x)) - y) <= SINES * np.spacing(abs(y))


def test_sines_of_any_number():
    c, s = cosine_and_sine(np.array([0.0, -0.0, 1e22, np.inf, np.nan, -1e300]))
    assert (c[0], s[0]) == (1.0, 0.0)
    np.testing.assert_allclose([c[2], s[2]], [0.5232147853951389, -0.8522008497671888], rtol=1e-15, atol=0)
    assert np.isnan([c[3], s[3], c[4], s[4]]).all()
    np.testing.assert_allclose(c[5] ** 2 + s[5] ** 2, 1.0, rtol=1e-15, atol=0)


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1.0, 1e200, 1.7e308])
def test_lengths_do_not_overflow(size):
    found = length(np.array([0.6, 0.0]) * size, np.array([-0.8, 0.0]) * size)
    np.testing.assert_allclose(found, [size, 0.0], rtol=1e-3 if size < 1e-300 else 1e-15, atol=0)


def test_products_are_those_of_matrices():
    A, B = np.random.default_rng(0).normal(size=(2, 5, 3, 3))
    np.testing.assert_allclose(product(A, B), A @ B, rtol=0, atol=1e-15 * 9)
    np.testing.assert_allclose(turned(A, B[:, 0]), (A @ B[:, 0, :, None])[..., 0], rtol=0, atol=1e-15 * 9)
