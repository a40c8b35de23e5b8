"""Laws of mechanics that hold for every machine in every state, each under its own name."""

from dataclasses import replace

import numpy as np
import pytest
from machines import (
    EXTENDED_EPS,
    STEP,
    configuration_rate,
    difference,
    extended,
    floating_tree,
    time_derivative,
)
from peers import State
from scipy.integrate import solve_ivp

import torsor as ts
from torsor import Model, lie, zoo
from torsor.algorithms import composite, energy, kinematics
from torsor.model.joints import JOINTS
from torsor.sweeps import way_to_base

# A few thousand operations on numbers that do not cancel.
ROUNDING = 1e-12
# Where M is inverted: rounding times the condition of M, at most 1e5 here.
INVERSE = 1e-11
# Where a derivative is a difference in extended precision; looser where long doubles are only doubles.
DERIVATIVE = max(1e-11, 100 * EXTENDED_EPS / STEP)


# Mass matrix -------------------------------------------------------------------------------------------


def test_velocity_mass_velocity_is_twice_the_kinetic_energy(machine, state):
    """v^T M v = 2 T"""
    M = ts.mass_matrix(machine, state.q)
    assert difference(state.v @ M @ state.v, 2 * ts.kinetic_energy(machine, state.q, state.v)) <= ROUNDING


def test_mass_matrix_is_symmetric_to_the_last_bit(machine, state):
    M = ts.mass_matrix(machine, state.q)
    np.testing.assert_array_equal(M, M.T)


def test_mass_matrix_is_positive_definite(machine, state):
    assert np.linalg.eigvalsh(ts.mass_matrix(machine, state.q)).min() > 0


def test_columns_of_the_mass_matrix_are_torques_of_unit_accelerations(machine, state):
    """M e_k = tau(q, 0, e_k) - tau(q, 0, 0)"""
    unit, rest = np.eye(machine.nv), np.zeros(machine.nv)
    gravity = ts.gravity_forces(machine, state.q)
    columns = ts.inverse_dynamics(machine, state.q, rest, unit) - gravity
    assert difference(columns.T, ts.mass_matrix(machine, state.q), scale=gravity) <= ROUNDING


def test_inverse_mass_matrix_times_mass_matrix_is_one(machine, state):
    product = ts.inverse_mass_matrix(machine, state.q) @ ts.mass_matrix(machine, state.q)
    assert difference(product, np.eye(machine.nv)) <= INVERSE


def test_mass_solve_is_the_inverse_mass_matrix_times_a_vector(machine, state):
    for method in ("articulated", "composite"):
        x = ts.mass_solve(machine, state.q, state.tau, method=method)
        assert difference(x, ts.inverse_mass_matrix(machine, state.q) @ state.tau) <= INVERSE


def test_log_det_is_that_of_the_mass_matrix(machine, state):
    sign, expected = np.linalg.slogdet(ts.mass_matrix(machine, state.q))
    assert sign == 1
    assert difference(ts.log_det_mass_matrix(machine, state.q), expected, scale=1.0) <= ROUNDING


def test_branch_sparse_factor_reproduces_the_mass_matrix_and_keeps_its_zeros(machine, state):
    """M = L^T D L, and both are zero between freedoms on different branches."""
    M = ts.mass_matrix(machine, state.q)
    above = composite.dof_parents(machine.parent.tolist(), np.diff(machine.v_start).tolist())
    L, D = (np.array(x) for x in composite.branch_factor(M.tolist(), above))
    assert difference(L.T @ np.diag(D) @ L, M) <= ROUNDING
    on_one_branch = np.zeros_like(M, dtype=bool)
    for k in range(machine.nv):
        on_one_branch[k, list(way_to_base(above, k))] = True
    assert not np.tril(L)[~on_one_branch].any()
    assert not M[~(on_one_branch | on_one_branch.T)].any()
    solution = composite.branch_solve(L.tolist(), D.tolist(), above, state.tau.tolist())
    assert difference(solution, np.linalg.solve(M, state.tau)) <= INVERSE


# Forward and inverse dynamics --------------------------------------------------------------------------


