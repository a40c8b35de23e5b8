"""Integrators: their orders, their step control, and what the structure-preserving ones preserve."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.integrate import DOP853, RK45

from torsor import Constant, Friction, Simulation, Spring, momentum, simulate, zoo
from torsor.errors import ArgumentError, SingularError
from torsor.model import Model
from torsor.model.extras import Extras
from torsor.motion.adams import HIGHEST, Adams
from torsor.motion.coordinates import Coordinates
from torsor.motion.integrators import METHODS
from torsor.motion.motion import Motion
from torsor.motion.stepper import Settings, StiffnessWarning
from torsor.motion.structure import Symplectic

ADAPTIVE = [name for name, method in METHODS.items() if method.adaptive]
FIXED = [name for name, method in METHODS.items() if not method.adaptive]
SYMPLECTIC = [name for name in FIXED if issubclass(METHODS[name], Symplectic)]
# An observed order may fall short of the asymptotic one by this much at the step sizes used here.
ORDER_SLACK = 0.35
# Local errors of the size of the tolerance add up, and the motions tested here pull neighbours apart.
GLOBAL = 300


@pytest.fixture(scope="module")
def pendulum():
    """Two point masses: M depends on q, and velocities couple."""
    return zoo.point_chain(2)


@pytest.fixture(scope="module")
def spinning():
    """Quaternions and gravity: a spherical joint that carries a revolute one."""
    b = Model.builder("spinning")
    b.add("ball", joint="spherical", mass=1.0, com=(0.1, 0.0, -0.3), inertia=(0.02, 0.03, 0.04))
    b.add("arm", parent="ball", joint="revolute", axis=(0, 1, 0), p=(0, 0, -0.5), mass=0.5, com=(0.2, 0, 0),
          inertia=(0.01, 0.01, 0.02))  # fmt: skip
    return b.build()


@pytest.fixture(scope="module")
def floating():
    """A free body in space that carries a revolute joint and a spherical one."""
    b = Model.builder("floating", gravity=(0, 0, 0))
    b.add("hull", joint="free", mass=2.0, com=(0.05, 0.0, 0.1), inertia=(0.1, 0.2, 0.25))
    b.add("arm", parent="hull", joint="revolute", axis=(0, 1, 0), p=(0.2, 0, 0), mass=0.5, com=(0.2, 0, 0),
          inertia=(0.01, 0.01, 0.02))  # fmt: skip
    b.add("ball", parent="arm", joint="spherical", p=(0.4, 0, 0), mass=0.3, com=(0.1, 0, 0), inertia=(0.01, 0.02, 0.02))
    return b.build()


def start_of(model):
    """A state in motion."""
    if model.nq == model.nv:
        return np.array([0.4, 0.3]), np.array([0.5, -1.0])
    v = np.array([0.5, -0.8, 1.1, 0.7, 1.0, 0.6, -0.9, 0.4, 0.3, -0.2])
    return model.random_configuration(rng=3), v[: model.nv]


def errors_at(model, q0, v0, duration, exact, **options):
    end = simulate(model, q0, v0, duration, **options)
    return np.abs(model.difference(exact[0], end.q[-1])).max() + np.abs(exact[1] - end.v[-1]).max()


def precise(model, q0, v0, duration):
    end = simulate(model, q0, v0, duration, method="dop853", rtol=1e-13, atol=1e-13)
    return end.q[-1], end.v[-1]


# ---- orders ----


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("machine", ["pendulum", "spinning", "floating"])
def test_fixed_step_error_falls_with_the_order_of_the_method(name, machine, request):
    model = request.getfixturevalue(machine)
    q0, v0 = start_of(model)
    exact = precise(model, q0, v0, 0.5)
    coarse, fine = (errors_at(model, q0, v0, 0.5, exact, method=name, step=h) for h in (0.004, 0.001))
    order = np.log(coarse / fine) / np.log(4)
    assert order == pytest.approx(METHODS[name].order, abs=ORDER_SLACK)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("machine", ["pendulum", "spinning"])
def test_fixed_step_orders_hold_under_forces_and_armature(name, machine, request):
    """Friction, a force that changes with time and, on the axes, rotors."""
    model = request.getfixturevalue(machine)
    q0, v0 = start_of(model)
    driven = [Friction(viscous=0.1), lambda t, q, v: 0.2 * np.sin(3 * t + np.arange(model.nv))]
    options = {"forces": driven, "armature": np.where(np.arange(model.nv) < model.nv - 1, 0.0, 0.05)}
    end = simulate(model, q0, v0, 0.5, method="dop853", rtol=1e-13, atol=1e-13, **options)
    exact = end.q[-1], end.v[-1]
    coarse, fine = (errors_at(model, q0, v0, 0.5, exact, method=name, step=h, **options) for h in (0.004, 0.001))
    order = np.log(coarse / fine) / np.log(4)
    assert order == pytest.approx(METHODS[name].order, abs=ORDER_SLACK)


@pytest.mark.parametrize(("name", "step"), [("dopri5", 0.025), ("rkf45", 0.02), ("dop853", 0.1)])
def test_explicit_pairs_converge_with_their_order_at_equal_steps(name, step, pendulum):
    """With no tolerance in the way every step is max_step."""
    q0, v0 = start_of(pendulum)
    exact = precise(pendulum, q0, v0, 2.0)
    options = {"method": name, "rtol": 1e3, "atol": 1e3}
    coarse, fine = (errors_at(pendulum, q0, v0, 2.0, exact, max_step=h, **options) for h in (step, step / 4))
    order = np.log(coarse / fine) / np.log(4)
    assert order == pytest.approx(METHODS[name].order, abs=2 * ORDER_SLACK)


class HeldOrder(Adams):
    """Adams-Bashforth-Moulton of one order, with steps of one length and exact rates to start from."""

    def _choose(self, allowed):
        return self.k


def held(model, q0, v0, k, h, steps):
    """The state after some steps of order k; the k rates before are those of the motion run backwards."""
    back = simulate(model, q0, -v0, k * h, method="dop853", rtol=1e-13, atol=1e-13, dt=h)
    stepper = HeldOrder(Motion(model), 0.0, q0, v0, Settings(rtol=1e3, atol=1e3, max_step=h))
    stepper.k, stepper.known, stepper.h = k, k, h
    rates = np.hstack([-back.v, back.a])
    for i in range(k):
        stepper.times[i] = -back.t[i]
        stepper.phi[i] = rates[0]
        rates = (rates[:-1] - rates[1:]) / ((i + 1) * h)  # divided differences at equal distances
    while stepper.t < (steps - 0.5) * h:
        stepper.step(np.inf)
    return stepper


@pytest.mark.parametrize("k", range(1, HIGHEST + 1))
def test_abm_of_predictor_order_k_converges_with_order_k_plus_one(k, pendulum):
    """Predicted with order k, corrected with k + 1; motion smooth enough for the highest orders to show."""
    model = replace(pendulum, gravity=np.zeros(3))
    q0, v0 = np.array([0.4, 0.8]), np.array([1.0, -1.0])
    errors = []
    for h in (0.08, 0.02):
        end = held(model, q0, v0, k, h, round(2.0 / h))
        q, v = precise(model, q0, v0, end.t)
        errors.append(np.abs(np.concatenate([q - end.q, v - end.v])).max())
    assert np.log(errors[0] / errors[1]) / np.log(4) == pytest.approx(k + 1, abs=2 * ORDER_SLACK)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_error_follows_the_tolerance(name, pendulum):
    q0, v0 = start_of(pendulum)
    exact = precise(pendulum, q0, v0, 2.0)
    tolerances = np.array([1e-4, 1e-7, 1e-10])
    errors = np.array([errors_at(pendulum, q0, v0, 2.0, exact, method=name, rtol=r, atol=r) for r in tolerances])
    power = proportional(name)
    assert (errors < GLOBAL * tolerances**power).all(), errors
    assert (errors[1:] < errors[:-1] / 10 ** (2 * power)).all(), errors


def proportional(name):
    """How the error of a whole run falls with the tolerance: a method of order 2 makes its step error the tolerance."""
    return 1.0 if METHODS[name].order > 2 else 2 / 3


def test_abm_raises_its_order_when_that_pays(pendulum):
    simulation = Simulation(pendulum, [0.4, 0.3], method="abm", rtol=1e-11, atol=1e-11)
    simulation.run(2.0)
    assert simulation.stepper.k >= 6


# ---- step control and dense output ----


@pytest.mark.parametrize(("name", "solver"), [("dopri5", RK45), ("dop853", DOP853)])
def test_dormand_prince_takes_the_steps_of_scipy(name, solver, pendulum):
    """Same tableau, same norm, same controller, and of DOP853 the same way between the steps."""
    motion, q0 = Motion(pendulum), np.array([0.4, 0.3])

    def rate(t, y):
        a = np.empty(2)
        motion.accelerate(t, y[:2], y[2:], a)
        return np.concatenate([y[2:], a])

    ours = Simulation(pendulum, q0, method=name, rtol=1e-7, atol=1e-9)
    theirs = solver(rate, 0.0, np.concatenate([q0, [0, 0]]), 3.0, rtol=1e-7, atol=1e-9, first_step=ours.stepper.h)
    times = [0.0]
    while theirs.status == "running":
        theirs.step()
        times.append(theirs.t)
    run = ours.run(3.0)
    # a new step follows from an error estimate, most of whose digits cancel
    np.testing.assert_allclose(run.t, times, rtol=1e-7)
    np.testing.assert_allclose(run.q[-1], theirs.y[:2], rtol=1e-9)
    if name == "dop853":
        between = np.linspace(ours.stepper.t_old, 3.0, 7)
        q, v = ours.stepper.between(between)
        np.testing.assert_allclose(np.hstack([q, v]), theirs.dense_output()(between).T, rtol=1e-7)


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("machine", ["pendulum", "spinning", "floating"])
def test_rows_between_steps_are_as_good_as_the_steps(name, machine, request):
    model = request.getfixturevalue(machine)
    q0, v0 = start_of(model)
    run = simulate(model, q0, v0, 1.0, method=name, rtol=1e-8, atol=1e-8, dt=0.01)
    assert len(run) == 101
    np.testing.assert_allclose(run.t, np.arange(101) * 0.01, rtol=0, atol=1e-12)
    for k in (33, 77):
        q, v = precise(model, q0, v0, run.t[k])
        allowed = 1e3 * 1e-8 ** proportional(name)
        assert np.abs(model.difference(q, run.q[k])).max() < allowed
        assert np.abs(v - run.v[k]).max() < allowed
    assert np.abs(run.drift).max(initial=0) < 1e-14


def test_dense_output_has_order_six_in_position(spinning):
    q0, v0 = start_of(spinning)
    options = {"method": "dop853", "rtol": 1e-13, "atol": 1e-13}
    exact = simulate(spinning, q0, v0, 0.8, dt=0.0025, **options)
    errors = []
    for h in (0.02, 0.01):
        q, _ = simulate(spinning, q0, v0, 0.8, dt=h, **options).at(exact.t)
        errors.append(np.abs(spinning.difference(exact.q, q)).max())
    assert np.log2(errors[0] / errors[1]) == pytest.approx(6, abs=2 * ORDER_SLACK)


def test_tolerances_by_joint_bind_where_they_are_tight(pendulum):
    loose, tight, mixed = (
        len(simulate(pendulum, [1.0, 0.5], duration=3.0, rtol=1e-3, atol=atol))
        for atol in (1e-3, 1e-10, np.array([1e-3, 1e-10]))
    )
    assert loose < mixed <= tight


def test_per_step_call_and_run_meet_the_same_rows(pendulum):
    by_hand = Simulation(pendulum, [1.0, 0.5])
    while by_hand.t < 1.0:
        by_hand.step(1.0)
    run = simulate(pendulum, [1.0, 0.5], duration=1.0)
    np.testing.assert_array_equal(by_hand.q, run.q[-1])


def test_stiff_motion_is_for_implicit_methods():
    """A stiff spring and damper: the explicit method crawls, the implicit ones stride, and auto finds out."""
    cart = Model.chain("prismatic", mass=1.0, inertia=(1, 1, 1), gravity=(0, 0, 0))
    stiff = Spring(stiffness=1e3, damping=1e6)
    options = {"forces": stiff, "rtol": 1e-5, "atol": 1e-8}
    exact = np.exp(-1e3 / 1e6)  # the slow mode, after a boundary layer of a microsecond
    for method in ("radau", "trbdf2", "esdirk4", "auto"):
        implicit = simulate(cart, [1.0], duration=1.0, method=method, **options)
        assert implicit.q[-1, 0] == pytest.approx(exact, rel=1e-4)
        assert len(implicit) < 200
    explicit = Simulation(cart, [1.0], method="dopri5", **options)
    with pytest.warns(StiffnessWarning):
        explicit.run(0.001)
    assert explicit.stepper.evaluations > 1000


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_force_that_explodes_is_reported(name, pendulum):
    def blast(t, q, v):
        return np.full(2, np.nan if t > 0.5 else 0.0)

    with pytest.raises(SingularError, match="step"):
        simulate(pendulum, [0.4, 0.3], duration=1.0, method=name, forces=blast)


def test_bad_settings_are_refused_by_name(pendulum, spinning):
    with pytest.raises(ArgumentError, match="method"):
        simulate(pendulum, method="euler2")
    with pytest.raises(ArgumentError, match="step"):
        simulate(pendulum, method="verlet")
    with pytest.raises(ArgumentError, match="rtol"):
        simulate(pendulum, rtol=1e-17)
    with pytest.raises(ArgumentError, match="atol"):
        simulate(pendulum, atol=[1.0, 1.0, 1.0])
    with pytest.raises(ArgumentError, match="q0"):
        simulate(pendulum, [1.0])
    with pytest.raises(ArgumentError, match="duration"):
        simulate(pendulum, duration=-1.0)
    with pytest.raises(ArgumentError, match="dt"):
        simulate(pendulum, dt=0.0)
    with pytest.raises(ArgumentError, match="armature"):
        simulate(pendulum, armature=-0.1)
    with pytest.raises(ArgumentError, match="rotors on axes"):
        simulate(spinning, armature=0.1, method="verlet", step=0.01)


# ---- structure ----


@cache
def top():
    """A heavy symmetric top on a ball joint."""
    b = Model.builder("top")
    b.add("top", joint="spherical", mass=1.0, com=(0, 0, 0.3), inertia=(0.02, 0.02, 0.01))
    return b.build()


@cache
def ship():
    """A free body in space with a limb that swings."""
    b = Model.builder("ship", gravity=(0, 0, 0))
    b.add("hull", joint="free", mass=2.0, com=(0.05, 0, 0.1), inertia=(0.1, 0.2, 0.25))
    b.add("limb", parent="hull", joint="revolute", axis=(0, 1, 0), p=(0.2, 0, 0), mass=0.5, com=(0.2, 0, 0),
          inertia=(0.01, 0.01, 0.02))  # fmt: skip
    return b.build()


TILTED = [np.cos(0.25), np.sin(0.25), 0.0, 0.0]
# model, q0, v0, step
LONG_RUNS = {
    "planar double pendulum": (lambda: zoo.point_chain(2), [-1.0, 0.3], [0.0, 0.0], 0.01),
    "rope in space": (lambda: zoo.rope(3), [0.5, 0.2, 0.1, -0.2, 0.3, 0.1], [0.0] * 6, 0.001),
    "spinning top": (top, TILTED, [0.0, 0.0, 40.0], 0.001),
    # its mass centre rests: on a body that flies away the angular momentum is the difference of large numbers
    "body with a limb": (ship, [0, 0, 0, 1, 0, 0, 0, 0], [0.5, -0.8, 1.1, 0.064, -0.092, -0.132, -0.9], 0.005),
}
# Energy errors, relative to the largest kinetic energy, of these runs; in longer ones they may not be larger.
BOUND = {"symplectic-euler": 0.02, "verlet": 3e-4, "variational": 3e-4, "midpoint": 1e-8, "rattle": 3e-3}
# Chaotic motion visits its extremes now and then, so tenths of a run do not have quite the same largest error.
SPREAD = 2.0
# Rounding errors of the momenta, a few units of the last digit a step, add up as random numbers do.
ROUNDING = 10 * np.finfo(np.float64).eps


@pytest.mark.thinned(3)
@pytest.mark.parametrize("steps", [4_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SYMPLECTIC)
@pytest.mark.parametrize("case", LONG_RUNS)
def test_energy_error_stays_bounded_and_momentum_constant(case, name, steps):
    """The largest energy error in the last tenth of a run is that of the first tenth."""
    make, q0, v0, h = LONG_RUNS[case]
    steps //= 4 if name == "midpoint" else 1  # of many iterations each
    run = simulate(make(), q0, v0, steps * h, method=name, step=h, dt=max(1, steps // 4000) * h)
    tenths = np.array_split(np.abs(run.energy - run.energy[0]) / run.kinetic_energy.max(), 10)
    first, last = tenths[0].max(), tenths[-1].max()
    print(f"{case}, {name}, {steps} steps: energy error {first:.2e} at first, {last:.2e} at last")
    assert last < SPREAD * max(first, BOUND["midpoint"])
    assert max(tenth.max() for tenth in tenths) < BOUND[name]
    if case == "body with a limb":
        p = momentum(run.model, run.q, run.v)
        drift = np.abs(p - p[0]).max() / np.abs(p[0]).max()
        print(f"momentum {drift:.1e}")
        assert drift < ROUNDING * np.sqrt(steps)


@pytest.mark.parametrize("name", SYMPLECTIC)
def test_momentum_of_a_floating_machine_is_constant(name, floating):
    """Linear and angular momentum in space, exact up to rounding (discrete Noether theorem)."""
    q0, v0 = start_of(floating)
    run = simulate(floating, q0, v0, 2.0, method=name, step=0.01)
    p = momentum(floating, run.q, run.v)
    np.testing.assert_allclose(p, np.tile(p[0], (len(p), 1)), rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["verlet", "variational", "midpoint"])
@pytest.mark.parametrize("machine", ["pendulum", "spinning"])
def test_symmetric_methods_read_the_same_backwards(name, machine, request):
    model = request.getfixturevalue(machine)
    q0, v0 = start_of(model)
    there = simulate(model, q0, v0, 1.0, method=name, step=0.01)
    back = simulate(model, there.q[-1], -there.v[-1], 1.0, method=name, step=0.01)
    np.testing.assert_allclose(model.difference(back.q[-1], q0), 0, rtol=0, atol=1e-11)


def test_a_step_too_long_to_settle_is_reported(pendulum):
    with pytest.raises(SingularError, match="smaller steps"):
        simulate(pendulum, [0.4, 0.3], [40.0, -80.0], 2.0, method="variational", step=0.5)


# ---- coordinates ----


@pytest.mark.parametrize("machine", ["pendulum", "spinning", "floating"])
def test_coordinate_rates_are_the_derivative_of_integrate(machine, request):
    model = request.getfixturevalue(machine)
    q, v = start_of(model)
    a = np.linspace(-1, 1, model.nv)
    c = Coordinates(model)
    h = 1e-5
    ahead, behind = (model.integrate(q, s * h * v) for s in (1, -1))
    np.testing.assert_allclose(c.rate(q, v), (ahead - behind) / (2 * h), rtol=0, atol=1e-9)
    np.testing.assert_allclose(c.velocity(q, c.rate(q, v)), v, rtol=0, atol=1e-14)
    rates = [c.rate(model.integrate(q, s * h * v), v + s * h * a) for s in (1, -1)]
    np.testing.assert_allclose(c.rate_dot(q, v, a), (rates[0] - rates[1]) / (2 * h), rtol=0, atol=1e-8)
    np.testing.assert_allclose(c.move(q, 0.3 * v), model.integrate(q, 0.3 * v), rtol=0, atol=1e-15)


# ---- the fused step ----


@pytest.mark.parametrize("name", ["dopri5", "rkf45", "dop853"])
@pytest.mark.parametrize("machine", [zoo.stanford, lambda: zoo.rope(20)], ids=["unrolled", "looped"])
def test_fused_stages_are_the_stages_one_by_one(name, machine):
    model = machine()
    q0, v0 = np.linspace(0.1, 0.4, model.nq), np.linspace(-0.5, 0.5, model.nv)
    fused, plain = (Simulation(model, q0, v0, method=name, forces=Constant(np.full(model.nv, 1e-3))) for _ in range(2))
    assert fused.stepper.stages.fused
    plain.stepper.stages.fused = None
    step = 1e-2 if name == "dop853" else 1e-3
    errors = [simulation.stepper._try(step) for simulation in (fused, plain)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-4)  # of an error estimate most digits cancel
    np.testing.assert_allclose(fused.stepper.stages.Y, plain.stepper.stages.Y, rtol=1e-12, atol=1e-12)
    ends = [simulation.run(0.2).q[-1] for simulation in (fused, plain)]
    np.testing.assert_allclose(*ends, rtol=1e-7)


def test_forces_in_python_are_not_fused(pendulum):
    simulation = Simulation(pendulum, forces=lambda t, q, v: np.zeros(2))
    assert not simulation.stepper.stages.fused


def test_a_motion_starts_at_a_keyframe_by_name():
    bent = {"bent": (0.1, 0.2, 0.3)}
    model = zoo.planar3().with_extras(Extras(joint_names=("a", "b", "c"), keyframes=bent))
    run = simulate(model, "bent", duration=0.01)
    np.testing.assert_array_equal(run.q[0], bent["bent"])
    with pytest.raises(ArgumentError, match=r"unknown q0 'home'; choose one of: bent"):
        simulate(model, "home")
    with pytest.raises(ArgumentError, match="q0"):
        simulate(zoo.planar3(), "home")
