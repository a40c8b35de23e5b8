"""Molecules: torsion trees, their statistics, restart, files. What needs OpenMM is skipped where it is missing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import processes
import pytest
from scipy.spatial.transform import Rotation
from scipy.stats import chi2 as chi2_law

import torsor as ts
from torsor import molecule
from torsor.molecule import page, polymers
from torsor.molecule.methods import HybridMonteCarlo
from torsor.molecule.molecule import Molecule, Torsions, repartitioned
from torsor.molecule.mover import Mover
from torsor.molecule.page import secondary_structure
from torsor.molecule.prepare import residues_of
from torsor.molecule.results import dihedrals
from torsor.molecule.run import Setting, generators
from torsor.molecule.soft import soft_bonds
from torsor.molecule.structure import Residue, Structure
from torsor.molecule.tree import torsion_tree

TRPCAGE = Path(__file__).parent / "molecules" / "1l2y.pdb"  # 1L2Y of the PDB, model 1 (Neidigh & al. 2002)
KT = molecule.BOLTZMANN * 300.0
ROUNDING = 1e-13
# chi^2 of a right law exceeds this share of its distribution once in a thousand seeds; the seed is fixed
UNLIKELY = 0.999
FEWEST = 5.0  # samples in a bin, for chi^2 to have its distribution


def branched():
    """A ring of four carbons, a chain N-C-C on it, and hydrogens on that."""
    x = [[0, 0, 0], [1, 0, 0.1], [1, 1, 0], [0, 1, 0.1], [-0.8, -0.8, 0.3], [-1.6, -0.5, -0.5], [-2.4, -1.2, 0.2],
         [-0.9, -1.7, 0.1], [-1.9, 0.4, -0.9], [-1.2, -0.7, -1.5], [-3.2, -0.9, 0.6], [-2.6, -2.1, -0.3]]  # fmt: skip
    bonds = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 4), (4, 5), (5, 6), (4, 7), (5, 8), (5, 9), (6, 10), (6, 11)]
    elements = [*"CCCCNCC", *"HHHHH"]
    names = [f"{e}{k}" for k, e in enumerate(elements)]
    residue = Residue("LIG", "1", "", {name: k for k, name in enumerate(names)})
    structure = Structure(names, elements, [residue], np.zeros(12, int), np.array(bonds))
    mass = np.array([12.0] * 7 + [1.0] * 5)
    return structure, 0.15 * np.array(x, float), mass


# Trees -----------------------------------------------------------------------------------------------------------


def test_bonds_of_rings_and_ends_do_not_turn():
    structure, places, _ = branched()
    assert structure.bridges == {(0, 4), (4, 5), (5, 6), (4, 7), (5, 8), (5, 9), (6, 10), (6, 11)}
    assert [rotor.bond for rotor in soft_bonds(structure, places)] == [(0, 4), (4, 5), (5, 6)]
    assert structure.parts([(0, 4)]).tolist() == [0, 0, 0, 0, *[1] * 8]


def test_neutral_is_where_the_atoms_are():
    structure, places, mass = branched()
    tree = torsion_tree(structure, places, mass, soft_bonds(structure, places))
    model, points = tree.model, tree.points
    np.testing.assert_allclose(points.positions(model.neutral()), places, rtol=0, atol=1e-15)


def test_torsions_keep_bonds_and_angles_and_turn_dihedrals():
    structure, places, mass = branched()
    chosen = soft_bonds(structure, places)
    tree = torsion_tree(structure, places, mass, chosen)
    model, points, parts = tree.model, tree.points, tree.parts
    q = model.random_configuration(0)
    x = points.positions(q)
    for a, b in structure.bonds:
        assert np.linalg.norm(x[a] - x[b]) == pytest.approx(np.linalg.norm(places[a] - places[b]), rel=1e-12)
    for body in range(1, model.n):
        b, c = parts.axis[body].tolist()
        a = next(k for k in structure.neighbours[b] if k != c and parts.body[k] == parts.body[b])
        d = next(k for k in structure.neighbours[c] if k != b and parts.body[k] == body)
        quad = np.array([[a, b, c, d]])
        turned = dihedrals(x, quad)[0] - dihedrals(places, quad)[0] - q[model.q_start[body]]
        assert np.cos(turned) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("root", ["centroid", 0, 10])
def test_shared_masses_leave_the_mass_matrix_alone(root):
    structure, places, mass = branched()
    chosen = soft_bonds(structure, places)
    matrices = []
    for share in (True, False):
        model = torsion_tree(structure, places, mass, chosen, root=root, share=share).model
        q = model.neutral()
        q[7:] = (0.7, -1.1, 2.0)
        matrices.append(ts.mass_matrix(model, q))
    np.testing.assert_allclose(matrices[0], matrices[1], rtol=0, atol=1e-15 * np.abs(matrices[0]).max() * 4)


def test_log_det_is_that_of_cartesian_columns():
    """det of sum m J_i' J_i, its columns by differences of positions: no sweep and no inertia."""
    structure, places, mass = branched()
    tree = torsion_tree(structure, places, mass, soft_bonds(structure, places))
    model, points = tree.model, tree.points
    q, h, columns = model.random_configuration(3), 1e-3, []
    for along in np.eye(model.nv):
        near, far = (
            points.positions(model.integrate(q, s * along)) - points.positions(model.integrate(q, -s * along))
            for s in (h, 2 * h)
        )
        columns.append((8 * near - far).ravel() / (12 * h))
    J = np.array(columns)
    expected = np.linalg.slogdet((J * np.repeat(mass, 3)) @ J.T)[1]
    assert ts.log_det_mass_matrix(model, q) == pytest.approx(expected, abs=1e-9)


