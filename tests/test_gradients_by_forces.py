"""Gradients of rollouts by the parameters of their forces, and Jacobians of one step, against central differences."""

from dataclasses import replace

import numpy as np
import pytest

import torsor as ts
from torsor import zoo
from torsor.model.freedoms import limited_coordinates
from torsor.motion.law import collect

# Differences of fourth order: truncation and rounding both leave nine digits of sums that cancel.
TOLERANCE = 1e-7
ROUNDING = 1e-10  # of gradients that cancel: their terms have some 10
SMALL, SMALLER = 1e-3, 1e-5  # of differences; the second derivative of a softsign jumps: few such places lie so close
H, STEPS, EVERY, COUNT = 2e-3, 6, 2, 3
METHODS = ["semi-implicit", "implicit-euler", "rk4"]
MODELS = {
    "7 freedoms": zoo.general_arm(7),
    "14 freedoms": zoo.general_arm(14, 2),
    "tree": zoo.random_tree(5, 1, joints=["spherical", "revolute", "free", "universal", "prismatic"]),
}
SETS = {
    "joints": ("PD.kp", "PD.kd", "Spring.stiffness", "Spring.damping", "Friction.coulomb", "Friction.viscous",
               "Constant.tau", "Table.tau"),
    "gains": ("Feedback.K", "Table.tau"),
    "network": ("Policy.layers", "Constant.tau"),
}  # fmt: skip
QUICK = {("7 freedoms", "implicit-euler"), ("14 freedoms", "implicit-euler"), ("14 freedoms", "rk4"),
         ("tree", "semi-implicit"), ("tree", "implicit-euler")}  # fmt: skip
CASES = [
    pytest.param(kind, model, method, marks=[] if (model, method) in QUICK else pytest.mark.slow)
    for kind in SETS for model in MODELS for method in METHODS
]  # fmt: skip


def forces_of(model, kind, seed=0):
    """Forces whose parameters are differentiated."""
    rng, nv, width = np.random.default_rng(seed), model.nv, model.nq + model.nv
    flat = limited_coordinates(model) >= 0
    times = H * np.linspace(-0.3, STEPS, 4)
    goal, rest = model.random_configuration(rng, 2)
    everything = {
        "PD": ts.PD(goal, np.where(flat, rng.uniform(1, 9, nv), 0.0), rng.uniform(0.1, 1, nv)),
        "Spring": ts.Spring(rng.uniform(1, 5, nv), rest, rng.uniform(0.1, 1, nv)),
        "Friction": ts.Friction(rng.uniform(0, 1, nv), rng.uniform(0, 1, nv), creep=0.1),
        "Constant": ts.Constant(rng.normal(size=nv)),
        "Feedback": ts.Feedback(0.3 * rng.normal(size=(nv, width)), rng.normal(size=width), rng.normal(size=nv)),
        "Table": ts.Table(times, rng.normal(size=(4, nv)), "linear" if kind == "joints" else "previous"),
        "Policy": ts.Policy([(rng.normal(size=(5, width)), rng.normal(size=5)), (rng.normal(size=(4, 5)), np.zeros(4)),
                             (rng.normal(size=(nv, 4)), rng.normal(size=nv))], "softsign"),
    }  # fmt: skip
    wanted = dict.fromkeys(name.split(".")[0] for name in SETS[kind])
    return [everything[name] for name in wanted]


def changed(forces, name, change, h):
    """The forces with h times the change added to a parameter."""
    kind, parameter = name.split(".")

    def moved(force):
        x = getattr(force, parameter)
        if parameter == "layers":
            return [tuple(a + h * b for a, b in zip(*pair)) for pair in zip(x, change)]
        return np.asarray(x) + h * change

    return [replace(x, **{parameter: moved(x)}) if type(x).__name__ == kind else x for x in forces]


