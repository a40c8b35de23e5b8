"""The vjp of matrices above 24 freedoms: programs, batches of models and GPU arrays, by products with unit vectors."""

import copy
import pickle
from dataclasses import replace

import cuda_host
import fake_cupy
import numpy as np
import pytest
from machines import difference
from test_derivatives import DUALITY, TOLERANCE, exact_tangent, public_arguments, slow_unless

import torsor as ts
from torsor import lie, zoo
from torsor.backends import gpu
from torsor.backends.cpu import Program
from torsor.compiler import members
from torsor.compiler.derivative import takes_frame
from torsor.dynamics import calls, matrix_gradients
from torsor.dynamics.functions import ALGORITHMS
from torsor.model.joints import JOINTS
from torsor.model.names import Frame

FUNCTIONS = [ts.mass_matrix, ts.inverse_mass_matrix, ts.coriolis_matrix, ts.jacobian, ts.jacobian_dot]
CHAIN = zoo.rope(13)  # 26 freedoms, one kind of joint: its loops are compiled quickly
TREE = zoo.random_tree(12, 1)  # every joint type, several roots and branches
SOME = [slow_unless(f in (ts.mass_matrix, ts.jacobian), f) for f in FUNCTIONS]
NAMES = dict(ids=lambda f: f.__name__)
# The products of float64 numbers, summed in another order; M^-1 of a random tree loses three digits.
ROUNDING = 1e-12
SINGLE = 5e-4  # float32: 1e-4 seen with M^-1 of a random tree, 4e-6 with all others


def program(model, function, **options):
    body = {"body": model.n - 1} if takes_frame(ALGORITHMS[function]) else {}
    return ts.compile(model, ts.vjp(function), **body, **{"specialised": False, **options})


def arguments(model, function, count=(), seed=1):
    """The arguments of the function, with its body, and a cotangent."""
    rows = 6 if takes_frame(ALGORITHMS[function]) else model.nv
    cotangent = np.random.default_rng(seed).normal(size=(*count, rows, model.nv))
    own = public_arguments(model, function, count)
    return [*(x if isinstance(x, np.ndarray) else model.n - 1 for x in own), cotangent]


def arrays_of(args):
    return [x for x in args if isinstance(x, np.ndarray)]


def worst(found, expected):
    return max(difference(x, y) for x, y in zip(found, expected, strict=True))


def test_the_tree_has_every_joint_and_more_than_24_freedoms():
    assert set(TREE.joint) == set(range(len(JOINTS)))
    assert min(TREE.nv, CHAIN.nv) > 24


@pytest.mark.parametrize("function", SOME, **NAMES)
@pytest.mark.parametrize("model", [CHAIN, pytest.param(TREE, marks=pytest.mark.slow)], ids=["chain", "tree"])
def test_programs(model, function):
    """A program gives what a call does; jvp, which follows the columns, is another transformation."""
    args = arguments(model, function, (2, 3))
    *state, cotangent = arrays_of(args)
    made = program(model, function)
    found = made(*state, cotangent)
    assert worst(found, ts.vjp(function)(model, *args)) <= ROUNDING
    tangents = np.random.default_rng(3).normal(size=(len(state), 2, 3, model.nv))
    pushed = ts.jvp(function)(model, *args[:-1], *tangents)
    totals = [sum((x * dx).sum() for x, dx in zip(found, tangents)), (pushed * cotangent).sum()]
    assert abs(totals[0] - totals[1]) <= DUALITY * np.abs(pushed * cotangent).sum()
    each = made(*(x[1, 2] for x in state), cotangent[1, 2])
    assert all((x == y[1, 2]).all() for x, y in zip(each, found)), "a state's bits depend on its batch"
    broadcast = made(*(x[:, :1] for x in state), cotangent[0])
    assert worst([x[1, 2] for x in broadcast], made(*(x[1, 0] for x in state), cotangent[0, 2])) <= ROUNDING
    strided = made(*(np.repeat(x, 2, -1)[..., ::2] for x in state), np.asfortranarray(cotangent))
    assert all((x == y).all() for x, y in zip(strided, found))
    empty = made(*(x[:0] for x in state), cotangent[:0])
    assert [x.shape for x in empty] == [(0, 3, model.nv)] * len(state)
    single = program(model, function, dtype="float32")(*(x.astype("f") for x in state), cotangent.astype("f"))
    assert {x.dtype.name for x in single} == {"float32"}
    assert worst(single, found) <= SINGLE


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS, **NAMES)
def test_every_number_against_differences_of_60_digits(function):
    """Along every freedom, on every joint type."""
    args = arguments(TREE, function)
    *state, cotangent = arrays_of(args)
    found = program(TREE, function)(*state, cotangent)
    names = ALGORITHMS[function].inputs
    given, zeros = dict(zip(names, state)), {name: np.zeros(TREE.nv) for name in names}
    for name in names:
        changes = (exact_tangent(ALGORITHMS[function], TREE, given, {**zeros, name: e}) for e in np.eye(TREE.nv))
        assert difference(getattr(found, name), [(cotangent * dA).sum() for dA in changes]) <= 10 * TOLERANCE


