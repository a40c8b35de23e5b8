"""The constraint force algorithm in O(log n) levels against articulated sweeps, and reaction wrenches."""

from dataclasses import replace

import mpmath
import numpy as np
import oracle
import pytest
from machines import UNEVEN_ARMS, difference, floating_tree, with_first_joint
from peers import assert_close

import torsor as ts
from torsor import zoo
from torsor.model.joints import JOINTS

# Both methods solve systems of condition 1e3 or so along different ways.
ROUNDING = 1e-12
# The issue's bound for long, well-conditioned chains; 5e-15 to 8e-14 are met, most of it the sweeps' own error.
LONG = 1e-13
# Neighbours whose masses differ by 1e6: 1e-12 is reached where six digits of sixteen are lost.
UNEVEN = 1e-10
SINGLE = 1e-5


MACHINES = {
    "chain of every joint type": lambda: zoo.random_chain(9, 3, joints=None),
    "arm": lambda: zoo.general_arm(11, 5),
    "humanoid": zoo.humanoid,
}
# Compiling for every one of these takes its time: they are left to the slow tests.
MORE_MACHINES = {
    "rope": lambda: zoo.rope(9, mass=5.0),
    "tree of every joint type": lambda: zoo.random_tree(14, 1),
    "bush": lambda: zoo.random_tree(9, 2, branching=0.9),
    "floating tree": lambda: floating_tree(9, 4),
}


def state(model, seed=0, speed=1.0):
    rng = np.random.default_rng(seed)
    return model.random_configuration(rng), speed * rng.normal(size=model.nv), rng.normal(size=model.nv)


@pytest.fixture(scope="module", params=[*MACHINES, *(pytest.param(x, marks=pytest.mark.slow) for x in MORE_MACHINES)])
def model(request):
    return (MACHINES | MORE_MACHINES)[request.param]()


def test_forward_dynamics_is_that_of_the_articulated_sweeps(model):
    q, v, tau = state(model)
    got = ts.forward_dynamics(model, q, v, tau, method="constraint-force")
    assert_close(model, got, ts.forward_dynamics(model, q, v, tau, method="articulated"), ROUNDING)


@pytest.mark.parametrize("branching", [0.0, 0.6])
def test_external_wrenches_act(branching):
    model = zoo.random_tree(6, 2, joints=("revolute",), branching=branching)
    q, v, tau = state(model)
    external = np.random.default_rng(1).normal(size=(model.n, 6))
    got = ts.forward_dynamics(model, q, v, tau, external=external, method="constraint-force")
    assert_close(model, got, ts.forward_dynamics(model, q, v, tau, external=external), ROUNDING)


def test_mass_solve_is_that_of_the_articulated_sweeps(model):
    q, _, b = state(model)
    got = ts.mass_solve(model, q, b, method="constraint-force")
    assert_close(model, got, ts.mass_solve(model, q, b, method="articulated"), ROUNDING)


@pytest.mark.parametrize(
    "joint", ["revolute", "free", *(pytest.param(j.name, marks=pytest.mark.slow) for j in JOINTS[1:-1])]
)
def test_runs_of_one_joint_type(joint):
    model = zoo.random_chain(17, 2, joints=(joint,))
    q, _, b = state(model)
    got = ts.mass_solve(model, q, b, method="constraint-force")
    assert_close(model, got, ts.mass_solve(model, q, b, method="articulated"), ROUNDING)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 31, 33, 130])
def test_any_length(n):
    model = zoo.general_arm(n, 1)
    q, v, tau = state(model, speed=0.1)
    got = ts.forward_dynamics(model, q, v, tau, method="constraint-force")
    assert_close(model, got, ts.forward_dynamics(model, q, v, tau, method="articulated"), ROUNDING)


def test_a_floating_base_is_a_joint_of_six_freedoms():
    model = with_first_joint(zoo.general_arm(20, 3), "free")
    q, v, tau = state(model, speed=0.1)
    got = ts.forward_dynamics(model, q, v, tau, method="constraint-force")
    assert_close(model, got, ts.forward_dynamics(model, q, v, tau, method="articulated"), ROUNDING)


