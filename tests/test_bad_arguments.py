"""Malformed calls are refused by name; odd but good ones are answered like ordinary ones."""

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from machines import difference
from peers import QUESTIONS, State

import torsor as ts
from torsor import zoo
from torsor.model.joints import joint_code

ARM = zoo.panda()  # n = nq = nv = 7
TREE = zoo.humanoid()  # nq = 37, nv = 36
Q, V, TAU = np.linspace(-1, 1, 21).reshape(3, 7)
WRENCHES = np.ones((7, 6))


def changed(x, index, value):
    x = np.array(x)
    x[index] = value
    return x


def forward(q=Q, v=V, tau=TAU, model=ARM, **options):
    return lambda: ts.forward_dynamics(model, q, v, tau, **options)


def inverse(q=Q, v=V, qdd=TAU, **options):
    return lambda: ts.inverse_dynamics(ARM, q, v, qdd, **options)


class Raising:
    """Seven numbers that cannot be read."""

    def __len__(self):
        return 7

    def __getitem__(self, k):
        raise ZeroDivisionError("broken")


# (what is wrong, the call, the error's class, what its message must say)
BAD = [
    ("q too short", forward(q=Q[:6]), ts.ArgumentError, r"q has shape \(6,\).*\(\.\.\., 7\)"),
    ("q too long", forward(q=np.zeros(8)), ts.ArgumentError, r"q has shape \(8,\)"),
    ("q of integers beyond doubles", forward(q=[10**400] * 7), ts.ArgumentError, "q holds an integer that is too"),
    ("v one integer beyond doubles", forward(v=10**400), ts.ArgumentError, r"v holds an integer|v has shape \(\)"),
    ("v that raises", lambda: ts.momentum(ARM, Q, Raising()), ts.ArgumentError, "v must be an array.*broken"),
    ("v masked", lambda: ts.momentum(ARM, Q, np.ma.masked_array(V, [True] * 7)), ts.ArgumentError, "masked"),
    ("wrt an array", lambda: ts.vjp(ts.mass_matrix, np.array("q")), ts.ArgumentError, "wrt must be one or more names"),
    ("q empty", lambda: ts.mass_matrix(ARM, []), ts.ArgumentError, r"q has shape \(0,\)"),
    ("q a scalar", lambda: ts.mass_matrix(ARM, 0.0), ts.ArgumentError, r"q has shape \(\)"),
    ("q as a column", lambda: ts.mass_matrix(ARM, Q[:, None]), ts.ArgumentError, r"q has shape \(7, 1\)"),
    ("v too short", forward(v=V[:3]), ts.ArgumentError, r"v has shape \(3,\)"),
    ("tau a scalar", forward(tau=1.0), ts.ArgumentError, r"tau has shape \(\)"),
    ("qdd too short", inverse(qdd=V[:1]), ts.ArgumentError, r"qdd has shape \(1,\)"),
    ("b too short", lambda: ts.mass_solve(ARM, Q, V[:1]), ts.ArgumentError, r"b has shape \(1,\)"),
    ("b too short, through M", lambda: ts.mass_solve(ARM, Q, V[:1], method="composite"), ts.ArgumentError,
     r"b has shape \(1,\)"),
    ("v as long as q", lambda: ts.kinetic_energy(TREE, TREE.neutral(), np.zeros(37)), ts.ArgumentError,
     r"v has shape \(37,\).*36"),
    ("q as long as v", lambda: ts.body_poses(TREE, np.zeros(36)), ts.ArgumentError,
     r"q has shape \(36,\).*37"),
    ("q None", forward(q=None), ts.ArgumentError, r"\bq\b"),
    ("v None", forward(v=None), ts.ArgumentError, r"\bv\b"),
    ("tau None", forward(tau=None), ts.ArgumentError, r"\btau\b"),
    ("qdd None", inverse(qdd=None), ts.ArgumentError, r"\bqdd\b"),
    ("q a word", forward(q="home"), ts.ArgumentError, r"\bq\b"),
    ("v words", forward(v=["1"] * 7), ts.ArgumentError, r"v has dtype <U1"),
    ("tau complex", forward(tau=TAU + 0j), ts.ArgumentError, "tau has dtype complex128"),
    ("q dates", forward(q=np.zeros(7, "datetime64[s]")), ts.ArgumentError, r"q has dtype datetime64"),
    ("q ragged", forward(q=[[1.0, 2.0], [3.0]]), ts.ArgumentError, r"\bq\b"),
    ("q a NaN", forward(q=changed(Q, 3, np.nan)), ts.ArgumentError, r"q\[3\] is nan"),
    ("v an infinity", forward(v=changed(V, 0, -np.inf)), ts.ArgumentError, r"v\[0\] is -inf"),
    ("tau infinite in a batch", forward(tau=changed(np.ones((4, 7)), (2, 5), np.inf)), ts.ArgumentError,
     r"tau\[2, 5\] is inf"),
    ("external of one body", forward(external=np.ones(6)), ts.ArgumentError, r"external has shape \(6,\)"),
    ("external without moments", forward(external=np.ones((7, 3))), ts.ArgumentError,
     r"external has shape \(7, 3\).*7, 6"),
    ("external a NaN", forward(external=changed(WRENCHES, (2, 5), np.nan)), ts.ArgumentError,
     r"external\[2, 5\] is nan"),
    ("base acceleration of three numbers", inverse(base_acceleration=np.ones(3)), ts.ArgumentError,
     r"base_acceleration has shape \(3,\)"),
    ("unknown method", forward(method="magic"), ts.ArgumentError, "'magic'.*articulated, composite"),
    ("unknown method of inverse dynamics", inverse(method="articulated"), ts.ArgumentError,
     "'articulated'.*newton-euler, ploen-park"),
    ("unknown method of a solve", lambda: ts.mass_solve(ARM, Q, V, method=""), ts.ArgumentError, "method ''"),
    ("method a number", forward(method=3), ts.ArgumentError, "method 3"),
    ("body too large", lambda: ts.jacobian(ARM, Q, 7), ts.ArgumentError, "body 7 is out of range.*7"),
    ("body too small", lambda: ts.jacobian(ARM, Q, -8), ts.ArgumentError, "body -8 is out of range"),
    ("body a fraction", lambda: ts.jacobian(ARM, Q, 1.5), ts.ArgumentError, "body 1.5"),
    ("body None", lambda: ts.jacobian_dot(ARM, Q, V, None), ts.ArgumentError, "body None"),
    ("unknown frame", lambda: ts.jacobian(ARM, Q, "tentacle"), ts.ArgumentError, "'tentacle'"),
    ("v too short for a Jacobian's rate", lambda: ts.jacobian_dot(ARM, Q, V[:2], 0), ts.ArgumentError,
     r"v has shape \(2,\)"),
    ("batches that do not fit", forward(q=np.ones((2, 7)), v=np.ones((3, 7))), ts.ArgumentError,
     r"q.*\(2, 7\).*v.*\(3, 7\)"),
    ("batch of wrenches that does not fit", forward(q=np.ones((2, 7)), external=np.ones((3, 7, 6))),
     ts.ArgumentError, r"q.*\(2, 7\).*external.*\(3, 7, 6\)"),
    ("no rotation", lambda: ts.body_poses(TREE, np.zeros(37)), ts.ArgumentError, r"q.*quaternion.*zero"),
    ("not a model", forward(model="panda"), ts.ArgumentError, "model"),
    ("a step from q too short", lambda: ARM.integrate(Q[:2], V), ts.ArgumentError, r"q must have.*\(2,\)"),
    ("a difference of words", lambda: ARM.difference(Q, ["x"] * 7), ts.ArgumentError, "q1 must hold real"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_malformed_call_is_refused_by_name(call, error, message):
    with pytest.raises(ts.TorsorError, match=message) as caught:
        call()
    assert caught.type is error


def test_errors_are_value_errors():
    """Whoever does not know torsor's classes can still catch them."""
    for error in (ts.ModelError, ts.ArgumentError, ts.SingularError):
        assert issubclass(error, ts.TorsorError)
        assert issubclass(error, ValueError)


# Odd but good -------------------------------------------------------------------------------------------

FUNCTIONS = QUESTIONS | {
    "body_twists": ("q", "v"),
    "coriolis_matrix": ("q", "v"),
    "mass_solve": ("q", "tau"),
    "log_det_mass_matrix": ("q",),
}
each_function = pytest.mark.parametrize("function", FUNCTIONS)
MODEL = zoo.random_tree(5, 3, joints=["revolute", "spherical", "planar"])
STATES = [State.random(MODEL, seed) for seed in range(3)]
# The same operations in another order, at most.
ROUNDING = 1e-13


def arguments(function):
    """The states as arrays with one batch axis, by name, and what is not an array."""
    together = {x: np.stack([getattr(s, x) for s in STATES]) for x in FUNCTIONS[function] if x != "body"}
    return together | ({"body": 4} if "body" in FUNCTIONS[function] else {})


def call(function, arrays):
    external = {"external": arrays["external"]} if "external" in arrays else {}
    return getattr(ts, function)(MODEL, *(x for name, x in arrays.items() if name != "external"), **external)


def converted(arrays, change):
    return {name: x if name == "body" else change(x) for name, x in arrays.items()}


@each_function
def test_a_batch_is_its_states_one_by_one(function):
    arrays = arguments(function)
    together = call(function, arrays)
    one_by_one = [call(function, converted(arrays, lambda x, k=k: x[k])) for k in range(len(STATES))]
    assert difference(together, np.stack(one_by_one)) <= ROUNDING


@each_function
def test_an_empty_batch_gives_an_empty_answer(function):
    arrays = arguments(function)
    empty = call(function, converted(arrays, lambda x: x[:0]))
    assert empty.shape == call(function, arrays)[:0].shape
    assert empty.dtype == np.float64


class Functional:
    """An array as it is inside torch.func.vmap: it has a shape, but no numbers, and every look at them raises."""

    shape, ndim, dtype = (7,), 1, np.dtype(float)

    def __init__(self, device):
        self.device = device

    def __array__(self, *_, **__):
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    __dlpack__ = detach = __array__

    def __dlpack_device__(self):
        if self.device is None:
            raise RuntimeError("unsupported inside vmap")
        return self.device, 0


def test_lists_are_read_while_another_thread_loads_masked_arrays(monkeypatch):
    """NumPy loads them when they are first used: until then the module is there, and empty."""
    monkeypatch.setitem(sys.modules, "numpy.ma", ModuleType("numpy.ma"))
    lists = Q.tolist(), V.tolist(), TAU.tolist()
    assert np.array_equal(ts.forward_dynamics(ARM, *lists), ts.forward_dynamics(ARM, Q, V, TAU))


@pytest.mark.parametrize("device", [None, 1], ids=["no device", "cpu"])
def test_arrays_without_numbers_are_refused_by_name(device):
    x, zero, batch = Functional(device), np.zeros(7), ts.ModelBatch(ARM, mass=ARM.mass[None])
    for refused, name in {
        lambda: ts.forward_dynamics(ARM, x, zero, zero): "q",
        lambda: ts.forward_dynamics(ARM, zero, zero, x): "tau",
        lambda: ts.forward_dynamics(batch, x, zero, zero): "q",
        lambda: ts.vjp(ts.mass_matrix)(ARM, x, np.eye(7)): "q",
        lambda: ts.simulate(ARM, x, duration=0.1): "q0",
        lambda: ts.rollout(ARM, x, zero, steps=1, step=0.1): "q",
        lambda: ts.Model.chain(mass=x): "mass",
    }.items():
        with pytest.raises(ts.ArgumentError, match=f"^{name} must be an array.*call them outside vmap, jit and grad"):
            refused()


LAYOUTS = {
    "Fortran order": np.asfortranarray,
    "every second of": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards in memory": lambda x: x[::-1].copy()[::-1],
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "lists": np.ndarray.tolist,
    "three batch axes": lambda x: x.reshape(1, 3, 1, *x.shape[1:]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@each_function
def test_the_layout_of_memory_does_not_matter(function, layout):
    arrays = arguments(function)
    expected = call(function, arrays)
    result = call(function, converted(arrays, LAYOUTS[layout]))
    assert difference(result.reshape(expected.shape), expected) <= ROUNDING


@each_function
def test_more_states_than_memory_holds_are_refused(function):
    """Without looking at them: an array that is broadcast takes no memory of its own."""
    arrays = converted(arguments(function), lambda x: np.broadcast_to(x[:1], (10**13, *x.shape[1:])))
    with pytest.raises(ts.ArgumentError, match=r"asks for more than the .* GB of memory"):
        call(function, arrays)


@each_function
def test_arguments_may_be_read_only_and_are_never_written(function):
    arrays = arguments(function)
    before = converted(arrays, np.copy)
    for x in arrays.values():
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    call(function, arrays)
    for name, x in arrays.items():
        np.testing.assert_array_equal(x, before[name])


@each_function
def test_an_answer_is_the_callers_own(function):
    """Writable, and not the memory of the next answer."""
    first, second = (call(function, arguments(function)) for _ in range(2))
    kept = second.copy()
    first[...] = 0
    np.testing.assert_array_equal(second, kept)


@each_function
def test_single_precision_in_single_precision_out(function):
    arrays = arguments(function)
    result = call(function, converted(arrays, lambda x: x.astype(np.float32)))
    assert result.dtype == np.float32
    assert difference(result, call(function, arrays)) <= 1e-5  # the worst seen is 9e-7


@each_function
def test_extended_precision_in_extended_precision_out(function):
    arrays = arguments(function)
    result = call(function, converted(arrays, lambda x: x[:1].astype(np.longdouble)))
    assert result.dtype == np.longdouble
    assert difference(result, call(function, arrays)[:1]) <= 1e-11


def test_results_that_a_precision_cannot_hold_are_refused():
    heavy = replace(ARM, mass=1e6 * ARM.mass, inertia=1e6 * ARM.inertia)
    with pytest.raises(ts.SingularError, match="mass_matrix overflows"):
        ts.mass_matrix(heavy, Q.astype(np.float16))
    largest = np.finfo(np.longdouble).max / 10
    with pytest.raises(ts.SingularError, match="kinetic_energy overflows"):
        ts.kinetic_energy(ARM, Q, np.full(7, largest))


def test_mixed_precisions_give_the_wider_one():
    q, v, tau = (STATES[0].q, STATES[0].v.astype(np.float32), STATES[0].tau.astype(np.float32))
    assert ts.forward_dynamics(MODEL, q, v, tau).dtype == np.float64


def test_integers_are_doubles():
    zeros, ones = [0] * 7, [1] * 7
    result = ts.forward_dynamics(ARM, zeros, ones, zeros)
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, ts.forward_dynamics(ARM, np.zeros(7), np.ones(7), np.zeros(7)))


def test_batch_axes_broadcast():
    q, v, tau = np.zeros((4, 1, 7)), np.linspace(-1, 1, 21).reshape(3, 7), np.ones(7)
    qdd = ts.forward_dynamics(ARM, q, v, tau, external=np.ones((7, 6)))
    assert qdd.shape == (4, 3, 7)
    alone = ts.forward_dynamics(ARM, q[3, 0], v[2], tau, external=np.ones((7, 6)))
    assert difference(qdd[3, 2], alone) <= ROUNDING


def test_a_scalar_answer_for_one_state_is_a_number():
    energy = ts.kinetic_energy(ARM, Q, V)
    assert np.shape(energy) == ()
    assert float(energy) > 0


def test_a_long_quaternion_is_the_same_rotation():
    state = STATES[0]
    q = state.q.copy()
    body = np.flatnonzero(MODEL.joint == joint_code("spherical"))[0]
    q[slice(*MODEL.q_start[body : body + 2])] *= 3.0
    assert difference(ts.mass_matrix(MODEL, q), ts.mass_matrix(MODEL, state.q)) <= ROUNDING