def test_inverse_dynamics_undoes_forward_dynamics(machine, state):
    q, v, tau, external = state.q, state.v, state.tau, state.external
    for method in ("articulated", "composite"):
        qdd = ts.forward_dynamics(machine, q, v, tau, external=external, method=method)
        back = ts.inverse_dynamics(machine, q, v, qdd, external=external)
        assert difference(back, tau, scale=ts.bias_forces(machine, q, v)) <= INVERSE


def test_forward_dynamics_undoes_inverse_dynamics(machine, state):
    tau = ts.inverse_dynamics(machine, state.q, state.v, state.v_dot, external=state.external)
    qdd = ts.forward_dynamics(machine, state.q, state.v, tau, external=state.external)
    assert difference(qdd, state.v_dot) <= INVERSE * 10  # tau is large where bodies move fast


def test_equation_of_motion(machine, state):
    """tau = M qdd + C v + gravity"""
    q, v = state.q, state.v
    M, C = ts.mass_matrix(machine, q), ts.coriolis_matrix(machine, q, v)
    tau = ts.inverse_dynamics(machine, q, v, state.v_dot)
    assert difference(tau, M @ state.v_dot + C @ v + ts.gravity_forces(machine, q)) <= ROUNDING


def test_coordinate_invariant_and_newton_euler_recursions_agree(machine, state):
    tau, tau_invariant = (
        ts.inverse_dynamics(machine, state.q, state.v, state.v_dot, external=state.external,
                            base_acceleration=np.arange(6.0), method=method)
        for method in ("newton-euler", "ploen-park")
    )  # fmt: skip
    assert difference(tau, tau_invariant) <= ROUNDING


def test_bias_is_inverse_dynamics_without_acceleration_and_gravity_that_without_velocity(machine, state):
    rest = np.zeros(machine.nv)
    bias, gravity = ts.bias_forces(machine, state.q, state.v), ts.gravity_forces(machine, state.q)
    assert difference(bias, ts.inverse_dynamics(machine, state.q, state.v, rest), scale=gravity) <= ROUNDING
    assert difference(gravity, ts.bias_forces(machine, state.q, rest), scale=bias) <= ROUNDING


def test_an_accelerating_base_feels_like_gravity(machine, state):
    """A base that accelerates by a is one at rest where gravity is g - a."""
    a = np.array([1.0, -2.0, 3.0])
    moving = ts.inverse_dynamics(
        machine, state.q, state.v, state.v_dot, base_acceleration=np.concatenate([np.zeros(3), a])
    )
    shifted = replace(machine, gravity=machine.gravity - a)
    assert difference(moving, ts.inverse_dynamics(shifted, state.q, state.v, state.v_dot)) <= ROUNDING


# Coriolis matrix ---------------------------------------------------------------------------------------


def test_coriolis_matrix_times_velocity_is_the_bias_less_gravity(machine, state):
    q, v = state.q, state.v
    bias = ts.bias_forces(machine, q, v)
    expected = bias - ts.gravity_forces(machine, q)
    assert difference(ts.coriolis_matrix(machine, q, v) @ v, expected, scale=bias) <= ROUNDING


def test_mass_matrix_rate_less_twice_coriolis_is_skew(machine, state):
    M_rate = time_derivative(
        lambda t: extended(composite.mass_matrix, machine, q=machine.integrate(state.q, t * state.v))
    )
    C = ts.coriolis_matrix(machine, state.q, state.v)
    A = M_rate - 2 * C
    assert difference(A, -A.T, scale=C) <= DERIVATIVE


# Energy and power --------------------------------------------------------------------------------------


def test_power_balance(machine, state):
    """d(T + U)/dt = v^T tau + sum F_i^T V_i"""
    q, v, tau, external = state.q, state.v, state.tau, state.external
    qdd = ts.forward_dynamics(machine, q, v, tau, external=external)

    def total(t):
        there = machine.integrate(q, t * v)
        kinetic = extended(energy.kinetic_energy, machine, q=there, v=v + t * qdd)
        return kinetic + extended(energy.potential_energy, machine, q=there)

    power = v @ tau + np.sum(external * ts.body_twists(machine, q, v))
    assert difference(time_derivative(total), power, scale=v @ ts.bias_forces(machine, q, v)) <= DERIVATIVE


