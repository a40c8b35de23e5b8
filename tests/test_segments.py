"""One chain cut into segments, which are the lanes of vectors, against sweeps along the whole."""

from dataclasses import replace

import numpy as np
import pytest
from machines import UNEVEN_ARMS, difference, extended, with_first_joint

import torsor as ts
from torsor import zoo
from torsor.algorithms import articulated
from torsor.algorithms import segments as sg
from torsor.backends import codegen
from torsor.backends.llvm import Target
from torsor.compiler.frames import Kind, reframe
from torsor.linalg import Mat, Vec
from torsor.model.joints import JOINTS
from torsor.parallel.segment_kernel import SegmentKernel
from torsor.parallel.segments import HEAD, LENGTH, Segments, cut
from torsor.spatial import Inertia, Spatial

# Both ways solve systems of condition 1e3 or so.
ROUNDING = 1e-12
# The issue's bound for long, well-conditioned chains; 2e-15 to 6e-14 are met, the sweeps' own error included.
LONG = 1e-13
# Neighbours whose masses differ by 1e6 cost up to six digits of sixteen, by any method.
UNEVEN = 1e-10
SINGLE = 1e-6  # float32: 5e-8 seen
WIDEST = max(4, codegen.host().lanes(64))  # what the method takes by itself


def by_segments(model, *state, **options):
    return ts.forward_dynamics(model, *state, method="segments", **options)


def by_sweeps(model, *state, **options):
    return ts.forward_dynamics(model, *state, method="articulated", **options)


def state(model, seed=0, speed=0.1):
    """Slow joints: velocities add up along the chain."""
    rng = np.random.default_rng(seed)
    return model.random_configuration(rng), speed * rng.normal(size=model.nv), rng.normal(size=model.nv)


# Against the sweeps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [16, 17, 40, 131, 1100, 3000])
@pytest.mark.parametrize("make", [zoo.general_arm, lambda n: zoo.rope(n, mass=n)], ids=["general", "rope"])
def test_forward_dynamics_is_that_of_the_sweeps(make, n):
    model = make(n)
    inputs = state(model)
    assert difference(by_segments(model, *inputs), by_sweeps(model, *inputs)) < ROUNDING


@pytest.mark.parametrize(
    "joint", ["prismatic", "spherical", *(pytest.param(j.name, marks=pytest.mark.slow) for j in JOINTS)]
)
def test_every_joint_type(joint):
    model = zoo.random_chain(40, 2, joints=(joint,))
    inputs = state(model)
    assert difference(by_segments(model, *inputs), by_sweeps(model, *inputs)) < ROUNDING


def test_joints_that_take_turns():
    n = 103
    arm = zoo.general_arm(n, 4)
    codes = np.array([next(j.code for j in JOINTS if j.name == x) for x in ("revolute", "universal", "prismatic")])
    model = replace(arm, joint=codes[np.arange(n) % 3])
    inputs = state(model)
    assert difference(by_segments(model, *inputs), by_sweeps(model, *inputs)) < ROUNDING


def test_a_floating_base_is_part_of_the_head():
    model = with_first_joint(zoo.general_arm(60, 3), "free")
    inputs = state(model)
    assert difference(by_segments(model, *inputs), by_sweeps(model, *inputs)) < ROUNDING


@pytest.mark.parametrize("n", [30, 2100])
def test_external_wrenches_act(n):
    model = zoo.general_arm(n, 2)
    external = np.random.default_rng(1).normal(size=(n, 6))
    got = by_segments(model, *state(model), external=external)
    assert difference(got, by_sweeps(model, *state(model), external=external)) < ROUNDING


@pytest.mark.parametrize("lanes", [4, 8])
def test_any_number_of_lanes(lanes):
    model = zoo.general_arm(90, 1)
    q, v, tau = state(model)
    got = Segments(model, lanes=lanes)({"q": q, "v": v, "tau": tau})
    assert difference(got, by_sweeps(model, q, v, tau)) < ROUNDING


