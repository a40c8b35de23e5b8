"""The measure of stiff springs, sqrt(det G): det M = det G det H22, with H22 from other formulas than M and G."""

import numpy as np
import pytest
from machines import difference
from scipy.integrate import quad

import torsor as ts
from torsor import zoo
from torsor.dynamics.fixman.rigid import relax

ROUNDING = 1e-11  # of log det and its gradients, on machines of a dozen freedoms
STEP, DIFFERENCES = 1e-6, 1e-6  # central differences of the potential: errors of STEP^2 and of some 1e-15 / STEP
MASSES = (1.0, 0.5, 0.8, 1.5)


def spread(x):
    return np.ptp(x) / max(1.0, np.abs(x).max())


def log_det_of_rigid_bonds(x, mass):
    """log det H22 of bonds between points x (..., n, 3): 1/m + 1/m' and, beside it, -cos theta / m (Fixman 1974)."""
    bonds = np.diff(x, axis=-2)
    bonds /= np.linalg.norm(bonds, axis=-1, keepdims=True)
    inverse = 1 / np.asarray(mass)
    cosines = (bonds[..., 1:, :] * bonds[..., :-1, :]).sum(axis=-1)
    H = (inverse[1:] + inverse[:-1]) * np.eye(len(mass) - 1) + np.zeros((*x.shape[:-2], 1, 1))
    for i in range(len(mass) - 2):
        H[..., i, i + 1] = H[..., i + 1, i] = -cosines[..., i] * inverse[i + 1]
    return np.linalg.slogdet(H)[1]


def point(mass):
    return dict(mass=mass, com=(1.0, 0.0, 0.0))


def builder():
    return ts.Model.builder("points", gravity=(0, 0, 0), allow_degenerate=True)


def on_universal_joints(n):
    """Every point hangs on a universal joint; the first slides along x, y and z."""
    chain = builder()
    for axis, name in zip(np.eye(3), "xyz"):
        last = {} if name == "x" else dict(parent=previous)  # noqa: F821
        chain.add(name, joint="prismatic", axis=axis, **(dict(mass=MASSES[0]) if name == "z" else {}), **last)
        previous = name  # noqa: F841
    parent = "z"
    for k in range(1, n):
        place = {} if k == 1 else dict(p=(0, 0, 1.0))
        chain.add(f"a{k}", joint="universal", parent=parent, mass=MASSES[k], com=(0, 0, 1.0), **place)
        parent = f"a{k}"
    return chain.build()


def on_a_floating_rod(n):
    """A free rod of two points; every further point bends and twists, or only bends if it is the third."""
    chain = builder()
    m, other = MASSES[:2]
    c, I = m / (m + other), m * other / (m + other)
    chain.add("rod", joint="free", mass=m + other, com=(-c, 0, 0), inertia=(0.0, I, I))
    chain.add("a2", parent="rod", axis=(0, 0, 1), **point(MASSES[2]))
    for k in range(3, n):
        chain.add(f"twist{k}", parent=f"a{k - 1}", axis=(1, 0, 0), p=(1.0, 0, 0))
        chain.add(f"a{k}", parent=f"twist{k}", axis=(0, 0, 1), **point(MASSES[k]))
    return chain.build()


def on_massless_turns(n):
    """A point on massless slides and turns: gimbal angles without a gimbal."""
    chain = builder()
    chain.add("a0", joint="free", mass=MASSES[0], com=(0, 0, 0), inertia=(0.3, 0.2, 0.4))
    parent, place = "a0", {}
    for k in range(1, n):
        chain.add(f"turn{k}", parent=parent, axis=(0, 0, 1), **place)
        chain.add(f"a{k}", parent=f"turn{k}", axis=(0, 1, 0), **point(MASSES[k]))
        parent, place = f"a{k}", dict(p=(1.0, 0, 0))
    return chain.build()


def places(model, q):
    """The points of a chain, (..., n, 3), the two of a rod first."""
    T = ts.body_poses(model, q)
    massive = [i for i in range(model.n) if model.mass[i] > 0]
    x = np.stack([T[..., i, :3, 3] + T[..., i, :3, :3] @ model.com[i] for i in massive], axis=-2)
    if model.names[0] != "rod":
        return x
    ends = [T[..., 0, :3, 3] - T[..., 0, :3, 0], T[..., 0, :3, 3]]
    return np.concatenate([np.stack(ends, axis=-2), x[..., 1:, :]], axis=-2)


@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize("make", [on_universal_joints, on_a_floating_rod])
def test_chains_of_points_have_fixmans_determinant_of_rigid_bonds(make, n):
    """The potential is (kT/2) log det H22 in any coordinates; H22 is tridiagonal."""
    model = make(n)
    q = model.random_configuration(3, size=20)
    expected = log_det_of_rigid_bonds(places(model, q), MASSES[:n])
    assert np.ptp(expected) > 0.1
    assert spread(2 * ts.fixman_potential(model, q) - expected) < ROUNDING


def test_a_rotation_by_massless_turns_has_the_measure_of_the_sphere():
    """det G is the cos^2 of the latitude of every point."""
    model = on_massless_turns(3)
    q = model.random_configuration(1, size=20)
    latitude = q[:, [8, 10]]
    measure = np.log(np.cos(latitude) ** 2).sum(axis=-1)
    assert spread(ts.log_det_mass_matrix(model, q) - 2 * ts.fixman_potential(model, q) - measure) < ROUNDING


