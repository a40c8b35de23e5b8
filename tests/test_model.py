"""The Model: what the builders make of their arguments, and the configuration manifold."""

import dataclasses
import pickle
import time
import tracemalloc

import numpy as np
import oracle
import pytest

from torsor import zoo
from torsor.errors import ArgumentError
from torsor.model import JOINTS, Model, joint_code
from torsor.model.extras import Coupling, Extras

ROUNDING = 1e-12  # sums and products of a few numbers of order one
BALL = {"mass": 1.0, "inertia": (0.1, 0.1, 0.1)}


def test_names_that_are_not_there_are_told_with_those_that_are():
    with pytest.raises(ArgumentError, match=r"no body or frame named 'tool'; it has 'link1', 'link2', 'link3'$"):
        Model.chain(n=3, **BALL).frame("tool")
    hand = Model.chain(n=2, **BALL).with_frames({"hand": ("link2", np.eye(3), np.zeros(3))})
    with pytest.raises(ArgumentError, match=r"named 'tool'; it has 'hand', 'link1', 'link2'$"):
        hand.frame("tool")
    with pytest.raises(ArgumentError, match=r"'link8' and 99992 more$"):
        Model.chain(n=100_000, **BALL).frame("tool")


@pytest.mark.parametrize("names", ["link1", 3, None, [["link1"]], np.zeros((2, 2)), object()])
def test_an_order_of_something_else_than_names_is_refused(names):
    with pytest.raises(ArgumentError, match="names must be a list of names of joints"):
        Model.chain(n=2, **BALL).order(names)


def test_a_size_beyond_all_memory_is_refused_even_with_an_empty_axis():
    with pytest.raises(ArgumentError, match="size asks for more than"):
        Model.chain(n=2, **BALL).random_configuration(0, (2**70, 0))


def random_rotation(seed):
    return zoo.random_chain(1, seed).R[0]


# ---- arguments ----


def test_one_value_for_all_bodies_is_the_same_for_each():
    once = Model.chain(n=4, axis=(0, 1, 0), p=(1, 0, 0), mass=2.0, com=(0.5, 0, 0), inertia=(0.1, 0.2, 0.2))
    each = Model.chain(
        joint=["revolute"] * 4,
        axis=np.tile([0, 1, 0], (4, 1)),
        pitch=np.zeros(4),
        R=np.tile(np.eye(3), (4, 1, 1)),
        p=np.tile([1, 0, 0], (4, 1)),
        mass=[2.0] * 4,
        com=np.tile([0.5, 0, 0], (4, 1)),
        inertia=np.tile(np.diag([0.1, 0.2, 0.2]), (4, 1, 1)),
    )
    assert once == each


@pytest.mark.parametrize(
    "per_body",
    [
        {"n": 5},
        {"mass": np.ones(5)},
        {"p": np.zeros((5, 3))},
        {"joint": ["revolute"] * 5},
        {"names": ["a", "b", "c", "d", "e"]},
        {"inertia": np.ones((5, 3))},
    ],
)
def test_number_of_bodies_follows_from_any_argument(per_body):
    assert Model.chain(**BALL | per_body).n == 5


def test_three_by_three_inertia_is_one_tensor():
    tensor = np.array([[0.3, 0.01, 0.0], [0.01, 0.2, 0.02], [0.0, 0.02, 0.2]])
    assert (Model.chain(n=3, mass=1.0, inertia=tensor).inertia == tensor).all()


def test_axes_are_normalised_once():
    axis = np.random.default_rng(0).normal(size=(1000, 3))
    model = Model.chain(axis=axis, **BALL)
    assert np.abs(np.linalg.norm(model.axis, axis=1) - 1).max() < ROUNDING
    assert Model.chain(axis=model.axis, **BALL) == model  # normalising again changes no bit


def test_joints_without_an_axis_keep_z():
    joints = ["universal", "spherical", "planar", "free"]
    assert (Model.chain(joints, axis=(1, 1, 0), **BALL).axis == (0, 0, 1)).all()


def test_inertia_is_made_exactly_symmetric():
    tilted = random_rotation(1) @ np.diag([0.2, 0.3, 0.4]) @ random_rotation(1).T
    skew = tilted + 1e-14 * np.triu(np.ones((3, 3)), 1)
    stored = Model.chain(mass=1.0, inertia=skew).inertia[0]
    assert np.array_equal(stored, stored.T)


