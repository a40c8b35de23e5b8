"""Gradients of rollouts and sensitivities of motions, against differences of the motions themselves."""

from dataclasses import replace

import numpy as np
import pytest

import torsor as ts
from torsor import zoo
from torsor.motion import adjoint as adjoint_module
from torsor.motion import gradients as gradients_module

# Differences of fourth order with steps of 1e-3 to 1e-4: truncation and rounding both leave ten digits.
TOLERANCE = 1e-9
CONTACT = 1e-5  # differences of stiff motions whose torques bend where stops are met
KINKS = 1e-4  # differences of motions whose torques have kinks, at the limits of drives

MODELS = {
    "arm": zoo.general_arm(3),
    "floating tree": zoo.random_tree(3, 1, joints=["spherical", "revolute", "free"]),
    "tree in loops": zoo.random_tree(6, 2, joints=["spherical", "universal", "free"]),
}
FAST = ["arm-semi-implicit", "floating tree-semi-implicit", "tree in loops-semi-implicit"]
CASES = [f"{model}-{method}" for model in MODELS for method in ("semi-implicit", "rk4")]


def differences(f, h):
    """df(0) along the parameter of f, to fourth order."""
    return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)


@pytest.mark.parametrize(
    "case", [case if case in FAST else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_rollout_vjp_is_the_gradient(case):
    name, _, method = case.partition("-")
    model, (count, steps, every) = MODELS[name], (2, 11, 2)
    rng = np.random.default_rng(0)
    q = model.random_configuration(rng, count)
    v, tau, dq, dv, dtau = rng.normal(size=(5, count, model.nv))
    table, dtable = rng.normal(size=(2, count, steps, model.nv))
    law = ts.Feedback(np.hstack([np.full((model.nv, model.nq), 0.3), 0.2 * np.eye(model.nv)]))
    options = {"steps": steps, "step": 1e-2, "every": every, "method": method}
    gq, gv = rng.normal(size=(2, count, steps // every, model.nv))

    def forces(h):
        return [ts.Constant(tau + h * dtau), ts.Table(1e-2 * np.arange(steps), table + h * dtable, "previous"), law]

    wrt = "Constant.tau", "Table.tau"
    found = ts.vjp(ts.rollout, wrt)(model, q, v, (gq, gv), forces=forces(0.0), **options)
    base = ts.rollout(model, q, v, forces=forces(0.0), **options)

    def loss(h):
        moved = ts.rollout(model, model.integrate(q, h * dq), v + h * dv, forces=forces(h), **options)
        return (model.difference(base.q, moved.q) * gq).sum() + ((moved.v - base.v) * gv).sum()

    expected = differences(loss, 1e-4)
    pairs = ((found.q, dq), (found.v, dv), (found["Constant.tau"], dtau), (found["Table.tau"], dtable))
    assert abs(sum((x * y).sum() for x, y in pairs) - expected) <= TOLERANCE * abs(expected)
    np.testing.assert_allclose(found.tau, found["Table.tau"], rtol=1e-12, atol=1e-14)  # held over every step
    np.testing.assert_allclose(found.tau.sum(axis=1), found["Constant.tau"], rtol=1e-12, atol=1e-14)


FORCES = ["spring", "friction", "stops", "effort", "speed", "motion", "computed", "relu", "softsign", "wrenches",
          "pulls"]  # fmt: skip


def forced(name, n=3):
    """An arm with something at its joints, and the forces of its rollouts."""
    model, rng, some = zoo.general_arm(n), np.random.default_rng(4), np.arange(n) % 3 * 1.0
    joints = {
        "spring": {"stiffness": some, "damping": 0.3, "rest": 0.2}, "friction": {"friction": some},
        "stops": {"lower": -0.5, "upper": 0.4}, "effort": {"effort": 0.5 + some, "stiffness": 1.0},
        "speed": {"speed": 0.8},
    }  # fmt: skip
    layers = [(rng.normal(size=(5, 2 * n)), rng.normal(size=5)), (rng.normal(size=(n, 5)), rng.normal(size=n))]
    goal = ts.Cycloid(np.zeros(n), np.ones(n), 0.1)
    forces = {
        "motion": ts.PD(goal, 9.0, 1.0),
        "computed": ts.ComputedTorque(goal, 50.0, 9.0, model=replace(model, mass=1.1 * model.mass)),
        "relu": ts.Policy(layers), "softsign": ts.Policy(layers, "softsign"),
        "wrenches": ts.External(rng.normal(size=(n, 6))),
        "pulls": ts.Pull(model.names[2], *rng.normal(size=(2, 3))),
    }  # fmt: skip
    return replace(model, **joints.get(name, {})), [forces[name]] if name in forces else []


QUICK_FORCES = [
    ("stops", "implicit-euler", 3), ("effort", "implicit-euler", 3), ("softsign", "semi-implicit", 3),
    ("motion", "implicit-euler", 3), ("computed", "implicit-euler", 14), ("pulls", "semi-implicit", 14),
]  # fmt: skip
ALL_FORCES = [(name, way, n) for name in FORCES for way in ("semi-implicit", "implicit-euler") for n in (3, 14)]
ALL_FORCES += [("computed", "rk4", 14), ("pulls", "rk4", 14), ("speed", "implicit-euler", 100)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("name", "method", "n"),
    [x if x in QUICK_FORCES else pytest.param(*x, marks=pytest.mark.slow) for x in ALL_FORCES],
)
def test_gradients_go_through_every_force(name, method, n):
    """In straight-line code and around loops.  No corner of a force lies within the differences of these states; in
    single precision, gradients are finite."""
    model, forces = forced(name, n)
    options = {"steps": 6, "step": 1e-3, "method": method, "gravity": name != "pulls"}
    rng = np.random.default_rng(1)
    q, v, dq, dv, dtau = rng.normal(size=(5, 4, n))
    tau = 2 * rng.normal(size=(4, n))
    gq, gv = rng.normal(size=(2, 4, 6, n))
    both = [*forces, ts.Constant(tau)]
    found = ts.vjp(ts.rollout, "Constant.tau")(model, q, v, (gq, gv), forces=both, **options)

    def loss(h):
        torques = [*forces, ts.Constant(tau + h * dtau)]
        moved = ts.rollout(model, q + h * dq, v + h * dv, forces=torques, **options)
        return (moved.q * gq).sum(axis=(1, 2)) + (moved.v * gv).sum(axis=(1, 2))

    pairs = [(found.q, dq), (found.v, dv), (found["Constant.tau"], dtau)]
    along, expected = sum((x * y).sum(axis=1) for x, y in pairs), differences(loss, 1e-6)
    assert np.abs(along - expected).max() <= 1e-7 * np.abs(expected).max()  # rounding of a step of 1e-6
    rough = ts.vjp(ts.rollout)(model, q.astype(np.float32), v.astype(np.float32), (gq, gv), forces=both, **options)
    assert rough.q.dtype == np.float32
    assert np.abs(rough.q - found.q).max() <= 3e-4 * np.abs(found.q).max()  # float32: 3e-5 seen, with stops


@pytest.mark.parametrize("name", ["effort", *(pytest.param(x, marks=pytest.mark.slow) for x in ("computed", "pulls"))])
def test_gradients_by_the_model_go_through_forces(name):
    """By gravity, and by the masses, of implicit steps; without them, gradients are those of straight-line code."""
    model, forces = forced(name)
    options = {"steps": 6, "step": 1e-3, "method": "implicit-euler", "forces": forces}
    rng = np.random.default_rng(1)
    q, v = rng.normal(size=(2, 4, 3))
    gq, gv = rng.normal(size=(2, 4, 6, 3))
    found = ts.vjp(ts.rollout, ("gravity", "inertia"))(model, q, v, (gq, gv), **options)
    plain = ts.vjp(ts.rollout)(model, q, v, (gq, gv), **options)
    for x, y in ((found.q, plain.q), (found.v, plain.v), (found.tau, plain.tau)):
        assert np.abs(x - y).max() <= 1e-11 * np.abs(y).max()

    def loss(changed):
        moved = ts.rollout(changed, q, v, **options)
        return (moved.q * gq).sum(axis=(1, 2)) + (moved.v * gv).sum(axis=(1, 2))

    down = np.array([0.3, -0.2, 1.0])
    turned = differences(lambda h: loss(replace(model, gravity=model.gravity + h * down)), 1e-3)
    assert np.abs(found["gravity"] @ down - turned).max() <= 1e-7 * np.abs(turned).max()
    heavy = differences(
        lambda h: loss(replace(model, mass=model.mass * (1 + h), inertia=model.inertia * (1 + h))), 1e-4
    )
    along = (found["inertia"] * model.inertial_parameters()).sum(axis=(-1, -2))
    assert np.abs(along - heavy).max() <= 1e-6 * np.abs(heavy).max()


@pytest.mark.parametrize(("name", "method"), [
    ("arm", "semi-implicit"),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (("arm", "rk4"), ("tree in loops", "semi-implicit"))),
])  # fmt: skip
def test_gradients_by_the_model(name, method):
    """By gravity, masses and lengths, for every trajectory of a batch."""
    model, rng = MODELS[name], np.random.default_rng(5)
    q, (v, tau) = model.random_configuration(rng, (2, 2)), rng.normal(size=(2, 2, 2, model.nv))
    gq, gv = rng.normal(size=(2, 2, 2, 3, model.nv))
    options = {"steps": 7, "step": 1e-2, "every": 2, "method": method, "forces": ts.Constant(tau)}
    wrt = ("gravity", "inertia", "placement")
    found = ts.vjp(ts.rollout, wrt)(model, q, v, (gq, gv), **options)
    plain = ts.vjp(ts.rollout)(model, q, v, (gq, gv), **options)
    assert [found[name].shape for name in wrt] == [(2, 2, 3), (2, 2, model.n, 10), (2, 2, model.n, 6)]
    assert plain.others == {}
    for x, y in ((found.q, plain.q), (found.v, plain.v), (found.tau, plain.tau)):
        assert np.abs(x - y).max() <= 1e-12 * np.abs(y).max()
    base = ts.rollout(model, q, v, **options)

    def loss(changed):
        moved = ts.rollout(changed, q, v, **options)
        return ((model.difference(base.q, moved.q) * gq) + (moved.v - base.v) * gv).sum(axis=(-1, -2))

    down = np.array([0.3, -0.2, 1.0])
    turned = differences(lambda h: loss(replace(model, gravity=model.gravity + h * down)), 1e-3)
    assert np.abs(found["gravity"] @ down - turned).max() <= TOLERANCE * np.abs(turned).max()
    # twice the mass at the same place: m, m c and I about the origin double
    heavier = differences(
        lambda h: loss(replace(model, mass=model.mass * (1 + h), inertia=model.inertia * (1 + h))), 1e-3
    )
    along = (found["inertia"] * model.inertial_parameters()).sum(axis=(-1, -2))
    assert np.abs(along - heavier).max() <= 1e3 * TOLERANCE * np.abs(heavier).max()
    shift = np.zeros((model.n, 6))
    shift[:, 3:] = np.random.default_rng(6).normal(size=(model.n, 3))

    def moved(h):
        return replace(model, p=model.p + h * np.einsum("nij,nj->ni", model.R, shift[:, 3:]))

    longer = differences(lambda h: loss(moved(h)), 1e-3)
    assert np.abs((found["placement"] * shift).sum(axis=(-1, -2)) - longer).max() <= 1e-8 * np.abs(longer).max()


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 50])
def test_checkpoints_change_no_bit_and_few_states_are_kept(steps, monkeypatch):
    model = MODELS["arm"]
    q, v = np.random.default_rng(0).normal(size=(2, 3))
    cotangent = tuple(np.random.default_rng(1).normal(size=(2, steps, 3)))
    kept = []
    forward = gradients_module._Backwards._forward

    def counted(self, *args):
        states = forward(self, *args)
        kept.append(len(states))
        return states

    monkeypatch.setattr(gradients_module._Backwards, "_forward", counted)
    monkeypatch.setattr(gradients_module, "PATH", 0)  # so few states would all be kept
    one = ts.vjp(ts.rollout)(model, q, v, cotangent, steps=steps, step=1e-2)
    assert max(kept) <= np.sqrt(steps) + 2
    monkeypatch.setattr(gradients_module, "isqrt", lambda n: n)  # no checkpoints: all states are kept
    other = ts.vjp(ts.rollout)(model, q, v, cotangent, steps=steps, step=1e-2)
    for x, y in ((one.q, other.q), (one.v, other.v), (one.tau, other.tau)):
        np.testing.assert_array_equal(x, y)
    assert one.tau.shape == (steps, 3)


def test_a_gradient_finds_the_torques_that_reach_a_state():
    """The end of a linear machine is linear in the torques: one step along the gradient is enough."""
    cart = ts.Model.chain("prismatic", mass=2.0, inertia=(1.0, 1.0, 1.0), n=1, axis=(1.0, 0.0, 0.0), gravity=(0, 0, 0))
    steps, step = 20, 0.05
    options = {"steps": steps, "step": step, "every": steps}
    zero = np.zeros(1)
    gradient = ts.vjp(ts.rollout)(cart, zero, zero, (np.ones((1, 1)), np.zeros((1, 1))), **options)
    least = gradient.tau / (gradient.tau**2).sum()  # the least torques that move the cart by 1
    table = ts.Table(step * np.arange(steps), least, "previous")
    assert abs(ts.rollout(cart, zero, zero, forces=table, **options).q[-1, 0] - 1.0) <= 1e-14


@pytest.mark.parametrize(("wrong", "message"), [
    ({"cotangent": np.ones((2, 3, 3))}, "cotangent must be a pair"),
    ({"cotangent": (np.ones((4, 3)), np.ones((5, 3)))}, r"the cotangent of q has shape \(4, 3\); it must be \(5, 3\)"),
    ({"cotangent": (np.ones((5, 3)), np.full((5, 3), np.nan))}, "the cotangent of v"),
    ({"method": "leapfrog"}, "method"),
    ({"wrt": "mass"}, "wrt"),
    ({"wrt": ("gravity", "gravity")}, "twice"),
    ({"wrt": "PD.kp"}, r"wrt names PD\.kp: .* the forces are none"),
    ({"wrt": "PD.ki", "forces": ts.PD(0.0, 1.0, 1.0)}, r"wrt names PD\.ki: .* the forces are PD"),
    ({"wrt": "PD.kp", "forces": [ts.PD(0.0, 1.0, 1.0)] * 2}, r"one force PD with it; the forces are PD, PD"),
    ({"forces": lambda t, q, v: -v}, r"under functions, .* has no gradient"),
    ({"steps": 0}, "steps"),
])  # fmt: skip
def test_bad_arguments_of_a_gradient_are_refused_by_name(wrong, message):
    q, v = np.zeros((2, 3))
    given = {"cotangent": (np.ones((5, 3)), np.ones((5, 3))), "steps": 5, "step": 0.1, "wrt": ()} | wrong
    with pytest.raises(ts.ArgumentError, match=message):
        ts.vjp(ts.rollout, given.pop("wrt"))(MODELS["arm"], q, v, given.pop("cotangent"), **given)


# Sensitivities -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["arm", "floating tree"])
def test_sensitivities_are_the_differences_of_motions(name):
    model = MODELS[name]
    rng = np.random.default_rng(0)
    q, v, t = model.random_configuration(rng), 0.3 * rng.normal(size=model.nv), np.linspace(0.0, 0.5, 3)
    dq, dv, dtau, dgravity = *rng.normal(size=(3, model.nv)), rng.normal(size=3)
    friction = ts.Friction(viscous=0.3)
    found = ts.sensitivities(model, q, v, t, forces=friction, dq=dq, dv=dv, dtau=dtau, dgravity=dgravity)

    def at(h):
        forces = (friction, lambda t, q, v: h * dtau)
        moved = replace(model, gravity=model.gravity + h * dgravity)
        end = ts.sensitivities(moved, model.integrate(q, h * dq), v + h * dv, t, forces=forces, rtol=1e-12, dv=0 * dv)
        return np.concatenate([model.difference(found.q, end.q), end.v], axis=1)

    expected = differences(at, 1e-3)
    error = np.abs(np.concatenate([found.dq, found.dv], axis=1) - expected).max()
    assert error <= TOLERANCE * np.abs(expected).max()
    motion = ts.simulate(model, q, v, 0.5, forces=friction, rtol=1e-10, atol=1e-12)
    assert np.abs(model.difference(found.q[-1], motion.q[-1])).max() <= TOLERANCE


def test_directions_have_axes_of_their_own():
    model = MODELS["arm"]
    q, v = np.random.default_rng(0).normal(size=(2, 3))
    found = ts.sensitivities(model, q, v, [0.0, 0.1], dv=np.eye(3), dgravity=np.zeros((2, 1, 3)))
    assert isinstance(found, ts.Sensitivities)
    assert found.dq.shape == (2, 2, 3, 3)
    assert np.abs(found.dq[:, 0] - found.dq[:, 1]).max() <= 1e-15
    assert (found.dv[0, 0] == np.eye(3)).all()


def test_the_flow_of_a_machine_preserves_volume():
    """The determinant of the flow map of (q, p) is 1 (Liouville), and v = M^-1 p."""
    model = MODELS["arm"]
    q, v = np.random.default_rng(0).normal(size=(2, 3))
    zero, one = np.zeros((3, 3)), np.eye(3)
    found = ts.sensitivities(model, q, v, [0.0, 0.4], dq=np.vstack([one, zero]), dv=np.vstack([zero, one]))
    flow = np.hstack([found.dq[-1], found.dv[-1]])
    masses = [np.linalg.det(ts.mass_matrix(model, x)) for x in found.q]
    assert abs(np.linalg.det(flow) * masses[1] / masses[0] - 1.0) <= TOLERANCE


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "joints",
    [{"damping": 0.1, "friction": 0.3, "stiffness": 1.0, "rest": 0.2}, {"effort": 1.0, "damping": 0.1}, {"speed": 4.0}],
    ids=["own", "effort", "speed"],
)
@pytest.mark.parametrize("drive", ["data", "function"])
def test_sensitivities_are_those_of_the_motion_that_simulate_finds(joints, drive):
    """What the joints do by themselves, and the limits of their drives, act there, too."""
    model = replace(MODELS["arm"], **joints)
    servo = ts.PD(np.full(3, 0.5), 4.0, 0.3)
    force = servo if drive == "data" else ts.Function(lambda t, q, v: 4.0 * (0.5 - q) - 0.3 * v, drive=True)
    q, v, dq, dv = np.random.default_rng(3).normal(size=(4, 3)) / 2
    found = ts.sensitivities(model, q, v, [0.0, 0.2], forces=force, dq=dq, dv=dv)

    def end(h):
        options = {"forces": force, "rtol": 1e-12, "atol": 1e-13, "method": "dop853"}
        run = ts.simulate(model, q + h * dq, v + h * dv, 0.2, **options)
        return np.concatenate([run.q[-1], run.v[-1]])

    np.testing.assert_allclose(np.concatenate([found.q[-1], found.v[-1]]), end(0), rtol=0, atol=1e-8)
    slope = (end(1e-5) - end(-1e-5)) / 2e-5
    np.testing.assert_allclose(np.concatenate([found.dq[-1], found.dv[-1]]), slope, rtol=0, atol=KINKS)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["pull", "wrenches", "table of wrenches"])