def test_heavier_hydrogens_keep_the_mass_of_the_whole():
    structure, _, mass = branched()
    heavy = repartitioned(structure, mass, 3.0)
    assert heavy.sum() == pytest.approx(mass.sum())
    assert heavy[7:].tolist() == [3.0] * 5
    with pytest.raises(ts.ArgumentError, match=r"LIG1\.C5"):
        repartitioned(structure, mass, 8.0)


def test_rods_are_refused_by_name():
    pair = Structure(["N1", "N2"], ["N", "N"], [Residue("N2", "1", "", {"N1": 0, "N2": 1})], np.zeros(2, int),
                     np.array([[0, 1]]))  # fmt: skip
    with pytest.raises(ts.ModelError, match=r"N21\.N1"):
        torsion_tree(pair, np.array([[0, 0, 0], [0.1, 0, 0]]), np.ones(2), [])


# Laws ------------------------------------------------------------------------------------------------------------


def fit(samples, weight, bins=24):
    """The share of the chi^2 distribution below that of samples of an angle against a density."""
    edges = np.linspace(-np.pi, np.pi, bins + 1)
    count, _ = np.histogram((samples + np.pi) % (2 * np.pi) - np.pi, edges)
    inside = edges[:-1, None] + (np.arange(20) + 0.5) / 20 * np.diff(edges)[:, None]
    expected = weight(inside).mean(1)
    expected *= count.sum() / expected.sum()
    enough = expected > FEWEST
    return chi2_law.cdf(((count - expected) ** 2 / expected)[enough].sum(), enough.sum() - 1)


def rigid(tree):
    """sqrt(det M) of the only torsion of a chain."""
    grid = np.linspace(-np.pi, np.pi, 361)
    q = np.tile(tree.model.neutral(), (361, 1))
    q[:, 7] = grid
    L = ts.log_det_mass_matrix(tree.model, q)
    return lambda a: np.interp(a, grid, np.exp(L / 2 - L.max() / 2))


@pytest.mark.parametrize(
    ("method", "fixman"),
    [
        ("langevin", True),
        ("hmc", False),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in (("langevin", False), ("hmc", True))),
    ],
)
def test_four_atoms_have_the_right_law_and_not_the_other(method, fixman):
    tree, replicas = polymers.freely_rotating(4, angle=90.0), 800
    start = np.tile(tree.model.neutral(), (replicas, 1))
    start[:, 7] = np.random.default_rng(0).uniform(-np.pi, np.pi, replicas)
    common = {"replicas": replicas, "seed": 3, "fixman": fixman, "start": start, "step": 0.03}
    if method == "langevin":
        run = molecule.langevin(tree, 7.2, friction=5.0, every=20, **common)
    else:
        run = molecule.hmc(tree, 24, steps=5, every=2, **common)
    samples = run.q[3:, :, 7].ravel()
    laws = [np.ones_like, rigid(tree)]
    right, wrong = laws if fixman else laws[::-1]
    assert fit(samples, right) < UNLIKELY
    assert fit(samples, wrong) > 1 - 1e-6
    if method == "hmc":
        assert run.counts["exp(-dH/kT)"] / run.counts["trajectories"] == pytest.approx(1, abs=0.002)
        assert run.counts["unsettled"] < 0.001 * run.counts["trajectories"]
    else:
        assert run.temperature[3:].mean() == pytest.approx(300, rel=0.01)