AXES = {
    "plane, upright": [(0.0, 0.0, 1.0)],
    "plane, tilted": [(0.6, 0.0, 0.8)],
    "rope of two axes": [(3.0, 0.0, -1.0), (0.0, 1.0, 0.0)],
    "rope of three axes": [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)],
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("bent", [0.0, 1e-7, 1.0])
@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_segments_that_yield_in_few_directions_only(axes, bent):
    """The compliance of their tips is singular, or nearly so, in directions that are no axes of theirs."""
    n = 300
    rng = np.random.default_rng(3)
    axis = np.array(axes)[np.arange(n) % len(axes)]
    model = ts.Model.chain(
        "revolute", axis=axis / np.linalg.norm(axis, axis=1)[:, None], p=np.tile([0.1, 0.0, 0.3], (n, 1)),
        mass=rng.uniform(0.5, 1.5, n), com=np.tile([0.05, 0.0, 0.15], (n, 1)),
        inertia=np.tile(np.diag([0.1, 0.12, 0.05]), (n, 1, 1)),
    )  # fmt: skip
    q, v, tau = state(model)
    exact = extended(articulated.forward_dynamics, model, q=bent * q, v=v, tau=tau)
    assert difference(by_segments(model, bent * q, v, tau), exact) < ROUNDING


def test_a_straight_chain_of_identical_links():
    model = replace(zoo.rope(300), mass=np.ones(300))
    q, v, tau = state(model)
    assert difference(by_segments(model, 0 * q, v, tau), by_sweeps(model, 0 * q, v, tau)) < ROUNDING


@pytest.mark.parametrize("model", UNEVEN_ARMS.values(), ids=UNEVEN_ARMS)
def test_masses_of_very_different_size(model):
    q, v, tau = state(model)
    exact = extended(articulated.forward_dynamics, model, q=q, v=v, tau=tau)
    assert difference(by_segments(model, q, v, tau), exact) < UNEVEN


@pytest.mark.slow
def test_long_chains_keep_their_digits():
    model = zoo.general_arm(20_000, 1)
    q, v, tau = state(model)
    exact = extended(articulated.forward_dynamics, model, q=q, v=v, tau=tau)
    assert difference(by_segments(model, q, v, tau), exact) < LONG


@pytest.mark.slow
def test_a_million_links():
    model = zoo.rope(1_000_000, mass=1e6)
    inputs = state(model, speed=0.01)
    assert difference(by_segments(model, *inputs), by_sweeps(model, *inputs)) < ROUNDING


# What two handles are ----------------------------------------------------------------------------------------


def dense(I):
    """A symmetric 6x6 matrix as an array."""
    return np.array([(I @ Spatial.unit(k)).coordinates for k in range(6)])


def columns(spatials):
    return np.array([x.coordinates for x in spatials]).T


def inertia(A):
    return Inertia(*(Mat.of(A[i : i + 3, j : j + 3]) for i, j in ((0, 0), (0, 3), (3, 3))))


def random_inertia(rng):
    A = rng.normal(size=(6, 6))
    return inertia(A @ A.T)


@pytest.fixture
def segment():
    rng = np.random.default_rng(0)
    P = tuple(Spatial.of(x) for x in rng.normal(size=(6, 6)))
    return sg.TwoHandles(random_inertia(rng), Spatial.of(rng.normal(size=6)), P, Spatial.of(rng.normal(size=6)),
                         random_inertia(rng))  # fmt: skip


@pytest.fixture
def handle():
    """A revolute joint, from before it."""
    link = reframe(zoo.general_arm(2, 1)).link(1)
    return sg.first_joint(link, Vec(0.7), Vec(1.3), loaded=False)


def test_what_a_joint_transmits(handle):
    """<H_i, G_j> = 1 if i = j, else 0;  <T, G_j> = 0"""
    G = columns(handle.G)
    assert difference(columns(handle.H).T @ G, np.eye(5)) < ROUNDING
    assert difference(np.array(handle.T.coordinates) @ G, np.zeros(5), scale=1.0) < ROUNDING


