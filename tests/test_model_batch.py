"""Many models in one batch: every function gives what it gives for each member alone."""

import inspect
from dataclasses import fields, replace

import numpy as np
import pytest
from machines import ARRAY_FUNCTIONS

import torsor as ts
from torsor import ArgumentError, Model, ModelBatch, ModelError, duals, zoo
from torsor.backends.c99 import CFunction
from torsor.backends.cuda import Kernel
from torsor.compiler.frames import short_frames
from torsor.compiler.request import ALWAYS, NEVER, Request
from torsor.dynamics.functions import ALGORITHMS
from torsor.dynamics.members import _inertias, members
from torsor.inputs import place_of
from torsor.model.extras import Actuator, Coupling, Extras, Visual
from torsor.model.freedoms import DEFAULTS

# Both compute in double precision, in different frames: a few hundred roundings of numbers of the result's size.
ROUNDING = 2e-12
SINGLE = 1e-5  # float32: the worst seen is 4e-7
VARIED = {
    "inertias": ("mass", "com", "inertia"),
    "placements": ("R", "p"),
    "armatures": ("armature",),
    "everything": ("mass", "com", "inertia", "R", "p", "gravity", "axis", "armature"),
}
FUNCTIONS = ARRAY_FUNCTIONS


def varied(model: Model, names, size, seed=0) -> ModelBatch:
    """A batch of models whose fields differ from those of `model`."""
    rng, n = np.random.default_rng(seed), model.n
    factor = rng.uniform(0.7, 1.4, (size, n))
    axis = model.axis + 0.3 * rng.normal(size=(size, n, 3))
    others = {
        "mass": model.mass * factor,
        "inertia": model.inertia * rng.uniform(0.9, 1.1, (size, n))[..., None, None],
        "com": model.com + 0.1 * rng.normal(size=(size, n, 3)),
        "p": model.p + 0.1 * rng.normal(size=(size, n, 3)),
        "R": model.R @ ts.lie.exp_so3(0.4 * rng.normal(size=(size, n, 3))),
        "gravity": rng.normal(size=(size, 3)),
        "armature": rng.uniform(0.1, 1.0, (size, model.nv)),
        "axis": np.where([[ts.model.JOINTS[code].axial] for code in model.joint],
                         axis / np.linalg.norm(axis, axis=-1, keepdims=True), (0.0, 0.0, 1.0)),
    }  # fmt: skip
    return ModelBatch(model, **{name: others[name] for name in names})


def state(function, model: Model, size, seed=1):
    rng = np.random.default_rng(seed)
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
    drawn = {"q": model.random_configuration(rng, size), "body": model.n - 1}
    return {name: drawn.get(name, rng.normal(size=(size, model.nv))) for name in names}


def one_by_one(function, batch: ModelBatch, given):
    """Every member by the reference engine."""
    body = given.get("body")
    results = []
    for k in range(len(batch)):
        one = {name: list(x[k]) for name, x in given.items() if name != "body"}
        frame = None if body is None else batch.model.frame(body)
        results.append(duals.evaluate(ALGORITHMS[function], batch[k], one, frame=frame))
    return np.array(results, float)


TREE = replace(zoo.random_tree(5, 4, joints=("spherical", "revolute", "helical", "free")), armature=0.1)
BATCHES = {name: varied(TREE, fields, 3) for name, fields in VARIED.items()}