def test_gravity_forces_are_the_gradient_of_the_potential_energy(machine, state):
    """dU/dt = v^T gravity"""
    rate = time_derivative(
        lambda t: extended(energy.potential_energy, machine, q=machine.integrate(state.q, t * state.v))
    )
    gravity = ts.gravity_forces(machine, state.q)
    assert difference(rate, state.v @ gravity, scale=gravity) <= DERIVATIVE


def test_potential_energy_is_that_of_the_centre_of_mass(machine, state):
    weight = machine.mass.sum() * machine.gravity
    height = ts.center_of_mass(machine, state.q)
    U = ts.potential_energy(machine, state.q)
    assert difference(U, -weight @ height, scale=np.linalg.norm(weight) * np.linalg.norm(height)) <= ROUNDING


# Momentum ----------------------------------------------------------------------------------------------

FLOATING = {"tree of every joint type": floating_tree, "humanoid": zoo.humanoid}


@pytest.fixture(scope="module", params=FLOATING)
def floater(request):
    return FLOATING[request.param]()


def internal(model, tau):
    """The torques, none of them on the free joint that only books the motion of the first body."""
    return np.concatenate([np.zeros(6), tau[6:]])


def test_momentum_rate_is_the_sum_of_gravity_and_external_wrenches(floater):
    state = State.random(floater, seed=7)
    q, v, tau = state.q, state.v, internal(floater, state.tau)
    qdd = ts.forward_dynamics(floater, q, v, tau, external=state.external)
    rate = time_derivative(lambda t: extended(energy.momentum, floater, q=floater.integrate(q, t * v), v=v + t * qdd))
    weight = floater.mass.sum() * floater.gravity
    expected = np.concatenate([np.cross(ts.center_of_mass(floater, q), weight), weight])
    for pose, F in zip(ts.body_poses(floater, q), state.external):
        expected = expected + lie.Ad_dual(lie.inverse(pose)) @ F
    assert difference(rate, expected) <= DERIVATIVE


def test_momentum_is_conserved_where_nothing_pulls():
    """Along a tenth of a second of motion under internal torques alone, without gravity."""
    model = replace(floating_tree(), gravity=np.zeros(3))
    state = State.random(model, seed=8)
    tau = internal(model, state.tau)

    def flow(_, y):
        q, v = np.split(y, [model.nq])
        return np.concatenate([configuration_rate(model, q, v), ts.forward_dynamics(model, q, v, tau)])

    start = np.concatenate([state.q, state.v])
    motion = solve_ivp(flow, (0.0, 0.1), start, method="DOP853", rtol=1e-11, atol=1e-11)
    before, after = (ts.momentum(model, *np.split(y, [model.nq])) for y in (start, motion.y[:, -1]))
    assert np.abs(motion.y[:, -1] - start).max() > 0.1  # it did move
    assert difference(after, before) <= 1e-9  # the integrator's, times the growth of its errors


def test_linear_momentum_is_mass_times_the_velocity_of_the_centre_of_mass(machine, state):
    rate = time_derivative(
        lambda t: extended(energy.center_of_mass, machine, q=machine.integrate(state.q, t * state.v))
    )
    P = ts.momentum(machine, state.q, state.v)
    assert difference(machine.mass.sum() * rate, P[3:], scale=P) <= DERIVATIVE


# Free fall ---------------------------------------------------------------------------------------------


def test_a_floating_machine_at_rest_falls_as_one_body(floater):
    """Without torques only the free joint accelerates, by g; so does every body."""
    q, rest = State.random(floater, seed=9).q, np.zeros(floater.nv)
    qdd = ts.forward_dynamics(floater, q, rest, rest)
    poses, g = ts.body_poses(floater, q), floater.gravity
    expected = np.concatenate([np.zeros(3), poses[0, :3, :3].T @ g, np.zeros(floater.nv - 6)])
    assert difference(qdd, expected) <= INVERSE
    # at rest, accelerations follow the same map as velocities
    accelerations = ts.body_twists(floater, q, qdd)
    assert difference(accelerations[:, :3], np.zeros((floater.n, 3)), scale=g) <= INVERSE
    assert difference(accelerations[:, 3:], np.einsum("nji,j->ni", poses[:, :3, :3], g)) <= INVERSE