def direction(force, parameter, rng):
    x = getattr(force, parameter)
    if parameter == "layers":
        return [tuple(rng.normal(size=np.shape(y)) for y in layer) for layer in x]
    # what is zero stays zero: servos at quaternions are functions
    return rng.normal(size=np.shape(x)) * (np.asarray(x) != 0 if parameter == "kp" else 1.0)


def inner(found, change):
    """<gradient, change> of every trajectory."""
    pairs = zip(found, change) if isinstance(found, list) else [((found,), (change,))]
    products = (np.where(y == 0, 0.0, x * y) for layer in pairs for x, y in zip(*layer))
    return sum(x.reshape(len(x), -1).sum(axis=1) for x in products)


def differences(f, h):
    return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)


def check(machine, forces, names, method):
    model = machine.model if isinstance(machine, ts.ModelBatch) else machine
    rng = np.random.default_rng(1)
    q, v = model.random_configuration(rng, COUNT), rng.normal(size=(COUNT, model.nv))
    gq, gv = rng.normal(size=(2, COUNT, STEPS // EVERY, model.nv))
    options = {"steps": STEPS, "step": H, "every": EVERY, "method": method}
    found = ts.vjp(ts.rollout, names)(machine, q, v, (gq, gv), forces=forces, **options)
    base = ts.rollout(machine, q, v, forces=forces, **options)

    def loss(forces):
        moved = ts.rollout(machine, q, v, forces=forces, **options)
        return ((model.difference(base.q, moved.q) * gq) + (moved.v - base.v) * gv).sum(axis=(-1, -2))

    by_kind = {type(force).__name__: force for force in forces}
    for name in names:
        kind, parameter = name.split(".")
        change = direction(by_kind[kind], parameter, rng)
        size = SMALLER if parameter == "layers" else SMALL
        expected = differences(lambda h, name=name, change=change: loss(changed(forces, name, change, h)), size)
        error = np.abs(inner(found[name], change) - expected).max()
        assert error <= TOLERANCE * np.abs(expected).max(), name


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("kind", "model", "method"), CASES)
def test_gradients_by_parameters_of_forces(kind, model, method):
    check(MODELS[model], forces_of(MODELS[model], kind), SETS[kind], method)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize(("name", "method"), [("7 freedoms", "implicit-euler"), ("tree", "semi-implicit")])
def test_gradients_of_machines_that_differ(kind, name, method):
    model, rng = MODELS[name], np.random.default_rng(5)
    factor = rng.uniform(0.8, 1.2, (COUNT, model.n))
    batch = ts.ModelBatch(model, mass=model.mass * factor, damping=rng.uniform(0.1, 1, (COUNT, model.nv)),
                          gravity=rng.normal(size=(COUNT, 3)))  # fmt: skip
    check(batch, forces_of(model, kind), SETS[kind], method)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("joints", [("revolute",), ("spherical", "revolute", "free")], ids=["arm", "tree"])
def test_gradients_by_the_model_are_those_of_every_member(joints, method):
    model, rng = zoo.random_tree(3, 1, joints=[*joints]), np.random.default_rng(6)
    batch = ts.ModelBatch(
        model, mass=model.mass * rng.uniform(0.5, 2, (COUNT, 3)), damping=rng.uniform(0, 1, (COUNT, model.nv))
    )
    q, v = model.random_configuration(rng, COUNT), rng.normal(size=(COUNT, model.nv))
    seed = rng.normal(size=(2, COUNT, STEPS, model.nv))
    vjp, options = (
        ts.vjp(ts.rollout, ("gravity", "inertia", "placement")),
        {"steps": STEPS, "step": H, "method": method},
    )
    found = vjp(batch, q, v, tuple(seed), **options)
    for k in range(COUNT):
        alone = vjp(batch[k], q[k], v[k], tuple(seed[:, k]), **options)
        for name in ("gravity", "inertia", "placement"):
            np.testing.assert_allclose(found[name][k], alone[name], rtol=0, atol=1e-12 * np.abs(alone[name]).max())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", [False, True], ids=["one model", "a batch"])
def test_motions_under_computed_torques_do_not_depend_on_masses(batch, method):
    """Where the controller knows the machine, the error obeys the same equation for every machine."""
    arm, rng = zoo.planar3(), np.random.default_rng(5)
    machine = ts.ModelBatch(arm, mass=arm.mass * np.array([[1.0], [2.0]])) if batch else arm
    q, v, cotangent = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), tuple(rng.normal(size=(2, 2, 4, 3)))
    gradient = ts.vjp(ts.rollout, ("inertia", "gravity", "placement"))(
        machine, q, v, cotangent, steps=4, step=0.01, method=method, forces=ts.ComputedTorque(0.3, 30.0, 5.0)
    )
    for name in ("inertia", "gravity", "placement"):
        assert np.abs(gradient[name]).max() < ROUNDING