def test_batches_broadcast_and_keep_their_type():
    model = zoo.general_arm(11, 5)
    rng = np.random.default_rng(0)
    q, v, tau = model.random_configuration(rng, 6).reshape(2, 3, -1), rng.normal(size=(3, 11)), rng.normal(size=11)
    got = ts.forward_dynamics(model, q, v, tau, method="constraint-force")
    assert got.shape == (2, 3, 11)
    assert_close(model, got, ts.forward_dynamics(model, q, v, tau), ROUNDING)
    single = ts.forward_dynamics(model, *(x.astype(np.float32) for x in (q, v, tau)), method="constraint-force")
    assert single.dtype == np.float32
    assert difference(single, got) < SINGLE
    assert ts.forward_dynamics(model, q[:0], v, tau, method="constraint-force").shape == (0, 3, 11)


def coil(n):
    """Links of 0.1 m that turn about x, y and z in turn."""
    rng = np.random.default_rng(n)
    return ts.Model.chain(
        "revolute",
        axis=np.eye(3)[np.arange(n) % 3],
        p=np.tile([0.0, 0.0, -0.1], (n, 1)),
        mass=rng.uniform(0.5, 1.5, n),
        com=np.tile([0.0, 0.01, -0.05], (n, 1)),
        inertia=np.tile(np.diag([1.0e-3, 1.2e-3, 0.5e-3]), (n, 1, 1)),
    )


@pytest.mark.parametrize("n", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [coil, zoo.general_arm])
def test_long_chains_keep_their_digits(make, n):
    model = make(n)
    q, v, tau = state(model, speed=0.03)
    got = ts.forward_dynamics(model, q, v, tau, method="constraint-force")
    assert_close(model, got, ts.forward_dynamics(model, q, v, tau, method="articulated"), LONG)
    got = ts.mass_solve(model, q, tau, method="constraint-force")
    assert_close(model, got, ts.mass_solve(model, q, tau, method="articulated"), LONG)


@pytest.mark.parametrize("model", UNEVEN_ARMS.values(), ids=UNEVEN_ARMS)
def test_masses_of_very_different_size(model):
    q, _, tau = state(model)
    exact = ts.mass_solve(model, q.astype(np.longdouble), tau.astype(np.longdouble), method="articulated")
    assert_close(model, ts.mass_solve(model, q, tau, method="constraint-force"), exact, UNEVEN)


def test_straight_chains_of_identical_links():
    model = coil(200)
    model = replace(model, mass=np.ones(200))
    q, v, tau = state(model, speed=0.1)
    q = np.zeros_like(q)
    got = ts.forward_dynamics(model, q, v, tau, method="constraint-force")
    assert_close(model, got, ts.forward_dynamics(model, q, v, tau, method="articulated"), ROUNDING)


def test_a_body_that_cannot_be_inverted_is_named():
    model = zoo.point_chain(4)
    q, v, tau = state(model)
    with pytest.raises(ts.SingularError, match=r"constraint-force.*'link1'.*articulated"):
        ts.forward_dynamics(model, q, v, tau, method="constraint-force")


def test_numbers_it_does_not_compute_in_are_refused():
    model = zoo.general_arm(3)
    q, v, tau = state(model)
    with pytest.raises(ts.ArgumentError, match="float64"):
        ts.forward_dynamics(model, q.astype(np.longdouble), v, tau, method="constraint-force")


# Reaction wrenches -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thickness", [0.0, 0.1])
@pytest.mark.parametrize("length", [0.0, 0.5])
def test_the_wrenches_of_rods_and_points_are_those_of_their_motion_in_space(length, thickness):
    """Points, rods, tubes of no length and links; in space, by differences of their poses by time."""
    n, rng = 9, np.random.default_rng(3)
    round_the_rod, across = thickness, thickness + length
    chain = ts.Model.chain(
        ["revolute", "revolute", "prismatic"] * 3, n=n, axis=np.eye(3)[[2, 1, 0] * 3], p=(1.0, 0.0, 0.0), mass=0.5,
        com=(0.5, 0.25, 0.0), inertia=(round_the_rod, across, across), allow_degenerate=True,
    )  # fmt: skip
    with mpmath.workdps(oracle.DIGITS):
        q, v, tau, V, dV = (oracle.exact(rng.normal(size=k)) for k in (n, n, n, 6, 6))
        base = dict(base_velocity=V, base_acceleration=dV)
        qdd = ts.forward_dynamics(chain, q, v, tau, **base)
        expected = oracle.wrenches_along(chain, q, v, qdd, V, dV)
        assert np.abs(ts.constraint_forces(chain, q, v, tau, **base) - expected).max() < 1e-40
    numbers = (x.astype(float) for x in (q, v, tau))
    found = ts.constraint_forces(chain, *numbers, base_velocity=V.astype(float), base_acceleration=dV.astype(float))
    assert difference(found, expected.astype(float)) < ROUNDING


