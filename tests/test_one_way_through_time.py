"""One way through time: `simulate`, `rollout` and `ensemble` take the same steps under every force."""

from dataclasses import replace

import numpy as np
import pytest

import torsor as ts
from torsor import zoo
from torsor.model.extras import Coupling, Extras
from torsor.model.freedoms import limited_coordinates
from torsor.model.joints import JOINTS
from torsor.motion.steps import METHODS

STEP, STEPS = 2e-3, 3
FAST = 100.0  # rad/s and m/s: the motions tested here are slower
# Commands that change are read at t + c h, which is rounded in another way if the clock starts at the step; and the
# numbers of a member are inputs of its code, those of a model may be part of it.
ROUNDING = 1e-12
SINGLE = 1e-3  # of the seven digits of float32, 70 links take three

MACHINES = {
    "panda": zoo.panda,
    "humanoid": zoo.humanoid,
    "tree of every joint": lambda: zoo.random_tree(7, 1),
    "arm of 20": lambda: zoo.random_chain(20, 1),
    "arm of 70": lambda: zoo.random_chain(70, 1),
    "coupled tree": lambda: coupled(zoo.random_tree(7, 1)),
}


def coupled(model):
    """With joints that follow others: the prismatic joint the hinge, and the screw the hinge with an offset."""
    kinds = [JOINTS[code].name for code in model.joint]
    hinge, slide, screw = (kinds.index(kind) for kind in ("revolute", "prismatic", "helical"))
    return replace(model, extras=Extras(couplings=(Coupling(slide, hinge, 0.5), Coupling(screw, hinge, -1.5, 0.1))))


def push(t, q, v):
    """Of one state or of many."""
    return 0.1 * np.cos(3 * t) - 0.01 * v


def shaken(t):
    """A base that sways and turns."""
    c, s = np.cos(t), np.sin(t)
    R = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    return R, np.array([0, 0, 1, s, 0, 0]), np.array([0, 0, 0, c, 0, 0])


def bounds(model):
    """Limits that the starts exceed, where a joint can have some."""
    return np.where(limited_coordinates(model) < 0, np.inf, 0.1)


def stops(model):
    """As hard as torsor makes them; on a long chain, where explicit steps would need to be shorter, soft ones."""
    soft = dict(stiffness=5.0, damping=0.05) if model.nv > 64 else {}
    return ts.Limits(-bounds(model), bounds(model), **soft)


def motion(model):
    """A motion to follow: all velocities are those of a slow swing."""
    start = model.neutral()

    def reference(t):
        swing = np.linspace(0.1, 0.3, model.nv)
        return model.integrate(start, swing * np.sin(t)), swing * np.cos(t), -swing * np.sin(t)

    return reference


def wave(model, between):
    rng = np.random.default_rng(4)
    return ts.Table([0.0, 1.5 * STEP, 2.5 * STEP, 1.0], 0.1 * rng.normal(size=(4, model.nv)), between)


def policy(model):
    rng = np.random.default_rng(5)
    width = model.nq + model.nv
    first = rng.normal(size=(4, width)) / width, np.ones(4)
    return ts.Policy([first, (0.1 * rng.normal(size=(model.nv, 4)), np.zeros(model.nv))])


