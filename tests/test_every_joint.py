"""A new joint is right everywhere, or fails here: every method of every function on chains of every joint type."""

from functools import partial

import numpy as np
import pytest
from machines import ARRAY_FUNCTIONS, difference
from peers import assert_close

import torsor as ts
from torsor import zoo
from torsor.dynamics.functions import ALGORITHMS
from torsor.dynamics.methods import METHODS
from torsor.model.joints import JOINTS
from torsor.motion.integrators import METHODS as INTEGRATORS
from torsor.outputs import Path

ROUNDING = 1e-9  # six bodies in a row on joints of one type are badly conditioned
FREE_JOINTS = 3  # bodies in a row on free joints

each_joint = pytest.mark.parametrize("joint", JOINTS, ids=lambda joint: joint.name)


def chain(joint, n=6, seed=1):
    model = zoo.random_chain(n, seed, joints=(joint.name,))
    rng = np.random.default_rng(seed)
    return model, model.random_configuration(rng), rng.normal(size=model.nv), rng.normal(size=model.nv)


@pytest.mark.thinned(2)
@each_joint
def test_every_method_of_forward_dynamics(joint):
    model, q, v, tau = chain(joint, n=FREE_JOINTS if joint.nv == 6 else 6)
    expected = ts.forward_dynamics(model, *(x.astype(np.longdouble) for x in (q, v, tau))).astype(float)
    for method in (*METHODS["forward_dynamics"], "fixman", "constraint-force"):
        assert difference(ts.forward_dynamics(model, q, v, tau, method=method), expected) < ROUNDING, method
    back = ts.inverse_dynamics(model, q, v, expected)
    assert difference(back, tau, scale=ts.bias_forces(model, q, v)) < ROUNDING


@pytest.mark.thinned(2)
@each_joint
def test_every_method_of_the_mass_matrix(joint):
    model, q, _, b = chain(joint, n=3)
    M = ts.mass_matrix(model, q)
    for method in METHODS["inverse_mass_matrix"]:
        assert_close(model, ts.inverse_mass_matrix(model, q, method=method) @ M, np.eye(model.nv), ROUNDING)
    assert_close(model, ts.inverse_mass_matrix(model, q, method="fixman") @ M, np.eye(model.nv), ROUNDING)
    for method in (*METHODS["mass_solve"], "fixman", "constraint-force"):
        assert difference(M @ ts.mass_solve(model, q, b, method=method), b) < ROUNDING, method
    for method in ("articulated", "fixman"):
        assert difference(ts.log_det_mass_matrix(model, q, method=method), np.linalg.slogdet(M)[1]) < ROUNDING, method


@pytest.mark.thinned(4)  # no divisor of the nine joints: every function meets two of them, every joint five functions
@each_joint
@pytest.mark.parametrize("function", ARRAY_FUNCTIONS, ids=lambda f: f.__name__)
def test_every_function_in_loops_and_unrolled(joint, function):
    model, *_ = chain(joint, n=3)
    rng = np.random.default_rng(2)
    body = {"body": 2} if isinstance(ALGORITHMS[function].output, Path) else {}
    names = ALGORITHMS[function].inputs
    given = [model.random_configuration(rng) if x == "q" else rng.normal(size=model.nv) for x in names]
    expected = function(model, *(x.astype(np.longdouble) for x in given), *body.values()).astype(float)
    for specialised in (True, False):
        program = ts.compile(model, function, specialised=specialised, **body)
        assert_close(model, program(*given), expected, ROUNDING)
        assert "__global__" in program.source("cuda")


@each_joint
def test_one_long_chain(joint):
    """By segments, as "auto" takes it at 2000 bodies, and by levels."""
    model = zoo.random_chain(2050, 3, joints=(joint.name,))
    rng = np.random.default_rng(0)
    q, v, tau = model.random_configuration(rng), 0.01 * rng.normal(size=model.nv), rng.normal(size=model.nv)
    expected = ts.forward_dynamics(model, q, v, tau, method="articulated")
    assert_close(model, ts.forward_dynamics(model, q, v, tau), expected, 1e-7)
    if joint.nv < 6:  # nothing is held between free bodies
        assert_close(model, ts.forward_dynamics(model, q, v, tau, method="segments"), expected, 1e-7)


# For the other joints, the kernels of eleven integrators are compiled among the slow tests.
SOME = ("revolute", "spherical", "gimbal")


@pytest.mark.parametrize(
    "joint",
    [pytest.param(joint, marks=() if joint.name in SOME else pytest.mark.slow) for joint in JOINTS],
    ids=lambda joint: joint.name,
)
def test_simulation_rollout_files_and_pictures(joint, tmp_path):
    model, q, v, _ = chain(joint, n=3)
    for method in INTEGRATORS:
        step = 1e-3 if not INTEGRATORS[method].adaptive else None
        trajectory = ts.simulate(model, q, 0.1 * v, duration=0.01, method=method, step=step)
        assert np.abs(np.diff(trajectory.energy)).max() < 1e-2 * np.abs(trajectory.energy).max()
    assert trajectory.table.shape[1] == len(trajectory.names) == len(set(trajectory.names))
    assert np.isfinite(ts.rollout(model, q, v, steps=3, step=1e-4, method="rk4").q).all()
    for name in ("model.toml", "motion.png", "motion.html", "motion.trajectory"):
        {
            "toml": partial(ts.save, model),
            "png": trajectory.plot,
            "html": trajectory.view,
            "trajectory": trajectory.save,
        }[name.partition(".")[2]](tmp_path / name)
    assert ts.load(tmp_path / "model.toml") == model
    assert ts.Trajectory.load(tmp_path / "motion.trajectory").model == model
