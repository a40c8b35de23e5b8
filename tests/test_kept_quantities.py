"""What a run keeps: chosen quantities, every so many steps, and the continuous extension of steps in files."""

import inspect
import json
import random
from dataclasses import fields

import numpy as np
import pytest

import torsor as ts
from torsor import PD, Simulation, Trajectory, simulate, zoo
from torsor.cli import main
from torsor.errors import ArgumentError
from torsor.model import Model
from torsor.motion.integrators import METHODS
from torsor.motion.recording import RecordingError
from torsor.motion.rows import RowOptions
from torsor.motion.simulation import Problem
from torsor.motion.stepper import Settings

SPRINGS = 2000.0  # N m/rad, far stiffer than what dt resolves


def machine(stiffness=0.0):
    """A ball joint that carries an arm, and a frame on it."""
    b = Model.builder()
    b.add("ball", joint="spherical", mass=1.0, com=(0.1, 0.0, -0.3), inertia=(0.02, 0.03, 0.04))
    b.add("arm", parent="ball", p=(0, 0, -0.5), axis=(0, 1, 0), mass=0.5, com=(0.2, 0, 0), inertia=(0.01, 0.01, 0.02),
          stiffness=stiffness, damping=stiffness / 100)  # fmt: skip
    return b.build().with_frames({"hand": ("arm", np.eye(3), (0.3, 0.0, 0.1))})


def cut(path, rng):
    """Cut a file at a random byte after its header."""
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(content.index(b"ROWS"), len(content))])


# ---- dense output in files ----


@pytest.mark.filterwarnings("ignore::torsor.motion.stepper.StiffnessWarning")  # of dopri5
@pytest.mark.parametrize("method", ["auto", "dopri5", "trbdf2", "implicit-euler"])
def test_a_loaded_trajectory_has_the_continuous_extension_of_its_steps(method, tmp_path):
    model, path = machine(SPRINGS), tmp_path / "run.traj"
    options = {"method": method, "dt": 0.11, "rtol": 1e-3, "chunk": 2}
    if method in METHODS and not METHODS[method].adaptive:
        options["step"] = 2e-3
    v0 = [0.5, 1.0, -0.4, 2.0]
    whole = simulate(model, None, v0, 1.0, **options)
    t = np.random.default_rng(0).uniform(0.0, whole.t[-1], 300)
    simulate(model, None, v0, 1.0, file=path, **options)
    cut(path, random.Random(3))
    resumed = Simulation.resume(path, model=model).run(1.0)
    whole.save(tmp_path / "saved.traj")
    for run in (resumed, Trajectory.load(path), Trajectory.load(tmp_path / "saved.traj")):
        for found, expected in zip(run.at(t), whole.at(t)):
            np.testing.assert_array_equal(found, expected)
    bare = ts.Trajectory(whole.model, whole.t, whole.q, whole.v, whole.a, whole.tau)
    assert np.abs(bare.at(t)[1] - whole.at(t)[1]).max() > 1e-3  # rows alone do not tell it


def test_without_dense_output_files_hold_rows_only(tmp_path):
    model, sizes = zoo.point_chain(2), []
    for dense in (True, False):
        path = tmp_path / f"{dense}.traj"
        simulate(model, [0.4, 0.3], duration=1.0, dt=0.2, dense=dense, file=path)
        sizes.append(path.stat().st_size)
        assert Simulation.resume(path).about["dense"] is dense
    assert sizes[1] < sizes[0] - 1000


def test_dense_output_that_does_not_fit_is_reported(tmp_path):
    run = simulate(zoo.point_chain(2), [0.4, 0.3], duration=1.0, dt=0.2)
    run.dense.pieces[1] = np.zeros((3, 5))
    run.save(tmp_path / "run.traj")
    with pytest.raises(RecordingError, match="dense output"):
        Trajectory.load(tmp_path / "run.traj")


# ---- chosen quantities ----

NAMES = ("q.arm", "v.ball", "a.arm", "tau", "pose.hand", "pose.ball", "kinetic_energy", "potential_energy",
         "elastic_energy", "energy", "power", "q.ball")  # fmt: skip


