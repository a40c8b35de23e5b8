"""vjp and jvp of every function: against 50-digit differences, against each other, and against Pinocchio."""

import inspect
import pickle
import re
from dataclasses import replace
from pathlib import Path

import cuda_host
import cuda_reader
import mpmath
import numpy as np
import pytest
from machines import ARRAY_FUNCTIONS, MACHINES, difference
from mpmath import mp
from peers.installed import peer
from peers.pinocchio_peer import PinocchioPeer

import torsor as ts
from torsor import duals, lie, reference, zoo
from torsor.algorithms import products
from torsor.backends.cpu import compile_program
from torsor.compiler.derivative import SOLVERS, derivative, takes_frame
from torsor.compiler.frames import framed
from torsor.compiler.request import ALWAYS, NEVER, Request
from torsor.dynamics import derivatives
from torsor.dynamics.functions import ALGORITHMS
from torsor.dynamics.methods import METHODS
from torsor.inputs import PARAMETERS, place_of
from torsor.linalg import Vec
from torsor.model.joints import JOINTS

pin = peer("pinocchio")

DIGITS, STEP = 60, mpmath.mpf("1e-20")  # central differences of 60 digits: an error of 1e-40
TOLERANCE = 1e-12  # rounding, times the condition of M where it is inverted (1e3 for these trees)
DUALITY = 1e-13  # the same number, summed in another order
# Pinocchio rounds: against extended precision its Jacobians err by 3e-13 on arms and by 1e-12 on the humanoid, whose M
# has condition 1e5; ours err by 4e-14 and 1e-14.
PINOCCHIO = {"panda": 1e-12, "puma560": 1e-12, "humanoid": 1e-11}
SINGLE = 2e-5  # float32: the worst seen is 3e-6
STEPS_OF_A_MODEL = 1e-9  # a model's numbers are float64: differences of fourth order lose half of the digits

TREE = zoo.random_tree(9, 1)  # every joint type, several roots and branches
SMALL = zoo.random_tree(4, 2, joints=["spherical", "revolute", "helical", "universal"])
FUNCTIONS = [f for f in ARRAY_FUNCTIONS if f is not ts.torque_regressor]
VECTORS = [f for f in FUNCTIONS if ALGORITHMS[f].columns is None]  # those that loops differentiate


# Loops for all joint types take seconds to compile; those of other functions are among the slow tests.
BRIEF = (ts.forward_dynamics, ts.inverse_dynamics, ts.body_poses, ts.kinetic_energy, ts.body_twists)


def slow_unless(quick, *values):
    """Parameters of a test that is slow unless it is quick."""
    return pytest.param(*values, marks=() if quick else pytest.mark.slow)


def arguments(model, algorithm, count=(), seed=0):
    """A random array for every input."""
    rng = np.random.default_rng(seed)
    return {
        name: model.random_configuration(rng, count)
        if name == "q"
        else rng.normal(size=(*count, *place_of(name).shape(model)))
        for name in algorithm.inputs
    }


def frame_for(model, algorithm):
    return model.frame(model.n - 1) if takes_frame(algorithm) else None


def tape_value(code, arrays):
    """Straight-line code, operation by operation: no compiler needs to be waited for."""
    x = []
    for op, a, b in code.nodes:
        match op:
            case "in":
                x.append(arrays[a[0]][a[1:]])
            case "const":
                x.append(np.float64(a))
            case "add" | "sub" | "mul":
                x.append({"add": np.add, "sub": np.subtract, "mul": np.multiply}[op](x[a], x[b]))
            case "down_scale":
                x.append(1.0)
            case "max":
                x.append(max(x[a], x[b]))
            case "zero":
                x.append(0.0)
            case _:
                unary = {"neg": np.negative, "inv": np.reciprocal, "abs": np.abs}
                x.append((unary.get(op) or getattr(np, op))(x[a]))
    names = [name[1:] for name in code.outputs]
    out = np.zeros(tuple(np.max(names, axis=0) + 1) if names[0] else ())
    for name, i in code.outputs.items():
        out[name[1:]] = x[i]
    return out