def test_one_body_on_a_gimbal_feels_nothing():
    """As one on a ball joint: all its orientations are alike, <cos^2 q2> = 2/3 and not 1/2."""
    bodies = [ts.Model.chain(joint, mass=1.0, inertia=(1.0, 1.0, 1.0), n=1) for joint in ("gimbal", "spherical")]
    for body in bodies:
        assert np.abs(ts.fixman_force(body, body.random_configuration(0, size=9), kT=2.0)).max() < ROUNDING

    def weight(angle):
        q = np.array([0.3, angle, -0.2])
        return np.exp(0.5 * ts.log_det_mass_matrix(bodies[0], q) - ts.fixman_potential(bodies[0], q))

    total, square = (quad(lambda a, k=k: weight(a) * np.cos(a) ** k, -1.5707, 1.5707)[0] for k in (0, 2))
    assert abs(square / total - 2 / 3) < 1e-6


@pytest.mark.parametrize("model", [zoo.random_chain(9, 3, joints=None), zoo.random_chain(5, 2)], ids=["every", "one"])
def test_chains_of_bodies_have_the_determinant_of_their_hard_variables(model):
    """log det H22 from the blocks of H: every joint type, the gimbal's hard directions not scaled by its angles."""
    q = model.random_configuration(0, size=6)
    assert spread(relax(model, q).log_det_hard() - 2 * ts.fixman_potential(model, q)) < ROUNDING


MODELS = {
    "every joint type": lambda: zoo.random_tree(9, 1),
    "universal joints": lambda: on_universal_joints(4),
    "floating rod": lambda: on_a_floating_rod(4),
    "massless turns": lambda: on_massless_turns(3),
    "rods of a polypeptide": lambda: zoo.polypeptide_faithful(7),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_force_is_minus_the_gradient_of_the_potential(name):
    model = MODELS[name]()
    q = model.random_configuration(2)
    ends = [model.integrate(q, STEP * sign * np.eye(model.nv)) for sign in (-1, 1)]
    down, up = (ts.fixman_potential(model, x, kT=0.7) for x in ends)
    slope = (up - down) / (2 * STEP)
    assert difference(ts.fixman_force(model, q, kT=0.7), -slope) < DIFFERENCES


def test_batches_and_number_types():
    model = on_universal_joints(3)
    q = model.random_configuration(0, size=(2, 3))
    force = ts.fixman_force(model, q)
    assert force.shape == (2, 3, model.nv)
    assert difference(force[1, 2], ts.fixman_force(model, q[1, 2].tolist())) < ROUNDING
    assert ts.fixman_potential(model, q[:0]).shape == (0, 3)
    single = ts.fixman_force(model, q.astype(np.float32))
    assert single.dtype == np.float32
    assert difference(single, force) < 1e-4  # 1e-5 seen
    constant = zoo.random_chain(3)
    batch = ts.ModelBatch(constant, mass=np.ones((2, 3)))
    assert ts.fixman_force(batch, np.zeros(3)).shape == (2, 3)


def two_on_one(**body):
    tree = builder()
    tree.add("hub", joint="gimbal", **body)
    for k in range(2):
        tree.add(f"arm{k}", parent="hub", axis=(1, 0, 0), p=(1.0, k, 0.5), mass=1.0, com=(0.2, 0.7, 0.5))
    return tree.build()


def thin_universal():
    """A rod on a universal joint along the second axis: one of two motions turns it about itself."""
    chain = builder()
    chain.add("rod", joint="universal", mass=1.0, com=(0.3, 1.0, 0), inertia=(1.0, 0.0, 1.0))
    chain.add("end", parent="rod", mass=1.0, com=(1.0, 0.4, 0.5))
    return chain.build()


REFUSED = {
    "massless": (lambda: two_on_one(), r"'hub' carries several bodies"),
    "a point": (lambda: two_on_one(mass=1.0), r"'hub' carries several bodies"),
    "batch": (lambda: ts.ModelBatch(on_universal_joints(3), gravity=np.zeros((2, 3))), "one by one"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_machines_without_a_clear_measure_are_refused_by_name(name):
    make, words = REFUSED[name]
    model = make()
    q = np.zeros(getattr(model, "model", model).nq)
    with pytest.raises(ts.ArgumentError, match=words):
        ts.fixman_force(model, q + 0.3)


def test_every_configuration_of_a_rod_on_a_universal_joint_is_one_place():
    """The rod's axis is off both axes of the joint: two numbers, and its centre and direction show them."""
    model = thin_universal()
    q = model.random_configuration(0, size=5)
    assert np.isfinite(ts.fixman_force(model, q)).all()


def test_a_point_on_the_axis_of_a_turn_leaves_it_to_the_next_point():
    """The turn about z does not move the point that slides along z; with the next joint it spans a sphere."""
    chain = builder()
    chain.add("turn", axis=(0, 0, 1))
    chain.add("slide", joint="prismatic", parent="turn", axis=(0, 0, 1), p=(1.0, 0, 0), mass=0.7, com=(-1.0, 0, 0))
    chain.add("arm", parent="slide", axis=(0, 1, 0), p=(-1.0, 0, 0), **point(1.3))
    model = chain.build()
    q = model.random_configuration(4, size=20)
    measure = np.log(np.cos(q[:, 2]) ** 2)
    assert np.ptp(measure) > 1
    assert spread(ts.log_det_mass_matrix(model, q) - 2 * ts.fixman_potential(model, q) - measure) < ROUNDING