def test_gravity_defaults_to_9_81_down_z():
    assert Model.chain(**BALL).gravity.tolist() == [0, 0, -9.81]


def test_names_default_to_numbered_links():
    model = Model.chain(n=3, **BALL)
    assert list(model.names) == ["link1", "link2", "link3"]
    assert model.names[-1] == "link3"
    assert model.names[1:] == ("link2", "link3")
    assert "link3" in model.names
    assert not any(name in model.names for name in ("link0", "link4", "link03", "link", "links", 3))


# ---- order ----


def test_sorted_bodies_keep_their_order():
    parent = [-1, 0, 0, 1, 2, 1]
    model = Model.tree(parent, mass=np.arange(1.0, 7), inertia=(1, 1, 1), names=list("abcdef"))
    assert model.parent.tolist() == parent
    assert model.names == tuple("abcdef")


def test_sorting_keeps_names_and_numbers_with_their_bodies():
    """A tree given in a random order is the tree given in order: same parents by name, same mass matrix."""
    ordered = zoo.random_tree(12, 5)
    shuffle = np.random.default_rng(0).permutation(12)
    place = np.append(np.argsort(shuffle), -1)
    rows = {key: getattr(ordered, key)[shuffle] for key in ("axis", "pitch", "R", "p", "mass", "com", "inertia")}
    joints = [JOINTS[code].name for code in ordered.joint[shuffle]]
    names = [ordered.names[i] for i in shuffle]
    model = Model.tree(place[ordered.parent[shuffle]], joints, names=names, **rows)

    def parents(m):
        return {name: "base" if k < 0 else m.names[k] for name, k in zip(m.names, m.parent)}

    assert (model.parent < np.arange(12)).all()
    assert parents(model) == parents(ordered)
    for i, name in enumerate(model.names):
        assert model.mass[i] == ordered.mass[ordered.frame(name).body]


def test_parents_may_be_added_after_their_children():
    builder = Model.builder().add("leaf", "root", **BALL).add("root", **BALL)
    assert builder.build().names == ("root", "leaf")


def test_builder_and_arrays_make_the_same_model():
    arrays = zoo.random_tree(9, 2)
    builder = Model.builder(arrays.name)
    for i in range(arrays.n):
        parent = None if arrays.parent[i] < 0 else arrays.names[arrays.parent[i]]
        columns = {key: getattr(arrays, key)[i] for key in ("axis", "R", "p", "mass", "com", "inertia", "pitch")}
        builder.add(arrays.names[i], parent, JOINTS[arrays.joint[i]].name, **columns)
    assert builder.build() == arrays


# ---- fixed bodies ----


def with_fixed_bodies():
    """A tree of 14 random bodies, and those to be fixed: among them fixed on fixed, and on the base."""
    model = zoo.random_tree(14, 3, joints=["revolute"])
    parent = np.array([-1, 0, 1, 2, 3, 3, 5, 0, 7, -1, 9, 9, 11, 12])
    fixed = [2, 3, 6, 7, 9, 13]
    rows = {key: getattr(model, key) for key in ("axis", "R", "p", "mass", "com", "inertia")}
    return parent, fixed, rows


def test_merging_fixed_bodies_is_locking_their_joints():
    """M of the merged tree is M with hinges for the fixed joints, less their rows and columns."""
    parent, fixed, rows = with_fixed_bodies()
    merged = Model.tree(parent, ["fixed" if i in fixed else "revolute" for i in range(14)], **rows)
    whole = Model.tree(parent, **rows)
    moving = [i for i in range(14) if i not in fixed]
    q = np.zeros(14)
    q[moving] = np.random.default_rng(1).normal(size=len(moving))
    expected = oracle.mass_matrix(whole, q)[np.ix_(moving, moving)]
    assert merged.names == tuple(whole.names[i] for i in moving)
    assert np.abs(oracle.mass_matrix(merged, q[moving]) - expected).max() < ROUNDING * np.abs(expected).max()