@pytest.mark.parametrize("name", ["arm", "floating tree"])
def test_forces_on_bodies_change_with_the_placements_that_are_their_arms(name, kind):
    model, rng = MODELS[name], np.random.default_rng(5)
    q, v, t = model.random_configuration(rng), 0.3 * rng.normal(size=model.nv), np.array([0.0, 0.3])
    xi, wrenches = 0.3 * rng.normal(size=(model.n, 6)), rng.normal(size=(2, model.n, 6))

    def force(model):
        return {
            "pull": lambda: ts.Pull(model.names[-1], (1.0, 2.0, 3.0), (0.1, 0.2, 0.0)),
            "wrenches": lambda: ts.External(wrenches[0]),
            "table of wrenches": lambda: ts.External(wrenches, [0.0, 1.0]),
        }[kind]()

    def end(h):
        g = ts.lie.exp_se3(h * xi)
        R, p = model.R @ g[:, :3, :3], model.p + np.einsum("nij,nj->ni", model.R, g[:, :3, 3])
        moved = replace(model, R=R, p=p)
        run = ts.sensitivities(moved, q, v, t, forces=force(moved), rtol=1e-12, dv=np.zeros(model.nv))
        return np.concatenate([model.difference(found.q[-1], run.q[-1]), run.v[-1]])

    found = ts.sensitivities(model, q, v, t, forces=force(model), dplacement=xi)
    expected = differences(end, 1e-3)
    error = np.abs(np.concatenate([found.dq[-1], found.dv[-1]]) - expected).max()
    assert error <= TOLERANCE * np.abs(expected).max()


