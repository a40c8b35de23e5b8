"""Trajectory files: crash-safe, checksummed, resumable to the last bit."""

import csv
import errno
import json
import random
import signal
import textwrap
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import processes
import pytest

import torsor
from torsor import (
    PD,
    ComputedTorque,
    Constant,
    Cycloid,
    External,
    Friction,
    Limits,
    Pull,
    Simulation,
    Spring,
    Table,
    Trajectory,
    simulate,
    zoo,
)
from torsor.errors import ArgumentError, ModelError
from torsor.model import Model
from torsor.motion.integrators import METHODS
from torsor.motion.recording import PREFIX, RecordingError

TOLERANCE = 1e-5  # of a whole run, with steps to rtol = 1e-6
FIELDS = ("t", "q", "v", "a", "tau")


def assert_same_bits(a, b):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def options_of(method):
    return {"method": method, "step": None if METHODS[method].adaptive else 0.01, "chunk": 16}


@pytest.fixture(params=["plain", "quaternions"])
def model(request):
    if request.param == "plain":
        return zoo.point_chain(2)
    b = Model.builder()
    b.add("ball", joint="spherical", mass=1.0, com=(0.1, 0.0, -0.3), inertia=(0.02, 0.03, 0.04))
    b.add("arm", parent="ball", p=(0, 0, -0.5), axis=(0, 1, 0), mass=0.5, com=(0.2, 0, 0), inertia=(0.01, 0.01, 0.02))
    return b.build()


# ---- resume ----


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dt", [None, 0.007])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_cut_anywhere_and_resumed_is_the_uninterrupted_one(method, dt, model, tmp_path):
    v0 = np.linspace(0.5, -1.0, model.nv)
    options = options_of(method) | {"dt": dt, "max_step": 0.02}
    whole = simulate(model, None, v0, 2.0, **options)
    simulate(model, None, v0, 2.0, file=tmp_path / "run.traj", **options)
    content = (tmp_path / "run.traj").read_bytes()
    rng = random.Random(5)
    for _ in range(3):
        cut = tmp_path / "cut.traj"
        first_chunk = content.index(b"ROWS")
        cut.write_bytes(content[: rng.randrange(first_chunk, len(content))])
        resumed = Simulation.resume(cut, model=model).run(2.0)
        assert_same_bits(resumed, whole)
        assert_same_bits(Trajectory.load(cut), whole)


def test_a_file_cut_at_any_byte_opens_with_its_whole_chunks(tmp_path):
    run = simulate(zoo.point_chain(1), [0.5], duration=0.6, dt=0.05, chunk=4, file=tmp_path / "run.traj")
    content = (tmp_path / "run.traj").read_bytes()
    cut = tmp_path / "cut.traj"
    rows = []
    for end in range(content.index(b"ROWS"), len(content) + 1):
        cut.write_bytes(content[:end])
        found = Trajectory.load(cut)
        rows.append(len(found))
        np.testing.assert_array_equal(found.q, run.q[: len(found)])
    assert rows == sorted(rows)
    assert rows[0] == 0
    assert rows[-1] == len(run)


RUN = """
    import sys
    from torsor import zoo
    from torsor import simulate
    simulate(zoo.point_chain(2), [0.4, 0.3], duration=40.0, dt=0.002, chunk=32, file=sys.argv[1])
"""


def start(script, *arguments):
    return processes.start("-c", textwrap.dedent(script), *arguments)


def larger(path, size):
    return path.stat().st_size > size