def test_more_columns_than_are_computed_at_once(monkeypatch):
    args = arguments(CHAIN, ts.jacobian, (2,))
    expected = ts.vjp(ts.jacobian)(CHAIN, *args)
    monkeypatch.setattr(matrix_gradients, "AT_ONCE", 10)
    assert worst(ts.vjp(ts.jacobian)(CHAIN, *args), expected) <= ROUNDING


def test_the_frame_of_a_jacobian():
    """A frame on a body is seen from elsewhere; the base does not move, but what is not finite shows even there."""
    place = lie.exp_se3(np.array([0.3, -0.2, 0.5, 0.1, 0.7, -0.4]))
    frames = {name: Frame(body, place[:3, :3], place[:3, 3]) for name, body in (("tip", CHAIN.n - 1), ("wall", -1))}
    model = replace(CHAIN, frames=frames)
    q, _, cotangent = arguments(model, ts.jacobian)
    dq = np.random.default_rng(2).normal(size=model.nv)
    pushed = ts.jvp(ts.jacobian)(model, q, "tip", dq)
    tip, wall = (ts.compile(model, ts.vjp(ts.jacobian), body=name, specialised=False) for name in frames)
    assert abs(tip(q, cotangent).q @ dq - (pushed * cotangent).sum()) <= DUALITY * np.abs(pushed * cotangent).sum()
    assert (wall(q, cotangent).q == 0).all()
    for made in (tip, wall):
        assert not np.isfinite(made(q, np.where(cotangent == cotangent[2, 5], np.nan, cotangent)).q).all()


def test_with_respect_to_the_model():
    """M is linear in the inertias: c : M = inertia . dM/dinertia, the rotors being none."""
    (q, cotangent), model = arguments(CHAIN, ts.mass_matrix, (2,)), CHAIN
    made = program(model, ts.mass_matrix, wrt=("q", "inertia"))
    found = made(q, cotangent)
    assert found._fields == ("q", "inertia")
    I = model.inertia + model.mass[:, None, None] * (
        (model.com**2).sum(-1)[:, None, None] * np.eye(3) - model.com[:, :, None] * model.com[:, None, :]
    )
    upper = I[:, [0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2]]
    numbers = np.concatenate([model.mass[:, None], model.mass[:, None] * model.com, upper], axis=1)
    expected = (cotangent * ts.mass_matrix(model, q)).sum((-1, -2))
    assert difference((found.inertia * numbers).sum((-1, -2)), expected) <= ROUNDING


def test_small_matrices_in_loops():
    """Loops serve every model of the same joints, small ones too."""
    model = zoo.rope(3)
    args = arguments(model, ts.mass_matrix, (4,))
    looped = program(model, ts.mass_matrix)
    assert not looped.specialised
    assert worst(looped(*args), ts.vjp(ts.mass_matrix)(model, *args)) <= ROUNDING


