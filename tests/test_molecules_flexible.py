"""Molecules whose bond angles and lengths are soft: trees, det M and det G, forces, energy, laws, restart."""

from dataclasses import replace

import numpy as np
import pytest
from test_molecules import KT, UNLIKELY, Springs, branched, disulfide, fit

import torsor as ts
from torsor import molecule
from torsor.dynamics.fixman.points import relax_spatial
from torsor.molecule import polymers
from torsor.molecule.molecule import Molecule
from torsor.molecule.mover import Mover
from torsor.molecule.results import dihedrals
from torsor.molecule.run import Setting, generators
from torsor.molecule.soft import soft_bonds
from torsor.molecule.structure import Residue, Structure
from torsor.molecule.tree import torsion_tree

SOFTS = ["chi", "chi angle", "chi length", "angle length", "angle", "length", "chi angle length"]
DIFFERENCES = 1e-9  # what fourth-order differences with steps of 1e-3 leave of a number of the order 1


def tree_of(soft, root=0):
    structure, places, mass = branched()
    return torsion_tree(structure, places, mass, soft_bonds(structure, places, soft), root=root)


def bent(tree, count=4, seed=0):
    """Configurations with angles up to some 0.3 rad and lengths up to some 0.01 nm from those of the molecule."""
    model, rng = tree.model, np.random.default_rng(seed)
    size = np.ones(model.nv)
    size[6:] = [{"rad": 0.3, "nm": 0.01}[unit] for unit in units(model)[6:]]
    return np.array([model.integrate(model.neutral(), size * x) for x in rng.uniform(-1, 1, (count, model.nv))])


def units(model):
    """Of every velocity of a tree whose root is free."""
    found = {"revolute": ["rad"], "prismatic": ["nm"], "cylindrical": ["rad", "nm"], "free": ["rad"] * 3 + ["nm"] * 3}
    return [unit for code in model.joint for unit in found[ts.model.joints.JOINTS[code].name]]


def slopes(function, q, model, h=1e-3):
    """Fourth-order differences of a function of q along every velocity, (nv, ...)."""

    def at(s):
        return function(model.integrate(q, s))

    return np.array([(8 * (at(h * e) - at(-h * e)) - at(2 * h * e) + at(-2 * h * e)) / (12 * h)
                     for e in np.eye(model.nv)])  # fmt: skip


# Trees -----------------------------------------------------------------------------------------------------------


def test_what_is_soft_is_counted():
    structure, places, mass = branched()
    kinds = Molecule(structure, places, mass).torsions("chi angle length", hydrogen_mass=None).kinds
    assert kinds == {"chi": 3, "angle": 3, "length": 3}
    chain = polymers.freely_rotating(6).molecule
    assert chain.torsions("chi angle length", hydrogen_mass=None).kinds == {"chi": 3, "angle": 4, "length": 5}
    assert chain.torsions("chi angle length", hydrogen_mass=None).model.nv == 18
    with pytest.raises(ts.ArgumentError, match=r"bend.*chi angle length"):
        chain.torsions("chi bend")


@pytest.mark.parametrize("soft", SOFTS)
def test_angles_and_lengths_are_what_q_says_and_nothing_else_changes(soft):
    tree = tree_of(soft)
    structure, places, _ = branched()
    np.testing.assert_allclose(tree.points.positions(tree.model.neutral()), places, rtol=0, atol=1e-15)
    for q in bent(tree):
        x = tree.points.positions(q)
        moved = {}
        for k, body in enumerate(tree.bodies):
            for word, value in zip(sorted(body.motion.split(), reverse=True), q[tree.model.q_start[k] :]):
                moved[word, tuple(sorted(body.bond))] = value
        for a, b in structure.bonds.tolist():
            r = np.linalg.norm(places[a] - places[b]) + moved.get(("length", (a, b)), 0.0)
            assert np.linalg.norm(x[a] - x[b]) == pytest.approx(r, abs=1e-14)
        for b, c in ((0, 4), (4, 5), (5, 6)):
            a = {0: 1, 4: 0, 5: 4}[b]
            change = angle(x, a, b, c) - angle(places, a, b, c)
            assert change == pytest.approx(moved.get(("angle", (b, c)), 0.0), abs=1e-13)
            d = {4: 7, 5: 8, 6: 10}[c]
            turned = dihedrals(x, np.array([[a, b, c, d]])) - dihedrals(places, np.array([[a, b, c, d]]))
            assert np.cos(turned[0] - moved.get(("torsion", (b, c)), 0.0)) == pytest.approx(1, abs=1e-12)