def value(algorithm, model, arrays, how):
    """The outputs in one row, by straight-line code or by loops."""
    request = Request(algorithm, model, frame=frame_for(model, algorithm), unroll=ALWAYS if how == "line" else NEVER)
    if how == "line":
        return tape_value(request.code, arrays)
    program = compile_program(algorithm, model, unroll=NEVER, lanes=1, frame=frame_for(model, algorithm))
    return program.rows(*arrays.values())


def rate(model, q, dq):
    """N(q) dq, over mpmath numbers."""
    parts = []
    for i, code in enumerate(model.joint):
        qs, vs = slice(*model.q_start[i : i + 2]), slice(*model.v_start[i : i + 2])
        parts += JOINTS[code].rate(Vec.of(q[qs]), Vec.of(dq[vs]))
    return parts


def exact_tangent(algorithm, model, arrays, tangents):
    """The directional derivative from two evaluations of the reference engine with 60 digits."""
    with mp.workdps(DIGITS):
        x = {name: [mpmath.mpf(float(y)) for y in values] for name, values in arrays.items()}
        dx = {name: [mpmath.mpf(float(y)) for y in values] for name, values in tangents.items()}
        dx["q"] = rate(model, x["q"], dx["q"])

        def at(h):
            moved = {name: [y + h * dy for y, dy in zip(x[name], dx[name])] for name in x}
            result = duals.evaluate(algorithm, model, moved, frame=frame_for(model, algorithm), number=mpmath.mpf)
            return np.array(result, dtype=object)

        return np.array((at(STEP) - at(-STEP)) / (2 * STEP), dtype=np.float64)


CASES = [(f, how) for f in FUNCTIONS for how in ("line", "loops") if how == "line" or f in VECTORS]


@pytest.mark.parametrize(
    ("function", "how"), [slow_unless(how == "line" or f in BRIEF, f, how) for f, how in CASES],
    ids=lambda x: getattr(x, "__name__", x),
)  # fmt: skip
def test_products_with_the_jacobian(function, how):
    """jvp is the directional derivative, and the scalar product of vjp and the tangent is that of cotangent and jvp."""
    algorithm, model = ALGORITHMS[function], TREE if how == "loops" else SMALL
    forward, reverse = (derivative(algorithm, mode, algorithm.inputs) for mode in ("jvp", "vjp"))
    given = arguments(model, forward)
    found = value(forward, model, given, how)
    tangents = {name: given[f"d{name}"] for name in algorithm.inputs}
    inputs = {name: given[name] for name in algorithm.inputs}
    assert difference(found, exact_tangent(algorithm, model, inputs, tangents)) <= TOLERANCE
    cotangent = np.random.default_rng(1).normal(size=found.shape)
    pulled = value(reverse, model, {**inputs, reverse.inputs[-1]: cotangent}, how)
    dx = np.concatenate([tangents[name] for name in algorithm.inputs])
    scale = np.abs(cotangent * found).sum() + np.abs(pulled * dx).sum()
    assert abs((cotangent * found).sum() - pulled @ dx) <= DUALITY * scale


MATRICES = [f for f in ARRAY_FUNCTIONS if ALGORITHMS[f].columns is not None]


@pytest.mark.parametrize("function", [slow_unless(f is ts.jacobian, f) for f in MATRICES], ids=lambda f: f.__name__)
def test_matrices_on_every_joint_type(function):
    """The jvp in loops, which follows the climbs, and in straight-line code, against differences of 60 digits."""
    algorithm = ALGORITHMS[function]
    forward = derivative(algorithm, "jvp", algorithm.inputs)
    given = arguments(TREE, forward)
    inputs = {name: given[name] for name in algorithm.inputs}
    exact = exact_tangent(algorithm, TREE, inputs, {name: given[f"d{name}"] for name in algorithm.inputs})
    for how in ("line", "loops"):
        assert difference(value(forward, TREE, given, how), exact) <= 10 * TOLERANCE