def test_in_free_fall_no_joint_is_loaded(floater):
    """A base that falls with the machine: no torque is needed to hold any posture."""
    q, rest = State.random(floater, seed=10).q, np.zeros(floater.nv)
    falling = np.concatenate([np.zeros(3), floater.gravity])
    tau = ts.inverse_dynamics(floater, q, rest, rest, base_acceleration=falling)
    assert difference(tau, rest, scale=ts.gravity_forces(floater, q)) <= ROUNDING


# Kinematics --------------------------------------------------------------------------------------------


def test_jacobian_times_velocity_is_the_twist(machine, state):
    twists = ts.body_twists(machine, state.q, state.v)
    for body in (state.body, -1):
        twist = ts.jacobian(machine, state.q, body) @ state.v
        assert difference(twist, twists[body], scale=twists) <= ROUNDING


def test_twist_is_the_derivative_of_the_pose(machine, state):
    """[V] = f^-1 df/dt"""
    rates = time_derivative(
        lambda t: extended(kinematics.body_poses, machine, q=machine.integrate(state.q, t * state.v))
    )
    poses, twists = ts.body_poses(machine, state.q), ts.body_twists(machine, state.q, state.v)
    assert difference(lie.inverse(poses) @ rates, lie.hat(twists)) <= DERIVATIVE


def test_jacobian_dot_is_the_derivative_of_the_jacobian(machine, state):
    body, v = state.body, state.v.astype(np.longdouble)
    J_rate = time_derivative(
        lambda t: ts.reference.evaluate(
            kinematics.jacobian, machine, {"q": machine.integrate(state.q, t * v)}, frame=machine.frame(body),
            number=np.longdouble,
        )
    )  # fmt: skip
    J = ts.jacobian(machine, state.q, body)
    assert difference(ts.jacobian_dot(machine, state.q, state.v, body), J_rate, scale=J) <= DERIVATIVE


def test_a_wrench_on_a_body_is_balanced_by_jacobian_transposed_torques(machine, state):
    """tau(external = F on body i) = tau(0) - J_i^T F"""
    free = ts.bias_forces(machine, state.q, state.v)
    for body in (state.body, -1):
        F = np.zeros((machine.n, 6))
        F[body] = state.external[body]
        loaded = ts.bias_forces(machine, state.q, state.v, external=F)
        expected = free - ts.jacobian(machine, state.q, body).T @ F[body]
        assert difference(loaded, expected) <= ROUNDING


def test_jacobian_of_a_named_frame_moves_with_the_body():
    """J of a frame placed at f on a body is Ad_{f^-1} J of the body."""
    R, p = lie.exp_so3([0.3, -0.2, 0.5]), np.array([0.1, 0.2, -0.3])
    arm = zoo.panda()
    model = arm.with_frames({"tool": (arm.names[-1], R, p)})
    state = State.random(model, seed=11)
    Ad = lie.Ad(lie.inverse(np.block([[R, p[:, None]], [np.zeros((1, 3)), np.ones((1, 1))]])))
    tip, by_name = model.n - 1, model.names[-1]
    np.testing.assert_array_equal(ts.jacobian(model, state.q, by_name), ts.jacobian(model, state.q, tip))
    assert difference(ts.jacobian(model, state.q, "tool"), Ad @ ts.jacobian(model, state.q, tip)) <= ROUNDING
    rate = ts.jacobian_dot(model, state.q, state.v, "tool")
    assert difference(rate, Ad @ ts.jacobian_dot(model, state.q, state.v, tip)) <= ROUNDING


def test_negative_bodies_count_from_the_last(machine, state):
    last, counted = ts.jacobian(machine, state.q, machine.n - 1), ts.jacobian(machine, state.q, -1)
    np.testing.assert_array_equal(last, counted)