def angle(x, a, b, c):
    u, v = x[..., a, :] - x[..., b, :], x[..., c, :] - x[..., b, :]
    return np.arctan2(np.linalg.norm(np.cross(u, v), axis=-1), (u * v).sum(-1))


@pytest.mark.parametrize("soft", SOFTS)
@pytest.mark.parametrize("root", ["centroid", 0, 6])
def test_the_mass_matrix_is_that_of_cartesian_columns(soft, root):
    """M = sum m J_i' J_i, its columns by differences of positions: no sweep, no inertia and no shared mass."""
    tree = tree_of(soft, root)
    mass = np.repeat(branched()[2], 3)
    for q in bent(tree, 2):
        J = slopes(lambda q: tree.points.positions(q).ravel(), q, tree.model)
        M = (J * mass) @ J.T
        np.testing.assert_allclose(ts.mass_matrix(tree.model, q), M, rtol=0, atol=DIFFERENCES * np.abs(M).max())


@pytest.mark.parametrize("soft", ["chi angle", "chi angle length"])
def test_shared_masses_leave_the_mass_matrix_alone(soft):
    structure, places, mass = branched()
    chosen = soft_bonds(structure, places, soft)
    q = bent(tree_of(soft))
    one, other = (
        ts.mass_matrix(torsion_tree(structure, places, mass, chosen, root=0, share=share).model, q)
        for share in (True, False)
    )
    np.testing.assert_allclose(one, other, rtol=0, atol=4e-15 * np.abs(one).max())


def straight(elements="CCN"):
    """An angle of 110 degrees, and a bond that goes on along its second leg."""
    turn = np.radians(70)
    along = np.array([np.cos(turn), np.sin(turn), 0.0])
    x = np.array([[-0.15, 0, 0], [0, 0, 0], 0.15 * along, 0.26 * along])
    names = [f"{e}{k}" for k, e in enumerate("C" + elements)]
    residue = Residue("LIG", "1", "", {name: k for k, name in enumerate(names)})
    bonds = np.array([[0, 1], [1, 2], [2, 3]])
    return Molecule(Structure(names, ["C", *elements], [residue], np.zeros(4, int), bonds), x, np.full(4, 12.0))


def test_straight_bonds_neither_bend_nor_turn():
    tree = straight().torsions("chi angle length", hydrogen_mass=None, root=1)
    assert tree.kinds == {"angle": 1, "length": 3}
    assert "LIG1.C1-C2-N3" not in tree.model.names
    assert tree.model.nv == 10


def test_atoms_on_one_line_are_refused():
    pair = Structure(["N1", "N2"], ["N", "N"], [Residue("N2", "1", "", {"N1": 0, "N2": 1})], np.zeros(2, int),
                     np.array([[0, 1]]))  # fmt: skip
    with pytest.raises(ts.ModelError, match="one line"):
        Molecule(pair, np.array([[0, 0, 0], [0.11, 0, 0]]), np.full(2, 14.0)).torsions("length", hydrogen_mass=None)


# Fixman's potential ------------------------------------------------------------------------------------------------


def hard_coordinates(x, soft):
    """What `branched` holds, with its root in the ring: distances, angles and dihedrals as a chemist counts them."""

    def r(a, b):
        return np.linalg.norm(x[a] - x[b])

    def turn(*atoms):
        return dihedrals(x, np.array([atoms]))[0]

    ring = [r(a, b) for a in range(4) for b in range(a)]
    planes = [turn(2, 1, 0, 4), turn(5, 0, 4, 7), turn(6, 4, 5, 8), turn(6, 4, 5, 9), turn(10, 5, 6, 11)]
    hydrogens = [f for c, b, h in ((4, 0, 7), (5, 4, 8), (5, 4, 9), (6, 5, 10), (6, 5, 11))
                 for f in (r(c, h), angle(x, b, c, h))]  # fmt: skip
    chain = ((1, 0, 4, 5), (0, 4, 5, 6), (4, 5, 6, 10))
    lengths = [] if "length" in soft else [r(b, c) for _, b, c, _ in chain]
    angles = [] if "angle" in soft else [angle(x, a, b, c) for a, b, c, _ in chain]
    torsions = [] if "chi" in soft else [turn(*atoms) for atoms in chain]
    return np.array(ring + planes + hydrogens + lengths + angles + torsions)