@pytest.mark.parametrize(
    "function", [slow_unless(f is ts.jacobian, f) for f in MATRICES if f is not ts.torque_regressor],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_vjp_of_large_matrices_is_a_sum_over_columns(function, monkeypatch):
    """Above 24 freedoms; the jvp, which has loops, is another transformation of another algorithm."""
    monkeypatch.setattr(derivatives, "MOST_FREEDOMS", 20)
    model = zoo.random_tree(9, 11)
    args = public_arguments(model, function, (2,))
    arrays = [x for x in args if isinstance(x, np.ndarray)]
    tangents = np.random.default_rng(3).normal(size=(len(arrays), 2, model.nv))
    pushed = ts.jvp(function)(model, *args, *tangents)
    cotangent = np.random.default_rng(2).normal(size=pushed.shape)
    pulled = ts.vjp(function)(model, *args, cotangent)
    total = sum((x * dx).sum() for x, dx in zip(pulled, tangents))
    assert abs(total - (pushed * cotangent).sum()) <= DUALITY * np.abs(pushed * cotangent).sum()
    one = ts.vjp(function, wrt="inertia")(model, *args, cotangent[1])
    assert one.inertia.shape == (2, model.n, 10)
    assert [x.shape for x in ts.vjp(function)(model, *args, cotangent[:0, None])] == [(0, 2, model.nv)] * len(arrays)
    with pytest.raises(ts.ArgumentError, match="cotangent has shape"):
        ts.vjp(function)(model, *args, cotangent[..., 1:])


@pytest.mark.parametrize("armature", [0.0, 0.3])
def test_products_are_those_of_the_matrices(armature):
    """M x, C x and dJ/dt x, from sweeps of their own."""
    model, rng = replace(TREE, armature=armature), np.random.default_rng(4)
    q, v, x = model.random_configuration(rng), *rng.normal(size=(2, model.nv))

    def of(algorithm, *inputs, frame=None):
        return np.array(reference.evaluate(algorithm, model, dict(zip(algorithm.inputs, inputs)), frame=frame))

    M, C, rate = (ALGORITHMS[f] for f in (ts.mass_matrix, ts.coriolis_matrix, ts.jacobian_dot))
    assert difference(of(products.mass_product, q, x), of(M, q) @ x) <= TOLERANCE
    assert difference(of(products.coriolis_product, q, v, x), of(C, q, v) @ x) <= TOLERANCE
    rates = [of(rate, q, v, frame=model.frame(body)) @ x for body in range(model.n)]
    assert difference(of(products.twist_rates, q, v, x), rates) <= TOLERANCE


@pytest.mark.parametrize("name", ["general arm", slow_unless(False, "floating tree"), slow_unless(False, "humanoid")])
def test_other_machines(name):
    model = MACHINES[name]()
    for algorithm in (ALGORITHMS[ts.forward_dynamics], ALGORITHMS[ts.inverse_dynamics]):
        forward, reverse = (derivative(algorithm, mode, algorithm.inputs) for mode in ("jvp", "vjp"))
        given = arguments(model, forward)
        line, loops = (value(forward, model, given, how) for how in ("line", "loops"))
        assert difference(loops, line) <= TOLERANCE
        given = arguments(model, reverse)
        line, loops = (value(reverse, model, given, how) for how in ("line", "loops"))
        assert difference(loops, line) <= TOLERANCE


@pytest.mark.parametrize("function", [f.__name__ for f in FUNCTIONS if f.__name__ in METHODS])
def test_every_method_has_the_same_derivatives(function):
    one, *others = (m for m in METHODS[function].values())
    expected = None
    for algorithm in (one, *others):
        reverse = derivative(algorithm, "vjp", algorithm.inputs)
        found = value(reverse, SMALL, arguments(SMALL, reverse), "line")
        expected = found if expected is None else expected
        assert difference(found, expected) <= TOLERANCE


@pytest.mark.slow
def test_solutions_are_differentiated_as_such_in_straight_line_code_only():
    """The implicit rule and the adjoint of the sweeps share no operation of the inverse, and agree."""
    for algorithm in (a for a in SOLVERS if a.has_loops):
        reverse = derivative(algorithm, "vjp", algorithm.inputs)
        given = arguments(TREE, reverse)
        assert difference(value(reverse, TREE, given, "loops"), value(reverse, TREE, given, "line")) <= TOLERANCE


# Arrays ----------------------------------------------------------------------------------------------------------


def public_arguments(model, function, count, dtype=np.float64):
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.KEYWORD_ONLY][1:]
    rng = np.random.default_rng(0)
    one = {"q": lambda: model.random_configuration(rng, count), "body": lambda: 1}
    return [one[x]() if x == "body" else np.asarray(one.get(x, lambda: rng.normal(size=(*count, model.nv)))(), dtype)
            for x in names]  # fmt: skip


