"""Hostile arguments of `compile`, `rollout` and `explain`: refused by name, whatever they are."""

import numpy as np
import pytest

import torsor as ts
from torsor import zoo

ARM, ZERO = zoo.planar3(), np.zeros(3)
HOSTILE = [None, "x", True, 2.5, -1, 0, np.nan, np.ones(2), [1], object(), {}, b"y"]

COMPILE = {"lanes": "lanes", "threads": "threads", "dtype": "dtype", "target": "target", "method": "method",
           "trig": "trig", "external": "external", "specialised": "specialised", "body": "body"}  # fmt: skip
ROLLOUT = ("steps", "dt", "every", "integrator", "feedback", "tau", "table")
FINE = {  # what is meant, or stands for the default
    "lanes": (None,), "specialised": (None, True), "external": (True,), "body": (None,), "threads": (),
    "feedback": (None,), "tau": (None,), "table": (None,), "dt": (2.5,), "every": (), "steps": (),
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
                ts.rollout(ARM, ZERO, ZERO, **{"steps": 2, "dt": 0.1} | {name: value})


def test_gains_are_named():
    for K in ("x", np.ones(2), np.nan, None):
        with pytest.raises(ts.ArgumentError, match="Kq"):
            ts.rollout(ARM, ZERO, ZERO, steps=2, dt=0.1, feedback=ts.LinearFeedback(K, np.ones(3)))
        with pytest.raises(ts.ArgumentError, match="q_ref"):
            ts.rollout(ARM, ZERO, ZERO, steps=2, dt=0.1, feedback=ts.LinearFeedback(np.ones(3), np.ones(3), q_ref=K))


def test_more_than_the_memory_is_refused_before_it_is_taken():
    with pytest.raises(ts.ArgumentError, match=r"steps asks for more than the .* GB"):
        ts.rollout(ARM, ZERO, ZERO, steps=10**12, dt=0.1)


@pytest.mark.parametrize("call", [
    lambda x: ts.compile(x, ts.forward_dynamics), lambda x: ts.compile(ARM, x), lambda x: ts.explain(ARM, x),
    lambda x: ts.explain(x, ts.forward_dynamics), lambda x: ts.rollout(x, ZERO, ZERO, steps=1, dt=0.1),
], ids=["model", "function", "explain function", "explain model", "rollout model"])  # fmt: skip
def test_what_is_no_model_and_no_function(call):
    for value in HOSTILE:
        with pytest.raises(ts.ArgumentError):
            call(value)


def test_dtypes_go_by_any_name():
    for dtype in ("float32", np.float32, np.dtype("f4")):
        assert ts.compile(ARM, ts.mass_matrix, dtype=dtype).dtype == np.float32