@processes.posix
@pytest.mark.parametrize("kills", [7, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments_loses_nothing(tmp_path, kills):
    """One run, killed again and again and resumed each time, ends as if nothing had happened."""
    whole = simulate(zoo.point_chain(2), [0.4, 0.3], duration=40.0, dt=0.002, chunk=32)
    rng = random.Random(kills)
    path = tmp_path / "run.traj"
    killed, before = 0, 0
    process = start(RUN, path)
    resume = RUN.replace("simulate(zoo", "Simulation.resume(sys.argv[1]).run(40.0) #").replace(
        "import simulate", "import Simulation"
    )
    while killed < kills:
        processes.wait_until(path.exists, process)
        processes.wait_until(partial(larger, path, path.stat().st_size), process)  # it is at work
        time.sleep(rng.uniform(0.0, 0.03))
        processes.killed(process)
        assert process.returncode in (-signal.SIGKILL, 0)
        found = Trajectory.load(path)
        assert len(found) >= before
        np.testing.assert_array_equal(found.q, whole.q[: len(found)])
        before, killed = len(found), killed + 1
        if killed < kills:
            process = start(resume, path)
    assert_same_bits(Simulation.resume(path).run(40.0), whole)


def test_a_file_whose_first_chunk_never_came_resumes_from_the_start(tmp_path):
    path = tmp_path / "run.traj"
    whole = simulate(zoo.point_chain(2), [0.4, 0.3], duration=1.0, file=path)
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"ROWS")])
    assert len(Trajectory.load(path)) == 0
    assert_same_bits(Simulation.resume(path).run(1.0), whole)


def test_an_error_in_a_force_leaves_a_resumable_run(tmp_path):
    armed = [True]

    def force(t, q, v):
        if armed[0] and t > 0.5:
            raise KeyboardInterrupt
        return np.zeros(2)

    model, path = zoo.point_chain(2), tmp_path / "run.traj"
    options = {"forces": force, "chunk": 8}
    with pytest.raises(KeyboardInterrupt):
        simulate(model, [0.4, 0.3], duration=1.0, file=path, **options)
    armed[0] = False
    assert_same_bits(
        Simulation.resume(path, forces=force).run(1.0), simulate(model, [0.4, 0.3], duration=1.0, **options)
    )


def test_resume_goes_on_beyond_the_old_end(tmp_path):
    path = tmp_path / "run.traj"
    simulate(zoo.point_chain(1), [0.5], duration=1.0, file=path)
    longer = Simulation.resume(path).run(2.0)
    assert longer.t[-1] == 2.0
    assert (np.diff(longer.t) > 0).all()


# ---- two runs, one file ----

STEPS = {"method": "verlet", "step": 1 / 64, "chunk": 8}  # ends of runs are steps of longer ones


def test_of_two_resumes_the_later_one_is_refused_and_loses_nothing(tmp_path):
    path = tmp_path / "run.traj"
    whole = simulate(zoo.point_chain(2), [0.4, 0.3], duration=4.0, **STEPS)
    simulate(zoo.point_chain(2), [0.4, 0.3], duration=1.0, file=path, **STEPS)
    path.write_bytes(path.read_bytes()[:-7])  # cut off while it was written
    first, second = Simulation.resume(path), Simulation.resume(path)
    first.run(2.0)
    content = path.read_bytes()
    with pytest.raises(RecordingError, match=r"another run has changed it \(\d+ bytes instead of \d+\); nothing was"):
        second.run(3.0)
    assert path.read_bytes() == content
    first.run(3.0)
    assert_same_bits(Simulation.resume(path).run(4.0), whole)
    assert_same_bits(Trajectory.load(path), whole)


LOCK = """
    import sys, time
    from torsor.files import locked
    with open(sys.argv[1], "r+b") as file, locked(file):
        print("locked", flush=True)
        time.sleep(600)
"""


def test_a_file_that_another_process_writes_to_is_refused_until_that_process_is_gone(tmp_path):
    path = tmp_path / "run.traj"
    whole = simulate(zoo.point_chain(1), [0.5], duration=2.0, **STEPS)
    simulate(zoo.point_chain(1), [0.5], duration=1.0, file=path, **STEPS)
    content, run = path.read_bytes(), Simulation.resume(path)
    holder = start(LOCK, path)
    try:
        assert processes.line_of(holder) == "locked\n"
        with pytest.raises(RecordingError, match="another run is writing to it; nothing was written"):
            run.run(2.0)
        assert path.read_bytes() == content
    finally:
        processes.killed(holder)  # with -9: it cannot unlock anything
    assert_same_bits(Simulation.resume(path).run(2.0), whole)