def test_fixed_bodies_stay_as_frames_where_they_were():
    parent, fixed, rows = with_fixed_bodies()
    merged = Model.tree(parent, ["fixed" if i in fixed else "revolute" for i in range(14)], **rows)
    whole = Model.tree(parent, **rows)
    moving = [i for i in range(14) if i not in fixed]
    q = np.zeros(14)
    q[moving] = np.random.default_rng(1).normal(size=len(moving))
    assert list(merged.frames) == [whole.names[i] for i in fixed]
    for name in merged.frames:
        R, p = oracle.frame_pose(merged, q[moving], name)
        R_expected, p_expected = oracle.frame_pose(whole, q, name)
        assert np.abs(R - R_expected).max() < ROUNDING
        assert np.abs(p - p_expected).max() < ROUNDING


def test_what_is_fixed_to_the_base_is_a_frame_of_the_base():
    model = Model.builder().add("pedestal", None, "fixed", p=(0, 0, 1), mass=50).add("arm", "pedestal", **BALL).build()
    assert model.frames["pedestal"].body == -1
    assert model.parent.tolist() == [-1]
    assert model.p.tolist() == [[0, 0, 1]]
    assert model.mass.tolist() == [1.0]


def test_merging_adds_masses_by_steiners_theorem():
    """Two equal balls at +-d: twice the mass, com between, inertia 2 I + 2 m d^2 across."""
    builder = Model.builder().add("a", p=(0, 0, 0), com=(0.5, 0, 0), **BALL)
    model = builder.add("b", "a", "fixed", p=(-0.5, 0, 0), **BALL).build()
    assert model.mass.tolist() == [2.0]
    assert np.abs(model.com).max() < ROUNDING
    assert np.abs(model.inertia[0] - np.diag([0.2, 0.7, 0.7])).max() < ROUNDING


def test_a_massless_fixed_tip_is_only_a_frame():
    model = Model.builder().add("arm", **BALL).add("tool", "arm", "fixed", p=(0, 0, 1)).build()
    assert model.n == 1
    assert model.frame("tool").p.tolist() == [0, 0, 1]


def test_long_runs_of_fixed_bodies_merge():
    n = 5000
    model = Model.chain(["revolute"] + ["fixed"] * (n - 1), p=(1, 0, 0), **BALL)
    assert model.n == 1
    assert model.mass.tolist() == [n]
    assert model.frame(f"link{n}").p.tolist() == [n - 1, 0, 0]


# ---- frames ----


def test_frames_may_sit_on_bodies_fixed_bodies_and_the_base():
    builder = Model.builder().add("arm", p=(1, 0, 0), **BALL).add("hand", "arm", "fixed", p=(0, 1, 0))
    model = builder.frame("tip", "hand", p=(0, 0, 1)).frame("eye", "arm").frame("camera", None, p=(5, 5, 5)).build()
    assert model.frame("tip").p.tolist() == [0, 1, 1]
    assert model.frame("eye").body == 0
    assert model.frame("camera").body == -1
    assert model.with_frames({"further": ("tip", np.eye(3), (0, 0, 1))}).frame("further").p.tolist() == [
        0,
        1,
        2,
    ]


def test_frame_of_a_body_is_its_own():
    body, R, p = zoo.rope(5).frame("link3")
    assert (body, R.tolist(), p.tolist()) == (2, np.eye(3).tolist(), [0, 0, 0])


def test_unknown_frame_is_refused():
    with pytest.raises(ArgumentError, match="no body or frame named 'nose'"):
        zoo.panda().frame("nose")


# ---- identity ----


def test_arrays_are_read_only():
    model = zoo.humanoid()
    for array in (model.R, model.parent, model.gravity, model.q_start, model.frame("left_sole").p):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.mass = 1


def test_a_model_does_not_change_with_the_arrays_it_was_made_from():
    mass = np.ones(3)
    model = Model.chain(mass=mass, inertia=(1, 1, 1))
    mass[0] = 7
    assert model.mass.tolist() == [1, 1, 1]


def test_equality_and_hash_are_by_content():
    a, b = zoo.random_tree(8, 1), zoo.random_tree(8, 1)
    assert a == b
    assert hash(a) == hash(b)
    assert a != zoo.random_tree(8, 2)
    assert a != dataclasses.replace(a, gravity=(0, 0, -1.62))
    assert a != "a"


