"""Machines, states and layouts drawn by hypothesis, against the reference engine in 80-bit arithmetic.

What is drawn is what a user can build: any joint types in any tree, masses and lengths over many decades, states of any
size, arrays of any layout that NumPy allows.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import ARRAY_FUNCTIONS

import torsor as ts
from torsor import zoo
from torsor.dynamics.functions import ALGORITHMS
from torsor.model.joints import JOINTS
from torsor.outputs import Path

EXTENDED = np.longdouble
# A few bodies; what M^-1 of a badly conditioned one loses is told by its own condition number.
ROUNDING = 1e-12
EPS = float(np.finfo(np.float64).eps)

functions = st.sampled_from(ARRAY_FUNCTIONS)
machines = st.builds(
    lambda n, seed, joints, chain, mass, length: scaled(
        zoo.random_chain(n, seed, joints=joints) if chain else of_joints(zoo.random_tree(n, seed), joints, seed),
        10.0**mass, 10.0**length,
    ),
    n=st.integers(1, 6), seed=st.integers(0, 1000), chain=st.booleans(), mass=st.integers(-9, 9),
    joints=st.lists(st.sampled_from([joint.name for joint in JOINTS]), min_size=1, max_size=3, unique=True).map(tuple),
    length=st.integers(-6, 6),
)  # fmt: skip


def of_joints(model, joints, seed):
    """The tree with other joints, drawn from a few types."""
    codes = [joint.code for joint in JOINTS if joint.name in joints]
    drawn = np.random.default_rng(seed).choice(codes, model.n)
    pitched = np.array([joint.has_pitch for joint in JOINTS])[drawn]
    return dataclasses.replace(model, joint=drawn, pitch=np.where(pitched, 0.1, 0.0))


def scaled(model, mass, length):
    return dataclasses.replace(
        model, mass=model.mass * mass, p=model.p * length, com=model.com * length, pitch=model.pitch * length,
        inertia=model.inertia * (mass * length**2),
    )  # fmt: skip


def arguments(model, function, seed, size, count=3):
    rng = np.random.default_rng(seed)
    names = ALGORITHMS[function].inputs
    q = model.random_configuration(rng, count)
    return [q if name == "q" else size * rng.normal(size=(count, model.nv)) for name in names]


def by_reference(function, model, given, body):
    return np.asarray(function(model, *(x.astype(EXTENDED) for x in given), *body), dtype=float)


def allowed(function, model, q):
    """What rounding may do: more where M is nearly singular."""
    if not ALGORITHMS[function].inverts and function is not ts.log_det_gradient:
        return ROUNDING
    M = ts.mass_matrix(model, q)
    d = np.sqrt(np.abs(np.einsum("...ii->...i", M)))
    condition = np.linalg.cond(M / (d[..., :, None] * d[..., None, :])).max()
    return ROUNDING + 1e3 * EPS * condition


def size_of(function, model, states):
    """How large the terms are that cancel where a result is zero: gravity across a vertical axis, C of one joint."""
    q, *others = states
    reach = float(np.abs(model.p).sum() + np.abs(model.com).sum()) + np.abs(q).max()
    speed = max((float(np.abs(x).max()) for x in others), default=0.0)
    M = np.abs(ts.mass_matrix(model, q))
    inertia, weight = float(M.max()), float(model.mass.sum()) * 9.81 * max(1.0, reach)
    lightest = float(np.sqrt(np.einsum("...ii->...i", M).min()))
    return {
        ts.coriolis_matrix: inertia * speed, ts.bias_forces: inertia * speed**2 + weight, ts.gravity_forces: weight,
        ts.inverse_dynamics: inertia * speed * (1 + speed) + weight, ts.potential_energy: weight,
        ts.jacobian_dot: (1 + reach) * speed, ts.log_det_gradient: 1.0, ts.log_det_mass_matrix: 1.0,
        ts.momentum: inertia * speed, ts.center_of_mass: reach,
        ts.forward_dynamics: (inertia * speed * (1 + speed) + weight) / lightest,
        ts.constraint_forces: inertia * speed * (1 + speed) + weight, ts.body_twists: (1 + reach) * speed,
    }.get(function, 0.0)  # fmt: skip


def weighed(function, model, q, x):
    """The largest number of x; of accelerations, weighed by the roots of their inertias, as the kinetic energy does."""
    if function in (ts.forward_dynamics, ts.mass_solve, ts.inverse_mass_matrix):
        d = np.sqrt(np.abs(np.einsum("...ii->...i", ts.mass_matrix(model, q))))
        x = x * d if function is not ts.inverse_mass_matrix else x * d[..., :, None] * d[..., None, :]
    return float(np.abs(x).max())


@settings(max_examples=20)
@given(machines, functions, st.integers(0, 100), st.integers(-3, 3), st.booleans())
def test_every_function_on_any_machine(model, function, seed, decade, looped):
    body = (model.n - 1,) if isinstance(ALGORITHMS[function].output, Path) else ()
    states = arguments(model, function, seed, 10.0**decade)
    expected = by_reference(function, model, states, body)
    program = ts.compile(model, function, specialised=not looped, **({"body": body[0]} if body else {}))
    tolerance = allowed(function, model, states[0])
    for result in (program(*states), function(model, *states, *body)):
        error, size = (weighed(function, model, states[0], x) for x in (result - expected, expected))
        assert error <= tolerance * max(size, size_of(function, model, states))


LAYOUTS = {
    "rows": lambda x: x,
    "columns": np.asfortranarray,
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: x[:, ::-1].copy()[:, ::-1],
    "states backwards": lambda x: x[::-1].copy()[::-1],
    "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    "read only": lambda x: np.broadcast_to(x, x.shape),
    "big endian": lambda x: x.astype(">f8"),
    "integers": lambda x: np.round(x).astype(np.int64),
    "single precision": lambda x: x.astype(np.float32),
    "lists": lambda x: x.tolist(),
}


@settings(max_examples=50)
@given(st.data())
def test_layouts_never_matter(data):
    model = data.draw(st.sampled_from([zoo.panda(), zoo.random_tree(5, seed=3)]))
    function = data.draw(functions)
    body = (model.n - 1,) if isinstance(ALGORITHMS[function].output, Path) else ()
    count = data.draw(st.integers(0, 20))
    states = arguments(model, function, data.draw(st.integers(0, 9)), 1.0, count)
    given_ = [LAYOUTS[data.draw(st.sampled_from(list(LAYOUTS)))](x) for x in states]
    try:
        plain = [np.ascontiguousarray(x, dtype=np.float64) for x in given_]
        if all(getattr(x, "dtype", np.dtype(float)) == np.float32 for x in given_):
            plain = [x.astype(np.float32) for x in plain]
        expected = function(model, *plain, *body)
    except ts.TorsorError:  # a quaternion that was rounded to zero
        with pytest.raises(ts.TorsorError):
            function(model, *given_, *body)
        return
    result = function(model, *given_, *body)
    assert result.dtype == expected.dtype
    assert np.array_equal(result, expected)


@settings(max_examples=15)
@given(machines, st.integers(0, 100))
def test_a_batch_is_its_states(model, seed):
    """Same bits: alone, in any batch, in any order, by any number of threads."""
    states = arguments(model, ts.forward_dynamics, seed, 1.0, 21)
    together = ts.forward_dynamics(model, *states)
    order = np.random.default_rng(seed).permutation(21)
    assert np.array_equal(ts.forward_dynamics(model, *(x[order] for x in states)), together[order])
    for k in (0, 7, 20):
        assert np.array_equal(ts.forward_dynamics(model, *(x[k] for x in states)), together[k])
    threads = ts.compile(model, ts.forward_dynamics, threads=3, specialised=False)
    single = ts.compile(model, ts.forward_dynamics, specialised=False)
    many = [np.tile(x, (900, 1)) for x in states]
    assert np.array_equal(threads(*many), single(*many))


@pytest.mark.slow
@settings(max_examples=500)
@given(machines, functions, st.integers(0, 10**6), st.integers(-6, 6), st.booleans())
def test_every_function_on_more_machines(model, function, seed, decade, looped):
    test_every_function_on_any_machine.hypothesis.inner_test(model, function, seed, decade, looped)