def test_a_segment_absorbs_what_hangs_on_it(segment, handle):
    """With f = I A_tip + F, the wrench I a + P f + p is I' a + F', and A_tip is what `spread` says."""
    rng = np.random.default_rng(1)
    H = columns(handle.H)
    I = H @ np.diag(rng.uniform(1, 2, 5)) @ H.T  # as much of an inertia as can be felt through the joint
    F = H @ rng.normal(size=5) + np.array(handle.T.coordinates)
    whole, pull = sg.absorb(segment, handle, sg.Rest(inertia(I), Spatial.of(F)))
    a = rng.normal(size=6)
    P, C = columns(segment.P), dense(segment.C)
    A_tip = np.linalg.solve(np.eye(6) + C @ I, P.T @ a + np.array(segment.b.coordinates) - C @ F)
    wrench = dense(segment.I) @ a + P @ (I @ A_tip + F) + np.array(segment.p.coordinates)
    assert difference(dense(whole.I) @ a + np.array(whole.F.coordinates), wrench) < ROUNDING
    assert difference(sg.tip_acceleration(segment, pull, Spatial.of(a)).coordinates, A_tip) < ROUNDING


# How a chain is cut ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [12, 100, 999, 5000, 123_457])
@pytest.mark.parametrize("period", [1, 3])
def test_every_body_is_in_one_segment_and_segments_are_alike(n, period):
    kind = np.arange(n) % period
    kind[0] = period  # the first body is often of another kind
    parts = cut(kind, lanes=8)
    if parts is None:
        assert n < HEAD + 8 * period
        return
    head, block = parts
    assert (head.first, head.end, block.end) == (0, block.first, n)
    assert block.length <= LENGTH
    assert len({tuple(row) for row in kind[block.first :].reshape(-1, block.length)}) == 1


def test_few_bodies_are_left_to_the_head():
    for n in (2000, 20_000, 1_000_000):
        head, _ = cut(np.zeros(n, int), lanes=8)
        assert head.length < 0.02 * n


# Code for other machines --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "fetch"),
    [
        (codegen.Host("x86_64-unknown-linux-gnu", "haswell", "+avx2,+fma"), "prefetcht1"),
        (codegen.Host("aarch64-unknown-linux-gnu", "generic", "+neon"), "prfm"),
    ],
    ids=["AVX2", "64-bit ARM"],
)
def test_code_for_other_machines(host, fetch):
    kinds = (Kind("revolute", "xz"),)
    kernel = SegmentKernel(kinds, kinds, kinds[0], ("q", "v", "tau"), Target(4, 64, host.fma, host.x86))
    text = codegen.assembly(kernel.ir, host)
    assert fetch in text
    assert ("mxcsr" in text) == host.x86  # subnormals are flushed, and the mode restored


# Arguments ---------------------------------------------------------------------------------------------------


def test_batches_broadcast_and_keep_their_type():
    model = zoo.general_arm(40, 5)
    rng = np.random.default_rng(0)
    q, v, tau = rng.normal(size=(2, 3, 40)), 0.1 * rng.normal(size=(3, 40)), rng.normal(size=40)
    got = by_segments(model, q, v, tau)
    assert got.shape == (2, 3, 40)
    assert difference(got, by_sweeps(model, q, v, tau)) < ROUNDING
    assert np.array_equal(got[1, 2], by_segments(model, q[1, 2], v[2], tau))
    single = by_segments(model, *(x.astype(np.float32) for x in (q, v, tau)))
    assert single.dtype == np.float32
    assert difference(single, got) < SINGLE
    assert by_segments(model, q[:0], v, tau).shape == (0, 3, 40)


def test_arrays_of_any_layout():
    model = zoo.general_arm(40, 5)
    q, v, tau = state(model)
    wide = np.zeros((40, 3))
    wide[:, 1] = q
    external = np.random.default_rng(1).normal(size=(6, 40)).T
    got = by_segments(model, wide[:, 1], v[::-1][::-1], tau, external=external)
    assert np.array_equal(got, by_segments(model, q, v, tau, external=external.copy()))