@pytest.mark.parametrize("method", METHODS)
def test_gradients_by_parameters_of_every_trajectory(method):
    """With axes of trajectories; numbers for all freedoms; and numbers that are zero."""
    model, rng = zoo.general_arm(3), np.random.default_rng(2)
    names = "PD.kp", "PD.kd", "Friction.coulomb", "Spring.stiffness", "Constant.tau"
    forces = [ts.PD(rng.normal(size=(COUNT, 3)), rng.uniform(1, 9, (COUNT, 3)), 0.5), ts.Friction(0.1, 0.0, creep=0.1),
              ts.Spring(np.zeros(3), damping=0.1), ts.Constant(rng.normal(size=(COUNT, 3)))]  # fmt: skip
    check(model, forces, names, method)
    q, v = np.zeros((2, 3))
    seed = (np.ones((1, 3)), np.ones((1, 3)))
    found = ts.vjp(ts.rollout, names)(model, q, v, seed, forces=forces_of(model, "joints"), steps=1, step=H)
    assert [found[name].shape for name in names] == [(3,)] * 5
    alone = ts.vjp(ts.rollout, "PD.kd")(model, q, v, seed, forces=ts.PD(1.0, 2.0, 3.0), steps=1, step=H)
    assert alone["PD.kd"].shape == ()


@pytest.mark.parametrize("method", METHODS)
def test_gradients_by_parameters_of_what_changes_in_time(method):
    """Servos and computed torques that follow a motion, gains in time, and wrenches in time that act beside them."""
    model, rng, times = zoo.general_arm(3), np.random.default_rng(7), H * np.arange(0, STEPS, 2.0)
    goal, waves = ts.Cycloid(np.zeros(3), np.ones(3), STEPS * H), rng.normal(size=(2, 3, 3, 6))
    wrenches = [ts.External(w, H * np.array([0.0, 2.0, 9.0]), way) for w, way in zip(waves, ("linear", "previous"))]
    gains = ts.Feedback(rng.normal(size=(3, 3, 6)), rng.normal(size=(3, 6)), rng.normal(size=(3, 3)), t=times)
    for force, names in (
        (ts.PD(goal, rng.uniform(1, 9, 3), 0.5), ("PD.kp", "PD.kd")),
        (
            ts.ComputedTorque(goal, rng.uniform(1, 9, 3), rng.uniform(1, 9, 3)),
            ("ComputedTorque.kp", "ComputedTorque.kd"),
        ),
        (gains, ("Feedback.K", "Feedback.x_ref", "Feedback.tau")),
    ):
        check(model, [*wrenches, force], names, method)


@pytest.mark.parametrize(("force", "name"), [
    (ts.Pull("link2", (1.0, 2.0, 3.0)), "Pull.force"),
    (ts.External(np.ones((3, 6))), "External.wrenches"),
    (ts.Table([0.0, 1.0], np.eye(2, 3)), "Table.t"),
    (ts.Policy([(np.ones((3, 6)), np.zeros(3))]), "Policy.activation"),
])  # fmt: skip
def test_what_has_no_gradient_is_said(force, name):
    q, v = np.zeros((2, 3))
    with pytest.raises(ts.ArgumentError, match=f"{name} has no gradient"):
        ts.vjp(ts.rollout, name)(zoo.general_arm(3), q, v, tuple(np.ones((2, 4, 3))), forces=force, steps=4, step=H)