ARM = zoo.general_arm(3)


@pytest.mark.parametrize("count", [(), (0,), (1,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("function", [ts.forward_dynamics, ts.jacobian, ts.kinetic_energy], ids=lambda f: f.__name__)
def test_batches(function, count):
    args = public_arguments(ARM, function, count)
    result = function(ARM, *args)
    cotangent = np.random.default_rng(2).normal(size=result.shape)
    pulled = ts.vjp(function)(ARM, *args, cotangent)
    arrays = [x for x in args if isinstance(x, np.ndarray)]
    assert [x.shape for x in pulled] == [(*count, ARM.nv) for _ in arrays]
    pushed = ts.jvp(function)(ARM, *args, *(np.ones((*count, ARM.nv)) for _ in arrays))
    assert pushed.shape == result.shape
    assert abs(sum(x.sum() for x in pulled) - (pushed * cotangent).sum()) <= DUALITY * (
        1 + np.abs(pushed * cotangent).sum()
    )


def test_arguments_broadcast_and_need_not_be_contiguous():
    q, v, tau = public_arguments(ARM, ts.forward_dynamics, (4,))
    cotangent = np.random.default_rng(1).normal(size=(2, 4, 3))
    one = ts.vjp(ts.forward_dynamics)(ARM, q, v, tau, cotangent)
    other = ts.vjp(ts.forward_dynamics)(ARM, np.asfortranarray(q), v[::-1][::-1], tau, cotangent[:, ::-1][:, ::-1])
    assert one.q.shape == (2, 4, 3)
    assert all((x == y).all() for x, y in zip(one, other))


@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "looped"])
def test_single_precision(specialised):
    args = public_arguments(SMALL, ts.forward_dynamics, (3,))
    args.append(np.random.default_rng(1).normal(size=(3, SMALL.nv)))
    expected = ts.vjp(ts.forward_dynamics)(SMALL, *args)
    program = ts.compile(SMALL, ts.vjp(ts.forward_dynamics), dtype="float32", specialised=specialised, lanes=1)
    for x, y in zip(program(*(x.astype(np.float32) for x in args)), expected):
        assert x.dtype == np.float32
        assert difference(x, y) <= SINGLE


@pytest.mark.parametrize("wrt", ["q", "v", "tau"])
@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "looped"])
def test_what_is_not_finite_shows_even_where_nothing_depends_on_it(specialised, wrt):
    program = ts.compile(ARM, ts.vjp(ts.forward_dynamics), wrt=wrt, specialised=specialised, lanes=1)
    args = [*public_arguments(ARM, ts.forward_dynamics, ()), np.ones(3)]
    assert np.isfinite(program(*args)[0]).all()
    for k, x in enumerate(args):
        spoilt = [*args[:k], np.where(np.arange(3) == 1, np.nan, x), *args[k + 1 :]]
        assert np.isnan(program(*spoilt)[0]).any()


def test_integers_are_numbers():
    assert ts.vjp(ts.gravity_forces)(ARM, [0, 1, 2], [1, 0, 0]).q.dtype == np.float64


# Parameters ------------------------------------------------------------------------------------------------------

WRENCH = np.random.default_rng(7).normal(size=(SMALL.n, 6))


def changed(model, inertia, placement, gravity):
    """The model with other numbers."""
    pi = inertial_parameters(model) + inertia
    mass, com = pi[:, 0], pi[:, 1:4] / pi[:, :1]
    about_origin = pi[:, [4, 5, 6, 5, 7, 8, 6, 8, 9]].reshape(-1, 3, 3)
    poses = np.zeros((model.n, 4, 4))
    poses[:, :3, :3], poses[:, :3, 3], poses[:, 3, 3] = model.R, model.p, 1.0
    poses = poses @ lie.exp_se3(placement)
    return replace(model, mass=mass, com=com, inertia=about_origin - _shift(mass, com), R=poses[:, :3, :3],
                   p=poses[:, :3, 3], gravity=model.gravity + gravity)  # fmt: skip


