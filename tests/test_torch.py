"""torsor.torch: the bits of the NumPy path, and derivatives by autograd, torch.func and inside torch.compile."""

import warnings
from importlib import import_module
from itertools import product

import cuda_host
import fake_cupy
import numpy as np
import pytest
from bridged import (
    MACHINES,
    MOVING,
    ROUNDING,
    SECOND,
    along_numbers,
    changed,
    moving,
    numbers,
    relative,
    states,
)
from peers.installed import peer

import torsor as ts
from torsor.backends import gpu

# PyTorch itself calls what it deprecates; the type of the warning depends on its version.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script")


@pytest.fixture(scope="module")
def torch():
    """PyTorch is slow to import, so no file does when tests are collected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = peer("torch")
        torch.manual_seed(0)
    return torch


@pytest.fixture(scope="module")
def bridge(torch):
    return import_module("torsor.torch")


@pytest.fixture(scope="module", params=MACHINES)
def model(request):
    return MACHINES[request.param]()


def tensors(torch, xs, graph=False):
    return [torch.tensor(np.asarray(x), requires_grad=graph) for x in xs]


@pytest.mark.parametrize("function", [ts.forward_dynamics, ts.mass_matrix, ts.kinetic_energy], ids=lambda f: f.__name__)
def test_a_function_gives_the_bits_of_its_program(torch, bridge, model, function):
    program, own = ts.compile(model, function), bridge.function(model, function)
    given = dict(zip(("q", "v", "tau"), states(model, (2, 3))))
    xs = [given[name] for name in program.inputs]
    for some in (xs, [x[0, 0] for x in xs], [xs[0][:, :1], *(x[0] for x in xs[1:])], [x[:0] for x in xs]):
        for graph in (False, True):
            found = own(*tensors(torch, some, graph))
            assert found.requires_grad == graph
            assert np.array_equal(found.detach(), program(*some))
    mapped = torch.vmap(own, (0, *[None] * (len(xs) - 1)))(*tensors(torch, [xs[0], *(x[0] for x in xs[1:])]))
    assert np.array_equal(mapped, program(xs[0], *(x[0] for x in xs[1:])))


def test_float32_and_mixed_types(torch, bridge):
    arm = MACHINES["arm"]()
    xs = [x.astype(np.float32) for x in states(arm, (5,))]
    own = bridge.function(arm, ts.forward_dynamics)
    found = own(*tensors(torch, xs))
    assert found.dtype is torch.float32
    assert np.array_equal(found, ts.compile(arm, ts.forward_dynamics, dtype="float32")(*xs))
    wide = [xs[0].astype(np.float64), *xs[1:]]
    graph = tensors(torch, wide, True)
    for order in ((0, 1, 2), (1, 0, 2)):  # the first tensor decides nothing
        assert own(*[graph[k] for k in order]).dtype is torch.float64
    own(*graph).sum().backward()
    assert [x.grad.dtype for x in graph] == [torch.float64, torch.float32, torch.float32]


def test_arguments_of_every_kind(torch, bridge):
    """Lists and integers are numbers, also behind a tensor; what is given beside them is never written."""
    arm = MACHINES["arm"]()
    own, program = bridge.function(arm, ts.forward_dynamics), ts.compile(arm, ts.forward_dynamics)
    q, v, tau = states(arm)
    whole = np.arange(3)
    given = torch.tensor(q), v.tolist(), torch.tensor(whole)
    assert np.array_equal(own(*given), program(q, np.float32(v), whole))  # PyTorch's lists are float32
    assert np.array_equal(own(torch.tensor(q), v, torch.nn.Parameter(torch.tensor(tau))).detach(), program(q, v, tau))
    wide = torch.tensor(np.stack([q, q]).T).T  # columns first
    assert np.array_equal(own(wide, *tensors(torch, (v, tau))), program(np.stack([q, q]), v, tau))
    more = tensors(torch, (q, v, tau, tau))
    with pytest.raises(ts.ArgumentError, match="takes q, v, tau; 4"):
        own(*more)
    assert np.array_equal(more[3], tau)


def test_derivatives_forwards(torch, bridge, model):
    """With dual tensors, whether or not there is a graph for the way back."""
    forward = torch.autograd.forward_ad
    q, v, tau = states(model)
    along = states(model, seed=1)
    own = bridge.function(model, ts.forward_dynamics)
    found = []
    for graph in (False, True):
        with forward.dual_level(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of itself
            xs = [forward.make_dual(x, y) for x, y in zip(tensors(torch, (q, v, tau), graph), tensors(torch, along))]
            found.append(forward.unpack_dual(own(*xs)).tangent.detach())
    exact = torch.func.jvp(own, tuple(tensors(torch, (q, v, tau))), tuple(tensors(torch, along)))[1]
    assert all(torch.equal(x, exact) for x in found)
    if model.nq == model.nv:
        assert np.array_equal(exact, ts.jvp(ts.forward_dynamics)(model, q, v, tau, *along))


def test_several_results(torch, bridge, model):
    xs = states(model)
    found = bridge.function(model, ts.inverse_dynamics_derivatives)(*tensors(torch, xs))
    expected = ts.compile(model, ts.inverse_dynamics_derivatives)(*xs)
    assert found._fields == expected._fields
    assert all(map(np.array_equal, found, expected))


def test_a_moving_base_and_frames_of_the_bodies(torch, bridge, model):
    """The bits of the program, and derivatives by all of it."""
    state, (Q, inputs) = states(model, (2,)), moving(model, (2,))
    own = bridge.function(model, ts.forward_dynamics, Q=Q, **MOVING)
    expected = ts.compile(model, ts.forward_dynamics, Q=Q, **MOVING)(*state, *inputs)
    for graph in (False, True):
        assert np.array_equal(own(*tensors(torch, (*state, *inputs), graph)).detach(), expected)
    weight = np.random.default_rng(2).normal(size=(2, model.nv))
    xs = tensors(torch, (*state, *inputs), True)
    (own(*xs) * torch.tensor(weight)).sum().backward()
    exact = ts.compile(model, ts.vjp(ts.forward_dynamics, (*MOVING,)), Q=Q)(*state, weight, *inputs)
    for x, one in zip(xs[3:], exact):
        assert relative(x.grad, one) <= ROUNDING
    fixed = tensors(torch, (*state, inputs[0]))
    base = tensors(torch, inputs[1:], True)
    assert torch.autograd.gradcheck(lambda *base: own(*fixed, *base), base, check_forward_ad=False)
    assert torch.autograd.gradgradcheck(lambda *base: own(*fixed, *base), base)


def test_gradients_are_those_of_vjp(torch, bridge, model):
    q, v, tau = states(model)
    q = 1.3 * q
    weight = np.random.default_rng(1).normal(size=model.nv)
    xs = tensors(torch, (q, v, tau), True)
    (bridge.function(model, ts.forward_dynamics)(*xs) @ torch.tensor(weight)).backward()
    expected = ts.vjp(ts.forward_dynamics)(model, q, v, tau, weight)
    assert relative(xs[0].grad, along_numbers(model, q, expected.q)) <= ROUNDING
    assert np.array_equal(xs[1].grad, expected.v)
    assert np.array_equal(xs[2].grad, expected.tau)


@pytest.mark.parametrize("threads", [1, 3])
def test_gradients_of_large_batches_have_the_same_bits(torch, bridge, threads):
    """They are cut by machine code; what has no batch axis gets the sum over the batch."""
    arm, count = MACHINES["arm"](), 4 * bridge.LARGE + 5
    (q, v, tau), offsets = states(arm), np.linspace(0, 1, count)[:, None]
    xs = tensors(torch, (q + offsets, v, tau - offsets), True)
    bridge.function(arm, ts.forward_dynamics, threads=threads)(*xs).sum().backward()
    expected = ts.compile(arm, ts.vjp(ts.forward_dynamics))(q + offsets, v, tau - offsets, np.ones(3))
    assert np.array_equal(xs[0].grad, expected.q)
    assert np.array_equal(xs[2].grad, expected.tau)
    assert relative(xs[1].grad, expected.v.sum(0)) <= ROUNDING


def test_derivatives_agree_with_differences(torch, bridge, model):
    """With batch axes that broadcast, so that cotangents are summed."""
    own = bridge.function(model, ts.forward_dynamics)
    q, v, tau = states(model, (2, 2))
    xs = tensors(torch, (q[:, :1], v[0], tau[0, 0]), True)
    assert torch.autograd.gradcheck(own, xs, check_forward_ad=False)
    assert torch.autograd.gradgradcheck(own, xs)


def test_hessians_are_the_same_five_ways_and_symmetric(torch, bridge, model):
    q, v, tau = tensors(torch, states(model))
    own, func = bridge.function(model, ts.forward_dynamics), torch.func
    ways = [func.jacfwd, func.jacrev]
    found = [outer(inner(lambda q: own(q, v, tau).square().sum()))(q) for outer, inner in product(ways, ways)]
    found.append(torch.autograd.functional.hessian(lambda q: own(q, v, tau).square().sum(), q))
    for H in found:
        assert relative(H, found[0]) <= SECOND
        assert relative(H, H.T) <= SECOND


def test_a_compiled_function_is_one_graph_with_the_same_bits(torch, bridge, model):
    own, xs = bridge.function(model, ts.forward_dynamics), states(model, (3,))

    def loss(q, v, tau):
        return own(q, v, tau).square().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        for dtype in (torch.float64, torch.float32):
            a, b = ([x.to(dtype).detach().requires_grad_() for x in tensors(torch, xs)] for _ in range(2))
            compiled(*b).backward()  # nothing was called before
            loss(*a).backward()
            assert all(torch.equal(x.grad, y.grad) for x, y in zip(a, b))


def test_the_operator_keeps_the_rules_of_torch_library(torch, bridge):
    arm = MACHINES["arm"]()
    bridge.function(arm, ts.forward_dynamics)
    key = bridge.bridge(arm, ts.forward_dynamics, "float64", bridge.Options.checked(arm, (), None, {})).key
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(bridge._operator, (key, "value", tensors(torch, states(arm), True)))


WRT = ("inertia", "gravity", "placement")


def test_numbers_of_the_model_are_inputs(torch, bridge, model):
    xs, given = states(model), numbers(model)
    own = bridge.function(model, ts.forward_dynamics, wrt=WRT)
    found = own(*tensors(torch, (*xs, *given)))
    assert relative(found, ts.forward_dynamics(changed(model, *given), *xs)) <= ROUNDING


def test_gradients_by_numbers_of_the_model(torch, bridge):
    arm = ts.zoo.general_arm(2, 1)
    xs, (pi, g, xi) = states(arm), numbers(arm)
    own = bridge.function(arm, ts.forward_dynamics, wrt=WRT)
    given = tensors(torch, (*xs, pi, g, 0 * xi), True)
    own(*given).sum().backward()
    expected = ts.vjp(ts.forward_dynamics, wrt=WRT)(changed(arm, pi, g), *xs, np.ones(2))
    assert all(relative(x.grad, y) <= SECOND for x, y in zip(given[3:], expected))
    moved = bridge.function(arm, ts.forward_dynamics, wrt="placement")
    fixed, free = tensors(torch, xs), tensors(torch, [xi], True)
    assert torch.autograd.gradcheck(lambda xi: moved(*fixed, xi), free, rtol=1e-4)
    assert torch.autograd.gradgradcheck(lambda xi: moved(*fixed, xi), free, rtol=1e-4)


def test_a_rollout_and_its_gradient_are_one_operation(torch, bridge, model):
    rng, options = np.random.default_rng(1), dict(steps=4, step=1e-2, every=2)
    sizes = [(4, model.nq + model.nv), (model.nv, 4)]
    policy = ts.Policy([(0.1 * rng.normal(size=size), np.zeros(size[0])) for size in sizes], "softsign")
    forces, wrt = [policy, ts.Constant(np.ones(model.nv))], ("Policy.layers", "inertia", "Constant.tau")
    run = bridge.rollout(model, forces=forces, wrt=wrt, **options)
    q, v, _ = states(model, (3,))
    layers = [tuple(tensors(torch, layer, True)) for layer in policy.layers]
    q_, v_, pi, tau = tensors(torch, (q, v, model.inertial_parameters(), forces[1].tau), True)
    path = run(q_, v_, layers, pi, tau)
    expected = ts.rollout(model, q, v, forces=forces, **options)
    assert relative(path[0].detach(), expected.q) <= ROUNDING
    c = rng.normal(size=expected.v.shape)
    (path[1] * torch.tensor(c)).sum().backward()
    exact = ts.vjp(ts.rollout, wrt)(model, q, v, (0 * c, c), forces=forces, **options)
    assert relative(v_.grad, exact.v) <= SECOND
    assert relative(pi.grad, exact["inertia"].sum(0)) <= SECOND
    assert relative(tau.grad, exact["Constant.tau"].sum(0)) <= SECOND
    assert relative(layers[1][0].grad, exact["Policy.layers"][1][0].sum(0)) <= SECOND
    assert relative(q_.grad[0], along_numbers(model, q[0], exact.q[0])) <= SECOND


def test_mistakes_are_named(torch, bridge):
    arm = MACHINES["arm"]()
    q, v, tau = tensors(torch, states(arm))
    own = bridge.function(arm, ts.forward_dynamics)
    run = bridge.rollout(arm, steps=2, step=0.1)
    graph = q.clone().requires_grad_()

    def third():
        slope = torch.func.jacrev(torch.func.jacrev(torch.func.jacrev(lambda q: own(q, v, tau).sum())))
        return slope(q)

    def second():
        (slope,) = torch.autograd.grad(run(graph, v)[0].square().sum(), graph, create_graph=True)
        slope.square().sum().backward()

    for mistake, words in {
        lambda: own(q, v): "takes q, v, tau; 2",
        lambda: own(): "takes q, v, tau; 0",
        lambda: own(q[:2], v, tau): r"q has shape \(2,\)",
        lambda: own(q, v[0], tau): r"v has shape \(\)",
        lambda: own(q, v + 1j, tau): "the real part",
        lambda: own(q, np.ma.masked_array(v, True), tau): "masked",
        lambda: run(q + 1j, v): "the real part",
        lambda: torch.vmap(lambda q: run(q, v)[0])(q[None]): "not by torch.func",
        second: "has first derivatives",
        lambda: own(torch.stack([q, q]), torch.stack([v] * 3), tau): "batch axes do not go together",
        lambda: own(q.to("meta"), v, tau): "are on cpu, meta: torsor.torch takes tensors on the CPU",
        lambda: own(*(x.to("meta") for x in (q, v, tau))): "are on meta",
        lambda: own(graph, v, tau[:1]): r"tau has shape \(1,\)",
        lambda: bridge.function(arm, ts.vjp(ts.forward_dynamics)): "give forward_dynamics itself",
        lambda: bridge.function(arm, ts.mass_matrix, base_velocity=True): "takes no base_velocity",
        lambda: run(q, v, tau): "takes q, v; 3",
        lambda: run(q.to("meta"), v): "on the CPU",
        lambda: ts.forward_dynamics(arm, graph, v, tau): "torsor.torch.function",
        third: "third",
    }.items():
        with pytest.raises(ts.ArgumentError, match=words):
            mistake()


# On a GPU: a stand-in for CuPy and the driver takes tensors of the CPU, and kernels run on the host -------------------


@pytest.fixture
def device(torch, bridge, monkeypatch):
    module = fake_cupy.Cupy()
    fake_cupy.install(monkeypatch, module)
    monkeypatch.setattr(bridge, "_on_gpu", lambda x: True)
    monkeypatch.setattr(gpu, "on_device", lambda x: True)
    monkeypatch.setattr(gpu, "as_cupy", lambda x, kind: x.detach().numpy().view(fake_cupy.Array))
    monkeypatch.setattr(gpu, "stream", lambda kind: fake_cupy.Stream())
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 21, raising=False)
    return module


@pytest.mark.skipif(not cuda_host.compiler(), reason="kernels run on the host through a C++ compiler")
def test_tensors_on_a_gpu_are_computed_there_on_pytorchs_stream(torch, bridge, device):
    """Values, gradients and second derivatives, also under torch.func and torch.compile."""
    arm = ts.zoo.random_chain(2, 8)
    own, xs = bridge.function(arm, ts.forward_dynamics), states(arm, (3,))
    graph = tensors(torch, (xs[0], xs[1][0], xs[2]), True)
    for _ in range(2):
        found = own(*graph)
        assert relative(found.detach(), ts.forward_dynamics(arm, xs[0], xs[1][0], xs[2])) <= ROUNDING
        assert device.functions[-1].launches[-1].stream == 21
    slopes = torch.autograd.grad(found.sum(), graph, create_graph=True)
    expected = ts.vjp(ts.forward_dynamics)(arm, xs[0], xs[1][0], xs[2], np.ones(2))
    assert relative(slopes[0].detach(), expected.q) <= ROUNDING
    assert relative(slopes[1].detach(), expected.v.sum(0)) <= ROUNDING
    (twice,) = torch.autograd.grad(slopes[0].square().sum(), graph[2])
    assert twice.shape == (3, 2)
    one = tensors(torch, [x[0] for x in xs])
    assert torch.func.jacrev(own)(*one).shape == (2, 2)
    mapped = torch.vmap(own)(*tensors(torch, xs))
    assert relative(mapped, ts.forward_dynamics(arm, *xs)) <= ROUNDING
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(lambda *x: 2 * own(*x), fullgraph=True, backend="aot_eager")
        assert relative(compiled(*tensors(torch, xs)), 2 * ts.forward_dynamics(arm, *xs)) <= ROUNDING


def test_functions_give_tensors_for_tensors(torch, model):
    xs = states(model)
    given, last = tensors(torch, xs), model.n - 1
    for function in (
        ts.forward_dynamics,
        lambda *x: ts.kinetic_energy(*x[:3]),
        lambda *x: ts.vjp(ts.forward_dynamics)(*x, x[2]).q,
        lambda *x: ts.jacobian_dot(*x[:3], last, reference="world"),
        lambda *x: ts.forward_dynamics(*x, method="composite"),
        lambda *x: ts.forward_dynamics(*x, method="fixman"),
    ):
        found = function(model, *given)
        assert isinstance(found, torch.Tensor)
        assert np.array_equal(found, function(model, *xs))
