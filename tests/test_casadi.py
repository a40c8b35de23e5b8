"""`to_casadi`: values to the bit, and derivatives as CasADi finds them for the same algorithm on its symbols."""

import functools
import shutil
from dataclasses import replace

import numpy as np
import processes
import pytest
from peers.installed import peer

import torsor as ts
from torsor import ArgumentError, reference, zoo
from torsor.dynamics.functions import ALGORITHMS
from torsor.inputs import place_of
from torsor.model.extras import Coupling, Extras
from torsor.outputs import Path

ca, bridge = peer("casadi"), peer("torsor.casadi")

# CasADi differentiates the articulated sweeps and torsor solves M dx = ...: both lose a few of sixteen digits, and of
# second derivatives a few more.
ROUNDING = 1e-11
NODES = 3
MACHINES = {
    "Panda": (zoo.panda, {}),
    "quaternions": (lambda: zoo.random_tree(3, 5, joints=("spherical", "revolute", "free")), {}),
    "loops": (lambda: zoo.general_arm(3, 5), {"specialised": False}),
}
OPTIONS = {f: {"body": 1} if isinstance(a.output, Path) else {} for f, a in ALGORITHMS.items()}


def symbols(F):
    return [ca.MX.sym(F.name_in(i), F.sparsity_in(i)) for i in range(F.n_in())]


def by_casadi(model, function, names, options, nodes=NODES):
    """The same function, step by step on CasADi's symbols."""
    algorithm = ALGORITHMS[function]
    shapes = [place_of(name).shape(model) for name in names]
    inputs = [ca.SX.sym(name, int(np.prod(shape))) for name, shape in zip(names, shapes)]
    given = {}
    for name, x, shape in zip(names, inputs, shapes):
        flat = np.array([x[i] for i in range(x.numel())], object).reshape(shape)
        given[name] = flat.tolist()
    frame = model.frame(options["body"]) if "body" in options else None
    out = reference.evaluate(algorithm, model, given, frame=frame)
    rows = np.array(out, object).ravel().tolist()
    return ca.Function("symbolic", inputs, [ca.vertcat(*rows)], list(names), ["out"], {"cse": True}).map(nodes)


def state(model, names, nodes=NODES, seed=0):
    rng = np.random.default_rng(seed)
    return [
        model.random_configuration(rng, nodes).T if name == "q" else rng.normal(
            size=(nodes, int(np.prod(place_of(name).shape(model))))
        ).T
        for name in names
    ]  # fmt: skip


def derivatives(F):
    """The Jacobians of F, and the Hessian and the gradient of its product with a multiplier."""
    xs = symbols(F)
    c = ca.MX.sym("c", *F.size_out(0))
    sizes = [x.numel() for x in xs]
    z = ca.MX.sym("z", sum(sizes))
    parts = [ca.reshape(p, *x.shape) for p, x in zip(ca.vertsplit(z, [0, *np.cumsum(sizes).tolist()]), xs)]
    H, g = ca.hessian(ca.dot(c, F(*parts)), z)
    y = F(*xs)
    return ca.Function("first", xs, [ca.jacobian(y, x) for x in xs]), ca.Function("second", [z, c], [H, g])


def numbers(F, *given):
    found = F(*given)
    return [np.array(ca.densify(x)) for x in (found if isinstance(found, tuple | list) else [found])]


def agree(found, wanted):
    for x, y in zip(found, wanted, strict=True):
        assert np.abs(x - y).max(initial=0) <= ROUNDING * max(1.0, np.abs(y).max(initial=0))


@functools.cache
def pair(machine, function):
    make, options = MACHINES[machine]
    model, options = make(), options | OPTIONS[function]
    F = ts.to_casadi(model, function, NODES, **options)
    return model, F, by_casadi(model, function, F.name_in(), options)


FIRST = (ts.forward_dynamics, ts.inverse_dynamics, ts.body_poses)
# These are derivatives: the reference engine runs them on dual numbers only, or they have no derivatives themselves.
DERIVED = (ts.inverse_dynamics_derivatives, ts.forward_dynamics_derivatives, ts.log_det_gradient)
MORE = (ts.mass_matrix, ts.jacobian, ts.kinetic_energy)