def test_zeros_of_limits_mean_the_stiffness_of_the_model():
    """A gradient by them is that by the stiffness that acts."""
    model, zero = zoo.general_arm(3), np.zeros(3)
    given = {"steps": 4, "step": H, "method": "implicit-euler"}
    q, seed = np.full(3, 0.2), tuple(np.ones((2, 4, 3)))
    numbers = collect(model, ts.Limits(-0.1, 0.1)).values.reshape(4, 3)
    one = ts.vjp(ts.rollout, "Limits.stiffness")(model, q, zero, seed, forces=ts.Limits(-0.1, 0.1, zero, zero), **given)
    stated = ts.Limits(-0.1, 0.1, *numbers[2:])
    other = ts.vjp(ts.rollout, "Limits.stiffness")(model, q, zero, seed, forces=stated, **given)
    np.testing.assert_allclose(one["Limits.stiffness"], other["Limits.stiffness"], rtol=1e-9)
    assert other["Limits.stiffness"].all()


def test_a_servo_beside_quaternions_has_gradients_where_it_is_data():
    model, (kp, kd) = MODELS["tree"], np.ones((2, MODELS["tree"].nv))
    flat = limited_coordinates(model) >= 0
    q, v = model.neutral(), np.ones(model.nv)
    servo = ts.PD(q, np.where(flat, kp, 0.0), kd)
    found = ts.vjp(ts.rollout, "PD.kp")(model, q, v, tuple(np.ones((2, 3, model.nv))), forces=servo, steps=3, step=H)
    np.testing.assert_array_equal(np.isfinite(found["PD.kp"]), flat)


def test_a_servo_on_quaternions_has_no_gradient():
    model = MODELS["tree"]
    q, v = model.neutral(), np.zeros(model.nv)
    seed = np.ones((2, 1, model.nv))
    with pytest.raises(ts.ArgumentError, match="no gradient"):
        ts.vjp(ts.rollout, "PD.kp")(model, q, v, seed, forces=ts.PD(q, 1.0, 1.0), steps=1, step=H)


@pytest.mark.parametrize("kind", SETS)
def test_gradients_of_no_trajectories(kind):
    model = zoo.general_arm(3)
    q, v = np.zeros((2, 2, 0, 3))
    forces = forces_of(model, kind)
    found = ts.vjp(ts.rollout, SETS[kind])(
        model, q, v, tuple(np.zeros((2, 2, 0, 4, 3))), forces=forces, steps=4, step=H
    )
    assert found.q.shape == (2, 0, 3)
    assert found.tau.shape == (2, 0, 4, 3)
    for name in SETS[kind]:
        parts = [x for layer in found[name] for x in layer] if name == "Policy.layers" else [found[name]]
        assert {x.shape[:2] for x in parts} == {(2, 0)}


# Jacobians of a step -----------------------------------------------------------------------------------------------