def test_wrenches_that_are_functions_do_not_say_how_they_change_with_placements():
    model, force = MODELS["arm"], ts.External(lambda t, q, v: np.ones((3, 6)))
    with pytest.raises(ts.ArgumentError, match="do not say how they change with placements"):
        ts.sensitivities(model, np.zeros(3), np.zeros(3), [0.0, 0.1], forces=force, dplacement=np.ones((3, 6)))


GIMBAL = ts.Model.chain("gimbal", mass=1.0, com=(0.1, 0.0, 0.0), inertia=(0.1, 0.12, 0.13), gravity=(0, 0, 0))
NEEDLE = ts.Model.chain(n=2, mass=1.0, com=(0, 0, 0.5), allow_degenerate=True)  # points on the axes of their joints


@pytest.mark.parametrize(
    ("model", "q", "v", "why"),
    [
        (GIMBAL, [0.0, np.pi / 2, 0.0], [1.0, 1.0, 1.0], "beyond t = 0: .*joint 'link1' locks"),
        (NEEDLE, [0.0, 0.0], [1.0, 1.0], "beyond t = 0: .*joint 'link2' moves no mass"),
        (GIMBAL, [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], "beyond t = 0.5707.*(locks|steps become ever shorter)"),
    ],
    ids=["starts locked", "starts without mass", "comes to its lock"],
)
def test_a_motion_that_meets_a_singular_state_ends_there(model, q, v, why):
    with pytest.raises(ts.SingularError, match=why):
        ts.sensitivities(model, q, v, [0.0, 1.0], dv=np.eye(model.nv))