# Frame invariance --------------------------------------------------------------------------------------


def random_frame(rng, joint, axis):
    """A change of the body's frame after which its joint is still of the same type: (R, p)."""
    R, p = lie.exp_so3(rng.normal(size=3)), rng.normal(scale=0.3, size=3)
    if joint in ("universal", "gimbal", "planar"):  # their axes are those of the frame
        return np.eye(3), np.zeros(3)
    if joint == "spherical":
        return R, np.zeros(3)
    return (R, axis * p[0]) if joint in ("revolute", "helical", "cylindrical") else (R, p)


def reframed(model, q, seed=0):
    """The same machine in other body and base frames: (model', q', X) with velocities v' = X v.

    With Q the new frame seen from the old one, f'_{parent,i} = Q_parent^-1 f_{parent,i} Q_i
    (Ploen & Park 1999, section II.C).
    """
    rng = np.random.default_rng(seed)
    joints = [JOINTS[code].name for code in model.joint]
    frames = [random_frame(rng, joint, axis) for joint, axis in zip(joints, model.axis)]
    base = (lie.exp_so3(rng.normal(size=3)), rng.normal(size=3))
    new = {key: getattr(model, key).copy() for key in ("axis", "R", "p", "com", "inertia")}
    q, X = q.copy(), np.eye(model.nv)
    for i, (joint, (R, p)) in enumerate(zip(joints, frames)):
        R0, p0 = base if model.parent[i] < 0 else frames[model.parent[i]]
        new["R"][i], new["p"][i] = R0.T @ model.R[i], R0.T @ (model.p[i] - p0)
        rows, columns = slice(*model.q_start[i : i + 2]), slice(*model.v_start[i : i + 2])
        if joint in ("spherical", "free"):  # E' = E Q, the quaternion turns and the velocity changes
            Ad = lie.Ad(lie.inverse(np.block([[R, p[:, None]], [np.zeros((1, 3)), np.ones((1, 1))]])))
            X[columns, columns] = Ad[:3, :3] if joint == "spherical" else Ad
            if joint == "free":
                q[rows][:3] += lie.quaternion_to_matrix(q[rows][3:]) @ p
            q[rows][-4:] = lie.quaternion_product(q[rows][-4:], lie.matrix_to_quaternion(R))
        else:  # M' = Q_parent^-1 M Q, and the axis turns
            new["p"][i] += new["R"][i] @ p
            new["R"][i] = new["R"][i] @ R
        new["axis"][i] = R.T @ model.axis[i] if JOINTS[model.joint[i]].axial else model.axis[i]
        new["com"][i] = R.T @ (model.com[i] - p) if model.mass[i] else 0
        new["inertia"][i] = R.T @ model.inertia[i] @ R
    return replace(model, **new, gravity=base[0].T @ model.gravity, frames={}), q, X


@pytest.fixture(scope="session")
def other_frames(machine, state):
    return reframed(machine, state.q)


def test_frame_invariance_of_the_mass_matrix(machine, state, other_frames):
    other, q, X = other_frames
    assert difference(X.T @ ts.mass_matrix(other, q) @ X, ts.mass_matrix(machine, state.q)) <= ROUNDING


def test_frame_invariance_of_the_bias(machine, state, other_frames):
    other, q, X = other_frames
    expected = ts.bias_forces(machine, state.q, state.v)
    assert difference(X.T @ ts.bias_forces(other, q, X @ state.v), expected) <= ROUNDING


def test_frame_invariance_of_forward_dynamics(machine, state, other_frames):
    other, q, X = other_frames
    qdd = ts.forward_dynamics(other, q, X @ state.v, np.linalg.solve(X.T, state.tau))
    expected = X @ ts.forward_dynamics(machine, state.q, state.v, state.tau)
    assert difference(qdd, expected) <= INVERSE


# Massless bodies ---------------------------------------------------------------------------------------

BODY = {"mass": 1.0, "com": (0.1, 0.2, -0.1), "inertia": (0.02, 0.03, 0.04)}