@pytest.mark.parametrize(
    ("machine", "function"),
    [
        *(("quaternions", f) for f in FIRST),
        *(pytest.param("quaternions", f, marks=pytest.mark.slow) for f in MORE),
        ("loops", ts.forward_dynamics),
        pytest.param("loops", ts.inverse_dynamics, marks=pytest.mark.slow),
    ],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_values_and_derivatives_are_those_of_casadi(machine, function):
    model, F, S = pair(machine, function)
    given = state(model, F.name_in())
    (first, second), (first_s, second_s) = derivatives(F), derivatives(S)
    agree(numbers(F, *given), numbers(S, *given))
    agree(numbers(first, *given), numbers(first_s, *given))
    c = np.random.default_rng(1).normal(size=F.size_out(0))
    z = np.concatenate([x.ravel(order="F") for x in given])
    agree(numbers(second, z, c), numbers(second_s, z, c))


def test_the_panda_has_the_structural_zeros_that_casadi_finds():
    model, F, S = pair("Panda", ts.forward_dynamics)
    given, c = state(model, F.name_in()), np.ones(F.size_out(0))
    z = np.concatenate([x.ravel(order="F") for x in given])
    for own, symbolic, arguments in zip(derivatives(F), derivatives(S), (given, (z, c))):
        agree(numbers(own, *arguments), numbers(symbolic, *arguments))
        assert [own.nnz_out(i) for i in range(own.n_out())] == [symbolic.nnz_out(i) for i in range(own.n_out())]


@pytest.mark.slow
@pytest.mark.parametrize("function", [f for f in ALGORITHMS if f not in DERIVED])
def test_every_function(function):
    model = zoo.random_tree(3, 3, joints=("spherical", "revolute"))
    F = ts.to_casadi(model, function, 2, **OPTIONS[function])
    S = by_casadi(model, function, F.name_in(), OPTIONS[function], 2)
    given = state(model, F.name_in(), 2)
    agree(numbers(F, *given), numbers(S, *given))
    if function is not ts.torque_regressor:
        agree(numbers(derivatives(F)[0], *given), numbers(derivatives(S)[0], *given))


@pytest.mark.parametrize("nodes", [1, 2, 17])
def test_values_are_the_bits_of_numpy(nodes):
    arm = zoo.panda()
    F = ts.to_casadi(arm, ts.forward_dynamics, nodes)
    q, v, tau = state(arm, F.name_in(), nodes)
    assert F.name_in() == ["q", "v", "tau"]
    assert np.array_equal(np.array(F(q, v, tau)).T, ts.forward_dynamics(arm, q.T, v.T, tau.T))
    M = ts.to_casadi(arm, ts.mass_matrix, nodes)
    assert np.array_equal(np.array(M(q)).T, ts.mass_matrix(arm, q.T).reshape(nodes, 49))  # row by row


def test_wrenches_on_the_bodies_are_an_input_with_derivatives():
    arm = zoo.general_arm(3, 5)
    F = ts.to_casadi(arm, ts.forward_dynamics, 2, external=True)
    q, v, tau, wrench = state(arm, F.name_in(), 2)
    assert F.name_in() == ["q", "v", "tau", "external"]
    wanted = ts.forward_dynamics(arm, q.T, v.T, tau.T, external=wrench.T.reshape(2, 3, 6))
    assert np.array_equal(np.array(F(q, v, tau, wrench)).T, wanted)
    first, second = derivatives(F)
    by_wrench = numbers(first, q, v, tau, wrench)[3][:3, :18]
    slope = ts.jvp(ts.forward_dynamics, "external")
    at, own = (q.T[0], v.T[0], tau.T[0]), wrench.T[0].reshape(3, 6)
    wanted = [slope(arm, *at, e, external=own) for e in np.eye(18).reshape(18, 3, 6)]
    agree([by_wrench.T], [np.array(wanted)])
    z, c = np.concatenate([x.ravel(order="F") for x in (q, v, tau, wrench)]), np.ones((3, 2))
    H = numbers(second, z, c)[0]
    assert np.array_equal(H, H.T)
    assert not H[18:, 18:].any()  # linear in the wrenches


@pytest.mark.parametrize("machine", MACHINES)
def test_the_motion_of_the_base_is_an_input_with_derivatives(machine):
    """As CasADi has them for the same steps on its symbols."""
    (make, options), base = MACHINES[machine], ("base_velocity", "base_acceleration")
    F = ts.to_casadi(make(), ts.inverse_dynamics, NODES, **options, **dict.fromkeys(base, True))
    assert F.name_in() == ["q", "v", "qdd", *base]
    symbolic = by_casadi(make(), ts.inverse_dynamics, F.name_in(), {})
    given, c = state(make(), F.name_in()), np.random.default_rng(1).normal(size=(make().nv, NODES))
    arrays = {name: x.T for name, x in zip(F.name_in(), given)}
    wanted = ts.compile(make(), ts.inverse_dynamics, **options, **dict.fromkeys(base, True))(*arrays.values())
    assert np.array_equal(np.array(F(*given)).T, wanted)
    z = np.concatenate([x.ravel(order="F") for x in given])
    for own, theirs, arguments in zip(derivatives(F), derivatives(symbolic), (given, (z, c))):
        agree(numbers(own, *arguments), numbers(theirs, *arguments))


def test_wrenches_in_frames_of_the_bodies():
    """Seen from the model's frames, they are Ad_Q' F; equal frames share a function."""
    arm, rng = zoo.general_arm(3, 5), np.random.default_rng(0)
    Q = ts.lie.exp_se3(rng.normal(size=(3, 6)))
    F, plain = (ts.to_casadi(arm, ts.forward_dynamics, 2, external=True, **more) for more in ({"Q": Q}, {}))
    *rest, wrench = state(arm, F.name_in(), 2)
    moved = np.einsum("nji,mnj->mni", ts.lie.Ad(Q), wrench.T.reshape(2, 3, 6)).reshape(2, 18).T
    agree(numbers(F, *rest, wrench), numbers(plain, *rest, moved))
    program = ts.compile(arm, ts.forward_dynamics, external=True, Q=Q)
    assert np.array_equal(np.array(F(*rest, wrench)).T, program(*(x.T for x in rest), wrench.T.reshape(2, 3, 6)))
    first, plain_first = (derivatives(x)[0] for x in (F, plain))
    by_wrench = numbers(first, *rest, wrench)[3]
    wide = np.zeros((18, 18))
    for i, A in enumerate(ts.lie.Ad(Q)):
        wide[6 * i : 6 * i + 6, 6 * i : 6 * i + 6] = A.T
    agree([by_wrench], [numbers(plain_first, *rest, moved)[3] @ np.kron(np.eye(2), wide)])
    assert F is ts.to_casadi(arm, ts.forward_dynamics, 2, external=True, Q=Q.tolist())
    assert F is not plain


def test_couplings_are_obeyed():
    arm = ts.Model.chain(n=3, mass=1.0, com=(0.5, 0, 0), p=[(0, 0, 0), (1, 0, 0), (1, 0, 0)],
                         inertia=(0.1, 0.2, 0.3), axis=(0, 1, 0))  # fmt: skip
    arm = replace(arm, extras=Extras(couplings=(Coupling(2, 1, 0.5, 0.0),)))
    F = ts.to_casadi(arm, ts.forward_dynamics)
    q, v, tau = (np.array([0.3, 0.4, 0.2]) * k for k in (1.0, 2.0, 3.0))
    assert np.array_equal(np.array(F(q, v, tau)).ravel(), ts.forward_dynamics(arm, q, v, tau))
    dq = numbers(derivatives(F)[0], q, v, tau)[0]
    wanted = [ts.jvp(ts.forward_dynamics, "q")(arm, q, v, tau, e) for e in np.eye(3)]
    agree([dq.T], [np.array(wanted)])


def test_large_matrices_have_first_derivatives():
    """Their gradient is no single program: CasADi takes it from the Jacobian."""
    chain = zoo.general_arm(25, 1)
    blocks = bridge.Blocks(chain, ts.mass_matrix, {"specialised": False})
    assert not blocks.has_gradient
    F = ts.to_casadi(chain, ts.mass_matrix, 1, specialised=False)
    q = state(chain, ["q"], 1)[0]
    dq = numbers(derivatives_first(F), q)[0]
    e = np.eye(25)[3]
    agree([dq[:, 3]], [ts.jvp(ts.mass_matrix)(chain, q.T[0], e).ravel()])


def derivatives_first(F):
    xs = symbols(F)
    return ca.Function("first", xs, [ca.jacobian(F(*xs), x) for x in xs])


def test_functions_that_are_derivatives_have_values_only():
    F = ts.to_casadi(zoo.general_arm(3, 5), ts.forward_dynamics_derivatives)
    assert F.size_out(0) == (27, 1)
    with pytest.raises(RuntimeError, match="Derivatives cannot be calculated"):
        derivatives_first(F)


def test_a_part_of_a_larger_graph():
    """Outputs and inputs that are not needed, zeros and constants."""
    arm = zoo.general_arm(3, 5)
    F = ts.to_casadi(arm, ts.forward_dynamics, 2)
    q = ca.MX.sym("q", 3, 2)
    y = F(q, ca.MX(3, 2), np.ones((3, 2)))
    f = ca.Function("f", [q], [y, ca.jacobian(y[0, 1], q)])
    at = state(arm, ["q"], 2)[0]
    value, slope = numbers(f, at)
    assert np.array_equal(value.T, ts.forward_dynamics(arm, at.T, 0 * at.T, np.ones((2, 3))))
    whole = ts.forward_dynamics_derivatives(arm, at.T, 0 * at.T, np.ones((2, 3))).dq
    agree([slope[0, 3:]], [whole[1, 0]])


def test_equal_models_share_a_function():
    a, b = (ts.to_casadi(zoo.general_arm(3, 5), ts.forward_dynamics, 4) for _ in range(2))
    assert a is b
    assert a is not ts.to_casadi(zoo.general_arm(3, 5), ts.forward_dynamics, 5)
    assert isinstance(a, bridge.NodeCall)
    assert a is ts.to_casadi(zoo.general_arm(3, 5), ts.forward_dynamics, 4, external=False, method="auto", Q=None)


def test_nan_is_passed_on():
    arm = zoo.general_arm(3, 5)
    F = ts.to_casadi(arm, ts.forward_dynamics, 2)
    q, v, tau = state(arm, F.name_in(), 2)
    q[0, 1] = np.nan
    found = np.array(F(q, v, tau))
    assert np.isfinite(found[:, 0]).all()
    assert np.isnan(found[:, 1]).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((zoo.panda(), ts.forward_dynamics, 0), "nodes"),
        ((zoo.panda(), ts.forward_dynamics, 2.5), "nodes"),
        ((ts.ModelBatch(zoo.panda(), mass=np.ones((2, 7))), ts.forward_dynamics), "model must be a torsor.Model"),
        ((zoo.panda(), np.sin), "these can"),
        ((zoo.panda(), ts.vjp(ts.forward_dynamics)), "the function itself"),
        ((zoo.panda(), ts.jacobian), "needs body="),
        ((zoo.panda(), ts.jacobian, 1, {"body": [1]}), "body"),
        ((zoo.panda(), ts.mass_matrix, 1, {"base_velocity": True}), "takes no base_velocity"),
        ((zoo.panda(), ts.forward_dynamics, 1, {"base_velocity": np.zeros(6)}), "True or False"),
        ((zoo.panda(), ts.forward_dynamics, 1, {"Q": np.eye(4)}), "one pose per body"),
    ],
)
def test_bad_arguments(arguments, message):
    *given, options = arguments if len(arguments) == 4 else (*arguments, {})
    with pytest.raises(ArgumentError, match=message):
        ts.to_casadi(*given, **options)