@pytest.mark.parametrize("soft", SOFTS)
def test_det_m_is_det_g_times_that_of_what_is_hard(soft):
    """Fixman: det M = det G det H22, H22 = (dh/dx) m^-1 (dh/dx)' by differences of the hard coordinates h of atoms."""
    tree = tree_of(soft)
    mass, found = np.repeat(branched()[2], 3), []
    for q in bent(tree):
        x, h = tree.points.positions(q).ravel(), 1e-4
        columns = []
        for e in h * np.eye(len(x)):
            near, far = (hard_coordinates((x + s * e).reshape(-1, 3), soft) - hard_coordinates(
                (x - s * e).reshape(-1, 3), soft) for s in (1, 2))  # fmt: skip
            columns.append((8 * near - far) / (12 * h))
        D = np.array(columns)
        assert D.shape == (36, 30 - (tree.model.nv - 6))
        H22 = np.linalg.slogdet((D.T / mass) @ D)[1]
        room = tree.volume(q[None])[0][0] if tree.volume else 0.0
        found.append(ts.log_det_mass_matrix(tree.model, q) - room - H22)
    assert np.ptp(found) < 1e-7  # a condition of 1e2 times what differences leave


@pytest.mark.parametrize("n", [4, 5, 9])
def test_nothing_is_hard_in_a_chain_with_everything_soft(n):
    """det M = det G up to a constant, and Fixman's force is zero."""
    tree = polymers.freely_rotating(n, soft="chi angle length")
    q = bent(tree, 6)
    assert tree.model.nv == 3 * n
    mover = Mover(tree, None, np.full(6, KT))
    assert np.ptp(mover.log_det(q)) < 1e-12
    assert np.abs(mover.at(q).gradient).max() < 1e-12 * np.abs(ts.log_det_gradient(tree.model, q)).max()


def test_chains_of_rigid_lengths_agree_with_the_banded_matrix_of_the_paper():
    """log det M - log det G against log det H22 of `relax_spatial`, in the coordinates of Lee & al."""
    n = 6
    tree = polymers.freely_rotating(n, angle=105.0, soft="chi angle")
    q = bent(tree, 5)
    x = tree.positions(q)
    k, turn = np.arange(n - 2), np.ones((5, n - 1))  # what the first bonds turn, says where the chain is
    theta, phi = turn.copy(), turn.copy()
    theta[:, 1:] = np.pi - angle(x, k, k + 1, k + 2)
    phi[:, 2:] = np.pi - dihedrals(x, k[:-1, None] + np.arange(4))
    free = relax_spatial(np.full(n, 15.0), 0.153 * turn, theta, phi, soft=("theta", "phi"), free=True)
    assert np.ptp(Mover(tree, None, np.full(5, KT)).log_det(q) - free.log_det_hard()) < 1e-11


@pytest.mark.parametrize("soft", ["chi angle", "chi length", "chi angle length"])
def test_fixmans_force_is_the_slope_of_his_potential(soft):
    structure, places, mass = branched()
    tree = Molecule(structure, places, mass).torsions(soft, hydrogen_mass=None)
    mover = Mover(tree, None, np.full(1, KT))
    for q in bent(tree, 2):
        found = slopes(lambda q: mover.log_det(q[None])[0], q, tree.model)
        at = mover.at(q[None])
        np.testing.assert_allclose(at.gradient[0], found, rtol=0, atol=1e-8 * np.abs(found).max())


# Motion ------------------------------------------------------------------------------------------------------------


MIDDLE = -0.4  # the cosine at rest
ELASTIC = polymers.Elastic(6200.0, 20.0, angle=np.degrees(np.arccos(MIDDLE)))