def inertial_parameters(model):
    """(n, 10): m, m c, I about the origin."""
    I = model.inertia + _shift(model.mass, model.com)
    upper = I[:, [0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2]]
    return np.concatenate([model.mass[:, None], model.mass[:, None] * model.com, upper], axis=1)


def _shift(m, c):
    return m[:, None, None] * (np.einsum("ni,ni->n", c, c)[:, None, None] * np.eye(3) - c[:, :, None] * c[:, None, :])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("function", [slow_unless(f in BRIEF, f) for f in VECTORS], ids=lambda f: f.__name__)
def test_derivatives_by_the_model(function):
    """In loops; `test_dual_numbers_agree` looks at straight-line code."""
    algorithm = ALGORITHMS[function]
    wrt = (*algorithm.inputs, *PARAMETERS)
    forward, reverse = (derivative(algorithm, mode, wrt) for mode in ("jvp", "vjp"))
    model = SMALL
    given = arguments(model, forward)
    given["dinertia"] *= 0.01
    found = value(forward, model, given, "loops")
    inputs = [given[name] for name in algorithm.inputs]

    def at(h):
        moved = changed(model, *(h * given[f"d{name}"] for name in PARAMETERS))
        q = model.integrate(inputs[0], h * given["dq"])
        return function(moved, q, *(x + h * given[f"d{n}"] for n, x in zip(algorithm.inputs[1:], inputs[1:])))

    h = 1e-4
    expected = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    assert difference(found, expected) <= STEPS_OF_A_MODEL
    cotangent = np.random.default_rng(1).normal(size=found.shape)
    pulled = value(reverse, model, {n: given.get(n, cotangent) for n in reverse.inputs}, "loops")
    dx = np.concatenate([given[f"d{name}"].ravel() for name in wrt])
    scale = np.abs(cotangent * found).sum() + np.abs(pulled * dx).sum()
    assert abs((cotangent * found).sum() - pulled @ dx) <= DUALITY * scale


def test_torques_are_linear_in_inertia_gravity_wrenches_and_the_acceleration_of_the_base():
    """So their derivatives are themselves: no differences are needed."""
    q, v, qdd = public_arguments(SMALL, ts.inverse_dynamics, ())
    base = np.arange(6.0)
    wrt = ("inertia", "gravity", "external", "base_acceleration")
    tangents = [inertial_parameters(SMALL), SMALL.gravity, WRENCH, base]
    options = {"external": WRENCH, "base_acceleration": base}
    tau = ts.inverse_dynamics(SMALL, q, v, qdd, **options)
    by_inertia = ts.jvp(ts.inverse_dynamics, "inertia")(SMALL, q, v, qdd, tangents[0], **options)
    by_wrench = ts.jvp(ts.inverse_dynamics, "external")(SMALL, q, v, qdd, WRENCH, **options)
    assert difference(by_inertia + by_wrench, tau) <= TOLERANCE
    cotangent = np.ones(SMALL.nv)
    pulled = ts.vjp(ts.inverse_dynamics, wrt)(SMALL, q, v, qdd, cotangent, **options)
    assert pulled._fields == wrt
    still = ts.jvp(ts.inverse_dynamics, wrt[1:])(SMALL, q, 0 * v, 0 * qdd, *tangents[1:], **options)
    assert (
        abs((pulled.inertia * tangents[0]).sum() + (pulled.external * WRENCH).sum() - tau.sum())
        <= 1e-12 * np.abs(tau).sum()
    )
    assert difference(still, ts.inverse_dynamics(SMALL, q, 0 * v, 0 * qdd, **options)) <= TOLERANCE


def test_moving_a_placement_along_the_axis_is_turning_the_joint():
    q, v, tau = public_arguments(ARM, ts.forward_dynamics, ())
    pulled = ts.vjp(ts.forward_dynamics, ("q", "placement"))(ARM, q, v, tau, np.ones(3))
    assert difference(np.einsum("ni,ni->n", pulled.placement[:, :3], ARM.axis), pulled.q) <= TOLERANCE


