"""Hostile arguments of `compile`, `rollout` and `explain`: refused by name, whatever they are."""

import numpy as np
import pytest

import torsor as ts
from torsor import zoo

ARM, ZERO = zoo.planar3(), np.zeros(3)
HOSTILE = [None, "x", True, 2.5, -1, 0, np.nan, np.ones(2), [1], object(), {}, b"y"]

COMPILE = {"lanes": "lanes", "threads": "threads", "dtype": "dtype", "target": "target", "method": "method",
           "trig": "trig", "external": "external", "specialised": "specialised", "body": "body"}  # fmt: skip
ROLLOUT = ("steps", "step", "every", "method", "forces", "stop", "reset", "gravity")
FINE = {  # what is meant, or stands for the default
    "lanes": (None,), "specialised": (None, True), "external": (True,), "body": (None,), "threads": (),
    "forces": (), "stop": (None,), "reset": (None,), "gravity": (True,), "step": (2.5,), "every": (), "steps": (),
}  # fmt: skip


def is_fine(name, value):
    return any(value is x or (isinstance(value, float) and value == x) for x in FINE.get(name, ()))


@pytest.mark.parametrize("name", COMPILE)
def test_compile_names_what_is_wrong(name):
    for value in HOSTILE:
        if not is_fine(name, value):
            with pytest.raises(ts.ArgumentError, match=COMPILE[name]):
                ts.compile(ARM, ts.forward_dynamics, **{name: value})


@pytest.mark.parametrize("name", ROLLOUT)
def test_rollout_names_what_is_wrong(name):
    for value in HOSTILE:
        if not is_fine(name, value):
            with pytest.raises(ts.ArgumentError, match=name):
                ts.rollout(ARM, ZERO, ZERO, **{"steps": 2, "step": 0.1} | {name: value})


def test_gains_are_named():
    def rolled(force):
        return ts.rollout(ARM, ZERO, ZERO, steps=2, step=0.1, forces=force())

    for K in ("x", np.ones(2), np.nan, None):
        with pytest.raises(ts.ArgumentError, match="K"):
            rolled(lambda K=K: ts.Feedback(K))
        with pytest.raises(ts.ArgumentError, match="x_ref"):
            rolled(lambda K=K: ts.Feedback(np.ones((3, 6)), x_ref=K))
        with pytest.raises(ts.ArgumentError, match="kp"):
            rolled(lambda K=K: ts.PD(ZERO, K, 1.0))
        with pytest.raises(ts.ArgumentError, match="reference"):
            rolled(lambda K=K: ts.PD(K, 1.0, 1.0))


@pytest.mark.parametrize(("old", "new"), [("dt", "step="), ("integrator", "method="), ("tau", "Constant"),
                                          ("table", "Table"), ("feedback", "forces="), ("pulls", "Pull")])  # fmt: skip
def test_keywords_of_version_0_1_name_the_new_ones(old, new):
    with pytest.raises(TypeError, match=rf"'{old}': it is called .*{new}"):
        ts.rollout(ARM, ZERO, ZERO, **{"steps": 1, "step": 0.1, old: 1.0})


def test_more_than_the_memory_is_refused_before_it_is_taken():
    with pytest.raises(ts.ArgumentError, match=r"steps asks for more than the .* GB"):
        ts.rollout(ARM, ZERO, ZERO, steps=10**12, step=0.1)


@pytest.mark.parametrize("call", [
    lambda x: ts.compile(x, ts.forward_dynamics), lambda x: ts.compile(ARM, x), lambda x: ts.explain(ARM, x),
    lambda x: ts.explain(x, ts.forward_dynamics), lambda x: ts.rollout(x, ZERO, ZERO, steps=1, step=0.1),
], ids=["model", "function", "explain function", "explain model", "rollout model"])  # fmt: skip
def test_what_is_no_model_and_no_function(call):
    for value in HOSTILE:
        with pytest.raises(ts.ArgumentError):
            call(value)


def test_dtypes_go_by_any_name():
    for dtype in ("float32", np.float32, np.dtype("f4")):
        assert ts.compile(ARM, ts.mass_matrix, dtype=dtype).dtype == np.float32


def test_one_trajectory_that_diverges_is_given_as_it_is():
    """And single precision stays single."""
    end = ts.rollout(ARM, ZERO, np.full(3, 1e200), steps=3, step=1e-3)
    assert not np.isfinite(end.v).any()
    assert ts.rollout(ARM, np.float32(ZERO), np.float32(ZERO), steps=3, step=1e-3).q.dtype == np.float32