def test_key_depends_on_the_physics_alone():
    model = zoo.panda()
    renamed = dataclasses.replace(model, name="other", names=tuple("abcdefg"), frames={})
    assert renamed != model
    assert renamed.key == model.key
    for field in ("p", "mass", "com", "inertia", "gravity"):
        nudged = getattr(model, field) * (1 + 1e-15)
        assert dataclasses.replace(model, **{field: nudged}).key != model.key, field


def test_pickle_gives_back_an_equal_read_only_model():
    for model in (zoo.humanoid(), zoo.rope(20)):
        copy = pickle.loads(pickle.dumps(model))
        assert copy == model
        assert not copy.R.flags.writeable
        assert copy.names == model.names


def test_repr_says_what_it_is():
    assert repr(zoo.stanford()) == "Model('stanford', 6 bodies: 5 revolute, 1 prismatic; nq=6, nv=6)"


# ---- the configuration manifold ----


def test_starts_slice_q_and_v_by_joint():
    model = Model.chain(["free", "revolute", "spherical", "planar", "universal"], **BALL)
    assert model.q_start.tolist() == [0, 7, 8, 12, 15, 17]
    assert model.v_start.tolist() == [0, 6, 7, 10, 13, 15]
    assert (model.nq, model.nv) == (17, 15)


def test_neutral_is_every_joint_at_rest():
    model = Model.chain(["free", "revolute", "spherical"], **BALL)
    assert model.neutral().tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("size", [None, 3, (2, 3), 0])
def test_random_configurations_have_the_size_asked_for(size):
    model = zoo.random_tree(14, 0)
    batch = () if size is None else np.atleast_1d(size)
    assert model.random_configuration(1, size).shape == (*batch, model.nq)


def test_random_quaternions_are_unit_and_uniform():
    model = Model.chain("spherical", **BALL)
    q = model.random_configuration(0, 20_000)
    assert np.abs(np.linalg.norm(q, axis=-1) - 1).max() < ROUNDING
    assert np.abs(q.T @ q / len(q) - np.eye(4) / 4).max() < 0.01  # 1/sqrt(20000) is 0.007, times 0.2 of spread


def test_random_configuration_is_reproducible():
    model = zoo.random_tree(14, 0)
    assert np.array_equal(model.random_configuration(3), model.random_configuration(np.random.default_rng(3)))


@pytest.mark.parametrize("size", [None, 0, 500, (2, 3)])
def test_random_configurations_within_limits(size):
    """Both limits, wider than a turn; one limit; none; a ball joint, which has none."""
    model = Model.chain(
        ["revolute", "prismatic", "revolute", "revolute", "spherical"], **BALL,
        lower=[-9.0, -np.inf, 1.0, *[-np.inf] * 4], upper=[9.0, 0.5, np.inf, *[np.inf] * 4],
    )  # fmt: skip
    q = model.random_configuration(0, size, limits=True)
    plain = model.random_configuration(0, size)
    assert q.shape == plain.shape
    assert (np.abs(q[..., 0]) <= 9).all()
    assert ((0.5 - 2 * np.pi <= q[..., 1]) & (q[..., 1] <= 0.5)).all()
    assert ((q[..., 2] >= 1) & (q[..., 2] <= 1 + 2 * np.pi)).all()
    assert np.array_equal(q[..., 3:], plain[..., 3:])  # what has no limits is drawn as ever
    if size == 500:
        assert q[:, 0].min() < -8 < 8 < q[:, 0].max()


def test_random_configurations_within_limits_obey_couplings():
    free = Model.chain(n=2, **BALL, lower=[-3.0, 0.0], upper=[3.0, 0.5])
    model = free.with_extras(Extras(couplings=(Coupling(1, 0, -0.5, 0.25),)))
    q = model.random_configuration(0, 1000, limits=True)
    assert np.array_equal(q, model.coupled(q))
    assert (np.abs(q[:, 0]) <= 0.5).all()  # where the limits of the follower let its leader go
    assert ((q[:, 1] >= 0) & (q[:, 1] <= 0.5)).all()
    exclusive = model.with_extras(Extras(couplings=(Coupling(1, 0, 0.0, 7.0),)))
    with pytest.raises(ArgumentError, match="exclude each other"):
        exclusive.random_configuration(0, limits=True)