# Other numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [slow_unless(f in BRIEF, f) for f in FUNCTIONS], ids=lambda f: f.__name__)
def test_dual_numbers_agree(function):
    """The reference for derivatives runs on longdoubles: it shares the steps of the algorithms, and nothing else."""
    args = public_arguments(SMALL, function, ())
    result = function(SMALL, *args)
    cotangent = np.random.default_rng(1).normal(size=np.shape(result))
    wrt = (*ALGORITHMS[function].inputs, *PARAMETERS)
    found = ts.vjp(function, wrt)(SMALL, *args, cotangent)
    extended = [x if isinstance(x, int) else x.astype(np.longdouble) for x in args]
    expected = ts.vjp(function, wrt)(SMALL, *extended, cotangent.astype(np.longdouble))
    for x, y in zip(found, expected):
        assert y.dtype == np.longdouble
        assert difference(x, y, scale=1e-3 * max(np.abs(z).max() for z in expected)) <= TOLERANCE
    tangents = [np.ones_like(x) for x in expected]
    pushed = ts.jvp(function, wrt)(SMALL, *extended, *tangents)
    assert difference(ts.jvp(function, wrt)(SMALL, *args, *(x.astype(float) for x in tangents)), pushed) <= TOLERANCE
    assert abs((pushed * cotangent).sum() - sum(x.sum() for x in expected)) <= 1e-15 * sum(
        np.abs(x).sum() for x in expected
    )


def test_second_derivatives_by_dual_numbers():
    q, v, tau = public_arguments(SMALL, ts.forward_dynamics, ())
    rng = np.random.default_rng(3)
    wrt = ("q", "v", "inertia", "placement")
    d = [rng.normal(size=place_of(name).shape(SMALL) if name != "q" else SMALL.nv) * 0.1 for name in wrt]
    function = ts.vjp(ts.jvp(ts.forward_dynamics, wrt), wrt)
    given = [q, v, tau, *d, rng.normal(size=SMALL.nv)]
    found, expected = function(SMALL, *given), function(SMALL, *(x.astype(np.longdouble) for x in given))
    for x, y in zip(found, expected):
        assert difference(x, y) <= 10 * TOLERANCE


# Twice -----------------------------------------------------------------------------------------------------------

FLAT = zoo.random_tree(4, 3, joints=["revolute", "universal", "helical", "cylindrical"])


@pytest.mark.parametrize("how", ["line", slow_unless(False, "loops")])
@pytest.mark.parametrize("function", [ts.forward_dynamics, ts.inverse_dynamics, ts.log_det_mass_matrix, ts.body_poses],
                         ids=lambda f: f.__name__)  # fmt: skip
def test_hessian_vector_products(function, how):
    """vjp of jvp against mixed differences of 60 digits."""
    algorithm = ALGORITHMS[function]
    inner = derivative(algorithm, "jvp", algorithm.inputs)
    outer = derivative(inner, "vjp", algorithm.inputs)
    given = arguments(FLAT, outer)
    other = arguments(FLAT, inner, seed=5)
    pulled = value(outer, FLAT, given, how)
    found = pulled @ np.concatenate([other[f"d{name}"] for name in algorithm.inputs])
    with mp.workdps(DIGITS):
        h = mpmath.mpf("1e-10")

        def at(a, b):
            moved = {
                n: [mpmath.mpf(float(x)) + a * mpmath.mpf(float(y)) + b * mpmath.mpf(float(z))
                    for x, y, z in zip(given[n], given[f"d{n}"], other[f"d{n}"])]
                for n in algorithm.inputs
            }  # fmt: skip
            result = np.array(reference.evaluate(algorithm, FLAT, moved, number=mpmath.mpf), dtype=object)
            return np.sum(result * given[outer.inputs[-1]])

        expected = float((at(h, h) - at(h, -h) - at(-h, h) + at(-h, -h)) / (4 * h * h))
    assert abs(found - expected) <= TOLERANCE * np.abs(pulled).max() * 10