def test_where_files_have_no_locks_runs_are_recorded_all_the_same(tmp_path, monkeypatch):
    def unknown(file, how):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", unknown)
    run = simulate(zoo.point_chain(1), [0.5], duration=1.0, file=tmp_path / "run.traj")
    assert_same_bits(Trajectory.load(tmp_path / "run.traj"), run)


def test_a_write_that_is_interrupted_leaves_a_run_that_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "run.traj"
    whole = simulate(zoo.point_chain(1), [0.5], duration=2.0, chunk=8)
    run = Simulation(zoo.point_chain(1), [0.5], chunk=8, file=path)

    calls = []

    def interrupted(handle):
        calls.append(handle)
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.run(2.0)
    content = path.read_bytes()
    assert_same_bits(Simulation.resume(path).run(2.0), whole)
    path.write_bytes(content)
    assert_same_bits(run.run(2.0), whole)
    assert_same_bits(Trajectory.load(path), whole)


# ---- refusals ----


def test_wrong_model_on_resume_is_named(tmp_path):
    path = tmp_path / "run.traj"
    simulate(zoo.point_chain(2), duration=0.5, file=path)
    before = path.read_bytes()
    with pytest.raises(ModelError, match=r"point_chain.*stanford"):
        Simulation.resume(path, model=zoo.stanford())
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["damping", "effort"])
def test_another_joint_on_resume_is_named(tmp_path, name):
    path, model = tmp_path / "run.traj", zoo.point_chain(1)
    simulate(model, duration=0.5, file=path)
    with pytest.raises(ModelError, match=f"another {name}"):
        Simulation.resume(path, model=replace(model, **{name: 2.0}))


def test_other_forces_on_resume_are_named(tmp_path):
    path = tmp_path / "run.traj"
    simulate(zoo.point_chain(1), duration=0.5, file=path, forces=Constant([1.0]))
    with pytest.raises(ArgumentError, match="Constant"):
        Simulation.resume(path)


def test_an_existing_file_is_not_overwritten(tmp_path):
    path = tmp_path / "run.traj"
    path.write_text("precious")
    with pytest.raises(RecordingError, match="exists"):
        simulate(zoo.point_chain(1), duration=0.5, file=path)
    assert path.read_text() == "precious"


def test_a_folder_that_is_not_there_is_reported_before_the_work(tmp_path):
    with pytest.raises(RecordingError, match="cannot be written"):
        simulate(zoo.point_chain(1), duration=1e9, file=tmp_path / "nowhere" / "run.traj")


def test_a_run_that_cannot_fit_is_reported_before_the_work(tmp_path):
    with pytest.raises(RecordingError, match=r"MB are free"):
        simulate(zoo.point_chain(1), duration=1e12, dt=1e-3, file=tmp_path / "run.traj")
    assert not list(tmp_path.iterdir())