def test_unknown_options_are_named():
    for name in ("dtype", "nods"):
        with pytest.raises(ArgumentError, match=f"no option '{name}'; it has nodes, .*external"):
            ts.to_casadi(zoo.panda(), ts.forward_dynamics, **{name: "float32"})


def test_without_casadi_the_error_says_what_to_install():
    call = "ts.to_casadi(ts.zoo.panda(), ts.forward_dynamics)"
    code = f"import sys; sys.modules['casadi'] = None; import torsor as ts; {call}"
    done = processes.run("-c", code)
    assert "pip install 'torsor[casadi]'" in done.stderr.splitlines()[-1]


def test_importing_torsor_imports_no_casadi():
    code = "import sys, torsor as ts; ts.forward_dynamics; assert 'casadi' not in sys.modules"
    processes.output(code)


# ---- exported C ----

FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fPIC", "-shared")


def library(folder, sources, name, *more):
    """A shared library of C files; quick to compile, which changes no bit."""
    command = ["cc", *FLAGS, *map(str, sources), *more, "-lm", "-o", str(folder / f"lib{name}.so")]
    processes.call(*command, check=True, cwd=folder)
    return str(folder / f"lib{name}.so")


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler is installed")
@pytest.mark.parametrize("function", [ts.forward_dynamics, ts.center_of_mass], ids=lambda f: f.__name__)
@pytest.mark.parametrize("specialised", [True, False], ids=["straight", "loops"])
@pytest.mark.parametrize("moves", [False, True], ids=["fixed", "moving base"])
def test_the_exported_library_is_the_same_function(function, specialised, moves, tmp_path):
    """Value, Jacobian, gradient and Hessian to the bit, with the same sparsity; also in code that CasADi generates."""
    arm, options = zoo.general_arm(3, 5), {"specialised": specialised}
    if moves:
        Q = ts.lie.exp_se3(np.random.default_rng(0).normal(size=(3, 6)))
        inputs = ALGORITHMS[function].options[:3]  # wrenches on the bodies, and the motion of the base
        options |= {"Q": Q, **dict.fromkeys(inputs, True)}
    files = ts.export(arm, function, tmp_path, name="own", api="casadi", **options)
    sources = [path for path in files if path.suffix == ".c" and path.name != "example.c"]
    F = ca.external("own_casadi", library(tmp_path, sources, "own_casadi"))
    G = ts.to_casadi(arm, function, **options)
    assert F.name_in() == G.name_in()
    given, c = state(arm, F.name_in(), 1), np.array([1.0, -2.0, 0.5])
    z = np.concatenate(given)
    second = None
    for own, python, arguments in zip((F, *derivatives(F)), (G, *derivatives(G)), (given, given, (z, c))):
        second = own
        for i in range(own.n_out()):
            assert own.sparsity_out(i) == python.sparsity_out(i)
        for x, y in zip(numbers(own, *arguments), numbers(python, *arguments)):
            assert np.array_equal(x, y)
    if function is ts.forward_dynamics and specialised and not moves:
        generator = ca.CodeGenerator("generated.c")
        generator.add(second)
        (tmp_path / "generated.c").write_text(generator.dump())
        command = ["cc", "-fPIC", "-shared", "generated.c", "-L.", "-lown_casadi", "-o", "libgenerated.so"]
        processes.call(*command, f"-Wl,-rpath,{tmp_path}", check=True, cwd=tmp_path)
        again = ca.external("second", str(tmp_path / "libgenerated.so"))
        assert np.array_equal(numbers(again, z, c)[0], numbers(second, z, c)[0])


def test_export_refuses_what_has_no_derivatives_by_coordinates(tmp_path):
    with pytest.raises(ArgumentError, match="has quaternions"):
        ts.export(zoo.humanoid(), ts.forward_dynamics, tmp_path, api="casadi")
    with pytest.raises(ArgumentError, match="is for float64"):
        ts.export(zoo.panda(), ts.forward_dynamics, tmp_path, api="casadi", dtype="float32")
    with pytest.raises(ArgumentError, match="unknown api"):
        ts.export(zoo.panda(), ts.forward_dynamics, tmp_path, api="acados")
    assert not list(tmp_path.iterdir())