def test_the_same_bits_every_time():
    model = zoo.general_arm(1500, 5)
    inputs = state(model)
    assert np.array_equal(by_segments(model, *inputs), by_segments(model, *inputs))


def test_subnormal_numbers_are_still_there_afterwards():
    model = zoo.general_arm(40, 5)
    by_segments(model, *state(model))
    assert np.float64(5e-324) * np.float64(1.0) > 0


def test_nan_is_named():
    model = zoo.general_arm(40, 5)
    q, v, tau = state(model)
    v[7] = np.nan
    with pytest.raises(ts.ArgumentError, match=r"v\[7\] is nan"):
        by_segments(model, q, v, tau)


@pytest.mark.parametrize(
    "model",
    [zoo.general_arm(HEAD + WIDEST - 1), zoo.random_tree(40, 1, branching=0.5), zoo.random_chain(60, 3, joints=None)],
    ids=["too short", "tree", "joints without order"],
)
def test_what_has_no_segments_is_refused(model):
    with pytest.raises(ts.ArgumentError, match=r'"segments".*"articulated"'):
        by_segments(model, *state(model))


def test_numbers_it_does_not_compute_in_are_refused():
    model = zoo.general_arm(40)
    q, v, tau = state(model)
    with pytest.raises(ts.ArgumentError, match="float64"):
        by_segments(model, q.astype(np.longdouble), v, tau)


def test_a_body_without_extent_is_named():
    model = zoo.point_chain(50)
    with pytest.raises(ts.SingularError, match=r"segments.*'link1'.*articulated"):
        by_segments(model, *state(model))


# What "auto" does --------------------------------------------------------------------------------------------


def test_one_state_of_a_long_chain_goes_by_segments():
    """The same call always by the same method; batches, and what has no segments, by sweeps."""
    model = zoo.rope(2000, mass=2000.0)
    inputs = state(model)
    alone = ts.forward_dynamics(model, *inputs)
    assert np.array_equal(alone, by_segments(model, *inputs))
    assert np.array_equal(ts.forward_dynamics(model, *inputs), alone)
    assert np.array_equal(ts.forward_dynamics(model, *(x.tolist() for x in inputs)), alone)
    external = np.random.default_rng(1).normal(size=(model.n, 6))
    pulled = ts.forward_dynamics(model, *inputs, external=external)
    assert np.array_equal(pulled, by_segments(model, *inputs, external=external))
    batch = [np.stack([x, x]) for x in inputs]
    assert np.array_equal(ts.forward_dynamics(model, *batch), by_sweeps(model, *batch))
    single = [x.astype(np.float32) for x in inputs]
    assert ts.forward_dynamics(model, *single).dtype == np.float32
    more = ts.forward_dynamics(model, inputs[0], inputs[1], inputs[2].astype(np.longdouble))
    assert more.dtype == np.longdouble
    assert difference(alone, more.astype(float)) < ROUNDING


def test_long_chains_without_segments_go_by_sweeps():
    rng = np.random.default_rng(0)
    joints = rng.choice(["revolute", "prismatic"], 2000)
    mixed = ts.Model.chain(joints, p=(0.1, 0, 0), mass=1.0, inertia=(0.1, 0.1, 0.1))
    inputs = state(mixed)
    assert np.array_equal(ts.forward_dynamics(mixed, *inputs), by_sweeps(mixed, *inputs))
    with pytest.raises(ts.ArgumentError, match="q must be an array"):
        ts.forward_dynamics(zoo.rope(2000), [[1.0], [1.0, 2.0]], np.zeros(4000), np.zeros(4000))
    with pytest.raises(ts.ArgumentError, match=r"q has shape \(3,\)"):
        ts.forward_dynamics(zoo.rope(2000), np.zeros(3), np.zeros(2000), np.zeros(2000))