@pytest.mark.parametrize("function", [slow_unless(f is ts.jacobian, f) for f in FUNCTIONS], **NAMES)
def test_few_entries_are_straight_line_code(function):
    """Of a humanoid's 36 columns few rows are computed: no product is needed."""
    model = zoo.humanoid()
    *state, cotangent = arrays_of(arguments(model, function, (2,)))
    line, columns = (program(model, function, specialised=how) for how in (None, False))
    assert isinstance(line, Program)
    assert line.specialised
    assert worst(line(*state, cotangent), columns(*state, cotangent)) <= ROUNDING


@pytest.mark.slow
def test_straight_line_code_of_any_matrix_where_it_is_wanted():
    *state, cotangent = arrays_of(arguments(CHAIN, ts.mass_matrix, (2,)))
    wanted = program(CHAIN, ts.mass_matrix, specialised=True)
    assert isinstance(wanted, Program)
    assert (
        worst(wanted(*state, cotangent), program(CHAIN, ts.mass_matrix, specialised=None)(*state, cotangent))
        <= ROUNDING
    )


def test_programs_say_what_they_are():
    made = program(CHAIN, ts.mass_matrix)
    assert (made.name, made.inputs, made.model) == ("mass_matrix_vjp", ("q", "cotangent_nv_nv"), CHAIN)
    assert (made.dtype, made.target, made.product.name) == (np.float64, "cpu", "mass_product_vjp")
    assert "the sum over 26 columns" in repr(made)
    assert made.operations.mul == 26 * made.product.operations.mul
    assert made.source("c") == made.product.source("c")
    args = arguments(CHAIN, ts.mass_matrix)
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert all((x == y).all() for x, y in zip(made(*args), again(*args)))
    cuda = pickle.loads(pickle.dumps(program(CHAIN, ts.mass_matrix, target="cuda")))
    assert "__global__" in cuda.source("cuda")


# Batches of models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", SOME, **NAMES)
def test_batches_of_models(function):
    """Every member gets what it gets alone."""
    factor = np.random.default_rng(0).uniform(0.9, 1.1, (2, CHAIN.n))
    batch = ts.ModelBatch(CHAIN, mass=CHAIN.mass * factor, p=CHAIN.p * factor[..., None])
    args = arguments(CHAIN, function, (3, 2))
    for _ in range(2):  # the second call finds what the first made
        found = ts.vjp(function)(batch, *args)
    for k in range(2):
        own = [x[:, k] if isinstance(x, np.ndarray) else x for x in args]
        assert worst([x[:, k] for x in found], ts.vjp(function)(batch[k], *own)) <= ROUNDING
    one = ts.vjp(function)(batch, *(x[0, 0] if isinstance(x, np.ndarray) else x for x in args))
    assert worst([x[0] for x in one], [x[0, 0] for x in found]) <= ROUNDING
    with pytest.raises(ts.ArgumentError, match="the batch axes do not go together"):
        ts.vjp(function)(batch, *(np.repeat(x, 3, 1) if isinstance(x, np.ndarray) else x for x in args))


# Arrays on a GPU, with a stand-in for CuPy -----------------------------------------------------------------------


@pytest.fixture
def cupy(monkeypatch):
    stand_in = fake_cupy.Cupy()
    fake_cupy.install(monkeypatch, stand_in)
    for module in (calls, matrix_gradients):
        monkeypatch.setattr(module, "gpu_array", gpu.on_device)  # the stand-in's arrays are NumPy's, too
    members._structure.cache_clear()  # programs of another stand-in
    return stand_in