def test_difference_undoes_integrate():
    model = zoo.random_tree(21, 0)
    rng = np.random.default_rng(0)
    q, dv = model.random_configuration(rng, (4, 5)), rng.uniform(-1, 1, (4, 5, model.nv))
    assert np.abs(model.difference(q, model.integrate(q, dv)) - dv).max() < ROUNDING


def test_integrate_along_the_difference_arrives():
    model = zoo.random_tree(21, 0)
    q0, q1 = model.random_configuration(1, (2, 50))
    arrived = model.integrate(q0, model.difference(q0, q1))
    quaternions_apart = np.abs(model.difference(arrived, q1))  # q and -q are one rotation
    assert quaternions_apart.max() < 1e-7  # near a half turn the logarithm loses half the digits


def test_integrate_broadcasts_one_configuration_over_many_steps():
    model = zoo.random_tree(14, 0)
    q, dv = model.random_configuration(1), np.random.default_rng(0).normal(size=(6, model.nv))
    assert np.array_equal(model.integrate(q, dv)[3], model.integrate(q, dv[3]))


def test_integrate_moves_bodies_with_the_velocity_of_their_jacobians():
    """(x(q [+] h v) - x(q [+] -h v)) / 2h = J v for every mass centre: v means the same to both."""
    model = zoo.random_tree(14, 4)
    rng = np.random.default_rng(0)
    q, v, h = model.random_configuration(rng), rng.normal(size=model.nv), 1e-6

    def mass_centres(q):
        return np.array([p + R @ c for (R, p, *_), c in zip(oracle.kinematics(model, q), model.com)])

    rate = (mass_centres(model.integrate(q, h * v)) - mass_centres(model.integrate(q, -h * v))) / (2 * h)
    expected = np.array([V @ v for *_, V in oracle.kinematics(model, q)])
    assert np.abs(rate - expected).max() < 1e-8 * np.abs(expected).max()  # h^2 and rounding / h


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.integrate(np.zeros(m.nv), np.zeros(m.nv)), r"q must have shape \(\.\.\., 7\).*\(6,\)"),
        (lambda m: m.integrate(m.neutral(), np.zeros(m.nq)), r"dv must have shape \(\.\.\., 6\).*\(7,\)"),
        (lambda m: m.integrate(0.0, np.zeros(m.nv)), r"q must have shape"),
        (lambda m: m.difference(m.neutral(), [1j] * m.nq), "q1 must hold real numbers, not complex128"),
        (lambda m: m.difference(m.neutral(), np.full(m.nq, np.nan)), "q1 holds a NaN"),
        (lambda m: m.integrate(np.zeros(m.nq), np.zeros(m.nv)), "q: the quaternion of 'link1' is zero"),
        (
            lambda m: m.integrate(np.tile(m.neutral(), (2, 1)), np.zeros((3, m.nv))),
            r"batch axes of q and dv do not fit: \(2, 7\) and \(3, 6\)",
        ),
    ],
)
def test_bad_configurations_are_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call(Model.chain("free", **BALL))


# ---- size ----


def build_long_chain(n):
    """Time of the processor (s) and peak of allocated memory (bytes) of building n links with places of their own."""
    p = np.tile([0.1, 0.0, 0.0], (n, 1))
    start = time.process_time()
    model = Model.chain(axis=(0, 1, 0), p=p, mass=1.0, com=(0.05, 0, 0), inertia=(0.1, 0.2, 0.2))
    seconds = time.process_time() - start
    tracemalloc.start()
    Model.chain(axis=(0, 1, 0), p=p, mass=1.0, com=(0.05, 0, 0), inertia=(0.1, 0.2, 0.2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert model.nv == n
    return seconds, peak


def test_a_hundred_thousand_links_are_built_without_an_object_a_link():
    seconds, peak = build_long_chain(100_000)
    assert seconds < 1.0
    assert peak < 60e6  # 241 bytes a link are stored; an object a link would add several hundred


@pytest.mark.slow
def test_a_million_links_are_built_in_three_seconds_and_one_and_a_half_gigabytes():
    seconds, peak = build_long_chain(1_000_000)
    assert seconds < 3.0
    assert peak < 1.5e9


def test_codes_and_names_of_joints_agree():
    assert [joint_code(joint.name) for joint in JOINTS] == list(range(len(JOINTS)))