def bent_in_space(rng, shape, k):
    """Quaternions of bonds whose cosines with the bonds before them have the density exp(k cos), turned about them."""
    u = rng.uniform(size=shape)
    cosine = 1 + np.log(u + (1 - u) * np.exp(-2 * k)) / k if k else 2 * u - 1
    angle, around, spin = np.arccos(cosine), *rng.uniform(-np.pi, np.pi, (2, *shape))
    about = np.stack([np.zeros(shape), np.cos(around), np.sin(around)], axis=-1)
    bend = Rotation.from_rotvec((angle[..., None] * about).reshape(-1, 3))
    turn = Rotation.from_rotvec(spin.reshape(-1, 1) * [1.0, 0.0, 0.0])
    return (bend * turn).as_quat(scalar_first=True).reshape(*shape[:-1], -1)


def cosines(run):
    """Between successive bonds, (frames, replicas, bends)."""
    bonds = np.diff(run.positions, axis=2)
    bonds /= np.linalg.norm(bonds, axis=-1, keepdims=True)
    return (bonds[..., 1:, :] * bonds[..., :-1, :]).sum(-1)


@pytest.mark.parametrize("space", ["planar", "spatial"])
def test_stiff_chains_bend_as_the_worm_like_chain(space):
    """<cos> = I1(k/kT) / I0(k/kT) in the plane, coth(k/kT) - kT/k in space, and <R^2> of independent bends."""
    k, n, replicas, rng = 3.0, 6, 300, np.random.default_rng(0)
    if space == "planar":  # starts have the law that the chain should have, and keep
        tree, start, law = polymers.planar, rng.vonmises(0.0, k / KT, (replicas, n)), polymers.mean_cosine_planar
    else:
        tree, start, law = polymers.spatial, bent_in_space(rng, (replicas, n), k / KT), polymers.mean_cosine_spatial
    run = molecule.hmc(tree(n, bond=0.2), 12, step=0.04, steps=10, every=2, replicas=replicas, seed=1, start=start,
                       potential=polymers.Bending(k))  # fmt: skip
    assert run.acceptance > 0.8
    bends = cosines(run)[2:]
    error = bends.mean((0, 2)).std() / np.sqrt(replicas)
    assert bends.mean() == pytest.approx(law(k, KT), abs=4 * error)
    square = (run.end_to_end(0, n) ** 2)[2:]
    expected = polymers.mean_square_end_to_end(n, 0.2, law(k, KT))
    assert square.mean() == pytest.approx(expected, abs=4 * square.mean(0).std() / np.sqrt(replicas))


def test_chains_of_short_stiff_bonds_are_kratky_and_porods():
    """<R^2> = 2 P L (1 - P/L (1 - exp(-L/P))); the persistence length P is b k/kT in space, 2 b k/kT in the plane."""
    bonds, bond, k = 4000, 1e-3, 1000.0
    for law, persistence in ((polymers.mean_cosine_spatial, k * bond), (polymers.mean_cosine_planar, 2 * k * bond)):
        L, P = bonds * bond, persistence
        expected = 2 * P * L * (1 - P / L * (1 - np.exp(-L / P)))
        # bonds of a length: relative errors of the order b/P
        assert polymers.mean_square_end_to_end(bonds, bond, law(k, 1.0)) == pytest.approx(expected, rel=bond / P)
    for k in (0.0, 1e-5, 1e-3):  # x/3 - x^3/45
        assert polymers.mean_cosine_spatial(k, 1.0) == pytest.approx(k / 3 - k**3 / 45, abs=1e-11)


def test_two_bonds_in_space_have_the_determinant_of_round_beads():
    tree, a = polymers.spatial(2), polymers.ROUND
    q = bent_in_space(np.random.default_rng(3), (50, 2), 0.0)
    bonds = np.diff(tree.positions(q), axis=1) / polymers.BOND
    cosine = (bonds[:, 0] * bonds[:, 1]).sum(-1)
    L = ts.log_det_mass_matrix(tree.model, q) - np.log((2 + a) * (1 + a) - cosine**2)
    assert np.ptp(L) < 100 * ROUNDING