RNG = np.random.default_rng
FORCES = {
    "none": lambda model: (),
    "Constant": lambda model: ts.Constant(0.1 * RNG(1).normal(size=model.nv)),
    "Table, linear": lambda model: wave(model, "linear"),
    "Table, previous": lambda model: wave(model, "previous"),
    "Table, cubic": lambda model: wave(model, "cubic"),
    "PD, hold": lambda model: ts.PD(model.neutral(), 5.0, 0.02),
    "PD, motion": lambda model: ts.PD(motion(model), 5.0, 0.02),
    "ComputedTorque": lambda model: ts.ComputedTorque(motion(model), 30.0, 3.0),
    "Feedback": lambda model: ts.Feedback(0.01 * RNG(2).normal(size=(model.nv, model.nq + model.nv)), 0.1),
    "Feedback, in time": lambda model: ts.Feedback(
        0.01 * RNG(2).normal(size=(3, model.nv, model.nq + model.nv)), 0.1, t=[0.0, 1.5 * STEP, 2 * STEP]),
    "Policy": policy,
    "Friction": lambda model: ts.Friction(0.01, 0.05, creep=2.0),
    "Spring": lambda model: ts.Spring(RNG(3).uniform(1, 9, model.nv), damping=0.01),
    "Limits": stops,
    "External": lambda model: ts.External(0.1 * RNG(6).normal(size=(model.n, 6))),
    "External, table": lambda model: ts.External(RNG(7).normal(size=(3, model.n, 6)), [0.0, 2 * STEP, 1.0], "previous"),
    "External, linear": lambda model: ts.External(0.1 * RNG(7).normal(size=(3, model.n, 6)), [0.0, 2 * STEP, 1.0]),
    "Pull": lambda model: ts.Pull(model.names[-1], [0.1, -0.2, 0.3], [0.1, 0.0, 0.2]),
    "a function": lambda model: push,
    "External, a function": lambda model: ts.External(lambda t, q, v: np.full((*q.shape[:-1], model.n, 6), 0.1 + t)),
    "MovingBase": lambda model: ts.MovingBase(shaken),
    "Function": lambda model: ts.Function(push, slopes=lambda t, q, v: (0.0, 0.01)),
    "Function, a drive": lambda model: ts.Function(push, slopes=lambda t, q, v: (0.0, 0.01), drive=True),
    "ComputedTorque, hold": lambda model: ts.ComputedTorque(model.neutral(), 30.0, 3.0),
    "ComputedTorque, of another": lambda model: ts.ComputedTorque(
        motion(model), 30.0, 3.0, replace(model, mass=1.1 * model.mass)),
    "several": lambda model: [push, ts.Friction(0.01), ts.PD(model.neutral(), 5.0, 0.02), wave(model, "linear")],
}  # fmt: skip


IN_TIME = {"Table", "table", "linear", "in time"}  # words of the names of forces that change

# Kernels of four stages take long to compile.
CASES = [
    pytest.param(machine, method, marks=[pytest.mark.slow] if method == "rk4" and machine != "panda" else [])
    for machine in MACHINES
    for method in METHODS
]


def starts(model):
    """Two states near the neutral one."""
    rng = RNG(0)
    q0, v0 = model.random_configuration(rng, 2), 0.3 * rng.normal(size=(2, model.nv))
    q0 = model.integrate(np.tile(model.neutral(), (2, 1)), 0.3 * model.difference(np.tile(model.neutral(), (2, 1)), q0))
    G = model.coupling_matrix()
    return model.coupled(q0), v0 @ np.linalg.pinv(G).T @ G.T


def test_every_force_is_among_these():
    public = {name for name in dir(ts) if hasattr(getattr(ts, name), "terms")}
    assert public == {name.split(", ")[0] for name in FORCES} & public


@pytest.mark.thinned(7)
@pytest.mark.parametrize("force", FORCES)
@pytest.mark.parametrize(("machine", "method"), CASES)
def test_simulate_rollout_and_ensemble_take_the_same_steps(machine, force, method, tmp_path):
    """Simulations and rollouts to the bit, unless commands change in time."""
    model = MACHINES[machine]()
    forces, (q0, v0) = FORCES[force](model), starts(model)
    times = STEP * np.arange(1, STEPS + 1)
    path = ts.rollout(model, q0, v0, steps=STEPS, step=STEP, method=method, forces=forces)
    alone = [ts.simulate(model, *start, duration=times[-1], step=STEP, method=method, forces=forces)
             for start in zip(q0, v0)]  # fmt: skip
    rows = {}  # ensembles know no coupled joints
    if not model.couplings:
        rows = ts.ensemble(model, {"q0": q0, "v0": v0}, n=2, times=times, step=STEP, method=method, forces=forces,
                           store=tmp_path / "store.zarr").open()  # fmt: skip
    assert np.abs(path.v).max() < FAST  # no step is unstable
    same_bits = force not in ("PD, motion", "ComputedTorque", "several") and not IN_TIME & {*force.split(", ")}
    for name in ("q", "v"):
        whole = getattr(path, name)
        single = np.array([getattr(run, name)[1:] for run in alone])
        atol = ROUNDING * np.abs(whole).max()
        np.testing.assert_allclose(single, whole, rtol=0, atol=0.0 if same_bits else atol, err_msg=f"simulate: {name}")
        if rows:
            members = np.asarray(rows[name]).reshape(whole.shape)
            np.testing.assert_allclose(members, whole, rtol=0, atol=atol, err_msg=f"ensemble: {name}")


