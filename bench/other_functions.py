"""Inverse dynamics, mass matrix and its inverse of 4096 states on one core."""

from dataclasses import replace

from contenders import BATCH, MACHINES, pinocchio_batch, pinocchio_loop, states, torsor_program
from harness import Report, race

import torsor as ts


def measure(rounds: int) -> Report:
    report = Report(
        "other_functions", f"Inverse dynamics, M and its inverse, {BATCH} states a call, one core"
    )
    for name, machine in MACHINES.items():
        model = machine()
        sets = states(model)
        unit = {"unit": "a state", "per": BATCH, "rounds": rounds}
        rnea = pinocchio_batch(model, "rneaInParallel", sets)
        program = torsor_program("", model, ts.inverse_dynamics, sets, threads=1, target=15.0)
        report.rows += race(f"{name}: inverse dynamics", [rnea, program], **unit)
        for function, peer in ((ts.mass_matrix, "crba"), (ts.inverse_mass_matrix, "computeMinverse")):
            contenders = [pinocchio_loop(model, peer, sets), _matrix_program(model, function, sets)]
            report.rows += race(f"{name}: {function.__name__.replace('_', ' ')}", contenders, **unit)
    return report


def _matrix_program(model, function, sets):
    """The peer's answer is the last state's matrix."""
    configurations = [(q,) for q, _, _ in sets]
    program = torsor_program("", model, function, configurations, threads=1, target=8.0)
    return replace(program, answer=lambda matrices: matrices[-1])