@pytest.mark.parametrize("fixman", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_two_bonds_in_space_have_the_right_law_and_not_the_other(fixman):
    """The cosine is uniform for stiff bonds, and has the density ((2 + a) (1 + a) - cos^2)^(1/2) for rigid ones."""
    tree, a, replicas = polymers.spatial(2), polymers.ROUND, 2000
    start = bent_in_space(np.random.default_rng(5), (replicas, 2), 0.0)
    run = molecule.hmc(tree, 16, step=0.02, steps=8, replicas=replicas, seed=1, fixman=fixman, start=start)
    samples = np.pi * cosines(run)[4:].ravel()
    laws = [np.ones_like, lambda x: np.sqrt((2 + a) * (1 + a) - (x / np.pi) ** 2)]
    right, wrong = laws if fixman else laws[::-1]
    assert fit(samples, right) < UNLIKELY
    assert fit(samples, wrong) > 1 - 1e-6


def test_bending_forces_are_the_slope_of_the_energy():
    x = np.random.default_rng(0).normal(size=(2, 5, 3))
    bending = polymers.Bending(2.0)
    f = bending(x)[1]
    for k in range(15):
        step = np.zeros((5, 3))
        step.flat[k] = 1e-3
        near, far = (bending(x + s * step)[0] - bending(x - s * step)[0] for s in (1, 2))
        np.testing.assert_allclose(-(8 * near - far) / 12e-3, f.reshape(2, -1)[:, k], rtol=0, atol=1e-8)


def test_a_flexible_chain_has_the_mean_square_of_independent_bonds():
    assert polymers.mean_square_end_to_end(10, 0.5, 0.0) == pytest.approx(10 * 0.25)
    bonds = np.random.default_rng(1).normal(size=(3,))
    n, c = 7, np.tanh(bonds[0])
    direct = sum(c ** abs(i - j) for i in range(n) for j in range(n))
    assert polymers.mean_square_end_to_end(n, 1.0, c) == pytest.approx(direct)


# Steps -----------------------------------------------------------------------------------------------------------


class Springs:
    """A potential without OpenMM: all atoms on springs, and calls counted."""

    def __init__(self, k=200.0):
        self.k, self.calls = k, 0

    def __call__(self, x):
        self.calls += len(x)
        return self.k / 2 * (x**2).sum((-1, -2)), -self.k * x


def tree_of_branches():
    structure, places, mass = branched()
    return Molecule(structure, places, mass).torsions(hydrogen_mass=3.0)


def test_one_force_call_per_step_and_a_bounded_energy():
    tree, springs = tree_of_branches(), Springs()
    run = molecule.dynamics(tree, 0.5, step=0.005, every=1, potential=springs, seed=2)
    assert springs.calls == 1 + run.counts["steps"]
    H = (run.potential + run.kinetic)[:, 0]
    assert np.ptp(H) < 0.02 * np.ptp(run.kinetic)


def test_fifty_steps_and_back():
    tree, setting = tree_of_branches(), Setting(replicas=3, seed=5)
    mover = Mover(tree, Springs(), setting.kT(0.0))
    first = mover.start(np.tile(tree.model.neutral(), (3, 1)), generators(setting, 0))
    walkers = first
    for sign in (1, -1):
        walkers = replace(walkers, p=sign * walkers.p, x=sign * walkers.x)
        for _ in range(50):
            walkers, good = mover.step(walkers, 0.005)
            assert good.all()
    x, y = (tree.positions(w.q) for w in (first, walkers))
    np.testing.assert_allclose(y, x, rtol=0, atol=1e-11)


def test_a_replica_does_not_depend_on_its_neighbours():
    tree = tree_of_branches()
    together = molecule.langevin(tree, 0.5, step=0.01, every=5, replicas=3, seed=4, potential=Springs())
    alone = molecule.langevin(tree, 0.5, step=0.01, every=5, replicas=1, seed=4, potential=Springs())
    np.testing.assert_array_equal(together.q[:, 0], alone.q[:, 0])


def test_a_replica_that_fails_is_its_own_affair():
    """Forces that are not finite for one replica: it stays where it was, is counted, and the others move on."""
    tree = tree_of_branches()

    class Broken(Springs):
        broken = False

        def __call__(self, x):
            U, f = super().__call__(x)
            if self.broken and len(x) > 1:
                U[1], f[1] = np.nan, np.nan
            return U, f

    broken, setting = Broken(), Setting(replicas=3)
    mover = Mover(tree, broken, setting.kT(0.0))
    walkers = mover.start(np.tile(tree.model.neutral(), (3, 1)), generators(setting, 0))
    broken.broken = True
    moved, good = mover.step(walkers, 0.01)
    assert good.tolist() == [True, False, True]
    np.testing.assert_array_equal(moved.q[1], walkers.q[1])
    assert (moved.q[[0, 2]] != walkers.q[[0, 2]]).any()
    _, accepted, weight = HybridMonteCarlo(0.01, 1, 3).draw(mover, walkers, generators(setting, 1))
    assert not accepted[1]
    assert weight[1] == 0
    assert np.isfinite(moved.p).all()


def test_steps_without_a_solution_are_halved_and_lead_home():
    """A chain that turns too fast: the equations of a step have no solution, those of half of it do."""
    tree, replicas, h = polymers.freely_rotating(6), 4000, 0.045
    setting = Setting(replicas=replicas, seed=1)
    mover = Mover(tree, None, setting.kT(0.0), fixman=False)
    start = np.tile(tree.model.neutral(), (replicas, 1))
    start[:, 7:] = np.random.default_rng(0).uniform(-np.pi, np.pi, (replicas, 3))
    walkers = mover.start(start, generators(setting, 0))
    whole = mover.drift(walkers.q, walkers.p, walkers.x, h)
    moved, good = mover.drifted(walkers, h)
    np.testing.assert_array_equal(moved.q[whole.settled], whole.q[whole.settled])
    halved = good & ~whole.settled
    assert halved.sum() > 10
    assert (~good).sum() < 0.3 * (~whole.settled).sum()
    back, again = mover.drifted(replace(moved, p=-moved.p, x=-moved.x), h)
    assert again[halved].all()
    np.testing.assert_allclose(back.q[halved], walkers.q[halved], rtol=0, atol=1e-7)  # 1e-7: where Newton stops


def disulfide(soft="chi"):
    """A loop of carbons closed by an S-S bond: zigzag in a plane, every second atom lifted."""
    n = 9
    angle = 2 * np.pi * np.arange(n) / n
    places = np.stack([0.24 * np.cos(angle), 0.24 * np.sin(angle), 0.06 * (-1.0) ** np.arange(n)], axis=1)
    places += 0.01 * np.random.default_rng(0).normal(size=(n, 3))
    elements = [*"SCCCCCCC", "S"]
    names = [f"{e}{k}" for k, e in enumerate(elements)]
    structure = Structure(names, elements, [Residue("LOP", "1", "", {name: k for k, name in enumerate(names)})],
                          np.zeros(n, int), np.array([*((k, k + 1) for k in range(n - 1)), (0, n - 1)]))  # fmt: skip
    return Molecule(structure, places, np.full(n, 14.0)).torsions(soft, hydrogen_mass=None)


def test_disulfides_stay_closed_and_lead_home():
    tree, setting = disulfide(), Setting(replicas=3, seed=2)
    assert tree.cut == ((0, 8),)
    assert tree.model.n == 7
    mover = Mover(tree, Springs(), setting.kT(0.0))
    first = walkers = mover.start(np.tile(tree.model.neutral(), (3, 1)), generators(setting, 0))
    for sign in (1, -1):
        walkers = replace(walkers, p=sign * walkers.p, x=sign * walkers.x)
        for _ in range(40):
            walkers, good = mover.step(walkers, 0.004)
            assert good.all()
        assert np.abs(mover.closures.gaps(walkers.q)).max() < 1e-10
        if sign == 1:
            assert np.abs(tree.positions(walkers.q) - tree.molecule.positions).max() > 0.01
    np.testing.assert_allclose(tree.positions(walkers.q), tree.positions(first.q), rtol=0, atol=1e-10)
    run = molecule.langevin(tree, 0.4, step=0.004, every=10, potential=Springs())
    assert run.open_bonds().max() < 1e-10
    H = molecule.dynamics(tree, 0.4, step=0.002, every=1, potential=Springs())
    energy = (H.potential + H.kinetic)[:, 0]
    assert np.ptp(energy) < 0.03 * np.ptp(H.kinetic)


METHODS = {
    "langevin": lambda tree, frames, **o: molecule.langevin(tree, frames * 0.05, step=0.01, every=5, **o),
    "hmc": lambda tree, frames, **o: molecule.hmc(tree, frames, step=0.02, steps=4, **o),
    "tempering": lambda tree, frames, **o: molecule.tempering(tree, frames * 0.05, [300, 330], step=0.01, every=5, **o),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_continued_exactly(method, tmp_path):
    tree, move = tree_of_branches(), METHODS[method]
    whole = move(tree, 8, seed=6, potential=Springs())
    path = tmp_path / "run"
    move(tree, 3, seed=6, potential=Springs(), file=path)
    content = path.read_bytes()
    path.write_bytes(content[:-20])  # a crash while the last frame was written
    again = move(tree, 8, seed=6, potential=Springs(), file=path, resume=True)
    np.testing.assert_array_equal(again.q, whole.q)
    assert again.counts == whole.counts
    done = move(tree, 8, seed=6, potential=Springs(), file=path, resume=True)
    np.testing.assert_array_equal(done.q, whole.q)


def test_another_run_is_not_continued(tmp_path):
    tree, path = tree_of_branches(), tmp_path / "run"
    molecule.langevin(tree, 0.05, step=0.01, every=5, potential=Springs(), file=path)
    with pytest.raises(ts.TorsorError, match="friction"):
        molecule.langevin(tree, 0.1, step=0.01, every=5, friction=2.0, potential=Springs(), file=path, resume=True)
    with pytest.raises(ts.TorsorError, match="another molecule"):
        molecule.langevin(polymers.freely_rotating(4), 0.1, step=0.01, every=5, file=path, resume=True)
    with pytest.raises(ts.TorsorError, match="exists"):
        molecule.langevin(tree, 0.05, step=0.01, every=5, potential=Springs(), file=path)


def test_annealing_ends_cold():
    run = molecule.anneal(polymers.freely_rotating(6), 3.0, 600.0, 50.0, step=0.01, friction=30.0, every=10,
                          replicas=30)  # fmt: skip
    assert run.temperature[-1].mean() == pytest.approx(50, rel=0.25)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"temperature": 0}, "minimised"), ({"temperature": -5}, "temperature"), ({"step": 0}, "step"),
     ({"replicas": 0}, "replicas"), ({"start": [1.0]}, "start"), ({"resume": True}, "file")],
)  # fmt: skip
def test_wrong_settings_are_refused(options, words):
    with pytest.raises(ts.ArgumentError, match=words):
        molecule.langevin(polymers.freely_rotating(4), 0.1, **{"step": 0.01, **options})


