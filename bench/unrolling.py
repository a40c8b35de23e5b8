"""Straight-line code against loops over bodies: from how many freedoms on the loop is as good."""

from contenders import BATCH, states, torsor_program
from harness import Report, race

import torsor as ts

MODELS = {f"{n} joints": ts.zoo.general_arm(n, seed=1) for n in (3, 6, 9, 12, 16, 20)} | {"humanoid": ts.zoo.humanoid()}
FUNCTIONS = (ts.forward_dynamics, ts.inverse_dynamics, ts.mass_matrix, ts.inverse_mass_matrix)


def measure(rounds: int) -> Report:
    report = Report("unrolling", f"Unrolled against looped kernels, {BATCH} states per call, one core")
    for function in FUNCTIONS:
        for name, model in MODELS.items():
            sets = states(model)
            if function in (ts.mass_matrix, ts.inverse_mass_matrix):
                sets = [(q,) for q, _, _ in sets]
            contenders = [
                torsor_program(kind, model, function, sets, threads=1, specialised=specialised)
                for kind, specialised in (("looped", False), ("unrolled", True))
            ]
            report.rows += race(f"{function.__name__}, {name}", contenders, unit="per state", per=BATCH, rounds=rounds)
    return report