@pytest.mark.thinned(3)
@pytest.mark.parametrize("forces", ["none", "joints", "gains", "waves"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["7 freedoms", "tree"])
def test_step_derivatives_are_those_of_differences(name, method, forces):
    model, rng = MODELS[name], np.random.default_rng(3)
    given = forces_of(model, forces) if forces in SETS else []
    if forces == "waves":
        given = [ts.External(rng.normal(size=(2, model.n, 6)), [-1.0, 1.0]) for _ in range(2)]
    q, v, tau = model.random_configuration(rng, 2), *rng.normal(size=(2, 2, model.nv))
    found = ts.step_derivatives(model, q, v, tau, H, method, given)
    nv, eye = model.nv, np.eye(model.nv)

    def end(q, v, tau):
        run = ts.rollout(model, q, v, steps=1, step=H, method=method, forces=[*given, ts.Constant(tau)])
        return run.q[..., 0, :], run.v[..., 0, :]

    for x, y in zip((found.q, found.v), end(q, v, tau)):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-13)

    def columns(move):
        """The Jacobian of a step by a change of its inputs along every direction."""

        def change(h):
            new_q, new_v = end(*move(h))
            return np.concatenate([model.difference(np.broadcast_to(found.q[:, None], new_q.shape), new_q), new_v], -1)

        return np.moveaxis(differences(change, 1e-3), 1, 2)

    q1, v1, tau1 = q[:, None], v[:, None], tau[:, None]
    by_q = columns(lambda h: (model.integrate(q1 + np.zeros((nv, 1)), h * eye), v1, tau1))
    by_v = columns(lambda h: (q1, v1 + h * eye, tau1))
    by_tau = columns(lambda h: (q1, v1, tau1 + h * eye))
    for x, y in ((found.dx, np.concatenate([by_q, by_v], axis=-1)), (found.dtau, by_tau)):
        assert np.abs(x - y).max() <= TOLERANCE * max(1.0, np.abs(y).max())


@pytest.mark.parametrize("name", ["7 freedoms", "tree", "14 freedoms"])
def test_step_derivatives_of_batches(name):
    """Of none, one and several states, with and without axes: the same numbers."""
    model, rng = MODELS[name], np.random.default_rng(4)
    q, v, tau = model.random_configuration(rng, 6), *rng.normal(size=(2, 6, model.nv))
    several = ts.step_derivatives(model, q, v, tau, H, "semi-implicit")
    n = 2 * model.nv
    for rows, shape in ((slice(0), (0,)), (slice(1), (1,)), (0, ()), (slice(6), (2, 3))):
        args = (x[rows].reshape(*shape, x.shape[-1]) for x in (q, v, tau))
        found = ts.step_derivatives(model, *args, H, "semi-implicit")
        assert [x.shape[len(shape) :] for x in found] == [(model.nq,), (model.nv,), (n, n), (n, model.nv)]
        for x, y in zip(found, several):
            assert x.shape[: len(shape)] == shape
            np.testing.assert_array_equal(x, y[rows].reshape(x.shape))
    for x, y in zip(ts.step_derivatives(model, q[0], v, tau[0], H, "semi-implicit"),
                    ts.step_derivatives(model, *np.broadcast_arrays(q[0], np.zeros((6, 1)))[:1], v, tau[0] + 0 * v, H,
                                        "semi-implicit")):  # fmt: skip
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("wrong", "message"), [
    ({"tau": np.zeros(6)}, "tau of Constant has shape"),
    ({"q": np.zeros(6)}, r"q has shape \(6,\)"),
    ({"q": np.zeros((2, 7)), "v": np.zeros((3, 7))}, "batch axes"),
    ({"q": np.zeros((2, 7)), "tau": np.zeros((3, 7))}, "batch axes"),
    ({"step": 0.0}, "step"),
    ({"method": "dopri5"}, "method"),
    ({"forces": lambda t, q, v: -v}, "functions"),
])  # fmt: skip
def test_bad_arguments_of_step_derivatives_are_refused_by_name(wrong, message):
    given = {"q": np.zeros(7), "v": np.zeros(7)} | wrong
    with pytest.raises(ts.ArgumentError, match=message):
        ts.step_derivatives(MODELS["7 freedoms"], **given)


def test_a_parameter_without_its_class_is_told_its_name():
    with pytest.raises(ts.ArgumentError, match=r'"PD\.kp"'):
        ts.vjp(ts.rollout, "kp")(ts.zoo.planar3(), np.zeros(3), np.zeros(3), (np.zeros((1, 3)),) * 2, steps=1, step=0.1,
                                 forces=ts.PD(np.zeros(3), kp=1.0, kd=1.0))  # fmt: skip