@pytest.mark.parametrize(
    ("function", "fields"),
    [*((f, "everything") for f in FUNCTIONS), *((ts.forward_dynamics, fields) for fields in VARIED)],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_a_batch_is_its_members(function, fields):
    batch, given = BATCHES[fields], state(function, TREE, 3)
    found, wanted = function(batch, *given.values()), one_by_one(function, batch, given)
    assert np.abs(found - wanted).max() <= ROUNDING * np.abs(wanted).max()


@pytest.mark.parametrize("function", [ts.forward_dynamics, ts.mass_matrix, ts.jacobian], ids=lambda f: f.__name__)
def test_single_precision(function):
    batch, given = BATCHES["everything"], state(function, TREE, 3)
    wanted = one_by_one(function, batch, given)
    single = function(batch, *(x if name == "body" else x.astype(np.float32) for name, x in given.items()))
    assert single.dtype == np.float32
    assert np.abs(single - wanted).max() <= SINGLE * np.abs(wanted).max()


@pytest.mark.parametrize("model", [zoo.panda(), zoo.rope(40)], ids=["unrolled", "looped"])
def test_the_same_answer_again_and_in_any_shape(model):
    """The second call takes the fast path; batch axes broadcast as those of arrays do."""
    batch = varied(model, VARIED["everything"], 6)
    q, v, tau = state(ts.forward_dynamics, model, 6).values()
    first = ts.forward_dynamics(batch, q, v, tau)
    assert np.array_equal(ts.forward_dynamics(batch, q, v, tau), first)
    grid = ModelBatch(model, **{name: x.reshape(2, 3, *x.shape[1:]) for name, x in batch.varied.items()})
    assert ts.forward_dynamics(grid, q.reshape(2, 3, -1), v[:3], tau[0]).shape == (2, 3, model.nv)
    for k in range(6):
        assert np.array_equal(ts.forward_dynamics(batch[k : k + 1], q[k], v[k], tau[k])[0], first[k])
    against = ts.forward_dynamics(batch, q[:, None], v[:, None], tau[:, None])  # every state with every member
    assert against.shape == (6, 6, model.nv)
    assert np.array_equal(against[np.arange(6), np.arange(6)], first)


@pytest.mark.parametrize("method", ["articulated", "composite", "udut", "ploen-park"])
def test_named_methods_and_wrenches(method):
    arm = zoo.panda()
    batch = varied(arm, VARIED["everything"], 4)
    q, v, tau = state(ts.forward_dynamics, arm, 4).values()
    external = np.random.default_rng(5).normal(size=(4, arm.n, 6))
    found = ts.forward_dynamics(batch, q, v, tau, external=external, method=method)
    back = ts.inverse_dynamics(batch, q, v, found, external=external)
    assert np.abs(back - tau).max() < 1e-9 * np.abs(tau).max()


def test_models_one_after_the_other():
    models = [zoo.general_arm(5, seed) for seed in range(4)]
    batch = ModelBatch.of(models)
    q, v, tau = state(ts.forward_dynamics, models[0], 4).values()
    wanted = one_by_one(ts.forward_dynamics, batch, {"q": q, "v": v, "tau": tau})
    assert np.abs(ts.forward_dynamics(batch, q, v, tau) - wanted).max() <= ROUNDING * np.abs(wanted).max()
    assert [np.array_equal(batch[k].p, model.p) for k, model in enumerate(models)] == [True] * 4


def test_every_field_of_the_models_differs_as_data_or_is_refused_by_name():
    arm = replace(zoo.panda(), frames={"tool": (6, np.eye(3), np.zeros(3))}, upper=3.0)
    quantities = tuple(DEFAULTS)
    other = replace(arm, **dict.fromkeys(quantities, 0.5), mass=2 * arm.mass, name="heavy", gravity=(0, 0, 1))
    batch = ModelBatch.of([arm, other])
    assert batch[0] == arm
    assert replace(batch[1], name="heavy") == other
    q, v, tau = state(ts.forward_dynamics, arm, 2).values()
    found, wanted = ts.forward_dynamics(batch, q, v, tau), ts.forward_dynamics(other, q[1], v[1], tau[1])
    assert np.abs(found[1] - wanted).max() <= ROUNDING * np.abs(wanted).max()
    refused = {
        "names": {"names": tuple("abcdefg")},
        "frames": {"frames": {"tool": (6, np.eye(3), np.ones(3))}},
        "allow_degenerate": {"allow_degenerate": True},
        "couplings": {"extras": Extras(couplings=(Coupling(1, 2),))},
        "actuators": {"extras": Extras(actuators=(Actuator("motor", ((0, 1.0),)),))},
        "joint_names": {"extras": Extras(joint_names=tuple("abcdefg"))},
        "keyframes": {"extras": Extras(keyframes={"home": (0.0,) * 7})},
        "units": {"extras": Extras(units="amu, nm, ps")},
        "visuals": {"extras": Extras(visuals=(Visual(0, "sphere", (1.0,)),))},
    }
    for name, change in refused.items():
        with pytest.raises(ModelError, match=f"^{name} of model 1 is not that of model 0"):
            ModelBatch.of([arm, replace(arm, **change)])
    known = {f.name for f in fields(Model)} | {f.name for f in fields(Extras)}
    data = {"axis", "pitch", "R", "p", "mass", "com", "inertia", "gravity", *quantities}
    assert known == data | {*refused} | {"parent", "joint", "extras", "name", "notes"}, "a field that no test knows"


@pytest.mark.thinned(3)
@pytest.mark.parametrize("function", [ts.forward_dynamics, ts.inverse_dynamics, ts.mass_matrix, ts.log_det_mass_matrix])
@pytest.mark.parametrize("joints", [("revolute",), ("spherical", "revolute", "free")], ids=["axes", "balls"])
@pytest.mark.parametrize("bodies", [4, 45], ids=["straight", "loops"])
def test_rotors_of_a_batch_are_those_of_its_members(function, joints, bodies):
    """Some members have none; the model has none at all, so that its own kinds know nothing of rotors."""
    model, rng = zoo.random_tree(bodies, 3, joints=joints), np.random.default_rng(4)
    armature = rng.uniform(0.1, 1.0, (3, model.nv))
    armature[1] = 0.0
    batch, given = ModelBatch(model, armature=armature), state(function, model, 3)
    assert list(members(batch).inputs) == ["armatures"]
    found = function(batch, *given.values())
    for k in range(3):
        wanted = function(replace(model, armature=armature[k]), *(x[k] for x in given.values()))
        assert np.abs(found[k] - wanted).max() <= ROUNDING * bodies * np.abs(wanted).max()
        assert np.array_equal(function(batch[k : k + 1], *(x[k : k + 1] for x in given.values()))[0], found[k])


@pytest.mark.parametrize(
    "function", [ts.forward_dynamics, ts.mass_solve, ts.inverse_mass_matrix, ts.log_det_mass_matrix]
)
def test_joints_follow_others_in_every_member(function):
    arm = replace(zoo.general_arm(5, 2), extras=Extras(couplings=(Coupling(3, 1, 0.7, 0.1),)))
    batch, given = varied(arm, VARIED["everything"], 3), state(function, arm, 3)
    found = function(batch, *given.values())
    for k in range(3):
        wanted = function(batch[k], *(x[k] for x in given.values()))
        assert np.abs(found[k] - wanted).max() <= ROUNDING * np.abs(wanted).max()


def test_one_program_serves_all_batches_of_a_structure():
    """Other numbers, and even another base model, need no other program."""
    a, b = (ModelBatch.of([zoo.general_arm(5, seed), zoo.general_arm(5, seed + 1)]) for seed in (0, 10))
    q = np.zeros(5)
    ts.forward_dynamics(a, q, q, q)
    ts.forward_dynamics(b, q, q, q)
    assert members(a).key == members(b).key
    assert members(a).store is members(b).store
    heavier = ModelBatch(zoo.panda(), mass=zoo.panda().mass * 2)
    lighter = ModelBatch(zoo.panda(), mass=zoo.panda().mass / 2)
    assert members(heavier).key == members(lighter).key != members(a).key


def test_light_bodies_keep_their_digits():
    """A member far smaller than the model is framed on its own: its numbers must not drown in the model's lengths."""
    arm = zoo.random_chain(4, 0, joints=("revolute",))
    tiny = ModelBatch(arm, com=arm.com[None] * 1e-7, inertia=arm.inertia[None] * 1e-14)
    assert "placements" in members(tiny).inputs
    given = state(ts.mass_solve, arm, 1)
    found, wanted = ts.mass_solve(tiny, *given.values()), one_by_one(ts.mass_solve, tiny, given)
    assert np.abs(found - wanted).max() <= 1e-9 * np.abs(wanted).max()


@pytest.mark.parametrize("unroll", [ALWAYS, NEVER], ids=["straight", "loops"])
def test_other_backends_write_it(unroll):
    batch = BATCHES["everything"]
    found = members(batch)
    algorithm, options = ALGORITHMS[ts.forward_dynamics], tuple(found.inputs)
    request = Request(algorithm, batch.model, options=options, unroll=unroll, members=found)
    assert "inertias" in Kernel.of(request).source()
    assert "placements" in CFunction.of(request).text()
    assert [place_of(name).shape(TREE) for name in found.inputs] == [x.shape[1:] for x in found.inputs.values()]


def test_members_that_differ_in_their_joints_keep_their_frames():
    """Only gravity is an input, which has the axes of the members; the dynamics know nothing of joints."""
    arm = zoo.panda()
    batch = ModelBatch(arm, damping=np.ones((2, 7)), effort=np.full((2, 7), 9.0))
    assert list(members(batch).inputs) == ["gravities"]
    q, v, tau = np.random.default_rng(0).normal(size=(3, 7))
    found = ts.forward_dynamics(batch, q, v, tau)
    assert found.shape == (2, 7)
    assert np.abs(found - ts.forward_dynamics(arm, q, v, tau)).max() < ROUNDING * np.abs(found).max()
    for name, value in (("damping", -1.0), ("lower", 9.0), ("effort", np.nan)):
        with pytest.raises(ts.ModelError, match=f"link1 of member 0.*{name}"):
            ModelBatch(replace(arm, upper=1.0), **{name: np.full((2, 7), value)})


def test_empty_batches():
    arm = zoo.panda()
    nobody = ModelBatch(arm, mass=np.empty((0, arm.n)))
    assert ts.forward_dynamics(nobody, np.zeros(7), np.zeros(7), np.zeros(7)).shape == (0, 7)


def test_what_cannot_be_is_refused_by_name():
    arm = zoo.panda()
    mass = np.tile(arm.mass, (5, 1))
    mass[3, 2] = -1
    with pytest.raises(ModelError, match=r"body '.* of member 3' .*: mass -1.0 is negative"):
        ModelBatch(arm, mass=mass)
    with pytest.raises(ModelError, match="of member 1"):
        ModelBatch(arm, R=np.stack([arm.R, arm.R * 1.1]))
    with pytest.raises(ModelError, match="gravity of member 1"):
        ModelBatch(arm, gravity=[[0, 0, 1], [0, np.nan, 0]])
    with pytest.raises(ArgumentError, match="'parent' cannot differ"):
        ModelBatch(arm, parent=arm.parent)
    with pytest.raises(ArgumentError, match=r"mass has shape \(3,\)"):
        ModelBatch(arm, mass=[1, 2, 3])
    with pytest.raises(ArgumentError, match="do not go together"):
        ModelBatch(arm, mass=np.tile(arm.mass, (2, 1)), com=np.tile(arm.com, (3, 1, 1)))
    with pytest.raises(ModelError, match="model 1 has other joints"):
        ModelBatch.of([arm, zoo.puma560()])
    with pytest.raises(ArgumentError, match="at least one"):
        ModelBatch.of([])
    for models in (3, np.zeros(2), arm):
        with pytest.raises(ArgumentError, match="must be a list of models"):
            ModelBatch.of(models)
    batch = ModelBatch(arm, mass=np.abs(mass))
    q = np.zeros(7)
    with pytest.raises(ArgumentError, match="batch axes do not go together"):
        ts.forward_dynamics(batch, np.zeros((3, 7)), q, q)
    for method in ("fixman", "segments", "constraint-force"):
        with pytest.raises(ArgumentError, match="one model"):
            ts.forward_dynamics(batch, q, q, q, method=method)
    with pytest.raises(ArgumentError, match="float64 or float32"):
        ts.forward_dynamics(batch, q.astype(np.longdouble), q, q)
    for other in (lambda: ts.compile(batch, ts.mass_matrix), lambda: ts.simulate(batch, duration=1)):
        with pytest.raises(ArgumentError, match=r"must be a torsor\.Model"):
            other()


def test_massless_members_are_found_out():
    arm = zoo.point_chain(3)
    light = ModelBatch(arm, mass=[[1.0, 1.0, 1.0], [1.0, 0.5, 2.0]])
    q = [0.1, 0.2, 0.3]
    wanted = [ts.mass_solve(light[k], q, [1.0, 2, 3]) for k in range(2)]
    assert np.allclose(ts.mass_solve(light, q, [1.0, 2, 3]), wanted, rtol=1e-12)


@pytest.mark.parametrize("model", [zoo.panda(), zoo.rope(30)], ids=["unrolled", "looped"])
def test_derivatives_of_a_batch_are_those_of_its_members(model):
    """The VJP by every argument and by the model, against the JVP: cotangent' J tangent either way."""
    batch, rng = varied(model, VARIED["everything"], 3), np.random.default_rng(2)
    q, v, tau = state(ts.forward_dynamics, model, 3).values()
    y, dq, dv, dtau = rng.normal(size=(4, 3, model.nv))
    dm, dg = rng.normal(size=(3, model.n, 10)), rng.normal(size=(3, 3))
    wrt = ("q", "v", "tau", "inertia", "gravity")
    gradient = ts.vjp(ts.forward_dynamics, wrt)(batch, q, v, tau, y)
    change = ts.jvp(ts.forward_dynamics, wrt)(batch, q, v, tau, dq, dv, dtau, dm, dg)
    back = sum((g * d).reshape(3, -1).sum(axis=1) for g, d in zip(gradient, (dq, dv, dtau, dm, dg)))
    forth = (y * change).sum(axis=1)
    scale = sum(np.abs(g * d).reshape(3, -1).sum(axis=1) for g, d in zip(gradient, (dq, dv, dtau, dm, dg)))
    assert np.abs(back - forth).max() <= 1e-11 * scale.max()
    alone = ts.vjp(ts.forward_dynamics, wrt)(batch[1], q[1], v[1], tau[1], y[1])
    for one, all_ in zip(alone, gradient):
        assert np.abs(one - all_[1]).max() <= 1e-9 * np.abs(one).max()


# ---- members with other numbers ----


@pytest.mark.parametrize("fields", VARIED)
@pytest.mark.parametrize("where", [2, slice(1, 4), [4, 0], np.array([True, False, False, True, False])], ids=str)
def test_replaced_members_are_those_of_a_new_batch(fields, where):
    """To the bit, in float64 and float32, whether or not programs were used before."""
    batch, others = (varied(TREE, VARIED[fields], 5, seed) for seed in (0, 1))
    given = state(ts.forward_dynamics, TREE, 5)
    single = {name: x.astype(np.float32) for name, x in given.items()}
    before, frames = ts.forward_dynamics(batch, **given), members(batch)
    ts.forward_dynamics(batch, **single)
    assert batch.replaced(where, **{name: x[where] for name, x in others.varied.items()}) is batch
    chosen = np.zeros(5, bool)
    chosen[where] = True
    numbers = {name: np.where(chosen.reshape(-1, *[1] * (x.ndim - 1)), others.varied[name], x)
               for name, x in varied(TREE, VARIED[fields], 5).varied.items()}  # fmt: skip
    fresh = ModelBatch(TREE, **numbers)
    found = ts.forward_dynamics(batch, **given)
    assert np.array_equal(found, ts.forward_dynamics(fresh, **given))
    assert np.array_equal(ts.forward_dynamics(batch, **single), ts.forward_dynamics(fresh, **single))
    assert np.array_equal(found[~chosen], before[~chosen])
    assert not (found[chosen] == before[chosen]).all()
    assert members(batch) is frames  # nothing was framed but these members
    path = {"steps": 3, "step": 0.01}
    ahead = ts.rollout(batch, given["q"], given["v"], **path)
    assert np.array_equal(ahead.q, ts.rollout(fresh, given["q"], given["v"], **path).q)


@pytest.mark.parametrize("fields", ["inertias", "gravity", "all"])
def test_many_replaced_members_in_the_same_frames_are_framed_at_once(fields):
    """To the bit, however many there are: what compiled code finds does not depend on the members beside."""
    names = {
        "inertias": VARIED["inertias"],
        "gravity": ("gravity",),
        "all": (*VARIED["inertias"], "gravity", "armature"),
    }
    batch, others = (varied(TREE, names[fields], 301, seed) for seed in (0, 1))
    members(batch)
    where = np.random.default_rng(2).permutation(301)[:113]
    batch.replaced(where, **{name: x[where] for name, x in others.varied.items()})
    assert not batch.replacements  # framed, checked and written already
    fresh = ModelBatch(TREE, **{name: x.copy() for name, x in batch.varied.items()})
    assert members(batch).inputs.keys() == members(fresh).inputs.keys()
    for name, x in members(batch).inputs.items():
        assert np.array_equal(x, members(fresh).inputs[name])
        assert np.array_equal(x[where], members(others).inputs[name][where])


def test_what_is_framed_at_once_is_what_the_rules_of_a_model_allow():
    """Margins of compiled code against eigenvalues, for bodies that barely could or could not exist."""
    rng, count = np.random.default_rng(0), 2000
    arm, moments = zoo.random_chain(1, 0), rng.uniform(0.0, 1.0, (count, 3))
    flat = rng.random(count) < 0.5  # nearly, or a little less than possible
    moments[flat, 2] = moments[flat, :2].sum(axis=1) * rng.uniform(0.9, 1.1, flat.sum())
    moments[: count // 4, 0] = rng.uniform(-0.1, 0.1, count // 4)
    turn = ts.lie.exp_so3(rng.normal(size=(count, 3)))
    inertia = turn @ (moments[:, :, None] * turn.swapaxes(-1, -2))
    inertia = (inertia + inertia.swapaxes(-1, -2)) / 2
    smallest = np.linalg.eigvalsh(inertia)[:, 0]
    excess = np.trace(inertia, axis1=1, axis2=2) - 2 * np.linalg.eigvalsh(inertia)[:, 2]
    possible = (smallest > 0) & (excess > 0)
    numbers = {"mass": np.ones((count, 1)), "com": np.zeros((count, 1, 3)), "inertia": inertia[:, None]}
    _, margins = _inertias(short_frames(arm), arm, numbers)
    clear = np.minimum(abs(smallest), abs(excess)) > 1e-6  # the rules have a slack
    assert np.array_equal((margins[:, 0].min(axis=-1) > 0)[clear], possible[clear])
    assert 0.1 < possible.mean() < 0.9
    assert clear.mean() > 0.99
    batch = ModelBatch(arm, mass=np.ones((4, 1)), com=np.zeros((4, 1, 3)), inertia=np.tile(np.eye(3), (4, 1, 1, 1)))
    members(batch)
    for k in np.flatnonzero(clear)[:100]:
        if possible[k]:
            batch.replaced(2, inertia=inertia[k])
        else:
            with pytest.raises(ModelError, match="counted among the members"):
                batch.replaced(2, inertia=inertia[k])


@pytest.mark.parametrize(
    "numbers",
    [{"mass": np.inf}, {"mass": 0.0}, {"com": np.nan}, {"inertia": np.nan}, {"inertia": np.inf},
     {"inertia": np.ones((3, 3))}, {"inertia": np.triu(np.full((3, 3), 0.1)) + np.eye(3)},
     {"gravity": np.nan}, {"armature": -1.0}, {"mass": -1.0}],
    ids=str,
)  # fmt: skip
def test_a_framed_batch_refuses_what_a_new_one_refuses(numbers):
    arm = zoo.panda()
    fields = ("mass", "com", "inertia", "gravity", "armature")
    batch = ModelBatch(arm, **{name: np.stack([getattr(arm, name)] * 3) for name in fields})
    before = {name: x.copy() for name, x in members(batch).inputs.items()}
    (name,) = numbers
    with pytest.raises(ModelError) as told:
        batch.replaced([1], **numbers)
    with pytest.raises(ModelError) as wanted:
        ModelBatch(arm, **{name: np.broadcast_to(numbers[name], (1, *getattr(arm, name).shape))})
    assert str(told.value).startswith(str(wanted.value))
    assert all(np.array_equal(x, before[name]) for name, x in members(batch).inputs.items())


def test_numbers_of_joints_are_replaced_in_rollouts():
    arm = replace(zoo.general_arm(3, 5), damping=0.1)
    batch = ModelBatch(arm, damping=np.full((4, 3), 0.1), mass=np.tile(arm.mass, (4, 1)))
    start, path = np.ones((4, 3)), {"steps": 10, "step": 0.01}
    before = ts.rollout(batch, start, start, **path).q
    batch.replaced([1, 2], damping=2.0)
    after = ts.rollout(batch, start, start, **path).q
    wanted = ts.rollout(ModelBatch(arm, damping=batch.varied["damping"]), start, start, **path).q
    assert np.abs(after - wanted).max() < ROUNDING
    assert [np.array_equal(before[k], after[k]) for k in range(4)] == [True, False, False, True]
    assert np.array_equal(batch[1].damping, [2.0] * 3)


def test_two_axes_and_several_replacements():
    arm = zoo.panda()
    factor = np.random.default_rng(0).uniform(0.8, 1.2, (2, 3, 1))
    batch, (q, v, tau) = ModelBatch(arm, mass=arm.mass * factor), np.random.default_rng(1).normal(size=(3, 7))
    ts.forward_dynamics(batch, q, v, tau)
    batch.replaced((0, 1), mass=2 * arm.mass).replaced((slice(None), 2), mass=arm.mass)
    batch.replaced((0, 1), mass=3 * arm.mass)
    factor = factor.copy()
    factor[0, 1], factor[:, 2] = 3.0, 1.0
    fresh = ModelBatch(arm, mass=arm.mass * factor)
    assert np.array_equal(ts.forward_dynamics(batch, q, v, tau), ts.forward_dynamics(fresh, q, v, tau))


def test_a_batch_without_axes_is_replaced():
    arm, given = zoo.panda(), np.random.default_rng(0).normal(size=(3, 7))
    batch = ModelBatch(arm, mass=arm.mass)
    for factor in (2, 3):
        batch.replaced((), mass=factor * arm.mass)
        fresh = ModelBatch(arm, mass=factor * arm.mass)
        assert np.array_equal(ts.forward_dynamics(batch, *given), ts.forward_dynamics(fresh, *given))


def test_a_member_that_is_too_small_for_the_frames_of_the_others():
    """All members are framed anew, because the origin of a tiny body must stay at its joint (`frames.FAR`)."""
    arm = zoo.random_chain(4, 0, joints=("revolute",))
    same = {name: np.stack([getattr(arm, name)] * 3) for name in ("mass", "com", "inertia")}
    batch, given = ModelBatch(arm, **same), state(ts.forward_dynamics, arm, 3)
    ts.forward_dynamics(batch, *given.values())
    tiny = {"com": 1e-7 * arm.com, "inertia": 1e-14 * arm.inertia}
    batch.replaced([1], **tiny)
    fresh = ModelBatch(arm, **{name: np.array(x) for name, x in batch.varied.items()})
    assert members(fresh).key != members(ModelBatch(arm, **same)).key
    assert np.array_equal(ts.forward_dynamics(batch, *given.values()), ts.forward_dynamics(fresh, *given.values()))


def test_replacements_that_are_refused_change_nothing():
    arm = zoo.panda()
    batch = ModelBatch(arm, mass=np.tile(arm.mass, (3, 1)))
    before = ts.gravity_forces(batch, np.ones(7))
    refused = [
        (ModelError, "counted among the members", 1, {"mass": -1.0}),
        (ModelError, "link|body|mass", [0, 2], {"mass": np.nan}),
        (ArgumentError, "'gravity' does not differ between the members of this batch: mass does", 1, {"gravity": 0.0}),
        (ArgumentError, "these members need", [0, 1], {"mass": np.ones((3, 7))}),
        (ArgumentError, "where must name members", 3, {"mass": 1.0}),
        (ArgumentError, "where must name members", "all", {"mass": 1.0}),
        (ArgumentError, "where must name members", np.ones(4, bool), {"mass": 1.0}),
    ]
    for error, message, where, numbers in refused:
        with pytest.raises(error, match=message):
            batch.replaced(where, **numbers)
    assert np.array_equal(ts.gravity_forces(batch, np.ones(7)), before)
    batch.replaced([], mass=1.0).replaced(slice(0), mass=1.0)
    assert np.array_equal(ts.gravity_forces(batch, np.ones(7)), before)