def chain(soft, mass=(15.0, 15.0, 15.0, 15.0)):
    made = polymers.freely_rotating(4, angle=100.0).molecule
    return Molecule(made.structure, made.positions, np.array(mass)).torsions(soft, hydrogen_mass=None)


@pytest.mark.parametrize("soft", ["chi angle", "chi length", "chi angle length"])
def test_forces_are_felt_as_slopes(soft):
    tree, bonded = chain(soft), ELASTIC
    for q in bent(tree, 2):
        tau = tree.points.torques(q, bonded(tree.positions(q[None]))[1][0])
        found = slopes(lambda q: bonded(tree.positions(q[None]))[0][0], q, tree.model, 3e-4)
        np.testing.assert_allclose(tau, -found, rtol=0, atol=1e-7 * np.abs(tau).max())


@pytest.mark.parametrize("soft", ["chi angle", "chi angle length"])
def test_energy_is_kept_to_second_order_and_steps_lead_home(soft):
    tree, errors = chain(soft), []
    for step in (0.002, 0.004):
        run = molecule.dynamics(tree, 1.0, step=step, every=1, potential=ELASTIC, seed=2)
        H = (run.potential + run.kinetic)[:, 0]
        errors.append(H.std() / run.kinetic.std())
        assert run.counts["failed steps"] == 0
    assert errors[0] < 0.005
    assert 3 < errors[1] / errors[0] < 5
    setting = Setting(replicas=3, seed=5)
    mover = Mover(tree, ELASTIC, setting.kT(0.0))
    first = walkers = mover.start(np.tile(tree.model.neutral(), (3, 1)), generators(setting, 0))
    for sign in (1, -1):
        walkers = replace(walkers, p=sign * walkers.p, x=sign * walkers.x)
        for _ in range(50):
            walkers, good = mover.step(walkers, 0.004)
            assert good.all()
    np.testing.assert_allclose(tree.positions(walkers.q), tree.positions(first.q), rtol=0, atol=1e-11)


LIGHT = (40.0, 10.0, 10.0, 40.0)  # det M and det G differ more where the middle of a chain is light


def laws_of_two_angles(tree):
    """On a grid of both angles: exp(-U/kT) det G^1/2 and exp(-U/kT) det M^1/2; q of the grid, and its angles."""
    columns, _, at_zero = tree.volume._angle
    grid = np.pi * (np.arange(200) + 0.5) / 200
    both = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
    q = np.tile(tree.model.neutral(), (len(both), 1))
    q[:, columns.astype(int)] = both - at_zero
    L = ts.log_det_mass_matrix(tree.model, q)
    weight = np.exp(-ELASTIC.cosine / 2 * ((np.cos(both) - MIDDLE) ** 2).sum(-1) / KT)
    return q, grid, weight * np.sin(both).prod(-1), weight * np.exp((L - L.max()) / 2)


@pytest.mark.parametrize(
    ("method", "fixman"),
    [
        ("hmc", True),
        ("hmc", False),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in (("langevin", True), ("langevin", False))),
    ],
)
def test_soft_angles_have_the_right_law_and_not_the_other(method, fixman):
    """With Fixman's potential angles have the density exp(-U/kT) sin theta, without it exp(-U/kT) sqrt(det M)."""
    tree, replicas, rng = chain("chi angle", LIGHT), 2500, np.random.default_rng(1)
    q, grid, *laws = laws_of_two_angles(tree)
    right, wrong = laws if fixman else laws[::-1]
    start = q[rng.choice(len(q), replicas, p=wrong / wrong.sum())]  # each run has to leave the other law
    common = {"replicas": replicas, "seed": 3, "fixman": fixman, "start": start, "potential": ELASTIC}
    if method == "langevin":
        run = molecule.langevin(tree, 6.4, step=0.008, friction=5.0, every=80, **common)
    else:
        run = molecule.hmc(tree, 36, step=0.016, steps=12, every=3, **common)
        ended = run.counts["trajectories"] - run.counts["unsettled"]
        assert run.counts["exp(-dH/kT)"] / ended == pytest.approx(1, abs=0.003)
    x = run.positions[4:]
    samples = 2 * np.concatenate([angle(x, 0, 1, 2).ravel(), angle(x, 1, 2, 3).ravel()]) - np.pi
    assert fit(samples, marginal(grid, right)) < UNLIKELY
    assert fit(samples, marginal(grid, wrong)) > 1 - 1e-6
    if fixman:  # without the volume of places
        flat = marginal(grid, right / np.sin(grid)[:, None].repeat(len(grid), 1).ravel())
        assert fit(samples, flat) > 1 - 1e-6


