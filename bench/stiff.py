"""Stiff motion: a steel cable against MuJoCo's implicitfast, its growth to a million links, a servo on a light wrist.

The cable is 100 m long and hangs by one end; it falls from horizontal.  Bending stiffness and damping are those of the
whole cable, so a joint between shorter links is stiffer.
"""

from __future__ import annotations

import time

import mujoco as mj
import numpy as np
from harness import Claim, Contender, Report, Row, progress, race

import torsor as ts
from torsor import Simulation

LENGTH, MASS = 100.0, 1.2  # m, kg/m
BENDING, DAMPING = 20.0, 0.2  # N m^2 and N m^2 s: a wire rope of 14 mm
# links: how many times faster torsor is meant to be, and steps per call
PEER_SIZES = {50: (10.0, 2000), 100: (12.0, 500), 500: (150.0, 50), 1000: (600.0, 20)}
PEER_BENDING, PEER_DAMPING = 0.05, 0.5  # MuJoCo's springs are explicit: soft enough for it to stay stable
STEP = 1e-3
GROWTH = (1_000, 10_000, 100_000, 1_000_000)
LONG = 100_000
TOLERANCE = 1e-3  # of the place of the tip, relative to the length
RTOL = 1e-2  # of the method: the tip is then far closer than TOLERANCE


def measure(rounds: int) -> Report:
    report = Report("stiff", "Stiff motion: a cable of n links, implicit steps of 1 ms; adaptive steps; a light wrist")
    for n, (target, steps) in PEER_SIZES.items():
        few, contenders = rounds if n < 500 else 3, _contenders(n, target, steps)
        report.rows += race(f"cable, n = {n}", contenders, unit="a link and step", per=n * steps, rounds=few)
    report.rows += _growth(rounds)
    report.claims += [*_flatness(report.rows), *_fall(), *_wrist()]
    return report


def cable(n: int, bending: float = BENDING, damping: float = DAMPING) -> ts.Model:
    """n links, joints about y and z in turn."""
    L, axis, p, inertia = _links(n)
    return ts.Model.chain(
        "revolute", axis=axis, p=p, mass=MASS * L, com=(L / 2, 0, 0), inertia=inertia, stiffness=bending / L,
        damping=damping / L, name="cable",
    )  # fmt: skip


def _links(n: int) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """(length, axes, places, inertia) of the links."""
    L = LENGTH / n
    axis = np.where(np.arange(n)[:, None] % 2, (0.0, 0.0, 1.0), (0.0, 1.0, 0.0))
    p = np.where(np.arange(n)[:, None] > 0, (L, 0.0, 0.0), 0.0)
    return L, axis, p, MASS * L * np.array([5e-5, L * L / 12 + 2.5e-5, L * L / 12 + 2.5e-5])


# The same steps as MuJoCo ----------------------------------------------------------------------------------------


def _contenders(n: int, target: float, steps: int) -> list[Contender]:
    model, (peer, data) = cable(n, PEER_BENDING, PEER_DAMPING), _mujoco(n)
    rng = np.random.default_rng(n)
    sets = [(0.05 * rng.normal(size=n),) for _ in range(3)]

    def theirs(q: np.ndarray) -> np.ndarray:
        data.qpos[:], data.qvel[:] = q, 0.0
        for _ in range(steps):
            mj.mj_step(peer, data)
        return data.qpos.copy()

    def ours(q: np.ndarray) -> np.ndarray:
        still = np.zeros(n)
        return ts.rollout(model, q, still, steps=steps, step=STEP, every=steps, method="implicit-euler").q[0]

    # the methods differ in how they treat the springs, by O(h): the same motion, not the same numbers
    return [
        Contender("MuJoCo implicitfast", theirs, sets),
        Contender("torsor rollout, implicit-euler", ours, sets, target=target, tolerance=5e-2),
    ]


def _mujoco(n: int) -> tuple[mj.MjModel, mj.MjData]:
    """The cable, built by MjSpec."""
    L, axes, places, inertia = _links(n)
    spec = mj.MjSpec()
    spec.option.timestep, spec.option.integrator = STEP, mj.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.gravity = ts.Model.chain(n=1, mass=1.0, inertia=(1, 1, 1)).gravity
    spec.option.disableflags |= int(mj.mjtDisableBit.mjDSBL_CONTACT) | int(mj.mjtDisableBit.mjDSBL_CONSTRAINT)
    body = spec.worldbody
    for axis, p in zip(axes, places):
        body = body.add_body(pos=p, mass=MASS * L, ipos=(L / 2, 0, 0), inertia=inertia, explicitinertial=True)
        body.add_joint(type=mj.mjtJoint.mjJNT_HINGE, axis=axis, stiffness=PEER_BENDING / L, damping=PEER_DAMPING / L)
    model = spec.compile()
    return model, mj.MjData(model)