def test_sensitivities_go_through_stops():
    """The torque of a stop is continuous, so that changes of the motion do not jump where it is met."""
    model = replace(MODELS["arm"], lower=-0.1, upper=0.1)
    q, v, t = np.zeros(3), np.full(3, 1.0), [0.0, 0.12]
    found = ts.sensitivities(model, q, v, t, dv=np.eye(3))
    assert np.abs(found.q[-1]).max() > 0.1  # it has met stops

    def end(dv):
        run = ts.simulate(model, q, v + dv, t[-1], rtol=1e-12, atol=1e-14, method="dop853")
        return np.concatenate([run.q[-1], run.v[-1]])

    for k, along in enumerate(np.eye(3)):
        slope = (end(1e-4 * along) - end(-1e-4 * along)) / 2e-4
        moved = np.concatenate([found.dq[-1, k], found.dv[-1, k]])
        np.testing.assert_allclose(moved, slope, rtol=0, atol=CONTACT * np.abs(slope).max())


@pytest.mark.parametrize(("wrong", "message"), [
    ({}, "give at least one tangent: dq, dv, dtau, dinertia"),
    ({"dx": np.ones(3)}, "a tangent"),
    ({"dv": np.ones(4)}, r"dv has shape \(4,\)"),
    ({"dv": np.ones((2, 3)), "dq": np.ones((3, 3))}, "do not go together"),
    ({"dv": np.ones(3), "t": [1.0, 0.0]}, "increasing times"),
    ({"dv": np.ones(3), "forces": 3}, "forces must be forces or functions"),
])  # fmt: skip
def test_bad_arguments_of_sensitivities_are_refused_by_name(wrong, message):
    q, v = np.zeros((2, 3))
    given = {"t": [0.0, 1.0]} | wrong
    with pytest.raises(ts.ArgumentError, match=message):
        ts.sensitivities(MODELS["arm"], q, v, given.pop("t"), **given)