def test_the_wrench_on_a_body_is_what_its_acceleration_takes(model):
    """Cut a joint: in its place a free one needs the reaction as its torque to move the same."""
    cut = next((i for i in range(model.n) if JOINTS[model.joint[i]].name == "revolute"), None)
    if cut is None:
        cut = 0
    q, v, tau = state(model)
    external = np.random.default_rng(1).normal(size=(model.n, 6))
    wrench = ts.constraint_forces(model, q, v, tau, external=external)
    qdd = ts.forward_dynamics(model, q, v, tau, external=external)
    joint = JOINTS[model.joint[cut]]
    free, a, b = freed(model, cut), int(model.q_start[cut]), int(model.v_start[cut])
    axis = model.axis[cut]
    if joint.name == "free":
        parts = q, v, qdd
    elif joint.name == "revolute":
        turn = np.concatenate([[0, 0, 0, np.cos(q[a] / 2)], np.sin(q[a] / 2) * axis])
        along = np.concatenate([axis, np.zeros(3)])
        parts = (swap(q, a, 1, turn), swap(v, b, 1, along * v[b]), swap(qdd, b, 1, along * qdd[b]))
    else:
        assert joint.name == "universal"  # a turn about x, then about y
        c, s = np.cos(q[a : a + 2] / 2), np.sin(q[a : a + 2] / 2)
        turn = np.array([0, 0, 0, c[0] * c[1], s[0] * c[1], c[0] * s[1], s[0] * s[1]])
        c2, s2 = np.cos(q[a + 1]), np.sin(q[a + 1])
        S, rate = np.array([[c2, 0], [0, 1], [s2, 0]]), v[b + 1] * np.array([[-s2, 0], [0, 0], [c2, 0]])
        spin = S @ v[b : b + 2]
        change = S @ qdd[b : b + 2] + rate @ v[b : b + 2]
        parts = (swap(q, a, 2, turn), swap(v, b, 2, [*spin, 0, 0, 0]), swap(qdd, b, 2, [*change, 0, 0, 0]))
    torques = ts.inverse_dynamics(free, *parts, external=external)
    assert difference(wrench[cut], torques[b : b + 6], scale=np.abs(wrench).max()) < ROUNDING


def freed(model, body):
    codes = model.joint.copy()
    codes[body] = next(j.code for j in JOINTS if j.name == "free")
    return replace(model, joint=codes)


def swap(x, start, count, new):
    return np.concatenate([x[:start], new, x[start + count :]])


def test_the_torque_is_the_working_part_of_the_wrench():
    model = zoo.panda()
    q, v, tau = state(model)
    wrench = ts.constraint_forces(model, q, v, tau)
    assert difference(np.einsum("ni,ni->n", model.axis, wrench[:, :3]), tau, scale=np.abs(wrench).max()) < ROUNDING


def test_a_hanging_rope_carries_its_weight():
    """At rest the force through a joint is the weight beyond it, and no bearing carries a moment."""
    model = zoo.rope(20, mass=2.0)
    q = np.zeros(model.nq)
    wrench = ts.constraint_forces(model, q, 0 * q, 0 * q)
    below = np.cumsum(model.mass[::-1])[::-1]
    expected = np.zeros((20, 6))
    expected[:, 5] = 9.81 * below
    assert difference(wrench, expected) < ROUNDING


def test_reaction_wrenches_are_batched_and_compiled():
    model = zoo.humanoid()
    rng = np.random.default_rng(0)
    q, v = model.random_configuration(rng, 4), rng.normal(size=(4, model.nv))
    tau = rng.normal(size=model.nv)
    program = ts.compile(model, ts.constraint_forces)
    got = program(q, v, tau)
    assert got.shape == (4, model.n, 6)
    one = ts.constraint_forces(model, q[2], v[2], tau)
    assert_close(model, got[2], one, ROUNDING)