def test_the_hessian_of_the_kinetic_energy_is_the_mass_matrix():
    q, v = public_arguments(SMALL, ts.kinetic_energy, ())
    product = ts.vjp(ts.jvp(ts.kinetic_energy, wrt="v"), wrt="v")
    rows = [product(SMALL, q, v, e, 1.0).v for e in np.eye(SMALL.nv)]
    assert difference(rows, ts.mass_matrix(SMALL, q)) <= TOLERANCE


# Programs --------------------------------------------------------------------------------------------------------


def test_programs_are_pickled_and_say_what_they_are():
    program = ts.compile(ARM, ts.vjp(ts.jvp(ts.forward_dynamics)), wrt=("q", "dq"), method="articulated")
    assert program.name == "forward_dynamics_jvp_vjp"
    assert program.inputs == ("q", "v", "tau", "dq", "dv", "dtau", "cotangent_nv")
    again = pickle.loads(pickle.dumps(program))
    args = [np.random.default_rng(k).normal(size=3) for k in range(7)]
    assert all((x == y).all() for x, y in zip(program(*args), again(*args)))
    assert sum(program.operations) > 0


ON_CUDA = {
    "vjp of forward dynamics": ts.vjp(ts.forward_dynamics),
    "jvp of poses": ts.jvp(ts.body_poses),
    "vjp of momentum": ts.vjp(ts.momentum),
    "vjp of poses by placements": ts.vjp(ts.body_poses, ("q", "placement")),
    "jvp of M": ts.jvp(ts.mass_matrix),
    "jvp of the inverse": ts.jvp(ts.inverse_mass_matrix),
    "gradient of log det M": ts.log_det_gradient,
}
QUICK = ["vjp of forward dynamics-looped", "vjp of momentum-looped", "vjp of poses by placements-unrolled"]
CUDA_CASES = [f"{name}-{how}" for name in ON_CUDA for how in ("unrolled", "looped")]


@pytest.mark.parametrize("case", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in CUDA_CASES])
def test_cuda_text_computes_what_the_cpu_does(case):
    name, _, how = case.partition("-")
    function, specialised = ON_CUDA[name], how == "unrolled"
    model = zoo.puma_saha() if specialised else zoo.random_tree(5, 3)
    program = ts.compile(model, function, target="cuda", specialised=specialised)
    cpu = ts.compile(model, function, specialised=specialised)
    args = list(arguments(model, program.request.algorithm, (70,)).values())  # more than a block
    if cuda_host.compiler():
        assert (cuda_host.run(program.kernel, args, framed(model)) == cpu.rows(*args)).all()
    else:
        assert difference(cuda_reader.run(program.kernel, args, framed(model)), cpu.rows(*args)) <= TOLERANCE


# Other programs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [SMALL, pytest.param(TREE, marks=pytest.mark.slow)], ids=["straight line", "loops"])
def test_gradients_are_those_of_the_analytical_jacobians(model):
    q, v, x = public_arguments(model, ts.forward_dynamics, ())
    cotangent = np.random.default_rng(1).normal(size=model.nv)
    for function, jacobians in (
        (ts.forward_dynamics, ts.forward_dynamics_derivatives),
        (ts.inverse_dynamics, ts.inverse_dynamics_derivatives),
    ):
        for found, J in zip(ts.vjp(function)(model, q, v, x, cotangent), jacobians(model, q, v, x)):
            assert difference(found, J.T @ cotangent) <= TOLERANCE
    found = ts.vjp(ts.inverse_dynamics, "inertia")(model, q, v, x, cotangent).inertia
    assert difference(found.ravel(), ts.torque_regressor(model, q, v, x).T @ cotangent) <= TOLERANCE


@pytest.mark.parametrize("name", PINOCCHIO)
def test_gradients_are_pinocchios(name):
    model = getattr(zoo, name)()
    peer = PinocchioPeer(model)
    q, v, tau = public_arguments(model, ts.forward_dynamics, ())
    cotangent = np.random.default_rng(1).normal(size=model.nv)
    T, data = peer.velocity_map(q), peer.pin_model.createData()
    assert (peer.velocity_map_dot(q, v) == 0).all()
    jacobians = pin.computeABADerivatives(peer.pin_model, data, peer.configuration(q), T @ v, T @ tau)
    found = ts.vjp(ts.forward_dynamics)(model, q, v, tau, cotangent)
    for x, J in zip(found[:2], jacobians):
        assert difference(x, T.T @ J.T @ T @ cotangent) <= PINOCCHIO[name]