@pytest.mark.parametrize("function", [slow_unless(f is ts.jacobian, f) for f in FUNCTIONS], **NAMES)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_arrays_on_a_gpu(cupy, function, dtype):
    model = CHAIN
    args = [x.astype(dtype) if isinstance(x, np.ndarray) else x for x in arguments(model, function, (2, 3))]
    *state, cotangent = map(fake_cupy.on_device, arrays_of(args))
    made = program(model, function, target="cuda", dtype=dtype)
    found = made(*state, cotangent)
    assert {type(x) for x in found} == {fake_cupy.Array}
    assert {(x.shape, x.dtype.name) for x in found} == {((2, 3, model.nv), dtype)}
    if cuda_host.compiler():
        expected = program(model, function, dtype=dtype)(*arrays_of(args))
        assert worst(found, expected) <= {"float64": ROUNDING, "float32": SINGLE}[dtype]
    assert [x.shape for x in made(*(x[:0] for x in state), cotangent[:0])] == [(0, 3, model.nv)] * len(state)
    with pytest.raises(ts.ArgumentError, match="give it CuPy, PyTorch or JAX arrays"):
        made(*arrays_of(args))
    with pytest.raises(ts.ArgumentError, match=r"cotangent\w* is float.*needs real numbers"):
        made(*state, cotangent[..., :1])


@pytest.mark.slow
def test_batches_of_models_on_a_gpu(cupy):
    factor = np.random.default_rng(0).uniform(0.9, 1.1, (2, CHAIN.n))
    batch = ts.ModelBatch(CHAIN, mass=CHAIN.mass * factor)
    q, cotangent = arguments(CHAIN, ts.mass_matrix, (3, 2))
    found = ts.vjp(ts.mass_matrix)(batch, fake_cupy.on_device(q), fake_cupy.on_device(cotangent))
    assert found.q.shape == (3, 2, CHAIN.nv)
    if cuda_host.compiler():
        assert difference(found.q, ts.vjp(ts.mass_matrix)(batch, q, cotangent).q) <= ROUNDING


@pytest.mark.slow
def test_calls_on_a_gpu(cupy):
    q, body, cotangent = arguments(CHAIN, ts.jacobian, (2,))
    model = replace(CHAIN, names=[f"link {k}" for k in range(CHAIN.n)])  # programs of no other stand-in
    found = ts.vjp(ts.jacobian)(model, fake_cupy.on_device(q), body, fake_cupy.on_device(cotangent))
    assert isinstance(found.q, fake_cupy.Array)
    if cuda_host.compiler():
        assert difference(found.q, ts.vjp(ts.jacobian)(model, q, body, cotangent).q) <= ROUNDING


# Bad arguments ---------------------------------------------------------------------------------------------------

Q, COTANGENT = arguments(CHAIN, ts.mass_matrix)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: ts.vjp(ts.jvp(ts.mass_matrix))(CHAIN, Q, Q, COTANGENT), r"instead: vjp\(jvp\(inverse_dynamics\)\) of M x"),
    (lambda: ts.compile(CHAIN, ts.vjp(ts.jvp(ts.jacobian)), body=1), r"vjp\(jvp\(body_twists\)\) of J v"),
    (lambda: ts.compile(CHAIN, ts.vjp(ts.jacobian)), "jacobian_vjp needs body="),
    (lambda: ts.compile(CHAIN, ts.vjp(ts.mass_matrix), body=1), "mass_matrix_vjp takes no body="),
    (lambda: ts.compile(CHAIN, ts.vjp(ts.mass_matrix), external=True), "takes no external wrenches"),
    (lambda: ts.compile(CHAIN, ts.vjp(ts.mass_matrix), wrt="tau"), "no derivative with respect to 'tau'"),
    (lambda: ts.compile(CHAIN, ts.vjp(ts.mass_matrix), trig="fast"), "fast trigonometry"),
    (lambda: program(CHAIN, ts.mass_matrix)(Q), "takes q, cotangent_nv_nv, not 1 arrays"),
    (lambda: program(CHAIN, ts.mass_matrix)(1.0, COTANGENT), r"q has shape \(\)"),
    (lambda: program(CHAIN, ts.mass_matrix)(Q, COTANGENT[:, :1]), r"cotangent has shape \(26, 1\)"),
    (lambda: program(CHAIN, ts.mass_matrix)(Q, COTANGENT * 1j), "cotangent has dtype complex128"),
    (lambda: ts.export(CHAIN, ts.vjp(ts.mass_matrix), "nowhere"), "a sum over the columns of a matrix and not one"),
])  # fmt: skip
def test_bad_arguments_are_refused_by_name(call, message):
    with pytest.raises(ts.ArgumentError, match=message):
        call()
