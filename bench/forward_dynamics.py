"""Forward dynamics of 4096 states on one core."""

from contenders import BATCH, FLOAT32, MACHINES, drake, mujoco_rollout, pinocchio_batch, states, torsor_program
from harness import Report, race

import torsor as ts

LOOP_TARGET = {"general 6R": 18.0, "Panda-like 7R": 18.0, "PUMA 560": 18.0, "floating humanoid": 15.0}
SPECIALISED_TARGET = {"general 6R": 30.0, "Panda-like 7R": 40.0, "PUMA 560": 45.0}
AVX2 = 4  # doubles


def measure(rounds: int) -> Report:
    report = Report("forward_dynamics", f"Forward dynamics, {BATCH} states per call, one core")
    for name, machine in MACHINES.items():
        model = machine()
        sets = states(model)
        contenders = [pinocchio_batch(model, "abaInParallel", sets), mujoco_rollout(model, sets)]
        contenders += drake(model, "EvalTimeDerivatives", sets)
        contenders += [
            torsor_program(label, model, ts.forward_dynamics, sets, threads=1, **options)
            for label, options in _programs(name)
        ]
        report.rows += race(name, contenders, unit="per state", per=BATCH, rounds=rounds)
    return report


def _programs(machine: str):
    loop, special = {"specialised": False}, {"specialised": True}
    yield "loop kernel", {**loop, "target": LOOP_TARGET[machine]}
    yield "loop kernel, AVX2 lanes", {**loop, "lanes": AVX2, "target": 12.0}
    yield "loop kernel, float32", {**loop, "dtype": "float32", "tolerance": FLOAT32}
    target = SPECIALISED_TARGET.get(machine)
    yield "specialised", {**special, "target": target}
    yield "specialised, AVX2 lanes", {**special, "lanes": AVX2, "target": 18.0 if target else None}
    yield "specialised, float32", {**special, "dtype": "float32", "tolerance": FLOAT32}
