"""The command `torsor`: what it prints, what it writes, and the codes it exits with."""

import csv
import json
import logging
import signal
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np
import processes
import pytest
from peers.installed import peer

import torsor
from torsor import Trajectory, simulate, zoo
from torsor.cli import FAILED, INTERRUPTED, WRONG, main
from torsor.files import write_whole
from torsor.model.extras import Extras
from torsor.papers import saha2001

PNG = b"\x89PNG"


def command(*arguments, **options):
    return processes.start("-W", "error", "-m", "torsor.cli", *arguments, **options)


def test_one_line_from_install_to_picture(tmp_path, capsys):
    picture = tmp_path / "stanford.png"
    assert main(["simulate", "stanford", "--free", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(PNG)
    said = capsys.readouterr().out
    assert "471.7" in said  # b_3 after 10 s, from the paper's start
    assert "87.51" in said  # degrees: 1.527 rad


def test_the_installed_module_runs_as_a_program():
    process = command("simulate", "planar3", "--duration", "0.5")
    said, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    assert complaints == ""
    assert "planar3" in said


@pytest.mark.parametrize("words", [["--help"], ["simulate", "--help"], ["papers", "--help"], ["bench", "--help"]])
def test_help(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0
    assert "torsor" in capsys.readouterr().out


def test_no_words_show_the_commands(capsys):
    assert main([]) == WRONG
    shown = capsys.readouterr()
    assert not shown.out
    assert "simulate" in shown.err


def test_info_calls_an_effort_of_zero_unknown(tmp_path, capsys):
    path = tmp_path / "arm.toml"
    torsor.save(torsor.Model.chain(n=2, mass=1.0, inertia=(1, 1, 1), effort=[0.0, 3.0], speed=0.0), path)
    assert main(["info", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "effort 0 (unknown), speed 0 (unknown)" in said
    assert "effort 3, speed 0 (unknown)" in said


def test_the_forced_runs_of_saha_by_the_command(tmp_path, capsys):
    """Figure 6: torques alone, tabulated every 0.01 s; the same rows as those of `torsor papers`."""
    goal = "60deg,60deg,0.1,60deg,60deg,60deg"
    words = ["simulate", "stanford", "--track", goal, "--method", "rkf45", "--atol", "1e-6", "--dt", "0.01",
             "--dynamics", "udut", "--quiet"]  # fmt: skip
    for name, more in (("run", ["--feedforward", "0.01"]), ("kept", [])):
        assert main([*words, *more, "--csv", str(tmp_path / f"{name}.csv")]) == 0
    rows, kept = (np.loadtxt(tmp_path / f"{name}.csv", delimiter=",", skiprows=1) for name in ("run", "kept"))
    np.testing.assert_allclose(rows[:, 1:7], saha2001.forced("stanford").q, rtol=0, atol=1e-9)
    assert np.abs(rows[-1, 1:7] - kept[-1, 1:7]).max() > 1.0  # with computed torque the arm stays on its path
    assert main(["simulate", "stanford", "--feedforward", "0.01", "--quiet"]) == FAILED
    assert "by --track" in capsys.readouterr().err
    assert main([*words, "--feedforward", "-1"]) == FAILED
    assert "--feedforward" in capsys.readouterr().err


def test_torque_track_and_tables(tmp_path):
    csv = tmp_path / "run.csv"
    track = [
        "simulate",
        "planar3",
        "--duration",
        "1",
        "--dt",
        "0.002",
        "--track",
        "30deg,0.2,-0.1",
        "--csv",
        str(csv),
        "--quiet",
    ]
    assert main(track) == 0
    rows = np.loadtxt(csv, delimiter=",", skiprows=1)
    np.testing.assert_allclose(rows[-1, 1:4], [np.pi / 6, 0.2, -0.1], rtol=0, atol=1e-5)
    table = tmp_path / "torque.csv"
    torques = np.column_stack([rows[:, 0], rows[:, 10:13]])
    np.savetxt(table, torques, delimiter=",", header="t,one,two,three", comments="")
    again = tmp_path / "again.csv"
    forced = ["simulate", "planar3", "--duration", "1", "--torque", str(table), "--csv", str(again), "--quiet"]
    assert main(forced) == 0
    np.testing.assert_allclose(np.loadtxt(again, delimiter=",", skiprows=1)[-1, 1:4], rows[-1, 1:4], rtol=0, atol=1e-3)


def test_a_model_file_and_a_family(tmp_path):
    torsor.save(zoo.planar3(), tmp_path / "arm.toml")
    assert main(["simulate", str(tmp_path / "arm.toml"), "--duration", "0.1", "--quiet"]) == 0
    assert main(["simulate", "rope:5", "--duration", "0.1", "--q0", ",".join(["0.1"] * 10), "--quiet"]) == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["simulate", "nosuch"], "nosuch"),
        (["simulate", "nosuch.toml"], "no model file"),
        (["simulate"], "name a model"),
        (["simulate", "stanford", "--duration", "-1"], "duration"),
        (["simulate", "stanford", "--q0", "1,2"], "2 numbers"),
        (["simulate", "stanford", "--q0", "a,b"], "not a list of numbers"),
        (["simulate", "stanford", "--method", "verlet"], "step"),
        (["simulate", "stanford", "--torque", "missing.csv"], "missing.csv"),
        (["simulate", "planar3", "--duration", "0.1", "--plot", "x.nosuch"], "cannot be written"),
        (["simulate", "--resume", "missing.traj"], "missing.traj"),
        (["view", "missing.traj"], "missing.traj"),
        (["info", "stanford:7"], "take a length"),
        (["info", "rope:-1"], "'-1' is no length, like rope:50"),
        (["papers", "Newton"], "Newton"),
    ],
)
def test_what_is_wrong_is_said_on_stderr_with_code_1(words, reason, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == FAILED
    complaint = capsys.readouterr().err
    assert reason in complaint.replace("\n", " ")
    assert "Traceback" not in complaint


def test_the_outcome_as_json_and_events_as_json_lines(tmp_path, capsys):
    log, record = tmp_path / "log", tmp_path / "run.torsor"
    words = ["simulate", "panda", "--duration", "0.1", "--json", "--log", str(log), "--file", str(record)]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    run = Trajectory.load(record)
    assert (told["model"], told["rows"], told["t"]) == (run.model.name, len(run), 0.1)
    assert told["values"]["energy, J"]["last"] == run.energy[-1]
    assert told["files"] == {"file": str(record)}
    assert {"torsor", "numpy", "python", "date"} <= told.keys()
    assert main(["simulate", "nobody", "--log", str(log)]) == 1
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    begun, failed = ["command begins", "simulation begins", "simulation ends", "command ends"], "command fails"
    assert [line["event"] for line in lines] == [*begun, "command begins", failed]
    assert lines[0]["arguments"] == words
    assert lines[2]["evaluations"] == told["evaluations"]
    assert "nobody" in lines[-1]["reason"]
    assert logging.getLogger("torsor").level == logging.NOTSET


@pytest.mark.parametrize("words", [["--nonsense"], ["--v0=--"], ["--keep=--"]])
def test_an_unknown_option_is_code_2(capsys, words):
    with pytest.raises(SystemExit) as stop:
        main(["simulate", "stanford", *words])
    assert stop.value.code == 2
    assert words[0].split("=")[0] in capsys.readouterr().err


@processes.posix
def test_ctrl_c_leaves_a_run_that_resumes_to_the_same_bits(tmp_path, capsys):
    """Stopped in the middle, resumed with the command it names."""
    record, whole = tmp_path / "run.traj", tmp_path / "whole.traj"
    run = ["simulate", "puma_saha", "--duration", "50", "--dt", "0.001", "--no-gravity", "--v0", "1,1,1,1,1,1",
           "--viscous", "0.1", "--file"]  # fmt: skip
    # where the tests run in the background, Ctrl-C is ignored and so it would be here
    process = command(*run, record, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    processes.wait_until(lambda: record.exists() and record.stat().st_size > 20_000, process)
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, complaints
    assert "--resume" in complaints
    assert Trajectory.load(record).t[-1] < 50
    assert main(["simulate", "--resume", str(record), "--quiet"]) == 0
    assert main([*run, str(whole), "--quiet"]) == 0
    resumed, expected = Trajectory.load(record), Trajectory.load(whole)
    assert resumed.t[-1] == 50
    np.testing.assert_array_equal(resumed.q, expected.q)
    assert main([*run, str(record)]) == FAILED
    assert "exists" in capsys.readouterr().err


def test_resume_with_another_model_is_refused(tmp_path, capsys):
    record = tmp_path / "run.traj"
    assert main(["simulate", "planar3", "--duration", "0.1", "--file", str(record), "--quiet"]) == 0
    assert main(["simulate", "stanford", "--resume", str(record)]) == FAILED
    assert "planar3" in capsys.readouterr().err


def test_info_shows_the_tree_and_counts(capsys):
    assert main(["info", "stanford"]) == 0
    said = capsys.readouterr().out
    for word in ("6 bodies", "21.1 kg", "prismatic", "link6", "forward_dynamics"):
        assert word in said
    assert main(["info", "rope:100"]) == 0
    assert "and 92 more" in capsys.readouterr().out


@pytest.mark.slow  # test_papers.py looks at every row
def test_papers_agree_and_are_drawn(tmp_path, capsys):
    """One paper here; all of them in tests/test_papers.py."""
    assert main(["papers", "Saha", "--figures", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "no longer: " not in said
    for word in ("agrees", "misprint", "conflicts", "not printed", "0 no longer hold"):
        assert word in said
    pictures = sorted(tmp_path.glob("saha2001_*.png"))
    assert len(pictures) == 8
    assert all(picture.read_bytes().startswith(PNG) for picture in pictures)
    assert all(picture.with_suffix(".csv").read_text().count("\n") > 5 for picture in pictures)


@pytest.fixture
def short_paper(monkeypatch):
    """Two rows of one paper: one agrees, one no longer does."""
    from torsor.papers import featherstone1999

    monkeypatch.setattr(featherstone1999, "EXPONENTS", (6, 8))
    monkeypatch.setattr(featherstone1999, "ENDS", 4)
    monkeypatch.setattr(featherstone1999, "PARTS", featherstone1999.PARTS[-1:])


def test_a_paper_that_differs_fails_the_command(capsys, short_paper):
    assert main(["papers", "Featherstone"]) == FAILED
    said = capsys.readouterr().out
    assert "1 no longer hold" in said
    assert "operations on the longest path" in said  # not cut at 80 columns
    assert "no longer: agrees" in said


@pytest.mark.parametrize("paper", ["Saha", "Lee", "Ploen", pytest.param("Featherstone", marks=pytest.mark.slow)])
def test_identities_of_papers_with_fifty_digits(paper, capsys):
    assert main(["papers", paper, "--digits", "50", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(row["holds"] for row in found)
    apart = [float(row["difference"]) for row in found if row["computed"] == "equal"]
    assert len(apart) > 20
    assert max(apart) < 1e-45


def test_identities_with_few_digits(capsys):
    assert main(["papers", "Lee & Chirikjian", "--digits", "20"]) == 0
    assert "point masses" in capsys.readouterr().out
    assert main(["papers", "--digits", "3"]) == FAILED
    assert "--digits" in capsys.readouterr().err


def test_rows_of_papers_as_data(capsys, short_paper):
    assert main(["papers", "Featherstone", "--json"]) == FAILED
    found = json.loads(capsys.readouterr().out)
    assert [row["holds"] for row in found] == [False, True, True]
    assert set(found[0]) == {
        "paper", "place", "quantity", "printed", "computed", "difference", "verdict", "holds"
    }  # fmt: skip
    assert main(["papers", "Featherstone", "--csv"]) == FAILED
    table = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["quantity"] for row in table] == [row["quantity"] for row in found]


def test_bench_compares_with_what_is_installed(capsys):
    assert main(["bench", "--short", "--states", "64"]) == 0
    said = capsys.readouterr().out
    assert "torsor" in said
    assert "ns per state" in said


def test_view_writes_a_page(tmp_path, capsys):
    simulate(zoo.planar3(), duration=0.2).save(tmp_path / "run.traj")
    assert main(["view", str(tmp_path / "run.traj"), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_lists_may_begin_with_a_minus_sign(tmp_path):
    csv = tmp_path / "run.csv"
    assert main(["simulate", "point_chain:2", "--q0", "-1,0.5", "--duration", "0.1", "--csv", str(csv), "--quiet"]) == 0
    assert csv.read_text().splitlines()[1].startswith("0,-1,0.5")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--viscous", "-1"], "--viscous must be at least 0"),
        (["--coulomb", "nan"], "--coulomb"),
        (["--duration", "inf"], "--duration"),
        (["--method", "symplectic-euler", "--step", "-1"], "step must be greater than 0"),
        (["--csv", "nowhere/run.csv"], "there is no folder"),
        (["--plot", "nowhere/run.png"], "there is no folder"),
        (["--csv", "."], "it is a folder"),
        (["--file", "nowhere/run.traj"], "there is no folder"),
        (["--view", "."], "it is a folder"),
        (["--log", "nowhere/log"], "there is no folder"),
        (["--plot", "run.xyz"], "choose one of eps,"),
        (["--csv", "run", "--view", "./run"], "run is named twice, as --csv and as --view"),
        (["--csv", "run", "--file", "run"], "run is named twice, as --csv and as --file"),
        (["--csv", "table.csv", "--torque", "table.csv"], "table.csv is named twice, as --csv and as --torque"),
        (["--keep", "q.link1,energy", "--view", "run.html"], "did not keep all of q: add 'q' to keep"),
        (["--q0", "-inf,0,0"], "q0 must be 3 finite numbers"),
        (["--step", "1e-3"], "finds its own steps"),
    ],
)
def test_wrong_options_are_named_before_the_run(words, reason, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torsor.Simulation, "run", lambda *_, **__: pytest.fail("it ran"))
    assert main(["simulate", "planar3", *words]) == FAILED
    assert reason in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("content", ["", "\n\n", "t,tau1,tau2,tau3\n"])
def test_a_table_of_torques_without_rows_is_refused(tmp_path, capsys, content):
    (tmp_path / "empty.csv").write_text(content)
    assert main(["simulate", "planar3", "--duration", "0.1", "--torque", str(tmp_path / "empty.csv")]) == FAILED
    assert "empty.csv holds no rows; a table of torques has" in " ".join(capsys.readouterr().err.split())


def test_states_are_given_by_name(tmp_path, capsys):
    model = zoo.planar3()
    keyframe = Extras(joint_names=("shoulder", "elbow", "wrist"), keyframes={"bent": (0.1, 0.2, 0.3)})
    torsor.save(model.with_extras(keyframe), tmp_path / "arm.toml")
    command = ["simulate", str(tmp_path / "arm.toml"), "--duration", "0.01", "--json"]
    for words, first in (
        (["--q0", "elbow=45deg,link3=-1"], [0.0, np.pi / 4, -1.0]),
        (["--q0", "bent"], [0.1, 0.2, 0.3]),
        (["--q0", "1,2,3", "--v0", "wrist=2", "--torque", "shoulder=0.5"], [1.0, 2.0, 3.0]),
    ):
        assert main([*command, *words]) == 0
        values = json.loads(capsys.readouterr().out)["values"]
        assert [values[f"q {name}"]["first"] for name in model.names] == first
    assert main([*command, "--q0", "knee=1"]) == FAILED
    assert "'knee=1' names nothing that there is; there are link1" in " ".join(capsys.readouterr().err.split())


def test_an_interrupted_sweep_says_what_is_done(tmp_path, capsys, monkeypatch):
    study = tmp_path / "study.toml"
    study.write_text('model = "planar3"\nn = 6\nduration = 0.01\nchunk = 2\n[vary]\nv0 = {normal = [0, 1]}\n')
    ensemble, done = torsor.ensemble, []

    def interrupted(**options):
        def progress(*counts):
            done.append(counts)
            raise KeyboardInterrupt

        return ensemble(**options | {"progress": progress})

    monkeypatch.setattr(torsor, "ensemble", interrupted)
    command = ["sweep", str(study), "--store", str(tmp_path / "runs.zarr")]
    assert main(command) == INTERRUPTED
    words = " ".join(capsys.readouterr().err.split())
    assert "2 of 6 members are done and kept" in words
    assert "--resume" in words
    monkeypatch.undo()
    assert main([*command, "--resume"]) == 0


@pytest.mark.slow
def test_a_sweep_starts_a_cluster_of_its_own(tmp_path, capsys):
    assert peer("distributed").Client
    study = tmp_path / "study.toml"
    study.write_text('model = "planar3"\nn = 6\nduration = 0.01\n[vary]\nv0 = {normal = [0, 1]}\n')
    assert main(["sweep", str(study), "--store", str(tmp_path / "runs.zarr"), "--dask"]) == 0
    assert "6 of 6 members done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--dask", "local"], "--dask local: no scheduler of Dask there, such as tcp://host:8786"),
        (["--dask", ""], "--dask : no scheduler of Dask there"),
        (["--workers", "0"], "--workers must be at least 1, not 0"),
    ],
)
def test_workers_that_are_not_there_are_refused(tmp_path, capsys, words, reason):
    if "--dask" in words:
        assert peer("distributed").Client
    study = tmp_path / "study.toml"
    study.write_text('model = "planar3"\nn = 2\nduration = 0.01\n[vary]\nv0 = {normal = [0, 1]}\n')
    assert main(["sweep", str(study), "--store", str(tmp_path / "runs.zarr"), *words]) == FAILED
    assert reason in " ".join(capsys.readouterr().err.split())


def test_a_resumed_run_takes_no_other_options(tmp_path, capsys):
    record = tmp_path / "run[red].traj"
    assert main(["simulate", "planar3", "--duration", "0.1", "--file", str(record), "--quiet"]) == 0
    assert main(["simulate", "--resume", str(record), "--method", "verlet", "--dt", "0.1"]) == FAILED
    assert "leave out --method, --dt" in " ".join(capsys.readouterr().err.split())
    usual = ["--dur", "10", "--method=auto", "--dynamics", "auto", "--every", "1"]  # also where they are the defaults
    assert main(["simulate", "--resume", str(record), *usual]) == FAILED
    assert "leave out --duration, --method, --dynamics, --every" in " ".join(capsys.readouterr().err.split())
    assert main(["simulate", "--resume", str(record)]) == 0
    assert "run[red].traj" in "".join(capsys.readouterr().out.split())


def test_a_motion_without_gravity_is_tracked_and_resumed(tmp_path):
    """The computed torques do not carry a weight that is not there, neither at first nor when the run goes on."""
    record = tmp_path / "run.traj"
    words = ["simulate", "planar3", "--track", "1,-1,0.5", "--no-gravity", "--duration", "0.5", "--quiet"]
    assert main([*words, "--file", str(record)]) == 0
    run = Trajectory.load(record)
    np.testing.assert_allclose(run.q[-1], [1, -1, 0.5], rtol=0, atol=1e-6)
    assert main(["simulate", "--resume", str(record), "--quiet"]) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_and_a_closed_pipe_are_no_tracebacks():
    words = ["-m", "torsor.cli", "simulate", "planar3", "--duration", "0.1"]
    with open("/dev/full", "w") as full:
        done = processes.run(*words, stdout=full)
    assert done.returncode == FAILED
    assert "Traceback" not in done.stderr
    done = processes.run(*words, "--quiet", "--csv", "/dev/full")
    assert done.returncode == FAILED
    assert "No space left" in done.stderr
    done = processes.run(*words, "--log", "/dev/full", "--plot", "/dev/full")
    assert done.returncode == FAILED
    assert "planar3: 0.1 s" in done.stdout
    assert done.stderr.count("No space left") == 2  # and no traceback of `logging`
    assert len(done.stderr.splitlines()) == 2
    pipe = processes.start(*words, "--quiet", "--csv", "/dev/stdout")
    pipe.stdout.close()
    assert "Traceback" not in pipe.stderr.read()
    pipe.stderr.close()
    assert pipe.wait(processes.DEADLINE) == FAILED


def test_what_cannot_be_written_keeps_nothing_else_from_being_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torsor.view.style.write_whole", lambda path, _: write_whole(tmp_path, b""))  # a folder
    words = ["--duration", "0.1", "--plot", str(tmp_path / "a"), "--csv", str(tmp_path / "a.csv"), "--json"]
    assert main(["simulate", "planar3", *words]) == FAILED
    said = capsys.readouterr()
    assert "cannot be written" in said.err
    assert json.loads(said.out)["files"] == {"csv": str(tmp_path / "a.csv")}
    assert (tmp_path / "a.csv").exists()


def test_names_are_shown_as_they_are_on_any_terminal(capsys, monkeypatch):
    """Colons are no emoji, and letters that the terminal does not have are no tracebacks."""
    assert main(["info", "rope:-1"]) == FAILED
    assert capsys.readouterr().err.startswith("torsor: rope:-1: '-1' is no length")
    plain = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stderr", plain)
    assert main(["info", "\u00fc\udcff.toml"]) == FAILED
    assert b"no model file \\xfc\\udcff.toml" in plain.buffer.getvalue()


def test_names_of_benchmarks_are_not_ignored(capsys):
    assert main(["bench", "nosuch", "--short"]) == FAILED
    assert "nosuch" in capsys.readouterr().err


def test_info_of_a_very_long_machine(capsys):
    """No n x n matrix is counted, and no more than a few of its bodies are shown."""
    assert main(["info", "rope:100000"]) == 0
    said = capsys.readouterr().out
    assert "100000 bodies" in said
    assert "and 99992 more" in said
    assert "mass_matrix" not in said


@pytest.mark.parametrize(
    ("words", "drifts"),
    [
        (["panda", "--free", "--duration", "10"], False),
        (["panda", "--free", "--duration", "10", "--rtol", "1e-2"], True),
        (["planar3", "--free", "--duration", "5", "--method", "rk4", "--step", "0.05"], True),
        (["planar3", "--duration", "20", "--rtol", "1e-2", "--viscous", "0.1"], False),  # friction takes energy
    ],
)
def test_energy_that_drifts_is_told(capsys, words, drifts):
    assert main(["simulate", *words]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert ("nothing acts on this machine, but its energy changed by" in said) is drifts
    assert not drifts or "take --rtol 1e-9" in said or "take a shorter --step" in said