@pytest.mark.parametrize("sequence", ["", "AXA", "ALA-FOO", "ALA-ACE", "ACE-NME", "NME-ALA"])
def test_wrong_sequences_are_refused(sequence):
    with pytest.raises(ts.ArgumentError, match=r"residue|sequence"):
        residues_of(sequence)


def test_a_helix_is_a_helix_and_a_strand_a_strand():
    k = np.arange(12)
    turn = np.radians(100 * k)
    helix = np.stack([0.23 * np.cos(turn), 0.23 * np.sin(turn), 0.15 * k], axis=1)
    strand = np.stack([0.09 * (-1.0) ** k, 0.02 * np.sin(k), 0.335 * k], axis=1)
    assert secondary_structure(helix) == "C" + "H" * 10 + "C"
    assert secondary_structure(strand) == "C" + "E" * 10 + "C"
    assert secondary_structure(helix[:3]) == "CCC"


# Distances (nm) of an atom to the second, third and fourth after it, angle and dihedral (degrees), and how far each may
# be off (Labesse & al. 1997); the angle by twice as much.
WINDOWS = {
    "H": ((0.55, 0.05), (0.53, 0.05), (0.64, 0.06), (89, 24), (50, 20)),
    "E": ((0.67, 0.06), (0.99, 0.09), (1.24, 0.11), (124, 28), (-170, 45)),
}