# Growth ----------------------------------------------------------------------------------------------------------


def _growth(rounds: int) -> list[Row]:
    """Steps of the second-order method from rest, with the tolerance of the figure."""
    rows = []
    for n in GROWTH:
        simulation = Simulation(cable(n), method="trbdf2", rtol=RTOL, atol=RTOL / n)
        for _ in range(5):
            simulation.step()
        times = []
        for k in range(min(rounds, 8)):
            progress(f"growth, n = {n}: step {k + 1}")
            before, begin = simulation.stepper.evaluations, time.perf_counter()
            simulation.step()
            times.append((time.perf_counter() - begin) / (simulation.stepper.evaluations - before) / n)
        progress("")
        rows.append(Row(f"trbdf2, n = {n}", "torsor", "a link and sweep", min(times), float(np.median(times))))
    return rows


def _flatness(rows: list[Row]) -> list[Claim]:
    by_size = {row.case: row.min for row in rows}
    first, last = (by_size[f"trbdf2, n = {n}"] for n in (GROWTH[1], GROWTH[-1]))
    return [Claim(f"cost per link and sweep, n = {GROWTH[-1]:,} over {GROWTH[1]:,}", last / first, at_most=2.0)]


# The figures -----------------------------------------------------------------------------------------------------


def _fall() -> list[Claim]:
    """One second of 100,000 links of 1 mm, and the balance of its energy."""
    seconds, coarse, balance, evaluations = fall(LONG, RTOL)
    _, fine, _, _ = fall(LONG // 100, RTOL / 1000)
    _, same, _, _ = fall(LONG // 100, RTOL)
    return [
        Claim(f"{LONG:,} links fall for 1 s by trbdf2: seconds", seconds, at_most=15.0),
        Claim("... evaluations", evaluations),
        Claim("... energy not accounted for, of what was released", balance, at_most=1e-3),
        Claim("... tip at 1/1000 of the tolerance, 1000 links: difference / length",
              float(np.linalg.norm(same - fine)) / LENGTH, at_most=TOLERANCE),
        Claim("... height of the tip", float(coarse[2])),
    ]  # fmt: skip


def fall(n: int, tolerance: float) -> tuple[float, np.ndarray, float, int]:
    """(seconds, place of the tip, share of the released energy that is missing, evaluations) of a fall of 1 s."""
    model = cable(n)
    simulation = Simulation(model, method="trbdf2", rtol=tolerance, atol=tolerance / n)
    began, times, losses = time.perf_counter(), [0.0], [0.0]
    while simulation.t < 1.0:
        times.append(simulation.step(1.0))
        losses.append(float(model.damping @ simulation.v**2))
    seconds = time.perf_counter() - began
    q, v = simulation.q, simulation.v
    released = ts.potential_energy(model, np.zeros(n)) - ts.potential_energy(model, q)
    kept = ts.kinetic_energy(model, q, v) + float(model.stiffness @ q**2) / 2
    balance = abs(released - kept - np.trapezoid(losses, times)) / released
    return seconds, ts.body_poses(model, q)[-1, :3, 3], float(balance), simulation.stepper.evaluations


def _wrist() -> list[Claim]:
    """3 s of an arm whose servos are too strong for its wrist of 1e-6 kg m^2."""
    model = ts.Model.chain(
        "revolute", axis=((0, 0, 1), (0, 1, 0), (0, 1, 0), (1, 0, 0)),
        p=((0, 0, 0), (0, 0, 0.3), (0.4, 0, 0), (0.3, 0, 0)), mass=(5.0, 3.0, 2.0, 0.01),
        com=((0, 0, 0.1), (0.2, 0, 0), (0.15, 0, 0), (0.01, 0, 0)),
        inertia=np.array([[0.05] * 3, [0.04] * 3, [0.02] * 3, [1e-6] * 3]),
    )  # fmt: skip
    servo = ts.PD(np.array([0.8, -0.5, 0.9, 1.2]), 1e3, 1e2)
    claims = []
    for method in ("auto", "esdirk4", "trbdf2"):
        simulation = Simulation(model, forces=servo, method=method)
        simulation.run(3.0)
        claims.append(Claim(f"wrist under PD for 3 s, {method}: evaluations", simulation.stepper.evaluations, 3000))
    return claims
