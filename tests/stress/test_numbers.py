"""No wrong number without a word: extreme lengths, angles, quaternions, thin rods; NaN, masks and number types.

The oracle is the reference engine in 80-bit arithmetic, which works in the frames of the model as given.
"""

import copy
import pickle

import numpy as np
import pytest
from machines import ARRAY_FUNCTIONS

import torsor as ts
from torsor import zoo
from torsor.backends import codegen
from torsor.dynamics.functions import ALGORITHMS
from torsor.outputs import Path

ROUNDING = 1e-13  # a few joints; a thousand rounding units
EXTENDED = np.longdouble


def extended(function, model, *args, **more):
    return np.asarray(function(model, *(np.asarray(x, EXTENDED) for x in args), **more), dtype=float)


def error(result, expected):
    return float(np.abs(result - expected).max() / np.abs(expected).max())


def programs(model, function, **more):
    return [ts.compile(model, function, specialised=yes, **more) for yes in (True, False)]


def state(model, seed=0):
    rng = np.random.default_rng(seed)
    return model.random_configuration(rng), *rng.normal(size=(2, model.nv))


# Lengths, angles, rods -------------------------------------------------------------------------------------------

SMALL = dict(axis=(0, 1, 0), mass=1.0, com=[0.5e-6, 0, 0], inertia=[1e-13, 3e-13, 3e-13])
ARMS = {
    "small links far away": ts.Model.chain(p=[[1e9, 2e8, -3e8], *[[1e-6, 0, 0]] * 4], n=5, **SMALL),
    "small links": ts.Model.chain(p=[1e-6, 0, 0], n=5, **SMALL),
    "large links": ts.Model.chain(
        p=[3e8, 1e9, 0], axis=(0.6, 0, 0.8), mass=1e3, com=[1e8, 0, 0], inertia=[1e20] * 3, n=5
    ),
    "a far branch beside a near one": ts.Model.tree(
        [-1, 0, 0, 2], p=[[0, 0, 0], [0.1, 0, 1e7], [0.2, 0, 0.1], [0.3, 0, 0]], axis=[[0, 0, 1], [1, 0, 0]] * 2,
        mass=[1.0, 1e-9, 1.0, 1.0], com=[0.1, 0.05, 0.02], inertia=[0.1, 0.2, 0.15],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ARMS)
@pytest.mark.parametrize("function", [ts.forward_dynamics, ts.inverse_dynamics], ids=lambda f: f.__name__)
def test_lengths_of_any_size(name, function):
    model = ARMS[name]
    given = state(model)
    expected = extended(function, model, *given)
    for program in programs(model, function):
        assert error(program(*given), expected) < ROUNDING


def test_a_distant_neighbour_spoils_no_other_arm():
    model = ts.Model.tree(
        [-1, 0, 1, -1], p=[[0, 0, 0], [0.3, 0, 0], [0.3, 0, 0.1], [1e12, 0, 0]],
        axis=[[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]], mass=1.0, com=[0.1, 0.2, 0.05], inertia=[0.1, 0.1, 0.1],
    )  # fmt: skip
    given = state(model)
    expected = extended(ts.forward_dynamics, model, *given)
    for program in programs(model, ts.forward_dynamics):
        assert np.allclose(program(*given), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("angle", [1e3, 1e8, 9e8, 1.1e9, 1e15, 1e300])
def test_large_angles(angle):
    model = zoo.general_arm(6, 5)
    q, v, tau = state(model)
    q = q + angle
    expected = extended(ts.forward_dynamics, model, q, v, tau)
    for program in programs(model, ts.forward_dynamics):
        assert error(program(q, v, tau), expected) < ROUNDING


@pytest.mark.parametrize("extent", [1e-6, 1e-10, 1e-15, 1e-30])
@pytest.mark.parametrize("axis", range(3))
def test_thin_rods(extent, axis):
    moments = np.roll([extent, 1.0, 1.0], axis)
    model = ts.Model.chain("spherical", mass=1.0, inertia=moments, n=1, allow_degenerate=True)
    assert np.allclose(ts.mass_matrix(model, [1.0, 0, 0, 0]), np.diag(moments), rtol=1e-15, atol=0)
    v = np.array([0.3, -0.5, 0.7])
    expected = extended(ts.bias_forces, model, model.neutral(), v)
    assert np.allclose(ts.bias_forces(model, model.neutral(), v), expected, rtol=1e-14, atol=0)


# Quaternions -----------------------------------------------------------------------------------------------------


def quaternions(model):
    return np.concatenate([q[:, -4:].ravel() for joint, q, _ in model.joint_groups if joint.nq != joint.nv])


@pytest.mark.parametrize(
    ("dtype", "powers"), [("float64", (600, -900, 1022, -1010)), ("float32", (70, -100, 126, -120))]
)
def test_the_length_of_a_quaternion_does_not_matter(dtype, powers):
    model = zoo.random_tree(8, seed=7)
    given = [x.astype(dtype) for x in state(model)]
    for function in (ts.forward_dynamics, ts.inverse_dynamics):
        expected = function(model, *given)
        for power in powers:
            q = given[0].copy()
            q[quaternions(model)] *= np.dtype(dtype).type(2.0) ** power
            assert np.array_equal(function(model, q, *given[1:]), expected)
            if dtype == "float64":
                assert np.array_equal(model.integrate(q, given[1]), model.integrate(given[0], given[1]))
                assert np.abs(model.difference(q, given[0])).max() < 1e-15


def test_a_quaternion_of_no_length_is_refused_everywhere():
    model = zoo.random_tree(8, seed=7)
    q, v, tau = state(model)
    for tiny in (0.0, 5e-324):
        q[quaternions(model)] = tiny
        for call in (
            lambda: ts.forward_dynamics(model, q, v, tau),
            lambda: ts.rollout(model, q, v, steps=2, step=0.1),
            lambda: model.integrate(q, v),
            lambda: ts.simulate(model, q, v, duration=0.1),
        ):
            with pytest.raises(ts.ArgumentError, match="quaternion"):
                call()


# NaN, masks, bits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ARRAY_FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("model", [zoo.puma560(), zoo.random_tree(6, seed=7)], ids=["arm", "tree"])
def test_no_nan_is_lost(function, model):
    """At every call: nothing that a good call before has left decides what a bad one does."""
    body = (0,) if isinstance(ALGORITHMS[function].output, Path) else ()
    rng = np.random.default_rng(0)
    sizes = {"q": model.nq}
    good = [rng.normal(size=(5, sizes.get(name, model.nv))) for name in ALGORITHMS[function].inputs]
    program = ts.compile(model, function, **({"body": 0} if body else {}))
    clean = program(*good)
    function(model, *(x[0] for x in good), *body)
    for name, x in zip(ALGORITHMS[function].inputs, good):
        for k in range(x.shape[1]):
            before, x[2, k] = x[2, k], np.nan
            result = program(*good)
            assert not np.isfinite(result[2]).all(), (name, k)
            assert np.array_equal(np.delete(result, 2, axis=0), np.delete(clean, 2, axis=0))
            for rows in (slice(None), 2):
                with pytest.raises(ts.ArgumentError, match="nan"):
                    function(model, *(y[rows] for y in good), *body)
            x[2, k] = before


@pytest.mark.parametrize(("dtype", "far"), [("float64", 2e9), ("float32", 2e4)])
@pytest.mark.parametrize("specialised", [True, False])
def test_neighbours_do_not_change_the_bits_of_a_state(dtype, far, specialised):
    model = zoo.panda()
    rng = np.random.default_rng(0)
    given = [x.astype(dtype) for x in rng.normal(size=(3, 37, 7))]
    for lanes in {codegen.host().lanes(64 if dtype == "float64" else 32), 2}:
        program = ts.compile(model, ts.forward_dynamics, dtype=dtype, specialised=specialised, lanes=lanes)
        expected = program(*given)
        for strange in (far, np.nan, np.inf, 1e30):
            q = given[0].copy()
            q[5, 3] = strange
            result = program(q, *given[1:])
            assert np.array_equal(np.delete(result, 5, axis=0), np.delete(expected, 5, axis=0))
            assert np.array_equal(result[5], program(q[5], given[1][5], given[2][5]), equal_nan=True)


def test_masked_arrays_are_refused():
    model, x = zoo.puma560(), np.zeros(6)
    masked = np.ma.array(x, mask=[True] + [False] * 5)
    for args in ((masked, x, x), (x, masked, x), (x, x, np.ma.array(x))):
        for rows in (slice(None), None):
            for _ in range(2):
                with pytest.raises(ts.ArgumentError, match="masked"):
                    ts.forward_dynamics(model, *(y[rows] for y in args))
                ts.forward_dynamics(model, x, x, x)
    with pytest.raises(ts.ArgumentError, match="q is a masked"):
        model.integrate(masked, x)


# Types -----------------------------------------------------------------------------------------------------------


def test_float32_stays_float32():
    model = zoo.panda().with_frames({"tool": ("link7", np.eye(3), [0.1, 0, 0])})
    x = np.zeros((3, 7), np.float32)
    for result in (ts.jacobian(model, x, "tool"), ts.jacobian_dot(model, x, x, "tool"), ts.jacobian(model, x, 3)):
        assert result.dtype == np.float32


def test_float32_says_what_it_cannot_hold():
    molecule = ts.Model.chain(p=[1e-10, 0, 0], mass=2e-26, com=[1e-10, 0, 0], inertia=[1e-47] * 3, n=4)
    x = np.zeros(4, np.float32)
    for call in (
        lambda: ts.forward_dynamics(molecule, x, x, x),
        lambda: ts.compile(molecule, ts.mass_matrix, dtype="float32"),
    ):
        with pytest.raises(ts.ArgumentError, match=r"'link1'.*float32"):
            call()
    assert np.isfinite(ts.forward_dynamics(molecule, *np.zeros((3, 4)))).all()


@pytest.mark.parametrize("function", ARRAY_FUNCTIONS, ids=lambda f: f.__name__)
def test_empty_batches_have_the_shape_of_full_ones(function):
    model = zoo.random_tree(3, seed=2)
    body = (1,) if isinstance(ALGORITHMS[function].output, Path) else ()
    sizes = {"q": model.nq}
    for dtype in (EXTENDED, np.float64, np.float32):
        given = [np.ones((2, sizes.get(name, model.nv)), dtype) for name in ALGORITHMS[function].inputs]
        full = function(model, *given, *body)
        empty = function(model, *(x[:0] for x in given), *body)
        assert empty.shape == (0, *full.shape[1:])
        assert empty.dtype == full.dtype == dtype


# Frames ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 12, 13, 50])
def test_a_frame_on_the_base_does_not_move(n):
    model = zoo.rope(n).with_frames({"w": (None, np.eye(3), [1, 2, 3.0])})
    q, v = model.random_configuration(0, 5), np.ones((5, model.nv))
    for result in (
        ts.jacobian(model, q, "w"),
        ts.jacobian_dot(model, q, v, "w"),
        ts.jacobian(model, q[:1].astype(EXTENDED), "w"),
        ts.operational_space(model, q, "w").response,
        *(program(q) for program in programs(model, ts.jacobian, body="w")),
    ):
        assert result.shape[1:] == (6, model.nv)
        assert not result.any()


def test_a_program_of_a_frame_is_that_frames():
    R = ts.lie.exp_so3(np.array([0.1, 0.2, 0.3]))
    model = zoo.panda().with_frames({"hand": ("link7", R, [0.1, 0.2, 0.3])})
    other = zoo.panda().with_frames({"hand": ("link3", R, [0.5, 0.0, 0.0])})  # the same physics, another hand
    q = model.random_configuration(0, 5)
    for some in (model, other, model):
        frame = some.frame("hand")
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = frame.R, frame.p
        expected = ts.lie.Ad(ts.lie.inverse(T)) @ ts.jacobian(some, q, frame.body)
        for result in (ts.jacobian(some, q, "hand"), *(p(q) for p in programs(some, ts.jacobian, body="hand"))):
            assert error(result, expected) < 1e-15


# Programs --------------------------------------------------------------------------------------------------------


def test_programs_are_copied_and_pickled_as_what_to_compile():
    model = zoo.panda()
    x = np.linspace(0, 1, 14).reshape(2, 7)
    for function, options in {ts.forward_dynamics: {"threads": 2}, ts.jacobian: {"body": "link4"}}.items():
        program = ts.compile(model, function, **options)
        args = [x] * len(program.inputs)
        for other in (pickle.loads(pickle.dumps(program)), copy.deepcopy(program), copy.copy(program)):
            assert np.array_equal(other(*args), program(*args))
            assert hash(other) is not None
    assert copy.deepcopy(model) == pickle.loads(pickle.dumps(model)) == model


def test_out_may_be_given_by_position_to_threads():
    program = ts.compile(zoo.panda(), ts.forward_dynamics, threads=2)
    x = np.full((40000, 7), 0.1)
    out = np.zeros_like(x)
    assert program(x, x, x, out) is out
    assert np.array_equal(out, program(x, x, x))
    with pytest.raises(TypeError):
        program(x, x)


def test_temperatures_are_numbers():
    for bad in (np.ones(2), "hot", None, np.nan, -1.0):
        with pytest.raises(ts.ArgumentError, match="kT"):
            ts.fixman_force(zoo.planar3(), np.zeros(3), kT=bad)