def five_atoms(second, third, fourth, angle, dihedral):
    """CA atoms with these distances from the first one, this angle at the second and this dihedral."""
    half, turn = np.radians(angle) / 2, np.radians(dihedral)
    bond = second / 2 / np.sin(half)
    b, c = np.zeros(3), np.array([0.0, 0.0, bond])
    a = bond * np.array([np.sin(2 * half), 0.0, np.cos(2 * half)])
    d = c + 0.2 * np.array([np.cos(turn), np.sin(turn), 0.0])
    beside = np.linalg.norm((d - a)[:2])
    d[2] = a[2] + np.sqrt(third**2 - beside**2)  # up or down the axis of the dihedral, to the third distance
    return np.array([a, b, c, d, a + fourth * np.array([0.0, 0.6, 0.8])])


@pytest.mark.parametrize("kind", WINDOWS)
def test_every_criterion_of_helices_and_strands_has_its_window(kind):
    """Five atoms fit just inside every window, and not just outside of one."""
    usual = np.array([x for x, _ in WINDOWS[kind]])
    rule = {"H": page.HELIX, "E": page.STRAND}[kind]
    for k, (_, slack) in enumerate(WINDOWS[kind]):
        for share in (-1.02, -0.98, 0.98, 1.02):
            off = usual + share * slack * (np.arange(5) == k)
            assert page._fits(five_atoms(*off), rule) == (abs(share) < 1), (k, share)


# With OpenMM -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cage():
    pytest.importorskip("openmm")
    pytest.importorskip("pdbfixer")
    return molecule.load(TRPCAGE)


