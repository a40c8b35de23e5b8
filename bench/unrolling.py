"""Straight-line code against loops over bodies: from how many freedoms on the loop is as good."""

from contenders import BATCH, states, torsor_program
from harness import Report, race

import torsor as ts

LENGTHS = (3, 6, 9, 12, 16)
FUNCTIONS = (ts.forward_dynamics, ts.inverse_dynamics, ts.mass_matrix, ts.inverse_mass_matrix)


def measure(rounds: int) -> Report:
    report = Report("unrolling", f"Unrolled against looped kernels, general arms, {BATCH} states a call, one core")
    for function in FUNCTIONS:
        for n in LENGTHS:
            model = ts.zoo.general_arm(n, seed=1)
            sets = states(model)
            if function in (ts.mass_matrix, ts.inverse_mass_matrix):
                sets = [(q,) for q, _, _ in sets]
            contenders = [
                torsor_program(name, model, function, sets, threads=1, specialised=specialised)
                for name, specialised in (("looped", False), ("unrolled", True))
            ]
            case = f"{function.__name__}, {n} joints"
            report.rows += race(case, contenders, unit="a state", per=BATCH, rounds=rounds)
    return report
