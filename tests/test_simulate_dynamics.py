"""simulate(..., dynamics=...): the same motion by every method of forward dynamics."""

import numpy as np
import pytest

import torsor as ts
from torsor import zoo
from torsor.cli import main
from torsor.dynamics.methods import METHODS
from torsor.motion.motion import DYNAMICS

START = [0, np.pi / 2, 0, 0, 0, 0]
# A run of 1 s multiplies the differences of rounding (1e-15 per evaluation) by a few powers of ten at most.
SAME = 1e-12


@pytest.mark.parametrize("dynamics", [name for name in DYNAMICS if name != "segments"])
def test_the_stanford_arm_falls_the_same_way_by_every_method(dynamics):
    options = {"method": "rkf45", "rtol": 1e-9, "duration": 1.0}
    expected = ts.simulate(zoo.stanford(), START, **options)
    run = ts.simulate(zoo.stanford(), START, dynamics=dynamics, **options)
    assert len(run) == len(expected)
    np.testing.assert_allclose(run.q[-1], expected.q[-1], rtol=SAME, atol=SAME)
    assert run.about["dynamics"] == dynamics


@pytest.mark.parametrize("dynamics", ["segments", "composite", "udut"])
def test_a_longer_chain_falls_the_same_way(dynamics):
    """Twenty freedoms: more than straight-line code through the mass matrix is made for."""
    model = zoo.random_chain(20, 1)
    expected, run = (ts.simulate(model, duration=0.05, dynamics=name) for name in ("articulated", dynamics))
    np.testing.assert_allclose(run.q[-1], expected.q[-1], rtol=1e-9, atol=1e-9)


def test_forces_written_in_python_and_quaternions_go_by_every_method():
    model = zoo.random_tree(4, 2, joints=["revolute", "spherical"])

    def push(t, q, v):
        return np.cos(t) - 0.1 * v

    runs = [ts.simulate(model, duration=0.05, forces=push, dynamics=name) for name in ("auto", "udut", "fixman")]
    for run in runs[1:]:
        np.testing.assert_allclose(run.q[-1], runs[0].q[-1], rtol=1e-9, atol=1e-9)


def test_rotors_slow_the_joints_by_every_compiled_method():
    options = {"method": "rkf45", "rtol": 1e-9, "duration": 0.5, "armature": 0.1}
    runs = [ts.simulate(zoo.stanford(), START, dynamics=name, **options) for name in METHODS["forward_dynamics"]]
    for run in runs[1:]:
        np.testing.assert_allclose(run.q[-1], runs[0].q[-1], rtol=SAME, atol=SAME)


def test_the_method_of_a_run_is_recorded_and_kept_when_it_is_resumed(tmp_path):
    path = tmp_path / "run.torsor"
    options = {"dynamics": "udut", "dt": 0.01}
    simulation = ts.Simulation(zoo.stanford(), START, file=path, chunk=5, **options)
    simulation.run(0.2)
    again = ts.Simulation.resume(path)
    assert again.motion.dynamics == "udut"
    whole = ts.simulate(zoo.stanford(), START, duration=0.4, **options)
    # a step ends at 0.2 s in one run and not in the other: they agree within ten times the tolerance of the steps
    np.testing.assert_allclose(again.run(0.4).q[-1], whole.q[-1], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dynamics": "sorcery"}, "unknown dynamics 'sorcery'; choose one of: auto, articulated"),
        ({"dynamics": None}, "unknown dynamics None"),
        ({"dynamics": "fixman", "armature": 0.1}, "knows no rotors.*armature of 0.1"),
        ({"dynamics": "udut", "method": "verlet", "step": 0.01}, "'verlet' has sweeps of its own.*not 'udut'"),
        ({"dynamics": "segments"}, "segments.*12 or more bodies"),
    ],
)
def test_dynamics_that_cannot_be_are_refused(options, words):
    with pytest.raises(ts.TorsorError, match=words):
        ts.simulate(zoo.stanford(), duration=0.1, **options)


def test_the_command_takes_a_method(tmp_path):
    path = tmp_path / "fall.csv"
    line = ["simulate", "stanford", "--dynamics", "udut", "--duration", "0.1", "--csv", str(path), "--quiet"]
    assert main(line) == 0
    assert path.stat().st_size > 0
    assert main(["simulate", "polypeptide:5", "--dynamics", "fixman", "--duration", "0.1", "--quiet"]) == 0