@pytest.mark.thinned(7)
@pytest.mark.parametrize("force", FORCES)
@pytest.mark.parametrize(("machine", "method"), CASES)
def test_rollouts_in_single_precision_take_the_same_steps(machine, force, method):
    model = MACHINES[machine]()
    forces, (q0, v0) = FORCES[force](model), starts(model)
    options = dict(steps=STEPS, step=STEP, method=method, forces=forces)
    path, single = (ts.rollout(model, q0.astype(x), v0.astype(x), **options) for x in ("d", "f"))
    for name in ("q", "v"):
        wanted, found = getattr(path, name), getattr(single, name)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, rtol=0, atol=SINGLE * np.abs(wanted).max(), err_msg=name)


TURN = 2 * STEP  # when gains jump
TIGHT = dict(rtol=1e-12, atol=1e-12)
# What errors remain, relative to the fastest: of adaptive steps, and of fixed ones of this length by their order.
SHORT, ADAPTIVE = STEP / 20, 1e-8
ERRORS = {"rk4": 1e-8, "verlet": 1e-5, "semi-implicit": 1e-2, "implicit-euler": 1e-2}


def gains_that_jump(model):
    """The force, and its final velocities by two motions under constant gains."""
    K = RNG(2).normal(size=(2, model.nv, model.nq + model.nv)) / model.nv
    state = model.neutral(), np.full(model.nv, 0.1)
    for k in range(2):
        run = ts.simulate(model, *state, duration=TURN, forces=ts.Feedback(K[k], 0.1, 0.05), **TIGHT)
        state = run.q[-1], run.v[-1]
    return ts.Feedback(K, 0.1, 0.05, t=[0.0, TURN]), state[1]


def wrenches_that_grow(model):
    """The force, and its final velocities by a function of time."""

    def grown(t, q, v):
        return np.full((*np.shape(q)[:-1], model.n, 6), 1.0 + 2.0 * t)

    start = model.neutral(), np.full(model.nv, 0.1)
    run = ts.simulate(model, *start, duration=2 * TURN, forces=ts.External(grown), **TIGHT)
    return ts.External([x * np.ones((model.n, 6)) for x in (1.0, 3.0)], [0.0, 1.0]), run.v[-1]


@pytest.mark.parametrize("make", [gains_that_jump, wrenches_that_grow])
@pytest.mark.parametrize("name", ["panda", "tree of every joint"])
@pytest.mark.parametrize("method", ["dopri5", "esdirk4", "radau", *ERRORS])
def test_what_changes_in_time_is_read_at_the_stages(method, name, make, tmp_path):
    """Of one motion by every kind of method, and of members with step sizes of their own."""
    model = MACHINES[name]()
    (force, wanted), v0 = make(model), np.full(model.nv, 0.1)
    options = dict(step=SHORT) if method in ERRORS else TIGHT
    run = ts.simulate(model, v0=v0, duration=2 * TURN, method=method, forces=force, **options)
    found = [run.v[-1]]
    if method == "dopri5":
        found += [*ts.ensemble(model, {"v0": np.tile(v0, (3, 1))}, n=3, times=[2 * TURN], forces=force, **TIGHT,
                               store=tmp_path / "store.zarr")["v"][:, -1]]  # fmt: skip
    for v in found:
        assert np.abs(v - wanted).max() < ERRORS.get(method, ADAPTIVE) * np.abs(wanted).max()


PAIRS = {
    "Constant": lambda nv: ts.Constant(np.ones((2, nv))),
    "Table": lambda nv: ts.Table([0.0, 1.0], np.ones((2, 2, nv))),
    "Feedback": lambda nv: ts.Feedback(np.ones((2, 2, nv, 2 * nv)), t=[0.0, 1.0]),
    "torques of a Feedback": lambda nv: ts.Feedback(np.ones((2, nv, 2 * nv)), tau=np.ones((2, 2, nv)), t=[0.0, 1.0]),
    "PD": lambda nv: ts.PD(lambda t: (np.zeros(nv),) * 3, np.ones((2, nv)), 1.0),
    "ComputedTorque": lambda nv: ts.ComputedTorque(lambda t: (np.zeros(nv),) * 3, np.ones((2, nv))),
    "External": lambda nv: ts.External(np.ones((2, nv, 6))),
}