def test_kept_quantities_are_those_of_the_whole_run(tmp_path):
    model, v0 = machine(5.0), [0.5, 1.0, -0.4, 2.0]
    whole = simulate(model, None, v0, 1.0, dt=0.05)
    kept = simulate(model, None, v0, 1.0, dt=0.05, keep=NAMES)
    assert kept.v is None  # not all of it was kept
    np.testing.assert_array_equal(kept.q, whole.q)
    np.testing.assert_array_equal(kept.t, whole.t)
    np.testing.assert_array_equal(kept["q.arm"], whole.q[:, 4])
    np.testing.assert_array_equal(kept["q.ball"], whole.q[:, :4])
    np.testing.assert_array_equal(kept["v.ball"], whole.v[:, :3])
    np.testing.assert_array_equal(kept["a.arm"], whole.a[:, 3])
    np.testing.assert_array_equal(kept["tau"], whole.tau)
    for name in ("kinetic_energy", "potential_energy", "elastic_energy", "energy", "power"):
        np.testing.assert_array_equal(kept[name], getattr(whole, name))
    pose = ts.frame_poses(model, whole.q, "hand")
    np.testing.assert_array_equal(kept["pose.hand"][:, :3], pose[:, :3, 3])
    turned = ts.lie.quaternion_to_matrix(kept["pose.hand"][:, 3:])
    np.testing.assert_allclose(turned, pose[:, :3, :3], rtol=0, atol=1e-14)  # rounding of entries <= 1
    kept.to_csv(tmp_path / "kept.csv")
    lines = (tmp_path / "kept.csv").read_text().splitlines()
    assert json.loads(lines[-1][2:])["keep"] == list(NAMES)
    assert lines[0].split(",") == ["t", *kept.columns]
    np.testing.assert_array_equal(np.loadtxt(lines[1:], delimiter=","), np.column_stack([kept.t, kept.values]))


@pytest.mark.parametrize("thinned", [{"every": 3}, {"dt": 0.013}, {}], ids=["every", "dt", "all"])
@pytest.mark.parametrize("method", ["auto", "esdirk4", "verlet"])
def test_a_run_of_chosen_quantities_resumes_to_the_same_bits(method, thinned, tmp_path):
    model, path = machine(), tmp_path / "run.traj"
    options = {"method": method, "max_step": 0.02, "chunk": 8, "keep": ["q.arm", "energy"]} | thinned
    if method == "verlet":
        options["step"] = 0.01
    v0 = [0.5, 1.0, -0.4, 2.0]
    whole = simulate(model, None, v0, 1.0, **options)
    simulate(model, None, v0, 1.0, file=path, **options)
    rng = random.Random(5)
    for _ in range(2):
        cut(path, rng)
        resumed = Simulation.resume(path, model=model).run(1.0)
        for run in (resumed, Trajectory.load(path)):
            np.testing.assert_array_equal(run.t, whole.t)
            np.testing.assert_array_equal(run.values, whole.values)
            assert run.columns == whole.columns
    whole.save(tmp_path / "saved.traj")
    np.testing.assert_array_equal(Trajectory.load(tmp_path / "saved.traj").values, whole.values)


def test_every_third_step_is_every_third_row_and_the_last_state():
    model = zoo.point_chain(2)
    whole, third = (simulate(model, [0.4, 0.3], duration=1.0, every=every) for every in (1, 3))
    assert (len(whole) - 1) % 3
    rows = [*range(0, len(whole), 3), len(whole) - 1]
    for name in ("t", "q", "v", "a", "tau"):
        np.testing.assert_array_equal(getattr(third, name), getattr(whole, name)[rows])
    t = np.linspace(0.0, 1.0, 50)
    np.testing.assert_allclose(third.at(t)[0], whole.at(t)[0], rtol=1e-14)  # the same quintics, summed in another order