def test_the_examples_of_the_page_run():
    page = Path(__file__).parent.parent / "docs" / "derivatives.md"
    exec("\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.S)), {})


# Bad arguments ---------------------------------------------------------------------------------------------------

STATE = public_arguments(ARM, ts.forward_dynamics, ())


@pytest.mark.parametrize(("call", "message"), [
    (lambda: ts.vjp(ts.simulate), "^simulate has no derivative; these have: forward_dynamics, .*, rollout"),
    (lambda: ts.vjp(ts.fixman_force), "fixman_force.* has no derivative"),
    (lambda: ts.vjp("forward_dynamics"), r"'forward_dynamics' is only a name: give the function, ts\.forward_dynamics"),
    (lambda: ts.vjp(ts.vjp(ts.forward_dynamics)), r"vjp\(forward_dynamics\) is not differentiated this way"),
    (lambda: ts.jvp(ts.jvp(ts.forward_dynamics)), r"jvp\(forward_dynamics\) is not differentiated this way"),
    (lambda: ts.vjp(ts.forward_dynamics, wrt=3), "wrt must be one or more names"),
    (lambda: ts.vjp(ts.forward_dynamics, wrt=()), "wrt must be one or more names"),
    (lambda: ts.vjp(ts.forward_dynamics, wrt=("q", "q")), "wrt names something twice"),
    (lambda: ts.vjp(ts.forward_dynamics, "qdd")(ARM, *STATE, STATE[0]), "no derivative with respect to 'qdd'; it has"),
    (lambda: ts.vjp(ts.gravity_forces, "external")(ARM, STATE[0], STATE[0]), "derivative with respect to 'external'"),
    (lambda: ts.vjp(ts.forward_dynamics)(ARM, *STATE), "takes model, q, v, tau, cotangent; 4 arguments"),
    (lambda: ts.jvp(ts.forward_dynamics)(ARM, *STATE, *STATE[:2]), "takes model, q, v, tau, dq, dv, dtau; 6"),
    (lambda: ts.vjp(ts.forward_dynamics)(ARM, *STATE, np.ones(4)), r"cotangent has shape \(4,\)"),
    (lambda: ts.vjp(ts.forward_dynamics)(ARM, *STATE, np.full(3, np.inf)), "cotangent.* is inf"),
    (lambda: ts.vjp(ts.forward_dynamics)(ARM, *STATE, "x"), "cotangent"),
    (lambda: ts.vjp(ts.forward_dynamics)("arm", *STATE, STATE[0]), "model"),
    (lambda: ts.vjp(ts.forward_dynamics, "external")(ARM, *STATE, STATE[0]), "give external=, perhaps zeros"),
    (lambda: ts.vjp(ts.gravity_forces)(ARM, STATE[0], STATE[0], external=np.zeros((3, 6))), "takes no external"),
    (lambda: ts.vjp(ts.jacobian)(ARM, STATE[0], None, np.ones((6, 3))), "body None is the base"),
    (lambda: ts.compile(zoo.rope(30), ts.vjp(ts.jvp(ts.mass_matrix))), "at most 24 freedoms, not 60"),
    (lambda: ts.vjp(ts.forward_dynamics)(ARM, *STATE, STATE[0], method="fixman"), 'method "fixman" is not compiled'),
    (lambda: ts.compile(ARM, ts.forward_dynamics, wrt="q"), r"wrt is for vjp and jvp: compile ts.vjp\(forward"),
    (lambda: ts.compile(ARM, ts.vjp(ts.jvp(ts.mass_matrix)), specialised=False), "straight-line code only"),
])  # fmt: skip
def test_bad_arguments_are_refused_by_name(call, message):
    with pytest.raises(ts.ArgumentError, match=message):
        call()