def test_trp_cage_is_a_tree(cage):
    tree = cage.torsions()
    assert cage.report == ("taken as it is: 304 atoms",)
    assert tree.kinds == {"methyl": 8, "psi": 20, "chi": 28, "omega": 19, "phi": 15, "hydroxyl": 4}
    assert tree.model.n == 95
    assert cage.torsions("phi psi", methyl=False, hydroxyl=False).kinds == {"phi": 15, "psi": 20}
    phi, psi = (np.degrees(x) for x in molecule.MolecularRun(
        tree, np.zeros(1), tree.model.neutral()[None, None], *[np.zeros((1, 1))] * 3, {}, {}).phi_psi())  # fmt: skip
    assert (np.abs(phi[0, 0, 1:7] + 65) < 15).all()  # its helix, residues 3 to 8
    assert (np.abs(psi[0, 0, 1:6] + 40) < 15).all()


def test_forces_of_openmm_are_felt_as_slopes(cage):
    tree, potential = cage.torsions(), cage.potential("Reference")
    q = tree.model.neutral()
    tau = tree.points.torques(q, potential(tree.positions(q[None]))[1][0])

    def energy(k, s):
        return potential(tree.positions(tree.model.integrate(q, s * np.eye(tree.model.nv)[k])[None]))[0][0]

    for k in (0, 3, 20, 60, 99):
        h = 3e-5
        slope = (8 * (energy(k, h) - energy(k, -h)) - (energy(k, 2 * h) - energy(k, -2 * h))) / (12 * h)
        assert tau[k] == pytest.approx(-slope, abs=1e-7 * np.abs(tau).max())


def test_frames_are_read_back_by_others(cage, tmp_path):
    mdtraj = pytest.importorskip("mdtraj")
    tree = cage.torsions()
    q = np.tile(tree.model.neutral(), (3, 1, 1))
    q[1:, 0, 7:] += 0.01 * np.random.default_rng(0).normal(size=(2, tree.model.nq - 7))
    none = np.zeros((3, 1))
    run = molecule.MolecularRun(tree, np.arange(3.0), q, none, none, none, {}, {"method": "made up"})
    for name, tolerance in (("a.dcd", 2e-7), ("a.xtc", 6e-4), ("a.pdb", 6e-5)):
        run.save(tmp_path / name)
        top = {} if name.endswith("pdb") else {"top": mdtraj.Topology.from_openmm(cage.topology)}
        back = mdtraj.load(tmp_path / name, **top)
        np.testing.assert_allclose(back.xyz, run.positions[:, 0], rtol=0, atol=tolerance)
    assert run.to_mdtraj().n_frames == 3
    centre = np.average(back.xyz, axis=1, weights=tree.molecule.mass)[:, None]
    square = np.average(((back.xyz - centre) ** 2).sum(-1), axis=1, weights=tree.molecule.mass)
    np.testing.assert_allclose(run.radius_of_gyration()[:, 0] ** 2, square, rtol=1e-3)
    np.testing.assert_allclose(
        mdtraj.rmsd(run.to_mdtraj(), run.to_mdtraj()), run.rmsd(atoms="all")[:, 0], rtol=0, atol=5e-4
    )
    run.save(tmp_path / "a.cif")
    again = molecule.load(tmp_path / "a.cif")
    np.testing.assert_allclose(again.positions, run.positions[0, 0], rtol=0, atol=6e-5)
    with pytest.raises(ts.ArgumentError, match=r"\.dcd"):
        run.save(tmp_path / "a.xyz")
    page = run.view(tmp_path / "page.html").read_text()
    assert page.count('"kind":"') == 1
    assert "three" in page
    assert len(page) < 1e6


def test_what_is_wrong_with_a_file_is_said(cage, tmp_path):
    lines = TRPCAGE.read_text().splitlines()

    def load(text, name="x.pdb", **options):
        (tmp_path / name).write_text("\n".join(text))
        return molecule.load(tmp_path / name, **options)

    with pytest.raises(ts.ModelError, match="line 3, atom C of ASN, has no residue number"):
        load([*lines[:2], lines[2][:22] + "    " + lines[2][26:], *lines[3:]])
    for x in ("     nan", "   x.yyy"):
        with pytest.raises(ts.ModelError, match="line 3, atom C of ASN1, has no coordinates"):
            load([*lines[:2], lines[2][:30] + x + lines[2][38:], *lines[3:]])
    unknown = [line.replace("TRP", "QQQ") for line in lines]
    with pytest.raises(ts.ModelError, match=r"GLN5 and A:LEU7.*left out A:QQQ6.*gaps"):
        load(unknown)
    without = [line for line in lines if line[22:26].strip() not in ("9", "10")]
    with pytest.raises(ts.ModelError, match=r"LYS8 and A:GLY11.*gaps"):
        load(without)
    split = load(without, gaps="split")
    assert len(split.torsions().model.parent) == 84 or (split.torsions().model.parent < 0).sum() == 2
    with pytest.raises(ts.ModelError, match="no atoms"):
        load(["REMARK nothing"])
    with pytest.raises(ts.ArgumentError, match=r"\.pdb"):
        load(lines, "x.txt")
    stripped = load([line for line in lines if line[76:78].strip() != "H" and line[12:16] != " OXT"])
    assert any("placed 150 hydrogens" in line for line in stripped.report)
    assert any("A:SER20.OXT" in line for line in stripped.report)
    moved = [
        line[:30] + lines[0][30:54] + line[54:] if line.startswith("ATOM") and line[12:16] == " CZ " else line
        for line in lines
    ]
    clashing = load(moved).torsions()
    with pytest.raises(ts.ModelError, match=r"(TYR3|ARG16|ASN1).*minimised"):
        molecule.langevin(clashing, 0.01, threads=1)
    with pytest.raises(ts.ModelError, match=r"cannot be minimised: .*(TYR3|ARG16|ASN1).*Move"):
        clashing.molecule.minimised()