def marginal(grid, w):
    """The density of one of two angles of which samples are 2 theta - pi."""
    ends, density = [0.0, *grid, np.pi], [0.0, *w.reshape(len(grid), -1).sum(1), 0.0]
    return lambda y: np.interp(y, 2 * np.array(ends) - np.pi, density)


def test_soft_lengths_have_the_right_law_and_not_the_other():
    """Everything is soft: places have the density exp(-U/kT), lengths r^2 times that."""
    tree, replicas = chain("chi angle length"), 800
    run = molecule.hmc(tree, 30, step=0.015, steps=10, every=2, replicas=replicas, seed=3, potential=ELASTIC)
    k, x = ELASTIC.length / KT, run.positions[4:]
    scale = np.pi / 4 * np.sqrt(k)  # four standard deviations at the edges

    def right(y):
        return np.exp(-k / 2 * (y / scale) ** 2) * (0.153 + y / scale) ** 2

    for j in range(3):
        y = scale * (np.linalg.norm(x[:, :, j + 1] - x[:, :, j], axis=-1).ravel() - 0.153)
        assert fit(y[np.abs(y) < np.pi], right) < UNLIKELY
        assert fit(y[np.abs(y) < np.pi], lambda y: np.exp(-k / 2 * (y / scale) ** 2)) > 1 - 1e-6
    ended = run.counts["trajectories"] - run.counts["unsettled"]
    assert run.counts["exp(-dH/kT)"] / ended == pytest.approx(1, abs=0.005)


def test_a_soft_run_is_continued_exactly(tmp_path):
    structure, places, mass = branched()
    tree = Molecule(structure, places, mass).torsions("chi angle length", hydrogen_mass=None)
    options = {"step": 0.002, "every": 5, "seed": 6, "potential": Springs(), "replicas": 2}
    whole = molecule.langevin(tree, 0.08, **options)
    molecule.langevin(tree, 0.03, file=tmp_path / "run", **options)
    again = molecule.langevin(tree, 0.08, file=tmp_path / "run", resume=True, **options)
    np.testing.assert_array_equal(again.q, whole.q)
    assert again.counts == whole.counts
    lengths = np.linalg.norm(again.positions[..., 4, :] - again.positions[..., 5, :], axis=-1)
    assert np.ptp(lengths) > 1e-4


@pytest.mark.parametrize("soft", ["chi angle", "chi angle length"])
def test_disulfides_stay_closed_between_soft_angles(soft):
    run = molecule.dynamics(disulfide(soft), 0.2, step=0.002, every=5, potential=Springs(), seed=1)
    assert run.counts["failed steps"] == 0
    assert run.open_bonds().max() < 1e-10
    energy = run.potential + run.kinetic
    assert np.ptp(energy) < 0.01 * np.ptp(run.kinetic)


def test_a_peptide_with_soft_angles_is_moved_and_written(tmp_path):
    pytest.importorskip("openmm")
    pytest.importorskip("PeptideBuilder")
    peptide = molecule.from_sequence("ACE-ALA-NME", solvent="vacuum").minimised()
    tree = peptide.torsions("phi psi omega chi angle")
    run = molecule.dynamics(tree, 0.2, step=0.002, every=10, temperature=600.0, platform="Reference")
    assert (run.potential + run.kinetic).std() < 0.02 * run.kinetic.std()
    s = peptide.structure.residues[1].atoms
    bends = angle(run.positions[:, 0], s["N"], s["CA"], s["C"])
    assert 0.01 < np.ptp(bends) < 0.5
    run.save(tmp_path / "a.dcd")
    assert (tmp_path / "a.dcd").stat().st_size > len(run) * 22 * 12
    mixed = molecule.gibbs(tree, 1, cartesian=5, trajectories=1, step=0.002, steps=2)
    assert mixed.positions.shape == (2, 1, 22, 3)