@pytest.mark.parametrize("force", PAIRS)
def test_forces_with_batch_axes_are_for_rollouts(force, tmp_path):
    arm = zoo.panda()
    pair, start = PAIRS[force](7), np.zeros((2, 7))
    assert ts.rollout(arm, start, start, steps=1, step=STEP, forces=pair).q.shape == (2, 1, 7)
    for options in ({}, {"step": STEP, "method": "rk4"}):
        with pytest.raises(ts.ArgumentError, match=r"batch axes \(2,\).* for rollouts"):
            ts.simulate(arm, duration=STEP, forces=pair, **options)
    with pytest.raises(ts.ArgumentError, match=r"batch axes \(2,\).*vary="):
        ts.ensemble(arm, {"v0": start}, n=2, duration=STEP, forces=pair, store=tmp_path / "store.zarr")


# Stiffnesses of stops follow from inertias, which are rounded in another way where they are inputs.
OF_MEMBERS = 1e-9


@pytest.mark.parametrize("force", ["ComputedTorque", "Limits", "Spring"])
@pytest.mark.parametrize("machine", ["panda", "arm of 20"])
def test_members_of_a_batch_move_as_each_does_alone(machine, force):
    model, rng = MACHINES[machine](), np.random.default_rng(8)
    heavier = rng.uniform(0.5, 2.0, (3, 1))
    numbers = {"mass": model.mass * heavier, "inertia": model.inertia * heavier[..., None, None]}
    numbers |= {"p": model.p + 0.1 * rng.normal(size=(3, model.n, 3)), "gravity": rng.normal(size=(3, 3))}
    arms, forces = ts.ModelBatch(model, **numbers), FORCES[force](model)
    q, v = model.neutral() + 0.2, np.full(model.nv, 0.1)
    options = dict(steps=10, step=STEP, method="implicit-euler", forces=forces)
    together = ts.rollout(arms, q, v, **options)
    for k, arm in enumerate(arms):
        assert np.abs(together.q[k] - ts.rollout(arm, q, v, **options).q).max() < OF_MEMBERS


def test_springs_of_members_are_slack_at_their_own_rest():
    ball = ts.Model.chain("spherical", n=1, mass=1.0, inertia=(1.0, 2.0, 3.0), stiffness=50.0)
    balls = ts.ModelBatch(ball, rest=np.array([[0.5, 0.0, 0.0], [0.0, 0.3, 0.1]]))
    start, still = ball.neutral(), np.zeros(3)
    together = ts.rollout(balls, start, still, steps=10, step=STEP, gravity=False)
    for k, one in enumerate(balls):
        alone = ts.rollout(one, start, still, steps=10, step=STEP, gravity=False)
        assert np.abs(together.q[k] - alone.q).max() < OF_MEMBERS
        assert np.abs(alone.q[-1] - start).max() > 1e-4


SHAKEN = ts.MovingBase(lambda t: (np.eye(3), np.zeros(6), np.ones(6)))
WRENCH = ts.External(lambda t, q, v: np.ones((7, 6)))


@pytest.mark.parametrize(("force", "field"), [(SHAKEN, "mass"), (SHAKEN, "gravity"), (WRENCH, "p")])
def test_functions_that_compute_with_one_model_refuse_members_that_differ_there(force, field):
    arm, still = zoo.panda(), np.zeros(7)
    arms = ts.ModelBatch(
        arm, **{field: getattr(arm, field) * np.linspace(1, 2, 3).reshape(3, *[1] * getattr(arm, field).ndim)}
    )
    with pytest.raises(ts.ArgumentError, match=f"{type(force).__name__} computes with one model.* {field}"):
        ts.rollout(arms, still, still, steps=1, step=STEP, forces=force)
    others = ts.ModelBatch(arm, friction=np.linspace(0, 1, 3)[:, None] * np.ones(7))
    assert ts.rollout(others, still, still, steps=1, step=STEP, forces=force).q.shape == (3, 1, 7)