def test_what_is_not_a_trajectory_is_refused(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_text("Dear colleague")
    with pytest.raises(RecordingError, match="not a torsor trajectory"):
        Trajectory.load(path)
    with pytest.raises(RecordingError, match="cannot be read"):
        Trajectory.load(tmp_path / "missing.traj")


@processes.posix
def test_a_full_disk_loses_nothing_already_written(tmp_path):
    """The limit on the size of files stands in for the disk; room made, the run goes on to the same bits."""
    path = tmp_path / "run.traj"
    limit = 40_000
    script = f"""
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        {RUN}
    """
    process = start(textwrap.dedent(script.replace(RUN, textwrap.indent(textwrap.dedent(RUN), " " * 8))), path)
    _, words = process.communicate(timeout=processes.DEADLINE)
    assert process.returncode == 1
    assert "cannot be written any further" in words
    assert path.stat().st_size <= limit
    whole = simulate(zoo.point_chain(2), [0.4, 0.3], duration=40.0, dt=0.002, chunk=32)
    found = Trajectory.load(path)
    assert len(found) > 0
    np.testing.assert_array_equal(found.q, whole.q[: len(found)])
    assert_same_bits(Simulation.resume(path).run(40.0), whole)


@pytest.mark.parametrize("where", ["payload", "beginning"])
def test_a_damaged_chunk_is_reported_and_computed_again(where, tmp_path):
    path = tmp_path / "run.traj"
    whole = simulate(zoo.point_chain(2), [0.4, 0.3], duration=2.0, chunk=8, file=path)
    content = bytearray(path.read_bytes())
    third = [i for i in range(len(content)) if content[i : i + 4] == b"ROWS"][2]
    content[third + (PREFIX + 200 if where == "payload" else 5)] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(RecordingError, match="chunk 2"):
        Trajectory.load(path)
    sound = Trajectory.load(path, damaged=True)
    assert 0 < len(sound) < len(whole)
    np.testing.assert_array_equal(sound.q, whole.q[: len(sound)])
    assert_same_bits(Simulation.resume(path).run(2.0), whole)
    assert Path(f"{path}.damaged").read_bytes() == content[third:]


# ---- other files ----


def test_save_and_load_are_inverse(tmp_path):
    run = simulate(zoo.stanford(), duration=0.5)
    run.save(tmp_path / "run.traj")
    back = Trajectory.load(tmp_path / "run.traj")
    assert_same_bits(run, back)
    assert back.model == run.model
    assert back.about == run.about
    assert [p.name for p in tmp_path.iterdir()] == ["run.traj"]


def test_csv_holds_every_bit(tmp_path):
    run = simulate(zoo.point_chain(2), [0.4, 0.3], duration=0.5)
    run.to_csv(tmp_path / "run.csv")
    with open(tmp_path / "run.csv", encoding="utf-8") as file:
        *lines, comment = file
    names, *rows = csv.reader(lines)
    told = json.loads(comment.removeprefix("# "))
    assert told["torsor"] == torsor.__version__
    assert told["method"] == "auto"
    assert names == run.names
    assert names[:3] == ["t", "q.link1", "q.link2"]
    np.testing.assert_array_equal(np.array(rows, dtype=float), run.table)


def test_parquet_holds_every_bit(tmp_path):
    from pyarrow import parquet

    run = simulate(zoo.point_chain(2), [0.4, 0.3], duration=0.5)
    run.to_parquet(tmp_path / "run.parquet")
    table = parquet.read_table(tmp_path / "run.parquet")
    assert table.column_names == run.names
    np.testing.assert_array_equal(table["v.link2"].to_numpy(), run.v[:, 1])


def forces_of(arm, factor):
    """One of each force that is made of numbers."""
    rest, reach = np.full(7, 0.1), Cycloid(np.full(7, 0.1), np.full(7, 0.2), factor)
    return {
        "tau of Constant": Constant(factor * rest), "kp of PD": PD(rest, factor, 1.0),
        "reference of ComputedTorque": ComputedTorque(reach), "viscous of Friction": Friction(0.1 * factor),
        "stiffness of Spring": Spring(factor), "upper of Limits": Limits(-3.0, 3.0 * factor),
        "tau of Table": Table(np.arange(50.0), np.full((50, 7), factor)),
        "wrenches of External": External(np.full((7, 6), factor)),
        "force of Pull": Pull("link7", (int(factor), 0, 0)),
    }  # fmt: skip


def test_a_resumed_run_has_forces_of_the_same_numbers(tmp_path):
    """Their names alone would let a run go on under other forces, without a word."""
    arm = zoo.panda()
    one, same, other = (forces_of(arm, factor) for factor in (1.0, 1.0, 2.0))
    path = tmp_path / "run.traj"
    Simulation(arm, forces=[*one.values()], file=path).run(0.01)
    Simulation.resume(path, forces=[*same.values()]).run(0.02)
    for name in one:
        with pytest.raises(ArgumentError, match=f"another {name}"):
            Simulation.resume(path, forces=[*(one | {name: other[name]}).values()])
    told = Trajectory.load(path).about["force_options"]
    assert (told[1]["kp"], told[1]["reference"], told[8]["body"]) == (1.0, [0.1] * 7, "link7")


def test_a_run_that_recorded_no_row_yet_starts_from_the_same_bits(tmp_path):
    """Also where a quaternion that is normalised twice differs in its last bit."""
    model = zoo.random_tree(5, 85)
    rng = np.random.default_rng(0)
    for _ in range(20):
        path = tmp_path / "run.traj"
        q = model.integrate(model.neutral(), rng.normal(size=model.nv))
        whole = Simulation(model, q, file=path).run(0.02).q
        content = path.read_bytes()
        path.write_bytes(content[: content.index(b"ROWS")])
        np.testing.assert_array_equal(Simulation.resume(path).run(0.02).q, whole)
        path.unlink()


# ---- files of torsor 0.1 ----

OLD = Path(__file__).parent / "recordings"  # 0.1 s of two point masses from (0.4, 0.3), a row every 0.02 s


def old_forces():
    """The forces of `forces.traj`, as they are written now."""
    rest = np.array([0.1, -0.2])
    reach = Cycloid(rest, 2 * rest, 1.0)
    return [Constant(rest), PD(rest, 2.0, 1.0), Friction(0.1), Spring(1.0, rest, 0.1), Limits(-3.0, 3.0, 1e4, 1e2),
            Table([0.0, 0.05, 1.0], [[0.0, 0.1]] * 3), External(np.full((2, 6), 0.1)), Pull("link2", (0.1, 0, 0)),
            ComputedTorque(reach), PD(reach, 1.0, 0.1)]  # fmt: skip


OLD_RUNS = {
    "forces": {"forces": old_forces(), "method": "dopri5"},
    "kept": {"keep": ["q.link1", "energy", "pose.link2"]},
    "euler": {"method": "symplectic-euler", "step": 0.02},
    "implicit": {"method": "implicit-euler", "step": 0.02},
}


@pytest.mark.parametrize("name", OLD_RUNS)
def test_recordings_of_an_older_version_open_and_go_on(name, tmp_path):
    path, options = tmp_path / "run.traj", OLD_RUNS[name]
    path.write_bytes((OLD / f"{name}.traj").read_bytes())
    old = Trajectory.load(path)
    spacing = {} if "step" in options else {"dt": 0.02}
    whole = simulate(zoo.point_chain(2), [0.4, 0.3], duration=0.2, **spacing, **options)
    went_on = Simulation.resume(path, forces=options.get("forces", ())).run(0.2)
    for run in (old, went_on):  # steps of the old run ended at 0.1 s: the same within the tolerance of steps
        for name in ("t", "values") if "keep" in options else ("t", "q", "v"):
            mine, other = getattr(run, name), getattr(whole, name)
            np.testing.assert_allclose(mine, other[: len(run)], rtol=0, atol=TOLERANCE * np.abs(other).max())
    np.testing.assert_array_equal(Trajectory.load(path).table, went_on.table)


@pytest.mark.parametrize("k", range(10))
def test_other_forces_than_those_of_an_older_recording_are_named(k, tmp_path):
    path, forces = tmp_path / "run.traj", old_forces()
    path.write_bytes((OLD / "forces.traj").read_bytes())
    field = next(name for name in ("tau", "reference", "viscous", "rest", "upper", "force", "wrenches") if
                 hasattr(forces[k], name))  # fmt: skip
    value = getattr(forces[k], field)
    other = Cycloid(np.zeros(2), np.ones(2), 1.0) if callable(value) else 2 * np.asarray(value)
    forces[k] = replace(forces[k], **{field: other})
    with pytest.raises(ArgumentError, match=f"another {field} of {type(forces[k]).__name__}"):
        Simulation.resume(path, forces=forces)