def test_models_and_alternate_locations_are_counted():
    pytest.importorskip("openmm")
    from torsor.molecule.prepare import _choices

    pdb = ["MODEL        1", "ATOM      1  N  ASER A   1", "ATOM      1  N  BSER A   1", "ENDMDL", "MODEL        2"]
    cif = "data_x\nloop_\n_atom_site.group_PDB\n_atom_site.label_alt_id\n_atom_site.pdbx_PDB_model_num\n"
    expected = ["model 1 of 2 taken", "alternate locations A, B: the first of each atom taken"]
    assert _choices("\n".join(pdb), "pdb") == expected
    assert _choices(cif + "ATOM A 1\nATOM B 1\nATOM . 2\n", "cif") == expected
    assert _choices("no mmCIF", "cif") == _choices("data_x\n", "cif") == []


def test_peptides_from_sequences():
    pytest.importorskip("openmm")
    pytest.importorskip("PeptideBuilder")
    peptide = molecule.from_sequence("ACE-ALA-NME", solvent="vacuum")
    tree = peptide.torsions()
    assert tree.kinds == {"phi": 1, "psi": 1, "omega": 2, "methyl": 3}
    assert len(peptide.structure) == 22
    again = molecule.from_sequence("ACE-ALA-NME", solvent="vacuum")  # hydrogens begin at drawn places
    np.testing.assert_array_equal(peptide.positions, again.positions)
    np.testing.assert_array_equal(peptide.minimised().positions, again.minimised().positions)
    run = molecule.gibbs(tree, 2, replicas=1, cartesian=5, trajectories=1, steps=2)
    assert run.positions.shape == (3, 1, 22, 3)
    bonds = [np.linalg.norm(run.positions[k, 0, 4] - run.positions[k, 0, 1]) for k in (0, 2)]
    assert bonds[0] != pytest.approx(bonds[1], abs=1e-9)  # lengths change, too


def test_the_command_moves_a_peptide(tmp_path, capsys):
    pytest.importorskip("openmm")
    pytest.importorskip("PeptideBuilder")
    from torsor.cli import main

    files = [tmp_path / name for name in ("a.dcd", "a.png", "a.html")]
    words = ["fold", "ACE-ALA-NME", "--ns", "0.0002", "--solvent", "vacuum", "--dcd", files[0], "--plot", files[1]]
    assert main([*map(str, words), "--view", str(files[2]), "--threads", "1"]) == 0
    assert all(path.stat().st_size > 1000 for path in files)
    said = "".join(capsys.readouterr())
    assert all(path.name in said for path in files)


@pytest.mark.parametrize(
    "words",
    ["--temperature 0", "--temperature 300,x", "--method anneal", "--method hmc --temperature 300,400", "--ns 0",
     "--step 0", "--every -1", "--resume", "--dcd nowhere/a.dcd", "--out a.xyz", "--plot a.xyz", "--view ."],
)  # fmt: skip
def test_wrong_arguments_of_the_command_are_refused_before_anything_is_computed(words, monkeypatch, capsys):
    from torsor.cli import main
    from torsor.molecule import command

    monkeypatch.setattr(command, "_molecule", None)
    assert main(["fold", "ACE-ALA-NME", *words.split()]) == 1
    assert words.split()[words.startswith(("--dcd", "--out", "--plot", "--view"))] in capsys.readouterr().err


def test_no_molecule_is_imported_with_torsor():
    code = "import torsor.molecule, sys; sys.exit(bool({'openmm', 'pdbfixer', 'MDAnalysis'} & set(sys.modules)))"
    assert processes.run("-c", code).returncode == 0


def test_torsions_are_a_type():
    assert isinstance(polymers.freely_rotating(5), Torsions)
