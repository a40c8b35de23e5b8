"""Inverse dynamics, mass matrix and its inverse of 4096 states on one core."""

from collections.abc import Iterator
from dataclasses import replace

from contenders import BATCH, MACHINES, State, drake, pinocchio_batch, pinocchio_loop, states, torsor_program
from harness import Contender, Report, race

import torsor as ts


def measure(rounds: int) -> Report:
    report = Report("other_functions", f"Inverse dynamics, M and M^-1, {BATCH} states per call, one core")
    for name, machine in MACHINES.items():
        for question, contenders in _races(machine()):
            report.rows += race(f"{name}: {question}", contenders, unit="per state", per=BATCH, rounds=rounds)
    return report


def _races(model: ts.Model) -> Iterator[tuple[str, list[Contender]]]:
    sets = states(model)
    program = torsor_program("Program", model, ts.inverse_dynamics, sets, threads=1, target=15.0)
    peers = [pinocchio_batch(model, "rneaInParallel", sets), *drake(model, "CalcInverseDynamics", sets)]
    yield "inverse dynamics", [*peers, program]
    peers = [pinocchio_loop(model, "crba", sets), *drake(model, "CalcMassMatrix", sets)]
    yield "mass matrix", [*peers, *_matrix_programs(model, ts.mass_matrix, sets)]
    peers = [pinocchio_loop(model, "computeMinverse", sets)]
    yield "inverse mass matrix", [*peers, *_matrix_programs(model, ts.inverse_mass_matrix, sets)]


def _matrix_programs(model: ts.Model, function, sets: list[State]) -> list[Contender]:
    """The peer's answer is the last state's matrix."""
    configurations: list[State] = [(q,) for q, _, _ in sets]
    programs = [torsor_program("Program", model, function, configurations, threads=1, target=8.0)]
    if not ts.compile(model, function).specialised:
        programs.append(torsor_program("specialised", model, function, configurations, threads=1, specialised=True))
    return [replace(program, answer=lambda matrices: matrices[-1]) for program in programs]