@pytest.mark.parametrize("method", ["semi-implicit", "rk4"])
@pytest.mark.parametrize("name", ["arm", "tree in loops"])
def test_the_bits_of_a_gradient_depend_neither_on_its_batch_nor_on_blocks_of_steps(name, method, monkeypatch):
    model, rng = MODELS[name], np.random.default_rng(8)
    q, v = model.random_configuration(rng, 5), rng.normal(size=(5, model.nv))
    cotangent = rng.normal(size=(2, 5, 6, model.nv))
    table = ts.Table(np.linspace(0, 0.2, 4), rng.normal(size=(4, model.nv)))
    gradient = ts.vjp(ts.rollout, ("inertia", "gravity"))
    options = {"steps": 13, "step": 1e-2, "every": 2, "method": method, "forces": [table, ts.Friction(viscous=0.1)]}

    def parts(found):
        return found.q, found.v, found.tau, found["inertia"], found["gravity"]

    together = parts(gradient(model, q, v, tuple(cotangent), **options))
    for k in range(5):
        for x, y in zip(parts(gradient(model, q[k], v[k], tuple(cotangent[:, k]), **options)), together):
            np.testing.assert_array_equal(x, y[k])
    monkeypatch.setattr(gradients_module, "PATH", 0)
    monkeypatch.setattr(adjoint_module, "ROOM", 0)
    for x, y in zip(parts(gradient(model, q, v, tuple(cotangent), **options)), together):
        np.testing.assert_array_equal(x, y)