@pytest.mark.parametrize("keep", [None, ["q", "energy"]], ids=["rows", "quantities"])
@pytest.mark.parametrize("recorded", [False, True], ids=["memory", "file"])
def test_the_last_state_is_a_row_until_the_run_goes_on(recorded, keep, tmp_path):
    """Runs to 0.05, 0.07 and 0.24, every tenth step: what was last is no row of a longer run."""
    path, model = tmp_path / "run.traj", zoo.point_chain(2)
    options = dict(method="implicit-euler", step=0.01, every=10, keep=keep, file=path if recorded else None)
    run, load = Simulation(model, [0.4, 0.3], **options), Trajectory.load
    fine = simulate(model, [0.4, 0.3], duration=0.24, **options | {"every": 1, "file": None})
    for until, times in ((0.05, [0, 5]), (0.05, [0, 5]), (0.07, [0, 7]), (0.1, [0, 10]), (0.24, [0, 10, 20, 24])):
        found = run.run(until)
        for rows in (found, load(path)) if recorded else (found,):
            np.testing.assert_allclose(rows.t, fine.t[times], rtol=1e-14)  # 0.07 is not 7 times 0.01
            if not keep:
                np.testing.assert_allclose(rows.q, fine.q[times], rtol=1e-12)
                np.testing.assert_allclose(rows.at(0.04)[0], fine.at(0.04)[0], rtol=1e-12)
        if recorded:
            run = Simulation.resume(path)
            np.testing.assert_array_equal(Simulation.resume(path).run(until).t, rows.t)


@pytest.mark.parametrize("method", ["trbdf2", "dopri5", "verlet"])
def test_a_run_that_ends_between_its_rows_resumes_from_its_end(method, tmp_path):
    path, options = tmp_path / "run.traj", dict(method=method, step=0.01, dt=0.05, chunk=1)
    run = Simulation(zoo.point_chain(2), [0.4, 0.3], **options)
    recorded = Simulation(zoo.point_chain(2), [0.4, 0.3], file=path, **options)
    for until in (0.03, 0.12, 0.12, 0.14, 0.21):
        whole = run.run(until)
        np.testing.assert_array_equal(recorded.run(until).q, whole.q)
        recorded = Simulation.resume(path)
        assert recorded.t == until
        np.testing.assert_array_equal(recorded.q, run.q)


def test_an_event_is_the_last_row_once():
    run = Simulation(zoo.point_chain(2), [0.4, 0.3], every=4)
    found = run.run(5.0, stop=lambda t, q, v: q[0])
    assert found.t[-1] == run.t < 5.0
    assert (np.diff(found.t) > 0).all()
    longer = run.run(run.t + 0.5)
    np.testing.assert_array_equal(longer.t[: len(found)], found.t)  # an event is a row for good
    assert longer.t[-1] == run.t


def test_few_numbers_of_a_long_chain_take_a_small_file(tmp_path):
    model, path = zoo.rope(2000), tmp_path / "run.traj"
    v0 = np.zeros(model.nv)
    v0[0] = 1.0
    kept = simulate(model, None, v0, 2e-5, method="implicit-euler", step=1e-6, keep=["pose.link2000"], file=path)
    assert kept.values.shape == (21, 7)
    assert path.stat().st_size < 8 * 4 * model.nv + 2_000_000  # the state for a resume, and the model


@pytest.mark.parametrize(
    ("keep", "words"),
    [(["nothing"], "no quantity"), (["q.nobody"], "nobody"), (["q.arm", "q"], "twice"), ("q", "list of names"),
     (["pose.nobody"], "nobody"), ([3], "list of names"), (["q.", "q"], "twice"), ([["q"]], "list of names")],
)  # fmt: skip
def test_what_cannot_be_kept_is_named(keep, words):
    with pytest.raises(ArgumentError, match=words):
        simulate(machine(), duration=0.1, keep=keep)


def test_rows_are_dt_or_steps_apart_not_both():
    with pytest.raises(ArgumentError, match="dt or every"):
        simulate(machine(), duration=0.1, dt=0.1, every=2)


def test_what_a_file_does_not_hold_is_named(tmp_path):
    simulate(machine(), duration=0.1, keep=["energy"], file=tmp_path / "kept.traj")
    kept = Trajectory.load(tmp_path / "kept.traj")
    assert (kept.columns, kept.q) == (["energy"], None)
    with pytest.raises(ArgumentError, match="'q' was not kept; there are energy"):
        kept["q"]
    for derived in (lambda: kept.poses, lambda: kept.power, lambda: kept.at(0.05), lambda: kept.path("arm")):
        with pytest.raises(ArgumentError, match=r"did not keep all of|was not kept"):
            derived()


