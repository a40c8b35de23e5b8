"""What acts at the joints: forces that are data against the same forces as functions, and their cost in a rollout."""

from dataclasses import replace

import numpy as np
from harness import Contender, Report, race

import torsor as ts
from torsor import Friction
from torsor.motion.motion import Motion

COUNT, STEPS = 1024, 100  # trajectories and steps of a rollout
BUSY = {"friction": 0.3, "damping": 0.1, "lower": -1.0, "upper": 1.0}
BARE = {"friction": 0.0, "damping": 0.0, "stiffness": 0.0, "lower": -np.inf, "upper": np.inf}


def measure(rounds: int) -> Report:
    report = Report("forces", "Forces on a seven-joint arm and a humanoid")
    arm = replace(ts.zoo.panda(), lower=-np.inf, upper=np.inf, effort=np.inf, speed=np.inf)
    for case, contenders in (*_simulations(arm).items(), *_rollouts(arm).items(), *_gradients().items()):
        report.rows += race(case, contenders, unit="per run", rounds=min(rounds, 5))
    return report


def _simulations(arm: ts.Model) -> dict[str, list[Contender]]:
    """0.1 s of motion, or 2 s where it is smooth: forces in Python, and in the compiled right-hand side."""
    humanoid, driven = _humanoid()
    passive = [Friction(0.1, 0.3), ts.Limits(-1.0, 1.0)]
    servo = ts.PD(ts.Cycloid(np.zeros(7), np.ones(7), 0.1), 100.0, 10.0)
    tracking = ts.ComputedTorque(ts.Cycloid(np.zeros(7), np.ones(7), 2.0), 400.0, 40.0)
    sets = {
        "friction, stops and dampers": (arm, passive, 0.1),
        "and a servo on its way": (arm, [*passive, servo], 0.1),
        "computed torques": (arm, [tracking], 2.0),
        "a pull": (arm, [ts.Pull("link7", [0.0, 0.0, -20.0])], 2.0),
        "dampers and friction of a humanoid": (humanoid, [Friction(0.5 * driven, 0.2 * driven)], 0.02),
    }

    def run(model, forces, duration, method):
        return ts.simulate(model, duration=duration, forces=forces, method=method, rtol=1e-6).q[-1]

    cases = {}
    for method in ("dopri5", "esdirk4"):
        for name, (model, forces, duration) in sets.items():
            motions = [Motion(replace(model, **BARE), force) for force in forces]
            opaque = [ts.Function(motion.felt, motion.slopes) for motion in motions]  # implicit methods know both
            cases[f"{method}: {name}"] = [
                Contender("functions", run, [(model, opaque, duration, method)], tolerance=1e-3),
                Contender("data", run, [(model, forces, duration, method)], tolerance=1e-3),
            ]
    return cases


def _humanoid() -> tuple[ts.Model, np.ndarray]:
    """A humanoid, and which of its freedoms have joints: the first six are those of its base."""
    humanoid = ts.zoo.humanoid()
    return humanoid, np.arange(humanoid.nv) >= 6


def _rollouts(arm: ts.Model) -> dict[str, list[Contender]]:
    rng = np.random.default_rng(0)
    q, v = rng.normal(size=(2, COUNT, 7))
    damping, friction = rng.uniform(0, 1, (2, COUNT, 7))
    wrenches = rng.normal(size=(COUNT, 7, 6))

    def run(model, options):
        return ts.rollout(model, q, v, steps=STEPS, step=1e-4, every=STEPS, **options).q

    machines = {
        "no forces": (arm, {}),
        "friction, stops and dampers": (replace(arm, **BUSY), {}),
        "and drives with limits": (
            replace(arm, **BUSY, effort=20.0, speed=2.0),
            {"forces": ts.PD(np.zeros(7), 9.0, 1.0)},
        ),
        "wrenches": (arm, {"forces": ts.External(wrenches)}),
        "a pull": (arm, {"forces": ts.Pull("link7", wrenches[:, 6, 3:])}),
        "computed torques": (arm, {"forces": ts.ComputedTorque(np.ones(7))}),
        "stop conditions": (arm, {"stop": ts.Stop(q=0, above=9.0)}),
        "dampers and friction of every member": (ts.ModelBatch(arm, damping=damping, friction=friction), {}),
        "masses of every member": (ts.ModelBatch(arm, mass=arm.mass * rng.uniform(0.9, 1.1, (COUNT, 7))), {}),
    }
    contenders = [Contender(name, run, [given], answer=None) for name, given in machines.items()]
    return {f"rollout of {COUNT} trajectories, {STEPS} steps": contenders}


def _gradients() -> dict[str, list[Contender]]:
    """Rollouts of a humanoid with friction, straight-line code being too long for it, and their gradients."""
    humanoid, driven = _humanoid()
    humanoid = replace(humanoid, friction=0.2 * driven, damping=0.5 * driven)
    options = {"steps": 20, "step": 1e-4, "every": 20}
    cases = {}
    for count in (1, 256):
        rng = np.random.default_rng(0)
        q, v = humanoid.random_configuration(rng, count), rng.normal(size=(count, humanoid.nv))
        ones = np.ones((count, 1, humanoid.nv))
        cases[f"a humanoid with friction, {count} trajectories, 20 steps"] = [
            Contender("rollout", lambda q, v: ts.rollout(humanoid, q, v, **options).q, [(q, v)], answer=None),
            Contender(
                "vjp(rollout)",
                lambda q, v, ones: ts.vjp(ts.rollout)(humanoid, q, v, (ones, ones), **options).q,
                [(q, v, ones)],
                answer=None,
            ),
        ]
    return cases