def stacked(joints, axes):
    """One body on several simple joints, the bodies between them massless; then an ordinary link."""
    builder = Model.builder()
    for k, (joint, axis) in enumerate(zip(joints, axes)):
        body = BODY if k == len(joints) - 1 else {}
        builder.add(f"b{k}", parent=f"b{k - 1}" if k else None, joint=joint, axis=axis, **body)
    return builder.add("tip", parent=f"b{len(joints) - 1}", axis=(1, 2, 3), p=(0.3, 0, 0.1), **BODY).build()


def single(joint):
    builder = Model.builder().add("b", joint=joint, **BODY)
    return builder.add("tip", parent="b", axis=(1, 2, 3), p=(0.3, 0, 0.1), **BODY).build()


@pytest.mark.parametrize(
    ("joint", "parts", "axes"),
    [
        ("universal", ["revolute"] * 2, [(1, 0, 0), (0, 1, 0)]),
        ("gimbal", ["revolute"] * 3, [(1, 0, 0), (0, 1, 0), (0, 0, 1)]),
        ("cylindrical", ["revolute", "prismatic"], [(0, 0, 1), (0, 0, 1)]),
        ("planar", ["prismatic", "prismatic", "revolute"], [(1, 0, 0), (0, 1, 0), (0, 0, 1)]),
    ],
)
def test_a_joint_is_its_parts_with_massless_bodies_between(joint, parts, axes):
    whole, split = single(joint), stacked(parts, axes)
    state = State.random(whole, seed=12)
    for function, arguments in (
        ("mass_matrix", (state.q,)),
        ("inverse_mass_matrix", (state.q,)),
        ("log_det_mass_matrix", (state.q,)),
        ("coriolis_matrix", (state.q, state.v)),
        ("bias_forces", (state.q, state.v)),
        ("forward_dynamics", (state.q, state.v, state.tau)),
    ):
        f = getattr(ts, function)
        assert difference(f(split, *arguments), f(whole, *arguments)) <= INVERSE


def coaxial(axis, turn):
    """Two joints about one axis with nothing between them: how they share a motion is undetermined."""
    return (
        Model.builder("coaxial")
        .add("ghost", axis=axis, R=lie.exp_so3(turn))
        .add("body", parent="ghost", axis=axis, mass=1.0, com=(0.5, 0.0, 0.0), inertia=(0.1, 0.1, 0.1))
        .build()
    )


SINGULAR = {
    "coaxial joints": lambda: coaxial((0.0, 0.0, 1.0), (0.0, 0.0, 0.0)),
    "coaxial joints, skew axes": lambda: coaxial((1.0, 2.0, -3.0), (0.3, 0.4, 0.5)),
    "point mass on a ball joint": lambda: (
        Model.builder(allow_degenerate=True).add("ghost", joint="spherical", mass=1.0, com=(0.5, 0.0, 0.0)).build()
    ),
}


NEEDS_INVERSE = {
    "forward_dynamics": ("q", "v", "tau"),
    "mass_solve": ("q", "tau"),
    "inverse_mass_matrix": ("q",),
    "log_det_mass_matrix": ("q",),
}


@pytest.mark.parametrize("function", NEEDS_INVERSE)
@pytest.mark.parametrize("name", SINGULAR)
def test_a_joint_that_moves_no_mass_is_named(name, function):
    """Only through rounding could a number come out, and it would be nonsense."""
    model = SINGULAR[name]()
    state = State.random(model, seed=13)
    with pytest.raises(ts.SingularError, match="'ghost'"):
        getattr(ts, function)(model, *(getattr(state, x) for x in NEEDS_INVERSE[function]))


@pytest.mark.parametrize("name", SINGULAR)
def test_a_joint_that_moves_no_mass_still_has_inverse_dynamics(name):
    model = SINGULAR[name]()
    state = State.random(model, seed=13)
    tau = ts.inverse_dynamics(model, state.q, state.v, state.v_dot)
    M = ts.mass_matrix(model, state.q)
    assert difference(tau, M @ state.v_dot + ts.bias_forces(model, state.q, state.v)) <= ROUNDING
    assert abs(np.linalg.det(M)) <= ROUNDING