def test_pictures_of_chosen_quantities(tmp_path):
    model = machine()
    kept = simulate(model, duration=0.3, dt=0.01, keep=["q", "energy"])
    assert len(kept.plot(tmp_path / "kept.png").axes) == 6
    assert len(simulate(zoo.rope(10), duration=0.01, keep=["q"]).plot().axes) == 1
    whole = simulate(model, duration=0.3, dt=0.01)
    np.testing.assert_allclose(kept.motion().v[1:-1], whole.v[1:-1], rtol=0, atol=0.05)  # differences of rows, O(dt)
    assert kept.view(tmp_path / "page.html").exists()
    with pytest.raises(ArgumentError, match="'q' to keep"):
        simulate(model, duration=0.1, keep=["q.arm"]).view(tmp_path / "page.html")


def test_a_constant_rate_is_found_again_from_configurations():
    """In all rows, the first and the last among them; with quaternions, at uneven times."""
    model = zoo.random_tree(9, 1)
    t, v = np.cumsum([0.0, 0.1, 0.3, 0.02, 0.2]), np.random.default_rng(0).normal(size=model.nv)
    q = model.integrate(model.random_configuration(0), t[:, None] * v)
    found = Trajectory(model, t, q).motion()
    np.testing.assert_allclose(found.v, np.tile(v, (5, 1)), rtol=0, atol=1e-12)  # rounding over steps of 0.02 s


def test_the_command_keeps_and_resumes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = "simulate stanford --duration 0.5 --keep q,pose.link6,energy --every 2 --file a.traj --csv a.csv"
    assert main(line.split()) == 0
    assert "pose.link6.x" in capsys.readouterr().out
    whole = Trajectory.load("a.traj")
    cut(tmp_path / "a.traj", random.Random(2))
    assert main(["simulate", "--resume", "a.traj", "--quiet"]) == 0
    np.testing.assert_array_equal(Trajectory.load("a.traj").values, whole.values)
    assert main(["view", "a.traj", "--out", "a.html"]) == 0
    assert main(["simulate", "stanford", "--keep", "nothing"]) == 1
    assert main(["simulate", "--resume", "a.traj", "--keep", "q"]) == 1


def test_a_stiff_servo_looks_right_from_a_file(tmp_path):
    """Sparse rows of a servo that is far faster than they are: between them, quintics would overshoot."""
    model = zoo.panda()
    goal = np.full(model.nv, 0.3)
    simulate(model, duration=0.5, dt=0.25, forces=PD(goal, 1e6, 2e4), rtol=1e-4, file=tmp_path / "run.traj")
    q = Trajectory.load(tmp_path / "run.traj").at(np.linspace(0, 0.5, 500))[0]
    assert q.max() < 0.31
    assert q.min() > -0.01


def test_the_columns_of_a_joint_are_not_those_of_a_joint_whose_name_goes_on():
    b = Model.builder()
    b.add("arm", joint="spherical", mass=1.0, inertia=(1, 1, 1))
    b.add("arm.hand", parent="arm", joint="universal", p=(0, 0, -1), mass=1.0, inertia=(1, 1, 1))
    run = simulate(b.build(), duration=0.01, keep=["q", "pose.arm", "pose.arm.hand"])
    assert run["q"].shape[1] == 6
    assert run["q.arm"].shape[1] == 4
    assert run["q.arm.hand"].shape[1] == 2
    assert run["pose.arm"].shape[1] == run["pose.arm.hand"].shape[1] == 7
    assert run["pose"].shape[1] == 14


def test_the_keywords_of_a_simulation_are_the_fields_of_its_parts():
    parts = [field.name for kind in (Problem, Settings, RowOptions) for field in fields(kind)]
    assert list(inspect.signature(Simulation).parameters) == ["model", "q0", "v0", "method", "t0", "about", *parts]
    with pytest.raises(TypeError, match="unexpected keyword argument 'rtoll'"):
        simulate(machine(), rtoll=1e-3)
